//! The machine *rest* runs every background job to rest on stores of many shapes, and bounds the
//! bytes that it writes. A job that mistakes its own output for new work never rests.
//!
//! `make rest` runs a hundred shapes; `KVFS_SEEDS=n` that many, `KVFS_SEED=n` one.

mod full;
mod shape;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::{Backwards, seeds};
use env::Machine;
use kvdb::{
    CreateOptions, DefragOptions, DictionaryId, Kvdb, ScrubOptions, ValueOrder, View, VisitRange,
};
use shape::Shape;
use zones::{Job, MemoryDevice, ZONE_SIZE};

const MIB: u64 = 1 << 20;

/// The keys in the order in which 37 readers would read them, one after the other, each of which
/// takes every 37th key.
struct ByTurns;

impl ValueOrder for ByTurns {
    fn dictionaries(&self, view: &View) -> Vec<DictionaryId> {
        Backwards.dictionaries(view)
    }

    fn visit(&self, view: &View, visit: &mut VisitRange<'_>) -> kvdb::Result<()> {
        for dict in self.dictionaries(view) {
            let tuples = view.scan(dict, b"", b"", usize::MAX)?;
            for (key, _) in (0..37).flat_map(|first| tuples.iter().skip(first).step_by(37)) {
                let end = [&key[..], &[0]].concat();
                if visit(dict, key, &end)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// A store, and the bytes that it had written when last examined.
struct Store<'a> {
    shape: &'a Shape,
    db: Kvdb,
}

impl Store<'_> {
    fn written(&self) -> u64 {
        self.db.stats().io.total().write_bytes
    }

    fn by_job(&self) -> String {
        let io = self.db.stats().io;
        let jobs = Job::ALL.into_iter().filter(|job| io.written_by(*job) > 0);
        let jobs = jobs.map(|job| format!("{} {} KiB", job.name(), io.written_by(job) >> 10));
        jobs.collect::<Vec<_>>().join(", ")
    }

    /// The store as large as it is now, bytes.
    fn size(&self) -> u64 {
        self.db.stats().zones_held * ZONE_SIZE
    }

    /// Runs `work` and waits until no work is left. Returns the bytes that were written, which must
    /// not exceed `bound`.
    fn to_rest(&self, what: &str, bound: u64, work: impl FnOnce(&Kvdb)) -> u64 {
        let before = self.written();
        let so_far = || {
            let written = self.written() - before;
            assert!(
                written <= bound,
                "{what} has written {} MiB, and is not to write more than {} MiB; by jobs: {}; \
                 held {} MiB, {} zones reclaimable; {:?}; KVFS_SEED={}: {:?}",
                written / MIB,
                bound / MIB,
                self.by_job(),
                self.size() / MIB,
                self.db.stats().zones_reclaimable,
                self.db.defrag_progress(),
                self.shape.seed,
                self.shape,
            );
            written
        };
        work(&self.db);
        let begun = Instant::now();
        // Waits for a while, since some jobs begin after a pause.
        let mut quiet = 0;
        // A full store may have a merge that is due and finds no room: it is tried again every 5 s,
        // and must write nothing then.
        let mut last = (so_far(), Instant::now());
        while quiet < 20 && !(self.shape.full && last.1.elapsed() > Duration::from_secs(6)) {
            let written = so_far();
            if written != last.0 {
                last = (written, Instant::now());
            }
            quiet = if self.db.stats().at_rest { quiet + 1 } else { 0 };
            assert!(
                begun.elapsed() < Duration::from_secs(240),
                "{what} does not come to rest; by jobs: {}; KVFS_SEED={}: {:?}",
                self.by_job(),
                self.shape.seed,
                self.shape
            );
            std::thread::sleep(Duration::from_millis(4));
        }
        so_far()
    }

    /// Sets the order of values, which is not stored.
    fn set_order(&self) {
        if self.shape.laid {
            self.db.set_value_order(Arc::new(ByTurns));
        }
    }
}

/// Runs one job after the other to rest on a store of this shape.
fn comes_to_rest(shape: &Shape) {
    let device = Arc::new(MemoryDevice::new());
    let options = CreateOptions {
        open: shape.open(),
        reserve_zones: 8,
        capacity: shape.capacity(),
        ..CreateOptions::default()
    };
    let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), options).unwrap();
    let store = Store { shape, db };
    store.set_order();
    let mut put = 0;
    // Covers flushes, merges, merges that wait for quiet, gathering, and automatic defragmentation.
    // Each byte is flushed, merged level by level, and moved.
    let filled = store.to_rest("filling the store", u64::MAX, |db| put = shape.fill(db));
    let jobs = store.by_job();
    let size = store.size();
    // Values are laid twice at most, with the keys that refer to them.
    let laid = if shape.laid { put * 3 } else { 0 };
    let flushed = store.to_rest("a flush", put * 4 + laid + 32 * MIB, |db| db.flush().unwrap());
    let by_hand = |what: &str, bound: u64| {
        store.to_rest(what, bound, |db| {
            db.defragment(DefragOptions::default()).unwrap();
        })
    };
    let size = size.max(store.size());
    let first = by_hand("a defragmentation", size * 3 + 32 * MIB);
    let second = by_hand("a second defragmentation", size / 4 + 16 * MIB);
    let third = by_hand("a third defragmentation", size / 8 + 16 * MIB);
    let scrubbed = store.to_rest("a scrub", MIB, |db| {
        db.scrub(ScrubOptions::default()).unwrap();
        db.wait_for_scrub();
    });
    let quiet =
        store.to_rest("a quiet store", MIB, |_| std::thread::sleep(Duration::from_millis(100)));
    store.db.close().unwrap();
    drop(store.db);
    let (db, _) = Kvdb::open(device, Arc::new(Machine::default()), shape.open()).unwrap();
    let store = Store { shape, db };
    store.set_order();
    let opened = store.to_rest("a store that was opened again", size / 4 + 16 * MIB, |_| {});
    store.db.close().unwrap();
    if std::env::var_os("KVFS_TELL").is_some() {
        println!(
            "seed {}: {:?} of {} MiB put: filled {} MiB ({jobs}), size {} MiB, flushed {} KiB, \
             defragmented {} KiB, again {} KiB, again {} KiB, scrubbed {} KiB, quiet {} KiB, \
             opened {} KiB",
            shape.seed,
            shape.lengths,
            put / MIB,
            filled / MIB,
            size / MIB,
            flushed >> 10,
            first >> 10,
            second >> 10,
            third >> 10,
            scrubbed >> 10,
            quiet >> 10,
            opened >> 10,
        );
    }
    // Everything may be rewritten a few times, but not endlessly. With many dictionaries each flush
    // writes a few sectors for each of them.
    let times = if shape.dictionaries > 100 { 32 } else { 8 };
    assert!(
        filled <= put * times + laid + 256 * MIB,
        "filling wrote {} MiB: {shape:?}",
        filled / MIB
    );
}

#[test]
fn every_job_of_the_background_comes_to_rest_on_every_shape() {
    for seed in seeds(6) {
        comes_to_rest(&Shape::of_seed(seed));
    }
}

/// The store of the bug report: many files of 2,100 bytes, each with 460 bytes of padding. The
/// padding of values that were just packed must not be taken for holes.
#[test]
fn padding_is_not_taken_for_holes() {
    let mut shape = Shape::of_seed(0);
    shape = Shape {
        lengths: shape::Lengths::One(2100),
        bytes: 240 * MIB,
        dictionaries: 1,
        options: kvdb::DictionaryOptions::default(),
        memory: 32 << 20,
        repetitive: false,
        overwritten: 0,
        deleted: 3,
        updated: 0,
        range: false,
        snapshot: false,
        clone: false,
        dropped: false,
        full: false,
        laid: false,
        ..shape
    };
    comes_to_rest(&shape);
}

/// Most values lie together and some between them do not. A repeated defragmentation does not move
/// them again.
#[test]
fn what_was_laid_in_order_is_not_moved_again() {
    comes_to_rest(&Shape::of_seed(42));
}

/// A megabyte in three hundred dictionaries, with four of memory: each flush writes some sectors
/// for each of them, so it must not come after every commit.
#[test]
fn many_small_dictionaries_are_not_flushed_with_every_commit() {
    comes_to_rest(&Shape::of_seed(51));
}

#[test]
fn what_is_laid_while_the_store_is_quiet_comes_to_rest() {
    for (seed, len) in seeds(3).zip([4096, 2100, 20_000].into_iter().cycle()) {
        let shape = Shape::of_seed(seed);
        let shape = Shape {
            lengths: shape::Lengths::One(len),
            bytes: 30 * MIB,
            dictionaries: 1,
            options: kvdb::DictionaryOptions::default(),
            snapshot: false,
            clone: false,
            dropped: false,
            full: false,
            laid: true,
            ..shape
        };
        comes_to_rest(&shape);
    }
}
