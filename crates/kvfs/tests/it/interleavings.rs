//! Tests of calls that run in the middle of another call. A held sync fixes the order, or seeded
//! schedules try many orders.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::held::HeldSync;
use env::{Simulated, schedule};
use kvdb::{CreateOptions, Durability, Isolation, Kvdb, OpenOptions, TransactionOptions};
use kvfs::{Caller, FileKind, Fs, FsOptions, Ino, ROOT, SetAttr, ViewId, Views};
use zones::Purpose;

fn file(fs: &Fs, name: &str, data: &[u8]) -> Ino {
    let ino =
        fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, Caller::default()).unwrap().ino;
    assert_eq!(fs.write(ino, 0, data, Default::default()).unwrap() as usize, data.len());
    ino
}

fn content(fs: &Fs, path: &str) -> kvfs::Result<Vec<u8>> {
    let attr = fs.resolve(path.as_bytes())?;
    Ok(fs.read(attr.ino, 0, attr.size as u32)?.to_vec())
}

/// A transaction that begins during a rollback, after the rollback has ended all existing
/// transactions, sees nothing of the old state. It has ended, or waits for the end of the rollback.
#[test]
fn a_transaction_that_begins_during_a_rollback_does_not_read_what_goes() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let device = Arc::new(HeldSync::default());
        let env = Arc::new(Simulated::new(1));
        let open = OpenOptions {
            memory: 16 << 20,
            threads: false,
            zero_journal: false,
            ..Default::default()
        };
        let db =
            Kvdb::create(device.clone(), env.clone(), CreateOptions { open, ..Default::default() })
                .unwrap();
        let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
        let views = Views::new(db.clone(), fs.clone());
        let f = file(&fs, "f", b"1");
        fs.sync_all().unwrap();
        views.snapshot(&ViewId::Mainline, "one", Durability::Synced).unwrap();
        fs.write(f, 0, b"7", Default::default()).unwrap();
        fs.sync_all().unwrap();
        db.flush().unwrap();
        device.hold_behind(Purpose::Manifest);
        std::thread::scope(|scope| {
            let rollback = scope.spawn(|| views.rollback("one"));
            device.wait_until_held();
            // `Views` begins it while the mainline is frozen; here it has just passed that.
            let begins = scope.spawn(|| {
                let t = db.begin_with(TransactionOptions {
                    isolation,
                    detached: true,
                    ..Default::default()
                })?;
                let inside = views
                    .fs(&ViewId::Transaction(t.id()))
                    .map_err(|_| kvdb::Error::NoTransaction(t.id()))?;
                Ok::<_, kvdb::Error>((t.id(), content(&inside, "/f"), inside))
            });
            // A serializable one may wait for the rollback; the other need not.
            while isolation == Isolation::Snapshot && !begins.is_finished() {
                std::thread::yield_now();
            }
            device.release();
            rollback.join().unwrap().unwrap();
            let Ok((id, read, inside)) = begins.join().unwrap() else { return };
            if isolation == Isolation::Serializable {
                // The transaction has ended, or it began after the rollback.
                assert!(read.as_ref().map_or(true, |read| read == b"1"), "it has read {read:?}");
                return;
            }
            assert!(views.list().is_empty(), "{:?}", views.list());
            assert!(content(&inside, "/f").is_err(), "its view goes on");
            assert!(views.commit(id, Durability::Buffered).is_err());
        });
        assert_eq!(content(&fs, "/f").unwrap(), b"1");
    }
}

/// A copy that shares pages has the file as it was at one moment.
#[test]
#[cfg(debug_assertions)]
fn a_shared_copy_of_a_file_that_is_truncated_meanwhile_is_whole_or_empty() {
    const LEN: usize = 3 * 4096;
    let (mut whole, mut empty) = (0, 0);
    for seed in 0..2_000 {
        let copied = schedule::run(seed, || {
            let fs = Fs::open(Kvdb::in_memory(), Arc::new(Simulated::new(1)), FsOptions::default())
                .unwrap();
            let (from, to) = (file(&fs, "from", &[7; LEN]), file(&fs, "to", b""));
            fs.sync_all().unwrap();
            let other = fs.clone();
            let truncates = env::thread::spawn(move || {
                other
                    .setattr(
                        from,
                        &SetAttr { size: Some(0), ..Default::default() },
                        Caller::default(),
                    )
                    .unwrap();
                other.fsync(from, false).unwrap();
            });
            fs.copy_file_range(from, 0, to, 0, LEN as u64).unwrap();
            truncates.join().unwrap();
            content(&fs, "/to").unwrap()
        });
        let copied = copied.unwrap_or_else(|e| panic!("seed {seed}: {e}")).value;
        match copied.len() {
            0 => empty += 1,
            _ => {
                assert!(
                    copied == [7; LEN],
                    "seed {seed}: {} bytes, of which the first is {}",
                    copied.len(),
                    copied[0]
                );
                whole += 1;
            }
        }
    }
    assert!(whole > 20 && empty > 20, "both happen: {whole}, {empty}");
}

/// A commit waits for the locks of others, but not for its own locks, which an older transaction
/// has taken over.
#[test]
fn a_commit_that_an_older_transaction_has_ended_says_so_at_once() {
    let env = Arc::new(env::Machine::default());
    let db = Kvdb::create(
        Arc::new(zones::MemoryDevice::default()),
        env.clone(),
        CreateOptions::default(),
    )
    .unwrap();
    let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
    let views = Views::new(db.clone(), fs.clone());
    file(&fs, "f", b"1");
    fs.sync_all().unwrap();
    let begin = || {
        let options = TransactionOptions {
            isolation: Isolation::Serializable,
            detached: true,
            ..Default::default()
        };
        let id = views.begin(options).unwrap();
        (id, views.fs(&ViewId::Transaction(id)).unwrap())
    };
    let ((older, reads), (younger, writes)) = (begin(), begin());
    let f = writes.resolve(b"/f").unwrap().ino;
    writes.write(f, 0, b"2", Default::default()).unwrap();
    let (came, inside) = channel();
    let (go, told) = channel::<()>();
    std::thread::scope(|scope| {
        // A call on the mainline is in progress, behind which the commit has to wait.
        let walks = &fs;
        scope.spawn(move || {
            walks.readdir(ROOT, 0, false, &mut |_| {
                came.send(()).unwrap();
                told.recv().unwrap();
                false
            })
        });
        inside.recv().unwrap();
        let commits = scope.spawn(|| {
            let begun = Instant::now();
            (views.commit(younger, Durability::Buffered), begun.elapsed())
        });
        // It has arrived when no other call can start.
        let (say, done) = channel();
        loop {
            let (fs, say) = (&fs, say.clone());
            scope.spawn(move || say.send(fs.getattr(ROOT).is_ok()));
            if done.recv_timeout(Duration::from_millis(100)).is_err() {
                break;
            }
        }
        let ends = scope.spawn(|| content(&reads, "/f"));
        // The older one needs what the younger one has locked.
        while views.list().iter().any(|t| t.id == younger) {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        let (committed, took) = commits.join().unwrap();
        assert!(
            committed.as_ref().is_err_and(|e| e.to_string().contains("older")),
            "{committed:?}"
        );
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!(ends.join().unwrap().unwrap(), b"1");
        done.recv().unwrap();
    });
    views.abort(older).unwrap();
}

/// A transaction does not lock the directories that it only walks through, and a large attribute is
/// stored apart from its inode.
#[test]
fn a_large_attribute_of_a_directory_that_changes_meanwhile_is_read_whole() {
    let env = Arc::new(Simulated::new(1));
    let open =
        OpenOptions { memory: 16 << 20, threads: false, zero_journal: false, ..Default::default() };
    let device = Arc::new(zones::MemoryDevice::default());
    let db =
        Kvdb::create(device, env.clone(), CreateOptions { open, ..Default::default() }).unwrap();
    let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
    let views = Views::new(db, fs.clone());
    let set = |value: &[u8]| fs.setxattr(ROOT, b"user.a", value, kvfs::XattrFlags::Any);
    for (old, new) in [(5000, 10), (5000, 600), (600, 5000)] {
        set(&vec![1; old]).unwrap();
        let options = TransactionOptions {
            isolation: Isolation::Serializable,
            detached: true,
            ..Default::default()
        };
        let id = views.begin(options).unwrap();
        let inside = views.fs(&ViewId::Transaction(id)).unwrap();
        inside.lookup(ROOT, b"nothing").unwrap_err();
        set(&vec![2; new]).unwrap();
        assert_eq!(
            inside.getxattr(ROOT, b"user.a").unwrap(),
            vec![2; new],
            "what was there when it was locked"
        );
        if new > 256 {
            // Now it is locked.
            assert!(set(&[3; 700]).is_err());
            assert_eq!(inside.getxattr(ROOT, b"user.a").unwrap(), vec![2; new]);
        }
        views.abort(id).unwrap();
    }
}
