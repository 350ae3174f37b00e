//! Tests of stores and directories whose paths are not UTF-8, and of the messages of commands about
//! them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::place::{Place, kvfs};
use serde_json::Value;

fn odd(directory: &Path, name: &[u8]) -> PathBuf {
    directory.join(OsStr::from_bytes(name))
}

/// Returns the outputs of a command with and without `--json`, which must both succeed.
#[track_caller]
fn said(words: &[&OsStr]) -> Value {
    let ended = command(words).output().expect("kvfs runs");
    assert!(ended.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ended.stderr));
    serde_json::from_slice(&ended.stdout).unwrap_or(Value::Null)
}

fn command(words: &[&OsStr]) -> Command {
    let mut command = kvfs(&[]);
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

#[test]
fn every_command_takes_a_store_whose_path_is_not_text() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = odd(directory.path(), b"s\xff.kvfs");
    let (at, json) = (store.as_os_str(), OsStr::new("--json"));
    let word = OsStr::new;
    let made = said(&[word("create"), at, json]);
    let encoded = made["store_base64"].as_str().expect("every byte of it");
    assert!(!encoded.is_empty() && made["store"].is_null(), "{made}");
    said(&[word("snapshot"), word("create"), at, word("s")]);
    let stream = odd(directory.path(), b"\xfe.stream");
    let out = odd(directory.path(), b"\xfe");
    let commands: [&[&OsStr]; 7] = [
        &[word("check"), at],
        &[word("stat"), at],
        &[word("scrub"), at],
        &[word("defrag"), at],
        &[word("compact"), at],
        &[word("send"), at, word("s"), word("-o"), stream.as_os_str()],
        &[word("salvage"), at, out.as_os_str()],
    ];
    for words in commands {
        said(&[words, &[json]].concat().to_vec()[..]);
        let _ = fs::remove_dir_all(&out);
        said(words);
    }
}

#[test]
fn a_store_is_mounted_and_unmounted_where_no_path_is_text() {
    let Some(p) = Place::new() else { return };
    // The mount point is below that of the place, which unmounts it, too.
    let store = odd(p.dir.path(), b"s\xff\n.kvfs");
    let mnt = odd(p.dir.path(), b"mnt\xff\n");
    fs::create_dir(&mnt).expect("mkdir");
    let (at, on, json) = (store.as_os_str(), mnt.as_os_str(), OsStr::new("--json"));
    let word = OsStr::new;
    said(&[word("create"), at]);
    let mounted = said(&[word("mount"), at, on, json]);
    assert!(mounted["mount_point_base64"].is_string() && mounted["pid"].is_u64(), "{mounted}");
    let stat = said(&[word("stat"), on, json]);
    assert!(stat["daemon"]["store_base64"].is_string(), "{}", stat["daemon"]);
    said(&[word("stat"), on]);
    said(&[word("top"), on, json]);
    let begun = said(&[word("txn"), word("begin"), on, json]);
    assert!(begun["view_base64"].is_string(), "{begun}");
    let ended = said(&[word("umount"), on, json]);
    assert!(ended["target_base64"].is_string(), "{ended}");
    said(&[word("check"), at]);
}
