//! Drives `kvfs mcp` as an agent's program does: as a process with lines over its pipes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::mounted::Mount;
use serde_json::{Value, json};

fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

struct Client {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    next: u64,
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Client {
    fn start(mount: &Mount, options: &[&str]) -> Client {
        let mut command = kvfs(&["mcp"]);
        command.args(options).arg(mount.root()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Client { child, input, lines, next: 1 }
    }

    /// After the handshake.
    fn new(mount: &Mount, options: &[&str]) -> Client {
        let mut client = Client::start(mount, options);
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
        let said = client.ask("initialize", hello);
        assert_eq!(said["result"]["protocolVersion"], "2025-06-18", "{said}");
        assert_eq!(said["result"]["serverInfo"]["name"], "kvfs");
        assert!(said["result"]["capabilities"]["tools"].is_object());
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string());
        client
    }

    fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("open");
        input.write_all(format!("{line}\n").as_bytes()).expect("sent");
    }

    #[track_caller]
    fn receive(&mut self) -> Value {
        let line = self.lines.recv_timeout(Duration::from_secs(60)).expect("an answer in time");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
    }

    #[track_caller]
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.next;
        self.next += 1;
        self.send(
            &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string(),
        );
        let said = self.receive();
        assert_eq!(said["id"], id, "{said}");
        assert_eq!(said["jsonrpc"], "2.0");
        said
    }

    /// The text that a tool returns, and whether it reports a failure.
    #[track_caller]
    fn tool(&mut self, name: &str, arguments: Value) -> (String, bool) {
        let said = self.ask("tools/call", json!({"name": name, "arguments": arguments}));
        let result = &said["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{said}"));
        (text.into(), result["isError"].as_bool().expect("a flag"))
    }

    #[track_caller]
    fn does(&mut self, name: &str, arguments: Value) -> String {
        let (text, failed) = self.tool(name, arguments);
        assert!(!failed, "{name}: {text}");
        text
    }

    #[track_caller]
    fn fails(&mut self, name: &str, arguments: Value) -> String {
        let (text, failed) = self.tool(name, arguments);
        assert!(failed, "{name}: {text}");
        text
    }

    #[track_caller]
    fn begin(&mut self) -> u64 {
        let text = self.does("begin", json!({"label": "a test"}));
        let number = text.split_whitespace().nth(1).expect("a number");
        number.parse().expect("a number")
    }
}

fn open(mount: &Mount) -> Value {
    let said = succeeds(kvfs(&["--json", "txn", "list"]).arg(mount.root()));
    serde_json::from_str(&said).expect("JSON")
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_whole_session() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir(mount.path("src")).expect("a directory");
    fs::write(mount.path("src/main"), "one\n").expect("a file");
    fs::write(mount.path("old"), "old\n").expect("a file");
    let mut client = Client::new(&mount, &[]);
    let tools = client.ask("tools/list", json!({}));
    let tools = tools["result"]["tools"].as_array().expect("a list").clone();
    for tool in &tools {
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert!(tool["description"].as_str().is_some_and(|text| text.len() > 20), "{tool}");
    }
    let hints = |name: &str| {
        let tool = tools.iter().find(|tool| tool["name"] == name).expect("a tool");
        tool["annotations"].clone()
    };
    assert_eq!(hints("diff")["readOnlyHint"], true);
    assert_eq!(hints("rollback")["destructiveHint"], true);
    assert_eq!(hints("write_file")["destructiveHint"], false);

    client.does("snapshot", json!({"name": "before"}));
    let id = client.begin();
    let said = client.does("run", json!({"transaction": id, "directory": "src", "command": "cat main; echo two >> main; mv ../old ../new; echo oops >&2; cat", "input": "from outside"}));
    assert!(said.starts_with("exit code 0"), "{said}");
    assert!(said.contains("--- standard output\none\nfrom outside\n"), "{said}");
    assert!(said.contains("--- standard error\noops\n"), "{said}");
    client.does("write_file", json!({"transaction": id, "path": "tools/build.sh", "content": "#!/bin/sh\necho built\n", "executable": true}));
    client
        .does("write_file", json!({"transaction": id, "path": "bytes", "content_base64": "/wD+"}));
    client.does("put_key", json!({"transaction": id, "key": "built", "value": "yes"}));
    client.does("put_key", json!({"transaction": id, "key": "bytes", "value_base64": "/wD+"}));
    let said = client.does("run", json!({"transaction": id, "command": "tools/build.sh; kvfs kv get . built 2>/dev/null || true"}));
    assert!(said.contains("built\n"), "{said}");

    // The change is in the transaction, and nowhere else.
    assert_eq!(client.does("read_file", json!({"path": "src/main"})), "one\n");
    assert_eq!(
        client.does("read_file", json!({"path": "src/main", "transaction": id})),
        "one\ntwo\n"
    );
    assert_eq!(
        client.does("read_file", json!({"path": "bytes", "transaction": id})),
        "base64:/wD+"
    );
    assert_eq!(client.does("get_key", json!({"key": "bytes", "transaction": id})), "base64:/wD+");
    client.fails("get_key", json!({"key": "built"}));
    client.fails("read_file", json!({"path": "bytes"}));
    let listed = client.does("list_files", json!({"transaction": id, "recursive": true}));
    for line in
        ["file           3  bytes\n", "directory            src/\n", "file           8  src/main\n"]
    {
        assert!(listed.contains(line), "{listed}");
    }
    let keys = client.does("range_keys", json!({"transaction": id, "start": "b"}));
    assert_eq!(keys, "built\tyes\nbytes\tbase64:/wD+\n");

    let diff = client.does("diff", json!({"transaction": id}));
    for line in ["M  src/main", "R  old → new", "A  tools/", "A  key 0:built", "state "] {
        assert!(diff.contains(line), "{diff}");
    }
    let patch = client.does("diff", json!({"transaction": id, "patch": true}));
    assert!(patch.contains("@@ -1 +1,2 @@\n one\n+two\n"), "{patch}");
    let left = client.does("revert", json!({"transaction": id, "paths": ["bytes"]}));
    assert!(!left.contains("A  bytes") && left.contains("M  src/main"), "{left}");
    assert!(client.does("transactions", json!({})).contains("(begun in this session)"));
    client.does("commit", json!({"transaction": id}));
    assert_eq!(fs::read(mount.path("src/main")).expect("there"), b"one\ntwo\n");
    assert!(mount.path("new").exists() && !mount.path("old").exists());
    assert!(!mount.path("bytes").exists(), "it was reverted");
    assert_eq!(client.does("get_key", json!({"key": "built"})), "yes");
    client.fails("commit", json!({"transaction": id}));

    // A commit is undone by a transaction that is reviewed and committed like any other.
    let undo = |client: &mut Client| {
        let said = client.does("undo", json!({}));
        let id: u64 =
            said.split_whitespace().nth(1).and_then(|id| id.parse().ok()).expect("a number");
        assert!(client.does("diff", json!({"transaction": id})).contains("M  src/main"), "{said}");
        id
    };
    let id = undo(&mut client);
    client.does("abort", json!({"transaction": id}));
    let id = undo(&mut client);
    client.does("commit", json!({"transaction": id}));
    assert_eq!(fs::read(mount.path("src/main")).expect("there"), b"one\n");
    assert!(mount.path("old").exists() && !mount.path("new").exists());
    let id = undo(&mut client);
    client.does("commit", json!({"transaction": id}));
    fs::write(mount.path("new"), "changed since").expect("a file");
    client.fails("undo", json!({}));
    client.fails("undo", json!({"commit": 1}));

    // Back to the snapshot.
    assert!(client.does("snapshots", json!({})).contains("before"));
    assert!(client.does("diff", json!({"snapshot": "before"})).contains("M  src/main"));
    assert_eq!(
        client.does("read_file", json!({"path": "src/main", "snapshot": "before"})),
        "one\n"
    );
    client.does("rollback", json!({"snapshot": "before"}));
    assert_eq!(fs::read(mount.path("src/main")).expect("there"), b"one\n");
    assert!(!mount.path("tools").exists());
}

#[test]
fn what_is_no_message_is_answered_and_the_session_goes_on() {
    let Some(mount) = Mount::new() else { return };
    let mut client = Client::start(&mount, &[]);
    let said = client.ask("tools/list", json!({}));
    assert_eq!(said["error"]["code"], -32600, "before initialize: {said}");
    client.ask("initialize", json!({"protocolVersion": "1999-01-01"}));
    let mut code = |line: &str| {
        client.send(line);
        let said = client.receive();
        (said["error"]["code"].as_i64().unwrap_or(0), said["id"].clone())
    };
    assert_eq!(code("{"), (-32700, Value::Null));
    assert_eq!(code("\u{1}\u{2}garbage"), (-32700, Value::Null));
    assert_eq!(code("[]"), (-32600, Value::Null));
    assert_eq!(code("7"), (-32600, Value::Null));
    assert_eq!(code(r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#), (-32600, json!(1)));
    assert_eq!(code(r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#), (-32600, Value::Null));
    assert_eq!(code(r#"{"jsonrpc":"2.0","id":"a"}"#), (-32600, json!("a")));
    assert_eq!(code(r#"{"jsonrpc":"2.0","id":2,"method":"ping","params":[]}"#), (-32600, json!(2)));
    assert_eq!(code(r#"{"jsonrpc":"2.0","id":3,"method":"no/such"}"#), (-32601, json!(3)));
    let call = |name: &str, arguments: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{{"name":"{name}","arguments":{arguments}}}}}"#
        )
    };
    for (name, arguments) in [
        ("no_such_tool", "{}"),
        ("diff", "[]"),
        ("begin", r#"{"isolation":"none"}"#),
        ("run", r#"{"transaction":1}"#),
        ("run", r#"{"transaction":"1","command":"true"}"#),
        ("run", r#"{"transaction":-1,"command":"true"}"#),
        ("run", r#"{"transaction":1,"command":"true","shell":"zsh"}"#),
        ("revert", r#"{"transaction":1,"paths":[]}"#),
        ("revert", r#"{"transaction":1,"paths":[1]}"#),
    ] {
        assert_eq!(code(&call(name, arguments)), (-32602, json!(4)), "{name} {arguments}");
    }
    // Longer than a message may be.
    let long = format!("{{\"x\":\"{}\"}}", "y".repeat(17 << 20));
    assert_eq!(code(&long), (-32700, Value::Null));
    // Notifications have no answer; empty lines are nothing.
    client.send("");
    client.send(r#"{"jsonrpc":"2.0","method":"notifications/unknown"}"#);
    assert_eq!(client.ask("ping", json!({}))["result"], json!({}));
}

#[test]
fn what_fails_in_a_tool_is_told_and_changes_nothing() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir(mount.path("directory")).expect("a directory");
    std::os::unix::fs::symlink("/etc", mount.path("out")).expect("a link");
    fs::write(mount.path("file"), "1").expect("a file");
    let mut client = Client::new(&mount, &[]);
    let id = client.begin();
    for (tool, arguments, says) in [
        ("run", json!({"transaction": 4711, "command": "true"}), "4711"),
        ("run", json!({"transaction": id, "command": "exit 3"}), "exit code 3"),
        ("run", json!({"transaction": id, "command": "true", "directory": "nowhere"}), "exit code"),
        ("read_file", json!({"path": "nowhere"}), "nowhere"),
        ("read_file", json!({"path": "directory"}), "it is no file"),
        ("read_file", json!({"path": "out/passwd"}), "symbolic link"),
        ("read_file", json!({"path": "../../etc/passwd"}), "leads out of the store"),
        ("read_file", json!({"path": ".kvfs/snapshot"}), "leads out of the store"),
        ("list_files", json!({"path": "./.kvfs/txn"}), "leads out of the store"),
        ("read_file", json!({"path": "file", "snapshot": "../.."}), "there is no snapshot"),
        ("read_file", json!({"path": "file", "transaction": 4711}), "there is no transaction"),
        (
            "write_file",
            json!({"transaction": id, "path": "out/x", "content": "1"}),
            "cannot write out/x",
        ),
        (
            "write_file",
            json!({"transaction": id, "path": "directory", "content": "1"}),
            "directory",
        ),
        ("write_file", json!({"transaction": id, "path": "x"}), "must be given"),
        ("write_file", json!({"transaction": id, "path": "x", "content_base64": "?"}), "base 64"),
        ("write_file", json!({"transaction": 4711, "path": "x", "content": "1"}), "4711"),
        ("put_key", json!({"transaction": 4711, "key": "k", "value": "1"}), "4711"),
        ("get_key", json!({"key": "k", "dictionary": "nowhere"}), "there is no"),
        ("diff", json!({}), "must be given"),
        ("diff", json!({"snapshot": "nowhere"}), "nowhere"),
        ("revert", json!({"transaction": id, "paths": ["file"]}), "nothing was changed at file"),
        ("abort", json!({"transaction": 4711}), "4711"),
        ("rollback", json!({"snapshot": "nowhere"}), "nowhere"),
    ] {
        let said = client.fails(tool, arguments.clone());
        assert!(said.contains(says), "{tool} {arguments}: {said}");
    }
    let said = client.does("diff", json!({"transaction": id}));
    assert!(said.starts_with("nothing is changed\nstate "), "{said}");
    // Another transaction commits first. The conflicting change is lost in this one only.
    client.does("write_file", json!({"transaction": id, "path": "file", "content": "mine"}));
    fs::write(mount.path("file"), "theirs").expect("a file");
    let said = client.fails("commit", json!({"transaction": id}));
    assert!(said.contains("others have changed") && said.contains("/file"), "{said}");
    assert_eq!(fs::read(mount.path("file")).expect("there"), b"theirs");
    let id = client.begin();
    client.does("write_file", json!({"transaction": id, "path": "file", "content": "mine"}));
    client.does("abort", json!({"transaction": id}));
    assert_eq!(fs::read(mount.path("file")).expect("there"), b"theirs");
}

#[test]
fn output_and_time_have_limits() {
    let Some(mount) = Mount::new() else { return };
    let mut client = Client::new(&mount, &["--output-limit", "4096", "--timeout", "30"]);
    let id = client.begin();
    let said = client.does("run", json!({"transaction": id, "command": "yes | head -c 50000000"}));
    assert!(said.contains("[truncated: 49995904 of 50000000 bytes are left out]"), "{said}");
    assert!(said.len() < 9000, "{}", said.len());
    let said = client.does(
        "run",
        json!({"transaction": id, "command": "seq 1 1000; seq 1 100000 > numbers", "output_limit": 100}),
    );
    assert!(said.len() < 400 && said.contains("truncated"), "{said}");
    let said = client.does("read_file", json!({"transaction": id, "path": "numbers"}));
    assert!(
        said.contains("[truncated: the file has 588895 bytes; go on with offset 3072]"),
        "{said}"
    );
    let said = client.does(
        "read_file",
        json!({"transaction": id, "path": "numbers", "offset": 588_890, "limit": 5}),
    );
    assert_eq!(said, "0000\n");
    let said = client.does("diff", json!({"transaction": id, "patch": true}));
    assert!(said.len() < 4300 && said.contains("[truncated: "), "{said}");
    let said = client.does(
        "run",
        json!({"transaction": id, "command": "mkdir many; cd many; seq 1 500 | xargs touch"}),
    );
    assert!(said.starts_with("exit code 0"), "{said}");
    let said = client.does("list_files", json!({"transaction": id, "path": "many"}));
    assert!(said.contains("[truncated: ") && said.len() < 4300, "{said}");

    // After the time limit, the command and the programs that it started have ended.
    let begun = Instant::now();
    let said = client.fails(
        "run",
        json!({"transaction": id, "command": "echo $$; sleep 1000 & echo $!; wait", "timeout_seconds": 1}),
    );
    assert!(begun.elapsed() < Duration::from_secs(20), "{said}");
    assert!(said.starts_with("timed out: ended after 1 s"), "{said}");
    let pids: Vec<i32> = said.lines().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(pids.len(), 2, "{said}");
    for pid in pids {
        let gone =
            || fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |s| s.contains(") Z "));
        until("it is gone", gone);
    }
    // A program that is left in the background does not delay the answer.
    let begun = Instant::now();
    client.does("run", json!({"transaction": id, "command": "sleep 1000 & echo there"}));
    assert!(begun.elapsed() < Duration::from_secs(20));
    // A command that is cancelled, and a question that waits for its turn until then.
    let call = json!({"name": "run", "arguments": {"transaction": id, "command": "sleep 1000"}});
    client.send(
        &json!({"jsonrpc": "2.0", "id": "long", "method": "tools/call", "params": call})
            .to_string(),
    );
    client.send(&json!({"jsonrpc": "2.0", "id": "ping", "method": "ping"}).to_string());
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "long"}}).to_string());
    let said = client.receive();
    assert_eq!(
        (said["id"].as_str(), said["result"]["isError"].as_bool()),
        (Some("long"), Some(true))
    );
    assert_eq!(client.receive()["id"], "ping");
}

/// The number of the transaction that a tool has begun.
fn begun(said: &str) -> u64 {
    let number = said.strip_prefix("transaction ").and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn a_branch_is_worked_in_and_merged_in_transactions() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path("f"), "one\n").expect("a file");
    fs::write(mount.path("g"), "one\n").expect("a file");
    let mut client = Client::new(&mount, &[]);
    assert_eq!(client.does("branches", json!({})), "there are no branches\n");
    client.does("branch", json!({"name": "trial"}));
    client.does("branch", json!({"name": "within", "of": "trial", "limit": 1 << 20}));
    let id = begun(&client.does("begin", json!({"branch": "within"})));
    let fill = json!({"transaction": id, "command": "head -c 3000000 /dev/urandom > big"});
    let said = client.fails("run", fill);
    assert!(said.contains("No space left on device"), "{said}");
    client.does("abort", json!({"transaction": id}));
    assert_eq!(client.does("branches", json!({})), "trial\nwithin\n");
    // The clone keeps its origin without a snapshot.
    assert_eq!(client.does("snapshots", json!({})), "there are no snapshots\n");

    let id = begun(&client.does("begin", json!({"branch": "trial"})));
    let said = client
        .does("run", json!({"transaction": id, "command": "echo trial >> f; echo made > made"}));
    assert!(said.starts_with("exit code 0"), "{said}");
    client.does("put_key", json!({"transaction": id, "key": "k", "value": "trial"}));
    let diff = client.does("diff", json!({"transaction": id}));
    assert!(diff.contains("M  f"), "{diff}");
    client.does("commit", json!({"transaction": id}));
    assert_eq!(fs::read(mount.path(".kvfs/clone/trial/f")).expect("a file"), b"one\ntrial\n");
    assert_eq!(fs::read(mount.path("f")).expect("a file"), b"one\n");
    assert!(!mount.path(".kvfs/clone/within/made").exists());
    let within = begun(&client.does("begin", json!({"branch": "trial"})));
    assert_eq!(client.does("get_key", json!({"transaction": within, "key": "k"})), "trial");
    client.does("abort", json!({"transaction": within}));

    // A commit with a conflict leaves the transaction open, to be rebased.
    let id = client.begin();
    client
        .does("run", json!({"transaction": id, "command": "mkdir d; echo in > d/in; echo in > e"}));
    fs::create_dir(mount.path("d")).expect("made");
    fs::write(mount.path("d/out"), "out\n").expect("a file");
    fs::write(mount.path("e"), "out\n").expect("a file");
    let said = client.fails("commit", json!({"transaction": id}));
    assert!(said.contains("`rebase`"), "{said}");
    let said = client.fails("rebase", json!({"transaction": id}));
    let line = format!("e: made in transaction {id}, made in what is there now");
    assert!(said.contains(&line) && said.contains("choose"), "{said}");
    client.fails("rebase", json!({"transaction": id, "branch": "trial"}));
    client.fails("rebase", json!({}));
    let id = begun(&client.does("rebase", json!({"transaction": id, "ours": ["e"]})));
    client.does("commit", json!({"transaction": id}));
    assert_eq!(fs::read(mount.path("d/in")).expect("a file"), b"in\n");
    assert_eq!(fs::read(mount.path("d/out")).expect("a file"), b"out\n");
    assert_eq!(fs::read(mount.path("e")).expect("a file"), b"in\n");

    // Conflicting changes are listed, and no merge begins.
    fs::write(mount.path("f"), "other\n").expect("a file");
    fs::write(mount.path("g"), "other\n").expect("a file");
    let said = client.fails("merge", json!({"branch": "trial"}));
    assert!(said.contains("f: changed in the store, changed in clone trial"), "{said}");
    assert_eq!(client.does("transactions", json!({})), "no transaction is open\n");
    let id = begun(&client.does("rebase", json!({"branch": "trial", "ours": ["f"]})));
    let diff = client.does("diff", json!({"transaction": id}));
    assert!(diff.contains("M  g") && !diff.contains(" f\n"), "{diff}");
    client.does("commit", json!({"transaction": id}));
    assert_eq!(fs::read(mount.path(".kvfs/clone/trial/g")).expect("a file"), b"other\n");
    let id = begun(&client.does("merge", json!({"branch": "trial"})));
    assert_eq!(fs::read(mount.path("f")).expect("a file"), b"other\n", "it is not committed");
    client.does("commit", json!({"transaction": id}));
    assert_eq!(fs::read(mount.path("f")).expect("a file"), b"one\ntrial\n");
    assert_eq!(client.does("get_key", json!({"key": "k"})), "trial");

    client.fails("branch", json!({"name": "trial"}));
    client.fails("branch", json!({"name": "b", "of": "trial", "snapshot": "s"}));
    client.fails("begin", json!({"branch": "none"}));
    client.fails("merge", json!({"branch": "none"}));
    assert_eq!(client.does("snapshots", json!({})), "there are no snapshots\n");
    let open = begun(&client.does("begin", json!({"branch": "trial"})));
    client.does("drop", json!({"branch": "trial"}));
    client.fails("diff", json!({"transaction": open}));
    client.input = None;
    until("it has ended", || client.child.try_wait().expect("a child").is_some());
    // Another session drops only what it has made itself.
    let mut client = Client::new(&mount, &[]);
    assert_eq!(client.does("branches", json!({})), "within\n");
    let said = client.fails("drop", json!({"branch": "within"}));
    assert!(said.contains("was not made in this session"), "{said}");
    assert!(mount.path(".kvfs/clone/within/f").exists());
}

#[test]
fn what_was_not_committed_ends_with_the_session() {
    let Some(mount) = Mount::new() else { return };
    // The server ends properly, in the middle of a command, or by a kill.
    for way in ["end", "command", "kill"] {
        let mut client = Client::new(&mount, &[]);
        let (id, kept) = (client.begin(), client.begin());
        for id in [id, kept] {
            client.does(
                "write_file",
                json!({"transaction": id, "path": format!("of-{id}"), "content": "1"}),
            );
        }
        client.does("keep", json!({"transaction": kept}));
        match way {
            "end" => client.input = None,
            "command" => {
                let call = json!({"name": "run", "arguments": {"transaction": id, "command": "touch begun; sleep 1000"}});
                client.send(
                    &json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": call})
                        .to_string(),
                );
                let begun = mount.path(format!(".kvfs/txn/{id}/begun"));
                until("the command runs", || begun.exists());
                client.input = None;
            }
            _ => client.child.kill().expect("killed"),
        }
        until("it has ended", || client.child.try_wait().expect("a child").is_some());
        until("only what is kept is open", || {
            let open = open(&mount);
            open.as_array().is_some_and(|all| all.len() == 1 && all[0]["id"] == kept)
        });
        succeeds(kvfs(&["txn", "commit"]).arg(mount.root()).arg(kept.to_string()));
        assert!(mount.path(format!("of-{kept}")).exists(), "{way}");
        assert!(!mount.path(format!("of-{id}")).exists(), "{way}");
    }
}

/// Says something at the socket itself, as any client can.
const RAW: &str = "import os, socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(os.environ['KVFS_SOCKET'])
for line in sys.argv[1:]:
    client.sendall((line + '\\r\\n').encode())
    print(client.recv(4096).decode().strip())";

#[test]
fn what_a_command_says_at_the_socket_ends_no_transaction_and_writes_nothing_outside() {
    let Some(mount) = Mount::new() else { return };
    let mut client = Client::new(&mount, &["--without", "commit", "--without", "rollback"]);
    let id = client.begin();
    let kvfs = env!("CARGO_BIN_EXE_kvfs");
    let run = |client: &mut Client, command: &str| {
        client.tool("run", json!({"transaction": id, "command": command})).0
    };
    let said = run(&mut client, "echo 1 > file");
    assert!(said.contains("exit code 0"), "{said}");
    for end in ["commit", "abort"] {
        let said = run(&mut client, &format!("{kvfs} txn {end} $KVFS_MOUNT $KVFS_TXN"));
        assert!(said.contains("was started in a sealed transaction"), "{said}");
    }
    // A program in the run is refused, whatever has happened to its parents, and whatever it claims
    // to be.
    let file = mount.root().with_file_name("raw.py");
    fs::write(&file, RAW).expect("written");
    let commit = format!("TXN COMMIT {id}");
    let other = succeeds(Command::new(kvfs).args(["txn", "begin"]).arg(mount.root()));
    let several = format!("CLONETREE /.kvfs/beneath/a /a /.kvfs/beneath/b /b TXN {}", other.trim());
    let words = [
        "SET outside 1",
        &commit,
        "SNAPSHOT CREATE s",
        &format!("TXN KEEP {id}"),
        "FLUSHALL",
        "TXN BEGIN",
        "GET outside",
        &format!("TXN JOIN {id}"),
        "SET inside 1",
        &several,
        "CLONETREE /a /b CLONE c",
        "RMTREE /file CLONE c",
    ];
    let words = words.map(|word| format!("'{word}'")).join(" ");
    let raw = format!("python3 {} {words}", file.display());
    let away = format!(
        "(setsid sh -c \"env -i KVFS_SOCKET=$KVFS_SOCKET PATH=$PATH {raw} >said 2>&1; echo done >>said\" &)
        while ! grep -q done said; do sleep 0.02; done; cat said"
    );
    for command in [raw, away] {
        let said = run(&mut client, &command);
        assert_eq!(said.matches("-SEALED").count(), 9, "{said}");
        assert_eq!(said.matches("+OK").count(), 2, "{said}");
    }
    assert!(!mount.path("file").exists());
    let key = |key: &str| kvfs_ends(&["kv", "get"], &mount, key);
    assert_eq!(key("outside"), Some(3));
    // A person may do it.
    client.does("keep", json!({"transaction": id}));
    succeeds(Command::new(kvfs).args(["txn", "commit"]).arg(mount.root()).arg(id.to_string()));
    assert!(mount.path("file").exists());
    assert_eq!((key("inside"), key("outside")), (Some(0), Some(3)));
}

fn kvfs_ends(words: &[&str], mount: &Mount, last: &str) -> Option<i32> {
    kvfs(words).arg(mount.root()).arg(last).output().expect("it runs").status.code()
}

#[test]
fn what_a_command_leaves_behind_is_ended_in_a_session_of_its_own_too() {
    let Some(mount) = Mount::new() else { return };
    let mut client = Client::new(&mount, &[]);
    let id = client.begin();
    let script =
        "setsid sh -c 'while :; do date +%N > late; sleep 0.02; done' </dev/null >/dev/null 2>&1 &
        while ! test -e late; do sleep 0.02; done";
    client.does("run", json!({"transaction": id, "command": script}));
    let read = || fs::read_to_string(mount.path(format!(".kvfs/txn/{id}/late"))).expect("there");
    let (first, until) = (read(), Instant::now() + Duration::from_millis(300));
    while Instant::now() < until {
        assert_eq!(read(), first, "it writes on");
    }
}

#[test]
fn a_command_ends_with_a_server_that_is_killed_and_so_does_what_it_has_started() {
    let Some(mount) = Mount::new() else { return };
    let mut client = Client::new(&mount, &[]);
    let id = client.begin();
    let command = "setsid sh -c 'echo $$ > away; while :; do sleep 0.1; done' &
        echo $$ > here; trap '' TERM HUP; while :; do sleep 0.1; done";
    let call = json!({"name": "run", "arguments": {"transaction": id, "command": command}});
    let call = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": call});
    client.send(&call.to_string());
    let view = mount.path(format!(".kvfs/txn/{id}"));
    let read = |name: &str| fs::read_to_string(view.join(name)).unwrap_or_default();
    until("both run", || ["away", "here"].iter().all(|name| read(name).ends_with('\n')));
    let running = ["away", "here"].map(|name| format!("/proc/{}", read(name).trim()));
    client.child.kill().expect("killed");
    until("both have ended", || !running.iter().any(|process| fs::exists(process).expect("/proc")));
}

#[test]
fn tools_can_be_withheld_and_bad_options_are_refused() {
    let Some(mount) = Mount::new() else { return };
    let mut client = Client::new(&mount, &["--without", "commit", "--without", "rollback"]);
    let tools = client.ask("tools/list", json!({}))["result"]["tools"].clone();
    let named = |name: &str| tools.as_array().expect("a list").iter().any(|t| t["name"] == name);
    assert!(named("begin") && !named("commit") && !named("rollback"));
    let id = client.begin();
    let said =
        client.ask("tools/call", json!({"name": "commit", "arguments": {"transaction": id}}));
    assert_eq!(said["error"]["code"], -32602, "{said}");
    let refused = |words: &[&str]| {
        let output = kvfs(&["mcp"]).args(words).arg(mount.root()).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&["--without", "comit"]).contains("the tools are: begin, run"));
    refused(&["--output-limit", "1"]);
    refused(&["--timeout", "soon"]);
    let nowhere = tempfile::tempdir().expect("a directory");
    let output = kvfs(&["mcp"]).arg(nowhere.path()).output().expect("it runs");
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn a_request_that_is_cancelled_while_it_waits_is_not_done() {
    let Some(mount) = Mount::new() else { return };
    let mut client = Client::new(&mount, &[]);
    let id = client.begin();
    let request = |number: u64, name: &str, arguments: Value| {
        let params = json!({"name": name, "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
            .to_string()
    };
    let started = mount.path("started");
    let run = "echo >started; while [ ! -e go ]; do sleep 0.01; done";
    let run = json!({"transaction": id, "command": run});
    client.send(&request(901, "run", run));
    until("the command runs", || mount.path(format!(".kvfs/txn/{id}/started")).exists());
    assert!(!started.exists(), "it is in the transaction");
    client.send(&request(902, "commit", json!({"transaction": id})));
    client.send(&request(903, "transactions", json!({})));
    let cancel = json!({"requestId": 902, "reason": "a slip"});
    client.send(
        &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel})
            .to_string(),
    );
    let input = client.input.as_ref().expect("open");
    until("it has read all that", || rustix::io::ioctl_fionread(input).expect("a pipe") == 0);
    fs::write(mount.path(format!(".kvfs/txn/{id}/go")), "").expect("written");
    assert_eq!(client.receive()["id"], 901);
    assert_eq!(client.receive()["id"], 903, "what was cancelled has no answer");
    assert!(client.does("transactions", json!({})).contains(&format!("transaction {id}")));
    assert!(!started.exists(), "it was not committed");
}

#[test]
fn a_listing_has_a_line_for_each_name_whatever_it_is() {
    use std::os::unix::ffi::OsStrExt;

    let Some(mount) = Mount::new() else { return };
    let odd = "dir\nfile           7  forged";
    fs::create_dir_all(mount.path(odd).join("below")).expect("made");
    let latin = std::ffi::OsStr::from_bytes(b"caf\xe9");
    fs::create_dir(mount.path(latin)).expect("made");
    fs::write(mount.path(latin).join("menu"), "").expect("written");
    let mut client = Client::new(&mount, &[]);
    let said = client.does("list_files", json!({"recursive": true}));
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(said.lines().all(|line| !line.ends_with("  forged")), "{said}");
    assert!(said.contains("/below/\n") && said.contains("/menu\n"), "{said}");
}

#[test]
fn a_file_is_read_on_however_little_is_asked_for() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path("text"), "\u{20ac}5").expect("written");
    let mut client = Client::new(&mount, &[]);
    let said = client.does("read_file", json!({"path": "text", "limit": 2}));
    assert!(said.starts_with("base64:4oI=\n") && said.contains("offset 2]"), "{said}");
    let said = client.does("read_file", json!({"path": "text", "limit": 4}));
    assert_eq!(said, "\u{20ac}5");
    let said = client.does("read_file", json!({"path": "text", "limit": 3}));
    assert!(said.starts_with("\u{20ac}\n") && said.contains("offset 3]"), "{said}");
}

#[test]
fn a_client_may_send_all_its_requests_before_it_reads_an_answer() {
    let Some(mount) = Mount::new() else { return };
    let mut command = kvfs(&["mcp"]);
    command.arg(mount.root()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut input = child.stdin.take().expect("a pipe");
    // A pipe holds 64 KiB: requests and answers are each many times that.
    let hello = json!({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": {}});
    input.write_all(format!("{hello}\n").as_bytes()).expect("sent");
    let count = 2000;
    for id in 0..count {
        let padding = "p".repeat(1000);
        let request = json!({"jsonrpc": "2.0", "id": id, "method": "tools/list", "params": {"padding": padding}});
        input.write_all(format!("{request}\n").as_bytes()).expect("sent");
    }
    drop(input);
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(lines.next().expect("an answer").expect("read").contains("\"hello\""));
    let mut bytes = 0;
    let mut next = 0;
    for line in lines {
        let line = line.expect("read");
        bytes += line.len();
        let said: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(said["id"], next, "{said}");
        assert!(said["result"]["tools"].is_array(), "{said}");
        next += 1;
    }
    assert_eq!(next, count);
    assert!(bytes > 1 << 20, "{bytes} bytes of answers");
    assert!(child.wait().expect("it ended").success());
}
