//! Tests of bounded memory. Every public operation runs on a tree, and on a file, that is a hundred
//! times the store's memory, and the table states the largest heap that each may use. An operation
//! that the tables do not name fails the test.
//!
//! By default the steps of one file's content are run. `KVFS_ONLY=commit` runs those that have an
//! operation of that name, `KVFS_ONLY=` all of them.

mod content;
#[path = "../../../kvdb/tests/bounded/counting.rs"]
mod counting;
#[path = "../../../kvdb/tests/it/everything/coverage.rs"]
mod coverage;
mod trees;
mod views;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use env::Machine;
use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, InUse, Ino, ROOT, Result, Views};

/// The memory that the store and the file system are told to take, bytes.
const MEMORY: usize = 1 << 20;
/// Bytes that an operation may take in addition: buffers, values under way, merges in the
/// background, and some hundred bytes for each of the files that it works on.
const BESIDE: usize = 47 << 20;
/// Bytes for each file of a tree that operations may take for lists: the list of changes that they
/// return, the list of all inodes, and the plan of a merge. With twice the files a merge and a
/// rebase take 230 bytes more for each of them.
const LISTED: &[(&str, usize)] = &[
    ("Views::difference", 2000),
    ("Views::difference_of_snapshots", 1000),
    ("Views::merge", 300),
    ("Views::rebase", 300),
    ("Fs::verify", 4000),
];
/// The number of files of a tree, and of files in each of its directories.
const FILES: u64 = 30_000;
const EACH: u64 = 300;
/// Bytes of each of them, and of the large file.
const SMALL: usize = 3 << 10;
const LARGE: u64 = 100 << 20;

pub const USER: Caller = Caller { uid: 1000, gid: 100, pid: 7 };

/// The file system that operations work on.
pub struct World {
    pub db: Kvdb,
    pub views: Views,
    pub directory: tempfile::TempDir,
    /// A file of [`LARGE`] bytes.
    pub large: Ino,
}

fn options() -> OpenOptions {
    OpenOptions { memory: MEMORY, ..OpenOptions::default() }
}

fn files() -> FsOptions {
    FsOptions {
        write_buffer: MEMORY,
        inode_memory: MEMORY,
        flush_interval: Duration::from_secs(3600),
        ..FsOptions::default()
    }
}

impl World {
    fn new() -> World {
        let directory = tempfile::tempdir().expect("a directory");
        let create = CreateOptions { open: options(), ..CreateOptions::default() };
        let db = Kvdb::create_path(directory.path().join("s.kvfs"), create).expect("made");
        let fs = Fs::open(db.clone(), Arc::new(Machine::default()), files()).expect("opened");
        let views = Views::new(db.clone(), fs);
        let made = views.mainline().mknod(ROOT, b"large", FileKind::File, 0o644, 0, USER);
        let w = World { db, views, directory, large: made.expect("made").ino };
        fill(w.fs(), w.large, 1).expect("written");
        plant(w.fs(), ROOT, "tree", 1).expect("planted");
        w.settle().expect("settled");
        w
    }

    pub fn fs(&self) -> &Fs {
        self.views.mainline()
    }

    /// Writes pending data, and does due background work.
    pub fn settle(&self) -> Result<()> {
        self.views.sync_all()?;
        while self.db.step()? {}
        Ok(())
    }

    /// Opens the store again.
    pub fn reopen(&mut self) -> Result<()> {
        self.views.shutdown()?;
        self.fs().shutdown()?;
        self.open_again(None)
    }

    /// Continues as a successor process would, with the handles in use.
    pub fn hand_over(&mut self) -> Result<()> {
        let pause = self.views.pause();
        let in_use = self.views.in_use()?;
        drop(pause);
        self.open_again(Some(in_use))
    }

    fn open_again(&mut self, in_use: Option<InUse>) -> Result<()> {
        self.db.close()?;
        let none = Kvdb::in_memory();
        let fs = Fs::open(none.clone(), Arc::new(Machine::default()), files())?;
        (self.views, self.db) = (Views::new(none.clone(), fs), none);
        let path = self.directory.path().join("s.kvfs");
        self.db = Kvdb::open_path_with(&path, options())?;
        let (db, env) = (self.db.clone(), Arc::new(Machine::default()));
        self.views = match in_use {
            None => Views::new(db.clone(), Fs::open(db, env, files())?),
            Some(of) => Views::take_over(db.clone(), Fs::take_over(db, env, files(), &of)?, &of),
        };
        self.large = self.fs().resolve(b"/large")?.ino;
        Ok(())
    }
}

/// Writes all of a large file.
pub fn fill(fs: &Fs, ino: Ino, mark: u8) -> Result<()> {
    let data = vec![mark; 1 << 20];
    for offset in (0..LARGE).step_by(data.len()) {
        fs.write(ino, offset, &data, Default::default())?;
    }
    Ok(())
}

/// Makes a tree of small files.
pub fn plant(fs: &Fs, parent: Ino, name: &str, mark: u8) -> Result<Ino> {
    let top = fs.mkdir(parent, name.as_bytes(), 0o755, USER)?.ino;
    let data = vec![mark; SMALL];
    for d in 0..FILES / EACH {
        let dir = fs.mkdir(top, format!("directory {d}").as_bytes(), 0o755, USER)?.ino;
        for f in 0..EACH {
            let name = format!("file {f}");
            let ino = fs.mknod(dir, name.as_bytes(), FileKind::File, 0o644, 0, USER)?.ino;
            fs.write(ino, 0, &data, Default::default())?;
            fs.forget(ino, 1);
        }
        fs.forget(dir, 1);
    }
    fs.forget(top, 1);
    Ok(top)
}

/// The operations that a step calls on much data, and the step.
pub type Step = (&'static [&'static str], fn(&mut World) -> Result<()>);

/// The memory of another open store, and of its requests to object storage: twice as many files and
/// twice as much data change it by no more than from one run to the next.
const SECOND_STORE: usize = 64 << 20;

/// These operations work on two stores that are open in this process.
const OF_TWO_STORES: &[&str] = &["Views::merge_fork", "Views::follow"];

/// These operations work on a name, a number or one inode, or only return figures.
const OF_ONE: &[&str] = &[
    "Fs::announce_cached",
    "Fs::end_served",
    "Fs::forget",
    "Fs::getattr",
    "Fs::in_place_of",
    "Fs::is_referenced",
    "Fs::is_resized",
    "Fs::is_tight",
    "Fs::last_scrub",
    "Fs::leave_served",
    "Fs::lock_directory",
    "Fs::losses",
    "Fs::mkdir",
    "Fs::note_scrub",
    "Fs::readlink",
    "Fs::rmdir",
    "Fs::served",
    "Fs::served_transaction",
    "Fs::symlink",
    "Fs::tick",
    "Fs::tmpfile",
    "Fs::transactions",
    "Fs::user",
    "Views::all",
    "Views::and_around",
    "Views::beneath",
    "Views::by_number",
    "Views::clones",
    "Views::describe_keys",
    "Views::followed",
    "Views::forget",
    "Views::forget_ended",
    "Views::fs",
    "Views::hand_over_written",
    "Views::is_down",
    "Views::lend",
    "Views::list",
    "Views::mainline",
    "Views::number",
    "Views::numbers_taken",
    "Views::opened",
    "Views::reserve_inodes",
    "Views::reserve_inodes_of_mainline",
    "Views::snapshot_labels",
    "Views::snapshots",
    "Views::take_back",
    "Views::take_over_noted",
    "Views::takes_locks",
    "Views::tell_changed",
    "Views::tell_left",
    "Views::tick",
    "Views::untold",
    "Views::user",
    "Views::watch",
];

#[test]
fn no_operation_takes_memory_for_all_that_it_works_on() {
    let steps: Vec<Step> =
        [content::STEPS, trees::STEPS, views::STEPS].into_iter().flatten().copied().collect();
    let named: BTreeSet<&str> =
        steps.iter().flat_map(|(names, _)| *names).chain(OF_ONE).copied().collect();
    let mut all = coverage::public_operations(&["Fs", "Views"]);
    all.insert("verify".into());
    coverage::assert_named(&named, &all);

    let (most, mut w) = counting::most_during(World::new);
    let mut above = Vec::new();
    if most > MEMORY + BESIDE {
        above.push((&["filling"][..], most >> 20));
    }
    let only = std::env::var("KVFS_ONLY").unwrap_or_else(|_| "Fs::write".into());
    for (names, step) in steps {
        if !names.iter().any(|name| name.contains(&only)) {
            continue;
        }
        let most = counting::most_of_step(names, || step(&mut w));
        let listed = LISTED.iter().filter(|(name, _)| names.contains(name)).map(|(_, each)| each);
        let second = names.iter().any(|name| OF_TWO_STORES.contains(name));
        let second = if second { SECOND_STORE } else { 0 };
        if most > MEMORY + BESIDE + second + listed.sum::<usize>() * FILES as usize {
            above.push((names, most >> 20));
        }
    }
    assert!(above.is_empty(), "more than {} MiB: {above:?}", (MEMORY + BESIDE) >> 20);
}
