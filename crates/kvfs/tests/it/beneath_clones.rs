//! Tests of dropping or rolling back the state on which a clone or open transactions are based: the
//! branch that a clone was made of, the snapshot, a dictionary, or the state in which transactions
//! began. The clone stays whole and usable, and a transaction that has lost its base ends with an
//! error that says so.

use crate::world::{USER, World};
use kvdb::{Durability, Kvdb, ReceiveOptions, Settled, TransactionOptions};
use kvfs::{Error, FileKind, Fs, FsOptions, MergeOptions, ROOT, ViewId, Views};

struct Store {
    w: World,
    views: Views,
}

impl Store {
    /// A file, a key in dictionary `d`, and a snapshot `s` of them.
    fn new() -> Store {
        let (w, views) = World::with_views(FsOptions::default());
        make(&w.fs, "f", &[1; 20_000]);
        w.db.open_dictionary("d").expect("made").insert("k", "base").expect("put");
        let store = Store { w, views };
        store.snapshot("", "s");
        store
    }

    fn fs(&self, branch: &str) -> Fs {
        self.views.fs(&ViewId::of_branch(branch)).expect("there")
    }

    fn snapshot(&self, of: &str, name: &str) {
        self.w.second();
        self.views.snapshot(&ViewId::of_branch(of), name, Durability::Buffered).expect("made");
    }

    fn clone_of(&self, snapshot: &str, name: &str) -> Fs {
        self.views.clone_snapshot(snapshot, name).expect("made");
        self.w.second();
        self.fs(name)
    }

    fn key(&self, branch: &str) -> Option<Vec<u8>> {
        let dict = self.w.db.dictionary_in(branch, "d")?;
        self.w.db.get(dict, b"k").expect("read").map(|value| value.to_vec())
    }

    fn merge(&self, clone: &str, into: Option<&str>) -> kvfs::Result<()> {
        let into = into.map(String::from);
        let options = MergeOptions { clone: clone.into(), into, ..MergeOptions::default() };
        let merged = self.views.merge(&options, &|_, _| Settled::Conflict)?;
        assert_eq!(merged.conflicts, []);
        self.views.commit(merged.transaction, Durability::Buffered)
    }

    fn check(&self, branch: &str) {
        assert_eq!(self.fs(branch).verify().expect("verified").findings, [], "{branch:?}");
    }
}

fn make(fs: &Fs, name: &str, data: &[u8]) {
    let made = fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, USER).expect("made");
    fs.write(made.ino, 0, data, Default::default()).expect("written");
    fs.forget(made.ino, 1);
}

fn read(fs: &Fs, name: &str) -> Option<Vec<u8>> {
    match fs.resolve(name.as_bytes()) {
        Ok(attr) => Some(fs.read(attr.ino, 0, attr.size as u32).expect("read").to_vec()),
        Err(Error::NotFound) => None,
        Err(e) => panic!("{name}: {e}"),
    }
}

#[test]
fn a_clone_outlives_the_clone_that_it_was_made_of_and_says_why_it_is_not_merged_into_that() {
    let store = Store::new();
    make(&store.clone_of("s", "parent"), "of-parent", &[2; 30_000]);
    store.snapshot("parent", "of-parent");
    let child = store.clone_of("of-parent", "child");
    make(&child, "of-child", &[3; 30_000]);
    store.views.drop_clone("parent").expect("dropped");
    store.views.drop_snapshot("of-parent").expect("dropped");
    store.views.drop_snapshot("s").expect("dropped");
    store.w.db.flush().expect("flushed");
    assert_eq!(read(&child, "of-parent"), Some(vec![2; 30_000]));
    assert_eq!(read(&child, "of-child"), Some(vec![3; 30_000]));
    make(&child, "later", b"later");
    for into in [None, Some(""), Some("parent")] {
        let refused = store.merge("child", into).expect_err("its parent is gone").to_string();
        assert!(refused.contains("parent") || refused.contains("no state"), "{refused}");
    }
    // A new one with the same name is a different one.
    store.snapshot("", "now");
    store.clone_of("now", "parent");
    assert!(store.merge("child", None).is_err());
    store.check("child");
    store.check("");
    assert_eq!(read(&store.fs(""), "of-child"), None);
}

#[test]
fn a_clone_is_merged_though_the_snapshot_that_it_was_made_of_is_dropped_and_made_again() {
    let store = Store::new();
    make(&store.clone_of("s", "c"), "new", b"new");
    store.views.drop_snapshot("s").expect("dropped");
    make(&store.fs(""), "main", b"main");
    // The next one of its name has other files, and the clone is not compared with it.
    store.snapshot("", "s");
    store.w.db.flush().expect("flushed");
    store.merge("c", None).expect("merged");
    let main = store.fs("");
    assert_eq!(read(&main, "new").as_deref(), Some(&b"new"[..]));
    assert_eq!(read(&main, "main").as_deref(), Some(&b"main"[..]));
    assert_eq!(read(&store.fs("c"), "main"), None);
    store.check("");
}

#[test]
fn a_dictionary_that_the_parent_drops_stays_in_the_clone_and_comes_back_if_it_was_changed() {
    let store = Store::new();
    store.clone_of("s", "c");
    store.clone_of("s", "changed");
    let dict = store.w.db.dictionary_in("changed", "d").expect("there");
    store.w.db.put(dict, b"k", b"changed", Durability::Buffered).expect("put");
    store.w.db.drop_dictionary(store.w.db.dictionary("d").expect("there")).expect("dropped");
    store.w.db.flush().expect("flushed");
    assert_eq!(store.key(""), None);
    assert_eq!(store.key("c").as_deref(), Some(&b"base"[..]));
    // A clone without changes in the dictionary does not restore it.
    make(&store.fs("c"), "new", b"new");
    store.merge("c", None).expect("merged");
    assert_eq!(store.key(""), None);
    // One side has removed the dictionary, and the other one has changed it.
    let options = MergeOptions { clone: "changed".into(), ..MergeOptions::default() };
    let merged = store.views.merge(&options, &|_, _| Settled::Conflict).expect("begun");
    let paths: Vec<&[u8]> = merged.conflicts.iter().map(|one| &one.path[..]).collect();
    assert_eq!(paths, [b"d"]);
    store.views.abort(merged.transaction).expect("aborted");
    assert_eq!(store.key("changed").as_deref(), Some(&b"changed"[..]));
}

#[test]
fn a_rollback_of_the_parent_ends_what_is_open_in_it_and_leaves_its_clones() {
    let store = Store::new();
    let clone = store.clone_of("s", "c");
    make(&clone, "of-clone", b"of-clone");
    let begin = |branch: &str, within| {
        let branch = branch.to_owned();
        let options = TransactionOptions { branch, within, ..TransactionOptions::default() };
        store.views.begin(options).expect("begun")
    };
    let outer = begin("", None);
    let inner = begin("", Some(outer));
    let innermost = begin("", Some(inner));
    let elsewhere = begin("c", None);
    let within_it = begin("c", Some(elsewhere));
    for (id, name) in [(innermost, "lost"), (within_it, "kept")] {
        make(&store.views.fs(&ViewId::Transaction(id)).expect("open"), name, name.as_bytes());
    }
    // A merge that is open is a transaction as any other.
    let options = MergeOptions { clone: "c".into(), ..MergeOptions::default() };
    let merged = store.views.merge(&options, &|_, _| Settled::Conflict).expect("begun");
    make(&store.fs(""), "after", b"after");
    store.views.rollback("s").expect("rolled back");
    for id in [outer, inner, innermost, merged.transaction] {
        let over = store.views.commit(id, Durability::Buffered).expect_err("it is over");
        assert!(matches!(over, Error::Store(kvdb::Error::NoTransaction(_))), "{over}");
    }
    let main = store.fs("");
    assert_eq!((read(&main, "after"), read(&main, "lost")), (None, None));
    store.views.commit(within_it, Durability::Buffered).expect("committed into the other one");
    store.views.commit(elsewhere, Durability::Buffered).expect("committed");
    assert_eq!(read(&store.fs("c"), "kept").as_deref(), Some(&b"kept"[..]));
    store.merge("c", None).expect("merged after the rollback");
    for name in ["kept", "of-clone"] {
        assert_eq!(read(&main, name).as_deref(), Some(name.as_bytes()), "{name}");
    }
    store.check("");
    store.check("c");
}

#[test]
fn a_clone_is_sent_as_what_differs_from_the_snapshot_it_was_made_of() {
    let store = Store::new();
    let clone = store.clone_of("s", "c");
    make(&clone, "of-clone", &[4; 50_000]);
    let dict = store.w.db.dictionary_in("c", "d").expect("there");
    store.w.db.put(dict, b"k", b"clone", Durability::Buffered).expect("put");
    make(&store.fs(""), "main", &[5; 500_000]);
    store.snapshot("c", "of-c");
    let stream = |db: &Kvdb, snapshot: &str, base: Option<&str>| {
        let mut bytes = Vec::new();
        db.send(snapshot, base, &mut bytes, None).expect("sent");
        bytes
    };
    let (base, changes) = (stream(&store.w.db, "s", None), stream(&store.w.db, "of-c", Some("s")));
    assert!(changes.len() < 80_000, "{} bytes: nothing of the store's own", changes.len());

    let there = Store::new();
    let receive = |bytes: &[u8], branch: &str| {
        let snapshot = Some(format!("received-{}", bytes.len()));
        let options =
            ReceiveOptions { branch: branch.into(), snapshot, ..ReceiveOptions::default() };
        there.views.receive(bytes, &options)
    };
    // Its base is in a branch of its own, which has first the state that the clone was made of, and
    // then the clone.
    receive(&base, "sent").expect("received");
    assert_eq!(read(&there.fs("sent"), "of-clone"), None);
    receive(&changes, "sent").expect("received");
    let sent = there.fs("sent");
    assert_eq!(read(&sent, "of-clone"), Some(vec![4; 50_000]));
    assert_eq!(read(&sent, "f"), Some(vec![1; 20_000]));
    assert_eq!(read(&sent, "main"), None);
    assert_eq!(there.key("sent").as_deref(), Some(&b"clone"[..]));
    there.check("sent");
    // Without the base the stream is refused, and nothing is received.
    assert!(receive(&changes, "alone").is_err());
    assert!(!there.w.db.has_branch("alone"));
    // The received branch behaves as any branch: a clone of it is merged into it.
    make(&there.clone_of(&format!("received-{}", changes.len()), "try"), "tried", b"tried");
    there.merge("try", None).expect("merged");
    assert_eq!(read(&there.fs("sent"), "tried").as_deref(), Some(&b"tried"[..]));
}
