//! Tests of durable transactions over files. After a restart the view exists again, with everything
//! that was written in it.

use std::sync::Arc;

use env::Simulated;
use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions, TransactionOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT, ViewId, Views};
use zones::{CrashDevice, Device, MemoryDevice};

fn open<D: Device + 'static>(device: &Arc<D>, fresh: bool) -> (Kvdb, Fs, Views) {
    let env = Arc::new(Simulated::new(7));
    let options =
        OpenOptions { memory: 16 << 20, threads: false, zero_journal: false, ..Default::default() };
    let db = match fresh {
        true => Kvdb::create(
            device.clone(),
            env.clone(),
            CreateOptions { open: options, ..Default::default() },
        )
        .unwrap(),
        false => Kvdb::open(device.clone(), env.clone(), options).unwrap().0,
    };
    let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
    let views = Views::new(db.clone(), fs.clone());
    (db, fs, views)
}

fn file(fs: &Fs, parent: Ino, name: &str, data: &[u8]) -> Ino {
    let ino =
        fs.mknod(parent, name.as_bytes(), FileKind::File, 0o644, 0, Caller::default()).unwrap().ino;
    assert_eq!(fs.write(ino, 0, data, Default::default()).unwrap() as usize, data.len());
    ino
}

fn content(fs: &Fs, path: &str) -> Vec<u8> {
    let attr = fs.resolve(path.as_bytes()).unwrap();
    fs.read(attr.ino, 0, attr.size as u32).unwrap().to_vec()
}

#[test]
fn a_view_goes_on_after_a_crash_and_its_commit_meets_no_strangers() {
    let device = Arc::new(MemoryDevice::new());
    let (db, fs, views) = open(&device, true);
    file(&fs, ROOT, "before", b"before");
    let id = views.begin(TransactionOptions { durable: true, ..Default::default() }).unwrap();
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    let dir = inside.mkdir(ROOT, b"dir", 0o755, Caller::default()).unwrap().ino;
    file(&inside, dir, "new", &[7; 20_000]);
    inside.unlink(ROOT, b"before").unwrap();
    inside.sync_all().unwrap();
    db.sync().unwrap();

    let crashed = Arc::new((*device).clone());
    let (db, fs, views) = open(&crashed, false);
    assert_eq!(content(&fs, "/before"), b"before");
    assert!(fs.resolve(b"/dir").is_err());
    // Numbers that the view has assigned are not assigned again.
    let outside = file(&fs, ROOT, "outside", b"outside");
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    assert_eq!(content(&inside, "/dir/new"), vec![7; 20_000]);
    assert!(inside.resolve(b"/before").is_err() && inside.resolve(b"/outside").is_err());
    assert_ne!(inside.resolve(b"/dir/new").unwrap().ino, outside);
    file(&inside, ROOT, "later", b"later");
    views.commit(id, Durability::Synced).unwrap();
    assert_eq!(content(&fs, "/dir/new"), vec![7; 20_000]);
    assert_eq!(
        (content(&fs, "/outside"), content(&fs, "/later")),
        (b"outside".to_vec(), b"later".to_vec())
    );
    assert!(fs.resolve(b"/before").is_err());
    fs.sync_all().unwrap();
    let report = kvfs::verify(&db).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert!(db.transactions().is_empty());
}

/// A durable transaction with a file and a key in it, none of it synced so far.
fn begun(db: &Kvdb, views: &Views) -> (kvdb::TransactionId, Fs, Ino) {
    let rows = db.open_dictionary("rows").unwrap();
    let id = views.begin(TransactionOptions { durable: true, ..Default::default() }).unwrap();
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    let small = file(&inside, ROOT, "small", b"small");
    file(&inside, ROOT, "large", &[7; 20_000]);
    views.transaction(id).unwrap().put(rows.id(), "k", "v").unwrap();
    (id, inside, small)
}

#[test]
fn what_was_written_before_it_is_kept_is_there_after_a_power_cut() {
    let device = Arc::new(CrashDevice::new());
    let (db, _, views) = open(&device, true);
    let (id, ..) = begun(&db, &views);
    views.keep(id).unwrap();

    let (db, fs, views) = open(&Arc::new(device.durable()), false);
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    assert_eq!(
        (content(&inside, "/small"), content(&inside, "/large")),
        (b"small".to_vec(), vec![7; 20_000])
    );
    views.commit(id, Durability::Synced).unwrap();
    assert_eq!(
        (content(&fs, "/small"), content(&fs, "/large")),
        (b"small".to_vec(), vec![7; 20_000])
    );
    assert_eq!(db.open_dictionary("rows").unwrap().get("k").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn what_was_synced_in_it_is_there_after_a_power_cut() {
    let device = Arc::new(CrashDevice::new());
    let (db, _, views) = open(&device, true);
    let (id, inside, small) = begun(&db, &views);
    inside.fsync(small, false).unwrap();

    let (_, _, views) = open(&Arc::new(device.durable()), false);
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    assert_eq!(content(&inside, "/small"), b"small");
}

#[test]
fn one_that_is_not_durable_is_kept_without_a_sync() {
    let device = Arc::new(CrashDevice::new());
    let (db, _, views) = open(&device, true);
    let id = views.begin(TransactionOptions::default()).unwrap();
    file(&views.fs(&ViewId::Transaction(id)).unwrap(), ROOT, "f", b"x");
    let before = db.stats().syncs;
    views.keep(id).unwrap();
    assert_eq!(db.stats().syncs, before);
    views.abort(id).unwrap();
    assert!(views.keep(id).is_err());
}

/// A command that works on the store while it is not mounted opens the files without looking at
/// transactions.
#[test]
fn what_is_made_beside_the_views_takes_no_number_of_a_transaction_that_goes_on() {
    let device = Arc::new(MemoryDevice::new());
    let (db, _, views) = open(&device, true);
    let id = views.begin(TransactionOptions { durable: true, ..Default::default() }).unwrap();
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    let mine: Vec<Ino> =
        (0..10).map(|i| file(&inside, ROOT, &format!("mine{i}"), &[7; 20_000])).collect();
    inside.sync_all().unwrap();
    db.sync().unwrap();
    let crashed = Arc::new((*device).clone());
    {
        let env = Arc::new(Simulated::new(8));
        let options = OpenOptions {
            memory: 16 << 20,
            threads: false,
            zero_journal: false,
            ..Default::default()
        };
        let db = Kvdb::open(crashed.clone(), env.clone(), options).unwrap().0;
        let fs = Fs::open(db, env, FsOptions::default()).unwrap();
        let theirs: Vec<Ino> =
            (0..10).map(|i| file(&fs, ROOT, &format!("theirs{i}"), &[8; 20_000])).collect();
        assert!(theirs.iter().all(|ino| !mine.contains(ino)), "{theirs:?} and {mine:?}");
        fs.shutdown().unwrap();
    }
    let (db, fs, views) = open(&crashed, false);
    views.commit(id, Durability::Synced).unwrap();
    for i in 0..10 {
        assert_eq!(content(&fs, &format!("/mine{i}")), vec![7; 20_000]);
        assert_eq!(content(&fs, &format!("/theirs{i}")), vec![8; 20_000]);
    }
    let report = kvfs::verify(&db).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// The rollback is on disk at once. A transaction that it has ended must not return when the power
/// fails right afterwards.
#[test]
fn a_transaction_that_a_rollback_has_ended_does_not_go_on_after_a_power_cut() {
    ended_by_a_rollback(|_, _| {});
}

/// The same holds for a transaction that had ended before it, without a sync.
#[test]
fn a_transaction_that_ended_before_a_rollback_does_not_go_on_after_a_power_cut() {
    ended_by_a_rollback(|views, id| views.abort(id).unwrap());
    ended_by_a_rollback(|views, id| views.commit(id, Durability::Buffered).unwrap());
}

fn ended_by_a_rollback(before: impl Fn(&Views, kvdb::TransactionId)) {
    let device = Arc::new(CrashDevice::new());
    let env = Arc::new(Simulated::new(7));
    let options = || OpenOptions {
        memory: 16 << 20,
        threads: false,
        zero_journal: false,
        ..Default::default()
    };
    let db = Kvdb::create(
        device.clone(),
        env.clone(),
        CreateOptions { open: options(), ..Default::default() },
    )
    .unwrap();
    let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap();
    let views = Views::new(db.clone(), fs.clone());
    views.snapshot(&ViewId::Mainline, "empty", Durability::Synced).unwrap();
    let id = views.begin(TransactionOptions { durable: true, ..Default::default() }).unwrap();
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    file(&inside, ROOT, "mine", b"mine");
    inside.sync_all().unwrap();
    db.sync().unwrap();
    before(&views, id);
    views.rollback("empty").unwrap();
    assert!(db.transactions().is_empty());
    let image = Arc::new(device.durable());
    let db = Kvdb::open(image, env.clone(), options()).unwrap().0;
    assert!(db.transactions().is_empty(), "{:?}", db.transactions());
    let fs = Fs::open(db, env, FsOptions::default()).unwrap();
    assert!(fs.resolve(b"/mine").is_err());
}

#[test]
fn who_began_it_is_known_after_a_restart() {
    for user in [None, Some(0), Some(1000), Some(u32::MAX)] {
        let device = Arc::new(CrashDevice::new());
        let (_, _, views) = open(&device, true);
        let label = "of a user".to_string();
        let id = views
            .begin(TransactionOptions { durable: true, user, label, ..Default::default() })
            .unwrap();
        assert_eq!(views.user(id).unwrap(), user);
        let (_, _, views) = open(&Arc::new(device.durable()), false);
        assert_eq!(views.user(id).unwrap(), user);
        assert_eq!(views.fs(&ViewId::Transaction(id)).unwrap().user(), user);
        assert_eq!(views.list()[0].label, "of a user");
    }
}
