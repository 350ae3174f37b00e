//! Runs small programs of several threads on one store, each under the schedule of a seed, with
//! background threads, slow syncs, and a power cut at the end. One order of all operations must
//! explain every answer, where each operation takes effect at one moment between its call and its
//! answer. The state after the power cut must be a state of that order, not older than the last
//! acknowledged sync.
//!
//! `KVFS_SEEDS=n` runs n seeds, `KVFS_SEED=n` only this one, `KVFS_SEED_BASE=n` begins with it.
//! Long runs: `KVFS_SEEDS=100000 cargo test --profile simulation -p kvdb --test it schedule::`.
#![cfg(debug_assertions)]

mod history;
mod program;
mod slow_sync;

use std::collections::BTreeMap;

use env::schedule;

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("KVFS_SEED") {
        return seed..seed + 1;
    }
    let base = number("KVFS_SEED_BASE").unwrap_or(0);
    base..base + number("KVFS_SEEDS").unwrap_or(usual)
}

fn run_all(usual: u64, kind: program::Kind) {
    let mut done: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut points = 0;
    for seed in seeds(usual) {
        let outcome = schedule::run(seed, move || program::run(seed, kind));
        let outcome = outcome.unwrap_or_else(|e| panic!("KVFS_SEED={seed}: {e}"));
        points += outcome.points;
        for (name, n) in outcome.value {
            *done.entry(name).or_default() += n;
        }
    }
    println!("{points} scheduling points; operations that succeeded: {done:?}");
}

/// The mainline: plain commits, both kinds of transactions, range deletes, ingests, snapshots,
/// rollbacks, views, drops, flushes, merges.
#[test]
fn the_store_has_one_order_of_operations_whatever_the_schedule() {
    run_all(300, program::Kind::Mainline);
}

/// Several programs that share one transaction: single changes, nested batches, views.
#[test]
fn a_shared_transaction_has_one_order_of_operations_whatever_the_schedule() {
    run_all(150, program::Kind::Transaction);
}
