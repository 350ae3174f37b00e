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

use kvdb::{BranchInfo, Durability, ReceiveOptions, ReceiveStats, SnapshotInfo, SnapshotLabel};

use crate::difference::{Difference, Listing, Side, between, difference_of_states};
use crate::error::{Error, Result};
use crate::fs::counter::numbers_of;
use crate::layout::Layout;
use crate::views::{OpenView, Untold, ViewId, Views, Wait};

impl Views {
    /// Makes a snapshot of the mainline or of a clone. With `Synced` it is on disk when this
    /// returns.
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
        self.shared.mainline.writable()?;
        self.shared.watchers.write_back(Wait::ForAll)?;
        let db = &self.shared.db;
        if !self.if_unopened(of, || Ok(db.snapshot_of(branch, name, Durability::Buffered)?))? {
            let fs = self.fs(of)?;
            fs.at_rest(|| {
                fs.under_another_mark(|| Ok(db.snapshot_of(branch, name, Durability::Buffered)?))
            })?;
        }
        if durability == Durability::Synced {
            db.sync()?;
        }
        self.shared.watchers.tell(|watcher| watcher.appeared(&ViewId::Snapshot(name.into())));
        Ok(())
    }

    /// Calls `what` if this is a clone without a view, and returns whether it was called. The clone
    /// is not opened in between, so the store has all of it, and no numbers are given in it. A view
    /// that was opened for a moment would stay open, with its memory, as long as the clone exists.
    fn if_unopened(&self, view: &ViewId, what: impl FnOnce() -> Result<()>) -> Result<bool> {
        let ViewId::Clone(name) = view else { return Ok(false) };
        let _one = self.shared.opening.lock();
        if self.shared.open.find(view).is_some() {
            return Ok(false);
        }
        if Layout::find_in(&self.shared.db, name).is_none() {
            return Err(Error::NotFound);
        }
        what()?;
        Ok(true)
    }

    /// Returns all snapshots, the oldest first, with the device space that they keep.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.shared.db.snapshots()
    }

    /// Returns the labels of all snapshots, the oldest first.
    pub fn snapshot_labels(&self) -> Vec<SnapshotLabel> {
        self.shared.db.snapshot_labels()
    }

    /// Returns the differences of the files from a snapshot to another one, or to the current state
    /// of its mainline or clone.
    pub fn difference_of_snapshots(
        &self,
        before: &str,
        after: Option<&str>,
        listing: Listing,
    ) -> Result<Difference> {
        let db = &self.shared.db;
        let state = db.open_snapshot(before)?;
        if let Some(after) = after {
            return difference_of_states(&state, &db.open_snapshot(after)?, listing);
        }
        let of = db.snapshot_label(before).ok_or(Error::NotFound)?;
        let fs = match self.fs(&ViewId::of_branch(&of.branch)) {
            // If the snapshot's clone was dropped, it is compared with the mainline.
            Err(Error::NotFound) => self.shared.mainline.clone(),
            fs => fs?,
        };
        self.shared.watchers.write_back(Wait::ForAll)?;
        let now = fs.at_rest(|| Ok(db.view()))?;
        let before = Side::new(state.clone(), Layout::of_state(&state).ok_or(Error::NotFound)?);
        between(before, Side::new(now, fs.core.layout), listing)
    }

    /// Drops a snapshot. Clones of it stay.
    pub fn drop_snapshot(&self, name: &str) -> Result<()> {
        self.commit_written()?;
        self.shared.db.drop_snapshot(name)?;
        self.close(&ViewId::Snapshot(name.into()));
        Ok(())
    }

    /// Makes a branch out of a snapshot.
    pub fn clone_snapshot(&self, snapshot: &str, name: &str) -> Result<()> {
        self.commit_written()?;
        self.shared.db.clone_snapshot(snapshot, name)?;
        if !self.shared.mainline.core.options.read_only {
            self.shared.mainline.count_clone(name);
        }
        self.shared.watchers.tell(|watcher| watcher.appeared(&ViewId::Clone(name.into())));
        Ok(())
    }

    /// Returns all clones, by name.
    pub fn clones(&self) -> Vec<BranchInfo> {
        self.shared.db.branches()
    }

    /// Drops a clone and everything in it. Its snapshots stay.
    pub fn drop_clone(&self, name: &str) -> Result<()> {
        // The view is closed first, so that no call writes to a dropped branch. It is closed again
        // afterwards, since it may have been opened in between.
        let view = ViewId::Clone(name.into());
        if name.is_empty() {
            // The main branch has the empty name, and its transactions must not end.
            return Err(Error::Invalid("a clone without a name"));
        }
        if !self.shared.db.has_branch(name) {
            return Err(kvdb::Error::NoBranch(name.into()).into());
        }
        // A drop that fails leaves the transactions open, so they end after what may fail.
        self.shared.db.takes_writes()?;
        self.shared.watchers.write_back(Wait::ButForLocks)?;
        self.abort_those_of(name)?;
        self.commit_others(Some(&view));
        self.close(&view);
        self.shared.db.drop_branch(name)?;
        self.close(&view);
        self.let_go_of_ended();
        Ok(())
    }

    /// Receives a stream of [`kvdb::Kvdb::send`] into the clone that the options name, which need
    /// not exist; see [`kvdb::Kvdb::receive`]. The mainline is in use, so it cannot be replaced.
    pub fn receive(&self, input: impl Read, options: &ReceiveOptions) -> Result<ReceiveStats> {
        self.shared.mainline.writable()?;
        if options.branch.is_empty() {
            return Err(Error::Invalid("what is mounted is not replaced: name a clone"));
        }
        let view = ViewId::Clone(options.branch.clone());
        let mut replaced = None;
        let received = self.shared.db.receive_within(input, options, |replace| -> Result<()> {
            // The replacing branch is on disk at once. A durable transaction that this ends must
            // not exist again after a crash, over dictionaries that are gone.
            self.abort_those_of(&options.branch)?;
            self.shared.db.sync()?;
            // Data that the kernel holds back was written to the clone that is replaced.
            self.shared.watchers.write_back(Wait::ForAll)?;
            self.commit_others(Some(&view));
            replaced = self.replace(&view, replace)?;
            Ok(())
        })?;
        match replaced {
            Some(entry) => self.end_view(&entry, None),
            None => self.shared.watchers.tell(|watcher| watcher.appeared(&view)),
        }
        self.let_go_of_ended();
        self.shared
            .watchers
            .tell(|watcher| watcher.appeared(&ViewId::Snapshot(received.snapshot.clone())));
        Ok(received)
    }

    /// Replaces a clone by another branch, after committing its changes. Returns the clone's view
    /// if it was open: files open in it are gone, as if the clone was dropped.
    fn replace(
        &self,
        view: &ViewId,
        replace: &mut dyn FnMut() -> kvdb::Result<()>,
    ) -> Result<Option<Arc<OpenView>>> {
        let ViewId::Clone(name) = view else {
            return Err(Error::Invalid("what is mounted is not replaced by another branch"));
        };
        // The clone cannot be opened in between.
        let _one = self.shared.opening.lock();
        let Some(entry) = self.shared.open.find(view) else {
            replace()?;
            self.shared.mainline.count_received(name);
            return Ok(None);
        };
        {
            let _call = entry.fs.enter()?;
            entry.fs.commit_unlocked()?;
        }
        let mut frozen = entry.fs.core.freeze_lock.freeze();
        entry.fs.commit_unlocked()?;
        replace()?;
        self.shared.mainline.count_received(name);
        frozen.end();
        drop(frozen);
        Ok(Some(entry))
    }

    /// Resets the mainline, or the clone of the snapshot, to the state of the snapshot.
    pub fn rollback(&self, snapshot: &str) -> Result<()> {
        self.shared.mainline.writable()?;
        let info = self.shared.db.snapshot_label(snapshot).ok_or(Error::NotFound)?;
        // Errors are found before anything is ended for the rollback.
        let state = self.shared.db.open_snapshot(snapshot)?;
        self.shared.mainline.count(numbers_of(&state)?, None)?;
        let view = ViewId::of_branch(&info.branch);
        let (fs, number) = (self.fs(&view)?, self.number(&view)?);
        self.check_running(number, &fs, &state)?;
        // The state has other dictionaries if it is older than a received branch that has replaced
        // the branch.
        let of_state = Layout::of_state(&state);
        let is_other = of_state.is_some_and(|of| of.imap != fs.core.layout.imap);
        if is_other && view == ViewId::Mainline {
            let why = "the store had another main branch then, which a received one has replaced: unmount it and roll it back by its file";
            return Err(Error::Invalid(why));
        }
        drop(state);
        self.abort_those_of(&info.branch)?;
        // The rollback is on disk at once. A durable transaction that it ends, or that has just
        // ended, must not exist again after a crash.
        self.shared.db.sync()?;
        // Data that the kernel holds back belongs to the state that is abandoned.
        self.shared.watchers.write_back(Wait::ForAll)?;
        self.commit_others(Some(&view));
        if is_other {
            let replaced = self.replace(&view, &mut || self.shared.db.rollback(snapshot))?;
            replaced.iter().for_each(|entry| self.end_view(entry, None));
            self.let_go_of_ended();
            return Ok(());
        }
        let turn = fs.core.superseded.turn();
        let (mut begun, mut untold) = (Vec::new(), Untold::default());
        let changes = fs.revert(&turn, |known| {
            untold = self.shared.notes.will_tell_of_all(number, known);
            self.shared.db.rollback(snapshot)?;
            // A transaction that has begun in the meantime sees a state that no longer exists.
            begun.extend(self.list().into_iter().filter(|t| t.branch == info.branch));
            begun
                .iter()
                .filter_map(|info| self.shared.db.transaction(info.id).ok())
                .for_each(|t| t.abort());
            Ok(())
        })?;
        // The rollback is done: caches are told of it, whatever fails from here on.
        let synced = match begun.iter().any(|transaction| transaction.durable) {
            true => self.shared.db.sync(),
            false => Ok(()),
        };
        // Removes files that were open without a name when the snapshot was made.
        if let Err(e) = fs.empty_orphans() {
            match fs.orphans() {
                Ok(orphans) => fs.leave_orphans(&orphans, &e),
                Err(e) => tracing::warn!("removed files keep their space until a mount: {e}"),
            }
        }
        self.shared.watchers.tell(|watcher| watcher.changed(number, &fs, &changes));
        drop((turn, untold));
        // The views are ended only now: one of the transactions may be committing, and wait for its
        // turn with its view closed.
        begun.iter().for_each(|info| self.let_go(info.id));
        Ok(synced?)
    }

    /// Makes the kernel write back all data that programs have written, in every view.
    pub fn hand_over_written(&self) -> Result<()> {
        self.shared.watchers.write_back(Wait::ForAll)
    }

    /// Commits everything that programs have written in the mainline and in all views, including
    /// data that the kernel holds back. To be called before a change of the store that is on disk
    /// at once, such as the drop of a dictionary: what was written before is then on disk with it.
    pub fn commit_written(&self) -> Result<()> {
        self.shared.watchers.write_back(Wait::ButForLocks)?;
        self.commit_others(None);
        Ok(())
    }

    /// Commits everything in the mainline and in all clones, including data that the kernel holds
    /// back, and syncs it. Files that open serializable transactions have locked are left out.
    pub fn sync_all(&self) -> Result<()> {
        self.shared.watchers.write_back(Wait::ButForLocks)?;
        let mainline = &self.shared.mainline;
        {
            let _call = mainline.enter()?;
            mainline.commit_unlocked()?;
        }
        self.shutdown()?;
        Ok(self.shared.db.sync()?)
    }

    /// Commits all data written so far, except for that of the view `gone`, which is about to be
    /// dropped or replaced. The drop is on disk at once, and includes all commits before it: data
    /// copied out of the view must be among them. Data that cannot be committed stays in memory and
    /// is tried again: after a lack of space, which the drop may end, or when a transaction that
    /// has locked it ends.
    fn commit_others(&self, gone: Option<&ViewId>) {
        let entries = self.shared.open.all();
        let of_mainline = (gone != Some(&ViewId::Mainline)).then_some(&self.shared.mainline);
        let others = entries.iter().filter(|entry| Some(&entry.view) != gone);
        for fs in of_mainline.into_iter().chain(others.map(|entry| &entry.fs)) {
            if !fs.core.options.read_only
                && let Err(e) = fs.enter().and_then(|_call| fs.commit_unlocked())
            {
                tracing::warn!("committing what was written failed, will be tried again: {e}");
            }
        }
    }

    /// Commits everything in all clones and in durable transactions, and syncs it. The mainline and
    /// the other transactions are left to their owners.
    pub fn shutdown(&self) -> Result<()> {
        for entry in self.shared.open.all() {
            match entry.view {
                ViewId::Clone(_) => entry.fs.sync_all()?,
                ViewId::Transaction(id) => self.keep_written(id, &entry)?,
                ViewId::Mainline | ViewId::Snapshot(_) => {}
            }
        }
        Ok(())
    }

    /// Ends the views of transactions that have ended with their branch.
    fn let_go_of_ended(&self) {
        for entry in self.shared.open.all() {
            if let ViewId::Transaction(id) = entry.view
                && self.shared.db.transaction(id).is_err()
            {
                self.let_go(id);
            }
        }
    }

    /// Ends a view whose state is gone.
    fn close(&self, view: &ViewId) {
        match self.shared.open.find(view) {
            Some(entry) => {
                entry.fs.core.freeze_lock.freeze().end();
                self.end_view(&entry, None);
            }
            // The view is not open, but may have been listed.
            None => self.shared.watchers.tell(|watcher| watcher.appeared(view)),
        }
    }
}

#[cfg(test)]
mod tests {
    use env::Simulated;
    use env::sync::Mutex;
    use kvdb::{Batch, Kvdb};

    use super::*;
    use crate::views::{CommittedTo, Watcher};
    use crate::{Caller, ChangeSet, FileKind, Fs, FsOptions, ROOT, layout};

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
