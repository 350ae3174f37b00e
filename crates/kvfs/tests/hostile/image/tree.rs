//! The tree of a run. An entry, an index node, a tuple block or a filter is corrupted somewhere
//! beneath the root. Then every frame on the way up gets its new checksum, and every entry the new
//! pointer to its frame.

use zones::{MemoryDevice, ZONE_SIZE, crc32c};

use super::field::{number, put_varint, spoil_bytes, take, take_varint};
use super::{read, write};
use crate::content::Random;

const FRAME_HEADER: usize = 16;
const TUPLES: u8 = 1;
const NODE: u8 = 2;
const FILTER: u8 = 3;

#[derive(Clone, Copy, Debug, Default)]
struct Pointer {
    addr: u64,
    len: u64,
    crc: u32,
}

/// An entry of an index node.
#[derive(Clone, Debug)]
struct Entry {
    low: Vec<u8>,
    high: Vec<u8>,
    at: Pointer,
    flags: u8,
    sums: [u64; 6],
    filter: Pointer,
    zones: Vec<u8>,
}

fn take_key(input: &mut &[u8], before: &[u8]) -> Option<Vec<u8>> {
    let (shared, further) = (take_varint(input)? as usize, take_varint(input)? as usize);
    Some([before.get(..shared)?, take(input, further)?].concat())
}

fn put_key(out: &mut Vec<u8>, before: &[u8], key: &[u8]) {
    let shared = before.iter().zip(key).take_while(|(a, b)| a == b).count();
    put_varint(out, shared as u64);
    put_varint(out, (key.len() - shared) as u64);
    out.extend_from_slice(&key[shared..]);
}

fn take_pointer(input: &mut &[u8]) -> Option<Pointer> {
    let (addr, len) = (take_varint(input)?, take_varint(input)?);
    Some(Pointer { addr, len, crc: u32::from_le_bytes(take(input, 4)?.try_into().ok()?) })
}

fn put_pointer(out: &mut Vec<u8>, at: &Pointer) {
    put_varint(out, at.addr);
    put_varint(out, at.len);
    out.extend_from_slice(&at.crc.to_le_bytes());
}

impl Entry {
    fn take(input: &mut &[u8], before: &[u8]) -> Option<Entry> {
        let low = take_key(input, before)?;
        let high = take_key(input, &low)?;
        let at = take_pointer(input)?;
        let flags = take(input, 1)?[0];
        let mut sums = [0; 6];
        for sum in &mut sums {
            *sum = take_varint(input)?;
        }
        let filter = take_pointer(input)?;
        let len = take_varint(input)? as usize;
        Some(Entry { low, high, at, flags, sums, filter, zones: take(input, len)?.to_vec() })
    }

    fn put(&self, before: &[u8], out: &mut Vec<u8>) {
        put_key(out, before, &self.low);
        put_key(out, &self.low, &self.high);
        put_pointer(out, &self.at);
        out.push(self.flags);
        self.sums.iter().for_each(|sum| put_varint(out, *sum));
        put_pointer(out, &self.filter);
        put_varint(out, self.zones.len() as u64);
        out.extend_from_slice(&self.zones);
    }

    /// Its own fields.
    fn spoil(&mut self, random: &mut Random) {
        match random.below(12) {
            0 => spoil_bytes(random, &mut self.low),
            1 => spoil_bytes(random, &mut self.high),
            2 => std::mem::swap(&mut self.low, &mut self.high),
            3 => self.at.addr = number(random, self.at.addr, &[ZONE_SIZE, self.filter.addr]),
            4 => self.at.len = number(random, self.at.len, &[]) & u64::from(u32::MAX),
            5 => self.flags = random.next() as u8,
            6 => self.filter.len = number(random, self.filter.len, &[0]) & u64::from(u32::MAX),
            7 => self.filter = if random.one_in(2) { self.at } else { Pointer::default() },
            8 => self.spoil_zones(random),
            _ => {
                let at = random.below(6);
                self.sums[at] = number(random, self.sums[at], &[u64::MAX >> 8, 0]);
            }
        }
    }

    /// Changes the stated zones in use: other ones, none, many, in wrong order, or with other
    /// numbers of bytes.
    fn spoil_zones(&mut self, random: &mut Random) {
        let mut rest = &self.zones[..];
        let count = take_varint(&mut rest).unwrap_or(0);
        let mut all: Vec<u64> = (0..2 * count).map_while(|_| take_varint(&mut rest)).collect();
        match random.below(5) {
            0 => all.clear(),
            1 => all.extend((0..*random.pick(&[2, 400, 20_000])).flat_map(|_| [1, 1 << 20])),
            2 => return spoil_bytes(random, &mut self.zones),
            _ if !all.is_empty() => {
                let at = random.below(all.len());
                all[at] = number(random, all[at], &[0, u64::from(u32::MAX)]);
            }
            _ => all = vec![0, 1],
        }
        let said =
            if random.one_in(10) { number(random, count, &[]) } else { all.len() as u64 / 2 };
        self.zones.clear();
        put_varint(&mut self.zones, said);
        all.iter().for_each(|n| put_varint(&mut self.zones, *n));
    }
}

/// Reads a frame's payload, as it is stored.
fn payload(device: &MemoryDevice, at: &Pointer) -> Option<Vec<u8>> {
    let len = usize::try_from(at.len).ok().filter(|len| (FRAME_HEADER..1 << 22).contains(len))?;
    Some(read(device, at.addr, len)?.split_off(FRAME_HEADER))
}

/// Writes a frame in place of the old one, or, if it is longer, into the free space at the end of
/// the same zone. Returns the pointer.
fn put_frame(
    random: &mut Random,
    device: &MemoryDevice,
    old: Pointer,
    kind: u8,
    level: u16,
    codec: u8,
    payload: &[u8],
) -> Pointer {
    let len = FRAME_HEADER + payload.len();
    let zone = old.addr / ZONE_SIZE * ZONE_SIZE;
    let addr = if len as u64 <= old.len {
        old.addr
    } else {
        zone + ZONE_SIZE / 2
            + (random.below(ZONE_SIZE as usize / 2).saturating_sub(len) & !7) as u64
    };
    let mut frame = vec![0; FRAME_HEADER];
    frame.extend_from_slice(payload);
    frame[4] = kind;
    frame[5] = codec;
    frame[6..8].copy_from_slice(&level.to_le_bytes());
    frame[8..16].copy_from_slice(&addr.to_le_bytes());
    if random.one_in(60) {
        let at = 4 + random.below(12);
        frame[at] = random.next() as u8;
    }
    let crc = crc32c(&frame[4..]);
    frame[..4].copy_from_slice(&crc.to_le_bytes());
    write(device, addr, &frame);
    Pointer { addr, len: len as u64, crc }
}

fn node(payload: &[u8]) -> Option<Vec<Entry>> {
    let mut rest = payload;
    let count = take_varint(&mut rest)?;
    let mut all: Vec<Entry> = Vec::new();
    for _ in 0..count {
        let before = all.last().map_or(Vec::new(), |entry| entry.low.clone());
        all.push(Entry::take(&mut rest, &before)?);
    }
    Some(all)
}

fn put_node(count: u64, all: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, count);
    let mut before: &[u8] = &[];
    for entry in all {
        entry.put(before, &mut out);
        before = &entry.low;
    }
    out
}

/// Entries that all refer to the same child, each with its own fences between those of the old
/// entry.
fn fan(entry: &Entry, times: usize) -> Vec<Entry> {
    let fence = |n: usize| [&entry.low[..], &[0; 3], &(n as u32).to_be_bytes()].concat();
    (0..times)
        .map(|n| Entry {
            low: if n == 0 { entry.low.clone() } else { fence(n) },
            high: if n + 1 == times { entry.high.clone() } else { fence(n + 1) },
            ..entry.clone()
        })
        .filter(|entry| entry.low < entry.high)
        .collect()
}

/// Corrupts something in or beneath `entry`, which refers to a node of `level`, or to a tuple block
/// at level 0.
fn beneath(
    random: &mut Random,
    device: &MemoryDevice,
    entry: &mut Entry,
    level: u16,
) -> Option<()> {
    if random.one_in(4) {
        entry.spoil(random);
        return Some(());
    }
    if level == 1 && entry.filter.len > 0 && random.one_in(6) {
        let mut filter = payload(device, &entry.filter)?;
        match random.below(3) {
            // The node begins with its numbers. A node that was corrupted before may be shorter.
            0 if filter.len() >= 16 => filter[4 + random.below(12)] = random.next() as u8,
            1 if filter.len() > 16 => {
                let at = 16 + random.below(filter.len() - 16);
                filter[at] ^= 1 << random.below(8);
            }
            _ => spoil_bytes(random, &mut filter),
        }
        if filter.len() >= 4 {
            let crc = crc32c(&filter[4..]);
            filter[..4].copy_from_slice(&crc.to_le_bytes());
        }
        entry.filter = put_frame(random, device, entry.filter, FILTER, 0, 0, &filter);
        return Some(());
    }
    if level == 0 {
        let codec = read(device, entry.at.addr, 6)?[5];
        let mut bytes = payload(device, &entry.at)?;
        if random.one_in(4) && bytes.len() > 8 {
            // The number of restart points, or one of them.
            let at = bytes.len() - 4 * (1 + random.below((bytes.len() / 4).min(5)));
            let n = u32::from_le_bytes(bytes[at..at + 4].try_into().ok()?);
            bytes[at..at + 4]
                .copy_from_slice(&(number(random, u64::from(n), &[1 << 31]) as u32).to_le_bytes());
        } else {
            spoil_bytes(random, &mut bytes);
        }
        entry.at = put_frame(random, device, entry.at, TUPLES, 0, codec, &bytes);
        return Some(());
    }
    let mut all = node(&payload(device, &entry.at)?)?;
    let mut count = None;
    match random.below(12) {
        0 => count = Some(number(random, all.len() as u64, &[])),
        1 if !all.is_empty() => {
            let (a, b) = (random.below(all.len()), random.below(all.len()));
            all.swap(a, b);
        }
        2 => all.clear(),
        3 if !all.is_empty() => {
            let one = random.below(all.len());
            let times = *random.pick(&[2, 30, 1000]);
            let many = fan(&all[one], times);
            all.splice(one..=one, many);
        }
        4 if !all.is_empty() => {
            let (a, b) = (random.below(all.len()), random.below(all.len()));
            all[a].at = all[b].at;
        }
        _ if !all.is_empty() => {
            let at = random.below(all.len());
            beneath(random, device, &mut all[at], level - 1)?;
        }
        _ => {}
    }
    let bytes = put_node(count.unwrap_or(all.len() as u64), &all);
    entry.at = put_frame(random, device, entry.at, NODE, level, 0, &bytes);
    Some(())
}

/// Corrupts a run, given by the reference to it.
pub fn spoil(random: &mut Random, device: &MemoryDevice, run: &mut Vec<u8>) {
    let mut rest = &run[..];
    let Some(mut level) = take_varint(&mut rest) else { return };
    let Some(mut entry) = take_varint(&mut rest).and_then(|_| Entry::take(&mut rest, &[])) else {
        return;
    };
    if level == 0 || level > 40 {
        return;
    }
    let _ = beneath(random, device, &mut entry, level as u16);
    match random.below(25) {
        // A tower of nodes, each with many entries for the same child.
        0 => {
            let times = *random.pick(&[1, 2, 20, 400]);
            while level < *random.pick(&[3, 8, 40, 41]) {
                let bytes = put_node(times as u64, &fan(&entry, times));
                let grown = Pointer { len: 0, ..entry.at };
                level += 1;
                entry.at = put_frame(random, device, grown, NODE, level as u16, 0, &bytes);
            }
        }
        1 => level = number(random, level, &[40, 41]),
        _ => {}
    }
    let mut inside = Vec::new();
    entry.put(&[], &mut inside);
    run.clear();
    put_varint(run, level);
    put_varint(run, inside.len() as u64);
    run.extend(inside);
}

/// Reads and writes all of a run as it is.
pub fn again(device: &MemoryDevice, run: &mut Vec<u8>) {
    fn beneath(random: &mut Random, device: &MemoryDevice, entry: &mut Entry, level: u16) {
        let bytes = payload(device, &entry.at).expect("a frame");
        let (kind, codec, bytes) = match level {
            0 => (TUPLES, read(device, entry.at.addr, 6).expect("a frame")[5], bytes),
            _ => {
                let mut all = node(&bytes).expect("a node");
                all.iter_mut().for_each(|entry| beneath(random, device, entry, level - 1));
                (NODE, 0, put_node(all.len() as u64, &all))
            }
        };
        let old = entry.at;
        entry.at = put_frame(random, device, old, kind, level, codec, &bytes);
        assert_eq!((entry.at.addr, entry.at.len, entry.at.crc), (old.addr, old.len, old.crc));
    }
    let mut random = Random::new(0);
    random.silent();
    let mut rest = &run[..];
    let level = take_varint(&mut rest).expect("a level");
    take_varint(&mut rest).expect("a length");
    let mut entry = Entry::take(&mut rest, &[]).expect("an entry");
    beneath(&mut random, device, &mut entry, level as u16);
    let mut inside = Vec::new();
    entry.put(&[], &mut inside);
    let mut again = Vec::new();
    put_varint(&mut again, level);
    put_varint(&mut again, inside.len() as u64);
    again.extend(inside);
    assert_eq!(again, *run);
}
