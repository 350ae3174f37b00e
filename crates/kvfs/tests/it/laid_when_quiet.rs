//! Tests that files lie in the order of their names after the store was quiet, without a manual
//! defragmentation.
//!
//! `KVFS_MEASURE=1 cargo test -p kvfs --test it laid_when_quiet:: -- --nocapture` prints what
//! reading takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use env::Machine;
use kvdb::{Kvdb, OpenOptions};
use kvfs::{Fs, FsOptions, Ino};
use zones::Job;

use crate::aged_tree::{
    DIRECTORIES, Disk, FILES, MEMORY, SIZE, TREE, ZONE_SIZE, directory, import, options, read_all,
    show, write,
};

const EACH: usize = FILES / DIRECTORIES;
const ALL: u64 = (FILES * SIZE) as u64;

/// Opens the store as a mount does, works with it, and leaves it alone until it comes to rest.
/// Returns the bytes that passes have written.
fn after_quiet(
    disk: &Arc<Disk>,
    lay_when_quiet: bool,
    work: impl FnOnce(&Kvdb, &Fs, &[Ino]),
) -> u64 {
    let open = OpenOptions {
        threads: true,
        flush_interval: Duration::from_millis(10),
        // Hundreds of files are saved between two commits. A pass that began during this would
        // count only the data written by then, and the rest might be too little for another pass.
        idle_flush: Duration::from_secs(2),
        lay_when_quiet,
        ..options(MEMORY)
    };
    let db = Kvdb::open(disk.clone(), Arc::new(Machine::default()), open).unwrap().0;
    let of_files = FsOptions { zone_size: Some(ZONE_SIZE), ..FsOptions::default() };
    let fs = Fs::open(db.clone(), Arc::new(Machine::default()), of_files).unwrap();
    let directories: Vec<Ino> =
        (0..DIRECTORIES).map(|at| fs.resolve(&directory(TREE, at)).unwrap().ino).collect();
    work(&db, &fs, &directories);
    fs.sync_all().unwrap();
    come_to_rest(&db);
    let laid = db.stats().io.written_by(Job::Laying);
    fs.shutdown().unwrap();
    drop(fs);
    db.close().unwrap();
    laid
}

fn come_to_rest(db: &Kvdb) {
    let begun = Instant::now();
    while !db.stats().at_rest {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", db.stats());
        std::thread::yield_now();
    }
}

/// Saves a file under another name first.
fn save(fs: &Fs, directories: &[Ino], n: usize) {
    let (dir, name) = (directories[n / EACH], format!("file{:05}", n % EACH));
    write(fs, dir, "new", SIZE);
    fs.rename(dir, b"new", dir, name.as_bytes(), Default::default()).unwrap();
}

/// Saves each file, in an order that is not that of names.
fn save_all(_: &Kvdb, fs: &Fs, directories: &[Ino]) {
    for n in (0..FILES).map(|n| n * 1237 % FILES) {
        save(fs, directories, n);
        if n.is_multiple_of(500) {
            fs.sync_all().unwrap();
        }
    }
}

#[test]
fn files_that_were_saved_by_a_rename_are_laid_while_the_store_is_quiet() {
    let disk = import();
    assert_eq!(after_quiet(&disk, false, save_all), 0);
    let read = show("saved by rename: read all", read_all(&disk, ZONE_SIZE, TREE));
    assert!(read.page_seeks * 4 >= FILES as u64, "{read:?}, so it has not aged");

    for what in ["saved by rename, quiet: read all", "once more: read all"] {
        let laid = after_quiet(&disk, true, save_all);
        assert!((ALL / 2..=ALL * 5 / 2).contains(&laid), "{laid} bytes of {ALL}");
        let read = show(what, read_all(&disk, ZONE_SIZE, TREE));
        assert!(read.page_seeks * 20 <= FILES as u64, "{read:?}");
    }

    let laid = after_quiet(&disk, true, |_, _, _| ());
    assert_eq!(laid, 0, "nothing was written");
}

/// Saves a quarter of the files at a time. Each of these passes finds some files that an earlier
/// pass has moved, and whose neighbours have moved elsewhere since.
#[test]
fn each_byte_that_is_saved_is_laid_twice_at_most() {
    let disk = import();
    let laid = after_quiet(&disk, true, |db, fs, directories| {
        for saved in 1..=FILES {
            save(fs, directories, saved * 1237 % FILES);
            if saved.is_multiple_of(250) {
                fs.sync_all().unwrap();
            }
            if saved.is_multiple_of(FILES / 4) {
                come_to_rest(db);
            }
        }
    });
    assert!((ALL / 2..=ALL * 5 / 2).contains(&laid), "{laid} bytes for {ALL}");
    // A pass may not write enough to lay the whole tree for a quarter of its files.
    show("saved now and then: read all", read_all(&disk, ZONE_SIZE, TREE));
}
