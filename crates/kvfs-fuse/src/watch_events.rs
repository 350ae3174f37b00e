//! Events for programs that watch files with inotify(7) or fanotify(7).
//!
//! The kernel raises events for system calls, but a commit does not go through the kernel. So the
//! files that a commit, an undo or a rollback has changed are touched afterwards through the mount:
//! a thread sets their times to the current values, which the adapter answers without a change, and
//! opens files for writing and closes them. A watcher of a directory gets `IN_MODIFY` and
//! `IN_CLOSE_WRITE` for a name, whether it is new or changed, and `IN_MODIFY` for the directory
//! itself when names were added or removed; a program that lists the directory then finds the
//! change. `IN_CREATE`, `IN_DELETE` and `IN_MOVED_*` are raised by the kernel alone, and only for
//! its own calls.
//!
//! The events are raised after `commit` has returned, and only if a program watches:
//! `/proc/*/fdinfo` says which file systems are watched, and is read at most twice a second. One
//! thread reads it, and looks up the files to touch in the store without holding a lock. Another
//! thread touches the files; it has no descriptor of the daemon ([`UnsharedThread`]), so it must
//! not use the store. An executable file is not opened, because the file could not be executed at
//! that moment.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvfs::{ChangeSet, Fs};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};

use crate::handler::{Attr, FileKind, Ino, NodeId, Timestamp};
use crate::mount_root::{MountRoot, open_by_handle};
use crate::node_id;
use crate::unshared_thread::UnsharedThread;

/// The maximum number of names and files of one commit that are touched. For a larger commit, only
/// its directories are touched.
const MOST: usize = 1000;
/// The maximum number of commits whose files wait to be touched. Further commits are left out.
const WAITING: usize = 256;
/// The time for which the result of the check for watching programs is reused.
const BELIEVED: Duration = Duration::from_millis(500);

pub(crate) struct WatchEvents {
    /// The queue of the thread that looks up the files to touch, or `None` once the thread has
    /// stopped.
    changed: Mutex<Option<Sender<Changed>>>,
    lookup: Mutex<Option<JoinHandle<()>>>,
    thread: Arc<UnsharedThread>,
    waiting: Arc<AtomicUsize>,
}

/// The changes of a view.
struct Changed {
    view: u16,
    fs: Fs,
    /// The directories whose entries have changed, with the names that exist.
    names: BTreeMap<Ino, Vec<Box<[u8]>>>,
    /// The other files that have changed.
    files: Vec<Ino>,
}

/// A file or a directory that is touched: its current time, and whether it is opened.
#[derive(Clone, Copy)]
struct Touch {
    mtime: Timestamp,
    opened: bool,
}

/// A directory whose entries have changed, with the names that exist.
struct TouchedDirectory {
    node: NodeId,
    itself: Touch,
    names: Vec<(Box<[u8]>, Touch)>,
}

/// The files and directories of a view that are touched.
#[derive(Default)]
struct Touched {
    directories: Vec<TouchedDirectory>,
    files: Vec<(NodeId, Touch)>,
}

impl WatchEvents {
    pub fn start(mount_root: MountRoot) -> io::Result<WatchEvents> {
        let thread = Arc::new(UnsharedThread::start("fuse-events")?);
        let (changed, all) = channel::<Changed>();
        let (toucher, waiting) = (thread.clone(), Arc::<AtomicUsize>::default());
        let begun = waiting.clone();
        let look_up = move || {
            let mut watched = None;
            for changed in all {
                begun.fetch_sub(1, Ordering::Relaxed);
                if !is_watched(mount_root.device(), &mut watched) {
                    continue;
                }
                let (root, touched) = (mount_root.clone(), changed.look_up());
                // An error means that the mount has ended.
                let _ = toucher.ask(move || root.open().map(|root| touched.touch(&root)));
            }
        };
        let lookup = std::thread::Builder::new().name("fuse-watched".into()).spawn(look_up)?;
        let (changed, lookup) = (Mutex::new(Some(changed)), Mutex::new(Some(lookup)));
        Ok(WatchEvents { changed, lookup, thread, waiting })
    }

    /// Returns the number of the thread that touches files.
    pub fn thread(&self) -> io::Result<u32> {
        self.thread.ask(|| rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
    }

    /// Raises events for the changes of a view. Returns at once.
    pub fn raise(&self, view: u16, fs: &Fs, changes: &ChangeSet) {
        let known = |ino: &Ino| fs.is_referenced(*ino);
        let few = changes.names.len() + changes.inodes.len() <= MOST;
        let mut names: BTreeMap<Ino, Vec<Box<[u8]>>> = BTreeMap::new();
        for (dir, name, removed) in changes.names.iter().filter(|(dir, ..)| known(dir)) {
            if names.len() < MOST || names.contains_key(dir) {
                let of_dir = names.entry(*dir).or_default();
                of_dir.extend((few && !removed).then(|| name.clone()));
            }
        }
        let files = changes.inodes.iter().filter(|(ino, removed)| few && !removed && known(ino));
        let files: Vec<Ino> = files.map(|(ino, _)| *ino).collect();
        if names.is_empty() && files.is_empty() {
            return;
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        if let Some(changed) = &*self.changed.lock() {
            // An error means that the thread has ended.
            let _ = changed.send(Changed { view, fs: fs.clone(), names, files });
        }
    }

    pub fn stop(&self) {
        drop(self.changed.lock().take());
        if let Some(lookup) = self.lookup.lock().take() {
            let _ = lookup.join();
        }
        self.thread.stop();
    }
}

impl Touch {
    fn of(attr: &Attr) -> Touch {
        Touch { mtime: attr.mtime, opened: is_opened(attr) }
    }
}

impl Changed {
    /// Looks up the changed files that exist. Files that cannot be read were removed in the
    /// meantime.
    fn look_up(self) -> Touched {
        let (mut touched, mut named) = (Touched::default(), BTreeSet::new());
        for (dir, names) in &self.names {
            let Ok(attr) = self.fs.getattr(*dir) else { continue };
            let (node, itself) = (node_id::of(self.view, *dir), Touch::of(&attr));
            let mut directory = TouchedDirectory { node, itself, names: Vec::new() };
            for name in names {
                if let Ok(Some((ino, _))) = self.fs.peek(*dir, name)
                    && let Ok(attr) = self.fs.getattr(ino)
                {
                    named.insert(ino);
                    directory.names.push((name.clone(), Touch::of(&attr)));
                }
            }
            touched.directories.push(directory);
        }
        for ino in self.files.iter().filter(|ino| !named.contains(ino)) {
            if let Ok(attr) = self.fs.getattr(*ino)
                && attr.kind == FileKind::File
            {
                touched.files.push((node_id::of(self.view, *ino), Touch::of(&attr)));
            }
        }
        touched
    }
}

impl Touched {
    /// Touches all files and directories. Those that cannot be touched were removed in the
    /// meantime, or are not in the kernel's memory.
    fn touch(self, root: &File) {
        for TouchedDirectory { node, itself, names } in &self.directories {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY;
            let Ok(at) = open_by_handle(root, *node, flags) else { continue };
            for (name, touch) in names {
                let times = mtime(touch.mtime);
                let _ = rustix::fs::utimensat(&at, &**name, &times, AtFlags::SYMLINK_NOFOLLOW);
                if touch.opened {
                    let flags = OFlags::WRONLY
                        | OFlags::NONBLOCK
                        | OFlags::NOFOLLOW
                        | OFlags::CLOEXEC
                        | OFlags::NOCTTY;
                    drop(rustix::fs::openat(&at, &**name, flags, Mode::empty()));
                }
            }
            let _ = rustix::fs::futimens(&at, &mtime(itself.mtime));
        }
        for (node, touch) in self.files {
            if let Ok(file) = open_by_handle(root, node, libc::O_RDONLY) {
                let _ = rustix::fs::futimens(&file, &mtime(touch.mtime));
                if touch.opened {
                    drop(open_by_handle(root, node, libc::O_WRONLY));
                }
            }
        }
    }
}

fn is_opened(attr: &Attr) -> bool {
    attr.kind == FileKind::File && attr.perm & 0o111 == 0
}

/// Returns a change of this time alone, which the kernel treats as a change of the content.
fn mtime(mtime: Timestamp) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() },
    }
}

/// Returns whether a program watches the file system. `known` has the time of the last check, and
/// its result.
fn is_watched(device: u64, known: &mut Option<(Instant, bool)>) -> bool {
    if let Some((asked, watched)) = *known
        && asked.elapsed() < BELIEVED
    {
        return watched;
    }
    let watched = has_watchers(device);
    *known = Some((Instant::now(), watched));
    watched
}

/// Returns whether any process that this process may inspect watches the file system of a device.
fn has_watchers(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // The text contains the device number in the kernel's format. A mark of a whole mount names no
    // file system, and so counts in any case.
    let inotify = format!(" sdev:{:x} ", u64::from(major) << 20 | u64::from(minor));
    let is_of_watcher = |target: &Path| {
        matches!(target.to_str(), Some("anon_inode:inotify" | "anon_inode:[fanotify]"))
    };
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if !process.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
            continue;
        }
        let path = process.path();
        for fd in fs::read_dir(path.join("fd")).into_iter().flatten().flatten() {
            if !fs::read_link(fd.path()).is_ok_and(|target| is_of_watcher(&target)) {
                continue;
            }
            let info = fs::read_to_string(path.join("fdinfo").join(fd.file_name()));
            if info.is_ok_and(|info| {
                info.lines()
                    .any(|line| line.contains(&inotify) || line.starts_with("fanotify mnt_id"))
            }) {
                return true;
            }
        }
    }
    false
}
