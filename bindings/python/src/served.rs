//! Views of a store that a server holds (`kvfs serve`). A view shows a snapshot, or a transaction
//! that belongs to only one object. Only data that is read or written goes over the wire. `scope`
//! has the reads and writes; this module opens and ends views.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use env::Machine;
use kvdb::{DictionaryId, ServedView, TransactionId};
use kvdb_wire::{BeginOptions, Client, ClientOptions, Outcome as Ended};
use kvdb_wire::{ServedTransaction, SnapshotView};
use kvfs::{Fs, FsOptions};
use places::{Credentials, Server};
use pyo3::prelude::*;

use crate::at_address::interval;
use crate::failure::{Failure, Outcome};
use crate::scope::Scope;
use crate::shared::{MEMORY, check_name, reserved};
use crate::slot::{Closing, Slot, Slots};

/// The file system's dictionaries, which a server lists with those of the user.
const OF_FILES: [&str; 3] = ["dmap", "imap", "nmap"];

/// Limit on the number of conflicts that an error lists.
const NAMED: usize = 3;

/// An open view.
#[derive(Clone)]
pub struct OpenView {
    client: Arc<Client>,
    fs: Fs,
    state: State,
}

#[derive(Clone)]
enum State {
    Snapshot(Arc<SnapshotView>),
    Transaction(Arc<ServedTransaction>),
}

impl OpenView {
    pub fn scope(&self) -> kvdb::Scope {
        let view: Arc<dyn ServedView> = match &self.state {
            State::Snapshot(view) => view.clone(),
            State::Transaction(transaction) => transaction.clone(),
        };
        kvdb::Scope::Served(view)
    }

    /// Returns the files of the view.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    fn transaction(&self) -> Outcome<&Arc<ServedTransaction>> {
        match &self.state {
            State::Snapshot(_) => Err(Failure::Invalid("this is no transaction".into())),
            State::Transaction(transaction) => Ok(transaction),
        }
    }

    /// Returns a dictionary of the user, or `None` if the view has none with that name.
    pub fn dictionary(&self, name: &str) -> Outcome<Option<DictionaryId>> {
        check_name(name)?;
        if OF_FILES.contains(&name) {
            return Err(reserved(name));
        }
        Ok(match &self.state {
            State::Snapshot(view) => view.dictionary(name),
            State::Transaction(transaction) => transaction.dictionary(name),
        })
    }

    /// Returns the user's dictionaries by name.
    pub fn dictionaries(&self) -> Vec<String> {
        let mut names = match &self.state {
            State::Snapshot(view) => view.dictionary_names(),
            State::Transaction(transaction) => transaction.dictionary_names(),
        };
        names.retain(|name| !OF_FILES.contains(&&**name));
        names
    }

    /// Notifies the server that a transaction is abandoned, and ends its files.
    fn leave(&self) {
        if let State::Transaction(transaction) = &self.state {
            transaction.leave();
        }
        self.fs.leave_served();
    }
}

/// A view of a store that a server holds, shared by the objects that work on it.
pub struct Served {
    open: Slot<OpenView>,
    slots: Slots,
    /// The number of the transaction in the store, or `None` for a snapshot.
    id: Option<TransactionId>,
}

impl Served {
    fn get(&self) -> Outcome<OpenView> {
        self.open.lock()?.clone().ok_or_else(|| self.is_over())
    }

    /// Makes one call on the view.
    pub fn call<T>(&self, call: impl FnOnce(&OpenView) -> Outcome<T>) -> Outcome<T> {
        let open = self.get()?;
        call(&open).map_err(|failure| self.cause(failure))
    }

    /// Returns the number of the transaction, or `None` for a snapshot.
    pub fn id(&self) -> Option<TransactionId> {
        self.id
    }

    fn is_over(&self) -> Failure {
        match self.id {
            Some(id) => Failure::Ended(id),
            None => Failure::Closed("the snapshot"),
        }
    }

    /// Returns a slot that is closed together with the view.
    pub fn slot<T: Send + 'static>(&self, what: &'static str, value: T) -> Arc<Slot<T>> {
        let slot = Arc::new(Slot::new(what, value));
        let weak = Arc::downgrade(&slot);
        self.slots.add(weak as Weak<dyn Closing>);
        slot
    }

    /// Returns the reason why a call has failed, in words that do not depend on the place of the
    /// store.
    pub fn cause(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Files(kvfs::Error::Stale(_), _) | Failure::Closed(_) if !self.is_there() => {
                self.is_over()
            }
            // The client has its own messages for a server that cannot be reached.
            Failure::Store(kvdb::Error::Io(error)) => Failure::Disconnected(error.to_string()),
            other => other,
        }
    }

    /// Returns whether the view is open, and has not been ended by its server.
    pub fn is_there(&self) -> bool {
        match self.open.get().map(|open| open.state) {
            Ok(State::Transaction(transaction)) => transaction.over().is_none(),
            Ok(State::Snapshot(_)) => true,
            Err(_) => false,
        }
    }

    /// Closes the objects that are open in the view, and then releases the view. The connection
    /// ends with the view.
    fn end(&self) -> Outcome<Option<OpenView>> {
        let open = self.open.take()?;
        self.slots.close();
        Ok(open)
    }

    /// Closes the view. A transaction is aborted.
    pub fn close(&self) -> Outcome<()> {
        if let Some(open) = self.end()? {
            open.leave();
        }
        Ok(())
    }

    pub fn commit(&self, synced: bool) -> Outcome<()> {
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
                // A conflict ends a transaction, wherever its store is. If the server cannot be
                // reached, the lease ends the transaction.
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

    /// Aborts the transaction. Returns `false` if it had already ended.
    pub fn abort(&self) -> Outcome<bool> {
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

/// The options with which a view is requested.
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
    let (state, fs, id) = match &asked.snapshot {
        Some(name) => {
            let view = Arc::new(SnapshotView::open(&client, name).map_err(cannot)?);
            let fs = Fs::served(view.clone(), env, files);
            (State::Snapshot(view), fs, None)
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
            (State::Transaction(begun), fs, Some(id))
        }
    };
    let open = OpenView { client, fs: fs?, state };
    Ok(Served { open: Slot::new("the view", open), slots: Slots::default(), id })
}

/// Returns the full address of a server that a word denotes, or `None` if the word denotes
/// something else.
#[pyfunction]
pub fn server(word: PathBuf) -> PyResult<Option<String>> {
    Ok(Server::parse(&word).map_err(Failure::from)?.map(|server| server.to_string()))
}

/// Opens a snapshot, or begins a transaction. A `timeout` of `None` waits without a limit.
#[pyfunction]
#[pyo3(signature = (
    address, *, snapshot, branch, label, token, token_file, ca, cert, cert_key, timeout, memory
))]
#[allow(clippy::too_many_arguments)]
pub fn open_served(
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
) -> PyResult<Scope> {
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
    Ok(Scope::served(opened))
}
