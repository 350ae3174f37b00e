//! Tests of `kvfs top`: on a terminal, as text and as JSON.

use crate::place;
use std::fs;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::place::{Place, fails, kvfs, succeeds};
use serde_json::Value;

#[test]
fn once_is_one_screen_of_text() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    fs::write(place.mnt().join("file"), vec![b'x'; 1 << 20]).expect("written");
    succeeds(kvfs(&["txn", "begin", "--label", "spring"]).arg(place.mnt()));
    succeeds(kvfs(&["kv", "put"]).arg(place.mnt()).args(["a", "b"]));
    for words in [&["top", "--once", "-i", "0.1"][..], &["top", "--interval", "0.1"]] {
        let text = succeeds(kvfs(words).arg(place.mnt()).stdin(Stdio::null()));
        for part in
            ["KVFS ", " in use; memory ", "requests/s", "Zones: ", "write ", "SET ", "spring"]
        {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "plain text");
    }
}

#[test]
fn json_has_what_was_done_in_between() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let mut top = kvfs(&["top", "--json", "--interval", "1"]);
    let top = top.arg(place.mnt()).stdout(Stdio::piped()).spawn().expect("kvfs runs");
    let until = Instant::now() + Duration::from_secs(1);
    // Some of these fall between the two samples, whenever they are taken.
    let mut done = 0;
    while Instant::now() < until || done < 100 {
        fs::write(place.mnt().join(format!("file-{}", done % 50)), "x").expect("written");
        done += 1;
    }
    let output = top.wait_with_output().expect("it ends");
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(said["seconds"].as_f64() >= Some(1.0), "{said}");
    assert!(said["per_second"]["requests"].as_f64() > Some(0.0), "{said}");
    let operations = said["operations"].as_array().expect("a list");
    let write = operations.iter().find(|o| o["name"] == "write").expect("writes");
    assert!(write["mean_micros"].as_f64() > Some(0.0), "{write}");
    for name in ["store", "clients", "zones", "transactions", "mount_point"] {
        assert!(!said[name].is_null(), "{name}");
    }
}

/// `kvfs top` on a terminal of script(1) with this many columns, with its input and output.
fn on_a_terminal(place: &Place, columns: u32) -> (Child, ChildStdin, ChildStdout) {
    let program = env!("CARGO_BIN_EXE_kvfs");
    let top = format!("{program} top -i 0.1 {}", place.mnt().display());
    let command = format!("stty rows 30 cols {columns}; {top}");
    let mut script = Command::new("script");
    script.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm-256color");
    let mut script =
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script runs");
    let (to, from) = (script.stdin.take().expect("a pipe"), script.stdout.take().expect("a pipe"));
    (script, to, from)
}

/// On a terminal it draws until it is stopped.
#[test]
fn on_a_terminal_it_is_drawn_until_it_is_ended_by_a_key() {
    let Some(place) = Place::new() else { return };
    if Command::new("script").arg("--version").output().is_err() {
        return eprintln!("SKIPPED: there is no script(1) here");
    }
    place.mounted();
    let (mut script, mut to, mut from) = on_a_terminal(&place, 100);
    let mut seen = Vec::new();
    let mut piece = [0; 4096];
    let has = |seen: &[u8], text: &str| seen.windows(text.len()).any(|w| w == text.as_bytes());
    while !has(&seen, "Operations") {
        let read = from.read(&mut piece).expect("it draws");
        assert!(read > 0, "it has ended: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..read]);
    }
    to.write_all(b" ").expect("a key");
    while !has(&seen, "stopped") {
        let read = from.read(&mut piece).expect("it draws");
        assert!(read > 0, "it has ended: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..read]);
    }
    to.write_all(b"q").expect("a key");
    from.read_to_end(&mut seen).expect("the rest");
    assert!(script.wait().expect("it ends").success());
    assert!(has(&seen, "\u{1b}[?1049h") && has(&seen, "\u{1b}[?1049l"), "the screen is given back");
}

#[test]
fn wrong_input_is_refused_with_a_sentence() {
    let Some(place) = Place::new() else { return };
    let said = fails(3, kvfs(&["top", "--once"]).arg(place.mnt()));
    assert!(said.contains("no store with a socket is mounted"), "{said}");
    place.mounted();
    for wrong in ["0", "-1", "x", "nan", "3601"] {
        let said = fails(2, kvfs(&["top", "--interval", wrong]).arg(place.mnt()));
        assert!(said.contains("seconds") || said.contains("unexpected argument"), "{said}");
    }
    let view = place.mnt().join(".kvfs/snapshot");
    assert!(fails(2, kvfs(&["top", "--once"]).arg(view)).contains("a list of views"));
}

#[test]
fn on_a_terminal_it_shows_that_the_daemon_does_not_answer_and_still_hears_keys() {
    let Some(place) = Place::new() else { return };
    if Command::new("script").arg("--version").output().is_err() {
        return eprintln!("SKIPPED: there is no script(1) here");
    }
    let pid = place.mounted();
    let (mut script, mut to, mut from) = on_a_terminal(&place, 200);
    let mut seen = Vec::new();
    let mut shows = |text: &str| {
        let mut piece = [0; 4096];
        while !seen.windows(text.len()).any(|w| w == text.as_bytes()) {
            let read = from.read(&mut piece).expect("it draws");
            assert!(read > 0, "it has ended: {}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&piece[..read]);
        }
    };
    shows("Operations");
    place::kill(pid, rustix::process::Signal::STOP);
    shows("stopped");
    to.write_all(b"q").expect("a key");
    let ended = script.wait();
    place::kill(pid, rustix::process::Signal::CONT);
    assert!(ended.expect("it ends").success());
}

#[test]
fn who_looks_does_not_see_himself() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let stat = || -> Value {
        let said = succeeds(kvfs(&["--json", "stat"]).arg(place.mnt()).stdin(Stdio::null()));
        serde_json::from_str(&said).expect("JSON")
    };
    let requests = |stat: &Value| -> u64 {
        stat["requests"].as_object().expect("an object").values().filter_map(Value::as_u64).sum()
    };
    let first = requests(&stat());
    for _ in 0..4 {
        stat();
    }
    let last = stat();
    assert!(last["transport"]["round_trip_micros"].as_f64() > Some(0.0), "{last}");
    // The kernel may ask for the root's attributes once more.
    assert!(requests(&last) <= first + 1, "{first} requests, and {last}");
}

#[test]
fn what_was_written_for_a_byte_is_said_of_more_than_a_few() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let shown = |words: &[&str]| succeeds(kvfs(words).arg(place.mnt()).stdin(Stdio::null()));
    let top = ["top", "--once", "-i", "0.1"];
    succeeds(kvfs(&["kv", "put"]).arg(place.mnt()).args(["k", "v"]));
    assert!(!shown(&top).contains("written for each byte"));
    assert!(!shown(&["stat"]).contains("times what was committed"));
    let file = fs::File::create(place.mnt().join("file")).expect("a file");
    (&file).write_all(&vec![7; 3 << 20]).expect("written");
    file.sync_all().expect("synced");
    assert!(shown(&top).contains("written for each byte"));
    assert!(shown(&["stat"]).contains("times what was committed"));
}

#[test]
fn stat_says_what_each_job_has_written() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let shown = |words: &[&str]| succeeds(kvfs(words).arg(place.mnt()).stdin(Stdio::null()));
    let written = || {
        let all: Value = serde_json::from_str(&shown(&["stat", "--json"])).expect("JSON");
        let of = |job: &str| {
            let bytes = all["written_by_job"][job].as_u64();
            bytes.unwrap_or_else(|| panic!("{job} in {}", all["written_by_job"]))
        };
        assert_eq!(of("defragmentation"), 0);
        // Merges of a store that has become quiet are counted by themselves.
        [of("commits"), of("flushes"), of("merges") + of("quiet_merges")]
    };
    let file = fs::File::create(place.mnt().join("file")).expect("a file");
    (&file).write_all(&vec![7; 3 << 20]).expect("written");
    file.sync_all().expect("synced");
    let [commits, _, merges] = written();
    assert!(commits >= 3 << 20, "{commits} bytes of commits");
    // Two runs that each have a newer value of one key, and then one run.
    for (value, snapshot) in [("old", "one"), ("new", "two")] {
        succeeds(kvfs(&["kv", "put"]).arg(place.mnt()).args(["k", value]));
        succeeds(kvfs(&["snapshot", "create"]).arg(place.mnt()).arg(snapshot));
    }
    succeeds(kvfs(&["compact"]).arg(place.mnt()));
    let [_, flushes, after] = written();
    assert!(flushes > 0 && after > merges, "{flushes} of flushes, {merges} and {after} of merges");
    let text = shown(&["stat"]);
    let line = text.lines().find(|line| line.starts_with("written by ")).expect("a line");
    for job in ["commits ", "flushes ", "merges "] {
        assert!(line.contains(job), "{line}");
    }
}
