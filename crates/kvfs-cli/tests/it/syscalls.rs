//! Runs a short slice of the differential tester (`proof/syscalls`): random system calls by several
//! processes on a mount and on the file system of the build directory, compared call by call. It
//! also replays the shrunk histories that once showed a bug.

use std::path::{Path, PathBuf};

use kvfs_syscalls::{Bench, Mode, Mounted, Taste, history, read_history};

/// `None`, with the reason printed, where this process may not mount.
fn bench(directory: &Path, options: &str, users: &[u32], mode: Mode) -> Option<Bench> {
    if let Err(e) = std::fs::File::open("/dev/fuse") {
        eprintln!("SKIPPED: no FUSE here: cannot open /dev/fuse: {e}");
        return None;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: these tests mount as root does");
        return None;
    }
    let mounted =
        Mounted::new(Path::new(env!("CARGO_BIN_EXE_kvfs")), directory, options).expect("mount");
    let root = mounted.root().to_owned();
    Some(
        Bench::new(root, directory.join("reference"), users.to_vec(), mode, Some(mounted))
            .expect("a bench"),
    )
}

fn directory(name: &str) -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix(name)
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a directory")
}

fn no_difference(options: &str, mode: Mode, seed: u64, histories: u64) {
    let directory = directory("syscalls");
    let Some(mut bench) = bench(directory.path(), options, &[0, 0, 0], mode) else { return };
    let zero_range = bench.reference_can_zero().expect("a probe");
    let kills = matches!(mode, Mode::Kill | Mode::Remount);
    let taste = Taste { workers: 3, programs: false, timed: true, kills, seeks: true, zero_range };
    for stream in 0..histories {
        let steps = history(seed, stream, 1000, &taste);
        if let Some(difference) = bench.run(&steps).expect("the bench") {
            panic!(
                "history {stream} of seed {seed} (shrink it: make syscalls SEED={seed}): {difference}"
            );
        }
    }
    let checked = bench.mounted.take().expect("it is mounted").finish().expect("unmount and check");
    assert!(checked.contains("clean"), "{checked}");
}

// This is a single test, since the tester forks, and no other thread of this process may hold a
// lock at that moment.
#[test]
fn system_calls_do_what_they_do_on_the_host() {
    no_difference("", Mode::Plain, 1, 12);
    no_difference("writeback", Mode::Plain, 4, 6);
    no_difference("", Mode::Commit, 2, 4);
    no_difference("", Mode::Kill, 3, 4);
    no_difference("writeback", Mode::Kill, 5, 2);
    no_difference("", Mode::Upgrade, 6, 3);
    no_difference("writeback", Mode::Upgrade, 7, 2);
    found();
}

/// Every history that once failed: the files of `proof/syscalls/found`. A first line
/// `# users 0 1000` says who the workers are.
fn found() {
    let corpus = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../proof/syscalls/found"));
    let mut files: Vec<PathBuf> = std::fs::read_dir(&corpus)
        .expect("the corpus")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "the corpus is there");
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a history");
        let users = text.lines().find_map(|line| line.strip_prefix("# users ")).unwrap_or("0 0 0");
        let users: Vec<u32> = users.split(' ').map(|user| user.parse().expect("a user")).collect();
        let mode = match text.lines().find_map(|line| line.strip_prefix("# mode ")) {
            Some("commit") => Mode::Commit,
            Some("abort") => Mode::Abort,
            Some("kill") => Mode::Kill,
            _ => Mode::Plain,
        };
        let directory = directory("found");
        let Some(mut bench) = bench(directory.path(), "", &users, mode) else { return };
        let steps = read_history(&text).expect("a history");
        if let Some(difference) = bench.run(&steps).expect("the bench") {
            panic!("{}: {difference}", file.display());
        }
    }
}
