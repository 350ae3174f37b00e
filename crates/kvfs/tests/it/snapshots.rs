//! Tests of snapshots, clones and rollbacks of the file system.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::world::{USER, World, fails};
use env::Simulated;
use kvdb::{Durability, Kvdb, TransactionOptions};
use kvfs::{
    ChangeSet, CommittedTo, Error, FileKind, Fs, FsOptions, MergeOptions, ROOT, ViewId, Views,
    Wait, Watcher,
};

fn views(w: &World) -> Views {
    Views::new(w.db.clone(), w.fs.clone())
}

fn snapshot(views: &Views, name: &str) -> Fs {
    views.snapshot(&ViewId::Mainline, name, Durability::Buffered).unwrap();
    views.fs(&ViewId::Snapshot(name.into())).unwrap()
}

fn contents(fs: &Fs, path: &str) -> Vec<u8> {
    let attr = fs.resolve(path.as_bytes()).unwrap();
    fs.read(attr.ino, 0, attr.size as u32).unwrap().to_vec()
}

fn names(fs: &Fs) -> Vec<String> {
    let mut names = Vec::new();
    fs.readdir(ROOT, 2, false, &mut |e| {
        names.push(String::from_utf8_lossy(e.name).into_owned());
        true
    })
    .unwrap();
    names
}

#[test]
fn a_snapshot_has_what_was_written_before_it_and_stays_so() {
    let w = World::new();
    let views = views(&w);
    let f = w.file_with(ROOT, "f", b"monday");
    w.file_with(ROOT, "large", &[1; 100_000]);
    let monday = snapshot(&views, "monday");
    w.write(f, 0, b"friday");
    w.fs.unlink(ROOT, b"large").unwrap();
    w.file_with(ROOT, "new", b"");
    w.fs.sync_all().unwrap();
    assert_eq!(contents(&monday, "f"), b"monday");
    assert_eq!(contents(&monday, "large"), [1; 100_000]);
    assert_eq!(names(&monday), ["f", "large"]);
    fails(monday.write(f, 0, b"x", Default::default()), libc::EROFS);
    fails(monday.mknod(ROOT, b"x", FileKind::File, 0o644, 0, USER), libc::EROFS);
    fails(monday.unlink(ROOT, b"f"), libc::EROFS);
    assert_eq!(views.all(), [ViewId::Snapshot("monday".into())]);
    views.drop_snapshot("monday").unwrap();
    fails(monday.getattr(ROOT), libc::ESTALE);
    assert!(matches!(views.fs(&ViewId::Snapshot("monday".into())), Err(Error::NotFound)));
    assert_eq!(views.all(), []);
}

#[test]
fn a_clone_goes_its_own_way() {
    let w = World::new();
    let views = views(&w);
    let f = w.file_with(ROOT, "f", b"old");
    let open = w.file_with(ROOT, "open", &[1; 50_000]);
    w.fs.sync_all().unwrap();
    w.fs.unlink(ROOT, b"open").unwrap();
    snapshot(&views, "s");
    views.clone_snapshot("s", "branch").unwrap();
    let name = ViewId::Clone("branch".into());
    let branch = views.fs(&name).unwrap();
    branch.write(f, 0, b"its", Default::default()).unwrap();
    let made = branch.mkdir(ROOT, b"made", 0o755, USER).unwrap().ino;
    branch.mknod(made, b"x", FileKind::File, 0o644, 0, USER).unwrap();
    w.write(f, 0, b"our");
    w.file_with(ROOT, "other", b"");
    assert_eq!(
        (contents(&branch, "f"), names(&branch)),
        (b"its".to_vec(), vec!["f".to_string(), "made".into()])
    );
    assert_eq!((w.contents("f"), w.list(ROOT).len()), (b"our".to_vec(), 4));
    assert_eq!(w.read_all(open), [1; 50_000], "open here, and nothing there");
    let report = branch.verify().unwrap();
    assert!(report.is_clean() && report.orphans == 0 && report.pages == 0, "{report:?}");
    // It outlives its snapshot, and its view.
    views.drop_snapshot("s").unwrap();
    views.shutdown().unwrap();
    drop(views);
    let views = self::views(&w);
    let branch = views.fs(&name).unwrap();
    assert_eq!(contents(&branch, "f"), b"its");
    // The clone has snapshots of its own.
    views.snapshot(&name, "of the branch", Durability::Buffered).unwrap();
    branch.write(f, 0, b"new", Default::default()).unwrap();
    assert_eq!(
        contents(&views.fs(&ViewId::Snapshot("of the branch".into())).unwrap(), "f"),
        b"its"
    );
    views.rollback("of the branch").unwrap();
    assert_eq!((contents(&branch, "f"), w.contents("f")), (b"its".to_vec(), b"our".to_vec()));
    views.drop_clone("branch").unwrap();
    fails(branch.getattr(ROOT), libc::ESTALE);
    assert!(matches!(views.fs(&name), Err(Error::NotFound)));
    w.fs.forget(open, 1);
}

#[test]
fn a_drop_of_the_clone_without_a_name_ends_no_transaction_of_the_mainline() {
    let w = World::with(FsOptions::default());
    let views = views(&w);
    let id = views.begin(Default::default()).unwrap();
    assert!(matches!(views.drop_clone(""), Err(Error::Invalid(_))));
    assert!(views.transaction(id).is_ok());
    views.abort(id).unwrap();
}

#[test]
fn a_snapshot_of_a_clone_that_is_not_open_has_all_of_it_and_opens_no_view() {
    let w = World::new();
    let views = views(&w);
    let f = w.file_with(ROOT, "f", b"old");
    snapshot(&views, "s");
    let clones = ["a", "b", "c"];
    clones.iter().for_each(|name| views.clone_snapshot("s", name).unwrap());
    let opened = views.opened().len();
    let take = |clone: &str, name: &str| {
        views.snapshot(&ViewId::Clone(clone.into()), name, Durability::Buffered)
    };
    for name in clones {
        take(name, &format!("of {name}")).unwrap();
    }
    assert_eq!(views.opened().len(), opened);
    assert!(matches!(take("none", "of none"), Err(Error::NotFound)));
    let of = |name: &str| contents(&views.fs(&ViewId::Snapshot(name.into())).unwrap(), "f");
    assert_eq!(of("of a"), b"old");
    // The memory of an open one belongs to its snapshot.
    let open = views.fs(&ViewId::Clone("a".into())).unwrap();
    open.write(f, 0, b"new", Default::default()).unwrap();
    take("a", "of a, later").unwrap();
    assert_eq!((of("of a"), of("of a, later")), (b"old".to_vec(), b"new".to_vec()));
}

/// A cache that does not hand over its data.
struct HoldsBack;

impl Watcher for HoldsBack {
    fn write_back(&self, _: Wait) -> Result<(), String> {
        Err("it is held back".into())
    }
    fn appeared(&self, _: &ViewId) {}
    fn ended(&self, _: &ViewId, _: u16, _: &Fs, _: Option<CommittedTo<'_>>) {}
    fn changed(&self, _: u16, _: &Fs, _: &ChangeSet) {}
}

#[test]
fn a_drop_of_a_clone_that_fails_ends_no_transaction_of_the_clone() {
    let db = Kvdb::in_memory();
    let fs = Fs::open(db.clone(), Arc::new(Simulated::new(1)), FsOptions::default()).unwrap();
    let views = Views::new(db.clone(), fs);
    snapshot(&views, "s");
    views.clone_snapshot("s", "branch").unwrap();
    let options = TransactionOptions { branch: "branch".into(), ..TransactionOptions::default() };
    let id = views.begin(options).unwrap();
    let watcher: Arc<dyn Watcher> = Arc::new(HoldsBack);
    views.watch(&watcher);
    assert!(matches!(views.drop_clone("branch"), Err(Error::NotHandedOver(_))));
    assert!(views.transaction(id).is_ok());
    drop(watcher);
    db.halt("its device is gone");
    assert!(views.drop_clone("branch").is_err());
    assert!(views.transaction(id).is_ok());
}

/// A cache that counts how often it is asked for what it holds.
#[derive(Default)]
struct Asked(AtomicU64);

impl Watcher for Asked {
    fn write_back(&self, _: Wait) -> Result<(), String> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn appeared(&self, _: &ViewId) {}
    fn ended(&self, _: &ViewId, _: u16, _: &Fs, _: Option<CommittedTo<'_>>) {}
    fn changed(&self, _: u16, _: &Fs, _: &ChangeSet) {}
}

#[test]
fn a_merge_asks_caches_once_for_what_they_hold() {
    let w = World::new();
    let views = views(&w);
    let f = w.file_with(ROOT, "f", b"old");
    snapshot(&views, "s");
    views.clone_snapshot("s", "c").unwrap();
    let clone = views.fs(&ViewId::Clone("c".into())).unwrap();
    clone.write(f, 0, b"new", Default::default()).unwrap();
    let asked = Arc::new(Asked::default());
    let watcher: Arc<dyn Watcher> = asked.clone();
    views.watch(&watcher);
    let options = MergeOptions { clone: "c".into(), ..MergeOptions::default() };
    let merged = views.merge(&options, &|_, _| kvdb::Settled::Conflict).unwrap();
    assert_eq!(asked.0.load(Ordering::Relaxed), 1, "each time is a round trip through the kernel");
    assert!(merged.conflicts.is_empty());
    views.commit(merged.transaction, Durability::Buffered).unwrap();
    assert_eq!(contents(&w.fs, "f"), b"new");
}

#[test]
fn a_rollback_is_seen_by_what_is_open() {
    let w = World::with(FsOptions::default());
    let views = views(&w);
    let (f, gone) = (w.file_with(ROOT, "f", b"then"), w.file_with(ROOT, "gone", &[3; 20_000]));
    snapshot(&views, "then");
    w.write(f, 0, b"now, and longer");
    w.fs.unlink(ROOT, b"gone").unwrap();
    let made = w.file_with(ROOT, "made", &[1; 20_000]);
    w.fs.sync_all().unwrap();
    w.write(f, 2, b"not committed");
    let id = views.begin(Default::default()).unwrap();
    views.rollback("then").unwrap();
    assert_eq!(w.list(ROOT), [".", "..", "f", "gone"]);
    assert_eq!((w.read_all(f), w.read_all(gone)), (b"then".to_vec(), vec![3; 20_000]));
    fails(w.fs.getattr(made), libc::ESTALE);
    assert!(views.transaction(id).is_err(), "what it has seen is no more");
    assert_eq!(w.fs.statistics().dirty_bytes, 0);
    // Numbers are not assigned again.
    assert!(w.file(ROOT, "again") > made);
    w.check();
    assert!(matches!(views.rollback("never"), Err(Error::NotFound)));
}

#[test]
fn what_a_rollback_brings_back_shares_its_number_with_nothing_new() {
    let mut w = World::new();
    let back = w.file_with(ROOT, "back", b"monday");
    views(&w).snapshot(&ViewId::Mainline, "monday", Durability::Buffered).unwrap();
    w.fs.unlink(ROOT, b"back").unwrap();
    w.fs.forget(back, 1);
    // After it is opened again, the store knows of no number as large.
    w.remount();
    let views = views(&w);
    views.rollback("monday").unwrap();
    let new = w.file_with(ROOT, "new", b"friday");
    assert_ne!(new, w.stat("back").ino);
    assert_eq!((w.contents("back"), w.contents("new")), (b"monday".to_vec(), b"friday".to_vec()));
}

#[test]
fn what_is_open_over_a_rollback_is_never_another_file() {
    let mut w = World::new();
    let a = w.file_with(ROOT, "a", b"monday");
    views(&w).snapshot(&ViewId::Mainline, "monday", Durability::Buffered).unwrap();
    w.fs.unlink(ROOT, b"a").unwrap();
    w.fs.forget(a, 1);
    // After it is opened again, the mainline knows of no number as large.
    w.remount();
    let views = views(&w);
    let b = w.file_with(ROOT, "b", b"friday");
    views.rollback("monday").unwrap();
    fails(w.fs.write(b, 0, b"FRIDAY", Default::default()), libc::ESTALE);
    fails(w.fs.read(b, 0, 6), libc::ESTALE);
    fails(w.fs.getattr(b), libc::ESTALE);
    assert_eq!(w.contents("a"), b"monday");
    // A removed file exists again in a state that contains it.
    w.fs.forget(b, 1);
}

#[test]
fn what_a_rollback_left_behind_comes_back_with_a_later_snapshot() {
    let w = World::new();
    let views = views(&w);
    snapshot(&views, "monday");
    w.second();
    let made = w.file_with(ROOT, "made", b"tuesday");
    snapshot(&views, "tuesday");
    views.rollback("monday").unwrap();
    fails(w.fs.read(made, 0, 7), libc::ESTALE);
    views.rollback("tuesday").unwrap();
    assert_eq!((w.read_all(made), w.contents("made")), (b"tuesday".to_vec(), b"tuesday".to_vec()));
}

#[test]
fn a_clone_gives_no_number_that_a_snapshot_of_it_has() {
    let w = World::new();
    let views = views(&w);
    snapshot(&views, "s");
    views.clone_snapshot("s", "c").unwrap();
    let name = ViewId::Clone("c".into());
    let clone = views.fs(&name).unwrap();
    let a = clone.mknod(ROOT, b"a", FileKind::File, 0o644, 0, USER).unwrap().ino;
    views.snapshot(&name, "of c", Durability::Buffered).unwrap();
    clone.unlink(ROOT, b"a").unwrap();
    clone.forget(a, 1);
    views.shutdown().unwrap();
    drop((views, clone));
    let views = self::views(&w);
    let clone = views.fs(&name).unwrap();
    assert!(clone.mknod(ROOT, b"b", FileKind::File, 0o644, 0, USER).unwrap().ino > a);
}
