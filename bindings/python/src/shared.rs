//! The state of a store that is open in this process, shared by all objects that work on it:
//! opening, closing, and the dictionaries by their names.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use env::Machine;
use kvdb::{
    CreateOptions, DictionaryId, DictionaryOptions, Durability, Kvdb, LocalCopy, OpenOptions,
    TransactionId,
};
use kvfs::{Fs, FsOptions, Views};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use places::following::FollowingThread;
use places::publishing::Publishing;
use pyo3::Python;
use zones::FileDevice;

use crate::failure::{Failure, Outcome};
use crate::slot::{Closing, Owner, Slot, Slots};

/// The least size of a store in bytes, which is the same as for `kvfs create`. A smaller store
/// has room only for its own structures.
pub const LEAST_SIZE: u64 = 160 << 20;

/// The default limit on all memory of a store, in bytes.
pub const MEMORY: u64 = 320 << 20;

/// Longest name of a dictionary in bytes, as on the socket.
const LONGEST_NAME: usize = 128;

/// Time for which opening a store waits for a process or a thread of this process that is closing
/// it.
const PATIENCE: Duration = Duration::from_secs(1);

/// An open store in the form in which calls see it.
pub struct Open {
    pub db: Kvdb,
    /// The views of files and keys, or `None` if the store is read-only and has no file system.
    pub views: Option<Views>,
    /// The durability of writes outside of transactions.
    pub durability: Durability,
    /// The additional parts of a store at an address.
    pub there: There,
    numbers: Mutex<HashMap<String, DictionaryId>>,
}

/// The additional parts of a store that was opened by its address. A store in a file has none of
/// them.
#[derive(Default)]
pub struct There {
    /// The snapshot as which the store is shown, if it is shown as a snapshot.
    pub snapshot: Option<String>,
    /// The thread that publishes commits.
    pub publishing: Option<Publishing>,
    /// The address at which a store is written, and the local file through which it is written.
    pub written: Option<(String, PathBuf)>,
    /// The thread that shows newly published states.
    pub following: Option<FollowingThread>,
}

impl Open {
    /// Returns the id of a dictionary of the user, or `None` if there is none with that name.
    pub fn dictionary(&self, name: &str) -> Outcome<Option<DictionaryId>> {
        if let Some(id) = self.numbers.lock().get(name).filter(|id| self.db.has_dictionary(**id)) {
            return Ok(Some(*id));
        }
        check_name(name)?;
        let Some(info) = self.db.dictionaries().into_iter().find(|d| d.name == name) else {
            return Ok(None);
        };
        if info.options.reserved {
            return Err(reserved(name));
        }
        self.numbers.lock().insert(name.to_owned(), info.id);
        Ok(Some(info.id))
    }

    /// Returns the id of a dictionary, which is created if it does not exist.
    pub fn dictionary_to_write(&self, name: &str) -> Outcome<DictionaryId> {
        if let Some(id) = self.dictionary(name)? {
            return Ok(id);
        }
        self.db.create_dictionary(name, DictionaryOptions::default())?;
        self.dictionary(name)?.ok_or_else(|| kvdb::Error::NoDictionary(name.into()).into())
    }

    /// Returns the names of keys in the user's terms, without duplicates.
    pub fn names(&self, keys: &[(DictionaryId, Bytes)]) -> Vec<String> {
        let dictionaries = self.db.dictionaries();
        let mut names = Vec::new();
        for (dictionary, key) in keys {
            let name = match dictionaries.iter().find(|known| known.id == *dictionary) {
                Some(known) if known.options.reserved => "a file or directory".to_owned(),
                known => {
                    let of = known.map_or_else(|| dictionary.0.to_string(), |d| d.name.clone());
                    format!("key \"{}\" of dictionary {of}", key.escape_ascii())
                }
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Returns the reason why a call in a transaction has failed. A transaction that was ended in
    /// favour of an older one may be begun again; an error that only says that the transaction
    /// has ended does not show this.
    pub fn cause(&self, transaction: Option<TransactionId>, failure: Failure) -> Failure {
        let over = matches!(
            failure,
            Failure::Ended(_)
                | Failure::Store(kvdb::Error::NoTransaction(_))
                | Failure::Files(kvfs::Error::Stale(_), _)
        );
        match transaction.filter(|_| over).and_then(|id| self.db.lost_to_another(id)) {
            Some(lost) => lost.into(),
            None => failure,
        }
    }

    /// Returns the views of files and keys.
    pub fn views(&self) -> Outcome<&Views> {
        self.views
            .as_ref()
            .ok_or_else(|| Failure::Invalid("the store is read-only and has no files yet".into()))
    }
}

/// Returns an error if the name of a dictionary is invalid.
pub fn check_name(name: &str) -> Outcome<()> {
    let wrong = match name {
        _ if name.is_empty() || name.len() > LONGEST_NAME => {
            format!("has 1 to {LONGEST_NAME} bytes, not {}", name.len())
        }
        _ if name.chars().any(char::is_control) => "has no control characters".into(),
        _ => return Ok(()),
    };
    Err(Failure::Invalid(format!("the name of a dictionary {wrong}: {name:?}")))
}

/// Returns the error for a dictionary of the file system, which users cannot access.
pub fn reserved(name: &str) -> Failure {
    Failure::Invalid(format!("dictionary '{name}' is reserved for the file system"))
}

enum State {
    Open(Box<Open>),
    Receiving,
    Closed,
}

/// A store, shared by the objects that work on it.
pub struct Shared {
    owner: Owner,
    state: RwLock<State>,
    slots: Slots,
    file_options: FsOptions,
}

impl Shared {
    /// Returns the open store for one call. A close of the store waits for the end of the call.
    pub fn open(&self) -> Outcome<impl std::ops::Deref<Target = Open> + '_> {
        self.owner.check()?;
        // Calls of one thread are nested when a stream is written into a file of the store.
        let state = self.state.read_recursive();
        match &*state {
            State::Open(_) => Ok(RwLockReadGuard::map(state, |state| match state {
                State::Open(open) => &**open,
                _ => unreachable!("it was looked at under the lock"),
            })),
            State::Receiving => Err(Failure::Receiving),
            State::Closed => Err(Failure::Closed("the store")),
        }
    }

    /// Returns a slot that is closed together with the store.
    pub fn slot<T: Send + 'static>(&self, what: &'static str, value: T) -> Arc<Slot<T>> {
        let slot = Arc::new(Slot::new(what, value));
        let weak = Arc::downgrade(&slot);
        self.slots.add(weak as Weak<dyn Closing>);
        slot
    }

    /// Ends all transactions first, so that calls that wait for their locks return.
    pub fn end_transactions(&self) {
        let Ok(open) = self.open() else { return };
        for transaction in open.db.transactions() {
            if transaction.durable {
                continue;
            }
            // The transaction may have ended by itself.
            let _ = match &open.views {
                Some(views) => views.abort(transaction.id).map_err(drop),
                None => open.db.transaction(transaction.id).map(|t| t.abort()).map_err(drop),
            };
        }
    }

    /// Makes everything durable and closes the store.
    pub fn close(&self) -> Outcome<()> {
        self.owner.check()?;
        self.end_transactions();
        let mut state = self.state.write();
        self.slots.close();
        match std::mem::replace(&mut *state, State::Closed) {
            State::Open(open) => let_go(*open),
            State::Closed => Ok(()),
            State::Receiving => {
                *state = State::Receiving;
                Err(Failure::Receiving)
            }
        }
    }
}

impl Shared {
    /// Lets `replace` change the content of the store. Everything that was open in the store is
    /// closed before, and the file system is opened again afterwards. Other calls fail in the
    /// meantime.
    pub fn replacing<T>(&self, replace: impl FnOnce(&Kvdb) -> T) -> Outcome<T> {
        if self.open()?.there.is_some() {
            let what = "a store that is open by its address is not replaced: receive the stream \
                        into a file, and push that";
            return Err(Failure::Invalid(what.into()));
        }
        self.end_transactions();
        let (db, durability) = {
            let mut state = self.state.write();
            match std::mem::replace(&mut *state, State::Receiving) {
                State::Open(open) => {
                    self.slots.close();
                    if let Err(failure) = put_to_rest(open.views.clone()) {
                        *state = State::Open(open);
                        return Err(failure);
                    }
                    (open.db, open.durability)
                }
                other => {
                    let failure = match other {
                        State::Closed => Failure::Closed("the store"),
                        _ => Failure::Receiving,
                    };
                    *state = other;
                    return Err(failure);
                }
            }
        };
        // No lock is held, because `replace` may run Python code.
        let done = replace(&db);
        let opened = with_files(db, durability, &self.file_options);
        let mut state = self.state.write();
        match opened {
            Ok(open) => *state = State::Open(Box::new(open)),
            Err(failure) => {
                *state = State::Closed;
                return Err(failure);
            }
        }
        Ok(done)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = std::mem::replace(self.state.get_mut(), State::Closed);
        if self.owner.is_another() {
            std::mem::forget(state);
        } else if let State::Open(open) = state {
            // Errors cannot be reported here; `close` reports them. If the interpreter has ended,
            // its lock need not be released.
            let mut open = Some(open);
            let mut close = || open.take().map_or(Ok(()), |open| let_go(*open));
            if Python::try_attach(|py| py.detach(&mut close)).is_none() {
                let _ = close();
            }
        }
    }
}

/// Makes everything durable, here and in the place where the store is published, and closes it.
/// If there are several failures, the first one is returned.
fn let_go(open: Open) -> Outcome<()> {
    let There { snapshot: _, publishing, written, following } = open.there;
    drop(following);
    // No caller waits for a sync any more; the last commits are published below.
    publishing.iter().for_each(Publishing::sync_here);
    let files = put_to_rest(open.views);
    let published = publishing.map_or(Ok(()), |publishing| publishing.finish());
    let closed = open.db.close();
    match (published.map_err(Failure::from), written) {
        // The other failures follow from this one.
        (Err(failure), Some((address, file))) if failure.is_displaced() => {
            Err(Failure::Displaced(address, file))
        }
        (published, _) => files.and(published).and(closed.map_err(Failure::from)),
    }
}

/// Commits the data that waits in the memory of the file system, and ends its threads.
fn put_to_rest(views: Option<Views>) -> Outcome<()> {
    match views {
        Some(views) => Ok(views.shutdown().and(views.mainline().shutdown())?),
        None => Ok(()),
    }
}

fn with_files(db: Kvdb, durability: Durability, options: &FsOptions) -> Outcome<Open> {
    let views = match Fs::open(db.clone(), Arc::new(Machine::default()), options.clone()) {
        Ok(fs) => Some(Views::new(db.clone(), fs)),
        Err(kvfs::Error::ReadOnly) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(Open { db, views, durability, there: There::default(), numbers: Mutex::default() })
}

impl There {
    /// Returns whether the store was opened by its address.
    pub fn is_some(&self) -> bool {
        self.snapshot.is_some() || self.publishing.is_some() || self.following.is_some()
    }
}

/// Retries for a moment while another process or thread is closing the file.
pub fn patiently<T>(mut open: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(failure) if failure.is_busy() && begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

/// Opens the file of a store. If the zones of the store lie in object storage, readers write the
/// parts that they fetch into the file.
pub fn device(path: &Path, read_only: bool) -> Outcome<Arc<FileDevice>> {
    let open = |read_only| {
        patiently(|| FileDevice::open(path, read_only).map_err(Failure::Device)).map(Arc::new)
    };
    let device = open(read_only)?;
    let copy = LocalCopy::of(&*device).ok().flatten();
    let is_cache = |copy: &LocalCopy| copy.fork.is_none() && copy.writer.is_none();
    match copy {
        Some(copy) if !read_only && is_cache(&copy) => Err(Failure::Invalid(format!(
            "{} is a copy of a store in object storage, in which changes would be lost: open it \
             with read_only=True, or fork the store",
            path.display()
        ))),
        Some(_) if read_only => {
            drop(device);
            open(false)
        }
        _ => Ok(device),
    }
}

/// The options with which a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    pub read_only: bool,
    /// The limit on buffers and caches, in bytes; `None` stands for the default.
    pub memory: Option<u64>,
    /// Set if every write is durable when its call returns.
    pub durable: bool,
    /// The number of bytes on disk that parts fetched from object storage may take.
    pub cache_size: Option<u64>,
}

impl Opening {
    /// Divides the memory among the uncommitted data of files, the inodes, and the database.
    fn shares(&self) -> [usize; 3] {
        let memory = self.memory.unwrap_or(MEMORY);
        let write_buffer = (memory / 5).clamp(1 << 20, 1 << 30);
        let inodes = memory / 20;
        let database = memory.saturating_sub(write_buffer + inodes).max(1 << 20);
        [write_buffer, inodes, database].map(|n| usize::try_from(n).unwrap_or(usize::MAX))
    }

    fn of_database(&self) -> OpenOptions {
        let [.., memory] = self.shares();
        OpenOptions { read_only: self.read_only, memory, ..OpenOptions::default() }
    }

    /// Opens only the database. Its zones are found in the place that the file names.
    pub fn database(&self, device: Arc<FileDevice>) -> Outcome<Kvdb> {
        let mut remote = places::zones_of(&*device)?;
        if let (Some(zones), Some(bytes)) = (&mut remote, self.cache_size) {
            zones.cache_bytes = bytes;
        }
        let options = OpenOptions { remote, ..self.of_database() };
        Ok(Kvdb::open(device, Arc::new(Machine::default()), options)?.0)
    }

    /// Opens the store with its files. `there` returns the additional parts.
    pub fn store(&self, db: Kvdb, there: impl FnOnce(&Open) -> Outcome<There>) -> Outcome<Shared> {
        let [write_buffer, inode_memory, _] = self.shares();
        let file_options = FsOptions {
            read_only: self.read_only,
            write_buffer,
            inode_memory,
            root_uid: rustix::process::geteuid().as_raw(),
            root_gid: rustix::process::getegid().as_raw(),
            ..FsOptions::default()
        };
        let durability = if self.durable { Durability::Synced } else { Durability::Buffered };
        let mut open = with_files(db, durability, &file_options)?;
        match there(&open) {
            Ok(there) => open.there = there,
            Err(failure) => {
                let _ = let_go(open);
                return Err(failure);
            }
        }
        Ok(Shared {
            owner: Owner::current(),
            state: RwLock::new(State::Open(Box::new(open))),
            slots: Slots::default(),
            file_options,
        })
    }
}

/// Opens a store in a file, or creates it.
pub fn open(path: PathBuf, make: bool, size: Option<u64>, opening: Opening) -> Outcome<Shared> {
    if let Some(size) = size.filter(|size| *size < LEAST_SIZE) {
        return Err(Failure::Invalid(format!(
            "{size} bytes are too few for a store, the least is {LEAST_SIZE}: give a larger size, \
             or none, for a file takes space only as it is needed"
        )));
    }
    let db = if make {
        let open = opening.of_database();
        Kvdb::create_path(path, CreateOptions { capacity: size, open, ..CreateOptions::default() })?
    } else {
        opening.database(device(&path, opening.read_only)?)?
    };
    opening.store(db, |_| Ok(There::default()))
}
