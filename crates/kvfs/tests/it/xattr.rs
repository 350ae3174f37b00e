//! Tests of extended attributes.

use crate::world::{World, fails};
use kvfs::{ROOT, XattrFlags};

const ANY: XattrFlags = XattrFlags::Any;

#[test]
fn values_of_every_size_are_kept() {
    let mut w = World::new();
    let f = w.file_with(ROOT, "f", b"content");
    let sizes = [0usize, 1, 256, 257, 4096, 65_536];
    for size in sizes {
        w.fs.setxattr(f, format!("user.{size}").as_bytes(), &vec![size as u8; size], ANY).unwrap();
    }
    for _ in 0..2 {
        for size in sizes {
            assert_eq!(
                w.fs.getxattr(f, format!("user.{size}").as_bytes()).unwrap(),
                vec![size as u8; size]
            );
        }
        w.remount();
    }
    let list = w.fs.listxattr(f).unwrap();
    assert_eq!(list.split(|&b| b == 0).filter(|n| !n.is_empty()).count(), sizes.len());
    assert_eq!(w.contents("f"), b"content");
    fails(w.fs.setxattr(f, b"user.big", &vec![0; 65_537], ANY), libc::E2BIG);
}

#[test]
fn create_and_replace_mean_what_they_say() {
    let w = World::new();
    let f = w.file(ROOT, "f");
    fails(w.fs.getxattr(f, b"user.a"), libc::ENODATA);
    fails(w.fs.setxattr(f, b"user.a", b"1", XattrFlags::Replace), libc::ENODATA);
    w.fs.setxattr(f, b"user.a", b"1", XattrFlags::Create).unwrap();
    fails(w.fs.setxattr(f, b"user.a", b"2", XattrFlags::Create), libc::EEXIST);
    w.fs.setxattr(f, b"user.a", b"3", XattrFlags::Replace).unwrap();
    assert_eq!(w.fs.getxattr(f, b"user.a").unwrap(), b"3");
    w.fs.removexattr(f, b"user.a").unwrap();
    fails(w.fs.removexattr(f, b"user.a"), libc::ENODATA);
    assert_eq!(w.fs.listxattr(f).unwrap(), b"");
}

#[test]
fn a_value_changes_between_small_and_large() {
    let mut w = World::new();
    let d = w.dir(ROOT, "d");
    for size in [10usize, 10_000, 20, 300, 40_000] {
        w.fs.setxattr(d, b"user.a", &vec![1; size], ANY).unwrap();
        w.remount();
        assert_eq!(w.fs.getxattr(d, b"user.a").unwrap().len(), size);
        w.check();
    }
    w.fs.removexattr(d, b"user.a").unwrap();
    w.remount();
    fails(w.fs.getxattr(d, b"user.a"), libc::ENODATA);
}

#[test]
fn bad_names_and_access_control_lists_are_refused() {
    let w = World::new();
    fails(w.fs.setxattr(ROOT, b"", b"1", ANY), libc::EINVAL);
    fails(w.fs.setxattr(ROOT, &[b'n'; 256], b"1", ANY), libc::EINVAL);
    fails(w.fs.setxattr(ROOT, b"system.posix_acl_access", b"1", ANY), libc::EOPNOTSUPP);
    fails(w.fs.getxattr(ROOT, b"system.posix_acl_default"), libc::EOPNOTSUPP);
}

#[test]
fn the_list_of_names_is_bounded() {
    let w = World::new();
    let f = w.file(ROOT, "f");
    let mut set = 0;
    let error = loop {
        let name = format!("user.{set:0>250}");
        match w.fs.setxattr(f, name.as_bytes(), b"v", ANY) {
            Ok(()) => set += 1,
            Err(e) => break e,
        }
    };
    assert_eq!((error.errno(), set), (libc::ENOSPC, 65_536 / 256));
    assert_eq!(w.fs.listxattr(f).unwrap().len(), 65_536);
}

#[test]
fn attributes_go_with_their_file() {
    let mut w = World::new();
    let f = w.file(ROOT, "f");
    w.fs.setxattr(f, b"user.big", &[1; 5000], ANY).unwrap();
    w.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(w.fs.getxattr(f, b"user.big").unwrap(), [1; 5000], "still open");
    w.crash();
    assert_eq!(w.fs.verify().unwrap().files, 0);
}

#[test]
fn writing_takes_a_capability_away() {
    let w = World::new();
    let f = w.file_with(ROOT, "f", b"program");
    w.fs.setxattr(f, b"security.capability", &[1; 20], ANY).unwrap();
    w.fs.setxattr(f, b"user.other", b"1", ANY).unwrap();
    w.write(f, 0, b"x");
    fails(w.fs.getxattr(f, b"security.capability"), libc::ENODATA);
    assert_eq!(w.fs.listxattr(f).unwrap(), b"user.other\0");
}

#[test]
fn a_name_outside_of_the_known_name_spaces_is_refused_as_by_ext4() {
    let w = World::new();
    let f = w.file(ROOT, "f");
    for name in ["nonsense.x", "x", "system.x", "User.a"] {
        fails(w.fs.setxattr(f, name.as_bytes(), b"1", ANY), libc::EOPNOTSUPP);
        fails(w.fs.getxattr(f, name.as_bytes()), libc::EOPNOTSUPP);
        fails(w.fs.removexattr(f, name.as_bytes()), libc::EOPNOTSUPP);
    }
    for name in ["user.", "trusted.", "security."] {
        fails(w.fs.setxattr(f, name.as_bytes(), b"1", ANY), libc::EINVAL);
    }
    w.fs.setxattr(f, b"security.capability", b"1", ANY).unwrap();
    assert_eq!(w.fs.listxattr(f).unwrap(), b"security.capability\0");
}

#[test]
fn a_lost_capability_leaves_nothing_behind_wherever_its_value_was() {
    let mut w = World::new();
    let f = w.file_with(ROOT, "f", b"program");
    let large = vec![1; 300];
    let capability = b"security.capability";
    w.fs.setxattr(f, capability, &large, ANY).unwrap();
    w.write(f, 0, b"x");
    w.check();
    // The attribute is removed and set again before the removal is committed. The new value counts,
    // whether large or small.
    for value in [&large[..], b"small"] {
        w.fs.setxattr(f, capability, &large, ANY).unwrap();
        w.write(f, 0, b"x");
        w.fs.setxattr(f, capability, value, ANY).unwrap();
        w.fs.sync_all().unwrap();
        w.crash();
        assert_eq!(w.fs.getxattr(f, capability).unwrap(), value);
        w.check();
    }
    // The file is removed while the removal of the attribute waits, with and without a program that
    // has it open.
    for references in [0, 1] {
        let g = w.file(ROOT, "g");
        w.fs.setxattr(g, capability, &large, ANY).unwrap();
        w.write(g, 0, b"x");
        w.fs.forget(g, 1 - references);
        w.fs.unlink(ROOT, b"g").unwrap();
        w.fs.forget(g, references);
        w.check();
    }
}
