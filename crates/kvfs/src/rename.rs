//! Rename, with the flags of `renameat2`: the one operation with up to four inodes, all committed
//! in one batch together with the moved file's dirty data. So a crash never shows a name that was
//! replaced by an empty or half file.

use std::sync::Arc;

use env::sync::RwLockWriteGuard;
use kvdb::Batch;

use crate::attr::{FileKind, Ino, ROOT, RenameFlags, Timestamp};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::inode::{Inode, InodeState};
use crate::layout::{self, Attributes, Body};
use crate::namespace::check_name;

/// An entry and its inode.
struct Entry {
    ino: Ino,
    kind: FileKind,
    inode: Arc<Inode>,
}

impl Entry {
    fn is_dir(&self) -> bool {
        self.kind == FileKind::Dir
    }
}

impl Fs {
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
        self.retry_on_lock(|| self.rename_once((parent, name), (new_parent, new_name), flags))
    }

    fn rename_once(
        &self,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let _call = self.enter()?;
        let _tree = self.core.tree.lock();
        let (dir, new_dir) = (self.inode(parent)?, self.inode(new_parent)?);
        let mut dir_state = self.lock_dir(&dir)?;
        let mut new_dir_state =
            if parent == new_parent { None } else { Some(self.lock_dir(&new_dir)?) };

        let source = self.named(parent, name, new_parent)?.ok_or(Error::NotFound)?;
        let target = self.named(new_parent, new_name, parent)?;
        match &target {
            Some(_) if flags.no_replace => return Err(Error::Exists),
            None if flags.exchange => return Err(Error::NotFound),
            // Two names of one file: nothing to do, says POSIX.
            Some(target) if target.ino == source.ino => return Ok(()),
            _ => {}
        }
        if let Some(new_dir_state) = &new_dir_state {
            if source.is_dir() || flags.exchange && target.as_ref().is_some_and(Entry::is_dir) {
                self.lock_moves()?;
            }
            // Nothing may come to lie below itself.
            let (above_dir, above_new_dir) = (dir_state.attr.parent, new_dir_state.attr.parent);
            let locked = |ino| match ino {
                _ if ino == parent => Some(above_dir),
                _ if ino == new_parent => Some(above_new_dir),
                _ => None,
            };
            if source.is_dir() && self.is_below(new_parent, source.ino, &locked)? {
                return Err(Error::Invalid("moving a directory into itself"));
            }
            if let Some(target) = &target
                && target.is_dir()
                && self.is_below(parent, target.ino, &locked)?
            {
                return Err(if flags.exchange {
                    Error::Invalid("moving a directory into itself")
                } else {
                    Error::NotEmpty
                });
            }
        }
        match &target {
            Some(target) if !flags.exchange => match (source.is_dir(), target.is_dir()) {
                (true, false) => return Err(Error::NotDirectory),
                (false, true) => return Err(Error::IsDirectory),
                _ => {}
            },
            _ => {}
        }

        if [Some(source.ino), target.as_ref().map(|target| target.ino)]
            .iter()
            .flatten()
            .any(|&ino| ino == parent || ino == new_parent)
        {
            // They are locked. What a sound store can be asked was answered above.
            return Err(Error::Corrupt {
                ino: parent,
                what: "directories that lie in each other".into(),
            });
        }
        let (mut source_state, mut target_state) = self.lock_both(&source, target.as_ref())?;
        if let (Some(target), Some(state)) = (&target, &target_state)
            && !flags.exchange
            && target.is_dir()
            && state.attr.size > 0
        {
            return Err(Error::NotEmpty);
        }

        let now = self.now();
        let layout = self.core.layout;
        let mut batch = Batch::new();
        let mut dir_attr = dir_state.attr;
        let mut new_dir_attr = new_dir_state.as_ref().map(|state| state.attr);
        (dir_attr.mtime, dir_attr.ctime) = (now, now);
        if let Some(attr) = &mut new_dir_attr {
            (attr.mtime, attr.ctime) = (now, now);
        }

        if !source_state.dirty {
            // As many names as before, or one less.
            batch.releases_space();
        }
        // The moved file: its data first.
        self.count_pages(source.ino, &mut source_state)?;
        let mut source_attr = source_state.attr;
        source_attr.ctime = now;
        source_attr.parent = new_parent;
        self.stage(source.ino, &mut source_state, &source_attr, &mut batch)?;
        batch.put(
            layout.nmap,
            layout::name_key(new_parent, new_name),
            layout::encode_name(source.ino, source.kind),
        );
        leave(&mut dir_attr, &source);
        enter(new_dir_attr.as_mut().unwrap_or(&mut dir_attr), &source);

        let mut exchanged = None;
        let mut unlinked = None;
        if let (Some(target), Some(state)) = (&target, &mut target_state) {
            leave(new_dir_attr.as_mut().unwrap_or(&mut dir_attr), target);
            if flags.exchange {
                self.count_pages(target.ino, state)?;
                let mut attr = state.attr;
                attr.ctime = now;
                attr.parent = parent;
                self.stage(target.ino, state, &attr, &mut batch)?;
                enter(&mut dir_attr, target);
                exchanged = Some(attr);
            } else {
                unlinked = Some(self.stage_unlink(&target.inode, state, now, &mut batch)?);
            }
        }
        if parent != new_parent
            && (source.is_dir() || flags.exchange && target.as_ref().is_some_and(Entry::is_dir))
        {
            // Two transactions may each do what together makes a circle, without changing one inode
            // both. So they meet here.
            batch.put(
                layout.imap,
                layout::MOVES_KEY.as_slice(),
                layout::name_key(new_parent, &source.ino.to_be_bytes()),
            );
        }
        let old_key = layout::name_key(parent, name);
        match (&target, flags) {
            (Some(target), RenameFlags { exchange: true, .. }) => {
                batch.put(layout.nmap, old_key, layout::encode_name(target.ino, target.kind));
            }
            (_, RenameFlags { whiteout: true, .. }) => {
                let ino = self.new_ino()?;
                batch.put(layout.nmap, old_key, layout::encode_name(ino, FileKind::CharDevice));
                batch.put(
                    layout.imap,
                    layout::node_key(ino),
                    layout::encode_node(&whiteout(now, &source_attr), None, b""),
                );
                dir_attr.size += 1;
            }
            _ => batch.delete(layout.nmap, old_key),
        }
        self.stage(parent, &mut dir_state, &dir_attr, &mut batch)?;
        if let (Some(state), Some(attr)) = (&mut new_dir_state, &new_dir_attr) {
            self.stage(new_parent, state, attr, &mut batch)?;
        }

        if !flags.exchange && !flags.whiteout {
            self.remember_removed(&dir, name);
        }
        self.apply(batch)?;

        self.staged(&mut source_state, source_attr);
        self.staged(&mut dir_state, dir_attr);
        if let (Some(state), Some(attr)) = (&mut new_dir_state, new_dir_attr) {
            self.staged(state, attr);
        }
        if let (Some(target), Some(state)) = (&target, &mut target_state) {
            if let Some(attr) = exchanged {
                self.staged(state, attr);
            }
            if let Some(unlinked) = unlinked {
                self.unlinked(&target.inode, state, unlinked);
            }
        }
        Ok(())
    }

    fn named(&self, parent: Ino, name: &[u8], locked: Ino) -> Result<Option<Entry>> {
        let Some((ino, kind)) = self.entry(parent, name)? else { return Ok(None) };
        Ok(Some(Entry {
            ino,
            kind,
            inode: self.inode_of_entry((parent, name), (ino, kind), locked)?,
        }))
    }

    /// Whether `dir` is `above` or lies below it. `parent_of_locked` knows the parents of the
    /// directories the caller has locked; the tree lock keeps those of all others as they are.
    fn is_below(
        &self,
        dir: Ino,
        above: Ino,
        parent_of_locked: &dyn Fn(Ino) -> Option<Ino>,
    ) -> Result<bool> {
        let mut at = dir;
        // In a damaged store the way up may lead in a circle: it comes back to where it was after
        // some power of two of steps (Brent).
        let (mut mark, mut next_mark) = (0, 1);
        for step in 0u64.. {
            if at == above {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            if at == mark {
                break;
            }
            if step == next_mark {
                (mark, next_mark) = (at, next_mark * 2);
            }
            at = match parent_of_locked(at) {
                Some(parent) => parent,
                None => self.parent_of(at)?,
            };
        }
        Err(Error::Corrupt { ino: dir, what: "its parents form a circle".into() })
    }

    /// Locks the inodes of two entries: directories first, then by number.
    #[allow(clippy::type_complexity)]
    fn lock_both<'a>(
        &self,
        source: &'a Entry,
        target: Option<&'a Entry>,
    ) -> Result<(RwLockWriteGuard<'a, InodeState>, Option<RwLockWriteGuard<'a, InodeState>>)> {
        let Some(target) = target else { return Ok((self.lock(&source.inode)?, None)) };
        let rank = |e: &Entry| (!e.is_dir(), e.ino);
        if rank(source) < rank(target) {
            let source = self.lock(&source.inode)?;
            Ok((source, Some(self.lock(&target.inode)?)))
        } else {
            let target = self.lock(&target.inode)?;
            Ok((self.lock(&source.inode)?, Some(target)))
        }
    }
}

fn leave(dir: &mut Attributes, entry: &Entry) {
    dir.size = dir.size.saturating_sub(1);
    if entry.is_dir() {
        dir.nlink = dir.nlink.saturating_sub(1);
    }
}

fn enter(dir: &mut Attributes, entry: &Entry) {
    dir.size = dir.size.saturating_add(1);
    if entry.is_dir() {
        dir.nlink = dir.nlink.saturating_add(1);
    }
}

/// The node of a whiteout, as overlayfs knows it.
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
