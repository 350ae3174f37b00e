//! The store as a whole. This module has the parts of a store, the handle that callers hold, and
//! the code that creates, opens, checks, repairs and copies a store.

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

/// An open store. Clones share the store, which is closed when the last clone is dropped.
#[derive(Clone)]
pub struct Kvdb {
    db: Arc<Database>,
    /// Closes the store when the last clone is dropped. Background threads hold only the database.
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

/// The space of the store, in bytes.
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

    /// Makes a store in memory, without background threads. Such a store is meant for tests of the
    /// floors above, and for experiments.
    ///
    /// # Panics
    /// Panics if the few kilobytes of an empty store cannot be allocated.
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

    /// Returns the number of the main branch's dictionary with this name, if the dictionary exists.
    pub fn dictionary(&self, name: &str) -> Option<DictionaryId> {
        self.db.engine.versions.dictionary("", name)
    }

    /// Returns whether the main branch currently has a dictionary with this number.
    pub fn has_dictionary(&self, dict: DictionaryId) -> bool {
        self.db.engine.versions.load().has_in_main(dict)
    }

    /// Returns the name and the options of a dictionary of any branch, if it exists.
    pub fn dictionary_info(&self, dict: DictionaryId) -> Option<DictionaryInfo> {
        self.db.engine.versions.load().get(dict).map(|tree| tree.info().to_info())
    }

    /// Returns the number of the dictionary with this name. If the dictionary does not exist, it is
    /// created, and is durable before this returns.
    pub fn create_dictionary(
        &self,
        name: &str,
        options: DictionaryOptions,
    ) -> Result<DictionaryId> {
        self.db.catalog.create("", name, options)
    }

    /// Drops a dictionary with its contents. The drop is durable before this returns, and so are
    /// all earlier commits: tuples that were copied elsewhere are never lost together with the
    /// original. Existing views still see the dictionary. Serializable transactions that have read
    /// or changed it are aborted.
    pub fn drop_dictionary(&self, dict: DictionaryId) -> Result<()> {
        self.drop_dictionaries(&[dict])
    }

    /// Drops several dictionaries as [`Kvdb::drop_dictionary`] does, atomically. After a crash,
    /// either all of them are dropped or none is.
    pub fn drop_dictionaries(&self, dicts: &[DictionaryId]) -> Result<()> {
        let db = &self.db;
        db.catalog.remove(dicts, |dicts| db.transactions.lock_before_all(dicts, DROPPED))
    }

    /// Changes the stitching threshold of a dictionary (see [`DictionaryOptions::stitch_at`]),
    /// durably before this returns. A merge in progress uses the new threshold from its next part
    /// on.
    pub fn set_stitch_at(&self, dict: DictionaryId, bytes: u64) -> Result<()> {
        self.db.catalog.set_stitch_at(dict, bytes)
    }

    /// Changes the storage options of a dictionary, durably before this returns. The options apply
    /// to data that is written from now on; a merge in progress uses them from its next part on.
    /// Existing data stays as it is until a merge rewrites it. `reserved` cannot be changed.
    pub fn set_dictionary_options(
        &self,
        dict: DictionaryId,
        options: DictionaryOptions,
    ) -> Result<()> {
        self.db.catalog.set_options(dict, options)
    }

    /// Sets the codec of the large values of a dictionary whose keys begin with `series`. The codec
    /// applies to values that get their place from now on; values that already have a place keep
    /// their codec. `None` restores the codec of the dictionary. All series of a dictionary must
    /// have prefixes of the same length, at most 128 bytes. The setting is not stored, and only the
    /// thousands of series that were set last are remembered. A program should therefore set the
    /// codec of a series whenever it is about to commit values of the series, which costs little.
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

    /// Sets the source from which [`Kvdb::receive`] learns the codecs of the values in a stream.
    /// The first source that is set stays until the store is closed.
    pub fn set_series_source(&self, source: Arc<dyn SeriesSource>) {
        self.db.engine.series.set_source(source);
    }

    /// Returns the number of the newest visible commit.
    pub(crate) fn published_seq(&self) -> u64 {
        self.db.engine.versions.visible.load(env::sync::atomic::Ordering::Acquire)
    }

    /// Returns all dictionaries of the main branch, in the order of their numbers.
    pub fn dictionaries(&self) -> Vec<DictionaryInfo> {
        self.dictionaries_in("")
    }

    /// Returns a view of the store as of the newest commit. The view does not change while it is
    /// held.
    pub fn view(&self) -> View {
        self.db.engine.versions.view()
    }

    /// Starts to keep the keys of the newest commits from now on, in up to `bytes` bytes of memory,
    /// and returns the position after the newest commit. If commits are already being kept, the
    /// larger of the two sizes applies. The store keeps commits of the main branch to dictionaries
    /// that are not reserved, until it is closed. [`Kvdb::follow_branch`] does the same for a
    /// clone.
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

    /// Does the same as [`Kvdb::follow_commits`], but includes some reserved dictionaries. If these
    /// dictionaries were not followed before, earlier positions can no longer be followed.
    pub fn follow_commits_with(&self, bytes: usize, reserved: &[DictionaryId]) -> CommitPosition {
        self.db.commits.follow_main(bytes, reserved)
    }

    /// Does the same as [`Kvdb::follow_commits_with`] for the commits to a branch. Each followed
    /// branch has its own list; `bytes` bounds the size of all lists together. The list of a clone
    /// ends when the clone is dropped, rolled back or replaced.
    pub fn follow_branch(
        &self,
        branch: &str,
        bytes: usize,
        reserved: &[DictionaryId],
    ) -> Result<CommitPosition> {
        let position = self.db.commits.follow(branch, bytes, reserved);
        position.ok_or_else(|| Error::NoBranch(branch.into()))
    }

    /// Returns the keys of the commits after a position: whole commits, with up to about `most`
    /// changes in total. A later read of a key finds the value that the commit has put, or a newer
    /// value. Returns `None` if some of the commits are not kept. This happens if following began
    /// too late or is too slow; after a rollback, an ingest, or a transaction larger than memory;
    /// after a dictionary was dropped; and after the store was closed or opened again. The caller
    /// then has to compare with a snapshot, or read everything.
    pub fn commits_since(&self, since: CommitPosition, most: usize) -> Option<RecentKeys> {
        self.db.feed.since(since, most)
    }

    /// Waits until the store has commits after a position, or until the position is no longer kept,
    /// for example because the store was closed. Returns `false` if neither happens within
    /// `at_most`.
    pub fn wait_for_commits(&self, since: CommitPosition, at_most: Duration) -> bool {
        self.db.feed.wait(since, at_most)
    }

    /// Returns the current time of the store's environment, as the duration since 1970. In a
    /// simulation, time advances only on request. Snapshots and files are dated by the machine's
    /// coarse clock, which lags this clock by up to a few milliseconds.
    pub fn wall_clock(&self) -> Duration {
        self.db.engine.env.exact_wall()
    }

    /// Returns a random number from the store's environment. In a simulation the seed determines
    /// the number.
    pub fn random(&self) -> u64 {
        self.db.engine.env.random()
    }

    /// Returns the newest committed value of `key`.
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        self.db.engine.versions.get(dict, key)
    }

    /// Returns the newest committed value of each of `keys`, in their order and all as of one
    /// commit. This is cheaper than single reads, because data on the device is read in the order
    /// of its place, with many requests at a time.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        dict: DictionaryId,
        keys: &[K],
    ) -> Result<Vec<Option<Bytes>>> {
        self.db.engine.versions.view().multi_get(dict, keys)
    }

    /// Commits one key and its value. The effect is the same as that of a batch with this put, but
    /// the call does less work.
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

    /// Commits `batch` atomically if neither the keys that it changes nor the keys in `reads` have
    /// changed since `state`, the view from which the batch was computed. Updates that commute
    /// ([`Update::commutes`](crate::Update::commutes)) conflict only if the key was read. Returns
    /// `false` if a key has changed, or if the store cannot determine this at once. Nothing is
    /// committed then, and the caller should read again. The call is cheaper than a transaction for
    /// changes of a few keys that rarely collide. A change that fails repeatedly should be made by
    /// a transaction.
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

    /// Returns an error if the store takes no more writes, because it was opened for reading, was
    /// closed, or has failed. Callers use this check so as not to collect changes in memory that
    /// can never be committed.
    pub fn takes_writes(&self) -> Result<()> {
        self.db.engine.health.writable()
    }

    /// Stops all writes from now on, as if the store had failed. Each call that would write fails
    /// with `why`. Commits that are not durable yet may be lost, since the next open recovers only
    /// durable commits, as after a power cut. Reads still work.
    pub fn halt(&self, why: &str) {
        self.db.engine.health.stop(|| why.into());
    }

    /// Writes all commits to the device, without waiting until they are durable. This places all
    /// large values.
    pub fn write_out(&self) -> Result<()> {
        self.db.commits.log.write_out().map(drop)
    }

    /// Makes everything that was committed before this call durable.
    pub fn sync(&self) -> Result<()> {
        let db = &self.db;
        db.commits.sync(&*db.admission)
    }

    /// Does the same as `sync`, for periodic syncs for which no caller waits. The store does not
    /// take such a sync as a sign that syncs should be short.
    pub fn sync_at_interval(&self) -> Result<()> {
        let db = &self.db;
        db.commits.sync_at_interval(&*db.admission)
    }

    /// Returns the size of the store, and the bytes that user data can still take.
    pub fn space(&self) -> Space {
        self.db.space()
    }

    /// Frees the space of deleted data now instead of later in the background. Callers use this
    /// when `space().free` is low. The call is fast if nothing was deleted since the last call.
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
    /// mostly holes. Clients continue to work. Returns `false` if a defragmentation is already in
    /// progress. In a store without threads, the defragmentation is complete when this returns. See
    /// [`Kvdb::defrag_progress`].
    pub fn defragment(&self, options: DefragOptions) -> Result<bool> {
        self.db.engine.health.writable()?;
        self.db.defragmenter.start_defragment(options)
    }

    /// Sets the order in which a defragmentation lays large values, for dictionaries whose values
    /// are not read in the order of their keys. The new order replaces the previous one, and is not
    /// stored.
    pub fn set_value_order(&self, order: Arc<dyn ValueOrder>) {
        self.db.defragmenter.set_value_order(order);
    }

    /// Returns the progress of the current defragmentation, or of the last one if none is in
    /// progress.
    pub fn defrag_progress(&self) -> DefragProgress {
        self.db.defragmenter.progress()
    }

    /// Stops a defragmentation after its current part. Data that was already moved stays at its new
    /// place.
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

    /// Returns statistics about the work of the store since it was opened, and about its contents.
    pub fn stats(&self) -> Stats {
        self.db.stats()
    }

    /// Returns a description of each 8 MiB zone of the store's file, in their order: the use of the
    /// zone, the purpose of its data, and the time since it was taken.
    pub fn zone_map(&self) -> Vec<ZoneInfo> {
        self.db.engine.zones.map()
    }

    /// Makes everything durable and ends background work. Later writes are refused; views stay
    /// readable. Dropping the last clone does the same, but cannot report errors.
    pub fn close(&self) -> Result<()> {
        self.db.close()
    }
}

/// Access to the parts, for their tests.
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
