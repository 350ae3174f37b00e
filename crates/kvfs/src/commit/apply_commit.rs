//! Applies the commit of a transaction to the inodes in memory of the view in which the transaction
//! began: from the commit on, every call on that view must see the state of the store. The text
//! below says "mainline"; the same holds for a clone, and for a transaction that contains other
//! transactions.
//!
//! The mainline is frozen, so no call is in progress. Dirty data is committed first, so that the
//! database finds its conflicts: a write to the mainline counts as made before the transaction's
//! commit. Then the transaction commits. An inode in memory that the transaction
//!
//! - changed is loaded again. The state that keeps positions of a listing valid stays, and is
//!   notified of removed names.
//! - removed, and that is not open, is dropped.
//! - removed, and that is open in the mainline, continues to exist without a name, as if the
//!   mainline had unlinked it. If its content was in the node, the content is first read into
//!   memory. Its pages stay, because the transaction has left an orphan record instead of removing
//!   them; pages that the transaction had changed before it removed the file are put back first.
//! - changed or removed, and that the mainline has unlinked already, stays as it is. If the
//!   transaction changed the file, the change is a conflict. A transaction that undoes the commit
//!   which removed the file makes the inode that file again, unless the file was written to since.
//!   If a program runs from the inode, the file comes back under another number (`views/running`),
//!   and the inode continues without a name, with its content and its orphan record.
//! - made is not in memory, because no call could refer to it.
//!
//! A serializable transaction prevents other calls from committing files that it has locked. A
//! mainline write to such a file that was made before the lock and is not committed yet is a
//! conflict if the transaction changed the file, too.
//!
//! Reference counts never change, because the kernel does not know of the commit yet. Orphans that
//! are not open are removed afterwards, each with its record; after a crash in between, the next
//! opening removes them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::sync::atomic::Ordering;
use kvdb::{Batch, Changed, Savepoint, Transaction};

use crate::attr::{Ino, ROOT};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::superseded::ChangeTurn;
use crate::inode::{Inode, InodeState};
use crate::layout::{self, Attributes, ImapKey, Layout};

/// The number of pages that are put back in one batch.
const PUT_BACK_AT_ONCE: usize = 16 << 10;

/// A directory, a name in it, and whether the name was removed.
pub(crate) type ChangedName = (Ino, Box<[u8]>, bool);

/// The names and inodes of a file system that a transaction has changed.
#[derive(Clone, Debug, Default)]
pub struct ChangeSet {
    /// The names that were made, replaced or (`true`) removed, with their directories.
    pub names: Vec<ChangedName>,
    /// The inodes that were made or changed, or (`true`) removed.
    pub inodes: Vec<(Ino, bool)>,
    /// The inodes without a name that still have data in the store.
    pub(crate) orphans: HashSet<Ino>,
    /// The files whose note of promised space was made, changed or removed.
    pub(crate) promised: HashSet<Ino>,
}

impl ChangeSet {
    pub(crate) fn by(transaction: &Transaction, layout: &Layout) -> Result<ChangeSet> {
        let mut changes = ChangeSet::default();
        for change in transaction.changes_of(&[layout.nmap, layout.imap])? {
            let (dict, change) = change?;
            let (key, removed) = match change {
                Changed::Put { key, .. } | Changed::Update { key, .. } => (key, false),
                Changed::Delete { key } => (key, true),
                // Such ranges hold inodes that the transaction itself had made, or pages, which
                // never change without their node.
                Changed::DeleteRange { .. } => continue,
            };
            if dict == layout.nmap {
                let (parent, name) = layout::decode_name_key(&key)?;
                changes.names.push((parent, name.into(), removed));
            } else if dict == layout.imap {
                match layout::decode_imap_key(&key)? {
                    ImapKey::Node(ino) => changes.inodes.push((ino, removed)),
                    ImapKey::Promise(ino) => drop(changes.promised.insert(ino)),
                    ImapKey::Orphan(ino) if !removed => drop(changes.orphans.insert(ino)),
                    _ => {}
                }
            }
        }
        Ok(changes)
    }
}

/// An inode that loses its last name while it is open.
struct Unlinking {
    inode: Arc<Inode>,
    content: Bytes,
}

impl Fs {
    /// Makes the transaction of this frozen view ready to commit: afterwards it contains every
    /// change of the view. If this call or the commit fails, the view continues, and returns to the
    /// state in `before`, which this call sets; it stays `None` if nothing was removed.
    pub(crate) fn prepare(
        &self,
        transaction: &Transaction,
        before: &mut Option<Savepoint>,
    ) -> Result<()> {
        self.commit_older_than(Duration::MAX)?;
        // Files that are unlinked but still open in this view lose their last users when the view
        // ends. Data that they stored before the transaction belongs to the mainline.
        for inode in self.core.inode_cache.all() {
            let state = inode.state.read();
            if state.attr.nlink == 0 && !state.gone && state.orphaned && self.may_remove(inode.ino)
            {
                if before.is_none() {
                    *before = Some(transaction.savepoint()?);
                }
                let mut batch = Batch::new();
                self.core.layout.stage_removal(inode.ino, &mut batch);
                batch.delete(self.core.layout.imap, layout::orphan_key(inode.ino));
                transaction.apply_at_commit(batch)?;
            }
        }
        Ok(())
    }

    /// Commits the changes of a transaction by `commit`, and updates the inodes in memory to match.
    /// Returns the orphans that are not open. After an error nothing has changed; on
    /// [`kvdb::Error::Locked`] the caller tries again.
    pub(crate) fn apply_commit(
        &self,
        transaction: &Transaction,
        changes: &ChangeSet,
        turn: &ChangeTurn<'_>,
        commit: impl FnOnce() -> Result<()>,
    ) -> Result<Vec<Ino>> {
        self.at_rest(|| self.apply_commit_at_rest(transaction, changes, turn, commit))
    }

    fn apply_commit_at_rest(
        &self,
        transaction: &Transaction,
        changes: &ChangeSet,
        turn: &ChangeTurn<'_>,
        commit: impl FnOnce() -> Result<()>,
    ) -> Result<Vec<Ino>> {
        let dirty = changes.inodes.iter().find(|(ino, _)| {
            // The inode could not be committed above, because a transaction has locked it.
            self.core.inode_cache.get(*ino).is_some_and(|inode| {
                let state = inode.state.read();
                state.dirty && state.attr.nlink > 0
            })
        });
        let written = || self.written_without_name(transaction, changes);
        if let Some(ino) = dirty.map(|(ino, _)| *ino).map_or_else(written, |ino| Ok(Some(ino)))? {
            let key = (self.core.layout.imap, layout::node_key(ino).into());
            return Err(kvdb::Error::Conflict { keys: vec![key] }.into());
        }
        let nameless = self.nameless_among(changes);
        self.put_back_nameless(transaction, &nameless)?;
        let mut unlinking = Vec::new();
        for &(ino, removed) in &changes.inodes {
            if removed && self.core.inode_cache.references(ino) > 0 {
                unlinking.extend(self.before_unlinking(ino)?);
            }
        }
        let put_back = self.put_back(transaction, &unlinking)?;
        let before =
            self.state_before_change(Some(changes.inodes.iter().map(|(ino, _)| *ino).collect()))?;
        kvdb::without_lock_waits(commit)?;
        turn.publish(before);
        self.core.files.forget();
        let now = self.now();
        let mut kept = nameless;
        kept.extend(unlinking.iter().map(|u| u.inode.ino));
        for Unlinking { inode, content } in unlinking {
            let mut state = inode.state.write();
            (state.attr.nlink, state.attr.ctime) = (0, now);
            state.written_nameless = false;
            state.inline = Some(content).filter(|content| !content.is_empty());
            state.orphaned = changes.orphans.contains(&inode.ino) || put_back.contains(&inode.ino);
        }
        self.follow_in_memory(changes, &kept);
        Ok(changes.orphans.iter().copied().filter(|ino| !kept.contains(ino)).collect())
    }

    /// Updates the inodes in memory with changes that were committed. The inodes in `kept` are
    /// already up to date.
    fn follow_in_memory(&self, changes: &ChangeSet, kept: &HashSet<Ino>) {
        for &(ino, removed) in &changes.inodes {
            if kept.contains(&ino) {
                continue;
            }
            let Some(inode) = self.core.inode_cache.get(ino) else { continue };
            if removed {
                self.discard(ino, &mut inode.state.write());
                self.core.inode_cache.remove(&inode);
            } else {
                self.reload(&inode);
            }
        }
        let written = changes.inodes.iter().filter(|(_, removed)| !removed).map(|(ino, _)| *ino);
        for ino in written.chain(changes.promised.iter().copied()) {
            if let Err(e) = self.follow_promise(ino) {
                tracing::warn!(ino, "what is promised to the file is not known any more: {e}");
            }
        }
        for (parent, name, removed) in &changes.names {
            if *removed && let Some(dir) = self.core.inode_cache.get(*parent) {
                self.core.listings.remember_removed(&dir, name);
            }
        }
    }

    /// Runs `moment` when all earlier writes are committed and no call is in progress. The store
    /// then contains a state that the files actually had, and a key that was committed after a
    /// write was acknowledged is not visible without that write.
    pub(crate) fn at_rest<T>(&self, moment: impl FnOnce() -> Result<T>) -> Result<T> {
        // Commits most dirty data while other calls continue, to keep the freeze short.
        {
            let _call = self.enter()?;
            self.commit_unlocked()?;
        }
        let frozen = self.core.freeze_lock.freeze();
        if frozen.ended() {
            return Err(Error::Stale(ROOT));
        }
        self.commit_unlocked()?;
        moment()
    }

    /// Commits dirty data, except for files that a transaction has locked. (Under the freeze lock.)
    pub(crate) fn commit_unlocked(&self) -> Result<()> {
        match kvdb::without_lock_waits(|| self.commit_older_than(Duration::MAX)) {
            Err(e) if e.is_locked() => Ok(()),
            committed => committed,
        }
    }

    /// Returns a file that has no name in this view, that the transaction brings back, under its
    /// number or another one, and that was written to since it lost its name. The times of the file
    /// do not show such a write: a program may have set them, and two changes within a tick of the
    /// clock have the same time.
    fn written_without_name(
        &self,
        transaction: &Transaction,
        changes: &ChangeSet,
    ) -> Result<Option<Ino>> {
        let view = transaction.view()?;
        for &(ino, removed) in &changes.inodes {
            let Some(inode) = self.core.inode_cache.get(ino) else { continue };
            let state = inode.state.read();
            let written = !state.gone && state.attr.nlink == 0 && state.written_nameless;
            if !written {
                continue;
            }
            if removed || view.get(self.core.layout.imap, &layout::node_key(ino))?.is_some() {
                return Ok(Some(ino));
            }
        }
        Ok(None)
    }

    /// Returns `None` if the file is already unlinked in this view.
    fn before_unlinking(&self, ino: Ino) -> Result<Option<Unlinking>> {
        let inode = match self.inode(ino) {
            Err(crate::Error::Stale(_)) => return Ok(None),
            inode => inode?,
        };
        let content = {
            let state = inode.state.read();
            if state.gone || state.attr.nlink == 0 {
                return Ok(None);
            }
            // Copy the content, because the slice could keep a whole block in memory.
            Bytes::copy_from_slice(&self.core.pages.content(ino, &state)?)
        };
        Ok(Some(Unlinking { inode, content }))
    }

    /// Returns the inodes that the transaction leaves without a node, and that are open in this
    /// view without a name already: the transaction has brought them back, and removed them again.
    fn nameless_among(&self, changes: &ChangeSet) -> HashSet<Ino> {
        let nameless = |ino: Ino| {
            self.core.inode_cache.get(ino).is_some_and(|inode| {
                let state = inode.state.read();
                let references = inode.references.load(Ordering::Relaxed);
                !state.gone && state.attr.nlink == 0 && references > 0
            })
        };
        let removed = changes.inodes.iter().filter(|(_, removed)| *removed);
        removed.map(|(ino, _)| *ino).filter(|ino| nameless(*ino)).collect()
    }

    /// Undoes a transaction's changes to the content and the orphan records of these inodes, which
    /// are open in this view without a name and remain so.
    fn put_back_nameless(&self, transaction: &Transaction, nameless: &HashSet<Ino>) -> Result<()> {
        if nameless.is_empty() {
            return Ok(());
        }
        self.put_content_back(transaction, nameless)?;
        let imap = self.core.layout.imap;
        let view = transaction.view()?;
        let beneath = view.beneath();
        let mut batch = Batch::new();
        for &ino in nameless {
            let record = layout::orphan_key(ino);
            let before = beneath.get(imap, &record)?;
            // A record that the transaction has not changed may be newer than its state.
            if view.get(imap, &record)? == before {
                continue;
            }
            match before {
                Some(node) => batch.put(imap, record, node),
                None => batch.delete(imap, record),
            }
        }
        Ok(transaction.apply_at_commit(batch)?)
    }

    /// Undoes a transaction's changes to the content of files that it removes and that are open in
    /// this view. Returns the files that have content in the store afterwards, each with an orphan
    /// record. In write-through mode, in which no state may exist only in memory, each file gets an
    /// orphan record that contains its node.
    fn put_back(&self, transaction: &Transaction, unlinking: &[Unlinking]) -> Result<HashSet<Ino>> {
        if unlinking.is_empty() {
            return Ok(HashSet::new());
        }
        let inodes: HashSet<Ino> = unlinking.iter().map(|u| u.inode.ino).collect();
        let mut stored = self.put_content_back(transaction, &inodes)?;
        if self.writes_through() {
            let imap = self.core.layout.imap;
            let mut batch = Batch::new();
            for Unlinking { inode, content } in unlinking {
                let state = inode.state.read();
                let attr = Attributes { nlink: 0, ctime: self.now(), ..state.attr };
                let node = layout::encode_node(&attr, state.xattrs.as_deref(), content);
                batch.put(imap, layout::orphan_key(inode.ino), node);
                stored.insert(inode.ino);
            }
            transaction.apply_at_commit(batch)?;
        }
        Ok(stored)
    }

    /// Undoes a transaction's changes to the pages and extended attributes of these inodes. Returns
    /// the inodes that were changed and have such content in the store afterwards, each with an
    /// orphan record.
    fn put_content_back(
        &self,
        transaction: &Transaction,
        inodes: &HashSet<Ino>,
    ) -> Result<HashSet<Ino>> {
        let Layout { imap, dmap, .. } = self.core.layout;
        let (mut stored, mut changed) = (HashSet::new(), HashSet::new());
        for change in transaction.changes_of(&[imap, dmap])? {
            let (dict, change) = change?;
            let (Changed::Put { key, .. }
            | Changed::Update { key, .. }
            | Changed::Delete { key }
            | Changed::DeleteRange { start: key, .. }) = &change;
            let Some((ino, rest)) = key.split_first_chunk::<8>() else { continue };
            let ino = u64::from_be_bytes(*ino);
            // The removal of the node itself is not undone.
            if inodes.contains(&ino) && (dict == dmap || !rest.is_empty()) {
                changed.insert(ino);
            }
        }
        let view = transaction.view()?.beneath();
        for ino in changed {
            let (xattrs, pages) = (layout::xattr_key(ino, b"\0"), layout::page_key(ino, 0));
            let ranges = [
                (imap, &xattrs[..], layout::node_range(ino).1),
                (dmap, &pages[..], layout::pages_end(ino)),
            ];
            for (dict, start, end) in ranges {
                let mut batch = Batch::new();
                batch.delete_range(dict, start.to_vec(), end.to_vec());
                transaction.apply_at_commit(batch)?;
                let mut from = start.to_vec();
                loop {
                    let some = view.scan_stored(dict, &from, &end, PUT_BACK_AT_ONCE)?;
                    let Some((last, _)) = some.last() else { break };
                    from = [&last[..], &[0]].concat();
                    let mut batch = Batch::new();
                    batch.put(imap, layout::orphan_key(ino), b"".as_slice());
                    some.into_iter().for_each(|(key, value)| batch.put_stored(dict, key, value));
                    transaction.apply_at_commit(batch)?;
                    stored.insert(ino);
                }
            }
        }
        Ok(stored)
    }

    /// Brings an inode in memory up to date with the store.
    fn reload(&self, inode: &Arc<Inode>) {
        let mut state = inode.state.write();
        if state.gone {
            return;
        }
        let unlinked = state.attr.nlink == 0;
        debug_assert!(!state.dirty || unlinked, "committed before");
        let node = self.core.scope.get(self.core.layout.imap, &layout::node_key(inode.ino));
        if unlinked {
            match &node {
                Ok(None) => return,
                Ok(Some(_)) => {}
                // It is unknown whether the transaction brings the file back, so the last close
                // must not remove it.
                Err(_) => {
                    drop(state);
                    self.core.inode_cache.leave(inode);
                    return;
                }
            }
            // The transaction brings the file back. Its state in memory equals the state that the
            // store has now.
            self.discard(inode.ino, &mut state);
        }
        match node.ok().flatten().and_then(|value| layout::decode_node(inode.ino, &value).ok()) {
            Some((attr, xattrs, _)) => {
                *state = InodeState { queued: state.queued, ..InodeState::new(attr, xattrs) };
            }
            None => {
                // The node cannot be read now: the next access returns the error.
                drop(state);
                self.core.inode_cache.leave(inode);
            }
        }
    }

    /// Returns the inodes that the kernel refers to. Works after the view has ended, too.
    pub fn referenced(&self) -> Vec<Ino> {
        self.core.inode_cache.referenced()
    }

    /// Returns whether the kernel refers to an inode. Works after the view has ended, too.
    pub fn is_referenced(&self, ino: Ino) -> bool {
        // The kernel never forgets the root, so references to it are not counted.
        ino == crate::ROOT || self.core.inode_cache.references(ino) > 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use env::Simulated;
    use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions, Scope};
    use zones::{Fault, FaultDevice, FaultKind, MemoryDevice, Operation};

    use crate::inode::inode_allocator::{Counter, InodeAllocator};
    use crate::{Caller, Error, FileKind, Fs, FsOptions, ROOT, ViewId, Views};

    /// The test models a store that has received its snapshots from another store.
    #[test]
    fn an_open_file_whose_number_is_another_files_after_a_rollback_is_stale_until_it_is_closed() {
        let (db, env) = (Kvdb::in_memory(), Arc::new(Simulated::new(1)));
        let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap();
        let make = |fs: &Fs, name: &[u8], data: &[u8]| {
            let ino =
                fs.mknod(ROOT, name, FileKind::File, 0o644, 0, Caller::default()).unwrap().ino;
            fs.write(ino, 0, data, Default::default()).unwrap();
            ino
        };
        let a = make(&fs, b"a", b"theirs");
        Views::new(db.clone(), fs.clone())
            .snapshot(&ViewId::Mainline, "theirs", Durability::Buffered)
            .unwrap();
        fs.unlink(ROOT, b"a").unwrap();
        fs.forget(a, 1);
        fs.shutdown().unwrap();

        env.advance(Duration::from_secs(1));
        let core = &fs.core;
        let scope = Scope::Mainline(db.clone());
        let notes = crate::fs::counter::notes_of(&db);
        let allocator = InodeAllocator::of_branch(Arc::new(Counter::from(notes, a)), 0);
        let fs = Fs::without_parent(
            db.clone().into(),
            scope,
            env.clone(),
            core.layout,
            core.listings.hash_key,
            allocator,
            FsOptions::default(),
        );
        let views = Views::new(db, fs.clone());
        let b = make(&fs, b"b", b"ours");
        assert_eq!(a, b, "the scene is set");
        views.rollback("theirs").unwrap();
        let stale = |result: crate::Result<()>| {
            assert!(matches!(result, Err(Error::Stale(_))), "{result:?}")
        };
        stale(fs.write(b, 0, b"OURS", Default::default()).map(drop));
        stale(fs.read(b, 0, 4).map(drop));
        assert!(fs.resolve(b"/a").is_err(), "it is not known who asks");
        fs.forget(b, 1);
        let back = fs.resolve(b"/a").unwrap();
        assert_eq!(&fs.read(back.ino, 0, 10).unwrap()[..], b"theirs");
    }

    /// The store is rolled back, and little of it can be read at that moment. The inodes in memory
    /// are updated nevertheless, and no inode number that is in use is allocated again.
    #[test]
    fn a_rollback_after_which_nothing_can_be_read_is_followed() {
        let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
        let open = OpenOptions { threads: false, zero_journal: false, ..OpenOptions::default() };
        let options = CreateOptions { open: open.clone(), ..CreateOptions::default() };
        let env = Arc::new(Simulated::new(1));
        let db = Kvdb::create(device.clone(), env.clone(), options).unwrap();
        let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap();
        let make = |fs: &Fs, name: &[u8]| {
            fs.mknod(ROOT, name, FileKind::File, 0o644, 0, Caller::default()).unwrap().ino
        };
        let file = make(&fs, b"file");
        fs.write(file, 0, b"old", Default::default()).unwrap();
        fs.commit_older_than(Duration::MAX).unwrap();
        db.snapshot("before").unwrap();
        fs.write(file, 0, b"new, and longer", Default::default()).unwrap();
        fs.commit_older_than(Duration::MAX).unwrap();
        for dictionary in db.dictionaries() {
            db.compact(dictionary.id).unwrap();
        }
        fs.shutdown().unwrap();
        db.close().unwrap();
        drop((fs, db));
        // After this reopening, no data of the snapshot is in memory.
        let (db, _) = Kvdb::open(device.clone(), env.clone(), open).unwrap();
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        let file = fs.lookup(ROOT, b"file").unwrap().ino;
        assert_eq!(&fs.read(file, 0, 100).unwrap()[..], b"new, and longer");
        let turn = fs.core.superseded.turn();
        let changes = fs.revert(&turn, |_| {
            db.rollback("before")?;
            device.inject(Fault::always(Operation::Read, FaultKind::Error));
            Ok(())
        });
        assert!(device.struck() > 0, "all was in memory");
        device.clear();
        drop(turn);
        assert!(
            changes.unwrap().names.iter().any(|(dir, name, _)| *dir == ROOT && **name == *b"file")
        );
        let now = fs.lookup(ROOT, b"file").unwrap();
        assert_eq!(&fs.read(now.ino, 0, 100).unwrap()[..], b"old");
        let made = fs.mknod(ROOT, b"next", FileKind::File, 0o644, 0, Caller::default());
        match made {
            Ok(made) => assert_ne!(made.ino, now.ino),
            Err(e) => assert_eq!(e.errno(), libc::EROFS, "{e}"),
        }
    }
}
