//! Answers requests with a KVFS file system: each request becomes a call of the view that its inode
//! number names.
//!
//! A request for a view that has ended is answered ESTALE. Nothing moves or is linked from one view
//! to another (EXDEV, as between any two file systems), and the control directory itself cannot be
//! changed.

mod control;
mod late_times;
mod requests;
mod view;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use kvfs::{Fs, Views};

use crate::handler::*;
use crate::name_parts::NameParts;
use crate::node_id::Numbering;
use crate::quiesce_barrier::QuiesceBarrier;
use crate::recall::Recall;
use crate::size_setter::SizeGuard;
use crate::{control_directory, node_id, security_labels};

use view::{At, FsIn, In};

/// Answers the requests of the kernel with a KVFS file system and all its views.
pub struct FuseAdapter {
    views: Views,
    mainline: Fs,
    /// The thread of the daemon whose changes of attributes have no effect, or 0 for no thread. See
    /// [`FuseAdapter::ignore_setattr_of`].
    notifier: AtomicU32,
    /// The guard of the thread that makes the kernel take over sizes. It is set once the mount
    /// exists.
    size_guard: OnceLock<Arc<SizeGuard>>,
    quiesce_barrier: QuiesceBarrier,
    /// Requests data that the kernel holds back. It is set once the mount exists.
    recall: OnceLock<Arc<Recall>>,
    /// Says for a mount that was in use before whether the kernel gathers writes. If it does, the
    /// kernel may hold back pages from the first request on.
    in_use: Option<bool>,
    open_views: bool,
    /// The clone that the mount shows alone.
    alone: Option<String>,
    kernel_has_labels: bool,
    /// The directories through which names of views with slashes lead.
    parts: NameParts,
}

/// Returns the error number for the kernel. Damage and I/O errors are also logged, because a
/// program only sees the number.
fn errno(error: kvfs::Error) -> Errno {
    let errno = error.errno();
    if errno == libc::EIO {
        tracing::error!("{error}");
    }
    Errno(errno)
}

const STALE: Errno = Errno(libc::ESTALE);
const NOT_HERE: Errno = Errno(libc::EPERM);

impl FuseAdapter {
    /// Creates an adapter for the mainline and all `views`.
    pub fn new(views: Views) -> FuseAdapter {
        let mainline = views.mainline().clone();
        FuseAdapter {
            views,
            mainline,
            notifier: AtomicU32::new(0),
            size_guard: OnceLock::new(),
            quiesce_barrier: QuiesceBarrier::default(),
            recall: OnceLock::new(),
            in_use: None,
            open_views: false,
            alone: None,
            kernel_has_labels: security_labels::kernel_has_labels(),
            parts: NameParts::default(),
        }
    }

    /// From now on, a change of attributes that the thread with this number requests has no effect:
    /// the thread requests it only for the events that the kernel then raises (`watch_events`).
    pub(crate) fn ignore_setattr_of(&self, thread: u32) {
        self.notifier.store(thread, Ordering::Relaxed);
    }

    /// From now on, a change of attributes that the thread of this guard requests has no effect:
    /// the thread requests it only so that the kernel takes over the attributes in the answer.
    pub(crate) fn set_size_guard(&self, guard: Arc<SizeGuard>) {
        let _ = self.size_guard.set(guard);
    }

    /// Sets the object that requests data that the kernel holds back, for answers that depend on
    /// this data.
    pub(crate) fn set_recall(&self, recall: Arc<Recall>) {
        let _ = self.recall.set(recall);
    }

    /// Makes the kernel hand over everything that programs have written to a file. Returns `false`
    /// if it is unknown whether the kernel has done so. The method is called before anything is
    /// changed.
    fn recall(&self, node: NodeId) -> Reply<bool> {
        if !may_wait() {
            return Err(Errno::WAITS);
        }
        let recalled = self.recall_at_hand().map(|recall| recall.file(node));
        if let Some(Err(e)) = &recalled {
            tracing::warn!("the kernel could not hand over what it holds of inode {node}: {e}");
        }
        Ok(matches!(recalled, Some(Ok(()))))
    }

    /// Returns the object that requests data that the kernel holds back, or `None` if the kernel
    /// cannot hold back any data yet.
    fn recall_at_hand(&self) -> Option<&Arc<Recall>> {
        match self.in_use {
            None => self.recall.get(),
            // The object will be set soon. Requests that need the object and may wait do so.
            Some(_) => Some(self.recall.wait()),
        }
    }

    fn gathers_writes(&self) -> bool {
        let known = self.recall.get().map(|recall| recall.gathers_writes);
        known.or(self.in_use).unwrap_or(false)
    }

    /// Returns the numbering in which programs see the inodes of the view with this number.
    pub(crate) fn numbering(&self, view: u16) -> Numbering {
        let place = || self.views.by_number(view).and_then(|fs| fs.in_place_of());
        Numbering { view, shown_in: (view != 0).then(place).flatten().unwrap_or(view) }
    }

    pub(crate) fn quiesce_barrier(&self) -> &QuiesceBarrier {
        &self.quiesce_barrier
    }

    fn at(&self, node: NodeId) -> Reply<At<'_>> {
        match node_id::split(node) {
            (0, ino) => Ok(At::View(
                In {
                    number: 0,
                    gathers: self.gathers_writes(),
                    fs: FsIn::Mainline(&self.mainline),
                },
                ino,
            )),
            (node_id::CONTROL, ino) => Ok(At::Control(ino)),
            (number, ino) => match self.views.by_number(number) {
                Some(fs) => Ok(At::View(
                    In { number, gathers: self.gathers_writes(), fs: FsIn::Other(fs) },
                    ino,
                )),
                None => Err(STALE),
            },
        }
    }

    /// Returns an inode that must lie in a view.
    fn inode(&self, node: NodeId) -> Reply<(In<'_>, Ino)> {
        match self.at(node)? {
            At::View(view, ino) => Ok((view, ino)),
            At::Control(_) => Err(NOT_HERE),
        }
    }

    /// Returns a directory in which `name` may be made or removed. The name of the control
    /// directory is reserved.
    fn directory(&self, node: NodeId, name: &[u8]) -> Reply<(In<'_>, Ino)> {
        let (view, ino) = self.inode(node)?;
        if ino == ROOT && name == control_directory::NAME { Err(NOT_HERE) } else { Ok((view, ino)) }
    }

    /// Returns an inode and a directory, which must be of the same view.
    fn together<'a>(&'a self, first: (In<'a>, Ino), second: NodeId) -> Reply<(In<'a>, Ino, Ino)> {
        let (view, ino) = first;
        match node_id::split(second) {
            (number, other) if number == view.number => Ok((view, ino, other)),
            _ => Err(Errno(libc::EXDEV)),
        }
    }

    /// Sets whether views admit all users whom the modes of their files admit, and not only the
    /// users who began the views.
    #[must_use]
    pub fn open_views(mut self, open: bool) -> FuseAdapter {
        self.open_views = open;
        self
    }

    /// Adapts to a mount whose root is that of a clone ([`crate::MountOptions::root`]):
    /// transactions and snapshots of the clone lie in that root, and those of other branches are
    /// not shown.
    #[must_use]
    pub fn of_clone_alone(mut self, name: Option<String>) -> FuseAdapter {
        self.alone = name;
        self
    }

    /// Adapts to a mount that another process has served before ([`crate::take_over`]);
    /// `gathers_writes` is the policy of that mount. A [`crate::KernelNotifier`] must follow.
    #[must_use]
    pub fn of_mount_in_use(mut self, gathers_writes: bool) -> FuseAdapter {
        self.in_use = Some(gathers_writes);
        self
    }

    /// Returns the views that are open, by their numbers, and the mainline.
    pub(crate) fn opened(&self) -> Vec<(u16, Fs)> {
        self.views.opened()
    }

    /// Returns the user of a transaction, or `None` if there is no such transaction.
    pub(crate) fn user_of(&self, id: kvfs::TransactionId) -> Option<u32> {
        self.views.user(id).ok().map(|user| user.unwrap_or_else(control_directory::own_user))
    }
}
