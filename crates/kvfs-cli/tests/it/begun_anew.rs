//! A long run with a keeper whose daemon dies in several ways. Contents stay correct, listings
//! continue, and the keeper gives up on a daemon that dies repeatedly.
//!
//! `KVFS_SEED` and `KVFS_KILLS` repeat and lengthen the run of random writes.

use crate::place;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::kept::Kept;
use crate::place::{fails, is_alive, kill, kvfs, succeeds, until};
use rustix::process::Signal;

/// Returns the entry of `kvfs stat` for the daemon, once the daemon that serves is recorded.
fn daemon_of(kept: &Kept) -> serde_json::Value {
    let mut daemon = serde_json::Value::Null;
    until("the daemon is recorded", || {
        let said = kvfs(&["stat", "--json"]).arg(kept.place.mnt()).output().expect("kvfs runs");
        let stat = serde_json::from_slice::<serde_json::Value>(&said.stdout).unwrap_or_default();
        daemon = stat["daemon"].clone();
        daemon["pid"].as_i64() == Some(kept.daemon().into())
    });
    daemon
}

#[test]
fn stat_says_how_often_the_daemon_was_begun_anew_and_why() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    let at = kept.place.mnt();
    assert_eq!(daemon_of(&kept)["begun_anew"], 0);
    assert!(succeeds(kvfs(&["stat"]).arg(&at)).contains("has not begun the daemon anew\n"));
    kept.kill();
    let daemon = daemon_of(&kept);
    assert_eq!(
        (&daemon["begun_anew"], &daemon["last_end"]),
        (&1.into(), &"was ended by signal 9".into())
    );
    let before = kept.daemon();
    kill(before, Signal::ABORT);
    until("there is another daemon", || kept.daemon() != before);
    let daemon = daemon_of(&kept);
    assert_eq!(
        (&daemon["begun_anew"], &daemon["last_end"]),
        (&2.into(), &"was ended by signal 6".into())
    );
    let said = succeeds(kvfs(&["stat"]).arg(&at));
    let line = "has begun the daemon anew 2 times; the last one was ended by signal 6\n";
    assert!(said.contains(line), "{said}");
    // An upgrade is not counted as a death.
    succeeds(kvfs(&["mount", "--upgrade"]).arg(&at));
    let daemon = daemon_of(&kept);
    assert_eq!((&daemon["begun_anew"], &daemon["last_end"]), (&2.into(), &().into()));
    kept.end();
}

/// The keeper, which is stopped until this is dropped.
struct Stopped(i32);

impl Stopped {
    fn new(kept: &Kept) -> Stopped {
        kill(kept.keeper, Signal::STOP);
        Stopped(kept.keeper)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, Signal::CONT);
    }
}

#[test]
fn a_daemon_that_is_killed_before_it_acts_on_a_signal_is_followed_by_one_that_does() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    fs::write(kept.place.mnt().join("f"), b"content").expect("written");
    let daemon = daemon_of(&kept)["pid"].as_i64().expect("a pid") as i32;
    kill(daemon, Signal::STOP);
    let threads = || fs::read_dir(format!("/proc/{daemon}/task")).expect("it is there");
    until("each of its threads is stopped", || {
        threads().flatten().all(|thread| {
            fs::read_to_string(thread.path().join("stat")).is_ok_and(|stat| stat.contains(") T "))
        })
    });
    kill(kept.keeper, Signal::TERM);
    let pending = || {
        let status = fs::read_to_string(format!("/proc/{daemon}/status")).expect("it is there");
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        u64::from_str_radix(pending.expect("a set").trim(), 16).expect("a number")
    };
    until("it is passed on", || pending() & 1 << (libc::SIGTERM - 1) != 0);
    kill(daemon, Signal::KILL);
    until("the keeper has ended", || !is_alive(kept.keeper));
    assert!(kept.place.entry().is_none());
    assert!(succeeds(kvfs(&["check"]).arg(kept.place.store())).contains("clean"));
}

#[test]
fn a_command_between_two_daemons_waits_for_the_second_one() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    let at = kept.place.mnt();
    kept.place.ask(&["SET", "k", "v"]);
    fs::write(at.join("f"), b"content").expect("written");
    let commands: [&[&str]; 5] = [
        &["kv", "get", "MNT", "k"],
        &["stat", "MNT"],
        &["cat", "MNT", "f"],
        &["mount", "--upgrade", "MNT"],
        &["umount", "MNT"],
    ];
    for words in commands {
        let before = daemon_of(&kept)["pid"].as_i64().expect("a pid") as i32;
        kill(before, Signal::KILL);
        // A daemon that is being killed still accepts calls.
        until("it has ended", || !is_alive(before));
        let mut command = kvfs(&[]);
        command.args(words.iter().map(|word| match *word {
            "MNT" => at.clone().into_os_string(),
            word => word.into(),
        }));
        let said = succeeds(&mut command);
        match words[0] {
            "kv" => assert_eq!(said, "v"),
            "cat" => assert_eq!(said, "content"),
            _ => {}
        }
    }
    // An unmount returns when all is on disk and the store is free.
    until("the keeper has ended", || !is_alive(kept.keeper));
    assert!(succeeds(kvfs(&["check"]).arg(kept.place.store())).contains("clean"));
}

#[test]
fn a_command_does_not_wait_where_the_keeper_is_stopped() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    let daemon = daemon_of(&kept)["pid"].as_i64().expect("a pid") as i32;
    let stopped = Stopped::new(&kept);
    kill(daemon, Signal::KILL);
    until("it has ended", || !is_alive(daemon));
    let said = fails(3, kvfs(&["kv", "get"]).arg(kept.place.mnt()).arg("k"));
    assert!(said.contains("neither a store nor the directory of a mounted one"), "{said}");
    drop(stopped);
    daemon_of(&kept);
    kept.end();
}

#[test]
fn a_mount_without_a_keeper_says_nothing_of_one() {
    let Some(place) = place::Place::new() else { return };
    place.mounted();
    assert!(!succeeds(kvfs(&["stat"]).arg(place.mnt())).contains("keeper"));
    succeeds(&mut place.umount());
}

#[test]
fn a_listing_that_is_half_read_goes_on() {
    const FILES: usize = 3000;
    let Some(kept) = Kept::new("nowriteback") else { return };
    let at = kept.place.mnt();
    (0..FILES).for_each(|n| drop(File::create_new(at.join(n.to_string())).expect("made")));
    let mut listed: BTreeMap<_, usize> = BTreeMap::new();
    for (n, entry) in fs::read_dir(&at).expect("listed").enumerate() {
        // The kernel is asked for some hundred names at a time.
        if n % 700 == 350 {
            match n % 1400 {
                350 => kept.kill(),
                _ => {
                    daemon_of(&kept);
                    succeeds(kvfs(&["mount", "--upgrade"]).arg(&at));
                }
            }
        }
        *listed.entry(entry.expect("an entry").file_name()).or_default() += 1;
    }
    assert_eq!(listed.len(), FILES);
    assert!(listed.values().all(|times| *times == 1));
    kept.end();
}

/// No daemon follows.
fn given_up(kept: &Kept) -> bool {
    !is_alive(kept.keeper)
}

#[test]
fn a_daemon_that_crashes_again_and_again_is_given_up_and_nothing_is_lost() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    let at = kept.place.mnt();
    let log = daemon_of(&kept)["log"].as_str().expect("a log").to_string();
    let mut written = 0;
    while !given_up(&kept) {
        fs::write(at.join(written.to_string()), written.to_string()).expect("written");
        written += 1;
        assert!(written < 50, "it is not given up");
        let before = kept.daemon();
        kill(before, Signal::ABORT);
        until("another daemon answers, or none follows", || {
            given_up(&kept) || is_another(&kept, before)
        });
    }
    assert!(written > 3, "a daemon that crashes once is not given up");
    let said = fs::read_to_string(&log).expect("a log");
    assert!(said.contains("was ended by signal 6"), "{said}");
    assert!(said.contains("none is begun anew, and the mount is dead"), "{said}");
    assert!(said.contains("what calls had done is on disk"), "{said}");
    // The kernel never answers this by itself.
    let dead = rustix::io::Errno::NOTCONN;
    until("it is dead", || rustix::fs::statvfs(&at).is_err_and(|e| e == dead));
    // The next mount has all of it.
    succeeds(kept.place.mount(&[]).stdin(std::process::Stdio::null()));
    for n in 0..written {
        let content = fs::read_to_string(at.join(n.to_string())).expect("it is there");
        assert_eq!(content, n.to_string());
    }
    succeeds(&mut kept.place.umount());
    assert!(succeeds(kvfs(&["check"]).arg(kept.place.store())).contains("clean"));
}

/// Waits until a daemon other than `before` answers.
fn is_another(kept: &Kept, before: i32) -> bool {
    let children = format!("/proc/{0}/task/{0}/children", kept.keeper);
    let children = fs::read_to_string(children).unwrap_or_default();
    let now = children.split_whitespace().last().and_then(|pid| pid.parse::<i32>().ok());
    now.is_some_and(|now| now != before) && rustix::fs::statvfs(kept.place.mnt()).is_ok()
}

/// Simulates a machine that has no memory for another process, or no number for it.
#[test]
fn a_daemon_that_cannot_be_started_is_started_later() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    let file = File::create_new(kept.place.mnt().join("f")).expect("made");
    file.write_all_at(b"content", 0).expect("written");
    let limit = |soft: u64| {
        let new = libc::rlimit { rlim_cur: soft, rlim_max: 1024 };
        // SAFETY: the new limit lives until the call returns, and the old one is not asked for.
        let set =
            unsafe { libc::prlimit(kept.keeper, libc::RLIMIT_NOFILE, &new, std::ptr::null_mut()) };
        assert_eq!(set, 0);
    };
    // Its descriptors exist, and no further one is available.
    limit(3);
    kill(kept.daemon(), Signal::KILL);
    let children = format!("/proc/{0}/task/{0}/children", kept.keeper);
    // The keeper waits for a second, during which it does not notice the end of a process.
    let sleeps = || {
        let waits = fs::read_to_string(format!("/proc/{}/wchan", kept.keeper));
        let children = fs::read_to_string(&children);
        children.is_ok_and(|children| children.is_empty())
            && waits.is_ok_and(|waits| waits.contains("nanosleep"))
    };
    until("there is no daemon", sleeps);
    limit(1024);
    let mut content = [0; 7];
    file.read_exact_at(&mut content, 0).expect("read");
    assert_eq!(&content, b"content");
    let daemon = daemon_of(&kept);
    let last = daemon["last_end"].as_str().expect("it is said");
    assert!(last.starts_with("could not be started: Too many open files"), "{last}");
    drop(file);
    kept.end();
}

/// A small generator of random numbers: the same calls for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n.max(1)
    }
}

/// Files under random calls, and the expected content of each.
struct Writer<'a> {
    at: &'a Path,
    random: Random,
    /// Open files, with a name or unlinked.
    open: BTreeMap<u64, (File, Vec<u8>)>,
    names: BTreeMap<String, u64>,
    made: u64,
}

impl Writer<'_> {
    /// The name and number of some file with a name.
    fn some(&mut self) -> Option<(String, u64)> {
        let nth = self.random.below(self.names.len() as u64) as usize;
        self.names.iter().nth(nth).map(|(name, number)| (name.clone(), *number))
    }

    fn write(&mut self, file: u64, at: usize, length: usize) {
        let byte = self.random.below(256) as u8;
        let Some((file, model)) = self.open.get_mut(&file) else { return };
        let bytes = vec![byte; length];
        file.write_all_at(&bytes, at as u64).expect("written");
        model.resize(model.len().max(at + length), 0);
        model[at..at + length].copy_from_slice(&bytes);
    }

    fn step(&mut self) {
        let kind = self.random.below(10);
        let Some((name, number)) = self.some().filter(|_| kind > 0) else {
            // Few are kept.
            if self.names.len() < 20 {
                let name = format!("f{}", self.made);
                let mut options = File::options();
                let options = options.read(true).write(true).create_new(true);
                let file = options.open(self.at.join(&name)).expect("made");
                self.open.insert(self.made, (file, Vec::new()));
                self.names.insert(name, self.made);
                self.made += 1;
            }
            return;
        };
        let length = self.open[&number].1.len();
        match kind {
            1..=3 => {
                let at = self.random.below(length as u64 + 5000) as usize;
                let length = 1 + self.random.below(20_000) as usize;
                self.write(number, at.min(200_000), length);
            }
            4 => {
                let length = self.random.below(length as u64 + 1000);
                let (file, model) = self.open.get_mut(&number).expect("it is open");
                file.set_len(length).expect("cut");
                model.resize(length as usize, 0);
            }
            5 => {
                let to = format!("r{}", self.random.below(1 << 40));
                fs::rename(self.at.join(&name), self.at.join(&to)).expect("renamed");
                self.names.remove(&name);
                self.names.insert(to, number);
            }
            6 if self.names.len() > 5 => {
                fs::remove_file(self.at.join(&name)).expect("removed");
                self.names.remove(&name);
                // The file stays open, and the one that has been without a name for the longest
                // time is closed.
                let nameless: Vec<_> =
                    self.open.keys().filter(|n| !self.names.values().any(|m| m == *n)).collect();
                if let [first, _, _, ..] = nameless[..] {
                    let first = *first;
                    self.open.remove(&first);
                }
            }
            7 => self.open[&number].0.sync_all().expect("synced"),
            _ => self.look(),
        }
    }

    fn look(&self) {
        for (number, (file, model)) in &self.open {
            let mut content = vec![0; model.len()];
            file.read_exact_at(&mut content, 0).expect("read");
            assert!(content == *model, "file {number} of {} bytes is another", model.len());
            assert_eq!(file.metadata().expect("attributes").len(), model.len() as u64);
        }
        let mut listed: Vec<_> = fs::read_dir(self.at)
            .expect("listed")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect();
        listed.sort();
        assert!(listed.iter().eq(self.names.keys()), "{listed:?} {:?}", self.names.keys());
    }
}

/// Stops the writer, also if the test fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn each_byte_is_what_was_written_wherever_daemons_are_killed() {
    let number = |name: &str, or: u64| {
        std::env::var(name).map_or(or, |text| text.parse().expect("a number"))
    };
    let (seed, kills) = (number("KVFS_SEED", 1), number("KVFS_KILLS", 8));
    for mode in ["nowriteback", "writeback"] {
        let Some(kept) = Kept::new(mode) else { return };
        println!("KVFS_SEED={seed} KVFS_KILLS={kills}, {mode}");
        let at = kept.place.mnt().join("d");
        fs::create_dir(&at).expect("made");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let (open, names) = (BTreeMap::new(), BTreeMap::new());
                let random = Random(seed);
                let mut writer = Writer { at: &at, random, open, names, made: 0 };
                let mut steps = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    writer.step();
                    steps += 1;
                }
                writer.look();
                steps
            });
            let _ended = Ended(&over);
            let mut pauses = Random(!seed);
            for _ in 0..kills {
                std::thread::sleep(Duration::from_millis(pauses.below(700)));
                if writer.is_finished() {
                    break;
                }
                kept.kill();
            }
            over.store(true, Ordering::Relaxed);
            let steps = writer.join().expect("no call fails, and each byte is there");
            assert!(steps > kills);
        });
        kept.end();
    }
}
