//! Tests that commands wait for a daemon that does not answer, and say so.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::place::{Place, fails, kill, kvfs, succeeds, text};
use rustix::process::Signal;

#[test]
fn a_command_says_whom_it_waits_for_and_goes_on_when_that_does() {
    let Some(place) = Place::new() else { return };
    let pid = place.mounted();
    succeeds(kvfs(&["kv", "put"]).arg(place.mnt()).args(["key", "value"]));
    std::fs::write(place.mnt().join("file"), "content").expect("written");
    for (before, behind, said) in [
        (&["stat"][..], &[][..], "process"),
        (&["txn", "list"], &[], ""),
        (&["history"], &[], "snapshots"),
        (&["kv", "get"], &["key"], "value"),
        (&["top", "--once", "-i", "0.1"], &[], "KVFS"),
        (&["undo", "--dry-run"], &[], ""),
        (&["snapshot", "list"], &[], ""),
        (&["ls"], &["/"], "file"),
        (&["umount"], &[], "unmounted"),
    ] {
        kill(pid, Signal::STOP);
        let mut command = kvfs(before);
        command.arg(place.mnt()).args(behind).stdin(Stdio::null());
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kvfs runs");
        let mut errors = BufReader::new(child.stderr.take().expect("a pipe"));
        // The kernel shows what it has cached without the daemon.
        let mut line = String::new();
        errors.read_line(&mut line).expect("text");
        kill(pid, Signal::CONT);
        let mut shown = Vec::new();
        child.stdout.take().expect("a pipe").read_to_end(&mut shown).expect("read");
        let mut rest = String::new();
        errors.read_to_string(&mut rest).expect("text");
        let status = child.wait().expect("it ends");
        let mnt = place.mnt();
        let (start, end) =
            (format!("kvfs: the daemon of {} (process {pid}) ", mnt.display()), line);
        assert!(end.starts_with(&start), "{before:?}: {end}{rest}");
        assert!(end.contains("does not answer; waiting. It is stopped"), "{before:?}: {end}");
        assert!(!rest.contains("does not answer"), "{before:?}: it is said once: {rest}");
        // (There is no commit that could be undone.)
        assert!(status.success() || before[0] == "undo", "{before:?}: {rest}");
        assert!(text(&shown).contains(said), "{before:?}: {}", text(&shown));
    }
}

#[test]
fn a_command_says_whom_it_waits_for_from_its_first_look_at_a_path() {
    let Some(place) = Place::new() else { return };
    let pid = place.mounted();
    let mnt = place.mnt();
    std::fs::write(mnt.join("file"), "content").expect("written");
    std::fs::create_dir(mnt.join("tree")).expect("mkdir");
    succeeds(kvfs(&["snapshot", "create"]).arg(&mnt).arg("s"));
    let at = |name: &str| mnt.join(name).display().to_string();
    let (root, store) = (mnt.display().to_string(), place.store().display().to_string());
    let paths = ["file", "tree", "copy", ".kvfs/snapshot/s"].map(at);
    let [file, tree, copy, snapshot] = [0, 1, 2, 3].map(|n: usize| paths[n].as_str());
    let (root, store) = (root.as_str(), store.as_str());
    for words in [
        &["clone-tree", tree, copy][..],
        &["export", snapshot, "-"],
        &["run", root, "--", "true"],
        &["mount", store, root],
        &["stat", root, "--json"],
        &["txn", "list", root, "--json"],
        &["--json", "history", root],
        &["rm", file],
    ] {
        kill(pid, Signal::STOP);
        let mut command = kvfs(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kvfs runs");
        let mut errors = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("text");
        kill(pid, Signal::CONT);
        let mut rest = String::new();
        errors.read_to_string(&mut rest).expect("text");
        let status = child.wait().expect("it ends");
        assert!(line.contains("does not answer; waiting"), "{words:?}: {line}{rest}");
        assert!(!rest.contains("does not answer"), "{words:?}: it is said once: {rest}");
        assert_eq!(line.starts_with("{\"waiting\":"), words.contains(&"--json"), "{line}");
        // (The directory has a mount already.)
        assert!(status.success() || words[0] == "mount", "{words:?}: {rest}");
    }
}

#[test]
fn a_command_that_takes_long_is_no_daemon_that_does_not_answer() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let mut waits = kvfs(&["kv", "call"]);
    waits.arg(place.mnt()).args(["BLPOP", "nothing", "5"]).stdin(Stdio::null());
    let ended = waits.output().expect("kvfs runs");
    assert_eq!(text(&ended.stderr), "");
}

#[test]
fn runs_whose_daemon_was_killed_without_a_keeper_say_so_at_once() {
    let Some(place) = Place::new() else { return };
    let pid = place.mounted();
    let kills = place.dir.path().join("kills");
    let script = format!(
        "kill -9 {pid}; while stat -f \"$KVFS_MOUNT\" >/dev/null 2>&1; do sleep 0.02; done"
    );
    std::fs::write(&kills, script).expect("written");
    let begun = Instant::now();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_kvfs")).display();
    let script = format!("{program} run $KVFS_MOUNT -- sh {}", kills.display());
    let mut run = kvfs(&["run"]);
    run.arg(place.mnt()).args(["--", "sh", "-c", &script]).stdin(Stdio::null());
    let said = fails(125, run.env_remove("KVFS_TXN").env_remove("KVFS_SOCKET"));
    // Each of the two would wait for twenty seconds for another daemon.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(said.matches("has ended, and no other one follows").count(), 2, "{said}");
    // It says that the daemon was killed.
    let _ = kvfs(&["umount", "--force"]).arg(place.mnt()).output().expect("kvfs runs");
}

#[test]
fn long_output_waits_for_its_reader_and_others_are_served() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let mnt = place.mnt();
    let input = place.dir.path().join("in.csv");
    let lines: String = (0..20_000).map(|n| format!("key{n:05},{}\n", "v".repeat(100))).collect();
    std::fs::write(&input, lines).expect("written");
    succeeds(kvfs(&["kv", "load"]).arg(&mnt).arg(&input));
    for (before, behind) in [
        (&["kv", "scan"][..], &[][..]),
        (&["--json", "kv", "scan"], &[]),
        (&["kv", "call"], &["KEYS", "*"]),
    ] {
        let mut command = kvfs(before);
        command.arg(&mnt).args(behind).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("kvfs runs");
        let mut output = child.stdout.take().expect("a pipe");
        let mut first = [0];
        output.read_exact(&mut first).expect("it prints something");
        // The rest does not fit into a pipe, so the command waits, and the daemon does not.
        succeeds(kvfs(&["kv", "put"]).arg(&mnt).args(["other", "value"]));
        succeeds(kvfs(&["stat"]).arg(&mnt));
        assert!(child.try_wait().expect("it is ours").is_none(), "{before:?}: its output is read");
        let mut all = first.to_vec();
        output.read_to_end(&mut all).expect("read");
        assert!(child.wait().expect("it ends").success(), "{before:?}");
        let all = text(&all);
        let keys = all.matches("key0").count() + all.matches("key1").count();
        assert_eq!(keys, 20_000, "{before:?}");
    }
}
