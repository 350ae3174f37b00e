//! Tests of a view that replaces the mainline, of programs whose own files are changed by a commit,
//! and of programs that watch for commits.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::real::Real;
use kvdb::{Durability, TransactionOptions};

/// Inode numbers below a directory, by path, as `stat` and as a listing show them.
fn numbers(root: &Path, directory: &str, all: &mut BTreeMap<String, (u64, u64)>) {
    for entry in fs::read_dir(root.join(directory)).expect("it can be listed") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name");
        let path = format!("{directory}{name}");
        let meta = fs::symlink_metadata(root.join(&path)).expect("it is there");
        all.insert(path.clone(), (meta.ino(), std::os::unix::fs::DirEntryExt::ino(&entry)));
        if meta.is_dir() {
            numbers(root, &format!("{path}/"), all);
        }
    }
}

fn tree(m: &Real) {
    fs::create_dir_all(m.path("a/b")).expect("directories");
    for name in ["f", "a/f", "a/b/g"] {
        fs::write(m.path(name), name).expect("a file");
    }
    fs::hard_link(m.path("f"), m.path("a/again")).expect("a link");
}

#[test]
fn in_place_files_have_their_own_numbers_and_elsewhere_those_of_the_view() {
    let Some(m) = Real::new(false) else { return };
    tree(&m);
    let begin = |in_place| {
        let id = m
            .views
            .begin(TransactionOptions { in_place, ..Default::default() })
            .expect("it begins");
        m.path(&format!(".kvfs/txn/{id}"))
    };
    let (mut main, mut inside, mut apart) = Default::default();
    let (in_place, by_path) = (begin(true), begin(false));
    numbers(&m.path(""), "", &mut main);
    numbers(&in_place, "", &mut inside);
    numbers(&by_path, "", &mut apart);
    assert_eq!(main.len(), 6);
    assert!(main.values().all(|(shown, listed)| shown == listed));
    // Directories have numbers of their own in every view.
    let directory = |path: &str| m.path(path).is_dir();
    assert!(main.iter().all(|(path, number)| (inside[path] == *number) != directory(path)));
    assert!(inside.values().all(|(shown, listed)| shown == listed));
    assert!(main.iter().all(|(path, number)| apart[path].0 != number.0));
    assert!(apart.values().all(|(shown, listed)| shown == listed));
    // `diff -r` takes directories of one number and the same attributes for one.
    fs::write(in_place.join("a/b/g"), "other content").expect("a write");
    let differ = |one: &Path, other: &Path| {
        let (one, other) = (one.join("a"), other.join("a"));
        let ran = Command::new("diff").arg("-rq").args([one, other]).output().expect("diff runs");
        ran.status.code()
    };
    assert_eq!(differ(&m.path(""), &in_place), Some(1));
    assert_eq!(differ(&m.path(""), &by_path), Some(0));
}

#[test]
fn a_read_with_o_noatime_leaves_the_time_of_access() {
    let Some(m) = Real::new(false) else { return };
    for (name, length) in [("small", 100), ("large", 100_000)] {
        fs::write(m.path(name), vec![1; length]).expect("a file");
        let cold = |noatime: bool| {
            fs::write("/proc/sys/vm/drop_caches", "3").expect("root drops caches");
            let flags = if noatime { libc::O_NOATIME } else { 0 };
            let mut file = fs::File::options()
                .read(true)
                .custom_flags(flags)
                .open(m.path(name))
                .expect("open");
            std::io::copy(&mut file, &mut std::io::sink()).expect("it reads");
            let meta = fs::metadata(m.path(name)).expect("stat");
            (meta.atime(), meta.atime_nsec())
        };
        let before = fs::metadata(m.path(name)).expect("stat");
        let before = (before.atime(), before.atime_nsec());
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(cold(true), before, "{name}");
        assert_ne!(cold(false), before, "{name}");
    }
}

/// Copies a program of the system to a path. A child process copies it: a descriptor of this
/// process that is open for writing may live on in a child that another test has just forked, and
/// the kernel refuses to execute a file that is open for writing (`ETXTBSY`).
fn install(program: &str, to: &Path) {
    let copied = Command::new("cp").arg(program).arg(to).status();
    assert!(copied.expect("cp runs").success());
}

fn start(program: &Path, argument: &str) -> Child {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("it runs")
}

/// The program echoes its input, so it has started.
fn echoes(running: &mut Child, data: &[u8]) {
    let mut room = vec![0; data.len()];
    running.stdin.as_mut().expect("a pipe").write_all(data).expect("it takes input");
    running.stdout.as_mut().expect("a pipe").read_exact(&mut room).expect("it answers");
    assert_eq!(room, data);
}

#[test]
fn a_commit_leaves_a_program_that_runs_what_it_is() {
    let Some(m) = Real::new(false) else { return };
    for undoable in [false, true] {
        let path = m.path("program");
        install("/bin/cat", &path);
        fs::hard_link(&path, m.path("other")).expect("a link");
        let before = fs::metadata(&path).expect("stat").ino();
        let mut running = start(&path, "-");
        echoes(&mut running, b"it runs; ");
        let id = m
            .views
            .begin(TransactionOptions { undoable, ..Default::default() })
            .expect("it begins");
        let inside = m.path(&format!(".kvfs/txn/{id}/program"));
        let length = fs::metadata(&inside).expect("it is there").len();
        let times = fs::FileTimes::new()
            .set_modified(fs::metadata(&inside).and_then(|of| of.modified()).expect("a time"));
        fs::write(&inside, vec![0xf4; length as usize]).expect("it is written in place");
        // The size is the same, and so is the time, as when two changes come in one tick.
        let file = fs::File::options().write(true).open(&inside).expect("it opens");
        file.set_times(times).expect("the time is set");
        drop(file);
        m.views.commit(id, Durability::Synced).expect("it commits");
        assert_eq!(fs::read(&path).expect("read"), vec![0xf4; length as usize]);
        let numbers =
            ["program", "other"].map(|name| fs::metadata(m.path(name)).expect("stat").ino());
        assert_eq!(numbers[0], numbers[1], "both names have the new content");
        assert_ne!(numbers[0], before, "the program that runs keeps its file");
        let exe = format!("/proc/{}/exe", running.id());
        assert!(fs::read(exe).expect("read") == fs::read("/bin/cat").expect("read"));
        // Its pages are read again.
        fs::write("/proc/sys/vm/drop_caches", "3").expect("root drops caches");
        running.stdin.as_mut().expect("a pipe").write_all(b"it goes on").expect("it takes input");
        let ended = running.wait_with_output().expect("it ends");
        assert!(ended.status.success(), "{ended:?}");
        assert_eq!(ended.stdout, b"it goes on");
        assert_eq!(m.views.mainline().verify().expect("a check").findings, []);
        fs::remove_file(m.path("other")).expect("unlink");
        fs::remove_file(&path).expect("unlink");
    }
}

#[test]
fn a_rollback_names_the_program_that_is_in_the_way() {
    let Some(m) = Real::new(false) else { return };
    let path = m.path("program");
    install("/bin/true", &path);
    m.views.snapshot(&kvfs::ViewId::Mainline, "s", Durability::Buffered).expect("a snapshot");
    install("/bin/cat", &path);
    let mut running = start(&path, "-");
    let refused = m.views.rollback("s").expect_err("a program runs").to_string();
    assert!(refused.contains("`program`"), "{refused}");
    drop(running.stdin.take());
    assert!(running.wait().expect("it ends").success());
    m.views.rollback("s").expect("nothing runs");
}

#[test]
fn who_watches_a_directory_is_told_of_a_commit() {
    for undoable in [false, true] {
        watched_commit(TransactionOptions { undoable, ..TransactionOptions::default() });
    }
}

fn watched_commit(options: TransactionOptions) {
    let Some(m) = Real::new(false) else { return };
    fs::create_dir(m.path("d")).expect("a directory");
    for name in ["changed", "replaced", "removed"] {
        fs::write(m.path("d").join(name), "before").expect("a file");
        fs::read(m.path("d").join(name)).expect("read");
    }
    let watch =
        rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::NONBLOCK).expect("an instance");
    rustix::fs::inotify::add_watch(
        &watch,
        m.path("d"),
        rustix::fs::inotify::WatchFlags::ALL_EVENTS,
    )
    .expect("a watch");
    let id = m.views.begin(options).expect("it begins");
    let inside = m.path(&format!(".kvfs/txn/{id}/d"));
    fs::write(inside.join("changed"), "after").expect("a write");
    fs::write(inside.join("tmp"), "after").expect("a write");
    fs::rename(inside.join("tmp"), inside.join("replaced")).expect("a rename");
    fs::write(inside.join("made"), "after").expect("a write");
    fs::remove_file(inside.join("removed")).expect("unlink");
    m.views.commit(id, Durability::Buffered).expect("it commits");
    let mut told = std::collections::BTreeSet::new();
    let until = Instant::now() + Duration::from_secs(30);
    let mut room = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = rustix::fs::inotify::Reader::new(&watch, &mut room);
    while told.len() < 4 && Instant::now() < until {
        match events.next() {
            Ok(event) if event.events().contains(rustix::fs::inotify::ReadFlags::MODIFY) => {
                let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                told.insert(name.unwrap_or_default());
            }
            Ok(_) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    let all = ["", "changed", "made", "replaced"].map(String::from);
    assert_eq!(told, all.into(), "the directory, and the names");
    let after = m.views.mainline().resolve(b"d/changed").expect("there").mtime;
    let shown = fs::metadata(m.path("d/changed")).expect("stat");
    let times = (after.secs, i64::from(after.nanos));
    assert_eq!((shown.mtime(), shown.mtime_nsec()), times, "it was touched, and not changed");
}
