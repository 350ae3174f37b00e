//! Passes hostile stores and streams with valid checksums to everything that reads them. Whatever
//! they contain, a call succeeds or fails. It does not panic, it ends, and it takes no memory that
//! its budget does not allow.
//!
//! `KVFS_HOSTILE=100000 cargo test -p kvfs --test hostile` runs many, from the seed `KVFS_BASE` on.

mod content;
#[path = "../../../kvdb/tests/bounded/counting.rs"]
mod counting;
mod exercise;
mod image;
mod stream;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use content::Random;
use env::{Env, Simulated};
use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvfs::{Fs, FsOptions};
use zones::MemoryDevice;

/// The memory budget of the store.
const MEMORY: usize = 16 << 20;
const WRITE_BUFFER: usize = 4 << 20;
const INODES: usize = 1 << 20;
/// The time limit of a case. It is longer than any case takes on a busy machine, so a case that
/// exceeds it is stuck.
const PATIENCE: Duration = Duration::from_secs(120);

fn options() -> FsOptions {
    FsOptions { write_buffer: WRITE_BUFFER, inode_memory: INODES, ..FsOptions::default() }
}

/// A store in memory, and the device that it lies on.
fn store(seed: u64) -> (Kvdb, Arc<MemoryDevice>, Arc<dyn Env>) {
    let open = OpenOptions {
        memory: MEMORY,
        threads: false,
        zero_journal: false,
        flush_on_close: false,
        ..OpenOptions::default()
    };
    let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(seed)));
    let options = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env.clone(), options).expect("memory does not fail");
    (db, device, env)
}

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

/// Runs the cases one after the other, with a watch on time and memory.
fn run(what: &str, quick: u64, case: impl Fn(u64)) -> u64 {
    // The figures are those of the process.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let base = number("KVFS_BASE", 0);
    let (at, done) = (Arc::new(AtomicU64::new(base)), Arc::new(AtomicBool::new(false)));
    let watch = {
        let (what, at, done) = (what.to_owned(), at.clone(), done.clone());
        std::thread::spawn(move || {
            let mut since = (u64::MAX, Instant::now());
            while !done.load(Ordering::Acquire) {
                let seed = at.load(Ordering::Acquire);
                if seed != since.0 {
                    since = (seed, Instant::now());
                }
                if since.1.elapsed() > PATIENCE {
                    // Not by the macro, whose output would be kept back for the end of the test.
                    let _ = writeln!(
                        std::io::stderr(),
                        "{what}: seed {seed} does not end: KVFS_BASE={seed} KVFS_HOSTILE=1 shows it again"
                    );
                    std::process::abort();
                }
                std::thread::park_timeout(Duration::from_millis(200));
            }
        })
    };
    let cases = number("KVFS_HOSTILE", quick);
    let mut failed = Vec::new();
    for seed in base..base + cases {
        at.store(seed, Ordering::Release);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(seed)));
        if caught.is_err() {
            eprintln!("{what}: seed {seed}: KVFS_BASE={seed} KVFS_HOSTILE=1 shows it again");
            failed.push(seed);
            if failed.len() == 20 {
                break;
            }
        }
    }
    done.store(true, Ordering::Release);
    watch.thread().unpark();
    let _ = watch.join();
    assert!(failed.is_empty(), "{what}: seeds {failed:?} failed");
    cases
}

/// Runs the case, and checks that it took at most twice the memory budget, in addition to the data
/// on the device.
fn within_budget(seed: u64, device: &MemoryDevice, it: impl FnOnce()) {
    let (before, lies) = (counting::held(), device.allocated());
    let (most, ()) = counting::most_during(it);
    let taken = most.saturating_sub(before) as u64;
    let allowed =
        2 * (MEMORY + WRITE_BUFFER + INODES) as u64 + device.allocated().saturating_sub(lies);
    assert!(taken <= allowed, "seed {seed}: {taken} bytes of memory, {allowed} are allowed");
}

#[test]
fn hostile_stores_are_read_and_written() {
    run("stores", 400, |seed| {
        let mut random = Random::new(seed);
        let (db, device, env) = store(seed);
        let fs = Fs::open(db.clone(), env.clone(), options()).expect("a file system");
        let known = content::sound(&fs);
        fs.shutdown().expect("closed");
        drop(fs);
        db.snapshot("sound").expect("a snapshot");
        if !content::spoil(&mut random, &db, known.clone()) {
            return;
        }
        if random.one_in(2) {
            db.flush().expect("flushed");
        }
        db.snapshot("hostile").expect("a snapshot");
        within_budget(seed, &device, || exercise::all(&mut random, &db, &env, &known));
    });
}

#[test]
fn hostile_streams_are_received_or_refused() {
    run("streams", 300, |seed| {
        let mut random = Random::new(seed ^ 0xabcd_ef01);
        let bytes = stream::make(&mut random);
        let (db, device, env) = store(seed);
        within_budget(seed, &device, || stream::receive(&mut random, &db, &env, &bytes));
    });
}

#[test]
fn hostile_images_are_opened_or_refused() {
    let stores = image::stores();
    let opened = AtomicU64::new(0);
    let cases = run("images", 300, |seed| {
        let mut random = Random::new(seed ^ 0x1357_9bdf_0246);
        let device = Arc::new(random.pick(&stores).clone());
        image::spoil(&mut random, &device);
        within_budget(seed, &device.clone(), || {
            _ = opened.fetch_add(image::all(&mut random, device).into(), Ordering::Relaxed)
        });
    });
    // A generator whose images are all refused at opening reaches nothing.
    let opened = opened.into_inner();
    assert!(opened * 10 > cases, "{opened} of {cases} images could be opened");
}
