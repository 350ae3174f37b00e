//! A store that is open in this process, with the methods that Python calls.

use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvdb::{
    DictionaryOptions, Durability, Isolation, Kvdb, ReceiveOptions, TransactionId,
    TransactionOptions,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::at_address::{self, Writing, interval};
use crate::changes::{ChangedFile, Changes, Comparison, changed_files};
use crate::dictionary_options::{changed, listed as listed_options};
use crate::failure::{Failure, Outcome};
use crate::merging::{Conflicting, choice, listed, merge};
use crate::scope::Scope;
use crate::shared::{Open, Opening, Shared, open};
use crate::stream::{Failed, PythonReader, PythonWriter};

/// The name, the branch, the time of creation (seconds since 1970), the bytes, and the bytes that
/// only the snapshot has.
type ListedSnapshot = (String, String, f64, u64, u64);

/// The number, the label, whether the transaction is serializable, its age and idle time in
/// seconds, and the number of its changes.
type ListedTransaction = (u64, String, bool, f64, f64, u64);

/// The number, the label of the transaction, the time of the commit (seconds since 1970), and the
/// bytes that are kept for it.
type ListedCommit = (u64, String, f64, u64);

/// Limit on the memory of an open fork while it is merged, in bytes. A merge reads it only once.
const FORK_MEMORY: u64 = 64 << 20;

/// Limit on the number of keys that the error for a commit that cannot be undone lists.
const NAMED: usize = 3;

/// Returns whether a store has no snapshot, no key and no file, so that a stream may replace it
/// without a request to do so.
fn is_new(db: &Kvdb) -> kvdb::Result<bool> {
    let view = db.view();
    for dictionary in db.dictionaries() {
        if (dictionary.name == "nmap" || !dictionary.options.reserved)
            && !view.scan(dictionary.id, b"", b"", 1)?.is_empty()
        {
            return Ok(false);
        }
    }
    Ok(db.snapshots().is_empty())
}

/// A store that is open in this process.
#[pyclass(frozen, module = "kvfs._kvfs")]
pub struct Database(Arc<Shared>);

impl Database {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Open) -> Outcome<T> + Send,
    ) -> PyResult<T> {
        let shared = &self.0;
        Ok(py.detach(|| call(&*shared.open()?))?)
    }
}

#[pymethods]
impl Database {
    #[staticmethod]
    #[pyo3(signature = (path, *, make, size, read_only, memory, durable, cache_size))]
    #[allow(clippy::too_many_arguments)]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        make: bool,
        size: Option<u64>,
        read_only: bool,
        memory: Option<u64>,
        durable: bool,
        cache_size: Option<u64>,
    ) -> PyResult<Database> {
        let opening = Opening { read_only, memory, durable, cache_size };
        let opened = py.detach(|| open(path, make, size, opening))?;
        Ok(Database(Arc::new(opened)))
    }

    /// Opens a store in object storage for reading. `directory` is the directory for local files.
    #[staticmethod]
    #[pyo3(signature = (address, *, directory, follow, memory, cache_size))]
    fn read(
        py: Python<'_>,
        address: PathBuf,
        directory: Option<PathBuf>,
        follow: Option<f64>,
        memory: Option<u64>,
        cache_size: Option<u64>,
    ) -> PyResult<Database> {
        let opening = Opening { read_only: true, memory, durable: false, cache_size };
        let opened = py.detach(|| {
            let follow = follow.map(|every| interval("follow", every)).transpose()?;
            at_address::read(&address, directory.as_deref(), follow, opening)
        })?;
        Ok(Database(Arc::new(opened)))
    }

    /// Opens a store in object storage for writing. `directory` is the directory for local files.
    #[staticmethod]
    #[pyo3(signature = (
        address, *, directory, make, take, syncs_there, every, memory, durable, cache_size
    ))]
    #[allow(clippy::too_many_arguments)]
    fn write(
        py: Python<'_>,
        address: PathBuf,
        directory: Option<PathBuf>,
        make: bool,
        take: bool,
        syncs_there: bool,
        every: f64,
        memory: Option<u64>,
        durable: bool,
        cache_size: Option<u64>,
    ) -> PyResult<Database> {
        let opening = Opening { read_only: false, memory, durable, cache_size };
        let opened = py.detach(|| {
            let every = interval("publish_every", every)?;
            let writing = Writing { take, make, syncs_there, every };
            at_address::write(&address, directory.as_deref(), writing, opening)
        })?;
        Ok(Database(Arc::new(opened)))
    }

    /// Returns the keys and files outside of all transactions. If the store is shown as it was in
    /// a snapshot, they are the keys and files of the snapshot.
    fn mainline(&self, py: Python<'_>) -> PyResult<Scope> {
        let view = self.call(py, |open| match &open.there.snapshot {
            Some(name) => Ok(Some((name.clone(), open.db.open_snapshot(name)?))),
            None => Ok(None),
        })?;
        Ok(match view {
            Some((name, view)) => Scope::frozen(self.0.clone(), name, view),
            None => Scope::mainline(self.0.clone()),
        })
    }

    /// Publishes the store. Returns the generation, zones, objects, bytes, and bytes of live
    /// data.
    fn push(
        &self,
        py: Python<'_>,
        address: PathBuf,
        take: bool,
    ) -> PyResult<(u64, u64, u64, u64, u64)> {
        let stats = self.call(py, |open| at_address::push(open, &address, take))?;
        Ok((stats.generation, stats.zones, stats.objects, stats.bytes, stats.live_bytes))
    }

    /// Begins a transaction with the changes of a fork, or returns the conflicts. `choices` say
    /// which version is taken for keys and below paths.
    #[pyo3(signature = (fork, *, directory, choices, label, undoable))]
    fn merge_fork(
        &self,
        py: Python<'_>,
        fork: PathBuf,
        directory: Option<PathBuf>,
        choices: Vec<(Vec<u8>, String)>,
        label: String,
        undoable: bool,
    ) -> PyResult<(Option<Scope>, Vec<Conflicting>)> {
        let merged = self.call(py, |open| {
            let choices = choices.into_iter().map(|(path, name)| Ok((path, choice(&name)?)));
            let choices = choices.collect::<Outcome<Vec<_>>>()?;
            let memory = Some(FORK_MEMORY);
            let opening = Opening { read_only: true, memory, durable: false, cache_size: None };
            let fork = at_address::forked(&fork, directory.as_deref(), opening)?;
            let options = TransactionOptions { label, undoable, ..TransactionOptions::default() };
            match merge(open, fork, choices, options)? {
                Ok(id) => Ok(Ok(open.views()?.transaction(id)?)),
                Err(conflicts) => Ok(Err(conflicts)),
            }
        })?;
        Ok(match merged {
            Ok(merged) => (Some(Scope::transaction(self.0.clone(), merged, true)), vec![]),
            Err(conflicts) => (None, listed(conflicts)),
        })
    }

    /// Returns the status of publishing and of following as JSON, or `None` for each that the
    /// store does not do.
    fn there(&self, py: Python<'_>) -> PyResult<(Option<String>, Option<String>)> {
        self.call(py, |open| {
            let publishing = open.there.publishing.as_ref().and_then(|p| p.shared().upgrade());
            let following = open.there.following.as_ref().and_then(|f| f.shared().upgrade());
            let publishing = publishing.map(|shared| shared.figures().to_string());
            Ok((publishing, following.map(|shared| shared.figures().to_string())))
        })
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (
        *, serializable, check_conflicts, label, lock_timeout, retry_of, undoable, clone=None
    ))]
    fn begin(
        &self,
        py: Python<'_>,
        serializable: bool,
        check_conflicts: bool,
        label: String,
        lock_timeout: f64,
        retry_of: Option<u64>,
        undoable: bool,
        clone: Option<String>,
    ) -> PyResult<Scope> {
        let lock_timeout = Duration::try_from_secs_f64(lock_timeout).map_err(|_| {
            Failure::Invalid(format!("lock_timeout is a number of seconds, not {lock_timeout}"))
        })?;
        let isolation = if serializable { Isolation::Serializable } else { Isolation::Snapshot };
        let options = TransactionOptions {
            isolation,
            check_conflicts,
            lock_timeout,
            label,
            retry_of: retry_of.map(TransactionId),
            undoable,
            branch: clone.unwrap_or_default(),
            ..TransactionOptions::default()
        };
        let transaction = self.call(py, |open| match (&open.there.snapshot, &open.views) {
            (Some(snapshot), _) => Err(Failure::AsItWas(snapshot.clone())),
            (None, Some(views)) => Ok(views.transaction(views.begin(options)?)?),
            (None, None) => {
                Ok(open.db.begin_with(TransactionOptions { detached: true, ..options })?)
            }
        })?;
        Ok(Scope::transaction(self.0.clone(), transaction, true))
    }

    /// Joins a transaction that is already open.
    fn join(&self, py: Python<'_>, number: u64) -> PyResult<Scope> {
        let transaction =
            self.call(py, |open| Ok(open.db.transaction(TransactionId(number))?))?;
        Ok(Scope::transaction(self.0.clone(), transaction, false))
    }

    /// Returns the commits that can be undone, the oldest first.
    fn commits(&self, py: Python<'_>) -> PyResult<Vec<ListedCommit>> {
        self.call(py, |open| {
            let all = open.db.undoable_commits_and_bytes().into_iter();
            Ok(all.map(|(c, held)| (c.number, c.label, c.created.as_secs_f64(), held)).collect())
        })
    }

    /// Begins a transaction that undoes a commit when it commits. `None` stands for the last
    /// commit.
    fn undo(&self, py: Python<'_>, commit: Option<u64>) -> PyResult<Scope> {
        let transaction = self.call(py, |open| {
            let views = open.views()?;
            let all = open.db.undoable_commits();
            let found = match commit {
                Some(number) => all.into_iter().find(|c| c.number == number),
                None => all.into_iter().next_back(),
            };
            let found = found.ok_or(Failure::NoCommit(commit))?;
            let options = TransactionOptions {
                undoable: true,
                label: format!("undo {}", found.label),
                ..TransactionOptions::default()
            };
            let (id, against) = views.undo(found.number, options)?;
            if against.is_empty() {
                return Ok(views.transaction(id)?);
            }
            views.abort(id)?;
            let mut names = open.names(&against);
            let more = names.len().saturating_sub(NAMED);
            names.truncate(NAMED);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            let names = names.join(", ");
            Err(Failure::StandsAgainst(format!(
                "commit {} ({}) cannot be undone: others have changed {names}{more} since",
                found.number, found.label
            )))
        })?;
        Ok(Scope::transaction(self.0.clone(), transaction, true))
    }

    fn snapshots(&self, py: Python<'_>) -> PyResult<Vec<ListedSnapshot>> {
        self.call(py, |open| {
            let all = open.db.snapshots().into_iter();
            Ok(all
                .map(|s| (s.name, s.branch, s.created.as_secs_f64(), s.bytes, s.unique_bytes))
                .collect())
        })
    }

    fn create_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.call(py, |open| match &open.views {
            Some(views) => Ok(views.snapshot(&kvfs::ViewId::Mainline, name, Durability::Synced)?),
            None => Ok(open.db.snapshot(name)?),
        })
    }

    fn open_snapshot(&self, py: Python<'_>, name: String) -> PyResult<Scope> {
        let view = self.call(py, |open| Ok(open.db.open_snapshot(&name)?))?;
        Ok(Scope::frozen(self.0.clone(), name, view))
    }

    fn drop_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.call(py, |open| match &open.views {
            Some(views) => Ok(views.drop_snapshot(name)?),
            None => Ok(open.db.drop_snapshot(name)?),
        })
    }

    fn rollback(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.call(py, |open| match open.views()?.rollback(name) {
            Err(kvfs::Error::NotFound) => Err(kvdb::Error::NoSnapshot(name.into()).into()),
            rolled_back => Ok(rolled_back?),
        })
    }

    /// Returns the keys that differ between a snapshot and another one, or the current state.
    #[pyo3(signature = (before, after, dictionary, values))]
    fn changes(
        &self,
        py: Python<'_>,
        before: &str,
        after: Option<&str>,
        dictionary: Option<&str>,
        values: bool,
    ) -> PyResult<Changes> {
        let comparison = self.call(py, |open| {
            let before = open.db.open_snapshot(before)?;
            let after =
                after.map_or_else(|| Ok(open.db.view()), |name| open.db.open_snapshot(name))?;
            Comparison::of(before, after, dictionary, values)
        })?;
        Ok(Changes::new(self.0.slot("the list of changes", comparison)))
    }

    /// Returns the files that differ, each with path, kind (d, f, l, o), bytes before, bytes
    /// after.
    fn file_changes(
        &self,
        py: Python<'_>,
        before: &str,
        after: Option<&str>,
    ) -> PyResult<Vec<ChangedFile>> {
        self.call(py, |open| {
            let changes =
                open.views()?.difference_of_snapshots(before, after, Default::default())?;
            changed_files(changes)
        })
    }

    /// Writes a snapshot, or the changes since another one, to a Python file object. Returns the
    /// numbers of chunks, tuples and bytes of the stream.
    fn send(
        &self,
        py: Python<'_>,
        name: &str,
        base: Option<&str>,
        file: Py<PyAny>,
    ) -> PyResult<(u64, u64, u64)> {
        // The store is not locked here, because the file may be one of its own files.
        let db = self.call(py, |open| Ok(open.db.clone()))?;
        let sent = py.detach(|| {
            let failed = Failed::default();
            let out = BufWriter::with_capacity(1 << 20, PythonWriter::new(file, failed.clone()));
            failed.or(db.send(name, base, out, None))
        })?;
        Ok((sent.chunks, sent.tuples, sent.bytes))
    }

    /// Reads a stream from a Python file object. Everything that is open in the store is closed
    /// first. Returns the name of the snapshot and the number of its tuples.
    fn receive(
        &self,
        py: Python<'_>,
        file: Py<PyAny>,
        snapshot: Option<String>,
        replace: bool,
    ) -> PyResult<(String, u64)> {
        let shared = &self.0;
        let failed = Failed::default();
        let received = py.detach(|| -> Outcome<_> {
            let reader = PythonReader::new(file, failed.clone());
            let received = shared.replacing(|db| {
                let replace = replace || is_new(db)?;
                db.receive(reader, &ReceiveOptions { snapshot, replace, ..Default::default() })
            })?;
            failed.or(received)
        })?;
        Ok((received.snapshot, received.tuples))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |open| match &open.views {
            Some(views) => Ok(views.sync_all()?),
            None => Ok(open.db.sync()?),
        })
    }

    /// Returns the number of bytes that the store may take, and the number of bytes that are
    /// free.
    fn space(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let space = self.call(py, |open| Ok(open.db.space()))?;
        Ok((space.total, space.free))
    }

    /// Creates a dictionary. If it exists, it is left unchanged, and options are an error.
    fn create_dictionary(
        &self,
        py: Python<'_>,
        name: &str,
        options: Vec<(String, String)>,
    ) -> PyResult<()> {
        self.call(py, |open| match open.dictionary(name)? {
            Some(_) if options.is_empty() => Ok(()),
            Some(_) => Err(kvdb::Error::Exists(format!("dictionary {name}")).into()),
            None => {
                let options = changed(DictionaryOptions::default(), &options)?;
                Ok(open.db.create_dictionary(name, options).map(drop)?)
            }
        })
    }

    fn set_dictionary(
        &self,
        py: Python<'_>,
        name: &str,
        options: Vec<(String, String)>,
    ) -> PyResult<()> {
        self.call(py, |open| {
            let none = || kvdb::Error::NoDictionary(name.into());
            let id = open.dictionary(name)?.ok_or_else(none)?;
            let info = open.db.dictionary_info(id).ok_or_else(none)?;
            Ok(open.db.set_dictionary_options(id, changed(info.options, &options)?)?)
        })
    }

    fn dictionary_options(
        &self,
        py: Python<'_>,
        name: &str,
    ) -> PyResult<Vec<(&'static str, String)>> {
        self.call(py, |open| {
            let none = || kvdb::Error::NoDictionary(name.into());
            let id = open.dictionary(name)?.ok_or_else(none)?;
            let info = open.db.dictionary_info(id).ok_or_else(none)?;
            Ok(listed_options(&info.options))
        })
    }

    /// Merges the runs of a dictionary, or of all dictionaries of the store.
    fn compact(&self, py: Python<'_>, name: Option<&str>) -> PyResult<()> {
        self.call(py, |open| {
            let Some(name) = name else {
                for dictionary in open.db.dictionaries() {
                    match open.db.compact(dictionary.id) {
                        // The dictionary was dropped after it was listed.
                        Err(kvdb::Error::NoDictionary(_)) => {}
                        done => done?,
                    }
                }
                return Ok(());
            };
            let none = || kvdb::Error::NoDictionary(name.into());
            Ok(open.db.compact(open.dictionary(name)?.ok_or_else(none)?)?)
        })
    }

    /// Returns the clones, each with the snapshot from which it was made, if that is known.
    fn clones(&self, py: Python<'_>) -> PyResult<Vec<(String, Option<String>)>> {
        self.call(py, |open| {
            Ok(open.db.branches().into_iter().map(|info| (info.name, info.snapshot)).collect())
        })
    }

    fn create_clone(&self, py: Python<'_>, snapshot: &str, name: &str) -> PyResult<()> {
        self.call(py, |open| match &open.views {
            Some(views) => Ok(views.clone_snapshot(snapshot, name)?),
            None => Ok(open.db.clone_snapshot(snapshot, name)?),
        })
    }

    fn drop_clone(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.call(py, |open| match &open.views {
            Some(views) => Ok(views.drop_clone(name)?),
            None => Ok(open.db.drop_branch(name)?),
        })
    }

    fn drop_dictionary(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.call(py, |open| match open.dictionary(name)? {
            Some(id) => Ok(open.db.drop_dictionary(id)?),
            None => Err(kvdb::Error::NoDictionary(name.into()).into()),
        })
    }

    /// Returns the open transactions, the oldest first.
    fn transactions(&self, py: Python<'_>) -> PyResult<Vec<ListedTransaction>> {
        self.call(py, |open| {
            let all = open.db.transactions().into_iter();
            Ok(all
                .map(|t| {
                    let serializable = t.isolation == Isolation::Serializable;
                    let (age, idle) = (t.age.as_secs_f64(), t.idle.as_secs_f64());
                    (t.id.0, t.label, serializable, age, idle, t.changes)
                })
                .collect())
        })
    }

    /// Returns a few statistics of the store.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (space, transactions, snapshots) = self.call(py, |open| {
            let transactions = open.db.transactions().len();
            Ok((open.db.space(), transactions, open.db.snapshots().len()))
        })?;
        let figures = PyDict::new(py);
        figures.set_item("total_bytes", space.total)?;
        figures.set_item("free_bytes", space.free)?;
        figures.set_item("transactions", transactions)?;
        figures.set_item("snapshots", snapshots)?;
        Ok(figures)
    }

    fn is_open(&self) -> bool {
        self.0.open().is_ok()
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let shared = &self.0;
        Ok(py.detach(|| shared.close())?)
    }
}
