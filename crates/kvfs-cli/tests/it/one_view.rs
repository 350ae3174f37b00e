//! Tests of `kvfs mount -o snapshot=NAME` and `-o clone=NAME`, which mount one view of a store by
//! itself.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use crate::place::{Place, fails, kvfs, succeeds};

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
    // Nothing else of the store is visible, not even above its root.
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
fn a_view_whose_name_has_slashes_is_mounted_by_itself() {
    let Some(p) = prepared() else { return };
    p.mounted();
    let create = |command: &str, words: &[&str]| {
        succeeds(kvfs(&[command, "create"]).arg(p.mnt()).args(words).stdin(Stdio::null()));
    };
    create("snapshot", &["nightly/2"]);
    create("clone", &["monday", "agents/7/try-2"]);
    succeeds(&mut p.umount());
    succeeds(&mut mount(&p, "clone=agents/7/try-2"));
    assert_eq!(fs::read_to_string(p.mnt().join("dir/file")).expect("read"), "then");
    fs::write(p.mnt().join("dir/file"), "in the clone").expect("write");
    succeeds(kvfs(&["snapshot", "create"]).arg(p.mnt()).arg("of/it").stdin(Stdio::null()));
    let of_it = p.mnt().join(".kvfs/snapshot/of/it/dir/file");
    assert_eq!(fs::read_to_string(of_it).expect("read"), "in the clone");
    assert!(p.mnt().join(".kvfs/snapshot/nightly").symlink_metadata().is_err());
    succeeds(&mut p.umount());
    succeeds(&mut mount(&p, "snapshot=nightly/2"));
    assert_eq!(fs::read_to_string(p.mnt().join("dir/file")).expect("read"), "now");
    succeeds(&mut p.umount());
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

fn on(words: &[&str]) -> std::process::Command {
    let mut command = kvfs(words);
    command.stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

/// `kvfs run OPTIONS TARGET -- sh -c SCRIPT`, in which `kvfs` is the program under test.
fn run(p: &Place, options: &[&str], script: &str) -> std::process::Command {
    let mut command = on(&["run"]);
    command.args(options).arg(p.mnt()).args(["--", "sh", "-ec", script]);
    let directory = std::path::Path::new(env!("CARGO_BIN_EXE_kvfs")).parent().expect("a parent");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", directory.display()));
    command
}

fn names(directory: &std::path::Path) -> Vec<String> {
    let name = |e: std::io::Result<fs::DirEntry>| e.expect("read").file_name();
    let listed = fs::read_dir(directory).expect("listed").map(name);
    let mut all: Vec<String> = listed.map(|n| n.into_string().expect("UTF-8")).collect();
    all.sort();
    all
}

#[test]
fn programs_run_in_transactions_of_a_clone_that_is_mounted_alone() {
    let Some(p) = prepared() else { return };
    succeeds(&mut mount(&p, "clone=trial"));
    let file = || fs::read_to_string(p.mnt().join("dir/file")).expect("read");
    let here = fs::canonicalize(p.mnt()).expect("a path").display().to_string();
    let script = "cd \"$KVFS_MOUNT\"; pwd; echo in > dir/file; kvfs kv put . key value";
    assert!(!run(&p, &[], &format!("{script}; exit 3")).status().expect("runs").success());
    assert_eq!(file(), "then");
    assert_eq!(succeeds(&mut run(&p, &[], script)).trim(), here);
    assert_eq!(file(), "in\n");
    assert_eq!(succeeds(on(&["kv", "get"]).arg(p.mnt()).arg("key")).trim(), "value");
    // A nested transaction, which is invisible until the outer one commits.
    let inner = "cd \"$KVFS_MOUNT\"; kvfs run . -- sh -c 'echo inner > dir/file'
                 test \"$(cat dir/file)\" = inner; exit 7";
    assert_eq!(run(&p, &[], inner).status().expect("runs").code(), Some(7));
    assert_eq!(file(), "in\n");
    assert_eq!(run(&p, &["--commit"], inner).status().expect("runs").code(), Some(7));
    assert_eq!(file(), "inner\n");
    // The commits are listed and undone.
    assert!(succeeds(on(&["history"]).arg(p.mnt())).contains("sh -ec"));
    succeeds(on(&["undo"]).arg(p.mnt()));
    assert_eq!(file(), "in\n");
    succeeds(&mut p.umount());
    p.mounted();
    assert_eq!(file(), "now");
    assert_eq!(fs::read_to_string(p.mnt().join(".kvfs/clone/trial/dir/file")).unwrap(), "in\n");
}

#[test]
fn its_transactions_and_snapshots_are_seen_there_and_those_of_others_nowhere() {
    let Some(p) = prepared() else { return };
    succeeds(&mut mount(&p, "clone=trial"));
    let kvfs_directory = p.mnt().join(".kvfs");
    assert!(!names(&p.mnt()).contains(&".kvfs".into()));
    assert_eq!(names(&kvfs_directory), ["clone", "snapshot", "txn"]);
    let of_store = p.ask(&["TXN", "BEGIN"]);
    let id = succeeds(on(&["txn", "begin"]).arg(p.mnt())).trim().to_string();
    assert_eq!(names(&kvfs_directory.join("txn")).concat(), id);
    let listed = succeeds(on(&["txn", "list"]).arg(p.mnt()));
    assert_eq!(listed.lines().count(), 2, "a heading, and its own: {listed}");
    assert!(!kvfs_directory.join("txn").join(&of_store).exists(), "{of_store}");
    assert!(!kvfs_directory.join("user/0").join(&of_store).exists());
    // It is not listed as its own clone, and has no clones yet.
    assert_eq!(names(&kvfs_directory.join("clone")), [""; 0]);
    assert!(!kvfs_directory.join("clone/trial").exists());
    let view = kvfs_directory.join("txn").join(&id);
    fs::write(view.join("dir/file"), "mine").expect("write");
    let up = |path: &str| fs::metadata(view.join(path)).expect("there").ino();
    assert_eq!(up("dir/.."), up("."));
    let diff = succeeds(on(&["txn", "diff"]).arg(p.mnt()).arg(&id));
    assert!(diff.contains("M  dir/file"), "{diff}");
    succeeds(on(&["txn", "commit"]).arg(p.mnt()).arg(&id));
    assert_eq!(fs::read_to_string(p.mnt().join("dir/file")).expect("read"), "mine");
    assert!(!view.exists());
    assert_eq!(names(&kvfs_directory.join("txn")), [""; 0]);
    // Snapshots are of the clone.
    succeeds(on(&["snapshot", "create"]).arg(p.mnt()).arg("tried"));
    assert_eq!(names(&kvfs_directory.join("snapshot")), ["tried"]);
    assert!(!kvfs_directory.join("snapshot/monday").exists());
    fs::write(p.mnt().join("dir/file"), "later").expect("write");
    fs::write(p.mnt().join("new"), "").expect("write");
    let shown = kvfs_directory.join("snapshot/tried/dir/file");
    assert_eq!(fs::read_to_string(shown).expect("read"), "mine");
    let diff = succeeds(on(&["diff"]).arg(p.mnt()).arg("tried"));
    assert!(diff.contains("M  dir/file") && diff.contains("A  new"), "{diff}");
    let list = succeeds(on(&["snapshot", "list"]).arg(p.mnt()));
    assert!(list.contains("tried  of clone trial"), "{list}");
    succeeds(on(&["restore"]).arg(p.mnt()).arg("tried").arg(p.mnt().join("dir/file")));
    assert_eq!(fs::read_to_string(p.mnt().join("dir/file")).expect("read"), "mine");
    assert!(p.mnt().join("new").exists());
    // The store's own would not be shown here.
    for words in [&["diff"][..], &["snapshot", "rollback"]] {
        let said = fails(2, on(words).arg(p.mnt()).arg("monday"));
        assert!(said.contains("shows clone trial"), "{said}");
    }
    succeeds(on(&["snapshot", "rollback"]).arg(p.mnt()).arg("tried"));
    assert!(!p.mnt().join("new").exists());
}

#[test]
fn its_clones_are_used_there_to_any_depth_and_those_of_others_are_not() {
    let Some(p) = prepared() else { return };
    p.mounted();
    succeeds(on(&["clone", "create"]).arg(p.mnt()).args(["monday", "sibling"]));
    succeeds(&mut p.umount());
    succeeds(&mut mount(&p, "clone=trial"));
    let clones = p.mnt().join(".kvfs/clone");
    let create = |kind: &str, at: &std::path::Path, words: &[&str]| {
        succeeds(on(&[kind, "create"]).arg(at).args(words));
    };
    // A listing that the kernel has cached shows what is made afterwards.
    assert_eq!(names(&clones), [""; 0]);
    create("snapshot", &p.mnt(), &["tried"]);
    create("clone", &p.mnt(), &["tried", "child"]);
    let child = clones.join("child");
    create("snapshot", &child, &["of-child"]);
    create("clone", &child, &["of-child", "deep/er"]);
    assert_eq!(names(&clones), ["child", "deep"]);
    assert!(!clones.join("sibling").exists() && !clones.join("trial").exists());
    assert_eq!(names(&p.mnt().join(".kvfs/snapshot")), ["of-child", "tried"]);
    // Programs run there, and what they do stays there.
    let run_in = |target: &std::path::Path, script: &str| {
        succeeds(on(&["run"]).arg(target).args(["--", "sh", "-ec", script]));
    };
    run_in(&child, "echo child > $KVFS_MOUNT/made; echo child > $KVFS_MOUNT/dir/file");
    run_in(&clones.join("deep/er"), "echo deep > $KVFS_MOUNT/deep");
    let read = |path: &str| fs::read_to_string(p.mnt().join(path)).ok();
    assert_eq!(read(".kvfs/clone/child/dir/file").as_deref(), Some("child\n"));
    assert_eq!(read("dir/file").as_deref(), Some("then"));
    let id = succeeds(on(&["txn", "begin"]).arg(&child)).trim().to_string();
    assert!(p.mnt().join(".kvfs/txn").join(&id).join("made").exists());
    succeeds(on(&["txn", "abort"]).arg(p.mnt()).arg(&id));
    // They are merged and rebased by path and by name.
    fs::write(p.mnt().join("of-trial"), "trial").expect("written");
    succeeds(on(&["rebase"]).arg(p.mnt()).arg("child"));
    assert_eq!(read(".kvfs/clone/child/of-trial").as_deref(), Some("trial"));
    let said = succeeds(on(&["merge"]).arg(clones.join("deep/er")));
    assert!(said.contains("clone deep/er into clone child: done"), "{said}");
    assert_eq!(read(".kvfs/clone/child/deep").as_deref(), Some("deep\n"));
    let said = succeeds(on(&["merge", "--drop"]).arg(p.mnt()).arg("child"));
    assert!(said.contains("clone child into clone trial: done"), "{said}");
    assert_eq!(read("made").as_deref(), Some("child\n"));
    assert_eq!(read("deep").as_deref(), Some("deep\n"));
    assert!(!child.exists());
    succeeds(&mut p.umount());
    succeeds(on(&["check"]).arg(p.store()));
    p.mounted();
    assert_eq!(fs::read_to_string(p.mnt().join("dir/file")).expect("read"), "now");
    assert_eq!(read(".kvfs/clone/trial/made").as_deref(), Some("child\n"));
}

/// Asks tools of `kvfs mcp` one after the other, and returns the answers; `TXN` in their arguments
/// is the number of the transaction that the first one begins.
fn asked_of_agent(p: &Place, tools: &[(&str, &str)]) -> Vec<String> {
    let mut server = on(&["mcp"])
        .arg(p.mnt())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("kvfs runs");
    let mut input = server.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(server.stdout.take().expect("a pipe")).lines();
    let mut say = |method: &str, params: &str| -> serde_json::Value {
        let request =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        writeln!(input, "{request}").expect("sent");
        let answer = lines.next().expect("an answer").expect("read");
        serde_json::from_str(&answer).expect("JSON")
    };
    let client = r#"{"name":"t","version":"1"}"#;
    say(
        "initialize",
        &format!(r#"{{"protocolVersion":"2025-03-26","capabilities":{{}},"clientInfo":{client}}}"#),
    );
    let mut said: Vec<String> = Vec::new();
    for (tool, arguments) in tools {
        let first = said.first().and_then(|text| text.split_whitespace().nth(1));
        let arguments = arguments.replace("TXN", first.unwrap_or_default());
        let params = format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#);
        let answer = say("tools/call", &params);
        let text = answer["result"]["content"][0]["text"].as_str();
        said.push(text.unwrap_or_else(|| panic!("{tool}: {answer}")).to_string());
    }
    drop(input);
    assert!(server.wait().expect("it ends").success());
    said
}

#[test]
fn an_agent_works_in_the_clone_that_is_mounted_alone() {
    let Some(p) = prepared() else { return };
    succeeds(&mut mount(&p, "clone=trial"));
    let said = asked_of_agent(
        &p,
        &[
            ("begin", "{}"),
            ("write_file", r#"{"transaction":TXN,"path":"agent","content":"in"}"#),
            ("put_key", r#"{"transaction":TXN,"key":"k","value":"v"}"#),
            ("get_key", r#"{"key":"k"}"#),
            ("run", r#"{"transaction":TXN,"command":"pwd; cat agent"}"#),
            ("commit", r#"{"transaction":TXN}"#),
            ("get_key", r#"{"key":"k"}"#),
            ("snapshot", r#"{"name":"by-agent"}"#),
            ("branch", r#"{"name":"of-trial"}"#),
        ],
    );
    assert!(said[3].contains("there is no key k"), "{said:?}");
    let here = fs::canonicalize(p.mnt()).expect("a path");
    assert!(said[4].contains(&format!("{}\nin", here.display())), "{said:?}");
    assert_eq!(said[6].trim(), "v");
    assert_eq!(fs::read_to_string(p.mnt().join("agent")).expect("read"), "in");
    assert_eq!(names(&p.mnt().join(".kvfs/snapshot")), ["by-agent"]);
    succeeds(&mut p.umount());
    p.mounted();
    assert!(!p.mnt().join("agent").exists());
    let branch = p.mnt().join(".kvfs/clone/of-trial/agent");
    assert_eq!(fs::read_to_string(branch).expect("read"), "in");
}

/// The attributes that programs which make backups compare, to read only what has changed.
fn compared(p: &Place, names: &[&str]) -> Vec<(u64, i64, i64, i64, i64, u64)> {
    let of = |name: &&str| {
        let m = fs::symlink_metadata(p.mnt().join(name)).expect("there");
        (m.ino(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec(), m.len())
    };
    names.iter().map(of).collect()
}

#[test]
fn snapshots_mounted_one_after_the_other_show_the_same_of_what_has_not_changed() {
    let Some(p) = prepared() else { return };
    p.mounted();
    for n in 0..20 {
        fs::write(p.mnt().join(format!("dir/{n}")), vec![7; n * 1000]).expect("write");
    }
    let snapshot = |name: &str| {
        succeeds(kvfs(&["snapshot", "create"]).arg(p.mnt()).arg(name).stdin(Stdio::null()));
    };
    snapshot("first");
    fs::write(p.mnt().join("dir/7"), "changed").expect("write");
    fs::remove_file(p.mnt().join("dir/8")).expect("removed");
    fs::write(p.mnt().join("dir/made"), "").expect("write");
    snapshot("second");
    succeeds(&mut p.umount());
    let names = ["dir/0", "dir/1", "dir/19", "dir/file", "dir/7"];
    let shown = ["first", "second", "first"].map(|name| {
        succeeds(&mut mount(&p, &format!("snapshot={name}")));
        let shown = compared(&p, &names);
        succeeds(&mut p.umount());
        shown
    });
    assert_eq!(shown[0][..4], shown[1][..4]);
    assert_eq!(shown[0][4].0, shown[1][4].0);
    assert_ne!(shown[0][4], shown[1][4]);
    assert_eq!(shown[0], shown[2]);
}

#[test]
fn a_view_that_is_not_there_mounts_nothing() {
    let Some(p) = prepared() else { return };
    for (options, code, names) in [
        ("snapshot=tuesday", 3, "no snapshot tuesday"),
        ("clone=monday", 3, "no clone monday"),
        ("snapshot=a/b", 3, "no snapshot a/b"),
        ("snapshot=a//b", 2, "the name of one"),
        ("clone=../x", 2, "the name of one"),
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

#[test]
fn what_is_committed_to_the_clone_is_told_and_nothing_of_the_store() {
    let Some(p) = prepared() else { return };
    succeeds(&mut mount(&p, "clone=trial"));
    let at = succeeds(kvfs(&["changes"]).arg(p.mnt())).trim().to_owned();
    fs::write(p.mnt().join("dir/file"), "in the clone").expect("written");
    succeeds(kvfs(&["kv", "put"]).arg(p.mnt()).args(["k", "v"]));
    // A key of the store, through the socket.
    p.ask(&["SET", "of-store", "1"]);
    p.ask(&["SYNC"]);
    let told = succeeds(kvfs(&["changes"]).arg(p.mnt()).args(["--since", &at]));
    assert!(!told.contains("of-store"), "{told}");
    let has = |what: &str| told.lines().any(|line| line.ends_with(what));
    assert!(has("changed /dir/file") && has("string  0: k"), "{told}");
}
