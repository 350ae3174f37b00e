//! Tests of bounded memory. Every public operation runs on ranges and values that together are a
//! hundred times the store's memory, and the table states the largest heap that each may use. An
//! operation that the tables do not name fails the test.
//!
//! By default the slow ones are left out. `KVFS_ONLY=change_back` runs those that have an operation
//! of that name, `KVFS_ONLY=` all of them, and `KVFS_BOUNDED=8` takes eight times the data with the
//! same bound.

mod counting;
#[path = "../it/everything/coverage.rs"]
mod coverage;
mod maintenance;
mod transactions;
mod tuples;

use std::collections::BTreeSet;

use kvdb::{
    Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Error, Kvdb, OpenOptions,
    Result,
};

/// The memory budget of the store, in bytes.
const MEMORY: usize = 1 << 20;
/// Bytes that an operation may take in addition, however much data it works on: buffers of the
/// devices, a record of the journal, values that are being read or written, index nodes on the way
/// to a key.
const BESIDE: usize = 15 << 20;
/// Bytes that operations may take for arguments that come one by one: read keys of a transaction,
/// and the second store of a stream.
const GIVEN: &[(&str, usize)] = &[
    ("Transaction::read_conflict_key", 150 * SMALL as usize),
    ("Kvdb::receive", MEMORY + (3 << 20)),
];
/// Bytes that operations may take for any amount of data: a zone that is uploaded to object storage
/// is in memory as a whole.
const WHOLE: &[(&str, usize)] =
    &[("Kvdb::push", 8 << 20), ("Kvdb::follower", 10 << 20), ("Kvdb::fork_base", 8 << 20)];
/// Tuples with small values, and tuples with large values. Each kind amounts to a hundred times the
/// memory.
const SMALL: u64 = 300_000;
const LARGE: u64 = 100;

/// The store that operations work on.
pub struct World {
    pub db: Kvdb,
    pub directory: tempfile::TempDir,
    /// The dictionaries of many small values, of few large ones, and for any use.
    pub small: DictionaryId,
    pub large: DictionaryId,
    pub free: DictionaryId,
    /// The amount of data, in multiples of the usual amount.
    pub times: u64,
}

pub fn options() -> OpenOptions {
    OpenOptions { memory: MEMORY, threads: false, ..OpenOptions::default() }
}

/// The small tuples, in order. `mark` makes their values different from those of other calls.
pub fn small(times: u64, mark: u8) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..SMALL * times).map(move |i| (key(i), vec![mark; 330]))
}

/// The large tuples, in order.
pub fn large(times: u64, mark: u8) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..LARGE * times).map(move |i| (key(i), vec![mark; 1 << 20]))
}

pub fn key(i: u64) -> Vec<u8> {
    format!("key{i:017}").into_bytes()
}

impl World {
    fn new(times: u64) -> World {
        let directory = tempfile::tempdir().expect("a directory");
        let create = CreateOptions { open: options(), ..CreateOptions::default() };
        let db = Kvdb::create_path(directory.path().join("s.kvfs"), create).expect("made");
        let make = |name| db.create_dictionary(name, DictionaryOptions::default()).expect("made");
        let (small, large, free) = (make("small"), make("large"), make("free"));
        World { db, directory, small, large, free, times }
    }

    /// Restores all data to its initial state.
    pub fn filled(&self) -> Result<()> {
        self.db.ingest(self.small, small(self.times, 1))?;
        self.db.ingest(self.large, large(self.times, 1))?;
        self.db.ingest(self.free, large(self.times, 3))?;
        self.settled()
    }

    /// Does all background work that is due.
    pub fn settled(&self) -> Result<()> {
        while self.db.step()? {}
        Ok(())
    }

    /// Deletes all that there is.
    pub fn delete_all(&self) -> Batch {
        let mut batch = Batch::new();
        for dict in [self.small, self.large, self.free] {
            batch.delete_range(dict, "", "z");
        }
        batch
    }

    pub fn commit(&self, batch: Batch) -> Result<()> {
        self.db.commit(batch, Durability::Buffered)
    }
}

/// A limit in the table is a bound, too.
pub fn within_limits(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(Error::Limit(_)) => Ok(()),
        outcome => outcome,
    }
}

/// Steps that take ten seconds and more in a debug build.
const SLOW: &[&str] = &["Kvdb::recover_path", "Kvdb::set_merge", "Kvdb::flush"];

/// The operations that a step calls on much data, and the step.
pub type Step = (&'static [&'static str], fn(&mut World) -> Result<()>);

/// Operations on one name, number or tuple, or that only report something: none of them handles
/// data that grows with the store.
const OF_ONE: &[&str] = &[
    "Kvdb::create",
    "Kvdb::create_path",
    "Kvdb::in_memory",
    "Kvdb::dictionary",
    "Kvdb::dictionary_in",
    "Kvdb::dictionaries",
    "Kvdb::dictionaries_in",
    "Kvdb::dictionary_info",
    "Kvdb::has_dictionary",
    "Kvdb::create_dictionary",
    "Kvdb::create_dictionary_in",
    "Kvdb::create_dictionary_of_store",
    "Kvdb::open_dictionary",
    "Kvdb::open_dictionary_in",
    "Kvdb::open_dictionary_with",
    "Kvdb::set_dictionary_options",
    "Kvdb::set_codec_of_series",
    "Kvdb::set_series_source",
    "Kvdb::set_stitch_at",
    "Kvdb::create_branch",
    "Kvdb::branches",
    "Kvdb::defrag_progress",
    "Kvdb::stop_defragment",
    "Kvdb::set_value_order",
    "Kvdb::wait_for_defragment",
    "Kvdb::stop_scrub",
    "Kvdb::scrub_progress",
    "Kvdb::wait_for_scrub",
    "Kvdb::get",
    "Kvdb::is_locked",
    "Kvdb::lost_to_another",
    "Kvdb::wait_for_commits",
    "Kvdb::promised_space",
    "Kvdb::random",
    "Kvdb::wall_clock",
    "Kvdb::takes_writes",
    "Kvdb::halt",
    "Kvdb::transaction",
    "Scope::announce",
    "Scope::get",
    "Scope::is_served",
    "Scope::writable",
    "Transaction::get",
    "Transaction::id",
    "Transaction::isolation",
    "Transaction::checks_conflicts",
    "Transaction::is_durable",
    "Transaction::is_undoable",
    "Transaction::branch",
    "Transaction::begun_after",
    "Transaction::within",
    "Transaction::is_in_place",
    "Transaction::options",
    "Transaction::check_conflicts_in",
    "Transaction::revision",
    "Transaction::in_use",
    "Transaction::takes_bulk",
    "Transaction::user",
    "Transaction::past_its_locks",
];

#[test]
fn no_operation_takes_memory_for_all_that_it_works_on() {
    let times = std::env::var("KVFS_BOUNDED").ok().and_then(|v| v.parse().ok()).unwrap_or(1);
    let steps: Vec<Step> = [tuples::STEPS, transactions::STEPS, maintenance::STEPS]
        .into_iter()
        .flatten()
        .copied()
        .collect();
    let named: BTreeSet<&str> =
        steps.iter().flat_map(|(names, _)| *names).chain(OF_ONE).copied().collect();
    let all = coverage::public_operations(&["Kvdb", "Transaction", "Scope"]);
    coverage::assert_named(&named, &all);

    let mut w = World::new(times);
    w.filled().expect("filled");
    let mut above = Vec::new();
    let only = std::env::var("KVFS_ONLY").ok();
    for (names, step) in steps {
        let wanted = match &only {
            Some(only) => names.iter().any(|name| name.contains(only)),
            None => !names.iter().any(|name| SLOW.contains(name)),
        };
        if !wanted {
            continue;
        }
        let most = counting::most_of_step(names, || step(&mut w));
        let given = GIVEN.iter().filter(|(name, _)| names.contains(name)).map(|(_, bytes)| bytes);
        let whole = WHOLE.iter().filter(|(name, _)| names.contains(name)).map(|(_, bytes)| bytes);
        let beside = BESIDE + whole.sum::<usize>();
        if most > MEMORY + beside + given.sum::<usize>() * times as usize {
            above.push((names, most >> 20));
        }
    }
    assert!(above.is_empty(), "more than {} MiB: {above:?}", (MEMORY + BESIDE) >> 20);
}
