//! Files are moved from a clone into the store by reading and writing, as `mv` does between file
//! systems. Dropping the clone is durable at once. The copies become durable with it, though no
//! program has synced them, so they are never lost together with their originals.

use std::sync::Arc;

use env::Simulated;
use kvdb::{CreateOptions, Durability, Kvdb, OpenOptions, ReceiveOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, ROOT, ViewId, Views};
use zones::{CrashDevice, MemoryDevice};

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const CONTENT: &[u8] = &[7; 20_000];

fn options() -> OpenOptions {
    OpenOptions { memory: 16 << 20, threads: false, zero_journal: false, ..Default::default() }
}

fn write_file(fs: &Fs, name: &[u8]) {
    let ino = fs.mknod(ROOT, name, FileKind::File, 0o644, 0, CALLER).unwrap().ino;
    assert_eq!(fs.write(ino, 0, CONTENT, Default::default()).unwrap() as usize, CONTENT.len());
}

fn has_file(fs: &Fs, name: &[u8]) -> bool {
    let Ok(found) = fs.lookup(ROOT, name) else { return false };
    fs.read(found.ino, 0, CONTENT.len() as u32 + 1).unwrap()[..] == *CONTENT
}

/// A store with a snapshot of the empty mainline, "empty", and a clone of it, "c", in which "f" is
/// on disk. Its content is written to `to`, it is removed from the clone, and `drop` runs. Then the
/// power fails.
fn survives(to: &ViewId, drop: impl Fn(&Views)) {
    for seed in 0..20 {
        let device = Arc::new(CrashDevice::over(MemoryDevice::new()));
        let env = Arc::new(Simulated::new(seed));
        let create = CreateOptions { open: options(), ..Default::default() };
        let db = Kvdb::create(device.clone(), env.clone(), create).unwrap();
        let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).unwrap();
        let views = Views::new(db.clone(), fs.clone());
        views.snapshot(&ViewId::Mainline, "empty", Durability::Synced).unwrap();
        for name in ["c", "other"] {
            views.clone_snapshot("empty", name).unwrap();
        }
        let clone = views.fs(&ViewId::Clone("c".into())).unwrap();
        write_file(&clone, b"f");
        clone.sync_all().unwrap();
        let there = views.fs(to).unwrap();
        write_file(&there, b"copied");
        clone.unlink(ROOT, b"f").unwrap();
        drop(&views);
        let image = device.crash(seed);
        std::mem::drop((there, clone, views, fs, db));
        let (db, _) = Kvdb::open(Arc::new(image), env.clone(), options()).unwrap();
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        let there = Views::new(db, fs).fs(to).unwrap();
        assert!(has_file(&there, b"copied"), "seed {seed}: dropped, and the copy is lost");
    }
}

#[test]
fn files_moved_into_the_store_before_their_clone_was_dropped() {
    survives(&ViewId::Mainline, |views| views.drop_clone("c").unwrap());
}

#[test]
fn files_moved_into_another_clone_before_their_own_was_dropped() {
    survives(&ViewId::Clone("other".into()), |views| views.drop_clone("c").unwrap());
}

#[test]
fn files_copied_before_a_snapshot_was_dropped() {
    survives(&ViewId::Mainline, |views| views.drop_snapshot("empty").unwrap());
}

#[test]
fn files_moved_into_the_store_before_their_clone_was_rolled_back() {
    survives(&ViewId::Mainline, |views| {
        views.snapshot(&ViewId::Clone("c".into()), "emptied", Durability::Synced).unwrap();
        let ino = views.fs(&ViewId::Mainline).unwrap().lookup(ROOT, b"copied").unwrap().ino;
        // The same once more, in memory alone.
        let mainline = views.fs(&ViewId::Mainline).unwrap();
        mainline.write(ino, 0, CONTENT, Default::default()).unwrap();
        views.rollback("emptied").unwrap();
    });
}

/// Returns a stream of a snapshot of a store without files, "sent".
fn stream() -> Vec<u8> {
    let other = Kvdb::in_memory();
    let fs = Fs::open(other.clone(), Arc::new(Simulated::new(1)), FsOptions::default()).unwrap();
    let views = Views::new(other.clone(), fs);
    views.snapshot(&ViewId::Mainline, "sent", Durability::Synced).unwrap();
    let mut stream = Vec::new();
    other.send("sent", None, &mut stream, None).unwrap();
    stream
}

#[test]
fn files_moved_into_the_store_before_their_clone_was_replaced_by_what_was_received() {
    let stream = stream();
    let options = ReceiveOptions { branch: "c".into(), replace: true, ..Default::default() };
    survives(&ViewId::Mainline, |views| {
        views.receive(&stream[..], &options).unwrap();
    });
}

#[test]
fn files_moved_into_the_store_before_a_stream_began_that_was_cut_off() {
    let stream = stream();
    let options = ReceiveOptions { branch: "received".into(), ..Default::default() };
    survives(&ViewId::Mainline, |views| {
        // The branch that takes the stream was made on disk by then.
        assert!(views.receive(&stream[..stream.len() - 1], &options).is_err());
    });
}
