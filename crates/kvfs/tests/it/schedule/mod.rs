//! Runs programs of several threads on the files of one store, each under the schedule of a seed,
//! together with the threads of the file system and the store, and with slow syncs. The programs
//! write, truncate and fsync on the mainline, use transactions over files and a key and nested
//! ones, merge clones before or after a rebase, and roll back to a snapshot. One order of all
//! operations must explain every read. See `history`.
//!
//! `KVFS_SEEDS=n` runs n seeds, `KVFS_SEED=n` only this one, `KVFS_SEED_BASE=n` begins with it.
//! Long runs: `KVFS_SEEDS=20000 cargo test --profile simulation -p kvfs --test it schedule::`.
#![cfg(debug_assertions)]

#[path = "../../../../kvdb/tests/it/schedule/history.rs"]
mod history;
#[path = "../../../../kvdb/tests/it/schedule/slow_sync.rs"]
mod slow_sync;

use std::collections::BTreeMap;
use std::sync::Arc;

use env::sync::Mutex;
use env::sync::atomic::{AtomicU64, Ordering::Relaxed};
use env::{Random, Scheduled, schedule, thread};
use history::{Effect, Operation, REGISTERS};
use kvdb::{
    CreateOptions, DictionaryId, DictionaryOptions, Durability, Isolation, Kvdb, OpenOptions,
    Settled, TransactionOptions,
};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, MergeOptions, ROOT, SetAttr, ViewId, Views};
use slow_sync::SlowSync;
use zones::CrashDevice;

const THREADS: u64 = 3;
const OPERATIONS: u64 = 4;
const SNAPSHOT: &str = "s";
const KEY: &[u8] = b"key";
/// The register that is a key; the others are files.
const KEYED: usize = REGISTERS - 1;

struct World {
    views: Views,
    db: Kvdb,
    fs: Fs,
    dict: DictionaryId,
    files: Vec<Ino>,
    numbers: AtomicU64,
    clock: AtomicU64,
    done: Mutex<Vec<Operation>>,
    naming: Mutex<bool>,
    /// The kinds of operations of this run.
    kinds: Vec<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Put,
    Read,
    SnapshotIsolation,
    Serializable,
    /// A snapshot, and rollbacks to it.
    Return,
    Look,
    Flush,
    /// A transaction, and one within it.
    Nested,
    /// A clone, which is merged.
    Merge,
    /// A clone, which is rebased before it is merged.
    Rebase,
}

/// The weight of each kind.
const KINDS: [(Kind, usize); 8] = [
    (Kind::Write, 3),
    (Kind::Put, 2),
    (Kind::Read, 2),
    (Kind::SnapshotIsolation, 3),
    (Kind::Serializable, 3),
    (Kind::Return, 2),
    (Kind::Look, 1),
    (Kind::Flush, 1),
];

/// Uses all kinds or a few. A bug that needs several operations of few kinds is found sooner
/// without the others (swarm testing: Groce, Zhang, Eide, Chen, Regehr, ISSTA 2012).
fn kinds(seed: u64, random: &mut Random) -> Vec<Kind> {
    let all = random.one_in(3);
    let mut drawn = Vec::new();
    for (kind, weight) in KINDS {
        if all || kind == Kind::Write || random.one_in(2) {
            drawn.extend(std::iter::repeat_n(kind, weight));
        }
    }
    // Apart from the others, so that a seed without them has the program that it had before.
    let mut random = Random::new(seed ^ 0x3e46);
    if random.one_in(2) {
        for kind in [Kind::Nested, Kind::Merge, Kind::Rebase] {
            drawn.extend(std::iter::repeat_n(kind, random.below(6) as usize));
        }
    }
    drawn
}

fn decode(bytes: &[u8]) -> Option<u64> {
    bytes.get(..8).map(|b| u64::from_be_bytes(b.try_into().expect("eight bytes")))
}

/// Encodes a number with one of two lengths, so that files lie in their nodes and in pages. The
/// number stands at the start.
fn encode(value: u64) -> Vec<u8> {
    let mut bytes = value.to_be_bytes().to_vec();
    bytes.resize(if value.is_multiple_of(3) { 9000 } else { 8 }, 7);
    bytes
}

fn missing(error: &kvfs::Error) -> bool {
    use kvdb::Error::{Conflict, Locked, NoTransaction};
    matches!(
        error,
        kvfs::Error::Store(Conflict { .. } | Locked(_) | NoTransaction(_))
            | kvfs::Error::Stale(_)
            | kvfs::Error::NotFound
    )
}

impl World {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Relaxed)
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed)
    }

    fn read_file(&self, fs: &Fs, register: usize) -> kvfs::Result<Option<u64>> {
        Ok(decode(&fs.read(self.files[register], 0, 8)?))
    }

    fn write_file(&self, fs: &Fs, register: usize, value: Option<u64>) -> kvfs::Result<()> {
        let ino = self.files[register];
        match value {
            Some(value) => fs.write(ino, 0, &encode(value), Default::default()).map(drop),
            None => fs
                .setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }, Caller::default())
                .map(drop),
        }
    }

    /// Reads registers and changes some of them, all in one transaction.
    fn transact(
        &self,
        isolation: Isolation,
        durability: Durability,
        random: &mut Random,
    ) -> kvfs::Result<Effect> {
        let id =
            self.views.begin(TransactionOptions { isolation, ..TransactionOptions::default() })?;
        let worked = self.work(id, isolation, random);
        let (mut read, wrote) = match worked {
            Ok(did) => did,
            Err(e) => {
                let _ = self.views.abort(id);
                return Err(e);
            }
        };
        if let Err(e) = self.views.commit(id, durability) {
            let _ = self.views.abort(id);
            return Err(e);
        }
        // Under snapshot isolation, data that a transaction reads and does not change is that of
        // its beginning.
        if isolation == Isolation::Snapshot && !wrote.is_empty() {
            read.retain(|(register, _)| wrote.iter().any(|(w, _)| w == register));
        }
        Ok(Effect::Change { read, wrote })
    }

    #[allow(
        clippy::type_complexity,
        reason = "what was read and what was written, as an effect has them"
    )]
    fn work(
        &self,
        id: kvdb::TransactionId,
        isolation: Isolation,
        random: &mut Random,
    ) -> kvfs::Result<(Vec<(usize, Option<u64>)>, Vec<(usize, Option<u64>)>)> {
        let fs = self.views.fs(&ViewId::Transaction(id))?;
        let transaction = self.views.transaction(id)?;
        let all = random.one_in(2);
        let registers: Vec<usize> = (0..REGISTERS).filter(|_| all || random.one_in(2)).collect();
        let mut read = Vec::new();
        for &register in &registers {
            let value = match register {
                KEYED => transaction.get(self.dict, KEY)?.and_then(|v| decode(&v)),
                file => self.read_file(&fs, file)?,
            };
            read.push((register, value));
        }
        let mut wrote = Vec::new();
        // Some only read.
        for _ in 0..random.below(3) {
            let register = match isolation {
                Isolation::Serializable => random.below(REGISTERS as u64) as usize,
                Isolation::Snapshot => match random.pick(&registers) {
                    Some(register) => *register,
                    None => break,
                },
            };
            let new = self.number();
            let value = Some(new);
            match register {
                KEYED => transaction.put(self.dict, KEY, encode(new))?,
                file => self.write_file(&fs, file, value)?,
            }
            wrote.push((register, value));
        }
        Ok((read, wrote))
    }

    /// Works in a transaction, and in one within it, which is committed into it or aborted.
    fn transact_within(&self, durability: Durability, random: &mut Random) -> kvfs::Result<Effect> {
        let id = self.views.begin(TransactionOptions::default())?;
        let mut work = || {
            let (mut read, mut wrote) = self.work(id, Isolation::Snapshot, random)?;
            let within = TransactionOptions { within: Some(id), ..TransactionOptions::default() };
            let inner = self.views.begin(within)?;
            let (seen, changed) = self.work(inner, Isolation::Snapshot, random)?;
            for (register, value) in seen {
                match wrote.iter().rfind(|(own, _)| *own == register) {
                    Some((_, own)) => assert_eq!(value, *own, "it sees what is around it"),
                    None => read.push((register, value)),
                }
            }
            if random.one_in(3) {
                self.views.abort(inner)?;
            } else {
                self.views.commit(inner, Durability::Buffered)?;
                wrote.extend(changed);
            }
            self.views.commit(id, durability)?;
            Ok((read, wrote))
        };
        let did: kvfs::Result<_> = work();
        if did.is_err() {
            let _ = self.views.abort(id);
        }
        let (mut read, wrote) = did?;
        if !wrote.is_empty() {
            read.retain(|(register, _)| wrote.iter().any(|(w, _)| w == register));
        }
        Ok(Effect::Change { read, wrote })
    }

    /// Reads and changes registers in a clone, which is then merged, perhaps after a rebase. It
    /// reads the state of its snapshot, and its merge is its commit.
    fn branch(
        &self,
        rebases: bool,
        durability: Durability,
        random: &mut Random,
    ) -> kvfs::Result<Option<Effect>> {
        let name = format!("b{}", self.number());
        self.views.snapshot(&ViewId::Mainline, &name, Durability::Buffered)?;
        let made = self.views.clone_snapshot(&name, &name);
        self.views.drop_snapshot(&name)?;
        made?;
        let did = self.work_in_branch(&name, (rebases, durability), random);
        self.views.drop_clone(&name)?;
        did
    }

    fn work_in_branch(
        &self,
        name: &str,
        (rebases, durability): (bool, Durability),
        random: &mut Random,
    ) -> kvfs::Result<Option<Effect>> {
        let fs = self.views.fs(&ViewId::Clone(name.into()))?;
        let dict = self.db.dictionary_in(name, "user").expect("it was cloned");
        let all = || {
            let value = |register| match register {
                KEYED => Ok(self.db.get(dict, KEY)?.and_then(|v| decode(&v))),
                file => self.read_file(&fs, file),
            };
            (0..REGISTERS).map(value).collect::<kvfs::Result<Vec<_>>>()
        };
        let origin = all()?;
        let (mut rebased, mut rebased_since) = (origin.clone(), None);
        let (mut read, mut wrote) = (Vec::new(), Vec::new());
        for register in 0..REGISTERS {
            if random.one_in(2) {
                continue;
            }
            let value = match register {
                KEYED => self.db.get(dict, KEY)?.and_then(|v| decode(&v)),
                file => self.read_file(&fs, file)?,
            };
            read.push((register, value));
            if random.one_in(3) {
                continue;
            }
            let new = self.number();
            match register {
                KEYED => self.db.put(dict, KEY, &encode(new), Durability::Buffered)?,
                file => self.write_file(&fs, file, Some(new))?,
            }
            wrote.push((register, Some(new)));
        }
        for rebase in [true, false].into_iter().filter(|rebase| rebases || !rebase) {
            let options = MergeOptions { clone: name.into(), rebase, ..MergeOptions::default() };
            let merged = self.views.merge(&options, &|_, _| Settled::Conflict)?;
            if !merged.conflicts.is_empty() {
                self.views.abort(merged.transaction)?;
                return Ok(None);
            }
            if let Err(e) = self.views.commit(merged.transaction, durability) {
                let _ = self.views.abort(merged.transaction);
                return Err(e);
            }
            if rebase {
                (rebased, rebased_since) = (all()?, merged.since);
            } else if rebases && merged.since == rebased_since {
                // The parent was rolled back after the rebase to a state from before it: the
                // common state is the older one again, and what the clone has taken over from its
                // parent since is a change of the clone.
                let changed = (0..REGISTERS).filter(|i| rebased[*i] != origin[*i]);
                (read, wrote) = changed.map(|i| ((i, origin[i]), (i, rebased[i]))).unzip();
            }
        }
        if !wrote.is_empty() {
            read.retain(|(register, _)| wrote.iter().any(|(w, _)| w == register));
        }
        Ok(Some(Effect::Change { read, wrote }))
    }

    fn look(&self) -> kvfs::Result<Vec<(usize, Option<u64>)>> {
        let fs = self.views.fs(&ViewId::Snapshot(SNAPSHOT.into()))?;
        let mut read = vec![(
            KEYED,
            self.db.open_snapshot(SNAPSHOT)?.get(self.dict, KEY)?.and_then(|v| decode(&v)),
        )];
        for register in 0..KEYED {
            read.push((register, self.read_file(&fs, register)?));
        }
        Ok(read)
    }

    /// The operations of one thread.
    fn operate_often(&self, random: &mut Random) {
        let mut before = None;
        for _ in 0..OPERATIONS {
            // The order is that of programs: first a file, and then the key that refers to it.
            let kind = match before {
                Some(Kind::Write) if self.kinds.contains(&Kind::Put) && random.one_in(2) => {
                    Kind::Put
                }
                _ => *random.pick(&self.kinds).expect("writes are always among them"),
            };
            self.operate(kind, random);
            before = Some(kind);
        }
    }

    /// Runs one operation. Returns its effect if it succeeded.
    fn operate(&self, kind: Kind, random: &mut Random) {
        let durability = if random.one_in(3) { Durability::Synced } else { Durability::Buffered };
        let file = random.below(KEYED as u64) as usize;
        let from = self.tick();
        let change = |read, wrote| Some(Effect::Change { read, wrote });
        let (what, outcome) = match kind {
            Kind::Write => {
                let value = (!random.one_in(8)).then(|| self.number());
                (
                    "write",
                    self.write_file(&self.fs, file, value)
                        .map(|()| change(Vec::new(), vec![(file, value)])),
                )
            }
            Kind::Put => {
                let value = self.number();
                let put = self.db.put(self.dict, KEY, &encode(value), durability);
                (
                    "put",
                    put.map(|()| change(Vec::new(), vec![(KEYED, Some(value))]))
                        .map_err(kvfs::Error::from),
                )
            }
            Kind::Read => (
                "read",
                self.read_file(&self.fs, file).map(|value| change(vec![(file, value)], Vec::new())),
            ),
            Kind::SnapshotIsolation => {
                ("si transaction", self.transact(Isolation::Snapshot, durability, random).map(Some))
            }
            Kind::Serializable => (
                "ser transaction",
                self.transact(Isolation::Serializable, durability, random).map(Some),
            ),
            Kind::Nested => {
                ("nested transaction", self.transact_within(durability, random).map(Some))
            }
            Kind::Merge => ("merge", self.branch(false, durability, random)),
            Kind::Rebase => ("rebase and merge", self.branch(true, durability, random)),
            Kind::Return => {
                let mut named = self.naming.lock();
                if *named {
                    ("rollback", self.views.rollback(SNAPSHOT).map(|()| Some(Effect::Rollback)))
                } else {
                    *named = true;
                    (
                        "snapshot",
                        self.views
                            .snapshot(&ViewId::Mainline, SNAPSHOT, durability)
                            .map(|()| Some(Effect::Snapshot)),
                    )
                }
            }
            Kind::Look if *self.naming.lock() => {
                ("look into the snapshot", self.look().map(|read| Some(Effect::InSnapshot(read))))
            }
            Kind::Look => ("fsync", self.fs.fsync(self.files[file], false).map(|()| None)),
            Kind::Flush => ("flush", self.db.flush().map(|()| None).map_err(kvfs::Error::from)),
        };
        let effect = match outcome {
            Ok(effect) => effect,
            Err(e) if missing(&e) => None,
            Err(e) => panic!("{what} failed: {e}"),
        };
        let to = Some(self.tick());
        let operation = |effect| Operation { what: what.into(), from, to, synced: false, effect };
        self.done.lock().extend(effect.map(operation));
    }
}

fn program(seed: u64) -> BTreeMap<&'static str, u64> {
    let mut random = Random::new(seed ^ 0xf11e);
    let device = Arc::new(SlowSync(CrashDevice::new()));
    let open = OpenOptions {
        memory: 1 << 20,
        zero_journal: false,
        merge_threads: 1,
        ..OpenOptions::default()
    };
    let options = CreateOptions { open, reserve_zones: 4, ..CreateOptions::default() };
    let env = Arc::new(Scheduled);
    let db = Kvdb::create(device, env.clone(), options).expect("a store");
    let dict = db.create_dictionary("user", DictionaryOptions::default()).expect("a dictionary");
    let fs = Fs::open(db.clone(), env, FsOptions::default()).expect("a file system");
    let views = Views::new(db.clone(), fs.clone());
    let make = |name: usize| {
        fs.mknod(ROOT, format!("f{name}").as_bytes(), FileKind::File, 0o644, 0, Caller::default())
    };
    let files = (0..KEYED).map(|i| make(i).expect("a file").ino).collect();
    let world = World {
        views,
        db,
        fs,
        dict,
        files,
        numbers: AtomicU64::new(1),
        clock: AtomicU64::new(0),
        done: Mutex::default(),
        naming: Mutex::new(false),
        kinds: kinds(seed, &mut random),
    };
    let world = Arc::new(world);
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (world, mut random) = (world.clone(), Random::new(random.number()));
            thread::spawn(move || world.operate_often(&mut random))
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("its panic has ended the run"));
    let operations = world.done.lock().clone();
    world.views.shutdown().expect("it shuts down");
    world.fs.shutdown().expect("it shuts down");
    world.db.close().expect("it closes");
    history::check(&operations);
    let names = [
        "write",
        "put",
        "read",
        "si transaction",
        "ser transaction",
        "rollback",
        "snapshot",
        "look into the snapshot",
        "nested transaction",
        "merge",
        "rebase and merge",
    ];
    names
        .into_iter()
        .map(|name| (name, operations.iter().filter(|o| o.what == name).count() as u64))
        .collect()
}

#[test]
fn files_have_one_order_of_operations_whatever_the_schedule() {
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let base = number("KVFS_SEED_BASE").unwrap_or(0);
    let seeds = match number("KVFS_SEED") {
        Some(seed) => seed..seed + 1,
        None => base..base + number("KVFS_SEEDS").unwrap_or(200),
    };
    let mut done: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut points = 0;
    for seed in seeds {
        let outcome = schedule::run(seed, move || program(seed))
            .unwrap_or_else(|e| panic!("KVFS_SEED={seed}: {e}"));
        points += outcome.points;
        outcome.value.into_iter().for_each(|(name, n)| *done.entry(name).or_default() += n);
    }
    println!("{points} scheduling points; operations that succeeded: {done:?}");
}
