//! Histories of the lease of the main branch. Several clients take it from each other, change the
//! branch under it, and return it or disappear, with the same faults as in all other runs.
//!
//! The test knows which states an epoch may leave: those that its client has made, in order, from
//! the last one that was acknowledged as synced. The next client must find one of these states, and
//! after that only its own changes. So the test detects a change from an ended epoch, a batch that
//! is applied twice, and a lost sync.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use env::{Random, Simulated, schedule, thread};
use kvdb::{Batch, DictionaryId, Durability, Error, Kvdb, Scope, Update};
use kvdb_wire::{Client, Failure, FailureCode, LeaseOptions, ServedTransaction};
use zones::{CrashDevice, MemoryDevice};

use super::oracle::{Model, SUM, number, say};
use super::session::{Counts, Heart};
use super::world::{self, Plan, World};
use super::{Work, run_clients, run_histories};

const DICTIONARY: &str = "lent";
/// A value to which each change appends, so that it shows their order.
const LOG: &[u8] = b"log";
const KEYS: u64 = 8;

/// Events that must all occur in a large number of runs.
const KINDS: [&str; 10] = [
    "leases",
    "leases given back",
    "leases lost",
    "leases refused",
    "calls without an answer",
    "reads",
    "syncs",
    "servers killed",
    "clients killed",
    "connections cut",
];

/// Returns the store of all runs, with the dictionary that the clients change.
fn image() -> MemoryDevice {
    static IMAGE: OnceLock<MemoryDevice> = OnceLock::new();
    let made = IMAGE.get_or_init(|| {
        let device = Arc::new(CrashDevice::over(world::image()));
        let opened = Kvdb::open(device.clone(), Arc::new(Simulated::new(1)), world::options());
        let (db, _) = opened.expect("a store in memory");
        db.open_dictionary(DICTIONARY).expect("a dictionary");
        db.sync().expect("a store in memory");
        drop(db);
        device.current()
    });
    made.clone()
}

/// The lease of one client.
#[derive(Default)]
struct Epoch {
    /// The states of the dictionary, from the one that the client has found. Each is added before
    /// its change is made.
    steps: Vec<Model>,
    /// The step that is on disk.
    synced: usize,
    /// A life of the server, and a step that the server is known to have in it.
    acknowledged: Option<(u64, usize)>,
}

/// The epochs whose clients have found out what was there before them. All others have changed
/// nothing.
struct Epochs {
    dict: DictionaryId,
    /// Locked for moments in which no other thread of the run can get its turn.
    all: Mutex<BTreeMap<u64, Epoch>>,
}

impl Epochs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Epoch>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, number: u64, use_it: impl FnOnce(&mut Epoch) -> T) -> T {
        use_it(self.lock().get_mut(&number).expect("it has begun"))
    }

    fn last_step(&self, number: u64) -> Model {
        self.with(number, |epoch| epoch.steps.last().cloned().expect("it has a first one"))
    }

    /// Begins an epoch whose client has found `base`. `life` is that of the server, if there was
    /// one from the request for the lease on. Returns `false` if a later epoch has begun before the
    /// client was told: it can change nothing any more.
    fn begins(&self, number: u64, base: Model, life: Option<u64>) -> bool {
        let mut all = self.lock();
        assert!(!all.contains_key(&number), "epoch {number} is given twice");
        if all.last_key_value().is_some_and(|(last, _)| *last > number) {
            return false;
        }
        check(&all, &base, life, &format!("epoch {number}"));
        all.insert(number, Epoch { steps: vec![base], ..Epoch::default() });
        true
    }

    /// Checks the store when no client is there any more.
    fn at_rest(&self, db: &Kvdb) {
        let found = db.view().scan(self.dict, b"", b"", usize::MAX).expect("a store in memory");
        let found: Model = found.into_iter().collect();
        check(&self.lock(), &found, None, "the end");
    }
}

/// Checks what is found after the last epoch.
fn check(all: &BTreeMap<u64, Epoch>, found: &Model, life: Option<u64>, by: &str) {
    let Some((number, epoch)) = all.last_key_value() else {
        assert!(found.is_empty(), "{by} finds {found:?} before any client had the lease");
        return;
    };
    let acknowledged = epoch.acknowledged.filter(|(of, _)| life == Some(*of));
    let first = acknowledged.map_or(0, |(_, step)| step).max(epoch.synced);
    let steps = &epoch.steps[first..];
    assert!(
        steps.contains(found),
        "{by} finds {found:?}, and epoch {number} has left, from step {first} on, {steps:#?}"
    );
}

/// A client of a run.
struct Holder {
    world: Arc<World>,
    epochs: Arc<Epochs>,
    name: u64,
    random: Random,
    client: Option<(u64, Arc<Client>)>,
    counts: Counts,
}

/// A lease that a client holds, as far as it knows.
struct Held {
    lease: Arc<ServedTransaction>,
    epoch: u64,
    client: u64,
    time: Duration,
}

impl Holder {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn run(mut self) -> Counts {
        for _ in 0..2 * self.world.plan.transactions {
            self.hold();
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

    /// Asks for the lease, and works under it.
    fn hold(&mut self) {
        let Some((client, wire)) = self.connected() else { return };
        let (least, most) = self.world.plan.lease;
        let time = Duration::from_millis(least + self.random.below(most - least + 1));
        let takes = self.random.one_in(2);
        let options = LeaseOptions { takes, lease: time, label: format!("client {}", self.name) };
        let (begun, life) = (schedule::now(), self.world.oracle.life());
        let lease = match ServedTransaction::lease(&wire, options) {
            Ok(lease) => Arc::new(lease),
            Err(e) if e.is_of_connection() => return self.count("calls without an answer"),
            Err(kvdb_wire::Error::Failed(Failure { code: FailureCode::Locked, .. })) => {
                self.count("leases refused");
                return thread::sleep(Duration::from_millis(self.random.below(2 * most)));
            }
            // Another client has taken it before this one was told that it had it.
            Err(kvdb_wire::Error::Failed(Failure { code: FailureCode::Fenced, .. })) => {
                return self.count("leases lost");
            }
            Err(e) => panic!("client {} gets no lease: {e}", self.name),
        };
        let held = Held { epoch: lease.id().0, lease, client, time };
        let base = Scope::Served(held.lease.clone()).scan(self.epochs.dict, b"", b"", usize::MAX);
        let base: Model = match base {
            Ok(base) => base.into_iter().collect(),
            // Nothing was changed in it.
            Err(Error::Io(_)) => return self.count("calls without an answer"),
            Err(e) => panic!("epoch {}: {e}", held.epoch),
        };
        let life = Some(life).filter(|life| self.world.oracle.life() == *life);
        say(|| format!("client {} has epoch {}", self.name, held.epoch));
        if !self.epochs.begins(held.epoch, base, life) {
            return self.count("leases lost");
        }
        self.count("leases");
        let mut heart = Heart::new(&held.lease, begun, held.time, self.world.plan.hearts);
        self.work(&held);
        heart.end();
    }

    fn work(&mut self, held: &Held) {
        for _ in 0..2 + self.random.below(2 * self.world.plan.operations) {
            if self.world.is_dead(held.client) {
                return;
            }
            match self.operate(held) {
                Ok(()) => {}
                Err(Error::Io(_)) if held.lease.over().is_some() => return self.lost(held),
                Err(Error::Io(_)) => self.count("calls without an answer"),
                Err(e) => panic!("epoch {}: {e}", held.epoch),
            }
        }
        // Some clients disappear, and return the lease only if that is possible at once.
        if !self.random.one_in(3) {
            self.give_back(held);
        }
    }

    /// Handles a lease whose client was told that it has lost it.
    fn lost(&mut self, held: &Held) {
        self.count("leases lost");
        let why = held.lease.over().unwrap_or_default();
        // And not a state of the server that lacks what was synced, for example.
        assert!(why.contains("the lease of the main files"), "epoch {}: {why}", held.epoch);
        assert!(self.append(held).and_then(|()| held.lease.send()).is_err(), "it goes on");
    }

    fn give_back(&mut self, held: &Held) {
        for _ in 0..3 {
            let last = self.epochs.with(held.epoch, |epoch| epoch.steps.len() - 1);
            match held.lease.give_back() {
                Ok(()) => {
                    self.epochs.with(held.epoch, |epoch| epoch.synced = epoch.synced.max(last));
                    return self.count("leases given back");
                }
                Err(Error::Io(_)) if held.lease.over().is_some() => return self.lost(held),
                Err(Error::Io(_)) => self.count("calls without an answer"),
                // It was given back, and its answer was lost, and so was the memory of the server.
                Err(Error::NoTransaction(_)) => return,
                Err(e) => panic!("epoch {} is not given back: {e}", held.epoch),
            }
        }
    }

    /// Changes the branch and the expected state alike. The value of each change is its own.
    fn change(
        &self,
        held: &Held,
        change: impl FnOnce(&mut Model, &mut Batch, String),
    ) -> kvdb::Result<()> {
        let mut batch = Batch::new();
        self.epochs.with(held.epoch, |epoch| {
            let mut model = epoch.steps.last().cloned().expect("it has a first one");
            change(&mut model, &mut batch, format!("{}.{};", held.epoch, epoch.steps.len()));
            epoch.steps.push(model);
        });
        Scope::Served(held.lease.clone()).apply(batch, Durability::Buffered)
    }

    fn append(&self, held: &Held) -> kvdb::Result<()> {
        let dict = self.epochs.dict;
        self.change(held, |model, batch, value| {
            let update = Update::append(value.as_bytes()).expect("it is short");
            let after = update.apply(model.get(LOG).map(|value| &value[..]));
            model.insert(Bytes::from_static(LOG), after);
            batch.update(dict, LOG, update);
        })
    }

    fn operate(&mut self, held: &Held) -> kvdb::Result<()> {
        let key = |number: u64| Bytes::from(format!("k{number}"));
        let (dict, of) = (self.epochs.dict, self.random.below(KEYS));
        let scope = Scope::Served(held.lease.clone());
        match self.random.below(18) {
            0..4 => self.change(held, |model, batch, value| {
                let value = Bytes::from(value);
                model.insert(key(of), value.clone());
                batch.put(dict, key(of), value);
            }),
            4 => self.change(held, |model, batch, _| {
                model.remove(&key(of));
                batch.delete(dict, key(of));
            }),
            5 => self.change(held, |model, batch, _| {
                let end = (of + 3).min(KEYS);
                (of..end).for_each(|number| drop(model.remove(&key(number))));
                batch.delete_range(dict, key(of), key(end));
            }),
            6..8 => self.append(held),
            8..10 => self.change(held, |model, batch, _| {
                let sum = number(model.get(SUM)) + 1;
                model.insert(Bytes::from_static(SUM), Bytes::from(sum.to_string()));
                batch.update(dict, SUM, Update::add(1));
            }),
            10 => {
                let found = scope.get(dict, &key(of))?;
                let expected = self.epochs.last_step(held.epoch).get(&key(of)).cloned();
                assert_eq!(found, expected, "epoch {} reads {of}", held.epoch);
                self.count("reads");
                Ok(())
            }
            11 => {
                let found: Model = scope.scan(dict, b"", b"", usize::MAX)?.into_iter().collect();
                let expected = self.epochs.last_step(held.epoch);
                assert_eq!(found, expected, "epoch {} reads all", held.epoch);
                self.count("reads");
                Ok(())
            }
            12..15 => self.keep(held),
            15 => held.lease.renew(),
            _ => {
                let most = Duration::from_millis(1 << self.random.below(12));
                let longer = 2 * held.time;
                thread::sleep(if self.random.one_in(2) { longer } else { most });
                Ok(())
            }
        }
    }

    /// Syncs all changes, or only sends them.
    fn keep(&mut self, held: &Held) -> kvdb::Result<()> {
        let syncs = !self.random.one_in(3);
        let last = self.epochs.with(held.epoch, |epoch| epoch.steps.len() - 1);
        let life = self.world.oracle.life();
        match syncs {
            true => Scope::Served(held.lease.clone()).sync()?,
            false => {
                held.lease.send()?;
                // A crash may have lost some of it, which is sent again before this request.
                held.lease.renew()?;
            }
        }
        let same = self.world.oracle.life() == life;
        self.epochs.with(held.epoch, |epoch| {
            if syncs {
                epoch.synced = epoch.synced.max(last);
            } else if same {
                epoch.acknowledged = Some((life, last));
            }
        });
        self.count("syncs");
        Ok(())
    }
}

/// Runs one history, from the start of its server until the last lease has been given back or lost.
fn history(seed: u64, image: MemoryDevice) -> Counts {
    let mut random = Random::new(seed);
    let world = World::new(Plan::new(&mut random), image);
    let dict = world.db().dictionary(DICTIONARY).expect("it was made");
    let epochs = Arc::new(Epochs { dict, all: Mutex::default() });
    let client = |name, random| -> Work {
        let (world, epochs) = (world.clone(), epochs.clone());
        let holder = Holder { world, epochs, name, random, client: None, counts: Counts::new() };
        Box::new(move || holder.run())
    };
    let counts = run_clients(&world, &mut random, client, || epochs.at_rest(&world.db()));
    world.kill_server(false);
    counts
}

#[test]
fn a_history_of_leases_loses_no_sync_and_has_no_change_of_an_epoch_that_is_over() {
    run_histories(50, image, history, &KINDS);
}
