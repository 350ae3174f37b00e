//! Tests of properties that are specific to nested transactions over files. `views_in_transactions`
//! tests the properties that hold for any transaction.

use crate::world::{USER, World, fails};
use kvdb::{CommitOptions, Durability, TransactionId, TransactionOptions};
use kvfs::{Error, FileKind, Fs, FsOptions, Ino, ROOT, ViewId, Views};

struct Both {
    w: World,
    views: Views,
}

impl Both {
    fn new() -> Both {
        let (w, views) = World::with_views(FsOptions::default());
        Both { w, views }
    }

    fn begin(&self, within: Option<TransactionId>) -> (TransactionId, Fs) {
        let id = self.views.begin(TransactionOptions { within, ..Default::default() }).unwrap();
        (id, self.views.fs(&ViewId::Transaction(id)).unwrap())
    }

    fn commit(&self, id: TransactionId) {
        self.views.commit(id, Durability::Buffered).unwrap();
        self.w.check();
    }
}

fn make(fs: &Fs, parent: Ino, name: &str, data: &[u8]) -> Ino {
    let ino = fs.mknod(parent, name.as_bytes(), FileKind::File, 0o644, 0, USER).unwrap().ino;
    fs.write(ino, 0, data, Default::default()).unwrap();
    ino
}

fn read(fs: &Fs, path: &str) -> Option<Vec<u8>> {
    let attr = match fs.resolve(path.as_bytes()) {
        Err(Error::NotFound) => return None,
        attr => attr.unwrap(),
    };
    Some(fs.read(attr.ino, 0, attr.size as u32).unwrap().to_vec())
}

#[test]
fn changes_go_from_the_innermost_outwards() {
    let b = Both::new();
    b.w.file_with(ROOT, "f", b"store");
    let (outer, o) = b.begin(None);
    make(&o, ROOT, "o", b"outer");
    let (inner, i) = b.begin(Some(outer));
    let (deep, d) = b.begin(Some(inner));
    assert_eq!(d.transactions(), [outer, inner, deep]);
    assert_eq!(b.views.and_around(deep).unwrap(), [outer, inner, deep]);
    assert_eq!(read(&d, "o").unwrap(), b"outer");
    let dir = d.mkdir(ROOT, b"dir", 0o755, USER).unwrap().ino;
    make(&d, dir, "large", &[7; 300_000]);
    let f = d.resolve(b"f").unwrap().ino;
    d.write(f, 0, b"deep!", Default::default()).unwrap();
    assert_eq!((read(&i, "dir/large"), read(&i, "f").unwrap()), (None, b"store".to_vec()));
    b.commit(deep);
    fails(d.getattr(ROOT), libc::ESTALE);
    assert_eq!(read(&i, "dir/large").unwrap(), [7; 300_000]);
    assert_eq!((read(&o, "f").unwrap(), read(&o, "dir/large")), (b"store".to_vec(), None));
    b.commit(inner);
    assert_eq!(read(&o, "f").unwrap(), b"deep!");
    assert_eq!(b.w.contents("f"), b"store");
    b.commit(outer);
    assert_eq!(b.w.contents("f"), b"deep!");
    assert_eq!(b.w.contents("dir/large"), [7; 300_000]);
    assert_eq!(b.w.contents("o"), b"outer");
}

#[test]
fn of_two_siblings_that_change_one_file_the_first_wins_and_the_conflict_has_its_path() {
    let b = Both::new();
    let (outer, o) = b.begin(None);
    let dir = o.mkdir(ROOT, b"dir", 0o755, USER).unwrap().ino;
    let file = make(&o, dir, "f", b"outer");
    let [(one, a), (two, c), (three, e)] = [(); 3].map(|()| b.begin(Some(outer)));
    a.write(file, 0, b"first", Default::default()).unwrap();
    c.write(file, 0, b"second", Default::default()).unwrap();
    // Other names in one directory are joined.
    make(&a, dir, "a", b"a");
    make(&e, dir, "e", b"e");
    b.commit(one);
    b.commit(three);
    match b.views.commit(two, Durability::Buffered) {
        Err(Error::Store(kvdb::Error::Conflict { keys })) => {
            let dictionaries = b.w.db.view().dictionaries();
            let told = keys.iter().find_map(|(dict, key)| {
                let name = &dictionaries.iter().find(|d| d.id == *dict)?.name;
                b.views.describe_keys(outer, name, key, &[&key[..], &[0]].concat())
            });
            assert_eq!(told.as_deref(), Some("the node of /dir/f"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(read(&o, "dir/f").unwrap(), b"first");
    b.commit(outer);
    assert_eq!(b.w.list(dir), [".", "..", "a", "e", "f"]);
}

#[test]
fn the_end_of_one_ends_those_within_it_and_their_views() {
    let b = Both::new();
    let f = b.w.file_with(ROOT, "f", b"store");
    let (outer, o) = b.begin(None);
    let (inner, i) = b.begin(Some(outer));
    let (_, d) = b.begin(Some(inner));
    d.write(f, 0, b"lost", Default::default()).unwrap();
    match b.views.commit(outer, Durability::Buffered) {
        Err(Error::Store(kvdb::Error::Nested { nested, .. })) => assert_eq!(nested, [inner]),
        other => panic!("{other:?}"),
    }
    assert_eq!(read(&o, "f").unwrap(), b"store", "it is open as before");
    b.views.abort(outer).unwrap();
    for fs in [&o, &i, &d] {
        fails(fs.getattr(f), libc::ESTALE);
    }
    assert!(b.views.list().is_empty());

    let (outer, o) = b.begin(None);
    let (_, i) = b.begin(Some(outer));
    make(&o, ROOT, "kept", b"1");
    make(&i, ROOT, "lost", b"1");
    let options = CommitOptions { aborts_nested: true, ..Default::default() };
    b.views.commit_with(outer, options).unwrap();
    fails(i.getattr(ROOT), libc::ESTALE);
    assert!(b.w.exists("kept") && !b.w.exists("lost"));
}

#[test]
fn a_savepoint_from_before_it_began_takes_it_with_its_view() {
    let b = Both::new();
    let (outer, o) = b.begin(None);
    let early = b.views.savepoint(outer).unwrap();
    make(&o, ROOT, "f", b"1");
    let (open, i) = b.begin(Some(outer));
    let late = b.views.savepoint(outer).unwrap();
    let (done, d) = b.begin(Some(outer));
    make(&d, ROOT, "done", b"1");
    make(&i, ROOT, "open", b"1");
    b.commit(done);
    assert!(read(&o, "done").is_some());
    b.views.rollback_to(outer, &late).unwrap();
    assert!(read(&o, "done").is_none(), "what it had committed is undone");
    assert!(read(&i, "open").is_some() && read(&i, "f").is_some());
    b.views.rollback_to(outer, &early).unwrap();
    fails(i.getattr(ROOT), libc::ESTALE);
    assert!(b.views.transaction(open).is_err());
    assert!(read(&o, "f").is_none());
    b.commit(outer);
}

/// A file of the store that a nested transaction removes, and that is open outside of both, lives
/// until its last user closes it.
#[test]
fn what_is_open_in_the_store_and_removed_within_lives_on_over_both_commits() {
    let b = Both::new();
    let large = vec![7; 50_000];
    let open = b.w.file_with(ROOT, "f", &large);
    let (outer, o) = b.begin(None);
    let (inner, i) = b.begin(Some(outer));
    i.unlink(ROOT, b"f").unwrap();
    b.commit(inner);
    assert!(read(&o, "f").is_none());
    assert_eq!(b.w.read_all(open), large);
    b.commit(outer);
    assert!(!b.w.exists("f"));
    assert_eq!(b.w.read_all(open), large);
    b.w.fs.forget(open, 1);
    assert_eq!(b.w.fs.verify().unwrap().pages, 0);
}

/// A file that the outer transaction has made disappears with its last user there.
#[test]
fn what_the_one_around_has_made_and_open_and_is_removed_within_lives_until_it_is_closed() {
    let b = Both::new();
    let (outer, o) = b.begin(None);
    let open = make(&o, ROOT, "f", &[7; 50_000]);
    let closed = make(&o, ROOT, "g", &[8; 50_000]);
    o.forget(closed, 1);
    let (inner, i) = b.begin(Some(outer));
    i.unlink(ROOT, b"f").unwrap();
    i.unlink(ROOT, b"g").unwrap();
    b.commit(inner);
    assert_eq!(o.read(open, 0, 100_000).unwrap()[..], [7; 50_000]);
    o.forget(open, 1);
    b.commit(outer);
    let report = b.w.fs.verify().unwrap();
    assert_eq!((report.findings, report.orphans, report.pages), (vec![], 0, 0));
}

#[test]
fn files_that_were_made_within_are_those_of_the_one_around_it_from_then_on() {
    let b = Both::new();
    let (outer, o) = b.begin(None);
    let (inner, i) = b.begin(Some(outer));
    let made = make(&i, ROOT, "f", &[7; 50_000]);
    b.commit(inner);
    // Later files have other numbers, and a removed one leaves nothing.
    let others: Vec<Ino> = (0..100).map(|n| make(&o, ROOT, &format!("o{n}"), b"x")).collect();
    assert!(!others.contains(&made));
    o.unlink(ROOT, b"f").unwrap();
    b.commit(outer);
    let report = b.w.fs.verify().unwrap();
    assert_eq!((report.findings, report.orphans, report.pages), (vec![], 0, 0));
}

/// Numbers that were given are noted in the store, whatever becomes of the transactions.
#[test]
fn numbers_of_one_within_an_aborted_one_are_not_given_again() {
    let mut b = Both::new();
    let (outer, _) = b.begin(None);
    let (inner, i) = b.begin(Some(outer));
    let made = make(&i, ROOT, "f", b"x");
    b.views.abort(outer).unwrap();
    assert!(b.views.transaction(inner).is_err());
    b.w.remount();
    assert!(b.w.file(ROOT, "g") > made);
}

#[test]
fn what_it_changes_is_told_against_the_state_that_it_began_in() {
    let b = Both::new();
    b.w.file_with(ROOT, "store", b"1");
    let (outer, o) = b.begin(None);
    make(&o, ROOT, "outer", b"1");
    let (inner, i) = b.begin(Some(outer));
    make(&i, ROOT, "inner", b"1");
    make(&o, ROOT, "later", b"1");
    i.unlink(ROOT, b"store").unwrap();
    let told = |id| -> Vec<String> {
        let changes = b.views.difference(id, kvfs::Listing::default()).unwrap();
        changes.into_iter().map(|change| String::from_utf8(change.path).unwrap()).collect()
    };
    assert_eq!(told(inner), ["inner", "store"]);
    assert_eq!(told(outer), ["later", "outer"]);
    b.commit(inner);
    assert_eq!(told(outer), ["inner", "later", "outer", "store"]);
    b.commit(outer);
}
