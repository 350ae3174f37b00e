//! Every device operation fails once: each write with an error (it may have happened in part) and
//! for lack of space, each sync, each growth, and each read. From the first error on only
//! acknowledged data is certain. Reading continues, a sync that succeeds afterwards is trusted, and
//! after a power cut all acknowledged data is kept.
//!
//! `KVFS_IO_STEP=1` fails every operation of each seed's history instead of a sample,
//! `KVFS_IO_FROM=n` those from the n-th on; `KVFS_SEEDS` and `KVFS_SEED_BASE` as ever.

use std::sync::Arc;
use std::time::Duration;

use env::{Random, Simulated};
use zones::{CrashDevice, Fault, FaultDevice, FaultKind, Operation};

use super::history::{self, History};
use super::step::Store;
use super::{created, judge, number, open, random, seeds};

const KINDS: [(Operation, FaultKind); 7] = [
    (Operation::Write, FaultKind::Error),
    (Operation::Write, FaultKind::NoSpace),
    (Operation::Sync, FaultKind::Error),
    (Operation::Grow, FaultKind::NoSpace),
    (Operation::Grow, FaultKind::Error),
    (Operation::Read, FaultKind::Error),
    (Operation::Read, FaultKind::FlipBit),
];

/// Runs one life with one fault. Returns whether the fault occurred; after the last operation it
/// cannot.
fn live_with(seed: u64, on: Operation, kind: FaultKind, after: u64) -> bool {
    let when = format!("seed {seed}, {on:?} {after} fails with {kind:?}");
    let mut random = Random::new(seed);
    let env = Arc::new(Simulated::new(seed));
    let (image, dict) = created(&env);
    let mut h = History::new();
    let crash = Arc::new(CrashDevice::over(image));
    let faulty = Arc::new(FaultDevice::new(crash.clone(), seed));
    faulty.inject(Fault::once(on, kind).after(after));
    let opened = open(faulty.clone(), &env);
    if let Err(e) = &opened {
        assert_eq!(faulty.struck(), 1, "{when}: opening failed: {e}");
    }
    if let Ok((fs, db)) = &opened {
        let store = Store { fs, db, dict };
        let (mut failed, mut last) = (None, None);
        for _ in 0..60 {
            let done = match random.below(12) {
                0 => fs.tick(),
                1 => db.step().map(drop).map_err(kvfs::Error::from),
                2 => {
                    env.advance(Duration::from_millis(random.below(800)));
                    Ok(())
                }
                _ => random::step(&h, &mut random).map_or(Ok(()), |step| {
                    last = Some(step.clone());
                    store.perform(&step, &mut h).map(drop)
                }),
            };
            if let Err(e) = done {
                assert_eq!(faulty.struck(), 1, "{when}: {e}");
                failed = Some(e);
                break;
            }
        }
        // The call that failed may have happened or not; nothing else is in doubt for those that
        // look now.
        if failed.is_some() {
            let mut now = h.clone();
            now.states.drain(..h.states.len().saturating_sub(2));
            let least: Vec<_> = h
                .versions
                .iter()
                .enumerate()
                .map(|(id, v)| (id, v.len().saturating_sub(2)))
                .collect();
            now.states.iter_mut().for_each(|s| s.least.extend(least.iter().copied()));
            now.found(
                history::tree(fs),
                history::keys(db, dict),
                &format!("{when}: seen after {last:?} failed: {failed:?}"),
            );
        }
        // An acknowledged sync must be true.
        if fs.sync_all().is_ok() {
            let last = h.states.len().saturating_sub(if failed.is_some() { 2 } else { 1 });
            h.states.drain(..last);
        }
    }
    drop(opened);
    judge(&crash.crash(seed ^ after), dict, &env, &mut h, &when);
    faulty.struck() > 0
}

#[test]
fn every_operation_of_the_device_may_fail_once() {
    let step = number("KVFS_IO_STEP").unwrap_or(23);
    let mut points = 0;
    for seed in seeds(2) {
        for (on, kind) in KINDS {
            let mut after = number("KVFS_IO_FROM").unwrap_or(seed % step);
            while live_with(seed, on, kind, after) {
                (after, points) = (after + step, points + 1);
            }
        }
    }
    println!("{points} operations failed");
    assert!(points > 0);
}
