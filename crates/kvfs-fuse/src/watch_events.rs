//! Events for programs that watch files with inotify(7) or fanotify(7).
//!
//! The kernel raises events for what is done through it, and a commit is not. So what a commit, an
//! undo or a rollback has changed is touched afterwards, through the mount: times are set to what
//! they are, by a thread of which the adapter knows that nothing is to be changed, and files are
//! opened for writing and closed. A watcher of a directory is told `IN_MODIFY` and
//! `IN_CLOSE_WRITE` of the name, whether it is new or changed, and `IN_MODIFY` of the directory
//! itself when names came or went; one that lists the directory then finds what. `IN_CREATE`,
//! `IN_DELETE` and `IN_MOVED_*` are the kernel's to raise, and it does so for its own calls alone.
//!
//! It is done when `commit` has returned, by a thread that holds no lock, and where nobody watches
//! not at all: `/proc/*/fdinfo` says which file systems are watched, and is read at most twice a
//! second. A file that can be executed is not opened, as that would keep a program from being
//! started from it at that moment.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kvfs::{ChangeSet, Fs};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};

use crate::handler::{Attr, FileKind, Ino, Timestamp};
use crate::mount_root::{MountRoot, open_by_handle};
use crate::node_id;
use crate::unshared_thread::UnsharedThread;

/// Names and files of one commit that are touched; of a larger one its directories alone are.
const MOST: usize = 1000;
/// Commits that wait for it; what comes beyond is left out.
const WAITING: usize = 256;
/// How long an answer to the question who watches is believed.
const BELIEVED: Duration = Duration::from_millis(500);

pub(crate) struct WatchEvents {
    thread: UnsharedThread,
    mount_root: MountRoot,
    waiting: Arc<AtomicUsize>,
    watched: Arc<Mutex<Option<(Instant, bool)>>>,
}

/// What is to be touched of a view.
struct Touched {
    view: u16,
    fs: Fs,
    /// Directories whose entries have changed, with the names that are there.
    names: BTreeMap<Ino, Vec<Box<[u8]>>>,
    /// Other files that have changed.
    files: Vec<Ino>,
}

impl WatchEvents {
    pub fn start(mount_root: MountRoot) -> io::Result<WatchEvents> {
        Ok(WatchEvents {
            thread: UnsharedThread::start("fuse-events")?,
            mount_root,
            waiting: Arc::default(),
            watched: Arc::default(),
        })
    }

    /// The number of its thread.
    pub fn thread(&self) -> io::Result<u32> {
        self.thread.ask(|| rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
    }

    /// Has events raised for what has changed in a view. Returns at once.
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
        let touched = Touched { view, fs: fs.clone(), names, files };
        let (root, waiting, watched) =
            (self.mount_root.clone(), self.waiting.clone(), self.watched.clone());
        let work = move || {
            waiting.fetch_sub(1, Ordering::Relaxed);
            if is_watched(root.device(), &watched)
                && let Ok(root) = root.open()
            {
                touched.touch(&root);
            }
        };
        // An error means that the mount has ended.
        let _ = self.thread.begin(work);
    }

    pub fn stop(&self) {
        self.thread.stop();
    }
}

impl Touched {
    /// What cannot be touched has gone since, or is not in the kernel's memory.
    fn touch(self, root: &File) {
        let mut named = BTreeSet::new();
        for (dir, names) in &self.names {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY;
            let Ok(at) = open_by_handle(root, node_id::of(self.view, *dir), flags) else {
                continue;
            };
            for name in names {
                let Ok(Some((ino, _))) = self.fs.peek(*dir, name) else { continue };
                let Ok(attr) = self.fs.getattr(ino) else { continue };
                named.insert(ino);
                let _ = rustix::fs::utimensat(
                    &at,
                    &**name,
                    &mtime(attr.mtime),
                    AtFlags::SYMLINK_NOFOLLOW,
                );
                if is_opened(&attr) {
                    let flags = OFlags::WRONLY
                        | OFlags::NONBLOCK
                        | OFlags::NOFOLLOW
                        | OFlags::CLOEXEC
                        | OFlags::NOCTTY;
                    drop(rustix::fs::openat(&at, &**name, flags, Mode::empty()));
                }
            }
            if let Ok(attr) = self.fs.getattr(*dir) {
                let _ = rustix::fs::futimens(&at, &mtime(attr.mtime));
            }
        }
        for ino in self.files.iter().filter(|ino| !named.contains(ino)) {
            let Ok(attr) = self.fs.getattr(*ino) else { continue };
            let node = node_id::of(self.view, *ino);
            if attr.kind == FileKind::File
                && let Ok(file) = open_by_handle(root, node, libc::O_RDONLY)
            {
                let _ = rustix::fs::futimens(&file, &mtime(attr.mtime));
                if is_opened(&attr) {
                    drop(open_by_handle(root, node, libc::O_WRONLY));
                }
            }
        }
    }
}

fn is_opened(attr: &Attr) -> bool {
    attr.kind == FileKind::File && attr.perm & 0o111 == 0
}

/// Only this time is set: the kernel takes that for a change of the content.
fn mtime(mtime: Timestamp) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() },
    }
}

fn is_watched(device: u64, known: &Mutex<Option<(Instant, bool)>>) -> bool {
    if let Some((asked, watched)) = *known.lock()
        && asked.elapsed() < BELIEVED
    {
        return watched;
    }
    let watched = has_watchers(device);
    *known.lock() = Some((Instant::now(), watched));
    watched
}

/// Whether any process that this one may look at watches the file system of a device.
fn has_watchers(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // The kernel's own form of the number, and what names no file system but any mount.
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
