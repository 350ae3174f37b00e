//! Power cuts at every kind of moment: whatever was acknowledged as synced is there, everything is
//! the state after some commit. A drop is acknowledged with all commits before it.
//!
//! `KVFS_SEEDS=n` runs n seeds instead of the usual few; `KVFS_SEED=n` runs one.

use std::sync::Arc;
use std::time::Duration;

use crate::model::*;
use env::{Random, Simulated};
use kvdb::{DefragOptions, DictionaryId, Durability, Error, Kvdb, OpenOptions};
use zones::{CrashDevice, MemoryDevice, ZONE_SIZE};

/// Works on the store until the power fails or the work is done.
fn work(
    db: &Kvdb,
    env: &Simulated,
    random: &mut Random,
    dicts: &[DictionaryId],
    history: &mut History,
    steps: u64,
    large: bool,
) -> kvdb::Result<()> {
    for _ in 0..steps {
        match random.below(24) {
            0..=14 => {
                let mut changes = changes(random, dicts);
                if large {
                    changes.iter_mut().for_each(enlarge);
                }
                let durability =
                    if random.one_in(4) { Durability::Synced } else { Durability::Buffered };
                history.attempt(&changes);
                let mut batch = batch(&changes);
                if changes.len() % 3 == 1 {
                    batch.sync_follows();
                }
                match db.commit(batch, durability) {
                    Ok(()) if durability == Durability::Synced => history.certain(),
                    Ok(()) => {}
                    // The commit was refused, so its changes may never be visible.
                    Err(Error::NoSpace) => drop(history.possible.pop()),
                    Err(e) => return Err(e),
                }
            }
            15..=19 => drop(unless_full(db.step())?),
            // Without a draw of its own, so that a seed makes the same draws as before.
            20 if history.possible.len() % 3 == 2 => {
                if unless_full(make_or_drop_branch(db))?.is_some() {
                    history.certain();
                }
            }
            20 => {
                db.sync()?;
                history.certain();
            }
            21 => {
                if unless_full(db.flush())?.is_some() {
                    history.certain();
                }
            }
            22 if random.one_in(4) => {
                unless_full(db.compact(dicts[random.below(dicts.len() as u64) as usize]))?;
            }
            22 if random.one_in(3) => {
                let (from, to) = (random.below(300), random.below(300));
                let range = format!("key{from:03}")..format!("key{to:03}");
                unless_full(
                    db.compact_range(dicts[random.below(dicts.len() as u64) as usize], range),
                )?;
            }
            22 if random.one_in(2) => {
                let dict = dicts[random.below(dicts.len() as u64) as usize];
                let (from, len) = (random.below(200), random.below(3000) as usize);
                let keys =
                    (from..from + random.below(100)).map(|i| format!("key{i:03}").into_bytes());
                let tuples: Vec<_> = keys.map(|key| (key, bytes(random, len))).collect();
                let changes: Vec<_> =
                    tuples.iter().cloned().map(|(k, v)| Change::Put(dict, k, v)).collect();
                history.attempt(&changes);
                match db.ingest(dict, tuples) {
                    Ok(_) if changes.is_empty() => {}
                    Ok(_) => history.certain(),
                    Err(Error::NoSpace) => drop(history.possible.pop()),
                    Err(e) => return Err(e),
                }
            }
            23 if random.one_in(if large { 3 } else { 8 }) => {
                unless_full(db.defragment(DefragOptions {
                    fullest_percent: 99,
                    ..DefragOptions::default()
                }))?;
            }
            _ => env.advance(Duration::from_millis(random.below(30))),
        }
    }
    Ok(())
}

/// Makes a branch with a dictionary, or drops it if it is there. Either is on disk when this
/// returns, and with it all commits before it.
fn make_or_drop_branch(db: &Kvdb) -> kvdb::Result<()> {
    if db.branches().iter().any(|branch| branch.name == "gone") {
        return db.drop_branch("gone");
    }
    db.create_branch("gone")?;
    db.open_dictionary_in("gone", "d").map(drop)
}

/// Enlarges the change, so that the store has many zones, and holes in them.
fn enlarge(change: &mut Change) {
    if let Change::Put(_, _, value) = change {
        let len = value.len();
        *value = value.iter().copied().cycle().take((len * 200).min(64 << 10)).collect();
    }
}

fn options(random: &mut Random) -> OpenOptions {
    // Parts so small that most merges consist of several.
    let merge_part = 16 << 10 << random.below(4);
    // Several threads do large merges in pieces.
    let merge_threads = 1 + random.below(4) as usize;
    OpenOptions {
        memory: (1 << 20) << random.below(2),
        flush_on_close: random.one_in(2),
        merge_part,
        merge_threads,
        // Without a draw of its own, so that a seed makes the same history as before.
        hold_values: if merge_threads.is_multiple_of(2) { usize::MAX } else { 0 },
        ..small()
    }
}

fn run(seed: u64, large: bool) {
    let mut random = Random::new(seed);
    let env = Arc::new(Simulated::new(seed));
    // Every third store is so small that it fills up.
    let mut image = if seed.is_multiple_of(3) && !large {
        MemoryDevice::with_limit((9 + random.below(5)) * ZONE_SIZE)
    } else {
        MemoryDevice::new()
    };
    let dicts = {
        let device = Arc::new(CrashDevice::over(image.clone()));
        let db = create(device.clone(), env.clone(), options(&mut random)).unwrap();
        let dicts = dictionaries(&db).unwrap();
        image = device.crash(seed);
        dicts
    };
    let mut history = History { possible: vec![with_all(Model::new(), &dicts)] };
    for life in 0..1 + random.below(4) {
        let device = Arc::new(CrashDevice::over(image.clone()));
        // Sometimes the power fails during recovery.
        let within = if random.one_in(8) { 6 } else { 400 };
        device.cut_power_after(random.below(within));
        let opened = Kvdb::open(device.clone(), env.clone(), options(&mut random));
        let steps = 1 + random.below(200);
        let db = match opened {
            Ok((db, _)) => Some(db),
            Err(e) => {
                let full = matches!(e, Error::NoSpace);
                assert!(device.is_dead() || full, "seed {seed}, life {life}: opening failed: {e}");
                None
            }
        };
        if let Some(db) = &db {
            if large && random.one_in(2) {
                db.set_value_order(Arc::new(Backwards));
            }
            history.found(contents(db).unwrap(), &format!("seed {seed}, life {life}"));
            if let Err(e) = work(db, &env, &mut random, &dicts, &mut history, steps, large) {
                assert!(device.is_dead(), "seed {seed}, life {life}: {e}");
            } else if random.one_in(3) && !device.is_dead() {
                // This time the store is closed cleanly.
                if db.close().is_ok() {
                    history.certain();
                }
            }
        }
        image = device.crash(seed ^ life);
        drop(db);
        let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "seed {seed}, life {life}: {:?}", report.faults);
    }
    let (db, _) = Kvdb::open(Arc::new(image), env, small())
        .unwrap_or_else(|e| panic!("seed {seed}: the last opening failed: {e}"));
    history.found(contents(&db).unwrap(), &format!("seed {seed}, at the end"));
}

#[test]
fn a_store_survives_power_cuts_as_the_state_after_some_commit() {
    for seed in seeds(200) {
        run(seed, false);
    }
}

/// Tests stores of many zones with holes, which defragmentation compacts all the time.
#[test]
fn a_store_survives_power_cuts_while_it_is_defragmented() {
    for seed in seeds(12) {
        run(seed, true);
    }
}
