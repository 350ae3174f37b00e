//! Compaction: which runs to merge, and one such merge under way. The shape is tiered above and one run at the bottom: when a level
//! has gathered [`FAN`] runs they become one run of the next level, or, once what lies above the bottom run weighs a good part of
//! it, all are merged into the bottom run. Deletions are debts of their own: a run with tombstones above older runs keeps dead
//! data alive, so when the store is quiet, or short of space, it is merged with everything below it.
//!
//! A merge is installed in parts. Once it has written enough, what is merged becomes a run of its own at the level below, the inputs
//! are cut off behind it, and the merge of the rest begins: runs are ropes, so this costs a few index nodes. However large the
//! runs, the store never holds more than one part twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vt_tree::{Input, KeyRange, Merge, MergeOptions, Placement, Run};
use zones::{Reserve, ZONE_SIZE, ZoneId};

use super::flush::encode_run;
use crate::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::manifest::{Edit, RunId};
use crate::version::{Placed, Tree, Version};

/// Runs that a level gathers before they are merged.
pub(crate) const FAN: usize = 4;
/// The bottom run is merged when what lies above it weighs this part of it.
const RATIO: u64 = 4;
/// The level of the bottom run.
const BOTTOM: usize = 15;
/// Bytes of work after which a compaction looks up.
const STEP: u64 = 4 << 20;

/// Runs to merge.
pub(crate) struct Job {
    dict: DictionaryId,
    /// Newest first, each with its level; adjacent in age.
    inputs: Vec<(usize, Placed)>,
    level: usize,
    /// Nothing older lies below.
    to_bottom: bool,
    placement: Placement,
    separate_at: u32,
}

/// What a merge of this run costs: the key blocks, since values stay in place.
fn weight(placed: &Placed) -> u64 {
    let stats = placed.run.stats();
    stats.block_bytes + stats.items
}

fn weights<'a>(runs: impl IntoIterator<Item = &'a Placed>) -> u64 {
    runs.into_iter().map(weight).sum()
}

fn has_tombstones(placed: &Placed) -> bool {
    let stats = placed.run.stats();
    stats.tombstones || stats.range_tombstones
}

/// The runs of some levels, newest first.
fn inputs_of(tree: &Tree, levels: std::ops::Range<usize>) -> Vec<(usize, Placed)> {
    levels.flat_map(|level| tree.levels[level].iter().map(move |p| (level, p.clone()))).collect()
}

impl Job {
    fn new(tree: &Tree, inputs: Vec<(usize, Placed)>, level: usize, to_bottom: bool) -> Job {
        let placement = Placement::threshold(tree.info.options.stitch_at);
        Job { dict: tree.info.id, inputs, level, to_bottom, placement, separate_at: tree.info.options.separate_at }
    }

    /// All runs from level `from` downwards.
    fn everything_from(tree: &Tree, from: usize) -> Job {
        Job::new(tree, inputs_of(tree, from..tree.levels.len()), BOTTOM, true)
    }

    /// What the shape calls for, if anything.
    pub(crate) fn for_shape(tree: &Tree) -> Option<Job> {
        let level = tree.levels.iter().take(BOTTOM).position(|runs| runs.len() >= FAN)?;
        let upper = weights(tree.levels.iter().take(BOTTOM).skip(level).flatten());
        let bottom = weights(tree.levels.iter().skip(BOTTOM).flatten());
        if upper * RATIO >= bottom || level + 1 == BOTTOM {
            return Some(Job::everything_from(tree, level));
        }
        Some(Job::new(tree, inputs_of(tree, level..level + 1), level + 1, false))
    }

    /// What the tombstones call for: their runs merged with everything older. `any`: however few there are.
    pub(crate) fn for_tombstones(tree: &Tree, any: bool) -> Option<Job> {
        let level = tree.levels.iter().position(|runs| runs.iter().any(has_tombstones))?;
        let job = Job::everything_from(tree, level);
        let inputs = || job.inputs.iter().map(|(_, p)| p);
        let ranges = inputs().any(|p| p.run.stats().range_tombstones);
        let with = weights(inputs().filter(|p| has_tombstones(p)));
        (any || ranges || with * 16 >= weights(inputs())).then_some(job)
    }

    /// All runs of a dictionary, unless it is one run of the bottom without tombstones.
    pub(crate) fn for_all(tree: &Tree) -> Option<Job> {
        let mut runs = tree.runs();
        let first = runs.next()?;
        let settled = runs.next().is_none() && !has_tombstones(first) && tree.levels.len() == BOTTOM + 1;
        (!settled).then(|| Job::everything_from(tree, 0))
    }

    /// Moves what lies in `victims` elsewhere.
    fn for_evacuation(tree: &Tree, victims: &Arc<BTreeSet<ZoneId>>) -> Option<Job> {
        let touched = tree.runs().any(|p| p.run.uses().iter().any(|(zone, _)| victims.contains(&zone)));
        let mut job = touched.then(|| Job::everything_from(tree, 0))?;
        job.placement.stitch_at = 0;
        job.placement.evacuate = Some(victims.clone());
        Some(job)
    }
}

/// A compaction under way.
pub(crate) struct Compaction {
    job: Job,
    /// Of the inputs as they are now.
    merge: Merge,
    /// What is merged and installed: everything in front of the inputs.
    result: Option<Placed>,
}

impl Compaction {
    pub(crate) fn begin(db: &Database, job: Job) -> Result<Compaction> {
        let merge = Compaction::merge(db, &job)?;
        Ok(Compaction { job, merge, result: None })
    }

    fn merge(db: &Database, job: &Job) -> Result<Merge> {
        let inputs: Vec<Input> = job.inputs.iter().map(|(_, p)| Input::Run(p.run.clone())).collect();
        let options = MergeOptions {
            placement: job.placement.clone(),
            drop_tombstones: job.to_bottom,
            separate_at: job.separate_at,
            old_seq: db.visible.load(Ordering::Acquire),
            reserve: Reserve::Use,
        };
        Ok(Merge::new(&db.store, &inputs, &KeyRange::all(), options)?)
    }

    /// A bounded part of the work. `None`: all of it is done.
    pub(crate) fn step(mut self, db: &Database) -> Result<Option<Compaction>> {
        let budget = STEP.min(db.shares.merge_part);
        let done = self.merge.step(budget)?;
        let m = self.merge.stats();
        if !done && m.blocks_written + m.values_written + m.index_written < db.part_size() {
            return Ok(Some(self));
        }
        self.install(db)
    }

    /// Makes what is merged part of the store, in place of that much of the inputs. `None`: that was all.
    fn install(self, db: &Database) -> Result<Option<Compaction>> {
        let Compaction { mut job, merge, result: before } = self;
        let (run, next, stats) = merge.cut()?;
        db.counters.merged(&stats);
        let joined: Vec<Arc<Run>> = before.iter().map(|p| p.run.clone()).chain(run).collect();
        let joined = match joined.len() {
            0 | 1 => joined.into_iter().next(),
            _ => vt_tree::concat(&db.store, &joined)?,
        };
        // Of each input: its level, itself, and what is left of it when that is less than all.
        let mut left: Vec<(usize, Placed, Option<Arc<Run>>)> = Vec::new();
        let mut dropped: Vec<RunId> = before.iter().map(|p| p.id).collect();
        for (level, placed) in job.inputs.drain(..) {
            let rest = match &next {
                None => None,
                Some(next) if placed.run.fences().0 >= next.as_ref() => {
                    left.push((level, placed, None));
                    continue;
                }
                Some(next) => vt_tree::slice(&placed.run, &KeyRange { start: next.clone(), end: None })?,
            };
            dropped.push(placed.id);
            left.extend(rest.map(|rest| (level, placed, Some(rest))));
        }
        db.zones.sync().map_err(|e| db.health.fail("syncing a merge", &e.into()))?;
        let (dict, target) = (job.dict, job.level);
        let (mut result, mut inputs) = (None, Vec::new());
        let mut there = true;
        db.install(|state| {
            let mut edits = vec![Edit::Streams(db.zones.positions())];
            let mut added = Vec::new();
            // Dropped meanwhile: so is the result.
            there = state.dictionaries.contains_key(&dict);
            if there {
                edits.extend(dropped.iter().map(|&id| Edit::DropRun { dict, id }));
                let mut next_id = state.next_run;
                let mut add = |level: usize, age: Option<u64>, run: Arc<Run>| {
                    let placed = Placed { id: RunId(next_id), age: age.unwrap_or(next_id), run };
                    next_id += 1;
                    let (id, age, run) = (placed.id, placed.age, encode_run(&placed.run));
                    edits.push(Edit::AddRun { dict, level: level as u32, id, age, run });
                    added.push((level, placed.clone()));
                    placed
                };
                result = joined.map(|run| add(target, before.as_ref().map(|p| p.age), run));
                for (level, placed, rest) in left {
                    inputs.push((level, rest.map_or(placed.clone(), |rest| add(level, Some(placed.age), rest))));
                }
            }
            let change = move |v: &mut Version| {
                v.change(dict, |tree| {
                    tree.drop_runs(&dropped);
                    added.into_iter().for_each(|(level, placed)| tree.add_run(level, placed));
                });
            };
            (edits, change)
        })?;
        drop(before);
        db.counters.compactions.add(u64::from(next.is_none()));
        db.compacted();
        if next.is_none() || !there {
            return Ok(None);
        }
        job.inputs = inputs;
        let merge = Compaction::merge(db, &job)?;
        Ok(Some(Compaction { job, merge, result }))
    }
}

impl Database {
    /// The most pressing compaction. `tombstones`: also those that only deletions call for; `any`: however few they are.
    pub(crate) fn next_job(&self, tombstones: bool, any: bool) -> Option<Job> {
        let version = self.version.load();
        let shapes = version.trees.values().filter_map(|t| Some((t.levels.first().map_or(0, Vec::len), Job::for_shape(t)?)));
        if let Some((_, job)) = shapes.max_by_key(|(runs, _)| *runs) {
            return Some(job);
        }
        if !tombstones {
            return None;
        }
        version.trees.values().find_map(|t| Job::for_tombstones(t, any))
    }

    /// Does a whole job here and now; `false` when the store is being closed, which gives it up.
    fn compact_now(&self, job: Job) -> Result<bool> {
        let mut compaction = Compaction::begin(self, job)?;
        while let Some(more) = compaction.step(self)? {
            if self.background.stopping() {
                return Ok(false);
            }
            compaction = more;
        }
        Ok(true)
    }

    /// Bytes that a merge writes before it is installed: little when little is free.
    fn part_size(&self) -> u64 {
        let part = self.shares.merge_part;
        // Asked of the device only when enough is written to matter.
        part.min((self.zones.space().free_for_user / 4).max(part / 8))
    }

    /// Merges all runs of a dictionary into one.
    pub(crate) fn compact(&self, dict: DictionaryId) -> Result<()> {
        let mut current = self.compacting.lock();
        *current = None;
        let job = Job::for_all(self.version.load().tree(dict)?);
        if let Some(job) = job {
            self.compact_now(job)?;
        }
        Ok(())
    }

    /// Makes the space of everything deleted free: flushes, merges what has tombstones, and, when zones are mostly holes,
    /// moves the rest of them together. Done by whoever finds the store full, before saying so.
    pub(crate) fn reclaim(&self) -> Result<()> {
        self.flush_all()?;
        let mut current = self.compacting.lock();
        *current = None;
        while let Some(job) = self.next_job(true, true) {
            if !self.compact_now(job)? {
                return Ok(());
            }
        }
        self.evacuate()
    }

    /// Copies what is left in the emptiest zones elsewhere, so that they become free. The caller has `compacting`.
    fn evacuate(&self) -> Result<()> {
        let open: BTreeSet<ZoneId> = self.zones.positions().iter().map(|(_, addr)| ZoneId::of(*addr)).collect();
        let mut zones: Vec<(u64, ZoneId)> = self.zones.usage().iter().map(|&(zone, live, _)| (live, zone)).collect();
        zones.retain(|(live, zone)| live * 4 < ZONE_SIZE * 3 && !open.contains(zone));
        zones.sort_unstable();
        let space = self.zones.space();
        // The copies need room before the zones are free. Two zones stay for the index and for the manifest.
        let room = space.free_for_user + u64::from(space.reserve).saturating_sub(2) * ZONE_SIZE;
        let (mut victims, mut moved) = (BTreeSet::new(), 0);
        for (live, zone) in zones {
            if moved + live > room / 2 {
                break;
            }
            moved += live;
            victims.insert(zone);
        }
        if victims.len() as u64 * ZONE_SIZE < moved + 2 * ZONE_SIZE {
            return Ok(());
        }
        let victims = Arc::new(victims);
        let dicts: Vec<DictionaryId> = self.version.load().trees.keys().copied().collect();
        for dict in dicts {
            let job = self.version.load().trees.get(&dict).and_then(|t| Job::for_evacuation(t, &victims));
            if let Some(job) = job
                && !self.compact_now(job)?
            {
                break;
            }
        }
        Ok(())
    }
}
