//! Answers each request of the kernel with a call of the view in which the inode lies.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use kvfs::DirEntry;

use super::late_times::answer_to_late_times;
use super::view::{At, with_space};
use super::{FuseAdapter, NOT_HERE, STALE, errno};
use crate::handler::*;
use crate::{control_directory, node_id, security_labels};

/// Returns the effect of a call on the privileges of a file whose content it changes, if the kernel
/// does not specify it. A caller other than root is treated as having no right to keep the
/// privileges.
fn hints_of(caller: Caller) -> WriteHints {
    WriteHints {
        unprivileged_group: (caller.uid != 0).then_some(caller.gid),
        ..WriteHints::default()
    }
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
            // A missing name is returned as an error, because the kernel would cache the absence of
            // a name in a successful answer.
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
        // The renamed file replaces the content of the other file. If the kernel held back dirty
        // data, only the content that the daemon knows would be left.
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
        // A view that has ended takes no pages (see `write`), so nothing is announced to it.
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
            // reported to every program that makes the kernel hand over pages, and a program that
            // has the file open gets an error at its next call in any case.
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
            // The mount has just begun, or its pages cannot be recalled, so the whole file counts
            // as data.
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
