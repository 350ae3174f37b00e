//! Compaction in parts: for a merge whose result finds no room beside its inputs. The merge runs until it has written what there
//! is room for, and stops at a key; what is before that key becomes the bottom run, the inputs are cut there, and what only they
//! held is free for the next part. Each part is one edit of the manifest, so the store is whole after any of them.

use std::sync::Arc;

use vt_tree::{KeyRange, Run, concat, slice};
use zones::ZONE_SIZE;

use super::compaction::{BOTTOM, Compaction, Job};
use super::flush::encode_run;
use crate::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::manifest::{Edit, RunId};
use crate::version::{Placed, Version};

/// Bytes that a part writes at most.
const LARGEST: u64 = 64 << 20;
/// When not even a part of this size finds room, there is none.
const SMALLEST: u64 = 256 << 10;
/// Zones that a part leaves alone: the last ones, and the open ones that it may begin.
const LEFT: u64 = 4;

/// A run that is cut or gone, where it was.
struct Cut {
    id: RunId,
    level: usize,
    rest: Option<Arc<Run>>,
}

impl Database {
    /// Does a job that merges down to the bottom, part by part; `false` when the store is being closed. The caller has `compacting`.
    pub(crate) fn compact_in_parts(&self, mut job: Job) -> Result<bool> {
        debug_assert!(job.to_bottom, "only what is finished may be cut off");
        let mut finished: Option<Placed> = None;
        let mut budget = self.part_budget();
        loop {
            if self.background.stopping() {
                return Ok(false);
            }
            match self.part(&job, &finished, budget) {
                Ok(None) => return Ok(true),
                Ok(Some((rests, done))) => {
                    (job.inputs, finished) = (rests, done);
                    budget = self.part_budget();
                }
                Err(Error::NoSpace) if budget > SMALLEST => budget = (budget / 4).max(SMALLEST),
                Err(e) => return Err(e),
            }
        }
    }

    fn part_budget(&self) -> u64 {
        let space = self.zones.space();
        let zones = match space.free_for_user / ZONE_SIZE {
            0 => space.zones_free,
            more => more.saturating_add(u64::from(space.reserve)),
        };
        (zones.saturating_sub(LEFT).saturating_mul(ZONE_SIZE / 2)).clamp(1 << 20, LARGEST)
    }

    /// One part. `None`: it was the last one; else what is left of the inputs, and the run of all that is finished.
    #[allow(clippy::type_complexity)]
    fn part(&self, job: &Job, finished: &Option<Placed>, budget: u64) -> Result<Option<(Vec<Placed>, Option<Placed>)>> {
        let (merged, at, stats) = Compaction::begin(self, job.clone())?.cut(budget)?;
        let parts: Vec<Arc<Run>> = finished.iter().map(|p| p.run.clone()).chain(merged).collect();
        let done = if parts.len() > 1 { concat(&self.store, &parts)? } else { parts.into_iter().next() };
        let mut cuts = Vec::new();
        for input in &job.inputs {
            let rest = match &at {
                Some(at) => slice(&input.run, &KeyRange { start: at.clone(), end: None })?,
                None => None,
            };
            cuts.push(Cut { id: input.id, level: job.level_of(input.id), rest });
        }
        self.zones.sync().map_err(|e| self.health.fail("syncing a merge", &e.into()))?;
        self.counters.merged(&stats);
        let rests = cuts.iter().filter_map(|c| Some(Placed { id: c.id, run: c.rest.clone()? })).collect();
        let done = self.install_part(job.dict, cuts, finished.as_ref().map(|p| p.id), done)?;
        self.counters.compactions.add(1);
        self.compacted();
        Ok(at.map(|_| (rests, done)))
    }

    /// Makes a part of a merge part of the store.
    fn install_part(
        &self,
        dict: DictionaryId,
        cuts: Vec<Cut>,
        before: Option<RunId>,
        done: Option<Arc<Run>>,
    ) -> Result<Option<Placed>> {
        let mut placed = None;
        self.install(|state| {
            let mut edits = vec![Edit::Streams(self.zones.positions())];
            // Dropped meanwhile: so is the result.
            if state.dictionaries.contains_key(&dict) {
                for cut in &cuts {
                    edits.push(Edit::DropRun { dict, id: cut.id });
                    // Under its number it keeps its place among the others.
                    edits.extend(cut.rest.iter().map(|run| {
                        let run = encode_run(run);
                        Edit::AddRun { dict, level: cut.level as u32, id: cut.id, run }
                    }));
                }
                edits.extend(before.map(|id| Edit::DropRun { dict, id }));
                if let Some(run) = done {
                    let id = before.unwrap_or(RunId(state.next_run));
                    edits.push(Edit::AddRun { dict, level: BOTTOM as u32, id, run: encode_run(&run) });
                    placed = Some(Placed { id, run });
                }
            }
            let placed = placed.clone();
            let change = move |v: &mut Version| {
                v.change(dict, |tree| {
                    let gone: Vec<RunId> = cuts.iter().filter(|c| c.rest.is_none()).map(|c| c.id).chain(before).collect();
                    tree.drop_runs(&gone);
                    for cut in cuts {
                        if let Some(rest) = cut.rest {
                            tree.replace_run(cut.id, rest);
                        }
                    }
                    if let Some(placed) = placed {
                        tree.add_run(BOTTOM, placed);
                    }
                });
            };
            (edits, change)
        })?;
        Ok(placed)
    }
}
