//! A whole store behind valid checksums: any tuples in the dictionaries of a file system. Each is a
//! dictionary, the length of its key, two bytes of the length of its value, and both.
#![no_main]
use std::sync::Arc;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (db, env, mut data) = (kvdb::Kvdb::in_memory(), Arc::new(env::Simulated::new(1)), data);
    let Ok(fs) = kvfs::Fs::open(db.clone(), env.clone(), kvfs::FsOptions::default()) else {
        return;
    };
    let _ = fs.shutdown();
    drop(fs);
    let dictionaries = ["nmap", "imap", "dmap"]
        .map(|name| db.dictionary(name).expect("made with the file system"));
    let mut batch = kvdb::Batch::new();
    while let [dictionary, key, low, high, rest @ ..] = data {
        let (key, rest) = rest.split_at(rest.len().min(usize::from(*key)));
        let (value, rest) =
            rest.split_at(rest.len().min(usize::from(u16::from_le_bytes([*low, *high]))));
        batch.put(dictionaries[usize::from(dictionary % 3)], key.to_vec(), value.to_vec());
        data = rest;
    }
    if db.commit(batch, kvdb::Durability::Buffered).is_err() {
        return;
    }
    let _ = kvfs::verify(&db);
    let Ok(fs) = kvfs::Fs::open(db, env, kvfs::FsOptions::default()) else { return };
    for ino in 1..20 {
        let Ok(attr) = fs.getattr(ino) else { continue };
        let _ = (
            fs.read(ino, 0, 10_000),
            fs.read(ino, attr.size.saturating_sub(5), 10),
            fs.readlink(ino),
            fs.listxattr(ino),
        );
        let _ = fs.readdir(ino, 0, false, &mut |entry| {
            assert!(!entry.name.contains(&b'/') && !entry.name.contains(&0));
            true
        });
    }
    let _ = fs.shutdown();
});
