//! Tests of clones that are merged into the branch that they were made of, and rebased on it. A
//! change of one side is taken as it was made. A change of both sides is a conflict with a path, or
//! is resolved as chosen. The trees stay consistent.

use crate::world::{USER, World};
use kvdb::{Durability, TransactionOptions};
use kvfs::{
    Choice, Deed, Fs, FsOptions, Ino, MergeConflict, MergeOptions, Merged, ROOT, RenameFlags,
    SetAttr, ViewId, Views,
};

struct Two {
    w: World,
    views: Views,
}

fn conflict(path: &str, ours: Deed, theirs: Deed) -> MergeConflict {
    MergeConflict { path: path.into(), key: false, ours, theirs }
}

fn of(clone: &str) -> MergeOptions {
    let transaction = TransactionOptions { undoable: true, ..Default::default() };
    MergeOptions { clone: clone.into(), transaction, ..Default::default() }
}

fn into(clone: &str, into: &str) -> MergeOptions {
    MergeOptions { into: Some(into.into()), ..of(clone) }
}

fn rebase(clone: &str) -> MergeOptions {
    MergeOptions { rebase: true, ..of(clone) }
}

fn chosen(path: &str, choice: Choice) -> MergeOptions {
    MergeOptions { choices: vec![(path.into(), choice)], ..of("c") }
}

fn content(fs: &Fs, path: &str) -> Option<Vec<u8>> {
    match fs.resolve(path.as_bytes()) {
        Ok(attr) => {
            let read = fs.read(attr.ino, 0, attr.size as u32).expect("read").to_vec();
            fs.forget(attr.ino, 1);
            Some(read)
        }
        Err(kvfs::Error::NotFound) => None,
        Err(e) => panic!("{path}: {e}"),
    }
}

fn ino(fs: &Fs, path: &str) -> Ino {
    fs.resolve(path.as_bytes()).expect(path).ino
}

fn split(path: &str) -> (&str, &[u8]) {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    (dir, name.as_bytes())
}

fn make(fs: &Fs, path: &str, data: &[u8]) -> Ino {
    let (dir, name) = split(path);
    let made = fs.mknod(ino(fs, dir), name, kvfs::FileKind::File, 0o644, 0, USER).expect("made");
    fs.write(made.ino, 0, data, Default::default()).expect("written");
    made.ino
}

fn write(fs: &Fs, path: &str, data: &[u8]) {
    fs.write(ino(fs, path), 0, data, Default::default()).expect("written");
}

fn mkdir(fs: &Fs, path: &str) {
    let (dir, name) = split(path);
    fs.mkdir(ino(fs, dir), name, 0o755, USER).expect("made");
}

fn rm(fs: &Fs, path: &str) {
    let (dir, name) = split(path);
    fs.unlink(ino(fs, dir), name).expect("removed");
}

fn rmdir(fs: &Fs, path: &str) {
    let (dir, name) = split(path);
    fs.rmdir(ino(fs, dir), name).expect("removed");
}

fn mv(fs: &Fs, from: &str, to: &str) {
    let ((dir, name), (to, new)) = (split(from), split(to));
    fs.rename(ino(fs, dir), name, ino(fs, to), new, RenameFlags::default()).expect("moved");
}

fn chmod(fs: &Fs, path: &str, perm: u16) {
    let set = SetAttr { mode: Some(perm), ..Default::default() };
    fs.setattr(ino(fs, path), &set, USER).expect("set");
}

impl Two {
    /// A tree in the main branch and in the clone `c` of it.
    fn new() -> Two {
        let (w, views) = World::with_views(FsOptions::default());
        for dir in ["a", "b", "a/sub"] {
            mkdir(&w.fs, dir);
        }
        for path in ["f", "g", "a/f", "a/sub/f", "b/f"] {
            make(&w.fs, path, path.as_bytes());
        }
        make(&w.fs, "large", &[7; 100_000]);
        let two = Two { w, views };
        two.branch(&ViewId::Mainline, "c");
        two
    }

    fn branch(&self, of: &ViewId, name: &str) {
        self.w.second();
        self.views.snapshot(of, "origin", Durability::Buffered).expect("made");
        self.views.clone_snapshot("origin", name).expect("made");
        self.views.drop_snapshot("origin").expect("dropped");
        self.w.second();
    }

    fn fs(&self, clone: &str) -> Fs {
        self.views.fs(&ViewId::of_branch(clone)).expect("there")
    }

    fn sides(&self) -> (Fs, Fs) {
        (self.fs(""), self.fs("c"))
    }

    fn begin(&self, options: &MergeOptions) -> Merged {
        self.w.second();
        self.views.merge(options, &|_, _| kvdb::Settled::Conflict).expect("merged")
    }

    fn check(&self) {
        for fs in [self.fs(""), self.fs("c")] {
            let report = fs.verify().expect("verified");
            assert_eq!(report.findings, [], "{report:?}");
        }
    }

    #[track_caller]
    fn merge(&self, options: &MergeOptions) {
        let merged = self.begin(options);
        assert_eq!(merged.conflicts, []);
        self.views.commit(merged.transaction, Durability::Buffered).expect("committed");
        self.check();
    }

    #[track_caller]
    fn conflicts(&self, options: &MergeOptions) -> Vec<MergeConflict> {
        let (before, clone) = (self.tree(""), self.tree("c"));
        let merged = self.begin(options);
        self.views.abort(merged.transaction).expect("aborted");
        self.check();
        assert_eq!((self.tree(""), self.tree("c")), (before, clone), "nothing was changed");
        merged.conflicts
    }

    /// Every path with what lies there.
    fn tree(&self, clone: &str) -> Vec<String> {
        tree(&self.fs(clone))
    }

    fn undo(&self) {
        let commit = self.w.db.undoable_commits().pop().expect("kept");
        let options = TransactionOptions { undoable: true, ..Default::default() };
        let (id, against) = self.views.undo(commit.number, options).expect("begun");
        assert_eq!(against, []);
        self.views.commit(id, Durability::Buffered).expect("undone");
        self.check();
    }
}

fn tree(fs: &Fs) -> Vec<String> {
    let mut all = Vec::new();
    let mut dirs = vec![(String::new(), ROOT)];
    while let Some((path, dir)) = dirs.pop() {
        let mut entries = Vec::new();
        fs.readdir(dir, 2, false, &mut |e| {
            entries.push((String::from_utf8_lossy(e.name).into_owned(), e.ino));
            true
        })
        .expect("listed");
        for (name, ino) in entries {
            let path = format!("{path}/{name}");
            let attr = fs.getattr(ino).expect("there");
            let data = match attr.kind {
                kvfs::FileKind::File => fs.read(ino, 0, attr.size as u32).expect("read").to_vec(),
                _ => Vec::new(),
            };
            let sum = data.iter().fold(0u64, |sum, b| sum.wrapping_mul(31) + u64::from(*b));
            all.push(format!("{path} {:?} {:o} {} {sum:x}", attr.kind, attr.perm, attr.nlink));
            if attr.kind == kvfs::FileKind::Dir {
                dirs.push((path, ino));
            }
        }
    }
    all.sort();
    all
}

#[test]
fn what_a_clone_has_changed_is_in_its_parent_and_the_rest_is_as_it_was() {
    let two = Two::new();
    let (main, clone) = two.sides();
    mkdir(&clone, "new");
    make(&clone, "new/large", &[9; 300_000]);
    write(&clone, "f", b"clone");
    clone.write(ino(&clone, "large"), 50_000, &[8; 100], Default::default()).expect("written");
    mv(&clone, "a/f", "b/moved");
    rm(&clone, "a/sub/f");
    rmdir(&clone, "a/sub");
    chmod(&clone, "b", 0o700);
    clone.link(ino(&clone, "g"), ROOT, b"second").expect("linked");
    clone.symlink(ROOT, b"link", b"new/large", USER).expect("made");
    clone.setxattr(ino(&clone, "g"), b"user.large", &[1; 5000], Default::default()).expect("set");
    make(&main, "a/main", b"main");
    write(&main, "b/f", b"main");
    two.merge(&of("c"));
    let mut expected = [7; 100_000];
    expected[50_000..50_100].fill(8);
    assert_eq!(content(&main, "large").expect("there"), expected);
    assert_eq!(content(&main, "new/large").expect("there"), [9; 300_000]);
    assert_eq!(content(&main, "f").expect("there"), b"clone");
    assert_eq!(content(&main, "b/moved").expect("there"), b"a/f");
    assert_eq!(content(&main, "b/f").expect("there"), b"main");
    assert_eq!(content(&main, "a/main").expect("there"), b"main");
    assert!(content(&main, "a/f").is_none() && main.resolve(b"a/sub").is_err());
    assert_eq!(two.w.stat("b").perm, 0o700);
    assert_eq!((two.w.stat("g").nlink, two.w.stat("g").ino), (2, two.w.stat("second").ino));
    let value = main.getxattr(two.w.stat("g").ino, b"user.large").expect("there");
    assert_eq!(&value[..], [1; 5000]);
    assert_eq!(&main.readlink(two.w.stat("link").ino).expect("a link")[..], b"new/large");
    // The clone is unchanged.
    assert!(content(&clone, "a/main").is_none());
    // Another merge changes nothing.
    let before = two.tree("");
    two.merge(&of("c"));
    assert_eq!(two.tree(""), before);
}

#[test]
fn times_that_one_side_has_changed_take_nothing_of_the_other_away() {
    let two = Two::new();
    let (main, clone) = two.sides();
    let at = |secs| Some(kvfs::TimeSet::At(kvfs::Timestamp { secs, nanos: 7 }));
    let set = |fs: &Fs, path: &str, set: SetAttr| {
        fs.setattr(ino(fs, path), &set, USER).expect("set");
    };
    for path in ["f", "g", "large"] {
        set(&clone, path, SetAttr { atime: at(5_000), mtime: at(6_000), ..Default::default() });
    }
    chmod(&main, "f", 0o600);
    main.setxattr(ino(&main, "f"), b"user.x", &[7; 2000], Default::default()).expect("set");
    // The files are left as `rsync -t` and `cp -p` leave them: with other content and the times of
    // before.
    for path in ["g", "large"] {
        let times = main.getattr(ino(&main, path)).expect("there");
        main.write(ino(&main, path), 0, b"!", Default::default()).expect("written");
        let [atime, mtime] = [times.atime, times.mtime].map(|t| Some(kvfs::TimeSet::At(t)));
        set(&main, path, SetAttr { atime, mtime, ..Default::default() });
    }
    two.merge(&of("c"));
    let f = main.getattr(ino(&main, "f")).expect("there");
    assert_eq!((f.perm, f.mtime.secs), (0o600, 6_000));
    assert_eq!(main.getxattr(f.ino, b"user.x").expect("there"), [7; 2000]);
    assert_eq!(content(&main, "g").as_deref(), Some(&b"!"[..]));
    assert_eq!(&content(&main, "large").expect("there")[..2], b"!\x07");
}

#[test]
fn a_rebase_brings_into_the_clone_what_its_parent_has_changed() {
    let two = Two::new();
    let (main, clone) = two.sides();
    make(&clone, "of clone", b"1");
    write(&main, "f", b"main");
    mv(&main, "b", "a/b");
    let before = two.tree("");
    two.merge(&rebase("c"));
    assert_eq!(two.tree(""), before);
    assert_eq!(content(&clone, "f").expect("there"), b"main");
    assert_eq!(content(&clone, "a/b/f").expect("there"), b"b/f");
    assert_eq!(content(&clone, "of clone").expect("there"), b"1");
    two.merge(&of("c"));
    assert_eq!(two.tree(""), two.tree("c"));
}

#[test]
fn a_clone_is_merged_again_with_what_it_has_changed_since() {
    let two = Two::new();
    let (main, clone) = two.sides();
    write(&clone, "f", b"first");
    make(&clone, "made", b"first");
    two.merge(&of("c"));
    write(&clone, "f", b"secnd");
    write(&clone, "made", b"secnd");
    write(&main, "g", b"main");
    two.merge(&of("c"));
    assert_eq!(content(&main, "f").expect("there"), b"secnd");
    assert_eq!(content(&main, "made").expect("there"), b"secnd");
    // A change by the parent since the last merge is a change of its own.
    write(&main, "made", b"main!");
    two.merge(&of("c"));
    assert_eq!(content(&main, "made").expect("there"), b"main!");
    write(&clone, "made", b"clone");
    let both = conflict("made", Deed::Changed, Deed::Changed);
    assert_eq!(two.conflicts(&of("c")), [both]);
    for round in 0..6u8 {
        write(&clone, "f", &[b'0' + round; 5]);
        write(&main, "g", &[b'0' + round; 4]);
        two.merge(&MergeOptions { choices: vec![("made".into(), Choice::Ours)], ..of("c") });
        two.merge(&rebase("c"));
        assert_eq!(content(&main, "f").expect("there"), [b'0' + round; 5]);
        assert_eq!(content(&clone, "g").expect("there")[..4], [b'0' + round; 4][..1].repeat(4)[..]);
    }
    assert!(two.w.db.lineage("c").expect("known").kept.len() <= 4);
}

#[test]
fn a_merge_is_undone_as_any_commit_and_can_be_done_again() {
    let two = Two::new();
    let (main, clone) = two.sides();
    write(&clone, "f", b"clone");
    make(&clone, "made", b"1");
    rm(&clone, "a/f");
    let before = two.tree("");
    two.merge(&of("c"));
    let merged = two.tree("");
    two.undo();
    assert_eq!(two.tree(""), before);
    two.merge(&of("c"));
    assert_eq!(two.tree(""), merged);
    // An earlier one, after a later one.
    write(&clone, "g", b"later");
    two.merge(&of("c"));
    let all = two.tree("");
    let commits = two.w.db.undoable_commits();
    let first = commits[commits.len() - 2].number;
    let options = TransactionOptions { undoable: true, ..Default::default() };
    let (id, against) = two.views.undo(first, options).expect("begun");
    assert_eq!(against, []);
    two.views.commit(id, Durability::Buffered).expect("undone");
    assert_eq!(content(&main, "made"), None);
    assert_eq!(content(&main, "g").expect("there"), b"later");
    two.merge(&of("c"));
    assert_eq!(two.tree(""), all);
}

#[test]
fn a_rollback_of_either_side_is_noticed() {
    let two = Two::new();
    let (main, clone) = two.sides();
    two.views.snapshot(&ViewId::Mainline, "before", Durability::Buffered).expect("made");
    let of_clone = ViewId::Clone("c".into());
    write(&clone, "f", b"one");
    two.views.snapshot(&of_clone, "in clone", Durability::Buffered).expect("made");
    write(&clone, "g", b"two");
    two.merge(&of("c"));
    let merged = two.tree("");
    two.views.rollback("before").expect("rolled back");
    assert_eq!(content(&main, "f").expect("there"), b"f");
    two.merge(&of("c"));
    assert_eq!(two.tree(""), merged);
    // The clone is rolled back, so its parent has changes that it no longer has.
    two.views.rollback("in clone").expect("rolled back");
    two.merge(&of("c"));
    assert_eq!(two.tree(""), merged);
    two.merge(&rebase("c"));
    assert_eq!(two.tree("c"), merged);
}

#[test]
fn conflicts_name_the_path_and_what_each_side_has_done() {
    let two = Two::new();
    let (main, clone) = two.sides();
    write(&main, "f", b"main");
    write(&clone, "f", b"clone");
    rm(&main, "a/f");
    write(&clone, "a/f", b"clone");
    write(&main, "b/f", b"main");
    rm(&clone, "b/f");
    make(&main, "new", b"main");
    make(&clone, "new", b"clone");
    mv(&main, "g", "a/here");
    mv(&clone, "g", "b/there");
    chmod(&main, "a", 0o700);
    chmod(&clone, "a", 0o711);
    let found = two.conflicts(&of("c"));
    assert_eq!(
        found,
        [
            conflict("a", Deed::Changed, Deed::Changed),
            conflict("a/f", Deed::Removed, Deed::Changed),
            conflict("b/f", Deed::Changed, Deed::Removed),
            conflict("b/there", Deed::Moved, Deed::Moved),
            conflict("f", Deed::Changed, Deed::Changed),
            conflict("new", Deed::Made, Deed::Made),
        ]
    );
    let turned: Vec<String> = two
        .conflicts(&rebase("c"))
        .into_iter()
        .map(|one| String::from_utf8_lossy(&one.path).into_owned())
        .collect();
    assert_eq!(turned, ["a", "a/f", "a/here", "b/f", "f", "new"]);
    // A refused merge changes nothing, so it is refused again.
    assert_eq!(two.conflicts(&of("c")), found);
    assert!(two.w.db.lineage("c").expect("known").kept.is_empty());
}

#[test]
fn ours_and_theirs_are_taken_by_path() {
    for (choice, expected) in [(Choice::Ours, &b"main"[..]), (Choice::Theirs, b"clone")] {
        let two = Two::new();
        let (main, clone) = two.sides();
        make(&main, "new", b"main");
        make(&clone, "new", b"clone");
        write(&main, "large", &[1; 5]);
        clone.write(ino(&clone, "large"), 90_000, &[2; 9000], Default::default()).expect("written");
        write(&main, "b/f", b"main");
        rm(&clone, "b/f");
        rm(&main, "a/f");
        write(&clone, "a/f", b"clone");
        two.merge(&chosen("", choice));
        assert_eq!(content(&main, "new").expect("there"), expected);
        let large = content(&main, "large").expect("there");
        let theirs = content(&clone, "large").expect("there");
        assert_eq!(large == theirs, choice == Choice::Theirs);
        assert_eq!(large[..5] == [1; 5], choice == Choice::Ours);
        assert_eq!(content(&main, "b/f").is_some(), choice == Choice::Ours);
        assert_eq!(content(&main, "a/f").is_some(), choice == Choice::Theirs);
    }
}

#[test]
fn both_versions_lie_beside_each_other() {
    let two = Two::new();
    let (main, clone) = two.sides();
    make(&main, "new", b"main");
    make(&clone, "new", b"clone");
    write(&main, "large", &[1; 5]);
    write(&clone, "large", &[2; 5]);
    rm(&main, "a/f");
    write(&clone, "a/f", b"clone");
    two.merge(&chosen("", Choice::Both));
    assert_eq!(content(&main, "new").expect("there"), b"main");
    assert_eq!(content(&main, "new~c").expect("there"), b"clone");
    assert_eq!(content(&main, "large").expect("there")[..6], [1, 1, 1, 1, 1, 7]);
    assert_eq!(content(&main, "large~c").expect("there")[..6], [2, 2, 2, 2, 2, 7]);
    assert_eq!(content(&main, "a/f").expect("there"), b"clone");
}

#[test]
fn a_choice_covers_what_is_below_and_the_longest_counts() {
    let two = Two::new();
    let (main, clone) = two.sides();
    for path in ["a/f", "a/sub/f", "f"] {
        write(&main, path, b"main!");
        write(&clone, path, b"clone");
    }
    let choices = vec![("a/".into(), Choice::Theirs), ("/a/sub/f".into(), Choice::Ours)];
    let options = MergeOptions { choices, ..of("c") };
    assert_eq!(two.conflicts(&options), [conflict("f", Deed::Changed, Deed::Changed)]);
    rm(&clone, "f");
    make(&clone, "f", b"main!");
    two.merge(&options);
    assert_eq!(content(&main, "a/f").expect("there")[..5], *b"clone");
    assert_eq!(content(&main, "a/sub/f").expect("there")[..5], *b"main!");
}

#[test]
fn what_both_have_made_alike_is_no_conflict_then_and_later() {
    let two = Two::new();
    let (main, clone) = two.sides();
    for fs in [&main, &clone] {
        mkdir(fs, "out");
        mkdir(fs, "out/deep");
        make(fs, "out/deep/same", &[5; 20_000]);
        write(fs, "f", b"same");
        rm(fs, "g");
    }
    make(&main, "out/main", b"main");
    make(&clone, "out/deep/clone", b"clone");
    two.merge(&of("c"));
    assert_eq!(content(&main, "out/deep/clone").expect("there"), b"clone");
    assert_eq!(content(&main, "out/main").expect("there"), b"main");
    // They are known by different numbers, and are the same file all the same.
    write(&clone, "out/deep/same", b"later");
    make(&clone, "out/again", b"clone");
    rm(&clone, "out/deep/clone");
    two.merge(&of("c"));
    assert_eq!(content(&main, "out/deep/same").expect("there")[..6], *b"later\x05");
    assert!(content(&main, "out/again").is_some() && content(&main, "out/deep/clone").is_none());
    two.merge(&rebase("c"));
    assert_eq!(two.tree(""), two.tree("c"));
}

#[test]
fn a_directory_that_one_removes_and_the_other_fills() {
    let (filled, removed) = (Deed::Filled, Deed::Removed);
    for choice in [None, Some(Choice::Ours), Some(Choice::Theirs)] {
        let two = Two::new();
        let (main, clone) = two.sides();
        make(&main, "a/sub/main", b"main");
        rm(&clone, "a/sub/f");
        rmdir(&clone, "a/sub");
        match choice {
            None => {
                assert_eq!(two.conflicts(&of("c")), [conflict("a/sub", filled, removed)]);
                assert_eq!(two.conflicts(&rebase("c")), [conflict("a/sub/main", removed, filled)]);
            }
            Some(choice) => {
                two.merge(&chosen("a/sub", choice));
                let stays = choice == Choice::Ours;
                assert_eq!(content(&main, "a/sub/main").is_some(), stays);
                assert_eq!(content(&main, "a/sub/f").is_some(), stays);
                assert_eq!(main.resolve(b"a/sub").is_ok(), stays);
            }
        }
    }
    let two = Two::new();
    let (main, clone) = two.sides();
    make(&clone, "a/sub/clone", b"clone");
    rm(&main, "a/sub/f");
    rmdir(&main, "a/sub");
    two.merge(&chosen("a/sub", Choice::Theirs));
    assert_eq!(content(&main, "a/sub/clone").expect("there"), b"clone");
}

#[test]
fn a_directory_that_one_removes_and_the_other_changes() {
    let (changed, removed) = (Deed::Changed, Deed::Removed);
    for choice in [None, Some(Choice::Ours), Some(Choice::Theirs)] {
        let two = Two::new();
        let (main, clone) = two.sides();
        rm(&main, "a/sub/f");
        two.merge(&rebase("c"));
        let set = SetAttr { mode: Some(0o700), ..Default::default() };
        main.setattr(main.resolve(b"a/sub").expect("there").ino, &set, USER).expect("set");
        rmdir(&clone, "a/sub");
        match choice {
            None => {
                assert_eq!(two.conflicts(&of("c")), [conflict("a/sub", changed, removed)]);
                assert_eq!(two.conflicts(&rebase("c")), [conflict("a/sub", removed, changed)]);
            }
            Some(choice) => {
                two.merge(&chosen("a/sub", choice));
                let left = main.resolve(b"a/sub").ok().map(|attr| attr.perm);
                assert_eq!(left, (choice == Choice::Ours).then_some(0o700));
            }
        }
    }
}

#[test]
fn two_moves_make_no_circle() {
    let two = Two::new();
    let (main, clone) = two.sides();
    mv(&main, "a", "b/a");
    mv(&clone, "b", "a/b");
    assert_eq!(two.conflicts(&of("c")), [conflict("a/b", Deed::Moved, Deed::Moved)]);
    two.merge(&chosen("a/b", Choice::Ours));
    assert_eq!(content(&main, "b/a/f").expect("there"), b"a/f");
}

#[test]
fn directories_that_both_have_moved() {
    for choice in [Choice::Ours, Choice::Theirs] {
        let two = Two::new();
        let (main, clone) = two.sides();
        mv(&main, "a/sub", "b/main");
        mv(&clone, "a/sub", "b/clone");
        make(&clone, "b/clone/new", b"clone");
        let both = conflict("b/clone", Deed::Moved, Deed::Moved);
        assert_eq!(two.conflicts(&of("c")), [both]);
        two.merge(&chosen("b", choice));
        let (there, gone) =
            if choice == Choice::Ours { ("main", "clone") } else { ("clone", "main") };
        assert_eq!(content(&main, &format!("b/{there}/f")).expect("there"), b"a/sub/f");
        assert_eq!(content(&main, &format!("b/{there}/new")).expect("there"), b"clone");
        assert!(main.resolve(format!("b/{gone}").as_bytes()).is_err());
    }
    let two = Two::new();
    let (main, clone) = two.sides();
    for fs in [&main, &clone] {
        mv(fs, "a/sub", "b/same");
    }
    two.merge(&of("c"));
    // One has moved what the other has removed.
    mv(&main, "b/same", "a/again");
    rm(&clone, "b/same/f");
    rmdir(&clone, "b/same");
    assert_eq!(two.conflicts(&of("c")), [conflict("b/same", Deed::Moved, Deed::Removed)]);
    two.merge(&chosen("b/same", Choice::Ours));
    assert_eq!(content(&main, "a/again/f").expect("there"), b"a/sub/f");
}

#[test]
fn names_of_one_file_are_counted_as_both_sides_have_them() {
    let two = Two::new();
    let (main, clone) = two.sides();
    main.link(ino(&main, "f"), ino(&main, "a"), b"main").expect("linked");
    clone.link(ino(&clone, "f"), ino(&clone, "b"), b"clone").expect("linked");
    clone.link(ino(&clone, "f"), ino(&clone, "b"), b"clone2").expect("linked");
    write(&main, "f", b"main");
    two.merge(&of("c"));
    assert_eq!(two.w.stat("f").nlink, 4);
    assert_eq!(content(&main, "b/clone").expect("there"), b"main");
    rm(&clone, "f");
    rm(&main, "a/main");
    two.merge(&of("c"));
    assert_eq!(two.w.stat("b/clone").nlink, 2);
}

#[test]
fn a_file_of_which_each_side_has_removed_the_name_that_the_other_has_left() {
    for choice in [None, Some(Choice::Ours), Some(Choice::Theirs)] {
        let two = Two::new();
        let (main, clone) = two.sides();
        main.link(ino(&main, "f"), ROOT, b"second").expect("linked");
        two.merge(&rebase("c"));
        rm(&main, "f");
        rm(&clone, "second");
        match choice {
            None => {
                let both = conflict("f", Deed::Removed, Deed::Removed);
                assert_eq!(two.conflicts(&of("c")), [both]);
            }
            Some(choice) => {
                two.merge(&chosen("f", choice));
                let (there, gone) =
                    if choice == Choice::Ours { ("second", "f") } else { ("f", "second") };
                assert_eq!(content(&main, there).expect("there"), b"f");
                assert!(content(&main, gone).is_none());
            }
        }
    }
}

#[test]
fn a_file_that_is_replaced_is_the_same_path() {
    let two = Two::new();
    let (main, clone) = two.sides();
    // Replaces a file as editors do.
    let replace = |fs: &Fs, path: &str, data: &[u8]| {
        make(fs, "tmp", data);
        mv(fs, "tmp", path);
    };
    replace(&main, "f", b"main");
    replace(&clone, "g", b"clone");
    two.merge(&of("c"));
    assert_eq!(content(&main, "g").expect("there"), b"clone");
    write(&clone, "f", b"in place");
    let both = conflict("f", Deed::Changed, Deed::Changed);
    assert_eq!(two.conflicts(&of("c")), std::slice::from_ref(&both));
    replace(&clone, "f", b"replaced");
    assert_eq!(two.conflicts(&of("c")), [both]);
    two.merge(&chosen("f", Choice::Theirs));
    assert_eq!(content(&main, "f").expect("there"), b"replaced");
}

#[test]
fn files_that_are_open_in_the_parent_are_as_after_any_commit() {
    let two = Two::new();
    let (main, clone) = two.sides();
    let (changed, removed) = (ino(&main, "f"), ino(&main, "large"));
    write(&clone, "f", b"clone");
    rm(&clone, "large");
    two.merge(&of("c"));
    assert_eq!(&main.read(changed, 0, 10).expect("read")[..], b"clone");
    assert_eq!(&main.read(removed, 0, 200_000).expect("it is open")[..], [7; 100_000]);
    assert_eq!(main.getattr(removed).expect("it is open").nlink, 0);
    main.forget(removed, 1);
    two.check();
}

#[test]
fn clones_of_clones_are_merged_into_their_own_parent() {
    let two = Two::new();
    let (main, clone) = two.sides();
    write(&clone, "f", b"clone");
    two.branch(&ViewId::Clone("c".into()), "below");
    let below = two.fs("below");
    write(&below, "g", b"below");
    make(&below, "new", b"below");
    let merged = two.begin(&of("below"));
    assert_eq!((merged.into.as_str(), merged.from.as_str()), ("c", "below"));
    two.views.commit(merged.transaction, Durability::Buffered).expect("committed");
    assert_eq!(content(&clone, "new").expect("there"), b"below");
    assert!(content(&main, "new").is_none());
    two.merge(&of("c"));
    assert_eq!(content(&main, "new").expect("there"), b"below");
    assert_eq!(content(&main, "g").expect("there"), b"below");
    two.views.drop_clone("c").expect("dropped");
    assert!(two.views.merge(&of("below"), &|_, _| kvdb::Settled::Conflict).is_err());
    assert_eq!(two.w.fs.verify().expect("verified").findings, []);
}

#[test]
fn a_dry_run_and_an_abort_leave_nothing_behind() {
    let two = Two::new();
    let (main, clone) = two.sides();
    write(&clone, "f", b"clone");
    let before = two.tree("");
    let looked = two.begin(&MergeOptions { dry_run: true, ..of("c") });
    let inside = two.views.fs(&ViewId::Transaction(looked.transaction)).expect("open");
    assert_eq!(content(&inside, "f").expect("there"), b"clone");
    two.views.abort(looked.transaction).expect("aborted");
    assert!(two.w.db.lineage("c").expect("known").kept.is_empty());
    let merged = two.begin(&of("c"));
    two.views.abort(merged.transaction).expect("aborted");
    assert_eq!(two.tree(""), before);
    // A dry run and an aborted merge do not count as merges.
    two.merge(&of("c"));
    assert_eq!(content(&main, "f").expect("there"), b"clone");
}

#[test]
fn of_two_that_are_open_the_first_to_commit_wins() {
    let two = Two::new();
    let (_, clone) = two.sides();
    write(&clone, "f", b"clone");
    let (a, b) = (two.begin(&of("c")), two.begin(&of("c")));
    two.views.commit(a.transaction, Durability::Buffered).expect("committed");
    let late = two.views.commit(b.transaction, Durability::Buffered);
    assert!(matches!(late, Err(kvfs::Error::Store(kvdb::Error::Conflict { .. }))), "{late:?}");
    two.check();
}

#[test]
fn keys_and_dictionaries_go_the_same_way() {
    let (w, views) = World::with_views(FsOptions::default());
    let put = |branch: &str, name: &str, key: &str, value: &str| {
        let dict = w.db.open_dictionary_in(branch, name).expect("there").id();
        w.db.put(dict, key.as_bytes(), value.as_bytes(), Durability::Buffered).expect("put");
    };
    let get = |branch: &str, name: &str, key: &str| {
        let dict = w.db.dictionary_in(branch, name).expect("there");
        w.db.get(dict, key.as_bytes())
            .expect("read")
            .map(|v| String::from_utf8_lossy(&v).into_owned())
    };
    for name in ["fruit", "dropped", "kept"] {
        put("", name, "apple", "green");
    }
    let two = Two { w: World { db: w.db.clone(), env: w.env.clone(), fs: w.fs.clone() }, views };
    two.branch(&ViewId::Mainline, "c");
    put("c", "fruit", "apple", "red");
    put("c", "made", "pear", &"long ".repeat(10_000));
    put("", "fruit", "plum", "blue");
    let drop = |name| two.w.db.drop_dictionary(two.w.db.dictionary_in("c", name).expect("there"));
    drop("dropped").expect("dropped");
    drop("kept").expect("dropped");
    put("", "kept", "apple", "changed");
    let keys = |conflicts: Vec<MergeConflict>| -> Vec<String> {
        assert!(conflicts.iter().all(|one| one.key));
        conflicts.into_iter().map(|one| String::from_utf8_lossy(&one.path).into_owned()).collect()
    };
    assert_eq!(keys(two.conflicts(&of("c"))), ["kept"]);
    put("", "fruit", "apple", "yellow");
    assert_eq!(keys(two.conflicts(&of("c"))), ["fruit:apple", "kept"]);
    let choices = vec![("fruit:apple".into(), Choice::Theirs), ("kept".into(), Choice::Ours)];
    two.merge(&MergeOptions { choices, ..of("c") });
    assert_eq!(get("", "fruit", "apple").as_deref(), Some("red"));
    assert_eq!(get("", "fruit", "plum").as_deref(), Some("blue"));
    assert_eq!(get("", "made", "pear"), Some("long ".repeat(10_000)));
    assert_eq!(get("", "kept", "apple").as_deref(), Some("changed"));
    assert_eq!(get("", "dropped", "apple"), None);
}

#[test]
fn a_clone_is_merged_into_its_sibling_and_both_into_their_parent() {
    let two = Two::new();
    two.views.snapshot(&ViewId::Mainline, "later", Durability::Buffered).expect("made");
    make(&two.fs(""), "theirs", b"of the store");
    two.branch(&ViewId::Mainline, "d");
    let (c, d) = (two.fs("c"), two.fs("d"));
    make(&c, "from-c", b"c");
    write(&c, "f", b"C");
    rm(&c, "a/f");
    make(&d, "from-d", b"d");
    write(&d, "g", b"D");
    let merged = two.begin(&into("c", "d"));
    assert_eq!((&*merged.from, &*merged.into), ("c", "d"));
    assert_eq!(merged.conflicts, []);
    two.views.commit(merged.transaction, Durability::Buffered).expect("committed");
    assert_eq!(content(&d, "from-c").as_deref(), Some(&b"c"[..]));
    assert_eq!(content(&d, "f").as_deref(), Some(&b"C"[..]));
    assert_eq!(content(&d, "g").as_deref(), Some(&b"D"[..]));
    assert_eq!((content(&d, "a/f"), content(&c, "from-d")), (None, None));
    // Files that were made since the common state stay in place.
    assert_eq!(content(&d, "theirs").as_deref(), Some(&b"of the store"[..]));
    assert_eq!(content(&two.fs(""), "from-c"), None);
    // Merges again, with later changes. The result of the first merge is not a conflict.
    write(&d, "from-c", b"D of c");
    make(&c, "more", b"more");
    two.merge(&into("c", "d"));
    assert_eq!(content(&d, "more").as_deref(), Some(&b"more"[..]));
    assert_eq!(content(&d, "from-c").as_deref(), Some(&b"D of c"[..]));
    // Both can still be merged into their parent, in any order, since their common changes are
    // equal.
    two.merge(&of("d"));
    write(&c, "g", b"c g");
    let conflicts = two.conflicts(&of("c")).into_iter().map(|one| one.path);
    assert_eq!(conflicts.collect::<Vec<_>>(), [&b"from-c"[..], b"g"]);
    for clone in ["c", "d"] {
        let report = two.fs(clone).verify().expect("verified");
        assert_eq!(report.findings, [], "{report:?}");
    }
}

#[test]
fn what_both_siblings_have_changed_is_a_conflict() {
    let two = Two::new();
    two.branch(&ViewId::Mainline, "d");
    let (c, d) = (two.fs("c"), two.fs("d"));
    write(&c, "f", b"c");
    write(&d, "f", b"d");
    assert_eq!(two.conflicts(&into("c", "d")), [conflict("f", Deed::Changed, Deed::Changed)]);
    assert_eq!(content(&d, "f").as_deref(), Some(&b"d"[..]));
    two.merge(&MergeOptions { choices: vec![(b"f".into(), Choice::Theirs)], ..into("c", "d") });
    assert_eq!(content(&d, "f").as_deref(), Some(&b"c"[..]));
}

#[test]
fn a_clone_of_a_clone_is_merged_past_its_parent() {
    let two = Two::new();
    let c = two.fs("c");
    make(&c, "of-c", b"c");
    two.branch(&ViewId::Clone("c".into()), "e");
    let e = two.fs("e");
    make(&e, "of-e", b"e");
    make(&c, "later", b"not of e");
    make(&two.fs(""), "outside", b"outside");
    two.merge(&into("e", ""));
    let main = two.fs("");
    // Files that it has from its parent are merged with it.
    assert_eq!(content(&main, "of-c").as_deref(), Some(&b"c"[..]));
    assert_eq!(content(&main, "of-e").as_deref(), Some(&b"e"[..]));
    assert_eq!(content(&main, "later"), None);
    assert_eq!(content(&main, "outside").as_deref(), Some(&b"outside"[..]));
    // The other direction: merges into a clone of its parent.
    two.branch(&ViewId::Clone("e".into()), "g");
    make(&c, "down", b"down");
    two.merge(&into("c", "g"));
    assert_eq!(content(&two.fs("g"), "down").as_deref(), Some(&b"down"[..]));
    // Its own parent by name is its parent.
    two.merge(&into("e", "c"));
    assert_eq!(content(&c, "of-e").as_deref(), Some(&b"e"[..]));
}

#[test]
fn what_shares_nothing_is_not_merged_and_says_so() {
    let two = Two::new();
    two.w.db.create_branch("empty").expect("made");
    let refused = |options: &MergeOptions, why: &str| {
        let merged = two.views.merge(options, &|_, _| kvdb::Settled::Conflict);
        let said = merged.map(|merged| merged.transaction).expect_err("refused").to_string();
        assert!(said.contains(why), "{said}");
    };
    refused(&into("c", "c"), "not merged into itself");
    refused(&into("c", "nothing"), "no branch nothing");
    refused(&into("nothing", "c"), "no branch nothing");
    refused(&into("c", "empty"), "clone c and clone empty share no state that is known");
    refused(&into("empty", ""), "clone empty and the store share no state that is known");
    two.branch(&ViewId::Mainline, "d");
    refused(&MergeOptions { rebase: true, ..into("c", "d") }, "rebased onto what it was made of");
    two.check();
}
