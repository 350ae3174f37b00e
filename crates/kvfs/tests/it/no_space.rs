//! Tests of a full store over its lifetime: it is opened again when full, also after a power cut;
//! it is filled and emptied many times without losing space; many threads use it at once. Calls
//! return ENOSPC or succeed, no call hangs, and no acknowledged data is lost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use env::{Env, Machine, Random, Simulated};
use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT, SetAttr};
use zones::{CrashDevice, Device, MemoryDevice, ZONE_SIZE};

const ZONES: u64 = 48;
const RESERVE: u64 = 8;
/// Superblock, manifest, journal, zones that are being filled, and the margin that names and data
/// are accepted with.
const OVERHEAD: u64 = 6;
const USER: Caller = Caller { uid: 1, gid: 1, pid: 1 };

fn open_options(threads: bool) -> OpenOptions {
    OpenOptions { memory: 8 << 20, threads, zero_journal: false, ..Default::default() }
}

fn fs_options() -> FsOptions {
    FsOptions { write_buffer: 4 << 20, ..Default::default() }
}

fn create(device: Arc<dyn Device>, env: Arc<dyn Env>, threads: bool) -> (Kvdb, Fs) {
    let options = CreateOptions {
        capacity: Some(ZONES * ZONE_SIZE),
        reserve_zones: RESERVE as u32,
        open: open_options(threads),
        ..CreateOptions::default()
    };
    let db = Kvdb::create(device, env.clone(), options).unwrap();
    let fs = Fs::open(db.clone(), env, fs_options()).unwrap();
    (db, fs)
}

fn content(name: &str, size: usize) -> Vec<u8> {
    let seed = name.bytes().fold(7, |sum: u64, b| sum.wrapping_mul(31).wrapping_add(u64::from(b)));
    let mut data = vec![0; size];
    Random::new(seed).fill(&mut data);
    data
}

/// The files that were written without an error, with their sizes.
type Files = BTreeMap<String, (Ino, usize)>;

/// Returns `None` if there is no space. Any other error fails the test.
fn space<T>(what: &str, result: kvfs::Result<T>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(e) if e.errno() == libc::ENOSPC => None,
        Err(e) => panic!("{what}: {e}"),
    }
}

fn put(fs: &Fs, name: &str, size: usize) -> Option<Ino> {
    let attr =
        space("making a file", fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, USER))?;
    for (n, piece) in content(name, size).chunks(1 << 20).enumerate() {
        if space("writing", fs.write(attr.ino, (n as u64) << 20, piece, Default::default()))
            .is_none()
        {
            remove(fs, name, attr.ino);
            return None;
        }
    }
    Some(attr.ino)
}

fn remove(fs: &Fs, name: &str, ino: Ino) {
    fs.unlink(ROOT, name.as_bytes())
        .unwrap_or_else(|e| panic!("removing {name} from a full store: {e}"));
    fs.forget(ino, 1);
}

fn fill(fs: &Fs, files: &mut Files, round: u64, size: usize) {
    for n in 0..1_000_000 {
        let name = format!("{size}-{round}-{n}");
        match put(fs, &name, size) {
            Some(ino) => files.insert(name, (ino, size)),
            None => return,
        };
    }
    panic!("it never gets full");
}

fn held(files: &Files) -> u64 {
    files.values().map(|(_, size)| *size as u64).sum()
}

fn verify(fs: &Fs, files: &Files, what: &str) {
    let listed = fs.getattr(ROOT).unwrap().size;
    assert_eq!(listed, files.len() as u64, "{what}: names");
    for (name, (_, size)) in files {
        let ino = fs.resolve(name.as_bytes()).unwrap_or_else(|e| panic!("{what}: {name}: {e}")).ino;
        assert!(
            fs.read(ino, 0, (*size + 1) as u32).unwrap() == content(name, *size),
            "{what}: {name}"
        );
    }
}

fn whole(db: &Kvdb) {
    let report = kvfs::verify(db).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

fn rounds() -> u64 {
    if std::env::var_os("KVFS_SEEDS").is_some() { 8 } else { 4 }
}

/// Fills the store, removes files here and there, and fills it again.
fn cycles(sizes: &[usize], order: u64) {
    let (db, fs) = create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)), false);
    let mut random = Random::new(order);
    let mut files = Files::new();
    for round in 0..rounds() {
        sizes.iter().for_each(|&size| fill(&fs, &mut files, round, size));
        let (held, usable) = (held(&files), (ZONES - RESERVE - OVERHEAD) * ZONE_SIZE);
        assert!(
            held * 100 > usable * 80,
            "order {order}, round {round}: full with {held} bytes of {usable}"
        );
        fs.sync_all().unwrap();
        assert_eq!(fs.statistics().dirty_bytes, 0, "all that was accepted is committed");
        verify(&fs, &files, &format!("round {round}"));
        let gone: Vec<String> = files.keys().filter(|_| random.one_in(2)).cloned().collect();
        for name in gone {
            let (ino, _) = files.remove(&name).unwrap();
            remove(&fs, &name, ino);
        }
    }
    fs.sync_all().unwrap();
    whole(&db);
}

#[test]
fn files_of_many_sizes_come_and_go_in_a_full_store() {
    cycles(&[3 << 20, 70_000, 1500], 3);
}

#[test]
fn small_files_come_and_go_in_a_full_store() {
    cycles(&[2000], 4);
}

/// The order in which files go decides if merges find room before they have made some.
#[test]
fn small_files_come_and_go_in_a_full_store_in_another_order() {
    let orders = if std::env::var_os("KVFS_SEEDS").is_some() { 3..=10 } else { 6..=6 };
    orders.for_each(|order| cycles(&[2000], order));
}

#[test]
fn overwriting_in_a_full_store_goes_on_or_says_no_and_loses_nothing() {
    let (db, fs) = create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(1)), false);
    let mut files = Files::new();
    fill(&fs, &mut files, 0, 300_000);
    fs.sync_all().unwrap();
    let mut versions: BTreeMap<String, Vec<u8>> =
        files.iter().map(|(n, (_, s))| (n.clone(), content(n, *s))).collect();
    let mut random = Random::new(5);
    let names: Vec<String> = files.keys().cloned().collect();
    let mut refused = 0;
    for turn in 0..3000u64 {
        let name = random.pick(&names).unwrap();
        let (ino, size) = files[name];
        let (at, len) = (random.below(size as u64 - 5000), 1 + random.below(5000) as usize);
        let data = content(&format!("{name} {turn}"), len);
        match space("overwriting", fs.write(ino, at, &data, Default::default())) {
            Some(written) => {
                assert_eq!(written as usize, len);
                versions.get_mut(name).unwrap()[at as usize..at as usize + len]
                    .copy_from_slice(&data);
            }
            None => refused += 1,
        }
        if turn % 50 == 0 && space("fsync", fs.fsync(ino, false)).is_none() {
            refused += 1;
        }
    }
    // Deleting one file makes room for what may still wait.
    let name = &names[0];
    remove(&fs, name, files[name].0);
    versions.remove(name);
    fs.sync_all().unwrap();
    for (name, data) in &versions {
        assert!(
            fs.read(files[name].0, 0, 1 << 20).unwrap() == data[..],
            "{name}; {refused} calls were refused"
        );
    }
    whole(&db);
}

#[test]
fn power_cuts_in_a_full_file_system_keep_what_was_synced() {
    for seed in 0..rounds() {
        let env = Arc::new(Simulated::new(seed));
        let mut random = Random::new(seed);
        let mut files = Files::new();
        let mut image = {
            let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
            let (_, fs) = create(device.clone(), env.clone(), false);
            fill(&fs, &mut files, 0, 400_000);
            fill(&fs, &mut files, 0, 3000);
            fs.sync_all().unwrap();
            device.crash(seed)
        };
        for life in 0..4 {
            let device = Arc::new(CrashDevice::over(image));
            let (db, _) = Kvdb::open(device.clone(), env.clone(), open_options(false))
                .unwrap_or_else(|e| {
                    panic!("seed {seed}, life {life}: a full store does not open: {e}")
                });
            let fs = Fs::open(db.clone(), env.clone(), fs_options()).unwrap();
            verify(&fs, &files, &format!("seed {seed}, life {life}"));
            // Files are removed and added, and all of it is synced. Further changes of this kind
            // are not synced.
            let names: Vec<String> = files.keys().cloned().collect();
            for name in names.iter().filter(|_| random.one_in(8)) {
                let ino = fs.lookup(ROOT, name.as_bytes()).unwrap().ino;
                remove(&fs, name, ino);
                files.remove(name);
            }
            fill(&fs, &mut files, life + 1, 400_000);
            fs.sync_all().unwrap();
            device.cut_power_after(random.below(200));
            for n in 0..50 {
                if fs
                    .mknod(ROOT, format!("lost{n}").as_bytes(), FileKind::Fifo, 0o600, 0, USER)
                    .is_err()
                    || fs.sync_all().is_err()
                {
                    break;
                }
            }
            image = device.crash(seed ^ life);
            drop((fs, db));
            let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
            assert!(report.is_clean(), "seed {seed}, life {life}: {:?}", report.faults);
            // Data that was written after the last sync may be there or not.
            let device = Arc::new(MemoryDevice::clone(&image));
            let (db, _) = Kvdb::open(device.clone(), env.clone(), open_options(false)).unwrap();
            let fs = Fs::open(db.clone(), env.clone(), fs_options()).unwrap();
            for n in 0..50 {
                let name = format!("lost{n}");
                if let Ok(attr) = fs.lookup(ROOT, name.as_bytes()) {
                    remove(&fs, &name, attr.ino);
                }
            }
            fs.shutdown().unwrap();
            whole(&db);
            drop(fs);
            db.close().unwrap();
            image = (*device).clone();
        }
    }
}

#[test]
fn many_threads_in_a_full_store_never_wait_for_ever() {
    let (db, fs) = create(Arc::new(MemoryDevice::new()), Arc::new(Machine::default()), true);
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (finished, all) = mpsc::channel();
    for thread in 0..4u64 {
        let (fs, stop, done, finished) = (fs.clone(), stop.clone(), done.clone(), finished.clone());
        std::thread::spawn(move || {
            let mut random = Random::new(thread);
            let mut files: Vec<(String, Ino, usize)> = Vec::new();
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                let size = [500, 60_000, 2 << 20][random.below(3) as usize];
                let name = format!("t{thread}-{n}");
                n += 1;
                match put(&fs, &name, size) {
                    Some(ino) => files.push((name, ino, size)),
                    None => {
                        for _ in 0..1 + random.below(6).min(files.len() as u64) {
                            if files.is_empty() {
                                break;
                            }
                            let (name, ino, size) =
                                files.swap_remove(random.below(files.len() as u64) as usize);
                            assert!(
                                fs.read(ino, 0, size as u32).unwrap() == content(&name, size),
                                "{name}"
                            );
                            if random.one_in(3) {
                                fs.setattr(
                                    ino,
                                    &SetAttr { size: Some(10), ..Default::default() },
                                    USER,
                                )
                                .unwrap();
                            }
                            remove(&fs, &name, ino);
                        }
                    }
                }
                if random.one_in(10)
                    && let Some((_, ino, _)) = files.last()
                {
                    space("fsync", fs.fsync(*ino, false));
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            for (name, ino, size) in &files {
                assert!(fs.read(*ino, 0, *size as u32).unwrap() == content(name, *size), "{name}");
            }
            finished.send(files.len()).unwrap();
        });
    }
    drop(finished);
    // Each check must find progress. A single call may take a while, but not so long.
    let (mut before, mut looks) = (0, 0);
    while looks < 2 * rounds() {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while done.load(Ordering::Relaxed) < before + 100 {
            assert!(
                std::time::Instant::now() < deadline,
                "no progress in a minute, {before} calls were done"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        before = done.load(Ordering::Relaxed);
        looks += 1;
    }
    stop.store(true, Ordering::Relaxed);
    let mut files = 0;
    for _ in 0..4 {
        files += all
            .recv_timeout(Duration::from_secs(120))
            .expect("every thread ends, and found its files right");
    }
    assert!(files > 0);
    let _ = fs.sync_all();
    assert_eq!(db.stats().failed, None);
    fs.shutdown().unwrap();
    whole(&db);
    db.close().unwrap();
}

/// Keys and files share the room of a store: what was accepted for a file is not given to keys.
#[test]
fn what_was_written_to_files_is_committed_though_keys_have_filled_the_store_since() {
    let env = Arc::new(Simulated::new(1));
    let (db, fs) = create(Arc::new(MemoryDevice::new()), env.clone(), false);
    drop(fs);
    // More than the zones that a store keeps back could take.
    let options = FsOptions { write_buffer: 256 << 20, ..FsOptions::default() };
    let fs = Fs::open(db.clone(), env, options).unwrap();
    let rows = db.open_dictionary("rows").unwrap();
    let mut files = Files::new();
    for size in [400, 3000, 50_000].into_iter().chain((0..100).map(|i| (1 << 20) + i)) {
        let name = format!("{size}");
        let ino = put(&fs, &name, size).expect("there is room");
        files.insert(name, (ino, size));
    }
    // Fills the store completely, with rows that still fit when larger ones do not.
    for len in [300_000, 20_000, 1_000, 10] {
        let refused = (0..1_000_000u64).find_map(|n| {
            let key = format!("{len}/{n}");
            rows.insert(key.clone(), content(&key, len)).err()
        });
        assert!(matches!(refused, Some(kvdb::Error::NoSpace)), "{refused:?}");
    }
    assert!(fs.statistics().dirty_bytes > 100 << 20, "all of it waits for its commit");
    fs.sync_all().unwrap();
    assert_eq!(fs.statistics().dirty_bytes, 0);
    verify(&fs, &files, "full of keys");
    whole(&db);
}

#[test]
fn a_store_says_that_it_is_tight_a_gigabyte_before_it_is_full() {
    for (capacity, tight) in [(512 << 20, true), (4 << 30, false)] {
        let env = Arc::new(Simulated::new(1));
        let options = CreateOptions {
            capacity: Some(capacity),
            reserve_zones: RESERVE as u32,
            open: open_options(false),
            ..CreateOptions::default()
        };
        let db = Kvdb::create(Arc::new(MemoryDevice::new()), env.clone(), options).unwrap();
        let fs = Fs::open(db, env, fs_options()).unwrap();
        assert_eq!(fs.is_tight(), tight, "{capacity} bytes, before anything is written");
        put(&fs, "a", 1 << 20).expect("there is room");
        assert_eq!(fs.is_tight(), tight, "{capacity} bytes");
    }
}

/// A clone that the file system does not know yet is noted when the store is opened, and that takes
/// some bytes.
#[test]
fn a_full_store_with_a_new_clone_is_opened_and_emptied() {
    let device = Arc::new(MemoryDevice::new());
    let env = Arc::new(Simulated::new(3));
    let (db, fs) = create(device.clone(), env.clone(), false);
    let files: Vec<(String, Ino)> = (0..)
        .map_while(|n| {
            let name = format!("file{n}");
            put(&fs, &name, 300_000).map(|ino| (name, ino))
        })
        .collect();
    fs.shutdown().unwrap();
    db.snapshot("origin").unwrap();
    // To the last byte that is for users.
    let words = db.open_dictionary("words").unwrap();
    let refused =
        (0..1_000_000u64).find(|n| words.insert(n.to_be_bytes().to_vec(), vec![7; 400]).is_err());
    assert!(refused.is_some(), "the store is full");
    db.clone_snapshot("origin", "unknown").unwrap();
    drop((words, fs));
    db.close().unwrap();

    let (db, _) = Kvdb::open(device, env.clone(), open_options(false)).unwrap();
    let fs = Fs::open(db.clone(), env, fs_options()).unwrap();
    db.drop_branch("unknown").unwrap();
    db.drop_snapshot("origin").unwrap();
    for (name, _) in &files {
        let ino = fs.lookup(ROOT, name.as_bytes()).unwrap().ino;
        remove(&fs, name, ino);
    }
}
