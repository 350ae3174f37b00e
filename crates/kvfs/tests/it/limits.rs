//! Tests of the limits of transactions and clones. In a view that has reached its limit, writes
//! fail as on a full disk. Writes in other views do not.

use crate::world::{USER, World};
use kvdb::{Durability, TransactionId, TransactionOptions};
use kvfs::{Error, FileKind, Fs, FsOptions, ROOT, ViewId, Views};

const LIMIT: u64 = 8 << 20;
const MIB: usize = 1 << 20;

struct Both {
    w: World,
    views: Views,
}

impl Both {
    fn new() -> Both {
        let (w, views) = World::with_views(FsOptions::default());
        Both { w, views }
    }

    fn begin(&self, limit: Option<u64>, within: Option<TransactionId>) -> (TransactionId, Fs) {
        let options = TransactionOptions { limit, within, ..TransactionOptions::default() };
        let id = self.views.begin(options).unwrap();
        (id, self.views.fs(&ViewId::Transaction(id)).unwrap())
    }
}

fn is_full(error: &Error) -> bool {
    error.errno() == libc::ENOSPC
}

/// Writes files of a MiB until one is refused. Returns the number of complete files.
fn fill(fs: &Fs, prefix: &str) -> usize {
    for n in 0.. {
        let name = format!("{prefix}{n}");
        let made = fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, USER);
        let written = made.and_then(|attr| {
            let written = fs.write(attr.ino, 0, &vec![n as u8; MIB], Default::default());
            fs.forget(attr.ino, 1);
            written
        });
        match written {
            Ok(_) => assert!((n as u64) < LIMIT / MIB as u64, "no limit"),
            Err(e) => {
                assert!(is_full(&e), "{e}");
                return n;
            }
        }
    }
    unreachable!()
}

#[test]
fn writes_fail_in_it_as_on_a_full_disk_and_what_was_accepted_is_committed() {
    let b = Both::new();
    let (id, inside) = b.begin(Some(LIMIT), None);
    let written = fill(&inside, "f");
    assert!((6..8).contains(&written), "{written}");
    // Names are refused as well when there is no space for them.
    let more = (0..20_000)
        .map(|n| format!("n{n}"))
        .find_map(|name| inside.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, USER).err());
    assert!(more.as_ref().is_some_and(is_full), "{more:?}");
    let free = inside.statfs().unwrap();
    assert!(free.free * u64::from(free.block_size) < 64 << 10, "{free:?}");
    // The store has space.
    b.w.file_with(ROOT, "outside", &vec![1; 10 * MIB]);
    b.views.commit(id, Durability::Synced).unwrap();
    b.w.check();
    for n in 0..written {
        assert_eq!(b.w.contents(&format!("f{n}")), vec![n as u8; MIB], "{n}");
    }
}

#[test]
fn what_is_removed_or_truncated_gives_room_back() {
    let b = Both::new();
    let (id, inside) = b.begin(Some(LIMIT), None);
    for round in 0..5 {
        let written = fill(&inside, "f");
        assert!(written >= 6, "round {round}: {written}");
        for n in 0..=written {
            let name = format!("f{n}");
            let ino = inside.resolve(name.as_bytes()).unwrap().ino;
            if n % 2 == 0 {
                let size = kvfs::SetAttr { size: Some(0), ..Default::default() };
                inside.setattr(ino, &size, USER).unwrap();
            }
            inside.unlink(ROOT, name.as_bytes()).unwrap();
        }
    }
    // One file that is rewritten repeatedly takes no more than once.
    let file = inside.mknod(ROOT, b"g", FileKind::File, 0o644, 0, USER).unwrap().ino;
    for round in 0..40 {
        inside.write(file, 0, &vec![round; 2 * MIB], Default::default()).unwrap();
    }
    b.views.commit(id, Durability::Synced).unwrap();
    b.w.check();
    assert_eq!(b.w.contents("g"), vec![39; 2 * MIB]);
}

#[test]
fn attempts_within_one_have_what_is_left_of_it() {
    let b = Both::new();
    let (outer, o) = b.begin(Some(LIMIT), None);
    let file = o.mknod(ROOT, b"own", FileKind::File, 0o644, 0, USER).unwrap().ino;
    o.write(file, 0, &vec![1; 3 * MIB], Default::default()).unwrap();
    let (one, first) = b.begin(None, Some(outer));
    let (two, second) = b.begin(None, Some(outer));
    let written = [fill(&first, "one"), fill(&second, "two")];
    assert!(written.iter().all(|n| (3..5).contains(n)), "{written:?}");
    b.views.commit(one, Durability::Buffered).unwrap();
    let refused = b.views.commit(two, Durability::Buffered).unwrap_err();
    assert!(is_full(&refused) && refused.to_string().contains("its limit"), "{refused}");
    b.views.abort(two).unwrap();
    b.views.commit(outer, Durability::Synced).unwrap();
    b.w.check();
    assert_eq!(b.w.contents("one0"), vec![0; MIB]);
}

/// A clone of a tree, with a limit.
fn limited_clone(b: &Both) -> Fs {
    b.w.file_with(ROOT, "base", &vec![9; 4 * MIB]);
    b.views.snapshot(&ViewId::Mainline, "monday", Durability::Synced).unwrap();
    b.views.clone_snapshot("monday", "try").unwrap();
    b.w.db.limit_branch("try", Some(LIMIT)).unwrap();
    b.views.fs(&ViewId::Clone("try".into())).unwrap()
}

#[test]
fn writes_in_a_clone_fail_as_on_a_full_disk_and_what_was_accepted_is_committed() {
    let b = Both::new();
    let inside = limited_clone(&b);
    for round in 0..3 {
        let written = fill(&inside, "f");
        assert!((6..8).contains(&written), "round {round}: {written}");
        let mut names = 0;
        let refused = loop {
            let name = format!("n{names}");
            match inside.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, USER) {
                Ok(_) => names += 1,
                Err(e) => break e,
            }
            assert!(names < 20_000, "no limit");
        };
        assert!(is_full(&refused), "{refused}");
        let free = inside.statfs().unwrap();
        assert!(free.free * u64::from(free.block_size) < 64 << 10, "{free:?}");
        // The store has space, and so has a transaction of it.
        b.w.file_with(ROOT, &format!("outside{round}"), &vec![1; 10 * MIB]);
        inside.sync_all().unwrap();
        for n in 0..written {
            let ino = inside.resolve(format!("f{n}").as_bytes()).unwrap().ino;
            assert_eq!(inside.read(ino, 0, MIB as u32).unwrap(), vec![n as u8; MIB]);
        }
        // Removing all of it frees the space.
        for entry in 0..=written {
            inside.unlink(ROOT, format!("f{entry}").as_bytes()).unwrap();
        }
        for n in 0..names {
            inside.unlink(ROOT, format!("n{n}").as_bytes()).unwrap();
        }
    }
    // Overwriting what the snapshot has counts: the snapshot keeps it.
    let base = inside.resolve(b"base").unwrap().ino;
    inside.write(base, 0, &vec![1; 4 * MIB], Default::default()).unwrap();
    inside.sync_all().unwrap();
    assert!((1..4).contains(&fill(&inside, "g")));
    b.w.db.limit_branch("try", None).unwrap();
    let file = inside.mknod(ROOT, b"much", FileKind::File, 0o644, 0, USER).unwrap().ino;
    inside.write(file, 0, &vec![2; 12 * MIB], Default::default()).unwrap();
    inside.sync_all().unwrap();
    b.w.check();
}

#[test]
fn a_transaction_of_a_clone_is_held_to_its_limit() {
    let b = Both::new();
    let inside = limited_clone(&b);
    let options = TransactionOptions { branch: "try".into(), ..TransactionOptions::default() };
    let id = b.views.begin(options).unwrap();
    let view = b.views.fs(&ViewId::Transaction(id)).unwrap();
    let written = fill(&view, "f");
    assert!((6..8).contains(&written), "{written}");
    // The clone itself has as much data by now, so both do not fit.
    assert!(fill(&inside, "g") >= 6);
    inside.sync_all().unwrap();
    let refused = b.views.commit(id, Durability::Buffered).unwrap_err();
    assert!(is_full(&refused) && refused.to_string().contains("its limit"), "{refused}");
    b.views.abort(id).unwrap();
    b.w.check();
}
