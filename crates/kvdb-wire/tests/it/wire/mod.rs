//! Helpers of the tests: a store that is served on a socket of its own, a proxy that cuts
//! connections, and a description of a tree of files as users see it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use env::{Machine, Random};
use kvdb::{CommitOptions, Durability, Kvdb, Transaction, TransactionOptions};
use kvdb_wire::{Client, ClientOptions, Host, Server, ServerOptions, SnapshotView, Socket};
use kvfs::{Atime, Attr, Caller, FileKind, Fs, FsOptions, Ino, ROOT, ViewId, Views};

/// A store with a file system, and its server.
pub struct Store {
    pub db: Kvdb,
    pub fs: Fs,
    server: Option<Server>,
    /// Set if clients may begin transactions.
    writes: bool,
    pub options: ServerOptions,
    directory: tempfile::TempDir,
}

impl Store {
    /// Returns a store with an empty file system.
    pub fn new() -> Store {
        Store::of(Kvdb::in_memory())
    }

    /// Returns a store over `db`, whose snapshots may lack a file system.
    pub fn of(db: Kvdb) -> Store {
        let fs = Fs::open(db.clone(), Arc::new(Machine::default()), options()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store {
            db,
            fs,
            server: None,
            writes: false,
            options: ServerOptions::default(),
            directory,
        };
        store.serve();
        store
    }

    /// Returns a store with the snapshot `monday` of a random tree.
    pub fn with_tree(seed: u64, calls: u64) -> Store {
        let store = Store::new();
        fill(&store.fs, seed, 0..calls);
        store.snapshot("monday");
        store
    }

    /// Returns a store whose clients can write, including its files.
    pub fn writable() -> Store {
        let mut store = Store::new();
        store.stop_serving();
        store.writes = true;
        store.serve();
        store
    }

    pub fn snapshot(&self, name: &str) {
        self.fs.shutdown().unwrap();
        self.db.snapshot_of("", name, Durability::Synced).unwrap();
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub fn serve(&mut self) {
        let listener = UnixListener::bind(self.path()).unwrap();
        let (db, options) = (self.db.clone(), self.options.clone());
        let server = match self.writes {
            true => {
                let views = Views::new(db.clone(), self.fs.clone());
                Server::with_transactions(db, Arc::new(Files(views)), listener, options)
            }
            false => Server::begin(db, listener, options),
        };
        self.server = Some(server.unwrap());
    }

    pub fn stop_serving(&mut self) {
        self.server = None;
        std::fs::remove_file(self.path()).unwrap();
    }

    pub fn client(&self) -> Arc<Client> {
        client(&self.path(), Duration::from_secs(60)).unwrap()
    }
}

/// Returns options with which reading does not change the file system.
pub fn options() -> FsOptions {
    FsOptions { atime: Atime::Never, ..FsOptions::default() }
}

pub fn client(path: &Path, timeout: Duration) -> kvdb_wire::Result<Arc<Client>> {
    let path = path.to_path_buf();
    let options = ClientOptions { timeout, ..ClientOptions::default() };
    Client::connect(move |time| Socket::connect_unix(&path, time), options)
}

pub fn try_served(client: &Arc<Client>, snapshot: &str) -> Result<Fs, kvfs::Error> {
    let opened = SnapshotView::open(client, snapshot);
    let view = opened.map_err(|e| kvfs::Error::Store(kvdb::Error::Io(std::io::Error::other(e))))?;
    Fs::served(Arc::new(view), Arc::new(Machine::default()), FsOptions::default())
}

pub fn served(client: &Arc<Client>, snapshot: &str) -> Fs {
    try_served(client, snapshot).unwrap()
}

/// Makes random files, directories, links and attributes, whose names contain the number of the
/// call.
pub fn fill(fs: &Fs, seed: u64, calls: std::ops::Range<u64>) {
    let mut random = Random::new(seed);
    let caller = Caller { uid: 7, gid: 8, pid: 1 };
    let mut dirs = vec![ROOT];
    let mut files: Vec<Ino> = Vec::new();
    for i in calls {
        let dir = *random.pick(&dirs).unwrap();
        let name = format!("{}{i}", "n".repeat(random.below(100) as usize)).into_bytes();
        match random.below(10) {
            0 | 1 => dirs.push(fs.mkdir(dir, &name, 0o750, caller).unwrap().ino),
            2 => {
                let target = vec![b't'; 1 + random.below(600) as usize];
                fs.symlink(dir, &name, &target, caller).unwrap();
            }
            3 if !files.is_empty() => {
                let file = *random.pick(&files).unwrap();
                fs.link(file, dir, &name).unwrap();
            }
            4 if !files.is_empty() => {
                let file = *random.pick(&files).unwrap();
                let mut value = vec![0; random.below(5000) as usize];
                random.fill(&mut value);
                let name = format!("user.{i}");
                fs.setxattr(file, name.as_bytes(), &value, Default::default()).unwrap();
            }
            _ => {
                let file = fs.mknod(dir, &name, FileKind::File, 0o640, 0, caller).unwrap().ino;
                let most = 1 << random.below(18);
                let mut content = vec![0; random.below(most) as usize];
                random.fill(&mut content);
                // Some files get a hole.
                let offset = if random.one_in(4) { random.below(100_000) } else { 0 };
                fs.write(file, offset, &content, Default::default()).unwrap();
                files.push(file);
            }
        }
    }
}

/// All visible properties of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    pub attr: Attr,
    pub content: Vec<u8>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

pub type Tree = BTreeMap<Vec<u8>, Seen>;

pub fn tree(fs: &Fs) -> Tree {
    try_tree(fs).unwrap()
}

pub fn try_tree(fs: &Fs) -> Result<Tree, kvfs::Error> {
    let mut all = Tree::new();
    let mut dirs = vec![(Vec::new(), ROOT)];
    while let Some((path, dir)) = dirs.pop() {
        let mut entries = Vec::new();
        fs.readdir(dir, 2, true, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.ino, entry.attr));
            true
        })?;
        for (name, ino, attr) in entries {
            let path = [&path[..], b"/", &name].concat();
            assert_eq!(attr, Some(fs.getattr(ino)?), "of the listing");
            let attr = fs.lookup(dir, &name)?;
            fs.forget(ino, 2);
            let content = match attr.kind {
                FileKind::File => fs.read(ino, 0, attr.size as u32)?.to_vec(),
                FileKind::Symlink => fs.readlink(ino)?,
                _ => Vec::new(),
            };
            let mut xattrs = Vec::new();
            for name in fs.listxattr(ino)?.split(|byte| *byte == 0).filter(|name| !name.is_empty())
            {
                xattrs.push((name.to_vec(), fs.getxattr(ino, name)?));
            }
            if attr.kind == FileKind::Dir {
                dirs.push((path.clone(), ino));
            }
            all.insert(path, Seen { attr, content, xattrs });
        }
    }
    Ok(all)
}

/// The direction in which a proxy counts bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Requests,
    Answers,
}

/// Forwards connections to a server, and cuts each one after a number of bytes in one direction.
pub struct Proxy {
    directory: tempfile::TempDir,
    cuts: Arc<AtomicU64>,
}

impl Proxy {
    pub fn new(server: PathBuf, cut: Cut, after: usize) -> Proxy {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("proxy")).unwrap();
        let cuts = Arc::new(AtomicU64::new(0));
        let counts = cuts.clone();
        // The thread ends with the test's process. A proxy that is dropped gets no more
        // connections.
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, UnixStream::connect(&server)) else { continue };
                for (from, to, way) in [
                    (near.try_clone(), far.try_clone(), Cut::Requests),
                    (far.try_clone(), near.try_clone(), Cut::Answers),
                ] {
                    let (from, to) = (from.unwrap(), to.unwrap());
                    let most = if way == cut { after } else { usize::MAX };
                    let cuts = counts.clone();
                    std::thread::spawn(move || {
                        if forward(&from, &to, most) {
                            cuts.fetch_add(1, Ordering::Relaxed);
                        }
                        let _ = from.shutdown(std::net::Shutdown::Both);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        Proxy { directory, cuts }
    }

    /// Returns a client with a short timeout, since sometimes no request gets through.
    pub fn client(&self) -> kvdb_wire::Result<Arc<Client>> {
        client(&self.path(), Duration::from_millis(200))
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("proxy")
    }

    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }
}

/// Forwards connections to a server. While it stalls, bytes are held back, and no connection ends.
pub struct Stalling(tempfile::TempDir);

impl Stalling {
    pub fn new(server: PathBuf, stalls: Arc<AtomicBool>) -> Stalling {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("proxy")).unwrap();
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, UnixStream::connect(&server)) else { continue };
                for (mut from, mut to) in [
                    (near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (far.try_clone().unwrap(), near.try_clone().unwrap()),
                ] {
                    let stalls = stalls.clone();
                    std::thread::spawn(move || {
                        let mut room = [0; 4096];
                        while let Ok(read @ 1..) = from.read(&mut room) {
                            while stalls.load(Ordering::Relaxed) {
                                std::thread::sleep(Duration::from_millis(1));
                            }
                            if to.write_all(&room[..read]).is_err() {
                                break;
                            }
                        }
                        let _ = from.shutdown(std::net::Shutdown::Both);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        Stalling(directory)
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("proxy")
    }
}

/// Forwards at most this number of bytes. Returns `true` if it stopped there, and `false` if the
/// stream ended before.
fn forward(mut from: &UnixStream, mut to: &UnixStream, mut most: usize) -> bool {
    let mut room = [0; 4096];
    while most > 0 {
        let wanted = room.len().min(most);
        match from.read(&mut room[..wanted]) {
            Ok(0) | Err(_) => return false,
            Ok(read) => {
                most -= read;
                if to.write_all(&room[..read]).is_err() {
                    return false;
                }
            }
        }
    }
    true
}

/// The host of clients' transactions in a store with files.
pub struct Files(pub Views);

impl Files {
    fn of_store(error: kvfs::Error) -> kvdb::Error {
        match error {
            kvfs::Error::Store(error) => error,
            other => kvdb::Error::Invalid(other.to_string()),
        }
    }
}

impl Host for Files {
    fn begin(&self, options: TransactionOptions) -> kvdb::Result<Transaction> {
        let begun = self.0.begin(options).and_then(|id| self.0.transaction(id));
        begun.map_err(Files::of_store)
    }

    fn commit(&self, transaction: &Transaction, synced: bool) -> kvdb::Result<()> {
        let durability = if synced { Durability::Synced } else { Durability::Buffered };
        let options = CommitOptions { durability, stays: true, ..CommitOptions::default() };
        self.0.commit_with(transaction.id(), options).map_err(Files::of_store)
    }

    fn abort(&self, transaction: &Transaction) -> kvdb::Result<()> {
        self.0.abort(transaction.id()).map_err(Files::of_store)
    }

    fn place(
        &self,
        transaction: &Transaction,
        dict: kvdb::DictionaryId,
        key: &Bytes,
    ) -> Option<String> {
        let view = transaction.view().ok()?;
        let all = view.dictionaries_in(transaction.branch());
        let name = all.into_iter().find(|info| info.id == dict)?.name;
        self.0.describe_keys(transaction.id(), &name, key, &[&key[..], &[0]].concat())
    }

    fn reserve_numbers(
        &self,
        transaction: &Transaction,
        count: u32,
    ) -> kvdb::Result<std::ops::Range<u64>> {
        self.0.reserve_inodes(transaction.id(), u64::from(count)).map_err(Files::of_store)
    }

    /// Answers one word, a number, with so many bytes, and two, a dictionary and a key, with the
    /// value in the transaction.
    fn review(&self, transaction: &Transaction, words: &[Bytes]) -> kvdb::Result<Vec<u8>> {
        let number = |word: &Bytes| String::from_utf8_lossy(word).parse::<u32>().unwrap();
        match words {
            [count] => Ok((0..number(count)).map(|n| (n >> 12) as u8).collect()),
            [dict, key] => {
                let value = transaction.get(kvdb::DictionaryId(number(dict)), key)?;
                Ok(value.unwrap_or_default().to_vec())
            }
            _ => Err(kvdb::Error::Invalid("one word or two".into())),
        }
    }

    fn lend(&self, since: Option<u64>) -> kvdb::Result<u64> {
        self.0.lend(since).map_err(Files::of_store)
    }

    fn take_back(&self) {
        self.0.take_back().unwrap();
    }

    fn reserve_numbers_of_main(&self, count: u32) -> kvdb::Result<std::ops::Range<u64>> {
        self.0.reserve_inodes_of_mainline(u64::from(count)).map_err(Files::of_store)
    }

    fn make_snapshot(&self, branch: &str, name: &str, durability: Durability) -> kvdb::Result<()> {
        let of = ViewId::of_branch(branch);
        self.0.snapshot(&of, name, durability).map_err(Files::of_store)
    }

    fn remove_snapshot(&self, name: &str) -> kvdb::Result<()> {
        self.0.drop_snapshot(name).map_err(Files::of_store)
    }

    fn make_clone(&self, snapshot: &str, name: &str) -> kvdb::Result<()> {
        self.0.clone_snapshot(snapshot, name).map_err(Files::of_store)
    }

    fn remove_clone(&self, name: &str) -> kvdb::Result<()> {
        self.0.drop_clone(name).map_err(Files::of_store)
    }
}
