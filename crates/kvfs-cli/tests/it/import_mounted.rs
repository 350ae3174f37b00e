//! Tests of `kvfs import` into a mounted store. Its result equals that of tar(1), and appears all
//! at once or not at all.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::place::{Place, fails, kill, kvfs, succeeds, until};
use crate::tree::{make, same};
use rustix::process::{Pid, Signal};

fn import(p: &Place, to: &str, from: &Path) -> Command {
    let mut command = kvfs(&["import"]);
    command
        .arg(p.mnt().join(to))
        .arg(from)
        .stdin(Stdio::null())
        .env_remove("KVFS_TXN")
        .env_remove("KVFS_SOCKET");
    command
}

fn tar(of: &Path) -> std::path::PathBuf {
    let to = of.with_extension("tar");
    let made = Command::new("tar")
        .arg("--xattrs")
        .arg("--format=posix")
        .arg("-cf")
        .arg(&to)
        .arg("-C")
        .arg(of)
        .arg(".")
        .status();
    assert!(made.expect("tar runs").success());
    to
}

/// Takes away what a daemon that was killed has left.
fn gone(p: &Place) {
    // The command reports that the daemon was killed.
    let _ = kvfs(&["umount", "--force"]).arg(p.mnt()).output().expect("kvfs runs");
    assert!(p.entry().is_none(), "it is mounted");
}

#[test]
fn a_directory_and_a_tar_are_there_as_they_were() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let tree = p.dir.path().join("tree");
    make(&tree);
    // The kernel knows that there is nothing.
    assert!(!p.mnt().join("directory").exists());
    succeeds(&mut import(&p, "directory", &tree));
    same(&tree, &p.mnt().join("directory"));
    let said = succeeds(import(&p, "", &tar(&tree)).args(["--to", "made/on/the way", "--json"]));
    let counts: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(
        (counts["files"].as_u64(), counts["directories"].as_u64(), counts["hard_links"].as_u64()),
        (Some(303), Some(3), Some(1))
    );
    same(&tree, &p.mnt().join("made/on/the way"));
    let mut value = [0; 10];
    let len = rustix::fs::getxattr(p.mnt().join("directory/small"), "user.kept", &mut value[..])
        .expect("getxattr");
    assert_eq!(&value[..len], b"value");
    let sparse = fs::metadata(p.mnt().join("directory/sparse")).expect("stat");
    assert!(sparse.blocks() < 100, "{} blocks", sparse.blocks());
    // Imports from standard input over existing files: directories stay, and files are replaced.
    fs::write(p.mnt().join("directory/sub/own"), "own").expect("write");
    fs::write(p.mnt().join("directory/sub/f3"), "changed").expect("write");
    let open = fs::File::open(p.mnt().join("directory/small")).expect("open");
    let stream = fs::File::open(tree.with_extension("tar")).expect("open");
    succeeds(import(&p, "directory", Path::new("-")).stdin(stream));
    assert_eq!(fs::read_to_string(p.mnt().join("directory/sub/own")).expect("read"), "own");
    assert_eq!(
        open.metadata().expect("stat").nlink(),
        0,
        "what was replaced is open without a name"
    );
    fs::remove_file(p.mnt().join("directory/sub/own")).expect("unlink");
    assert!(
        Command::new("diff")
            .arg("-r")
            .args([&tree, &p.mnt().join("directory")])
            .status()
            .expect("diff runs")
            .success()
    );
    // The import names the store's file, and is on disk after a kill.
    succeeds(kvfs(&["import"]).arg(p.store()).arg(&tree).args(["--to", "/by file"]));
    kill(p.pid(), Signal::KILL);
    gone(&p);
    p.mounted();
    same(&tree, &p.mnt().join("by file"));
    succeeds(&mut p.umount());
    succeeds(kvfs(&["check"]).arg(p.store()));
}

#[test]
fn of_an_archive_that_is_missing_its_name_is_said_in_either_order() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let missing = p.dir.path().join("missing.tar");
    for (first, second) in [(&missing, &p.mnt()), (&p.mnt(), &missing)] {
        let ended = kvfs(&["import"]).arg(first).arg(second).output().expect("kvfs runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(3), "{said}");
        assert!(said.contains("missing.tar") && said.contains("No such file"), "{said}");
    }
}

#[test]
fn in_a_transaction_it_is_part_of_that() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let tree = p.dir.path().join("tree");
    make(&tree);
    let begin = || succeeds(kvfs(&["txn", "begin"]).arg(p.mnt())).trim().to_string();
    let id = begin();
    succeeds(&mut import(&p, &format!(".kvfs/txn/{id}/new"), &tree));
    same(&tree, &p.mnt().join(".kvfs/txn").join(&id).join("new"));
    assert!(!p.mnt().join("new").exists());
    succeeds(kvfs(&["txn", "abort"]).arg(p.mnt()).arg(&id));
    assert!(!p.mnt().join("new").exists());
    let id = begin();
    succeeds(&mut import(&p, &format!(".kvfs/txn/{id}"), &tree));
    succeeds(kvfs(&["txn", "commit"]).arg(p.mnt()).arg(&id));
    same(&tree.join("sub"), &p.mnt().join("sub"));
    let script = format!(
        "{} import {1}/run {2} && test -e {1}/run/small",
        env!("CARGO_BIN_EXE_kvfs"),
        p.mnt().display(),
        tree.display()
    );
    fails(1, kvfs(&["run"]).arg(p.mnt()).args(["--", "sh", "-c", &format!("{script}; exit 1")]));
    assert!(!p.mnt().join("run").exists());
    succeeds(kvfs(&["run"]).arg(p.mnt()).args(["--", "sh", "-c", &script]));
    same(&tree, &p.mnt().join("run"));
    // Importing into a snapshot is refused.
    succeeds(kvfs(&["snapshot", "create"]).arg(p.mnt()).arg("s"));
    let said = fails(2, &mut import(&p, ".kvfs/snapshot/s/x", &tree));
    assert!(said.contains("snapshot s"), "{said}");
    assert!(!p.mnt().join(".kvfs/snapshot/s/x").exists());
    // Another program has created the same name in between.
    let id = begin();
    succeeds(&mut import(&p, &format!(".kvfs/txn/{id}/both"), &tree));
    fs::write(p.mnt().join("both"), "theirs").expect("write");
    fails(8, kvfs(&["txn", "commit"]).arg(p.mnt()).arg(&id));
    assert_eq!(fs::read_to_string(p.mnt().join("both")).expect("read"), "theirs");
}

/// The names in the root, and the open transactions.
fn left(p: &Place) -> (usize, usize) {
    let open = succeeds(kvfs(&["--json", "txn", "list"]).arg(p.mnt()));
    let open = open.lines().filter(|line| line.contains("\"id\"")).count();
    (fs::read_dir(p.mnt()).expect("list").count(), open)
}

#[test]
fn what_fails_leaves_nothing() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let tree = p.dir.path().join("tree");
    make(&tree);
    let whole = fs::read(tar(&tree)).expect("read");
    let cut = p.dir.path().join("cut.tar");
    for len in [whole.len() / 2, whole.len() - 3000, 700] {
        fs::write(&cut, &whole[..len]).expect("write");
        let ended = import(&p, "new", &cut).output().expect("it runs");
        // A stream may end between two entries, which cannot be detected.
        if !ended.status.success() {
            assert_eq!(left(&p), (0, 0), "{len} bytes");
        } else {
            succeeds(kvfs(&["rm"]).arg(p.mnt().join("new")));
            assert_eq!(p.ask(&["SYNC"]), "OK");
        }
    }
    // The client ends in the middle.
    let mut client =
        import(&p, "new", Path::new("-")).stdin(Stdio::piped()).spawn().expect("it runs");
    let mut pipe = client.stdin.take().expect("a pipe");
    pipe.write_all(&whole[..2_500_000]).expect("written");
    until("it has begun", || left(&p).1 == 1);
    assert_eq!(left(&p).0, 0, "nothing is seen before the end");
    rustix::process::kill_process(Pid::from_child(&client), Signal::KILL).expect("kill");
    client.wait().expect("it ends");
    drop(pipe);
    until("what it had sent is gone", || left(&p).1 == 0);
    // The daemon ends.
    let mut client = import(&p, "new", Path::new("-"))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut pipe = client.stdin.take().expect("a pipe");
    pipe.write_all(&whole[..2_500_000]).expect("written");
    until("it has begun", || left(&p).1 == 1);
    kill(p.pid(), Signal::KILL);
    let _ = pipe.write_all(&whole[2_500_000..]);
    drop(pipe);
    let Output { status, .. } = client.wait_with_output().expect("it ends");
    assert!(!status.success());
    gone(&p);
    p.mounted();
    assert_eq!(left(&p), (0, 0));
    // A directory that the store itself lies in.
    let sibling = p.dir.path().join("sibling");
    fs::create_dir(&sibling)
        .and_then(|()| fs::hard_link(p.store(), sibling.join("store")))
        .expect("made");
    fs::write(sibling.join("file"), "file").expect("write");
    let said = succeeds(&mut import(&p, "new", &sibling));
    assert!(said.contains("1 skipped") && p.mnt().join("new/file").exists(), "{said}");
    assert!(!p.mnt().join("new/store").exists());
    succeeds(kvfs(&["rm"]).arg(p.mnt().join("new")));
    // Into itself.
    fs::create_dir(p.mnt().join("a")).expect("mkdir");
    let said = fails(2, &mut import(&p, "a/b", &p.mnt().join("a")));
    assert!(said.contains("which is to be copied"), "{said}");
    assert_eq!(left(&p), (1, 0));
}

#[test]
fn a_full_store_says_so_and_is_as_it_was() {
    let Some(p) = Place::new() else { return };
    fs::remove_file(p.store()).expect("unlink");
    succeeds(kvfs(&["create", "--size", "160M"]).arg(p.store()));
    p.mounted();
    let tree = p.dir.path().join("tree");
    fs::create_dir(&tree).expect("mkdir");
    (0..200).for_each(|n| {
        fs::write(tree.join(format!("f{n}")), vec![n as u8; 1 << 20]).expect("write")
    });
    fails(6, &mut import(&p, "new", &tree));
    assert_eq!(left(&p), (0, 0));
    fs::write(p.mnt().join("fits"), vec![1; 1 << 20]).expect("write");
    fs::File::open(p.mnt().join("fits")).and_then(|file| file.sync_all()).expect("synced");
}

/// The daemon does not trust a client of the socket.
#[test]
fn entries_that_lead_elsewhere_or_make_no_sense_are_refused() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let mut conversation =
        kvdb_server::Client::connect(&p.store().with_extension("kvfs.sock")).expect("connected");
    let mut say = |words: &[&[u8]]| match conversation.call(words).expect("a reply") {
        kvdb_server::Reply::Error(text) => Err(text),
        reply => Ok(format!("{reply:?}")),
    };
    let meta = [0u8; 2 + 4 + 4 + 12 + 1 + 12 + 4];
    let named =
        |kind: u8, path: &[u8]| [&[kind][..], &(path.len() as u32).to_le_bytes(), path].concat();
    let directory = |path: &[u8]| [&named(b'd', path)[..], &meta].concat();
    let file = |path: &[u8]| [&named(b'f', path)[..], &5u64.to_le_bytes(), &meta].concat();
    let link = |path: &[u8], to: &[u8]| {
        [&named(b'h', path)[..], &(to.len() as u32).to_le_bytes(), to].concat()
    };
    let symlink = |path: &[u8], to: &[u8]| {
        [&named(b'l', path)[..], &(to.len() as u32).to_le_bytes(), to, &meta].concat()
    };
    let through = [symlink(b"way", b"/"), directory(b"way/x")].concat();
    let cases: [(&[u8], &str); 11] = [
        (b"x", "not well formed"),
        (b"d\xff\xff\xff\xff", "not well formed"),
        (&directory(b"../up"), "leads out"),
        (&directory(b"a/../../up"), "leads out"),
        (&file(b".kvfs/x"), "views"),
        (&directory(b"a\0b"), "NUL"),
        (&through, "symlink"),
        (&link(b"here", b"../../etc"), "leads out"),
        (&link(b"here", b"none"), "no such file"),
        (b"+\0\0\0\0\0\0\0\0\x01\0\0\0x", "no order"),
        (&[file(b"one"), file(b"two")].concat(), "no order"),
    ];
    for (entries, why) in cases {
        say(&[b"IMPORT", b"BEGIN", b"/"]).expect("begun");
        let error = say(&[b"IMPORT", b"ADD", entries]).expect_err("refused");
        assert!(error.contains(why), "{}: {error}, not {why}", entries.escape_ascii());
        let error = say(&[b"IMPORT", b"ADD", &directory(b"good")]).expect_err("it is over");
        assert!(error.contains("no import"), "{error}");
    }
    // Tests a truncated file, the limit of one import at a time, and an invalid transaction.
    say(&[b"IMPORT", b"BEGIN", b"/"]).expect("begun");
    say(&[b"IMPORT", b"BEGIN", b"/"]).expect_err("one at a time");
    say(&[b"IMPORT", b"ADD", &file(b"one")]).expect("taken");
    assert!(say(&[b"IMPORT", b"END"]).expect_err("refused").contains("without its end"));
    assert!(say(&[b"IMPORT", b"BEGIN", b"/", b"TXN", b"99"]).is_err());
    assert!(say(&[b"IMPORT", b"BEGIN", b"/../x"]).expect_err("refused").contains("leads out"));
    assert!(say(&[b"IMPORT", b"BEGIN", b"/.kvfs/x"]).expect_err("refused").contains("views"));
    say(&[b"IMPORT", b"BEGIN", b"/made"]).expect("begun");
    say(&[b"IMPORT", b"DROP"]).expect("dropped");
    assert_eq!(left(&p), (0, 0));
}

#[test]
fn another_user_imports_nothing() {
    let Some(p) = Place::new() else { return };
    succeeds(&mut p.mount(&["-o", "allow_other"]));
    fs::set_permissions(p.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("chmod");
    fs::set_permissions(p.mnt(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("chmod");
    let mut other = Command::new("setpriv");
    other.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        env!("CARGO_BIN_EXE_kvfs"),
        "import",
    ]);
    let out = other
        .arg(p.mnt().join("x"))
        .arg("/etc/hostname")
        .stdin(Stdio::null())
        .output()
        .expect("setpriv runs");
    assert!(!out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    assert_eq!(left(&p), (0, 0));
}
