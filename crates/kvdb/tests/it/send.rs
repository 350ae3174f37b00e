//! Tests of sent snapshots. A received snapshot equals the one that was sent, whole or as changes,
//! in one piece or in many, and no intermediate state is ever visible.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use crate::model::*;
use env::{Random, Simulated};
use kvdb::{
    DictionaryOptions, Durability, Error, Isolation, Join, Kvdb, ReceiveOptions,
    TransactionOptions, View,
};
use zones::{CrashDevice, MemoryDevice};

type ManifestState = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

fn of_view(view: &View) -> ManifestState {
    let tuples = |id| {
        view.scan(id, b"", b"", usize::MAX)
            .unwrap()
            .into_iter()
            .map(|(k, v)| (k.to_vec(), v.to_vec()))
            .collect()
    };
    view.dictionaries().into_iter().map(|d| (d.name, tuples(d.id))).collect()
}

fn of(db: &Kvdb, snapshot: &str) -> ManifestState {
    of_view(&db.open_snapshot(snapshot).unwrap())
}

fn store(seed: u64) -> Kvdb {
    create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(seed)), small()).unwrap()
}

fn send(db: &Kvdb, snapshot: &str, base: Option<&str>) -> Vec<u8> {
    let mut stream = Vec::new();
    let stats = db.send(snapshot, base, &mut stream, None).unwrap();
    assert_eq!(stats.bytes, stream.len() as u64);
    stream
}

fn work(db: &Kvdb, random: &mut Random, steps: u64) {
    let dicts = dictionaries(db).unwrap();
    for _ in 0..steps {
        db.commit(batch(&changes(random, &dicts)), Durability::Buffered).unwrap();
        if random.one_in(5) {
            db.step().unwrap();
        }
    }
}

fn into(branch: &str) -> ReceiveOptions {
    ReceiveOptions { branch: branch.into(), ..ReceiveOptions::default() }
}

#[test]
fn whole_and_incremental_streams_make_the_same_snapshots() {
    for seed in 0..10 {
        let mut random = Random::new(seed);
        let (db, other) = (store(seed), store(seed + 100));
        for n in 0..5 {
            work(&db, &mut random, 60);
            if n == 2 {
                db.drop_dictionary(db.dictionary("whole").unwrap()).unwrap();
                db.open_dictionary("new").unwrap().insert("k", "v").unwrap();
            }
            let (name, before) = (format!("s{n}"), format!("s{}", n - 1));
            db.snapshot(&name).unwrap();
            let stream = send(&db, &name, (n > 0).then_some(before.as_str()));
            for branch in ["", "copy"] {
                let options =
                    ReceiveOptions { snapshot: Some(format!("{name} {branch}")), ..into(branch) };
                match other.receive(&stream[..], &options) {
                    // A snapshot with the name exists only once.
                    Err(Error::Exists(_)) if branch == "copy" => {}
                    done => assert_eq!(done.unwrap().snapshot, options.snapshot.clone().unwrap()),
                }
            }
            let here = of(&other, &format!("{name} "));
            assert_eq!(here, of(&db, &name), "seed {seed}, {n}");
            let main: ManifestState = other
                .dictionaries()
                .into_iter()
                .map(|d| d.name)
                .zip(contents(&other).unwrap().into_values())
                .collect();
            assert_eq!(main, here);
            assert!(other.branches().is_empty() && other.receiving().unwrap().is_empty());
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (db, other) = (store(1), store(2));
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", "1").unwrap();
    db.snapshot("a").unwrap();
    d.insert("k", "2").unwrap();
    db.snapshot("b").unwrap();
    let (whole, changes) = (send(&db, "a", None), send(&db, "b", Some("a")));
    assert!(matches!(db.send("x", None, io::sink(), None), Err(Error::NoSnapshot(_))));
    assert!(matches!(other.receive(&changes[..], &into("")), Err(Error::NoSnapshot(_))));
    other.open_dictionary("mine").unwrap();
    assert!(matches!(other.receive(&whole[..], &into("")), Err(Error::Exists(_))));
    other.receive(&whole[..], &into("copy")).unwrap();
    assert!(matches!(other.receive(&whole[..], &into("copy")), Err(Error::Exists(_))));
    let theirs = other.open_dictionary_in("copy", "d").unwrap();
    theirs.insert("k", "mine").unwrap();
    assert!(matches!(other.receive(&changes[..], &into("copy")), Err(Error::Invalid(_))));
    assert_eq!(theirs.get("k").unwrap().unwrap(), "mine");
    let replace = ReceiveOptions { replace: true, ..into("copy") };
    other.receive(&changes[..], &replace).unwrap();
    assert_eq!(of(&other, "b"), of(&db, "b"));
    assert_eq!(other.dictionaries().len(), 1, "the main branch is as it was");
}

#[test]
fn a_stream_that_is_cut_off_goes_on() {
    let (db, device) = (store(1), Arc::new(MemoryDevice::new()));
    let env = Arc::new(Simulated::new(2));
    let mut other = create(device.clone(), env.clone(), small()).unwrap();
    let (d, e) = (db.open_dictionary("d").unwrap(), db.open_dictionary("e").unwrap());
    for i in 0..4000u32 {
        d.insert(i.to_be_bytes().to_vec(), vec![i as u8; 300]).unwrap();
        e.insert(i.to_be_bytes().to_vec(), vec![i as u8; 200]).unwrap();
    }
    db.snapshot("s").unwrap();
    let stream = send(&db, "s", None);
    let cut = |other: &Kvdb, stream: &[u8]| {
        let failed = other.receive(stream, &into("")).unwrap_err();
        assert!(
            matches!(&failed, Error::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof),
            "{failed}"
        );
        assert!(other.dictionaries().is_empty() && other.branches().is_empty(), "nothing is seen");
    };
    cut(&other, &stream[..stream.len() / 3]);
    let first = other.receiving().unwrap();
    assert!(first.len() == 1 && first[0].chunks > 2, "{first:?}");
    drop(other);
    other = Kvdb::open(device, env, small()).unwrap().0;
    assert_eq!(other.receiving().unwrap(), first, "it survives");
    // The whole stream again, and then from where it ended.
    cut(&other, &stream[..stream.len() * 2 / 3]);
    let from = other.receiving().unwrap().remove(0);
    assert!(from.chunks > first[0].chunks);
    let from = kvdb::Received::from_bytes(&from.to_bytes()).unwrap();
    let mut rest = Vec::new();
    let stats = db.send("s", None, &mut rest, Some(&from)).unwrap();
    assert!(rest.len() < stream.len() / 2, "{} of {}", rest.len(), stream.len());
    let received = other.receive(&rest[..], &into("")).unwrap();
    assert_eq!((received.tuples, received.chunks), (8000, stats.chunks));
    assert_eq!(of(&other, "s"), of(&db, "s"));
    // A stream that begins too late is refused, and a stream can be abandoned.
    let fresh = store(5);
    assert!(matches!(fresh.receive(&rest[..], &into("")), Err(Error::Invalid(_))));
    cut(&fresh, &stream[..stream.len() / 3]);
    fresh.forget_received(&fresh.receiving().unwrap()[0]).unwrap();
    assert!(fresh.receiving().unwrap().is_empty());
}

#[test]
fn damaged_streams_are_refused_and_leave_nothing_to_see() {
    let db = store(1);
    let d = db.open_dictionary("d").unwrap();
    for i in 0..40u32 {
        d.insert(i.to_be_bytes().to_vec(), vec![i as u8; 20]).unwrap();
    }
    db.snapshot("s").unwrap();
    let stream = send(&db, "s", None);
    let other = store(2);
    for at in 0..stream.len() {
        for flip in [1, 0x80] {
            let mut bad = stream.clone();
            bad[at] ^= flip;
            assert!(other.receive(&bad[..], &into("")).is_err(), "byte {at}");
        }
        if at % 7 == 0 {
            assert!(other.receive(&stream[..at], &into("")).is_err(), "cut at {at}");
        }
    }
    assert!(other.snapshots().is_empty() && other.dictionaries().is_empty());
    other.receive(&stream[..], &into("")).unwrap();
    assert_eq!(of(&other, "s"), of(&db, "s"));
}

#[test]
fn one_percent_of_change_is_about_one_percent_of_the_stream() {
    let db = store(1);
    let d = db.open_dictionary("d").unwrap();
    d.ingest((0..20_000u32).map(|i| (i.to_be_bytes().to_vec(), vec![i as u8; 400]))).unwrap();
    db.snapshot("a").unwrap();
    for i in 0..200u32 {
        d.insert((i * 100).to_be_bytes().to_vec(), vec![0xee; 400]).unwrap();
    }
    db.snapshot("b").unwrap();
    let (whole, changes) = (send(&db, "b", None).len(), send(&db, "b", Some("a")).len());
    assert!(changes * 90 < whole, "{changes} of {whole}");
}

/// A writer that loses power together with the receiving store.
#[test]
fn power_cuts_while_receiving_leave_all_or_nothing_and_it_goes_on() {
    let db = store(1);
    let mut random = Random::new(3);
    work(&db, &mut random, 200);
    db.snapshot("s").unwrap();
    let stream = send(&db, "s", None);
    for seed in 0..40 {
        let env = Arc::new(Simulated::new(seed));
        let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
        let other = create(device.clone(), env.clone(), small()).unwrap();
        device.cut_power_after(random.below(150));
        let done = other.receive(&stream[..], &into(""));
        let image = device.crash(seed);
        drop(other);
        let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "seed {seed}: {:?}", report.faults);
        let (other, _) = Kvdb::open(Arc::new(image), env, small()).unwrap();
        match other.snapshots().len() {
            0 => {
                assert!(done.is_err() && other.dictionaries().is_empty(), "seed {seed}");
                other.receive(&stream[..], &into("")).unwrap();
            }
            _ => assert_eq!(other.dictionaries().len(), 3),
        }
        assert_eq!(of(&other, "s"), of(&db, "s"), "seed {seed}");
    }
}

#[test]
fn a_writer_that_fails_ends_the_sending() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let db = store(1);
    db.snapshot("s").unwrap();
    assert!(matches!(db.send("s", None, Full, None), Err(Error::Io(_))));
}

#[test]
fn a_long_stream_is_written_once_and_power_cuts_leave_all_or_nothing_of_it() {
    let db = store(1);
    let (d, e) = (db.open_dictionary("d").unwrap(), db.open_dictionary("e").unwrap());
    d.ingest((0..8_000u32).map(|i| (i.to_be_bytes().to_vec(), vec![i as u8; 400]))).unwrap();
    e.ingest((0..300u32).map(|i| (i.to_be_bytes().to_vec(), vec![i as u8; 5000]))).unwrap();
    db.snapshot("a").unwrap();
    // Most of it changed, a part deleted.
    d.ingest(
        (0..8_000u32)
            .filter(|i| i % 5 > 0)
            .map(|i| (i.to_be_bytes().to_vec(), vec![!i as u8; 300])),
    )
    .unwrap();
    (0..8_000u32).filter(|i| i % 5 == 0).for_each(|i| d.remove(i.to_be_bytes().to_vec()).unwrap());
    db.snapshot("b").unwrap();
    let streams = [send(&db, "a", None), send(&db, "b", Some("a"))];

    let other = store(2);
    let before = other.stats().io.total().write_bytes;
    other.receive(&streams[0][..], &into("")).unwrap();
    let written = other.stats().io.total().write_bytes - before;
    // Sends the beginning twice and the rest once.
    assert!(
        written < streams[0].len() as u64 * 3 / 2,
        "{written} bytes written of {}",
        streams[0].len()
    );
    other.receive(&streams[1][..], &into("")).unwrap();
    let (a, b) = (of(&db, "a"), of(&db, "b"));
    assert!(of(&other, "a") == a && of(&other, "b") == b);

    let (mut whole, mut not) = (0, 0);
    for seed in 0..24 {
        let env = Arc::new(Simulated::new(seed));
        let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
        let other = create(device.clone(), env.clone(), small()).unwrap();
        other.receive(&streams[0][..], &into("")).unwrap();
        device.cut_power_after(seed * 4);
        let done = other.receive(&streams[1][..], &into(""));
        let image = device.crash(seed);
        drop(other);
        let (other, _) = Kvdb::open(Arc::new(image), env, small()).unwrap();
        if other.snapshots().len() == 2 {
            whole += 1;
        } else {
            not += 1;
            assert!(done.is_err(), "seed {seed}");
            let first = other.view().iter(other.dictionary("d").unwrap()).next().unwrap().unwrap();
            assert_eq!(
                (first.1.len(), other.dictionaries().len()),
                (400, 2),
                "seed {seed}: as it was"
            );
            other.receive(&streams[1][..], &into("")).unwrap();
        }
        assert!(of(&other, "b") == b && of(&other, "a") == a, "seed {seed}");
    }
    assert!(whole > 0 && not > 5, "{whole} whole, {not} not");
}

/// A stream in the middle of which another thread does something.
struct Amid<'a> {
    stream: &'a [u8],
    then: Option<Box<dyn FnOnce() + 'a>>,
}

impl io::Read for Amid<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.stream.len() < 100
            && let Some(then) = self.then.take()
        {
            then();
        }
        io::Read::read(&mut self.stream, buf)
    }
}

/// A branch is replaced only while it has nothing of its own; what is committed to it while the
/// stream comes is its own as well.
#[test]
fn what_is_committed_to_a_branch_while_a_stream_comes_is_not_replaced() {
    let db = store(1);
    let d = db.open_dictionary("d").unwrap();
    (0..100u32).for_each(|i| d.insert(i.to_be_bytes().to_vec(), vec![7; 100]).unwrap());
    db.snapshot("one").unwrap();
    d.insert("more", "1").unwrap();
    db.snapshot("two").unwrap();
    let (one, two) = (send(&db, "one", None), send(&db, "two", Some("one")));
    let main = ReceiveOptions::default();

    // A whole stream is received into an empty branch.
    let other = store(2);
    let make = || other.open_dictionary("mine").unwrap().insert("k", "v").unwrap();
    let outcome = other.receive(Amid { stream: &one, then: Some(Box::new(make)) }, &main);
    assert!(matches!(outcome, Err(Error::Exists(_))), "{outcome:?}");
    assert_eq!(other.open_dictionary("mine").unwrap().get("k").unwrap().unwrap(), "v");

    // A stream of changes is received into a branch that has its base.
    let other = store(3);
    other.receive(&one[..], &main).unwrap();
    let there = other.open_dictionary("d").unwrap();
    let put = || there.insert("mine", "v").unwrap();
    let outcome = other.receive(Amid { stream: &two, then: Some(Box::new(put)) }, &main);
    assert!(
        matches!(&outcome, Err(Error::Invalid(why)) if why.contains("changed since")),
        "{outcome:?}"
    );
    assert_eq!(there.get("mine").unwrap().unwrap(), "v");
    there.remove("mine").unwrap();

    // A transaction that reads or changes the branch during this cannot commit into the replaced
    // branch.
    let (snapshot, serializable) =
        (other.begin(Isolation::Snapshot).unwrap(), other.begin(Isolation::Serializable).unwrap());
    snapshot.put(there.id(), "mine", "v").unwrap();
    assert_eq!(serializable.get(there.id(), b"more").unwrap(), None);
    assert_eq!(other.receive(&two[..], &main).unwrap().snapshot, "two");
    let outcome = snapshot.commit(Durability::Buffered);
    assert!(matches!(outcome, Err(Error::NoDictionary(_))), "{outcome:?}");
    let outcome = serializable.commit(Durability::Buffered);
    assert!(matches!(outcome, Err(Error::Locked(_))), "{outcome:?}");
    let there = other.open_dictionary("d").unwrap();
    assert_eq!(
        (there.get("more").unwrap().as_deref(), there.get("mine").unwrap()),
        (Some(&b"1"[..]), None)
    );
}

/// Received data stays when the last step fails, and a stream that begins where the first ended
/// continues.
#[test]
fn what_was_received_stays_when_it_cannot_take_the_place_of_the_branch() {
    let (db, other) = (store(1), store(2));
    let d = db.open_dictionary("d").unwrap();
    (0..100u32).for_each(|i| d.insert(i.to_be_bytes().to_vec(), vec![7; 100]).unwrap());
    db.snapshot("one").unwrap();
    let one = send(&db, "one", None);
    let main = ReceiveOptions::default();
    // The name is reserved while the stream is received.
    let take = || other.snapshot("one").unwrap();
    let outcome = other.receive(Amid { stream: &one, then: Some(Box::new(take)) }, &main);
    assert!(matches!(outcome, Err(Error::Exists(_))), "{outcome:?}");
    let received = other.receiving().unwrap();
    assert_eq!(received.iter().map(|r| r.tuples).collect::<Vec<_>>(), [100]);

    other.drop_snapshot("one").unwrap();
    let mut rest = Vec::new();
    db.send("one", None, &mut rest, Some(&received[0])).unwrap();
    assert_eq!(other.receive(&rest[..], &main).unwrap().tuples, 100);
    assert_eq!(of(&other, "one"), of(&db, "one"));
    assert!(other.branches().is_empty() && other.receiving().unwrap().is_empty());
    let names: Vec<String> = other.dictionaries().into_iter().map(|d| d.name).collect();
    assert_eq!(names, ["d"]);
}

/// Changes that were committed before the branch was replaced are lost.
#[test]
fn what_was_committed_before_the_branch_was_replaced_cannot_be_undone() {
    let (db, other) = (store(1), store(2));
    db.open_dictionary("d").unwrap().insert("k", "theirs").unwrap();
    db.snapshot("one").unwrap();
    let there = other.open_dictionary("d").unwrap();
    let undoable = TransactionOptions { undoable: true, ..TransactionOptions::default() };
    let t = other.begin_with(undoable).unwrap();
    t.put(there.id(), "k", "mine").unwrap();
    t.commit(Durability::Buffered).unwrap();
    assert_eq!(other.undoable_commits().len(), 1);
    let replace = ReceiveOptions { replace: true, ..ReceiveOptions::default() };
    // A branch is another matter.
    other.receive(&send(&db, "one", None)[..], &into("copy")).unwrap();
    assert_eq!(other.undoable_commits().len(), 1);
    db.snapshot("two").unwrap();
    other.receive(&send(&db, "two", None)[..], &replace).unwrap();
    assert_eq!(other.undoable_commits(), []);
}

/// Options that were changed since the base are part of what is sent.
#[test]
fn changes_bring_the_options_of_dictionaries_with_them() {
    let (db, other) = (store(1), store(2));
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", "1").unwrap();
    db.snapshot("one").unwrap();
    other.receive(&send(&db, "one", None)[..], &into("")).unwrap();
    let options = DictionaryOptions { join: Join::Add, ..DictionaryOptions::default() };
    db.set_dictionary_options(d.id(), options.clone()).unwrap();
    db.snapshot("two").unwrap();
    other.receive(&send(&db, "two", Some("one"))[..], &into("")).unwrap();
    assert_eq!(other.dictionaries()[0].options, options);
}

/// The data of one stream of a snapshot is not used for another stream, even if each chunk of both
/// has as many tuples of the same size.
#[test]
fn what_came_of_a_whole_stream_is_no_part_of_the_changes_and_the_other_way_round() {
    let db = store(1);
    let d = db.open_dictionary("d").unwrap();
    let fill = |keys: std::ops::Range<u32>, byte| {
        keys.for_each(|i| d.insert(i.to_be_bytes().to_vec(), vec![byte; 300]).unwrap())
    };
    fill(0..4000, 1);
    db.snapshot("one").unwrap();
    fill(0..3000, 2);
    (3900..4000u32).for_each(|i| d.remove(i.to_be_bytes().to_vec()).unwrap());
    db.snapshot("two").unwrap();
    let (one, whole, changes) =
        (send(&db, "one", None), send(&db, "two", None), send(&db, "two", Some("one")));
    let cut = |other: &Kvdb, stream: &[u8], to: &str| {
        assert!(other.receive(&stream[..stream.len() / 3], &into(to)).is_err());
        let came = other.receiving().unwrap();
        assert!(came.len() == 1 && came[0].chunks > 1, "{came:?}");
    };

    let other = store(2);
    other.receive(&one[..], &into("")).unwrap();
    cut(&other, &whole, "copy");
    other.receive(&changes[..], &into("")).unwrap();
    assert!(of(&other, "two") == of(&db, "two"), "the changes, behind a part of all");
    assert_eq!(other.receiving().unwrap(), [], "the other stream is of no use any more");

    let other = store(3);
    other.receive(&one[..], &into("")).unwrap();
    cut(&other, &changes, "");
    other.receive(&whole[..], &into("copy")).unwrap();
    assert!(of(&other, "two") == of(&db, "two"), "all, behind a part of the changes");
    assert_eq!(other.receiving().unwrap(), []);

    // One stream continues, whatever happens to the other.
    let other = store(4);
    other.receive(&one[..], &into("")).unwrap();
    cut(&other, &changes, "");
    let position = other.receiving().unwrap().remove(0);
    assert!(other.receive(&whole[..whole.len() / 3], &into("copy")).is_err());
    let mut rest = Vec::new();
    db.send("two", Some("one"), &mut rest, Some(&position)).unwrap();
    other.receive(&rest[..], &into("")).unwrap();
    assert!(of(&other, "two") == of(&db, "two"), "the rest of the changes");

    // Both are abandoned together.
    let other = store(5);
    other.receive(&one[..], &into("")).unwrap();
    cut(&other, &changes, "");
    assert!(other.receive(&whole[..whole.len() / 3], &into("copy")).is_err());
    other.forget_received(&position).unwrap();
    assert_eq!(other.receiving().unwrap(), []);
    assert!(other.view().dictionaries().iter().all(|d| d.branch.is_empty()));
}

/// A position identifies its stream. With another base the chunks of the same numbers contain other
/// tuples, and if the sizes are equal, nothing else would reveal that.
#[test]
fn a_position_goes_with_the_base_of_its_stream() {
    let (db, other) = (store(1), store(2));
    let d = db.open_dictionary("d").unwrap();
    let fill = |byte| {
        (0..3000u32).for_each(|i| d.insert(i.to_be_bytes().to_vec(), vec![byte; 300]).unwrap())
    };
    for (name, byte) in [("zero", 0), ("one", 1), ("two", 2)] {
        fill(byte);
        db.snapshot(name).unwrap();
    }
    other.receive(&send(&db, "one", None)[..], &into("")).unwrap();
    let position = |stream: &[u8], to: &str| {
        let before = other.receiving().unwrap();
        assert!(other.receive(&stream[..stream.len() / 3], &into(to)).is_err());
        let new = other.receiving().unwrap().into_iter().find(|came| !before.contains(came));
        let new = new.expect("a part has come");
        // The bytes are those that are printed and given to the sender.
        assert_eq!(kvdb::Received::from_bytes(&new.to_bytes()).unwrap(), new);
        new
    };
    let changes = position(&send(&db, "two", Some("one")), "");
    let whole = position(&send(&db, "two", None), "copy");
    let refused = |base, from| match db.send("two", base, io::sink(), Some(from)) {
        Err(Error::Invalid(why)) if db.may_send("two", base, Some(from)).is_err() => why,
        sent => panic!("{sent:?}"),
    };
    for base in [None, Some("zero")] {
        let why = refused(base, &changes);
        assert!(why.contains("since snapshot one") && why.contains("as the base"), "{why}");
    }
    let why = refused(Some("one"), &whole);
    assert!(why.contains("all of two") && why.contains("without a base"), "{why}");
    for (base, from, to) in [(None, &whole, "copy"), (Some("one"), &changes, "")] {
        let mut rest = Vec::new();
        db.send("two", base, &mut rest, Some(from)).unwrap();
        other.receive(&rest[..], &into(to)).unwrap();
        assert!(of(&other, "two") == of(&db, "two"));
        other.drop_snapshot("two").unwrap();
        let again = send(&db, "two", Some("one"));
        assert!(to.is_empty() || other.receive(&again[..again.len() / 3], &into("")).is_err());
    }
    // An earlier version has noted nothing of it.
    let old = kvdb::Received { base: kvdb::BuildsUpon::Unknown, ..changes.clone() };
    assert!(kvdb::Received::from_bytes(&old.to_bytes()).unwrap() == old);
    db.send("two", None, io::sink(), Some(&old)).unwrap();
    // The base is dropped, so the received part is useless.
    db.drop_snapshot("one").unwrap();
    let gone = db.send("two", Some("zero"), io::sink(), Some(&changes));
    assert!(matches!(&gone, Err(Error::NoSnapshot(_))), "{gone:?}");
}

/// The snapshot that a stream of changes builds upon is dropped while the stream comes, and another
/// one gets its name. The content of the branch is compared with the base.
#[test]
fn a_base_that_is_made_again_while_a_stream_comes_is_another_snapshot() {
    let (db, other) = (store(1), store(2));
    let d = db.open_dictionary("d").unwrap();
    (0..100u32).for_each(|i| d.insert(i.to_be_bytes().to_vec(), vec![7; 100]).unwrap());
    db.snapshot("one").unwrap();
    (0..100u32).for_each(|i| d.insert(i.to_be_bytes().to_vec(), vec![8; 100]).unwrap());
    db.snapshot("two").unwrap();
    let (one, two) = (send(&db, "one", None), send(&db, "two", Some("one")));
    other.receive(&one[..], &into("")).unwrap();
    let there = other.open_dictionary("d").unwrap();
    let again = || {
        there.insert("mine", "v").unwrap();
        other.drop_snapshot("one").unwrap();
        other.snapshot("one").unwrap();
    };
    let outcome = other.receive(Amid { stream: &two, then: Some(Box::new(again)) }, &into(""));
    assert!(
        matches!(&outcome, Err(Error::Invalid(why)) if why.contains("changed since")),
        "{outcome:?}"
    );
    assert_eq!(there.get("mine").unwrap().unwrap(), "v");
}

/// A branch for a stream of changes is a clone of the base, whose space it keeps.
#[test]
fn a_stream_of_which_nothing_came_keeps_no_space() {
    let (db, device) = (store(1), Arc::new(MemoryDevice::new()));
    let other = create(device.clone(), Arc::new(Simulated::new(2)), small()).unwrap();
    let d = db.open_dictionary("d").unwrap();
    d.insert("k", "1").unwrap();
    db.snapshot("one").unwrap();
    d.insert("k", "2").unwrap();
    db.snapshot("two").unwrap();
    let (one, two) = (send(&db, "one", None), send(&db, "two", Some("one")));
    other.receive(&one[..], &into("")).unwrap();
    let hidden = |db: &Kvdb| db.view().dictionaries().iter().any(|d| !d.branch.is_empty());

    // The image is that of a kill when the branch exists and no data has arrived.
    let mut image = None;
    let copy = || image = Some(MemoryDevice::clone(&device));
    // All but the end of the only chunk, and the end.
    let stream = &two[..two.len() - 20];
    assert!(other.receive(Amid { stream, then: Some(Box::new(copy)) }, &into("")).is_err());
    assert!(!hidden(&other) && other.receiving().unwrap().is_empty());

    let image = Arc::new(image.unwrap());
    let (killed, _) = Kvdb::open(image, Arc::new(Simulated::new(3)), small()).unwrap();
    if hidden(&killed) {
        let left = killed.receiving().unwrap();
        assert_eq!(left.iter().map(|r| (r.chunks, r.tuples)).collect::<Vec<_>>(), [(0, 0)]);
        killed.forget_received(&left[0]).unwrap();
    }
    assert!(!hidden(&killed) && killed.receiving().unwrap().is_empty());
    other.receive(&two[..], &into("")).unwrap();
    assert_eq!(of(&other, "two"), of(&db, "two"));
}
