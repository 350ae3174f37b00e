//! Compares random histories of transactions within transactions with a model of nested maps. Each
//! map also records what its transaction has changed since the inner ones began.
//!
//! `KVFS_SEEDS=n` runs n seeds instead of the usual few; `KVFS_SEED=n` runs one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use env::{Machine, Random};
use kvdb::{
    Batch, CommitOptions, CreateOptions, DictionaryId, Durability, Error, Kvdb, OpenOptions,
    Savepoint, Transaction, TransactionId, TransactionOptions,
};
use zones::MemoryDevice;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Op {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

fn apply(map: &mut Map, ops: &[Op]) {
    for op in ops {
        match op {
            Op::Put(key, value) => drop(map.insert(key.clone(), value.clone())),
            Op::Delete(key) => drop(map.remove(key)),
            Op::DeleteRange(start, end) => map.retain(|key, _| key < start || key >= end),
        }
    }
}

/// The overlap of two lists of changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Overlap {
    Nothing,
    /// A conflict between two deleted ranges is found or not, depending on where they begin.
    Ranges,
    Keys,
}

fn overlap(mine: &[Op], theirs: &[Op]) -> Overlap {
    let one = |a: &Op, b: &Op| match (a, b) {
        (Op::DeleteRange(a, to), Op::DeleteRange(b, end)) if a < end && b < to => Overlap::Ranges,
        (Op::DeleteRange(..), Op::DeleteRange(..)) => Overlap::Nothing,
        (Op::DeleteRange(start, end), Op::Put(key, _) | Op::Delete(key))
        | (Op::Put(key, _) | Op::Delete(key), Op::DeleteRange(start, end)) => {
            if key >= start && key < end { Overlap::Keys } else { Overlap::Nothing }
        }
        (Op::Put(a, _) | Op::Delete(a), Op::Put(b, _) | Op::Delete(b)) => {
            if a == b {
                Overlap::Keys
            } else {
                Overlap::Nothing
            }
        }
    };
    let pairs = mine.iter().flat_map(|a| theirs.iter().map(move |b| one(a, b)));
    pairs.max().unwrap_or(Overlap::Nothing)
}

/// The store or a transaction: its state at the beginning, and its changes since.
#[derive(Default)]
struct Node {
    handle: Option<Transaction>,
    within: Option<TransactionId>,
    base: Map,
    ops: Vec<Op>,
    /// Changes that were made around it when it began.
    begun_at: usize,
    /// When it began, in steps.
    age: u64,
    savepoints: Vec<(Savepoint, usize, u64)>,
    durable: bool,
    /// The transaction began before the store was opened, so values are compared as well as
    /// numbers.
    restored: bool,
}

impl Node {
    fn now(&self) -> Map {
        let mut map = self.base.clone();
        apply(&mut map, &self.ops);
        map
    }

    fn handle(&self) -> &Transaction {
        self.handle.as_ref().expect("it is a transaction")
    }
}

fn options() -> OpenOptions {
    OpenOptions {
        memory: 4 << 20,
        threads: false,
        zero_journal: false,
        flush_on_close: false,
        ..Default::default()
    }
}

struct World {
    seed: u64,
    random: Random,
    device: Arc<MemoryDevice>,
    db: Kvdb,
    d: DictionaryId,
    store: Node,
    open: BTreeMap<TransactionId, Node>,
    step: u64,
    /// Commits into others, conflicts there, commits to the store, conflicts there, goings back
    /// that have aborted some, refusals, restarts, the deepest.
    seen: [u64; 8],
}

impl World {
    fn new(seed: u64) -> World {
        let device = Arc::new(MemoryDevice::new());
        let create = CreateOptions { open: options(), ..Default::default() };
        let db = Kvdb::create(device.clone(), Arc::new(Machine::default()), create).unwrap();
        let d = db.open_dictionary("d").unwrap().id();
        World {
            seed,
            random: Random::new(seed),
            device,
            db,
            d,
            store: Node::default(),
            open: BTreeMap::new(),
            step: 0,
            seen: [0; 8],
        }
    }

    fn pick(&mut self) -> Option<TransactionId> {
        let all: Vec<TransactionId> = self.open.keys().copied().collect();
        self.random.pick(&all).copied()
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key{:02}", self.random.below(60)).into_bytes()
    }

    fn ops(&mut self) -> Vec<Op> {
        let count = 1 + self.random.below(4);
        let mut one = || match self.random.below(12) {
            0 | 1 => Op::Delete(self.key()),
            2 => {
                let (a, b) = (self.key(), self.key());
                let end = [&a.clone().max(b.clone())[..], b"x"].concat();
                Op::DeleteRange(a.min(b), end)
            }
            3 | 4 => {
                let len = 20_000 + self.random.below(60_000) as usize;
                Op::Put(self.key(), vec![self.random.below(256) as u8; len])
            }
            _ => Op::Put(self.key(), self.random.number().to_string().into_bytes()),
        };
        (0..count).map(|_| one()).collect()
    }

    fn batch(&self, ops: &[Op]) -> Batch {
        let mut batch = Batch::new();
        for op in ops.iter().cloned() {
            match op {
                Op::Put(key, value) => batch.put(self.d, key, value),
                Op::Delete(key) => batch.delete(self.d, key),
                Op::DeleteRange(start, end) => batch.delete_range(self.d, start, end),
            }
        }
        batch
    }

    fn depth(&self, id: TransactionId) -> u64 {
        1 + self.open[&id].within.map_or(0, |around| self.depth(around))
    }

    fn begin(&mut self) {
        let within = if self.random.one_in(3) { None } else { self.pick() };
        let durable = within.is_none() && self.random.one_in(2);
        let handle =
            self.db.begin_with(TransactionOptions { within, durable, ..Default::default() });
        let handle = handle.unwrap();
        let around = within.map_or(&self.store, |within| &self.open[&within]);
        let node = Node {
            within,
            base: around.now(),
            begun_at: around.ops.len(),
            age: self.step,
            durable,
            handle: Some(handle.clone()),
            ..Node::default()
        };
        self.open.insert(handle.id(), node);
        self.seen[7] = self.seen[7].max(self.depth(handle.id()));
    }

    fn within(&self, id: TransactionId) -> Vec<TransactionId> {
        let within = self.open.iter().filter(|(_, node)| node.within == Some(id));
        within.map(|(id, _)| *id).collect()
    }

    /// The transaction has ended, and so have those within it.
    fn end(&mut self, id: TransactionId) -> Node {
        for within in self.within(id) {
            self.has_ended(within);
        }
        self.open.remove(&id).expect("it was open")
    }

    fn has_ended(&mut self, id: TransactionId) {
        let node = self.end(id);
        let call = node.handle().get(self.d, b"key00");
        assert!(matches!(call, Err(Error::Locked(_))), "{}: {call:?}", self.told());
        assert!(self.db.transaction(id).is_err());
    }

    fn told(&self) -> String {
        format!("seed {}, step {}", self.seed, self.step)
    }

    fn commit(&mut self, id: TransactionId) {
        let within = self.within(id);
        let aborts_nested = self.random.one_in(2);
        let options = CommitOptions { aborts_nested, ..CommitOptions::default() };
        let node = &self.open[&id];
        let (to_store, restored) = (node.within.is_none(), node.restored);
        let around = node.within.map_or(&self.store, |around| &self.open[&around]);
        let theirs = &around.ops[node.begun_at.min(around.ops.len())..];
        let expected = overlap(&node.ops, theirs);
        let outcome = node.handle().commit_with(options);
        if !within.is_empty() && !aborts_nested {
            self.seen[5] += 1;
            match outcome {
                Err(Error::Nested { nested, .. }) => assert_eq!(nested, within),
                other => panic!("{}: {other:?}", self.told()),
            }
            return;
        }
        match outcome {
            Ok(()) => {
                let wrong = expected == Overlap::Keys && !restored;
                assert!(!wrong, "{}: a conflict was not found", self.told());
                self.seen[2 * usize::from(to_store)] += 1;
                let node = self.end(id);
                let around = match node.within {
                    Some(around) => self.open.get_mut(&around).expect("it is open"),
                    None => &mut self.store,
                };
                around.ops.extend(node.ops);
            }
            Err(Error::Conflict { .. }) => {
                assert!(expected != Overlap::Nothing, "{}: there is no conflict", self.told());
                self.seen[1 + 2 * usize::from(to_store)] += 1;
                self.end(id);
            }
            Err(e) => panic!("{}: {e}", self.told()),
        }
    }

    fn go_back(&mut self, id: TransactionId) {
        let node = self.open.get_mut(&id).expect("it is open");
        if node.savepoints.is_empty() {
            return;
        }
        let at = self.random.below(node.savepoints.len() as u64) as usize;
        let (savepoint, ops, age) = node.savepoints[at].clone();
        node.savepoints.truncate(at + 1);
        node.handle().rollback_to(&savepoint).unwrap();
        node.ops.truncate(ops);
        for within in self.within(id) {
            if self.open[&within].age > age {
                self.seen[4] += 1;
                self.has_ended(within);
            }
        }
    }

    /// The power fails, or the store is closed. Durable transactions continue.
    fn restart(&mut self) {
        self.db.sync().unwrap();
        let device = Arc::new((*self.device).clone());
        let (db, _) = Kvdb::open(device.clone(), Arc::new(Machine::default()), options()).unwrap();
        (self.device, self.db) = (device, db);
        self.open.retain(|_, node| node.durable);
        for (id, node) in &mut self.open {
            node.handle = Some(self.db.transaction(*id).unwrap());
            node.savepoints.clear();
            node.restored = true;
        }
        assert_eq!(self.db.transactions().len(), self.open.len(), "{}", self.told());
        self.seen[6] += 1;
    }

    fn verify(&self, id: Option<TransactionId>) {
        let found = match id {
            Some(id) => self.open[&id].handle().scan(self.d, b"", b"", usize::MAX).unwrap(),
            None => self.db.view().scan(self.d, b"", b"", usize::MAX).unwrap(),
        };
        let node = id.map_or(&self.store, |id| &self.open[&id]);
        let expected = node.now();
        let found: Map = found.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert!(found == expected, "{}: {id:?} does not see what it should", self.told());
        let Some(id) = id else { return };
        let view = self.open[&id].handle().view().unwrap();
        let (base, after) = (view.beneath(), view);
        let changed = base.difference(self.d, &after, self.d).unwrap().map(|c| c.unwrap().key);
        let changed: Vec<Vec<u8>> = changed.map(|key| key.to_vec()).collect();
        let mut keys: Vec<_> = node.base.keys().chain(expected.keys()).cloned().collect();
        keys.sort_unstable();
        keys.dedup();
        keys.retain(|key| node.base.get(key) != expected.get(key));
        assert_eq!(changed, keys, "{}", self.told());
    }

    fn act(&mut self) {
        self.step += 1;
        let id = self.pick();
        match (self.random.below(40), id) {
            (0..=6, _) if self.open.len() < 8 => self.begin(),
            (7..=22, Some(id)) => {
                let ops = self.ops();
                self.open[&id].handle().apply(self.batch(&ops)).unwrap();
                self.open.get_mut(&id).expect("it is open").ops.extend(ops);
            }
            (23..=24, _) => {
                let ops = self.ops();
                self.db.commit(self.batch(&ops), Durability::Buffered).unwrap();
                self.store.ops.extend(ops);
            }
            (25..=26, Some(id)) => {
                let step = self.step;
                let node = self.open.get_mut(&id).expect("it is open");
                let savepoint = node.handle().savepoint().unwrap();
                node.savepoints.push((savepoint, node.ops.len(), step));
            }
            (27, Some(id)) => self.go_back(id),
            (28..=33, Some(id)) => self.commit(id),
            (34, Some(id)) => {
                self.open[&id].handle().abort();
                self.end(id);
            }
            (35, _) => {
                self.db.step().unwrap();
                if self.random.one_in(4) {
                    self.db.flush().unwrap();
                }
            }
            (36, _) if self.random.one_in(6) => self.restart(),
            (_, id) => self.verify(id),
        }
    }
}

fn seeds(usual: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("KVFS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KVFS_SEEDS").unwrap_or(usual),
    }
}

#[test]
fn whatever_is_done_each_sees_what_the_model_says() {
    let seeds = seeds(24);
    let many = seeds.end - seeds.start >= 20;
    let mut seen = [0; 8];
    for seed in seeds {
        let mut world = World::new(seed);
        for _ in 0..250 {
            world.act();
        }
        world.verify(None);
        for id in world.open.keys().copied().collect::<Vec<_>>() {
            world.verify(Some(id));
        }
        world.open.clear();
        for (all, these) in seen.iter_mut().zip(world.seen) {
            *all += these;
        }
    }
    assert!(!many || seen.iter().all(|times| *times >= 5), "all is meant to happen: {seen:?}");
}
