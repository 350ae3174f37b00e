//! Values that `kvfs kv put` takes from standard input in pieces: there whole or not at all.

mod place;

use std::io::Write;
use std::process::{Child, Stdio};

use place::{Place, kvfs, succeeds, until};

/// Three pieces, of which the last is still to end when all of it was read.
const LENGTH: usize = 12 << 20;

/// A put that has taken as much, and waits for more; two pieces are put by then.
fn half_put(target: &std::path::Path) -> Child {
    let mut put = kvfs(&["kv", "put"]);
    put.arg(target).arg("key").env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
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

    // One that was killed leaves the value that was there.
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
