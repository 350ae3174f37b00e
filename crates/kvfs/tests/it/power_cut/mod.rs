//! Tests of power cuts and failing devices under the whole engine, with files and keys in one
//! store. The recovered state is one state of the common history of names and keys, not older than
//! the last sync. Every file in it has one of its versions (content, mode and extended attribute
//! together), not older than its last fsync, nor than the rename that gave it a name which another
//! file had.
//!
//! The tests do this in three ways. Random histories are cut at random moments, also during
//! recovery (this module). Every device operation fails once (`every_io`). All small workloads are
//! cut at every device operation (`ace`).
//!
//! `KVFS_SEEDS=n` runs n seeds instead of the usual few; `KVFS_SEED=n` runs one; `KVFS_SEED_BASE=n`
//! begins with that one.

mod ace;
mod every_io;
mod history;
mod random;
mod step;

use std::sync::Arc;
use std::time::Duration;

use env::{Random, Simulated};
use history::History;
use kvdb::{CreateOptions, DictionaryId, DictionaryOptions, Kvdb, OpenOptions};
use kvfs::{Fs, FsOptions};
use step::Store;
use zones::{CrashDevice, Device, MemoryDevice};

fn small() -> OpenOptions {
    OpenOptions {
        memory: 1 << 20,
        flush_interval: Duration::from_millis(10),
        late_bind_at: 16 << 10,
        threads: false,
        zero_journal: false,
        idle_flush: Duration::from_millis(50),
        ..OpenOptions::default()
    }
}

fn options() -> FsOptions {
    FsOptions { write_buffer: 128 << 10, ..FsOptions::default() }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    match number("KVFS_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let base = number("KVFS_SEED_BASE").unwrap_or(0);
            base..base + number("KVFS_SEEDS").unwrap_or(usual)
        }
    }
}

/// A new store with a file system and a dictionary, durable and closed.
fn created(env: &Arc<Simulated>) -> (MemoryDevice, DictionaryId) {
    let device = Arc::new(MemoryDevice::new());
    let create = CreateOptions { open: small(), reserve_zones: 4, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env.clone(), create).expect("a new store");
    let dict = db.create_dictionary("user", DictionaryOptions::default()).expect("a dictionary");
    Fs::open(db.clone(), env.clone(), options())
        .and_then(|fs| fs.shutdown())
        .expect("a new file system");
    db.close().expect("it closes");
    (MemoryDevice::clone(&device), dict)
}

fn open(device: Arc<dyn Device>, env: &Arc<Simulated>) -> kvfs::Result<(Fs, Kvdb)> {
    let (db, _) = Kvdb::open(device, env.clone(), small())?;
    Ok((Fs::open(db.clone(), env.clone(), options())?, db))
}

/// Recovers after a power cut. Fails unless the image is sound and contains one of the states.
/// Returns the content of the disk after a clean close.
fn judge(
    image: &MemoryDevice,
    dict: DictionaryId,
    env: &Arc<Simulated>,
    h: &mut History,
    when: &str,
) -> MemoryDevice {
    let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
    assert!(report.is_clean(), "{when}: {:?}", report.faults);
    let device = Arc::new(CrashDevice::over(image.clone()));
    let (db, _) =
        Kvdb::open(device.clone(), env.clone(), small()).unwrap_or_else(|e| panic!("{when}: {e}"));
    let committed = kvfs::verify(&db).expect("verifies");
    assert!(committed.is_clean(), "{when}: {:?}", committed.findings);
    let fs = Fs::open(db.clone(), env.clone(), options()).unwrap_or_else(|e| panic!("{when}: {e}"));
    h.found(history::tree(&fs), history::keys(&db, dict), when);
    fs.shutdown().expect("shuts down");
    db.close().expect("closes");
    drop((fs, db));
    device.durable()
}

/// Opens the store and works in it until the power fails or there is nothing more to do.
fn live(
    device: &Arc<CrashDevice>,
    dict: DictionaryId,
    env: &Arc<Simulated>,
    h: &mut History,
    random: &mut Random,
    when: &str,
) {
    let opened = open(device.clone(), env);
    let (fs, db) = match &opened {
        Err(e) => return assert!(device.is_dead(), "{when}: opening failed: {e}"),
        Ok((fs, db)) => (fs, db),
    };
    let store = Store { fs, db, dict };
    for _ in 0..30 + random.below(200) {
        let done = match random.below(12) {
            0 => fs.tick(),
            1 => db.step().map(drop).map_err(kvfs::Error::from),
            2 => {
                env.advance(Duration::from_millis(random.below(800)));
                Ok(())
            }
            _ => random::step(h, random).map_or(Ok(()), |step| store.perform(&step, h).map(drop)),
        };
        if let Err(e) = done {
            return assert!(device.is_dead(), "{when}: {e}");
        }
    }
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let env = Arc::new(Simulated::new(seed));
    let (mut image, dict) = created(&env);
    let mut h = History::new();
    for life in 0..2 + random.below(3) {
        let when = format!("seed {seed}, life {life}");
        let device = Arc::new(CrashDevice::over(image));
        device.cut_power_after(20 + random.below(500));
        live(&device, dict, &env, &mut h, &mut random, &when);
        image = device.crash(seed ^ life.wrapping_mul(77));
        // The power fails again while the store recovers, and once more.
        for again in 0..random.below(3) {
            let device = Arc::new(CrashDevice::over(image));
            device.cut_power_after(random.below(30));
            let opened = open(device.clone(), &env);
            if let Err(e) = &opened {
                assert!(device.is_dead(), "{when}: recovery failed: {e}");
            }
            image = device.crash(seed ^ again);
        }
        image = judge(&image, dict, &env, &mut h, &when);
    }
}

#[test]
fn files_and_keys_survive_power_cuts_together() {
    seeds(100).for_each(run);
}
