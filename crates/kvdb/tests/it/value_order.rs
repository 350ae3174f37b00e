//! Tests that a defragmentation lays values in the order that the user of the store supplies, and
//! changes no result of a read.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use env::{Machine, Random, Simulated};
use kvdb::{
    Batch, CreateOptions, DefragOptions, DictionaryId, DictionaryOptions, Durability, Kvdb,
    OpenOptions, ValueOrder, View, VisitRange,
};
use zones::{
    CrashDevice, Device, Fault, FaultDevice, FaultKind, MemoryDevice, Operation, Purpose, Watch,
    WatchedDevice, ZONE_SIZE,
};

use crate::model::{Backwards, contents, create, small};

const VALUE: usize = 4096;
const KEYS: usize = 4000;

/// A device with one head, which counts reads and writes of values.
type Disk = WatchedDevice<Head>;

#[derive(Default)]
struct Head {
    head: AtomicU64,
    seeks: AtomicU64,
    written: AtomicU64,
    /// The host refuses to let it grow beyond this, unless it is 0.
    most: AtomicU64,
    /// The store whose defragmentation is stopped as soon as this much of values is written.
    stops: Mutex<Option<(u64, Kvdb)>>,
}

impl Watch for Head {
    fn reads(&self, purpose: Purpose, offset: u64, len: u64) -> io::Result<()> {
        if purpose == Purpose::Pages {
            let head = self.head.swap(offset + len, Relaxed);
            self.seeks.fetch_add(u64::from(head != offset), Relaxed);
        }
        Ok(())
    }
    fn writes(&self, purpose: Purpose, _: u64, len: u64) -> io::Result<()> {
        if purpose == Purpose::Pages {
            let written = self.written.fetch_add(len, Relaxed);
            let stops = self.stops.lock().unwrap().take_if(|(at, _)| written >= *at);
            stops.iter().for_each(|(_, db)| db.stop_defragment());
        }
        Ok(())
    }
    fn grows(&self, new_len: u64) -> io::Result<()> {
        match self.most.load(Relaxed) {
            most if most > 0 && new_len > most => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }
}

fn key(i: usize) -> Vec<u8> {
    format!("key{i:05}").into_bytes()
}

fn value(i: usize) -> Vec<u8> {
    let mut state = i as u64;
    (0..VALUE)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

/// The keys in the order in which they are read: 1237 and 4000 have no factor in common, so each of
/// them once.
fn order() -> impl Iterator<Item = usize> {
    (0..KEYS).map(|n| n * 1237 % KEYS)
}

struct AsRead(Vec<DictionaryId>);

impl ValueOrder for AsRead {
    fn dictionaries(&self, _: &View) -> Vec<DictionaryId> {
        self.0.clone()
    }

    fn visit(&self, _: &View, visit: &mut VisitRange<'_>) -> kvdb::Result<()> {
        for dict in &self.0 {
            for i in order() {
                let (start, mut end) = (key(i), key(i));
                end.push(0);
                if visit(*dict, &start, &end)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

fn options() -> OpenOptions {
    OpenOptions { memory: 32 << 20, defrag_rate: 0, ..OpenOptions::default() }
}

/// A store whose values lie in the order of their keys.
fn store() -> (Arc<Disk>, Kvdb, DictionaryId) {
    let disk = Arc::new(Disk::default());
    let create = CreateOptions { open: options(), ..CreateOptions::default() };
    let db = Kvdb::create(disk.clone(), Arc::new(Machine::default()), create).unwrap();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    for i in 0..KEYS {
        db.put(d, &key(i), &value(i), Durability::Buffered).unwrap();
    }
    db.compact(d).unwrap();
    (disk, db, d)
}

fn defragment(db: &Kvdb) {
    assert!(db.defragment(DefragOptions::default()).unwrap());
    db.wait_for_defragment();
}

/// Reads all in the order in which they are read. Returns the seeks between values.
fn seeks(disk: &Disk, view: &View, dict: DictionaryId) -> u64 {
    let before = disk.seeks.load(Relaxed);
    for i in order() {
        assert!(view.get(dict, &key(i)).unwrap().unwrap() == value(i), "{i}");
    }
    disk.seeks.load(Relaxed) - before
}

#[test]
fn values_lie_in_the_order_in_which_they_are_read_and_a_second_time_nothing_moves() {
    let (disk, db, d) = store();
    db.snapshot("before").unwrap();
    assert!(seeks(&disk, &db.view(), d) >= KEYS as u64 * 9 / 10, "a seek each");
    db.set_value_order(Arc::new(AsRead(vec![d])));
    let written = disk.written.load(Relaxed);
    defragment(&db);
    let written = disk.written.load(Relaxed) - written;
    let all = (KEYS * VALUE) as u64;
    assert!((all..=all * 2).contains(&written), "{written} bytes of values, of {all}");
    let after = seeks(&disk, &db.view(), d);
    assert!(after * 20 <= KEYS as u64, "{after} seeks");
    let snapshot = db.open_snapshot("before").unwrap();
    seeks(&disk, &snapshot, snapshot.dictionary("d").unwrap());
    drop(snapshot);

    let written = disk.written.load(Relaxed);
    defragment(&db);
    assert_eq!(disk.written.load(Relaxed), written, "they lie in order");

    db.close().unwrap();
    drop(db);
    assert!(kvdb::check(disk.clone(), &mut |_, _| {}).is_clean());
    let (db, _) = Kvdb::open(disk.clone(), Arc::new(Machine::default()), options()).unwrap();
    let after = seeks(&disk, &db.view(), d);
    assert!(after * 20 <= KEYS as u64, "{after} seeks");
}

#[test]
fn a_value_of_two_keys_is_written_once_and_stays_shared() {
    let (disk, db, d) = store();
    let other = db.create_dictionary("other", DictionaryOptions::default()).unwrap();
    let view = Arc::new(db.view());
    let mut batch = Batch::new();
    for i in 0..KEYS {
        batch.put_stored(other, key(i), view.stored(d, &key(i)).unwrap().unwrap());
    }
    drop(view);
    db.commit(batch, Durability::Buffered).unwrap();
    db.set_value_order(Arc::new(AsRead(vec![d, other])));
    let written = disk.written.load(Relaxed);
    defragment(&db);
    let written = disk.written.load(Relaxed) - written;
    assert!(written < (KEYS * VALUE) as u64 * 3 / 2, "{written} bytes of values");
    for dict in [d, other] {
        let after = seeks(&disk, &db.view(), dict);
        assert!(after * 20 <= KEYS as u64, "{after} seeks");
    }
}

#[test]
fn a_clone_follows_the_values_that_it_shares() {
    let (disk, db, d) = store();
    db.snapshot("before").unwrap();
    db.clone_snapshot("before", "clone").unwrap();
    let clone = db.dictionary_in("clone", "d").unwrap();
    db.set_value_order(Arc::new(AsRead(vec![d, clone])));
    for most in [(KEYS * VALUE) as u64 * 3 / 2, 0] {
        let written = disk.written.load(Relaxed);
        defragment(&db);
        let written = disk.written.load(Relaxed) - written;
        assert!(written <= most, "{written} bytes of values");
        for dict in [d, clone] {
            let after = seeks(&disk, &db.view(), dict);
            assert!(after * 20 <= KEYS as u64, "{after} seeks");
        }
    }
}

#[test]
fn clients_copy_overwrite_and_delete_meanwhile_and_nothing_is_lost() {
    let (disk, db, d) = store();
    db.snapshot("before").unwrap();
    let has = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut random = Random::new(1);
            let mut has: Vec<Option<usize>> = (0..KEYS).map(Some).collect();
            for n in 0..15_000 {
                let at = random.below(KEYS as u64) as usize;
                let mut batch = Batch::new();
                match random.below(4) {
                    0 => {
                        batch.delete(d, key(at));
                        has[at] = None;
                    }
                    // The reference may be to a place that was left since.
                    1 => {
                        let from = random.below(KEYS as u64) as usize;
                        let Some(stored) = db.view().stored(d, &key(from)).unwrap() else {
                            continue;
                        };
                        batch.put_stored(d, key(at), stored);
                        has[at] = has[from];
                    }
                    _ => {
                        batch.put(d, key(at), value(KEYS + n));
                        has[at] = Some(KEYS + n);
                    }
                }
                db.commit(batch, Durability::Buffered).unwrap();
                if n % 1000 == 0 {
                    db.compact(d).unwrap();
                }
            }
            has
        });
        let mut backwards = false;
        while !client.is_finished() {
            match backwards {
                true => db.set_value_order(Arc::new(Backwards)),
                false => db.set_value_order(Arc::new(AsRead(vec![d]))),
            }
            defragment(&db);
            backwards = !backwards;
        }
        client.join().unwrap()
    });
    defragment(&db);
    let snapshot = db.open_snapshot("before").unwrap();
    seeks(&disk, &snapshot, snapshot.dictionary("d").unwrap());
    drop(snapshot);
    let expected = |i: usize| has[i].map(value);
    assert!((0..KEYS).all(|i| db.get(d, &key(i)).unwrap().map(Vec::from) == expected(i)));
    db.close().unwrap();
    drop(db);
    assert!(kvdb::check(disk.clone(), &mut |_, _| {}).is_clean());
    let (db, _) = Kvdb::open(disk, Arc::new(Machine::default()), options()).unwrap();
    assert!((0..KEYS).all(|i| db.get(d, &key(i)).unwrap().map(Vec::from) == expected(i)));
}

/// All keys as one range, as those of a long file.
struct OneRange(DictionaryId);

impl ValueOrder for OneRange {
    fn dictionaries(&self, _: &View) -> Vec<DictionaryId> {
        vec![self.0]
    }

    fn visit(&self, _: &View, visit: &mut VisitRange<'_>) -> kvdb::Result<()> {
        visit(self.0, b"key", b"kez").map(|_| ())
    }
}

#[test]
fn it_stops_within_a_long_range() {
    let (disk, db, d) = store();
    db.set_value_order(Arc::new(AsRead(vec![d])));
    defragment(&db);
    db.set_value_order(Arc::new(OneRange(d)));
    let written = disk.written.load(Relaxed);
    *disk.stops.lock().unwrap() = Some((written + (1 << 20), db.clone()));
    defragment(&db);
    assert!(disk.stops.lock().unwrap().is_none(), "it was under way");
    let written = disk.written.load(Relaxed) - written;
    assert!(written < (KEYS * VALUE) as u64 / 2, "{written} bytes of values");
    seeks(&disk, &db.view(), d);
    defragment(&db);
    seeks(&disk, &db.view(), d);
    let written = disk.written.load(Relaxed);
    defragment(&db);
    let written = disk.written.load(Relaxed) - written;
    assert!(written * 20 <= (KEYS * VALUE) as u64, "{written} bytes, though all lies in order");
}

#[test]
fn what_is_left_among_holes_is_moved_in_the_order_in_which_it_is_read() {
    let (disk, db, d) = store();
    let double = |i: usize| value(i).repeat(2);
    for i in 0..KEYS {
        db.put(d, &key(i), &double(i), Durability::Buffered).unwrap();
    }
    db.set_value_order(Arc::new(AsRead(vec![d])));
    defragment(&db);
    // The holes are so short that the rest does not count as scattered.
    let mut batch = Batch::new();
    order().step_by(2).for_each(|i| batch.delete(d, key(i)));
    db.commit(batch, Durability::Buffered).unwrap();
    let zones = db.stats().zones_held;
    defragment(&db);
    assert!(db.stats().zones_held < zones, "half of what was there are holes");
    let before = disk.seeks.load(Relaxed);
    for i in order().skip(1).step_by(2) {
        assert!(db.get(d, &key(i)).unwrap().unwrap() == double(i), "{i}");
    }
    let seeks = disk.seeks.load(Relaxed) - before;
    // The zone that is written next keeps its data: half of its values, each of which costs a seek.
    let kept = ZONE_SIZE / (2 * VALUE as u64) / 2;
    assert!(seeks <= kept + KEYS as u64 / 40, "{seeks} seeks");
}

/// A defragmentation with a rate works like an automatic one, in rounds and without a pass.
#[test]
fn rounds_empty_zones_and_keep_the_order_in_which_values_are_read() {
    let (disk, db, d) = store();
    let other = db.create_dictionary("other", DictionaryOptions::default()).unwrap();
    db.set_value_order(Arc::new(AsRead(vec![d])));
    defragment(&db);
    // Fills the zone that is written next, which no round empties.
    for i in 0..KEYS {
        db.put(other, &key(i), &value(i), Durability::Buffered).unwrap();
    }
    db.flush().unwrap();
    let survives = |n: usize| n.is_multiple_of(3);
    let mut batch = Batch::new();
    let gone = order().enumerate().filter(|(n, _)| !survives(*n));
    gone.for_each(|(_, i)| batch.delete(d, key(i)));
    db.commit(batch, Durability::Buffered).unwrap();
    db.compact(d).unwrap();
    let survivors: Vec<usize> =
        order().enumerate().filter(|(n, _)| survives(*n)).map(|(_, i)| i).collect();
    let seeks = || {
        let before = disk.seeks.load(Relaxed);
        for &i in &survivors {
            assert!(db.get(d, &key(i)).unwrap().unwrap() == value(i), "{i}");
        }
        disk.seeks.load(Relaxed) - before
    };
    assert!(seeks() * 10 >= survivors.len() as u64 * 9, "there are holes in between");
    let (zones, written) = (db.stats().zones_held, disk.written.load(Relaxed));
    assert!(
        db.defragment(DefragOptions { bytes_per_second: Some(1 << 30), ..Default::default() })
            .unwrap()
    );
    db.wait_for_defragment();
    assert!(db.stats().zones_held < zones, "two thirds of what was there are holes");
    let written = disk.written.load(Relaxed) - written;
    assert!(written <= (KEYS * VALUE) as u64, "{written} bytes of values: each once");
    let after = seeks();
    assert!(after * 4 <= survivors.len() as u64, "{after} seeks for {} values", survivors.len());
}

#[test]
fn the_power_fails_at_any_moment_of_a_pass_and_nothing_is_lost() {
    const FEW: usize = 500;
    let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
    let db = create(device.clone(), env.clone(), small()).unwrap();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let other = db.create_dictionary("other", DictionaryOptions::default()).unwrap();
    for i in 0..FEW {
        db.put(d, &key(i), &value(i), Durability::Buffered).unwrap();
    }
    db.compact(d).unwrap();
    let view = db.view();
    let mut batch = Batch::new();
    for i in 0..FEW {
        batch.put_stored(other, key(i), view.stored(d, &key(i)).unwrap().unwrap());
    }
    drop(view);
    db.commit(batch, Durability::Synced).unwrap();
    let expected = contents(&db).unwrap();
    db.close().unwrap();
    drop(db);
    let image = MemoryDevice::clone(&device);
    let mut after = 1;
    loop {
        let device = Arc::new(CrashDevice::over(image.clone()));
        let (db, _) = Kvdb::open(device.clone(), env.clone(), small()).unwrap();
        db.set_value_order(Arc::new(AsRead(vec![d, other])));
        device.cut_power_after(after);
        let done = db.defragment(DefragOptions::default());
        let whole = !device.is_dead();
        assert!(!whole || done.unwrap(), "cut after {after}");
        let left = device.crash(after);
        drop(db);
        let report = kvdb::check(Arc::new(left.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "cut after {after}: {:?}", report.faults);
        let (db, _) = Kvdb::open(Arc::new(left), env.clone(), small()).unwrap();
        assert!(contents(&db).unwrap() == expected, "cut after {after}");
        if whole {
            break;
        }
        after += 1 + after / 8;
    }
    assert!(after > 4, "{after}: the pass writes values, two runs, and edits of the manifest");
}

/// An order that is damaged at its end.
struct Damaged(AsRead);

impl ValueOrder for Damaged {
    fn dictionaries(&self, view: &View) -> Vec<DictionaryId> {
        self.0.dictionaries(view)
    }

    fn visit(&self, view: &View, visit: &mut VisitRange<'_>) -> kvdb::Result<()> {
        self.0.visit(view, visit)?;
        Err(kvdb::Error::Corrupt("a name".into()))
    }
}

#[test]
fn what_was_laid_before_an_order_turns_out_to_be_damaged_stays_laid() {
    let (disk, db, d) = store();
    db.set_value_order(Arc::new(Damaged(AsRead(vec![d]))));
    defragment(&db);
    let after = seeks(&disk, &db.view(), d);
    assert!(after * 20 <= KEYS as u64, "{after} seeks");
}

#[test]
fn nothing_is_lost_if_the_host_refuses_space_and_the_next_one_lays_the_rest() {
    let (disk, db, d) = store();
    db.snapshot("before").unwrap();
    db.set_value_order(Arc::new(AsRead(vec![d])));
    disk.most.store(disk.len().unwrap() + ZONE_SIZE, Relaxed);
    defragment(&db);
    seeks(&disk, &db.view(), d);
    disk.most.store(0, Relaxed);
    defragment(&db);
    let after = seeks(&disk, &db.view(), d);
    assert!(after * 20 <= KEYS as u64, "{after} seeks");
    db.close().unwrap();
    drop(db);
    assert!(kvdb::check(disk, &mut |_, _| {}).is_clean());
}

/// Earlier copies count if there is no room for more, but only if they were written.
#[test]
fn no_reference_leads_to_a_place_that_the_host_has_refused_to_write() {
    const FEW: usize = 2000;
    let (image, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
    let db = create(image.clone(), env.clone(), small()).unwrap();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    for i in 0..FEW {
        // Such values do not fill a zone, so its last ones are written when the next one begins.
        let long = [value(i), vec![7; 900]].concat();
        db.put(d, &key(i), &long, Durability::Buffered).unwrap();
    }
    db.compact(d).unwrap();
    let expected = contents(&db).unwrap();
    db.close().unwrap();
    drop(db);
    for after in 0.. {
        let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::clone(&image)), 1));
        let (db, _) = Kvdb::open(device.clone(), env.clone(), small()).unwrap();
        db.set_value_order(Arc::new(AsRead(vec![d])));
        let refused = Fault::once(Operation::Write, FaultKind::NoSpace);
        device.inject(refused.of(Purpose::Pages).after(after));
        _ = db.defragment(DefragOptions::default());
        assert!(contents(&db).unwrap() == expected, "write {after} was refused");
        if device.struck() == 0 {
            assert!(after > 8, "{after}: the values fill more than a zone");
            break;
        }
    }
}

#[test]
fn where_seeks_are_expensive_values_that_lie_in_order_are_not_sorted_by_keys_first() {
    const FEW: usize = 1000;
    let long = |i: usize| value(i).repeat(12);
    let disk = Arc::new(Disk::default());
    let open = OpenOptions { seek_bytes: 64 << 10, ..options() };
    let create = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(disk.clone(), Arc::new(Machine::default()), create).unwrap();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    for i in 0..FEW {
        db.put(d, &key(i), &long(i), Durability::Buffered).unwrap();
    }
    db.compact(d).unwrap();
    db.set_value_order(Arc::new(AsRead(vec![d])));
    defragment(&db);
    for i in (0..FEW).step_by(100) {
        db.put(d, &key(i), &long(i + 1), Durability::Buffered).unwrap();
    }
    let written = disk.written.load(Relaxed);
    defragment(&db);
    let written = disk.written.load(Relaxed) - written;
    assert!(written * 2 < (FEW * long(0).len()) as u64 * 3, "{written}: they were moved twice");
    for i in 0..FEW {
        let now = if i % 100 == 0 { i + 1 } else { i };
        assert!(db.get(d, &key(i)).unwrap().unwrap() == long(now), "{i}");
    }
}

#[test]
fn nothing_is_laid_in_order_if_the_rate_is_limited() {
    let (disk, db, d) = store();
    db.set_value_order(Arc::new(AsRead(vec![d])));
    let written = disk.written.load(Relaxed);
    let limited = DefragOptions { bytes_per_second: Some(u64::MAX), ..DefragOptions::default() };
    assert!(db.defragment(limited).unwrap());
    db.wait_for_defragment();
    assert_eq!(disk.written.load(Relaxed), written);
    assert!(seeks(&disk, &db.view(), d) >= KEYS as u64 * 9 / 10, "a seek each");
}
