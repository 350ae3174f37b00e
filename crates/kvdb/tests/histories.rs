//! Random histories of concurrent transactions, with power cuts in between, checked with `adya`: under snapshot isolation they must be
//! valid as strong snapshot isolation, serializable ones as strictly serializable, views and plain commits included.
//!
//! A store lives several lives, each ended by a power cut, each with keys of its own. A key holds a list; a transaction reads lists
//! and appends numbers that are used once, so that a list tells who wrote it, in which order. After the cut the lists tell as well
//! which transactions have survived: each of them whole or not at all, those that were synced in any case, and with every survivor
//! everything that had ended before it began; and the history of the survivors is valid, too.
//!
//! `KVFS_TRANSACTIONS=n` runs n transactions at each level instead of the usual few; `KVFS_SEED=n` begins with another seed.

mod model;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adya::history::{Interner, Mop, Op, OpType, ReadValue, Scalar};
use adya::{Opts, Valid, Workload};
use env::{Machine, Random};
use kvdb::{
    Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Error, Isolation, Kvdb, OpenOptions, Transaction,
    TransactionOptions,
};
use zones::CrashDevice;

const THREADS: u64 = 6;
/// Of transactions in a life, about.
const LIFE: u64 = 1200;
/// Lists that transactions append to.
const LISTS: u64 = 10;
/// The numbers of keys that plain commits write, each of them once, come behind.
const FRESH: u64 = 1000;

/// What one transaction did, in order.
#[derive(Clone, Debug)]
enum Did {
    Read(u64, Vec<u64>),
    Append(u64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Committed,
    /// And on disk before that was said.
    Synced,
    Failed,
    /// The power failed while it committed.
    Unknown,
}

#[derive(Clone, Debug)]
struct Attempt {
    thread: u64,
    /// Ticks before its first step and behind its last one.
    from: u64,
    to: u64,
    did: Vec<Did>,
    end: End,
}

impl Attempt {
    fn appended(&self) -> impl Iterator<Item = (u64, u64)> {
        self.did.iter().filter_map(|did| if let Did::Append(key, number) = did { Some((*key, *number)) } else { None })
    }
}

/// The store in one of its lives.
struct Life {
    db: Kvdb,
    dicts: [DictionaryId; 2],
    number: u64,
    isolation: Isolation,
    clock: AtomicU64,
    /// Given out, over all lives.
    numbers: AtomicU64,
    fresh: AtomicU64,
}

fn decode(value: &[u8]) -> Vec<u64> {
    value.chunks_exact(8).map(|c| u64::from_be_bytes(c.try_into().unwrap())).collect()
}

/// Where a read goes.
enum Reader<'a> {
    Transaction(&'a Transaction),
    View(&'a kvdb::View),
}

impl Life {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Neighbours lie in different dictionaries.
    fn place(&self, key: u64) -> (DictionaryId, Vec<u8>) {
        (self.dicts[key as usize % 2], self.name(key))
    }

    fn name(&self, key: u64) -> Vec<u8> {
        format!("{:05}/{key:06}", self.number).into_bytes()
    }

    fn read(&self, reader: &Reader, key: u64, did: &mut Vec<Did>) -> kvdb::Result<Vec<u64>> {
        let (dict, name) = self.place(key);
        let value = match reader {
            Reader::Transaction(t) => t.get(dict, &name)?,
            Reader::View(view) => view.get(dict, &name)?,
        };
        let list = decode(&value.unwrap_or_default());
        did.push(Did::Read(key, list.clone()));
        Ok(list)
    }

    /// Every key of a range of lists that lies in one dictionary.
    fn scan(&self, reader: &Reader, random: &mut Random, did: &mut Vec<Did>) -> kvdb::Result<()> {
        let (from, side) = (random.below(LISTS), random.below(2));
        let to = from + 1 + random.below(LISTS - from);
        let (dict, start, end) = (self.dicts[side as usize], self.name(from), self.name(to));
        let found = match reader {
            Reader::Transaction(t) => t.scan(dict, &start, &end, usize::MAX)?,
            Reader::View(view) => view.scan(dict, &start, &end, usize::MAX)?,
        };
        let found: BTreeMap<Vec<u8>, Vec<u64>> = found.into_iter().map(|(k, v)| (k.to_vec(), decode(&v))).collect();
        for key in (from..to).filter(|key| key % 2 == side) {
            did.push(Did::Read(key, found.get(&self.name(key)).cloned().unwrap_or_default()));
        }
        Ok(())
    }

    /// Both keys of a pair that a plain commit writes about now.
    fn pair(&self, random: &mut Random) -> [u64; 2] {
        let n = (self.fresh.load(Ordering::Relaxed) + random.below(3)).saturating_sub(1);
        let first = FRESH + 2 * n;
        if random.one_in(2) { [first, first + 1] } else { [first + 1, first] }
    }

    /// Makes a transaction so large that it lies in runs of its own when it commits.
    fn ballast(&self, t: &Transaction, random: &mut Random) -> kvdb::Result<()> {
        for i in 0..4 {
            let mut ballast = vec![0; 40 << 10];
            random.fill(&mut ballast[..100]);
            t.put(self.dicts[i % 2], format!("ballast/{}/{i}", random.below(4)), ballast)?;
        }
        Ok(())
    }

    /// A commit that knows nothing of what was there: alone, or as a transaction that takes no locks.
    fn blind(&self, batch: Batch, durability: Durability, random: &mut Random) -> kvdb::Result<()> {
        if !random.one_in(3) {
            return self.db.commit(batch, durability);
        }
        let t = self.db.begin(Isolation::Snapshot)?;
        self.ballast(&t, random)?;
        t.apply(batch)?;
        t.commit(durability)
    }

    fn transaction(&self, t: &Transaction, random: &mut Random, did: &mut Vec<Did>) -> kvdb::Result<()> {
        let reader = Reader::Transaction(t);
        if random.one_in(30) {
            self.ballast(t, random)?;
        }
        let pair = self.pair(random);
        let reads_pair = random.one_in(4);
        if reads_pair {
            self.read(&reader, pair[0], did)?;
        }
        for _ in 0..1 + random.below(4) {
            match random.below(6) {
                0 => self.scan(&reader, random, did)?,
                1 | 2 => drop(self.read(&reader, random.below(LISTS), did)?),
                _ => {
                    let key = random.below(LISTS);
                    let (dict, name) = self.place(key);
                    if random.one_in(2) {
                        t.lock_key(dict, &name, true)?;
                    }
                    let savepoint = random.one_in(8).then(|| t.savepoint()).transpose()?;
                    let mut list = self.read(&reader, key, did)?;
                    let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                    list.push(number);
                    t.put(dict, name, list.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>())?;
                    match savepoint {
                        // It never happened.
                        Some(savepoint) if random.one_in(2) => t.rollback_to(&savepoint)?,
                        _ => did.push(Did::Append(key, number)),
                    }
                }
            }
            if random.one_in(4) {
                std::thread::yield_now();
            }
        }
        if reads_pair {
            self.read(&reader, pair[1], did)?;
        }
        Ok(())
    }

    fn attempt(&self, thread: u64, random: &mut Random) -> Attempt {
        let mut did = Vec::new();
        let from = self.tick();
        let durability = if random.one_in(4) { Durability::Synced } else { Durability::Buffered };
        let end = |result: kvdb::Result<()>| match result {
            Ok(()) if durability == Durability::Synced => End::Synced,
            Ok(()) => End::Committed,
            Err(Error::Conflict { .. } | Error::Locked(_)) => End::Failed,
            Err(_) => End::Unknown,
        };
        let end = match random.below(10) {
            0 => {
                let view = self.db.view();
                let reader = Reader::View(&view);
                let reads = self.pair(random).into_iter().chain((0..3).map(|_| random.below(LISTS))).collect::<Vec<_>>();
                let read = reads.into_iter().try_for_each(|key| self.read(&reader, key, &mut did).map(drop));
                if read.and_then(|()| self.scan(&reader, random, &mut did)).is_ok() { End::Committed } else { End::Failed }
            }
            1 => {
                let first = FRESH + 2 * self.fresh.fetch_add(1, Ordering::Relaxed);
                let mut batch = Batch::new();
                for key in [first, first + 1] {
                    let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                    let (dict, name) = self.place(key);
                    batch.put(dict, name, number.to_be_bytes().to_vec());
                    did.push(Did::Append(key, number));
                }
                end(self.blind(batch, durability, random))
            }
            _ => match self.db.begin_with(TransactionOptions { isolation: self.isolation, ..TransactionOptions::default() }) {
                Err(_) => End::Failed,
                Ok(t) => match self.transaction(&t, random, &mut did) {
                    Err(_) => End::Failed,
                    Ok(()) if random.one_in(20) => {
                        t.abort();
                        End::Failed
                    }
                    Ok(()) => end(t.commit(durability)),
                },
            },
        };
        Attempt { thread, from, to: self.tick(), did, end }
    }

    /// Runs transactions on several threads until they are enough or the power fails.
    fn live(&self, seed: u64, device: &CrashDevice) -> Vec<Attempt> {
        std::thread::scope(|scope| {
            let worker = |thread| {
                let mut random = Random::new(seed * THREADS + thread);
                let mut attempts = Vec::new();
                while attempts.len() < (LIFE / THREADS) as usize && !device.is_dead() {
                    attempts.push(self.attempt(thread, &mut random));
                }
                attempts
            };
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || worker(thread))).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        })
    }
}

/// The lists of a life as the store has them now.
fn lists(db: &Kvdb, dicts: &[DictionaryId; 2], life: u64) -> BTreeMap<u64, Vec<u64>> {
    let view = db.view();
    let (start, end) = (format!("{life:05}/"), format!("{life:05}0"));
    let mut all = BTreeMap::new();
    for dict in dicts {
        for (key, value) in view.scan(*dict, start.as_bytes(), end.as_bytes(), usize::MAX).unwrap() {
            let number = std::str::from_utf8(&key[6..]).unwrap().parse().unwrap();
            all.insert(number, decode(&value));
        }
    }
    all
}

fn model(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::Snapshot => "strong-snapshot-isolation",
        Isolation::Serializable => "strict-serializable",
    }
}

/// Fails unless the attempts are a valid history.
fn check(isolation: Isolation, attempts: &[Attempt], what: &str) {
    let mut names = Interner::default();
    let mut events: Vec<(u64, Op)> = Vec::new();
    for a in attempts {
        let mut id = |n: u64| names.intern(Scalar::Int(n as i64));
        // Of one whose end is not known nobody knows whether it has read anything that is: what it wrote may have been seen.
        let counts = |did: &&Did| a.end != End::Unknown || matches!(did, Did::Append(..));
        let mops = a.did.iter().filter(counts).map(|did| match did {
            Did::Append(key, number) => Mop::Append { key: id(*key), value: id(*number) },
            Did::Read(key, list) => Mop::Read { key: id(*key), value: ReadValue::List(list.iter().map(|n| id(*n)).collect()) },
        });
        let value: Vec<Mop> = mops.collect();
        let kind = match a.end {
            End::Committed | End::Synced => OpType::Ok,
            End::Failed => OpType::Fail,
            End::Unknown => OpType::Info,
        };
        let process = Some(a.thread as i64);
        events.push((a.from, Op { index: a.from, kind: OpType::Invoke, process, value: value.clone(), time: None }));
        events.push((a.to, Op { index: a.to, kind, process, value, time: None }));
    }
    events.sort_by_key(|(tick, _)| *tick);
    let history = adya::History::from_ops(events.into_iter().map(|(_, op)| op).collect(), names);
    let opts = Opts { models: vec![model(isolation).into()], timeout: Duration::from_secs(60), ..Opts::default() };
    let report = adya::check(&history, Workload::ListAppend, &opts);
    // The power may fail before anything has happened.
    if report.anomaly_types == ["empty-transaction-graph"] {
        return;
    }
    let first: Vec<_> = report.anomalies.values().filter_map(|all| all.first()).map(|a| &a.explanation).collect();
    assert_eq!(report.valid, Valid::True, "{what}: not {}: {:?} {first:#?}", model(isolation), report.anomaly_types);
}

/// Judges what is left of a life after the power cut, and gives the number of transactions whose end it decided.
fn judge(isolation: Isolation, attempts: &[Attempt], left: &BTreeMap<u64, Vec<u64>>, what: &str) {
    let there: HashSet<(u64, u64)> = left.iter().flat_map(|(key, list)| list.iter().map(|n| (*key, *n))).collect();
    let writers = attempts.iter().filter(|a| a.end != End::Failed && a.appended().next().is_some());
    let (mut survivors, mut lost) = (Vec::new(), Vec::new());
    for a in writers {
        let found: BTreeSet<bool> = a.appended().map(|appended| there.contains(&appended)).collect();
        assert_eq!(found.len(), 1, "{what}: of a transaction only a part is left: {a:?}");
        if found.contains(&true) { survivors.push(a) } else { lost.push(a) }
    }
    let synced = lost.iter().find(|a| a.end == End::Synced);
    assert!(synced.is_none(), "{what}: synced and lost: {synced:?}");
    let newest = survivors.iter().max_by_key(|a| a.from);
    let gap = lost.iter().find(|a| a.end == End::Committed && newest.is_some_and(|n| a.to < n.from));
    assert!(gap.is_none(), "{what}: lost, though what began after it is there: {gap:?}, {newest:?}");
    // Failures stay in it: nobody may have seen them.
    let end = attempts.iter().map(|a| a.to).max().unwrap_or(0);
    let mut history: Vec<Attempt> = survivors.into_iter().map(|a| Attempt { end: End::Committed, ..a.clone() }).collect();
    history.extend(lost.into_iter().map(|a| Attempt { end: End::Failed, ..a.clone() }));
    history.extend(attempts.iter().filter(|a| a.end == End::Failed).cloned());
    let did = left.iter().map(|(key, list)| Did::Read(*key, list.clone())).collect();
    history.push(Attempt { thread: THREADS, from: end + 1, to: end + 2, did, end: End::Committed });
    check(isolation, &history, &format!("{what}, what is left of it"));
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

fn open() -> OpenOptions {
    // Its background threads work, and with so little memory they have something to do.
    OpenOptions { threads: true, flush_interval: Duration::from_millis(20), ..model::small() }
}

fn run(isolation: Isolation) {
    let transactions = number("KVFS_TRANSACTIONS").unwrap_or(5 * LIFE);
    let first = number("KVFS_SEED").unwrap_or(1);
    let env = Arc::new(Machine::default());
    let device = Arc::new(CrashDevice::new());
    let options = CreateOptions { open: open(), reserve_zones: 4, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env.clone(), options).unwrap();
    let dicts = ["one", "two"].map(|name| db.create_dictionary(name, DictionaryOptions::default()).unwrap());
    let mut image = device.crash(first);
    drop(db);
    let (mut done, mut ends, mut numbers) = (0, [0u64; 4], 0);
    for seed in first.. {
        if done >= transactions {
            break;
        }
        let what = format!("{isolation:?}, seed {seed}");
        let mut random = Random::new(seed);
        let device = Arc::new(CrashDevice::over(image.clone()));
        let (db, _) = Kvdb::open(device.clone(), env.clone(), open()).unwrap_or_else(|e| panic!("{what}: opening: {e}"));
        if !random.one_in(3) {
            device.cut_power_after(random.below(1300));
        }
        let life = Life {
            db: db.clone(),
            dicts,
            number: seed,
            isolation,
            clock: AtomicU64::new(0),
            numbers: AtomicU64::new(numbers),
            fresh: AtomicU64::new(0),
        };
        let attempts = life.live(seed, &device);
        device.cut_power();
        image = device.crash(seed);
        numbers = life.numbers.load(Ordering::Relaxed);
        drop((life, db));
        done += attempts.len() as u64;
        attempts.iter().for_each(|a| ends[a.end as usize] += 1);
        check(isolation, &attempts, &what);

        let device = Arc::new(CrashDevice::over(image.clone()));
        let (db, _) = Kvdb::open(device, env.clone(), open()).unwrap_or_else(|e| panic!("{what}: opening again: {e}"));
        let left = lists(&db, &dicts, seed);
        drop(db);
        judge(isolation, &attempts, &left, &what);
    }
    let [committed, synced, failed, unknown] = ends;
    println!("{isolation:?}: {committed} committed, {synced} of them synced besides, {failed} failed, {unknown} cut off");
    assert!(committed + synced > done / 4, "{isolation:?}: too few of {done} transactions committed");
    assert!(failed > 0, "{isolation:?}: they never met each other");
}

#[test]
fn snapshot_isolation_holds_in_random_histories() {
    run(Isolation::Snapshot);
}

#[test]
fn serializability_holds_in_random_histories() {
    run(Isolation::Serializable);
}

/// Were the checks blind, they would see nothing in this either.
#[test]
#[should_panic(expected = "G-single")]
fn a_lost_update_would_be_found() {
    let one = |thread, from, did| Attempt { thread, from, to: from + 10, did, end: End::Committed };
    let attempts = [
        one(0, 0, vec![Did::Read(1, vec![]), Did::Append(1, 1)]),
        one(1, 1, vec![Did::Read(1, vec![]), Did::Append(1, 2)]),
        one(2, 20, vec![Did::Read(1, vec![1, 2])]),
    ];
    check(Isolation::Snapshot, &attempts, "by hand");
}

/// Write skew is what sets the two levels apart.
#[test]
fn write_skew_is_valid_at_one_level_only() {
    let one = |thread, from, did| Attempt { thread, from, to: from + 10, did, end: End::Committed };
    let attempts = [
        one(0, 0, vec![Did::Read(1, vec![]), Did::Read(2, vec![]), Did::Append(1, 1)]),
        one(1, 1, vec![Did::Read(1, vec![]), Did::Read(2, vec![]), Did::Append(2, 2)]),
        one(2, 20, vec![Did::Read(1, vec![1]), Did::Read(2, vec![2])]),
    ];
    check(Isolation::Snapshot, &attempts, "by hand");
    let serializable = std::panic::catch_unwind(|| check(Isolation::Serializable, &attempts, "by hand"));
    assert!(serializable.is_err());
}
