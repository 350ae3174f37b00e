//! Tests of rename: every kind of source over every kind of target, the flags, and the states that
//! a crash may show.

use crate::world::{USER, World, fails};
use kvfs::{FileKind, ROOT, RenameFlags, SetAttr};

const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };
const NO_REPLACE: RenameFlags = RenameFlags { no_replace: true, ..PLAIN };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..PLAIN };
const WHITEOUT: RenameFlags = RenameFlags { whiteout: true, ..PLAIN };

/// Makes something of a kind: file, directory with and without an entry, symbolic link, or nothing.
fn make(w: &World, parent: u64, name: &str, kind: &str) -> Option<u64> {
    match kind {
        "file" => Some(w.file(parent, name)),
        "dir" => Some(w.dir(parent, name)),
        "full" => {
            let dir = w.dir(parent, name);
            w.dir(dir, "x");
            Some(dir)
        }
        "link" => Some(w.fs.symlink(parent, name.as_bytes(), b"to", USER).unwrap().ino),
        _ => None,
    }
}

#[test]
fn every_kind_over_every_kind() {
    use libc::{EISDIR, ENOTDIR, ENOTEMPTY};
    let kinds = ["file", "link", "dir", "full"];
    for source in kinds {
        for target in ["none", "file", "link", "dir", "full"] {
            for across in [false, true] {
                let w = World::new();
                let (a, b) = (w.dir(ROOT, "a"), w.dir(ROOT, "b"));
                let to = if across { b } else { a };
                let moved = make(&w, a, "s", source).unwrap();
                make(&w, to, "t", target);
                let (source_dir, target_dir) =
                    (["dir", "full"].contains(&source), ["dir", "full"].contains(&target));
                let expected = match target {
                    "none" => 0,
                    _ if source_dir && !target_dir => ENOTDIR,
                    _ if !source_dir && target_dir => EISDIR,
                    "full" => ENOTEMPTY,
                    _ => 0,
                };
                let result = w.fs.rename(a, b"s", to, b"t", PLAIN);
                assert_eq!(
                    result.as_ref().map_or_else(|e| e.errno(), |_| 0),
                    expected,
                    "{source} over {target}, across: {across}"
                );
                if expected == 0 {
                    fails(w.fs.lookup(a, b"s"), libc::ENOENT);
                    assert_eq!(w.fs.lookup(to, b"t").unwrap().ino, moved);
                    if source_dir {
                        assert_eq!(w.fs.lookup(moved, b"..").unwrap().ino, to);
                    }
                } else {
                    assert_eq!(w.fs.lookup(a, b"s").unwrap().ino, moved);
                }
                // The checker verifies link and entry counts when `w` is dropped.
            }
        }
    }
}

#[test]
fn a_directory_cannot_move_into_itself() {
    let w = World::new();
    let a = w.dir(ROOT, "a");
    let b = w.dir(a, "b");
    let c = w.dir(b, "c");
    fails(w.fs.rename(ROOT, b"a", a, b"z", PLAIN), libc::EINVAL);
    fails(w.fs.rename(ROOT, b"a", c, b"z", PLAIN), libc::EINVAL);
    fails(w.fs.rename(b, b"c", ROOT, b"a", PLAIN), libc::ENOTEMPTY);
    fails(w.fs.rename(b, b"c", a, b"b", PLAIN), libc::ENOTEMPTY);
    fails(w.fs.rename(ROOT, b"a", b, b"c", EXCHANGE), libc::EINVAL);
    fails(w.fs.rename(b, b"c", ROOT, b"a", EXCHANGE), libc::EINVAL);
    w.fs.rename(b, b"c", ROOT, b"c", PLAIN).unwrap();
    w.fs.rename(ROOT, b"a", c, b"a", PLAIN).unwrap();
    assert_eq!(w.stat("c/a/b").ino, b);
}

#[test]
fn bad_arguments_are_refused() {
    let w = World::new();
    let f = w.file(ROOT, "f");
    w.file(ROOT, "g");
    fails(w.fs.rename(ROOT, b"none", ROOT, b"x", PLAIN), libc::ENOENT);
    fails(w.fs.rename(ROOT, b"f", f, b"x", PLAIN), libc::ENOTDIR);
    fails(w.fs.rename(ROOT, b".", ROOT, b"x", PLAIN), libc::EINVAL);
    fails(w.fs.rename(ROOT, b"f", ROOT, b"..", PLAIN), libc::EINVAL);
    fails(w.fs.rename(ROOT, b"f", ROOT, &[b'n'; 256], PLAIN), libc::ENAMETOOLONG);
    fails(w.fs.rename(ROOT, b"f", ROOT, b"g", NO_REPLACE), libc::EEXIST);
    fails(w.fs.rename(ROOT, b"f", ROOT, b"x", EXCHANGE), libc::ENOENT);
    fails(
        w.fs.rename(ROOT, b"f", ROOT, b"g", RenameFlags { no_replace: true, ..EXCHANGE }),
        libc::EINVAL,
    );
    w.fs.rename(ROOT, b"f", ROOT, b"h", NO_REPLACE).unwrap();
    assert_eq!(w.stat("h").ino, f);
}

#[test]
fn two_names_of_one_file_stay_when_one_is_renamed_to_the_other() {
    let w = World::new();
    let f = w.file(ROOT, "f");
    w.fs.link(f, ROOT, b"g").unwrap();
    w.fs.rename(ROOT, b"f", ROOT, b"g", PLAIN).unwrap();
    w.fs.rename(ROOT, b"f", ROOT, b"f", PLAIN).unwrap();
    assert_eq!((w.stat("f").ino, w.stat("g").ino, w.stat("g").nlink), (f, f, 2));
}

#[test]
fn replacing_takes_one_link_from_the_replaced_file() {
    let w = World::new();
    w.file(ROOT, "new");
    let old = w.file_with(ROOT, "old", b"old");
    w.fs.link(old, ROOT, b"other").unwrap();
    w.second();
    w.fs.rename(ROOT, b"new", ROOT, b"old", PLAIN).unwrap();
    let other = w.stat("other");
    assert_eq!((other.ino, other.nlink), (old, 1));
    assert!(other.ctime > other.mtime);
    assert_eq!(w.contents("other"), b"old");
    assert_eq!(w.stat("old").ctime, other.ctime);
    assert_eq!(w.fs.getattr(ROOT).unwrap().mtime, other.ctime);
}

#[test]
fn exchange_swaps_anything() {
    let kinds = ["file", "link", "dir", "full"];
    for one in kinds {
        for two in kinds {
            for across in [false, true] {
                let w = World::new();
                let (a, b) = (w.dir(ROOT, "a"), w.dir(ROOT, "b"));
                let to = if across { b } else { a };
                let (s, t) = (make(&w, a, "s", one).unwrap(), make(&w, to, "t", two).unwrap());
                w.fs.rename(a, b"s", to, b"t", EXCHANGE).unwrap();
                assert_eq!(
                    (w.fs.lookup(a, b"s").unwrap().ino, w.fs.lookup(to, b"t").unwrap().ino),
                    (t, s)
                );
            }
        }
    }
}

#[test]
fn a_whiteout_stays_behind() {
    let w = World::new();
    let d = w.dir(ROOT, "d");
    let f = w.file(ROOT, "f");
    w.fs.rename(ROOT, b"f", d, b"f", WHITEOUT).unwrap();
    let white = w.stat("f");
    assert_eq!((white.kind, white.rdev, white.perm), (FileKind::CharDevice, 0, 0));
    assert_eq!(w.stat("d/f").ino, f);
}

#[test]
fn after_a_crash_a_replaced_file_is_the_new_one_whole() {
    for size in [100usize, 4096, 10_000, 3 << 20] {
        let mut w = World::new();
        w.file_with(ROOT, "config", &vec![b'o'; size]);
        w.fs.sync_all().unwrap();
        let new = w.file_with(ROOT, "config.tmp", &vec![b'n'; size]);
        w.fs.setattr(new, &SetAttr { mode: Some(0o600), ..Default::default() }, USER).unwrap();
        w.fs.rename(ROOT, b"config.tmp", ROOT, b"config", PLAIN).unwrap();
        w.crash();
        assert_eq!(w.contents("config"), vec![b'n'; size]);
        assert_eq!((w.stat("config").perm, w.exists("config.tmp")), (0o600, false));
    }
}

#[test]
fn a_replaced_file_that_is_open_can_be_read_on() {
    let w = World::new();
    let old = w.file_with(ROOT, "f", &[7; 9000]);
    w.file_with(ROOT, "g", b"new");
    w.fs.rename(ROOT, b"g", ROOT, b"f", PLAIN).unwrap();
    assert_eq!(w.read_all(old), [7; 9000]);
    assert_eq!(w.fs.getattr(old).unwrap().nlink, 0);
    w.fs.forget(old, 1);
    fails(w.fs.getattr(old), libc::ESTALE);
}

#[test]
fn renames_in_both_directions_at_once_do_not_stop_each_other() {
    let w = World::new();
    let (a, b) = (w.dir(ROOT, "a"), w.dir(ROOT, "b"));
    for n in 0..4 {
        w.file(a, &format!("f{n}"));
        w.dir(b, &format!("d{n}"));
    }
    std::thread::scope(|s| {
        for n in 0..4 {
            let w = &w;
            s.spawn(move || {
                let (f, d) = (format!("f{n}"), format!("d{n}"));
                for round in 0..200 {
                    let (from, to) = if round % 2 == 0 { (a, b) } else { (b, a) };
                    w.fs.rename(from, f.as_bytes(), to, f.as_bytes(), PLAIN).unwrap();
                    w.fs.rename(to, d.as_bytes(), from, d.as_bytes(), PLAIN).unwrap();
                    let made = w.fs.mkdir(from, format!("m{n}").as_bytes(), 0o755, USER).unwrap();
                    w.fs.rmdir(from, format!("m{n}").as_bytes()).unwrap();
                    w.fs.forget(made.ino, 1);
                }
            });
        }
    });
    assert_eq!(w.list(a).len() + w.list(b).len(), 4 + 8);
}
