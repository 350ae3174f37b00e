//! Tests of the space that a store takes in addition to its live data, while it is written and
//! after it has settled. The tests run in memory and step by step, so their results do not depend
//! on time.

use std::sync::Arc;
use std::time::Duration;

use env::{Random, Simulated};
use kvdb::{
    CreateOptions, DefragOptions, DictionaryId, DictionaryOptions, Durability, Kvdb, OpenOptions,
};
use zones::{MemoryDevice, ZONE_SIZE};

const VALUE: usize = 1000;
const TUPLE: u64 = 16 + VALUE as u64;

struct Bench {
    db: Kvdb,
    dict: DictionaryId,
    env: Arc<Simulated>,
    random: Random,
    /// The maximum of the space of runs over all observations.
    most: u64,
}

impl Bench {
    fn new() -> Bench {
        let env = Arc::new(Simulated::new(1));
        let open = OpenOptions { memory: 16 << 20, ..OpenOptions::default() };
        let options = CreateOptions { open, ..CreateOptions::default() };
        let db = Kvdb::create(Arc::new(MemoryDevice::new()), env.clone(), options).unwrap();
        // A dead value inside of a block is removed by the merge that finds it.
        let options = DictionaryOptions { separate_at: 2048, ..DictionaryOptions::default() };
        let dict = db.create_dictionary("d", options).unwrap();
        Bench { db, dict, env, random: Random::new(3), most: 0 }
    }

    fn put(&mut self, number: u64) {
        let mut value = [0; VALUE];
        self.random.fill(&mut value[..32]);
        self.db.put(self.dict, key(number).as_bytes(), &value, Durability::Buffered).unwrap();
    }

    /// Does all background work that is due, at intervals, so that merges keep up with writers.
    fn work(&mut self) {
        while self.db.step().unwrap() {
            self.most = self.most.max(self.held());
        }
    }

    /// Bytes of the zones that runs hold.
    fn held(&self) -> u64 {
        self.db.stats().zones_held * ZONE_SIZE
    }

    /// No commits for some seconds.
    fn settle(&mut self) {
        self.db.flush().unwrap();
        for _ in 0..10 {
            self.env.advance(Duration::from_secs(1));
            self.work();
        }
        assert!(self.db.stats().at_rest, "{:?}", self.db.stats());
    }
}

/// Scattered over the key space, each number once.
fn key(number: u64) -> String {
    format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[test]
fn random_inserts_take_a_tenth_more_than_the_data_and_some_zones() {
    let count = 300_000;
    let mut bench = Bench::new();
    for i in 0..count {
        bench.put(i);
        if i % 1000 == 0 {
            bench.work();
        }
    }
    // A merge holds a zone of each input that it has not come to the end of, and a part of its
    // result twice.
    let data = count * TUPLE;
    assert!(
        bench.most <= data / 100 * 110 + 16 * ZONE_SIZE,
        "{} MiB for {} MiB",
        bench.most >> 20,
        data >> 20
    );
    bench.settle();
    assert!(
        bench.held() <= data / 100 * 105 + 6 * ZONE_SIZE,
        "settled: {} MiB for {} MiB",
        bench.held() >> 20,
        data >> 20
    );
}

#[test]
fn what_is_overwritten_is_found_by_a_sample_and_does_not_pile_up() {
    let (count, times) = (100_000, 3);
    let mut bench = Bench::new();
    for i in 0..count {
        bench.put(i);
        if i % 1000 == 0 {
            bench.work();
        }
    }
    assert!(
        bench.db.stats().dead_percent <= 5,
        "nothing was overwritten, {}% are taken for dead",
        bench.db.stats().dead_percent
    );
    bench.most = 0;
    let mut seen = 0;
    for i in 0..times * count {
        let number = bench.random.below(count);
        bench.put(number);
        if i % 1000 == 0 {
            seen = seen.max(bench.db.stats().dead_percent);
            bench.work();
        }
    }
    let live = count * TUPLE;
    assert!((20..100).contains(&seen), "dead at most: {seen}% of what is alive");
    // Half as much data again may be dead before it is merged away, and each run may hold one more
    // zone.
    assert!(
        bench.most <= live / 100 * 160 + 16 * ZONE_SIZE,
        "{} MiB for {} MiB",
        bench.most >> 20,
        live >> 20
    );
    bench.settle();
    // Moves the data that stitching has left in older zones; with threads this begins by itself.
    bench.db.defragment(DefragOptions::default()).unwrap();
    assert!(
        bench.held() <= live / 100 * 105 + 3 * ZONE_SIZE,
        "settled: {} MiB for {} MiB",
        bench.held() >> 20,
        live >> 20
    );
    let runs: usize = bench.db.stats().dictionaries[0].levels.iter().map(Vec::len).sum();
    assert_eq!(runs, 1, "one run at the bottom");
}

#[test]
fn what_is_deleted_gives_its_space_back_when_the_store_is_quiet() {
    let count = 100_000;
    let mut bench = Bench::new();
    for i in 0..count {
        bench.put(i);
        if i % 1000 == 0 {
            bench.work();
        }
    }
    for i in (0..count).filter(|i| i % 4 != 0) {
        let mut batch = kvdb::Batch::new();
        batch.delete(bench.dict, key(i).into_bytes());
        bench.db.commit(batch, Durability::Buffered).unwrap();
    }
    bench.settle();
    bench.db.defragment(DefragOptions::default()).unwrap();
    let live = count / 4 * TUPLE;
    assert!(
        bench.held() <= live / 100 * 105 + 3 * ZONE_SIZE,
        "{} MiB for {} MiB",
        bench.held() >> 20,
        live >> 20
    );
    assert_eq!(bench.db.stats().dead_percent, 0);
}
