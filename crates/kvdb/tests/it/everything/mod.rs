//! One history that contains everything: random operations of every kind on one store, in one
//! thread, with power cuts, closes and reopenings in between. An oracle checks every answer, and
//! after each recovery the whole store: its state is the one after some step, not older than the
//! last step that was certainly durable. A public operation that occurs in no history fails a test.
//!
//! `KVFS_SEEDS=n` runs n seeds instead of the usual few, from `KVFS_SEED_BASE` on; `KVFS_SEED=n`
//! runs one, of which `KVFS_STEPS` gives the steps that are run (see `steps.rs`), `KVFS_EACH=1`
//! compares everything after each step.

mod coverage;
mod full;
mod maintenance;
mod operations;
mod oracle;
mod possible;
mod reads;
mod snapshots;
mod steps;
mod transactions;
mod world;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use env::{Random, Simulated};
use kvdb::{CompactionPolicy, CreateOptions, Kvdb, OpenOptions};
use zones::{CrashDevice, MemoryDevice, Profile};

use operations::OPERATIONS;
use oracle::{History, observe};
use steps::{Steps, random_of, random_of_life};
use world::{Dead, World};

/// The types whose operations must be called.
const TYPES: [&str; 15] = [
    "Kvdb",
    "Dictionary",
    "View",
    "Transaction",
    "NestedBatch",
    "Bulk",
    "Ingest",
    "Batch",
    "Reads",
    "Scope",
    "StoredTuples",
    "StoredTuple",
    "StoredValue",
    "Received",
    "Publisher",
];

/// The least that a store is made with (`kvfs create --size`).
const LEAST: u64 = 20 * zones::ZONE_SIZE;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

/// Everything that may differ from one opening to the next.
fn options(random: &mut Random) -> OpenOptions {
    let open = OpenOptions {
        memory: (1 << 20) << random.below(3),
        flush_interval: Duration::from_millis(10),
        late_bind_at: [4 << 10, 16 << 10, u64::MAX][random.below(3) as usize],
        merge_part: (16 << 10) << random.below(4),
        merge_threads: 1 + random.below(3) as usize,
        seek_bytes: [0, 8 << 10, 1 << 20][random.below(3) as usize],
        compaction: CompactionPolicy {
            runs_per_level: 2 + random.below(7) as usize,
            ..CompactionPolicy::default()
        },
        threads: false,
        zero_journal: false,
        idle_flush: Duration::from_millis(50),
        flush_on_close: random.one_in(2),
        ..OpenOptions::default()
    };
    // Without a draw of its own, so that a seed makes the same history as before.
    let hold_values = if open.merge_threads == 2 { usize::MAX } else { 0 };
    OpenOptions { hold_values, ..open }
}

/// Runs these steps until the power fails.
fn live(w: &mut World, range: Range<u64>, steps: &Steps) -> Result<(), Dead> {
    let all: u64 = OPERATIONS.iter().map(|(_, weight, _)| weight).sum();
    for step in range {
        if !steps.take(step) {
            continue;
        }
        w.step = step;
        w.random = random_of(w.seed, step);
        let mut at = w.random.below(all);
        let chosen = OPERATIONS.iter().find(|(_, weight, _)| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        let (name, _, run) = chosen.expect("the weights add up");
        w.operation = name;
        run(w)?;
        // Helps a reader to find the step at which the failure began.
        if number("KVFS_EACH").is_some() {
            reads::everything(w)?;
        }
    }
    Ok(())
}

/// Runs one seed. Returns the operations that it has called, and how often the store was full.
fn run(seed: u64, steps: &Steps) -> (BTreeSet<&'static str>, u64) {
    let mut random = random_of_life(seed, 0);
    let env = Arc::new(Simulated::new(seed));
    let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
    let limited = seed.is_multiple_of(8);
    let (capacity, reserve_zones) = if limited { (Some(LEAST), 8) } else { (None, 4) };
    let profiles = [Profile::Unknown, Profile::SolidState, Profile::HardDisk];
    let profile = profiles[random.below(3) as usize];
    let create = CreateOptions { open: options(&mut random), capacity, reserve_zones, profile };
    let db = Kvdb::create(device.clone(), env.clone(), create).expect("memory does not fail");
    let ids = ["a", "b", "c"].map(|name| db.open_dictionary(name).expect("made").id());
    assert_eq!(ids.map(|id| id.0), [1, 2, 3]);
    let history = History::new(observe(&db).expect("read"));
    let mut w = World::new(seed, random, env.clone(), device, db, history);
    w.limited = limited;
    w.call("Kvdb::create");
    let mut next_step = 1;
    for life in 1..3 + w.random.below(3) {
        let mut random = random_of_life(seed, life);
        if !random.one_in(3) {
            w.device.cut_power_after(random.below(1500));
        }
        // A life that ends early leaves its numbers unused, so that the next one has its own.
        let first = next_step;
        next_step += 20 + random.below(250);
        let lived = live(&mut w, first..next_step, steps);
        w.random = random;
        w.operation = "closing";
        if lived.is_ok() && w.random.one_in(2) {
            // Closes the store cleanly.
            w.call("Kvdb::close");
            match w.db.close() {
                Ok(()) => w.history.certain(),
                Err(e) => w.dead_or_panic("closing", &e),
            }
        } else if w.random.one_in(4) {
            w.call("Kvdb::halt");
            w.db.halt("the test has halted it");
            let refused = w.db.takes_writes().expect_err("it takes nothing more").to_string();
            assert!(
                w.device.is_dead() || refused.contains("the test has halted it"),
                "{}: {refused}",
                w.what()
            );
            assert!(w.db.close().is_err(), "{}: it has not written what there was", w.what());
        }
        let image = w.device.crash(seed ^ life);
        w.views.clear();
        w.publisher = None;
        let before = std::mem::take(&mut w.open);
        let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "{}: {:?}", w.what(), report.faults);
        w.operation = "opening";
        // Sometimes the power fails again during recovery, or right after it.
        let mut image = image;
        while w.random.one_in(4) {
            let device = Arc::new(CrashDevice::over(image.clone()));
            device.cut_power_after(w.random.below(12));
            drop(Kvdb::open(device.clone(), env.clone(), options(&mut w.random)));
            image = device.crash(seed ^ life);
        }
        let device = Arc::new(CrashDevice::over(image));
        let opened = Kvdb::open(device.clone(), env.clone(), options(&mut w.random));
        let (db, _) = opened.unwrap_or_else(|e| panic!("{}: {e}", w.what()));
        (w.device, w.db) = (device, db);
        let found = observe(&w.db).unwrap_or_else(|e| panic!("{}: {e}", w.what()));
        let when = w.what();
        w.history.found(found, &when);
        for (old, _) in std::mem::take(&mut w.followed).into_values() {
            assert!(w.db.commits_since(old, 1).is_none(), "{when}: followed across an opening");
        }
        transactions::restored(&mut w, before).expect("the power is on");
        transactions::undoable_again(&mut w).expect("the power is on");
        // From here on the newest committed state is known again.
        w.replaced("", "");
        let from = w.committed.len();
        w.open.iter_mut().for_each(|open| open.begins_at(from));
    }
    w.operation = "the end";
    reads::everything(&mut w).expect("the power is on");
    (w.called, w.full)
}

#[test]
fn a_store_does_everything_that_it_says() {
    let one = number("KVFS_SEED");
    let (seeds, base) = (number("KVFS_SEEDS").unwrap_or(40), number("KVFS_SEED_BASE").unwrap_or(1));
    let (seeds, base) = one.map_or((seeds, base), |seed| (1, seed));
    let started = Instant::now();
    let (mut called, mut full) = (BTreeSet::new(), 0);
    for seed in base..base + seeds {
        let (also, refused) =
            steps::run(seed, "cargo test -p kvdb --test it everything::", |steps| run(seed, steps));
        called.extend(also);
        full += refused;
    }
    println!(
        "{seeds} seeds, {base}..{}, in {:.1} s, {full} times refused by a full store; go on: KVFS_SEED_BASE={}",
        base + seeds,
        started.elapsed().as_secs_f64(),
        base + seeds
    );
    // A single seed need not contain every operation.
    if seeds >= 40 {
        assert!(full >= seeds, "only {full} times was a store full");
        let missing: Vec<_> = coverage::public_operations(&TYPES)
            .into_iter()
            .filter(|name| !called.contains(name.as_str()))
            .collect();
        assert!(missing.is_empty(), "in no history: {missing:?}");
    }
}
