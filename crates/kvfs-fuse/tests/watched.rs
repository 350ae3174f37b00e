//! Programs that watch directories with inotify(7): what a commit, an undo and a rollback change is
//! told as if it had been done there.

mod real;

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use kvdb::{Durability, Kvdb, TransactionOptions};
use kvfs::{FsOptions, ViewId};
use real::Real;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

type Events = BTreeSet<(u32, String)>;

fn watch(directory: &Path) -> OwnedFd {
    let watch = inotify::init(CreateFlags::NONBLOCK).expect("an instance");
    inotify::add_watch(&watch, directory, WatchFlags::ALL_EVENTS).expect("a watch");
    watch
}

/// The events of these; no name is that of the directory itself.
fn of(events: &[(ReadFlags, &str)]) -> Events {
    events.iter().map(|(flags, name)| (flags.bits(), (*name).to_owned())).collect()
}

/// Reads events until all that are wanted have come.
#[track_caller]
fn is_told(watch: &OwnedFd, wanted: &[(ReadFlags, &str)], what: &str) {
    let (wanted, mut told) = (of(wanted), Events::new());
    let until = Instant::now() + Duration::from_secs(30);
    let mut room = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = Reader::new(watch, &mut room);
    while !told.is_superset(&wanted) {
        match events.next() {
            Ok(event) => {
                let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                told.insert((event.events().bits(), name.unwrap_or_default()));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
        let missing: Vec<_> = wanted.difference(&told).collect();
        assert!(Instant::now() < until, "{what}: {missing:?} are missing of {told:?}");
    }
}

/// Forgets the events that have come, and those that the last change still brings.
fn settle(m: &Real, watch: &OwnedFd) {
    // The events of one commit come before those of the next.
    let marker = m.path("d/.marker");
    let id = m.views.begin(TransactionOptions::default()).expect("it begins");
    fs::write(m.path(&format!(".kvfs/txn/{id}/d/.marker")), "").expect("a file");
    m.views.commit(id, Durability::Buffered).expect("it commits");
    is_told(watch, &[(ReadFlags::CREATE, ".marker")], "a marker");
    fs::remove_file(marker).expect("removed");
    is_told(watch, &[(ReadFlags::DELETE, ".marker")], "the marker");
}

fn mounted(gathers: bool) -> Option<(Real, Kvdb)> {
    let db = Kvdb::in_memory();
    Some((Real::with(db.clone(), FsOptions::default(), &real::policy(gathers))?, db))
}

/// Takes back the last commit.
fn undo(m: &Real, db: &Kvdb) {
    let commit = db.undoable_commits().last().expect("one").number;
    let (id, _) = m.views.undo(commit, TransactionOptions::default()).expect("it begins");
    m.views.commit(id, Durability::Buffered).expect("undone");
}

/// A directory with files that the kernel has looked up.
fn filled(m: &Real) {
    fs::create_dir_all(m.path("d/empty")).expect("directories");
    for name in ["changed", "replaced", "removed", "old"] {
        fs::write(m.path("d").join(name), "before").expect("a file");
        fs::read(m.path("d").join(name)).expect("read");
    }
}

/// Changes files as an agent does, in an undoable transaction.
fn change(m: &Real) {
    let options = TransactionOptions { undoable: true, ..TransactionOptions::default() };
    let id = m.views.begin(options).expect("it begins");
    let inside = m.path(&format!(".kvfs/txn/{id}/d"));
    fs::write(inside.join("changed"), "after").expect("a write");
    fs::write(inside.join("tmp"), "after").expect("a write");
    fs::rename(inside.join("tmp"), inside.join("replaced")).expect("a rename");
    fs::write(inside.join("made"), "after").expect("a write");
    fs::remove_file(inside.join("removed")).expect("unlink");
    fs::rename(inside.join("old"), inside.join("new")).expect("a rename");
    fs::remove_dir(inside.join("empty")).expect("rmdir");
    fs::create_dir(inside.join("fresh")).expect("mkdir");
    std::os::unix::fs::symlink("made", inside.join("link")).expect("a link");
    m.views.commit(id, Durability::Buffered).expect("it commits");
}

/// [`ReadFlags`] of a directory's name.
const DIRECTORY: ReadFlags = ReadFlags::ISDIR;

/// What is told of [`change`].
fn told_of_change() -> Vec<(ReadFlags, &'static str)> {
    let made = ["replaced", "made", "new", "link"].map(|name| (ReadFlags::CREATE, name));
    let gone = ["removed", "old"].map(|name| (ReadFlags::DELETE, name));
    let written = ["", "changed", "made", "replaced"].map(|name| match name {
        "" => (ReadFlags::MODIFY | DIRECTORY, name),
        name => (ReadFlags::MODIFY, name),
    });
    let closed = ["changed", "made"].map(|name| (ReadFlags::CLOSE_WRITE, name));
    let directories =
        [(ReadFlags::CREATE | DIRECTORY, "fresh"), (ReadFlags::DELETE | DIRECTORY, "empty")];
    [&made[..], &gone, &written, &closed, &directories].concat()
}

/// What is told when [`change`] is taken back.
fn told_of_the_way_back() -> Vec<(ReadFlags, &'static str)> {
    let made = ["removed", "old"].map(|name| (ReadFlags::CREATE, name));
    let gone = ["made", "new", "link"].map(|name| (ReadFlags::DELETE, name));
    let directories = [
        (ReadFlags::CREATE | DIRECTORY, "empty"),
        (ReadFlags::DELETE | DIRECTORY, "fresh"),
        (ReadFlags::MODIFY | DIRECTORY, ""),
    ];
    [&made[..], &gone, &directories].concat()
}

#[test]
fn who_watches_a_directory_is_told_of_a_commit_an_undo_and_a_rollback() {
    for gathers in real::BOTH {
        let Some((m, db)) = mounted(gathers) else { return };
        filled(&m);
        m.views.snapshot(&ViewId::Mainline, "before", Durability::Buffered).expect("a snapshot");
        let watch = watch(&m.path("d"));
        change(&m);
        is_told(&watch, &told_of_change(), "a commit");
        settle(&m, &watch);

        undo(&m, &db);
        is_told(&watch, &told_of_the_way_back(), "an undo");
        settle(&m, &watch);

        change(&m);
        is_told(&watch, &told_of_change(), "a commit once more");
        settle(&m, &watch);
        m.views.rollback("before").expect("rolled back");
        is_told(&watch, &told_of_the_way_back(), "a rollback");

        // Nothing was done twice, or taken away.
        let names = fs::read_dir(m.path("d")).expect("listed");
        let names = names.map(|entry| entry.expect("an entry").file_name().into_string());
        let names: BTreeSet<String> = names.map(|name| name.expect("text")).collect();
        let all = ["changed", "replaced", "removed", "old", "empty"].map(String::from);
        assert_eq!(names, all.into());
        assert_eq!(m.views.mainline().verify().expect("it can be read").findings, []);
    }
}

/// The daemon looks who watches at most twice a second.
#[test]
fn who_begins_to_watch_is_told_of_the_very_next_commit() {
    let Some((m, db)) = mounted(false) else { return };
    filled(&m);
    change(&m);
    let watch = watch(&m.path("d"));
    undo(&m, &db);
    is_told(&watch, &told_of_the_way_back(), "an undo");
}

#[test]
fn what_is_touched_for_watchers_is_not_changed() {
    let Some(m) = Real::new(false) else { return };
    filled(&m);
    let watch = watch(&m.path("d"));
    change(&m);
    is_told(&watch, &told_of_change(), "a commit");
    for name in ["changed", "made", "replaced", "new"] {
        let stored = m.views.mainline().resolve(format!("d/{name}").as_bytes()).expect("there");
        let shown = fs::metadata(m.path("d").join(name)).expect("stat");
        let times = (stored.mtime.secs, i64::from(stored.mtime.nanos));
        assert_eq!((shown.mtime(), shown.mtime_nsec()), times, "{name}");
        assert_eq!(shown.ino(), stored.ino, "{name} is the file that the commit has made");
        let content = if name == "new" { "before" } else { "after" };
        assert_eq!(fs::read_to_string(m.path("d").join(name)).expect("read"), content);
    }
}

/// A program that makes the name again, in the moment in which its removal is told, keeps it.
#[test]
fn a_name_that_is_made_again_stays() {
    let Some(m) = Real::new(false) else { return };
    filled(&m);
    let watch = watch(&m.path("d"));
    for round in 0..40 {
        let path = m.path("d/removed");
        let id = m.views.begin(TransactionOptions::default()).expect("it begins");
        fs::remove_file(m.path(&format!(".kvfs/txn/{id}/d/removed"))).expect("unlink");
        m.views.commit(id, Durability::Buffered).expect("it commits");
        let content = format!("round {round}");
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, content.as_bytes()))
            .expect("made again");
        settle(&m, &watch);
        assert_eq!(fs::read_to_string(&path).expect("it is there"), content);
        let shown = fs::metadata(&path).expect("stat");
        assert_eq!((shown.nlink(), shown.len()), (1, content.len() as u64));
    }
}
