//! Estimates the space that only snapshots keep: whole zones that only they use, and, within shared
//! zones, data that the next state of the branch hides. The former is known without reading; the
//! latter is estimated from a bounded number of newer items.

use env::sync::atomic::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use vt_tree::{Input, Run, hidden_bytes};
use zones::{ZONE_SIZE, ZoneId};

use super::Snapshotter;
use crate::error::Result;
use crate::read::snapshot_set::Snapshot;
use crate::read::version::{Tree, Version};

/// Items of newer states that are examined for one listing.
const LOOKED_AT: u64 = 200_000;
/// Minimum number of items that are examined for one snapshot.
const LEAST: u64 = 100;

/// A state that pins runs: a snapshot, or the current state of a branch.
struct State {
    branch: String,
    /// The number of its newest commit.
    seq: u64,
    /// The group that the snapshot belongs to, if any.
    group: Option<usize>,
    version: Arc<Version>,
}

impl State {
    fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.version.trees.values().flat_map(|tree| tree.runs()).map(|p| &p.run)
    }
}

/// The keeper of a zone that is not kept by one group alone, but also by another group, the store
/// itself, or another snapshot.
const SHARED: usize = usize::MAX;

impl Snapshotter {
    /// Returns for each group of snapshots approximately the bytes that dropping only this group
    /// frees.
    pub(crate) fn held_by<const N: usize>(&self, groups: &[[Arc<Snapshot>; N]]) -> Vec<u64> {
        let members = groups.iter().enumerate();
        let members = members.flat_map(|(n, group)| group.iter().map(move |s| (Arc::as_ptr(s), n)));
        let group_of: HashMap<*const Snapshot, usize> = members.collect();
        let state = |snapshot: &Arc<Snapshot>| State {
            branch: snapshot.label.branch.clone(),
            seq: snapshot.label.seq,
            group: group_of.get(&Arc::as_ptr(snapshot)).copied(),
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

/// Returns for each group the bytes of whole zones that nothing else uses.
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

/// The states of one branch that contain a run: the number and the group of the oldest, and the
/// number of the oldest one of another group.
struct Owners {
    oldest: u64,
    group: Option<usize>,
    of_others: Option<u64>,
}

impl Owners {
    fn first(seq: u64, group: Option<usize>) -> Owners {
        Owners { oldest: seq, group, of_others: None }
    }

    /// Adds a state, which must not be older than those added before.
    fn add(&mut self, seq: u64, group: Option<usize>) {
        if group != self.group {
            self.of_others.get_or_insert(seq);
        }
    }

    /// Returns the number of the oldest state that does not belong to this group.
    fn oldest_beside(&self, group: usize) -> Option<u64> {
        if self.group == Some(group) { self.of_others } else { Some(self.oldest) }
    }
}

/// Returns for each snapshot of a group approximately the bytes of runs that the next state of the
/// branch contains as well, but hides, if no older state and no other branch contains these runs.
fn hidden_of_groups(snapshots: &[State], live: &Version, now: u64, most: u64) -> Vec<(usize, u64)> {
    let mut owners: HashMap<*const Run, HashMap<&str, Owners>> = HashMap::new();
    let mut note = |run: &Arc<Run>, branch, seq, group| {
        let of_run = owners.entry(Arc::as_ptr(run)).or_default();
        of_run.entry(branch).or_insert_with(|| Owners::first(seq, group)).add(seq, group);
    };
    for state in snapshots {
        state.runs().for_each(|run| note(run, &*state.branch, state.seq, state.group));
    }
    for tree in live.trees.values() {
        tree.runs().for_each(|p| note(&p.run, &*tree.info().branch, u64::MAX, None));
    }
    // Find the next state of the same branch, from the newest one backwards.
    let mut newer: HashMap<&str, usize> = HashMap::new();
    let mut next_of = vec![None; snapshots.len()];
    for (at, state) in snapshots.iter().enumerate().rev() {
        next_of[at] = newer.insert(&state.branch, at);
    }
    let mut held = Vec::new();
    for (at, state) in snapshots.iter().enumerate() {
        let Some(group) = state.group else { continue };
        let next = next_of[at].map(|next| &snapshots[next]);
        let (next, now) = next.map_or((live, now), |next| (&*next.version, next.seq));
        let alone = |run: &Arc<Run>| {
            owners.get(&Arc::as_ptr(run)).is_some_and(|of_run| {
                of_run.iter().all(|(branch, of)| {
                    let oldest = of.oldest_beside(group);
                    oldest.is_none_or(|oldest| *branch == state.branch && oldest >= state.seq)
                })
            })
        };
        for (dict, tree) in &state.version.trees {
            let Some(newer) = next.trees.get(dict) else { continue };
            // Data that cannot be read does not count.
            let hidden = hidden_in(tree, newer, alone, now, most).unwrap_or(0);
            held.push((group, hidden));
        }
    }
    held
}

/// Returns approximately the bytes that the newer of two states of a dictionary hides, in the runs
/// that both contain and `alone` accepts.
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
