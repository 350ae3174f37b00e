//! Tests of making, finding, linking and removing names, and of the effects on link counts and
//! times.

use crate::world::{USER, World, fails};
use kvfs::{Caller, FileKind, FsOptions, ROOT, SetAttr, Timestamp};

#[test]
fn a_new_file_system_is_an_empty_root() {
    let w = World::new();
    let root = w.fs.getattr(ROOT).unwrap();
    assert_eq!((root.ino, root.kind, root.nlink, root.size), (1, FileKind::Dir, 2, 0));
    assert_eq!(w.list(ROOT), [".", ".."]);
}

#[test]
fn what_is_made_is_found_with_its_owner_and_times() {
    let w = World::new();
    w.second();
    let made = w.fs.mknod(ROOT, b"f", FileKind::File, 0o640, 0, USER).unwrap();
    assert_eq!(
        (made.uid, made.gid, made.perm, made.nlink, made.size, made.blocks),
        (1000, 100, 0o640, 1, 0, 0)
    );
    assert_eq!(w.fs.lookup(ROOT, b"f").unwrap(), made);
    assert!(made.btime == made.ctime && made.atime == made.mtime && made.mtime == made.ctime);
    let root = w.fs.getattr(ROOT).unwrap();
    assert_eq!((root.mtime, root.ctime), (made.ctime, made.ctime));
    fails(w.fs.lookup(ROOT, b"g"), libc::ENOENT);
    fails(w.fs.lookup(made.ino, b"g"), libc::ENOTDIR);
}

#[test]
fn special_files_keep_their_kind_and_device() {
    let mut w = World::new();
    for (name, kind, rdev, kept) in [
        ("fifo", FileKind::Fifo, 5, 0),
        ("socket", FileKind::Socket, 0, 0),
        ("char", FileKind::CharDevice, 0x0103, 0x0103),
        ("block", FileKind::BlockDevice, 0x0800, 0x0800),
    ] {
        w.fs.mknod(ROOT, name.as_bytes(), kind, 0o600, rdev, USER).unwrap();
        w.remount();
        let attr = w.stat(name);
        assert_eq!((attr.kind, attr.rdev), (kind, kept));
    }
}

#[test]
fn names_are_checked() {
    let w = World::new();
    let file = w.file(ROOT, "f");
    fails(w.fs.mkdir(ROOT, b"f", 0o755, USER), libc::EEXIST);
    fails(w.fs.mkdir(ROOT, b"..", 0o755, USER), libc::EEXIST);
    fails(w.fs.mkdir(ROOT, b"a/b", 0o755, USER), libc::EINVAL);
    fails(w.fs.mkdir(ROOT, &[b'n'; 256], 0o755, USER), libc::ENAMETOOLONG);
    fails(w.fs.lookup(ROOT, &[b'n'; 256]), libc::ENAMETOOLONG);
    fails(w.fs.mkdir(file, b"d", 0o755, USER), libc::ENOTDIR);
    w.fs.mkdir(ROOT, &[b'n'; 255], 0o755, USER).unwrap();
}

#[test]
fn subdirectories_count_as_links_of_their_parent() {
    let w = World::new();
    let a = w.dir(ROOT, "a");
    let b = w.dir(a, "b");
    w.file(a, "f");
    assert_eq!((w.stat("a").nlink, w.stat("a").size, w.stat("a/b").nlink), (3, 2, 2));
    assert_eq!(w.fs.lookup(b, b"..").unwrap().ino, a);
    assert_eq!(w.fs.lookup(b, b".").unwrap().ino, b);
    fails(w.fs.rmdir(ROOT, b"a"), libc::ENOTEMPTY);
    w.fs.rmdir(a, b"b").unwrap();
    w.fs.unlink(a, b"f").unwrap();
    assert_eq!((w.stat("a").nlink, w.stat("a").size), (2, 0));
    w.fs.rmdir(ROOT, b"a").unwrap();
    assert!(!w.exists("a"));
}

#[test]
fn a_removed_directory_takes_no_entries() {
    let w = World::new();
    let a = w.dir(ROOT, "a");
    w.fs.rmdir(ROOT, b"a").unwrap();
    assert_eq!(w.fs.getattr(a).unwrap().nlink, 0);
    fails(w.fs.mkdir(a, b"b", 0o755, USER), libc::ENOENT);
    fails(w.fs.lookup(a, b"b"), libc::ENOENT);
    assert_eq!(w.list(a), Vec::<String>::new());
    w.fs.forget(a, 1);
    fails(w.fs.getattr(a), libc::ESTALE);
}

#[test]
fn unlink_and_rmdir_know_what_they_remove() {
    let w = World::new();
    w.dir(ROOT, "d");
    w.file(ROOT, "f");
    fails(w.fs.unlink(ROOT, b"d"), libc::EISDIR);
    fails(w.fs.rmdir(ROOT, b"f"), libc::ENOTDIR);
    fails(w.fs.unlink(ROOT, b"none"), libc::ENOENT);
    fails(w.fs.rmdir(ROOT, b"."), libc::EINVAL);
    fails(w.fs.rmdir(ROOT, b".."), libc::ENOTEMPTY);
}

#[test]
fn a_hard_link_is_the_same_file() {
    let mut w = World::new();
    let d = w.dir(ROOT, "d");
    let f = w.file_with(ROOT, "f", b"hello");
    w.second();
    let linked = w.fs.link(f, d, b"g").unwrap();
    assert_eq!((linked.ino, linked.nlink), (f, 2));
    assert!(linked.ctime > linked.mtime, "a link changes the inode, not its data");
    fails(w.fs.link(f, d, b"g"), libc::EEXIST);
    fails(w.fs.link(d, ROOT, b"h"), libc::EPERM);
    w.crash();
    assert_eq!(w.contents("d/g"), b"hello", "linking a dirty file commits its data");
    w.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!((w.contents("d/g"), w.stat("d/g").nlink), (b"hello".to_vec(), 1));
}

#[test]
fn a_file_has_at_most_so_many_links() {
    let w = World::with(FsOptions { max_links: 3, ..Default::default() });
    let f = w.file(ROOT, "f");
    w.fs.link(f, ROOT, b"g").unwrap();
    w.fs.link(f, ROOT, b"h").unwrap();
    fails(w.fs.link(f, ROOT, b"i"), libc::EMLINK);
}

#[test]
fn a_symbolic_link_keeps_its_target() {
    let mut w = World::new();
    let link = w.fs.symlink(ROOT, b"s", b"d/../d/f", USER).unwrap();
    assert_eq!((link.size, link.perm, link.kind), (8, 0o777, FileKind::Symlink));
    assert_eq!(w.fs.readlink(link.ino).unwrap(), b"d/../d/f");
    w.crash();
    assert_eq!(w.fs.readlink(link.ino).unwrap(), b"d/../d/f");
    fails(w.fs.symlink(ROOT, b"t", &[b'x'; 4096], USER), libc::ENAMETOOLONG);
    fails(w.fs.symlink(ROOT, b"t", b"", USER), libc::ENOENT);
    let d = w.dir(ROOT, "d");
    let f = w.file(d, "f");
    fails(w.fs.readlink(f), libc::EINVAL);
    w.fs.symlink(ROOT, b"to-d", b"/d", USER).unwrap();
    w.fs.symlink(ROOT, b"loop", b"loop", USER).unwrap();
    assert_eq!(w.stat("to-d/f").ino, f);
    assert_eq!(w.stat("s").kind, FileKind::Symlink);
    fails(w.fs.resolve(b"loop/x"), libc::ELOOP);
    fails(w.fs.resolve(b"d/f/x"), libc::ENOTDIR);
}

#[test]
fn a_set_gid_directory_hands_its_group_down() {
    let w = World::new();
    let d = w.dir(ROOT, "d");
    w.fs.setattr(d, &SetAttr { mode: Some(0o2775), gid: Some(50), ..Default::default() }, USER)
        .unwrap();
    let f = w.fs.mknod(d, b"f", FileKind::File, 0o644, 0, USER).unwrap();
    let sub = w.fs.mkdir(d, b"sub", 0o755, USER).unwrap();
    assert_eq!((f.gid, f.perm), (50, 0o644));
    assert_eq!((sub.gid, sub.perm), (50, 0o2755));
}

#[test]
fn attributes_are_set_as_asked() {
    let mut w = World::new();
    let f = w.file(ROOT, "f");
    w.second();
    let t = Timestamp { secs: -5, nanos: 999_999_999 };
    let set = SetAttr {
        mode: Some(0o4711),
        mtime: Some(kvfs::TimeSet::At(t)),
        atime: Some(kvfs::TimeSet::Now),
        ..Default::default()
    };
    let attr = w.fs.setattr(f, &set, USER).unwrap();
    assert_eq!((attr.perm, attr.mtime), (0o4711, t));
    assert!(attr.atime > attr.btime && attr.ctime == attr.atime);
    w.remount();
    assert_eq!(w.fs.getattr(f).unwrap(), attr);
    let attr =
        w.fs.setattr(f, &SetAttr { uid: Some(0), ..Default::default() }, Caller::default())
            .unwrap();
    assert_eq!(
        (attr.uid, attr.gid, attr.perm),
        (0, 100, 0o711),
        "a change of owner takes set-uid away"
    );
    let given = SetAttr { ctime: Some(t), ..Default::default() };
    assert_eq!(
        w.fs.setattr(f, &given, USER).unwrap().ctime,
        t,
        "the kernel knows better when it caches writes"
    );
}

#[test]
fn writing_without_the_right_to_keep_it_clears_set_uid() {
    let w = World::new();
    let f = w.file(ROOT, "f");
    let mode = |perm| SetAttr { mode: Some(perm), ..Default::default() };
    w.fs.setattr(f, &mode(0o6755), USER).unwrap();
    w.write(f, 0, b"x");
    assert_eq!(w.fs.getattr(f).unwrap().perm, 0o6755);
    w.fs.write(
        f,
        0,
        b"x",
        kvfs::WriteHints { unprivileged_group: Some(100), ..Default::default() },
    )
    .unwrap();
    assert_eq!(w.fs.getattr(f).unwrap().perm, 0o755);
    w.fs.setattr(f, &mode(0o6745), USER).unwrap();
    let cut = SetAttr { size: Some(0), unprivileged_group: Some(100), ..Default::default() };
    assert_eq!(
        w.fs.setattr(f, &cut, USER).unwrap().perm,
        0o2745,
        "set-gid without group execute is no set-gid"
    );
    let hints = kvfs::WriteHints { unprivileged_group: Some(101), ..Default::default() };
    w.fs.write(f, 0, b"x", hints).unwrap();
    assert_eq!(w.fs.getattr(f).unwrap().perm, 0o745, "but goes when others write");
}

#[test]
fn inode_numbers_go_on_after_a_mount() {
    let mut w = World::new();
    let f = w.file(ROOT, "f");
    w.remount();
    assert!(w.file(ROOT, "g") > f);
}

#[test]
fn names_survive_without_any_sync_call() {
    let mut w = World::new();
    let d = w.dir(ROOT, "d");
    w.file(d, "f");
    w.crash();
    assert!(w.exists("d/f"));
}

#[test]
fn a_read_only_file_system_changes_nothing() {
    let w = World::new();
    let f = w.file_with(ROOT, "f", b"data");
    w.fs.sync_all().unwrap();
    let ro = kvfs::Fs::open(
        w.db.clone(),
        w.env.clone(),
        FsOptions { read_only: true, ..Default::default() },
    )
    .unwrap();
    assert_eq!(&ro.read(f, 0, 10).unwrap()[..], b"data");
    fails(ro.write(f, 0, b"x", Default::default()), libc::EROFS);
    fails(ro.unlink(ROOT, b"f"), libc::EROFS);
    fails(ro.mkdir(ROOT, b"d", 0o755, USER), libc::EROFS);
    fails(ro.rename(ROOT, b"f", ROOT, b"g", Default::default()), libc::EROFS);
    fails(ro.setattr(f, &SetAttr { mode: Some(0), ..Default::default() }, USER), libc::EROFS);
    ro.fsync(f, false).unwrap();
    ro.shutdown().unwrap();
}

#[test]
fn a_store_without_a_file_system_cannot_be_opened_read_only() {
    let env = std::sync::Arc::new(env::Simulated::new(1));
    let options = FsOptions { read_only: true, ..Default::default() };
    assert!(kvfs::Fs::open(kvdb::Kvdb::in_memory(), env, options).is_err());
}
