//! A view: an immutable state of the store as of one commit, for as long as the view is held.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{BlockCache, Input, Lookup, Seq, TreeCursor, TreeTuple, Update, Value};
use zones::Zones;

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::cursor::{Cursor, Tuple};
use crate::version::read;
use crate::version::read_snapshots::PinnedVersion;
use crate::version::tree::Tree;
use crate::write_set::WriteSet;

/// A pinned, immutable state of the whole store. Reads through a view see the store as of one
/// commit, take no lock of the store, and are not blocked by commits, flushes or merges.
#[derive(Clone)]
pub struct View {
    pub(crate) version: PinnedVersion,
    pub(crate) cache: Arc<BlockCache>,
    /// Commits up to this one are visible.
    pub(crate) at: Seq,
    /// The write set of a transaction, on top of the committed state.
    pub(crate) write_set: Option<Arc<WriteSet>>,
    /// The write sets of the enclosing transactions, below `write_set`.
    pub(crate) around: Option<Arc<WriteSet>>,
    /// True if the view belongs to a transaction, with or without its write set.
    pub(crate) of_transaction: bool,
    /// The id of the snapshot that the view shows, if it shows one.
    pub(crate) snapshot: Option<[u8; 16]>,
}

/// A reference to a stored value, which pins the value's location. The value can be put under
/// another key of the same store without a copy. See [`crate::Batch::put_stored`]. When it is put
/// into another store, it is read and copied.
#[derive(Clone)]
pub struct StoredValue {
    pub(crate) value: Value,
    /// Pins the location of the value.
    pub(crate) view: Arc<View>,
}

impl std::fmt::Debug for StoredValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StoredValue").field(&self.value).finish()
    }
}

impl StoredValue {
    /// Returns the value of a tuple that a cursor of `view` returned. Reads the value if an update
    /// to it is pending.
    pub fn of(tuple: &Tuple, view: &Arc<View>) -> Result<StoredValue> {
        Ok(StoredValue { value: tuple.raw_value()?, view: view.clone() })
    }

    /// Returns the value, or its location if it is stored in `zones`. A value of another store is
    /// read.
    pub(crate) fn for_store(&self, zones: &Arc<Zones>) -> Result<Value> {
        let cache = &self.view.cache;
        match Arc::ptr_eq(cache.zones(), zones) {
            true => Ok(self.value.clone()),
            false => Ok(Value::Inline(read(cache, self.value.clone())?)),
        }
    }

    /// Returns the length of the value in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.value.len()
    }

    /// Returns the number of bytes that are copied when the value is put into its own store: the
    /// whole value if it is inline, otherwise none.
    pub fn copied(&self) -> usize {
        match &self.value {
            Value::Inline(bytes) => bytes.len(),
            Value::Extent(_) => 0,
        }
    }
}

/// Maximum bytes of large values that a scan reads at once.
const SCAN_AHEAD: usize = 4 << 20;

impl View {
    /// Returns this view with the write set of a transaction on top.
    pub(crate) fn with(self, write_set: WriteSet) -> View {
        View { write_set: Some(Arc::new(write_set)), of_transaction: true, ..self }
    }

    /// Returns this view with the write set of a transaction as part of its state, for a
    /// transaction that is nested in that transaction.
    pub(crate) fn around(self, write_set: WriteSet) -> View {
        let write_set = write_set.over(self.around);
        View { around: Some(Arc::new(write_set)), of_transaction: true, ..self }
    }

    /// Returns the state below a transaction's own changes. For any other view, this is a copy of
    /// the view.
    pub fn beneath(&self) -> View {
        View { write_set: None, ..self.clone() }
    }

    /// Returns the committed state below all write sets.
    pub(crate) fn committed(&self) -> View {
        View { write_set: None, around: None, ..self.clone() }
    }

    /// Returns the dictionary in the committed state. In the view of a transaction the dictionary
    /// may be missing, since the transaction may write to a dictionary that was created after the
    /// state it reads. In other views it must exist.
    fn tree(&self, dict: DictionaryId) -> Result<Option<&Tree>> {
        match self.of_transaction {
            true => Ok(self.version.trees.get(&dict).map(|tree| &**tree)),
            false => self.version.tree(dict).map(|tree| Some(&**tree)),
        }
    }

    /// Returns whether the committed state has this dictionary, or an enclosing transaction has
    /// written to it.
    pub(crate) fn knows(&self, dict: DictionaryId) -> bool {
        self.version.trees.contains_key(&dict)
            || self.around.as_ref().is_some_and(|around| around.knows(dict))
    }

    /// Looks up `key` in the write sets.
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

    /// Returns the parts of the write sets that a cursor reads, newest first.
    pub(crate) fn written_inputs(
        &self,
        dict: DictionaryId,
    ) -> impl Iterator<Item = (Input, Seq)> + '_ {
        let write_sets = [&self.write_set, &self.around].into_iter().flatten();
        write_sets.flat_map(move |write_set| write_set.inputs(dict))
    }

    /// Returns the value of `key`, inline or as a location.
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

    /// Looks up `key` without reading a large value.
    fn lookup(&self, dict: DictionaryId, key: &[u8]) -> Result<Lookup> {
        let own = self.written(dict, key)?;
        match self.tree(dict)? {
            Some(tree) if !own.is_final() => Ok(own.over(tree.lookup(key, self.at)?)),
            _ => Ok(own),
        }
    }

    /// Returns whether both views are of the same store, so that equal locations mean equal values.
    pub(crate) fn is_of_store(&self, other: &View) -> bool {
        Arc::ptr_eq(self.cache.zones(), other.cache.zones())
    }

    /// Returns the value of a key, if it has one.
    pub fn get(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        self.find(dict, key)?.map(|v| read(&self.cache, v)).transpose()
    }

    /// Returns the value of a key, or `None` if the key or its dictionary does not exist.
    pub(crate) fn get_if_there(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Bytes>> {
        self.find_if_there(dict, key)?.map(|v| read(&self.cache, v)).transpose()
    }

    fn find_if_there(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<Value>> {
        if self.knows(dict) { self.find(dict, key) } else { Ok(None) }
    }

    /// Returns whether `key` has the same value in both views, or exists in neither. A missing
    /// dictionary counts as empty. Values at the same location are not read.
    pub(crate) fn has_same(&self, other: &View, dict: DictionaryId, key: &[u8]) -> Result<bool> {
        Ok(match (self.find_if_there(dict, key)?, other.find_if_there(dict, key)?) {
            (Some(a), Some(b)) if a.len() == b.len() => {
                a == b || read(&self.cache, a)? == read(&other.cache, b)?
            }
            (a, b) => a.is_none() && b.is_none(),
        })
    }

    /// Returns a reference to the stored value of `key`, without reading a large value.
    pub fn stored(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<StoredValue>> {
        Ok(self.find(dict, key)?.map(|value| StoredValue { value, view: Arc::new(self.clone()) }))
    }

    /// Returns up to `limit` tuples of `[start, end)` in key order, with references to their stored
    /// values.
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

    /// Returns a mark of the committed content of a dictionary. While the mark stays the same, so
    /// does the content; the mark may also change when data is only moved. Computing it does not
    /// read the content. Returns `None` if the dictionary does not exist, if it has commits newer
    /// than this view, or if the view belongs to a transaction, whose changes the mark would miss.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// let fruit = db.open_dictionary("fruit")?;
    /// fruit.insert("apple", "red")?;
    /// let before = db.view().mark_of(fruit.id());
    /// assert!(before.is_some());
    /// assert_eq!(db.view().mark_of(fruit.id()), before);
    /// fruit.insert("plum", "blue")?;
    /// assert_ne!(db.view().mark_of(fruit.id()), before);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn mark_of(&self, dict: DictionaryId) -> Option<[u64; 4]> {
        if self.of_transaction {
            return None;
        }
        let tree = self.version.trees.get(&dict)?;
        let newest = tree.layers.iter().map(|layer| layer.memtable.max_seq()).max().unwrap_or(0);
        // Runs of a transaction are installed in a layer of a new generation.
        let generation = tree.layers.first().map_or(0, |layer| layer.generation.number);
        let run = tree.runs().map(|numbered| numbered.id.0).max().unwrap_or(0);
        (newest <= self.at).then_some([newest, generation, run, tree.since])
    }

    /// Returns the length of a value in bytes, without reading a large value.
    pub fn value_len(&self, dict: DictionaryId, key: &[u8]) -> Result<Option<usize>> {
        let lookup = self.lookup(dict, key)?;
        match lookup.value_len() {
            Some(len) => Ok(len),
            None => Ok(self.cache.resolve(lookup)?.map(|value| value.len())),
        }
    }

    /// Returns a cursor over `[start, end)` of one dictionary, positioned before the first tuple.
    /// An empty `end` means no upper bound.
    pub fn cursor(&self, dict: DictionaryId, start: &[u8], end: &[u8]) -> Result<Cursor> {
        Ok(Cursor::new(self, dict, self.inputs(dict)?, start, end))
    }

    /// Returns a cursor over the inputs `below`, newest first, with the write sets on top.
    pub(crate) fn tree_cursor(&self, dict: DictionaryId, below: Vec<Input>) -> TreeCursor {
        let below = below.into_iter().map(|input| (input, self.at));
        TreeCursor::as_of(&self.cache, self.written_inputs(dict).chain(below))
    }

    /// Returns everything that a cursor reads below the write sets, newest first. A transaction may
    /// have written to a dictionary that was created after the state that it reads.
    pub(crate) fn inputs(&self, dict: DictionaryId) -> Result<Vec<Input>> {
        Ok(self.tree(dict)?.map(Tree::inputs).unwrap_or_default())
    }

    /// Returns up to `limit` tuples of `[start, end)` in key order. Adjacent large values are read
    /// together.
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
        if !end.is_empty() {
            cursor.end_at(end);
        }
        let mut out: Vec<(Bytes, Bytes)> = Vec::new();
        // Large values are read in batches: `extents` has their locations, and `places` their
        // indices in `out` with the updates to apply.
        let (mut places, mut extents, mut bytes) = (Vec::new(), Vec::new(), 0);
        let put = |out: &mut Vec<(Bytes, Bytes)>, (at, update): Destination, value: Bytes| {
            out[at].1 = update.map_or_else(|| value.clone(), |update| update.apply(Some(&value)));
        };
        while out.len() < limit
            && cursor.advance_below(end)?
            && let Some(tuple) = cursor.current()
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

    /// Calls `visit` for every tuple of `[start, end)` in key order, until it breaks. An empty
    /// `end` is the end of the dictionary. This is the fastest scan of small values, since nothing
    /// is copied.
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
        cursor.visit(false, |tuple| tuple.with_value(|value| visit(tuple.key, value)))
    }

    /// Announces reads of these keys. See [`crate::Scope::announce`]. Does nothing for a store
    /// without remote zones, since its reads are fast.
    pub(crate) fn announce(&self, dict: DictionaryId, keys: &[&[u8]]) -> Result<()> {
        if !self.cache.zones().has_remote_zones() {
            return Ok(());
        }
        let Some(tree) = self.tree(dict)? else { return Ok(()) };
        keys.iter().try_for_each(|key| tree.announce_without_wait(key))
    }

    /// Returns the value of each of `keys`, in their order. Many reads are issued at a time, in the
    /// order of their locations on the device.
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

/// The index at which a value is stored, and the update to apply to it.
type Destination = (usize, Option<Update>);

/// Reads `extents`, and passes each value to `put` with its entry of `places`. Leaves both empty.
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
