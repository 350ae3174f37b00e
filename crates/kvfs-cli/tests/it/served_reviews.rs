//! Tests that the changes of a transaction on a server are shown before its commit, in the same way
//! as for a store that is mounted locally.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};

use crate::asked::Asked;
use crate::served_place::{Place, kvfs, said, succeeds};

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Changes of all kinds, made in the directory of a mount.
const SCRIPT: &str = "
    echo more >>a/file1; chmod 600 a/file2; rm a/file3; mv a/file4 a/moved
    mkdir -p made/deep; echo new >made/deep/file; ln -s ../a made/link
    echo changed >a/b/text; rm a/b/large; ln a/file5 a/hard";

#[track_caller]
fn runs(place: &Place, script: &str) {
    let mut shell = Command::new("sh");
    succeeds(shell.args(["-ec", script]).current_dir(place.path("one")));
}

#[test]
fn a_transaction_over_the_wire_shows_what_its_commit_then_changes() {
    let Some(place) = Place::new() else { return };
    succeeds(kvfs().args(["snapshot", "create"]).arg(place.path("store")).arg("before"));
    let serving = place.serve();
    succeeds(&mut place.mount("one"));
    let diff =
        |options: &[&str]| text(&succeeds(kvfs().arg("diff").args(options).arg(place.path("one"))));
    assert_eq!(diff(&[]), "nothing is changed\n");
    runs(&place, SCRIPT);
    let (shown, all) = (diff(&[]), diff(&["--all"]));
    for line in ["M  a/file1", "M  a/file2", "D  a/file3", "a/moved", "A  made", "D  a/b/large"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(all.contains("made/deep/file"), "{all}");
    // The contents of both sides.
    let patch = diff(&["--patch"]);
    for line in ["-1 1 1 1 1 1 1 ", "+1 1 1 1 1 1 1 more", "+new", "deleted file mode 100644"] {
        assert!(patch.contains(line), "{line}: {patch}");
    }
    let json: serde_json::Value = serde_json::from_str(&diff(&["--json"])).expect("JSON");
    assert!(json["files"].as_array().is_some_and(|all| all.len() > 6), "{json}");
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    serving.ends_when_asked();
    let diff = |options: &[&str]| {
        let mut command = kvfs();
        command.arg("diff").args(options).arg(place.path("store")).arg("before");
        text(&succeeds(&mut command))
    };
    assert_eq!((diff(&[]), diff(&["--all"])), (shown, all));
}

#[test]
fn what_is_no_transaction_of_a_server_is_compared_with_a_snapshot_alone() {
    let Some(place) = Place::new() else { return };
    succeeds(kvfs().args(["snapshot", "create"]).arg(place.path("store")).arg("monday"));
    let output = kvfs().arg("diff").arg(place.path("store")).output().expect("kvfs runs");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let serving = place.serve();
    let mut mount = kvfs();
    mount.arg("mount").arg(place.address()).arg(place.path("one"));
    succeeds(mount.args(["--snapshot", "monday"]));
    let output = kvfs().arg("diff").arg(place.path("one")).output().expect("kvfs runs");
    assert!(!output.status.success());
    assert!(said(&output).contains("no transaction of a server"), "{}", said(&output));
    succeeds(kvfs().arg("umount").arg(place.path("one")));
    serving.ends_when_asked();
}

/// `kvfs run --ask` of a script in a transaction of the server, on a terminal of its own, with
/// these answers: what it shows, and its exit code.
fn asked(place: &Place, script: &str, answers: &[&str]) -> (String, i32) {
    asked_with(place, "--ask", script, answers)
}

fn asked_with(place: &Place, options: &str, script: &str, answers: &[&str]) -> (String, i32) {
    let tmp = place.path("tmp");
    std::fs::create_dir_all(&tmp).expect("mkdir");
    let program = format!(
        "env TMPDIR={} {} run {options} {} -- sh -ec '{script}'",
        tmp.display(),
        env!("CARGO_BIN_EXE_kvfs"),
        place.address()
    );
    let mut asked = Asked::start(&program).expect("script(1)");
    asked.answers(answers);
    let ended = asked.ends();
    assert_eq!(std::fs::read_dir(&tmp).expect("a directory").count(), 0, "nothing is left mounted");
    ended
}

#[test]
fn a_run_over_the_wire_commits_what_was_shown_and_agreed_to() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let (shown, _) = asked(&place, "echo hello >refused; rm -r a", &["n"]);
    assert!(shown.contains("A  refused") && shown.contains("Commit? [y]es"), "{shown}");
    assert!(shown.contains("nothing was changed"), "{shown}");
    let (shown, code) = asked(&place, "echo hello >taken; echo more >>a/file1", &["d", "y"]);
    assert_eq!(code, 0, "{shown}");
    for line in ["+hello", "-1 1 1 1 1 1 1 ", "+1 1 1 1 1 1 1 more"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    serving.ends_when_asked();
    place.has("/refused", None);
    place.has("/taken", Some("hello\n"));
    place.has("/a/file1", Some("1 1 1 1 1 1 1 more\n"));
}

#[test]
fn who_is_asked_over_the_wire_takes_some_and_leaves_others() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let script =
        "rm -r a/b; rm a/file3; echo more >>a/file4; echo 1 >added; mkdir new; echo 1 >new/1";
    // a/b, a/file3, a/file4, added, new: no, yes, no, no, yes.
    let answers = ["s", "n", "y", "n", "n", "y", "y"];
    let (shown, code) = asked(&place, script, &answers);
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("Take it?"), "{shown}");
    // Answers twice, and then takes no change.
    let script = "rm -r a/b; echo 1 >third; echo 2 >fourth";
    let (shown, _) = asked(&place, script, &["s", "n", "y", "y", "s", "n", "y", "n"]);
    assert!(shown.contains("nothing was changed"), "{shown}");
    serving.ends_when_asked();
    place.has("/a/b/large", Some(&"\u{7}".repeat(1 << 20)));
    place.has("/a/file3", None);
    place.has("/a/file4", Some(&"4 ".repeat(28)));
    place.has("/added", None);
    place.has("/new/1", Some("1\n"));
    place.has("/third", None);
}

#[test]
fn a_program_does_not_commit_what_a_person_is_asked_about() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let kvfs = env!("CARGO_BIN_EXE_kvfs");
    let script = format!("echo 1 >file; ! {kvfs} commit $KVFS_MOUNT; {kvfs} diff $KVFS_MOUNT");
    let (shown, code) = asked(&place, &script, &["n"]);
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("asks whether to commit"), "{shown}");
    serving.ends_when_asked();
    place.has("/file", None);
}

#[test]
fn a_program_does_not_find_the_key_of_what_a_person_is_asked_about() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    // The record of its mount. Those of other mounts come and go.
    let script = "echo 1 >file; grep -shF $KVFS_MOUNT /run/kvfs/*.json || true";
    let (shown, _) = asked_with(&place, "--ask --durable", script, &["n"]);
    assert!(shown.contains("\"key\":null"), "{shown}");
    serving.ends_when_asked();
    place.has("/file", None);
}

/// Sends a request to the daemon of the mount on `one`, as commands do.
fn requested(place: &Place, request: &str) -> serde_json::Value {
    let at = place.path("one").display().to_string();
    let all = std::fs::read_dir("/run/kvfs").expect("records");
    let mut texts = all.flatten().filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let own = texts.find(|text| text.contains(&at)).expect("that of the mount");
    let record: serde_json::Value = serde_json::from_str(&own).expect("JSON");
    let socket = format!("/run/kvfs/{}.sock", record["pid"]);
    let mut stream = UnixStream::connect(socket).expect("the daemon listens");
    writeln!(stream, "{request}").expect("asked");
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("answered");
    serde_json::from_str(&answer).expect("JSON")
}

#[test]
fn files_end_once_the_server_has_taken_changes_out_past_them_and_the_rest_can_be_committed() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    succeeds(&mut place.mount("one"));
    runs(&place, "echo new >made; rm a/file3; echo more >>a/file4; ls a >/dev/null; cat made");
    let file = std::fs::File::open(place.path("one/a/file4")).expect("it is there");
    let digits = |word: &str| word.bytes().map(|b| format!("{b:02x}")).collect::<String>();
    let words = ["take-out", "remove", "made", "restore", "a/file3"].map(digits).join(" ");
    let answer = requested(&place, &format!("review {words}"));
    assert_eq!(answer["result"], "reviewed", "{answer}");
    // Neither the cache of the daemon nor that of the kernel shows removed data.
    let of_stale = Some(rustix::io::Errno::STALE.raw_os_error());
    let stale = |e: std::io::Error| e.raw_os_error() == of_stale;
    assert!(stale(std::fs::read(place.path("one/made")).expect_err("it was taken out")));
    assert!(stale(std::fs::metadata(place.path("one/a/file4")).expect_err("stat")));
    let list = std::fs::read_dir(place.path("one/a")).and_then(|mut all| all.next().transpose());
    assert!(stale(list.map(drop).expect_err("a list")));
    let mut content = String::new();
    assert!(stale((&file).read_to_string(&mut content).expect_err("an open file")));
    assert!(stale(std::fs::write(place.path("one/a/other"), "x").expect_err("a new file")));
    // The rest of the transaction is shown, and committed.
    let diff = text(&succeeds(kvfs().arg("diff").arg(place.path("one"))));
    assert!(diff.contains("M  a/file4") && !diff.contains("made"), "{diff}");
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    serving.ends_when_asked();
    place.has("/made", None);
    place.has("/a/file3", Some(&"3 ".repeat(21)));
    place.has("/a/file4", Some(&format!("{}more\n", "4 ".repeat(28))));
}

#[test]
fn directories_around_what_is_left_out_over_the_wire_keep_their_times() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let script = "rm a/file3; echo 1 >a/added; mkdir -p new/deep; echo 1 >new/deep/1; \
                  touch -d @1000000000 a new/deep new .; echo 1 >kept; touch -d @1000000000 .";
    // a/added, a/file3, kept, new: all but `kept` are left out.
    let (shown, code) = asked(&place, script, &["s", "n", "n", "y", "n", "y"]);
    assert_eq!(code, 0, "{shown}");
    serving.ends_when_asked();
    place.has("/kept", Some("1\n"));
    place.has("/a/added", None);
    place.has("/a/file3", Some(&"3 ".repeat(21)));
    place.has("/new/deep/1", None);
    succeeds(kvfs().arg("mount").arg(place.path("store")).arg(place.path("local")));
    for name in ["local/a", "local"] {
        let time = std::fs::metadata(place.path(name)).and_then(|of| of.modified()).expect("stat");
        let seconds = time.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
        assert_eq!(seconds, 1_000_000_000, "{name}");
    }
}
