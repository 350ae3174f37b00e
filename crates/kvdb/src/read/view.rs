//! A view: the store as of one commit, for as long as it is held.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{BlockCache, Input, Lookup, Seq, TreeCursor, TreeTuple, Update, Value};
use zones::Zones;

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::cursor::{Cursor, Tuple};
use crate::read::read_snapshots::PinnedVersion;
use crate::read::version::{Tree, read};
use crate::read::write_set::WriteSet;

/// A pinned, immutable state of the whole store: reads through it see one commit boundary, take no
/// lock of the store, and are stopped by no commit, flush or merge.
#[derive(Clone)]
pub struct View {
    pub(crate) version: PinnedVersion,
    pub(crate) cache: Arc<BlockCache>,
    /// Commits up to this one are seen.
    pub(crate) at: Seq,
    /// What a transaction has written lies above all that.
    pub(crate) write_set: Option<Arc<WriteSet>>,
    /// Below that, what those had written that the transaction was begun within.
    pub(crate) around: Option<Arc<WriteSet>>,
    /// It is a transaction's, with what that has written or without it.
    pub(crate) of_transaction: bool,
    /// The id of the snapshot that it is of.
    pub(crate) snapshot: Option<[u8; 16]>,
}

/// A value where it is stored, which stays there for as long as this is held: to be put under
/// another key without a copy, see [`crate::Batch::put_stored`]. In another store than the one that
/// it came from it is read there, and copied.
#[derive(Clone)]
pub struct StoredValue {
    pub(crate) value: Value,
    /// Keeps its place.
    pub(crate) view: Arc<View>,
}

impl std::fmt::Debug for StoredValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StoredValue").field(&self.value).finish()
    }
}

impl StoredValue {
    /// The value of a tuple that a cursor of `view` gave. One that an update changes is read.
    pub fn of(tuple: &Tuple, view: &Arc<View>) -> Result<StoredValue> {
        Ok(StoredValue { value: tuple.raw_value()?, view: view.clone() })
    }

    /// The value or the place of it, for the store whose zones these are. One of another store is
    /// read.
    pub(crate) fn for_store(&self, zones: &Arc<Zones>) -> Result<Value> {
        let cache = &self.view.cache;
        match Arc::ptr_eq(cache.zones(), zones) {
            true => Ok(self.value.clone()),
            false => Ok(Value::Inline(read(cache, self.value.clone())?)),
        }
    }

    /// Length of the value in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.value.len()
    }
}

/// Most bytes of large values that a scan has read but not handed out.
const SCAN_AHEAD: usize = 4 << 20;

impl View {
    /// This view with what a transaction has written above it.
    pub(crate) fn with(self, write_set: WriteSet) -> View {
        View { write_set: Some(Arc::new(write_set)), of_transaction: true, ..self }
    }

    /// This view with what a transaction has written as a part of the state that it shows, for one
    /// that begins within that.
    pub(crate) fn around(self, write_set: WriteSet) -> View {
        let write_set = write_set.over(self.around);
        View { around: Some(Arc::new(write_set)), of_transaction: true, ..self }
    }

    /// The state that a transaction's own changes lie above here, without them; any other view is
    /// this itself.
    pub fn beneath(&self) -> View {
        View { write_set: None, ..self.clone() }
    }

    /// The committed state beneath all that transactions have written.
    pub(crate) fn committed(&self) -> View {
        View { write_set: None, around: None, ..self.clone() }
    }

    /// What it sees of a dictionary below what a transaction has written. That may have written to
    /// one that was made after the state that it reads; otherwise the dictionary must be there.
    fn tree(&self, dict: DictionaryId) -> Result<Option<&Tree>> {
        match self.of_transaction {
            true => Ok(self.version.trees.get(&dict).map(|tree| &**tree)),
            false => self.version.tree(dict).map(|tree| Some(&**tree)),
        }
    }

    /// Returns whether the state has such a dictionary, or something was written to it.
    pub(crate) fn knows(&self, dict: DictionaryId) -> bool {
        self.version.trees.contains_key(&dict)
            || self.around.as_ref().is_some_and(|around| around.knows(dict))
    }

    /// Returns what transactions have written of `key`.
    fn written(&self, dict: DictionaryId, key: &[u8]) -> Result<Lookup> {
        let mut written = Lookup::Absent;
        for write_set in [&self.write_set, &self.around].into_iter().flatten() {
            written = written.over(write_set.get(dict, key)?);
            if written.is_final() {
                break;
            }
        }
        Ok(written)
    }

    /// Returns the parts of transactions that a cursor reads, newest first.
    pub(crate) fn written_inputs(
        &self,
        dict: DictionaryId,
    ) -> impl Iterator<Item = (Input, Seq)> + '_ {
        let write_sets = [&self.write_set, &self.around].into_iter().flatten();
        write_sets.flat_map(move |write_set| write_set.inputs(dict))
    }

    /// The value of `key`, or the place where it lies.
    fn find(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Value>> {
        let own = self.written(dict, key)?;
        match self.tree(dict)? {
            Some(tree) if matches!(own, Lookup::Absent) => tree.get(&self.cache, key, self.at),
            Some(tree) if !own.is_final() => {
                Ok(self.cache.resolve(own.over(tree.lookup(key, self.at)?))?)
            }
            _ => Ok(self.cache.resolve(own)?),
        }
    }

    /// What is known of `key` without reading a large value.
    fn lookup(&self, dict: DictionaryId, key: &[u8]) -> Result<Lookup> {
        let own = self.written(dict, key)?;
        match self.tree(dict)? {
            Some(tree) if !own.is_final() => Ok(own.over(tree.lookup(key, self.at)?)),
            _ => Ok(own),
        }
    }

    /// Returns whether both are of one store, so that what lies at one place in both is the same.
    pub(crate) fn is_of_store(&self, other: &View) -> bool {
        Arc::ptr_eq(self.cache.zones(), other.cache.zones())
    }

    /// The value of a key, if it has one.
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        self.find(dict, key)?.map(|v| read(&self.cache, v)).transpose()
    }

    /// The value of a key, if it has one here, and its dictionary is there.
    pub(crate) fn get_if_there(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        self.find_if_there(dict, key)?.map(|v| read(&self.cache, v)).transpose()
    }

    fn find_if_there(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Value>> {
        if self.knows(dict) { self.find(dict, key) } else { Ok(None) }
    }

    /// Whether `key` has the same value here and in `other`, or is in neither, as in a dictionary
    /// that is not there. Values that lie in one place are not read for it.
    pub(crate) fn has_same(&self, other: &View, dict: DictionaryId, key: &[u8]) -> Result<bool> {
        Ok(match (self.find_if_there(dict, key)?, other.find_if_there(dict, key)?) {
            (Some(a), Some(b)) if a.len() == b.len() => {
                a == b || read(&self.cache, a)? == read(&other.cache, b)?
            }
            (a, b) => a.is_none() && b.is_none(),
        })
    }

    /// The value of `key` where it is stored; a large one is not read.
    pub fn stored(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<StoredValue>> {
        Ok(self.find(dict, key)?.map(|value| StoredValue { value, view: Arc::new(self.clone()) }))
    }

    /// Up to `limit` tuples of `[start, end)` in order, their values where they are stored.
    pub fn scan_stored(
        &self,
        dict: DictionaryId,
        start: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, StoredValue)>> {
        let mut cursor = self.cursor(dict, start, end)?;
        let view = Arc::new(self.clone());
        let mut out = Vec::new();
        while out.len() < limit {
            let Some(tuple) = cursor.next()? else { break };
            let value = StoredValue::of(&tuple, &view)?;
            out.push((tuple.key, value));
        }
        Ok(out)
    }

    /// Length of a value in bytes; a large one is not read for it.
    pub fn value_len(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<usize>> {
        let lookup = self.lookup(dict, key)?;
        match lookup.value_len() {
            Some(len) => Ok(len),
            None => Ok(self.cache.resolve(lookup)?.map(|value| value.len())),
        }
    }

    /// A cursor over `[start, end)` of one dictionary, before its first tuple. `end` empty: to the
    /// end of the dictionary.
    pub fn cursor(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<Cursor> {
        Ok(Cursor::new(self, dict, self.inputs(dict)?, start, end))
    }

    /// A cursor over all of `below`, newest first, and what a transaction has written above it.
    pub(crate) fn tree_cursor(&self, dict: DictionaryId, below: Vec<Input>) -> TreeCursor {
        let below = below.into_iter().map(|input| (input, self.at));
        TreeCursor::as_of(&self.cache, self.written_inputs(dict).chain(below))
    }

    /// Everything that a cursor reads below what a transaction has written, newest first. A
    /// transaction may have written to a dictionary that was made after the state that it reads.
    pub(crate) fn inputs(&self, dict: DictionaryId) -> Result<Vec<Input>> {
        Ok(self.tree(dict)?.map(Tree::inputs).unwrap_or_default())
    }

    /// Up to `limit` tuples of `[start, end)` in order, values read with as few large reads as
    /// their places allow.
    pub fn scan(
        &self,
        dict: DictionaryId,
        start: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>> {
        let mut cursor = self.tree_cursor(dict, self.inputs(dict)?);
        cursor.keep_updates();
        cursor.seek(start);
        let mut out: Vec<(Bytes, Bytes)> = Vec::new();
        // Large values are read together: their places in `out` with what changes them, and where
        // they lie.
        let (mut places, mut extents, mut bytes) = (Vec::new(), Vec::new(), 0);
        let put = |out: &mut Vec<(Bytes, Bytes)>, (at, update): Destination, value: Bytes| {
            out[at].1 = update.map_or_else(|| value.clone(), |update| update.apply(Some(&value)));
        };
        while out.len() < limit
            && cursor.advance()?
            && let Some(tuple) = cursor.current()
            && (end.is_empty() || tuple.key < end)
        {
            let TreeTuple { key, value, .. } = tuple.to_tuple();
            let value = match value {
                Value::Inline(value) => value,
                Value::Extent(e) => {
                    places.push((out.len(), cursor.kept_update().cloned()));
                    extents.push(e);
                    bytes += e.len as usize;
                    Bytes::new()
                }
            };
            out.push((key, value));
            if bytes >= SCAN_AHEAD {
                fill_in(&self.cache, &mut places, &mut extents, |at, v| put(&mut out, at, v))?;
                bytes = 0;
            }
        }
        fill_in(&self.cache, &mut places, &mut extents, |at, v| put(&mut out, at, v))?;
        Ok(out)
    }

    /// Shows every tuple of `[start, end)` to `visit` in order, until that breaks. `end` empty: to
    /// the end of the dictionary. The quickest way through small values: nothing is copied.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let fruit = db.open_dictionary("fruit")?;
    /// # fruit.insert("apple", "red")?;
    /// # fruit.insert("pear", "green")?;
    /// let mut bytes = 0;
    /// db.view().for_each(fruit.id(), b"", b"", |_key, value| {
    ///     bytes += value.len();
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(bytes, 8);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn for_each(
        &self,
        dict: DictionaryId,
        start: &[u8],
        end: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut cursor = self.cursor(dict, start, end)?;
        while let Some(ControlFlow::Continue(())) = cursor.visit_next(&mut visit)? {
            if cursor.visit_near(&mut visit).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The value of each of `keys`, in their order. What must be read is read in the order of its
    /// place, and many at a time.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let fruit = db.open_dictionary("fruit")?;
    /// # fruit.insert("apple", "red")?;
    /// let found = db.view().multi_get(fruit.id(), &["pear", "apple"])?;
    /// assert_eq!(found, [None, Some("red".into())]);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        dict: DictionaryId,
        keys: &[K],
    ) -> Result<Vec<Option<Bytes>>> {
        let tree = self.tree(dict)?;
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|&i| keys[i].as_ref());
        if let Some(tree) = tree.filter(|_| keys.len() > 1) {
            tree.announce(&self.cache, order.iter().map(|&i| keys[i].as_ref()))?;
        }
        let mut out = vec![None; keys.len()];
        let mut large: Vec<(vt_tree::ExtentRef, usize)> = Vec::new();
        for i in order {
            match self.find(dict, keys[i].as_ref())? {
                None => {}
                Some(Value::Inline(bytes)) => out[i] = Some(bytes),
                Some(Value::Extent(e)) => large.push((e, i)),
            }
        }
        large.sort_unstable_by_key(|(e, _)| e.addr);
        let (mut extents, mut places): (Vec<_>, Vec<_>) = large.into_iter().unzip();
        fill_in(&self.cache, &mut places, &mut extents, |at, value| out[at] = Some(value))?;
        Ok(out)
    }
}

/// Where a value goes, and what is applied to it.
type Destination = (usize, Option<Update>);

/// Reads `extents` and hands each to `put` with its place; both are empty afterwards.
fn fill_in<P>(
    cache: &BlockCache,
    places: &mut Vec<P>,
    extents: &mut Vec<vt_tree::ExtentRef>,
    mut put: impl FnMut(P, Bytes),
) -> Result<()> {
    let values = cache.read_values(extents)?;
    places.drain(..).zip(values).for_each(|(at, value)| put(at, value));
    extents.clear();
    Ok(())
}
