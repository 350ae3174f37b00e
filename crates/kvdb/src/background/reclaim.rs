//! Making room: what a full store does before it says so, and compactions that somebody waits for. All of it has the runs alone.

use zones::ZONE_SIZE;

use super::compaction::Compaction;
use super::shape::Job;
use crate::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};

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
            let moved = unless_full(self.empty_zones())?.unwrap_or(false);
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
}
