//! The invariants that must hold under all faults of the wire, the clients and the server: the
//! state that each transaction may show, the state that a commit produces, and the state after a
//! crash.
//!
//! The server asks the oracle's [`Watched`] host to begin and end transactions, one at a time, so
//! the oracle knows the order of all commits. It compares each commit with the changes that its
//! client intended, and each opened store with the promises that clients have received by then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use env::schedule;
use env::sync::Mutex as ScheduledMutex;
use kvdb::{DictionaryId, Kvdb, Transaction, TransactionOptions};
use kvdb_wire::Host;
use zones::CrashDevice;

pub type Model = BTreeMap<Bytes, Bytes>;

/// A key to which many transactions add. Additions do not conflict.
pub const SUM: &[u8] = b"sum";

pub fn number(value: Option<&Bytes>) -> i64 {
    let text = value.map(|value| String::from_utf8_lossy(value).into_owned());
    text.map_or(0, |text| text.parse().expect("a number"))
}

/// The expected state of a transaction after some of its changes.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub model: Model,
    /// Keys that the transaction has changed, except by additions.
    pub touched: BTreeSet<Bytes>,
    pub added: i64,
}

/// A transaction as its client knows it. Once another client takes it up, it has a new record.
pub struct Record {
    pub label: String,
    pub durable: bool,
    state: Mutex<RecordState>,
}

#[derive(Default)]
pub struct RecordState {
    /// Its expected states. Each is added before its change is made.
    pub steps: Vec<Step>,
    /// Its number in the store.
    pub id: Option<u64>,
    /// The step that is on disk: a crash leaves this one or a later one. `None` if a crash may
    /// leave nothing of the transaction.
    pub synced: Option<usize>,
    /// A life of the server, and the step that the server is known to have in it. It may have a
    /// later one.
    pub acknowledged: Option<(u64, usize)>,
    /// The steps whose commit its client has requested.
    pub committing: Vec<usize>,
    /// Set if its client may end it without a commit, or is gone without having passed on its key.
    pub may_vanish: bool,
    /// Set once its client was told that it has ended.
    pub is_over: bool,
    /// Set once another client has taken it up.
    pub is_taken: bool,
}

impl Record {
    pub fn new(label: &str, durable: bool, state: RecordState) -> Arc<Record> {
        Arc::new(Record { label: label.into(), durable, state: Mutex::new(state) })
    }

    pub fn with<T>(&self, use_it: impl FnOnce(&mut RecordState) -> T) -> T {
        use_it(&mut self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    pub fn last(&self) -> Step {
        self.with(|state| state.steps.last().cloned().expect("it has begun"))
    }
}

impl RecordState {
    /// Returns the last step with this content, searching from step `first` on.
    pub fn find(&self, first: usize, seen: &Model) -> Option<usize> {
        (first..self.steps.len()).rev().find(|&i| self.steps[i].model == *seen)
    }
}

/// A state of the store.
#[derive(Clone, Debug)]
struct State {
    number: u64,
    model: Model,
    /// The transaction whose commit has produced it.
    label: String,
    touched: BTreeSet<Bytes>,
}

struct Truth {
    /// The committed states in order, without those that a crash has lost.
    states: Vec<State>,
    next: u64,
    /// The number of the state that must survive every crash.
    floor: u64,
    /// The state of the commit that a crash interrupted.
    interrupted: Option<State>,
    records: BTreeMap<String, Arc<Record>>,
    /// The states with which transactions began, by label and number.
    bases: BTreeMap<(String, u64), u64>,
    /// Numbers of the transactions that a crash left before their clients knew of them. A client
    /// that tries again may begin another one.
    strays: BTreeSet<u64>,
    committed: BTreeSet<String>,
    /// Transactions whose clients were told that they have committed and are on disk.
    certain: BTreeSet<String>,
    /// Transactions whose clients were told that they have not committed.
    absent: BTreeSet<String>,
    life: u64,
}

/// Logs an event if `KVFS_TRACE` is set, to examine a single seed.
pub fn say(what: impl FnOnce() -> String) {
    static TELLS: OnceLock<bool> = OnceLock::new();
    if *TELLS.get_or_init(|| std::env::var_os("KVFS_TRACE").is_some()) {
        eprintln!("{:?}: {}", schedule::now(), what());
    }
}

pub struct Oracle {
    pub dict: DictionaryId,
    truth: ScheduledMutex<Truth>,
}

/// Returns the whole content of the dictionary that clients change.
fn content(db: &Kvdb, dict: DictionaryId) -> kvdb::Result<Model> {
    Ok(db.view().scan(dict, b"", b"", usize::MAX)?.into_iter().collect())
}

impl Truth {
    fn last(&self) -> &State {
        self.states.last().expect("the first one stays")
    }

    /// Returns the last state of the store with the changes of a transaction.
    fn with(&self, step: &Step) -> Model {
        let mut model = self.last().model.clone();
        for key in &step.touched {
            match step.model.get(key) {
                Some(value) => model.insert(key.clone(), value.clone()),
                None => model.remove(key),
            };
        }
        if step.added != 0 {
            let sum = number(model.get(SUM)) + step.added;
            model.insert(Bytes::from_static(SUM), Bytes::from(sum.to_string()));
        }
        model
    }

    fn has(&self, label: &str) -> bool {
        self.states.iter().any(|state| state.label == label)
    }
}

impl Oracle {
    pub fn new(db: &Kvdb, dict: DictionaryId) -> Oracle {
        let model = content(db, dict).expect("a store in memory");
        let first = State { number: 0, model, label: String::new(), touched: BTreeSet::new() };
        Oracle {
            dict,
            truth: ScheduledMutex::new(Truth {
                states: vec![first],
                next: 1,
                floor: 0,
                interrupted: None,
                records: BTreeMap::new(),
                bases: BTreeMap::new(),
                strays: BTreeSet::new(),
                committed: BTreeSet::new(),
                certain: BTreeSet::new(),
                absent: BTreeSet::new(),
                life: 0,
            }),
        }
    }

    /// Returns how often the store was reopened after a crash.
    pub fn life(&self) -> u64 {
        self.truth.lock().life
    }

    pub fn add(&self, record: &Arc<Record>) {
        self.truth.lock().records.insert(record.label.clone(), record.clone());
    }

    /// Returns the state that a transaction of this label and number must have seen when it began.
    pub fn base(&self, label: &str, id: u64) -> Model {
        let mut truth = self.truth.lock();
        truth.strays.remove(&id);
        let number = truth.bases.get(&(label.to_owned(), id));
        let number = *number.unwrap_or_else(|| panic!("{label} was not begun as {id}"));
        let base = truth.states.iter().find(|state| state.number == number);
        // If a crash has lost that state, it has also lost the transaction.
        base.map(|state| state.model.clone()).unwrap_or_default()
    }

    /// Records that a client was told that its transaction has committed.
    pub fn told_committed(&self, record: &Record, synced: bool) {
        let mut truth = self.truth.lock();
        let label = &record.label;
        say(|| format!("{label} was told that it has committed"));
        assert!(truth.committed.contains(label), "{label} was told that it has committed");
        assert!(!truth.absent.contains(label), "{label} was told that it is gone");
        if synced {
            truth.certain.insert(label.clone());
            let all = truth.states.iter().chain(&truth.interrupted);
            let own = all.into_iter().find(|state| state.label == *label);
            let own = own.map(|state| state.number);
            let own = own.unwrap_or_else(|| panic!("{label} was told that it is on disk"));
            truth.floor = truth.floor.max(own);
        }
        record.with(|state| state.is_over = true);
    }

    /// Records that a client was told that its transaction has not committed.
    pub fn told_absent(&self, record: &Record, why: &str) {
        let mut truth = self.truth.lock();
        let label = &record.label;
        assert!(!truth.has(label), "{label} has committed, and was told: {why}");
        truth.absent.insert(label.clone());
        say(|| format!("{label} was told that it is gone: {why}"));
        record.with(|state| state.is_over = true);
    }

    pub fn has_ever(&self, label: &str) -> bool {
        self.truth.lock().committed.contains(label)
    }

    pub fn has(&self, label: &str) -> bool {
        self.truth.lock().has(label)
    }

    /// Checks the store after it was opened following a crash.
    pub fn reopened(&self, db: &Kvdb) {
        let mut truth = self.truth.lock();
        truth.life += 1;
        let now = content(db, self.dict).expect("a store in memory");
        let interrupted = truth.interrupted.take();
        if let Some(state) = interrupted.filter(|state| state.model == now) {
            truth.committed.insert(state.label.clone());
            truth.states.push(state);
        }
        let floor = truth.floor;
        let last = truth.states.iter().rposition(|state| state.model == now);
        let last = last.filter(|&i| truth.states[i].number >= floor).unwrap_or_else(|| {
            let state =
                |state: &State| format!("{} {}: {:?}", state.number, state.label, state.model);
            let all: Vec<String> = truth.states.iter().map(state).collect();
            panic!("after a crash, at least state {floor} is wanted: {now:?}, of {all:#?}")
        });
        truth.states.truncate(last + 1);
        say(|| format!("opened in state {}", truth.last().number));
        for label in &truth.certain {
            assert!(truth.has(label), "{label} was on disk, and is gone after a crash");
        }
        self.check_durable(db, &mut truth);
    }

    /// Checks that the durable transactions are open as promised, and no others.
    fn check_durable(&self, db: &Kvdb, truth: &mut Truth) {
        let mut open = BTreeSet::new();
        for info in db.transactions() {
            let label = info.label;
            say(|| format!("{label} is open as {}", info.id));
            assert!(info.durable, "{label} is open after a crash");
            if truth.strays.contains(&info.id.0) {
                continue;
            }
            let record = truth.records.get(&label).expect("a client has begun it").clone();
            let transaction = db.transaction(info.id).expect("it is open");
            let seen = transaction.scan(self.dict, b"", b"", usize::MAX).expect("in memory");
            let seen: Model = seen.into_iter().collect();
            if record.with(|state| state.id) != Some(info.id.0) {
                // The server may have crashed before it knew that the transaction had begun.
                let base = truth.states.iter().rfind(|state| state.model == seen);
                let base = base.unwrap_or_else(|| panic!("{label} began with {seen:?}")).number;
                truth.bases.entry((label, info.id.0)).or_insert(base);
                truth.strays.insert(info.id.0);
                continue;
            }
            record.with(|state| {
                let first = state.synced.unwrap_or_default();
                let is_one = state.steps.is_empty() || state.find(first, &seen).is_some();
                assert!(
                    is_one,
                    "{label} has {seen:?} after a crash, of {:?}",
                    &state.steps[first..]
                );
            });
            assert!(!truth.has(&label), "{label} has committed, and is open");
            let base = truth.bases[&(label.clone(), info.id.0)];
            assert!(base <= truth.last().number, "{label} began with what a crash took");
            open.insert(label);
        }
        for (label, record) in truth.records.iter().filter(|(label, _)| !open.contains(*label)) {
            record.with(|state| {
                let may =
                    state.synced.is_none() || state.may_vanish || state.is_over || truth.has(label);
                assert!(may, "{label} is durable and was synced, and is gone after a crash");
            });
        }
    }

    /// Checks the store after the last client has gone and all leases have ended.
    pub fn at_rest(&self, db: &Kvdb) {
        let truth = self.truth.lock();
        let now = content(db, self.dict).expect("a store in memory");
        assert_eq!(now, truth.last().model, "at rest");
        for info in db.transactions() {
            let label = info.label;
            assert!(info.durable, "{label} is open after its lease");
            if truth.strays.contains(&info.id.0) {
                continue;
            }
            let record = truth.records.get(&label).expect("a client has begun it");
            // A crash may have lost a commit that was not synced, and the transaction is open
            // again.
            let is_over = record.with(|state| state.is_over);
            let may = !is_over || (truth.committed.contains(&label) && !truth.has(&label));
            assert!(may, "{label} was told that it has ended, and is open");
        }
        for label in &truth.absent {
            assert!(!truth.has(label), "{label} was told that it is gone, and has committed");
        }
        for label in &truth.certain {
            assert!(truth.has(label), "{label} was on disk, and is gone");
        }
    }

    pub fn commits(&self) -> u64 {
        self.truth.lock().committed.len() as u64
    }
}

/// The host of a server, which reports everything that it does to the oracle.
pub struct Watched {
    pub db: Kvdb,
    pub device: Arc<CrashDevice>,
    pub oracle: Arc<Oracle>,
}

impl Host for Watched {
    fn begin(&self, options: TransactionOptions) -> kvdb::Result<Transaction> {
        let mut truth = self.oracle.truth.lock();
        let label = options.label.clone();
        let begun = Host::begin(&self.db, options)?;
        let number = truth.last().number;
        say(|| format!("{label} begins as {} from {number}", begun.id()));
        truth.bases.insert((label, begun.id().0), number);
        Ok(begun)
    }

    fn commit(&self, transaction: &Transaction, synced: bool) -> kvdb::Result<()> {
        let mut truth = self.oracle.truth.lock();
        let label = transaction.options().label.clone();
        let seen = transaction.scan(self.oracle.dict, b"", b"", usize::MAX)?;
        let seen: Model = seen.into_iter().collect();
        let record = truth.records.get(&label).expect("a client has begun it").clone();
        let step = record.with(|state| {
            let asked = state.committing.iter().map(|&i| &state.steps[i]);
            let step = asked.into_iter().find(|step| step.model == seen).cloned();
            step.unwrap_or_else(|| {
                let asked: Vec<&Model> =
                    state.committing.iter().map(|&i| &state.steps[i].model).collect();
                panic!("{label} commits {seen:?}, and its client has asked for {asked:?}")
            })
        });
        let base = truth.bases.get(&(label.clone(), transaction.id().0)).copied();
        let base = base.expect("it was begun here");
        // The deletion of a missing key may or may not count as a change.
        let by_others = |counts_all: bool| -> Vec<Bytes> {
            let later = || truth.states.windows(2).filter(|pair| pair[1].number > base);
            let is_changed = |key: &&Bytes| {
                later().any(|pair| {
                    let differs = pair[0].model.get(*key) != pair[1].model.get(*key);
                    pair[1].touched.contains(*key) && (differs || counts_all)
                })
            };
            step.touched.iter().filter(is_changed).cloned().collect()
        };
        let (mut changed, touched) = (by_others(false), by_others(true));
        let result = Host::commit(&self.db, transaction, synced);
        // Its own deletion of a key that was not there may be no change either: then it is in no
        // conflict, and the value of others stays.
        let first = truth.states.iter().find(|state| state.number == base);
        let was_there = |key: &Bytes| first.is_none_or(|first| first.model.contains_key(key));
        // A key that others have put and deleted again is as it was for a transaction that has
        // never seen it: a merge may have dropped both changes.
        let last = truth.last();
        changed.retain(|key| was_there(key) || last.model.contains_key(key));
        let is_none = |key: &Bytes| !was_there(key) && !step.model.contains_key(key);
        let (none, changed): (Vec<Bytes>, Vec<Bytes>) = changed.into_iter().partition(is_none);
        let mut step = step;
        step.touched.retain(|key| !none.contains(key));
        let after = truth.with(&step);
        say(|| format!("{label} commits {step:?}: {result:?}"));
        let now = content(&self.db, self.oracle.dict);
        // Asked after the content: the device may end at any time.
        if self.device.is_dead() {
            // No client is notified of anything from now on, but one commit may have reached the
            // disk.
            say(|| "the device of that is dead".into());
            if matches!(result, Err(kvdb::Error::Conflict { .. })) {
                return result;
            }
            let number = truth.next;
            truth.next += 1;
            let touched = step.touched.clone();
            if result.is_ok() {
                // A client that has asked twice may have been notified of it before the device was
                // gone.
                truth.committed.insert(label.clone());
            }
            // The first commit may have reached the disk; later ones find no device.
            truth.interrupted.get_or_insert(State { number, model: after, label, touched });
            return result;
        }
        match &result {
            Ok(()) => {
                assert!(
                    changed.is_empty(),
                    "{label}, begun with {base}, commits {step:?} over what others did to \
                     {changed:?}, and leaves {:?}: {:#?}",
                    now,
                    truth.states.iter().filter(|state| state.number >= base).collect::<Vec<_>>()
                );
                assert!(!truth.has(&label), "{label} commits once more");
                assert!(!truth.absent.contains(&label), "{label} commits after its end");
                let now = now?;
                assert_eq!(now, after, "the commit of {label}");
                let number = truth.next;
                truth.next += 1;
                if synced {
                    truth.floor = number;
                }
                truth.committed.insert(label.clone());
                let touched = step.touched.clone();
                truth.states.push(State { number, model: after, label, touched });
            }
            Err(kvdb::Error::Conflict { .. }) => {
                assert!(!touched.is_empty(), "{label} is in conflict with none");
            }
            // The lease of the transaction has ended.
            Err(kvdb::Error::NoTransaction(_)) => {}
            Err(e) => panic!("the commit of {label}: {e}"),
        }
        result
    }

    fn abort(&self, transaction: &Transaction) -> kvdb::Result<()> {
        let truth = self.oracle.truth.lock();
        let label = &transaction.options().label;
        let record = truth.records.get(label).expect("a client has begun it");
        // An error ends a transaction whose client has not been told yet that it has begun.
        let may = record.with(|state| state.may_vanish || state.id.is_none());
        let may = may || self.device.is_dead();
        say(|| format!("{label} is aborted: {}", transaction.id()));
        assert!(may, "{label} is aborted, and the client that has it did not ask for that");
        Host::abort(&self.db, transaction)
    }

    fn lend(&self, since: Option<u64>) -> kvdb::Result<u64> {
        // In a run with leases no one else changes the main branch.
        Ok(since.unwrap_or(1))
    }
}
