//! Tests of damaged runs. Whichever bit is flipped, reads return an error or the right answer, and
//! a check finds the damage.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use vt_tree::{
    BlockCache, Compression, Input, KeyRange, Lookup, Memtable, MergeOptions, Placement, Result,
    Run, TreeCursor, Value, check_run, hash, merge,
};
use zones::{FormatOptions, MemoryDevice, ZONE_SIZE, Zones};

struct Written {
    device: Arc<MemoryDevice>,
    zones: Arc<Zones>,
    /// Keeps the zones from being reused.
    run: Arc<Run>,
    root: Vec<u8>,
    /// The expected value of each key looked up; `None` if it was deleted or never written.
    truth: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

fn key(i: u64) -> Vec<u8> {
    format!("key {i:05}").into_bytes()
}

/// A run of `n` keys with all kinds of items: small and large values, tombstones, range tombstones.
fn written(n: u64) -> Written {
    let device = Arc::new(MemoryDevice::default());
    let zones = Zones::format(device.clone(), FormatOptions::default())
        .expect("a fresh device takes a store");
    zones.start();
    let store = BlockCache::new(zones.clone(), 1 << 20);
    let m = Memtable::new();
    let mut truth = BTreeMap::new();
    for i in 0..n {
        let value = match i % 20 {
            3 => None,
            7 => Some(vec![i as u8; 600]),
            // Incompressible values are stored uncompressed.
            17 => Some((0..600u64).map(|b| ((b * b * 0x9e37_79b9 + i) >> 13) as u8).collect()),
            _ => Some(format!("value of {i}").into_bytes()),
        };
        match &value {
            None => m.delete(&key(i), i + 1),
            Some(v) => m.put(&key(i), i + 1, Value::Inline(v.clone().into())),
        }
        truth.insert(key(i), value);
    }
    for i in (0..n).step_by(50) {
        m.delete_range(&key(i + 12), &key(i + 15), n + i + 1);
        (i + 12..i + 15).for_each(|i| _ = truth.insert(key(i), None));
    }
    let options = MergeOptions {
        placement: Placement::copy(),
        separate_at: 512,
        compression: Compression::Lz4,
        compress_values: Compression::Lz4,
        ..MergeOptions::default()
    };
    let run = merge(&store, &[Input::Memtable(Arc::new(m))], &KeyRange::all(), options)
        .expect("flushes")
        .expect("has keys");
    let mut root = Vec::new();
    run.encode(&mut root);
    Written { device, zones, run, root, truth }
}

impl Written {
    /// The run with nothing cached.
    fn cold(&self) -> Arc<Run> {
        Run::decode(&BlockCache::new(self.zones.clone(), 1 << 20), &mut &self.root[..])
            .expect("the root is whole")
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        check_run(&self.cold(), &mut |f| faults.push(f), &mut |_| {});
        faults
    }

    /// Reads all data in all ways; each answer must be an error or right. Returns whether there was
    /// an error.
    fn read(&self) -> bool {
        let store = BlockCache::new(self.zones.clone(), 1 << 20);
        let run = Run::decode(&store, &mut &self.root[..]).expect("the root is whole");
        let mut errors = 0;
        for (k, want) in &self.truth {
            match run.get(k, hash(k)) {
                Err(_) => errors += 1,
                Ok(Lookup::Found(_, v)) => match store.read_value(&v) {
                    Ok(v) => assert_eq!(Some(v.to_vec()), *want, "get"),
                    Err(_) => errors += 1,
                },
                Ok(_) => assert_eq!(None, *want, "get"),
            }
        }
        let live: Vec<_> =
            self.truth.iter().filter_map(|(k, v)| Some((k.clone(), v.clone()?))).collect();
        for forward in [true, false] {
            let mut c = TreeCursor::new(&store, &[Input::Run(run.clone())], u64::MAX);
            let mut left: Box<dyn Iterator<Item = &(Vec<u8>, Vec<u8>)>> = Box::new(live.iter());
            if !forward {
                c.seek_to_end();
                left = Box::new(live.iter().rev());
            }
            let mut step = || -> Result<Option<(Vec<u8>, Vec<u8>)>> {
                let tuple = if forward { c.next()? } else { c.prev()? };
                tuple
                    .map(|t| Ok((t.key.to_vec(), store.read_value(&t.value)?.to_vec())))
                    .transpose()
            };
            loop {
                match step() {
                    Err(_) => {
                        errors += 1;
                        break;
                    }
                    Ok(got) => {
                        assert_eq!(got.as_ref(), left.next(), "scan");
                        if got.is_none() {
                            break;
                        }
                    }
                }
            }
        }
        errors > 0
    }
}

#[test]
fn a_run_that_is_whole_reads_without_an_error() {
    let w = written(400);
    assert_eq!(w.faults(), Vec::<String>::new());
    assert!(!w.read());
}

#[test]
fn a_flipped_bit_is_an_error_and_never_a_wrong_answer() {
    const KEYS: u64 = 100;
    let w = written(KEYS);
    let mut found = 0;
    for (zone, bytes) in w.run.uses().iter() {
        // A zone is filled from its start; between large values, one for ten keys, lies padding of
        // less than a sector.
        for at in zone.start()..zone.start() + (bytes + (KEYS / 10 + 1) * 512).min(ZONE_SIZE) {
            let bit = (at * 7 % 8) as u8;
            w.device.flip_bit(at, bit);
            let faults = w.faults();
            found += u64::from(!faults.is_empty());
            let error = w.read();
            assert!(
                !error || !faults.is_empty(),
                "address {at}, bit {bit}: a check that misses what a reader finds"
            );
            w.device.flip_bit(at, bit);
        }
    }
    // The use of a run counts the padding, of which nothing is known.
    let padding = w.run.uses().total_bytes().checked_sub(found);
    assert!(
        padding.is_some_and(|padding| padding < (KEYS / 10 + 1) * 512),
        "each byte of the run is guarded, and there are no others: {found}, {padding:?}"
    );
    assert!(!w.read());
}

#[test]
fn a_block_of_an_older_time_or_another_place_is_an_error() {
    // Two runs of the same shape; then the bytes of the first replace those of the second, all with
    // valid checksums.
    let (a, b) = (written(150), written(150));
    let other = {
        let m = Memtable::new();
        (0..150).for_each(|i| {
            m.put(&key(i), i + 1, Value::Inline(Bytes::from(format!("VALUE OF {i}"))))
        });
        let store = BlockCache::new(b.zones.clone(), 1 << 20);
        merge(&store, &[Input::Memtable(Arc::new(m))], &KeyRange::all(), MergeOptions::default())
            .expect("flushes")
            .expect("has keys")
    };
    let stale = Written {
        root: {
            let mut r = Vec::new();
            other.encode(&mut r);
            r
        },
        run: other,
        ..b
    };
    for (zone, _) in a.run.uses().iter() {
        use zones::{Device, Purpose};
        let mut bytes = vec![0; 200_000];
        a.device.read_at(Purpose::Tuples, zone.start(), &mut bytes).expect("inside the device");
        stale.device.write_at(Purpose::Tuples, zone.start(), &bytes).expect("inside the device");
    }
    assert!(!stale.faults().is_empty());
    let run = stale.cold();
    for i in 0..150 {
        assert!(run.get(&key(i), hash(&key(i))).is_err(), "key {i}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A root pointer has no checksum of its own (its user stores it with one), so a changed one
    /// may decode: reading what it points to must still not panic.
    #[test]
    fn a_root_pointer_of_any_bytes_does_not_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        garbage in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        thread_local!(static WRITTEN: Written = written(60));
        WRITTEN.with(|w| {
            let mut root = w.root.clone();
            for (at, byte) in &changes {
                let at = at.index(root.len());
                root[at] = *byte;
            }
            for root in [&root, &garbage] {
                let store = BlockCache::new(w.zones.clone(), 1 << 16);
                if let Ok(run) = Run::decode(&store, &mut &root[..]) {
                    let _ = run.get(&key(5), hash(&key(5)));
                    let mut c = TreeCursor::new(&store, &[Input::Run(run.clone())], u64::MAX);
                    while let Ok(Some(_)) = c.next() {}
                    check_run(&run, &mut |_| {}, &mut |_| {});
                }
            }
        });
    }
}
