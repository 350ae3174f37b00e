//! Exercises an image that is not sound: it is checked, opened, read through, written to, merged,
//! sent, and opened again.

use std::sync::Arc;

use env::{Env, Simulated};
use kvdb::{Batch, Durability, Isolation, Kvdb, OpenOptions, View};
use kvfs::{Fs, FsOptions};
use zones::MemoryDevice;

use super::base;
use crate::content::Random;

fn look(view: &View, dictionaries: &[kvdb::DictionaryInfo]) {
    for d in dictionaries {
        let _ = view.scan(d.id, b"", b"", usize::MAX);
        if let Ok(mut cursor) = view.cursor(d.id, b"", b"") {
            let _ = cursor.seek_to_end();
            for _ in 0..300 {
                if !matches!(cursor.prev(), Ok(Some(_))) {
                    break;
                }
            }
            for key in [&b"key0100"[..], b"page", b"value5", b"\xff"] {
                let _ = (cursor.seek(key), cursor.next().is_ok(), cursor.prev().is_ok());
            }
        }
        for i in 0..20 {
            let _ = view.get(d.id, format!("key{:04}", i * 31).as_bytes());
            let _ = view.get(d.id, format!("large{:05}", i * 13).as_bytes());
            let _ = view.value_len(
                d.id,
                [b"page".as_slice(), &(i * 3u64).to_be_bytes()].concat().as_slice(),
            );
        }
        let _ = view.get(d.id, b"bound");
    }
}

fn change(random: &mut Random, db: &Kvdb) {
    for d in db.dictionaries() {
        let mut batch = Batch::new();
        for i in 0..40u64 {
            batch.put(d.id, format!("key{:04}", i * 9), vec![i as u8; (i * 100) as usize]);
        }
        batch.delete_range(d.id, "key0100", "key0300");
        let _ = db.commit(batch, Durability::Buffered);
    }
    let _ = db.sync();
    if random.one_in(2) {
        let _ = db.flush();
    }
    if let (Some(d), Ok(transaction)) = (db.dictionary("plain"), db.begin(Isolation::Serializable))
    {
        let _ = transaction.get(d, b"key0009");
        let _ = transaction.put(d, b"key0009", b"changed");
        let _ = transaction.commit(Durability::Buffered);
    }
    for transaction in db.transactions() {
        if let Ok(open) = db.transaction(transaction.id) {
            if random.one_in(2) {
                let _ = open.commit(Durability::Buffered);
            } else {
                open.abort();
            }
        }
    }
    match random.below(6) {
        0 => drop(db.rollback("early")),
        1 => drop(db.drop_snapshot("late")),
        2 => drop(db.drop_branch("branch")),
        3 => drop(db.clone_snapshot("late", "another")),
        4 => db.dictionaries().iter().for_each(|d| drop(db.compact(d.id))),
        _ => drop(db.snapshot("new")),
    }
    for _ in 0..20 {
        if !matches!(db.step(), Ok(true)) {
            break;
        }
    }
    if random.one_in(3) {
        let _ = db.defragment(Default::default());
    }
}

/// Returns whether the store could be opened for writing.
pub fn all(random: &mut Random, device: Arc<MemoryDevice>) -> bool {
    let env: Arc<dyn Env> = Arc::new(Simulated::new(1));
    let _ = kvdb::check(device.clone(), &mut |_, _| {});
    let open = |read_only: bool| {
        let options = OpenOptions { read_only, flush_on_close: !read_only, ..base::options() };
        Kvdb::open(device.clone(), env.clone(), options).map(|(db, _)| db)
    };
    if random.one_in(3)
        && let Ok(db) = open(true)
    {
        look(&db.view(), &db.dictionaries());
        for snapshot in db.snapshots().iter().take(3) {
            if let Ok(view) = db.open_snapshot(&snapshot.name) {
                look(&view, &view.dictionaries());
            }
        }
        let _ = kvfs::verify(&db);
        let _ = db.send("late", random.one_in(2).then_some("early"), &mut std::io::sink(), None);
        if let (Ok(early), Ok(late)) = (db.open_snapshot("early"), db.open_snapshot("late")) {
            let _ = kvfs::difference_of_states(&early, &late, Default::default());
        }
    }
    let Ok(db) = open(false) else { return false };
    if random.one_in(2) {
        look(&db.view(), &db.dictionaries());
    }
    let _ = kvfs::verify(&db);
    change(random, &db);
    if let Ok(fs) =
        Fs::open(db.clone(), env.clone(), FsOptions { read_only: false, ..crate::options() })
    {
        for ino in 1..base::KNOWN {
            if let Ok(attr) = fs.getattr(ino) {
                let _ = fs.read(ino, 0, 5000);
                let _ = fs.write(ino, attr.size.min(1 << 40), b"more", Default::default());
            }
        }
        let _ = fs.mkdir(kvfs::ROOT, b"new", 0o755, Default::default());
        let _ = fs.shutdown();
    }
    let _ = db.close();
    drop(db);
    // The image is opened as it was left.
    if let Ok(db) = open(false) {
        look(&db.view(), &db.dictionaries());
    }
    true
}
