//! A mount with a keeper, whose daemon tests kill.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::place::{Place, is_alive, kill, kvfs, succeeds, until};

/// A mount with a keeper.
pub struct Kept {
    pub place: Place,
    pub keeper: i32,
}

pub fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

impl Kept {
    /// Mounts with these options. Returns `None`, after printing the reason, if this process may
    /// not mount.
    pub fn new(options: &str) -> Option<Kept> {
        Kept::with(options, |_| {})
    }

    /// Mounts like [`Kept::new`]. From the call of [`Kept::arm`] on, the daemon is killed at this
    /// point (`KVFS_KILLED_AT`), once.
    pub fn killed_at(options: &str, point: &str) -> Option<Kept> {
        Kept::with(options, |mount| {
            let words: Vec<_> = mount.get_args().map(PathBuf::from).collect();
            let marker = words[1].with_file_name("killed");
            fs::write(&marker, "").expect("written");
            mount.env("KVFS_KILLED_AT", format!("{point}:0:{}", marker.display()));
        })
    }

    fn with(options: &str, change: impl FnOnce(&mut Command)) -> Option<Kept> {
        let place = Place::new()?;
        let mut mount = place.mount(&["--json", "-o", "keeper", "-o", options]);
        change(&mut mount);
        let said = succeeds(mount.stdin(Stdio::null()));
        let value: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let daemon = value["pid"].as_i64().expect("a pid") as i32;
        let keeper = parent_of(daemon).expect("it runs");
        Some(Kept { place, keeper })
    }

    fn marker(&self) -> PathBuf {
        self.place.dir.path().join("killed")
    }

    /// The daemon is killed when it reaches the point.
    pub fn arm(&self) {
        fs::remove_file(self.marker()).expect("it is there");
    }

    /// The daemon was killed at that point.
    pub fn was_killed(&self) -> bool {
        self.marker().exists()
    }

    /// The daemon that was started last. An earlier one may take time to end.
    pub fn daemon(&self) -> i32 {
        let children = format!("/proc/{0}/task/{0}/children", self.keeper);
        let mut daemon = None;
        until("there is a daemon", || {
            let children = fs::read_to_string(&children).expect("the keeper is there");
            daemon = children.split_whitespace().last().and_then(|pid| pid.parse().ok());
            daemon.is_some()
        });
        daemon.expect("it was waited for")
    }

    /// Kills the daemon. When this returns, another daemon answers.
    pub fn kill(&self) {
        let before = self.daemon();
        kill(before, Signal::KILL);
        until("there is another daemon", || self.daemon() != before);
    }

    pub fn end(self) {
        until("it is unmounted", || {
            self.place.umount().output().expect("kvfs runs").status.success()
        });
        until("the keeper has ended", || !is_alive(self.keeper));
        let checked = succeeds(kvfs(&["check"]).arg(self.place.store()));
        assert!(checked.contains("clean"), "{checked}");
    }
}
