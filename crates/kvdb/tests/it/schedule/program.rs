//! The programs of the threads of a run: a few operations each, drawn from the seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use env::sync::Mutex;
use env::sync::atomic::{AtomicU64, Ordering::Relaxed};
use env::{Random, Scheduled, thread};
use kvdb::{
    Batch, CreateOptions, DefragOptions, DictionaryId, DictionaryOptions, Durability, Error,
    Isolation, Kvdb, OpenOptions, Reads, Transaction, TransactionOptions, View,
};
use zones::{CrashDevice, MemoryDevice};

use super::history::{self, Effect, Operation, REGISTERS, Values};
use super::slow_sync::SlowSync;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Mainline,
    /// All work in one transaction.
    Transaction,
}

const THREADS: u64 = 3;
const OPERATIONS: u64 = 5;
/// The number of kinds to draw from. Some of them are drawn more than once.
const CHOICES: u64 = 20;
/// Transactions within others. Apart from the others, so that a seed without it has the program
/// that it had before there were any.
const NESTED: u64 = CHOICES;
const SNAPSHOT: &str = "s";

fn key(register: usize) -> Vec<u8> {
    format!("r{register}").into_bytes()
}

fn encode(value: u64) -> Vec<u8> {
    // Values have one of two lengths, so that some lie in their blocks and others outside.
    let mut bytes = value.to_be_bytes().to_vec();
    if value.is_multiple_of(3) {
        bytes.resize(3000, 7);
    }
    bytes
}

fn decode(bytes: Option<bytes::Bytes>) -> Option<u64> {
    bytes.map(|b| u64::from_be_bytes(b[..8].try_into().expect("eight bytes")))
}

/// The state that all threads of a run share.
struct World {
    db: Kvdb,
    dict: DictionaryId,
    /// The dictionary of data that only makes transactions large.
    ballast: DictionaryId,
    shared: Option<Transaction>,
    device: Arc<SlowSync>,
    numbers: AtomicU64,
    clock: AtomicU64,
    done: Mutex<Vec<Operation>>,
    /// Snapshots replace each other under one name, one at a time.
    naming: Mutex<bool>,
    /// The kinds of operations of this run. See [`World::operate`].
    choices: Vec<u64>,
}

/// Uses all kinds or a few. A bug that needs several operations of few kinds is found sooner
/// without the others (swarm testing: Groce, Zhang, Eide, Chen, Regehr, ISSTA 2012).
fn choices(seed: u64, random: &mut Random) -> Vec<u64> {
    let all = random.one_in(3);
    let mut drawn: Vec<u64> = (0..CHOICES).filter(|_| all || random.one_in(2)).collect();
    let nested = Random::new(seed ^ 0x4e57).below(4);
    // In one of four programs they are as frequent as all others.
    let times = [drawn.len().max(1), 1, 0, 0][nested as usize];
    drawn.extend(std::iter::repeat_n(NESTED, times));
    if drawn.is_empty() { vec![0] } else { drawn }
}

/// Registers with their earlier or present values.
type Registers = Vec<(usize, Option<u64>)>;

enum Reader<'a> {
    View(&'a View),
    Transaction(&'a Transaction),
}

fn open_options() -> OpenOptions {
    OpenOptions {
        memory: 1 << 20,
        late_bind_at: 2 << 10,
        zero_journal: false,
        merge_threads: 1,
        ..OpenOptions::default()
    }
}

impl World {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Relaxed)
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed)
    }

    fn read(&self, from: &Reader, register: usize) -> kvdb::Result<Option<u64>> {
        let value = match from {
            Reader::View(view) => view.get(self.dict, &key(register))?,
            Reader::Transaction(t) => t.get(self.dict, &key(register))?,
        };
        Ok(decode(value))
    }

    fn read_all(
        &self,
        from: &Reader,
        random: &mut Random,
    ) -> kvdb::Result<Vec<(usize, Option<u64>)>> {
        if random.one_in(2) {
            return (0..REGISTERS).map(|r| Ok((r, self.read(from, r)?))).collect();
        }
        let found = match from {
            Reader::View(view) => view.scan(self.dict, b"", b"", usize::MAX)?,
            Reader::Transaction(t) => t.scan(self.dict, b"", b"", usize::MAX)?,
        };
        let found: BTreeMap<Vec<u8>, Option<u64>> =
            found.into_iter().map(|(k, v)| (k.to_vec(), decode(Some(v)))).collect();
        Ok((0..REGISTERS).map(|r| (r, found.get(&key(r)).copied().flatten())).collect())
    }

    /// Blind changes of some registers.
    fn changes(&self, random: &mut Random) -> (Batch, Vec<(usize, Option<u64>)>) {
        let mut batch = Batch::new();
        if random.one_in(8) {
            batch.delete_range(self.dict, b"r".to_vec(), b"s".to_vec());
            return (batch, (0..REGISTERS).map(|r| (r, None)).collect());
        }
        let first = random.below(REGISTERS as u64) as usize;
        let those = if random.one_in(2) { first..first + 1 } else { 0..REGISTERS };
        let mut wrote = Vec::new();
        for register in those {
            let value = (!random.one_in(8)).then(|| self.number());
            match value {
                Some(value) => batch.put(self.dict, key(register), encode(value)),
                None => batch.delete(self.dict, key(register)),
            }
            wrote.push((register, value));
        }
        (batch, wrote)
    }

    /// Reads registers and changes them; under snapshot isolation only those that it reads. Some go
    /// back to a savepoint, some are durable, some bring a run, and some are so large that they lie
    /// in runs of their own when they commit.
    fn transact(
        &self,
        isolation: Isolation,
        durability: Durability,
        random: &mut Random,
    ) -> kvdb::Result<Effect> {
        let durable = isolation == Isolation::Snapshot && random.one_in(6);
        let t = self.db.begin_with(TransactionOptions {
            isolation,
            durable,
            ..TransactionOptions::default()
        })?;
        let did = self.work(&t, random).and_then(|did| t.commit(durability).map(|()| did));
        if did.is_err() {
            // A durable one would continue.
            t.abort();
        }
        let (mut read, wrote) = did?;
        // Under snapshot isolation, data that a transaction reads and does not change is that of
        // its beginning.
        if isolation == Isolation::Snapshot && !wrote.is_empty() {
            read.retain(|(register, _)| wrote.iter().any(|(w, _)| w == register));
        }
        Ok(Effect::Change { read, wrote })
    }

    /// Reads and changes registers in a transaction, and in some within it, one after the other,
    /// each of which is committed into it or aborted.
    fn transact_within(&self, durability: Durability, random: &mut Random) -> kvdb::Result<Effect> {
        let around = self.db.begin(Isolation::Snapshot)?;
        let mut work = || {
            let (mut read, mut wrote) = self.work(&around, random)?;
            for _ in 0..1 + random.below(2) {
                let within = TransactionOptions { within: Some(around.id()), ..Default::default() };
                let t = self.db.begin_with(within)?;
                let (seen, changed) = self.work(&t, random)?;
                for (register, value) in seen {
                    match wrote.iter().rfind(|(own, _)| *own == register) {
                        Some((_, own)) => assert_eq!(value, *own, "it sees what is around it"),
                        None => read.push((register, value)),
                    }
                }
                match random.one_in(3) {
                    true => t.abort(),
                    false => {
                        t.commit(Durability::Buffered)?;
                        wrote.extend(changed);
                    }
                }
            }
            Ok((read, wrote))
        };
        let did = work().and_then(|did| around.commit(durability).map(|()| did));
        if did.is_err() {
            around.abort();
        }
        let (mut read, wrote) = did?;
        if !wrote.is_empty() {
            read.retain(|(register, _)| wrote.iter().any(|(w, _)| w == register));
        }
        Ok(Effect::Change { read, wrote })
    }

    /// Reads and changes registers in a transaction within the one that all threads share.
    fn transact_in(&self, around: &Transaction, random: &mut Random) -> kvdb::Result<Effect> {
        let within = TransactionOptions { within: Some(around.id()), ..Default::default() };
        let t = self.db.begin_with(within)?;
        let did = self.work(&t, random);
        let did = did.and_then(|did| t.commit(Durability::Buffered).map(|()| did));
        if did.is_err() {
            t.abort();
        }
        let (mut read, wrote) = did?;
        if !wrote.is_empty() {
            read.retain(|(register, _)| wrote.iter().any(|(w, _)| w == register));
        }
        Ok(Effect::Change { read, wrote })
    }

    fn work(&self, t: &Transaction, random: &mut Random) -> kvdb::Result<(Registers, Registers)> {
        let reader = Reader::Transaction(t);
        let registers: Vec<usize> = (0..REGISTERS).filter(|_| random.one_in(2)).collect();
        let mut read = Vec::new();
        for &register in &registers {
            read.push((register, self.read(&reader, register)?));
        }
        if random.one_in(8) {
            for i in 0..4 {
                t.put(self.ballast, format!("ballast{i}"), vec![i; 40 << 10])?;
            }
        }
        let target = |random: &mut Random| match t.isolation() {
            Isolation::Serializable => Some(random.below(REGISTERS as u64) as usize),
            Isolation::Snapshot => random.pick(&registers).copied(),
        };
        let mut wrote: Registers = Vec::new();
        for _ in 0..random.below(4) {
            let Some(register) = target(random) else { continue };
            let savepoint = random.one_in(4).then(|| t.savepoint()).transpose()?;
            let value = self.number();
            if random.one_in(6) && t.takes_bulk() {
                let mut bulk = t.bulk(self.dict, &t.view()?)?;
                bulk.push(&key(register), &encode(value))?;
                t.adopt(bulk.finish()?)?;
            } else {
                t.put(self.dict, key(register), encode(value))?;
            }
            match savepoint {
                Some(savepoint) if random.one_in(2) => t.rollback_to(&savepoint)?,
                _ => wrote.push((register, Some(value))),
            }
        }
        Ok((read, wrote))
    }

    /// Reads registers and changes some, if those that it has read are unchanged by then.
    fn commit_if_unchanged(&self, random: &mut Random) -> kvdb::Result<Vec<Effect>> {
        let (state, mut reads) = (self.db.view(), Reads::default());
        let reader = Reader::View(&state);
        let read = match random.one_in(3) {
            true => {
                reads.range(self.dict, b"r", b"s");
                self.read_all(&reader, random)?
            }
            false => {
                let register = random.below(REGISTERS as u64) as usize;
                reads.key(self.dict, &key(register));
                vec![(register, self.read(&reader, register)?)]
            }
        };
        let (batch, wrote) = self.changes(random);
        let done = self.db.commit_if_unchanged(batch, state, reads)?;
        Ok(if done { vec![Effect::Change { read, wrote }] } else { Vec::new() })
    }

    fn ingest(&self, random: &mut Random) -> kvdb::Result<Effect> {
        let dictionary = self.db.open_dictionary("d")?;
        let wrote: Vec<(usize, Option<u64>)> =
            (0..REGISTERS).filter(|_| random.one_in(2)).map(|r| (r, Some(self.number()))).collect();
        dictionary.ingest(wrote.iter().map(|(r, v)| (key(*r), encode(v.unwrap_or_default()))))?;
        Ok(Effect::Change { read: Vec::new(), wrote })
    }

    /// Makes a branch and drops it. It changes no register.
    fn make_and_drop(&self, random: &mut Random) -> kvdb::Result<Effect> {
        let name = format!("b{}", self.number());
        self.db.create_branch(&name)?;
        if random.one_in(2) {
            self.db.create_dictionary_in(&name, "d", DictionaryOptions::default())?;
        }
        self.db.drop_branch(&name)?;
        Ok(Effect::Change { read: Vec::new(), wrote: Vec::new() })
    }

    /// Reads and changes in a nested batch. Its reads show one moment, and its changes appear at
    /// one moment.
    fn nested_batch(&self, t: &Transaction, random: &mut Random) -> kvdb::Result<Vec<Effect>> {
        let mut nested = t.nested_batch()?;
        let mut read: BTreeMap<usize, Option<u64>> = BTreeMap::new();
        let mut wrote: BTreeMap<usize, Option<u64>> = BTreeMap::new();
        for _ in 0..1 + random.below(4) {
            let register = random.below(REGISTERS as u64) as usize;
            let seen = decode(nested.get(self.dict, &key(register))?);
            match wrote.get(&register) {
                Some(own) => assert_eq!(seen, *own, "a nested batch sees its own changes"),
                None => assert_eq!(
                    seen,
                    *read.entry(register).or_insert(seen),
                    "a nested batch reads the same again"
                ),
            }
            if random.one_in(2) {
                let value = self.number();
                let mut batch = Batch::new();
                batch.put(self.dict, key(register), encode(value));
                nested.apply(batch)?;
                wrote.insert(register, Some(value));
            }
        }
        nested.finish()?;
        let reads = Effect::Change { read: read.into_iter().collect(), wrote: Vec::new() };
        Ok(vec![reads, Effect::Change { read: Vec::new(), wrote: wrote.into_iter().collect() }])
    }

    /// Runs one operation. Returns its effect if it succeeded.
    fn operate(&self, random: &mut Random) {
        let durability = if random.one_in(3) { Durability::Synced } else { Durability::Buffered };
        let mut synced = durability == Durability::Synced;
        let choice = *random.pick(&self.choices).expect("there is one");
        let from = self.tick();
        let (what, outcome) = match (&self.shared, choice) {
            (Some(t), NESTED) => {
                ("transaction within", self.transact_in(t, random).map(|e| vec![e]))
            }
            (None, NESTED) => {
                ("nested transaction", self.transact_within(durability, random).map(|e| vec![e]))
            }
            (Some(t), 0..5) => {
                let (batch, wrote) = self.changes(random);
                ("apply", t.apply(batch).map(|()| vec![Effect::Change { read: Vec::new(), wrote }]))
            }
            (Some(t), 5..10) => ("nested batch", self.nested_batch(t, random)),
            (Some(t), _) => {
                let read = t.view().and_then(|view| self.read_all(&Reader::View(&view), random));
                (
                    "view of the transaction",
                    read.map(|read| vec![Effect::Change { read, wrote: Vec::new() }]),
                )
            }
            (None, 0..3) => {
                let (batch, wrote) = self.changes(random);
                (
                    "commit",
                    self.db
                        .commit(batch, durability)
                        .map(|()| vec![Effect::Change { read: Vec::new(), wrote }]),
                )
            }
            (None, 3..6) => (
                "si transaction",
                self.transact(Isolation::Snapshot, durability, random).map(|e| vec![e]),
            ),
            (None, 6..9) => (
                "ser transaction",
                self.transact(Isolation::Serializable, durability, random).map(|e| vec![e]),
            ),
            (None, 9..11) => {
                synced = false;
                let view = self.db.view();
                let read = self.read_all(&Reader::View(&view), random);
                ("view", read.map(|read| vec![Effect::Change { read, wrote: Vec::new() }]))
            }
            (None, 11) => {
                let ingested = self.ingest(random);
                // An empty commit changes nothing and syncs nothing.
                synced = matches!(&ingested, Ok(Effect::Change { wrote, .. }) if !wrote.is_empty());
                ("ingest", ingested.map(|e| vec![e]))
            }
            (None, 12) => {
                let mut named = self.naming.lock();
                synced = false;
                if *named {
                    ("rollback", self.db.rollback(SNAPSHOT).map(|()| vec![Effect::Rollback]))
                } else {
                    *named = true;
                    (
                        "snapshot",
                        self.db
                            .snapshot_of("", SNAPSHOT, durability)
                            .map(|()| vec![Effect::Snapshot]),
                    )
                }
            }
            (None, 13) => ("flush", self.db.flush().map(|()| Vec::new())),
            (None, 14) => ("compact", self.db.compact(self.dict).map(|()| Vec::new())),
            (None, 15) => {
                ("defragment", self.db.defragment(DefragOptions::default()).map(|_| Vec::new()))
            }
            (None, 16) => ("sync", self.db.sync().map(|()| Vec::new())),
            (None, 17) => {
                // An edit of the manifest is on disk with all that was done before it.
                synced = true;
                ("drop", self.make_and_drop(random).map(|e| vec![e]))
            }
            (None, _) => {
                synced = false;
                ("conditional commit", self.commit_if_unchanged(random))
            }
        };
        let effects = match outcome {
            Ok(effects) => effects,
            Err(Error::Conflict { .. } | Error::Locked(_)) => Vec::new(),
            Err(e) => panic!("{what} failed: {e}"),
        };
        let to = Some(self.tick());
        let operation = |effect| Operation { what: what.into(), from, to, synced, effect };
        self.done.lock().extend(effects.into_iter().map(operation));
    }
}

/// Runs a short life and checks it. Returns how often each kind of operation succeeded.
pub fn run(seed: u64, kind: Kind) -> BTreeMap<&'static str, u64> {
    let mut random = Random::new(seed ^ 0x5eed);
    let device = Arc::new(SlowSync(CrashDevice::new()));
    let options =
        CreateOptions { open: open_options(), reserve_zones: 4, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), Arc::new(Scheduled), options).expect("a store");
    let dict = db.create_dictionary("d", DictionaryOptions::default()).expect("a dictionary");
    let ballast =
        db.create_dictionary("ballast", DictionaryOptions::default()).expect("a dictionary");
    let shared =
        (kind == Kind::Transaction).then(|| db.begin(Isolation::Snapshot).expect("a transaction"));
    let world = Arc::new(World {
        db,
        dict,
        ballast,
        shared,
        device,
        numbers: AtomicU64::new(1),
        clock: AtomicU64::new(0),
        done: Mutex::default(),
        naming: Mutex::new(false),
        choices: choices(seed, &mut random),
    });
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (world, mut random) = (world.clone(), Random::new(random.number()));
            thread::spawn(move || (0..OPERATIONS).for_each(|_| world.operate(&mut random)))
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("its panic has ended the run"));
    // The power fails now, and the recovered state must be a state of the history.
    let image = world.device.0.crash(seed);
    let operations = world.done.lock().clone();
    if kind == Kind::Mainline {
        history::check_left(&operations, recovered(image, dict));
    }
    world.db.close().expect("it closes");
    history::check(&operations);
    if kind == Kind::Mainline {
        history::check_closed(&operations, recovered(world.device.0.durable(), dict));
    }
    let names = [
        "commit",
        "si transaction",
        "ser transaction",
        "view",
        "ingest",
        "rollback",
        "snapshot",
        "apply",
        "nested batch",
        "conditional commit",
        "drop",
        "nested transaction",
        "transaction within",
    ];
    names
        .into_iter()
        .map(|name| (name, operations.iter().filter(|o| o.what == name).count() as u64))
        .collect()
}

fn recovered(image: MemoryDevice, dict: DictionaryId) -> Values {
    let options = OpenOptions { threads: false, ..open_options() };
    let (db, _) =
        Kvdb::open(Arc::new(image), Arc::new(Scheduled), options).expect("it opens again");
    let view = db.view();
    std::array::from_fn(|r| decode(view.get(dict, &key(r)).expect("it can be read")))
}
