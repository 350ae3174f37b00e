//! What snapshots keep of the device that nothing else keeps: whole zones that only they have, and
//! in zones that others have as well, what the next state of the branch hides. The former is known
//! without reading; the latter is an estimate from what is newer, of which so much is looked at.

use env::sync::atomic::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use vt_tree::{Input, Run, hidden_bytes};
use zones::{ZONE_SIZE, ZoneId};

use super::Snapshotter;
use crate::error::Result;
use crate::read::snapshot_set::Snapshot;
use crate::read::version::{Tree, Version};

/// The work for one list, in items of newer states.
const LOOKED_AT: u64 = 200_000;
/// The least for one snapshot.
const LEAST: u64 = 100;

/// A state that keeps runs: a snapshot, or what a branch is now.
struct State {
    branch: String,
    /// The number of its newest commit.
    seq: u64,
    /// The group that it is of.
    group: Option<usize>,
    version: Arc<Version>,
}

impl State {
    fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.version.trees.values().flat_map(|tree| tree.runs()).map(|p| &p.run)
    }
}

/// Who keeps a zone: one of the groups, or several, or the store itself, or another snapshot.
const SHARED: usize = usize::MAX;

impl Snapshotter {
    /// For each group of snapshots about the bytes that dropping just these gives back.
    pub(crate) fn held_by<const N: usize>(&self, groups: &[[Arc<Snapshot>; N]]) -> Vec<u64> {
        let group_of = |snapshot: &Arc<Snapshot>| {
            let has = |group: &[Arc<Snapshot>; N]| group.iter().any(|s| Arc::ptr_eq(s, snapshot));
            groups.iter().position(has)
        };
        let state = |snapshot: &Arc<Snapshot>| State {
            branch: snapshot.label.branch.clone(),
            seq: snapshot.label.seq,
            group: group_of(snapshot),
            version: snapshot.version(),
        };
        let mut snapshots: Vec<State> = self.snapshots.list().iter().map(state).collect();
        snapshots.sort_by_key(|state| state.seq);
        let live = self.versions.load_full();
        let mut held = zones_of_groups(groups.len(), &snapshots, &live);
        let most = (LOOKED_AT / snapshots.len().max(1) as u64).max(LEAST);
        for (group, bytes) in hidden_of_groups(&snapshots, &live, self.now(), most) {
            held[group] = held[group].saturating_add(bytes);
        }
        held
    }

    fn now(&self) -> u64 {
        self.versions.visible.load(Ordering::Acquire)
    }
}

/// For each group the bytes of whole zones that nothing else keeps.
fn zones_of_groups(groups: usize, snapshots: &[State], live: &Version) -> Vec<u64> {
    let mut runs: HashMap<*const Run, (&Arc<Run>, usize)> = HashMap::new();
    for run in live.trees.values().flat_map(|t| t.runs()) {
        runs.insert(Arc::as_ptr(&run.run), (&run.run, SHARED));
    }
    for state in snapshots {
        let group = state.group.unwrap_or(SHARED);
        for run in state.runs() {
            let entry = runs.entry(Arc::as_ptr(run)).or_insert((run, group));
            entry.1 = if entry.1 == group { group } else { SHARED };
        }
    }
    let mut zones: HashMap<ZoneId, usize> = HashMap::new();
    for (run, by) in runs.values() {
        for (zone, _) in run.uses().iter() {
            let keeper = zones.entry(zone).or_insert(*by);
            *keeper = if keeper == by { *by } else { SHARED };
        }
    }
    let mut held = vec![0; groups];
    zones.values().filter(|by| **by != SHARED).for_each(|by| held[*by] += ZONE_SIZE);
    held
}

/// A state that has a run: its branch, its number, and its group, if it is of one.
type Owner<'a> = (&'a str, u64, Option<usize>);

/// For snapshots of groups about the bytes of runs that the next state of the branch has as well,
/// and hides: no older state has these runs, nor another branch.
fn hidden_of_groups(snapshots: &[State], live: &Version, now: u64, most: u64) -> Vec<(usize, u64)> {
    let mut owners: HashMap<*const Run, Vec<Owner<'_>>> = HashMap::new();
    for state in snapshots {
        for run in state.runs() {
            let of_run = owners.entry(Arc::as_ptr(run)).or_default();
            of_run.push((&state.branch, state.seq, state.group));
        }
    }
    for tree in live.trees.values() {
        for numbered in tree.runs() {
            let of_run = owners.entry(Arc::as_ptr(&numbered.run)).or_default();
            of_run.push((&tree.info.branch, u64::MAX, None));
        }
    }
    let mut held = Vec::new();
    for (at, state) in snapshots.iter().enumerate() {
        let Some(group) = state.group else { continue };
        let next = snapshots[at + 1..].iter().find(|next| next.branch == state.branch);
        let (next, now) = next.map_or((live, now), |next| (&*next.version, next.seq));
        let alone = |run: &Arc<Run>| {
            owners.get(&Arc::as_ptr(run)).is_some_and(|of_run| {
                of_run.iter().all(|(branch, seq, of)| {
                    *of == Some(group) || *branch == state.branch && *seq >= state.seq
                })
            })
        };
        for (dict, tree) in &state.version.trees {
            let Some(newer) = next.trees.get(dict) else { continue };
            // What cannot be read counts as nothing.
            let hidden = hidden_in(tree, newer, alone, now, most).unwrap_or(0);
            held.push((group, hidden));
        }
    }
    held
}

/// About the bytes of the runs that two states of a dictionary have in common, and `alone` says
/// yes to, that the newer one hides.
fn hidden_in(
    older: &Tree,
    newer: &Tree,
    alone: impl Fn(&Arc<Run>) -> bool,
    now: u64,
    most: u64,
) -> Result<u64> {
    let has = |tree: &Tree, run: &Arc<Run>| tree.runs().any(|p| Arc::ptr_eq(&p.run, run));
    let common: Vec<Arc<Run>> =
        older.runs().map(|p| &p.run).filter(|run| has(newer, run) && alone(run)).cloned().collect();
    if common.is_empty() {
        return Ok(0);
    }
    let before = older.inputs();
    let own = |input: &Input| match input {
        Input::Run(run) => !has(older, run),
        Input::Memtable(memtable) => {
            !before.iter().any(|b| matches!(b, Input::Memtable(m) if Arc::ptr_eq(m, memtable)))
        }
    };
    let own: Vec<Input> = newer.inputs().into_iter().filter(own).collect();
    Ok(hidden_bytes(&common, &own, now, most)?)
}
