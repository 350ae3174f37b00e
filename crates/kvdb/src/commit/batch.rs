//! A batch: changes that a commit applies as a whole or not at all.

use std::collections::BTreeMap;

use bytes::Bytes;
use vt_tree::{KeyRange, Update};

use crate::commit::MAX_KEY;
use crate::dictionary::DictionaryId;
use crate::mirror::Note;
use crate::read::bounds;
use crate::read::view::StoredValue;

/// The moment at which a commit returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Returns as soon as the commit is visible. It is on disk within the flush interval, always as
    /// a consistent state.
    Buffered,
    /// Returns when the commit, and everything before it, is on disk.
    Synced,
}

/// Changes to one or more dictionaries that are applied atomically, in the order given; a later one
/// wins over an earlier one.
///
/// ```
/// # use kvdb::{Batch, Durability, Kvdb};
/// # let db = Kvdb::in_memory();
/// # let (stock, orders) = (db.open_dictionary("stock")?, db.open_dictionary("orders")?);
/// let mut batch = Batch::new();
/// batch.put(orders.id(), "17", "3 apples");
/// batch.put(stock.id(), "apples", "97");
/// batch.delete(stock.id(), "reserved/17");
/// db.commit(batch, Durability::Synced)?;
/// # Ok::<(), kvdb::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) changes: Vec<BatchChange>,
    pub(crate) releases: bool,
    pub(crate) sync_follows: bool,
    pub(crate) promised: bool,
    pub(crate) note: Option<Note>,
    /// Indexes of the puts whose keys are known to have no value, and of the deletions whose keys
    /// are known to have one.
    pub(crate) known: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(crate) enum BatchChange {
    Put(DictionaryId, Bytes, Bytes),
    PutStored(DictionaryId, Bytes, StoredValue),
    Update(DictionaryId, Bytes, Update),
    Delete(DictionaryId, Bytes),
    DeleteRange(DictionaryId, Bytes, Bytes),
}

impl BatchChange {
    pub(crate) fn dictionary(&self) -> DictionaryId {
        match self {
            BatchChange::Put(d, ..)
            | BatchChange::PutStored(d, ..)
            | BatchChange::Update(d, ..)
            | BatchChange::Delete(d, ..)
            | BatchChange::DeleteRange(d, ..) => *d,
        }
    }
    fn deletes(&self) -> bool {
        matches!(self, BatchChange::Delete(..) | BatchChange::DeleteRange(..))
    }
    fn bytes(&self) -> usize {
        match self {
            BatchChange::Put(_, key, value) => key.len() + value.len(),
            BatchChange::PutStored(_, key, _) | BatchChange::Delete(_, key) => key.len(),
            BatchChange::Update(_, key, update) => key.len() + update.bytes().len(),
            BatchChange::DeleteRange(_, start, end) => start.len() + end.len(),
        }
    }
}

impl Batch {
    /// Returns a batch without changes.
    pub fn new() -> Self {
        Self::default()
    }
    /// Returns `true` if the batch has no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
    /// Returns the number of changes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }
    /// Returns the size of the keys and values, bytes; a value that is stored already counts as 0.
    pub fn bytes(&self) -> usize {
        self.changes.iter().map(BatchChange::bytes).sum()
    }
    /// Returns the bytes that the batch adds to each dictionary that it changes: 0 if it releases
    /// space, or if space was promised for it.
    pub(crate) fn growth(&self) -> BTreeMap<DictionaryId, u64> {
        let none = self.releases || self.promised;
        let mut all = BTreeMap::new();
        for change in &self.changes {
            let bytes = if none || change.deletes() { 0 } else { change.bytes() as u64 };
            *all.entry(change.dictionary()).or_default() += bytes;
        }
        all
    }
    /// Returns whether the batch has only deletions, or says that it frees more space than it
    /// takes.
    pub(crate) fn removes(&self) -> bool {
        self.releases || self.changes.iter().all(BatchChange::deletes)
    }
    /// Says that this batch frees more space than it takes, though it also puts a little (the rest
    /// of an object when a part of it is removed). Like a batch that only deletes, it is then
    /// committed even when the store is full.
    pub fn releases_space(&mut self) {
        self.releases = true;
    }
    /// Says that the caller syncs right after this commit, as if it were a synced one. A few large
    /// values are then logged with the record, which is one write and one sync; otherwise they
    /// would be written to their places first. They get their places when memtables are flushed.
    pub fn sync_follows(&mut self) {
        self.sync_follows = true;
    }
    /// Says that space was promised for this batch ([`PromisedSpace`](crate::PromisedSpace)), which
    /// the caller returns when the batch is committed.
    pub fn takes_promised_space(&mut self) {
        self.promised = true;
    }
    /// Notes in the store's mirror, if it has one, that this commit completes a request. The commit
    /// and the note are atomic. See [`OpenOptions::mirror`](crate::OpenOptions::mirror).
    pub fn note(&mut self, note: Note) {
        self.note = Some(note);
    }
    /// Puts a value for `key`, whether or not it had one.
    #[doc(alias = "insert")]
    pub fn put(&mut self, dict: DictionaryId, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.changes.push(BatchChange::Put(dict, key.into(), value.into()));
    }
    /// Puts a value for `key`, which has none. The caller must be sure of that when the batch is
    /// committed: the key was read, and
    /// [`Kvdb::commit_if_unchanged`](crate::Kvdb::commit_if_unchanged) depends on that read. Ranks
    /// ([`Kvdb::rank`](crate::Kvdb::rank)) are then kept up to date without a lookup; otherwise the
    /// same as [`Batch::put`].
    pub fn put_new(&mut self, dict: DictionaryId, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.known.push(self.changes.len() as u32);
        self.put(dict, key, value);
    }
    /// Deletes `key`, which has a value: the counterpart of [`Batch::put_new`].
    pub fn delete_present(&mut self, dict: DictionaryId, key: impl Into<Bytes>) {
        self.known.push(self.changes.len() as u32);
        self.delete(dict, key);
    }
    /// Puts a value for `key` that is stored already, for example under another key, or in another
    /// dictionary of the same store. A large one is not copied: both keys refer to the same place,
    /// which is free when neither does any more. A value of another store is read and copied when
    /// the batch is applied.
    ///
    /// ```
    /// # use kvdb::{Batch, Durability, Kvdb};
    /// # let db = Kvdb::in_memory();
    /// # let d = db.open_dictionary("d")?;
    /// d.insert("here", vec![7; 1 << 20])?;
    /// let value = db.view().stored(d.id(), b"here")?.expect("it was put there");
    /// let mut batch = Batch::new();
    /// batch.put_stored(d.id(), "there", value);
    /// db.commit(batch, Durability::Buffered)?;
    /// assert_eq!(d.get("there")?, d.get("here")?);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn put_stored(&mut self, dict: DictionaryId, key: impl Into<Bytes>, value: StoredValue) {
        self.changes.push(BatchChange::PutStored(dict, key.into(), value));
    }
    /// Changes the value of `key` without reading it. See [`Update`] for its effect on a missing
    /// key and on a value that it does not fit.
    ///
    /// ```
    /// # use kvdb::{Batch, Durability, Kvdb, Update};
    /// # let db = Kvdb::in_memory();
    /// # let d = db.open_dictionary("d")?;
    /// let mut batch = Batch::new();
    /// batch.update(d.id(), "visits", Update::add(1));
    /// batch.update(d.id(), "visits", Update::add(1));
    /// db.commit(batch, Durability::Buffered)?;
    /// assert_eq!(d.get("visits")?, Some("2".into()));
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    #[doc(alias = "merge")]
    #[doc(alias = "upsert")]
    pub fn update(&mut self, dict: DictionaryId, key: impl Into<Bytes>, update: Update) {
        self.changes.push(BatchChange::Update(dict, key.into(), update));
    }
    /// Deletes `key`, whether or not it has a value.
    #[doc(alias = "remove")]
    pub fn delete(&mut self, dict: DictionaryId, key: impl Into<Bytes>) {
        self.changes.push(BatchChange::Delete(dict, key.into()));
    }
    /// Deletes every key in `[start, end)`. It costs one range tombstone, however many keys it
    /// covers.
    ///
    /// An `end` that is not above `start` covers nothing, and so does an empty one: for a cursor an
    /// empty end means no bound, but here a mistake would delete too much. [`Batch::delete_prefix`]
    /// with an empty prefix empties a dictionary.
    pub fn delete_range(
        &mut self,
        dict: DictionaryId,
        start: impl Into<Bytes>,
        end: impl Into<Bytes>,
    ) {
        self.changes.push(BatchChange::DeleteRange(dict, start.into(), end.into()));
    }
    /// Deletes every key that begins with `prefix`; an empty prefix empties the dictionary.
    pub fn delete_prefix(&mut self, dict: DictionaryId, prefix: impl AsRef<[u8]>) {
        self.delete_keys(dict, bounds::of_prefix(prefix.as_ref()));
    }

    /// Deletes all keys of `range`. A range tombstone needs an end: a range without one ends at the
    /// last possible key, which gets a deletion of its own.
    pub(crate) fn delete_keys(&mut self, dict: DictionaryId, range: KeyRange) {
        match range.end {
            Some(end) => self.delete_range(dict, range.start, end),
            None => {
                let last = Bytes::from(vec![0xff; MAX_KEY]);
                self.delete_range(dict, range.start, last.clone());
                self.delete(dict, last);
            }
        }
    }
}
