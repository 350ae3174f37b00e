//! Tests of many threads on one small tree. Whatever each call returns, the file system stays
//! consistent, and no thread waits forever.

use std::sync::Arc;

use crate::world::USER;
use env::{Env, Machine, Simulated};
use kvdb::Kvdb;
use kvfs::{
    Allocate, AllocateMode, FileKind, Fs, FsOptions, Ino, ROOT, RenameFlags, SetAttr, XattrFlags,
};

/// Makes a random change of the tree, with so few names that the threads collide. Calls may fail
/// because of the other threads.
fn step(fs: &Fs, random: &Simulated, held: &mut Vec<Ino>) -> Result<(), kvfs::Error> {
    let below = |n: u64| random.random() % n;
    let pick =
        |held: &[Ino]| if held.is_empty() { ROOT } else { held[below(held.len() as u64) as usize] };
    let name = || format!("n{}", below(5)).into_bytes();
    let (dir, other) = (pick(held), pick(held));
    match below(24) {
        0..3 => held.push(fs.mknod(dir, &name(), FileKind::File, 0o644, 0, USER)?.ino),
        3..5 => held.push(fs.mkdir(dir, &name(), 0o755, USER)?.ino),
        5..8 => held.push(fs.lookup(dir, &name())?.ino),
        8 => held.push(fs.link(other, dir, &name())?.ino),
        9 | 10 => fs.unlink(dir, &name())?,
        11 | 12 => fs.rmdir(dir, &name())?,
        13..16 => {
            let flags = RenameFlags { exchange: below(3) == 0, ..Default::default() };
            fs.rename(dir, &name(), other, &name(), flags)?;
        }
        16 | 17 => drop(fs.write(
            dir,
            below(100_000),
            &vec![below(256) as u8; 1 + below(30_000) as usize],
            Default::default(),
        )?),
        18 => drop(fs.setattr(
            dir,
            &SetAttr { size: Some(below(50_000)), ..Default::default() },
            USER,
        )?),
        19 => fs.fallocate(
            dir,
            Allocate { mode: AllocateMode::Punch, keep_size: true },
            below(50_000),
            1 + below(50_000),
        )?,
        20 => fs.setxattr(dir, b"user.x", &vec![1; below(600) as usize], XattrFlags::Any)?,
        21 => match below(3) {
            0 => fs.fsync(dir, false)?,
            1 => fs.sync_all()?,
            _ => drop(fs.copy_file_range(dir, 0, other, 0, 1 << 20)?),
        },
        22 => {
            let mut listed = Vec::new();
            fs.readdir(dir, 0, true, &mut |e| {
                listed.extend(e.attr.filter(|_| !e.name.starts_with(b".")).map(|a| a.ino));
                true
            })?;
            held.extend(listed);
        }
        _ => {
            let _ = fs.read(dir, below(50_000), 10_000)?;
        }
    }
    Ok(())
}

#[test]
fn a_tree_stays_sound_under_many_threads() {
    for seed in 0..4 {
        let db = Kvdb::in_memory();
        let options = FsOptions {
            write_buffer: 1 << 20,
            flush_interval: std::time::Duration::from_millis(4),
            ..Default::default()
        };
        // The file system has its own thread that flushes.
        let fs = Fs::open(db.clone(), Arc::new(Machine::default()), options).unwrap();
        std::thread::scope(|s| {
            for thread in 0..4u64 {
                let fs = fs.clone();
                s.spawn(move || {
                    let random = Simulated::new(seed * 100 + thread);
                    let mut held = Vec::new();
                    let (mut corrupt, mut done) = (None, 0);
                    for _ in 0..10_000 {
                        match step(&fs, &random, &mut held) {
                            Err(e @ kvfs::Error::Corrupt { .. }) => corrupt = Some(e),
                            result => done += u32::from(result.is_ok()),
                        }
                        if held.len() > 40 {
                            for ino in held.drain(..20) {
                                fs.forget(ino, 1);
                            }
                        }
                    }
                    for ino in held {
                        fs.forget(ino, 1);
                    }
                    assert!(
                        done > 2500,
                        "seed {seed}, thread {thread}: only {done} steps did something"
                    );
                    assert!(corrupt.is_none(), "seed {seed}, thread {thread}: {corrupt:?}");
                });
            }
        });
        let report = fs.verify().unwrap();
        assert!(report.is_clean(), "seed {seed}: {:?}", report.findings);
        assert_eq!(report.orphans, 0, "every reference was given back");
        assert_eq!(fs.statistics().dirty_bytes, 0);
        fs.shutdown().unwrap();
    }
}
