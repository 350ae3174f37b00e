//! Passes stores with hostile content and valid checksums to the commands. Each command ends by
//! itself, reports the problem, and writes only into the directory that it was given.
//! (`crates/kvfs/tests/hostile` passes the same stores to the library.)
//!
//! `KVFS_HOSTILE=1000 cargo test -p kvfs-cli --test it hostile_images::` runs many, from the seed
//! `KVFS_BASE` on.

#[path = "../../../kvfs/tests/hostile/content.rs"]
mod content;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use content::Random;
use env::Machine;
use kvdb::{CreateOptions, Kvdb};
use kvfs::{Fs, FsOptions};
use zones::FileDevice;

/// Longer than any command takes on a busy machine, seconds.
const PATIENCE: &str = "120";
/// Address space of a command, KiB: several times its budget, for libraries and stacks are in it.
const SPACE: u64 = 4 << 20;
/// The largest file that a command may make, in blocks of 512 bytes, since a store may claim to
/// contain endless data.
const FILE: u64 = 1 << 20;

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

/// Makes a store from a seed. Returns `false` if the store refused its content.
fn make(path: &Path, seed: u64) -> bool {
    let mut random = Random::new(seed);
    let device = Arc::new(FileDevice::create(path).expect("a new file"));
    let env = Arc::new(Machine::default());
    let db = Kvdb::create(device, env.clone(), CreateOptions::default()).expect("a store");
    let fs = Fs::open(db.clone(), env, FsOptions::default()).expect("a file system");
    let known = content::sound(&fs);
    fs.shutdown().expect("closed");
    drop(fs);
    db.snapshot("sound").expect("a snapshot");
    let spoilt = content::spoil(&mut random, &db, known);
    db.snapshot("hostile").expect("a snapshot");
    db.close().expect("closed");
    spoilt
}

/// Runs a command; it must end by itself, and not by a panic.
fn run(seed: u64, words: &[&OsStr]) -> (i32, Vec<u8>) {
    let limits = format!(
        "ulimit -v {SPACE}; ulimit -f {FILE}; exec timeout --signal=KILL {PATIENCE} \"$@\""
    );
    let mut command = Command::new("bash");
    command
        .args(["-c", &limits, "bash", env!("CARGO_BIN_EXE_kvfs")])
        .args(words)
        .args(["--json"])
        .stdin(Stdio::null());
    let ended = command.output().expect("it runs");
    let err = String::from_utf8_lossy(&ended.stderr);
    let code = ended.status.code();
    assert!(
        code.is_some_and(|code| code <= 8) && !err.contains("panicked"),
        "seed {seed}: {words:?}: {code:?}, signal {:?}: {err}",
        ended.status.signal()
    );
    (code.unwrap_or(-1), ended.stdout)
}

/// Every name in a directory except `except`.
fn names(directory: &Path, except: &Path) -> Vec<PathBuf> {
    let (mut todo, mut all) = (vec![directory.to_path_buf()], Vec::new());
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path == except {
                continue;
            }
            if path.symlink_metadata().expect("attributes").is_dir() {
                todo.push(path.clone());
            }
            all.push(path);
        }
    }
    all.sort();
    all
}

#[test]
fn commands_end_and_write_into_their_directory_only() {
    let base = number("KVFS_BASE", 0);
    for seed in base..base + number("KVFS_HOSTILE", 12) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (store, other) = (dir.path().join("s.kvfs"), dir.path().join("other.kvfs"));
        let (inside, tar, stream) =
            (dir.path().join("deep/out"), dir.path().join("tar"), dir.path().join("stream"));
        fs::create_dir_all(&inside).expect("a directory");
        if !make(&store, seed) {
            continue;
        }
        for file in [&tar, &stream, &dir.path().join("deep/sibling")] {
            fs::write(file, "").expect("a file");
        }
        let before = names(dir.path(), &inside);
        let go = |words: &[&str], rest: &[&Path]| {
            let mut all: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
            all.insert(1, store.as_os_str());
            all.extend(rest.iter().map(|path| path.as_os_str()));
            run(seed, &all)
        };
        let clean = go(&["check"], &[]).0 == 0;
        let listed = go(&["ls", "/", "-R", "-l"], &[]).0;
        go(&["ls", "/a"], &[]);
        let exported = go(&["export", "--keep-going"], &[&inside]).0;
        go(&["export", "--keep-going"], &[&tar]);
        go(&["export"], &[&tar]);
        // A partial archive is removed, which is at the named path and nowhere else.
        fs::write(&tar, "").expect("a file");
        let saved = dir.path().join("deep/saved");
        let salvaged = go(&["salvage"], &[&saved]).0;
        fs::remove_dir_all(&saved).expect("it was made");
        go(&["stat", "/a/b/large"], &[]);
        go(&["cat", "/a/small"], &[]);
        go(&["diff", "sound"], &[]);
        go(&["diff", "sound", "hostile"], &[]);
        go(&["diff", "hostile", "sound"], &[]);
        assert_eq!(
            names(dir.path(), &inside),
            before,
            "seed {seed}: something outside of {}",
            inside.display()
        );
        if clean {
            assert_eq!(
                (listed, exported, salvaged),
                (0, 0, 0),
                "seed {seed}: a store that is clean can be read"
            );
        }
        // The entries of an archive stay inside as well.
        let names =
            Command::new("tar").args(["--list", "-f"]).arg(&tar).output().expect("tar runs").stdout;
        for name in String::from_utf8_lossy(&names).lines() {
            assert!(
                !name.starts_with('/') && !name.split('/').any(|part| part == ".."),
                "seed {seed}: {name}"
            );
        }
        if go(&["send", "hostile", "-o"], &[&stream]).0 == 0 {
            run(seed, &["create".as_ref(), other.as_ref()]);
            run(seed, &["receive".as_ref(), other.as_ref(), "-i".as_ref(), stream.as_ref()]);
            run(seed, &["check".as_ref(), other.as_ref()]);
            run(seed, &["ls".as_ref(), other.as_ref(), "-R".as_ref()]);
        }
    }
}
