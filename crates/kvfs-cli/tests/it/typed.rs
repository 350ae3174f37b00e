//! Tests of commands as users of cp, tar, rm and du type them, with the order and options of those
//! programs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use crate::place::{Place, fails, kvfs, succeeds};

#[test]
fn what_is_imported_may_come_first_as_with_cp() {
    let Some(p) = Place::new() else { return };
    let (tree, tar) = (p.dir.path().join("tree"), p.dir.path().join("tree.tar"));
    fs::create_dir(&tree).expect("a directory");
    fs::write(tree.join("file"), "file").expect("a file");
    let mut made = Command::new("tar");
    made.arg("-cf").arg(&tar).arg("-C").arg(&tree).arg("file");
    assert!(made.status().expect("tar runs").success());
    succeeds(kvfs(&["import"]).arg(&tree).arg(p.store()));
    assert_eq!(succeeds(kvfs(&["cat"]).arg(p.store()).arg("file")), "file");
    p.mounted();
    for from in [&tar, &tree] {
        fs::remove_file(p.mnt().join("file")).expect("unlink");
        succeeds(kvfs(&["import"]).arg(from).arg(p.mnt()));
        assert_eq!(fs::read_to_string(p.mnt().join("file")).expect("there"), "file");
    }
    // If neither path is a store, the message says so.
    assert!(fails(1, kvfs(&["import"]).arg(&tar).arg(&tree)).contains("not a KVFS store"));
}

#[test]
fn the_options_of_rm_are_taken() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    for options in ["-r", "-rf", "-fr"] {
        fs::create_dir_all(p.mnt().join("d/deep")).expect("directories");
        fs::write(p.mnt().join("d/deep/file"), "file").expect("a file");
        succeeds(kvfs(&["rm", options]).arg(p.mnt().join("d")));
        assert!(!p.mnt().join("d").exists(), "{options}");
    }
    succeeds(kvfs(&["rm", "-rf"]).arg(p.mnt().join("d")));
    assert!(fails(3, kvfs(&["rm", "-r"]).arg(p.mnt().join("d"))).contains("d"));
}

#[test]
fn a_stream_is_received_from_the_file_that_is_named() {
    let Some(p) = Place::new() else { return };
    let (stream, other) = (p.dir.path().join("stream"), p.dir.path().join("other.kvfs"));
    succeeds(kvfs(&["create"]).arg(&other));
    p.mounted();
    fs::write(p.mnt().join("file"), "file").expect("a file");
    succeeds(kvfs(&["snapshot", "create"]).arg(p.mnt()).arg("one"));
    succeeds(kvfs(&["send"]).arg(p.mnt()).arg("one").arg("-o").arg(&stream));
    succeeds(kvfs(&["receive"]).arg(&other).arg(&stream).stdin(Stdio::null()));
    assert_eq!(succeeds(kvfs(&["cat"]).arg(&other).arg("file")), "file");
}

#[test]
fn what_is_undone_again_and_again_has_one_word_before_its_label() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let file = p.mnt().join("file");
    succeeds(kvfs(&["run"]).arg(p.mnt()).args(["--", "sh", "-c", "echo a >$KVFS_MOUNT/file"]));
    for (word, there) in [("undo", false), ("redo", true), ("undo", false), ("redo", true)] {
        succeeds(kvfs(&["undo"]).arg(p.mnt()));
        assert_eq!(file.exists(), there);
        let said = succeeds(kvfs(&["history"]).arg(p.mnt()));
        let label = format!("  {word} sh -c echo a >$KVFS_MOUNT/file");
        let newest = said.lines().find(|line| line.contains("  commit ")).expect("a commit");
        assert!(newest.ends_with(&label), "{word}: {said}");
    }
}

#[test]
fn stores_that_are_mounted_are_listed() {
    let Some(p) = Place::new() else { return };
    let line = format!("{} on {} (process ", p.store().display(), p.mnt().display());
    let listed = || succeeds(&mut kvfs(&["list"])).lines().any(|l| l.starts_with(&line));
    assert!(!listed());
    p.mounted();
    assert!(listed());
    succeeds(&mut p.umount());
    assert!(!listed());
}

#[test]
fn small_files_are_said_to_take_what_they_take_on_the_device() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let tree = p.mnt().join("tree");
    fs::create_dir(&tree).expect("a directory");
    let (count, len) = (2_000, 550);
    for n in 0..count {
        fs::write(tree.join(n.to_string()), vec![n as u8; len]).expect("a file");
    }
    let data = (count * len) as u64;
    let said = succeeds(kvfs(&["--json", "du"]).arg(&tree));
    let rows: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let stored = rows[0]["stored"].as_u64().expect("a number");
    let blocks: u64 = (0..count)
        .map(|n| fs::metadata(tree.join(n.to_string())).expect("there").blocks() * 512)
        .sum();
    for taken in [stored, blocks] {
        assert!((data..data * 2).contains(&taken), "{taken} bytes for {data}: {said}");
    }
}

#[test]
fn a_directory_that_is_not_there_is_not_made_for_a_benchmark() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let missing = dir.path().join("no/such");
    let said = fails(3, kvfs(&["bench", "--mib", "1"]).arg(&missing));
    assert!(said.contains("there is no directory"), "{said}");
    assert!(!dir.path().join("no").exists(), "nothing is made");
}
