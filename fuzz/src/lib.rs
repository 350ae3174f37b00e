//! Entry points to the readers of bytes in the `kvfs` command, which is no library: its modules are
//! taken in here.
#![allow(dead_code)]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

#[path = "."]
mod commands {
    #[path = "../../crates/kvfs-cli/src/commands/import.rs"]
    pub mod import;
}
#[path = "."]
mod support {
    #[path = "."]
    pub mod archives {
        #[path = "../../crates/kvfs-cli/src/support/archives/import_items.rs"]
        pub mod import_items;
        #[path = "../../crates/kvfs-cli/src/support/archives/import_mounted.rs"]
        pub mod import_mounted;
        #[path = "../../crates/kvfs-cli/src/support/archives/importer.rs"]
        pub mod importer;
        #[path = "../../crates/kvfs-cli/src/support/archives/made_by.rs"]
        pub mod made_by;
        #[path = "../../crates/kvfs-cli/src/support/archives/pax.rs"]
        pub mod pax;
        #[path = "../../crates/kvfs-cli/src/support/archives/sources.rs"]
        pub mod sources;
        #[path = "../../crates/kvfs-cli/src/support/archives/tar_stream.rs"]
        pub mod tar_stream;
        #[path = "../../crates/kvfs-cli/src/support/archives/waiting_files.rs"]
        pub mod waiting_files;
    }
    #[path = "."]
    pub mod layered_runs {
        #[path = "../../crates/kvfs-cli/src/support/layered_runs/inside_layer.rs"]
        pub mod inside_layer;
    }
    #[path = "."]
    pub mod machine {
        #[path = "../../crates/kvfs-cli/src/support/machine/beneath.rs"]
        pub mod beneath;
        #[path = "../../crates/kvfs-cli/src/support/machine/descendants.rs"]
        pub mod descendants;
        #[path = "../../crates/kvfs-cli/src/support/machine/destination.rs"]
        pub mod destination;
        #[path = "../../crates/kvfs-cli/src/support/machine/identity.rs"]
        pub mod identity;
        #[path = "../../crates/kvfs-cli/src/support/machine/paths.rs"]
        pub mod paths;
    }
    #[path = "."]
    pub mod mounting {
        #[path = "../../crates/kvfs-cli/src/support/mounting/mount_options.rs"]
        pub mod mount_options;
        #[path = "../../crates/kvfs-cli/src/support/mounting/mount_settings.rs"]
        pub mod mount_settings;
        #[path = "../../crates/kvfs-cli/src/support/mounting/mount_table.rs"]
        pub mod mount_table;
        #[path = "../../crates/kvfs-cli/src/support/mounting/mount_words.rs"]
        pub mod mount_words;
    }
    #[path = "."]
    pub mod mounts {
        #[path = "../../crates/kvfs-cli/src/support/mounts/daemons.rs"]
        pub mod daemons;
        #[path = "../../crates/kvfs-cli/src/support/mounts/mounted.rs"]
        pub mod mounted;
        #[path = "../../crates/kvfs-cli/src/support/mounts/place.rs"]
        pub mod place;
        #[path = "../../crates/kvfs-cli/src/support/mounts/sockets.rs"]
        pub mod sockets;
        #[path = "../../crates/kvfs-cli/src/support/mounts/waiting.rs"]
        pub mod waiting;
    }
    #[path = "."]
    pub mod serving {
        #[path = "../../crates/kvfs-cli/src/support/serving/deaths.rs"]
        pub mod deaths;
        #[path = "../../crates/kvfs-cli/src/support/serving/figures.rs"]
        pub mod figures;
        #[path = "."]
        pub mod http {
            #[path = "../../crates/kvfs-cli/src/support/serving/http/message.rs"]
            pub mod message;
        }
        #[path = "../../crates/kvfs-cli/src/support/serving/network.rs"]
        pub mod network;
        #[path = "../../crates/kvfs-cli/src/support/serving/scrubbing.rs"]
        pub mod scrubbing;
    }
    #[path = "."]
    pub mod stores {
        #[path = "../../crates/kvfs-cli/src/support/stores/device_profile.rs"]
        pub mod device_profile;
        #[path = "../../crates/kvfs-cli/src/support/stores/store.rs"]
        pub mod store;
        #[path = "../../crates/kvfs-cli/src/support/stores/tree.rs"]
        pub mod tree;
    }
    #[path = "."]
    pub mod terminal {
        #[path = "../../crates/kvfs-cli/src/support/terminal/failures.rs"]
        pub mod failures;
        #[path = "../../crates/kvfs-cli/src/support/terminal/output.rs"]
        pub mod output;
        #[path = "../../crates/kvfs-cli/src/support/terminal/sizes.rs"]
        pub mod sizes;
        #[path = "../../crates/kvfs-cli/src/support/terminal/text.rs"]
        pub mod text;
    }
}

use commands::import;
use support::archives::pax;
use support::mounting::mount_options;
use support::serving::http::message as http_message;

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
