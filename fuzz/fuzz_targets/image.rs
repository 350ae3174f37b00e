//! A whole image: bytes put over a small store, each piece an offset of four bytes, a length of
//! one, and so many bytes.
#![no_main]
use std::sync::{Arc, OnceLock};

use zones::{Device, MemoryDevice, Purpose};

fn store() -> MemoryDevice {
    let (device, env) = (Arc::new(MemoryDevice::new()), Arc::new(env::Simulated::new(1)));
    let db = kvdb::Kvdb::create(device.clone(), env.clone(), kvdb::CreateOptions::default())
        .expect("a store");
    let fs =
        kvfs::Fs::open(db.clone(), env.clone(), kvfs::FsOptions::default()).expect("a file system");
    fs.mkdir(kvfs::ROOT, b"a", 0o755, kvfs::Caller::default()).expect("a directory");
    fs.shutdown().expect("closed");
    db.close().expect("closed");
    drop((fs, db));
    (*device).clone()
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static STORE: OnceLock<MemoryDevice> = OnceLock::new();
    let (spoilt, mut data) = (Arc::new(STORE.get_or_init(store).clone()), data);
    while let [a, b, c, d, len, rest @ ..] = data {
        let piece = &rest[..rest.len().min(usize::from(*len))];
        let _ = spoilt.write_at(
            Purpose::Superblock,
            u64::from(u32::from_le_bytes([*a, *b, *c, *d])),
            piece,
        );
        data = &rest[piece.len()..];
    }
    let _ = kvdb::check(spoilt.clone(), &mut |_, _| {});
    let options =
        kvdb::OpenOptions { threads: false, memory: 16 << 20, ..kvdb::OpenOptions::default() };
    if let Ok((db, _)) = kvdb::Kvdb::open(spoilt, Arc::new(env::Simulated::new(1)), options) {
        let _ = kvfs::verify(&db);
    }
});
