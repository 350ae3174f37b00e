//! Tests that values which were written out of order are moved into the order of the user while the
//! store is quiet. The work stops when clients come, it ends after some time, and it writes little
//! more than the original writes did.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use env::Machine;
use kvdb::{
    CreateOptions, DictionaryId, DictionaryOptions, Durability, Kvdb, OpenOptions, ValueOrder,
    View, VisitRange,
};
use zones::{Job, Purpose, Watch, WatchedDevice};

const VALUE: usize = 4096;
const KEYS: usize = 4000;
const ALL: u64 = (KEYS * VALUE) as u64;

/// A device with one head. It counts seeks between values, and can delay the first value that is
/// moved.
type Disk = WatchedDevice<Head>;

#[derive(Default)]
struct Head {
    head: AtomicU64,
    seeks: AtomicU64,
    /// Notified when a value is about to be moved, which then waits for the answer.
    holds_up: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Watch for Head {
    fn reads(&self, purpose: Purpose, offset: u64, len: u64) -> io::Result<()> {
        if purpose == Purpose::Pages {
            let head = self.head.swap(offset + len, Relaxed);
            self.seeks.fetch_add(u64::from(head != offset), Relaxed);
        }
        Ok(())
    }
    fn writes(&self, purpose: Purpose, _: u64, _: u64) -> io::Result<()> {
        if purpose == Purpose::Pages && Job::current() == Job::Laying {
            let held_up = self.holds_up.lock().unwrap().take();
            if let Some((tell, wait)) = held_up {
                tell.send(()).unwrap();
                wait.recv_timeout(Duration::from_secs(60)).unwrap();
            }
        }
        Ok(())
    }
}

fn key(i: usize) -> Vec<u8> {
    format!("key{i:05}").into_bytes()
}

/// A value of a key, which does not compress.
fn value(i: usize, version: u64) -> Vec<u8> {
    let mut state = i as u64 + (version << 32);
    (0..VALUE)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

/// The keys in an order other than their own, each of them once if `factor` and their number have
/// no factor in common.
fn by(factor: usize) -> impl Iterator<Item = usize> {
    (0..KEYS).map(move |n| n * factor % KEYS)
}

/// The factor of the order in which values are read.
const READ: usize = 1237;

struct AsRead(DictionaryId);

impl ValueOrder for AsRead {
    fn dictionaries(&self, _: &View) -> Vec<DictionaryId> {
        vec![self.0]
    }

    fn visit(&self, _: &View, visit: &mut VisitRange<'_>) -> kvdb::Result<()> {
        for i in by(READ) {
            let (start, mut end) = (key(i), key(i));
            end.push(0);
            if visit(self.0, &start, &end)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn options(lay_when_quiet: bool, quiet_after: Duration) -> OpenOptions {
    OpenOptions {
        memory: 32 << 20,
        flush_interval: Duration::from_millis(10),
        idle_flush: quiet_after,
        lay_when_quiet,
        ..OpenOptions::default()
    }
}

const SOON: Duration = Duration::from_millis(100);

/// Even a busy machine does not pause for so long while it writes. A pass that began during the
/// writes would count only the data written by then, and the rest might be too little for another
/// pass.
const LATER: Duration = Duration::from_secs(2);

/// A store whose values have no order of their own.
fn unordered(open: OpenOptions) -> (Arc<Disk>, Kvdb, DictionaryId) {
    let disk = Arc::new(Disk::default());
    let create = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(disk.clone(), Arc::new(Machine::default()), create).unwrap();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    (disk, db, d)
}

fn store(open: OpenOptions) -> (Arc<Disk>, Kvdb, DictionaryId) {
    let (disk, db, d) = unordered(open);
    db.set_value_order(Arc::new(AsRead(d)));
    (disk, db, d)
}

/// Writes the values in the order of their keys.
fn write(db: &Kvdb, d: DictionaryId, version: u64) {
    for i in 0..KEYS {
        db.put(d, &key(i), &value(i, version), Durability::Buffered).unwrap();
    }
    db.sync().unwrap();
}

fn laid(db: &Kvdb) -> u64 {
    db.stats().io.written_by(Job::Laying)
}

fn come_to_rest(db: &Kvdb) {
    let begun = Instant::now();
    while !db.stats().at_rest {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", db.stats());
        std::thread::yield_now();
    }
}

/// Reads all in the order in which they are read. Returns the seeks between values.
fn seeks(disk: &Disk, view: &View, d: DictionaryId, version: u64) -> u64 {
    let before = disk.seeks.load(Relaxed);
    for i in by(READ) {
        assert!(view.get(d, &key(i)).unwrap().unwrap() == value(i, version), "{i}");
    }
    disk.seeks.load(Relaxed) - before
}

#[test]
fn what_was_written_out_of_order_is_laid_and_then_nothing_is_written_any_more() {
    let (disk, db, d) = store(options(true, LATER));
    for version in 0..3 {
        write(&db, d, version);
        come_to_rest(&db);
        let after = seeks(&disk, &db.view(), d, version);
        assert!(after * 20 <= KEYS as u64, "{after} seeks");
        let written = laid(&db);
        let most = (version + 1) * ALL * 5 / 2;
        assert!(written <= most, "{written} bytes, of {ALL} in each version");
    }
    // The reads are no reason to lay anything again.
    come_to_rest(&db);
    let written = laid(&db);
    db.flush().unwrap();
    come_to_rest(&db);
    assert_eq!(laid(&db), written, "they lie in order");
    db.close().unwrap();
    drop(db);
    assert!(kvdb::check(disk.clone(), &mut |_, _| {}).is_clean());
    let open = options(true, SOON);
    let (db, _) = Kvdb::open(disk, Arc::new(Machine::default()), open).unwrap();
    db.set_value_order(Arc::new(AsRead(d)));
    come_to_rest(&db);
    assert_eq!(laid(&db), 0, "nothing was written since");
}

#[test]
fn nothing_is_laid_unless_it_is_asked_for() {
    let (_, db, d) = store(options(false, SOON));
    write(&db, d, 0);
    come_to_rest(&db);
    assert_eq!(laid(&db), 0);
}

#[test]
fn a_few_values_are_no_reason_for_a_pass() {
    let (_, db, d) = store(options(true, LATER));
    write(&db, d, 0);
    come_to_rest(&db);
    let written = laid(&db);
    // A sixteenth is less than 4 MiB.
    for i in by(READ).take(KEYS / 16) {
        db.put(d, &key(i), &value(i, 1), Durability::Buffered).unwrap();
    }
    db.sync().unwrap();
    come_to_rest(&db);
    assert_eq!(laid(&db), written);
}

#[test]
fn values_that_a_snapshot_has_stay_where_they_are() {
    let (disk, db, d) = unordered(options(true, SOON));
    write(&db, d, 0);
    db.snapshot("all").unwrap();
    come_to_rest(&db);
    assert_eq!(laid(&db), 0);
    db.set_value_order(Arc::new(AsRead(d)));
    let zones = db.stats().zones_held;
    come_to_rest(&db);
    assert!(laid(&db) < ALL / 4, "{} bytes", laid(&db));
    assert!(db.stats().zones_held <= zones + 1);
    let snapshot = db.open_snapshot("all").unwrap();
    seeks(&disk, &snapshot, snapshot.dictionary("d").unwrap(), 0);
}

#[test]
fn a_pass_ends_when_a_client_reads_and_the_next_one_lays_the_rest() {
    let (disk, db, d) = store(options(true, LATER));
    let (tell, told) = channel();
    let (goes_on, wait) = channel();
    *disk.holds_up.lock().unwrap() = Some((tell, wait));
    write(&db, d, 0);
    told.recv_timeout(Duration::from_secs(60)).expect("a pass begins");
    let read = |n: usize| assert!(db.get(d, &key(n)).unwrap().unwrap() == value(n, 0), "{n}");
    read(0);
    goes_on.send(()).unwrap();
    // The client continues, so no other pass begins. The first one has ended when no more values
    // are moved.
    let (mut before, mut same) = (laid(&db), 0);
    let mut n = 0;
    while same < 2000 {
        n = (n + 1) % KEYS;
        read(n);
        let now = laid(&db);
        same = if now == before { same + 1 } else { 0 };
        before = now;
    }
    assert!(before < ALL / 2, "{before} bytes, though a client came at the first one");
    come_to_rest(&db);
    let after = seeks(&disk, &db.view(), d, 0);
    assert!(after * 20 <= KEYS as u64, "{after} seeks");
    assert!(laid(&db) <= ALL * 5 / 2, "{} bytes", laid(&db));
}
