//! Makes and applies checkpoints. A checkpoint is a list of edits that build a state from nothing.
//! Data that snapshots and branches share is written once, and later edits refer to it by number.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::{DictionaryState, KeptSoFar, MAX_LEVEL, ManifestState, OfBranch, contradiction, next};
use crate::error::Result;
use crate::ids::RunId;
use crate::manifest::Edit;
use crate::manifest::edit::Kept;
use crate::persistent_map::PersistentMap;

/// Returns the edits that make branches with their limits, but without their dictionaries.
pub(crate) fn make_branches(
    branches: &PersistentMap<Arc<str>, Arc<str>>,
    limits: &PersistentMap<String, u64>,
    limits_of_files: &PersistentMap<String, u64>,
) -> impl Iterator<Item = Edit> {
    branches.iter().map(new_branch).chain(make_limits(limits, limits_of_files))
}

fn new_branch((name, of): (&Arc<str>, &Arc<str>)) -> Edit {
    Edit::Branch { name: name.to_string(), of: of.to_string() }
}

/// Returns the edits that set the limits of existing branches.
fn make_limits(
    limits: &PersistentMap<String, u64>,
    limits_of_files: &PersistentMap<String, u64>,
) -> impl Iterator<Item = Edit> {
    let limit = |(branch, &bytes): (&String, &u64)| Edit::Limit { branch: branch.clone(), bytes };
    let of_files = |(branch, &files): (&String, &u64)| Edit::LimitFiles {
        branch: branch.clone(),
        below: files.saturating_add(1),
    };
    limits.iter().map(limit).chain(limits_of_files.iter().map(of_files))
}

impl ManifestState {
    /// Returns a run that the record has listed as kept, with its level.
    pub(super) fn kept_run(&mut self, (level, id, n): Kept) -> Result<(RunId, (u32, Bytes))> {
        self.next_run = self.next_run.max(next(id.0)?);
        let run = usize::try_from(n)
            .ok()
            .and_then(|n| self.kept.runs.get(n))
            .filter(|_| level <= MAX_LEVEL);
        let run =
            run.ok_or_else(|| contradiction(format!("run {} is kept but not there", id.0)))?;
        Ok((id, (level, run.clone())))
    }

    /// Returns the dictionaries of a snapshot, given their numbers in the record. The returned map
    /// shares as much memory as possible with the map of the previous snapshot.
    pub(super) fn kept_dictionaries(
        &mut self,
        snapshot: &str,
        numbers: Vec<u64>,
    ) -> Result<OfBranch> {
        let KeptSoFar { dictionaries, newest: (before, newest), .. } = &mut self.kept;
        if *before != numbers {
            let mut of_snapshot = BTreeMap::new();
            for n in &numbers {
                let state = usize::try_from(*n).ok().and_then(|n| dictionaries.get(n));
                let state = state.ok_or_else(|| {
                    contradiction(format!("snapshot {snapshot} has a dictionary that is not there"))
                })?;
                of_snapshot.insert(state.info.id, state);
            }
            let mut all = newest.clone();
            // Remove dictionaries first, since a removed dictionary may have the name of an added
            // one.
            newest.keys().filter(|id| !of_snapshot.contains_key(id)).for_each(|id| all.remove(*id));
            for (id, state) in of_snapshot {
                if !all.get(&id).is_some_and(|same| Arc::ptr_eq(same, state)) {
                    all.insert(state.clone());
                }
            }
            (*before, *newest) = (numbers, all);
        }
        Ok(newest.clone())
    }

    /// If the dictionary that got kept runs last has the same runs as a dictionary of a snapshot or
    /// of an earlier branch, makes both share one list of runs. The list is complete at this point,
    /// because the record has all runs of a dictionary before the next dictionary.
    pub(super) fn share_kept_runs(&mut self) {
        let Some(dict) = self.kept.filled.take() else { return };
        let Some(runs) = self.dictionaries.get(&dict).map(|d| d.runs.clone()) else { return };
        let Some((&newest, _)) = runs.last_key_value() else { return };
        match self.kept.lists.entry((runs.len(), newest)) {
            Entry::Vacant(list) => _ = list.insert(runs),
            Entry::Occupied(list) => {
                let list = list.get();
                if *list == runs {
                    self.dictionaries.change(dict, |d| d.runs = list.clone());
                }
            }
        }
    }

    /// Returns the clones that have exactly the dictionaries of their snapshot, each with the
    /// number of the clone's first dictionary. Most clones are idle and stay as they were made.
    fn idle_clones(&self) -> HashMap<&str, u32> {
        let idle = self.branches.iter().filter_map(|(name, of)| {
            let snapshot = self.snapshots.get(&**of)?;
            let first = self.dictionaries.cloned_from(name, &snapshot.dictionaries)?;
            Some((&**name, first))
        });
        idle.collect()
    }

    /// Calls `each` with the edits that build the snapshots from nothing, and returns the numbers
    /// of their runs. Data that is shared by several snapshots, or by several branches that are not
    /// `idle`, is written once.
    fn checkpoint_snapshots(
        &self,
        idle: &HashMap<&str, u32>,
        each: &mut dyn FnMut(Edit),
    ) -> HashMap<Bytes, u64> {
        let mut runs: HashMap<Bytes, u64> = HashMap::new();
        let mut kept: HashMap<*const DictionaryState, u64> = HashMap::new();
        let mut number = |run: &Bytes, each: &mut dyn FnMut(Edit)| {
            let next = runs.len() as u64;
            *runs.entry(run.clone()).or_insert_with(|| {
                each(Edit::KeptRun(run.clone()));
                next
            })
        };
        for snapshot in self.snapshots.values() {
            let mut dictionaries = Vec::new();
            for d in snapshot.dictionaries.values() {
                let next = kept.len() as u64;
                dictionaries.push(*kept.entry(Arc::as_ptr(d)).or_insert_with(|| {
                    let runs = d
                        .runs
                        .iter()
                        .map(|(id, (level, run))| (*level, *id, number(run, each)))
                        .collect();
                    each(Edit::KeptDictionary(d.info.to_info(), runs));
                    next
                }));
            }
            each(Edit::KeptSnapshot(snapshot.label.clone(), dictionaries));
        }
        // Clones of a dropped snapshot can share runs, too.
        let mut seen: HashMap<&Bytes, bool> = HashMap::new();
        for (_, run) in self
            .dictionaries
            .values()
            .filter(|d| !self.branches.is_empty() && !idle.contains_key(&*d.info.branch))
            .flat_map(|d| d.runs.values())
        {
            seen.entry(run).and_modify(|twice| *twice = true).or_insert(false);
        }
        seen.into_iter().filter(|(_, twice)| *twice).for_each(|(run, _)| _ = number(run, each));
        runs
    }

    /// Returns the record of the edits that build this state from nothing, without its length.
    pub(crate) fn checkpoint_record(&self) -> Vec<u8> {
        let mut record = Vec::new();
        self.checkpoint_by(&mut |edit| edit.encode(&mut record));
        record
    }

    /// Returns the edits that build this state from nothing.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn checkpoint(&self) -> Vec<Edit> {
        let mut edits = Vec::new();
        self.checkpoint_by(&mut |edit| edits.push(edit));
        edits
    }

    /// Calls `each` with the edits that build this state from nothing. The edits are not collected,
    /// since together they take several times the memory of their record.
    fn checkpoint_by(&self, each: &mut dyn FnMut(Edit)) {
        let idle = self.idle_clones();
        let kept = self.checkpoint_snapshots(&idle, each);
        for (name, of) in &self.branches {
            each(match idle.get(&**name) {
                // Clone the snapshot again, which takes one edit for any number of dictionaries.
                Some(&first) => {
                    Edit::Clone { snapshot: of.to_string(), branch: name.to_string(), first }
                }
                None => new_branch((name, of)),
            });
        }
        make_limits(&self.limits, &self.limits_of_files).for_each(&mut *each);
        for (&dict, d) in
            self.dictionaries.iter().filter(|(_, d)| !idle.contains_key(&*d.info.branch))
        {
            each(Edit::Dictionary(d.info.to_info()));
            for (&id, (level, run)) in d.runs.iter() {
                each(match kept.get(run) {
                    Some(&n) => Edit::AddKeptRun(dict, (*level, id, n)),
                    None => Edit::AddRun { dict, level: *level, id, run: run.clone() },
                });
            }
        }
        for s in &self.segments {
            each(Edit::Segment(*s));
            if let Some(position) = s.end {
                each(Edit::SegmentEnds { number: s.number, position });
            }
        }
        each(Edit::JournalStart(self.start));
        self.since.iter().for_each(|(&dict, &seq)| each(Edit::Since { dict, seq }));
        let (dictionary, run, segment) = (self.next_dictionary, self.next_run, self.next_segment);
        each(Edit::NextIds { dictionary, run, segment });
        each(Edit::Streams(self.streams.clone()));
        if self.closed {
            each(Edit::Closed);
        }
    }
}
