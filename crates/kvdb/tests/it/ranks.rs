//! Tests of ranks. The number of keys before a key, and the nth key, always agree with a walk.

use std::collections::BTreeSet;

use kvdb::{
    Batch, DictionaryId, Durability, Isolation, Kvdb, Reads, Transaction, TransactionOptions, View,
};

/// Numbers that follow from a seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}

fn store() -> (Kvdb, DictionaryId) {
    let db = Kvdb::in_memory();
    let d = db.open_dictionary("d").expect("a dictionary").id();
    (db, d)
}

fn key(number: u64) -> String {
    format!("{number:06}")
}

fn fill(db: &Kvdb, d: DictionaryId, keys: impl Iterator<Item = u64>) {
    let mut batch = Batch::new();
    keys.for_each(|number| batch.put(d, key(number), "x"));
    db.commit(batch, Durability::Buffered).expect("committed");
}

fn keys(view: &View, d: DictionaryId) -> Vec<String> {
    let mut cursor = view.cursor(d, b"", b"").expect("a cursor").keys_only();
    let mut all = Vec::new();
    while let Some(tuple) = cursor.next().expect("read") {
        all.push(String::from_utf8(tuple.key.to_vec()).expect("text"));
    }
    all
}

/// Ranks, counts and places in a view equal those that a walk counts.
fn check(db: &Kvdb, view: &View, d: DictionaryId, numbers: &mut Numbers, most: u64) {
    let all = keys(view, d);
    let before = |key: &str| all.partition_point(|other| &other[..] < key) as u64;
    for _ in 0..4 {
        let (a, b) = (key(numbers.next(most)), key(numbers.next(most)));
        assert_eq!(db.rank::<&str>(view, d, .., &a).expect("a rank"), before(&a), "{a}");
        let counted = db.count(view, d, &a[..]..&b[..]).expect("counted");
        assert_eq!(counted, before(&b).saturating_sub(before(&a)), "{a}..{b}");
        let from = db.rank(view, d, &a[..].., &b).expect("a rank");
        assert_eq!(from, before(&b).saturating_sub(before(&a)), "{b} from {a} on");
        let n = numbers.next(all.len() as u64 + 3);
        let nth = db.select::<&str>(view, d, .., n).expect("found");
        let expected = all.get(n as usize).map(|key| key.as_bytes());
        assert_eq!(nth.as_deref(), expected, "the key at {n}");
    }
    assert_eq!(db.count::<&str>(view, d, ..).expect("counted"), all.len() as u64);
}

/// A random change, committed in a random way.
fn change(db: &Kvdb, d: DictionaryId, numbers: &mut Numbers, most: u64) {
    let number = numbers.next(most);
    match numbers.next(12) {
        0..=2 => db.put(d, key(number).as_bytes(), b"y", Durability::Buffered).expect("put"),
        3 => {
            let mut batch = Batch::new();
            batch.delete_range(d, key(number), key(number + numbers.next(most / 8)));
            db.commit(batch, Durability::Buffered).expect("deleted");
        }
        4 => {
            let t = db.begin(Isolation::Snapshot).expect("begun");
            some_changes(&t, d, numbers, most);
            t.commit(Durability::Buffered).expect("committed");
        }
        5 => db.flush().expect("flushed"),
        6 => {
            let options = TransactionOptions { undoable: true, ..Default::default() };
            let t = db.begin_with(options).expect("begun");
            some_changes(&t, d, numbers, most);
            t.commit(Durability::Buffered).expect("committed");
        }
        7 => fill(db, d, number..number + 300),
        _ => {
            let (view, mut reads, mut batch) = (db.view(), Reads::default(), Batch::new());
            for number in BTreeSet::from([number, numbers.next(most)]) {
                let key = key(number);
                reads.key(d, key.as_bytes());
                match view.get(d, key.as_bytes()).expect("read") {
                    Some(_) => batch.delete_present(d, key),
                    None => batch.put_new(d, key, "z"),
                }
            }
            assert!(db.commit_if_unchanged(batch, view, reads).expect("committed"));
        }
    }
}

fn some_changes(t: &Transaction, d: DictionaryId, numbers: &mut Numbers, most: u64) {
    for _ in 0..numbers.next(20) + 1 {
        let key = key(numbers.next(most));
        match numbers.next(3) {
            0 => t.delete(d, key).expect("deleted"),
            _ => t.put(d, key, "t").expect("put"),
        }
    }
}

#[test]
fn ranks_are_what_a_walk_counts_whatever_is_committed() {
    const MOST: u64 = 20_000;
    for seed in 0..4 {
        let (mut numbers, (db, d)) = (Numbers(seed), store());
        fill(&db, d, (0..MOST).filter(|number| number % 3 != seed % 3));
        for _ in 0..60 {
            for _ in 0..numbers.next(40) {
                change(&db, d, &mut numbers, MOST);
            }
            check(&db, &db.view(), d, &mut numbers, MOST);
        }
    }
}

#[test]
fn older_views_and_snapshots_have_the_ranks_of_their_time() {
    const MOST: u64 = 5_000;
    let (mut numbers, (db, d)) = (Numbers(7), store());
    fill(&db, d, 0..MOST);
    check(&db, &db.view(), d, &mut numbers, MOST);
    let mut views = Vec::new();
    for round in 0..30 {
        views.push(db.view());
        (0..numbers.next(30)).for_each(|_| change(&db, d, &mut numbers, MOST));
        if round % 10 == 5 {
            db.snapshot(&format!("s{round}")).expect("a snapshot");
            views.push(db.open_snapshot(&format!("s{round}")).expect("opened"));
        }
        let any = numbers.next(views.len() as u64) as usize;
        check(&db, &views[any], d, &mut numbers, MOST);
        check(&db, &db.view(), d, &mut numbers, MOST);
    }
    db.rollback("s15").expect("rolled back");
    check(&db, &db.view(), d, &mut numbers, MOST);
    views.iter().for_each(|view| check(&db, view, d, &mut numbers, MOST));
}

#[test]
fn a_clone_that_was_rolled_back_has_the_ranks_of_its_snapshot() {
    let (db, d) = store();
    fill(&db, d, 0..1000);
    db.snapshot("base").expect("a snapshot");
    db.clone_snapshot("base", "trial").expect("a clone");
    let of_clone = db.dictionary_in("trial", "d").expect("it is in the clone");
    db.snapshot_of("trial", "begun", Durability::Buffered).expect("a snapshot of the clone");
    fill(&db, of_clone, 1000..3000);
    assert_eq!(db.count::<&[u8]>(&db.view(), of_clone, ..).expect("counted"), 3000);
    db.rollback("begun").expect("rolled back");
    assert_eq!(db.count::<&[u8]>(&db.view(), of_clone, ..).expect("counted"), 1000);
}

#[test]
fn a_transaction_has_ranks_of_its_own_changes_too() {
    const MOST: u64 = 5_000;
    let (mut numbers, (db, d)) = (Numbers(9), store());
    fill(&db, d, 0..MOST);
    let options = TransactionOptions { isolation: Isolation::Snapshot, ..Default::default() };
    let t = db.begin_with(options).expect("begun");
    for round in 0..30 {
        some_changes(&t, d, &mut numbers, MOST);
        if round == 20 {
            t.delete_range(d, key(100), key(300)).expect("deleted");
        }
        (0..numbers.next(4)).for_each(|_| change(&db, d, &mut numbers, MOST));
        check(&db, &t.view().expect("a view"), d, &mut numbers, MOST);
        check(&db, &db.view(), d, &mut numbers, MOST);
    }
}

#[test]
fn ranks_hold_while_others_write() {
    const MOST: u64 = 3_000;
    let (db, d) = store();
    fill(&db, d, 0..MOST);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|seed| {
                let db = &db;
                scope.spawn(move || {
                    let mut numbers = Numbers(seed);
                    for _ in 0..3_000 {
                        let key = key(numbers.next(MOST));
                        match numbers.next(2) {
                            0 => db.put(d, key.as_bytes(), b"w", Durability::Buffered),
                            _ => {
                                let mut batch = Batch::new();
                                batch.delete(d, key);
                                db.commit(batch, Durability::Buffered)
                            }
                        }
                        .expect("written");
                    }
                })
            })
            .collect();
        let mut numbers = Numbers(5);
        while writers.iter().any(|writer| !writer.is_finished()) {
            check(&db, &db.view(), d, &mut numbers, MOST);
        }
    });
    check(&db, &db.view(), d, &mut Numbers(1), MOST);
}
