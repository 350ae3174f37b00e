//! Tests of many dictionaries, snapshots and branches. The cost of an operation on one of them does
//! not grow with their number. Work is counted as bytes that the operation allocates, since a
//! copied map shows in this number and the load of the machine does not. `make many` prints the
//! table of times of decision 088.

#[path = "bounded/counting.rs"]
mod counting;

use std::sync::Arc;
use std::time::Instant;

use env::Simulated;
use kvdb::{Batch, CreateOptions, DictionaryOptions, Durability, Kvdb, OpenOptions};
use zones::MemoryDevice;

/// Operations of one measurement.
const EACH: usize = 50;

/// The cost of one operation: the mean time, that of the median and of the slowest, and the bytes
/// that the median allocates, since a checkpoint of the manifest is written by one in many.
#[derive(Clone, Copy, Default)]
struct Cost {
    micros: f64,
    median: f64,
    slowest: f64,
    allocated: u64,
}

fn cost(mut operation: impl FnMut(usize)) -> Cost {
    let start = Instant::now();
    let counted = |n| {
        let (before, begun) = (counting::allocated(), Instant::now());
        operation(n);
        (counting::allocated() - before, begun.elapsed().as_secs_f64() * 1e6)
    };
    let (mut allocated, mut times): (Vec<u64>, Vec<f64>) = (0..EACH).map(counted).unzip();
    let micros = start.elapsed().as_secs_f64() * 1e6 / EACH as f64;
    allocated.sort_unstable();
    times.sort_unstable_by(f64::total_cmp);
    let (median, slowest) = (times[EACH / 2], times[EACH - 1]);
    Cost { micros, median, slowest, allocated: allocated[EACH / 2] }
}

struct World {
    db: Kvdb,
    device: Arc<MemoryDevice>,
    env: Arc<Simulated>,
    open: OpenOptions,
}

impl World {
    fn new() -> World {
        let open = OpenOptions { memory: 256 << 20, threads: false, ..OpenOptions::default() };
        let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
        let options = CreateOptions { open: open.clone(), ..CreateOptions::default() };
        let db = Kvdb::create(device.clone(), env.clone(), options).expect("made");
        World { db, device, env, open }
    }

    /// Closes the store and opens it again; returns the microseconds that this took, and the
    /// memory of the open store without its device.
    fn open_again(self) -> (Kvdb, f64, usize) {
        let start = Instant::now();
        self.db.close().expect("closed");
        let World { db, device, env, open } = self;
        drop(db);
        let before = counting::held();
        let (db, _) = Kvdb::open(device, env, open).expect("opened");
        let micros = start.elapsed().as_secs_f64() * 1e6;
        (db, micros, counting::held().saturating_sub(before))
    }

    fn put(&self, n: usize) {
        let d = self.db.dictionary_in("", "d").expect("there");
        let key = (n as u64).to_be_bytes();
        self.db.put(d, &key, b"value", Durability::Buffered).expect("put");
    }

    fn dictionary(&self, n: usize) {
        let options = DictionaryOptions::default();
        self.db.create_dictionary(&format!("d{n:06}"), options).expect("made");
    }

    /// A snapshot of runs: nothing is in memory.
    fn snapshot(&self, n: usize) {
        self.db.snapshot(&format!("s{n:06}")).expect("made");
    }

    fn branch(&self, n: usize) {
        self.db.clone_snapshot("base", &format!("b{n:06}")).expect("made");
    }

    /// A snapshot of memory, that waits for its flush.
    fn pending(&self, n: usize) {
        self.put(n);
        self.db.snapshot_of("", &format!("p{n:06}"), Durability::Buffered).expect("made");
    }
}

/// A store with one filled dictionary and a snapshot of it.
fn begun() -> World {
    let world = World::new();
    world.db.create_dictionary("d", DictionaryOptions::default()).expect("made");
    (0..100).for_each(|n| world.put(n));
    world.db.flush().expect("flushed");
    world.db.snapshot("base").expect("made");
    world
}

type Row = (&'static str, Cost);

/// The cost of each operation in a store that holds `many` of its kind.
fn rows(many: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    let world = begun();
    (0..many).for_each(|n| world.dictionary(n));
    rows.push(("create a dictionary", cost(|n| world.dictionary(many + n))));
    rows.push(("put beside dictionaries", cost(|n| world.put(1000 + n))));
    rows.push((
        "flush beside dictionaries",
        cost(|n| {
            world.put(n);
            world.db.flush().expect("flushed");
        }),
    ));
    rows.push(("buffered snapshot beside dictionaries", cost(|n| world.pending(n))));
    world.db.flush().expect("flushed");
    world.db.snapshots().into_iter().for_each(|snapshot| {
        if snapshot.name != "base" {
            world.db.drop_snapshot(&snapshot.name).expect("dropped");
        }
    });
    rows.push(("snapshot beside dictionaries", cost(|n| world.snapshot(n))));
    (0..EACH).for_each(|n| world.db.drop_snapshot(&format!("s{n:06}")).expect("dropped"));
    rows.push((
        "snapshot after the only one is dropped",
        cost(|_| {
            world.db.drop_snapshot("base").expect("dropped");
            world.db.snapshot("base").expect("made");
        }),
    ));
    rows.push((
        "drop a dictionary",
        cost(|n| {
            let d = world.db.dictionary_in("", &format!("d{n:06}")).expect("there");
            world.db.drop_dictionary(d).expect("dropped");
        }),
    ));

    let world = begun();
    (0..many).for_each(|n| world.snapshot(n));
    rows.push(("snapshot beside snapshots", cost(|n| world.snapshot(many + n))));
    rows.push(("put beside snapshots", cost(|n| world.put(1000 + n))));
    world.db.flush().expect("flushed");
    rows.push((
        "drop a snapshot",
        cost(|n| {
            world.db.drop_snapshot(&format!("s{n:06}")).expect("dropped");
        }),
    ));
    let start = Instant::now();
    let listed = world.db.snapshots().len();
    let micros = start.elapsed().as_secs_f64() * 1e6 / listed as f64;
    rows.push(("list a snapshot", Cost { micros, ..Cost::default() }));
    let (db, _, few) = begun().open_again();
    drop(db);
    let (db, micros, all) = world.open_again();
    assert_eq!(db.snapshots().len(), listed);
    drop(db);
    let (micros, each) = (micros / listed as f64, all.saturating_sub(few) / listed);
    rows.push(("close and open, a snapshot", Cost { micros, ..Cost::default() }));
    rows.push(("memory of a snapshot", Cost { allocated: each as u64, ..Cost::default() }));

    let world = begun();
    (0..many).for_each(|n| world.branch(n));
    rows.push(("clone beside branches", cost(|n| world.branch(many + n))));
    rows.push(("put beside branches", cost(|n| world.put(1000 + n))));
    rows.push((
        "drop a branch",
        cost(|n| {
            world.db.drop_branch(&format!("b{n:06}")).expect("dropped");
        }),
    ));

    let world = begun();
    (0..many).for_each(|n| world.pending(n));
    rows.push(("buffered snapshot", cost(|n| world.pending(many + n))));
    let start = Instant::now();
    world.db.flush().expect("flushed");
    let micros = start.elapsed().as_secs_f64() * 1e6 / (many + EACH) as f64;
    rows.push(("flush a pending snapshot", Cost { micros, ..Cost::default() }));
    rows
}

/// The operations whose allocations are counted.
const COUNTED: &[&str] = &[
    "create a dictionary",
    "put beside dictionaries",
    "flush beside dictionaries",
    "buffered snapshot beside dictionaries",
    "drop a dictionary",
    "snapshot beside dictionaries",
    "snapshot after the only one is dropped",
    "snapshot beside snapshots",
    "put beside snapshots",
    "drop a snapshot",
    "clone beside branches",
    "put beside branches",
    "drop a branch",
];

#[test]
fn an_operation_allocates_the_same_beside_few_and_many() {
    let (few, many) = (rows(100), rows(1000));
    for (few, many) in few.iter().zip(&many).filter(|(row, _)| COUNTED.contains(&row.0)) {
        let (what, before, after) = (few.0, few.1.allocated, many.1.allocated);
        // A tree of ten times the size is one or two nodes higher.
        assert!(
            after <= 2 * before + 1024,
            "{what}: {before} bytes beside 100, {after} beside 1000"
        );
    }
}

#[test]
fn a_snapshot_of_many_filled_dictionaries_is_dropped_without_a_look_at_each() {
    let dropped_beside = |many: usize| {
        let world = begun();
        for n in 0..many {
            world.dictionary(n);
            let d = world.db.dictionary_in("", &format!("d{n:06}")).expect("there");
            world.db.put(d, b"key", b"value", Durability::Buffered).expect("put");
        }
        world.db.flush().expect("flushed");
        let dropped = cost(|n| {
            world.snapshot(n);
            world.db.drop_snapshot(&format!("s{n:06}")).expect("dropped");
        });
        dropped.allocated
    };
    let (few, many) = (dropped_beside(20), dropped_beside(2000));
    assert!(many <= 2 * few + 1024, "{few} bytes beside 20, {many} beside 2,000");
}

/// Returns the heap of a store with this many clones of a snapshot of these dictionaries, without
/// its device: first in the process that made the clones, and then after it was opened again.
fn heap_beside(clones: usize, dictionaries: &[&str]) -> [i64; 2] {
    let world = World::new();
    for name in dictionaries {
        let d = world.db.create_dictionary(name, DictionaryOptions::default()).expect("made");
        world.db.put(d, b"key", b"value", Durability::Buffered).expect("put");
    }
    world.db.flush().expect("flushed");
    world.db.snapshot("base").expect("made");
    (0..clones).for_each(|n| world.branch(n));
    let World { db, device, env, open } = world;
    // The store has no threads, so this one allocates and frees everything.
    let heap_of = |db: Kvdb| {
        assert_eq!(db.branches().len(), clones);
        // A flush looks for what is due in the dictionaries of all clones.
        let d = db.dictionary(dictionaries[0]).expect("there");
        db.put(d, b"more", b"value", Durability::Buffered).expect("put");
        db.flush().expect("flushed");
        db.close().expect("closed");
        let before = counting::chunks_of_thread();
        drop(db);
        before - counting::chunks_of_thread()
    };
    let made = heap_of(db);
    let (db, _) = Kvdb::open(device, env, open).expect("opened");
    [made, heap_of(db)]
}

/// The aim is one KiB for each idle clone, next to a thousand others. A store of files with keys
/// has four dictionaries: three of files, and one of keys.
#[test]
fn an_idle_clone_takes_less_than_a_kibibyte() {
    for (names, most) in [(&["d"][..], 400), (&["nmap", "imap", "dmap", "keys"][..], 1024)] {
        let (few, many) = (heap_beside(100, names), heap_beside(1100, names));
        for (when, few, many) in [("made", few[0], many[0]), ("opened again", few[1], many[1])] {
            let each = (many - few) / 1000;
            let of = names.len();
            println!("an idle clone of {of} dictionaries takes {each} bytes, {when}");
            // Less than the size of the map entries would mean that nothing was counted.
            assert!((100..=most).contains(&each), "{of} dictionaries, {when}: {each} bytes");
        }
    }
}

/// Snapshots share the dictionaries that have not changed between them, and a list of them looks at
/// these once.
#[test]
fn a_list_of_snapshots_looks_once_at_what_they_share() {
    let world = begun();
    for n in 0..1000 {
        world.dictionary(n);
        let d = world.db.dictionary_in("", &format!("d{n:06}")).expect("there");
        world.db.put(d, b"key", b"value", Durability::Buffered).expect("put");
    }
    world.db.flush().expect("flushed");
    // The fastest of some, since the machine may be busy.
    let fastest = || {
        let list = || {
            let begun = Instant::now();
            let all = world.db.snapshots();
            let micros = begun.elapsed().as_secs_f64() * 1e6;
            let of_all = all.iter().filter(|snapshot| snapshot.dictionaries > 1000);
            assert!(of_all.clone().all(|snapshot| snapshot.bytes == all[all.len() - 1].bytes));
            (of_all.count(), micros)
        };
        let lists: Vec<(usize, f64)> = (0..5).map(|_| list()).collect();
        (lists[0].0, lists.iter().map(|(_, micros)| *micros).fold(f64::MAX, f64::min))
    };
    world.snapshot(0);
    let (one, few) = fastest();
    (1..300).for_each(|n| world.snapshot(n));
    let (all, many) = fastest();
    assert_eq!((one, all), (1, 300));
    assert!(many < 20.0 * few, "{few} us for one snapshot, {many} us for 300");
}

/// A store without threads flushes those that wait with one of them from time to time, and few at a
/// time.
#[test]
fn no_snapshot_waits_for_the_flush_of_very_many() {
    let world = begun();
    for n in 0..300 {
        let before = world.db.stats().flushes;
        world.pending(n);
        assert!(world.db.stats().flushes <= before + 1, "snapshot {n}");
    }
}

/// Key `n` is put before snapshot `n`, and deleted before the next one, so that each snapshot has
/// one key. Those that wait are flushed together, and their parts must not be mixed.
#[test]
fn snapshots_that_wait_together_have_each_its_own_state() {
    const MANY: usize = 300;
    let world = World::new();
    let d = world.db.create_dictionary("d", DictionaryOptions::default()).expect("made");
    let key = |n: usize| (n as u64).to_be_bytes();
    for n in 0..MANY {
        if n > 0 {
            let mut batch = Batch::new();
            batch.delete(d, key(n - 1).to_vec());
            world.db.commit(batch, Durability::Buffered).expect("deleted");
        }
        world.pending(n);
    }
    let check = |db: &Kvdb, when: &str| {
        assert_eq!(db.snapshots().len(), MANY, "{when}");
        for n in 0..MANY {
            let view = db.open_snapshot(&format!("p{n:06}")).expect("there");
            let keys: Vec<_> = view.iter(d).map(|item| item.expect("read").0.to_vec()).collect();
            assert_eq!(keys, [key(n).to_vec()], "snapshot {n}, {when}");
        }
        let now = db.view();
        assert_eq!(now.iter(d).count(), 1, "{when}");
    };
    check(&world.db, "while they wait");
    world.db.sync().expect("synced");
    let image = Arc::new(MemoryDevice::clone(&world.device));
    let (again, _) = Kvdb::open(image, world.env.clone(), world.open.clone()).expect("opened");
    check(&again, "made again by the journal");
    world.db.flush().expect("flushed");
    check(&world.db, "flushed");
    world.db.close().expect("closed");
    let World { db, device, env, open } = world;
    drop(db);
    let (db, _) = Kvdb::open(device, env, open).expect("opened");
    check(&db, "opened again");
    for n in (0..MANY).step_by(2) {
        db.drop_snapshot(&format!("p{n:06}")).expect("dropped");
    }
    let left: Vec<String> = db.snapshots().into_iter().map(|s| s.name).collect();
    let odd: Vec<String> = (1..MANY).step_by(2).map(|n| format!("p{n:06}")).collect();
    assert_eq!(left, odd, "the oldest first");
}

#[test]
#[ignore = "takes minutes; make many"]
fn table() {
    let most: usize = std::env::var("KVFS_MANY").map_or(10_000, |n| n.parse().expect("a number"));
    let sizes: Vec<usize> = [1000, 10_000, 100_000].into_iter().filter(|n| *n <= most).collect();
    let columns: Vec<Vec<Row>> = sizes.iter().map(|n| rows(*n)).collect();
    println!("mean, median and slowest of {EACH}, allocated, beside {sizes:?}");
    for (n, (what, _)) in columns[0].iter().enumerate() {
        let cells: Vec<String> = columns
            .iter()
            .map(|rows| {
                let Cost { micros, median, slowest, allocated } = rows[n].1;
                format!("{micros:9.1} {median:7.1} {slowest:9.1} us {allocated:8} B")
            })
            .collect();
        println!("{what:40} {}", cells.join(" | "));
    }
}
