//! The handle of a dictionary: the store and the dictionary's number, with all operations on its
//! key space. Each change is a separate commit. Several changes that belong together can be
//! committed as a [`Batch`].

use std::ops::RangeBounds;

use bytes::Bytes;
use vt_tree::{Estimate, Update};

use crate::commit::batch::{Batch, Durability};
use crate::db::database::Database;
use crate::db::ingest::{Ingest, IngestStats};
use crate::dictionary::{DictionaryId, DictionaryOptions};
use crate::error::Result;
use crate::read::bounds;
use crate::read::iter::Iter;
use crate::{DictionaryInfo, Kvdb};

/// One dictionary of an open store; clones are cheap. Changes are visible when the call returns,
/// and on disk within the flush interval (1 s by default) or after [`Kvdb::sync`].
///
/// ```
/// let db = kvdb::Kvdb::in_memory();
/// let fruit = db.open_dictionary("fruit")?;
/// fruit.insert("apple", "red")?;
/// fruit.insert("pear", "green")?;
/// assert!(fruit.contains("apple")?);
/// fruit.remove("apple")?;
/// assert_eq!(fruit.get("apple")?, None);
/// for tuple in fruit.iter() {
///     let (key, value) = tuple?;
///     assert_eq!((&key[..], &value[..]), (&b"pear"[..], &b"green"[..]));
/// }
/// # Ok::<(), kvdb::Error>(())
/// ```
#[derive(Clone)]
pub struct Dictionary {
    db: Kvdb,
    id: DictionaryId,
}

impl Kvdb {
    /// Returns the dictionary with this name, and creates it with default options if it does not
    /// exist.
    pub fn open_dictionary(&self, name: &str) -> Result<Dictionary> {
        self.open_dictionary_with(name, DictionaryOptions::default())
    }

    /// Returns the dictionary with this name, and creates it with `options` if it does not exist.
    /// An existing dictionary keeps its own options.
    pub fn open_dictionary_with(
        &self,
        name: &str,
        options: DictionaryOptions,
    ) -> Result<Dictionary> {
        Ok(Dictionary::of(self, self.create_dictionary(name, options)?))
    }
}

impl Dictionary {
    pub(crate) fn of(db: &Kvdb, id: DictionaryId) -> Dictionary {
        Dictionary { db: db.clone(), id }
    }

    fn database(&self) -> &Database {
        &self.db.db
    }

    fn one(&self, change: impl FnOnce(&mut Batch)) -> Result<()> {
        let mut batch = Batch::new();
        change(&mut batch);
        self.db.commit(batch, Durability::Buffered)
    }

    /// Returns the number of the dictionary, for use in batches, views and cursors.
    pub fn id(&self) -> DictionaryId {
        self.id
    }

    /// Returns the store of the dictionary.
    pub fn store(&self) -> &Kvdb {
        &self.db
    }

    /// Returns the name and the options of the dictionary, or `None` if the dictionary was dropped.
    pub fn info(&self) -> Option<DictionaryInfo> {
        self.database().engine.versions.load().trees.get(&self.id).map(|t| t.info().to_info())
    }

    /// Returns the newest value of `key`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        self.db.get(self.id, key.as_ref())
    }

    /// Returns whether `key` exists, without reading large values.
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.db.view().contains(self.id, key)
    }

    /// Puts a value under `key`, and replaces the old value if the key has one.
    #[doc(alias = "put")]
    #[doc(alias = "set")]
    pub fn insert(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<()> {
        self.one(|b| b.put(self.id, key, value))
    }

    /// Deletes `key`, whether or not it has a value.
    #[doc(alias = "delete")]
    pub fn remove(&self, key: impl Into<Bytes>) -> Result<()> {
        self.one(|b| b.delete(self.id, key))
    }

    /// Changes the value of `key` without reading it. See [`Update`] for the effect on a missing
    /// key, and on a value to which the update does not apply.
    ///
    /// ```
    /// # use kvdb::Update;
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let d = db.open_dictionary("d")?;
    /// d.update("visits", Update::add(1))?;
    /// d.update("visits", Update::add(1))?;
    /// assert_eq!(d.get("visits")?, Some("2".into()));
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    #[doc(alias = "merge")]
    #[doc(alias = "upsert")]
    pub fn update(&self, key: impl Into<Bytes>, update: Update) -> Result<()> {
        self.one(|b| b.update(self.id, key, update))
    }

    /// Deletes every key of a range. The deletion writes one range tombstone, regardless of the
    /// number of keys that it covers.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let log = db.open_dictionary("log")?;
    /// for day in 1..=9 {
    ///     log.insert(format!("2024-01-0{day}"), "…")?;
    /// }
    /// log.remove_range(.."2024-01-07")?;
    /// log.remove_range("2024-01-08"..="2024-01-08")?;
    /// assert_eq!(log.iter().keys().collect::<Result<Vec<_>, _>>()?, ["2024-01-07", "2024-01-09"]);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    #[doc(alias = "delete_range")]
    pub fn remove_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        self.one(|b| b.delete_keys(self.id, bounds::of(&range)))
    }

    /// Deletes every key that begins with `prefix`; an empty prefix empties the dictionary.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let users = db.open_dictionary("users")?;
    /// users.insert("7/name", "Ada")?;
    /// users.insert("7/born", "1815")?;
    /// users.insert("8/name", "Alan")?;
    /// users.remove_prefix("7/")?;
    /// assert_eq!(users.iter().count(), 1);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    #[doc(alias = "delete_prefix")]
    pub fn remove_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<()> {
        self.one(|b| b.delete_prefix(self.id, prefix))
    }

    /// Returns a double-ended iterator over all current tuples.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let d = db.open_dictionary("d")?;
    /// # for k in ["a", "b", "c"] { d.insert(k, "")?; }
    /// let keys = d.iter().rev().map(|tuple| Ok(tuple?.0)).collect::<kvdb::Result<Vec<_>>>()?;
    /// assert_eq!(keys, ["c", "b", "a"]);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn iter(&self) -> Iter {
        self.db.view().iter(self.id)
    }

    /// Returns a double-ended iterator over the current tuples of a range of keys.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let d = db.open_dictionary("d")?;
    /// # for k in ["a", "b", "c", "d"] { d.insert(k, "")?; }
    /// assert_eq!(d.range("b".."d").count(), 2);
    /// assert_eq!(d.range("b"..="d").count(), 3);
    /// let (last, _) = d.range(.."c").next_back().unwrap()?;
    /// assert_eq!(last, "b", "the key before `c`");
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Iter {
        self.db.view().range(self.id, range)
    }

    /// Returns a double-ended iterator over the current tuples whose keys begin with `prefix`.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let d = db.open_dictionary("d")?;
    /// # for k in ["fig", "pear", "peas", "plum"] { d.insert(k, "")?; }
    /// assert_eq!(d.prefix("pea").keys().collect::<Result<Vec<_>, _>>()?, ["pear", "peas"]);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Iter {
        self.db.view().prefix(self.id, prefix)
    }

    /// Estimates the number of tuples and bytes in a range of keys from index entries alone; see
    /// [`Estimate`].
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let d = db.open_dictionary("d")?;
    /// for i in 0..10_000u32 {
    ///     d.insert(i.to_be_bytes().to_vec(), vec![0; 100])?;
    /// }
    /// db.flush()?;
    /// let half = d.estimate(..5_000u32.to_be_bytes())?;
    /// assert!(half.items.abs_diff(5_000) <= half.items_error);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    #[doc(alias = "approximate_size")]
    #[doc(alias = "approximate_count")]
    pub fn estimate<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Estimate> {
        self.db.view().estimate(self.id, range)
    }

    /// Merges all runs of the dictionary into one; see [`Kvdb::compact`].
    pub fn compact(&self) -> Result<()> {
        self.db.compact(self.id)
    }

    /// Merges the data of a range of keys; see [`Kvdb::compact_range`].
    pub fn compact_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        self.db.compact_range(self.id, range)
    }

    /// Writes sorted tuples directly into a run; see [`Kvdb::ingest`].
    pub fn ingest<K: Into<Bytes>, V: Into<Bytes>>(
        &self,
        tuples: impl IntoIterator<Item = (K, V)>,
    ) -> Result<IngestStats> {
        self.db.ingest(self.id, tuples)
    }

    /// Begins an ingest to which the caller pushes tuples one by one; see [`Kvdb::begin_ingest`].
    pub fn begin_ingest(&self) -> Result<Ingest> {
        self.db.begin_ingest(self.id)
    }
}
