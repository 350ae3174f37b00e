//! Estimates the space that only snapshots keep: whole zones that only they use, and, within shared
//! zones, data that the next state of the branch hides. The former is known without reading; the
//! latter is estimated from a bounded number of newer items.

use env::sync::atomic::Ordering;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use vt_tree::{Input, Run, Seq, hidden_bytes};
use zones::{ZONE_SIZE, ZoneId};

use super::Snapshotter;
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::version::snapshot_set::Snapshot;
use crate::version::tree::{Levels, NumberedRun, Tree};
use crate::version::{Trees, Version};

/// Items of newer states that are examined for one listing.
const LOOKED_AT: u64 = 200_000;
/// Minimum number of items that are examined for one snapshot.
const LEAST: u64 = 100;
/// If a run has at least this many bytes in shared zones, the count includes its data that a merge
/// has moved into another run.
const LEAST_MOVED: u64 = ZONE_SIZE / 4;

/// The keeper of a zone that is not kept by one group alone, but also by another group, the store
/// itself, or another snapshot.
const SHARED: usize = usize::MAX;

impl Snapshotter {
    /// Returns for each group of snapshots approximately the bytes that dropping only this group
    /// frees. The snapshots of a group belong to one branch.
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
        let snapshots = self.engine.snapshots.list().iter().map(state).collect();
        let states = States::new(snapshots, self.engine.versions.load_full());
        let mut held = vec![0u64; groups.len()];
        let runs = states.runs();
        let zones = owners_of_zones(&runs);
        zones_of_groups(&zones, &mut held);
        let most = (LOOKED_AT / states.snapshots.len().max(1) as u64).max(LEAST);
        states.add_hidden(&Shared { runs, zones }, self.now(), most, &mut held);
        held
    }

    fn now(&self) -> u64 {
        self.engine.versions.visible.load(Ordering::Acquire)
    }
}

/// Returns the bytes of the runs of each snapshot. Only the differences between successive states
/// of a branch are visited.
pub(super) fn bytes_of(snapshots: &[(Arc<Snapshot>, Arc<Version>)]) -> Vec<u64> {
    fn bytes(tree: &Arc<Tree>) -> u64 {
        tree.runs().map(|p| p.run.stats().bytes).sum()
    }
    let nothing = Trees::default();
    let mut newest: HashMap<&str, (&Trees, u64)> = HashMap::new();
    let mut all = Vec::with_capacity(snapshots.len());
    for (snapshot, version) in snapshots {
        let branch = &*snapshot.label.branch;
        let (before, mut sum) = newest.get(branch).copied().unwrap_or((&nothing, 0));
        let mut gone = 0;
        before.difference(&version.trees, |_, old, new| {
            gone += old.map_or(0, bytes);
            sum += new.map_or(0, bytes);
        });
        sum -= gone;
        newest.insert(branch, (&version.trees, sum));
        all.push(sum);
    }
    all
}

/// A state that pins runs: a snapshot.
struct State {
    branch: String,
    /// The number of its newest commit.
    seq: Seq,
    /// The group that the snapshot belongs to, if any.
    group: Option<usize>,
    version: Arc<Version>,
}

/// All states that pin runs. Successive states of a branch share most of their dictionaries, and
/// these are not visited again.
struct States {
    /// Sorted by branch, then by number.
    snapshots: Vec<State>,
    live: Arc<Version>,
    /// The state before the first one of a branch, and after the last one.
    nothing: Trees,
}

/// A list of runs, by its address: dictionaries that have the same runs share the list.
type ListsOfRuns<'a> = HashMap<*const Vec<Vec<NumberedRun>>, (&'a Levels, Owners<'a>)>;

/// The states that contain each run, by its address.
type Runs<'a> = HashMap<*const Run, (&'a Arc<Run>, Owners<'a>)>;

impl States {
    fn new(mut snapshots: Vec<State>, live: Arc<Version>) -> States {
        snapshots.sort_by(|a, b| (&a.branch, a.seq).cmp(&(&b.branch, b.seq)));
        States { snapshots, live, nothing: Trees::default() }
    }

    /// Returns the ranges of the snapshots of each branch.
    fn branches(&self) -> impl Iterator<Item = Range<usize>> {
        let mut end = 0;
        self.snapshots.chunk_by(|a, b| a.branch == b.branch).map(move |of_branch| {
            let start = end;
            end += of_branch.len();
            start..end
        })
    }

    /// Returns all runs with the states that contain them. Each list of runs is read once, however
    /// many states and dictionaries share it.
    fn runs(&self) -> Runs<'_> {
        let mut lists = ListsOfRuns::new();
        for tree in self.live.trees.values() {
            let branch = Some(&*tree.info().branch);
            let owners = Owners { branch, oldest: Seq::MAX, group: None, of_others: None };
            note(&mut lists, &tree.levels, owners);
        }
        for range in self.branches() {
            self.note_branch(range, &mut lists);
        }
        let mut runs = Runs::new();
        for (levels, owners) in lists.into_values() {
            for numbered in levels.iter().flatten() {
                let run = &numbered.run;
                runs.entry(Arc::as_ptr(run))
                    .and_modify(|(_, others)| *others = others.and(owners))
                    .or_insert((run, owners));
            }
        }
        runs
    }

    /// Notes the lists of runs that the snapshots of one branch have, each with the first and the
    /// last state of a series that has it.
    fn note_branch<'a>(&'a self, range: Range<usize>, lists: &mut ListsOfRuns<'a>) {
        let states = &self.snapshots[range];
        // For each state the next one that belongs to another group.
        let mut next_other: Vec<Option<usize>> = vec![None; states.len()];
        for at in (1..states.len()).rev() {
            let same = states[at - 1].group == states[at].group;
            next_other[at - 1] = if same { next_other[at] } else { Some(at) };
        }
        let mut begun: HashMap<DictionaryId, usize> = HashMap::new();
        let mut before = &self.nothing;
        for at in 0..=states.len() {
            let now = states.get(at).map_or(&self.nothing, |state| &state.version.trees);
            before.difference(now, |id, old, new| {
                if let (Some(old), Some(new)) = (old, new)
                    && Arc::ptr_eq(&old.levels, &new.levels)
                {
                    return;
                }
                if let Some(old) = old
                    && let Some(first) = begun.remove(id)
                {
                    let other = next_other[first].filter(|other| *other < at);
                    let owners = Owners {
                        branch: Some(&states[first].branch),
                        oldest: states[first].seq,
                        group: states[first].group,
                        of_others: other.map(|other| states[other].seq),
                    };
                    note(lists, &old.levels, owners);
                }
                if new.is_some() {
                    begun.insert(*id, at);
                }
            });
            before = now;
        }
    }

    /// Adds for each snapshot of a group approximately the bytes of runs that the next state of the
    /// branch contains as well, but hides, if no older state and no other branch contains these
    /// runs. Merges move data by reference, so the next state may also have them in other runs.
    fn add_hidden(&self, shared: &Shared<'_>, now: Seq, most: u64, held: &mut [u64]) {
        for range in self.branches() {
            let states = &self.snapshots[range];
            let mut older = Older { states, noted: 0, most: HashMap::new() };
            for (at, state) in states.iter().enumerate() {
                let Some(group) = state.group else { continue };
                older.note_before(at, &self.nothing);
                let bytes = |run: &Arc<Run>, kept: bool| {
                    let (branch, seq) = (&*state.branch, state.seq);
                    let bytes = shared.bytes(run, kept, |of| of.is_alone(group, branch, seq));
                    if kept { bytes.saturating_sub(older.overlap(run)) } else { bytes }
                };
                // A dictionary may have moved to another branch since.
                let (next, all, now) = match states.get(at + 1) {
                    Some(next) => (next.version.trees.clone(), &next.version.trees, next.seq),
                    None => (self.live.of_branch(&state.branch), &self.live.trees, now),
                };
                state.version.trees.difference(&next, |id, older, newer| {
                    let Some(older) = older else { return };
                    let Some(newer) = newer.or_else(|| all.get(id)) else { return };
                    if !Arc::ptr_eq(older, newer) {
                        // Data that cannot be read does not count.
                        let hidden = hidden_in(older, newer, bytes, now, most).unwrap_or(0);
                        held[group] = held[group].saturating_add(hidden);
                    }
                });
            }
        }
    }
}

/// Adds owners of a list of runs.
fn note<'a>(lists: &mut ListsOfRuns<'a>, levels: &'a Levels, owners: Owners<'a>) {
    if levels.is_empty() {
        return;
    }
    lists
        .entry(Arc::as_ptr(levels))
        .and_modify(|(_, others)| *others = others.and(owners))
        .or_insert((levels, owners));
}

/// The states that contain a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owners<'a> {
    /// The branch of all of them, or `None` if they belong to several.
    branch: Option<&'a str>,
    /// The number of the oldest one; that of the current state is above all others.
    oldest: Seq,
    /// The group of the oldest one.
    group: Option<usize>,
    /// The number of the oldest one of another group.
    of_others: Option<Seq>,
}

impl<'a> Owners<'a> {
    /// Returns the owners of both.
    fn and(self, other: Owners<'a>) -> Owners<'a> {
        let (a, b) = if self.oldest <= other.oldest { (self, other) } else { (other, self) };
        let of_b = if b.group == a.group { b.of_others } else { Some(b.oldest) };
        Owners {
            branch: a.branch.filter(|_| a.branch == b.branch),
            oldest: a.oldest,
            group: a.group,
            of_others: a.of_others.into_iter().chain(of_b).min(),
        }
    }

    /// Returns the group that all of them belong to, or [`SHARED`].
    fn keeper(&self) -> usize {
        self.group.filter(|_| self.of_others.is_none()).unwrap_or(SHARED)
    }

    /// Returns whether no other branch, and no state older than `seq`, contains the run, apart from
    /// those of this group.
    fn is_alone(&self, group: usize, branch: &str, seq: Seq) -> bool {
        let of_others = if self.group == Some(group) { self.of_others } else { Some(self.oldest) };
        of_others.is_none_or(|oldest| self.branch == Some(branch) && oldest >= seq)
    }
}

/// The owners of each run and of each zone.
struct Shared<'a> {
    runs: Runs<'a>,
    zones: HashMap<ZoneId, Owners<'a>>,
}

impl Shared<'_> {
    /// Returns at most how many bytes of a run the next state may hide: of a run that it has `kept`
    /// all, of another one those in zones that are not freed as a whole. `alone` accepts owners
    /// of which no other one needs the bytes.
    fn bytes(&self, run: &Arc<Run>, kept: bool, alone: impl Fn(&Owners<'_>) -> bool) -> u64 {
        if self.runs.get(&Arc::as_ptr(run)).is_none_or(|(_, of)| !alone(of)) {
            return 0;
        }
        if kept {
            return run.stats().bytes;
        }
        let shared = |zone: ZoneId| {
            let owners: Option<&Owners<'_>> = self.zones.get(&zone);
            owners.is_some_and(|of| of.keeper() == SHARED && alone(of))
        };
        let uses = run.uses().iter().filter(|(zone, _)| shared(*zone));
        let moved: u64 = uses.map(|(_, bytes)| bytes).sum();
        if moved < LEAST_MOVED { 0 } else { moved }
    }
}

/// The runs of the older states of a branch, by the zones that they use.
struct Older<'a> {
    states: &'a [State],
    /// Number of states that are noted.
    noted: usize,
    /// The most bytes that one of their runs has in a zone.
    most: HashMap<ZoneId, u64>,
}

impl Older<'_> {
    /// Notes the states before the one at `at`, up to the first one of the same group.
    fn note_before(&mut self, at: usize, nothing: &Trees) {
        let states = self.states;
        while self.noted < at && states[self.noted].group != states[at].group {
            let before = match self.noted {
                0 => nothing,
                noted => &states[noted - 1].version.trees,
            };
            let most = &mut self.most;
            before.difference(&states[self.noted].version.trees, |_, _, tree| {
                let Some(tree) = tree else { return };
                for (zone, bytes) in tree.runs().flat_map(|p| p.run.uses().iter()) {
                    let most = most.entry(zone).or_insert(0);
                    *most = bytes.max(*most);
                }
            });
            self.noted += 1;
        }
    }

    /// Returns at least how many bytes of a run an older state has as well, but in another run:
    /// what two runs have in a zone beyond its size, both have.
    fn overlap(&self, run: &Run) -> u64 {
        let uses = run.uses().iter();
        let both = uses.map(|(zone, bytes)| {
            let most = self.most.get(&zone).copied().unwrap_or(0);
            bytes.saturating_add(most).saturating_sub(ZONE_SIZE).min(bytes)
        });
        both.sum()
    }
}

/// Returns the owners of all runs in each zone.
fn owners_of_zones<'a>(runs: &Runs<'a>) -> HashMap<ZoneId, Owners<'a>> {
    let mut zones: HashMap<ZoneId, Owners<'a>> = HashMap::new();
    for (run, owners) in runs.values() {
        for (zone, _) in run.uses().iter() {
            zones.entry(zone).and_modify(|others| *others = others.and(*owners)).or_insert(*owners);
        }
    }
    zones
}

/// Adds for each group the bytes of whole zones that nothing else uses.
fn zones_of_groups(zones: &HashMap<ZoneId, Owners<'_>>, held: &mut [u64]) {
    let keepers = zones.values().map(|owners| owners.keeper());
    keepers.filter(|by| *by != SHARED).for_each(|by| held[by] += ZONE_SIZE);
}

/// Returns approximately the bytes that the newer of two states of a dictionary hides in the runs
/// of the older one. `bytes` returns for a run, and whether the newer state has kept it, at most
/// how many of its bytes that may be.
fn hidden_in(
    older: &Tree,
    newer: &Tree,
    bytes: impl Fn(&Arc<Run>, bool) -> u64,
    now: u64,
    most: u64,
) -> Result<u64> {
    let has = |tree: &Tree, run: &Arc<Run>| tree.runs().any(|p| Arc::ptr_eq(&p.run, run));
    let mut runs: Vec<Arc<Run>> = Vec::new();
    let mut limit = 0u64;
    for NumberedRun { run, .. } in older.runs() {
        let most = bytes(run, has(newer, run));
        if most > 0 {
            runs.push(run.clone());
            limit = limit.saturating_add(most);
        }
    }
    if runs.is_empty() {
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
    Ok(hidden_bytes(&runs, &own, now, most)?.min(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state that contains a run: its branch, its number, and its group.
    type Containing = (&'static str, Seq, Option<usize>);

    fn owners(of: &[Containing]) -> Owners<'static> {
        let one = |(branch, oldest, group): &Containing| Owners {
            branch: Some(*branch),
            oldest: *oldest,
            group: *group,
            of_others: None,
        };
        of.iter().map(one).reduce(Owners::and).expect("there is a state")
    }

    /// The states of a few hundred small sets are added in several orders, and the results are
    /// compared with their definitions.
    #[test]
    fn owners_tell_who_has_a_run_alone_in_whichever_order_they_are_added() {
        // Each group belongs to one branch. The current state has no group, and no snapshot is
        // newer.
        let possible: [Containing; 8] = [
            ("", 1, Some(0)),
            ("", 2, Some(0)),
            ("", 2, Some(1)),
            ("", 3, None),
            ("", Seq::MAX, None),
            ("b", 1, Some(2)),
            ("b", 4, Some(3)),
            ("b", Seq::MAX, None),
        ];
        for set in 1u32..1 << possible.len() {
            let of = possible.iter().enumerate().filter(|(n, _)| (set >> *n) & 1 == 1);
            let mut of: Vec<Containing> = of.map(|(_, state)| *state).collect();
            let group = of[0].2.filter(|_| of.iter().all(|state| state.2 == of[0].2));
            for _ in 0..of.len() {
                of.rotate_left(1);
                for _ in 0..2 {
                    of.reverse();
                    let owners = owners(&of);
                    assert_eq!(owners.keeper(), group.unwrap_or(SHARED), "{of:?}");
                    for (branch, seq, group) in &of {
                        let Some(group) = group else { continue };
                        let mut others = of.iter().filter(|state| state.2 != Some(*group));
                        let alone = others.all(|other| other.0 == *branch && other.1 >= *seq);
                        assert_eq!(owners.is_alone(*group, branch, *seq), alone, "{of:?}");
                    }
                }
            }
        }
    }
}
