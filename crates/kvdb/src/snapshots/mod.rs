//! Snapshots, and branches made of them.
//!
//! A snapshot is the dictionaries of one branch as they stand at one point of the manifest's edits:
//! it shares every run, and costs a few pointers. It is made by closing the memtables, with a
//! record in the journal; they are flushed behind it, and the flush that brings exactly them into
//! runs writes the snapshot into the manifest. Until then its memtables are read where they are.
//!
//! A clone is a branch: new dictionaries whose first runs are those of a snapshot. A rollback gives
//! a branch's dictionaries the runs of a snapshot, and declares void what the journal has of them.
//!
//! - `create`: making, opening and dropping them;
//! - `branches`: clones, rollbacks;
//! - `difference`: what two states differ in;
//! - `stream`: their form on the way to another store; `send`, `receive`.

mod branches;
mod create;
mod difference;
mod receive;
mod send;
pub(crate) mod stream;

use std::time::Duration;

pub use difference::{Change, Difference};
pub use receive::{ReceiveOptions, ReceiveStats};
pub use send::SendStats;
pub use stream::Received;

use crate::commit::batch::Durability;
use crate::dictionary::{DictionaryId, DictionaryInfo, DictionaryOptions};
use crate::error::{Error, Result};
use crate::read::view::View;
use crate::{Dictionary, Kvdb};

/// Longest name of a snapshot or a branch, bytes.
pub const MAX_SNAPSHOT_NAME: usize = 255;

/// A snapshot as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// The branch that it is of; empty: the main one.
    pub branch: String,
    /// Tells it from all others; it keeps it when it is sent to another store.
    pub id: [u8; 16],
    /// When it was made, since 1970.
    pub created: Duration,
    /// Commits up to this one are in it.
    pub seq: u64,
    /// Dictionaries in it.
    pub dictionaries: usize,
    /// Bytes of its runs, shared with others or not.
    pub bytes: u64,
    /// Bytes that dropping it alone gives back, as far as is known without reading: whole zones
    /// that nothing else keeps.
    pub unique_bytes: u64,
}

/// A branch as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchInfo {
    /// Its name.
    pub name: String,
    /// The snapshot that it was cloned from, if it was.
    pub snapshot: Option<String>,
}

/// A name that may be a file's as well.
fn check_name(what: &str, name: &str) -> Result<()> {
    let bad = match name {
        _ if name.is_empty() || name.len() > MAX_SNAPSHOT_NAME => {
            format!("has 1 to {MAX_SNAPSHOT_NAME} bytes, not {}", name.len())
        }
        _ if name.starts_with('.') => "does not begin with a dot".into(),
        _ if name.contains(|c: char| c == '/' || c.is_control()) => {
            "has no slash and no control characters".into()
        }
        _ => return Ok(()),
    };
    Err(Error::Invalid(format!("the name of a {what} {bad}: {name:?}")))
}

/// Snapshots that begin with a dot are the store's own: what durable transactions read, which
/// others neither see nor drop.
fn is_own(name: &str) -> bool {
    name.starts_with('.')
}

fn check_visible(snapshot: &str) -> Result<()> {
    if is_own(snapshot) { Err(Error::NoSnapshot(snapshot.into())) } else { Ok(()) }
}

impl Kvdb {
    /// Makes a snapshot of the main branch: everything committed before this call, for as long as
    /// it is not dropped. It takes the time of a synced commit whatever the store holds, and is
    /// durable when this returns.
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

    /// Makes a snapshot of any branch. A buffered one is on disk together with the commits before
    /// it.
    pub fn snapshot_of(&self, branch: &str, name: &str, durability: Durability) -> Result<()> {
        check_name("snapshot", name)?;
        if !branch.is_empty() {
            check_name("branch", branch)?;
        }
        self.db.0.snapshot(branch, name, durability)
    }

    /// All snapshots, the oldest first.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.db.0.list_snapshots().into_iter().filter(|s| !is_own(&s.name)).collect()
    }

    /// The store, or that branch of it, as it was when the snapshot was made. The view outlives the
    /// snapshot. Its dictionaries have the numbers that they had; see [`View::dictionary`].
    pub fn open_snapshot(&self, name: &str) -> Result<View> {
        check_visible(name)?;
        self.db.0.open_snapshot(name)
    }

    /// Drops a snapshot, durably, in a time that does not depend on what is in it. Clones and views
    /// of it stay.
    pub fn drop_snapshot(&self, name: &str) -> Result<()> {
        check_visible(name)?;
        self.db.0.drop_snapshot(name)
    }

    /// Makes a branch out of a snapshot: for each of its dictionaries a new one of the same name,
    /// options and contents, that shares all data and goes its own way from here on. Durable when
    /// this returns, and as quick as a snapshot.
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
        self.db.0.clone_snapshot(snapshot, branch)
    }

    /// Makes a branch without dictionaries.
    pub fn create_branch(&self, name: &str) -> Result<()> {
        check_name("branch", name)?;
        self.db.0.create_branch(name)
    }

    /// The branches other than the main one, by name.
    pub fn branches(&self) -> Vec<BranchInfo> {
        let version = self.db.0.versions.load();
        let all = version.branches.iter().filter(|(name, _)| !name.starts_with('.'));
        let of = |snapshot: &String| Some(snapshot.clone()).filter(|s| !s.is_empty());
        all.map(|(name, from)| BranchInfo { name: name.clone(), snapshot: of(from) }).collect()
    }

    /// Drops a branch and its dictionaries, durably. Its snapshots stay.
    pub fn drop_branch(&self, name: &str) -> Result<()> {
        check_name("branch", name)?;
        self.db.0.drop_branch(name)
    }

    /// Gives the branch that the snapshot is of the state that it had then, durably and as one
    /// step: what was committed to it since is gone, dictionaries made since are gone, those
    /// dropped since are back. Dictionaries keep their numbers. Views and other snapshots, newer
    /// ones too, stay; transactions that began before cannot commit to what was rolled back.
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
        self.db.0.roll_back(snapshot)
    }

    /// The dictionary of that name in a branch.
    pub fn dictionary_in(&self, branch: &str, name: &str) -> Option<DictionaryId> {
        self.db.0.versions.dictionary(branch, name)
    }

    /// The dictionary of that name in a branch, made if it does not exist (durable before this
    /// returns).
    pub fn create_dictionary_in(
        &self,
        branch: &str,
        name: &str,
        options: DictionaryOptions,
    ) -> Result<DictionaryId> {
        self.db.0.create_dictionary(branch, name, options)
    }

    /// The dictionary of a branch, made with default options if it does not exist, as a handle.
    pub fn open_dictionary_in(&self, branch: &str, name: &str) -> Result<Dictionary> {
        let id = self.create_dictionary_in(branch, name, DictionaryOptions::default())?;
        Ok(Dictionary::of(self, id))
    }

    /// The dictionaries of a branch, by number.
    pub fn dictionaries_in(&self, branch: &str) -> Vec<DictionaryInfo> {
        let version = self.db.0.versions.load();
        version.trees.values().filter(|t| t.info.branch == branch).map(|t| t.info.clone()).collect()
    }
}

impl View {
    /// The dictionary of that name: in the view of a snapshot, whatever its branch; else in the
    /// main branch.
    pub fn dictionary(&self, name: &str) -> Option<DictionaryId> {
        self.dictionary_in("", name)
    }

    /// The dictionary of that name in a branch.
    pub fn dictionary_in(&self, branch: &str, name: &str) -> Option<DictionaryId> {
        self.version
            .trees
            .values()
            .find(|t| t.info.name == name && t.info.branch == branch)
            .map(|t| t.info.id)
    }

    /// All dictionaries that it sees, by number; those of a snapshot are listed as of the main
    /// branch.
    pub fn dictionaries(&self) -> Vec<DictionaryInfo> {
        self.version.trees.values().map(|t| t.info.clone()).collect()
    }
}
