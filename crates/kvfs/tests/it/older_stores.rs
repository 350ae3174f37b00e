//! Tests of stores that older programs wrote. They can be opened and written to, have all of their
//! content, and then have the newest format.
//!
//! `stores/format-4-*.zst` were written by the program of format version 4 on a mount. One was
//! closed, the other killed with work in its journal. They are compressed whole, zeros included.

use std::io::Read;
use std::sync::Arc;

use env::Simulated;
use kvdb::{Durability, Kvdb, OpenOptions};
use kvfs::{Caller, Error, FileKind, Fs, FsOptions, ROOT, WriteHints};
use zones::{Device, FORMAT_VERSION, MemoryDevice, Purpose};

const CLOSED: &[u8] = include_bytes!("stores/format-4-closed.zst");
const KILLED: &[u8] = include_bytes!("stores/format-4-killed.zst");

/// The file that was compressed, as a device.
fn device(compressed: &[u8]) -> Arc<MemoryDevice> {
    const PIECE: usize = 1 << 20;
    let device = MemoryDevice::new();
    let mut image = zstd::Decoder::new(compressed).expect("it is compressed");
    let (mut piece, mut at) = (Vec::new(), 0);
    loop {
        piece.clear();
        let got = image.by_ref().take(PIECE as u64).read_to_end(&mut piece).expect("it is whole");
        if got == 0 {
            return Arc::new(device);
        }
        device.grow(at + got as u64).expect("room");
        if piece.iter().any(|&byte| byte != 0) {
            device.write_at(Purpose::Superblock, at, &piece).expect("written");
        }
        at += got as u64;
    }
}

/// The newer of the two superblocks' versions.
fn version(device: &MemoryDevice) -> u32 {
    let of = |at: u64| {
        let mut version = [0; 4];
        device.read_at(Purpose::Superblock, at + 8, &mut version).expect("read");
        u32::from_le_bytes(version)
    };
    of(0).max(of(4 << 20))
}

fn open(device: &Arc<MemoryDevice>) -> (Kvdb, Fs) {
    let env = Arc::new(Simulated::new(1));
    let options = OpenOptions { memory: 32 << 20, threads: false, ..OpenOptions::default() };
    let (db, _) = Kvdb::open(device.clone(), env.clone(), options).expect("it opens");
    let fs = Fs::open(db.clone(), env, FsOptions::default()).expect("it opens");
    (db, fs)
}

fn read(fs: &Fs, path: &str) -> Result<Vec<u8>, Error> {
    let attr = fs.resolve(path.as_bytes())?;
    let mut data = vec![0; attr.size as usize];
    assert_eq!(fs.read_into(attr.ino, 0, &mut data)?, data.len());
    Ok(data)
}

fn content(i: usize) -> Vec<u8> {
    (0..i * 20).map(|line| format!("file {i} line {line}\n")).collect::<String>().into_bytes()
}

/// Checks the content that the script which made the stores has put into both.
fn has_everything(db: &Kvdb, fs: &Fs) {
    for i in 0..40 {
        let path = format!("tree/d{}/f{i}", i % 5);
        match i {
            0 => assert_eq!(read(fs, &path).expect("there"), b"changed\n"),
            i if i % 5 == 4 => assert!(matches!(read(fs, &path), Err(Error::NotFound)), "{path}"),
            i => assert_eq!(read(fs, &path).expect("there"), content(i), "{path}"),
        }
    }
    let at = |path: &str| fs.resolve(path.as_bytes()).expect("there");
    assert_eq!(at("tree/hard").ino, at("tree/d1/f1").ino);
    assert_eq!(at("tree/hard").nlink, 2);
    assert_eq!(fs.readlink(at("tree/soft").ino).expect("a link"), b"d1/f1");
    assert_eq!(fs.getxattr(at("tree/d2/f2").ino, b"user.colour").expect("there"), b"red");
    assert_eq!(at("tree/d3/f3").perm, 0o640);
    let sparse = read(fs, "tree/sparse").expect("there");
    assert_eq!((sparse.len(), &sparse[1 << 20..]), ((1 << 20) + 3, &b"end"[..]));
    assert!(sparse[..1 << 20].iter().all(|&byte| byte == 0));

    let keys = db.dictionary("0").expect("there");
    for i in 1..=8 {
        let value = match i {
            1 => Some("changed".into()),
            3 => None,
            i => Some(format!("value{i}")),
        };
        let found = db.get(keys, format!("key{i}").as_bytes()).expect("read");
        assert_eq!(found.map(|bytes| bytes.to_vec()), value.map(String::into_bytes), "key{i}");
    }
    // The content of the snapshot is read.
    let before = db.open_snapshot("before").expect("there");
    assert_eq!(before.get(keys, b"key1").expect("read").as_deref(), Some(&b"value1"[..]));
    assert_eq!(fs.verify().expect("checked").findings, []);
}

#[test]
fn a_store_of_format_4_opens_and_becomes_one_of_today() {
    for (name, image) in [("closed", CLOSED), ("killed", KILLED)] {
        let device = device(image);
        assert_eq!(version(&device), 4, "{name}");
        {
            let (db, fs) = open(&device);
            has_everything(&db, &fs);
            if name == "killed" {
                assert_eq!(read(&fs, "tree/late").expect("it was synced"), b"durable\n");
            }
            // Later versions have updates and patched pages, and merge old data with new.
            let keys = db.dictionary("0").expect("there");
            let mut batch = kvdb::Batch::new();
            batch.update(keys, &b"count"[..], kvdb::Update::add(5));
            db.commit(batch, Durability::Synced).expect("committed");
            let caller = Caller { uid: 0, gid: 0, pid: 1 };
            let new = fs.mknod(ROOT, b"new", FileKind::File, 0o644, 0, caller).expect("made").ino;
            let old = fs.resolve(b"tree/d1/f21").expect("there").ino;
            fs.write(new, 0, b"of today", WriteHints::default()).expect("written");
            fs.write(old, 100, b"patched", WriteHints::default()).expect("written");
            fs.fsync(old, false).expect("synced");
            db.flush().expect("flushed");
            for dictionary in ["0", "imap", "nmap", "dmap"] {
                db.compact(db.dictionary(dictionary).expect("there")).expect("merged");
            }
            fs.write(old, 100, &content(21)[100..107], WriteHints::default()).expect("written");
            fs.shutdown().expect("committed");
            db.close().expect("closed");
        }
        assert_eq!(version(&device), FORMAT_VERSION, "{name}");
        let (db, fs) = open(&device);
        has_everything(&db, &fs);
        assert_eq!(read(&fs, "new").expect("there"), b"of today");
        let keys = db.dictionary("0").expect("there");
        assert_eq!(db.get(keys, b"count").expect("read").as_deref(), Some(&b"5"[..]));
    }
}
