//! Tests of short values, of 512 bytes to 2 KiB, in a dictionary whose `separate_at` adapts. They
//! lie outside of their blocks while the dictionary is overwritten, and inside while it is read in
//! order or at rest.
//!
//! `KVFS_SEEDS=n` runs n histories instead of the usual few; `KVFS_SEED=n` runs one.

use crate::model;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{bytes, create, seeds, small};
use env::{Random, Simulated};
use kvdb::{
    Batch, CreateOptions, Cursor, DefragOptions, DictionaryId, DictionaryInfo, DictionaryOptions,
    Durability, Error, Kvdb, OpenOptions,
};
use zones::{MemoryDevice, Purpose, ZONE_SIZE};

const VALUE: usize = 512;
const TUPLE: u64 = 16 + VALUE as u64;

struct Store {
    device: Arc<MemoryDevice>,
    env: Arc<Simulated>,
    db: Kvdb,
    dict: DictionaryId,
    random: Random,
    open: OpenOptions,
}

impl Store {
    fn new() -> Store {
        Store::with(DictionaryOptions::default())
    }

    fn with(options: DictionaryOptions) -> Store {
        let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)));
        let open = OpenOptions { memory: 4 << 20, ..OpenOptions::default() };
        let db = create(device.clone(), env.clone(), open.clone()).unwrap();
        let dict = db.create_dictionary("d", options).unwrap();
        Store { device, env, db, dict, random: Random::new(7), open }
    }

    fn put(&mut self, key: u64) {
        let mut value = [0; VALUE];
        self.random.fill(&mut value);
        self.db.put(self.dict, &key_of(key), &value, Durability::Buffered).unwrap();
        if key.is_multiple_of(500) {
            self.work();
        }
    }

    fn put_all(&mut self, keys: impl Iterator<Item = u64>) {
        keys.for_each(|key| self.put(key));
    }

    fn delete(&mut self, key: u64) {
        let mut batch = Batch::new();
        batch.delete(self.dict, key_of(key).to_vec());
        self.db.commit(batch, Durability::Buffered).unwrap();
    }

    /// Does all background work that is due.
    fn work(&self) {
        while self.db.step().unwrap() {}
    }

    fn pass(&self, seconds: u64) {
        for _ in 0..seconds {
            self.env.advance(Duration::from_secs(1));
            self.work();
        }
    }

    /// No commits for some seconds.
    fn settle(&self) {
        self.pass(10);
        assert!(self.db.stats().at_rest, "{:?}", self.db.stats());
    }

    fn info(&self) -> DictionaryInfo {
        self.db.dictionaries().into_iter().find(|d| d.id == self.dict).unwrap()
    }

    fn outside(&self) -> bool {
        self.info().short_outside
    }

    /// Bytes of values that runs of a dictionary have outside their blocks.
    fn bytes_outside(&self, dict: DictionaryId) -> u64 {
        let dictionaries = self.db.stats().dictionaries;
        let stats = dictionaries.iter().find(|d| d.info.id == dict).unwrap();
        stats.levels.iter().flatten().map(|run| run.value_bytes).sum()
    }

    fn cursor(&self) -> Cursor {
        self.db.view().cursor(self.dict, b"", b"").unwrap()
    }

    /// Reads all values in order. Returns their number.
    fn scan(&self) -> u64 {
        let mut cursor = self.cursor();
        let mut count = 0;
        while let Some(tuple) = cursor.next().unwrap() {
            assert_eq!(tuple.value().unwrap().len(), VALUE);
            count += 1;
        }
        count
    }

    fn written(&self) -> u64 {
        self.db.stats().io.total().write_bytes
    }

    fn reopen(&mut self, properly: bool) {
        if properly {
            self.db.close().unwrap();
        } else {
            self.db.sync().unwrap();
            self.device = Arc::new(MemoryDevice::clone(&self.device));
        }
        self.db = Kvdb::open(self.device.clone(), self.env.clone(), self.open.clone()).unwrap().0;
    }
}

/// Scattered over the numbers.
fn key_number(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Scattered over the key space.
fn key_of(number: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[..8].copy_from_slice(&key_number(number).to_be_bytes());
    key
}

const COUNT: u64 = 40_000;

#[test]
fn what_is_written_deleted_and_written_is_written_twice_and_ends_in_blocks() {
    let mut store = Store::new();
    let made = store.written();
    store.put_all(0..COUNT);
    (0..COUNT).step_by(2).for_each(|key| store.delete(key));
    assert!(store.outside());
    store.put_all(0..COUNT);
    store.settle();
    let user = store.db.stats().user_bytes;
    let written = (store.written() - made) as f64 / user as f64;
    assert!(written < 2.1, "{written} bytes for each byte");
    assert_eq!((store.outside(), store.bytes_outside(store.dict)), (false, 0));
    // A scan reads the stored data in order, and no more.
    let read = |store: &Store| store.db.stats().io.of(Purpose::Pages).read_bytes;
    let before = read(&store);
    assert_eq!(store.scan(), COUNT);
    assert_eq!(read(&store), before);
    let stats = store.db.stats();
    let runs: Vec<_> = stats.dictionaries[0].levels.iter().flatten().collect();
    assert_eq!(runs.len(), 1);
    assert!(runs[0].block_bytes < COUNT * TUPLE * 11 / 10);
    let report = kvdb::check(store.device.clone(), &mut |_, _| {});
    assert!(report.is_clean(), "{:?}", report.faults);
}

#[test]
fn values_that_come_in_order_stay_inside() {
    type Order = fn(u64) -> u64;
    let orders: [(&str, Order); 3] = [
        ("ascending", |i| i),
        ("descending", |i| COUNT - i),
        ("at the ends of 40 ranges", |i| (key_number(i % 40) >> 32 << 32) | (i / 40)),
    ];
    for (order, number) in orders {
        let mut store = Store::new();
        for i in 0..COUNT {
            let mut value = [0; VALUE];
            store.random.fill(&mut value);
            let key = number(i).to_be_bytes();
            store.db.put(store.dict, &key, &value, Durability::Buffered).unwrap();
            if i % 500 == 0 {
                store.work();
                assert!(!store.outside(), "{order}");
            }
        }
        store.settle();
        let written = store.db.stats().write_amplification();
        assert!(written < 2.3, "{written} bytes for each byte, {order}");
        assert_eq!(store.bytes_outside(store.dict), 0);
    }
}

#[test]
fn few_changes_of_many_values_leave_them_inside() {
    let mut store = Store::new();
    store.put_all(0..COUNT);
    store.settle();
    store.put_all(0..COUNT / 10);
    assert!(!store.outside());
    store.settle();
    assert_eq!(store.bytes_outside(store.dict), 0);
}

#[test]
fn a_dictionary_that_is_scanned_while_it_is_written_keeps_its_values_inside() {
    let mut store = Store::new();
    store.put_all(0..COUNT);
    assert!(store.outside());
    // Something is always committed, so the store is never idle.
    let mut seconds = 0;
    while store.outside() {
        store.scan();
        store.put(0);
        store.pass(1);
        seconds += 1;
        assert!(seconds < 10, "{} bytes are outside", store.bytes_outside(store.dict));
    }
    assert_eq!(store.bytes_outside(store.dict), 0);
    // Most values must be rewritten before they are stored outside again.
    store.put_all(0..COUNT / 2);
    assert!(!store.outside());
    store.put_all(0..COUNT);
    assert!(store.outside());
}

#[test]
fn a_store_that_is_opened_again_knows_what_is_outside() {
    for properly in [true, false] {
        let mut store = Store::new();
        store.put_all(0..COUNT);
        assert!(store.outside());
        store.reopen(properly);
        assert!(store.outside(), "closed properly: {properly}");
        assert!(store.bytes_outside(store.dict) > 0);
        assert_eq!(store.scan(), COUNT);
        store.settle();
        assert_eq!((store.outside(), store.bytes_outside(store.dict)), (false, 0));
        store.reopen(properly);
        assert_eq!((store.outside(), store.scan()), (false, COUNT));
    }
}

#[test]
fn a_merge_that_gathers_and_was_cut_short_is_done_again() {
    let mut store = Store::new();
    store.open.merge_part = 1 << 20;
    store.put_all(0..COUNT);
    store.reopen(true);
    let before = store.bytes_outside(store.dict);
    let mut steps = 0;
    while store.bytes_outside(store.dict) > before / 2 {
        store.env.advance(Duration::from_millis(100));
        store.db.step().unwrap();
        steps += 1;
        assert!(steps < 10_000, "nothing is gathered");
    }
    let left = store.bytes_outside(store.dict);
    assert!(left > 0 && store.outside(), "{left} bytes are left");
    store.reopen(false);
    assert_eq!((store.outside(), store.bytes_outside(store.dict)), (true, left));
    store.settle();
    assert_eq!((store.outside(), store.bytes_outside(store.dict)), (false, 0));
    assert_eq!(store.scan(), COUNT);
}

#[test]
fn a_length_that_is_asked_for_does_not_adapt() {
    let fixed = |separate_at| DictionaryOptions { separate_at, ..DictionaryOptions::default() };
    for (separate_at, outside) in [(512, true), (2048, false), (u32::MAX, false)] {
        let mut store = Store::with(fixed(separate_at));
        store.put_all(0..COUNT);
        assert!(!store.outside());
        store.settle();
        assert_eq!(store.bytes_outside(store.dict) > 0, outside, "{separate_at}");
    }
    // The option can be set later, and reset to automatic.
    let mut store = Store::new();
    store.put_all(0..COUNT);
    assert!(store.outside());
    store.db.set_dictionary_options(store.dict, fixed(2048)).unwrap();
    assert!(!store.outside());
    store.settle();
    assert!(store.bytes_outside(store.dict) > 0, "what is outside stays there");
    store.db.set_dictionary_options(store.dict, DictionaryOptions::default()).unwrap();
    store.put_all(0..COUNT);
    assert!(store.outside());
    store.settle();
    assert_eq!(store.bytes_outside(store.dict), 0);
    assert_eq!(store.scan(), COUNT);
}

#[test]
fn a_compaction_by_hand_gathers_at_once() {
    let mut store = Store::new();
    store.put_all(0..COUNT);
    assert!(store.outside());
    store.db.compact(store.dict).unwrap();
    assert_eq!((store.outside(), store.bytes_outside(store.dict)), (false, 0));
    assert_eq!(store.scan(), COUNT);
}

#[test]
fn a_clone_goes_on_sharing_values_that_are_gathered_in_what_it_was_cloned_from() {
    let mut store = Store::new();
    store.put_all(0..COUNT);
    store.db.snapshot("then").unwrap();
    store.db.clone_snapshot("then", "b").unwrap();
    let clone = store.db.dictionary_in("b", "d").unwrap();
    store.settle();
    assert_eq!(store.bytes_outside(store.dict), 0);
    assert!(store.bytes_outside(clone) > COUNT * VALUE as u64 / 2);
    // Values that are put into a clone lie inside, however many they are.
    let before = store.bytes_outside(clone);
    let mut of_clone = Store { dict: clone, ..store };
    of_clone.put_all(0..COUNT);
    of_clone.settle();
    assert!(of_clone.bytes_outside(clone) < before);
    assert_eq!(of_clone.scan(), COUNT);
    // A rollback brings back what was outside, and that it was.
    of_clone.db.rollback("then").unwrap();
    let mut store = Store { dict: of_clone.db.dictionary("d").unwrap(), ..of_clone };
    assert!(store.outside() && store.bytes_outside(store.dict) > 0);
    store.put(0);
    store.settle();
    assert_eq!((store.scan(), store.bytes_outside(store.dict)), (COUNT, 0));
}

#[test]
fn a_store_without_room_for_them_leaves_values_outside_and_works_on() {
    let mut store = Store::new();
    let options = CreateOptions {
        capacity: Some(24 * ZONE_SIZE),
        open: store.open.clone(),
        ..CreateOptions::default()
    };
    store.db = Kvdb::create(Arc::new(MemoryDevice::new()), store.env.clone(), options).unwrap();
    let dict = store.db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    store.dict = dict;
    let mut count = 0;
    loop {
        match store.db.put(dict, &key_of(count), &[1; VALUE], Durability::Buffered) {
            Ok(()) => count += 1,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
        if count % 500 == 0 {
            _ = model::unless_full(store.db.step()).unwrap();
        }
    }
    for _ in 0..10 {
        store.env.advance(Duration::from_secs(1));
        let mut steps = 0;
        while model::unless_full(store.db.step()).unwrap() == Some(true) {
            steps += 1;
            assert!(steps < 1000, "what finds no room is not tried again and again");
        }
    }
    assert!(store.outside() && store.bytes_outside(dict) > count * VALUE as u64 / 2);
    assert_eq!(store.scan(), count);
    (0..count).filter(|key| key % 8 != 0).for_each(|key| store.delete(key));
    store.settle();
    // A store without threads does this on request.
    store.db.defragment(DefragOptions::default()).unwrap();
    store.settle();
    assert_eq!((store.scan(), store.bytes_outside(dict)), (count.div_ceil(8), 0));
    store.put(0);
}

/// Counts how often in a history values went outside, and how often all of them were gathered.
#[derive(Default)]
struct Met {
    outside: u64,
    gathered: u64,
}

/// A random history of a dictionary whose values move out of blocks and back, compared with a map
/// all the time.
fn history(seed: u64, met: &mut Met) {
    let mut random = Random::new(seed);
    let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(seed)));
    let open = OpenOptions { merge_part: (16 << 10) << random.below(4), ..small() };
    let db = create(device.clone(), env.clone(), open.clone()).unwrap();
    let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    let mut store = Store { device, env, db, dict, random: Random::new(seed), open };
    let mut map = std::collections::BTreeMap::<Vec<u8>, Vec<u8>>::new();
    let mut saved = None;
    let mut views = Vec::new();
    let mut was_outside = false;
    for _ in 0..150 {
        let key = |random: &mut Random| format!("{:04}", random.below(600)).into_bytes();
        match random.below(20) {
            0..=9 => {
                let mut batch = Batch::new();
                for _ in 0..random.below(40) {
                    let key = key(&mut random);
                    let most = [100, 2048, 2048, 3000][random.below(4) as usize];
                    let len = random.below(most) as usize;
                    let value = bytes(&mut random, len);
                    batch.put(dict, key.clone(), value.clone());
                    map.insert(key, value);
                }
                let durability =
                    [Durability::Buffered, Durability::Synced][random.below(2) as usize];
                store.db.commit(batch, durability).unwrap();
            }
            10 => {
                let (a, b) = (key(&mut random), key(&mut random));
                let (a, b) = (a.clone().min(b.clone()), a.max(b));
                let mut batch = Batch::new();
                batch.delete_range(dict, a.clone(), b.clone());
                map.retain(|key, _| *key < a || *key >= b);
                store.db.commit(batch, Durability::Buffered).unwrap();
            }
            11 => {
                let key = key(&mut random);
                let update = kvdb::Update::append(&[7; 30]).unwrap();
                let mut batch = Batch::new();
                batch.update(dict, key.clone(), update);
                map.entry(key).or_default().extend([7; 30]);
                store.db.commit(batch, Durability::Buffered).unwrap();
            }
            12 => store.db.compact(dict).unwrap(),
            13 => store.db.flush().unwrap(),
            14 => {
                let mut cursor = store.cursor();
                while let Some(tuple) = cursor.next().unwrap() {
                    assert_eq!(map.get(&tuple.key[..]), Some(&tuple.value().unwrap().to_vec()));
                }
            }
            15 => store.env.advance(Duration::from_millis(100)),
            16 => views.push((store.db.view(), map.clone())),
            17 if random.one_in(2) => {
                // A view would keep the device of a closed store.
                views.clear();
                store.reopen(random.one_in(2));
            }
            17 => match saved.take() {
                None => {
                    store.db.snapshot("then").unwrap();
                    saved = Some(map.clone());
                }
                Some(then) => {
                    store.db.rollback("then").unwrap();
                    store.db.drop_snapshot("then").unwrap();
                    map = then;
                }
            },
            _ => store.work(),
        }
        let is_outside = store.outside();
        met.outside += u64::from(is_outside && !was_outside);
        met.gathered += u64::from(!is_outside && was_outside);
        was_outside = is_outside;
    }
    views.push((store.db.view(), map));
    for (view, map) in &views {
        let all = view.scan(dict, b"", b"", usize::MAX).unwrap();
        let all = all.iter().map(|(key, value)| (key.to_vec(), value.to_vec()));
        assert!(all.eq(map.iter().map(|(k, v)| (k.clone(), v.clone()))), "seed {seed}");
        for (key, value) in map {
            assert_eq!(view.get(dict, key).unwrap().as_deref(), Some(&value[..]), "seed {seed}");
        }
    }
    views.clear();
    store.db.close().unwrap();
    let report = kvdb::check(store.device.clone(), &mut |_, _| {});
    assert!(report.is_clean(), "seed {seed}: {:?}", report.faults);
}

#[test]
fn values_that_go_out_and_in_are_what_was_written() {
    let mut met = Met::default();
    let seeds = seeds(12);
    let count = seeds.end - seeds.start;
    seeds.for_each(|seed| history(seed, &mut met));
    assert!(
        count < 12 || met.outside > count && met.gathered > count / 2,
        "too few went out and in"
    );
}
