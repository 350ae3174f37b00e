//! An extent run is a sequence of items whose keys count upwards by a constant step and whose large
//! values follow one another on the device, like the pages of a file. The key and the address of
//! each item follow from the first item, so only a checksum is stored for each item. In a *packed*
//! extent run some values are compressed, so the run also stores the number of bytes that each
//! value takes on the device.

use zones::varint;

use crate::block::KEYS_MOST;
use crate::block::counter::Counter;
use crate::item::Seq;
use crate::value::Compression;
use crate::value::ExtentRef;

/// The smallest number of items of an extent run. A shorter run would save nothing.
const LEAST: usize = 4;

/// The largest number of items of a packed extent run. To find the address of an item, the lengths
/// of all previous items are summed.
const PACKED_MOST: usize = 256;

/// Returns the distance between the addresses of consecutive uncompressed values of `len` bytes.
fn stride(len: u32) -> u64 {
    u64::from(len).next_multiple_of(u64::from(ExtentRef::plain(0, len, 0).align()))
}

/// The places of the values of an extent run, without their checksums.
#[derive(Clone, Copy, Debug)]
struct ExtentSequence {
    addr: u64,
    len: u32,
    /// The codec of the compressed values, or `None` if no value is compressed.
    codec: Compression,
}

impl ExtentSequence {
    /// Returns the extent of `stored` bytes that follows an extent ending at `end`. The extent is
    /// compressed if `stored` is less than the length of the value.
    fn behind(self, end: u64, stored: u32, crc: u32) -> ExtentRef {
        let plain = ExtentRef::plain(end, self.len, crc);
        let e = ExtentRef::packed(end, self.len, stored, crc, self.codec).unwrap_or(plain);
        // The address does not overflow, as `goes_on_with` or `decode` has checked.
        ExtentRef { addr: e.behind(end).unwrap_or(end), ..e }
    }
}

/// A way of counting that fits all keys so far, with the key that it predicts next.
#[derive(Debug)]
struct ExpectedKey {
    counter: Counter,
    step: u64,
    key: Vec<u8>,
}

/// Consecutive items that will be stored as an extent run if enough of them follow.
#[derive(Debug)]
pub(crate) struct OpenExtentRun {
    first_key: Vec<u8>,
    seq: Seq,
    /// `true` if the sequence numbers ascend by one, and `false` if all are equal.
    ascends: bool,
    places: ExtentSequence,
    /// The address at which the last value ends.
    end: u64,
    crcs: Vec<u32>,
    /// The number of bytes that each value takes on the device, if the run is packed.
    stored: Vec<u16>,
    /// All ways of counting that fit the keys so far. The list is empty until the second key is
    /// known.
    expected: Vec<ExpectedKey>,
}

impl OpenExtentRun {
    /// Begins a run with one item. Returns `None` if no writer would have placed the extent in this
    /// way.
    pub fn begin(key: &[u8], seq: Seq, e: &ExtentRef) -> Option<OpenExtentRun> {
        let mut open = OpenExtentRun {
            first_key: key.to_vec(),
            seq,
            ascends: false,
            places: ExtentSequence { addr: e.addr, len: e.len, codec: Compression::None },
            end: e.addr,
            crcs: Vec::new(),
            stored: Vec::new(),
            expected: Vec::new(),
        };
        if e.len == 0 || !open.goes_on_with(e) {
            return None;
        }
        open.take(e);
        Some(open)
    }

    /// Returns whether the extent lies at the expected place of the next value, and a run can hold
    /// it together with the values so far.
    fn goes_on_with(&self, e: &ExtentRef) -> bool {
        let packs = match (self.is_packed(), e.codec) {
            (false, Compression::None) => true,
            (packed, codec) => {
                let same = !packed || codec == Compression::None || codec == self.places.codec;
                same && self.crcs.len() < PACKED_MOST && u16::try_from(e.len).is_ok()
            }
        };
        packs && e.len == self.places.len && e.behind(self.end) == Some(e.addr)
    }

    fn take(&mut self, e: &ExtentRef) {
        if e.codec != Compression::None && !self.is_packed() {
            self.places.codec = e.codec;
            self.stored = vec![self.places.len as u16; self.crcs.len()];
        }
        if self.is_packed() {
            self.stored.push(e.stored as u16);
        }
        self.crcs.push(e.crc);
        self.end = e.end();
    }

    /// Returns whether some of the values are compressed.
    pub fn is_packed(&self) -> bool {
        self.places.codec != Compression::None
    }

    /// Returns an upper bound on the encoded size, in bytes.
    pub fn size(&self) -> usize {
        self.first_key.len() + 49 + 4 * self.crcs.len() + 2 * self.stored.len()
    }

    /// Adds the next item if it continues the run. Returns whether the item was added.
    pub fn push(&mut self, key: &[u8], seq: Seq, e: &ExtentRef) -> bool {
        let n = self.crcs.len();
        let ascends = if n == 1 { self.seq > 0 && seq == self.seq + 1 } else { self.ascends };
        let expected_seq = if ascends { self.seq.checked_add(n as u64) } else { Some(self.seq) };
        if !self.goes_on_with(e) || expected_seq != Some(seq) {
            return false;
        }
        if n == 1 {
            self.expected = self.ways(key);
        } else {
            if !self.expected.iter().any(|x| x.key == key) {
                return false;
            }
            self.expected.retain(|x| x.key == key);
        }
        if self.expected.is_empty() {
            return false;
        }
        self.ascends = ascends;
        self.take(e);
        // If a counter overflows, clear its key, which ends the run for this counter, because no
        // key is empty. The remaining counters still describe the keys so far.
        for x in &mut self.expected {
            if !x.counter.advance(&mut x.key, x.step) {
                x.key.clear();
            }
        }
        true
    }

    /// Returns all ways of counting that lead from the first key to `key`.
    fn ways(&self, key: &[u8]) -> Vec<ExpectedKey> {
        if key.len() != self.first_key.len() {
            return Vec::new();
        }
        Counter::of(&self.first_key)
            .filter_map(|counter| {
                let (prefix, first) = counter.split(&self.first_key)?;
                let (same, second) = counter.split(key)?;
                let step = second.checked_sub(first).filter(|&s| s > 0 && same == prefix)?;
                Some(ExpectedKey { counter, step, key: key.to_vec() })
            })
            .collect()
    }

    /// Returns whether the run has enough items and their keys count upwards.
    pub fn is_extent_run(&self) -> bool {
        self.crcs.len() >= LEAST && !self.expected.is_empty()
    }

    /// Calls `add` with each item, in order.
    pub fn each(&self, mut add: impl FnMut(&[u8], Seq, ExtentRef)) {
        let mut key = self.first_key.clone();
        let mut end = self.places.addr;
        for (i, crc) in self.crcs.iter().enumerate() {
            if let Some(x) = self.expected.first().filter(|_| i > 0) {
                // This cannot fail, because `push` has advanced through the same keys.
                x.counter.advance(&mut key, x.step);
            }
            let e = self.places.behind(
                end,
                self.stored.get(i).map_or(self.places.len, |&s| u32::from(s)),
                *crc,
            );
            end = e.end();
            add(&key, if self.ascends { self.seq + i as u64 } else { self.seq }, e);
        }
    }

    pub fn first_key(&self) -> &[u8] {
        &self.first_key
    }

    pub fn seq(&self) -> Seq {
        self.seq
    }

    pub fn ascends(&self) -> bool {
        self.ascends
    }

    /// Appends the body of the run to `out`. The body follows the key and the sequence number.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Some(x) = self.expected.first() else { return };
        varint::put_u64(out, self.crcs.len() as u64);
        out.push(x.counter.encode());
        varint::put_u64(out, x.step);
        varint::put_u64(out, self.places.addr);
        varint::put_u64(out, u64::from(self.places.len));
        if self.is_packed() {
            out.push(self.places.codec.code());
        }
        self.crcs.iter().for_each(|crc| out.extend_from_slice(&crc.to_le_bytes()));
        self.stored.iter().for_each(|stored| out.extend_from_slice(&stored.to_le_bytes()));
    }
}

/// An extent run that was read from a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentRun<'a> {
    key: &'a [u8],
    prefix: &'a [u8],
    first: u64,
    seq: Seq,
    ascends: bool,
    counter: Counter,
    step: u64,
    places: ExtentSequence,
    crcs: &'a [u8],
    /// The number of bytes that each value takes on the device, as a u16 for each value, if the run
    /// is packed.
    stored: &'a [u8],
}

impl<'a> ExtentRun<'a> {
    /// Decodes a run from its body, which ends where `body` does, and from the head of its item.
    /// Returns `None` if no writer can have written these bytes.
    pub fn decode(
        key: &'a [u8],
        seq: Seq,
        ascends: bool,
        packed: bool,
        mut body: &'a [u8],
    ) -> Option<ExtentRun<'a>> {
        let count = varint::get_u64(&mut body).ok()?;
        let (&code, rest) = body.split_first()?;
        body = rest;
        let counter = Counter::decode(code)?;
        let step = varint::get_u64(&mut body).ok()?;
        let addr = varint::get_u64(&mut body).ok()?;
        let len = varint::get_u32(&mut body).ok()?;
        let (prefix, first) = counter.split(key)?;
        let last = first.checked_add(step.checked_mul(count.checked_sub(1)?)?)?;
        let mut codec = Compression::None;
        if packed {
            codec = Compression::of_code(*body.split_off_first()?)
                .filter(|&c| c != Compression::None)?;
        }
        let (crcs, stored) = body.split_at_checked(usize::try_from(count.checked_mul(4)?).ok()?)?;
        let places = ExtentSequence { addr, len, codec };
        // Reject larger sums, so that later sums of address and length do not overflow a u64. In a
        // packed run, an uncompressed value may have to be aligned to a sector.
        let most = if packed { u64::from(len) + zones::SECTOR } else { stride(len) };
        let end = addr.checked_add(most.checked_mul(count)?)?;
        let sizes = stored.chunks_exact(2).map(|s| u32::from(u16::from_le_bytes([s[0], s[1]])));
        let sound = count.checked_mul(key.len() as u64)? <= KEYS_MOST
            && (!packed || count <= PACKED_MOST as u64)
            && step > 0
            && last <= counter.max()
            && len > 0
            && end <= u64::MAX / 2
            && seq.checked_add(count).is_some()
            && (seq > 0 || !ascends)
            && stored.len() == if packed { crcs.len() / 2 } else { 0 }
            && sizes.into_iter().all(|stored| stored > 0 && stored <= len);
        sound.then_some(ExtentRun {
            key,
            prefix,
            first,
            seq,
            ascends,
            counter,
            step,
            places,
            crcs,
            stored,
        })
    }

    /// Returns the number of bytes that value `i`, which must exist, takes on the device.
    fn stored(&self, i: usize) -> u32 {
        self.stored
            .get(2 * i..2 * i + 2)
            .map_or(self.places.len, |s| u32::from(u16::from_le_bytes([s[0], s[1]])))
    }

    fn crc(&self, i: usize) -> u32 {
        self.crcs
            .get(4 * i..4 * i + 4)
            .and_then(|b| b.try_into().ok())
            .map_or(0, u32::from_le_bytes)
    }

    pub fn len(&self) -> usize {
        self.crcs.len() / 4
    }

    /// Returns the number of bytes at the end of each key that form the number.
    pub fn width(&self) -> usize {
        self.counter.width()
    }

    /// Copies the key of item `i`, which must exist, into `key`.
    pub fn key(&self, i: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.key);
        self.counter.write(self.first + i as u64 * self.step, key);
    }

    /// Returns the sequence numbers and values of item `i`, which must exist, and of all later
    /// items.
    pub fn items(&self, i: usize) -> impl Iterator<Item = (Seq, ExtentRef)> {
        let mut end = self.places.addr;
        match self.places.codec {
            Compression::None => end += i as u64 * stride(self.places.len),
            _ => (0..i).for_each(|i| end = self.places.behind(end, self.stored(i), 0).end()),
        }
        (i..self.len()).map(move |i| {
            let e = self.places.behind(end, self.stored(i), self.crc(i));
            end = e.end();
            (if self.ascends { self.seq + i as u64 } else { self.seq }, e)
        })
    }

    /// Returns the sequence number and value of item `i`, which must exist.
    pub fn item(&self, i: usize) -> (Seq, ExtentRef) {
        // The caller guarantees that item `i` exists, so the default is never used.
        self.items(i).next().unwrap_or((self.seq, self.places.behind(self.places.addr, 0, 0)))
    }

    /// Returns the index of the item with this key, or `None` if the run has no such item.
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        if key.len() != self.key.len() {
            return None;
        }
        let (prefix, number) = self.counter.split(key)?;
        let distance = number.checked_sub(self.first)?;
        let i = distance / self.step;
        (prefix == self.prefix && distance.is_multiple_of(self.step) && i < self.len() as u64)
            .then_some(i as usize)
    }
}
