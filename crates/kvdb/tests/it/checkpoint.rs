//! Tests of checkpoints. A checkpoint is an independent store with the state of one commit, and it
//! is cheap to make.

use crate::model;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::model::{apply, batch, changes, contents, create, dictionaries, small, with_all};
use env::{Machine, Random, Simulated};
use kvdb::{Batch, CreateOptions, Durability, Error, Kvdb, OpenOptions};
use zones::{
    CrashDevice, Device, Fault, FaultDevice, FaultKind, MemoryDevice, Operation, Purpose, ZONE_SIZE,
};

fn options() -> OpenOptions {
    OpenOptions { memory: 4 << 20, ..OpenOptions::default() }
}

#[test]
fn a_copy_has_everything_committed_before_and_lives_its_own_life() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let env = Arc::new(Simulated::new(seed));
        let db = create(Arc::new(MemoryDevice::new()), env.clone(), small()).unwrap();
        let dicts = dictionaries(&db).unwrap();
        let mut model = with_all(Default::default(), &dicts);
        let work = |random: &mut Random, db: &Kvdb, model: &mut _, steps: u64| {
            for _ in 0..steps {
                let changes = changes(random, &dicts);
                apply(model, &changes);
                db.commit(batch(&changes), Durability::Buffered).unwrap();
                if random.one_in(8) {
                    db.step().unwrap();
                }
            }
        };
        let steps = random.below(300);
        work(&mut random, &db, &mut model, steps);
        let device = Arc::new(MemoryDevice::new());
        let stats = db.checkpoint_to(device.clone()).unwrap();
        assert_eq!(stats.dictionaries, 3);
        let mut later = model.clone();
        work(&mut random, &db, &mut later, 50);
        assert_eq!(contents(&db).unwrap(), later);
        db.close().unwrap();
        drop(db);

        let report = kvdb::check(device.clone(), &mut |_, _| {});
        assert!(report.is_clean(), "seed {seed}: {:?}", report.faults);
        let (copy, recovery) = Kvdb::open(device.clone(), env.clone(), small()).unwrap();
        assert!(recovery.clean);
        assert_eq!(recovery.records, 0, "no journal comes along");
        assert_eq!(contents(&copy).unwrap(), model, "seed {seed}");
        // The copy can be written, and opened again.
        work(&mut random, &copy, &mut model, 100);
        copy.close().unwrap();
        drop(copy);
        let (copy, _) = Kvdb::open(device, env, small()).unwrap();
        assert_eq!(contents(&copy).unwrap(), model, "seed {seed}");
    }
}

#[test]
fn a_file_is_copied_sparse_and_appears_whole() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("a.kvfs"), directory.path().join("b.kvfs"));
    let db = Kvdb::open_path_with(&path, options()).unwrap();
    let d = db.open_dictionary("d").unwrap();
    let mut random = Random::new(1);
    for i in 0..20_000u32 {
        d.insert(i.to_be_bytes().to_vec(), model::bytes(&mut random, 4096)).unwrap();
    }
    d.remove_range(1000u32.to_be_bytes()..).unwrap();
    d.compact().unwrap();
    std::fs::write(directory.path().join("b.kvfs.partial"), b"left by a crash").unwrap();
    let stats = db.checkpoint(&copy).unwrap();
    assert!(stats.live_bytes >= 4096 * 1000 && stats.copied_bytes <= 6 * ZONE_SIZE, "{stats:?}");
    let files: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    let on_disk = copy.metadata().unwrap().blocks() * 512;
    assert!(on_disk <= stats.copied_bytes + 3 * ZONE_SIZE, "{on_disk} for {stats:?}");
    assert!(matches!(db.checkpoint(&copy), Err(Error::Io(_))), "nothing is overwritten");
    drop(db);
    let report =
        kvdb::check(Arc::new(zones::FileDevice::open(&copy, true).unwrap()), &mut |_, _| {});
    assert!(report.is_clean(), "{:?}", report.faults);
    let copy = Kvdb::open_path_with(&copy, options()).unwrap();
    let d = copy.open_dictionary("d").unwrap();
    assert_eq!(d.iter().count(), 1000);
    for i in 0..2000u32 {
        d.insert(i.to_be_bytes().to_vec(), vec![7; 4096]).unwrap();
    }
    copy.flush().unwrap();
    assert_eq!(d.iter().count(), 2000);
}

#[test]
fn a_copy_that_failed_or_was_cut_off_is_no_store() {
    let db = create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)), small()).unwrap();
    let d = db.open_dictionary("d").unwrap();
    for i in 0..3000u32 {
        d.insert(i.to_be_bytes().to_vec(), vec![1; 1000]).unwrap();
    }
    let mut whole = 0;
    for seed in 0..40 {
        let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
        device.cut_power_after(seed);
        let done = db.checkpoint_to(device.clone()).is_ok();
        let image = device.crash(seed);
        match Kvdb::open(Arc::new(image.clone()), Arc::new(Simulated::new(2)), small()) {
            Ok((copy, _)) => {
                assert_eq!(contents(&copy).unwrap()[&d.id()].len(), 3000);
                whole += 1;
            }
            Err(e) => assert!(!done, "seed {seed}: {e}"),
        }
    }
    assert!(whole > 0 && whole < 40, "{whole}");
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    device.inject(Fault::once(Operation::Write, FaultKind::Error).after(1));
    assert!(db.checkpoint_to(device).is_err());
    d.insert("k", "v").unwrap();
    assert_eq!(d.iter().count(), 3001, "the store itself is none the worse");
}

#[test]
fn under_writers_a_copy_is_the_state_after_some_commit() {
    let options = CreateOptions {
        open: OpenOptions { memory: 2 << 20, zero_journal: false, ..options() },
        ..Default::default()
    };
    let db =
        Kvdb::create(Arc::new(MemoryDevice::new()), Arc::new(Machine::default()), options).unwrap();
    let (a, b) = (db.open_dictionary("a").unwrap(), db.open_dictionary("b").unwrap());
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each commit writes the same number to both dictionaries, under a key of its own.
            for i in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let mut batch = Batch::new();
                batch.put(a.id(), i.to_be_bytes().to_vec(), vec![1; 300]);
                batch.put(b.id(), i.to_be_bytes().to_vec(), vec![2; 300]);
                db.commit(batch, Durability::Buffered).unwrap();
                done.store(i, Ordering::Release);
            }
        });
        for _ in 0..8 {
            let least = done.load(Ordering::Acquire);
            let device = Arc::new(MemoryDevice::new());
            db.checkpoint_to(device.clone()).unwrap();
            let (copy, _) = Kvdb::open(device, Arc::new(Simulated::new(1)), small()).unwrap();
            let (x, y) = (copy.open_dictionary("a").unwrap(), copy.open_dictionary("b").unwrap());
            let keys =
                |d: &kvdb::Dictionary| d.iter().keys().map(|k| k.unwrap()).collect::<Vec<_>>();
            let (x, y) = (keys(&x), keys(&y));
            assert_eq!(x, y);
            assert!(
                x.iter().enumerate().all(|(i, k)| **k == (i as u64).to_be_bytes()),
                "no commit is missing before the last"
            );
            assert!(least == 0 || x.len() as u64 > least, "{} of {least}", x.len());
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Each ingest is an edit of the manifest that comes after the flush of a checkpoint as often as
/// not, and with commits in between the state is then none of a single moment.
#[test]
fn ingests_one_after_another_keep_no_checkpoint_from_its_end() {
    let options = CreateOptions {
        open: OpenOptions { zero_journal: false, ..options() },
        ..Default::default()
    };
    let db =
        Kvdb::create(Arc::new(MemoryDevice::new()), Arc::new(Machine::default()), options).unwrap();
    let commits = db.open_dictionary("commits").unwrap();
    let names = ["i", "j", "k", "l"];
    let ingests = names.map(|name| db.open_dictionary(name).unwrap());
    let (stop, done) = (&AtomicBool::new(false), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        for ingested in &ingests {
            scope.spawn(move || {
                for i in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let value = i.to_be_bytes().to_vec();
                    ingested.ingest((0..10u8).map(|k| (vec![k], value.clone()))).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for i in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                commits
                    .insert((i % 1000).to_be_bytes().to_vec(), i.to_be_bytes().to_vec())
                    .unwrap();
                done.store(i, Ordering::Release);
            }
        });
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..20 {
                let least = done.load(Ordering::Acquire);
                let device = Arc::new(MemoryDevice::new());
                db.checkpoint_to(device.clone()).unwrap();
                let (copy, _) = Kvdb::open(device, Arc::new(Simulated::new(1)), small()).unwrap();
                let newest = copy.open_dictionary("commits").unwrap();
                let newest = newest.iter().map(|tuple| tuple.unwrap().1).max();
                let has_it = newest.is_some_and(|newest| newest[..] >= least.to_be_bytes()[..]);
                assert!(least == 0 || has_it, "{least} was committed before");
                for name in names {
                    let ingested = copy.open_dictionary(name).unwrap();
                    let values: Vec<_> = ingested.iter().map(|tuple| tuple.unwrap().1).collect();
                    assert!(values.windows(2).all(|two| two[0] == two[1]), "{name}: a part");
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = checked {
            std::panic::resume_unwind(panic);
        }
    });
}

/// A device for a copy. It calls `then` just before the copy of the zones begins.
struct Amid {
    device: MemoryDevice,
    then: Box<dyn Fn() + Send + Sync>,
}

impl Device for Amid {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.device.read_at(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> std::io::Result<()> {
        self.device.write_at(purpose, offset, buf)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.device.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.device.discard(offset, len)
    }
    fn len(&self) -> std::io::Result<u64> {
        self.device.len()
    }
    fn grow(&self, new_len: u64) -> std::io::Result<()> {
        self.device.grow(new_len)
    }
    fn lengthen(&self, new_len: u64) -> std::io::Result<()> {
        (self.then)();
        self.device.lengthen(new_len)
    }
}

/// The copy contains the snapshot nevertheless, so the data of the snapshot must still exist.
#[test]
fn a_snapshot_that_is_dropped_during_the_copy_is_whole_in_it() {
    let device = Arc::new(MemoryDevice::new());
    let db = create(device, Arc::new(Simulated::new(1)), small()).unwrap();
    let d = db.open_dictionary("d").unwrap();
    let many = |value: u8| (0..400u32).map(move |i| (i.to_be_bytes(), vec![value; 50_000]));
    db.ingest(d.id(), many(1).map(|(k, v)| (k.to_vec(), v))).unwrap();
    db.snapshot("s").unwrap();
    d.remove_range(..[9; 4]).unwrap();
    db.compact(d.id()).unwrap();
    let again = db.clone();
    let id = d.id();
    let then = move || {
        again.drop_snapshot("s").unwrap();
        again.ingest(id, many(2).map(|(k, v)| (k.to_vec(), v))).unwrap();
    };
    let copy = Arc::new(Amid { device: MemoryDevice::new(), then: Box::new(then) });
    db.checkpoint_to(copy.clone()).unwrap();
    assert!(db.snapshots().is_empty());
    let copy = Arc::new(copy.device.clone());
    let report = kvdb::check(copy.clone(), &mut |_, _| {});
    assert!(report.is_clean(), "{:?}", report.faults);
    let (copy, _) = Kvdb::open(copy, Arc::new(Simulated::new(1)), small()).unwrap();
    let view = copy.open_snapshot("s").unwrap();
    let tuples = view.scan(id, b"", b"", usize::MAX).unwrap();
    assert!(tuples.len() == 400 && tuples.iter().all(|(_, v)| v == &vec![1; 50_000]));
}
