//! Tests of power cuts at every device operation of a merge and of a rebase. Its effect exists
//! whole or not at all, the other side is unchanged, and the operation can be repeated.

use std::sync::Arc;

use crate::world::USER;
use env::Simulated;
use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions, Settled};
use kvfs::{FileKind, Fs, FsOptions, MergeOptions, ROOT, RenameFlags, ViewId, Views};
use zones::{CrashDevice, Device};

fn options() -> OpenOptions {
    OpenOptions { memory: 4 << 20, threads: false, zero_journal: false, ..Default::default() }
}

fn views(db: &Kvdb) -> Views {
    let fs = Fs::open(db.clone(), Arc::new(Simulated::new(5)), FsOptions::default());
    Views::new(db.clone(), fs.expect("opened"))
}

fn file(fs: &Fs, name: &[u8], data: &[u8]) {
    let made = fs.mknod(ROOT, name, FileKind::File, 0o644, 0, USER).expect("made");
    fs.write(made.ino, 0, data, Default::default()).expect("written");
    fs.forget(made.ino, 1);
}

/// Names and contents, and the keys of `d`.
fn state(views: &Views, db: &Kvdb, branch: &str) -> Vec<(String, Vec<u8>)> {
    let fs = views.fs(&ViewId::of_branch(branch)).expect("there");
    let mut all = Vec::new();
    let mut entries = Vec::new();
    fs.readdir(ROOT, 2, false, &mut |e| {
        entries.push((String::from_utf8_lossy(e.name).into_owned(), e.ino));
        true
    })
    .expect("listed");
    for (name, ino) in entries {
        let attr = fs.getattr(ino).expect("there");
        let data = match attr.kind {
            FileKind::File => fs.read(ino, 0, attr.size as u32).expect("read").to_vec(),
            _ => Vec::new(),
        };
        all.push((name, data));
    }
    if let Some(dict) = db.dictionary_in(branch, "d") {
        for (key, value) in db.view().scan(dict, b"", b"", 100).expect("read") {
            all.push((format!("key {}", String::from_utf8_lossy(&key)), value.to_vec()));
        }
    }
    all.sort();
    all
}

/// A store with a clone `c`, and changes on both sides.
fn prepare(device: Arc<dyn Device>) -> (Kvdb, Views) {
    let create = CreateOptions { open: options(), ..Default::default() };
    let db = Kvdb::create(device, Arc::new(Simulated::new(1)), create).expect("a store");
    let views = views(&db);
    let main = views.mainline().clone();
    file(&main, b"kept", b"kept");
    file(&main, b"large", &[7; 100_000]);
    file(&main, b"gone", &[8; 50_000]);
    main.mkdir(ROOT, b"dir", 0o755, USER).expect("made");
    let d = db.open_dictionary("d").expect("made").id();
    db.put(d, b"k", b"base", Durability::Buffered).expect("put");
    views.snapshot(&ViewId::Mainline, "s", Durability::Buffered).expect("made");
    views.clone_snapshot("s", "c").expect("made");
    views.drop_snapshot("s").expect("dropped");
    let clone = views.fs(&ViewId::Clone("c".into())).expect("there");
    let large = clone.resolve(b"large").expect("there").ino;
    clone.write(large, 40_000, &[9; 9000], Default::default()).expect("written");
    clone.unlink(ROOT, b"gone").expect("removed");
    clone.rename(ROOT, b"dir", ROOT, b"moved", RenameFlags::default()).expect("moved");
    file(&clone, b"new", &[3; 70_000]);
    let dict = db.dictionary_in("c", "d").expect("there");
    db.put(dict, b"k", b"clone", Durability::Buffered).expect("put");
    let made = db.open_dictionary_in("c", "made").expect("made").id();
    db.put(made, b"k", b"made", Durability::Buffered).expect("put");
    file(&main, b"main", &[1; 20_000]);
    views.sync_all().expect("synced");
    db.flush().expect("flushed");
    (db, views)
}

fn merge(views: &Views, rebase: bool) -> kvfs::Result<()> {
    let options = MergeOptions { clone: "c".into(), rebase, ..Default::default() };
    let merged = views.merge(&options, &|_, _| Settled::Conflict)?;
    assert_eq!(merged.conflicts, []);
    views.commit(merged.transaction, Durability::Synced)
}

fn cut_everywhere(rebase: bool) {
    let (from, into) = if rebase { ("", "c") } else { ("c", "") };
    let device = Arc::new(CrashDevice::new());
    let (db, store) = prepare(device.clone());
    let before = [from, into].map(|branch| state(&store, &db, branch));
    let operations = device.operations();
    merge(&store, rebase).expect("merged");
    let all = device.operations() - operations;
    let after = state(&store, &db, into);
    assert_eq!(state(&store, &db, from), before[0]);
    assert_ne!(after, before[1]);
    let (mut merged, mut not) = (0, 0);
    for cut in 0..=all {
        let device = Arc::new(CrashDevice::new());
        let (db, store) = prepare(device.clone());
        device.cut_power_after(cut);
        let done = merge(&store, rebase).is_ok();
        drop((store, db));
        let image = Arc::new(device.crash(cut));
        let (db, _) = Kvdb::open(image, Arc::new(Simulated::new(2)), options()).expect("opened");
        let store = views(&db);
        assert_eq!(state(&store, &db, from), before[0], "cut after {cut} of {all}");
        let now = state(&store, &db, into);
        assert!(now == after || now == before[1], "cut after {cut} of {all}: {:?}", names(&now));
        assert!(!done || now == after, "cut after {cut} of {all}: it was synced");
        merged += usize::from(now == after);
        not += usize::from(now != after);
        // Merges again, and once more. This changes nothing.
        for _ in 0..2 {
            merge(&store, rebase).expect("merged");
            assert_eq!(state(&store, &db, into), after, "cut after {cut} of {all}");
        }
        for branch in [from, into] {
            let fs = store.fs(&ViewId::of_branch(branch)).expect("there");
            assert_eq!(fs.verify().expect("verified").findings, [], "cut after {cut} of {all}");
        }
        store.drop_clone("c").expect("dropped");
        assert_eq!(store.snapshots(), []);
    }
    assert!(merged > 0 && not > 0, "{merged} merged, {not} not, of {all}");
}

fn names(state: &[(String, Vec<u8>)]) -> Vec<&str> {
    state.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn of_a_merge() {
    cut_everywhere(false);
}

#[test]
fn of_a_rebase() {
    cut_everywhere(true);
}
