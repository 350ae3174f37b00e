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
use env::sync::ArcSwap;
use env::sync::{Condvar, MappedMutexGuard, Mutex, MutexGuard};
use vt_tree::{BlockCache, Seq};
use zones::Zones;

use crate::background::{Background, Defragmenter, Merging};
use crate::commit::Applied;
use crate::commit::pipeline::{Pipeline, Syncing};
use crate::commit::unplaced::Chunks;
use crate::db::options::{OpenOptions, Shares};
use crate::db::stats::Counters;
use crate::dictionary::{DictionaryId, DictionaryInfo, DictionaryOptions, MAX_DICTIONARY_NAME};
use crate::error::{Error, Result};
use crate::health::Health;
use crate::journal::record::{self, Changes, Op};
use crate::journal::{SEGMENT_SIZE, Writer};
use crate::locks::Locks;
use crate::manifest::{Edit, JournalStart, Manifest, State};
use crate::read::pins::{Pinned, Pins};
use crate::read::version::{Tree, Version};
use crate::read::view::View;
use crate::scrub::Scrubber;
use crate::snapshots::Snapshots;
use crate::transactions::history::Past;
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

    pub version: ArcSwap<Version>,
    /// Held for the time of one read-change-store of `version`.
    pub swap: Mutex<()>,
    /// The newest commit that readers see.
    pub visible: AtomicU64,
    /// [`Version::came_with`] of the version that there is, stored before `visible` is: who sees
    /// such a commit knows that its version is there.
    came_with: AtomicU64,
    pub pins: Arc<Pins>,
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

    /// `None`: opened for reading only.
    manifest: Mutex<Option<Manifest>>,
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
        Database {
            background: Background::new(parts.env.monotonic()),
            env: parts.env,
            zones: parts.zones,
            store: parts.store,
            shares,
            options: parts.options,
            health: parts.health,
            counters: Counters::default(),
            version: ArcSwap::from_pointee(parts.version),
            swap: Mutex::new(()),
            visible: AtomicU64::new(pipeline.next_seq - 1),
            came_with: AtomicU64::new(0),
            pins: Arc::default(),
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
            manifest: Mutex::new(parts.manifest),
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

    pub(crate) fn manifest(&self) -> Result<MappedMutexGuard<'_, Manifest>> {
        MutexGuard::try_map(self.manifest.lock(), Option::as_mut)
            .map_err(|_| Error::ReadOnly("it was opened for reading only".into()))
    }

    /// Replaces the version by a changed one.
    pub(crate) fn swap_version(&self, change: impl FnOnce(&mut Version)) {
        self.swap_version_and(change, |_| ());
    }

    /// The same, and then `then`, before anything else becomes of the version.
    fn swap_version_and<T>(
        &self,
        change: impl FnOnce(&mut Version),
        then: impl FnOnce(&Version) -> T,
    ) -> T {
        let (old, done);
        {
            let _one = self.swap.lock();
            old = self.version.load_full();
            let mut next = (*old).clone();
            change(&mut next);
            let next = Arc::new(next);
            self.version.store(next.clone());
            done = then(&next);
        }
        // What only the old version held is let go here, outside of the lock.
        drop(old);
        done
    }

    /// Lets everybody see a commit that is a change of the version itself. Its number and the
    /// version become visible as one step: no view has one without the other (see
    /// [`Database::view`]). Nothing may come between the two that waits for another thread, since
    /// views that are made meanwhile wait for it.
    pub(crate) fn publish_version(
        &self,
        pipeline: &mut Pipeline,
        change: impl FnOnce(&mut Version),
    ) -> Applied {
        let seq = pipeline.next_seq;
        let change = |version: &mut Version| {
            change(version);
            version.came_with = seq;
        };
        self.swap_version_and(change, |version| {
            self.came_with.store(seq, Ordering::Release);
            self.show(pipeline, version, 1, 0, 0)
        })
    }

    /// A commit that is an edit of the manifest: made durable as `plan` draws it up for its number,
    /// and then visible. The caller has entered the pipeline with room for [`number_alone`].
    /// `past`: what it changes, for those who look for conflicts.
    pub(crate) fn install_commit<F>(
        &self,
        pipeline: &mut Pipeline,
        past: impl FnOnce(Seq) -> Option<Past>,
        plan: impl FnOnce(&State, Seq) -> Result<(Vec<Edit>, F)>,
    ) -> Result<()>
    where
        F: FnOnce(&mut Version),
    {
        let seq = pipeline.next_seq;
        let mut manifest = self.manifest()?;
        let (edits, change) = plan(manifest.state(), seq)?;
        manifest.commit(edits)?;
        // It has happened. Until it is visible, readers have all of what was before.
        if self.options.journal {
            record::encode(&number_alone(), pipeline.stream(), |_| {});
        }
        let remembered = self.transactions.remember(past(seq));
        self.publish_version(pipeline, change);
        drop(remembered);
        Ok(())
    }

    /// Makes the edits that `plan` draws up durable, then changes the version accordingly. Whatever
    /// the version lets go of is free only after the edits are durable.
    pub(crate) fn install<F>(&self, plan: impl FnOnce(&State) -> (Vec<Edit>, F)) -> Result<()>
    where
        F: FnOnce(&mut Version),
    {
        let mut manifest = self.manifest()?;
        let (edits, change) = plan(manifest.state());
        manifest.commit(edits)?;
        self.swap_version(change);
        Ok(())
    }

    pub(crate) fn view(&self) -> View {
        self.view_with(|| ())
    }

    /// The same; `between` is what others do between its two steps.
    fn view_with(&self, mut between: impl FnMut()) -> View {
        loop {
            // The version first: what it lacks was committed after this call began; what its runs
            // hold is visible already.
            let version = self.version.load_full();
            between();
            let pin = self.pins.pin(&self.visible);
            // A commit that came with a version is seen in that version and no other.
            if self.came_with.load(Ordering::Acquire) == version.came_with
                && version.came_with <= pin.at
            {
                return View {
                    at: pin.at,
                    store: self.store.clone(),
                    version: Pinned { version, _pin: pin },
                    own: None,
                };
            }
            // One of these is becoming visible right now.
            env::thread::yield_now();
        }
    }

    /// A view that has every commit up to the one that it pins: what is newer than that number is
    /// not in it, and nothing else.
    pub(crate) fn exact_view(&self) -> View {
        self.exact_view_with(|| ())
    }

    fn exact_view_with(&self, mut between: impl FnMut()) -> View {
        loop {
            let view = self.view_with(&mut between);
            // What was committed between the two steps lies in its memtables, unless these were
            // sealed or others added meanwhile.
            if Arc::ptr_eq(&self.version.load(), &view.version.version) {
                return view;
            }
        }
    }

    pub(crate) fn create_dictionary(
        &self,
        branch: &str,
        name: &str,
        options: DictionaryOptions,
    ) -> Result<DictionaryId> {
        if let Some(id) = self.dictionary(branch, name) {
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
        self.install(|state| {
            // Somebody else may have been quicker.
            let there = state
                .dictionaries
                .values()
                .find(|d| d.info.name == name && d.info.branch == branch)
                .map(|d| d.info.id);
            let known = branch.is_empty() || state.branches.contains_key(branch);
            let id = there.unwrap_or(DictionaryId(state.next_dictionary));
            made = known.then_some(id);
            let info = DictionaryInfo { id, name: name.into(), branch: branch.into(), options };
            let edits = if there.is_some() || !known {
                Vec::new()
            } else {
                vec![Edit::Dictionary(info.clone())]
            };
            let change = move |v: &mut Version| {
                let generation = v.generation.clone();
                if known {
                    v.trees.entry(id).or_insert_with(|| Arc::new(Tree::new(info, &generation)));
                }
            };
            (edits, change)
        })?;
        made.ok_or_else(|| Error::NoBranch(branch.into()))
    }

    /// Drops a dictionary and all that is in it.
    pub(crate) fn drop_dictionary(&self, dict: DictionaryId) -> Result<()> {
        self.writable()?;
        self.version.load().tree(dict)?;
        // A snapshot that was made before has it.
        let naming = self.settled()?;
        self.install(|state| {
            let edits =
                state.dictionaries.contains_key(&dict).then_some(Edit::DropDictionary(dict));
            (edits.into_iter().collect(), move |v: &mut Version| drop(v.trees.remove(&dict)))
        })?;
        drop(naming);
        self.background.compaction_wanted();
        Ok(())
    }

    /// Changes the stitching threshold of a dictionary, durably and for merges under way.
    pub(crate) fn set_stitch_at(&self, dict: DictionaryId, stitch_at: u64) -> Result<()> {
        self.writable()?;
        self.version.load().tree(dict)?;
        self.install(|state| {
            let edits = state
                .dictionaries
                .contains_key(&dict)
                .then_some(Edit::StitchAt { dict, stitch_at });
            (edits.into_iter().collect(), move |v: &mut Version| {
                v.change(dict, |t| t.info.options.stitch_at = stitch_at)
            })
        })
    }

    pub(crate) fn dictionary(&self, branch: &str, name: &str) -> Option<DictionaryId> {
        let version = self.version.load();
        version
            .trees
            .values()
            .find(|t| t.info.name == name && t.info.branch == branch)
            .map(|t| t.info.id)
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
        let mut manifest = self.manifest()?;
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{Batch, Durability, Isolation, Kvdb};

    /// A view's two steps, with something that others do between them, which happens once: what it
    /// has is one state of the store.
    fn between(others: impl Fn(&Kvdb, DictionaryId)) {
        for exact in [false, true] {
            let db = Kvdb::in_memory();
            let d = db.create_dictionary("d", DictionaryOptions::default()).expect("made");
            let put = |key: &str, value: &str| {
                db.put(d, key.as_bytes(), value.as_bytes(), Durability::Buffered).expect("put")
            };
            put("a", "1");
            put("b", "1");
            db.snapshot("one").expect("made");
            db.flush().expect("flushed");
            put("a", "2");
            let done = Cell::new(false);
            let during = || {
                if !done.replace(true) {
                    others(&db, d);
                    put("b", "behind");
                }
            };
            let inner = &db.db.0;
            let view = if exact { inner.exact_view_with(during) } else { inner.view_with(during) };
            let read = |view: &View, key: &str| view.get(d, key.as_bytes()).expect("read");
            let now = db.view();
            if view.at == now.at {
                // It has the number of all that was done: then it has all of it.
                assert_eq!(
                    ["a", "b"].map(|key| read(&view, key)),
                    ["a", "b"].map(|key| read(&now, key)),
                    "exact: {exact}"
                );
            } else {
                assert_eq!(
                    ["a", "b"].map(|key| read(&view, key)),
                    [Some("2".into()), Some("1".into())],
                    "exact: {exact}"
                );
            }
        }
    }

    #[test]
    fn a_view_and_a_rollback() {
        between(|db, _| db.rollback("one").expect("rolled back"));
    }

    #[test]
    fn a_view_and_an_ingest() {
        between(|db, d| _ = db.ingest(d, [("a", "ingested")]).expect("ingested"));
    }

    #[test]
    fn a_view_and_a_transaction_that_binds_runs() {
        between(|db, d| {
            let t = db.begin(Isolation::Snapshot).expect("begun");
            let mut bulk = t.bulk(d, &db.view()).expect("begun");
            bulk.push(b"a", b"bound").expect("pushed");
            t.adopt(bulk.finish().expect("written")).expect("adopted");
            t.commit(Durability::Buffered).expect("committed");
        });
    }

    /// A transaction that began between the two would read the state before the commit and find no
    /// conflict with it.
    #[test]
    fn no_transaction_begins_between_the_note_of_a_commit_and_its_visibility() {
        let db = Kvdb::in_memory();
        let inner = &db.db.0;
        let mut pipeline = inner.enter_at_once(record::size(&number_alone())).expect("entered");
        let asked = Cell::new(false);
        let change = |_: &mut Version| {
            asked.set(true);
            assert!(!inner.transactions.may_begin(), "the commit is noted and not visible yet");
        };
        let plan = |_: &State, _| Ok((vec![Edit::Streams(inner.zones.positions())], change));
        inner.install_commit(&mut pipeline, |_| None, plan).expect("installed");
        assert!(asked.get());
        assert!(inner.transactions.may_begin(), "it is visible");
    }

    /// A plain view may lack what came between its steps; one that a transaction reads has every
    /// commit up to its number.
    #[test]
    fn an_exact_view_and_what_goes_into_other_memtables() {
        let new_generation = |db: &Kvdb, d| {
            let generation = db.db.0.version.load().generation.number;
            db.db.0.seal(generation).expect("sealed");
            db.put(d, b"a", b"3", Durability::Buffered).expect("put");
        };
        let new_dictionary = |db: &Kvdb, _| {
            let e = db.create_dictionary("e", DictionaryOptions::default()).expect("made");
            db.put(e, b"a", b"3", Durability::Buffered).expect("put");
        };
        type Others<'a> = &'a dyn Fn(&Kvdb, DictionaryId);
        let cases: [Others; 2] = [&new_generation, &new_dictionary];
        for others in cases {
            let db = Kvdb::in_memory();
            let d = db.create_dictionary("d", DictionaryOptions::default()).expect("made");
            let mut batch = Batch::new();
            batch.put(d, "a", "1");
            db.commit(batch, Durability::Buffered).expect("committed");
            let done = Cell::new(false);
            let view = db.db.0.exact_view_with(|| {
                if !done.replace(true) {
                    others(&db, d);
                }
            });
            let now = db.view();
            assert_eq!(view.at, now.at);
            for dict in now.dictionaries() {
                let read = |view: &View| {
                    view.dictionary(&dict.name).map(|d| view.get(d, b"a").expect("read"))
                };
                assert_eq!(read(&view), read(&now), "dictionary {}", dict.name);
            }
        }
    }
}
