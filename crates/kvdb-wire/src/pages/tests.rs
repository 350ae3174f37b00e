//! Tests of values and pages that are kept.

use env::Random;

use super::*;

const DICT: DictionaryId = DictionaryId(1);

fn request<'a>(start: &'a [u8], end: &'a [u8], tuples: u32) -> PageRequest<'a> {
    PageRequest { start, end, backward: false, keys_only: false, tuples, bytes: 1000 }
}

fn page(keys: &[&'static str], ended: bool) -> TuplePage {
    let tuples = keys.iter().map(|key| (Bytes::from(*key), Bytes::new())).collect();
    TuplePage { tuples, ended }
}

fn bytes(key: &'static str) -> Bytes {
    Bytes::from(key)
}

#[test]
fn a_page_answers_for_each_part_of_its_range() {
    let mut pages = Pages::new(1 << 20);
    pages.keep_page(DICT, &request(b"b", b"x", 3), &page(&["c", "e", "g"], false));
    assert_eq!(pages.page(DICT, &request(b"d", b"x", 10)), Some(page(&["e", "g"], false)));
    assert_eq!(pages.page(DICT, &request(b"b", b"x", 1)), Some(page(&["c"], false)));
    assert_eq!(pages.page(DICT, &request(b"b", b"f", 9)), Some(page(&["c", "e"], true)));
    assert_eq!(pages.page(DICT, &request(b"d", b"", 9)), Some(page(&["e", "g"], false)));
    assert_eq!(pages.page(DICT, &request(b"h", b"x", 10)), None, "after its last tuple");
    assert_eq!(pages.page(DICT, &request(b"a", b"x", 10)), None, "before its range");
    assert_eq!(pages.page(DictionaryId(2), &request(b"d", b"x", 10)), None);
    pages.keep_page(DICT, &request(b"g\0", b"x", 3), &page(&["h"], true));
    assert_eq!(pages.page(DICT, &request(b"h", b"x", 10)), Some(page(&["h"], true)));
    assert_eq!(pages.page(DICT, &request(b"i", b"x", 10)), Some(page(&[], true)));
    assert_eq!(pages.page(DICT, &request(b"b", b"x", 9)), Some(page(&["c", "e", "g", "h"], true)));
    let few = PageRequest { bytes: 2, ..request(b"b", b"x", 9) };
    assert_eq!(pages.page(DICT, &few), Some(page(&["c", "e"], false)));
    assert_eq!(pages.ranges.len(), 1, "they touch");
}

#[test]
fn keys_without_values_are_no_values() {
    let mut pages = Pages::new(1 << 20);
    let keys = PageRequest { keys_only: true, ..request(b"b", b"x", 9) };
    pages.keep_page(DICT, &keys, &page(&["c", "e"], true));
    assert_eq!(pages.page(DICT, &keys), Some(page(&["c", "e"], true)));
    assert_eq!(pages.page(DICT, &request(b"b", b"x", 9)), None);
    assert_eq!(pages.value(DICT, &bytes("c")), None);
    pages.write_value(DICT, &bytes("d"), Some(&bytes("new")));
    assert_eq!((pages.page(DICT, &keys), pages.page_bytes), (None, 0));
}

#[test]
fn of_a_range_that_was_read_each_key_is_known() {
    let mut pages = Pages::new(1 << 20);
    let mut read = page(&["c", "e"], true);
    read.tuples[1].1 = bytes("five");
    pages.keep_page(DICT, &request(b"b", b"x", 9), &read);
    assert_eq!(pages.value(DICT, &bytes("e")), Some(Some(bytes("five"))));
    assert_eq!(pages.value(DICT, &bytes("d")), Some(None), "it is not there");
    assert_eq!(pages.value(DICT, &bytes("a")), None);
    assert_eq!(pages.value(DICT, &bytes("x")), None);
    assert_eq!(pages.value(DictionaryId(2), &bytes("e")), None);
    let keys = PageRequest { keys_only: true, ..request(b"b", b"x", 9) };
    assert_eq!(pages.page(DICT, &keys), Some(page(&["c", "e"], true)));
}

#[test]
fn a_value_that_replaces_another_one_is_counted_in_its_place() {
    let mut pages = Pages::new(1 << 20);
    let key = Bytes::from_static(b"k");
    for len in [0, 60_000, 10] {
        pages.keep_value(DICT, &key, Some(&Bytes::from(vec![0; len])));
        assert_eq!(pages.queues[0].bytes + pages.queues[1].bytes, ENTRY + 1 + len);
    }
    pages.keep_value(DICT, &key, None);
    assert_eq!((pages.queues[0].bytes, pages.queues[1].bytes), (ENTRY + 1, 0));
    assert_eq!(pages.values.len(), 1);
}

#[test]
fn what_a_client_has_changed_is_not_read_from_what_was_kept() {
    for how in 0..5 {
        let mut pages = Pages::new(1 << 20);
        let mut kept = page(&["c", "e", "g"], true);
        kept.tuples[1].1 = bytes("old");
        pages.keep_page(DICT, &request(b"b", b"x", 9), &kept);
        let long = Bytes::from(vec![0; LONGEST + 1]);
        match how {
            0 => pages.write_value(DICT, &bytes("e"), Some(&bytes("new"))),
            1 => pages.write_value(DICT, &bytes("e"), None),
            2 => pages.delete_range(DICT, &bytes("d"), &bytes("f")),
            3 => pages.forget(DICT, &bytes("e")),
            _ => pages.write_value(DICT, &bytes("e"), Some(&long)),
        }
        let value = pages.value(DICT, &bytes("e"));
        let found = pages.page(DICT, &request(b"b", b"x", 9));
        match how {
            0 => {
                kept.tuples[1].1 = bytes("new");
                assert_eq!((value, found), (Some(Some(bytes("new"))), Some(kept)));
            }
            1 | 2 => assert_eq!((value, found), (Some(None), Some(page(&["c", "g"], true)))),
            _ => {
                assert_eq!((value, found), (None, Some(page(&["c"], false))), "{how}");
                let rest = pages.page(DICT, &request(b"e\0", b"x", 9));
                assert_eq!(rest, Some(page(&["g"], true)));
                assert_eq!(pages.page(DICT, &request(b"e", b"x", 9)), None);
            }
        }
    }
    let mut pages = Pages::new(1 << 20);
    pages.keep_page(DICT, &request(b"b", b"x", 9), &page(&["c"], true));
    pages.write_value(DICT, &bytes("d"), Some(&bytes("")));
    assert_eq!(pages.page(DICT, &request(b"b", b"x", 9)), Some(page(&["c", "d"], true)));
    for _ in 0..1000 {
        pages.write_value(DICT, &bytes("k"), Some(&bytes("v")));
        pages.forget(DICT, &bytes("k"));
    }
    assert!(pages.queues[0].order.len() < 100, "{}", pages.queues[0].order.len());
    pages.clear();
    assert_eq!(pages.value(DICT, &bytes("c")), None);
    assert_eq!(pages.page(DICT, &request(b"b", b"x", 9)), None);
}

#[test]
fn a_key_that_had_to_go_is_not_taken_for_one_that_is_not_there() {
    let mut pages = Pages::new(20_000);
    let all: Vec<Bytes> = (0..200u32).map(|i| own(&i.to_be_bytes())).collect();
    // The first one is the oldest, though the page has it again.
    pages.keep_value(DICT, &all[9], Some(&bytes("v")));
    for part in all.chunks(10) {
        let tuples = part.iter().map(|key| (key.clone(), bytes("v"))).collect();
        let ended = part[9] == all[199];
        let request = PageRequest { bytes: 9000, ..request(&part[0], b"", 10) };
        pages.keep_page(DICT, &request, &TuplePage { tuples, ended });
        for key in &all {
            assert_ne!(pages.value(DICT, key), Some(None));
        }
    }
    assert_eq!(pages.value(DICT, &all[199]), Some(Some(bytes("v"))));
    assert_eq!(pages.value(DICT, &all[0]), None, "it is too old");
    assert_eq!(pages.value(DICT, &own(&[0, 0, 0, 199, 1])), Some(None));
}

#[test]
fn what_is_kept_is_bounded() {
    let mut pages = Pages::new(100_000);
    for i in 0..10_000u32 {
        let key = Bytes::from(i.to_be_bytes().to_vec());
        pages.keep_value(DICT, &key, Some(&Bytes::from(vec![0; 1000])));
        let tuples = vec![(key.clone(), Bytes::from(vec![0; 1000 + i as usize % 100]))];
        let page = TuplePage { tuples, ended: false };
        pages.keep_page(DICT, &request(&key, b"", 1), &page);
        let keys = PageRequest { keys_only: true, ..request(&key, b"", 1) };
        pages.keep_page(DICT, &keys, &page);
        assert!(pages.queues[0].bytes <= 50_000 && pages.queues[1].bytes <= 25_000);
        assert!(pages.page_bytes <= 12_500 && pages.range_bytes <= 12_500);
        let places = pages.queues.iter().map(|queue| queue.order.len()).sum::<usize>();
        assert!(places <= 4 * pages.values.len() + 2 * PAGES, "{places}");
    }
    let last = Bytes::from(9_999u32.to_be_bytes().to_vec());
    assert!(pages.value(DICT, &last).is_some(), "the newest one is kept");
}

fn key(number: u64) -> Bytes {
    // Some lie right after another one.
    match number % 5 {
        0 => format!("k{:03}\0", number / 5).into(),
        _ => format!("k{number:03}").into(),
    }
}

fn value(random: &mut Random) -> Bytes {
    let len = match random.below(40) {
        0 => LONGEST + 1,
        1..20 => SMALL + random.below(100) as usize,
        _ => random.below(100) as usize,
    };
    Bytes::from(vec![random.below(256) as u8; len])
}

type Model = BTreeMap<Bytes, Bytes>;

/// Changes both alike, or reads as a view does, and compares.
fn step(random: &mut Random, pages: &mut Pages, model: &mut Model) {
    let at = key(random.below(300));
    let (one, other) = (key(random.below(300)), key(random.below(300)));
    let (start, end) = (one.clone().min(other.clone()), one.max(other));
    match random.below(12) {
        0 | 1 => {
            let value = value(random);
            pages.write_value(DICT, &at, Some(&value));
            model.insert(at, value);
        }
        2 => {
            pages.write_value(DICT, &at, None);
            model.remove(&at);
        }
        3 => {
            pages.delete_range(DICT, &start, &end);
            model.retain(|key, _| *key < start || *key >= end);
        }
        4 => {
            pages.forget(DICT, &at);
            model.insert(at, value(random));
        }
        5 | 6 => pages.keep_value(DICT, &at, model.get(&at)),
        7 if random.one_in(100) => pages.clear(),
        _ => {
            let keys_only = random.one_in(5);
            let tuples = 1 + random.below(20) as u32;
            let end = if random.one_in(8) { Bytes::new() } else { end };
            let bytes = 3000;
            let request =
                PageRequest { start: &start, end: &end, backward: false, keys_only, tuples, bytes };
            let inside = model.iter().filter(|(key, _)| **key >= start && is_before(key, &end));
            let tuple = |(key, value): (&Bytes, &Bytes)| match keys_only {
                true => (key.clone(), Bytes::new()),
                false => (key.clone(), value.clone()),
            };
            let all: Vec<(Bytes, Bytes)> = inside.map(tuple).collect();
            let first = |count: usize| TuplePage {
                tuples: all[..count.min(all.len())].to_vec(),
                ended: count >= all.len(),
            };
            match pages.page(DICT, &request) {
                Some(page) => {
                    assert_eq!(page.tuples, first(page.tuples.len()).tuples);
                    assert!(!page.ended || page.tuples.len() == all.len());
                }
                None if is_before(&start, &end) => {
                    pages.keep_page(DICT, &request, &first(tuples as usize));
                }
                None => {}
            }
            if let Some(plan) = pages.plan(DICT, &at, Asked::Keys) {
                assert!(plan.start <= at && is_before(&at, &plan.end));
                pages.has_read_ahead(DICT, 0);
            }
        }
    }
}

#[test]
fn what_is_kept_is_never_another_value_than_there_is() {
    let mut known = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut pages = Pages::new([3000, 4000, 20_000, 200_000][seed as usize % 4]);
        let mut model = Model::new();
        for number in 0..1000 {
            step(&mut random, &mut pages, &mut model);
            for key in (0..300).map(key).filter(|_| number % 10 == 0) {
                if let Some(value) = pages.value(DICT, &key) {
                    assert_eq!(value, model.get(&key).cloned(), "seed {seed}, {number}: {key:?}");
                    known += 1;
                }
            }
        }
    }
    assert!(known > 10_000, "{known}");
}
