//! Tests of files without a name: unlinked but open, or created without one.

use crate::world::{USER, World, fails};
use kvfs::{FsOptions, ROOT};

#[test]
fn an_unlinked_file_lives_until_its_last_reference() {
    for size in [0usize, 10, 4096, 100_000] {
        for commit in [false, true] {
            let w = World::new();
            let f = w.file_with(ROOT, "f", &vec![5; size]);
            if commit {
                w.fs.sync_all().unwrap();
            }
            w.fs.lookup(ROOT, b"f").unwrap();
            w.fs.unlink(ROOT, b"f").unwrap();
            w.check();
            assert_eq!(w.read_all(f), vec![5; size]);
            w.write(f, 0, &[6; 5000]);
            w.fs.fsync(f, false).unwrap();
            w.fs.tick().unwrap();
            assert_eq!(w.read(f, 0, 5000), [6; 5000]);
            w.fs.forget(f, 1);
            assert_eq!(w.fs.getattr(f).unwrap().nlink, 0);
            w.fs.forget(f, 1);
            fails(w.fs.getattr(f), libc::ESTALE);
            assert_eq!(w.fs.statistics().dirty_bytes, 0);
            assert_eq!(kvfs::verify(&w.db).unwrap().pages, 0);
        }
    }
}

#[test]
fn the_next_mount_removes_what_unlinked_files_left() {
    let mut w = World::new();
    let f = w.file_with(ROOT, "f", &[5; 100_000]);
    w.fs.sync_all().unwrap();
    w.fs.unlink(ROOT, b"f").unwrap();
    let report = w.fs.verify().unwrap();
    assert_eq!((report.orphans, report.pages), (1, 25));
    w.crash();
    let report = w.fs.verify().unwrap();
    assert_eq!((report.orphans, report.pages), (0, 0));
    fails(w.fs.getattr(f), libc::ESTALE);
}

#[test]
fn a_large_unlinked_file_may_outgrow_memory() {
    let options = kvfs::FsOptions { write_buffer: 1 << 20, ..Default::default() };
    let mut w = World::with(options);
    let f = w.file(ROOT, "f");
    w.fs.unlink(ROOT, b"f").unwrap();
    for n in 0..50u64 {
        w.write(f, n * 100_000, &[n as u8; 100_000]);
        assert!(w.fs.statistics().dirty_bytes <= 1 << 20);
    }
    assert_eq!(w.read(f, 4_900_000 - 1, 2), [48, 49]);
    w.check();
    assert_eq!(w.fs.verify().unwrap().orphans, 1);
    w.crash();
    assert_eq!(w.fs.verify().unwrap().pages, 0);
}

#[test]
fn a_file_without_a_name_can_get_one() {
    let mut w = World::new();
    for (name, size) in [("small", 100usize), ("large", 50_000), ("huge", 12 << 20)] {
        let f = w.fs.tmpfile(ROOT, 0o600, USER).unwrap();
        assert_eq!((f.nlink, f.uid), (0, 1000));
        w.write(f.ino, 0, &vec![3; size]);
        assert_eq!(w.fs.link(f.ino, ROOT, name.as_bytes()).unwrap().nlink, 1);
    }
    w.crash();
    for (name, size) in [("small", 100usize), ("large", 50_000), ("huge", 12 << 20)] {
        assert!(w.contents(name) == vec![3; size]);
    }
    let gone = w.fs.tmpfile(ROOT, 0o600, USER).unwrap().ino;
    w.write(gone, 0, &[1; 10_000]);
    w.fs.forget(gone, 1);
    fails(w.fs.getattr(gone), libc::ESTALE);
    assert_eq!(w.fs.statistics().dirty_bytes, 0);
}

#[test]
fn an_unlinked_file_without_references_goes_at_once() {
    let w = World::new();
    let f = w.file_with(ROOT, "f", &[5; 100_000]);
    w.fs.sync_all().unwrap();
    w.fs.forget(f, 1);
    w.fs.unlink(ROOT, b"f").unwrap();
    let report = kvfs::verify(&w.db).unwrap();
    assert_eq!((report.orphans, report.pages, report.files), (0, 0, 0));
}

#[test]
fn far_more_inodes_than_memory_keeps() {
    let w = World::with(FsOptions { inode_memory: 2 << 20, ..FsOptions::default() });
    for n in 0..10_000 {
        let f = w.file_with(ROOT, &format!("n{n}"), format!("{n}").as_bytes());
        w.fs.forget(f, 1);
        if n % 1000 == 0 {
            w.fs.sync_all().unwrap();
        }
    }
    w.fs.sync_all().unwrap();
    for n in 0..10_000 {
        let attr = w.fs.lookup(ROOT, format!("n{n}").as_bytes()).unwrap();
        assert_eq!(w.read_all(attr.ino), format!("{n}").as_bytes());
        w.fs.forget(attr.ino, 1);
    }
    assert!(w.fs.statistics().inodes <= 64 * 64 + 64, "{:?}", w.fs.statistics());
}

#[test]
fn references_outlive_the_inodes_in_memory() {
    // Room for the fewest inodes there can be, and far more references.
    let w = World::with(FsOptions { inode_memory: 0, ..FsOptions::default() });
    let files: Vec<_> = (0..5000)
        .map(|i| (format!("f{i}"), w.file_with(ROOT, &format!("f{i}"), &[i as u8; 5000])))
        .collect();
    w.fs.sync_all().unwrap();
    assert!(w.fs.statistics().inodes < 3000, "{} inodes in memory", w.fs.statistics().inodes);
    let (name, ino) = &files[17];
    w.fs.unlink(ROOT, name.as_bytes()).unwrap();
    assert_eq!(w.read(*ino, 0, 5000), [17; 5000], "unlinked, but the kernel has it open");
    w.fs.forget(*ino, 1);
    assert!(matches!(w.fs.getattr(*ino), Err(kvfs::Error::Stale(_))));
    // References given back while the inode is away: an unlink is final at once.
    let (name, ino) = &files[18];
    w.fs.forget(*ino, 1);
    w.fs.unlink(ROOT, name.as_bytes()).unwrap();
    assert!(matches!(w.fs.getattr(*ino), Err(kvfs::Error::Stale(_))));
}
