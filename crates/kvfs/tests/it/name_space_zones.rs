//! The files of a directory get consecutive inode numbers, since everything in the store is sorted
//! by these. No number is assigned twice, whatever happens to a directory that has reserved some.

use crate::world;
use std::collections::BTreeSet;

use crate::world::World;
use env::Simulated;
use kvdb::{Batch, Durability, TransactionOptions};
use kvfs::{FsOptions, Ino, ROOT, ViewId, Views};

/// Files of 4 KiB in 512 KiB, the size of a zone.
const ZONE: usize = 128;

fn is_clean(w: &World) {
    let report = kvfs::verify(&w.db).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Returns the number of sequences of successive numbers.
fn sequences(numbers: &[Ino]) -> usize {
    let sorted: BTreeSet<Ino> = numbers.iter().copied().collect();
    assert_eq!(sorted.len(), numbers.len(), "no number is given twice");
    let sorted: Vec<Ino> = sorted.into_iter().collect();
    1 + sorted.windows(2).filter(|pair| pair[1] != pair[0] + 1).count()
}

fn files(w: &World, dir: Ino, prefix: &str, count: usize) -> Vec<Ino> {
    (0..count).map(|n| w.file(dir, &format!("{prefix}{n}"))).collect()
}

#[test]
fn files_of_a_directory_follow_each_other_whatever_is_made_elsewhere_in_between() {
    let w = World::new();
    let dirs: Vec<Ino> = (0..20).map(|n| w.dir(ROOT, &format!("d{n}"))).collect();
    let mut numbers = vec![Vec::new(); dirs.len()];
    for n in 0..1000 {
        let at = n % dirs.len();
        numbers[at].push(w.file(dirs[at], &format!("f{n}")));
    }
    for own in &numbers {
        assert!(own.is_sorted(), "in the order in which they were made");
        assert!(sequences(own) <= 2, "one with the directory, one of its own");
    }
    sequences(&numbers.concat());
    is_clean(&w);
}

#[test]
fn a_large_directory_has_few_sequences() {
    let w = World::new();
    let (a, b) = (w.dir(ROOT, "a"), w.dir(ROOT, "b"));
    let (mut in_a, mut in_b) = (Vec::new(), Vec::new());
    for n in 0..5000 {
        in_a.push(w.file(a, &format!("{n}")));
        in_b.push(w.file(b, &format!("{n}")));
    }
    assert!(sequences(&in_a) <= 8 && sequences(&in_b) <= 8);
    is_clean(&w);
}

#[test]
fn small_directories_lie_with_what_they_are_in() {
    let w = World::new();
    let top = w.dir(ROOT, "top");
    files(&w, top, "own", ZONE / 8);
    let first = w.file(top, "first");
    let mut below = Vec::new();
    for n in 0..4 {
        let dir = w.dir(top, &format!("small{n}"));
        below.push(dir);
        // Files of other directories have no part in it.
        w.file(ROOT, &format!("other{n}"));
        below.extend(files(&w, dir, "f", 5));
    }
    let inside = |ino: &Ino| (first..first + ZONE as Ino).contains(ino);
    assert!(below.iter().all(inside), "{below:?} from {first} on");
}

#[test]
fn a_directory_goes_on_where_it_was_after_a_kill() {
    let mut w = World::new();
    let (a, b) = (w.dir(ROOT, "a"), w.dir(ROOT, "b"));
    let mut numbers = Vec::new();
    for n in 0..10 {
        numbers.extend(files(&w, a, &format!("f{n}-"), 5));
        files(&w, b, &format!("f{n}-"), 5);
        w.crash();
    }
    assert!(sequences(&numbers) <= 2);
    is_clean(&w);
}

#[test]
fn numbers_of_files_that_are_gone_are_not_given_again_in_their_directory() {
    let mut w = World::new();
    let dir = w.dir(ROOT, "dir");
    let mut numbers = Vec::new();
    for n in 0..300 {
        let ino = w.file(dir, "file");
        numbers.push(ino);
        w.fs.unlink(dir, b"file").unwrap();
        w.fs.forget(ino, 1);
        if n % 10 == 0 {
            w.crash();
        }
    }
    sequences(&numbers);
    is_clean(&w);
}

#[test]
fn numbers_that_were_given_since_are_not_given_again_behind_a_rollback() {
    let mut w = World::new();
    let dir = w.dir(ROOT, "dir");
    let mut numbers = files(&w, dir, "before", 3);
    for round in 0..4 {
        let views = Views::new(w.db.clone(), w.fs.clone());
        views.snapshot(&ViewId::Mainline, &format!("s{round}"), Durability::Buffered).unwrap();
        numbers.extend(files(&w, dir, "since", 3));
        views.rollback(&format!("s{round}")).unwrap();
        // Numbers from a reservation of the restored state are not assigned again either.
        numbers.extend(files(&w, dir, &format!("behind{round}-"), 3));
        is_clean(&w);
        if round % 2 == 1 {
            w.crash();
        }
    }
    sequences(&numbers);
}

#[test]
fn a_rollback_voids_reservations_for_a_process_that_opens_the_store_later() {
    let mut w = World::new();
    let (used, quiet) = (w.dir(ROOT, "used"), w.dir(ROOT, "quiet"));
    let mut numbers = files(&w, quiet, "before", 3);
    let views = Views::new(w.db.clone(), w.fs.clone());
    views.snapshot(&ViewId::Mainline, "s", Durability::Buffered).unwrap();
    numbers.extend(files(&w, quiet, "since", 3));
    views.rollback("s").unwrap();
    // The number is assigned in another directory, so the one with the reservation does not notice
    // it.
    numbers.push(w.file(used, "behind"));
    w.crash();
    numbers.extend(files(&w, quiet, "later", 3));
    sequences(&numbers);
    is_clean(&w);
}

#[test]
fn a_rollback_voids_reservations_though_nothing_was_written_behind_it_before_a_kill() {
    for dropped in [false, true] {
        let mut w = World::new();
        let dir = w.dir(ROOT, "dir");
        let mut numbers = files(&w, dir, "before", 3);
        let views = Views::new(w.db.clone(), w.fs.clone());
        views.snapshot(&ViewId::Mainline, "s", Durability::Buffered).unwrap();
        numbers.extend(files(&w, dir, "since", 3));
        views.rollback("s").unwrap();
        if dropped {
            views.drop_snapshot("s").unwrap();
        }
        w.crash();
        numbers.extend(files(&w, dir, "later", 3));
        sequences(&numbers);
        is_clean(&w);
    }
}

#[test]
fn a_snapshot_does_not_keep_a_directory_from_going_on_where_it_was() {
    let mut w = World::new();
    let dir = w.dir(ROOT, "dir");
    let mut numbers = files(&w, dir, "before", 20);
    let views = Views::new(w.db.clone(), w.fs.clone());
    views.snapshot(&ViewId::Mainline, "s", Durability::Buffered).unwrap();
    for n in 0..10 {
        numbers.extend(files(&w, dir, &format!("since{n}-"), 3));
        files(&w, ROOT, &format!("other{n}-"), 3);
        w.crash();
    }
    assert!(sequences(&numbers) <= 2);
    is_clean(&w);
}

#[test]
fn transactions_and_the_mainline_give_each_number_once_in_the_same_directory() {
    let mut w = World::new();
    let dir = w.dir(ROOT, "dir");
    let views = Views::new(w.db.clone(), w.fs.clone());
    let mut numbers = files(&w, dir, "before", 3);
    let begin = || views.begin(TransactionOptions::default()).unwrap();
    let (one, two) = (begin(), begin());
    let inside = |id| views.fs(&ViewId::Transaction(id)).unwrap();
    for n in 0..40 {
        for (who, fs) in [("one", inside(one)), ("two", inside(two)), ("main", w.fs.clone())] {
            let made = fs.mknod(
                dir,
                format!("{who}{n}").as_bytes(),
                kvfs::FileKind::File,
                0o644,
                0,
                world::USER,
            );
            numbers.push(made.unwrap().ino);
        }
    }
    // A new directory, too, whose files come before and after the commit.
    let new = inside(one).mkdir(dir, b"new", 0o755, world::USER).unwrap().ino;
    let made = inside(one).mknod(new, b"f", kvfs::FileKind::File, 0o644, 0, world::USER);
    numbers.extend([new, made.unwrap().ino]);
    views.commit(one, Durability::Buffered).unwrap();
    views.commit(two, Durability::Buffered).unwrap();
    numbers.extend(files(&w, dir, "behind", 40));
    numbers.extend(files(&w, new, "behind", 40));
    is_clean(&w);
    w.crash();
    numbers.extend(files(&w, dir, "later", 40));
    sequences(&numbers);
    is_clean(&w);
}

#[test]
fn a_copy_of_a_directory_does_not_share_what_the_original_has_reserved() {
    let w = World::new();
    let (from, below) = (w.dir(ROOT, "from"), w.stat("/from").ino);
    assert_eq!(from, below);
    let sub = w.dir(from, "sub");
    let mut numbers = files(&w, sub, "f", 3);
    w.fs.clone_tree(from, ROOT, b"copy").unwrap();
    is_clean(&w);
    let copy = w.stat("/copy/sub").ino;
    for n in 0..200 {
        numbers.push(w.file(sub, &format!("more{n}")));
        numbers.push(w.file(copy, &format!("more{n}")));
    }
    sequences(&numbers);
    is_clean(&w);
}

#[test]
fn threads_that_make_files_at_once_get_numbers_of_their_own() {
    let w = World::new();
    let dir = w.dir(ROOT, "shared");
    let numbers = std::thread::scope(|scope| {
        let make = |thread: usize| {
            let own = w.dir(ROOT, &format!("own{thread}"));
            (0..200)
                .flat_map(|n| [w.file(dir, &format!("{thread}-{n}")), w.file(own, &format!("{n}"))])
                .collect::<Vec<Ino>>()
        };
        let threads: Vec<_> = (0..16).map(|thread| scope.spawn(move || make(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<Ino>>()
    });
    assert_eq!(numbers.len(), 16 * 400);
    sequences(&numbers);
    is_clean(&w);
}

#[test]
fn without_zones_numbers_are_in_the_order_of_making() {
    let w = World::with(FsOptions { zone_size: Some(0), ..FsOptions::default() });
    let (a, b) = (w.dir(ROOT, "a"), w.dir(ROOT, "b"));
    let numbers: Vec<Ino> =
        (0..100).map(|n| w.file(if n % 2 == 0 { a } else { b }, &format!("{n}"))).collect();
    assert_eq!((sequences(&numbers), numbers.is_sorted()), (1, true));
}

#[test]
fn a_file_system_keeps_the_zone_size_that_it_was_made_with() {
    let mut w = World::with(FsOptions { zone_size: Some(64 << 10), ..FsOptions::default() });
    let in_turn = |w: &World, tag: &str| {
        let dirs: Vec<Ino> = (0..4).map(|n| w.dir(ROOT, &format!("{tag}{n}"))).collect();
        let make = |n: usize| w.file(dirs[n % 4], &format!("f{n}"));
        let numbers: Vec<Ino> = (0..64).map(make).collect();
        let first: Vec<Ino> = numbers.iter().step_by(4).copied().collect();
        sequences(&first)
    };
    w.fs.shutdown().unwrap();
    w.crash();
    assert_eq!(w.fs.statistics().zone_size, 64 << 10);
    // 16 files of a directory are a zone of this size.
    assert!(in_turn(&w, "own") <= 2);
    w.crash_to(FsOptions { zone_size: Some(0), ..FsOptions::default() });
    assert_eq!(in_turn(&w, "none"), 16, "what an opening asks for goes before it");
    w.crash_to(FsOptions::default());
    assert_eq!(w.fs.statistics().zone_size, 64 << 10, "and is not kept");
    is_clean(&w);
    assert_eq!(World::new().fs.statistics().zone_size, kvfs::ZONE_SIZE);
}

#[test]
fn directories_of_an_older_store_reserve_numbers_from_their_next_file_on() {
    let mut w = World::with(FsOptions { zone_size: Some(0), ..FsOptions::default() });
    let dir = w.dir(ROOT, "dir");
    let old = files(&w, dir, "old", 100);
    w.fs.shutdown().unwrap();
    // The store as version 2 left it: the record's version, and only a bound of numbers.
    let imap = w.db.dictionary("imap").unwrap();
    let key = |name: &[u8]| [&[0; 8][..], name].concat();
    let mut record = w.db.get(imap, &key(b"s")).unwrap().unwrap().to_vec();
    let bound = (old[99] + 1).to_le_bytes().to_vec();
    assert_eq!(record[4], 8, "a zone size of its own");
    record[4] = 2;
    record.truncate(record.len() - 8);
    let mut batch = Batch::new();
    batch.put(imap, key(b"s"), record);
    batch.put(imap, key(b"n"), bound);
    w.db.commit(batch, Durability::Buffered).unwrap();
    is_clean(&w);

    w.crash();
    let mut new = Vec::new();
    for n in 0..100 {
        new.push(w.file(dir, &format!("new{n}")));
        w.file(ROOT, &format!("other{n}"));
    }
    assert_eq!(sequences(&new), 1);
    assert!(new.iter().all(|ino| !old.contains(ino)));
    assert_eq!(w.db.get(imap, &key(b"s")).unwrap().unwrap()[4], 7);
    is_clean(&w);
}

#[test]
fn directories_that_have_reserved_the_same_numbers_are_found_and_mended() {
    let mut w = World::new();
    let (a, b) = (w.dir(ROOT, "a"), w.dir(ROOT, "b"));
    let [_, in_b] = [a, b].map(|dir| w.file(dir, "f"));
    w.fs.shutdown().unwrap();
    let imap = w.db.dictionary("imap").unwrap();
    let node = w.db.get(imap, &a.to_be_bytes()).unwrap().unwrap();
    let mut batch = Batch::new();
    batch.put(imap, b.to_be_bytes().to_vec(), node);
    w.db.commit(batch, Durability::Buffered).unwrap();
    let found = kvfs::verify(&w.db).unwrap().findings;
    assert!(found.iter().any(|f| f.what.contains("has reserved numbers")), "{found:?}");
    kvfs::repair(&w.db, &Simulated::new(3), kvfs::Losses::Keep).unwrap();
    is_clean(&w);

    w.crash();
    let mut numbers = vec![in_b];
    numbers.extend(files(&w, a, "more", 100));
    numbers.extend(files(&w, b, "more", 100));
    sequences(&numbers);
    is_clean(&w);
}
