//! A cursor over a range of one dictionary in one view. Its position lies between tuples, so that `next` after `prev` gives the
//! same tuple again.

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{Store, TreeCursor, TreeTuple, Value};

use crate::error::Result;
use crate::version::{Tree, Version, read};
use crate::view::View;

/// A position between tuples, in a range of a view; it holds the view and no lock.
pub struct Cursor {
    tree: TreeCursor,
    start: Bytes,
    /// Empty: no upper end.
    end: Bytes,
    store: Arc<Store>,
    _version: Arc<Version>,
}

/// A tuple whose value is read when asked for.
#[derive(Clone)]
pub struct Tuple {
    pub key: Bytes,
    pub(crate) value: Value,
    store: Arc<Store>,
}

impl std::fmt::Debug for Tuple {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tuple").field("key", &self.key).field("value", &self.value).finish()
    }
}

impl Tuple {
    /// Length of the value in bytes; nothing is read.
    pub fn value_len(&self) -> usize {
        self.value.len()
    }
    pub fn value(&self) -> Result<Bytes> {
        read(&self.store, self.value.clone())
    }
}

impl Cursor {
    pub(crate) fn new(view: &View, tree: &Tree, start: &[u8], end: &[u8]) -> Cursor {
        let mut cursor = TreeCursor::new(&tree.inputs(), view.at);
        cursor.seek(start);
        // An inverted range holds nothing, as one that ends where it begins.
        let end = if !end.is_empty() && end < start { start } else { end };
        Cursor {
            tree: cursor,
            start: Bytes::copy_from_slice(start),
            end: Bytes::copy_from_slice(end),
            store: view.store.clone(),
            _version: view.version.clone(),
        }
    }

    fn beyond(&self, key: &[u8]) -> bool {
        !self.end.is_empty() && key >= self.end.as_ref()
    }

    fn tuple(&self, t: TreeTuple) -> Tuple {
        Tuple { key: t.key, value: t.value, store: self.store.clone() }
    }

    /// The next tuple in key order, or `None` at the range's end.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Tuple>> {
        match self.tree.next()? {
            Some(t) if !self.beyond(&t.key) => Ok(Some(self.tuple(t))),
            Some(_) => {
                self.seek_to_end()?;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// The tuple before the position, or `None` at the range's start.
    pub fn prev(&mut self) -> Result<Option<Tuple>> {
        match self.tree.prev()? {
            Some(t) if t.key >= self.start => Ok(Some(self.tuple(t))),
            Some(_) => {
                self.tree.seek(&self.start);
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Moves before the first tuple whose key is at least `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        if key < self.start.as_ref() {
            self.tree.seek(&self.start);
        } else if self.beyond(key) {
            self.seek_to_end()?;
        } else {
            self.tree.seek(key);
        }
        Ok(())
    }

    /// Moves behind the last tuple of the range.
    pub fn seek_to_end(&mut self) -> Result<()> {
        match self.end.is_empty() {
            true => self.tree.seek_to_end(),
            false => self.tree.seek(&self.end),
        }
        Ok(())
    }
}
