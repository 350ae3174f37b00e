//! Tests of preallocating, punching and zeroing space, of seeking data and holes, and of copying
//! ranges.

use crate::world::{USER, World, fails};
use kvfs::{Allocate, AllocateMode, ROOT, SetAttr, Whence};

const ALLOCATE: Allocate = Allocate { mode: AllocateMode::Allocate, keep_size: false };
const KEEP: Allocate = Allocate { mode: AllocateMode::Allocate, keep_size: true };
const PUNCH: Allocate = Allocate { mode: AllocateMode::Punch, keep_size: true };
const ZERO: Allocate = Allocate { mode: AllocateMode::Zero, keep_size: false };

#[test]
fn allocating_moves_the_size_unless_told_to_keep_it() {
    let w = World::new();
    let f = w.file_with(ROOT, "f", b"abc");
    w.fs.fallocate(f, KEEP, 0, 100_000).unwrap();
    assert_eq!(w.fs.getattr(f).unwrap().size, 3);
    w.fs.fallocate(f, ALLOCATE, 1000, 9000).unwrap();
    assert_eq!(w.fs.getattr(f).unwrap().size, 10_000);
    w.fs.fallocate(f, ALLOCATE, 0, 10).unwrap();
    assert_eq!(w.fs.getattr(f).unwrap().size, 10_000);
    assert_eq!(w.read(f, 0, 5), b"abc\0\0");
    fails(w.fs.fallocate(f, ALLOCATE, 0, 0), libc::EINVAL);
    fails(w.fs.fallocate(f, ALLOCATE, u64::MAX, 1), libc::EFBIG);
    fails(w.fs.fallocate(f, ALLOCATE, 0, 1 << 50), libc::ENOSPC);
    fails(
        w.fs.fallocate(f, Allocate { mode: AllocateMode::Collapse, keep_size: false }, 0, 4096),
        libc::EOPNOTSUPP,
    );
    fails(w.fs.fallocate(ROOT, ALLOCATE, 0, 1), libc::EISDIR);
}

#[test]
fn a_punched_range_reads_as_zeros_and_gives_its_pages_back() {
    for commit in [false, true] {
        for (from, to) in [
            (0u64, 4096u64),
            (100, 200),
            (4096, 12_288),
            (5000, 30_000),
            (90_000, 200_000),
            (0, 100_000),
            (99_999, 100_000),
        ] {
            for mode in [PUNCH, ZERO] {
                let mut w = World::new();
                let mut model = vec![7u8; 100_000];
                let f = w.file_with(ROOT, "f", &model);
                if commit {
                    w.fs.sync_all().unwrap();
                    w.write(f, 16_384, &[7; 4096]);
                }
                w.fs.fallocate(f, mode, from, to - from).unwrap();
                let size = if mode == ZERO { to.max(100_000) } else { 100_000 };
                model[from as usize..to.min(100_000) as usize].fill(0);
                model.resize(size as usize, 0);
                for _ in 0..2 {
                    assert!(w.read_all(f) == model, "{mode:?} {from}..{to}");
                    let first = from.div_ceil(4096);
                    let behind = if to >= 100_000 { 25 } else { to / 4096 };
                    let pages = 25 - behind.saturating_sub(first);
                    let dense = pages == size.div_ceil(4096);
                    let blocks = if dense { size.div_ceil(512) } else { pages * 8 };
                    assert_eq!(w.fs.getattr(f).unwrap().blocks, blocks, "{mode:?} {from}..{to}");
                    w.remount();
                }
            }
        }
    }
}

#[test]
fn a_small_file_is_punched_in_place() {
    let mut w = World::new();
    let f = w.file_with(ROOT, "f", b"0123456789");
    w.fs.fallocate(f, PUNCH, 2, 3).unwrap();
    w.fs.fallocate(f, PUNCH, 8, 100).unwrap();
    w.fs.fallocate(f, PUNCH, 4000, 5000).unwrap();
    w.remount();
    assert_eq!(w.contents("f"), b"01\0\0\x00567\0\0");
    assert_eq!(w.fs.seek(f, 0, Whence::Hole).unwrap(), 8);
    w.fs.fallocate(f, ZERO, 6, 10_000).unwrap();
    assert_eq!(w.fs.getattr(f).unwrap().size, 10_006);
    assert_eq!(w.read(f, 0, 8), b"01\0\0\x005\0\0");
}

#[test]
fn data_and_holes_are_found_whether_committed_or_not() {
    for commit in [false, true] {
        let w = World::new();
        let f = w.file(ROOT, "f");
        // Pages 2 and 3, then 10, then a hole up to the size.
        w.write(f, 2 * 4096, &[1; 8192]);
        w.write(f, 10 * 4096, &[1; 100]);
        w.fs.setattr(f, &SetAttr { size: Some(80_000), ..Default::default() }, USER).unwrap();
        if commit {
            w.fs.sync_all().unwrap();
            w.write(f, 3 * 4096, &[2; 4096]);
        }
        let data = |at| w.fs.seek(f, at, Whence::Data);
        let hole = |at| w.fs.seek(f, at, Whence::Hole);
        assert_eq!(
            (data(0).unwrap(), data(8192).unwrap(), data(9000).unwrap()),
            (8192, 8192, 9000)
        );
        assert_eq!(
            (data(4 * 4096).unwrap(), data(10 * 4096 + 5000 - 4096).unwrap()),
            (40_960, 41_864)
        );
        assert_eq!(
            (hole(0).unwrap(), hole(8192).unwrap(), hole(12_300).unwrap(), hole(40_960).unwrap()),
            (0, 16_384, 16_384, 45_056)
        );
        assert_eq!(hole(79_999).unwrap(), 79_999);
        fails(data(45_056), libc::ENXIO);
        fails(data(80_000), libc::ENXIO);
        fails(hole(80_000), libc::ENXIO);
    }
}

#[test]
fn a_file_without_holes_has_one_at_its_end() {
    let w = World::new();
    for size in [1usize, 4096, 5000, 100_000] {
        let f = w.file_with(ROOT, &format!("f{size}"), &vec![1; size]);
        assert_eq!(w.fs.seek(f, 0, Whence::Hole).unwrap(), size as u64);
        assert_eq!(w.fs.seek(f, 0, Whence::Data).unwrap(), 0);
    }
}

#[test]
fn a_copied_range_keeps_its_holes() {
    let mut w = World::new();
    let from = w.file(ROOT, "from");
    w.write(from, 5000, &[1; 3000]);
    w.write(from, 10 << 20, &[2; 5000]);
    let to = w.file_with(ROOT, "to", &[9; 20_000]);
    let mut done = 0;
    let size = w.fs.getattr(from).unwrap().size;
    loop {
        let n = w.fs.copy_file_range(from, done, to, done, u64::MAX).unwrap();
        if n == 0 {
            break;
        }
        done += n;
    }
    assert_eq!(done, size);
    w.remount();
    assert!(w.contents("to") == w.contents("from"));
    assert_eq!(w.stat("to").blocks, w.stat("from").blocks);
    assert_eq!(w.fs.copy_file_range(from, 5990, to, 3, 20).unwrap(), 20);
    assert_eq!(w.read(to, 2, 22), [&[0][..], &[1; 20], &[0]].concat());
    fails(w.fs.copy_file_range(from, 0, from, 10, 20), libc::EINVAL);
    assert_eq!(w.fs.copy_file_range(from, 5000, from, 0, 100).unwrap(), 100);
    assert_eq!(w.fs.copy_file_range(from, size, to, 0, 100).unwrap(), 0);
}

#[test]
fn a_copy_within_a_file_ends_where_the_file_ended_before_it() {
    let w = World::new();
    let f = w.file_with(ROOT, "f", &[1; 75]);
    assert_eq!(w.fs.copy_file_range(f, 0, f, 4096, 4096).unwrap(), 75);
    assert_eq!(w.read_all(f).len(), 4096 + 75);
    let g = w.file_with(ROOT, "g", &[1; 8192]);
    assert_eq!(w.fs.copy_file_range(g, 4096, g, 20_480, 16_384).unwrap(), 4096);
    assert_eq!(w.read_all(g).len(), 20_480 + 4096);
}
