//! A stream whose frames have valid checksums: each frame is a kind, two bytes of length, and so
//! many bytes.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (mut stream, mut data) = (b"KVFSsend".to_vec(), data);
    while let [kind, low, high, rest @ ..] = data {
        let len = rest.len().min(usize::from(u16::from_le_bytes([*low, *high])));
        let begin = stream.len();
        stream.push(*kind);
        stream.extend_from_slice(&(len as u32).to_le_bytes());
        stream.extend_from_slice(&rest[..len]);
        let crc = zones::crc32c(&stream[begin..]);
        stream.extend_from_slice(&crc.to_le_bytes());
        data = &rest[len..];
    }
    let options = kvdb::ReceiveOptions { replace: true, ..Default::default() };
    let db = kvdb::Kvdb::in_memory();
    if db.receive(&stream[..], &options).is_ok() {
        let _ = kvfs::verify(&db);
    }
});
