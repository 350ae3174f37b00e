//! What a tree holds: items. A run, and a memtable as of a sequence number, is an ascending
//! sequence of *disjoint* items: a point (`Put`, `Delete`) covers its one key, a range tombstone
//! covers `[key, end)`. Newer sources hide older ones wherever their items cover; inside one source
//! nothing overlaps, because a flush or a merge cuts range tombstones around newer points. So
//! points and range tombstones need one order, one search, one cursor.

use bytes::Bytes;

use crate::value::{Value, ValueRef};

/// Commit order. 0 stands for "old": before everything that an open transaction may still ask for.
pub type Seq = u64;

/// What an item says about the keys it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Put(Value),
    Delete,
    /// Deletes `[item.key, end)`.
    DeleteRange {
        end: Bytes,
    },
}

/// One item of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub key: Bytes,
    pub seq: Seq,
    pub body: Body,
}

impl Item {
    /// Bytes of the item beside its key that lie with it: an inline value, the end of a range.
    pub(crate) fn body_len(&self) -> usize {
        match &self.body {
            Body::Put(Value::Inline(v)) => v.len(),
            Body::DeleteRange { end } => end.len(),
            Body::Put(Value::Extent(_)) | Body::Delete => 0,
        }
    }

    /// `true` when the item covers `key`.
    pub fn covers(&self, key: &[u8]) -> bool {
        match &self.body {
            Body::DeleteRange { end } => self.key <= key && key < end,
            _ => self.key == key,
        }
    }

    /// `true` when every key that the item covers is below `key`.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        match &self.body {
            Body::DeleteRange { end } => end <= key,
            _ => self.key < key,
        }
    }
}

/// [`Body`], borrowed.
#[derive(Clone, Copy, Debug)]
pub enum BodyRef<'a> {
    Put(ValueRef<'a>),
    Delete,
    DeleteRange { end: &'a [u8] },
}

/// [`Item`], borrowed from a cursor's position.
#[derive(Clone, Copy, Debug)]
pub struct ItemRef<'a> {
    pub key: &'a [u8],
    pub seq: Seq,
    pub body: BodyRef<'a>,
}

impl BodyRef<'_> {
    /// The same, to be kept.
    pub fn to_body(&self) -> Body {
        match self {
            BodyRef::Put(v) => Body::Put(v.to_value()),
            BodyRef::Delete => Body::Delete,
            BodyRef::DeleteRange { end } => Body::DeleteRange { end: Bytes::copy_from_slice(end) },
        }
    }
}

impl ItemRef<'_> {
    /// The same, to be kept.
    pub fn to_item(&self) -> Item {
        Item { key: Bytes::copy_from_slice(self.key), seq: self.seq, body: self.body.to_body() }
    }

    /// `true` when every key that the item covers is below `key`.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        match self.body {
            BodyRef::DeleteRange { end } => end <= key,
            _ => self.key < key,
        }
    }
}

impl Body {
    /// The same, borrowed.
    #[inline]
    pub fn borrow(&self) -> BodyRef<'_> {
        match self {
            Body::Put(Value::Inline(b)) => BodyRef::Put(ValueRef::Inline(b, b)),
            Body::Put(Value::Extent(e)) => BodyRef::Put(ValueRef::Extent(*e)),
            Body::Delete => BodyRef::Delete,
            Body::DeleteRange { end } => BodyRef::DeleteRange { end },
        }
    }
}

impl Item {
    /// The same, borrowed.
    #[inline]
    pub fn borrow(&self) -> ItemRef<'_> {
        ItemRef { key: &self.key, seq: self.seq, body: self.body.borrow() }
    }
}

/// What one source knows about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Nothing: ask the next older source.
    Absent,
    Deleted(Seq),
    Found(Seq, Value),
}
