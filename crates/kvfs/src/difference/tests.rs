//! Tests of the limits of a list.

use std::sync::Arc;

use env::Simulated;
use kvdb::Kvdb;

use super::room::LONGEST_USABLE;
use super::*;
use crate::{Caller, Fs, FsOptions};

const MIB: usize = 1 << 20;

/// Lists the changes of `make` to an empty file system, with a limit of `most` bytes.
fn listed(make: impl FnOnce(&Fs), listing: Listing, most: usize) -> Result<Difference> {
    listed_within(make, listing, Room::of(most))
}

fn listed_within(make: impl FnOnce(&Fs), listing: Listing, room: Room) -> Result<Difference> {
    let (db, env) = (Kvdb::in_memory(), Arc::new(Simulated::new(1)));
    let fs = Fs::open(db.clone(), env, FsOptions::default()).unwrap();
    fs.sync_all().unwrap();
    let before = db.view();
    make(&fs);
    fs.sync_all().unwrap();
    let side = |view| Side::new(view, fs.core.layout);
    between_within(side(before), side(db.view()), listing, room)
}

fn is_refused(listed: Result<Difference>) -> bool {
    matches!(listed, Err(Error::Store(kvdb::Error::Limit(_))))
}

fn file(fs: &Fs, parent: Ino, name: &[u8]) -> Ino {
    let made = fs.mknod(parent, name, FileKind::File, 0o644, 0, Caller::default());
    made.unwrap().ino
}

#[test]
fn a_deep_tree_takes_room_for_its_names_and_not_for_the_square_of_its_depth() {
    let deep = |fs: &Fs| {
        let mut parent = ROOT;
        for _ in 0..2000 {
            let name = [b'n'; 200];
            parent = fs.mkdir(parent, &name, 0o755, Caller::default()).unwrap().ino;
        }
    };
    // The whole paths would take 402 MB.
    assert!(is_refused(listed(deep, Listing::All, MIB)));
    let list = listed(deep, Listing::All, 5 * MIB).unwrap();
    assert_eq!(list.len(), 2000);
    let deepest = list.iter().map(|change| list.whole(&change.path).len()).max();
    assert_eq!(deepest, Some(2000 * 201 - 1));
    assert_eq!(listed(deep, Listing::Collapsed, MIB).unwrap().len(), 1);
}

#[test]
fn a_list_has_a_bounded_number_of_changes_however_short_their_paths_are() {
    let made = |fs: &Fs| {
        let dir = fs.mkdir(ROOT, b"d", 0o755, Caller::default()).unwrap().ino;
        for n in 0..20_u8 {
            file(fs, dir, &[b'a' + n]);
        }
    };
    let within = |listing, changes| listed_within(made, listing, Room::of_changes(changes));
    assert!(is_refused(within(Listing::All, 20)));
    assert!(within(Listing::All, 22).unwrap().len() >= 21);
    assert!(within(Listing::Collapsed, 2).is_ok());
}

#[test]
fn other_names_of_a_file_that_lie_deep_take_no_more_room() {
    let linked = |fs: &Fs| {
        let ino = file(fs, ROOT, b"f");
        let mut parent = ROOT;
        for _ in 0..620 {
            parent = fs.mkdir(parent, &[b'n'; 200], 0o755, Caller::default()).unwrap().ino;
            fs.link(ino, parent, b"f").unwrap();
        }
    };
    let list = listed(linked, Listing::Collapsed, 8 * MIB).unwrap();
    assert_eq!(list.len(), 622);
    assert!(list.iter().all(|change| change.path.len() <= LONGEST_USABLE));
    assert_eq!(list.iter().filter(|change| change.linked_to.is_some()).count(), 621);
}

#[test]
fn many_names_of_a_file_below_a_long_path_have_a_limit() {
    let names = |fs: &Fs| {
        let mut parent = ROOT;
        for _ in 0..10 {
            let name = [b'n'; 200];
            parent = fs.mkdir(parent, &name, 0o755, Caller::default()).unwrap().ino;
        }
        let ino = file(fs, parent, b"f");
        for n in 0..400 {
            fs.link(ino, parent, format!("{n}").as_bytes()).unwrap();
        }
    };
    // Each name takes a path of 2,000 bytes, and the path of another name of the same file.
    assert!(is_refused(listed(names, Listing::All, MIB)));
    assert!(listed(names, Listing::All, 2 * MIB).is_ok());
}

#[test]
fn extended_attributes_that_are_listed_have_a_limit() {
    let attributes = |fs: &Fs| {
        for n in 0..40 {
            let ino = file(fs, ROOT, format!("{n}").as_bytes());
            fs.setxattr(ino, b"user.large", &[7; 60_000], Default::default()).unwrap();
        }
    };
    assert!(is_refused(listed(attributes, Listing::All, MIB)));
    assert_eq!(listed(attributes, Listing::All, 4 * MIB).unwrap().len(), 40);
}
