//! Tests of `kvfs rm`. It has the result of `rm -rf` in one commit, on mounted and unmounted
//! stores.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::place::{Place, fails, kill, kvfs, succeeds};
use rustix::process::Signal;

/// A directory with every kind of file.
fn make(at: &Path) {
    fs::create_dir_all(at.join("sub/empty")).expect("mkdir");
    fs::write(at.join("small"), "small").expect("write");
    fs::write(at.join("sub/large"), vec![7; 300_000]).expect("write");
    fs::hard_link(at.join("sub/large"), at.join("link")).expect("link");
    symlink("sub/large", at.join("symlink")).expect("symlink");
    symlink("/nowhere", at.join("dangling")).expect("symlink");
    (0..200).for_each(|n| fs::write(at.join(format!("sub/f{n}")), n.to_string()).expect("write"));
}

/// Paths below, kinds, sizes and links, as find(1) tells them.
fn found(at: &Path) -> Vec<String> {
    let out =
        Command::new("find").arg(at).args(["-printf", "%P %y %n\n"]).output().expect("find runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut lines: Vec<_> =
        String::from_utf8_lossy(&out.stdout).lines().map(String::from).collect();
    lines.sort();
    lines
}

fn rm(paths: &[&Path]) -> Command {
    let mut command = kvfs(&["rm"]);
    command.args(paths).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

/// Takes away what a daemon that was killed has left.
fn gone(p: &Place) {
    // The command reports that the daemon was killed.
    let _ = kvfs(&["umount", "--force"]).arg(p.mnt()).output().expect("kvfs runs");
    assert!(p.entry().is_none(), "it is mounted");
}

#[test]
fn it_leaves_what_rm_leaves() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let host = tempfile::tempdir().expect("a directory");
    for at in [p.mnt(), host.path().to_path_buf()] {
        make(&at.join("tree"));
        make(&at.join("other"));
        fs::hard_link(at.join("tree/sub/f7"), at.join("outside")).expect("link");
    }
    // The kernel knows all of it.
    assert_eq!(found(&p.mnt()), found(host.path()));
    let said = succeeds(&mut rm(&[
        &p.mnt().join("tree"),
        &p.mnt().join("other/symlink"),
        &p.mnt().join("other/sub"),
    ]));
    assert!(said.contains("directories") && said.contains("files"), "{said}");
    let gone = ["tree", "other/symlink", "other/sub"].map(|name| host.path().join(name));
    assert!(Command::new("rm").arg("-rf").args(gone).status().expect("rm runs").success());
    assert_eq!(found(&p.mnt()), found(host.path()));
    assert_eq!(fs::read_to_string(p.mnt().join("outside")).expect("read"), "7");
    assert_eq!(fs::metadata(p.mnt().join("outside")).expect("stat").nlink(), 1);
    // The removed names can be made again at once.
    fs::create_dir(p.mnt().join("tree")).expect("mkdir");
    assert_eq!(fs::read_dir(p.mnt().join("tree")).expect("list").count(), 0);
    // The removal is on disk after an unmount.
    succeeds(&mut p.umount());
    p.mounted();
    assert!(!p.mnt().join("other/sub").exists());
    assert!(succeeds(kvfs(&["umount"]).arg(p.mnt())).contains("unmounted"));
    succeeds(kvfs(&["check"]).arg(p.store()));
}

#[test]
fn counts_are_told_in_json() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    make(&p.mnt().join("tree"));
    let said = succeeds(rm(&[&p.mnt().join("tree")]).arg("--json"));
    let value: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let bytes: u64 = 300_005 + (0..200).map(|n: u32| n.to_string().len() as u64).sum::<u64>();
    assert_eq!(value, serde_json::json!({"files": 205, "directories": 3, "bytes": bytes}));
}

#[test]
fn what_is_open_goes_on_and_a_working_directory_is_empty() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    make(&p.mnt().join("tree"));
    let mut large = fs::File::options()
        .read(true)
        .write(true)
        .open(p.mnt().join("tree/sub/large"))
        .expect("open");
    let small = fs::File::open(p.mnt().join("tree/small")).expect("open");
    let mut inside = Command::new("sh");
    let script = "read go; ls -A | wc -l; mkdir new 2>/dev/null || echo refused; cat f3 2>/dev/null || echo gone";
    inside.args(["-c", script]).current_dir(p.mnt().join("tree/sub"));
    let mut inside = inside.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh runs");
    succeeds(&mut rm(&[&p.mnt().join("tree")]));
    assert!(!p.mnt().join("tree").exists());
    let mut all = Vec::new();
    large.read_to_end(&mut all).expect("read");
    assert_eq!(all, vec![7; 300_000]);
    large.write_all_at(b"changed", 100_000).expect("write");
    let mut piece = [0; 7];
    large.read_exact_at(&mut piece, 100_000).expect("read");
    assert_eq!((&piece, large.metadata().expect("stat").nlink()), (b"changed", 0));
    assert_eq!(small.metadata().expect("stat").nlink(), 0);
    drop(inside.stdin.take());
    let said = inside.wait_with_output().expect("sh ends").stdout;
    assert_eq!(
        String::from_utf8_lossy(&said).split_whitespace().collect::<Vec<_>>(),
        ["0", "refused", "gone"]
    );
}

#[test]
fn in_a_transaction_it_is_part_of_that() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    make(&p.mnt().join("tree"));
    let begin = || succeeds(kvfs(&["txn", "begin"]).arg(p.mnt())).trim().to_string();
    let id = begin();
    let view = p.mnt().join(".kvfs/txn").join(&id);
    succeeds(&mut rm(&[&view.join("tree")]));
    assert!(!view.join("tree").exists() && p.mnt().join("tree/sub/f3").exists());
    succeeds(kvfs(&["txn", "abort"]).arg(p.mnt()).arg(&id));
    assert_eq!(found(&p.mnt().join("tree")).len(), 208);
    let id = begin();
    succeeds(&mut rm(&[&p.mnt().join(".kvfs/txn").join(&id).join("tree")]));
    succeeds(kvfs(&["txn", "commit"]).arg(p.mnt()).arg(&id));
    assert!(!p.mnt().join("tree").exists());

    // In `kvfs run` the paths are the same.
    make(&p.mnt().join("tree"));
    let script = format!(
        "{} rm {}/tree && test ! -e {1}/tree",
        env!("CARGO_BIN_EXE_kvfs"),
        p.mnt().display()
    );
    fails(1, kvfs(&["run"]).arg(p.mnt()).args(["--", "sh", "-c", &format!("{script}; exit 1")]));
    assert_eq!(found(&p.mnt().join("tree")).len(), 208);
    succeeds(kvfs(&["run"]).arg(p.mnt()).args(["--", "sh", "-c", &script]));
    assert!(!p.mnt().join("tree").exists());

    // Others have changed the same files, so only one of the two changes succeeds.
    make(&p.mnt().join("tree"));
    let id = begin();
    succeeds(&mut rm(&[&p.mnt().join(".kvfs/txn").join(&id).join("tree")]));
    fs::write(p.mnt().join("tree/sub/new"), "new").expect("write");
    fails(8, kvfs(&["txn", "commit"]).arg(p.mnt()).arg(&id));
    assert_eq!(fs::read_to_string(p.mnt().join("tree/sub/new")).expect("read"), "new");
}

#[test]
fn what_must_stay_is_refused_with_a_sentence() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    make(&p.mnt().join("tree"));
    succeeds(kvfs(&["snapshot", "create"]).arg(p.mnt()).arg("s"));
    let id = succeeds(kvfs(&["txn", "begin"]).arg(p.mnt())).trim().to_string();
    let before = found(&p.mnt());
    let refused = |path: &str, code: i32, why: &str| {
        let said = fails(code, &mut rm(&[&p.mnt().join(path)]));
        assert!(said.contains(why), "{path}: {said}");
    };
    refused("", 4, "mount point");
    refused("tree/..", 2, "names no entry");
    refused("tree/.", 2, "names no entry");
    refused(".kvfs", 2, "view");
    refused(".kvfs/txn", 2, "view");
    refused(&format!(".kvfs/txn/{id}"), 1, "the root stays");
    refused(".kvfs/snapshot/s/tree", 2, "snapshot s");
    refused("none", 3, "none");
    let said = fails(3, &mut rm(&[Path::new("/etc/passwd")]));
    assert!(said.contains("no store"), "{said}");
    succeeds(rm(&[&p.mnt().join("none")]).arg("--force"));
    // A mount within the tree would be detached with it.
    let mount = |words: &[&str]| {
        Command::new(words[0]).args(&words[1..]).status().is_ok_and(|s| s.success())
    };
    let at = p.mnt().join("tree/sub/empty").display().to_string();
    assert!(mount(&["mount", "-t", "tmpfs", "none", &at]), "tests mount as root does");
    refused("tree", 4, "mount point");
    refused("tree/sub/empty", 4, "mount point");
    // The daemon checks this, too, whichever client asks.
    let asked = std::panic::catch_unwind(|| p.ask(&["RMTREE", "/tree"]));
    let unmounted = mount(&["umount", &at]);
    let why = *asked.expect_err("refused").downcast::<String>().expect("a sentence");
    assert!(why.contains("mount point") && unmounted, "{why}");
    assert_eq!(found(&p.mnt()), before);
    succeeds(kvfs(&["txn", "abort"]).arg(p.mnt()).arg(&id));
    // If one of several paths fails, the others are removed nevertheless.
    fails(3, &mut rm(&[&p.mnt().join("none"), &p.mnt().join("tree")]));
    assert!(!p.mnt().join("tree").exists());
    assert!(p.mnt().join(".kvfs/snapshot/s/tree/sub/f3").exists(), "a snapshot has what it had");
}

#[test]
fn after_a_kill_it_is_there_whole_or_gone() {
    let Some(p) = Place::new() else { return };
    let mut pid = p.mounted();
    make(&p.mnt().join("tree"));
    rustix::fs::syncfs(fs::File::open(p.mnt()).expect("open")).expect("synced");
    for pause in [0, 1, 3, 10, 100] {
        if !p.mnt().join("tree").exists() {
            make(&p.mnt().join("tree"));
            assert_eq!(p.ask(&["SYNC"]), "OK");
        }
        let removing =
            rm(&[&p.mnt().join("tree")]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut removing = removing.expect("it runs");
        std::thread::sleep(std::time::Duration::from_millis(pause));
        kill(pid, Signal::KILL);
        removing.wait().expect("it ends");
        gone(&p);
        pid = p.mounted();
        if p.mnt().join("tree").exists() {
            assert_eq!(found(&p.mnt().join("tree")).len(), 208, "after {pause} ms");
        }
    }
    // The removal of synced files is durable.
    succeeds(rm(&[&p.mnt().join("tree")]).arg("--force"));
    assert_eq!(p.ask(&["SYNC"]), "OK");
    kill(pid, Signal::KILL);
    gone(&p);
    p.mounted();
    assert_eq!(fs::read_dir(p.mnt()).expect("list").count(), 0);
}

#[test]
fn a_store_that_is_not_mounted() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, tree) = (dir.path().join("s.kvfs"), dir.path().join("tree"));
    make(&tree);
    succeeds(kvfs(&["create"]).arg(&store));
    succeeds(kvfs(&["import"]).arg(&store).arg(&tree).args(["--to", "/a/tree"]));
    let said =
        succeeds(kvfs(&["rm", "--store"]).arg(&store).args(["/a/tree/sub", "a/tree/symlink"]));
    assert!(said.contains("2 directories"), "{said}");
    assert_eq!(
        succeeds(kvfs(&["ls"]).arg(&store).arg("/a/tree")).split_whitespace().collect::<Vec<_>>(),
        ["dangling", "link", "small"]
    );
    for (path, code) in [("/", 1), ("/a/../a", 1), ("/none", 3), ("/a/tree/dangling/x", 1)] {
        fails(code, kvfs(&["rm", "--store"]).arg(&store).arg(path));
    }
    succeeds(kvfs(&["rm", "--store"]).arg(&store).arg("/a"));
    assert_eq!(succeeds(kvfs(&["ls"]).arg(&store)), "");
    succeeds(kvfs(&["check"]).arg(&store));
}

/// Only the owner and root can use the socket, so no other user can remove files through it.
#[test]
fn another_user_removes_nothing() {
    let Some(p) = Place::new() else { return };
    succeeds(&mut p.mount(&["-o", "allow_other"]));
    make(&p.mnt().join("tree"));
    fs::set_permissions(p.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("chmod");
    let mut other = Command::new("setpriv");
    other
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            env!("CARGO_BIN_EXE_kvfs"),
            "rm",
        ])
        .arg(p.mnt().join("tree"));
    let out = other.stdin(Stdio::null()).output().expect("setpriv runs");
    assert!(!out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    assert_eq!(found(&p.mnt().join("tree")).len(), 208);
}
