//! What a transaction would change, in paths.

mod world;

use kvfs::{FileKind, Fs, Ino, ROOT, RenameFlags, SetAttr, View, Views};
use world::{USER, World};

fn make(fs: &Fs, parent: Ino, name: &str, data: &[u8]) -> Ino {
    let ino = fs.mknod(parent, name.as_bytes(), FileKind::File, 0o644, 0, USER).unwrap().ino;
    fs.write(ino, 0, data, Default::default()).unwrap();
    ino
}

/// "path before>after" with sizes, `-` for nothing; folders end in a slash.
fn shown(views: &Views, id: kvfs::TransactionId) -> Vec<String> {
    let size =
        |a: &Option<kvfs::Attr>| a.map_or("-".into(), |a| if a.kind == FileKind::Dir { "/".into() } else { a.size.to_string() });
    let line = |c: &kvfs::FileChange| format!("{} {}>{}", String::from_utf8_lossy(&c.path), size(&c.before), size(&c.after));
    views.difference(id).unwrap().iter().map(line).collect()
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
    let fs = views.fs(&View::Transaction(id)).unwrap();
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
    let fs = views.fs(&View::Transaction(id)).unwrap();
    fs.unlink(a, b"x").unwrap();
    fs.rmdir(ROOT, b"a").unwrap();
    // A file in its place is a change of the same path.
    make(&fs, ROOT, "a", b"123");
    assert_eq!(shown(&views, id), ["a />3", "a/x 1>-"]);
}
