//! Tests of the limits on the number of files. In the view of a transaction that has made as many
//! files as it may, or of a clone that owns as many as it may, making a file fails as on a full
//! disk. In other views it does not.

use crate::world::{USER, World};
use kvdb::{Durability, TransactionId, TransactionOptions};
use kvfs::{
    Caller, Error, FileKind, Fs, FsOptions, MergeOptions, ROOT, RenameFlags, ViewId, Views,
};

struct Both {
    w: World,
    views: Views,
}

impl Both {
    fn new() -> Both {
        let (w, views) = World::with_views(FsOptions::default());
        Both { w, views }
    }

    fn begin(&self, options: TransactionOptions) -> (TransactionId, Fs) {
        let id = self.views.begin(options).unwrap();
        (id, self.views.fs(&ViewId::Transaction(id)).unwrap())
    }

    fn of_clone(&self) -> (TransactionId, Fs) {
        self.begin(TransactionOptions { branch: "try".into(), ..Default::default() })
    }

    /// A clone of a tree of four files, which may have this many of its own.
    fn clone_with(&self, limit: u64) -> Fs {
        for name in ["a", "b", "c", "d"] {
            self.w.file_with(ROOT, name, name.as_bytes());
        }
        self.views.snapshot(&ViewId::Mainline, "monday", Durability::Synced).unwrap();
        self.views.clone_snapshot("monday", "try").unwrap();
        self.w.db.limit_files("try", Some(limit)).unwrap();
        self.views.fs(&ViewId::Clone("try".into())).unwrap()
    }
}

fn limited(files: u64) -> TransactionOptions {
    TransactionOptions { limit_of_files: Some(files), ..Default::default() }
}

fn make(fs: &Fs, name: &str) -> kvfs::Result<u64> {
    let made = fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, USER)?;
    fs.forget(made.ino, 1);
    Ok(made.ino)
}

fn remove(fs: &Fs, name: &str) {
    fs.unlink(ROOT, name.as_bytes()).unwrap();
}

/// Makes files until one is refused. Returns the number of files made.
fn fill(fs: &Fs, prefix: &str) -> usize {
    for n in 0..1000 {
        if let Err(e) = make(fs, &format!("{prefix}{n}")) {
            assert_eq!(e.errno(), libc::ENOSPC, "{e}");
            assert!(e.to_string().contains("its limit of"), "{e}");
            assert_eq!(fs.statfs().unwrap().files_free, 0);
            return n;
        }
    }
    panic!("there is no limit");
}

#[test]
fn a_transaction_makes_as_many_files_as_it_may() {
    let b = Both::new();
    let (id, inside) = b.begin(limited(10));
    assert_eq!(inside.statfs().unwrap().files_free, 10);
    inside.mkdir(ROOT, b"dir", 0o755, USER).unwrap();
    inside.symlink(ROOT, b"link", b"dir", USER).unwrap();
    assert_eq!(fill(&inside, "f"), 8, "directories and symbolic links count");
    make(&b.w.fs, "outside").unwrap();
    b.views.commit(id, Durability::Synced).unwrap();
    b.w.check();
    assert!(b.w.fs.resolve(b"f7").is_ok() && b.w.fs.resolve(b"f8").is_err());
}

#[test]
fn other_names_count_for_nothing_and_what_goes_gives_room_back() {
    let b = Both::new();
    make(&b.w.fs, "old").unwrap();
    let (id, inside) = b.begin(limited(3));
    assert_eq!(fill(&inside, "f"), 3);
    let first = inside.resolve(b"f0").unwrap().ino;
    inside.link(first, ROOT, b"again").unwrap();
    inside.rename(ROOT, b"f1", ROOT, b"g1", RenameFlags::default()).unwrap();
    // It has another name.
    remove(&inside, "f0");
    assert_eq!(fill(&inside, "x"), 0);
    remove(&inside, "again");
    assert_eq!(fill(&inside, "y"), 1);
    // One takes the place of another.
    inside.rename(ROOT, b"g1", ROOT, b"f2", RenameFlags::default()).unwrap();
    assert_eq!(fill(&inside, "z"), 1);
    // The file existed before, so removing it makes no room.
    remove(&inside, "old");
    assert_eq!(fill(&inside, "o"), 0);
    b.views.commit(id, Durability::Synced).unwrap();
    b.w.check();
}

#[test]
fn a_file_without_a_name_counts_once_it_has_one() {
    let b = Both::new();
    let (id, inside) = b.begin(limited(2));
    let nameless = inside.tmpfile(ROOT, 0o644, USER).unwrap().ino;
    assert_eq!(fill(&inside, "f"), 2);
    assert_eq!(inside.link(nameless, ROOT, b"named").unwrap_err().errno(), libc::ENOSPC);
    remove(&inside, "f0");
    inside.link(nameless, ROOT, b"named").unwrap();
    assert_eq!(fill(&inside, "g"), 0);
    b.views.commit(id, Durability::Synced).unwrap();
    b.w.check();
}

#[test]
fn copies_and_removals_of_trees_count_as_a_whole() {
    let b = Both::new();
    let dir = b.w.fs.mkdir(ROOT, b"tree", 0o755, USER).unwrap().ino;
    for n in 0..9 {
        b.w.file_with(dir, &format!("t{n}"), b"content");
    }
    let (id, inside) = b.begin(limited(25));
    let tree = inside.resolve(b"tree").unwrap().ino;
    inside.clone_tree(tree, ROOT, b"one").unwrap();
    inside.clone_tree(tree, ROOT, b"two").unwrap();
    let refused = inside.clone_tree(tree, ROOT, b"three").unwrap_err();
    assert_eq!(refused.errno(), libc::ENOSPC, "{refused}");
    assert_eq!(fill(&inside, "f"), 5);
    inside.remove_tree(ROOT, b"one").unwrap();
    assert_eq!(fill(&inside, "g"), 10);
    // Removing files of the snapshot gives no room.
    inside.remove_tree(ROOT, b"tree").unwrap();
    assert_eq!(fill(&inside, "h"), 0);
    b.views.commit(id, Durability::Synced).unwrap();
    b.w.check();
}

#[test]
fn what_goes_back_gives_room_back() {
    let b = Both::new();
    let (id, inside) = b.begin(limited(5));
    make(&inside, "kept").unwrap();
    let savepoint = b.views.savepoint(id).unwrap();
    assert_eq!(fill(&inside, "f"), 4);
    b.views.rollback_to(id, &savepoint).unwrap();
    assert_eq!(fill(&inside, "g"), 4);
    b.views.abort(id).unwrap();
    b.w.check();
}

#[test]
fn attempts_within_one_have_what_is_left_of_it() {
    let b = Both::new();
    let (outer, o) = b.begin(limited(6));
    make(&o, "own").unwrap();
    let within = || TransactionOptions { within: Some(outer), ..Default::default() };
    let (one, first) = b.begin(within());
    let (two, second) = b.begin(TransactionOptions { limit_of_files: Some(3), ..within() });
    assert_eq!((fill(&first, "one"), fill(&second, "two")), (5, 3));
    // Removing files of the surrounding transaction gives room only there.
    remove(&first, "own");
    assert_eq!(fill(&first, "more"), 1);
    remove(&second, "own");
    assert_eq!(fill(&second, "more"), 0);
    b.views.commit(one, Durability::Buffered).unwrap();
    assert_eq!(fill(&o, "o"), 0);
    let refused = b.views.commit(two, Durability::Buffered).unwrap_err();
    assert_eq!(refused.errno(), libc::ENOSPC, "{refused}");
    b.views.abort(two).unwrap();
    b.views.commit(outer, Durability::Synced).unwrap();
    b.w.check();
}

#[test]
fn a_clone_has_as_many_files_of_its_own_as_it_may() {
    let b = Both::new();
    let inside = b.clone_with(5);
    assert_eq!(fill(&inside, "f"), 5);
    assert_eq!(inside.files_of_its_own().unwrap(), 5);
    make(&b.w.fs, "outside").unwrap();
    // The snapshot keeps what it has.
    remove(&inside, "a");
    assert_eq!(fill(&inside, "g"), 0);
    remove(&inside, "f0");
    assert_eq!(fill(&inside, "h"), 1);
    b.w.db.limit_files("try", Some(7)).unwrap();
    assert_eq!(fill(&inside, "i"), 2);
    b.w.db.limit_files("try", Some(0)).unwrap();
    assert_eq!(fill(&inside, "j"), 0);
    b.w.db.limit_files("try", None).unwrap();
    for n in 0..20 {
        make(&inside, &format!("k{n}")).unwrap();
    }
    assert!(b.w.db.limit_files("nothing", Some(1)).is_err());
    assert!(b.w.db.limit_files("", Some(1)).is_err());
    b.views.shutdown().unwrap();
    b.w.check();
}

#[test]
fn the_limit_and_what_was_made_are_known_after_an_opening() {
    let b = Both::new();
    let inside = b.clone_with(5);
    for name in ["one", "two", "three"] {
        make(&inside, name).unwrap();
    }
    let (id, view) = b.begin(limited(3));
    make(&view, "made").unwrap();
    b.views.sync_all().unwrap();
    view.sync_all().unwrap();
    drop((inside, view));
    let Both { mut w, views } = b;
    drop(views);
    w.crash();
    let views = Views::new(w.db.clone(), w.fs.clone());
    let info = w.db.branches().into_iter().find(|info| info.name == "try").unwrap();
    assert_eq!(info.limit_of_files, Some(5));
    let inside = views.fs(&ViewId::Clone("try".into())).unwrap();
    assert_eq!(inside.statfs().unwrap().files_free, 2);
    remove(&inside, "one");
    assert_eq!(fill(&inside, "f"), 3);
    let view = views.fs(&ViewId::Transaction(id)).unwrap();
    assert_eq!(fill(&view, "g"), 2);
    views.shutdown().unwrap();
}

#[test]
fn a_transaction_of_a_clone_takes_what_the_clone_has_room_for() {
    let b = Both::new();
    let inside = b.clone_with(5);
    for name in ["f0", "f1", "f2"] {
        make(&inside, name).unwrap();
    }
    let (id, view) = b.of_clone();
    assert_eq!(fill(&view, "g"), 2);
    // Removing files of the clone gives the room back to the clone.
    remove(&view, "f0");
    remove(&view, "a");
    assert_eq!(fill(&view, "h"), 1);
    // The clone has no room for all of it by now.
    make(&inside, "i").unwrap();
    let refused = b.views.commit(id, Durability::Buffered).unwrap_err();
    assert_eq!(refused.errno(), libc::ENOSPC, "{refused}");
    assert!(refused.to_string().contains("clone try has reached its limit"), "{refused}");
    remove(&view, "g0");
    b.views.commit(id, Durability::Synced).unwrap();
    assert_eq!(inside.files_of_its_own().unwrap(), 5);
    assert_eq!(fill(&inside, "j"), 0);
    // At the limit, a transaction that removes as many files as it makes can commit.
    b.w.db.limit_files("try", Some(3)).unwrap();
    let (id, view) = b.of_clone();
    for name in ["f1", "f2", "g1"] {
        remove(&view, name);
    }
    make(&view, "last").unwrap();
    b.views.commit(id, Durability::Synced).unwrap();
    assert_eq!(inside.files_of_its_own().unwrap(), 3);
    b.w.check();
}

#[test]
fn an_undone_commit_gives_room_back() {
    let b = Both::new();
    let inside = b.clone_with(4);
    let options = TransactionOptions { branch: "try".into(), undoable: true, ..Default::default() };
    let (id, view) = b.begin(options);
    assert_eq!(fill(&view, "f"), 4);
    b.views.commit(id, Durability::Synced).unwrap();
    assert_eq!(fill(&inside, "g"), 0);
    let commit = b.w.db.undoable_commits().last().unwrap().number;
    let (undo, conflicts) = b.views.undo(commit, Default::default()).unwrap();
    assert!(conflicts.is_empty(), "{conflicts:?}");
    b.views.commit(undo, Durability::Synced).unwrap();
    assert_eq!(fill(&inside, "h"), 4);
    b.w.check();
}

#[test]
fn what_was_merged_is_not_of_the_clone_alone_any_more() {
    let b = Both::new();
    let inside = b.clone_with(4);
    assert_eq!(fill(&inside, "f"), 4);
    let options = MergeOptions { clone: "try".into(), ..Default::default() };
    let merged = b.views.merge(&options, &|_, _| kvdb::Settled::Conflict).unwrap();
    assert!(merged.conflicts.is_empty());
    b.views.commit(merged.transaction, Durability::Synced).unwrap();
    assert_eq!(fill(&inside, "g"), 4);
    // Files from the parent do not count as the clone's own, either.
    for n in 0..10 {
        make(&b.w.fs, &format!("theirs{n}")).unwrap();
    }
    remove(&inside, "g0");
    let options = MergeOptions { clone: "try".into(), rebase: true, ..Default::default() };
    let merged = b.views.merge(&options, &|_, _| kvdb::Settled::Conflict).unwrap();
    assert!(merged.conflicts.is_empty());
    b.views.commit(merged.transaction, Durability::Synced).unwrap();
    assert!(inside.resolve(b"theirs9").is_ok());
    assert_eq!(inside.files_of_its_own().unwrap(), 3);
    assert_eq!(fill(&inside, "h"), 1);
    b.w.check();
}

/// Threads make and remove files at once, while the files are counted again repeatedly.
#[test]
fn many_at_once_are_counted_one_by_one() {
    let b = Both::new();
    let inside = b.clone_with(40);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (inside, views) = (&inside, &b.views);
            scope.spawn(move || {
                for round in 0..100 {
                    let name = format!("t{thread}-{round}");
                    match make(inside, &name) {
                        Ok(_) if round % 3 > 0 => remove(inside, &name),
                        Ok(_) => {}
                        Err(e) => assert_eq!(e.errno(), libc::ENOSPC, "{e}"),
                    }
                    if round % 10 == thread {
                        let options =
                            TransactionOptions { branch: "try".into(), ..Default::default() };
                        let id = views.begin(options).unwrap();
                        let view = views.fs(&ViewId::Transaction(id)).unwrap();
                        let made = view.mkdir(ROOT, name.repeat(2).as_bytes(), 0o755, USER);
                        match made.and_then(|_| views.commit(id, Durability::Buffered)) {
                            Ok(()) => {}
                            Err(Error::Store(kvdb::Error::Conflict { .. })) => {}
                            Err(e) => {
                                assert_eq!(e.errno(), libc::ENOSPC, "{e}");
                                views.abort(id).unwrap();
                            }
                        }
                    }
                }
            });
        }
    });
    let counted = inside.files_of_its_own().unwrap();
    assert_eq!(counted, 40, "all threads have gone on until there was no room");
    let listed = inside.resolve(b"/").unwrap();
    assert_eq!(listed.size, counted + 4, "each of them has one name in the root");
    b.w.check();
}

#[test]
fn the_caller_needs_no_limit_to_be_told_how_many_there_are() {
    let b = Both::new();
    let inside = b.clone_with(1);
    b.w.db.limit_files("try", None).unwrap();
    inside.mkdir(ROOT, b"dir", 0o755, Caller::default()).unwrap();
    make(&inside, "file").unwrap();
    assert_eq!(inside.files_of_its_own().unwrap(), 2);
    remove(&inside, "file");
    assert_eq!(inside.files_of_its_own().unwrap(), 1);
}
