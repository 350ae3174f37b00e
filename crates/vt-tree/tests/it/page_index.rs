//! Tests of the index of pages that are consecutive in keys and on the device. The index takes
//! little more space than their checksums. It finds every page, knows without a read which pages
//! are missing, and survives merges.

use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{
    BlockCache, ExtentRef, Input, KeyRange, Lookup, Memtable, MergeOptions, Placement, Run, Value,
    check_run, hash, merge, place_value,
};
use zones::{FormatOptions, MemoryDevice, Priority, Purpose, Zones};

fn store() -> Arc<BlockCache> {
    let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default()).unwrap();
    zones.start();
    BlockCache::new(zones, 4 << 20)
}

fn key(file: u64, page: u64) -> Vec<u8> {
    [file.to_be_bytes(), page.to_be_bytes()].concat()
}

/// A run of the pages of a file, in order, as a flush makes it.
fn pages(
    store: &Arc<BlockCache>,
    file: u64,
    pages: std::ops::Range<u64>,
    seq: u64,
) -> (Arc<Run>, Vec<ExtentRef>) {
    let m = Arc::new(Memtable::new());
    let mut writer = store.zones().extent_writer(Purpose::Pages, Priority::Log);
    let mut extents = Vec::new();
    for (i, page) in pages.enumerate() {
        let extent = place_value(&mut writer, &page.to_le_bytes().repeat(512)).unwrap();
        m.put(&key(file, page), seq + i as u64, Value::Extent(extent));
        extents.push(extent);
    }
    m.pin(writer.finish().unwrap());
    let options = MergeOptions { old_seq: 0, ..MergeOptions::default() };
    (merge(store, &[Input::Memtable(m)], &KeyRange::all(), options).unwrap().unwrap(), extents)
}

fn whole(run: &Arc<Run>) {
    let mut faults = Vec::new();
    check_run(run, &mut |f| faults.push(f), &mut |_| {});
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn ten_gigabytes_of_pages_would_be_indexed_in_less_than_10_8_megabytes() {
    const PAGES: u64 = 40_000;
    let store = store();
    let (run, extents) = pages(&store, 7, 0..PAGES, 1000);
    let stats = run.stats();
    assert_eq!((stats.items, stats.value_bytes), (PAGES, PAGES * 4096));
    // Blocks, index nodes and filters.
    let per_page = (stats.bytes - stats.value_bytes) as f64 / PAGES as f64;
    let ten_gigabytes = per_page * (10u64 << 30) as f64 / 4096.0;
    println!("{per_page:.3} bytes of index a page, {:.2} MB for 10 GiB", ten_gigabytes / 1e6);
    assert!(ten_gigabytes < 10.8e6, "{per_page:.3} bytes of index a page");
    whole(&run);
    for i in (0..PAGES).step_by(997).chain([PAGES - 1]) {
        let k = key(7, i);
        assert_eq!(
            run.get(&k, hash(&k)).unwrap(),
            Lookup::Found(1000 + i, Value::Extent(extents[i as usize]))
        );
    }
    for missing in [key(7, PAGES), key(6, 0), key(8, 0), b"x".to_vec(), key(7, 5)[..15].to_vec()] {
        assert_eq!(run.get(&missing, hash(&missing)).unwrap(), Lookup::Absent);
    }
}

#[test]
fn extent_runs_between_other_tuples_and_across_merges_are_found() {
    let store = store();
    let (a, in_a) = pages(&store, 7, 0..9000, 1);
    let (b, in_b) = pages(&store, 7, 4000..4100, 20_000);
    let (c, in_c) = pages(&store, 9, 0..3000, 30_000);
    let m = Arc::new(Memtable::new());
    for i in 0..4000u64 {
        m.put(
            &[&key(8, i)[..], b"x"].concat(),
            50_000 + i,
            Value::Inline(Bytes::from(vec![i as u8; 20])),
        );
    }
    m.delete(&key(7, 100), 60_000);
    m.delete_range(&key(9, 10), &key(9, 20), 60_001);
    for placement in [Placement::stitch(), Placement::threshold(64 << 10), Placement::copy()] {
        let inputs = [
            Input::Memtable(m.clone()),
            Input::Run(c.clone()),
            Input::Run(b.clone()),
            Input::Run(a.clone()),
        ];
        let options = MergeOptions { placement, drop_tombstones: true, ..MergeOptions::default() };
        let run = merge(&store, &inputs, &KeyRange::all(), options).unwrap().unwrap();
        whole(&run);
        assert_eq!(run.stats().items, 9000 - 1 + 4000 + 3000 - 10);
        let found = |k: &[u8]| run.get(k, hash(k)).unwrap();
        // A copied value has another address.
        let is_page = |k: &[u8], crc: u32| matches!(found(k), Lookup::Found(_, Value::Extent(e)) if e.crc == crc);
        for i in 0..9000u64 {
            let crc = if (4000..4100).contains(&i) {
                in_b[i as usize - 4000].crc
            } else {
                in_a[i as usize].crc
            };
            assert_eq!(is_page(&key(7, i), crc), i != 100, "page {i}");
        }
        for i in 0..3000u64 {
            assert_eq!(
                is_page(&key(9, i), in_c[i as usize].crc),
                !(10..20).contains(&i),
                "page {i}"
            );
        }
        for i in 0..4000u64 {
            assert!(matches!(
                found(&[&key(8, i)[..], b"x"].concat()),
                Lookup::Found(_, Value::Inline(_))
            ));
            assert_eq!(found(&key(8, i)), Lookup::Absent);
        }
    }
}
