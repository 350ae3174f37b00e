//! Tests of the cost of reads on the device, and that readahead never changes the data that is
//! read.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use env::sync::Mutex;
use env::{Machine, Random};
use kvdb::{
    Batch, CompactionPolicy, CreateOptions, Cursor, DictionaryId, DictionaryOptions, Durability,
    Isolation, Kvdb, OpenOptions, Update,
};
use zones::{Device, MemoryDevice, Purpose, PurposeStats};

#[test]
fn values_at_one_place_are_compared_without_reading_them() {
    let device = Arc::new(MemoryDevice::new());
    let open = OpenOptions { threads: false, ..OpenOptions::default() };
    let options = CreateOptions { open: open.clone(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), options).unwrap();
    let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let value = |fill: u8| vec![fill; 2 << 20];
    let put = |key: &[u8], fill| db.put(d, key, &value(fill), Durability::Buffered).unwrap();
    ["same", "again", "other"].iter().for_each(|key| put(key.as_bytes(), 1));
    db.snapshot("s").unwrap();
    db.flush().unwrap();
    put(b"again", 1);
    put(b"other", 2);
    db.close().unwrap();
    drop(db);
    // Nothing is in the cache.
    let (db, _) = Kvdb::open(device, Arc::new(Machine::default()), open).unwrap();
    let (then, now) = (db.open_snapshot("s").unwrap(), db.view());
    let tuple = |view: &kvdb::View, key: &[u8]| {
        let mut cursor = view.cursor(d, key, b"").unwrap();
        cursor.next().unwrap().unwrap()
    };
    let read = || db.stats().io.by_purpose[Purpose::Pages as usize].read_bytes;
    let compare = |key: &[u8]| {
        let before = read();
        let same = tuple(&then, key).has_value_of(&tuple(&now, key)).unwrap();
        (same, read() - before)
    };
    assert_eq!(compare(b"same"), (true, 0));
    let (same, bytes) = compare(b"again");
    assert!(same && bytes >= 4 << 20, "an equal value at another place: {bytes} bytes read");
    assert!(!compare(b"other").0);
}

#[test]
fn a_mark_of_a_dictionary_changes_with_its_content() {
    let db = Kvdb::in_memory();
    let [a, b] = ["a", "b"].map(|name| db.open_dictionary(name).unwrap());
    let mark = || db.view().mark_of(a.id());
    let mut seen = vec![mark()];
    let mut changed = |what: &str| {
        let now = mark();
        assert!(now.is_some() && !seen.contains(&now), "{what}: {now:?} after {seen:?}");
        b.insert("k", what.to_owned()).unwrap();
        assert_eq!(mark(), now, "another dictionary has changed");
        seen.push(now);
    };
    a.insert("k", "1").unwrap();
    changed("a put");
    a.update("k", Update::add(1)).unwrap();
    changed("an update");
    let held = db.view();
    a.remove("k").unwrap();
    changed("a deletion");
    assert_eq!(held.mark_of(a.id()), None, "there are newer commits");
    a.insert("k", "2").unwrap();
    db.flush().unwrap();
    db.snapshot("s").unwrap();
    changed("a put that was flushed");
    a.remove_range::<&str>(..).unwrap();
    changed("a range");
    let t = db.begin(Isolation::Snapshot).unwrap();
    t.put(a.id(), "k", "3").unwrap();
    assert_eq!(t.view().unwrap().mark_of(a.id()), None, "a transaction may have changes");
    t.commit(Durability::Buffered).unwrap();
    changed("a transaction");
    db.rollback("s").unwrap();
    let now = db.dictionary("a").unwrap();
    assert!(now != a.id() || !seen.contains(&mark()), "a rollback");
    db.drop_dictionary(now).unwrap();
    assert_eq!(db.view().mark_of(now), None);
    assert_eq!(db.dictionary_info(now), None);
}

/// A device with a host's cache. Data that was read or announced before is available at once, and
/// all other reads wait.
#[derive(Default)]
struct Waiting {
    inner: MemoryDevice,
    host: Mutex<Host>,
}

#[derive(Default)]
struct Host {
    pages: HashSet<u64>,
    waits: u64,
    /// The memory that the device reports.
    memory: Option<u64>,
}

fn pages(offset: u64, len: u64) -> std::ops::Range<u64> {
    offset / 4096..(offset + len).div_ceil(4096)
}

impl Waiting {
    /// Empties the host's cache.
    fn forget(&self) {
        let mut host = self.host.lock();
        (host.pages, host.waits) = Default::default();
    }

    /// Reads that had to be waited for since then.
    fn waits(&self) -> u64 {
        self.host.lock().waits
    }
}

impl Device for Waiting {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut missing = false;
        {
            let mut host = self.host.lock();
            for page in pages(offset, buf.len() as u64) {
                missing |= host.pages.insert(page);
            }
            host.waits += u64::from(missing);
        }
        if missing {
            // The time that a device takes.
            std::thread::sleep(Duration::from_micros(60));
        }
        self.inner.read_at(purpose, offset, buf)
    }

    fn will_read(&self, _: Purpose, offset: u64, len: u64) {
        self.host.lock().pages.extend(pages(offset, len));
    }

    fn host_memory(&self) -> Option<u64> {
        self.host.lock().memory
    }

    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write_at(purpose, offset, buf)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.inner.grow(new_len)
    }
}

struct Loaded {
    device: Arc<Waiting>,
    db: Kvdb,
    d: DictionaryId,
    tuples: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Order {
    Sequential,
    Random,
}

impl Loaded {
    fn new(memory: usize, value: usize, count: u64, order: Order) -> Loaded {
        let device = Arc::new(Waiting::default());
        // Few runs, whatever the default.
        let shape = CompactionPolicy { runs_per_level: 4, ..CompactionPolicy::default() };
        let open = OpenOptions {
            memory,
            compaction: shape,
            threads: false,
            zero_journal: false,
            flush_on_close: false,
            ..OpenOptions::default()
        };
        let options = CreateOptions { open, ..CreateOptions::default() };
        let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), options).unwrap();
        let d = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
        let mut noise = Random::new(1);
        let mut tuples = BTreeMap::new();
        let mut i = 0;
        while i < count {
            let mut batch = Batch::new();
            for _ in 0..(16 << 10) / value + 1 {
                let key = if order == Order::Random { noise.number() } else { i * 10 };
                let key = format!("{key:020}").into_bytes();
                let mut data = vec![0; value];
                noise.fill(&mut data[..value.min(64)]);
                batch.put(d, key.clone(), data.clone());
                tuples.insert(key, data);
                i += 1;
            }
            db.commit(batch, Durability::Buffered).unwrap();
        }
        db.flush().unwrap();
        while db.step().unwrap() {}
        device.forget();
        Loaded { device, db, d, tuples }
    }

    fn io(&self, purpose: Purpose) -> PurposeStats {
        *self.db.stats().io.of(purpose)
    }

    /// Device reads of tuples, summed over purposes.
    fn reads(&self) -> u64 {
        [Purpose::Tuples, Purpose::Index, Purpose::Pages].map(|p| self.io(p).read_ops).iter().sum()
    }

    fn cursor(&self) -> Cursor {
        self.db.view().cursor(self.d, b"", b"").unwrap()
    }

    fn keys(&self) -> Vec<&Vec<u8>> {
        self.tuples.keys().collect()
    }
}

const MIB: usize = 1 << 20;

#[test]
fn a_scan_of_values_that_lie_in_many_places_hardly_waits_for_the_device() {
    let s = Loaded::new(16 * MIB, 4096, 6000, Order::Random);
    let mut cursor = s.cursor();
    for (key, value) in &s.tuples {
        let tuple = cursor.next().unwrap().unwrap();
        assert_eq!((&tuple.key[..], &tuple.value().unwrap()[..]), (&key[..], &value[..]));
    }
    assert!(cursor.next().unwrap().is_none());
    let waits = s.device.waits();
    assert!(waits < s.tuples.len() as u64 / 50, "{waits} waits for {} tuples", s.tuples.len());
    // Neighbours are announced together, and nothing twice.
    let pages = s.io(Purpose::Pages);
    assert!(pages.ahead_ops < s.tuples.len() as u64 / 10, "{pages:?}");
    assert!(pages.ahead_bytes < 6000 * 4096 * 11 / 10, "{pages:?}");
}

#[test]
fn values_that_were_patched_are_read_ahead_as_others_are() {
    let mut s = Loaded::new(16 * MIB, 4096, 6000, Order::Random);
    // A third is patched in a run, another third in memory.
    for part in [0, 1] {
        let mut batch = Batch::new();
        for (key, value) in s.tuples.iter_mut().skip(part).step_by(3) {
            value[10..14].copy_from_slice(b"ABCD");
            batch.update(s.d, key.clone(), Update::patch(10, b"ABCD").unwrap());
        }
        s.db.commit(batch, Durability::Buffered).unwrap();
        if part == 0 {
            s.db.flush().unwrap();
        }
    }
    s.device.forget();
    let mut cursor = s.cursor();
    for (key, value) in &s.tuples {
        let tuple = cursor.next().unwrap().unwrap();
        assert_eq!((&tuple.key[..], tuple.value_len()), (&key[..], value.len()));
        assert_eq!(tuple.value().unwrap(), value[..]);
    }
    let waits = s.device.waits();
    assert!(waits < s.tuples.len() as u64 / 50, "{waits} waits for {} tuples", s.tuples.len());
    // Values that are not asked for are not read.
    let before = s.io(Purpose::Pages);
    let mut cursor = s.cursor();
    while let Some(tuple) = cursor.next().unwrap() {
        assert_eq!(tuple.value_len(), 4096);
    }
    assert_eq!(s.io(Purpose::Pages), before);
}

#[test]
fn a_scan_of_contiguous_data_makes_large_requests() {
    let s = Loaded::new(16 * MIB, 4096, 6000, Order::Sequential);
    let mut cursor = s.cursor();
    while let Some(t) = cursor.next().unwrap() {
        t.value().unwrap();
    }
    let pages = s.io(Purpose::Pages);
    assert!(
        pages.ahead_bytes > 20 << 20 && pages.ahead_bytes / pages.ahead_ops > 256 << 10,
        "{pages:?}"
    );

    let s = Loaded::new(4 * MIB, 100, 100_000, Order::Sequential);
    let mut cursor = s.cursor();
    while cursor.next().unwrap().is_some() {}
    let blocks = s.io(Purpose::Tuples);
    assert!(
        blocks.ahead_bytes > 8 << 20 && blocks.ahead_bytes / blocks.ahead_ops > 128 << 10,
        "{blocks:?}"
    );
    assert!(s.device.waits() < 40, "{} waits", s.device.waits());
}

#[test]
fn a_walk_with_turns_and_seeks_gives_what_the_model_gives() {
    for (value, count) in [(4096, 3000), (100, 30_000)] {
        let s = Loaded::new(4 * MIB, value, count, Order::Random);
        let keys = s.keys();
        let mut random = Random::new(3);
        let mut cursor = s.cursor();
        // Between tuples `at - 1` and `at`.
        let mut at = 0;
        for _ in 0..60 {
            let forward = random.one_in(2);
            if random.one_in(4) {
                at = random.below(keys.len() as u64) as usize;
                cursor.seek(keys[at]).unwrap();
            }
            for _ in 0..random.below(200) {
                let expected =
                    if forward { keys.get(at) } else { at.checked_sub(1).map(|i| &keys[i]) };
                let tuple = if forward { cursor.next().unwrap() } else { cursor.prev().unwrap() };
                assert_eq!(tuple.as_ref().map(|t| &t.key[..]), expected.map(|k| &k[..]));
                let Some(tuple) = tuple else { break };
                assert_eq!(tuple.value().unwrap(), s.tuples[&tuple.key[..]]);
                at = if forward { at + 1 } else { at - 1 };
            }
        }
        // Against the order of keys it is read ahead as well.
        s.device.forget();
        cursor.seek_to_end().unwrap();
        for (key, value) in s.tuples.iter().rev() {
            let tuple = cursor.prev().unwrap().unwrap();
            assert_eq!((&tuple.key[..], &tuple.value().unwrap()[..]), (&key[..], &value[..]));
        }
        let waits = s.device.waits();
        assert!(waits < s.tuples.len() as u64 / 50, "{waits} waits for {} tuples", s.tuples.len());
    }
}

#[test]
fn a_short_range_reads_little_in_vain() {
    let s = Loaded::new(4 * MIB, 100, 50_000, Order::Random);
    let runs: u64 = s.db.stats().dictionaries[0].levels.iter().flatten().count() as u64;
    let keys = s.keys();
    for start in (0..keys.len() - 100).step_by(5000) {
        let before = s.io(Purpose::Tuples);
        let part = s.db.view().scan(s.d, keys[start], b"", 10).unwrap();
        assert!(part.iter().map(|(k, _)| k).eq(&keys[start..start + 10]));
        let after = s.io(Purpose::Tuples);
        assert!(after.read_ops - before.read_ops <= 2 * runs, "{runs} runs, {before:?} {after:?}");
        assert_eq!(after.ahead_bytes, before.ahead_bytes);
    }

    let s = Loaded::new(4 * MIB, 4096, 2000, Order::Random);
    let keys = s.keys();
    let mut cursor = s.cursor();
    for start in (0..keys.len() - 100).step_by(300) {
        let before = s.io(Purpose::Pages);
        cursor.seek(keys[start]).unwrap();
        for key in &keys[start..start + 10] {
            let tuple = cursor.next().unwrap().unwrap();
            assert_eq!(&tuple.key[..], &key[..]);
            tuple.value().unwrap();
        }
        let after = s.io(Purpose::Pages);
        assert_eq!(after.read_bytes - before.read_bytes, 10 * 4096);
        let ahead = after.ahead_bytes - before.ahead_bytes;
        // The bound covers the values of the first window, and the small gaps between them.
        assert!(ahead <= 128 << 10 << 1, "{ahead} bytes announced");
    }
}

#[test]
fn a_seek_waits_for_all_runs_at_once() {
    let mut s = Loaded::new(8 * MIB, 100, 100_000, Order::Random);
    let mut noise = Random::new(2);
    for _ in 0..3 {
        let mut batch = Batch::new();
        for _ in 0..5000 {
            let key = format!("{:020}", noise.number()).into_bytes();
            batch.put(s.d, key.clone(), vec![1; 100]);
            s.tuples.insert(key, vec![1; 100]);
        }
        s.db.commit(batch, Durability::Buffered).unwrap();
        s.db.flush().unwrap();
    }
    s.device.forget();
    let runs = s.db.stats().dictionaries[0].levels.iter().flatten().count() as u64;
    assert!(runs > 2, "{runs} runs");
    let keys = s.keys();
    // The index, once.
    for start in (0..keys.len() - 100).step_by(100) {
        s.db.get(s.d, keys[start]).unwrap();
    }
    let mut seeks = 0;
    let before = s.device.waits();
    for start in (50..keys.len() - 100).step_by(5000) {
        let tuple = s.db.view().cursor(s.d, keys[start], b"").unwrap().next().unwrap();
        assert_eq!(tuple.map(|t| t.key.to_vec()).as_ref(), Some(keys[start]));
        seeks += 1;
    }
    let waits = s.device.waits() - before;
    assert!(waits <= seeks, "{waits} waits for {seeks} seeks in {runs} runs");
}

#[test]
fn a_scan_of_keys_reads_no_values() {
    let s = Loaded::new(4 * MIB, 4096, 2000, Order::Random);
    let before = s.io(Purpose::Pages);
    let mut cursor = s.cursor();
    for key in s.tuples.keys() {
        assert_eq!(&cursor.next().unwrap().unwrap().key[..], &key[..]);
    }
    assert_eq!(s.io(Purpose::Pages), before);
}

#[test]
fn a_get_reads_the_device_about_once_at_ten_times_memory() {
    for (memory, value, count) in [(4 * MIB, 4096, 10_000), (8 * MIB, 100, 650_000)] {
        let s = Loaded::new(memory, value, count, Order::Random);
        s.db.compact(s.d).unwrap();
        let keys = s.keys();
        let mut random = Random::new(5);
        let mut get = |n: u64| {
            for _ in 0..n {
                let key = keys[random.below(keys.len() as u64) as usize];
                assert_eq!(s.db.get(s.d, key).unwrap().as_deref(), Some(&s.tuples[key][..]));
            }
        };
        get(3000);
        let before = s.reads();
        get(3000);
        let reads = s.reads() - before;
        assert!(reads <= 3300, "{reads} reads for 3000 gets of {value} bytes");
    }
}

#[test]
fn a_store_that_fits_into_the_hosts_memory_is_there_after_few_waits() {
    for (value, count) in [(4096, 8000), (100, 300_000)] {
        let s = Loaded::new(8 * MIB, value, count, Order::Random);
        let keys = s.keys();
        let mut random = Random::new(5);
        let mut get = |n: u64| {
            let (waits, ahead) = (
                s.device.waits(),
                [Purpose::Tuples, Purpose::Index, Purpose::Pages].map(|p| s.io(p).ahead_bytes),
            );
            for _ in 0..n {
                let key = keys[random.below(keys.len() as u64) as usize];
                assert_eq!(s.db.get(s.d, key).unwrap().as_deref(), Some(&s.tuples[key][..]));
            }
            let now =
                [Purpose::Tuples, Purpose::Index, Purpose::Pages].map(|p| s.io(p).ahead_bytes);
            (s.device.waits() - waits, now.iter().sum::<u64>() - ahead.iter().sum::<u64>())
        };
        // If the memory of the host is unknown or too small, only the requested data is read.
        // Reading around it would fetch the whole store.
        let (waits, ahead) = get(1000);
        assert!(waits > 500 && ahead == 0, "{waits} waits, {ahead} bytes in vain");
        s.device.host.lock().memory = Some(zones::ZONE_SIZE);
        let (_, ahead) = get(1000);
        assert_eq!(ahead, 0);
        // After a while the store asks for the memory again.
        s.device.host.lock().memory = Some(1 << 30);
        s.device.forget();
        get(10_000);
        let (waits, ahead) = get(1000);
        assert!(waits < 20, "{waits} waits");
        assert_eq!(ahead, 0, "nothing is fetched twice");
        // The data is never read ahead again. Values that were evicted from memory are read on
        // request.
        s.device.forget();
        let (_, ahead) = get(1000);
        assert_eq!(ahead, 0);
    }
}

#[test]
fn a_missing_key_is_known_without_the_device() {
    let s = Loaded::new(8 * MIB, 100, 50_000, Order::Random);
    let runs: u64 = s.db.stats().dictionaries[0].levels.iter().flatten().count() as u64;
    let mut random = Random::new(6);
    let mut get = |n: u64| {
        for _ in 0..n {
            let key = format!("{:020}x", random.number());
            assert!(s.db.get(s.d, key.as_bytes()).unwrap().is_none());
        }
    };
    get(1000);
    let before = s.reads();
    get(5000);
    // False positives of the filters.
    let reads = s.reads() - before;
    assert!(reads <= 5000 * runs / 50, "{reads} reads with {runs} runs");
}

#[test]
fn blocks_stay_warm_through_a_merge_that_stitches() {
    let s = Loaded::new(64 * MIB, 100, 30_000, Order::Sequential);
    let d = s.d;
    let mut batch = Batch::new();
    batch.put(d, format!("{:020}", 1_000_000_000), "beyond all others");
    s.db.commit(batch, Durability::Buffered).unwrap();
    s.db.flush().unwrap();
    let scan = || {
        let mut n = 0;
        let count = |_: &[u8], _: &[u8]| {
            n += 1;
            ControlFlow::Continue(())
        };
        s.db.view().for_each(d, b"", b"", count).unwrap();
        assert_eq!(n, s.tuples.len() + 1);
    };
    scan();
    let (before, stitched) = (s.io(Purpose::Tuples), s.db.stats().stitched_bytes);
    s.db.compact(d).unwrap();
    assert!(s.db.stats().stitched_bytes - stitched > 2 << 20);
    scan();
    let reads = s.io(Purpose::Tuples).read_ops - before.read_ops;
    assert!(reads < 30, "{reads} of more than 300 blocks were read again");
}

#[test]
fn many_keys_at_once_are_what_they_are_one_by_one_and_wait_less() {
    for (value, count) in [(4096, 2000), (100, 30_000)] {
        let s = Loaded::new(4 * MIB, value, count, Order::Random);
        let keys = s.keys();
        let mut random = Random::new(8);
        let mut wanted: Vec<Vec<u8>> =
            (0..200).map(|_| keys[random.below(keys.len() as u64) as usize].clone()).collect();
        wanted.push(b"no such key".to_vec());
        wanted.push(wanted[0].clone());
        let got = s.db.multi_get(s.d, &wanted).unwrap();
        // The read fetches the index, and the first of its targets.
        let waits = s.device.waits();
        assert!(waits < 100, "{waits} waits for {} keys", wanted.len());
        for (key, value) in wanted.iter().zip(got) {
            assert_eq!(value.as_deref(), s.tuples.get(key).map(|v| &v[..]));
            assert_eq!(value, s.db.get(s.d, key).unwrap());
        }
    }
}
