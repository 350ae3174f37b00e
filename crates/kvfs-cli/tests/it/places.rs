//! Tests of paths below `.kvfs` as arguments of commands. Each command does what the path says or
//! explains why it does not, and none takes a view for the store.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::mounted::Mount;

fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

fn ends(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = crate::place::output(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout), text(&stderr))
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let (code, out, err) = ends(command);
    assert_eq!(code, Some(0), "{command:?}: {out}{err}");
    out.trim_end().to_string()
}

/// Wrong usage is reported clearly.
#[track_caller]
fn refused(command: &mut Command, why: &str) {
    let (code, out, err) = ends(command);
    assert!(matches!(code, Some(2 | 125)) && err.contains(why), "{command:?}: {code:?} {out}{err}");
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn keys_are_those_of_the_view_that_the_path_names() {
    let Some(mount) = Mount::new() else { return };
    let root = text(&mount.root());
    succeeds(&mut kvfs(&["kv", "put", &root, "k", "mainline"]));
    succeeds(&mut kvfs(&["snapshot", "create", &root, "s"]));
    succeeds(&mut kvfs(&["clone", "create", &root, "s", "c"]));
    let id = succeeds(&mut kvfs(&["txn", "begin", &root]));
    let (txn, snapshot, clone) = (
        format!("{root}/.kvfs/txn/{id}"),
        format!("{root}/.kvfs/snapshot/s"),
        format!("{root}/.kvfs/clone/c"),
    );
    succeeds(&mut kvfs(&["kv", "put", &txn, "k", "inside"]));
    succeeds(&mut kvfs(&["kv", "put", &clone, "k", "branch"]));
    let get = |place: &str| succeeds(&mut kvfs(&["kv", "get", place, "k"]));
    assert_eq!(
        [get(&root), get(&txn), get(&snapshot), get(&clone)],
        ["mainline", "inside", "mainline", "branch"]
    );
    let (code, _, err) = ends(&mut kvfs(&["kv", "put", &snapshot, "k", "x"]));
    assert!(code != Some(0) && err.contains("snapshot"), "{err}");
    refused(&mut kvfs(&["kv", "put", &format!("{root}/.kvfs/txn"), "k", "x"]), "list of views");
    assert_eq!(get(&root), "mainline");
    // The program was started in another transaction than the one that the path names.
    let other = succeeds(&mut kvfs(&["txn", "begin", &root]));
    let socket = text(&mount.root().with_file_name("store.sock"));
    assert_eq!(
        succeeds(kvfs(&["kv", "get", &txn, "k"]).env("KVFS_TXN", other).env("KVFS_SOCKET", socket)),
        "inside"
    );
    succeeds(&mut kvfs(&["txn", "commit", &txn]));
    assert_eq!(get(&root), "inside");
}

#[test]
fn a_snapshot_is_of_what_the_path_names() {
    let Some(mount) = Mount::new() else { return };
    let root = text(&mount.root());
    fs::write(mount.path("f"), "mainline").expect("write");
    succeeds(&mut kvfs(&["snapshot", "create", &root, "s"]));
    succeeds(&mut kvfs(&["clone", "create", &root, "s", "c"]));
    fs::write(mount.path(".kvfs/clone/c/f"), "branch").expect("write");
    succeeds(&mut kvfs(&["snapshot", "create", &format!("{root}/.kvfs/clone/c"), "of-c"]));
    assert_eq!(fs::read_to_string(mount.path(".kvfs/snapshot/of-c/f")).expect("read"), "branch");
    refused(
        &mut kvfs(&["snapshot", "create", &format!("{root}/.kvfs/clone/c"), "x", "--of", "d"]),
        "clone c",
    );
    let id = succeeds(&mut kvfs(&["txn", "begin", &root]));
    let txn = format!("{root}/.kvfs/txn/{id}");
    refused(&mut kvfs(&["snapshot", "create", &txn, "x"]), &format!("transaction {id}"));
    refused(
        &mut kvfs(&["snapshot", "create", &format!("{root}/.kvfs/snapshot/s"), "x"]),
        "snapshot s",
    );
    assert!(!mount.path(".kvfs/snapshot/x").exists());
}

#[test]
fn what_is_done_to_the_whole_store_is_not_done_to_a_view() {
    let Some(mount) = Mount::new() else { return };
    let root = text(&mount.root());
    succeeds(&mut kvfs(&["snapshot", "create", &root, "s"]));
    succeeds(&mut kvfs(&["clone", "create", &root, "s", "c"]));
    let id = succeeds(&mut kvfs(&["txn", "begin", &root]));
    for (view, name) in [
        (format!("txn/{id}"), format!("transaction {id}")),
        ("clone/c".into(), "clone c".into()),
        ("snapshot/s".into(), "snapshot s".into()),
    ] {
        let path = format!("{root}/.kvfs/{view}");
        // A clone has transactions of its own.
        if !view.starts_with("clone/") {
            refused(&mut kvfs(&["run", &path, "--", "true"]), &name);
            refused(&mut kvfs(&["txn", "begin", &path]), &name);
            refused(&mut kvfs(&["txn", "list", &path]), &name);
        }
        // The snapshot is of the store, and the clone is not one of itself.
        for words in [
            &["snapshot", "drop", &path, "s"][..],
            &["snapshot", "rollback", &path, "s"],
            &["clone", "create", &path, "s", "d"],
            &["clone", "drop", &path, "c"],
            &["diff", &path, "s"],
            &["send", &path, "s", "-o", "/dev/null"],
            &["defrag", &path],
            &["compact", &path],
        ] {
            refused(&mut kvfs(words), &name);
        }
        // A clone has snapshots, clones, dictionaries and limits of its own.
        if !view.starts_with("clone/") {
            for words in [
                &["snapshot", "list", &path][..],
                &["snapshot", "auto", &path, "--keep", "1d"],
                &["clone", "list", &path],
                &["dict", "list", &path],
                &["dict", "create", &path, "d"],
                &["dict", "drop", &path, "0"],
                &["compact", &path, "0"],
                &["stat", &path],
            ] {
                refused(&mut kvfs(words), &name);
            }
        }
    }
    assert!(mount.path(".kvfs/snapshot/s").exists() && mount.path(".kvfs/clone/c").exists());
    // A transaction may be named by its path.
    let (path, other) = (format!("{root}/.kvfs/txn/{id}"), "4000000000");
    fs::write(format!("{path}/made"), "x").expect("write");
    assert!(succeeds(&mut kvfs(&["txn", "status", &path])).contains(&format!("transaction {id}")));
    assert!(succeeds(&mut kvfs(&["txn", "diff", &path])).contains("made"));
    refused(&mut kvfs(&["txn", "commit", &path, other]), &format!("transaction {id}"));
    refused(&mut kvfs(&["txn", "exec", &path, other, "--", "true"]), &format!("transaction {id}"));
    refused(&mut kvfs(&["txn", "commit", &format!("{root}/.kvfs/clone/c"), &id]), "clone c");
    succeeds(&mut kvfs(&["txn", "exec", &path, &id, "--", "true"]));
    succeeds(&mut kvfs(&["txn", "commit", &path]));
    assert!(mount.path("made").exists());
}

#[test]
fn a_mount_that_shows_a_view_or_a_directory_is_known_for_what_it_is() {
    let Some(mount) = Mount::new() else { return };
    let root = text(&mount.root());
    fs::create_dir_all(mount.path("a/b")).expect("mkdir");
    fs::write(mount.path("a/b/f"), "x").expect("write");
    let bound = tempfile::tempdir().expect("a temporary directory");
    let here = text(bound.path());
    let id = succeeds(&mut kvfs(&["txn", "begin", &root]));
    let mount_it = |what: &str| {
        assert!(
            Command::new("mount").args(["--bind", what, &here]).status().expect("mount").success()
        )
    };
    let unmount =
        || assert!(Command::new("umount").args(["-l", &here]).status().expect("umount").success());
    mount_it(&format!("{root}/.kvfs/txn/{id}"));
    succeeds(&mut kvfs(&["kv", "put", &here, "k", "inside"]));
    refused(&mut kvfs(&["snapshot", "create", &here, "s"]), &format!("transaction {id}"));
    unmount();
    assert_eq!(ends(&mut kvfs(&["kv", "get", &root, "k"])).0, Some(3), "it is the transaction's");
    mount_it(&format!("{root}/a"));
    succeeds(&mut kvfs(&["clone-tree", &format!("{here}/b"), &format!("{here}/copy")]));
    unmount();
    assert!(mount.path("a/copy/f").exists() && !mount.path("copy").exists());
}
