//! Tests of removing a tree as one change. All of the tree disappears, and everything else stays.

use std::sync::Arc;

use crate::world::{USER, World, fails};
use env::{Machine, Random, Simulated};
use kvdb::{CreateOptions, Durability, Isolation, Kvdb, OpenOptions, TransactionOptions};
use kvfs::{Error, FileKind, Fs, FsOptions, Ino, ROOT, RemoveStats, ViewId, Views};
use zones::{CrashDevice, MemoryDevice};

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add((i >> 8) as u8))
        .collect()
}

/// A file that nothing refers to afterwards.
fn closed(fs: &Fs, parent: Ino, name: &str, data: &[u8]) -> Ino {
    let ino = fs.mknod(parent, name.as_bytes(), FileKind::File, 0o644, 0, USER).unwrap().ino;
    fs.write(ino, 0, data, Default::default()).unwrap();
    fs.forget(ino, 1);
    ino
}

fn directory(fs: &Fs, parent: Ino, name: &str) -> Ino {
    let ino = fs.mkdir(parent, name.as_bytes(), 0o755, USER).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

/// A tree with one of everything, and a file next to it that has a name in it.
fn make(fs: &Fs) -> Ino {
    let top = directory(fs, ROOT, "top");
    let sub = directory(fs, top, "sub");
    directory(fs, sub, "empty");
    closed(fs, top, "small", b"small");
    let large = closed(fs, sub, "large", &content(1, 100_000));
    fs.link(large, top, b"link").unwrap();
    fs.forget(large, 1);
    let symlink = fs.symlink(top, b"symlink", b"sub/large", USER).unwrap().ino;
    fs.forget(symlink, 1);
    let fifo = fs.mknod(sub, b"fifo", FileKind::Fifo, 0o600, 0, USER).unwrap().ino;
    fs.forget(fifo, 1);
    fs.setxattr(large, b"user.long", &content(4, 30_000), Default::default()).unwrap();
    fs.setxattr(sub, b"user.short", b"x", Default::default()).unwrap();
    let outside = closed(fs, ROOT, "outside", &content(7, 9000));
    for name in [&b"outside"[..], b"outside again"] {
        fs.link(outside, sub, name).unwrap();
        fs.forget(outside, 1);
    }
    top
}

/// Everything that is stored of the files, by dictionary.
fn stored(db: &Kvdb) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
    let view = db.view();
    let scan = |name| view.scan(db.dictionary(name).unwrap(), b"", b"", usize::MAX).unwrap();
    let owned = |all: Vec<(bytes::Bytes, bytes::Bytes)>| {
        all.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
    };
    ["nmap", "imap", "dmap"].map(|name| owned(scan(name))).into()
}

/// Removes a tree with single calls, as programs do.
fn call_by_call(fs: &Fs, parent: Ino, name: &[u8]) {
    let (ino, kind) = fs.peek(parent, name).unwrap().unwrap();
    if kind != FileKind::Dir {
        return fs.unlink(parent, name).unwrap();
    }
    let mut names = Vec::new();
    let mut emit = |entry: kvfs::DirEntry<'_>| {
        if entry.name != b"." && entry.name != b".." {
            names.push(entry.name.to_vec());
        }
        true
    };
    fs.readdir(ino, 0, false, &mut emit).unwrap();
    names.iter().for_each(|name| call_by_call(fs, ino, name));
    fs.rmdir(parent, name).unwrap();
}

#[test]
fn it_leaves_what_removing_one_by_one_leaves() {
    for (synced, flushed, again) in
        [(false, false, false), (true, false, false), (true, true, false), (true, true, true)]
    {
        let worlds = [World::new(), World::new()];
        for mut world in
            worlds.iter().map(|w| World { db: w.db.clone(), env: w.env.clone(), fs: w.fs.clone() })
        {
            make(&world.fs);
            if synced {
                world.fs.sync_all().unwrap();
            }
            if flushed {
                world.db.flush().unwrap();
            }
            if again {
                world.remount();
            }
        }
        let [one, other] = &worlds;
        one.second();
        other.second();
        let (fs, db) = (&one.fs, &one.db);
        let stats = fs.remove_tree(ROOT, b"top").unwrap();
        assert_eq!(stats, RemoveStats { directories: 3, files: 7, bytes: 100_005 });
        call_by_call(&other.fs, ROOT, b"top");
        for world in &worlds {
            world.fs.sync_all().unwrap();
        }
        assert_eq!(
            stored(db),
            stored(&other.db),
            "synced {synced}, flushed {flushed}, opened again {again}"
        );
        assert_eq!(one.contents("/outside"), content(7, 9000));
        assert_eq!((one.stat("/outside").nlink, one.stat("/").nlink), (1, 2));
        assert_eq!(one.stat("/outside").ctime, other.stat("/outside").ctime);
        assert_eq!(one.list(ROOT), [".", "..", "outside"]);
    }
}

#[test]
fn a_random_tree_as_one_by_one() {
    for seed in 0..60 {
        let worlds = [World::new(), World::new()];
        for world in &worlds {
            let (mut random, fs) = (Random::new(seed), &world.fs);
            let mut dirs = vec![ROOT, directory(fs, ROOT, "top")];
            let mut files = Vec::new();
            for n in 0..60 {
                let dir = dirs[random.below(dirs.len() as u64) as usize];
                match random.below(10) {
                    0..=2 => dirs.push(directory(fs, dir, &format!("d{n}"))),
                    3..=6 => {
                        let len = [0, 100, 600, 5000, 70_000][random.below(5) as usize];
                        files.push(closed(fs, dir, &format!("f{n}"), &content(n, len)));
                    }
                    7 | 8 if !files.is_empty() => {
                        let file = files[random.below(files.len() as u64) as usize];
                        fs.link(file, dir, format!("l{n}").as_bytes()).unwrap();
                        fs.forget(file, 1);
                    }
                    _ if !files.is_empty() => {
                        let file = files[random.below(files.len() as u64) as usize];
                        let len = [10, 9000][random.below(2) as usize];
                        fs.setxattr(file, b"user.x", &content(n, len), Default::default()).unwrap();
                    }
                    _ => {}
                }
                if random.one_in(20) {
                    fs.sync_all().unwrap();
                }
            }
        }
        worlds[0].fs.remove_tree(ROOT, b"top").unwrap();
        call_by_call(&worlds[1].fs, ROOT, b"top");
        worlds.iter().for_each(|world| world.fs.sync_all().unwrap());
        assert_eq!(stored(&worlds[0].db), stored(&worlds[1].db), "seed {seed}");
    }
}

#[test]
fn what_is_open_keeps_its_content_until_it_is_closed() {
    for commit in [false, true] {
        let world = World::new();
        let fs = &world.fs;
        make(fs);
        if commit {
            fs.sync_all().unwrap();
        }
        let open: Vec<Ino> =
            ["top", "top/sub", "top/small", "top/sub/large", "top/symlink", "outside"]
                .map(|path| {
                    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
                    fs.lookup(world.stat(dir).ino, name.as_bytes()).unwrap().ino
                })
                .into();
        let [top, sub, small, large, symlink, outside] = open[..] else { unreachable!() };
        fs.remove_tree(ROOT, b"top").unwrap();
        world.check();
        assert_eq!(world.read_all(small), b"small");
        assert_eq!(world.read_all(large), content(1, 100_000));
        assert_eq!(fs.getxattr(large, b"user.long").unwrap(), content(4, 30_000));
        assert_eq!(fs.readlink(symlink).unwrap(), b"sub/large");
        for ino in [top, sub, small, large, symlink] {
            assert_eq!(fs.getattr(ino).unwrap().nlink, 0);
        }
        // An open file can be written to, and nothing can be made in a removed directory.
        world.write(large, 50_000, b"changed");
        world.write(small, 0, &content(9, 5000));
        assert_eq!(world.read(large, 50_000, 7), b"changed");
        assert!(world.list(sub).is_empty());
        fails(fs.mkdir(sub, b"new", 0o755, USER), libc::ENOENT);
        fails(fs.lookup(sub, b"large"), libc::ENOENT);
        fails(fs.link(small, top, b"back"), libc::ENOENT);
        assert_eq!(fs.getattr(outside).unwrap().nlink, 1);
        fs.sync_all().unwrap();
        open.iter().for_each(|ino| fs.forget(*ino, 1));
        fails(fs.getattr(large), libc::ESTALE);
        fs.sync_all().unwrap();
        let report = kvfs::verify(&world.db).unwrap();
        assert_eq!((report.orphans, report.pages), (0, 3), "the pages of `outside` alone");
    }
}

#[test]
fn what_cannot_be_removed_is_all_there() {
    let world = World::new();
    let (fs, before) = (&world.fs, make(&world.fs));
    fs.sync_all().unwrap();
    let all = stored(&world.db);
    fails(fs.remove_tree(ROOT, b"none"), libc::ENOENT);
    fails(fs.remove_tree(ROOT, b"."), libc::EINVAL);
    fails(fs.remove_tree(before, b".."), libc::ENOTEMPTY);
    fails(fs.remove_tree(ROOT, b""), libc::ENOENT);
    fails(fs.remove_tree(ROOT, b"top/sub"), libc::EINVAL);
    fails(fs.remove_tree(world.stat("/outside").ino, b"x"), libc::ENOTDIR);
    let views = Views::new(world.db.clone(), fs.clone());
    let refused = |path: &[u8], why: &str| match views.remove_tree(&ViewId::Mainline, path) {
        Err(e) => assert!(e.to_string().contains(why), "{e}, not {why}"),
        Ok(stats) => panic!("{} is gone: {stats:?}", path.escape_ascii()),
    };
    refused(b"", "the root stays");
    refused(b"//./", "the root stays");
    refused(b"/top/..", "`..`");
    refused(b"/top/../outside", "`..`");
    refused(b"/.kvfs", "views");
    refused(b".kvfs/txn/1/a", "views");
    refused(b"/top/none", "no such file");
    refused(b"/none/at all", "no such file");
    refused(b"/outside/x", "not a directory");
    // The way to it goes through no symbolic link, but one can be removed.
    fs.symlink(ROOT, b"way", b"top", USER).unwrap();
    refused(b"/way/small", "not a directory");
    assert_eq!(views.remove_tree(&ViewId::Mainline, b"way").unwrap().files, 1);
    fs.sync_all().unwrap();
    let untimed = |all: &[Vec<(Vec<u8>, Vec<u8>)>]| (all[0].clone(), all[1].len(), all[2].clone());
    assert_eq!(untimed(&stored(&world.db)), untimed(&all));
    views.remove_tree(&ViewId::Mainline, b"/top/sub/").unwrap();
    assert!(!world.exists("/top/sub") && world.exists("/top/small"));
}

#[test]
fn a_snapshot_keeps_what_it_has() {
    let world = World::new();
    make(&world.fs);
    let views = Views::new(world.db.clone(), world.fs.clone());
    views.snapshot(&ViewId::Mainline, "s", Durability::Buffered).unwrap();
    world.fs.remove_tree(ROOT, b"top").unwrap();
    let snapshot = views.fs(&ViewId::Snapshot("s".into())).unwrap();
    let large = snapshot.resolve(b"top/link").unwrap();
    assert_eq!(
        (snapshot.read(large.ino, 0, 200_000).unwrap().to_vec(), large.nlink),
        (content(1, 100_000), 2)
    );
    fails(snapshot.remove_tree(ROOT, b"top"), libc::EROFS);
    views.rollback("s").unwrap();
    assert_eq!(world.contents("/top/sub/large"), content(1, 100_000));
    assert_eq!(world.stat("/outside").nlink, 3);
}

#[test]
fn in_a_transaction_it_is_part_of_that() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let world = World::new();
        make(&world.fs);
        world.fs.sync_all().unwrap();
        let all = stored(&world.db);
        let views = Views::new(world.db.clone(), world.fs.clone());
        let begin = || {
            let id = views.begin(TransactionOptions { isolation, ..Default::default() }).unwrap();
            (id, ViewId::Transaction(id), views.fs(&ViewId::Transaction(id)).unwrap())
        };
        let (id, view, inside) = begin();
        let own = directory(&inside, inside.resolve(b"top").unwrap().ino, "own");
        closed(&inside, own, "new", &content(3, 9000));
        inside.link(inside.resolve(b"outside").unwrap().ino, own, b"third").unwrap();
        let stats = views.remove_tree(&view, b"top").unwrap();
        assert_eq!((stats.directories, stats.files), (4, 9));
        assert!(inside.resolve(b"top").is_err());
        assert_eq!(inside.resolve(b"outside").unwrap().nlink, 1);
        assert_eq!(world.contents("/top/sub/large"), content(1, 100_000), "no other view sees it");
        views.abort(id).unwrap();
        world.fs.sync_all().unwrap();
        assert_eq!(stored(&world.db), all, "an abort leaves everything");

        // A program has it open over the commit.
        let large = world.fs.lookup(world.stat("/top/sub").ino, b"large").unwrap().ino;
        let (id, view, inside) = begin();
        directory(&inside, inside.resolve(b"top/sub").unwrap().ino, "own");
        views.remove_tree(&view, b"top").unwrap();
        views.commit(id, Durability::Buffered).unwrap();
        assert_eq!(world.list(ROOT), [".", "..", "outside"]);
        assert_eq!(
            (world.read_all(large), world.fs.getattr(large).unwrap().nlink),
            (content(1, 100_000), 0)
        );
        world.fs.forget(large, 1);
        views.tick();
        world.fs.sync_all().unwrap();
        let report = kvfs::verify(&world.db).unwrap();
        assert_eq!((report.orphans, report.pages), (0, 3));
        assert_eq!(world.stat("/outside").nlink, 1);
    }
}

#[test]
fn a_transaction_that_has_changed_something_in_it_and_it_do_not_both_happen() {
    type Change = fn(&Fs);
    let changes: [(&str, Change); 5] = [
        ("a file written to", |fs| {
            fs.write(fs.resolve(b"top/sub/large").unwrap().ino, 0, b"x", Default::default())
                .unwrap();
        }),
        ("a file made", |fs| {
            closed(fs, fs.resolve(b"top/sub/empty").unwrap().ino, "new", b"new");
        }),
        ("a file moved in", |fs| {
            fs.rename(
                ROOT,
                b"adjacent",
                fs.resolve(b"top/sub").unwrap().ino,
                b"adjacent",
                Default::default(),
            )
            .unwrap();
        }),
        ("a file moved out", |fs| {
            fs.rename(fs.resolve(b"top").unwrap().ino, b"small", ROOT, b"small", Default::default())
                .unwrap()
        }),
        ("a file removed", |fs| fs.unlink(fs.resolve(b"top/sub").unwrap().ino, b"fifo").unwrap()),
    ];
    for (what, change) in changes {
        for in_transaction in [false, true] {
            let world = World::new();
            make(&world.fs);
            closed(&world.fs, ROOT, "adjacent", b"adjacent");
            world.fs.sync_all().unwrap();
            let views = Views::new(world.db.clone(), world.fs.clone());
            let begin = || {
                let id = views.begin(TransactionOptions::default()).unwrap();
                (id, views.fs(&ViewId::Transaction(id)).unwrap())
            };
            let ((id, inside), (other, _)) = (begin(), begin());
            change(&inside);
            if in_transaction {
                views.remove_tree(&ViewId::Transaction(other), b"top").unwrap();
                views.commit(other, Durability::Buffered).unwrap();
            } else {
                views.remove_tree(&ViewId::Mainline, b"top").unwrap();
                views.abort(other).unwrap();
            }
            match views.commit(id, Durability::Buffered) {
                Err(Error::Store(kvdb::Error::Conflict { .. })) => {}
                done => panic!("{what}: {done:?}"),
            }
            assert_eq!(world.list(ROOT), [".", "..", "adjacent", "outside"], "{what}");
        }
    }
}

#[test]
fn what_others_have_changed_since_a_transaction_began_it_does_not_remove() {
    let world = World::new();
    make(&world.fs);
    let views = Views::new(world.db.clone(), world.fs.clone());
    let id = views.begin(TransactionOptions::default()).unwrap();
    views.remove_tree(&ViewId::Transaction(id), b"top").unwrap();
    closed(&world.fs, world.stat("/top/sub/empty").ino, "new", b"new");
    match views.commit(id, Durability::Buffered) {
        Err(Error::Store(kvdb::Error::Conflict { .. })) => {}
        done => panic!("{done:?}"),
    }
    assert_eq!(world.contents("/top/sub/empty/new"), b"new");
    assert_eq!(world.contents("/top/sub/large"), content(1, 100_000));
    // Changes by others next to it do not concern it.
    let id = views.begin(TransactionOptions::default()).unwrap();
    views.remove_tree(&ViewId::Transaction(id), b"top").unwrap();
    closed(&world.fs, ROOT, "new", b"new");
    views.commit(id, Durability::Buffered).unwrap();
    assert_eq!(world.list(ROOT), [".", "..", "new", "outside"]);
}

#[test]
fn what_a_serializable_transaction_has_read_is_not_removed_before_its_end() {
    let world = World::new();
    make(&world.fs);
    let views = Views::new(world.db.clone(), world.fs.clone());
    let options =
        TransactionOptions { isolation: Isolation::Serializable, ..TransactionOptions::default() };
    let id = views.begin(options.clone()).unwrap();
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    inside.read(inside.resolve(b"top/sub/large").unwrap().ino, 0, 10).unwrap();
    let locked = |done: kvfs::Result<RemoveStats>| match done {
        Err(Error::Store(kvdb::Error::Locked(_))) => {}
        done => panic!("{done:?}"),
    };
    locked(world.fs.remove_tree(ROOT, b"top"));
    assert_eq!(world.contents("/top/sub/large"), content(1, 100_000));
    views.commit(id, Durability::Buffered).unwrap();

    // Others neither change the removed files nor see them removed.
    let id = views.begin(options).unwrap();
    views.remove_tree(&ViewId::Transaction(id), b"top").unwrap();
    let small = world.stat("/top/small").ino;
    assert!(matches!(
        world.fs.write(small, 0, b"x", Default::default()),
        Err(Error::Store(kvdb::Error::Locked(_)))
    ));
    locked(world.fs.remove_tree(ROOT, b"top"));
    views.abort(id).unwrap();
    world.fs.remove_tree(ROOT, b"top").unwrap();
}

#[test]
fn a_link_is_removed_from_a_file_as_it_is_when_it_is_locked() {
    let world = World::new();
    make(&world.fs);
    let large = world.stat("/top/sub/large").ino;
    world.fs.link(large, ROOT, b"adjacent").unwrap();
    world.fs.sync_all().unwrap();
    let views = Views::new(world.db.clone(), world.fs.clone());
    let options =
        TransactionOptions { isolation: Isolation::Serializable, ..TransactionOptions::default() };
    let id = views.begin(options).unwrap();
    // The data waits in memory when the transaction reaches the file.
    world
        .fs
        .setattr(large, &kvfs::SetAttr { mode: Some(0o604), ..Default::default() }, USER)
        .unwrap();
    views.remove_tree(&ViewId::Transaction(id), b"adjacent").unwrap();
    views.commit(id, Durability::Buffered).unwrap();
    assert_eq!((world.stat("/top/link").perm, world.stat("/top/link").nlink), (0o604, 2));
}

/// Others make and remove files, write, list and commit transactions in the tree all the while.
#[test]
fn a_tree_goes_while_others_work_in_it() {
    let machine = Arc::new(Machine::default());
    let db = Kvdb::create(Arc::new(MemoryDevice::new()), machine.clone(), CreateOptions::default())
        .unwrap();
    let fs = Fs::open(db.clone(), machine, FsOptions::default()).unwrap();
    let views = Views::new(db.clone(), fs.clone());
    directory(&fs, ROOT, "kept");
    let rounds = 60;
    let done = std::sync::atomic::AtomicBool::new(false);
    let (mut removed, worked) = (0, std::sync::atomic::AtomicU64::new(0));
    /// The workers end, whatever fails.
    struct End<'a>(&'a std::sync::atomic::AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _end = End(&done);
        for worker in 0..3u64 {
            let (fs, views, done, worked) = (&fs, &views, &done, &worked);
            scope.spawn(move || {
                let mut random = Random::new(worker);
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    // Anything may disappear at any step, but only as a whole.
                    let mut work = || -> kvfs::Result<()> {
                        let (top, kept) = (fs.resolve(b"top")?.ino, fs.resolve(b"kept")?.ino);
                        let name = format!("f{}", worker * 1000 + random.below(50));
                        let file =
                            fs.mknod(top, name.as_bytes(), FileKind::File, 0o644, 0, USER)?.ino;
                        let written = fs.write(file, 0, &content(1, 6000), Default::default());
                        let linked = fs.link(
                            file,
                            kept,
                            format!("{name}-{}", random.below(u64::MAX)).as_bytes(),
                        );
                        if linked.is_ok() {
                            fs.forget(file, 1);
                        }
                        // An open file is complete, with a name or without.
                        assert!(
                            written.is_err() || fs.read(file, 0, 6000)?[..] == content(1, 6000)[..]
                        );
                        fs.forget(file, 1);
                        let mut listed = Vec::new();
                        let mut emit = |entry: kvfs::DirEntry<'_>| {
                            if entry.attr.is_some() && entry.name != b"." && entry.name != b".." {
                                listed.push(entry.ino);
                            }
                            true
                        };
                        let ended = fs.readdir(top, 0, true, &mut emit);
                        listed.iter().for_each(|ino| fs.forget(*ino, 1));
                        ended?;
                        let id = views.begin(TransactionOptions::default())?;
                        let inside = views.fs(&ViewId::Transaction(id))?;
                        let made = inside
                            .resolve(b"top")
                            .and_then(|top| inside.mkdir(top.ino, name.as_bytes(), 0o755, USER));
                        drop(
                            made.and_then(|_| views.commit(id, Durability::Buffered))
                                .or_else(|_| views.abort(id)),
                        );
                        Ok(())
                    };
                    if work().is_ok() {
                        worked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            });
        }
        for round in 0..rounds {
            let top = directory(&fs, ROOT, "top");
            directory(&fs, top, "sub");
            // Waits until the directory has entries. The workers never stop before this does.
            let goal = worked.load(std::sync::atomic::Ordering::Relaxed) + 3;
            let began = std::time::Instant::now();
            while worked.load(std::sync::atomic::Ordering::Relaxed) < goal {
                assert!(began.elapsed().as_secs() < 120, "the workers do nothing in round {round}");
                std::thread::yield_now();
            }
            match views.remove_tree(&ViewId::Mainline, b"top") {
                Ok(stats) => removed += stats.files,
                Err(e) => panic!("round {round}: {e}"),
            }
            assert!(matches!(fs.resolve(b"top"), Err(Error::NotFound)), "round {round}");
        }
    });
    assert!(removed > rounds, "{removed} files in {rounds} rounds");
    let report = fs.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(report.directories, 2);
}

/// So many links to elsewhere that the changes are more than one commit takes.
#[test]
fn a_tree_of_many_links_that_lead_out() {
    let world = World::new();
    let fs = &world.fs;
    let (kept, top) = (directory(fs, ROOT, "kept"), directory(fs, ROOT, "top"));
    for n in 0..12_000u32 {
        let ino = closed(fs, kept, &format!("f{n}"), &content(n as u8, 200));
        fs.link(ino, top, format!("f{n}").as_bytes()).unwrap();
        fs.forget(ino, 1);
    }
    fs.sync_all().unwrap();
    let stats = fs.remove_tree(ROOT, b"top").unwrap();
    assert_eq!(stats, RemoveStats { directories: 1, files: 12_000, bytes: 0 });
    assert_eq!(world.db.transactions().len(), 0);
    assert!(!world.exists("/top"));
    for n in (0..12_000).step_by(97) {
        let attr = world.stat(&format!("/kept/f{n}"));
        assert_eq!((attr.nlink, world.read_all(attr.ino)), (1, content(n as u8, 200)));
    }
}

#[test]
fn after_a_power_cut_it_is_there_whole_or_not_at_all() {
    let env = Arc::new(Simulated::new(3));
    let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
    let db = Kvdb::create(device.clone(), env.clone(), CreateOptions::default()).unwrap();
    let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap();
    let mut world = World { db, env: env.clone(), fs };
    make(&world.fs);
    let many = directory(&world.fs, world.stat("/top").ino, "many");
    for n in 0..300 {
        closed(&world.fs, many, &format!("f{n}"), &content(n as u8, 5000));
    }
    world.fs.sync_all().unwrap();
    let names = |world: &World| world.list(world.stat("/top/many").ino).len();
    let image = device.durable();
    let (mut with, mut without) = (0, 0);
    for seed in 0..24 {
        let device = Arc::new(CrashDevice::over(image.clone()));
        let open = |device: Arc<CrashDevice>| {
            let db = Kvdb::open(device, env.clone(), OpenOptions::default()).unwrap().0;
            (Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap(), db)
        };
        (world.fs, world.db) = open(device.clone());
        device.cut_power_after(seed);
        let removed = world.fs.remove_tree(ROOT, b"top").and_then(|_| world.fs.sync_all());
        assert!(removed.is_ok() || device.is_dead(), "{removed:?}");
        (world.fs, world.db) = open(Arc::new(CrashDevice::over(device.crash(seed))));
        match world.exists("/top") {
            true => {
                assert!(removed.is_err(), "seed {seed}: it was synced");
                assert_eq!((names(&world), world.stat("/outside").nlink), (302, 3), "seed {seed}");
                assert_eq!(world.contents("/top/sub/large"), content(1, 100_000));
                with += 1;
            }
            false => {
                assert_eq!(
                    (world.list(ROOT).len(), world.stat("/outside").nlink),
                    (3, 1),
                    "seed {seed}"
                );
                without += 1;
            }
        }
        world.check();
    }
    assert!(with > 0 && without > 0, "{with} with, {without} without: both are wanted");
}

#[test]
fn a_full_store_is_emptied_by_it() {
    let open =
        OpenOptions { memory: 8 << 20, threads: false, zero_journal: false, ..Default::default() };
    let options = CreateOptions {
        capacity: Some(14 * (8 << 20)),
        reserve_zones: 4,
        open,
        ..CreateOptions::default()
    };
    let env = Arc::new(Simulated::new(1));
    let db = Kvdb::create(Arc::new(MemoryDevice::new()), env.clone(), options).unwrap();
    let fs = Fs::open(db.clone(), env, FsOptions { write_buffer: 4 << 20, ..Default::default() })
        .unwrap();
    let top = directory(&fs, ROOT, "top");
    let full = (0..100_000).find(|n| {
        let made = fs.mknod(top, format!("f{n}").as_bytes(), FileKind::File, 0o644, 0, USER);
        let written = made.and_then(|attr| {
            let written = fs.write(attr.ino, 0, &content(*n as u8, 50_000), Default::default());
            fs.forget(attr.ino, 1);
            written
        });
        written.map_err(|e| assert_eq!(e.errno(), libc::ENOSPC)).is_err()
    });
    let full = full.expect("it fills up");
    let free = || fs.statfs().unwrap().free;
    let before = free();
    let stats = fs.remove_tree(ROOT, b"top").unwrap();
    assert!(stats.files >= full, "{stats:?}, {full} made");
    fs.sync_all().unwrap();
    db.reclaim();
    assert!(free() > before + 1000, "{} blocks are free, {before} were", free());
    let again = closed(&fs, ROOT, "again", &content(1, 5 << 20));
    fs.sync_all().unwrap();
    assert_eq!(fs.read(again, 0, 5 << 20).unwrap().to_vec(), content(1, 5 << 20));
    assert!(kvfs::verify(&db).unwrap().is_clean());
}

/// Makes a tree of this many directories with this many files each, in turn. Returns the bytes for
/// each file that removing it and syncing writes.
fn cost(zone_size: u64, directories: usize, files: usize) -> f64 {
    let world = World::with(FsOptions { zone_size: Some(zone_size), ..FsOptions::default() });
    let top = world.dir(ROOT, "top");
    let dirs: Vec<_> = (0..directories).map(|n| world.dir(top, &format!("d{n:04}"))).collect();
    let outside = world.dir(ROOT, "outside");
    for n in 0..files {
        for dir in &dirs {
            world.file_with(*dir, &format!("f{n:04}"), &[n as u8; 600]);
        }
        world.file_with(outside, &format!("f{n}"), &[n as u8; 600]);
    }
    world.fs.sync_all().unwrap();
    let written = || world.db.stats().io.total().write_bytes;
    let before = written();
    let stats = world.fs.remove_tree(ROOT, b"top").unwrap();
    assert_eq!(stats.files, (directories * files) as u64);
    world.fs.sync_all().unwrap();
    let each = (written() - before) as f64 / stats.files as f64;
    if std::env::var_os("KVFS_MEASURE").is_some() {
        println!(
            "zone size {zone_size}, {directories} directories of {files}: {each:.2} bytes a file"
        );
    }
    assert_eq!(world.list(outside).len(), files + 2);
    world.check();
    each
}

#[test]
fn the_files_of_a_zone_cost_a_few_range_deletes_together() {
    let zone_size = kvfs::ZONE_SIZE;
    assert!(cost(zone_size, 50, 400) < 32.0);
    assert!(cost(zone_size, 20, 1000) < 32.0);
    // A directory whose files do not fill what it has reserved is a range of its own.
    assert!(cost(zone_size, 1000, 7) < 100.0);
    assert!(cost(0, 50, 100) < 100.0, "what lies outside is between them");
}
