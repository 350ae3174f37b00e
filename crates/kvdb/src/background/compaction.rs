//! Compaction: which runs to merge, and one such merge under way. The shape is tiered above and one run at the bottom: when a level
//! has gathered [`FAN`] runs they become one run of the next level, or, once what lies above the bottom run weighs a good part of
//! it, all are merged into the bottom run. Deletions are debts of their own: a run with tombstones above older runs keeps dead
//! data alive, so when the store is quiet, or short of space, it is merged with everything below it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use vt_tree::{Input, KeyRange, Merge, MergeOptions, MergeStats, Placement, Run};
use zones::{Reserve, ZONE_SIZE, ZoneId};

use super::flush::encode_run;
use crate::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::manifest::{Edit, RunId};
use crate::version::{Placed, Tree, Version};

/// Runs that a level gathers before they are merged.
pub(crate) const FAN: usize = 4;
/// The bottom run is merged when what lies above it weighs this part of it.
const RATIO: u64 = 4;
/// The level of the bottom run.
pub(super) const BOTTOM: usize = 15;
/// Zones that must have become free before a reclaim is content.
const ENOUGH: u64 = 4;
/// Most rounds of a reclaim: whoever waits for it must go on at last.
const ROUNDS: usize = 16;
/// Bytes of work after which a compaction looks up.
const STEP: u64 = 4 << 20;

/// Runs to merge.
#[derive(Clone)]
pub(crate) struct Job {
    pub(super) dict: DictionaryId,
    /// Newest first; adjacent in age.
    pub(super) inputs: Vec<Placed>,
    /// The level of each input.
    levels: Vec<(RunId, usize)>,
    /// That of the result.
    level: usize,
    /// Nothing older lies below.
    pub(super) to_bottom: bool,
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

impl Job {
    fn new(tree: &Tree, inputs: Vec<Placed>, level: usize, to_bottom: bool) -> Job {
        let placement = Placement::threshold(tree.info.options.stitch_at);
        let of_level = |(level, runs): (usize, &Vec<Placed>)| runs.iter().map(|p| (p.id, level)).collect::<Vec<_>>();
        let levels = tree.levels.iter().enumerate().flat_map(of_level).collect();
        Job { dict: tree.info.id, inputs, levels, level, to_bottom, placement, separate_at: tree.info.options.separate_at }
    }

    /// The level that the input lies at.
    pub(super) fn level_of(&self, id: RunId) -> usize {
        self.levels.iter().find(|(of, _)| *of == id).map_or(BOTTOM, |(_, level)| *level)
    }

    /// The same, merged with everything older.
    fn downwards(self, tree: &Tree) -> Job {
        if self.to_bottom {
            return self;
        }
        let level = self.inputs.first().map_or(0, |p| self.level_of(p.id));
        Job { placement: self.placement, ..Job::everything_from(tree, level) }
    }

    /// All runs from level `from` downwards.
    fn everything_from(tree: &Tree, from: usize) -> Job {
        let inputs = tree.levels.iter().skip(from).flatten().cloned().collect();
        Job::new(tree, inputs, BOTTOM, true)
    }

    /// What the shape calls for, if anything.
    pub(crate) fn for_shape(tree: &Tree) -> Option<Job> {
        let (level, runs) = tree.levels.iter().enumerate().take(BOTTOM).find(|(_, runs)| runs.len() >= FAN)?;
        let upper = weights(tree.levels.iter().take(BOTTOM).skip(level).flatten());
        let bottom = weights(tree.levels.iter().skip(BOTTOM).flatten());
        if upper * RATIO >= bottom || level + 1 == BOTTOM {
            return Some(Job::everything_from(tree, level));
        }
        Some(Job::new(tree, runs.clone(), level + 1, false))
    }

    /// What the tombstones call for: their runs merged with everything older. `any`: however few there are.
    pub(crate) fn for_tombstones(tree: &Tree, any: bool) -> Option<Job> {
        let level = tree.levels.iter().position(|runs| runs.iter().any(has_tombstones))?;
        let job = Job::everything_from(tree, level);
        let ranges = job.inputs.iter().any(|p| p.run.stats().range_tombstones);
        let with = weights(job.inputs.iter().filter(|p| has_tombstones(p)));
        (any || ranges || with * 16 >= weights(&job.inputs)).then_some(job)
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
    merge: Merge,
}

impl Compaction {
    pub(crate) fn begin(db: &Database, job: Job) -> Result<Compaction> {
        let inputs: Vec<Input> = job.inputs.iter().map(|p| Input::Run(p.run.clone())).collect();
        let options = MergeOptions {
            placement: job.placement.clone(),
            drop_tombstones: job.to_bottom,
            separate_at: job.separate_at,
            old_seq: db.visible.load(Ordering::Acquire),
            reserve: Reserve::Merge,
        };
        let merge = Merge::new(&db.store, &inputs, &KeyRange::all(), options)?;
        Ok(Compaction { job, merge })
    }

    /// A bounded part of the work; `true` when all is merged and only the install is left.
    pub(crate) fn step(&mut self) -> Result<bool> {
        Ok(self.merge.step(STEP)?)
    }

    /// Works until about `budget` bytes are written, and stops there: see [`Merge::cut`].
    pub(super) fn cut(mut self, budget: u64) -> Result<(Option<Arc<Run>>, Option<Bytes>, MergeStats)> {
        let written = |s: &MergeStats| s.blocks_written + s.values_written + s.index_written;
        while written(&self.merge.stats()) < budget && !self.merge.step(STEP.min(budget))? {}
        Ok(self.merge.cut()?)
    }

    /// Makes the result part of the store in place of its inputs.
    pub(crate) fn install(self, db: &Database) -> Result<()> {
        let Compaction { job, merge } = self;
        let (run, stats) = merge.finish()?;
        db.counters.merged(&stats);
        db.zones.sync().map_err(|e| db.health.fail("syncing a merge", &e.into()))?;
        let (dict, level) = (job.dict, job.level);
        let old: Vec<RunId> = job.inputs.iter().map(|p| p.id).collect();
        db.install(|state| {
            let mut edits = vec![Edit::Streams(db.zones.positions())];
            let id = RunId(state.next_run);
            // Dropped meanwhile: so is the result.
            if state.dictionaries.contains_key(&dict) {
                edits.extend(old.iter().map(|&id| Edit::DropRun { dict, id }));
                edits.extend(run.iter().map(|run| Edit::AddRun { dict, level: level as u32, id, run: encode_run(run) }));
            }
            let change = move |v: &mut Version| {
                v.change(dict, |tree| {
                    tree.drop_runs(&old);
                    if let Some(run) = run {
                        tree.add_run(level, Placed { id, run });
                    }
                });
            };
            (edits, change)
        })?;
        db.counters.compactions.add(1);
        db.compacted();
        Ok(())
    }
}

/// `None`: there was no space for it.
fn unless_full<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(Error::NoSpace) => Ok(None),
        other => other.map(Some),
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
        while !compaction.step()? {
            if self.background.stopping() {
                return Ok(false);
            }
        }
        compaction.install(self)?;
        Ok(true)
    }

    /// The same, in parts when it does not fit in one.
    pub(super) fn compact_somehow(&self, job: Job) -> Result<bool> {
        match self.compact_now(job.clone()) {
            Err(Error::NoSpace) => {
                let Some(tree) = self.version.load().trees.get(&job.dict).cloned() else { return Ok(true) };
                let mut job = job.downwards(&tree);
                // Nothing is moved for the sake of scans now.
                job.placement.stitch_at = 0;
                self.compact_in_parts(job)
            }
            done => done,
        }
    }

    /// Merges all runs of a dictionary into one.
    pub(crate) fn compact(&self, dict: DictionaryId) -> Result<()> {
        let mut current = self.compacting.lock();
        *current = None;
        let job = Job::for_all(self.version.load().tree(dict)?);
        if let Some(job) = job {
            self.compact_somehow(job)?;
        }
        Ok(())
    }

    /// Makes the space of what was deleted free: flushes, merges what has tombstones, and, when zones are mostly holes, moves the
    /// rest of them together, until there is some room or nothing is left to gain. Done by whoever finds the store full, before
    /// saying so. `true`: there may be more to gain.
    pub(crate) fn reclaim(&self) -> Result<bool> {
        for _ in 0..ROUNDS {
            // Without room for a flush, merges may make some.
            let flushed = unless_full(self.flush_all())?.is_some();
            let mut current = self.compacting.lock();
            *current = None;
            let settled = unless_full(self.settle())?.is_some();
            let moved = unless_full(self.evacuate())?.unwrap_or(false);
            drop(current);
            let space = self.zones.space();
            let enough = (space.zones_total / 16).max(ENOUGH) * ZONE_SIZE;
            if space.free_for_user > enough.saturating_add(self.unflushed()) {
                return Ok(moved || !settled);
            }
            if self.background.stopping() || (!moved && flushed && settled) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Does all compactions that are called for, those for few tombstones too. The caller has `compacting`.
    fn settle(&self) -> Result<()> {
        while let Some(mut job) = self.next_job(true, true) {
            job.placement.stitch_at = 0;
            if !self.compact_somehow(job)? {
                break;
            }
        }
        Ok(())
    }

    /// Copies what is left in the emptiest zones elsewhere, so that they become free; `false`: there is nothing to gain. The caller
    /// has `compacting`.
    fn evacuate(&self) -> Result<bool> {
        let open: BTreeSet<ZoneId> = self.zones.positions().iter().map(|(_, addr)| ZoneId::of(*addr)).collect();
        let mut zones: Vec<(u64, ZoneId)> = self.zones.usage().iter().map(|&(zone, live, _)| (live, zone)).collect();
        zones.retain(|(live, zone)| live * 4 < ZONE_SIZE * 3 && !open.contains(zone));
        zones.sort_unstable();
        let space = self.zones.space();
        let free = match space.free_for_user / ZONE_SIZE {
            0 => space.zones_free,
            more => more.saturating_add(u64::from(space.reserve)),
        };
        // The copies need room before the zones are free, and so does the index.
        let room = free.saturating_sub(3).saturating_mul(ZONE_SIZE);
        let (mut victims, mut moved) = (BTreeSet::new(), 0);
        for (live, zone) in zones {
            if moved + live > (room / 2).max(ZONE_SIZE) {
                break;
            }
            moved += live;
            victims.insert(zone);
        }
        // A zone at least, and what the index may take.
        if (victims.len() as u64 * ZONE_SIZE).saturating_sub(moved) < ZONE_SIZE + ZONE_SIZE / 4 {
            return Ok(false);
        }
        let victims = Arc::new(victims);
        let dicts: Vec<DictionaryId> = self.version.load().trees.keys().copied().collect();
        for dict in dicts {
            let job = self.version.load().trees.get(&dict).and_then(|t| Job::for_evacuation(t, &victims));
            if let Some(job) = job
                && !self.compact_somehow(job)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
