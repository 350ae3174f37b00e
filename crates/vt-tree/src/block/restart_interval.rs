//! The decoded items of one restart interval of a tuple block, through which a cursor moves. The
//! memory is reused for the next interval.

use bytes::Bytes;

use super::INTERVAL;
use crate::item::{Body, BodyRef, ItemRef, Seq};
use crate::value::{ExtentRef, Value, ValueRef};

/// The number of bytes that are reserved for a key.
const USUAL_KEY: usize = 32;

/// A body whose bytes stay in the block. It consists of ranges of offsets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BodyPlace {
    Inline(u32, u32),
    Extent(ExtentRef),
    Update(u32, u32),
    Delete,
    DeleteRange(u32, u32),
}

impl BodyPlace {
    /// Returns the body, borrowed from the bytes of its block.
    #[inline]
    pub fn body(self, data: &Bytes) -> BodyRef<'_> {
        match self {
            BodyPlace::Inline(a, b) => {
                BodyRef::Put(ValueRef::Inline(&data[a as usize..b as usize], data))
            }
            BodyPlace::Extent(e) => BodyRef::Put(ValueRef::Extent(e)),
            BodyPlace::Update(a, b) => {
                BodyRef::Update { base: None, update: &data[a as usize..b as usize] }
            }
            BodyPlace::Delete => BodyRef::Delete,
            BodyPlace::DeleteRange(a, b) => {
                BodyRef::DeleteRange { end: &data[a as usize..b as usize] }
            }
        }
    }
}

impl BodyPlace {
    /// Returns the body with a copy of the bytes to which it refers.
    pub fn copied(self, data: &[u8]) -> Body {
        let copy = |a: u32, b: u32| Bytes::copy_from_slice(&data[a as usize..b as usize]);
        match self {
            BodyPlace::Inline(a, b) => Body::Put(Value::Inline(copy(a, b))),
            BodyPlace::Extent(e) => Body::Put(Value::Extent(e)),
            BodyPlace::Update(a, b) => Body::Update { base: None, update: copy(a, b) },
            BodyPlace::Delete => Body::Delete,
            BodyPlace::DeleteRange(a, b) => Body::DeleteRange { end: copy(a, b) },
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct DecodedItem {
    key: (u32, u32),
    seq: Seq,
    body: BodyPlace,
}

/// The decoded items of a restart interval. Keys are copied, because the block stores them without
/// their shared prefix. Everything else stays in the block.
#[derive(Default)]
pub(crate) struct RestartInterval {
    data: Bytes,
    keys: Vec<u8>,
    slots: Vec<DecodedItem>,
}

impl RestartInterval {
    /// Removes all items, and refers to the bytes `data` of a block from now on.
    pub fn begin(&mut self, data: &Bytes) {
        // Usually the block is the same as before.
        if self.data.as_ptr() != data.as_ptr() || self.data.len() != data.len() {
            self.data = data.clone();
        }
        self.keys.clear();
        self.slots.clear();
        // Reserve the memory at once. Otherwise the memory of the first interval would grow item by
        // item.
        self.keys.reserve(INTERVAL * USUAL_KEY);
        self.slots.reserve(INTERVAL);
    }

    pub fn clear(&mut self) {
        self.data = Bytes::new();
        self.keys.clear();
        self.slots.clear();
    }

    /// Adds an item whose key begins with the first `shared` bytes of the previous key, which must
    /// have that many bytes.
    #[inline]
    pub fn push(&mut self, shared: usize, suffix: &[u8], seq: Seq, body: BodyPlace) {
        let start = self.keys.len();
        if shared > 0 {
            let from = self.slots.last().map_or(0, |s| s.key.0 as usize);
            self.keys.extend_from_within(from..from + shared);
        }
        self.keys.extend_from_slice(suffix);
        self.slots.push(DecodedItem { key: (start as u32, self.keys.len() as u32), seq, body });
    }

    /// Adds an item like `push` if it lies after the previous item and is not an empty range.
    /// Returns whether the item was added. Writers produce only such items, and this check ensures
    /// that readers can rely on the order of items even if the device is damaged.
    #[inline]
    pub fn push_next(&mut self, shared: usize, suffix: &[u8], seq: Seq, body: BodyPlace) -> bool {
        let Some(before) = self.slots.last() else {
            self.push(shared, suffix, seq, body);
            return self.whole_range();
        };
        let (from, to) = (before.key.0 as usize, before.key.1 as usize);
        let deleted_to = match before.body {
            BodyPlace::DeleteRange(a, b) => Some(a as usize..b as usize),
            _ => None,
        };
        // The two keys are equal up to `shared`, and usually differ in the next byte.
        let rest = &self.keys[from + shared..to];
        let ascends = match (rest.first(), suffix.first()) {
            (Some(a), Some(b)) if a != b => a < b,
            _ => rest < suffix,
        };
        if !ascends {
            return false;
        }
        self.push(shared, suffix, seq, body);
        // The new key begins where the last one ends.
        let overlaps = deleted_to.is_some_and(|end| self.data[end] > self.keys[to..]);
        !overlaps && self.whole_range()
    }

    /// Returns `false` if the last item is a range tombstone that ends at or before its beginning.
    #[inline]
    fn whole_range(&self) -> bool {
        self.slots.last().is_none_or(|s| match s.body {
            BodyPlace::DeleteRange(a, b) => {
                self.data[a as usize..b as usize] > self.keys[s.key.0 as usize..s.key.1 as usize]
            }
            _ => true,
        })
    }

    /// Returns the length of the last key, or 0 if there are no items.
    #[inline]
    pub fn last_key_len(&self) -> usize {
        self.slots.last().map_or(0, |s| (s.key.1 - s.key.0) as usize)
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    #[inline]
    pub fn key(&self, i: usize) -> Option<&[u8]> {
        self.slots.get(i).map(|s| &self.keys[s.key.0 as usize..s.key.1 as usize])
    }

    #[inline]
    pub fn item(&self, i: usize) -> Option<ItemRef<'_>> {
        let s = self.slots.get(i)?;
        Some(ItemRef {
            key: &self.keys[s.key.0 as usize..s.key.1 as usize],
            seq: s.seq,
            body: s.body.body(&self.data),
        })
    }

    /// Returns the number of leading items that satisfy `pred`. No item after them may satisfy
    /// `pred`.
    pub fn partition_point(&self, pred: impl Fn(ItemRef<'_>) -> bool) -> usize {
        (0..self.len()).take_while(|&i| self.item(i).is_some_and(&pred)).count()
    }
}
