//! Tests of listing directories, also while they change.

use crate::world;
use std::collections::BTreeMap;

use crate::world::{USER, World};
use kvdb::Durability;
use kvfs::{FileKind, Fs, ROOT, Timestamp, ViewId, Views, Whole};

/// One call that takes at most `most` entries. Returns them and the position at which to continue.
fn page(w: &World, dir: u64, cookie: u64, most: usize) -> (Vec<String>, u64) {
    let (mut names, mut at) = (Vec::new(), cookie);
    w.fs.readdir(dir, cookie, false, &mut |e| {
        if names.len() == most {
            return false;
        }
        names.push(String::from_utf8_lossy(e.name).into_owned());
        at = e.cookie;
        true
    })
    .unwrap();
    (names, at)
}

#[test]
fn entries_come_once_with_their_kinds() {
    let w = World::new();
    let d = w.dir(ROOT, "d");
    let f = w.file(d, "f");
    let mut all = Vec::new();
    w.fs.readdir(d, 0, false, &mut |e| {
        assert!(e.attr.is_none() && e.cookie > 0 && e.cookie <= i64::MAX as u64);
        all.push((e.name.to_vec(), e.ino, e.kind));
        true
    })
    .unwrap();
    let dir = FileKind::Dir;
    assert_eq!(
        all,
        [(b".".to_vec(), d, dir), (b"..".to_vec(), ROOT, dir), (b"f".to_vec(), f, FileKind::File)]
    );
    world::fails(w.fs.readdir(f, 0, false, &mut |_| true), libc::ENOTDIR);
}

#[test]
fn a_listing_goes_on_from_any_position_also_after_a_mount() {
    let mut w = World::new();
    let names: Vec<String> = (0..100).map(|n| format!("n{n:03}")).collect();
    for name in &names {
        w.file(ROOT, name);
    }
    let mut positions = Vec::new();
    w.fs.readdir(ROOT, 0, false, &mut |e| {
        positions.push(e.cookie);
        true
    })
    .unwrap();
    for _ in 0..2 {
        for (n, &position) in positions.iter().enumerate() {
            let expected: Vec<&str> = [".", ".."]
                .into_iter()
                .chain(names.iter().map(String::as_str))
                .skip(n + 1)
                .collect();
            assert_eq!(page(&w, ROOT, position, usize::MAX).0, expected);
        }
        w.remount();
    }
}

#[test]
fn removing_what_was_listed_loses_nothing_and_repeats_nothing() {
    for size in [1usize, 2, 7, 40] {
        let w = World::new();
        let d = w.dir(ROOT, "d");
        for n in 0..300 {
            w.file(d, &format!("n{n:03}"));
        }
        let (mut removed, mut cookie) = (0, 0);
        loop {
            let (names, next) = page(&w, d, cookie, size);
            if names.is_empty() {
                break;
            }
            for name in names.iter().filter(|n| !n.starts_with('.')) {
                w.fs.unlink(d, name.as_bytes()).unwrap();
                removed += 1;
            }
            cookie = next;
        }
        assert_eq!(removed, 300);
        w.fs.rmdir(ROOT, b"d").unwrap();
    }
}

#[test]
fn what_is_there_throughout_is_listed_exactly_once() {
    let w = World::new();
    for n in 0..400 {
        w.file(ROOT, &format!("stay{n:03}"));
        w.file(ROOT, &format!("go{n:03}"));
    }
    let mut seen = BTreeMap::<String, u32>::new();
    let (mut cookie, mut round) = (0, 0);
    loop {
        let (names, next) = page(&w, ROOT, cookie, 11);
        if names.is_empty() {
            break;
        }
        for name in names {
            *seen.entry(name).or_default() += 1;
        }
        cookie = next;
        // Three names are removed, some of them just listed, and two are added.
        for n in 0..3 {
            let _ = w.fs.unlink(ROOT, format!("go{:03}", (round * 7 + n) % 400).as_bytes());
        }
        let _ = w.fs.rename(
            ROOT,
            format!("go{:03}", 399 - round).as_bytes(),
            ROOT,
            format!("new{round}").as_bytes(),
            Default::default(),
        );
        w.file(ROOT, &format!("a{round}"));
        round += 1;
    }
    for n in 0..400 {
        assert_eq!(seen.get(&format!("stay{n:03}")), Some(&1));
    }
    assert!(seen.values().all(|&n| n == 1));
}

#[test]
fn two_listings_of_one_directory_do_not_disturb_each_other() {
    let w = World::new();
    for n in 0..50 {
        w.file(ROOT, &format!("n{n:02}"));
    }
    let (mut one, mut two) = ((0, Vec::new()), (0, Vec::new()));
    loop {
        let (names, next) = page(&w, ROOT, one.0, 3);
        one.0 = next;
        one.1.extend(names);
        let (names, next) = page(&w, ROOT, two.0, 5);
        two.0 = next;
        let done = names.is_empty() && one.1.len() == 52;
        two.1.extend(names);
        if done {
            break;
        }
    }
    assert_eq!((one.1.len(), one.1), (52, two.1));
}

#[test]
fn a_listing_with_attributes_adds_a_reference_for_each_entry_taken() {
    let w = World::new();
    let f = w.file(ROOT, "f");
    w.fs.forget(f, 1);
    let mut attr = None;
    w.fs.readdir(ROOT, 0, true, &mut |e| {
        attr = e.attr;
        true
    })
    .unwrap();
    assert_eq!(attr.unwrap(), w.fs.getattr(f).unwrap());
    // The reference keeps the file alive after its name is removed, until it is released.
    w.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(w.fs.getattr(f).unwrap().nlink, 0);
    w.fs.forget(f, 1);
    world::fails(w.fs.getattr(f), libc::ESTALE);
}

#[test]
fn an_entry_that_does_not_fit_gets_no_reference() {
    let w = World::new();
    let f = w.file(ROOT, "f");
    w.fs.forget(f, 1);
    w.fs.readdir(ROOT, 0, true, &mut |e| e.name.starts_with(b".")).unwrap();
    w.fs.unlink(ROOT, b"f").unwrap();
    world::fails(w.fs.getattr(f), libc::ESTALE);
}

#[test]
fn a_listing_goes_on_where_it_was_after_a_rollback_has_taken_its_last_name() {
    let w = World::new();
    let views = Views::new(w.db.clone(), w.fs.clone());
    for name in ["a", "c", "e"] {
        w.file(ROOT, name);
    }
    views.snapshot(&ViewId::Mainline, "s", Durability::Buffered).unwrap();
    w.file(ROOT, "b");
    let (names, at) = page(&w, ROOT, 0, 4);
    assert_eq!(names, [".", "..", "a", "b"]);
    // Another listing that ends must not drop the position of this one.
    page(&w, ROOT, 0, 10);
    views.rollback("s").unwrap();
    assert_eq!(page(&w, ROOT, at, 10).0, ["c", "e"]);
    // The same in a transaction that goes back to a savepoint.
    let id = views.begin(Default::default()).unwrap();
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    let savepoint = views.savepoint(id).unwrap();
    inside.mknod(ROOT, b"d", FileKind::File, 0o644, 0, USER).unwrap();
    let t = World { fs: inside, db: w.db.clone(), env: w.env.clone() };
    let (names, at) = page(&t, ROOT, 0, 5);
    assert_eq!(names, [".", "..", "a", "c", "d"]);
    page(&t, ROOT, 0, 10);
    views.rollback_to(id, &savepoint).unwrap();
    assert_eq!(page(&t, ROOT, at, 10).0, ["e"]);
    std::mem::forget(t);
}

/// Renames every entry that a listing of the root returns. Returns the number of renames.
fn rename_all(fs: &Fs, most: usize, to: impl Fn(&str) -> String) -> usize {
    let (mut cookie, mut renamed) = (0, 0);
    loop {
        let (mut names, mut at) = (Vec::new(), cookie);
        fs.readdir(ROOT, cookie, false, &mut |e| {
            let room = names.len() < most;
            if room {
                names.push(String::from_utf8_lossy(e.name).into_owned());
                at = e.cookie;
            }
            room
        })
        .unwrap();
        if names.is_empty() {
            return renamed;
        }
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            let new = to(name);
            fs.rename(ROOT, name.as_bytes(), ROOT, new.as_bytes(), Default::default()).unwrap();
            renamed += 1;
            assert!(renamed <= 10_000, "it does not end");
        }
        cookie = at;
    }
}

#[test]
fn a_loop_that_renames_what_it_lists_renames_each_entry_once() {
    let w = World::new();
    let views = Views::new(w.db.clone(), w.fs.clone());
    for n in 0..2000 {
        w.file(ROOT, &format!("f{n:04}"));
    }
    let id = views.begin(Default::default()).unwrap();
    views.snapshot(&ViewId::Mainline, "s", Durability::Buffered).unwrap();
    views.clone_snapshot("s", "c").unwrap();
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    let clone = views.fs(&ViewId::Clone("c".into())).unwrap();
    for fs in [&w.fs, &inside, &clone] {
        for most in [1, 7, 300, 1999, 2002, 5000] {
            assert_eq!(rename_all(fs, most, |name| format!("{name}.b")), 2000, "{most} a call");
            assert_eq!(rename_all(fs, most, |name| format!("z{name}")), 2000, "{most} a call");
        }
    }
}

#[test]
fn a_loop_that_renames_ends_whatever_else_is_listed_and_loaded_in_between() {
    // Hardly an inode stays in memory.
    let w = World::with(kvfs::FsOptions { inode_memory: 0, ..Default::default() });
    let other = w.dir(ROOT, ".other");
    for n in 0..3000 {
        w.file(other, &format!("o{n:04}"));
        w.file(ROOT, &format!("f{n:04}"));
    }
    let renamed = rename_all(&w.fs, 100, |name| {
        for ino in 0..50 {
            let _ = w.fs.getattr(2 + (ino * 131) % 6000);
        }
        let _ = page(&w, other, 0, 10);
        let _ = page(&w, ROOT, 0, 5);
        format!("z{name}")
    });
    // All of its listings are kept as long as no more than the maximum have begun since.
    assert_eq!(renamed, 3000);
}

#[test]
fn what_replaces_an_entry_is_listed_in_its_place() {
    let w = World::new();
    for n in 0..100 {
        w.file(ROOT, &format!("f{n:02}"));
    }
    let (names, at) = page(&w, ROOT, 0, 10);
    assert_eq!(names.len(), 10);
    let new = w.file(ROOT, "new");
    w.fs.rename(ROOT, b"new", ROOT, b"f50", Default::default()).unwrap();
    w.file(ROOT, "g");
    w.fs.link(new, ROOT, b"h").unwrap();
    let (rest, at) = page(&w, ROOT, at, 200);
    assert_eq!(rest, (8..100).map(|n| format!("f{n:02}")).collect::<Vec<_>>());
    assert!(page(&w, ROOT, at, 10).0.is_empty(), "also when names were added at the end");
    assert_eq!(page(&w, ROOT, 0, 200).0.len(), 104, "the next listing has them");
}

#[test]
fn what_is_copied_or_brought_in_while_a_directory_is_listed_is_not_in_that_listing() {
    let w = World::new();
    let views = Views::new(w.db.clone(), w.fs.clone());
    let id = views.begin(Default::default()).unwrap();
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    for fs in [&w.fs, &inside] {
        let w = World { fs: fs.clone(), db: w.db.clone(), env: w.env.clone() };
        for n in 0..20 {
            w.dir(ROOT, &format!("d{n:02}"));
        }
        let (mut cookie, mut listed) = (0, 0);
        loop {
            let (names, next) = page(&w, ROOT, cookie, 3);
            if names.is_empty() {
                break;
            }
            // Copies and files that sort after all names that a listing has reached.
            for name in names.iter().filter(|name| !name.starts_with('.')) {
                listed += 1;
                assert!(listed <= 20, "{name} was made after the listing began");
                let dir = w.fs.resolve(name.as_bytes()).unwrap().ino;
                w.fs.clone_tree(dir, ROOT, format!("x{name}").as_bytes()).unwrap();
                let whole = Whole {
                    parent: ROOT,
                    name: format!("y{name}").into_bytes().into(),
                    kind: FileKind::File,
                    perm: 0o644,
                    uid: 0,
                    gid: 0,
                    rdev: 0,
                    atime: Timestamp::default(),
                    mtime: Timestamp::default(),
                    content: Default::default(),
                };
                w.fs.make_whole(&[whole]).unwrap();
            }
            cookie = next;
        }
        assert_eq!(listed, 20);
        assert_eq!(page(&w, ROOT, 0, 100).0.len(), 62, "the next listing has them");
        std::mem::forget(w);
    }
}
