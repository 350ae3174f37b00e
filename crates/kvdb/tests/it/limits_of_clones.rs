//! Tests of the limits of clones. A change that would take more of the device than its clone may
//! have is refused, and changes in other places are not.

use std::sync::Arc;

use env::Simulated;
use kvdb::{
    Batch, BranchLimit, CreateOptions, Dictionary, DictionaryId, Durability, Error, Kvdb,
    OpenOptions, Settled, Transaction, TransactionOptions,
};
use zones::{Device, MemoryDevice};

const LIMIT: u64 = 4 << 20;
/// Tuples of the snapshot that clones are made of.
const BASE: usize = 500;

fn options() -> OpenOptions {
    OpenOptions { memory: 8 << 20, threads: false, ..OpenOptions::default() }
}

fn open(device: Arc<dyn Device>) -> Kvdb {
    Kvdb::open(device, Arc::new(Simulated::new(2)), options()).expect("opened").0
}

fn value(byte: u8) -> Vec<u8> {
    vec![byte; 10_000]
}

/// A store whose clone `try` has a limit, and the clone's dictionary `d`.
fn limited() -> (Arc<MemoryDevice>, Kvdb, Dictionary) {
    let device = Arc::new(MemoryDevice::new());
    let create = CreateOptions { open: options(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Simulated::new(1)), create).expect("made");
    let d = db.open_dictionary("d").expect("made");
    for n in 0..BASE {
        d.insert(format!("base{n:05}"), value(n as u8)).expect("put");
    }
    db.snapshot("monday").expect("made");
    db.clone_snapshot("monday", "try").expect("made");
    db.limit_branch("try", Some(LIMIT)).expect("limited");
    let of_clone = db.open_dictionary_in("try", "d").expect("there");
    (device, db, of_clone)
}

fn limit_of(db: &Kvdb) -> Option<BranchLimit> {
    db.branches().into_iter().find(|info| info.name == "try").expect("there").limit
}

fn is_over(refused: &kvdb::Result<()>) -> bool {
    matches!(refused, Err(Error::CloneOverLimit { limit: LIMIT, branch }) if branch == "try")
}

/// Puts values until one is refused. Returns the number of accepted ones.
fn fill(d: &Dictionary, prefix: &str) -> usize {
    for n in 0..2_000 {
        match d.insert(format!("{prefix}{n:05}"), value(n as u8)) {
            Ok(()) => {}
            refused => {
                assert!(is_over(&refused), "{refused:?}");
                return n;
            }
        }
    }
    panic!("no limit");
}

#[test]
fn what_would_take_more_is_refused_in_it_and_nowhere_else() {
    let (_, db, d) = limited();
    // Runs that the clone shares with the snapshot do not count.
    let before = limit_of(&db).expect("limited");
    assert!(before.bytes == LIMIT && before.taken < 100_000, "{before:?}");
    let taken = fill(&d, "k");
    assert!((300..=(LIMIT / 10_000) as usize).contains(&taken), "{taken}");
    let limit = db.limit_of(d.id()).expect("limited").1;
    assert!(limit.room() < 50_000, "{limit:?}");
    // A batch is taken whole or not at all, and so is a conditional commit.
    let batch = || {
        let mut batch = Batch::new();
        batch.put(d.id(), "small", "1");
        batch.put(d.id(), "large", value(1).repeat(5));
        batch
    };
    assert!(is_over(&db.commit(batch(), Durability::Synced)));
    let conditional = db.commit_if_unchanged(batch(), db.view(), kvdb::Reads::default());
    assert!(is_over(&conditional.map(drop)));
    assert_eq!(d.get("small").expect("read"), None);
    let sorted = (0..100).map(|n| (format!("run{n:05}"), value(n)));
    assert!(is_over(&d.ingest(sorted).map(drop)));
    // The store, and other clones, are free to write.
    let main = db.open_dictionary("d").expect("there");
    main.insert("outside", value(1).repeat(600)).expect("written");
    db.clone_snapshot("monday", "other").expect("made");
    let other = db.open_dictionary_in("other", "d").expect("there");
    other.insert("outside", value(1).repeat(600)).expect("written");
    assert_eq!(db.limit_of(main.id()), None);
    assert_eq!(db.limit_of(other.id()), None);
    // A larger limit applies to later changes, and `None` removes the limit.
    db.limit_branch("try", Some(2 * LIMIT)).expect("limited");
    d.insert("more", value(1).repeat(100)).expect("there is room");
    db.limit_branch("try", None).expect("there is none");
    for key in ["much", "more still"] {
        d.insert(key, value(1).repeat(600)).expect("there is room");
    }
    assert_eq!(limit_of(&db), None);
}

#[test]
fn what_is_deleted_or_overwritten_gives_room_back() {
    let (_, db, d) = limited();
    let taken = fill(&d, "a");
    for round in 0..3 {
        let mut batch = Batch::new();
        batch.delete_range(d.id(), "a", "b");
        db.commit(batch, Durability::Buffered).expect("deletions are taken");
        let again = fill(&d, "a");
        assert!(again + 30 > taken, "round {round}: {again} after {taken}");
    }
    // The same holds if the keys are put one after the other.
    for n in 0..taken {
        d.remove(format!("a{n:05}")).expect("deletions are taken");
    }
    assert!(fill(&d, "b") + 30 > taken);
    // Overwriting the same keys repeatedly takes no more space than once, if there is room for some
    // of them.
    let mut batch = Batch::new();
    batch.delete_range(d.id(), "b00100", "c");
    db.commit(batch, Durability::Buffered).expect("deletions are taken");
    for round in 0..40u8 {
        for n in 0..100 {
            d.insert(format!("b{n:05}"), value(round)).expect("it replaces what is there");
        }
    }
}

/// The snapshot keeps on the device what the clone overwrites. In a zone that was open when the
/// snapshot was made one is taken for the other.
#[test]
fn what_is_overwritten_of_the_snapshot_counts_but_for_a_zone() {
    let (_, db, _) = limited();
    let main = db.open_dictionary("large").expect("made");
    let large = |byte| vec![byte; 200_000];
    let tuples = 3 * zones::ZONE_SIZE / 200_000;
    for n in 0..tuples {
        main.insert(format!("{n:05}"), large(1)).expect("put");
    }
    db.drop_branch("try").expect("dropped");
    db.snapshot("tuesday").expect("made");
    db.clone_snapshot("tuesday", "try").expect("made");
    db.limit_branch("try", Some(LIMIT)).expect("limited");
    let d = db.open_dictionary_in("try", "large").expect("there");
    let refused = (0..tuples).find_map(|n| {
        let written = d.insert(format!("{n:05}"), large(2));
        written.is_err().then_some((n, written))
    });
    let (n, refused) = refused.expect("no limit");
    assert!(is_over(&refused), "{refused:?}");
    let least = LIMIT / 2 / 200_000;
    let most = (LIMIT + zones::ZONE_SIZE) / 200_000;
    assert!((least..=most).contains(&n), "{n}, at least {least}, at most {most}");
}

#[test]
fn a_transaction_is_held_to_it_when_it_changes_something_and_when_it_commits() {
    let (_, db, d) = limited();
    let begin = || {
        let options = TransactionOptions { branch: "try".into(), ..Default::default() };
        db.begin_with(options).expect("begun")
    };
    let fill = |prefix: &str| {
        let t = begin();
        let of_clone: DictionaryId = d.id();
        let refused = |n: &i32| {
            let put = t.put(of_clone, format!("{prefix}{n:05}"), value(1));
            assert!(put.is_ok() || is_over(&put), "{put:?}");
            put.is_err()
        };
        let taken = (0..2_000).find(refused).expect("no limit");
        assert!((300..420).contains(&taken), "{taken}");
        assert!(t.room().is_some_and(|room| room < 20_000));
        t
    };
    // Two transactions each fit alone and not together. The second one is refused and stays open.
    let (one, two) = (fill("one"), fill("two"));
    one.commit(Durability::Buffered).expect("there is room");
    let refused = two.commit(Durability::Buffered);
    assert!(is_over(&refused), "{refused:?}");
    assert!(two.get(d.id(), b"two00000").expect("it is open").is_some());
    // A transaction that deletes can commit.
    let delete = begin();
    let mut batch = Batch::new();
    batch.delete_range(d.id(), "one", "onf");
    delete.apply(batch).expect("deletions are taken");
    delete.commit(Durability::Buffered).expect("deletions are committed");
    two.make_room().expect("merged");
    two.commit(Durability::Buffered).expect("there is room again");
    assert!(d.get("two00000").expect("read").is_some());
}

#[test]
fn it_is_there_after_a_restart_and_ends_with_the_clone() {
    let (device, db, d) = limited();
    let taken = fill(&d, "k");
    // The number of files is kept for the layer above.
    db.limit_files("try", Some(100)).expect("limited");
    // A checkpoint of the manifest, and a copy of the store, have it, too.
    let copy = Arc::new(MemoryDevice::new());
    db.checkpoint_to(copy.clone()).expect("copied");
    db.close().expect("closed");
    for device in [device, copy] {
        let db = open(device);
        let d = db.open_dictionary_in("try", "d").expect("there");
        assert_eq!(limit_of(&db).map(|limit| limit.bytes), Some(LIMIT));
        assert!(is_over(&d.insert("more", value(1).repeat(10))), "{taken} are in it");
        assert_eq!(db.limit_of_files(d.id()), Some(("try".into(), 100)));
        assert_eq!(db.branches()[0].limit_of_files, Some(100));
        db.limit_files("try", Some(0)).expect("limited");
        assert_eq!(db.limit_of_files(d.id()), Some(("try".into(), 0)));
        db.limit_files("try", None).expect("not limited");
        assert_eq!(db.limit_of_files(d.id()), None);
        db.limit_files("try", Some(100)).expect("limited");
        db.drop_branch("try").expect("dropped");
        db.clone_snapshot("monday", "try").expect("made");
        assert_eq!((limit_of(&db), db.branches()[0].limit_of_files), (None, None));
        for no_clone in ["", "nothing", ".durable"] {
            assert!(db.limit_branch(no_clone, Some(1)).is_err(), "{no_clone}");
            assert!(db.limit_files(no_clone, Some(1)).is_err(), "{no_clone}");
        }
    }
}

/// Begins a transaction in the clone that takes over the changes of the main branch, as a rebase
/// does: its present state is kept, and its values are put by reference.
fn rebased(db: &Kvdb, mark: u64) -> Transaction {
    let main = db.dictionary("d").expect("there");
    let here = db.dictionary_in("try", "d").expect("there");
    let origin = db.lineage("try").expect("a clone").origin;
    let state = db.keep_common_state("try", "", mark).expect("kept");
    let options = TransactionOptions { branch: "try".into(), ..Default::default() };
    let t = db.begin_with(options).expect("begun");
    let (from, to) = ((&origin, main), (&state, main));
    let clashes = t.carry(from, to, here, &mut |_| Settled::Conflict).expect("carried");
    assert!(clashes.is_empty());
    t
}

#[test]
fn a_rebase_takes_what_it_writes_and_nothing_for_values_that_it_puts_by_reference() {
    // Few large values, which are committed as changes, and keys that are bound as runs.
    for (values, key, len) in [(12, 10, 1 << 20), (2_000, 800, 20_000)] {
        let (device, db, d) = limited();
        let main = db.open_dictionary("d").expect("there");
        let name = |n: usize| format!("n{n:0key$}");
        for n in 0..values {
            main.insert(name(n), vec![n as u8; len]).expect("put");
        }
        db.flush().expect("flushed");
        rebased(&db, 1).commit(Durability::Synced).expect("nothing of it is written for the clone");
        assert_eq!(
            d.get(name(values - 1)).expect("read"),
            Some(vec![(values - 1) as u8; len].into())
        );
        db.flush().expect("flushed");
        let counted = limit_of(&db).expect("limited").taken;
        let most = (values * (key + 200)) as u64 + 200_000;
        assert!(counted < most, "{counted} bytes of {values} values");
        // The rest is still limited: what the clone writes itself counts as before.
        let room = (LIMIT - counted) as usize / 10_000;
        let taken = fill(&d, "own");
        let most = (LIMIT / 10_000) as usize;
        assert!(taken <= most && taken + 150 > room, "{taken} of {room}");
        // The changes that a transaction of it writes are limited, too.
        let options = TransactionOptions { branch: "try".into(), ..Default::default() };
        let t = db.begin_with(options).expect("begun");
        assert!(is_over(&t.put(d.id(), "more", value(1).repeat(20))));
        drop(t);
        db.close().expect("closed");
        let db = open(device);
        let after = limit_of(&db).expect("limited").taken;
        assert!(after < LIMIT + 100_000, "{after} bytes after a restart");
    }
}

/// A transaction writes a value, copies it by reference and deletes the original, again and again.
#[test]
fn a_copy_by_reference_of_what_was_written_here_counts() {
    let (_, db, d) = limited();
    let options = TransactionOptions { branch: "try".into(), ..Default::default() };
    let t = db.begin_with(options).expect("begun");
    let copied = |n: usize| -> kvdb::Result<()> {
        t.put(d.id(), "written", vec![n as u8; 1 << 20])?;
        // The next change writes out the large one, which has a place then.
        t.put(d.id(), "small", "1")?;
        let stored = t.view()?.stored(d.id(), b"written")?.expect("there");
        let mut batch = Batch::new();
        batch.put_stored(d.id(), format!("copy{n:05}"), stored);
        batch.delete(d.id(), "written");
        t.apply(batch)
    };
    let (n, refused) = (0..12).find_map(|n| Some((n, copied(n).err()?))).expect("no limit");
    assert!(is_over(&Err(refused)));
    assert!((1..=4).contains(&n), "{n} MiB");
}
