//! Checks random histories of concurrent transactions, with power cuts in between, with `adya`.
//! Under snapshot isolation they must be valid as strong snapshot isolation, and serializable ones
//! must be strictly serializable, including views and plain commits.
//!
//! A store lives several lives, each ended by a power cut, each with keys of its own. After the cut
//! the lists tell which transactions have survived: each of them whole or not at all, those that
//! were synced in any case, and with every survivor everything that had ended before it began; and
//! the history of the survivors is valid, too.
//!
//! Transactions delete ranges and write them again, take runs in bulk, go back to savepoints,
//! change things by nested batches, survive a restart; and some are what `WATCH` and `EXEC` are: a
//! commit that depends on what was read before it began. Ingests put pairs of keys down that must
//! show together. In some lives the store goes back to a snapshot from time to time while all this
//! continues: that begins a new *epoch*, a history of its own which starts with what the rollback
//! has left. What had ended before a rollback began and is not in the snapshot must be gone, and a
//! transaction that began before it must not have committed behind it.
//!
//! `KVFS_TRANSACTIONS=n` runs n transactions at each level instead of the usual few,
//! `KVFS_SEED_BASE=n` begins with another seed: each run says with which one the next continues.

use crate::model;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use env::sync::{Mutex, RwLock};
use env::{Machine, Random};
use kvdb::{
    Batch, CreateOptions, DictionaryId, DictionaryOptions, Durability, Error, Isolation, Kvdb,
    OpenOptions, Transaction, TransactionOptions,
};
use zones::{CrashDevice, Device, SlowSyncDevice};

use crate::history::epoch::{Epoch, Lists, OBSERVER, Rollback, judge};
use crate::history::{Attempt, Did, End, Figures, check, decode, encode, extent};

const THREADS: u64 = 6;
/// The approximate number of transactions in a life.
const LIFE: u64 = 1200;
/// Lists that transactions append to.
const LISTS: u64 = 10;
/// The numbers of keys that plain commits write, each of them once, follow after the lists.
const FRESH: u64 = 1000;
/// The first number that ingests write: both of a pair in one dictionary.
const INGESTED: u64 = 1_000_000;
/// The kinds that must occur.
const KINDS: [&str; 6] = ["view", "batch", "ingest", "watch", "durable", "transaction"];

/// The duration of a sync in some lives, so that much happens while one is in progress.
const SYNC: Duration = Duration::from_micros(300);

/// The store in one of its lives.
struct Life {
    db: Kvdb,
    dicts: [DictionaryId; 2],
    number: u64,
    isolation: Isolation,
    clock: AtomicU64,
    /// The last number that was given out, over all lives.
    numbers: AtomicU64,
    fresh: AtomicU64,
    ingested: AtomicU64,
    /// Each attempt holds this lock shared. The thread that examines the result of a rollback holds
    /// it exclusively.
    gate: RwLock<()>,
    epoch: AtomicU64,
    /// Durable transactions that are left open, and their reads of keys that they have not written.
    left: Mutex<Vec<(kvdb::TransactionId, Vec<Did>)>>,
}

/// The target of a read.
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
        let side = if key >= INGESTED { key / 2 } else { key };
        (self.dicts[side as usize % 2], self.name(key))
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn name(&self, key: u64) -> Vec<u8> {
        format!("{:010}/{key:07}", self.number).into_bytes()
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
        let found: BTreeMap<Vec<u8>, Vec<u64>> =
            found.into_iter().map(|(k, v)| (k.to_vec(), decode(&v))).collect();
        for key in (from..to).filter(|key| key % 2 == side) {
            did.push(Did::Read(key, found.get(&self.name(key)).cloned().unwrap_or_default()));
        }
        Ok(())
    }

    /// Both keys of a pair that a plain commit writes about now.
    fn pair(&self, random: &mut Random) -> [u64; 2] {
        let (first, next) =
            if random.one_in(3) { (INGESTED, &self.ingested) } else { (FRESH, &self.fresh) };
        let n = (next.load(Ordering::Relaxed) + random.below(3)).saturating_sub(1);
        let first = first + 2 * n;
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

    /// A blind commit: a plain one, or a transaction that takes no locks.
    fn blind(&self, batch: Batch, durability: Durability, random: &mut Random) -> kvdb::Result<()> {
        if !random.one_in(3) {
            return self.db.commit(batch, durability);
        }
        let t = self.db.begin(Isolation::Snapshot)?;
        self.ballast(&t, random)?;
        t.apply(batch)?;
        t.commit(durability)
    }

    /// Appends to a list.
    fn append(&self, t: &Transaction, random: &mut Random, did: &mut Vec<Did>) -> kvdb::Result<()> {
        let reader = Reader::Transaction(t);
        let key = random.below(LISTS);
        let (dict, name) = self.place(key);
        if random.one_in(2) {
            t.lock_key(dict, &name, true)?;
        }
        let savepoint = random.one_in(8).then(|| t.savepoint()).transpose()?;
        let mut list = self.read(&reader, key, did)?;
        let number = self.number();
        list.push(number);
        if t.takes_bulk() && random.one_in(12) {
            let mut bulk = t.bulk(dict, &self.db.view())?;
            bulk.push(&name, &encode(&list))?;
            t.adopt(bulk.finish()?)?;
        } else {
            t.put(dict, name, encode(&list))?;
        }
        match savepoint {
            // The attempt had no effect.
            Some(savepoint) if random.one_in(2) => t.rollback_to(&savepoint)?,
            _ => did.push(Did::Append(key, number)),
        }
        Ok(())
    }

    /// Deletes a range of lists, and writes them again with an appended number.
    fn rewrite(
        &self,
        t: &Transaction,
        random: &mut Random,
        did: &mut Vec<Did>,
    ) -> kvdb::Result<()> {
        let mut read = Vec::new();
        self.scan(&Reader::Transaction(t), random, &mut read)?;
        let keys: Vec<(u64, Vec<u64>)> = read
            .iter()
            .filter_map(|did| {
                if let Did::Read(key, list) = did { Some((*key, list.clone())) } else { None }
            })
            .collect();
        did.extend(read);
        let (Some((first, _)), Some((last, _))) = (keys.first(), keys.last()) else {
            return Ok(());
        };
        let dict = self.place(*first).0;
        t.delete_range(dict, self.name(*first), self.name(*last + 1))?;
        for (key, mut list) in keys {
            if random.one_in(2) || list.is_empty() {
                let number = self.number();
                list.push(number);
                did.push(Did::Append(key, number));
            }
            t.put(dict, self.name(key), encode(&list))?;
        }
        Ok(())
    }

    /// Appends by a nested batch, while something else is changed in the transaction. The nested
    /// batch sees nothing of that.
    fn nested_batch(
        &self,
        t: &Transaction,
        random: &mut Random,
        did: &mut Vec<Did>,
    ) -> kvdb::Result<()> {
        let key = random.below(LISTS);
        let other = (key + 2) % LISTS;
        let ((dict, name), (other_dict, other_name)) = (self.place(key), self.place(other));
        // A thread that has locked both waits for no other one here.
        t.lock_key(dict, &name, true)?;
        t.lock_key(other_dict, &other_name, true)?;
        let mut nested = t.nested_batch()?;
        let before = nested.get(other_dict, &other_name)?;
        let mut list = decode(&nested.get(dict, &name)?.unwrap_or_default());
        let read = Did::Read(key, list.clone());
        let number = self.number();
        list.push(number);
        let mut batch = Batch::new();
        batch.put(dict, name.clone(), encode(&list));
        nested.apply(batch)?;
        let mut theirs = decode(&before.clone().unwrap_or_default());
        let (their_read, their_number) = (Did::Read(other, theirs.clone()), self.number());
        theirs.push(their_number);
        t.put(other_dict, &other_name, encode(&theirs))?;
        assert_eq!(
            nested.get(other_dict, &other_name)?,
            before,
            "a nested batch sees what others change"
        );
        assert_eq!(
            decode(&nested.get(dict, &name)?.unwrap_or_default()),
            list,
            "a nested batch sees what it changes"
        );
        did.extend([their_read, Did::Append(other, their_number)]);
        if random.one_in(4) {
            drop(nested);
            did.push(read);
        } else {
            nested.finish()?;
            did.extend([read, Did::Append(key, number)]);
        }
        Ok(())
    }

    /// If `simple`, everything that it has read and not appended to stays unchanged, whichever of
    /// its calls is the last that counts.
    fn transaction(
        &self,
        t: &Transaction,
        random: &mut Random,
        did: &mut Vec<Did>,
        simple: bool,
    ) -> kvdb::Result<()> {
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
            match random.below(14) {
                0 | 1 => self.scan(&reader, random, did)?,
                2..=4 => drop(self.read(&reader, random.below(LISTS), did)?),
                5 if !simple => self.rewrite(t, random, did)?,
                6 => self.nested_batch(t, random, did)?,
                _ => self.append(t, random, did)?,
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

    /// Does the same as `WATCH`, reads and `EXEC`: the reads come first, outside of any
    /// transaction, and the commit depends on them.
    fn watch(
        &self,
        durability: Durability,
        random: &mut Random,
        did: &mut Vec<Did>,
    ) -> kvdb::Result<()> {
        let watch = self.db.begin(Isolation::Snapshot)?;
        let mut keys: Vec<u64> = (0..1 + random.below(3)).map(|_| random.below(LISTS)).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in &keys {
            let (dict, name) = self.place(*key);
            watch.read_conflict_key(dict, &name)?;
        }
        let mut lists = Vec::new();
        for key in &keys {
            let (dict, name) = self.place(*key);
            let list = decode(&self.db.get(dict, &name)?.unwrap_or_default());
            did.push(Did::Read(*key, list.clone()));
            lists.push((*key, list));
        }
        let t = self.db.begin(Isolation::Snapshot)?;
        t.depend_on(&watch)?;
        if random.one_in(2) {
            // These are the reads of EXEC itself.
            let (from, to) = (random.below(LISTS), LISTS);
            let dict = self.place(from).0;
            t.read_conflict_range(dict, &self.name(from), &self.name(to))?;
            self.read(&Reader::Transaction(&t), from, did)?;
        }
        // Chooses one of these lists, or another list on which the commit does not depend.
        let (key, mut list) = match random.one_in(2) {
            true => lists.swap_remove(random.below(lists.len() as u64) as usize),
            false => {
                let key = random.below(LISTS);
                let (dict, name) = self.place(key);
                t.read_conflict_key(dict, &name)?;
                (key, self.read(&Reader::Transaction(&t), key, did)?)
            }
        };
        let (dict, name) = self.place(key);
        let number = self.number();
        list.push(number);
        t.put(dict, name, encode(&list))?;
        did.push(Did::Append(key, number));
        t.commit(durability)
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
        let ended = |t: Transaction, result: kvdb::Result<()>, random: &mut Random| match result {
            Err(_) => {
                t.abort();
                End::Failed
            }
            Ok(()) if random.one_in(20) => {
                t.abort();
                End::Failed
            }
            Ok(()) => {
                let end = end(t.commit(durability));
                // A conflict has ended it already.
                if end == End::Failed {
                    t.abort();
                }
                end
            }
        };
        let (kind, end) = match random.below(40) {
            0..4 => {
                let view = self.db.view();
                let reader = Reader::View(&view);
                let reads = self
                    .pair(random)
                    .into_iter()
                    .chain((0..3).map(|_| random.below(LISTS)))
                    .collect::<Vec<_>>();
                let read = reads
                    .into_iter()
                    .try_for_each(|key| self.read(&reader, key, &mut did).map(drop));
                let done = read.and_then(|()| self.scan(&reader, random, &mut did)).is_ok();
                ("view", if done { End::Committed } else { End::Failed })
            }
            4..8 => {
                let first = FRESH + 2 * self.fresh.fetch_add(1, Ordering::Relaxed);
                let mut batch = Batch::new();
                for key in [first, first + 1] {
                    let number = self.number();
                    let (dict, name) = self.place(key);
                    batch.put(dict, name, number.to_be_bytes().to_vec());
                    did.push(Did::Append(key, number));
                }
                ("batch", end(self.blind(batch, durability, random)))
            }
            8 => {
                let first = INGESTED + 2 * self.ingested.fetch_add(1, Ordering::Relaxed);
                let tuples: Vec<_> =
                    [first, first + 1].into_iter().map(|key| (key, self.number())).collect();
                did.extend(tuples.iter().map(|(key, number)| Did::Append(*key, *number)));
                let dict = self.place(first).0;
                let ingested = self.db.ingest(
                    dict,
                    tuples.into_iter().map(|(key, number)| (self.name(key), encode(&[number]))),
                );
                // The commit is on disk when it returns.
                let end = if ingested.is_ok() { End::Synced } else { end(ingested.map(drop)) };
                ("ingest", end)
            }
            9..13 => ("watch", end(self.watch(durability, random, &mut did))),
            13 if self.isolation == Isolation::Snapshot => {
                let options = TransactionOptions {
                    durable: true,
                    label: "history".into(),
                    ..TransactionOptions::default()
                };
                match self.db.begin_with(options) {
                    Err(_) => ("durable", End::Failed),
                    Ok(t) => {
                        let leave = random.one_in(10);
                        let done = self.transaction(&t, random, &mut did, leave);
                        if done.is_ok() && leave {
                            // The transaction is open again after the store is reopened, and reads
                            // the same values.
                            self.left.lock().push((t.id(), did.clone()));
                            ("durable", End::Failed)
                        } else {
                            ("durable", ended(t, done, random))
                        }
                    }
                }
            }
            _ => match self.db.begin_with(TransactionOptions {
                isolation: self.isolation,
                ..TransactionOptions::default()
            }) {
                Err(_) => ("transaction", End::Failed),
                Ok(t) => {
                    let done = self.transaction(&t, random, &mut did, false);
                    ("transaction", ended(t, done, random))
                }
            },
        };
        Attempt { thread, from, to: self.tick(), did, end, kind }
    }

    /// Runs transactions on several threads until there are enough or the power fails. Returns
    /// those of each epoch, in order.
    fn live(&self, seed: u64, device: &CrashDevice, rollbacks: bool) -> Vec<Epoch> {
        let over = &AtomicBool::new(false);
        let mut epochs = std::thread::scope(|scope| {
            let worker = |thread| {
                let mut random = Random::new(seed * THREADS + thread);
                let mut attempts: Vec<(u64, Attempt)> = Vec::new();
                while attempts.len() < (LIFE / THREADS) as usize && !device.is_dead() {
                    let _under_way = self.gate.read();
                    attempts.push((
                        self.epoch.load(Ordering::SeqCst),
                        self.attempt(thread, &mut random),
                    ));
                }
                attempts
            };
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || worker(thread))).collect();
            let roller =
                rollbacks.then(|| scope.spawn(move || self.roll_back_now_and_then(seed, over)));
            let attempts: Vec<_> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
            over.store(true, Ordering::SeqCst);
            let mut epochs = roller.map_or_else(Vec::new, |roller| roller.join().unwrap());
            epochs.push(Epoch::default());
            for (epoch, attempt) in attempts {
                epochs[epoch as usize].attempts.push(attempt);
            }
            epochs
        });
        Epoch::join(&mut epochs);
        epochs
    }

    /// Rolls back to a snapshot while others work. Each rollback begins a new epoch.
    fn roll_back_now_and_then(&self, seed: u64, over: &AtomicBool) -> Vec<Epoch> {
        let mut random = Random::new(seed ^ 0x5eed);
        let mut epochs = Vec::new();
        let wait = |ticks: u64| {
            let until = self.clock.load(Ordering::SeqCst) + ticks;
            while self.clock.load(Ordering::SeqCst) < until && !over.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            !over.load(Ordering::SeqCst)
        };
        while wait(10 + random.below(150)) && epochs.len() < 8 {
            let name = format!("{}-{}", self.number, epochs.len());
            let from = self.tick();
            self.db.snapshot(&name).expect("a snapshot");
            let to = self.tick();
            let kept = lists_in(
                &self.db.open_snapshot(&name).expect("it was made"),
                &self.dicts,
                self.number,
            );
            let did = kept.iter().map(|(key, list)| Did::Read(*key, list.clone())).collect();
            let snapshot =
                Attempt { thread: OBSERVER, from, to, did, end: End::Committed, kind: "snapshot" };
            wait(10 + random.below(150));
            let from = self.tick();
            let outcome = self.db.rollback(&name);
            let to = self.tick();
            match outcome {
                Ok(()) => {}
                // A transaction holds locks for too long, so the rollback had no effect.
                Err(Error::Locked(_)) => {
                    self.db.drop_snapshot(&name).expect("dropped");
                    continue;
                }
                Err(e) => panic!("rollback: {e}"),
            }
            let _alone = self.gate.write();
            let left = lists(&self.db, &self.dicts, self.number);
            self.db.drop_snapshot(&name).expect("dropped");
            epochs.push(Epoch {
                attempts: vec![snapshot],
                rollback: Some(Rollback { from, to, kept, left }),
                ..Epoch::default()
            });
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
        epochs
    }
}

/// The lists of a life as the store has them now.
fn lists(db: &Kvdb, dicts: &[DictionaryId; 2], life: u64) -> Lists {
    lists_in(&db.view(), dicts, life)
}

fn lists_in(view: &kvdb::View, dicts: &[DictionaryId; 2], life: u64) -> Lists {
    let (start, end) = (format!("{life:010}/"), format!("{life:010}0"));
    let mut all = BTreeMap::new();
    for dict in dicts {
        for (key, value) in view.scan(*dict, start.as_bytes(), end.as_bytes(), usize::MAX).unwrap()
        {
            let number = std::str::from_utf8(&key[11..]).unwrap().parse().unwrap();
            all.insert(number, decode(&value));
        }
    }
    all
}

fn open() -> OpenOptions {
    // Its background threads work, and with so little memory they have something to do.
    OpenOptions { threads: true, flush_interval: Duration::from_millis(20), ..model::small() }
}

fn run(isolation: Isolation) {
    let ((transactions, first), started) = (extent(5 * LIFE), Instant::now());
    let env = Arc::new(Machine::default());
    let device = Arc::new(CrashDevice::new());
    let options = CreateOptions { open: open(), reserve_zones: 4, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env.clone(), options).unwrap();
    let dicts = ["one", "two"]
        .map(|name| db.create_dictionary(name, DictionaryOptions::default()).unwrap());
    let mut image = device.crash(first);
    drop(db);
    let (mut figures, mut numbers, mut next) = (Figures::default(), 0, first);
    let (mut rolled_back, mut restored) = (0, 0);
    while figures.done < transactions {
        let seed = next;
        next += 1;
        let what = format!("{isolation:?}, seed {seed}");
        let mut random = Random::new(seed);
        let device = Arc::new(CrashDevice::over(image.clone()));
        let rollbacks = random.one_in(3);
        let on: Arc<dyn Device> = if random.one_in(3) {
            Arc::new(SlowSyncDevice::new(device.clone(), SYNC))
        } else {
            device.clone()
        };
        let (db, _) =
            Kvdb::open(on, env.clone(), open()).unwrap_or_else(|e| panic!("{what}: opening: {e}"));
        if !rollbacks && !random.one_in(3) {
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
            ingested: AtomicU64::new(0),
            gate: RwLock::new(()),
            epoch: AtomicU64::new(0),
            left: Mutex::default(),
        };
        let epochs = life.live(seed, &device, rollbacks);
        device.cut_power();
        image = device.crash(seed);
        numbers = life.numbers.load(Ordering::Relaxed);
        let open_ones = std::mem::take(&mut *life.left.lock());
        drop((life, db));
        for (i, epoch) in epochs.iter().enumerate() {
            figures.add(&epoch.attempts);
            rolled_back += u64::from(epoch.rollback.is_some());
            epoch.judge(isolation, &format!("{what}, epoch {i}"));
        }

        let device = Arc::new(CrashDevice::over(image.clone()));
        let (db, _) = Kvdb::open(device.clone(), env.clone(), open())
            .unwrap_or_else(|e| panic!("{what}: opening again: {e}"));
        let left = lists(&db, &dicts, seed);
        restored += judge_durable(&db, &dicts, seed, &open_ones, &what);
        db.close().unwrap_or_else(|e| panic!("{what}: closing: {e}"));
        drop(db);
        image = device.crash(seed);
        if let Some(last) = epochs.last() {
            judge(isolation, &last.history(), &left, &what);
        }
    }
    let kinds = KINDS
        .iter()
        .copied()
        .filter(|kind| *kind != "durable" || isolation == Isolation::Snapshot)
        .collect::<Vec<_>>();
    figures.conclude(&format!("{isolation:?}"), first..next, started, &kinds);
    println!("  {rolled_back} rollbacks, {restored} durable transactions after a restart");
    assert!(rolled_back > 0, "none of the lives had a rollback");
}

/// Durable transactions that were left open read the same values as before, as far as they were
/// durable. Returns their number.
fn judge_durable(
    db: &Kvdb,
    dicts: &[DictionaryId; 2],
    life: u64,
    left: &[(kvdb::TransactionId, Vec<Did>)],
    what: &str,
) -> u64 {
    let mut found = 0;
    for info in db.transactions() {
        let t = db.transaction(info.id).expect("it is open");
        if let Some((_, did)) = left.iter().find(|(id, _)| *id == info.id) {
            found += 1;
            let written: BTreeSet<u64> = did
                .iter()
                .filter_map(|did| if let Did::Append(key, _) = did { Some(*key) } else { None })
                .collect();
            for did in did {
                let Did::Read(key, list) = did else { continue };
                if *key < LISTS && !written.contains(key) {
                    let now = t
                        .get(dicts[*key as usize % 2], format!("{life:010}/{key:07}").as_bytes())
                        .expect("read");
                    assert_eq!(
                        decode(&now.unwrap_or_default()),
                        *list,
                        "{what}: durable transaction {} read list {key} otherwise",
                        info.id
                    );
                }
            }
        }
        t.abort();
    }
    found
}

#[test]
fn snapshot_isolation_holds_in_random_histories() {
    run(Isolation::Snapshot);
}

#[test]
fn serializability_holds_in_random_histories() {
    run(Isolation::Serializable);
}

/// A check that detected nothing would also accept this history.
#[test]
#[should_panic(expected = "G-single")]
fn a_lost_update_would_be_found() {
    let one = |thread, from, did| Attempt {
        thread,
        from,
        to: from + 10,
        did,
        end: End::Committed,
        kind: "transaction",
    };
    let attempts = [
        one(0, 0, vec![Did::Read(1, vec![]), Did::Append(1, 1)]),
        one(1, 1, vec![Did::Read(1, vec![]), Did::Append(1, 2)]),
        one(2, 20, vec![Did::Read(1, vec![1, 2])]),
    ];
    check(Isolation::Snapshot, &attempts, "by hand");
}

/// Write skew distinguishes the two levels.
#[test]
fn write_skew_is_valid_at_one_level_only() {
    let one = |thread, from, did| Attempt {
        thread,
        from,
        to: from + 10,
        did,
        end: End::Committed,
        kind: "transaction",
    };
    let attempts = [
        one(0, 0, vec![Did::Read(1, vec![]), Did::Read(2, vec![]), Did::Append(1, 1)]),
        one(1, 1, vec![Did::Read(1, vec![]), Did::Read(2, vec![]), Did::Append(2, 2)]),
        one(2, 20, vec![Did::Read(1, vec![1]), Did::Read(2, vec![2])]),
    ];
    check(Isolation::Snapshot, &attempts, "by hand");
    let serializable =
        std::panic::catch_unwind(|| check(Isolation::Serializable, &attempts, "by hand"));
    assert!(serializable.is_err());
}
