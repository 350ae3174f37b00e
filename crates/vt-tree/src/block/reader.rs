//! Reading a tuple block: restart intervals are found by their first keys, and decoded when
//! somebody asks for them.

use std::sync::atomic::AtomicBool;
use std::sync::{OnceLock, Weak};

use bytes::Bytes;

use super::decoder::Decoder;
use super::{HAS_SERIES, PART, SERIES, head_of, shared_prefix};
use crate::block::restart_interval::{Place, RestartInterval};
use crate::block::series::Series;
use crate::block::sparse_index::SparseIndex;
use crate::item::{Body, Item, Seq};
use crate::value::Value;
use crate::{Error, Result};

/// A decoded view of one tuple block. Decoding is lazy: a restart interval (the items between two
/// restart points) at a time.
#[derive(Debug)]
pub struct Block {
    data: Bytes,
    /// End of the items, start of the restart offsets.
    items_end: usize,
    restarts: usize,
    has_series: bool,
    /// Where there are series: the restart intervals.
    parts: Option<Box<[Part]>>,
    addr: u64,
    /// Bytes that all keys at restart points share, and the eight behind these of each, as a number
    /// that sorts as they do: a search reads these and no key but one.
    shared: usize,
    heads: Box<[u64]>,
    /// The sparse index that finds this block while the cache has it.
    pub(crate) told: OnceLock<Weak<SparseIndex>>,
    /// The cache has pushed it out.
    pub(crate) gone: AtomicBool,
}

/// A restart interval of a block with series: what lies behind a restart point, of a series the
/// items from `from` on.
#[derive(Clone, Copy, Debug)]
struct Part {
    restart: u32,
    from: u32,
}

/// What lies behind a restart point.
enum Span<'a> {
    Items(Decoder<'a>, usize),
    Series(Series<'a>),
}

impl Block {
    /// `addr` names the block in errors.
    pub fn parse(data: Bytes, addr: u64) -> Result<Block> {
        let corrupt =
            || Error::Corrupt { what: "tuple block: restart points do not fit".into(), addr };
        let tail = data.len().checked_sub(4).ok_or_else(corrupt)?;
        let count =
            u32::from_le_bytes([data[tail], data[tail + 1], data[tail + 2], data[tail + 3]]);
        let restarts = (count & !HAS_SERIES) as usize;
        let items_end =
            restarts.checked_mul(4).and_then(|n| tail.checked_sub(n)).ok_or_else(corrupt)?;
        let has_series = count & HAS_SERIES != 0;
        let mut block = Block {
            data,
            items_end,
            restarts,
            has_series,
            parts: None,
            addr,
            shared: 0,
            heads: Box::default(),
            told: OnceLock::new(),
            gone: AtomicBool::new(false),
        };
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
            let mut heads = Vec::with_capacity(restarts);
            let mut before = None;
            for r in 0..restarts {
                let key = block.restart_key(r)?;
                if before.is_some_and(|before| before >= key) {
                    return Err(block.disorder());
                }
                heads.push(head_of(key.get(block.shared..).unwrap_or_default()));
                before = Some(key);
            }
            block.heads = heads.into();
        }
        if has_series {
            let mut parts = Vec::new();
            for r in 0..restarts {
                // A series is as long as its checksums in the block, so there are few parts.
                let len = if let Span::Series(s) = block.span(r)? { s.len() } else { 1 };
                parts.extend(
                    (0..len)
                        .step_by(PART)
                        .map(|from| Part { restart: r as u32, from: from as u32 }),
                );
            }
            block.parts = Some(parts.into());
        }
        Ok(block)
    }

    /// Memory that it takes, bytes.
    pub fn weight(&self) -> usize {
        self.data.len()
            + 8 * self.restarts
            + size_of::<Self>()
            + self.parts.as_ref().map_or(0, |p| p.len() * size_of::<Part>())
    }

    /// Number of restart intervals.
    pub fn intervals(&self) -> usize {
        self.parts.as_ref().map_or(self.restarts, |p| p.len())
    }

    /// Offset of a restart point.
    fn restart(&self, r: usize) -> usize {
        let at = self.items_end + 4 * r;
        u32::from_le_bytes([self.data[at], self.data[at + 1], self.data[at + 2], self.data[at + 3]])
            as usize
    }

    /// Decodes from a restart point on, up to the next.
    fn decoder(&self, r: usize) -> (Decoder<'_>, usize) {
        let end = if r + 1 < self.restarts { self.restart(r + 1) } else { self.items_end };
        (Decoder { data: &self.data[..end], at: self.restart(r), extent: None }, end)
    }

    fn span(&self, r: usize) -> Result<Span<'_>> {
        let (d, end) = self.decoder(r);
        if !self.has_series {
            return Ok(Span::Items(d, end));
        }
        let mut at_body = Decoder { ..d };
        let head = at_body.head(0).ok_or_else(|| self.corrupt())?;
        if head.kind != SERIES {
            return Ok(Span::Items(d, end));
        }
        let key = &self.data[head.suffix.0..head.suffix.1];
        let series =
            Series::decode(key, head.seq, head.ascends, head.packed, &self.data[at_body.at..end]);
        series.map(Span::Series).ok_or_else(|| self.corrupt())
    }

    fn corrupt(&self) -> Error {
        Error::Corrupt { what: "tuple block: an item does not decode".into(), addr: self.addr }
    }

    fn disorder(&self) -> Error {
        Error::Corrupt { what: "tuple block: keys out of order".into(), addr: self.addr }
    }

    /// The first keys of its first and its last restart interval; `None`: it has none.
    pub(crate) fn ends(&self) -> Result<Option<(&[u8], &[u8])>> {
        match self.restarts {
            0 => Ok(None),
            n => Ok(Some((self.restart_key(0)?, self.restart_key(n - 1)?))),
        }
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

    /// The last restart interval whose first key is at most `key`; 0 when none is.
    pub fn interval_of(&self, key: &[u8]) -> Result<usize> {
        let r = self.restart_of(key)?;
        let Some(parts) = self.parts.as_deref() else { return Ok(r) };
        let (mut lo, mut hi) = (
            parts.partition_point(|p| (p.restart as usize) < r),
            parts.partition_point(|p| p.restart as usize <= r),
        );
        let Some(Span::Series(series)) = (lo + 1 < hi).then(|| self.span(r)).transpose()? else {
            return Ok(lo);
        };
        let mut first = Vec::new();
        while lo + 1 < hi {
            let mid = (lo + hi) / 2;
            series.key(parts[mid].from as usize, &mut first);
            if first.as_slice() <= key { lo = mid } else { hi = mid }
        }
        Ok(lo)
    }

    /// All items of a restart interval.
    pub fn interval(&self, interval: usize) -> Result<Vec<Item>> {
        let mut decoded = RestartInterval::default();
        self.interval_into(interval, &mut decoded)?;
        Ok((0..decoded.len()).filter_map(|i| decoded.item(i)).map(|i| i.to_item()).collect())
    }

    /// All items of a restart interval, into memory that was used before: nothing is allocated, and
    /// each key is put together once.
    pub(crate) fn interval_into(&self, interval: usize, out: &mut RestartInterval) -> Result<()> {
        out.begin(&self.data);
        let part = match self.parts.as_deref() {
            None if interval < self.restarts => Part { restart: interval as u32, from: 0 },
            Some(parts) if interval < parts.len() => parts[interval],
            _ => return Ok(()),
        };
        match self.span(part.restart as usize) {
            Err(e) => {
                out.clear();
                return Err(e);
            }
            Ok(Span::Items(mut d, end)) => {
                while d.at < end {
                    let item = d
                        .head(out.last_key_len())
                        .and_then(|head| Some((d.place(head.kind)?, head)));
                    let Some((place, head)) = item else {
                        out.clear();
                        return Err(self.corrupt());
                    };
                    if !out.push_next(
                        head.shared,
                        &self.data[head.suffix.0..head.suffix.1],
                        head.seq,
                        place,
                    ) {
                        out.clear();
                        return Err(self.disorder());
                    }
                }
            }
            Ok(Span::Series(series)) => {
                let from = part.from as usize;
                let mut key = Vec::new();
                for (i, (seq, e)) in (from..series.len().min(from + PART)).zip(series.items(from)) {
                    series.key(i, &mut key);
                    let shared = if i == from { 0 } else { key.len() - series.width() };
                    out.push(shared, &key[shared..], seq, Place::Extent(e));
                }
            }
        }
        let next = part.restart as usize + 1;
        let ends = self
            .parts
            .as_deref()
            .is_none_or(|parts| parts.get(interval + 1).is_none_or(|p| p.restart != part.restart));
        if next < self.restarts && ends {
            let key = self.restart_key(next)?;
            if out
                .len()
                .checked_sub(1)
                .and_then(|last| out.item(last))
                .is_some_and(|last| !last.ends_before(key))
            {
                out.clear();
                return Err(self.disorder());
            }
        }
        Ok(())
    }

    /// The item that covers `key`, if any.
    pub fn find(&self, key: &[u8]) -> Result<Option<(Seq, Body)>> {
        if self.restarts == 0 {
            return Ok(None);
        }
        let (mut d, end) = match self.span(self.restart_of(key)?)? {
            Span::Items(d, end) => (d, end),
            Span::Series(series) => {
                return Ok(series.find(key).map(|i| {
                    let (seq, e) = series.item(i);
                    (seq, Body::Put(Value::Extent(e)))
                }));
            }
        };
        let found = find_from(&mut d, end, key).ok_or_else(|| self.corrupt())?;
        Ok(found.map(|(seq, body)| (seq, body.body(&self.data).to_body())))
    }

    /// The same in the one restart interval that can have it, by where that lies.
    pub(crate) fn find_between(
        &self,
        start: usize,
        end: usize,
        key: &[u8],
    ) -> Result<Option<(Seq, Body)>> {
        let data = self.data.get(..end).ok_or_else(|| self.corrupt())?;
        let mut d = Decoder { data, at: start, extent: None };
        let found = find_from(&mut d, end, key).ok_or_else(|| self.corrupt())?;
        Ok(found.map(|(seq, body)| (seq, body.body(&self.data).to_body())))
    }

    /// All bytes of the payload.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// Where its restart intervals lie, if none of them is a series.
    pub(crate) fn plain_intervals(&self) -> Option<Vec<std::ops::Range<usize>>> {
        (!self.has_series).then(|| {
            (0..self.restarts).map(|r| self.decoder(r)).map(|(d, end)| d.at..end).collect()
        })
    }

    /// What the first keys of all restart intervals share.
    pub(crate) fn shared_prefix(&self) -> &[u8] {
        // `parse` has looked at this key.
        self.restart_key(0).map_or(&[], |key| &key[..self.shared.min(key.len())])
    }

    /// Of the first key of each restart interval, the eight bytes behind what all share, see
    /// [`head_of`].
    pub(crate) fn heads(&self) -> &[u64] {
        &self.heads
    }

    /// The first key in the bytes of one restart interval.
    pub(crate) fn first_key(interval: &[u8]) -> Option<&[u8]> {
        let head = Decoder { data: interval, at: 0, extent: None }.head(0)?;
        Some(&interval[head.suffix.0..head.suffix.1])
    }

    /// The item that covers `key`, if any, in the bytes of the one restart interval that can have
    /// it. `None`: it does not decode.
    pub(crate) fn find_in_interval(interval: &[u8], key: &[u8]) -> Option<Option<(Seq, Body)>> {
        let mut d = Decoder { data: interval, at: 0, extent: None };
        let found = find_from(&mut d, interval.len(), key)?;
        Some(found.map(|(seq, place)| (seq, place.copied(interval))))
    }
}

/// The item that covers `key` among those up to `end`, the first of which has its whole key.
/// `None`: one does not decode.
fn find_from(d: &mut Decoder<'_>, end: usize, key: &[u8]) -> Option<Option<(Seq, Place)>> {
    // The key before, its length, and how much of it is as `key` begins: where that ends it is the
    // smaller one.
    let (mut len, mut common) = (0, 0);
    let mut before: Option<(Seq, Place)> = None;
    while d.at < end {
        let head = d.head(len)?;
        let suffix = &d.data[head.suffix.0..head.suffix.1];
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
        let place = d.place(head.kind)?;
        if order == std::cmp::Ordering::Equal {
            return Some(Some((head.seq, place)));
        }
        before = Some((head.seq, place));
    }
    Some(before.filter(|(_, place)| matches!(place, Place::DeleteRange(a, b) if key < &d.data[*a as usize..*b as usize])))
}
