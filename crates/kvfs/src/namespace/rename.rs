//! Renames entries, with the flags of `renameat2`. This is the one operation with up to four
//! inodes, all committed in one batch together with the moved file's dirty data. So a crash never
//! leaves a replaced name with an empty or half-written file.

use env::sync::RwLockWriteGuard;
use kvdb::Batch;

use crate::attr::{FileKind, Ino, RenameFlags, Timestamp};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::request;
use crate::inode::{Inode, InodeState};
use crate::layout::{self, Attributes, Body};
use crate::names::{NamedInode, Place};
use crate::namespace::{Unlinked, check_name};
use crate::space::space_account::NAME_COST;

/// A rename: the old place, the new place, and the inodes that have these names.
struct Rename<'a> {
    from: Place<'a>,
    to: Place<'a>,
    flags: RenameFlags,
    source: NamedInode,
    /// The inode that is replaced by the source, or exchanged with it.
    target: Option<NamedInode>,
}

impl Rename<'_> {
    fn is_within_one_dir(&self) -> bool {
        self.from.0 == self.to.0
    }

    /// Returns whether a directory gets another parent.
    fn moves_a_dir(&self) -> bool {
        let exchanged = self.flags.exchange && self.target.as_ref().is_some_and(NamedInode::is_dir);
        !self.is_within_one_dir() && (self.source.is_dir() || exchanged)
    }

    /// Fails if only one of source and target is a directory, unless they are exchanged.
    fn check_kinds(&self) -> Result<()> {
        match &self.target {
            Some(target) if !self.flags.exchange => match (self.source.is_dir(), target.is_dir()) {
                (true, false) => Err(Error::NotDirectory),
                (false, true) => Err(Error::IsDirectory),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Fails if source or target is one of the two directories, which are locked. In a sound store
    /// `check_ancestry` has refused every such rename.
    fn check_distinct(&self) -> Result<()> {
        let is_parent = |inode: &NamedInode| inode.ino == self.from.0 || inode.ino == self.to.0;
        if is_parent(&self.source) || self.target.as_ref().is_some_and(is_parent) {
            return Err(Error::Corrupt {
                ino: self.from.0,
                what: "directories that lie in each other".into(),
            });
        }
        Ok(())
    }
}

/// The locked inodes of a rename.
struct RenameLocks<'a> {
    /// The directory of the old name, which `dir` locks.
    dir_inode: &'a Inode,
    dir: RwLockWriteGuard<'a, InodeState>,
    /// `None` if source and target are in one directory.
    new_dir: Option<RwLockWriteGuard<'a, InodeState>>,
    source: RwLockWriteGuard<'a, InodeState>,
    target: Option<RwLockWriteGuard<'a, InodeState>>,
}

/// The attributes of the inodes after a rename.
struct Renamed {
    dir: Attributes,
    new_dir: Option<Attributes>,
    source: Attributes,
    exchanged: Option<Attributes>,
    unlinked: Option<Unlinked>,
}

impl Fs {
    /// Renames an entry, with the flags of `renameat2`. A file's dirty data is committed with it.
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.writable()?;
        for name in [name, new_name] {
            if matches!(name, b"." | b"..") {
                return Err(Error::Invalid("renaming `.` or `..`"));
            }
            check_name(name)?;
        }
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(Error::Invalid("an exchange cannot be combined with other flags"));
        }
        self.core.locks.retry(|| self.rename_once((parent, name), (new_parent, new_name), flags))
    }

    /// Locks the directories, looks up both names, checks them, locks the inodes, and commits the
    /// changes as one batch.
    fn rename_once(&self, from: Place<'_>, to: Place<'_>, flags: RenameFlags) -> Result<()> {
        let _call = self.enter()?;
        if flags.whiteout {
            // A whiteout is a new inode.
            self.reserve(NAME_COST)?;
        }
        let _tree = self.core.names.lock_tree();
        let (dir, new_dir) = (self.inode(from.0)?, self.inode(to.0)?);
        let dir_state = self.lock_dir(&dir)?;
        let new_dir_state = if from.0 == to.0 { None } else { Some(self.lock_dir(&new_dir)?) };
        let Some(rename) = self.look_up_rename(from, to, flags)? else { return Ok(()) };

        if let Some(new_dir_state) = &new_dir_state {
            if rename.moves_a_dir() {
                self.core.locks.moves()?;
            }
            self.check_ancestry(&rename, dir_state.attr.parent, new_dir_state.attr.parent)?;
        }
        rename.check_kinds()?;
        rename.check_distinct()?;

        let (source, target) = self.lock_both(&rename.source, rename.target.as_ref())?;
        if let (Some(target), Some(state)) = (&rename.target, &target)
            && !flags.exchange
            && target.is_dir()
            && state.attr.size > 0
        {
            return Err(Error::NotEmpty);
        }
        let mut locks =
            RenameLocks { dir_inode: &dir, dir: dir_state, new_dir: new_dir_state, source, target };

        let mut batch = Batch::new();
        let renamed = self.stage_rename(&rename, &mut locks, &mut batch)?;
        request::completes(&mut batch, rename.source.inode.ino);
        self.apply(batch)?;
        self.renamed(&rename, locks, renamed);
        Ok(())
    }

    /// Looks up both names. Returns `None` if they are names of one file: POSIX requires that
    /// nothing is done then.
    fn look_up_rename<'a>(
        &self,
        from: Place<'a>,
        to: Place<'a>,
        flags: RenameFlags,
    ) -> Result<Option<Rename<'a>>> {
        let source = self.core.names.named(from, to.0)?.ok_or(Error::NotFound)?;
        let target = self.core.names.named(to, from.0)?;
        match &target {
            Some(_) if flags.no_replace => Err(Error::Exists),
            None if flags.exchange => Err(Error::NotFound),
            Some(target) if target.ino == source.ino => Ok(None),
            _ => Ok(Some(Rename { from, to, flags, source, target })),
        }
    }

    /// Fails if a directory would become its own descendant. `above_dir` and `above_new_dir` are
    /// the parents of the two directories, which the caller has locked.
    fn check_ancestry(
        &self,
        rename: &Rename<'_>,
        above_dir: Ino,
        above_new_dir: Ino,
    ) -> Result<()> {
        let (parent, new_parent) = (rename.from.0, rename.to.0);
        let locked = |ino| match ino {
            _ if ino == parent => Some(above_dir),
            _ if ino == new_parent => Some(above_new_dir),
            _ => None,
        };
        let source = &rename.source;
        if source.is_dir() && self.core.names.is_below(new_parent, source.ino, &locked)? {
            return Err(Error::Invalid("moving a directory into itself"));
        }
        if let Some(target) = &rename.target
            && target.is_dir()
            && self.core.names.is_below(parent, target.ino, &locked)?
        {
            return Err(if rename.flags.exchange {
                Error::Invalid("moving a directory into itself")
            } else {
                Error::NotEmpty
            });
        }
        Ok(())
    }

    /// Puts the names, the dirty data of the inodes and their new attributes into `batch`.
    fn stage_rename(
        &self,
        rename: &Rename<'_>,
        locks: &mut RenameLocks<'_>,
        batch: &mut Batch,
    ) -> Result<Renamed> {
        let Rename { from: (parent, _), to: (new_parent, _), flags, source, .. } = rename;
        let now = self.now();
        let mut dir = locks.dir.attr;
        let mut new_dir = locks.new_dir.as_ref().map(|state| state.attr);
        (dir.mtime, dir.ctime) = (now, now);
        if let Some(attr) = &mut new_dir {
            (attr.mtime, attr.ctime) = (now, now);
        }

        if !locks.source.dirty && !flags.whiteout {
            // The number of names stays the same or decreases by one.
            batch.releases_space();
        }
        let source_attr = self.stage_moved(source, &mut locks.source, (*new_parent, now), batch)?;
        let (new_place, named) = (rename.to, (source.ino, source.kind));
        match &rename.target {
            Some(_) => self.core.names.stage_replacement(new_place, named, batch),
            None => self.core.names.stage_new(new_place, named, batch),
        }
        leave(&mut dir, source);
        enter(new_dir.as_mut().unwrap_or(&mut dir), source);

        let (mut exchanged, mut unlinked) = (None, None);
        if let (Some(target), Some(state)) = (&rename.target, &mut locks.target) {
            leave(new_dir.as_mut().unwrap_or(&mut dir), target);
            if flags.exchange {
                exchanged = Some(self.stage_moved(target, state, (*parent, now), batch)?);
                enter(&mut dir, target);
            } else {
                unlinked = Some(self.stage_unlink(&target.inode, state, now, batch)?);
            }
        }
        if rename.moves_a_dir() {
            // Two transactions that change no inode in common could create a cycle together. This
            // key makes them conflict.
            batch.put(
                self.core.layout.imap,
                layout::MOVES_KEY.as_slice(),
                layout::name_key(*new_parent, &source.ino.to_be_bytes()),
            );
        }
        self.stage_old_name(rename, &source_attr, (locks.dir_inode, &mut dir), batch)?;
        self.stage(*parent, &mut locks.dir, &dir, batch)?;
        if let (Some(state), Some(attr)) = (&mut locks.new_dir, &new_dir) {
            self.stage(*new_parent, state, attr, batch)?;
        }
        Ok(Renamed { dir, new_dir, source: source_attr, exchanged, unlinked })
    }

    /// Stages an inode that gets the parent `to` at the time `now`, with its dirty data.
    fn stage_moved(
        &self,
        moved: &NamedInode,
        state: &mut InodeState,
        (to, now): (Ino, Timestamp),
        batch: &mut Batch,
    ) -> Result<Attributes> {
        self.core.pages.count(moved.ino, state)?;
        let attr = Attributes { ctime: now, parent: to, ..state.attr };
        self.stage(moved.ino, state, &attr, batch)?;
        Ok(attr)
    }

    /// Stages the new meaning of the old name: the exchanged inode, a whiteout, or a removal.
    fn stage_old_name(
        &self,
        rename: &Rename<'_>,
        source_attr: &Attributes,
        (dir_inode, dir): (&Inode, &mut Attributes),
        batch: &mut Batch,
    ) -> Result<()> {
        let names = &self.core.names;
        match (&rename.target, rename.flags) {
            (Some(target), RenameFlags { exchange: true, .. }) => {
                names.stage_replacement(rename.from, (target.ino, target.kind), batch);
            }
            (_, RenameFlags { whiteout: true, .. }) => {
                let ino = self.new_ino()?;
                names.stage_replacement(rename.from, (ino, FileKind::CharDevice), batch);
                batch.put(
                    self.core.layout.imap,
                    layout::node_key(ino),
                    layout::encode_node(&whiteout(dir.ctime, source_attr), None, b""),
                );
                dir.size = dir.size.saturating_add(1);
            }
            _ => names.stage_removal(dir_inode, rename.from.1, batch),
        }
        Ok(())
    }

    /// Updates the inodes in memory after the batch of `stage_rename` was committed.
    fn renamed(&self, rename: &Rename<'_>, mut locks: RenameLocks<'_>, renamed: Renamed) {
        self.mark_committed(&mut locks.source, renamed.source);
        self.mark_committed(&mut locks.dir, renamed.dir);
        if let (Some(state), Some(attr)) = (&mut locks.new_dir, renamed.new_dir) {
            self.mark_committed(state, attr);
        }
        if let (Some(target), Some(state)) = (&rename.target, &mut locks.target) {
            if let Some(attr) = renamed.exchanged {
                self.mark_committed(state, attr);
            }
            if let Some(unlinked) = renamed.unlinked {
                self.unlinked(&target.inode, state, unlinked);
            }
        }
    }

    /// Locks the inodes of two entries: directories first, then by number.
    #[allow(clippy::type_complexity)]
    fn lock_both<'a>(
        &self,
        source: &'a NamedInode,
        target: Option<&'a NamedInode>,
    ) -> Result<(RwLockWriteGuard<'a, InodeState>, Option<RwLockWriteGuard<'a, InodeState>>)> {
        let Some(target) = target else { return Ok((self.lock(&source.inode)?, None)) };
        let rank = |e: &NamedInode| (!e.is_dir(), e.ino);
        if rank(source) < rank(target) {
            let source = self.lock(&source.inode)?;
            Ok((source, Some(self.lock(&target.inode)?)))
        } else {
            let target = self.lock(&target.inode)?;
            Ok((self.lock(&source.inode)?, Some(target)))
        }
    }
}

fn leave(dir: &mut Attributes, entry: &NamedInode) {
    dir.size = dir.size.saturating_sub(1);
    if entry.is_dir() {
        dir.nlink = dir.nlink.saturating_sub(1);
    }
}

fn enter(dir: &mut Attributes, entry: &NamedInode) {
    dir.size = dir.size.saturating_add(1);
    if entry.is_dir() {
        dir.nlink = dir.nlink.saturating_add(1);
    }
}

/// Returns the node of a whiteout in the form that overlayfs uses.
fn whiteout(now: Timestamp, of: &Attributes) -> Attributes {
    Attributes {
        kind: FileKind::CharDevice,
        perm: 0,
        nlink: 1,
        uid: of.uid,
        gid: of.gid,
        rdev: 0,
        size: 0,
        body: Body::Inline(0),
        parent: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        reserved: Default::default(),
    }
}
