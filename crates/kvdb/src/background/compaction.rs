//! Compaction: which runs to merge, and one such merge under way. The shape is tiered above and one run at the bottom: when a level
//! has gathered [`FAN`] runs they become one run of the next level, or, once what lies above the bottom run weighs a good part of
//! it, all are merged into the bottom run. Deletions are debts of their own: a run with tombstones above older runs keeps dead
//! data alive, so when the store is quiet, or short of space, it is merged with everything below it.
//!
//! A merge is installed in parts. Once it has written enough, or as much as there is room for, what is before a key becomes a run of
//! its own at the level below, the inputs are cut there, and what only they held is free for the next part: runs are ropes, so
//! this costs a few index nodes. Each part is one edit of the manifest, so the store is whole after any of them; however large
//! the runs, it never holds more than one part twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vt_tree::{ADAPTIVE, Input, KeyRange, Merge, MergeOptions, Placement, Run, concat, slice};
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
pub(crate) const BOTTOM: usize = 15;
/// Zones that must have become free before a reclaim is content.
const ENOUGH: u64 = 4;
/// Spans of key blocks that stay where they are when space is short, bytes.
const PRESSED: u64 = 1 << 20;
/// Most rounds of a reclaim: whoever waits for it must go on at last.
const ROUNDS: usize = 16;
/// When not even a part of this size finds room, there is none.
const SMALLEST: u64 = 256 << 10;
/// Zones that a part leaves alone: the last ones, and the open ones that it may begin.
const LEFT: u64 = 3;
/// Bytes of work after which a compaction looks up.
const STEP: u64 = 4 << 20;

/// Runs to merge.
pub(crate) struct Job {
    dict: DictionaryId,
    /// Newest first; adjacent in age.
    inputs: Vec<Placed>,
    /// The level of each input.
    levels: Vec<(RunId, usize)>,
    /// That of the result.
    level: usize,
    /// Nothing older lies below.
    to_bottom: bool,
    /// `None`: as the dictionary's threshold says.
    placement: Option<Placement>,
    separate_at: u32,
}

/// Seeks that cost more than this many bytes of reading are dear: large values are moved for the sake of scans.
const DEAR: u64 = 64 << 10;

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
        let of_level = |(level, runs): (usize, &Vec<Placed>)| runs.iter().map(|p| (p.id, level)).collect::<Vec<_>>();
        let levels = tree.levels.iter().enumerate().flat_map(of_level).collect();
        Job { dict: tree.info.id, inputs, levels, level, to_bottom, placement: None, separate_at: tree.info.options.separate_at }
    }

    /// The level that the input lies at.
    fn level_of(&self, id: RunId) -> usize {
        self.levels.iter().find(|(of, _)| *of == id).map_or(BOTTOM, |(_, level)| *level)
    }

    /// Space is short: no value is moved for the sake of scans, and no few key blocks stay behind that would keep a zone.
    fn press(&mut self) {
        if self.placement.is_none() {
            self.placement = Some(Placement { stitch_at: PRESSED, ..Placement::stitch() });
        }
    }

    /// The policy for the next part: what the dictionary's threshold is by then.
    pub(super) fn placement(&self, db: &Database) -> Placement {
        if let Some(placement) = &self.placement {
            return placement.clone();
        }
        let stitch_at = db.version.load().trees.get(&self.dict).map_or(ADAPTIVE, |t| t.info.options.stitch_at);
        let seek_bytes = db.options.seek_bytes;
        let values_at = match stitch_at {
            ADAPTIVE if seek_bytes < DEAR => 0,
            ADAPTIVE => seek_bytes,
            at => at,
        };
        // Large values are moved on their way to the bottom, once; a plain LSM-tree moves them every time.
        let values_at = if self.to_bottom || stitch_at == u64::MAX { values_at } else { 0 };
        Placement { stitch_at, values_at, seek_bytes, evacuate: None }
    }

    /// All runs from level `from` downwards.
    pub(super) fn everything_from(tree: &Tree, from: usize) -> Job {
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
        job.placement = Some(Placement { evacuate: Some(victims.clone()), ..Placement::stitch() });
        Some(job)
    }
}

/// A compaction under way.
pub(crate) struct Compaction {
    job: Job,
    /// Of the inputs as they are now; `None`: not begun.
    merge: Option<Merge>,
    /// What is merged and installed: everything before the inputs.
    result: Option<Placed>,
    /// Bytes to write before the next install.
    part: u64,
}

/// An input behind a part: where it is, and what is left of it. `None`: nothing; else itself when no byte was cut off.
struct Cut {
    input: Placed,
    rest: Option<Arc<Run>>,
}

impl Compaction {
    pub(crate) fn begin(db: &Database, job: Job) -> Compaction {
        Compaction { job, merge: None, result: None, part: db.part_size() }
    }

    /// A bounded part of the work; `true` when all is done. What finds no space is tried again in smaller parts.
    pub(crate) fn step(&mut self, db: &Database) -> Result<bool> {
        match self.work(db) {
            Err(Error::NoSpace) if self.part > SMALLEST => {
                self.part = (self.part / 4).max(SMALLEST);
                self.job.press();
                Ok(false)
            }
            done => done,
        }
    }

    fn work(&mut self, db: &Database) -> Result<bool> {
        let mut merge = match self.merge.take() {
            Some(merge) => merge,
            None => self.merge(db)?,
        };
        let done = merge.step(STEP.min(self.part))?;
        let m = merge.stats();
        if !done && m.blocks_written + m.values_written + m.index_written < self.part {
            self.merge = Some(merge);
            return Ok(false);
        }
        self.install(db, merge)
    }

    fn merge(&self, db: &Database) -> Result<Merge> {
        let inputs: Vec<Input> = self.job.inputs.iter().map(|p| Input::Run(p.run.clone())).collect();
        let options = MergeOptions {
            placement: self.job.placement(db),
            drop_tombstones: self.job.to_bottom,
            separate_at: self.job.separate_at,
            old_seq: db.visible.load(Ordering::Acquire),
            reserve: Reserve::Merge,
        };
        Ok(Merge::new(&db.store, &inputs, &KeyRange::all(), options)?)
    }

    /// Makes what is merged part of the store, in place of that much of the inputs. `true`: that was all.
    fn install(&mut self, db: &Database, merge: Merge) -> Result<bool> {
        let (run, next, stats) = merge.cut()?;
        let parts: Vec<Arc<Run>> = self.result.iter().map(|p| p.run.clone()).chain(run).collect();
        let joined = if parts.len() > 1 { concat(&db.store, &parts)? } else { parts.into_iter().next() };
        let mut cuts = Vec::new();
        for input in self.job.inputs.iter().cloned() {
            let rest = match &next {
                None => None,
                Some(next) if input.run.fences().0 >= next.as_ref() => Some(input.run.clone()),
                Some(next) => slice(&input.run, &KeyRange { start: next.clone(), end: None })?,
            };
            cuts.push(Cut { input, rest });
        }
        db.zones.sync().map_err(|e| db.health.fail("syncing a merge", &e.into()))?;
        db.counters.merged(&stats);
        let (dict, target, before) = (self.job.dict, self.job.level, self.result.as_ref().map(|p| p.id));
        let mut result = None;
        let mut there = true;
        db.install(|state| {
            let mut edits = vec![Edit::Streams(db.zones.positions())];
            // Dropped meanwhile: so is the result.
            there = state.dictionaries.contains_key(&dict);
            if there {
                for Cut { input, rest } in &cuts {
                    let id = input.id;
                    if rest.as_ref().is_some_and(|rest| Arc::ptr_eq(rest, &input.run)) {
                        continue;
                    }
                    edits.push(Edit::DropRun { dict, id });
                    // Under its number it keeps its place among the others.
                    let level = self.job.level_of(id) as u32;
                    edits.extend(rest.iter().map(|rest| Edit::AddRun { dict, level, id, run: encode_run(rest) }));
                }
                edits.extend(before.map(|id| Edit::DropRun { dict, id }));
                if let Some(run) = joined {
                    let id = before.unwrap_or(RunId(state.next_run));
                    edits.push(Edit::AddRun { dict, level: target as u32, id, run: encode_run(&run) });
                    result = Some(Placed { id, run });
                }
            }
            let gone: Vec<RunId> = cuts.iter().filter(|c| c.rest.is_none()).map(|c| c.input.id).chain(before).collect();
            let rests: Vec<Placed> = cuts.iter().filter_map(|c| Some(Placed { id: c.input.id, run: c.rest.clone()? })).collect();
            let placed = result.clone();
            let change = move |v: &mut Version| {
                v.change(dict, |tree| {
                    tree.drop_runs(&gone);
                    rests.into_iter().for_each(|rest| tree.replace_run(rest));
                    placed.into_iter().for_each(|placed| tree.add_run(target, placed));
                });
            };
            (edits, change)
        })?;
        let done = next.is_none() || !there;
        self.job.inputs = cuts.into_iter().filter_map(|c| Some(Placed { id: c.input.id, run: c.rest? })).collect();
        self.result = result;
        self.part = db.part_size();
        db.counters.compactions.add(u64::from(done));
        db.compacted();
        Ok(done)
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

    /// Does a whole job here and now; `false` when the store is being closed, which gives the rest of it up.
    fn compact_now(&self, job: Job) -> Result<bool> {
        let mut compaction = Compaction::begin(self, job);
        while !compaction.step(self)? {
            if self.background.stopping() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The same; when there is no space for it, merged with everything older, which may make some.
    fn compact_somehow(&self, job: Job) -> Result<bool> {
        let (dict, level, to_bottom) = (job.dict, job.inputs.first().map_or(0, |p| job.level_of(p.id)), job.to_bottom);
        match self.compact_now(job) {
            Err(Error::NoSpace) if !to_bottom => {
                let job = self.version.load().trees.get(&dict).map(|tree| Job::everything_from(tree, level));
                let Some(mut job) = job.filter(|job| !job.inputs.is_empty()) else { return Ok(true) };
                job.press();
                self.compact_now(job)
            }
            done => done,
        }
    }

    /// Bytes that a merge writes before they are installed: less when little is free.
    pub(crate) fn part_size(&self) -> u64 {
        let space = self.zones.space();
        let zones = match space.free_for_user / ZONE_SIZE {
            0 => space.zones_free,
            more => more.saturating_add(u64::from(space.reserve)),
        };
        // Not too little: where inputs are cut, a few blocks are written for that alone.
        let room = zones.saturating_sub(LEFT).saturating_mul(ZONE_SIZE / 4 * 3).max(ZONE_SIZE / 2);
        room.min(self.options.merge_part)
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
        let mut free = 0;
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
            let gained = space.zones_free > std::mem::replace(&mut free, space.zones_free);
            if self.background.stopping() || !gained || (!moved && flushed && settled) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Does all compactions that are called for, those for few tombstones too. The caller has `compacting`.
    fn settle(&self) -> Result<()> {
        while let Some(mut job) = self.next_job(true, true) {
            job.press();
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
        zones.retain(|(live, zone)| live * 8 < ZONE_SIZE * 7 && !open.contains(zone));
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
        // A zone at least.
        if (victims.len() as u64 * ZONE_SIZE) < moved + ZONE_SIZE {
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
