//! Tests of `kvfs export` of a mounted store: it writes a tar stream of one state, whatever happens
//! to the store at the same time.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::place::{Place, fails, kvfs, succeeds};
use crate::tree::{make, same};

fn export(of: &Path, to: &Path) -> Command {
    let mut command = kvfs(&["export"]);
    command.arg(of).arg(to).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

/// Unpacks an archive with tar(1).
fn unpacked(archive: &Path, into: &Path) {
    fs::create_dir_all(into).expect("mkdir");
    let tar =
        Command::new("tar").args(["--xattrs", "-xpf"]).arg(archive).arg("-C").arg(into).status();
    assert!(tar.expect("tar runs").success());
}

#[test]
fn what_is_exported_is_what_was_there_and_no_transaction_stays() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let (tree, out) = (p.mnt().join("tree"), p.dir.path().join("out"));
    make(&tree);
    let archive = p.dir.path().join("a.tar");
    succeeds(&mut export(&tree, &archive));
    unpacked(&archive, &out);
    same(&tree, &out);
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(out.join("small"), "user.kept", &mut value).expect("getxattr");
    assert_eq!(&value[..len], b"value");
    assert!(fs::metadata(out.join("sparse")).expect("stat").blocks() < 1000, "holes are no data");

    // One export names the store's file, and one exports a single file.
    let mut by_store = export(p.store().as_ref(), &archive);
    succeeds(by_store.args(["--from", "/tree/sub/f9"]));
    let listed = Command::new("tar").arg("-tvf").arg(&archive).output().expect("tar runs");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(
        listed.lines().count() == 1 && listed.contains("f9") && listed.contains("360"),
        "{listed}"
    );

    let open = succeeds(kvfs(&["txn", "list", "--json"]).arg(p.mnt()));
    assert!(!open.contains("export"), "{open}");
}

#[test]
fn views_are_exported_as_they_are() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    fs::create_dir(p.mnt().join("d")).expect("mkdir");
    fs::write(p.mnt().join("d/a"), "monday").expect("write");
    succeeds(kvfs(&["snapshot", "create"]).arg(p.mnt()).arg("monday"));
    fs::write(p.mnt().join("d/a"), "now").expect("write");
    let begun = succeeds(kvfs(&["txn", "begin"]).arg(p.mnt()));
    let id = begun.trim().rsplit('/').next().expect("a number").to_string();
    let id = id.split_whitespace().next().expect("a number").to_string();
    fs::write(p.mnt().join(format!(".kvfs/txn/{id}/d/a")), "in it").expect("write");
    for (view, content) in [
        ("d".to_string(), "now"),
        (".kvfs/snapshot/monday/d".into(), "monday"),
        (format!(".kvfs/txn/{id}/d"), "in it"),
    ] {
        let (archive, out) =
            (p.dir.path().join("v.tar"), tempfile::tempdir().expect("a directory"));
        succeeds(&mut export(&p.mnt().join(&view), &archive));
        unpacked(&archive, out.path());
        assert_eq!(fs::read_to_string(out.path().join("a")).expect("a"), content, "{view}");
    }
    succeeds(kvfs(&["txn", "abort"]).arg(p.mnt()).arg(&id));
}

/// Sets the flag when it is dropped.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn two_files_that_change_together_are_exported_together() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let tree = p.mnt().join("tree");
    fs::create_dir(&tree).expect("mkdir");
    let write = |n: u32| {
        let all = vec![b'0' + (n % 10) as u8; 400_000];
        let script = format!("cp $1 $KVFS_MOUNT/tree/{}; cp $1 $KVFS_MOUNT/tree/{}", "a", "z");
        let from = p.dir.path().join("from");
        fs::write(&from, all).expect("write");
        let mut run = kvfs(&["run"]);
        succeeds(run.arg(p.mnt()).args(["--", "sh", "-ec", &script, "sh"]).arg(&from));
    };
    write(0);
    // Between the two in the order of the archive.
    (0..200)
        .for_each(|n| fs::write(tree.join(format!("m{n}")), vec![n as u8; 20_000]).expect("write"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The writer stops whatever the result of the comparison.
        let end = Ended(&done);
        let writer = scope.spawn(|| {
            let mut n = 1;
            while !done.load(Ordering::Relaxed) {
                write(n);
                n += 1;
            }
            n
        });
        for round in 0..8 {
            let (archive, out) =
                (p.dir.path().join("t.tar"), tempfile::tempdir().expect("a directory"));
            succeeds(&mut export(&tree, &archive));
            unpacked(&archive, out.path());
            let read = |name| fs::read(out.path().join(name)).expect("a file");
            let (a, z) = (read("a"), read("z"));
            assert_eq!(a.len(), 400_000);
            assert!(a == z && a.iter().all(|b| *b == a[0]), "round {round}");
        }
        drop(end);
        assert!(writer.join().expect("no panic") > 1);
    });
}

#[test]
fn what_cannot_be_exported_says_why_and_leaves_nothing() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    fs::write(p.mnt().join("a"), "a").expect("write");
    let archive = p.dir.path().join("x.tar");
    let said = fails(3, export(&p.mnt(), &archive).args(["--from", "nowhere"]));
    assert!(said.contains("nowhere"), "{said}");
    assert!(!archive.exists(), "half an archive is none");
    let said = fails(2, &mut export(&p.mnt(), p.dir.path()));
    assert!(said.contains("tar x -C"), "{said}");
    assert!(fails(2, export(&p.mnt(), &archive).arg("--keep-going")).contains("not mounted"));
    assert!(fails(2, &mut export(&p.mnt().join(".kvfs/txn"), &archive)).contains("list of views"));
    // The argument is not in a mount.
    assert!(fails(3, &mut export(p.dir.path(), &archive)).contains("no mounted store"));
    assert!(!archive.exists());
}

#[test]
fn a_failed_export_takes_away_no_more_than_half_an_archive() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    fs::write(p.mnt().join("large"), vec![7; 4 << 20]).expect("a file");
    // A missing path is noticed before anything is written.
    let archive = p.dir.path().join("a.tar");
    fs::write(&archive, "precious").expect("a file");
    fails(3, export(&p.mnt(), &archive).args(["--from", "/nosuch"]));
    assert_eq!(fs::read(&archive).expect("there"), b"precious");
    // A device stays, and so does a symbolic link, whatever failed.
    let full = p.dir.path().join("full");
    let made = Command::new("mknod").arg(&full).args(["c", "1", "7"]).status();
    assert!(made.expect("mknod runs").success());
    let link = p.dir.path().join("link");
    std::os::unix::fs::symlink(&full, &link).expect("a link");
    for to in [&full, &link] {
        fails(3, export(&p.mnt(), to).args(["--from", "/nosuch"]));
        fails(6, &mut export(&p.mnt(), to));
    }
    assert!(full.symlink_metadata().is_ok() && link.symlink_metadata().is_ok());
}
