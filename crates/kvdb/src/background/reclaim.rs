//! Making room: what a full store does before it says so, and compactions that somebody waits for. All of it has the runs alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use vt_tree::Placement;
use zones::{ZONE_SIZE, ZoneId};

use super::compaction::Compaction;
use super::shape::Job;
use crate::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::version::Tree;

/// Zones that must have become free before a reclaim is content.
const ENOUGH: u64 = 4;
/// Most rounds of a reclaim: whoever waits for it must go on at last.
const ROUNDS: usize = 16;

/// `None`: there was no space for it.
fn unless_full<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(Error::NoSpace) => Ok(None),
        other => other.map(Some),
    }
}

/// Moves what lies in `victims` elsewhere.
fn for_evacuation(tree: &Tree, victims: &Arc<BTreeSet<ZoneId>>) -> Option<Job> {
    let touched = tree.runs().any(|p| p.run.uses().iter().any(|(zone, _)| victims.contains(&zone)));
    let mut job = touched.then(|| Job::everything_from(tree, 0))?;
    job.placement = Some(Placement { evacuate: Some(victims.clone()), ..Placement::stitch() });
    Some(job)
}

impl Database {
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

    /// Merges all runs of a dictionary into one.
    pub(crate) fn compact(&self, dict: DictionaryId) -> Result<()> {
        let _alone = self.merge_alone();
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
            let alone = self.merge_alone();
            let settled = unless_full(self.settle())?.is_some();
            let moved = unless_full(self.evacuate())?.unwrap_or(false);
            drop(alone);
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

    /// Does all compactions that are called for, those for few tombstones too. The caller merges alone.
    fn settle(&self) -> Result<()> {
        while let Some(mut job) = self.next_job(true, true, &[], usize::MAX) {
            job.press();
            if !self.compact_somehow(job)? {
                break;
            }
        }
        Ok(())
    }

    /// Copies what is left in the emptiest zones elsewhere, so that they become free; `false`: there is nothing to gain. The caller
    /// merges alone.
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
            let job = self.version.load().trees.get(&dict).and_then(|t| for_evacuation(t, &victims));
            if let Some(job) = job
                && !self.compact_somehow(job)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
