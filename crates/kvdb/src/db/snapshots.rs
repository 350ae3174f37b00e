//! The public API for snapshots and branches; [`crate::snapshots`] implements it.

use std::collections::BTreeSet;

use crate::commit::batch::Durability;
use crate::db::Kvdb;
use crate::db::handle::Dictionary;
use crate::dictionary::{DictionaryId, DictionaryInfo, DictionaryOptions};
use crate::error::{Error, Result};
use crate::ids::Label as SnapshotLabel;
use crate::read::view::View;
use crate::snapshots::{
    BranchInfo, BranchLimit, ForkBase, Lineage, SnapshotInfo, check_name, check_visible, is_own,
    shown_origin,
};

/// The branch for data that a layer above keeps about the store as a whole
/// ([`Kvdb::create_dictionary_of_store`]). The branch is not listed and has no snapshots, so no
/// rollback, clone or stream changes it.
pub const STORE_BRANCH: &str = ".store";

/// The reason that a serializable transaction reports when data that it has read or changed was
/// rolled back.
const ROLLED_BACK: &str = "what it has read or changed was rolled back: begin it again";
/// The reason that a serializable transaction reports when a dictionary that it has read or changed
/// was dropped.
pub(super) const DROPPED: &str =
    "a dictionary that it has read or changed was dropped: begin it again";

impl Kvdb {
    /// Makes a snapshot of the main branch. The snapshot keeps the result of all commits before
    /// this call until the snapshot is dropped. The call takes the time of a synced commit,
    /// whatever the size of the store, and the snapshot is durable when the call returns.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// let fruit = db.open_dictionary("fruit")?;
    /// fruit.insert("apple", "red")?;
    /// db.snapshot("monday")?;
    /// fruit.insert("apple", "rotten")?;
    ///
    /// let monday = db.open_snapshot("monday")?;
    /// assert_eq!(monday.get(fruit.id(), b"apple")?.unwrap(), "red");
    /// db.drop_snapshot("monday")?;
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn snapshot(&self, name: &str) -> Result<()> {
        self.snapshot_of("", name, Durability::Synced)
    }

    /// Makes a snapshot of any branch. A buffered snapshot reaches the disk together with the
    /// commits before it.
    pub fn snapshot_of(&self, branch: &str, name: &str, durability: Durability) -> Result<()> {
        check_name("snapshot", name)?;
        if !branch.is_empty() {
            check_name("branch", branch)?;
        }
        self.db.snapshotter.snapshot(branch, name, durability)
    }

    /// Returns all snapshots, the oldest first, with the space that they keep. The result is meant
    /// for display. Use [`Kvdb::snapshot_label`] to look up one snapshot, and
    /// [`Kvdb::snapshot_labels`] to list their names.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.db.snapshotter.list().into_iter().filter(|s| !is_own(&s.name)).collect()
    }

    /// Returns the label of the snapshot with this name, if it exists. The call costs one lookup,
    /// whatever the number of snapshots.
    pub fn snapshot_label(&self, name: &str) -> Option<SnapshotLabel> {
        check_visible(name).ok()?;
        self.db.snapshotter.label_of(name)
    }

    /// Returns the labels of all snapshots, the oldest first.
    pub fn snapshot_labels(&self) -> Vec<SnapshotLabel> {
        self.db.snapshotter.labels().filter(|label| !is_own(&label.name)).collect()
    }

    /// Returns a view of the snapshot's branch as the branch was when the snapshot was made. The
    /// view remains valid after the snapshot is dropped. The dictionaries of the view have their
    /// old numbers; see [`View::dictionary`].
    pub fn open_snapshot(&self, name: &str) -> Result<View> {
        check_visible(name)?;
        self.db.snapshotter.open_snapshot(name)
    }

    /// Drops a snapshot, durably, in a time that does not depend on its size. Clones and views of
    /// the snapshot remain.
    pub fn drop_snapshot(&self, name: &str) -> Result<()> {
        check_visible(name)?;
        self.db.snapshotter.drop_snapshot(name)
    }

    /// Makes a branch from a snapshot. For each dictionary of the snapshot, the branch gets a new
    /// dictionary with the same name, options and contents, which at first shares all data with the
    /// snapshot. The branch is durable when this returns. The call is as fast as making a snapshot.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// let fruit = db.open_dictionary("fruit")?;
    /// fruit.insert("apple", "red")?;
    /// db.snapshot("monday")?;
    /// db.clone_snapshot("monday", "what-if")?;
    /// let other = db.open_dictionary_in("what-if", "fruit")?;
    /// other.insert("apple", "blue")?;
    /// assert_eq!(fruit.get("apple")?.unwrap(), "red");
    /// db.drop_branch("what-if")?;
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn clone_snapshot(&self, snapshot: &str, branch: &str) -> Result<()> {
        check_visible(snapshot)?;
        check_name("branch", branch)?;
        self.db.snapshotter.clone_snapshot(snapshot, branch)
    }

    /// Limits, durably, the number of bytes that a clone may have in addition to the data that it
    /// shares; `None` removes the limit. Data that the clone shares with the snapshot from which it
    /// was made, or with a state at which it was merged or rebased, does not count. Data that
    /// merges and defragmentation have copied for the clone counts, and so does deleted data until
    /// it is merged. A commit beyond the limit fails with [`Error::CloneOverLimit`], unless it only
    /// deletes. The limit applies to a transaction of the clone from its first change on.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// db.snapshot("monday")?;
    /// db.clone_snapshot("monday", "what-if")?;
    /// db.limit_branch("what-if", Some(1 << 20))?;
    /// let fruit = db.open_dictionary_in("what-if", "fruit")?;
    /// fruit.insert("apple", "red")?;
    /// let refused = fruit.insert("melon", vec![7; 2 << 20]);
    /// assert!(matches!(refused, Err(kvdb::Error::CloneOverLimit { .. })));
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn limit_branch(&self, branch: &str, bytes: Option<u64>) -> Result<()> {
        if !branch.is_empty() {
            check_name("branch", branch)?;
        }
        self.db.snapshotter.limit_branch(branch, bytes)
    }

    /// Returns the clone to which a dictionary belongs, and the limit of the clone, or `None` if
    /// the dictionary belongs to no clone with a limit.
    pub fn limit_of(&self, dict: DictionaryId) -> Option<(String, BranchLimit)> {
        let snapshotter = &self.db.snapshotter;
        let branch = snapshotter.limited_branch_of(dict)?;
        let limit = snapshotter.branch_limit(&branch)?;
        Some((branch, limit))
    }

    /// Makes the clone to which a dictionary belongs take less space if possible. Callers use this
    /// when they would exceed the limit of the clone. Returns the limit, with the number of bytes
    /// that the clone takes afterwards.
    pub fn make_room_for(&self, dict: DictionaryId) -> Result<Option<BranchLimit>> {
        let snapshotter = &self.db.snapshotter;
        let Some(branch) = snapshotter.limited_branch_of(dict) else { return Ok(None) };
        snapshotter.make_room(&branch)?;
        Ok(snapshotter.branch_limit(&branch))
    }

    /// Limits, durably, the number of files that a clone may have in addition to the files that it
    /// shares; `None` removes the limit. The store itself has no notion of files. It stores the
    /// limit for the layer above, which counts the files.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// db.snapshot("monday")?;
    /// db.clone_snapshot("monday", "what-if")?;
    /// db.limit_files("what-if", Some(100_000))?;
    /// assert_eq!(db.branches()[0].limit_of_files, Some(100_000));
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn limit_files(&self, branch: &str, files: Option<u64>) -> Result<()> {
        if !branch.is_empty() {
            check_name("branch", branch)?;
        }
        self.db.snapshotter.limit_files(branch, files)
    }

    /// Returns the clone to which a dictionary belongs, and the clone's limit on the number of its
    /// own files, or `None` if the dictionary belongs to no clone with such a limit.
    pub fn limit_of_files(&self, dict: DictionaryId) -> Option<(String, u64)> {
        self.db.snapshotter.limit_of_files(dict)
    }

    /// Returns the states whose data is shared by the clone to which a dictionary belongs: the
    /// snapshot from which the clone was made, and the states at which it was merged or rebased.
    /// The list is empty if the origin of the clone is not known. Returns `None` if the dictionary
    /// does not belong to a clone.
    pub fn states_beneath(&self, dict: DictionaryId) -> Option<Vec<View>> {
        self.db.snapshotter.states_beneath(dict)
    }

    /// Makes a branch without dictionaries.
    pub fn create_branch(&self, name: &str) -> Result<()> {
        check_name("branch", name)?;
        self.db.snapshotter.create_branch(name)
    }

    /// Returns whether a branch with this name exists. The name of the main branch is `""`.
    pub fn has_branch(&self, name: &str) -> bool {
        !is_own(name) && self.db.engine.versions.load().has_branch(name)
    }

    /// Returns all branches except the main branch, in the order of their names.
    pub fn branches(&self) -> Vec<BranchInfo> {
        let version = self.db.engine.versions.load();
        let all = version.branches.iter().filter(|(name, _)| !name.starts_with('.'));
        let of = |from: &str| {
            let shown = shown_origin(from);
            let another = shown != from && self.db.snapshotter.has(shown);
            Some(shown.to_owned()).filter(|shown| !shown.is_empty() && !another)
        };
        let limit = |name: &str| self.db.snapshotter.branch_limit(name);
        // The state of a dropped snapshot is kept under an internal name while it has clones.
        let parent =
            |from: &str| self.db.engine.snapshots.get(from).map(|s| s.label.branch.clone());
        all.map(|(name, from)| BranchInfo {
            name: name.to_string(),
            snapshot: of(from),
            parent: parent(from),
            limit: limit(name),
            limit_of_files: version.limits_of_files.get(&**name).copied(),
        })
        .collect()
    }

    /// Returns the states that a clone has in common with the branch from which it was made. Fails
    /// if the origin of the clone is not known, or if the branch no longer exists.
    pub fn lineage(&self, clone: &str) -> Result<Lineage> {
        check_name("branch", clone)?;
        self.db.snapshotter.lineage(clone)
    }

    /// Keeps the current state of branch `of` under a mark, as a state that a clone and its origin
    /// have in common. `of` is either the clone or its origin. The state is buffered like a
    /// snapshot, and is dropped with the clone at the latest.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// let fruit = db.open_dictionary("fruit")?;
    /// fruit.insert("apple", "red")?;
    /// db.snapshot("monday")?;
    /// db.clone_snapshot("monday", "try")?;
    /// assert_eq!(db.lineage("try")?.parent, "");
    /// let state = db.keep_common_state("try", "", 7)?;
    /// assert_eq!(state.get(fruit.id(), b"apple")?.unwrap(), "red");
    /// assert_eq!(db.lineage("try")?.kept, [7]);
    /// db.drop_common_states("try", &[])?;
    /// assert!(db.common_state("try", 7).is_err());
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn keep_common_state(&self, clone: &str, of: &str, mark: u64) -> Result<View> {
        check_name("branch", clone)?;
        self.db.snapshotter.keep_common_state(clone, of, mark)
    }

    /// Returns a state that [`Kvdb::keep_common_state`] has kept.
    pub fn common_state(&self, clone: &str, mark: u64) -> Result<View> {
        self.db.snapshotter.common_state(clone, mark)
    }

    /// Drops the common states of a clone, except the states with marks in `but` and the state from
    /// which the clone was made.
    pub fn drop_common_states(&self, clone: &str, but: &[u64]) -> Result<()> {
        self.db.snapshotter.drop_common_states(clone, but)
    }

    /// Returns the identity of the store. A copy of the store's file has the same identity; a fork
    /// has another.
    pub fn store_id(&self) -> [u8; 16] {
        self.db.engine.zones.superblock().uuid
    }

    /// Returns the identities of up to four stores of which this store is a fork
    /// ([`RemoteStore::fork_to`](crate::RemoteStore::fork_to)). The last identity is the store from
    /// which this store was made, the identity before it is the store from which that store was
    /// made, and so on. The list is empty if this store is not a fork.
    pub fn fork_origins(&self) -> Vec<[u8; 16]> {
        self.db.snapshotter.fork_origins()
    }

    /// Returns the state of the main branch that a fork has in common with a store in its
    /// [`Kvdb::fork_origins`], or `None` for any other store.
    pub fn fork_base(&self, store: &[u8; 16]) -> Option<ForkBase> {
        self.db.snapshotter.fork_base(store)
    }

    /// Drops a branch and its dictionaries, durably, as [`Kvdb::drop_dictionary`] does. The
    /// snapshots of the branch remain. Its open transactions are aborted, and its commits can no
    /// longer be undone.
    pub fn drop_branch(&self, name: &str) -> Result<()> {
        check_name("branch", name)?;
        let db = &self.db;
        let mut gone = BTreeSet::new();
        db.snapshotter.drop_branch(name, |dicts| {
            gone.clone_from(dicts);
            db.transactions.lock_before_all(dicts, DROPPED)
        })?;
        db.transactions.branch_gone(name, &gone, "its branch was dropped");
        Ok(())
    }

    /// Rolls the snapshot's branch back to the state of the snapshot, durably and atomically. Later
    /// commits to the branch are undone, later dictionaries are dropped, and dictionaries that were
    /// dropped since the snapshot are restored. Dictionaries keep their numbers. Views and other
    /// snapshots remain, even newer snapshots. Transactions that began before the rollback cannot
    /// commit to data that was rolled back.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// let fruit = db.open_dictionary("fruit")?;
    /// fruit.insert("apple", "red")?;
    /// db.snapshot("monday")?;
    /// fruit.insert("apple", "rotten")?;
    /// db.rollback("monday")?;
    /// assert_eq!(fruit.get("apple")?.unwrap(), "red");
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn rollback(&self, snapshot: &str) -> Result<()> {
        check_visible(snapshot)?;
        let db = &self.db;
        db.snapshotter
            .roll_back(snapshot, |dicts| db.transactions.lock_before_all(dicts, ROLLED_BACK))
    }

    /// Returns the number of the dictionary with this name in a branch, if the dictionary exists.
    pub fn dictionary_in(&self, branch: &str, name: &str) -> Option<DictionaryId> {
        self.db.engine.versions.dictionary(branch, name)
    }

    /// Returns the number of the dictionary with this name in a branch. If the dictionary does not
    /// exist, it is created, and is durable before this returns.
    pub fn create_dictionary_in(
        &self,
        branch: &str,
        name: &str,
        options: DictionaryOptions,
    ) -> Result<DictionaryId> {
        self.db.catalog.create(branch, name, options)
    }

    /// Returns the number of the dictionary with this name in [`STORE_BRANCH`]. If the dictionary
    /// does not exist, it is created, and is durable before this returns.
    pub fn create_dictionary_of_store(
        &self,
        name: &str,
        options: DictionaryOptions,
    ) -> Result<DictionaryId> {
        let db = &self.db;
        if !db.engine.versions.load().has_branch(STORE_BRANCH) {
            match db.snapshotter.create_branch(STORE_BRANCH) {
                Ok(()) | Err(Error::Exists(_)) => {}
                Err(e) => return Err(e),
            }
        }
        db.catalog.create(STORE_BRANCH, name, options)
    }

    /// Returns a handle of the dictionary with this name in a branch. If the dictionary does not
    /// exist, it is created with default options.
    pub fn open_dictionary_in(&self, branch: &str, name: &str) -> Result<Dictionary> {
        let id = self.create_dictionary_in(branch, name, DictionaryOptions::default())?;
        Ok(Dictionary::of(self, id))
    }

    /// Returns the dictionaries of a branch, in the order of their numbers.
    pub fn dictionaries_in(&self, branch: &str) -> Vec<DictionaryInfo> {
        let of_branch = self.db.engine.versions.load().entries.of_branch(branch);
        of_branch.values().map(|d| d.info.to_info()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use env::Simulated;
    use zones::{Fault, FaultDevice, FaultKind, MemoryDevice, Operation, Purpose};

    use super::*;
    use crate::{CreateOptions, OpenOptions};

    /// A snapshot waits for a flush that will never happen, since the journal before it could not
    /// be written. Callers that began to wait for the snapshot while the store still took writes
    /// must get an error.
    #[test]
    fn what_waits_for_a_snapshot_ends_when_that_can_not_be_written() {
        let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
        let open = OpenOptions { threads: false, memory: 32 << 20, ..OpenOptions::default() };
        let create = CreateOptions { open, ..CreateOptions::default() };
        let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), create).unwrap();
        let d = db.open_dictionary("d").unwrap();
        d.insert("k", "v").unwrap();
        db.snapshot("before").unwrap();
        db.flush().unwrap();
        d.insert("k", "w").unwrap();
        db.sync().unwrap();
        device.inject(Fault::always(Operation::Write, FaultKind::Error).of(Purpose::Journal));
        assert!(db.snapshot("s").is_err());
        let (done, outcome) = mpsc::channel();
        // The thread is not joined, since it may never end.
        std::thread::spawn(move || {
            let settled = db.db.snapshotter.settled().map(drop);
            done.send(settled).unwrap();
        });
        let outcome = outcome.recv_timeout(Duration::from_secs(20));
        let outcome = outcome.expect("it waits for ever");
        assert!(outcome.is_err(), "the store takes no more writes");
    }
}
