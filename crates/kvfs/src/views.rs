//! Manages the views: the states of the file system that can be used at the same time, which are
//! the mainline and every open transaction, snapshot and clone. Each view has an [`Fs`] with
//! separate inodes in memory and separate uncommitted data.
//!
//! [`Views`] connects the views to transactions of the database. Callers begin and end transactions
//! here, never at the database itself, so that memory (the inodes here, and the kernel's caches)
//! agrees with the store:
//!
//! ```
//! # use std::sync::Arc;
//! # let db = kvdb::Kvdb::in_memory();
//! # let env: Arc<dyn env::Env> = Arc::new(env::Simulated::new(1));
//! use kvfs::{Caller, FileKind, Fs, FsOptions, ROOT, ViewId, Views};
//!
//! let fs = Fs::open(db.clone(), env, FsOptions::default())?;
//! let views = Views::new(db, fs.clone());
//! let id = views.begin(Default::default())?;
//! let inside = views.fs(&ViewId::Transaction(id))?;
//! inside.mknod(ROOT, b"new", FileKind::File, 0o644, 0, Caller::default())?;
//! assert!(fs.resolve(b"/new").is_err());
//! views.commit(id, kvdb::Durability::Synced)?;
//! assert!(fs.resolve(b"/new").is_ok());
//! # Ok::<(), kvfs::Error>(())
//! ```
//!
//! **Beginning.** A transaction sees all data that was written to the mainline before: the kernel
//! hands over its dirty pages ([`Watcher::write_back`]), and data that waits in memory is
//! committed. The mainline is frozen while the transaction begins, so that the transaction sees
//! files and keys as one state that existed; the same holds for a snapshot.
//!
//! **Ending.** The steps are done in this order, each only if the previous one has succeeded:
//!
//! 1. The kernel hands over the dirty pages that it holds: of mappings, and of open files if it
//!    gathers writes.
//! 2. The view is frozen: no call is in progress in it, and none begins.
//! 3. Data that waits in the view's memory is put into the transaction; files that users of the
//!    view have unlinked and still hold open are removed.
//! 4. The change takes its turn (`superseded`). The mainline is frozen; its waiting data is
//!    committed, and its state before the change is kept. The transaction commits, or finds a
//!    conflict. The inodes in memory are brought up to date (`apply_commit` lists the cases), and
//!    the mainline is thawed.
//! 5. The watchers are notified of the changes, so that programs that have these directories and
//!    files open see them, and of the end of the view: later calls in it fail with ESTALE. The turn
//!    ends, and `commit` returns.
//!
//! A conflict ends the transaction, as an abort does. When a commit fails for another reason (lack
//! of space, for example), the view is open again.
//!
//! **Numbers.** A view has a number from 1 to [`Views::MAX_NUMBER`] while it is open, for adapters
//! that must put it into an inode number; the number of the mainline is 0. After the view has
//! ended, it keeps the number while the kernel refers to one of its inodes (`retired`).

use std::sync::Arc;

use kvdb::{Kvdb, MergeRoutine, Merged, TransactionId, TransactionInfo};

use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::merge;

mod ancestry;
mod background;
mod calls;
pub(crate) mod changed_paths;
mod common_states;
pub(crate) mod first_reads;
mod following;
pub(crate) mod going_down;
mod in_use;
mod lent;
mod merger;
mod merging;
mod merging_forks;
mod notes;
mod open_views;
mod opener;
mod rebasing;
mod running;
mod snapshots;
mod transactions;
mod undo;
mod watcher;
mod watchers;
mod written;

use background::Background;
pub use in_use::{InUse, Pause};
use merger::Merger;
use notes::KeptNotes;
pub use notes::{Untold, ViewNotes};
pub(crate) use open_views::OpenView;
use open_views::OpenViews;
use opener::Opener;
use snapshots::Branches;
use transactions::Transactions;
pub use watcher::{CommittedTo, Running, Wait, Watcher};
use watchers::Watchers;
use written::Written;

/// Identifies a view: one of the states of the file system.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ViewId {
    /// The file system outside of all transactions.
    Mainline,
    /// An open transaction.
    Transaction(TransactionId),
    /// The read-only snapshot with this name (see `views/snapshots`).
    Snapshot(String),
    /// The clone with this name, which is a separate branch.
    Clone(String),
}

impl ViewId {
    /// Returns the view of a branch of the store; `""` is the mainline.
    pub fn of_branch(name: &str) -> ViewId {
        if name.is_empty() { ViewId::Mainline } else { ViewId::Clone(name.into()) }
    }
}

/// The views of a file system. Clones of this handle share the same views.
#[derive(Clone)]
pub struct Views {
    pub(crate) shared: Arc<Shared>,
}

/// The parts, which are wired here.
pub(crate) struct Shared {
    pub db: Kvdb,
    pub mainline: Fs,
    pub open: Arc<OpenViews>,
    pub watchers: Arc<Watchers>,
    pub opener: Arc<Opener>,
    pub background: Arc<Background>,
    pub transactions: Arc<Transactions>,
    pub written: Arc<Written>,
    pub branches: Branches,
    pub merger: Merger,
    /// Notes for a process that follows this one when it is killed.
    pub notes: KeptNotes,
}

/// The merge routine of the `imap` of each branch.
pub(crate) struct Join;

impl MergeRoutine for Join {
    fn merge(
        &self,
        key: &[u8],
        base: Option<&[u8]>,
        mine: Option<&[u8]>,
        theirs: Option<&[u8]>,
    ) -> Merged {
        merge::join(key, base, mine, theirs).map_or(Merged::Conflict, Merged::Put)
    }
}

/// The divisor by which the memory limits of other views are smaller than those of the mainline.
/// Such a view can move its data into its transaction at any time.
pub(crate) const VIEW_SHARE: usize = 8;
/// The maximum amount of data, in bytes, that waits in the view of a transaction before its writers
/// move the data into the transaction. Data that still waits at the commit is written while the
/// caller waits, so this limit bounds the time of a commit.
const AWAITS_COMMIT: usize = 1 << 20;

impl Shared {
    fn wire(db: Kvdb, mainline: Fs, notes: KeptNotes) -> Shared {
        let watchers = Arc::new(Watchers::new(mainline.core.options.read_only));
        let open = Arc::new(OpenViews::new(db.clone(), notes.clone()));
        let opener = Opener::new(db.clone(), mainline.clone(), open.clone(), watchers.clone());
        let opener = Arc::new(opener);
        let background =
            Background::new(db.clone(), mainline.clone(), open.clone(), opener.clone());
        let background = Arc::new(background);
        let transactions = Arc::new(Transactions::new(
            db.clone(),
            mainline.clone(),
            open.clone(),
            opener.clone(),
            watchers.clone(),
            background.clone(),
            notes.clone(),
        ));
        let written = Arc::new(Written::new(
            db.clone(),
            mainline.clone(),
            open.clone(),
            watchers.clone(),
            transactions.clone(),
        ));
        let branches = Branches::new(
            db.clone(),
            mainline.clone(),
            opener.clone(),
            watchers.clone(),
            transactions.clone(),
            written.clone(),
            notes.clone(),
        );
        let merger = Merger {
            db: db.clone(),
            mainline: mainline.clone(),
            opener: opener.clone(),
            watchers: watchers.clone(),
            transactions: transactions.clone(),
        };
        Shared {
            db,
            mainline,
            open,
            watchers,
            opener,
            background,
            transactions,
            written,
            branches,
            merger,
            notes,
        }
    }
}

impl Views {
    /// The largest number that a view can have.
    pub const MAX_NUMBER: u16 = open_views::MAX_NUMBER;

    /// Returns the views of the file system `mainline`, which is the one in `db`.
    pub fn new(db: Kvdb, mainline: Fs) -> Views {
        Views::with(db, mainline, KeptNotes::default(), |_| ())
    }

    /// Creates the views like [`Views::new`], and first opens views by `reopen`.
    pub(crate) fn with(
        db: Kvdb,
        mainline: Fs,
        notes: KeptNotes,
        reopen: impl FnOnce(&Views),
    ) -> Views {
        db.set_merge(mainline.core.layout.imap, Arc::new(Join));
        let views = Views { shared: Arc::new(Shared::wire(db, mainline, notes)) };
        reopen(&views);
        let Shared { db, opener, background, .. } = &*views.shared;
        for transaction in db.transactions() {
            // The numbers that the transaction has given are known since the view in which it began
            // was opened.
            let joined = db.transaction(transaction.id).map_err(Error::from);
            if let Err(e) = joined.and_then(|joined| opener.open_transaction(joined)) {
                tracing::warn!("transaction {} has no files: {e}", transaction.id);
            }
        }
        background.start();
        views
    }

    /// Returns the file system outside of all transactions.
    pub fn mainline(&self) -> &Fs {
        &self.shared.mainline
    }

    /// Notifies `watcher` of views that appear and end, while the caller keeps it.
    pub fn watch(&self, watcher: &Arc<dyn Watcher>) {
        self.shared.watchers.add(watcher);
    }

    // --- views

    /// Returns the file system in the state of `view`. Fails with `NotFound` if the view does not
    /// exist, or does not exist any more.
    pub fn fs(&self, view: &ViewId) -> Result<Fs> {
        self.shared.opener.fs(view)
    }

    /// Returns the number of a view, opening the view if necessary.
    pub fn number(&self, view: &ViewId) -> Result<u16> {
        self.shared.opener.number(view)
    }

    /// Returns the file system of the view with this number, which is not 0.
    pub fn by_number(&self, number: u16) -> Option<Fs> {
        self.shared.open.by_number(number).map(|entry| entry.fs.clone())
    }

    /// Returns every view except the mainline: open transactions, snapshots, clones.
    pub fn all(&self) -> Vec<ViewId> {
        // Transactions that no caller can join are left out.
        let joinable = |info: &TransactionInfo| self.shared.db.transaction(info.id).is_ok();
        let transactions = self.list().into_iter().filter(joinable);
        let transactions = transactions.map(|info| ViewId::Transaction(info.id));
        let labels = self.shared.db.snapshot_labels().into_iter();
        let snapshots = labels.map(|label| ViewId::Snapshot(label.name));
        let clones = self.shared.db.branches().into_iter().map(|info| ViewId::Clone(info.name));
        transactions.chain(snapshots).chain(clones).collect()
    }

    /// Returns the open views by their numbers, and the mainline.
    pub fn opened(&self) -> Vec<(u16, Fs)> {
        let others = self.shared.open.all().into_iter();
        let others = others.map(|entry| (entry.number, entry.fs.clone()));
        std::iter::once((0, self.shared.mainline.clone())).chain(others).collect()
    }

    /// Takes back `count` references from the kernel to an inode of the view with this number,
    /// which may have ended.
    pub fn forget(&self, number: u16, ino: Ino, count: u64) {
        self.shared.open.forget(number, ino, count);
    }

    /// Returns the number of view numbers that are not free: those of open views, and of ended ones
    /// to which the kernel refers. It is at most [`Views::MAX_NUMBER`].
    pub fn numbers_taken(&self) -> usize {
        self.shared.open.numbers_taken()
    }

    /// Returns whether the file system was shut down. After a shutdown, none of its content may be
    /// shown.
    pub fn is_down(&self) -> bool {
        self.shared.background.is_down()
    }

    // --- background

    /// Does the periodic work of the background: moves data that waits in the views' memory into
    /// their transactions, ends views whose transaction has ended by itself, and removes orphans.
    /// Its own thread calls this; if the environment runs inline, the owner does.
    pub fn tick(&self) {
        self.shared.background.tick();
    }
}

#[cfg(test)]
mod tests {
    use env::Simulated;
    use kvdb::{CreateOptions, Durability, Isolation, OpenOptions};
    use zones::{Fault, FaultDevice, FaultKind, MemoryDevice, Operation};

    use super::*;
    use crate::{Caller, FileKind, FsOptions, ROOT};

    fn views() -> (Fs, Views) {
        let (db, env) = (Kvdb::in_memory(), Arc::new(Simulated::new(1)));
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        (fs.clone(), Views::new(db, fs))
    }

    fn closed_file(fs: &Fs, name: &[u8], data: &[u8]) -> Ino {
        let ino = fs.mknod(ROOT, name, FileKind::File, 0o644, 0, Caller::default()).unwrap().ino;
        fs.write(ino, 0, data, Default::default()).unwrap();
        fs.forget(ino, 1);
        ino
    }

    #[test]
    fn a_file_that_a_rollback_brings_back_is_not_removed_as_the_orphan_that_it_was() {
        let (fs, views) = views();
        let ino = closed_file(&fs, b"f", &[7; 20_000]);
        views.snapshot(&ViewId::Mainline, "before", Durability::Buffered).unwrap();
        fs.unlink(ROOT, b"f").unwrap();
        // A commit that has removed many files leaves its orphans to the background in this way.
        views.shared.background.leave_orphans(&fs, vec![ino]);
        views.rollback("before").unwrap();
        views.tick();
        let back = fs.resolve(b"f").unwrap();
        assert_eq!(&fs.read(back.ino, 0, 30_000).unwrap()[..], [7; 20_000]);
        assert_eq!(fs.verify().unwrap().findings, []);
    }

    #[test]
    fn a_file_without_a_name_keeps_its_content_when_the_commit_of_its_view_fails() {
        let (fs, views) = views();
        closed_file(&fs, b"contended", b"1");
        let isolation = Isolation::Serializable;
        let reader = views.begin(kvdb::TransactionOptions { isolation, ..Default::default() });
        let reader = reader.unwrap();
        let id = views.begin(Default::default()).unwrap();
        let inside = views.fs(&ViewId::Transaction(id)).unwrap();
        let caller = Caller::default();
        let open = inside.mknod(ROOT, b"f", FileKind::File, 0o644, 0, caller).unwrap().ino;
        inside.write(open, 0, &[7; 20_000], Default::default()).unwrap();
        // This moves the file into the transaction, so that the file exists not only in memory.
        views.change_set(id).unwrap();
        inside.unlink(ROOT, b"f").unwrap();
        let contended = inside.resolve(b"contended").unwrap().ino;
        inside.write(contended, 0, b"2", Default::default()).unwrap();
        let read = views.fs(&ViewId::Transaction(reader)).unwrap().read(contended, 0, 1);
        assert_eq!(read.unwrap()[..], *b"1");
        let committed = views.commit(id, Durability::Buffered);
        assert!(committed.is_err_and(|e| e.is_locked()));
        assert!(inside.read(open, 0, 30_000).unwrap()[..] == [7; 20_000]);
        views.abort(reader).unwrap();
        views.commit(id, Durability::Buffered).unwrap();
        assert_eq!(fs.verify().unwrap().findings, []);
    }

    #[test]
    fn so_does_one_of_the_mainline_where_the_commit_could_be_undone() {
        let (fs, views) = views();
        closed_file(&fs, b"contended", b"1");
        closed_file(&fs, b"f", &[7; 20_000]);
        let isolation = Isolation::Serializable;
        let reader = views.begin(kvdb::TransactionOptions { isolation, ..Default::default() });
        let reader = reader.unwrap();
        let undoable = kvdb::TransactionOptions { undoable: true, ..Default::default() };
        let id = views.begin(undoable).unwrap();
        let inside = views.fs(&ViewId::Transaction(id)).unwrap();
        let open = inside.lookup(ROOT, b"f").unwrap().ino;
        inside.unlink(ROOT, b"f").unwrap();
        let contended = inside.resolve(b"contended").unwrap().ino;
        inside.write(contended, 0, b"2", Default::default()).unwrap();
        let read = views.fs(&ViewId::Transaction(reader)).unwrap().read(contended, 0, 1);
        assert_eq!(read.unwrap()[..], *b"1");
        let committed = views.commit(id, Durability::Buffered);
        assert!(committed.is_err_and(|e| e.is_locked()));
        assert!(inside.read(open, 0, 30_000).unwrap()[..] == [7; 20_000]);
        views.abort(reader).unwrap();
        views.commit(id, Durability::Buffered).unwrap();
        assert_eq!(fs.verify().unwrap().findings, []);
    }

    #[test]
    fn a_file_without_a_name_keeps_its_content_when_the_changes_of_its_view_cannot_be_read() {
        let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
        let open = OpenOptions {
            memory: 4 << 20,
            threads: false,
            zero_journal: false,
            ..Default::default()
        };
        let env = Arc::new(Simulated::new(1));
        let create = CreateOptions { open, ..Default::default() };
        let db = Kvdb::create(device.clone(), env.clone(), create).unwrap();
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        let views = Views::new(db, fs.clone());
        let id = views.begin(Default::default()).unwrap();
        let inside = views.fs(&ViewId::Transaction(id)).unwrap();
        let caller = Caller::default();
        let open = inside.mknod(ROOT, b"f", FileKind::File, 0o644, 0, caller).unwrap().ino;
        inside.write(open, 0, &[7; 20_000], Default::default()).unwrap();
        // The transaction now has more changes than stay in memory.
        for n in 0..20_000 {
            closed_file(&inside, format!("a file with a long name, {n}").as_bytes(), b"x");
        }
        views.change_set(id).unwrap();
        inside.unlink(ROOT, b"f").unwrap();
        device.inject(Fault::always(Operation::Read, FaultKind::Error));
        let committed = views.commit(id, Durability::Buffered);
        device.clear();
        assert!(matches!(committed, Err(Error::Store(kvdb::Error::Io(_)))), "{committed:?}");
        assert!(inside.read(open, 0, 30_000).unwrap()[..] == [7; 20_000]);
        views.commit(id, Durability::Buffered).unwrap();
        assert_eq!(fs.verify().unwrap().findings, []);
    }

    #[test]
    fn a_transaction_whose_view_cannot_be_opened_does_not_stay_open() {
        let (fs, views) = views();
        (1..=Views::MAX_NUMBER).for_each(|n| views.shared.open.keep_number(n, &[(ROOT, 1)]));
        assert!(views.begin(Default::default()).is_err());
        assert!(views.list().is_empty());
        closed_file(&fs, b"f", b"1");
        views.shared.open.free_retired();
        let options = kvdb::TransactionOptions { undoable: true, ..Default::default() };
        let id = views.begin(options).unwrap();
        views.fs(&ViewId::Transaction(id)).unwrap().unlink(ROOT, b"f").unwrap();
        views.commit(id, Durability::Buffered).unwrap();
        let commit = views.shared.db.undoable_commits()[0].number;
        (1..=Views::MAX_NUMBER).for_each(|n| views.shared.open.keep_number(n, &[(ROOT, 1)]));
        assert!(views.undo(commit, Default::default()).is_err());
        assert!(views.list().is_empty());
    }
}
