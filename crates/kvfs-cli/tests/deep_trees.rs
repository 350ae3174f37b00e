//! Tests of trees so deep that the total length of their paths grows with the square of the depth.
//! The memory and output of commands must not grow in this way. A path for each directory would
//! take 226 MB here, and 3.6 GB at four times the depth, which takes a second to make. In a list of
//! changes such paths are relative to anchors.
//!
//! Where a path for each is what was asked for (`find`, `du --depth`, `ls -R`, a tar stream), it is
//! written as it comes, and nothing of it is kept.

use std::fs::File;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "it/place/mod.rs"]
mod place;

use place::{Place, fails, kvfs, succeeds, text};
use rustix::fs::{Mode, OFlags};
use serde_json::Value;

const DEPTH: usize = 1500;
const NAME: &str = {
    const BYTES: [u8; 200] = [b'n'; 200];
    match std::str::from_utf8(&BYTES) {
        Ok(name) => name,
        Err(_) => panic!("ASCII"),
    }
};
/// The bytes of the paths of all directories.
const SQUARE: u64 = (DEPTH * (DEPTH + 1) / 2 * (NAME.len() + 1)) as u64;
/// The memory that any of the commands may take, here and of the daemon.
const MOST: u64 = 160 << 20;
/// The most bytes of a list of changes.
const LIST: u64 = 40 << 20;

/// Calls `visit` for every directory of a chain, from the top, with its depth.
fn down_to(deepest: usize, top: &Path, mut visit: impl FnMut(usize, &OwnedFd)) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(top, flags, Mode::empty()).expect("the top");
    for depth in 0..=deepest {
        visit(depth, &at);
        if depth < deepest {
            at = rustix::fs::openat(&at, NAME, flags, Mode::empty()).expect("the next one");
        }
    }
}

fn down(top: &Path, visit: impl FnMut(usize, &OwnedFd)) {
    down_to(DEPTH, top, visit);
}

fn make_to(deepest: usize, top: &Path) {
    std::fs::create_dir(top).expect("mkdir");
    down_to(deepest, top, |depth, at| match depth {
        _ if depth == deepest => make_file(at, "leaf"),
        _ => rustix::fs::mkdirat(at, NAME, Mode::RWXU).expect("mkdir"),
    });
}

fn make(top: &Path) {
    make_to(DEPTH, top);
}

fn make_file(at: impl AsFd, name: &str) {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::RUSR | Mode::WUSR).expect("a file");
}

fn set_mode(top: &Path, mode: u32) {
    down(top, |_, at| rustix::fs::fchmod(at, Mode::from_bits_truncate(mode)).expect("chmod"));
}

/// Peak and present memory of a process, bytes.
fn memory(pid: i32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    (field("VmHWM:"), field("VmRSS:"))
}

struct Ended {
    code: i32,
    printed: u64,
    said: String,
}

/// Runs a command to its end. Neither it nor the daemon may take more memory than [`MOST`]; the
/// daemon in addition to what it has already.
#[track_caller]
#[allow(clippy::zombie_processes, reason = "wait4 waits for it, and tells what it took")]
fn bounded(command: &mut Command, daemon: Option<i32>) -> Ended {
    if let Some(pid) = daemon {
        // Resets the peak to the present memory.
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("reset");
    }
    let before = daemon.map(|pid| memory(pid).1);
    command.env_remove("KVFS_TXN").stdin(Stdio::null());
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kvfs runs");
    let mut errors = child.stderr.take().expect("a pipe");
    let errors = std::thread::spawn(move || {
        let mut said = Vec::new();
        errors.read_to_end(&mut said).map(|_| said)
    });
    let mut out = child.stdout.take().expect("a pipe");
    let printed = std::io::copy(&mut out, &mut std::io::sink()).expect("read");
    let said = text(&errors.join().expect("joined").expect("read"));
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: the child is ours and nothing else waits for it; both places are there.
    let ended = unsafe { libc::wait4(child.id() as i32, &mut status, 0, usage.as_mut_ptr()) };
    assert_eq!(ended, child.id() as i32);
    // SAFETY: zeros are numbers, too.
    let took = (unsafe { usage.assume_init() }.ru_maxrss as u64) << 10;
    let grew = daemon
        .map(|pid| memory(pid).0)
        .zip(before)
        .map_or(0, |(peak, was)| peak.saturating_sub(was));
    eprintln!(
        "{:?}: {} MiB here, {} MiB more of the daemon, {} MiB printed",
        command.get_args().collect::<Vec<_>>(),
        took >> 20,
        grew >> 20,
        printed >> 20
    );
    assert!(took < MOST, "{command:?} takes {} MiB", took >> 20);
    assert!(grew < MOST, "for {command:?} the daemon takes {} MiB more", grew >> 20);
    Ended { code: libc::WEXITSTATUS(status), printed, said }
}

/// A list of changes.
#[track_caller]
fn lists(command: &mut Command, daemon: Option<i32>) {
    let Ended { code, printed, said } = bounded(command, daemon);
    assert_eq!(code, 0, "{said}");
    assert!(printed < LIST && said.len() < 1000, "{printed} bytes, {}", said.len());
}

#[track_caller]
fn quiet(command: &mut Command, daemon: Option<i32>) {
    let Ended { code, printed, said } = bounded(command, daemon);
    assert_eq!(code, 0, "{said}");
    assert!(printed + (said.len() as u64) < 10_000, "{printed}");
}

/// Every path is printed.
#[track_caller]
fn streams(command: &mut Command, daemon: Option<i32>) {
    let Ended { code, printed, said } = bounded(command, daemon);
    assert_eq!(code, 0, "{said}");
    assert!((SQUARE..SQUARE * 11 / 10).contains(&printed), "{printed} of {SQUARE}");
}

#[test]
fn a_deep_tree_that_is_added_renamed_and_removed() {
    let Some(p) = Place::new() else { return };
    let daemon = Some(p.mounted());
    let (mnt, store) = (p.mnt(), p.store());
    let m = mnt.to_str().expect("text");
    succeeds(&mut kvfs(&["snapshot", "create", m, "empty"]));
    let id = succeeds(&mut kvfs(&["txn", "begin", m])).trim().to_owned();
    make(&mnt.join(".kvfs/txn").join(&id).join("d"));
    std::fs::write(mnt.join(".kvfs/txn").join(&id).join("beside"), "beside").expect("a file");

    lists(&mut kvfs(&["txn", "diff", m, &id]), daemon);
    lists(&mut kvfs(&["txn", "diff", m, &id, "--stat"]), daemon);
    lists(&mut kvfs(&["--json", "txn", "diff", m, &id]), daemon);
    lists(&mut kvfs(&["txn", "diff", m, &id, "--all"]), daemon);
    lists(&mut kvfs(&["txn", "diff", m, &id, "--patch"]), daemon);
    lists(&mut kvfs(&["--json", "txn", "diff", m, &id, "--all"]), daemon);
    // Other changes are still shown and can be reverted.
    lists(&mut kvfs(&["txn", "diff", m, &id, "beside"]), daemon);
    lists(&mut kvfs(&["txn", "diff", m, &id, "d"]), daemon);
    quiet(&mut kvfs(&["txn", "revert", m, &id, "beside"]), daemon);
    quiet(&mut kvfs(&["txn", "commit", m, &id]), daemon);

    lists(&mut kvfs(&["diff", m, "empty"]), daemon);
    lists(&mut kvfs(&["diff", m, "empty", "--all"]), daemon);
    lists(&mut kvfs(&["show", m]), daemon);
    lists(&mut kvfs(&["show", m, "--all"]), daemon);
    lists(&mut kvfs(&["history", m, "--changes"]), daemon);
    lists(&mut kvfs(&["--json", "history", m, "--changes"]), daemon);

    let d = format!("{m}/d");
    streams(&mut kvfs(&["find", &d]), daemon);
    quiet(&mut kvfs(&["find", &d, "-name", "none"]), daemon);
    quiet(&mut kvfs(&["du", &d]), daemon);
    streams(&mut kvfs(&["du", &d, "--depth", "100000"]), daemon);
    streams(&mut kvfs(&["export", &d, "-"]), daemon);
    quiet(&mut kvfs(&["snapshot", "create", m, "made"]), daemon);
    quiet(&mut kvfs(&["clone-tree", &d, &format!("{m}/copy")]), daemon);
    quiet(&mut kvfs(&["rm", &format!("{m}/copy")]), daemon);
    quiet(&mut kvfs(&["check", m]), daemon);
    quiet(&mut kvfs(&["scrub", m]), daemon);

    std::fs::rename(&d, mnt.join("renamed")).expect("renamed");
    lists(&mut kvfs(&["diff", m, "made"]), daemon);
    lists(&mut kvfs(&["diff", m, "made", "--no-renames"]), daemon);
    lists(&mut kvfs(&["diff", m, "made", "--all"]), daemon);
    quiet(&mut kvfs(&["rm", &format!("{m}/renamed")]), daemon);
    quiet(&mut kvfs(&["restore", m, "made", "d"]), daemon);
    lists(&mut kvfs(&["undo", m]), daemon);

    succeeds(&mut p.umount());
    let s = store.to_str().expect("text");
    lists(&mut kvfs(&["diff", s, "empty", "made"]), None);
    lists(&mut kvfs(&["diff", s, "empty", "made", "--all"]), None);
    quiet(&mut kvfs(&["restore", s, "made", "d"]), None);
    quiet(&mut kvfs(&["check", s]), None);
    quiet(&mut kvfs(&["du", "--store", s, "/d"]), None);
    streams(&mut kvfs(&["find", "--store", s, "/d"]), None);
    streams(&mut kvfs(&["ls", "-R", s, "/d"]), None);
    streams(&mut kvfs(&["export", s, "-", "--from", "/d"]), None);
    quiet(&mut kvfs(&["rm", "--store", s, "/d"]), None);
}

#[test]
fn a_change_in_each_directory_of_a_deep_tree() {
    let Some(p) = Place::new() else { return };
    let daemon = Some(p.mounted());
    let mnt = p.mnt();
    let m = mnt.to_str().expect("text");
    make(&mnt.join("d"));
    succeeds(&mut kvfs(&["snapshot", "create", m, "made"]));
    succeeds(&mut kvfs(&["clone", "create", m, "made", "trial"]));
    let position = succeeds(&mut kvfs(&["changes", m]));
    set_mode(&mnt.join("d"), 0o750);
    lists(&mut kvfs(&["diff", m, "made"]), daemon);
    lists(&mut kvfs(&["--json", "diff", m, "made"]), daemon);
    lists(&mut kvfs(&["diff", m, "made", "--stat"]), daemon);

    // Both sides have changed each of the files.
    let clone = mnt.join(".kvfs/clone/trial");
    set_mode(&clone.join("d"), 0o711);
    let c = clone.to_str().expect("text");
    let merged = bounded(&mut kvfs(&["merge", c]), daemon);
    assert!(merged.code == 75 && merged.printed < LIST, "{}: {}", merged.code, merged.said);

    // In a transaction; another file can be taken back by what the sentence says.
    let id = succeeds(&mut kvfs(&["txn", "begin", m])).trim().to_owned();
    let view = mnt.join(".kvfs/txn").join(&id);
    down(&view.join("d"), |_, at| make_file(at, "f"));
    lists(&mut kvfs(&["txn", "diff", m, &id]), daemon);
    // Reverts a file far below, by its whole path, which is longer than a call accepts.
    let far = format!("d/{}f", format!("{NAME}/").repeat(400));
    quiet(&mut kvfs(&["txn", "revert", m, &id, &far]), daemon);
    down(&view.join("d"), |depth, at| {
        let there = rustix::fs::openat(at, "f", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        assert_eq!(there.is_ok(), depth != 400, "depth {depth}");
    });
    let v = view.to_str().expect("text");
    quiet(&mut kvfs(&["rm", &format!("{v}/d")]), daemon);
    lists(&mut kvfs(&["txn", "diff", m, &id]), daemon);
    quiet(&mut kvfs(&["txn", "commit", m, &id]), daemon);
    // A follower learns that the commit is not listed; its position is the one before it.
    let position = position.trim();
    let followed = bounded(&mut kvfs(&["changes", m, "--since", position]), daemon);
    assert!(followed.code == 0 && followed.printed < LIST, "{}", followed.said);

    // A file with a name in each directory.
    make(&mnt.join("links"));
    File::create(mnt.join("one")).expect("a file");
    succeeds(&mut kvfs(&["snapshot", "create", m, "unlinked"]));
    let root = rustix::fs::open(&mnt, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let root = root.expect("the root");
    down(&mnt.join("links"), |_, at| {
        rustix::fs::linkat(&root, "one", at, "one", rustix::fs::AtFlags::empty()).expect("link");
    });
    lists(&mut kvfs(&["diff", m, "unlinked"]), daemon);
    lists(&mut kvfs(&["--json", "diff", m, "unlinked"]), daemon);

    assert!(fails(3, &mut kvfs(&["du", &format!("{m}/d")])).contains("cannot find"));
}

/// A path of a list in JSON, from the root.
fn whole(list: &Value, path: &str) -> String {
    let mut whole = path.to_owned();
    while whole.starts_with('/') {
        let end = whole[1..].find('/').map_or(whole.len(), |at| at + 1);
        let anchor = list["anchors"][&whole[..end]].as_str().expect("an anchor");
        whole = format!("{anchor}{}", &whole[end..]);
    }
    whole
}

/// All changes are listed, within the memory of a list, and each path can be reported in full.
#[test]
fn six_thousand_nested_directories_are_listed_one_by_one() {
    const DEEPEST: usize = 6000;
    let Some(p) = Place::new() else { return };
    let daemon = Some(p.mounted());
    let mnt = p.mnt();
    let m = mnt.to_str().expect("text");
    let id = succeeds(&mut kvfs(&["txn", "begin", m])).trim().to_owned();
    make_to(DEEPEST, &mnt.join(".kvfs/txn").join(&id).join("d"));
    lists(&mut kvfs(&["txn", "diff", m, &id]), daemon);
    lists(&mut kvfs(&["txn", "diff", m, &id, "--all"]), daemon);
    lists(&mut kvfs(&["--json", "txn", "diff", m, &id, "--all"]), daemon);
    let list = succeeds(&mut kvfs(&["--json", "txn", "diff", m, &id, "--all"]));
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let files = list["files"].as_array().expect("a list");
    assert_eq!(files.len(), DEEPEST + 2, "each directory, and the file");
    let paths = files.iter().map(|file| file["path"].as_str().expect("a path"));
    let leaf = paths.clone().find(|path| path.ends_with("/leaf")).expect("the file");
    assert_eq!(whole(&list, leaf), format!("d/{}leaf", format!("{NAME}/").repeat(DEEPEST)));
    assert!(paths.clone().all(|path| path.len() <= 4096));
    let text = succeeds(&mut kvfs(&["txn", "diff", m, &id, "--all"]));
    let anchors = list["anchors"].as_object().expect("anchors").len();
    assert_eq!(text.lines().filter(|line| line.starts_with("=  /")).count(), anchors);
}
