//! A synced commit waits for no other caller's bulk writes (KEVIN, §5.1). The commits before it
//! must become durable with it, so they are written early, and little is left for the sync.

use std::sync::Arc;
use std::time::Duration;

use env::{Random, Simulated};
use kvdb::{CreateOptions, DictionaryId, Durability, Kvdb, OpenOptions};
use zones::{CrashDevice, Purpose};

fn options() -> OpenOptions {
    OpenOptions {
        memory: 64 << 20,
        threads: false,
        zero_journal: false,
        flush_on_close: false,
        ..OpenOptions::default()
    }
}

struct Store {
    db: Kvdb,
    dict: DictionaryId,
    device: Arc<CrashDevice>,
    env: Arc<Simulated>,
}

/// A store in which nothing was synced by a caller. Its journal has a segment, and values a zone.
fn quiet_store() -> Store {
    let (device, env) = (Arc::new(CrashDevice::new()), Arc::new(Simulated::new(1)));
    let options = CreateOptions { open: options(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env.clone(), options).expect("a store");
    let dict = db.open_dictionary("d").expect("a dictionary").id();
    db.put(dict, b"first", &[1; 4096], Durability::Buffered).expect("put");
    db.sync_at_interval().expect("synced");
    Store { db, dict, device, env }
}

/// A store in which a commit was synced.
fn store() -> Store {
    let s = quiet_store();
    s.db.put(s.dict, b"first", b"", Durability::Synced).expect("synced");
    s
}

fn written(db: &Kvdb) -> u64 {
    db.stats().io.total().write_bytes
}

/// Keys in no order.
fn bulk_key(i: u32) -> [u8; 8] {
    (u64::from(i) * 7919 % 1_000_003).to_be_bytes()
}

fn bulk_value(i: u32, len: usize) -> Vec<u8> {
    vec![i as u8 | 1; len]
}

/// Puts this number of values without a sync, and sometimes a few synced ones. Returns the largest
/// number of bytes that one of these wrote beyond its own. `rate` is in MB/s of values.
fn put_beside(s: &Store, values: u32, len: usize, small: usize, rate: usize) -> u64 {
    let mut random = Random::new(u64::from(values) + len as u64);
    let mut most = 0;
    let mut next = random.below(500);
    for i in 0..values {
        s.db.put(s.dict, &bulk_key(i), &bulk_value(i, len), Durability::Buffered).expect("put");
        s.env.advance(Duration::from_nanos((len * 1000 / rate) as u64));
        if u64::from(i) == next {
            next += 1 + random.below(500);
            let before = written(&s.db);
            s.db.put(s.dict, b"small", &vec![9; small], Durability::Synced).expect("synced");
            most = most.max((written(&s.db) - before).saturating_sub(small as u64));
        }
    }
    most
}

#[test]
fn a_sync_writes_little_of_what_others_have_committed() {
    const KIB: u64 = 1 << 10;
    for (values, len) in [(20_000, 64), (20_000, 300), (5000, 4096), (2000, 9000)] {
        for (small, rate) in [(10, 8), (4096, 8), (10, 1000), (4096, 1000)] {
            let written = put_beside(&store(), values, len, small, rate);
            println!(
                "{small} bytes synced beside values of {len}, {rate} MB/s: {written} bytes more"
            );
            let most = match rate {
                _ if len >= 2048 => 1024 * KIB + 64 * KIB,
                8 => 16 * KIB,
                _ => 64 * KIB,
            };
            assert!(written <= most, "{small} beside {len} at {rate} MB/s: {written}");
        }
    }
}

#[test]
fn what_is_written_early_has_little_padding() {
    let s = store();
    let before = s.db.stats().io.of(Purpose::Journal).write_bytes;
    for i in 0..20_000 {
        s.db.put(s.dict, &bulk_key(i), &bulk_value(i, 64), Durability::Buffered).expect("put");
    }
    let records = 20_000 * (64 + 8 + 5);
    let logged = s.db.stats().io.of(Purpose::Journal).write_bytes - before;
    assert!(logged > records - (64 << 10), "{logged} of {records}: it is written early");
    assert!(logged < records + records / 50, "{logged} of {records}");
}

#[test]
fn without_syncs_nothing_is_written_early() {
    let s = quiet_store();
    let commit = || {
        // A zone is set aside for values then.
        s.db.put(s.dict, b"first", &[2; 4096], Durability::Buffered).expect("put");
        let before = written(&s.db);
        for i in 0..200 {
            for len in [300, 4096] {
                let (key, value) = (bulk_key(i), bulk_value(i, len));
                s.db.put(s.dict, &key, &value, Durability::Buffered).expect("put");
            }
        }
        written(&s.db) - before
    };
    assert_eq!(commit(), 0);
    s.db.sync_at_interval().expect("synced");
    assert_eq!(commit(), 0, "no caller has waited for that sync");
    s.db.sync().expect("synced");
    assert!(commit() > 0);
}

#[test]
fn the_order_of_commits_is_kept() {
    for seed in 0..40 {
        let s = store();
        let mut random = Random::new(seed);
        let len = [64, 300, 4096, 9000][seed as usize % 4];
        let values = 1 + random.below(700) as u32;
        put_beside(&s, values, len, 10, 8);
        let synced = seed % 2 == 0;
        if synced {
            s.db.put(s.dict, b"last", b"", Durability::Synced).expect("synced");
        }
        let image = Arc::new(CrashDevice::over(s.device.crash(seed)));
        let (db, _) = Kvdb::open(image, Arc::new(Simulated::new(1)), options()).expect("it opens");
        let there = |i: &u32| db.get(s.dict, &bulk_key(*i)).expect("read").is_some();
        let first = (0..values).take_while(there).count() as u32;
        assert!((first..values).all(|i| !there(&i)), "seed {seed}: a prefix");
        for i in 0..first {
            let value = db.get(s.dict, &bulk_key(i)).expect("read");
            assert_eq!(value.as_deref(), Some(&bulk_value(i, len)[..]), "seed {seed}");
        }
        if synced {
            assert_eq!(first, values, "seed {seed}: all of it came before what was synced");
        }
    }
}
