//! Tests of the states that a clone and its origin have in common: which states these are, how long
//! they are kept, and what happens to them when one branch takes over the changes of the other.

use std::sync::Arc;

use env::Simulated;
use kvdb::{
    Clash, CreateOptions, DictionaryId, DictionaryOptions, Durability, Isolation, Join, Kvdb,
    OpenOptions, Settled, View,
};
use zones::{CrashDevice, Device, MemoryDevice};

fn options() -> OpenOptions {
    OpenOptions { memory: 4 << 20, threads: false, zero_journal: false, ..Default::default() }
}

fn create(device: Arc<dyn Device>) -> Kvdb {
    let create = CreateOptions { open: options(), ..Default::default() };
    Kvdb::create(device, Arc::new(Simulated::new(1)), create).expect("a store")
}

fn open(device: Arc<dyn Device>) -> Kvdb {
    Kvdb::open(device, Arc::new(Simulated::new(2)), options()).expect("opened").0
}

fn put(db: &Kvdb, d: DictionaryId, key: &str, value: &str) {
    db.put(d, key.as_bytes(), value.as_bytes(), Durability::Buffered).expect("put");
}

fn text(view: &View, d: DictionaryId, key: &str) -> Option<String> {
    let value = view.get(d, key.as_bytes()).expect("read");
    value.map(|value| String::from_utf8_lossy(&value).into_owned())
}

/// A store with `k` in the dictionary `d` of the main branch and of the clone `c`.
fn fill(db: &Kvdb) -> [DictionaryId; 2] {
    let d = db.open_dictionary("d").expect("made");
    d.insert("k", "base").expect("put");
    db.snapshot("s").expect("made");
    db.clone_snapshot("s", "c").expect("made");
    [d.id(), db.dictionary_in("c", "d").expect("there")]
}

/// Takes over what `of` has since the state that the clone was made of.
fn carried(
    db: &Kvdb,
    [of, into]: [DictionaryId; 2],
    settle: &mut dyn FnMut(Clash<'_>) -> Settled,
) -> Vec<String> {
    let base = db.lineage("c").expect("known").origin;
    let was = base.dictionary("d").expect("there");
    let t = db.begin(Isolation::Snapshot).expect("begun");
    let clashes = t.carry((&base, was), (&db.view(), of), into, settle).expect("carried");
    if clashes.is_empty() {
        t.commit(Durability::Buffered).expect("committed");
    }
    clashes.into_iter().map(|key| String::from_utf8_lossy(&key).into_owned()).collect()
}

fn conflict(_: Clash<'_>) -> Settled {
    Settled::Conflict
}

#[test]
fn the_state_that_a_clone_was_made_of_stays_as_long_as_the_clone() {
    let device = Arc::new(MemoryDevice::new());
    let db = create(device.clone());
    let [d, c] = fill(&db);
    db.clone_snapshot("s", "other").expect("made");
    put(&db, d, "k", "main");
    put(&db, c, "k", "clone");
    db.drop_snapshot("s").expect("dropped");
    assert!(db.snapshots().is_empty() && db.open_snapshot("s").is_err());
    // A snapshot of that name is another one.
    db.snapshot("s").expect("made");
    let of = |db: &Kvdb, clone: &str| {
        let lineage = db.lineage(clone).expect("known");
        assert_eq!((lineage.parent.as_str(), lineage.kept), ("", vec![]));
        text(&lineage.origin, d, "k")
    };
    assert_eq!(of(&db, "c").as_deref(), Some("base"));
    db.close().expect("closed");
    drop(db);
    let db = open(device);
    assert_eq!(of(&db, "c").as_deref(), Some("base"));
    db.drop_branch("c").expect("dropped");
    assert_eq!(of(&db, "other").as_deref(), Some("base"));
    db.drop_snapshot("s").expect("dropped");
    db.drop_branch("other").expect("dropped");
    // No trace is left of it: the next clone with the name is made of another state.
    db.snapshot("s").expect("made");
    db.clone_snapshot("s", "c").expect("made");
    assert_eq!(text(&db.lineage("c").expect("known").origin, d, "k").as_deref(), Some("main"));
    assert!(db.lineage("other").is_err());
}

#[test]
fn states_that_are_kept_are_seen_by_none_and_end_with_the_clone() {
    let db = create(Arc::new(MemoryDevice::new()));
    let [d, c] = fill(&db);
    put(&db, c, "k", "clone");
    let state = db.keep_common_state("c", "c", 1).expect("kept");
    put(&db, d, "k", "main");
    db.keep_common_state("c", "", 2).expect("kept");
    db.keep_common_state("c", "c", 3).expect("kept");
    assert_eq!(db.lineage("c").expect("known").kept, [1, 2, 3]);
    let in_state = |view: &View| text(view, view.dictionary("d").expect("there"), "k");
    assert_eq!(in_state(&state).as_deref(), Some("clone"));
    assert_eq!(in_state(&db.common_state("c", 2).expect("kept")).as_deref(), Some("main"));
    let names: Vec<String> = db.snapshots().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["s"]);
    db.drop_common_states("c", &[2]).expect("dropped");
    assert_eq!(db.lineage("c").expect("known").kept, [2]);
    // A clone whose name has the same beginning has a state of its own.
    db.clone_snapshot("s", "c2").expect("made");
    db.keep_common_state("c2", "c2", 9).expect("kept");
    db.drop_branch("c").expect("dropped");
    assert!(db.common_state("c", 2).is_err());
    assert_eq!(db.lineage("c2").expect("known").kept, [9]);
    db.clone_snapshot("s", "c").expect("made");
    assert!(db.lineage("c").expect("known").kept.is_empty());
    assert!(db.keep_common_state("gone", "gone", 1).is_err());
}

#[test]
fn a_clone_of_a_branch_that_is_gone_or_another_one_has_nothing_in_common() {
    let db = create(Arc::new(MemoryDevice::new()));
    let [d, c] = fill(&db);
    db.snapshot_of("c", "of clone", Durability::Buffered).expect("made");
    db.clone_snapshot("of clone", "below").expect("made");
    assert_eq!(db.lineage("below").expect("known").parent, "c");
    let listed = db.branches();
    let parent = |name: &str| {
        let info = listed.iter().find(|info| info.name == name).expect("listed");
        info.parent.as_deref()
    };
    assert_eq!((parent("below"), parent("c")), (Some("c"), Some("")));
    // A rollback leaves it what it is.
    put(&db, c, "k", "changed");
    db.rollback("of clone").expect("rolled back");
    assert_eq!(db.lineage("below").expect("known").parent, "c");
    db.drop_branch("c").expect("dropped");
    let gone = db.lineage("below").map(|lineage| lineage.parent);
    assert!(gone.is_err_and(|e| e.to_string().contains("gone")));
    db.clone_snapshot("s", "c").expect("made");
    let other = db.lineage("below").map(|lineage| lineage.parent);
    assert!(other.is_err_and(|e| e.to_string().contains("another one")));
    db.create_branch("bare").expect("made");
    assert!(db.lineage("bare").is_err());
    let bare = db.branches().into_iter().find(|info| info.name == "bare").expect("listed");
    assert_eq!(bare.parent, None);
    assert_eq!(text(&db.view(), d, "k").as_deref(), Some("base"));
}

#[test]
fn what_is_received_in_the_place_of_a_clone_is_no_clone() {
    let db = create(Arc::new(MemoryDevice::new()));
    fill(&db);
    db.keep_common_state("c", "c", 1).expect("kept");
    let create = CreateOptions { open: options(), ..Default::default() };
    let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(9)));
    let elsewhere = Kvdb::create(device, env, create).expect("a store");
    let put = elsewhere.open_dictionary("d").expect("made");
    put.insert("k", "elsewhere").expect("put");
    elsewhere.snapshot("theirs").expect("made");
    let mut stream = Vec::new();
    elsewhere.send("theirs", None, &mut stream, None).expect("sent");
    let options = kvdb::ReceiveOptions { branch: "c".into(), replace: true, ..Default::default() };
    db.receive(&mut &stream[..], &options).expect("received");
    assert!(db.lineage("c").is_err());
    assert!(db.common_state("c", 1).is_err());
}

/// In every state in which the device may be left, a clone has the state that it was made of, or
/// does not exist.
#[test]
fn at_no_moment_a_power_cut_leaves_a_clone_without_it() {
    let run = |cut: Option<u64>| {
        let device = Arc::new(CrashDevice::new());
        let db = create(device.clone());
        if let Some(cut) = cut {
            device.cut_power_after(cut);
        }
        let before = device.operations();
        let work = || -> kvdb::Result<()> {
            let d = db.open_dictionary("d")?;
            d.insert("k", "base")?;
            db.snapshot("s")?;
            db.clone_snapshot("s", "c")?;
            d.insert("k", "main")?;
            db.drop_snapshot("s")?;
            db.keep_common_state("c", "c", 5)?;
            db.sync()?;
            db.drop_branch("c")
        };
        let done = work();
        (device.operations() - before, device, done.is_ok())
    };
    let (all, _, done) = run(None);
    assert!(done);
    let (mut with, mut without) = (0, 0);
    for cut in 0..all {
        let (_, device, _) = run(Some(cut));
        let db = open(Arc::new(device.crash(cut)));
        match db.branches().is_empty() {
            true => without += 1,
            false => {
                with += 1;
                let origin = db.lineage("c").expect("it is known").origin;
                let d = origin.dictionary("d").expect("there");
                assert_eq!(text(&origin, d, "k").as_deref(), Some("base"), "cut after {cut}");
            }
        }
    }
    assert!(with > 0 && without > 0, "{with} with the clone, {without} without");
}

#[test]
fn what_one_has_changed_is_taken_over_and_what_both_have_is_a_conflict() {
    let db = create(Arc::new(MemoryDevice::new()));
    let [d, c] = fill(&db);
    let long = "long ".repeat(20_000);
    put(&db, c, "made", &long);
    put(&db, c, "k", "clone");
    put(&db, d, "other", "main");
    assert_eq!(carried(&db, [c, d], &mut conflict), Vec::<String>::new());
    let now = db.view();
    assert_eq!(text(&now, d, "k").as_deref(), Some("clone"));
    assert_eq!(text(&now, d, "made"), Some(long));
    assert_eq!(text(&now, d, "other").as_deref(), Some("main"));
    // An equal change on both sides is not a conflict.
    assert_eq!(carried(&db, [c, d], &mut conflict), Vec::<String>::new());
    put(&db, d, "k", "main");
    assert_eq!(carried(&db, [c, d], &mut conflict), ["k"]);
    let mut told = Vec::new();
    let mut left = |clash: Clash<'_>| {
        let parts = [clash.base, clash.changed, clash.here];
        told.push(parts.map(|part| part.map(|part| String::from_utf8_lossy(part).into_owned())));
        Settled::Left
    };
    assert!(carried(&db, [c, d], &mut left).is_empty());
    assert_eq!(told, [[Some("base".into()), Some("clone".into()), Some("main".into())]]);
    assert_eq!(text(&db.view(), d, "k").as_deref(), Some("main"));
    assert!(carried(&db, [c, d], &mut |_| Settled::Taken).is_empty());
    assert_eq!(text(&db.view(), d, "k").as_deref(), Some("clone"));
    put(&db, d, "k", "main again");
    let both = |clash: Clash<'_>| {
        Settled::Put(
            [clash.here.unwrap_or(b""), b"+", clash.changed.unwrap_or(b"")].concat().into(),
        )
    };
    assert!(carried(&db, [c, d], &mut { both }).is_empty());
    assert_eq!(text(&db.view(), d, "k").as_deref(), Some("main again+clone"));
    let mut batch = kvdb::Batch::new();
    batch.delete(c, "k");
    db.commit(batch, Durability::Buffered).expect("deleted");
    assert_eq!(carried(&db, [c, d], &mut conflict), ["k"]);
}

#[test]
fn a_merge_routine_joins_what_both_have_changed() {
    let db = create(Arc::new(MemoryDevice::new()));
    let rule = DictionaryOptions { join: Join::Add, ..Default::default() };
    let d = db.create_dictionary("d", rule).expect("made");
    put(&db, d, "n", "10");
    db.snapshot("s").expect("made");
    db.clone_snapshot("s", "c").expect("made");
    let c = db.dictionary_in("c", "d").expect("there");
    put(&db, d, "n", "13");
    put(&db, c, "n", "9");
    assert!(carried(&db, [c, d], &mut conflict).is_empty());
    assert_eq!(text(&db.view(), d, "n").as_deref(), Some("12"));
}
