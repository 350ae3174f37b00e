//! After one defragmentation the files of a folder lie in the order of their names and near each
//! other, whatever was done with the tree before, and a second defragmentation has almost nothing
//! to write.
//!
//! `KVFS_MEASURE=1 cargo test -p kvfs --test it laid_by_name:: -- --nocapture` prints what reading
//! takes.

use std::sync::Arc;

use kvdb::{CreateOptions, Durability, Kvdb, TransactionOptions};
use kvfs::{Caller, FileKind, Fs, Ino, ROOT, ViewId, Views};

use crate::aged_tree::{
    Counted, DIRECTORIES, Disk, FILES, MEMORY, SIZE, TREE, ZONE_SIZE, aged, cold,
    defragment_by_name, directory, files, list, options, read_all, show, worked_with, write,
};

const EACH: usize = FILES / DIRECTORIES;
const ALL: u64 = (FILES * SIZE) as u64;

fn name(n: usize) -> String {
    format!("file{:05}", n % EACH)
}

/// Saves a file under another name first, as editors and `rsync` do.
fn save(fs: &Fs, dir: Ino, name: &str) {
    write(fs, dir, "new", SIZE);
    fs.rename(dir, b"new", dir, name.as_bytes(), Default::default()).unwrap();
}

fn mkdir(fs: &Fs, parent: Ino, name: &[u8]) -> Ino {
    fs.mkdir(parent, name, 0o755, Caller::default()).unwrap().ino
}

/// A new store with the files that `make` creates in its empty directory `tree`.
fn made(make: impl FnOnce(&Kvdb, &Fs, Ino)) -> Arc<Disk> {
    let disk = Arc::new(Disk::default());
    let create = CreateOptions { open: options(MEMORY), ..CreateOptions::default() };
    let db = Kvdb::create(disk.clone(), disk.env(), create).unwrap();
    let fs = files(&disk, &db, ZONE_SIZE);
    make(&db, &fs, mkdir(&fs, ROOT, TREE.as_bytes()));
    fs.shutdown().unwrap();
    drop(fs);
    db.close().unwrap();
    disk
}

/// Checks that the files lie in order after one defragmentation, that this writes each byte at most
/// twice, and that another one writes next to nothing.
fn assert_laid(what: &str, disk: &Arc<Disk>, read: impl Fn(&Arc<Disk>) -> Counted) {
    let before = show(&format!("{what}: read all"), read(disk));
    assert!(before.page_seeks * 4 >= FILES as u64, "{what}: {before:?}, so it has not aged");
    let written = defragment_by_name(disk);
    assert!(written <= 2 * ALL, "{what}: {written} bytes of {ALL}");
    let after = show(&format!("{what}: read all, by name"), read(disk));
    assert!(after.page_seeks * 20 <= FILES as u64, "{what}: {after:?}");
    let again = defragment_by_name(disk);
    assert!(again * 20 <= ALL, "{what}: {again} bytes, though all lies in order");
    let after = read(disk);
    assert!(after.page_seeks * 20 <= FILES as u64, "{what}, once more: {after:?}");
}

fn read_tree(disk: &Arc<Disk>) -> Counted {
    read_all(disk, ZONE_SIZE, TREE)
}

/// Reads a tree of any depth in the order of its listings, as `grep -r` does.
fn read_deep(disk: &Arc<Disk>) -> Counted {
    let (_db, fs) = cold(disk, ZONE_SIZE);
    assert_eq!(read_below(&fs, fs.resolve(TREE.as_bytes()).unwrap().ino), FILES);
    disk.counted()
}

/// Returns the number of files that were read.
fn read_below(fs: &Fs, dir: Ino) -> usize {
    let mut entries = Vec::new();
    fs.readdir(dir, 0, true, &mut |entry| {
        if !entry.name.starts_with(b".") {
            entries.push((entry.kind, entry.ino));
        }
        true
    })
    .unwrap();
    let read = |(kind, ino)| match kind {
        FileKind::Dir => read_below(fs, ino),
        _ => {
            assert_eq!(fs.read(ino, 0, SIZE as u32).unwrap().len(), SIZE);
            1
        }
    };
    entries.into_iter().map(read).sum()
}

/// The content of all files, in the order of their names.
fn contents(fs: &Fs) -> Vec<Vec<u8>> {
    let mut contents = Vec::new();
    for at in 0..DIRECTORIES {
        let dir = fs.resolve(&directory(TREE, at)).unwrap().ino;
        let files = list(fs, dir).into_iter();
        contents.extend(files.map(|(_, ino)| fs.read(ino, 0, SIZE as u32).unwrap().to_vec()));
    }
    assert_eq!(contents.len(), FILES);
    contents
}

#[test]
fn half_of_the_files_were_moved() {
    let mut n = 0;
    let disk = aged(|fs, directories, at, name| {
        n += 1;
        if n % 2 == 0 {
            let (from, to) = (directories[at], directories[n / 2 * 7 % DIRECTORIES]);
            let new = format!("moved{n:05}");
            fs.rename(from, name.as_bytes(), to, new.as_bytes(), Default::default()).unwrap();
        }
    });
    assert_laid("half moved", &disk, read_tree);
}

#[test]
fn a_mirror_was_brought_up_to_date_four_times() {
    let disk = worked_with(|_, fs, directories| {
        for time in 0..4 {
            for n in (time..FILES).step_by(4) {
                save(fs, directories[n / EACH], &name(n));
            }
            fs.sync_all().unwrap();
        }
    });
    assert_laid("rsync", &disk, read_tree);
}

#[test]
fn states_were_checked_out_back_and_forth() {
    let disk = worked_with(|_, fs, directories| {
        for checkout in 0..5 {
            for n in (checkout % 3..FILES).step_by(3) {
                let dir = directories[n / EACH];
                fs.unlink(dir, name(n).as_bytes()).unwrap();
                write(fs, dir, &name(n), SIZE);
            }
            fs.sync_all().unwrap();
        }
    });
    assert_laid("checkouts", &disk, read_tree);
}

#[test]
fn a_deep_tree_was_filled_in_turn() {
    let disk = made(|_, fs, tree| {
        let (mut level, mut all) = (vec![tree], vec![tree]);
        for _ in 0..6 {
            let both = |dir: Ino| ["left", "right"].map(|half| mkdir(fs, dir, half.as_bytes()));
            level = level.into_iter().flat_map(both).collect();
            all.extend(&level);
        }
        for n in 0..FILES {
            write(fs, all[n % all.len()], &format!("file{n:05}"), SIZE);
            if n % 100 == 99 {
                fs.sync_all().unwrap();
            }
        }
    });
    assert_laid("a deep tree", &disk, read_deep);
}

#[test]
fn packages_have_files_before_and_after_their_subdirectories() {
    let disk = made(|_, fs, tree| {
        let package = |n: usize| {
            let package = mkdir(fs, tree, format!("package{n:03}").as_bytes());
            (package, mkdir(fs, package, b"lib"))
        };
        let packages: Vec<(Ino, Ino)> = (0..FILES / 10).map(package).collect();
        for file in 0..10 {
            for (n, (package, lib)) in packages.iter().enumerate() {
                match file {
                    0 => write(fs, *package, "build", SIZE),
                    1 => write(fs, *package, "readme", SIZE),
                    _ => write(fs, *lib, &format!("file{file}"), SIZE),
                };
                if n % 100 == 99 {
                    fs.sync_all().unwrap();
                }
            }
        }
    });
    assert_laid("packages", &disk, read_deep);
}

#[test]
fn the_files_were_made_in_twenty_transactions() {
    let disk = made(|db, fs, tree| {
        let directories: Vec<Ino> =
            (0..DIRECTORIES).map(|at| mkdir(fs, tree, &directory("", at)[1..])).collect();
        let views = Views::new(db.clone(), fs.clone());
        for transaction in 0..20 {
            let id = views.begin(TransactionOptions::default()).unwrap();
            let within = views.fs(&ViewId::Transaction(id)).unwrap();
            for n in (transaction..FILES).step_by(20) {
                write(&within, directories[n / EACH], &name(n), SIZE);
            }
            drop(within);
            views.commit(id, Durability::Synced).unwrap();
        }
    });
    assert_laid("twenty transactions", &disk, read_tree);
}

#[test]
fn a_big_directory_was_renamed_after_its_files_were_saved() {
    let disk = worked_with(|_, fs, directories| {
        for n in 0..FILES {
            let n = n * 1237 % FILES;
            save(fs, directories[n / EACH], &name(n));
            if n.is_multiple_of(500) {
                fs.sync_all().unwrap();
            }
        }
        let tree = fs.resolve(TREE.as_bytes()).unwrap().ino;
        let rename = |from: &[u8], to: &[u8]| {
            fs.rename(tree, from, tree, to, Default::default()).unwrap();
        };
        // Renames each directory.
        for at in 0..DIRECTORIES / 2 {
            let (one, other) = (directory("", at), directory("", DIRECTORIES - 1 - at));
            rename(&one[1..], b"aside");
            rename(&other[1..], &one[1..]);
            rename(b"aside", &other[1..]);
        }
    });
    assert_laid("saved and renamed", &disk, read_tree);
}

#[test]
fn a_renamed_directory_whose_files_lie_in_order_is_not_written_again() {
    let disk = worked_with(|_, fs, _| {
        let tree = fs.resolve(TREE.as_bytes()).unwrap().ino;
        let (old, new) = (directory("", 20), b"another".to_vec());
        fs.rename(tree, &old[1..], tree, &new, Default::default()).unwrap();
    });
    let written = defragment_by_name(&disk);
    assert!(written * 20 <= ALL, "{written} bytes");
}

#[test]
fn snapshots_and_a_clone_of_an_aged_tree_keep_their_content_and_the_clone_follows() {
    let disk = worked_with(|db, fs, directories| {
        for n in 0..FILES {
            let n = n * 1237 % FILES;
            save(fs, directories[n / EACH], &name(n));
            if n.is_multiple_of(500) {
                fs.sync_all().unwrap();
            }
        }
        let views = Views::new(db.clone(), fs.clone());
        views.snapshot(&ViewId::Mainline, "aged", Durability::Synced).unwrap();
        views.clone_snapshot("aged", "clone").unwrap();
    });
    let all = [
        ViewId::Mainline,
        ViewId::Clone("clone".into()),
        ViewId::Snapshot("aged".into()),
        ViewId::Snapshot("before".into()),
    ];
    let observed = || {
        let (db, fs) = cold(&disk, ZONE_SIZE);
        let views = Views::new(db, fs);
        let of = |view: &ViewId| contents(&views.fs(view).unwrap());
        all.each_ref().map(of)
    };
    let read_clone = || {
        let (db, fs) = cold(&disk, ZONE_SIZE);
        let views = Views::new(db, fs);
        let clone = views.fs(&ViewId::Clone("clone".into())).unwrap();
        contents(&clone);
        disk.counted()
    };
    let before = observed();
    assert!(before[0] == before[1] && before[0] == before[2] && before[0] != before[3]);
    assert_laid("under snapshots and a clone", &disk, read_tree);
    let read = show("its clone: read all, by name", read_clone());
    assert!(read.page_seeks * 20 <= FILES as u64, "{read:?}");
    assert!(observed() == before, "nothing that is read has changed");
}
