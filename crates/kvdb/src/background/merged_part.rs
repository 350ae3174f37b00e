//! Installs a part of a merge in the store. The merged data of a key range replaces all data that
//! the inputs have in that range: runs are ropes, so an input is cut around the range by slices,
//! and the pieces are joined by pointer, which costs a few index nodes. All changes are one edit of
//! the manifest, so the store is consistent before and after it.

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{KeyRange, MergeStats, Run, concat, slice};

use super::Compactor;
use crate::dictionary::{DictionaryId, DictionaryInfo};
use crate::error::Result;
use crate::ids::RunId;
use crate::manifest::Edit;
use crate::version::tree::NumberedRun;
use crate::version::version_set::{Order, VersionEdit};

/// The changes that a part of a merge makes to the runs of a dictionary.
pub(crate) struct MergedPart {
    dict: DictionaryId,
    /// Runs that are replaced. A run keeps its number, and with it its place among the others.
    changed: Vec<ChangedRun>,
    /// A run that becomes the newest of a level.
    new: Option<(usize, Arc<Run>)>,
    /// After this part all short values of the dictionary lie in their blocks.
    pub gathered: bool,
}

/// A run by its number and level, and its replacement. `None` if nothing is left of it.
struct ChangedRun {
    id: RunId,
    level: usize,
    run: Option<Arc<Run>>,
}

/// The result of installing a part.
pub(crate) struct Installed {
    /// The number of the new run, if there is one.
    pub new: Option<RunId>,
}

impl MergedPart {
    pub(crate) fn of(dict: DictionaryId) -> MergedPart {
        MergedPart { dict, changed: Vec::new(), new: None, gathered: false }
    }

    /// Cuts the keys from `from` up to but excluding `to` (`None` means the end) out of `input`.
    /// Returns the rest.
    pub(crate) fn cut(
        &mut self,
        compactor: &Compactor,
        input: &NumberedRun,
        level: usize,
        from: &Bytes,
        to: Option<&Bytes>,
    ) -> Result<Option<Arc<Run>>> {
        let (low, high) = input.run.fences();
        if high <= from.as_ref() || to.is_some_and(|to| low >= to.as_ref()) {
            return Ok(Some(input.run.clone()));
        }
        let rest = compactor.with_part(&input.run, from, to, None)?;
        self.set(input.id, level, rest.clone());
        Ok(rest)
    }

    /// Replaces the run with this number by `run`, or removes it if that is `None`.
    pub(crate) fn set(&mut self, id: RunId, level: usize, run: Option<Arc<Run>>) {
        self.changed.push(ChangedRun { id, level, run });
    }

    /// Adds a run as the newest of its level.
    pub(crate) fn add(&mut self, level: usize, run: Arc<Run>) {
        self.new = Some((level, run));
    }
}

impl Compactor {
    /// Returns `run` with its keys from `from` up to but excluding `to` replaced by `part`, which
    /// has only keys of that range.
    pub(crate) fn with_part(
        &self,
        run: &Arc<Run>,
        from: &Bytes,
        to: Option<&Bytes>,
        part: Option<Arc<Run>>,
    ) -> Result<Option<Arc<Run>>> {
        let (low, high) = run.fences();
        let before = match low < from.as_ref() {
            true => slice(run, &KeyRange { start: Bytes::new(), end: Some(from.clone()) })?,
            false => None,
        };
        let after = match to {
            Some(to) if high > to.as_ref() => {
                slice(run, &KeyRange { start: to.clone(), end: None })?
            }
            _ => None,
        };
        self.joined([before, part, after].into_iter().flatten())
    }

    /// Joins several runs, whose keys ascend, into one.
    pub(crate) fn joined(
        &self,
        runs: impl IntoIterator<Item = Arc<Run>>,
    ) -> Result<Option<Arc<Run>>> {
        let runs: Vec<Arc<Run>> = runs.into_iter().collect();
        match runs.len() {
            0 | 1 => Ok(runs.into_iter().next()),
            _ => Ok(concat(&self.engine.cache, &runs)?),
        }
    }

    /// Syncs the data that a part of a merge has written and makes it part of the store. Returns
    /// `None` if the dictionary was dropped during the merge, in which case the part is discarded.
    pub(crate) fn install_part(
        &self,
        part: MergedPart,
        stats: &MergeStats,
    ) -> Result<Option<Installed>> {
        let MergedPart { dict, changed, new, gathered } = part;
        self.engine
            .zones
            .sync()
            .map_err(|e| self.engine.health.fail("syncing a merge", &e.into()))?;
        self.engine.counters.merged(stats);
        let mut installed = None;
        // Ignore this if short values have been written outside again during the merge.
        let short = self.engine.versions.load().trees.get(&dict).map(|tree| tree.short.clone());
        let short = short.filter(|short| gathered && short.are_being_gathered());
        self.engine.versions.install(Order::OfPlaces, |state| {
            let mut change = VersionEdit::of([Edit::Streams(self.engine.zones.positions())]);
            if let Some(d) = state.dictionaries.get(&dict) {
                if short.is_some() {
                    let info = DictionaryInfo { short_outside: false, ..d.info.to_info() };
                    change.edits.push(Edit::Options(info));
                }
                for ChangedRun { id, level, run } in changed {
                    change.edits.push(Edit::DropRun { dict, id });
                    run.iter().for_each(|run| change.add_run(dict, level, id, run));
                }
                let id = RunId(state.next_run);
                new.iter().for_each(|(level, run)| change.add_run(dict, *level, id, run));
                installed = Some(Installed { new: new.map(|_| id) });
            }
            change
        })?;
        short.iter().for_each(|short| short.gathered());
        Ok(installed)
    }
}
