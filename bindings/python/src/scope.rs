//! The keys that a caller sees: those of the store, of a transaction, or of a snapshot. The store
//! is open in this process, or a server holds it.

mod reads;

use std::ops::Bound as End;
use std::sync::Arc;

use bytes::Bytes;
use kvdb::{Batch, DictionaryId, Durability, Isolation, MAX_VALUE, Transaction, Update, View};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batches::{Change, add_change, check_key, check_value, number_of};
use crate::failure::{Failure, Outcome};
use crate::files::Files;
use crate::home::Home;
use crate::octets::Octets;
use crate::place::{At, Place};
use crate::range::{Range, Walk};
use crate::served::Served;
use crate::shared::{Open, Shared};
use reads::{contains, length, read_range, value, walk_there};

/// Limit on a part of a value that is written over a wire, in bytes. Changes over a wire have up
/// to 64 KiB.
const LONGEST_PART: usize = 60 << 10;

enum Of {
    /// A store that is open in this process.
    Store(Arc<Shared>, At),
    /// A view that a server holds.
    Server(Arc<Served>),
}

/// The destination of reads and writes of keys.
#[pyclass(frozen, module = "kvfs._kvfs")]
pub struct Scope(Of);

/// A state of a transaction to which it can be rolled back.
#[pyclass(frozen, module = "kvfs._kvfs")]
pub struct Savepoint(kvdb::Savepoint);

impl Scope {
    /// Returns the keys outside of all transactions.
    pub fn mainline(shared: Arc<Shared>) -> Scope {
        Scope(Of::Store(shared, At::Mainline))
    }

    /// Returns the keys that a transaction sees. If `own` is set, the transaction is aborted
    /// together with the object at the latest.
    pub fn transaction(shared: Arc<Shared>, transaction: Transaction, own: bool) -> Scope {
        let id = transaction.id();
        let slot = shared.slot("the transaction", transaction);
        Scope(Of::Store(shared, At::Transaction { slot, id, own }))
    }

    /// Returns the keys of a snapshot.
    pub fn frozen(shared: Arc<Shared>, name: String, view: View) -> Scope {
        let slot = shared.slot("the snapshot", view);
        Scope(Of::Store(shared, At::Frozen(slot, name)))
    }

    /// Returns the keys of a view that a server holds. The view ends with the object.
    pub fn served(served: Served) -> Scope {
        Scope(Of::Server(Arc::new(served)))
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(Place<'_>, kvdb::Scope) -> Outcome<T> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| -> Outcome<T> {
            match &self.0 {
                Of::Store(shared, at) => {
                    let open = shared.open()?;
                    let done =
                        at.scope(&open).and_then(|scope| call(Place::Here(&open, at), scope));
                    done.map_err(|failure| open.cause(at.id(), failure))
                }
                Of::Server(served) => served.call(|view| call(Place::There(view), view.scope())),
            }
        })?)
    }

    fn home(&self) -> Home {
        match &self.0 {
            Of::Store(shared, _) => Home::Store(shared.clone()),
            Of::Server(served) => Home::Server(served.clone()),
        }
    }

    /// Returns the number of the transaction, or `None` if the scope is not a transaction.
    fn id(&self) -> Option<kvdb::TransactionId> {
        match &self.0 {
            Of::Store(_, at) => at.id(),
            Of::Server(served) => served.id(),
        }
    }

    /// Returns the transaction, for operations that require a transaction of a store in this
    /// process.
    fn with_savepoints(&self) -> Outcome<kvdb::TransactionId> {
        match &self.0 {
            Of::Store(_, at) => Ok(at.transaction()?.1),
            Of::Server(_) => {
                let what = "a transaction over a wire has no savepoints: begin one for each step";
                Err(Failure::Unsupported(what.into()))
            }
        }
    }
}

#[pymethods]
impl Scope {
    fn get<'py>(
        &self,
        py: Python<'py>,
        dictionary: &str,
        key: Octets,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.call(py, |place, scope| match place.existing(&scope, dictionary)? {
            Some(dict) => value(&scope, dict, &key),
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
        let found = self.call(py, |place, scope| {
            let Some(dict) = place.existing(&scope, dictionary)? else {
                return Ok(vec![None; keys.len()]);
            };
            let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
            match &scope {
                kvdb::Scope::Served(view) => {
                    keys.iter().try_for_each(|key| check_key(key))?;
                    return Ok(view.get_many(dict, &keys)?);
                }
                kvdb::Scope::Transaction(transaction) => {
                    keys.iter().try_for_each(|key| transaction.lock_key(dict, key, false))?;
                }
                kvdb::Scope::Mainline(_) | kvdb::Scope::Frozen(_) => {}
            }
            Ok(scope.view()?.multi_get(dict, &keys)?)
        })?;
        Ok(found.into_iter().map(|value| value.map(|value| PyBytes::new(py, &value))).collect())
    }

    fn contains(&self, py: Python<'_>, dictionary: &str, key: Octets) -> PyResult<bool> {
        self.call(py, |place, scope| match place.existing(&scope, dictionary)? {
            Some(dict) => contains(&scope, dict, &key),
            None => Ok(false),
        })
    }

    fn put(&self, py: Python<'_>, dictionary: &str, key: Octets, value: Octets) -> PyResult<()> {
        self.call(py, |place, scope| match &scope {
            kvdb::Scope::Mainline(db) => {
                let dict = place.dictionary_to_write(&scope, dictionary)?;
                Ok(db.put(dict, &key, &value, place.durability())?)
            }
            kvdb::Scope::Transaction(transaction) => {
                check_key(&key)?;
                let dict = place.dictionary_to_write(&scope, dictionary)?;
                Ok(transaction.put(dict, &*key, &*value)?)
            }
            kvdb::Scope::Served(_) if scope.writable() => {
                let dict = place.dictionary_to_write(&scope, dictionary)?;
                check_key(&key)?;
                check_value(&value)?;
                let mut batch = Batch::new();
                batch.put(dict, Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value));
                Ok(scope.apply(batch, place.durability())?)
            }
            kvdb::Scope::Frozen(_) | kvdb::Scope::Served(_) => Err(is_a_snapshot()),
        })
    }

    /// Deletes a key. Returns whether the key existed.
    fn delete(&self, py: Python<'_>, dictionary: &str, key: Octets) -> PyResult<bool> {
        self.call(py, |place, scope| {
            if !scope.writable() {
                return Err(is_a_snapshot());
            }
            let Some(dict) = place.existing(&scope, dictionary)? else { return Ok(false) };
            if !contains(&scope, dict, &key)? {
                return Ok(false);
            }
            let mut batch = Batch::new();
            batch.delete(dict, Bytes::copy_from_slice(&key));
            scope.apply(batch, place.durability())?;
            Ok(true)
        })
    }

    /// Adds to the number that a value represents in decimal. A missing value counts as 0.
    fn add(&self, py: Python<'_>, dictionary: &str, key: Octets, number: i64) -> PyResult<()> {
        self.call(py, |place, scope| {
            if !scope.writable() {
                return Err(is_a_snapshot());
            }
            check_key(&key)?;
            let dict = place.dictionary_to_write(&scope, dictionary)?;
            // The update itself would accept any value. If another caller changes the value in
            // between, the update is applied to the changed value.
            let known = value(&scope, dict, &key)?;
            let known = known.as_deref().map_or(Some(0), number_of);
            if known.and_then(|known| known.checked_add(number)).is_none() {
                return Err(Failure::Invalid(
                    "the value is no whole number of 64 bits, or would not be one any more".into(),
                ));
            }
            let mut batch = Batch::new();
            batch.update(dict, Bytes::copy_from_slice(&key), Update::add(number));
            Ok(scope.apply(batch, place.durability())?)
        })
    }

    /// Writes a part of a value without reading it, from an offset on, or at the end of the value
    /// for `None`. Returns an error if the value would become too long.
    fn write_part(
        &self,
        py: Python<'_>,
        dictionary: &str,
        key: Octets,
        offset: Option<u64>,
        data: Octets,
    ) -> PyResult<()> {
        self.call(py, |place, scope| {
            if !scope.writable() {
                return Err(is_a_snapshot());
            }
            check_key(&key)?;
            if scope.is_served() && data.len() > LONGEST_PART {
                return Err(Failure::Unsupported(format!(
                    "a part of a value has at most {LONGEST_PART} bytes over a wire: put the value"
                )));
            }
            let update = match offset {
                Some(offset) => {
                    usize::try_from(offset).ok().and_then(|offset| Update::patch(offset, &data))
                }
                None => Update::append(&data),
            };
            let too_long = || {
                Failure::Invalid(format!("a value has at most {MAX_VALUE} bytes: this ends beyond"))
            };
            let update = update.ok_or_else(too_long)?;
            let dict = place.dictionary_to_write(&scope, dictionary)?;
            // The update itself would leave the value unchanged without an error.
            if offset.is_none() && length(&scope, dict, &key)? + data.len() > MAX_VALUE {
                return Err(too_long());
            }
            let mut batch = Batch::new();
            batch.update(dict, Bytes::copy_from_slice(&key), update);
            Ok(scope.apply(batch, place.durability())?)
        })
    }

    /// Locks a key (`one`), or `[start, stop)`, for the rest of a serializable transaction.
    fn lock(
        &self,
        py: Python<'_>,
        dictionary: &str,
        start: Octets,
        stop: Option<Octets>,
        one: bool,
        shared: bool,
    ) -> PyResult<()> {
        self.call(py, |place, scope| {
            place.here()?;
            let transaction = serializable(&scope)?;
            check_key(&start)?;
            if stop.as_ref().is_some_and(|stop| **stop <= *start) {
                return Ok(());
            }
            let dict = place.dictionary_to_write(&scope, dictionary)?;
            let end: &[u8] = stop.as_deref().unwrap_or_default();
            match one {
                true => Ok(transaction.lock_key(dict, &start, !shared)?),
                false => Ok(transaction.lock_range(dict, &start, end, !shared)?),
            }
        })
    }

    /// Locks the names of a directory for the rest of a serializable transaction.
    fn lock_directory(&self, py: Python<'_>, path: Octets, shared: bool) -> PyResult<()> {
        self.call(py, |place, scope| {
            serializable(&scope)?;
            let locked = place.files()?.lock_directory(&path, !shared);
            locked.map_err(|error| Failure::from(error).at(&path))
        })
    }

    /// Applies all changes as one.
    fn apply(&self, py: Python<'_>, changes: Vec<Change>, sync: Option<bool>) -> PyResult<()> {
        self.call(py, |place, scope| {
            if !scope.writable() {
                return Err(is_a_snapshot());
            }
            let mut batch = Batch::new();
            // Consecutive changes are mostly of one dictionary.
            let mut before: Option<(&str, bool, Option<DictionaryId>)> = None;
            for change in &changes {
                let (name, deletes) = (&*change.1, change.0.starts_with("delete"));
                let dict = match before {
                    Some((of, deleted, dict)) if of == name && deleted == deletes => dict,
                    // A deletion does not create a dictionary.
                    _ if deletes => place.existing(&scope, name)?,
                    _ => Some(place.dictionary_to_write(&scope, name)?),
                };
                before = Some((name, deletes, dict));
                if scope.is_served() && &*change.0 == "put" {
                    check_value(change.3.as_deref().unwrap_or_default())?;
                }
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
                None => place.durability(),
            };
            Ok(scope.apply(batch, durability)?)
        })
    }

    /// Returns the keys and, if requested, the values of `[start, stop)`. Over a wire the walk
    /// sees the changes that the transaction makes ahead of it.
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
        let walk = self.call(py, |place, scope| {
            let Some(dict) = place.existing(&scope, dictionary)? else { return Ok(None) };
            if stop.as_ref().is_some_and(|stop| **stop <= *start) {
                return Ok(None);
            }
            if scope.is_served() {
                let stop = stop.as_deref().unwrap_or_default();
                return walk_there(&scope, dict, (&*start, stop), reverse, values).map(Some);
            }
            if let kvdb::Scope::Transaction(transaction) = &scope {
                let end: &[u8] = stop.as_deref().unwrap_or_default();
                transaction.lock_range(dict, &start, end, false)?;
            }
            let stop = stop.as_deref().map_or(End::Unbounded, End::Excluded);
            let iter = scope.view()?.range::<&[u8]>(dict, (End::Included(&*start), stop));
            Ok(Some(Walk::new(iter, reverse, values)))
        })?;
        Ok(Range::new(walk.map(|walk| self.home().slot("the iterator", walk))))
    }

    /// Estimates the number of tuples of `[start, stop)`, its maximal error, the number of bytes,
    /// and its maximal error.
    fn estimate(
        &self,
        py: Python<'_>,
        dictionary: &str,
        start: Octets,
        stop: Option<Octets>,
    ) -> PyResult<(u64, u64, u64, u64)> {
        self.call(py, |place, scope| {
            place.here()?;
            let Some(dict) = place.existing(&scope, dictionary)? else { return Ok((0, 0, 0, 0)) };
            let stop = stop.as_deref().map_or(End::Unbounded, End::Excluded);
            let range = (End::Included(&*start), stop);
            let found = scope.view()?.estimate::<&[u8]>(dict, range)?;
            Ok((found.items, found.items_error, found.bytes, found.bytes_error))
        })
    }

    /// Returns the number of keys that come before a key.
    fn rank(&self, py: Python<'_>, dictionary: &str, key: Octets) -> PyResult<u64> {
        self.call(py, |place, scope| {
            let open = place.here()?;
            let Some(dict) = place.existing(&scope, dictionary)? else { return Ok(0) };
            let view = read_range(&scope, dict, b"", &key)?;
            Ok(open.db.rank::<&[u8]>(&view, dict, .., &*key)?)
        })
    }

    /// Returns the key that has this number of keys before it.
    fn select<'py>(
        &self,
        py: Python<'py>,
        dictionary: &str,
        number: u64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.call(py, |place, scope| {
            let open = place.here()?;
            let Some(dict) = place.existing(&scope, dictionary)? else { return Ok(None) };
            let view = read_range(&scope, dict, b"", b"")?;
            Ok(open.db.select::<&[u8]>(&view, dict, .., number)?)
        })?;
        Ok(found.map(|key| PyBytes::new(py, &key)))
    }

    /// Returns the number of keys of `[start, stop)`.
    fn count(
        &self,
        py: Python<'_>,
        dictionary: &str,
        start: Octets,
        stop: Option<Octets>,
    ) -> PyResult<u64> {
        self.call(py, |place, scope| {
            let open = place.here()?;
            let Some(dict) = place.existing(&scope, dictionary)? else { return Ok(0) };
            let view = read_range(&scope, dict, &start, stop.as_deref().unwrap_or_default())?;
            let stop = stop.as_deref().map_or(End::Unbounded, End::Excluded);
            Ok(open.db.count::<&[u8]>(&view, dict, (End::Included(&*start), stop))?)
        })
    }

    /// Returns the user's dictionaries by name.
    fn dictionaries(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.call(py, |place, scope| Ok(place.dictionaries(&scope)))
    }

    /// Returns the files of the same state.
    fn files(&self, py: Python<'_>) -> PyResult<Files> {
        let (fs, writes) = self.call(py, |place, scope| Ok((place.files()?, scope.writable())))?;
        let home = self.home();
        let slot = home.slot("the file system", fs);
        Ok(Files::new(home, slot, writes, self.id()))
    }

    #[getter]
    fn number(&self) -> PyResult<u64> {
        let id = self.id().ok_or_else(|| Failure::Invalid("this is no transaction".into()))?;
        Ok(id.0)
    }

    fn is_open(&self) -> bool {
        match &self.0 {
            Of::Store(shared, At::Mainline) => shared.open().is_ok(),
            Of::Store(_, At::Transaction { slot, .. }) => slot.is_open(),
            Of::Store(_, At::Frozen(slot, _)) => slot.is_open(),
            Of::Server(served) => served.is_there(),
        }
    }

    /// Commits a transaction. For `None`, the commit is as durable as every write of the store;
    /// over a wire it then does not wait for the disk of the server.
    fn commit(&self, py: Python<'_>, sync: Option<bool>) -> PyResult<()> {
        let (slot, id) = match &self.0 {
            Of::Store(_, at) => at.transaction()?,
            Of::Server(served) => {
                return Ok(py.detach(|| served.commit(sync.unwrap_or(false)))?);
            }
        };
        self.call(py, |place, scope| {
            let open = place.here()?;
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

    /// Aborts a transaction. Returns `false`, and changes nothing, if the transaction had already
    /// ended.
    fn abort(&self, py: Python<'_>) -> PyResult<bool> {
        let (shared, (slot, id)) = match &self.0 {
            Of::Store(shared, at) => (shared, at.transaction()?),
            Of::Server(served) => return Ok(py.detach(|| served.abort())?),
        };
        Ok(py.detach(|| -> Outcome<bool> {
            let open = shared.open()?;
            if slot.take()?.is_none() {
                return Ok(false);
            }
            abort(&open, id)
        })?)
    }

    fn savepoint(&self, py: Python<'_>) -> PyResult<Savepoint> {
        let id = self.with_savepoints()?;
        let made = self.call(py, |place, _| Ok(place.here()?.views()?.savepoint(id)?))?;
        Ok(Savepoint(made))
    }

    fn rollback_to(&self, py: Python<'_>, savepoint: &Savepoint) -> PyResult<()> {
        let id = self.with_savepoints()?;
        self.call(py, |place, _| Ok(place.here()?.views()?.rollback_to(id, &savepoint.0)?))
    }

    /// Closes a snapshot that was opened, or a view that a server holds. A transaction of such a
    /// view is aborted.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match &self.0 {
            Of::Store(_, At::Frozen(slot, _)) => Ok(py.detach(|| slot.take().map(drop))?),
            Of::Store(..) => Ok(()),
            Of::Server(served) => Ok(py.detach(|| served.close())?),
        }
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
        match &self.0 {
            Of::Store(shared, At::Transaction { slot, id, own: true }) => {
                if let Ok(Some(_)) = slot.take()
                    && let Ok(open) = shared.open()
                {
                    // A failure cannot be reported when an object is dropped.
                    let _ = abort(&open, *id);
                }
            }
            Of::Store(..) => {}
            Of::Server(served) => {
                // In a forked child this has no effect. If the interpreter has ended, its lock
                // need not be released.
                let close = || drop(served.close());
                if Python::try_attach(|py| py.detach(close)).is_none() {
                    close();
                }
            }
        }
    }
}

/// Returns the transaction of a scope that takes locks.
fn serializable(scope: &kvdb::Scope) -> Outcome<&Transaction> {
    match scope {
        kvdb::Scope::Transaction(transaction)
            if transaction.isolation() == Isolation::Serializable =>
        {
            Ok(transaction)
        }
        _ => {
            let what = "only a serializable transaction locks: begin it with isolation=\"ser\"";
            Err(Failure::Invalid(what.into()))
        }
    }
}

fn is_a_snapshot() -> Failure {
    Failure::Store(kvdb::Error::ReadOnly("it is a snapshot".into()))
}
