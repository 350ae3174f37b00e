//! Events for programs that watch files with inotify(7) or fanotify(7).
//!
//! The kernel raises events for what is done through it, and a commit is not. So what a commit, an
//! undo or a rollback has changed is done again afterwards, through the mount, by a thread of which
//! the adapter knows that nothing is to be changed (`shown_changes`): names that are new are made,
//! names that are gone are removed, times are set to what they are, and files are opened for
//! writing and closed. So a watcher of a directory is told `IN_CREATE`, `IN_MODIFY` and
//! `IN_CLOSE_WRITE` of a name that is new or was replaced, `IN_DELETE` of one that is gone, and
//! `IN_MODIFY` of the directory itself. `IN_MOVED_*` are not to be had: a rename is a removal and a
//! new name.
//!
//! It is done when `commit` has returned, by a thread that holds no lock, and where nobody watches
//! not at all: `/proc/*/fdinfo` says which file systems are watched, and is read at most twice a
//! second. That nothing is watched is believed of what was committed before the look alone: who
//! begins to watch and then commits is told, if up to half a second later. A file that can be
//! executed is not opened, as that would keep a program from being started from it at that moment.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvfs::{ChangeSet, Fs};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};

use crate::handler::{Attr, FileKind, Ino, Timestamp};
use crate::mount_root::{MountRoot, open_by_handle};
use crate::node_id;
use crate::shown_changes::{ShownChange, ShownChanges};
use crate::unshared_thread::UnsharedThread;

/// Names and files of one commit that are touched; of a larger one its directories alone are.
const MOST: usize = 1000;
/// Commits that wait for it one by one; of what comes beyond the directories alone are touched.
const WAITING: usize = 256;
/// The time from one look at who watches to the next.
const PAUSE: Duration = Duration::from_millis(500);
/// A thread that waits for it looks this often whether it is to end.
const GLANCE: Duration = Duration::from_millis(20);

type Work = Box<dyn FnOnce() + Send>;

pub(crate) struct WatchEvents {
    /// It makes the calls. No descriptor of the daemon is valid there, so it must not read from the
    /// store.
    thread: Arc<UnsharedThread>,
    /// Looks who watches, and what there is to be shown. `None`: it has stopped.
    work: Mutex<Option<Sender<Work>>>,
    looker: Mutex<Option<JoinHandle<()>>>,
    mount_root: MountRoot,
    shown: Arc<ShownChanges>,
    waiting: Arc<Waiting>,
}

/// What waits for the thread.
#[derive(Default)]
struct Waiting {
    touched: Mutex<VecDeque<Touched>>,
    /// When the last look at who watches began, and what it found.
    looked: Mutex<Option<(Instant, bool)>>,
    stopping: AtomicBool,
}

/// What is to be touched of a view.
struct Touched {
    view: u16,
    fs: Fs,
    /// When it was committed, or a moment later.
    committed: Instant,
    /// Directories whose entries have changed, with the names that are there.
    names: BTreeMap<Ino, Vec<Box<[u8]>>>,
    /// Names that are gone, and what they stood for.
    removed: Vec<(Ino, Box<[u8]>, FileKind)>,
    /// Other files that have changed.
    files: Vec<Ino>,
}

impl WatchEvents {
    /// Calls of its thread change nothing from now on, by `shown`.
    pub fn start(mount_root: MountRoot, shown: Arc<ShownChanges>) -> io::Result<WatchEvents> {
        let thread = Arc::new(UnsharedThread::start("fuse-events")?);
        let number = thread.ask(|| rustix::thread::gettid().as_raw_nonzero().get());
        shown.set_thread(number?.unsigned_abs());
        let (work, given) = channel::<Work>();
        let run = move || given.into_iter().for_each(|work| work());
        let looker = std::thread::Builder::new().name("fuse-watchers".into()).spawn(run)?;
        let (work, looker) = (Mutex::new(Some(work)), Mutex::new(Some(looker)));
        Ok(WatchEvents { thread, work, looker, mount_root, shown, waiting: Arc::default() })
    }

    /// Has events raised for what has changed in a view. Returns at once.
    pub fn raise(&self, view: u16, fs: &Fs, changes: &ChangeSet) {
        let changes = changes.exact.as_deref().unwrap_or(changes);
        let known = |ino: &Ino| fs.is_referenced(*ino);
        let few = changes.names.len() + changes.inodes.len() <= MOST;
        let mut names: BTreeMap<Ino, Vec<Box<[u8]>>> = BTreeMap::new();
        for (dir, name, removed) in changes.names.iter().filter(|(dir, ..)| known(dir)) {
            if names.len() < MOST || names.contains_key(dir) {
                let of_dir = names.entry(*dir).or_default();
                of_dir.extend((few && !removed).then(|| name.clone()));
            }
        }
        let removed = changes.removed.iter().filter(|(dir, ..)| few && known(dir));
        let removed = removed.cloned().collect();
        let files = changes.inodes.iter().filter(|(ino, removed)| few && !removed && known(ino));
        let files: Vec<Ino> = files.map(|(ino, _)| *ino).collect();
        if names.is_empty() && files.is_empty() {
            return;
        }
        let committed = Instant::now();
        let touched = Touched { view, fs: fs.clone(), committed, names, removed, files };
        if !self.waiting.add(touched) {
            return;
        }
        let (root, waiting, shown) =
            (self.mount_root.clone(), self.waiting.clone(), self.shown.clone());
        let thread = self.thread.clone();
        let work = move || {
            // It is added to until it is looked at.
            waiting.look(&root);
            let Some(touched) = waiting.touched.lock().pop_front() else { return };
            if waiting.stopping.load(Ordering::Relaxed)
                || !waiting.is_watched_since(touched.committed)
            {
                return;
            }
            let found = touched.find();
            // An error means that the mount has ended.
            let _ = thread.ask(move || {
                if let Ok(root) = root.open() {
                    found.touch(&root, &shown);
                }
            });
        };
        if let Some(work_of) = &*self.work.lock() {
            let _ = work_of.send(Box::new(work));
        }
    }

    pub fn stop(&self) {
        self.waiting.stopping.store(true, Ordering::Relaxed);
        drop(self.work.lock().take());
        if let Some(looker) = self.looker.lock().take() {
            let _ = looker.join();
        }
        self.thread.stop();
    }
}

impl Waiting {
    /// Returns whether the thread has one more to look at: of what is too much the directories are
    /// added to those of the last one.
    fn add(&self, touched: Touched) -> bool {
        let mut waiting = self.touched.lock();
        if waiting.len() >= WAITING
            && let Some(last) = waiting.back_mut().filter(|last| last.view == touched.view)
        {
            for dir in touched.names.into_keys() {
                if last.names.len() < MOST {
                    last.names.entry(dir).or_default();
                }
            }
            last.committed = touched.committed;
            return false;
        }
        waiting.push_back(touched);
        true
    }

    /// Looks who watches, if the last look began before the oldest commit that waits, and then half
    /// a second after that look at the earliest.
    fn look(&self, root: &MountRoot) {
        let Some(committed) = self.touched.lock().front().map(|touched| touched.committed) else {
            return;
        };
        let last = *self.looked.lock();
        if last.is_some_and(|(at, watched)| at >= committed || watched && at.elapsed() < PAUSE) {
            return;
        }
        while last.is_some_and(|(at, _)| at.elapsed() < PAUSE) {
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(GLANCE);
        }
        let began = Instant::now();
        let watched = has_watchers(root.device());
        *self.looked.lock() = Some((began, watched));
    }

    /// Whether the last look found a watcher. One that found none, and was before that commit, says
    /// nothing of it.
    fn is_watched_since(&self, committed: Instant) -> bool {
        self.looked.lock().is_some_and(|(at, watched)| watched || at < committed)
    }
}

/// Names of a directory, and the files that they stand for.
type Entries = Vec<(Box<[u8]>, Attr)>;

/// What is touched, as it is in the store.
struct Found {
    view: u16,
    /// Directories, each with what its names stand for.
    names: Vec<(Ino, Option<Attr>, Entries)>,
    removed: Vec<(Ino, Box<[u8]>, FileKind)>,
    /// Files whose names are not among these.
    files: Vec<Attr>,
}

impl Touched {
    /// What cannot be found has gone since.
    fn find(self) -> Found {
        let (fs, mut named) = (self.fs, BTreeSet::new());
        let mut names = Vec::new();
        for (dir, of_dir) in self.names {
            let found = of_dir.into_iter().filter_map(|name| {
                let (ino, _) = fs.peek(dir, &name).ok()??;
                named.insert(ino);
                Some((name, fs.getattr(ino).ok()?))
            });
            let found: Vec<_> = found.collect();
            names.push((dir, fs.getattr(dir).ok(), found));
        }
        let files = self.files.iter().filter(|ino| !named.contains(ino));
        let files = files.filter_map(|ino| fs.getattr(*ino).ok()).collect();
        Found { view: self.view, names, removed: self.removed, files }
    }
}

impl Found {
    /// What cannot be touched is not in the kernel's memory.
    fn touch(self, root: &File, shown: &ShownChanges) {
        let directory = |dir| {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY;
            open_by_handle(root, node_id::of(self.view, dir), flags)
        };
        for (dir, attr_of_dir, names) in &self.names {
            let Ok(at) = directory(*dir) else { continue };
            for (name, attr) in names {
                let of = node_id::of(self.view, *dir);
                shown.show(of, name, ShownChange::Made, || make(&at, name, attr));
                let _ = rustix::fs::utimensat(
                    &at,
                    &**name,
                    &mtime(attr.mtime),
                    AtFlags::SYMLINK_NOFOLLOW,
                );
                if is_opened(attr) {
                    let flags = OFlags::WRONLY
                        | OFlags::NONBLOCK
                        | OFlags::NOFOLLOW
                        | OFlags::CLOEXEC
                        | OFlags::NOCTTY;
                    drop(rustix::fs::openat(&at, &**name, flags, Mode::empty()));
                }
            }
            if let Some(attr) = attr_of_dir {
                let _ = rustix::fs::futimens(&at, &mtime(attr.mtime));
            }
        }
        // After what is new: of a directory that has moved the kernel then knows where it is.
        for (dir, name, kind) in &self.removed {
            let Ok(at) = directory(*dir) else { continue };
            let flags = if *kind == FileKind::Dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            let unlink = || rustix::fs::unlinkat(&at, &**name, flags);
            let of = node_id::of(self.view, *dir);
            let _ = shown.show(of, name, ShownChange::Removed(*kind), unlink);
        }
        for attr in self.files.iter().filter(|attr| attr.kind == FileKind::File) {
            let node = node_id::of(self.view, attr.ino);
            if let Ok(file) = open_by_handle(root, node, libc::O_RDONLY) {
                let _ = rustix::fs::futimens(&file, &mtime(attr.mtime));
                if is_opened(attr) {
                    drop(open_by_handle(root, node, libc::O_WRONLY));
                }
            }
        }
    }
}

/// Makes what is there already: an error means that the kernel knows of it.
fn make(at: &File, name: &[u8], attr: &Attr) {
    let mode = Mode::from_raw_mode(attr.perm.into());
    let node = |kind| rustix::fs::mknodat(at, name, kind, mode, 0);
    let _ = match attr.kind {
        FileKind::Dir => rustix::fs::mkdirat(at, name, mode),
        FileKind::Symlink => rustix::fs::symlinkat(".", at, name),
        FileKind::File => node(FileType::RegularFile),
        FileKind::Fifo => node(FileType::Fifo),
        FileKind::Socket => node(FileType::Socket),
        // The kernel asks for more rights than the daemon may have.
        FileKind::CharDevice | FileKind::BlockDevice => return,
    };
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

#[cfg(test)]
mod tests {
    use kvdb::Kvdb;
    use kvfs::{Caller, FsOptions, ROOT, Views};

    use super::*;
    use crate::fuse_adapter::FuseAdapter;
    use crate::handler::{Errno, Handler, Shown};

    /// The kernel would let go of what it has of a file that was made again since.
    #[test]
    fn a_name_that_is_there_is_not_shown_as_removed() {
        let db = Kvdb::in_memory();
        let fs = Fs::open(db.clone(), Arc::new(env::Machine::default()), FsOptions::default());
        let adapter = FuseAdapter::new(Views::new(db, fs.unwrap()));
        let changes = adapter.shown_changes().clone();
        changes.set_thread(7);
        let (root, caller) = (node_id::of(0, ROOT), Caller { uid: 0, gid: 0, pid: 7 });
        let removed = ShownChange::Removed(FileKind::File);
        let shown = || adapter.shown(root, b"f", caller);
        let gone = changes.show(root, b"f", removed, shown);
        assert!(matches!(gone, Some(Ok(Shown::Removed(_)))), "{gone:?}");
        adapter.mknod(root, b"f", FileKind::File, 0o644, 0, Caller::default()).unwrap();
        let there = changes.show(root, b"f", removed, shown);
        assert!(matches!(there, Some(Err(Errno(libc::EBUSY)))), "{there:?}");
        assert!(adapter.shown(root, b"f", caller).is_none(), "nothing is shown now");
    }
}
