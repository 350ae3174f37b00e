//! Commands from another name space of processes, as in a container: there the daemon has no
//! process number, and the daemon sees none of theirs.

use std::ffi::OsStr;
use std::fs;
use std::process::{Command, Stdio};

use crate::place::{Place, succeeds};

/// A command in a name space of processes of its own.
fn apart(words: &[&OsStr]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]).args(words).stdin(Stdio::null());
    for name in ["KVFS_TXN", "KVFS_SOCKET", "KVFS_MOUNT"] {
        command.env_remove(name);
    }
    command
}

#[test]
fn commands_of_another_name_space_of_processes_reach_the_daemon() {
    let Some(place) = Place::new() else { return };
    let works = apart(&[OsStr::new("true")]).output();
    if !works.is_ok_and(|ended| ended.status.success()) {
        return eprintln!(
            "SKIPPED: no name space of processes can be made (or unshare is missing)"
        );
    }
    place.mounted();
    let root = place.mnt();
    let kvfs = |before: &[&str], behind: &[&str]| {
        let mut words = vec![OsStr::new(env!("CARGO_BIN_EXE_kvfs"))];
        words.extend(before.iter().map(OsStr::new));
        words.push(root.as_os_str());
        words.extend(behind.iter().map(OsStr::new));
        succeeds(&mut apart(&words))
    };
    let script = "cd \"$KVFS_MOUNT\" && echo done > file";
    kvfs(&["run", "--label", "apart"], &["--", "sh", "-c", script]);
    assert_eq!(fs::read_to_string(root.join("file")).expect("committed"), "done\n");
    assert!(kvfs(&["--json", "history"], &[]).contains("apart"));

    kvfs(&["kv", "put"], &["key", "value"]);
    assert_eq!(kvfs(&["kv", "get"], &["key"]), "value");
    let begun = kvfs(&["txn", "begin"], &[]);
    let id = begun.trim();
    let list = kvfs(&["--json", "txn", "list"], &[]);
    assert!(list.contains(&format!("\"id\":{id}")), "{list}");
    kvfs(&["txn", "abort"], &[id]);
    kvfs(&["stat"], &[]);
}
