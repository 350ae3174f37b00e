//! Tests of a serializable transaction that has locked a directory. It can rely on the names in it:
//! until it ends, no name is added or removed.

use std::sync::Arc;

use env::Simulated;
use kvdb::{Durability, Isolation, Kvdb, TransactionOptions};
use kvfs::{Caller, Error, FileKind, Fs, FsOptions, Ino, ROOT, Result, ViewId, Views};

fn begun(views: &Views, isolation: Isolation) -> (kvdb::TransactionId, Fs) {
    // There is only one thread, so no other could release a lock that a call waits for.
    let lock_timeout = std::time::Duration::ZERO;
    let options = TransactionOptions { isolation, lock_timeout, ..TransactionOptions::default() };
    let id = views.begin(options).unwrap();
    (id, views.fs(&ViewId::Transaction(id)).unwrap())
}

/// A mainline with the directories `/d` and `/d/below`, and the numbers of both.
fn directories() -> (Fs, Views, [Ino; 2]) {
    let (db, env) = (Kvdb::in_memory(), Arc::new(Simulated::new(1)));
    let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
    let d = fs.mkdir(ROOT, b"d", 0o755, Caller::default()).unwrap().ino;
    let below = fs.mkdir(d, b"below", 0o755, Caller::default()).unwrap().ino;
    (fs.clone(), Views::new(db, fs), [d, below])
}

fn make(fs: &Fs, parent: Ino, name: &[u8]) -> Result<Ino> {
    let made = fs.mknod(parent, name, FileKind::File, 0o644, 0, Caller::default())?;
    fs.forget(made.ino, 1);
    Ok(made.ino)
}

#[track_caller]
fn waits<T>(result: Result<T>) {
    let locked = matches!(&result, Err(Error::Store(kvdb::Error::Locked(_))));
    assert!(locked, "{:?}", result.map(drop));
}

#[test]
fn no_other_makes_or_removes_a_name_in_a_locked_directory() {
    for exclusive in [true, false] {
        let (fs, views, [d, below]) = directories();
        make(&fs, d, b"old").unwrap();
        let (id, inside) = begun(&views, Isolation::Serializable);
        inside.lock_directory(b"/d", exclusive).unwrap();
        waits(make(&fs, d, b"new"));
        waits(fs.unlink(d, b"old"));
        // Other directories are free, also those below.
        make(&fs, ROOT, b"elsewhere").unwrap();
        make(&fs, below, b"new").unwrap();
        make(&inside, d, b"own").unwrap();
        views.commit(id, Durability::Buffered).unwrap();
        fs.resolve(b"/d/own").unwrap();
        make(&fs, d, b"new").unwrap();
        fs.unlink(d, b"old").unwrap();
        assert_eq!(fs.verify().unwrap().findings, []);
    }
}

#[test]
fn a_shared_lock_of_a_directory_keeps_out_exclusive_ones_alone() {
    let (_fs, views, _) = directories();
    let (one, first) = begun(&views, Isolation::Serializable);
    let (two, second) = begun(&views, Isolation::Serializable);
    first.lock_directory(b"/d", false).unwrap();
    second.lock_directory(b"/d", false).unwrap();
    // The older one would not wait: it would end the younger one.
    waits(second.lock_directory(b"/d", true));
    views.abort(one).unwrap();
    second.lock_directory(b"/d", true).unwrap();
    views.abort(two).unwrap();
}

#[test]
fn what_is_no_directory_is_not_locked_as_one_and_snapshot_isolation_locks_nothing() {
    let (fs, views, [d, _]) = directories();
    make(&fs, d, b"file").unwrap();
    let (_, inside) = begun(&views, Isolation::Serializable);
    assert!(matches!(inside.lock_directory(b"/d/file", true), Err(Error::NotDirectory)));
    assert!(matches!(inside.lock_directory(b"/d/none", true), Err(Error::NotFound)));
    let (_, inside) = begun(&views, Isolation::Snapshot);
    for fs in [&inside, &fs] {
        assert!(matches!(fs.lock_directory(b"/d", true), Err(Error::Invalid(_))));
    }
}
