//! Finds the live bytes of an image by recording the reads of check and of readers, and with a
//! small reader of chunks that shares no code with the store's own.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use env::{Random, Simulated};
use kvdb::{Kvdb, OpenOptions};
use zones::{Device, MemoryDevice, Purpose, SECTOR, ZONE_SIZE, crc32c};

use super::image::{End, Image};

/// The structure to which a byte belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Superblock,
    Manifest,
    Journal,
    Index,
    Tuples,
    /// The bytes that are read along with large values: their own and their padding.
    Value,
    /// The mark at the journal's end, or the manifest's last chunk, in a store that was not closed.
    End,
    /// Nothing.
    Dead,
}

/// A device that records its reads.
struct Listener {
    inner: MemoryDevice,
    reads: Mutex<Vec<(Purpose, Range<u64>)>>,
}

impl Device for Listener {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reads.lock().unwrap().push((purpose, offset..offset + buf.len() as u64));
        self.inner.read_at(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write_at(purpose, offset, buf)
    }
    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.inner.grow(new_len)
    }
}

/// Ranges of bytes by class.
pub struct Live {
    ranges: BTreeMap<Class, Vec<Range<u64>>>,
    /// The bytes of large values that keys have now, in order.
    current: Vec<Range<u64>>,
}

impl Live {
    pub fn of(image: &Image) -> Live {
        let listen = || Arc::new(Listener { inner: image.device.clone(), reads: Mutex::default() });
        let device = listen();
        let report = kvdb::check(device.clone(), &mut |_, _| {});
        assert!(report.is_clean(), "{:?}", report.faults);
        assert_eq!(report.journal_records > 0, image.end != End::Closed, "{report:?}");
        let checked = std::mem::take(&mut *device.reads.lock().unwrap());
        let of =
            |purpose| checked.iter().filter(move |(p, _)| *p == purpose).map(|(_, r)| r.clone());

        let device = listen();
        let options = OpenOptions { read_only: true, ..image.options() };
        let (db, recovery) =
            Kvdb::open(device.clone(), Arc::new(Simulated::new(1)), options).unwrap();
        assert_eq!(recovery.records > 0, image.end != End::Closed);
        assert!(!image.expected.keys(&db), "everything is whole");
        device.reads.lock().unwrap().clear();
        // One value at a time, so that each read is one value.
        image.expected.get_all(&db);
        let got = device.reads.lock().unwrap();
        let current = sorted(
            got.iter().filter(|(p, _)| *p == Purpose::Pages).map(|(_, r)| r.clone()).collect(),
        );

        let mut ranges: BTreeMap<Class, Vec<Range<u64>>> = BTreeMap::new();
        ranges.insert(Class::Superblock, vec![0..SECTOR, 4 << 20..(4 << 20) + SECTOR]);
        ranges.insert(Class::Index, sorted(of(Purpose::Index).collect()));
        ranges.insert(Class::Tuples, sorted(of(Purpose::Tuples).collect()));
        for class in [Class::Index, Class::Tuples] {
            // Each read is one frame: its checksum, and nothing else.
            for frame in &ranges[&class] {
                let bytes = bytes(image, frame.clone());
                assert_eq!(
                    bytes[..4],
                    crc32c(&bytes[4..]).to_le_bytes(),
                    "{class:?} at {:#x}",
                    frame.start
                );
            }
        }
        let closed = matches!(image.end, End::Closed | End::ClosedUnflushed);
        let mut end = Vec::new();
        let mut manifest = chain(image, of(Purpose::Manifest).collect(), b"KVMC");
        assert!(
            manifest.chunks.len() >= 2 && manifest.chunks.len().is_multiple_of(2),
            "every chunk is there twice"
        );
        if !closed {
            end.extend(manifest.chunks.split_off(manifest.chunks.len() - 2));
        }
        let mut journal = if image.end == End::Closed {
            Chain::default()
        } else {
            chain(image, of(Purpose::Journal).collect(), b"KVJC")
        };
        if !closed {
            assert_eq!(journal.last_piece, 2, "the last chunk is a mark");
            end.extend(journal.chunks.pop());
        }
        assert_eq!(journal.zones > 1, image.end == End::LongJournal);
        ranges.insert(Class::Manifest, manifest.chunks);
        ranges.insert(Class::Journal, journal.chunks);
        ranges.insert(Class::End, end);
        ranges.insert(
            Class::Value,
            sorted(of(Purpose::Pages).chain(current.iter().cloned()).collect()),
        );
        let alive = sorted(ranges.values().flatten().cloned().collect());
        ranges.insert(Class::Dead, holes(&alive, image.device.len().unwrap()));
        ranges.retain(|_, r| !r.is_empty());
        Live { ranges, current }
    }

    /// Draws a byte. Each class is equally likely, and so is each range in it, so that small
    /// structures are hit as often as large ones. Dead bytes are hit less often.
    pub fn pick(&self, random: &mut Random) -> (Class, u64) {
        let classes: Vec<Class> = self.ranges.keys().copied().collect();
        let mut class = classes[random.below(classes.len() as u64) as usize];
        if class == Class::Dead && random.one_in(2) {
            class = classes[0];
        }
        (class, self.pick_of(class, random))
    }

    /// Returns the range of the class that contains the byte.
    pub fn range_of(&self, class: Class, at: u64) -> Option<Range<u64>> {
        self.ranges.get(&class)?.iter().find(|r| r.contains(&at)).cloned()
    }

    /// Returns the class of a byte. A value that no key has now counts as dead.
    pub fn class_at(&self, at: u64) -> Class {
        let all = self.ranges.iter().filter(|(class, _)| **class != Class::Dead);
        all.filter(|(_, ranges)| ranges.iter().any(|r| r.contains(&at)))
            .map(|(class, _)| *class)
            .next()
            .unwrap_or(Class::Dead)
    }

    pub fn pick_of(&self, class: Class, random: &mut Random) -> u64 {
        let ranges = &self.ranges[&class];
        let range = &ranges[random.below(ranges.len() as u64) as usize];
        // The first bytes are headers and deserve more.
        let len = range.end - range.start;
        range.start + if random.one_in(4) { random.below(len.min(64)) } else { random.below(len) }
    }

    /// Returns whether the byte is part of a large value that a key has now.
    pub fn current(&self, at: u64) -> bool {
        self.current.iter().any(|r| r.contains(&at))
    }
}

impl fmt::Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (class, ranges) in &self.ranges {
            write!(
                f,
                "{class:?} {} in {}, ",
                ranges.iter().map(|r| r.end - r.start).sum::<u64>(),
                ranges.len()
            )?;
        }
        Ok(())
    }
}

fn sorted(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|r| (r.start, r.end));
    ranges.dedup();
    ranges
}

/// Returns the gaps between the ranges.
fn holes(alive: &[Range<u64>], len: u64) -> Vec<Range<u64>> {
    let mut holes = Vec::new();
    let mut at = 0;
    for r in alive {
        if r.start > at {
            holes.push(at..r.start);
        }
        at = at.max(r.end);
    }
    holes.push(at..len);
    holes.retain(|r| !r.is_empty());
    holes
}

fn bytes(image: &Image, range: Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    image.device.read_at(Purpose::Superblock, range.start, &mut bytes).unwrap();
    bytes
}

/// The chunks of a stream.
#[derive(Default)]
struct Chain {
    chunks: Vec<Range<u64>>,
    zones: usize,
    last_piece: u32,
}

/// Follows a stream from the first place that was read, zone by zone in the order of reading.
fn chain(image: &Image, reads: Vec<Range<u64>>, magic: &[u8; 4]) -> Chain {
    let mut starts: Vec<u64> = Vec::new();
    for r in &reads {
        if !starts.iter().any(|s| s / ZONE_SIZE == r.start / ZONE_SIZE) {
            starts.push(r.start);
        }
    }
    let mut chain = Chain::default();
    let mut next: Option<u64> = None;
    for start in starts {
        let zone_end = (start / ZONE_SIZE + 1) * ZONE_SIZE;
        let (mut at, mut epoch, before) = (start, None, chain.chunks.len());
        while at < zone_end {
            let head = bytes(image, at..at + 40);
            let u64_at = |i: usize| u64::from_le_bytes(head[i..i + 8].try_into().unwrap());
            let len = u32::from_le_bytes(head[4..8].try_into().unwrap());
            if head[..4] != *magic
                || head[36..40] != crc32c(&head[..36]).to_le_bytes()
                || *epoch.get_or_insert(u64_at(8)) != u64_at(8)
            {
                break;
            }
            let position = u64_at(16);
            // The second copy of a chunk of the manifest has the position of the first.
            let fits =
                next.is_none_or(|next| position == next || position + u64::from(len) == next);
            if !fits {
                break;
            }
            next = Some(position + u64::from(len));
            let size = (40 + u64::from(len)).next_multiple_of(SECTOR);
            chain.chunks.push(at..at + size);
            chain.last_piece = len;
            at += size;
        }
        chain.zones += usize::from(chain.chunks.len() > before);
    }
    chain
}
