//! Removes orphans: inodes without a name that have data in the store, each with a record. They are
//! removed when their last user has closed them, or after the commit or rollback that has orphaned
//! them.
//!
//! An orphan that cannot be removed at that moment, because the host gives the store no space or a
//! transaction has the orphan locked, for example, is recorded here and removed by a later tick, so
//! that its space is freed before the next mount.

use kvdb::{Batch, Durability, Kvdb};

use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::layout::{self, ImapKey, Layout};

/// Number of orphans removed in one batch.
const REMOVED_AT_ONCE: usize = 64;

impl Fs {
    /// Returns whether this view may remove the data of an unlinked inode. In a transaction, an
    /// inode that others may have open gets an orphan record instead, and the mainline decides when
    /// the transaction commits.
    pub(crate) fn may_remove(&self, ino: Ino) -> bool {
        !self.core.options.read_only && self.core.inode_allocator.is_own(ino)
    }

    /// Removes the given inodes that are orphans and not open, with their records. An inode that a
    /// rollback or an undo has brought back in the meantime has no record any more; if it had one,
    /// it would have a node, too, and only the record is removed. A transaction removes only its
    /// own inodes and leaves the others to its commit.
    pub(crate) fn remove_orphans(&self, orphans: &[Ino]) -> Result<()> {
        let imap = self.core.layout.imap;
        for some in orphans.chunks(REMOVED_AT_ONCE) {
            // The freeze lock is held, so that no orphan is brought back after the check.
            let _call = self.enter()?;
            let mut batch = Batch::new();
            for &ino in some {
                let record = layout::orphan_key(ino);
                if self.core.inode_cache.references(ino) == 0
                    && self.may_remove(ino)
                    && self.core.scope.get(imap, &record)?.is_some()
                {
                    match self.core.scope.get(imap, &layout::node_key(ino)) {
                        Ok(None) => self.core.layout.stage_removal(ino, &mut batch),
                        Ok(Some(_)) => {}
                        Err(e) => {
                            self.leave_orphans(&[ino], &e.into());
                            continue;
                        }
                    }
                    batch.delete(imap, record);
                }
            }
            if !batch.is_empty() {
                self.apply(batch)?;
            }
        }
        Ok(())
    }

    /// Removes these orphans like [`Fs::remove_orphans`], and leaves those that cannot be removed
    /// now to a later tick.
    pub(crate) fn remove_orphans_or_leave(&self, orphans: Vec<Ino>) {
        if let Err(e) = self.remove_orphans(&orphans) {
            self.leave_orphans(&orphans, &e);
        }
    }

    /// Leaves orphans that could not be removed to the next tick.
    pub(crate) fn leave_orphans(&self, orphans: &[Ino], why: &Error) {
        tracing::warn!("{} removed files keep their space for now: {why}", orphans.len());
        self.core.left_orphans.lock().extend(orphans);
    }

    /// Removes the orphans that could not be removed before.
    pub(crate) fn remove_left_orphans(&self) {
        let left = std::mem::take(&mut *self.core.left_orphans.lock());
        if left.is_empty() {
            return;
        }
        if let Err(e) = kvdb::without_lock_waits(|| self.remove_orphans(&left)) {
            tracing::debug!("{} removed files still keep their space: {e}", left.len());
            self.core.left_orphans.lock().extend(left);
        }
    }

    /// Removes all orphans. None of them may be open.
    pub(crate) fn empty_orphans(&self) -> Result<usize> {
        let _call = self.enter()?;
        empty_orphans(self.core.db.here()?, &self.core.layout, |_| false)
    }

    /// Returns the inodes that have an orphan record.
    pub(crate) fn orphans(&self) -> Result<Vec<Ino>> {
        let (start, end) = layout::orphan_range();
        let mut cursor = self.core.db.here()?.view().cursor(self.core.layout.imap, &start, &end)?;
        let mut orphans = Vec::new();
        while let Some(tuple) = cursor.next()? {
            if let ImapKey::Orphan(ino) = layout::decode_imap_key(&tuple.key)? {
                orphans.push(ino);
            }
        }
        Ok(orphans)
    }
}

/// Removes the orphans that an unclean shutdown has left, except for those in use. An inode that
/// has a node is a file, whatever its record says: only the record is removed.
pub(crate) fn empty_orphans(
    db: &Kvdb,
    layout: &Layout,
    in_use: impl Fn(Ino) -> bool,
) -> Result<usize> {
    let (start, end) = layout::orphan_range();
    let view = db.view();
    let mut cursor = view.cursor(layout.imap, &start, &end)?;
    let mut count = 0;
    while let Some(tuple) = cursor.next()? {
        let ImapKey::Orphan(ino) = layout::decode_imap_key(&tuple.key)? else { continue };
        if in_use(ino) {
            continue;
        }
        let mut batch = Batch::new();
        match view.get(layout.imap, &layout::node_key(ino)) {
            Ok(None) => layout.stage_removal(ino, &mut batch),
            Ok(Some(_)) => {}
            Err(e) => {
                tracing::warn!("the removed file {ino} keeps its space: {e}");
                continue;
            }
        }
        batch.delete(layout.imap, tuple.key);
        db.commit(batch, Durability::Buffered)?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use env::Simulated;
    use kvdb::{Isolation, Transaction, TransactionOptions};

    use super::*;
    use crate::{Caller, FileKind, FsOptions, ROOT, ViewId, Views};

    /// Returns a file system with a closed file of several pages on disk, and a transaction that
    /// has locked the first page.
    fn with_locked_pages() -> (Fs, Views, Transaction) {
        let (db, env) = (Kvdb::in_memory(), Arc::new(Simulated::new(1)));
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        let file = fs.mknod(ROOT, b"f", FileKind::File, 0o644, 0, Caller::default()).unwrap();
        fs.write(file.ino, 0, &[7; 100_000], Default::default()).unwrap();
        fs.sync_all().unwrap();
        fs.forget(file.ino, 1);
        let isolation = Isolation::Serializable;
        let reader = db.begin_with(TransactionOptions { isolation, ..Default::default() }).unwrap();
        let page = layout::page_key(file.ino, 0);
        assert!(reader.get(fs.core.layout.dmap, &page).unwrap().is_some());
        (fs.clone(), Views::new(db, fs), reader)
    }

    /// Returns the numbers of orphans and pages in the store.
    fn stored(fs: &Fs) -> (u64, u64) {
        let report = fs.verify().unwrap();
        assert_eq!(report.findings, []);
        (report.orphans, report.pages)
    }

    #[test]
    fn a_file_that_is_locked_at_its_last_close_is_removed_by_a_later_tick() {
        let (fs, _views, reader) = with_locked_pages();
        let open = fs.lookup(ROOT, b"f").unwrap().ino;
        fs.unlink(ROOT, b"f").unwrap();
        fs.forget(open, 1);
        fs.tick().unwrap();
        assert_eq!(stored(&fs), (1, 25), "it is locked still");
        reader.abort();
        fs.tick().unwrap();
        assert_eq!(stored(&fs), (0, 0));
    }

    #[test]
    fn so_is_one_that_a_commit_has_removed() {
        let (fs, views, reader) = with_locked_pages();
        let id = views.begin(Default::default()).unwrap();
        views.fs(&ViewId::Transaction(id)).unwrap().unlink(ROOT, b"f").unwrap();
        views.commit(id, Durability::Buffered).unwrap();
        assert_eq!(stored(&fs), (1, 25), "it is locked still");
        reader.abort();
        fs.tick().unwrap();
        assert_eq!(stored(&fs), (0, 0));
    }

    #[test]
    fn a_file_that_has_a_name_is_not_removed_whatever_a_record_says() {
        let (db, env) = (Kvdb::in_memory(), Arc::new(Simulated::new(1)));
        let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap();
        let file = fs.mknod(ROOT, b"f", FileKind::File, 0o644, 0, Caller::default()).unwrap();
        fs.write(file.ino, 0, &[7; 100_000], Default::default()).unwrap();
        fs.sync_all().unwrap();
        fs.forget(file.ino, 1);
        let note = || {
            let mut batch = Batch::new();
            batch.put(fs.core.layout.imap, layout::orphan_key(file.ino), b"".as_slice());
            db.commit(batch, Durability::Buffered).unwrap();
        };
        note();
        fs.remove_orphans(&[file.ino]).unwrap();
        assert_eq!(stored(&fs), (0, 25), "after its last close");
        note();
        fs.shutdown().unwrap();
        let again = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        assert_eq!(stored(&again), (0, 25), "after an opening");
        let file = again.lookup(ROOT, b"f").unwrap();
        assert_eq!(&again.read(file.ino, 99_998, 10).unwrap()[..], [7, 7]);
    }
}
