//! Tests of `kvfs explore`, which makes several attempts in parallel. One of them is kept, and the
//! others leave no trace.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::mounted::Mount;

fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    let directory = Path::new(env!("CARGO_BIN_EXE_kvfs")).parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", directory.display()));
    command
}

/// Exit code, standard output and standard error.
fn ends(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = crate::place::output(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout), text(&stderr))
}

/// `kvfs explore N MOUNT OPTIONS -- sh -c SCRIPT`.
fn explore(mount: &Path, attempts: u32, options: &[&str], script: &str) -> Command {
    let mut command = kvfs(&["explore", &attempts.to_string()]);
    command.arg(mount).args(options).args(["--", "sh", "-ec", script]);
    command
}

fn open_transactions(mount: &Path) -> usize {
    let (code, out, err) = ends(kvfs(&["--json", "txn", "list"]).arg(mount));
    assert_eq!(code, Some(0), "{err}");
    let all: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    all.as_array().expect("a list").len()
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[test]
fn the_attempt_with_the_highest_score_is_committed_and_the_others_never_were() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path("answer"), "0\n").expect("write");
    let script = "cd $KVFS_MOUNT; test $(cat answer) = 0; test $KVFS_ATTEMPTS = 4
        echo $KVFS_ATTEMPT > answer; kvfs kv put . answer $KVFS_ATTEMPT; touch by$KVFS_ATTEMPT
        test $KVFS_ATTEMPT != 4";
    // 2 and 3 have the same score; 4 would have more, and fails.
    let judge = "cd $KVFS_MOUNT; echo judged; case $(cat answer) in 1) echo 1;; *) echo 7.5;; esac";
    let (code, out, err) = ends(&mut explore(&mount.root(), 4, &["--judge", judge], script));
    assert_eq!(code, Some(0), "{out}{err}");
    assert_eq!(read(mount.path("answer")).as_deref(), Some("2\n"), "{out}{err}");
    let (_, value, _) = ends(kvfs(&["kv", "get"]).arg(mount.root()).arg("answer"));
    assert_eq!(value, "2");
    let made = [1, 2, 3, 4].map(|n| mount.path(format!("by{n}")).exists());
    assert_eq!(made, [false, true, false, false]);
    assert_eq!(open_transactions(&mount.root()), 0);
    let state = |line: &str| line.split_whitespace().last().map(str::to_owned);
    let states: Vec<_> = out.lines().skip(1).filter_map(state).collect();
    assert_eq!(states, ["aborted", "committed", "aborted", "aborted"], "{out}");
}

#[test]
fn with_first_the_others_are_ended_with_all_that_they_have_started() {
    let Some(mount) = Mount::new() else { return };
    let scratch = tempfile::tempdir().expect("a directory");
    // Attempt 2 succeeds when attempt 1 has left a program running in a session of its own, which
    // waits forever.
    let script = format!(
        "cd {}
        if [ $KVFS_ATTEMPT = 1 ]; then setsid sh -c 'echo $$ > left.new; mv left.new left; exec sleep 10000' & exec sleep 10000; fi
        while [ ! -e left ]; do sleep 0.02; done; echo done > $KVFS_MOUNT/by2",
        scratch.path().display()
    );
    let (code, out, err) = ends(&mut explore(&mount.root(), 2, &["--first"], &script));
    assert_eq!(code, Some(0), "{out}{err}");
    assert_eq!(read(mount.path("by2")).as_deref(), Some("done\n"));
    let left = read(scratch.path().join("left")).expect("a process");
    assert!(!Path::new("/proc").join(left.trim()).exists(), "{left} still runs");
    assert_eq!(open_transactions(&mount.root()), 0);
}

#[test]
fn without_a_judge_those_that_succeed_stay_open_to_be_looked_at() {
    let Some(mount) = Mount::new() else { return };
    let script = "echo $KVFS_ATTEMPT > $KVFS_MOUNT/file; test $KVFS_ATTEMPT != 2";
    let (code, out, err) = ends(&mut explore(&mount.root(), 3, &[], script));
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(!mount.path("file").exists());
    assert_eq!(open_transactions(&mount.root()), 2, "{out}");
    let last = out.lines().last().expect("a line").split_whitespace().last();
    let id = last.expect("the number of a transaction");
    let (code, _, err) = ends(kvfs(&["txn", "commit"]).arg(mount.root()).arg(id));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(read(mount.path("file")).as_deref(), Some("3\n"));
}

#[test]
fn where_none_is_accepted_nothing_is_changed() {
    let Some(mount) = Mount::new() else { return };
    let script = "echo x > $KVFS_MOUNT/file";
    for options in [&["--judge", "false"][..], &["--first", "--judge", "exit 3"]] {
        let (code, out, err) = ends(&mut explore(&mount.root(), 2, options, script));
        assert_eq!(code, Some(1), "{out}{err}");
        assert!(err.contains("nothing was changed"), "{err}");
    }
    let (code, ..) = ends(&mut explore(&mount.root(), 2, &["--first"], "exit 9"));
    assert_eq!(code, Some(1));
    assert!(!mount.path("file").exists());
    assert_eq!(open_transactions(&mount.root()), 0);
}

#[test]
fn outputs_are_kept_apart() {
    let Some(mount) = Mount::new() else { return };
    let scratch = tempfile::tempdir().expect("a directory");
    let script = "echo out of $KVFS_ATTEMPT; echo wrong in $KVFS_ATTEMPT >&2";
    let directory = scratch.path().join("tries");
    let options = ["--judge", "echo 1", "--outputs", directory.to_str().expect("UTF-8")];
    let (code, _, err) = ends(&mut explore(&mount.root(), 2, &options, script));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(read(directory.join("1.out")).as_deref(), Some("out of 1\n1\n"));
    assert_eq!(read(directory.join("2.err")).as_deref(), Some("wrong in 2\n"));
    // Without files the outputs are printed one after the other, each as a whole.
    let (code, out, err) =
        ends(&mut explore(&mount.root(), 2, &["--first", "--jobs", "1"], script));
    assert_eq!(code, Some(0), "{out}");
    let expected = "--- attempt 1, standard output\nout of 1\n\
                    --- attempt 1, standard error\nwrong in 1\n";
    assert_eq!(err, expected);
}

#[test]
fn what_others_have_changed_meanwhile_is_a_conflict_and_the_attempt_is_kept() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path("file"), "old").expect("write");
    let outside = tempfile::tempdir().expect("a directory");
    // The judge waits until the test has changed the same file outside.
    let judge = format!(
        "cd {}; touch begun; while [ ! -e changed ]; do sleep 0.02; done",
        outside.path().display()
    );
    let mut command =
        explore(&mount.root(), 1, &["--judge", &judge], "echo mine > $KVFS_MOUNT/file");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    while !outside.path().join("begun").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fs::write(mount.path("file"), "theirs").expect("write");
    fs::write(outside.path().join("changed"), "").expect("write");
    let ended = child.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(75), "{err}");
    assert!(err.contains("file") && err.contains("is kept as transaction"), "{err}");
    assert_eq!(read(mount.path("file")).as_deref(), Some("theirs"));
    assert_eq!(open_transactions(&mount.root()), 1);
}

#[test]
fn what_a_judge_leaves_running_is_not_waited_for() {
    let Some(mount) = Mount::new() else { return };
    let judge = "setsid sleep 10000 & echo 5";
    let script = "echo x > $KVFS_MOUNT/file";
    let (code, out, err) = ends(&mut explore(&mount.root(), 1, &["--judge", judge], script));
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains("committed"), "{out}");
    assert_eq!(err, "--- attempt 1, standard output\n5\n");
}

#[test]
fn an_attempt_does_not_commit_itself() {
    let Some(mount) = Mount::new() else { return };
    let script = "cd $KVFS_MOUNT; echo x > file; ! kvfs txn commit .";
    let (code, out, err) = ends(&mut explore(&mount.root(), 1, &["--judge", "false"], script));
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(!mount.path("file").exists());
}

#[test]
fn a_clone_can_be_explored() {
    let Some(mount) = Mount::new() else { return };
    for words in [&["snapshot", "create"][..], &["clone", "create"]] {
        let mut command = kvfs(words);
        command.arg(mount.root()).arg("base");
        if words[0] == "clone" {
            command.arg("c");
        }
        let (code, _, err) = ends(&mut command);
        assert_eq!(code, Some(0), "{err}");
    }
    let clone = mount.path(".kvfs/clone/c");
    let script = "echo $KVFS_ATTEMPT > $KVFS_MOUNT/file";
    let judge = "cat $KVFS_MOUNT/file";
    let (code, out, err) = ends(&mut explore(&clone, 3, &["--judge", judge], script));
    assert_eq!(code, Some(0), "{out}{err}");
    assert_eq!(read(clone.join("file")).as_deref(), Some("3\n"));
    assert!(!mount.path("file").exists());
}

/// `kvfs run MOUNT -- sh -c SCRIPT`.
fn run(mount: &Path, script: &str) -> (Option<i32>, String, String) {
    let mut command = kvfs(&["run"]);
    command.arg(mount).args(["--", "sh", "-ec", script]);
    ends(&mut command)
}

#[test]
fn attempts_within_a_run_see_what_it_has_changed_and_one_is_committed_into_it() {
    let Some(mount) = Mount::new() else { return };
    let script = "cd $KVFS_MOUNT; echo 10 > base; kvfs kv put . key outer
        kvfs explore 3 . --judge 'cat $KVFS_MOUNT/sum' -- sh -ec 'cd $KVFS_MOUNT
            test \"$(kvfs kv get . key)\" = outer; kvfs kv put . key $KVFS_ATTEMPT
            echo $(($(cat base) + KVFS_ATTEMPT)) > sum; ! kvfs txn commit .'
        test -z \"$(ls .kvfs/txn)\"; cat sum; kvfs kv get . key";
    let (code, out, err) = run(&mount.root(), &format!("{script}; exit 3"));
    assert_eq!(code, Some(3), "{out}{err}");
    assert!(!mount.path("sum").exists(), "the outer transaction was aborted");
    let (code, out, err) = run(&mount.root(), script);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.ends_with("13\n3"), "{out}");
    assert_eq!(read(mount.path("sum")).as_deref(), Some("13\n"));
    assert_eq!(ends(kvfs(&["kv", "get"]).arg(mount.root()).arg("key")).1, "3");
    assert_eq!(open_transactions(&mount.root()), 0);
}

#[test]
fn attempts_that_stay_open_within_a_run_are_ended_before_it() {
    let Some(mount) = Mount::new() else { return };
    let explored = "cd $KVFS_MOUNT
        kvfs explore 2 . -- sh -ec 'echo $KVFS_ATTEMPT > $KVFS_MOUNT/file' > /dev/null
        test ! -e file; set -- $(ls .kvfs/txn)";
    let (code, out, err) =
        run(&mount.root(), &format!("{explored}; kvfs txn commit . $2; kvfs txn abort . $1"));
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(matches!(read(mount.path("file")).as_deref(), Some("1\n" | "2\n")));
    let (code, _, err) = run(&mount.root(), &format!("rm $KVFS_MOUNT/file; {explored}"));
    assert_eq!(code, Some(125), "{err}");
    assert!(err.contains("is not committed while others are open within it"), "{err}");
}

#[test]
fn an_attempt_makes_attempts_of_its_own() {
    let Some(mount) = Mount::new() else { return };
    let script = "cd $KVFS_MOUNT; export OUTER=$KVFS_ATTEMPT
        kvfs explore 2 . --judge 'cat $KVFS_MOUNT/n' -- sh -ec '
            echo $OUTER$KVFS_ATTEMPT > $KVFS_MOUNT/n; ! kvfs txn commit $KVFS_MOUNT'
        ! kvfs txn commit .";
    let judge = "cat $KVFS_MOUNT/n";
    let (code, out, err) = ends(&mut explore(&mount.root(), 2, &["--judge", judge], script));
    assert_eq!(code, Some(0), "{out}{err}");
    assert_eq!(read(mount.path("n")).as_deref(), Some("22\n"), "{out}{err}");
    assert_eq!(open_transactions(&mount.root()), 0);
}

#[test]
fn attempts_within_a_run_in_a_clone_are_of_that_clone() {
    let Some(mount) = Mount::new() else { return };
    for words in [&["snapshot", "create"][..], &["clone", "create"]] {
        let names: &[&str] = if words[0] == "clone" { &["base", "c"] } else { &["base"] };
        let (code, _, err) = ends(kvfs(words).arg(mount.root()).args(names));
        assert_eq!(code, Some(0), "{err}");
    }
    let clone = mount.path(".kvfs/clone/c");
    let script = "cd $KVFS_MOUNT; echo 1 > outer
        kvfs explore 2 . --judge 'cat $KVFS_MOUNT/n' -- sh -ec '
            test -e $KVFS_MOUNT/outer; echo $KVFS_ATTEMPT > $KVFS_MOUNT/n'";
    let (code, out, err) = run(&clone, script);
    assert_eq!(code, Some(0), "{out}{err}");
    assert_eq!(read(clone.join("n")).as_deref(), Some("2\n"));
    assert!(!mount.path("n").exists());
}
