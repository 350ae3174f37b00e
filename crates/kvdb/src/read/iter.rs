//! Double-ended iterators over a range. Each end has its own cursor, made on first use. Iteration
//! stops where the two meet.

use std::ops::RangeBounds;

use bytes::Bytes;
use vt_tree::KeyRange;

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::bounds;
use crate::read::cursor::{Cursor, Tuple};
use crate::read::view::View;

/// An iterator over the keys and values of a range, in key order from the front and in reverse
/// order from the back. It holds its view, so later commits are not visible. An error ends the
/// iteration.
pub struct Iter {
    view: View,
    dict: DictionaryId,
    range: KeyRange,
    front: Option<Cursor>,
    back: Option<Cursor>,
    /// The last key returned from each end, valid once that end was used.
    last_front: Vec<u8>,
    last_back: Vec<u8>,
    from_front: bool,
    from_back: bool,
    done: bool,
}

impl Iter {
    pub(crate) fn new(view: View, dict: DictionaryId, range: KeyRange) -> Iter {
        let done = bounds::is_empty(&range);
        Iter {
            view,
            dict,
            range,
            front: None,
            back: None,
            last_front: Vec::new(),
            last_back: Vec::new(),
            from_front: false,
            from_back: false,
            done,
        }
    }

    fn cursor(&self) -> Result<Cursor> {
        let (start, end) = bounds::for_cursor(&self.range);
        self.view.cursor(self.dict, start, end)
    }

    fn forward(&mut self) -> Result<Option<Tuple>> {
        if self.front.is_none() {
            self.front = Some(self.cursor()?);
        }
        let Some(cursor) = &mut self.front else { return Ok(None) };
        let tuple = cursor.next()?.filter(|t| !self.from_back || t.key < self.last_back);
        note(&mut self.last_front, &tuple);
        self.from_front = true;
        Ok(tuple)
    }

    fn backward(&mut self) -> Result<Option<Tuple>> {
        if self.back.is_none() {
            let mut cursor = self.cursor()?;
            cursor.seek_to_end()?;
            self.back = Some(cursor);
        }
        let Some(cursor) = &mut self.back else { return Ok(None) };
        let tuple = cursor.prev()?.filter(|t| !self.from_front || t.key > self.last_front);
        note(&mut self.last_back, &tuple);
        self.from_back = true;
        Ok(tuple)
    }

    fn give<T>(&mut self, outcome: Result<Option<T>>) -> Option<Result<T>> {
        let outcome = outcome.transpose();
        self.done = !matches!(outcome, Some(Ok(_)));
        outcome
    }

    /// Converts the iterator into one over the keys only. Values are not read.
    pub fn keys(self) -> Keys {
        Keys(self)
    }
}

fn read(tuple: Option<Tuple>) -> Result<Option<(Bytes, Bytes)>> {
    tuple.map(Tuple::into_parts).transpose()
}

fn note(last: &mut Vec<u8>, tuple: &Option<Tuple>) {
    if let Some(t) = tuple {
        last.clear();
        last.extend_from_slice(&t.key);
    }
}

impl Iterator for Iter {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let outcome = self.forward().and_then(read);
        self.give(outcome)
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let outcome = self.backward().and_then(read);
        self.give(outcome)
    }
}

impl std::iter::FusedIterator for Iter {}

/// An iterator over the keys of a range. See [`Iter::keys`].
pub struct Keys(Iter);

impl Iterator for Keys {
    type Item = Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.done {
            return None;
        }
        let outcome = self.0.forward().map(|t| t.map(|t| t.key));
        self.0.give(outcome)
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.0.done {
            return None;
        }
        let outcome = self.0.backward().map(|t| t.map(|t| t.key));
        self.0.give(outcome)
    }
}

impl std::iter::FusedIterator for Keys {}

impl View {
    /// Iterates over all tuples of a dictionary in key order or, from the back, in descending
    /// order.
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # let fruit = db.open_dictionary("fruit")?;
    /// fruit.insert("apple", "red")?;
    /// let view = db.view();
    /// fruit.insert("pear", "green")?;
    /// let then: Vec<_> = view.iter(fruit.id()).collect::<Result<_, _>>()?;
    /// assert_eq!(then, [("apple".into(), "red".into())], "a view does not change");
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn iter(&self, dict: DictionaryId) -> Iter {
        Iter::new(self.clone(), dict, KeyRange::all())
    }

    /// Iterates over the tuples of a range of keys.
    pub fn range<K: AsRef<[u8]>>(&self, dict: DictionaryId, range: impl RangeBounds<K>) -> Iter {
        Iter::new(self.clone(), dict, bounds::of(&range))
    }

    /// Iterates over the tuples whose keys begin with `prefix`.
    pub fn prefix(&self, dict: DictionaryId, prefix: impl AsRef<[u8]>) -> Iter {
        Iter::new(self.clone(), dict, bounds::of_prefix(prefix.as_ref()))
    }

    /// Returns whether the key exists, without reading a large value.
    pub fn contains(&self, dict: DictionaryId, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.value_len(dict, key.as_ref())?.is_some())
    }
}
