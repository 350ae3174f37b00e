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
//! - `bases`: states that a clone and its parent have in common;
//! - `fork_bases`: states that a fork has in common with the stores that it comes from;
//! - `limits`: how much clones may take;
//! - `held`: what they keep of the device that nothing else keeps;
//! - `difference`: what two states differ in;
//! - `stream`: their form on the way to another store (`db::send`, `db::receive`);
//! - `stream_end`: whether such a stream is all there, for who passes it on.

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

use env::Env;

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
use crate::commit::CommitPipeline;
use crate::dictionary::{DictionaryId, DictionaryInfo};
use crate::error::{Error, Result};
use crate::health::Health;
use crate::read::snapshot_set::Snapshots;
use crate::read::version_set::VersionSet;
use crate::read::view::View;
use crate::signals::Signals;

/// Longest name of a snapshot or a branch, bytes.
pub const MAX_SNAPSHOT_NAME: usize = 255;

/// Makes and drops snapshots and branches.
pub(crate) struct Snapshotter {
    /// Nothing runs by itself.
    inline: bool,
    env: Arc<dyn Env>,
    health: Arc<Health>,
    signals: Arc<Signals>,
    versions: Arc<VersionSet>,
    snapshots: Arc<Snapshots>,
    commits: Arc<CommitPipeline>,
    flusher: Arc<Flusher>,
    compactor: Arc<Compactor>,
    admission: Arc<Admission>,
    limits: Limits,
}

/// The parts of the engine that it needs.
pub(crate) struct SnapshotterParts {
    pub inline: bool,
    pub env: Arc<dyn Env>,
    pub health: Arc<Health>,
    pub signals: Arc<Signals>,
    pub versions: Arc<VersionSet>,
    pub snapshots: Arc<Snapshots>,
    pub commits: Arc<CommitPipeline>,
    pub flusher: Arc<Flusher>,
    pub compactor: Arc<Compactor>,
    pub admission: Arc<Admission>,
}

impl Snapshotter {
    pub(crate) fn new(parts: SnapshotterParts) -> Snapshotter {
        let SnapshotterParts {
            inline,
            env,
            health,
            signals,
            versions,
            snapshots,
            commits,
            flusher,
            compactor,
            admission,
        } = parts;
        let limits = Limits::new(&versions.load());
        Snapshotter {
            inline,
            env,
            health,
            signals,
            versions,
            snapshots,
            commits,
            flusher,
            compactor,
            admission,
            limits,
        }
    }
}

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
    /// About the bytes that dropping it alone gives back: whole zones that nothing else keeps, and
    /// what was overwritten or deleted since and lies in zones that others have, too, by a sample.
    /// The latter comes back with the next merge or defragmentation.
    pub unique_bytes: u64,
}

/// A branch as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchInfo {
    /// Its name.
    pub name: String,
    /// The name of the snapshot that it was cloned from, if it was. That one may be gone; once
    /// another one has its name, it is not told any more.
    pub snapshot: Option<String>,
    /// The bytes that it may take, if they are limited: see [`crate::Kvdb::limit_branch`].
    pub limit: Option<BranchLimit>,
    /// The files that it may have of its own, if they are limited: see
    /// [`crate::Kvdb::limit_files`].
    pub limit_of_files: Option<u64>,
}

/// A name whose parts between slashes may be names of files, and that as a whole may be one where a
/// slash takes three bytes.
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

/// Snapshots that begin with a dot are the store's own: what durable transactions read, which
/// others neither see nor drop.
pub(crate) fn is_own(name: &str) -> bool {
    name.starts_with('.')
}

pub(crate) fn check_visible(snapshot: &str) -> Result<()> {
    if is_own(snapshot) { Err(Error::NoSnapshot(snapshot.into())) } else { Ok(()) }
}

impl View {
    /// The dictionary of that name: in the view of a snapshot, whatever its branch; else in the
    /// main branch.
    pub fn dictionary(&self, name: &str) -> Option<DictionaryId> {
        self.dictionary_in("", name)
    }

    /// The dictionary of that name in a branch.
    pub fn dictionary_in(&self, branch: &str, name: &str) -> Option<DictionaryId> {
        self.version.find(branch, name)
    }

    /// All dictionaries that it sees, by number; those of a snapshot are listed as of the main
    /// branch.
    pub fn dictionaries(&self) -> Vec<DictionaryInfo> {
        // The version of a snapshot has no branches.
        let of_main = |info: DictionaryInfo| match self.version.has_branch(&info.branch) {
            true => info,
            false => DictionaryInfo { branch: String::new(), ..info },
        };
        self.version.trees.values().map(|t| of_main(t.info().clone())).collect()
    }

    /// The dictionaries of one branch, by number; those of a snapshot are listed as of the main
    /// branch.
    pub fn dictionaries_in(&self, branch: &str) -> Vec<DictionaryInfo> {
        if self.version.is_of_snapshot() {
            return if branch.is_empty() { self.dictionaries() } else { Vec::new() };
        }
        let of_branch = self.version.of_branch(branch);
        of_branch.values().map(|tree| tree.info().clone()).collect()
    }
}
