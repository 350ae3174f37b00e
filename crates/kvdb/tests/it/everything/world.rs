//! The store under test, its expected content, and the state that the operations share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use env::{Random, Simulated};
use kvdb::{
    Batch, CommitPosition, DictionaryId, Durability, Error, Follower, Kvdb, Publisher, RemoteStore,
    Update, View,
};
use objects::MemoryObjects;
use zones::CrashDevice;

use super::oracle::{Branch, Change, History, Kind, ManifestState};
use super::transactions::Open;

/// The power has failed.
#[derive(Debug)]
pub struct Dead;

pub struct World {
    pub seed: u64,
    pub step: u64,
    pub operation: &'static str,
    pub random: Random,
    pub env: Arc<Simulated>,
    pub device: Arc<CrashDevice>,
    pub db: Kvdb,
    pub history: History,
    /// The committed changes, in order. Transactions remember their position in it.
    pub committed: Vec<Change>,
    /// The positions in `committed` at which dictionaries were made, dropped or replaced.
    events: Vec<(usize, String, String)>,
    pub open: Vec<Open>,
    /// The main branch before and after each commit that can be undone.
    pub undoable: BTreeMap<u64, (Branch, Branch)>,
    /// The positions from which recent commits to a branch are compared, in the store and in
    /// `committed`.
    pub followed: BTreeMap<String, (CommitPosition, usize)>,
    /// Held views, and the content that they must always show.
    pub views: Vec<(View, ManifestState)>,
    /// The place to which the store is published.
    pub bucket: RemoteStore,
    /// The publisher of this life, which publishes the store repeatedly.
    pub publisher: Option<Publisher>,
    /// Another machine, which follows what is published, over all lives of this one.
    pub reader: Option<(Kvdb, Follower)>,
    /// A counter from which new names are made.
    pub names: u64,
    /// The store is small and may be full. Additions may be refused for lack of space, but removals
    /// may not.
    pub limited: bool,
    /// The number of refusals.
    pub full: u64,
    /// The public operations that were called.
    pub called: BTreeSet<&'static str>,
}

impl World {
    pub fn new(
        seed: u64,
        random: Random,
        env: Arc<Simulated>,
        device: Arc<CrashDevice>,
        db: Kvdb,
        history: History,
    ) -> World {
        World {
            seed,
            step: 0,
            operation: "",
            random,
            env,
            device,
            db,
            history,
            committed: Vec::new(),
            events: Vec::new(),
            open: Vec::new(),
            undoable: BTreeMap::new(),
            followed: BTreeMap::new(),
            views: Vec::new(),
            bucket: RemoteStore::new(Arc::new(MemoryObjects::new()), "store").expect("a name"),
            publisher: None,
            reader: None,
            names: 0,
            limited: false,
            full: 0,
            called: BTreeSet::new(),
        }
    }

    pub fn what(&self) -> String {
        format!("seed {}, step {} ({})", self.seed, self.step, self.operation)
    }

    /// Notes that a public operation is called.
    pub fn call(&mut self, name: &'static str) {
        self.called.insert(name);
    }

    /// The call must succeed unless the power has failed.
    #[track_caller]
    pub fn ok<T>(&self, result: kvdb::Result<T>) -> Result<T, Dead> {
        result.map_err(|e| {
            self.dead_or_panic("a call", &e);
            Dead
        })
    }

    #[track_caller]
    pub fn dead_or_panic(&self, doing: &str, e: &Error) {
        assert!(self.device.is_dead(), "{}: {doing}: {e}", self.what());
    }

    /// Returns the outcome of a call that may need space, or `None` if the store is full and
    /// nothing has changed.
    #[track_caller]
    pub fn unless_full<T>(&mut self, result: kvdb::Result<T>) -> Result<Option<T>, Dead> {
        match result {
            Err(Error::NoSpace) if self.limited && !self.device.is_dead() => {
                self.full += 1;
                Ok(None)
            }
            result => self.ok(result).map(Some),
        }
    }

    pub fn durability(&mut self) -> Durability {
        if self.random.one_in(4) { Durability::Synced } else { Durability::Buffered }
    }

    pub fn key(&mut self) -> Vec<u8> {
        format!("k{:03}", self.random.below(150)).into_bytes()
    }

    /// Some ranges are empty or reversed.
    pub fn range(&mut self) -> (Vec<u8>, Vec<u8>) {
        let (a, b) = (self.key(), self.key());
        if self.random.one_in(10) { (a, b) } else { (a.clone().min(b.clone()), a.max(b)) }
    }

    pub fn value(&mut self) -> Vec<u8> {
        if self.random.one_in(8) {
            return (self.random.below(1000)).to_string().into_bytes();
        }
        let len = match self.random.below(20) {
            0 => self.random.below(30_000),
            1..=4 => self.random.below(5000),
            _ => self.random.below(120),
        };
        let mut value = vec![0; len as usize];
        let noise = if len > 512 && self.random.one_in(2) { 100 } else { len as usize };
        self.random.fill(&mut value[..noise]);
        value
    }

    /// If `commuting`, also returns changes that commute with those of others.
    pub fn update(&mut self, commuting: bool) -> Update {
        let mut bytes = vec![0; self.random.below(200) as usize];
        self.random.fill(&mut bytes);
        match self.random.below(3) {
            0 if commuting => Update::add(self.random.below(2000) as i64 - 1000),
            1 => Update::append(&bytes).expect("short"),
            _ => Update::patch(self.random.below(6000) as usize, &bytes).expect("short"),
        }
    }

    /// A dictionary that exists.
    pub fn place(&mut self) -> Option<(String, String, DictionaryId)> {
        let all: Vec<(String, String)> = {
            let branches = &self.history.newest().branches;
            branches
                .iter()
                .flat_map(|(b, dicts)| dicts.keys().map(move |d| (b.clone(), d.clone())))
                .collect()
        };
        let (branch, dict) = all.get(self.random.below(all.len().max(1) as u64) as usize)?.clone();
        let id = match branch.is_empty() {
            true => self.db.dictionary(&dict),
            false => self.db.dictionary_in(&branch, &dict),
        };
        self.called.insert("Kvdb::dictionary");
        self.called.insert("Kvdb::dictionary_in");
        Some((branch, dict, id.unwrap_or_else(|| panic!("{}: a dictionary is gone", self.what()))))
    }

    /// A few changes of these dictionaries, and the batch that makes them. `commuting`: with
    /// updates that commute with what others do.
    pub fn batch(
        &mut self,
        places: &[(String, String, DictionaryId)],
        commuting: bool,
    ) -> (Vec<Change>, Batch) {
        for name in [
            "Batch::new",
            "Batch::put",
            "Batch::update",
            "Batch::delete",
            "Batch::delete_range",
            "Batch::len",
            "Batch::is_empty",
        ] {
            self.call(name);
        }
        let mut batch = Batch::new();
        let mut changes = Vec::new();
        let count = if self.random.one_in(10) { 60 } else { 1 + self.random.below(5) };
        for _ in 0..count {
            let (branch, dict, id) =
                places[self.random.below(places.len() as u64) as usize].clone();
            let key = self.key();
            let kind = match self.random.below(12) {
                0 | 1 => {
                    batch.delete(id, key.clone());
                    Kind::Delete(key)
                }
                2 => {
                    let (a, b) = self.range();
                    batch.delete_range(id, a.clone(), b.clone());
                    Kind::DeleteRange(a, b)
                }
                4 | 5 => {
                    let update = self.update(commuting);
                    batch.update(id, key.clone(), update.clone());
                    Kind::Update(key, update)
                }
                3 if self.random.one_in(3) => {
                    let digit = b'0' + self.random.below(2) as u8;
                    let second = b'0' + self.random.below(10) as u8;
                    self.call("Batch::delete_prefix");
                    batch.delete_prefix(id, [b'k', digit, second]);
                    Kind::DeleteRange(vec![b'k', digit, second], vec![b'k', digit, second + 1])
                }
                _ => {
                    let value = self.value();
                    batch.put(id, key.clone(), value.clone());
                    Kind::Put(key, value)
                }
            };
            changes.push(Change { branch, dict, kind });
        }
        assert_eq!((batch.len(), batch.is_empty()), (changes.len(), changes.is_empty()));
        (changes, batch)
    }

    /// Changes the expected content, and then the store by `work`, as one step. If `durable`, the
    /// step is on disk when `work` returns.
    pub fn change(
        &mut self,
        changes: Vec<Change>,
        durable: bool,
        work: impl FnOnce(&mut World) -> kvdb::Result<()>,
    ) -> Result<(), Dead> {
        self.history.attempt(|state| state.apply(&changes));
        let done = work(self);
        if !changes.iter().any(Change::adds) {
            self.ok(done)?;
        } else if self.unless_full(done)?.is_none() {
            self.history.refused();
            return Ok(());
        }
        self.committed.extend(changes);
        if durable {
            self.history.certain();
        }
        Ok(())
    }

    /// Makes a change of more than tuples, which is on disk when `work` returns, with everything
    /// that was committed before.
    pub fn alter(
        &mut self,
        alter: impl Fn(&mut ManifestState),
        work: impl FnOnce(&mut World) -> kvdb::Result<()>,
    ) -> Result<(), Dead> {
        self.history.attempt(alter);
        let done = work(self);
        self.ok(done)?;
        self.history.certain();
        Ok(())
    }

    /// Makes a change that needs space. Returns `false` if it was refused.
    pub fn add(
        &mut self,
        alter: impl Fn(&mut ManifestState),
        work: impl FnOnce(&mut World) -> kvdb::Result<()>,
    ) -> Result<bool, Dead> {
        self.history.attempt(alter);
        let done = work(self);
        let done = self.unless_full(done)?.is_some();
        match done {
            true => self.history.certain(),
            false => self.history.refused(),
        }
        Ok(done)
    }

    /// Notes that one or all dictionaries of a branch were replaced.
    pub fn replaced(&mut self, branch: &str, dict: &str) {
        self.events.push((self.committed.len(), branch.into(), dict.into()));
        // A transaction that begins from here on begins after it.
        self.committed.push(Change {
            branch: "\0".into(),
            dict: String::new(),
            kind: Kind::Delete(Vec::new()),
        });
    }

    pub fn made_since(&self, branch: &str, dict: &str, since: usize) -> bool {
        self.events
            .iter()
            .any(|(at, b, d)| *at >= since && b == branch && (d.is_empty() || d == dict))
    }

    pub fn rolled_back_since(&self, since: usize) -> bool {
        self.events.iter().any(|(at, ..)| *at >= since)
    }

    pub fn before_newest(&self) -> ManifestState {
        self.history.before_newest().clone()
    }

    pub fn new_name(&mut self, letter: char) -> String {
        self.names += 1;
        format!("{letter}{}", self.names)
    }
}
