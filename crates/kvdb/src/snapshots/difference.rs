//! The difference between two views, dictionary by dictionary.

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{Input, KeyChange, KeyRange};

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::ahead::Reader;
use crate::read::bounds;
use crate::read::cursor::{Cursor, Tuple};
use crate::read::view::View;

/// A key whose value differs between two views. A large value is read on request.
#[derive(Clone, Debug)]
pub struct Change {
    /// The key.
    pub key: Bytes,
    /// The value in the earlier view. `None` if the key did not exist there.
    pub before: Option<Tuple>,
    /// The value in the later view. `None` if the key does not exist there.
    pub after: Option<Tuple>,
}

/// Iterates over the changes of one dictionary from one view to another, in key order; see
/// [`View::difference`]. It ends with the first error.
pub struct Difference {
    inner: Inner,
    failed: bool,
}

enum Inner {
    /// The difference of two states of one store.
    Near {
        inner: Box<vt_tree::Difference>,
        /// Reads the large values of the earlier side, and pins their places.
        before: Arc<Reader>,
        /// Reads the large values of the later side, and pins their places.
        after: Arc<Reader>,
    },
    /// The difference of states of two stores.
    Far(Box<[Tuples; 2]>),
}

/// The tuples of a state of another store, in key order.
struct Tuples {
    /// `None` if the view does not have the dictionary.
    cursor: Option<Cursor>,
    /// The last tuple read from the cursor, which is not compared yet.
    next: Option<Tuple>,
}

impl Tuples {
    fn of(view: &View, dict: DictionaryId, range: &KeyRange) -> Result<Tuples> {
        let (start, end) = bounds::for_cursor(range);
        let cursor = || view.cursor(dict, start, end);
        let mut cursor = view.knows(dict).then(cursor).transpose()?;
        let next = cursor.as_mut().map_or(Ok(None), Cursor::next)?;
        Ok(Tuples { cursor, next })
    }

    fn take(&mut self) -> Result<Option<Tuple>> {
        let next = self.cursor.as_mut().map_or(Ok(None), Cursor::next)?;
        Ok(std::mem::replace(&mut self.next, next))
    }
}

/// Returns the next key whose value differs, by comparing all tuples of both sides.
fn next_of([before, after]: &mut [Tuples; 2]) -> Result<Option<Change>> {
    loop {
        let order = match (&before.next, &after.next) {
            (None, None) => return Ok(None),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(a), Some(b)) => a.key.cmp(&b.key),
        };
        let was = if order.is_le() { before.take()? } else { None };
        let is = if order.is_ge() { after.take()? } else { None };
        let same = match (&was, &is) {
            (Some(a), Some(b)) => a.has_value_of(b)?,
            _ => false,
        };
        if let Some(tuple) = was.as_ref().or(is.as_ref()).filter(|_| !same) {
            return Ok(Some(Change { key: tuple.key.clone(), before: was, after: is }));
        }
    }
}

impl View {
    /// Returns the changes of a dictionary from this view to `after`, in which it has the number
    /// `dict_after`. The two numbers are the same unless the views are of different branches. A
    /// dictionary that a view does not have counts as empty. The time depends on the changes: data
    /// that both views share, usually almost all, is skipped without reading. Views of two stores
    /// share nothing, so all tuples are compared, and every value that may be the same is read.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// let fruit = db.open_dictionary("fruit")?;
    /// fruit.insert("apple", "red")?;
    /// fruit.insert("pear", "green")?;
    /// db.snapshot("monday")?;
    /// fruit.insert("apple", "rotten")?;
    /// fruit.remove("pear")?;
    /// let (monday, now) = (db.open_snapshot("monday")?, db.view());
    /// let changes = monday.difference(fruit.id(), &now, fruit.id())?;
    /// let changes = changes.collect::<kvdb::Result<Vec<_>>>()?;
    /// assert_eq!(changes[0].key, "apple");
    /// assert_eq!(changes[0].after.as_ref().unwrap().value()?, "rotten");
    /// assert!(changes[1].after.is_none());
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn difference(
        &self,
        dict: DictionaryId,
        after: &View,
        dict_after: DictionaryId,
    ) -> Result<Difference> {
        self.difference_in(dict, after, dict_after, &KeyRange::all())
    }

    /// Returns the changes like [`View::difference`], for the keys of `[start, end)`.
    pub fn difference_between(
        &self,
        dict: DictionaryId,
        after: &View,
        dict_after: DictionaryId,
        (start, end): (&[u8], &[u8]),
    ) -> Result<Difference> {
        let range = KeyRange::new(Bytes::copy_from_slice(start), Bytes::copy_from_slice(end));
        self.difference_in(dict, after, dict_after, &range)
    }

    /// Returns the changes like [`View::difference`], for a range of keys.
    pub(crate) fn difference_in(
        &self,
        dict: DictionaryId,
        after: &View,
        dict_after: DictionaryId,
        range: &KeyRange,
    ) -> Result<Difference> {
        let inner = if self.is_of_store(after) {
            let (before_side, after_side) = (self.side(dict), after.side(dict_after));
            let inner = vt_tree::Difference::between(&self.cache, before_side, after_side, range)?;
            Inner::Near {
                inner: Box::new(inner),
                before: Reader::new(self, dict),
                after: Reader::new(after, dict_after),
            }
        } else {
            let sides = [Tuples::of(self, dict, range)?, Tuples::of(after, dict_after, range)?];
            Inner::Far(Box::new(sides))
        };
        Ok(Difference { inner, failed: false })
    }

    /// Returns the memtables and runs of a dictionary in this view, newest first.
    fn side(&self, dict: DictionaryId) -> vt_tree::Side {
        let inputs = self.version.trees.get(&dict).map(|t| t.inputs()).unwrap_or_default();
        self.written_inputs(dict)
            .chain(inputs.into_iter().map(|input: Input| (input, self.at)))
            .collect()
    }
}

impl Difference {
    /// Returns the number of blocks and index nodes opened so far to find the changes. For views of
    /// two stores, these are not counted.
    pub fn opened(&self) -> u64 {
        match &self.inner {
            Inner::Near { inner, .. } => inner.opened(),
            Inner::Far(_) => 0,
        }
    }

    fn change(&mut self) -> Result<Option<Change>> {
        match &mut self.inner {
            Inner::Near { inner, before, after } => {
                let Some(change) = inner.next()? else { return Ok(None) };
                let KeyChange { key, before: was, after: is } = change;
                let tuple = |value, reader| Tuple::of(key.clone(), value, None, reader);
                Ok(Some(Change {
                    before: was.map(|v| tuple(v, before)),
                    after: is.map(|v| tuple(v, after)),
                    key: key.clone(),
                }))
            }
            Inner::Far(sides) => next_of(sides),
        }
    }
}

impl Iterator for Difference {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.change();
        self.failed = next.is_err();
        next.transpose()
    }
}
