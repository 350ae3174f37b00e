//! Snapshots, and branches made of them.
//!
//! A snapshot is the dictionaries of one branch as of one point in the manifest's sequence of
//! edits: it shares every run, and costs a few pointers. It is made by sealing the memtables, with
//! a record in the journal. They are flushed afterwards, and the flush that writes exactly these
//! memtables to runs also writes the snapshot to the manifest. Until then the snapshot's memtables
//! are read in memory.
//!
//! A clone is a branch: new dictionaries whose first runs are those of a snapshot. A rollback gives
//! a branch's dictionaries the runs of a snapshot, and declares their records in the journal void.
//!
//! - `create`: creates, opens and drops snapshots;
//! - `branches`: clones, rollbacks and drops of branches;
//! - `bases`: states that a clone and its parent have in common;
//! - `fork_bases`: states that a fork has in common with the stores that it was forked from;
//! - `limits`: limits of clones;
//! - `held`: estimates the space that only snapshots keep;
//! - `difference`: the difference between two states;
//! - `stream`: the format in which snapshots are sent to another store (`db::send`, `db::receive`);
//! - `stream_end`: detects whether a relayed stream is complete.

mod bases;
mod branches;
mod create;
mod difference;
mod fork_bases;
mod held;
mod limits;
pub(crate) mod stream;
mod stream_end;

use std::sync::Arc;
use std::time::Duration;

pub use bases::Lineage;
pub(crate) use bases::shown_origin;
pub(crate) use create::EndOfGeneration;
pub use difference::{Change, Difference};
pub use fork_bases::ForkBase;
pub use limits::BranchLimit;
use limits::Limits;
pub use stream::{BuildsUpon, Received};
pub use stream_end::StreamEnd;

use crate::background::{Admission, Compactor, Flusher};
use crate::commit::Committer;
use crate::dictionary::{DictionaryId, DictionaryInfo};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::read::view::View;
use crate::version::tree::Tree;

/// Longest name of a snapshot or a branch, bytes.
pub const MAX_SNAPSHOT_NAME: usize = 255;

/// Makes and drops snapshots and branches.
pub(crate) struct Snapshotter {
    engine: Engine,
    commits: Arc<Committer>,
    flusher: Arc<Flusher>,
    compactor: Arc<Compactor>,
    admission: Arc<Admission>,
    limits: Limits,
}

impl Snapshotter {
    pub(crate) fn new(
        engine: Engine,
        commits: Arc<Committer>,
        flusher: Arc<Flusher>,
        compactor: Arc<Compactor>,
        admission: Arc<Admission>,
    ) -> Snapshotter {
        let limits = Limits::new(&engine.versions.load());
        Snapshotter { engine, commits, flusher, compactor, admission, limits }
    }
}

/// An entry in the listing of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// The branch that it belongs to; empty for the main one.
    pub branch: String,
    /// A unique id, which it keeps when it is sent to another store.
    pub id: [u8; 16],
    /// When it was made, since 1970.
    pub created: Duration,
    /// Commits up to this one are contained in it.
    pub seq: u64,
    /// The number of its dictionaries.
    pub dictionaries: usize,
    /// Bytes of its runs, shared with others or not.
    pub bytes: u64,
    /// Approximate bytes that dropping only this snapshot frees: whole zones that nothing else
    /// uses, and, by a sample, data in shared zones that was overwritten or deleted since. The
    /// latter is freed by the next merge or defragmentation.
    pub unique_bytes: u64,
}

/// An entry in the listing of branches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchInfo {
    /// Its name.
    pub name: String,
    /// The name of the snapshot that it was cloned from, if it was. That snapshot may have been
    /// dropped; once another one has its name, this is `None`.
    pub snapshot: Option<String>,
    /// The branch whose state that snapshot has; `""` is the main one. It may have been dropped.
    /// This is `None` if the branch was not made of a state that this store has.
    pub parent: Option<String>,
    /// The limit of its own bytes, with the bytes that it uses, if it has one: see
    /// [`crate::Kvdb::limit_branch`].
    pub limit: Option<BranchLimit>,
    /// The number of files that it may have of its own, if that is limited. See
    /// [`crate::Kvdb::limit_files`].
    pub limit_of_files: Option<u64>,
}

/// Checks a name. Its parts between slashes must be usable as file names, and so must the whole
/// name if each slash takes three bytes.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    let length = name.len() + 2 * name.matches('/').count();
    let bad = match name {
        _ if name.is_empty() || name.len() > MAX_SNAPSHOT_NAME => {
            format!("has 1 to {MAX_SNAPSHOT_NAME} bytes, not {}", name.len())
        }
        _ if length > MAX_SNAPSHOT_NAME => {
            format!("has 1 to {MAX_SNAPSHOT_NAME} bytes, each slash for three, not {length}")
        }
        _ if name.starts_with('.') => "does not begin with a dot".into(),
        _ if name.contains(char::is_control) => "has no control characters".into(),
        _ if name.split('/').any(str::is_empty) => {
            "neither begins nor ends with a slash, and has no two of them together".into()
        }
        _ if name.split('/').any(|part| part.starts_with('.')) => {
            "has no dot at the beginning of a part between slashes".into()
        }
        _ => return Ok(()),
    };
    Err(Error::Invalid(format!("the name of a {what} {bad}: {name:?}")))
}

/// Returns whether a snapshot is internal, such as the states that durable transactions read. Its
/// name begins with a dot, and users neither see nor drop it.
pub(crate) fn is_own(name: &str) -> bool {
    name.starts_with('.')
}

pub(crate) fn check_visible(snapshot: &str) -> Result<()> {
    if is_own(snapshot) { Err(Error::NoSnapshot(snapshot.into())) } else { Ok(()) }
}

impl View {
    /// Finds a dictionary by name: in the view of a snapshot, in its branch; otherwise in the main
    /// branch.
    pub fn dictionary(&self, name: &str) -> Option<DictionaryId> {
        self.dictionary_in("", name)
    }

    /// Finds a dictionary by name in a branch.
    pub fn dictionary_in(&self, branch: &str, name: &str) -> Option<DictionaryId> {
        self.version.find(branch, name)
    }

    /// Lists all dictionaries that it sees, by number; those of a snapshot are listed as of the
    /// main branch.
    pub fn dictionaries(&self) -> Vec<DictionaryInfo> {
        self.version.trees.values().map(|tree| self.info_of(tree)).collect()
    }

    /// Returns the name and the options of a dictionary that it sees; a dictionary of a snapshot is
    /// returned as one of the main branch.
    pub fn dictionary_info(&self, dict: DictionaryId) -> Option<DictionaryInfo> {
        self.version.trees.get(&dict).map(|tree| self.info_of(tree))
    }

    fn info_of(&self, tree: &Tree) -> DictionaryInfo {
        let info = tree.info().to_info();
        // The version of a snapshot has no branches.
        match self.version.has_branch(&info.branch) {
            true => info,
            false => DictionaryInfo { branch: String::new(), ..info },
        }
    }

    /// Lists the dictionaries of one branch, by number; those of a snapshot are listed as of the
    /// main branch.
    pub fn dictionaries_in(&self, branch: &str) -> Vec<DictionaryInfo> {
        if self.version.is_of_snapshot() {
            return if branch.is_empty() { self.dictionaries() } else { Vec::new() };
        }
        let of_branch = self.version.of_branch(branch);
        of_branch.values().map(|tree| tree.info().to_info()).collect()
    }
}
