//! Tests of undoing the commit of a transaction. Its files and keys are as they were before, and
//! later changes of others stay.

use std::sync::Arc;

use crate::world::{USER, World, branch, of_branch};
use kvdb::{Durability, TransactionId, TransactionOptions};
use kvfs::{
    ChangeSet, CommittedTo, Fs, FsOptions, Ino, PathChange, ROOT, RenameFlags, Running, SetAttr,
    TimeSet, ViewId, Views, Wait, Watcher,
};

struct Both {
    w: World,
    views: Views,
}

impl Both {
    fn new() -> Both {
        let (w, views) = World::with_views(FsOptions::default());
        Both { w, views }
    }

    /// Does something in a transaction that can be undone, and commits it.
    fn commit(&self, work: impl FnOnce(&Fs)) {
        let options = TransactionOptions { undoable: true, ..of_branch() };
        let id = self.views.begin(options).expect("begun");
        work(&self.views.fs(&ViewId::Transaction(id)).expect("its view"));
        self.views.commit(id, Durability::Buffered).expect("committed");
        self.w.check();
    }

    fn undoing(&self) -> (TransactionId, usize) {
        let commit = self.w.db.undoable_commits().pop().expect("it was kept");
        let options = TransactionOptions { undoable: true, ..of_branch() };
        let (id, against) = self.views.undo(commit.number, options).expect("begun");
        (id, against.len())
    }

    #[track_caller]
    fn undo(&self) {
        let (id, against) = self.undoing();
        assert_eq!(against, 0, "it can be undone");
        self.views.commit(id, Durability::Buffered).expect("undone");
        self.w.check();
    }

    #[track_caller]
    fn refused(&self) {
        let (id, against) = self.undoing();
        assert!(against > 0, "it was changed since");
        self.views.abort(id).expect("aborted");
        self.w.check();
    }
}

fn read(fs: &Fs, path: &str) -> Vec<u8> {
    let attr = fs.resolve(path.as_bytes()).expect("there");
    fs.read(attr.ino, 0, attr.size as u32).expect("read").to_vec()
}

#[test]
fn files_directories_and_links_are_as_they_were() {
    let b = Both::new();
    let w = &b.w;
    let dir = w.dir(ROOT, "dir");
    let f = w.file_with(dir, "f", b"before");
    let large = w.file_with(dir, "large", &[7; 300_000]);
    for ino in [f, large] {
        w.fs.sync_all().expect("synced");
        w.fs.forget(ino, 1);
    }
    w.second();
    let before: Vec<_> = ["dir", "dir/f", "dir/large"].map(|path| w.stat(path)).into();
    b.commit(|t| {
        t.write(f, 0, b"after!", Default::default()).expect("written");
        t.unlink(dir, b"large").expect("removed");
        t.link(f, dir, b"second").expect("linked");
        let sub = t.mkdir(dir, b"sub", 0o700, USER).expect("made").ino;
        t.rename(dir, b"f", sub, b"moved", RenameFlags::default()).expect("moved");
        t.setxattr(dir, b"user.note", b"new", Default::default()).expect("set");
    });
    assert!(!w.exists("dir/large") && !w.exists("dir/f"));
    let elsewhere = w.file_with(dir, "since", b"since");
    b.undo();
    assert_eq!(read(&w.fs, "dir/f"), b"before");
    assert_eq!(read(&w.fs, "dir/large"), [7; 300_000]);
    assert_eq!(w.list(dir), [".", "..", "f", "large", "since"]);
    assert_eq!(w.read_all(elsewhere), b"since");
    for (path, before) in ["dir/f", "dir/large"].iter().zip(&before[1..]) {
        let now = w.stat(path);
        assert_eq!((now.ino, now.nlink, now.mtime), (before.ino, before.nlink, before.mtime));
    }
    assert_eq!(w.stat("dir").size, before[0].size + 1);
    assert!(w.fs.getxattr(dir, b"user.note").is_err());
    // Another undo brings it back.
    b.undo();
    assert!(w.exists("dir/sub/moved") && !w.exists("dir/large"));
}

fn unlinked_while_open(len: usize) -> (Both, Ino) {
    let b = Both::new();
    let ino = b.w.file_with(ROOT, "f", &vec![7; len]);
    b.w.fs.setxattr(ino, b"user.large", &[1; 5000], Default::default()).expect("set");
    b.w.fs.sync_all().expect("synced");
    b.commit(|t| t.unlink(ROOT, b"f").expect("removed"));
    assert_eq!(b.w.fs.getattr(ino).expect("it is open").nlink, 0);
    (b, ino)
}

#[test]
fn a_file_that_was_open_and_was_closed_since_has_its_content() {
    for len in [10, 5000, 300_000] {
        let (b, ino) = unlinked_while_open(len);
        b.w.fs.forget(ino, 1);
        b.undo();
        assert_eq!(read(&b.w.fs, "f"), vec![7; len]);
        let value = b.w.fs.getxattr(b.w.stat("f").ino, b"user.large").expect("there");
        assert_eq!(&value[..], [1; 5000]);
    }
}

#[test]
fn a_file_that_is_open_still_is_the_file_again() {
    for len in [10, 5000, 300_000] {
        let (b, ino) = unlinked_while_open(len);
        b.undo();
        assert_eq!(b.w.stat("f").ino, ino);
        assert_eq!(b.w.fs.getattr(ino).expect("open").nlink, 1);
        b.w.write(ino, len as u64, b"more");
        b.w.fs.sync_all().expect("synced");
        b.w.fs.forget(ino, 2);
        assert_eq!(read(&b.w.fs, "f").len(), len + 4);
    }
}

#[test]
fn a_file_that_was_written_to_without_a_name_is_not_brought_back() {
    for len in [10, 5000, 300_000] {
        let (b, ino) = unlinked_while_open(len);
        b.w.second();
        b.w.write(ino, 3, b"after");
        let (id, against) = b.undoing();
        let committed = b.views.commit(id, Durability::Buffered);
        assert!(against > 0 || committed.is_err(), "it has other content");
        let _ = b.views.abort(id);
        assert!(!b.w.exists("f"));
        assert_eq!(b.w.read(ino, 3, 5), b"after");
    }
}

#[test]
fn what_was_written_without_a_name_counts_whatever_its_time_says() {
    for (len, set_back) in [10, 5000, 300_000].map(|len| [(len, false), (len, true)]).concat() {
        let (b, ino) = unlinked_while_open(len);
        let before = b.w.fs.getattr(ino).expect("it is open").mtime;
        if set_back {
            b.w.second();
        }
        b.w.write(ino, 3, b"after");
        if set_back {
            let back = SetAttr { mtime: Some(TimeSet::At(before)), ..Default::default() };
            b.w.fs.setattr(ino, &back, USER).expect("set");
        }
        let now = b.w.fs.getattr(ino).expect("it is open");
        assert_eq!((now.mtime, now.size), (before, len as u64), "nothing shows it");
        let (id, against) = b.undoing();
        let committed = b.views.commit(id, Durability::Buffered);
        assert!(against > 0 || committed.is_err(), "it has other content");
        let _ = b.views.abort(id);
        assert_eq!(b.w.read(ino, 3, 5), b"after");
        assert!(!b.w.exists("f"));
    }
}

#[test]
fn a_file_that_got_a_large_attribute_without_a_name_is_not_brought_back() {
    let b = Both::new();
    let ino = b.w.file_with(ROOT, "f", b"small");
    b.w.fs.sync_all().expect("synced");
    b.commit(|t| t.unlink(ROOT, b"f").expect("removed"));
    b.w.fs.setxattr(ino, b"user.large", &[1; 5000], Default::default()).expect("set");
    let (id, against) = b.undoing();
    let committed = b.views.commit(id, Durability::Buffered);
    assert!(against > 0 || committed.is_err(), "it has other attributes");
    let _ = b.views.abort(id);
    b.w.check();
    assert!(!b.w.exists("f"));
    assert_eq!(b.w.read(ino, 0, 5), b"small");
    b.w.fs.forget(ino, 1);
    assert_eq!(b.w.fs.verify().expect("verified").orphans, 0);
}

/// A kernel in which programs run from all files that look like programs.
struct AllRun;

impl Watcher for AllRun {
    fn write_back(&self, _: Wait) -> Result<(), String> {
        Ok(())
    }
    fn appeared(&self, _: &ViewId) {}
    fn ended(&self, _: &ViewId, _: u16, _: &Fs, _: Option<CommittedTo<'_>>) {}
    fn changed(&self, _: u16, _: &Fs, _: &ChangeSet) {}
    fn running(&self, _: u16, files: &[Ino]) -> Running {
        Running::new(files.to_vec(), Box::new(()))
    }
}

/// Makes a change to a program `f` that runs.
fn done_to_what_runs(len: usize, work: impl FnOnce(&Fs, Ino)) -> (Both, Ino, Arc<dyn Watcher>) {
    let b = Both::new();
    let ino = b.w.file_with(ROOT, "f", &vec![7; len]);
    let mode = SetAttr { mode: Some(0o755), ..Default::default() };
    b.w.fs.setattr(ino, &mode, USER).expect("set");
    b.w.fs.setxattr(ino, b"user.large", &[1; 5000], Default::default()).expect("set");
    b.w.file_with(ROOT, "g", b"another");
    b.w.fs.sync_all().expect("synced");
    let watcher: Arc<dyn Watcher> = Arc::new(AllRun);
    b.views.watch(&watcher);
    b.commit(|t| work(t, ino));
    assert_eq!(b.w.fs.getattr(ino).expect("it runs").nlink, 0);
    (b, ino, watcher)
}

#[test]
fn what_runs_from_a_file_without_a_name_keeps_it_when_the_file_comes_back() {
    let works: [fn(&Fs, Ino); 3] = [
        |t, _| t.unlink(ROOT, b"f").expect("removed"),
        |t, ino| assert_eq!(t.write(ino, 0, b"other", Default::default()).expect("written"), 5),
        |t, _| t.rename(ROOT, b"g", ROOT, b"f", RenameFlags::default()).expect("moved"),
    ];
    for (len, work) in [10, 5000, 300_000].map(|len| works.map(|work| (len, work))).concat() {
        let (b, ino, _watcher) = done_to_what_runs(len, work);
        b.undo();
        let back = b.w.stat("f").ino;
        assert_ne!(back, ino, "it came back under another number");
        assert_eq!(b.w.fs.getattr(ino).expect("it runs").nlink, 0);
        assert_eq!(b.w.read_all(ino), vec![7; len], "what runs has its text");
        assert_eq!(&b.w.fs.getxattr(ino, b"user.large").expect("there")[..], [1; 5000]);
        // The program ends. Its old content is freed, and that of the file stays.
        b.w.fs.forget(ino, 1);
        b.w.check();
        assert_eq!(b.w.fs.verify().expect("verified").orphans, 0);
        assert_eq!(read(&b.w.fs, "f"), vec![7; len]);
        assert_eq!(&b.w.fs.getxattr(back, b"user.large").expect("there")[..], [1; 5000]);
    }
}

#[test]
fn a_file_that_comes_back_and_goes_again_stays_with_those_who_have_it_open() {
    for len in [10, 5000, 300_000] {
        let (b, ino) = unlinked_while_open(len);
        let (id, against) = b.undoing();
        assert_eq!(against, 0, "it can be undone");
        let t = b.views.fs(&ViewId::Transaction(id)).expect("its view");
        t.write(ino, 0, b"there", Default::default()).expect("written");
        t.unlink(ROOT, b"f").expect("removed again");
        b.views.commit(id, Durability::Buffered).expect("undone");
        b.w.check();
        assert_eq!(b.w.read_all(ino), vec![7; len]);
        b.w.fs.forget(ino, 1);
        b.w.check();
        assert_eq!(b.w.fs.verify().expect("verified").orphans, 0);
    }
}

#[test]
fn what_was_changed_since_stands_against_it() {
    let b = Both::new();
    let dir = b.w.dir(ROOT, "dir");
    let f = b.w.file_with(dir, "f", b"before");
    b.commit(|t| _ = t.write(f, 0, b"after!", Default::default()).expect("written"));
    b.w.second();
    b.w.write(f, 0, b"since!");
    b.refused();
    assert_eq!(b.w.read_all(f), b"since!");
    // Something lies in a directory that the commit has made.
    b.commit(|t| _ = t.mkdir(dir, b"made", 0o755, USER).expect("made"));
    let made = b.w.stat("dir/made").ino;
    b.w.file_with(made, "in", b"");
    b.refused();
    b.w.fs.unlink(made, b"in").expect("removed");
    // Its times have changed, but times are joined, so it is removed like any directory.
    b.refused();
    // The name is taken.
    b.commit(|t| t.unlink(dir, b"f").expect("removed"));
    b.w.file_with(dir, "f", b"another");
    b.refused();
    assert_eq!(b.w.contents("dir/f"), b"another");
}

#[test]
fn after_a_rollback_nothing_can_be_undone() {
    let b = Both::new();
    b.views.snapshot(&ViewId::of_branch(branch()), "s", Durability::Buffered).expect("made");
    b.commit(|t| _ = t.mkdir(ROOT, b"made", 0o755, USER).expect("made"));
    b.views.rollback("s").expect("rolled back");
    assert_eq!(b.w.db.undoable_commits(), []);
}

#[test]
fn commits_tell_the_paths_that_they_have_changed() {
    let b = Both::new();
    let view = ViewId::of_branch(branch());
    let followed = b.views.followed(&view).expect("it is there");
    let from = b.w.db.follow_branch(branch(), 1 << 20, &followed).expect("it is there");
    let dir = b.w.dir(ROOT, "dir");
    let f = b.w.file_with(dir, "f", b"x");
    b.w.fs.sync_all().expect("synced");
    b.commit(|t| {
        t.write(f, 0, b"y", Default::default()).expect("written");
        t.mkdir(dir, b"sub", 0o755, USER).expect("made");
        t.rename(dir, b"f", ROOT, b"g", RenameFlags::default()).expect("moved");
    });
    let recent = b.w.db.commits_since(from, 1000).expect("nothing is lost");
    let last = recent.commits.last().expect("the transaction's");
    let changed = b.views.changed_paths(&view, &last.changes).expect("found");
    let found: Vec<(&[u8], PathChange)> =
        changed.paths.iter().map(|(path, change)| (&path[..], *change)).collect();
    let want: [(&[u8], PathChange); 3] =
        [(b"dir/f", PathChange::Removed), (b"dir/sub", PathChange::Made), (b"g", PathChange::Made)];
    assert_eq!(found, want);
    assert!(!changed.more);
}
