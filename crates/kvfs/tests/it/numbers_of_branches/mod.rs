//! Within a store an inode number belongs to one inode, whichever branch made it and whatever has
//! happened to that branch since. Inodes with the same number in two branches have the same origin.

mod random;
mod store;

use kvdb::{Batch, Durability, Kvdb, ReceiveOptions, TransactionOptions};
use kvfs::{Error, Fs, FsOptions, Ino, ROOT, ViewId, Views};
use store::{Store, file, files, make, numbers};

/// Checks the promise of the system under test: all of these numbers are different.
fn differ(numbers: &[Ino]) {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let twice: Vec<_> = sorted.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "given twice: {twice:?}");
}

fn clone_of(views: &Views, of: &ViewId, name: &str) -> Fs {
    let snapshot = format!("origin-of-{name}");
    views.snapshot(of, &snapshot, Durability::Buffered).expect("a snapshot");
    views.clone_snapshot(&snapshot, name).expect("a clone");
    views.fs(&ViewId::Clone(name.into())).expect("its files")
}

fn is_clean(store: &Store) {
    let report = kvfs::verify(&store.db).expect("readable");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

fn begin(views: &Views, branch: &str, durable: bool) -> (kvdb::TransactionId, Fs) {
    let options = TransactionOptions { branch: branch.into(), durable, ..Default::default() };
    let id = views.begin(options).expect("begun");
    (id, views.fs(&ViewId::Transaction(id)).expect("its files"))
}

#[test]
fn the_mainline_its_clones_and_theirs_give_each_number_once() {
    for zone_size in [None, Some(0)] {
        let mut store = Store::with(FsOptions { zone_size, ..FsOptions::default() });
        let dir = store.fs.mkdir(ROOT, b"dir", 0o755, Default::default()).expect("made").ino;
        let mut numbers = files(&store.fs, dir, "before", 3);
        let a = clone_of(&store.views, &ViewId::Mainline, "a");
        let b = clone_of(&store.views, &ViewId::Mainline, "b");
        let child = clone_of(&store.views, &ViewId::Clone("a".into()), "child");
        for round in 0..50 {
            for (who, fs) in [("main", &store.fs), ("a", &a), ("b", &b), ("child", &child)] {
                numbers.extend(files(fs, dir, &format!("{who}{round}-"), 3));
                numbers.push(make(fs, ROOT, &format!("{who}{round}")));
            }
        }
        differ(&numbers);
        store.remount();
        for branch in ["", "a", "b", "child"] {
            let fs = store.views.fs(&ViewId::of_branch(branch)).expect("it is there");
            numbers.extend(files(&fs, dir, "later", 200));
        }
        differ(&numbers);
        is_clean(&store);
    }
}

#[test]
fn transactions_of_different_branches_give_each_number_once() {
    let mut store = Store::new();
    let dir = store.fs.mkdir(ROOT, b"dir", 0o755, Default::default()).expect("made").ino;
    clone_of(&store.views, &ViewId::Mainline, "a");
    let mut numbers = Vec::new();
    let mut begun = Vec::new();
    for (name, branch, durable) in
        [("m", "", false), ("n", "", true), ("x", "a", false), ("y", "a", true)]
    {
        let (id, inside) = begin(&store.views, branch, durable);
        numbers.extend(files(&inside, dir, name, 100));
        inside.sync_all().expect("written");
        begun.push((id, durable, name, branch));
    }
    differ(&numbers);
    // Durable data is there after a kill, and the numbers continue.
    store.db.sync().expect("synced");
    store.kill();
    for (id, durable, name, branch) in begun {
        assert_eq!(store.views.fs(&ViewId::Transaction(id)).is_ok(), durable, "{name}");
        if durable {
            let inside = store.views.fs(&ViewId::Transaction(id)).expect("it goes on");
            numbers.extend(files(&inside, dir, &format!("{name}-later"), 100));
            store.views.commit(id, Durability::Buffered).expect("committed");
        }
        let fs = store.views.fs(&ViewId::of_branch(branch)).expect("it is there");
        numbers.extend(files(&fs, dir, &format!("{name}-behind"), 100));
    }
    differ(&numbers);
    is_clean(&store);
}

#[test]
fn what_a_clone_gave_is_not_given_again_when_it_is_gone() {
    let mut store = Store::new();
    let mut numbers = Vec::new();
    for round in 0..6 {
        let a = clone_of(&store.views, &ViewId::Mainline, "a");
        numbers.extend(files(&a, ROOT, "in-a", 100));
        a.sync_all().expect("synced");
        store.views.drop_clone("a").expect("dropped");
        store.views.drop_snapshot("origin-of-a").expect("dropped");
        if round % 2 == 0 {
            store.kill();
        }
        numbers.extend(files(&store.fs, ROOT, &format!("main{round}-"), 3));
    }
    differ(&numbers);
}

/// A rollback does not reset the counter, neither that of the main branch nor that of a clone.
#[test]
fn what_was_given_before_a_rollback_is_not_given_again_in_any_branch() {
    for killed in [false, true] {
        let mut store = Store::new();
        let dir = store.fs.mkdir(ROOT, b"dir", 0o755, Default::default()).expect("made").ino;
        let mut numbers = files(&store.fs, dir, "before", 3);
        let a = clone_of(&store.views, &ViewId::Mainline, "a");
        numbers.extend(files(&a, dir, "a", 3));
        store.views.snapshot(&ViewId::Clone("a".into()), "of-a", Durability::Buffered).expect("s");
        numbers.extend(files(&a, dir, "since", 300));
        numbers.extend(files(&store.fs, dir, "since", 300));
        for snapshot in ["of-a", "origin-of-a"] {
            store.views.rollback(snapshot).expect("rolled back");
            if killed {
                store.db.sync().expect("synced");
                store.kill();
            }
            for branch in ["a", ""] {
                let fs = store.views.fs(&ViewId::of_branch(branch)).expect("it is there");
                numbers.extend(files(&fs, dir, &format!("after-{snapshot}"), 300));
            }
        }
        differ(&numbers);
        is_clean(&store);
    }
}

/// In a store that is not mounted, the database alone does this.
#[test]
fn a_rollback_of_a_store_that_is_not_mounted_brings_no_number_back() {
    let mut store = Store::new();
    let dir = store.fs.mkdir(ROOT, b"dir", 0o755, Default::default()).expect("made").ino;
    let mut numbers = files(&store.fs, dir, "before", 3);
    let views = &store.views;
    views.snapshot(&ViewId::Mainline, "mounted", Durability::Synced).expect("a snapshot");
    numbers.extend(files(&store.fs, dir, "since", 3));
    store.unmounted(|db| db.snapshot("unmounted").expect("a snapshot"));
    numbers.extend(files(&store.fs, dir, "later", 3));
    let kept = clone_of(&store.views, &ViewId::Mainline, "kept");
    numbers.extend(files(&kept, dir, "kept", 3));
    for snapshot in ["unmounted", "mounted", "unmounted"] {
        store.unmounted(|db| db.rollback(snapshot).expect("rolled back"));
        numbers.extend(files(&store.fs, dir, "behind", 3));
        store.remount();
        numbers.extend(files(&store.fs, dir, "behind-that", 3));
    }
    store.unmounted(|db| db.clone_snapshot("mounted", "made").expect("cloned"));
    let made = store.views.fs(&ViewId::Clone("made".into())).expect("it is there");
    numbers.extend(files(&made, dir, "made", 3));
    differ(&numbers);
    is_clean(&store);
}

/// A directory's block is noted as a whole before its node is stored. Else a kill would leave a
/// block that begins below the bound and ends above it: void at first, and valid again as soon as
/// others have been given its numbers.
#[test]
fn a_block_that_was_reserved_before_a_kill_is_no_other_ones_afterwards() {
    let mut store = Store::with(FsOptions { zone_size: Some(4 << 30), ..FsOptions::default() });
    let [a, b] = ["a", "b"].map(|name| {
        store.fs.mkdir(ROOT, name.as_bytes(), 0o755, Default::default()).expect("d").ino
    });
    let mut numbers = Vec::new();
    for round in 0..4 {
        numbers.extend(files(&store.fs, a, &format!("a{round}-"), 2));
        store.fs.sync_all().expect("synced");
        store.kill();
        let clone = clone_of(&store.views, &ViewId::Mainline, &format!("c{round}"));
        numbers.extend(files(&clone, b, "in-clone", 2));
        // More than blocks of that size hold.
        for n in 0..4 {
            let name = format!("d{round}-{n}");
            let dir = clone.mkdir(ROOT, name.as_bytes(), 0o755, Default::default()).expect("d").ino;
            numbers.push(dir);
            numbers.extend(files(&clone, dir, "f", 1));
        }
    }
    numbers.extend(files(&store.fs, a, "last", 2000));
    differ(&numbers);
    is_clean(&store);
}

/// Every number on disk is below the bound on disk, wherever the power fails.
#[test]
fn nothing_is_on_disk_with_a_number_beyond_the_bound() {
    let store = Store::new();
    let a = clone_of(&store.views, &ViewId::Mainline, "a");
    for n in 0..40 {
        let dir = [&store.fs, &a][n % 2]
            .mkdir(ROOT, format!("d{n}").as_bytes(), 0o755, Default::default())
            .expect("made")
            .ino;
        files([&store.fs, &a][n % 2], dir, "f", 300);
    }
    store.fs.sync_all().expect("synced");
    store.db.sync().expect("synced");
    for seed in 0..8 {
        let again = store.after_power_cut(seed);
        is_clean(&again);
        let before: Vec<Ino> = ["", "a"]
            .iter()
            .flat_map(|name| numbers(&again.views.fs(&ViewId::of_branch(name)).expect("there")))
            .collect();
        let new = make(&again.fs, ROOT, "new");
        assert!(!before.contains(&new), "seed {seed}: {new}");
    }
}

fn sent(store: &Store, snapshot: &str, base: Option<&str>) -> Vec<u8> {
    let mut stream = Vec::new();
    store.db.send(snapshot, base, &mut stream, None).expect("sent");
    stream
}

fn receive(branch: &str, snapshot: &str) -> ReceiveOptions {
    ReceiveOptions { branch: branch.into(), snapshot: Some(snapshot.into()), replace: true }
}

/// A store of the given number of files, and a snapshot `s` of them.
fn other(count: usize) -> Store {
    let other = Store::new();
    let dir = other.fs.mkdir(ROOT, b"theirs", 0o755, Default::default()).expect("made").ino;
    files(&other.fs, dir, "theirs", count);
    other.views.snapshot(&ViewId::Mainline, "s", Durability::Synced).expect("a snapshot");
    other
}

#[test]
fn the_counter_goes_beyond_every_number_that_is_received() {
    for mounted in [true, false] {
        let other = other(3000);
        let stream = sent(&other, "s", None);
        let most = numbers(&other.fs).into_iter().max().expect("files");
        let mut store = Store::new();
        make(&store.fs, ROOT, "ours");
        match mounted {
            true => {
                store.views.receive(&stream[..], &receive("c", "r")).expect("received");
            }
            false => store.unmounted(|db| {
                db.receive(&stream[..], &receive("c", "r")).expect("received");
            }),
        }
        let new = make(&store.fs, ROOT, "new");
        assert!(new > most, "mounted {mounted}: {new} is not above {most}");
        // The same holds after a kill, and in a received branch.
        store.db.sync().expect("synced");
        store.kill();
        let c = store.views.fs(&ViewId::Clone("c".into())).expect("it is there");
        let mut numbers = numbers(&c);
        let theirs = c.lookup(ROOT, b"theirs").expect("it is there").ino;
        numbers.push(new);
        numbers.extend(files(&c, theirs, "more", 300));
        numbers.extend(files(&store.fs, ROOT, "more", 300));
        differ(&numbers);
        is_clean(&store);
    }
}

/// Reservations of directories from there are void here, since this store may have given out the
/// numbers.
#[test]
fn reservations_of_another_store_are_void() {
    let other = other(3);
    let stream = sent(&other, "s", None);
    let mut store = Store::new();
    let mut numbers = files(&store.fs, ROOT, "ours", 500);
    store.views.receive(&stream[..], &receive("c", "r")).expect("received");
    let c = store.views.fs(&ViewId::Clone("c".into())).expect("it is there");
    let theirs = c.lookup(ROOT, b"theirs").expect("it is there").ino;
    numbers.extend(files(&c, theirs, "more", 500));
    store.kill();
    let c = store.views.fs(&ViewId::Clone("c".into())).expect("it is there");
    numbers.extend(files(&c, theirs, "still-more", 500));
    differ(&numbers);
}

/// Received snapshots have numbers that do not belong to the branch any more.
#[test]
fn a_rollback_of_what_is_mounted_after_a_receive_goes_on() {
    let other = other(3000);
    let first = sent(&other, "s", None);
    let most = numbers(&other.fs).into_iter().max().expect("files");
    let dir = other.fs.lookup(ROOT, b"theirs").expect("there").ino;
    for n in 0..3000 {
        other.fs.unlink(dir, format!("theirs{n}").as_bytes()).expect("removed");
    }
    other.views.snapshot(&ViewId::Mainline, "t", Durability::Synced).expect("a snapshot");
    let second = sent(&other, "t", Some("s"));

    let mut store = Store::new();
    make(&store.fs, ROOT, "ours");
    store.views.receive(&first[..], &receive("c", "r1")).expect("received");
    let c = store.views.fs(&ViewId::Clone("c".into())).expect("it is there");
    assert!(c.resolve(b"/theirs/theirs7").is_ok());
    store.views.receive(&second[..], &receive("c", "r2")).expect("received");
    let c = store.views.fs(&ViewId::Clone("c".into())).expect("it is there");
    assert!(c.resolve(b"/theirs/theirs7").is_err());
    let mut numbers = files(&store.fs, ROOT, "between", 300);
    numbers.extend(files(&c, dir, "between", 300));
    store.views.rollback("r1").expect("rolled back");
    // The branch was replaced, so files that were open in it are gone.
    assert!(matches!(c.resolve(b"/theirs"), Err(Error::Stale(_))));
    let c = store.views.fs(&ViewId::Clone("c".into())).expect("it is there");
    assert!(c.resolve(b"/theirs/theirs7").is_ok());
    numbers.extend(files(&c, dir, "behind", 300));
    numbers.extend(files(&store.fs, ROOT, "behind", 300));
    differ(&numbers);
    assert!(numbers.iter().all(|ino| *ino > most), "{most}");
    store.kill();
    is_clean(&store);
}

/// The main branch of a new store becomes what was sent, and is rolled back while it is mounted.
#[test]
fn the_main_branch_is_received_and_rolled_back() {
    let other = other(3000);
    let first = sent(&other, "s", None);
    let mut store = Store::new();
    make(&store.fs, ROOT, "ours");
    store.unmounted(|db| drop(db.receive(&first[..], &receive("", "r")).expect("received")));
    let dir = store.fs.lookup(ROOT, b"theirs").expect("it is there").ino;
    let mut numbers = numbers(&store.fs);
    numbers.extend(files(&store.fs, dir, "since", 100));
    store.views.rollback("r").expect("rolled back");
    numbers.extend(files(&store.fs, dir, "behind", 100));
    store.kill();
    numbers.extend(files(&store.fs, dir, "later", 100));
    differ(&numbers);
    is_clean(&store);
}

/// A stream may come from anywhere. If its numbers would leave none for this store, they do not
/// raise the counter.
#[test]
fn a_branch_with_impossible_numbers_leaves_the_others_theirs() {
    const LARGE: Ino = (1 << 48) - 2;
    let other = other(3);
    let imap = other.db.dictionary("imap").expect("there");
    let file = other.fs.resolve(b"/theirs/theirs1").expect("there").ino;
    other.fs.sync_all().expect("synced");
    let node = other.db.get(imap, &file.to_be_bytes()).expect("read").expect("there");
    let mut batch = Batch::new();
    batch.put(imap, LARGE.to_be_bytes().to_vec(), node);
    other.db.commit(batch, Durability::Synced).expect("committed");
    other.db.snapshot("bad").expect("a snapshot");
    let stream = sent(&other, "bad", None);
    for mounted in [true, false] {
        let mut store = Store::new();
        match mounted {
            true => drop(store.views.receive(&stream[..], &receive("c", "r")).expect("received")),
            false => store.unmounted(|db| {
                db.receive(&stream[..], &receive("c", "r")).expect("received");
            }),
        }
        let opened = store.views.fs(&ViewId::Clone("c".into())).map(drop);
        assert!(matches!(opened, Err(Error::Corrupt { .. })), "{opened:?}");
        assert!(make(&store.fs, ROOT, "new") < 1 << 20);
        store.views.drop_clone("c").expect("dropped");
    }
}

#[test]
fn the_branch_of_the_counter_is_not_seen() {
    let store = Store::new();
    make(&store.fs, ROOT, "f");
    let (db, views) = (&store.db, &store.views);
    assert!(db.dictionary_in(kvdb::STORE_BRANCH, "numbers").is_some(), "the scene is set");
    assert_eq!(db.branches(), []);
    assert_eq!(views.clones(), []);
    assert_eq!(views.all(), []);
    let named = |id| db.dictionaries().iter().any(|info| info.id == id);
    assert!(!named(db.dictionary_in(kvdb::STORE_BRANCH, "numbers").expect("there")));
    views.snapshot(&ViewId::Mainline, "s", Durability::Synced).expect("a snapshot");
    let state = db.open_snapshot("s").expect("a state");
    assert!(state.dictionaries().iter().all(|info| info.name != "numbers"));
    for name in [".store", ".other"] {
        assert!(views.clone_snapshot("s", name).is_err(), "{name}");
        assert!(db.create_branch(name).is_err(), "{name}");
        assert!(db.drop_branch(name).is_err(), "{name}");
        assert!(views.drop_clone(name).is_err(), "{name}");
        let view = ViewId::Clone(name.into());
        assert!(views.fs(&view).is_err(), "{name}");
        assert!(views.snapshot(&view, "t", Durability::Synced).is_err(), "{name}");
        assert!(db.snapshot_of(name, "t", Durability::Synced).is_err(), "{name}");
        let options = TransactionOptions { branch: name.into(), ..Default::default() };
        assert!(views.begin(options).is_err(), "{name}");
        assert!(views.receive(&sent(&store, "s", None)[..], &receive(name, "t")).is_err());
    }
}

#[test]
fn a_store_that_is_opened_to_be_read_is_not_changed() {
    let mut store = Store::new();
    let dir = store.fs.mkdir(ROOT, b"dir", 0o755, Default::default()).expect("made").ino;
    let old = files(&store.fs, dir, "f", 3);
    store.fs.shutdown().expect("synced");
    store.unmounted(|db| {
        let before = notes(db);
        let options = FsOptions { read_only: true, ..FsOptions::default() };
        let fs = Fs::open(db.clone(), store::environment(), options).expect("it opens");
        assert_eq!(fs.resolve(b"/dir/f1").expect("there").ino, old[1]);
        assert!(matches!(file(&fs, dir, "new"), Err(Error::ReadOnly)));
        drop(fs);
        assert_eq!(notes(db), before);
    });
}

/// Everything that the counter has noted.
fn notes(db: &Kvdb) -> Vec<(bytes::Bytes, bytes::Bytes)> {
    let notes = db.dictionary_in(kvdb::STORE_BRANCH, "numbers").expect("there");
    db.view().scan(notes, &[], &[], usize::MAX).expect("read")
}

/// Snapshots are not read again at each opening, and neither are branches that are known.
#[test]
fn an_opening_of_a_store_of_this_version_notes_nothing() {
    let mut store = Store::new();
    for n in 0..20 {
        let clone = clone_of(&store.views, &ViewId::Mainline, &format!("c{n}"));
        make(&clone, ROOT, "f");
        clone.sync_all().expect("synced");
    }
    store.fs.sync_all().expect("synced");
    store.unmounted(|db| {
        let before = notes(db);
        let fs = Fs::open(db.clone(), store::environment(), FsOptions::default()).expect("opens");
        assert_eq!(notes(db), before);
        drop(fs);
        db.drop_branch("c7").expect("dropped");
        let fs = Fs::open(db.clone(), store::environment(), FsOptions::default()).expect("opens");
        assert_eq!(notes(db).len(), before.len() - 1, "what is known of a branch goes with it");
        drop(fs);
    });
}

/// In stores of older versions each branch has counted by itself. The largest number may be in a
/// clone, in a snapshot of one, in a transaction, or in a note about a removed file.
#[test]
fn a_store_of_an_older_version_goes_on_behind_the_largest_number_of_all_branches() {
    for largest in ["mainline", "clone", "snapshot", "transaction", "note", "gone"] {
        let mut store = Store::new();
        let main = make(&store.fs, ROOT, "main");
        let a = clone_of(&store.views, &ViewId::Mainline, "a");
        make(&a, ROOT, "a");
        let mut most = Vec::new();
        match largest {
            "mainline" => most = files(&store.fs, ROOT, "most", 3000),
            "clone" => most = files(&a, ROOT, "most", 3000),
            "snapshot" | "gone" => {
                most = files(&a, ROOT, "most", 3000);
                let of = ViewId::Clone("a".into());
                store.views.snapshot(&of, "s", Durability::Buffered).expect("a snapshot");
                store.views.rollback("origin-of-a").ok();
                (0..3000).for_each(|n| {
                    a.unlink(ROOT, format!("most{n}").as_bytes()).expect("removed");
                });
                if largest == "gone" {
                    a.sync_all().expect("synced");
                    store.views.drop_clone("a").expect("dropped");
                }
            }
            "transaction" => {
                let (_, inside) = begin(&store.views, "a", true);
                most = files(&inside, ROOT, "most", 3000);
                inside.sync_all().expect("synced");
            }
            _ => {}
        }
        if largest != "gone" {
            a.sync_all().expect("synced");
        }
        store.fs.sync_all().expect("synced");
        let note = 1 << 20;
        store.unmounted(|db| {
            let branch = if largest == "note" { "a" } else { "" };
            store::make_older(db, (branch, if largest == "note" { note } else { main + 1 }));
        });
        let new = make(&store.fs, ROOT, "new");
        assert!(most.iter().all(|ino| *ino < new), "{largest}: {new}");
        assert!(largest != "note" || new >= note, "{new}");
        let mut numbers = vec![new];
        if let Ok(a) = store.views.fs(&ViewId::Clone("a".into())) {
            numbers.extend(files(&a, ROOT, "more", 300));
        }
        numbers.extend(files(&store.fs, ROOT, "more", 300));
        store.kill();
        if let Ok(a) = store.views.fs(&ViewId::Clone("a".into())) {
            numbers.extend(files(&a, ROOT, "still-more", 300));
        }
        numbers.extend(most);
        differ(&numbers);
        is_clean(&store);
    }
}

/// An older program that has opened the store since has counted by itself again.
#[test]
fn a_rollback_to_a_state_of_an_older_version_is_counted_again() {
    let mut store = Store::new();
    make(&store.fs, ROOT, "f");
    store.views.snapshot(&ViewId::Mainline, "older", Durability::Synced).expect("a snapshot");
    store.unmounted(|db| {
        store::make_older(db, ("", 1000));
        db.snapshot("s").expect("a snapshot");
    });
    let mut numbers = files(&store.fs, ROOT, "since", 300);
    let a = clone_of(&store.views, &ViewId::Mainline, "a");
    numbers.extend(files(&a, ROOT, "a", 300));
    a.sync_all().expect("synced");
    store.views.rollback("s").expect("rolled back");
    numbers.extend(files(&store.fs, ROOT, "behind", 300));
    store.kill();
    numbers.extend(files(&store.fs, ROOT, "later", 300));
    differ(&numbers);
}

/// Files that a repair makes get numbers that no branch has, and no branch gets them afterwards.
#[test]
fn a_repair_gives_numbers_that_no_branch_has() {
    let mut store = Store::new();
    let dir = store.fs.mkdir(ROOT, b"dir", 0o755, Default::default()).expect("made").ino;
    let lost = make(&store.fs, dir, "lost");
    let a = clone_of(&store.views, &ViewId::Mainline, "a");
    let mut numbers = files(&a, dir, "a", 3000);
    a.sync_all().expect("synced");
    store.fs.sync_all().expect("synced");
    store.unmounted(|db| {
        let nmap = db.dictionary("nmap").expect("there");
        let mut batch = Batch::new();
        batch.delete(nmap, [&dir.to_be_bytes()[..], b"lost"].concat());
        db.commit(batch, Durability::Synced).expect("committed");
        let repaired = kvfs::repair(db, &*store::environment(), kvfs::Losses::Keep).expect("done");
        assert!(repaired.mended.iter().any(|f| f.ino == lost), "{:?}", repaired.mended);
        let report = kvfs::verify(db).expect("readable");
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    });
    numbers.push(store.fs.lookup(ROOT, b"lost+found").expect("made").ino);
    numbers.extend(files(&store.fs, dir, "more", 300));
    let a = store.views.fs(&ViewId::Clone("a".into())).expect("it is there");
    numbers.extend(files(&a, dir, "more", 300));
    differ(&numbers);
    is_clean(&store);
}

#[test]
fn a_number_beyond_the_bound_is_found_by_a_check() {
    let store = Store::new();
    make(&store.fs, ROOT, "f");
    store.fs.sync_all().expect("synced");
    is_clean(&store);
    let notes = store.db.dictionary_in(kvdb::STORE_BRANCH, "numbers").expect("there");
    let mut batch = Batch::new();
    batch.put(notes, b"n".to_vec(), 2u64.to_le_bytes().to_vec());
    store.db.commit(batch, Durability::Synced).expect("committed");
    let found = kvfs::verify(&store.db).expect("readable").findings;
    assert!(found.iter().any(|f| f.what.contains("end before 2")), "{found:?}");
}
