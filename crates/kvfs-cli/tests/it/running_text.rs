//! Tests that programs and libraries which run from a mount keep their code when a commit, an undo
//! or a restore changes their files. A rollback that would change running code is refused.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::place::{Place, fails, kvfs, succeeds};

const LIBRARIES: [&str; 3] =
    ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/aarch64-linux-gnu/libm.so.6"];

/// Loads a library, reports that, and calls into it on command.
const USES: &str = "import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print('loaded', flush=True)
for name in sys.stdin:
    function = getattr(library, name.strip())
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
    print(function(1.0) > 0, flush=True)";

/// A program, and one that has loaded a library, both from the mount.
struct Running {
    program: Child,
    user: Child,
    said: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in [&mut self.program, &mut self.user] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Running {
    fn start(at: &Path) -> Running {
        let mut program = Command::new(at.join("program"));
        program.arg("-").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut user = Command::new("python3");
        user.args(["-c", USES]).arg(at.join("library"));
        user.stdin(Stdio::piped()).stdout(Stdio::piped());
        let program = program.spawn().expect("it runs");
        let mut user = user.spawn().expect("it runs");
        let mut said = BufReader::new(user.stdout.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("text");
        assert_eq!(line, "loaded\n");
        Running { program, user, said }
    }

    /// They behave as before, with pages that are read again.
    #[track_caller]
    fn go_on(&mut self, after: &str) {
        fs::write("/proc/sys/vm/drop_caches", "3").expect("root drops caches");
        let input = self.user.stdin.as_mut().expect("a pipe");
        for function in ["cos", "tgamma", "exp2", "cbrt"] {
            writeln!(input, "{function}").expect("it takes input");
            let mut line = String::new();
            self.said.read_line(&mut line).expect("text");
            assert_eq!(line, "True\n", "{function} after {after}");
        }
        let mut input = self.program.stdin.take().expect("a pipe");
        input.write_all(b"it goes on").expect("it takes input");
        drop(input);
        let mut output = String::new();
        let from = self.program.stdout.as_mut().expect("a pipe");
        std::io::Read::read_to_string(from, &mut output).expect("text");
        assert_eq!(output, "it goes on", "after {after}");
        assert!(self.program.wait().expect("it ends").success(), "after {after}");
    }
}

fn text_of(name: &str) -> Option<PathBuf> {
    match name {
        "program" => Some("/bin/cat".into()),
        _ => LIBRARIES.iter().map(PathBuf::from).find(|library| library.exists()),
    }
}

/// Writes the same content into both files, in place: that of a program and a library, or other
/// content.
fn script(at: &Path, is_text: bool) -> String {
    let each = ["program", "library"].map(|name| {
        let (from, to) = (text_of(name).expect("it is there"), at.join(name));
        let (from, to) = (from.display(), to.display());
        match is_text {
            true => format!("cat {from} > {to} && chmod 755 {to}"),
            false => format!("head -c $(stat -Lc %s {from}) /dev/zero | tr '\\0' '\\364' > {to}"),
        }
    });
    each.join(" && ")
}

fn run(place: &Place, is_text: bool) {
    let mut command = kvfs(&["run"]);
    command.arg(place.mnt()).args(["--", "sh", "-c", &script(&place.mnt(), is_text)]);
    succeeds(command.stdin(Stdio::null()));
}

#[test]
fn what_runs_keeps_its_text_over_a_commit_an_undo_and_a_restore() {
    let Some(place) = Place::new() else { return };
    if text_of("library").is_none() || Command::new("python3").arg("-V").output().is_err() {
        return eprintln!("SKIPPED: there is no python3, or no library to load with it");
    }
    place.mounted();
    let changed = |after: &str| {
        for name in ["program", "library"] {
            let content = fs::read(place.mnt().join(name)).expect("read");
            assert!(content.iter().all(|byte| *byte == 0o364), "{name} after {after}");
        }
    };
    run(&place, true);
    let mut running = Running::start(&place.mnt());
    run(&place, false);
    changed("a commit");
    running.go_on("a commit");
    drop(running);

    succeeds(kvfs(&["snapshot", "create"]).arg(place.mnt()).arg("before"));
    run(&place, true);
    let mut running = Running::start(&place.mnt());
    succeeds(kvfs(&["undo"]).arg(place.mnt()).stdin(Stdio::null()));
    changed("an undo");
    running.go_on("an undo");
    drop(running);

    run(&place, true);
    let mut running = Running::start(&place.mnt());
    let mut restore = kvfs(&["restore"]);
    restore.arg(place.mnt()).args(["before", "program", "library"]);
    succeeds(restore.stdin(Stdio::null()));
    changed("a restore");
    running.go_on("a restore");
    drop(running);

    run(&place, true);
    let mut running = Running::start(&place.mnt());
    let rollback = || {
        let mut command = kvfs(&["snapshot", "rollback"]);
        command.arg(place.mnt()).arg("before").stdin(Stdio::null());
        command
    };
    let said = fails(1, &mut rollback());
    assert!(said.contains("program") || said.contains("library"), "{said}");
    running.go_on("a rollback that was refused");
    drop(running);
    succeeds(&mut rollback());
    changed("a rollback");
}

#[test]
fn what_runs_from_removed_files_goes_on_when_an_undo_brings_them_back() {
    let Some(place) = Place::new() else { return };
    if text_of("library").is_none() || Command::new("python3").arg("-V").output().is_err() {
        return eprintln!("SKIPPED: there is no python3, or no library to load with it");
    }
    place.mounted();
    let root = place.mnt();
    let each = |work: &str| {
        format!("cd {} && for f in program library; do {work} || exit 1; done", root.display())
    };
    let ways = [
        each("rm $f"),
        each("cat /bin/true > $f"),
        each("cp /bin/true other && mv other $f"),
        each("rm $f && ln -s /bin/true $f"),
    ];
    for way in &ways {
        run(&place, true);
        let mut running = Running::start(&root);
        let mut change = kvfs(&["run"]);
        change.arg(&root).args(["--", "sh", "-c", way]);
        succeeds(change.stdin(Stdio::null()));
        succeeds(kvfs(&["undo"]).arg(&root).stdin(Stdio::null()));
        running.go_on(&format!("the undo of {way}"));
        drop(running);
        for name in ["program", "library"] {
            let text = fs::read(text_of(name).expect("it is there")).expect("read");
            assert!(fs::read(root.join(name)).expect("read") == text, "{name}: {way}");
        }
    }
    succeeds(&mut place.umount());
    succeeds(kvfs(&["check"]).arg(place.store()));
}
