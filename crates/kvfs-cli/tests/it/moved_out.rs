//! Tests that data which is moved from one place of a store to another is in one of them after
//! every kill.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::place::{Place, kill, kvfs, succeeds, until};
use rustix::process::Signal;

/// When the daemon is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    WhileItIsMoved,
    AfterTheMove,
    WhileTheCloneIsDropped,
    AfterTheDrop,
}

fn on(p: &Place, words: &[&str], names: &[&str]) -> Command {
    let mut command = kvfs(words);
    command.arg(p.mnt()).args(names).stdin(Stdio::null());
    command
}

fn killed(p: &Place, pid: i32) {
    kill(pid, Signal::KILL);
    let gone = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z "))
    };
    until("the daemon is gone", gone);
    p.mounted();
}

fn holds(path: &Path, content: &[u8]) -> bool {
    fs::read(path).is_ok_and(|read| read == content)
}

#[test]
fn a_file_is_in_the_clone_or_in_the_store_whenever_the_daemon_is_killed() {
    use Moment::*;
    let Some(p) = Place::new() else { return };
    p.mounted();
    succeeds(&mut on(&p, &["snapshot", "create"], &["base"]));
    let moments = [WhileItIsMoved, AfterTheMove, WhileTheCloneIsDropped, AfterTheDrop];
    for (round, moment) in [moments, moments].concat().into_iter().enumerate() {
        let (name, pid) = (format!("file{round}"), p.pid());
        let size = [100, 5000, 300_000, 3_000_000][round * 3 % 4];
        let content: Vec<u8> = (0..size).map(|n: usize| (n * 7 + round) as u8).collect();
        succeeds(&mut on(&p, &["clone", "create"], &["base", "work"]));
        let from = p.mnt().join(".kvfs/clone/work").join(&name);
        let mut file = fs::File::create(&from).expect("made");
        file.write_all(&content).expect("written");
        file.sync_all().expect("synced");
        drop(file);
        let mut mv = Command::new("mv");
        mv.arg(&from).arg(p.mnt()).stdin(Stdio::null()).stderr(Stdio::null());
        let mut under_way = None;
        if moment == WhileItIsMoved {
            under_way = Some(mv.spawn().expect("mv runs"));
        } else {
            assert!(mv.status().expect("mv runs").success());
        }
        let mut drop_clone = on(&p, &["clone", "drop"], &["work"]);
        match moment {
            WhileTheCloneIsDropped => {
                drop_clone.stderr(Stdio::null());
                under_way = Some(drop_clone.spawn().expect("kvfs runs"));
            }
            AfterTheDrop => drop(succeeds(&mut drop_clone)),
            _ => {}
        }
        killed(&p, pid);
        if let Some(mut child) = under_way {
            child.wait().expect("it ends");
        }
        let (here, there) = (holds(&p.mnt().join(&name), &content), holds(&from, &content));
        assert!(here || there, "round {round}, {moment:?}: the file of {size} bytes is gone");
        let dropped = !from.parent().expect("its directory").exists();
        assert!(here || !dropped && moment != AfterTheDrop, "round {round}, {moment:?}");
        if !dropped {
            succeeds(&mut on(&p, &["clone", "drop"], &["work"]));
        }
    }
    succeeds(&mut p.umount());
    succeeds(kvfs(&["check"]).arg(p.store()).stdin(Stdio::null()));
}

#[test]
fn a_value_that_was_copied_to_a_file_is_there_when_its_dictionary_is_not() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let value = "v".repeat(20_000);
    for (round, in_clone) in [false, true].into_iter().enumerate() {
        let root = if in_clone { p.mnt().join(".kvfs/clone/work") } else { p.mnt() };
        if in_clone {
            succeeds(&mut on(&p, &["snapshot", "create"], &["base"]));
            succeeds(&mut on(&p, &["clone", "create"], &["base", "work"]));
        }
        let put = &mut kvfs(&["kv", "-d", "old", "put"]);
        succeeds(put.arg(&root).args(["key", &value]).stdin(Stdio::null()));
        let pid = p.pid();
        // Neither the file nor its directory is synced.
        let copy = root.join(format!("copy{round}"));
        fs::write(&copy, &value).expect("written");
        let drop_it = &mut kvfs(&["kv", "call"]);
        succeeds(drop_it.arg(&root).args(["DICT", "DROP", "old"]).stdin(Stdio::null()));
        killed(&p, pid);
        assert!(holds(&copy, value.as_bytes()), "the dictionary is dropped, and the copy is lost");
    }
    succeeds(&mut p.umount());
}
