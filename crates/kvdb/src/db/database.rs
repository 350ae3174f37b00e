//! The engine behind a [`crate::Kvdb`]: it wires the parts, each of which owns its state. What one
//! part does is a method of that part; here is what takes several of them. For the order of their
//! locks see `lock_order`.

use env::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use env::Env;
use vt_tree::BlockCache;
use zones::Zones;

use super::threads::Threads;
use crate::background::{Background, BackgroundParts};
use crate::commit::batch::{Batch, Durability};
use crate::commit::conditional::Reads;
use crate::commit::feed::Feed;
use crate::commit::recent::RecentCommits;
use crate::commit::{Applied, CommitEnv, CommitParts, CommitPipeline, SpaceClaim};
use crate::counters::Counters;
use crate::dictionary::{DictionaryId, DictionaryInfo, DictionaryOptions, MAX_DICTIONARY_NAME};
use crate::error::{Error, Result};
use crate::health::Health;
use crate::journal::Writer;
use crate::locks::Locks;
use crate::manifest::{Edit, Manifest};
use crate::options::{OpenOptions, Shares};
use crate::read::snapshot_set::Snapshots;
use crate::read::version::Version;
use crate::read::version_set::VersionEdit;
use crate::read::version_set::VersionSet;
use crate::read::view::View;
use crate::read::write_set::RunWriter;
use crate::scrub::{ScrubParts, Scrubber};
use crate::signals::Signals;
use crate::transactions::registry::Transactions;

/// The parts of a store that is open.
pub(crate) struct Database {
    pub env: Arc<dyn Env>,
    pub zones: Arc<Zones>,
    pub cache: Arc<BlockCache>,
    pub options: OpenOptions,
    pub shares: Shares,
    pub health: Arc<Health>,
    pub counters: Arc<Counters>,
    pub signals: Arc<Signals>,

    pub versions: Arc<VersionSet>,
    pub commits: Arc<CommitPipeline>,
    pub recent: Arc<RecentCommits>,
    pub feed: Arc<Feed>,
    pub transactions: Transactions,
    pub locks: Arc<Locks>,
    pub snapshots: Arc<Snapshots>,
    pub background: Background,
    pub threads: Threads,
    pub scrubber: Arc<Scrubber>,
}

/// What recovery found and made, out of which a database is built.
pub(crate) struct DatabaseParts {
    pub env: Arc<dyn Env>,
    pub zones: Arc<Zones>,
    pub cache: Arc<BlockCache>,
    pub options: OpenOptions,
    pub health: Arc<Health>,
    pub version: Version,
    pub next_seq: u64,
    pub writer: Writer,
    pub manifest: Option<Manifest>,
    pub snapshots: Snapshots,
}

impl Database {
    pub(crate) fn new(parts: DatabaseParts) -> Database {
        let shares = Shares::of(&parts.options);
        let snapshots = Arc::new(parts.snapshots);
        let versions = Arc::new(VersionSet::new(
            parts.cache.clone(),
            parts.health.clone(),
            parts.version,
            parts.next_seq - 1,
            parts.manifest,
            snapshots.clone(),
        ));
        let (counters, locks) = (Arc::<Counters>::default(), Arc::<Locks>::default());
        let signals = Arc::<Signals>::default();
        signals.reclaimable.store(true, Ordering::Relaxed);
        signals.deletions.store(versions.load().memtable_bytes() > 0, Ordering::Relaxed);
        let (recent, feed) = (Arc::<RecentCommits>::default(), Arc::<Feed>::default());
        let commits = CommitParts {
            env: parts.env.clone(),
            zones: parts.zones.clone(),
            options: parts.options.clone(),
            health: parts.health.clone(),
            counters: counters.clone(),
            signals: signals.clone(),
            versions: versions.clone(),
            locks: locks.clone(),
            recent: recent.clone(),
            feed: feed.clone(),
        };
        let commits = Arc::new(CommitPipeline::new(commits, parts.next_seq, parts.writer));
        let inline = is_inline(&*parts.env, &parts.options);
        let background = Background::new(&BackgroundParts {
            env: parts.env.clone(),
            zones: parts.zones.clone(),
            cache: parts.cache.clone(),
            options: parts.options.clone(),
            inline,
            health: parts.health.clone(),
            counters: counters.clone(),
            signals: signals.clone(),
            versions: versions.clone(),
            snapshots: snapshots.clone(),
            commits: commits.clone(),
            recent: recent.clone(),
        });
        let scrubber = Scrubber::new(ScrubParts {
            env: parts.env.clone(),
            zones: parts.zones.clone(),
            cache: parts.cache.clone(),
            inline,
            journal: parts.options.journal,
            versions: versions.clone(),
            snapshots: snapshots.clone(),
            commits: commits.clone(),
        });
        Database {
            threads: Threads::new(parts.env.monotonic()),
            env: parts.env,
            zones: parts.zones,
            cache: parts.cache,
            shares,
            options: parts.options,
            health: parts.health,
            counters,
            signals,
            versions,
            commits,
            recent,
            feed,
            background,
            transactions: Transactions::default(),
            locks,
            snapshots,
            scrubber: Arc::new(scrubber),
        }
    }

    /// `true` when nothing runs by itself.
    pub(crate) fn inline(&self) -> bool {
        is_inline(&*self.env, &self.options)
    }

    /// An error unless the store takes writes.
    pub(crate) fn writable(&self) -> Result<()> {
        self.health.writable()
    }

    pub(crate) fn commit(&self, batch: Batch, durability: Durability) -> Result<()> {
        self.commits.commit(self, batch, durability)
    }

    pub(crate) fn commit_if_unchanged(
        &self,
        batch: Batch,
        state: View,
        reads: Reads,
    ) -> Result<bool> {
        self.commits.commit_if_unchanged(self, batch, state, reads)
    }

    pub(crate) fn put(
        &self,
        dict: DictionaryId,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        self.commits.put(self, dict, key, value, durability)
    }

    /// What writing parts of a write set as runs needs.
    pub(crate) fn run_writer(&self) -> RunWriter<'_> {
        RunWriter { versions: &self.versions, cache: &self.cache, counters: &self.counters }
    }

    /// Reclaims space, see [`CommitEnv::want_space`].
    pub(crate) fn want_space(&self) -> bool {
        self.background.admission.want_space()
    }

    /// Starts what a commit has made due.
    pub(crate) fn after_commit(&self, applied: Applied) -> Result<()> {
        self.background.admission.after_commit(applied)
    }

    /// Everything committed before is in runs afterwards, and the journal begins behind it.
    pub(crate) fn flush_all(&self) -> Result<()> {
        self.background.flusher.flush_all()
    }

    /// Everything committed before this call is durable when it returns.
    pub(crate) fn sync(&self) -> Result<()> {
        self.commits.sync(self)
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
            let info = DictionaryInfo {
                id,
                name: name.into(),
                branch: branch.into(),
                options,
                short_outside: false,
            };
            VersionEdit::of((there.is_none() && known).then_some(Edit::Dictionary(info)))
        })?;
        made.ok_or_else(|| Error::NoBranch(branch.into()))
    }

    /// Drops a dictionary and all that is in it.
    pub(crate) fn drop_dictionary(&self, dict: DictionaryId) -> Result<()> {
        self.writable()?;
        let info = self.versions.load().tree(dict)?.info.clone();
        // A snapshot that was made before has it.
        let naming = self.settled()?;
        self.versions.install(|state| {
            let there = state.dictionaries.contains_key(&dict);
            VersionEdit::of(there.then_some(Edit::DropDictionary(dict)))
        })?;
        if info.branch.is_empty() && !info.options.reserved {
            self.feed.lose(|| self.env.random());
        }
        drop(naming);
        self.signals.compaction_wanted();
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

    /// Changes how a dictionary keeps what is written from now on, durably and for merges under
    /// way.
    pub(crate) fn set_dictionary_options(
        &self,
        dict: DictionaryId,
        options: DictionaryOptions,
    ) -> Result<()> {
        self.writable()?;
        let reserved = self.versions.load().tree(dict)?.info.options.reserved;
        if options.reserved != reserved {
            return Err(Error::Invalid(
                "whether a dictionary is reserved is decided when it is made".into(),
            ));
        }
        self.versions.install(|state| {
            let there = state.dictionaries.get(&dict);
            let info = there.map(|d| DictionaryInfo { options, ..d.info.clone() });
            VersionEdit::of(info.map(Edit::Options))
        })
    }

    /// Ends background work and leaves everything durable. Later writes are refused; views stay
    /// readable.
    pub(crate) fn close(&self) -> Result<()> {
        self.transactions.close();
        self.signals.stop_soon();
        self.scrubber.close();
        self.background.defragmenter.wake();
        self.threads.stop(&self.signals);
        if self.options.read_only || self.health.close() {
            return Ok(());
        }
        // A half-done compaction is given up; what it wrote is free again.
        drop(self.background.compactor.merge_alone());
        self.health.check()?;
        let flushed = match self.options.flush_on_close {
            true => self.flush_all(),
            false => Ok(()),
        };
        // Whether or not that worked, the journal has it all.
        let end = self.commits.end();
        self.commits.sync_to(self, end)?;
        match flushed {
            // The next open flushes when there is room.
            Err(Error::NoSpace) => {}
            other => other?,
        }
        self.commits.at_end_of_journal(|last_used| {
            let mut edits = Vec::new();
            if let Some((number, position)) = last_used {
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
        })
    }

    pub(crate) fn now(&self) -> Duration {
        self.env.monotonic()
    }
}

/// `true` when nothing runs by itself in a store with these options.
fn is_inline(env: &dyn Env, options: &OpenOptions) -> bool {
    !options.threads || env.inline()
}

/// What commits need of the engine is done by its background work.
impl CommitEnv for Database {
    fn admit(&self, bytes: usize, deferred: usize, claim: SpaceClaim) -> Result<()> {
        self.background.admission.admit(bytes, deferred, claim)
    }

    fn want_space(&self) -> bool {
        self.background.admission.want_space()
    }

    fn flush_all(&self) -> Result<()> {
        self.background.flusher.flush_all()
    }

    fn after_commit(&self, applied: Applied) -> Result<()> {
        self.background.admission.after_commit(applied)
    }
}
