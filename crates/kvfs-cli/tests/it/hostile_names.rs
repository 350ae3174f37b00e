//! Tests of stores with valid checksums whose directories contain names that no file system can
//! have made. Every reader refuses them, and nothing is written at the path to which such a name
//! points.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use env::Machine;
use kvdb::{Batch, Durability, Kvdb, OpenOptions};
use zones::FileDevice;

const DAMAGED: i32 = 5;
const ROOT: u64 = 1;

struct Lab {
    dir: tempfile::TempDir,
    store: PathBuf,
}

fn kvfs(words: &[&OsStr]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command.output().expect("kvfs runs")
}

fn shown(output: &Output) -> String {
    format!("{} / {}", String::from_utf8_lossy(&output.stderr), output.stdout.escape_ascii())
}

#[track_caller]
fn succeeds(output: Output) -> Vec<u8> {
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    output.stdout
}

#[track_caller]
fn refuses(output: Output) -> Vec<u8> {
    assert_eq!(output.status.code(), Some(DAMAGED), "{}", shown(&output));
    // `check` prints what it has found.
    assert!(shown(&output).contains("impossible name"), "{}", shown(&output));
    output.stdout
}

/// The key of an entry as `docs/format.md` has it.
fn key(parent: u64, name: &[u8]) -> Vec<u8> {
    [&parent.to_be_bytes(), name].concat()
}

/// Stores the entry `from` of the root under the key of `to`, as only a program other than KVFS
/// would.
fn rename_raw(store: &Path, from: &[u8], to: &[u8]) {
    let device = Arc::new(FileDevice::open(store, false).expect("the store is free"));
    let (db, _) =
        Kvdb::open(device, Arc::new(Machine::default()), OpenOptions::default()).expect("it opens");
    let names = db.dictionary("nmap").expect("names");
    let value = db.get(names, &key(ROOT, from)).expect("readable").expect("there");
    let mut batch = Batch::new();
    batch.delete(names, key(ROOT, from));
    batch.put(names, key(ROOT, to), value);
    db.commit(batch, Durability::Synced).expect("committed");
    db.close().expect("closed");
}

impl Lab {
    /// A store with `evil`, a directory with a file in it, `evil-file`, and others that are as they
    /// should be.
    fn new() -> Lab {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let lab = Lab { store: dir.path().join("s.kvfs"), dir };
        let from = lab.path("from");
        for directory in ["evil", "fine"] {
            fs::create_dir_all(from.join(directory)).expect("a directory");
            fs::write(from.join(directory).join("victim"), "EVIL").expect("a file");
        }
        fs::write(from.join("evil-file"), "EVIL").expect("a file");
        succeeds(kvfs(&["create".as_ref(), lab.store.as_ref()]));
        succeeds(lab.run("import", &[from.as_ref()]));
        succeeds(lab.run("snapshot", &["create".as_ref(), lab.store.as_ref(), "before".as_ref()]));
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, command: &str, rest: &[&OsStr]) -> Output {
        match command {
            "snapshot" => kvfs(&[&[OsStr::new(command)], rest].concat()),
            _ => kvfs(&[&[OsStr::new(command), self.store.as_ref()], rest].concat()),
        }
    }

    /// Every file below the directory, with its content.
    fn everything(&self, below: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let (mut todo, mut all) = (vec![below.to_path_buf()], Vec::new());
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(&dir).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    todo.push(path);
                } else {
                    all.push((path.clone(), fs::read(&path).expect("a file")));
                }
            }
        }
        all.sort();
        all
    }
}

/// Each name with the entry that gets it: a file if the name refers to a file, a directory if it
/// refers to one.
fn hostile(outside: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let absolute = outside.join("victim").into_os_string().into_encoded_bytes();
    let file = [
        absolute,
        b"../outside/victim".to_vec(),
        b"fine/victim".to_vec(),
        b"nul\0".to_vec(),
        b"".to_vec(),
        vec![b'n'; 256],
    ];
    let directory = [
        outside.as_os_str().as_encoded_bytes().to_vec(),
        b"../outside".to_vec(),
        b"..".to_vec(),
        b".".to_vec(),
    ];
    file.into_iter()
        .map(|name| ("evil-file", name))
        .chain(directory.into_iter().map(|name| ("evil", name)))
        .collect()
}

#[test]
fn nothing_follows_a_name_that_cannot_be() {
    let outside = tempfile::tempdir().expect("a temporary directory");
    let mounts = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    for (entry, name) in hostile(outside.path()) {
        let lab = Lab::new();
        fs::create_dir(lab.path("outside")).expect("a directory");
        for victim in
            [outside.path().join("victim"), lab.path("outside/victim"), lab.path("victim")]
        {
            fs::write(victim, "innocent").expect("a file");
        }
        rename_raw(&lab.store, entry.as_bytes(), &name);
        succeeds(lab.run("snapshot", &["create".as_ref(), lab.store.as_ref(), "after".as_ref()]));
        let other = lab.path("other.kvfs");
        let stream = lab.path("stream");
        succeeds(lab.run("send", &["after".as_ref(), "-o".as_ref(), stream.as_ref()]));
        succeeds(kvfs(&["create".as_ref(), other.as_ref()]));
        succeeds(kvfs(&["receive".as_ref(), other.as_ref(), "-i".as_ref(), stream.as_ref()]));

        for store in [&lab.store, &other] {
            let out = lab.path("out");
            let _ = fs::remove_dir_all(&out);
            refuses(kvfs(&["export".as_ref(), store.as_ref(), out.join("").as_ref()]));
            refuses(kvfs(&[
                "export".as_ref(),
                store.as_ref(),
                out.join("").as_ref(),
                "--keep-going".as_ref(),
            ]));
            for (path, _) in lab.everything(&out) {
                assert!(
                    path.starts_with(out.join("fine"))
                        || path.starts_with(out.join("evil"))
                        || path == out.join("evil-file")
                );
            }
            let saved = lab.path("saved");
            let _ = fs::remove_dir_all(&saved);
            refuses(kvfs(&["salvage".as_ref(), store.as_ref(), saved.as_ref()]));
            assert_eq!(fs::read(saved.join("fine/victim")).expect("what is whole"), b"EVIL");
            for (path, _) in lab.everything(&saved) {
                let inside = ["fine", "evil", "evil-file", "lost+found"]
                    .iter()
                    .any(|name| path.starts_with(saved.join(name)));
                assert!(inside, "{}", path.display());
            }
            let tar = refuses(kvfs(&["export".as_ref(), store.as_ref(), "-".as_ref()]));
            let leads_out = name.starts_with(b"/") || name.starts_with(b"../");
            assert!(
                !leads_out || !tar.windows(name.len()).any(|w| w == name),
                "{}",
                name.escape_ascii()
            );
            let list = refuses(kvfs(&["ls".as_ref(), store.as_ref(), "-R".as_ref()]));
            assert!(!list.starts_with(b"..") && !list.starts_with(b"/"), "{}", list.escape_ascii());
            refuses(kvfs(&["check".as_ref(), store.as_ref()]));
            // Undamaged files can be read.
            assert_eq!(
                succeeds(kvfs(&["cat".as_ref(), store.as_ref(), "fine/victim".as_ref()])),
                b"EVIL"
            );
            assert_eq!(
                succeeds(kvfs(&["ls".as_ref(), store.as_ref(), "fine".as_ref()])),
                b"victim\n"
            );
        }
        refuses(lab.run("diff", &["before".as_ref()]));
        refuses(lab.run("diff", &["before".as_ref(), "after".as_ref()]));
        if mounts {
            let mnt = lab.path("mnt");
            fs::create_dir(&mnt).expect("a directory");
            succeeds(kvfs(&["mount".as_ref(), lab.store.as_ref(), mnt.as_ref()]));
            let listed: Result<Vec<_>, _> = fs::read_dir(&mnt).and_then(Iterator::collect);
            let within = fs::read(mnt.join("fine/victim"));
            let mounted_diff = kvfs(&["diff".as_ref(), mnt.as_ref(), "before".as_ref()]);
            succeeds(kvfs(&["umount".as_ref(), mnt.as_ref()]));
            assert_eq!(
                listed.expect_err("the directory is damaged").raw_os_error(),
                Some(rustix::io::Errno::IO.raw_os_error())
            );
            assert_eq!(within.expect("the other directory is whole"), b"EVIL");
            refuses(mounted_diff);
        }
        for victim in
            [outside.path().join("victim"), lab.path("outside/victim"), lab.path("victim")]
        {
            assert_eq!(
                fs::read(&victim).expect("still there"),
                b"innocent",
                "{} by {}",
                victim.display(),
                name.escape_ascii()
            );
        }
    }
}

/// Links in the target directory may lead elsewhere, too.
#[test]
fn an_export_does_not_go_through_symbolic_links_of_the_directory_it_fills() {
    let lab = Lab::new();
    let (out, outside) = (lab.path("out"), lab.path("outside"));
    fs::create_dir_all(&out).expect("a directory");
    fs::create_dir_all(&outside).expect("a directory");
    fs::write(outside.join("victim"), "innocent").expect("a file");
    fs::write(outside.join("file"), "innocent").expect("a file");
    // A link in place of a directory is not gone through; one in place of a file is replaced.
    std::os::unix::fs::symlink(outside.join("file"), out.join("evil-file")).expect("a link");
    std::os::unix::fs::symlink(&outside, out.join("fine")).expect("a link");
    let ended = kvfs(&["export".as_ref(), lab.store.as_ref(), out.as_ref()]);
    assert_ne!(ended.status.code(), Some(0), "{}", shown(&ended));
    assert_eq!(fs::read(outside.join("victim")).expect("there"), b"innocent");
    assert_eq!(fs::read(outside.join("file")).expect("there"), b"innocent");
    assert_eq!(fs::read(out.join("evil-file")).expect("replaced"), b"EVIL");
    assert!(!out.join("evil-file").symlink_metadata().expect("there").is_symlink());
}
