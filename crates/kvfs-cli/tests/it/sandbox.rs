//! Tests of the files that a program in `kvfs run` can reach. It sees its view at every place where
//! the store is mounted, and the store itself at none.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::mounted::Mount;

/// A directory of the store, mounted at another place as well.
struct Elsewhere(tempfile::TempDir);

impl Elsewhere {
    fn of(directory: &Path) -> Elsewhere {
        let elsewhere = Elsewhere(tempfile::tempdir().expect("a temporary directory"));
        assert!(
            Command::new("mount")
                .arg("--bind")
                .args([directory, elsewhere.0.path()])
                .status()
                .expect("mount")
                .success()
        );
        elsewhere
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn run(mount: &Path, options: &[&str], directory: &Path, script: &str) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command
        .arg("run")
        .args(options)
        .arg(mount)
        .args(["--", "sh", "-c", script])
        .current_dir(directory);
    command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .env_remove("KVFS_TXN")
        .env_remove("KVFS_SOCKET");
    command.status().expect("it runs").code()
}

fn names(directory: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("entry").file_name().into_string().expect("UTF-8")
    };
    let mut names: Vec<_> = fs::read_dir(directory).expect("readdir").map(name).collect();
    names.sort();
    names
}

#[test]
fn nothing_uncovers_the_store_below_the_view() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir(mount.path("sub")).expect("mkdir");
    let (root, elsewhere) = (mount.root(), Elsewhere::of(&mount.path("sub")));
    let (m, b) = (root.display(), elsewhere.0.path().display());
    let script = format!(
        "for i in 1 2 3; do for place in {m} {b}; do
            umount $place; umount -l $place; umount -f $place
            echo escaped > $place/escaped; mkdir $place/escaped-too; rm -rf $place/sub
         done; done
         true"
    );
    assert_eq!(run(&root, &["--abort"], Path::new("/"), &script), Some(0));
    assert_eq!(
        (names(&root), names(&mount.path("sub"))),
        (vec!["sub".to_string()], vec![]),
        "nothing was changed"
    );
    // Unmounting and returning to the earlier directory does not reach the store either.
    let script = format!(
        "cd ..; umount -l {b}; umount -l {m}; cd - || true; echo escaped > escaped; echo escaped > {m}/../mnt/escaped"
    );
    for from in [root.as_path(), elsewhere.0.path()] {
        run(&root, &["--abort"], from, &script);
        assert_eq!(
            (names(&root), names(&mount.path("sub"))),
            (vec!["sub".to_string()], vec![]),
            "from {}",
            from.display()
        );
    }
}

#[test]
fn a_directory_that_is_mounted_elsewhere_shows_the_view_there_too() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir_all(mount.path("sub/deep")).expect("mkdir");
    fs::write(mount.path("sub/f"), "old").expect("write");
    let (root, elsewhere) = (mount.root(), Elsewhere::of(&mount.path("sub")));
    let (m, b) = (root.display(), elsewhere.0.path().display());
    // Relative, from inside of that mount, too.
    let script = format!(
        "set -e; echo one > {b}/one; echo two > two; cat {b}/f {m}/sub/one {m}/sub/two > {m}/seen; test \"$(ls {m}/.kvfs)\" = txn; test -z \"$(ls {m}/.kvfs/txn)\""
    );
    assert_eq!(run(&root, &["--abort"], elsewhere.0.path(), &script), Some(0));
    assert_eq!(
        (names(&root), names(elsewhere.0.path())),
        (vec!["sub".to_string()], vec!["deep".to_string(), "f".into()])
    );
    assert_eq!(run(&root, &[], elsewhere.0.path(), &script), Some(0));
    assert_eq!(fs::read_to_string(mount.path("seen")).expect("read"), "oldone\ntwo\n");
    assert_eq!(names(elsewhere.0.path()), ["deep", "f", "one", "two"]);
}
