//! Tests of `kvfs snapshot`, `clone`, `diff`, `send` and `receive` with files and keys, on mounted
//! and unmounted stores.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::mounted::Mount;

fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = crate::place::output(command);
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).into_owned()
}

#[track_caller]
fn fails(code: i32, command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().expect("it runs");
    assert_eq!(status.code(), Some(code), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stderr).into_owned()
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn a_snapshot_of_a_mounted_store_is_looked_at_compared_and_gone_back_to() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    fs::create_dir(mount.path("docs")).expect("mkdir");
    fs::write(mount.path("docs/page"), "one\ntwo\n").expect("write");
    fs::write(mount.path("trash"), "12345").expect("write");
    succeeds(kvfs(&["kv", "put"]).arg(&root).args(["k", "1"]));
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("monday"));
    fs::write(mount.path("docs/page"), "one\n2\n").expect("write");
    fs::write(mount.path("new"), "hello\n").expect("write");
    fs::remove_file(mount.path("trash")).expect("remove");
    succeeds(kvfs(&["kv", "put"]).arg(&root).args(["k", "22"]));
    assert_eq!(read(root.join(".kvfs/snapshot/monday/docs/page")).as_deref(), Some("one\ntwo\n"));

    let want = ["M docs/page 8 B → 6 B", "A new 6 B", "D trash 5 B", "M key 0:k 1 B → 2 B"];
    let diff = |words: &[&str]| succeeds(kvfs(&["diff"]).arg(&root).args(words));
    assert_eq!(lines(&diff(&["monday"]))[..4], want);
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("tuesday"));
    fs::write(mount.path("later"), "").expect("write");
    assert_eq!(lines(&diff(&["monday", "tuesday"]))[..4], want);
    assert_eq!(lines(&diff(&["tuesday", "monday"]))[1], "D new 6 B");
    assert!(
        diff(&["monday", "tuesday", "--patch"])
            .contains("--- a/docs/page\n+++ b/docs/page\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n")
    );
    assert_eq!(diff(&["monday", "--json"]).matches("\"change\":\"changed\"").count(), 2);
    assert_eq!(diff(&["tuesday", "tuesday"]), "nothing is changed\n");
    fails(3, kvfs(&["diff"]).arg(&root).arg("none"));

    let list = succeeds(kvfs(&["snapshot", "list"]).arg(&root));
    assert!(list.contains("monday") && list.contains("tuesday"), "{list}");
    succeeds(kvfs(&["snapshot", "rollback"]).arg(&root).arg("monday"));
    assert_eq!(read(mount.path("docs/page")).as_deref(), Some("one\ntwo\n"));
    assert!(
        mount.path("trash").exists()
            && !mount.path("new").exists()
            && !mount.path("later").exists()
    );
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&root).arg("k")), "1");
    succeeds(kvfs(&["snapshot", "drop"]).arg(&root).arg("tuesday"));
    fails(3, kvfs(&["snapshot", "drop"]).arg(&root).arg("tuesday"));
    assert!(!root.join(".kvfs/snapshot/tuesday").exists());
}

#[test]
fn a_clone_is_written_beside_the_store() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    fs::write(mount.path("file"), "1").expect("write");
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("base"));
    succeeds(kvfs(&["clone", "create"]).arg(&root).args(["base", "trial"]));
    let clone = root.join(".kvfs/clone/trial");
    fs::write(clone.join("file"), "changed").expect("write");
    fs::write(clone.join("more"), "1").expect("write");
    assert_eq!(read(mount.path("file")).as_deref(), Some("1"));
    assert_eq!(succeeds(kvfs(&["clone", "list"]).arg(&root)), "trial  of snapshot base\n");
    succeeds(kvfs(&["snapshot", "create", "--of", "trial"]).arg(&root).arg("tried"));
    assert_eq!(
        lines(&succeeds(kvfs(&["diff"]).arg(&root).args(["base", "tried"])))[..2],
        ["M file 1 B → 7 B", "A more 1 B"]
    );
    let mount = mount.again();
    assert_eq!(read(clone.join("file")).as_deref(), Some("changed"));
    succeeds(kvfs(&["clone", "drop"]).arg(mount.root()).arg("trial"));
    assert!(!clone.exists());
}

#[test]
fn a_store_is_kept_in_another_one_by_what_has_changed() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (backup, stream) = (directory.path().join("backup.kvfs"), directory.path().join("stream"));
    succeeds(kvfs(&["create"]).arg(&backup));
    fs::write(mount.path("large"), vec![7; 3 << 20]).expect("write");
    fs::write(mount.path("file"), "monday").expect("write");
    succeeds(kvfs(&["kv", "put"]).arg(&root).args(["day", "monday"]));
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("monday"));
    let send =
        |words: &[&str]| succeeds(kvfs(&["send"]).arg(&root).args(words).arg("-o").arg(&stream));
    let receive = |file: &Path| {
        let mut command = kvfs(&["receive"]);
        command.arg(&backup).arg("-i").arg(file);
        command
    };
    send(&["monday"]);
    let whole = fs::metadata(&stream).expect("a stream").len();
    assert!(whole > 3 << 20);
    // The stream is cut off. Nothing is visible, and sending the rest completes it.
    let cut = directory.path().join("cut");
    fs::write(&cut, &fs::read(&stream).expect("read")[..2 << 20]).expect("write");
    assert!(fails(1, &mut receive(&cut)).contains("nothing was changed") || backup.exists());
    let position = succeeds(kvfs(&["receive", "--positions"]).arg(&backup)).trim().to_string();
    assert!(!position.is_empty());
    send(&["monday", "--from", &position]);
    assert!(
        fs::metadata(&stream).expect("a stream").len() < whole - (1 << 20),
        "only the rest is sent"
    );
    succeeds(&mut receive(&stream));
    assert_eq!(succeeds(kvfs(&["cat"]).arg(&backup).arg("file")), "monday");

    fs::write(mount.path("file"), "tuesday").expect("write");
    succeeds(kvfs(&["kv", "put"]).arg(&root).args(["day", "tuesday"]));
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("tuesday"));
    send(&["tuesday", "--base", "monday"]);
    assert!(
        fs::metadata(&stream).expect("a stream").len() < whole / 100,
        "only what has changed is sent"
    );
    succeeds(&mut receive(&stream));
    assert_eq!(succeeds(kvfs(&["cat"]).arg(&backup).arg("file")), "tuesday");
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&backup).arg("day")), "tuesday");
    assert_eq!(
        lines(&succeeds(kvfs(&["diff"]).arg(&backup).args(["monday", "tuesday"])))[..1],
        ["M file 6 B → 7 B"]
    );
    succeeds(kvfs(&["check"]).arg(&backup));
    assert!(
        fails(4, kvfs(&["receive"]).arg(mount.root()).arg("-i").arg(&stream)).contains("unmount")
    );
}

/// A store with the snapshots a, b and c, and their streams, each of the changes since the one
/// before.
fn three(directory: &Path) -> [Vec<u8>; 3] {
    let store = directory.join("three.kvfs");
    succeeds(kvfs(&["create"]).arg(&store));
    let mut base = None;
    ["a", "b", "c"].map(|name| {
        succeeds(kvfs(&["kv", "put"]).arg(&store).args(["key", name]));
        succeeds(kvfs(&["snapshot", "create"]).arg(&store).arg(name));
        let stream = directory.join(format!("{name}.stream"));
        let mut send = kvfs(&["send"]);
        send.arg(&store).args([name, "-o"]).arg(&stream);
        send.args(base.replace(name).into_iter().flat_map(|base| ["--base", base]));
        succeeds(&mut send);
        fs::read(stream).expect("a stream")
    })
}

#[test]
fn all_streams_of_a_pipe_are_received() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let streams = three(directory.path());
    let receive = |name: &str, bytes: &[u8], words: &[&str]| {
        let (store, input) = (directory.path().join(name), directory.path().join("input"));
        if !store.exists() {
            succeeds(kvfs(&["create"]).arg(&store));
        }
        fs::write(&input, bytes).expect("write");
        let mut command = kvfs(&["receive"]);
        command.arg(store).arg("-i").arg(input).args(words);
        command
    };
    let told = succeeds(&mut receive("all", &streams.concat(), &[]));
    assert_eq!(
        told.lines().map(|l| l.split(':').next().unwrap_or("")).collect::<Vec<_>>(),
        ["received snapshot a", "received snapshot b", "received snapshot c"]
    );
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(directory.path().join("all")).arg("key")), "c");
    // Bytes after a stream that are no stream are refused, and a name belongs to one snapshot.
    let said = fails(
        1,
        &mut receive("garbage", &[&streams[0][..], b"garbage, and more of it"].concat(), &[]),
    );
    assert!(
        said.contains("no stream")
            && said.contains("1 streams before this one were received and stay"),
        "{said}"
    );
    let said = fails(1, &mut receive("named", &streams.concat(), &["--as", "mine"]));
    assert!(said.contains("more follows behind the stream that was received as mine"), "{said}");
    succeeds(kvfs(&["check"]).arg(directory.path().join("named")));
}

#[test]
fn a_snapshot_that_is_here_is_named_by_the_name_it_has() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    three(directory.path());
    let store = directory.path().join("here");
    succeeds(kvfs(&["create"]).arg(&store));
    let receive = |words: &[&str], stream: &str| {
        let mut command = kvfs(&["receive"]);
        command.arg(&store).arg("-i").arg(directory.path().join(stream)).args(words);
        command
    };
    succeeds(&mut receive(&["--as", "mine"], "a.stream"));
    let said = fails(1, &mut receive(&["--as", "other", "--replace"], "a.stream"));
    assert!(
        said.contains("the snapshot of this stream, here under the name mine, exists already"),
        "{said}"
    );
    let said = fails(1, &mut receive(&["--as", "mine"], "b.stream"));
    assert!(said.contains("another snapshot with the name mine exists already"), "{said}");
}

/// The base of a stream is looked up before anything is written, of a mounted store and
/// of one that is not: a snapshot that was never there, one that was dropped, and another one than
/// that of the stream which was received in part.
#[test]
fn a_base_that_is_not_there_is_refused_at_once() {
    let Some(mount) = Mount::new() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| directory.path().join(name);
    let (here, backup, stream) = (at("here.kvfs"), at("backup.kvfs"), at("stream"));
    succeeds(kvfs(&["create"]).arg(&here));
    succeeds(kvfs(&["create"]).arg(&backup));
    let send = |source: &Path, words: &[&str]| {
        let mut command = kvfs(&["send"]);
        command.arg(source).args(words).arg("-o").arg(&stream);
        command
    };
    let receive = |store: &Path, words: &[&str]| {
        let mut command = kvfs(&["receive"]);
        command.arg(store).arg("-i").arg(&stream).args(words);
        command
    };
    let refused = |code: i32, source: &Path, words: &[&str], said: &[&str]| {
        let _ = fs::remove_file(&stream);
        let told = fails(code, &mut send(source, words));
        assert!(said.iter().all(|word| told.contains(word)), "{words:?}: {told}");
        assert!(!stream.exists(), "{words:?} leaves a file");
        // An existing file keeps its content.
        fs::write(&stream, "kept").expect("written");
        fails(code, send(source, words).arg("--force"));
        assert_eq!(read(&stream).as_deref(), Some("kept"), "{words:?}");
        fs::remove_file(&stream).expect("removed");
    };
    let root = mount.root();
    for (n, name) in ["one", "two", "three"].into_iter().enumerate() {
        fs::write(mount.path("large"), vec![n as u8; 3 << 20]).expect("write");
        for source in [&root, &here] {
            succeeds(kvfs(&["kv", "put"]).arg(source).args(["key", name]));
            succeeds(kvfs(&["snapshot", "create"]).arg(source).arg(name));
        }
    }
    for source in [&root, &here] {
        succeeds(kvfs(&["snapshot", "drop"]).arg(source).arg("one"));
        for base in ["one", "never"] {
            let what = ["cannot send", base, "kvfs snapshot list", "without --base"];
            refused(3, source, &["three", "--base", base], &what);
            refused(3, source, &[base], &what);
        }
        let hint = succeeds(&mut send(source, &["three", "--base", "two"]));
        assert!(hint.contains("wrote") && stream.exists());
        fs::remove_file(&stream).expect("removed");
    }

    // A receiver without the base reports that and the remedy, and changes nothing. A snapshot is
    // identified by its number: another one with the same name does not count.
    let cases: [(&Path, &Path, &[&str]); 3] = [
        (&root, &backup, &[]),
        (&root, &backup, &["--clone", "copy"]),
        (&here, &root, &["--clone", "copy"]),
    ];
    for (source, store, words) in cases {
        succeeds(send(source, &["three", "--base", "two", "--force"]).args(["--json"]));
        let before = succeeds(kvfs(&["snapshot", "list"]).arg(store));
        let said = fails(3, receive(store, words).args(["--as", "received"]));
        assert!(said.contains("no snapshot two, which the stream builds upon"), "{said}");
        assert!(said.contains("receive that snapshot first"), "{said}");
        assert_eq!(succeeds(kvfs(&["receive", "--positions"]).arg(store)), "");
        assert_eq!(succeeds(kvfs(&["snapshot", "list"]).arg(store)), before);
        assert_eq!(succeeds(kvfs(&["clone", "list"]).arg(store)).matches("copy").count(), 0);
    }

    // The received part of a stream names its base.
    succeeds(send(&root, &["two"]).arg("--force"));
    succeeds(&mut receive(&backup, &[]));
    succeeds(send(&root, &["three", "--base", "two"]).arg("--force"));
    let whole = fs::read(&stream).expect("a stream");
    fs::write(&stream, &whole[..whole.len() / 2]).expect("cut off");
    fails(1, &mut receive(&backup, &[]));
    let position = succeeds(kvfs(&["receive", "--positions"]).arg(&backup)).trim().to_string();
    let from = ["three", "--from", &position];
    refused(1, &root, &from, &["since snapshot two", "as the base"]);
    succeeds(&mut send(&root, &[&from[..], &["--base", "two"]].concat()));
    assert!(fs::metadata(&stream).expect("a stream").len() < whole.len() as u64);
    succeeds(&mut receive(&backup, &[]));
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&backup).arg("key")), "three");
}

/// Clones of a mounted store are updated by one stream after the other, while its own files and
/// keys are in use.
#[test]
fn a_mounted_store_receives_into_a_clone() {
    let (Some(from), Some(to)) = (Mount::new(), Mount::new()) else { return };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let stream = |name: &str| directory.path().join(name);
    let step = |name: &str, base: Option<&str>| {
        fs::write(from.path("file"), name).expect("write");
        fs::write(from.path(name), vec![7; 1 << 20]).expect("write");
        succeeds(kvfs(&["kv", "put"]).arg(from.root()).args(["day", name]));
        succeeds(kvfs(&["snapshot", "create"]).arg(from.root()).arg(name));
        let mut send = kvfs(&["send"]);
        send.arg(from.root()).arg(name).args(base.into_iter().flat_map(|base| ["--base", base]));
        succeeds(send.arg("-o").arg(stream(name)));
    };
    step("monday", None);
    step("tuesday", Some("monday"));
    step("wednesday", Some("tuesday"));
    let receive = |file: &Path, words: &[&str]| {
        let mut command = kvfs(&["receive"]);
        command.arg(to.root()).arg("-i").arg(file).args(words);
        command
    };
    let copy = |name: &str| to.root().join(".kvfs/clone/copy").join(name);
    let day = || {
        let words = ["CLONE", "USE", "copy", "GET", "day"];
        succeeds(kvfs(&["kv", "call"]).arg(to.root()).args(words)).trim().replace('"', "")
    };
    fs::write(to.path("file"), "its own").expect("write");

    // A store in use is not replaced, and a stream that is cut off makes no clone.
    let said = fails(4, &mut receive(&stream("monday"), &[]));
    assert!(said.contains("--clone"), "{said}");
    let whole = fs::read(stream("monday")).expect("a stream");
    fs::write(stream("cut"), &whole[..whole.len() / 2]).expect("write");
    fails(1, &mut receive(&stream("cut"), &["--clone", "copy"]));
    assert!(!copy("file").exists());
    let positions = || succeeds(kvfs(&["receive", "--positions"]).arg(to.root()));
    assert_eq!(positions().lines().count(), 1);

    let told = succeeds(&mut receive(&stream("monday"), &["--clone", "copy", "--json"]));
    assert!(told.contains("\"snapshot\":\"monday\""), "{told}");
    assert_eq!(positions(), "");
    assert_eq!(read(copy("file")).as_deref(), Some("monday"));
    assert_eq!(read(to.root().join(".kvfs/snapshot/monday/file")).as_deref(), Some("monday"));
    assert_eq!(day(), "monday");
    assert_eq!(read(to.path("file")).as_deref(), Some("its own"));

    // Receives the next stream, while a file is open in the clone that it replaces.
    let open = fs::File::open(copy("monday")).expect("open");
    succeeds(&mut receive(&stream("tuesday"), &["--clone", "copy"]));
    assert_eq!(read(copy("file")).as_deref(), Some("tuesday"));
    assert_eq!(day(), "tuesday");
    assert!(open.metadata().is_err(), "the file is of a clone that is gone");
    drop(open);
    fails(1, &mut receive(&stream("tuesday"), &["--clone", "copy"]));

    // A clone that was changed here is replaced when that is asked for.
    fs::write(copy("mine"), "kept").expect("write");
    let said = fails(1, &mut receive(&stream("wednesday"), &["--clone", "copy"]));
    assert!(said.contains("changed since snapshot tuesday"), "{said}");
    assert_eq!(read(copy("mine")).as_deref(), Some("kept"));
    succeeds(&mut receive(&stream("wednesday"), &["--clone", "copy", "--replace", "--as", "we"]));
    assert_eq!(read(copy("file")).as_deref(), Some("wednesday"));
    assert!(!copy("mine").exists());
    assert_eq!(read(to.path("file")).as_deref(), Some("its own"));

    // Receives several streams from a pipe. Other data after them is not skipped.
    let two = [fs::read(stream("monday")), fs::read(stream("tuesday"))];
    let two = two.map(|stream| stream.expect("a stream")).concat();
    let again = Mount::new().expect("as the others");
    let mut piped = kvfs(&["receive", "--clone", "copy"]);
    piped.arg(again.root()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut piped = piped.spawn().expect("it starts");
    piped.stdin.take().expect("a pipe").write_all(&two).expect("written");
    let told = piped.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&told.stdout).matches("received snapshot").count(), 2);
    let wednesday = fs::read(stream("wednesday")).expect("a stream");
    fs::write(stream("more"), [&wednesday[..], &[b'x'; 5 << 20]].concat()).expect("write");
    let mut more = kvfs(&["receive", "--clone", "copy", "-i"]);
    let said = fails(1, more.arg(stream("more")).arg(again.root()));
    assert!(said.contains("no stream") && said.contains("1 streams before this one"), "{said}");
    assert_eq!(read(again.root().join(".kvfs/clone/copy/file")).as_deref(), Some("wednesday"));
    for mount in [from, to, again] {
        let mount = mount.again();
        succeeds(kvfs(&["check"]).arg(mount.root()));
    }
}

#[test]
fn a_stream_that_breaks_off_is_no_success() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    fs::write(mount.path("large"), vec![7; 64 << 20]).expect("written");
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("monday"));
    let stat: serde_json::Value =
        serde_json::from_str(&succeeds(kvfs(&["--json", "stat"]).arg(&root))).expect("JSON");
    let pid = stat["daemon"]["pid"].as_i64().expect("a process") as i32;
    let mut sending = kvfs(&["send"])
        .arg(&root)
        .arg("monday")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut stream = sending.stdout.take().expect("a pipe");
    std::io::Read::read_exact(&mut stream, &mut [0; 1 << 20]).expect("it has begun");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    std::io::copy(&mut stream, &mut std::io::sink()).expect("the rest");
    let ended = sending.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("the stream broke off") || said.contains("cannot pass"), "{said}");
}
