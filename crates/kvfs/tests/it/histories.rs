//! Checks random histories of concurrent transactions over files and keys with `adya`. Under
//! snapshot isolation they must be valid as strong snapshot isolation, and serializable ones must
//! be strictly serializable, including reads of files on the mainline.
//!
//! Transactions append to lists that are keys or files; they delete ranges and write them again,
//! cut files off, put others in their place, go back to savepoints, change keys by nested batches;
//! some are durable. Ingests put pairs of keys down that must show together. In some lives the
//! store goes back to a snapshot from time to time, which begins a new epoch (see
//! `history/epoch.rs`); others end with a power cut, after which each transaction is there whole or
//! not at all, those that were synced in any case, and durable ones that were left open read what
//! they read.
//!
//! `KVFS_TRANSACTIONS=n` runs n transactions at each level instead of the usual few,
//! `KVFS_SEED_BASE=n` begins with another seed: each run says with which one the next continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::history::epoch::{Epoch, Lists, OBSERVER, Rollback, judge};
use crate::history::{Attempt, Did, End, Figures, check, decode, encode, extent};
use env::sync::{Mutex, RwLock};
use env::{Machine, Random};
use kvdb::{
    Batch, CreateOptions, DictionaryId, Durability, Isolation, Kvdb, OpenOptions, Transaction,
    TransactionId, TransactionOptions,
};
use kvfs::{Caller, Error, FileKind, Fs, FsOptions, ROOT, Result, SetAttr, ViewId, Views};
use zones::CrashDevice;

const THREADS: u64 = 4;
/// Transactions of a life.
const LIFE: u64 = 400;
/// Lists; the second half of them are files.
const LISTS: u64 = 8;
/// The numbers of keys that ingests write, each once and in pairs, follow after the lists.
const INGESTED: u64 = 1_000_000;

/// A store, open.
struct Open {
    db: Kvdb,
    fs: Fs,
    views: Views,
    rows: DictionaryId,
}

struct Life {
    open: Open,
    device: Arc<CrashDevice>,
    isolation: Isolation,
    clock: AtomicU64,
    numbers: AtomicU64,
    ingested: AtomicU64,
    /// Each attempt holds this lock shared. The thread that examines the result of a rollback holds
    /// it exclusively.
    gate: RwLock<()>,
    epoch: AtomicU64,
    /// Durable transactions that are left open and kept, and their actions.
    left: Mutex<Vec<(TransactionId, Vec<Did>)>>,
}

fn is_file(list: u64) -> bool {
    (LISTS / 2..LISTS).contains(&list)
}

fn name(list: u64) -> String {
    format!("list{list:07}")
}

fn content(fs: &Fs, list: u64) -> Result<Vec<u8>> {
    let attr = fs.resolve(name(list).as_bytes())?;
    Ok(fs.read(attr.ino, 0, attr.size as u32)?.to_vec())
}

impl Open {
    fn new(db: Kvdb) -> Open {
        let options =
            FsOptions { flush_interval: Duration::from_millis(40), ..FsOptions::default() };
        let fs =
            Fs::open(db.clone(), Arc::new(Machine::default()), options).expect("a file system");
        let rows = db.open_dictionary("rows").expect("made").id();
        Open { views: Views::new(db.clone(), fs.clone()), db, fs, rows }
    }

    /// All lists of a state.
    fn lists(&self, keys: &kvdb::View, files: &Fs) -> Lists {
        let mut all = Lists::new();
        for (key, value) in keys.scan(self.rows, b"", b"", usize::MAX).expect("read") {
            let number = std::str::from_utf8(&key[4..]).expect("a name").parse().expect("a number");
            all.insert(number, decode(&value));
        }
        for list in (0..LISTS).filter(|list| is_file(*list)) {
            all.insert(
                list,
                decode(&content(files, list).unwrap_or_else(|e| panic!("list {list}: {e}"))),
            );
        }
        all
    }
}

/// A transaction under way, by both of its interfaces.
struct Handles {
    id: TransactionId,
    fs: Fs,
    t: Transaction,
}

impl Life {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn read(&self, handles: &Handles, list: u64, did: &mut Vec<Did>) -> Result<Vec<u64>> {
        let bytes = match is_file(list) {
            true => content(&handles.fs, list)?,
            false => {
                handles.t.get(self.open.rows, name(list).as_bytes())?.unwrap_or_default().to_vec()
            }
        };
        let found = decode(&bytes);
        did.push(Did::Read(list, found.clone()));
        Ok(found)
    }

    fn append(
        &self,
        handles: &Handles,
        list: u64,
        random: &mut Random,
        did: &mut Vec<Did>,
    ) -> Result<()> {
        let mut numbers = self.read(handles, list, did)?;
        let number = self.number();
        numbers.push(number);
        if is_file(list) {
            let ino = handles.fs.resolve(name(list).as_bytes())?.ino;
            let at = (numbers.len() as u64 - 1) * 8;
            match random.below(4) {
                // The list is cut off and written again.
                0 => {
                    handles.fs.setattr(
                        ino,
                        &SetAttr { size: Some(0), ..SetAttr::default() },
                        Caller::default(),
                    )?;
                    handles.fs.write(ino, 0, &encode(&numbers), Default::default())?;
                }
                // Replaces the file by another one.
                1 => {
                    let new = format!("new{number}");
                    let attr = handles.fs.mknod(
                        ROOT,
                        new.as_bytes(),
                        FileKind::File,
                        0o644,
                        0,
                        Caller::default(),
                    )?;
                    handles.fs.write(attr.ino, 0, &encode(&numbers), Default::default())?;
                    let renamed = handles.fs.rename(
                        ROOT,
                        new.as_bytes(),
                        ROOT,
                        name(list).as_bytes(),
                        Default::default(),
                    );
                    handles.fs.forget(attr.ino, 1);
                    renamed?;
                }
                sync => {
                    assert_eq!(
                        handles.fs.write(ino, at, &number.to_be_bytes(), Default::default())?,
                        8
                    );
                    if sync == 2 {
                        handles.fs.fsync(ino, false)?;
                    }
                }
            }
        } else {
            handles.t.put(self.open.rows, name(list), encode(&numbers))?;
        }
        did.push(Did::Append(list, number));
        Ok(())
    }

    /// Reads a range of the lists that are keys. With `rewrite`, deletes it, and writes it again
    /// with an appended number.
    fn range(
        &self,
        handles: &Handles,
        rewrite: bool,
        random: &mut Random,
        did: &mut Vec<Did>,
    ) -> Result<()> {
        let from = random.below(LISTS / 2);
        let to = from + 1 + random.below(LISTS / 2 - from);
        let (start, end) = (name(from), name(to));
        let found = handles.t.scan(self.open.rows, start.as_bytes(), end.as_bytes(), usize::MAX)?;
        let list_of = |list: u64| {
            found
                .iter()
                .find(|(key, _)| key[..] == *name(list).as_bytes())
                .map(|(_, value)| decode(value))
        };
        let all: Vec<(u64, Vec<u64>)> =
            (from..to).map(|list| (list, list_of(list).unwrap_or_default())).collect();
        did.extend(all.iter().map(|(list, numbers)| Did::Read(*list, numbers.clone())));
        if !rewrite {
            return Ok(());
        }
        handles.t.delete_range(self.open.rows, start, end)?;
        for (list, mut numbers) in all {
            if random.one_in(2) || numbers.is_empty() {
                let number = self.number();
                numbers.push(number);
                did.push(Did::Append(list, number));
            }
            handles.t.put(self.open.rows, name(list), encode(&numbers))?;
        }
        Ok(())
    }

    /// Appends to a key by a nested batch, of which the transaction sees nothing until it is
    /// finished.
    fn nested_batch(
        &self,
        handles: &Handles,
        random: &mut Random,
        did: &mut Vec<Did>,
    ) -> Result<()> {
        let list = random.below(LISTS / 2);
        handles.t.lock_key(self.open.rows, name(list).as_bytes(), true)?;
        let mut nested = handles.t.nested_batch()?;
        let mut numbers =
            decode(&nested.get(self.open.rows, name(list).as_bytes())?.unwrap_or_default());
        let (read, number) = (Did::Read(list, numbers.clone()), self.number());
        numbers.push(number);
        let mut batch = Batch::new();
        batch.put(self.open.rows, name(list), encode(&numbers));
        nested.apply(batch)?;
        let outside =
            decode(&handles.t.get(self.open.rows, name(list).as_bytes())?.unwrap_or_default());
        assert!(
            !outside.contains(&number),
            "a transaction sees what its nested batch may still drop"
        );
        did.push(read);
        if !random.one_in(4) {
            nested.finish()?;
            did.push(Did::Append(list, number));
        }
        Ok(())
    }

    fn transaction(
        &self,
        id: TransactionId,
        random: &mut Random,
        did: &mut Vec<Did>,
    ) -> Result<()> {
        let handles = Handles {
            id,
            fs: self.open.views.fs(&ViewId::Transaction(id))?,
            t: self.open.views.transaction(id)?,
        };
        let newest = (self.ingested.load(Ordering::Relaxed) + random.below(2)).saturating_sub(1);
        let pair = random.one_in(4).then_some(INGESTED + 2 * newest);
        if let Some(first) = pair {
            self.read(&handles, first, did)?;
        }
        for _ in 0..1 + random.below(4) {
            let list = random.below(LISTS);
            match random.below(12) {
                0..3 => drop(self.read(&handles, list, did)?),
                kind @ (3 | 4) => self.range(&handles, kind == 4, random, did)?,
                5 => self.nested_batch(&handles, random, did)?,
                _ => {
                    let savepoint = random
                        .one_in(6)
                        .then(|| self.open.views.savepoint(handles.id))
                        .transpose()?;
                    let before = did.len();
                    self.append(&handles, list, random, did)?;
                    if let Some(savepoint) = savepoint.filter(|_| random.one_in(2)) {
                        self.open.views.rollback_to(handles.id, &savepoint)?;
                        // The attempt had no effect, but its reads count.
                        did.truncate(before + 1);
                    }
                }
            }
            if random.one_in(3) {
                std::thread::yield_now();
            }
        }
        if let Some(first) = pair {
            self.read(&handles, first + 1, did)?;
        }
        Ok(())
    }

    /// A file of the mainline, as it is now.
    fn mainline(&self, list: u64) -> Result<Vec<u64>> {
        loop {
            match content(&self.open.fs, list) {
                // Another file replaced it between the two calls of this operation.
                Err(Error::Stale(_)) if !self.device.is_dead() => std::thread::yield_now(),
                read => return Ok(decode(&read?)),
            }
        }
    }

    /// Returns the end that an error means for an attempt that has not begun to commit.
    fn failed(&self, e: &Error) -> End {
        let expected = matches!(e.errno(), libc::EDEADLK | libc::ESTALE | libc::ENOENT);
        assert!(expected || self.device.is_dead(), "{e} (errno {})", e.errno());
        End::Failed
    }

    fn committed(&self, done: Result<()>, durability: Durability) -> End {
        match done {
            Ok(()) if durability == Durability::Synced => End::Synced,
            Ok(()) => End::Committed,
            Err(_) if self.device.is_dead() => End::Unknown,
            Err(e) => self.failed(&e),
        }
    }

    fn abort(&self, id: TransactionId) {
        // The transaction may have ended already.
        if let Err(e) = self.open.views.abort(id) {
            self.failed(&e);
        }
    }

    /// A transaction from its beginning to its end.
    fn whole(
        &self,
        options: TransactionOptions,
        durability: Durability,
        random: &mut Random,
        did: &mut Vec<Did>,
    ) -> End {
        let durable = options.durable;
        let id = match self.open.views.begin(options) {
            Ok(id) => id,
            Err(e) => return self.failed(&e),
        };
        let done = self.transaction(id, random, did);
        match done {
            Err(e) => {
                self.abort(id);
                self.failed(&e)
            }
            Ok(()) if durable && random.one_in(10) => {
                match self.open.views.keep(id) {
                    Ok(()) => self.left.lock().push((id, did.clone())),
                    Err(e) => drop(self.failed(&e)),
                }
                End::Failed
            }
            Ok(()) if random.one_in(20) => {
                self.abort(id);
                End::Failed
            }
            Ok(()) => {
                let end = self.committed(self.open.views.commit(id, durability), durability);
                if end == End::Failed {
                    self.abort(id);
                }
                end
            }
        }
    }

    fn attempt(&self, thread: u64, random: &mut Random) -> Attempt {
        let mut did = Vec::new();
        let from = self.tick();
        let durability = if random.one_in(4) { Durability::Synced } else { Durability::Buffered };
        let lock_timeout = Duration::from_millis(500);
        let (kind, end) = match random.below(32) {
            0..4 => {
                let list = LISTS / 2 + random.below(LISTS / 2);
                match self.mainline(list) {
                    Ok(numbers) => {
                        did.push(Did::Read(list, numbers));
                        ("mainline", End::Committed)
                    }
                    Err(e) => {
                        assert!(self.device.is_dead(), "a file of the mainline: {e}");
                        ("mainline", End::Failed)
                    }
                }
            }
            4 => {
                let first = INGESTED + 2 * self.ingested.fetch_add(1, Ordering::Relaxed);
                let tuples: Vec<_> =
                    [first, first + 1].into_iter().map(|list| (list, self.number())).collect();
                did.extend(tuples.iter().map(|(list, number)| Did::Append(*list, *number)));
                let tuples =
                    tuples.into_iter().map(|(list, number)| (name(list), encode(&[number])));
                let done =
                    self.open.db.ingest(self.open.rows, tuples).map(drop).map_err(Error::from);
                // The commit is on disk when it returns.
                ("ingest", self.committed(done, Durability::Synced))
            }
            5..9 if self.isolation == Isolation::Snapshot => {
                let options = TransactionOptions { durable: true, ..TransactionOptions::default() };
                ("durable", self.whole(options, durability, random, &mut did))
            }
            _ => {
                let options = TransactionOptions {
                    isolation: self.isolation,
                    lock_timeout,
                    ..TransactionOptions::default()
                };
                ("transaction", self.whole(options, durability, random, &mut did))
            }
        };
        Attempt { thread, from, to: self.tick(), did, end, kind }
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
        let Open { db, fs, views, .. } = &self.open;
        while wait(10 + random.below(100)) && epochs.len() < 6 {
            let snapshot = format!("s{}", epochs.len());
            let from = self.tick();
            match views.snapshot(&ViewId::Mainline, &snapshot, Durability::Buffered) {
                Ok(()) => {}
                // A transaction holds a lock on data that would have to be committed first.
                Err(e) if e.errno() == libc::EDEADLK => continue,
                Err(e) => panic!("a snapshot: {e}"),
            }
            let to = self.tick();
            let files = views.fs(&ViewId::Snapshot(snapshot.clone())).expect("it was made");
            let kept = self.open.lists(&db.open_snapshot(&snapshot).expect("it was made"), &files);
            let did =
                kept.iter().map(|(list, numbers)| Did::Read(*list, numbers.clone())).collect();
            let made =
                Attempt { thread: OBSERVER, from, to, did, end: End::Committed, kind: "snapshot" };
            wait(10 + random.below(100));
            let from = self.tick();
            let outcome = views.rollback(&snapshot);
            let to = self.tick();
            match outcome {
                Ok(()) => {}
                // A transaction that began since has a lock. The rollback had no effect except that
                // earlier transactions have ended.
                Err(e) if e.errno() == libc::EDEADLK => {
                    views.drop_snapshot(&snapshot).expect("dropped");
                    continue;
                }
                Err(e) => panic!("rollback: {e}"),
            }
            let _alone = self.gate.write();
            let left = self.open.lists(&db.view(), fs);
            views.drop_snapshot(&snapshot).expect("dropped");
            epochs.push(Epoch {
                attempts: vec![made],
                rollback: Some(Rollback { from, to, kept, left }),
                ..Epoch::default()
            });
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
        epochs
    }

    fn live(&self, seed: u64, rollbacks: bool) -> Vec<Epoch> {
        let over = &AtomicBool::new(false);
        let mut epochs = std::thread::scope(|scope| {
            let worker = |thread| {
                let mut random = Random::new(seed * THREADS + thread);
                let mut attempts: Vec<(u64, Attempt)> = Vec::new();
                while attempts.len() < (LIFE / THREADS) as usize && !self.device.is_dead() {
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
            let attempts: Vec<_> =
                threads.into_iter().flat_map(|t| t.join().expect("it came to its end")).collect();
            over.store(true, Ordering::SeqCst);
            let mut epochs =
                roller.map_or_else(Vec::new, |roller| roller.join().expect("it came to its end"));
            epochs.push(Epoch::default());
            for (epoch, attempt) in attempts {
                epochs[epoch as usize].attempts.push(attempt);
            }
            epochs
        });
        Epoch::join(&mut epochs);
        epochs
    }
}

fn options() -> OpenOptions {
    OpenOptions {
        memory: 4 << 20,
        flush_interval: Duration::from_millis(20),
        zero_journal: false,
        ..OpenOptions::default()
    }
}

fn run(isolation: Isolation) {
    let ((transactions, first), started) = (extent(8 * LIFE), Instant::now());
    let (mut figures, mut next) = (Figures::default(), first);
    let (mut rolled_back, mut cuts, mut restored) = (0, 0, 0);
    while figures.done < transactions {
        let seed = next;
        next += 1;
        let what = format!("{isolation:?}, files and keys, seed {seed}");
        let mut random = Random::new(seed);
        let device = Arc::new(CrashDevice::new());
        let create =
            CreateOptions { open: options(), reserve_zones: 4, ..CreateOptions::default() };
        let open = Open::new(
            Kvdb::create(device.clone(), Arc::new(Machine::default()), create)
                .expect("memory does not fail"),
        );
        for list in (0..LISTS).filter(|list| is_file(*list)) {
            open.fs
                .mknod(ROOT, name(list).as_bytes(), FileKind::File, 0o644, 0, Caller::default())
                .expect("made");
        }
        open.fs.sync_all().expect("memory does not fail");
        let (rollbacks, cut) = (seed.is_multiple_of(3), seed % 3 == 1);
        if cut {
            device.cut_power_after(random.below(400));
        }
        let life = Life {
            open,
            device: device.clone(),
            isolation,
            clock: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            ingested: AtomicU64::new(0),
            gate: RwLock::new(()),
            epoch: AtomicU64::new(0),
            left: Mutex::default(),
        };
        let epochs = life.live(seed, rollbacks);
        for (i, epoch) in epochs.iter().enumerate() {
            figures.add(&epoch.attempts);
            rolled_back += u64::from(epoch.rollback.is_some());
            epoch.judge(isolation, &format!("{what}, epoch {i}"));
        }
        if cut {
            cuts += 1;
            device.cut_power();
            let kept = std::mem::take(&mut *life.left.lock());
            let image = device.crash(seed);
            let device = Arc::new(CrashDevice::over(image));
            let opened = Kvdb::open(device, Arc::new(Machine::default()), options());
            let open = Open::new(opened.unwrap_or_else(|e| panic!("{what}: opening again: {e}")).0);
            let left = open.lists(&open.db.view(), &open.fs);
            restored += kept.len();
            kept.iter().for_each(|(id, did)| reads_what_it_read(&open, *id, did, &what));
            if let Some(last) = epochs.last() {
                judge(isolation, &last.history(), &left, &what);
            }
        }
    }
    let kinds = ["transaction", "mainline", "ingest", "durable"];
    let kinds: Vec<_> = kinds
        .into_iter()
        .filter(|kind| *kind != "durable" || isolation == Isolation::Snapshot)
        .collect();
    figures.conclude(&format!("{isolation:?}, files and keys"), first..next, started, &kinds);
    println!(
        "  {rolled_back} rollbacks, {cuts} power cuts, {restored} durable transactions behind them"
    );
    assert!(rolled_back > 0 && cuts > 0, "too few lives");
}

/// A durable transaction that was kept is open again, and has its changes on top of the state that
/// it read.
fn reads_what_it_read(open: &Open, id: TransactionId, did: &[Did], what: &str) {
    let fs = open
        .views
        .fs(&ViewId::Transaction(id))
        .unwrap_or_else(|e| panic!("{what}: durable transaction {id} is gone: {e}"));
    let t = open.views.transaction(id).expect("it is open");
    for did in did {
        let (list, wanted) = match did {
            Did::Read(list, numbers) => (*list, &numbers[..]),
            Did::Append(list, number) => (*list, std::slice::from_ref(number)),
        };
        let now = match is_file(list) {
            true => content(&fs, list).expect("read"),
            false => {
                t.get(open.rows, name(list).as_bytes()).expect("read").unwrap_or_default().to_vec()
            }
        };
        let now = decode(&now);
        let has = match did {
            Did::Read(..) => now.starts_with(wanted),
            Did::Append(..) => now.contains(&wanted[0]),
        };
        assert!(has, "{what}: durable transaction {id}: {did:?}, and list {list} is {now:?}");
    }
    open.views.abort(id).expect("it is open");
}

#[test]
fn snapshot_isolation_holds_over_files_and_keys() {
    run(Isolation::Snapshot);
}

#[test]
fn serializability_holds_over_files_and_keys() {
    run(Isolation::Serializable);
}

/// A check that detected nothing in files would also accept this history.
#[test]
#[should_panic(expected = "G-single")]
fn a_lost_update_of_a_file_would_be_found() {
    let one = |thread, from, did| Attempt {
        thread,
        from,
        to: from + 10,
        did,
        end: End::Committed,
        kind: "transaction",
    };
    let attempts = [
        one(0, 0, vec![Did::Read(5, vec![]), Did::Append(5, 1)]),
        one(1, 1, vec![Did::Read(5, vec![]), Did::Append(5, 2)]),
        one(2, 20, vec![Did::Read(5, vec![1, 2])]),
    ];
    check(Isolation::Snapshot, &attempts, "by hand");
}
