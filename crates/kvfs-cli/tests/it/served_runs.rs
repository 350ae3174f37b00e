//! Tests of `kvfs run` in transactions on a server. A program works in one, which is committed
//! there if it succeeds, and leaves no changes if it fails.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use crate::served_place::{Place, TRY_AGAIN, awaits, kvfs, said, succeeds};

/// `kvfs run` of a script. Directories for mounts are made in `tmp`.
fn run(place: &Place, options: &[&str], script: &str) -> Command {
    let tmp = place.path("tmp");
    std::fs::create_dir_all(&tmp).expect("mkdir");
    let mut command = kvfs();
    command.env("TMPDIR", tmp).env("KVFS", env!("CARGO_BIN_EXE_kvfs"));
    command.env("ADDRESS", place.address()).env("OUT", place.path("out"));
    command.arg("run").args(options).arg(place.address()).args(["--", "sh", "-ec", script]);
    command
}

#[track_caller]
fn ran(mut command: Command, code: i32) -> Output {
    let output = command.output().expect("kvfs runs");
    assert_eq!(output.status.code(), Some(code), "{}", said(&output));
    output
}

/// The existing directories of runs.
fn places(place: &Place) -> Vec<PathBuf> {
    let all = std::fs::read_dir(place.path("tmp")).expect("a directory");
    all.map(|entry| entry.expect("an entry").path()).collect()
}

/// Ends a run that was kept.
#[track_caller]
fn end(verb: &str, dir: &PathBuf) {
    let output = kvfs().arg(verb).arg(dir).output().expect("kvfs runs");
    assert!(output.status.success(), "{}", said(&output));
    let _ = std::fs::remove_dir(dir);
}

#[test]
fn what_a_program_does_is_in_the_store_when_it_succeeds_and_never_was_when_it_fails() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let script = "test \"$(pwd)\" = \"$KVFS_MOUNT\"
        grep -q '1 1' a/file1 && mkdir made && echo done >made/file && rm -r a/b";
    ran(run(&place, &[], script), 0);
    let output = ran(run(&place, &[], "test -e made/file; echo failed >failed; exit 3"), 3);
    assert!(said(&output).contains("nothing was changed"), "{}", said(&output));
    ran(run(&place, &["--abort"], "echo rehearsed >rehearsed"), 0);
    ran(run(&place, &["--commit", "--durable"], "echo all the same >committed; exit 4"), 4);
    ran(run(&place, &[], "kill -TERM $$"), 128 + 15);
    assert!(places(&place).is_empty(), "nothing is left mounted");
    let output = kvfs().args(["run", &place.address(), "--", "no-such-program"]).output();
    assert_eq!(output.expect("kvfs runs").status.code(), Some(127));
    serving.ends_when_asked();
    place.has("/made/file", Some("done\n"));
    place.has("/a/b/large", None);
    place.has("/failed", None);
    place.has("/rehearsed", None);
    place.has("/committed", Some("all the same\n"));
}

#[test]
fn of_two_runs_that_write_one_file_the_second_ends_with_75_and_what_it_did_is_kept() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let script = "echo outer >a/file1; echo outer >outer
        \"$KVFS\" run \"$ADDRESS\" -- sh -c 'echo inner >a/file1'";
    let output = ran(run(&place, &["--no-keep"], script), TRY_AGAIN);
    assert!(said(&output).contains("/a/file1"), "{}", said(&output));
    assert!(places(&place).is_empty());
    let output = ran(run(&place, &[], script), TRY_AGAIN);
    let kept = places(&place);
    assert!(said(&output).contains(&format!("kvfs abort {}", kept[0].display())));
    let content = std::fs::read_to_string(kept[0].join("a/file1")).expect("it is kept");
    assert_eq!((kept.len(), content.as_str()), (1, "outer\n"));
    end("abort", &kept[0]);
    serving.ends_when_asked();
    place.has("/a/file1", Some("inner\n"));
    place.has("/outer", None);
}

#[test]
fn what_is_kept_is_looked_at_and_committed_later() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let output = ran(run(&place, &["--keep"], "echo kept >kept"), 0);
    let kept = places(&place);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(told.trim_end(), kept[0].to_str().expect("text"));
    assert_eq!(std::fs::read_to_string(kept[0].join("kept")).expect("it is there"), "kept\n");
    end("commit", &kept[0]);
    serving.ends_when_asked();
    place.has("/kept", Some("kept\n"));
}

/// A program that is killed when this is dropped, whose number it has written.
struct Killed(Child, PathBuf);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let number = std::fs::read_to_string(&self.1).unwrap_or_default();
        if let Some(pid) = number.trim().parse().ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

#[test]
fn a_run_that_is_killed_leaves_nothing() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let script = "echo lost >lost; echo $$ >\"$OUT.new\"; mv \"$OUT.new\" \"$OUT\"; exec sleep 600";
    let mut command = run(&place, &[], script);
    let run = command.stderr(Stdio::null()).spawn().expect("kvfs runs");
    let mut run = Killed(run, place.path("out"));
    awaits("the program runs", || place.path("out").exists());
    assert_eq!(places(&place).len(), 1);
    run.0.kill().expect("it is there");
    // The program is still in it.
    awaits("the mount is gone", || places(&place).is_empty());
    drop(run);
    serving.ends_when_asked();
    place.has("/lost", None);
}

#[test]
fn a_program_goes_on_over_a_server_that_is_killed_where_its_transaction_is_durable() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let script = "echo first >first; sync first; touch \"$OUT\"
        while test -e \"$OUT\"; do sleep 0.05; done
        cat a/file9 >/dev/null; echo second >second";
    let run = run(&place, &["--durable"], script).spawn().expect("kvfs runs");
    awaits("the program runs", || place.path("out").exists());
    drop(serving);
    std::fs::remove_file(place.path("out")).expect("it is there");
    let serving = place.serve();
    let output = run.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", said(&output));
    serving.ends_when_asked();
    place.has("/first", Some("first\n"));
    place.has("/second", Some("second\n"));
}

#[test]
fn a_durable_run_tells_its_key_before_it_is_killed_and_is_gone_on_with() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let script = "echo kept >kept; sync kept; echo $$ >\"$OUT.new\"; mv \"$OUT.new\" \"$OUT\"
        exec sleep 600";
    let told = std::fs::File::create(place.path("told")).expect("made");
    let child = run(&place, &["--durable"], script).stderr(told).spawn().expect("kvfs runs");
    let mut killed = Killed(child, place.path("out"));
    awaits("the program runs", || place.path("out").exists());
    killed.0.kill().expect("it is there");
    awaits("the mount is gone", || places(&place).is_empty());
    drop(killed);
    let told = std::fs::read_to_string(place.path("told")).expect("text");
    let how = format!("kvfs mount {} DIR --txn --key ", place.address());
    let (_, key) = told.split_once(&how).unwrap_or_else(|| panic!("{told}"));
    let key: String = key.chars().take_while(char::is_ascii_hexdigit).collect();
    succeeds(place.mount("one").args(["--key", &key]));
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    // The output of --json is for programs.
    let output = ran(run(&place, &["--json", "--durable", "--abort"], "true"), 0);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    let told: serde_json::Value = serde_json::from_str(line.trim()).expect("JSON");
    assert_eq!(told["key"].as_str().map(str::len), Some(32), "{line}");
    serving.ends_when_asked();
    place.has("/kept", Some("kept\n"));
}

#[test]
fn what_takes_a_store_that_is_mounted_here_is_refused() {
    let Some(place) = Place::new() else { return };
    let output = ran(run(&place, &[], "true"), 125);
    assert!(said(&output).contains("kvfs serve STORE"), "{}", said(&output));
    let _serving = place.serve();
    for option in ["--rebase", "--chroot", "--no-check", "--label=x", "-i=ser"] {
        let output = ran(run(&place, &[option], "true"), 125);
        assert!(said(&output).contains("that is mounted here"), "{option}: {}", said(&output));
    }
    assert!(places(&place).is_empty());
}

#[test]
fn the_example_of_a_guest_commits_what_its_command_has_written_when_that_succeeds() {
    let Some(place) = Place::new() else { return };
    let may = Command::new("unshare").args(["--mount", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no mount name spaces here");
        return;
    }
    let root = place.path("root");
    std::fs::create_dir_all(&root).expect("mkdir");
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_kvfs")).parent().expect("a directory");
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    // The guest sees all files of this machine except those at /mnt.
    let guest = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", "mount --rbind / \"$0\"; exec \"$@\""]).arg(&root);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/shell/guest.sh"));
        command.arg(place.path("store")).arg(&root).args(["sh", "-ec", script]);
        command.env("PATH", &path).stdin(Stdio::null());
        command
    };
    ran(guest("test -e /mnt/a/file3; echo from the guest >/mnt/guest; rm /mnt/a/file4"), 0);
    place.has("/guest", Some("from the guest\n"));
    place.has("/a/file4", None);
    ran(guest("echo lost >/mnt/guest; exit 3"), 3);
    place.has("/guest", Some("from the guest\n"));
}

#[test]
fn what_needs_the_store_is_refused_with_that_reason() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let address = place.address();
    let why = "this is done where the store is";
    for words in [
        &["merge", &address, "trial"][..],
        &["rebase", &address, "trial"],
        &["explore", "2", &address, "--", "true"],
        &["txn", "list", &address],
        &["undo", &address],
    ] {
        let output = kvfs().args(words).output().expect("kvfs runs");
        assert!(!output.status.success(), "{words:?}");
        assert!(said(&output).contains(why), "{words:?}: {}", said(&output));
    }
    // A transaction on a server has none within it.
    for command in ["run . -- true", "explore 2 . -- true", "txn list ."] {
        let output = run(&place, &[], &format!("\"$KVFS\" {command}")).output();
        let output = output.expect("kvfs runs");
        assert!(!output.status.success(), "{command}");
        assert!(said(&output).contains(why), "{command}: {}", said(&output));
    }
    serving.ends_when_asked();
}
