//! Transactions and snapshots of clients: who makes and ends them, and what the connections that
//! are in one transaction share.

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
    /// From the root of the file system, without a slash in front; `/3/…`: from the third anchor of
    /// the list, where it would be longer than a call takes. So are the paths in details.
    pub path: Vec<u8>,
    /// `a` an anchor of the list, `d` a directory, `f` a file, `l` a symbolic link, `o` anything
    /// else; of the entry as it is now, or was.
    pub kind: char,
    /// Bytes before; `None`: it was not there.
    pub before: Option<u64>,
    /// Bytes now; `None`: it is gone.
    pub after: Option<u64>,
    /// What differs; of what was added or is gone, what there is to say about it.
    pub details: Vec<FileDetail>,
}

impl FileChange {
    /// The row of an anchor, a directory at which long paths of the list begin: the first is `/1`.
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

/// One thing in which a file differs: `anchor` (of an anchor: its path), `kind`, `mode`, `owner`,
/// `device`, `content` (without values), `target`, `links` (how many; the same number twice where
/// they are others), `linked-to` (another path of the same file), `below` (of a directory, what
/// lies below it and is not listed: files, directories, bytes, and what has moved with it), `time`
/// (of the last change), or `xattr:` and the name of an extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDetail {
    /// In what it differs.
    pub what: Vec<u8>,
    /// `None`: it was not there.
    pub before: Option<Vec<u8>>,
    /// `None`: it is gone.
    pub after: Option<Vec<u8>>,
}

/// The paths that a commit has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// From the root, without a slash in front, and what has become of each: `made`, `changed` or
    /// `removed`.
    pub paths: Vec<(Vec<u8>, &'static str)>,
    /// There are more than are listed.
    pub more: bool,
}

/// What a copy of a tree of files has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cloned {
    /// Directories made.
    pub directories: u64,
    /// Files made.
    pub files: u64,
    /// Of the files, shared with the originals.
    pub bytes: u64,
}

/// What was removed with a name of a file or a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Directories removed.
    pub directories: u64,
    /// Files removed.
    pub files: u64,
    /// Content of files whose last name went.
    pub bytes: u64,
}

/// Files on their way into a store; dropped before the end it leaves nothing, unless it is in a
/// transaction that was open before.
pub trait Importing: Send {
    /// Takes some entries more, in a form that only the two ends know.
    fn add(&mut self, entries: &[u8]) -> Result<()>;
    /// All have come: they are there, and on disk (in a transaction that was open before: there).
    /// Names and numbers: what was made.
    fn finish(self: Box<Self>) -> Result<Vec<(&'static str, u64)>>;
}

/// Whose files a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The store's own files.
    Store,
    /// Those of a transaction.
    Transaction(TransactionId),
    /// Those of a snapshot.
    Snapshot(String),
    /// Those of a clone.
    Clone(String),
}

/// A walk through files, or an export, that is under way.
pub trait Walking: Send {
    /// Some entries more, in a form that only the two ends know, or bytes of the tar stream;
    /// nothing: that was all.
    fn next(&mut self) -> Result<Vec<u8>>;
}

/// A merge that a client asks for.
#[derive(Clone, Debug, Default)]
pub struct Merge {
    /// The clone that is merged into the branch that it was made of; the name of a fork, if it is
    /// one.
    pub clone: String,
    /// Where the fork of this store is which is merged into it: an address, or the path of a file.
    pub fork: Option<Vec<u8>>,
    /// The branch that it is merged into, where that is not the one that it was made of; `""`: the
    /// main one.
    pub into: Option<String>,
    /// The other way round.
    pub rebase: bool,
    /// It is looked at, and not committed.
    pub dry_run: bool,
    /// Whose version counts at which paths or keys, where both sides have changed the same.
    pub choices: Vec<(Vec<u8>, Preferred)>,
    /// How its transaction begins.
    pub options: TransactionOptions,
}

/// Whose version counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preferred {
    /// The version of the branch that is merged into.
    Ours,
    /// The version of the branch that is merged.
    Theirs,
    /// Both, beside each other.
    Both,
}

/// A merge that has begun.
#[derive(Clone, Debug)]
pub struct Merging {
    /// Its transaction.
    pub id: TransactionId,
    /// The clone that it commits to; empty: the store itself.
    pub into: String,
    /// The clone, or the fork, whose changes these are; empty: the store itself.
    pub from: String,
    /// What both sides have changed.
    pub conflicts: Vec<Conflicting>,
    /// The number of the newest commit that both sides have. `None`: it is not known.
    pub since: Option<u64>,
}

/// A transaction that was to be rebased.
#[derive(Clone, Debug)]
pub struct Rebased {
    /// The transaction that has its changes now; `None`: there are conflicts.
    pub id: Option<TransactionId>,
    /// What both it and others have changed; *ours* is the change of the transaction.
    pub conflicts: Vec<Conflicting>,
}

/// Something that both sides have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicting {
    /// A path, or `dictionary:key`.
    pub path: Vec<u8>,
    /// It is a key.
    pub key: bool,
    /// What the branch has done that is merged into, in a word.
    pub ours: &'static str,
    /// What the other one has done.
    pub theirs: &'static str,
}

/// Settles a key that both have changed, by the name of its dictionary.
pub type SettleKey<'a> = dyn Fn(&str, &Clash<'_>) -> Settled + 'a;

/// Has the last word on a transaction that has got the changes of another one, and may change it.
/// `false`: there are conflicts all the same, which the caller names.
pub type FinishRebase<'a> = dyn Fn(&Transaction) -> Result<bool> + 'a;

/// Who begins and ends transactions. The store itself does where it is nothing but keys; where it
/// is also a file system, files must be ready for it as well.
pub trait Transactions: Send + Sync {
    /// Begins one that stays until it is ended (`detached` is set).
    fn begin(&self, options: TransactionOptions) -> Result<TransactionId>;
    /// Commits one and ends it.
    fn commit(&self, id: TransactionId, options: CommitOptions) -> Result<()>;
    /// The state of what it has changed, files included.
    fn revision(&self, id: TransactionId) -> Result<Revision>;
    /// Ends one without a trace.
    fn abort(&self, id: TransactionId) -> Result<()>;
    /// Begins one that undoes a commit (by its number, see [`Kvdb::undoable_commits`]) when it
    /// commits, and names what others have changed since so that it cannot be undone.
    fn undo(
        &self,
        commit: u64,
        options: TransactionOptions,
    ) -> Result<(TransactionId, Vec<(DictionaryId, Bytes)>)>;
    /// Begins one that brings the changes of one branch, or of a fork, into another branch when it
    /// commits. `settle` is asked about keys that both have changed.
    fn merge(&self, merge: &Merge, settle: &SettleKey<'_>) -> Result<Merging> {
        let _ = (merge, settle);
        Err(kvdb::Error::Invalid("clones are merged with their files, and here are none".into()))
    }
    /// Ends a transaction and begins another one as it was begun, with what it has changed, in the
    /// state that there is now. With conflicts it is as it was. `settle` is asked about keys that
    /// others have changed, too, and `finish` before the transaction ends. Of `choices` *ours* is
    /// the transaction's version.
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
    /// What a durable one has so far is on disk when this returns.
    fn keep(&self, id: TransactionId) -> Result<()>;
    /// Marks the state that it has now.
    fn savepoint(&self, transaction: &Transaction) -> Result<Savepoint>;
    /// Takes it back to a savepoint.
    fn rollback(&self, transaction: &Transaction, to: &Savepoint) -> Result<()>;
    /// What it has changed of the files, sorted by path. `collapsed`: what lies below a directory
    /// that was added or removed is mostly counted.
    fn files(&self, id: TransactionId, collapsed: bool) -> Result<Vec<FileChange>>;
    /// What keys of a reserved dictionary are, with the names that files have in a transaction.
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
    /// Reserved dictionaries of a branch whose keys tell what commits have changed of its files.
    fn followed(&self, branch: &str) -> Vec<DictionaryId> {
        let _ = branch;
        Vec::new()
    }
    /// Returns what the changes of one commit to these dictionaries of a branch are to the files.
    fn paths(&self, branch: &str, changes: &[(DictionaryId, CommittedKey)]) -> Result<Paths> {
        let _ = (branch, changes);
        Ok(Paths::default())
    }
    /// Everything that programs have written to files of a branch before this call is committed
    /// when it returns, what the kernel holds back included; on disk it need not be.
    fn settle(&self, branch: &str) -> Result<()> {
        let _ = branch;
        Ok(())
    }
    /// Everything that was acknowledged is on disk when this returns, files included.
    fn sync(&self) -> Result<()>;
    /// Copies a tree of files by reference, by paths from the root.
    fn clone_tree(&self, whose: Whose, from: &[u8], to: &[u8]) -> Result<Cloned> {
        let _ = (whose, from, to);
        Err(no_files())
    }
    /// The same for several trees of one earlier state, `from` and `to` of each; hard links among
    /// them stay links.
    fn clone_trees(&self, id: TransactionId, places: &[(&[u8], &[u8])]) -> Result<Cloned> {
        let _ = (id, places);
        Err(no_files())
    }
    /// Begins to import files into the directory at a path from the root, which is made if need be:
    /// in a transaction, or of the store or a clone in one of its own that `user` has begun.
    fn import(&self, whose: Whose, to: &[u8], user: Option<u32>) -> Result<Box<dyn Importing>> {
        let _ = (whose, to, user);
        Err(no_files())
    }
    /// Begins to walk through what lies at a path from the root, and below it.
    fn walk(&self, whose: Whose, path: &[u8]) -> Result<Box<dyn Walking>> {
        let _ = (whose, path);
        Err(no_files())
    }
    /// Begins to export what lies at a path from the root, and below it, as a tar stream of one
    /// state; `user` asks for it.
    fn export(&self, whose: Whose, path: &[u8], user: Option<u32>) -> Result<Box<dyn Walking>> {
        let _ = (whose, path, user);
        Err(no_files())
    }
    /// Removes what a path from the root leads to, with all below it.
    fn remove_tree(&self, whose: Whose, path: &[u8]) -> Result<Removed> {
        let _ = (whose, path);
        Err(no_files())
    }
}

fn no_files() -> kvdb::Error {
    kvdb::Error::Invalid("there are no files: the store is not mounted".into())
}

/// Who makes and drops snapshots and clones: as with [`Transactions`].
pub trait Snapshots: Send + Sync {
    /// Of the main branch (`""`) or of a clone.
    fn create(&self, branch: &str, name: &str, durability: Durability) -> Result<()>;
    /// Removes a snapshot.
    fn remove(&self, name: &str) -> Result<()>;
    /// Gives the branch that the snapshot is of the state that it had then.
    fn roll_back(&self, name: &str) -> Result<()>;
    /// Makes a clone of a snapshot.
    fn branch_off(&self, snapshot: &str, name: &str) -> Result<()>;
    /// Removes a clone.
    fn remove_clone(&self, name: &str) -> Result<()>;
    /// Takes a stream of [`Kvdb::send`] into a clone.
    fn receive(&self, input: &mut dyn Read, options: &ReceiveOptions) -> Result<ReceiveStats>;
    /// The files that a clone has of its own; `None`: the store has none.
    fn files_of(&self, clone: &str) -> Result<Option<u64>> {
        let _ = clone;
        Ok(None)
    }
    /// What differs in the files from a snapshot to another, or to what there is now; sorted by
    /// path. `collapsed`: as of a transaction.
    fn files(&self, before: &str, after: Option<&str>, collapsed: bool) -> Result<Vec<FileChange>>;
    /// The same of two states of the store.
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
        self.transaction(id)?.commit_with(options)
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

/// A savepoint of a transaction.
pub struct Named {
    pub name: Vec<u8>,
    pub savepoint: Savepoint,
    /// Effects that were gathered before it.
    pub effects: usize,
}

/// What all connections in one transaction share.
pub struct TransactionState {
    /// Make read-modify-write commands of this transaction atomic. They are apart from the store's
    /// locks, because a command that holds one may wait for another transaction, whose commands
    /// must go on.
    pub locks: KeyLocks,
    /// By name; of several with one name the last counts.
    pub savepoints: Mutex<Vec<Named>>,
    /// What happens when it commits; `None`: it has, so what comes late happens at once.
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
    /// Transactions that were open before the server was: what their changes were to cause is not
    /// known any more.
    older: BTreeSet<TransactionId>,
}

impl TransactionStates {
    pub fn of_store(db: &Kvdb) -> TransactionStates {
        let older = db.transactions().into_iter().map(|info| info.id).collect();
        TransactionStates { all: Mutex::default(), older }
    }

    /// Whether a transaction was open before the server was.
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

    /// The state of a transaction that has ended, if connections were in it.
    pub fn end(&self, id: TransactionId) -> Option<Arc<TransactionState>> {
        self.all.lock().remove(&id)
    }
}
