//! Tests of dictionaries that define how a commit joins two concurrent changes. This needs no
//! routine of the program and holds in every program that opens the store.

use std::collections::BTreeSet;
use std::sync::Arc;

use env::{Machine, Random};
use kvdb::{
    CreateOptions, DictionaryId, DictionaryOptions, Durability, Error, Isolation, Join, Kvdb,
    OpenOptions,
};
use zones::MemoryDevice;

fn dictionary(db: &Kvdb, name: &str, join: Join) -> DictionaryId {
    db.create_dictionary(name, DictionaryOptions { join, ..Default::default() }).unwrap()
}

fn put(db: &Kvdb, d: DictionaryId, value: &str) {
    db.put(d, b"key", value.as_bytes(), Durability::Buffered).unwrap();
}

fn get(db: &Kvdb, d: DictionaryId) -> Option<String> {
    db.get(d, b"key").unwrap().map(|v| String::from_utf8(v.to_vec()).unwrap())
}

/// Two transactions begin at `base`, put these values under one key and commit in this order.
fn two(db: &Kvdb, d: DictionaryId, base: &str, values: [&str; 2]) -> Result<(), Error> {
    put(db, d, base);
    let [first, second] = values.map(|value| {
        let t = db.begin(Isolation::Snapshot).unwrap();
        t.put(d, "key", value).unwrap();
        t
    });
    first.commit(Durability::Buffered)?;
    second.commit(Durability::Buffered)
}

#[test]
fn each_rule_joins_and_without_one_the_first_to_commit_wins() {
    let db = Kvdb::in_memory();
    for (join, values, joined) in [
        (Join::Add, ["15", "7"], "12"),
        (Join::Max, ["15", "7"], "15"),
        (Join::Min, ["15", "7"], "7"),
        (Join::Union, ["10\n15", "10\n7"], "10\n15\n7"),
    ] {
        let d = dictionary(&db, join.name(), join);
        two(&db, d, "10", values).unwrap();
        assert_eq!(get(&db, d).as_deref(), Some(joined), "{join:?}");
    }
    let d = dictionary(&db, "plain", Join::None);
    assert!(matches!(two(&db, d, "10", ["15", "7"]), Err(Error::Conflict { .. })));
    assert_eq!(get(&db, d).as_deref(), Some("15"));
    // Values that a rule cannot join are a conflict, too.
    let sums = db.dictionaries().into_iter().find(|info| info.name == "add").unwrap().id;
    assert!(matches!(two(&db, sums, "10", ["fifteen", "7"]), Err(Error::Conflict { .. })));
}

#[test]
fn a_rule_is_changed_at_once_and_survives_opening_a_clone_and_a_stream() {
    let device = Arc::new(MemoryDevice::new());
    let open = || Kvdb::open(device.clone(), Arc::new(Machine::default()), OpenOptions::default());
    let create = CreateOptions::default();
    let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), create).unwrap();
    let d = dictionary(&db, "d", Join::Max);
    let as_made = db.dictionaries()[0].options.clone();
    let options = DictionaryOptions { join: Join::Add, ..as_made };
    db.set_dictionary_options(d, options.clone()).unwrap();
    two(&db, d, "1", ["2", "3"]).unwrap();
    assert_eq!(get(&db, d).as_deref(), Some("4"));
    db.snapshot("then").unwrap();
    db.close().unwrap();
    drop(db);

    let (db, _) = open().unwrap();
    assert_eq!(db.dictionaries()[0].options, options);
    two(&db, d, "1", ["2", "3"]).unwrap();
    assert_eq!(get(&db, d).as_deref(), Some("4"));
    db.clone_snapshot("then", "try").unwrap();
    assert_eq!(db.dictionaries_in("try")[0].options, options);

    let mut stream = Vec::new();
    db.send("then", None, &mut stream, None).unwrap();
    let other = Kvdb::in_memory();
    other.receive(&stream[..], &Default::default()).unwrap();
    assert_eq!(other.dictionaries()[0].options, options);
}

/// Many transactions change sets of lines, and each knows only the set at its beginning. In the end
/// the set has every line that one of them added, without those that one of them removed.
#[test]
fn sets_that_many_change_have_the_changes_of_all() {
    for seed in 0..20 {
        let random = &mut Random::new(seed);
        let db = Kvdb::in_memory();
        let d = dictionary(&db, "d", Join::Union);
        let text = |set: &BTreeSet<u64>| {
            set.iter().map(u64::to_string).collect::<Vec<_>>().join("\n").into_bytes()
        };
        let mut expected: BTreeSet<u64> = (0..20).collect();
        db.put(d, b"key", &text(&expected), Durability::Buffered).unwrap();
        for round in 0..10u64 {
            let before = expected.clone();
            let all: Vec<_> = (0..1 + random.below(5))
                .map(|i| {
                    let t = db.begin(Isolation::Snapshot).unwrap();
                    let new = 1000 + round * 10 + i;
                    let old = before.iter().copied().nth(random.below(3) as usize);
                    let mut mine = before.clone();
                    mine.insert(new);
                    mine.retain(|line| Some(*line) != old);
                    t.put(d, "key", text(&mine)).unwrap();
                    (t, new, old)
                })
                .collect();
            if random.below(2) == 0 {
                db.flush().unwrap();
            }
            for (t, new, old) in all {
                t.commit(Durability::Buffered).unwrap();
                expected.insert(new);
                expected.retain(|line| Some(*line) != old);
            }
            let value = db.get(d, b"key").unwrap().unwrap();
            let lines = std::str::from_utf8(&value).unwrap().lines();
            let found: Vec<u64> = lines.map(|line| line.parse().unwrap()).collect();
            let set: BTreeSet<u64> = found.iter().copied().collect();
            assert_eq!((found.len(), set), (expected.len(), expected.clone()), "seed {seed}");
        }
    }
}
