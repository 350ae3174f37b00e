//! Tests of forks that are merged into the store that they come from. A change of the fork is taken
//! byte for byte, whatever numbers its files have, a change of both is a conflict, and the trees
//! stay consistent.

use crate::forked::{Bucket, Store, options};
use crate::random_tree::{Calls, Thing, Tree, act_in, oracle, seeds, tree};
use crate::world::USER;
use env::Random;
use kvdb::{Durability, Settled};
use kvfs::{Choice, Deed, FileKind, Fs, Ino, MergeConflict, ROOT, RenameFlags, SetAttr};

fn ino(fs: &Fs, path: &str) -> Ino {
    fs.resolve(path.as_bytes()).expect(path).ino
}

fn split(path: &str) -> (&str, &[u8]) {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    (dir, name.as_bytes())
}

fn make(fs: &Fs, path: &str, data: &[u8]) -> Ino {
    let (dir, name) = split(path);
    let made = fs.mknod(ino(fs, dir), name, FileKind::File, 0o644, 0, USER).expect("made");
    fs.write(made.ino, 0, data, Default::default()).expect("written");
    made.ino
}

fn write(fs: &Fs, path: &str, at: u64, data: &[u8]) {
    fs.write(ino(fs, path), at, data, Default::default()).expect("written");
}

fn mkdir(fs: &Fs, path: &str) {
    let (dir, name) = split(path);
    fs.mkdir(ino(fs, dir), name, 0o755, USER).expect("made");
}

fn rm(fs: &Fs, path: &str) {
    let (dir, name) = split(path);
    fs.unlink(ino(fs, dir), name).expect("removed");
}

fn mv(fs: &Fs, from: &str, to: &str) {
    let ((dir, name), (to, new)) = (split(from), split(to));
    fs.rename(ino(fs, dir), name, ino(fs, to), new, RenameFlags::default()).expect("moved");
}

fn link(fs: &Fs, from: &str, to: &str) {
    let (dir, name) = split(to);
    fs.link(ino(fs, from), ino(fs, dir), name).expect("linked");
}

fn read(fs: &Fs, path: &str) -> Option<Vec<u8>> {
    let attr = fs.resolve(path.as_bytes()).ok()?;
    Some(fs.read(attr.ino, 0, attr.size as u32).expect("read").to_vec())
}

/// Bytes that neighbouring pages do not share.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    Random::new(seed).fill(&mut data);
    data
}

/// A store with some files, which is published, and a fork of it.
fn two(bucket: &Bucket) -> (Store, Store) {
    let store = Store::new();
    let fs = &store.w.fs;
    for dir in ["a", "b", "a/sub", "gone"] {
        mkdir(fs, dir);
    }
    for path in ["f", "g", "a/f", "a/sub/f", "b/f", "gone/f"] {
        make(fs, path, path.as_bytes());
    }
    make(fs, "large", &noise(1, 300_000));
    let fork = bucket.fork(&store, "store");
    (store, fork)
}

fn without_links(tree: Tree) -> Tree {
    tree.into_iter().map(|(path, thing)| (path, Thing { links: 0, ..thing })).collect()
}

#[test]
fn what_a_fork_has_changed_is_in_the_store_byte_for_byte() {
    let bucket = Bucket::new();
    let (store, fork) = two(&bucket);
    let (main, mine) = (&store.w.fs, &fork.w.fs);
    // Both assign the same numbers from now on, in the same directories.
    for n in 0..200 {
        make(mine, &format!("a/mine{n}"), &noise(1000 + n, 100 + 50 * n as usize));
        make(main, &format!("a/main{n}"), &noise(2000 + n, 100 + 50 * n as usize));
    }
    mkdir(mine, "new");
    mkdir(mine, "new/deep");
    make(mine, "new/deep/large", &noise(7, 5_000_000));
    link(mine, "new/deep/large", "new/second");
    link(mine, "g", "b/g");
    mine.symlink(ino(mine, "new"), b"link", b"deep/large", USER).expect("made");
    let sparse = make(mine, "sparse", b"begin");
    mine.write(sparse, 40 << 20, b"end", Default::default()).expect("written");
    write(mine, "large", 100_000, &noise(8, 50_000));
    mv(mine, "a/f", "new/moved");
    mv(mine, "a/sub", "new/sub");
    rm(mine, "gone/f");
    mine.rmdir(ROOT, b"gone").expect("removed");
    mine.setxattr(ino(mine, "f"), b"user.small", b"1", Default::default()).expect("set");
    mine.setxattr(sparse, b"user.large", &noise(9, 9000), Default::default()).expect("set");
    let set = SetAttr { mode: Some(0o600), ..Default::default() };
    mine.setattr(ino(mine, "f"), &set, USER).expect("set");
    mkdir(main, "theirs");
    make(main, "theirs/large", &noise(10, 2_000_000));
    let mut expected = tree(main);
    let (before, theirs) = (expected.clone(), tree(mine));
    expected.retain(|path, _| {
        !["gone", "gone/f", "a/f", "a/sub", "a/sub/f", "large", "f", "g"].contains(&path.as_str())
    });
    expected.extend(theirs.into_iter().filter(|(path, _)| !["a", "b"].contains(&path.as_str())));

    assert_eq!(store.merge(&fork, &options(None)), []);
    assert_eq!(without_links(tree(main)), without_links(expected));
    for n in 0..200 {
        let data = |of: u64| Some(noise(of + n, 100 + 50 * n as usize));
        assert!(read(main, &format!("a/mine{n}")) == data(1000), "mine{n}");
        assert!(read(main, &format!("a/main{n}")) == data(2000), "main{n}");
    }
    let second = main.resolve(b"/new/second").expect("there");
    assert_eq!((second.ino, second.nlink), (ino(main, "new/deep/large"), 2));
    assert_eq!(ino(main, "b/g"), ino(main, "g"));
    assert_eq!(main.readlink(ino(main, "new/link")).expect("read"), b"deep/large");
    let sparse = main.resolve(b"/sparse").expect("there");
    assert_eq!(sparse.size, (40 << 20) + 3);
    assert!(sparse.blocks < 100, "{sparse:?}");
    let value = main.getxattr(sparse.ino, b"user.large").expect("read");
    assert!(value[..] == noise(9, 9000)[..]);
    assert_eq!(main.getxattr(ino(main, "f"), b"user.small").expect("read"), b"1");
    assert!(read(main, "theirs/large") == Some(noise(10, 2_000_000)));
    // The fork owns nothing of it any more.
    let merged = tree(main);
    drop(fork);
    assert_eq!(tree(main), merged);
    store.undo();
    assert_eq!(tree(main), before, "undone");
    store.undo();
    assert_eq!(tree(main), merged, "done again");
    // Files that are made next get numbers that no other file has.
    for n in 0..300 {
        make(main, &format!("new/after{n}"), b"after");
    }
    store.check();
    for n in 0..300 {
        rm(main, &format!("new/after{n}"));
    }
    assert_eq!(tree(main), merged);
}

#[test]
fn keys_come_along_and_dictionaries_are_made() {
    let bucket = Bucket::new();
    let store = Store::new();
    let colours = store.w.db.open_dictionary("colour").expect("made");
    for (fruit, colour) in [("apple", "green"), ("pear", "green"), ("plum", "blue")] {
        colours.insert(fruit, colour).expect("put");
    }
    let fork = bucket.fork(&store, "store");
    let mine = fork.w.db.open_dictionary("colour").expect("there");
    mine.insert("apple", "red").expect("put");
    mine.remove("plum").expect("removed");
    fork.w.db.open_dictionary("new").expect("made").insert("k", vec![7; 200_000]).expect("put");
    colours.insert("cherry", "red").expect("put");
    assert_eq!(store.merge(&fork, &options(None)), []);
    let all: Vec<_> = colours.iter().map(|pair| pair.expect("read")).collect();
    assert_eq!(
        all,
        [("apple", "red"), ("cherry", "red"), ("pear", "green")].map(|(k, v)| (k.into(), v.into()))
    );
    let new = store.w.db.open_dictionary("new").expect("there").get("k").expect("read");
    assert!(new.as_deref() == Some(&[7; 200_000][..]));

    colours.insert("pear", "yellow").expect("put");
    mine.insert("pear", "brown").expect("put");
    let path = b"colour:pear".to_vec();
    let conflict = MergeConflict { path, key: true, ours: Deed::Changed, theirs: Deed::Changed };
    assert_eq!(store.merge(&fork, &options(None)), [conflict]);
    assert_eq!(colours.get("pear").expect("read"), Some("yellow".into()));
    assert_eq!(store.merge(&fork, &options(Some(Choice::Theirs))), []);
    assert_eq!(colours.get("pear").expect("read"), Some("brown".into()));
}

#[test]
fn what_both_have_changed_is_a_conflict_and_nothing_is_changed() {
    let bucket = Bucket::new();
    let (store, fork) = two(&bucket);
    let (main, mine) = (&store.w.fs, &fork.w.fs);
    write(main, "f", 0, b"main");
    write(mine, "f", 0, b"mine");
    write(main, "large", 0, b"main");
    write(mine, "large", 200_000, b"mine");
    make(main, "made", b"by main");
    make(mine, "made", b"by mine");
    make(main, "same", &noise(3, 100_000));
    make(mine, "same", &noise(3, 100_000));
    // The file is written again as it was.
    write(main, "g", 0, b"g");
    write(mine, "g", 0, b"mine");
    rm(main, "a/f");
    write(mine, "a/f", 0, b"mine");
    let before = tree(main);
    let of =
        |path: &str, ours, theirs| MergeConflict { path: path.into(), key: false, ours, theirs };
    let expected = [
        of("a/f", Deed::Removed, Deed::Changed),
        of("f", Deed::Changed, Deed::Changed),
        of("large", Deed::Changed, Deed::Changed),
        of("made", Deed::Made, Deed::Made),
    ];
    assert_eq!(store.merge(&fork, &options(None)), expected);
    assert_eq!(tree(main), before);
    assert_eq!(store.merge(&fork, &options(Some(Choice::Both))), []);
    assert_eq!(read(main, "f").as_deref(), Some(&b"main"[..]));
    assert_eq!(read(main, "f~mine").as_deref(), Some(&b"mine"[..]));
    assert_eq!(read(main, "made").as_deref(), Some(&b"by main"[..]));
    assert_eq!(read(main, "made~mine").as_deref(), Some(&b"by mine"[..]));
    assert_eq!(read(main, "g").as_deref(), Some(&b"mine"[..]));
    assert_eq!(read(main, "a/f").as_deref(), Some(&b"mine"[..]));
    assert!(read(main, "same") == Some(noise(3, 100_000)));
    assert!(!tree(main).contains_key("same~mine"));
}

#[test]
fn a_fork_is_merged_again_from_where_it_is_published() {
    let bucket = Bucket::new();
    let (store, fork) = two(&bucket);
    let (main, mine) = (&store.w.fs, &fork.w.fs);
    make(mine, "a/one", &noise(1, 70_000));
    make(main, "b/main", b"main");
    let merge = || {
        let published = bucket.read(&fork, "mine");
        let merged = store.begin(&published, &options(None));
        assert_eq!(merged.conflicts, []);
        store.views.commit(merged.transaction, Durability::Buffered).expect("committed");
        store.check();
    };
    merge();
    let once = tree(main);
    merge();
    assert_eq!(tree(main), once);
    make(mine, "a/two", &noise(2, 70_000));
    make(main, "b/more", b"more");
    mv(mine, "f", "b/renamed");
    merge();
    assert!(read(main, "a/one") == Some(noise(1, 70_000)));
    assert!(read(main, "a/two") == Some(noise(2, 70_000)));
    assert_eq!(read(main, "b/renamed").as_deref(), Some(&b"f"[..]));
    assert_eq!(read(main, "b/more").as_deref(), Some(&b"more"[..]));
    assert_eq!(read(main, "f"), None);
}

#[test]
fn a_fork_of_a_fork_goes_to_either_and_one_of_another_store_is_refused() {
    let bucket = Bucket::new();
    let (store, fork) = two(&bucket);
    make(&fork.w.fs, "first", b"first");
    let second = bucket.fork(&fork, "fork");
    make(&second.w.fs, "a/second", b"second");
    make(&store.w.fs, "a/main", b"main");
    make(&fork.w.fs, "a/fork", b"fork");
    assert_eq!(fork.merge(&second, &options(None)), []);
    assert_eq!(read(&fork.w.fs, "a/second").as_deref(), Some(&b"second"[..]));
    assert_eq!(read(&fork.w.fs, "a/fork").as_deref(), Some(&b"fork"[..]));
    assert_eq!(store.merge(&second, &options(None)), []);
    for (path, data) in [("first", "first"), ("a/second", "second"), ("a/main", "main")] {
        assert_eq!(read(&store.w.fs, path).as_deref(), Some(data.as_bytes()), "{path}");
    }
    assert_eq!(read(&store.w.fs, "a/fork"), None);

    let refused = |into: &Store, from: &Store| {
        let settle = |_: &str, _: &kvdb::Clash<'_>| Settled::Conflict;
        let merged = into.views.merge_fork(&from.w.db, &options(None), &settle);
        merged.expect_err("refused").to_string()
    };
    let other = Store::new();
    assert!(refused(&other, &fork).contains("fork of another store"));
    assert!(refused(&fork, &store).contains("no fork"));
    assert!(refused(&store, &store).contains("the store itself"));
    assert_eq!(store.w.db.transactions().len(), 0);
}

#[test]
fn a_fork_gives_no_number_that_the_store_gives() {
    let bucket = Bucket::new();
    let (store, fork) = two(&bucket);
    let shared: Vec<Ino> = ["f", "g", "a/f", "large"].map(|path| ino(&store.w.fs, path)).into();
    let most = *shared.iter().max().expect("some");
    let of_main: Vec<Ino> =
        (0..100).map(|n| make(&store.w.fs, &format!("a/{n}"), b"main")).collect();
    let of_fork: Vec<Ino> =
        (0..100).map(|n| make(&fork.w.fs, &format!("a/{n}"), b"fork")).collect();
    assert!(of_main.iter().any(|ino| *ino < most), "of what a directory had reserved");
    assert!(of_fork.iter().all(|ino| *ino > most));
    assert!(of_main.iter().all(|ino| !of_fork.contains(ino)));
}

#[test]
fn each_path_is_what_the_store_or_the_fork_has_made_of_it() {
    let (mut clean, mut refused) = (0, 0);
    for seed in seeds(30) {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let (bucket, store) = (Bucket::new(), Store::new());
        let act = |on: &Store, random: &mut Random| {
            act_in(&on.w, &on.w.fs, "", random, Calls::InPlace);
        };
        for _ in 0..30 {
            act(&store, &mut random);
        }
        let fork = bucket.fork(&store, "store");
        let base = tree(&store.w.fs);
        assert_eq!(tree(&fork.w.fs), base);
        for _ in 0..1 + random.below(10) {
            act(&fork, &mut random);
            if random.one_in(2) {
                act(&store, &mut random);
            }
        }
        let (main, mine) = (tree(&store.w.fs), tree(&fork.w.fs));
        let (merged, expected) = oracle(&base, &main, &mine);
        let found = store.merge(&fork, &options(None));
        let paths: Vec<_> =
            found.iter().map(|one| String::from_utf8_lossy(&one.path).into_owned()).collect();
        // A path that one side has removed and made again as it was counts as removed by the other,
        // as for clones.
        let anew = |path: &String| {
            let of = |tree: &Tree| tree.get(path).map(|t| (t.content.clone(), t.perm));
            let alike = of(&base) == of(&main) || of(&base) == of(&mine);
            alike && (of(&main).is_none() || of(&mine).is_none())
        };
        let excused = expected.is_empty() && paths.iter().all(anew);
        assert!(
            found.is_empty() == expected.is_empty() || excused,
            "seed {seed}: found {paths:?}, expected {expected:?}"
        );
        assert_eq!(tree(&fork.w.fs), mine, "seed {seed}: the fork is as it was");
        if !found.is_empty() {
            refused += 1;
            assert_eq!(tree(&store.w.fs), main, "seed {seed}: nothing was changed");
            continue;
        }
        clean += 1;
        assert_eq!(without_links(tree(&store.w.fs)), merged, "seed {seed}");
        let once = tree(&store.w.fs);
        assert_eq!(store.merge(&fork, &options(None)), [], "seed {seed}: merged again");
        assert_eq!(tree(&store.w.fs), once, "seed {seed}: merged again");
    }
    if std::env::var("KVFS_SEED").is_err() {
        assert!(clean > 3 && refused > 3, "{clean} without and {refused} with conflicts");
    }
}

#[test]
fn whatever_is_chosen_the_trees_are_sound_and_it_can_be_undone() {
    for seed in seeds(30) {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let (bucket, store) = (Bucket::new(), Store::new());
        let act = |on: &Store, random: &mut Random| act_in(&on.w, &on.w.fs, "", random, Calls::All);
        for _ in 0..25 {
            act(&store, &mut random);
        }
        let fork = bucket.fork(&store, "store");
        for round in 0..3 {
            for _ in 0..1 + random.below(10) {
                act(&fork, &mut random);
                act(&store, &mut random);
            }
            let (main, mine) = (tree(&store.w.fs), tree(&fork.w.fs));
            if !store.merge(&fork, &options(None)).is_empty() {
                assert_eq!(tree(&store.w.fs), main, "seed {seed}, round {round}");
                let all = [Choice::Ours, Choice::Theirs, Choice::Both];
                let choice = all[random.below(3) as usize];
                let left = store.merge(&fork, &options(Some(choice)));
                // Cycles of moves are resolved by our side alone.
                if !left.is_empty() {
                    assert_eq!(choice, Choice::Theirs, "seed {seed}: {left:?}");
                    let left = store.merge(&fork, &options(Some(Choice::Ours)));
                    assert_eq!(left, [], "seed {seed}, round {round}");
                }
            }
            assert_eq!(tree(&fork.w.fs), mine, "seed {seed}: the fork is as it was");
            if random.one_in(3) {
                let merged = tree(&store.w.fs);
                if merged != main {
                    store.undo();
                    assert_eq!(tree(&store.w.fs), main, "seed {seed}: undone");
                    store.undo();
                    assert_eq!(tree(&store.w.fs), merged, "seed {seed}: done again");
                }
            }
        }
    }
}

#[test]
fn an_older_copy_of_the_store_is_refused() {
    let bucket = Bucket::new();
    let store = Store::new();
    make(&store.w.fs, "f", b"f");
    let (older, other) = (store.copy(), store.copy());
    let refused = |into: &Store, from: &Store| {
        from.w.fs.sync_all().expect("synced");
        let settle = |_: &str, _: &kvdb::Clash<'_>| Settled::Conflict;
        let merged = into.views.merge_fork(&from.w.db, &options(None), &settle);
        assert_eq!(into.w.db.transactions().len(), 0);
        merged.expect_err("refused").to_string()
    };
    // The copy gives the same number to another file.
    let number = make(&store.w.fs, "shared", b"of the store");
    let fork = bucket.fork(&store, "store");
    write(&fork.w.fs, "shared", 0, b"of the fork");
    other.w.second();
    assert_eq!(make(&other.w.fs, "other", b"of the copy"), number);
    let why = refused(&other, &fork);
    assert!(why.contains("another file"), "{why}");
    // The store has assigned more numbers than the copy has noted.
    for n in 0..70_000 {
        let name = format!("{n}");
        store.w.fs.mknod(ROOT, name.as_bytes(), FileKind::Fifo, 0o644, 0, USER).expect("made");
    }
    let why = refused(&older, &bucket.fork(&store, "store"));
    assert!(why.contains("older copy"), "{why}");
    assert_eq!(store.merge(&fork, &options(None)), []);
}

#[test]
fn a_fork_is_merged_into_a_later_fork_of_the_same_store() {
    let bucket = Bucket::new();
    let (store, fork) = two(&bucket);
    let (main, mine) = (&store.w.fs, &fork.w.fs);
    // Both assign the same numbers to their own files.
    for n in 0..100 {
        make(mine, &format!("a/mine{n}"), &noise(1000 + n, 5_000));
        make(main, &format!("a/main{n}"), &noise(2000 + n, 5_000));
    }
    write(mine, "large", 100_000, &noise(8, 50_000));
    mv(mine, "a/f", "b/moved");
    write(main, "g", 0, b"of the store");
    rm(main, "gone/f");
    let later = bucket.fork(&store, "store");
    make(&later.w.fs, "a/own", b"of the later fork");
    let mut expected = tree(&later.w.fs);
    let theirs = tree(mine);
    expected.remove("a/f");
    let changed = |path: &str| path.starts_with("a/mine") || ["b/moved", "large"].contains(&path);
    expected.extend(theirs.into_iter().filter(|(path, _)| changed(path)));
    assert_eq!(later.merge(&fork, &options(None)), []);
    assert_eq!(without_links(tree(&later.w.fs)), without_links(expected));
    for n in 0..100 {
        assert!(read(&later.w.fs, &format!("a/mine{n}")) == Some(noise(1000 + n, 5_000)));
        assert!(read(&later.w.fs, &format!("a/main{n}")) == Some(noise(2000 + n, 5_000)));
    }

    // The merge back brings the changes of both forks, and nothing else.
    make(main, "meanwhile", b"of the store");
    assert_eq!(store.merge(&later, &options(None)), []);
    assert_eq!(read(main, "a/own").as_deref(), Some(&b"of the later fork"[..]));
    assert!(read(main, "a/mine7") == Some(noise(1007, 5_000)));
    assert_eq!(read(main, "g").as_deref(), Some(&b"of the store"[..]));
    assert_eq!(read(main, "meanwhile").as_deref(), Some(&b"of the store"[..]));
}

#[test]
fn a_file_that_came_back_is_whole_though_the_base_has_its_pages_without_a_name() {
    let bucket = Bucket::new();
    let (store, fork) = two(&bucket);
    write(&fork.w.fs, "large", 100_000, b"mine");
    // It is not a file any more in the state from which later forks begin, but its pages are kept.
    rm(&store.w.fs, "large");
    let content = read(&fork.w.fs, "large");
    for round in 0..3 {
        let later = bucket.fork(&store, "store");
        let earlier = bucket.fork(&store, "store");
        assert_eq!(earlier.merge(&fork, &options(Some(Choice::Theirs))), []);
        assert_eq!(later.merge(&earlier, &options(None)), []);
        assert!(read(&later.w.fs, "large") == content, "round {round}");
        if round == 0 {
            assert_eq!(store.merge(&earlier, &options(None)), []);
            assert!(read(&store.w.fs, "large") == content);
            rm(&store.w.fs, "large");
        }
    }
}

#[test]
fn both_forks_have_changed_a_file_where_the_store_or_the_later_one_has() {
    let bucket = Bucket::new();
    let (store, fork) = two(&bucket);
    for path in ["f", "g"] {
        write(&fork.w.fs, path, 0, b"mine");
    }
    write(&store.w.fs, "f", 0, b"main");
    let later = bucket.fork(&store, "store");
    write(&later.w.fs, "g", 0, b"late");
    let conflicts = later.merge(&fork, &options(None));
    let paths: Vec<&[u8]> = conflicts.iter().map(|conflict| &conflict.path[..]).collect();
    assert_eq!(paths, [b"f", b"g"], "{conflicts:?}");
    assert_eq!(later.merge(&fork, &options(Some(Choice::Theirs))), []);
    assert_eq!(read(&later.w.fs, "f").as_deref(), Some(&b"mine"[..]));
}

#[test]
fn a_fork_is_not_merged_into_an_earlier_one_nor_into_itself() {
    let bucket = Bucket::new();
    let (store, earlier) = two(&bucket);
    make(&store.w.fs, "new", b"of the store");
    let later = bucket.fork(&store, "store");
    make(&later.w.fs, "mine", b"mine");
    let refused = |into: &Store, from: &Store| {
        from.w.fs.sync_all().expect("synced");
        let settle = |_: &str, _: &kvdb::Clash<'_>| Settled::Conflict;
        let merged = into.views.merge_fork(&from.w.db, &options(None), &settle);
        assert_eq!(into.w.db.transactions().len(), 0);
        merged.expect_err("refused").to_string()
    };
    let why = refused(&earlier, &later);
    assert!(why.contains("a later state of that"), "{why}");
    let why = refused(&later, &later);
    assert!(why.contains("is the store itself"), "{why}");
    // Merges into the fork of another store.
    let other = two(&Bucket::new()).1;
    let why = refused(&other, &later);
    assert!(why.contains("is a fork of another store"), "{why}");
}

#[test]
fn forks_that_are_merged_into_later_ones_at_random_have_the_changes_of_both() {
    for seed in seeds(30) {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let bucket = Bucket::new();
        let (store, mut fork) = two(&bucket);
        let act = |on: &Store, random: &mut Random| act_in(&on.w, &on.w.fs, "", random, Calls::All);
        for round in 0..4 {
            for _ in 0..20 {
                act(&fork, &mut random);
                act(&store, &mut random);
            }
            let later = bucket.fork(&store, "store");
            // In a conflict the change of the fork wins, as in a rebase.
            let left = later.merge(&fork, &options(Some(Choice::Theirs)));
            if !left.is_empty() {
                assert_eq!(later.merge(&fork, &options(Some(Choice::Ours))), [], "seed {seed}");
            }
            // Then the store has to take over only that change.
            let rebased = tree(&later.w.fs);
            assert_eq!(store.merge(&later, &options(None)), [], "seed {seed}, round {round}");
            let all = without_links(tree(&store.w.fs));
            assert_eq!(all, without_links(rebased), "seed {seed}, round {round}");
            fork = later;
        }
    }
}

#[test]
fn forks_with_a_rollback_of_the_store_in_between_have_the_changes_of_both_or_conflicts() {
    let (mut clean, mut refused) = (0, 0);
    for seed in seeds(40) {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let (bucket, store) = (Bucket::new(), Store::new());
        let act = |on: &Store, random: &mut Random| {
            act_in(&on.w, &on.w.fs, "", random, Calls::InPlace);
        };
        for _ in 0..20 {
            act(&store, &mut random);
        }
        store.views.snapshot(&kvfs::ViewId::Mainline, "s", Durability::Buffered).expect("made");
        for _ in 0..10 {
            act(&store, &mut random);
        }
        let early = random.one_in(3);
        if early {
            store.views.rollback("s").expect("rolled back");
        }
        let fork = bucket.fork(&store, "store");
        let base = tree(&store.w.fs);
        for _ in 0..1 + random.below(6) {
            act(&fork, &mut random);
        }
        for _ in 0..random.below(6) {
            act(&store, &mut random);
        }
        if !early || random.one_in(2) {
            store.views.rollback("s").expect("rolled back");
        }
        for _ in 0..random.below(6) {
            act(&store, &mut random);
        }
        let to_store = random.one_in(3);
        let later = if to_store { None } else { Some(bucket.fork(&store, "store")) };
        let into = later.as_ref().unwrap_or(&store);
        if random.one_in(2) {
            act(into, &mut random);
        }
        let (main, mine) = (tree(&into.w.fs), tree(&fork.w.fs));
        let (merged, expected) = oracle(&base, &main, &mine);
        let found = into.merge(&fork, &options(None));
        if !found.is_empty() {
            refused += 1;
            assert_eq!(tree(&into.w.fs), main, "seed {seed}");
            let all = [Choice::Ours, Choice::Theirs, Choice::Both];
            let _ = into.merge(&fork, &options(Some(all[random.below(3) as usize])));
            continue;
        }
        clean += 1;
        assert!(expected.is_empty(), "seed {seed}: {expected:?} is no conflict");
        assert_eq!(without_links(tree(&into.w.fs)), merged, "seed {seed}");
    }
    if std::env::var("KVFS_SEED").is_err() {
        assert!(clean > 3 && refused > 3, "{clean} without and {refused} with conflicts");
    }
}
