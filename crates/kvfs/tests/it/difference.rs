//! Tests of the changes of a transaction, listed by paths.

use std::sync::Arc;

use crate::world::{USER, World};
use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions};
use kvfs::{
    Below, FileKind, Fs, FsOptions, Ino, Listing, ROOT, RenameFlags, SetAttr, ViewId, Views,
};
use zones::{CrashDevice, MemoryDevice};

fn make(fs: &Fs, parent: Ino, name: &str, data: &[u8]) -> Ino {
    let ino = fs.mknod(parent, name.as_bytes(), FileKind::File, 0o644, 0, USER).unwrap().ino;
    fs.write(ino, 0, data, Default::default()).unwrap();
    ino
}

/// "path before>after" with sizes, `-` for nothing; directories end in a slash.
fn shown(views: &Views, id: kvfs::TransactionId) -> Vec<String> {
    let size = |a: &Option<kvfs::Attr>| {
        a.map_or(
            "-".into(),
            |a| if a.kind == FileKind::Dir { "/".into() } else { a.size.to_string() },
        )
    };
    let line = |c: &kvfs::FileChange| {
        format!("{} {}>{}", String::from_utf8_lossy(&c.path), size(&c.before), size(&c.after))
    };
    views
        .difference(id, Default::default())
        .unwrap()
        .iter()
        .filter(|c| !c.times_alone())
        .map(line)
        .collect()
}

#[test]
fn what_is_made_changed_moved_and_removed_is_listed_by_path() {
    let w = World::new();
    let views = Views::new(w.db.clone(), w.fs.clone());
    let a = w.fs.mkdir(ROOT, b"a", 0o755, USER).unwrap().ino;
    let b = w.fs.mkdir(a, b"b", 0o755, USER).unwrap().ino;
    let deep = make(&w.fs, b, "deep", b"12345");
    make(&w.fs, b, "gone", b"1");
    let read = make(&w.fs, a, "read", b"123");
    let twice = make(&w.fs, ROOT, "one", b"1");
    w.fs.link(twice, a, b"two").unwrap();
    w.fs.mkdir(ROOT, b"moved", 0o755, USER).unwrap();
    make(&w.fs, ROOT, "same", b"1");

    let id = views.begin(Default::default()).unwrap();
    let fs = views.fs(&ViewId::Transaction(id)).unwrap();
    assert_eq!(shown(&views, id), [""; 0]);
    fs.read(read, 0, 10).unwrap();
    fs.write(deep, 5, b"6", Default::default()).unwrap();
    fs.write(twice, 0, b"22", Default::default()).unwrap();
    fs.unlink(b, b"gone").unwrap();
    let new = fs.mkdir(b, b"new", 0o755, USER).unwrap().ino;
    make(&fs, new, "file", &[0; 100_000]);
    make(&fs, new, "passing", b"1");
    fs.unlink(new, b"passing").unwrap();
    fs.rename(ROOT, b"moved", new, b"here", RenameFlags::default()).unwrap();
    fs.setattr(a, &SetAttr { mode: Some(0o700), ..Default::default() }, USER).unwrap();
    assert_eq!(
        shown(&views, id),
        [
            "a />/",
            "a/b/deep 5>6",
            "a/b/gone 1>-",
            "a/b/new ->/",
            "a/b/new/file ->100000",
            "a/b/new/here ->/",
            "a/two 1>2",
            "moved />-",
            "one 1>2",
        ]
    );
    views.commit(id, kvdb::Durability::Buffered).unwrap();
}

#[test]
fn a_tree_that_is_removed_is_listed_whole() {
    let w = World::new();
    let views = Views::new(w.db.clone(), w.fs.clone());
    let a = w.fs.mkdir(ROOT, b"a", 0o755, USER).unwrap().ino;
    make(&w.fs, a, "x", b"1");
    let id = views.begin(Default::default()).unwrap();
    let fs = views.fs(&ViewId::Transaction(id)).unwrap();
    fs.unlink(a, b"x").unwrap();
    fs.rmdir(ROOT, b"a").unwrap();
    // A file that replaces it is a change of the same path.
    make(&fs, ROOT, "a", b"123");
    assert_eq!(shown(&views, id), ["a />3", "a/x 1>-"]);
}

fn paths(changes: &[kvfs::FileChange]) -> Vec<String> {
    changes
        .iter()
        .filter(|c| !c.times_alone())
        .map(|c| String::from_utf8_lossy(&c.path).into_owned())
        .collect()
}

#[test]
fn names_are_found_wherever_they_have_gone() {
    let w = World::new();
    let views = Views::new(w.db.clone(), w.fs.clone());
    let [a, b] = [b"a", b"b"].map(|name| w.fs.mkdir(ROOT, name, 0o755, USER).unwrap().ino);
    let moved = make(&w.fs, a, "moved", b"1");
    w.fs.rename(a, b"moved", b, b"there", RenameFlags::default()).unwrap();
    let [left, right] = [(a, "left"), (b, "right")].map(|(dir, name)| make(&w.fs, dir, name, b"1"));
    w.fs.rename(a, b"left", b, b"right", RenameFlags { exchange: true, ..Default::default() })
        .unwrap();
    // A file with two names in different directories, and one whose first name was removed.
    let both = make(&w.fs, a, "both", b"1");
    w.fs.link(both, b, b"again").unwrap();
    let orphaned = make(&w.fs, a, "first", b"1");
    w.fs.link(orphaned, b, b"second").unwrap();
    w.fs.unlink(a, b"first").unwrap();
    let unnamed = w.fs.tmpfile(a, 0o644, USER).unwrap().ino;
    w.fs.link(unnamed, b, b"named").unwrap();
    make(&w.fs, b, "same", b"1");
    views.snapshot(&ViewId::Mainline, "before", Durability::Buffered).unwrap();
    w.second();
    for ino in [moved, left, right, both, orphaned, unnamed] {
        w.fs.write(ino, 0, b"22", Default::default()).unwrap();
    }
    let changes = views.difference_of_snapshots("before", None, Default::default()).unwrap();
    assert_eq!(
        paths(&changes),
        ["a/both", "a/left", "b/again", "b/named", "b/right", "b/second", "b/there"]
    );
    w.check();
}

#[test]
fn a_deep_tree_takes_one_line_whether_it_is_made_moved_or_removed() {
    let w = World::new();
    let views = Views::new(w.db.clone(), w.fs.clone());
    // All paths together are a hundred times as long as the longest one: 400 MB.
    let (depth, name) = (2000, [b'n'; 200]);
    let begin = || {
        let id = views.begin(Default::default()).unwrap();
        (id, views.fs(&ViewId::Transaction(id)).unwrap())
    };
    let list = |id| {
        let mut all = views.difference(id, Listing::Collapsed).unwrap();
        all.changes.retain(|change| !change.times_alone());
        all
    };
    let (id, fs) = begin();
    let mut dir = fs.mkdir(ROOT, b"top", 0o755, USER).unwrap().ino;
    for _ in 0..depth {
        dir = fs.mkdir(dir, &name, 0o755, USER).unwrap().ino;
    }
    let deep = make(&fs, dir, "file", b"12345");
    let told = list(id);
    assert_eq!(paths(&told), ["top"]);
    let below = Below { files: 1, directories: depth, bytes: 5, moved: 0 };
    assert_eq!((told[0].before.is_some(), told[0].below), (false, below));
    // The paths are listed relative to anchors, and take only the space of the names.
    let all = views.difference(id, Listing::All).unwrap();
    assert_eq!(all.iter().filter(|change| change.before.is_none()).count() as u64, depth + 2);
    assert!(all.iter().map(|change| change.path.len()).sum::<usize>() < 5 << 20);
    drop(fs);
    views.commit(id, Durability::Buffered).unwrap();
    w.second();

    let (id, fs) = begin();
    fs.rename(ROOT, b"top", ROOT, b"moved", RenameFlags::default()).unwrap();
    let told = list(id);
    assert_eq!(paths(&told), ["moved", "top"]);
    assert_eq!(told[0].moved.as_deref(), Some(&b"top"[..]));
    assert_eq!(told[0].below, Below { moved: depth + 1, ..Below::default() });
    // All other differences in it have lines of their own.
    fs.write(deep, 0, b"other", Default::default()).unwrap();
    let told = list(id);
    let has_moved = |change: &&kvfs::FileChange| change.moved.is_some() && change.content;
    let file = told.iter().find(has_moved).expect("the file is listed");
    assert_eq!((told.len(), told.anchors.is_empty()), (4, false));
    assert!(file.path.starts_with(b"/"), "it is told from an anchor");
    views.abort(id).unwrap();

    let (id, _) = begin();
    views.remove_tree(&ViewId::Transaction(id), b"top").unwrap();
    let told = list(id);
    assert_eq!((paths(&told), told[0].below), (vec!["top".into()], below));
    views.abort(id).unwrap();
    w.check();
}

#[test]
fn what_a_count_would_hide_is_listed() {
    let w = World::new();
    let views = Views::new(w.db.clone(), w.fs.clone());
    make(&w.fs, ROOT, "was", b"1");
    let linked = make(&w.fs, ROOT, "linked", b"1");
    let id = views.begin(Default::default()).unwrap();
    let fs = views.fs(&ViewId::Transaction(id)).unwrap();
    let new = fs.mkdir(ROOT, b"new", 0o755, USER).unwrap().ino;
    let below = fs.mkdir(new, b"below", 0o755, USER).unwrap().ino;
    make(&fs, below, "usual", b"12");
    let set = make(&fs, below, "setuid", b"1");
    let mode = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
    fs.setattr(set, &mode, USER).unwrap();
    fs.link(linked, below, b"link").unwrap();
    fs.rename(ROOT, b"was", below, b"is", RenameFlags::default()).unwrap();
    let told = views.difference(id, Listing::Collapsed).unwrap();
    let told: Vec<&kvfs::FileChange> = told.iter().filter(|c| !c.times_alone()).collect();
    let listed: Vec<_> = told.iter().map(|c| String::from_utf8_lossy(&c.path)).collect();
    assert_eq!(
        listed,
        ["linked", "new", "new/below/is", "new/below/link", "new/below/setuid", "was"]
    );
    let counted = Below { files: 1, directories: 1, bytes: 2, moved: 0 };
    assert_eq!(told[1].below, counted);
    w.check();
}

#[test]
fn a_difference_reads_what_has_changed_and_not_all_names() {
    let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
    let env = Arc::new(env::Simulated::new(1));
    let db = Kvdb::create(device.clone(), env.clone(), CreateOptions::default()).unwrap();
    let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap();
    let mut files = Vec::new();
    for d in 0..200 {
        let dir = fs.mkdir(ROOT, format!("directory {d}").as_bytes(), 0o755, USER).unwrap().ino;
        for i in 0..200 {
            let name = format!("a file with a name of some length {i}");
            let ino = fs.mknod(dir, name.as_bytes(), FileKind::File, 0o644, 0, USER).unwrap().ino;
            fs.forget(ino, 1);
            files.push(ino);
        }
    }
    fs.sync_all().unwrap();
    db.flush().unwrap();
    db.snapshot("before").unwrap();
    env.advance(std::time::Duration::from_secs(1));
    for i in 0..3 {
        fs.write(files[i * 19_999], 0, b"changed", Default::default()).unwrap();
    }
    fs.shutdown().unwrap();
    db.flush().unwrap();
    drop((fs, db));
    // Nothing is in memory.
    let (db, _) = Kvdb::open(
        Arc::new(CrashDevice::over(device.durable())),
        env.clone(),
        OpenOptions::default(),
    )
    .unwrap();
    let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
    let views = Views::new(db.clone(), fs);
    let read = || db.stats().io.total().read_bytes;
    let before = read();
    assert_eq!(views.difference_of_snapshots("before", None, Default::default()).unwrap().len(), 3);
    let took = read() - before;
    let before = read();
    assert_eq!(db.view().iter(db.dictionary("nmap").unwrap()).count(), 40_200);
    let all = read() - before + took;
    assert!(took * 3 < all, "{took} bytes read of {all}");
}
