//! One merge of runs, under way. Which runs is decided in `shape`; who does it, in `merging`.
//!
//! A merge is installed in parts. Once it has written enough, or as much as there is room for, what is before a key becomes a run of
//! its own at the level below, the inputs are cut there, and what only they held is free for the next part: runs are ropes, so
//! this costs a few index nodes. Each part is one edit of the manifest, so the store is whole after any of them; however large
//! the runs, it never holds more than one part twice.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vt_tree::{Input, KeyRange, Merge, MergeOptions, Run, concat, slice};
use zones::{Reserve, ZONE_SIZE};

use super::flush::encode_run;
use super::shape::{BOTTOM, Claim, Job};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::manifest::{Edit, RunId};
use crate::version::{Placed, Version};

/// When not even a part of this size finds room, there is none.
const SMALLEST: u64 = 256 << 10;
/// Zones that a part leaves alone: the last ones, and the open ones that it may begin.
const LEFT: u64 = 3;
/// Bytes of work after which a compaction looks up.
const STEP: u64 = 4 << 20;
/// A part is no more than this share of the store, but for small stores.
const SHARE: u64 = 20;
const PART_MIN: u64 = 2 * ZONE_SIZE;

/// A compaction under way.
pub(crate) struct Compaction {
    job: Job,
    /// Of the inputs as they are now; `None`: not begun.
    merge: Option<Merge>,
    /// What is merged and installed: everything before the inputs.
    result: Option<Placed>,
    /// Bytes to write before the next install.
    part: u64,
    /// The inputs are out of the way of younger merges, as far as they can be.
    aside: bool,
    /// Items of the inputs that hide older ones, and all of them, when it began.
    hiding: (f64, u64),
}

/// An input behind a part: where it is, and what is left of it. `None`: nothing; else itself when no byte was cut off.
struct Cut {
    input: Placed,
    rest: Option<Arc<Run>>,
}

impl Compaction {
    pub(crate) fn begin(db: &Database, job: Job) -> Compaction {
        let hiding = (db.merging.hiding.items(&job.inputs), job.inputs.iter().map(|p| p.run.stats().items).sum());
        Compaction { job, merge: None, result: None, part: db.part_size(), aside: false, hiding }
    }

    /// What it has taken.
    pub(crate) fn claim(&self, number: u64) -> Claim {
        Claim { number, dict: self.job.dict, runs: self.job.inputs.iter().map(|p| p.id).collect(), level: self.job.level }
    }

    /// The youngest level that it takes runs from.
    pub(crate) fn from(&self) -> usize {
        self.job.from()
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

    /// Moves the inputs of a merge into the bottom down to the last levels above it, so that younger runs are merged meanwhile.
    fn step_aside(&mut self, db: &Database) -> Result<()> {
        let upper: Vec<usize> = self.job.levels.iter().map(|(_, level)| *level).filter(|level| *level < BOTTOM).collect();
        let down = upper.iter().max().map_or(0, |deepest| BOTTOM - 1 - deepest);
        if std::mem::replace(&mut self.aside, true) || !self.job.to_bottom || down == 0 {
            return Ok(());
        }
        let dict = self.job.dict;
        let moves: Vec<(Placed, usize)> = self.job.inputs.iter().map(|p| (p.clone(), self.job.level_of(p.id))).collect();
        let moves: Vec<(Placed, usize)> =
            moves.into_iter().filter(|(_, level)| *level < BOTTOM).map(|(p, level)| (p, level + down)).collect();
        let levels = moves.iter().map(|(p, level)| (p.id, *level)).collect::<Vec<_>>();
        db.install(|state| {
            let mut edits = Vec::new();
            if state.dictionaries.contains_key(&dict) {
                for (Placed { id, run }, level) in &moves {
                    edits.push(Edit::DropRun { dict, id: *id });
                    edits.push(Edit::AddRun { dict, level: *level as u32, id: *id, run: encode_run(run) });
                }
            }
            let change = move |v: &mut Version| {
                v.change(dict, |tree| {
                    let ids: Vec<RunId> = moves.iter().map(|(p, _)| p.id).collect();
                    tree.drop_runs(&ids);
                    // The oldest first, since each becomes the newest of its level.
                    moves.into_iter().rev().for_each(|(placed, level)| tree.add_run(level, placed));
                });
            };
            (edits, change)
        })?;
        for (id, level) in &mut self.job.levels {
            *level = levels.iter().find(|(of, _)| of == id).map_or(*level, |(_, now)| *now);
        }
        Ok(())
    }

    fn work(&mut self, db: &Database) -> Result<bool> {
        self.step_aside(db)?;
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
            drop_tombstones: self.job.to_bottom,
            old_seq: db.visible.load(Ordering::Acquire),
            reserve: Reserve::Merge,
            lane: db.lane(&self.job.inputs, self.job.level),
            ..self.job.options.storage(self.job.placement(db))
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
            let stays = result.as_ref().map(|placed| placed.id);
            let gone = cuts.iter().filter(|c| c.rest.is_none()).map(|c| c.input.id).chain(before.filter(|id| stays != Some(*id)));
            let gone: Vec<RunId> = gone.collect();
            let rests: Vec<Placed> = cuts.iter().filter_map(|c| Some(Placed { id: c.input.id, run: c.rest.clone()? })).collect();
            let placed = result.clone();
            let change = move |v: &mut Version| {
                v.change(dict, |tree| {
                    rests.into_iter().for_each(|rest| tree.replace_run(rest));
                    match placed {
                        // It keeps its place among the others.
                        Some(placed) if before == Some(placed.id) => tree.replace_run(placed),
                        placed => placed.into_iter().for_each(|placed| tree.add_run(target, placed)),
                    }
                    tree.drop_runs(&gone);
                });
            };
            (edits, change)
        })?;
        let done = next.is_none() || !there;
        self.job.inputs = cuts.into_iter().filter_map(|c| Some(Placed { id: c.input.id, run: c.rest? })).collect();
        self.result = result;
        if let Some(placed) = self.result.as_ref().filter(|_| done && target < BOTTOM) {
            // What they hid of each other is gone; what is left of it lies below.
            let items = placed.run.stats().items;
            let left = self.hiding.0 - self.hiding.1.saturating_sub(items) as f64;
            db.merging.hiding.set(placed.id, left / items.max(1) as f64);
        }
        self.part = db.part_size();
        db.counters.compactions.add(u64::from(done));
        db.compacted();
        Ok(done)
    }
}

impl Database {
    /// Bytes that a merge writes before they are installed: less when little is free.
    pub(crate) fn part_size(&self) -> u64 {
        let space = self.zones.space();
        let zones = match space.free_for_user / ZONE_SIZE {
            0 => space.zones_free,
            more => more.saturating_add(u64::from(space.reserve)),
        };
        // Not too little: where inputs are cut, a few blocks are written for that alone.
        let room = zones.saturating_sub(LEFT).saturating_mul(ZONE_SIZE / 4 * 3).max(ZONE_SIZE / 2);
        let share = (space.zones_pinned * ZONE_SIZE / SHARE).max(PART_MIN);
        room.min(self.options.merge_part).min(share)
    }
}
