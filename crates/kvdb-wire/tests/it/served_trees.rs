//! Tests of trees that are copied by reference in a view over the wire. A copy equals its original,
//! and only its names and nodes are sent.

use std::sync::Arc;

use env::{Machine, Random};
use kvdb_wire::{LeaseOptions, ServedTransaction};
use kvfs::{Attr, Caller, Error, FileKind, Fs, Ino, ROOT};

use crate::served_files::{Guest, is_sound};
use crate::wire::{self, Seen, Store, Tree, fill, tree};

/// A store with a random tree in the directory `d`, one of whose files has `len` random bytes.
fn filled(len: usize) -> Store {
    let store = Store::writable();
    let fs = &store.fs;
    fill(fs, 1, 0..300);
    let mut names = Vec::new();
    let mut emit = |entry: kvfs::DirEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    fs.readdir(ROOT, 2, false, &mut emit).unwrap();
    assert!(names.len() > 5, "{}", names.len());
    let dir = fs.mkdir(ROOT, b"d", 0o750, Caller::default()).unwrap().ino;
    for name in names {
        fs.rename(ROOT, &name, dir, &name, Default::default()).unwrap();
    }
    let mut content = vec![0; len];
    Random::new(2).fill(&mut content);
    file(fs, dir, b"large", &content);
    // It has an attribute with a key of its own, and a hole.
    let holes = file(fs, dir, b"holes", b"at the start");
    fs.write(holes, 5 << 20, &[7; 10_000], Default::default()).unwrap();
    fs.setxattr(holes, b"user.large", &[3; 20_000], Default::default()).unwrap();
    fs.sync_all().unwrap();
    store
}

fn file(fs: &Fs, dir: Ino, name: &[u8], content: &[u8]) -> Ino {
    let file = fs.mknod(dir, name, FileKind::File, 0o640, 0, Caller::default()).unwrap().ino;
    fs.write(file, 0, content, Default::default()).unwrap();
    file
}

/// The tree below a directory of the root, without the numbers and times that a copy has of its
/// own.
fn below(fs: &Fs, dir: &str) -> Tree {
    let dir = format!("/{dir}/").into_bytes();
    let alike = |(path, seen): (Vec<u8>, Seen)| {
        let (attr, path) = (seen.attr, path.strip_prefix(&*dir)?.to_vec());
        let (ino, btime, ctime) = (0, attr.mtime, attr.mtime);
        Some((path, Seen { attr: Attr { ino, btime, ctime, ..attr }, ..seen }))
    };
    tree(fs).into_iter().filter_map(alike).collect()
}

#[test]
fn a_tree_is_copied_as_it_is_and_no_content_is_sent() {
    const LEN: usize = 16 << 20;
    let store = filled(LEN);
    let client = store.client();
    let guest = Guest::new(&client);
    let original = below(&guest.fs, "d");
    let directories = original.values().filter(|one| one.attr.kind == FileKind::Dir).count();
    let from = guest.fs.lookup(ROOT, b"d").unwrap().ino;
    let before = client.counts().sent;
    let stats = guest.fs.clone_tree(from, ROOT, b"copy").unwrap();
    guest.transaction.send().unwrap();
    let sent = client.counts().sent - before;
    assert!(sent < LEN as u64 / 8, "{sent} bytes for a copy of {LEN} and more");
    // The directory itself is one of those.
    assert_eq!(stats.directories as usize, directories + 1);
    assert_eq!(stats.files as usize, original.len() - directories);
    assert!(stats.bytes > LEN as u64, "{stats:?}");
    assert!(below(&guest.fs, "copy") == original);
    // The two change independently.
    let copy = guest.fs.lookup(ROOT, b"copy").unwrap().ino;
    let copied = guest.fs.lookup(copy, b"large").unwrap().ino;
    guest.fs.write(copied, 0, b"changed", Default::default()).unwrap();
    assert!(below(&guest.fs, "d") == original);
    guest.commits();
    assert!(below(&store.fs, "d") == original);
    let large = store.fs.resolve(b"copy/large").unwrap();
    assert_eq!(&store.fs.read(large.ino, 0, 7).unwrap()[..], b"changed");
    assert_eq!(below(&store.fs, "copy").len(), original.len());
    is_sound(&store);
}

#[test]
fn a_copy_has_what_was_written_before_it_and_may_lie_in_its_original() {
    let store = filled(100_000);
    let guest = Guest::new(&store.client());
    let from = guest.fs.lookup(ROOT, b"d").unwrap().ino;
    file(&guest.fs, from, b"new", &[9; 50_000]);
    let large = guest.fs.lookup(from, b"large").unwrap().ino;
    guest.fs.write(large, 4096, b"just written", Default::default()).unwrap();
    let original = below(&guest.fs, "d");
    guest.fs.clone_tree(from, from, b"copy").unwrap();
    assert!(below(&guest.fs, "d/copy") == original);
    // A single file is copied like a tree, and a copy of a copy like any other.
    guest.fs.clone_tree(large, ROOT, b"one").unwrap();
    let copy = guest.fs.lookup(from, b"copy").unwrap().ino;
    guest.fs.clone_tree(copy, ROOT, b"again").unwrap();
    guest.commits();
    assert!(below(&store.fs, "d/copy") == original);
    assert!(below(&store.fs, "again") == original);
    let one = store.fs.lookup(ROOT, b"one").unwrap().ino;
    assert_eq!(&store.fs.read(one, 4096, 12).unwrap()[..], b"just written");
    is_sound(&store);
}

#[test]
fn a_copy_is_not_made_over_what_is_there() {
    let store = filled(5000);
    let guest = Guest::new(&store.client());
    let from = guest.fs.lookup(ROOT, b"d").unwrap().ino;
    let before = tree(&guest.fs);
    let refused = guest.fs.clone_tree(from, ROOT, b"d").unwrap_err();
    assert!(matches!(refused, Error::Exists), "{refused}");
    let file = guest.fs.lookup(from, b"large").unwrap().ino;
    let refused = guest.fs.clone_tree(from, file, b"copy").unwrap_err();
    assert!(matches!(refused, Error::NotDirectory), "{refused}");
    assert!(tree(&guest.fs) == before);
    // One in a snapshot is not made at all.
    store.snapshot("monday");
    let frozen = wire::served(&store.client(), "monday");
    let from = frozen.lookup(ROOT, b"d").unwrap().ino;
    let refused = frozen.clone_tree(from, ROOT, b"copy").unwrap_err();
    assert!(matches!(refused, Error::ReadOnly), "{refused}");
}

#[test]
fn a_copy_in_the_main_files_is_there_when_they_are_given_back() {
    let store = filled(1 << 20);
    let lease = ServedTransaction::lease(&store.client(), LeaseOptions::default());
    let lease = Arc::new(lease.unwrap());
    let env = Arc::new(Machine::default());
    let fs = Fs::served_transaction(lease.clone(), env, wire::options()).unwrap();
    let original = below(&fs, "d");
    let from = fs.lookup(ROOT, b"d").unwrap().ino;
    fs.clone_tree(from, ROOT, b"copy").unwrap();
    assert!(below(&fs, "copy") == original);
    fs.end_served(|| Ok((lease.give_back()?, true))).unwrap();
    assert!(below(&store.fs, "copy") == original, "the host follows");
    assert!(below(&store.fs, "d") == original);
    is_sound(&store);
}

/// A batch that the server refuses each time would keep all later changes from it.
#[test]
fn a_copy_in_the_main_files_is_refused_if_its_attributes_are_too_large_for_a_batch() {
    let store = filled(5000);
    let dir = store.fs.mkdir(ROOT, b"attributes", 0o750, Caller::default()).unwrap().ino;
    for number in 0..34 {
        let of = file(&store.fs, dir, format!("file {number}").as_bytes(), b"content");
        for attribute in 0..50 {
            let name = format!("user.{attribute}");
            store.fs.setxattr(of, name.as_bytes(), &[3; 31_000], Default::default()).unwrap();
        }
    }
    store.fs.sync_all().unwrap();
    let lease = ServedTransaction::lease(&store.client(), LeaseOptions::default());
    let lease = Arc::new(lease.unwrap());
    let env = Arc::new(Machine::default());
    let fs = Fs::served_transaction(lease.clone(), env, wire::options()).unwrap();
    let from = fs.lookup(ROOT, b"attributes").unwrap().ino;
    let refused = fs.clone_tree(from, ROOT, b"copy").unwrap_err();
    assert!(matches!(refused, Error::Store(kvdb::Error::Limit(_))), "{refused}");
    fs.mkdir(ROOT, b"later", 0o750, Caller::default()).unwrap();
    fs.end_served(|| Ok((lease.give_back()?, true))).unwrap();
    store.fs.lookup(ROOT, b"later").unwrap();
    is_sound(&store);
}
