//! Tests of power cuts at every kind of moment, in stores that transactions work on. Some
//! transactions are small, some outgrow memory and have runs of their own, and some contain
//! committed inner ones. After recovery each exists whole or not at all, in the order of their
//! commits, and all synced ones exist.
//!
//! `KVFS_SEEDS=n` runs n seeds instead of the usual few; `KVFS_SEED=n` runs one.

use std::sync::Arc;
use std::time::Duration;

use crate::model::*;
use env::{Random, Simulated};
use kvdb::{
    DictionaryId, Durability, Error, Isolation, Kvdb, OpenOptions, Savepoint, Transaction,
    TransactionOptions, without_lock_waits,
};
use zones::{CrashDevice, MemoryDevice, ZONE_SIZE};

/// A transaction and what the model says of it.
struct Running {
    transaction: Transaction,
    /// The store as it was when it began.
    base: Model,
    changes: Vec<Change>,
    savepoints: Vec<(Savepoint, usize)>,
}

impl Running {
    fn begin(db: &Kvdb, random: &mut Random, base: &Model) -> kvdb::Result<Running> {
        let isolation =
            if random.one_in(4) { Isolation::Serializable } else { Isolation::Snapshot };
        // There is only one thread, so no other could release a lock that it waits for. Commits are
        // made `without_lock_waits` for the same reason.
        let options = TransactionOptions {
            isolation,
            lock_timeout: Duration::ZERO,
            ..TransactionOptions::default()
        };
        Ok(Running {
            transaction: db.begin_with(options)?,
            base: base.clone(),
            changes: Vec::new(),
            savepoints: Vec::new(),
        })
    }

    /// Some changes in a transaction within this one, which is committed into it or aborted.
    fn change_within(
        &mut self,
        db: &Kvdb,
        random: &mut Random,
        dicts: &[DictionaryId],
    ) -> kvdb::Result<bool> {
        let within = Some(self.transaction.id());
        let mut inner = Running {
            transaction: db.begin_with(TransactionOptions { within, ..Default::default() })?,
            base: self.base.clone(),
            changes: self.changes.clone(),
            savepoints: Vec::new(),
        };
        for _ in 0..1 + random.below(3) {
            inner.change(random, dicts)?;
        }
        inner.verify(dicts[0], &self.base)?;
        if random.one_in(4) {
            inner.transaction.abort();
            return Ok(false);
        }
        match inner.transaction.commit(Durability::Buffered) {
            Ok(()) => self.changes = inner.changes,
            Err(Error::NoSpace) => {
                inner.transaction.abort();
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    /// Some changes, perhaps so large that they are written out.
    fn change(&mut self, random: &mut Random, dicts: &[DictionaryId]) -> kvdb::Result<()> {
        let mut next = changes(random, dicts);
        if random.one_in(6) {
            let dict = dicts[random.below(dicts.len() as u64) as usize];
            let (first, len) = (random.below(300), 8000 + random.below(9000) as usize);
            next.extend((0..2 + random.below(12)).map(|i| {
                let mut value = bytes(random, 64);
                value.resize(len, i as u8);
                Change::Put(dict, format!("key{:03}", (first + i) % 300).into_bytes(), value)
            }));
        }
        match self.transaction.apply(batch(&next)) {
            Ok(()) => self.changes.extend(next),
            Err(Error::NoSpace) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    fn mark(&mut self) -> kvdb::Result<()> {
        self.savepoints.push((self.transaction.savepoint()?, self.changes.len()));
        Ok(())
    }

    fn go_back(&mut self, random: &mut Random) -> kvdb::Result<()> {
        if self.savepoints.is_empty() {
            return Ok(());
        }
        self.savepoints.truncate(1 + random.below(self.savepoints.len() as u64) as usize);
        let (savepoint, changes) = &self.savepoints[self.savepoints.len() - 1];
        self.transaction.rollback_to(savepoint)?;
        self.changes.truncate(*changes);
        Ok(())
    }

    /// The transaction sees its base, and its own changes above that.
    fn verify(&self, dict: DictionaryId, newest: &Model) -> kvdb::Result<()> {
        let mut expected = match self.transaction.isolation() {
            Isolation::Snapshot => self.base.clone(),
            Isolation::Serializable => newest.clone(),
        };
        apply(&mut expected, &self.changes);
        let found = self.transaction.view()?.scan(dict, b"", b"", usize::MAX)?;
        let found = found.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
        assert!(
            expected[&dict] == found,
            "transaction {} does not see what it should",
            self.transaction.id()
        );
        Ok(())
    }
}

/// Works on the store until the power fails or the work is done.
fn work(
    db: &Kvdb,
    env: &Simulated,
    random: &mut Random,
    dicts: &[DictionaryId],
    history: &mut History,
    steps: u64,
    committed: &mut [u64; 3],
) -> kvdb::Result<()> {
    let mut running: Vec<Running> = Vec::new();
    for _ in 0..steps {
        let one = random.below(running.len().max(1) as u64) as usize;
        let durability = if random.one_in(3) { Durability::Synced } else { Durability::Buffered };
        match random.below(24) {
            0..=3 if running.len() < 4 => {
                running.push(Running::begin(db, random, history.newest())?)
            }
            0..=14 if !running.is_empty() => {
                let dict = dicts[random.below(dicts.len() as u64) as usize];
                let may_nest = running[one].transaction.isolation() == Isolation::Snapshot;
                let step = match random.below(12) {
                    0 => running[one].mark(),
                    1 => running[one].go_back(random),
                    2 => running[one].verify(dict, history.newest()),
                    3 if may_nest => running[one]
                        .change_within(db, random, dicts)
                        .map(|nested| committed[2] += u64::from(nested)),
                    _ => running[one].change(random, dicts),
                };
                match step {
                    // The transaction was ended in favour of an older one.
                    Err(Error::Locked(_)) => drop(running.swap_remove(one)),
                    step => step?,
                }
            }
            15..=17 if !running.is_empty() => {
                let Running { transaction, changes, .. } = running.swap_remove(one);
                let large = transaction.info().run_bytes > 0;
                history.attempt(&changes);
                match without_lock_waits(|| transaction.commit(durability)) {
                    Ok(()) => {
                        committed[large as usize] += 1;
                        if durability == Durability::Synced {
                            history.certain();
                        }
                    }
                    // The commit was refused, so its changes may never be visible.
                    Err(Error::NoSpace | Error::Conflict { .. } | Error::Locked(_)) => {
                        drop(history.possible.pop())
                    }
                    Err(e) => return Err(e),
                }
            }
            18 if !running.is_empty() && random.one_in(2) => {
                running.swap_remove(one).transaction.abort()
            }
            19 => {
                let changes = changes(random, dicts);
                history.attempt(&changes);
                match without_lock_waits(|| db.commit(batch(&changes), durability)) {
                    Ok(()) if durability == Durability::Synced => history.certain(),
                    Ok(()) => {}
                    Err(Error::NoSpace | Error::Locked(_)) => drop(history.possible.pop()),
                    Err(e) => return Err(e),
                }
            }
            20 | 21 => drop(unless_full(db.step())?),
            22 if random.one_in(3) => {
                if unless_full(db.flush())?.is_some() {
                    history.certain();
                }
            }
            22 if random.one_in(3) => {
                unless_full(db.compact(dicts[random.below(dicts.len() as u64) as usize]))?;
            }
            _ => env.advance(Duration::from_millis(random.below(30))),
        }
    }
    Ok(())
}

/// Counts commits of transactions in memory, of transactions with runs, and of nested transactions.
fn run(seed: u64) -> [u64; 3] {
    let mut random = Random::new(seed);
    let env = Arc::new(Simulated::new(seed));
    // Every fourth store is so small that it fills up.
    let mut image = match seed % 4 {
        3 => MemoryDevice::with_limit((10 + random.below(5)) * ZONE_SIZE),
        _ => MemoryDevice::new(),
    };
    let options = |random: &mut Random| OpenOptions { flush_on_close: random.one_in(2), ..small() };
    let dicts = {
        let device = Arc::new(CrashDevice::over(image.clone()));
        let db = create(device.clone(), env.clone(), options(&mut random)).unwrap();
        let dicts = dictionaries(&db).unwrap();
        image = device.crash(seed);
        dicts
    };
    let mut history = History { possible: vec![with_all(Model::new(), &dicts)] };
    let mut committed = [0; 3];
    for life in 0..1 + random.below(4) {
        let device = Arc::new(CrashDevice::over(image.clone()));
        // Sometimes the power fails during recovery.
        let within = if random.one_in(8) { 6 } else { 300 };
        device.cut_power_after(random.below(within));
        let opened = Kvdb::open(device.clone(), env.clone(), options(&mut random));
        let steps = 1 + random.below(250);
        let db = match opened {
            Ok((db, _)) => Some(db),
            Err(e) => {
                let full = matches!(e, Error::NoSpace);
                assert!(device.is_dead() || full, "seed {seed}, life {life}: opening failed: {e}");
                None
            }
        };
        if let Some(db) = &db {
            history.found(contents(db).unwrap(), &format!("seed {seed}, life {life}"));
            assert!(
                db.transactions().is_empty(),
                "seed {seed}, life {life}: a transaction has outlived the power cut"
            );
            if let Err(e) = work(db, &env, &mut random, &dicts, &mut history, steps, &mut committed)
            {
                assert!(device.is_dead(), "seed {seed}, life {life}: {e}");
            } else if random.one_in(3) && !device.is_dead() && db.close().is_ok() {
                history.certain();
            }
        }
        image = device.crash(seed ^ life);
        drop(db);
        let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "seed {seed}, life {life}: {:?}", report.faults);
    }
    let (db, _) = Kvdb::open(Arc::new(image), env, small())
        .unwrap_or_else(|e| panic!("seed {seed}: the last opening failed: {e}"));
    history.found(contents(&db).unwrap(), &format!("seed {seed}, at the end"));
    committed
}

#[test]
fn a_transaction_survives_a_power_cut_whole_or_not_at_all() {
    let mut committed = [0; 3];
    let seeds = seeds(150);
    let many = seeds.end - seeds.start >= 20;
    for seed in seeds {
        let these = run(seed);
        committed.iter_mut().zip(these).for_each(|(all, one)| *all += one);
    }
    assert!(
        !many || committed.iter().all(|n| *n > 20),
        "all kinds of commits are meant: {committed:?} happened"
    );
}
