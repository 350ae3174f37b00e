//! Tells the kernel which cached data is stale when a view changes or ends.
//!
//! Such a message makes the kernel take the lock of an inode. A program that waits for an answer of
//! this daemon may hold that lock, so no thread that answers requests sends such a message (except
//! a message about attributes alone, which takes no lock: `connection`), and no thread that sends
//! one holds a lock that an answer needs. The thread that ends a view sends the messages itself,
//! because waking another thread would take longer than sending them. Programs that have these
//! directories and files open see the change from then on. (`abort_watchdog` handles a daemon that
//! is killed while it sends a message.)
//!
//! - Names that were made, replaced or removed are looked up again. They are expired and not torn
//!   out (`INVAL_ENTRY_EXPIRE`), because tearing out a name would remove the working directories of
//!   programs and the mounts below it.
//! - Names of removed files are torn out, so that the kernel releases its references, and the space
//!   of the files is free at once and not after the next look-up. This is done only if nothing is
//!   mounted below and the commit has moved no directory that the kernel knows: the kernel then
//!   moves the old name of the directory, which it still has, to the new one, together with all
//!   programs that work in the directory.
//! - Attributes and pages of changed inodes are dropped. Only inodes that the kernel refers to are
//!   worth a message.
//! - **Size and times of files** are set through the mount to their actual values (`size_setter`).
//!   This requires the right to open by handle (CAP_DAC_READ_SEARCH). Without this right, files
//!   that have grown are shown at their new length, and those that have become shorter keep the old
//!   one, with zeros at the end, until the kernel forgets them.
//! - The inodes of a view that has ended are dropped, too: a program that still has one open gets
//!   ESTALE. If they are many, another thread drops them later. The name of the view is torn out
//!   with everything below it, so that the kernel forgets the view and its number becomes free
//!   (`kvfs::Views`).
//!
//! **Before a transaction begins or ends** the kernel must hand over the data that it holds back
//! (`dirty_pages`).
//!
//! Calls through the mount are made by threads with a descriptor table of their own
//! (`unshared_thread`): otherwise a daemon that is killed in the middle of one would never end.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvfs::{ChangeSet, CommittedTo, Fs, Running, ViewId, Views, Wait, Watcher};
use parking_lot::Mutex;

use crate::coalescer::Coalescer;
use crate::fuse_adapter::FuseAdapter;
use crate::handler::{FileKind, Handler, Ino, Invalidator, NodeAttr, NodeId, ReadHints};
use crate::mount::Mounted;
use crate::mount_root::MountRoot;
use crate::node_id::Numbering;
use crate::program_files::ProgramFiles;
use crate::queues::Queues;
use crate::recall::Recall;
use crate::size_setter::SizeSetter;
use crate::unshared_thread::UnsharedThread;
use crate::watch_events::WatchEvents;
use crate::worker_pool::WorkerPool;
use crate::{control_directory, fault, node_id};

mod dirty_pages;

use dirty_pages::{HandedOver, PATIENCE, SETTLING};

/// The hints of reads by the daemon itself.
const KEEP_ATIME: ReadHints = ReadHints { keep_atime: true };

/// The messages for the kernel.
#[derive(Default)]
struct Invalidations {
    names: Vec<(NodeId, Box<[u8]>)>,
    /// The names of removed files, which are torn out if nothing is mounted below.
    removed: Vec<(NodeId, Box<[u8]>)>,
    inodes: Vec<NodeId>,
    /// The files among the changed inodes, with their current attributes, and whether their size
    /// has changed.
    files: Vec<(NodeAttr, bool)>,
}

/// The maximum number of inodes of an ended view that the thread which ends the view drops itself.
/// More inodes are left to another thread.
const DROPPED_BY_CALLER: usize = 64;

/// The maximum number of names made by a commit among which moved directories are searched. If a
/// commit made more names, no name is torn out.
const MADE: usize = 10_000;

/// The number of rounds of the quiesce barrier for which released references are awaited.
/// References that remain only cost memory.
const FORGETTING: usize = 4;

/// Watches the views of a mounted file system. The notifier stops when the mount ends.
pub struct KernelNotifier {
    invalidator: Arc<dyn Invalidator>,
    adapter: Arc<FuseAdapter>,
    mount_root: MountRoot,
    pool: Arc<WorkerPool>,
    /// The queues, if requests come over io_uring.
    queues: Option<Arc<Queues>>,
    /// Waits for data that the kernel holds back.
    syncfs_thread: UnsharedThread,
    coalescer: Coalescer<HandedOver>,
    patience: Duration,
    recall: Arc<Recall>,
    /// Sets sizes and times through the mount. `round_trip` uses its thread, too.
    size_setter: SizeSetter,
    program_files: ProgramFiles,
    watch_events: WatchEvents,
    /// Files can be opened by their handles.
    by_handle: AtomicBool,
    /// The queue of the thread that makes the kernel drop inodes, or `None` once the thread has
    /// stopped.
    drop_queue: Mutex<Option<Sender<Vec<NodeId>>>>,
    dropper_thread: Mutex<Option<JoinHandle<()>>>,
}

impl KernelNotifier {
    /// Starts to watch the views of `adapter`, which is mounted as `mounted`.
    pub fn start(
        views: &Views,
        adapter: &Arc<FuseAdapter>,
        mounted: &Mounted,
    ) -> io::Result<Arc<KernelNotifier>> {
        KernelNotifier::start_with_patience(views, adapter, mounted, PATIENCE)
    }

    /// Starts like [`KernelNotifier::start`], with another limit for the time that the beginning or
    /// commit of a transaction, or the creation of a snapshot, waits for pages that another thread
    /// is writing.
    pub fn start_with_patience(
        views: &Views,
        adapter: &Arc<FuseAdapter>,
        mounted: &Mounted,
        patience: Duration,
    ) -> io::Result<Arc<KernelNotifier>> {
        let invalidator = mounted.invalidator().ok_or(io::ErrorKind::NotConnected)?;
        let pool = mounted.pool().ok_or(io::ErrorKind::NotConnected)?;
        let mount_root = MountRoot::of(mounted.mount_point(), mounted.device())?;
        let recall = Arc::new(Recall::start(
            mount_root.clone(),
            invalidator.clone(),
            mounted.gathers_writes(),
        )?);
        adapter.set_recall(recall.clone());
        let (drop_queue, dropped) = channel::<Vec<NodeId>>();
        let size_setter = SizeSetter::start()?;
        mounted.counters().leave_out(size_setter.guard().number());
        adapter.set_size_guard(size_setter.guard());
        let watch_events = WatchEvents::start(mount_root.clone())?;
        adapter.ignore_setattr_of(watch_events.thread()?);
        let drop_all = {
            let invalidator = invalidator.clone();
            move || dropped.iter().flatten().for_each(|ino| drop(invalidator.invalidate_inode(ino)))
        };
        let thread = std::thread::Builder::new().name("fuse-notifier".into()).spawn(drop_all)?;
        let notifier = Arc::new(KernelNotifier {
            invalidator,
            adapter: adapter.clone(),
            mount_root,
            pool,
            queues: mounted.queues(),
            syncfs_thread: UnsharedThread::start("fuse-write-back")?,
            coalescer: Coalescer::default(),
            patience,
            recall,
            size_setter,
            program_files: ProgramFiles::start()?,
            watch_events,
            by_handle: AtomicBool::new(true),
            drop_queue: Mutex::new(Some(drop_queue)),
            dropper_thread: Mutex::new(Some(thread)),
        });
        let watcher: Arc<dyn Watcher> = notifier.clone();
        views.watch(&watcher);
        Ok(notifier)
    }

    /// Continues after a process that served the mount was killed: notifies the kernel of changes
    /// that were not reported yet, and makes it forget the views that have ended with the process.
    /// A separate thread makes the kernel forget the views, because the kernel may wait for
    /// answers.
    pub fn follow_killed(&self, views: &Views) -> io::Result<()> {
        views.tell_left();
        let (invalidator, views) = (self.invalidator.clone(), views.clone());
        let forget = move |number, view: &ViewId, inodes: Vec<Ino>| {
            // An inode that the kernel has forgotten by itself is no error.
            let nodes = inodes.into_iter().map(|ino| node_id::of(number, ino));
            nodes.for_each(|node| drop(invalidator.invalidate_inode(node)));
            let user = Some(control_directory::own_user());
            // The inodes of a nested transaction are known, but its path is not.
            for (dir, name) in control_directory::places(view, user, &[]) {
                drop(invalidator.remove_name(node_id::of(node_id::CONTROL, dir), name.as_bytes()));
            }
        };
        let work = move || views.forget_ended(forget);
        std::thread::Builder::new().name("fuse-forget".into()).spawn(work).map(drop)
    }

    /// Measures how long a program waits for an answer on average: a thread requests the free space
    /// of the file system, which the kernel never caches. Returns `None` if the request fails or
    /// takes too long.
    pub fn round_trip(&self) -> Option<Duration> {
        const TIMES: u32 = 16;
        const LONGEST: Duration = Duration::from_secs(2);
        let mount_root = self.mount_root.clone();
        let ask = move || {
            let root = mount_root.open().ok()?;
            let begun = Instant::now();
            (0..TIMES).try_for_each(|_| rustix::fs::fstatfs(&root).map(drop)).ok()?;
            Some(begun.elapsed() / TIMES)
        };
        self.size_setter.thread.begin(ask).ok()?.recv_timeout(LONGEST).ok()?
    }

    /// Sends all pending messages, then stops sending. This method must be called while requests
    /// are still answered, before the threads that answer are stopped.
    pub fn finish(&self) {
        drop(self.drop_queue.lock().take());
        if let Some(thread) = self.dropper_thread.lock().take() {
            let _ = thread.join();
        }
    }

    /// Stops the notifier. This method must be called when the mount is no longer served.
    pub fn stop(&self) {
        self.finish();
        self.recall.stop();
        self.syncfs_thread.stop();
        self.size_setter.thread.stop();
        self.program_files.stop();
        self.watch_events.stop();
    }
}

impl Watcher for KernelNotifier {
    fn write_back(&self, wait: Wait) -> Result<(), String> {
        let asked = Instant::now();
        loop {
            match self.coalescer.run(|| self.hand_over()) {
                Some(HandedOver::All) => return Ok(()),
                Some(HandedOver::ButForLocks) if wait == Wait::ButForLocks => return Ok(()),
                Some(HandedOver::ButForLocks) if asked.elapsed() < self.patience => {}
                Some(HandedOver::ButForLocks) => {
                    return Err("a file that they have changed is locked by a transaction".into());
                }
                Some(HandedOver::Failed(why)) => return Err(why),
                None => return Err("the round of asking the kernel for it panicked".into()),
            }
        }
    }

    fn appeared(&self, view: &ViewId) {
        // A thread that took its request while no key was locked must not meet a lock now, so the
        // threads finish these requests first. From then on, a thread hands a request that may meet
        // a lock to a thread that may wait.
        if let Some(queues) = self.queues.as_ref().filter(|_| self.adapter.stalls()) {
            queues.settle(SETTLING);
        }
        // The kernel drops a listing without taking the lock of an inode.
        let (user, chain) = match view {
            ViewId::Transaction(id) => (self.adapter.user_of(*id), self.adapter.chain(*id)),
            _ => (None, Vec::new()),
        };
        let places = control_directory::places(view, user, &chain).into_iter();
        for dir in places.map(|(dir, _)| dir).chain(self.adapter.parts_above(view)) {
            if let Err(e) = self.invalidator.invalidate_inode(node_id::of(node_id::CONTROL, dir)) {
                tracing::debug!("cannot tell the kernel of {view:?}: {e}");
            }
        }
    }

    fn ended(&self, view: &ViewId, number: u16, fs: &Fs, committed: Option<CommittedTo<'_>>) {
        let mut invalidations = Invalidations::default();
        if let Some(to) = committed {
            invalidations.of(to.number, to.fs, to.changes);
        }
        let places = control_directory::places(
            view,
            Some(fs.user().unwrap_or_else(control_directory::own_user)),
            &fs.transactions(),
        );
        let places: Vec<_> = places
            .into_iter()
            .map(|(dir, name)| (node_id::of(node_id::CONTROL, dir), name))
            .collect();
        let parts = self.adapter.parts_above(view).into_iter();
        let parts = parts.map(|dir| node_id::of(node_id::CONTROL, dir));
        invalidations.inodes.extend(places.iter().map(|(dir, _)| *dir).chain(parts));
        self.tell_kernel(&invalidations);
        if let Some(to) = committed {
            self.watch_events.raise(to.number, to.fs, to.changes);
        }
        let left: Vec<NodeId> =
            fs.referenced().into_iter().map(|ino| node_id::of(number, ino)).collect();
        if left.len() > DROPPED_BY_CALLER {
            if let Some(drop_queue) = &*self.drop_queue.lock() {
                // An error means that the thread has ended, and the mount with it.
                let _ = drop_queue.send(left);
            }
        } else {
            // A forgotten inode is no error, and other errors do not matter.
            left.into_iter().for_each(|ino| drop(self.invalidator.invalidate_inode(ino)));
        }
        // Inodes of the view that no program has open are forgotten now. Otherwise the number of
        // the view would stay in use while memory is plentiful.
        for (dir, name) in places {
            if let Err(e) = self.invalidator.remove_name(dir, name.as_bytes()) {
                tracing::debug!("the kernel goes on remembering {view:?}: {e}");
            }
        }
    }

    fn goes(
        &self,
        view: &ViewId,
        number: u16,
        fs: &Fs,
        (parent, name): (Ino, &[u8]),
        path: &[u8],
    ) -> Result<(), String> {
        // Tearing a name out would tear out mounts below it as well.
        let path = self.adapter.path_in(view, fs, path);
        match self.mount_root.mounted_below(&path) {
            Ok(None) => {}
            Ok(Some(mount)) => {
                return Err(format!(
                    "{} is a mount point there: unmount it first",
                    mount.display()
                ));
            }
            Err(e) => return Err(format!("the table of mounts cannot be read: {e}")),
        }
        let dir = matches!(fs.peek(parent, name), Ok(Some((_, FileKind::Dir))));
        if !dir || !fs.is_referenced(parent) || self.has_stopped() {
            return Ok(());
        }
        if let Err(e) = self.invalidator.remove_name(node_id::of(number, parent), name) {
            tracing::debug!("the kernel does not let go of {}: {e}", path.display());
            return Ok(());
        }
        // The kernel releases the references that it drops in later messages, which arrive among
        // the requests.
        let mut left = fs.referenced().len();
        for _ in 0..FORGETTING {
            self.coalescer.run(|| self.hand_over());
            let before = std::mem::replace(&mut left, fs.referenced().len());
            if left >= before {
                break;
            }
        }
        Ok(())
    }

    fn running(&self, number: u16, files: &[Ino]) -> Running {
        let of_view = self.adapter.numbering(number);
        let files: Vec<_> = files
            .iter()
            .map(|&ino| (ino, node_id::of(number, ino), of_view.shown(ino, FileKind::File)))
            .collect();
        self.program_files.running(&self.mount_root, files)
    }

    fn went_down(&self) {
        // Programs must not see content in the kernel's memory any more, either. The kernel sends
        // its dirty pages, which are refused.
        self.drop_all();
    }

    fn changed(&self, number: u16, fs: &Fs, changes: &ChangeSet) {
        let mut invalidations = Invalidations::default();
        invalidations.of(number, fs, changes);
        self.tell_kernel(&invalidations);
        self.watch_events.raise(number, fs, changes);
    }
}

impl Invalidations {
    /// Adds the changes of a view that affect inodes which the kernel knows.
    fn of(&mut self, number: u16, fs: &Fs, changes: &ChangeSet) {
        let known = |ino: &Ino| fs.is_referenced(*ino);
        let wire = |ino| node_id::of(number, ino);
        let tear_out = frees_files(fs, changes);
        for (dir, name, removed) in changes.names.iter().filter(|(dir, ..)| known(dir)) {
            let names = if *removed && tear_out { &mut self.removed } else { &mut self.names };
            names.push((wire(*dir), name.clone()));
        }
        for &(ino, _) in changes.inodes.iter().filter(|(ino, _)| known(ino)) {
            self.inodes.push(wire(ino));
            if let Ok(attr) = fs.getattr(ino)
                && attr.kind == FileKind::File
            {
                let shown = Numbering { view: number, shown_in: number }.attr(attr);
                self.files.push((shown, fs.is_resized(ino)));
            }
        }
    }
}

/// Returns whether the kernel has references to inodes that were removed, and no directory that it
/// knows was moved.
fn frees_files(fs: &Fs, changes: &ChangeSet) -> bool {
    let known = |ino: Ino| fs.is_referenced(ino);
    if !changes.inodes.iter().any(|(ino, removed)| *removed && known(*ino)) {
        return false;
    }
    let made = changes.names.iter().filter(|(.., removed)| !removed);
    if made.clone().count() > MADE {
        return false;
    }
    let is_known_dir = |(dir, name, _): &(Ino, Box<[u8]>, bool)| match fs.peek(*dir, name) {
        Ok(Some((ino, FileKind::Dir))) => known(ino),
        Ok(_) => false,
        Err(_) => true,
    };
    !made.clone().any(is_known_dir)
}

impl KernelNotifier {
    /// Makes the kernel write back the dirty pages of every inode and drop everything that it
    /// caches of them. Returns when the pages have been taken. This method is used if no path leads
    /// into the mount.
    fn drop_all(&self) {
        for (number, fs) in self.adapter.opened() {
            // An error is ignored: if the kernel has forgotten the inode or the mount has ended, it
            // has nothing to drop.
            fs.referenced()
                .into_iter()
                .for_each(|ino| drop(self.invalidator.invalidate_inode(node_id::of(number, ino))));
        }
        drop(self.invalidator.invalidate_inode(NodeId::ROOT));
    }

    fn has_stopped(&self) -> bool {
        self.drop_queue.lock().is_none()
    }

    /// Sends the messages, and returns when the kernel has taken them.
    fn tell_kernel(&self, invalidations: &Invalidations) {
        if self.has_stopped() {
            return;
        }
        fault::point("untold", 0);
        match self.send_all(invalidations) {
            Ok(()) => {}
            // The mount has ended.
            Err(_) if self.has_stopped() => {}
            Err(e) => {
                tracing::warn!("the kernel may show old content: it did not take what changed: {e}")
            }
        }
        fault::point("told", 0);
    }

    fn send_all(&self, invalidations: &Invalidations) -> io::Result<()> {
        let mut result = Ok(());
        for &ino in &invalidations.inodes {
            result = result.and(self.invalidator.invalidate_inode(ino));
        }
        for (dir, name) in &invalidations.names {
            result = result.and(self.invalidator.expire_name(*dir, name));
        }
        // Tearing a name out would tear out a mount on it as well.
        let tear_out = !invalidations.removed.is_empty()
            && matches!(self.mount_root.mounted_below(Path::new("")), Ok(None));
        for (dir, name) in &invalidations.removed {
            result = result.and(match tear_out {
                true => self.invalidator.remove_name(*dir, name),
                false => self.invalidator.expire_name(*dir, name),
            });
        }
        if invalidations.files.is_empty() {
            return result;
        }
        // Without the root of the mount, sizes are shown as if opening by handle were not
        // permitted.
        let by_handle = self.by_handle.load(Ordering::Relaxed);
        let mount_root = by_handle.then(|| self.mount_root.clone());
        let shown = self.size_setter.set(mount_root, invalidations.files.clone())?;
        for ((file, resized), shown) in invalidations.files.iter().zip(shown) {
            result = result.and(self.settle_size(file, shown));
            if *resized {
                // Bytes appended in the meantime lie in the kernel's pages after the old end.
                result = result.and(self.invalidator.invalidate_inode(file.node));
            }
        }
        result
    }

    /// Checks whether the kernel has taken over size and time of a file; if not, notifies it as far
    /// as is possible without a handle.
    fn settle_size(&self, file: &NodeAttr, shown: io::Result<()>) -> io::Result<()> {
        match shown {
            Ok(()) => return Ok(()),
            // The file is not in the kernel's memory.
            Err(e) if e.raw_os_error() == Some(libc::ESTALE) => return Ok(()),
            Err(e)
                if self.by_handle.load(Ordering::Relaxed)
                    && matches!(
                        e.raw_os_error(),
                        Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS)
                    ) =>
            {
                tracing::info!(
                    "files that become shorter by a commit keep their length where they are cached: {e}"
                );
                self.by_handle.store(false, Ordering::Relaxed);
            }
            Err(e) => {
                tracing::debug!(node = %file.node, "cannot show the new size by its handle: {e}")
            }
        }
        match self.adapter.read(file.node, file.attr.size.saturating_sub(1), 1, KEEP_ATIME) {
            Ok(last) if !last.is_empty() => {
                self.invalidator.extend_to(file.node, file.attr.size, last[0])
            }
            // The file is empty or removed, or it has become shorter, and the thread that shortened
            // it notifies the kernel.
            _ => Ok(()),
        }
    }
}
