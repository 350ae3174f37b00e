//! The extension records and sparse maps of a tar stream, as `kvfs import` reads them.
#![no_main]
#![allow(dead_code)]

#[path = "../../crates/kvfs-cli/src/pax.rs"]
mod pax;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut archive = tar::Archive::new(data);
    let Ok(entries) = archive.entries() else { return };
    for entry in entries {
        let Ok(mut entry) = entry else { return };
        let Ok(records) = pax::Records::read(&mut entry) else { return };
        let _ = records.sparse_map(&mut entry);
    }
});
