//! Tests of `kvfs run` and `kvfs txn` on a mounted store. Programs that do not know of transactions
//! change files and keys together or not at all.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::asked::Asked;
use crate::mounted::Mount;
use kvdb_server::{Client, Reply};

fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Exit code, standard output and standard error.
fn ends(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = crate::place::output(command);
    (status.code(), text(&stdout), text(&stderr))
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let (code, out, err) = ends(command);
    assert_eq!(code, Some(0), "{command:?}: {out}{err}");
    out
}

/// `kvfs run OPTIONS MOUNT -- sh -c SCRIPT`, in which `kvfs` is the program under test.
fn run(mount: &Path, options: &[&str], script: &str) -> Command {
    let mut command = kvfs(&["run"]);
    command.args(options).arg(mount).args(["--", "sh", "-c", script]);
    with_program(&mut command);
    command
}

fn with_program(command: &mut Command) {
    let directory = Path::new(env!("CARGO_BIN_EXE_kvfs")).parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", directory.display()));
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[test]
fn success_commits_files_and_keys_together() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path("old"), "old").expect("write");
    fs::write(mount.path("gone"), "x").expect("write");
    let root = mount.root();
    let script = "set -e; cd $KVFS_MOUNT; cat old; echo new > new; echo more >> old; rm gone; kvfs kv put . greeting hello; kvfs kv get . greeting
        # What is outside sees nothing of it yet: this directory is reached by the daemon's own mount.
        kvfs txn status . > status";
    let out = succeeds(&mut run(&root, &[], script));
    assert_eq!(out, "oldhello");
    assert_eq!(read(mount.path("new")).as_deref(), Some("new\n"));
    assert_eq!(read(mount.path("old")).as_deref(), Some("oldmore\n"));
    assert!(!mount.path("gone").exists());
    assert!(read(mount.path("status")).expect("status").contains("snapshot isolation"));
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&root).arg("greeting")), "hello");
    assert_eq!(succeeds(kvfs(&["txn", "list"]).arg(&root)), "");
}

#[test]
fn failure_aborts_and_the_exit_code_passes_through() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir(mount.path("src")).expect("mkdir");
    fs::write(mount.path("src/main.c"), "int main;").expect("write");
    let root = mount.root();
    let script = "cd $KVFS_MOUNT; rm -rf src; kvfs kv put . k v; test ! -e src || exit 9; exit 3";
    let (code, _, err) = ends(&mut run(&root, &[], script));
    assert_eq!(code, Some(3));
    assert_eq!(err, "kvfs: aborted (exit code 3): nothing was changed\n");
    assert_eq!(read(mount.path("src/main.c")).as_deref(), Some("int main;"));
    assert_eq!(
        kvfs(&["kv", "get"]).arg(&root).arg("k").output().expect("it runs").status.code(),
        Some(3)
    );
    // Tests a dry run and its opposite.
    succeeds(&mut run(&root, &["--abort"], "rm -r $KVFS_MOUNT/src"));
    assert!(mount.path("src/main.c").exists());
    let (code, ..) = ends(&mut run(&root, &["--commit"], "rm -r $KVFS_MOUNT/src; exit 4"));
    assert_eq!(code, Some(4));
    assert!(!mount.path("src").exists());
}

#[test]
fn a_run_that_takes_too_much_fails_as_on_a_full_disk_and_the_store_goes_on() {
    let Some(mount) = Mount::new() else { return };
    let script = "cd \"$KVFS_MOUNT\"; df -k --output=avail . | tail -1
                  dd if=/dev/zero of=large bs=64k count=1000; echo dd $?; rm -f large
                  kvfs kv put . key value; echo put $?; dd if=/dev/zero of=small bs=64k count=50";
    let (code, out, err) = ends(&mut run(&mount.root(), &["--limit", "8M"], script));
    assert_eq!(code, Some(0), "{out}{err}");
    let free: u64 = out.lines().next().and_then(|l| l.trim().parse().ok()).expect("a number");
    assert!(free <= 8 << 10, "{free} KiB");
    assert!(out.contains("dd 1") && out.contains("put 0"), "{out}");
    assert!(err.contains("No space left on device"), "{err}");
    assert_eq!(fs::metadata(mount.path("small")).expect("committed").len(), 50 * 65_536);
    assert!(!mount.path("large").exists());
    // Keys count as well.
    let script =
        "for n in 1 2 3 4; do head -c 900000 /dev/zero | kvfs kv put . k$n || exit 9; done";
    let script = format!("cd \"$KVFS_MOUNT\"; {script}");
    let (code, _, err) = ends(&mut run(&mount.root(), &["--limit", "2M"], &script));
    assert_eq!(code, Some(9), "{err}");
    assert!(err.contains("has reached its limit of 2097152 bytes"), "{err}");
    assert_eq!(ends(kvfs(&["kv", "get"]).arg(mount.root()).arg("k1")).0, Some(3));
}

#[test]
fn a_conflict_names_who_else_has_changed_the_file_and_when() {
    let Some(mount) = Mount::new() else { return };
    for name in ["both", "other"] {
        fs::write(mount.path(name), name).expect("written");
    }
    let id = succeeds(kvfs(&["txn", "begin"]).arg(mount.root()));
    let id = id.trim();
    let outside = mount.path(format!(".kvfs/txn/{id}/both"));
    fs::write(outside, "mine").expect("written");
    // Another transaction commits first. People identify it by its label.
    succeeds(kvfs(&["run", "--label", "the other one"]).arg(mount.root()).args([
        "--",
        "sh",
        "-c",
        "cd $KVFS_MOUNT; echo theirs > both; echo x > other",
    ]));
    let (code, _, said) = ends(kvfs(&["txn", "commit"]).arg(mount.root()).arg(id));
    assert!(code != Some(0), "{said}");
    let named = said.find("/both (by commit ").map(|at| &said[at..]);
    let named = named.and_then(|said| said.split_once(')')).map(|(by, _)| by);
    let named = named.unwrap_or_else(|| panic!("{said}"));
    assert!(named.contains(", \"the other one\", ") && named.ends_with(" s ago"), "{said}");
    assert_eq!(said.matches("the other one").count(), 1, "{said}");
    assert!(!said.contains("/other"), "{said}");
}

#[test]
fn each_commit_that_a_run_is_in_conflict_with_is_named_once() {
    let Some(mount) = Mount::new() else { return };
    let (root, names) = (mount.root(), ["a", "b", "c", "d", "e"]);
    names.iter().for_each(|name| fs::write(mount.path(name), name).expect("written"));
    let id = succeeds(kvfs(&["txn", "begin"]).arg(&root));
    let id = id.trim();
    for name in names {
        fs::write(mount.path(format!(".kvfs/txn/{id}/{name}")), "mine").expect("written");
    }
    for name in names {
        let script = format!("echo theirs > $KVFS_MOUNT/{name}");
        succeeds(&mut run(&root, &["--label", &format!("label {name}")], &script));
    }
    let (code, _, said) = ends(kvfs(&["txn", "commit"]).arg(&root).arg(id));
    assert!(code != Some(0), "{said}");
    // The daemon's message names three of the files, and the following lines name the others.
    for name in names {
        assert_eq!(said.matches(&format!("/{name} (by commit ")).count(), 1, "{name}: {said}");
        assert_eq!(said.matches(&format!(", \"label {name}\", ")).count(), 1, "{name}: {said}");
    }
    assert_eq!(said.matches(" s ago)").count(), names.len(), "{said}");
}

#[test]
fn a_run_that_makes_too_many_files_fails_as_on_a_full_disk_and_the_store_goes_on() {
    let Some(mount) = Mount::new() else { return };
    let script = "cd \"$KVFS_MOUNT\"; df --output=iavail . | tail -1; mkdir d
                  for n in $(seq 99); do echo $n > d/$n || exit 9; done
                  echo more > more; echo more $?; rm d/7; ln d/8 again; echo more > more";
    let (code, out, err) = ends(&mut run(&mount.root(), &["--limit", "1G,100f"], script));
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.trim_start().starts_with("100\n"), "{out}");
    assert!(out.contains("more 2") || out.contains("more 1"), "{out}");
    assert!(err.contains("No space left on device"), "{err}");
    assert_eq!(fs::read(mount.path("more")).expect("committed"), b"more\n");
    fs::write(mount.path("outside"), "there is room").expect("written");
    // The transaction is listed with its limit.
    let begun = succeeds(&mut run(&mount.root(), &["--limit", "5f", "--keep"], "true"));
    let listed = succeeds(kvfs(&["--json", "txn", "list"]).arg(mount.root()));
    assert!(listed.contains("\"limit_of_files\":5"), "{begun}: {listed}");
    for bad in ["5x", "5f,5f", "1.5f"] {
        assert_eq!(ends(&mut run(&mount.root(), &["--limit", bad], "true")).0, Some(2), "{bad}");
    }
}

#[test]
fn the_working_directory_is_that_of_the_view() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir_all(mount.path("a/b")).expect("mkdir");
    let mut command =
        run(&mount.root(), &[], "pwd; echo 1 > here; (cd ..; ls b); ls /proc/self/cwd/");
    let out = succeeds(command.current_dir(mount.path("a/b")));
    assert_eq!(out, format!("{}\nhere\nhere\n", mount.path("a/b").display()));
    assert_eq!(read(mount.path("a/b/here")).as_deref(), Some("1\n"));
}

#[test]
fn others_see_nothing_before_the_commit() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    let mut child = run(&root, &[], "cd $KVFS_MOUNT; echo 1 > file; echo ready; read line; exit 0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut said = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut said).expect("ready");
    assert!(!mount.path("file").exists());
    let list = succeeds(kvfs(&["txn", "list", "--json"]).arg(&root));
    assert!(list.contains("\"label\":\"sh -c cd $KVFS_MOUNT;"), "{list}");
    let id: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let id = id[0]["id"].to_string();
    assert_eq!(read(root.join(".kvfs/txn").join(&id).join("file")).as_deref(), Some("1\n"));
    drop(child.stdin.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert_eq!(read(mount.path("file")).as_deref(), Some("1\n"));
}

#[test]
fn of_two_that_change_a_file_the_second_is_told_to_run_again() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    // This one has nothing to do with the conflict, since it was there before both began.
    succeeds(&mut run(&root, &["--label", "before"], "echo 0 > $KVFS_MOUNT/file"));
    // The inner run uses the daemon's mount, since the program has no other transaction in its
    // environment.
    let inner = format!("echo outside > {}", mount.path("file").display());
    let mut child =
        run(&root, &[], "cd $KVFS_MOUNT; echo inside > file; echo ready; read line; exit 0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
    let mut said = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut said).expect("ready");
    succeeds(Command::new("sh").args(["-c", &inner]));
    drop(child.stdin.take());
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(75), "{}", text(&ended.stderr));
    let said = text(&ended.stderr);
    assert!(said.contains("others have changed /file meanwhile"), "{said}");
    assert!(!said.contains("by commit"), "{said}");
    assert_eq!(read(mount.path("file")).as_deref(), Some("outside\n"));
}

#[test]
fn without_a_check_the_last_of_two_keys_wins_and_files_are_compared_all_the_same() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path("file"), "0").expect("write");
    // Another transaction commits while this one runs: first the key, and then the file as well.
    for (both, code) in [(false, 0), (true, 75)] {
        let script = "cd $KVFS_MOUNT; kvfs kv put . key inside; echo inside > made
                      echo inside > file; echo ready; read line; exit 0";
        let mut child = run(&mount.root(), &["--no-check"], script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut said = [0; 6];
        let out = child.stdout.as_mut().expect("a pipe");
        std::io::Read::read_exact(out, &mut said).expect("ready");
        succeeds(kvfs(&["kv", "put"]).arg(mount.root()).args(["key", "outside"]));
        if both {
            fs::write(mount.path("file"), "outside").expect("write");
        }
        drop(child.stdin.take());
        let ended = child.wait_with_output().expect("it ends");
        assert_eq!(ended.status.code(), Some(code), "{}", text(&ended.stderr));
        let wins = if both { "outside" } else { "inside" };
        assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(mount.root()).arg("key")), wins);
        assert_eq!(read(mount.path("file")).expect("there").trim(), wins);
        assert_eq!(read(mount.path("made")).as_deref(), Some("inside\n"));
    }
}

#[test]
fn a_serializable_transaction_without_a_check_is_refused() {
    let Some(mount) = Mount::new() else { return };
    let options = ["--no-check", "--isolation", "ser"];
    let ended = run(&mount.root(), &options, "echo ran").output().expect("it runs");
    let said = text(&ended.stderr);
    assert_eq!((ended.status.code(), text(&ended.stdout).as_str()), (Some(125), ""), "{said}");
    assert!(said.contains("--no-check is for si"), "{said}");
}

#[test]
fn signals_pass_through() {
    let Some(mount) = Mount::new() else { return };
    let script = "trap 'echo got it; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = run(&mount.root(), &[], script)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut said = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut said).expect("ready");
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("kill");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!((ended.status.code(), text(&ended.stdout).as_str()), (Some(5), "got it\n"));
    // The program was ended by a signal, and the exit code is that of a shell.
    let (code, ..) = ends(&mut run(&mount.root(), &[], "kill -KILL $$"));
    assert_eq!(code, Some(128 + 9));
}

#[test]
fn the_end_of_a_program_is_heard_of_where_children_are_ignored() {
    let Some(mount) = Mount::new() else { return };
    let inside = "echo new >\"$1\"/f; exit 7";
    let script = format!("trap '' CHLD; exec kvfs run \"$1\" -- sh -c '{inside}' sh \"$1\"");
    // The command would wait forever.
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "30", "bash", "-c", &script, "bash"]).arg(mount.root());
    command.stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    with_program(&mut command);
    let (code, _, err) = ends(&mut command);
    assert_eq!(code, Some(7), "{err}");
    assert_eq!(read(mount.path("f")), None, "it was aborted");
}

#[test]
fn a_runner_that_is_killed_leaves_no_transaction() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    let script = "echo 1 > $KVFS_MOUNT/file; echo ready; read line";
    let mut child = run(&root, &[], script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut said = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut said).expect("ready");
    child.kill().expect("kill");
    child.wait().expect("it ends");
    let started = Instant::now();
    while !succeeds(kvfs(&["txn", "list"]).arg(&root)).is_empty() {
        assert!(started.elapsed() < Duration::from_secs(20), "the transaction stays");
    }
    assert!(!mount.path("file").exists());
}

#[test]
fn programs_that_cannot_be_run_have_their_own_exit_codes() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    let (code, _, err) = ends(kvfs(&["run"]).arg(&root).args(["--", "no-such-program"]));
    assert_eq!(code, Some(127), "{err}");
    let (code, _, err) = ends(kvfs(&["run", "--json"]).arg(&root).args(["--", "no-such-program"]));
    let said: serde_json::Value = serde_json::from_str(&err).expect("JSON");
    assert_eq!((code, &said["error"]["code"]), (Some(127), &"not_found".into()));
    let (code, _, err) = ends(kvfs(&["run"]).arg(&root).args(["--", "/"]));
    assert_eq!(code, Some(126), "{err}");
    let (code, _, err) = ends(&mut kvfs(&["run", "/", "--", "true"]));
    assert_eq!(code, Some(125), "{err}");
    assert!(err.contains("no store with a socket is mounted"), "{err}");
    assert_eq!(succeeds(kvfs(&["txn", "list"]).arg(&root)), "");
}

#[test]
fn by_hand_begin_work_look_and_commit() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    fs::write(mount.path("notes"), "one\ntwo\n").expect("write");
    fs::write(mount.path("trash"), "12345").expect("write");
    succeeds(kvfs(&["kv", "put"]).arg(&root).args(["stock", "7"]));
    let id = succeeds(kvfs(&["txn", "begin", "--label", "by hand"]).arg(&root)).trim().to_string();
    let view = root.join(".kvfs/txn").join(&id);
    fs::write(view.join("notes"), "one\n2\n").expect("write");
    fs::write(view.join("new"), "hello\n").expect("write");
    fs::remove_file(view.join("trash")).expect("remove");
    let mut exec = kvfs(&["txn", "exec"]);
    with_program(&mut exec);
    let script = "kvfs kv put $KVFS_MOUNT stock 100; kvfs kv put $KVFS_MOUNT added x; exit 6";
    let (code, ..) = ends(exec.arg(&root).arg(&id).args(["--", "sh", "-c", script]));
    assert_eq!(code, Some(6), "the transaction stays open");
    let diff =
        |options: &[&str]| succeeds(kvfs(&["txn", "diff"]).args(options).arg(&root).arg(&id));
    let squeezed = diff(&[])
        .lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>();
    assert_eq!(
        squeezed,
        [
            "A new 6 B",
            "M notes 8 B → 6 B",
            "D trash 5 B",
            "A key 0:added 1 B",
            "M key 0:stock 1 B → 3 B",
            "1 file added, 1 file changed, 1 file removed, 2 keys changed; 1 B less",
        ]
    );
    assert_eq!(diff(&["--stat"]).lines().count(), 1);
    let patch = diff(&["--patch"]);
    assert!(
        patch.contains("--- a/notes\n+++ b/notes\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"),
        "{patch}"
    );
    assert!(patch.contains("--- /dev/null\n+++ b/new\n"), "{patch}");
    let json: serde_json::Value = serde_json::from_str(&diff(&["--json"])).expect("JSON");
    assert_eq!(
        json["files"][1],
        serde_json::json!({"path": "notes", "change": "changed", "kind": "file", "before": 8, "after": 6, "differs": {"content": true}})
    );
    assert_eq!(
        json["keys"][0],
        serde_json::json!({"dictionary": "0", "key": "added", "change": "added", "before": null, "after": 1, "type": "string"})
    );
    assert!(succeeds(kvfs(&["txn", "list"]).arg(&root)).contains("by hand"));
    succeeds(kvfs(&["txn", "commit"]).arg(&root).arg(&id));
    assert_eq!(read(mount.path("notes")).as_deref(), Some("one\n2\n"));
    assert!(mount.path("new").exists() && !mount.path("trash").exists());
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&root).arg("stock")), "100");
    let (code, _, err) = ends(kvfs(&["txn", "commit"]).arg(&root).arg(&id));
    assert_eq!(code, Some(3), "{err}");
}

#[test]
fn kept_open_it_can_be_looked_at_and_thrown_away() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    let id = succeeds(&mut run(&root, &["--keep"], "echo 1 > $KVFS_MOUNT/file")).trim().to_string();
    assert!(succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(&id)).contains("file"));
    succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(&id));
    assert!(!mount.path("file").exists());
}

/// The question comes on the terminal; script(1) makes one.
#[test]
fn asked_first_the_user_decides() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    for (answers, there) in [(&["n"][..], false), (&["d", "y"], true)] {
        let mut asked = ask(&root, "echo hello > $KVFS_MOUNT/file");
        asked.answers(answers);
        let (shown, _) = asked.ends();
        assert!(shown.contains("A  file") && shown.contains("Commit? [y]es"), "{shown}");
        assert_eq!(shown.contains("+hello"), there, "{shown}");
        assert_eq!(mount.path("file").exists(), there, "{shown}");
    }
}

/// `kvfs run --ask` with a script.
fn ask(root: &Path, script: &str) -> Asked {
    let program = env!("CARGO_BIN_EXE_kvfs");
    let script = script.replace("kvfs ", &format!("{program} "));
    let program = format!("{program} run --ask {} -- sh -c '{script}'", root.display());
    Asked::start(&program).expect("script(1)")
}

#[test]
fn what_was_typed_before_the_question_is_no_answer() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    let mut asked = ask(&root, "echo 1 > $KVFS_MOUNT/file; echo ready; sleep 1");
    asked.until("ready");
    asked.types("y");
    asked.answers(&["n"]);
    let (shown, _) = asked.ends();
    assert!(shown.contains("nothing was changed") && !mount.path("file").exists(), "{shown}");
}

#[test]
fn what_changes_between_the_list_and_the_answer_is_shown_before_it_is_committed() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    // A program that was left running in a session of its own and writes all the time.
    let script = "cd $KVFS_MOUNT; echo 1 > file; setsid sh -c \"while :; do date +%N > late; \
                  sleep 0.02; done\" </dev/null >/dev/null 2>&1 & \
                  while ! test -e $KVFS_MOUNT/late; do sleep 0.02; done; cat $KVFS_MOUNT/late >/dev/null";
    let mut asked = ask(&root, script);
    asked.until("still run");
    asked.until("]nd what runs: ");
    let late = || {
        let mut views = fs::read_dir(root.join(".kvfs/txn")).expect("a directory");
        read(views.next().expect("a view").expect("a name").path().join("late")).expect("there")
    };
    let (before, until) = (late(), Instant::now() + Duration::from_secs(30));
    while late() == before {
        assert!(Instant::now() < until, "nothing is written: {}", asked.shown());
    }
    asked.types("y");
    asked.until("It has changed since it was shown");
    assert!(!mount.path("file").exists(), "{}", asked.shown());
    asked.until("still run");
    asked.answers(&["e", "y"]);
    let (shown, code) = asked.ends();
    assert_eq!(code, 0, "{shown}");
    assert!(mount.path("file").exists() && mount.path("late").exists(), "{shown}");
}

#[test]
fn a_program_that_is_asked_about_neither_commits_nor_writes_past_the_question() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    let script = "cd $KVFS_MOUNT; echo 1 > file; kvfs kv put . inside 1 && echo put; \
                  kvfs txn commit $KVFS_MOUNT $KVFS_TXN; \
                  (setsid env -u KVFS_TXN -u KVFS_MOUNT kvfs kv put $KVFS_MOUNT outside 1); \
                  kvfs snapshot create $KVFS_MOUNT taken; kvfs txn begin $KVFS_MOUNT; \
                  kvfs txn abort $KVFS_MOUNT $KVFS_TXN; true";
    let mut asked = ask(&root, script);
    asked.answers(&["n"]);
    let (shown, _) = asked.ends();
    assert!(shown.contains("put\n") && shown.contains("nothing was changed"), "{shown}");
    assert!(shown.matches("was started in a sealed transaction").count() >= 3, "{shown}");
    assert!(!mount.path("file").exists(), "{shown}");
    for key in ["inside", "outside"] {
        let got = kvfs(&["kv", "get"]).arg(&root).arg(key).output().expect("it runs");
        assert_eq!(got.status.code(), Some(3), "{key}: {shown}");
    }
    assert!(!succeeds(kvfs(&["snapshot", "list"]).arg(&root)).contains("taken"));
    // The seal goes with the session.
    succeeds(kvfs(&["kv", "put"]).arg(&root).args(["outside", "1"]));
}

#[test]
fn a_commit_takes_the_state_that_was_looked_at_and_no_other() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    let id = succeeds(kvfs(&["txn", "begin"]).arg(&root)).trim().to_string();
    let view = root.join(".kvfs/txn").join(&id);
    fs::write(view.join("file"), "1").expect("write");
    let state = || {
        let said = succeeds(kvfs(&["txn", "diff", "--json"]).arg(&root).arg(&id));
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        said["state"].as_str().expect("a state").to_string()
    };
    let (_, _, told) = ends(kvfs(&["txn", "diff"]).arg(&root).arg(&id));
    let first = state();
    assert!(told.contains(&format!("--if {first}")), "{told}");
    assert_eq!(state(), first, "to look changes nothing");
    // The file has the same size and the same time to the second, and is still in the memory of the
    // view.
    fs::write(view.join("file"), "2").expect("write");
    let commit = |state: &str| ends(kvfs(&["txn", "commit", "--if", state]).arg(&root).arg(&id));
    let (code, _, err) = commit(&first);
    assert_eq!(code, Some(8), "{err}");
    assert!(err.contains("has changed since it was looked at, and was not committed"), "{err}");
    let second = state();
    // The same holds for a key.
    succeeds(kvfs(&["kv", "put"]).arg(&view).args(["k", "v"]));
    assert_eq!(commit(&second).0, Some(8));
    assert!(!mount.path("file").exists());
    assert_eq!(commit("yesterday").0, Some(1));
    let third = state();
    assert_eq!(commit(&third).0, Some(0));
    assert_eq!(read(mount.path("file")).as_deref(), Some("2"));
}

/// A program in a run, which ends after another run, labelled "theirs", has committed.
fn run_beside(root: &Path, options: &[&str], inside: &str, outside: &str) -> Output {
    let inside = format!("cd $KVFS_MOUNT; {inside}; echo ready; read line; exit 0");
    let mut child = run(root, options, &inside)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut said = [0; 6];
    let out = child.stdout.as_mut().expect("a pipe");
    std::io::Read::read_exact(out, &mut said).expect("ready");
    succeeds(&mut run(root, &["--label", "theirs"], &format!("cd $KVFS_MOUNT; {outside}")));
    drop(child.stdin.take());
    child.wait_with_output().expect("it ends")
}

#[test]
fn after_a_conflict_what_the_program_did_is_kept() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    fs::write(mount.path("file"), "0").expect("write");
    for (options, kept) in [(&[][..], true), (&["--no-keep"], false)] {
        let ended = run_beside(&root, options, "echo in > file", "printf outside > file");
        let said = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(75), "{said}");
        // The message has the path, the commit that has changed it, and its time.
        assert!(said.contains("/file (by commit ") && said.contains("\"theirs\", "), "{said}");
        assert!(said.contains(" s ago)"), "{said}");
        assert_eq!(said.matches("theirs").count(), 1, "it is named once: {said}");
        let list = succeeds(kvfs(&["txn", "list", "--json"]).arg(&root));
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        assert_eq!(list.as_array().map(Vec::len), Some(usize::from(kept)), "{list}");
        if kept {
            let id = list[0]["id"].to_string();
            assert!(said.contains(&format!("is kept as transaction {id}")), "{said}");
            let diff = succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(&id));
            assert!(diff.contains("M  file"), "{diff}");
            assert_eq!(
                read(root.join(".kvfs/txn").join(&id).join("file")).as_deref(),
                Some("in\n")
            );
            succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(&id));
        }
        assert_eq!(read(mount.path("file")).as_deref(), Some("outside"));
    }
}

#[test]
fn what_lost_is_rebased_and_committed() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    // Both create the same directory, which is a conflict of a commit but not of a rebase.
    let (inside, outside) =
        ("mkdir d; echo in > d/in; kvfs kv put $KVFS_MOUNT k in", "mkdir d; echo out > d/out");
    let inside = inside.replace("kvfs kv", &format!("{} kv", env!("CARGO_BIN_EXE_kvfs")));
    let ended = run_beside(&root, &["--rebase"], &inside, outside);
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    assert_eq!(read(mount.path("d/in")).as_deref(), Some("in\n"));
    assert_eq!(read(mount.path("d/out")).as_deref(), Some("out\n"));
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&root).arg("k")), "in");

    // Both have changed the same file: the run is kept, and rebased by hand.
    let ended = run_beside(&root, &["--rebase"], "echo in > both; echo in > in", "echo out > both");
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(75), "{said}");
    assert!(said.contains("both: made in transaction "), "{said}");
    let list = succeeds(kvfs(&["txn", "list", "--json"]).arg(&root));
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let id = list[0]["id"].to_string();
    assert!(said.contains(&format!("is kept as transaction {id}")), "{said}");
    assert!(said.contains("kvfs txn rebase "), "{said}");
    // A commit also leaves the transaction open.
    let refused = kvfs(&["txn", "commit"]).arg(&root).arg(&id).output().expect("it runs");
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("kvfs txn rebase "), "{}", text(&refused.stderr));
    let refused = kvfs(&["txn", "rebase"]).arg(&root).arg(&id).output().expect("it runs");
    assert_eq!(refused.status.code(), Some(75));
    let listed = text(&refused.stdout);
    let line = format!("C  both: made in transaction {id}, made in what is there now; by commit ");
    assert!(listed.starts_with(&line) && listed.contains("(theirs), 20"), "{listed}");
    let rebase = kvfs(&["txn", "rebase", "--ours", "both", "--json"]).arg(&root).arg(&id).output();
    let rebased = rebase.expect("it runs");
    assert_eq!(rebased.status.code(), Some(0), "{}", text(&rebased.stderr));
    let rebased: serde_json::Value = serde_json::from_slice(&rebased.stdout).expect("JSON");
    assert_eq!(rebased["was"].to_string(), id);
    let new = rebased["id"].to_string();
    assert!(Path::new(rebased["view"].as_str().expect("a path")).join("in").exists());
    succeeds(kvfs(&["txn", "commit"]).arg(&root).arg(&new));
    assert_eq!(read(mount.path("both")).as_deref(), Some("in\n"));
    assert_eq!(read(mount.path("in")).as_deref(), Some("in\n"));

    // A run without changes is not kept.
    let ended =
        run_beside(&root, &["--rebase", "--no-keep"], "echo again > both", "echo out > both");
    assert_eq!(ended.status.code(), Some(75), "{}", text(&ended.stderr));
    assert_eq!(succeeds(kvfs(&["txn", "list"]).arg(&root)), "");
}

/// A command at a store's socket, and its reply in short.
fn say(client: &mut Client, command: &str) -> String {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    match client.call(&words).expect("a reply") {
        Reply::Status(text) | Reply::Error(text) => text,
        Reply::Integer(number) => number.to_string(),
        Reply::Bulk(bytes) => text(&bytes),
        Reply::Null => "nil".into(),
        other => format!("{other:?}"),
    }
}

#[test]
fn keys_of_all_kinds_are_rebased_and_who_is_in_it_goes_along() {
    let Some(mount) = Mount::new() else { return };
    let socket = mount.root().with_file_name("store.sock");
    let connect = || Client::connect(&socket).expect("the socket answers");
    let (mut inside, mut other) = (connect(), connect());
    for command in ["RPUSH l a b", "SADD s a", "HSET h a 1", "SET k 0", "SET t 0"] {
        say(&mut other, command);
    }
    let begin = |client: &mut Client| {
        let id = say(client, "TXN BEGIN UNDOABLE");
        assert_eq!(say(client, &format!("TXN JOIN {id}")), "OK");
        id
    };
    let id = begin(&mut inside);
    for command in ["SADD s inside x", "SREM s a", "HSET h inside 1", "RPUSH q new", "DEL k"] {
        say(&mut inside, command);
    }
    for command in ["SADD s outside x", "HSET h outside 1 a 2", "RPUSH l c"] {
        say(&mut other, command);
    }
    // A client that waits for an element that the transaction adds.
    let mut waiting = connect();
    waiting.send(&[b"BLPOP", b"q", b"0"]).expect("sent");
    let new = match inside.call(&[b"TXN", b"REBASE", id.as_bytes()]).expect("a reply") {
        Reply::Array(reply) => match &reply[..] {
            [Reply::Integer(new), Reply::Array(none), Reply::Integer(0)] if none.is_empty() => *new,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    assert_ne!(new.to_string(), id);
    // The connection is in the transaction, and sees both.
    assert_eq!(say(&mut inside, "SCARD s"), "3");
    assert_eq!(say(&mut inside, "HLEN h"), "3");
    assert_eq!(say(&mut inside, "LLEN l"), "3");
    assert_eq!(say(&mut other, "SCARD s"), "3", "a, outside, x");
    assert_eq!(say(&mut inside, "TXN COMMIT"), "OK");
    assert_eq!(say(&mut other, "SISMEMBER s inside"), "1");
    assert_eq!(say(&mut other, "SISMEMBER s a"), "0");
    assert_eq!(say(&mut other, "SCARD s"), "3", "inside, outside, x");
    assert_eq!(say(&mut other, "HGET h a"), "2");
    assert_eq!(say(&mut other, "EXISTS k"), "0");
    assert!(matches!(waiting.receive(), Ok(Reply::Array(_))), "its element has come");

    // A conflict about a field names its key. A key that would get two types is also a conflict.
    let id = begin(&mut inside);
    for command in ["HSET h a inside", "SET two string", "SET t 1"] {
        say(&mut inside, command);
    }
    for command in ["HSET h a outside", "RPUSH two list"] {
        say(&mut other, command);
    }
    let mut found = |words: &str| -> Vec<String> {
        let words = format!("TXN REBASE {id}{words}");
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        let Reply::Array(reply) = inside.call(&words).expect("a reply") else { panic!("no array") };
        let Reply::Array(conflicts) = &reply[1] else { panic!("{reply:?}") };
        assert_eq!(matches!(reply[0], Reply::Null), !conflicts.is_empty(), "{reply:?}");
        let name = |one: &Reply| match one {
            Reply::Array(parts) => match &parts[..] {
                [Reply::Bulk(name), Reply::Bulk(kind), ..] if &kind[..] == b"key" => text(name),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        conflicts.iter().map(name).collect()
    };
    assert_eq!(found(""), ["0:h"]);
    assert_eq!(found(" OURS 0:h"), ["0:two"]);
    // The transaction is unchanged, and the connections that joined it are still in it.
    say(&mut other, "DEL two");
    assert!(found(" OURS 0:h").is_empty());
    assert_eq!(say(&mut inside, "TXN COMMIT"), "OK");
    assert_eq!(say(&mut other, "HGET h a"), "inside");
    assert_eq!(say(&mut other, "GET two"), "string");
    assert_eq!(say(&mut other, "GET t"), "1");
    assert!(say(&mut other, "TXN REBASE 4711").starts_with("NOTXN"));
    assert!(say(&mut other, &format!("TXN REBASE {id} OURS")).starts_with("NOTXN"));
}

#[test]
fn a_serializable_transaction_goes_back_and_commits_and_is_waited_for_in_files_and_keys_alike() {
    let Some(mount) = Mount::new() else { return };
    let socket = mount.root().with_file_name("store.sock");
    let connect = || Client::connect(&socket).expect("the socket answers");
    let (mut inside, mut other) = (connect(), connect());
    fs::write(mount.path("file"), "old").expect("write");
    let id = say(&mut inside, "TXN BEGIN SER");
    assert_eq!(say(&mut inside, &format!("TXN JOIN {id}")), "OK");
    let view = mount.path(".kvfs/txn").join(&id);
    fs::write(view.join("file"), "1").expect("write");
    assert_eq!(say(&mut inside, "SET k 1"), "OK");
    // Rolls back to a savepoint: the file, the key, and a file that did not exist.
    assert_eq!(say(&mut inside, "TXN SAVEPOINT s"), "OK");
    fs::write(view.join("file"), "changed").expect("write");
    fs::write(view.join("more"), "more").expect("write");
    assert_eq!(say(&mut inside, "SET k changed"), "OK");
    assert_eq!(say(&mut inside, "TXN ROLLBACK s"), "OK");
    assert_eq!(read(view.join("file")).as_deref(), Some("1"));
    assert!(!view.join("more").exists());
    assert_eq!(say(&mut inside, "GET k"), "1");
    // Others read what is committed; a younger transaction does not get the key, and a program
    // waits for the file.
    assert_eq!(read(mount.path("file")).as_deref(), Some("old"));
    assert_eq!(say(&mut other, "GET k"), "nil");
    let younger = say(&mut other, "TXN BEGIN SER TIMEOUT 0.05");
    assert_eq!(say(&mut other, &format!("TXN JOIN {younger}")), "OK");
    let refused = say(&mut other, "SET k 2");
    assert!(refused.starts_with("LOCKED "), "{refused}");
    assert_eq!(say(&mut other, "TXN ABORT"), "OK");
    let mut program = Command::new("sh")
        .args(["-c", "echo ready; echo outside > \"$0\""])
        .arg(mount.path("file"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut said = [0; 6];
    std::io::Read::read_exact(program.stdout.as_mut().expect("a pipe"), &mut said).expect("ready");
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(200) {
        assert!(program.try_wait().expect("its state").is_none(), "it did not wait");
        std::thread::yield_now();
    }
    let before = say(&mut inside, "GET k");
    assert_eq!((before.as_str(), read(view.join("file")).as_deref()), ("1", Some("1")));
    assert_eq!(say(&mut inside, "TXN COMMIT"), "OK");
    assert!(program.wait().expect("it ends").success());
    assert_eq!(read(mount.path("file")).as_deref(), Some("outside\n"), "behind the commit");
    assert_eq!(say(&mut other, "GET k"), "1");
    assert!(!mount.path("more").exists());
    // Without another transaction in between, both are visible.
    let id = say(&mut inside, "TXN BEGIN SER");
    say(&mut inside, &format!("TXN JOIN {id}"));
    fs::write(mount.path(".kvfs/txn").join(&id).join("file"), "both").expect("write");
    assert_eq!(say(&mut inside, "SET k both"), "OK");
    assert_eq!(say(&mut inside, "TXN COMMIT SYNC"), "OK");
    assert_eq!(
        (read(mount.path("file")).as_deref(), say(&mut other, "GET k").as_str()),
        (Some("both"), "both")
    );
}

/// A user who is not root, on root's mount, whose socket was given to him (without that it lets in
/// its owner alone).
struct Unprivileged {
    dir: tempfile::TempDir,
}

impl Unprivileged {
    const USER: u32 = 65534;

    /// `None`, with the reason printed, where there can be none.
    fn new() -> Option<Unprivileged> {
        let skip = |why: &str| -> Option<Unprivileged> {
            eprintln!("SKIPPED: {why}");
            None
        };
        if !rustix::process::geteuid().is_root() {
            return skip("only root becomes another user");
        }
        if let Err(e) = fs::File::open("/dev/fuse") {
            return skip(&format!("no FUSE here: cannot open /dev/fuse: {e}"));
        }
        let user = Unprivileged { dir: tempfile::tempdir().expect("a temporary directory") };
        let give = |path: &Path| {
            std::os::unix::fs::chown(path, Some(Self::USER), Some(Self::USER)).expect("chown")
        };
        give(user.dir.path());
        let works = |program: &str, words: &[&str]| {
            user.command(program).args(words).output().is_ok_and(|o| o.status.success())
        };
        if !works("unshare", &["--user", "--mount", "true"]) {
            return skip(
                "the kernel lets no user but root make name spaces (or setpriv or unshare is missing)",
            );
        }
        if !works(env!("CARGO_BIN_EXE_kvfs"), &["--version"]) {
            return skip("another user cannot run the program where it was built");
        }
        fs::create_dir(user.root()).expect("mkdir");
        let store = user.dir.path().join("store");
        succeeds(kvfs(&["create"]).arg(&store));
        succeeds(kvfs(&["mount", "-o", "allow_other"]).arg(&store).arg(user.root()));
        give(&user.root());
        give(&user.dir.path().join("store.sock"));
        Some(user)
    }

    fn root(&self) -> std::path::PathBuf {
        self.dir.path().join("mnt")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args([
            &format!("--reuid={}", Self::USER),
            &format!("--regid={}", Self::USER),
            "--clear-groups",
            program,
        ]);
        command
            .stdin(Stdio::null())
            .current_dir("/")
            .env("XDG_RUNTIME_DIR", self.dir.path())
            .env("HOME", self.dir.path());
        command.env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
        with_program(&mut command);
        command
    }

    fn kvfs(&self, words: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_kvfs"));
        command.args(words);
        command
    }

    fn sees(&self, name: &str) -> Option<String> {
        let out = self.command("cat").arg(self.root().join(name)).output().expect("it runs");
        out.status.success().then(|| text(&out.stdout))
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        let _ = kvfs(&["umount", "--force"]).arg(self.root()).output();
    }
}

#[test]
fn views_let_in_their_user_and_root_alone() {
    let Some(user) = Unprivileged::new() else { return };
    let root = user.root();
    let read_by_user = |path: &str| user.sees(path);
    fs::write(root.join("secret"), "secret").expect("write");
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("s"));
    succeeds(kvfs(&["clone", "create"]).arg(&root).args(["s", "c"]));
    // From then on only its owner can use it, and other users cannot see what root prepares.
    fs::set_permissions(root.join("secret"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("chmod");
    let roots = succeeds(kvfs(&["txn", "begin"]).arg(&root)).trim().to_string();
    fs::write(root.join(format!(".kvfs/txn/{roots}/draft")), "draft").expect("write");
    let (in_roots, in_snapshot, in_clone) = (
        format!(".kvfs/txn/{roots}/draft"),
        ".kvfs/snapshot/s/secret".to_string(),
        ".kvfs/clone/c/secret".to_string(),
    );
    for path in [&in_roots, &in_snapshot, &in_clone, &format!(".kvfs/user/0/{roots}/draft")] {
        assert!(read(root.join(path)).is_some(), "root reads {path}");
        assert_eq!(read_by_user(path), None, "{path}");
    }
    // The kernel may have cached the way by now; it lets no other user in for that.
    assert_eq!(read_by_user(&in_roots), None);
    // The user can read and write his own files, and so can root.
    let own = succeeds(user.kvfs(&["txn", "begin"]).arg(&root)).trim().to_string();
    let path = root.join(format!(".kvfs/txn/{own}"));
    succeeds(user.command("sh").args(["-c", &format!("echo mine > {}/mine", path.display())]));
    assert_eq!(read_by_user(&format!(".kvfs/txn/{own}/mine")).as_deref(), Some("mine\n"));
    assert_eq!(read(path.join("mine")).as_deref(), Some("mine\n"));
    let owner =
        std::os::unix::fs::MetadataExt::uid(&fs::metadata(path.join("mine")).expect("stat"));
    assert_eq!(owner, Unprivileged::USER);
    // The view's own root has the mode that it has.
    assert_eq!(
        std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).expect("stat")),
        std::os::unix::fs::MetadataExt::mode(&fs::metadata(&root).expect("stat"))
    );
    let mut listed: Vec<_> = fs::read_dir(root.join(".kvfs/txn"))
        .expect("list")
        .map(|e| e.expect("entry").file_name())
        .collect();
    listed.sort();
    assert_eq!(listed, [roots.as_str(), own.as_str()]);
    succeeds(user.kvfs(&["txn", "commit"]).arg(&root).arg(&own));
    assert!(!path.exists() && fs::symlink_metadata(&path).is_err());
    assert_eq!(user.sees("mine").as_deref(), Some("mine\n"));
    // Unless the mount is open.
    succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(&roots));
    succeeds(kvfs(&["umount"]).arg(&root));
    succeeds(
        kvfs(&["mount", "-o", "allow_other,open_views"])
            .arg(user.dir.path().join("store"))
            .arg(&root),
    );
    let roots = succeeds(kvfs(&["txn", "begin"]).arg(&root)).trim().to_string();
    fs::write(root.join(format!(".kvfs/txn/{roots}/draft")), "draft").expect("write");
    assert_eq!(read_by_user(&in_snapshot).as_deref(), Some("secret"));
    assert_eq!(read_by_user(&format!(".kvfs/txn/{roots}/draft")).as_deref(), Some("draft"));
    succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(&roots));
}

#[test]
fn users_without_any_privilege_run_programs_in_transactions() {
    let Some(user) = Unprivileged::new() else { return };
    let run = |options: &[&str], script: &str| {
        let mut command = user.kvfs(&["run"]);
        command.args(options).arg(user.root()).args(["--", "sh", "-c", script]);
        command
    };
    // The program has the same identity and paths, and no additional privileges.
    let script =
        "set -e; cd $KVFS_MOUNT; id -u; id -g; echo new > file; kvfs kv put . k v; kvfs kv get . k";
    assert_eq!(succeeds(&mut run(&[], script)), "65534\n65534\nv");
    assert_eq!(user.sees("file").as_deref(), Some("new\n"));
    assert_eq!(succeeds(user.kvfs(&["kv", "get"]).arg(user.root()).arg("k")), "v");
    let (code, ..) = ends(&mut run(
        &[],
        "rm $KVFS_MOUNT/file; kvfs kv put $KVFS_MOUNT k w; test ! -e $KVFS_MOUNT/file && exit 3",
    ));
    assert_eq!(code, Some(3));
    assert_eq!(user.sees("file").as_deref(), Some("new\n"), "nothing was changed");
    assert_eq!(succeeds(user.kvfs(&["kv", "get"]).arg(user.root()).arg("k")), "v");
    assert_eq!(succeeds(user.kvfs(&["txn", "list"]).arg(user.root())), "");
}

#[test]
fn users_without_any_privilege_run_programs_in_layers() {
    let Some(user) = Unprivileged::new() else { return };
    let run = |script: &str| {
        let mut command = user.kvfs(&["run", "--layer", "--scratch"]);
        command.arg(user.dir.path()).arg(user.root()).args(["--", "sh", "-c"]);
        command.arg(format!("cd $KVFS_MOUNT || exit 99; {script}"));
        command
    };
    let script = "set -e; id -u; echo new > file; mkdir d; echo x > d/x; test ! -e .kvfs";
    let (code, out, said) = ends(&mut run(script));
    if code == Some(125) && said.contains("cannot mount an overlay") {
        eprintln!("SKIPPED: users mount no overlays here: {said}");
        return;
    }
    assert_eq!((code, out.as_str()), (Some(0), "65534\n"), "{said}");
    assert_eq!(user.sees("d/x").as_deref(), Some("x\n"));
    let owner = |name: &str| {
        use std::os::unix::fs::MetadataExt;
        let file = fs::metadata(user.root().join(name)).expect("metadata");
        (file.uid(), file.ino(), file.mode() & 0o777)
    };
    let (_, inode, _) = owner("file");
    let script = "set -e; echo more >> file; chmod 640 file; rm -r d; mkdir d; echo y > d/y";
    succeeds(&mut run(script));
    assert_eq!(user.sees("file").as_deref(), Some("new\nmore\n"));
    assert_eq!(owner("file"), (65534, inode, 0o640));
    assert_eq!((user.sees("d/x"), user.sees("d/y").as_deref()), (None, Some("y\n")));
    // The directory is closed in the transaction, too, until its mode is set last.
    succeeds(&mut run("set -e; mkdir w; echo x > w/x; echo y > w/y; chmod 555 w"));
    succeeds(&mut run("set -e; chmod 755 w; rm w/x; echo z > w/z; echo y >> w/y; chmod 555 w"));
    assert_eq!((user.sees("w/x"), user.sees("w/z").as_deref()), (None, Some("z\n")));
    assert_eq!((user.sees("w/y").as_deref(), owner("w").2), (Some("y\ny\n"), 0o555));
    // Without handles of files the layer does not keep the names of a file together.
    succeeds(&mut run("set -e; echo b > b; ln b b2; echo a > a; echo c > c; ln c c2"));
    succeeds(&mut run("set -e; mv a b; echo more >> c; chmod 600 c; touch c2"));
    let has = |name: &str| user.sees(name);
    assert_eq!(
        (has("a"), has("b").as_deref(), has("b2").as_deref()),
        (None, Some("a\n"), Some("b\n"))
    );
    assert_eq!((has("c").as_deref(), has("c2").as_deref()), (Some("c\nmore\n"), Some("c\n")));
    let (code, ..) = ends(&mut run("rm file; exit 3"));
    assert_eq!(code, Some(3));
    assert_eq!(user.sees("file").as_deref(), Some("new\nmore\n"), "nothing was changed");
    let left = fs::read_dir(user.dir.path()).expect("a directory").flatten();
    let mut names = left.map(|entry| text(entry.file_name().as_encoded_bytes()));
    assert!(
        !names.any(|name| name.starts_with(".kvfs-layer-")),
        "its scratch directories are gone"
    );
}

#[test]
fn the_loser_of_a_deadlock_is_told_to_run_again() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path("f"), "old").expect("write");
    let root = mount.root();
    let mut older = Client::connect(&root.with_file_name("store.sock")).expect("connected");
    for code in [0, 1] {
        let Ok(Reply::Integer(id)) = older.call(&[b"TXN", b"BEGIN", b"SER"]) else {
            panic!("begun")
        };
        let script = format!("cd $KVFS_MOUNT; cat f; read go; echo mine > g; exit {code}");
        let mut younger = run(&root, &["--isolation", "ser"], &script);
        let mut younger = younger
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut seen = [0; 3];
        std::io::Read::read_exact(younger.stdout.as_mut().expect("piped"), &mut seen)
            .expect("it has read the file");
        // The older one takes what the younger has locked.
        let path = mount.path(format!(".kvfs/txn/{id}/f"));
        let taken = fs::File::options().write(true).open(path).expect("open");
        { &taken }.write_all(b"new").expect("write");
        taken.sync_all().expect("synced");
        drop(taken);
        younger.stdin.take().expect("piped").write_all(b"\n").expect("told");
        let ended = younger.wait_with_output().expect("waited");
        assert_eq!(ended.status.code(), Some(75), "exit {code}: {}", text(&ended.stderr));
        assert!(text(&ended.stderr).contains("older transaction"), "{}", text(&ended.stderr));
        assert!(!mount.path("g").exists(), "nothing was changed");
        older.call(&[b"TXN", b"ABORT", id.to_string().as_bytes()]).expect("aborted");
    }
}

#[test]
fn a_durable_transaction_that_was_kept_outlives_a_daemon_that_is_killed() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    let script = "cd $KVFS_MOUNT; echo small > small; head -c 300000 /dev/zero | tr '\\0' x > large; kvfs kv put . k v";
    let stat: serde_json::Value =
        serde_json::from_str(&succeeds(kvfs(&["--json", "stat"]).arg(&root))).expect("JSON");
    let pid = stat["daemon"]["pid"].as_i64().expect("a number");
    let id = succeeds(&mut run(&root, &["--durable", "--keep"], script)).trim().to_string();
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill").success());
    let deadline = Instant::now() + Duration::from_secs(30);
    while read(format!("/proc/{pid}/stat")).is_some_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < deadline, "it ends");
        std::thread::sleep(Duration::from_millis(5));
    }
    succeeds(kvfs(&["mount"]).arg(root.with_file_name("store")).arg(&root));
    succeeds(kvfs(&["txn", "commit"]).arg(&root).arg(&id));
    assert_eq!(read(mount.path("small")).as_deref(), Some("small\n"));
    assert_eq!(fs::read(mount.path("large")).expect("read"), vec![b'x'; 300_000]);
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&root).arg("k")), "v");
}
