//! Tests of the content of files. Reads return what was written, across every size at which the
//! storage of files changes.

use crate::world::{USER, World, around, fails};
use kvfs::{Attr, FileKind, FsOptions, ROOT, SetAttr};

fn cut(w: &World, ino: u64, size: u64) -> Attr {
    w.fs.setattr(ino, &SetAttr { size: Some(size), ..Default::default() }, USER).unwrap()
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|n| (n as u8).wrapping_mul(31).wrapping_add((n >> 8) as u8).wrapping_add(seed))
        .collect()
}

#[test]
fn every_size_around_the_borders_is_kept() {
    let mut w = World::new();
    let sizes = [
        0usize,
        1,
        511,
        512,
        513,
        4095,
        4096,
        4097,
        8191,
        8192,
        8193,
        65_535,
        65_536,
        65_537,
        200_000,
        1 << 20,
    ];
    for (n, &size) in sizes.iter().enumerate() {
        let ino = w.file_with(ROOT, &format!("f{n}"), &pattern(size, n as u8));
        assert_eq!(w.read_all(ino), pattern(size, n as u8));
    }
    for _ in 0..2 {
        w.remount();
        for (n, &size) in sizes.iter().enumerate() {
            let attr = w.stat(&format!("f{n}"));
            assert_eq!(
                (attr.size, w.read_all(attr.ino) == pattern(size, n as u8)),
                (size as u64, true),
                "{size}"
            );
            assert_eq!(attr.blocks, size.div_ceil(512) as u64, "{size}");
        }
    }
}

#[test]
fn overwrites_of_any_place_change_only_that_place() {
    for commit in [false, true] {
        for (offset, len) in [
            (0, 1),
            (100, 50),
            (4000, 200),
            (4096, 4096),
            (4095, 4098),
            (20_000, 60_000),
            (99_999, 1),
            (99_990, 100),
        ] {
            let w = World::new();
            let mut model = pattern(100_000, 1);
            let f = w.file_with(ROOT, "f", &model);
            if commit {
                w.fs.sync_all().unwrap();
            }
            let new = vec![b'#'; len];
            w.write(f, offset as u64, &new);
            model.resize(model.len().max(offset + len), 0);
            model[offset..offset + len].copy_from_slice(&new);
            assert!(w.read_all(f) == model, "{offset}+{len}");
            w.fs.sync_all().unwrap();
            assert!(w.read_all(f) == model, "{offset}+{len}, committed");
            assert_eq!(w.fs.getattr(f).unwrap().blocks, model.len().div_ceil(512) as u64);
            assert_eq!(
                w.read(f, offset as u64 + 3, 5000),
                model[model.len().min(offset + 3)..model.len().min(offset + 5003)]
            );
        }
    }
}

#[test]
fn reading_behind_the_end_gives_nothing() {
    let w = World::new();
    let f = w.file_with(ROOT, "f", b"abc");
    assert_eq!(w.read(f, 2, 10), b"c");
    assert_eq!(w.read(f, 3, 10), b"");
    assert_eq!(w.read(f, u64::MAX, 10), b"");
    fails(w.fs.read(ROOT, 0, 1), libc::EISDIR);
    fails(w.fs.write(ROOT, 0, b"x", Default::default()), libc::EISDIR);
    fails(w.fs.write(f, i64::MAX as u64, b"x", Default::default()), libc::EFBIG);
    fails(w.fs.write(f, u64::MAX, b"x", Default::default()), libc::EFBIG);
    let fifo = w.fs.mknod(ROOT, b"p", FileKind::Fifo, 0o600, 0, USER).unwrap().ino;
    fails(w.fs.read(fifo, 0, 1), libc::EINVAL);
}

/// The size that `du` reports for a tree of small files is about the size of their data, and not a
/// page for each.
#[test]
fn a_small_file_takes_no_whole_page() {
    let mut w = World::new();
    w.file_with(ROOT, "small", &pattern(550, 1));
    w.file_with(ROOT, "large", &pattern(10_000, 1));
    for _ in 0..2 {
        assert_eq!((w.stat("small").blocks, w.stat("large").blocks), (2, 20));
        w.remount();
    }
}

#[test]
fn a_hole_reads_as_zeros_and_takes_no_space() {
    let mut w = World::new();
    let f = w.file(ROOT, "f");
    w.write(f, 1 << 30, b"end");
    w.write(f, 10, b"begin");
    let attr = w.fs.getattr(f).unwrap();
    assert_eq!((attr.size, attr.blocks), ((1 << 30) + 3, 16));
    w.remount();
    assert_eq!(w.stat("f").blocks, 16);
    assert_eq!(w.read(f, 8, 9), b"\0\0begin\0\0");
    assert_eq!(w.read(f, 4000, 10_000), [0; 10_000]);
    assert_eq!(w.read(f, (1 << 30) - 5000, 9999), [&[0; 5000][..], b"end"].concat());
}

#[test]
fn blocks_are_counted_right_however_pages_are_overwritten() {
    let w = World::new();
    let f = w.file(ROOT, "f");
    for block in [5u64, 1, 9, 1, 3] {
        w.write(f, block * 4096, &[1; 4096]);
    }
    assert_eq!(w.fs.getattr(f).unwrap().blocks, 4 * 8);
    w.fs.sync_all().unwrap();
    // Writes over stored and missing pages, without reading in between.
    for block in 0..7u64 {
        w.write(f, block * 4096, &[2; 4096]);
    }
    assert_eq!(w.fs.getattr(f).unwrap().blocks, 8 * 8);
    w.write(f, 7 * 4096, &[3; 4096]);
    w.fs.sync_all().unwrap();
    w.write(f, 8 * 4096 + 1, &[3; 10]);
    w.fs.sync_all().unwrap();
    assert_eq!(w.fs.getattr(f).unwrap().blocks, 10 * 8);
}

#[test]
fn truncating_and_growing_again_shows_zeros() {
    for commit in 0..8u32 {
        for size in [1u64, 100, 4095, 4096, 4097, 12_288, 50_001] {
            let w = World::new();
            let sync = |step: u32| {
                if commit & 1 << step != 0 {
                    w.fs.sync_all().unwrap();
                }
            };
            let data = pattern(70_000, 3);
            let f = w.file_with(ROOT, "f", &data);
            sync(0);
            assert_eq!(cut(&w, f, size).size, size);
            sync(1);
            let blocks = cut(&w, f, 70_000).blocks;
            sync(2);
            let mut expected = data[..size as usize].to_vec();
            expected.resize(70_000, 0);
            assert!(w.read_all(f) == expected, "cut to {size}, commits {commit:b}");
            assert_eq!(blocks, size.div_ceil(4096) * 8);
        }
    }
}

#[test]
fn truncating_to_nothing_makes_the_file_small_again() {
    let mut w = World::new();
    let f = w.file_with(ROOT, "f", &pattern(100_000, 0));
    w.fs.sync_all().unwrap();
    cut(&w, f, 0);
    w.write(f, 0, b"small");
    assert_eq!((w.read_all(f), w.fs.getattr(f).unwrap().blocks), (b"small".to_vec(), 1));
    w.fs.sync_all().unwrap();
    w.write(f, 5, &pattern(20_000, 9));
    w.remount();
    assert_eq!(w.contents("f"), [b"small".to_vec(), pattern(20_000, 9)].concat());
}

#[test]
fn a_sparse_file_is_cut_with_its_pages_counted() {
    for to in [3u64, 5, 8, 50, 97] {
        let w = World::new();
        let f = w.file(ROOT, "f");
        for block in [0u64, 4, 7, 49, 90, 99] {
            w.write(f, block * 4096, &[1; 4096]);
        }
        w.fs.sync_all().unwrap();
        w.write(f, 5 * 4096, &[1; 4096]);
        w.write(f, 4 * 4096, &[1; 4096]);
        let left = [0u64, 4, 5, 7, 49, 90, 99].iter().filter(|&&b| b < to).count() as u64;
        assert_eq!(cut(&w, f, to * 4096).blocks, left * 8);
    }
}

#[test]
fn a_truncation_is_lost_or_kept_with_what_was_written_after_it() {
    let mut w = World::new();
    let f = w.file_with(ROOT, "f", &pattern(50_000, 0));
    w.fs.fsync(f, false).unwrap();
    cut(&w, f, 0);
    w.write(f, 0, &pattern(9_000, 7));
    w.crash();
    assert_eq!(w.contents("f"), pattern(50_000, 0), "nothing was committed");
    cut(&w, f, 0);
    w.write(f, 0, &pattern(9_000, 7));
    w.fs.fsync(f, true).unwrap();
    w.crash();
    assert_eq!(w.contents("f"), pattern(9_000, 7));
}

#[test]
fn size_of_other_kinds_cannot_be_set() {
    let w = World::new();
    let size = SetAttr { size: Some(0), ..Default::default() };
    let fifo = w.fs.mknod(ROOT, b"p", FileKind::Fifo, 0o600, 0, USER).unwrap().ino;
    fails(w.fs.setattr(ROOT, &size, USER), libc::EISDIR);
    fails(w.fs.setattr(fifo, &size, USER), libc::EINVAL);
    let f = w.file(ROOT, "f");
    fails(
        w.fs.setattr(f, &SetAttr { size: Some(u64::MAX), ..Default::default() }, USER),
        libc::EFBIG,
    );
}

#[test]
fn fsync_commits_one_file_and_not_the_others() {
    let mut w = World::new();
    let (a, b) = (w.file_with(ROOT, "a", b"aaaa"), w.file_with(ROOT, "b", &[b'b'; 100_000]));
    w.fs.fsync(a, false).unwrap();
    assert!(w.fs.statistics().dirty_bytes >= 100_000);
    w.crash();
    assert_eq!((w.contents("a"), w.contents("b")), (b"aaaa".to_vec(), vec![]));
    let _ = b;
}

#[test]
fn the_interval_commits_what_waits() {
    let mut w = World::new();
    w.file_with(ROOT, "f", b"data");
    w.fs.tick().unwrap();
    w.second();
    w.fs.tick().unwrap();
    assert_eq!(w.fs.statistics().dirty_bytes, 0);
    w.crash();
    assert_eq!(w.contents("f"), b"data");
}

#[test]
fn uncommitted_data_is_bounded() {
    let options = FsOptions { write_buffer: 1 << 20, ..Default::default() };
    let w = World::with(options);
    let piece = pattern(300_000, 0);
    for n in 0..20 {
        let f = w.file(ROOT, &format!("f{n}"));
        w.write(f, 0, &piece);
        assert!(w.fs.statistics().dirty_bytes <= 1 << 20);
    }
    let f = w.file(ROOT, "stream");
    for n in 0..40u64 {
        w.write(f, n * 300_000, &piece);
        assert!(w.fs.statistics().dirty_bytes <= 1 << 20);
    }
    assert_eq!(w.fs.getattr(f).unwrap().size, 12_000_000);
    assert_eq!(w.read(f, 300_000 * 17, 300_000), piece);
}

#[test]
fn times_follow_the_changes() {
    let w = World::new();
    let f = w.file(ROOT, "f");
    let made = w.fs.getattr(f).unwrap();
    w.second();
    w.write(f, 0, b"x");
    let written = w.fs.getattr(f).unwrap();
    assert!(
        written.mtime > made.mtime && written.ctime == written.mtime && written.atime == made.atime
    );
    w.second();
    w.read(f, 0, 1);
    let read = w.fs.getattr(f).unwrap();
    assert!(read.atime > written.mtime && read.mtime == written.mtime);
    w.second();
    w.read(f, 0, 1);
    assert_eq!(
        w.fs.getattr(f).unwrap().atime,
        read.atime,
        "like relatime: already newer than the change"
    );
    w.second();
    assert!(cut(&w, f, 1).mtime > written.mtime);
}

/// A read makes no commit, and so no conflict of a transaction either.
#[test]
fn an_access_time_is_stored_with_the_next_change_of_the_file_and_else_forgotten() {
    let mut w = World::new();
    let f = w.file_with(ROOT, "f", b"x");
    w.remount();
    for is_changed in [false, true] {
        let before = w.fs.lookup(ROOT, b"f").unwrap().atime;
        w.second();
        w.read(f, 0, 1);
        let read = w.fs.getattr(f).unwrap().atime;
        assert!(read > before || around().is_some(), "{read:?}");
        if is_changed {
            let set = SetAttr { mode: Some(0o600), ..Default::default() };
            w.fs.setattr(f, &set, USER).unwrap();
        }
        w.remount();
        let stays = is_changed || around().is_some();
        assert_eq!(w.stat("f").atime, if stays { read } else { before });
    }
}

#[test]
fn many_threads_write_their_files_while_others_flush() {
    let w = World::with(FsOptions { write_buffer: 1 << 20, ..Default::default() });
    std::thread::scope(|s| {
        for n in 0..4u8 {
            let w = &w;
            s.spawn(move || {
                for round in 0..10 {
                    let f = w.file_with(ROOT, &format!("f{n}-{round}"), &pattern(150_000, n));
                    w.fs.tick().unwrap();
                    assert!(w.read_all(f) == pattern(150_000, n));
                    if round % 2 == 0 {
                        w.fs.unlink(ROOT, format!("f{n}-{round}").as_bytes()).unwrap();
                    }
                    w.fs.forget(f, 1);
                }
            });
        }
    });
}
