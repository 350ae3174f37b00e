//! Bulk loading of sorted tuples into a transaction. The tuples are built straight into a run of
//! the transaction's own, past memtables and journal, so each byte is written once. A commit binds
//! the run together with the transaction's other runs ([`super::ending`]) and moves none of their
//! data.
//!
//! Values may come from a view in which they are stored: the run then refers to their places, and
//! they are not read.

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{
    BodyRef, Input, ItemRef, MergeOptions, Placement, RunWriter, TreeCursor, Value, ValueRef,
};
use zones::Priority;

use super::handle::Transaction;
use super::registry::Transactions;
use super::state::More;
use crate::commit::{MAX_KEY, MAX_VALUE};
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::read::view::{StoredValue, View};
use crate::version::read;

/// Iterates over the tuples of a dictionary in a view, in key order, without copying them.
pub struct StoredTuples {
    cursor: TreeCursor,
    view: View,
}

/// A tuple borrowed from where it is stored. It is valid until the iterator moves to the next one.
#[derive(Clone, Copy)]
pub struct StoredTuple<'a> {
    /// The key.
    pub key: &'a [u8],
    value: ValueRef<'a>,
    view: &'a View,
}

/// An owned [`StoredTuple`], which outlives the iterator's next step: a small value is copied, a
/// large one is kept by its place. It is valid as long as the view that it came from.
pub struct KeptTuple {
    key: Box<[u8]>,
    value: Value,
}

impl KeptTuple {
    /// Returns the tuple. `view` must be the view that it was kept from.
    pub fn tuple<'a>(&'a self, view: &'a View) -> StoredTuple<'a> {
        let value = match &self.value {
            Value::Inline(bytes) => ValueRef::Inline(bytes, bytes),
            Value::Extent(e) => ValueRef::Extent(*e),
        };
        StoredTuple { key: &self.key, value, view }
    }
}

impl View {
    /// Returns the tuples of a dictionary, from the first one on. Values are not read.
    pub fn stored_tuples(&self, dict: DictionaryId) -> Result<StoredTuples> {
        let below = self.inputs(dict)?.into_iter().map(|input: Input| (input, self.at));
        Ok(StoredTuples {
            cursor: TreeCursor::as_of(&self.cache, self.written_inputs(dict).chain(below)),
            view: self.clone(),
        })
    }
}

impl StoredTuples {
    /// Moves before the first tuple whose key is at least `key`.
    pub fn seek(&mut self, key: &[u8]) {
        self.cursor.seek(key);
    }

    /// Moves to the next tuple, which [`StoredTuples::current`] then returns. Returns `false` if
    /// there is none.
    pub fn advance(&mut self) -> Result<bool> {
        Ok(self.cursor.advance()?)
    }

    /// Returns the tuple that [`StoredTuples::advance`] has moved to.
    pub fn current(&self) -> Option<StoredTuple<'_>> {
        self.cursor.current().map(|t| StoredTuple { key: t.key, value: t.value, view: &self.view })
    }
}

impl<'a> StoredTuple<'a> {
    /// Returns the value if it is stored inline with its key.
    pub fn small(&self) -> Option<&'a [u8]> {
        match self.value {
            ValueRef::Inline(bytes, _) => Some(bytes),
            ValueRef::Extent(_) => None,
        }
    }

    /// Returns the number of bytes that the value takes where it is stored: its length, or fewer if
    /// it is compressed. Nothing is read.
    pub fn stored_bytes(&self) -> usize {
        match self.value {
            ValueRef::Inline(bytes, _) => bytes.len(),
            ValueRef::Extent(e) => e.stored as usize,
        }
    }

    /// Returns a reference to the value where it is stored, which can be kept. `view` must be the
    /// view that the tuples come from.
    pub fn stored(&self, view: &Arc<View>) -> StoredValue {
        debug_assert!(
            Arc::ptr_eq(&self.view.version.version, &view.version.version),
            "a value of another view"
        );
        StoredValue { value: self.value.to_value(), view: view.clone() }
    }

    /// Returns an owned copy of the tuple. A small value is copied, so that it does not pin the
    /// block that it lies in.
    pub fn keep(&self) -> KeptTuple {
        let value = match self.value {
            ValueRef::Inline(bytes, _) => Value::Inline(Bytes::copy_from_slice(bytes)),
            ValueRef::Extent(e) => Value::Extent(e),
        };
        KeptTuple { key: self.key.into(), value }
    }

    /// Returns the value, and reads it from the device if it is not inline.
    pub fn value(&self) -> Result<Bytes> {
        match self.value {
            ValueRef::Inline(bytes, _) => Ok(Bytes::copy_from_slice(bytes)),
            ValueRef::Extent(e) => read(&self.view.cache, Value::Extent(e)),
        }
    }
}

/// Sorted tuples that are being written for a transaction. See [`Transaction::bulk`]. Dropping it
/// discards everything that was written.
pub struct Bulk {
    registry: Arc<Transactions>,
    dict: DictionaryId,
    writer: RunWriter,
    /// The view that stored values come from. It pins their places until the run does.
    source: View,
    first: Vec<u8>,
    last: Vec<u8>,
    empty: bool,
}

/// The run that a [`Bulk`] has written.
pub struct BulkRun {
    pub(super) dict: DictionaryId,
    pub(super) run: Arc<vt_tree::Run>,
    first: Vec<u8>,
    last: Vec<u8>,
}

impl Transaction {
    /// Returns whether the transaction accepts bulk runs ([`Transaction::bulk`]). A durable one
    /// does not: each of its changes is logged, so that it survives a restart.
    pub fn takes_bulk(&self) -> bool {
        !self.shared.options.durable
    }

    /// Begins to write tuples of one dictionary in ascending key order. Any number of bulk loads
    /// may run concurrently, on any threads; their tuples are not visible before
    /// [`Transaction::adopt`]. Stored values must come from `source`, which the bulk load holds.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let (a, b) = (db.open_dictionary("a")?, db.open_dictionary("b")?);
    /// # a.insert("1", vec![7; 100_000])?;
    /// let (t, view) = (db.begin(kvdb::Isolation::Snapshot)?, db.view());
    /// let mut bulk = t.bulk(b.id(), &view)?;
    /// let mut tuples = view.stored_tuples(a.id())?;
    /// while tuples.advance()? {
    ///     if let Some(tuple) = tuples.current() {
    ///         bulk.push_stored(tuple.key, &tuple)?;
    ///     }
    /// }
    /// bulk.push(b"2", b"two")?;
    /// t.adopt(bulk.finish()?)?;
    /// t.commit(kvdb::Durability::Buffered)?;
    /// assert_eq!(b.get("1")?.unwrap(), vec![7; 100_000]);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn bulk(&self, dict: DictionaryId, source: &View) -> Result<Bulk> {
        let registry = &self.shared.registry;
        registry.engine.health.writable()?;
        drop(self.read()?);
        let options =
            registry.engine.versions.load().tree(dict)?.info().options.storage(Placement::stitch());
        let options = MergeOptions {
            choice: registry.engine.series.choice(dict, options.compress_values),
            priority: Priority::User,
            // The caller of the transaction waits for this writer.
            write_behind: true,
            ..options
        };
        Ok(Bulk {
            registry: registry.clone(),
            dict,
            writer: RunWriter::new(&registry.engine.cache, 0, &options),
            source: source.clone(),
            first: Vec::new(),
            last: Vec::new(),
            empty: true,
        })
    }

    /// Makes a written run part of the transaction, above its changes so far. A serializable
    /// transaction locks the keys from the first to the last.
    pub fn adopt(&self, written: Option<BulkRun>) -> Result<()> {
        let Some(BulkRun { dict, run, first, mut last }) = written else { return Ok(()) };
        if !self.takes_bulk() {
            return Err(Error::Invalid(
                "a run for a transaction whose changes are logged: give them to it one by one"
                    .into(),
            ));
        }
        last.push(0);
        self.lock_range(dict, &first, &last, true)?;
        let mut state = self.write()?;
        let Some(open) = &mut state.open else { return Err(Error::NoTransaction(self.shared.id)) };
        self.shared.admit(open, || More::of(run.stats().bytes))?;
        open.write_set.adopt(dict, run);
        open.revision += 1;
        let kept = open.kept().get(&dict).copied();
        if open.write_set.is_stacked(dict, kept.unwrap_or(0)) {
            // The run stays a part of the transaction if this fails; a later spill tries again.
            let _ = open.spill(&self.shared.registry);
        }
        self.shared.count(open);
        Ok(())
    }
}

impl Bulk {
    /// Appends a tuple. After an error the bulk load can only be dropped.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if value.len() > MAX_VALUE {
            return Err(Error::Invalid(format!(
                "a value of {} bytes; at most {MAX_VALUE} are allowed",
                value.len()
            )));
        }
        // Only a receiver that keeps the value needs an owning buffer; the run writer does not.
        static NONE: Bytes = Bytes::new();
        self.write(key, BodyRef::Put(ValueRef::Inline(value, &NONE)))
    }

    /// Appends a deletion of `key`, whether or not the key exists in older layers.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.write(key, BodyRef::Delete)
    }

    /// Returns the bytes written to the device so far.
    pub fn written(&self) -> u64 {
        self.writer.written()
    }

    /// Appends `key` with the value of a tuple of the source view.
    pub fn push_stored(&mut self, key: &[u8], tuple: &StoredTuple<'_>) -> Result<()> {
        debug_assert!(
            Arc::ptr_eq(&tuple.view.version.version, &self.source.version.version),
            "a value of another view"
        );
        self.write(key, BodyRef::Put(tuple.value))
    }

    fn write(&mut self, key: &[u8], body: BodyRef<'_>) -> Result<()> {
        if key.len() > MAX_KEY || key.is_empty() && !self.empty {
            return Err(Error::Invalid(format!(
                "a key of {} bytes; at most {MAX_KEY} are allowed",
                key.len()
            )));
        }
        if std::mem::take(&mut self.empty) {
            self.first.extend_from_slice(key);
        } else if key <= self.last.as_slice() {
            return Err(Error::Invalid("keys in bulk come in ascending order".into()));
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        Ok(self.writer.push_ref(ItemRef { key, seq: 0, body })?)
    }

    /// Writes the remaining tuples and returns the run. Returns `None` if no tuples were pushed.
    pub fn finish(self) -> Result<Option<BulkRun>> {
        let Bulk { registry, dict, writer, source, first, last, .. } = self;
        let (run, stats) = writer.finish()?;
        // From here on the run pins the places of its values itself.
        drop(source);
        registry.engine.counters.merged(&stats);
        registry.engine.counters.bound_bytes.add(stats.values_written);
        Ok(run.map(|run| BulkRun { dict, run, first, last }))
    }
}
