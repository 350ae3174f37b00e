//! Writes a tuple block. Items are added in key order. Items whose keys count upwards are buffered
//! until the builder knows whether they form an extent run.

use zones::varint;

use super::{
    ASCENDS, DELETE, DELETE_RANGE, EXTENT, EXTENT_RUN, FOLLOWS, HAS_EXTENT_RUNS, HAS_PACKED,
    HAS_SEQ, INLINE, INTERVAL, INTERVAL_BYTES, INTERVAL_LEAST, PACKED, PACKED_FOLLOWS, PART,
    UPDATE,
};
use crate::block::extent_run::OpenExtentRun;
use crate::item::{BodyRef, Seq};
use crate::key::shared_prefix;
use crate::value::Compression;
use crate::value::{ExtentRef, ValueRef};

/// Encodes items as the payload of a tuple block. The items must be added in key order.
#[derive(Default)]
pub struct BlockBuilder {
    buf: Vec<u8>,
    restarts: Vec<u32>,
    last_key: Vec<u8>,
    last_extent: Option<ExtentRef>,
    /// The number of items since the last restart point.
    in_interval: usize,
    /// `true` if the next item begins at a restart point even if the current restart interval is
    /// short.
    ends_interval: bool,
    /// The latest items, while they may still form an extent run.
    open: Option<OpenExtentRun>,
    /// The number of extent runs and of items outside of extent runs.
    units: usize,
    items: usize,
    has_extent_runs: bool,
}

impl BlockBuilder {
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Returns an upper bound on the size of the payload so far, in bytes.
    pub fn size(&self) -> usize {
        self.buf.len()
            + 4 * self.restarts.len()
            + 4
            + self.open.as_ref().map_or(0, OpenExtentRun::size)
    }

    pub fn add(&mut self, key: &[u8], seq: Seq, body: BodyRef<'_>) {
        self.items += 1;
        if let BodyRef::Put(ValueRef::Extent(e)) = body {
            if self.open.as_mut().is_some_and(|open| open.push(key, seq, &e)) {
                return;
            }
            self.close_extent_run();
            self.open = OpenExtentRun::begin(key, seq, &e);
            if self.open.is_some() {
                return;
            }
        } else if self.open.is_some() {
            self.close_extent_run();
        }
        self.add_one(key, seq, body);
    }

    /// Writes the buffered items as an extent run or one by one.
    fn close_extent_run(&mut self) {
        let Some(open) = self.open.take() else { return };
        if !open.is_extent_run() {
            return open
                .each(|key, seq, e| self.add_one(key, seq, BodyRef::Put(ValueRef::Extent(e))));
        }
        self.restarts.push(self.buf.len() as u32);
        let flags = if open.ascends() { ASCENDS } else { 0 }
            | if open.is_packed() { HAS_PACKED } else { 0 };
        self.head(0, open.first_key(), open.seq(), EXTENT_RUN | flags);
        open.encode(&mut self.buf);
        self.has_extent_runs = true;
        self.ends_interval = true;
        self.units += 1;
    }

    fn head(&mut self, shared: usize, key: &[u8], seq: Seq, kind: u8) {
        let further = &key[shared..];
        let flags = kind | if seq > 0 { HAS_SEQ } else { 0 };
        if shared < 0x80 && further.len() < 0x80 {
            self.buf.extend_from_slice(&[shared as u8, further.len() as u8, flags]);
        } else {
            varint::put_u64(&mut self.buf, shared as u64);
            varint::put_u64(&mut self.buf, further.len() as u64);
            self.buf.push(flags);
        }
        self.buf.extend_from_slice(further);
        if seq > 0 {
            varint::put_u64(&mut self.buf, seq);
        }
    }

    fn add_one(&mut self, key: &[u8], seq: Seq, body: BodyRef<'_>) {
        debug_assert!(
            self.units == 0 || self.ends_interval || key > self.last_key.as_slice(),
            "items come in order"
        );
        let long = |start: &u32| self.buf.len() - *start as usize >= INTERVAL_BYTES;
        let full = self.in_interval == INTERVAL
            || self.in_interval >= INTERVAL_LEAST && self.restarts.last().is_some_and(long);
        let restart = self.units == 0 || self.ends_interval || full;
        if restart {
            self.restarts.push(self.buf.len() as u32);
            self.last_extent = None;
            self.in_interval = 0;
            self.ends_interval = false;
        }
        self.in_interval += 1;
        self.units += 1;
        let shared = if restart { 0 } else { shared_prefix(&self.last_key, key) };
        match body {
            BodyRef::Put(ValueRef::Inline(v, _)) => {
                self.head(shared, key, seq, INLINE);
                varint::put_u64(&mut self.buf, v.len() as u64);
                self.buf.extend_from_slice(v);
            }
            BodyRef::Put(ValueRef::Extent(e)) => self.put_extent(shared, key, seq, e),
            // `RunBuilder::push` has already applied an update whose base is known.
            BodyRef::Update { update, .. } => {
                self.head(shared, key, seq, INLINE | UPDATE);
                varint::put_bytes(&mut self.buf, update);
            }
            BodyRef::Delete => self.head(shared, key, seq, DELETE),
            BodyRef::DeleteRange { end } => {
                self.head(shared, key, seq, DELETE_RANGE);
                varint::put_u64(&mut self.buf, end.len() as u64);
                self.buf.extend_from_slice(end);
            }
        }
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&key[shared..]);
    }

    /// Writes an item whose value is an extent. If the extent follows the previous item's extent,
    /// the address and the length are omitted.
    #[inline]
    fn put_extent(&mut self, shared: usize, key: &[u8], seq: Seq, e: ExtentRef) {
        let packed = e.codec != Compression::None;
        let follows = self.last_extent.is_some_and(|last| {
            e.len == last.len
                && Some(e.addr) == e.behind(last.end())
                && (!packed || e.codec == last.codec)
        });
        let kind = match (packed, follows) {
            (false, false) => EXTENT,
            (false, true) => FOLLOWS,
            (true, false) => PACKED,
            (true, true) => PACKED_FOLLOWS,
        };
        self.head(shared, key, seq, kind);
        if !follows {
            varint::put_u64(&mut self.buf, e.addr);
            varint::put_u64(&mut self.buf, u64::from(e.len));
        }
        if packed && !follows {
            self.buf.push(e.codec.code());
        }
        if packed {
            varint::put_u64(&mut self.buf, u64::from(e.stored));
        }
        self.buf.extend_from_slice(&e.crc.to_le_bytes());
        self.last_extent = Some(e);
    }

    /// Returns the payload, in a buffer that the next block reuses, and whether the block consists
    /// almost entirely of long extent runs. See [`crate::index::entry::Entry::unfiltered`]. Call
    /// [`Self::clear`] before the next block.
    pub fn finish(&mut self) -> (&[u8], bool) {
        self.close_extent_run();
        for r in &self.restarts {
            self.buf.extend_from_slice(&r.to_le_bytes());
        }
        let count =
            self.restarts.len() as u32 | if self.has_extent_runs { HAS_EXTENT_RUNS } else { 0 };
        self.buf.extend_from_slice(&count.to_le_bytes());
        (&self.buf, self.has_extent_runs && self.units * (PART / 2) <= self.items)
    }

    /// Empties the builder for the next block.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.restarts.clear();
        self.last_key.clear();
        (self.last_extent, self.open) = (None, None);
        (self.in_interval, self.units, self.items) = (0, 0, 0);
        (self.ends_interval, self.has_extent_runs) = (false, false);
    }
}
