//! Looks up, makes, links and removes names. Each call is one batch, committed at once and in
//! order.

mod directory;
mod directory_locks;
mod rename;
mod resolve;

use env::sync::atomic::Ordering;
use std::sync::Arc;

use bytes::Bytes;
use kvdb::{Batch, Scope};

use crate::attr::{Attr, Caller, FileKind, Ino};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::request;
use crate::inode::inode_cache::Forgotten;
use crate::inode::{Inode, InodeState};
use crate::layout::{self, Attributes, Body, NAME_MAX, TARGET_MAX};
use crate::pages::compress;
use crate::space::file_account::FileMoment;
use crate::space::space_account::NAME_COST;

const SGID: u16 = 0o2000;

impl Fs {
    /// Finds an entry and adds one reference to its inode. Fails with ENOENT if there is no entry.
    /// `.` and `..` are known.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        let _call = self.enter()?;
        let ino = match name {
            b"." => parent,
            b".." => {
                let dir = self.inode(parent)?;
                let state = dir.state.read();
                if !state.is_dir() {
                    return Err(Error::NotDirectory);
                }
                state.attr.parent
            }
            _ => {
                let found = match layout::is_name(name) {
                    true => self.core.names.find((parent, name))?,
                    false => None,
                };
                let Some((ino, kind)) = found else {
                    let dir = self.inode(parent)?;
                    let is_dir = dir.state.read().is_dir();
                    return Err(if is_dir { Error::NotFound } else { Error::NotDirectory });
                };
                if kind == FileKind::Dir {
                    self.announce_names(ino);
                }
                ino
            }
        };
        self.reference(ino)
    }

    /// Announces that names of a directory will be read. In a store in object storage they are
    /// fetched together with its node, so that a path takes one round of requests for each
    /// component, and not two. A server is not notified, since it knows the names that it has sent.
    fn announce_names(&self, dir: Ino) {
        let scope = &self.core.scope;
        if !scope.is_served() {
            scope.announce(self.core.layout.nmap, &[&layout::names_start(dir)]);
        }
    }

    /// Returns the inode and kind of an entry, without adding a reference.
    pub fn peek(&self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, FileKind)>> {
        let _call = self.enter()?;
        self.entry(parent, name)
    }

    /// Adds one reference. Fails with ENOENT if the inode has no name: it was unlinked since its
    /// entry was read.
    pub(crate) fn reference(&self, ino: Ino) -> Result<Attr> {
        let inode = match self.inode(ino) {
            Err(Error::Stale(_)) => return Err(Error::NotFound),
            other => other?,
        };
        let state = inode.state.read();
        if state.gone || state.attr.nlink == 0 {
            return Err(Error::NotFound);
        }
        inode.references.fetch_add(1, Ordering::Relaxed);
        if state.buffer.uncounted == 0 {
            return Ok(self.core.promises.shown(state.attr.public(ino)));
        }
        drop(state);
        let attr = self.attr_of(ino);
        if attr.is_err() {
            // A caller that gets an error does not get a reference.
            self.release(ino, 1);
        }
        attr
    }

    /// Takes back `count` references. With the last one an unlinked inode and its data are removed.
    pub fn forget(&self, ino: Ino, count: u64) {
        if let Ok(_call) = self.enter() {
            self.release(ino, count);
        }
    }

    /// Like `forget`, for a call that has entered the view. Returns `false` if there were no
    /// references.
    pub(crate) fn release(&self, ino: Ino, count: u64) -> bool {
        let forgotten = self.core.inode_cache.forget(ino, count);
        self.core.lost.forgotten(ino, || self.core.inode_cache.references(ino));
        let Forgotten::Last(inode) = forgotten else { return forgotten.is_known() };
        let unlinked = {
            let state = inode.state.read();
            state.attr.nlink == 0 && !state.gone
        };
        if unlinked {
            self.remove_unlinked(&inode);
        }
        true
    }

    fn remove_unlinked(&self, inode: &Arc<Inode>) {
        let mut state = inode.state.write();
        if state.gone || state.attr.nlink > 0 || inode.references.load(Ordering::Relaxed) > 0 {
            return;
        }
        if state.orphaned && self.may_remove(inode.ino) {
            let mut batch = Batch::new();
            self.core.layout.stage_removal(inode.ino, &mut batch);
            batch.delete(self.core.layout.imap, layout::orphan_key(inode.ino));
            if let Err(e) = self.apply(batch) {
                self.leave_orphans(&[inode.ino], &e);
            }
        }
        self.discard(inode.ino, &mut state);
        drop(state);
        self.core.inode_cache.remove(inode);
    }

    /// Makes a file or special file (not a directory or symbolic link) and adds one reference to
    /// it.
    pub fn mknod(
        &self,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
        caller: Caller,
    ) -> Result<Attr> {
        let rdev = match kind {
            FileKind::Dir | FileKind::Symlink => {
                return Err(Error::Invalid("mknod makes no directories and symbolic links"));
            }
            FileKind::CharDevice | FileKind::BlockDevice => rdev,
            _ => 0,
        };
        self.core.locks.retry(|| self.make(parent, name, kind, perm, rdev, Bytes::new(), caller))
    }

    /// Makes a directory.
    pub fn mkdir(&self, parent: Ino, name: &[u8], perm: u16, caller: Caller) -> Result<Attr> {
        self.core
            .locks
            .retry(|| self.make(parent, name, FileKind::Dir, perm, 0, Bytes::new(), caller))
    }

    /// Makes a symbolic link to `target`.
    pub fn symlink(&self, parent: Ino, name: &[u8], target: &[u8], caller: Caller) -> Result<Attr> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > TARGET_MAX {
            return Err(Error::NameTooLong);
        }
        if target.contains(&0) {
            return Err(Error::Invalid("the target of a symbolic link holds no NUL"));
        }
        let target = Bytes::copy_from_slice(target);
        self.core
            .locks
            .retry(|| self.make(parent, name, FileKind::Symlink, 0o777, 0, target.clone(), caller))
    }

    #[allow(clippy::too_many_arguments)]
    fn make(
        &self,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
        content: Bytes,
        caller: Caller,
    ) -> Result<Attr> {
        self.writable()?;
        check_name(name)?;
        let _call = self.enter()?;
        self.reserve(NAME_COST)?;
        let admitted = self.core.files.admit(1)?;
        let dir = self.inode(parent)?;
        let mut dir_state = self.lock_dir(&dir)?;
        self.core.names.check_free((parent, name))?;
        let ino = self.new_ino_in(parent, &mut dir_state.attr)?;
        let mut attr =
            self.new_attributes(&dir_state.attr, parent, kind, perm, rdev, &content, caller);
        if kind == FileKind::Dir {
            let reserved = &mut dir_state.attr.reserved;
            attr.reserved = self.core.inode_allocator.split_for(parent, reserved, ino);
            if let Scope::Served(view) = &self.core.scope {
                // The range is announced before the directory can be found: the server need not be
                // asked for any name in it.
                let (start, end) = (layout::name_key(ino, b""), layout::names_end(ino));
                view.new_range(self.core.layout.nmap, &start, &end);
            }
        }
        let xattrs = compress::inherited(dir_state.xattrs.as_deref(), kind);
        let mut batch = Batch::new();
        self.core.names.stage_new((parent, name), (ino, kind), &mut batch);
        batch.put(
            self.core.layout.imap,
            layout::node_key(ino),
            layout::encode_node(&attr, xattrs.as_ref(), &content),
        );
        let mut dir_attr = dir_state.attr;
        add_entry(&mut dir_attr, &attr);
        self.stage(parent, &mut dir_state, &dir_attr, &mut batch)?;
        request::completes(&mut batch, ino);
        // The inode is in the cache before a lookup can find the name.
        let inode = Arc::new(Inode::new(ino, InodeState::new(attr, xattrs), 1));
        self.core.inode_cache.insert(inode.clone());
        if let Err(e) = self.apply(batch) {
            self.discard(ino, &mut inode.state.write());
            self.core.inode_cache.remove(&inode);
            return Err(e);
        }
        admitted.made();
        self.mark_committed(&mut dir_state, dir_attr);
        Ok(attr.public(ino))
    }

    /// Makes a file without a name (O_TMPFILE), with one reference. `link` can give it a name;
    /// otherwise it is removed with its last reference.
    pub fn tmpfile(&self, parent: Ino, perm: u16, caller: Caller) -> Result<Attr> {
        self.writable()?;
        let _call = self.enter()?;
        let dir = self.inode(parent)?;
        let mut dir_state = dir.state.write();
        // The file may inherit the group and the way of compression. (A removed directory is not in
        // the store, either.)
        if !dir_state.gone {
            self.core.locks.for_read(parent, &mut dir_state)?;
        }
        match () {
            () if dir_state.gone || dir_state.attr.nlink == 0 => return Err(Error::NotFound),
            () if !dir_state.is_dir() => return Err(Error::NotDirectory),
            () => {}
        }
        let mut attr =
            self.new_attributes(&dir_state.attr, parent, FileKind::File, perm, 0, b"", caller);
        let xattrs = compress::inherited(dir_state.xattrs.as_deref(), FileKind::File);
        drop(dir_state);
        (attr.nlink, attr.parent) = (0, 0);
        let ino = self.new_ino()?;
        let inode = Arc::new(Inode::new(ino, InodeState::new(attr, xattrs), 1));
        self.core.inode_cache.insert(inode.clone());
        if self.writes_through() {
            let mut state = inode.state.write();
            if let Err(e) = self.changed(&inode, &mut state) {
                self.discard(ino, &mut state);
                drop(state);
                self.core.inode_cache.remove(&inode);
                return Err(e);
            }
        }
        Ok(attr.public(ino))
    }

    #[allow(clippy::too_many_arguments)]
    fn new_attributes(
        &self,
        dir: &Attributes,
        parent: Ino,
        kind: FileKind,
        perm: u16,
        rdev: u32,
        content: &[u8],
        caller: Caller,
    ) -> Attributes {
        let now = self.now();
        let is_dir = kind == FileKind::Dir;
        let inherits = dir.perm & SGID != 0;
        Attributes {
            kind,
            perm: perm & 0o7777 | if inherits && is_dir { SGID } else { 0 },
            nlink: if is_dir { 2 } else { 1 },
            uid: caller.uid,
            gid: if inherits { dir.gid } else { caller.gid },
            rdev,
            size: content.len() as u64,
            body: Body::Inline(content.len() as u32),
            parent,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            reserved: Default::default(),
        }
    }

    /// Adds a name to an inode, and one reference. Dirty data of the file is committed with it.
    pub fn link(&self, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Attr> {
        self.writable()?;
        check_name(new_name)?;
        self.core.locks.retry(|| self.link_once(ino, new_parent, new_name))
    }

    fn link_once(&self, ino: Ino, new_parent: Ino, new_name: &[u8]) -> Result<Attr> {
        let _call = self.enter()?;
        self.reserve(NAME_COST)?;
        let inode = self.inode(ino)?;
        if inode.state.read().is_dir() {
            return Err(Error::NotPermitted("a hard link to a directory"));
        }
        let dir = self.inode(new_parent)?;
        let mut dir_state = self.lock_dir(&dir)?;
        let mut state = self.lock(&inode)?;
        if state.attr.nlink >= self.core.options.max_links {
            return Err(Error::TooManyLinks);
        }
        self.core.names.check_free((new_parent, new_name))?;
        let admitted = match state.attr.nlink {
            0 => self.core.files.admit_named(ino)?,
            _ => self.core.files.admit(0)?,
        };
        self.core.pages.count(ino, &mut state)?;
        let mut attr = state.attr;
        attr.nlink += 1;
        if attr.parent == 0 || attr.nlink == 1 {
            attr.parent = new_parent;
        }
        attr.ctime = self.now();
        let mut dir_attr = dir_state.attr;
        add_entry(&mut dir_attr, &attr);
        let mut batch = Batch::new();
        self.core.names.stage_new((new_parent, new_name), (ino, attr.kind), &mut batch);
        self.stage(ino, &mut state, &attr, &mut batch)?;
        self.stage(new_parent, &mut dir_state, &dir_attr, &mut batch)?;
        request::completes(&mut batch, ino);
        self.apply(batch)?;
        admitted.made();
        self.mark_committed(&mut state, attr);
        self.mark_committed(&mut dir_state, dir_attr);
        inode.references.fetch_add(1, Ordering::Relaxed);
        Ok(self.core.promises.shown(attr.public(ino)))
    }

    /// Removes a name that does not belong to a directory.
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.writable()?;
        check_name(name)?;
        self.core.locks.retry(|| self.unlink_once(parent, name))
    }

    fn unlink_once(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let _call = self.enter()?;
        let dir = self.inode(parent)?;
        let mut dir_state = self.lock_dir(&dir)?;
        let (ino, kind) = self.entry(parent, name)?.ok_or(Error::NotFound)?;
        if kind == FileKind::Dir {
            return Err(Error::IsDirectory);
        }
        let inode = self.core.names.inode_of((parent, name), (ino, kind), parent)?;
        let mut state = self.lock(&inode)?;
        self.remove_name((&dir, &mut dir_state), name, (&inode, &mut state))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.writable()?;
        match name {
            b"." => return Err(Error::Invalid("removing `.`")),
            b".." => return Err(Error::NotEmpty),
            _ => check_name(name)?,
        }
        self.core.locks.retry(|| self.rmdir_once(parent, name))
    }

    fn rmdir_once(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let _call = self.enter()?;
        let _tree = self.core.names.lock_tree();
        let dir = self.inode(parent)?;
        let mut dir_state = self.lock_dir(&dir)?;
        let (ino, kind) = self.entry(parent, name)?.ok_or(Error::NotFound)?;
        if kind != FileKind::Dir {
            return Err(Error::NotDirectory);
        }
        let inode = self.core.names.inode_of((parent, name), (ino, kind), parent)?;
        let mut state = self.lock(&inode)?;
        if state.attr.size > 0 {
            return Err(Error::NotEmpty);
        }
        self.remove_name((&dir, &mut dir_state), name, (&inode, &mut state))
    }

    /// Removes `name` from a directory, and one link from its inode, as one commit. The caller has
    /// locked both.
    fn remove_name(
        &self,
        (dir, dir_state): (&Arc<Inode>, &mut InodeState),
        name: &[u8],
        (inode, state): (&Arc<Inode>, &mut InodeState),
    ) -> Result<()> {
        let mut batch = Batch::new();
        batch.releases_space();
        self.core.names.stage_removal(dir, name, &mut batch);
        let now = self.now();
        let mut dir_attr = dir_state.attr;
        dir_attr.size = dir_attr.size.saturating_sub(1);
        if state.is_dir() {
            // The `..` of the removed directory was a link to this one.
            dir_attr.nlink = dir_attr.nlink.saturating_sub(1);
        }
        (dir_attr.mtime, dir_attr.ctime) = (now, now);
        self.stage(dir.ino, dir_state, &dir_attr, &mut batch)?;
        let dropped = self.stage_unlink(inode, state, now, &mut batch)?;
        request::completes(&mut batch, inode.ino);
        self.apply(batch)?;
        self.mark_committed(dir_state, dir_attr);
        self.unlinked(inode, state, dropped);
        Ok(())
    }

    /// Returns the inode and kind of an entry.
    pub(crate) fn entry(&self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, FileKind)>> {
        self.core.names.find((parent, name))
    }

    /// Adds to `batch` the removal of one name of an inode. With the last name the node is removed
    /// from the store. An inode that is still referenced continues to exist in memory, with an
    /// orphan record while the store has data of it. After the commit, call `unlinked` with the
    /// result.
    pub(crate) fn stage_unlink(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        now: crate::attr::Timestamp,
        batch: &mut Batch,
    ) -> Result<Unlinked> {
        let left = if state.is_dir() { 0 } else { state.attr.nlink.saturating_sub(1) };
        if left > 0 {
            self.core.pages.count(inode.ino, state)?;
        }
        let mut attr = state.attr;
        (attr.nlink, attr.ctime) = (left, now);
        if left > 0 {
            self.stage(inode.ino, state, &attr, batch)?;
            return Ok(Unlinked::Linked(attr));
        }
        if self.core.promises.has(inode.ino) {
            self.core.promises.stage(inode.ino, 0, batch);
            state.buffer.promise_changed = true;
        }
        let stored = state.stored || state.has_external_xattrs();
        let removes = self.may_remove(inode.ino);
        let referenced = inode.references.load(Ordering::Relaxed) > 0;
        if referenced {
            // The content is removed with the node: open handles read it from memory.
            state.inline = Some(self.core.pages.content(inode.ino, state)?)
                .filter(|content| !content.is_empty());
            if let Some(content) = &mut state.inline {
                *content = Bytes::copy_from_slice(content);
            }
            batch.delete(self.core.layout.imap, layout::node_key(inode.ino));
            if self.writes_through() {
                let content = self.core.pages.content(inode.ino, state)?;
                let node = layout::encode_node(&attr, state.xattrs.as_deref(), &content);
                batch.put(self.core.layout.imap, layout::orphan_key(inode.ino), node);
            } else if stored {
                batch.put(self.core.layout.imap, layout::orphan_key(inode.ino), b"".as_slice());
            }
        } else if stored && removes {
            self.core.layout.stage_removal(inode.ino, batch);
        } else {
            batch.delete(self.core.layout.imap, layout::node_key(inode.ino));
            if stored {
                batch.put(self.core.layout.imap, layout::orphan_key(inode.ino), b"".as_slice());
            }
        }
        Ok(Unlinked::Nameless { attr, referenced, stored, at: self.core.files.moment() })
    }

    pub(crate) fn unlinked(&self, inode: &Arc<Inode>, state: &mut InodeState, unlinked: Unlinked) {
        if let Unlinked::Nameless { at, .. } = &unlinked {
            self.core.files.removed(inode.ino, *at);
        }
        match unlinked {
            Unlinked::Linked(attr) => self.mark_committed(state, attr),
            Unlinked::Nameless { attr, referenced: true, stored, .. } => {
                state.attr = attr;
                state.orphaned = stored || self.writes_through();
            }
            Unlinked::Nameless { attr, referenced: false, .. } => {
                state.attr = attr;
                self.discard(inode.ino, state);
                self.core.inode_cache.remove(inode);
            }
        }
    }
}

/// The result of `stage_unlink`.
pub(crate) enum Unlinked {
    /// The inode has other names.
    Linked(Attributes),
    Nameless {
        attr: Attributes,
        referenced: bool,
        stored: bool,
        at: FileMoment,
    },
}

/// Updates the attributes of a directory for a new entry.
pub(crate) fn add_entry(dir: &mut Attributes, entry: &Attributes) {
    // The counts of a damaged store may be anything.
    dir.size = dir.size.saturating_add(1);
    if entry.kind == FileKind::Dir {
        dir.nlink = dir.nlink.saturating_add(1);
    }
    // The directory gets exactly the time of the entry's own change.
    (dir.mtime, dir.ctime) = (entry.ctime, entry.ctime);
}

/// Checks that an entry can be given this name.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(Error::NotFound),
        b"." | b".." => Err(Error::Exists),
        _ if name.len() > NAME_MAX => Err(Error::NameTooLong),
        _ if !layout::is_name(name) => Err(Error::Invalid("a name holds neither `/` nor NUL")),
        _ => Ok(()),
    }
}
