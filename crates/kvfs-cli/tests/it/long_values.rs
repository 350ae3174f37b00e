//! Tests of values that `kvfs kv put` reads from standard input in pieces. Each is stored whole or
//! not at all.

use std::io::Write;
use std::process::{Child, Stdio};

use crate::place::{Place, kvfs, succeeds, until};

/// Three pieces, of which the last is still to end when all of it was read.
const LENGTH: usize = 12 << 20;

/// A put that has read this much and waits for more. Two pieces are stored by then.
fn half_put(target: &std::path::Path) -> Child {
    half_put_in(target, None)
}

/// In a transaction of the store with this socket, as by `kvfs run`.
fn half_put_in(target: &std::path::Path, transaction: Option<(&str, &std::path::Path)>) -> Child {
    let mut put = kvfs(&["kv", "put"]);
    put.arg(target).arg("key").env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    if let Some((id, socket)) = transaction {
        put.env("KVFS_TXN", id).env("KVFS_SOCKET", socket);
    }
    let mut put = put.stdin(Stdio::piped()).spawn().expect("kvfs runs");
    put.stdin.as_mut().expect("a pipe").write_all(&vec![7; LENGTH]).expect("taken");
    put
}

#[test]
fn a_long_value_is_seen_whole_or_not_at_all() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let mut put = half_put(&p.mnt());
    assert_eq!(p.ask(&["STRLEN", "key"]), "0");
    drop(put.stdin.take());
    assert!(put.wait().expect("it is ours").success());
    assert_eq!(p.ask(&["STRLEN", "key"]), LENGTH.to_string());

    // A killed put leaves the earlier value.
    succeeds(kvfs(&["kv", "put"]).arg(p.mnt()).args(["key", "short"]));
    let mut put = half_put(&p.mnt());
    put.kill().and_then(|()| put.wait()).expect("it is ours");
    until("its transaction has ended", || {
        succeeds(kvfs(&["txn", "list", "--json"]).arg(p.mnt())).trim() == "[]"
    });
    assert_eq!(p.ask(&["GET", "key"]), "short");
}

#[test]
fn in_a_store_that_is_not_mounted_too() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = directory.path().join("s.kvfs");
    succeeds(kvfs(&["create"]).arg(&store));
    succeeds(kvfs(&["kv", "put"]).arg(&store).args(["key", "short"]));
    let mut put = half_put(&store);
    put.kill().and_then(|()| put.wait()).expect("it is ours");
    let value = succeeds(kvfs(&["kv", "get"]).arg(&store).arg("key"));
    assert!(value == "short", "{} bytes of it", value.len());
}

/// The transaction is the caller's, and may well be committed after this has failed.
#[test]
fn in_a_transaction_of_the_caller_too() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    succeeds(kvfs(&["kv", "put"]).arg(p.mnt()).args(["key", "short"]));
    let id = succeeds(kvfs(&["--json", "txn", "begin"]).arg(p.mnt()));
    let id: serde_json::Value = serde_json::from_str(&id).expect("JSON");
    let id = id["id"].to_string();
    let socket = p.store().with_extension("kvfs.sock");
    let inside = |words: &[&str]| {
        let mut call = kvfs(&["kv", "call"]);
        call.arg(p.mnt()).args(words).env("KVFS_TXN", &id).env("KVFS_SOCKET", &socket);
        succeeds(&mut call).trim().to_owned()
    };
    let mut put = half_put_in(&p.mnt(), Some((&id, &socket)));
    assert_eq!(inside(&["STRLEN", "key"]), "5");
    // The pieces put so far become a value to which nothing can be appended.
    let gathered = inside(&["KEYS", "kvfs kv put *"]);
    inside(&["SADD", "set", "member"]);
    inside(&["SUNIONSTORE", &gathered, "set"]);
    inside(&["DEL", "set"]);
    // The program may have ended already, so a failed write is not an error.
    let _ = put.stdin.as_mut().expect("a pipe").write_all(b"x");
    drop(put.stdin.take());
    assert!(!put.wait().expect("it is ours").success());
    assert_eq!(inside(&["KEYS", "*"]), "key", "nothing is left of it");
    assert_eq!(inside(&["STRLEN", "key"]), "5");

    let mut put = half_put_in(&p.mnt(), Some((&id, &socket)));
    drop(put.stdin.take());
    assert!(put.wait().expect("it is ours").success());
    assert_eq!(inside(&["KEYS", "*"]), "key");
    assert_eq!(
        (inside(&["STRLEN", "key"]), p.ask(&["GET", "key"])),
        (LENGTH.to_string(), "short".into())
    );
    succeeds(kvfs(&["txn", "commit"]).arg(p.mnt()).arg(&id));
    assert_eq!(p.ask(&["STRLEN", "key"]), LENGTH.to_string());
}
