use bytes::Bytes;
use zones::varint;

use super::*;
use crate::item::{Body, Item, Seq};
use crate::value::{Compression, ExtentRef, Value};

fn sample() -> Vec<Item> {
    (0..200u64)
        .map(|i| {
            let key = Bytes::from(format!("key/{:06}", i * 10));
            let body = match i % 5 {
                0 => Body::Put(Value::Inline(Bytes::from(vec![i as u8; i as usize % 40]))),
                1 | 2 => Body::Put(Value::Extent(ExtentRef::plain(4096 * i, 4096, i as u32))),
                3 => Body::Delete,
                _ => Body::DeleteRange { end: Bytes::from(format!("key/{:06}", i * 10 + 5)) },
            };
            Item { key, seq: if i % 3 == 0 { 0 } else { 1000 + i }, body }
        })
        .collect()
}

/// Returns items with compressed values, most of them of 900 to 3500 bytes, and some uncompressed
/// values. The values are placed one after the other from `addr` on.
fn packed(keys: impl Iterator<Item = Bytes>, addr: u64) -> Vec<Item> {
    let mut end = addr;
    let mut item = |(i, key): (usize, Bytes)| {
        let e = ExtentRef::packed(0, 4096, 900 + i as u32 * 37 % 2600, i as u32, Compression::Zstd)
            .unwrap();
        let e = if i % 11 == 5 { ExtentRef::plain(0, 4096, 77) } else { e };
        let e = ExtentRef { addr: e.behind(end).unwrap(), ..e };
        end = e.end();
        Item { key, seq: 0, body: Body::Put(Value::Extent(e)) }
    };
    keys.enumerate().map(&mut item).collect()
}

fn all_items(block: &Block) -> Vec<Item> {
    (0..block.intervals()).flat_map(|g| block.interval(g).unwrap()).collect()
}

#[test]
fn compressed_values_come_back_and_cost_six_bytes_in_a_row() {
    let number = |i: u64| Bytes::from([&9u64.to_be_bytes()[..], &i.to_be_bytes()].concat());
    let items = packed((0..1000).map(number), 1 << 30);
    let mut b = BlockBuilder::default();
    items.iter().for_each(|i| b.add(&i.key, 0, i.borrow().body));
    let upper = b.size();
    let (bytes, run) = b.finish();
    assert!(
        run && bytes.len() < 6300 && bytes.len() <= upper,
        "{} bytes, {upper} expected",
        bytes.len()
    );
    let block = Block::parse(Bytes::copy_from_slice(bytes), 0).unwrap();
    assert_eq!(all_items(&block), items);
    for i in &items {
        assert_eq!(block.find(&i.key).unwrap(), Some((0, i.body.clone())));
    }
    // Test two sequences that do not form an extent run. In the first sequence, neither keys nor
    // lengths continue. The second sequence becomes packed late, with another codec than the
    // earlier values.
    let mut items = packed((0..100u64).map(|i| Bytes::from(format!("k{:09}", i * i * i))), 1 << 31);
    items.extend((0..50).map(|i| page(1 << 62, i, (1 << 32) + i * 4096, 0)));
    for (i, item) in items[100..].iter_mut().enumerate().skip(30) {
        let codec = if i < 40 { Compression::Lz4 } else { Compression::Zstd };
        let Body::Put(Value::Extent(e)) = &mut item.body else { unreachable!() };
        *e = ExtentRef::packed(
            (1 << 32) + 30 * 4096 + (i as u64 - 30) * 512,
            4096,
            512,
            e.crc,
            codec,
        )
        .unwrap();
    }
    items.sort_by(|a, b| a.key.cmp(&b.key));
    let block = build(&items);
    assert_eq!(all_items(&block), items);
    for i in &items {
        assert_eq!(block.find(&i.key).unwrap(), Some((i.seq, i.body.clone())));
    }
}

fn build(items: &[Item]) -> Block {
    let mut b = BlockBuilder::default();
    for i in items {
        b.add(&i.key, i.seq, i.borrow().body);
    }
    Block::parse(Bytes::copy_from_slice(b.finish().0), 0).unwrap()
}

#[test]
fn items_come_back_as_they_went_in() {
    let items = sample();
    let block = build(&items);
    let back: Vec<Item> = (0..block.intervals()).flat_map(|g| block.interval(g).unwrap()).collect();
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

fn page(file: u64, i: u64, addr: u64, seq: Seq) -> Item {
    let key = [file.to_be_bytes(), i.to_be_bytes()].concat();
    Item {
        key: key.into(),
        seq,
        body: Body::Put(Value::Extent(ExtentRef::plain(addr, 4096, i as u32 * 7))),
    }
}

#[test]
fn consecutive_pages_cost_their_checksum() {
    let mut b = BlockBuilder::default();
    for i in 0..1000u64 {
        let page = page(7, i, (100 + i) * 4096, 0);
        b.add(&page.key, 0, page.borrow().body);
    }
    assert!(b.size() < 4100);
    let (bytes, run) = b.finish();
    assert!(run && bytes.len() < 4050, "{} bytes", bytes.len());
}

#[test]
fn extent_runs_and_what_lies_between_come_back_and_are_found() {
    let mut items = Vec::new();
    // Add items with ascending sequence numbers, a hole, a jump of the address, and a jump of the
    // sequence number, and then items of other kinds between them.
    items.extend((0..200).map(|i| page(1, i, (1000 + i) * 4096, 50 + i)));
    items.extend((300..400).map(|i| page(1, i, (1000 + i) * 4096, 0)));
    items.extend((400..470).map(|i| page(1, i, (5000 + i) * 4096, 9)));
    items.push(Item { key: items[items.len() - 1].key.slice(..8), seq: 3, body: Body::Delete });
    items.last_mut().unwrap().key = Bytes::from([&2u64.to_be_bytes()[..], b"x"].concat());
    items.extend((0..3).map(|i| page(3, i, (9000 + i) * 4096, 0)));
    items.extend((10..30).map(|i| page(3, 2 * i, (9100 + i) * 4096, 70)));
    let decimal = |i: u64, addr: u64| {
        let body = Body::Put(Value::Extent(ExtentRef::plain(addr, 1000, i as u32)));
        Item { key: Bytes::from(format!("line {i:05}")), seq: 0, body }
    };
    items.extend((95..200).map(|i| decimal(i, i * 1024)));
    items.extend(
        (200..300).map(|i| Item { key: Bytes::from(format!("n{i:03x}")), ..decimal(i, i * 1024) }),
    );
    let block = build(&items);
    assert!(block.intervals() > 8);
    let back: Vec<Item> = (0..block.intervals()).flat_map(|g| block.interval(g).unwrap()).collect();
    assert_eq!(back.len(), items.len());
    assert_eq!(back, items);
    for (i, item) in items.iter().enumerate() {
        assert_eq!(block.find(&item.key).unwrap(), Some((item.seq, item.body.clone())));
        let g = block.interval_of(&item.key).unwrap();
        assert!(block.interval(g).unwrap().contains(item), "item {i} is in its interval");
    }
    for missing in [
        page(1, 250, 0, 0),
        page(1, 470, 0, 0),
        page(3, 21, 0, 0),
        page(0, 0, 0, 0),
        page(9, 0, 0, 0),
    ] {
        assert_eq!(block.find(&missing.key).unwrap(), None);
        assert!(block.interval_of(&missing.key).unwrap() < block.intervals());
    }
    assert_eq!(block.find(b"line 0009").unwrap(), None);
    assert_eq!(block.find(b"line 000950").unwrap(), None);
}

/// Returns a block of deletions that are all in one restart interval. Each deletion is described by
/// the number of bytes that its key shares with the previous key, and its further bytes.
fn deletions(keys: impl IntoIterator<Item = (usize, Vec<u8>)>) -> Bytes {
    let mut payload = Vec::new();
    for (shared, further) in keys {
        varint::put_u64(&mut payload, shared as u64);
        varint::put_u64(&mut payload, further.len() as u64);
        payload.push(DELETE);
        payload.extend_from_slice(&further);
    }
    payload.extend_from_slice(&0u32.to_le_bytes());
    payload.extend_from_slice(&1u32.to_le_bytes());
    payload.into()
}

/// Each item takes a few bytes and has a key as long as the first key. Without a limit, the items
/// of a block would take thousands of times the length of the block.
#[test]
fn a_restart_interval_of_more_items_than_a_writer_puts_there_is_an_error() {
    let keys = |n: u8| (0..n).map(|i| if i == 0 { (0, vec![b'k', 0]) } else { (1, vec![i]) });
    let full = Block::parse(deletions(keys(INTERVAL as u8)), 0).unwrap();
    assert_eq!(full.interval(0).unwrap().len(), INTERVAL);
    let long = Block::parse(deletions(keys(INTERVAL as u8 + 1)), 0).unwrap();
    assert!(matches!(long.interval(0), Err(crate::Error::Corrupt { .. })));
}

#[test]
fn an_extent_run_whose_keys_would_fill_the_memory_is_an_error() {
    let block = |items: u64| {
        let mut b = BlockBuilder::default();
        for i in 0..items {
            let key = [&[7; 64 << 10][..], &i.to_be_bytes()].concat();
            let e = ExtentRef::plain(4096 * i, 4096, 0);
            b.add(&key, 0, crate::item::BodyRef::Put(crate::value::ValueRef::Extent(e)));
        }
        Block::parse(Bytes::copy_from_slice(b.finish().0), 0)
    };
    assert!(block(1000).is_ok());
    assert!(matches!(block(1100), Err(crate::Error::Corrupt { .. })), "70 MiB of keys in 70 KiB");
}

#[test]
fn a_packed_extent_run_of_more_items_than_a_writer_puts_there_is_an_error() {
    let block = |items: usize| {
        let mut payload = vec![0, 8, EXTENT_RUN | HAS_PACKED];
        payload.extend_from_slice(&7u64.to_be_bytes());
        varint::put_u64(&mut payload, items as u64);
        // The keys are counted by their last eight bytes, in steps of one.
        payload.extend_from_slice(&[8, 1]);
        varint::put_u64(&mut payload, 1 << 30);
        varint::put_u64(&mut payload, 4096);
        payload.push(Compression::Lz4.code());
        payload.extend_from_slice(&vec![0; 4 * items]);
        (0..items).for_each(|_| payload.extend_from_slice(&900u16.to_le_bytes()));
        payload.extend_from_slice(&0u32.to_le_bytes());
        payload.extend_from_slice(&(1 | HAS_EXTENT_RUNS).to_le_bytes());
        Block::parse(payload.into(), 0)
    };
    assert_eq!(all_items(&block(256).unwrap()).len(), 256);
    assert!(matches!(block(257), Err(crate::Error::Corrupt { .. })));
}
