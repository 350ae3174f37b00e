//! Merges of what is done at random on both sides.
//!
//! - What branches have changed apart from each other gives one tree in whatever order they are
//!   merged; to merge twice is to merge once; to merge after a rebase is to rebase after a merge.
//! - Without moves, each path is what one side has made of it, and a conflict is where both have
//!   (the oracle knows paths alone, no inodes).
//! - With moves and links, whatever is chosen: the trees are sound, nothing is changed by a
//!   conflict, and a rebase afterwards makes both sides alike.
//!
//! `KVFS_SEEDS=n` runs n seeds instead of the usual few; `KVFS_SEED=n` runs one.

mod world;

use std::collections::{BTreeMap, BTreeSet};

use env::Random;
use kvdb::{Durability, TransactionOptions};
use kvfs::{
    Choice, FileKind, Fs, FsOptions, MergeConflict, MergeOptions, ROOT, RenameFlags, SetAttr,
    ViewId, Views,
};
use world::{USER, World};

fn seeds(usual: u64) -> Vec<u64> {
    let read = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    match (read("KVFS_SEED"), read("KVFS_SEEDS")) {
        (Some(one), _) => vec![one],
        (None, n) => (0..n.unwrap_or(usual)).collect(),
    }
}

/// What lies at a path: a directory or a file with content, and the mode.
#[derive(Clone, PartialEq, Eq)]
struct Thing {
    content: Option<Vec<u8>>,
    perm: u16,
    links: u32,
}

impl std::fmt::Debug for Thing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = |sum: u32, byte: &u8| sum.wrapping_mul(31).wrapping_add((*byte).into());
        let content = self.content.as_ref().map(|c| (c.len(), c.iter().fold(0, sum)));
        write!(f, "{content:?} {:o} {}", self.perm, self.links)
    }
}

type Tree = BTreeMap<String, Thing>;

fn tree(fs: &Fs) -> Tree {
    let mut all = Tree::new();
    let mut dirs = vec![(String::new(), ROOT)];
    while let Some((path, dir)) = dirs.pop() {
        let mut entries = Vec::new();
        fs.readdir(dir, 2, false, &mut |e| {
            entries.push((String::from_utf8_lossy(e.name).into_owned(), e.ino));
            true
        })
        .expect("listed");
        for (name, ino) in entries {
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            let attr = fs.getattr(ino).expect("there");
            let content = match attr.kind {
                FileKind::File => Some(fs.read(ino, 0, attr.size as u32).expect("read").to_vec()),
                _ => None,
            };
            if attr.kind == FileKind::Dir {
                dirs.push((path.clone(), ino));
            }
            all.insert(path, Thing { content, perm: attr.perm, links: attr.nlink });
        }
    }
    all
}

struct Store {
    w: World,
    views: Views,
}

fn options(clone: &str, choice: Option<Choice>) -> MergeOptions {
    let transaction = TransactionOptions { undoable: true, ..Default::default() };
    let choices = choice.into_iter().map(|choice| (Vec::new(), choice)).collect();
    MergeOptions { clone: clone.into(), choices, transaction, ..Default::default() }
}

/// Which kinds of calls are made.
#[derive(Clone, Copy, PartialEq)]
enum Calls {
    InPlace,
    All,
}

impl Store {
    fn new() -> Store {
        let (w, views) = World::with_views(FsOptions::default());
        Store { w, views }
    }

    fn fs(&self, clone: &str) -> Fs {
        self.views.fs(&ViewId::of_branch(clone)).expect("there")
    }

    fn tree(&self, clone: &str) -> Tree {
        tree(&self.fs(clone))
    }

    fn clone_of(&self, of: &str, name: &str) {
        self.w.second();
        self.views.snapshot(&ViewId::of_branch(of), "s", Durability::Buffered).expect("made");
        self.views.clone_snapshot("s", name).expect("made");
        self.views.drop_snapshot("s").expect("dropped");
    }

    /// The conflicts; without any it is committed.
    fn merge(&self, options: &MergeOptions) -> Vec<MergeConflict> {
        if options.rebase || options.clone.len().is_multiple_of(2) {
            self.w.second();
        }
        let merged = self.views.merge(options, &|_, _| kvdb::Settled::Conflict).expect("merged");
        match merged.conflicts.is_empty() {
            true => self.views.commit(merged.transaction, Durability::Buffered).expect("committed"),
            false => self.views.abort(merged.transaction).expect("aborted"),
        }
        self.check();
        merged.conflicts
    }

    fn rebase(&self, clone: &str) -> Vec<MergeConflict> {
        self.merge(&MergeOptions { rebase: true, ..options(clone, None) })
    }

    fn check(&self) {
        for info in self.views.clones().iter().map(|c| c.name.as_str()).chain([""]) {
            let report = self.fs(info).verify().expect("verified");
            assert_eq!(report.findings, [], "in {info:?}: {report:?}");
        }
    }

    /// One call in a branch, below `within`.
    fn act(&self, branch: &str, within: &str, random: &mut Random, calls: Calls) {
        self.act_in(&self.fs(branch), within, random, calls);
    }

    /// One call in a view, below `within`.
    fn act_in(&self, fs: &Fs, within: &str, random: &mut Random, calls: Calls) {
        if random.one_in(5) {
            self.w.second();
        }
        let now: Vec<(String, bool)> = tree(fs)
            .into_iter()
            .filter(|(path, _)| path.starts_with(within))
            .map(|(path, thing)| (path, thing.content.is_none()))
            .collect();
        let pick = |random: &mut Random, dir: bool| {
            let all: Vec<&String> =
                now.iter().filter(|(_, is)| *is == dir).map(|(path, _)| path).collect();
            match all.is_empty() {
                true => None,
                false => Some(all[random.below(all.len() as u64) as usize].clone()),
            }
        };
        let place = |random: &mut Random| {
            let dir = pick(random, true).unwrap_or_else(|| within.trim_end_matches('/').into());
            let name = format!("n{}", random.below(7));
            if dir.is_empty() || random.one_in(4) && within.is_empty() {
                name
            } else {
                format!("{dir}/{name}")
            }
        };
        let split = |path: &str| {
            let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
            (fs.resolve(dir.as_bytes()).expect("there").ino, name.as_bytes().to_vec())
        };
        let sizes = [3, 300, 700, 5000, 40_000];
        let noise = |random: &mut Random| {
            let mut data = vec![0; sizes[random.below(5) as usize]];
            random.fill(&mut data);
            // Now and then both sides do the same.
            if random.one_in(3) { vec![b'a' + random.below(3) as u8; data.len()] } else { data }
        };
        let make = |path: &str, data: &[u8]| {
            let (dir, name) = split(path);
            let made = fs.mknod(dir, &name, FileKind::File, 0o644, 0, USER)?;
            fs.write(made.ino, 0, data, Default::default()).map(drop)
        };
        let most = if calls == Calls::All { 20 } else { 14 };
        let call = random.below(most);
        if std::env::var("KVFS_SEED").is_ok() {
            eprintln!("{:?}: call {call}, of {now:?}", fs.transactions());
        }
        let done: kvfs::Result<()> = match call {
            0..=2 => make(&place(random), &noise(random)),
            3 | 4 => {
                let (dir, name) = split(&place(random));
                fs.mkdir(dir, &name, 0o755, USER).map(drop)
            }
            5..=7 => match pick(random, false) {
                Some(path) => {
                    let ino = fs.resolve(path.as_bytes()).expect("there").ino;
                    fs.write(ino, random.below(9000), &noise(random), Default::default()).map(drop)
                }
                None => Ok(()),
            },
            8 => match pick(random, false) {
                Some(path) => {
                    let ino = fs.resolve(path.as_bytes()).expect("there").ino;
                    let set = SetAttr { size: Some(random.below(9000)), ..Default::default() };
                    fs.setattr(ino, &set, USER).map(drop)
                }
                None => Ok(()),
            },
            9 => {
                let dir = random.one_in(3);
                match pick(random, dir) {
                    Some(path) => {
                        let ino = fs.resolve(path.as_bytes()).expect("there").ino;
                        let mode = Some([0o700, 0o711, 0o755][random.below(3) as usize]);
                        fs.setattr(ino, &SetAttr { mode, ..Default::default() }, USER).map(drop)
                    }
                    None => Ok(()),
                }
            }
            10 | 11 => match pick(random, false) {
                Some(path) => {
                    let (dir, name) = split(&path);
                    fs.unlink(dir, &name)
                }
                None => Ok(()),
            },
            12 => match pick(random, true) {
                Some(path) if path.len() > within.len() => {
                    let (dir, name) = split(&path);
                    fs.rmdir(dir, &name)
                }
                _ => Ok(()),
            },
            13 => match pick(random, false) {
                // As editors write.
                Some(path) => {
                    let (dir, name) = split(&path);
                    let made = fs.mknod(dir, b"tmp", FileKind::File, 0o644, 0, USER).expect("free");
                    fs.write(made.ino, 0, &noise(random), Default::default()).expect("written");
                    fs.rename(dir, b"tmp", dir, &name, RenameFlags::default())
                }
                None => Ok(()),
            },
            14..=17 => {
                let dir = random.one_in(2);
                match pick(random, dir) {
                    Some(path) if path.len() > within.len() => {
                        let to = place(random);
                        let ((dir, name), (to, new)) = (split(&path), split(&to));
                        fs.rename(dir, &name, to, &new, RenameFlags::default())
                    }
                    _ => Ok(()),
                }
            }
            _ => match pick(random, false) {
                Some(path) => {
                    let ino = fs.resolve(path.as_bytes()).expect("there").ino;
                    let (dir, name) = split(&place(random));
                    fs.link(ino, dir, &name).map(drop)
                }
                None => Ok(()),
            },
        };
        match done {
            Ok(())
            | Err(
                kvfs::Error::Exists
                | kvfs::Error::NotEmpty
                | kvfs::Error::NotDirectory
                | kvfs::Error::IsDirectory
                | kvfs::Error::Invalid(_),
            ) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn branches_that_have_changed_other_things_give_one_tree_in_any_order() {
    for seed in seeds(12) {
        let run = |order: [&str; 2]| {
            let mut random = Random::new(seed);
            let store = Store::new();
            for dir in ["x", "y", "z"] {
                store.w.dir(ROOT, dir);
            }
            for _ in 0..25 {
                store.act(
                    "",
                    ["x/", "y/", "z/"][random.below(3) as usize],
                    &mut random,
                    Calls::All,
                );
            }
            store.clone_of("", "aa");
            store.clone_of("", "bb");
            for _ in 0..25 {
                store.act("aa", "x/", &mut random, Calls::All);
                store.act("bb", "y/", &mut random, Calls::All);
                store.act("", "z/", &mut random, Calls::All);
            }
            for clone in order {
                // What lies elsewhere may have been linked to.
                let conflicts = store.merge(&options(clone, Some(Choice::Theirs)));
                assert_eq!(conflicts, [], "seed {seed}");
                let once = store.tree("");
                assert_eq!(store.merge(&options(clone, None)), [], "seed {seed}");
                assert_eq!(store.tree(""), once, "seed {seed}: merged twice");
            }
            for clone in order {
                assert_eq!(store.rebase(clone), [], "seed {seed}");
                assert_eq!(store.tree(clone), store.tree(""), "seed {seed}: rebased {clone}");
            }
            store.tree("")
        };
        assert_eq!(run(["aa", "bb"]), run(["bb", "aa"]), "seed {seed}");
    }
}

/// What a three-way merge by path alone makes of it, and where both have changed the same.
fn oracle(base: &Tree, main: &Tree, clone: &Tree) -> (Tree, BTreeSet<String>) {
    let (mut merged, mut conflicts) = (Tree::new(), BTreeSet::new());
    let paths: BTreeSet<&String> = base.keys().chain(main.keys()).chain(clone.keys()).collect();
    // Numbers of links of directories follow from the rest.
    let of = |tree: &Tree, path: &str| tree.get(path).map(|t| Thing { links: 0, ..t.clone() });
    for path in paths {
        let (b, m, c) = (of(base, path), of(main, path), of(clone, path));
        let taken = match () {
            () if m == b => c,
            () if c == b || c == m => m,
            () => {
                conflicts.insert(path.clone());
                continue;
            }
        };
        taken.map(|thing| merged.insert(path.clone(), thing));
    }
    let lost: Vec<String> = merged
        .keys()
        .filter_map(|path| path.rsplit_once('/'))
        .filter(|(dir, _)| merged.get(*dir).is_none_or(|dir| dir.content.is_some()))
        .map(|(dir, _)| dir.to_owned())
        .collect();
    conflicts.extend(lost);
    (merged, conflicts)
}

#[test]
fn each_path_is_what_one_side_has_made_of_it() {
    let (mut clean, mut refused) = (0, 0);
    for seed in seeds(60) {
        let mut random = Random::new(seed);
        let store = Store::new();
        for _ in 0..30 {
            store.act("", "", &mut random, Calls::InPlace);
        }
        store.clone_of("", "c");
        let base = store.tree("");
        for round in 0..3 {
            let (before, work) = (store.tree("c"), 1 + random.below(10));
            let base = if round == 0 { base.clone() } else { before };
            for _ in 0..work {
                store.act("c", "", &mut random, Calls::InPlace);
                if random.one_in(2) {
                    store.act("", "", &mut random, Calls::InPlace);
                }
            }
            let (main, clone) = (store.tree(""), store.tree("c"));
            let (merged, expected) = oracle(&base, &main, &clone);
            let found = store.merge(&options("c", None));
            let paths: Vec<String> =
                found.iter().map(|one| String::from_utf8_lossy(&one.path).into_owned()).collect();
            // What one side has made anew as it was, the other one has removed: by its path alone
            // it was left as it is.
            let anew = |path: &String| {
                let of = |tree: &Tree| tree.get(path).map(|t| (t.content.clone(), t.perm));
                let alike = of(&base) == of(&main) || of(&base) == of(&clone);
                alike && (of(&main).is_none() || of(&clone).is_none())
            };
            let excused = expected.is_empty() && paths.iter().all(anew);
            assert!(
                found.is_empty() == expected.is_empty() || excused,
                "seed {seed}, round {round}: found {paths:?}, expected {expected:?}"
            );
            assert_eq!(store.tree("c"), clone, "seed {seed}: the clone is as it was");
            if !found.is_empty() {
                refused += 1;
                assert_eq!(store.tree(""), main, "seed {seed}: nothing was changed");
                break;
            }
            clean += 1;
            let now: Tree =
                store.tree("").into_iter().map(|(p, t)| (p, Thing { links: 0, ..t })).collect();
            assert_eq!(now, merged, "seed {seed}, round {round}");
        }
    }
    if std::env::var("KVFS_SEED").is_err() {
        assert!(clean > 5 && refused > 5, "{clean} without and {refused} with conflicts");
    }
}

#[test]
fn to_merge_after_a_rebase_is_to_rebase_after_a_merge() {
    let mut alike = 0;
    for seed in seeds(40) {
        let run = |rebase_first: bool| {
            let mut random = Random::new(seed);
            let store = Store::new();
            for _ in 0..25 {
                store.act("", "", &mut random, Calls::All);
            }
            store.clone_of("", "c");
            for _ in 0..1 + random.below(8) {
                store.act("c", "", &mut random, Calls::All);
                store.act("", "", &mut random, Calls::All);
            }
            let first = options("c", None);
            let (a, b) = (MergeOptions { rebase: true, ..first.clone() }, first);
            for options in if rebase_first { [&a, &b] } else { [&b, &a] } {
                let conflicts = store.merge(options);
                if !conflicts.is_empty() {
                    return None;
                }
            }
            assert_eq!(store.tree(""), store.tree("c"), "seed {seed}");
            Some(store.tree(""))
        };
        let (one, other) = (run(true), run(false));
        assert_eq!(one.is_some(), other.is_some(), "seed {seed}: both conflict or neither");
        alike += usize::from(one.is_some());
        assert_eq!(one, other, "seed {seed}");
    }
    if std::env::var("KVFS_SEED").is_err() {
        assert!(alike > 3, "{alike} without conflicts");
    }
}

#[test]
fn whatever_is_chosen_the_trees_are_sound_and_a_rebase_makes_them_alike() {
    for seed in seeds(40) {
        if std::env::var("KVFS_SEEDS").is_ok() {
            eprintln!("seed {seed}");
        }
        let mut random = Random::new(seed);
        let store = Store::new();
        for _ in 0..25 {
            store.act("", "", &mut random, Calls::All);
        }
        store.clone_of("", "c");
        for round in 0..3 {
            for _ in 0..1 + random.below(10) {
                store.act("c", "", &mut random, Calls::All);
                store.act("", "", &mut random, Calls::All);
            }
            let (main, clone) = (store.tree(""), store.tree("c"));
            if !store.merge(&options("c", None)).is_empty() {
                assert_eq!((store.tree(""), store.tree("c")), (main.clone(), clone.clone()));
                let all = [Choice::Ours, Choice::Theirs, Choice::Both];
                let choice = all[random.below(3) as usize];
                let left = store.merge(&options("c", Some(choice)));
                // Circles of moves are settled by ours alone.
                if !left.is_empty() {
                    assert_eq!(choice, Choice::Theirs, "seed {seed}: {left:?}");
                    let left = store.merge(&options("c", Some(Choice::Ours)));
                    assert_eq!(left, [], "seed {seed}, round {round}");
                }
            }
            assert_eq!(store.tree("c"), clone, "seed {seed}: the clone is as it was");
            if random.one_in(3) {
                let merged = store.tree("");
                let commit = store.w.db.undoable_commits().pop().expect("kept").number;
                let undo = TransactionOptions { undoable: true, ..Default::default() };
                let (id, against) = store.views.undo(commit, undo).expect("begun");
                assert_eq!(against, [], "seed {seed}");
                store.views.commit(id, Durability::Buffered).expect("undone");
                assert_eq!(store.tree(""), main, "seed {seed}: undone");
                store.check();
                let commit = store.w.db.undoable_commits().pop().expect("kept").number;
                let (id, _) = store.views.undo(commit, Default::default()).expect("begun");
                store.views.commit(id, Durability::Buffered).expect("done again");
                assert_eq!(store.tree(""), merged, "seed {seed}: done again");
            }
            assert_eq!(store.rebase("c"), [], "seed {seed}, round {round}");
            assert_eq!(store.tree("c"), store.tree(""), "seed {seed}, round {round}: rebased");
        }
    }
}

#[test]
fn a_transaction_is_rebased_as_a_clone_is_merged() {
    let (mut clean, mut refused) = (0, 0);
    for seed in seeds(40) {
        let choice = [None, Some(Choice::Ours), Some(Choice::Theirs)][(seed % 3) as usize];
        // The work is the same on both ways: in a clone of the store, or in a transaction.
        let run = |in_clone: bool| {
            let mut random = Random::new(seed);
            let store = Store::new();
            for _ in 0..25 {
                store.act("", "", &mut random, Calls::All);
            }
            store.clone_of("", "c");
            let id = store.views.begin(TransactionOptions::default()).expect("begun");
            let view = match in_clone {
                true => ViewId::of_branch("c"),
                false => ViewId::Transaction(id),
            };
            let fs = store.views.fs(&view).expect("open");
            for _ in 0..1 + random.below(8) {
                store.act_in(&fs, "", &mut random, Calls::All);
                store.act("", "", &mut random, Calls::All);
            }
            let before = store.tree("");
            let conflicts = match in_clone {
                true => store.merge(&options("c", choice)),
                false => {
                    let theirs = |choice| match choice {
                        Choice::Ours => Choice::Theirs,
                        Choice::Theirs | Choice::Both => Choice::Ours,
                    };
                    let choices: Vec<_> =
                        choice.into_iter().map(|one| (Vec::new(), theirs(one))).collect();
                    let never = |_: &str, _: &kvdb::Clash<'_>| kvdb::Settled::Conflict;
                    let rebased =
                        store.views.rebase(id, &choices, &never, &|_| Ok(true)).expect("rebased");
                    match rebased.transaction {
                        Some(new) => store.views.commit(new, Durability::Buffered).expect("whole"),
                        None => store.views.abort(id).expect("open"),
                    }
                    store.check();
                    let swapped = |one: MergeConflict| MergeConflict {
                        ours: one.theirs,
                        theirs: one.ours,
                        ..one
                    };
                    rebased.conflicts.into_iter().map(swapped).collect()
                }
            };
            if !conflicts.is_empty() {
                assert_eq!(store.tree(""), before, "seed {seed}: nothing was changed");
            }
            (store.tree(""), conflicts)
        };
        let (merged, rebased) = (run(true), run(false));
        assert_eq!(merged, rebased, "seed {seed}");
        if merged.1.is_empty() { clean += 1 } else { refused += 1 }
    }
    if std::env::var("KVFS_SEED").is_err() {
        assert!(clean > 5 && refused > 0, "{clean} without and {refused} with conflicts");
    }
}
