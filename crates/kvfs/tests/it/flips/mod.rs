//! Tests of flipped bits. `check` finds a flipped bit anywhere in a store, and no read returns it
//! as data. Every read returns an error or exactly what was written, nothing is missing without an
//! error, and nothing panics.
//!
//! Not every byte of a store is alive. A byte is *live* here when it lies in
//!
//! - a superblock copy, all 4096 bytes of it;
//! - a chunk of the manifest, header, piece and padding, either of its two copies;
//! - a chunk of the journal from its start to its end, header, piece and padding;
//! - a tuple block, an index node, a filter;
//! - a large value that some key has now.
//!
//! Check finds a flip in every live byte, with two exceptions, both at the very end of a store that
//! was not closed: the journal's last chunk when it is a mark (it vouches for what is before it and
//! holds nothing), and one copy of the manifest's last chunk. A power cut while these are written
//! leaves the same, so they are no fault; nothing is lost with them. All other bytes are not live
//! (padding between values, what is behind the ends of journal and manifest, free zones, values
//! overwritten since): there a flip changes nothing that is read.
//!
//! `KVFS_FLIPS=n` flips n bits in all instead of the usual few, `KVFS_STRAYS=n` lets n blocks go
//! astray; `KVFS_SEED=n` draws others.

mod astray;
mod image;
mod live;
mod reading;
mod repair;
mod salvage;
mod scrub;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use env::{Random, Simulated};
use kvdb::{Kvdb, OpenOptions};
use zones::MemoryDevice;

use image::{End, Image};
use live::{Class, Live};
use reading::corrupt;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

/// Flips random bits of `image`, `share` sixteenths of the number that `KVFS_FLIPS` sets.
fn flip(image: &Image, share: u64) {
    let live = Live::of(image);
    let flips = (number("KVFS_FLIPS").unwrap_or(160) * share).div_ceil(16);
    let mut random = Random::new(number("KVFS_SEED").unwrap_or(1) ^ share << 32);
    let mut found = 0;
    for n in 0..flips {
        let (class, at) = live.pick(&mut random);
        let bit = random.below(8) as u8;
        let device = image.device.clone();
        device.flip_bit(at, bit);
        let deep = n % 4 == 0;
        let outcome =
            catch_unwind(AssertUnwindSafe(|| judge(image, &live, device, class, at, deep)));
        match outcome {
            Ok(reported) => found += u64::from(reported),
            Err(panic) => {
                eprintln!("flip {n} of {:?}: bit {bit} of byte {at:#x}, {class:?}", image.end);
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{:?}: {flips} flips, check reported {found}; live: {live}", image.end);
    assert!(found * 2 > flips, "most flips hit something that is alive");
}

/// Examines the effect of one flip. Returns whether check reported it.
fn judge(
    image: &Image,
    live: &Live,
    device: MemoryDevice,
    class: Class,
    at: u64,
    deep: bool,
) -> bool {
    let report = kvdb::check(Arc::new(device.clone()), &mut |_, _| {});
    match class {
        Class::Dead => assert!(report.is_clean(), "nothing is there, but: {:?}", report.faults),
        // A torn end cannot be distinguished from a damaged one.
        Class::End => {}
        Class::Value if !live.current(at) => {
            // Padding between values is zeros; a value that was overwritten since is checked as
            // long as a run has it.
            assert!(
                !report.is_clean() || image.byte(at) == 0,
                "the bytes of a value, and check found nothing"
            );
        }
        _ => assert!(!report.is_clean(), "check found nothing"),
    }
    let hurt = read(image, device.clone(), true) | read(image, device.clone(), false);
    assert!(!hurt || !report.is_clean(), "reading failed on something that check calls clean");
    if matches!(class, Class::Dead | Class::End) {
        assert!(!hurt, "nothing that counts was flipped, but reading failed");
    }
    if deep {
        merged(image, device, class);
    }
    !report.is_clean()
}

/// Opens the store and reads all of it, keys and files. Returns whether there was an error.
fn read(image: &Image, device: MemoryDevice, read_only: bool) -> bool {
    match open(image, device, read_only) {
        Some(db) => {
            let env = Arc::new(Simulated::new(1));
            image.expected.keys(&db) | image.expected.files(&db, env, read_only)
        }
        None => true,
    }
}

fn open(image: &Image, device: MemoryDevice, read_only: bool) -> Option<Kvdb> {
    let options = OpenOptions { read_only, flush_on_close: false, ..image.options() };
    match Kvdb::open(Arc::new(device), Arc::new(Simulated::new(1)), options) {
        Ok((db, _)) => Some(db),
        Err(e) => {
            assert!(corrupt(&e), "opening failed with: {e}");
            None
        }
    }
}

/// Flushes and merges everything: no flipped byte may get a new, right checksum on the way.
fn merged(image: &Image, device: MemoryDevice, class: Class) {
    let Some(db) = open(image, device.clone(), false) else { return };
    let mut failed = false;
    let mut note = |result: kvdb::Result<()>| {
        if let Err(e) = result {
            assert!(corrupt(&e), "merging failed with: {e}");
            failed = true;
        }
    };
    note(db.flush());
    for d in db.dictionaries() {
        note(db.compact(d.id));
    }
    assert!(
        !failed || !matches!(class, Class::Dead | Class::End),
        "nothing that counts was flipped, but merging failed"
    );
    image.expected.keys(&db);
}

#[test]
fn in_a_store_that_lost_power_with_commits_in_the_journal() {
    flip(&Image::new(End::PowerCut), 6);
}

#[test]
fn in_a_store_whose_journal_is_longer_than_a_segment() {
    flip(&Image::new(End::LongJournal), 1);
}

#[test]
fn in_a_store_that_was_closed_with_all_in_runs() {
    flip(&Image::new(End::Closed), 5);
}

#[test]
fn in_a_store_that_was_closed_with_commits_in_the_journal() {
    flip(&Image::new(End::ClosedUnflushed), 4);
}

#[test]
fn what_an_open_store_has_cached_does_not_hide_a_flip_from_check() {
    let image = Image::new(End::Closed);
    let live = Live::of(&image);
    let device = Arc::new(image.device.clone());
    let options = OpenOptions { read_only: true, memory: 64 << 20, ..image.options() };
    let (db, _) = Kvdb::open(device.clone(), Arc::new(Simulated::new(1)), options).unwrap();
    assert!(!image.expected.keys(&db), "everything is whole, and in the cache now");
    let mut random = Random::new(7);
    for class in [Class::Tuples, Class::Index] {
        let at = live.pick_of(class, &mut random);
        device.flip_bit(at, 3);
        assert!(!image.expected.keys(&db), "the cache still has it right");
        assert!(!kvdb::check(device.clone(), &mut |_, _| {}).is_clean(), "{class:?} at {at:#x}");
        device.flip_bit(at, 3);
    }
    assert!(kvdb::check(device, &mut |_, _| {}).is_clean());
}
