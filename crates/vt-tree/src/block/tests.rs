use bytes::Bytes;

use super::*;
use crate::item::{Body, Item, Seq, Value};

fn sample() -> Vec<Item> {
    (0..200u64)
        .map(|i| {
            let key = Bytes::from(format!("key/{:06}", i * 10));
            let body = match i % 5 {
                0 => Body::Put(Value::Inline(Bytes::from(vec![i as u8; i as usize % 40]))),
                1 | 2 => Body::Put(Value::Extent(ExtentRef { addr: 4096 * i, len: 4096, crc: i as u32 })),
                3 => Body::Delete,
                _ => Body::DeleteRange { end: Bytes::from(format!("key/{:06}", i * 10 + 5)) },
            };
            Item { key, seq: if i % 3 == 0 { 0 } else { 1000 + i }, body }
        })
        .collect()
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
    let back: Vec<Item> = (0..block.groups()).flat_map(|g| block.group(g).unwrap()).collect();
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
    Item { key: key.into(), seq, body: Body::Put(Value::Extent(ExtentRef { addr, len: 4096, crc: i as u32 * 7 })) }
}

#[test]
fn consecutive_pages_cost_their_checksum() {
    let mut b = BlockBuilder::default();
    for i in 0..1000u64 {
        let page = page(7, i, (100 + i) * 4096, 0);
        b.add(&page.key, 0, page.borrow().body);
    }
    assert!(b.size() < 4100);
    let (bytes, series) = b.finish();
    assert!(series && bytes.len() < 4050, "{} bytes", bytes.len());
}

#[test]
fn series_and_what_lies_between_come_back_and_are_found() {
    let mut items = Vec::new();
    // Ascending sequence numbers, a hole, a jump of the address, a jump of the sequence number; then other kinds, in between.
    items.extend((0..200).map(|i| page(1, i, (1000 + i) * 4096, 50 + i)));
    items.extend((300..400).map(|i| page(1, i, (1000 + i) * 4096, 0)));
    items.extend((400..470).map(|i| page(1, i, (5000 + i) * 4096, 9)));
    items.push(Item { key: items[items.len() - 1].key.slice(..8), seq: 3, body: Body::Delete });
    items.last_mut().unwrap().key = Bytes::from([&2u64.to_be_bytes()[..], b"x"].concat());
    items.extend((0..3).map(|i| page(3, i, (9000 + i) * 4096, 0)));
    items.extend((10..30).map(|i| page(3, 2 * i, (9100 + i) * 4096, 70)));
    let decimal = |i: u64, addr: u64| {
        let body = Body::Put(Value::Extent(ExtentRef { addr, len: 1000, crc: i as u32 }));
        Item { key: Bytes::from(format!("line {i:05}")), seq: 0, body }
    };
    items.extend((95..200).map(|i| decimal(i, i * 1024)));
    items.extend((200..300).map(|i| Item { key: Bytes::from(format!("n{i:03x}")), ..decimal(i, i * 1024) }));
    let block = build(&items);
    assert!(block.groups() > 8);
    let back: Vec<Item> = (0..block.groups()).flat_map(|g| block.group(g).unwrap()).collect();
    assert_eq!(back.len(), items.len());
    assert_eq!(back, items);
    for (i, item) in items.iter().enumerate() {
        assert_eq!(block.find(&item.key).unwrap(), Some((item.seq, item.body.clone())));
        let g = block.group_of(&item.key).unwrap();
        assert!(block.group(g).unwrap().contains(item), "item {i} is in its group");
    }
    for missing in [page(1, 250, 0, 0), page(1, 470, 0, 0), page(3, 21, 0, 0), page(0, 0, 0, 0), page(9, 0, 0, 0)] {
        assert_eq!(block.find(&missing.key).unwrap(), None);
        assert!(block.group_of(&missing.key).unwrap() < block.groups());
    }
    assert_eq!(block.find(b"line 0009").unwrap(), None);
    assert_eq!(block.find(b"line 000950").unwrap(), None);
}
