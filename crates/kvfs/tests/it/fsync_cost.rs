//! Tests of the bytes and flushes of the fsync of a small file. They are counted, not timed.

use crate::world::World;
use kvfs::{FSync, ROOT, RenameFlags};
use zones::Purpose;

/// Writes of (journal, everything) and syncs so far.
fn written(w: &World) -> (u64, u64, u64) {
    let io = w.db.stats().io;
    (io.of(Purpose::Journal).write_ops, io.total().write_ops, io.syncs)
}

/// A file system whose journal has a segment to write to.
fn world() -> World {
    let w = World::new();
    w.file_with(ROOT, "first", b"a");
    w.fs.sync_all().expect("synced");
    w
}

#[test]
fn a_small_file_is_one_write_and_one_sync() {
    let w = world();
    for (name, len) in [("a", 100), ("b", 4096), ("c", 15_000), ("d", 50_000)] {
        let ino = w.file_with(ROOT, name, &vec![7; len]);
        let (journal, all, syncs) = written(&w);
        w.fs.fsync(ino, false).expect("synced");
        assert_eq!(written(&w), (journal + 1, all + 1, syncs + 1), "{len} bytes");
        // Writes over an existing page, and after it.
        for offset in [0, 4096] {
            w.write(ino, offset, &[8; 4096]);
            let (journal, all, syncs) = written(&w);
            w.fs.fsync(ino, false).expect("synced");
            assert_eq!(
                written(&w),
                (journal + 1, all + 1, syncs + 1),
                "{len} bytes, then 4096 at {offset}"
            );
        }
    }
}

#[test]
fn several_that_share_a_sync_share_the_write() {
    let w = world();
    let files: Vec<_> = (0..8).map(|n| w.file_with(ROOT, &format!("f{n}"), &[n; 4096])).collect();
    let (journal, all, syncs) = written(&w);
    for &ino in &files {
        assert_eq!(w.fs.begin_fsync(ino).expect("begun"), FSync::WithNext);
    }
    assert_eq!(written(&w), (journal, all, syncs), "nothing is waited for");
    w.fs.sync_store().expect("synced");
    assert_eq!(written(&w), (journal + 1, all + 1, syncs + 1));
    for (n, &ino) in files.iter().enumerate() {
        assert_eq!(w.read_all(ino), vec![n as u8; 4096]);
    }
}

/// The calls of a mail server: a delivery costs two flushes, a removal one, and a sync of data that
/// is on disk already none.
#[test]
fn a_name_costs_a_flush_once() {
    let w = world();
    let (tmp, new) = (w.dir(ROOT, "tmp"), w.dir(ROOT, "new"));
    w.fs.sync_all().expect("synced");
    let syncs = |what: &dyn Fn()| {
        let before = w.db.stats().io.syncs;
        what();
        w.db.stats().io.syncs - before
    };
    let mail = w.file_with(tmp, "m", &[7; 9000]);
    assert_eq!(syncs(&|| w.fs.fsync(mail, false).expect("synced")), 1);
    assert_eq!(syncs(&|| w.fs.fsync(mail, false).expect("synced")), 0);
    w.fs.rename(tmp, b"m", new, b"m", RenameFlags::default()).expect("renamed");
    assert_eq!(syncs(&|| w.fs.fsyncdir(new).expect("synced")), 1);
    assert_eq!(syncs(&|| w.fs.fsyncdir(tmp).expect("synced")), 0, "it was the same commit");
    assert_eq!(syncs(&|| w.fs.fsync(mail, false).expect("synced")), 0);
    w.fs.unlink(new, b"m").expect("unlinked");
    assert_eq!(syncs(&|| w.fs.fsyncdir(new).expect("synced")), 1);
}
