//! Tests of updates, which change values without reading them: their results wherever the value and
//! the updates lie, their costs, and their meaning for transactions and for a replay.

use std::sync::Arc;

use env::Machine;
use kvdb::{
    Batch, Changed, CreateOptions, Dictionary, DictionaryOptions, Durability, Error, Isolation,
    Kvdb, MAX_UPDATE, OpenOptions, ReceiveOptions, TransactionOptions, Update,
};
use zones::MemoryDevice;

fn append(bytes: &[u8]) -> Update {
    Update::append(bytes).expect("short")
}

fn patch(offset: usize, bytes: &[u8]) -> Update {
    Update::patch(offset, bytes).expect("short")
}

fn options(memory: usize) -> OpenOptions {
    OpenOptions {
        memory,
        threads: false,
        zero_journal: false,
        flush_on_close: false,
        ..OpenOptions::default()
    }
}

fn create(memory: usize) -> (Kvdb, Arc<MemoryDevice>) {
    let device = Arc::new(MemoryDevice::new());
    let options = CreateOptions { open: options(memory), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), options).unwrap();
    (db, device)
}

fn open(device: &Arc<MemoryDevice>, memory: usize) -> (Kvdb, kvdb::Recovery) {
    Kvdb::open(device.clone(), Arc::new(Machine::default()), options(memory)).unwrap()
}

/// Flushes and merges everything into one run.
fn settle(d: &Dictionary) {
    d.store().flush().unwrap();
    d.compact().unwrap();
}

#[test]
fn an_update_is_seen_wherever_the_value_lies() {
    let (db, _) = create(16 << 20);
    let d = db.open_dictionary("d").unwrap();
    let value = vec![b'v'; 10_000];
    let mut want = value.clone();
    want[5000..5004].copy_from_slice(b"1234");
    want.extend_from_slice(b"end");
    // In the memtable; on the device by itself; in a run; in a run beneath another.
    for settled in 0..4 {
        d.insert("k", value.clone()).unwrap();
        if settled > 0 {
            db.sync().unwrap();
        }
        if settled > 1 {
            settle(&d);
        }
        d.update("k", patch(5000, b"1234")).unwrap();
        if settled > 2 {
            db.flush().unwrap();
        }
        d.update("k", append(b"end")).unwrap();
        for _ in 0..2 {
            assert_eq!(d.get("k").unwrap().unwrap(), want);
            assert_eq!(db.view().value_len(d.id(), b"k").unwrap(), Some(want.len()));
            assert_eq!(db.multi_get(d.id(), &["k"]).unwrap(), [Some(want.clone().into())]);
            let all: Vec<_> = d.iter().map(|tuple| tuple.unwrap()).collect();
            assert_eq!(all, [("k".into(), want.clone().into())]);
            let back: Vec<_> = d.iter().rev().map(|tuple| tuple.unwrap()).collect();
            assert_eq!(back, all);
            settle(&d);
        }
    }
}

#[test]
fn a_missing_key_counts_as_zero_or_empty() {
    let (db, _) = create(16 << 20);
    let d = db.open_dictionary("d").unwrap();
    for deleted in [false, true] {
        if deleted {
            d.remove_range::<&str>(..).unwrap();
            settle(&d);
            d.remove("sum").unwrap();
        }
        d.update("sum", Update::add(5)).unwrap();
        d.update("sum", Update::add(-7)).unwrap();
        d.update("text", append(b"ab")).unwrap();
        d.update("holes", patch(3, b"x")).unwrap();
        for _ in 0..2 {
            assert_eq!(d.get("sum").unwrap().unwrap(), "-2");
            assert_eq!(d.get("text").unwrap().unwrap(), "ab");
            assert_eq!(d.get("holes").unwrap().unwrap(), "\0\0\0x");
            settle(&d);
        }
    }
}

#[test]
fn two_transactions_that_add_to_one_counter_both_commit() {
    let db = Kvdb::in_memory();
    let d = db.open_dictionary("d").unwrap();
    d.insert("n", "10").unwrap();
    let [a, b] = [1, 2].map(|n| {
        let t = db.begin(Isolation::Snapshot).unwrap();
        t.update(d.id(), "n", Update::add(n)).unwrap();
        assert_eq!(t.get(d.id(), b"n").unwrap().unwrap(), (10 + n).to_string());
        t
    });
    d.update("n", Update::add(100)).unwrap();
    assert!(!a.is_outdated().unwrap());
    a.commit(Durability::Buffered).unwrap();
    b.commit(Durability::Buffered).unwrap();
    assert_eq!(d.get("n").unwrap().unwrap(), "113");
    // A value that the transaction itself has set is not a sum any more.
    let [c, e] = [(); 2].map(|()| db.begin(Isolation::Snapshot).unwrap());
    c.put(d.id(), "n", "0").unwrap();
    c.update(d.id(), "n", Update::add(1)).unwrap();
    e.update(d.id(), "n", Update::add(1)).unwrap();
    e.commit(Durability::Buffered).unwrap();
    assert!(c.is_outdated().unwrap());
    assert!(matches!(c.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    assert_eq!(d.get("n").unwrap().unwrap(), "114");
}

#[test]
fn a_deletion_by_others_is_no_conflict_with_an_addition() {
    for many in [false, true] {
        let db = Kvdb::in_memory();
        let d = db.open_dictionary("d").unwrap();
        d.insert("n", "10").unwrap();
        let t = db.begin(Isolation::Snapshot).unwrap();
        t.update(d.id(), "n", Update::add(1)).unwrap();
        // Whichever side has fewer items is compared with the other one.
        for i in 0..if many { 100 } else { 0 } {
            t.update(d.id(), format!("z{i}"), Update::add(1)).unwrap();
        }
        d.remove_range("a".."o").unwrap();
        t.commit(Durability::Buffered).unwrap();
        assert_eq!(d.get("n").unwrap().unwrap(), "1");
    }
}

#[test]
fn an_addition_conflicts_with_a_put_by_others_that_it_cannot_be_applied_to() {
    let long = "111111111111111111111111111111";
    let values = [("40", Some("41")), ("NEW", None), ("+7", None), ("", None), (long, None)];
    for (value, want) in values {
        // Whichever side has fewer items is compared with the other one.
        for others in [0, 100] {
            for mine in [0, 100] {
                let db = Kvdb::in_memory();
                let d = db.open_dictionary("d").unwrap();
                d.insert("n", "10").unwrap();
                let t = db.begin(Isolation::Snapshot).unwrap();
                t.update(d.id(), "n", Update::add(1)).unwrap();
                (0..mine).for_each(|i| t.update(d.id(), format!("m{i}"), Update::add(1)).unwrap());
                d.insert("n", value).unwrap();
                (0..others).for_each(|i| d.insert(format!("o{i}"), "text").unwrap());
                assert_eq!(t.is_outdated().unwrap(), want.is_none(), "{value}");
                let committed = t.commit(Durability::Buffered);
                match want {
                    Some(_) => committed.unwrap(),
                    None => match committed {
                        Err(Error::Conflict { keys }) => assert_eq!(keys, [(d.id(), "n".into())]),
                        other => panic!("{value}: {other:?}"),
                    },
                }
                assert_eq!(d.get("n").unwrap().unwrap(), want.unwrap_or(value));
            }
        }
    }
}

#[test]
fn transactions_that_append_to_one_key_conflict() {
    let db = Kvdb::in_memory();
    let d = db.open_dictionary("d").unwrap();
    let [a, b] = ["a", "b"].map(|text| {
        let t = db.begin(Isolation::Snapshot).unwrap();
        t.update(d.id(), "k", append(text.as_bytes())).unwrap();
        t
    });
    a.commit(Durability::Buffered).unwrap();
    assert!(matches!(b.commit(Durability::Buffered), Err(Error::Conflict { .. })));
    assert_eq!(d.get("k").unwrap().unwrap(), "a");
}

#[test]
fn a_transaction_lists_updates_and_undoes_them() {
    let db = Kvdb::in_memory();
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", "a").unwrap();
    let t = db.begin(Isolation::Snapshot).unwrap();
    t.update(d.id(), "k", append(b"b")).unwrap();
    let savepoint = t.savepoint().unwrap();
    t.update(d.id(), "k", append(b"c")).unwrap();
    assert_eq!(t.get(d.id(), b"k").unwrap().unwrap(), "abc");
    let changes: Vec<_> = t.changes().unwrap().map(|change| change.unwrap().1).collect();
    let len = append(b"b").then(&append(b"c")).bytes().len();
    assert_eq!(changes, [Changed::Update { key: "k".into(), len }]);
    t.rollback_to(&savepoint).unwrap();
    assert_eq!(t.get(d.id(), b"k").unwrap().unwrap(), "ab");
    t.commit(Durability::Buffered).unwrap();
    assert_eq!(d.get("k").unwrap().unwrap(), "ab");
}

#[test]
fn a_durable_transaction_keeps_its_updates_over_a_restart() {
    let (db, device) = create(16 << 20);
    let d = db.open_dictionary("d").unwrap();
    d.insert("n", "10").unwrap();
    let durable = TransactionOptions { durable: true, ..TransactionOptions::default() };
    let t = db.begin_with(durable).unwrap();
    t.update(d.id(), "n", Update::add(1)).unwrap();
    t.sync().unwrap();
    let id = t.id();
    drop(t);
    db.close().unwrap();
    let (db, _) = open(&device, 16 << 20);
    let d = db.open_dictionary("d").unwrap();
    d.update("n", Update::add(100)).unwrap();
    let t = db.transaction(id).unwrap();
    assert_eq!(t.get(d.id(), b"n").unwrap().unwrap(), "11");
    t.commit(Durability::Synced).unwrap();
    assert_eq!(d.get("n").unwrap().unwrap(), "111");
}

/// A replay that outgrows memory flushes, and may be cut off after that.
#[test]
fn a_replay_that_was_cut_off_after_a_flush_adds_nothing_twice() {
    let (db, device) = create(256 << 20);
    let d = db.open_dictionary("d").unwrap();
    let (keys, rounds) = (20_000u32, 5);
    for _ in 0..rounds {
        for at in (0..keys).step_by(100) {
            let mut batch = Batch::new();
            for i in at..at + 100 {
                batch.update(d.id(), i.to_be_bytes().to_vec(), Update::add(1));
            }
            db.commit(batch, Durability::Buffered).unwrap();
        }
        db.sync().unwrap();
    }
    drop((d, db));
    let mut replayed = Vec::new();
    for _ in 0..3 {
        let (db, recovery) = open(&device, 4 << 20);
        replayed.push(recovery.records);
        let d = db.open_dictionary("d").unwrap();
        let mut seen = 0;
        for tuple in d.iter() {
            assert_eq!(tuple.unwrap().1, rounds.to_string());
            seen += 1;
        }
        assert_eq!(seen, keys);
        // The machine stops here, without a flush and without a mark of a clean close.
        db.halt("the machine stops");
    }
    assert!(replayed[1] < replayed[0] / 2, "the first replay flushed: {replayed:?}");
}

#[test]
fn snapshots_differences_and_streams_have_the_values() {
    let (db, _) = create(16 << 20);
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", vec![b'v'; 5000]).unwrap();
    db.snapshot("before").unwrap();
    d.update("k", patch(4998, b"xyz")).unwrap();
    db.snapshot("after").unwrap();
    d.update("k", append(b"later")).unwrap();
    let want = [&[b'v'; 4998][..], b"xyz"].concat();
    let get = |db: &Kvdb, name| db.open_snapshot(name).unwrap().get(d.id(), b"k").unwrap().unwrap();
    for _ in 0..2 {
        assert_eq!(get(&db, "before"), vec![b'v'; 5000]);
        assert_eq!(get(&db, "after"), want);
        let mut stream = Vec::new();
        db.send("after", Some("before"), &mut stream, None).unwrap();
        let other = Kvdb::in_memory();
        let mut whole = Vec::new();
        db.send("before", None, &mut whole, None).unwrap();
        for stream in [whole, stream] {
            other.receive(&stream[..], &ReceiveOptions::default()).unwrap();
        }
        let received = other.open_snapshot("after").unwrap();
        let dict = received.dictionaries()[0].id;
        assert_eq!(received.get(dict, b"k").unwrap().unwrap(), want);
        settle(&d);
    }
}

#[test]
fn four_bytes_of_a_large_value_cost_a_record() {
    let (db, _) = create(64 << 20);
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", vec![7; 4 << 20]).unwrap();
    settle(&d);
    db.sync().unwrap();
    let before = db.stats().io.total();
    for i in 0..50 {
        d.update("k", patch(i * 80_000, b"abcd")).unwrap();
        db.sync().unwrap();
    }
    let after = db.stats().io.total();
    assert_eq!(after.read_bytes, before.read_bytes, "nothing is read");
    let written = (after.write_bytes - before.write_bytes) / 50;
    assert!(written <= 8 << 10, "{written} bytes written for four");
    let value = d.get("k").unwrap().unwrap();
    assert!((0..50).all(|i| value[i * 80_000..i * 80_000 + 4] == *b"abcd"));
    assert_eq!(value.len(), 4 << 20);
}

#[test]
fn keys_alone_are_walked_without_the_values_that_updates_change() {
    let (db, _) = create(64 << 20);
    let d = db.open_dictionary("d").unwrap();
    for i in 0..100u8 {
        d.insert(vec![i], vec![i; 5000]).unwrap();
    }
    settle(&d);
    let read = || db.stats().io.of(zones::Purpose::Pages).read_bytes;
    for flushed in [false, true] {
        (0..100u8).for_each(|i| d.update(vec![i], patch(1, b"xyz")).unwrap());
        if flushed {
            db.flush().unwrap();
        }
        let before = read();
        let mut keys = db.view().cursor(d.id(), b"", b"").unwrap().keys_only();
        for i in 0..100u8 {
            assert_eq!(keys.next().unwrap().unwrap().key, [i][..]);
        }
        assert!(keys.next().unwrap().is_none());
        assert_eq!(keys.prev().unwrap().unwrap().key, [99][..]);
        keys.seek(&[50]).unwrap();
        assert_eq!(keys.next().unwrap().unwrap().key, [50][..]);
        assert_eq!(keys.prev().unwrap().unwrap().key, [50][..]);
        assert_eq!(read(), before, "flushed: {flushed}");
    }
    let all: Vec<_> = d.iter().map(|tuple| tuple.unwrap()).collect();
    assert!(all.iter().all(|(key, value)| value[..5] == [key[0], b'x', b'y', b'z', key[0]]));
}

#[test]
fn updates_of_one_key_do_not_pile_up() {
    for in_transaction in [false, true] {
        let (db, _) = create(64 << 20);
        let d = db.open_dictionary("d").unwrap();
        d.insert("k", vec![b'v'; 3000]).unwrap();
        settle(&d);
        let before = db.stats();
        let t = db.begin(Isolation::Snapshot).unwrap();
        let count = 3000;
        for i in 0..count {
            let update = append(format!("{i:020}").as_bytes());
            match in_transaction {
                true => t.update(d.id(), "k", update).unwrap(),
                false => d.update("k", update).unwrap(),
            }
        }
        let memory = if in_transaction { t.info().memory } else { db.stats().memtable_bytes };
        assert!(memory < 8 << 20, "{memory} bytes for updates of 60 KB");
        t.commit(Durability::Buffered).unwrap();
        if !in_transaction {
            let commits = db.stats().commits - before.commits;
            assert!(commits > count, "{commits} commits: some of them fold");
            assert!(commits < count + count / 10, "{commits} commits: few of them fold");
        }
        let value = d.get("k").unwrap().unwrap();
        assert_eq!(value.len(), 3000 + 20 * count as usize);
        assert_eq!(&value[value.len() - 20..], format!("{:020}", count - 1).as_bytes());
    }
}

#[test]
fn what_is_no_update_is_refused_and_changes_nothing() {
    let db = Kvdb::in_memory();
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", "v").unwrap();
    assert_eq!(Update::append(&vec![0; kvdb::MAX_VALUE + 1]), None);
    assert_eq!(Update::patch(kvdb::MAX_VALUE, b"x"), None);
    let long = append(&vec![0; MAX_UPDATE]);
    assert!(matches!(d.update("k", long.clone()), Err(Error::Invalid(_))));
    assert!(matches!(d.update(vec![0; 1 << 20], append(b"x")), Err(Error::Invalid(_))));
    let t = db.begin(Isolation::Snapshot).unwrap();
    assert!(matches!(t.update(d.id(), "k", long), Err(Error::Invalid(_))));
    let dropped = db.create_dictionary("gone", DictionaryOptions::default()).unwrap();
    db.drop_dictionary(dropped).unwrap();
    let mut batch = Batch::new();
    batch.update(d.id(), "k", append(b"x"));
    batch.update(dropped, "k", append(b"x"));
    assert!(matches!(db.commit(batch, Durability::Buffered), Err(Error::NoDictionary(_))));
    assert_eq!(d.get("k").unwrap().unwrap(), "v");
}
