//! Series: items whose keys count upwards and whose large values follow one another on the device, as the pages of a file do. All that
//! tells them apart is a checksum, so that is all that is stored for each.

use zones::varint;

use crate::block::extent_align;
use crate::counter::Counter;
use crate::item::{ExtentRef, Seq};

/// Fewer items are not worth a series.
const LEAST: usize = 4;

/// The distance between the addresses of values of `len` bytes that follow one another.
fn stride(len: u32) -> u64 {
    u64::from(len).next_multiple_of(u64::from(extent_align(len as usize)))
}

/// Where the values of a series lie, without their checksums.
#[derive(Clone, Copy, Debug)]
struct Places {
    addr: u64,
    len: u32,
}

impl Places {
    fn nth(self, i: usize, crc: u32) -> ExtentRef {
        ExtentRef { addr: self.addr + i as u64 * stride(self.len), len: self.len, crc }
    }
}

/// A way to count on, and the next key.
#[derive(Debug)]
struct Expected {
    counter: Counter,
    step: u64,
    key: Vec<u8>,
}

/// Items that perhaps become a series, in the making.
#[derive(Debug)]
pub(crate) struct Open {
    first_key: Vec<u8>,
    seq: Seq,
    /// Sequence numbers ascend by one; else they are all the same.
    ascends: bool,
    places: Places,
    crcs: Vec<u32>,
    /// All ways of counting that fit the keys so far; with one key, none is known yet.
    expected: Vec<Expected>,
}

impl Open {
    /// Begins with one item. `None`: a value that lies where no value is put.
    pub fn begin(key: &[u8], seq: Seq, e: &ExtentRef) -> Option<Open> {
        let fits = e.len > 0 && e.addr.is_multiple_of(u64::from(extent_align(e.len as usize)));
        fits.then(|| Open {
            first_key: key.to_vec(),
            seq,
            ascends: false,
            places: Places { addr: e.addr, len: e.len },
            crcs: vec![e.crc],
            expected: Vec::new(),
        })
    }

    /// Bytes that it takes at most.
    pub fn size(&self) -> usize {
        self.first_key.len() + 48 + 4 * self.crcs.len()
    }

    /// Takes the next item, if it goes on with the series.
    pub fn push(&mut self, key: &[u8], seq: Seq, e: &ExtentRef) -> bool {
        let n = self.crcs.len();
        let next = self.places.nth(n, e.crc);
        let ascends = if n == 1 { self.seq > 0 && seq == self.seq + 1 } else { self.ascends };
        let expected_seq = if ascends { self.seq.checked_add(n as u64) } else { Some(self.seq) };
        if *e != next || expected_seq != Some(seq) {
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
        self.crcs.push(e.crc);
        // Where no way of counting leads on, the series ends here; its own keys are still told by the one left.
        for x in &mut self.expected {
            if !x.counter.advance(&mut x.key, x.step) {
                x.key.clear();
            }
        }
        true
    }

    /// All ways of counting that lead from the first key to `key`.
    fn ways(&self, key: &[u8]) -> Vec<Expected> {
        if key.len() != self.first_key.len() {
            return Vec::new();
        }
        Counter::of(&self.first_key)
            .filter_map(|counter| {
                let (prefix, first) = counter.split(&self.first_key)?;
                let (same, second) = counter.split(key)?;
                let step = second.checked_sub(first).filter(|&s| s > 0 && same == prefix)?;
                Some(Expected { counter, step, key: key.to_vec() })
            })
            .collect()
    }

    /// Long enough, and known how to count.
    pub fn is_series(&self) -> bool {
        self.crcs.len() >= LEAST && !self.expected.is_empty()
    }

    /// The items, one by one.
    pub fn each(&self, mut add: impl FnMut(&[u8], Seq, ExtentRef)) {
        let mut key = self.first_key.clone();
        for (i, crc) in self.crcs.iter().enumerate() {
            if let Some(x) = self.expected.first().filter(|_| i > 0) {
                // It led through all of them before.
                x.counter.advance(&mut key, x.step);
            }
            add(&key, if self.ascends { self.seq + i as u64 } else { self.seq }, self.places.nth(i, *crc));
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

    /// The body, behind key and sequence number.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Some(x) = self.expected.first() else { return };
        varint::put_u64(out, self.crcs.len() as u64);
        out.push(x.counter.encode());
        varint::put_u64(out, x.step);
        varint::put_u64(out, self.places.addr);
        varint::put_u64(out, u64::from(self.places.len));
        self.crcs.iter().for_each(|crc| out.extend_from_slice(&crc.to_le_bytes()));
    }
}

/// A series as read from a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Series<'a> {
    key: &'a [u8],
    prefix: &'a [u8],
    first: u64,
    seq: Seq,
    ascends: bool,
    counter: Counter,
    step: u64,
    places: Places,
    crcs: &'a [u8],
}

impl<'a> Series<'a> {
    /// From the body and what lies before it. `None`: no such series can be. It ends with `body`.
    pub fn decode(key: &'a [u8], seq: Seq, ascends: bool, mut body: &'a [u8]) -> Option<Series<'a>> {
        let count = varint::get_u64(&mut body).ok()?;
        let (&code, rest) = body.split_first()?;
        body = rest;
        let counter = Counter::decode(code)?;
        let step = varint::get_u64(&mut body).ok()?;
        let addr = varint::get_u64(&mut body).ok()?;
        let len = varint::get_u32(&mut body).ok()?;
        let (prefix, first) = counter.split(key)?;
        let last = first.checked_add(step.checked_mul(count.checked_sub(1)?)?)?;
        // Keeps every later sum of address and length inside u64.
        let end = addr.checked_add(stride(len).checked_mul(count)?)?;
        let sound = step > 0
            && last <= counter.max()
            && len > 0
            && end <= u64::MAX / 2
            && seq.checked_add(count).is_some()
            && (seq > 0 || !ascends)
            && body.len() as u64 == count.checked_mul(4)?;
        let places = Places { addr, len };
        sound.then_some(Series { key, prefix, first, seq, ascends, counter, step, places, crcs: body })
    }

    pub fn len(&self) -> usize {
        self.crcs.len() / 4
    }

    /// Bytes at the end of each key that are the number.
    pub fn width(&self) -> usize {
        self.counter.width()
    }

    /// Puts the key of item `i`, which must exist, into `key`.
    pub fn key(&self, i: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.key);
        self.counter.write(self.first + i as u64 * self.step, key);
    }

    /// Sequence number and value of item `i`, which must exist.
    pub fn item(&self, i: usize) -> (Seq, ExtentRef) {
        let crc = self.crcs.get(4 * i..4 * i + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        (if self.ascends { self.seq + i as u64 } else { self.seq }, self.places.nth(i, crc))
    }

    /// The item with just this key.
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        if key.len() != self.key.len() {
            return None;
        }
        let (prefix, number) = self.counter.split(key)?;
        let distance = number.checked_sub(self.first)?;
        let i = distance / self.step;
        (prefix == self.prefix && distance.is_multiple_of(self.step) && i < self.len() as u64).then_some(i as usize)
    }
}
