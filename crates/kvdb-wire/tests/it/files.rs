//! A file system over the wire equals the snapshot on the server in every name, attribute and byte,
//! under all faults of the connection.

use crate::wire;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::wire::{Cut, Proxy, Store, tree};
use kvfs::{Caller, FileKind, Fs, FsOptions, ROOT, Views};

/// Returns the file systems of the same snapshot: local, and over the wire.
fn both(store: &Store, client: &Arc<kvdb_wire::Client>) -> (Fs, Fs) {
    let views = Views::new(store.db.clone(), store.fs.clone());
    let here = views.fs(&kvfs::ViewId::Snapshot("monday".into())).unwrap();
    (here, wire::served(client, "monday"))
}

#[test]
fn a_tree_over_the_wire_is_the_tree_of_the_snapshot() {
    let store = Store::with_tree(7, 400);
    let client = store.client();
    let (here, there) = both(&store, &client);
    let (expected, found) = (tree(&here), tree(&there));
    assert!(expected.len() > 200, "{} entries", expected.len());
    assert_eq!(found, expected);
    // The second read requests only the contents of files; everything else is cached.
    let before = client.counts().requests;
    assert_eq!(tree(&there), expected);
    assert!(client.counts().requests - before <= expected.len() as u64);
}

#[test]
fn what_is_changed_after_the_snapshot_is_not_seen_over_the_wire() {
    let store = Store::with_tree(8, 100);
    let client = store.client();
    let there = wire::served(&client, "monday");
    let before = tree(&there);
    for name in [&b"new"[..], b"newer"] {
        store.fs.mknod(ROOT, name, FileKind::File, 0o644, 0, Caller::default()).unwrap();
    }
    store.fs.shutdown().unwrap();
    assert_eq!(tree(&wire::served(&client, "monday")), before);
}

#[test]
fn nothing_can_be_changed_over_the_wire() {
    let store = Store::with_tree(9, 10);
    let there = wire::served(&store.client(), "monday");
    let made = there.mknod(ROOT, b"n", FileKind::File, 0o644, 0, Caller::default());
    assert!(matches!(made, Err(kvfs::Error::ReadOnly)), "{made:?}");
    assert!(matches!(there.unlink(ROOT, b"n"), Err(kvfs::Error::ReadOnly)));
}

#[test]
fn the_first_listing_of_a_large_directory_takes_few_requests() {
    let store = Store::new();
    for i in 0..1000 {
        let name = format!("file{i:04}");
        store.fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, Caller::default()).unwrap();
    }
    store.snapshot("monday");
    let client = store.client();
    let there = wire::served(&client, "monday");
    let begun = client.counts().requests;
    assert!(begun <= 3, "{begun} requests to open it");
    let mut cookie = 0;
    let mut names = 0;
    loop {
        // Like the kernel, request some tens of entries in each call.
        let (mut taken, from) = (0, cookie);
        let mut emit = |entry: kvfs::DirEntry<'_>| {
            if taken == 30 {
                return false;
            }
            assert!(entry.attr.is_some());
            (taken, cookie, names) = (taken + 1, entry.cookie, names + 1);
            true
        };
        there.readdir(ROOT, from, true, &mut emit).unwrap();
        if taken < 30 {
            break;
        }
    }
    assert_eq!(names, 1002);
    let asked = client.counts().requests - begun;
    assert!(asked <= 10, "{asked} requests for a thousand names and nodes");
}

#[test]
fn a_connection_that_is_cut_anywhere_is_made_again_and_changes_nothing() {
    let store = Store::with_tree(10, 60);
    let expected = tree(&both(&store, &store.client()).0);
    // Each connection is cut after this number of bytes of requests or answers. A message that is
    // longer than that never gets through.
    for (cut, longest) in [(Cut::Requests, 4 << 10), (Cut::Answers, 256 << 10)] {
        let mut after = 1;
        let mut cuts = 0;
        while after < longest * 3 {
            let proxy = Proxy::new(store.path(), cut, after);
            if let Ok(client) = proxy.client()
                && let Ok(there) = wire::try_served(&client, "monday")
            {
                match wire::try_tree(&there) {
                    Ok(found) => assert_eq!(found, expected, "cut after {after}"),
                    Err(e) => assert!(after < longest, "cut after {after}: {e}"),
                }
            }
            cuts += proxy.cuts();
            after = after * 5 / 4 + 1;
        }
        assert!(cuts > 20, "{cuts} cuts");
    }
}

#[test]
fn a_server_that_is_begun_again_goes_on_with_its_clients() {
    let mut store = Store::with_tree(11, 60);
    let client = store.client();
    let (here, there) = both(&store, &client);
    let expected = tree(&here);
    drop(here);
    store.stop_serving();
    let again = {
        let there = there.clone();
        std::thread::spawn(move || tree(&there))
    };
    store.serve();
    assert_eq!(again.join().unwrap(), expected);
    assert_eq!(client.counts().connections, 2);
}

#[test]
fn a_snapshot_that_was_replaced_by_another_of_its_name_is_not_taken_for_it() {
    let mut store = Store::with_tree(12, 20);
    let client = store.client();
    let there = wire::served(&client, "monday");
    store.stop_serving();
    store.db.drop_snapshot("monday").unwrap();
    store.fs.mknod(ROOT, b"other", FileKind::File, 0o644, 0, Caller::default()).unwrap();
    store.snapshot("monday");
    store.serve();
    let found = there.lookup(ROOT, b"other");
    assert!(matches!(&found, Err(kvfs::Error::Store(kvdb::Error::NoSnapshot(_)))), "{found:?}");
}

#[test]
fn a_view_without_a_file_system_is_not_found() {
    let db = kvdb::Kvdb::in_memory();
    db.snapshot("monday").unwrap();
    let store = Store::of(db);
    let opened = wire::try_served(&store.client(), "monday");
    assert!(matches!(opened, Err(kvfs::Error::NotFound)));
    let gone = kvdb_wire::SnapshotView::open(&store.client(), "tuesday").err().unwrap();
    assert!(matches!(
        gone,
        kvdb_wire::Error::Failed(kvdb_wire::Failure {
            code: kvdb_wire::FailureCode::NoSnapshot,
            ..
        })
    ));
}

#[test]
fn many_threads_read_over_one_connection() {
    let store = Store::with_tree(13, 200);
    let client = store.client();
    let (here, _) = both(&store, &client);
    let expected = tree(&here);
    let options = FsOptions::default();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (client, expected, options) = (&client, &expected, options.clone());
            scope.spawn(move || {
                let view = kvdb_wire::SnapshotView::open(client, "monday").unwrap();
                let env = Arc::new(env::Machine::default());
                let there = Fs::served(Arc::new(view), env, options).unwrap();
                assert_eq!(&tree(&there), expected);
            });
        }
    });
    assert_eq!(client.counts().connections, 1);
}

#[test]
fn a_walk_over_many_small_directories_takes_few_requests() {
    let store = Store::new();
    let (fs, caller) = (&store.fs, Caller::default());
    for dir in 0..60 {
        let dir = fs.mkdir(ROOT, format!("dir{dir}").as_bytes(), 0o755, caller).unwrap().ino;
        for file in 0..10 {
            let name = format!("file{file}");
            fs.mknod(dir, name.as_bytes(), FileKind::File, 0o644, 0, caller).unwrap();
        }
    }
    store.snapshot("monday");
    let client = store.client();
    let there = wire::served(&client, "monday");
    let begun = client.counts().requests;
    let (mut dirs, mut found, mut next) = (vec![ROOT], 0, 0);
    while let Some(&dir) = dirs.get(next) {
        next += 1;
        let mut emit = |entry: kvfs::DirEntry<'_>| {
            assert!(entry.attr.is_some());
            found += 1;
            if entry.kind == FileKind::Dir {
                dirs.push(entry.ino);
            }
            true
        };
        there.readdir(dir, 2, true, &mut emit).unwrap();
    }
    assert_eq!(found, 60 + 600);
    let asked = client.counts().requests - begun;
    assert!(asked < 40, "{asked} requests for sixty directories");
}

#[test]
fn contents_of_small_files_come_with_those_next_to_them() {
    let store = Store::new();
    let (fs, caller) = (&store.fs, Caller::default());
    let content = |i: usize| vec![i as u8; [3000, 9000, 20_000][i % 3]];
    for i in 0..200 {
        let name = format!("file{i:03}");
        let file = fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, caller).unwrap().ino;
        fs.write(file, 0, &content(i), Default::default()).unwrap();
    }
    store.snapshot("monday");
    let client = store.client();
    let there = wire::served(&client, "monday");
    let begun = client.counts().requests;
    for i in 0..200 {
        let file = there.lookup(ROOT, format!("file{i:03}").as_bytes()).unwrap();
        assert!(there.read(file.ino, 0, file.size as u32).unwrap() == content(i), "{i}");
    }
    let asked = client.counts().requests - begun;
    assert!(asked < 60, "{asked} requests for two hundred files");
}

/// A view whose pages are here, and whose values are with a server that does not answer.
struct Deaf {
    view: kvdb_wire::SnapshotView,
    is_deaf: AtomicBool,
    asked: AtomicU64,
}

impl kvdb::ServedView for Deaf {
    fn dictionary(&self, name: &str) -> Option<kvdb::DictionaryId> {
        self.view.dictionary(name)
    }

    fn space(&self) -> kvdb::Space {
        self.view.space()
    }

    fn get_many(
        &self,
        dict: kvdb::DictionaryId,
        keys: &[&[u8]],
    ) -> kvdb::Result<Vec<Option<bytes::Bytes>>> {
        if self.is_deaf.load(Ordering::Relaxed) {
            self.asked.fetch_add(1, Ordering::Relaxed);
            return Err(kvdb::Error::Io(std::io::Error::other("no answer")));
        }
        self.view.get_many(dict, keys)
    }

    fn page(
        &self,
        dict: kvdb::DictionaryId,
        page: &kvdb::PageRequest<'_>,
    ) -> kvdb::Result<kvdb::TuplePage> {
        self.view.page(dict, page)
    }

    fn announce(&self, _: kvdb::DictionaryId, _: &[&[u8]]) {}
}

#[test]
fn a_listing_fails_with_the_first_node_that_is_not_answered() {
    let store = Store::with_tree(14, 60);
    let view = kvdb_wire::SnapshotView::open(&store.client(), "monday").unwrap();
    let deaf = Arc::new(Deaf { view, is_deaf: AtomicBool::new(false), asked: AtomicU64::new(0) });
    let env = Arc::new(env::Machine::default());
    let there = Fs::served(deaf.clone(), env, FsOptions::default()).unwrap();
    deaf.is_deaf.store(true, Ordering::Relaxed);
    let listed = there.readdir(ROOT, 0, true, &mut |_| true);
    assert!(matches!(listed, Err(kvfs::Error::Store(kvdb::Error::Io(_)))), "{listed:?}");
    assert_eq!(deaf.asked.load(Ordering::Relaxed), 1);
    deaf.is_deaf.store(false, Ordering::Relaxed);
    there.readdir(ROOT, 0, true, &mut |_| true).unwrap();
}
