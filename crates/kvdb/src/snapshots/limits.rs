//! Limits of clones: the bytes that a clone may use of its own, in addition to those of the
//! snapshot that it was made of and the states that it was merged or rebased at.
//!
//! Runs are counted by zones: the bytes of each zone that the clone uses in excess of each of those
//! states. They are counted again when the runs of the clone have changed. Memtables are counted
//! with the large values that they refer to. The runs of a transaction are counted as they will be
//! after its commit, so values that a rebase puts by reference count as nothing: the state that the
//! clone is rebased onto has them. If a change would exceed the limit, the clone is
//! flushed and its own runs are merged, provided that data was deleted in it or it has grown by an
//! eighth since the last time. A caller at the limit tries this with each change; the condition
//! bounds the number of times that a byte is merged.

use env::sync::Mutex;
use env::sync::atomic::{AtomicBool, Ordering};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use vt_tree::Run;
use zones::{ZoneId, ZoneUse};

use super::Snapshotter;
use crate::commit::batch::Batch;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::manifest::{DictionaryState, Edit};
use crate::read::view::View;
use crate::version::snapshot_set::Snapshot;
use crate::version::version_set::VersionEdit;
use crate::version::{Trees, Version};

/// The limit of a clone's own bytes, and the bytes that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchLimit {
    /// Maximum bytes that it may use of its own.
    pub bytes: u64,
    /// Bytes that it uses of its own.
    pub taken: u64,
}

impl BranchLimit {
    /// Returns the bytes that it may still take.
    pub fn room(self) -> u64 {
        self.bytes.saturating_sub(self.taken)
    }
}

/// The result of the last measurement of a clone.
#[derive(Default)]
struct Found {
    /// The entries of its dictionaries that were measured.
    entries: Vec<Arc<DictionaryState>>,
    in_runs: u64,
    /// Bytes that the clone used after it was last merged for its limit.
    gathered: u64,
    /// Set if data was deleted since.
    removed: bool,
}

/// The branches with limits.
#[derive(Default)]
pub(super) struct Limits {
    /// Set if a branch has a limit of bytes, or had one since the store was opened.
    any: AtomicBool,
    /// Set if a branch has a limit of files, or had one since the store was opened.
    any_of_files: AtomicBool,
    found: Mutex<HashMap<String, Found>>,
}

impl Limits {
    pub(super) fn new(version: &Version) -> Limits {
        Limits {
            any: AtomicBool::new(!version.limits.is_empty()),
            any_of_files: AtomicBool::new(!version.limits_of_files.is_empty()),
            found: Mutex::default(),
        }
    }

    /// Forgets the measurement of a branch that was dropped or has a new limit.
    pub(super) fn forget(&self, branch: &str) {
        self.found.lock().remove(branch);
    }
}

/// Returns the bytes that dictionaries use of each zone.
fn used_by(trees: &Trees) -> HashMap<ZoneId, u64> {
    let mut all = HashMap::new();
    for numbered in trees.values().flat_map(|tree| tree.runs()) {
        for (zone, bytes) in numbered.run.uses().iter() {
            let used: &mut u64 = all.entry(zone).or_default();
            *used = used.saturating_add(bytes);
        }
    }
    all
}

fn runs_of(trees: &Trees) -> Vec<*const Run> {
    trees.values().flat_map(|tree| tree.runs()).map(|p| Arc::as_ptr(&p.run)).collect()
}

impl Snapshotter {
    /// Limits the bytes that a branch may use of its own. `None` removes the limit.
    pub(crate) fn limit_branch(&self, branch: &str, bytes: Option<u64>) -> Result<()> {
        // A limit of 0 becomes 1, since 0 means no limit; one byte leaves no room either.
        let bytes = bytes.map_or(0, |bytes| bytes.max(1));
        self.edit_limit(branch, Edit::Limit { branch: branch.into(), bytes }, &self.limits.any)
    }

    /// Limits the number of files that a branch may have in addition to its origin's. `None`
    /// removes the limit.
    pub(crate) fn limit_files(&self, branch: &str, files: Option<u64>) -> Result<()> {
        let below = files.map_or(0, |files| files.saturating_add(1));
        let edit = Edit::LimitFiles { branch: branch.into(), below };
        self.edit_limit(branch, edit, &self.limits.any_of_files)
    }

    /// Installs the edit of a limit, and notes in `any` that there is one.
    fn edit_limit(&self, branch: &str, edit: Edit, any: &AtomicBool) -> Result<()> {
        self.engine.health.writable()?;
        if branch.is_empty() {
            return Err(Error::Invalid("the store itself has no limit but its size".into()));
        }
        self.commits.flush_before_edit(&*self.admission)?;
        let _naming = self.engine.snapshots.naming.lock();
        if !self.engine.versions.load().has_branch(branch) {
            return Err(Error::NoBranch(branch.into()));
        }
        self.limits.forget(branch);
        any.store(true, Ordering::Release);
        self.commits.install(|_| VersionEdit::of([edit]))
    }

    /// Returns the branch of a dictionary and the files that it may have, if they are limited.
    pub(crate) fn limit_of_files(&self, dict: DictionaryId) -> Option<(String, u64)> {
        if !self.limits.any_of_files.load(Ordering::Acquire) {
            return None;
        }
        let version = self.engine.versions.load();
        let branch = &version.get(dict)?.info().branch;
        version.limits_of_files.get(&**branch).map(|&files| (branch.to_string(), files))
    }

    /// Returns the states that the branch of a dictionary has in common with others.
    pub(crate) fn states_beneath(&self, dict: DictionaryId) -> Option<Vec<View>> {
        let version = self.engine.versions.load_full();
        let branch = &version.get(dict)?.info().branch;
        let states = || self.states_in_common(&version, branch).map(|state| self.open(&state));
        (!branch.is_empty()).then(|| states().collect())
    }

    /// Returns whether a branch has a limit.
    pub(crate) fn is_limited(&self, branch: &str) -> bool {
        self.limits.any.load(Ordering::Acquire)
            && self.engine.versions.load().limits.contains_key(branch)
    }

    /// Returns the limit of a branch, and the bytes that it uses. Returns `None` if it has no
    /// limit.
    pub(crate) fn branch_limit(&self, branch: &str) -> Option<BranchLimit> {
        if !self.limits.any.load(Ordering::Acquire) {
            return None;
        }
        let version = self.engine.versions.load();
        let bytes = *version.limits.get(branch)?;
        Some(BranchLimit { bytes, taken: self.taken(&version, branch) })
    }

    /// Returns the branch of a dictionary if that branch has a limit.
    pub(crate) fn limited_branch_of(&self, dict: DictionaryId) -> Option<String> {
        if !self.limits.any.load(Ordering::Acquire) {
            return None;
        }
        let version = self.engine.versions.load();
        let branch = &version.get(dict)?.info().branch;
        version.limits.contains_key(&**branch).then(|| branch.to_string())
    }

    /// Fails if a batch would exceed the limit of a clone even after merging.
    pub(crate) fn admit(&self, batch: &Batch) -> Result<()> {
        if !self.limits.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut more: BTreeMap<String, u64> = BTreeMap::new();
        for (dict, bytes) in batch.growth() {
            if let Some(branch) = self.limited_branch_of(dict) {
                *more.entry(branch).or_default() += bytes;
            }
        }
        if batch.removes() {
            let mut all = self.limits.found.lock();
            more.keys().for_each(|branch| all.entry(branch.clone()).or_default().removed = true);
        }
        more.into_iter().try_for_each(|(branch, bytes)| match bytes {
            0 => Ok(()),
            bytes => self.admit_to(&branch, bytes),
        })
    }

    /// Fails if a put would exceed the limit of a clone.
    pub(crate) fn admit_put(&self, dict: DictionaryId, bytes: usize) -> Result<()> {
        match self.limited_branch_of(dict) {
            Some(branch) => self.admit_to(&branch, bytes as u64),
            None => Ok(()),
        }
    }

    /// Fails if a run that was written outside of any commit would exceed the limit of a clone.
    pub(crate) fn admit_run(&self, dict: DictionaryId, run: &Run) -> Result<()> {
        match self.limited_branch_of(dict) {
            Some(branch) => self.admit_to(&branch, run.uses().total_bytes()),
            None => Ok(()),
        }
    }

    fn admit_to(&self, branch: &str, more: u64) -> Result<()> {
        if self.check_limit(branch, more).is_ok() {
            return Ok(());
        }
        self.make_room(branch)?;
        self.check_limit(branch, more)
    }

    /// Fails if a commit of a transaction with `in_memory` bytes in memory and runs of these bytes
    /// would exceed the limit of a branch even after merging.
    pub(crate) fn admit_runs(&self, branch: &str, in_memory: u64, runs: &ZoneUse) -> Result<()> {
        let check = || {
            let alone = self.alone_in_addition(branch, runs);
            self.check_limit(branch, in_memory.saturating_add(alone))
        };
        if check().is_ok() {
            return Ok(());
        }
        self.make_room(branch)?;
        check()
    }

    /// Notes that data of a branch was deleted, so that the next one at the limit merges.
    pub(crate) fn note_removed(&self, branch: &str) {
        self.limits.found.lock().entry(branch.into()).or_default().removed = true;
    }

    /// Fails if `more` bytes would exceed the limit of a branch.
    pub(crate) fn check_limit(&self, branch: &str, more: u64) -> Result<()> {
        match self.branch_limit(branch) {
            Some(limit) if more > limit.room() => {
                Err(Error::CloneOverLimit { branch: branch.into(), limit: limit.bytes })
            }
            _ => Ok(()),
        }
    }

    /// Flushes and merges a branch with a limit if that is likely to free space. The caller must
    /// hold no lock.
    pub(crate) fn make_room(&self, branch: &str) -> Result<()> {
        let Some(BranchLimit { taken, .. }) = self.branch_limit(branch) else { return Ok(()) };
        // A state in common whose flush is pending has no runs yet, so what is shared with it
        // counts until then.
        let waits = self.engine.snapshots.next_pending().is_some();
        {
            let mut all = self.limits.found.lock();
            let found = all.entry(branch.into()).or_default();
            let grown = taken.saturating_sub(found.gathered);
            if !found.removed && grown <= taken / 8 && !waits {
                return Ok(());
            }
            (found.removed, found.gathered) = (false, taken);
        }
        self.flusher.flush_all()?;
        let shared: HashSet<*const Run> = {
            let version = self.engine.versions.load_full();
            let states = self.states_in_common(&version, branch);
            states.flat_map(|state| runs_of(&state.version().trees)).collect()
        };
        for dict in self.dictionaries_of(branch) {
            match self.compactor.compact_newest(dict, |run| !shared.contains(&Arc::as_ptr(run))) {
                // The dictionary was dropped, or there is no space for the merge.
                Err(Error::NoDictionary(_) | Error::NoSpace) => {}
                done => done?,
            }
        }
        let Some(BranchLimit { taken, .. }) = self.branch_limit(branch) else { return Ok(()) };
        self.limits.found.lock().entry(branch.into()).or_default().gathered = taken;
        Ok(())
    }

    /// Returns the bytes that a branch uses of its own.
    fn taken(&self, version: &Version, branch: &str) -> u64 {
        let trees = version.of_branch(branch);
        let in_memory: u64 = trees
            .values()
            .flat_map(|tree| &tree.layers)
            .map(|layer| {
                let memtable = (layer.memtable.bytes() as u64) + layer.memtable.placed_bytes();
                let bound = layer.bound.iter().map(|run| run.uses().total_bytes());
                bound.fold(memtable, u64::saturating_add)
            })
            .sum();
        let entries: Vec<_> = trees.values().map(|tree| tree.entry.clone()).collect();
        let same = |of: &[Arc<DictionaryState>]| {
            of.len() == entries.len() && of.iter().zip(&entries).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        if let Some(found) = self.limits.found.lock().get(branch).filter(|f| same(&f.entries)) {
            return in_memory.saturating_add(found.in_runs);
        }
        let in_runs = self.alone_in_runs(version, branch, &trees);
        let mut all = self.limits.found.lock();
        let found = all.entry(branch.into()).or_default();
        (found.entries, found.in_runs) = (entries, in_runs);
        in_memory.saturating_add(in_runs)
    }

    /// Returns the snapshot that a branch was made of, and the states that it was merged or rebased
    /// at.
    fn states_in_common(
        &self,
        version: &Version,
        branch: &str,
    ) -> impl Iterator<Item = Arc<Snapshot>> {
        let origin = version.branches.get(branch).and_then(|of| self.engine.snapshots.get(of));
        origin.into_iter().chain(self.kept_of(branch))
    }

    /// Returns the bytes that a branch would use of its own in addition, if it got runs that use
    /// these bytes.
    pub(crate) fn alone_in_addition(&self, branch: &str, runs: &ZoneUse) -> u64 {
        if runs.is_empty() {
            return 0;
        }
        let version = self.engine.versions.load_full();
        let shared = self.in_common(&version, branch);
        let used = used_by(&version.of_branch(branch));
        let of = |all: &HashMap<ZoneId, u64>, zone: ZoneId| all.get(&zone).copied().unwrap_or(0);
        let alone = |(zone, bytes): (ZoneId, u64)| {
            bytes.saturating_sub(of(&shared, zone).saturating_sub(of(&used, zone)))
        };
        runs.iter().map(alone).fold(0, u64::saturating_add)
    }

    /// Returns the bytes of each zone that a branch has in common with others.
    fn in_common(&self, version: &Version, branch: &str) -> HashMap<ZoneId, u64> {
        let mut shared: HashMap<ZoneId, u64> = HashMap::new();
        for state in self.states_in_common(version, branch) {
            for (zone, bytes) in used_by(&state.version().trees) {
                let most = shared.entry(zone).or_default();
                *most = bytes.max(*most);
            }
        }
        shared
    }

    /// Returns the bytes in runs of a branch that no common state has.
    fn alone_in_runs(&self, version: &Version, branch: &str, trees: &Trees) -> u64 {
        let shared = self.in_common(version, branch);
        let alone = |(zone, bytes): (ZoneId, u64)| {
            bytes.saturating_sub(shared.get(&zone).copied().unwrap_or(0))
        };
        used_by(trees).into_iter().map(alone).fold(0, u64::saturating_add)
    }
}
