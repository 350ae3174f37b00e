//! Tests of views: what a transaction sees, what others see, and the end of a view.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::world::{USER, World, around, fails, fs_of_branch, of_branch};
use env::Simulated;
use env::sync::Mutex;
use kvdb::{
    CreateOptions, DictionaryId, Durability, Isolation, Kvdb, TransactionId, TransactionOptions,
};
use kvfs::{
    ChangeSet, CommittedTo, Error, FileKind, Fs, FsOptions, Ino, ROOT, RenameFlags, SetAttr,
    Timestamp, ViewId, Views, Wait, Watcher, Whole,
};
use zones::MemoryDevice;

struct Both {
    w: World,
    views: Views,
}

impl Both {
    fn new() -> Both {
        Self::with(FsOptions::default())
    }

    fn with(options: FsOptions) -> Both {
        let (w, views) = World::with_views(options);
        Both { w, views }
    }

    fn begin(&self) -> (TransactionId, Fs) {
        let id = self.views.begin(of_branch()).unwrap();
        (id, self.views.fs(&ViewId::Transaction(id)).unwrap())
    }

    fn commit(&self, id: TransactionId) {
        self.views.commit(id, Durability::Buffered).unwrap();
        self.w.check();
    }

    /// A key outside of the transactions that the suite begins.
    fn insert(&self, dict: DictionaryId, key: &str, value: &str) {
        match around() {
            Some(id) => self.views.transaction(id).unwrap().put(dict, key, value).unwrap(),
            None => {
                self.w.db.put(dict, key.as_bytes(), value.as_bytes(), Durability::Buffered).unwrap()
            }
        }
    }

    fn get(&self, dict: DictionaryId, key: &str) -> Option<Vec<u8>> {
        let value = match around() {
            Some(id) => self.views.transaction(id).unwrap().get(dict, key.as_bytes()).unwrap(),
            None => self.w.db.get(dict, key.as_bytes()).unwrap(),
        };
        value.map(|value| value.to_vec())
    }

    #[track_caller]
    fn conflicts(&self, id: TransactionId) {
        match self.views.commit(id, Durability::Buffered) {
            Err(Error::Store(kvdb::Error::Conflict { .. })) => {}
            other => panic!("{other:?}"),
        }
        assert!(self.views.transaction(id).is_err(), "a conflict ends it");
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

fn names(fs: &Fs, dir: Ino) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    fs.readdir(dir, 2, false, &mut |e| names.insert(String::from_utf8_lossy(e.name).into_owned()))
        .unwrap();
    names
}

fn rename(fs: &Fs, from: (Ino, &str), to: (Ino, &str)) {
    fs.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), RenameFlags::default()).unwrap();
}

#[test]
fn a_transaction_sees_what_was_written_before_it_and_nothing_that_comes_after() {
    let b = Both::new();
    // Not committed yet, only in memory.
    let f = b.w.file_with(ROOT, "f", b"before");
    let large = b.w.file_with(ROOT, "large", &[1; 50_000]);
    let (id, t) = b.begin();
    b.w.write(f, 0, b"after!");
    b.w.write(large, 10_000, &[2; 10_000]);
    b.w.file_with(ROOT, "later", b"");
    b.w.fs.sync_all().unwrap();
    assert_eq!(read(&t, "f").unwrap(), b"before");
    assert_eq!(read(&t, "large").unwrap(), [1; 50_000]);
    assert_eq!(names(&t, ROOT), ["f", "large"].map(String::from).into());
    b.views.abort(id).unwrap();
}

#[test]
fn others_see_nothing_of_it_before_it_commits_and_everything_afterwards() {
    let b = Both::new();
    let dir = b.w.dir(ROOT, "dir");
    let f = b.w.file_with(dir, "f", b"old");
    let gone = b.w.file_with(dir, "gone", b"x");
    b.w.fs.forget(gone, 1);
    let (id, t) = b.begin();
    t.write(f, 0, b"new content", Default::default()).unwrap();
    t.unlink(dir, b"gone").unwrap();
    let sub = t.mkdir(dir, b"sub", 0o700, USER).unwrap().ino;
    make(&t, sub, "deep", &[7; 100_000]);
    t.setxattr(dir, b"user.note", b"changed", Default::default()).unwrap();
    t.symlink(dir, b"link", b"f", USER).unwrap();
    assert_eq!(t.readlink(t.resolve(b"dir/link").unwrap().ino).unwrap(), b"f");
    assert_eq!(b.w.list(dir), [".", "..", "f", "gone"]);
    assert_eq!(b.w.contents("dir/f"), b"old");
    b.commit(id);
    assert_eq!(b.w.list(dir), [".", "..", "f", "link", "sub"]);
    assert_eq!(b.w.contents("dir/f"), b"new content");
    assert_eq!(b.w.contents("dir/sub/deep"), [7; 100_000]);
    assert_eq!(b.w.fs.getattr(f).unwrap().size, 11);
    assert_eq!(b.w.fs.getattr(dir).unwrap().nlink, 3);
    assert_eq!(b.w.fs.getxattr(dir, b"user.note").unwrap(), b"changed");
    fails(b.w.fs.getattr(gone), libc::ESTALE);
    // Its view is over.
    fails(t.getattr(ROOT), libc::ESTALE);
    fails(t.write(f, 0, b"late", Default::default()), libc::ESTALE);
    assert!(matches!(b.views.fs(&ViewId::Transaction(id)), Err(Error::NotFound)));
    let mut b = b;
    b.w.remount();
    assert_eq!(b.w.contents("dir/f"), b"new content");
}

#[test]
fn the_files_beneath_a_transaction_are_those_that_it_began_with() {
    let b = Both::new();
    let f = b.w.file_with(ROOT, "f", b"before");
    let (id, t) = b.begin();
    t.write(f, 0, b"within", Default::default()).unwrap();
    make(&t, ROOT, "made", b"x");
    t.sync_all().unwrap();
    b.w.write(f, 0, b"after!");
    b.w.fs.sync_all().unwrap();
    let beneath = b.views.beneath(id).unwrap();
    assert_eq!(read(&beneath, "f").unwrap(), b"before");
    assert_eq!(names(&beneath, ROOT), ["f"].map(String::from).into());
    fails(beneath.write(f, 0, b"late", Default::default()), libc::EROFS);
    b.views.abort(id).unwrap();
    assert!(b.views.beneath(id).is_err(), "it is over");
}

#[test]
fn an_abort_leaves_nothing() {
    let b = Both::new();
    let f = b.w.file_with(ROOT, "f", b"old");
    let (id, t) = b.begin();
    t.write(f, 0, b"new", Default::default()).unwrap();
    t.unlink(ROOT, b"f").unwrap();
    make(&t, ROOT, "g", &[7; 100_000]);
    t.sync_all().unwrap();
    b.views.abort(id).unwrap();
    assert_eq!(b.w.contents("f"), b"old");
    assert_eq!(b.w.list(ROOT), [".", "..", "f"]);
    fails(t.lookup(ROOT, b"f"), libc::ESTALE);
    assert!(b.views.abort(id).is_err() && b.views.commit(id, Durability::Buffered).is_err());
    assert_eq!(b.views.list().len(), around().iter().count());
    assert_eq!(kvfs::verify(&b.w.db).unwrap().pages, 0);
}

#[test]
fn different_names_in_one_directory_join() {
    let b = Both::new();
    let dir = b.w.dir(ROOT, "dir");
    let old = b.w.file_with(dir, "old", b"");
    b.w.fs.forget(old, 1);
    let ((one, t1), (two, t2)) = (b.begin(), b.begin());
    make(&t1, dir, "a", b"1");
    t1.mkdir(dir, b"sub1", 0o755, USER).unwrap();
    make(&t2, dir, "b", b"2");
    t2.mkdir(dir, b"sub2", 0o755, USER).unwrap();
    t2.unlink(dir, b"old").unwrap();
    b.w.file_with(dir, "c", b"3");
    b.w.second();
    b.w.dir(dir, "sub3");
    b.commit(one);
    b.commit(two);
    assert_eq!(b.w.list(dir), [".", "..", "a", "b", "c", "sub1", "sub2", "sub3"]);
    let attr = b.w.fs.getattr(dir).unwrap();
    assert_eq!((attr.size, attr.nlink), (6, 5));
    assert_eq!(attr.mtime, b.w.stat("dir/sub3").mtime, "the newest of the times");
    for (name, content) in [("a", b"1"), ("b", b"2"), ("c", b"3")] {
        assert_eq!(b.w.contents(&format!("dir/{name}")), content);
    }
}

#[test]
fn the_same_name_and_the_same_file_conflict() {
    type Change = fn(&Fs, Ino);
    let changes: [(Change, Change); 8] = [
        (
            |t, _| assert!(make(t, ROOT, "new", b"1") > ROOT),
            |m, _| assert!(make(m, ROOT, "new", b"2") > ROOT),
        ),
        (
            |t, f| assert_eq!(t.write(f, 0, b"1", Default::default()).unwrap(), 1),
            |m, f| assert_eq!(m.write(f, 2, b"2", Default::default()).unwrap(), 1),
        ),
        (
            |t, f| assert_eq!(t.write(f, 0, b"1", Default::default()).unwrap(), 1),
            |m, _| m.unlink(ROOT, b"f").unwrap(),
        ),
        (
            |t, _| t.unlink(ROOT, b"f").unwrap(),
            |m, f| assert_eq!(m.write(f, 2, b"2", Default::default()).unwrap(), 1),
        ),
        (|t, _| t.unlink(ROOT, b"f").unwrap(), |m, _| m.unlink(ROOT, b"f").unwrap()),
        (|t, _| rename(t, (ROOT, "f"), (ROOT, "g")), |m, _| rename(m, (ROOT, "f"), (ROOT, "h"))),
        (
            |t, f| assert_eq!(t.link(f, ROOT, b"g").unwrap().nlink, 2),
            |m, f| assert_eq!(m.link(f, ROOT, b"h").unwrap().nlink, 2),
        ),
        (
            |t, f| {
                assert_eq!(
                    t.setattr(f, &SetAttr { mode: Some(0o600), ..Default::default() }, USER)
                        .unwrap()
                        .perm,
                    0o600
                )
            },
            |m, f| {
                assert_eq!(
                    m.setattr(f, &SetAttr { uid: Some(9), ..Default::default() }, USER)
                        .unwrap()
                        .uid,
                    9
                )
            },
        ),
    ];
    for (mine, theirs) in changes {
        let b = Both::new();
        let f = b.w.file_with(ROOT, "f", b"some content");
        let (id, t) = b.begin();
        mine(&t, f);
        // Data that only waits in the mainline's memory counts.
        theirs(&b.w.fs, f);
        b.conflicts(id);
        // The other way round, between two transactions.
        let b = Both::new();
        let f = b.w.file_with(ROOT, "f", b"some content");
        let ((one, t1), (two, t2)) = (b.begin(), b.begin());
        mine(&t1, f);
        theirs(&t2, f);
        b.commit(two);
        b.conflicts(one);
    }
}

#[test]
fn a_directory_that_one_removes_and_the_other_fills_is_a_conflict() {
    for removed_first in [false, true] {
        let b = Both::new();
        let dir = b.w.dir(ROOT, "dir");
        let ((one, t1), (two, t2)) = (b.begin(), b.begin());
        t1.rmdir(ROOT, b"dir").unwrap();
        make(&t2, dir, "inside", b"");
        let (first, second) = if removed_first { (one, two) } else { (two, one) };
        b.commit(first);
        b.conflicts(second);
        assert_eq!(b.w.exists("dir/inside"), !removed_first);
    }
}

#[test]
fn two_moves_that_would_make_a_circle_conflict() {
    let b = Both::new();
    let (a, c) = (b.w.dir(ROOT, "a"), b.w.dir(ROOT, "c"));
    let (deep_a, deep_c) = (b.w.dir(a, "deep"), b.w.dir(c, "deep"));
    let ((one, t1), (two, t2)) = (b.begin(), b.begin());
    rename(&t1, (ROOT, "a"), (deep_c, "a"));
    rename(&t2, (ROOT, "c"), (deep_a, "c"));
    b.commit(one);
    b.conflicts(two);
    assert!(b.w.exists("c/deep/a/deep"));
}

#[test]
fn what_is_open_here_and_removed_there_lives_until_its_last_user_goes() {
    let b = Both::new();
    let (small, large) =
        (b.w.file_with(ROOT, "small", b"small"), b.w.file_with(ROOT, "large", &[5; 100_000]));
    let unused = b.w.file_with(ROOT, "unused", &[6; 100_000]);
    b.w.fs.forget(unused, 1);
    let dir = b.w.dir(ROOT, "dir");
    let (id, t) = b.begin();
    for name in ["small", "large", "unused"] {
        t.unlink(ROOT, name.as_bytes()).unwrap();
    }
    t.rmdir(ROOT, b"dir").unwrap();
    b.commit(id);
    assert_eq!(b.w.list(ROOT), [".", ".."]);
    assert_eq!(b.w.read_all(small), b"small");
    assert_eq!(b.w.read_all(large), [5; 100_000]);
    assert_eq!(b.w.fs.getattr(large).unwrap().nlink, 0);
    fails(b.w.fs.getattr(unused), libc::ESTALE);
    fails(b.w.fs.mknod(dir, b"x", FileKind::File, 0o644, 0, USER), libc::ENOENT);
    b.w.write(large, 0, &[9; 10]);
    b.w.fs.sync_all().unwrap();
    let report = b.w.fs.verify().unwrap();
    assert_eq!((report.orphans, report.pages), (1, 25));
    for ino in [small, large, dir] {
        b.w.fs.forget(ino, 1);
        fails(b.w.fs.getattr(ino), libc::ESTALE);
    }
    let report = b.w.fs.verify().unwrap();
    assert_eq!((report.orphans, report.pages), (0, 0));
}

/// The state in which the transaction removed it is not the state here, where it was not changed.
#[test]
fn what_is_open_here_and_changed_and_removed_there_is_here_as_it_was() {
    let (w, views) = World::with_views(FsOptions::default());
    let old: Vec<u8> = (0..30_000).map(|n| n as u8).collect();
    let large = vec![b'x'; 3000];
    let change: [fn(&Fs, Ino) -> kvfs::Result<()>; 4] = [
        |fs, ino| fs.write(ino, 5000, &[9; 5000], Default::default()).map(drop),
        |fs, ino| fs.setattr(ino, &SetAttr { size: Some(0), ..Default::default() }, USER).map(drop),
        |fs, ino| fs.write(ino, 60_000, &[9; 5000], Default::default()).map(drop),
        |fs, ino| fs.setxattr(ino, b"user.large", &[b'y'; 3000], Default::default()),
    ];
    for (n, change) in change.into_iter().enumerate() {
        for paged in [true, false] {
            let (name, old) =
                (format!("f{n}{paged}"), if paged { &old[..] } else { &b"short"[..] });
            let open = w.file_with(ROOT, &name, old);
            w.fs.setxattr(open, b"user.large", &large, Default::default()).unwrap();
            let id = views.begin(of_branch()).unwrap();
            let inside = views.fs(&ViewId::Transaction(id)).unwrap();
            change(&inside, open).unwrap();
            inside.sync_all().unwrap();
            inside.unlink(ROOT, name.as_bytes()).unwrap();
            views.commit(id, Durability::Buffered).unwrap();
            assert!(w.fs.read(open, 0, 100_000).unwrap() == old, "{name}");
            assert_eq!(w.fs.getxattr(open, b"user.large").unwrap(), large, "{name}");
            // After its end the file has no data of the transaction's, however it is extended.
            w.write(open, 90_000, b"end");
            w.fs.link(open, ROOT, name.as_bytes()).unwrap();
            w.check();
            let whole = [old, &vec![0; 90_000 - old.len()], b"end"].concat();
            assert!(w.read_all(open) == whole, "{name}");
            w.fs.unlink(ROOT, name.as_bytes()).unwrap();
            w.fs.forget(open, 2);
            assert_eq!(w.fs.verify().unwrap().pages, 0, "{name}: nothing is left");
        }
    }
}

#[test]
fn what_is_open_in_a_transaction_and_removed_there_goes_with_it() {
    for commit in [false, true] {
        let b = Both::new();
        let f = b.w.file_with(ROOT, "f", &[5; 100_000]);
        b.w.fs.forget(f, 1);
        let (id, t) = b.begin();
        t.lookup(ROOT, b"f").unwrap();
        t.unlink(ROOT, b"f").unwrap();
        let own = make(&t, ROOT, "own", &[6; 100_000]);
        t.sync_all().unwrap();
        t.unlink(ROOT, b"own").unwrap();
        let nameless = t.tmpfile(ROOT, 0o600, USER).unwrap().ino;
        t.write(nameless, 0, &[7; 100_000], Default::default()).unwrap();
        for (ino, byte) in [(f, 5), (own, 6), (nameless, 7)] {
            assert_eq!(t.read(ino, 0, 100_000).unwrap(), vec![byte; 100_000]);
        }
        if commit {
            b.commit(id);
            fails(b.w.fs.getattr(f), libc::ESTALE);
        } else {
            b.views.abort(id).unwrap();
            assert_eq!(b.w.contents("f"), [5; 100_000]);
        }
        let report = b.w.fs.verify().unwrap();
        assert_eq!((report.orphans, report.pages), (0, if commit { 0 } else { 25 }));
    }
}

#[test]
fn an_inode_of_a_transaction_has_a_number_of_its_own() {
    let b = Both::new();
    let ((one, t1), (two, t2)) = (b.begin(), b.begin());
    let mut all = BTreeSet::new();
    for i in 0..300 {
        for (fs, name) in [(&b.w.fs, "m"), (&t1, "x"), (&t2, "y")] {
            let dir = fs.mkdir(ROOT, format!("{name}{i}").as_bytes(), 0o755, USER).unwrap().ino;
            assert!(all.insert(dir), "{dir} was given out twice");
        }
    }
    b.commit(two);
    b.commit(one);
    assert_eq!(b.w.fs.getattr(ROOT).unwrap().size, 900);
}

#[test]
fn a_transaction_larger_than_memory() {
    let b = Both::with(FsOptions { write_buffer: 1 << 20, ..Default::default() });
    let old = b.w.file_with(ROOT, "old", &[1; 3 << 20]);
    let (id, t) = b.begin();
    for n in 0..40u8 {
        make(&t, ROOT, &format!("f{n}"), &vec![n; 1 << 20]);
    }
    t.write(old, 1 << 20, &[2; 1 << 20], Default::default()).unwrap();
    assert!(t.statistics().dirty_bytes <= 1 << 20);
    assert_eq!(read(&t, "f7").unwrap(), vec![7; 1 << 20]);
    b.commit(id);
    for n in 0..40u8 {
        assert!(b.w.contents(&format!("f{n}")) == vec![n; 1 << 20]);
    }
    let content = b.w.read_all(old);
    assert!(
        content[..1 << 20] == vec![1; 1 << 20] && content[1 << 20..2 << 20] == vec![2; 1 << 20]
    );
}

#[test]
fn files_that_are_made_whole_in_a_transaction_come_with_it() {
    let whole = |name: &str, data: Vec<u8>| Whole {
        parent: ROOT,
        name: name.as_bytes().into(),
        kind: FileKind::File,
        perm: 0o644,
        uid: 1,
        gid: 2,
        rdev: 0,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        content: data.into(),
    };
    let content = |n: usize| vec![n as u8; [0, 300, 4096, 5000, 70_001][n % 5]];
    let mut b = Both::new();
    let (id, fs) = b.begin();
    // More calls than a transaction has runs.
    for call in 0..50 {
        let all: Vec<Whole> =
            (0..20).map(|n| whole(&format!("{call}-{n}"), content(call + n))).collect();
        fs.make_whole(&all).unwrap();
    }
    // The name exists, so the call has no effect.
    let again = [whole("new", content(4)), whole("7-7", content(4))];
    assert!(matches!(fs.make_whole(&again), Err(Error::Exists)));
    assert_eq!(read(&fs, "/new"), None);
    // A file that was made is replaced as any other one.
    fs.unlink(ROOT, b"3-1").unwrap();
    fs.make_whole(&[whole("3-1", content(9))]).unwrap();
    let check = |fs: &Fs| {
        for (call, n) in (0..50).flat_map(|call| (0..20).map(move |n| (call, n))) {
            let made = if (call, n) == (3, 1) { content(9) } else { content(call + n) };
            assert_eq!(read(fs, &format!("/{call}-{n}")), Some(made), "{call}-{n}");
        }
    };
    check(&fs);
    assert!(names(&b.w.fs, ROOT).is_empty(), "before the commit no other view sees it");
    drop(fs);
    b.views.commit(id, Durability::Synced).unwrap();
    b.w.check();
    check(&b.w.fs);
    // After an abort nothing is left.
    let (id, fs) = b.begin();
    fs.make_whole(&[whole("gone", content(4)), whole("gone too", content(4))]).unwrap();
    drop(fs);
    b.views.abort(id).unwrap();
    assert_eq!(read(&b.w.fs, "/gone"), None);
    b.w.check();
    b.w.crash();
    check(&b.w.fs);
    b.w.check();
}

#[test]
fn a_listing_that_is_under_way_goes_on_over_a_commit() {
    let b = Both::new();
    let dir = b.w.dir(ROOT, "dir");
    for i in 0..20 {
        b.w.file(dir, &format!("n{i:02}"));
    }
    let mut seen = Vec::new();
    let mut cookie = 0;
    let mut go = |most: usize, seen: &mut Vec<String>| {
        let mut left = most;
        b.w.fs.readdir(dir, cookie, false, &mut |e| {
            if left == 0 {
                return false;
            }
            left -= 1;
            cookie = e.cookie;
            seen.push(String::from_utf8_lossy(e.name).into_owned());
            true
        })
    };
    go(12, &mut seen).unwrap();
    let (id, t) = b.begin();
    t.unlink(dir, b"n09").unwrap();
    t.unlink(dir, b"n15").unwrap();
    make(&t, dir, "n99", b"");
    b.commit(id);
    go(100, &mut seen).unwrap();
    let expected: Vec<String> =
        (0..20).filter(|&i| i != 15).chain([99]).map(|i| format!("n{i:02}")).collect();
    assert_eq!(seen[2..], expected);
}

#[test]
fn files_and_keys_commit_together() {
    let b = Both::new();
    let rows = b.w.db.open_dictionary("rows").unwrap();
    let (id, t) = b.begin();
    make(&t, ROOT, "f", b"content");
    b.views.transaction(id).unwrap().put(rows.id(), "f", "a row").unwrap();
    assert_eq!(b.get(rows.id(), "f"), None);
    b.commit(id);
    assert_eq!(b.get(rows.id(), "f").as_deref(), Some(&b"a row"[..]));
    assert_eq!(b.w.contents("f"), b"content");
    // A conflict on the key also aborts the change of the file.
    let (id, t) = b.begin();
    make(&t, ROOT, "g", b"content");
    b.views.transaction(id).unwrap().put(rows.id(), "f", "another").unwrap();
    b.insert(rows.id(), "f", "theirs");
    b.conflicts(id);
    assert!(!b.w.exists("g"));
}

/// A cache that takes a minute to hand over its data.
struct Slow(Arc<Simulated>, Kvdb);

impl Watcher for Slow {
    fn write_back(&self, _: Wait) -> Result<(), String> {
        self.0.advance(Duration::from_secs(60));
        // The store has no threads of its own: a step ends idle transactions.
        self.1.step().map(drop).map_err(|e| e.to_string())
    }
    fn appeared(&self, _: &ViewId) {}
    fn ended(&self, _: &ViewId, _: u16, _: &Fs, _: Option<CommittedTo<'_>>) {}
    fn changed(&self, _: u16, _: &Fs, _: &ChangeSet) {}
}

#[test]
fn a_transaction_does_not_end_by_its_idle_limit_while_it_is_reviewed_or_commits() {
    let env = Arc::new(Simulated::new(1));
    let device = Arc::new(MemoryDevice::new());
    let db = Kvdb::create(device, env.clone(), CreateOptions::default()).unwrap();
    let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap();
    let views = Views::new(db.clone(), fs.clone());
    let limited = || TransactionOptions {
        idle_limit: Some(Duration::from_secs(10)),
        detached: true,
        ..TransactionOptions::default()
    };
    let (id, other) = (views.begin(limited()).unwrap(), views.begin(limited()).unwrap());
    make(&views.fs(&ViewId::Transaction(id)).unwrap(), ROOT, "made", b"content");
    let watcher: Arc<dyn Watcher> = Arc::new(Slow(env, db));
    views.watch(&watcher);
    assert_ne!(views.difference(id, Default::default()).unwrap().len(), 0);
    assert!(views.transaction(other).is_err(), "it was idle");
    views.commit(id, Durability::Buffered).unwrap();
    assert_eq!(read(&fs, "/made").as_deref(), Some(&b"content"[..]));
}

/// Records its notifications.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Watcher for Notes {
    fn write_back(&self, _wait: Wait) -> Result<(), String> {
        self.0.lock().push("write back".into());
        Ok(())
    }
    fn appeared(&self, view: &ViewId) {
        self.0.lock().push(format!("appeared {view:?}"));
    }
    fn ended(&self, view: &ViewId, number: u16, _fs: &Fs, committed: Option<CommittedTo<'_>>) {
        let touched = committed.map(|to| {
            let t = to.changes;
            let names: BTreeSet<_> = t
                .names
                .iter()
                .map(|(p, n, gone)| {
                    format!("{p}/{}{}", n.escape_ascii(), if *gone { "-" } else { "+" })
                })
                .collect();
            let inodes: BTreeSet<_> = t.inodes.iter().copied().collect();
            format!("{names:?} {inodes:?}")
        });
        self.0.lock().push(format!("ended {view:?} {number} {touched:?}"));
    }
    fn changed(&self, number: u16, _fs: &Fs, touched: &ChangeSet) {
        self.0.lock().push(format!("changed {number} {:?}", touched.names));
    }
}

#[test]
fn watchers_are_told_what_changed() {
    let b = Both::new();
    let f = b.w.file_with(ROOT, "f", b"1");
    let g = b.w.file_with(ROOT, "g", b"1");
    let notes = Arc::new(Notes::default());
    let watcher: Arc<dyn Watcher> = notes.clone();
    b.views.watch(&watcher);
    let told = |b: &Both, id: TransactionId| {
        let number = b.views.number(&ViewId::Transaction(id)).unwrap();
        assert_eq!(u64::from(number), id.0 + b.views.clones().len() as u64);
        std::mem::take(&mut *notes.0.lock())
    };
    let (id, t) = b.begin();
    assert_eq!(told(&b, id), ["write back".to_string(), format!("appeared Transaction({id:?})")]);
    t.write(f, 0, b"2", Default::default()).unwrap();
    t.unlink(ROOT, b"g").unwrap();
    b.commit(id);
    let first = 1 + b.views.clones().len() + around().iter().count();
    let expected = format!(
        "ended Transaction({id:?}) {first} Some(\"{{\\\"1/g-\\\"}} {{({ROOT}, false), ({f}, false), ({g}, true)}}\")"
    );
    assert_eq!(*notes.0.lock(), ["write back".to_string(), expected]);
    notes.0.lock().clear();
    let (id, _) = b.begin();
    told(&b, id);
    b.views.abort(id).unwrap();
    assert_eq!(*notes.0.lock(), [format!("ended Transaction({id:?}) {} None", first + 1)]);
}

#[test]
fn beginning_and_ending_cost_nothing_to_speak_of() {
    let b = Both::new();
    let (mut open, before) = (Vec::new(), b.views.all());
    for _ in 0..200 {
        open.push(b.begin());
    }
    assert_eq!(b.views.all().len(), before.len() + 200);
    for (id, t) in open {
        t.lookup(ROOT, b"nothing").unwrap_err();
        b.views.abort(id).unwrap();
    }
    assert_eq!(b.views.all(), before);
}

#[test]
fn serializable_views_see_what_is_committed_now() {
    if around().is_some() {
        return;
    }
    let b = Both::new();
    let id = b
        .views
        .begin(TransactionOptions { isolation: Isolation::Serializable, ..of_branch() })
        .unwrap();
    let t = b.views.fs(&ViewId::Transaction(id)).unwrap();
    b.w.file_with(ROOT, "f", b"later");
    b.w.fs.sync_all().unwrap();
    assert_eq!(read(&t, "f").unwrap(), b"later");
    make(&t, ROOT, "g", b"mine");
    b.commit(id);
    assert_eq!(b.w.contents("g"), b"mine");
}

impl Both {
    fn begin_serializable(&self) -> (TransactionId, Fs) {
        let options = TransactionOptions {
            isolation: Isolation::Serializable,
            lock_timeout: std::time::Duration::ZERO,
            ..of_branch()
        };
        let id = self.views.begin(options).unwrap();
        (id, self.views.fs(&ViewId::Transaction(id)).unwrap())
    }
}

#[test]
fn what_a_serializable_transaction_has_read_stays_as_it_is() {
    if around().is_some() {
        return;
    }
    let b = Both::new();
    let dir = b.w.dir(ROOT, "dir");
    let (f, g) = (b.w.file_with(dir, "f", b"read"), b.w.file_with(dir, "g", b"not read"));
    let (id, t) = b.begin_serializable();
    assert_eq!(read(&t, "dir/f").unwrap(), b"read");
    assert!(read(&t, "dir/none").is_none());
    // No call waits here: this world has one thread.
    fails(b.w.fs.write(f, 0, b"changed", Default::default()), libc::EDEADLK);
    fails(b.w.fs.setattr(f, &SetAttr { size: Some(0), ..Default::default() }, USER), libc::EDEADLK);
    fails(b.w.fs.unlink(dir, b"f"), libc::EDEADLK);
    fails(b.w.fs.mknod(dir, b"none", FileKind::File, 0o644, 0, USER), libc::EDEADLK);
    // Data that it has not read is free, including names in a directory that it has only walked
    // through.
    b.w.write(g, 0, b"changed");
    b.w.file_with(dir, "other", b"");
    b.w.fs.sync_all().unwrap();
    b.w.check();
    b.commit(id);
    b.w.write(f, 0, b"changed");
    b.w.file_with(dir, "none", b"");
}

#[test]
fn what_a_serializable_transaction_has_listed_stays_as_it_is() {
    if around().is_some() {
        return;
    }
    let b = Both::new();
    let dir = b.w.dir(ROOT, "dir");
    let (id, t) = b.begin_serializable();
    assert!(names(&t, dir).is_empty());
    fails(b.w.fs.mknod(dir, b"phantom", FileKind::File, 0o644, 0, USER), libc::EDEADLK);
    b.views.abort(id).unwrap();
    b.w.file(dir, "phantom");
}

#[test]
fn what_was_accepted_before_a_serializable_transaction_read_the_file_is_read_by_it_and_does_not_linger()
 {
    if around().is_some() {
        return;
    }
    let mut b = Both::new();
    let f = b.w.file_with(ROOT, "f", b"old");
    let large = b.w.file_with(ROOT, "large", &[1; 50_000]);
    let tree = b.w.dir(ROOT, "tree");
    let leaf = b.w.file_with(tree, "leaf", b"old");
    let (id, t) = b.begin_serializable();
    // In memory alone so far.
    b.w.write(f, 0, b"new");
    b.w.write(large, 10_000, &[2; 20_000]);
    b.w.write(leaf, 0, b"new");
    assert_eq!(read(&t, "f").unwrap(), b"new", "it reads the store as it is now");
    assert_eq!(read(&t, "large").unwrap()[9_999..10_001], [1, 2]);
    t.clone_tree(tree, ROOT, b"copy").unwrap();
    assert_eq!(read(&t, "copy/leaf").unwrap(), b"new");
    assert_eq!(
        b.w.fs.statistics().dirty_bytes,
        0,
        "what a transaction holds never waits for its end"
    );
    for ino in [f, large, leaf] {
        b.w.fs.fsync(ino, false).unwrap();
        fails(b.w.fs.write(ino, 0, b"later", Default::default()), libc::EDEADLK);
        fails(
            b.w.fs.setattr(ino, &SetAttr { size: Some(1), ..Default::default() }, USER),
            libc::EDEADLK,
        );
    }
    assert_eq!(b.w.fs.statistics().dirty_bytes, 0);
    b.w.crash();
    assert_eq!((b.w.contents("f"), b.w.contents("tree/leaf")), (b"new".to_vec(), b"new".to_vec()));
    b.views.commit(id, Durability::Buffered).unwrap();
}

#[test]
fn attributes_of_a_directory_that_wait_are_committed_before_a_serializable_transaction_changes_it()
{
    if around().is_some() {
        return;
    }
    let b = Both::new();
    let dir = b.w.dir(ROOT, "dir");
    let (id, t) = b.begin_serializable();
    b.w.fs.setattr(dir, &SetAttr { mode: Some(0o700), ..Default::default() }, USER).unwrap();
    make(&t, dir, "made", b"1");
    b.w.fs.fsync(dir, false).unwrap();
    assert_eq!(t.getattr(dir).unwrap().perm, 0o700);
    b.commit(id);
    assert_eq!(b.w.stat("dir").perm, 0o700);
    assert_eq!(b.w.list(dir), [".", "..", "made"]);
}

#[test]
fn serializable_transactions_change_a_directory_one_after_the_other() {
    if around().is_some() {
        return;
    }
    let b = Both::new();
    let dir = b.w.dir(ROOT, "dir");
    let ((older, t1), (younger, t2)) = (b.begin_serializable(), b.begin_serializable());
    assert!(!b.w.exists("dir/a") && read(&t1, "dir/x").is_none() && read(&t2, "dir/y").is_none());
    // Both have read the directory, but need its current state to change it.
    make(&t1, dir, "a", b"1");
    fails(t2.mknod(dir, b"b", FileKind::File, 0o644, 0, USER), libc::EDEADLK);
    b.commit(older);
    make(&t2, dir, "b", b"2");
    b.commit(younger);
    assert_eq!(b.w.list(dir), [".", "..", "a", "b"]);
    assert_eq!(b.w.fs.getattr(dir).unwrap().size, 2);
}

#[test]
fn a_commit_waits_for_a_serializable_transaction_that_holds_what_it_changes() {
    if around().is_some() {
        return;
    }
    let (db, env) = (kvdb::Kvdb::in_memory(), Arc::new(env::Machine::default()));
    let views = Views::new(db.clone(), Fs::open(db, env, FsOptions::default()).unwrap());
    let fs = fs_of_branch(&views);
    let f = make(&fs, ROOT, "f", b"old");
    let serializable = TransactionOptions { isolation: Isolation::Serializable, ..of_branch() };
    let (ser, si) = (views.begin(serializable).unwrap(), views.begin(of_branch()).unwrap());
    let (s, t) =
        (views.fs(&ViewId::Transaction(ser)).unwrap(), views.fs(&ViewId::Transaction(si)).unwrap());
    assert_eq!(read(&s, "f").unwrap(), b"old");
    t.write(f, 0, b"new", Default::default()).unwrap();
    std::thread::scope(|scope| {
        let committed = scope.spawn(|| views.commit(si, Durability::Buffered));
        let written = scope.spawn(|| fs.write(f, 0, b"!", Default::default()));
        // Both wait, and keep no other from reading.
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert!(!committed.is_finished() && !written.is_finished());
        assert_eq!(read(&fs, "f").unwrap(), b"old");
        views.commit(ser, Durability::Buffered).unwrap();
        let committed = committed.join().unwrap();
        written.join().unwrap().unwrap();
        // The one that came first.
        match committed {
            Ok(()) => assert_eq!(read(&fs, "f").unwrap(), b"!ew"),
            Err(Error::Store(kvdb::Error::Conflict { .. })) => {
                assert_eq!(read(&fs, "f").unwrap(), b"!ld")
            }
            Err(e) => panic!("{e}"),
        }
    });
}

#[test]
fn a_transaction_goes_back_to_a_savepoint_with_its_files() {
    let b = Both::new();
    let f = b.w.file_with(ROOT, "f", b"old");
    let (id, t) = b.begin();
    t.write(f, 0, b"kept", Default::default()).unwrap();
    let dir = t.mkdir(ROOT, b"dir", 0o755, USER).unwrap().ino;
    let savepoint = b.views.savepoint(id).unwrap();
    t.write(f, 0, b"undone, and longer", Default::default()).unwrap();
    let made = make(&t, dir, "made", &[1; 50_000]);
    t.sync_all().unwrap();
    t.unlink(ROOT, b"f").unwrap();
    t.tmpfile(ROOT, 0o600, USER).unwrap();
    b.views.rollback_to(id, &savepoint).unwrap();
    assert_eq!(read(&t, "f").unwrap(), b"kept");
    assert!(names(&t, dir).is_empty());
    fails(t.getattr(made), libc::ESTALE);
    make(&t, dir, "again", b"1");
    b.commit(id);
    assert_eq!(b.w.contents("f"), b"kept");
    assert_eq!(b.w.list(dir), [".", "..", "again"]);
}

#[test]
fn a_transaction_that_looks_for_no_conflicts_looks_for_those_over_files() {
    let b = Both::new();
    let f = b.w.file_with(ROOT, "f", b"content");
    let id = b.views.begin(TransactionOptions { check_conflicts: false, ..of_branch() }).unwrap();
    let t = b.views.fs(&ViewId::Transaction(id)).unwrap();
    assert_eq!(read(&t, "f").unwrap(), b"content");
    t.write(f, 0, b"C", Default::default()).unwrap();
    make(&t, ROOT, "new", b"n");
    let rows = b.w.db.open_dictionary("rows").unwrap();
    b.views.transaction(id).unwrap().put(rows.id(), "k", "v").unwrap();
    b.insert(rows.id(), "k", "others");
    b.commit(id);
    assert_eq!(b.get(rows.id(), "k").as_deref(), Some(&b"v"[..]), "the last wins");
    assert_eq!(b.w.contents("f"), b"Content");
    assert_eq!(b.w.contents("new"), b"n");

    let id = b.views.begin(TransactionOptions { check_conflicts: false, ..of_branch() }).unwrap();
    let t = b.views.fs(&ViewId::Transaction(id)).unwrap();
    t.write(f, 0, b"x", Default::default()).unwrap();
    b.w.write(f, 0, b"y");
    let ended = b.views.commit(id, Durability::Buffered);
    assert!(matches!(ended, Err(kvfs::Error::Store(kvdb::Error::Conflict { .. }))), "{ended:?}");
    assert_eq!(b.w.contents("f"), b"yontent");
}

#[test]
fn a_serializable_transaction_goes_back_to_a_savepoint_whatever_others_have_locked() {
    if around().is_some() {
        return;
    }
    let both = Both::new();
    let dir = both.w.dir(ROOT, "dir");
    let begin = || {
        let options = TransactionOptions {
            isolation: Isolation::Serializable,
            lock_timeout: std::time::Duration::ZERO,
            ..of_branch()
        };
        let id = both.views.begin(options).unwrap();
        (id, both.views.fs(&ViewId::Transaction(id)).unwrap())
    };
    let ((_, one), (id, two)) = (begin(), begin());
    // Both have walked through the directory; only one of them changes it.
    let savepoint = both.views.savepoint(id).unwrap();
    assert!(two.resolve(b"/dir/none").is_err());
    make(&two, ROOT, "mine", b"");
    make(&one, dir, "theirs", b"");
    both.views.rollback_to(id, &savepoint).unwrap();
    assert!(read(&two, "/mine").is_none());
    assert!(two.resolve(b"/dir").is_ok());
    both.commit(id);
}

#[test]
fn the_number_of_a_view_that_has_ended_is_not_given_again_while_the_kernel_refers_to_it() {
    let b = Both::new();
    let f = b.w.file_with(ROOT, "f", b"content");
    // One view ends while the kernel has no reference into it, the other while the kernel has a
    // file and the root.
    let numbers = |round: u32| {
        let id = b.views.begin(of_branch()).unwrap();
        let number = b.views.number(&ViewId::Transaction(id)).unwrap();
        assert!(round < 2 * u32::from(Views::MAX_NUMBER), "it goes round");
        b.views.abort(id).unwrap();
        number
    };
    let (id, t) = b.begin();
    let held = b.views.number(&ViewId::Transaction(id)).unwrap();
    for ino in [
        t.lookup(ROOT, b"f").unwrap().ino,
        t.lookup(ROOT, b"f").unwrap().ino,
        t.lookup(ROOT, b".").unwrap().ino,
    ] {
        assert!([f, ROOT].contains(&ino));
    }
    b.views.commit(id, Durability::Buffered).unwrap();
    assert!(b.views.by_number(held).is_none(), "stale");
    let mut seen = BTreeSet::new();
    for round in 0..=u32::from(Views::MAX_NUMBER) {
        let number = numbers(round);
        assert_ne!(number, held, "the kernel has a file of it open");
        seen.insert(number);
    }
    let of_suite = b.views.clones().len() + b.views.list().len();
    let free = usize::from(Views::MAX_NUMBER) - 1 - of_suite;
    assert_eq!(seen.len(), free, "all others are free");
    b.views.forget(held, f, 1);
    b.views.forget(held, ROOT, 1);
    assert!(
        (0..u32::from(Views::MAX_NUMBER)).all(|round| numbers(round) != held),
        "one reference is left"
    );
    b.views.forget(held, f, 1);
    assert!(
        (0..u32::from(Views::MAX_NUMBER)).any(|round| numbers(round) == held),
        "it is free again"
    );
}
