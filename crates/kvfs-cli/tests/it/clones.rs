//! Tests of clones as independent stores. Programs run in transactions of a clone, whose commits
//! are undone, listed and reviewed there, and nothing of it reaches the store.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{ends, kvfs, succeeds};
use crate::mounted::Mount;

/// `kvfs run OPTIONS TARGET -- sh -c SCRIPT`, in which `kvfs` is the program under test.
fn run(target: &Path, options: &[&str], script: &str) -> Command {
    let mut command = kvfs(&["run"]);
    command.args(options).arg(target).args(["--", "sh", "-ec", script]);
    let directory = Path::new(env!("CARGO_BIN_EXE_kvfs")).parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", directory.display()));
    command
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// A store with a file and a clone of it.
fn cloned() -> Option<(Mount, PathBuf)> {
    let mount = Mount::new()?;
    fs::write(mount.path("file"), "base").expect("write");
    succeeds(kvfs(&["snapshot", "create"]).arg(mount.root()).arg("origin"));
    succeeds(kvfs(&["clone", "create"]).arg(mount.root()).args(["origin", "trial"]));
    let clone = mount.path(".kvfs/clone/trial");
    Some((mount, clone))
}

#[test]
fn a_program_runs_in_a_transaction_of_a_clone() {
    let Some((mount, clone)) = cloned() else { return };
    let script = "cd \"$KVFS_MOUNT\"; echo in > file; mkdir dir; echo new > dir/new
                  kvfs kv put \"$KVFS_MOUNT\" key value
                  test \"$(kvfs kv get \"$KVFS_MOUNT\" key)\" = value";
    assert_eq!(ends(&mut run(&clone, &[], &format!("{script}; exit 3"))).0, Some(3));
    assert_eq!(
        (read(clone.join("file")).as_deref(), clone.join("dir").exists()),
        (Some("base"), false)
    );
    succeeds(&mut run(&clone, &[], script));
    assert_eq!(read(clone.join("file")).as_deref(), Some("in\n"));
    assert_eq!(read(clone.join("dir/new")).as_deref(), Some("new\n"));
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&clone).arg("key")).trim_end(), "value");
    // The store itself has nothing of it.
    assert_eq!(
        (read(mount.path("file")).as_deref(), mount.path("dir").exists()),
        (Some("base"), false)
    );
    let (code, ..) = ends(kvfs(&["kv", "get"]).arg(mount.root()).arg("key"));
    assert_ne!(code, Some(0), "the key is the clone's");
}

#[test]
fn it_sees_the_clone_at_its_own_path_with_its_own_inode_numbers() {
    let Some((_mount, clone)) = cloned() else { return };
    let numbers = |out: &str| -> Vec<u64> {
        out.split_whitespace().map(|number| number.parse().expect("a number")).collect()
    };
    let file = fs::metadata(clone.join("file")).expect("there").ino();
    let out = succeeds(&mut run(&clone, &[], "cd \"$KVFS_MOUNT\"; stat -c %i file; pwd >&2"));
    assert_eq!(numbers(&out), [file]);
    let (_, _, said) = ends(&mut run(&clone, &[], "cd \"$KVFS_MOUNT\"; pwd >&2"));
    assert_eq!(said.trim_end(), clone.canonicalize().expect("a path").display().to_string());
}

#[test]
fn of_two_that_change_a_file_of_a_clone_the_second_is_told() {
    let Some((mount, clone)) = cloned() else { return };
    let id = succeeds(kvfs(&["txn", "begin"]).arg(&clone)).trim().to_string();
    let view = mount.path(".kvfs/txn").join(&id);
    fs::write(view.join("file"), "mine").expect("write");
    let list = succeeds(kvfs(&["txn", "list"]).arg(mount.root()));
    assert!(list.contains("(clone trial)"), "{list}");
    // A listing of the clone shows only transactions of that clone.
    let of_store = succeeds(kvfs(&["txn", "begin"]).arg(mount.root())).trim().to_string();
    let json = succeeds(kvfs(&["--json", "txn", "list"]).arg(&clone));
    let all: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(all.as_array().is_some_and(|all| all.len() == 1), "{json}");
    assert_eq!(all[0]["id"].to_string(), id);
    succeeds(kvfs(&["txn", "abort"]).arg(mount.root()).arg(&of_store));
    let diff = succeeds(kvfs(&["txn", "diff"]).arg(mount.root()).arg(&id));
    assert!(diff.contains("M  file"), "{diff}");
    // A transaction of the store itself changes the same name there, which is not a conflict.
    succeeds(&mut run(&mount.root(), &[], "echo store > \"$KVFS_MOUNT\"/file"));
    succeeds(&mut run(&clone, &[], "echo theirs > \"$KVFS_MOUNT\"/file"));
    let (code, _, said) = ends(kvfs(&["txn", "commit"]).arg(mount.root()).arg(&id));
    assert!(code != Some(0) && said.contains("file"), "{code:?} {said}");
    assert_eq!(read(clone.join("file")).as_deref(), Some("theirs\n"));
    assert_eq!(read(mount.path("file")).as_deref(), Some("store\n"));
}

#[test]
fn its_commits_are_listed_and_undone_in_the_clone() {
    let Some((mount, clone)) = cloned() else { return };
    succeeds(&mut run(&clone, &["--label", "in the clone"], "echo in > \"$KVFS_MOUNT\"/file"));
    succeeds(&mut run(
        &mount.root(),
        &["--label", "in the store"],
        "echo store > \"$KVFS_MOUNT\"/file",
    ));
    let history = |target: &Path| succeeds(kvfs(&["history"]).arg(target));
    let (of_clone, of_store) = (history(&clone), history(&mount.root()));
    assert!(of_clone.contains("in the clone") && !of_clone.contains("in the store"), "{of_clone}");
    assert!(of_store.contains("in the store") && !of_store.contains("in the clone"), "{of_store}");
    let shown = succeeds(kvfs(&["show"]).arg(&clone));
    assert!(shown.contains("in the clone") && shown.contains("M  file"), "{shown}");
    succeeds(kvfs(&["undo"]).arg(&clone));
    assert_eq!(read(clone.join("file")).as_deref(), Some("base"));
    assert_eq!(read(mount.path("file")).as_deref(), Some("store\n"));
}

#[test]
fn files_are_imported_copied_restored_and_removed_there_as_in_the_store() {
    let Some((mount, clone)) = cloned() else { return };
    let source = mount.root().with_file_name("source");
    fs::create_dir(&source).expect("mkdir");
    fs::write(source.join("a"), "a").expect("write");
    succeeds(kvfs(&["import"]).arg(clone.join("in")).arg(&source));
    assert_eq!(read(clone.join("in/a")).as_deref(), Some("a"));
    assert!(succeeds(kvfs(&["history"]).arg(&clone)).contains("import"));
    succeeds(kvfs(&["clone-tree"]).arg(clone.join("in")).arg(clone.join("copy")));
    assert_eq!(read(clone.join("copy/a")).as_deref(), Some("a"));
    let said = ends(kvfs(&["clone-tree"]).arg(clone.join("in")).arg(mount.path("copy"))).2;
    assert!(said.contains("both must lie in one view"), "{said}");
    succeeds(kvfs(&["rm", "-r"]).arg(clone.join("in")));
    assert!(!clone.join("in").exists() && clone.join("copy/a").exists());
    assert!(ends(kvfs(&["rm", "-r"]).arg(&clone)).2.contains("kvfs clone drop"));
    fs::write(clone.join("file"), "changed").expect("write");
    fs::write(mount.path("file"), "in the store").expect("write");
    succeeds(kvfs(&["restore"]).arg(&clone).arg("origin").arg(clone.join("file")));
    assert_eq!(read(clone.join("file")).as_deref(), Some("base"));
    succeeds(kvfs(&["undo"]).arg(&clone));
    assert_eq!(read(clone.join("file")).as_deref(), Some("changed"));
    // Nothing of it has reached the store.
    assert_eq!(read(mount.path("file")).as_deref(), Some("in the store"));
    let there = ["in", "copy"].map(|name| mount.path(name).exists());
    assert_eq!(there, [false, false]);
}

#[test]
fn a_long_value_is_put_there_in_one_transaction() {
    let Some((mount, clone)) = cloned() else { return };
    let long = mount.root().with_file_name("long");
    fs::write(&long, vec![b'7'; 9 << 20]).expect("write");
    let input = fs::File::open(&long).expect("opened");
    succeeds(kvfs(&["kv", "put"]).arg(&clone).arg("key").stdin(input));
    let value = kvfs(&["kv", "get"]).arg(&clone).arg("key").output().expect("it runs").stdout;
    assert!(value.len() >= 9 << 20, "{} bytes", value.len());
    assert_ne!(ends(kvfs(&["kv", "get"]).arg(mount.root()).arg("key")).0, Some(0));
}

#[test]
fn a_clone_that_is_dropped_ends_what_is_open_in_it() {
    let Some((mount, clone)) = cloned() else { return };
    let id = succeeds(kvfs(&["txn", "begin", "--durable"]).arg(&clone)).trim().to_string();
    let view = mount.path(".kvfs/txn").join(&id);
    fs::write(view.join("file"), "mine").expect("write");
    succeeds(kvfs(&["clone", "drop"]).arg(mount.root()).arg("trial"));
    assert!(!view.exists());
    let (code, _, said) = ends(kvfs(&["txn", "commit"]).arg(mount.root()).arg(&id));
    assert!(code != Some(0), "{said}");
    let mount = mount.again();
    assert_eq!(succeeds(kvfs(&["txn", "list"]).arg(mount.root())).trim(), "");
    assert_eq!(read(mount.path("file")).as_deref(), Some("base"));
}

#[test]
fn a_durable_one_goes_on_in_its_clone_after_a_restart() {
    let Some((mount, clone)) = cloned() else { return };
    let id = succeeds(kvfs(&["txn", "begin", "--durable"]).arg(&clone)).trim().to_string();
    fs::write(mount.path(".kvfs/txn").join(&id).join("file"), "mine").expect("write");
    let mount = mount.again();
    let view = mount.path(".kvfs/txn").join(&id);
    assert_eq!(read(view.join("file")).as_deref(), Some("mine"));
    succeeds(kvfs(&["txn", "commit"]).arg(mount.root()).arg(&id));
    assert_eq!(read(mount.path(".kvfs/clone/trial/file")).as_deref(), Some("mine"));
    assert_eq!(read(mount.path("file")).as_deref(), Some("base"));
}

#[test]
fn a_snapshot_of_a_clone_is_compared_with_the_clone() {
    let Some((mount, clone)) = cloned() else { return };
    succeeds(kvfs(&["kv", "put"]).arg(&clone).args(["before", "1"]));
    succeeds(kvfs(&["snapshot", "create"]).arg(&clone).arg("of-clone"));
    fs::write(clone.join("added"), "").expect("write");
    fs::write(mount.path("elsewhere"), "").expect("write");
    succeeds(kvfs(&["kv", "put"]).arg(&clone).args(["a key", "1"]));
    let diff = succeeds(kvfs(&["diff"]).arg(mount.root()).arg("of-clone"));
    for (name, told) in [("added", true), ("a key", true), ("before", false), ("elsewhere", false)]
    {
        assert_eq!(diff.contains(name), told, "{name}: {diff}");
    }
}

#[test]
fn a_clone_is_merged_and_undone_and_merged_again() {
    let Some((mount, clone)) = cloned() else { return };
    fs::write(clone.join("file"), "clone").expect("write");
    fs::create_dir(clone.join("dir")).expect("made");
    fs::write(clone.join("dir/new"), vec![7; 300_000]).expect("write");
    succeeds(kvfs(&["kv", "put"]).arg(&clone).args(["key", "value"]));
    fs::write(mount.path("main"), "main").expect("write");
    // Programs have it open, and see the merge.
    let open = fs::File::open(mount.path("file")).expect("opened");
    let shown = succeeds(kvfs(&["merge", "--dry-run"]).arg(&clone));
    assert!(shown.contains("M  file") && shown.contains("A  dir"), "{shown}");
    assert_eq!(read(mount.path("file")).as_deref(), Some("base"));
    let shown = succeeds(kvfs(&["merge"]).arg(&clone));
    assert!(shown.contains("clone trial into the store: done"), "{shown}");
    assert_eq!(read(mount.path("file")).as_deref(), Some("clone"));
    assert_eq!(fs::read(mount.path("dir/new")).expect("read"), vec![7; 300_000]);
    assert_eq!(std::io::read_to_string(&open).expect("read"), "clone");
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(mount.root()).arg("key")).trim_end(), "value");
    let history = succeeds(kvfs(&["history"]).arg(mount.root()));
    assert!(history.contains("merge trial"), "{history}");
    succeeds(kvfs(&["undo"]).arg(mount.root()));
    assert_eq!(read(mount.path("file")).as_deref(), Some("base"));
    assert!(!mount.path("dir").exists() && mount.path("main").exists());
    let json = succeeds(kvfs(&["--json", "merge", "--drop"]).arg(mount.root()).arg("trial"));
    assert!(json.contains("\"dropped\":true") && json.contains("dir"), "{json}");
    assert_eq!(read(mount.path("file")).as_deref(), Some("clone"));
    assert!(!clone.exists());
}

#[test]
fn a_merge_with_conflicts_lists_them_and_changes_nothing() {
    let Some((mount, clone)) = cloned() else { return };
    fs::write(clone.join("file"), "clone").expect("write");
    fs::write(mount.path("file"), "main").expect("write");
    succeeds(kvfs(&["kv", "put"]).arg(&clone).args(["key", "clone"]));
    succeeds(kvfs(&["kv", "put"]).arg(mount.root()).args(["key", "main"]));
    for command in ["merge", "rebase"] {
        let (code, out, said) = ends(kvfs(&[command]).arg(&clone));
        assert_eq!(code, Some(75), "{out}{said}");
        assert!(out.contains("C  file: changed in") && out.contains("C  key"), "{out}");
        assert!(said.contains("--theirs"), "{said}");
        let (code, json, _) = ends(kvfs(&["--json", command]).arg(&clone));
        assert_eq!(code, Some(75), "{json}");
        assert!(json.contains("\"conflicts\":[{"), "{json}");
    }
    assert_eq!(read(mount.path("file")).as_deref(), Some("main"));
    assert_eq!(read(clone.join("file")).as_deref(), Some("clone"));
    assert_eq!(succeeds(kvfs(&["txn", "list"]).arg(mount.root())).trim(), "");
    succeeds(kvfs(&["merge", "--both", "file", "--theirs", "."]).arg(&clone));
    assert_eq!(read(mount.path("file")).as_deref(), Some("main"));
    assert_eq!(read(mount.path("file~trial")).as_deref(), Some("clone"));
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(mount.root()).arg("key")).trim_end(), "clone");
    // The choice that was made there is merged into the clone.
    succeeds(kvfs(&["rebase"]).arg(&clone));
    assert_eq!(read(clone.join("file")).as_deref(), Some("main"));
    assert_eq!(read(clone.join("file~trial")).as_deref(), Some("clone"));
}

#[test]
fn a_merge_that_is_kept_open_is_cut_down_and_committed_by_hand() {
    let Some((mount, clone)) = cloned() else { return };
    fs::write(clone.join("wanted"), "1").expect("write");
    fs::write(clone.join("unwanted"), "1").expect("write");
    let shown = succeeds(kvfs(&["merge", "--keep"]).arg(&clone));
    let id = shown.trim().rsplit(' ').next().expect("a number").to_owned();
    let diff = succeeds(kvfs(&["txn", "diff"]).arg(mount.root()).arg(&id));
    assert!(diff.contains("A  wanted"), "{diff}");
    succeeds(kvfs(&["txn", "revert"]).arg(mount.root()).args([&id, "unwanted"]));
    succeeds(kvfs(&["txn", "commit"]).arg(mount.root()).arg(&id));
    assert!(mount.path("wanted").exists() && !mount.path("unwanted").exists());
    succeeds(kvfs(&["merge"]).arg(&clone));
    assert!(!mount.path("unwanted").exists(), "it counts as merged");
}

#[test]
fn elements_of_collections_that_both_have_added_are_counted() {
    let Some((mount, clone)) = cloned() else { return };
    let call = |target: &Path, words: &[&str]| {
        succeeds(kvfs(&["kv", "call"]).arg(target).args(words)).trim().to_owned()
    };
    call(&mount.root(), &["SADD", "set", "a", "b"]);
    succeeds(kvfs(&["snapshot", "create"]).arg(mount.root()).arg("later"));
    succeeds(kvfs(&["clone", "create"]).arg(mount.root()).args(["later", "second"]));
    let clone = clone.with_file_name("second");
    call(&clone, &["SADD", "set", "c", "both"]);
    call(&mount.root(), &["SADD", "set", "d", "both"]);
    call(&mount.root(), &["SREM", "set", "a"]);
    succeeds(kvfs(&["merge"]).arg(&clone));
    assert!(call(&mount.root(), &["SCARD", "set"]).ends_with('4'));
    call(&clone, &["DEL", "set"]);
    call(&mount.root(), &["SADD", "set", "e"]);
    let (code, out, _) = ends(kvfs(&["merge"]).arg(&clone));
    assert_eq!(code, Some(75), "{out}");
    assert!(out.contains(":set:"), "{out}");
}

#[test]
fn a_store_that_is_not_mounted_is_merged_too() {
    let Some((mount, clone)) = cloned() else { return };
    fs::write(clone.join("file"), "clone").expect("write");
    let store = mount.root().with_file_name("store");
    succeeds(kvfs(&["umount"]).arg(mount.root()));
    let (code, _, said) = ends(kvfs(&["merge"]).arg(&store));
    assert!(code == Some(2) && said.contains("which clone"), "{said}");
    let (code, _, said) = ends(kvfs(&["merge"]).arg(&store).arg("nothing"));
    assert!(code != Some(0) && said.contains("nothing"), "{said}");
    succeeds(kvfs(&["merge"]).arg(&store).arg("trial"));
    assert_eq!(succeeds(kvfs(&["cat"]).arg(&store).arg("file")), "clone");
    succeeds(kvfs(&["check"]).arg(&store));
}

/// Writes files of a megabyte until one is refused. Returns the number of complete files.
fn fill(dir: &Path) -> usize {
    let written = |n: usize| {
        let done = fs::write(dir.join(format!("fill{n}")), vec![n as u8; 1 << 20])
            .and_then(|()| fs::File::open(dir.join(format!("fill{n}")))?.sync_all());
        if let Err(e) = &done {
            assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{e}");
        }
        done.is_ok()
    };
    (0..100).find(|n| !written(*n)).expect("no limit")
}

#[test]
fn a_clone_that_takes_too_much_is_full_and_the_store_is_not() {
    let Some((mount, _)) = cloned() else { return };
    let root = mount.root();
    succeeds(kvfs(&["clone", "create", "--limit", "8M"]).arg(&root).args(["origin", "small"]));
    let small = mount.path(".kvfs/clone/small");
    let taken = fill(&small);
    assert!((5..8).contains(&taken), "{taken}");
    // Keys count with the files, and the socket says so.
    let value = "v".repeat(100_000);
    let put = |n: usize| {
        let mut put = kvfs(&["kv", "put"]);
        ends(put.arg(&small).arg(format!("key{n}")).arg(&value))
    };
    let refused = (0..40).map(put).find(|(code, ..)| *code != Some(0)).expect("no limit");
    assert!(refused.2.contains("clone small has reached its limit"), "{refused:?}");
    fs::write(mount.path("outside"), vec![1; 10 << 20]).expect("the store has space");
    let listed = succeeds(kvfs(&["clone", "list"]).arg(&root));
    let line = listed.lines().find(|line| line.starts_with("small")).expect("listed");
    assert!(line.contains(" of 8.0 MiB"), "{line}");
    let shown = succeeds(kvfs(&["stat"]).arg(&root));
    assert!(
        shown.lines().any(|line| line.starts_with("limit") && line.contains("small: ")),
        "{shown}"
    );
    let free = free_in(&small);
    assert!(free < 1 << 20, "df shows what is left: {free}");
    // Removing files frees space.
    for n in 0..=taken {
        fs::remove_file(small.join(format!("fill{n}"))).expect("removed");
    }
    assert!(fill(&small) >= 4);
    succeeds(kvfs(&["clone", "limit"]).arg(&root).args(["small", "64M"]));
    fs::write(small.join("more"), vec![1; 10 << 20]).expect("there is room");
    succeeds(kvfs(&["clone", "limit"]).arg(&root).args(["small", "none"]));
    let json = succeeds(kvfs(&["--json", "clone", "list"]).arg(&root));
    assert!(json.contains("\"limit\":null"), "{json}");
    let (code, _, said) = ends(kvfs(&["clone", "limit"]).arg(&root).args(["nothing", "1M"]));
    assert!(code != Some(0) && said.contains("nothing"), "{said}");
}

#[test]
fn a_clone_that_has_too_many_files_is_full_and_the_store_is_not() {
    let Some((mount, _)) = cloned() else { return };
    let root = mount.root();
    succeeds(kvfs(&["clone", "create", "--limit", "3f"]).arg(&root).args(["origin", "few"]));
    let few = mount.path(".kvfs/clone/few");
    let free = || rustix::fs::statvfs(&few).expect("statvfs").f_favail;
    let make = |name: &str| fs::write(few.join(name), name);
    assert_eq!(free(), 3);
    for name in ["one", "two", "three"] {
        make(name).expect("there is room");
    }
    assert_eq!(make("four").expect_err("no limit").raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(free(), 0);
    fs::write(mount.path("outside"), "outside").expect("the store has room");
    let listed = || succeeds(kvfs(&["clone", "list"]).arg(&root));
    assert!(listed().contains("3 of 3 files"), "{}", listed());
    let of_clone = succeeds(kvfs(&["stat"]).arg(&few));
    assert!(of_clone.starts_with("few  of snapshot origin  3 of 3 files"), "{of_clone}");
    for (target, pointer) in [(&few, ""), (&root, "/clones/0")] {
        let json = succeeds(kvfs(&["--json", "stat"]).arg(target));
        let all: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let found = all.pointer(pointer).expect("it is there");
        assert_eq!((&found["files"], &found["limit_of_files"]), (&3.into(), &3.into()), "{json}");
    }
    fs::remove_file(few.join("two")).expect("removed");
    assert!(listed().contains("2 of 3 files"), "{}", listed());
    make("four").expect("there is room again");
    // Files that a run makes count, and a refusal says so.
    let (code, _, said) =
        ends(kvfs(&["run"]).arg(&few).args(["--", "sh", "-c", "echo > $KVFS_MOUNT/five"]));
    assert!(code != Some(0), "{said}");
    succeeds(kvfs(&["clone", "limit"]).arg(&root).args(["few", "64M,5f"]));
    make("five").expect("there is room");
    let json = succeeds(kvfs(&["--json", "clone", "list"]).arg(&root));
    assert!(json.contains("\"files\":4") && json.contains("\"limit_of_files\":5"), "{json}");
    // The same holds for a store that is not mounted.
    succeeds(kvfs(&["umount"]).arg(&root));
    let store = root.with_file_name("store");
    let listed = succeeds(kvfs(&["clone", "list"]).arg(&store));
    assert!(listed.contains("at most 5 files") && listed.contains(" of 64.0 MiB"), "{listed}");
    succeeds(kvfs(&["clone", "limit"]).arg(&store).args(["few", "none"]));
    let json = succeeds(kvfs(&["--json", "clone", "list"]).arg(&store));
    assert!(json.contains("\"limit_of_files\":null"), "{json}");
}

#[test]
fn an_import_at_a_limit_says_whose_limit_it_is() {
    let Some((mount, _)) = cloned() else { return };
    let root = mount.root();
    let source = root.with_file_name("source");
    fs::create_dir(&source).expect("made");
    for n in 0..8u8 {
        fs::write(source.join(n.to_string()), vec![n; 1 << 20]).expect("written");
    }
    for (name, limit, why) in [
        ("small", "2M", "clone small has reached its limit of 2097152 bytes"),
        ("few", "3f", "clone few has reached its limit of 3 files"),
    ] {
        succeeds(kvfs(&["clone", "create", "--limit", limit]).arg(&root).args(["origin", name]));
        let clone = mount.path(".kvfs/clone").join(name);
        let (code, _, said) = ends(kvfs(&["import"]).arg(&clone).arg(&source));
        assert!(code == Some(6) && said.contains(why), "{code:?} {said}");
        assert!(!clone.join("0").exists());
    }
    let script = format!("kvfs import \"$KVFS_MOUNT\" {}", source.display());
    for (limit, why) in [("2M", "limit of 2097152 bytes"), ("3f", "limit of 3 files")] {
        let (code, _, said) = ends(&mut run(&root, &["--limit", limit], &script));
        assert!(code == Some(6) && said.contains(why), "{code:?} {said}");
        assert!(said.contains("transaction") && !said.contains("store is full"), "{said}");
    }
    succeeds(kvfs(&["import"]).arg(&root).arg(&source));
}

#[test]
fn a_clone_is_merged_into_another_one_that_shares_a_state_with_it() {
    let Some((mount, trial)) = cloned() else { return };
    let root = mount.root();
    succeeds(kvfs(&["clone", "create"]).arg(&root).args(["origin", "other"]));
    let other = mount.path(".kvfs/clone/other");
    fs::write(trial.join("of-trial"), "trial").expect("written");
    fs::write(other.join("of-other"), "other").expect("written");
    succeeds(kvfs(&["kv", "put"]).arg(&trial).args(["key", "value"]));
    let said = succeeds(kvfs(&["merge"]).arg(&trial).args(["--into", "other", "--dry-run"]));
    assert!(said.contains("clone trial into clone other: nothing was changed"), "{said}");
    let said = succeeds(kvfs(&["merge"]).arg(&trial).arg("--into").arg(&other));
    assert!(said.contains("clone trial into clone other: done"), "{said}");
    assert_eq!(read(other.join("of-trial")).as_deref(), Some("trial"));
    assert_eq!(read(mount.path("of-trial")), None);
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&other).arg("key")).trim_end(), "value");
    // A clone of the clone is merged directly into the store.
    succeeds(kvfs(&["snapshot", "create"]).arg(&other).arg("of-other"));
    succeeds(kvfs(&["clone", "create"]).arg(&root).args(["of-other", "deep/er"]));
    fs::write(mount.path(".kvfs/clone/deep/er/new"), "deep").expect("written");
    succeeds(kvfs(&["merge"]).arg(&root).args(["deep/er", "--into"]).arg(&root).arg("--drop"));
    assert_eq!(read(mount.path("new")).as_deref(), Some("deep"));
    assert_eq!(read(mount.path("of-other")).as_deref(), Some("other"));
    assert!(!mount.path(".kvfs/clone/deep/er").exists());
    // The conflicts are between these two, and name the author of the other change.
    fs::write(trial.join("file"), "trial").expect("written");
    let script = "echo other > $KVFS_MOUNT/file; kvfs kv put $KVFS_MOUNT key changed";
    succeeds(&mut run(&other, &["--label", "the other"], script));
    succeeds(kvfs(&["kv", "put"]).arg(&trial).args(["key", "too"]));
    let (code, listed, _) = ends(kvfs(&["merge"]).arg(&trial).args(["--into", "other"]));
    assert_eq!(code, Some(75));
    assert!(listed.contains("changed in clone other, changed in clone trial"), "{listed}");
    let by = listed.lines().filter(|line| line.contains("by commit ")).count();
    assert!(by == 2 && listed.contains("(the other), 20"), "{listed}");
    let (_, json, _) = ends(kvfs(&["--json", "merge"]).arg(&trial).args(["--into", "other"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    for one in json["conflicts"].as_array().expect("a list") {
        assert_eq!(one["by"]["label"], "the other", "{json}");
        assert!(one["by"]["time"].as_u64() > Some(1_700_000_000), "{json}");
    }
    for (into, why) in [("nothing", "nothing"), ("trial", "not merged into itself")] {
        let (code, _, said) = ends(kvfs(&["merge"]).arg(&trial).args(["--into", into]));
        assert!(code != Some(0) && said.contains(why), "{said}");
    }
    let (code, _, said) = ends(kvfs(&["rebase"]).arg(&trial).args(["--into", "other"]));
    assert!(code == Some(2) && said.contains("rebased onto what it was made of"), "{said}");
    // The same holds for a store that is not mounted.
    succeeds(kvfs(&["umount"]).arg(&root));
    let store = root.with_file_name("store");
    let words = ["trial", "--into", "other", "--theirs", "."];
    succeeds(kvfs(&["merge"]).arg(&store).args(words));
    let all = ["--theirs", "."];
    succeeds(kvfs(&["merge"]).arg(&store).args(["other", "--into"]).arg(&store).args(all));
    assert_eq!(succeeds(kvfs(&["cat"]).arg(&store).arg("file")), "trial");
    succeeds(kvfs(&["check"]).arg(&store));
}

/// Bytes that are free for a program in a directory.
fn free_in(dir: &Path) -> u64 {
    let stat = rustix::fs::statvfs(dir).expect("statvfs");
    stat.f_bavail * stat.f_frsize
}
