//! Tests that `ls`, `cat` and `stat` show the same of a mounted store as of an unmounted one.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::place::{Place, fails, kvfs, succeeds};
use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags};

fn fill(mnt: &Path) {
    fs::create_dir_all(mnt.join("a/b/c")).expect("directories");
    fs::write(mnt.join("a/file"), "content\n").expect("a file");
    fs::write(mnt.join("a/b/large"), vec![b'x'; 3 << 20]).expect("a file");
    // (Of a file that is nothing but a hole a mount says that it has one block.)
    fs::write(mnt.join("sparse"), "x").expect("a file");
    let sparse = fs::File::options().write(true).open(mnt.join("sparse")).expect("a file");
    sparse.set_len(1 << 30).expect("longer");
    fs::write(mnt.join(OsStr::from_bytes(b"\xff\nodd")), "odd\n").expect("a file");
    fs::write(mnt.join("-l"), "dash\n").expect("a file");
    fs::hard_link(mnt.join("a/file"), mnt.join("linked")).expect("a link");
    symlink("a/file", mnt.join("relative")).expect("a link");
    symlink("/a/b", mnt.join("absolute")).expect("a link");
    symlink("/../../etc", mnt.join("out")).expect("a link");
    symlink("nowhere", mnt.join("dangling")).expect("a link");
    symlink("circle", mnt.join("circle")).expect("a link");
    rustix::fs::mknodat(CWD, mnt.join("fifo"), FileType::Fifo, Mode::RUSR, 0).expect("a fifo");
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(CWD, mnt.join("null"), FileType::CharacterDevice, Mode::RUSR, null)
        .expect("a device");
    fs::set_permissions(mnt.join("a/file"), fs::Permissions::from_mode(0o4751)).expect("a mode");
    rustix::fs::setxattr(mnt.join("a/file"), "user.note", b"v", XattrFlags::empty()).expect("set");
}

/// The words before the target and the words after it.
fn commands() -> Vec<(Vec<OsString>, Vec<OsString>)> {
    let words = |words: &[&[u8]]| words.iter().map(|w| OsStr::from_bytes(w).into()).collect();
    let mut all = Vec::new();
    for options in
        [&[&b"ls"[..]][..], &[b"ls", b"-l"], &[b"ls", b"-lR"], &[b"ls", b"-R", b"--json"]]
    {
        for path in [&b"/"[..], b"a", b"/a/b/", b"absolute", b"a/file", b"relative", b"fifo"] {
            all.push((words(options), words(&[path])));
        }
        all.push((words(options), words(&[])));
    }
    for options in [&[&b"stat"[..]][..], &[b"stat", b"--json"]] {
        for path in [
            &b"/"[..],
            b"a",
            b"a/file",
            b"linked",
            b"relative",
            b"absolute/large",
            b"fifo",
            b"null",
            b"sparse",
            b"\xff\nodd",
            b"dangling",
        ] {
            all.push((words(options), words(&[path])));
        }
    }
    for path in [&b"a/file"[..], b"/relative", b"absolute/large", b"\xff\nodd", b"./a/./file"] {
        all.push((words(&[b"cat"]), words(&[path])));
    }
    all
}

/// Returns the output of a command without the time of birth, which a mount does not report.
fn run(before: &[OsString], target: &Path, behind: &[OsString]) -> String {
    let said = succeeds(kvfs(&[]).args(before).arg(target).args(behind));
    if !before.contains(&"--json".into()) {
        return said
            .lines()
            .filter(|line| !line.starts_with("  made "))
            .map(|l| format!("{l}\n"))
            .collect();
    }
    let mut value: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let objects = match &mut value {
        serde_json::Value::Array(all) => all.iter_mut().collect(),
        one => vec![one],
    };
    for object in objects {
        object.as_object_mut().expect("an object").remove("btime");
    }
    value.to_string()
}

#[test]
fn a_mounted_store_shows_what_it_shows_unmounted() {
    let Some(place) = Place::new() else { return };
    // Reading is not to change what is shown.
    succeeds(&mut place.mount(&["-o", "noatime"]));
    fill(&place.mnt());
    // The stored size of a file is known after a sync.
    place.ask(&["SYNC"]);
    let shown: Vec<String> = commands()
        .iter()
        .map(|(before, behind)| {
            let by_directory = run(before, &place.mnt(), behind);
            assert_eq!(run(before, &place.store(), behind), by_directory, "{before:?} {behind:?}");
            by_directory
        })
        .collect();
    succeeds(&mut place.umount());
    for ((before, behind), shown) in commands().iter().zip(shown) {
        assert_eq!(shown, run(before, &place.store(), behind), "{before:?} {behind:?}");
        assert!(!shown.is_empty() || behind == &["/a/b/c"], "{before:?} {behind:?}");
    }
}

#[test]
fn views_and_directories_of_a_mount_are_targets_too() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    fill(&place.mnt());
    succeeds(kvfs(&["snapshot", "create"]).arg(place.mnt()).arg("s"));
    fs::write(place.mnt().join("a/file"), "newer\n").expect("written");
    let id = succeeds(kvfs(&["txn", "begin"]).arg(place.mnt()));
    let hidden = place.mnt().join(".kvfs");
    let txn = hidden.join("txn").join(id.trim());
    fs::write(txn.join("a/file"), "inside\n").expect("written");
    for (target, path, want) in [
        (hidden.join("snapshot/s"), "a/file", "content\n"),
        (hidden.join("snapshot/s/a"), "file", "content\n"),
        (hidden.join("snapshot/s"), "relative", "content\n"),
        (txn, "relative", "inside\n"),
        (place.mnt().join("a"), "file", "newer\n"),
        (place.mnt().join("a"), "../relative", "newer\n"),
    ] {
        let said = succeeds(kvfs(&["cat"]).arg(&target).arg(path));
        assert_eq!(said, want, "{} {path}", target.display());
    }
    // An absolute link begins at the root of its view, not of the machine or of the directory.
    let below = succeeds(kvfs(&["ls"]).arg(hidden.join("snapshot/s/a")).arg("../absolute"));
    assert_eq!(below, "c\nlarge\n");
    fails(2, kvfs(&["ls"]).arg(hidden.join("snapshot")));
}

#[test]
fn no_path_leads_out_of_a_mounted_store() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    fill(&place.mnt());
    fs::write(place.dir.path().join("secret"), "secret").expect("a file");
    for path in ["../secret", "/../secret", "a/../../secret", "out/passwd", "/etc/passwd"] {
        fails(3, kvfs(&["cat"]).arg(place.mnt()).arg(path));
        fails(3, kvfs(&["stat"]).arg(place.mnt()).arg(path));
    }
    fails(3, kvfs(&["cat"]).arg(place.mnt()).arg("dangling"));
    fails(3, kvfs(&["ls"]).arg(place.mnt()).arg("none"));
    fails(1, kvfs(&["cat"]).arg(place.mnt()).arg("circle"));
    for other in ["a", "fifo", "null"] {
        let said = fails(1, kvfs(&["cat"]).arg(place.mnt()).arg(other));
        assert!(said.contains("cannot print"), "{said}");
    }
}

#[test]
fn a_mounted_store_is_checked_by_its_daemon() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    fill(&place.mnt());
    succeeds(kvfs(&["kv", "put"]).arg(place.mnt()).args(["key", "value"]));
    let json = |target: &Path| -> serde_json::Value {
        let said = succeeds(kvfs(&["check", "--json"]).arg(target));
        serde_json::from_str(&said).expect("JSON")
    };
    let by_directory = json(&place.mnt());
    assert_eq!(json(&place.store())["files"], by_directory["files"]);
    assert_eq!(
        (&by_directory["clean"], &by_directory["journal_records"]),
        (&true.into(), &().into())
    );
    let text = succeeds(kvfs(&["check"]).arg(place.mnt()));
    assert!(text.contains(": clean; ") && text.contains("4 directories, "), "{text}");
    let said = fails(4, kvfs(&["check", "--repair", "--yes"]).arg(place.mnt()));
    assert!(said.contains("is mounted"), "{said}");
    fails(2, kvfs(&["check"]).arg(place.mnt().join(".kvfs/snapshot")));
    fails(3, kvfs(&["check"]).arg(place.dir.path()));
    succeeds(&mut place.umount());
    assert_eq!(json(&place.store())["files"], by_directory["files"], "it is what it is unmounted");
}

#[test]
fn a_mounted_tree_that_is_deeper_than_a_path_is_long_is_listed_whole() {
    const LEVELS: usize = 60;
    let Some(place) = Place::new() else { return };
    place.mounted();
    let name = "d".repeat(200);
    let way = OFlags::PATH | OFlags::DIRECTORY;
    let mut at = rustix::fs::open(place.mnt(), way, Mode::empty()).expect("the mount");
    for _ in 0..LEVELS {
        rustix::fs::mkdirat(&at, &*name, Mode::RWXU).expect("a directory");
        at = rustix::fs::openat(&at, &*name, way, Mode::empty()).expect("it is there");
    }
    rustix::fs::symlinkat("nowhere", &at, "link").expect("a link");
    drop(at);
    for options in ["-R", "-lR"] {
        let listed = succeeds(kvfs(&["ls", options]).arg(place.mnt()));
        assert_eq!(listed.lines().count(), LEVELS + 1, "{options}");
        assert!(listed.contains(&format!("{name}/link")), "{options}");
    }
}
