//! What a tree holds: items. A run, and a memtable as of a sequence number, is an ascending sequence of *disjoint* items: a point
//! (`Put`, `Delete`) covers its one key, a range tombstone covers `[key, end)`. Newer sources hide older ones wherever their
//! items cover; inside one source nothing overlaps, because a flush or a merge cuts range tombstones around newer points. So
//! points and range tombstones need one order, one search, one cursor.

use bytes::Bytes;

use crate::compression::Compression;

/// Commit order. 0 stands for "old": before everything that an open transaction may still ask for.
pub type Seq = u64;

/// Where a large value lies: written once, raw; this reference moves instead of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtentRef {
    /// Device address, bytes.
    pub addr: u64,
    /// Length of the value, bytes.
    pub len: u32,
    /// Bytes on the device: as many as the value has, or fewer, just when it is compressed.
    pub stored: u32,
    /// CRC-32C of the bytes on the device.
    pub crc: u32,
    /// How they are compressed.
    pub codec: Compression,
}

/// Values whose length is a multiple of a page are page-aligned; others, compressed ones too, lie on this boundary.
pub(crate) const SMALL_ALIGN: u32 = 512;

impl ExtentRef {
    /// A value that lies there as it is.
    pub fn plain(addr: u64, len: u32, crc: u32) -> ExtentRef {
        ExtentRef { addr, len, stored: len, crc, codec: Compression::None }
    }

    /// A value that is compressed, if it is shorter for it. `None`: there is no such thing.
    pub fn packed(addr: u64, len: u32, stored: u32, crc: u32, codec: Compression) -> Option<ExtentRef> {
        (codec != Compression::None && stored > 0 && stored < len).then_some(ExtentRef { addr, len, stored, crc, codec })
    }

    /// Behind its last byte on the device.
    pub fn end(&self) -> u64 {
        self.addr.saturating_add(u64::from(self.stored))
    }

    /// What its address is a multiple of.
    pub fn align(&self) -> u32 {
        let page = zones::SECTOR as u32;
        if self.codec == Compression::None && self.len.is_multiple_of(page) { page } else { SMALL_ALIGN }
    }

    /// Where it lies when it follows an extent that ends at `end`.
    pub(crate) fn behind(&self, end: u64) -> Option<u64> {
        end.checked_next_multiple_of(u64::from(self.align()))
    }
}

/// A value, or the place where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Inline(Bytes),
    Extent(ExtentRef),
}

impl Value {
    /// Length of the value in bytes, known without reading it.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            Value::Inline(b) => b.len(),
            Value::Extent(e) => e.len as usize,
        }
    }
}

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

/// Shorter values are copied when they are to be kept: that takes less time than the two counts of a shared buffer, and does not keep the
/// buffer.
const COPY_BELOW: usize = 512;

/// A value where it lies: in memory that somebody else keeps, or on the device.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// The bytes, and a buffer that they are a part of, so that they can be kept without a copy.
    Inline(&'a [u8], &'a Bytes),
    Extent(ExtentRef),
}

impl ValueRef<'_> {
    /// The same, to be kept.
    #[inline]
    pub fn to_value(&self) -> Value {
        match self {
            ValueRef::Inline(bytes, _) if bytes.len() < COPY_BELOW => Value::Inline(Bytes::copy_from_slice(bytes)),
            ValueRef::Inline(bytes, buffer) => Value::Inline(buffer.slice_ref(bytes)),
            ValueRef::Extent(e) => Value::Extent(*e),
        }
    }

    /// Length of the value in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match self {
            ValueRef::Inline(b, _) => b.len(),
            ValueRef::Extent(e) => e.len as usize,
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
