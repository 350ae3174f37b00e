//! The commit pipeline. A commit places its large values, or copies them to wait for their place,
//! and then, under one short lock, writes the memtables, appends its record to the journal's buffer
//! (a single put in the other order) and becomes visible. It waits only where room, memory or a
//! lock of a transaction is missing; usually the journal's thread writes what has gathered.
//!
//! Durability is a second stage (see `pipeline`): a caller that wants it for a position of the
//! journal's stream waits for a sync that began after its record was in the buffer. One of the
//! waiting threads does the sync for all of them; the others join the next one.

pub(crate) mod batch;
pub(crate) mod deferred;
pub(crate) mod locking;
pub(crate) mod pipeline;
pub(crate) mod recent;

use env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use env::Env;
use env::sync::{Condvar, Mutex, MutexGuard};
use vt_tree::{Compression, DeferredSlot, ExtentRef, Packer, Seq, Value, place_packed};
use zones::{Priority, Purpose, ZonePin, ZoneUse, Zones};

use self::batch::{Batch, BatchChange, Durability};
use self::deferred::{DeferredValue, ValueBuffers};
use self::pipeline::{Pipeline, Sealed, Syncing};
use self::recent::{RecentCommit, RecentCommits};
use crate::commit::locking::{past, ranges};
use crate::counters::Counters;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::journal::Writer;
use crate::journal::record::{self, Op, Ops, PutValue};
use crate::locks::Locks;
use crate::manifest::ManifestState;
use crate::options::{OpenOptions, Shares};
use crate::read::version::{Layer, Version};
use crate::read::version_set::VersionEdit;
use crate::read::version_set::VersionSet;
use crate::signals::Signals;

/// Longest key, bytes.
pub const MAX_KEY: usize = 32 << 10;

/// Longest value, bytes: it lies in one piece, in one zone.
pub const MAX_VALUE: usize = 7 << 20;

/// What a commit needs of the engine around it.
pub(crate) trait CommitEnv {
    /// Lets a commit of `bytes` go ahead: now, a little later, or not at all. `deferred`: how many
    /// of them will wait for their place.
    fn admit(&self, bytes: usize, deferred: usize, claim: SpaceClaim) -> Result<()>;

    /// Space ran short: reclaims what was deleted, now, or waits for the thread that does. `false`:
    /// nothing was deleted or flushed since the last time, so it was not tried. `true` does not say
    /// that anything was gained: look again.
    fn want_space(&self) -> bool;

    /// Writes everything committed before into runs.
    fn flush_all(&self) -> Result<()>;

    /// Starts what a commit has made due.
    fn after_commit(&self, applied: Applied) -> Result<()>;
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
}

/// The pipeline, from a batch to a durable record and to memtables that readers see.
///
/// For the order of its locks see `db::database`. A commit by itself takes `value_buffers` alone,
/// then `pipeline` and in it, while there are serializable transactions, `locks`; `writer` before
/// these where room is missing.
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
    pub recent: RecentCommits,
    /// Bytes in the memtables that take commits.
    pub active_bytes: AtomicUsize,
    /// Bytes in those that wait for their flush.
    pub sealed_bytes: AtomicUsize,
    /// Memory of deferred values, overhead included. `Memtable::bytes` counts it, too;
    /// `active_bytes` and `sealed_bytes` do not.
    pub deferred_bytes: AtomicUsize,
    /// Where deferred values are copied to.
    pub value_buffers: Mutex<ValueBuffers>,
    /// A commit was synced: the journal's space should be written ahead of time.
    synced_commits: AtomicBool,
    /// The journal has taken a zone of those set aside.
    pub journal_tight: AtomicBool,
    pub pipeline: Mutex<Pipeline>,
    pub writer: Mutex<Writer>,
    syncing: Mutex<Syncing>,
    sync_done: Condvar,
    /// The journal's stream is durable up to this position.
    pub durable: AtomicU64,
    /// Position behind the last mark: while the stream ends here, nothing was committed since the
    /// last sync.
    marked: AtomicU64,
    /// Generations that wait for their flush, oldest first.
    pub sealed: Mutex<VecDeque<Sealed>>,
}

/// The journal's record of a commit whose changes are in the manifest: a deletion in dictionary 0,
/// which does not exist. It takes the commit's number and changes nothing.
pub(crate) fn number_alone() -> Ops {
    vec![(DictionaryId(0), Op::Delete(Bytes::new()))]
}

impl CommitPipeline {
    /// A pipeline whose next commit has number `next_seq`, on a journal that `writer` goes on with.
    pub(crate) fn new(parts: CommitParts, next_seq: Seq, writer: Writer) -> CommitPipeline {
        let position = writer.position().position;
        let active = parts.versions.load().memtable_bytes();
        CommitPipeline {
            shares: Shares::of(&parts.options),
            env: parts.env,
            zones: parts.zones,
            options: parts.options,
            health: parts.health,
            counters: parts.counters,
            signals: parts.signals,
            versions: parts.versions,
            locks: parts.locks,
            recent: RecentCommits::default(),
            active_bytes: AtomicUsize::new(active),
            sealed_bytes: AtomicUsize::new(0),
            deferred_bytes: AtomicUsize::new(0),
            value_buffers: Mutex::default(),
            synced_commits: AtomicBool::new(false),
            journal_tight: AtomicBool::new(false),
            pipeline: Mutex::new(Pipeline::new(next_seq, position)),
            writer: Mutex::new(writer),
            syncing: Mutex::default(),
            sync_done: Condvar::new(),
            durable: AtomicU64::new(position),
            marked: AtomicU64::new(position),
            sealed: Mutex::default(),
        }
    }

    /// Bytes of all memtables, and of what waits for its place.
    pub(crate) fn memtable_bytes(&self) -> usize {
        self.active_bytes.load(Ordering::Relaxed)
            + self.sealed_bytes.load(Ordering::Relaxed)
            + self.deferred_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn commit(
        &self,
        engine: &impl CommitEnv,
        batch: Batch,
        durability: Durability,
    ) -> Result<()> {
        self.health.writable()?;
        // Large values are logged with the record where the caller waits for the next sync.
        let placing = if batch.sync_follows { Durability::Synced } else { durability };
        let valid = self.validate(&self.versions.load(), batch)?;
        if valid.changes.is_empty() {
            return match durability {
                Durability::Buffered => Ok(()),
                Durability::Synced => self.sync(engine),
            };
        }
        if let Outcome::Applied(applied) =
            self.commit_changes(engine, valid, placing, past(), |_| Ok(true))?
        {
            if placing == Durability::Synced {
                self.synced_commits.store(true, Ordering::Relaxed);
            }
            self.sync_if(engine, durability, &applied)?;
            engine.after_commit(applied)?;
        }
        Ok(())
    }

    /// Commits changes if `still` agrees, which is asked under the pipeline's lock with the newest
    /// commit's number, after other owners' locks on them are gone. `durability` decides how large
    /// values get their places; the caller syncs, and calls `after_commit`.
    pub(crate) fn commit_changes(
        &self,
        engine: &impl CommitEnv,
        valid: Valid,
        durability: Durability,
        owner: Option<u64>,
        still: impl Fn(Seq) -> Result<bool>,
    ) -> Result<Outcome> {
        let Valid { mut changes, claim, mut pin } = valid;
        let version = self.versions.load_full();
        let user_bytes: u64 = changes.iter().map(|(_, op)| op.bytes() as u64).sum();
        let (large, total) = self.large(&version, &changes);
        drop(version);
        if total >= self.options.late_bind_at.min(deferred::LONGEST) {
            pin.merge(self.bind(engine, large, &mut changes, claim)?);
        } else if !large.is_empty() && (durability == Durability::Buffered || !self.options.journal)
        {
            // The admission comes first: what is copied takes memory.
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
        let mut valid = Valid { changes, claim, pin };
        let applied = loop {
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
        Ok(Outcome::Applied(applied))
    }

    /// Which changes have large values, and their bytes together.
    fn large(&self, version: &Version, changes: &Ops) -> (Vec<usize>, u64) {
        let separate = |dict| {
            version.trees.get(&dict).map_or(u32::MAX, |t| t.info.options.separate_at) as usize
        };
        let mut large: Vec<usize> = Vec::new();
        let mut total = 0;
        for (i, (dict, op)) in changes.iter().enumerate() {
            if let Op::Put(_, Value::Inline(v)) = op
                && v.len() >= separate(*dict).max(1)
            {
                large.push(i);
                total += v.len() as u64;
            }
        }
        if self.options.late_bind_at == u64::MAX { (Vec::new(), 0) } else { (large, total) }
    }

    /// Copies large values to where they wait for their place.
    fn copy_values(&self, large: &[usize], changes: &mut Ops) {
        let version = self.versions.load();
        let mut chunks = self.value_buffers.lock();
        for &i in large {
            if let (dict, Op::Put(key, Value::Inline(value))) = &changes[i] {
                changes[i].1 =
                    Op::PutDeferred(key.clone(), chunks.copy(value), codec(&version, *dict));
            }
        }
    }

    /// Places large values, and puts their places into the changes. No version may be held: this
    /// may have to wait for space that one would keep.
    fn bind(
        &self,
        engine: &impl CommitEnv,
        mut large: Vec<usize>,
        changes: &mut Ops,
        claim: SpaceClaim,
    ) -> Result<ZonePin> {
        // So that a scan reads them in one go.
        large.sort_by(|&a, &b| {
            (changes[a].0, changes[a].1.key()).cmp(&(changes[b].0, changes[b].1.key()))
        });
        let (extents, pin) = match self.place(changes, &large, claim) {
            // What was deleted may make room, and what the journal has taken of what was promised.
            Err(Error::NoSpace)
                if engine.want_space() || claim.promised && engine.flush_all().is_ok() =>
            {
                self.place(changes, &large, claim)?
            }
            placed => placed?,
        };
        for (&i, extent) in large.iter().zip(extents) {
            if let Op::Put(_, value) = &mut changes[i].1 {
                *value = Value::Extent(extent);
            }
        }
        self.counters.bound_bytes.add(pin.uses().total_bytes());
        Ok(pin)
    }

    fn place(
        &self,
        changes: &Ops,
        large: &[usize],
        claim: SpaceClaim,
    ) -> Result<(Vec<ExtentRef>, ZonePin)> {
        let mut writer = self.zones.extent_writer(Purpose::Pages, claim.reserve());
        writer.write_behind();
        let mut packer = Packer::default();
        let mut extents = Vec::with_capacity(large.len());
        for &i in large {
            if let (dict, Op::Put(_, Value::Inline(bytes))) = &changes[i] {
                let codec = codec(&self.versions.load(), *dict);
                extents.push(place_packed(&mut writer, &mut packer, codec, bytes)?);
            }
        }
        Ok((extents, writer.finish()?))
    }

    /// One put: what [`CommitPipeline::commit`] does with a batch of it, without the batch.
    pub(crate) fn put(
        &self,
        engine: &impl CommitEnv,
        dict: DictionaryId,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        self.health.writable()?;
        check_put(key.len(), value.len())?;
        let version = self.versions.load();
        let options = &version.tree(dict)?.info.options;
        let large = value.len() >= options.separate_at.max(1) as usize;
        let codec = options.compress_values;
        let deferred = large && (durability == Durability::Buffered || !self.options.journal);
        if large
            && (self.options.late_bind_at.min(deferred::LONGEST) <= value.len() as u64
                || self.options.late_bind_at == u64::MAX)
        {
            drop(version);
            let mut batch = Batch::new();
            batch.put(dict, Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            return self.commit(engine, batch, durability);
        }
        // Drop the version first: the wait below may be for space that it pins.
        drop(version);
        let logged = if deferred { PutValue::Deferred(codec) } else { PutValue::Inline(value) };
        let need = record::put_size(dict, key.len(), logged);
        engine.admit(
            key.len() + value.len(),
            if deferred { value.len() } else { 0 },
            SpaceClaim::default(),
        )?;
        let copy = deferred.then(|| self.value_buffers.lock().copy(value));
        let applied = {
            let mut pipeline = self.enter(
                engine,
                need,
                copy.as_ref().map_or(0, |v| deferred::cost(v.len())),
                SpaceClaim::default(),
            )?;
            if self.locks.any() {
                drop(pipeline);
                let mut batch = Batch::new();
                batch.put(dict, Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                return self.commit(engine, batch, durability);
            }
            let version = self.versions.load();
            let layer = version
                .tree(dict)?
                .layers
                .first()
                .ok_or_else(|| Error::NoDictionary(format!("{} (by number)", dict.0)))?;
            let seq = pipeline.next_seq;
            let before = layer.memtable.bytes();
            let mut waiting = 0;
            let at = self.options.journal.then(|| {
                let stream = pipeline.stream();
                record::encode_put(dict, key, logged, stream);
                // Read only where there is a reference.
                stream.len().saturating_sub(record::reference_len(codec))
            });
            match copy {
                None => layer.memtable.writer().put_slice(key, seq, value),
                Some(value) => {
                    waiting = deferred::heap(value.len());
                    let slot = layer.memtable.writer().put_deferred(key, seq, value.clone());
                    let key = Bytes::copy_from_slice(key);
                    pipeline.pending.push(DeferredValue {
                        dict,
                        key,
                        value,
                        codec,
                        at,
                        layer: layer.clone(),
                        slot,
                    });
                }
            }
            let grown = layer.memtable.bytes().saturating_sub(before + waiting);
            self.publish_unflushed(&mut pipeline, &version, 1, grown, waiting)
        };
        self.counters.commits.add(1);
        self.counters.user_bytes.add((key.len() + value.len()) as u64);
        self.sync_if(engine, durability, &applied)?;
        engine.after_commit(applied)
    }

    /// Takes the pipeline's lock with room for `need` bytes of stream and for values that cost so
    /// much.
    pub(crate) fn enter(
        &self,
        engine: &impl CommitEnv,
        need: usize,
        cost: u64,
        claim: SpaceClaim,
    ) -> Result<MutexGuard<'_, Pipeline>> {
        self.enter_with(need, cost, |need| self.make_room_somehow(engine, need, (cost, claim)))
    }

    /// Enters for changes that only delete, of which the journal may be written wherever flushes
    /// may write: what they flush, the journal's old segment among it, gives a zone back.
    fn enter_to_delete(
        &self,
        engine: &impl CommitEnv,
        need: usize,
    ) -> Result<MutexGuard<'_, Pipeline>> {
        let nothing = (0, SpaceClaim::default());
        self.enter_with(need, 0, |need| match self.make_room_somehow(engine, need, nothing) {
            Err(Error::NoSpace) => {
                // Then the journal is one segment, the one that it writes in. Another is in the way
                // of nothing for long: it is flushed next.
                engine.flush_all()?;
                self.make_room(need, nothing, Priority::Flush)
            }
            made => made,
        })
    }

    fn make_room_somehow(
        &self,
        engine: &impl CommitEnv,
        need: usize,
        values: (u64, SpaceClaim),
    ) -> Result<()> {
        match self.make_room(need, values, Priority::Log) {
            Err(Error::NoSpace) => {
                // What is in runs needs no journal: its zones can be had again.
                if !engine.want_space() {
                    engine.flush_all()?;
                }
                self.make_room(need, values, Priority::Log)
            }
            made => made,
        }
    }

    /// Enters for a caller that keeps flushes and merges away, which could make room in a full
    /// store.
    pub(crate) fn enter_at_once(&self, need: usize) -> Result<MutexGuard<'_, Pipeline>> {
        self.enter_with(need, 0, |need| {
            self.make_room(need, (0, SpaceClaim::default()), Priority::Log)
        })
    }

    fn enter_with(
        &self,
        need: usize,
        cost: u64,
        make_room: impl Fn(usize) -> Result<()>,
    ) -> Result<MutexGuard<'_, Pipeline>> {
        let need = if self.options.journal { need + record::NUMBER_SIZE } else { 0 };
        let pipeline = loop {
            let pipeline = self.pipeline.lock();
            let journal = need == 0 || pipeline.pending.len() + need <= pipeline.room;
            if journal && (cost == 0 || pipeline.pending.cost + cost <= pipeline.place_room) {
                break pipeline;
            }
            drop(pipeline);
            make_room(need)?;
        };
        // Checked under the lock: nothing is acknowledged behind a failure that a sync has met.
        self.health.writable()?;
        Ok(pipeline)
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

    /// Makes the next `count` changes visible: stores the newest number where readers look.
    pub(crate) fn publish(
        &self,
        pipeline: &mut Pipeline,
        version: &Version,
        count: u64,
        grown: usize,
        deferred: usize,
    ) -> Applied {
        pipeline.next_seq += count;
        self.versions.visible.store(pipeline.next_seq - 1, Ordering::Release);
        let active = self.active_bytes.fetch_add(grown, Ordering::Relaxed) + grown;
        let deferred = self.deferred_bytes.fetch_add(deferred, Ordering::Relaxed) + deferred;
        let full = active + deferred.min(self.shares.window) >= self.shares.seal_at;
        let seal = full.then_some(version.generation.number);
        Applied { end: pipeline.end(), pending: pipeline.pending.len(), deferred, seal }
    }

    /// A commit that is an edit of the manifest: made durable as `plan` draws it up, and then
    /// visible. The caller has entered the pipeline with room for [`number_alone`]. `past`: what it
    /// changes, for those who look for conflicts.
    pub(crate) fn install_commit(
        &self,
        pipeline: &mut Pipeline,
        past: impl FnOnce(Seq) -> Option<RecentCommit>,
        plan: impl FnOnce(&ManifestState) -> Result<VersionEdit>,
    ) -> Result<()> {
        self.install_commit_with(pipeline, past, plan, || ())
    }

    /// `between` is what others do before the commit, which is noted, becomes visible.
    fn install_commit_with(
        &self,
        pipeline: &mut Pipeline,
        past: impl FnOnce(Seq) -> Option<RecentCommit>,
        plan: impl FnOnce(&ManifestState) -> Result<VersionEdit>,
        between: impl FnOnce(),
    ) -> Result<()> {
        let seq = pipeline.next_seq;
        // The commit is durable. Until it is visible, readers see all of the state before it.
        let logged = |pipeline: &mut Pipeline| {
            if self.options.journal {
                record::encode(&number_alone(), pipeline.stream(), |_| {});
            }
            self.recent.remember(past(seq))
        };
        let show = |pipeline: &mut Pipeline, version: &Version| {
            between();
            self.publish(pipeline, version, 1, 0, 0)
        };
        self.versions.install_commit(seq, pipeline, plan, logged, show).map(drop)
    }

    /// The second stage of a commit.
    pub(crate) fn sync_if(
        &self,
        engine: &impl CommitEnv,
        durability: Durability,
        applied: &Applied,
    ) -> Result<()> {
        if durability == Durability::Buffered {
            return Ok(());
        }
        self.synced_commits.store(true, Ordering::Relaxed);
        let synced = self.sync_to(engine, applied.end);
        if self.options.journal {
            // The commit is visible. If its sync fails nothing says whether it is durable, so the
            // store stops. `NoSpace` is no exception: all space was reserved before.
            return synced.map_err(|e| self.health.fail("syncing a commit", &e));
        }
        synced
    }

    /// The locked part: memtables, journal buffer, visibility. A record that is not visible yet is
    /// not written out, since that takes the same lock.
    fn apply(
        &self,
        engine: &impl CommitEnv,
        record: usize,
        valid: &mut Valid,
        owner: Option<u64>,
        still: impl Fn(Seq) -> Result<bool>,
    ) -> Result<Attempt> {
        let Valid { changes, claim, pin } = valid;
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
        if !still(first - 1)? {
            return Ok(Attempt::Stale);
        }
        // Held until the changes are visible: no transaction gets a lock on them in between.
        let _guard = match self.locks.any() {
            false => None,
            true => match self.locks.try_guard(ranges(changes), owner) {
                Ok(guard) => Some(guard),
                Err(_) => return Ok(Attempt::Locked),
            },
        };
        let waiting = pipeline.pending.values.len();
        let version = self.versions.load();
        // A dictionary may have been dropped since the batch was checked. Then the commit fails as
        // a whole, since its record would tell of changes that are nowhere. Also, `places` below
        // are matched one to one with the deferred values.
        changes
            .chunk_by(|a, b| a.0 == b.0)
            .try_for_each(|some| version.tree(some[0].0).map(drop))?;
        self.versions.forget_tombstones(&version, changes);
        let (grown, deferred) = write_memtables(&version, first, changes, &mut |dict, op, slot| {
            let (Op::PutDeferred(key, value, codec), Some((layer, slot))) = (op, slot) else {
                return;
            };
            let (key, value, codec, layer, at) =
                (key.clone(), value.clone(), *codec, layer.clone(), None);
            pipeline.pending.push(DeferredValue { dict, key, value, codec, at, layer, slot });
        });
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
        Ok(Attempt::Applied(self.publish_unflushed(
            &mut pipeline,
            &version,
            changes.len() as u64,
            grown,
            deferred,
        )))
    }
}

/// What came of an attempt under the pipeline's lock.
enum Attempt {
    Applied(Applied),
    Stale,
    /// A lock of a transaction lies on what is to be changed.
    Locked,
}

/// How an attempt to commit ended.
pub(crate) enum Outcome {
    Applied(Applied),
    /// Something was committed that must be looked at first; nothing is changed.
    Stale,
}

/// What a commit has left behind.
pub(crate) struct Applied {
    /// Position behind its record.
    pub end: u64,
    /// Bytes of stream that wait to be written.
    pub pending: usize,
    /// Memory of values that wait for their place.
    pub deferred: usize,
    /// The generation, when it should be sealed.
    pub seal: Option<u64>,
}

/// How large values of a dictionary are compressed.
fn codec(version: &Version, dict: DictionaryId) -> Compression {
    version.trees.get(&dict).map_or(Compression::None, |t| t.info.options.compress_values)
}

pub(crate) fn check_put(key: usize, value: usize) -> Result<()> {
    if value > MAX_VALUE {
        return Err(Error::Invalid(format!(
            "a value of {value} bytes; at most {MAX_VALUE} are allowed"
        )));
    }
    check_key(key)
}

fn check_key(len: usize) -> Result<()> {
    if len > MAX_KEY {
        return Err(Error::Invalid(format!("a key of {len} bytes; at most {MAX_KEY} are allowed")));
    }
    Ok(())
}

/// What a commit may take of a store that is nearly full.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpaceClaim {
    /// None of its changes adds data, or the batch says that it gives more back.
    pub removes: bool,
    /// Room was promised for it.
    pub promised: bool,
}

impl SpaceClaim {
    /// Where its values may lie.
    pub fn reserve(self) -> Priority {
        if self.promised { Priority::Promised } else { Priority::User }
    }
}

/// A batch whose changes are all possible.
pub(crate) struct Valid {
    pub changes: Ops,
    pub claim: SpaceClaim,
    /// Keeps the places of values that were stored before.
    pub pin: ZonePin,
}

impl CommitPipeline {
    /// The changes of a batch, if all of them are possible.
    pub(crate) fn validate(&self, version: &Version, batch: Batch) -> Result<Valid> {
        let (mut deletes_only, releases, promised) = (true, batch.releases, batch.promised);
        let mut changes = Vec::with_capacity(batch.changes.len());
        let mut stored = Vec::new();
        for change in batch.changes {
            let dict = change.dictionary();
            version.tree(dict)?;
            let op = match change {
                BatchChange::Put(_, k, v) => {
                    deletes_only = false;
                    check_put(k.len(), v.len())?;
                    Op::Put(k, Value::Inline(v))
                }
                BatchChange::PutStored(_, k, v) => {
                    deletes_only = false;
                    check_put(k.len(), v.len())?;
                    let value = v.value.clone();
                    stored.push(v);
                    Op::Put(k, value)
                }
                BatchChange::Delete(_, k) => Op::Delete(k),
                BatchChange::DeleteRange(_, s, e) if s < e => Op::DeleteRange(s, e),
                BatchChange::DeleteRange(..) => continue,
            };
            match &op {
                Op::DeleteRange(s, e) => check_key(s.len().max(e.len()))?,
                op => check_key(op.key().len())?,
            }
            changes.push((dict, op));
        }
        // Before those are let go that have kept them until now.
        let pin = if stored.is_empty() { ZonePin::default() } else { self.keep_places(&changes)? };
        Ok(Valid {
            changes,
            claim: SpaceClaim { removes: deletes_only || releases, promised },
            pin,
        })
    }

    /// Keeps the places of all values that have one.
    pub(crate) fn keep_places(&self, changes: &Ops) -> Result<ZonePin> {
        let mut uses = ZoneUse::new();
        for (_, op) in changes {
            if let Op::Put(_, Value::Extent(e)) = op {
                uses.add_extent(e.addr, u64::from(e.stored));
            }
        }
        Ok(self.zones.pin(&uses)?)
    }
}

/// Is told of a deferred value: dictionary, put, and where it is.
type Told<'a> = dyn FnMut(DictionaryId, &Op, Option<(&Layer, DeferredSlot)>) + 'a;

/// Writes numbered changes into the newest memtables. Gives the bytes by which they grew, and those
/// of deferred values apart. `deferred` is told of each of these: where it is, or `None` when its
/// dictionary is gone (in a replay: `apply` has checked); changes of such are left out.
pub(crate) fn write_memtables(
    version: &Version,
    first: Seq,
    changes: &[(DictionaryId, Op)],
    deferred: &mut Told,
) -> (usize, usize) {
    /// Readers wait while a memtable is locked.
    const AT_ONCE: usize = 256;
    let (mut grown, mut waiting) = (0, 0);
    let mut seq = first;
    for stretch in changes.chunk_by(|a, b| a.0 == b.0) {
        let Some(layer) = version.trees.get(&stretch[0].0).and_then(|t| t.layers.first()) else {
            for (dict, op) in stretch {
                if matches!(op, Op::PutDeferred(..)) {
                    deferred(*dict, op, None);
                }
            }
            seq += stretch.len() as u64;
            continue;
        };
        let before = layer.memtable.bytes();
        for part in stretch.chunks(AT_ONCE) {
            let mut writer = layer.memtable.writer();
            for (dict, op) in part {
                match op {
                    // Copied: the bytes may be a slice of something much larger.
                    Op::Put(k, Value::Inline(v)) => writer.put_slice(k, seq, v),
                    Op::Put(k, v) => writer.put(k, seq, v.clone()),
                    Op::PutDeferred(k, v, _) => {
                        let slot = writer.put_deferred(k, seq, v.clone());
                        waiting += deferred::heap(v.len());
                        deferred(*dict, op, Some((layer, slot)));
                    }
                    Op::Delete(k) => writer.delete(k, seq),
                    Op::DeleteRange(s, e) => writer.delete_range(s, e, seq),
                }
                seq += 1;
            }
        }
        grown += layer.memtable.bytes().saturating_sub(before);
    }
    (grown.saturating_sub(waiting), waiting)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use std::sync::Arc;

    use env::Simulated;
    use zones::{MemoryDevice, ZONE_SIZE};

    use super::*;
    use crate::manifest::Edit;
    use crate::{CreateOptions, DictionaryOptions, Kvdb, OpenOptions};

    /// A transaction that began between the two would read the state before the commit and find no
    /// conflict with it.
    #[test]
    fn no_transaction_begins_between_the_note_of_a_commit_and_its_visibility() {
        let db = Kvdb::in_memory();
        let inner = &db.db.0.commits;
        let mut pipeline = inner.enter_at_once(record::size(&number_alone())).expect("entered");
        let asked = Cell::new(false);
        let between = || {
            asked.set(true);
            assert!(!inner.recent.may_begin(), "the commit is noted and not visible yet");
        };
        let plan =
            |_: &ManifestState| Ok(VersionEdit::of([Edit::Streams(inner.zones.positions())]));
        inner.install_commit_with(&mut pipeline, |_| None, plan, between).expect("installed");
        assert!(asked.get());
        assert!(inner.recent.may_begin(), "it is visible");
    }

    /// The journal's only segment is full, and other writers have taken all zones that the journal
    /// may take: a deletion takes its segment from the zones that are left for flushes.
    #[test]
    fn a_deletion_has_a_journal_segment_when_puts_have_none() {
        let open = OpenOptions { memory: 64 << 20, threads: false, ..OpenOptions::default() };
        let (capacity, reserve_zones) = (Some(20 * ZONE_SIZE), 8);
        let device = Arc::new(MemoryDevice::new());
        let options = CreateOptions { capacity, reserve_zones, open };
        let db = Kvdb::create(device, Arc::new(Simulated::new(1)), options).unwrap();
        let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        let commits = &db.db.0.commits;
        let put = || db.put(dict, b"a key", &[7; 4000], Durability::Synced);
        let room = || commits.writer.lock().room();
        // The flush of many versions of one key takes no zone when the streams have zones.
        put().unwrap();
        db.flush().unwrap();
        put().unwrap();
        while room() > 24_000 {
            put().unwrap();
        }
        let mut taken = Vec::new();
        while let Ok(zone) = commits.zones.take_zone(Purpose::Journal, Priority::Log) {
            taken.push(zone);
        }
        let refused = (0..8).any(|_| matches!(put(), Err(Error::NoSpace)));
        assert!(refused, "a put has taken a zone that is left for flushes");
        for i in 0..100u8 {
            let mut batch = Batch::new();
            batch.delete(dict, [&[b'k'; 200][..], &[i]].concat());
            db.commit(batch, Durability::Synced).unwrap();
        }
    }

    /// Two threads that each prepare a segment because one is missing would keep a zone of a nearly
    /// full store.
    #[test]
    fn a_segment_that_is_being_prepared_is_not_prepared_twice() {
        let db = Kvdb::in_memory();
        let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        let commits = &db.db.0.commits;
        let pinned = || commits.zones.space().zones_pinned;
        // As a thread that has announced a segment and has not added it yet.
        let coming = commits.writer.lock().announce(commits.stock(), usize::MAX);
        let before = pinned();
        commits.prepare_segment().unwrap();
        assert_eq!(pinned(), before, "a segment was taken though one is being prepared");
        // A flush whose zone of the journal becomes free gives it back and keeps it for no segment.
        let room = || commits.writer.lock().room();
        db.put(dict, b"a key", &[7; 4000], Durability::Synced).unwrap();
        while room() > 24_000 {
            db.put(dict, b"a key", &[7; 4000], Durability::Synced).unwrap();
        }
        let bytes = |_| db.put(dict, b"another", &[7; 20_000], Durability::Synced).unwrap();
        (0..2).for_each(bytes);
        db.flush().unwrap();
        assert!(room() < ZONE_SIZE as usize, "a freed zone became a segment too many");
        commits.writer.lock().arrived(coming);
        commits.prepare_segment().unwrap();
        assert!(room() > ZONE_SIZE as usize);
    }
}
