//! Tests of power cuts of stores in which transactions change files and keys together. Some
//! transactions are nested, and between them run plain changes, snapshots, clones, merges, rebases
//! and rollbacks. The recovered state is one state of the common history of all of these, not older
//! than the last sync. Each transaction exists whole or not at all, with its files and keys.
//! Durable transactions that had not ended are open again with their changes. The store and the
//! file system in it check clean, including links and sizes.
//!
//! `KVFS_SEEDS=n` runs n seeds instead of the usual few; `KVFS_SEED=n` runs one.

mod action;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use action::choose;
use env::{Random, Simulated};
use kvdb::{
    CreateOptions, DictionaryId, DictionaryOptions, Durability, Isolation, Kvdb, OpenOptions,
    Savepoint, Scope, Settled, TransactionId, TransactionOptions,
};
use kvfs::{Error, Fs, FsOptions, Ino, MergeOptions, ViewId, Views};
use state::{Id, Overlay, Seen, Tree, is, look, stored};
use zones::{CrashDevice, MemoryDevice};

/// Everything in the store.
#[derive(Clone, Debug, Default)]
struct Store {
    main: Arc<Tree>,
    snapshots: BTreeMap<String, Arc<Tree>>,
    clones: BTreeMap<String, Arc<Tree>>,
    /// The newest state that a clone and the store have in common.
    common: BTreeMap<String, Arc<Tree>>,
    /// The changes of open durable transactions, by label.
    durable: BTreeMap<String, Overlay>,
}

/// States that may be found after a power cut, oldest first. The first one is certain.
struct History {
    states: Vec<Store>,
    /// The states that durable transactions read, by label.
    bases: BTreeMap<String, Arc<Tree>>,
}

impl History {
    fn now(&self) -> &Store {
        &self.states[self.states.len() - 1]
    }

    /// A state that the next call attempts.
    fn attempt(&mut self, change: impl FnOnce(&mut Store)) {
        let mut next = self.now().clone();
        change(&mut next);
        self.states.push(next);
    }

    /// The call was refused.
    fn undo(&mut self) {
        self.states.pop();
    }

    fn certain(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }
}

/// A transaction and what the model says of it.
struct Running {
    id: TransactionId,
    isolation: Isolation,
    durable: Option<String>,
    /// The state below its own changes, under snapshot isolation.
    base: Arc<Tree>,
    over: Overlay,
    savepoints: Vec<(Savepoint, Overlay)>,
    held: Vec<Ino>,
    /// Commits to the mainline before it began.
    since: u64,
}

/// Counts the events, so that none is forgotten.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    small: u64,
    bound: u64,
    serializable: u64,
    durable: u64,
    restored: u64,
    conflicts: u64,
    locked: u64,
    aborted: u64,
    snapshots: u64,
    rollbacks: u64,
    cuts: u64,
    /// Transactions that were committed into others.
    nested: u64,
    merged: u64,
    rebased: u64,
    /// Merges and rebases with conflicts.
    apart: u64,
}

struct World<'a> {
    db: Kvdb,
    fs: Fs,
    views: Views,
    env: &'a Simulated,
    keys: DictionaryId,
    history: &'a mut History,
    running: Vec<Running>,
    /// Inodes of the mainline that a program has open.
    held: Vec<Ino>,
    fresh: &'a mut Id,
    commits: u64,
    tally: &'a mut Tally,
}

fn is_locked(e: &Error) -> bool {
    matches!(e, Error::Store(kvdb::Error::Locked(_)))
}

impl World<'_> {
    fn tree_of(&self, one: usize) -> Tree {
        let running = &self.running[one];
        match running.isolation {
            Isolation::Snapshot => running.base.with(&running.over),
            Isolation::Serializable => self.history.now().main.with(&running.over),
        }
    }

    /// A call of a transaction returned an error. If it is over, it was ended in favour of an older
    /// one.
    fn after_error(&mut self, one: usize, e: Error) -> kvfs::Result<()> {
        if self.running[one].isolation != Isolation::Serializable {
            return Err(e);
        }
        self.tally.locked += 1;
        match self.db.transaction(self.running[one].id).is_err() {
            true => drop(self.running.swap_remove(one)),
            false if is_locked(&e) => {}
            false => return Err(e),
        }
        Ok(())
    }

    fn begin(&mut self, random: &mut Random) -> kvfs::Result<()> {
        let durable = random.one_in(5).then(|| {
            *self.fresh += 1;
            format!("durable{}", self.fresh)
        });
        let isolation = if durable.is_none() && random.one_in(4) {
            Isolation::Serializable
        } else {
            Isolation::Snapshot
        };
        let base = self.history.now().main.clone();
        if let Some(label) = &durable {
            self.history.bases.insert(label.clone(), base.clone());
            self.history.attempt(|s| drop(s.durable.insert(label.clone(), Overlay::default())));
        }
        let options = TransactionOptions {
            isolation,
            durable: durable.is_some(),
            label: durable.clone().unwrap_or_default(),
            // There is only one thread, so no other could release a lock that it waits for.
            lock_timeout: Duration::ZERO,
            ..TransactionOptions::default()
        };
        let id = self.views.begin(options)?;
        if durable.is_some() {
            self.history.certain();
        }
        self.running.push(Running {
            id,
            isolation,
            durable,
            base,
            over: Overlay::default(),
            savepoints: Vec::new(),
            held: Vec::new(),
            since: self.commits,
        });
        Ok(())
    }

    /// One call in a transaction.
    fn step(&mut self, one: usize, random: &mut Random) -> kvfs::Result<()> {
        let tree = self.tree_of(one);
        let Some(action) = choose(random, &tree, self.fresh) else { return Ok(()) };
        let effect = action.effect(&tree);
        let running = &mut self.running[one];
        let mut over = running.over.clone();
        over.add(&effect);
        let durable = running.durable.clone();
        if let Some(label) = &durable {
            self.history.attempt(|s| drop(s.durable.insert(label.clone(), over.clone())));
        }
        // Some calls are made in a nested transaction.
        let nests = running.isolation == Isolation::Snapshot && random.one_in(6);
        let mut perform = || {
            let id = match nests {
                true => {
                    let within = Some(running.id);
                    self.views.begin(TransactionOptions { within, ..Default::default() })?
                }
                false => running.id,
            };
            let (inside, transaction) =
                (self.views.fs(&ViewId::Transaction(id))?, self.views.transaction(id)?);
            let held = if nests { &mut Vec::new() } else { &mut running.held };
            action.perform(
                &inside,
                &Scope::Transaction(transaction),
                self.keys,
                &tree,
                held,
                random,
            )?;
            if nests {
                self.views.commit(id, Durability::Buffered)?;
                self.tally.nested += 1;
            }
            if running.durable.is_some() && action.waits() {
                // Data that waits in memory is not part of the transaction yet.
                self.views.fs(&ViewId::Transaction(running.id))?.sync_all()?;
            }
            Ok(())
        };
        match perform() {
            Ok(()) => running.over = over,
            Err(e) => return self.after_error(one, e),
        }
        Ok(())
    }

    fn save(&mut self, one: usize) -> kvfs::Result<()> {
        match self.views.savepoint(self.running[one].id) {
            Ok(savepoint) => {
                let over = self.running[one].over.clone();
                self.running[one].savepoints.push((savepoint, over));
                Ok(())
            }
            Err(e) => self.after_error(one, e),
        }
    }

    fn go_back(&mut self, one: usize, random: &mut Random) -> kvfs::Result<()> {
        let running = &mut self.running[one];
        if running.savepoints.is_empty() {
            return Ok(());
        }
        running.savepoints.truncate(1 + random.below(running.savepoints.len() as u64) as usize);
        let (savepoint, over) = running.savepoints[running.savepoints.len() - 1].clone();
        if let Some(label) = &running.durable {
            self.history.attempt(|s| drop(s.durable.insert(label.clone(), over.clone())));
        }
        match self.views.rollback_to(running.id, &savepoint) {
            Ok(()) => running.over = over,
            Err(e) => return self.after_error(one, e),
        }
        Ok(())
    }

    /// The transaction sees its base state, and its own changes above that.
    fn verify(&mut self, one: usize) -> kvfs::Result<()> {
        let id = self.running[one].id;
        let see = || {
            let transaction = self.views.transaction(id)?;
            let seen = look(&self.views.fs(&ViewId::Transaction(id))?, BTreeMap::new())?;
            let keys = transaction.scan(self.keys, b"", b"", usize::MAX)?;
            Ok(Seen {
                keys: keys.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect(),
                ..seen
            })
        };
        match see() {
            Ok(seen) => {
                let links = self.running[one].isolation == Isolation::Snapshot;
                is(&self.tree_of(one), &seen, links).unwrap_or_else(|e| {
                    panic!("transaction {id} does not see what it should: {e}")
                });
                Ok(())
            }
            Err(e) => self.after_error(one, e),
        }
    }

    fn commit(
        &mut self,
        one: usize,
        durability: Durability,
        random: &mut Random,
    ) -> kvfs::Result<()> {
        let Running { id, isolation, durable, base, over, since, .. } = &self.running[one];
        let (id, isolation, durable) = (*id, *isolation, durable.clone());
        let main = Arc::new(self.history.now().main.with(over));
        let lost = over
            .lost_update(base, &self.history.now().main)
            .filter(|_| isolation == Isolation::Snapshot);
        let alone = *since == self.commits;
        // Sometimes the test asks for the changes first, which moves the data into the transaction.
        let asked = if random.one_in(3) { self.views.change_set(id).map(drop) } else { Ok(()) };
        let before = match asked.and_then(|()| self.views.transaction(id)) {
            Ok(transaction) => transaction.info(),
            Err(e) => return self.after_error(one, e),
        };
        self.history.attempt(|s| {
            s.main = main;
            durable.as_ref().map(|label| s.durable.remove(label));
        });
        match kvdb::without_lock_waits(|| self.views.commit(id, durability)) {
            Ok(()) => {
                assert_eq!(
                    lost, None,
                    "transaction {id} ({durable:?}) has overwritten what others had committed"
                );
                match () {
                    () if isolation == Isolation::Serializable => self.tally.serializable += 1,
                    () if durable.is_some() => self.tally.durable += 1,
                    () if before.run_bytes > 0 => self.tally.bound += 1,
                    () => self.tally.small += 1,
                }
                self.commits += 1;
                if durability == Durability::Synced {
                    self.history.certain();
                }
                self.running.swap_remove(one);
                Ok(())
            }
            Err(Error::Store(kvdb::Error::Conflict { keys })) => {
                assert!(
                    isolation == Isolation::Snapshot && !alone,
                    "transaction {id} was alone and has a conflict: {keys:?}"
                );
                self.tally.conflicts += 1;
                self.history.undo();
                // The transaction ends as by an abort, and a durable one does not return.
                if let Some(label) = durable {
                    self.history.attempt(|s| drop(s.durable.remove(&label)));
                }
                self.running.swap_remove(one);
                Ok(())
            }
            Err(e) if is_locked(&e) => {
                self.history.undo();
                if isolation == Isolation::Serializable {
                    return self.after_error(one, e);
                }
                assert!(
                    self.db.transaction(id).is_ok(),
                    "transaction {id} would only have had to wait: {e}"
                );
                self.tally.locked += 1;
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn abort(&mut self, one: usize) -> kvfs::Result<()> {
        let running = self.running.swap_remove(one);
        if let Some(label) = &running.durable {
            self.history.attempt(|s| drop(s.durable.remove(label)));
        }
        self.tally.aborted += 1;
        match self.views.abort(running.id) {
            // The transaction was ended in favour of an older one.
            Err(Error::Store(kvdb::Error::NoTransaction(_)))
                if running.isolation == Isolation::Serializable =>
            {
                Ok(())
            }
            result => result,
        }
    }

    /// One call outside of transactions, or in a clone.
    fn outside(&mut self, clone: Option<String>, random: &mut Random) -> kvfs::Result<()> {
        let now = self.history.now();
        let tree = clone.as_ref().map_or(&now.main, |name| &now.clones[name]).clone();
        let Some(action) = choose(random, &tree, self.fresh) else { return Ok(()) };
        // The keys of a clone are another dictionary.
        let keys = match &clone {
            Some(name) => self.db.dictionary_in(name, "user").expect("a clone has the keys"),
            None => self.keys,
        };
        let next = Arc::new(tree.with(&action.effect(&tree)));
        self.history.attempt(|s| match &clone {
            Some(name) => drop(s.clones.insert(name.clone(), next)),
            None => s.main = next,
        });
        let fs = match &clone {
            Some(name) => self.views.fs(&ViewId::Clone(name.clone()))?,
            None => self.fs.clone(),
        };
        let mut held = Vec::new();
        match action.perform(&fs, &Scope::Mainline(self.db.clone()), keys, &tree, &mut held, random)
        {
            Ok(()) if action.waits() => {
                fs.sync_all()?;
                self.history.certain();
            }
            Ok(()) => {}
            Err(e) if is_locked(&e) && clone.is_none() && !self.running.is_empty() => {
                self.tally.locked += 1;
                self.history.undo();
            }
            Err(e) => return Err(e),
        }
        if clone.is_none() {
            self.commits += 1;
            self.held.append(&mut held);
        }
        Ok(())
    }

    /// Operations on snapshots and branches. Each is durable when it returns, and must not become
    /// durable before earlier commits.
    fn branch(&mut self, random: &mut Random) -> kvfs::Result<()> {
        self.db.sync()?;
        self.history.certain();
        let now = self.history.now();
        let names: Vec<String> = now.snapshots.keys().cloned().collect();
        let clones: Vec<String> = now.clones.keys().cloned().collect();
        let one = |random: &mut Random, names: &[String]| {
            (!names.is_empty()).then(|| names[random.below(names.len() as u64) as usize].clone())
        };
        match (random.below(8), one(random, &names), one(random, &clones)) {
            (0..=2, ..) if names.len() < 3 => {
                *self.fresh += 1;
                let name = format!("snapshot{}", self.fresh);
                self.history.attempt(|s| drop(s.snapshots.insert(name.clone(), s.main.clone())));
                let durability =
                    if random.one_in(2) { Durability::Synced } else { Durability::Buffered };
                self.views.snapshot(&ViewId::Mainline, &name, durability)?;
                self.tally.snapshots += 1;
                if durability == Durability::Synced {
                    self.history.certain();
                }
            }
            (3, Some(name), _) => {
                self.history.attempt(|s| drop(s.snapshots.remove(&name)));
                self.views.drop_snapshot(&name)?;
                self.history.certain();
            }
            (4, Some(name), _) if clones.len() < 2 => {
                *self.fresh += 1;
                let clone = format!("clone{}", self.fresh);
                self.history.attempt(|s| {
                    s.common.insert(clone.clone(), s.snapshots[&name].clone());
                    s.clones.insert(clone.clone(), s.snapshots[&name].clone());
                });
                self.views.clone_snapshot(&name, &clone)?;
                self.history.certain();
            }
            (5, _, Some(name)) => {
                self.history.attempt(|s| drop((s.clones.remove(&name), s.common.remove(&name))));
                self.views.drop_clone(&name)?;
                self.history.certain();
            }
            (6, Some(name), _) => {
                // All transactions end first, one by one.
                self.running.sort_by_key(|r| r.id);
                for running in std::mem::take(&mut self.running) {
                    if let Some(label) = running.durable {
                        self.history.attempt(|s| drop(s.durable.remove(&label)));
                    }
                }
                self.history.attempt(|s| {
                    s.main = s.snapshots[&name].clone();
                    // Later merges are undone with it, and an earlier state counts.
                    s.common.clear();
                });
                self.views.rollback(&name)?;
                assert_eq!(self.views.list(), [], "a rollback ends all transactions");
                self.commits += 1;
                self.tally.rollbacks += 1;
                self.history.certain();
            }
            _ => {}
        }
        Ok(())
    }

    /// Merges a clone into the store, or the store into the clone. If both have changed different
    /// things, the result has both changes. Otherwise there may be a conflict, and nothing changes.
    fn merge(&mut self, name: &str, rebase: bool, durability: Durability) -> kvfs::Result<()> {
        let now = self.history.now();
        let Some(common) = now.common.get(name).cloned() else { return Ok(()) };
        let (main, clone) = (now.main.clone(), now.clones[name].clone());
        let (into, from) = if rebase { (&clone, &main) } else { (&main, &clone) };
        let theirs = Overlay::between(&common, from);
        let ours = Overlay::between(&common, into);
        let merged = Arc::new(into.with(&theirs));
        let apart = theirs.has_something_of(&ours) || !merged.is_sound();
        let options = MergeOptions { clone: name.into(), rebase, ..MergeOptions::default() };
        let found = match self.views.merge(&options, &|_, _| Settled::Conflict) {
            Err(e) if is_locked(&e) => {
                self.tally.locked += 1;
                return Ok(());
            }
            found => found?,
        };
        if apart || !found.conflicts.is_empty() {
            assert!(apart, "{name}, rebase: {rebase}: no conflict, but {:?}", found.conflicts);
            self.tally.apart += 1;
            return self.views.abort(found.transaction);
        }
        self.history.attempt(|s| {
            s.common.insert(name.into(), from.clone());
            match rebase {
                true => drop(s.clones.insert(name.into(), merged)),
                false => s.main = merged,
            }
        });
        match kvdb::without_lock_waits(|| self.views.commit(found.transaction, durability)) {
            Err(e) if is_locked(&e) => {
                self.tally.locked += 1;
                self.history.undo();
                return self.views.abort(found.transaction);
            }
            committed => committed?,
        }
        match rebase {
            true => self.tally.rebased += 1,
            false => {
                self.commits += 1;
                self.tally.merged += 1;
            }
        }
        if durability == Durability::Synced {
            self.history.certain();
        }
        Ok(())
    }

    fn work(&mut self, random: &mut Random, steps: u64) -> kvfs::Result<()> {
        for _ in 0..steps {
            // After a restart a durable transaction detects changes of files by their times.
            self.env.advance(Duration::from_micros(1));
            let one = random.below(self.running.len().max(1) as u64) as usize;
            let durability =
                if random.one_in(3) { Durability::Synced } else { Durability::Buffered };
            match random.below(40) {
                0..=4 if self.running.len() < 4 => self.begin(random)?,
                0..=19 if !self.running.is_empty() => match random.below(16) {
                    0 => self.save(one)?,
                    1 => self.go_back(one, random)?,
                    2 => self.verify(one)?,
                    _ => {
                        let calls = if random.one_in(8) { 12 } else { 1 + random.below(3) };
                        for _ in 0..calls {
                            let before = self.running.len();
                            self.step(one, random)?;
                            if self.running.len() < before {
                                break;
                            }
                        }
                    }
                },
                20..=24 if !self.running.is_empty() => self.commit(one, durability, random)?,
                25 if !self.running.is_empty() => self.abort(one)?,
                26..=28 => self.outside(None, random)?,
                29 if random.one_in(3) => {
                    let clone = self.history.now().clones.keys().next_back().cloned();
                    if let Some(clone) = clone {
                        self.merge(&clone, random.one_in(3), durability)?;
                    }
                }
                29 => {
                    let clone = self.history.now().clones.keys().next_back().cloned();
                    self.outside(clone, random)?;
                }
                30 => self.branch(random)?,
                31 => {
                    self.fs.sync_all()?;
                    self.history.certain();
                }
                32 | 33 => drop(self.db.step()?),
                34 => self.fs.tick()?,
                35 => self.views.tick(),
                36 => {
                    // The programs that had them open close them.
                    self.held.drain(..).for_each(|ino| self.fs.forget(ino, 1));
                    if let Some(running) = self.running.get_mut(one)
                        && let Ok(inside) = self.views.fs(&ViewId::Transaction(running.id))
                    {
                        running.held.drain(..).for_each(|ino| inside.forget(ino, 1));
                    }
                }
                _ => self.env.advance(Duration::from_millis(random.below(800))),
            }
        }
        Ok(())
    }
}

/// Everything in the store as it is found.
struct Everything {
    main: Seen,
    snapshots: BTreeMap<String, Seen>,
    clones: BTreeMap<String, Seen>,
    durable: BTreeMap<String, (TransactionId, Seen)>,
}

fn everything(db: &Kvdb, fs: &Fs, views: &Views, keys: DictionaryId) -> kvfs::Result<Everything> {
    let mut found = Everything {
        main: look(fs, stored(&db.view(), keys)?)?,
        snapshots: BTreeMap::new(),
        clones: BTreeMap::new(),
        durable: BTreeMap::new(),
    };
    for info in views.snapshots() {
        let state = db.open_snapshot(&info.name)?;
        let dict = state.dictionary("user").expect("a snapshot has the keys");
        let seen = look(&views.fs(&ViewId::Snapshot(info.name.clone()))?, stored(&state, dict)?)?;
        found.snapshots.insert(info.name, seen);
    }
    for info in views.clones() {
        let dict = db.dictionary_in(&info.name, "user").expect("a clone has the keys");
        let seen = look(&views.fs(&ViewId::Clone(info.name.clone()))?, stored(&db.view(), dict)?)?;
        found.clones.insert(info.name, seen);
    }
    for info in views.list() {
        let transaction = views.transaction(info.id)?;
        let seen =
            look(&views.fs(&ViewId::Transaction(info.id))?, stored(&transaction.view()?, keys)?)?;
        found.durable.insert(info.label, (info.id, seen));
    }
    Ok(found)
}

fn same<A, B>(
    what: &str,
    a: &BTreeMap<String, A>,
    b: &BTreeMap<String, B>,
    each: impl Fn(&str, &A, &B) -> Result<(), String>,
) -> Result<(), String> {
    if !a.keys().eq(b.keys()) {
        return Err(format!("{what}: {:?} there, not {:?}", b.keys(), a.keys()));
    }
    a.iter()
        .zip(b.values())
        .try_for_each(|((name, a), b)| each(name, a, b).map_err(|e| format!("{what} {name}: {e}")))
}

fn matches(
    store: &Store,
    bases: &BTreeMap<String, Arc<Tree>>,
    found: &Everything,
) -> Result<(), String> {
    is(&store.main, &found.main, true)?;
    same("snapshots", &store.snapshots, &found.snapshots, |_, tree, seen| is(tree, seen, true))?;
    same("clones", &store.clones, &found.clones, |_, tree, seen| is(tree, seen, true))?;
    let each = |name: &str, over: &Overlay, (_, seen): &(TransactionId, Seen)| {
        is(&bases[name].with(over), seen, true)
    };
    same("durable transactions", &store.durable, &found.durable, each)
}

fn small() -> OpenOptions {
    OpenOptions {
        memory: 1 << 20,
        flush_interval: Duration::from_millis(10),
        late_bind_at: 16 << 10,
        threads: false,
        zero_journal: false,
        idle_flush: Duration::from_millis(50),
        ..OpenOptions::default()
    }
}

fn options() -> FsOptions {
    // Each write to the mainline is a commit.
    FsOptions { write_buffer: 1 << 20, ..FsOptions::default() }
}

fn open(
    image: &MemoryDevice,
    env: &Arc<Simulated>,
    cut: Option<u64>,
) -> (Arc<CrashDevice>, kvfs::Result<(Kvdb, Fs, Views)>) {
    let device = Arc::new(CrashDevice::over(image.clone()));
    if let Some(writes) = cut {
        device.cut_power_after(writes);
    }
    let opened = Kvdb::open(device.clone(), env.clone(), small()).map_err(Error::from).and_then(
        |(db, _)| {
            let fs = Fs::open(db.clone(), env.clone(), options())?;
            let views = Views::new(db.clone(), fs.clone());
            Ok((db, fs, views))
        },
    );
    (device, opened)
}

/// Says which seed it was.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was seed {}", self.0);
        }
    }
}

fn run(seed: u64, tally: &mut Tally) {
    let _named = Named(seed);
    let mut random = Random::new(seed);
    let env = Arc::new(Simulated::new(seed));
    let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
    let create = CreateOptions { open: small(), reserve_zones: 4, ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env.clone(), create).expect("a new store");
    let keys = db.create_dictionary("user", DictionaryOptions::default()).expect("a dictionary");
    Fs::open(db.clone(), env.clone(), options())
        .and_then(|fs| fs.shutdown())
        .expect("a new file system");
    drop(db);
    let mut image = device.crash(seed);
    let mut history = History { states: vec![Store::default()], bases: BTreeMap::new() };
    let (mut fresh, mut going_on) = (0, Vec::<Running>::new());
    for life in 0..2 + random.below(3) {
        let cut = if random.one_in(8) { random.below(12) } else { random.below(600) };
        let (device, opened) = open(&image, &env, Some(cut));
        match opened {
            Err(e) => assert!(device.is_dead(), "seed {seed}, life {life}: opening failed: {e}"),
            Ok((db, fs, views)) => {
                let running = std::mem::take(&mut going_on);
                let mut world = World {
                    db,
                    fs,
                    views,
                    env: &env,
                    keys,
                    history: &mut history,
                    running,
                    held: Vec::new(),
                    fresh: &mut fresh,
                    commits: 1,
                    tally,
                };
                let steps = 20 + random.below(250);
                if let Err(e) = world.work(&mut random, steps) {
                    assert!(device.is_dead(), "seed {seed}, life {life}: {e}");
                    world.tally.cuts += 1;
                } else if random.one_in(4) && !device.is_dead() {
                    // A clean stop.
                    let ended = world
                        .fs
                        .shutdown()
                        .and_then(|()| world.views.shutdown())
                        .and_then(|()| Ok(world.db.close()?));
                    match ended {
                        Ok(()) => world.history.certain(),
                        Err(e) => assert!(device.is_dead(), "seed {seed}, life {life}: {e}"),
                    }
                }
            }
        }
        image = device.crash(seed ^ life.wrapping_mul(77));
        let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "seed {seed}, life {life}: {:?}", report.faults);

        // The power is back.
        let bare = Kvdb::open(Arc::new(CrashDevice::over(image.clone())), env.clone(), small());
        let (bare, _) = bare.unwrap_or_else(|e| panic!("seed {seed}, life {life}: {e}"));
        let committed = kvfs::verify(&bare).expect("verifies");
        assert!(committed.is_clean(), "seed {seed}, life {life}: {:?}", committed.findings);
        drop(bare);
        let (device, opened) = open(&image, &env, None);
        let (db, fs, views) = opened.unwrap_or_else(|e| panic!("seed {seed}, life {life}: {e}"));
        let found = everything(&db, &fs, &views, keys)
            .unwrap_or_else(|e| panic!("seed {seed}, life {life}: {e}"));
        let mut reasons = Vec::new();
        let at = history
            .states
            .iter()
            .rposition(|s| matches(s, &history.bases, &found).map_err(|e| reasons.push(e)).is_ok());
        let at = at.unwrap_or_else(|| {
            panic!(
                "seed {seed}, life {life}: none of {} states: {reasons:#?}",
                history.states.len()
            )
        });
        // The history continues from the state that was found.
        history.states = vec![history.states.swap_remove(at)];
        let durable = history.now().durable.clone();
        tally.restored += durable.len() as u64;
        let goes_on = durable.into_iter().map(|(label, over)| Running {
            id: found.durable[&label].0,
            isolation: Isolation::Snapshot,
            base: history.bases[&label].clone(),
            durable: Some(label),
            over,
            savepoints: Vec::new(),
            held: Vec::new(),
            since: 0,
        });
        going_on = goes_on.collect();
        fs.shutdown().and_then(|()| views.shutdown()).expect("shuts down");
        db.close().expect("closes");
        drop((views, fs, db));
        image = device.durable();
    }
}

#[test]
fn transactions_over_files_and_keys_survive_power_cuts_whole_or_not_at_all() {
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seeds = match number("KVFS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KVFS_SEEDS").unwrap_or(100),
    };
    let many = seeds.end - seeds.start >= 20;
    let mut tally = Tally::default();
    for seed in seeds {
        run(seed, &mut tally);
    }
    println!("{tally:?}");
    let Tally {
        small,
        bound,
        serializable,
        durable,
        restored,
        conflicts,
        locked,
        aborted,
        snapshots,
        rollbacks,
        cuts,
        nested,
        merged,
        rebased,
        apart,
    } = tally;
    let all = [
        small,
        bound,
        serializable,
        durable,
        restored,
        conflicts,
        locked,
        aborted,
        snapshots,
        rollbacks,
        cuts,
        nested,
        merged,
        rebased,
        apart,
    ];
    assert!(!many || all.iter().all(|n| *n > 0), "each of these is meant to happen: {tally:?}");
}
