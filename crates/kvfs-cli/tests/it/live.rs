//! Tests of outside events that affect a mounted store: a second daemon, a store that is truncated,
//! removed or replaced under its daemon, a hidden mount point, and a full host. Each is reported in
//! a sentence, and no synced data is lost where it can be kept.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::place::{Place, fails, is_alive, kill, kvfs, succeeds, text, until};
use rustix::process::Signal;

fn synced(path: &Path, data: &[u8]) {
    File::create(path)
        .and_then(|mut f| f.write_all(data).and_then(|()| f.sync_all()))
        .expect("synced");
}

fn content(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| ((i * 31 + i / 251 + seed * 7) % 251) as u8).collect()
}

#[test]
fn a_store_has_one_daemon_whatever_name_it_is_given() {
    let Some(p) = Place::new() else { return };
    let pid = p.mounted();
    synced(&p.mnt().join("f"), b"there");
    let inside = |name: &str| p.dir.path().join(name);
    fs::hard_link(p.store(), inside("hard")).expect("linked");
    std::os::unix::fs::symlink(p.store(), inside("soft")).expect("linked");
    File::create(inside("bound")).expect("create");
    succeeds(Command::new("mount").arg("--bind").args([p.store(), inside("bound")]));
    fs::create_dir(inside("other")).expect("mkdir");
    for stopped in [false, true] {
        if stopped {
            kill(pid, Signal::STOP);
        }
        for name in ["s.kvfs", "hard", "soft", "bound"] {
            let said = fails(4, kvfs(&["mount"]).arg(inside(name)).arg(inside("other")));
            assert!(
                said.contains("is mounted on") && said.contains("kvfs umount"),
                "{name}, stopped {stopped}: {said}"
            );
            for command in ["check", "ls"] {
                // The daemon is asked, unless it cannot answer.
                if !stopped {
                    succeeds(kvfs(&[command]).arg(inside(name)));
                    continue;
                }
                let said = fails(4, kvfs(&[command]).arg(inside(name)));
                assert!(said.contains("is mounted on"), "{command} {name}: {said}");
            }
        }
    }
    // A killed daemon has released the store. By any name the store is intact, and its mount can be
    // replaced.
    kill(pid, Signal::KILL);
    until("the daemon has ended", || !is_alive(pid));
    succeeds(kvfs(&["mount"]).arg(inside("hard")).arg(inside("other")));
    assert_eq!(fs::read(inside("other").join("f")).expect("there"), b"there");
    let said = fails(4, &mut p.mount(&[]));
    assert!(said.contains("is mounted on"), "{said}");
    succeeds(kvfs(&["umount"]).arg(inside("other")));
    succeeds(Command::new("umount").arg(inside("bound")));
    succeeds(kvfs(&["check"]).arg(p.store()));
}

#[test]
fn a_store_cut_short_under_its_daemon_is_an_error_and_no_crash() {
    const SIZE: usize = 4 << 20;
    let Some(p) = Place::new() else { return };
    succeeds(p.mount(&["--memory", "16M"]).arg("-o").arg("nowriteback"));
    let pid = p.pid();
    for i in 0..16 {
        synced(&p.mnt().join(format!("f{i}")), &content(i, SIZE));
    }
    succeeds(&mut p.umount());
    until("the daemon has ended", || !is_alive(pid));
    succeeds(p.mount(&["--memory", "16M"]).arg("-o").arg("nowriteback"));
    let pid = p.pid();
    let length = fs::metadata(p.store()).expect("stat").len();
    // The second half of the file is cut off.
    File::options().write(true).open(p.store()).and_then(|f| f.set_len(length / 2)).expect("cut");
    let (mut whole, mut errors) = (0, 0);
    for i in 0..16 {
        match fs::read(p.mnt().join(format!("f{i}"))) {
            Ok(data) => {
                assert!(data == content(i, SIZE), "f{i}: what is read is right, or an error");
                whole += 1;
            }
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::EIO), "f{i}: {e}");
                errors += 1;
            }
        }
    }
    assert!(errors > 0, "{whole} of 16 files are whole");
    // The daemon may accept writes or refuse them. In any case it stays alive.
    let _ = File::create(p.mnt().join("new"))
        .and_then(|mut f| f.write_all(b"new").and_then(|()| f.sync_all()));
    assert!(is_alive(pid), "the daemon goes on");
    assert!(fs::metadata(p.mnt()).is_ok());
    let _ = p.umount().output();
    until("the daemon has ended", || !is_alive(pid));
    let checked = kvfs(&["check"]).arg(p.store()).output().expect("kvfs runs");
    let said = text(&checked.stdout) + &text(&checked.stderr);
    assert_eq!(checked.status.code(), Some(5), "{said}");
    let missing = ["outside the store", "which the store does not have"];
    assert!(missing.iter().any(|what| said.contains(what)), "{said}");
}

#[test]
fn a_mount_that_is_covered_or_out_of_sight_goes_on_and_ends() {
    let Some(p) = Place::new() else { return };
    for covered in [true, false] {
        let pid = p.mounted();
        let mut open = File::create(p.mnt().join("log")).expect("create");
        open.write_all(b"before ").expect("write");
        if covered {
            succeeds(Command::new("mount").args(["-t", "tmpfs", "cover"]).arg(p.mnt()));
        } else {
            succeeds(Command::new("umount").arg("-l").arg(p.mnt()));
        }
        open.write_all(b"and after")
            .and_then(|()| open.sync_all())
            .expect("who has it open goes on");
        // The store still leads to its daemon.
        assert_eq!(p.ask(&["SET", "k", "v"]), "OK");
        let id = p.ask(&["TXN", "BEGIN"]);
        assert_eq!(p.ask(&["TXN", "COMMIT", &id, "SYNC"]), "OK");
        assert_eq!(p.ask(&["SNAPSHOT", "CREATE", if covered { "covered" } else { "lazy" }]), "OK");
        if covered {
            let said = fails(2, &mut p.umount());
            assert!(said.contains("tmpfs") && said.contains("not KVFS"), "{said}");
            let said = fails(4, kvfs(&["umount"]).arg(p.store()));
            assert!(said.contains("another mount (tmpfs) covers"), "{said}");
            // A signal ends the daemon nevertheless.
            kill(pid, Signal::TERM);
            until("the daemon has ended", || !is_alive(pid));
            drop(open);
            succeeds(Command::new("umount").arg(p.mnt()));
        } else {
            let said = fails(3, &mut p.umount());
            assert!(said.contains("nothing is mounted"), "{said}");
            drop(open);
            until("the daemon has ended", || !is_alive(pid));
        }
        succeeds(kvfs(&["check"]).arg(p.store()));
        p.mounted();
        assert_eq!(
            fs::read(p.mnt().join("log")).expect("there"),
            b"before and after",
            "covered: {covered}"
        );
        succeeds(&mut p.umount());
    }
}

#[test]
fn a_stopped_daemon_that_was_unmounted_is_not_waited_for() {
    let Some(p) = Place::new() else { return };
    let pid = p.mounted();
    synced(&p.mnt().join("f"), b"there");
    kill(pid, Signal::STOP);
    // umount(8) unmounts: the mount disappears, and its daemon does not know.
    rustix::mount::unmount(p.mnt(), rustix::mount::UnmountFlags::DETACH).expect("unmounted");
    let said = fails(4, &mut p.mount(&[]));
    assert!(said.contains("is stopped") && said.contains("kill -CONT"), "{said}");
    kill(pid, Signal::CONT);
    p.mounted();
    assert_eq!(fs::read(p.mnt().join("f")).expect("there"), b"there");
}

#[test]
fn a_full_host_loses_nothing_that_was_synced() {
    let Some(p) = Place::new() else { return };
    fs::remove_file(p.store()).expect("removed");
    let host = p.dir.path().join("host");
    fs::create_dir(&host).expect("mkdir");
    succeeds(Command::new("mount").args(["-t", "tmpfs", "-o", "size=384m", "host"]).arg(&host));
    let store = host.join("s.kvfs");
    succeeds(kvfs(&["create"]).arg(&store));
    let mount = || succeeds(kvfs(&["mount"]).arg(&store).arg(p.mnt()));
    mount();
    let name = |i: usize| p.mnt().join(format!("f{i}"));
    // Something else takes the host's space.
    fs::write(host.join("other"), vec![1; 150 << 20]).expect("write");
    const SIZE: usize = 2 << 20;
    let write = |i: usize| {
        File::create(name(i))
            .and_then(|mut f| f.write_all(&content(i, SIZE)).and_then(|()| f.sync_all()))
    };
    let mut kept = 0;
    let full = loop {
        match write(kept) {
            Ok(()) => kept += 1,
            Err(e) => break e,
        }
        assert!(kept < 100, "the host is full at some time");
    };
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC), "{full}");
    let all_there = || {
        (0..kept)
            .for_each(|i| assert!(fs::read(name(i)).expect("read") == content(i, SIZE), "f{i}"))
    };
    assert!(kept > 3, "{kept} files found space");
    all_there();
    // A mount that was killed when full can be mounted again.
    let said = succeeds(kvfs(&["--json", "stat"]).arg(p.mnt()));
    let stat: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let pid = stat["daemon"]["pid"].as_i64().expect("a pid") as i32;
    kill(pid, Signal::KILL);
    until("the daemon has ended", || !is_alive(pid));
    mount();
    all_there();
    // Space is available again, and the mount continues without a remount.
    fs::remove_file(host.join("other")).expect("removed");
    for i in kept..kept + 5 {
        write(i).expect("there is room");
    }
    succeeds(kvfs(&["umount"]).arg(p.mnt()));
    succeeds(kvfs(&["check"]).arg(&store));
    mount();
    all_there();
    succeeds(kvfs(&["umount"]).arg(p.mnt()));
    succeeds(Command::new("umount").arg(&host));
}

#[test]
fn a_store_that_was_removed_or_replaced_is_not_let_go_without_a_word() {
    for replaced in [false, true] {
        let Some(p) = Place::new() else { return };
        let pid = p.mounted();
        synced(&p.mnt().join("f"), b"all there is");
        fs::remove_file(p.store()).expect("removed");
        if replaced {
            succeeds(kvfs(&["create"]).arg(p.store()));
        }
        // The mount continues to work.
        synced(&p.mnt().join("g"), b"more");
        assert_eq!(fs::read(p.mnt().join("f")).expect("there"), b"all there is");
        // The unmount would lose everything, so it is refused.
        for target in [p.mnt(), p.store()] {
            if !replaced || target == p.mnt() {
                let said = fails(4, kvfs(&["umount"]).arg(&target));
                assert!(said.contains("was removed") && said.contains("--force"), "{said}");
            }
        }
        assert!(is_alive(pid) && fs::read(p.mnt().join("g")).expect("there") == b"more");
        if replaced {
            // The new store is another one: it is mounted next to the old one, and neither answers
            // for the other.
            let other = p.dir.path().join("other");
            fs::create_dir(&other).expect("mkdir");
            succeeds(kvfs(&["mount"]).arg(p.store()).arg(&other));
            succeeds(kvfs(&["kv", "put"]).arg(p.mnt()).args(["k", "old"]));
            succeeds(kvfs(&["kv", "put"]).arg(&other).args(["k", "new"]));
            assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(p.mnt()).arg("k")), "old");
            assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&other).arg("k")), "new");
            succeeds(kvfs(&["umount"]).arg(&other));
            assert!(is_alive(pid));
        }
        // The data of the store is rescued through the mount, or as a whole from the process.
        let rescued = p.dir.path().join("rescued.kvfs");
        let fd = fs::read_dir(format!("/proc/{pid}/fd"))
            .expect("list")
            .map(|e| e.expect("a descriptor").path());
        let held: Vec<_> = fd
            .filter(|fd| {
                fs::read_link(fd).is_ok_and(|to| to.to_string_lossy().contains("s.kvfs (deleted)"))
            })
            .collect();
        succeeds(Command::new("sync").arg("-f").arg(p.mnt()));
        fs::copy(held.first().expect("the store"), &rescued).expect("copied");
        succeeds(p.umount().arg("--force"));
        until("the daemon has ended", || !is_alive(pid));
        assert!(File::open(&rescued).and_then(|f| f.read_at(&mut [0; 8], 0)).is_ok());
        succeeds(kvfs(&["check"]).arg(&rescued));
        assert_eq!(succeeds(kvfs(&["cat"]).arg(&rescued).arg("/f")), "all there is");
    }
}
