//! Tuple blocks: sorted items, prefix-compressed, with restart points.
//!
//! Payload: the items; then the offset (u32) of each restart point; then their number (u32). An item: shared key bytes (varint, 0 at a
//! restart point) · further key bytes (varint) · kind and flags (u8) · the further key bytes · sequence number (varint, when
//! flagged; absent means 0, "old") · body. A body is: inline value (varint length, bytes); extent (varint address, varint
//! length, crc u32); an extent that follows the previous one (crc u32: it has the same length and lies directly behind it, so that
//! consecutive pages cost little more than their checksum); nothing (delete); the end of a deleted range (varint length, bytes).

use bytes::Bytes;
use zones::varint;

use crate::group::{Group, Place};
use crate::item::{Body, BodyRef, ExtentRef, Item, Seq, Value};
use crate::{Error, Result};

/// Items between restart points.
const GROUP: usize = 16;

const KIND: u8 = 0x07;
const HAS_SEQ: u8 = 0x08;
const INLINE: u8 = 0;
const EXTENT: u8 = 1;
const FOLLOWS: u8 = 2;
const DELETE: u8 = 3;
const DELETE_RANGE: u8 = 4;

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
    count: usize,
}

impl BlockBuilder {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Size of the payload so far, bytes.
    pub fn size(&self) -> usize {
        self.buf.len() + 4 * self.restarts.len() + 4
    }

    pub fn add(&mut self, key: &[u8], seq: Seq, body: &Body) {
        debug_assert!(self.is_empty() || key > self.last_key.as_slice(), "items come in order");
        let restart = self.count.is_multiple_of(GROUP);
        if restart {
            self.restarts.push(self.buf.len() as u32);
            self.last_extent = None;
        }
        let shared = if restart { 0 } else { shared_prefix(&self.last_key, key) };
        let follows = match (body, &self.last_extent) {
            (Body::Put(Value::Extent(e)), Some(last)) => {
                e.len == last.len && e.addr == following(last.addr + u64::from(last.len), e.len)
            }
            _ => false,
        };
        let kind = match body {
            Body::Put(Value::Inline(_)) => INLINE,
            Body::Put(Value::Extent(_)) if follows => FOLLOWS,
            Body::Put(Value::Extent(_)) => EXTENT,
            Body::Delete => DELETE,
            Body::DeleteRange { .. } => DELETE_RANGE,
        };
        varint::put_u64(&mut self.buf, shared as u64);
        varint::put_u64(&mut self.buf, (key.len() - shared) as u64);
        self.buf.push(kind | if seq > 0 { HAS_SEQ } else { 0 });
        self.buf.extend_from_slice(&key[shared..]);
        if seq > 0 {
            varint::put_u64(&mut self.buf, seq);
        }
        match body {
            Body::Put(Value::Inline(v)) => {
                varint::put_u64(&mut self.buf, v.len() as u64);
                self.buf.extend_from_slice(v);
            }
            Body::Put(Value::Extent(e)) => {
                if !follows {
                    varint::put_u64(&mut self.buf, e.addr);
                    varint::put_u64(&mut self.buf, u64::from(e.len));
                }
                self.buf.extend_from_slice(&e.crc.to_le_bytes());
                self.last_extent = Some(*e);
            }
            Body::Delete => {}
            Body::DeleteRange { end } => {
                varint::put_u64(&mut self.buf, end.len() as u64);
                self.buf.extend_from_slice(end);
            }
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.count += 1;
    }

    /// The payload; the builder is empty again.
    pub fn finish(&mut self) -> Vec<u8> {
        let mut out = std::mem::take(&mut self.buf);
        for r in &self.restarts {
            out.extend_from_slice(&r.to_le_bytes());
        }
        out.extend_from_slice(&(self.restarts.len() as u32).to_le_bytes());
        *self = BlockBuilder::default();
        out
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
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// A decoded view of one tuple block. Decoding is lazy: a group (the items between two restart points) at a time.
#[derive(Clone, Debug)]
pub struct Block {
    data: Bytes,
    /// End of the items, start of the restart offsets.
    items_end: usize,
    groups: usize,
    addr: u64,
    /// Bytes that all keys at restart points share, and the eight behind these of each, as a number that sorts as they do: a search
    /// reads these and no key but one.
    shared: usize,
    heads: Box<[u64]>,
}

impl Block {
    /// `addr` names the block in errors.
    pub fn parse(data: Bytes, addr: u64) -> Result<Block> {
        let corrupt = || Error::Corrupt { what: "tuple block: restart points do not fit".into(), addr };
        let tail = data.len().checked_sub(4).ok_or_else(corrupt)?;
        let groups = u32::from_le_bytes([data[tail], data[tail + 1], data[tail + 2], data[tail + 3]]) as usize;
        let items_end = groups.checked_mul(4).and_then(|n| tail.checked_sub(n)).ok_or_else(corrupt)?;
        let mut block = Block { data, items_end, groups, addr, shared: 0, heads: Box::default() };
        let mut last = None;
        for g in 0..groups {
            let offset = block.restart(g);
            if offset >= items_end || last.is_some_and(|l| l >= offset) || (g == 0 && offset != 0) {
                return Err(corrupt());
            }
            last = Some(offset);
        }
        if groups == 0 && items_end != 0 {
            return Err(corrupt());
        }
        if groups > 0 {
            block.shared = shared_prefix(block.group_key(0)?, block.group_key(groups - 1)?);
            let head = |g| Ok(head_of(block.group_key(g)?.get(block.shared..).unwrap_or_default()));
            block.heads = (0..groups).map(head).collect::<Result<_>>()?;
        }
        Ok(block)
    }

    /// Memory that it takes, bytes.
    pub fn weight(&self) -> usize {
        self.data.len() + 8 * self.groups + size_of::<Self>()
    }

    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.groups
    }

    fn restart(&self, group: usize) -> usize {
        let at = self.items_end + 4 * group;
        u32::from_le_bytes([self.data[at], self.data[at + 1], self.data[at + 2], self.data[at + 3]]) as usize
    }

    fn group_bytes(&self, group: usize) -> (usize, usize) {
        let end = if group + 1 < self.groups { self.restart(group + 1) } else { self.items_end };
        (self.restart(group), end)
    }

    fn corrupt(&self) -> Error {
        Error::Corrupt { what: "tuple block: an item does not decode".into(), addr: self.addr }
    }

    /// The key at a restart point.
    fn group_key(&self, group: usize) -> Result<&[u8]> {
        let (start, end) = self.group_bytes(group);
        let mut d = Decoder { data: &self.data[..end], at: start, extent: None };
        let head = d.head(0).ok_or_else(|| self.corrupt())?;
        Ok(&self.data[head.suffix.0..head.suffix.1])
    }

    /// The last group whose first key is at most `key`; 0 when none is.
    pub fn group_of(&self, key: &[u8]) -> Result<usize> {
        if self.groups == 0 {
            return Ok(0);
        }
        let n = self.shared.min(key.len());
        let (mut lo, mut hi) = match key[..n].cmp(&self.group_key(0)?[..n]) {
            std::cmp::Ordering::Less => (0, 0),
            std::cmp::Ordering::Greater => (self.groups, self.groups),
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
            if self.group_key(mid)? <= key { lo = mid + 1 } else { hi = mid }
        }
        Ok(lo.saturating_sub(1))
    }

    /// All items of a group.
    pub fn group(&self, group: usize) -> Result<Vec<Item>> {
        let mut items = Vec::with_capacity(GROUP);
        if group >= self.groups {
            return Ok(items);
        }
        let (start, end) = self.group_bytes(group);
        let mut d = Decoder { data: &self.data[..end], at: start, extent: None };
        let mut key: Vec<u8> = Vec::new();
        while d.at < end {
            let head = d.head(key.len()).ok_or_else(|| self.corrupt())?;
            key.truncate(head.shared);
            key.extend_from_slice(&self.data[head.suffix.0..head.suffix.1]);
            let body = d.body(head.kind, &self.data).ok_or_else(|| self.corrupt())?;
            // A key that shares nothing lies whole in the block and needs no copy.
            let owned = if head.shared == 0 { self.data.slice(head.suffix.0..head.suffix.1) } else { Bytes::copy_from_slice(&key) };
            items.push(Item { key: owned, seq: head.seq, body });
        }
        Ok(items)
    }

    /// All items of a group, into memory that was used before.
    pub(crate) fn group_into(&self, group: usize, out: &mut Group) -> Result<()> {
        out.begin(&self.data);
        if group >= self.groups {
            return Ok(());
        }
        let (start, end) = self.group_bytes(group);
        let mut d = Decoder { data: &self.data[..end], at: start, extent: None };
        while d.at < end {
            let item = d.head(out.last_key_len()).and_then(|head| Some((d.place(head.kind)?, head)));
            let Some((place, head)) = item else {
                out.clear();
                return Err(self.corrupt());
            };
            out.push(head.shared, &self.data[head.suffix.0..head.suffix.1], head.seq, place);
        }
        Ok(())
    }

    /// The item that covers `key`, if any.
    pub fn find(&self, key: &[u8]) -> Result<Option<(Seq, Body)>> {
        if self.groups == 0 {
            return Ok(None);
        }
        let (start, end) = self.group_bytes(self.group_of(key)?);
        let mut d = Decoder { data: &self.data[..end], at: start, extent: None };
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
        Some(Head { shared, suffix, kind: flags & KIND, seq })
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

    fn body(&mut self, kind: u8, data: &Bytes) -> Option<Body> {
        // Of a merge, which keeps the block while it has its items: nothing is copied.
        Some(match self.place(kind)? {
            Place::Inline(s, e) => Body::Put(Value::Inline(data.slice(s as usize..e as usize))),
            other => other.body(data).to_body(),
        })
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
            b.add(&i.key, i.seq, &i.body);
        }
        Block::parse(Bytes::from(b.finish()), 0).unwrap()
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

    #[test]
    fn consecutive_pages_cost_little() {
        let mut b = BlockBuilder::default();
        for i in 0..1000u64 {
            let key = [7u64.to_be_bytes(), i.to_be_bytes()].concat();
            b.add(&key, 0, &Body::Put(Value::Extent(ExtentRef { addr: (100 + i) * 4096, len: 4096, crc: i as u32 })));
        }
        assert!(b.finish().len() < 10_000, "about nine bytes a page");
    }
}
