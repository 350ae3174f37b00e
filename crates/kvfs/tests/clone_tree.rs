//! A tree copied by reference: equal to the original, of its own from then on, and no larger than its names.

mod world;

use kvfs::{CloneStats, Error, FileKind, ROOT};
use world::{USER, World};

/// A tree with one of everything.
fn make(world: &World) -> kvfs::Ino {
    let top = world.dir(ROOT, "top");
    let sub = world.dir(top, "sub");
    world.dir(sub, "empty");
    world.file_with(top, "small", b"small");
    let large = world.file_with(sub, "large", &content(1, 100_000));
    world.fs.link(large, top, b"link").unwrap();
    world.fs.symlink(top, b"symlink", b"sub/large", USER).unwrap();
    let holes = world.file_with(sub, "holes", &content(2, 5000));
    world.write(holes, 1 << 20, &content(3, 5000));
    world.fs.setxattr(holes, b"user.short", b"x", Default::default()).unwrap();
    world.fs.setxattr(holes, b"user.long", &content(4, 30_000), Default::default()).unwrap();
    world.fs.link(world.file(ROOT, "outside"), sub, b"outside").unwrap();
    top
}

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add((i >> 8) as u8)).collect()
}

fn is_the_tree(world: &World, at: &str) {
    let path = |name: &str| format!("{at}/{name}");
    assert_eq!(world.read_all(world.stat(&path("small")).ino), b"small");
    let large = world.stat(&path("sub/large"));
    assert_eq!(world.read_all(large.ino), content(1, 100_000));
    assert_eq!((world.stat(&path("link")).ino, large.nlink), (large.ino, 2));
    assert_eq!(world.fs.readlink(world.stat(&path("symlink")).ino).unwrap(), b"sub/large");
    let holes = world.stat(&path("sub/holes")).ino;
    assert_eq!(world.read(holes, 0, 5000), content(2, 5000));
    assert_eq!(world.read(holes, 1 << 20, 5000), content(3, 5000));
    assert_eq!(world.read(holes, 500_000, 10), [0; 10]);
    assert_eq!(world.fs.getxattr(holes, b"user.long").unwrap(), content(4, 30_000));
    assert_eq!(world.fs.getxattr(holes, b"user.short").unwrap(), &b"x"[..]);
    let sub = world.stat(&path("sub"));
    assert_eq!((sub.nlink, world.stat(&path("sub/empty")).kind), (3, FileKind::Dir));
}

fn is_sound(world: &World) {
    let report = kvfs::verify(&world.db).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn a_copy_is_equal_and_of_its_own() {
    let mut world = World::new();
    let top = make(&world);
    let stats = world.fs.clone_tree(top, ROOT, b"copy").unwrap();
    assert_eq!(stats, CloneStats { directories: 3, files: 6, bytes: 100_000 + 5 + 9 + (1 << 20) + 5000 });
    is_the_tree(&world, "/copy");
    assert_eq!(world.stat("/copy/sub/outside").nlink, 1, "a link that leads outside");
    assert_eq!(world.stat("/").nlink, 4);
    is_sound(&world);
    // What is changed in one is not changed in the other.
    world.write(world.stat("/copy/sub/large").ino, 50_000, b"changed");
    world.write(world.stat("/top/sub/holes").ino, 0, b"changed");
    world.fs.fsync(world.stat("/copy/sub/large").ino, false).unwrap();
    is_the_tree_but(&world);
    world.fs.clone_tree(world.stat("/copy").ino, ROOT, b"again").unwrap();
    assert_eq!(world.read(world.stat("/again/link").ino, 50_000, 7), b"changed");
    // Nor what is deleted.
    remove(&world, ROOT, "top");
    remove(&world, ROOT, "again");
    world.remount();
    world.write(world.stat("/copy/sub/large").ino, 50_000, &content(1, 100_000)[50_000..50_007]);
    is_the_tree(&world, "/copy");
    is_sound(&world);
}

fn is_the_tree_but(world: &World) {
    assert_eq!(world.read(world.stat("/top/sub/large").ino, 50_000, 7), content(1, 100_000)[50_000..50_007]);
    assert_eq!(world.read(world.stat("/copy/sub/holes").ino, 0, 5000), content(2, 5000));
}

fn remove(world: &World, parent: kvfs::Ino, name: &str) {
    let attr = world.fs.lookup(parent, name.as_bytes()).unwrap();
    world.fs.forget(attr.ino, 1);
    if attr.kind != FileKind::Dir {
        return world.fs.unlink(parent, name.as_bytes()).unwrap();
    }
    let mut names = Vec::new();
    let mut emit = |entry: kvfs::DirEntry<'_>| {
        if entry.name != b"." && entry.name != b".." {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        }
        true
    };
    world.fs.readdir(attr.ino, 0, false, &mut emit).unwrap();
    names.iter().for_each(|name| remove(world, attr.ino, name));
    world.fs.rmdir(parent, name.as_bytes()).unwrap();
}

#[test]
fn a_file_and_a_tree_into_itself() {
    let world = World::new();
    let top = make(&world);
    world.fs.clone_tree(world.stat("/top/sub/large").ino, top, b"twin").unwrap();
    assert_eq!(world.read_all(world.stat("/top/twin").ino), content(1, 100_000));
    world.fs.clone_tree(top, world.stat("/top/sub/empty").ino, b"inner").unwrap();
    is_the_tree(&world, "/top/sub/empty/inner");
    assert!(!world.exists("/top/sub/empty/inner/sub/empty/inner"));
    is_sound(&world);
}

#[test]
fn what_cannot_be_leaves_nothing() {
    let world = World::new();
    let top = make(&world);
    assert!(matches!(world.fs.clone_tree(top, ROOT, b"outside"), Err(Error::Exists)));
    assert!(matches!(world.fs.clone_tree(top, world.stat("/outside").ino, b"x"), Err(Error::NotDirectory | Error::NotFound)));
    assert!(world.fs.clone_tree(top, ROOT, b"a/b").is_err());
    assert!(matches!(world.fs.clone_tree(999, ROOT, b"x"), Err(Error::Stale(999))));
    is_sound(&world);
    assert_eq!(world.db.transactions().len(), 0);
}

#[test]
fn many_files_cost_their_names() {
    let world = World::new();
    let top = world.dir(ROOT, "top");
    for i in 0..50 {
        let dir = world.dir(top, &format!("d{i}"));
        for j in 0..20 {
            world.file_with(dir, &format!("f{j}"), &content(j, 9000));
        }
    }
    world.fs.sync_all().unwrap();
    let written = || world.db.stats().io.total().write_bytes;
    let before = written();
    let stats = world.fs.clone_tree(top, ROOT, b"copy").unwrap();
    world.fs.sync_all().unwrap();
    assert_eq!((stats.directories, stats.files, stats.bytes), (51, 1000, 9_000_000));
    assert!(written() - before < 1 << 20, "{} bytes for a copy of 9 MB", written() - before);
    assert_eq!(world.read_all(world.stat("/copy/d49/f19").ino), content(19, 9000));
    is_sound(&world);
}

#[test]
fn whole_pages_that_are_copied_from_file_to_file_are_shared() {
    let world = World::new();
    let len = 10 << 20;
    let from = world.file_with(ROOT, "from", &content(5, len + 100));
    world.write(from, 20 << 20, b"behind a hole");
    world.fs.sync_all().unwrap();
    let written = || world.db.stats().io.total().write_bytes;
    let before = written();
    let size = world.fs.getattr(from).unwrap().size;
    let copies: Vec<_> = (0..5).map(|i| world.file(ROOT, &format!("copy{i}"))).collect();
    for &to in &copies {
        let mut done = 0;
        while done < size {
            done += world.fs.copy_file_range(from, done, to, done, size - done).unwrap();
        }
    }
    world.fs.sync_all().unwrap();
    assert!(written() - before < len as u64 / 2, "{} bytes for five copies of {len}", written() - before);
    let blocks = |ino| world.fs.getattr(ino).unwrap().blocks;
    for &to in &copies {
        assert_eq!(world.read(to, 0, len + 100), content(5, len + 100));
        assert_eq!(world.read(to, 20 << 20, 100), b"behind a hole");
        assert_eq!((world.fs.getattr(to).unwrap().size, blocks(to)), (size, blocks(from)));
    }
    is_sound(&world);
    // Each goes its own way.
    world.write(copies[0], 4000, b"changed");
    world.fs.unlink(ROOT, b"from").unwrap();
    world.fs.sync_all().unwrap();
    assert_eq!(world.read(copies[1], 4000, 7), content(5, 5000)[4000..4007]);
    assert_eq!(world.read(copies[0], 4000, 7), b"changed");
    // Over what is there, in the middle: the last whole page, and then what is left.
    let to = world.file_with(ROOT, "to", &content(6, 100_000));
    assert_eq!(world.fs.copy_file_range(copies[1], 8192, to, 4096, 10_000).unwrap(), 10_000);
    let mut expected = content(6, 100_000);
    expected[4096..14_096].copy_from_slice(&content(5, 20_000)[8192..18_192]);
    assert_eq!(world.read_all(to), expected);
    is_sound(&world);
}
