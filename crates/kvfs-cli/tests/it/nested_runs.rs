//! Tests of `kvfs run` within `kvfs run`: attempts within an attempt, which commit into it.

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

/// Exit code, standard output and standard error of a script in a run, which may name the
/// temporary directory `$T`.
fn run(mount: &Mount, options: &[&str], script: &str) -> (Option<i32>, String, String) {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let mut command = kvfs(&["run"]);
    command.args(options).arg(mount.root()).args(["--", "sh", "-c"]);
    command.arg(format!("cd $KVFS_MOUNT; {script}")).env("T", temporary.path());
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout), text(&stderr))
}

#[track_caller]
fn succeeds(mount: &Mount, script: &str) -> String {
    let (code, out, err) = run(mount, &[], &format!("set -e; {script}"));
    assert_eq!(code, Some(0), "{out}{err}");
    out
}

fn read(mount: &Mount, name: &str) -> Option<String> {
    fs::read_to_string(mount.path(name)).ok()
}

#[test]
fn one_within_another_sees_what_that_has_changed_and_commits_into_it() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path("old"), "old\n").expect("write");
    let out = succeeds(
        &mount,
        "echo outer > f; rm old; outer=$KVFS_TXN; before=$KVFS_MOUNT
         kvfs kv put . key outer
         kvfs run . -- sh -c 'set -e
             cat $KVFS_MOUNT/f; test ! -e old; echo inner > g; echo more >> f
             kvfs kv get . key; kvfs kv put . key inner
             echo $KVFS_TXN > $T/inner; echo $KVFS_MOUNT > $T/place'
         test $(cat $T/inner) -gt $outer; test $(cat $T/place) = $before
         cat f g; kvfs kv get . key",
    );
    assert_eq!(out, "outer\nouterouter\nmore\ninner\ninner");
    assert_eq!(read(&mount, "f").as_deref(), Some("outer\nmore\n"));
    assert_eq!(read(&mount, "g").as_deref(), Some("inner\n"));
    assert!(read(&mount, "old").is_none());
}

#[test]
fn one_that_fails_leaves_nothing_and_the_one_around_it_goes_on() {
    let Some(mount) = Mount::new() else { return };
    let (code, out, err) = run(
        &mount,
        &[],
        "echo 1 > f; kvfs run . -- sh -c 'echo 2 > f; rm -rf *; exit 7'; echo code $?; cat f",
    );
    assert_eq!((code, out.as_str()), (Some(0), "code 7\n1\n"));
    assert!(err.contains("aborted (exit code 7): nothing was changed"), "{err}");
    assert_eq!(read(&mount, "f").as_deref(), Some("1\n"));
}

#[test]
fn the_abort_of_the_one_around_it_takes_what_was_committed_into_it() {
    let Some(mount) = Mount::new() else { return };
    let script = "kvfs run . -- sh -c 'echo 1 > f' && test -e f && exit 3";
    assert_eq!(run(&mount, &[], script).0, Some(3));
    assert!(read(&mount, "f").is_none());
    let list = kvfs(&["txn", "list"]).arg(mount.root()).output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&list.stdout), "");
}

#[test]
fn two_at_once_that_change_different_files_both_come_in() {
    let Some(mount) = Mount::new() else { return };
    let out = succeeds(
        &mount,
        "mkfifo $T/one $T/two; mkdir d
         kvfs run . -- sh -c 'echo 1 > d/one; echo x > $T/one; read x < $T/two' &
         read x < $T/one
         kvfs run . -- sh -c 'echo 2 > d/two; test ! -e d/one'
         test ! -e d/one; echo x > $T/two; wait $!
         cat d/one d/two",
    );
    assert_eq!(out, "1\n2\n");
    assert_eq!(read(&mount, "d/one").as_deref(), Some("1\n"));
}

#[test]
fn of_two_that_change_one_file_the_second_gets_75_with_its_path_and_is_kept() {
    let Some(mount) = Mount::new() else { return };
    let script = |directory: &str, options: &str| {
        let script = "mkdir DIR; echo 0 > DIR/shared
             id=$(kvfs txn begin --within $KVFS_TXN .); echo first > .kvfs/txn/$id/DIR/shared
             kvfs run OPTIONS . -- sh -c \"echo second > DIR/shared; kvfs txn commit . $id\"
             echo code $?; cat DIR/shared";
        script.replace("DIR", directory).replace("OPTIONS", options)
    };
    let (code, out, err) = run(&mount, &[], &script("d", "--no-keep"));
    assert_eq!((code, out.as_str()), (Some(0), "code 75\nfirst\n"), "{err}");
    assert!(err.contains("/d/shared"), "{err}");
    assert_eq!(read(&mount, "d/shared").as_deref(), Some("first\n"));
    // A kept run within another one keeps that one open, too, and no data is lost.
    let (code, out, err) = run(&mount, &[], &script("e", ""));
    assert_eq!((code, out.as_str()), (Some(125), "code 75\nfirst\n"), "{err}");
    assert!(err.contains("is not committed while others are open within it"), "{err}");
    assert!(read(&mount, "e/shared").is_none());
    let tree = kvfs(&["txn", "list", "--tree", "--json"]).arg(mount.root()).output().expect("runs");
    let tree: serde_json::Value = serde_json::from_slice(&tree.stdout).expect("JSON");
    let (outer, inner) = (&tree[0], &tree[1]);
    assert_eq!(inner["within"], outer["id"]);
    assert!(outer["within"].is_null());
    let view = mount.path(".kvfs/txn").join(inner["id"].to_string());
    assert_eq!(fs::read_to_string(view.join("e/shared")).expect("read"), "second\n");
    let commit = |options: &[&str]| {
        let mut command = kvfs(&["txn", "commit"]);
        command.args(options).arg(mount.root()).arg(outer["id"].to_string());
        command.output().expect("it runs").status.code()
    };
    assert_ne!(commit(&[]), Some(0));
    assert_eq!(commit(&["--abort-nested"]), Some(0));
    assert_eq!(read(&mount, "e/shared").as_deref(), Some("first\n"));
    assert!(!view.exists());
}

#[test]
fn one_may_be_kept_open_and_committed_by_hand() {
    let Some(mount) = Mount::new() else { return };
    let out = succeeds(
        &mount,
        "id=$(kvfs run --keep . -- sh -c 'echo 1 > f'); test ! -e f
         kvfs txn status . $id | head -1; kvfs txn list --tree . | tail -1 | grep -c '  sh -c'
         kvfs txn diff . $id | grep -c '^A  f '; cat .kvfs/txn/$id/f
         kvfs txn exec . $id -- sh -c 'cat f; echo 2 > g'
         kvfs txn commit . $id; cat f g",
    );
    let (first, rest) = out.split_once('\n').expect("lines");
    assert!(first.contains(" within transaction "), "{first}");
    assert_eq!(rest, "1\n1\n1\n1\n1\n2\n");
}

/// A script that starts itself in a run within its own, as an agent starts others.
#[test]
fn agents_start_agents_three_levels_deep() {
    let Some(mount) = Mount::new() else { return };
    let out = succeeds(
        &mount,
        r#"cat > $T/agent <<'END'
set -e
cd $KVFS_MOUNT
echo $1 > level$1
test ! -e .kvfs/snapshot; test -z "$(ls .kvfs/txn)"
test $1 = 0 && exit 0
kvfs run . -- sh $T/agent $(($1 - 1))
# One more beside it, which is given up.
if kvfs run . -- sh -c "echo bad > level$1; exit 1" 2> $T/given-up; then exit 9; fi
cat level$1
END
         sh $T/agent 3; cat level*"#,
    );
    assert_eq!(out, "1\n2\n3\n0\n1\n2\n3\n");
    for level in 0..=3 {
        assert_eq!(read(&mount, &format!("level{level}")), Some(format!("{level}\n")));
    }
}

#[test]
fn git_works_in_one_within_another() {
    let Some(mount) = Mount::new() else { return };
    if Command::new("git").arg("--version").output().is_err() {
        return;
    }
    let out = succeeds(
        &mount,
        "export HOME=$T; git config --global user.name N; git config --global user.email n@example.org
         git init -q repo; cd repo; echo 1 > f; git add f; git commit -q -m one
         kvfs run $KVFS_MOUNT -- sh -c 'set -e
             git status --porcelain; echo 2 >> f; echo 3 > g; git add .; git commit -q -m two'
         git status --porcelain
         kvfs run $KVFS_MOUNT -- sh -c 'echo x > f; git commit -qam bad; exit 1' 2> $T/bad || true
         git status --porcelain; git log --format=%s; git fsck 2>&1 | grep -v '^notice' || true",
    );
    assert_eq!(out, "two\none\n");
    assert_eq!(read(&mount, "repo/f").as_deref(), Some("1\n2\n"));
}

#[test]
fn a_program_in_one_sees_nothing_of_the_one_around_it_and_of_the_store() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path("f"), "store\n").expect("write");
    let out = succeeds(
        &mount,
        "id=$(kvfs txn begin --within $KVFS_TXN .); ls .kvfs .kvfs/txn | grep -v \"^$id$\"
         kvfs run . -- sh -c 'ls .kvfs/txn; umount -l $KVFS_MOUNT; umount -l $KVFS_MOUNT
             echo inner > $KVFS_MOUNT/f; exit 1' 2> $T/errors || true
         cat f; kvfs txn abort . $id",
    );
    assert!(out.ends_with("store\n"), "{out}");
    assert_eq!(read(&mount, "f").as_deref(), Some("store\n"));
}

#[test]
fn a_path_that_does_not_show_the_transaction_is_refused() {
    let Some(mount) = Mount::new() else { return };
    let (code, _, err) = run(
        &mount,
        &[],
        "id=$(kvfs txn begin --within $KVFS_TXN .); KVFS_TXN=$id kvfs run . -- true; code=$?
         kvfs txn abort . $id; exit $code",
    );
    assert_eq!(code, Some(125), "{err}");
    assert!(err.contains("does not show that one"), "{err}");
}
