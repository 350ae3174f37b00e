//! Tests of the compression of files. Each file has a method, set by an attribute that is
//! inherited. Incompressible data is stored uncompressed, and every page is read as it was written.

use std::sync::Arc;

use env::{Random, Simulated};
use kvdb::{
    Batch, CreateOptions, Durability, Kvdb, OpenOptions, ReceiveOptions, ScrubOptions,
    ServedChange, TransactionOptions,
};
use kvfs::{
    COMPRESS_ATTRIBUTE, Compress, FileKind, Fs, FsOptions, Ino, ROOT, RenameFlags, SetAttr, ViewId,
    Whole, XattrFlags,
};
use zones::{CrashDevice, Device, Fault, FaultDevice, FaultKind, MemoryDevice, Operation};

use crate::world::{USER, World, fails};

const ATTRIBUTE: &[u8] = COMPRESS_ATTRIBUTE.as_bytes();
const PAGE: usize = 4096;

fn set(fs: &Fs, ino: Ino, way: Compress) {
    fs.setxattr(ino, ATTRIBUTE, way.name().as_bytes(), XattrFlags::Any).unwrap();
}

fn way(fs: &Fs, ino: Ino) -> Option<Compress> {
    fs.getxattr(ino, ATTRIBUTE).ok().and_then(|word| Compress::named(&word))
}

fn text(pages: usize) -> Vec<u8> {
    let lines = (0..).flat_map(|n| format!("line {n} of a text like many others\n").into_bytes());
    lines.take(pages * PAGE).collect()
}

fn noise(pages: usize) -> Vec<u8> {
    let mut bytes = vec![0; pages * PAGE];
    Random::new(7).fill(&mut bytes);
    bytes
}

/// Returns the pages that a file has in the store of a branch, each with its bytes on the device.
fn stored(db: &Kvdb, branch: &str, ino: Ino) -> Vec<usize> {
    db.flush().unwrap();
    let dmap = db.dictionary_in(branch, "dmap").unwrap();
    let (view, file) = (db.view(), ino.to_be_bytes());
    let mut tuples = view.stored_tuples(dmap).unwrap();
    tuples.seek(&file);
    let mut pages = Vec::new();
    while tuples.advance().unwrap() {
        match tuples.current().filter(|tuple| tuple.key.starts_with(&file)) {
            Some(tuple) => pages.push(tuple.stored_bytes()),
            None => break,
        }
    }
    pages
}

#[track_caller]
fn assert_compressed(w: &World, ino: Ino, pages: usize) {
    w.fs.fsync(ino, false).unwrap();
    let found = stored(&w.db, "", ino);
    assert_eq!(found.len(), pages);
    assert!(found.iter().all(|len| *len < PAGE / 2), "{found:?}");
}

#[track_caller]
fn assert_plain(w: &World, ino: Ino, pages: usize) {
    w.fs.fsync(ino, false).unwrap();
    assert_eq!(stored(&w.db, "", ino), vec![PAGE; pages]);
}

#[test]
fn files_and_directories_inherit_the_way_of_their_directory() {
    let w = World::new();
    let dir = w.dir(ROOT, "dir");
    let before = w.file_with(dir, "before", &text(20));
    set(&w.fs, dir, Compress::Lz4);
    let below = w.dir(dir, "below");
    let file = w.file_with(below, "file", &text(20));
    let outside = w.file_with(ROOT, "outside", &text(20));
    assert_eq!((way(&w.fs, below), way(&w.fs, file)), (Some(Compress::Lz4), Some(Compress::Lz4)));
    assert_eq!((way(&w.fs, before), way(&w.fs, outside)), (None, None));
    assert_compressed(&w, file, 20);
    assert_plain(&w, before, 20);
    assert_plain(&w, outside, 20);
    assert_eq!(w.read_all(file), text(20));
    // A symbolic link has no attributes of users.
    let link = w.fs.symlink(dir, b"link", b"file", USER).unwrap().ino;
    assert_eq!(w.fs.listxattr(link).unwrap(), b"");
    let nameless = w.fs.tmpfile(dir, 0o600, USER).unwrap().ino;
    assert_eq!(way(&w.fs, nameless), Some(Compress::Lz4));
    w.fs.forget(nameless, 1);
    let whole = Whole {
        parent: dir,
        name: Box::from(&b"whole"[..]),
        kind: FileKind::File,
        perm: 0o644,
        uid: 1,
        gid: 1,
        rdev: 0,
        atime: Default::default(),
        mtime: Default::default(),
        content: text(20).into(),
    };
    w.fs.make_whole(&[whole]).unwrap();
    let whole = w.stat("dir/whole").ino;
    assert_eq!(way(&w.fs, whole), Some(Compress::Lz4));
    assert_compressed(&w, whole, 20);
    assert_eq!(w.read_all(whole), text(20));
}

#[test]
fn what_does_not_compress_is_stored_as_it_is() {
    let w = World::new();
    set(&w.fs, ROOT, Compress::Auto);
    let (film, log) =
        (w.file_with(ROOT, "film", &noise(300)), w.file_with(ROOT, "log", &text(300)));
    assert_plain(&w, film, 300);
    assert_compressed(&w, log, 300);
    assert_eq!((w.read_all(film), w.read_all(log)), (noise(300), text(300)));
    // Each method stores noise uncompressed.
    for way in Compress::ALL {
        let name = format!("film.{}", way.name());
        let file = w.file(ROOT, &name);
        set(&w.fs, file, way);
        w.write(file, 0, &noise(10));
        assert_plain(&w, file, 10);
    }
}

#[test]
fn a_file_keeps_its_way_when_it_is_renamed_or_linked() {
    let w = World::new();
    let dir = w.dir(ROOT, "dir");
    set(&w.fs, dir, Compress::Zstd);
    let file = w.file_with(dir, "file", &text(10));
    w.fs.rename(dir, b"file", ROOT, b"moved", RenameFlags::default()).unwrap();
    w.fs.link(file, ROOT, b"linked").unwrap();
    w.write(file, 10 * PAGE as u64, &text(10));
    assert_compressed(&w, file, 20);
    let linked = w.stat("linked").ino;
    assert_eq!((linked, way(&w.fs, linked)), (file, Some(Compress::Zstd)));
    // A file that is moved into the directory keeps its own method, too.
    let other = w.file_with(ROOT, "other", &text(10));
    w.fs.rename(ROOT, b"other", dir, b"other", RenameFlags::default()).unwrap();
    assert_eq!(way(&w.fs, other), None);
    assert_plain(&w, other, 10);
}

#[test]
fn the_way_is_that_of_each_write_and_ends_with_the_attribute() {
    let w = World::new();
    let file = w.file_with(ROOT, "file", &text(10));
    assert_plain(&w, file, 10);
    set(&w.fs, file, Compress::Lz4);
    assert_plain(&w, file, 10);
    w.write(file, 0, &text(4));
    w.fs.fsync(file, false).unwrap();
    let pages = stored(&w.db, "", file);
    assert!(pages[..4].iter().all(|len| *len < PAGE / 2), "{pages:?}");
    assert_eq!(pages[4..], [PAGE; 6]);
    w.fs.removexattr(file, ATTRIBUTE).unwrap();
    w.write(file, 0, &text(2));
    w.fs.fsync(file, false).unwrap();
    let pages = stored(&w.db, "", file);
    assert_eq!(pages[..2], [PAGE; 2]);
    assert!(pages[2..4].iter().all(|len| *len < PAGE / 2), "{pages:?}");
}

#[test]
fn a_walk_counts_what_is_stored_and_stat_what_was_written() {
    let w = World::new();
    let (dir, plain) = (w.dir(ROOT, "dir"), w.file_with(ROOT, "plain", &text(40)));
    set(&w.fs, dir, Compress::Lz4);
    let (log, film) = (w.file_with(dir, "log", &text(40)), w.file_with(dir, "film", &noise(40)));
    for file in [plain, log, film] {
        w.fs.fsync(file, false).unwrap();
        assert_eq!(w.fs.getattr(file).unwrap().blocks, 40 * 8);
    }
    w.db.flush().unwrap();
    let mut blocks = std::collections::BTreeMap::new();
    let mut walk = w.fs.walk(ROOT).unwrap();
    while let Some(walked) = walk.next().unwrap() {
        blocks.insert(walked.attr.ino, walked.attr.blocks);
    }
    assert_eq!((blocks[&plain], blocks[&film]), (40 * 8, 40 * 8));
    let stored = stored(&w.db, "", log).iter().sum::<usize>() as u64;
    assert_eq!(blocks[&log], stored.div_ceil(512));
    assert!(blocks[&log] < 20 * 8);
    let alone = w.fs.walk(log).unwrap().next().unwrap().unwrap().attr.blocks;
    assert_eq!(alone, blocks[&log]);
}

/// A walk reads the references to the pages of compressed files for their sizes only.
#[test]
fn a_walk_has_the_names_of_files_whose_pages_cannot_be_found() {
    let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new()), 1));
    let env = Arc::new(Simulated::new(3));
    let options = CreateOptions { open: open_options(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), env.clone(), options).unwrap();
    let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
    set(&fs, ROOT, Compress::Lz4);
    for name in [b"a", b"b"] {
        let file = fs.mknod(ROOT, name, FileKind::File, 0o644, 0, USER).unwrap().ino;
        fs.write(file, 0, &text(40), Default::default()).unwrap();
    }
    fs.shutdown().unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    drop((fs, db));
    let walked = |fs: &Fs| {
        let (mut walk, mut all) = (fs.walk(ROOT)?, Vec::new());
        while let Some(walked) = walk.next()? {
            all.push((walked.path.to_vec(), walked.attr.blocks));
        }
        Ok::<_, kvfs::Error>(all)
    };
    let mut blocks = Vec::new();
    for after in 0.. {
        // The store is opened with nothing in memory.
        let env = Arc::new(Simulated::new(3));
        let (db, _) = Kvdb::open(device.clone(), env.clone(), open_options()).unwrap();
        let fs = Fs::open(db, env, FsOptions::default()).unwrap();
        let struck = device.struck();
        device.inject(Fault::once(Operation::Read, FaultKind::Error).after(after));
        let found = walked(&fs);
        device.clear();
        if let Ok(found) = found {
            let names: Vec<&[u8]> = found.iter().map(|(path, _)| &path[..]).collect();
            assert_eq!(names, [&b""[..], b"a", b"b"], "read {after} failed");
            blocks.push(found[1].1);
        }
        if device.struck() == struck {
            break;
        }
    }
    // No read has failed in the last walk. Where the pages are not found, all of them count.
    let (last, others) = blocks.split_last().unwrap();
    assert!(*last < 20 * 8, "{last}");
    assert!(others.iter().all(|blocks| [*last, 40 * 8].contains(blocks)), "{others:?}");
}

#[test]
fn a_mount_has_a_way_for_files_without_one() {
    let w = World::with(FsOptions { compress: Some(Compress::Zstd), ..FsOptions::default() });
    let (file, none) = (w.file_with(ROOT, "file", &text(10)), w.file(ROOT, "none"));
    set(&w.fs, none, Compress::None);
    w.write(none, 0, &text(10));
    assert_compressed(&w, file, 10);
    assert_plain(&w, none, 10);
    assert_eq!(w.fs.listxattr(file).unwrap(), b"", "the option makes no attribute");
}

#[test]
fn a_word_that_is_no_way_is_refused_with_a_sentence() {
    let w = World::new();
    let dir = w.dir(ROOT, "dir");
    set(&w.fs, dir, Compress::Lz4);
    for word in [&b"gzip"[..], b"", b"LZ4", b"lz4\n"] {
        let refused = w.fs.setxattr(dir, ATTRIBUTE, word, XattrFlags::Any).unwrap_err();
        assert!(refused.to_string().contains("one of none, lz4, zstd and auto"), "{refused}");
        fails(w.fs.setxattr(dir, ATTRIBUTE, word, XattrFlags::Any), libc::EINVAL);
    }
    assert_eq!(way(&w.fs, dir), Some(Compress::Lz4));
    // The attribute is found, whatever other attributes exist.
    let file = w.file(dir, "file");
    w.fs.removexattr(file, ATTRIBUTE).unwrap();
    for n in 0..8 {
        let name = format!("user.{n}");
        w.fs.setxattr(file, name.as_bytes(), &[7; 200], XattrFlags::Any).unwrap();
    }
    set(&w.fs, file, Compress::Lz4);
    w.write(file, 0, &text(10));
    assert_compressed(&w, file, 10);
}

#[test]
fn a_transaction_and_a_clone_see_the_way_and_write_by_it() {
    let (w, views) = World::with_views(FsOptions::default());
    let dir = w.dir(ROOT, "dir");
    set(&w.fs, dir, Compress::Lz4);
    let id = views.begin(TransactionOptions::default()).unwrap();
    let inside = views.fs(&ViewId::Transaction(id)).unwrap();
    let make = |fs: &Fs, name: &[u8]| {
        let file = fs.mknod(dir, name, FileKind::File, 0o644, 0, USER).unwrap().ino;
        fs.write(file, 0, &text(30), Default::default()).unwrap();
        assert_eq!(way(fs, file), Some(Compress::Lz4));
        file
    };
    let file = make(&inside, b"inside");
    // A method that is set in a transaction is visible only there, until it commits.
    set(&inside, ROOT, Compress::Zstd);
    assert_eq!(way(&w.fs, ROOT), None);
    views.commit(id, Durability::Synced).unwrap();
    assert_eq!(way(&w.fs, ROOT), Some(Compress::Zstd));
    assert_compressed(&w, file, 30);
    assert_eq!(w.read_all(file), text(30));

    views.snapshot(&ViewId::Mainline, "monday", Durability::Synced).unwrap();
    views.clone_snapshot("monday", "try").unwrap();
    let clone = views.fs(&ViewId::Clone("try".into())).unwrap();
    let file = make(&clone, b"in the clone");
    clone.fsync(file, false).unwrap();
    let pages = stored(&w.db, "try", file);
    assert!(pages.len() == 30 && pages.iter().all(|len| *len < PAGE / 2), "{pages:?}");
    assert_eq!(&clone.read(file, 0, 30 * PAGE as u32).unwrap()[..], text(30));
    let snapshot = views.fs(&ViewId::Snapshot("monday".into())).unwrap();
    let there = snapshot.resolve(b"dir/inside").unwrap().ino;
    assert_eq!(&snapshot.read(there, 0, 30 * PAGE as u32).unwrap()[..], text(30));
}

#[test]
fn compressed_files_have_holes_parts_and_ends_like_others() {
    let mut w = World::new();
    set(&w.fs, ROOT, Compress::Lz4);
    let file = w.file(ROOT, "file");
    let mut model = vec![0; 60 * PAGE];
    let put = |w: &World, model: &mut Vec<u8>, at: usize, bytes: &[u8]| {
        model[at..at + bytes.len()].copy_from_slice(bytes);
        w.write(file, at as u64, bytes);
    };
    put(&w, &mut model, 0, &text(8));
    put(&w, &mut model, 50 * PAGE, &text(10));
    assert_compressed(&w, file, 18);
    // Parts of pages that are not in memory.
    w.remount();
    for page in [0, 3, 55] {
        put(&w, &mut model, page * PAGE + 1000, b"a few bytes in the middle of a page");
        w.fs.fsync(file, false).unwrap();
    }
    put(&w, &mut model, 4 * PAGE, &noise(1));
    w.fs.fsync(file, false).unwrap();
    w.db.flush().unwrap();
    w.db.compact(w.db.dictionary("dmap").unwrap()).unwrap();
    assert_eq!(w.read_all(file), model);
    let pages = stored(&w.db, "", file);
    assert_eq!(pages.iter().filter(|len| **len >= PAGE / 2).count(), 1, "{pages:?}");
    for size in [55 * PAGE + 100, 7 * PAGE + 3000, 60 * PAGE] {
        let set = SetAttr { size: Some(size as u64), ..Default::default() };
        w.fs.setattr(file, &set, USER).unwrap();
        model.resize(size, 0);
        assert_eq!(w.read_all(file), model);
    }
    w.remount();
    assert_eq!(w.read_all(file), model);
    assert_eq!(way(&w.fs, file), Some(Compress::Lz4));
    w.write(file, 20 * PAGE as u64, &text(10));
    w.fs.fsync(file, false).unwrap();
    assert!(stored(&w.db, "", file).iter().filter(|len| **len < PAGE / 2).count() >= 17);
}

#[test]
fn a_received_copy_is_compressed_as_its_files_say() {
    let w = World::new();
    let dir = w.dir(ROOT, "dir");
    set(&w.fs, dir, Compress::Zstd);
    // More than is committed in batches, before runs are made.
    let files = [w.file_with(dir, "log", &text(800)), w.file_with(ROOT, "plain", &text(800))];
    files.iter().for_each(|file| w.fs.fsync(*file, false).unwrap());
    w.db.snapshot("s").unwrap();
    let mut stream = Vec::new();
    w.db.send("s", None, &mut stream, None).unwrap();
    let copy = Kvdb::in_memory();
    kvfs::receive_by_ways(&copy);
    copy.receive(&stream[..], &ReceiveOptions::default()).unwrap();
    let packed = stored(&copy, "", files[0]);
    assert!(packed.len() == 800 && packed.iter().all(|len| *len < PAGE / 2), "{packed:?}");
    assert_eq!(stored(&copy, "", files[1]), vec![PAGE; 800]);
    let fs = Fs::open(copy, Arc::new(Simulated::new(2)), FsOptions::default()).unwrap();
    for file in files {
        assert!(fs.read(file, 0, 800 * PAGE as u32).unwrap()[..] == text(800)[..]);
    }
    assert_eq!(way(&fs, files[0]), Some(Compress::Zstd));
    fs.shutdown().unwrap();
}

#[test]
fn the_changes_of_a_client_are_stored_by_the_ways_of_their_files() {
    let w = World::new();
    let (packed, plain) = (w.dir(ROOT, "packed"), w.dir(ROOT, "plain"));
    set(&w.fs, packed, Compress::Zstd);
    let files = [w.file_with(packed, "file", &text(1)), w.file_with(plain, "file", &text(1))];
    files.iter().for_each(|file| w.fs.fsync(*file, false).unwrap());
    let [imap, dmap] = ["imap", "dmap"].map(|name| w.db.dictionary(name).unwrap());
    // A client sends pages and the node of each file; here the same page again.
    let mut changes = Vec::new();
    for file in files {
        let node = file.to_be_bytes();
        let page = [&node[..], &0u64.to_be_bytes()].concat();
        for (dict, key) in [(dmap, page), (imap, node.to_vec())] {
            let value = w.db.get(dict, &key).unwrap().unwrap();
            changes.push(ServedChange::Put(dict, key.into(), value));
        }
        // Nothing of the files is cached any more.
        w.db.set_codec_of_series(dmap, &node, None).unwrap();
    }
    let commit_by = |default| {
        kvfs::announce_ways(&w.db, &changes, default);
        let mut batch = Batch::new();
        for change in &changes {
            let ServedChange::Put(dict, key, value) = change else { continue };
            batch.put(*dict, key.clone(), value.clone());
        }
        w.db.commit(batch, Durability::Synced).unwrap();
        files.map(|file| stored(&w.db, "", file)[0])
    };
    let [packed, plain] = commit_by(None);
    assert!(packed < PAGE / 2 && plain == PAGE, "{packed} and {plain} bytes");
    // The mount of the server has a method for files without one.
    let [packed, plain] = commit_by(Some(Compress::Lz4));
    assert!(packed < PAGE / 2 && plain < PAGE / 2, "{packed} and {plain} bytes");
    // Changes of other attributes are not handled here.
    let odd = ServedChange::Put(imap, vec![7; 9].into(), vec![0xff; 30].into());
    kvfs::announce_ways(&w.db, &[odd], Some(Compress::Auto));
}

fn open_options() -> OpenOptions {
    OpenOptions { threads: false, memory: 16 << 20, ..OpenOptions::default() }
}

#[test]
fn a_compressed_store_is_whole_after_a_power_cut_and_a_scrub() {
    for seed in 0..20 {
        let device = Arc::new(CrashDevice::new());
        let options = CreateOptions { open: open_options(), ..CreateOptions::default() };
        let env = Arc::new(Simulated::new(seed));
        let db = Kvdb::create(device.clone() as Arc<dyn Device>, env.clone(), options).unwrap();
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        set(&fs, ROOT, Compress::Auto);
        let mut files = Vec::new();
        for (name, content) in
            [(&b"log"[..], text(40)), (&b"film"[..], noise(40)), (&b"note"[..], text(2))]
        {
            let file = fs.mknod(ROOT, name, FileKind::File, 0o644, 0, USER).unwrap().ino;
            fs.write(file, 0, &content, Default::default()).unwrap();
            fs.fsync(file, false).unwrap();
            files.push((file, content));
        }
        // Data that is not synced may be lost.
        fs.write(files[0].0, 40 * PAGE as u64, &text(20), Default::default()).unwrap();
        device.cut_power_after(seed % 7);
        let _ = fs.shutdown();
        drop((fs, db));
        let image = device.crash(seed);
        let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "seed {seed}: {:?}", report.faults);
        let env = Arc::new(Simulated::new(seed));
        let (db, _) = Kvdb::open(Arc::new(image), env.clone(), open_options()).unwrap();
        assert!(kvfs::verify(&db).unwrap().is_clean(), "seed {seed}");
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        for (file, content) in files {
            assert_eq!(way(&fs, file), Some(Compress::Auto));
            let read = fs.read(file, 0, content.len() as u32).unwrap();
            assert!(read[..] == content[..], "seed {seed}");
        }
        db.flush().unwrap();
        db.scrub(ScrubOptions::default()).unwrap();
        db.wait_for_scrub();
        assert_eq!(db.scrub_progress().faults, 0, "seed {seed}");
        fs.shutdown().unwrap();
    }
}
