//! Counts the requests that a reader of a published store waits for one after the other, until it
//! has the first byte of a file deep in the tree, and until it has seen all names.

use std::sync::Arc;
use std::time::Duration;

use env::Machine;
use kvdb::Durability;
use kvfs::{FileKind, Fs, FsOptions, Ino, ROOT, ViewId, Views};
use objects::{CountObjects, RoundObjects};
use zones::Purpose;

use crate::forked::{Bucket, Store};

/// The head and the state come before these; nothing is fetched ahead, so each wait is a round.
const MOST_WAITS: u64 = 4;

/// Requests that are sent together arrive within this time, even on a machine with much to do.
const QUIET: Duration = Duration::from_millis(300);

/// Returns whether a measurement holds at one of a few attempts. Requests that are sent together
/// count as several rounds if a thread of a machine under load is not scheduled for `QUIET`.
fn holds(measured: impl Fn() -> bool) -> bool {
    (0..3).any(|_| measured())
}

/// A tree of six times `width` directories with files in the fifth level below the root.
fn tree(width: usize) -> Store {
    let store = Store::new();
    let w = &store.w;
    for a in 0..6 {
        let first = w.dir(ROOT, &format!("a{a}"));
        for b in 0..width {
            let second = w.dir(first, &format!("b{b}"));
            for c in 0..10 {
                let third = w.dir(second, &format!("c{c}"));
                let last = w.dir(w.dir(third, "d"), "e");
                (0..6).for_each(|n| _ = w.file_with(last, &format!("file{n}"), &[7; 3000]));
            }
        }
    }
    store
}

/// A reader of a published store, whose requests are answered in rounds.
struct Reader {
    /// The view that is read.
    fs: Fs,
    views: Views,
    rounds: Arc<RoundObjects>,
    counts: Arc<CountObjects>,
}

impl Reader {
    fn of(store: &Store) -> Reader {
        let bucket = Bucket::new();
        let rounds = Arc::new(RoundObjects::new(bucket.0.clone(), QUIET));
        let counts = Arc::new(CountObjects::new(rounds.clone()));
        let db = bucket.read_by(store, "tree", counts.clone());
        let options = FsOptions { read_only: true, ..FsOptions::default() };
        let fs = Fs::open(db.clone(), Arc::new(Machine::default()), options).expect("opened");
        let views = Views::new(db, fs.clone());
        Reader { fs, views, rounds, counts }
    }

    fn of_snapshot(store: &Store, name: &str) -> Reader {
        let reader = Reader::of(store);
        let fs = reader.views.fs(&ViewId::Snapshot(name.into())).expect("opened");
        Reader { fs, ..reader }
    }

    /// Returns the names of a directory with their numbers and kinds, without `.` and `..`.
    fn list(&self, dir: Ino) -> Vec<(Ino, FileKind)> {
        let mut entries = Vec::new();
        let each = &mut |entry: kvfs::DirEntry<'_>| {
            if !matches!(entry.name, b"." | b"..") {
                entries.push((entry.ino, entry.kind));
            }
            true
        };
        self.fs.readdir(dir, 0, true, each).expect("listed");
        entries
    }

    /// Reads the byte at this offset of a file, and returns the rounds since the store was opened.
    fn rounds_to_byte(&self, path: &[u8], offset: u64) -> u64 {
        assert_eq!((self.list(ROOT).len() >= 6, self.rounds.rounds()), (true, 0));
        let found = self.fs.resolve(path).expect("found");
        assert_eq!(self.fs.read(found.ino, offset, 1).expect("read").to_vec(), [7]);
        self.rounds.rounds()
    }
}

#[test]
fn the_first_byte_of_a_file_deep_in_a_tree_is_there_after_few_rounds() {
    let (bucket, store) = (Bucket::new(), tree(5));
    let db = bucket.read(&store, "tree");
    let stats = || db.remote_stats().expect("its zones lie in a bucket");
    let options = FsOptions { read_only: true, ..FsOptions::default() };
    let fs = Fs::open(db.clone(), store.w.env.clone(), options).expect("opened");
    let mut names = 0;
    let each = &mut |_: kvfs::DirEntry<'_>| {
        names += 1;
        true
    };
    fs.readdir(ROOT, 2, true, each).expect("listed");
    assert_eq!((names, stats().waits), (6, 0), "an opening and a list of the root wait for none");

    let found = fs.resolve(b"a3/b2/c7/d/e/file5").expect("found");
    assert_eq!(fs.read(found.ino, 0, 1).expect("read").to_vec(), [7]);
    let (waits, gets) = (stats().waits, stats().gets);
    println!("{waits} waits, requests by purpose: {gets:?}");
    assert!((1..=MOST_WAITS).contains(&waits), "{waits} waits");
    assert_eq!(gets[Purpose::Index as usize], 0, "the index came with the state");
}

#[test]
fn names_and_nodes_of_a_path_come_in_one_round_and_the_byte_in_the_next() {
    let small = tree(1);
    let large = tree(20);
    // Files that are much larger than their data.
    let w = &large.w;
    let sparse: Vec<Ino> = (0..3).map(|n| w.file(ROOT, &format!("sparse{n}"))).collect();
    for ino in sparse {
        (0..400).for_each(|page| w.write(ino, page << 30, &[7; 4096]));
    }
    let path = b"a3/b0/c7/d/e/file5";
    let are_few = holds(|| {
        let of_small = Reader::of(&small).rounds_to_byte(path, 0);
        let of_large = Reader::of(&large).rounds_to_byte(path, 0);
        let of_sparse = Reader::of(&large).rounds_to_byte(b"sparse1", 200 << 30);
        println!("{of_small} rounds, {of_large} in a large store, {of_sparse} in a sparse file");
        [of_small, of_large, of_sparse].iter().all(|rounds| (1..=2).contains(rounds))
    });
    assert!(are_few, "more rounds than two");
}

#[test]
fn of_a_snapshot_that_shares_nothing_the_first_byte_takes_as_many() {
    let store = tree(20);
    let w = &store.w;
    store.views.snapshot(&ViewId::Mainline, "monday", Durability::Buffered).expect("made");
    for a in 0..6 {
        w.fs.remove_tree(ROOT, format!("a{a}").as_bytes()).expect("removed");
    }
    for info in w.db.dictionaries() {
        w.db.compact(info.id).expect("merged");
    }
    let are_few = holds(|| {
        let reader = Reader::of_snapshot(&store, "monday");
        let rounds = reader.rounds_to_byte(b"a3/b7/c7/d/e/file5", 0);
        println!("{rounds} rounds");
        (1..=2).contains(&rounds)
    });
    assert!(are_few, "more rounds than two");
}

#[test]
fn a_walk_through_all_names_takes_few_rounds() {
    let store = tree(20);
    let are_few = holds(|| {
        let reader = Reader::of(&store);
        let (mut found, mut directories) = (0, vec![ROOT]);
        while let Some(dir) = directories.pop() {
            for (ino, kind) in reader.list(dir) {
                found += 1;
                if kind == FileKind::Dir {
                    directories.push(ino);
                }
            }
        }
        assert_eq!(found, 6 + 6 * 20 + 6 * 20 * 10 * (3 + 6));
        let (rounds, gets) = (reader.rounds.rounds(), reader.counts.counts().get);
        println!("{rounds} rounds, {gets:?}");
        assert!(gets.requests <= 60 && gets.bytes <= 24 << 20, "{gets:?}");
        (1..=8).contains(&rounds)
    });
    assert!(are_few, "more rounds than eight");
}
