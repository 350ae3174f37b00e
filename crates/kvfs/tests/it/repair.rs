//! Tests of repairs of file systems whose blocks are intact but whose content contradicts itself in
//! every way that the hostile generator knows, and of one whose snapshots and clones share a lost
//! page.

#[path = "../hostile/content.rs"]
mod content;

use std::sync::Arc;

use env::Simulated;
use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions};
use kvfs::{Caller, Earlier, Error, FileKind, Fs, FsOptions, ROOT, ViewId, Views, WriteHints};
use zones::{Device, MemoryDevice, Purpose};

use content::Random;

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(or)
}

#[test]
fn whatever_contradicts_itself_is_a_file_system_afterwards() {
    let base = number("KVFS_BASE", 0);
    let (mut mended, mut refused) = (0, 0);
    for seed in base..base + number("KVFS_HOSTILE", 60) {
        let env = Arc::new(Simulated::new(seed));
        let db = Kvdb::in_memory();
        let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).expect("a file system");
        let known = content::sound(&fs);
        fs.shutdown().expect("synced");
        drop(fs);
        assert!(kvfs::verify(&db).expect("readable").findings.is_empty());
        if !content::spoil(&mut Random::new(seed), &db, known) {
            continue;
        }
        match kvfs::repair(&db, &*env, kvfs::Losses::Keep) {
            Ok(repaired) => mended += repaired.mended.len(),
            // A program of this version must not repair the record of another version.
            Err(e) => {
                assert!(
                    e.to_string().contains("version")
                        || e.to_string().contains("cut short")
                        || e.to_string().contains("number"),
                    "seed {seed}: {e}"
                );
                refused += 1;
                continue;
            }
        }
        let found = kvfs::verify(&db).expect("readable");
        assert!(found.findings.is_empty(), "seed {seed}: {:?}", found.findings);
        let again = kvfs::repair(&db, &*env, kvfs::Losses::Keep).expect("again");
        assert!(again.mended.is_empty(), "seed {seed}: {:?}", again.mended);
        let fs = Fs::open(db, env, FsOptions::default());
        assert!(fs.is_ok(), "seed {seed}: {:?}", fs.err());
    }
    eprintln!("{mended} findings mended, {refused} stores refused");
    assert!(mended > 50);
}

fn page(n: u64) -> Vec<u8> {
    let mut page = vec![0; 4096];
    env::Random::new(n + 1).fill(&mut page);
    page
}

fn options() -> OpenOptions {
    OpenOptions { threads: false, zero_journal: false, ..OpenOptions::default() }
}

fn open(device: &Arc<MemoryDevice>) -> (Kvdb, Views) {
    let env = Arc::new(Simulated::new(2));
    let db = Kvdb::open(device.clone(), env.clone(), options()).expect("it opens").0;
    let fs = Fs::open(db.clone(), env, FsOptions::default()).expect("a file system");
    let views = Views::new(db.clone(), fs);
    (db, views)
}

/// A store with a file of forty pages, which a snapshot and a clone of that share; page 10 was lost
/// in the store, and the store was repaired.
fn repaired() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new());
    let env = Arc::new(Simulated::new(1));
    let create = CreateOptions { open: options(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env.clone(), create).expect("a store");
    let fs = Fs::open(db.clone(), env, FsOptions::default()).expect("a file system");
    let file = fs.mknod(ROOT, b"large", FileKind::File, 0o644, 0, Caller::default());
    let file = file.expect("a file").ino;
    for n in 0..40 {
        fs.write(file, n * 4096, &page(n), WriteHints::default()).expect("written");
    }
    let views = Views::new(db.clone(), fs);
    views.snapshot(&ViewId::Mainline, "s", Durability::Synced).expect("a snapshot");
    views.clone_snapshot("s", "c").expect("a clone");
    views.shutdown().expect("synced");
    drop(views);
    db.flush().expect("flushed");
    db.close().expect("closed");
    drop(db);

    let mut bytes = vec![0; device.len().expect("a length") as usize];
    device.read_at(Purpose::Tuples, 0, &mut bytes).expect("the store");
    let needle = page(10);
    let mut struck = 0;
    for (at, window) in bytes.windows(64).enumerate() {
        if *window == needle[..64] {
            device.flip_bit(at as u64, 1);
            struck += 1;
        }
    }
    assert!(struck > 0, "the page lies in the store as it is");

    let env = Simulated::new(3);
    let db =
        Kvdb::open(device.clone(), Arc::new(Simulated::new(3)), options()).expect("it opens").0;
    let repaired = kvfs::repair(&db, &env, kvfs::Losses::Keep).expect("repaired");
    assert!(!repaired.store.removed.is_empty(), "{repaired:?}");
    assert!(kvfs::verify(&db).expect("readable").findings.is_empty());
    db.close().expect("closed");
    drop(db);
    assert!(kvdb::check(device.clone(), &mut |_, _| {}).is_clean());
    device
}

#[test]
fn a_lost_page_is_lost_for_all_snapshots_and_clones_that_share_it() {
    let device = repaired();
    let (db, views) = open(&device);
    let all = [ViewId::Mainline, ViewId::Snapshot("s".into()), ViewId::Clone("c".into())];
    for view in &all {
        let fs = views.fs(view).expect("a view");
        let file = fs.resolve(b"large").expect("the file").ino;
        let lost = fs.read(file, 10 * 4096, 4096);
        assert!(matches!(lost, Err(Error::Corrupt { .. })), "{view:?}");
        for n in [9, 11, 39] {
            assert!(
                fs.read(file, n * 4096, 4096).expect("readable")[..] == page(n)[..],
                "{view:?}"
            );
        }
    }
    // A copy from the snapshot does not replace the lost page by zeros.
    let snapshot = Earlier::Snapshot("s".into());
    views.clone_earlier(&ViewId::Mainline, &snapshot, b"large", b"again").expect("copied");
    let fs = views.fs(&ViewId::Mainline).expect("the mainline");
    let again = fs.resolve(b"again").expect("the copy").ino;
    let lost = fs.read(again, 10 * 4096, 4096);
    assert!(matches!(lost, Err(Error::Corrupt { .. })));
    assert!(fs.read(again, 0, 4096).expect("readable")[..] == page(0)[..]);
    drop(fs);
    views.shutdown().expect("synced");
    drop(views);
    db.close().expect("closed");
}

#[test]
fn a_lost_page_differs_from_zeros() {
    let device = repaired();
    let (db, views) = open(&device);
    let differs = || {
        let changes = views.difference_of_snapshots("s", None, Default::default());
        changes.expect("compared").iter().any(|change| !change.times_alone())
    };
    assert!(!differs(), "both have lost the page");
    let fs = views.fs(&ViewId::Mainline).expect("the mainline");
    let file = fs.resolve(b"large").expect("the file").ino;
    fs.write(file, 10 * 4096, &[0; 4096], WriteHints::default()).expect("written");
    fs.sync_all().expect("synced");
    assert!(differs());
    drop(fs);
    views.shutdown().expect("synced");
    drop(views);
    db.close().expect("closed");
}

#[test]
fn a_loss_is_listed_as_long_as_a_clone_or_a_snapshot_has_it() {
    let device = repaired();
    let (db, views) = open(&device);
    let mainline = views.fs(&ViewId::Mainline).expect("the mainline");
    let listed = || {
        let losses = kvfs::losses(&db).expect("readable");
        assert_eq!(mainline.losses().expect("readable"), losses);
        losses.into_iter().map(|loss| loss.what).collect::<Vec<_>>()
    };
    let file = mainline.resolve(b"large").expect("the file").ino;
    let write = |view: &ViewId| {
        let fs = views.fs(view).expect("a view");
        fs.write(file, 10 * 4096, &page(99), WriteHints::default()).expect("written");
        fs.sync_all().expect("synced");
    };
    let before = listed();
    assert!(!before.is_empty() && before.iter().all(|what| what.ends_with("of /large")));
    write(&ViewId::Mainline);
    let in_clone = listed();
    assert_eq!(in_clone.len(), before.len());
    assert!(in_clone.iter().all(|what| what.ends_with(", in clone c")), "{in_clone:?}");
    write(&ViewId::Clone("c".into()));
    let in_snapshot = listed();
    assert_eq!(in_snapshot.len(), before.len());
    assert!(in_snapshot.iter().all(|what| what.ends_with(", in snapshot s")), "{in_snapshot:?}");
    db.drop_snapshot("s").expect("dropped");
    assert_eq!(listed(), Vec::<String>::new());
    drop(mainline);
    views.shutdown().expect("synced");
    drop(views);
    db.close().expect("closed");
}

#[test]
fn what_is_accepted_reads_as_zeros_in_clones_as_well_and_is_not_listed() {
    let device = repaired();
    let env = Arc::new(Simulated::new(4));
    let db = Kvdb::open(device.clone(), env.clone(), options()).expect("it opens").0;
    kvfs::repair(&db, &*env, kvfs::Losses::Accept).expect("repaired");
    assert!(kvfs::losses(&db).expect("readable").is_empty());
    assert!(kvfs::verify(&db).expect("readable").findings.is_empty());
    db.close().expect("closed");
    drop(db);
    assert!(kvdb::check(device.clone(), &mut |_, _| {}).is_clean());

    let (db, views) = open(&device);
    for view in [ViewId::Mainline, ViewId::Clone("c".into())] {
        let fs = views.fs(&view).expect("a view");
        let file = fs.resolve(b"large").expect("the file").ino;
        let read = fs.read(file, 9 * 4096, 3 * 4096).expect("readable");
        assert!(read[..] == [page(9), vec![0; 4096], page(11)].concat()[..], "{view:?}");
    }
    // A snapshot does not change.
    let fs = views.fs(&ViewId::Snapshot("s".into())).expect("a view");
    let file = fs.resolve(b"large").expect("the file").ino;
    assert!(matches!(fs.read(file, 10 * 4096, 4096), Err(Error::Corrupt { .. })));
    drop(fs);
    views.shutdown().expect("synced");
    drop(views);
    db.close().expect("closed");
}
