//! A file system in memory, for the tests.

use std::sync::Arc;

use env::Simulated;
use kvdb::{Durability, Kvdb, TransactionId, TransactionOptions};
use kvfs::{Attr, Caller, FileKind, Fs, FsOptions, Ino, ViewId, Views};

pub struct World {
    pub db: Kvdb,
    pub env: Arc<Simulated>,
    pub fs: Fs,
}

pub const USER: Caller = Caller { uid: 1000, gid: 100, pid: 7 };

/// The branch that a suite works in: a clone, where its name says so, which has the same tests as
/// that of the main branch.
pub fn branch() -> &'static str {
    if env!("CARGO_CRATE_NAME").ends_with("_of_clones") { "clone" } else { "" }
}

/// The transaction that a suite works in, where its name says so: the first one of a store.
pub fn around() -> Option<TransactionId> {
    env!("CARGO_CRATE_NAME").ends_with("_in_transactions").then_some(TransactionId(1))
}

/// Returns the options for a transaction of the branch.
pub fn of_branch() -> TransactionOptions {
    TransactionOptions { branch: branch().into(), within: around(), ..Default::default() }
}

impl World {
    pub fn new() -> World {
        Self::with(FsOptions::default())
    }

    /// A file system with its views; `fs` is that of [`branch`].
    pub fn with_views(options: FsOptions) -> (World, Views) {
        let w = World::with(options);
        let views = Views::new(w.db.clone(), w.fs.clone());
        let fs = fs_of_branch(&views);
        (World { fs, db: w.db.clone(), env: w.env.clone() }, views)
    }

    pub fn with(options: FsOptions) -> World {
        let (db, env) = (Kvdb::in_memory(), Arc::new(Simulated::new(1)));
        let fs = Fs::open(db.clone(), env.clone(), options).unwrap();
        World { db, env, fs }
    }

    /// Drops the file system as a kill would, and opens it again: what was not committed is lost.
    pub fn crash(&mut self) {
        self.crash_to(FsOptions::default());
    }

    /// Drops the file system as a kill would, and opens it again with other options.
    pub fn crash_to(&mut self, options: FsOptions) {
        // A transaction would be over, and others within it.
        if around().is_some() {
            return;
        }
        self.fs = Fs::open(self.db.clone(), self.env.clone(), options).unwrap();
        if !branch().is_empty() {
            self.fs = fs_of_branch(&Views::new(self.db.clone(), self.fs.clone()));
        }
    }

    pub fn remount(&mut self) {
        if around().is_some() {
            return;
        }
        self.fs.shutdown().unwrap();
        self.crash();
    }

    pub fn second(&self) {
        self.env.advance(std::time::Duration::from_secs(1));
    }

    pub fn file(&self, parent: Ino, name: &str) -> Ino {
        self.fs.mknod(parent, name.as_bytes(), FileKind::File, 0o644, 0, USER).unwrap().ino
    }

    pub fn dir(&self, parent: Ino, name: &str) -> Ino {
        self.fs.mkdir(parent, name.as_bytes(), 0o755, USER).unwrap().ino
    }

    pub fn file_with(&self, parent: Ino, name: &str, data: &[u8]) -> Ino {
        let ino = self.file(parent, name);
        self.write(ino, 0, data);
        ino
    }

    pub fn write(&self, ino: Ino, offset: u64, data: &[u8]) {
        assert_eq!(
            self.fs.write(ino, offset, data, Default::default()).unwrap() as usize,
            data.len()
        );
    }

    pub fn read(&self, ino: Ino, offset: u64, len: usize) -> Vec<u8> {
        let read = self.fs.read(ino, offset, len as u32).unwrap().to_vec();
        // The second way to read: into memory that has other content.
        let mut room = vec![0xee; len];
        let length = self.fs.read_into(ino, offset, &mut room).unwrap();
        assert!(room[..length] == read, "read_into gives what read gives");
        assert!(room[length..].iter().all(|byte| *byte == 0xee), "and touches nothing behind it");
        read
    }

    pub fn read_all(&self, ino: Ino) -> Vec<u8> {
        let size = self.fs.getattr(ino).unwrap().size;
        self.read(ino, 0, size as usize)
    }

    pub fn stat(&self, path: &str) -> Attr {
        self.fs.resolve(path.as_bytes()).unwrap()
    }

    pub fn exists(&self, path: &str) -> bool {
        match self.fs.resolve(path.as_bytes()) {
            Ok(_) => true,
            Err(kvfs::Error::NotFound) => false,
            Err(e) => panic!("{path}: {e}"),
        }
    }

    pub fn contents(&self, path: &str) -> Vec<u8> {
        self.read_all(self.stat(path).ino)
    }

    pub fn list(&self, dir: Ino) -> Vec<String> {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let before = names.len();
            let mut take = 3;
            self.fs
                .readdir(dir, cookie, false, &mut |e| {
                    if take == 0 {
                        return false;
                    }
                    take -= 1;
                    cookie = e.cookie;
                    names.push(String::from_utf8_lossy(e.name).into_owned());
                    true
                })
                .unwrap();
            if names.len() == before {
                return names;
            }
        }
    }

    pub fn check(&self) {
        let report = self.fs.verify().unwrap();
        assert_eq!(report.findings, [], "{report:?}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check();
        }
    }
}

/// The files of [`branch`], which is made if need be, or of [`around`].
pub fn fs_of_branch(views: &Views) -> Fs {
    if let Some(id) = around() {
        if views.list().is_empty() {
            assert_eq!(views.begin(TransactionOptions::default()).unwrap(), id);
        }
        return views.fs(&ViewId::Transaction(id)).unwrap();
    }
    if !branch().is_empty() && views.clones().is_empty() {
        views.snapshot(&ViewId::Mainline, "origin", Durability::Buffered).unwrap();
        views.clone_snapshot("origin", branch()).unwrap();
        views.drop_snapshot("origin").unwrap();
    }
    views.fs(&ViewId::of_branch(branch())).unwrap()
}

#[track_caller]
pub fn fails<T: std::fmt::Debug>(result: kvfs::Result<T>, errno: i32) {
    match result {
        Err(e) => assert_eq!(e.errno(), errno, "{e}"),
        Ok(v) => panic!("succeeded with {v:?}, expected errno {errno}"),
    }
}
