//! Making room: what a full store does before it says so, and compactions that somebody waits for.
//! All of it has the runs alone.

use vt_tree::Placement;
use zones::ZONE_SIZE;

use super::compaction::{Compaction, Piece};
use super::shape::Job;
use crate::db::database::Database;
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
    /// Does a whole job here and now, a large one in several threads; `false` when the store is
    /// being closed, which gives the rest of it up.
    fn compact_now(&self, job: Job) -> Result<bool> {
        let defragments = job.defragments;
        let (mut first, _) = Compaction::begin(self, job, 0);
        first.prepare(self)?;
        let whole = first.whole().clone();
        let stop = || self.signals.stopping() || (defragments && self.defragmenter.stopping());
        let work = |first: Option<Piece>| {
            let mut piece = first;
            while let Some(mut own) = piece.take().or_else(|| whole.take()) {
                let done = loop {
                    if self.inline() {
                        own.turn();
                    }
                    match own.step(self) {
                        Ok(false) if !stop() => {}
                        done => break done,
                    }
                };
                // Closed, or failed: nobody need go on.
                own.leave(!matches!(done, Ok(true)));
                if !done? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let others = if self.inline() { 0 } else { whole.waiting() };
        env::thread::scope(|scope| {
            let work = &work;
            let helpers: Vec<_> = (0..others)
                .filter_map(|_| {
                    env::thread::Builder::new()
                        .name("kvdb-merge".into())
                        .spawn_scoped(scope, || work(None))
                        .ok()
                })
                .collect();
            let mut done = work(Some(first));
            for helper in helpers {
                let helped = helper.join().unwrap_or_else(|_| {
                    Err(Error::Invalid("a merging thread has panicked".into()))
                });
                done = match (done, helped) {
                    (Ok(a), Ok(b)) => Ok(a && b),
                    (Err(e), _) | (_, Err(e)) => Err(e),
                };
            }
            done
        })
    }

    /// The same; when there is no space for it, merged with everything older, which may make some.
    fn compact_somehow(&self, job: Job) -> Result<bool> {
        let (dict, level, to_bottom) =
            (job.dict, job.inputs.first().map_or(0, |p| job.level_of(p.id)), job.to_bottom);
        match self.compact_now(job) {
            Err(Error::NoSpace) if !to_bottom => {
                let job = self
                    .versions
                    .load()
                    .trees
                    .get(&dict)
                    .map(|tree| Job::everything_from(tree, level));
                let Some(mut job) = job.filter(|job| !job.inputs.is_empty()) else {
                    return Ok(true);
                };
                job.press();
                self.compact_now(job)
            }
            done => done,
        }
    }

    /// Merges all runs of a dictionary into one.
    pub(crate) fn compact(&self, dict: DictionaryId) -> Result<()> {
        let _alone = self.merge_alone();
        let job = Job::for_all(self.versions.load().tree(dict)?);
        if let Some(job) = job {
            self.compact_somehow(job)?;
        }
        Ok(())
    }

    /// The same as a part of a defragmentation, which may have a placement of its own: by that even
    /// a single run is merged.
    pub(crate) fn compact_to_defragment(
        &self,
        dict: DictionaryId,
        placement: Option<Placement>,
    ) -> Result<()> {
        let _alone = self.merge_alone();
        // The version is let go of before the merge: it would keep what the merge leaves behind.
        let job = {
            let version = self.versions.load();
            let tree = version.tree(dict)?;
            match placement {
                None => Job::for_all(tree),
                placement => {
                    tree.runs().next().map(|_| Job { placement, ..Job::everything_from(tree, 0) })
                }
            }
        };
        if let Some(job) = job {
            self.compact_somehow(Job { defragments: true, ..job })?;
        }
        Ok(())
    }

    /// Makes the space of what was deleted free: flushes, merges what has tombstones, and, when
    /// zones are mostly holes, moves the rest of them together, until there is some room or nothing
    /// is left to gain. Done by whoever finds the store full, before saying so. `true`: there may
    /// be more to gain.
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
            if self.signals.stopping() || !gained || (!moved && flushed && settled) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Does all compactions that are called for, those for few tombstones too. The caller merges
    /// alone.
    fn settle(&self) -> Result<()> {
        // Deletions first: these merges write least and gain most, and may make the room that
        // others find none without.
        let jobs: Vec<Job> = self
            .versions
            .load()
            .trees
            .values()
            .filter_map(|tree| Job::for_tombstones(tree, true))
            .collect();
        for mut job in jobs {
            job.press();
            if unless_full(self.compact_now(job))? == Some(false) {
                return Ok(());
            }
        }
        while let Some(mut job) = self.next_job(true, true, &[], usize::MAX) {
            job.press();
            if !self.compact_somehow(job)? {
                break;
            }
        }
        Ok(())
    }
}
