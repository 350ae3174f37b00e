//! What the fsync of a small file writes to the device. Counted, not timed.

mod world;

use kvfs::{FSync, ROOT};
use world::World;
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
        // Over a page that is there already, and behind it.
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
