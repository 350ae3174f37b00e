//! Files and keys of a store that a server holds (`kvfs serve`): of a snapshot, or in a transaction
//! that this object alone has. Only what is read and written goes over the wire.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use env::Machine;
use kvdb::{Batch, DictionaryId, Durability, MAX_VALUE, ServedView, TransactionId, Update};
use kvdb_wire::{BeginOptions, Client, ClientOptions, Outcome as Ended};
use kvdb_wire::{ServedTransaction, SnapshotView};
use kvfs::{Fs, FsOptions};
use places::{Credentials, Server};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::at_address::interval;
use crate::failure::{Failure, Outcome};
use crate::files::Files;
use crate::home::Home;
use crate::octets::Octets;
use crate::range::{Range, Walk};
use crate::scope::{Change, add_change, check_key, is_a_snapshot, number_of};
use crate::shared::{MEMORY, check_name, reserved};
use crate::slot::{Closing, Slot, Slots};

/// The file system's dictionaries, which a server lists with those of the user.
const OF_FILES: [&str; 3] = ["dmap", "imap", "nmap"];

/// Conflicts that are named.
const NAMED: usize = 3;

/// A view that is open.
#[derive(Clone)]
struct Open {
    client: Arc<Client>,
    fs: Fs,
    at: At,
}

#[derive(Clone)]
enum At {
    Snapshot(Arc<SnapshotView>),
    Transaction(Arc<ServedTransaction>),
}

impl Open {
    fn view(&self) -> Arc<dyn ServedView> {
        match &self.at {
            At::Snapshot(view) => view.clone(),
            At::Transaction(transaction) => transaction.clone(),
        }
    }

    fn scope(&self) -> kvdb::Scope {
        kvdb::Scope::Served(self.view())
    }

    fn transaction(&self) -> Outcome<&Arc<ServedTransaction>> {
        match &self.at {
            At::Snapshot(_) => Err(Failure::Invalid("this is no transaction".into())),
            At::Transaction(transaction) => Ok(transaction),
        }
    }

    /// A dictionary of the user's, if the view has one of that name.
    fn dictionary(&self, name: &str) -> Outcome<Option<DictionaryId>> {
        check_name(name)?;
        if OF_FILES.contains(&name) {
            return Err(reserved(name));
        }
        Ok(self.view().dictionary(name))
    }

    /// A dictionary to be changed. None is made over a wire.
    fn dictionary_to_write(&self, name: &str) -> Outcome<DictionaryId> {
        if let At::Snapshot(_) = self.at {
            return Err(is_a_snapshot());
        }
        self.dictionary(name)?.ok_or_else(|| {
            Failure::Unsupported(format!(
                "there is no dictionary '{name}', and none is made over a wire: make it where the \
                 store is"
            ))
        })
    }

    fn apply(&self, batch: Batch) -> Outcome<()> {
        match batch.is_empty() {
            true => Ok(()),
            false => Ok(self.scope().apply(batch, Durability::Buffered)?),
        }
    }

    /// Tells a server of a transaction that it is left, and ends its files.
    fn leave(&self) {
        if let At::Transaction(transaction) = &self.at {
            transaction.leave();
        }
        self.fs.leave_served();
    }
}

/// A view of a store that a server holds, shared by the objects that work on it.
pub struct Served {
    open: Slot<Open>,
    slots: Slots,
    /// The number of the transaction in the store, where it is one.
    id: Option<TransactionId>,
}

impl Served {
    fn get(&self) -> Outcome<Open> {
        self.open.lock()?.clone().ok_or_else(|| self.is_over())
    }

    fn is_over(&self) -> Failure {
        match self.id {
            Some(id) => Failure::Ended(id),
            None => Failure::Closed("the snapshot"),
        }
    }

    /// A slot that is closed with the view.
    pub fn slot<T: Send + 'static>(&self, what: &'static str, value: T) -> Arc<Slot<T>> {
        let slot = Arc::new(Slot::new(what, value));
        let weak = Arc::downgrade(&slot);
        self.slots.add(weak as Weak<dyn Closing>);
        slot
    }

    /// Why a call has failed, in words that do not depend on where the store is.
    pub fn cause(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Files(kvfs::Error::Stale(_), _) | Failure::Closed(_) if !self.is_there() => {
                self.is_over()
            }
            // The client has sentences of its own for a server that is gone.
            Failure::Store(kvdb::Error::Io(error)) => Failure::Disconnected(error.to_string()),
            other => other,
        }
    }

    /// Returns whether the view is open, and not ended by its server either.
    fn is_there(&self) -> bool {
        match self.open.get().map(|open| open.at) {
            Ok(At::Transaction(transaction)) => transaction.over().is_none(),
            Ok(At::Snapshot(_)) => true,
            Err(_) => false,
        }
    }

    /// Lets go of what is open in the view, and then of the view. The connection ends with it.
    fn end(&self) -> Outcome<Option<Open>> {
        let open = self.open.take()?;
        self.slots.close();
        Ok(open)
    }

    fn commit(&self, synced: bool) -> Outcome<()> {
        let open = self.get()?;
        let transaction = open.transaction()?;
        let committed = places::served::commit(&open.fs, transaction, synced);
        let committed = match committed.map_err(Failure::from) {
            Ok(Ended::Committed) => Ok(()),
            Ok(Ended::NotSynced(why)) => Err(kvdb::Error::NotSynced(why).into()),
            Ok(Ended::Conflict { what, keys }) => {
                let mut names: Vec<String> = keys.into_iter().map(|key| key.place).collect();
                names.retain(|name| !name.is_empty());
                names.dedup();
                // A conflict ends a transaction, wherever its store is. Without the server the
                // lease ends it.
                if places::served::abort(&open.client, &open.fs, transaction).is_err() {
                    transaction.forget();
                    open.fs.leave_served();
                }
                Err(Failure::StandsAgainst(conflict(what, names)))
            }
            Err(failure) => Err(self.cause(failure)),
        };
        if transaction.over().is_some() {
            self.end()?;
        }
        committed
    }

    /// Aborts the transaction. `false`: it had ended.
    fn abort(&self) -> Outcome<bool> {
        let Some(open) = self.open.lock()?.clone() else { return Ok(false) };
        let transaction = open.transaction()?;
        let aborted = match places::served::abort(&open.client, &open.fs, transaction) {
            Ok(_) => true,
            Err(kvdb::Error::NoTransaction(_)) => {
                open.fs.leave_served();
                false
            }
            Err(error) => return Err(self.cause(error.into())),
        };
        self.end()?;
        Ok(aborted)
    }
}

fn conflict(what: String, mut names: Vec<String>) -> String {
    if names.is_empty() {
        return what;
    }
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let names = names.join(", ");
    format!("conflict: others have changed {names}{more}, too: begin the transaction again")
}

/// Files and keys of a store that a server holds.
#[pyclass(frozen, module = "kvfs._kvfs")]
pub struct ServedScope(Arc<Served>);

impl ServedScope {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Open) -> Outcome<T> + Send,
    ) -> PyResult<T> {
        let served = &self.0;
        Ok(py.detach(|| {
            let open = served.get()?;
            call(&open).map_err(|failure| served.cause(failure))
        })?)
    }

    fn where_the_store_is<T>(&self) -> PyResult<T> {
        let what = "this is found where the store is, and not over a wire";
        Err(Failure::Unsupported(what.into()).into())
    }
}

/// How a view is asked for.
struct Asked {
    snapshot: Option<String>,
    branch: String,
    label: String,
    timeout: Duration,
    memory: u64,
}

fn open(server: &Server, credentials: &Credentials, asked: Asked) -> Outcome<Served> {
    let share = |of: u64| usize::try_from(asked.memory / of).unwrap_or(usize::MAX);
    let options =
        ClientOptions { timeout: asked.timeout, memory: share(2), ..ClientOptions::default() };
    let client = server.connect(credentials, options)?;
    let cannot =
        |source| Failure::from(places::Error::Server { address: server.to_string(), source });
    let env = Arc::new(Machine::default());
    let files = FsOptions { inode_memory: share(4), ..FsOptions::default() };
    let (at, fs, id) = match &asked.snapshot {
        Some(name) => {
            let view = Arc::new(SnapshotView::open(&client, name).map_err(cannot)?);
            let fs = Fs::served(view.clone(), env, files);
            (At::Snapshot(view), fs, None)
        }
        None => {
            let begun = BeginOptions {
                branch: asked.branch,
                label: asked.label,
                ..BeginOptions::default()
            };
            let begun = Arc::new(ServedTransaction::begin(&client, begun).map_err(cannot)?);
            let fs = Fs::served_transaction(begun.clone(), env, files);
            let id = begun.id();
            (At::Transaction(begun), fs, Some(id))
        }
    };
    let open = Open { client, fs: fs?, at };
    Ok(Served { open: Slot::new("the view", open), slots: Slots::default(), id })
}

/// The address of a server in its whole length that a word is; `None`: it is something else.
#[pyfunction]
pub fn server(word: PathBuf) -> PyResult<Option<String>> {
    Ok(Server::parse(&word).map_err(Failure::from)?.map(|server| server.to_string()))
}

#[pymethods]
impl ServedScope {
    /// Opens a snapshot, or begins a transaction. `timeout`: `None` for waiting for ever.
    #[staticmethod]
    #[pyo3(signature = (
        address, *, snapshot, branch, label, token, token_file, ca, cert, cert_key, timeout, memory
    ))]
    #[allow(clippy::too_many_arguments)]
    fn open(
        py: Python<'_>,
        address: PathBuf,
        snapshot: Option<String>,
        branch: Option<String>,
        label: String,
        token: Option<String>,
        token_file: Option<PathBuf>,
        ca: Option<PathBuf>,
        cert: Option<PathBuf>,
        cert_key: Option<PathBuf>,
        timeout: Option<f64>,
        memory: Option<u64>,
    ) -> PyResult<ServedScope> {
        let opened = py.detach(|| {
            let server = Server::parse(&address)?.ok_or_else(|| {
                let address = address.display();
                Failure::Invalid(format!("{address} is no address of a server"))
            })?;
            let given = Credentials { token, token_file, ca, cert, cert_key };
            let label = match label.is_empty() {
                true => format!("over the wire, process {}", std::process::id()),
                false => label,
            };
            let timeout = timeout.map(|time| interval("timeout", time)).transpose()?;
            let asked = Asked {
                snapshot,
                branch: branch.unwrap_or_default(),
                label,
                timeout: timeout.unwrap_or_default(),
                memory: memory.unwrap_or(MEMORY),
            };
            open(&server, &given.or_environment(), asked)
        })?;
        Ok(ServedScope(Arc::new(opened)))
    }

    fn get<'py>(
        &self,
        py: Python<'py>,
        dictionary: &str,
        key: Octets,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.call(py, |open| match open.dictionary(dictionary)? {
            Some(dict) => value(open, dict, &key),
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
        let found = self.call(py, |open| {
            let Some(dict) = open.dictionary(dictionary)? else {
                return Ok(vec![None; keys.len()]);
            };
            keys.iter().try_for_each(|key| check_key(key))?;
            let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
            Ok(open.view().get_many(dict, &keys)?)
        })?;
        Ok(found.into_iter().map(|value| value.map(|value| PyBytes::new(py, &value))).collect())
    }

    fn contains(&self, py: Python<'_>, dictionary: &str, key: Octets) -> PyResult<bool> {
        self.call(py, |open| match open.dictionary(dictionary)? {
            Some(dict) => Ok(value(open, dict, &key)?.is_some()),
            None => Ok(false),
        })
    }

    fn put(&self, py: Python<'_>, dictionary: &str, key: Octets, value: Octets) -> PyResult<()> {
        let put = ("put".to_owned(), dictionary.to_owned(), key, Some(value));
        self.apply(py, vec![put], None)
    }

    /// Deletes a key; whether it was there.
    fn delete(&self, py: Python<'_>, dictionary: &str, key: Octets) -> PyResult<bool> {
        self.call(py, |open| {
            if let At::Snapshot(_) = open.at {
                return Err(is_a_snapshot());
            }
            let Some(dict) = open.dictionary(dictionary)? else { return Ok(false) };
            if value(open, dict, &key)?.is_none() {
                return Ok(false);
            }
            let mut batch = Batch::new();
            batch.delete(dict, Bytes::copy_from_slice(&key));
            open.apply(batch)?;
            Ok(true)
        })
    }

    /// Adds to the number that a value is, in decimal; a missing one is 0.
    fn add(&self, py: Python<'_>, dictionary: &str, key: Octets, number: i64) -> PyResult<()> {
        self.call(py, |open| {
            check_key(&key)?;
            let dict = open.dictionary_to_write(dictionary)?;
            let known = value(open, dict, &key)?;
            let known = known.as_deref().map_or(Some(0), number_of);
            if known.and_then(|known| known.checked_add(number)).is_none() {
                return Err(Failure::Invalid(
                    "the value is no whole number of 64 bits, or would not be one any more".into(),
                ));
            }
            let mut batch = Batch::new();
            batch.update(dict, Bytes::copy_from_slice(&key), Update::add(number));
            open.apply(batch)
        })
    }

    /// Makes changes as one. They are on disk with the commit of the transaction.
    fn apply(&self, py: Python<'_>, changes: Vec<Change>, _sync: Option<bool>) -> PyResult<()> {
        self.call(py, |open| {
            if let At::Snapshot(_) = open.at {
                return Err(is_a_snapshot());
            }
            let mut batch = Batch::new();
            for change in &changes {
                let (what, name, _, value) = change;
                // Deleting needs no dictionary.
                let dict = match what.starts_with("delete") {
                    true => open.dictionary(name)?,
                    false => Some(open.dictionary_to_write(name)?),
                };
                if what == "put" {
                    check_value(value.as_deref().unwrap_or_default())?;
                }
                if let Some(dict) = dict {
                    add_change(&mut batch, dict, change)?;
                }
            }
            open.apply(batch)
        })
    }

    /// Keys and, if wanted, values of `[start, stop)`. The walk sees what the transaction changes
    /// before it comes there.
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
        let walk = self.call(py, |open| {
            let Some(dict) = open.dictionary(dictionary)? else { return Ok(None) };
            if stop.as_ref().is_some_and(|stop| **stop <= *start) {
                return Ok(None);
            }
            check_key(&start)?;
            stop.as_ref().map_or(Ok(()), |stop| check_key(stop))?;
            let mut cursor =
                open.scope().cursor(dict, &start, stop.as_deref().unwrap_or_default())?;
            if !values {
                cursor = cursor.keys_only();
            }
            if reverse {
                cursor.seek_to_end()?;
            }
            Ok(Some(Walk::served(cursor, reverse, values)))
        })?;
        Ok(Range::new(walk.map(|walk| self.0.slot("the iterator", walk))))
    }

    fn estimate(
        &self,
        _dictionary: &str,
        _start: Octets,
        _stop: Option<Octets>,
    ) -> PyResult<(u64, u64, u64, u64)> {
        self.where_the_store_is()
    }

    fn rank(&self, _dictionary: &str, _key: Octets) -> PyResult<u64> {
        self.where_the_store_is()
    }

    fn select(&self, _dictionary: &str, _number: u64) -> PyResult<Option<Py<PyBytes>>> {
        self.where_the_store_is()
    }

    fn count(&self, _dictionary: &str, _start: Octets, _stop: Option<Octets>) -> PyResult<u64> {
        self.where_the_store_is()
    }

    /// The user's dictionaries, by name.
    fn dictionaries(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.call(py, |open| {
            let mut names = match &open.at {
                At::Snapshot(view) => view.dictionary_names(),
                At::Transaction(transaction) => transaction.dictionary_names(),
            };
            names.retain(|name| !OF_FILES.contains(&&**name));
            Ok(names)
        })
    }

    /// The files of the same state.
    fn files(&self, py: Python<'_>) -> PyResult<Files> {
        let (fs, writes) =
            self.call(py, |open| Ok((open.fs.clone(), matches!(open.at, At::Transaction(_)))))?;
        let slot = self.0.slot("the file system", fs);
        Ok(Files::new(Home::Server(self.0.clone()), slot, writes, self.0.id))
    }

    #[getter]
    fn number(&self) -> PyResult<u64> {
        let id = self.0.id.ok_or(Failure::Invalid("this is no transaction".into()))?;
        Ok(id.0)
    }

    fn is_open(&self) -> bool {
        self.0.is_there()
    }

    /// Commits a transaction: `None` for not waiting for the disk of the server.
    fn commit(&self, py: Python<'_>, sync: Option<bool>) -> PyResult<()> {
        let served = &self.0;
        Ok(py.detach(|| served.commit(sync.unwrap_or(false)))?)
    }

    /// Aborts a transaction; one that has ended stays as it is. `false`: it had ended.
    fn abort(&self, py: Python<'_>) -> PyResult<bool> {
        let served = &self.0;
        Ok(py.detach(|| served.abort())?)
    }

    fn savepoint(&self) -> PyResult<()> {
        let what = "a transaction over a wire has no savepoints: begin one for each step";
        Err(Failure::Unsupported(what.into()).into())
    }

    fn rollback_to(&self, _savepoint: Py<PyAny>) -> PyResult<()> {
        self.savepoint()
    }

    /// Lets go of the view. A transaction ends without a trace.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let served = &self.0;
        Ok(py.detach(|| -> Outcome<()> {
            if let Some(open) = served.end()? {
                open.leave();
            }
            Ok(())
        })?)
    }
}

impl Drop for ServedScope {
    fn drop(&mut self) {
        // In a child that was forked off this does nothing. Where the interpreter has ended, its
        // lock is none any more.
        let served = &self.0;
        let close = || {
            if let Ok(Some(open)) = served.end() {
                open.leave();
            }
        };
        if Python::try_attach(|py| py.detach(close)).is_none() {
            close();
        }
    }
}

fn value(open: &Open, dict: DictionaryId, key: &[u8]) -> Outcome<Option<Bytes>> {
    check_key(key)?;
    Ok(open.scope().get(dict, key)?)
}

/// A longer value would end the connection.
fn check_value(value: &[u8]) -> Outcome<()> {
    if value.len() <= MAX_VALUE {
        return Ok(());
    }
    Err(Failure::Invalid(format!("a value has at most {MAX_VALUE} bytes, not {}", value.len())))
}
