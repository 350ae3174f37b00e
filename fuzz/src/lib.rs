//! Entry points to the readers of bytes in the `kvfs` command, which is no library: its modules are
//! taken in here.
#![allow(dead_code)]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

#[path = "../../crates/kvfs-cli/src/beneath.rs"]
mod beneath;
#[path = "../../crates/kvfs-cli/src/daemons.rs"]
mod daemons;
#[path = "../../crates/kvfs-cli/src/deaths.rs"]
mod deaths;
#[path = "../../crates/kvfs-cli/src/descendants.rs"]
mod descendants;
#[path = "../../crates/kvfs-cli/src/destination.rs"]
mod destination;
#[path = "../../crates/kvfs-cli/src/device_profile.rs"]
mod device_profile;
#[path = "../../crates/kvfs-cli/src/failures.rs"]
mod failures;
#[path = "../../crates/kvfs-cli/src/figures.rs"]
mod figures;
#[path = "../../crates/kvfs-cli/src/http/message.rs"]
mod http_message;
#[path = "../../crates/kvfs-cli/src/identity.rs"]
mod identity;
#[path = "../../crates/kvfs-cli/src/import.rs"]
mod import;
#[path = "../../crates/kvfs-cli/src/import_items.rs"]
mod import_items;
#[path = "../../crates/kvfs-cli/src/import_mounted.rs"]
mod import_mounted;
#[path = "../../crates/kvfs-cli/src/importer.rs"]
mod importer;
#[path = "../../crates/kvfs-cli/src/mount_options.rs"]
mod mount_options;
#[path = "../../crates/kvfs-cli/src/mount_settings.rs"]
mod mount_settings;
#[path = "../../crates/kvfs-cli/src/mount_table.rs"]
mod mount_table;
#[path = "../../crates/kvfs-cli/src/mount_words.rs"]
mod mount_words;
#[path = "../../crates/kvfs-cli/src/mounted.rs"]
mod mounted;
#[path = "../../crates/kvfs-cli/src/network.rs"]
mod network;
#[path = "../../crates/kvfs-cli/src/output.rs"]
mod output;
#[path = "../../crates/kvfs-cli/src/paths.rs"]
mod paths;
#[path = "../../crates/kvfs-cli/src/pax.rs"]
mod pax;
#[path = "../../crates/kvfs-cli/src/place.rs"]
mod place;
#[path = "../../crates/kvfs-cli/src/scrubbing.rs"]
mod scrubbing;
#[path = "../../crates/kvfs-cli/src/sizes.rs"]
mod sizes;
#[path = "../../crates/kvfs-cli/src/sockets.rs"]
mod sockets;
#[path = "../../crates/kvfs-cli/src/sources.rs"]
mod sources;
#[path = "../../crates/kvfs-cli/src/store.rs"]
mod store;
#[path = "../../crates/kvfs-cli/src/tar_stream.rs"]
mod tar_stream;
#[path = "../../crates/kvfs-cli/src/text.rs"]
mod text;
#[path = "../../crates/kvfs-cli/src/tree.rs"]
mod tree;
#[path = "../../crates/kvfs-cli/src/waiting.rs"]
mod waiting;

/// A whole tar stream as `kvfs import` takes it. The checksums of what looks like a header are put
/// right. What is left of any of them is a sound file system.
pub fn archive(data: &[u8]) {
    let mut bytes = data.to_vec();
    for header in bytes.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    let env = Arc::new(env::Simulated::new(1));
    let fs = kvfs::Fs::open(kvdb::Kvdb::in_memory(), env, kvfs::FsOptions::default())
        .expect("an empty store");
    import::any_tar(&fs, &bytes);
    let report = fs.verify().expect("readable");
    assert!(report.is_clean(), "{:?}", report.findings);
    assert!(fs.lookup(kvfs::ROOT, b".kvfs").is_err(), "something under the views");
}

/// The words of several `-o`, a line each.
pub fn options(data: &[u8]) {
    let lists: Vec<_> =
        data.split(|&byte| byte == b'\n').map(|list| OsString::from_vec(list.to_vec())).collect();
    let _ = mount_options::parse(&lists);
}

/// A request of HTTP, at once and byte by byte: both are read alike.
pub fn http(data: &[u8]) {
    let whole = http_message::read(&mut &data[..]).expect("memory does not fail");
    let mut pieces = data.iter();
    let mut one = |buffer: &mut [u8]| match pieces.next() {
        Some(byte) => {
            buffer[0] = *byte;
            1
        }
        None => 0,
    };
    struct ByByte<'a>(&'a mut dyn FnMut(&mut [u8]) -> usize);
    impl std::io::Read for ByByte<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            Ok(self.0(buffer))
        }
    }
    let pieces = http_message::read(&mut ByByte(&mut one)).expect("memory does not fail");
    // Where a head is too long is seen at the end of a piece.
    if data.len() < 8 << 10 {
        assert_eq!(pieces, whole);
    }
}

/// The extension records and sparse maps of a tar stream.
pub fn pax(data: &[u8]) {
    let mut archive = tar::Archive::new(data);
    let Ok(entries) = archive.entries() else { return };
    for entry in entries {
        let Ok(mut entry) = entry else { return };
        let Ok(records) = pax::Records::read(&mut entry) else { return };
        let _ = records.sparse_map(&mut entry);
    }
}
