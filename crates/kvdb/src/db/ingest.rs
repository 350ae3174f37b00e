//! Ingests sorted tuples in bulk. The tuples are written once, as a run, without journal and
//! memtables. One edit of the manifest adds the run to the store as the newest run of its
//! dictionary. Later merges stitch the run.
//!
//! An ingest takes its place in the order of commits when it finishes. Its tuples are invisible
//! until then. After the last tuple, the memtables are sealed and flushed, so that all earlier
//! commits lie in older runs, and the new run is placed above those runs. During this step no
//! commit can change a key between the first and the last key of the ingest.

use env::sync::atomic::Ordering;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{MergeOptions, Placement, Run, RunWriter};
use zones::Priority;

use crate::commit::CommitEnv;
use crate::commit::number_alone;
use crate::commit::order::Changed;
use crate::commit::{MAX_KEY, MAX_VALUE, SpaceClaim};
use crate::db::Kvdb;
use crate::db::database::Database;
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::ids::RunId;
use crate::journal::record;
use crate::locks::KeyRangeRef;
use crate::manifest::{Edit, ManifestState};
use crate::version::generation::Layer;
use crate::version::version_set::VersionEdit;

/// The number of ingested bytes after which the free space is checked again.
const LOOK_AT_SPACE: u64 = 4 << 20;
/// The number of free bytes below which an ingest first reclaims deleted data.
const SHORT: u64 = 32 << 20;

/// The result of an ingest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IngestStats {
    /// The number of tuples.
    pub tuples: u64,
    /// The size of the keys and values as the caller passed them, in bytes.
    pub user_bytes: u64,
    /// The size of the blocks, values and index as they were written, in bytes.
    pub written_bytes: u64,
}

impl Kvdb {
    /// Writes tuples in strictly ascending order of their keys directly into the store. Each byte
    /// is written once, neither to the journal first nor again by later merges, and memory stays
    /// bounded for any number of tuples. All tuples are visible and durable when this returns. If
    /// an error is returned, none of them is, and their space is free again.
    ///
    /// The tuples replace all values that were committed under the same keys before the end of the
    /// input. The last step locks the range of keys from the first to the last. It waits for
    /// serializable transactions that have locked some of these keys, and fails with
    /// [`Error::Locked`] if the wait takes too long. Commits to the range wait until the step is
    /// done. An open transaction with snapshot isolation that changes a key of the range finds a
    /// conflict. If a key is unsorted or repeated, the ingest fails with [`Error::Invalid`].
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// let squares = db.open_dictionary("squares")?;
    /// let square = |i: u32| (u64::from(i) * u64::from(i)).to_be_bytes();
    /// let sorted = (0..100_000u32).map(|i| (i.to_be_bytes().to_vec(), square(i).to_vec()));
    /// let stats = db.ingest(squares.id(), sorted)?;
    /// assert_eq!(stats.tuples, 100_000);
    /// assert_eq!(squares.get(9u32.to_be_bytes())?.unwrap(), 81u64.to_be_bytes()[..]);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn ingest<K, V>(
        &self,
        dict: DictionaryId,
        tuples: impl IntoIterator<Item = (K, V)>,
    ) -> Result<IngestStats>
    where
        K: Into<Bytes>,
        V: Into<Bytes>,
    {
        let mut ingest = self.begin_ingest(dict)?;
        for (key, value) in tuples {
            ingest.push(key, value)?;
        }
        ingest.finish()
    }

    /// Begins an ingest to which the caller pushes tuples one by one. This form suits a source that
    /// may fail, because dropping the [`Ingest`] cancels the ingest.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let d = db.open_dictionary("d")?;
    /// let mut ingest = db.begin_ingest(d.id())?;
    /// for line in "a=1\nb=2\n".lines() {
    ///     let Some((key, value)) = line.split_once('=') else {
    ///         return Err(kvdb::Error::Invalid(format!("no = in {line}")));
    ///     };
    ///     ingest.push(key.to_owned(), value.to_owned())?;
    /// }
    /// assert_eq!(d.get("a")?, None, "not before the end");
    /// ingest.finish()?;
    /// assert_eq!(d.get("a")?.unwrap(), "1");
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn begin_ingest(&self, dict: DictionaryId) -> Result<Ingest> {
        let db = &self.db;
        db.engine.health.writable()?;
        let options =
            db.engine.versions.load().tree(dict)?.info().options.storage(Placement::stitch());
        let choice = db.engine.series.choice(dict, options.compress_values);
        let options = MergeOptions { priority: Priority::User, choice, ..options };
        // The tuples get number 0, which is older than every snapshot. No transaction can have read
        // the tuples before they are visible.
        let writer = RunWriter::new(&db.engine.cache, 0, &options);
        Ok(Ingest {
            db: self.clone(),
            dict,
            writer,
            first: Bytes::new(),
            last: None,
            stats: IngestStats::default(),
            looked: 0,
        })
    }
}

/// A bulk ingest in progress. See [`Kvdb::begin_ingest`].
pub struct Ingest {
    db: Kvdb,
    dict: DictionaryId,
    writer: RunWriter,
    first: Bytes,
    last: Option<Bytes>,
    stats: IngestStats,
    /// The user bytes when the free space was last checked.
    looked: u64,
}

impl Ingest {
    /// Appends a tuple, whose key must be greater than the previous key. After an error the ingest
    /// can only be dropped.
    pub fn push(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<()> {
        let (key, value) = (key.into(), value.into());
        if key.len() > MAX_KEY {
            return Err(Error::Invalid(format!(
                "a key of {} bytes; at most {MAX_KEY} are allowed",
                key.len()
            )));
        }
        if value.len() > MAX_VALUE {
            return Err(Error::Invalid(format!(
                "a value of {} bytes; at most {MAX_VALUE} are allowed",
                value.len()
            )));
        }
        if let Some(last) = self.last.as_ref().filter(|last| key <= **last) {
            let how = if key == *last { "comes twice" } else { "comes after a larger one" };
            let at = self.stats.tuples;
            return Err(Error::Invalid(format!(
                "ingest takes keys in ascending order: key {at} ({:?}) {how}",
                shown(&key)
            )));
        }
        self.stats.tuples += 1;
        self.stats.user_bytes += (key.len() + value.len()) as u64;
        if self.stats.user_bytes - self.looked >= LOOK_AT_SPACE {
            self.looked = self.stats.user_bytes;
            let db = &self.db.db;
            db.engine.health.writable()?;
            if db.space().free < SHORT {
                // A reclaim may free the space of deleted data. If it does not, place the held
                // values, because they keep zones reserved.
                if !db.admission.want_space() {
                    db.admission.place_held();
                }
            }
        }
        // Copy the key, since the caller's buffer may be much larger.
        let last = Bytes::copy_from_slice(&key);
        if self.last.is_none() {
            self.first = last.clone();
        }
        self.last = Some(last);
        Ok(self.writer.push(key, value)?)
    }

    /// Returns the bytes written to the device so far.
    pub fn written(&self) -> u64 {
        self.writer.written()
    }

    /// Adds the pushed tuples to the store, durably.
    pub fn finish(self) -> Result<IngestStats> {
        let Ingest { db, dict, writer, first, last, mut stats, .. } = self;
        let db = &db.db;
        let (run, written) = writer.finish()?;
        stats.written_bytes = written.written();
        let (Some(run), Some(last)) = (run, last) else { return Ok(stats) };
        db.snapshotter.admit_run(dict, &run)?;
        db.install_ingested(dict, KeyRangeRef::between(&first, &[&last[..], &[0]].concat()), run)?;
        db.engine.counters.merged(&written);
        db.engine.counters.user_bytes.add(stats.user_bytes);
        db.engine.counters.bound_bytes.add(written.values_written);
        Ok(stats)
    }
}

/// Returns the beginning of a key, for a message.
fn shown(key: &[u8]) -> String {
    let more = if key.len() > 40 { "…" } else { "" };
    format!("{}{more}", key[..key.len().min(40)].escape_ascii())
}

impl Database {
    /// Returns the edit that adds `run` as the newest of its dictionary.
    fn adding(
        &self,
        state: &ManifestState,
        dict: DictionaryId,
        run: &Arc<Run>,
    ) -> Result<VersionEdit> {
        if !state.dictionaries.contains_key(&dict) {
            let what = format!("{} (by number): dropped during the ingest", dict.0);
            return Err(Error::NoDictionary(what));
        }
        let mut change = VersionEdit::of([Edit::Streams(self.engine.zones.positions())]);
        change.add_run(dict, 0, RunId(state.next_run), run);
        Ok(change)
    }

    /// Installs `run`, whose keys lie in `range`, above all commits so far.
    fn install_ingested(
        &self,
        dict: DictionaryId,
        range: KeyRangeRef<'_>,
        run: Arc<Run>,
    ) -> Result<()> {
        self.engine.health.writable()?;
        self.engine
            .zones
            .sync()
            .map_err(|e| self.engine.health.fail("syncing an ingest", &e.into()))?;
        // Flush most of the memtables here, while other flushes can still run.
        self.flusher.flush_all()?;
        let _alone = self.transactions.lock_alone(dict, range)?;
        // Space can still be reclaimed here, before the locks are taken.
        drop(self.commits.enter(
            &*self.admission,
            record::size(&number_alone()),
            0,
            SpaceClaim::default(),
        )?);
        // From here on no younger memtable becomes a run before this run is installed.
        let flushing = self.flusher.lock();
        let version = self.engine.versions.load_full();
        let number = version.generation.number;
        let empty = version.trees.get(&dict).is_none_or(|t| t.layers.iter().all(Layer::is_empty));
        drop(version);
        if !empty {
            self.commits.seal(number)?;
        }
        // A pending snapshot is older than this run and must not include it.
        let naming = loop {
            self.flusher.flush_sealed_locked()?;
            let naming = self.engine.snapshots.naming.lock();
            if self.engine.snapshots.next_pending().is_none() {
                break naming;
            }
        };
        let installed = {
            // The run gets its own commit number, so that older transactions find a conflict with
            // it. The pipeline's lock is held, so no commit happens between the data below it and
            // the run itself.
            let entered = self.commits.enter_in_order(Priority::Log)?;
            let changed = Changed::Run(dict, run.clone());
            self.commits.install_commit(entered, changed, |state| self.adding(state, dict, &run))?
        };
        drop((naming, flushing));
        self.engine.signals.reclaimable.store(true, Ordering::Release);
        self.flusher.flushed();
        installed.finish(&*self.admission)
    }
}
