//! A client of a run. It begins transactions, reads and changes data in them as the seed says, and
//! ends them. It compares every answer with the expected state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::sync::Mutex;
use env::sync::atomic::{AtomicBool, Ordering};
use env::thread::JoinHandle;
use env::{Random, schedule, thread};
use kvdb::{Batch, Error, Scope, ServedView, Update};
use kvdb_wire::{
    BeginOptions, Client, Failure, FailureCode, Outcome, ServedSavepoint, ServedTransaction,
};

use super::oracle::{Model, Record, RecordState, SUM, Step, number};
use super::stale::{Stale, append, changed, keep};
use super::world::World;

/// Counts of the events of a run.
pub type Counts = BTreeMap<&'static str, u64>;

/// Events that must all occur in a large number of runs; otherwise the runs test less than they
/// claim.
pub const KINDS: [&str; 14] = [
    "commits",
    "commits without an answer",
    "conflicts",
    "aborts",
    "transactions that are gone",
    "calls without an answer",
    "taken up",
    "refused to who had it before",
    "rolled back",
    "reads",
    "syncs",
    "servers killed",
    "clients killed",
    "connections cut",
];

const KEYS: u64 = 8;

fn key(number: u64) -> Bytes {
    Bytes::from(format!("k{number}"))
}

pub struct Session {
    world: Arc<World>,
    name: u64,
    random: Random,
    client: Option<(u64, Arc<Client>)>,
    counts: Counts,
}

/// The next step of a transaction.
enum Next {
    /// Its client continues it.
    On,
    /// It is over, as far as its client knows.
    Over,
    /// Another client takes it up by its key.
    TakeUp,
}

/// A transaction that a client holds.
struct Held {
    transaction: Arc<ServedTransaction>,
    record: Arc<Record>,
    client: u64,
    /// The number of servers begun or ended up to then.
    servers: u64,
    /// The number of crashes up to then.
    life: u64,
    heart: Heart,
    savepoints: Vec<(ServedSavepoint, Step, u64)>,
    lease: Duration,
    /// Set if a commit was requested and not answered, by this client or an earlier one.
    may_have_committed: bool,
}

/// Renews the lease at an interval, as the daemon of a mount does.
pub struct Heart {
    stop: Arc<AtomicBool>,
    /// The begin of the last call that succeeded.
    heard: Arc<Mutex<Duration>>,
    thread: Option<JoinHandle<()>>,
}

impl Heart {
    /// If `beats` is not set, the lease is not renewed, and the transaction ends when nothing else
    /// is requested for long enough.
    pub fn new(
        transaction: &Arc<ServedTransaction>,
        begun: Duration,
        lease: Duration,
        beats: bool,
    ) -> Heart {
        let (stop, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(begun)));
        let (stops, hears, of) = (stop.clone(), heard.clone(), transaction.clone());
        let beat = move || {
            while !stops.load(Ordering::Relaxed) {
                let begun = schedule::now();
                match of.sync_at_interval() {
                    Ok(()) => *hears.lock() = begun,
                    Err(Error::NoTransaction(_) | Error::Locked(_)) => break,
                    // The request of another thread is repeated, and may be refused.
                    Err(Error::Io(_) | Error::Invalid(_)) => {}
                    Err(e) => panic!("a sync at its interval: {e}"),
                }
                thread::sleep(lease / 8);
            }
        };
        let start = || thread::Builder::new().name("interval".into()).spawn(beat);
        let thread = beats.then(|| start().expect("a thread"));
        Heart { stop, heard, thread }
    }

    pub fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a thread");
        }
    }
}

impl Session {
    pub fn new(world: &Arc<World>, name: u64, random: Random) -> Session {
        Session { world: world.clone(), name, random, client: None, counts: Counts::new() }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn run(mut self) -> Counts {
        for i in 0..self.world.plan.transactions {
            let label = format!("{}.{i}", self.name);
            self.transaction(&label);
        }
        self.counts
    }

    /// Returns a client that was not killed.
    fn connected(&mut self) -> Option<(u64, Arc<Client>)> {
        if self.client.as_ref().is_none_or(|(number, _)| self.world.is_dead(*number)) {
            self.client = self.world.client();
        }
        self.client.clone()
    }

    fn transaction(&mut self, label: &str) {
        let Some((client, wire)) = self.connected() else { return };
        let plan = self.world.plan.clone();
        let durable = self.random.below(10) < plan.durable;
        let lease = plan.lease.0 + self.random.below(plan.lease.1 - plan.lease.0 + 1);
        let options = BeginOptions {
            durable,
            lease: Duration::from_millis(lease),
            label: label.into(),
            ..BeginOptions::default()
        };
        let record = Record::new(label, durable, RecordState::default());
        self.world.oracle.add(&record);
        let (begun, servers) = (schedule::now(), self.world.servers());
        let life = self.world.oracle.life();
        let transaction = match ServedTransaction::begin(&wire, options) {
            Ok(transaction) => Arc::new(transaction),
            Err(e) if e.is_of_connection() => return self.count("calls without an answer"),
            // The lease may be shorter than the time until the first answer.
            Err(kvdb_wire::Error::Failed(Failure {
                code: FailureCode::NoView | FailureCode::Locked,
                ..
            })) if !durable => {
                return self.count("transactions that are gone");
            }
            Err(e) => panic!("{label} does not begin: {e}"),
        };
        let base = self.world.oracle.base(label, transaction.id().0);
        record.with(|state| {
            state.steps.push(Step { model: base, ..Step::default() });
            state.id = Some(transaction.id().0);
            state.synced = durable.then_some(0);
        });
        let lease = Duration::from_millis(lease);
        let heart = Heart::new(&transaction, begun, lease, plan.hearts);
        let mut held = Held {
            transaction,
            record,
            client,
            servers,
            life,
            heart,
            savepoints: Vec::new(),
            lease,
            may_have_committed: false,
        };
        for _ in 0..6 {
            let next = self.work(&mut held);
            held.heart.end();
            match next {
                Next::Over | Next::On => return,
                Next::TakeUp => {}
            }
            // A former holder may continue without knowing that another client has the transaction.
            let before = held.transaction.clone();
            let stale = (one_of(&mut self.random, plan.stale)).then(|| {
                let stale = Stale {
                    world: self.world.clone(),
                    transaction: before,
                    record: held.record.clone(),
                    random: Random::new(self.random.number()),
                };
                let run = move || stale.run();
                thread::Builder::new().name("stale".into()).spawn(run).expect("a thread")
            });
            let taken = self.take_up(&held);
            if let Some(stale) = stale {
                let refused = stale.join().expect("a client");
                *self.counts.entry("refused to who had it before").or_default() += refused;
            }
            match taken {
                Some(taken) => held = taken,
                None => return,
            }
        }
        held.heart.end();
    }

    /// Reads and changes data in a transaction, and ends or abandons it.
    fn work(&mut self, held: &mut Held) -> Next {
        // Append first, so that each commit changes a key of its own.
        let first = self.append(held);
        let mut result = first.map(|()| Next::On);
        for _ in 0..self.random.below(self.world.plan.operations) {
            if self.world.is_dead(held.client) {
                return self.left(held);
            }
            result = self.operate(held);
            match &result {
                Ok(Next::On) => {}
                Err(Error::Io(_)) => self.count("calls without an answer"),
                _ => break,
            }
        }
        let ended = match result {
            Ok(Next::On) | Err(Error::Io(_)) => self.end(held),
            other => other,
        };
        match ended {
            Ok(next) => next,
            Err(Error::NoTransaction(_)) => self.gone(held),
            // The call has waited for a transaction that was just being ended.
            Err(Error::Locked(_)) if !held.record.durable => self.gone(held),
            Err(Error::Io(_)) => {
                self.count("calls without an answer");
                self.left(held)
            }
            Err(e) => panic!("{}: {e}", held.record.label),
        }
    }

    /// Handles a transaction whose client is gone, or abandons it.
    fn left(&mut self, held: &Held) -> Next {
        match held.record.durable {
            true => Next::TakeUp,
            false => {
                held.record.with(|state| state.may_vanish = true);
                Next::Over
            }
        }
    }

    /// Handles a transaction whose client was told that it is over.
    fn gone(&mut self, held: &Held) -> Next {
        self.count("transactions that are gone");
        let (record, label) = (&held.record, &held.record.label);
        if record.with(|state| state.is_taken || state.may_vanish) {
            return Next::Over;
        }
        if held.may_have_committed && self.world.oracle.has(label) {
            return Next::Over;
        }
        let why = held.transaction.over();
        if record.durable {
            let why = why.unwrap_or_default();
            if why.contains("has committed") && self.world.oracle.has_ever(label) {
                return Next::Over;
            }
            // The first of two attempts to take it up may arrive after the second one. The client
            // sends the batches again that a server has lost, so there is no other reason.
            assert!(
                why.contains("another client"),
                "{label} is durable, and its client is told: {why}"
            );
            return Next::TakeUp;
        }
        let silent = schedule::now().saturating_sub(*held.heart.heard.lock());
        assert!(
            silent >= held.lease - held.lease / 4 || self.world.servers() != held.servers,
            "{label} is over {silent:?} after its server was told of it, and has {:?}: {why:?}",
            held.lease
        );
        if !held.may_have_committed {
            self.world.oracle.told_absent(record, "it is over");
        }
        Next::Over
    }

    fn change(
        &mut self,
        held: &Held,
        change: impl FnOnce(&mut Step, &mut Batch),
    ) -> kvdb::Result<Next> {
        changed(held.record.clone(), &held.transaction, change)?;
        Ok(Next::On)
    }

    fn append(&mut self, held: &Held) -> kvdb::Result<()> {
        append(&held.record, &held.transaction, self.world.oracle.dict, self.random.number())
    }

    fn operate(&mut self, held: &mut Held) -> kvdb::Result<Next> {
        let (record, transaction) = (held.record.clone(), held.transaction.clone());
        let scope = Scope::Served(transaction.clone());
        let dict = self.world.oracle.dict;
        let label = record.label.clone();
        match self.random.below(22) {
            0..5 => {
                let (key, value) = (key(self.random.below(KEYS)), self.random.below(1 << 30));
                let value = Bytes::from(format!("{label} {value}"));
                self.change(held, |step, batch| {
                    step.touched.insert(key.clone());
                    step.model.insert(key.clone(), value.clone());
                    batch.put(dict, key, value);
                })
            }
            5 => {
                let key = key(self.random.below(KEYS));
                self.change(held, |step, batch| {
                    step.touched.insert(key.clone());
                    step.model.remove(&key);
                    batch.delete(dict, key);
                })
            }
            6 => {
                let first = self.random.below(KEYS);
                let end = (first + 1 + self.random.below(3)).min(KEYS);
                self.change(held, |step, batch| {
                    for number in first..end {
                        step.touched.insert(key(number));
                        step.model.remove(&key(number));
                    }
                    batch.delete_range(dict, key(first), key(end));
                })
            }
            7 | 8 => self.append(held).map(|()| Next::On),
            9..12 => {
                let n = 1 + self.random.below(9) as i64;
                self.change(held, |step, batch| {
                    step.added += n;
                    let sum = number(step.model.get(SUM)) + n;
                    step.model.insert(Bytes::from_static(SUM), Bytes::from(sum.to_string()));
                    batch.update(dict, SUM, Update::add(n));
                })
            }
            12..14 => {
                let key = match self.random.below(3) {
                    0 => Bytes::from_static(SUM),
                    1 => Bytes::from(format!("log {label}")),
                    _ => key(self.random.below(KEYS)),
                };
                let found = scope.get(dict, &key)?;
                let expected = record.last().model.get(&key).cloned();
                assert_eq!(found, expected, "{label} reads {key:?}");
                self.count("reads");
                Ok(Next::On)
            }
            14 => {
                let found: Model = scope.scan(dict, b"", b"", usize::MAX)?.into_iter().collect();
                assert_eq!(found, record.last().model, "{label} reads all");
                self.count("reads");
                Ok(Next::On)
            }
            15 => {
                let mut cursor = scope.cursor(dict, b"k", b"l")?;
                cursor.seek_to_end()?;
                let mut found = Model::new();
                while let Some(tuple) = cursor.prev()? {
                    found.insert(tuple.key.clone(), tuple.value()?);
                }
                let mut expected = record.last().model;
                expected.retain(|key, _| key.starts_with(b"k"));
                assert_eq!(found, expected, "{label} reads backward");
                self.count("reads");
                Ok(Next::On)
            }
            16 | 17 => {
                let syncs = self.random.one_in(2);
                keep(&self.world, &record, &transaction, syncs)?;
                self.count("syncs");
                Ok(Next::On)
            }
            18 => {
                let servers = self.world.servers();
                let point = transaction.savepoint()?;
                held.savepoints.push((point, record.last(), servers));
                Ok(Next::On)
            }
            19 => self.roll_back(held),
            20 => {
                transaction.renew()?;
                Ok(Next::On)
            }
            _ => {
                let most = 1 << self.random.below(12);
                let most = Duration::from_millis(self.random.below(most));
                // Half of the pauses exceed the lease, which only the thread of `Heart` renews
                // then.
                let silent = if self.random.one_in(2) { 2 * held.lease } else { most };
                thread::sleep(silent);
                Ok(Next::On)
            }
        }
    }

    fn roll_back(&mut self, held: &mut Held) -> kvdb::Result<Next> {
        if held.savepoints.is_empty() {
            return Ok(Next::On);
        }
        let place = self.random.below(held.savepoints.len() as u64) as usize;
        let (point, step, servers) = held.savepoints[place].clone();
        held.savepoints.truncate(place + 1);
        held.record.with(|state| state.steps.push(step));
        match held.transaction.roll_back(&point) {
            Ok(()) => {
                self.count("rolled back");
                Ok(Next::On)
            }
            // Savepoints end with their server.
            Err(Error::Invalid(what)) => {
                assert_ne!(servers, self.world.servers(), "{}: {what}", held.record.label);
                held.record.with(|state| drop(state.steps.pop()));
                held.savepoints.clear();
                Ok(Next::On)
            }
            // The rollback may still take place later, or not.
            Err(Error::Io(_)) => {
                self.count("calls without an answer");
                Ok(self.left(held))
            }
            Err(e) => Err(e),
        }
    }

    fn end(&mut self, held: &mut Held) -> kvdb::Result<Next> {
        match self.random.below(10) {
            0 => Ok(self.left(held)),
            1 => self.abort(held),
            2 if held.record.durable => Ok(Next::TakeUp),
            _ => self.commit(held),
        }
    }

    fn abort(&mut self, held: &Held) -> kvdb::Result<Next> {
        held.record.with(|state| state.may_vanish = true);
        match held.transaction.abort() {
            Ok(()) => {
                self.count("aborts");
                self.world.oracle.told_absent(&held.record, "it was aborted");
                Ok(Next::Over)
            }
            Err(Error::Io(_)) => Ok(Next::Over),
            Err(e) => Err(e),
        }
    }

    fn commit(&mut self, held: &mut Held) -> kvdb::Result<Next> {
        let record = held.record.clone();
        let synced = self.random.one_in(2);
        for _ in 0..3 {
            record.with(|state| state.committing.push(state.steps.len() - 1));
            let before = held.transaction.clone();
            match before.commit(synced) {
                Ok(Outcome::Committed) => {
                    self.world.oracle.told_committed(&record, synced);
                    return Ok(Next::Over);
                }
                Ok(Outcome::NotSynced(what)) => panic!("{}: {what}", record.label),
                Ok(Outcome::Conflict { keys, .. }) => {
                    self.count("conflicts");
                    assert!(!keys.is_empty(), "{} is in conflict with none", record.label);
                    // The changes since a savepoint may be those in conflict.
                    let before = record.with(|state| state.steps.len());
                    match self.roll_back(held)? {
                        Next::On => {}
                        next => return Ok(next),
                    }
                    if record.with(|state| state.steps.len()) == before {
                        return self.abort(held);
                    }
                }
                // The commit may have taken place, so request it again.
                Err(Error::Io(_)) => {
                    self.count("commits without an answer");
                    held.may_have_committed = true;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(self.left(held))
    }

    /// Takes up a durable transaction, as another client that has its key.
    fn take_up(&mut self, held: &Held) -> Option<Held> {
        let (record, label) = (&held.record, &held.record.label);
        let key = held.transaction.key();
        for _ in 0..4 {
            self.client = None;
            let (client, wire) = self.connected()?;
            let (begun, servers, life) =
                (schedule::now(), self.world.servers(), self.world.oracle.life());
            let is_late = |e: &kvdb_wire::Error| e.to_string().contains("another client");
            let taken = match ServedTransaction::take_up(&wire, key) {
                Ok(taken) => Arc::new(taken),
                Err(e) if e.is_of_connection() || is_late(&e) => continue,
                Err(kvdb_wire::Error::Failed(Failure { code: FailureCode::NoView, what })) => {
                    let may = record.with(|state| {
                        state.may_vanish || (state.synced.is_none() && held.life != life)
                    });
                    assert!(may || self.world.oracle.has(label), "{label} is not there: {what}");
                    return None;
                }
                Err(e) => panic!("{label} is not taken up: {e}"),
            };
            let scope = Scope::Served(taken.clone());
            let seen = match scope.scan(self.world.oracle.dict, b"", b"", usize::MAX) {
                Ok(seen) => seen.into_iter().collect::<Model>(),
                Err(Error::Io(_) | Error::NoTransaction(_)) => continue,
                Err(e) => panic!("{label} is not read: {e}"),
            };
            let now = self.world.oracle.life() == life;
            let state = record.with(|state| {
                let kept = state.synced.unwrap_or_default();
                let first = match state.acknowledged {
                    Some((of, step)) if now && of == life => step.max(kept),
                    _ => kept,
                };
                let found = state.find(first, &seen).unwrap_or_else(|| {
                    let steps: Vec<_> = state.steps.iter().map(|step| &step.model).collect();
                    panic!("{label} was taken up from step {first}, with {seen:?}, of {steps:#?}")
                });
                state.is_taken = true;
                RecordState {
                    steps: state.steps[kept..=found].to_vec(),
                    id: state.id,
                    synced: state.synced.map(|_| 0),
                    acknowledged: now.then_some((life, found - kept)),
                    ..RecordState::default()
                }
            });
            let record = Record::new(label, true, state);
            self.world.oracle.add(&record);
            self.count("taken up");
            let lease = Duration::from_secs(1);
            return Some(Held {
                heart: Heart::new(&taken, begun, lease, self.world.plan.hearts),
                transaction: taken,
                record,
                client,
                servers,
                life,
                savepoints: Vec::new(),
                lease,
                may_have_committed: held.may_have_committed,
            });
        }
        None
    }
}

fn one_of(random: &mut Random, once_in: u64) -> bool {
    once_in > 0 && random.one_in(once_in)
}
