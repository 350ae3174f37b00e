//! A whole image: bytes put over a small store, each piece an offset of four bytes, a length of one, and so many bytes.
#![no_main]
use std::sync::Arc;

use zones::{Device, MemoryDevice, Purpose};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (device, env, mut data) = (Arc::new(MemoryDevice::new()), Arc::new(env::Simulated::new(1)), data);
    let Ok(db) = kvdb::Kvdb::create(device.clone(), env.clone(), kvdb::CreateOptions::default()) else { return };
    if let Ok(fs) = kvfs::Fs::open(db.clone(), env.clone(), kvfs::FsOptions::default()) {
        let _ = fs.mkdir(kvfs::ROOT, b"a", 0o755, kvfs::Caller::default());
        let _ = fs.shutdown();
    }
    let _ = db.close();
    drop(db);
    let spoilt = Arc::new((*device).clone());
    while let [a, b, c, d, len, rest @ ..] = data {
        let piece = &rest[..rest.len().min(usize::from(*len))];
        let _ = spoilt.write_at(Purpose::Superblock, u64::from(u32::from_le_bytes([*a, *b, *c, *d])), piece);
        data = &rest[piece.len()..];
    }
    let _ = kvdb::check(spoilt.clone(), &mut |_, _| {});
    if let Ok((db, _)) = kvdb::Kvdb::open(spoilt, env.clone(), kvdb::OpenOptions::default()) {
        let _ = kvfs::verify(&db);
    }
});
