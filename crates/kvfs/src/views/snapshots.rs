//! Snapshots and clones of the file system, as views: a snapshot is read-only, a clone is a
//! separate, writable branch. Both share all data with the mainline, and are made in the time of a
//! synced commit.
//!
//! A snapshot contains everything written before it, including data in the kernel's memory, as does
//! the state in which a transaction begins. A rollback ends all transactions of the mainline or the
//! clone, since the state that they have seen no longer exists. Open files show the state of the
//! snapshot at once, and files made since are stale. A branch received from another store replaces
//! a clone, whose changes are committed before. A clone that is dropped or replaced ends its
//! transactions.

use std::io::Read;
use std::sync::Arc;

use kvdb::{Durability, Kvdb, ReceiveOptions, ReceiveStats};

use super::notes::KeptNotes;
use super::opener::Opener;
use super::transactions::Transactions;
use super::watchers::Watchers;
use super::written::Written;
use super::{Untold, ViewId, Wait, running};
use crate::difference::{Difference, Listing, Side, between, difference_of_states};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::fs::counter::numbers_of;
use crate::layout::Layout;

pub(crate) struct Branches {
    db: Kvdb,
    mainline: Fs,
    opener: Arc<Opener>,
    watchers: Arc<Watchers>,
    transactions: Arc<Transactions>,
    written: Arc<Written>,
    notes: KeptNotes,
}

impl Branches {
    pub fn new(
        db: Kvdb,
        mainline: Fs,
        opener: Arc<Opener>,
        watchers: Arc<Watchers>,
        transactions: Arc<Transactions>,
        written: Arc<Written>,
        notes: KeptNotes,
    ) -> Branches {
        Branches { db, mainline, opener, watchers, transactions, written, notes }
    }

    /// Makes a snapshot of the mainline or of a clone.
    pub fn snapshot(&self, of: &ViewId, name: &str, durability: Durability) -> Result<()> {
        let branch = match of {
            ViewId::Mainline => "",
            ViewId::Clone(name) => name,
            ViewId::Transaction(_) | ViewId::Snapshot(_) => {
                return Err(Error::Invalid(
                    "a snapshot of what is neither the mainline nor a clone",
                ));
            }
        };
        self.mainline.writable()?;
        self.watchers.write_back(Wait::ForAll)?;
        let db = &self.db;
        let make = || -> Result<()> { Ok(db.snapshot_of(branch, name, Durability::Buffered)?) };
        if !self.opener.if_unopened(of, make)? {
            let fs = self.opener.fs(of)?;
            fs.at_rest(|| fs.under_another_mark(make))?;
        }
        if durability == Durability::Synced {
            db.sync()?;
        }
        self.watchers.tell(|watcher| watcher.appeared(&ViewId::Snapshot(name.into())));
        Ok(())
    }

    /// Returns the differences of the files from a snapshot to another one, or to the current state
    /// of its mainline or clone.
    pub fn difference_of_snapshots(
        &self,
        before: &str,
        after: Option<&str>,
        listing: Listing,
    ) -> Result<Difference> {
        let db = &self.db;
        let state = db.open_snapshot(before)?;
        if let Some(after) = after {
            return difference_of_states(&state, &db.open_snapshot(after)?, listing);
        }
        let of = db.snapshot_label(before).ok_or(Error::NotFound)?;
        let fs = match self.opener.fs(&ViewId::of_branch(&of.branch)) {
            // If the snapshot's clone was dropped, it is compared with the mainline.
            Err(Error::NotFound) => self.mainline.clone(),
            fs => fs?,
        };
        self.watchers.write_back(Wait::ForAll)?;
        let now = fs.at_rest(|| Ok(db.view()))?;
        let before = Side::new(state.clone(), Layout::of_state(&state).ok_or(Error::NotFound)?);
        between(before, Side::new(now, fs.core.layout), listing)
    }

    /// Drops a snapshot.
    pub fn drop_snapshot(&self, name: &str) -> Result<()> {
        self.written.commit()?;
        self.db.drop_snapshot(name)?;
        self.opener.close(&ViewId::Snapshot(name.into()));
        Ok(())
    }

    /// Makes a branch out of a snapshot.
    pub fn clone_snapshot(&self, snapshot: &str, name: &str) -> Result<()> {
        self.written.commit()?;
        self.db.clone_snapshot(snapshot, name)?;
        if !self.mainline.core.options.read_only {
            self.mainline.count_clone(name);
        }
        self.watchers.tell(|watcher| watcher.appeared(&ViewId::Clone(name.into())));
        Ok(())
    }

    /// Drops a clone and everything in it.
    pub fn drop_clone(&self, name: &str) -> Result<()> {
        // The view is closed first, so that no call writes to a dropped branch. It is closed again
        // afterwards, since it may have been opened in between.
        let view = ViewId::Clone(name.into());
        if name.is_empty() {
            // The main branch has the empty name, and its transactions must not end.
            return Err(Error::Invalid("a clone without a name"));
        }
        if !self.db.has_branch(name) {
            return Err(kvdb::Error::NoBranch(name.into()).into());
        }
        // A drop that fails leaves the transactions open, so they end after what may fail.
        self.db.takes_writes()?;
        self.watchers.write_back(Wait::ButForLocks)?;
        self.transactions.abort_those_of(name)?;
        self.written.commit_others(Some(&view));
        self.opener.close(&view);
        self.db.drop_branch(name)?;
        self.opener.close(&view);
        self.opener.let_go_of_ended();
        Ok(())
    }

    /// Receives a stream of [`kvdb::Kvdb::send`] into the clone that the options name, which need
    /// not exist; see [`kvdb::Kvdb::receive`].
    pub fn receive(&self, input: impl Read, options: &ReceiveOptions) -> Result<ReceiveStats> {
        self.mainline.writable()?;
        if options.branch.is_empty() {
            return Err(Error::Invalid("what is mounted is not replaced: name a clone"));
        }
        // The branch that takes the stream is on disk before the stream ends.
        self.written.commit()?;
        let view = ViewId::Clone(options.branch.clone());
        let mut replaced = None;
        let received = self.db.receive_within(input, options, |replace| -> Result<()> {
            // The replacing branch is on disk at once. A durable transaction that this ends must
            // not exist again after a crash, over dropped dictionaries.
            self.transactions.abort_those_of(&options.branch)?;
            self.db.sync()?;
            // Data that the kernel holds back was written to the clone that is replaced.
            self.watchers.write_back(Wait::ForAll)?;
            self.written.commit_others(Some(&view));
            replaced = self.opener.replace(&view, replace)?;
            Ok(())
        })?;
        match replaced {
            Some(entry) => self.opener.end_view(&entry, None),
            None => self.watchers.tell(|watcher| watcher.appeared(&view)),
        }
        self.opener.let_go_of_ended();
        let made = ViewId::Snapshot(received.snapshot.clone());
        self.watchers.tell(|watcher| watcher.appeared(&made));
        Ok(received)
    }

    /// Resets the mainline, or the clone of the snapshot, to the state of the snapshot.
    pub fn rollback(&self, snapshot: &str) -> Result<()> {
        self.mainline.writable()?;
        let info = self.db.snapshot_label(snapshot).ok_or(Error::NotFound)?;
        // Errors are found before anything is ended for the rollback.
        let state = self.db.open_snapshot(snapshot)?;
        self.mainline.count(numbers_of(&state)?, None)?;
        let view = ViewId::of_branch(&info.branch);
        let (fs, number) = (self.opener.fs(&view)?, self.opener.number(&view)?);
        running::check(&self.watchers, number, &fs, &state)?;
        // The state has other dictionaries if it is older than a received branch that has replaced
        // the branch.
        let of_state = Layout::of_state(&state);
        let is_other = of_state.is_some_and(|of| of.imap != fs.core.layout.imap);
        if is_other && view == ViewId::Mainline {
            let why = "the store had another main branch then, which a received one has replaced: unmount it and roll it back by its file";
            return Err(Error::Invalid(why));
        }
        drop(state);
        self.transactions.abort_those_of(&info.branch)?;
        // The rollback is on disk at once. A durable transaction that it ends, or that has just
        // ended, must not exist again after a crash.
        self.db.sync()?;
        // Data that the kernel holds back belongs to the state that is abandoned.
        self.watchers.write_back(Wait::ForAll)?;
        self.written.commit_others(Some(&view));
        if is_other {
            let replaced = self.opener.replace(&view, &mut || self.db.rollback(snapshot))?;
            replaced.iter().for_each(|entry| self.opener.end_view(entry, None));
            self.opener.let_go_of_ended();
            return Ok(());
        }
        let turn = fs.core.superseded.turn();
        let (mut begun, mut untold) = (Vec::new(), Untold::default());
        let changes = fs.revert(&turn, |known| {
            untold = self.notes.will_tell_of_all(number, known);
            self.db.rollback(snapshot)?;
            // A transaction that has begun in the meantime sees a state that no longer exists.
            begun.extend(self.transactions.list().into_iter().filter(|t| t.branch == info.branch));
            begun
                .iter()
                .filter_map(|info| self.db.transaction(info.id).ok())
                .for_each(|t| t.abort());
            Ok(())
        })?;
        // The rollback is done, so caches are notified of it even if a later step fails.
        let synced = match begun.iter().any(|transaction| transaction.durable) {
            true => self.db.sync(),
            false => Ok(()),
        };
        remove_nameless(&fs);
        self.watchers.tell(|watcher| watcher.changed(number, &fs, &changes));
        drop((turn, untold));
        // The views are ended only now: one of the transactions may be committing, and wait for its
        // turn with its view closed.
        begun.iter().for_each(|info| self.opener.let_go(info.id));
        Ok(synced?)
    }
}

/// Removes the files that were open without a name when the state of a view was made.
fn remove_nameless(fs: &Fs) {
    if let Err(e) = fs.empty_orphans() {
        match fs.orphans() {
            Ok(orphans) => fs.leave_orphans(&orphans, &e),
            Err(e) => tracing::warn!("removed files keep their space until a mount: {e}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use env::Simulated;
    use env::sync::Mutex;
    use kvdb::Batch;

    use super::*;
    use crate::views::{CommittedTo, Views, Watcher};
    use crate::{Caller, ChangeSet, FileKind, FsOptions, ROOT, layout};

    #[derive(Default)]
    struct Told(Mutex<Vec<u16>>);

    impl Watcher for Told {
        fn write_back(&self, _: Wait) -> std::result::Result<(), String> {
            Ok(())
        }
        fn appeared(&self, _: &ViewId) {}
        fn ended(&self, _: &ViewId, _: u16, _: &Fs, _: Option<CommittedTo<'_>>) {}
        fn changed(&self, number: u16, _: &Fs, _: &ChangeSet) {
            self.0.lock().push(number);
        }
    }

    #[test]
    fn a_view_that_is_opened_while_it_is_dropped_is_not_taken_for_the_next_of_its_name() {
        for seed in 0..200 {
            let ran = env::schedule::run(seed, || {
                let all = [ViewId::Snapshot("s".into()), ViewId::Clone("c".into())];
                let (db, env) = (Kvdb::in_memory(), Arc::new(Simulated::new(1)));
                let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
                let views = Views::new(db.clone(), fs.clone());
                let caller = Caller::default();
                let file = fs.mknod(ROOT, b"f", FileKind::File, 0o644, 0, caller).unwrap().ino;
                let make = |content: &[u8]| {
                    fs.write(file, 0, content, Default::default()).unwrap();
                    views.snapshot(&ViewId::Mainline, "s", Durability::Buffered).unwrap();
                    views.clone_snapshot("s", "c").unwrap();
                };
                make(b"1");
                let (opener, names) = (views.clone(), all.clone());
                let opens = env::thread::spawn(move || {
                    names.iter().cycle().take(4).for_each(|view| drop(opener.fs(view)));
                });
                views.drop_clone("c").unwrap();
                views.drop_snapshot("s").unwrap();
                make(b"2");
                opens.join().unwrap();
                all.iter()
                    .map(|view| views.fs(view)?.read(file, 0, 1))
                    .collect::<Result<Vec<_>>>()
                    .map_err(|e| e.to_string())
            });
            let shown = ran.unwrap().value;
            assert_eq!(shown, Ok(vec!["2".into(), "2".into()]), "seed {seed}");
        }
    }

    #[test]
    fn caches_are_told_of_a_rollback_though_orphans_cannot_be_removed() {
        let (db, env) = (Kvdb::in_memory(), Arc::new(Simulated::new(1)));
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        let views = Views::new(db.clone(), fs.clone());
        let mut batch = Batch::new();
        let malformed = layout::orphan_key(9)[..12].to_vec();
        batch.put(fs.core.layout.imap, malformed, b"".as_slice());
        db.commit(batch, Durability::Buffered).unwrap();
        views.snapshot(&ViewId::Mainline, "before", Durability::Buffered).unwrap();
        fs.mknod(ROOT, b"f", FileKind::File, 0o644, 0, Caller::default()).unwrap();
        let told = Arc::new(Told::default());
        let watcher: Arc<dyn Watcher> = told.clone();
        views.watch(&watcher);
        views.rollback("before").unwrap();
        assert!(fs.resolve(b"f").is_err());
        assert_eq!(*told.0.lock(), [0], "the mainline");
    }
}
