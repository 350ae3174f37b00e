//! The committer: the skeleton that every commit fills.
//!
//! ```text
//! enter      take the pipeline's lock, with room in the log for the record and for the values
//! agree      the dictionaries are there, the condition holds, and no lock of others covers the
//!            changes; otherwise leave, and nothing has changed
//! apply      write the memtables; or make runs, or an edit of the manifest, ready to be seen
//! log        append the record to the log's pending stream
//! publish    store the commit's number: from then on readers see the commit. A version that
//!            changes with it becomes visible at the same moment
//! note       tell those who follow commits: the feed and the ranks
//! leave      release the lock
//! finish     sync, if the caller waits for that; start the work that is due
//! ```
//!
//! [`Committer::run`] is the skeleton from `apply` to `note`. A kind of commit is a [`Commit`] with
//! these steps, next to the function that enters and agrees for it: `Put` in `put`, `Changes` in
//! `changes`, `Runs` in `runs`. The fourth kind is an edit of the manifest (`order`; an ingest
//! is one). Its steps have the same order, but its `apply` writes the manifest and may fail, so
//! `VersionSet::install_commit` calls them.
//!
//! Invariants:
//!
//! 1. One commit at a time is between `enter` and `leave`: numbers, records and visibility have one
//!    order.
//! 2. All that may wait or fail comes before `apply`: admission, room, locks of transactions. From
//!    `apply` on a commit takes memory and no space, and does not fail.
//! 3. Until `publish`, no reader asks for the numbers of the commit. A search for conflicts in
//!    memtables finds its changes, and waits for it ([`Committer::await_visible`]).
//! 4. A record is written to the device after its commit is visible, since the write takes the
//!    pipeline's lock to get it. So recovery finds no commit that readers could not have seen.
//! 5. A commit in memtables, or in runs that the manifest does not list, moves `unflushed_end`, up
//!    to which the journal is kept.
//! 6. A commit that fails before `apply` has changed nothing. One that fails in `finish` is
//!    visible, and its error says so ([`Error::after_commit`]).

use env::sync::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

use vt_tree::Seq;

use super::batch::Durability;
use super::feed::{CommitPosition, CommittedKey, Feed};
use super::log::{Log, Pipeline};
use super::memtables::Grown;
use super::recent::RecentCommits;
use super::sealing::Sealed;
use super::{CommitEnv, CommitParts};
use crate::dictionary::DictionaryId;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::journal::Writer;
use crate::lock_order::{self, Rank};
use crate::locks::Locks;
use crate::options::Shares;
use crate::read::ranks::Ranks;
use crate::version::Version;

/// The steps in which the kinds of commits differ, from the lock on. None of them waits.
pub(super) trait Commit {
    /// Returns how many numbers the commit takes: one for each change in memtables.
    fn count(&self) -> u64;

    /// Writes the changes, whose numbers begin with `pipeline.next_seq`.
    fn apply(&mut self, version: &Version, pipeline: &mut Pipeline) -> Grown;

    /// Appends the record to [`Pipeline::stream`]. It is not called in a store without a journal.
    fn log(&mut self, pipeline: &mut Pipeline);

    /// Returns whether the version changes with the commit.
    fn changes_version(&self) -> bool;

    /// Changes the version that becomes visible with the commit.
    fn change(&mut self, version: &mut Version);

    /// Tells the feed and the ranks of the commit, whose last number is `last`.
    fn note(&self, version: &Version, feed: &Feed, ranks: &Ranks, last: Seq);
}

/// Commits batches, runs and edits of the manifest; see the module's description.
///
/// For the order of its locks see `lock_order`. A plain commit takes the log's `value_buffers` by
/// itself, then its `pipeline` and, while there are serializable transactions, `locks` under it. If
/// room is missing, it takes the log's `writer` before these.
pub(crate) struct Committer {
    pub(super) engine: Engine,
    pub(super) shares: Shares,
    pub(super) locks: Arc<Locks>,
    pub(super) recent: Arc<RecentCommits>,
    pub(super) feed: Arc<Feed>,
    pub(super) ranks: Arc<Ranks>,
    /// Bytes in the active memtables.
    pub(super) active_bytes: AtomicUsize,
    /// Bytes in the sealed memtables.
    pub(super) sealed_bytes: AtomicUsize,
    /// The sealed generations that wait for their flush, oldest first.
    pub(super) sealed: lock_order::Mutex<VecDeque<Sealed>>,
    pub(crate) log: Log,
}

impl Committer {
    /// Runs a commit that has entered and agreed, up to the end of `note`. `version` is the newest
    /// one.
    pub(super) fn run(
        &self,
        pipeline: &mut Pipeline,
        version: &Version,
        mut commit: impl Commit,
    ) -> Applied {
        let count = commit.count();
        let last = pipeline.next_seq + count - 1;
        self.log.cut_if_due(pipeline);
        let grown = commit.apply(version, pipeline);
        if self.engine.options.journal {
            commit.log(pipeline);
        }
        pipeline.unflushed_end = pipeline.end();
        let applied = if commit.changes_version() {
            self.engine.versions.change_by_commit(
                last,
                |version| commit.change(version),
                |version| self.publish(pipeline, version, count, grown),
            )
        } else {
            self.publish(pipeline, version, count, grown)
        };
        commit.note(version, &self.feed, &self.ranks, last);
        applied
    }

    /// Makes the next `count` changes visible by publishing the newest number to the readers. Every
    /// commit becomes visible here: from [`Committer::run`] and `install_commit_with`.
    pub(super) fn publish(
        &self,
        pipeline: &mut Pipeline,
        version: &Version,
        count: u64,
        Grown { grown, deferred }: Grown,
    ) -> Applied {
        self.log.mirror(pipeline, count);
        pipeline.next_seq += count;
        self.engine.versions.visible.store(pipeline.next_seq - 1, Ordering::Release);
        let active = self.active_bytes.fetch_add(grown, Ordering::Relaxed) + grown;
        let deferred = self.log.add_deferred(deferred);
        let full = active + deferred.min(self.shares.window) >= self.shares.seal_at
            || version.generation.held() > self.engine.counters.most_held();
        let seal = full.then_some(version.generation.number);
        let pending = pipeline.pending.len();
        let gathered = pending - pipeline.pending.looked_at;
        let cost = pipeline.pending.cost;
        self.log.hold_next_to(active + self.sealed_bytes());
        let (end, sync_follows) = (pipeline.end(), false);
        Applied { end, pending, gathered, cost, deferred, sync_follows, seal }
    }

    /// Completes a visible commit: syncs it if `durability` asks for that, and starts the work that
    /// it has made due. An error says that it is committed, but perhaps not on disk.
    pub(crate) fn finish(
        &self,
        services: &impl CommitEnv,
        durability: Durability,
        applied: Applied,
    ) -> Result<()> {
        let synced = self.sync_if(services, durability, &applied);
        synced.and_then(|()| services.after_commit(applied)).map_err(Error::after_commit)
    }

    /// Runs the second stage of a commit.
    pub(crate) fn sync_if(
        &self,
        services: &impl CommitEnv,
        durability: Durability,
        applied: &Applied,
    ) -> Result<()> {
        if durability == Durability::Buffered {
            return Ok(());
        }
        self.log.synced_commit_is_awaited();
        let synced = self.sync_to(services, applied.end);
        if self.engine.options.journal {
            // The commit is visible. If its sync fails, its durability is unknown, so the store
            // stops. `NoSpace` is no exception, because all space was reserved before.
            synced.map_err(|e| self.engine.health.fail("syncing a commit", &e))?;
            return self.log.sync_elsewhere();
        }
        synced
    }

    /// Makes everything that was committed before this call durable, for a caller that waits.
    pub(crate) fn sync(&self, services: &impl CommitEnv) -> Result<()> {
        self.log.sync_is_awaited();
        self.sync_at_interval(services)?;
        self.log.sync_elsewhere()
    }

    /// Does the same as [`Committer::sync`], without a caller that waits.
    pub(crate) fn sync_at_interval(&self, services: &impl CommitEnv) -> Result<()> {
        if self.engine.options.read_only {
            return Ok(());
        }
        self.engine.health.check()?;
        if !self.engine.options.journal {
            return services.flush_all();
        }
        self.log.sync_unless_marked()
    }

    /// Makes all commits up to `position` of the journal's stream durable.
    pub(crate) fn sync_to(&self, services: &impl CommitEnv, position: u64) -> Result<()> {
        match self.engine.options.journal {
            true => self.log.sync_to(position),
            false => services.flush_all(),
        }
    }

    /// Returns a committer whose next commit has number `next_seq`, and whose journal `writer`
    /// continues.
    pub(crate) fn new(
        engine: &Engine,
        parts: CommitParts,
        next_seq: Seq,
        writer: Writer,
    ) -> Committer {
        let active = engine.versions.load().memtable_bytes();
        Committer {
            log: Log::new(engine, next_seq, writer),
            shares: Shares::of(&engine.options),
            engine: engine.clone(),
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
        let feed = self.engine.env.random();
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
        let feed = self.engine.env.random();
        let pipeline = self.log.pipeline.lock();
        // The branch cannot end before it is followed, since its end is a commit.
        let is_there = self.engine.versions.load().has_branch(branch);
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
        self.feed.note_published(&self.engine.versions.load(), changes, to);
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

    /// Returns the memory of all memtables and deferred values, bytes.
    pub(crate) fn memtable_bytes(&self) -> usize {
        self.active_bytes() + self.sealed_bytes() + self.log.deferred_memory()
    }

    /// Returns the size of all memtables and of the deferred values that would wait if none were
    /// held, bytes. Held values are no reason to slow down commits: zones are reserved for them,
    /// and a write of the oldest ones frees memory without a flush.
    pub(crate) fn pressing_bytes(&self) -> usize {
        let deferred = self.log.deferred_bytes().min(2 * self.shares.window);
        self.active_bytes() + self.sealed_bytes() + deferred
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
