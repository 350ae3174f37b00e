//! Tests of merges of random changes on both sides.
//!
//! - What branches have changed apart from each other gives one tree in whatever order they are
//!   merged; to merge twice is to merge once; to merge after a rebase is to rebase after a merge.
//! - Without moves, each path is what one side has made of it, and a conflict is where both have
//!   (the oracle knows paths alone, no inodes).
//! - With moves and links, whatever is chosen: the trees are sound, nothing is changed by a
//!   conflict, and a rebase afterwards makes both sides alike.
//!
//! `KVFS_SEEDS=n` runs n seeds instead of the usual few; `KVFS_SEED=n` runs one.

use crate::random_tree::{Calls, Thing, Tree, act_in, oracle, seeds, tree};
use crate::world::World;
use env::Random;
use kvdb::{Durability, TransactionOptions};
use kvfs::{Choice, Fs, FsOptions, MergeConflict, MergeOptions, ROOT, ViewId, Views};

struct Store {
    w: World,
    views: Views,
}

fn options(clone: &str, choice: Option<Choice>) -> MergeOptions {
    let transaction = TransactionOptions { undoable: true, ..Default::default() };
    let choices = choice.into_iter().map(|choice| (Vec::new(), choice)).collect();
    MergeOptions { clone: clone.into(), choices, transaction, ..Default::default() }
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

    /// Returns the conflicts. If there are none, commits.
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
        act_in(&self.w, &self.fs(branch), within, random, calls);
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
                // Files outside of the directory may have been linked to.
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
            // A path that one side has removed and made again as it was counts as removed by the
            // other; by the path alone it would count as unchanged.
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
                // Cycles of moves are resolved by our side alone.
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
        // The work is the same in both cases: in a clone of the store, and in a transaction.
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
                act_in(&store.w, &fs, "", &mut random, Calls::All);
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
