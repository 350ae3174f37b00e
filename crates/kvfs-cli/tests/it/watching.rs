//! Programs that watch files of a mount by inotify(7) are notified of what commands commit, undo,
//! restore and roll back.

use std::collections::BTreeSet;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::place::{Place, kvfs, succeeds};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

/// A watcher of a directory.
struct Watcher(OwnedFd);

impl Watcher {
    fn of(directory: &Path) -> Watcher {
        let watch = inotify::init(CreateFlags::NONBLOCK).expect("an instance");
        inotify::add_watch(&watch, directory, WatchFlags::ALL_EVENTS).expect("a watch");
        Watcher(watch)
    }

    /// Waits until each of these names was reported as modified. An empty name is the directory
    /// itself.
    fn is_told(&self, names: &[&str]) {
        let mut missing: BTreeSet<&str> = names.iter().copied().collect();
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.0, &mut room);
        let until = Instant::now() + Duration::from_secs(30);
        while !missing.is_empty() {
            assert!(Instant::now() < until, "not told of {missing:?}");
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::MODIFY) => {
                    let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                    missing.remove(name.unwrap_or_default().as_str());
                }
                Ok(_) => {}
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

#[test]
fn runs_undos_restores_and_rollbacks_are_told_to_who_watches_their_directory() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let mnt = p.mnt();
    let dir = mnt.join("d");
    fs::create_dir(&dir).expect("a directory");
    fs::write(dir.join("changed"), "before").expect("a file");
    fs::write(dir.join("removed"), "before").expect("a file");
    succeeds(kvfs(&["snapshot", "create"]).arg(&mnt).arg("before"));
    let watcher = Watcher::of(&dir);
    let script = "echo after > changed && echo x > made && rm removed";
    let run = |script: &str| {
        let script = format!("cd {} && {script}", dir.display());
        succeeds(kvfs(&["run"]).arg(&mnt).args(["--", "sh", "-c"]).arg(script));
    };
    run(script);
    watcher.is_told(&["", "changed", "made"]);
    succeeds(kvfs(&["undo"]).arg(&mnt));
    watcher.is_told(&["", "changed", "removed"]);
    run(script);
    watcher.is_told(&["", "changed", "made"]);
    succeeds(kvfs(&["restore"]).arg(&mnt).args(["before", "d/changed", "d/removed"]));
    watcher.is_told(&["", "changed", "removed"]);
    run(script);
    watcher.is_told(&["", "changed"]);
    let mut rollback = kvfs(&["snapshot", "rollback"]);
    succeeds(rollback.arg(&mnt).arg("before").stdin(Stdio::null()));
    watcher.is_told(&["", "changed", "removed"]);
}
