//! A batch: changes that a commit applies whole or not at all.

use std::collections::BTreeMap;

use bytes::Bytes;
use vt_tree::{KeyRange, Update};

use crate::commit::MAX_KEY;
use crate::dictionary::DictionaryId;
use crate::mirror::Note;
use crate::read::bounds;
use crate::read::view::StoredValue;

/// When a commit returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// As soon as it is visible; on disk within the flush interval, always as a consistent state.
    Buffered,
    /// When it, and everything before it, is on disk.
    Synced,
}

/// Changes that happen whole or not at all, in the order given; a later one wins over an earlier
/// one. They may be in several dictionaries.
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
    /// Places of changes of which it is known that their keys had no value, or had one.
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
    /// A batch without changes.
    pub fn new() -> Self {
        Self::default()
    }
    /// `true` for a batch without changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
    /// Number of changes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }
    /// Bytes of its keys and values; a value that is stored already counts as none.
    pub fn bytes(&self) -> usize {
        self.changes.iter().map(BatchChange::bytes).sum()
    }
    /// Returns the bytes that it adds to each dictionary that it changes: none where it gives more
    /// back, or room was promised for it.
    pub(crate) fn growth(&self) -> BTreeMap<DictionaryId, u64> {
        let none = self.releases || self.promised;
        let mut all = BTreeMap::new();
        for change in &self.changes {
            let bytes = if none || change.deletes() { 0 } else { change.bytes() as u64 };
            *all.entry(change.dictionary()).or_default() += bytes;
        }
        all
    }
    /// Returns whether it has nothing but deletions, or says that it gives more back than it takes.
    pub(crate) fn removes(&self) -> bool {
        self.releases || self.changes.iter().all(BatchChange::deletes)
    }
    /// Says that this batch gives back more space than it takes, though it puts a little too (what
    /// is left of a thing when a part of it goes). Like a batch that only deletes, it is then
    /// committed even when the store is full.
    pub fn releases_space(&mut self) {
        self.releases = true;
    }
    /// Says that the caller syncs right after this commit, as if it were a synced one. A few large
    /// values are then logged with it, which is one write and one sync; else they would be written
    /// to places of their own first. They get these when memtables are written out.
    pub fn sync_follows(&mut self) {
        self.sync_follows = true;
    }
    /// Says that room was promised for this batch ([`PromisedSpace`](crate::PromisedSpace)), which
    /// the caller gives back when it is committed.
    pub fn takes_promised_space(&mut self) {
        self.promised = true;
    }
    /// Notes in the store's mirror, if it has one, that this commit completes a request: both
    /// happen, or neither. See [`OpenOptions::mirror`](crate::OpenOptions::mirror).
    pub fn note(&mut self, note: Note) {
        self.note = Some(note);
    }
    /// Gives `key` a value, whether or not it had one.
    #[doc(alias = "insert")]
    pub fn put(&mut self, dict: DictionaryId, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.changes.push(BatchChange::Put(dict, key.into(), value.into()));
    }
    /// Puts a value for `key`, which has none. That it has none must be sure when the batch is
    /// committed: it was read, and [`Kvdb::commit_if_unchanged`](crate::Kvdb::commit_if_unchanged)
    /// depends on it. Ranks ([`Kvdb::rank`](crate::Kvdb::rank)) are then kept without another look;
    /// all else is as with [`Batch::put`].
    pub fn put_new(&mut self, dict: DictionaryId, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.known.push(self.changes.len() as u32);
        self.put(dict, key, value);
    }
    /// Deletes `key`, which has a value: as [`Batch::put_new`] for a deletion.
    pub fn delete_present(&mut self, dict: DictionaryId, key: impl Into<Bytes>) {
        self.known.push(self.changes.len() as u32);
        self.delete(dict, key);
    }
    /// Gives `key` a value that is stored already, under another key perhaps, or in another
    /// dictionary of the same store. A large one is not copied: both keys refer to the same place,
    /// and it is free when neither does any more. One of another store is read when the batch is
    /// applied, and copied.
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
    /// Changes the value of `key` without reading it; see [`Update`] for what it does to a missing
    /// key and to a value that it does not suit.
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
    /// Deletes `key`, whether or not it is there.
    #[doc(alias = "remove")]
    pub fn delete(&mut self, dict: DictionaryId, key: impl Into<Bytes>) {
        self.changes.push(BatchChange::Delete(dict, key.into()));
    }
    /// Deletes every key in `[start, end)`; costs one range tombstone whatever it covers.
    ///
    /// An `end` that is not above `start` covers nothing, the empty one as well: for a cursor that
    /// means no end, but here a mistake would delete what was not meant. [`Batch::delete_prefix`]
    /// of the empty prefix empties a dictionary.
    pub fn delete_range(
        &mut self,
        dict: DictionaryId,
        start: impl Into<Bytes>,
        end: impl Into<Bytes>,
    ) {
        self.changes.push(BatchChange::DeleteRange(dict, start.into(), end.into()));
    }
    /// Deletes every key that begins with `prefix`; the empty one empties the dictionary.
    pub fn delete_prefix(&mut self, dict: DictionaryId, prefix: impl AsRef<[u8]>) {
        self.delete_keys(dict, bounds::of_prefix(prefix.as_ref()));
    }

    /// Deletes all keys of `range`. A range tombstone needs an end: without one it ends at the last
    /// possible key, which is deleted by itself.
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
