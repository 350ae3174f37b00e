//! The answers of a KVFS file system: each request becomes a call of the view that its inode number
//! names.
//!
//! A request for a view that has ended is answered ESTALE. Nothing moves or is linked from one view
//! to another (EXDEV, as between any two file systems), and the control directory itself cannot be
//! changed.

mod control;

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use kvfs::{DirEntry, Fs, Views};

use crate::handler::*;
use crate::name_parts::NameParts;
use crate::node_id::Numbering;
use crate::quiesce_barrier::QuiesceBarrier;
use crate::recall::Recall;
use crate::size_setter::SizeGuard;
use crate::{control_directory, node_id, security_labels};

/// Answers the requests of the kernel with a KVFS file system and all its views.
pub struct FuseAdapter {
    views: Views,
    mainline: Fs,
    /// A thread of the daemon whose changes of attributes have no effect; see
    /// [`FuseAdapter::ignore_setattr_of`]. 0 if there is none.
    notifier: AtomicU32,
    /// The guard of the thread that makes the kernel take sizes. Set once the mount exists.
    size_guard: OnceLock<Arc<SizeGuard>>,
    quiesce_barrier: QuiesceBarrier,
    /// Set once the mount exists.
    recall: OnceLock<Arc<Recall>>,
    /// Set for a mount that was in use before: whether the kernel gathers writes. It may then hold
    /// back pages from the first request on.
    in_use: Option<bool>,
    open_views: bool,
    /// The clone that the mount shows alone.
    alone: Option<String>,
    kernel_has_labels: bool,
    /// The directories that names of views with slashes lead through.
    parts: NameParts,
}

/// The object that a node id of the kernel stands for.
enum At<'a> {
    View(In<'a>, Ino),
    /// A directory or file of the control directory.
    Control(Ino),
}

/// A view, by its number.
struct In<'a> {
    number: u16,
    /// The kernel gathers writes.
    gathers: bool,
    fs: FsIn<'a>,
}

enum FsIn<'a> {
    Mainline(&'a Fs),
    Other(Fs),
}

impl Deref for In<'_> {
    type Target = Fs;
    fn deref(&self) -> &Fs {
        match &self.fs {
            FsIn::Mainline(fs) => fs,
            FsIn::Other(fs) => fs,
        }
    }
}

impl In<'_> {
    /// Returns attributes as the kernel should see them.
    fn shown(&self, attr: kvfs::Result<Attr>) -> Reply<NodeAttr> {
        attr.map(|attr| self.numbering().attr(with_space(attr, self.gathers))).map_err(errno)
    }

    fn numbering(&self) -> Numbering {
        let place = (self.number != 0).then(|| self.in_place_of()).flatten();
        Numbering { view: self.number, shown_in: place.unwrap_or(self.number) }
    }
}

/// Returns the error number for the kernel. Damage and I/O errors are also logged: a program only
/// sees a number.
fn errno(error: kvfs::Error) -> Errno {
    let errno = error.errno();
    if errno == libc::EIO {
        tracing::error!("{error}");
    }
    Errno(errno)
}

/// Ensures that a file takes space. Programs like tar treat a file without space as one hole and do
/// not even read it. But the kernel may hold data of it, and asks for the space only now and then.
/// So a file that is not empty always takes some, and if the kernel gathers writes every file does.
fn with_space(attr: Attr, gathers: bool) -> Attr {
    match attr.kind {
        FileKind::File if attr.size > 0 || gathers => Attr { blocks: attr.blocks.max(1), ..attr },
        _ => attr,
    }
}

/// Returns the effect of a call on the privileges of a file whose content it changes, if the kernel
/// does not tell: as if the caller had no right to keep them, unless it is root.
fn hints_of(caller: Caller) -> WriteHints {
    WriteHints {
        unprivileged_group: (caller.uid != 0).then_some(caller.gid),
        ..WriteHints::default()
    }
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

    /// Makes changes of attributes by the thread with this number have no effect from now on: it
    /// sends them only for the events that the kernel then raises (`watch_events`).
    pub(crate) fn ignore_setattr_of(&self, thread: u32) {
        self.notifier.store(thread, Ordering::Relaxed);
    }

    /// Makes changes of attributes by the thread of this guard have no effect from now on: the
    /// kernel takes over the attributes in the answer.
    pub(crate) fn set_size_guard(&self, guard: Arc<SizeGuard>) {
        let _ = self.size_guard.set(guard);
    }

    /// Sets the object that asks the kernel for data that it holds back, if an answer depends on
    /// it.
    pub(crate) fn set_recall(&self, recall: Arc<Recall>) {
        let _ = self.recall.set(recall);
    }

    /// Makes the kernel hand over everything that programs have written to a file. Returns `false`
    /// if that cannot be known. Called before anything is changed.
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

    /// Returns the object that asks the kernel for data that it holds back, or `None` if the kernel
    /// cannot hold back anything yet.
    fn recall_at_hand(&self) -> Option<&Arc<Recall>> {
        match self.in_use {
            None => self.recall.get(),
            // It will be set soon; requests that need it until then wait, where they may.
            Some(_) => Some(self.recall.wait()),
        }
    }

    fn gathers_writes(&self) -> bool {
        let known = self.recall.get().map(|recall| recall.gathers_writes);
        known.or(self.in_use).unwrap_or(false)
    }

    /// Returns how programs see the inode numbers of the view with this number.
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

    /// Sets whether views admit everyone whom the modes of their files admit, and not only those
    /// who began them.
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

/// Returns the answer to a kernel that writes back the times of a file whose view has ended, or
/// `None` if `changes` ask for something else.
///
/// A kernel that gathers writes keeps the times of a file. When a mapping of the file ends, it
/// treats an error of their write-back like one of the pages, and reports it to the next syncfs(2):
/// to everyone who begins a transaction. It does not look at the attributes in the answer. It does
/// look at them when a program has set the times, which cannot be told apart; so the answer has no
/// valid attributes of a file, and such a program gets EIO.
fn answer_to_late_times(node: NodeId, changes: &SetAttr) -> Option<NodeAttr> {
    let SetAttr { mtime: Some(TimeSet::At(mtime)), ctime: Some(ctime), .. } = *changes else {
        return None;
    };
    let of_the_cache = SetAttr {
        mtime: changes.mtime,
        ctime: changes.ctime,
        unprivileged_group: changes.unprivileged_group,
        ..SetAttr::default()
    };
    let nothing = Attr {
        ino: 0,
        kind: FileKind::Dir,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: mtime,
        mtime,
        ctime,
        btime: ctime,
    };
    (*changes == of_the_cache).then_some(NodeAttr { node, attr: nothing })
}

impl Handler for FuseAdapter {
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Reply<Option<NodeAttr>> {
        match self.at(parent)? {
            At::View(view, ino) => {
                let is_top = ino == ROOT && name == control_directory::NAME;
                if let Some(top) = is_top.then(|| self.control_in(&view)).flatten() {
                    return self.control_attr(top).map(Some);
                }
                match view.lookup(ino, name) {
                    Err(kvfs::Error::NotFound) => Ok(None),
                    attr => view.shown(attr).map(Some),
                }
            }
            // A missing name is an error, since the kernel would remember a name that is merely
            // absent.
            At::Control(dir) => self.find_control(dir, name).map(Some),
        }
    }
    fn forget(&self, node: NodeId, references: u64) {
        match node_id::split(node) {
            (0, ino) => self.mainline.forget(ino, references),
            (node_id::CONTROL, _) => {}
            // The view may have ended.
            (number, ino) => self.views.forget(number, ino, references),
        }
    }
    fn getattr(&self, node: NodeId) -> Reply<NodeAttr> {
        match self.at(node)? {
            At::View(view, ino) => view.shown(view.getattr(ino)),
            At::Control(ino) => self.control_attr(ino),
        }
    }
    fn setattr(&self, node: NodeId, changes: &SetAttr, caller: Caller) -> Reply<NodeAttr> {
        let changed = match self.at(node) {
            Ok(At::View(view, ino)) => {
                if let Some(guard) = self.size_guard.get().filter(|guard| guard.is(caller)) {
                    let attr = view.getattr(ino).map_err(errno)?;
                    let size = changes.size.map(|_| attr.size);
                    return match guard.loses_nothing(size) {
                        true => view.shown(Ok(attr)),
                        false => Err(Errno(libc::EAGAIN)),
                    };
                }
                let only_shown =
                    caller.pid != 0 && self.notifier.load(Ordering::Relaxed) == caller.pid;
                view.shown(if only_shown {
                    view.getattr(ino)
                } else {
                    view.setattr(ino, changes, caller)
                })
            }
            Ok(At::Control(control_directory::BARRIER)) => {
                self.control_attr(control_directory::BARRIER)
            }
            Ok(At::Control(_)) => Err(NOT_HERE),
            Err(e) => Err(e),
        };
        match changed {
            Err(STALE) => answer_to_late_times(node, changes).ok_or(STALE),
            changed => changed,
        }
    }
    fn readlink(&self, node: NodeId) -> Reply<Bytes> {
        let (view, ino) = match self.at(node)? {
            At::View(view, ino) => (view, ino),
            At::Control(ino) => {
                if let Some(part) = self.parts.part(ino).filter(|part| part.link) {
                    return Ok(Bytes::from(part.target()));
                }
                let id = control_directory::linked(ino).ok_or(Errno(libc::EINVAL))?;
                return self.link_target(id).map(Bytes::from);
            }
        };
        view.readlink(ino).map(Bytes::from).map_err(errno)
    }
    fn mknod(
        &self,
        parent: NodeId,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
        caller: Caller,
    ) -> Reply<NodeAttr> {
        let (view, parent) = self.directory(parent, name)?;
        view.shown(view.mknod(parent, name, kind, perm, rdev, caller))
    }
    fn mkdir(&self, parent: NodeId, name: &[u8], perm: u16, caller: Caller) -> Reply<NodeAttr> {
        let (view, parent) = self.directory(parent, name)?;
        view.shown(view.mkdir(parent, name, perm, caller))
    }
    fn tmpfile(&self, parent: NodeId, perm: u16, caller: Caller) -> Reply<NodeAttr> {
        let (view, parent) = self.inode(parent)?;
        view.shown(view.tmpfile(parent, perm, caller))
    }
    fn symlink(
        &self,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
        caller: Caller,
    ) -> Reply<NodeAttr> {
        let (view, parent) = self.directory(parent, name)?;
        view.shown(view.symlink(parent, name, target, caller))
    }
    fn link(&self, node: NodeId, parent: NodeId, name: &[u8], _caller: Caller) -> Reply<NodeAttr> {
        let (view, parent, ino) = self.together(self.directory(parent, name)?, node)?;
        // A file gets its first name together with its content.
        if self.gathers_writes() || view.getattr(ino).is_ok_and(|attr| attr.nlink == 0) {
            self.recall(node)?;
        }
        view.shown(view.link(ino, parent, name))
    }
    fn unlink(&self, parent: NodeId, name: &[u8], _caller: Caller) -> Reply<()> {
        let (view, parent) = self.directory(parent, name)?;
        view.unlink(parent, name).map_err(errno)
    }
    fn rmdir(&self, parent: NodeId, name: &[u8], _caller: Caller) -> Reply<()> {
        let (view, parent) = self.directory(parent, name)?;
        view.rmdir(parent, name).map_err(errno)
    }
    fn rename(
        &self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: RenameFlags,
        _caller: Caller,
    ) -> Reply<()> {
        self.directory(to.0, to.1)?;
        let (view, parent, new_parent) = self.together(self.directory(from.0, from.1)?, to.0)?;
        // The content moves with the name: it replaces that of the other file, so nothing would be
        // left but the content known here.
        if let Ok(Some((ino, FileKind::File))) = view.peek(parent, from.1)
            && (self.gathers_writes() || matches!(view.peek(new_parent, to.1), Ok(Some(_))))
        {
            self.recall(node_id::of(view.number, ino))?;
        }
        view.rename(parent, from.1, new_parent, to.1, flags).map_err(errno)
    }
    fn read(&self, node: NodeId, offset: u64, length: u32, hints: ReadHints) -> Reply<Bytes> {
        let (view, ino) = match self.at(node)? {
            At::View(view, ino) => (view, ino),
            At::Control(control_directory::BARRIER) => {
                let rest =
                    control_directory::BARRIER_SIZE.saturating_sub(offset).min(u64::from(length));
                return Ok(vec![0; rest as usize].into());
            }
            At::Control(_) => return Err(Errno(libc::EISDIR)),
        };
        view.read_for(ino, offset, length, hints).map_err(errno)
    }
    fn wants_announcements(&self) -> bool {
        self.views.mainline().is_tight()
    }
    fn announce(&self, node: NodeId, offset: u64) {
        // A view that has ended takes no pages: see below.
        if let Ok(At::View(view, ino)) = self.at(node) {
            view.announce_cached(ino, offset);
        }
    }
    fn read_into(
        &self,
        node: NodeId,
        offset: u64,
        room: &mut [u8],
        hints: ReadHints,
    ) -> Reply<usize> {
        if let At::View(view, ino) = self.at(node)? {
            return view.read_into_for(ino, offset, room, hints).map_err(errno);
        }
        let data = self.read(node, offset, u32::try_from(room.len()).unwrap_or(u32::MAX), hints)?;
        room[..data.len()].copy_from_slice(&data);
        Ok(data.len())
    }
    fn write(&self, node: NodeId, offset: u64, data: &[u8], hints: WriteHints) -> Reply<Written> {
        let written = match self.at(node) {
            Ok(At::View(view, ino)) => view.write_for(ino, offset, data, hints).map_err(errno),
            Ok(At::Control(control_directory::BARRIER)) => {
                self.quiesce_barrier.arrive();
                return Ok(Written { bytes: data.len() as u64, lost_privileges: false });
            }
            Ok(At::Control(_)) => Err(Errno(libc::EISDIR)),
            Err(e) => Err(e),
        };
        match written {
            // The kernel had held back a page of a file whose view has ended. An error would be
            // reported to everyone who makes the kernel hand over pages, and a program that has the
            // file open gets an error at its next call anyway.
            Err(Errno(libc::ESTALE)) if hints.from_cache => {
                Ok(Written { bytes: data.len() as u64, lost_privileges: false })
            }
            written => written,
        }
    }
    fn fsync(&self, node: NodeId, data_only: bool) -> Reply<()> {
        match self.at(node)? {
            At::View(view, ino) => view.fsync(ino, data_only).map_err(errno),
            At::Control(_) => Ok(()),
        }
    }
    fn begin_fsync(&self, node: NodeId) -> Reply<FSync> {
        match self.at(node)? {
            At::View(view, ino) => view.begin_fsync(ino).map_err(errno),
            At::Control(_) => Ok(FSync::Done),
        }
    }
    fn sync(&self) -> Reply<()> {
        self.views.mainline().sync_store().map_err(errno)
    }
    fn fsyncdir(&self, node: NodeId, _data_only: bool) -> Reply<()> {
        match self.at(node)? {
            At::View(view, ino) => view.fsyncdir(ino).map_err(errno),
            At::Control(_) => Ok(()),
        }
    }
    fn readdir(
        &self,
        node: NodeId,
        cookie: u64,
        attributes: bool,
        take: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Reply<()> {
        match self.at(node)? {
            At::View(view, ino) => {
                let (numbering, gathers) = (view.numbering(), view.gathers);
                let mut shown = |entry: DirEntry<'_>| {
                    let attr = entry.attr.map(|attr| numbering.attr(with_space(attr, gathers)));
                    let DirEntry { ino, kind, name, cookie, .. } = entry;
                    take(Listed { ino: numbering.shown(ino, kind), kind, name, cookie, attr })
                };
                view.readdir(ino, cookie, attributes, &mut shown).map_err(errno)
            }
            At::Control(dir) => self.list_control(dir, cookie, take),
        }
    }
    fn getxattr(&self, node: NodeId, name: &[u8]) -> Reply<Bytes> {
        match self.at(node)? {
            At::View(view, ino) => match view.getxattr(ino, name) {
                Err(kvfs::Error::NoAttribute) => {
                    Err(security_labels::absent(name, self.kernel_has_labels))
                }
                value => value.map(Bytes::from).map_err(errno),
            },
            At::Control(_) => Err(Errno(libc::ENODATA)),
        }
    }
    fn listxattr(&self, node: NodeId, caller: Caller) -> Reply<Bytes> {
        match self.at(node)? {
            At::View(view, ino) => {
                let names = view.listxattr(ino).map_err(errno)?;
                if caller.uid == 0 {
                    return Ok(Bytes::from(names));
                }
                // The kernel shows values of this name space only to the superuser, and file
                // systems list the names only to the superuser.
                let open = |name: &&[u8]| !name.starts_with(b"trusted.");
                Ok(names
                    .split_inclusive(|&byte| byte == 0)
                    .filter(open)
                    .flatten()
                    .copied()
                    .collect())
            }
            At::Control(_) => Ok(Bytes::new()),
        }
    }
    fn setxattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrFlags,
        _caller: Caller,
    ) -> Reply<()> {
        let (view, ino) = self.inode(node)?;
        view.setxattr(ino, name, value, mode).map_err(errno)
    }
    fn removexattr(&self, node: NodeId, name: &[u8], _caller: Caller) -> Reply<()> {
        let (view, ino) = self.inode(node)?;
        view.removexattr(ino, name).map_err(errno)
    }
    fn statfs(&self, node: NodeId) -> Reply<StatFs> {
        // A transaction may have less space than the store.
        let seen = match self.at(node) {
            Ok(At::View(view, _)) => view.statfs(),
            Ok(At::Control(_)) | Err(_) => self.mainline.statfs(),
        };
        seen.map_err(errno)
    }
    fn fallocate(
        &self,
        node: NodeId,
        offset: u64,
        length: u64,
        how: Allocate,
        caller: Caller,
    ) -> Reply<Written> {
        let (view, ino) = self.inode(node)?;
        view.fallocate_for(ino, how, offset, length, hints_of(caller)).map_err(errno)
    }
    fn seek(&self, node: NodeId, offset: u64, what: Whence) -> Reply<u64> {
        let (view, ino) = self.inode(node)?;
        if self.in_use.is_none() && self.recall.get().is_none() {
            // The mount has just begun, or nothing recalls its pages: the whole file counts as
            // data.
            let size = view.getattr(ino).map_err(errno)?.size;
            return match what {
                _ if offset >= size => Err(Errno(libc::ENXIO)),
                Whence::Data => Ok(offset),
                Whence::Hole => Ok(size),
            };
        }
        if !self.recall(node)? {
            return Err(Errno(libc::ENOSYS));
        }
        view.seek(ino, offset, what).map_err(errno)
    }
    fn stalls(&self) -> bool {
        self.views.takes_locks()
    }
    fn go_down(&self, how: GoingDown) -> Reply<()> {
        self.views.go_down(how).map_err(errno)
    }
    fn is_down(&self) -> bool {
        self.views.is_down()
    }
    fn copy_file_range(
        &self,
        from: (NodeId, u64),
        to: (NodeId, u64),
        length: u64,
        caller: Caller,
    ) -> Reply<Written> {
        // The kernel itself reads and writes for a copy between views.
        let (view, source, target) = self.together(self.inode(from.0)?, to.0)?;
        view.copy_file_range_for((source, from.1), (target, to.1), length, hints_of(caller))
            .map_err(errno)
    }
}
