//! Tests of `kvfs kv load`, which loads the keys of a file as one change, in several input formats.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::place::{Place, fails, kvfs, succeeds};

/// A directory with a new store that is not mounted.
fn store() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = directory.path().join("s.kvfs");
    succeeds(kvfs(&["create"]).arg(&store).stdin(Stdio::null()));
    (directory, store)
}

fn load(store: &Path, input: &Path) -> Command {
    let mut command = kvfs(&["kv", "load"]);
    command.arg(store).arg(input).stdin(Stdio::null());
    command
}

fn listed(store: &Path) -> Vec<(String, String)> {
    let said = succeeds(kvfs(&["--json", "kv", "range"]).arg(store).stdin(Stdio::null()));
    let all: Vec<Value> = serde_json::from_str(&said).expect("JSON");
    let text = |tuple: &Value, name: &str| tuple[name].as_str().expect("text").to_owned();
    all.iter().map(|tuple| (text(tuple, "key"), text(tuple, "value"))).collect()
}

#[test]
fn the_keys_of_a_file_are_loaded_in_any_order() {
    let (directory, store) = store();
    let input = directory.path().join("in.csv");
    let mut lines: Vec<String> =
        (0..5000).map(|n| format!("k{:04},v{n}\n", n * 7 % 5000)).collect();
    // If a key occurs several times, the last value counts.
    lines.push("k0007,\"a, b\"\n".into());
    fs::write(&input, lines.concat()).expect("written");
    assert_eq!(succeeds(&mut load(&store, &input)), "5001 loaded\n");
    let all = listed(&store);
    assert_eq!(all.len(), 5000);
    assert_eq!(all[7], ("k0007".into(), "a, b".into()));
    assert_eq!(all[14], ("k0014".into(), "v2".into()));

    // A listing of one store is loaded into another one.
    let (there, copy) = self::store();
    let listing = there.path().join("in.json");
    let said = succeeds(kvfs(&["--json", "kv", "range"]).arg(&store).stdin(Stdio::null()));
    fs::write(&listing, said).expect("written");
    succeeds(&mut load(&copy, &listing));
    assert_eq!(listed(&copy), all);
}

#[test]
fn a_file_that_cannot_be_read_to_its_end_loads_nothing() {
    let (directory, store) = store();
    succeeds(kvfs(&["kv", "put"]).arg(&store).args(["k", "old"]).stdin(Stdio::null()));
    let input = directory.path().join("in.csv");
    let many: String = (0..5000).map(|n| format!("k{n},v\n")).collect();
    fs::write(&input, many + "k,new\nwithout a value\n").expect("written");
    let said = fails(1, &mut load(&store, &input));
    assert!(said.contains("line 5002: ") && said.contains("nothing was loaded"), "{said}");
    assert_eq!(listed(&store), [("k".to_owned(), "old".to_owned())]);
    // The form has to be known.
    let unnamed = directory.path().join("in");
    fs::write(&unnamed, "k,new\n").expect("written");
    let said = fails(2, &mut load(&store, &unnamed));
    assert!(said.contains("--format"), "{said}");
    succeeds(load(&store, &unnamed).args(["--format", "csv"]));
    assert_eq!(listed(&store), [("k".to_owned(), "new".to_owned())]);
}

#[test]
fn commands_load_collections_and_do_nothing_else() {
    let (directory, store) = store();
    let input = directory.path().join("in.resp");
    let command = |words: &[&str]| {
        let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        format!("*{}\r\n", words.len()) + &words.collect::<String>()
    };
    let commands = [
        command(&["SET", "k", "v"]),
        command(&["HSET", "h", "a", "1", "b", "2"]),
        command(&["SET", "k", "again"]),
        command(&["RPUSH", "l", "x", "y"]),
    ];
    fs::write(&input, commands.concat()).expect("written");
    assert_eq!(succeeds(&mut load(&store, &input)), "4 loaded\n");
    let call = |words: &[&str]| {
        succeeds(kvfs(&["kv", "call"]).arg(&store).args(words).stdin(Stdio::null()))
    };
    assert_eq!(call(&["GET", "k"]).trim(), "again");
    assert_eq!(call(&["HLEN", "h"]).trim(), "2");
    assert_eq!(call(&["LLEN", "l"]).trim(), "2");
    fs::write(&input, command(&["SET", "k", "lost"]) + &command(&["FLUSHALL"])).expect("written");
    let said = fails(1, &mut load(&store, &input));
    assert!(said.contains("FLUSHALL") && said.contains("command 2"), "{said}");
    assert_eq!(call(&["GET", "k"]).trim(), "again");
}

#[test]
fn in_a_mounted_store_the_keys_are_seen_all_at_once_or_are_in_the_transaction() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let input = p.mnt().join("in.csv");
    fs::write(&input, "a,1\nb,2\n").expect("written");
    assert_eq!(succeeds(&mut load(&p.mnt(), &input)), "2 loaded\n");
    assert_eq!(p.ask(&["GET", "b"]), "2");
    assert_eq!(succeeds(kvfs(&["txn", "list", "--json"]).arg(p.mnt())).trim(), "[]");
    // A run that fails also discards the loaded keys.
    let script =
        format!("{} kv load . in.csv && {0} kv put . c 3 && exit 7", env!("CARGO_BIN_EXE_kvfs"));
    fs::write(&input, "a,changed\n").expect("written");
    let mut run = kvfs(&["run"]);
    run.arg(p.mnt()).args(["--", "sh", "-c", &format!("cd $KVFS_MOUNT; {script}")]);
    fails(7, run.stdin(Stdio::null()));
    assert_eq!(p.ask(&["GET", "a"]), "1");
    succeeds(&mut p.umount());
}
