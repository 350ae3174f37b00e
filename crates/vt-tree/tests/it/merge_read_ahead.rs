//! A merge announces the blocks that it will open, and none of those that it stitches.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use vt_tree::{BlockCache, Input, KeyRange, Memtable, Merge, MergeOptions, Placement, Run, Value};
use zones::{Device, FormatOptions, MemoryDevice, Purpose, Zones};

const PAGE: u64 = 4096;

/// A device that knows what was announced.
#[derive(Default)]
struct Announced {
    inner: MemoryDevice,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    pages: HashSet<u64>,
    announced_bytes: u64,
    /// Counts of reads of tuple blocks, and of those that were not announced.
    reads: u64,
    waits: u64,
}

fn pages(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / PAGE..(offset + len).div_ceil(PAGE)
}

impl Device for Announced {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if purpose == Purpose::Tuples {
            let mut seen = self.seen.lock().unwrap();
            seen.reads += 1;
            let waits = pages(offset, buf.len() as u64).any(|page| !seen.pages.contains(&page));
            seen.waits += u64::from(waits);
        }
        self.inner.read_at(purpose, offset, buf)
    }

    fn will_read(&self, purpose: Purpose, offset: u64, len: u64) {
        if purpose == Purpose::Tuples {
            let mut seen = self.seen.lock().unwrap();
            seen.pages.extend(pages(offset, len));
            seen.announced_bytes += len;
        }
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

struct Store {
    device: Arc<Announced>,
    cache: Arc<BlockCache>,
}

impl Store {
    fn new() -> Store {
        let device = Arc::new(Announced::default());
        let zones = Zones::format(device.clone(), FormatOptions::default()).expect("a new store");
        zones.start();
        Store { device, cache: BlockCache::new(zones, 1 << 20) }
    }

    /// A run of `keys`, whose values of 100 bytes lie in the blocks.
    fn run(&self, keys: impl Iterator<Item = u64>) -> Arc<Run> {
        let m = Memtable::new();
        for (seq, k) in keys.enumerate() {
            m.put(&k.to_be_bytes(), seq as u64 + 1, Value::Inline(Bytes::from(vec![k as u8; 100])));
        }
        self.merge(&[Input::Memtable(Arc::new(m))], 0)
    }

    fn merge(&self, inputs: &[Input], stitch_at: u64) -> Arc<Run> {
        let placement = Placement::threshold(stitch_at);
        let options = MergeOptions { placement, ..MergeOptions::default() };
        Merge::new(&self.cache, inputs, &KeyRange::all(), options)
            .and_then(Merge::finish)
            .expect("merges")
            .0
            .expect("something is left")
    }

    /// Returns the reads that the merge of the runs causes on the device.
    fn asked(&self, runs: &[Arc<Run>], stitch_at: u64) -> Seen {
        let inputs: Vec<Input> = runs.iter().cloned().map(Input::Run).collect();
        *self.device.seen.lock().unwrap() = Seen::default();
        self.merge(&inputs, stitch_at);
        std::mem::take(&mut *self.device.seen.lock().unwrap())
    }
}

/// Eight runs whose keys alternate, of some 2.5 MB each.
fn alternating(store: &Store) -> Vec<Arc<Run>> {
    (0..8).map(|r| store.run((0..20_000).map(|i| i * 8 + r))).collect()
}

#[test]
fn the_blocks_of_inputs_that_overlap_are_announced_in_long_spans() {
    let store = Store::new();
    let runs = alternating(&store);
    let seen = store.asked(&runs, 0);
    let bytes: u64 = runs.iter().map(|r| r.stats().block_bytes).sum();
    assert!(seen.reads > 1000, "{} blocks are read", seen.reads);
    // The first two of each leaf index node that begins a streak are read alone.
    assert!(seen.waits * 20 < seen.reads, "{} of {} reads wait", seen.waits, seen.reads);
    assert!(seen.announced_bytes <= bytes + bytes / 8, "{} of {bytes}", seen.announced_bytes);
}

#[test]
fn what_is_stitched_is_not_announced() {
    let store = Store::new();
    let runs: Vec<_> =
        (0..8u64).map(|r| store.run((0..20_000).map(move |i| r * 20_000 + i))).collect();
    let seen = store.asked(&runs, 0);
    assert_eq!((seen.reads, seen.announced_bytes), (0, 0));
}

#[test]
fn what_a_plain_lsm_tree_copies_is_announced_however_it_lies() {
    let store = Store::new();
    let runs: Vec<_> =
        (0..8u64).map(|r| store.run((0..20_000).map(move |i| r * 20_000 + i))).collect();
    let seen = store.asked(&runs, u64::MAX);
    assert!(seen.reads > 1000, "{} blocks are read", seen.reads);
    assert!(seen.waits * 20 < seen.reads, "{} of {} reads wait", seen.waits, seen.reads);
}
