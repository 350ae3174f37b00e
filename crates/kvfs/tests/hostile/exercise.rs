//! Calls every operation of a store that is not sound. The answers do not matter, but every call
//! must return.

use std::sync::Arc;

use env::Env;
use kvdb::{Durability, Kvdb, ReceiveOptions};
use kvfs::{
    Allocate, AllocateMode, Caller, FileKind, Fs, FsOptions, Ino, ROOT, RenameFlags, SetAttr,
    ViewId, Views, Whence, WriteHints, XattrFlags,
};

use crate::content::Random;
use crate::options;

const USER: Caller = Caller { uid: 1000, gid: 100, pid: 7 };
/// The limit of steps of a walk, since names may form cycles.
const STEPS: usize = 300;

/// The entries that a walk has found, each with its directory.
type Found = Vec<(Ino, Vec<u8>, Ino)>;

/// Reads everything that can be reached, through the calls that a mount makes.
fn look(fs: &Fs, known: &[Ino]) -> Found {
    let mut found = Found::new();
    let mut todo: Vec<Ino> = known.to_vec();
    while let Some(dir) = todo.pop().filter(|_| found.len() < STEPS) {
        let mut cookie = 0;
        for _ in 0..3 {
            let (mut names, mut seen) = (Vec::new(), 0);
            let _ = fs.readdir(dir, cookie, dir.is_multiple_of(2), &mut |entry| {
                seen += 1;
                if seen > 40 {
                    return false;
                }
                assert!(
                    !entry.name.is_empty()
                        && entry.name.len() <= 255
                        && !entry.name.contains(&0)
                        && !entry.name.contains(&b'/')
                );
                cookie = entry.cookie;
                names.push((entry.name.to_vec(), entry.ino));
                true
            });
            let over = names.is_empty();
            for (name, ino) in names.into_iter().filter(|(name, _)| name != b"." && name != b"..") {
                let _ = fs.lookup(dir, &name);
                todo.push(ino);
                found.push((dir, name, ino));
            }
            if over {
                break;
            }
        }
        one(fs, dir);
    }
    for path in [
        &b"a/b/c/linked"[..],
        b"a/again/again/again",
        b"../..//etc/passwd",
        b"a/b/c/link",
        b"left/right/left",
    ] {
        let _ = fs.resolve(path);
    }
    for from in [ROOT, 2] {
        if let Ok(mut walk) = fs.walk(from) {
            // The walk ends, whatever it finds.
            while !matches!(walk.next(), Ok(None)) {}
        }
    }
    let _ = fs.statfs();
    found
}

/// Everything about one inode.
fn one(fs: &Fs, ino: Ino) {
    let Ok(attr) = fs.getattr(ino) else { return };
    for (at, len) in
        [(0, 100_000), (attr.size.saturating_sub(10), 100), (u64::MAX - 5, 100), (1 << 20, 4096)]
    {
        let _ = fs.read(ino, at, len);
    }
    for whence in [Whence::Data, Whence::Hole] {
        for at in [0, 5000, attr.size / 2, u64::MAX] {
            let _ = fs.seek(ino, at, whence);
        }
    }
    let _ = fs.readlink(ino);
    if let Ok(names) = fs.listxattr(ino) {
        for name in names.split(|c| *c == 0).filter(|name| !name.is_empty()) {
            let _ = fs.getxattr(ino, name);
        }
    }
    let _ = fs.getxattr(ino, b"user.none");
}

/// Changes of all kinds, of which most fail.
fn change(fs: &Fs, random: &mut Random, found: &Found) {
    for _ in 0..20 {
        let (dir, name, ino) =
            if found.is_empty() { (ROOT, b"a".to_vec(), 2) } else { random.pick(found).clone() };
        let (other, new) = (
            found.get(random.below(found.len())).map_or(ROOT, |f| f.2),
            format!("new{}", random.below(9)).into_bytes(),
        );
        match random.below(17) {
            0 => drop(fs.mkdir(ino, &new, 0o755, USER)),
            1 => drop(fs.mknod(dir, &new, FileKind::File, 0o644, 0, USER)),
            2 => drop(fs.unlink(dir, &name)),
            3 => drop(fs.rmdir(dir, &name)),
            4 => drop(fs.rename(dir, &name, other, &new, RenameFlags::default())),
            5 => drop(fs.rename(
                dir,
                &name,
                other,
                &name,
                RenameFlags { exchange: true, ..Default::default() },
            )),
            6 => drop(fs.link(ino, other, &new)),
            7 => drop(fs.write(
                ino,
                *random.pick(&[0, 1, 4095, 1 << 30, u64::MAX - 3]),
                &[1; 5000],
                WriteHints::default(),
            )),
            8 => {
                let size = Some(*random.pick(&[0, 1, 5000, 1 << 40, u64::MAX]));
                drop(fs.setattr(ino, &SetAttr { size, ..SetAttr::default() }, USER));
            }
            9 => drop(fs.setxattr(ino, b"user.new", &[2; 3000], XattrFlags::Any)),
            10 => drop(fs.removexattr(ino, b"user.small")),
            11 => {
                let mode = *random.pick(&[
                    AllocateMode::Allocate,
                    AllocateMode::Punch,
                    AllocateMode::Zero,
                ]);
                drop(fs.fallocate(
                    ino,
                    Allocate { mode, keep_size: random.one_in(2) },
                    *random.pick(&[0, 4096, 1 << 40]),
                    10_000,
                ));
            }
            12 => drop(fs.clone_tree(ino, ROOT, &new)),
            13 => drop(fs.symlink(dir, &new, b"target", USER)),
            14 => drop(fs.fsync(ino, false)),
            15 => drop(fs.remove_tree(dir, &name)),
            _ => drop(fs.sync_all()),
        }
        fs.forget(ino, 1);
    }
    let _ = fs.sync_all();
}

pub fn all(random: &mut Random, db: &Kvdb, env: &Arc<dyn Env>, known: &[Ino]) {
    // Checks the store as `kvfs check` does.
    let _ = kvfs::verify(db);
    // Compares snapshots as `kvfs diff` does.
    let (sound, hostile) =
        (db.open_snapshot("sound").expect("there"), db.open_snapshot("hostile").expect("there"));
    let _ = kvfs::difference_of_states(&sound, &hostile, Default::default());
    let _ = kvfs::difference_of_states(&hostile, &sound, Default::default());
    // Opens the files as the commands without a mount and a read-only mount do.
    if let Ok(fs) = Fs::open(db.clone(), env.clone(), FsOptions { read_only: true, ..options() }) {
        look(&fs, known);
        let views = Views::new(db.clone(), fs);
        if let Ok(fs) = views.fs(&ViewId::Snapshot("hostile".into())) {
            look(&fs, known);
        }
    }
    // Sends the store, and receives it into another one.
    if random.one_in(4) {
        let mut bytes = Vec::new();
        if db.send("hostile", None, &mut bytes, None).is_ok() {
            let (other, _, env) = crate::store(1);
            received(&other, &env, &bytes, known);
        }
    }
    // Opens the files as a mount does.
    if let Ok(fs) = Fs::open(db.clone(), env.clone(), options()) {
        let views = Views::new(db.clone(), fs.clone());
        let found = look(&fs, known);
        if let Ok(id) = views.begin(Default::default()) {
            if let Ok(inside) = views.fs(&ViewId::Transaction(id)) {
                change(&inside, random, &found);
                let _ = views.difference(id, Default::default());
            }
            let _ = if random.one_in(2) {
                views.commit(id, Durability::Buffered)
            } else {
                views.abort(id)
            };
        }
        change(&fs, random, &found);
        let _ = views.difference_of_snapshots("sound", None, Default::default());
        let _ = views.rollback(if random.one_in(2) { "sound" } else { "hostile" });
        look(&fs, known);
        let _ = fs.verify();
        let _ = fs.shutdown();
    }
    // The store is checked again as it was left.
    let _ = kvfs::verify(db);
}

/// Receives a stream and looks at what came.
pub fn received(db: &Kvdb, env: &Arc<dyn Env>, bytes: &[u8], known: &[Ino]) -> bool {
    if db.receive(bytes, &ReceiveOptions { replace: true, ..ReceiveOptions::default() }).is_err() {
        return false;
    }
    let _ = kvfs::verify(db);
    if let Ok(fs) = Fs::open(db.clone(), env.clone(), options()) {
        look(&fs, known);
        let _ = fs.shutdown();
    }
    true
}
