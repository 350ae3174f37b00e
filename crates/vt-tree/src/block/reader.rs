//! Reads a tuple block. A binary search over the first keys finds a restart interval, which is then
//! decoded.

use std::sync::atomic::AtomicBool;
use std::sync::{OnceLock, Weak};

use bytes::Bytes;

use super::decoder::Decoder;
use super::{EXTENT_RUN, HAS_EXTENT_RUNS, INTERVAL, PART};
use crate::block::extent_run::ExtentRun;
use crate::block::restart_interval::{BodyPlace, RestartInterval};
use crate::block::sparse_index::SparseIndex;
use crate::item::{Body, Item, Seq};
use crate::key::{head_of, shared_prefix};
use crate::value::Value;
use crate::{Error, Result};

/// The payload of one tuple block and its restart points. Items are decoded on demand, one restart
/// interval at a time.
#[derive(Debug)]
pub struct Block {
    data: Bytes,
    /// The offset of the end of the items, where the restart offsets begin.
    items_end: usize,
    restarts: usize,
    has_extent_runs: bool,
    /// The restart intervals if the block has extent runs, or `None` if restart point `i` begins
    /// interval `i`.
    parts: Option<Box<[IntervalStart]>>,
    addr: u64,
    /// The length of the prefix that all keys at restart points share.
    shared: usize,
    /// The head of each of these keys: the eight bytes after the shared prefix, as a number with
    /// the same order. A search compares these numbers and at most a few whole keys.
    heads: Box<[u64]>,
    /// The sparse index that refers to this block while it is cached.
    pub(crate) sparse_index: OnceLock<Weak<SparseIndex>>,
    /// `true` if the cache has evicted the block.
    pub(crate) evicted: AtomicBool,
}

/// A restart interval of a block with extent runs: the items after a restart point, or the items of
/// an extent run from `from` on.
#[derive(Clone, Copy, Debug)]
struct IntervalStart {
    restart: u32,
    from: u32,
}

/// The content of a block from one restart point to the next.
enum Section<'a> {
    Items(Decoder<'a>, usize),
    ExtentRun(ExtentRun<'a>),
}

impl Block {
    /// Parses a payload and checks its restart points. Errors name the block by `addr`.
    pub fn parse(data: Bytes, addr: u64) -> Result<Block> {
        let corrupt =
            || Error::Corrupt { what: "tuple block: restart points do not fit".into(), addr };
        let tail = data.len().checked_sub(4).ok_or_else(corrupt)?;
        let count =
            u32::from_le_bytes([data[tail], data[tail + 1], data[tail + 2], data[tail + 3]]);
        let restarts = (count & !HAS_EXTENT_RUNS) as usize;
        let items_end =
            restarts.checked_mul(4).and_then(|n| tail.checked_sub(n)).ok_or_else(corrupt)?;
        let has_extent_runs = count & HAS_EXTENT_RUNS != 0;
        let mut block = Block {
            data,
            items_end,
            restarts,
            has_extent_runs,
            parts: None,
            addr,
            shared: 0,
            heads: Box::default(),
            sparse_index: OnceLock::new(),
            evicted: AtomicBool::new(false),
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
            (block.shared, block.heads) = block.restart_heads()?;
        }
        if has_extent_runs {
            block.parts = Some(block.interval_starts()?);
        }
        Ok(block)
    }

    /// Returns the length of the prefix that all keys at restart points share, and the head of each
    /// of these keys. There must be a restart point. Returns an error if the keys do not ascend.
    fn restart_heads(&self) -> Result<(usize, Box<[u64]>)> {
        let shared = shared_prefix(self.restart_key(0)?, self.restart_key(self.restarts - 1)?);
        let mut heads = Vec::with_capacity(self.restarts);
        let mut before = None;
        for r in 0..self.restarts {
            let key = self.restart_key(r)?;
            if before.is_some_and(|before| before >= key) {
                return Err(self.disorder());
            }
            heads.push(head_of(key.get(shared..).unwrap_or_default()));
            before = Some(key);
        }
        Ok((shared, heads.into()))
    }

    /// Returns the starts of the restart intervals of a block with extent runs.
    fn interval_starts(&self) -> Result<Box<[IntervalStart]>> {
        let mut parts = Vec::new();
        for r in 0..self.restarts {
            // The number of parts is small, because an extent run has a checksum in the block for
            // each of its items.
            let len = if let Section::ExtentRun(s) = self.section(r)? { s.len() } else { 1 };
            parts.extend(
                (0..len)
                    .step_by(PART)
                    .map(|from| IntervalStart { restart: r as u32, from: from as u32 }),
            );
        }
        Ok(parts.into())
    }

    /// Returns the memory that the block takes, in bytes.
    pub fn weight(&self) -> usize {
        self.data.len()
            + 8 * self.restarts
            + size_of::<Self>()
            + self.parts.as_ref().map_or(0, |p| p.len() * size_of::<IntervalStart>())
    }

    /// Returns the number of restart intervals.
    pub fn intervals(&self) -> usize {
        self.parts.as_ref().map_or(self.restarts, |p| p.len())
    }

    /// Returns the offset of a restart point in the payload.
    fn restart(&self, r: usize) -> usize {
        let at = self.items_end + 4 * r;
        u32::from_le_bytes([self.data[at], self.data[at + 1], self.data[at + 2], self.data[at + 3]])
            as usize
    }

    /// Returns a decoder that begins at a restart point, and the offset at which it must stop.
    fn decoder(&self, r: usize) -> (Decoder<'_>, usize) {
        let end = if r + 1 < self.restarts { self.restart(r + 1) } else { self.items_end };
        (Decoder { data: &self.data[..end], at: self.restart(r), extent: None }, end)
    }

    fn section(&self, r: usize) -> Result<Section<'_>> {
        let (d, end) = self.decoder(r);
        if !self.has_extent_runs {
            return Ok(Section::Items(d, end));
        }
        let mut at_body = Decoder { ..d };
        let head = at_body.head(0).ok_or_else(|| self.corrupt())?;
        if head.kind != EXTENT_RUN {
            return Ok(Section::Items(d, end));
        }
        let key = &self.data[head.suffix.0..head.suffix.1];
        let run = ExtentRun::decode(
            key,
            head.seq,
            head.ascends,
            head.packed,
            &self.data[at_body.at..end],
        );
        run.map(Section::ExtentRun).ok_or_else(|| self.corrupt())
    }

    fn corrupt(&self) -> Error {
        Error::Corrupt { what: "tuple block: an item does not decode".into(), addr: self.addr }
    }

    fn overfull(&self) -> Error {
        Error::corrupt("tuple block: too many items between two restart points", self.addr)
    }

    fn disorder(&self) -> Error {
        Error::Corrupt { what: "tuple block: keys out of order".into(), addr: self.addr }
    }

    /// Returns the first keys of the first and of the last restart interval, or `None` if the block
    /// has none.
    pub(crate) fn ends(&self) -> Result<Option<(&[u8], &[u8])>> {
        match self.restarts {
            0 => Ok(None),
            n => Ok(Some((self.restart_key(0)?, self.restart_key(n - 1)?))),
        }
    }

    /// Returns the key at a restart point.
    fn restart_key(&self, r: usize) -> Result<&[u8]> {
        let (mut d, _) = self.decoder(r);
        let head = d.head(0).ok_or_else(|| self.corrupt())?;
        Ok(&self.data[head.suffix.0..head.suffix.1])
    }

    /// Returns the last restart point with a key of at most `key`, or 0 if there is no such restart
    /// point.
    fn restart_of(&self, key: &[u8]) -> Result<usize> {
        if self.restarts == 0 {
            return Ok(0);
        }
        let n = self.shared.min(key.len());
        let (mut lo, mut hi) = match key[..n].cmp(&self.restart_key(0)?[..n]) {
            std::cmp::Ordering::Less => (0, 0),
            std::cmp::Ordering::Greater => (self.restarts, self.restarts),
            // `key` is a proper prefix of the shared prefix.
            std::cmp::Ordering::Equal if n < self.shared => (0, 0),
            std::cmp::Ordering::Equal => {
                let head = head_of(&key[n..]);
                let first = self.heads.partition_point(|&h| h < head);
                (first, first + self.heads[first..].partition_point(|&h| h == head))
            }
        };
        // Compare whole keys where heads are equal.
        while lo < hi {
            let mid = (lo + hi) / 2;
            if self.restart_key(mid)? <= key { lo = mid + 1 } else { hi = mid }
        }
        Ok(lo.saturating_sub(1))
    }

    /// Returns the last restart interval whose first key is at most `key`, or 0 if there is no such
    /// interval.
    pub fn interval_of(&self, key: &[u8]) -> Result<usize> {
        let r = self.restart_of(key)?;
        let Some(parts) = self.parts.as_deref() else { return Ok(r) };
        let (mut lo, mut hi) = (
            parts.partition_point(|p| (p.restart as usize) < r),
            parts.partition_point(|p| p.restart as usize <= r),
        );
        let Some(Section::ExtentRun(run)) = (lo + 1 < hi).then(|| self.section(r)).transpose()?
        else {
            return Ok(lo);
        };
        let mut first = Vec::new();
        while lo + 1 < hi {
            let mid = (lo + hi) / 2;
            run.key(parts[mid].from as usize, &mut first);
            if first.as_slice() <= key { lo = mid } else { hi = mid }
        }
        Ok(lo)
    }

    /// Returns all items of a restart interval.
    pub fn interval(&self, interval: usize) -> Result<Vec<Item>> {
        let mut decoded = RestartInterval::default();
        self.interval_into(interval, &mut decoded)?;
        Ok((0..decoded.len()).filter_map(|i| decoded.item(i)).map(|i| i.to_item()).collect())
    }

    /// Decodes all items of a restart interval into `out`. The memory of `out` is reused, so
    /// nothing is allocated, and each key is assembled once.
    pub(crate) fn interval_into(&self, interval: usize, out: &mut RestartInterval) -> Result<()> {
        out.begin(&self.data);
        let part = match self.parts.as_deref() {
            None if interval < self.restarts => IntervalStart { restart: interval as u32, from: 0 },
            Some(parts) if interval < parts.len() => parts[interval],
            _ => return Ok(()),
        };
        match self.section(part.restart as usize) {
            Err(e) => {
                out.clear();
                return Err(e);
            }
            Ok(Section::Items(mut d, end)) => {
                while d.at < end {
                    // Limit the number of items, because each item yields a whole key, even if the
                    // item itself takes few bytes.
                    if out.len() == INTERVAL {
                        out.clear();
                        return Err(self.overfull());
                    }
                    let item =
                        d.head(out.last_key_len()).and_then(|head| Some((d.place(&head)?, head)));
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
            Ok(Section::ExtentRun(run)) => {
                let from = part.from as usize;
                let mut key = Vec::new();
                for (i, (seq, e)) in (from..run.len().min(from + PART)).zip(run.items(from)) {
                    run.key(i, &mut key);
                    let shared = if i == from { 0 } else { key.len() - run.width() };
                    out.push(shared, &key[shared..], seq, BodyPlace::Extent(e));
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

    /// Returns the item that covers `key`, or `None` if there is none.
    pub fn find(&self, key: &[u8]) -> Result<Option<(Seq, Body)>> {
        if self.restarts == 0 {
            return Ok(None);
        }
        let (mut d, end) = match self.section(self.restart_of(key)?)? {
            Section::Items(d, end) => (d, end),
            Section::ExtentRun(run) => {
                return Ok(run.find(key).map(|i| {
                    let (seq, e) = run.item(i);
                    (seq, Body::Put(Value::Extent(e)))
                }));
            }
        };
        let found = find_from(&mut d, end, key).ok_or_else(|| self.corrupt())?;
        Ok(found.map(|(seq, body)| (seq, body.body(&self.data).to_body())))
    }

    /// Returns the item that covers `key` in the restart interval at bytes `start` to `end` of the
    /// payload, or `None` if there is none.
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

    /// Returns all bytes of the payload.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// Returns the byte ranges of the restart intervals, or `None` if the block has extent runs.
    pub(crate) fn plain_intervals(&self) -> Option<Vec<std::ops::Range<usize>>> {
        (!self.has_extent_runs).then(|| {
            (0..self.restarts).map(|r| self.decoder(r)).map(|(d, end)| d.at..end).collect()
        })
    }

    /// Returns the prefix that the first keys of all restart intervals share.
    pub(crate) fn shared_prefix(&self) -> &[u8] {
        // This does not fail, because `parse` has decoded this key.
        self.restart_key(0).map_or(&[], |key| &key[..self.shared.min(key.len())])
    }

    /// Returns the head of the first key of each restart interval: the eight bytes after the shared
    /// prefix. See [`head_of`].
    pub(crate) fn heads(&self) -> &[u64] {
        &self.heads
    }

    /// Returns the first key in the bytes of one restart interval.
    pub(crate) fn first_key(interval: &[u8]) -> Option<&[u8]> {
        let head = Decoder { data: interval, at: 0, extent: None }.head(0)?;
        Some(&interval[head.suffix.0..head.suffix.1])
    }

    /// Returns the item that covers `key`, if there is one, in the bytes of the only restart
    /// interval that can have it. Returns `None` if the bytes cannot be decoded.
    pub(crate) fn find_in_interval(interval: &[u8], key: &[u8]) -> Option<Option<(Seq, Body)>> {
        let mut d = Decoder { data: interval, at: 0, extent: None };
        let found = find_from(&mut d, interval.len(), key)?;
        Some(found.map(|(seq, place)| (seq, place.copied(interval))))
    }
}

/// Returns the item that covers `key`, if there is one, between the position of `d`, a restart
/// point, and `end`. Returns `None` if an item cannot be decoded.
fn find_from(d: &mut Decoder<'_>, end: usize, key: &[u8]) -> Option<Option<(Seq, BodyPlace)>> {
    // The length of the previous key, which is smaller than `key`, and the length of its common
    // prefix with `key`.
    let (mut len, mut common) = (0, 0);
    let mut before: Option<(Seq, BodyPlace)> = None;
    while d.at < end {
        let head = d.head(len)?;
        let suffix = &d.data[head.suffix.0..head.suffix.1];
        len = head.shared + suffix.len();
        if head.shared < common {
            // The item shares fewer bytes with the previous key than the previous key shares with
            // `key`, so the key of the item is greater than `key`.
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
        let place = d.place(&head)?;
        if order == std::cmp::Ordering::Equal {
            return Some(Some((head.seq, place)));
        }
        before = Some((head.seq, place));
    }
    Some(before.filter(|(_, place)| matches!(place, BodyPlace::DeleteRange(a, b) if key < &d.data[*a as usize..*b as usize])))
}
