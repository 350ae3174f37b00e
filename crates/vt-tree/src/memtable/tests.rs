//! Tests the memtable against a model: a plain list of all writes that is searched for each query.

use super::*;
use crate::{Body, Item, Source};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Op {
    Put(Vec<u8>, Value),
    Update(Vec<u8>, Update),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

#[derive(Default)]
struct Model {
    /// All writes, in order of arrival.
    ops: Vec<(Seq, Op)>,
}

impl Model {
    fn get(&self, key: &[u8], at: Seq) -> Lookup {
        let covers = |op: &Op| match op {
            Op::Put(k, _) | Op::Update(k, _) | Op::Delete(k) => k == key,
            Op::DeleteRange(s, e) => &s[..] <= key && key < &e[..],
        };
        let mut ops: Vec<_> =
            self.ops.iter().filter(|(seq, op)| *seq <= at && covers(op)).collect();
        // The sort is stable: if two writes have the same number, the later one wins.
        ops.sort_by_key(|(seq, _)| *seq);
        ops.iter().fold(Lookup::Absent, |older, (seq, op)| {
            let newer = match op {
                Op::Put(_, v) => Lookup::Found(*seq, v.clone()),
                Op::Update(_, u) => Lookup::Updated { seq: *seq, base: None, update: u.clone() },
                Op::Delete(_) | Op::DeleteRange(..) => Lookup::Deleted(*seq),
            };
            newer.over(older)
        })
    }

    fn apply(&mut self, m: &Memtable, seq: Seq, op: &Op) {
        match op {
            Op::Put(k, v) => m.put(k, seq, v.clone()),
            Op::Update(k, u) => m.update(k, seq, u),
            Op::Delete(k) => m.delete(k, seq),
            Op::DeleteRange(s, e) => m.delete_range(s, e, seq),
        }
        self.ops.push((seq, op.clone()));
    }

    /// Returns all keys at which the result may change: the keys in the writes, and the successor
    /// of each.
    fn landmarks(&self) -> BTreeSet<Vec<u8>> {
        let mut keys = BTreeSet::from([vec![]]);
        for (_, op) in &self.ops {
            let (a, b) = match op {
                Op::Put(k, _) | Op::Update(k, _) | Op::Delete(k) => (k, k),
                Op::DeleteRange(s, e) => (s, e),
            };
            for k in [a, b] {
                keys.insert(k.clone());
                keys.insert([&k[..], &[0]].concat());
            }
        }
        keys
    }
}

/// Returns the expected result of looking up a key that `item` covers.
fn says(item: &Item) -> Lookup {
    match &item.body {
        Body::DeleteRange { .. } => Lookup::Deleted(item.seq),
        body => Lookup::of(item.seq, body.clone()).expect("an update decodes"),
    }
}

/// Returns the current item of the cursor.
fn here(c: &MemtableCursor) -> Option<Item> {
    c.item().map(|i| i.to_item())
}

/// Returns the first key that is neither covered by `item` nor below it.
fn end(item: &Item) -> Vec<u8> {
    match &item.body {
        Body::DeleteRange { end } => end.to_vec(),
        _ => [&item.key[..], &[0]].concat(),
    }
}

/// Checks items against the model at every landmark.
struct View<'a> {
    model: &'a Model,
    landmarks: BTreeSet<Vec<u8>>,
    at: Seq,
}

impl View<'_> {
    fn check_item(&self, item: &Item) {
        let (from, to) = (item.key.to_vec(), end(item));
        assert!(from < to, "an item covers something");
        assert!(item.seq <= self.at);
        for k in self.landmarks.range(from..to) {
            assert_eq!(says(item), self.model.get(k, self.at), "key {k:?}");
        }
    }

    /// Checks that the model has no value at the keys in `[from, to)`.
    fn check_gap(&self, from: &[u8], to: Option<&[u8]>) {
        for k in self.landmarks.range(from.to_vec()..).take_while(|k| to.is_none_or(|t| &k[..] < t))
        {
            assert_eq!(self.model.get(k, self.at), Lookup::Absent, "key {k:?} is missing");
        }
    }

    fn check_all(&self, m: &Arc<Memtable>) {
        self.check_cursor(&mut m.cursor(self.at));
    }

    fn check_cursor(&self, c: &mut MemtableCursor) {
        c.first().unwrap();
        let mut reached = vec![];
        while let Some(i) = here(c) {
            assert!(reached[..] <= i.key[..]);
            self.check_gap(&reached, Some(&i.key));
            self.check_item(&i);
            reached = end(&i);
            c.next().unwrap();
        }
        self.check_gap(&reached, None);

        c.last().unwrap();
        let mut reached: Option<Vec<u8>> = None;
        while let Some(i) = here(c) {
            assert!(reached.as_ref().is_none_or(|r| end(&i) <= *r));
            self.check_gap(&end(&i), reached.as_deref());
            self.check_item(&i);
            reached = Some(i.key.to_vec());
            c.prev().unwrap();
        }
        self.check_gap(&[], reached.as_deref());
    }
}

/// Returns the number of cases of each property: few by default, `KVFS_TEST_CASES` in a long run.
fn cases() -> u32 {
    std::env::var("KVFS_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(256)
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(b'a'), Just(255)], 0..4),
        // Use keys that are longer than a head and a shared prefix together, and differ at either
        // end.
        (0u8..3, 0u8..20)
            .prop_map(|(a, b)| [&[b'k', a][..], &b"shared by all of them"[..], &[b]].concat()),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => any::<u16>().prop_map(|v| Value::Inline(v.to_be_bytes().to_vec().into())),
        1 => any::<u8>().prop_map(|v| Value::Inline(vec![v; KEEP_FROM + v as usize].into())),
        1 => any::<u32>().prop_map(|v| Value::Extent(crate::ExtentRef::plain(v as u64, v, v))),
        1 => Just(Value::Inline(Bytes::new())),
    ]
}

fn update() -> impl Strategy<Value = Update> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..9);
    prop_oneof![
        (-3..9i64).prop_map(Update::add),
        bytes().prop_map(|b| Update::append(&b).expect("short")),
        (0..600usize, bytes()).prop_map(|(at, b)| Update::patch(at, &b).expect("short")),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![3 => put_or_delete(), 1 => (key(), update()).prop_map(|(k, u)| Op::Update(k, u))]
}

fn put_or_delete() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (key(), value()).prop_map(|(k, v)| Op::Put(k, v)),
        2 => key().prop_map(Op::Delete),
        2 => (key(), key()).prop_map(|(a, b)| Op::DeleteRange(a, b)),
    ]
}

/// Generates writes with ascending sequence numbers, sometimes several in a commit.
fn history(n: usize) -> impl Strategy<Value = Vec<(Seq, Op)>> {
    proptest::collection::vec((0u64..3, op()), 1..n).prop_map(|ops| {
        let mut seq = 1;
        ops.into_iter()
            .map(|(step, op)| {
                seq += step;
                (seq, op)
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_get_at_any_time_sees_what_was_there_then(history in history(60)) {
        let (m, mut model) = (Memtable::new(), Model::default());
        for (seq, op) in &history {
            model.apply(&m, *seq, op);
        }
        for at in 0..=m.max_seq() + 1 {
            for k in model.landmarks() {
                prop_assert_eq!(m.get(&k, at), model.get(&k, at), "key {:?} at {}", k, at);
            }
        }
    }

    #[test]
    fn puts_and_deletions_may_arrive_out_of_order(
        history in proptest::collection::vec((1u64..20, put_or_delete()), 1..60),
    ) {
        let (m, mut model) = (Arc::new(Memtable::new()), Model::default());
        for (seq, op) in &history {
            model.apply(&m, *seq, op);
        }
        for at in 0..21 {
            for k in model.landmarks() {
                prop_assert_eq!(m.get(&k, at), model.get(&k, at), "key {:?} at {}", k, at);
            }
            View { model: &model, landmarks: model.landmarks(), at }.check_all(&m);
        }
    }

    #[test]
    fn a_cursor_shows_disjoint_items_both_ways(history in history(80)) {
        let (m, mut model) = (Arc::new(Memtable::new()), Model::default());
        for (seq, op) in &history {
            model.apply(&m, *seq, op);
        }
        for at in [0, 1, m.max_seq() / 2, m.max_seq(), Seq::MAX] {
            View { model: &model, landmarks: model.landmarks(), at }.check_all(&m);
        }
    }

    #[test]
    fn a_cursor_with_an_end_shows_what_lies_before_it(
        history in history(80),
        stop in key(),
        many in 0usize..40,
    ) {
        let (m, mut model) = (Arc::new(Memtable::new()), Model::default());
        for (seq, op) in &history {
            model.apply(&m, *seq, op);
        }
        let mut landmarks = model.landmarks();
        let beyond = landmarks.split_off(&stop);
        for at in [m.max_seq() / 2, m.max_seq()] {
            let view = View { model: &model, landmarks: landmarks.clone(), at };
            let mut c = m.cursor(at);
            c.end_at(&stop);
            c.will_visit(many);
            view.check_cursor(&mut c);
            for key in landmarks.iter().chain(&beyond) {
                c.seek(key).unwrap();
                view.check_gap(key, here(&c).as_ref().map(|i| &i.key[..]));
                prop_assert!(here(&c).is_none_or(|i| !i.ends_before(key) && end(&i) <= stop));
                c.seek_before(key).unwrap();
                prop_assert!(here(&c).is_none_or(|i| i.key < key[..] && end(&i) <= stop));
                view.check_gap(&here(&c).as_ref().map_or(vec![], end), Some(key));
            }
        }
    }

    #[test]
    fn a_cursor_keeps_its_view_while_the_memtable_is_written(
        before in history(50),
        steps in proptest::collection::vec((0u8..9, key(), proptest::option::of(op())), 1..60),
    ) {
        let (m, mut model) = (Arc::new(Memtable::new()), Model::default());
        for (seq, op) in &before {
            model.apply(&m, *seq, op);
        }
        let at = m.max_seq();
        let mut seq = at;
        let mut c = m.cursor(at);
        for (step, key, write) in steps {
            if let Some(op) = write {
                seq += 1;
                model.apply(&m, seq, &op);
            }
            let view = View { model: &model, landmarks: model.landmarks(), at };
            let before = here(&c);
            match (step, &before) {
                (0, _) => {
                    c.first().unwrap();
                    view.check_gap(&[], here(&c).as_ref().map(|i| &i.key[..]));
                }
                (1, _) => {
                    c.last().unwrap();
                    view.check_gap(&here(&c).as_ref().map_or(vec![], end), None);
                }
                (2, _) => {
                    c.seek(&key).unwrap();
                    view.check_gap(&key, here(&c).as_ref().map(|i| &i.key[..]));
                    prop_assert!(here(&c).is_none_or(|i| !i.ends_before(&key)));
                }
                (3, _) => {
                    c.seek_before(&key).unwrap();
                    prop_assert!(here(&c).is_none_or(|i| i.key < key[..]));
                    view.check_gap(&here(&c).as_ref().map_or(vec![], end), Some(&key));
                }
                (4..=6, Some(before)) => {
                    c.next().unwrap();
                    view.check_gap(&end(before), here(&c).as_ref().map(|i| &i.key[..]));
                    prop_assert!(here(&c).is_none_or(|i| i.key[..] >= end(before)[..]));
                }
                (_, Some(before)) => {
                    c.prev().unwrap();
                    view.check_gap(&here(&c).as_ref().map_or(vec![], end), Some(&before.key));
                    prop_assert!(here(&c).is_none_or(|i| end(&i)[..] <= before.key[..]));
                }
                (_, None) => {
                    c.next().unwrap();
                    c.prev().unwrap();
                    prop_assert_eq!(here(&c), None, "without an item there is no next one");
                }
            }
            if let Some(i) = here(&c) {
                view.check_item(&i);
            }
        }
    }

    #[test]
    fn forgetting_old_versions_changes_nothing_above_the_floor(history in history(120), lag in 0u64..6) {
        let (m, mut model) = (Arc::new(Memtable::new()), Model::default());
        let mut floor = 0;
        for (seq, op) in &history {
            floor = floor.max(seq.saturating_sub(lag));
            m.set_floor(floor);
            // Write all values to one key, so that its chain of versions becomes long.
            let op = match op {
                Op::Put(_, v) => &Op::Put(b"hot".to_vec(), v.clone()),
                op => op,
            };
            model.apply(&m, *seq, op);
            for at in [floor, floor + 1, *seq] {
                prop_assert_eq!(m.get(b"hot", at), model.get(b"hot", at));
            }
        }
        for at in floor..=m.max_seq() {
            View { model: &model, landmarks: model.landmarks(), at }.check_all(&m);
        }
    }
}

#[test]
fn an_empty_memtable_has_nothing() {
    let m = Arc::new(Memtable::new());
    assert!(m.is_empty());
    assert_eq!((m.len(), m.min_seq(), m.max_seq()), (0, 0, 0));
    assert_eq!(m.get(b"a", Seq::MAX), Lookup::Absent);
    let mut c = m.cursor(Seq::MAX);
    for go in [Source::first, Source::last, Source::next, Source::prev] {
        go(&mut c).unwrap();
        assert_eq!(here(&c), None);
    }
    c.seek(b"").unwrap();
    assert_eq!(here(&c), None);
    c.seek_before(b"a").unwrap();
    assert_eq!(here(&c), None);
    m.delete_range(b"b", b"b", 1);
    m.delete_range(b"c", b"b", 1);
    assert!(m.is_empty(), "a range with its end at or before its start has no effect");
}

#[test]
fn the_old_versions_of_a_hot_key_are_bounded_by_the_readers() {
    let m = Memtable::new();
    let value = Bytes::from(vec![7; 4096]);
    for seq in 1..=100_000u64 {
        m.set_floor(seq.saturating_sub(20));
        m.put(b"hot", seq, Value::Inline(value.clone()));
    }
    assert!(m.len() < 100, "{} versions for 20 that someone may see", m.len());
    assert!(m.bytes() < 1 << 20, "{} bytes", m.bytes());
}

#[test]
fn bytes_counts_keys_values_versions_and_tombstones() {
    let m = Memtable::new();
    let mut least = 0;
    for i in 0..10_000u64 {
        m.put(&i.to_be_bytes(), i + 1, Value::Inline(Bytes::from(vec![0; 100])));
        m.put(&(i * 7919 % 10_007).to_be_bytes(), i + 1, Value::Inline(Bytes::from(vec![0; 1000])));
        m.delete_range(&(i + 1_000_000).to_be_bytes(), &(i + 1_000_001).to_be_bytes(), i + 1);
        least += 8 + 100 + 8 + 1000 + 16;
    }
    assert!(m.bytes() > least && m.bytes() < 2 * least, "{} for at least {least}", m.bytes());
    assert_eq!((m.min_seq(), m.max_seq()), (1, 10_000));
}

/// A store may have thousands of memtables, and each is charged for all memory that it has
/// allocated: the first key must not reserve space for a hundred.
#[test]
fn a_memtable_with_little_in_it_takes_little() {
    let m = Memtable::new();
    let empty = m.bytes();
    m.put(b"a key of some length", 1, Value::Inline(Bytes::from_static(b"and its value")));
    let first = m.bytes() - empty;
    assert!(first < 2 << 10, "{first} bytes for one key");
}

/// One thread writes. Each reader pins a published sequence number, and must see exactly its state.
#[test]
fn readers_see_whole_commits_while_one_writes() {
    const KEYS: u64 = 500;
    const COMMITS: u64 = 400;
    let m = Arc::new(Memtable::new());
    let published = Arc::new(AtomicU64::new(0));
    // Commit `s` writes `s` to all keys with (key + s) % 4 == 0, and deletes a range of ten.
    let gone = |s: u64| (s * 37 % KEYS, s * 37 % KEYS + 10);
    let key = |k: u64| format!("key {k:08}").into_bytes();
    let states = |at: u64| {
        let mut state = BTreeMap::new();
        for s in 1..=at {
            state.extend((0..KEYS).filter(|k| (k + s) % 4 == 0).map(|k| (key(k), s)));
            let (a, b) = gone(s);
            (a..b).for_each(|k| _ = state.remove(&key(k)));
        }
        state
    };
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (m, published) = (m.clone(), published.clone());
            scope.spawn(move || {
                loop {
                    let at = published.load(Ordering::Acquire);
                    let want = states(at);
                    let mut got = BTreeMap::new();
                    let mut c = m.cursor(at);
                    if reader == 0 {
                        c.first().unwrap()
                    } else {
                        c.last().unwrap()
                    }
                    while let Some(i) = here(&c) {
                        if let Body::Put(Value::Inline(v)) = &i.body {
                            got.insert(
                                i.key.to_vec(),
                                u64::from_be_bytes(v[..].try_into().unwrap()),
                            );
                        }
                        if reader == 0 { c.next().unwrap() } else { c.prev().unwrap() }
                    }
                    assert_eq!(got, want, "at {at}");
                    for (k, s) in want.iter().take(50) {
                        assert!(matches!(m.get(k, at), Lookup::Found(seq, _) if seq == *s));
                    }
                    if at == COMMITS {
                        break;
                    }
                }
            });
        }
        for s in 1..=COMMITS {
            let mut w = m.writer();
            for k in (0..KEYS).filter(|k| (k + s) % 4 == 0) {
                w.put_slice(&key(k), s, &s.to_be_bytes());
            }
            let (a, b) = gone(s);
            w.delete_range(&key(a), &key(b), s);
            drop(w);
            published.store(s, Ordering::Release);
        }
    });
}

#[test]
fn a_memtable_keeps_the_zones_of_its_extents_as_long_as_it_lives() {
    use zones::{FormatOptions, MemoryDevice, Priority, Purpose, Zones};
    let zones = Zones::format(Arc::new(MemoryDevice::default()), FormatOptions::default()).unwrap();
    zones.start();
    let m = Memtable::new();
    for i in 0..3 {
        let mut writer = zones.extent_writer(Purpose::Pages, Priority::User);
        let extent = crate::place_value(&mut writer, &[i; 4096]).unwrap();
        m.put(&[i], i as Seq, Value::Extent(extent));
        m.pin(writer.finish().unwrap());
    }
    assert_eq!(zones.space().zones_pinned, 1);
    drop(m);
    assert_eq!(zones.space().zones_pinned, 0);
}

#[test]
fn a_value_is_read_before_and_after_it_has_a_place() {
    let m = Arc::new(Memtable::new());
    let buffer = Bytes::from(vec![7; 10_000]);
    let slots: Vec<DeferredSlot> = (0..2u64)
        .map(|i| m.writer().put_deferred(&i.to_be_bytes(), i + 1, buffer.slice(..5000)))
        .collect();
    let full = m.bytes();
    let inline = Lookup::Found(1, Value::Inline(buffer.slice(..5000)));
    assert_eq!(m.get(&0u64.to_be_bytes(), 9), inline);
    let extent = ExtentRef::plain(4096, 5000, 1);
    let shrunk = m.place([(slots[0], extent)]);
    assert_eq!((shrunk, m.bytes()), (5000 + DEFERRED_OVERHEAD, full - shrunk));
    assert_eq!(m.get(&0u64.to_be_bytes(), 9), Lookup::Found(1, Value::Extent(extent)));
    assert_eq!(
        m.get(&1u64.to_be_bytes(), 9),
        Lookup::Found(2, Value::Inline(buffer.slice(..5000)))
    );
    assert_eq!(m.place([(slots[0], extent)]), 0, "it has a place already");
    // The value was overwritten before it got its address. A reader of the older version still gets
    // it.
    m.put(&1u64.to_be_bytes(), 5, Value::Inline("new".into()));
    m.place([(slots[1], extent)]);
    assert_eq!(m.get(&1u64.to_be_bytes(), 3), Lookup::Found(2, Value::Extent(extent)));
    assert_eq!(m.get(&1u64.to_be_bytes(), 9), Lookup::Found(5, Value::Inline("new".into())));
}

#[test]
fn a_deferred_value_is_discarded_when_nothing_reads_it_any_more() {
    let m = Memtable::new();
    let value = Bytes::from(vec![7; 5000]);
    let put = |key: &str, seq| (seq, m.writer().put_deferred(key.as_bytes(), seq, value.clone()));
    let gone = |key: &str, (seq, slot), at| m.discard([(key.as_bytes(), seq, slot, at)])[0];
    let found = |key: &str, at| m.get(key.as_bytes(), at);
    assert!(!m.hides());
    let (kept, deleted, covered) = (put("kept", 1), put("deleted", 2), put("covered", 3));
    let (overwritten, updated) = (put("overwritten", 4), put("updated", 5));
    assert!(!m.hides());
    m.delete(b"deleted", 6);
    assert!(m.hides());
    m.delete_range(b"c", b"d", 7);
    let again = put("overwritten", 8);
    m.update(b"updated", 9, &Update::append(b"x").unwrap());
    let behind = put("covered", 10);

    assert!(!gone("deleted", deleted, 5), "a reader at 5 sees it");
    assert!(!gone("covered", covered, 6) && !gone("overwritten", overwritten, 7));
    assert_eq!(found("deleted", 5), Lookup::Found(2, Value::Inline(value.clone())));
    let before = m.bytes();
    assert!(gone("deleted", deleted, 6) && gone("covered", covered, 7));
    assert!(gone("overwritten", overwritten, 10));
    assert_eq!(before - m.bytes(), 3 * (5000 + DEFERRED_OVERHEAD));
    for (key, value) in [("kept", kept), ("overwritten", again), ("covered", behind)] {
        assert!(!gone(key, value, 10), "{key} is the newest");
    }
    m.put(b"updated", 11, Value::Inline("whole".into()));
    assert!(!gone("updated", updated, 11), "a replay applies the update to it");
    assert!(!gone("deleted", deleted, 6), "it is discarded already");
    assert_eq!(found("deleted", 6), Lookup::Deleted(6));
    // Without a cursor, a reader gets a newer state.
    assert_eq!(found("deleted", 5), Lookup::Deleted(6));
    assert_eq!(found("covered", 3), found("covered", 10));
    assert_eq!(found("overwritten", 5), Lookup::Found(8, Value::Inline(value.clone())));
    assert_eq!(found("covered", 9), Lookup::Deleted(7));
    assert_eq!(found("covered", 10), Lookup::Found(10, Value::Inline(value.clone())));
    assert_eq!(found("overwritten", 10), Lookup::Found(8, Value::Inline(value.clone())));

    // A forgotten value counts as being on the device, unless it is discarded.
    let m = Memtable::new();
    let old = m.writer().put_deferred(b"k", 1, value.clone());
    m.put(b"k", 1, Value::Inline("new".into()));
    assert_eq!((m.forgotten_bytes(), m.placed_bytes()), (5000, 0));
    assert_eq!(m.discard([(&b"k"[..], 1, old, 1)]), [true]);
    assert_eq!(m.forgotten_bytes(), 0);
}

#[test]
fn what_lies_on_the_device_is_counted_until_it_is_forgotten() {
    let extent = |len| ExtentRef::plain(4096, len, 0);
    let m = Memtable::new();
    let slots: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|key| m.writer().put_deferred(key.as_bytes(), 1, Bytes::from(vec![7; 5000])))
        .collect();
    assert_eq!(m.placed_bytes(), 0, "they are in memory");
    // No reader requests "a" any more when its value gets an address.
    m.put(b"a", 1, Value::Inline("new".into()));
    m.place(slots.into_iter().map(|slot| (slot, extent(5000))));
    assert_eq!(m.placed_bytes(), 10_000);
    m.put(b"d", 2, Value::Extent(extent(3000)));
    assert_eq!(m.placed_bytes(), 13_000);
    m.put(b"b", 3, Value::Inline("new".into()));
    assert_eq!(m.placed_bytes(), 13_000, "a reader may be at 1");
    m.put(b"d", 2, Value::Inline("new".into()));
    assert_eq!(m.placed_bytes(), 10_000, "no reader is within a commit");
}
