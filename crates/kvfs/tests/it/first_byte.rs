//! The requests that a reader of a published store waits for, one after the other, until it has the
//! first byte of a file deep in the tree.

use crate::forked::{Bucket, Store};
use kvfs::{Fs, FsOptions, ROOT};
use zones::Purpose;

/// The head and the state come before these; nothing is fetched ahead, so each wait is a round.
const MOST_WAITS: u64 = 4;

#[test]
fn the_first_byte_of_a_file_deep_in_a_tree_is_there_after_few_rounds() {
    let (bucket, store) = (Bucket::new(), Store::new());
    let w = &store.w;
    for a in 0..6 {
        let first = w.dir(ROOT, &format!("a{a}"));
        for b in 0..5 {
            let second = w.dir(first, &format!("b{b}"));
            for c in 0..10 {
                let third = w.dir(second, &format!("c{c}"));
                let last = w.dir(w.dir(third, "d"), "e");
                (0..6).for_each(|n| _ = w.file_with(last, &format!("file{n}"), &[7; 3000]));
            }
        }
    }
    let db = bucket.read(&store, "tree");
    let stats = || db.remote_stats().expect("its zones lie in a bucket");
    let options = FsOptions { read_only: true, ..FsOptions::default() };
    let fs = Fs::open(db.clone(), w.env.clone(), options).expect("opened");
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
