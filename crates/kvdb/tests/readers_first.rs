//! On a device with slow seeks, work that can wait does not compete with readers, and is done when
//! they have finished.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use env::{Machine, Random};
use kvdb::{
    Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Kvdb, OpenOptions, Profile,
};
use zones::{Purpose, Watch, WatchedDevice};

/// A disk: every read of it takes the time of a short seek.
type Disk = WatchedDevice<Arm>;

#[derive(Default)]
struct Arm {
    seeks: AtomicBool,
}

impl Watch for Arm {
    fn reads(&self, _: Purpose, _: u64, _: u64) -> io::Result<()> {
        if self.seeks.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

const VALUE: usize = 32 << 10;

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

fn options(defrag_rate: u64) -> OpenOptions {
    OpenOptions {
        memory: 32 << 20,
        threads: true,
        defrag_rate,
        zero_journal: false,
        flush_interval: Duration::from_millis(20),
        idle_flush: Duration::from_millis(50),
        ..OpenOptions::default()
    }
}

/// A store on a disk with this many values.
fn filled(profile: Profile, count: u64) -> (Arc<Disk>, Kvdb, DictionaryId) {
    let disk = Arc::new(Disk::default());
    let create = CreateOptions { profile, open: options(0), ..CreateOptions::default() };
    let db = Kvdb::create(disk.clone(), Arc::new(Machine::default()), create).unwrap();
    // Merges leave values where they are, so holes stay.
    let options = DictionaryOptions { stitch_at: 0, ..Default::default() };
    let d = db.create_dictionary("d", options).unwrap();
    for i in 0..count {
        db.put(d, &key(i), &[i as u8; VALUE], Durability::Buffered).unwrap();
    }
    db.flush().unwrap();
    (disk, db, d)
}

/// Reads values in no order, each with a seek.
fn read(db: &Kvdb, d: DictionaryId, keys: std::ops::Range<u64>, times: u32) {
    let mut random = Random::new(times.into());
    for _ in 0..times {
        let i = keys.start + random.below(keys.end - keys.start);
        assert_eq!(db.view().get(d, &key(i)).unwrap().unwrap(), vec![i as u8; VALUE]);
    }
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn defragmentation_that_began_by_itself_stands_back() {
    // Ten of 24 zones become half empty: more than the store tolerates, and fewer than make it
    // hurry.
    let (disk, db, d) = filled(Profile::HardDisk, 6144);
    let mut batch = Batch::new();
    (0..2500).step_by(2).for_each(|i| batch.delete(d, key(i).to_vec()));
    db.commit(batch, Durability::Buffered).unwrap();
    db.compact(d).unwrap();
    db.close().unwrap();
    drop(db);
    disk.seeks.store(true, Relaxed);
    let rate = OpenOptions::default().defrag_rate;
    let (db, _) = Kvdb::open(disk, Arc::new(Machine::default()), options(rate)).unwrap();
    read(&db, d, 3000..6144, 500);
    let moved = db.defrag_progress().bytes_moved;
    // A part may have begun before the first of them.
    assert!(moved <= 18 << 20, "{moved} bytes moved while readers waited");
    wait_until("it is done when readers have gone", || {
        let progress = db.defrag_progress();
        progress.automatic && progress.rounds > 0 && !progress.running
    });
    assert!(db.defrag_progress().bytes_moved > 30 << 20);
    read(&db, d, 3000..6144, 50);
}

#[test]
fn what_waits_until_the_store_is_quiet_waits_for_readers() {
    for profile in [Profile::HardDisk, Profile::SolidState] {
        let (disk, db, d) = filled(profile, 1000);
        wait_until("merges end", || db.stats().at_rest);
        disk.seeks.store(true, Relaxed);
        read(&db, d, 500..1000, 10);
        let before = db.stats().compactions;
        let mut batch = Batch::new();
        batch.delete_range(d, key(0).to_vec(), key(50).to_vec());
        db.commit(batch, Durability::Buffered).unwrap();
        db.flush().unwrap();
        read(&db, d, 500..1000, 300);
        if profile == Profile::HardDisk {
            assert_eq!(db.stats().compactions, before, "merged while readers waited");
        }
        wait_until("it is merged", || db.stats().compactions > before);
        assert_eq!(db.view().get(d, &key(10)).unwrap(), None);
    }
}
