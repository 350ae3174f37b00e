//! Entry points to every parser of this crate, for the fuzz targets under `fuzz/` and the property
//! tests below. Each accepts any bytes, and must neither panic nor run forever. Checksums are
//! corrected first, so that the code after the checksum test is reached. Normal builds do not
//! include this module.

use std::hint::black_box;

use bytes::Bytes;

use crate::block::Block;
use crate::block::restart_interval::RestartInterval;
use crate::filter::{FALSE_POSITIVES, Filter, FilterBuilder};
use crate::index::entry::Entry;
use crate::index::frame::{FrameKind, FramePointer, open};
use crate::index::index_node::IndexNode;
use crate::index::node::Node;
use crate::item::Body;
use crate::merge::builder::follows_block;
use crate::value::{ExtentRef, Value, contiguous};

/// Parses the payload of a tuple block, and looks up keys of the block in it.
pub fn tuple_block(data: &[u8]) {
    let Ok(block) = Block::parse(Bytes::copy_from_slice(data), 4096) else { return };
    black_box(block.weight());
    let mut last: Option<ExtentRef> = None;
    for g in 0..block.intervals() + 1 {
        let mut again = RestartInterval::default();
        let decoded = block.interval_into(g, &mut again);
        let Ok(items) = block.interval(g) else { continue };
        assert!(decoded.is_ok() && again.len() == items.len());
        for (i, item) in items.into_iter().enumerate() {
            assert_eq!(again.item(i).map(|i| i.to_item()).as_ref(), Some(&item));
            black_box((item.covers(data), item.ends_before(data)));
            black_box(block.find(&item.key).is_ok());
            black_box(block.interval_of(&item.key).is_ok());
            if let Body::Put(Value::Extent(e)) = item.body {
                black_box(last.is_some_and(|last| contiguous(&last, &e)));
                last = Some(e);
            }
        }
    }
    black_box(block.find(data).is_ok());
}

/// Parses the payload of an index node.
pub fn index_node(data: &[u8]) {
    let Ok(node) = Node::parse(Bytes::copy_from_slice(data), 1, 4096) else { return };
    let searched = IndexNode::of(&node);
    black_box((searched.weight(), searched.covering(data), searched.before(data)));
    for pair in node.entries.windows(2) {
        black_box(follows_block(pair[0].at.end(), &pair[1]));
    }
    for (i, e) in node.entries.iter().enumerate() {
        index_entry_use(e);
        assert_eq!(searched.covering(&e.low), Some(i), "an entry is found by its lower fence");
    }
}

/// Parses an index entry that follows another key. Encodes the entry again, and checks that this
/// parses to the same entry.
pub fn index_entry(data: &[u8]) {
    let Some((&split, data)) = data.split_first() else { return };
    let (before, data) = data.split_at((split as usize).min(data.len()));
    let mut at = 0;
    let Some(e) = Entry::decode(&Bytes::copy_from_slice(data), &mut at, before) else { return };
    assert!(at <= data.len());
    index_entry_use(&e);
    let mut out = Vec::new();
    e.encode(before, &mut out);
    let mut again = 0;
    assert_eq!(Entry::decode(&Bytes::from(out), &mut again, before), Some(e));
}

fn index_entry_use(e: &Entry) {
    black_box((e.data_bytes(), e.at.end(), e.zone_use().is_ok()));
}

/// Returns `data` with its first four bytes replaced by the checksum of the rest, and that
/// checksum.
fn sealed(data: &[u8]) -> (Vec<u8>, u32) {
    let mut data = data.to_vec();
    let crc = data.get(4..).map_or(0, zones::crc32c);
    if data.len() >= 4 {
        data[..4].copy_from_slice(&crc.to_le_bytes());
    }
    (data, crc)
}

/// Parses a frame, after correcting its checksum and making a matching pointer to it.
pub fn frame(data: &[u8]) {
    let (data, crc) = sealed(data);
    let addr = data.get(8..16).map_or(0, |a| a.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)));
    let at = FramePointer { addr, len: data.len() as u32, crc };
    for kind in [FrameKind::Tuples, FrameKind::Node, FrameKind::Filter] {
        for level in [0, 1] {
            black_box(open(Bytes::copy_from_slice(&data), kind, level, at).is_ok());
        }
    }
}

/// Parses a filter, after correcting its checksum. Checks that a filter built from its fingerprints
/// contains all of them.
pub fn filter(data: &[u8]) {
    let Ok(filter) = Filter::parse(Bytes::from(sealed(data).0)) else { return };
    let mut count = 0;
    for f in filter.fingerprints() {
        count += 1;
        black_box(filter.may_contain(f << (64 - filter.bits())));
    }
    assert_eq!(count, filter.len());
    for top in 0..=255u64 {
        black_box(filter.may_contain(top << 56 | top));
    }
    let mut b = FilterBuilder::new(FALSE_POSITIVES);
    b.add_all(&filter);
    let again = Filter::parse(b.finish().into()).expect("what is built parses");
    assert!(filter.fingerprints().all(|f| again.may_contain(f << (64 - filter.bits()))));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockBuilder;
    use crate::index::node::NodeBuilder;
    use crate::item::{BodyRef, Item};
    use crate::value::ValueRef;
    use crate::value::{Compression, Packer};
    use proptest::prelude::*;

    fn key(i: u64) -> Bytes {
        Bytes::from(format!("key {:04}", i * 3))
    }

    /// Returns a block with items and extent runs of each kind.
    fn block() -> Vec<u8> {
        let mut b = BlockBuilder::default();
        for i in 0..60 {
            let body = match i % 5 {
                0 => Body::Put(Value::Inline(vec![7; i as usize].into())),
                1 | 2 => Body::Put(Value::Extent(ExtentRef::plain(i * 4096, 4096, 1))),
                3 => Body::Delete,
                _ => Body::DeleteRange { end: Bytes::from(format!("key {:04}", i * 3 + 2)) },
            };
            let item = Item { key: key(i), seq: i % 2 * 1000, body };
            b.add(&item.key, item.seq, item.borrow().body);
        }
        // Add an extent run, and one that ends early.
        for i in 0..210u64 {
            let key = [b"page".as_slice(), &(i + i / 200 * 9).to_be_bytes()].concat();
            let e = ExtentRef::plain((1 << 30) + i * 4096, 4096, i as u32);
            b.add(&key, 5 + i, BodyRef::Put(ValueRef::Extent(e)));
        }
        // Add compressed extents: single ones, adjacent ones, and some in a packed extent run
        // together with uncompressed ones.
        for i in 0..90u64 {
            let key =
                [b"q".as_slice(), &(i + i / 40 * 1000 + i / 30 * i * i).to_be_bytes()].concat();
            let addr = (2 << 30) + i * 4096;
            let e =
                ExtentRef::packed(addr, 4096, 3000 + i as u32, i as u32, Compression::Lz4).unwrap();
            let e = if i % 7 == 3 { ExtentRef::plain(addr, 4096, 9) } else { e };
            b.add(&key, 5, BodyRef::Put(ValueRef::Extent(e)));
        }
        b.finish().0.to_vec()
    }

    /// Returns valid bytes of each kind, to be corrupted.
    fn whole(kind: usize) -> Vec<u8> {
        match kind {
            0 => block(),
            1 => {
                let mut node = NodeBuilder::default();
                (0..10).for_each(|i| node.push(entry(key(i), key(i + 1))));
                node.payload()
            }
            2 => {
                let mut out = vec![3, b'k', b'e', b'y'];
                entry(key(1), key(2)).encode(b"key", &mut out);
                out
            }
            3 => {
                let mut frame = vec![9; 40];
                crate::index::frame::seal(&mut frame, FrameKind::Node, 1, 0, 4096);
                frame
            }
            5 => {
                let mut packer = Packer::default();
                let (codec, stored) =
                    packer.pack(Compression::Lz4, &[7; 500]).expect("it gets smaller");
                let mut frame = [&[0; 16], stored].concat();
                crate::index::frame::seal(&mut frame, FrameKind::Tuples, 0, codec, 4096);
                frame
            }
            _ => {
                let mut b = FilterBuilder::new(FALSE_POSITIVES);
                (0..200).for_each(|i| b.add(crate::hash(&key(i))));
                b.finish()
            }
        }
    }

    fn entry(low: Bytes, high: Bytes) -> Entry {
        Entry {
            low,
            high,
            at: FramePointer { addr: 1 << 23, len: 8192, crc: 5 },
            filter: Some(FramePointer { addr: 1 << 24, len: 100, crc: 6 }),
            tombstones: true,
            range_tombstones: false,
            unfiltered: false,
            compressed: false,
            items: 100,
            max_seq: 1 << 40,
            block_bytes: 8192,
            block_spans: 1,
            value_bytes: 0,
            value_spans: 0,
            zones: vec![1, 1, 100].into(),
        }
    }

    const PARSERS: [fn(&[u8]); 6] = [tuple_block, index_node, index_entry, frame, filter, frame];

    #[test]
    fn what_is_spoilt_below_is_whole() {
        assert!(Block::parse(whole(0).into(), 0).is_ok());
        assert!(Node::parse(whole(1).into(), 1, 0).is_ok());
        assert!(Entry::decode(&whole(2)[4..].to_vec().into(), &mut 0, b"key").is_some());
        assert!(Filter::parse(whole(4).into()).is_ok());
        (0..PARSERS.len()).for_each(|kind| PARSERS[kind](&whole(kind)));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_make_a_reader_panic(
            kind in 0..PARSERS.len(),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(0), Just(255)]), 0..6),
            cut in proptest::option::of(any::<prop::sample::Index>()),
            garbage in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut bytes = whole(kind);
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            PARSERS[kind](&bytes);
            PARSERS[kind](&garbage);
        }
    }
}
