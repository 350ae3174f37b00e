//! KVDB: an ordered, transactional key-value database on VT-trees.
//!
//! This first version keeps everything in memory behind the final interface.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

/// A dictionary: one ordered key space of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DictionaryId(pub u32);

/// How a dictionary keeps its tuples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DictionaryOptions {
    /// Values of at least this many bytes lie outside their key block as raw extents.
    pub separate_at: u32,
    /// Stitching threshold in bytes of contiguous span (VT-tree §3.1): 0 is a log-structured file system, `u64::MAX` a plain LSM-tree.
    pub stitch_at: u64,
    /// Dictionaries of the file system are reserved: the key-value doors refuse them.
    pub reserved: bool,
}

impl Default for DictionaryOptions {
    fn default() -> Self {
        DictionaryOptions { separate_at: 2048, stitch_at: 64 << 10, reserved: false }
    }
}

/// One dictionary as listed.
#[derive(Clone, Debug)]
pub struct DictionaryInfo {
    pub id: DictionaryId,
    pub name: String,
    pub options: DictionaryOptions,
}

/// When a commit returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// As soon as it is visible; on disk within the flush interval, always as a consistent state.
    Buffered,
    /// When it, and everything before it, is on disk.
    Synced,
}

/// Changes that happen whole or not at all, in the order given; a later one wins over an earlier one.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) changes: Vec<Change>,
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    Put(DictionaryId, Bytes, Bytes),
    Delete(DictionaryId, Bytes),
    DeleteRange(DictionaryId, Bytes, Bytes),
}

impl Batch {
    pub fn new() -> Self {
        Self::default()
    }
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
    pub fn put(&mut self, dict: DictionaryId, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.changes.push(Change::Put(dict, key.into(), value.into()));
    }
    pub fn delete(&mut self, dict: DictionaryId, key: impl Into<Bytes>) {
        self.changes.push(Change::Delete(dict, key.into()));
    }
    /// Deletes every key in `[start, end)`; costs one range tombstone whatever it covers.
    pub fn delete_range(&mut self, dict: DictionaryId, start: impl Into<Bytes>, end: impl Into<Bytes>) {
        self.changes.push(Change::DeleteRange(dict, start.into(), end.into()));
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no dictionary {0}")]
    NoDictionary(String),
    /// No space left for user data; deleting still works.
    #[error("the store is full")]
    NoSpace,
    /// The store stopped accepting writes (a sync failed, say); reading goes on.
    #[error("the store takes no more writes: {0}")]
    ReadOnly(String),
    #[error("corrupt: {0}")]
    Corrupt(String),
    #[error("{0}")]
    Io(#[from] std::io::Error),
}
pub type Result<T> = std::result::Result<T, Error>;

type Trees = BTreeMap<DictionaryId, Arc<BTreeMap<Bytes, Bytes>>>;

/// An open store.
#[derive(Clone)]
pub struct Kvdb {
    trees: Arc<RwLock<Trees>>,
    dictionaries: Arc<Mutex<Vec<DictionaryInfo>>>,
}

/// A pinned, immutable state of the whole store: reads through it see one commit boundary and never block.
#[derive(Clone)]
pub struct View {
    trees: Arc<Trees>,
}

impl Kvdb {
    /// For tests of the floors above: a store in memory.
    pub fn in_memory() -> Self {
        Kvdb { trees: Default::default(), dictionaries: Default::default() }
    }
    pub fn dictionary(&self, name: &str) -> Option<DictionaryId> {
        self.dictionaries.lock().iter().find(|d| d.name == name).map(|d| d.id)
    }
    /// The dictionary of that name, made if it does not exist (durable before this returns).
    pub fn create_dictionary(&self, name: &str, options: DictionaryOptions) -> Result<DictionaryId> {
        let mut all = self.dictionaries.lock();
        if let Some(d) = all.iter().find(|d| d.name == name) {
            return Ok(d.id);
        }
        let id = DictionaryId(all.len() as u32 + 1);
        all.push(DictionaryInfo { id, name: name.into(), options });
        self.trees.write().insert(id, Default::default());
        Ok(id)
    }
    pub fn dictionaries(&self) -> Vec<DictionaryInfo> {
        self.dictionaries.lock().clone()
    }
    pub fn view(&self) -> View {
        View { trees: Arc::new(self.trees.read().clone()) }
    }
    /// The newest committed value.
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.trees.read().get(&dict).and_then(|t| t.get(key).cloned()))
    }
    /// Commits `batch` as one unit.
    pub fn commit(&self, batch: Batch, _durability: Durability) -> Result<()> {
        let mut trees = self.trees.write();
        for c in batch.changes {
            match c {
                Change::Put(d, k, v) => {
                    Arc::make_mut(trees.entry(d).or_default()).insert(k, v);
                }
                Change::Delete(d, k) => {
                    Arc::make_mut(trees.entry(d).or_default()).remove(&k);
                }
                Change::DeleteRange(d, s, e) => Arc::make_mut(trees.entry(d).or_default()).retain(|k, _| *k < s || *k >= e),
            }
        }
        Ok(())
    }
    /// Everything committed before this call is on disk when it returns.
    pub fn sync(&self) -> Result<()> {
        Ok(())
    }
    /// (bytes in all, bytes that user data can still take)
    pub fn space(&self) -> Space {
        Space { total: 1 << 40, free: 1 << 39 }
    }
}

/// Room in the store, bytes.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    pub total: u64,
    /// What user data can still take.
    pub free: u64,
}

impl View {
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.trees.get(&dict).and_then(|t| t.get(key).cloned()))
    }
    /// A cursor over `[start, end)` of one dictionary, before its first tuple. `end` empty: to the end of the dictionary.
    pub fn cursor(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<Cursor> {
        let tree = self.trees.get(&dict).cloned().ok_or_else(|| Error::NoDictionary(format!("{dict:?}")))?;
        let mut tuples = Vec::new();
        if end.is_empty() || start < end {
            let upper = if end.is_empty() { Bound::Unbounded } else { Bound::Excluded(end) };
            tuples.extend(tree.range::<[u8], _>((Bound::Included(start), upper)).map(|(k, v)| (k.clone(), v.clone())));
        }
        Ok(Cursor { tuples, at: 0 })
    }
    /// Up to `limit` tuples of `[start, end)` in order, values read with as few large reads as their places allow.
    pub fn scan(&self, dict: DictionaryId, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        let mut cursor = self.cursor(dict, start, end)?;
        let mut out = Vec::new();
        while out.len() < limit
            && let Some(t) = cursor.next()?
        {
            out.push((t.key.clone(), t.value()?));
        }
        Ok(out)
    }
}

/// A position between tuples, in a range of a view; it holds the view and no lock.
pub struct Cursor {
    tuples: Vec<(Bytes, Bytes)>,
    at: usize,
}

/// A tuple whose value is read when asked for.
#[derive(Clone, Debug)]
pub struct Tuple {
    pub key: Bytes,
    value: Bytes,
}

impl Tuple {
    pub fn value_len(&self) -> usize {
        self.value.len()
    }
    pub fn value(&self) -> Result<Bytes> {
        Ok(self.value.clone())
    }
}

impl Cursor {
    /// The next tuple in key order, or `None` at the range's end.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Tuple>> {
        let t = self.tuples.get(self.at).map(|(k, v)| Tuple { key: k.clone(), value: v.clone() });
        self.at = (self.at + 1).min(self.tuples.len());
        Ok(t)
    }
    /// The tuple before the position, or `None` at the range's start.
    pub fn prev(&mut self) -> Result<Option<Tuple>> {
        if self.at == 0 {
            return Ok(None);
        }
        self.at -= 1;
        Ok(self.tuples.get(self.at).map(|(k, v)| Tuple { key: k.clone(), value: v.clone() }))
    }
    /// Moves before the first tuple whose key is at least `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.at = self.tuples.partition_point(|(k, _)| k.as_ref() < key);
        Ok(())
    }
    /// Moves behind the last tuple of the range.
    pub fn seek_to_end(&mut self) -> Result<()> {
        self.at = self.tuples.len();
        Ok(())
    }
}
