//! Tests of flipped bits in a store that is open. A scrub finds data that decays while the store is
//! in use, whatever is cached of it.

use std::sync::Arc;

use env::{Random, Simulated};
use kvdb::{Kvdb, OpenOptions, ScrubOptions};

use super::image::{End, Image};
use super::live::{Class, Live};
use super::number;

fn scrub(db: &Kvdb) -> Vec<kvdb::ScrubFault> {
    assert!(db.scrub(ScrubOptions::default()).unwrap());
    let progress = db.scrub_progress();
    assert!(progress.complete && !progress.running && progress.bytes > 0, "{progress:?}");
    let faults = db.scrub_faults();
    assert_eq!(progress.faults, faults.len() as u64);
    faults
}

/// Flips bits under the open store, one at a time.
fn flip(end: End, share: u64) {
    let image = Image::new(end);
    let live = Live::of(&image);
    let device = Arc::new(image.device.clone());
    let options = OpenOptions { read_only: true, memory: 64 << 20, ..image.options() };
    let (db, _) = Kvdb::open(device.clone(), Arc::new(Simulated::new(1)), options).unwrap();
    assert!(!image.expected.keys(&db), "everything is whole, and in the cache now");
    assert_eq!(scrub(&db), [], "a clean store");
    let mut random = Random::new(number("KVFS_SEED").unwrap_or(1) ^ share << 32);
    let flips = (number("KVFS_FLIPS").unwrap_or(320) * share).div_ceil(16);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..flips {
        let (class, at) = live.pick(&mut random);
        seen.insert(class);
        let bit = random.below(8) as u8;
        device.flip_bit(at, bit);
        let faults = scrub(&db);
        let context = format!("bit {bit} of byte {at:#x}, {class:?}: {faults:?}");
        match class {
            Class::Dead => assert!(faults.is_empty(), "{context}"),
            Class::End => {}
            // Padding between values, and values that were overwritten since.
            Class::Value if !live.current(at) => {
                assert!(!faults.is_empty() || image.byte(at) == 0, "{context}")
            }
            _ => assert!(!faults.is_empty(), "{context}"),
        }
        if matches!(class, Class::Tuples | Class::Index | Class::Value) {
            assert!(
                faults.iter().all(|f| f.keys.as_ref().is_some_and(|k| k.start < k.end)),
                "{context}"
            );
        }
        device.flip_bit(at, bit);
    }
    assert!(seen.len() >= 4, "{seen:?}");
    assert_eq!(scrub(&db), [], "all bits are back");
}

#[test]
fn a_scrub_of_a_store_with_a_journal() {
    flip(End::PowerCut, 7);
}

#[test]
fn a_scrub_of_a_store_with_a_long_journal() {
    flip(End::LongJournal, 2);
}

#[test]
fn a_scrub_of_a_store_with_all_in_runs() {
    flip(End::Closed, 7);
}
