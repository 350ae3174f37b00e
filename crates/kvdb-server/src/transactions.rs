//! Transactions and snapshots of clients: the interfaces that create and end them, and the state
//! that the connections in one transaction share. (`files` has operations on trees of files.)

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use env::sync::Mutex;
use kvdb::{
    Clash, CommitOptions, CommittedKey, DictionaryId, Durability, Isolation, Kvdb, ReceiveOptions,
    ReceiveStats, Result, Revision, Savepoint, Settled, Transaction, TransactionId,
    TransactionOptions, View,
};

use crate::effects::Effects;
use crate::locks::KeyLocks;

/// A file that a transaction has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    /// The path from the root of the file system, without a leading slash. `/3/…` begins at the
    /// third anchor of the list, and is used if the path would be longer than a system call
    /// accepts. Paths in details have the same form.
    pub path: Vec<u8>,
    /// The type of the entry as it is now, or as it was: `a` for an anchor of the list, `d` for a
    /// directory, `f` for a file, `l` for a symbolic link, `o` for any other type.
    pub kind: char,
    /// The number of bytes before, or `None` if the entry did not exist.
    pub before: Option<u64>,
    /// The number of bytes now, or `None` if the entry no longer exists.
    pub after: Option<u64>,
    /// The differences. For an added or removed entry they are its properties.
    pub details: Vec<FileDetail>,
}

impl FileChange {
    /// Makes the row of an anchor. An anchor is a directory at which long paths of the list
    /// begin; the first one is `/1`.
    pub fn anchor(number: usize, path: Vec<u8>) -> FileChange {
        let anchor = FileDetail { what: b"anchor".to_vec(), before: None, after: Some(path) };
        FileChange {
            path: format!("/{number}").into_bytes(),
            kind: 'a',
            before: None,
            after: None,
            details: vec![anchor],
        }
    }
}

/// A property in which a file differs. It is `anchor` (the path of an anchor), `kind`, `mode`,
/// `owner`, `device`, `content` (without values), `target`, `links` (the number of links; equal
/// before and after if only the linked names differ), `linked-to` (another path of the same
/// file), `below` (of a directory: the files, directories and bytes below it that are not listed,
/// and those that have moved with it), `time` (of the last change), or `xattr:` and the name of
/// an extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDetail {
    /// The name of the property.
    pub what: Vec<u8>,
    /// The value before, or `None` if the property did not exist.
    pub before: Option<Vec<u8>>,
    /// The value now, or `None` if the property no longer exists.
    pub after: Option<Vec<u8>>,
}

/// The paths that a commit has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// Paths from the root, without a leading slash, each with its change: `made`, `changed` or
    /// `removed`.
    pub paths: Vec<(Vec<u8>, &'static str)>,
    /// Set if there are more paths than are listed.
    pub more: bool,
}

/// A merge that a client requests.
#[derive(Clone, Debug, Default)]
pub struct Merge {
    /// The clone, which is merged into the branch from which it was made, or the name of the
    /// fork, if a fork is merged.
    pub clone: String,
    /// The location of the fork to be merged into this store: an address, or the path of a file.
    pub fork: Option<Vec<u8>>,
    /// The branch into which the clone is merged, if it is not the branch from which the clone
    /// was made. `""` is the main branch.
    pub into: Option<String>,
    /// Set to merge in the opposite direction.
    pub rebase: bool,
    /// Set if the merge is only computed, and not committed.
    pub dry_run: bool,
    /// The side that is preferred at each of these paths or keys, if both sides have changed it.
    pub choices: Vec<(Vec<u8>, Preferred)>,
    /// The options of the transaction of the merge.
    pub options: TransactionOptions,
}

/// The side whose version is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preferred {
    /// The version of the branch into which the other one is merged.
    Ours,
    /// The version of the branch that is merged.
    Theirs,
    /// Both versions, next to each other.
    Both,
}

/// A merge that has begun.
#[derive(Clone, Debug)]
pub struct Merging {
    /// The transaction of the merge.
    pub id: TransactionId,
    /// The clone to which the merge commits, or an empty name for the store itself.
    pub into: String,
    /// The clone or the fork whose changes are merged, or an empty name for the store itself.
    pub from: String,
    /// The changes of both sides to the same paths or keys.
    pub conflicts: Vec<Conflicting>,
    /// The number of such changes that are not listed because there are too many.
    pub more: u64,
    /// The number of the newest commit that both sides have, or `None` if it is not known.
    pub since: Option<u64>,
}

/// The result of a rebase of a transaction.
#[derive(Clone, Debug)]
pub struct Rebased {
    /// The transaction that now has the changes, or `None` if there are conflicts.
    pub id: Option<TransactionId>,
    /// Changes to the same paths or keys by the transaction and by others. *Ours* is the change
    /// of the transaction.
    pub conflicts: Vec<Conflicting>,
    /// The number of such changes that are not listed because there are too many.
    pub more: u64,
}

/// A path or key that both sides have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicting {
    /// A path, or `dictionary:key`.
    pub path: Vec<u8>,
    /// Set if `path` is a key.
    pub key: bool,
    /// The change in the branch into which the other one is merged, in one word.
    pub ours: &'static str,
    /// The change on the other side, in one word.
    pub theirs: &'static str,
}

/// Settles a key that both sides have changed, by the name of its dictionary.
pub type SettleKey<'a> = dyn Fn(&str, &Clash<'_>) -> Settled + 'a;

/// Called last for a transaction that has received the changes of another one. It may change the
/// transaction. Returns `false` if there are conflicts nevertheless, which the caller lists.
pub type FinishRebase<'a> = dyn Fn(&Transaction) -> Result<bool> + 'a;

/// The host of transactions, which begins and ends them. A store that holds only keys is its own
/// host. If the store is also a file system, the files must be prepared as well.
pub trait Transactions: Send + Sync {
    /// Begins a transaction that stays open until it is ended explicitly (`detached` is set).
    fn begin(&self, options: TransactionOptions) -> Result<TransactionId>;
    /// Commits and ends a transaction.
    fn commit(&self, id: TransactionId, options: CommitOptions) -> Result<()>;
    /// Returns the state of the changes of a transaction, including files.
    fn revision(&self, id: TransactionId) -> Result<Revision>;
    /// Ends a transaction and discards its changes.
    fn abort(&self, id: TransactionId) -> Result<()>;
    /// Begins a transaction that undoes a commit when it commits. [`Kvdb::undoable_commits`]
    /// returns the numbers of commits. Also returns the keys that cannot be restored because
    /// others have changed them since.
    fn undo(
        &self,
        commit: u64,
        options: TransactionOptions,
    ) -> Result<(TransactionId, Vec<(DictionaryId, Bytes)>)>;
    /// Begins a transaction that brings the changes of one branch, or of a fork, into another
    /// branch when it commits. `settle` is called for keys that both sides have changed.
    fn merge(&self, merge: &Merge, settle: &SettleKey<'_>) -> Result<Merging> {
        let _ = (merge, settle);
        Err(kvdb::Error::Invalid("clones are merged with their files, and here are none".into()))
    }
    /// Ends a transaction and begins another one with the same options and the same changes,
    /// based on the current state. If there are conflicts, the transaction is unchanged. `settle`
    /// is called for keys that others have changed as well, and `finish` is called before the
    /// transaction ends. In `choices`, *ours* is the version of the transaction.
    fn rebase(
        &self,
        id: TransactionId,
        choices: &[(Vec<u8>, Preferred)],
        settle: &SettleKey<'_>,
        finish: &FinishRebase<'_>,
    ) -> Result<Rebased> {
        let _ = (id, choices, settle, finish);
        let what = "transactions are rebased with their files, and here are none";
        Err(kvdb::Error::Invalid(what.into()))
    }
    /// Makes the changes that a durable transaction has made so far durable.
    fn keep(&self, id: TransactionId) -> Result<()>;
    /// Marks the current state of a transaction.
    fn savepoint(&self, transaction: &Transaction) -> Result<Savepoint>;
    /// Rolls a transaction back to a savepoint.
    fn rollback(&self, transaction: &Transaction, to: &Savepoint) -> Result<()>;
    /// Returns the changes of a transaction to files, sorted by path. With `collapsed`, most
    /// entries below an added or removed directory are only counted.
    fn files(&self, id: TransactionId, collapsed: bool) -> Result<Vec<FileChange>>;
    /// Describes keys of a reserved dictionary, with the names that files have in a transaction.
    fn describe(
        &self,
        id: TransactionId,
        dictionary: &str,
        start: &[u8],
        end: &[u8],
    ) -> Option<String> {
        let _ = (id, dictionary, start, end);
        None
    }
    /// Returns the reserved dictionaries of a branch whose keys show which of its files a commit
    /// has changed.
    fn followed(&self, branch: &str) -> Vec<DictionaryId> {
        let _ = branch;
        Vec::new()
    }
    /// Returns the paths of the files that the changes of one commit to these dictionaries of a
    /// branch affect.
    fn paths(&self, branch: &str, changes: &[(DictionaryId, CommittedKey)]) -> Result<Paths> {
        let _ = (branch, changes);
        Ok(Paths::default())
    }
    /// Commits everything that programs have written to files of a branch before this call,
    /// including data in the kernel's cache. The commit need not be on disk when this call
    /// returns.
    fn settle(&self, branch: &str) -> Result<()> {
        let _ = branch;
        Ok(())
    }
    /// Commits the data that programs have written to files and that is not yet part of a commit.
    /// It is called before a change that is on disk at once, so that the data written before is
    /// on disk with it.
    fn commit_written(&self) -> Result<()> {
        Ok(())
    }
    /// Waits until everything that was acknowledged so far is on disk, including files.
    fn sync(&self) -> Result<()>;
}

/// The host of snapshots and clones, which creates and removes them. It is the store itself or
/// its file system, as for [`Transactions`].
pub trait Snapshots: Send + Sync {
    /// Makes a snapshot of the main branch (`""`) or of a clone.
    fn create(&self, branch: &str, name: &str, durability: Durability) -> Result<()>;
    /// Removes a snapshot.
    fn remove(&self, name: &str) -> Result<()>;
    /// Restores the branch of a snapshot to the state of the snapshot.
    fn roll_back(&self, name: &str) -> Result<()>;
    /// Makes a clone of a snapshot.
    fn branch_off(&self, snapshot: &str, name: &str) -> Result<()>;
    /// Removes a clone.
    fn remove_clone(&self, name: &str) -> Result<()>;
    /// Receives a stream of [`Kvdb::send`] into a clone.
    fn receive(&self, input: &mut dyn Read, options: &ReceiveOptions) -> Result<ReceiveStats>;
    /// Returns the number of files that belong only to a clone, or `None` if the store has no
    /// files.
    fn files_of(&self, clone: &str) -> Result<Option<u64>> {
        let _ = clone;
        Ok(None)
    }
    /// Returns the differences in files between a snapshot and another one, or the current state,
    /// sorted by path. `collapsed` has the same meaning as in [`Transactions::files`].
    fn files(&self, before: &str, after: Option<&str>, collapsed: bool) -> Result<Vec<FileChange>>;
    /// Returns the differences in files between two states of the store.
    fn files_between(
        &self,
        before: &View,
        after: &View,
        collapsed: bool,
    ) -> Result<Vec<FileChange>> {
        let _ = (before, after, collapsed);
        Ok(Vec::new())
    }
}

/// A store without files.
impl Snapshots for Kvdb {
    fn create(&self, branch: &str, name: &str, durability: Durability) -> Result<()> {
        self.snapshot_of(branch, name, durability)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.drop_snapshot(name)
    }
    fn roll_back(&self, name: &str) -> Result<()> {
        self.rollback(name)
    }
    fn branch_off(&self, snapshot: &str, name: &str) -> Result<()> {
        self.clone_snapshot(snapshot, name)
    }
    fn remove_clone(&self, name: &str) -> Result<()> {
        self.drop_branch(name)
    }
    fn receive(&self, input: &mut dyn Read, options: &ReceiveOptions) -> Result<ReceiveStats> {
        Kvdb::receive(self, input, options)
    }
    fn files(&self, _: &str, _: Option<&str>, _: bool) -> Result<Vec<FileChange>> {
        Ok(Vec::new())
    }
}

/// A store without files.
impl Transactions for Kvdb {
    fn begin(&self, options: TransactionOptions) -> Result<TransactionId> {
        Ok(self.begin_with(options)?.id())
    }
    fn commit(&self, id: TransactionId, options: CommitOptions) -> Result<()> {
        // The commit may wait for longer than the idle limit of the transaction.
        let transaction = self.transaction(id)?;
        transaction.in_use(|| transaction.commit_with(options))
    }
    fn revision(&self, id: TransactionId) -> Result<Revision> {
        self.transaction(id)?.revision()
    }
    fn abort(&self, id: TransactionId) -> Result<()> {
        self.transaction(id)?.abort();
        Ok(())
    }
    fn undo(
        &self,
        commit: u64,
        options: TransactionOptions,
    ) -> Result<(TransactionId, Vec<(DictionaryId, Bytes)>)> {
        let (before, after) = self.states_around(commit)?;
        let all = [&before, &after].into_iter().flat_map(|state| state.dictionaries());
        let all: BTreeSet<DictionaryId> = all.map(|d| d.id).collect();
        let all: Vec<DictionaryId> = all.into_iter().collect();
        let options =
            TransactionOptions { isolation: Isolation::Snapshot, detached: true, ..options };
        let transaction = self.begin_with(options)?;
        let changed = transaction.change_back(&all, &before, &after);
        Ok((transaction.id(), changed.inspect_err(|_| transaction.abort())?))
    }
    fn keep(&self, id: TransactionId) -> Result<()> {
        self.transaction(id)?.sync()
    }
    fn savepoint(&self, transaction: &Transaction) -> Result<Savepoint> {
        transaction.savepoint()
    }
    fn rollback(&self, transaction: &Transaction, to: &Savepoint) -> Result<()> {
        transaction.rollback_to(to)
    }
    fn files(&self, id: TransactionId, _: bool) -> Result<Vec<FileChange>> {
        self.transaction(id).map(|_| Vec::new())
    }
    fn sync(&self) -> Result<()> {
        Kvdb::sync(self)
    }
}

/// A savepoint of a transaction, with its name.
pub struct Named {
    pub name: Vec<u8>,
    pub savepoint: Savepoint,
    /// The number of effects that were collected before the savepoint.
    pub effects: usize,
}

/// The state that all connections in one transaction share.
pub struct TransactionState {
    /// Locks that make read-modify-write commands of this transaction atomic. They are separate
    /// from the store's locks, because a command that holds one of them may wait for another
    /// transaction, whose commands must be able to continue.
    pub locks: KeyLocks,
    /// Savepoints with their names. If several have the same name, the last one counts.
    pub savepoints: Mutex<Vec<Named>>,
    /// Effects of the commit. It is `None` after the commit, when later effects are carried out
    /// at once.
    pub effects: Mutex<Option<Effects>>,
}

impl Default for TransactionState {
    fn default() -> Self {
        let (locks, savepoints) = (KeyLocks::default(), Mutex::default());
        TransactionState { locks, savepoints, effects: Mutex::new(Some(Effects::default())) }
    }
}

/// The states of open transactions.
pub struct TransactionStates {
    all: Mutex<HashMap<TransactionId, Arc<TransactionState>>>,
    /// Transactions that were open before the server started. The effects of their changes are no
    /// longer known.
    older: BTreeSet<TransactionId>,
}

impl TransactionStates {
    pub fn of_store(db: &Kvdb) -> TransactionStates {
        let older = db.transactions().into_iter().map(|info| info.id).collect();
        TransactionStates { all: Mutex::default(), older }
    }

    /// Returns whether a transaction was open before the server started.
    pub fn is_older(&self, id: TransactionId) -> bool {
        self.older.contains(&id)
    }

    pub fn of(&self, db: &Kvdb, id: TransactionId) -> Arc<TransactionState> {
        let mut all = self.all.lock();
        if let Some(state) = all.get(&id) {
            return state.clone();
        }
        let open: std::collections::HashSet<TransactionId> =
            db.transactions().into_iter().map(|info| info.id).collect();
        all.retain(|id, _| open.contains(id));
        all.entry(id).or_default().clone()
    }

    /// Removes and returns the state of a transaction that has ended, if connections were in it.
    pub fn end(&self, id: TransactionId) -> Option<Arc<TransactionState>> {
        self.all.lock().remove(&id)
    }
}
