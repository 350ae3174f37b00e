//! Makes and drops the dictionaries of all branches, and changes their options. Each change is an
//! edit of the manifest, which is durable when the call returns.

use std::collections::BTreeSet;
use std::sync::Arc;

use zones::Priority;

use crate::background::Admission;
use crate::commit::Committer;
use crate::commit::order::Changed;
use crate::dictionary::{DictionaryId, DictionaryInfo, DictionaryOptions, MAX_DICTIONARY_NAME};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::manifest::{Edit, ManifestState};
use crate::snapshots::Snapshotter;
use crate::version::version_set::VersionEdit;

/// Makes, changes and drops dictionaries.
pub(crate) struct Catalog {
    engine: Engine,
    commits: Arc<Committer>,
    admission: Arc<Admission>,
    snapshotter: Arc<Snapshotter>,
}

impl Catalog {
    pub(crate) fn new(
        engine: Engine,
        commits: Arc<Committer>,
        admission: Arc<Admission>,
        snapshotter: Arc<Snapshotter>,
    ) -> Catalog {
        Catalog { engine, commits, admission, snapshotter }
    }

    /// Returns the number of the dictionary with this name in a branch, and creates the dictionary
    /// if it does not exist.
    pub(crate) fn create(
        &self,
        branch: &str,
        name: &str,
        options: DictionaryOptions,
    ) -> Result<DictionaryId> {
        if let Some(id) = self.engine.versions.dictionary(branch, name) {
            return Ok(id);
        }
        self.engine.health.writable()?;
        if name.is_empty() || name.len() > MAX_DICTIONARY_NAME {
            return Err(Error::Invalid(format!(
                "a dictionary's name has 1 to {MAX_DICTIONARY_NAME} bytes, not {}",
                name.len()
            )));
        }
        self.commits.flush_before_edit(&*self.admission)?;
        let mut made = None;
        self.commits.install(|state| {
            // Another thread may have made the dictionary since the first check.
            let there = state.dictionaries.find(branch, name);
            let known = branch.is_empty() || state.branches.contains_key(branch);
            let id = there.unwrap_or(DictionaryId(state.next_dictionary));
            made = known.then_some(id);
            let info = DictionaryInfo {
                id,
                name: name.into(),
                branch: branch.into(),
                options,
                short_outside: false,
            };
            VersionEdit::of((there.is_none() && known).then_some(Edit::Dictionary(info)))
        })?;
        made.ok_or_else(|| Error::NoBranch(branch.into()))
    }

    /// Drops dictionaries with their contents atomically. `lock` locks the dictionaries against
    /// transactions until its result is dropped.
    pub(crate) fn remove<L>(
        &self,
        dicts: &[DictionaryId],
        lock: impl FnOnce(&BTreeSet<DictionaryId>) -> Result<L>,
    ) -> Result<()> {
        self.engine.health.writable()?;
        let version = self.engine.versions.load_full();
        let mut branches = BTreeSet::new();
        for dict in dicts {
            let info = version.tree(*dict)?.info();
            if !info.options.reserved {
                branches.insert(info.branch.to_string());
            }
        }
        drop(version);
        let locked = lock(&dicts.iter().copied().collect())?;
        self.snapshotter.prepare_drop()?;
        // A snapshot that is still pending includes these dictionaries, so wait until it is
        // settled.
        let naming = self.snapshotter.settled()?;
        // Make the drop a commit, so that transactions that have read the dictionaries detect it.
        let entered = self.commits.enter_in_order(Priority::Flush)?;
        let installed =
            self.commits.install_commit(entered, Changed::Unlisted(branches), |state| {
                Ok(drops(state, dicts))
            })?;
        drop((naming, locked));
        self.engine.signals.compaction_wanted();
        installed.finish(&*self.admission)
    }

    /// Drops an internal dictionary of the store, which no other commit and no transaction uses.
    pub(crate) fn remove_own(&self, dict: DictionaryId) -> Result<()> {
        self.engine.health.writable()?;
        self.commits.flush_before_edit(&*self.admission)?;
        let naming = self.snapshotter.settled()?;
        self.commits.install(|state| drops(state, &[dict]))?;
        drop(naming);
        self.engine.signals.compaction_wanted();
        Ok(())
    }

    /// Changes the stitching threshold of a dictionary, durably. Merges in progress use the new
    /// threshold, too.
    pub(crate) fn set_stitch_at(&self, dict: DictionaryId, stitch_at: u64) -> Result<()> {
        self.engine.health.writable()?;
        self.engine.versions.load().tree(dict)?;
        self.commits.flush_before_edit(&*self.admission)?;
        self.commits.install(|state| {
            let there = state.dictionaries.contains_key(&dict);
            VersionEdit::of(there.then_some(Edit::StitchAt { dict, stitch_at }))
        })
    }

    /// Changes the options with which a dictionary stores new data, durably. Merges in progress use
    /// the new options, too.
    pub(crate) fn set_options(&self, dict: DictionaryId, options: DictionaryOptions) -> Result<()> {
        self.engine.health.writable()?;
        let reserved = self.engine.versions.load().tree(dict)?.info().options.reserved;
        if options.reserved != reserved {
            return Err(Error::Invalid(
                "whether a dictionary is reserved is decided when it is made".into(),
            ));
        }
        self.commits.flush_before_edit(&*self.admission)?;
        self.commits.install(|state| {
            let there = state.dictionaries.get(&dict);
            let info = there.map(|d| DictionaryInfo { options, ..d.info.to_info() });
            VersionEdit::of(info.map(Edit::Options))
        })
    }
}

/// Returns the edits that drop the dictionaries in `dicts` that still exist.
fn drops(state: &ManifestState, dicts: &[DictionaryId]) -> VersionEdit {
    let there: BTreeSet<_> =
        dicts.iter().filter(|dict| state.dictionaries.contains_key(dict)).collect();
    VersionEdit::of(there.into_iter().map(|dict| Edit::DropDictionary(*dict)))
}
