//! Tests of `kvfs mount` and `kvfs umount` as a user sees them: background, errors, exit codes,
//! dead mounts, mount helpers and signals.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::place::{Place, fails, is_alive, kill, kvfs, succeeds, text, until};
use rustix::process::{Pid, Signal};

#[test]
fn mount_returns_when_the_mount_answers_and_umount_when_the_store_is_free() {
    let Some(p) = Place::new() else { return };
    for round in 0..3 {
        let pid = p.mounted();
        let entry = p.entry().expect("mounted");
        assert!(
            entry.contains("nosuid")
                && entry.contains("nodev")
                && entry.contains("default_permissions"),
            "{entry}"
        );
        assert!(entry.contains(&format!("- fuse.kvfs {}", p.store().display())), "{entry}");
        fs::write(p.mnt().join(format!("f{round}")), "x").expect("write");
        succeeds(&mut p.umount());
        assert!(!is_alive(pid), "the daemon has ended");
        assert!(p.entry().is_none());
    }
    assert_eq!(fs::read_dir(p.mnt()).expect("list").count(), 0, "the directory below is as it was");
}

#[test]
fn a_store_is_mounted_once() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let other = p.dir.path().join("other");
    fs::create_dir(&other).expect("mkdir");
    let said = fails(4, kvfs(&["mount"]).arg(p.store()).arg(&other));
    assert!(said.contains("is mounted on") && said.contains("kvfs umount"), "{said}");
    succeeds(&mut p.umount());
    assert!(fails(3, &mut p.umount()).contains("nothing is mounted"));
}

#[test]
fn a_busy_mount_stays_until_its_last_user_leaves() {
    let Some(p) = Place::new() else { return };
    let pid = p.mounted();
    let open = fs::File::create(p.mnt().join("a")).expect("create");
    assert!(fails(4, &mut p.umount()).contains("in use"));
    assert!(p.mnt().join("a").exists());
    succeeds(p.umount().arg("--lazy"));
    assert!(p.entry().is_none() && is_alive(pid));
    drop(open);
    until("the daemon ends", || !is_alive(pid));
    p.mounted();
}

/// The file may be open in a program between fork and exec alone, so it is worth another try.
#[test]
fn a_mount_that_is_busy_for_a_moment_is_unmounted() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let open = fs::File::create(p.mnt().join("a")).expect("create");
    let mut umount = p.umount().spawn().expect("it starts");
    // The command sleeps (clock_nanosleep(2), here or on 64-bit ARM) after a refusal.
    let calls = format!("/proc/{}/syscall", umount.id());
    until("it was refused once", || {
        fs::read_to_string(&calls).is_ok_and(|s| s.starts_with("230 ") || s.starts_with("115 "))
    });
    drop(open);
    assert!(umount.wait().expect("it ends").success());
    assert!(p.entry().is_none());
}

#[test]
fn a_dead_mount_is_replaced() {
    let Some(p) = Place::new() else { return };
    let pid = p.mounted();
    kill(pid, Signal::KILL);
    until("the mount is dead", || rustix::fs::statfs(p.mnt()).is_err());
    let output = p.mount(&[]).output().expect("kvfs runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("removed the dead mount"), "{}", text(&output.stderr));
    fs::write(p.mnt().join("a"), "x").expect("write");
    succeeds(&mut p.umount());
}

#[test]
fn umount_takes_a_dead_mount_away() {
    let Some(p) = Place::new() else { return };
    let pid = p.mounted();
    kill(pid, Signal::KILL);
    until("the mount is dead", || rustix::fs::statfs(p.mnt()).is_err());
    assert!(succeeds(&mut p.umount()).contains("dead"));
    assert!(p.entry().is_none());
}

#[test]
fn a_signal_ends_the_mount_even_while_it_is_used() {
    let Some(p) = Place::new() else { return };
    for signal in [Signal::TERM, Signal::INT] {
        let pid = p.mounted();
        let _open = fs::File::create(p.mnt().join("a")).expect("create");
        kill(pid, signal);
        until("the daemon ends", || !is_alive(pid));
        assert!(p.entry().is_none());
    }
}

/// Unmounts as plain umount(8) does, without our helper. A child that another test is just starting
/// holds our files, too, until it becomes its program: busy then is no fault. The kernel gives a
/// signal to any thread of the process that takes it: most often to the first one, but not always.
#[test]
fn a_signal_ends_the_mount_whichever_thread_it_comes_to() {
    let Some(p) = Place::new() else { return };
    let threads = |pid: i32| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the daemon runs");
        let threads = tasks.filter_map(|task| {
            let task = task.ok()?;
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            let field =
                |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let blocked = u64::from_str_radix(field("SigBlk:")?, 16).ok()?;
            let takes_it = blocked & 1 << (libc::SIGTERM - 1) == 0;
            let number: i32 = task.file_name().to_str()?.parse().ok()?;
            (takes_it || number == pid).then(|| (field("Name:").unwrap_or("").to_string(), number))
        });
        threads.collect::<std::collections::BTreeMap<_, _>>()
    };
    let mut pid = p.mounted();
    // One thread of each name stands for all of them.
    for name in threads(pid).into_keys() {
        if p.entry().is_none() {
            pid = p.mounted();
        }
        let Some(thread) = threads(pid).remove(&name) else { continue };
        // SAFETY: the call takes three numbers.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, libc::SIGTERM) };
        assert_eq!(sent, 0, "{name}");
        until(&format!("{name} has passed the signal on"), || !is_alive(pid));
        assert!(p.entry().is_none());
    }
}

fn plain_umount(mnt: &Path) {
    until("it is unmounted", || {
        match rustix::mount::unmount(mnt, rustix::mount::UnmountFlags::empty()) {
            Err(rustix::io::Errno::BUSY) => false,
            done => done.map(|()| true).expect("umount"),
        }
    });
}

#[test]
fn in_the_foreground_it_ends_with_the_mount() {
    let Some(p) = Place::new() else { return };
    let mut child = p
        .mount(&["--foreground"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("kvfs runs");
    // The mount exists before its daemon has everything that it needs. The daemon reports when it
    // has.
    let mut said = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut said).expect("it says");
    assert!(said.starts_with("mounted "), "{said}");
    fs::write(p.mnt().join("a"), "x").expect("write");
    plain_umount(&p.mnt());
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn a_mount_right_after_an_unmount_waits_for_the_store() {
    let Some(p) = Place::new() else { return };
    for _ in 0..5 {
        p.mounted();
        fs::write(p.mnt().join("a"), vec![1; 1 << 20]).expect("write");
        plain_umount(&p.mnt());
    }
}

/// File systems in memory, mounted until one of them has the device number that was `of`'s.
struct TakesTheNumber(Vec<std::path::PathBuf>);

impl TakesTheNumber {
    fn new(under: &Path, of: &str) -> Option<TakesTheNumber> {
        let mut taken = TakesTheNumber(Vec::new());
        // The kernel assigns the lowest free number. Tests that run at the same time may take it
        // first.
        for i in 0..64 {
            taken.mount(under.join(format!("tmpfs-{i}")));
            if kvfs_fuse::mounts::mounts()
                .expect("the table of mounts")
                .iter()
                .any(|m| m.device == of)
            {
                return Some(taken);
            }
        }
        None
    }

    fn mount(&mut self, at: std::path::PathBuf) {
        fs::create_dir_all(&at).expect("mkdir");
        rustix::mount::mount("none", &at, "tmpfs", rustix::mount::MountFlags::empty(), None)
            .expect("a tmpfs");
        self.0.push(at);
    }
}

impl Drop for TakesTheNumber {
    fn drop(&mut self) {
        for at in &self.0 {
            let _ = rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

#[test]
fn a_mount_waits_though_another_file_system_has_the_number_of_the_last_one() {
    let Some(p) = Place::new() else { return };
    for closes in [false, true] {
        let pid = p.mounted();
        let device = kvfs_fuse::mounts::mount_at(&p.mnt())
            .expect("the table of mounts")
            .expect("mounted")
            .device;
        // A daemon that takes its time to close the store: one that is stopped has not even noticed
        // the end of its mount.
        kill(pid, Signal::STOP);
        plain_umount(&p.mnt());
        let Some(taken) = TakesTheNumber::new(p.dir.path(), &device) else { continue };
        let said = fails(4, &mut p.mount(&[]));
        assert!(said.contains("which is stopped") && said.contains("kill -CONT"), "{said}");
        if closes {
            // Another daemon is given the number, and leaves its record under it.
            drop(taken);
            let other = Place::new().expect("as before");
            other.mounted();
            assert!(fails(4, &mut p.mount(&[])).contains("which is stopped"));
        }
        assert!(fails(3, kvfs(&["umount"]).arg(p.store())).contains("nothing is mounted"));
        kill(pid, Signal::CONT);
        // The command waits for the daemon that closes the store.
        p.mounted();
        succeeds(&mut p.umount());
        assert!(!is_alive(pid));
    }
}

/// Returns whether reading a file changes its access time.
fn access_time_moves(p: &Place) -> bool {
    let path = p.mnt().join("read");
    fs::write(&path, [7; 100]).expect("write");
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let times = fs::FileTimes::new().set_accessed(old).set_modified(old);
    fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|f| f.set_times(times))
        .expect("set the times");
    // This read is not served by the kernel's cache: only the start of the page was written, so it
    // is not cached.
    fs::read(&path).expect("read");
    fs::metadata(&path).and_then(|m| m.accessed()).expect("stat") != old
}

#[test]
fn options_reach_the_kernel_and_wrong_ones_are_named() {
    let Some(p) = Place::new() else { return };
    succeeds(&mut p.mount(&[
        "-o",
        "allow_other,suid,dev,noexec,noatime,fsname=my store,subtype=",
        "-o",
        "nofail,x-a.b=c",
    ]));
    let entry = p.entry().expect("mounted");
    for word in ["noexec", "noatime", "allow_other", r"- fuse my\040store "] {
        assert!(entry.contains(word), "{word} in {entry}");
    }
    assert!(!entry.contains("nosuid") && !entry.contains("nodev"), "{entry}");
    assert!(!access_time_moves(&p), "it was mounted with noatime");
    succeeds(&mut p.umount());
    succeeds(&mut p.mount(&[]));
    assert!(access_time_moves(&p), "relatime is the default");
    succeeds(&mut p.umount());
    let said = fails(2, &mut p.mount(&["-o", "strictatime"]));
    assert!(said.contains("refused") && said.contains("noatime"), "{said}");
    assert!(fails(2, &mut p.mount(&["-o", "ro,wrong"])).contains("'wrong'"));
    let said = fails(2, &mut p.mount(&["-o", "dirsync=1"]));
    assert!(said.contains("'dirsync=1': takes no value"), "{said}");
    let said = fails(2, &mut p.mount(&["-o", "threads"]));
    assert!(said.contains("'threads': needs a value, such as threads=4"), "{said}");
    let said = fails(2, &mut p.mount(&["-o", "allow_other,nodefault_permissions"]));
    assert!(said.contains("refused"), "{said}");
    let error: serde_json::Value =
        serde_json::from_str(&fails(2, &mut p.mount(&["--json", "-o", "wrong"]))).expect("JSON");
    assert_eq!(error["error"]["code"], "usage");
}

#[test]
fn what_cannot_be_mounted_says_why() {
    let Some(p) = Place::new() else { return };
    let said = fails(3, kvfs(&["mount", "/nonexistent/store"]).arg(p.mnt()));
    assert!(said.contains("kvfs create"), "{said}");
    assert!(fails(2, kvfs(&["mount"]).arg(p.store()).arg(p.store())).contains("not a directory"));
    assert!(fails(2, kvfs(&["mount"]).arg(p.store()).arg(p.dir.path())).contains("hide the store"));
    assert!(fails(3, kvfs(&["umount"]).arg(p.dir.path())).contains("nothing is mounted"));
}

#[test]
fn mount_and_umount_call_us_by_our_other_names() {
    let Some(p) = Place::new() else { return };
    let helper = |name: &str| {
        let mut command = kvfs(&[]);
        command.arg0(format!("/sbin/{name}"));
        command
    };
    let (store, mnt) = (p.store(), p.mnt());
    // The helper is called as by mount(8), as by mount.fuse3, and wrongly in two ways.
    succeeds(helper("mount.fuse.kvfs").arg(&store).arg(&mnt).args([
        "-n",
        "-o",
        "rw,_netdev,user",
        "-t",
        "fuse.kvfs",
    ]));
    assert!(p.entry().is_some());
    succeeds(helper("umount.fuse.kvfs").arg(&mnt).args(["-n"]));
    assert!(p.entry().is_none());
    succeeds(helper("kvfs").arg(&store).arg(&mnt).args(["-o", "rw,dev,suid"]));
    succeeds(&mut p.umount());
    succeeds(helper("mount.kvfs").arg(&store).arg(&mnt).arg("-f"));
    assert!(p.entry().is_none(), "-f only pretends");
    fails(1, helper("mount.fuse.kvfs").arg(&store));
    fails(1, helper("mount.fuse.kvfs").arg(&store).arg(&mnt).args(["-o", "wrong"]));
    fails(32, helper("mount.fuse.kvfs").arg(Path::new("/nonexistent")).arg(&mnt));
}

#[test]
fn the_log_goes_where_it_is_told() {
    let Some(p) = Place::new() else { return };
    let log = p.dir.path().join("the.log");
    succeeds(p.mount(&["--log"]).arg(&log));
    succeeds(&mut p.umount());
    let said = fs::read_to_string(&log).expect("a log");
    assert!(said.contains("mounted") && said.contains("unmounted after"), "{said}");
}

#[test]
fn a_stopped_daemon_does_not_keep_a_forced_umount_from_coming_back() {
    let Some(p) = Place::new() else { return };
    succeeds(&mut p.mount(&[]));
    fs::write(p.mnt().join("f"), "x").expect("write");
    let stat: serde_json::Value =
        serde_json::from_str(&succeeds(kvfs(&["--json", "stat"]).arg(p.mnt()))).expect("JSON");
    let pid =
        Pid::from_raw(stat["daemon"]["pid"].as_i64().expect("a number") as i32).expect("a process");
    rustix::process::kill_process(pid, Signal::STOP).expect("stopped");
    let mut umount = kvfs(&["umount", "--force"])
        .arg(p.mnt())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kvfs runs");
    let deadline = Instant::now() + Duration::from_secs(30);
    let ended = loop {
        if let Some(ended) = umount.try_wait().expect("waited") {
            break Some(ended);
        }
        if Instant::now() > deadline {
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    if ended.is_none() {
        let _ = umount.kill();
    }
    rustix::process::kill_process(pid, Signal::CONT).expect("goes on");
    let said = text(&umount.wait_with_output().expect("waited").stderr);
    assert_eq!(ended.expect("it comes back").code(), Some(4), "{said}");
    assert!(said.contains("is stopped") && said.contains("kill -CONT"), "{said}");
    // The daemon ends as ever, and frees the store.
    succeeds(&mut p.mount(&[]));
    assert!(p.mnt().join("f").exists());
}

#[test]
fn a_mount_for_reading_has_a_socket_that_reads() {
    let Some(p) = Place::new() else { return };
    succeeds(kvfs(&["kv", "put"]).arg(p.store()).args(["k", "v"]));
    succeeds(kvfs(&["snapshot", "create"]).arg(p.store()).arg("s"));
    succeeds(&mut p.mount(&["-o", "ro"]));
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(p.mnt()).arg("k")), "v");
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(p.mnt().join(".kvfs/snapshot/s")).arg("k")), "v");
    assert!(succeeds(kvfs(&["snapshot", "list"]).arg(p.mnt())).contains(" s"));
    assert!(succeeds(kvfs(&["stat"]).arg(p.mnt())).contains("requests"));
    assert_eq!(succeeds(kvfs(&["txn", "list"]).arg(p.mnt())), "");
    for words in [
        &["kv", "put", "MNT", "k", "w"][..],
        &["kv", "del", "MNT", "k"],
        &["kv", "incr", "MNT", "n"],
        &["snapshot", "create", "MNT", "t"],
        &["snapshot", "drop", "MNT", "s"],
        &["snapshot", "rollback", "MNT", "s"],
        &["clone", "create", "MNT", "s", "c"],
        &["txn", "begin", "MNT"],
        &["defrag", "MNT"],
        &["dict", "create", "MNT", "d"],
        &["dict", "set", "MNT", "0", "--separate-at", "1K"],
        &["dict", "drop", "MNT", "0"],
        &["compact", "MNT"],
        &["compact", "MNT", "0", "a", "b"],
    ] {
        let mut command = kvfs(&[]);
        command.args(words.iter().map(|word| if *word == "MNT" { p.mnt() } else { word.into() }));
        let said = fails(1, &mut command);
        assert!(said.contains("read"), "{words:?}: {said}");
    }
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(p.mnt()).arg("k")), "v");
}

/// Returns the value of the kernel's switch at a moment at which no test has turned it on, or
/// `None` if this kernel has no switch.
fn switched_on() -> Option<String> {
    let switch = fs::File::open("/sys/module/fuse/parameters/enable_uring").ok()?;
    rustix::fs::flock(&switch, rustix::fs::FlockOperation::LockShared).expect("a lock");
    Some(std::io::read_to_string(switch).expect("a parameter"))
}

#[test]
fn requests_come_over_io_uring_when_asked_for() {
    let Some(p) = Place::new() else { return };
    let Some(before) = switched_on() else {
        eprintln!("SKIPPED: this kernel has no FUSE over io_uring");
        return;
    };
    for (way, shown) in [("uring", "io_uring"), ("device", "/dev/fuse")] {
        succeeds(kvfs(&["mount", "-o", &format!("transport={way}")]).arg(p.store()).arg(p.mnt()));
        let stat: serde_json::Value =
            serde_json::from_str(&succeeds(kvfs(&["--json", "stat"]).arg(p.mnt()))).expect("JSON");
        assert_eq!(stat["transport"]["name"], shown);
        assert!(
            stat["transport"]["round_trip_micros"].as_f64().is_some_and(|mean| mean > 0.0),
            "{}",
            stat["transport"]
        );
        fs::write(p.mnt().join("f"), way).expect("write");
        assert_eq!(fs::read_to_string(p.mnt().join("f")).expect("read"), way);
        succeeds(&mut p.umount());
    }
    assert_eq!(switched_on(), Some(before), "it is put back");
    let both = "transport=uring,writeback";
    assert!(
        fails(2, kvfs(&["mount", "-o", both]).arg(p.store()).arg(p.mnt())).contains("writeback")
    );
}
