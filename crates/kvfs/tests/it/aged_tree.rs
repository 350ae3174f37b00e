//! Tests of the places of files in a tree that was not made directory by directory.
//!
//! `KVFS_MEASURE=1 cargo test -p kvfs --test it aged_tree:: -- --nocapture` prints what reading
//! takes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use env::{Machine, Simulated};
use kvdb::{CreateOptions, DefragOptions, Kvdb, OpenOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT};
use zones::{Purpose, Watch, WatchedDevice};

pub const DIRECTORIES: usize = 50;
pub const FILES: usize = 5_000;
pub const SIZE: usize = 4096;
pub const ZONE_SIZE: u64 = 512 << 10;
/// A disk passes over a gap like this in less time than a seek takes.
const GAP: u64 = 64 << 10;
pub const MEMORY: usize = 64 << 20;

/// A disk with one head.
pub type Disk = WatchedDevice<Head>;

#[derive(Default)]
pub struct Head {
    head: AtomicU64,
    seeks: AtomicU64,
    reads: AtomicU64,
    /// The same of file data alone.
    page_head: AtomicU64,
    page_seeks: AtomicU64,
    /// Bytes of file data.
    written: AtomicU64,
    opened: AtomicU64,
}

impl Head {
    /// Each environment has another seed: numbers that a store takes for unique must be unique.
    pub fn env(&self) -> Arc<Simulated> {
        Arc::new(Simulated::new(self.opened.fetch_add(1, Relaxed)))
    }

    fn moved(&self, purpose: Purpose, offset: u64, len: u64) {
        let seeks = |head: u64| u64::from(offset < head || offset > head + GAP);
        let head = self.head.swap(offset + len, Relaxed);
        self.seeks.fetch_add(seeks(head), Relaxed);
        if purpose == Purpose::Pages {
            let head = self.page_head.swap(offset + len, Relaxed);
            self.page_seeks.fetch_add(seeks(head), Relaxed);
        }
    }

    fn begin(&self) {
        for counter in [&self.seeks, &self.reads, &self.page_seeks] {
            counter.store(0, Relaxed);
        }
    }

    pub fn counted(&self) -> Counted {
        Counted {
            seeks: self.seeks.load(Relaxed),
            reads: self.reads.load(Relaxed),
            page_seeks: self.page_seeks.load(Relaxed),
        }
    }
}

/// The cost of reading.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    pub seeks: u64,
    pub reads: u64,
    /// Seeks from one place of file data to the next one, whatever was read in between.
    pub page_seeks: u64,
}

impl Watch for Head {
    fn reads(&self, purpose: Purpose, offset: u64, len: u64) -> io::Result<()> {
        self.reads.fetch_add(1, Relaxed);
        self.moved(purpose, offset, len);
        Ok(())
    }
    fn writes(&self, purpose: Purpose, _: u64, len: u64) -> io::Result<()> {
        if purpose == Purpose::Pages {
            self.written.fetch_add(len, Relaxed);
        }
        Ok(())
    }
}

pub fn options(memory: usize) -> OpenOptions {
    OpenOptions { memory, threads: false, zero_journal: false, ..OpenOptions::default() }
}

pub fn files(disk: &Disk, db: &Kvdb, zone_size: u64) -> Fs {
    let options = FsOptions { zone_size: Some(zone_size), ..FsOptions::default() };
    Fs::open(db.clone(), disk.env(), options).unwrap()
}

/// Nothing of the store is in memory.
pub fn cold(disk: &Arc<Disk>, zone_size: u64) -> (Kvdb, Fs) {
    let db = Kvdb::open(disk.clone(), disk.env(), options(MEMORY)).unwrap().0;
    let fs = files(disk, &db, zone_size);
    disk.begin();
    (db, fs)
}

/// Reads the tree as it was made.
pub const TREE: &str = "tree";
/// Reads its copy by reference.
const COPY: &str = "copy";

pub fn directory(top: &str, at: usize) -> Vec<u8> {
    format!("{top}/directory{at:02}").into_bytes()
}

pub fn write(fs: &Fs, parent: Ino, name: &str, size: usize) -> Ino {
    let made = fs.mknod(parent, name.as_bytes(), FileKind::File, 0o644, 0, Caller::default());
    let ino = made.unwrap().ino;
    // Does not compress.
    let mut state = ino.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let content: Vec<u8> = (0..size)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect();
    assert_eq!(fs.write(ino, 0, &content, Default::default()).unwrap() as usize, size);
    fs.forget(ino, 1);
    ino
}

/// Makes files in each of the directories in turn, with a sync from time to time.
fn round_robin(zone_size: u64) -> Arc<Disk> {
    let disk = Arc::new(Disk::default());
    let create = CreateOptions { open: options(MEMORY), ..CreateOptions::default() };
    let db = Kvdb::create(disk.clone(), disk.env(), create).unwrap();
    let fs = files(&disk, &db, zone_size);
    let mkdir = |parent, name: &[u8]| fs.mkdir(parent, name, 0o755, Caller::default()).unwrap().ino;
    let tree = mkdir(ROOT, TREE.as_bytes());
    let directories: Vec<Ino> =
        (0..DIRECTORIES).map(|at| mkdir(tree, &directory("", at)[1..])).collect();
    for file in 0..FILES {
        write(&fs, directories[file % DIRECTORIES], &format!("file{file:05}"), SIZE);
        if file % 500 == 499 {
            fs.sync_all().unwrap();
        }
    }
    fs.shutdown().unwrap();
    drop(fs);
    db.close().unwrap();
    disk
}

/// Defragments as `kvfs defrag` does.
fn defragment(disk: &Arc<Disk>) {
    let open = OpenOptions { threads: true, ..options(MEMORY) };
    let db = Kvdb::open(disk.clone(), Arc::new(Machine::default()), open).unwrap().0;
    assert!(db.defragment(DefragOptions::default()).unwrap());
    db.wait_for_defragment();
    db.close().unwrap();
}

/// Defragments as `kvfs defrag` does, which knows that the store has files. Returns the bytes of
/// file data that it has written.
pub fn defragment_by_name(disk: &Arc<Disk>) -> u64 {
    let written = disk.written.load(Relaxed);
    let open = OpenOptions { threads: true, ..options(MEMORY) };
    let db = Kvdb::open(disk.clone(), Arc::new(Machine::default()), open).unwrap().0;
    kvfs::lay_by_name(&db);
    assert!(db.defragment(DefragOptions::default()).unwrap());
    db.wait_for_defragment();
    db.close().unwrap();
    disk.written.load(Relaxed) - written
}

/// Reads as `grep -r` does.
pub fn read_all(disk: &Arc<Disk>, zone_size: u64, top: &str) -> Counted {
    let (_db, fs) = cold(disk, zone_size);
    let mut read = 0;
    for at in 0..DIRECTORIES {
        let dir = fs.resolve(&directory(top, at)).unwrap().ino;
        for (_, ino) in list(&fs, dir) {
            assert_eq!(fs.read(ino, 0, SIZE as u32).unwrap().len(), SIZE);
            read += 1;
        }
    }
    assert_eq!(read, FILES);
    disk.counted()
}

/// Lists as `ls -lR` does: names and nodes of everything.
fn list_all(disk: &Arc<Disk>, zone_size: u64, top: &str) -> Counted {
    let (_db, fs) = cold(disk, zone_size);
    let mut listed = 0;
    for at in 0..DIRECTORIES {
        listed += list(&fs, fs.resolve(&directory(top, at)).unwrap().ino).len();
    }
    assert_eq!(listed, FILES);
    disk.counted()
}

/// Lists one directory as `ls -l` does.
fn list_one(disk: &Arc<Disk>, zone_size: u64, top: &str) -> Counted {
    let (_db, fs) = cold(disk, zone_size);
    let dir = fs.resolve(&directory(top, 20)).unwrap().ino;
    disk.begin();
    assert_eq!(list(&fs, dir).len(), FILES / DIRECTORIES);
    disk.counted()
}

pub fn list(fs: &Fs, dir: Ino) -> Vec<(Vec<u8>, Ino)> {
    let mut all = Vec::new();
    fs.readdir(dir, 0, true, &mut |entry| {
        all.push((entry.name.to_vec(), entry.ino));
        true
    })
    .unwrap();
    all.retain(|(name, _)| name != b"." && name != b"..");
    all
}

pub fn show(what: &str, counted: Counted) -> Counted {
    if std::env::var_os("KVFS_MEASURE").is_some() {
        println!(
            "{what:40} {:6} seeks {:6} reads, {:.3} seeks a file",
            counted.seeks,
            counted.reads,
            counted.seeks as f64 / FILES as f64
        );
    }
    counted
}

#[test]
fn the_files_of_a_directory_are_read_together_though_those_of_all_directories_were_made_in_turn() {
    let disk = round_robin(ZONE_SIZE);
    let read = show("zones: read all", read_all(&disk, ZONE_SIZE, TREE));
    assert!(read.seeks * 4 <= FILES as u64, "{read:?}: what each sync wrote lies in order");
    let listed = show("zones: list one", list_one(&disk, ZONE_SIZE, TREE));
    assert!(listed.reads <= 10, "{listed:?}");
    defragment(&disk);
    let read = show("zones: read all, defragmented", read_all(&disk, ZONE_SIZE, TREE));
    assert!(read.seeks * 20 <= FILES as u64, "{read:?}: all lies in order");
    let listed = show("zones: list one, defragmented", list_one(&disk, ZONE_SIZE, TREE));
    assert!(listed.reads <= 10, "{listed:?}");
}

#[test]
fn without_zones_each_file_of_such_a_tree_is_a_seek() {
    let disk = round_robin(0);
    let read = show("no zones: read all", read_all(&disk, 0, TREE));
    assert!(read.seeks >= FILES as u64, "{read:?}");
    show("no zones: list one", list_one(&disk, 0, TREE));
    defragment(&disk);
    let read = show("no zones: read all, defragmented", read_all(&disk, 0, TREE));
    assert!(read.seeks >= FILES as u64, "{read:?}");
    show("no zones: list one, defragmented", list_one(&disk, 0, TREE));
}

#[test]
fn a_copy_by_reference_has_its_names_and_nodes_in_order_and_its_pages_after_a_defragmentation() {
    let disk = round_robin(0);
    show("no zones: list all", list_all(&disk, 0, TREE));
    let (db, fs) = cold(&disk, 0);
    let from = fs.resolve(TREE.as_bytes()).unwrap().ino;
    fs.clone_tree(from, ROOT, COPY.as_bytes()).unwrap();
    fs.shutdown().unwrap();
    drop(fs);
    db.close().unwrap();
    let listed = show("a copy: list all", list_all(&disk, 0, COPY));
    assert!(listed.seeks * 20 <= FILES as u64, "{listed:?}: names and nodes lie in order");
    let listed = show("a copy: list one", list_one(&disk, 0, COPY));
    assert!(listed.reads <= 10, "{listed:?}");
    let read = show("a copy: read all", read_all(&disk, 0, COPY));
    assert!(read.seeks >= FILES as u64, "{read:?}: pages lie where the original's do");
    defragment(&disk);
    let read = show("a copy: read all, defragmented", read_all(&disk, 0, COPY));
    assert!(read.seeks * 20 <= FILES as u64, "{read:?}");
    show("its original: read all, defragmented", read_all(&disk, 0, TREE));
}

/// The tree as `kvfs import` makes it from a tar stream: directory by directory, many files at
/// once, in the arbitrary order of the host's directories.
pub fn import() -> Arc<Disk> {
    let disk = Arc::new(Disk::default());
    let create = CreateOptions { open: options(MEMORY), ..CreateOptions::default() };
    let db = Kvdb::create(disk.clone(), disk.env(), create).unwrap();
    let fs = files(&disk, &db, ZONE_SIZE);
    let mkdir = |parent, name: &[u8]| fs.mkdir(parent, name, 0o755, Caller::default()).unwrap().ino;
    let tree = mkdir(ROOT, TREE.as_bytes());
    let each = FILES / DIRECTORIES;
    let mut waiting = Vec::new();
    for at in 0..DIRECTORIES {
        let parent = mkdir(tree, &directory("", at)[1..]);
        for file in 0..each {
            // 37 and 100 have no common factor, so each number occurs once.
            let file = file * 37 % each;
            let content: Vec<u8> = (0..SIZE as u64)
                .map(|byte| (byte ^ (at * each + file) as u64).wrapping_mul(0x9e37_79b9) as u8)
                .collect();
            waiting.push(kvfs::Whole {
                parent,
                name: format!("file{file:05}").into_bytes().into(),
                kind: FileKind::File,
                perm: 0o644,
                uid: 0,
                gid: 0,
                rdev: 0,
                atime: Default::default(),
                mtime: Default::default(),
                content: content.into(),
            });
            if waiting.len() == 1000 {
                fs.make_whole(&std::mem::take(&mut waiting)).unwrap();
            }
        }
    }
    assert!(waiting.is_empty());
    fs.shutdown().unwrap();
    drop(fs);
    db.close().unwrap();
    disk
}

#[test]
fn what_is_imported_lies_in_the_order_of_the_tree_at_once() {
    let disk = import();
    let listed = show("imported: list all", list_all(&disk, ZONE_SIZE, TREE));
    assert!(listed.seeks * 20 <= FILES as u64, "{listed:?}");
    let read = show("imported: read all", read_all(&disk, ZONE_SIZE, TREE));
    assert!(read.seeks * 20 <= FILES as u64, "{read:?}: pages lie in order, too");
}

#[test]
fn what_is_received_whole_lies_in_the_order_of_its_numbers_at_once() {
    let source = round_robin(ZONE_SIZE);
    let (db, fs) = cold(&source, ZONE_SIZE);
    fs.sync_all().unwrap();
    db.snapshot("sent").unwrap();
    let mut stream = Vec::new();
    db.send("sent", None, &mut stream, None).unwrap();

    let disk = Arc::new(Disk::default());
    let create = CreateOptions { open: options(MEMORY), ..CreateOptions::default() };
    let other = Kvdb::create(disk.clone(), disk.env(), create).unwrap();
    other.receive(&stream[..], &Default::default()).unwrap();
    other.close().unwrap();
    drop(other);
    let read = show("received: read all", read_all(&disk, ZONE_SIZE, TREE));
    assert!(
        read.seeks * 20 <= FILES as u64,
        "{read:?}: the numbers are those of the source's zones"
    );
}

/// A tree that is changed file by file, in an order that is not that of names: 1237 and the number
/// of files have no factor in common, so `age` is called once for each of them. A snapshot keeps
/// the tree as it was before.
pub fn aged(mut age: impl FnMut(&Fs, &[Ino], usize, &str)) -> Arc<Disk> {
    worked_with(|_, fs, directories| {
        let each = FILES / DIRECTORIES;
        for n in 0..FILES {
            let n = n * 1237 % FILES;
            age(fs, directories, n / each, &format!("file{:05}", n % each));
            if n.is_multiple_of(500) {
                fs.sync_all().unwrap();
            }
        }
    })
}

/// An imported tree that `work` has changed, with a snapshot of the state before.
pub fn worked_with(work: impl FnOnce(&Kvdb, &Fs, &[Ino])) -> Arc<Disk> {
    let disk = import();
    let (db, fs) = cold(&disk, ZONE_SIZE);
    fs.sync_all().unwrap();
    db.snapshot("before").unwrap();
    let directories: Vec<Ino> =
        (0..DIRECTORIES).map(|at| fs.resolve(&directory(TREE, at)).unwrap().ino).collect();
    work(&db, &fs, &directories);
    fs.shutdown().unwrap();
    drop(fs);
    db.close().unwrap();
    disk
}

/// Checks that a tree, which is read at many seeks, lies in order after one defragmentation, that
/// this writes each byte at most twice, and that another one has next to nothing to write.
fn assert_laid_by_name(what: &str, disk: &Arc<Disk>, top: &str) {
    let read = show(&format!("{what}: read all"), read_all(disk, ZONE_SIZE, top));
    assert!(read.seeks * 4 >= FILES as u64, "{what}: {read:?}");
    let written = defragment_by_name(disk);
    let all = (FILES * SIZE) as u64;
    assert!((all / 4..=all * 2).contains(&written), "{what}: {written} bytes of {all}");
    let read = show(&format!("{what}: read all, by name"), read_all(disk, ZONE_SIZE, top));
    assert!(read.seeks * 10 <= FILES as u64, "{what}: {read:?}");
    let again = defragment_by_name(disk);
    assert!(again * 20 <= all, "{what}: {again} bytes, though all lies in order");
}

#[test]
fn files_that_were_saved_by_a_rename_lie_in_the_order_of_names_after_a_defragmentation() {
    let disk = aged(|fs, directories, at, name| {
        write(fs, directories[at], "new", SIZE);
        let to = directories[at];
        fs.rename(to, b"new", to, name.as_bytes(), Default::default()).unwrap();
    });
    assert_laid_by_name("saved by rename", &disk, TREE);
}

#[test]
fn files_that_were_saved_through_another_folder_lie_in_the_order_of_names() {
    let disk = aged(|fs, directories, at, name| {
        let aside = directories[0];
        write(fs, aside, "new", SIZE);
        fs.rename(aside, b"new", directories[at], name.as_bytes(), Default::default()).unwrap();
    });
    assert_laid_by_name("saved through another folder", &disk, TREE);
}

#[test]
fn files_that_were_moved_lie_in_the_order_of_names() {
    let mut moved = 0;
    let disk = aged(|fs, directories, at, name| {
        moved += 1;
        let (to, new) = (moved * 7 % DIRECTORIES, format!("moved{moved:05}"));
        let from = directories[at];
        fs.rename(from, name.as_bytes(), directories[to], new.as_bytes(), Default::default())
            .unwrap();
    });
    assert_laid_by_name("moved", &disk, TREE);
}

#[test]
fn a_farm_of_hard_links_lies_in_the_order_of_its_names() {
    let (mut farm, mut linked) = (Vec::new(), 0);
    let disk = aged(|fs, directories, at, name| {
        let mkdir =
            |parent, name: &[u8]| fs.mkdir(parent, name, 0o755, Caller::default()).unwrap().ino;
        if farm.is_empty() {
            let top = mkdir(ROOT, b"farm");
            farm = (0..DIRECTORIES).map(|at| mkdir(top, &directory("", at)[1..])).collect();
        }
        let ino = fs.lookup(directories[at], name.as_bytes()).unwrap().ino;
        fs.link(ino, farm[linked % DIRECTORIES], format!("link{linked:05}").as_bytes()).unwrap();
        linked += 1;
    });
    assert_laid_by_name("hard links", &disk, "farm");
}

#[test]
fn a_copy_by_reference_and_its_original_lie_in_order_together_and_stay_shared() {
    let disk = round_robin(0);
    let (db, fs) = cold(&disk, 0);
    let from = fs.resolve(TREE.as_bytes()).unwrap().ino;
    fs.clone_tree(from, ROOT, COPY.as_bytes()).unwrap();
    fs.shutdown().unwrap();
    drop(fs);
    db.close().unwrap();
    let written = defragment_by_name(&disk);
    assert!(written < (FILES * SIZE) as u64 * 3 / 2, "{written} bytes: each value once");
    for top in [COPY, TREE] {
        let read = show(&format!("shared: read all of the {top}"), read_all(&disk, 0, top));
        assert!(read.seeks * 10 <= FILES as u64, "{top}: {read:?}");
    }
}
