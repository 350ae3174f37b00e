//! Data that a program has mapped changes in its memory when a commit or an undo changes the file,
//! as when another program writes to it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::place::{Place, kvfs, succeeds, until};

/// Maps a file, shared and private, and prints what both mappings show, once for each line of its
/// input.
const MAPS: &str = "import mmap, sys
file = open(sys.argv[1], 'rb')
private = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
shared = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
for line in sys.stdin:
    print(shared[:6].decode(), private[:6].decode(), shared[-6:].decode(), flush=True)";

/// A program that has mapped a file.
struct Mapped {
    child: Child,
    input: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Mapped {
    fn shows(&mut self) -> String {
        self.input.write_all(b"\n").expect("it takes input");
        let mut line = String::new();
        self.said.read_line(&mut line).expect("text");
        line.trim_end().into()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn mapped_data_shows_a_commit_and_an_undo() {
    let Some(place) = Place::new() else { return };
    if Command::new("python3").arg("-V").output().is_err() {
        return eprintln!("SKIPPED: there is no python3");
    }
    place.mounted();
    let file = place.mnt().join("data");
    // Longer than a page, and of the same length afterwards.
    let content = |word: &str| word.repeat(5000);
    fs::write(&file, content("before")).expect("written");
    let mut child = Command::new("python3")
        .args(["-c", MAPS])
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let mut mapped = Mapped {
        child,
        input: input.expect("a pipe"),
        said: BufReader::new(output.expect("a pipe")),
    };
    assert_eq!(mapped.shows(), "before before before");
    let ino = fs::metadata(&file).expect("there").ino();

    fs::write(place.dir.path().join("new"), content("after!")).expect("written");
    let script = format!("cat {}/new > \"$KVFS_MOUNT/data\"", place.dir.path().display());
    let mut run = kvfs(&["run"]);
    run.arg(place.mnt()).args(["--", "sh", "-c", &script]);
    succeeds(run.stdin(Stdio::null()));
    until("the mapping shows the commit", || mapped.shows() == "after! after! after!");
    assert_eq!(fs::metadata(&file).expect("there").ino(), ino, "data stays in its inode");

    succeeds(kvfs(&["undo"]).arg(place.mnt()).stdin(Stdio::null()));
    until("the mapping shows the undo", || mapped.shows() == "before before before");
    assert_eq!(fs::metadata(&file).expect("there").ino(), ino, "data stays in its inode");
}
