//! A cursor over a range of one dictionary in one view. Its position is between tuples, so `next`
//! after `prev` returns the same tuple again.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{ExtentRef, Input, TreeCursor, Update, Value, ValueRef};

use crate::dictionary::DictionaryId;
use crate::error::{Error, Result};
use crate::read::ahead::{Ahead, Queued, Reader};
use crate::read::view::View;

/// A cursor: a position between tuples in a range of a view. The cursor and its tuples keep the
/// view alive, and hold no lock. After an error all calls return errors until the cursor is moved
/// by [`Cursor::seek`] or [`Cursor::seek_to_end`].
pub struct Cursor {
    tree: TreeCursor,
    start: Bytes,
    /// The exclusive upper bound, or empty if there is none.
    end: Bytes,
    /// The tuples read ahead between this cursor's position and that of the tree cursor.
    ahead: Ahead,
    /// The tuple that was returned last, if it was read ahead.
    taken: Option<Queued>,
}

/// A tuple whose value is read only on request. The tuple keeps its value unchanged, and keeps the
/// space of the value in the store from being reused.
#[derive(Clone)]
pub struct Tuple {
    /// The key.
    pub key: Bytes,
    value: TupleValue,
}

#[derive(Clone)]
enum TupleValue {
    Small(Bytes),
    /// The location of the value, and the reader that holds the view.
    Large(ExtentRef, Arc<Reader>),
    /// A large value, the update to apply to it, and the length of the result.
    Updated(Box<(ExtentRef, Update, usize)>, Arc<Reader>),
}

/// A tuple that is valid until its cursor moves. The key and a small value are not copied.
#[derive(Clone, Copy)]
pub struct TupleRef<'a> {
    /// The key.
    pub key: &'a [u8],
    value: Seen<'a>,
    /// The update to apply to a large value.
    update: Option<&'a Update>,
    reader: &'a Arc<Reader>,
}

/// A value in memory, or the location of a large value.
#[derive(Clone, Copy)]
enum Seen<'a> {
    Small(&'a [u8]),
    Large(ExtentRef),
}

impl TupleRef<'_> {
    /// Calls `with` with the value, reading it first if it is large, and returns the result of
    /// `with`.
    pub fn with_value<T>(&self, with: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let place = match self.value {
            Seen::Small(bytes) => return Ok(with(bytes)),
            Seen::Large(place) => place,
        };
        let value = match self.update {
            Some(update) => self.reader.read_updated(&place, update)?,
            None => self.reader.read(&place)?,
        };
        Ok(with(&value))
    }

    /// Copies the tuple without reading a large value.
    pub fn to_tuple(&self) -> Tuple {
        let value = match self.value {
            Seen::Small(bytes) => Value::Inline(Bytes::copy_from_slice(bytes)),
            Seen::Large(place) => Value::Extent(place),
        };
        Tuple::of(Bytes::copy_from_slice(self.key), value, self.update.cloned(), self.reader)
    }
}

impl std::fmt::Debug for Tuple {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tuple")
            .field("key", &self.key)
            .field("value_len", &self.value_len())
            .finish()
    }
}

impl Tuple {
    /// Makes a tuple whose value is in memory.
    pub(crate) fn small(key: Bytes, value: Bytes) -> Tuple {
        Tuple { key, value: TupleValue::Small(value) }
    }

    /// Makes a tuple. `update` is applied to a large value when the value is read.
    pub(crate) fn of(
        key: Bytes,
        value: Value,
        update: Option<Update>,
        reader: &Arc<Reader>,
    ) -> Tuple {
        let value = match (value, update) {
            (Value::Inline(bytes), _) => TupleValue::Small(bytes),
            (Value::Extent(e), None) => TupleValue::Large(e, reader.clone()),
            (Value::Extent(e), Some(update)) => {
                // The tree applies updates whose result has an unknown length, so the length is
                // known here.
                let len = update.applied_len(Some(e.len as usize)).unwrap_or(e.len as usize);
                TupleValue::Updated(Box::new((e, update, len)), reader.clone())
            }
        };
        Tuple { key, value }
    }

    /// Returns the length of the value in bytes, without reading it.
    pub fn value_len(&self) -> usize {
        match &self.value {
            TupleValue::Small(bytes) => bytes.len(),
            TupleValue::Large(e, _) => e.len as usize,
            TupleValue::Updated(parts, _) => parts.2,
        }
    }

    /// Returns the bytes of the key and value that the tuple keeps in memory. For a large value,
    /// only the key counts.
    pub fn bytes_in_memory(&self) -> usize {
        let value = match &self.value {
            TupleValue::Small(bytes) => bytes.len(),
            TupleValue::Large(..) | TupleValue::Updated(..) => 0,
        };
        self.key.len() + value
    }

    /// Reads the value.
    pub fn value(&self) -> Result<Bytes> {
        match &self.value {
            TupleValue::Small(bytes) => Ok(bytes.clone()),
            TupleValue::Large(e, reader) => reader.read(e),
            TupleValue::Updated(parts, reader) => reader.read_updated(&parts.0, &parts.1),
        }
    }

    /// Returns whether both tuples have the same value. Values at the same location are not read.
    pub fn has_value_of(&self, other: &Tuple) -> Result<bool> {
        if self.value_len() != other.value_len() {
            return Ok(false);
        }
        match (&self.value, &other.value) {
            // Locations in different stores are not comparable.
            (TupleValue::Large(a, reader), TupleValue::Large(b, of_other))
                if a == b && reader.is_of_store_of(of_other) =>
            {
                Ok(true)
            }
            _ => Ok(self.value()? == other.value()?),
        }
    }

    /// Returns the key and the value. Reads the value if necessary.
    pub fn into_parts(self) -> Result<(Bytes, Bytes)> {
        let value = match self.value {
            TupleValue::Small(bytes) => bytes,
            TupleValue::Large(e, reader) => reader.read(&e)?,
            TupleValue::Updated(parts, reader) => reader.read_updated(&parts.0, &parts.1)?,
        };
        Ok((self.key, value))
    }

    /// Returns whether the value is in memory or stored in the store of `view`.
    pub(crate) fn lies_in(&self, view: &View) -> bool {
        match &self.value {
            TupleValue::Small(_) => true,
            TupleValue::Large(_, reader) | TupleValue::Updated(_, reader) => reader.is_of(view),
        }
    }

    /// Returns the value or its location. A value with a pending update is read, since the result
    /// is not stored anywhere.
    pub(crate) fn raw_value(&self) -> Result<Value> {
        Ok(match &self.value {
            TupleValue::Large(e, _) => Value::Extent(*e),
            TupleValue::Small(_) | TupleValue::Updated(..) => Value::Inline(self.value()?),
        })
    }
}

/// The result of one step.
enum Step {
    /// The end of the range was reached.
    End,
    /// The tree cursor is on the tuple.
    Here,
    /// The tuple was read ahead.
    Taken(Queued),
}

/// Moves the tree cursor by one step within the range. At the end of the range it stays there.
fn walk(tree: &mut TreeCursor, start: &[u8], end: &[u8], forward: bool) -> Result<bool> {
    let inside = match forward {
        true => tree.advance_below(end)?,
        false => tree.retreat()? && tree.current().is_some_and(|t| t.key >= start),
    };
    if !inside {
        match forward {
            true if end.is_empty() => tree.seek_to_end(),
            true => tree.seek(end),
            false => tree.seek(start),
        }
    }
    Ok(inside)
}

impl Cursor {
    /// Makes a cursor over `below` and, if the view belongs to a transaction, its write set.
    pub(crate) fn new(
        view: &View,
        dict: DictionaryId,
        below: Vec<Input>,
        start: &[u8],
        end: &[u8],
    ) -> Cursor {
        let mut cursor = view.tree_cursor(dict, below);
        // Keep updates separate, so that a large value with an update is read only on request.
        cursor.keep_updates();
        cursor.seek(start);
        // Treat an inverted range as empty.
        let end = if !end.is_empty() && end < start { start } else { end };
        if !end.is_empty() {
            cursor.end_at(end);
        }
        Cursor {
            tree: cursor,
            start: Bytes::copy_from_slice(start),
            end: Bytes::copy_from_slice(end),
            ahead: Ahead::new(view, dict),
            taken: None,
        }
    }

    /// Makes the cursor skip values, for callers that want keys only: no large value is read on the
    /// way, and a key with a pending update is returned with an empty value.
    ///
    /// ```
    /// # use kvdb::Update;
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let visits = db.open_dictionary("visits")?;
    /// visits.update("monday", Update::add(1))?;
    /// let mut keys = db.view().cursor(visits.id(), b"", b"")?.keys_only();
    /// assert_eq!(keys.next()?.unwrap().key, "monday");
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn keys_only(mut self) -> Cursor {
        self.tree.keys_only();
        self
    }

    /// Announces that about this many tuples will be visited from each position that the cursor is
    /// moved to. They are then copied from the memtable in one batch, which is cheaper. The results
    /// are the same.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let fruit = db.open_dictionary("fruit")?;
    /// for name in ["apple", "pear", "plum"] {
    ///     fruit.insert(name, "ripe")?;
    /// }
    /// let mut cursor = db.view().cursor(fruit.id(), b"", b"")?;
    /// cursor.will_visit(2);
    /// assert_eq!(cursor.next()?.unwrap().key, "apple");
    /// assert_eq!(cursor.next()?.unwrap().key, "pear");
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn will_visit(&mut self, tuples: usize) {
        self.tree.will_visit(tuples);
    }

    #[inline]
    fn step(&mut self, forward: bool) -> Result<Step> {
        if self.ahead.forward != forward && !self.ahead.is_lost() {
            self.turn(forward);
        }
        let (tree, start, end) = (&mut self.tree, &self.start, &self.end);
        if self.ahead.wants() {
            self.ahead.fill(forward, || {
                Ok(if walk(tree, start, end, forward)? { here(tree) } else { None })
            });
        }
        if self.ahead.in_use() {
            return Ok(match self.ahead.take()? {
                Some(queued) => {
                    self.ahead.gives(large(&queued.0.value));
                    Step::Taken(queued)
                }
                None => Step::End,
            });
        }
        match walk(tree, start, end, forward) {
            Ok(true) => {}
            Ok(false) => return Ok(Step::End),
            Err(e) => {
                self.ahead.lose();
                return Err(e);
            }
        }
        if let Some(vt_tree::TupleRef { value: ValueRef::Extent(e), .. }) = self.tree.current() {
            self.ahead.gives(u64::from(e.len));
        }
        Ok(Step::Here)
    }

    /// Reverses the direction. Drops the tuples that were read ahead.
    fn turn(&mut self, forward: bool) {
        if self.ahead.in_use() {
            // The tree cursor is beyond the tuples of the queue: move it back.
            let mut key = self.ahead.last.to_vec();
            if self.ahead.forward {
                key.push(0);
            }
            self.tree.seek(&key);
        }
        self.ahead.leave();
        self.ahead.forward = forward;
    }

    fn tuple(&mut self, forward: bool) -> Result<Option<Tuple>> {
        let queued = match self.step(forward)? {
            Step::End => None,
            Step::Taken(queued) => Some(queued),
            Step::Here => here(&self.tree),
        };
        Ok(queued.map(|(t, update)| Tuple::of(t.key, t.value, update, &self.ahead.reader)))
    }

    /// Returns the next tuple in key order, or `None` at the end of the range.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Tuple>> {
        self.tuple(true)
    }

    /// Returns the tuple before the position, or `None` at the start of the range.
    pub fn prev(&mut self) -> Result<Option<Tuple>> {
        self.tuple(false)
    }

    /// Returns the tuple after the position or, if not `forward`, the one before it, without a
    /// copy.
    fn tuple_ref(&mut self, forward: bool) -> Result<Option<TupleRef<'_>>> {
        let queued = match self.step(forward)? {
            Step::End => return Ok(None),
            Step::Taken(queued) => Some(queued),
            Step::Here => None,
        };
        let reader = &self.ahead.reader;
        Ok(match queued {
            Some(queued) => {
                let (tuple, update) = &*self.taken.insert(queued);
                let value = match &tuple.value {
                    Value::Inline(bytes) => Seen::Small(bytes),
                    Value::Extent(place) => Seen::Large(*place),
                };
                Some(TupleRef { key: &tuple.key, value, update: update.as_ref(), reader })
            }
            None => self.tree.current().map(|tuple| TupleRef {
                key: tuple.key,
                value: match tuple.value {
                    ValueRef::Inline(bytes, _) => Seen::Small(bytes),
                    ValueRef::Extent(place) => Seen::Large(place),
                },
                update: self.tree.kept_update(),
                reader,
            }),
        })
    }

    /// Calls `visit` with the tuples after the position in key order or, if `backward`, with those
    /// before it in reverse order, until `visit` breaks or fails. For small values this is cheaper
    /// than [`Cursor::next`], since nothing is copied. After a break the position is after the last
    /// visited tuple or, if `backward`, before it.
    pub fn visit<E: From<Error>>(
        &mut self,
        backward: bool,
        mut visit: impl FnMut(TupleRef<'_>) -> std::result::Result<ControlFlow<()>, E>,
    ) -> std::result::Result<(), E> {
        while let Some(tuple) = self.tuple_ref(!backward)? {
            if visit(tuple)?.is_break() {
                break;
            }
            if self.ahead.in_use() {
                continue;
            }
            let reader = &self.ahead.reader;
            let bound = if backward { &self.start } else { &self.end };
            let near = self.tree.visit_near(bound, |key, value| {
                let value = Seen::Small(value);
                match visit(TupleRef { key, value, update: None, reader }) {
                    Ok(ControlFlow::Continue(())) => ControlFlow::Continue(()),
                    Ok(ControlFlow::Break(())) => ControlFlow::Break(Ok(())),
                    Err(e) => ControlFlow::Break(Err(e)),
                }
            });
            if let ControlFlow::Break(done) = near {
                return done;
            }
        }
        Ok(())
    }

    /// Moves before the first tuple whose key is at least `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        if !self.end.is_empty() && key >= self.end.as_ref() {
            return self.seek_to_end();
        }
        self.ahead.leave();
        self.tree.seek(key.max(&self.start));
        Ok(())
    }

    /// Moves after the last tuple of the range.
    pub fn seek_to_end(&mut self) -> Result<()> {
        self.ahead.leave();
        match self.end.is_empty() {
            true => self.tree.seek_to_end(),
            false => self.tree.seek(&self.end),
        }
        Ok(())
    }
}

/// Returns the tuple at the position of the tree cursor.
fn here(tree: &TreeCursor) -> Option<Queued> {
    Some((tree.current()?.to_tuple(), tree.kept_update().cloned()))
}

fn large(value: &Value) -> u64 {
    match value {
        Value::Inline(_) => 0,
        Value::Extent(e) => u64::from(e.len),
    }
}
