//! The engine behind a [`crate::Kvdb`]: what its parts share, and the order in which their locks
//! are taken.
//!
//! Locks, outermost first: `reclaiming` → the gate of `merging` → `flushing` → `naming` of
//! `snapshots` → `writer` (the journal's place on the device) → `manifest` → `swap` (the version) ;
//! and `writer` → `pipeline` → `manifest` → `swap`. A commit alone takes `pipeline` and, while
//! there are serializable transactions, `locks` in it; a reader takes none. A transaction's own
//! state comes before all of them.

use env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::Env;
use env::sync::{Condvar, Mutex};
use vt_tree::BlockCache;
use zones::Zones;

use crate::background::{Background, Defragmenter, Merging};
use crate::commit::pipeline::{Pipeline, Syncing};
use crate::commit::unplaced::Chunks;
use crate::db::options::{OpenOptions, Shares};
use crate::db::stats::Counters;
use crate::dictionary::{DictionaryId, DictionaryInfo, DictionaryOptions, MAX_DICTIONARY_NAME};
use crate::error::{Error, Result};
use crate::health::Health;
use crate::journal::record::{Changes, Op};
use crate::journal::{SEGMENT_SIZE, Writer};
use crate::locks::Locks;
use crate::manifest::{Edit, JournalStart, Manifest};
use crate::read::version::Version;
use crate::read::version_set::VersionEdit;
use crate::read::version_set::VersionSet;
use crate::scrub::Scrubber;
use crate::snapshots::Snapshots;
use crate::transactions::registry::Transactions;

/// A generation that takes no more commits, and where the journal begins once it is in runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealed {
    pub generation: u64,
    /// Of its memtables.
    pub bytes: usize,
    pub start: JournalStart,
}

pub(crate) struct Database {
    pub env: Arc<dyn Env>,
    pub zones: Arc<Zones>,
    pub store: Arc<BlockCache>,
    pub options: OpenOptions,
    pub shares: Shares,
    pub health: Arc<Health>,
    pub counters: Counters,

    pub versions: VersionSet,
    /// Bytes in the memtables that take commits.
    pub active_bytes: AtomicUsize,
    /// Bytes in those that wait for their flush.
    pub sealed_bytes: AtomicUsize,
    /// Bytes of values that wait for their place; no memtable's figure counts them.
    pub unplaced_bytes: AtomicUsize,
    /// Where such values are copied to.
    pub chunks: Mutex<Chunks>,
    /// Somebody has synced a commit: the journal's space should be written ahead of time.
    pub synced_commits: AtomicBool,
    /// Something was deleted since the last flush that idleness made.
    pub deletions: AtomicBool,
    /// Something may be gained by [`Database::reclaim`].
    pub reclaimable: AtomicBool,
    pub reclaiming: Mutex<()>,
    /// The journal has taken a zone of those set aside.
    pub journal_tight: AtomicBool,
    /// Delays that commits owe, not yet slept.
    pub owed_nanos: AtomicU64,

    pub pipeline: Mutex<Pipeline>,
    pub writer: Mutex<Writer>,
    pub syncing: Mutex<Syncing>,
    pub sync_done: Condvar,
    /// The journal's stream is durable up to this position.
    pub durable: AtomicU64,
    /// Nothing but a mark stands before this end of the stream since the last sync.
    pub marked: AtomicU64,

    /// Generations that wait for their flush, oldest first.
    pub sealed: Mutex<VecDeque<Sealed>>,
    pub flushing: Mutex<()>,
    pub merging: Merging,
    pub transactions: Transactions,
    pub locks: Locks,
    pub snapshots: Snapshots,
    pub defragmenter: Defragmenter,
    pub scrubber: Scrubber,
    pub background: Background,
    /// Bytes that commits may still add before the space is looked at again.
    pub space_left: AtomicU64,
    pub closed: AtomicBool,
}

/// What recovery found and made, out of which a database is built.
pub(crate) struct Parts {
    pub env: Arc<dyn Env>,
    pub zones: Arc<Zones>,
    pub store: Arc<BlockCache>,
    pub options: OpenOptions,
    pub health: Arc<Health>,
    pub version: Version,
    pub next_seq: u64,
    pub writer: Writer,
    pub manifest: Option<Manifest>,
    pub snapshots: Snapshots,
}

/// What the journal has of a commit that is none of its own: a change that is nobody's, for the
/// sake of its number.
pub(crate) fn number_alone() -> Changes {
    vec![(DictionaryId(0), Op::Delete(Bytes::new()))]
}

impl Database {
    pub(crate) fn new(parts: Parts) -> Database {
        let shares = Shares::of(&parts.options);
        let position = parts.writer.position().position;
        let active: usize = parts.version.memtable_bytes();
        let pipeline = Pipeline::new(parts.next_seq, position);
        let versions = VersionSet::new(
            parts.store.clone(),
            parts.health.clone(),
            parts.version,
            parts.next_seq - 1,
            parts.manifest,
        );
        Database {
            background: Background::new(parts.env.monotonic()),
            env: parts.env,
            zones: parts.zones,
            store: parts.store,
            shares,
            options: parts.options,
            health: parts.health,
            counters: Counters::default(),
            versions,
            active_bytes: AtomicUsize::new(active),
            sealed_bytes: AtomicUsize::new(0),
            unplaced_bytes: AtomicUsize::new(0),
            chunks: Mutex::default(),
            synced_commits: AtomicBool::new(false),
            deletions: AtomicBool::new(active > 0),
            reclaimable: AtomicBool::new(true),
            reclaiming: Mutex::new(()),
            journal_tight: AtomicBool::new(false),
            owed_nanos: AtomicU64::new(0),
            pipeline: Mutex::new(pipeline),
            writer: Mutex::new(parts.writer),
            syncing: Mutex::default(),
            sync_done: Condvar::new(),
            durable: AtomicU64::new(position),
            marked: AtomicU64::new(position),
            sealed: Mutex::default(),
            flushing: Mutex::new(()),
            merging: Merging::default(),
            transactions: Transactions::default(),
            locks: Locks::default(),
            snapshots: parts.snapshots,
            defragmenter: Defragmenter::default(),
            scrubber: Scrubber::default(),
            space_left: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// `true` when nothing runs by itself.
    pub(crate) fn inline(&self) -> bool {
        !self.options.threads || self.env.inline()
    }

    /// An error unless the store takes writes.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.options.read_only {
            return Err(Error::ReadOnly("it was opened for reading only".into()));
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::ReadOnly("it was closed".into()));
        }
        self.health.check()
    }

    pub(crate) fn create_dictionary(
        &self,
        branch: &str,
        name: &str,
        options: DictionaryOptions,
    ) -> Result<DictionaryId> {
        if let Some(id) = self.versions.dictionary(branch, name) {
            return Ok(id);
        }
        self.writable()?;
        if name.is_empty() || name.len() > MAX_DICTIONARY_NAME {
            return Err(Error::Invalid(format!(
                "a dictionary's name has 1 to {MAX_DICTIONARY_NAME} bytes, not {}",
                name.len()
            )));
        }
        let mut made = None;
        self.versions.install(|state| {
            // Another thread may have been quicker.
            let there = state
                .dictionaries
                .values()
                .find(|d| d.info.name == name && d.info.branch == branch)
                .map(|d| d.info.id);
            let known = branch.is_empty() || state.branches.contains_key(branch);
            let id = there.unwrap_or(DictionaryId(state.next_dictionary));
            made = known.then_some(id);
            let info = DictionaryInfo { id, name: name.into(), branch: branch.into(), options };
            VersionEdit::of((there.is_none() && known).then_some(Edit::Dictionary(info)))
        })?;
        made.ok_or_else(|| Error::NoBranch(branch.into()))
    }

    /// Drops a dictionary and all that is in it.
    pub(crate) fn drop_dictionary(&self, dict: DictionaryId) -> Result<()> {
        self.writable()?;
        self.versions.load().tree(dict)?;
        // A snapshot that was made before has it.
        let naming = self.settled()?;
        self.versions.install(|state| {
            let there = state.dictionaries.contains_key(&dict);
            VersionEdit::of(there.then_some(Edit::DropDictionary(dict)))
        })?;
        drop(naming);
        self.background.compaction_wanted();
        Ok(())
    }

    /// Changes the stitching threshold of a dictionary, durably and for merges under way.
    pub(crate) fn set_stitch_at(&self, dict: DictionaryId, stitch_at: u64) -> Result<()> {
        self.writable()?;
        self.versions.load().tree(dict)?;
        self.versions.install(|state| {
            let there = state.dictionaries.contains_key(&dict);
            VersionEdit::of(there.then_some(Edit::StitchAt { dict, stitch_at }))
        })
    }

    /// Segments that should lie ready.
    pub(crate) fn stock(&self) -> usize {
        (self.shares.seal_at as u64 / SEGMENT_SIZE / 2).clamp(1, 8) as usize
    }

    /// Ends background work and leaves everything durable. Later writes are refused; views stay
    /// readable.
    pub(crate) fn close(&self) -> Result<()> {
        self.transactions.close();
        self.background.stop_soon();
        self.scrubber.close();
        self.defragmenter.wake();
        self.background.stop();
        if self.options.read_only || self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // A half-done compaction is given up; what it wrote is free again.
        drop(self.merge_alone());
        self.health.check()?;
        let flushed = match self.options.flush_on_close {
            true => self.flush_all(),
            false => Ok(()),
        };
        // Whether or not that worked, the journal has it all.
        let end = self.pipeline.lock().end();
        self.sync_to(end)?;
        match flushed {
            // The next open flushes when there is room.
            Err(Error::NoSpace) => {}
            other => other?,
        }
        let writer = self.writer.lock();
        let mut edits = Vec::new();
        if let Some((number, position)) = writer.last_used() {
            edits.push(Edit::SegmentEnds { number, position });
        }
        edits.push(Edit::Streams(self.zones.positions()));
        edits.push(Edit::Closed);
        let mut manifest = self.versions.manifest()?;
        match manifest.commit(edits) {
            Ok(()) => manifest.vouch(),
            // Without this note the next open finds the journal's end for itself.
            Err(Error::NoSpace) => Ok(()),
            other => other,
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.env.monotonic()
    }
}
