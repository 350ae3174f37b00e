//! A connection to a server, and the view that is open on it: a transaction, or a snapshot.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use env::Machine;
use kvdb::{DictionaryId, ServedView};
use kvdb_wire::{
    BeginOptions, Client, ClientOptions, FailureCode, Outcome as Ended, ServedTransaction,
    SnapshotView,
};
use kvfs::{Fs, FsOptions};
use places::{Credentials, Server};

use crate::failure::{CONFLICT, ENDED, ERROR, Failure, Outcome};

/// Bytes that the caches and buffers of a view take, unless the caller says otherwise.
const MEMORY: u64 = 320 << 20;

/// The dictionary that keys are in at first, as on the socket of a mount.
const FIRST_DICTIONARY: &str = "0";
/// Longest name of a dictionary in bytes, as on that socket.
const LONGEST_NAME: usize = 128;
/// The file system's dictionaries, which a server lists with those of the user.
const OF_FILES: [&str; 3] = ["dmap", "imap", "nmap"];

/// The number of conflicts that are named.
const NAMED: usize = 3;

/// How a connection is made.
#[derive(Default)]
pub struct Options {
    pub credentials: Credentials,
    pub label: Option<String>,
    /// Zero waits for a server without a limit.
    pub timeout: Duration,
    /// Zero stands for the default.
    pub memory: u64,
}

/// A connection to a server.
pub struct Store {
    address: String,
    client: Arc<Client>,
    label: String,
    memory: u64,
    dictionary: String,
    view: Option<View>,
}

/// A view that is open.
struct View {
    fs: Fs,
    state: State,
}

enum State {
    Snapshot(Arc<SnapshotView>),
    Transaction(Arc<ServedTransaction>),
}

impl View {
    fn served(&self) -> Arc<dyn ServedView> {
        match &self.state {
            State::Snapshot(view) => view.clone(),
            State::Transaction(transaction) => transaction.clone(),
        }
    }
}

impl Drop for View {
    /// Tells the server of a transaction that it is left, and ends its files. This does nothing
    /// after a commit or an abort.
    fn drop(&mut self) {
        if let State::Transaction(transaction) = &self.state {
            transaction.leave();
        }
        self.fs.leave_served();
    }
}

fn share(memory: u64, of: u64) -> usize {
    usize::try_from(memory / of).unwrap_or(usize::MAX)
}

impl Store {
    /// Connects to the server at this address.
    pub fn open(address: &Path, options: Options) -> Outcome<Store> {
        let server = Server::parse(address)?.ok_or_else(|| {
            let (address, forms) = (address.display(), places::FORMS_OF_SERVERS);
            Failure::invalid(format!("{address} is no address of a server: {forms}"))
        })?;
        let memory = if options.memory == 0 { MEMORY } else { options.memory };
        let of_client = ClientOptions {
            timeout: options.timeout,
            memory: share(memory, 2),
            ..ClientOptions::default()
        };
        let client = server.connect(&options.credentials.or_environment(), of_client)?;
        let process = || format!("over the wire, process {}", std::process::id());
        Ok(Store {
            address: server.to_string(),
            client,
            label: options.label.unwrap_or_else(process),
            memory,
            dictionary: FIRST_DICTIONARY.into(),
            view: None,
        })
    }

    /// Returns the failure of a request that opens a view.
    fn cannot(&self, source: kvdb_wire::Error) -> Failure {
        places::Error::Server { address: self.address.clone(), source }.into()
    }

    fn fs_options(&self) -> FsOptions {
        FsOptions { inode_memory: share(self.memory, 4), ..FsOptions::default() }
    }

    /// Begins a transaction of the main files, or of a clone. Returns its number.
    pub fn begin(&mut self, clone: &str) -> Outcome<u64> {
        self.must_have_no_transaction()?;
        self.view = None;
        let options = BeginOptions {
            branch: clone.into(),
            label: self.label.clone(),
            ..BeginOptions::default()
        };
        let begun = ServedTransaction::begin(&self.client, options);
        let begun = Arc::new(begun.map_err(|error| self.cannot(error))?);
        let (env, options) = (Arc::new(Machine::default()), self.fs_options());
        let fs = Fs::served_transaction(begun.clone(), env, options)?;
        let id = begun.id().0;
        self.view = Some(View { fs, state: State::Transaction(begun) });
        Ok(id)
    }

    /// Opens a snapshot, to be read.
    pub fn use_snapshot(&mut self, name: &str) -> Outcome<()> {
        self.must_have_no_transaction()?;
        self.view = None;
        let opened = SnapshotView::open(&self.client, name).map_err(|error| match error {
            kvdb_wire::Error::Failed(failure) if failure.code == FailureCode::NoSnapshot => {
                Failure::from(kvdb::Error::NoSnapshot(name.into()))
            }
            error => self.cannot(error),
        })?;
        let opened = Arc::new(opened);
        let (env, options) = (Arc::new(Machine::default()), self.fs_options());
        let fs = Fs::served(opened.clone(), env, options)?;
        self.view = Some(View { fs, state: State::Snapshot(opened) });
        Ok(())
    }

    /// Leaves the snapshot, if one is open.
    pub fn leave_snapshot(&mut self) -> Outcome<()> {
        self.must_have_no_transaction()?;
        self.view = None;
        Ok(())
    }

    /// A transaction that its server has ended is none any more.
    fn must_have_no_transaction(&self) -> Outcome<()> {
        match self.transaction() {
            Some(open) if open.over().is_none() => Err(Failure::new(
                ERROR,
                format!(
                    "transaction {} is open on this connection: commit or abort it first",
                    open.id().0
                ),
            )),
            _ => Ok(()),
        }
    }

    fn transaction(&self) -> Option<&Arc<ServedTransaction>> {
        match &self.view {
            Some(View { state: State::Transaction(transaction), .. }) => Some(transaction),
            _ => None,
        }
    }

    /// Returns the transaction of this number, with its files.
    fn open_transaction(&self, number: u64) -> Outcome<(&Fs, &Arc<ServedTransaction>)> {
        match &self.view {
            Some(View { fs, state: State::Transaction(open) }) if open.id().0 == number => {
                Ok((fs, open))
            }
            _ => {
                let what = format!("no transaction {number} on this connection: it has ended");
                Err(Failure::new(ENDED, what))
            }
        }
    }

    /// Commits the transaction. A conflict ends it, as wherever its store is.
    pub fn commit(&mut self, number: u64, synced: bool) -> Outcome<()> {
        let (fs, transaction) = self.open_transaction(number)?;
        let committed: Outcome<()> = match places::served::commit(fs, transaction, synced) {
            Ok(Ended::Committed) => Ok(()),
            Ok(Ended::NotSynced(why)) => Err(kvdb::Error::NotSynced(why).into()),
            Ok(Ended::Conflict { what, keys }) => {
                // Without the server the lease ends it.
                if places::served::abort(&self.client, fs, transaction).is_err() {
                    transaction.forget();
                    fs.leave_served();
                }
                let names = keys.into_iter().map(|key| key.place).collect();
                Err(Failure::new(CONFLICT, conflict(what, names)))
            }
            Err(error) => Err(Failure::from(error)),
        };
        if transaction.over().is_some() {
            self.view = None;
        }
        committed
    }

    /// Aborts the transaction.
    pub fn abort(&mut self, number: u64) -> Outcome<()> {
        let (fs, transaction) = self.open_transaction(number)?;
        let aborted = match places::served::abort(&self.client, fs, transaction) {
            Ok(_) => Ok(()),
            Err(error @ kvdb::Error::NoTransaction(_)) => Err(Failure::from(error)),
            // It may be open there, and the call can be made again.
            Err(error) => return Err(error.into()),
        };
        self.view = None;
        aborted
    }

    fn view(&self) -> Outcome<&View> {
        self.view.as_ref().ok_or_else(|| {
            let what = "nothing is open on this connection: begin a transaction, or use a snapshot";
            Failure::new(ERROR, what)
        })
    }

    /// Returns the files of the view that is open.
    pub fn files(&self) -> Outcome<&Fs> {
        Ok(&self.view()?.fs)
    }

    /// Returns the keys of the view that is open.
    pub fn scope(&self) -> Outcome<kvdb::Scope> {
        Ok(kvdb::Scope::Served(self.view()?.served()))
    }

    /// Sets the dictionary that keys are in.
    pub fn use_dictionary(&mut self, name: &str) -> Outcome<()> {
        if name.is_empty() || name.len() > LONGEST_NAME {
            return Err(Failure::invalid(format!(
                "the name of a dictionary has 1 to {LONGEST_NAME} bytes, not {}",
                name.len()
            )));
        }
        if OF_FILES.contains(&name) {
            let what = format!("dictionary '{name}' is reserved for the file system");
            return Err(Failure::invalid(what));
        }
        self.dictionary = name.into();
        Ok(())
    }

    /// Returns the dictionary that keys are in, if the view has it.
    pub fn dictionary(&self) -> Outcome<Option<DictionaryId>> {
        Ok(self.view()?.served().dictionary(&self.dictionary))
    }

    /// Returns the dictionary that keys are in, for a change. None is made over a wire.
    pub fn dictionary_to_write(&self) -> Outcome<DictionaryId> {
        self.dictionary()?.ok_or_else(|| {
            let name = &self.dictionary;
            let what = format!(
                "there is no dictionary '{name}', and none is made over a wire: make it where the \
                 store is"
            );
            Failure::new(ERROR, what)
        })
    }
}

fn conflict(what: String, mut names: Vec<String>) -> String {
    names.retain(|name| !name.is_empty());
    names.dedup();
    if names.is_empty() {
        return what;
    }
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let names = names.join(", ");
    format!("conflict: others have changed {names}{more}, too: begin the transaction again")
}
