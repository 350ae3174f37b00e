//! Index entries have everything that a merge must know about a block or a subtree without reading
//! it.
//!
//! The encoding inside a node is: `low`, relative to `low` of the previous entry (varint number of
//! shared bytes, varint number of further bytes, bytes); `high`, relative to `low` in the same way;
//! address, length (varints); crc u32; flags u8; items, newest sequence, block bytes, block spans,
//! value bytes, value spans (varints); for a leaf index node the address, length (varints) and crc
//! u32 of the filter; the zones of the subtree (varint length, `ZoneUse` encoding).

use bytes::Bytes;
use zones::{ZoneUse, varint};

use crate::index::frame::FramePointer;
use crate::item::Seq;
use crate::key::shared_prefix;
use crate::{Error, Result};

const TOMBSTONES: u8 = 1;
const RANGE_TOMBSTONES: u8 = 2;
const UNFILTERED: u8 = 4;
const COMPRESSED: u8 = 8;

/// The largest sum that is accepted. Sums over a tree stay far below this number. Larger sums are
/// damage and would overflow later additions.
pub const MAX_SUM: u64 = u64::MAX >> 8;

/// A pointer to a tuple block (level 0) or to an index node (level 1 and up), with its fences and
/// its sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The first key that the entry covers.
    pub low: Bytes,
    /// An upper bound. Every key that the entry covers is below it.
    pub high: Bytes,
    pub at: FramePointer,
    /// The quotient filter of the tuples in the subtree. Only entries of leaf index nodes (level 1)
    /// have a filter.
    pub filter: Option<FramePointer>,
    pub tombstones: bool,
    pub range_tombstones: bool,
    /// `true` if the keys of the tuple block are in no filter. This is so if the block consists
    /// almost entirely of long extent runs, in which keys are found by arithmetic, or if no filter
    /// was requested. For a node, `true` if its subtree has such blocks.
    pub unfiltered: bool,
    /// `true` if the tuple block is compressed.
    pub compressed: bool,
    /// Items beneath.
    pub items: u64,
    /// The newest sequence number beneath; 0 if all are old.
    pub max_seq: Seq,
    /// Bytes of tuple blocks beneath.
    pub block_bytes: u64,
    /// Contiguous spans of tuple blocks on the device: the seeks of a scan.
    pub block_spans: u64,
    /// Bytes of large values beneath.
    pub value_bytes: u64,
    /// Contiguous spans of large values, each as met in the order of keys.
    pub value_spans: u64,
    /// All bytes beneath, and of the block or node itself, by zone (`ZoneUse` encoding).
    pub zones: Bytes,
}

#[cfg(test)]
impl Entry {
    /// Returns the entry of a block with one item, for tests of nodes.
    pub(crate) fn of_one_item(low: Bytes, high: Bytes, at: FramePointer) -> Entry {
        Entry {
            low,
            high,
            at,
            filter: None,
            tombstones: false,
            range_tombstones: false,
            unfiltered: false,
            compressed: false,
            items: 1,
            max_seq: 0,
            block_bytes: 4096,
            block_spans: 1,
            value_bytes: 0,
            value_spans: 0,
            zones: Bytes::from_static(&[0]),
        }
    }
}

impl Entry {
    /// Returns the bytes of data beneath.
    pub fn data_bytes(&self) -> u64 {
        self.block_bytes + self.value_bytes
    }

    pub fn zone_use(&self) -> Result<ZoneUse> {
        let mut rest = &self.zones[..];
        let corrupt = |what: &str| Error::Corrupt {
            what: format!("index entry: {what}"),
            addr: self.at.addr,
        };
        let uses = ZoneUse::decode(&mut rest).map_err(|_| corrupt("zones do not decode"))?;
        if uses.total_bytes() > MAX_SUM {
            return Err(corrupt("impossible number of bytes in its zones"));
        }
        Ok(uses)
    }

    pub fn encode(&self, before: &[u8], out: &mut Vec<u8>) {
        put_key(out, before, &self.low);
        put_key(out, &self.low, &self.high);
        put_pointer(out, &self.at);
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let tombstones =
            flag(self.tombstones, TOMBSTONES) | flag(self.range_tombstones, RANGE_TOMBSTONES);
        out.push(
            tombstones | flag(self.unfiltered, UNFILTERED) | flag(self.compressed, COMPRESSED),
        );
        for v in [
            self.items,
            self.max_seq,
            self.block_bytes,
            self.block_spans,
            self.value_bytes,
            self.value_spans,
        ] {
            varint::put_u64(out, v);
        }
        match &self.filter {
            Some(f) => put_pointer(out, f),
            None => put_pointer(out, &FramePointer::default()),
        }
        varint::put_u64(out, self.zones.len() as u64);
        out.extend_from_slice(&self.zones);
    }

    /// Decodes one entry from `data[*at..]`; `before` is the `low` of the entry before it.
    pub fn decode(data: &Bytes, at: &mut usize, before: &[u8]) -> Option<Entry> {
        let low = get_key(data, at, before)?;
        let high = get_key(data, at, &low)?;
        let target = get_pointer(data, at)?;
        let flags = *data.get(*at)?;
        *at += 1;
        let mut sums = [0u64; 6];
        for s in &mut sums {
            *s = get_varint(data, at)?;
        }
        let filter = Some(get_pointer(data, at)?).filter(|f| f.len > 0);
        let len = usize::try_from(get_varint(data, at)?).ok()?;
        let end = at.checked_add(len).filter(|&e| e <= data.len())?;
        let zones = data.slice(*at..end);
        *at = end;
        let [items, max_seq, block_bytes, block_spans, value_bytes, value_spans] = sums;
        // A span of blocks has at least a frame.
        if low >= high || sums[3] > sums[2] || sums.iter().any(|&s| s > MAX_SUM) {
            return None;
        }
        Some(Entry {
            low,
            high,
            at: target,
            filter,
            tombstones: flags & TOMBSTONES != 0,
            range_tombstones: flags & RANGE_TOMBSTONES != 0,
            unfiltered: flags & UNFILTERED != 0,
            compressed: flags & COMPRESSED != 0,
            items,
            max_seq,
            block_bytes,
            block_spans,
            value_bytes,
            value_spans,
            zones,
        })
    }
}

fn put_key(out: &mut Vec<u8>, before: &[u8], key: &[u8]) {
    let shared = shared_prefix(before, key);
    varint::put_u64(out, shared as u64);
    varint::put_u64(out, (key.len() - shared) as u64);
    out.extend_from_slice(&key[shared..]);
}

fn get_varint(data: &Bytes, at: &mut usize) -> Option<u64> {
    let mut rest = data.get(*at..)?;
    let before = rest.len();
    let v = varint::get_u64(&mut rest).ok()?;
    *at += before - rest.len();
    Some(v)
}

fn get_key(data: &Bytes, at: &mut usize, before: &[u8]) -> Option<Bytes> {
    let shared = usize::try_from(get_varint(data, at)?).ok().filter(|&s| s <= before.len())?;
    let further = usize::try_from(get_varint(data, at)?).ok()?;
    let end = at.checked_add(further).filter(|&e| e <= data.len())?;
    let key = if shared == 0 {
        data.slice(*at..end)
    } else {
        Bytes::from([&before[..shared], &data[*at..end]].concat())
    };
    *at = end;
    Some(key)
}

fn put_pointer(out: &mut Vec<u8>, p: &FramePointer) {
    varint::put_u64(out, p.addr);
    varint::put_u64(out, u64::from(p.len));
    out.extend_from_slice(&p.crc.to_le_bytes());
}

fn get_pointer(data: &Bytes, at: &mut usize) -> Option<FramePointer> {
    let addr = get_varint(data, at)?;
    let len = u32::try_from(get_varint(data, at)?).ok()?;
    let crc = u32::from_le_bytes(data.get(*at..*at + 4)?.try_into().ok()?);
    *at += 4;
    (addr <= u64::MAX / 2).then_some(FramePointer { addr, len, crc })
}
