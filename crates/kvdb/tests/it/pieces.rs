//! Tests of large merges in several pieces. The result equals that of a merge in one piece, several
//! threads work on the pieces at the same time, and a piece may fail.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use crate::model::*;
use env::sync::{Condvar, Mutex};
use env::{Machine, Random, Simulated};
use kvdb::{
    CompactionPolicy, CreateOptions, DefragOptions, DictionaryOptions, Error, Kvdb, OpenOptions,
};
use zones::{Device, MemoryDevice, Purpose, Reading, ZONE_SIZE};

/// Runs the changes, steps and compactions of `seed`, merged in up to `pieces` subcompactions.
fn run(seed: u64, pieces: usize) -> (Model, u64, u64) {
    let mut random = Random::new(seed);
    let device = Arc::new(MemoryDevice::new());
    let open = OpenOptions { merge_part: 32 << 10, merge_threads: pieces, ..small() };
    let env = Arc::new(Simulated::new(seed));
    let db = create(device.clone(), env.clone(), open).unwrap();
    let dicts = dictionaries(&db).unwrap();
    let mut expected = with_all(Model::new(), &dicts);
    for round in 0..400 {
        let changes = changes(&mut random, &dicts);
        db.commit(batch(&changes), kvdb::Durability::Buffered).unwrap();
        apply(&mut expected, &changes);
        match random.below(10) {
            0 => db.flush().unwrap(),
            1..=4 => drop(db.step().unwrap()),
            5 => env.advance(Duration::from_millis(20)),
            6 if round % 50 == 9 => drop(
                db.defragment(DefragOptions { fullest_percent: 99, ..DefragOptions::default() })
                    .unwrap(),
            ),
            // Crashes in the middle of any work in progress.
            6 if round % 20 == 7 => db.compact(dicts[random.below(3) as usize]).unwrap(),
            _ => {}
        }
        if round % 40 == 0 {
            assert_eq!(
                contents(&db).unwrap(),
                expected,
                "seed {seed}, round {round}, {pieces} pieces"
            );
        }
    }
    db.flush().unwrap();
    for dict in &dicts {
        db.compact(*dict).unwrap();
    }
    assert_eq!(contents(&db).unwrap(), expected, "seed {seed}, {pieces} pieces");
    let stats = db.stats();
    for dict in &stats.dictionaries {
        assert!(
            dict.levels.iter().map(Vec::len).sum::<usize>() <= 1,
            "one run is left: {:?}",
            dict.levels
        );
    }
    let items =
        stats.dictionaries.iter().flat_map(|d| d.levels.iter().flatten()).map(|r| r.items).sum();
    db.close().unwrap();
    let report = kvdb::check(device, &mut |_, _| {});
    assert!(report.is_clean(), "seed {seed}, {pieces} pieces: {:?}", report.faults);
    (expected, items, stats.split_merges)
}

#[test]
fn the_outcome_is_that_of_one_piece() {
    let mut split = 0;
    for seed in seeds(12) {
        let (whole, items, none) = run(seed, 1);
        assert_eq!(none, 0);
        assert_eq!(
            items,
            whole.values().map(|d| d.len() as u64).sum::<u64>(),
            "nothing dead is left"
        );
        for pieces in [2, 5] {
            let (again, same, some) = run(seed, pieces);
            assert_eq!((again, same), (whole.clone(), items));
            split += some;
        }
    }
    assert!(split > 100, "merges were split: {split}");
}

/// A device on which the first thread of a merge that writes waits until a second one does.
#[derive(Default)]
struct TwoWriters {
    device: MemoryDevice,
    writers: Mutex<BTreeSet<u64>>,
    met: Condvar,
    /// No second writer arrived.
    alone: Mutex<bool>,
}

fn number(thread: ThreadId) -> u64 {
    // Only the printed form of a thread id is stable.
    format!("{thread:?}")
        .chars()
        .filter(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .unwrap_or(0)
}

impl Device for TwoWriters {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.device.read_at(purpose, offset, buf)
    }
    fn read_many(&self, purpose: Purpose, reads: &mut [Reading<'_>]) -> std::io::Result<()> {
        self.device.read_many(purpose, reads)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> std::io::Result<()> {
        let thread = std::thread::current();
        if thread.name() == Some("kvdb-merge") && matches!(purpose, Purpose::Tuples) {
            let mut writers = self.writers.lock();
            writers.insert(number(thread.id()));
            self.met.notify_all();
            while writers.len() < 2 {
                if self.met.wait_for(&mut writers, Duration::from_secs(60)).timed_out() {
                    *self.alone.lock() = true;
                    break;
                }
            }
        }
        self.device.write_at(purpose, offset, buf)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.device.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.device.discard(offset, len)
    }
    fn len(&self) -> std::io::Result<u64> {
        self.device.len()
    }
    fn grow(&self, new_len: u64) -> std::io::Result<()> {
        self.device.grow(new_len)
    }
}

/// Runs of one dictionary, `runs` of them with `tuples` each, at random keys; nothing was merged
/// yet.
fn several_runs(device: Arc<dyn Device>, runs: u64, tuples: u64) {
    let open = OpenOptions {
        threads: false,
        compaction: CompactionPolicy { runs_per_level: 64, ..CompactionPolicy::default() },
        ..OpenOptions::default()
    };
    let db = Kvdb::create(
        device,
        Arc::new(Machine::default()),
        CreateOptions { open, ..CreateOptions::default() },
    )
    .unwrap();
    let d = db.open_dictionary("d").unwrap();
    let mut random = Random::new(7);
    for run in 0..runs {
        for _ in 0..tuples {
            d.insert(random.number().to_be_bytes().to_vec(), vec![run as u8; 100]).unwrap();
        }
        db.flush().unwrap();
    }
    assert_eq!(db.stats().compactions, 0);
    db.close().unwrap();
}

fn threads(n: usize) -> OpenOptions {
    OpenOptions {
        merge_threads: n,
        merge_part: 1 << 20,
        compaction: CompactionPolicy { runs_per_level: 4, ..CompactionPolicy::default() },
        ..OpenOptions::default()
    }
}

#[test]
fn two_threads_merge_one_pair_of_levels_at_the_same_time() {
    let device = Arc::new(TwoWriters::default());
    several_runs(device.clone(), 4, 8000);
    let (db, _) = Kvdb::open(device.clone(), Arc::new(Machine::default()), threads(2)).unwrap();
    // One merge of everything is due. The first of its two threads waits in the middle for the
    // other.
    db.flush().unwrap();
    await_rest(&db);
    let stats = db.stats();
    assert!(!*device.alone.lock(), "one thread merged alone");
    assert_eq!((stats.compactions, stats.split_merges), (1, 1));
    let levels = &stats.dictionaries.iter().find(|d| d.info.name == "d").unwrap().levels;
    assert_eq!(levels.iter().map(Vec::len).sum::<usize>(), 1);
    let d = db.open_dictionary("d").unwrap();
    assert_eq!(d.iter().count(), 32_000);
}

fn await_rest(db: &Kvdb) {
    let begun = std::time::Instant::now();
    while !db.stats().at_rest || db.stats().compactions == 0 {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", db.stats());
        std::thread::yield_now();
    }
}

#[test]
fn a_compaction_by_hand_takes_several_threads() {
    let device = Arc::new(TwoWriters::default());
    several_runs(device.clone(), 3, 8000);
    let (db, _) = Kvdb::open(device.clone(), Arc::new(Machine::default()), threads(2)).unwrap();
    let d = db.open_dictionary("d").unwrap();
    // The caller is one of the two, so it carries the name that the device looks at: it waits in
    // the middle of its piece for the other.
    std::thread::scope(|scope| {
        let caller = std::thread::Builder::new().name("kvdb-merge".into());
        caller.spawn_scoped(scope, || db.compact(d.id()).unwrap()).unwrap();
    });
    assert!(!*device.alone.lock() && device.writers.lock().len() > 1, "another thread helped");
    assert_eq!((db.stats().split_merges, d.iter().count()), (1, 24_000));
}

#[test]
fn closing_in_the_middle_gives_up_all_pieces_and_loses_nothing() {
    for part in [64 << 10, 1 << 20] {
        let device = Arc::new(MemoryDevice::new());
        several_runs(device.clone(), 4, 4000);
        for _ in 0..3 {
            let options = OpenOptions { merge_part: part, ..threads(3) };
            let (db, _) =
                Kvdb::open(device.clone(), Arc::new(Machine::default()), options).unwrap();
            db.open_dictionary("d").unwrap().insert("more", "of it").unwrap();
            db.flush().unwrap();
            db.close().unwrap();
        }
        let (db, _) = Kvdb::open(device.clone(), Arc::new(Machine::default()), threads(3)).unwrap();
        assert_eq!(db.open_dictionary("d").unwrap().iter().count(), 16_001);
        db.close().unwrap();
        let report = kvdb::check(device, &mut |_, _| {});
        assert!(report.is_clean(), "{:?}", report.faults);
    }
}

/// A store that fills up while it merges in pieces.
#[test]
fn pieces_find_their_way_in_a_store_that_becomes_full() {
    for seed in seeds(3) {
        let mut random = Random::new(seed);
        let device = Arc::new(MemoryDevice::with_limit(60 * ZONE_SIZE));
        let shape = CompactionPolicy { runs_per_level: 2, ..CompactionPolicy::default() };
        let open = OpenOptions {
            memory: 8 << 20,
            merge_part: 4 << 20,
            merge_threads: 1 + seed as usize % 3,
            compaction: shape,
            ..small()
        };
        let db = Kvdb::create(
            device.clone(),
            Arc::new(Simulated::new(seed)),
            CreateOptions { open, ..CreateOptions::default() },
        )
        .unwrap();
        // Values in their blocks, so that merges have much to write.
        let options = DictionaryOptions { separate_at: 2048, ..DictionaryOptions::default() };
        let d = db.open_dictionary_with("d", options).unwrap();
        let full = (0..400_000u64).find_map(|i| {
            d.insert(random.below(400_000).to_be_bytes().to_vec(), vec![i as u8; 1500]).err()
        });
        assert!(matches!(full, Some(Error::NoSpace)), "it fills up: {full:?}");
        assert!(seed % 3 == 0 || db.stats().split_merges > 0, "{:?}", db.stats());
        let held = d.iter().count() as u64 * 1500;
        assert!(held > 60 * ZONE_SIZE / 4, "full with {held} bytes");
        d.remove_prefix("").unwrap();
        d.insert(vec![0; 8], vec![1; 150]).unwrap();
        assert_eq!(d.iter().count(), 1);
        db.close().unwrap();
        let report = kvdb::check(device, &mut |_, _| {});
        assert!(report.is_clean(), "seed {seed}: {:?}", report.faults);
    }
}
