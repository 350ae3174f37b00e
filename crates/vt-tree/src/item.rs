//! Items: the elements of a tree. A run, and a memtable as of a sequence number, is an ascending
//! sequence of *disjoint* items: a point (`Put`, `Update`, `Delete`) covers a single key, a range
//! tombstone covers `[key, end)`. Items of newer sources hide items of older ones at the keys that
//! they cover. Within a source nothing overlaps, because a flush or a merge cuts range tombstones
//! around newer points. So points and range tombstones share one order, one search and one cursor.
//!
//! An update does not hide older items. Its value is computed from them; see [`Lookup::over`].

use bytes::Bytes;

use crate::Result;
use crate::update::Update;
use crate::value::{ExtentRef, Value, ValueRef};

/// A sequence number: the position of a change in the total order of all changes. A commit takes
/// one number for each of its changes. 0 means "old": visible to every reader.
pub type Seq = u64;

/// The effect of an item on the keys that it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A value.
    Put(Value),
    /// An update of a value.
    Update {
        /// The value to update, if it is known; otherwise older items have it. Only memtables
        /// contain updates of known values, since these are applied when a run is written. The
        /// field is boxed because a get moves bodies several times and few of them are updates.
        base: Option<Box<ExtentRef>>,
        /// The encoded operations. See [`Update::decode`].
        update: Bytes,
    },
    /// A deletion of the key.
    Delete,
    /// A deletion of all keys in `[item.key, end)`.
    DeleteRange {
        /// The first key that is not deleted.
        end: Bytes,
    },
}

/// One item of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key, or the first key of a range.
    pub key: Bytes,
    /// The sequence number.
    pub seq: Seq,
    /// The effect on the covered keys.
    pub body: Body,
}

impl Item {
    /// Returns the bytes stored with the item in addition to its key: an inline value, an update,
    /// or the end of a range.
    pub(crate) fn body_len(&self) -> usize {
        match &self.body {
            Body::Put(Value::Inline(v)) => v.len(),
            Body::Update { update, .. } => update.len(),
            Body::DeleteRange { end } => end.len(),
            Body::Put(Value::Extent(_)) | Body::Delete => 0,
        }
    }

    /// Borrows the item.
    #[inline]
    pub fn borrow(&self) -> ItemRef<'_> {
        ItemRef { key: &self.key, seq: self.seq, body: self.body.borrow() }
    }

    /// Returns whether the item covers `key`.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.borrow().covers(key)
    }

    /// Returns whether every key that the item covers is below `key`.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        self.borrow().ends_before(key)
    }
}

/// A borrowed [`Body`].
#[derive(Clone, Copy, Debug)]
pub enum BodyRef<'a> {
    /// A value.
    Put(ValueRef<'a>),
    /// An update of a value.
    Update {
        /// The value to update, if it is known.
        base: Option<ExtentRef>,
        /// The encoded operations.
        update: &'a [u8],
    },
    /// A deletion of the key.
    Delete,
    /// A deletion of all keys in `[item.key, end)`.
    DeleteRange {
        /// The first key that is not deleted.
        end: &'a [u8],
    },
}

/// A borrowed [`Item`], such as the current item of a cursor.
#[derive(Clone, Copy, Debug)]
pub struct ItemRef<'a> {
    /// The key, or the first key of a range.
    pub key: &'a [u8],
    /// The sequence number.
    pub seq: Seq,
    /// The effect on the covered keys.
    pub body: BodyRef<'a>,
}

impl BodyRef<'_> {
    /// Copies the body.
    pub fn to_body(&self) -> Body {
        match self {
            BodyRef::Put(v) => Body::Put(v.to_value()),
            BodyRef::Update { base, update } => {
                let base = base.map(Box::new);
                Body::Update { base, update: Bytes::copy_from_slice(update) }
            }
            BodyRef::Delete => Body::Delete,
            BodyRef::DeleteRange { end } => Body::DeleteRange { end: Bytes::copy_from_slice(end) },
        }
    }
}

impl ItemRef<'_> {
    /// Returns whether the item covers `key`.
    pub fn covers(&self, key: &[u8]) -> bool {
        match self.body {
            BodyRef::DeleteRange { end } => self.key <= key && key < end,
            _ => self.key == key,
        }
    }

    /// Copies the item.
    pub fn to_item(&self) -> Item {
        Item { key: Bytes::copy_from_slice(self.key), seq: self.seq, body: self.body.to_body() }
    }

    /// Returns whether every key that the item covers is below `key`.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        match self.body {
            BodyRef::DeleteRange { end } => end <= key,
            _ => self.key < key,
        }
    }
}

impl Body {
    /// Borrows the body.
    #[inline]
    pub fn borrow(&self) -> BodyRef<'_> {
        match self {
            Body::Put(Value::Inline(b)) => BodyRef::Put(ValueRef::Inline(b, b)),
            Body::Put(Value::Extent(e)) => BodyRef::Put(ValueRef::Extent(*e)),
            Body::Update { base, update } => {
                BodyRef::Update { base: base.as_deref().copied(), update }
            }
            Body::Delete => BodyRef::Delete,
            Body::DeleteRange { end } => BodyRef::DeleteRange { end },
        }
    }
}

/// The result of a lookup in one source or, after [`Lookup::over`], in several sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// No item of the source covers the key. An older source may have it.
    Absent,
    /// The key was deleted at this sequence number.
    Deleted(Seq),
    /// The sequence number and the value of the key.
    Found(Seq, Value),
    /// The value was updated.
    Updated {
        /// The sequence number of the newest update.
        seq: Seq,
        /// The value to update, or `None` if an older source may have it.
        base: Option<Box<ExtentRef>>,
        /// The composed updates.
        update: Update,
    },
}

impl Lookup {
    /// Returns the result of looking up a key that an item with this body covers.
    #[inline]
    pub fn of(seq: Seq, body: Body) -> Result<Lookup> {
        match body {
            Body::Put(value) => Ok(Lookup::Found(seq, value)),
            Body::Update { base, update } => Lookup::updated(seq, base, &update),
            Body::Delete | Body::DeleteRange { .. } => Ok(Lookup::Deleted(seq)),
        }
    }

    #[cold]
    fn updated(seq: Seq, base: Option<Box<ExtentRef>>, update: &[u8]) -> Result<Lookup> {
        Ok(Lookup::Updated { seq, base, update: Update::decode(update)? })
    }

    /// Returns whether the result no longer depends on older sources.
    pub fn is_final(&self) -> bool {
        !matches!(self, Lookup::Absent | Lookup::Updated { base: None, .. })
    }

    /// Combines the result of this source with that of an `older` one. Reads no value. The
    /// operation is associative.
    pub fn over(self, older: Lookup) -> Lookup {
        let (seq, update) = match self {
            Lookup::Absent => return older,
            Lookup::Updated { seq, base: None, update } => (seq, update),
            newer => return newer,
        };
        match older {
            Lookup::Absent => Lookup::Updated { seq, base: None, update },
            Lookup::Deleted(_) => Lookup::Found(seq, Value::Inline(update.apply(None))),
            Lookup::Found(_, Value::Inline(v)) => {
                Lookup::Found(seq, Value::Inline(update.apply(Some(&v))))
            }
            Lookup::Found(_, Value::Extent(e)) => {
                Lookup::Updated { seq, base: Some(Box::new(e)), update }
            }
            Lookup::Updated { base, update: before, .. } => {
                Lookup::Updated { seq, base, update: before.then(&update) }
            }
        }
    }

    /// Returns the length in bytes of the key's value, given the result of a lookup in all sources.
    /// Returns `Some(None)` if the key has no value, and `None` if the value must be read to
    /// determine its length.
    pub fn value_len(&self) -> Option<Option<usize>> {
        match self {
            Lookup::Absent | Lookup::Deleted(_) => Some(None),
            Lookup::Found(_, value) => Some(Some(value.len())),
            Lookup::Updated { base, update, .. } => {
                update.applied_len(base.as_ref().map(|e| e.len as usize)).map(Some)
            }
        }
    }
}
