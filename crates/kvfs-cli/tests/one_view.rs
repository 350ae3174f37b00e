//! `kvfs mount -o snapshot=NAME` and `-o clone=NAME`: one view of a store by itself.

mod place;

use std::fs;
use std::io::ErrorKind;
use std::process::Stdio;

use place::{Place, fails, kvfs, succeeds};

fn mount(p: &Place, options: &str) -> std::process::Command {
    let mut command = p.mount(&["-o", options]);
    command.stdin(Stdio::null());
    command
}

/// A store with a snapshot and a clone of it, and files that have changed since; not mounted.
fn prepared() -> Option<Place> {
    let p = Place::new()?;
    p.mounted();
    let write = |text: &str| fs::write(p.mnt().join("dir/file"), text).expect("write");
    let on = |command: &str, words: &[&str]| {
        let mut command = kvfs(&[command, "create"]);
        succeeds(command.arg(p.mnt()).args(words).stdin(Stdio::null()));
    };
    fs::create_dir(p.mnt().join("dir")).expect("mkdir");
    write("then");
    on("snapshot", &["monday"]);
    on("clone", &["monday", "trial"]);
    write("now");
    fs::write(p.mnt().join("later"), "").expect("write");
    succeeds(&mut p.umount());
    Some(p)
}

#[test]
fn a_snapshot_is_mounted_by_itself() {
    let Some(p) = prepared() else { return };
    succeeds(&mut mount(&p, "snapshot=monday"));
    assert_eq!(fs::read_to_string(p.mnt().join("dir/file")).expect("read"), "then");
    assert!(!p.mnt().join("later").exists());
    let refused = fs::write(p.mnt().join("new"), "").expect_err("it is read-only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    // Nothing else of the store is there, nor above its root.
    assert!(!p.mnt().join(".kvfs").exists());
    let names: Vec<_> =
        fs::read_dir(p.mnt()).expect("listed").map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["dir"]);
    let above = fs::canonicalize(p.mnt().join("..")).expect("a path");
    assert_eq!(above, fs::canonicalize(p.mnt().parent().expect("a parent")).expect("a path"));
    succeeds(&mut p.umount());
    assert!(p.entry().is_none());
    // The store is free again, and as it was.
    p.mounted();
    assert_eq!(fs::read_to_string(p.mnt().join("dir/file")).expect("read"), "now");
}

#[test]
fn a_clone_is_mounted_by_itself_and_keeps_what_is_written() {
    let Some(p) = prepared() else { return };
    for round in ["1", "2"] {
        succeeds(&mut mount(&p, "clone=trial"));
        assert_eq!(fs::read_to_string(p.mnt().join("dir/file")).expect("read"), "then");
        fs::write(p.mnt().join("dir").join(round), round).expect("write");
        fs::rename(p.mnt().join("dir").join(round), p.mnt().join(round)).expect("rename");
        assert!(p.mnt().join("1").exists());
        succeeds(&mut p.umount());
        succeeds(kvfs(&["check"]).arg(p.store()).stdin(Stdio::null()));
    }
    p.mounted();
    assert!(!p.mnt().join("1").exists());
    assert_eq!(fs::read_to_string(p.mnt().join(".kvfs/clone/trial/2")).expect("read"), "2");
}

#[test]
fn a_view_that_is_not_there_mounts_nothing() {
    let Some(p) = prepared() else { return };
    for (options, code, names) in [
        ("snapshot=tuesday", 3, "no snapshot tuesday"),
        ("clone=monday", 3, "no clone monday"),
        ("snapshot=a/b", 2, "the name of one"),
        ("snapshot=", 2, "the name of one"),
        ("snapshot", 2, "needs a value"),
        ("snapshot=monday,clone=trial", 2, "one view"),
    ] {
        let said = fails(code, &mut mount(&p, options));
        assert!(said.contains(names), "{options}: {said}");
        assert!(p.entry().is_none(), "{options}");
    }
    p.mounted();
    let said = fails(4, &mut mount(&p, "snapshot=monday"));
    assert!(said.contains("mounted"), "{said}");
}
