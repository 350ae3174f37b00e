//! Tests of names of clones and snapshots with slashes, which group what belongs together, as in
//! `agents/7/try-2`. Every command accepts them, and below the mount their parts are directories.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{ends, kvfs, succeeds};
use crate::mounted::Mount;

const NAME: &str = "agents/7/try-2";

fn run(target: &Path, script: &str) -> Command {
    let mut command = kvfs(&["run"]);
    command.arg(target).args(["--", "sh", "-ec", script]);
    command
}

fn list(dir: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("listed");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let mut names: Vec<String> =
        entries.map(|entry| name(entry).into_string().expect("text")).collect();
    names.sort();
    names
}

/// A store with a file, a snapshot `nightly/monday` of it, and a clone of that.
fn cloned() -> Option<(Mount, PathBuf)> {
    let mount = Mount::new()?;
    fs::write(mount.path("file"), "base").expect("write");
    succeeds(kvfs(&["snapshot", "create"]).arg(mount.root()).arg("nightly/monday"));
    succeeds(kvfs(&["clone", "create"]).arg(mount.root()).args(["nightly/monday", NAME]));
    let clone = mount.path(".kvfs/clone").join(NAME);
    Some((mount, clone))
}

#[test]
fn the_parts_of_a_name_are_directories() {
    let Some((mount, clone)) = cloned() else { return };
    let clones = mount.path(".kvfs/clone");
    assert_eq!(fs::read_to_string(clone.join("file")).expect("read"), "base");
    fs::write(clone.join("new"), "in the clone").expect("written");
    assert!(!mount.path("new").exists());
    assert_eq!(list(&clones), ["agents"]);
    assert_eq!(list(clones.join("agents")), ["7"]);
    assert_eq!(list(clones.join("agents/7")), ["try-2"]);
    assert_eq!(list(mount.path(".kvfs/snapshot/nightly")), ["monday"]);
    let there = mount.path(".kvfs/snapshot/nightly/monday/file");
    assert_eq!(fs::read_to_string(there).expect("read"), "base");
    // The view has one directory, whose name is the last part.
    let real = fs::canonicalize(&clone).expect("there");
    assert_eq!(real, clones.join("agents%2F7%2Ftry-2"));
    assert_eq!(fs::canonicalize(clones.join("agents/7/..")).expect("there"), clones.join("agents"));
    assert!(clones.join("agents/8").symlink_metadata().is_err());
    // Other clones are made and dropped.
    succeeds(kvfs(&["clone", "create"]).arg(mount.root()).args(["nightly/monday", "agents/8"]));
    succeeds(kvfs(&["clone", "create"]).arg(mount.root()).args(["nightly/monday", "agents/7/b"]));
    assert_eq!(list(clones.join("agents")), ["7", "8"]);
    assert_eq!(list(clones.join("agents/7")), ["b", "try-2"]);
    succeeds(kvfs(&["clone", "drop"]).arg(mount.root()).arg(NAME));
    assert!(fs::read(clone.join("file")).is_err(), "it is gone");
    assert_eq!(list(clones.join("agents/7")), ["b"]);
    succeeds(kvfs(&["clone", "drop"]).arg(mount.root()).arg("agents/7/b"));
    assert!(clones.join("agents/7").symlink_metadata().is_err());
    // A clone with the name of a directory replaces it. The others have their own names.
    succeeds(kvfs(&["clone", "create"]).arg(mount.root()).args(["nightly/monday", "agents"]));
    assert_eq!(list(clones.join("agents")), ["file"]);
    assert_eq!(list(clones.join("agents%2F8")), ["file"]);
}

#[test]
fn every_command_takes_them() {
    let Some((mount, clone)) = cloned() else { return };
    let root = mount.root();
    let listed = succeeds(kvfs(&["--json", "clone", "list"]).arg(&root));
    assert!(listed.contains(NAME) && listed.contains("nightly/monday"), "{listed}");
    // A transaction of it, by its path.
    succeeds(&mut run(&clone, "echo run > \"$KVFS_MOUNT/file\"; echo new > $KVFS_MOUNT/new"));
    assert_eq!(fs::read_to_string(clone.join("file")).expect("read"), "run\n");
    let history = succeeds(kvfs(&["history"]).arg(&clone));
    assert!(history.contains("sh -ec"), "{history}");
    succeeds(kvfs(&["kv", "put"]).arg(&clone).args(["key", "value"]));
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&clone).arg("key")).trim_end(), "value");
    let id = succeeds(kvfs(&["txn", "begin"]).arg(&clone));
    let listed = succeeds(kvfs(&["--json", "txn", "list"]).arg(&root));
    assert!(listed.contains("\"clone\":\"agents/7/try-2\""), "{listed}");
    succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(id.trim()));
    succeeds(kvfs(&["snapshot", "create"]).arg(&clone).arg("of/clone"));
    succeeds(kvfs(&["clone", "limit"]).arg(&root).args([NAME, "1G"]));
    let diff = succeeds(kvfs(&["diff"]).arg(&root).args(["nightly/monday", "of/clone"]));
    assert!(diff.contains("file") && diff.contains("new"), "{diff}");
    // Both versions are kept, under valid file names.
    fs::write(mount.path("file"), "outside").expect("written");
    let (code, conflicts, _) = ends(kvfs(&["merge"]).arg(&clone));
    assert!(code != Some(0) && conflicts.contains("file"), "{conflicts}");
    succeeds(kvfs(&["merge"]).arg(&clone).args(["--both", "file"]));
    assert_eq!(fs::read_to_string(mount.path("new")).expect("merged"), "new\n");
    assert!(list(&root).iter().any(|name| name.contains("agents-7-try-2")), "{:?}", list(&root));
    // A file as it was.
    succeeds(kvfs(&["restore"]).arg(&root).args(["nightly/monday", "file"]));
    assert_eq!(fs::read_to_string(mount.path("file")).expect("read"), "base");
    succeeds(kvfs(&["snapshot", "drop"]).arg(&root).arg("nightly/monday"));
    assert!(mount.path(".kvfs/snapshot/nightly").symlink_metadata().is_err());
}

#[test]
fn what_is_no_name_is_refused_with_a_sentence() {
    let Some((mount, _)) = cloned() else { return };
    let root = mount.root();
    let long = "a/".repeat(70) + "a";
    for (bad, why) in [
        ("/a", "neither begins nor ends with a slash"),
        ("a/", "neither begins nor ends with a slash"),
        ("a//b", "two of them together"),
        ("a/../b", "no dot at the beginning of a part"),
        ("a/.kvfs", "no dot at the beginning of a part"),
        ("..", "does not begin with a dot"),
        ("a\nb", "control characters"),
        (&long, "each slash for three"),
    ] {
        let mut made = kvfs(&["clone", "create"]);
        let (code, _, said) = ends(made.arg(&root).args(["nightly/monday", bad]));
        assert!(code != Some(0) && said.contains(why), "{bad:?}: {said}");
        let (code, _, said) = ends(kvfs(&["snapshot", "create"]).arg(&root).arg(bad));
        assert!(code != Some(0) && said.contains(why), "{bad:?}: {said}");
    }
    assert_eq!(list(mount.path(".kvfs/clone")), ["agents"]);
    let store = root.with_file_name("store");
    for bad in ["a//b", "../x", "/a", "a/"] {
        let mut mount = kvfs(&["mount", "-o", &format!("clone={bad}")]);
        let (code, _, said) = ends(mount.arg(&store).arg(&root));
        assert!(code != Some(0) && said.contains("write the name of one"), "{bad}: {said}");
    }
}
