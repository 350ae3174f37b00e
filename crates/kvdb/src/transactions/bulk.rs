//! Many sorted tuples at once into a transaction: built straight into a run of its own, past
//! memtables and journal, each byte written once. A commit binds the run with the others
//! ([`super::ending`]); nothing of it is moved.
//!
//! Values may be those of a view, where they are stored: then the run refers to them, and they are
//! not read.

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{
    BodyRef, Input, ItemRef, MergeOptions, Placement, RunWriter, TreeCursor, Value, ValueRef,
};
use zones::Priority;

use super::handle::Transaction;
use super::registry::Transactions;
use crate::commit::{MAX_KEY, MAX_VALUE};
use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::read::version::read;
use crate::read::view::{StoredValue, View};

/// The tuples of a dictionary in a view, in order, one after the other where they lie.
pub struct StoredTuples {
    cursor: TreeCursor,
    view: View,
}

/// A tuple where it lies, good until the next one is asked for.
#[derive(Clone, Copy)]
pub struct StoredTuple<'a> {
    /// The key.
    pub key: &'a [u8],
    value: ValueRef<'a>,
    view: &'a View,
}

/// A tuple where it lies, kept until its turn comes: a small value is copied. Good with the view
/// that it came from.
pub struct KeptTuple {
    key: Box<[u8]>,
    value: Value,
}

impl KeptTuple {
    /// The tuple. `view`: the one that it was kept of.
    pub fn tuple<'a>(&'a self, view: &'a View) -> StoredTuple<'a> {
        let value = match &self.value {
            Value::Inline(bytes) => ValueRef::Inline(bytes, bytes),
            Value::Extent(e) => ValueRef::Extent(*e),
        };
        StoredTuple { key: &self.key, value, view }
    }
}

impl View {
    /// The tuples of a dictionary, from the first one on; values are not read.
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

    /// To the next tuple, which is then [`StoredTuples::current`]; `false`: there is none.
    pub fn advance(&mut self) -> Result<bool> {
        Ok(self.cursor.advance()?)
    }

    /// The tuple that [`StoredTuples::advance`] has come to.
    pub fn current(&self) -> Option<StoredTuple<'_>> {
        self.cursor.current().map(|t| StoredTuple { key: t.key, value: t.value, view: &self.view })
    }
}

impl<'a> StoredTuple<'a> {
    /// The value, if it lies with its key.
    pub fn small(&self) -> Option<&'a [u8]> {
        match self.value {
            ValueRef::Inline(bytes, _) => Some(bytes),
            ValueRef::Extent(_) => None,
        }
    }

    /// The value where it is stored, to be kept. `view`: that of these tuples.
    pub fn stored(&self, view: &Arc<View>) -> StoredValue {
        debug_assert!(
            Arc::ptr_eq(&self.view.version.version, &view.version.version),
            "a value of another view"
        );
        StoredValue { value: self.value.to_value(), view: view.clone() }
    }

    /// The tuple for as long as it is wanted. A small value is copied, so that it does not keep the
    /// block that it lies in.
    pub fn keep(&self) -> KeptTuple {
        let value = match self.value {
            ValueRef::Inline(bytes, _) => Value::Inline(Bytes::copy_from_slice(bytes)),
            ValueRef::Extent(e) => Value::Extent(e),
        };
        KeptTuple { key: self.key.into(), value }
    }

    /// The value, read if need be.
    pub fn value(&self) -> Result<Bytes> {
        match self.value {
            ValueRef::Inline(bytes, _) => Ok(Bytes::copy_from_slice(bytes)),
            ValueRef::Extent(e) => read(&self.view.cache, Value::Extent(e)),
        }
    }
}

/// Sorted tuples on their way into a transaction, see [`Transaction::bulk`]. Dropped, it leaves
/// nothing.
pub struct Bulk {
    registry: Arc<Transactions>,
    dict: DictionaryId,
    writer: RunWriter,
    /// Where stored values come from: it keeps their places until the run does.
    source: View,
    first: Vec<u8>,
    last: Vec<u8>,
    empty: bool,
}

/// What a [`Bulk`] has written.
pub struct BulkRun {
    pub(super) dict: DictionaryId,
    pub(super) run: Arc<vt_tree::Run>,
    first: Vec<u8>,
    last: Vec<u8>,
}

impl Transaction {
    /// Whether many changes may come by [`Transaction::bulk`]: not where each is logged, so that it
    /// survives a restart.
    pub fn takes_bulk(&self) -> bool {
        !self.shared.options.durable
    }

    /// Begins to write tuples of one dictionary in ascending order of their keys. Any number of
    /// them may be written side by side, by any threads; nothing of it is seen before
    /// [`Transaction::adopt`]. Stored values are those of `source`, which it holds.
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
        registry.parts.health.writable()?;
        drop(self.read()?);
        let options =
            registry.parts.versions.load().tree(dict)?.info().options.storage(Placement::stitch());
        // The writer of the transaction waits for this.
        let options = MergeOptions { priority: Priority::User, write_behind: true, ..options };
        Ok(Bulk {
            registry: registry.clone(),
            dict,
            writer: RunWriter::new(&registry.parts.cache, 0, &options),
            source: source.clone(),
            first: Vec::new(),
            last: Vec::new(),
            empty: true,
        })
    }

    /// Makes what was written a part of the transaction, above its changes so far. A serializable
    /// one locks the keys from the first to the last.
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
        self.shared.admit(open, || run.stats().bytes)?;
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
    /// Appends a tuple. After an error it can only be dropped.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if value.len() > MAX_VALUE {
            return Err(Error::Invalid(format!(
                "a value of {} bytes; at most {MAX_VALUE} are allowed",
                value.len()
            )));
        }
        // Only a buffer that is to be kept needs to be one.
        static NONE: Bytes = Bytes::new();
        self.write(key, BodyRef::Put(ValueRef::Inline(value, &NONE)))
    }

    /// The key is deleted, whatever was beneath.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.write(key, BodyRef::Delete)
    }

    /// Bytes written to the device so far.
    pub fn written(&self) -> u64 {
        self.writer.written()
    }

    /// Adds a key with the value of a tuple of the source.
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

    /// Writes what is left. `None`: there was nothing.
    pub fn finish(self) -> Result<Option<BulkRun>> {
        let Bulk { registry, dict, writer, source, first, last, .. } = self;
        let (run, stats) = writer.finish()?;
        // The run has its places itself from here on.
        drop(source);
        registry.parts.counters.merged(&stats);
        registry.parts.counters.bound_bytes.add(stats.values_written);
        Ok(run.map(|run| BulkRun { dict, run, first, last }))
    }
}
