//! Replaces the state of a view as a whole: by the state of a snapshot in a rollback, or by a newer
//! state that was published elsewhere. The inodes in memory are brought up to date with it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kvdb::{Scope, View};

use crate::commit::apply_commit::{ChangeSet, ChangedName};
use crate::error::Result;
use crate::fs::Fs;
use crate::fs::superseded::ChangeTurn;
use crate::inode::inodes::Known;
use crate::inode::{Identity, Inode, InodeState};
use crate::layout::{self, ImapKey, Layout};

impl ChangeSet {
    /// Returns the changes from one state of a view to another one of the same store.
    pub(crate) fn between(before: &View, after: &View, layout: &Layout) -> Result<ChangeSet> {
        let mut changes = ChangeSet::default();
        for change in before.difference(layout.nmap, after, layout.nmap)? {
            let change = change?;
            let (parent, name) = layout::decode_name_key(&change.key)?;
            changes.names.push((parent, name.into(), change.after.is_none()));
        }
        for change in before.difference(layout.imap, after, layout.imap)? {
            let change = change?;
            if let ImapKey::Node(ino) = layout::decode_imap_key(&change.key)? {
                changes.inodes.push((ino, change.after.is_none()));
            }
        }
        Ok(changes)
    }
}

impl Fs {
    /// Returns the inodes among the changed ones to which the kernel refers.
    pub(crate) fn known_of(&self, changes: &ChangeSet) -> Result<Vec<Known>> {
        let changed = changes.inodes.iter().map(|(ino, _)| *ino);
        let referenced = changed.filter(|ino| self.core.inode_cache.references(*ino) > 0);
        self.core.inodes.identities(referenced)
    }

    /// Brings the inodes in memory up to date after the state was replaced. The view is frozen, and
    /// nothing is dirty. `known`: the result of [`Fs::known_of`] in the state before.
    pub(crate) fn follow_changes(&self, changes: &ChangeSet, known: Vec<Known>) -> Result<()> {
        let changed = changes.inodes.iter();
        let cached = changed.filter_map(|(ino, _)| self.core.inode_cache.get(*ino)).collect();
        self.bring_up(cached, known)?;
        // Listings that stopped at a removed name must find their position.
        for (parent, name, _) in changes.names.iter().filter(|(.., removed)| *removed) {
            if let Some(dir) = self.core.inode_cache.get(*parent) {
                self.core.listings.remember_removed(&dir, name);
            }
        }
        Ok(())
    }

    /// Brings these inodes in memory up to date with the store, and adapts the kernel's references.
    fn bring_up(&self, cached: Vec<Arc<Inode>>, known: Vec<Known>) -> Result<()> {
        // This read locks nothing. The inodes that a serializable transaction has in memory are
        // locked already, or noted as not locked.
        let view = self.core.scope.view()?;
        let node = |ino| self.core.inodes.node_in(&view, ino);
        for inode in cached {
            let mut state = inode.state.write();
            let (read_unlocked, before) = (state.read_unlocked, Identity::of(&state.attr));
            self.discard(inode.ino, &mut state);
            match node(inode.ino) {
                Ok(Some((attr, xattrs))) if Identity::of(&attr) == before => {
                    *state = InodeState {
                        queued: state.queued,
                        read_unlocked,
                        ..InodeState::new(attr, xattrs)
                    };
                }
                // The inode was made since, or another inode has its number, or it cannot be read
                // now and the next access returns the error.
                _ => {
                    drop(state);
                    self.core.inode_cache.leave(&inode);
                }
            }
        }
        for (ino, before) in known {
            match node(ino) {
                Ok(Some((attr, ..))) if Identity::of(&attr) == before => {
                    self.core.inode_cache.recover(ino)
                }
                // Nothing indicates that the inode is a different one, since a branch assigns no
                // number twice. Reading it returns the error as long as the error lasts.
                Err(_) => {}
                // The root stays the root, whatever its identity.
                _ if ino == crate::ROOT => {}
                _ => self.core.inode_cache.strand(ino, before),
            }
        }
        Ok(())
    }

    /// Makes `change` replace the state of this view as a whole, and brings everything in memory up
    /// to date with the new state. Uncommitted changes are lost. An inode to which the kernel
    /// refers becomes stale if it does not exist any more, or if another file has its number.
    /// Returns the names and inodes that the kernel must invalidate; `change` is called with those
    /// that it may have cached before.
    pub(crate) fn revert(
        &self,
        turn: &ChangeTurn<'_>,
        change: impl FnOnce(&ChangeSet) -> Result<()>,
    ) -> Result<ChangeSet> {
        let frozen = self.core.freeze_lock.freeze();
        if frozen.ended() {
            return Err(crate::Error::Stale(crate::ROOT));
        }
        let mut names = Vec::new();
        self.add_known_names(&mut names)?;
        let known = self.core.inodes.identities(self.referenced())?;
        // Dirty data is dropped with the state, but caches have read it, so it is committed if
        // possible. Data that cannot be committed now may be written back from a cache, and is no
        // worse for that.
        let _ = kvdb::without_lock_waits(|| self.commit_older_than(Duration::MAX));
        let before = self.state_before_change(None)?;
        let referenced = self.referenced().into_iter().chain([crate::ROOT]);
        let inodes = referenced.map(|ino| (ino, false)).collect();
        let known_before = ChangeSet { names, inodes, ..ChangeSet::default() };
        change(&known_before)?;
        let mut names = known_before.names;
        // The state is replaced: no error ends this before the inodes in memory have followed.
        turn.publish(before);
        self.core.files.forget();
        if matches!(self.core.scope, Scope::Mainline(_)) {
            // Reservations in the restored state were used since.
            self.core.inode_allocator.void_reservations();
            self.core.inode_allocator.clear_mark();
        }
        self.bring_up(self.core.inode_cache.all(), known)?;
        if let Err(e) = self.follow_promises() {
            tracing::warn!(
                "what is promised to files is not as the state that is back has it: {e}"
            );
        }
        let mut after = Vec::new();
        if let Err(e) = self.add_known_names(&mut after) {
            // Names that cannot be read return an error to those who look them up, too.
            tracing::warn!("not all names that are back can be told to caches: {e}");
        }
        let after: HashSet<ChangedName> = after.into_iter().collect();
        // Listings that stopped at a removed name must find their position.
        for gone in names.iter().filter(|named| !after.contains(named)) {
            if let Some(dir) = self.core.inode_cache.get(gone.0) {
                self.core.listings.remember_removed(&dir, &gone.1);
            }
        }
        names.extend(after);
        names.sort_unstable();
        names.dedup();
        let inodes =
            self.referenced().into_iter().chain([crate::ROOT]).map(|ino| (ino, false)).collect();
        Ok(ChangeSet { names, inodes, ..ChangeSet::default() })
    }

    /// Adds the names in all directories to which the kernel refers; after an error, those that
    /// could be read.
    pub(crate) fn add_known_names(&self, names: &mut Vec<ChangedName>) -> Result<()> {
        let view = self.core.scope.view()?;
        for ino in self.referenced().into_iter().chain([crate::ROOT]) {
            let mut cursor = view.cursor(
                self.core.layout.nmap,
                &layout::name_key(ino, b""),
                &layout::names_end(ino),
            )?;
            while let Some(tuple) = cursor.next()? {
                names.push((ino, layout::decode_name_key(&tuple.key)?.1.into(), false));
            }
        }
        Ok(())
    }
}
