//! Runs a history for each seed, several at a time. `KVFS_SEEDS=n` runs n of them, from
//! `KVFS_SEED_BASE` on; `KVFS_SEED=n` runs only that one. A long run reports its progress each
//! minute. A failing history does not end the run, and its seed is in the last message.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::model::seeds;

/// The histories that run at a time. They wait for locks, and after requests that were lost.
const AT_ONCE: usize = 8;
/// The number of failures that end a run.
const MOST_FAILURES: usize = 10;
/// The time between two lines about a long run.
const REPORT: Duration = Duration::from_secs(60);

/// Runs `history` with each seed. Fails if one of them fails. Returns whether there were at least
/// `usual` of them, so that the caller may expect each kind of event among them.
#[track_caller]
pub fn each(what: &str, usual: u64, history: impl Fn(u64) + Sync) -> bool {
    let (seeds, begun) = (seeds(usual), Instant::now());
    let (next, done) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let (failed, told) = (Mutex::new(Vec::new()), Mutex::new(begun));
    let say = |done: u64| {
        let rate = done as f64 / begun.elapsed().as_secs_f64();
        let failures = failed.lock().unwrap().len();
        println!("{what}: {done} histories, {rate:.1} a second, {failures} failed");
    };
    let turn = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) || failed.lock().unwrap().len() >= MOST_FAILURES {
                return;
            }
            if catch_unwind(AssertUnwindSafe(|| history(seed))).is_err() {
                eprintln!("{what}: KVFS_SEED={seed} shows it");
                failed.lock().unwrap().push(seed);
            }
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            let mut told = told.lock().unwrap();
            if told.elapsed() >= REPORT {
                *told = Instant::now();
                say(done);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(turn);
        }
    });
    say(done.load(Ordering::Relaxed));
    println!("{what}: KVFS_SEED_BASE={} goes on", seeds.end);
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{what}: these seeds failed: {failed:?}");
    seeds.end - seeds.start >= usual
}
