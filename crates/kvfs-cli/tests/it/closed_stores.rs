//! The space that a store takes on the host after it was mounted and unmounted.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use crate::place::{Place, succeeds, until};

const MIB: u64 = 1 << 20;

/// Mounts the store, writes `files` files of `len` random bytes, which cannot be compressed, and
/// unmounts it.
fn write(place: &Place, files: u64, len: u64) {
    place.mounted();
    for n in 0..files {
        let mut from = File::open("/dev/urandom").expect("there is randomness").take(len);
        let mut to = File::create(place.mnt().join(format!("f{n}"))).expect("a file");
        assert_eq!(io::copy(&mut from, &mut to).expect("written"), len);
    }
    succeeds(&mut place.umount());
}

/// Waits until the store takes at most this space. The daemon may still be closing it when the
/// unmount has ended.
#[track_caller]
fn takes_at_most(place: &Place, bytes: u64) {
    let taken = || fs::metadata(place.store()).expect("there").blocks() * 512;
    until(&format!("the closed store takes {bytes} bytes at most"), || taken() <= bytes);
}

#[test]
fn a_closed_store_with_a_kilobyte_takes_two_mebibytes_at_most() {
    let Some(place) = Place::new() else { return };
    takes_at_most(&place, 2 * MIB);
    write(&place, 1, 1024);
    takes_at_most(&place, 2 * MIB);
    place.mounted();
    assert_eq!(fs::read(place.mnt().join("f0")).expect("read").len(), 1024);
    succeeds(&mut place.umount());
    takes_at_most(&place, 2 * MIB);
}

#[test]
fn a_closed_store_takes_a_tenth_more_than_its_data_and_16_mebibytes_at_most() {
    let Some(place) = Place::new() else { return };
    let data = 64 * MIB;
    write(&place, 64, MIB);
    takes_at_most(&place, data + data / 10 + 16 * MIB);
    let taken = fs::metadata(place.store()).expect("there").blocks() * 512;
    assert!(taken >= data, "the data is in it: {taken} bytes");
}
