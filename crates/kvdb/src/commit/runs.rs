//! A commit of runs: runs that a transaction has built, whose data is durable already, enter the
//! store between two generations.

use std::cell::Cell;
use std::sync::Arc;

use vt_tree::{KeyRange, Run, Seq};
use zones::Priority;

use super::committer::{Commit, Committer};
use super::feed::Feed;
use super::locking::borrowed;
use super::log::Pipeline;
use super::memtables::Grown;
use super::recent::{RecentCommit, Remembered};
use super::{Outcome, SnapshotMaker};
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::journal::record::{self, Ops};
use crate::journal::{self, Writer};
use crate::lock_order;
use crate::read::ranks::Ranks;
use crate::version::Version;

/// Makes a snapshot before and one after a commit.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    pub maker: &'a dyn SnapshotMaker,
    /// The lock [`Snapshots::naming`](crate::version::snapshot_set::Snapshots::naming).
    pub naming: &'a lock_order::Mutex<()>,
}

/// A commit of runs.
struct Runs<'a> {
    runs: &'a [(DictionaryId, Vec<Arc<Run>>)],
    /// The changes, if they are known key by key.
    listed: Option<&'a Ops>,
    record: &'a [u8],
    committer: &'a Committer,
    /// Set once the runs are remembered: no transaction begins until the commit is visible.
    remembered: Option<Remembered<'a>>,
}

impl Commit for Runs<'_> {
    fn count(&self) -> u64 {
        1
    }

    fn apply(&mut self, _: &Version, pipeline: &mut Pipeline) -> Grown {
        let newest = pipeline.next_seq;
        let each =
            self.runs.iter().flat_map(|(dict, runs)| runs.iter().map(|run| (*dict, run.clone())));
        let each = each.map(|(dict, run)| RecentCommit { dict, run, newest, one_seq: true });
        self.remembered = Some(self.committer.recent.remember(each));
        Grown::default()
    }

    fn log(&mut self, pipeline: &mut Pipeline) {
        pipeline.stream().extend_from_slice(self.record);
        // `seal_if` writes the record to the device before any other commit, so it is not mirrored.
        pipeline.record_at = None;
    }

    fn changes_version(&self) -> bool {
        true
    }

    fn change(&mut self, version: &mut Version) {
        version.add_runs(self.runs);
    }

    fn note(&self, _: &Version, feed: &Feed, ranks: &Ranks, last: Seq) {
        let version = self.committer.engine.versions.load();
        match self.listed {
            Some(changes) => {
                feed.note(&version, changes, last);
                ranks.note(changes, &[], last);
            }
            None => {
                let dicts: Vec<DictionaryId> = self.runs.iter().map(|(dict, _)| *dict).collect();
                feed.note_unlisted(&version, &dicts, last);
                ranks.note_unlisted(Some(&dicts), last);
            }
        }
    }
}

impl Committer {
    /// Adds runs to the store, above all of its data, once `still` agrees and no locks cover the
    /// ranges in `touched`. See [`Committer::commit_changes`]. The data in the runs is durable
    /// already. `listed` has the changes, if they are known key by key.
    pub(crate) fn add_runs(
        &self,
        runs: &[(DictionaryId, Vec<Arc<Run>>)],
        listed: Option<&Ops>,
        touched: impl FnOnce() -> Result<Vec<(DictionaryId, KeyRange)>>,
        owner: Option<u64>,
        around: Option<Around<'_>>,
        still: impl FnOnce(Seq) -> Result<bool>,
    ) -> Result<Outcome> {
        // A serializable transaction has locked all of `touched`.
        let watched = owner.is_none() && self.locks.any();
        let touched = if watched { touched()? } else { Vec::new() };
        self.wait_for_locks(borrowed(&touched), owner)?;
        // The names are locked after the wait, since the holders of the locks may need them.
        let _naming = around.map(|around| around.naming.lock());
        let around = around.map(|around| around.maker);
        let record = record::bind(&self.engine.zones.positions(), runs);
        let mut writer = self.log.writer.lock();
        // There must be room for the record and for the pending data.
        self.log.write_out_with(&mut writer)?;
        let snapshots = around.map_or(0, |around| 2 * journal::cost(around.record_size()));
        let need = journal::cost(record.len() + record::NUMBER_SIZE) + snapshots;
        while writer.room() < 2 * need {
            self.log.add_segment(&mut writer, Priority::Log)?;
        }
        let mut applied = None;
        // Held no longer than the pipeline's lock, which is taken before it.
        let guard = Cell::new(None);
        let add = |pipeline: &mut Pipeline| {
            let commit = Runs { runs, listed, record: &record, committer: self, remembered: None };
            applied = Some(self.run(pipeline, &self.engine.versions.load(), commit));
            drop(guard.take());
        };
        // Other commits may have filled the room; then the whole attempt is repeated.
        let agree = |version: &Version, pipeline: &mut Pipeline, writer: &Writer| {
            runs.iter().try_for_each(|(dict, _)| version.tree(*dict).map(drop))?;
            let room = writer.room() >= journal::cost(pipeline.pending.len()) + need;
            if !room
                || !still(pipeline.next_seq - 1)?
                || (owner.is_none() && self.locks.any() && !watched)
            {
                return Ok(None);
            }
            if watched {
                let Ok(free) = self.locks.try_guard(borrowed(&touched), owner) else {
                    return Ok(None);
                };
                guard.set(Some(free));
            }
            Ok(Some(Vec::new()))
        };
        match around {
            None => self.seal_if(&mut writer, agree, add)?,
            Some(around) => {
                let agree = |version: &Version, pipeline: &mut Pipeline, writer: &Writer| {
                    let agreed = agree(version, pipeline, writer)?;
                    Ok(agreed.map(|_| self.last_record(around, version, pipeline)))
                };
                let mut add = add;
                let commit = |pipeline: &mut Pipeline| {
                    around.closed();
                    add(pipeline);
                    self.last_record(around, &self.engine.versions.load(), pipeline)
                };
                self.seal_around(&mut writer, agree, commit, |_| around.closed())?;
            }
        }
        drop(writer);
        let Some(applied) = applied else { return Ok(Outcome::Stale) };
        self.engine.counters.commits.add(1);
        self.engine.signals.deleted();
        Ok(Outcome::Applied(applied))
    }
}
