//! Tests of `kvfs undo`, which undoes the commit of a transaction by another commit, on mounted and
//! unmounted stores, and of its entries in `kvfs history`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::place::{Place, fails, kvfs, succeeds};
use serde_json::Value;

/// Runs a shell command in a transaction.
fn run(root: &Path, script: &str) {
    succeeds(kvfs(&["run"]).arg(root).args([
        "--",
        "sh",
        "-c",
        &format!("cd \"$KVFS_MOUNT\"; {script}"),
    ]));
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn commits(target: &Path) -> Vec<Value> {
    let said = json(&succeeds(kvfs(&["--json", "history"]).arg(target)));
    said["commits"].as_array().expect("a list").clone()
}

#[test]
fn files_and_keys_of_the_last_commit_are_as_they_were() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let root = p.mnt();
    fs::create_dir_all(root.join("d/deep")).expect("directories");
    fs::write(root.join("d/deep/large"), vec![b'x'; 3 << 20]).expect("a file");
    fs::write(root.join("file"), "before").expect("a file");
    fs::set_permissions(root.join("file"), fs::Permissions::from_mode(0o640)).expect("a mode");
    symlink("target", root.join("link")).expect("a link");
    succeeds(kvfs(&["kv", "put"]).arg(&root).args(["k", "before"]));
    let mtime = fs::metadata(root.join("file")).expect("there").mtime();
    // The kernel knows the files after this.
    assert_eq!(fs::read(root.join("d/deep/large")).expect("read").len(), 3 << 20);
    run(
        &root,
        "rm -r d link; mkdir d; echo new > d/new; echo after > file; chmod 600 file; mv d e",
    );
    succeeds(kvfs(&["run"]).arg(&root).arg("--").arg(env!("CARGO_BIN_EXE_kvfs")).args([
        "kv",
        "put",
        root.to_str().expect("text"),
        "k",
        "after",
    ]));
    assert_eq!(commits(&root).len(), 2);
    // A commit that cannot be undone is not listed.
    succeeds(kvfs(&["run", "--no-undo"]).arg(&root).args(["--", "true"]));
    let put = [env!("CARGO_BIN_EXE_kvfs"), "kv", "put", root.to_str().expect("text"), "l", "1"];
    succeeds(kvfs(&["run", "--no-undo"]).arg(&root).arg("--").args(put));
    assert_eq!(commits(&root).len(), 2);
    // Other transactions continue.
    fs::write(root.join("since"), "since").expect("a file");
    fs::create_dir(root.join("since.d")).expect("a directory");

    let dry = succeeds(kvfs(&["undo", "--dry-run"]).arg(&root));
    assert!(dry.contains("k") && dry.contains("nothing was changed"), "{dry}");
    succeeds(kvfs(&["undo"]).arg(&root));
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&root).arg("k")), "before");
    let number = commits(&root)[2]["number"].to_string();
    let said =
        json(&succeeds(kvfs(&["--json", "undo", "--all"]).arg(&root).args(["--commit", &number])));
    assert_eq!(said["commit"].to_string(), number);
    assert!(said["changes"]["files"].as_array().is_some_and(|files| files.len() > 3), "{said}");

    assert_eq!(fs::read(root.join("d/deep/large")).expect("back"), vec![b'x'; 3 << 20]);
    assert_eq!(fs::read_to_string(root.join("file")).expect("back"), "before");
    assert_eq!(fs::metadata(root.join("file")).expect("there").mode() & 0o7777, 0o640);
    assert_eq!(fs::metadata(root.join("file")).expect("there").mtime(), mtime);
    assert_eq!(fs::read_link(root.join("link")).expect("back"), Path::new("target"));
    assert!(!root.join("e").exists() && !root.join("d/new").exists());
    assert_eq!(fs::read_to_string(root.join("since")).expect("it stays"), "since");
    let names = |path: &Path| fs::read_dir(path).expect("a directory").count();
    assert_eq!((names(&root), names(&root.join("d"))), (5, 1));
    succeeds(&mut p.umount());
    succeeds(kvfs(&["check"]).arg(p.store()));
}

#[test]
fn it_works_on_a_store_that_is_not_mounted_and_twice_is_a_redo() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let root = p.mnt();
    fs::write(root.join("file"), "before").expect("a file");
    run(&root, "echo after > file; echo new > new");
    succeeds(&mut p.umount());
    let store = p.store();
    let dry = succeeds(kvfs(&["undo", "--dry-run"]).arg(&store));
    assert!(dry.contains("new") && dry.contains("file"), "{dry}");
    assert_eq!(commits(&store).len(), 1);
    succeeds(kvfs(&["undo"]).arg(&store));
    assert_eq!(succeeds(kvfs(&["cat"]).arg(&store).arg("file")), "before");
    fails(3, kvfs(&["cat"]).arg(&store).arg("new"));
    succeeds(kvfs(&["undo"]).arg(&store));
    assert_eq!(succeeds(kvfs(&["cat"]).arg(&store).arg("new")), "new\n");
    succeeds(kvfs(&["check"]).arg(&store));
    assert_eq!(commits(&store).len(), 3);
}

#[test]
fn what_was_changed_since_is_named_and_nothing_is_undone() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let root = p.mnt();
    fs::create_dir(root.join("d")).expect("a directory");
    for name in ["a", "b"] {
        fs::write(root.join("d").join(name), "before").expect("a file");
    }
    run(&root, "echo after > d/a; echo after > d/b; mkdir made");
    fs::write(root.join("d/b"), "since").expect("a file");
    let refused = fails(8, kvfs(&["undo"]).arg(&root));
    assert!(refused.contains("/d/b") && !refused.contains("/d/a"), "{refused}");
    assert_eq!(fs::read_to_string(root.join("d/a")).expect("there"), "after\n");
    fs::write(root.join("d/b"), "after\n").expect("a file");
    // Its times are others now.
    assert!(fails(8, kvfs(&["undo", "--dry-run"]).arg(&root)).contains("/d/b"));
    // Others have put a file into a directory that the commit has created.
    run(&root, "mkdir made2");
    fs::write(root.join("made2/in"), "in").expect("a file");
    assert!(fails(8, kvfs(&["undo"]).arg(&root)).contains("/made2"));
    assert!(root.join("made2/in").exists());
    // A file that others have made again is a conflict as well.
    run(&root, "rm d/a");
    fs::write(root.join("d/a"), "another").expect("a file");
    assert!(fails(8, kvfs(&["undo"]).arg(&root)).contains("a in /d"));
    succeeds(kvfs(&["kv", "put"]).arg(&root).args(["k", "1"]));
    let redis = env!("CARGO_BIN_EXE_kvfs");
    let target = root.to_str().expect("text");
    succeeds(kvfs(&["run"]).arg(&root).args(["--", redis, "kv", "call", target, "DEL", "k"]));
    succeeds(kvfs(&["kv", "call"]).arg(&root).args(["HSET", "k", "f", "v"]));
    let refused = fails(8, kvfs(&["undo"]).arg(&root));
    assert!(refused.contains("key \"k\" of dictionary 0"), "{refused}");
    assert_eq!(succeeds(kvfs(&["kv", "call"]).arg(&root).args(["HGET", "k", "f"])).trim(), "v");
}

/// The search for conflicts with an undo ends after some keys.
#[test]
fn of_many_things_that_were_changed_since_it_is_said_that_there_are_at_least_so_many() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let root = p.mnt();
    let program = env!("CARGO_BIN_EXE_kvfs");
    let put = |value: &str| {
        format!("for i in $(seq 100 139); do {program} kv put . key$i {value} || exit 1; done")
    };
    run(&root, &put("1"));
    run(&root, &put("2"));
    let first = commits(&root).last().expect("two commits")["number"].to_string();
    let said = fails(8, kvfs(&["undo", "--commit", &first]).arg(&root));
    assert!(said.contains(", and at least 8 more"), "{said}");
}

#[test]
fn a_file_that_is_open_while_it_is_removed_and_brought_back_is_one_file() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let root = p.mnt();
    for (name, len) in [("small", 10), ("large", 3 << 20)] {
        let path = root.join(name);
        fs::write(&path, vec![b'x'; len]).expect("a file");
        let mut open = fs::File::options().read(true).append(true).open(&path).expect("open");
        run(&root, &format!("rm {name}"));
        assert_eq!(open.metadata().expect("it is open").nlink(), 0);
        succeeds(kvfs(&["undo"]).arg(&root));
        assert_eq!(fs::read(&path).expect("back"), vec![b'x'; len], "{name}");
        assert_eq!(open.metadata().expect("it is open").nlink(), 1);
        open.write_all(b"y").expect("written");
        assert_eq!(fs::metadata(&path).expect("there").len(), len as u64 + 1);
        // A file that was written after it lost its name differs from its earlier state.
        run(&root, &format!("rm {name}"));
        open.write_all(b"z").expect("written");
        let refused = fails(8, kvfs(&["undo"]).arg(&root));
        assert!(!root.join(name).exists(), "{refused}");
        drop(open);
    }
    succeeds(&mut p.umount());
    succeeds(kvfs(&["check"]).arg(p.store()));
}

/// The kernel keeps the removed name, and with it the closed file, until it is looked up: this test
/// does not look.
#[test]
fn a_removed_file_that_was_written_to_and_is_closed_stands_against_no_undo() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let root = p.mnt();
    for (name, len) in [("small", 10), ("large", 3 << 20)] {
        let path = root.join(name);
        fs::write(&path, vec![b'x'; len]).expect("a file");
        let mut open = fs::File::options().append(true).open(&path).expect("open");
        run(&root, &format!("rm {name}"));
        open.write_all(b"y").expect("written");
        fails(8, kvfs(&["undo"]).arg(&root));
        drop(open);
        succeeds(kvfs(&["undo"]).arg(&root));
        assert_eq!(fs::read(&path).expect("back"), vec![b'x'; len], "{name}");
    }
    succeeds(&mut p.umount());
    succeeds(kvfs(&["check"]).arg(p.store()));
}

#[test]
fn wrong_uses_are_refused_and_a_history_tells_of_commits() {
    let Some(p) = Place::new() else { return };
    let nothing = fails(3, kvfs(&["undo"]).arg(p.store()));
    assert!(nothing.contains("no commit can be undone"), "{nothing}");
    p.mounted();
    let root = p.mnt();
    fails(3, kvfs(&["undo"]).arg(&root));
    fails(3, kvfs(&["undo"]).arg(p.dir.path().join("nowhere")));
    fails(2, kvfs(&["undo"]).arg(&root).args(["--commit", "x"]));
    fails(2, kvfs(&["undo"]).arg(&root).arg("extra"));
    succeeds(
        kvfs(&["run", "--label", "my work"]).arg(&root).args(["--", "touch"]).arg(root.join("f")),
    );
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("monday"));
    assert!(fails(3, kvfs(&["undo"]).arg(&root).args(["--commit", "1"])).contains("commit 1"));
    let inside = root.to_str().expect("text");
    let kvfs_program = env!("CARGO_BIN_EXE_kvfs");
    let said = fails(2, kvfs(&["run"]).arg(&root).args(["--", kvfs_program, "undo", inside]));
    assert!(said.contains("inside of transaction"), "{said}");
    let said = succeeds(kvfs(&["history"]).arg(&root));
    let commit = commits(&root)[0].clone();
    assert_eq!(commit["label"], "my work");
    assert!(said.contains(&format!("commit {}  my work", commit["number"])), "{said}");
    assert!(said.contains("monday"), "{said}");
    assert_eq!(succeeds(kvfs(&["history", "-n", "1"]).arg(&root)).lines().count(), 2);
}

#[test]
fn a_commit_is_shown_whatever_others_have_changed_since() {
    let Some(p) = Place::new() else { return };
    assert!(fails(3, kvfs(&["show"]).arg(p.store())).contains("no commit is kept"));
    p.mounted();
    let root = p.mnt();
    fs::write(root.join("file"), "before").expect("written");
    let program = env!("CARGO_BIN_EXE_kvfs");
    run(
        &root,
        &format!("echo 1 > made; echo after > file; mkdir d; touch d/in; {program} kv put . k v"),
    );
    fs::write(root.join("file"), "by others").expect("written");
    fs::write(root.join("since"), "").expect("written");
    run(&root, "rm made");
    let numbers: Vec<String> = commits(&root).iter().map(|c| c["number"].to_string()).collect();
    let [last, first] = &numbers[..] else { panic!("{numbers:?}") };
    let shown = |target: &Path| {
        let words = |words: &[&str]| succeeds(kvfs(&["show"]).arg(target).args(words));
        let said = words(&[first]);
        assert!(said.starts_with(&format!("commit {first}  ")), "{said}");
        let lines: Vec<String> = said
            .lines()
            .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(lines[1..5], ["A d/", "M file", "A made", "A key"], "{said}");
        assert!(!said.contains("since"), "{said}");
        assert!(words(&[first, "--all"]).contains("d/in"));
        assert_eq!(words(&[first, "--stat"]).lines().count(), 2);
        assert!(words(&[]).starts_with(&format!("commit {last}  ")));
        let list = json(&words(&[first, "--json"]));
        assert_eq!(list["number"].to_string(), *first);
        assert_eq!(list["changes"]["keys"].as_array().map(Vec::len), Some(1));
        assert!(fails(3, kvfs(&["show"]).arg(target).arg("1")).contains("commit 1 is not kept"));
        said
    };
    let mounted = shown(&root);
    succeeds(&mut p.umount());
    assert_eq!(shown(&p.store()), mounted);
}
