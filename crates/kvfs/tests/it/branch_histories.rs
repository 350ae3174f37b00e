//! Random histories of attempts that several threads make in parallel, each of which commits into a
//! parent, checked with `adya` as strong snapshot isolation:
//!
//! - transactions within one transaction, up to three deep: for those right within it that one is
//!   what the store is for others;
//! - clones that are made, changed, merged and dropped, amid transactions of the store: a clone
//!   reads what there was when its snapshot was made, and its merge is its commit.
//!
//! Lists are keys and files. What an inner attempt has appended and read counts as done by the one
//! around it, if it was committed into that one.
//!
//! `KVFS_TRANSACTIONS=n` runs about n attempts in each test instead of the usual few,
//! `KVFS_SEED_BASE=n` begins with another seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::history::{Attempt, Did, End, Figures, check, decode, encode, extent};
use env::sync::Mutex;
use env::{Machine, Random};
use kvdb::{
    DictionaryId, Durability, Isolation, Kvdb, Settled, Transaction, TransactionId,
    TransactionOptions,
};
use kvfs::{Caller, Error, FileKind, Fs, FsOptions, MergeOptions, ROOT, Result, ViewId, Views};

const THREADS: u64 = 4;
/// Attempts of one store.
const LIFE: u64 = 200;
/// Lists; the second half of them are files.
const LISTS: u64 = 8;

fn is_file(list: u64) -> bool {
    list >= LISTS / 2
}

fn name(list: u64) -> String {
    format!("list{list}")
}

struct Store {
    db: Kvdb,
    fs: Fs,
    views: Views,
    clock: AtomicU64,
    numbers: AtomicU64,
}

/// The place at which an attempt reads and appends.
struct Site<'a> {
    store: &'a Store,
    fs: Fs,
    rows: DictionaryId,
    /// The transaction, or `None` for a branch.
    transaction: Option<Transaction>,
}

impl Site<'_> {
    fn lists(&self, list: u64) -> Result<Vec<u64>> {
        let bytes = match (is_file(list), &self.transaction) {
            (true, _) => {
                let attr = self.fs.resolve(name(list).as_bytes())?;
                self.fs.read(attr.ino, 0, attr.size as u32)?.to_vec()
            }
            (_, Some(t)) => t.get(self.rows, name(list).as_bytes())?.unwrap_or_default().to_vec(),
            (_, None) => {
                let found = self.store.db.get(self.rows, name(list).as_bytes())?;
                found.unwrap_or_default().to_vec()
            }
        };
        Ok(decode(&bytes))
    }

    /// Reads a list, and appends to it mostly.
    fn step(&self, random: &mut Random, did: &mut Vec<Did>) -> Result<()> {
        let list = random.below(LISTS);
        let mut numbers = self.lists(list)?;
        did.push(Did::Read(list, numbers.clone()));
        if random.one_in(3) {
            return Ok(());
        }
        let number = self.store.numbers.fetch_add(1, Ordering::Relaxed);
        numbers.push(number);
        match (is_file(list), &self.transaction) {
            (true, _) => {
                let ino = self.fs.resolve(name(list).as_bytes())?.ino;
                let at = (numbers.len() as u64 - 1) * 8;
                self.fs.write(ino, at, &number.to_be_bytes(), Default::default())?;
            }
            (_, Some(t)) => t.put(self.rows, name(list), encode(&numbers))?,
            (_, None) => {
                let value = encode(&numbers);
                self.store.db.put(
                    self.rows,
                    name(list).as_bytes(),
                    &value,
                    Durability::Buffered,
                )?;
            }
        }
        did.push(Did::Append(list, number));
        Ok(())
    }
}

/// Returns whether an attempt failed because of concurrent actions of others.
fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::Store(kvdb::Error::Conflict { .. }))
}

impl Store {
    fn new() -> Store {
        let db = Kvdb::in_memory();
        let fs = Fs::open(db.clone(), Arc::new(Machine::default()), FsOptions::default())
            .expect("a file system");
        db.open_dictionary("rows").expect("made");
        for list in (0..LISTS).filter(|list| is_file(*list)) {
            fs.mknod(ROOT, name(list).as_bytes(), FileKind::File, 0o644, 0, Caller::default())
                .expect("made");
        }
        let views = Views::new(db.clone(), fs.clone());
        Store { views, db, fs, clock: AtomicU64::new(1), numbers: AtomicU64::new(1) }
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn rows(&self, branch: &str) -> DictionaryId {
        self.db.dictionary_in(branch, "rows").expect("every branch has it")
    }

    fn within(&self, id: TransactionId, branch: &str) -> Result<Site<'_>> {
        Ok(Site {
            store: self,
            fs: self.views.fs(&ViewId::Transaction(id))?,
            rows: self.rows(branch),
            transaction: Some(self.views.transaction(id)?),
        })
    }

    fn begin(&self, within: Option<TransactionId>) -> Result<TransactionId> {
        self.views.begin(TransactionOptions { within, ..TransactionOptions::default() })
    }

    /// Runs a transaction, with attempts within it, down to `depth`. Returns `false` if it was not
    /// committed.
    fn transaction(
        &self,
        around: Option<TransactionId>,
        depth: u64,
        random: &mut Random,
        did: &mut Vec<Did>,
    ) -> Result<bool> {
        let id = self.begin(around)?;
        let site = self.within(id, "")?;
        for _ in 0..1 + random.below(4) {
            if depth > 0 && random.one_in(4) {
                let mut inner = Vec::new();
                // Nothing else changes the one around it at that time.
                let committed = self.transaction(Some(id), depth - 1, random, &mut inner)?;
                if committed {
                    did.append(&mut inner);
                }
            } else {
                site.step(random, did)?;
            }
            std::thread::yield_now();
        }
        if random.one_in(10) {
            self.views.abort(id)?;
            return Ok(false);
        }
        match self.views.commit(id, Durability::Buffered) {
            Ok(()) => Ok(true),
            Err(e) if is_conflict(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Makes a clone, changes it, merges it and drops it. Returns `false` if it was not merged.
    fn clone(&self, name: &str, random: &mut Random, did: &mut Vec<Did>) -> Result<bool> {
        self.views.snapshot(&ViewId::Mainline, name, Durability::Buffered)?;
        self.views.clone_snapshot(name, name)?;
        self.views.drop_snapshot(name)?;
        let site = Site {
            store: self,
            fs: self.views.fs(&ViewId::Clone(name.into()))?,
            rows: self.rows(name),
            transaction: None,
        };
        for _ in 0..1 + random.below(4) {
            site.step(random, did)?;
            std::thread::yield_now();
        }
        drop(site);
        let merge = MergeOptions { clone: name.into(), ..MergeOptions::default() };
        let merged = self.views.merge(&merge, &|_, _| Settled::Conflict)?;
        let committed = match merged.conflicts.is_empty() {
            false => self.views.abort(merged.transaction).map(|()| false),
            true => match self.views.commit(merged.transaction, Durability::Buffered) {
                Ok(()) => Ok(true),
                Err(e) if is_conflict(&e) => Ok(false),
                Err(e) => Err(e),
            },
        };
        self.views.drop_clone(name)?;
        committed
    }
}

/// Runs this many attempts on several threads.
fn attempts(
    store: &Store,
    seed: u64,
    one: impl Fn(u64, &mut Random, &mut Vec<Did>) -> (&'static str, Result<bool>) + Sync,
) -> Vec<Attempt> {
    let (all, next) = (Mutex::new(Vec::new()), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (all, next, one) = (&all, &next, &one);
            scope.spawn(move || {
                let mut random = Random::new(seed << 8 | thread);
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= LIFE {
                        return;
                    }
                    let (from, mut did) = (store.tick(), Vec::new());
                    let (kind, done) = one(n, &mut random, &mut did);
                    let committed = done.unwrap_or_else(|e| panic!("seed {seed}: {kind}: {e}"));
                    let end = if committed { End::Committed } else { End::Failed };
                    let to = store.tick();
                    all.lock().push(Attempt { thread, from, to, did, end, kind });
                }
            });
        }
    });
    all.into_inner()
}

/// The lists at the end, read by an attempt after all others.
fn observed(store: &Store, site: &Site<'_>) -> Attempt {
    let read = |list| Did::Read(list, site.lists(list).expect("read"));
    let (from, did) = (store.tick(), (0..LISTS).map(read).collect());
    Attempt { thread: THREADS, from, to: store.tick(), did, end: End::Committed, kind: "last" }
}

fn lives(what: &str, kinds: &[&str], life: impl Fn(&Store, u64) -> Vec<Attempt>) {
    let ((count, first), started) = (extent(2 * LIFE), Instant::now());
    let (mut figures, mut seed) = (Figures::default(), first);
    while figures.done < count {
        let store = Store::new();
        let history = life(&store, seed);
        check(Isolation::Snapshot, &history, &format!("{what}, seed {seed}"));
        figures.add(&history);
        seed += 1;
    }
    figures.conclude(what, first..seed, started, kinds);
}

#[test]
fn what_is_committed_into_a_transaction_is_isolated_there() {
    lives("attempts within a transaction", &["nested", "deeper"], |store, seed| {
        let outer = store.begin(None).expect("begun");
        let mut history = attempts(store, seed, |n, random, did| {
            let depth = n % 3;
            let kind = if depth == 0 { "nested" } else { "deeper" };
            (kind, store.transaction(Some(outer), depth, random, did))
        });
        let site = store.within(outer, "").expect("it is open");
        history.push(observed(store, &site));
        let inside: Vec<_> = (0..LISTS).map(|list| site.lists(list).expect("read")).collect();
        drop(site);
        // All of it, or nothing, is what the store has in the end.
        match seed % 2 {
            0 => store.views.commit(outer, Durability::Buffered).expect("committed"),
            _ => store.views.abort(outer).expect("aborted"),
        }
        let main = Site { store, fs: store.fs.clone(), rows: store.rows(""), transaction: None };
        for (list, inside) in inside.into_iter().enumerate() {
            let expected = if seed % 2 == 0 { inside } else { Vec::new() };
            assert_eq!(main.lists(list as u64).expect("read"), expected, "list {list}");
        }
        history
    });
}

#[test]
fn clones_that_are_merged_are_isolated_as_transactions_are() {
    lives("clones and transactions", &["clone", "transaction"], |store, seed| {
        let mut history = attempts(store, seed, |n, random, did| match random.one_in(2) {
            true => ("clone", store.clone(&format!("try{n}"), random, did)),
            false => ("transaction", store.transaction(None, 1, random, did)),
        });
        let main = Site { store, fs: store.fs.clone(), rows: store.rows(""), transaction: None };
        history.push(observed(store, &main));
        assert!(store.db.branches().is_empty() && store.db.snapshot_labels().is_empty());
        history
    });
}
