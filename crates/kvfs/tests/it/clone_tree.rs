//! Tests of trees that are copied by reference. A copy equals its original, is independent from
//! then on, and takes only the space of its names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::world::{USER, World};
use env::{Machine, Simulated};
use kvdb::{CreateOptions, Durability, Isolation, Kvdb, OpenOptions, TransactionOptions};
use kvfs::{CloneStats, Earlier, Error, FileKind, Fs, FsOptions, ROOT, ViewId, Views};
use zones::{CrashDevice, MemoryDevice};

/// A tree with every kind of file.
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
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add((i >> 8) as u8))
        .collect()
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
    assert_eq!(
        stats,
        CloneStats { directories: 3, files: 6, bytes: 100_000 + 5 + 9 + (1 << 20) + 5000 }
    );
    is_the_tree(&world, "/copy");
    assert_eq!(world.stat("/copy/sub/outside").nlink, 1, "a link that leads outside");
    assert_eq!(world.stat("/").nlink, 4);
    is_sound(&world);
    // A change of one copy does not change the other.
    world.write(world.stat("/copy/sub/large").ino, 50_000, b"changed");
    world.write(world.stat("/top/sub/holes").ino, 0, b"changed");
    world.fs.fsync(world.stat("/copy/sub/large").ino, false).unwrap();
    is_the_tree_but(&world);
    world.fs.clone_tree(world.stat("/copy").ino, ROOT, b"again").unwrap();
    assert_eq!(world.read(world.stat("/again/link").ino, 50_000, 7), b"changed");
    // A deletion in one copy does not change the other.
    remove(&world, ROOT, "top");
    remove(&world, ROOT, "again");
    world.remount();
    world.write(world.stat("/copy/sub/large").ino, 50_000, &content(1, 100_000)[50_000..50_007]);
    is_the_tree(&world, "/copy");
    is_sound(&world);
}

fn is_the_tree_but(world: &World) {
    assert_eq!(
        world.read(world.stat("/top/sub/large").ino, 50_000, 7),
        content(1, 100_000)[50_000..50_007]
    );
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
    assert!(matches!(
        world.fs.clone_tree(top, world.stat("/outside").ino, b"x"),
        Err(Error::NotDirectory | Error::NotFound)
    ));
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
    assert!(
        written() - before < len as u64 / 2,
        "{} bytes for five copies of {len}",
        written() - before
    );
    let blocks = |ino| world.fs.getattr(ino).unwrap().blocks;
    for &to in &copies {
        assert_eq!(world.read(to, 0, len + 100), content(5, len + 100));
        assert_eq!(world.read(to, 20 << 20, 100), b"behind a hole");
        assert_eq!((world.fs.getattr(to).unwrap().size, blocks(to)), (size, blocks(from)));
    }
    is_sound(&world);
    // Each copy diverges.
    world.write(copies[0], 4000, b"changed");
    world.fs.unlink(ROOT, b"from").unwrap();
    world.fs.sync_all().unwrap();
    assert_eq!(world.read(copies[1], 4000, 7), content(5, 5000)[4000..4007]);
    assert_eq!(world.read(copies[0], 4000, 7), b"changed");
    // Overwrites existing data in the middle: the last whole page, and then the rest.
    let to = world.file_with(ROOT, "to", &content(6, 100_000));
    assert_eq!(world.fs.copy_file_range(copies[1], 8192, to, 4096, 10_000).unwrap(), 10_000);
    let mut expected = content(6, 100_000);
    expected[4096..14_096].copy_from_slice(&content(5, 20_000)[8192..18_192]);
    assert_eq!(world.read_all(to), expected);
    is_sound(&world);
}

/// So many files that each dictionary gets runs of its own, with every kind of file among them.
fn make_many(world: &World, files: usize) -> kvfs::Ino {
    let top = make(world);
    let mut dirs = vec![top];
    for i in 0..files {
        if i % 50 == 0 {
            dirs.push(world.dir(dirs[i % dirs.len()], &format!("d{i}")));
        }
        let dir = dirs[dirs.len() - 1];
        let ino =
            world.file_with(dir, &format!("f{i}"), &content(i as u8, [10, 700, 3000, 9000][i % 4]));
        // Links across the tree, and files outside of it between those within.
        if i % 100 == 7 {
            world.fs.link(ino, dirs[i % dirs.len()], format!("link{i}").as_bytes()).unwrap();
        }
        if i % 70 == 3 {
            world.file_with(ROOT, &format!("other{i}"), &content(1, 100_000));
        }
    }
    top
}

/// Everything below a directory: path, number of names, content.
fn listed(fs: &Fs, path: &str) -> Vec<(String, u32, Vec<u8>)> {
    let mut out = Vec::new();
    let mut dirs = vec![path.to_owned()];
    while let Some(dir) = dirs.pop() {
        let mut names = Vec::new();
        let mut emit = |entry: kvfs::DirEntry<'_>| {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            true
        };
        fs.readdir(fs.resolve(dir.as_bytes()).unwrap().ino, 2, false, &mut emit).unwrap();
        for name in names {
            let at = format!("{dir}/{name}");
            let attr = fs.resolve(at.as_bytes()).unwrap();
            let content = match attr.kind {
                FileKind::File => fs.read(attr.ino, 0, attr.size as u32).unwrap().to_vec(),
                _ => Vec::new(),
            };
            // A hard link to a file outside of the tree is not a link in the copy.
            let links = if name == "outside" { 1 } else { attr.nlink };
            out.push((at[path.len()..].to_owned(), links, content));
            if attr.kind == FileKind::Dir {
                dirs.push(at);
            }
        }
    }
    out.sort();
    out
}

fn on_this_machine(mut world: World) -> World {
    let machine = Arc::new(Machine::default());
    world.db =
        Kvdb::create(Arc::new(MemoryDevice::new()), machine.clone(), CreateOptions::default())
            .unwrap();
    world.fs = Fs::open(world.db.clone(), machine, FsOptions::default()).unwrap();
    world
}

#[test]
fn a_large_tree_is_copied_whole() {
    for mut world in [World::new(), on_this_machine(World::new())] {
        let top = make_many(&world, 3000);
        let stats = world.fs.clone_tree(top, ROOT, b"copy").unwrap();
        assert_eq!((stats.directories, stats.files), (63, 3036));
        is_the_tree(&world, "/copy");
        let original = listed(&world.fs, "/top");
        assert_eq!(original.len(), 62 + 3036);
        assert!(listed(&world.fs, "/copy") == original);
        is_sound(&world);
        // Copies from runs, a copy of a copy, and a copy into the tree itself.
        world.db.flush().unwrap();
        let copy = world.stat("/copy").ino;
        world.fs.clone_tree(copy, world.stat("/top/sub").ino, b"again").unwrap();
        assert!(listed(&world.fs, "/top/sub/again") == original);
        remove(&world, ROOT, "copy");
        world.fs.sync_all().unwrap();
        assert!(listed(&world.fs, "/top/sub/again") == original);
        is_sound(&world);
        let machine = world.env.clone();
        world.fs.shutdown().unwrap();
        world.fs = Fs::open(world.db.clone(), machine, FsOptions::default()).unwrap();
        assert!(listed(&world.fs, "/top/sub/again") == original);
    }
}

#[test]
fn a_large_tree_in_a_transaction() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let world = World::new();
        make_many(&world, 2500);
        let original = listed(&world.fs, "/top");
        let views = Views::new(world.db.clone(), world.fs.clone());
        let begin = || {
            let id = views.begin(TransactionOptions { isolation, ..Default::default() }).unwrap();
            (id, views.fs(&ViewId::Transaction(id)).unwrap())
        };
        let (id, fs) = begin();
        views.clone_tree(&ViewId::Transaction(id), b"top", b"copy").unwrap();
        assert!(listed(&fs, "/copy") == original);
        assert!(!world.exists("/copy"));
        views.abort(id).unwrap();
        is_sound(&world);

        let (id, fs) = begin();
        views.clone_tree(&ViewId::Transaction(id), b"top", b"copy").unwrap();
        let changed = fs.resolve(b"copy/small").unwrap().ino;
        fs.write(changed, 0, b"SMALL", Default::default()).unwrap();
        assert!(matches!(
            views.clone_tree(&ViewId::Transaction(id), b"top", b"copy"),
            Err(Error::Exists)
        ));
        views.clone_tree(&ViewId::Transaction(id), b"copy", b"twin").unwrap();
        views.commit(id, Durability::Buffered).unwrap();
        assert_eq!(
            (world.contents("/twin/small"), world.contents("/copy/small")),
            (b"SMALL".to_vec(), b"SMALL".to_vec())
        );
        assert_eq!(listed(&world.fs, "/twin").len(), original.len());
        is_sound(&world);
    }
}

#[test]
fn after_a_power_cut_it_is_there_whole_or_not_at_all() {
    let env = Arc::new(Simulated::new(3));
    let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
    let db = Kvdb::create(device.clone(), env.clone(), CreateOptions::default()).unwrap();
    let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap();
    let mut world = World { db, env: env.clone(), fs };
    make_many(&world, 2200);
    world.fs.sync_all().unwrap();
    let original = listed(&world.fs, "/top");
    let image = device.durable();
    let (mut with, mut without) = (0, 0);
    for seed in 0..24 {
        let device = Arc::new(CrashDevice::over(image.clone()));
        let open = |device: Arc<CrashDevice>| {
            let db = Kvdb::open(device, env.clone(), OpenOptions::default()).unwrap().0;
            (Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap(), db)
        };
        (world.fs, world.db) = open(device.clone());
        device.cut_power_after(1 + seed * 3);
        let top = world.stat("/top").ino;
        let copied = world.fs.clone_tree(top, ROOT, b"copy").and_then(|_| world.fs.sync_all());
        assert!(copied.is_ok() || device.is_dead(), "{copied:?}");
        (world.fs, world.db) = open(Arc::new(CrashDevice::over(device.crash(seed))));
        assert!(listed(&world.fs, "/top") == original);
        if world.exists("/copy") {
            assert!(listed(&world.fs, "/copy") == original, "seed {seed}");
            with += 1;
        } else {
            assert!(copied.is_err(), "seed {seed}: it was synced");
            without += 1;
        }
        is_sound(&world);
    }
    assert!(with > 0 && without > 0, "{with} with, {without} without: both are wanted");
}

#[test]
fn a_copy_between_two_savepoints_is_there_when_the_transaction_goes_back_to_the_second() {
    let world = World::new();
    make(&world);
    let views = Views::new(world.db.clone(), world.fs.clone());
    let id = views.begin(TransactionOptions::default()).unwrap();
    let (view, inside) = (ViewId::Transaction(id), views.fs(&ViewId::Transaction(id)).unwrap());
    inside.mkdir(ROOT, b"before", 0o755, USER).unwrap();
    let first = views.savepoint(id).unwrap();
    views.clone_tree(&view, b"top", b"copy").unwrap();
    let second = views.savepoint(id).unwrap();
    inside.mkdir(ROOT, b"behind", 0o755, USER).unwrap();
    views.rollback_to(id, &second).unwrap();
    let large = inside.resolve(b"/copy/sub/large").unwrap();
    assert_eq!(inside.read(large.ino, 0, 100_000).unwrap(), content(1, 100_000));
    assert!(inside.resolve(b"/behind").is_err());
    views.rollback_to(id, &first).unwrap();
    assert!(inside.resolve(b"/copy").is_err() && inside.resolve(b"/before").is_ok());
    views.clone_tree(&view, b"top", b"copy").unwrap();
    views.commit(id, Durability::Buffered).unwrap();
    is_the_tree(&world, "copy");
    is_sound(&world);
}

/// A copy that held the freeze lock shared would wait for the very commit that needs the lock
/// exclusively.
#[test]
fn a_copy_does_not_stand_in_the_way_of_a_transaction_that_has_looked_for_its_name() {
    let world = World::new();
    let top = make(&world);
    let views = Views::new(world.db.clone(), world.fs.clone());
    let options =
        TransactionOptions { isolation: Isolation::Serializable, ..TransactionOptions::default() };
    let id = views.begin(options).unwrap();
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    assert!(inside.lookup(ROOT, b"copy").is_err());
    let began = Instant::now();
    match world.fs.clone_tree(top, ROOT, b"copy") {
        Err(Error::Store(kvdb::Error::Locked(_))) => {}
        other => panic!("{other:?}"),
    }
    // Nothing waits in this environment. With the bug, the call took the timeout of a lock.
    assert!(began.elapsed() < Duration::from_secs(8), "it waited for {:?}", began.elapsed());
    views.commit(id, Durability::Buffered).unwrap();
    world.fs.clone_tree(top, ROOT, b"copy").unwrap();
    is_the_tree(&world, "copy");
}

#[test]
fn links_among_several_places_of_one_state_are_links_among_the_copies() {
    // The same holds where the copies are built straight into runs.
    for files in [0, 3000] {
        let world = World::new();
        let top = make(&world);
        for n in 0..files {
            world.file_with(top, &format!("many-{n}"), format!("content {n}").as_bytes());
        }
        // One file has names in two directories and outside of them, and a long attribute.
        let other = world.dir(ROOT, "other");
        let file = world.file_with(other, "a", &content(7, 50_000));
        world.fs.setxattr(file, b"user.long", &content(4, 30_000), Default::default()).unwrap();
        world.fs.link(file, other, b"b").unwrap();
        world.fs.link(file, top, b"c").unwrap();
        world.fs.link(file, ROOT, b"d").unwrap();
        let views = Views::new(world.db.clone(), world.fs.clone());
        views.snapshot(&ViewId::Mainline, "before", Durability::Buffered).unwrap();
        let id = views.begin(TransactionOptions::default()).unwrap();
        let inside = ViewId::Transaction(id);
        let names: [&[u8]; 4] = [b"d", b"top", b"other", b"outside"];
        names.iter().for_each(|name| _ = views.remove_tree(&inside, name).unwrap());
        let places: Vec<(&[u8], &[u8])> = names.iter().map(|name| (*name, *name)).collect();
        let snapshot = Earlier::Snapshot("before".into());
        views.clone_several_earlier(&inside, &snapshot, &places).unwrap();
        views.commit(id, Durability::Synced).unwrap();
        is_the_tree(&world, "/top");
        let found = world.stat("/d");
        assert_ne!(found.ino, file);
        assert_eq!(found.nlink, 4);
        for name in ["/top/c", "/other/a", "/other/b"] {
            assert_eq!(world.stat(name).ino, found.ino, "{name}");
        }
        assert_eq!(world.read_all(found.ino), content(7, 50_000));
        assert_eq!(world.fs.getxattr(found.ino, b"user.long").unwrap(), content(4, 30_000));
        assert_eq!(world.stat("/outside").ino, world.stat("/top/sub/outside").ino);
        world.fs.sync_all().unwrap();
        is_sound(&world);
        // The links are broken one by one.
        views.clone_earlier(&ViewId::Mainline, &snapshot, b"d", b"alone").unwrap();
        assert_eq!(world.stat("/alone").nlink, 1);
        views.drop_snapshot("before").unwrap();
        world.fs.sync_all().unwrap();
        is_sound(&world);
    }
}

#[test]
fn names_that_come_back_one_by_one_are_names_of_one_file_again() {
    let world = World::new();
    let (dir, other) = (world.dir(ROOT, "e"), world.dir(ROOT, "o"));
    let file = world.file_with(dir, "a", &content(7, 50_000));
    world.fs.link(file, dir, b"b").unwrap();
    world.fs.link(file, other, b"c").unwrap();
    let views = Views::new(world.db.clone(), world.fs.clone());
    views.snapshot(&ViewId::Mainline, "before", Durability::Buffered).unwrap();
    let snapshot = Earlier::Snapshot("before".into());
    let again = |name: &[u8]| {
        if world.exists(std::str::from_utf8(name).unwrap()) {
            views.remove_tree(&ViewId::Mainline, name).unwrap();
        }
        views.clone_earlier(&ViewId::Mainline, &snapshot, name, name).unwrap();
    };
    // The other names of the removed file still refer to it.
    world.fs.unlink(dir, b"a").unwrap();
    again(b"e/a");
    let found = world.stat("/e/a");
    assert_eq!((found.ino, found.nlink), (file, 3));
    // The file was written to: the first name is that of a copy, and the others follow.
    world.write(file, 0, b"something else");
    again(b"e/b");
    assert_eq!((world.stat("/e/b").nlink, world.stat("/e/a").nlink), (1, 2));
    again(b"o/c");
    again(b"e/a");
    let found = world.stat("/e/a");
    assert_eq!(found.nlink, 3);
    for name in ["/e/b", "/o/c"] {
        assert_eq!(world.stat(name).ino, found.ino, "{name}");
    }
    assert_eq!(world.read_all(found.ino), content(7, 50_000));
    // Restored to another place it is a copy.
    views.clone_earlier(&ViewId::Mainline, &snapshot, b"e/a", b"alone").unwrap();
    assert_eq!(world.stat("/alone").nlink, 1);
    views.drop_snapshot("before").unwrap();
    world.fs.sync_all().unwrap();
    is_sound(&world);
}

#[test]
fn what_an_earlier_state_had_is_copied_out_of_it_and_outlives_it() {
    // The same holds where the copies are built straight into runs.
    for files in [0, 3000] {
        let world = World::new();
        let top = make(&world);
        for n in 0..files {
            world.file_with(top, &format!("many-{n}"), format!("content {n}").as_bytes());
        }
        let views = Views::new(world.db.clone(), world.fs.clone());
        views.snapshot(&ViewId::Mainline, "before", Durability::Buffered).unwrap();
        views.remove_tree(&ViewId::Mainline, b"top").unwrap();
        world.file_with(ROOT, "top", b"something else");

        let snapshot = Earlier::Snapshot("before".into());
        let from = |state: &Earlier, view: &ViewId, to: &[u8]| {
            views.clone_earlier(view, state, b"/top/", to)
        };
        from(&snapshot, &ViewId::Mainline, b"back").unwrap();
        is_the_tree(&world, "/back");
        assert!(matches!(from(&snapshot, &ViewId::Mainline, b"back"), Err(Error::Exists)));
        let nowhere = Earlier::Snapshot("nowhere".into());
        assert!(from(&nowhere, &ViewId::Mainline, b"x").is_err());
        assert!(matches!(from(&Earlier::Beneath, &ViewId::Mainline, b"x"), Err(Error::Invalid(_))));
        let missing = views.clone_earlier(&ViewId::Mainline, &snapshot, b"top/none", b"x");
        assert!(matches!(missing, Err(Error::NotFound)), "{missing:?}");

        // In a transaction: what it has removed itself, of either isolation.
        for isolation in [Isolation::Snapshot, Isolation::Serializable] {
            let options = TransactionOptions { isolation, ..Default::default() };
            let id = views.begin(options).unwrap();
            let inside = ViewId::Transaction(id);
            views.remove_tree(&inside, b"back").unwrap();
            views.clone_earlier(&inside, &Earlier::Beneath, b"back", b"back").unwrap();
            assert!(
                views.difference(id, Default::default()).unwrap().iter().all(|c| c.times_alone())
            );
            views.commit(id, Durability::Synced).unwrap();
            is_the_tree(&world, "/back");
        }
        // A snapshot of a clone has dictionaries of its own.
        views.clone_snapshot("before", "branch").unwrap();
        let branch = ViewId::Clone("branch".into());
        views.remove_tree(&branch, b"top/sub/empty").unwrap();
        views.snapshot(&branch, "of-branch", Durability::Buffered).unwrap();
        from(&Earlier::Snapshot("of-branch".into()), &ViewId::Mainline, b"other").unwrap();
        assert_eq!(world.stat("/other/sub").nlink, 2);

        for name in ["before", "of-branch"] {
            views.drop_snapshot(name).unwrap();
        }
        views.drop_clone("branch").unwrap();
        world.db.flush().unwrap();
        is_the_tree(&world, "/back");
        if files > 0 {
            assert_eq!(world.read_all(world.stat("/back/many-2999").ino), b"content 2999");
        }
        is_sound(&world);
    }
}
