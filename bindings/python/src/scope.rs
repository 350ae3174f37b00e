//! Keys as one sees them: of the store, in a transaction, or in a snapshot.

use std::ops::Bound as End;
use std::sync::Arc;

use bytes::Bytes;
use kvdb::{Batch, DictionaryId, Durability, MAX_KEY, Transaction, Update, View};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::failure::{Failure, Outcome};
use crate::files::Files;
use crate::home::Home;
use crate::octets::Octets;
use crate::range::{Range, Walk};
use crate::shared::{Open, Shared, check_name, reserved};
use crate::slot::Slot;

enum At {
    Mainline,
    Transaction {
        slot: Arc<Slot<Transaction>>,
        id: kvdb::TransactionId,
        /// It was begun by this object, and is aborted with it.
        own: bool,
    },
    Frozen(Arc<Slot<View>>, String),
}

/// Where reads and writes of keys go.
#[pyclass(frozen, module = "kvfs._kvfs")]
pub struct Scope {
    shared: Arc<Shared>,
    at: At,
}

/// A point of a transaction to go back to.
#[pyclass(frozen, module = "kvfs._kvfs")]
pub struct Savepoint(kvdb::Savepoint);

/// A change of a batch as Python gives it: what, dictionary, key or start, value or stop.
pub type Change = (String, String, Octets, Option<Octets>);

impl Scope {
    /// The keys outside of all transactions.
    pub fn mainline(shared: Arc<Shared>) -> Scope {
        Scope { shared, at: At::Mainline }
    }

    /// The keys as a transaction sees them. `own`: it is aborted with the object at the latest.
    pub fn transaction(shared: Arc<Shared>, transaction: Transaction, own: bool) -> Scope {
        let id = transaction.id();
        let slot = shared.slot("the transaction", transaction);
        Scope { shared, at: At::Transaction { slot, id, own } }
    }

    /// The keys of a snapshot.
    pub fn frozen(shared: Arc<Shared>, name: String, view: View) -> Scope {
        let slot = shared.slot("the snapshot", view);
        Scope { shared, at: At::Frozen(slot, name) }
    }

    fn scope(&self, open: &Open) -> Outcome<kvdb::Scope> {
        Ok(match &self.at {
            At::Mainline => kvdb::Scope::Mainline(open.db.clone()),
            At::Transaction { slot, id, .. } => {
                let transaction = slot.lock()?.clone().ok_or(Failure::Ended(*id))?;
                kvdb::Scope::Transaction(transaction)
            }
            At::Frozen(slot, _) => kvdb::Scope::Frozen(slot.get()?),
        })
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Open, kvdb::Scope) -> Outcome<T> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| {
            let open = self.shared.open()?;
            let done = self.scope(&open).and_then(|scope| call(&open, scope));
            done.map_err(|failure| open.cause(self.id(), failure))
        })?)
    }

    /// The number of the transaction, where it is one.
    fn id(&self) -> Option<kvdb::TransactionId> {
        match &self.at {
            At::Transaction { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// The transaction, where it is one.
    fn transaction_of(&self) -> Outcome<(&Slot<Transaction>, kvdb::TransactionId)> {
        match &self.at {
            At::Transaction { slot, id, .. } => Ok((slot, *id)),
            _ => Err(Failure::Invalid("this is no transaction".into())),
        }
    }
}

/// The dictionary of that name as the scope has it.
fn existing(open: &Open, scope: &kvdb::Scope, name: &str) -> Outcome<Option<DictionaryId>> {
    match scope {
        kvdb::Scope::Frozen(view) => {
            check_name(name)?;
            let found = view.dictionaries().into_iter().find(|d| d.name == name);
            match found {
                Some(info) if info.options.reserved => Err(reserved(name)),
                found => Ok(found.map(|info| info.id)),
            }
        }
        _ => open.dictionary(name),
    }
}

/// The state that a scope sees of `[start, end)`, which a serializable transaction locks; an empty
/// end is that of the dictionary.
fn read_range(
    scope: &kvdb::Scope,
    dict: DictionaryId,
    start: &[u8],
    end: &[u8],
) -> Outcome<kvdb::View> {
    if let kvdb::Scope::Transaction(transaction) = scope {
        transaction.lock_range(dict, start, end, false)?;
    }
    Ok(scope.view()?)
}

/// Ahead of all else that a change would do, such as making its dictionary.
pub fn check_key(key: &[u8]) -> Outcome<()> {
    if key.len() <= MAX_KEY {
        return Ok(());
    }
    Err(Failure::Invalid(format!("a key has at most {MAX_KEY} bytes, not {}", key.len())))
}

fn delete_range(batch: &mut Batch, dict: DictionaryId, start: &[u8], stop: Option<&[u8]>) {
    let start = Bytes::copy_from_slice(start);
    match stop {
        Some(stop) if *stop > *start => {
            batch.delete_range(dict, start, Bytes::copy_from_slice(stop));
        }
        Some(_) => {}
        None => {
            // Up to the last key that there can be, and that one.
            let last = Bytes::from(vec![0xff; MAX_KEY]);
            batch.delete_range(dict, start, last.clone());
            batch.delete(dict, last);
        }
    }
}

pub fn add_change(
    batch: &mut Batch,
    dict: DictionaryId,
    (what, _, key, value): &Change,
) -> Outcome<()> {
    let copied = |octets: &Octets| Bytes::copy_from_slice(octets);
    check_key(key)?;
    match (what.as_str(), value) {
        ("put", Some(value)) => batch.put(dict, copied(key), copied(value)),
        ("delete", None) => batch.delete(dict, copied(key)),
        ("delete_range", stop) => delete_range(batch, dict, key, stop.as_deref()),
        ("delete_prefix", None) => batch.delete_prefix(dict, &**key),
        _ => return Err(Failure::Invalid(format!("{what} is no change of a key"))),
    }
    Ok(())
}

#[pymethods]
impl Scope {
    fn get<'py>(
        &self,
        py: Python<'py>,
        dictionary: &str,
        key: Octets,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.call(py, |open, scope| match existing(open, &scope, dictionary)? {
            Some(dict) => Ok(scope.get(dict, &key)?),
            None => Ok(None),
        })?;
        Ok(found.map(|value| PyBytes::new(py, &value)))
    }

    fn get_many<'py>(
        &self,
        py: Python<'py>,
        dictionary: &str,
        keys: Vec<Octets>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let found = self.call(py, |open, scope| {
            let Some(dict) = existing(open, &scope, dictionary)? else {
                return Ok(vec![None; keys.len()]);
            };
            let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
            if let kvdb::Scope::Transaction(transaction) = &scope {
                keys.iter().try_for_each(|key| transaction.lock_key(dict, key, false))?;
            }
            Ok(scope.view()?.multi_get(dict, &keys)?)
        })?;
        Ok(found.into_iter().map(|value| value.map(|value| PyBytes::new(py, &value))).collect())
    }

    fn contains(&self, py: Python<'_>, dictionary: &str, key: Octets) -> PyResult<bool> {
        self.call(py, |open, scope| match existing(open, &scope, dictionary)? {
            Some(dict) => contains(&scope, dict, &key),
            None => Ok(false),
        })
    }

    fn put(&self, py: Python<'_>, dictionary: &str, key: Octets, value: Octets) -> PyResult<()> {
        self.call(py, |open, scope| match &scope {
            kvdb::Scope::Mainline(db) => {
                Ok(db.put(open.dictionary_to_write(dictionary)?, &key, &value, open.durability)?)
            }
            kvdb::Scope::Transaction(transaction) => {
                check_key(&key)?;
                Ok(transaction.put(open.dictionary_to_write(dictionary)?, &*key, &*value)?)
            }
            kvdb::Scope::Frozen(_) => Err(is_a_snapshot()),
            // Those are `served`.
            kvdb::Scope::Served(_) => Err(Failure::Invalid("the store is elsewhere".into())),
        })
    }

    /// Deletes a key; whether it was there.
    fn delete(&self, py: Python<'_>, dictionary: &str, key: Octets) -> PyResult<bool> {
        self.call(py, |open, scope| {
            if !scope.writable() {
                return Err(is_a_snapshot());
            }
            let Some(dict) = existing(open, &scope, dictionary)? else { return Ok(false) };
            if !contains(&scope, dict, &key)? {
                return Ok(false);
            }
            let mut batch = Batch::new();
            batch.delete(dict, Bytes::copy_from_slice(&key));
            scope.apply(batch, open.durability)?;
            Ok(true)
        })
    }

    /// Adds to the number that a value is, in decimal; a missing one is 0.
    fn add(&self, py: Python<'_>, dictionary: &str, key: Octets, number: i64) -> PyResult<()> {
        self.call(py, |open, scope| {
            if !scope.writable() {
                return Err(is_a_snapshot());
            }
            check_key(&key)?;
            let dict = open.dictionary_to_write(dictionary)?;
            // The update itself would take any value. Another may change it in between, and then it
            // has its way with that.
            let value = scope.get(dict, &key)?;
            let known = value.as_deref().map_or(Some(0), number_of);
            if known.and_then(|known| known.checked_add(number)).is_none() {
                return Err(Failure::Invalid(
                    "the value is no whole number of 64 bits, or would not be one any more".into(),
                ));
            }
            let mut batch = Batch::new();
            batch.update(dict, Bytes::copy_from_slice(&key), Update::add(number));
            Ok(scope.apply(batch, open.durability)?)
        })
    }

    /// Makes changes as one.
    fn apply(&self, py: Python<'_>, changes: Vec<Change>, sync: Option<bool>) -> PyResult<()> {
        self.call(py, |open, scope| {
            if !scope.writable() {
                return Err(is_a_snapshot());
            }
            let mut batch = Batch::new();
            for change in &changes {
                let deletes = change.0.starts_with("delete");
                // Deleting makes no dictionary.
                let dict = if deletes {
                    existing(open, &scope, &change.1)?
                } else {
                    Some(open.dictionary_to_write(&change.1)?)
                };
                if let Some(dict) = dict {
                    add_change(&mut batch, dict, change)?;
                }
            }
            if batch.is_empty() {
                return Ok(());
            }
            let durability = match sync {
                Some(true) => Durability::Synced,
                Some(false) => Durability::Buffered,
                None => open.durability,
            };
            Ok(scope.apply(batch, durability)?)
        })
    }

    /// Keys and, if wanted, values of `[start, stop)`.
    #[pyo3(signature = (dictionary, start, stop, reverse, values))]
    fn range(
        &self,
        py: Python<'_>,
        dictionary: &str,
        start: Octets,
        stop: Option<Octets>,
        reverse: bool,
        values: bool,
    ) -> PyResult<Range> {
        let walk = self.call(py, |open, scope| {
            let Some(dict) = existing(open, &scope, dictionary)? else { return Ok(None) };
            if stop.as_ref().is_some_and(|stop| **stop <= *start) {
                return Ok(None);
            }
            if let kvdb::Scope::Transaction(transaction) = &scope {
                let end: &[u8] = stop.as_deref().unwrap_or_default();
                transaction.lock_range(dict, &start, end, false)?;
            }
            let stop = stop.as_deref().map_or(End::Unbounded, End::Excluded);
            let iter = scope.view()?.range::<&[u8]>(dict, (End::Included(&*start), stop));
            Ok(Some(Walk::new(iter, reverse, values)))
        })?;
        Ok(Range::new(walk.map(|walk| self.shared.slot("the iterator", walk))))
    }

    /// Tuples of `[start, stop)`, by how many that may be off, bytes, by how many.
    fn estimate(
        &self,
        py: Python<'_>,
        dictionary: &str,
        start: Octets,
        stop: Option<Octets>,
    ) -> PyResult<(u64, u64, u64, u64)> {
        self.call(py, |open, scope| {
            let Some(dict) = existing(open, &scope, dictionary)? else { return Ok((0, 0, 0, 0)) };
            let stop = stop.as_deref().map_or(End::Unbounded, End::Excluded);
            let range = (End::Included(&*start), stop);
            let found = scope.view()?.estimate::<&[u8]>(dict, range)?;
            Ok((found.items, found.items_error, found.bytes, found.bytes_error))
        })
    }

    /// How many keys come before one.
    fn rank(&self, py: Python<'_>, dictionary: &str, key: Octets) -> PyResult<u64> {
        self.call(py, |open, scope| {
            let Some(dict) = existing(open, &scope, dictionary)? else { return Ok(0) };
            let view = read_range(&scope, dict, b"", &key)?;
            Ok(open.db.rank::<&[u8]>(&view, dict, .., &*key)?)
        })
    }

    /// The key that so many others come before.
    fn select<'py>(
        &self,
        py: Python<'py>,
        dictionary: &str,
        number: u64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.call(py, |open, scope| {
            let Some(dict) = existing(open, &scope, dictionary)? else { return Ok(None) };
            let view = read_range(&scope, dict, b"", b"")?;
            Ok(open.db.select::<&[u8]>(&view, dict, .., number)?)
        })?;
        Ok(found.map(|key| PyBytes::new(py, &key)))
    }

    /// How many keys `[start, stop)` has.
    fn count(
        &self,
        py: Python<'_>,
        dictionary: &str,
        start: Octets,
        stop: Option<Octets>,
    ) -> PyResult<u64> {
        self.call(py, |open, scope| {
            let Some(dict) = existing(open, &scope, dictionary)? else { return Ok(0) };
            let view = read_range(&scope, dict, &start, stop.as_deref().unwrap_or_default())?;
            let stop = stop.as_deref().map_or(End::Unbounded, End::Excluded);
            Ok(open.db.count::<&[u8]>(&view, dict, (End::Included(&*start), stop))?)
        })
    }

    /// The user's dictionaries, by name.
    fn dictionaries(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.call(py, |open, scope| {
            let all = match &scope {
                kvdb::Scope::Frozen(view) => view.dictionaries(),
                _ => open.db.dictionaries(),
            };
            let of_users = all.into_iter().filter(|d| !d.options.reserved && d.branch.is_empty());
            let mut names: Vec<String> = of_users.map(|d| d.name).collect();
            names.sort();
            Ok(names)
        })
    }

    /// The files of the same state.
    fn files(&self, py: Python<'_>) -> PyResult<Files> {
        let (fs, writes) = self.call(py, |open, _| {
            let view = match &self.at {
                At::Mainline => kvfs::ViewId::Mainline,
                At::Transaction { id, .. } => kvfs::ViewId::Transaction(*id),
                At::Frozen(_, name) => kvfs::ViewId::Snapshot(name.clone()),
            };
            let fs = match open.views()?.fs(&view) {
                Err(kvfs::Error::NotFound) => match &self.at {
                    At::Frozen(_, name) => {
                        return Err(Failure::Store(kvdb::Error::NoSnapshot(format!(
                            "{name} with files"
                        ))));
                    }
                    _ => return Err(Failure::Closed("the transaction")),
                },
                fs => fs?,
            };
            Ok((fs, !matches!(self.at, At::Frozen(..))))
        })?;
        let slot = self.shared.slot("the file system", fs);
        Ok(Files::new(Home::Store(self.shared.clone()), slot, writes, self.id()))
    }

    #[getter]
    fn number(&self) -> PyResult<u64> {
        Ok(self.transaction_of()?.1.0)
    }

    fn is_open(&self) -> bool {
        match &self.at {
            At::Mainline => self.shared.open().is_ok(),
            At::Transaction { slot, .. } => slot.is_open(),
            At::Frozen(slot, _) => slot.is_open(),
        }
    }

    /// Commits a transaction: `None` for what the store does with every write.
    fn commit(&self, py: Python<'_>, sync: Option<bool>) -> PyResult<()> {
        let (slot, id) = self.transaction_of()?;
        self.call(py, |open, scope| {
            let durability = match sync {
                Some(true) => Durability::Synced,
                Some(false) => Durability::Buffered,
                None => open.durability,
            };
            let done = match (&open.views, &scope) {
                (Some(views), _) => views.commit(id, durability).map_err(Failure::from),
                (None, kvdb::Scope::Transaction(transaction)) => {
                    transaction.commit(durability).map_err(Failure::from)
                }
                _ => Ok(()),
            };
            if open.db.transaction(id).is_err() {
                slot.take()?;
            }
            done
        })
    }

    /// Aborts a transaction; one that has ended stays as it is. `false`: it had ended.
    fn abort(&self, py: Python<'_>) -> PyResult<bool> {
        let (slot, id) = self.transaction_of()?;
        Ok(py.detach(|| -> Outcome<bool> {
            let open = self.shared.open()?;
            if slot.take()?.is_none() {
                return Ok(false);
            }
            abort(&open, id)
        })?)
    }

    fn savepoint(&self, py: Python<'_>) -> PyResult<Savepoint> {
        let (_, id) = self.transaction_of()?;
        let made = self.call(py, |open, _| Ok(open.views()?.savepoint(id)?))?;
        Ok(Savepoint(made))
    }

    fn rollback_to(&self, py: Python<'_>, savepoint: &Savepoint) -> PyResult<()> {
        let (_, id) = self.transaction_of()?;
        self.call(py, |open, _| Ok(open.views()?.rollback_to(id, &savepoint.0)?))
    }

    /// Lets go of a snapshot that was opened.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if let At::Frozen(slot, _) = &self.at {
            py.detach(|| slot.take().map(drop))?;
        }
        Ok(())
    }
}

fn abort(open: &Open, id: kvdb::TransactionId) -> Outcome<bool> {
    let ended = match &open.views {
        Some(views) => views.abort(id).map_err(Failure::from),
        None => open.db.transaction(id).map(|t| t.abort()).map_err(Failure::from),
    };
    match ended {
        Err(Failure::Store(kvdb::Error::NoTransaction(_))) => Ok(false),
        other => other.map(|()| true),
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let At::Transaction { slot, id, own: true } = &self.at
            && let Ok(Some(_)) = slot.take()
            && let Ok(open) = self.shared.open()
        {
            // An object that is dropped has no one to tell.
            let _ = abort(&open, *id);
        }
    }
}

/// The number that a value is, in decimal.
pub fn number_of(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

pub fn is_a_snapshot() -> Failure {
    Failure::Store(kvdb::Error::ReadOnly("it is a snapshot".into()))
}

fn contains(scope: &kvdb::Scope, dict: DictionaryId, key: &[u8]) -> Outcome<bool> {
    if let kvdb::Scope::Transaction(transaction) = scope {
        transaction.lock_key(dict, key, false)?;
    }
    Ok(scope.view()?.contains(dict, key)?)
}
