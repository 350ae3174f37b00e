//! Tests of a device whose syncs fail under a mount. A commit that may not be on disk counts as
//! committed for all clients, and no client keeps a transaction that no longer exists.
//!
//! The daemon is started with a library that has its syncs fail while a file exists, but for as
//! many as that has bytes: what the kernel holds of files is handed over before a commit, by a
//! sync.

use crate::place;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::place::{Place, kvfs, succeeds};
use serde_json::{Value, json};

const FAILING: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
static int done(const char *name, int fd) {
    const char *file = getenv("KVFS_TEST_FAILING");
    struct stat failing;
    if (file != NULL && stat(file, &failing) == 0) {
        if (failing.st_size == 0) {
            errno = EIO;
            return -1;
        }
        if (truncate(file, failing.st_size - 1) != 0)
            return -1;
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(fd);
}
int fsync(int fd) { return done("fsync", fd); }
int fdatasync(int fd) { return done("fdatasync", fd); }
"#;

/// A mounted store, and a file. While that file exists, syncs of the store fail.
fn mounted() -> Option<(Place, PathBuf)> {
    let place = Place::new()?;
    let at = |name: &str| place.dir.path().join(name);
    let (source, library, failing) = (at("failing.c"), at("failing.so"), at("failing"));
    fs::write(&source, FAILING).expect("written");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .output()
        .expect("a C compiler is wanted here: apt-get install gcc, or make setup");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut mount = place.mount(&[]);
    mount.env("LD_PRELOAD", &library).env("KVFS_TEST_FAILING", &failing).stdin(Stdio::null());
    succeeds(&mut mount);
    Some((place, failing))
}

/// A client of `kvfs mcp`.
struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Client {
    fn new(place: &Place) -> Client {
        let mut mcp = kvfs(&["mcp"]);
        mcp.arg(place.mnt()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            mcp.env_remove("KVFS_TXN").env_remove("KVFS_SOCKET").spawn().expect("it runs");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut client = Client { child, input, output };
        client.ask("initialize", json!({"protocolVersion": "2025-06-18"}));
        client
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.input.write_all(format!("{request}\n").as_bytes()).expect("sent");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).expect("JSON")
    }

    /// The text that a tool returns, and whether it reports a failure.
    fn tool(&mut self, name: &str, arguments: Value) -> (String, bool) {
        let said = self.ask("tools/call", json!({"name": name, "arguments": arguments}));
        let text = said["result"]["content"][0]["text"].as_str().expect("a text").to_owned();
        (text, said["result"]["isError"].as_bool().expect("a flag"))
    }
}

/// The answer to a commit of `file`, and whether it said that it was done.
type Said = (String, bool);

/// Calls `commit` on one store after the other, with bytes for that file: that many syncs are done
/// before they fail, those of the background among them. The reported result must be true, and both
/// results must occur: the commit was not done, or it was done and may not be on disk.
fn however_many_syncs_are_done(mut commit: impl FnMut(&Place, &Path, &str) -> Said) {
    let (mut refused, mut unsynced) = (false, false);
    for allowed in 0..12 {
        let Some((place, failing)) = mounted() else { return };
        let (said, done) = commit(&place, &failing, &"1".repeat(allowed));
        let committed = said.contains("committed and seen by all");
        assert!(!(done && committed), "{said}");
        let seen = fs::read_to_string(place.mnt().join("file")).ok();
        assert_eq!(seen.as_deref(), (done || committed).then_some("text"), "{allowed}: {said}");
        if done || committed {
            assert_eq!(succeeds(kvfs(&["txn", "list"]).arg(place.mnt())), "", "{said}");
            assert!(!said.contains("txn commit"), "it is not to be tried again: {said}");
        }
        (refused, unsynced) = (refused || !(done || committed), unsynced || committed);
        if done {
            break;
        }
    }
    assert!(refused && unsynced);
}

#[test]
fn a_commit_that_may_not_be_on_disk_has_ended_its_transaction_for_an_agent() {
    however_many_syncs_are_done(|place, failing, allowed| {
        let mut client = Client::new(place);
        let (told, failed) = client.tool("begin", json!({"label": "a test"}));
        assert!(!failed, "{told}");
        let id: u64 = told.split_whitespace().nth(1).and_then(|id| id.parse().ok()).expect("one");
        let transaction = json!(id);
        let file = json!({"transaction": transaction, "path": "file", "content": "text"});
        let (told, failed) = client.tool("write_file", file);
        assert!(!failed, "{told}");
        let (told, _) = client.tool("transactions", json!({}));
        assert!(told.contains("begun in this session"), "{told}");
        fs::write(failing, allowed).expect("written");
        let (said, failed) = client.tool("commit", json!({"transaction": transaction}));
        let (told, _) = client.tool("transactions", json!({}));
        let command = json!({"transaction": transaction, "command": "true"});
        if !failed || said.contains("committed and seen by all") {
            assert_eq!(told, "no transaction is open\n", "{said}");
            let (told, failed) = client.tool("run", command);
            assert!(failed && told.contains(&id.to_string()), "{told}");
        } else {
            assert!(told.contains("begun in this session"), "{said}: {told}");
        }
        (said, !failed)
    });
}

#[test]
fn a_commit_that_may_not_be_on_disk_has_ended_its_transaction_for_commands() {
    however_many_syncs_are_done(|place, failing, allowed| {
        let id = succeeds(kvfs(&["txn", "begin"]).arg(place.mnt())).trim().to_owned();
        fs::write(place.mnt().join(".kvfs/txn").join(&id).join("file"), "text").expect("written");
        fs::write(failing, allowed).expect("written");
        let ended = kvfs(&["txn", "commit"]).arg(place.mnt()).arg(&id).output().expect("it runs");
        (place::text(&ended.stderr), ended.status.success())
    });
}

#[test]
fn a_run_whose_commit_may_not_be_on_disk_says_that_it_is_committed() {
    however_many_syncs_are_done(|place, failing, allowed| {
        let script = "printf text >$KVFS_MOUNT/file && printf %s \"$1\" >\"$0\"";
        let mut run = kvfs(&["run"]);
        run.arg(place.mnt()).args(["--", "sh", "-c", script]).arg(failing).arg(allowed);
        let ended = run.stdin(Stdio::null()).output().expect("it runs");
        let code = ended.status.code();
        assert!(matches!(code, Some(0 | 125)), "{code:?}");
        (place::text(&ended.stderr), code == Some(0))
    });
}
