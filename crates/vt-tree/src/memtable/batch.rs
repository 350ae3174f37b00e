//! Items that are copied out of a memtable in key order into one buffer, which the next batch
//! reuses.

use super::arena::Place;
use super::{KeptValue, MemtableState};
use crate::item::{BodyRef, ItemRef};
use crate::value::ValueRef;
use crate::{ExtentRef, Seq, Value};
use bytes::{Bytes, BytesMut};

enum BatchBody {
    /// A value at this range of the buffer.
    Small(u32, u32),
    Kept(Bytes),
    Extent(ExtentRef),
    Update(Option<ExtentRef>, Bytes),
    Delete,
    /// A range tombstone whose end key is at this range of the buffer.
    DeleteRange(u32, u32),
}

struct BatchItem {
    key: (u32, u32),
    seq: Seq,
    body: BatchBody,
}

/// The space reserved for the key and the value of an item, bytes.
const USUAL: usize = 64;

#[derive(Default)]
pub(super) struct Batch {
    /// The buffer, while items are added.
    filling: BytesMut,
    bytes: Bytes,
    slots: Vec<BatchItem>,
    /// The number of items for which space is reserved when the first one is added.
    expected: usize,
}

impl Batch {
    /// Drops all items, and prepares for about `expected` new ones. Nothing is reserved until the
    /// first is added.
    pub fn begin(&mut self, expected: usize) {
        self.slots.clear();
        // Drop our reference first: the buffer is reused unless a reader has kept a value in it.
        self.bytes = Bytes::new();
        self.filling.clear();
        self.expected = expected;
    }

    /// Reserves space for the expected items before the first one is added. This is done late
    /// because most memtables have no items in a range that is read.
    #[inline]
    fn make_room(&mut self) {
        if self.slots.is_empty() {
            self.slots.reserve(self.expected);
            self.filling.reserve(self.expected * USUAL);
        }
    }

    fn add(&mut self, data: &[u8]) -> (u32, u32) {
        // The offsets fit into 32 bits: a batch has a few hundred keys, and values below
        // `KEEP_FROM`.
        let start = self.filling.len() as u32;
        self.filling.extend_from_slice(data);
        (start, self.filling.len() as u32)
    }

    /// Adds a point: `key` with the value stored at `value`.
    #[inline]
    pub fn point(&mut self, state: &MemtableState, key: &[u8], seq: Seq, value: Place) {
        self.make_room();
        let key = self.add(key);
        let body = match value.as_kept() {
            None if value == Place::DELETE => BatchBody::Delete,
            None => {
                let (start, end) = self.add(state.arena.get(value));
                BatchBody::Small(start, end)
            }
            Some(i) => match &state.kept[i as usize] {
                Some(KeptValue::Own(Value::Inline(b))) => BatchBody::Kept(b.clone()),
                Some(KeptValue::Own(Value::Extent(e))) => BatchBody::Extent(*e),
                // Copy the value: the caller may keep it, and a slice would keep its neighbours
                // alive.
                Some(KeptValue::Deferred(d)) => BatchBody::Kept(Bytes::copy_from_slice(&d.bytes)),
                Some(KeptValue::Updated(updated)) => {
                    BatchBody::Update(updated.0, updated.1.bytes().clone())
                }
                None => BatchBody::Delete,
            },
        };
        self.slots.push(BatchItem { key, seq, body });
    }

    pub fn range(&mut self, start: &[u8], end: &[u8], seq: Seq) {
        self.make_room();
        let key = self.add(start);
        let (from, to) = self.add(end);
        self.slots.push(BatchItem { key, seq, body: BatchBody::DeleteRange(from, to) });
    }

    /// Ends the batch. From then on items can be read, and can be added only after `begin`.
    pub fn seal(&mut self) {
        self.bytes = self.filling.split().freeze();
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    #[inline]
    pub fn item(&self, i: usize) -> Option<ItemRef<'_>> {
        let slot = self.slots.get(i)?;
        let at = |(start, end): (u32, u32)| &self.bytes[start as usize..end as usize];
        let body = match &slot.body {
            BatchBody::Small(start, end) => {
                BodyRef::Put(ValueRef::Inline(at((*start, *end)), &self.bytes))
            }
            BatchBody::Kept(b) => BodyRef::Put(ValueRef::Inline(b, b)),
            BatchBody::Extent(e) => BodyRef::Put(ValueRef::Extent(*e)),
            BatchBody::Update(base, update) => BodyRef::Update { base: *base, update },
            BatchBody::Delete => BodyRef::Delete,
            BatchBody::DeleteRange(start, end) => BodyRef::DeleteRange { end: at((*start, *end)) },
        };
        Some(ItemRef { key: at(slot.key), seq: slot.seq, body })
    }
}
