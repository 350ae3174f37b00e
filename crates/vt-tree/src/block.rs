//! Tuple blocks: sorted items, prefix-compressed, with restart points.
//!
//! Payload: the items; then the offset (u32) of each restart point; then their number (u32; its highest bit says that there are series).
//! An item: shared key bytes (varint, 0 at a restart point) · further key bytes (varint) · kind and flags (u8) · the further key bytes ·
//! sequence number (varint, when flagged; absent means 0, "old") · body. A body is: inline value (varint length, bytes); extent
//! (varint address, varint length, crc u32); an extent that follows the previous one (crc u32: it has the same length and lies
//! directly behind it); nothing (delete); the end of a deleted range (varint length, bytes); a series (see there), which stands alone
//! between two restart points.
//!
//! Readers see *groups*: the items between two restart points, or a part of a series.

use bytes::Bytes;
use zones::varint;

use crate::group::{Group, Place};
use crate::item::{Body, BodyRef, ExtentRef, Item, Seq, Value, ValueRef};
use crate::series::{Open, Series};
use crate::{Error, Result};

/// Items between restart points.
const GROUP: usize = 16;
/// Items of a series that are decoded at once.
const PART: usize = 64;

const KIND: u8 = 0x07;
const HAS_SEQ: u8 = 0x08;
/// Of a series: each item's sequence number is one more than that of the item before.
const ASCENDS: u8 = 0x10;
const INLINE: u8 = 0;
const EXTENT: u8 = 1;
const FOLLOWS: u8 = 2;
const DELETE: u8 = 3;
const DELETE_RANGE: u8 = 4;
const SERIES: u8 = 5;

/// In the number of restart points.
const HAS_SERIES: u32 = 1 << 31;

/// Values whose length is a multiple of a page are page-aligned; others lie on this boundary.
const SMALL_ALIGN: u64 = 512;

/// The alignment of a large value of `len` bytes.
pub fn extent_align(len: usize) -> u32 {
    if len.is_multiple_of(zones::SECTOR as usize) { zones::SECTOR as u32 } else { SMALL_ALIGN as u32 }
}

/// Where the next extent of `len` bytes lies when it follows one that ends at `end`.
fn following(end: u64, len: u32) -> u64 {
    end.next_multiple_of(u64::from(extent_align(len as usize)))
}

/// `true` when reading `b` directly after `a` needs no seek: it begins where `a` ends, alignment aside.
pub fn contiguous(a: &ExtentRef, b: &ExtentRef) -> bool {
    let end = a.addr.saturating_add(u64::from(a.len));
    b.addr >= end && b.addr - end < zones::SECTOR
}

/// Collects items in order and encodes them.
#[derive(Default)]
pub struct BlockBuilder {
    buf: Vec<u8>,
    restarts: Vec<u32>,
    last_key: Vec<u8>,
    last_extent: Option<ExtentRef>,
    /// Items behind the last restart point.
    in_group: usize,
    /// The next item begins at a restart point, however short the group is.
    ends_group: bool,
    /// The latest items, while they may be a series.
    open: Option<Open>,
    /// Series, and items outside of any.
    units: usize,
    items: usize,
    has_series: bool,
}

impl BlockBuilder {
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Size of the payload so far, bytes; an upper bound.
    pub fn size(&self) -> usize {
        self.buf.len() + 4 * self.restarts.len() + 4 + self.open.as_ref().map_or(0, Open::size)
    }

    pub fn add(&mut self, key: &[u8], seq: Seq, body: BodyRef<'_>) {
        self.items += 1;
        if let BodyRef::Put(ValueRef::Extent(e)) = body {
            if self.open.as_mut().is_some_and(|open| open.push(key, seq, &e)) {
                return;
            }
            self.close_series();
            self.open = Open::begin(key, seq, &e);
            if self.open.is_some() {
                return;
            }
        } else if self.open.is_some() {
            self.close_series();
        }
        self.add_one(key, seq, body);
    }

    /// Writes what is in the making, as a series or item by item.
    fn close_series(&mut self) {
        let Some(open) = self.open.take() else { return };
        if !open.is_series() {
            return open.each(|key, seq, e| self.add_one(key, seq, BodyRef::Put(ValueRef::Extent(e))));
        }
        self.restarts.push(self.buf.len() as u32);
        self.head(0, open.first_key(), open.seq(), SERIES | if open.ascends() { ASCENDS } else { 0 });
        open.encode(&mut self.buf);
        self.has_series = true;
        self.ends_group = true;
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
        debug_assert!(self.units == 0 || self.ends_group || key > self.last_key.as_slice(), "items come in order");
        let restart = self.units == 0 || self.ends_group || self.in_group == GROUP;
        if restart {
            self.restarts.push(self.buf.len() as u32);
            self.last_extent = None;
            self.in_group = 0;
            self.ends_group = false;
        }
        self.in_group += 1;
        self.units += 1;
        let shared = if restart { 0 } else { shared_prefix(&self.last_key, key) };
        match body {
            BodyRef::Put(ValueRef::Inline(v, _)) => {
                self.head(shared, key, seq, INLINE);
                varint::put_u64(&mut self.buf, v.len() as u64);
                self.buf.extend_from_slice(v);
            }
            BodyRef::Put(ValueRef::Extent(e)) => {
                let follows = self
                    .last_extent
                    .is_some_and(|last| e.len == last.len && e.addr == following(last.addr + u64::from(last.len), e.len));
                self.head(shared, key, seq, if follows { FOLLOWS } else { EXTENT });
                if !follows {
                    varint::put_u64(&mut self.buf, e.addr);
                    varint::put_u64(&mut self.buf, u64::from(e.len));
                }
                self.buf.extend_from_slice(&e.crc.to_le_bytes());
                self.last_extent = Some(e);
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

    /// The payload, in a buffer that the next block uses again; and whether nearly all of it is long series, see
    /// [`crate::entry::Entry::unfiltered`]. Call [`Self::clear`] behind it.
    pub fn finish(&mut self) -> (&[u8], bool) {
        self.close_series();
        for r in &self.restarts {
            self.buf.extend_from_slice(&r.to_le_bytes());
        }
        let count = self.restarts.len() as u32 | if self.has_series { HAS_SERIES } else { 0 };
        self.buf.extend_from_slice(&count.to_le_bytes());
        (&self.buf, self.has_series && self.units * (PART / 2) <= self.items)
    }

    /// Empties it for the next block.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.restarts.clear();
        self.last_key.clear();
        (self.last_extent, self.open) = (None, None);
        (self.in_group, self.units, self.items) = (0, 0, 0);
        (self.ends_group, self.has_series) = (false, false);
    }
}

/// The first eight bytes as a number that sorts as they do; missing ones count as zeros.
pub(crate) fn head_of(bytes: &[u8]) -> u64 {
    let mut head = [0; 8];
    let n = bytes.len().min(8);
    head[..n].copy_from_slice(&bytes[..n]);
    u64::from_be_bytes(head)
}

fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    let mut n = 0;
    // Eight bytes at a time as long as they are the same.
    while let (Some(x), Some(y)) = (a.get(n..n + 8), b.get(n..n + 8)) {
        let word = |s: &[u8]| s.try_into().map_or(0, u64::from_le_bytes);
        let differ = word(x) ^ word(y);
        if differ != 0 {
            return n + differ.trailing_zeros() as usize / 8;
        }
        n += 8;
    }
    n + a[n..].iter().zip(&b[n..]).take_while(|(x, y)| x == y).count()
}

/// A decoded view of one tuple block. Decoding is lazy: a group (the items between two restart points) at a time.
#[derive(Clone, Debug)]
pub struct Block {
    data: Bytes,
    /// End of the items, start of the restart offsets.
    items_end: usize,
    restarts: usize,
    has_series: bool,
    /// Where there are series: the groups.
    parts: Option<Box<[Part]>>,
    addr: u64,
    /// Bytes that all keys at restart points share, and the eight behind these of each, as a number that sorts as they do: a search
    /// reads these and no key but one.
    shared: usize,
    heads: Box<[u64]>,
}

/// A group of a block with series: what lies behind a restart point, of a series the items from `from` on.
#[derive(Clone, Copy, Debug)]
struct Part {
    restart: u32,
    from: u32,
}

/// What lies behind a restart point.
enum Stretch<'a> {
    Items(Decoder<'a>, usize),
    Series(Series<'a>),
}

impl Block {
    /// `addr` names the block in errors.
    pub fn parse(data: Bytes, addr: u64) -> Result<Block> {
        let corrupt = || Error::Corrupt { what: "tuple block: restart points do not fit".into(), addr };
        let tail = data.len().checked_sub(4).ok_or_else(corrupt)?;
        let count = u32::from_le_bytes([data[tail], data[tail + 1], data[tail + 2], data[tail + 3]]);
        let restarts = (count & !HAS_SERIES) as usize;
        let items_end = restarts.checked_mul(4).and_then(|n| tail.checked_sub(n)).ok_or_else(corrupt)?;
        let has_series = count & HAS_SERIES != 0;
        let mut block = Block { data, items_end, restarts, has_series, parts: None, addr, shared: 0, heads: Box::default() };
        let mut last = None;
        for r in 0..restarts {
            let offset = block.restart(r);
            if offset >= items_end || last.is_some_and(|l| l >= offset) || (r == 0 && offset != 0) {
                return Err(corrupt());
            }
            last = Some(offset);
        }
        if restarts == 0 && items_end != 0 {
            return Err(corrupt());
        }
        if restarts > 0 {
            block.shared = shared_prefix(block.restart_key(0)?, block.restart_key(restarts - 1)?);
            let head = |r| Ok(head_of(block.restart_key(r)?.get(block.shared..).unwrap_or_default()));
            block.heads = (0..restarts).map(head).collect::<Result<_>>()?;
        }
        if has_series {
            let mut parts = Vec::new();
            for r in 0..restarts {
                // A series is as long as its checksums in the block, so there are few parts.
                let len = if let Stretch::Series(s) = block.stretch(r)? { s.len() } else { 1 };
                parts.extend((0..len).step_by(PART).map(|from| Part { restart: r as u32, from: from as u32 }));
            }
            block.parts = Some(parts.into());
        }
        Ok(block)
    }

    /// Memory that it takes, bytes.
    pub fn weight(&self) -> usize {
        self.data.len() + 8 * self.restarts + size_of::<Self>() + self.parts.as_ref().map_or(0, |p| p.len() * size_of::<Part>())
    }

    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.parts.as_ref().map_or(self.restarts, |p| p.len())
    }

    /// Offset of a restart point.
    fn restart(&self, r: usize) -> usize {
        let at = self.items_end + 4 * r;
        u32::from_le_bytes([self.data[at], self.data[at + 1], self.data[at + 2], self.data[at + 3]]) as usize
    }

    /// Decodes from a restart point on, up to the next.
    fn decoder(&self, r: usize) -> (Decoder<'_>, usize) {
        let end = if r + 1 < self.restarts { self.restart(r + 1) } else { self.items_end };
        (Decoder { data: &self.data[..end], at: self.restart(r), extent: None }, end)
    }

    fn stretch(&self, r: usize) -> Result<Stretch<'_>> {
        let (d, end) = self.decoder(r);
        if !self.has_series {
            return Ok(Stretch::Items(d, end));
        }
        let mut at_body = Decoder { ..d };
        let head = at_body.head(0).ok_or_else(|| self.corrupt())?;
        if head.kind != SERIES {
            return Ok(Stretch::Items(d, end));
        }
        let key = &self.data[head.suffix.0..head.suffix.1];
        let series = Series::decode(key, head.seq, head.ascends, &self.data[at_body.at..end]);
        series.map(Stretch::Series).ok_or_else(|| self.corrupt())
    }

    fn corrupt(&self) -> Error {
        Error::Corrupt { what: "tuple block: an item does not decode".into(), addr: self.addr }
    }

    /// The key at a restart point.
    fn restart_key(&self, r: usize) -> Result<&[u8]> {
        let (mut d, _) = self.decoder(r);
        let head = d.head(0).ok_or_else(|| self.corrupt())?;
        Ok(&self.data[head.suffix.0..head.suffix.1])
    }

    /// The last restart point with a key of at most `key`; 0 when none has.
    fn restart_of(&self, key: &[u8]) -> Result<usize> {
        if self.restarts == 0 {
            return Ok(0);
        }
        let n = self.shared.min(key.len());
        let (mut lo, mut hi) = match key[..n].cmp(&self.restart_key(0)?[..n]) {
            std::cmp::Ordering::Less => (0, 0),
            std::cmp::Ordering::Greater => (self.restarts, self.restarts),
            // The key is itself a part of what all share.
            std::cmp::Ordering::Equal if n < self.shared => (0, 0),
            std::cmp::Ordering::Equal => {
                let head = head_of(&key[n..]);
                let first = self.heads.partition_point(|&h| h < head);
                (first, first + self.heads[first..].partition_point(|&h| h == head))
            }
        };
        // Equal heads are decided by whole keys.
        while lo < hi {
            let mid = (lo + hi) / 2;
            if self.restart_key(mid)? <= key { lo = mid + 1 } else { hi = mid }
        }
        Ok(lo.saturating_sub(1))
    }

    /// The last group whose first key is at most `key`; 0 when none is.
    pub fn group_of(&self, key: &[u8]) -> Result<usize> {
        let r = self.restart_of(key)?;
        let Some(parts) = self.parts.as_deref() else { return Ok(r) };
        let (mut lo, mut hi) =
            (parts.partition_point(|p| (p.restart as usize) < r), parts.partition_point(|p| p.restart as usize <= r));
        let Some(Stretch::Series(series)) = (lo + 1 < hi).then(|| self.stretch(r)).transpose()? else { return Ok(lo) };
        let mut first = Vec::new();
        while lo + 1 < hi {
            let mid = (lo + hi) / 2;
            series.key(parts[mid].from as usize, &mut first);
            if first.as_slice() <= key { lo = mid } else { hi = mid }
        }
        Ok(lo)
    }

    /// All items of a group.
    pub fn group(&self, group: usize) -> Result<Vec<Item>> {
        let mut decoded = Group::default();
        self.group_into(group, &mut decoded)?;
        Ok((0..decoded.len()).filter_map(|i| decoded.item(i)).map(|i| i.to_item()).collect())
    }

    /// All items of a group, into memory that was used before: nothing is allocated, and each key is put together once.
    pub(crate) fn group_into(&self, group: usize, out: &mut Group) -> Result<()> {
        out.begin(&self.data);
        let part = match self.parts.as_deref() {
            None if group < self.restarts => Part { restart: group as u32, from: 0 },
            Some(parts) if group < parts.len() => parts[group],
            _ => return Ok(()),
        };
        match self.stretch(part.restart as usize) {
            Err(e) => {
                out.clear();
                return Err(e);
            }
            Ok(Stretch::Items(mut d, end)) => {
                while d.at < end {
                    let item = d.head(out.last_key_len()).and_then(|head| Some((d.place(head.kind)?, head)));
                    let Some((place, head)) = item else {
                        out.clear();
                        return Err(self.corrupt());
                    };
                    out.push(head.shared, &self.data[head.suffix.0..head.suffix.1], head.seq, place);
                }
            }
            Ok(Stretch::Series(series)) => {
                let from = part.from as usize;
                let mut key = Vec::new();
                for i in from..series.len().min(from + PART) {
                    series.key(i, &mut key);
                    let shared = if i == from { 0 } else { key.len() - series.width() };
                    let (seq, e) = series.item(i);
                    out.push(shared, &key[shared..], seq, Place::Extent(e));
                }
            }
        }
        Ok(())
    }

    /// The item that covers `key`, if any.
    pub fn find(&self, key: &[u8]) -> Result<Option<(Seq, Body)>> {
        if self.restarts == 0 {
            return Ok(None);
        }
        let (mut d, end) = match self.stretch(self.restart_of(key)?)? {
            Stretch::Items(d, end) => (d, end),
            Stretch::Series(series) => {
                return Ok(series.find(key).map(|i| {
                    let (seq, e) = series.item(i);
                    (seq, Body::Put(Value::Extent(e)))
                }));
            }
        };
        // The key before, its length, and how much of it is as `key` begins: where that ends it is the smaller one.
        let (mut len, mut common) = (0, 0);
        let mut before: Option<(Seq, Place)> = None;
        while d.at < end {
            let head = d.head(len).ok_or_else(|| self.corrupt())?;
            let suffix = &self.data[head.suffix.0..head.suffix.1];
            len = head.shared + suffix.len();
            if head.shared < common {
                // It differs earlier than the one before, and ascends there.
                break;
            }
            let mut order = std::cmp::Ordering::Less;
            if head.shared == common {
                common += shared_prefix(suffix, &key[common..]);
                order = suffix[common - head.shared..].cmp(&key[common..]);
            }
            if order == std::cmp::Ordering::Greater {
                break;
            }
            let place = d.place(head.kind).ok_or_else(|| self.corrupt())?;
            if order == std::cmp::Ordering::Equal {
                return Ok(Some((head.seq, place.body(&self.data).to_body())));
            }
            before = Some((head.seq, place));
        }
        let range = before.map(|(seq, place)| (seq, place.body(&self.data)));
        Ok(range.filter(|(_, b)| matches!(b, BodyRef::DeleteRange { end } if key < *end)).map(|(seq, b)| (seq, b.to_body())))
    }
}

/// What precedes an item's body.
struct Head {
    shared: usize,
    suffix: (usize, usize),
    kind: u8,
    ascends: bool,
    seq: Seq,
}

struct Decoder<'a> {
    data: &'a [u8],
    at: usize,
    extent: Option<ExtentRef>,
}

impl Decoder<'_> {
    #[inline]
    fn varint(&mut self) -> Option<u64> {
        // Nearly all are below 128.
        let first = *self.data.get(self.at)?;
        if first < 0x80 {
            self.at += 1;
            return Some(u64::from(first));
        }
        let mut rest = self.data.get(self.at..)?;
        let before = rest.len();
        let v = varint::get_u64(&mut rest).ok()?;
        self.at += before - rest.len();
        Some(v)
    }

    fn take(&mut self, len: usize) -> Option<(usize, usize)> {
        let end = self.at.checked_add(len).filter(|&e| e <= self.data.len())?;
        let start = self.at;
        self.at = end;
        Some((start, end))
    }

    fn head(&mut self, key_len: usize) -> Option<Head> {
        let shared = usize::try_from(self.varint()?).ok().filter(|&s| s <= key_len)?;
        let unshared = usize::try_from(self.varint()?).ok()?;
        let flags = self.data.get(self.at).copied()?;
        self.at += 1;
        let suffix = self.take(unshared)?;
        let seq = if flags & HAS_SEQ != 0 { self.varint()? } else { 0 };
        Some(Head { shared, suffix, kind: flags & KIND, ascends: flags & ASCENDS != 0, seq })
    }

    fn bytes(&mut self) -> Option<(u32, u32)> {
        let len = usize::try_from(self.varint()?).ok()?;
        let (s, e) = self.take(len)?;
        // A block is shorter than a zone.
        Some((s as u32, e as u32))
    }

    fn crc(&mut self) -> Option<u32> {
        let (s, e) = self.take(4)?;
        Some(u32::from_le_bytes(self.data[s..e].try_into().ok()?))
    }

    #[inline]
    fn place(&mut self, kind: u8) -> Option<Place> {
        Some(match kind {
            INLINE => {
                let (s, e) = self.bytes()?;
                Place::Inline(s, e)
            }
            EXTENT | FOLLOWS => {
                let (addr, len) = if kind == EXTENT {
                    (self.varint()?, u32::try_from(self.varint()?).ok()?)
                } else {
                    let last = self.extent?;
                    (following(last.addr.checked_add(u64::from(last.len))?, last.len), last.len)
                };
                // Keeps every later sum of address and length inside u64.
                if addr > u64::MAX / 2 {
                    return None;
                }
                let e = ExtentRef { addr, len, crc: self.crc()? };
                self.extent = Some(e);
                Place::Extent(e)
            }
            DELETE => Place::Delete,
            DELETE_RANGE => {
                let (s, e) = self.bytes()?;
                Place::DeleteRange(s, e)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Item> {
        (0..200u64)
            .map(|i| {
                let key = Bytes::from(format!("key/{:06}", i * 10));
                let body = match i % 5 {
                    0 => Body::Put(Value::Inline(Bytes::from(vec![i as u8; i as usize % 40]))),
                    1 | 2 => Body::Put(Value::Extent(ExtentRef { addr: 4096 * i, len: 4096, crc: i as u32 })),
                    3 => Body::Delete,
                    _ => Body::DeleteRange { end: Bytes::from(format!("key/{:06}", i * 10 + 5)) },
                };
                Item { key, seq: if i % 3 == 0 { 0 } else { 1000 + i }, body }
            })
            .collect()
    }

    fn build(items: &[Item]) -> Block {
        let mut b = BlockBuilder::default();
        for i in items {
            b.add(&i.key, i.seq, i.borrow().body);
        }
        Block::parse(Bytes::copy_from_slice(b.finish().0), 0).unwrap()
    }

    #[test]
    fn items_come_back_as_they_went_in() {
        let items = sample();
        let block = build(&items);
        let back: Vec<Item> = (0..block.groups()).flat_map(|g| block.group(g).unwrap()).collect();
        assert_eq!(back, items);
    }

    #[test]
    fn find_sees_points_and_ranges() {
        let items = sample();
        let block = build(&items);
        for i in &items {
            assert_eq!(block.find(&i.key).unwrap(), Some((i.seq, i.body.clone())));
        }
        assert!(matches!(block.find(b"key/000043").unwrap(), Some((_, Body::DeleteRange { .. }))));
        assert_eq!(block.find(b"key/000045").unwrap(), None);
        assert_eq!(block.find(b"a").unwrap(), None);
        assert_eq!(block.find(b"z").unwrap(), None);
    }

    fn page(file: u64, i: u64, addr: u64, seq: Seq) -> Item {
        let key = [file.to_be_bytes(), i.to_be_bytes()].concat();
        Item { key: key.into(), seq, body: Body::Put(Value::Extent(ExtentRef { addr, len: 4096, crc: i as u32 * 7 })) }
    }

    #[test]
    fn consecutive_pages_cost_their_checksum() {
        let mut b = BlockBuilder::default();
        for i in 0..1000u64 {
            let page = page(7, i, (100 + i) * 4096, 0);
            b.add(&page.key, 0, page.borrow().body);
        }
        assert!(b.size() < 4100);
        let (bytes, series) = b.finish();
        assert!(series && bytes.len() < 4050, "{} bytes", bytes.len());
    }

    #[test]
    fn series_and_what_lies_between_come_back_and_are_found() {
        let mut items = Vec::new();
        // Ascending sequence numbers, a hole, a jump of the address, a jump of the sequence number; then other kinds, in between.
        items.extend((0..200).map(|i| page(1, i, (1000 + i) * 4096, 50 + i)));
        items.extend((300..400).map(|i| page(1, i, (1000 + i) * 4096, 0)));
        items.extend((400..470).map(|i| page(1, i, (5000 + i) * 4096, 9)));
        items.push(Item { key: items[items.len() - 1].key.slice(..8), seq: 3, body: Body::Delete });
        items.last_mut().unwrap().key = Bytes::from([&2u64.to_be_bytes()[..], b"x"].concat());
        items.extend((0..3).map(|i| page(3, i, (9000 + i) * 4096, 0)));
        items.extend((10..30).map(|i| page(3, 2 * i, (9100 + i) * 4096, 70)));
        let decimal = |i: u64, addr: u64| {
            let body = Body::Put(Value::Extent(ExtentRef { addr, len: 1000, crc: i as u32 }));
            Item { key: Bytes::from(format!("line {i:05}")), seq: 0, body }
        };
        items.extend((95..200).map(|i| decimal(i, i * 1024)));
        items.extend((200..300).map(|i| Item { key: Bytes::from(format!("n{i:03x}")), ..decimal(i, i * 1024) }));
        let block = build(&items);
        assert!(block.groups() > 8);
        let back: Vec<Item> = (0..block.groups()).flat_map(|g| block.group(g).unwrap()).collect();
        assert_eq!(back.len(), items.len());
        assert_eq!(back, items);
        for (i, item) in items.iter().enumerate() {
            assert_eq!(block.find(&item.key).unwrap(), Some((item.seq, item.body.clone())));
            let g = block.group_of(&item.key).unwrap();
            assert!(block.group(g).unwrap().contains(item), "item {i} is in its group");
        }
        for missing in [page(1, 250, 0, 0), page(1, 470, 0, 0), page(3, 21, 0, 0), page(0, 0, 0, 0), page(9, 0, 0, 0)] {
            assert_eq!(block.find(&missing.key).unwrap(), None);
            assert!(block.group_of(&missing.key).unwrap() < block.groups());
        }
        assert_eq!(block.find(b"line 0009").unwrap(), None);
        assert_eq!(block.find(b"line 000950").unwrap(), None);
    }
}
