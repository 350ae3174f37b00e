//! The commit pipeline. A commit places its large values, or copies them into buffers until they
//! are placed. Then, under one short lock, it writes the memtables, appends its record to the
//! journal's buffer (a single `put` does these two in the other order) and becomes visible. It
//! waits only for room, for memory or for a lock of a transaction; the pending stream is usually
//! written by the journal's thread.
//!
//! Durability is a second stage (see `log`, which has the records from then on): a caller that
//! needs a position of the journal's stream to be durable waits for a sync that began after its
//! record was in the buffer. One of the waiting threads does the sync for all of them; the others
//! join the next one.
//!
//! The modules in the order of a commit: `batch`, `validate`, `updates`, `place` (large values are
//! placed, or copied into the log's buffers), `enter` (the lock, with room in the log),
//! `memtables`; then `log` (write and sync) and `sealing`, in which `short_values` decides when
//! short values are placed outside their blocks. `recent` has the commits in which transactions
//! look for conflicts, `locking` the locks that a commit waits for, `conditional` a commit that
//! checks for conflicts without a transaction, `order` the rule that edits of the manifest become
//! durable after the commits before them.

pub(crate) mod batch;
pub(crate) mod conditional;
mod enter;
pub(crate) mod feed;
pub(crate) mod locking;
pub(crate) mod log;
mod memtables;
pub(crate) mod order;
mod place;
mod put;
pub(crate) mod recent;
mod replay;
pub(crate) mod sealing;
mod short_values;
#[cfg(test)]
mod tests;
pub(crate) mod updates;
mod validate;

use env::sync::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use env::Env;
use vt_tree::{Compression, Seq};
use zones::Zones;

use self::batch::{Batch, Durability};
use self::feed::{CommitPosition, CommittedKey, Feed};
use self::log::{Log, Pipeline, deferred};
pub(crate) use self::memtables::{Written, write_memtables};
use self::recent::RecentCommits;
use self::sealing::Sealed;
pub use self::validate::{MAX_KEY, MAX_UPDATE, MAX_VALUE};
pub(crate) use self::validate::{SpaceClaim, Valid, check_put};
use crate::commit::locking::{lock_owner, ranges};
use crate::counters::Counters;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::journal::Writer;
use crate::journal::record::{self, Op, Ops};
use crate::lock_order::{self, Rank};
use crate::locks::Locks;
use crate::options::{OpenOptions, Shares};
use crate::read::ranks::Ranks;
use crate::read::version::Version;
use crate::read::version_set::VersionSet;
use crate::signals::Signals;

/// The engine's services that a commit needs.
pub(crate) trait CommitEnv {
    /// Admits a commit of `bytes`: at once, after a delay, or with an error. `deferred` is the
    /// number of bytes that will be deferred.
    fn admit(&self, bytes: usize, deferred: usize, claim: SpaceClaim) -> Result<()>;

    /// Reclaims deleted data when space runs short, or waits for the thread that does. Returns
    /// `false` without an attempt if nothing was deleted or flushed since the last one. `true` does
    /// not mean that space was gained: the caller must check again.
    fn want_space(&self) -> bool;

    /// Flushes all earlier commits into runs.
    fn flush_all(&self) -> Result<()>;

    /// Starts the work that a commit has made due.
    fn after_commit(&self, applied: Applied) -> Result<()>;
}

/// Makes the snapshots with which generations end, while no other commit happens.
pub(crate) trait SnapshotMaker {
    /// Returns the maximum size of a snapshot's record in the journal, bytes.
    fn record_size(&self) -> usize;

    /// Returns the record of a snapshot of `version` with the commits up to `seq`. For a pair of
    /// snapshots around a commit, the first call makes the one before it.
    fn record(&self, version: &Version, seq: Seq) -> Vec<u8>;

    /// Notes that the generation that ends with the snapshot is sealed: the snapshot can be read
    /// from now on.
    fn closed(&self);
}

/// The parts that the pipeline shares with others.
pub(crate) struct CommitParts {
    pub env: Arc<dyn Env>,
    pub zones: Arc<Zones>,
    pub options: OpenOptions,
    pub health: Arc<Health>,
    pub counters: Arc<Counters>,
    pub signals: Arc<Signals>,
    pub versions: Arc<VersionSet>,
    pub locks: Arc<Locks>,
    pub recent: Arc<RecentCommits>,
    pub feed: Arc<Feed>,
    pub ranks: Arc<Ranks>,
}

/// The pipeline, from a batch to a durable record and to memtables that readers see.
///
/// For the order of its locks see `lock_order`. A plain commit takes `value_buffers` by itself,
/// then `pipeline` and, while there are serializable transactions, `locks` under it. If room is
/// missing, it takes `writer` before these.
pub(crate) struct CommitPipeline {
    env: Arc<dyn Env>,
    zones: Arc<Zones>,
    options: OpenOptions,
    shares: Shares,
    health: Arc<Health>,
    counters: Arc<Counters>,
    signals: Arc<Signals>,
    versions: Arc<VersionSet>,
    locks: Arc<Locks>,
    recent: Arc<RecentCommits>,
    feed: Arc<Feed>,
    ranks: Arc<Ranks>,
    /// Bytes in the active memtables.
    active_bytes: AtomicUsize,
    /// Bytes in the sealed memtables.
    sealed_bytes: AtomicUsize,
    /// The sealed generations that wait for their flush, oldest first.
    sealed: lock_order::Mutex<VecDeque<Sealed>>,
    pub(crate) log: Log,
}

/// Returns the journal's record of a commit whose changes are in the manifest: a deletion in
/// dictionary 0, which does not exist. It takes the commit's number and changes nothing.
pub(crate) fn number_alone() -> Ops {
    vec![(DictionaryId(0), Op::Delete(Bytes::new()))]
}

impl CommitPipeline {
    /// Returns a pipeline whose next commit has number `next_seq`, and whose journal `writer`
    /// continues.
    pub(crate) fn new(parts: CommitParts, next_seq: Seq, writer: Writer) -> CommitPipeline {
        let active = parts.versions.load().memtable_bytes();
        CommitPipeline {
            log: Log::new(&parts, next_seq, writer),
            shares: Shares::of(&parts.options),
            env: parts.env,
            zones: parts.zones,
            options: parts.options,
            health: parts.health,
            counters: parts.counters,
            signals: parts.signals,
            versions: parts.versions,
            locks: parts.locks,
            recent: parts.recent,
            feed: parts.feed,
            ranks: parts.ranks,
            active_bytes: AtomicUsize::new(active),
            sealed_bytes: AtomicUsize::new(0),
            sealed: lock_order::Mutex::new(Rank::Sealed, VecDeque::new()),
        }
    }

    /// Keeps the keys of future commits to the main branch, in at most `bytes` bytes.
    pub(crate) fn follow_main(&self, bytes: usize, reserved: &[DictionaryId]) -> CommitPosition {
        let feed = self.env.random();
        let pipeline = self.log.pipeline.lock();
        self.feed.follow("", bytes, reserved, pipeline.next_seq - 1, feed)
    }

    /// Keeps the keys of future commits to a branch. Returns `None` if the branch does not exist.
    pub(crate) fn follow(
        &self,
        branch: &str,
        bytes: usize,
        reserved: &[DictionaryId],
    ) -> Option<CommitPosition> {
        let feed = self.env.random();
        let pipeline = self.log.pipeline.lock();
        // The branch cannot end before it is followed, since its end is a commit.
        let is_there = self.versions.load().has_branch(branch);
        is_there.then(|| self.feed.follow(branch, bytes, reserved, pipeline.next_seq - 1, feed))
    }

    /// Continues after a commit that was made elsewhere, in a store that is open for reading only.
    /// For `changes` see [`Feed::note_published`].
    pub(crate) fn follow_published(
        &self,
        to: Seq,
        changes: Option<Vec<(DictionaryId, CommittedKey)>>,
    ) {
        let mut pipeline = self.log.pipeline.lock();
        pipeline.next_seq = to + 1;
        self.feed.note_published(&self.versions.load(), changes, to);
        self.ranks.note_unlisted(None, to);
    }

    /// Returns whether a part of the store needs the changes of commits.
    pub(crate) fn wants_changes(&self) -> bool {
        self.feed.is_on() || self.ranks.is_on()
    }

    /// Calls `begin` with the number of the newest commit, while no commit happens.
    pub(crate) fn between_commits(&self, begin: &mut dyn FnMut(Seq)) {
        let pipeline = self.log.pipeline.lock();
        begin(pipeline.next_seq - 1);
    }

    /// Commits a batch: validates it, places or copies its large values, makes its changes visible,
    /// and syncs if `durability` asks for that.
    pub(crate) fn commit(
        &self,
        engine: &impl CommitEnv,
        batch: Batch,
        durability: Durability,
    ) -> Result<()> {
        self.health.writable()?;
        // If the caller waits for the next sync, large values are logged with the record.
        let placing = if batch.sync_follows { Durability::Synced } else { durability };
        let mut valid = self.validate(&self.versions.load(), batch)?;
        // Other commits may have changed the keys in the meantime.
        valid.known.clear();
        if valid.changes.is_empty() {
            return match durability {
                Durability::Buffered => Ok(()),
                Durability::Synced => self.sync(engine),
            };
        }
        self.fold_updates(engine, &valid.changes)?;
        if let Outcome::Applied(applied) =
            self.commit_changes(engine, valid, placing, lock_owner(), |_, _| Ok(true))?
        {
            if placing == Durability::Synced {
                self.log.synced_commit_is_awaited();
            }
            self.finish(engine, durability, applied)?;
        }
        Ok(())
    }

    /// Commits changes if `still` agrees. It is called under the pipeline's lock with the newest
    /// commit's number and the changes, after other owners' locks on them are gone. `durability`
    /// decides how large values are placed; the caller syncs, and calls `after_commit`.
    pub(crate) fn commit_changes(
        &self,
        engine: &impl CommitEnv,
        valid: Valid,
        durability: Durability,
        owner: Option<u64>,
        still: impl Fn(Seq, &Ops) -> Result<bool>,
    ) -> Result<Outcome> {
        let Valid { mut changes, claim, mut pin, note, known } = valid;
        let version = self.versions.load_full();
        let user_bytes: u64 = changes.iter().map(|(_, op)| op.bytes() as u64).sum();
        let (large, total) = self.large(&version, &changes);
        drop(version);
        if total >= self.options.late_bind_at.min(deferred::LONGEST) {
            pin.merge(self.bind(engine, large, &mut changes, claim)?);
        } else if !large.is_empty()
            && (durability == Durability::Buffered || !self.options.journal)
            && !self.log.is_mirrored()
        {
            // Admission precedes the copy, which takes memory.
            engine.admit(user_bytes as usize, total as usize, claim)?;
            self.copy_values(&large, &mut changes);
        }
        let record = record::size(&changes);
        if record > self.shares.largest_record {
            return Err(Error::Invalid(format!(
                "a batch of {record} bytes is more than memory allows ({}): split it, or give the store more memory",
                self.shares.largest_record
            )));
        }
        if !changes.iter().any(|(_, op)| matches!(op, Op::PutDeferred(..))) {
            engine.admit(record, 0, claim)?;
        }
        let deletes = claim.removes
            || changes.iter().any(|(_, op)| matches!(op, Op::Delete(_) | Op::DeleteRange(..)));
        let mut valid = Valid { changes, claim, pin, note, known };
        let mut applied = loop {
            match self.apply(engine, record, &mut valid, owner, &still)? {
                Attempt::Applied(applied) => break applied,
                Attempt::Stale => return Ok(Outcome::Stale),
                Attempt::Locked => self.wait_for_locks(ranges(&valid.changes), owner)?,
            }
        };
        if deletes {
            self.signals.deleted();
        }
        self.counters.commits.add(1);
        self.counters.user_bytes.add(user_bytes);
        applied.sync_follows = durability == Durability::Synced;
        Ok(Outcome::Applied(applied))
    }

    /// Returns the size of all memtables and deferred values, bytes.
    pub(crate) fn memtable_bytes(&self) -> usize {
        self.active_bytes() + self.sealed_bytes() + self.log.deferred_bytes()
    }

    /// Returns the size of the active memtables, bytes.
    pub(crate) fn active_bytes(&self) -> usize {
        self.active_bytes.load(Ordering::Acquire)
    }

    /// Returns the size of the sealed memtables, bytes.
    pub(crate) fn sealed_bytes(&self) -> usize {
        self.sealed_bytes.load(Ordering::Acquire)
    }

    /// Waits until the commit under way, if any, is visible: later commits see the locks that were
    /// taken before this call.
    pub(crate) fn await_visible(&self) {
        drop(self.log.pipeline.lock());
    }

    /// Makes the next `count` changes visible; they are in memtables that must be flushed. Every
    /// commit becomes visible here or in [`CommitPipeline::publish`]: from `put`, `apply`,
    /// `add_runs` and `install_commit_with`.
    fn publish_unflushed(
        &self,
        pipeline: &mut Pipeline,
        version: &Version,
        count: u64,
        grown: usize,
        deferred: usize,
    ) -> Applied {
        pipeline.unflushed_end = pipeline.end();
        self.publish(pipeline, version, count, grown, deferred)
    }

    /// Makes the next `count` changes visible, which were written to memtables.
    fn publish_written(
        &self,
        pipeline: &mut Pipeline,
        version: &Version,
        count: u64,
        Written { grown, deferred, fresh }: Written,
    ) -> Applied {
        if fresh.is_empty() {
            return self.publish_unflushed(pipeline, version, count, grown, deferred);
        }
        // The version of the readers lacks the fresh memtables: the changes become visible together
        // with a version that has them.
        self.versions.change_by_commit(
            pipeline.next_seq + count - 1,
            |version| version.add_layers(fresh),
            |version| self.publish_unflushed(pipeline, version, count, grown, deferred),
        )
    }

    /// Makes the next `count` changes visible by publishing the newest number to the readers.
    pub(crate) fn publish(
        &self,
        pipeline: &mut Pipeline,
        version: &Version,
        count: u64,
        grown: usize,
        deferred: usize,
    ) -> Applied {
        self.log.mirror(pipeline, count);
        pipeline.next_seq += count;
        self.versions.visible.store(pipeline.next_seq - 1, Ordering::Release);
        let active = self.active_bytes.fetch_add(grown, Ordering::Relaxed) + grown;
        let deferred = self.log.add_deferred(deferred);
        let full = active + deferred.min(self.shares.window) >= self.shares.seal_at
            || version.generation.held() > self.counters.most_held();
        let seal = full.then_some(version.generation.number);
        let pending = pipeline.pending.len();
        let gathered = pending - pipeline.pending.looked_at;
        let cost = pipeline.pending.cost;
        let (end, sync_follows) = (pipeline.end(), false);
        Applied { end, pending, gathered, cost, deferred, sync_follows, seal }
    }

    /// Completes a visible commit: syncs it if `durability` asks for that, and starts the work that
    /// it has made due. An error says that it is committed, but perhaps not on disk.
    pub(crate) fn finish(
        &self,
        engine: &impl CommitEnv,
        durability: Durability,
        applied: Applied,
    ) -> Result<()> {
        let synced = self.sync_if(engine, durability, &applied);
        synced.and_then(|()| engine.after_commit(applied)).map_err(Error::after_commit)
    }

    /// Runs the second stage of a commit.
    pub(crate) fn sync_if(
        &self,
        engine: &impl CommitEnv,
        durability: Durability,
        applied: &Applied,
    ) -> Result<()> {
        if durability == Durability::Buffered {
            return Ok(());
        }
        self.log.synced_commit_is_awaited();
        let synced = self.sync_to(engine, applied.end);
        if self.options.journal {
            // The commit is visible. If its sync fails, its durability is unknown, so the store
            // stops. `NoSpace` is no exception, because all space was reserved before.
            synced.map_err(|e| self.health.fail("syncing a commit", &e))?;
            return self.log.sync_elsewhere();
        }
        synced
    }

    /// Makes everything that was committed before this call durable, for a caller that waits.
    pub(crate) fn sync(&self, engine: &impl CommitEnv) -> Result<()> {
        self.log.sync_is_awaited();
        self.sync_at_interval(engine)?;
        self.log.sync_elsewhere()
    }

    /// Does the same as [`CommitPipeline::sync`], without a caller that waits.
    pub(crate) fn sync_at_interval(&self, engine: &impl CommitEnv) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.health.check()?;
        if !self.options.journal {
            return engine.flush_all();
        }
        self.log.sync_unless_marked()
    }

    /// Makes all commits up to `position` of the journal's stream durable.
    pub(crate) fn sync_to(&self, engine: &impl CommitEnv, position: u64) -> Result<()> {
        match self.options.journal {
            true => self.log.sync_to(position),
            false => engine.flush_all(),
        }
    }

    /// Runs the part under the lock: memtables, journal buffer, visibility. A record is not written
    /// out before it is visible, since that takes the same lock.
    fn apply(
        &self,
        engine: &impl CommitEnv,
        record: usize,
        valid: &mut Valid,
        owner: Option<u64>,
        still: impl Fn(Seq, &Ops) -> Result<bool>,
    ) -> Result<Attempt> {
        let Valid { changes, claim, pin, note, known } = valid;
        let changes = &*changes;
        let values = changes
            .iter()
            .filter_map(|(_, op)| if let Op::PutDeferred(_, v, _) = op { Some(v) } else { None });
        let cost = values.map(|v| deferred::cost(v.len())).sum();
        let deletes_only =
            changes.iter().all(|(_, op)| matches!(op, Op::Delete(_) | Op::DeleteRange(..)));
        let mut pipeline = if deletes_only {
            self.enter_to_delete(engine, record)
        } else {
            self.enter(engine, record, cost, *claim)
        }?;
        let first = pipeline.next_seq;
        if !still(first - 1, changes)? {
            return Ok(Attempt::Stale);
        }
        // Held until the changes are visible, so that no transaction locks them in between.
        let _guard = match self.locks.any() {
            false => None,
            true => match self.locks.try_guard(ranges(changes), owner) {
                Ok(guard) => Some(guard),
                Err(_) => return Ok(Attempt::Locked),
            },
        };
        let waiting = pipeline.pending.values.len();
        let version = self.versions.load();
        // A dictionary may have been dropped since the batch was validated. Then the commit fails
        // as a whole, since its record would contain changes that are in no memtable. Besides,
        // `places` below are matched one to one with the deferred values.
        changes
            .chunk_by(|a, b| a.0 == b.0)
            .try_for_each(|some| version.tree(some[0].0).map(drop))?;
        self.versions.forget_tombstones(&version, changes);
        let mut defer = |value| pipeline.pending.push(value);
        let written = write_memtables(&version, first, changes, &mut defer);
        if self.options.journal {
            let mut places = Vec::new();
            record::encode(changes, pipeline.stream(), |at| places.push(at));
            for (value, at) in pipeline.pending.values[waiting..].iter_mut().zip(places) {
                value.at = Some(at);
            }
        }
        if !pin.uses().is_empty() {
            version.generation.pin(std::mem::take(pin));
        }
        let count = changes.len() as u64;
        pipeline.note = note.take();
        let applied = self.publish_written(&mut pipeline, &version, count, written);
        self.feed.note(&version, changes, first + count - 1);
        self.ranks.note(changes, known, first + count - 1);
        Ok(Attempt::Applied(applied))
    }
}

/// The result of an attempt under the pipeline's lock.
enum Attempt {
    Applied(Applied),
    Stale,
    /// A transaction holds a lock on a range of the changes.
    Locked,
}

/// The result of an attempt to commit.
pub(crate) enum Outcome {
    Applied(Applied),
    /// A newer commit must be looked at first; nothing was changed.
    Stale,
}

/// The state of the pipeline after a commit, which decides what work is due.
pub(crate) struct Applied {
    /// The position after its record.
    pub end: u64,
    /// Bytes of the pending stream.
    pub pending: usize,
    /// Bytes of the pending stream that were added since the last decision to leave it in memory.
    pub gathered: usize,
    /// The space that the deferred values will take on the device.
    pub cost: u64,
    /// The memory of the deferred values.
    pub deferred: usize,
    /// The caller will sync, which writes the pending stream.
    pub sync_follows: bool,
    /// The generation, if it should be sealed.
    pub seal: Option<u64>,
}

/// Returns the compression of large values in a dictionary.
fn codec(version: &Version, dict: DictionaryId) -> Compression {
    version.trees.get(&dict).map_or(Compression::None, |t| t.info().options.compress_values)
}
