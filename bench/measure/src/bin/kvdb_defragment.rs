//! Measures defragmentation at size, with the run of VT-tree §4.4:
//! `cargo run --release -p measure --bin kvdb_defragment -- FILE [MiB [threshold]]`.
//! `scripts/defrag.sh` runs it for several thresholds.
//!
//! Files of 4 KiB pages are created, appended to, overwritten in places and deleted, until twice
//! MiB were written and about MiB are left; nothing is defragmented until then. Then it is
//! compacted, and all is read in the order of the keys with cold caches, the store is defragmented
//! while a client reads and writes two thousand times a second, and all is read again. Prints one
//! line of JSON.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use env::{Machine, Random};
use kvdb::{
    Batch, CreateOptions, DefragOptions, DictionaryId, DictionaryOptions, Durability, Kvdb,
    OpenOptions,
};
use zones::FileDevice;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PAGE: usize = 4096;
/// Pages of a file when it is created.
const FRESH: u64 = 32;
/// Operations of the client during the defragmentation, in a second.
const OPERATIONS: u32 = 2000;

fn key(file: u64, page: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&file.to_be_bytes());
    key[8..].copy_from_slice(&page.to_be_bytes());
    key
}

/// Files by their numbers of pages; 0: there is none.
struct Files {
    pages: Vec<u64>,
    dict: DictionaryId,
    noise: Vec<u8>,
    random: Random,
    live: u64,
}

impl Files {
    fn value(&mut self) -> Vec<u8> {
        let at = self.random.below((self.noise.len() - PAGE) as u64) as usize;
        self.noise[at..at + PAGE].to_vec()
    }

    /// One operation of a file server that only writes. Returns the number of pages written.
    fn operation(&mut self, db: &Kvdb) -> Outcome<u64> {
        let mut batch = Batch::new();
        let file = self.random.below(self.pages.len() as u64);
        let len = self.pages[file as usize];
        let (from, count) = match self.random.below(10) {
            _ if len == 0 => (0, FRESH),
            // Deleted, to be created again at some time.
            0 => {
                batch.delete_range(self.dict, key(file, 0).to_vec(), key(file + 1, 0).to_vec());
                self.live -= len;
                self.pages[file as usize] = 0;
                (0, 0)
            }
            1..=4 => (len, 1 + self.random.below(8)),
            _ => (self.random.below(len), 1),
        };
        for page in from..from + count {
            let value = self.value();
            batch.put(self.dict, key(file, page).to_vec(), value);
        }
        if count > 0 {
            self.live += (from + count).saturating_sub(len);
            self.pages[file as usize] = len.max(from + count);
        }
        db.commit(batch, Durability::Buffered)?;
        Ok(count)
    }
}

fn open(path: &str) -> Outcome<Kvdb> {
    Ok(Kvdb::open(
        Arc::new(FileDevice::open(Path::new(path), false)?),
        Arc::new(Machine::default()),
        options(),
    )?
    .0)
}

fn options() -> OpenOptions {
    OpenOptions { defrag_rate: 0, ..OpenOptions::default() }
}

/// MB a second of a scan of everything with nothing cached, the median of three; and how many
/// tuples there are.
fn cold_scan(path: &str, dict: DictionaryId) -> Outcome<(f64, u64)> {
    let (mut rates, mut tuples) = (Vec::new(), 0);
    for _ in 0..3 {
        let file = std::fs::File::open(path)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        let db = open(path)?;
        let (begun, mut bytes) = (Instant::now(), 0);
        tuples = 0;
        db.view().for_each(dict, b"", b"", |k, v| {
            bytes += (k.len() + v.len()) as u64;
            tuples += 1;
            ControlFlow::Continue(())
        })?;
        rates.push(bytes as f64 / begun.elapsed().as_secs_f64() / 1e6);
        db.close()?;
    }
    rates.sort_by(f64::total_cmp);
    Ok((rates[1], tuples))
}

/// Latencies of the client, milliseconds, sorted: puts and gets.
type Latencies = [Vec<f64>; 2];

/// Reads and writes pages until `done`, at a steady pace.
fn client(db: &Kvdb, files: &mut Files, done: &AtomicBool) -> Outcome<Latencies> {
    let mut latencies = Latencies::default();
    let begun = Instant::now();
    for n in 0u32.. {
        if done.load(Ordering::Acquire) {
            break;
        }
        let file = files.random.below(files.pages.len() as u64);
        let page = files.random.below(files.pages[file as usize].max(1));
        let value = files.value();
        let due = begun + Duration::from_secs(1) * n / OPERATIONS;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let at = Instant::now();
        let which = (n % 2) as usize;
        match which {
            // Only existing pages are overwritten, so that the two scans read the same keys.
            0 if files.pages[file as usize] > 0 => {
                db.put(files.dict, &key(file, page), &value, Durability::Buffered)?
            }
            _ => drop(db.get(files.dict, &key(file, page))?),
        }
        latencies[which].push(at.elapsed().as_secs_f64() * 1e3);
    }
    latencies.iter_mut().for_each(|l| l.sort_by(f64::total_cmp));
    Ok(latencies)
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().collect();
    let path = args.get(1).ok_or("which file?")?;
    let mib: u64 = args.get(2).map_or(Ok(2048), |v| v.parse())?;
    let stitch_at = match args.get(3).map(String::as_str) {
        None | Some("default") => kvdb::ADAPTIVE,
        Some("max") => u64::MAX,
        Some(bytes) => bytes.parse()?,
    };
    let _ = std::fs::remove_file(path);
    let create = CreateOptions { open: options(), ..CreateOptions::default() };
    let db =
        Kvdb::create(Arc::new(FileDevice::create(path)?), Arc::new(Machine::default()), create)?;
    let dict = db.create_dictionary(
        "files",
        DictionaryOptions { stitch_at, ..DictionaryOptions::default() },
    )?;
    let pages = (mib << 20) / PAGE as u64;
    let mut noise = vec![0; 1 << 20];
    Random::new(1).fill(&mut noise);
    let mut files = Files {
        pages: vec![0; (pages / 43) as usize],
        dict,
        noise,
        random: Random::new(2),
        live: 0,
    };
    let begun = Instant::now();
    let mut written = 0;
    while written < 2 * pages {
        written += files.operation(&db)?;
    }
    db.flush()?;
    let load_seconds = begun.elapsed().as_secs_f64();
    // Data is known to be dead once it has been merged with the data that hides it. Values stay in
    // place.
    let unmerged = db.stats().zones_reclaimable;
    db.compact(dict)?;
    let amplification = db.stats().write_amplification();
    db.close()?;
    drop(db);

    let (scan_before, tuples) = cold_scan(path, dict)?;
    assert_eq!(tuples, files.live, "all pages of all files, and no others");
    let db = open(path)?;
    let before = db.stats();
    let done = AtomicBool::new(false);
    let begun = Instant::now();
    let latencies = std::thread::scope(|scope| {
        let client = scope.spawn(|| client(&db, &mut files, &done));
        let defragmented =
            db.defragment(DefragOptions { fullest_percent: 99, ..DefragOptions::default() });
        db.wait_for_defragment();
        done.store(true, Ordering::Release);
        defragmented?;
        client.join().map_err(|_| "the client panicked")?
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let progress = db.defrag_progress();
    db.flush()?;
    let after = db.stats();
    db.close()?;
    drop(db);
    let (scan_after, tuples) = cold_scan(path, dict)?;
    assert_eq!(tuples, files.live, "nothing came and nothing went");

    let worst = |l: &[f64]| l.last().copied().unwrap_or(0.0);
    let most = |l: &[f64]| l.get(l.len() * 999 / 1000).copied().unwrap_or(0.0);
    let spans = |s: &kvdb::Stats| {
        s.dictionaries[0].levels.iter().flatten().map(|r| r.value_spans).sum::<u64>()
    };
    println!(
        "{{\"threshold\":\"{}\",\"live_mib\":{},\"written_mib\":{},\"load_mb_per_s\":{:.0},\"write_amp\":{amplification:.2},\
         \"zones_held\":{},\"zones_reclaimable_unmerged\":{unmerged},\"zones_reclaimable\":{},\"found\":{},\"reclaimed\":{},\"reclaimed_percent\":{:.1},\"zones_held_after\":{},\
         \"zones_reclaimable_after\":{},\"defrag_s\":{seconds:.1},\"moved_mib\":{},\"spans_before\":{},\"spans_after\":{},\
         \"scan_before_mb_per_s\":{scan_before:.0},\"scan_after_mb_per_s\":{scan_after:.0},\"client_operations\":{},\
         \"worst_put_ms\":{:.1},\"p999_put_ms\":{:.2},\"worst_get_ms\":{:.1},\"p999_get_ms\":{:.2}}}",
        args.get(3).map_or("default", String::as_str),
        (files.live * PAGE as u64) >> 20,
        (written * PAGE as u64) >> 20,
        (written * PAGE as u64) as f64 / load_seconds / 1e6,
        before.zones_held,
        before.zones_reclaimable,
        progress.zones_reclaimable,
        progress.zones_reclaimed,
        progress.zones_reclaimed as f64 * 100.0 / progress.zones_reclaimable.max(1) as f64,
        after.zones_held,
        after.zones_reclaimable,
        progress.bytes_moved >> 20,
        spans(&before),
        spans(&after),
        latencies.iter().map(Vec::len).sum::<usize>(),
        worst(&latencies[0]),
        most(&latencies[0]),
        worst(&latencies[1]),
        most(&latencies[1]),
    );
    Ok(())
}
