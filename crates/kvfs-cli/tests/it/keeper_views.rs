//! Tests of `kvfs mount -o keeper` with views of durable transactions, snapshots and clones. They
//! continue when the daemon is killed, and programs see the committed state, at whatever point of a
//! commit the kill was.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::kept::Kept;
use crate::place::{
    Place, fails, install_program, install_script, is_alive, kill, kvfs, succeeds, until,
};
use rustix::process::Signal;

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("opened")
}

fn read(file: &File) -> Vec<u8> {
    let mut all = vec![0; file.metadata().expect("attributes").len() as usize];
    file.read_exact_at(&mut all, 0).expect("read");
    all
}

fn ino(file: &File) -> u64 {
    file.metadata().expect("attributes").ino()
}

fn begin(place: &Place, words: &[&str]) -> String {
    succeeds(kvfs(&["txn", "begin"]).arg(place.mnt()).args(words)).trim().to_string()
}

/// The socket answers, by the daemon that serves now.
fn answers(place: &Place) {
    until("the socket answers", || {
        kvfs(&["txn", "list"]).arg(place.mnt()).output().is_ok_and(|said| said.status.success())
    });
    // Its record comes a moment later.
    until("there is a record of it", || {
        let said = kvfs(&["--json", "stat"]).arg(place.mnt()).output().expect("kvfs runs");
        let stat: Option<serde_json::Value> = serde_json::from_slice(&said.stdout).ok();
        stat.is_some_and(|stat| stat["daemon"]["pid"].is_i64())
    });
}

#[test]
fn what_is_open_in_views_goes_on() {
    for mode in ["nowriteback", "writeback"] {
        let Some(kept) = Kept::new(mode) else { return };
        let place = &kept.place;
        fs::create_dir(place.mnt().join("d")).expect("made");
        fs::write(place.mnt().join("d/f"), b"content").expect("written");
        succeeds(kvfs(&["snapshot", "create"]).arg(place.mnt()).arg("s"));
        succeeds(kvfs(&["clone", "create"]).arg(place.mnt()).args(["s", "c"]));
        let id = begin(place, &["--durable"]);
        let views = place.mnt().join(".kvfs");
        let (txn, clone) = (views.join("txn").join(&id), views.join("clone/c"));
        let snapshot = open_read(&views.join("snapshot/s/d/f"));
        let writable = [&txn, &clone].map(|view| open(&view.join("d/f")));
        // Files that are made there, with a name, without one any more, and without one ever.
        let made = [&txn, &clone].map(|view| {
            let named = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(view.join("d/named"))
                .expect("made");
            let removed = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(view.join("d/removed"))
                .expect("made");
            removed.write_all_at(&[7; 50_000], 0).expect("written");
            fs::remove_file(view.join("d/removed")).expect("removed");
            let mut options = File::options();
            options.read(true).write(true).custom_flags(libc::O_TMPFILE);
            let never = options.open(view.join("d")).expect("made");
            [named, removed, never]
        });
        let mut works_there = Command::new("sh")
            .args(["-c", "read word; cat f; echo $word > written"])
            .current_dir(txn.join("d"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let all = || writable.iter().chain(made.iter().flatten()).chain([&snapshot]);
        let numbers: Vec<u64> = all().map(ino).collect();
        for round in 0..5u8 {
            for file in writable.iter().chain(made.iter().flatten()) {
                file.write_all_at(&[round; 3], 1).expect("written");
            }
            kept.kill();
            for file in &writable {
                assert_eq!(read(file), [b'c', round, round, round, b'e', b'n', b't'], "{mode}");
            }
            for [named, removed, never] in &made {
                assert_eq!(read(named), [0, round, round, round], "{mode}");
                assert_eq!(read(removed)[..5], [7, round, round, round, 7], "{mode}");
                assert_eq!(removed.metadata().expect("attributes").nlink(), 0);
                assert_eq!(read(never), [0, round, round, round], "{mode}");
            }
            assert_eq!(read(&snapshot), b"content");
            assert_eq!(all().map(ino).collect::<Vec<_>>(), numbers, "{mode}");
        }
        use std::io::{Read, Write};
        writeln!(works_there.stdin.take().expect("piped"), "word").expect("written");
        let mut said = Vec::new();
        works_there.stdout.take().expect("piped").read_to_end(&mut said).expect("read");
        assert!(works_there.wait().expect("it ends").success());
        assert_eq!(said, [b'c', 4, 4, 4, b'e', b'n', b't']);
        drop((made, snapshot, writable));
        assert_eq!(fs::read(place.mnt().join("d/f")).expect("read"), b"content");
        answers(place);
        succeeds(kvfs(&["txn", "commit"]).arg(place.mnt()).arg(&id));
        let at = place.mnt().join("d");
        assert_eq!(fs::read(at.join("f")).expect("read"), [b'c', 4, 4, 4, b'e', b'n', b't']);
        assert_eq!(fs::read(at.join("written")).expect("read"), b"word\n");
        assert!(fs::read(at.join("named")).is_ok() && !at.join("removed").exists());
        assert_eq!(fs::read(clone.join("d/named")).expect("read"), [0, 4, 4, 4]);
        kept.end();
    }
}

fn open_read(path: &Path) -> File {
    File::open(path).expect("opened")
}

#[test]
fn a_view_that_is_dropped_is_stale_and_one_of_its_name_is_another() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    let (place, at) = (&kept.place, kept.place.mnt());
    fs::write(at.join("f"), b"first").expect("written");
    succeeds(kvfs(&["snapshot", "create"]).arg(&at).arg("s"));
    let before = open_read(&at.join(".kvfs/snapshot/s/f"));
    assert_eq!(read(&before), b"first");
    succeeds(kvfs(&["snapshot", "drop"]).arg(&at).arg("s"));
    fs::write(at.join("f"), b"other").expect("written");
    succeeds(kvfs(&["snapshot", "create"]).arg(&at).arg("s"));
    for _ in 0..2 {
        kept.kill();
        let stale = before.metadata().expect_err("it is gone");
        assert_eq!(stale.raw_os_error(), Some(libc::ESTALE));
        assert_eq!(fs::read(at.join(".kvfs/snapshot/s/f")).expect("read"), b"other");
    }
    drop(before);
    answers(place);
    kept.end();
}

/// `st_ino` in a transaction that is seen in place of the mount is the file's own.
#[test]
fn a_durable_transaction_keeps_its_inode_numbers() {
    let numbers = |place: &Place, id: &str| {
        let of = |path: PathBuf| fs::metadata(path).expect("it is there").ino();
        let view = place.mnt().join(".kvfs/txn").join(id);
        assert_eq!(of(view.join("f")), of(place.mnt().join("f")));
        [of(view.join("f")), of(view.join("new"))]
    };
    let Some(place) = Place::new() else { return };
    place.mounted();
    fs::write(place.mnt().join("f"), b"content").expect("written");
    let id = begin(&place, &["--durable"]);
    fs::write(place.mnt().join(".kvfs/txn").join(&id).join("new"), b"new").expect("written");
    let before = numbers(&place, &id);
    succeeds(kvfs(&["mount", "--upgrade"]).arg(place.mnt()));
    assert_eq!(numbers(&place, &id), before);
    succeeds(&mut place.umount());
    succeeds(place.mount(&["-o", "keeper", "--json"]).stdin(Stdio::null()));
    assert_eq!(numbers(&place, &id), before);
    let daemon = place.pid();
    kill(daemon, Signal::KILL);
    until("there is another daemon", || !is_alive(daemon));
    assert_eq!(numbers(&place, &id), before);
    answers(&place);
    succeeds(kvfs(&["txn", "abort"]).arg(place.mnt()).arg(&id));
    until("it is unmounted", || place.umount().output().expect("kvfs runs").status.success());
}

/// A change that is made by a command, and what programs see before and after it.
struct Change {
    name: &'static str,
    /// Prepares the change on the files of [`files`]. Returns what the command needs to know.
    prepare: fn(&Kept) -> String,
    command: fn(&Kept, &str) -> Command,
    /// Paths in the mount, or in the transaction of the command, with their content before and
    /// after.
    seen: &'static [(&'static str, Content, Content)],
    /// The change is visible in the transaction.
    in_transaction: bool,
}

/// The content of a path: nothing, or a file with this text.
type Content = Option<&'static str>;

fn files(at: &Path) {
    fs::write(at.join("changed"), "one").expect("written");
    fs::write(at.join("removed"), "gone").expect("written");
    fs::create_dir(at.join("d")).expect("made");
    fs::write(at.join("d/f"), "below").expect("written");
    fs::write(at.join("linked"), "twice").expect("written");
    fs::hard_link(at.join("linked"), at.join("d/other")).expect("linked");
}

/// The files as another state has them.
fn change(at: &Path) {
    fs::write(at.join("changed"), "another").expect("written");
    fs::remove_file(at.join("removed")).expect("removed");
    fs::write(at.join("made"), "new").expect("written");
}

const CHANGED: &[(&str, Content, Content)] = &[
    ("changed", Some("one"), Some("another")),
    ("removed", Some("gone"), None),
    ("made", None, Some("new")),
];
const CHANGED_BACK: &[(&str, Content, Content)] = &[
    ("changed", Some("another"), Some("one")),
    ("removed", None, Some("gone")),
    ("made", Some("new"), None),
];

fn with_id(words: &[&str], kept: &Kept, id: &str) -> Command {
    let mut command = kvfs(words);
    command.arg(kept.place.mnt()).arg(id);
    command
}

const CHANGES: &[Change] = &[
    Change {
        name: "commit",
        prepare: |kept| {
            let id = begin(&kept.place, &["--durable"]);
            change(&kept.place.mnt().join(".kvfs/txn").join(&id));
            id
        },
        command: |kept, id| with_id(&["txn", "commit"], kept, id),
        seen: CHANGED,
        in_transaction: false,
    },
    Change {
        name: "undo",
        prepare: |kept| {
            let id = begin(&kept.place, &[]);
            change(&kept.place.mnt().join(".kvfs/txn").join(&id));
            succeeds(&mut with_id(&["txn", "commit"], kept, &id));
            String::new()
        },
        command: |kept, _| {
            let mut command = kvfs(&["undo"]);
            command.arg(kept.place.mnt());
            command
        },
        seen: CHANGED_BACK,
        in_transaction: false,
    },
    Change {
        name: "rollback",
        prepare: |kept| {
            succeeds(kvfs(&["snapshot", "create"]).arg(kept.place.mnt()).arg("s"));
            change(&kept.place.mnt());
            String::new()
        },
        command: |kept, _| {
            let mut command = kvfs(&["snapshot", "rollback"]);
            command.arg(kept.place.mnt()).arg("s");
            command
        },
        seen: CHANGED_BACK,
        in_transaction: false,
    },
    Change {
        name: "restore",
        prepare: |kept| {
            succeeds(kvfs(&["snapshot", "create"]).arg(kept.place.mnt()).arg("s"));
            change(&kept.place.mnt());
            String::new()
        },
        command: |kept, _| {
            let mut command = kvfs(&["restore"]);
            command.arg(kept.place.mnt()).args(["s", "changed", "removed"]);
            command
        },
        seen: &[
            ("changed", Some("another"), Some("one")),
            ("removed", None, Some("gone")),
            ("made", Some("new"), Some("new")),
        ],
        in_transaction: false,
    },
    Change {
        name: "clone-tree",
        prepare: |_| String::new(),
        command: |kept, _| {
            let mut command = kvfs(&["clone-tree"]);
            command.arg(kept.place.mnt().join("d")).arg(kept.place.mnt().join("copy"));
            command
        },
        seen: &[("copy/f", None, Some("below")), ("d/f", Some("below"), Some("below"))],
        in_transaction: false,
    },
    Change {
        name: "rm",
        prepare: |_| String::new(),
        command: |kept, _| {
            let mut command = kvfs(&["rm"]);
            command.arg(kept.place.mnt().join("d"));
            command
        },
        seen: &[("d/f", Some("below"), None), ("linked", Some("twice"), Some("twice"))],
        in_transaction: false,
    },
    Change {
        name: "import",
        prepare: |kept| {
            let tree = kept.place.dir.path().join("tree");
            fs::create_dir(&tree).expect("made");
            fs::write(tree.join("changed"), "another").expect("written");
            fs::write(tree.join("made"), "new").expect("written");
            String::new()
        },
        command: |kept, _| {
            let mut command = kvfs(&["import"]);
            command.arg(kept.place.mnt()).arg(kept.place.dir.path().join("tree"));
            command
        },
        seen: &[
            ("changed", Some("one"), Some("another")),
            ("made", None, Some("new")),
            ("removed", Some("gone"), Some("gone")),
        ],
        in_transaction: false,
    },
    Change {
        name: "import into a transaction",
        prepare: |kept| {
            let tree = kept.place.dir.path().join("tree");
            fs::create_dir(&tree).expect("made");
            fs::write(tree.join("changed"), "another").expect("written");
            fs::write(tree.join("made"), "new").expect("written");
            begin(&kept.place, &["--durable"])
        },
        command: |kept, id| {
            let mut command = kvfs(&["import"]);
            command.arg(kept.place.mnt().join(".kvfs/txn").join(id));
            command.arg(kept.place.dir.path().join("tree"));
            command
        },
        seen: &[("changed", Some("one"), Some("another")), ("made", None, Some("new"))],
        in_transaction: true,
    },
];

/// Returns the content of a file whose size may be changing.
fn as_it_is(file: &File) -> String {
    let mut all = vec![0; 100];
    let length = file.read_at(&mut all, 0).expect("read");
    String::from_utf8_lossy(&all[..length]).into_owned()
}

fn content(at: &Path) -> Option<String> {
    match fs::read_to_string(at) {
        Ok(content) => Some(content),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => panic!("{}: {e}", at.display()),
    }
}

/// A fault point of a build with debug assertions kills the daemon on the way.
#[test]
fn programs_see_a_change_wherever_the_daemon_is_killed() {
    for change in CHANGES {
        for (point, is_made) in [("handed over", false), ("untold", true), ("told", true)] {
            // A restore makes its first changes in a transaction of its own, which ends.
            let is_made = is_made && change.name != "restore";
            for mode in ["nowriteback", "writeback"] {
                see(change, point, is_made, mode);
            }
        }
    }
}

fn see(change: &Change, point: &str, is_made: bool, mode: &str) {
    if change.in_transaction && !is_made {
        // Before that it makes no request to the kernel.
        return;
    }
    let what = format!("{}, {point}, {mode}", change.name);
    let Some(kept) = Kept::killed_at(mode, point) else { return };
    let at = kept.place.mnt();
    files(&at);
    let id = (change.prepare)(&kept);
    let view = if change.in_transaction { at.join(".kvfs/txn").join(&id) } else { at.clone() };
    // The kernel has cached names, missing names, attributes, listings and pages of all files.
    let looks = |which: fn(&(&'static str, Content, Content)) -> Content| {
        change.seen.iter().all(|path| content(&view.join(path.0)).as_deref() == which(path))
    };
    let listed = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir)
            .expect("listed")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort();
        names
    };
    assert!(looks(|path| path.1), "{what}: before");
    let (before, links) = (listed(&view), |at: &Path| fs::metadata(at).expect("there").nlink());
    assert_eq!(links(&view.join("linked")), 2, "{what}");
    let open = open_read(&view.join("changed"));
    kept.arm();
    let said = (change.command)(&kept, &id).output().expect("kvfs runs");
    until("the daemon was killed", || kept.was_killed());
    if !is_made {
        answers(&kept.place);
        assert!(looks(|path| path.1), "{what}: as before");
        assert_eq!(listed(&view), before, "{what}");
        drop(open);
        kept.end();
        return;
    }
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    until(&format!("{what}: what was changed is seen ({said})"), || looks(|path| path.2));
    let tops = change.seen.iter().filter(|path| !path.0.contains('/'));
    for (name, _, after) in tops {
        assert_eq!(listed(&view).contains(&(*name).into()), after.is_some(), "{what}: {name}");
    }
    let left = if change.name == "rm" { 1 } else { 2 };
    until(&format!("{what}: links"), || links(&view.join("linked")) == left);
    // An import replaces files, and open files keep their content.
    let replaced = change.name.starts_with("import");
    let now = if replaced { Some("one".into()) } else { content(&view.join("changed")) };
    until(&format!("{what}: open"), || Some(as_it_is(&open)) == now);
    drop(open);
    answers(&kept.place);
    kept.end();
}

#[test]
fn a_run_says_what_became_of_it() {
    for durable in [true, false] {
        let Some(kept) = Kept::new("nowriteback") else { return };
        let (place, at) = (&kept.place, kept.place.mnt());
        let [there, go] = ["there", "go"].map(|name| place.dir.path().join(name));
        let script = format!(
            "echo inside > {}; : > {}; until test -e {}; do sleep 0.01; done",
            at.join("new").display(),
            there.display(),
            go.display()
        );
        let mut run = kvfs(&["run"]);
        run.arg(&at).args(durable.then_some("--durable")).args(["--", "sh", "-c", &script]);
        let mut run = run.stderr(Stdio::piped()).spawn().expect("kvfs");
        until("it has written", || there.exists());
        kept.kill();
        fs::write(&go, "").expect("written");
        let mut said = String::new();
        use std::io::Read;
        run.stderr.take().expect("piped").read_to_string(&mut said).expect("UTF-8");
        let ended = run.wait().expect("it is ours");
        if durable {
            assert_eq!((ended.code(), said.as_str()), (Some(0), ""));
            assert_eq!(fs::read(at.join("new")).expect("read"), b"inside\n");
        } else {
            assert_eq!(ended.code(), Some(125), "{said}");
            assert!(said.contains("the store's daemon ended while the program ran"), "{said}");
            assert!(said.contains("is gone"), "{said}");
            assert!(!at.join("new").exists());
        }
        answers(place);
        assert_eq!(succeeds(kvfs(&["txn", "list"]).arg(&at)).lines().count(), 0);
        kept.end();
    }
}

#[test]
fn a_program_that_does_not_come_to_serve_is_given_up() {
    use std::io::{BufRead, BufReader, Write};
    let Some(kept) = Kept::new("nowriteback") else { return };
    let place = &kept.place;
    let file = File::create_new(place.mnt().join("f")).expect("made");
    let program = place.dir.path().join("other");
    let fits = "#!/bin/sh\ncase \"$*\" in *--fits*) exit 0;; esac\nexit 1\n";
    install_script(&program, fits);
    // Asks as `kvfs mount --upgrade` does.
    let device = fs::metadata(place.mnt()).expect("it answers").dev();
    let path = format!("/run/kvfs/0:{}.upgrade", rustix::fs::minor(device));
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("no other asks");
    let before = kept.daemon();
    kill(before, Signal::HUP);
    let (stream, _) = listener.accept().expect("it calls");
    fs::remove_file(path).expect("removed");
    writeln!(&stream, "{}", serde_json::json!({"program": program})).expect("asked");
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).expect("answered");
    assert_eq!(answer, format!("{{\"keeper\":{}}}\n", kept.keeper));
    file.write_all_at(b"goes on", 0).expect("written");
    assert_eq!(read(&file), b"goes on");
    until("the program before serves", || {
        let after = kept.daemon();
        let program = fs::read_link(format!("/proc/{after}/exe"));
        after != before && program.is_ok_and(|it| it == Path::new(env!("CARGO_BIN_EXE_kvfs")))
    });
    drop(file);
    kept.end();
}

#[test]
fn a_mount_with_a_keeper_becomes_another_program() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    let place = &kept.place;
    fs::write(place.mnt().join("f"), b"content").expect("written");
    let id = begin(place, &["--durable"]);
    let file = open(&place.mnt().join(".kvfs/txn").join(&id).join("f"));
    file.write_all_at(b"C", 0).expect("written");
    let copy = place.dir.path().join("kvfs-new");
    install_program(&copy);
    let before = kept.daemon();
    let said = succeeds(Command::new(&copy).args(["mount", "--upgrade"]).arg(place.mnt()));
    let after = kept.daemon();
    assert!(said.starts_with(&format!("process {after} goes on with ")), "{said}");
    assert_ne!(before, after);
    let program_of = |pid| fs::read_link(format!("/proc/{pid}/exe")).expect("it runs");
    assert_eq!(program_of(after), copy);
    assert_eq!(read(&file), b"Content");
    // The next one is the new program, too, also when that has no name any more.
    fs::remove_file(&copy).expect("removed");
    kept.kill();
    file.write_all_at(b"D", 0).expect("written");
    assert_eq!(read(&file), b"Dontent");
    assert!(program_of(kept.daemon()).to_string_lossy().ends_with("kvfs-new (deleted)"));
    // The obstacle is reported, and nothing changes.
    answers(place);
    let passing = begin(place, &[]);
    let said = fails(4, kvfs(&["mount", "--upgrade"]).arg(place.mnt()));
    assert!(said.contains(&format!("with the process that serves them: {passing}\n")), "{said}");
    succeeds(kvfs(&["txn", "abort"]).arg(place.mnt()).arg(&passing));
    succeeds(kvfs(&["mount", "--upgrade"]).arg(place.mnt()));
    assert_eq!(program_of(kept.daemon()), Path::new(env!("CARGO_BIN_EXE_kvfs")));
    answers(place);
    succeeds(kvfs(&["txn", "commit"]).arg(place.mnt()).arg(&id));
    assert_eq!(fs::read(place.mnt().join("f")).expect("read"), b"Dontent");
    drop(file);
    kept.end();
}
