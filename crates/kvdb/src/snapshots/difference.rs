//! What two views differ in, dictionary by dictionary.

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{Input, KeyChange, KeyRange};

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::ahead::Reader;
use crate::read::cursor::Tuple;
use crate::read::view::View;

/// A key whose value is not the same on both sides. A large value is read when it is asked for.
#[derive(Clone, Debug)]
pub struct Change {
    /// The key.
    pub key: Bytes,
    /// `None`: the key was not there.
    pub before: Option<Tuple>,
    /// `None`: it is no more.
    pub after: Option<Tuple>,
}

/// The changes of one dictionary from one view to another, in the order of the keys; see
/// [`View::difference`]. It ends with the first error.
pub struct Difference {
    inner: vt_tree::Difference,
    /// Reads the large values of the earlier side, and keeps what they refer to.
    before: Arc<Reader>,
    /// Reads those of the later side, and keeps what they refer to.
    after: Arc<Reader>,
    failed: bool,
}

impl View {
    /// What has changed in a dictionary since this view: from `dict` here to `dict_after` there,
    /// which are the same number unless the views are of different branches. A dictionary that a
    /// view does not have is empty there. It takes the time that the changes take to read: what
    /// both share, most often nearly all, is passed by.
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

    /// [`View::difference`], of the keys of `[start, end)`.
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

    /// [`View::difference`], of a range of keys.
    pub(crate) fn difference_in(
        &self,
        dict: DictionaryId,
        after: &View,
        dict_after: DictionaryId,
        range: &KeyRange,
    ) -> Result<Difference> {
        let (before_side, after_side) = (self.side(dict), after.side(dict_after));
        let inner = vt_tree::Difference::between(&self.cache, before_side, after_side, range)?;
        Ok(Difference {
            inner,
            before: Reader::new(self, dict),
            after: Reader::new(after, dict_after),
            failed: false,
        })
    }

    /// Everything that a dictionary consists of here, newest first.
    fn side(&self, dict: DictionaryId) -> vt_tree::Side {
        let inputs = self.version.trees.get(&dict).map(|t| t.inputs()).unwrap_or_default();
        self.written_inputs(dict)
            .chain(inputs.into_iter().map(|input: Input| (input, self.at)))
            .collect()
    }
}

impl Difference {
    /// Blocks and index nodes that were opened so far to find the changes.
    pub fn opened(&self) -> u64 {
        self.inner.opened()
    }

    fn change(&self, change: KeyChange) -> Change {
        let KeyChange { key, before, after } = change;
        let tuple = |value, reader| Tuple::of(key.clone(), value, None, reader);
        Change {
            before: before.map(|v| tuple(v, &self.before)),
            after: after.map(|v| tuple(v, &self.after)),
            key: key.clone(),
        }
    }
}

impl Iterator for Difference {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.inner.next();
        self.failed = next.is_err();
        next.map_err(Into::into).transpose().map(|change| change.map(|c| self.change(c)))
    }
}
