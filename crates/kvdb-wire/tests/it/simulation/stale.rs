//! A client that continues a transaction which another client has taken over, and the changes that
//! clients make in transactions.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::{Random, thread};
use kvdb::{Batch, Durability, Error, Scope, Update};
use kvdb_wire::{Outcome, ServedTransaction};

use super::oracle::{Model, Record, Step};
use super::world::World;

/// A former holder of a transaction, which continues with it after another client has taken it up.
pub struct Stale {
    pub world: Arc<World>,
    pub transaction: Arc<ServedTransaction>,
    pub record: Arc<Record>,
    pub random: Random,
}

impl Stale {
    /// Returns the number of refusals.
    pub fn run(mut self) -> u64 {
        let (mut refused, label) = (0, self.record.label.clone());
        for _ in 0..1 + self.random.below(4) {
            thread::sleep(Duration::from_millis(self.random.below(500)));
            let is_taken = || self.record.with(|state| state.is_taken);
            let was_taken = is_taken();
            let done = match self.random.below(6) {
                0..3 => append(&self.record, &self.transaction, self.world.oracle.dict, 0)
                    .and_then(|()| keep(&self.world, &self.record, &self.transaction, true)),
                3 => {
                    let scope = Scope::Served(self.transaction.clone());
                    let seen = scope.scan(self.world.oracle.dict, b"", b"", usize::MAX);
                    match seen {
                        Ok(seen) => {
                            let seen: Model = seen.into_iter().collect();
                            assert_eq!(seen, self.record.last().model, "{label} reads on");
                            continue;
                        }
                        Err(e) => Err(e),
                    }
                }
                4 => {
                    if was_taken {
                        self.transaction.abort()
                    } else {
                        continue;
                    }
                }
                _ => {
                    self.record.with(|state| state.committing.push(state.steps.len() - 1));
                    match self.transaction.commit(false) {
                        Ok(Outcome::Committed) => {
                            self.world.oracle.told_committed(&self.record, false);
                            continue;
                        }
                        Ok(_) => Ok(()),
                        Err(e) => Err(e),
                    }
                }
            };
            match done {
                Ok(()) => assert!(!was_taken, "{label} goes on where another one has taken it up"),
                Err(Error::NoTransaction(_)) => refused += 1,
                Err(Error::Io(_)) => {}
                // A rollback waited to be sent, and its savepoint has ended with a server.
                Err(Error::Invalid(what)) if what.contains("no such savepoint") => return refused,
                Err(e) => panic!("{label}, which another client has: {e}"),
            }
        }
        refused
    }
}

/// Changes a transaction and the record of its client alike.
pub fn changed(
    record: Arc<Record>,
    transaction: &Arc<ServedTransaction>,
    change: impl FnOnce(&mut Step, &mut Batch),
) -> kvdb::Result<()> {
    let (mut step, mut batch) = (record.last(), Batch::new());
    change(&mut step, &mut batch);
    record.with(|state| state.steps.push(step));
    Scope::Served(transaction.clone()).apply(batch, Durability::Buffered)
}

/// Appends to a value that no other transaction changes and that shows the order of the appends.
pub fn append(
    record: &Arc<Record>,
    transaction: &Arc<ServedTransaction>,
    dict: kvdb::DictionaryId,
    number: u64,
) -> kvdb::Result<()> {
    let key = Bytes::from(format!("log {}", record.label));
    let update = Update::append(format!("{};", number % 1000).as_bytes()).expect("it is short");
    changed(record.clone(), transaction, |step, batch| {
        step.touched.insert(key.clone());
        let value = update.apply(step.model.get(&key).map(|value| &value[..]));
        step.model.insert(key.clone(), value);
        batch.update(dict, key, update);
    })
}

/// Syncs all changes, or only sends them.
pub fn keep(
    world: &World,
    record: &Record,
    transaction: &Arc<ServedTransaction>,
    syncs: bool,
) -> kvdb::Result<()> {
    let last = record.with(|state| state.steps.len() - 1);
    let life = world.oracle.life();
    match syncs {
        true => Scope::Served(transaction.clone()).sync()?,
        false => {
            transaction.send()?;
            // The changes may have been sent before a crash that has lost them. Then there was
            // nothing to send, and the server gets them again before this request.
            transaction.renew()?;
        }
    }
    let same = world.oracle.life() == life;
    record.with(|state| {
        if syncs && record.durable {
            state.synced = state.synced.max(Some(last));
        }
        if same {
            state.acknowledged = Some((life, last));
        }
    });
    Ok(())
}
