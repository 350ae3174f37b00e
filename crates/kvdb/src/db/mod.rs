//! The store as a whole: its parts, and the code that creates, opens, checks, repairs and copies a
//! store; and the handle that callers hold.

pub(crate) mod check;
pub(crate) mod checkpoint;
mod database;
pub(crate) mod files;
pub(crate) mod follower;
mod fork;
pub(crate) mod handle;
pub(crate) mod ingest;
mod prefetch;
pub(crate) mod promise;
pub(crate) mod publisher;
mod ranks;
pub(crate) mod receive;
pub(crate) mod recovery;
pub(crate) mod reference;
pub(crate) mod rehearsal;
mod remote;
pub(crate) mod remote_journal;
pub(crate) mod repair;
pub(crate) mod scope;
mod scrub;
pub(crate) mod send;
pub(crate) mod served;
pub(crate) mod snapshots;
pub(crate) mod stats;
mod threads;
mod transactions;
mod whole_dictionaries;
pub(crate) mod writer;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::{Env, Machine};
use zones::{Device, MemoryDevice, ZoneInfo};

use self::database::Database;
use self::recovery::Recovery;
use self::snapshots::DROPPED;
use self::stats::Stats;
use crate::background::defragment::{DefragOptions, DefragProgress, ValueOrder};
use crate::commit::CommitEnv;
use crate::commit::batch::{Batch, Durability};
use crate::commit::conditional::Reads;
use crate::commit::feed::{CommitPosition, RecentKeys};
use crate::dictionary::{DictionaryId, DictionaryInfo, DictionaryOptions};
use crate::error::{Error, Result};
use crate::options::{CreateOptions, OpenOptions};
use crate::read::bounds;
use crate::read::view::View;
use crate::series::{SeriesCodec, SeriesSource};

/// An open store. Clones share it; the last one that is dropped closes it.
#[derive(Clone)]
pub struct Kvdb {
    db: Arc<Database>,
    /// Dropped with the last clone; background threads hold only the database.
    _closer: Arc<Closer>,
}

/// Closes the database when the last clone of [`Kvdb`] drops it.
struct Closer(Arc<Database>);

impl Drop for Closer {
    fn drop(&mut self) {
        if let Err(e) = self.0.close() {
            tracing::error!("closing the store: {e}");
        }
    }
}

/// The space of the store, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The size that the store may have on its device.
    pub total: u64,
    /// The space that user data can still take.
    pub free: u64,
}

impl Kvdb {
    fn of(db: Arc<Database>) -> Kvdb {
        Kvdb { _closer: Arc::new(Closer(db.clone())), db }
    }

    /// Makes an empty store on `device`, whose contents are lost.
    pub fn create(
        device: Arc<dyn Device>,
        env: Arc<dyn Env>,
        options: CreateOptions,
    ) -> Result<Kvdb> {
        Ok(Self::of(recovery::create(device, env, options)?))
    }

    /// Opens the store on `device`, and replays its journal.
    pub fn open(
        device: Arc<dyn Device>,
        env: Arc<dyn Env>,
        options: OpenOptions,
    ) -> Result<(Kvdb, Recovery)> {
        let (db, recovery) = recovery::open(device, env, options)?;
        Ok((Self::of(db), recovery))
    }

    /// Makes a store in memory, without background threads: for tests of the floors above, and for
    /// experiments.
    ///
    /// # Panics
    /// Panics if there is no memory for the few kilobytes of an empty store.
    pub fn in_memory() -> Self {
        let open = OpenOptions {
            memory: 64 << 20,
            threads: false,
            zero_journal: false,
            flush_on_close: false,
            ..OpenOptions::default()
        };
        let options = CreateOptions { open, ..CreateOptions::default() };
        Self::create(Arc::new(MemoryDevice::new()), Arc::new(Machine::default()), options)
            .expect("memory does not fail")
    }

    /// Returns the number of a dictionary of the main branch, if it exists.
    pub fn dictionary(&self, name: &str) -> Option<DictionaryId> {
        self.db.engine.versions.dictionary("", name)
    }

    /// Returns whether the main branch has a dictionary of this number now.
    pub fn has_dictionary(&self, dict: DictionaryId) -> bool {
        self.db.engine.versions.load().has_in_main(dict)
    }

    /// Returns the name and the options of a dictionary of any branch, if it exists.
    pub fn dictionary_info(&self, dict: DictionaryId) -> Option<DictionaryInfo> {
        self.db.engine.versions.load().get(dict).map(|tree| tree.info().to_info())
    }

    /// Returns the dictionary of that name, and makes it if it does not exist (durable before this
    /// returns).
    pub fn create_dictionary(
        &self,
        name: &str,
        options: DictionaryOptions,
    ) -> Result<DictionaryId> {
        self.db.catalog.create("", name, options)
    }

    /// Drops a dictionary with its contents. The drop is durable before this returns, and so are
    /// all earlier commits: tuples that were copied elsewhere are never lost together with the
    /// original. Existing views still see it. Serializable transactions that have read or changed
    /// it are aborted.
    pub fn drop_dictionary(&self, dict: DictionaryId) -> Result<()> {
        self.drop_dictionaries(&[dict])
    }

    /// Drops several dictionaries as [`Kvdb::drop_dictionary`] does, atomically: after a crash all
    /// of them are dropped, or none.
    pub fn drop_dictionaries(&self, dicts: &[DictionaryId]) -> Result<()> {
        let db = &self.db;
        db.catalog.remove(dicts, |dicts| db.transactions.lock_before_all(dicts, DROPPED))
    }

    /// Changes the stitching threshold of a dictionary (see [`DictionaryOptions::stitch_at`]),
    /// durably before this returns. A merge under way uses it from its next part on.
    pub fn set_stitch_at(&self, dict: DictionaryId, bytes: u64) -> Result<()> {
        self.db.catalog.set_stitch_at(dict, bytes)
    }

    /// Changes the storage options of a dictionary, durably before this returns. They apply to data
    /// that is written from now on, by a merge under way from its next part on; existing data stays
    /// as it is until a merge rewrites it. `reserved` cannot be changed.
    pub fn set_dictionary_options(
        &self,
        dict: DictionaryId,
        options: DictionaryOptions,
    ) -> Result<()> {
        self.db.catalog.set_options(dict, options)
    }

    /// Sets the codec of the large values of a dictionary whose keys begin with `series`, for those
    /// that get their place from now on; `None` stands for the codec of the dictionary again. All
    /// series of a dictionary have prefixes of one length, at most 128 bytes. This is not stored,
    /// and only the thousands of series that were set last are remembered: a program sets the codec
    /// of a series whenever it is about to commit values of it, which costs little. Values keep the
    /// codec that they have.
    ///
    /// ```
    /// # use kvdb::{Batch, Compression, Durability, Kvdb, SeriesCodec};
    /// # let db = Kvdb::in_memory();
    /// # let d = db.open_dictionary("d")?;
    /// db.set_codec_of_series(d.id(), b"logs/", Some(SeriesCodec::Fixed(Compression::Zstd)))?;
    /// d.insert("logs/1", vec![7; 100_000])?;
    /// d.insert("pics/1", vec![7; 100_000])?;
    /// let view = db.view();
    /// let mut tuples = view.stored_tuples(d.id())?;
    /// while tuples.advance()? {
    ///     let Some(tuple) = tuples.current() else { break };
    ///     assert_eq!(tuple.stored_bytes() < 10_000, tuple.key.starts_with(b"logs/"));
    /// }
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn set_codec_of_series(
        &self,
        dict: DictionaryId,
        series: &[u8],
        codec: Option<SeriesCodec>,
    ) -> Result<()> {
        self.db.engine.series.set(dict, series, codec)
    }

    /// Sets the source of the codecs of values that [`Kvdb::receive`] takes out of a stream, for as
    /// long as the store is open. The first one that is set stays.
    pub fn set_series_source(&self, source: Arc<dyn SeriesSource>) {
        self.db.engine.series.set_source(source);
    }

    /// Returns the number of the newest visible commit.
    pub(crate) fn published_seq(&self) -> u64 {
        self.db.engine.versions.visible.load(env::sync::atomic::Ordering::Acquire)
    }

    /// Returns all dictionaries of the main branch, by number.
    pub fn dictionaries(&self) -> Vec<DictionaryInfo> {
        self.dictionaries_in("")
    }

    /// Returns a view of the store as of the newest commit, which stays the same while it is held.
    pub fn view(&self) -> View {
        self.db.engine.versions.view()
    }

    /// Starts to keep the keys of future commits, the newest ones in `bytes` bytes, and returns the
    /// position after the newest commit. If commits are kept already, this continues with the
    /// larger of the sizes. It keeps commits of the main branch to dictionaries that are not
    /// reserved, for as long as the store is open. [`Kvdb::follow_branch`] does this for a clone.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// let fruit = db.open_dictionary("fruit")?;
    /// let start = db.follow_commits(1 << 20);
    /// fruit.insert("apple", "red")?;
    /// let recent = db.commits_since(start, 1000).expect("it is followed since");
    /// let apple = kvdb::CommittedKey::Put("apple".into());
    /// assert_eq!(recent.commits[0].changes, [(fruit.id(), apple)]);
    /// assert!(db.commits_since(recent.up_to, 1000).is_some_and(|more| more.commits.is_empty()));
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn follow_commits(&self, bytes: usize) -> CommitPosition {
        self.follow_commits_with(bytes, &[])
    }

    /// Does the same as [`Kvdb::follow_commits`], with some reserved dictionaries included. If they
    /// were not followed yet, earlier positions cannot be followed any more.
    pub fn follow_commits_with(&self, bytes: usize, reserved: &[DictionaryId]) -> CommitPosition {
        self.db.commits.follow_main(bytes, reserved)
    }

    /// Does the same as [`Kvdb::follow_commits_with`] for the commits to a branch. Each followed
    /// branch has a list of its own; the bytes bound all lists together. The list of a clone ends
    /// with the clone, and when it is rolled back or replaced.
    pub fn follow_branch(
        &self,
        branch: &str,
        bytes: usize,
        reserved: &[DictionaryId],
    ) -> Result<CommitPosition> {
        let position = self.db.commits.follow(branch, bytes, reserved);
        position.ok_or_else(|| Error::NoBranch(branch.into()))
    }

    /// Returns the keys of the commits after a position: whole commits, up to about `most` changes.
    /// A read of a key then finds the value that the commit has put, or a newer one. Returns `None`
    /// if some of the commits are not kept: following began too late or is too slow; there was a
    /// rollback, an ingest, or a transaction larger than memory; a dictionary was dropped; or the
    /// store was closed or opened again. The caller then has to compare with a snapshot, or read
    /// everything.
    pub fn commits_since(&self, since: CommitPosition, most: usize) -> Option<RecentKeys> {
        self.db.feed.since(since, most)
    }

    /// Waits until there are commits after a position, or until it is not kept any more, for
    /// example because the store was closed. Returns `false` after `at_most`.
    pub fn wait_for_commits(&self, since: CommitPosition, at_most: Duration) -> bool {
        self.db.feed.wait(since, at_most)
    }

    /// Returns the time of the store's environment, since 1970; in a simulation it advances on
    /// request. Snapshots and files are dated by the machine's coarse clock, which lags this one by
    /// up to a few milliseconds.
    pub fn wall_clock(&self) -> Duration {
        self.db.engine.env.exact_wall()
    }

    /// Returns a random number of the store's environment; in a simulation it follows from the
    /// seed.
    pub fn random(&self) -> u64 {
        self.db.engine.env.random()
    }

    /// Returns the newest committed value.
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        self.db.engine.versions.get(dict, key)
    }

    /// Returns the newest committed value of each of `keys`, in their order and all as of one
    /// commit. Cheaper than single reads: data on the device is read in the order of its place,
    /// with many requests at a time.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        dict: DictionaryId,
        keys: &[K],
    ) -> Result<Vec<Option<Bytes>>> {
        self.db.engine.versions.view().multi_get(dict, keys)
    }

    /// Commits one key and its value: the same as a batch of this put, with less work.
    pub fn put(
        &self,
        dict: DictionaryId,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        let db = &self.db;
        db.snapshotter.admit_put(dict, key.len() + value.len())?;
        db.commits.put(&*db.admission, dict, key, value, durability)
    }

    /// Commits `batch` atomically.
    pub fn commit(&self, batch: Batch, durability: Durability) -> Result<()> {
        let db = &self.db;
        db.snapshotter.admit(&batch)?;
        db.commits.commit(&*db.admission, batch, durability)
    }

    /// Commits `batch` atomically if nothing that it changes, and nothing in `reads`, was changed
    /// after `state`, which the batch was computed from. Updates that commute
    /// ([`Update::commutes`](crate::Update::commutes)) are in conflict only if the key was read.
    /// Returns `false` if something was changed, or if that cannot be determined at once; nothing
    /// is committed then, and the caller reads again. Cheaper than a transaction for changes of a
    /// few keys that rarely collide; a change that fails repeatedly is better made by a
    /// transaction.
    ///
    /// ```
    /// # use kvdb::{Batch, Kvdb, Reads};
    /// # let db = Kvdb::in_memory();
    /// # let d = db.open_dictionary("d")?;
    /// d.insert("open", "yes")?;
    /// loop {
    ///     let (state, mut reads, mut batch) = (db.view(), Reads::default(), Batch::new());
    ///     reads.key(d.id(), b"open");
    ///     if state.get(d.id(), b"open")?.is_some() {
    ///         batch.put(d.id(), "order", "17");
    ///     }
    ///     if db.commit_if_unchanged(batch, state, reads)? {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(d.get("order")?, Some("17".into()));
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn commit_if_unchanged(&self, batch: Batch, state: View, reads: Reads) -> Result<bool> {
        let db = &self.db;
        db.snapshotter.admit(&batch)?;
        db.commits.commit_if_unchanged(&*db.admission, batch, state, reads)
    }

    /// Returns an error if the store takes no more writes: it was opened for reading, was closed,
    /// or has failed. For callers that would otherwise collect changes in memory that can never be
    /// committed.
    pub fn takes_writes(&self) -> Result<()> {
        self.db.engine.health.writable()
    }

    /// Stops all writes from now on, as if the store had failed; each call that would write fails
    /// with `why`. Commits that are not durable yet may be lost: the next open recovers the durable
    /// ones, as after a power cut. Reads still work.
    pub fn halt(&self, why: &str) {
        self.db.engine.health.stop(|| why.into());
    }

    /// Writes all commits to the device, without waiting until they are durable. All large values
    /// are placed then.
    pub fn write_out(&self) -> Result<()> {
        self.db.commits.log.write_out().map(drop)
    }

    /// Makes everything that was committed before this call durable.
    pub fn sync(&self) -> Result<()> {
        let db = &self.db;
        db.commits.sync(&*db.admission)
    }

    /// Does the same as `sync`, for work at intervals: no caller waits for it, so it is not taken
    /// as a sign that syncs should be short.
    pub fn sync_at_interval(&self) -> Result<()> {
        let db = &self.db;
        db.commits.sync_at_interval(&*db.admission)
    }

    /// Returns the size of the store, and the bytes that user data can still take.
    pub fn space(&self) -> Space {
        self.db.space()
    }

    /// Frees the space of deleted data now, as the background does in time. For callers that find
    /// `space().free` low. Fast if nothing was deleted since the last call.
    pub fn reclaim(&self) {
        let admission = &self.db.admission;
        if self.db.engine.health.writable().is_ok() && !admission.want_space() {
            admission.place_held();
        }
    }

    /// Flushes everything that was committed before this call into runs; the journal is empty
    /// afterwards.
    pub fn flush(&self) -> Result<()> {
        self.db.engine.health.writable()?;
        self.db.flusher.flush_all()?;
        self.db.tidy_soon();
        Ok(())
    }

    /// Merges all runs of a dictionary into one, which frees the space of deleted data.
    pub fn compact(&self, dict: DictionaryId) -> Result<()> {
        self.db.engine.health.writable()?;
        self.db.flusher.flush_all()?;
        self.db.compactor.compact(dict)
    }

    /// Merges the data of all runs in a range of keys into the bottom run, which frees the space of
    /// deleted data there; the rest of the dictionary stays as it is.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let d = db.open_dictionary("d")?;
    /// # for i in 0..100u8 { d.insert(vec![i], vec![i; 1000])?; }
    /// d.remove_range([10]..[90])?;
    /// db.compact_range(d.id(), [10]..[90])?;
    /// assert_eq!(d.estimate([10]..[90])?.items, 0);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn compact_range<K: AsRef<[u8]>>(
        &self,
        dict: DictionaryId,
        range: impl std::ops::RangeBounds<K>,
    ) -> Result<()> {
        self.db.engine.health.writable()?;
        self.db.flusher.flush_all()?;
        self.db.compactor.compact_range(dict, bounds::of(&range))
    }

    /// Starts a defragmentation in the background, which moves live data out of zones that are
    /// mostly holes; clients continue. Returns `false` if one is in progress already. In a store
    /// without threads it is done when this returns. See [`Kvdb::defrag_progress`].
    pub fn defragment(&self, options: DefragOptions) -> Result<bool> {
        self.db.engine.health.writable()?;
        self.db.defragmenter.start_defragment(options)
    }

    /// Sets the order in which a defragmentation lays large values, for dictionaries whose values
    /// are read in another order than that of their keys. It replaces the order that was set
    /// before, and is not stored.
    pub fn set_value_order(&self, order: Arc<dyn ValueOrder>) {
        self.db.defragmenter.set_value_order(order);
    }

    /// Returns the progress of the defragmentation, or of the last one.
    pub fn defrag_progress(&self) -> DefragProgress {
        self.db.defragmenter.progress()
    }

    /// Stops a defragmentation after its current part; data that it has moved stays moved.
    pub fn stop_defragment(&self) {
        self.db.defragmenter.stop();
    }

    /// Waits until no defragmentation is in progress.
    pub fn wait_for_defragment(&self) {
        self.db.defragmenter.wait_for_end();
    }

    /// Does one bounded unit of background work, for a store without threads. Returns `false` if
    /// there is nothing to do.
    pub fn step(&self) -> Result<bool> {
        self.db.step()
    }

    /// Returns figures on the work of the store since it was opened, and on its contents.
    pub fn stats(&self) -> Stats {
        self.db.stats()
    }

    /// Returns the zones of 8 MiB of the store's file, in their order: their use, the purpose of
    /// their data, and the time since each was taken.
    pub fn zone_map(&self) -> Vec<ZoneInfo> {
        self.db.engine.zones.map()
    }

    /// Makes everything durable and ends background work. Later writes are refused; views stay
    /// readable. Dropping the last clone does the same, but cannot report errors.
    pub fn close(&self) -> Result<()> {
        self.db.close()
    }
}

/// The parts, for their tests.
#[cfg(test)]
impl Kvdb {
    pub(crate) fn version_set(&self) -> &crate::version::version_set::VersionSet {
        &self.db.engine.versions
    }

    pub(crate) fn pipeline(&self) -> &crate::commit::Committer {
        &self.db.commits
    }

    pub(crate) fn transaction_registry(&self) -> &crate::transactions::Transactions {
        &self.db.transactions
    }

    pub(crate) fn snapshot_set(&self) -> &crate::version::snapshot_set::Snapshots {
        &self.db.engine.snapshots
    }

    pub(crate) fn defragmenter(&self) -> &crate::background::Defragmenter {
        &self.db.defragmenter
    }
}
