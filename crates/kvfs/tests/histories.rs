//! Random histories of concurrent transactions over files and keys together, checked with `adya`: under snapshot isolation they must be
//! valid as strong snapshot isolation, serializable ones as strictly serializable; files that are read on the mainline included.
//!
//! `KVFS_TRANSACTIONS=n` runs n transactions at each level instead of the usual few, `KVFS_SEED_BASE=n` begins with another seed: each run
//! says with which one the next goes on.

#[path = "../../kvdb/tests/history/mod.rs"]
mod history;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use env::Random;
use history::{Attempt, Did, End, Figures, check, decode, encode, extent};
use kvdb::{DictionaryId, Durability, Isolation, Transaction, TransactionOptions};
use kvfs::{Fs, ROOT, Result, View, Views};
use world::World;

const THREADS: u64 = 4;
/// Transactions of a life.
const LIFE: u64 = 400;
/// Lists; the second half of them are files.
const LISTS: u64 = 8;

struct Life {
    views: Views,
    fs: Fs,
    rows: DictionaryId,
    isolation: Isolation,
    clock: AtomicU64,
    numbers: AtomicU64,
}

fn is_file(list: u64) -> bool {
    list >= LISTS / 2
}

fn name(list: u64) -> String {
    format!("list{list}")
}

fn content(fs: &Fs, list: u64) -> Result<Vec<u8>> {
    let attr = fs.resolve(name(list).as_bytes())?;
    Ok(fs.read(attr.ino, 0, attr.size as u32)?.to_vec())
}

impl Life {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn read(&self, fs: &Fs, t: &Transaction, list: u64, did: &mut Vec<Did>) -> Result<Vec<u64>> {
        let bytes = match is_file(list) {
            true => content(fs, list)?,
            false => t.get(self.rows, name(list).as_bytes())?.unwrap_or_default().to_vec(),
        };
        let found = decode(&bytes);
        did.push(Did::Read(list, found.clone()));
        Ok(found)
    }

    fn append(&self, fs: &Fs, t: &Transaction, list: u64, random: &mut Random, did: &mut Vec<Did>) -> Result<()> {
        let mut numbers = self.read(fs, t, list, did)?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        numbers.push(number);
        if is_file(list) {
            let ino = fs.resolve(name(list).as_bytes())?.ino;
            let at = (numbers.len() as u64 - 1) * 8;
            let written = fs.write(ino, at, &number.to_be_bytes(), Default::default())?;
            assert_eq!(written, 8);
            if random.one_in(2) {
                fs.fsync(ino, false)?;
            }
        } else {
            t.put(self.rows, name(list), encode(&numbers))?;
        }
        did.push(Did::Append(list, number));
        Ok(())
    }

    fn transaction(&self, id: kvdb::TransactionId, random: &mut Random, did: &mut Vec<Did>) -> Result<()> {
        let (fs, t) = (self.views.fs(&View::Transaction(id))?, self.views.transaction(id)?);
        for _ in 0..1 + random.below(4) {
            let list = random.below(LISTS);
            match random.below(3) {
                0 => drop(self.read(&fs, &t, list, did)?),
                _ => {
                    let savepoint = random.one_in(6).then(|| self.views.savepoint(id)).transpose()?;
                    let before = did.len();
                    self.append(&fs, &t, list, random, did)?;
                    if let Some(savepoint) = savepoint.filter(|_| random.one_in(2)) {
                        self.views.rollback_to(id, &savepoint)?;
                        // It never happened; what was read for it stands.
                        did.truncate(before + 1);
                    }
                }
            }
            if random.one_in(3) {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn attempt(&self, thread: u64, random: &mut Random) -> Attempt {
        let mut did = Vec::new();
        let from = self.tick();
        let failed = |e: kvfs::Error| {
            assert!(matches!(e.errno(), libc::EDEADLK | libc::ESTALE), "{e}");
            End::Failed
        };
        let (kind, end) = if random.one_in(8) {
            let list = LISTS / 2 + random.below(LISTS / 2);
            let found = content(&self.fs, list).unwrap_or_else(|e| panic!("a file of the mainline: {e}"));
            did.push(Did::Read(list, decode(&found)));
            ("mainline", End::Committed)
        } else {
            let lock_timeout = Duration::from_millis(500);
            let options = TransactionOptions { isolation: self.isolation, lock_timeout, ..TransactionOptions::default() };
            let end = match self.views.begin(options) {
                Err(e) => failed(e),
                Ok(id) => match self.transaction(id, random, &mut did) {
                    Err(e) => {
                        // It may have ended already.
                        self.views.abort(id).err().map(failed);
                        failed(e)
                    }
                    Ok(()) if random.one_in(20) => {
                        // An older one may have ended it this moment.
                        self.views.abort(id).err().map_or(End::Failed, failed)
                    }
                    Ok(()) => match self.views.commit(id, Durability::Buffered) {
                        Ok(()) => End::Committed,
                        Err(e) => {
                            self.views.abort(id).err().map(failed);
                            failed(e)
                        }
                    },
                },
            };
            ("transaction", end)
        };
        Attempt { thread, from, to: self.tick(), did, end, kind }
    }
}

fn run(isolation: Isolation) {
    let ((transactions, first), started) = (extent(3 * LIFE), Instant::now());
    let (mut figures, mut next) = (Figures::default(), first);
    while figures.done < transactions {
        let seed = next;
        next += 1;
        let w = World::new();
        for list in (0..LISTS).filter(|list| is_file(*list)) {
            w.file(ROOT, &name(list));
        }
        let life = Life {
            views: Views::new(w.db.clone(), w.fs.clone()),
            fs: w.fs.clone(),
            rows: w.db.open_dictionary("rows").expect("made").id(),
            isolation,
            clock: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
        };
        let attempts: Vec<Attempt> = std::thread::scope(|scope| {
            let worker = |thread| {
                let mut random = Random::new(seed * THREADS + thread);
                (0..LIFE / THREADS).map(|_| life.attempt(thread, &mut random)).collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || worker(thread))).collect();
            threads.into_iter().flat_map(|t| t.join().expect("it came to its end")).collect()
        });
        figures.add(&attempts);
        check(isolation, &attempts, &format!("{isolation:?}, files and keys, seed {seed}"));
    }
    figures.conclude(&format!("{isolation:?}, files and keys"), first..next, started, &["transaction", "mainline"]);
}

#[test]
fn snapshot_isolation_holds_over_files_and_keys() {
    run(Isolation::Snapshot);
}

#[test]
fn serializability_holds_over_files_and_keys() {
    run(Isolation::Serializable);
}
