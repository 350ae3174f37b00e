//! The engine as a whole: its state, how it is made, opened, checked, repaired and copied, and what
//! a caller holds of it.

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
use crate::background::defragment::{DefragOptions, DefragProgress};
use crate::commit::CommitEnv;
use crate::commit::batch::{Batch, Durability};
use crate::commit::conditional::Reads;
use crate::commit::feed::{CommitPosition, RecentKeys};
use crate::dictionary::{DictionaryId, DictionaryInfo, DictionaryOptions};
use crate::error::{Error, Result};
use crate::options::{CreateOptions, OpenOptions};
use crate::read::bounds;
use crate::read::view::View;

/// An open store. Clones share it; the last one that is dropped closes it.
#[derive(Clone)]
pub struct Kvdb {
    db: Arc<Handle>,
}

/// Closes the database with its last user.
struct Handle(Arc<Database>);

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(e) = self.0.close() {
            tracing::error!("closing the store: {e}");
        }
    }
}

/// Room in the store, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What the store may take of its device.
    pub total: u64,
    /// What user data can still take.
    pub free: u64,
}

impl Kvdb {
    fn of(db: Arc<Database>) -> Kvdb {
        Kvdb { db: Arc::new(Handle(db)) }
    }

    /// Makes an empty store on `device`; whatever the device held is lost.
    pub fn create(
        device: Arc<dyn Device>,
        env: Arc<dyn Env>,
        options: CreateOptions,
    ) -> Result<Kvdb> {
        Ok(Self::of(recovery::create(device, env, options)?))
    }

    /// Opens the store on `device`, replaying what the journal holds.
    pub fn open(
        device: Arc<dyn Device>,
        env: Arc<dyn Env>,
        options: OpenOptions,
    ) -> Result<(Kvdb, Recovery)> {
        let (db, recovery) = recovery::open(device, env, options)?;
        Ok((Self::of(db), recovery))
    }

    /// A store in memory, without background threads: for tests of the floors above, and for trying
    /// things out.
    ///
    /// # Panics
    /// When there is no memory left for the few kilobytes of an empty store.
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

    /// The number of a dictionary of the main branch, if it exists.
    pub fn dictionary(&self, name: &str) -> Option<DictionaryId> {
        self.db.0.versions.dictionary("", name)
    }

    /// The main branch has a dictionary of this number now.
    pub fn has_dictionary(&self, dict: DictionaryId) -> bool {
        self.db.0.versions.load().trees.get(&dict).is_some_and(|tree| tree.info().branch.is_empty())
    }

    /// The dictionary of that name, made if it does not exist (durable before this returns).
    pub fn create_dictionary(
        &self,
        name: &str,
        options: DictionaryOptions,
    ) -> Result<DictionaryId> {
        self.db.0.catalog.create("", name, options)
    }

    /// Drops a dictionary and everything in it. Durable before this returns, and so is everything
    /// that was committed before: what was copied elsewhere is never lost together with what it was
    /// copied from. Views that exist still see it. Serializable transactions that have read or
    /// changed it are aborted.
    pub fn drop_dictionary(&self, dict: DictionaryId) -> Result<()> {
        self.drop_dictionaries(&[dict])
    }

    /// Drops several dictionaries as [`Kvdb::drop_dictionary`] does, as one change: after a crash
    /// all of them are gone, or none is.
    pub fn drop_dictionaries(&self, dicts: &[DictionaryId]) -> Result<()> {
        let db = &self.db.0;
        db.catalog.remove(dicts, |dicts| db.transactions.lock_before_all(dicts, DROPPED))
    }

    /// Changes the stitching threshold of a dictionary (see [`DictionaryOptions::stitch_at`]);
    /// durable before this returns. A merge under way takes it up with its next part.
    pub fn set_stitch_at(&self, dict: DictionaryId, bytes: u64) -> Result<()> {
        self.db.0.catalog.set_stitch_at(dict, bytes)
    }

    /// Changes how a dictionary keeps its tuples; durable before this returns. What is written from
    /// now on follows, by merges under way from their next part on; what is written stays as it is
    /// until a merge writes it again. `reserved` cannot be changed.
    pub fn set_dictionary_options(
        &self,
        dict: DictionaryId,
        options: DictionaryOptions,
    ) -> Result<()> {
        self.db.0.catalog.set_options(dict, options)
    }

    /// The number of the newest commit that is visible.
    pub(crate) fn published_seq(&self) -> u64 {
        self.db.0.versions.visible.load(env::sync::atomic::Ordering::Acquire)
    }

    /// All dictionaries of the main branch, by number.
    pub fn dictionaries(&self) -> Vec<DictionaryInfo> {
        self.dictionaries_in("")
    }

    /// The store as of the newest commit, for as long as the view is held.
    pub fn view(&self) -> View {
        self.db.0.versions.view()
    }

    /// Begins to keep the keys of the commits that come, the newest in so many bytes, and gives the
    /// position behind the newest of all; where that has begun already, it goes on, with the larger
    /// of the sizes. Kept are commits of the main branch in dictionaries that are not reserved, for
    /// as long as the store is open; of a clone, see [`Kvdb::follow_branch`].
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

    /// As [`Kvdb::follow_commits`], for what is kept in some reserved dictionaries as well. Where
    /// they were not followed yet, no earlier position can be followed from any more.
    pub fn follow_commits_with(&self, bytes: usize, reserved: &[DictionaryId]) -> CommitPosition {
        self.db.0.commits.follow_main(bytes, reserved)
    }

    /// As [`Kvdb::follow_commits_with`], for the commits to a branch. Each branch that is followed
    /// has a list of its own; the bytes are those of all lists together. The list of a clone ends
    /// with the clone, and when it is rolled back or replaced.
    pub fn follow_branch(
        &self,
        branch: &str,
        bytes: usize,
        reserved: &[DictionaryId],
    ) -> Result<CommitPosition> {
        let position = self.db.0.commits.follow(branch, bytes, reserved);
        position.ok_or_else(|| Error::NoBranch(branch.into()))
    }

    /// The keys of the commits behind a position, up to about `most` changes and always whole
    /// commits. A reader of a key then finds what that commit has put, or something newer. `None`:
    /// they are not kept: it was followed too late or is followed too slowly, there was a rollback,
    /// an ingest, or a transaction larger than memory, a dictionary was dropped, or the store was
    /// closed or opened anew. Compare with a snapshot then, or read everything.
    pub fn commits_since(&self, since: CommitPosition, most: usize) -> Option<RecentKeys> {
        self.db.0.feed.since(since, most)
    }

    /// Waits until there are commits after a position, or it is not kept any more, as when the
    /// store is closed; `false`: it was waited for so long.
    pub fn wait_for_commits(&self, since: CommitPosition, at_most: Duration) -> bool {
        self.db.0.feed.wait(since, at_most)
    }

    /// The time of the store's environment, since 1970; in a simulation it moves on request.
    /// Snapshots and files are dated by the coarse clock of the machine, which is up to some
    /// milliseconds behind this one.
    pub fn wall_clock(&self) -> Duration {
        self.db.0.env.exact_wall()
    }

    /// A random number of the store's environment; in a simulation it follows from the seed.
    pub fn random(&self) -> u64 {
        self.db.0.env.random()
    }

    /// The newest committed value.
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        self.db.0.versions.get(dict, key)
    }

    /// The newest committed value of each of `keys`, all as of one commit; in their order. Cheaper
    /// than one by one: what must be read is read in the order of its place, and many at a time.
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        dict: DictionaryId,
        keys: &[K],
    ) -> Result<Vec<Option<Bytes>>> {
        self.db.0.versions.view().multi_get(dict, keys)
    }

    /// Commits one key and its value: the same as a batch of this one put, with less to do for it.
    pub fn put(
        &self,
        dict: DictionaryId,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        let db = &self.db.0;
        db.snapshotter.admit_put(dict, key.len() + value.len())?;
        db.commits.put(&*db.admission, dict, key, value, durability)
    }

    /// Commits `batch` as one unit.
    pub fn commit(&self, batch: Batch, durability: Durability) -> Result<()> {
        let db = &self.db.0;
        db.snapshotter.admit(&batch)?;
        db.commits.commit(&*db.admission, batch, durability)
    }

    /// Commits `batch` as one unit if nothing that it changes, and nothing of `reads`, was changed
    /// after `state`, which the batch was made from; changes of updates that commute
    /// ([`Update::commutes`](crate::Update::commutes)) count only where the key was read. `false`:
    /// something was changed, or that cannot be told at once; nothing is committed, and the caller
    /// reads again. Cheaper than a transaction, for changes of a few keys, which hardly ever
    /// collide; one that goes on failing had better be a transaction.
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
        let db = &self.db.0;
        db.snapshotter.admit(&batch)?;
        db.commits.commit_if_unchanged(&*db.admission, batch, state, reads)
    }

    /// An error once the store takes no more writes: it was opened for reading, was closed, or has
    /// failed. For those who would otherwise gather in memory what can never be committed.
    pub fn takes_writes(&self) -> Result<()> {
        self.db.0.health.writable()
    }

    /// From now on nothing is written any more, as if the store had failed; `why` is what every
    /// call that would write says. What is not durable by then may be lost: the next open recovers
    /// what is, as after a power cut. Reading goes on.
    pub fn halt(&self, why: &str) {
        self.db.0.health.stop(|| why.into());
    }

    /// Writes what is committed to the device, without waiting until it is durable: all large
    /// values have their places then.
    pub fn write_out(&self) -> Result<()> {
        self.db.0.commits.write_out().map(drop)
    }

    /// Everything committed before this call is on disk when it returns.
    pub fn sync(&self) -> Result<()> {
        let db = &self.db.0;
        db.commits.sync(&*db.admission)
    }

    /// What `sync` does, for work that is done at intervals: no caller waits for it, so it does not
    /// count as a sign that syncs should be short.
    pub fn sync_at_interval(&self) -> Result<()> {
        let db = &self.db.0;
        db.commits.sync_at_interval(&*db.admission)
    }

    /// How large the store is, and how many bytes user data can still take.
    pub fn space(&self) -> Space {
        self.db.0.space()
    }

    /// Gives back the space of what was deleted, now; in its time the background does the same. For
    /// callers that find `space().free` short. Quick when nothing was deleted since the last time.
    pub fn reclaim(&self) {
        if self.db.0.health.writable().is_ok() {
            self.db.0.admission.want_space();
        }
    }

    /// Writes everything committed before this call into runs; the journal is empty afterwards.
    pub fn flush(&self) -> Result<()> {
        self.db.0.health.writable()?;
        self.db.0.flusher.flush_all()?;
        self.db.0.tidy_soon();
        Ok(())
    }

    /// Merges all runs of a dictionary into one; what was deleted gives its space back.
    pub fn compact(&self, dict: DictionaryId) -> Result<()> {
        self.db.0.health.writable()?;
        self.db.0.flusher.flush_all()?;
        self.db.0.compactor.compact(dict)
    }

    /// Merges what all runs have in a range of keys into the bottom run, and gives the space of
    /// what was deleted there back; the rest of the dictionary stays as it is.
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
        self.db.0.health.writable()?;
        self.db.0.flusher.flush_all()?;
        self.db.0.compactor.compact_range(dict, bounds::of(&range))
    }

    /// Starts moving what lies in zones that are mostly holes together, in the background; clients
    /// go on. `false`: that was under way already. In a store without threads it is done
    /// when this returns. See [`Kvdb::defrag_progress`].
    pub fn defragment(&self, options: DefragOptions) -> Result<bool> {
        self.db.0.health.writable()?;
        self.db.0.defragmenter.start_defragment(options)
    }

    /// How far the defragmentation is, or how far the last one came.
    pub fn defrag_progress(&self) -> DefragProgress {
        self.db.0.defragmenter.progress()
    }

    /// Ends a defragmentation after the part that it is at; what it has moved stays moved.
    pub fn stop_defragment(&self) {
        self.db.0.defragmenter.stop();
    }

    /// Returns when no defragmentation is under way.
    pub fn wait_for_defragment(&self) {
        self.db.0.defragmenter.wait_for_end();
    }

    /// One bounded unit of background work, for a store without threads. `false`: there is nothing
    /// to do.
    pub fn step(&self) -> Result<bool> {
        self.db.0.step()
    }

    /// What the store has done since it was opened, and what it consists of, in figures.
    pub fn stats(&self) -> Stats {
        self.db.0.stats()
    }

    /// Every zone of 8 MiB of the store's file, in their order: how full it is, of what, and how
    /// long ago it was taken.
    pub fn zone_map(&self) -> Vec<ZoneInfo> {
        self.db.0.zones.map()
    }

    /// Makes everything durable and ends background work. Writes are refused from here on; views
    /// stay readable. Dropping the last clone does the same, but cannot tell of errors.
    pub fn close(&self) -> Result<()> {
        self.db.0.close()
    }
}

/// The parts, for tests of theirs.
#[cfg(test)]
impl Kvdb {
    pub(crate) fn version_set(&self) -> &crate::read::version_set::VersionSet {
        &self.db.0.versions
    }

    pub(crate) fn pipeline(&self) -> &crate::commit::CommitPipeline {
        &self.db.0.commits
    }

    pub(crate) fn transaction_registry(&self) -> &crate::transactions::Transactions {
        &self.db.0.transactions
    }

    pub(crate) fn snapshot_set(&self) -> &crate::read::snapshot_set::Snapshots {
        &self.db.0.snapshots
    }

    pub(crate) fn defragmenter(&self) -> &crate::background::Defragmenter {
        &self.db.0.defragmenter
    }
}
