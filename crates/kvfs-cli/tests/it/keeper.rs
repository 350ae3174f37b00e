//! Tests of `kvfs mount -o keeper`. A killed daemon is restarted under programs that use the mount.
//! None of them sees an error, and no completed call is lost.

use crate::programs;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::kept::{Kept, parent_of};
use crate::place::{Place, fails, is_alive, kill, kvfs, succeeds, until};
use rustix::process::Signal;

#[test]
fn what_was_written_is_there_when_the_daemon_is_killed() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    let at = kept.place.mnt();
    for round in 0..10 {
        let name = at.join(format!("f{round}"));
        fs::write(&name, format!("content {round}")).expect("written");
        kept.kill();
        assert_eq!(fs::read_to_string(&name).expect("read"), format!("content {round}"));
    }
    assert_eq!(fs::read_dir(&at).expect("listed").count(), 10);
    kept.end();
}

#[test]
fn what_a_program_has_open_goes_on() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    let at = kept.place.mnt();
    let open = |name: &str| {
        let mut options = File::options();
        options.read(true).write(true).create(true).open(at.join(name)).expect("opened")
    };
    let (named, small, large, locked) = (open("n"), open("s"), open("l"), open("k"));
    named.write_all_at(b"named", 0).expect("written");
    small.write_all_at(b"small", 0).expect("written");
    large.write_all_at(&[7; 100_000], 0).expect("written");
    for name in ["s", "l"] {
        fs::remove_file(at.join(name)).expect("removed");
    }
    let never = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(&at)
        .expect("opened");
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    fs::create_dir(at.join("cwd")).expect("made");
    let mut stays = std::process::Command::new("sh")
        .args(["-c", "rmdir ../cwd; read word; ls -a; stat -c %h ."])
        .current_dir(at.join("cwd"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh");
    until("it is removed", || !at.join("cwd").exists());
    let ino = |file: &File| file.metadata().expect("attributes").ino();
    let before = [ino(&named), ino(&small), ino(&large), ino(&never)];
    for round in 0..5u8 {
        kept.kill();
        never.write_all_at(&[round; 3], 0).expect("written");
        small.write_all_at(&[round], 5).expect("written");
        large.write_all_at(&[round], 50_000).expect("written");
        kept.kill();
        let read = |file: &File, at, len| {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, at).expect("read");
            bytes
        };
        assert_eq!(read(&never, 0, 3), [round; 3]);
        assert_eq!(read(&small, 0, 6), [&b"small"[..], &[round]].concat());
        assert_eq!(read(&large, 49_999, 3), [7, round, 7]);
        assert_eq!(large.metadata().expect("attributes").nlink(), 0);
    }
    assert_eq!([ino(&named), ino(&small), ino(&large), ino(&never)], before);
    let other = File::open(at.join("k")).expect("opened");
    let taken = rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert_eq!(taken, Err(rustix::io::Errno::WOULDBLOCK), "the lock is still there");
    drop(stays.stdin.take());
    let mut listed = String::new();
    stays.stdout.take().expect("piped").read_to_string(&mut listed).expect("UTF-8");
    assert!(stays.wait().expect("it ends").success());
    assert_eq!(listed, "0\n", "a removed directory has no entries");
    // A file that had no name gets one.
    rustix::fs::linkat(
        rustix::fs::CWD,
        format!("/proc/self/fd/{}", never.as_raw_fd()),
        rustix::fs::CWD,
        at.join("named now"),
        rustix::fs::AtFlags::SYMLINK_FOLLOW,
    )
    .expect("linked");
    kept.kill();
    assert_eq!(fs::read(at.join("named now")).expect("read"), [4; 3]);
    drop((named, small, large, locked, other, never));
    kept.end();
}

/// The work of a program, and the content that must exist afterwards.
struct Call {
    opcode: &'static str,
    name: &'static str,
    before: fn(&Path),
    call: fn(&Path),
    after: fn(&Path),
}

fn nothing(_: &Path) {}

fn make(at: &Path) {
    fs::write(at.join("f"), b"content").expect("written");
}

fn content(at: &Path, name: &str) -> Vec<u8> {
    fs::read(at.join(name)).expect("read")
}

fn count(at: &Path) -> usize {
    fs::read_dir(at).expect("listed").count()
}

const CALLS: &[Call] = &[
    Call {
        opcode: "8",
        name: "MKNOD",
        before: nothing,
        call: |at| drop(File::create_new(at.join("f")).expect("made")),
        after: |at| assert_eq!((content(at, "f").len(), count(at)), (0, 1)),
    },
    Call {
        opcode: "9",
        name: "MKDIR",
        before: nothing,
        call: |at| fs::create_dir(at.join("d")).expect("made"),
        after: |at| assert_eq!((count(&at.join("d")), count(at)), (0, 1)),
    },
    Call {
        opcode: "6",
        name: "SYMLINK",
        before: nothing,
        call: |at| std::os::unix::fs::symlink("target", at.join("l")).expect("made"),
        after: |at| assert_eq!(fs::read_link(at.join("l")).expect("read"), Path::new("target")),
    },
    Call {
        opcode: "13",
        name: "LINK",
        before: make,
        call: |at| fs::hard_link(at.join("f"), at.join("g")).expect("linked"),
        after: |at| {
            assert_eq!(content(at, "g"), b"content");
            assert_eq!(fs::metadata(at.join("f")).expect("attributes").nlink(), 2);
        },
    },
    Call {
        opcode: "10",
        name: "UNLINK",
        before: make,
        call: |at| fs::remove_file(at.join("f")).expect("removed"),
        after: |at| assert_eq!(count(at), 0),
    },
    Call {
        opcode: "11",
        name: "RMDIR",
        before: |at| fs::create_dir(at.join("d")).expect("made"),
        call: |at| fs::remove_dir(at.join("d")).expect("removed"),
        after: |at| assert_eq!(count(at), 0),
    },
    Call {
        opcode: "12",
        name: "RENAME",
        before: |at| {
            make(at);
            fs::write(at.join("g"), b"replaced").expect("written");
        },
        call: |at| fs::rename(at.join("f"), at.join("g")).expect("renamed"),
        after: |at| assert_eq!((content(at, "g"), count(at)), (b"content".to_vec(), 1)),
    },
    Call {
        opcode: "45",
        name: "RENAME2",
        before: |at| {
            make(at);
            fs::write(at.join("g"), b"other").expect("written");
        },
        call: |at| {
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            let cwd = rustix::fs::CWD;
            rustix::fs::renameat_with(cwd, at.join("f"), cwd, at.join("g"), exchange)
                .expect("exchanged");
        },
        after: |at| {
            assert_eq!(
                (content(at, "f"), content(at, "g")),
                (b"other".to_vec(), b"content".to_vec())
            );
        },
    },
    Call {
        opcode: "16",
        name: "WRITE",
        before: make,
        call: |at| {
            let file = File::options().write(true).open(at.join("f")).expect("opened");
            assert_eq!(file.write_at(&[1; 100_000], 3).expect("written"), 100_000);
        },
        after: |at| assert_eq!(content(at, "f"), [&b"con"[..], &[1; 100_000]].concat()),
    },
    Call {
        opcode: "16",
        name: "WRITE to the end",
        before: make,
        call: |at| {
            let mut file = File::options().append(true).open(at.join("f")).expect("opened");
            assert_eq!(file.write(b"+more").expect("written"), 5);
        },
        after: |at| assert_eq!(content(at, "f"), b"content+more"),
    },
    Call {
        opcode: "4",
        name: "SETATTR",
        before: make,
        call: |at| {
            let mode = fs::Permissions::from_mode(0o640);
            fs::set_permissions(at.join("f"), mode).expect("changed");
        },
        after: |at| {
            assert_eq!(fs::metadata(at.join("f")).expect("attributes").mode() & 0o777, 0o640);
        },
    },
    Call {
        opcode: "4",
        name: "SETATTR of the size",
        before: make,
        call: |at| {
            let file = File::options().write(true).open(at.join("f")).expect("opened");
            file.set_len(3).expect("cut");
        },
        after: |at| assert_eq!(content(at, "f"), b"con"),
    },
    Call {
        opcode: "21",
        name: "SETXATTR",
        before: make,
        call: |at| {
            let create = rustix::fs::XattrFlags::CREATE;
            rustix::fs::setxattr(at.join("f"), "user.a", b"value", create).expect("set");
        },
        after: |at| assert_eq!(xattr(at), Some(b"value".to_vec())),
    },
    Call {
        opcode: "21",
        name: "SETXATTR of a large value",
        before: make,
        call: |at| {
            let create = rustix::fs::XattrFlags::CREATE;
            rustix::fs::setxattr(at.join("f"), "user.a", &[7; 9000], create).expect("set");
        },
        after: |at| assert_eq!(xattr(at), Some(vec![7; 9000])),
    },
    Call {
        opcode: "24",
        name: "REMOVEXATTR",
        before: |at| {
            make(at);
            let any = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(at.join("f"), "user.a", b"value", any).expect("set");
        },
        call: |at| rustix::fs::removexattr(at.join("f"), "user.a").expect("removed"),
        after: |at| assert_eq!(xattr(at), None),
    },
    Call {
        opcode: "43",
        name: "FALLOCATE",
        before: make,
        call: |at| {
            let file = File::options().write(true).open(at.join("f")).expect("opened");
            let grow = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&file, grow, 0, 10_000).expect("allocated");
        },
        after: |at| assert_eq!(content(at, "f").len(), 10_000),
    },
    Call {
        opcode: "47+53",
        name: "COPY_FILE_RANGE",
        before: |at| {
            make(at);
            fs::write(at.join("g"), [9; 50_000]).expect("written");
        },
        call: |at| {
            let from = File::open(at.join("g")).expect("opened");
            let to = File::options().write(true).open(at.join("f")).expect("opened");
            let mut offset = 0;
            while offset < 50_000 {
                let (mut a, mut b) = (offset, offset);
                let rest = (50_000 - offset) as usize;
                let copied =
                    rustix::fs::copy_file_range(&from, Some(&mut a), &to, Some(&mut b), rest);
                offset += copied.expect("copied") as u64;
            }
        },
        after: |at| assert_eq!(content(at, "f"), [9; 50_000]),
    },
    Call {
        opcode: "51",
        name: "TMPFILE",
        before: nothing,
        call: |at| {
            let mut options = File::options();
            options.read(true).write(true).custom_flags(libc::O_TMPFILE);
            let mut file = options.open(at).expect("opened");
            file.write_all(b"nameless").expect("written");
            let mut read = String::new();
            file.rewind().expect("at the start");
            file.read_to_string(&mut read).expect("read");
            assert_eq!(read, "nameless");
        },
        after: |at| assert_eq!(count(at), 0),
    },
    Call {
        opcode: "15",
        name: "READ",
        before: make,
        call: |at| assert_eq!(content(at, "f"), b"content"),
        after: nothing,
    },
    Call {
        opcode: "1",
        name: "LOOKUP",
        before: make,
        call: |at| assert!(!at.join("is not there").exists()),
        after: nothing,
    },
    Call {
        opcode: "17",
        name: "STATFS",
        before: nothing,
        call: |at| assert!(rustix::fs::statvfs(at).expect("answered").f_bsize > 0),
        after: nothing,
    },
    Call {
        opcode: "44",
        name: "READDIRPLUS",
        before: |at| (0..50).for_each(|n| fs::write(at.join(n.to_string()), b"").expect("made")),
        call: |at| assert_eq!(count(at), 50),
        after: |at| assert_eq!(count(at), 50),
    },
];

fn xattr(at: &Path) -> Option<Vec<u8>> {
    let mut value = vec![0; 10_000];
    match rustix::fs::getxattr(at.join("f"), "user.a", &mut value[..]) {
        Ok(length) => Some(value[..length].to_vec()),
        Err(rustix::io::Errno::NODATA) => None,
        Err(e) => panic!("{e}"),
    }
}

/// A fault point of a build with debug assertions kills the daemon while it has the request.
#[test]
fn each_call_is_done_once_wherever_the_daemon_is_killed() {
    for call in CALLS {
        for point in ["before", "after"] {
            let what = format!("{point} {}", call.name);
            let Some(kept) = Kept::new("nowriteback") else { return };
            let at = kept.place.mnt();
            (call.before)(&at);
            drop(kept.place.umount().output());
            until("the keeper has ended", || !is_alive(kept.keeper));
            let marker = kept.place.dir.path().join("killed");
            let killed_at = format!("{point}:{}:{}", call.opcode, marker.display());
            let mut mount = kept.place.mount(&["-o", "keeper"]);
            succeeds(mount.env("KVFS_KILLED_AT", killed_at).stdin(Stdio::null()));
            (call.call)(&at);
            if !marker.exists() {
                // One request may be the daemon's own check of the mount.
                panic!("{what}: the daemon was not killed");
            }
            (call.after)(&at);
            succeeds(&mut kept.place.umount());
            until("it can be checked", || {
                let checked = kvfs(&["check"]).arg(kept.place.store()).output().expect("kvfs");
                checked.status.success() && checked.stdout.windows(5).any(|w| w == b"clean")
            });
            succeeds(kept.place.mount(&[]).stdin(Stdio::null()));
            (call.after)(&at);
            succeeds(&mut kept.place.umount());
        }
    }
}

/// Its process cannot end before the next daemon answers.
#[test]
fn a_daemon_that_is_killed_while_it_waits_for_its_own_mount_is_followed_by_another_one() {
    let Some(place) = Place::new() else { return };
    let marker = place.dir.path().join("killed");
    let mut mount = place.mount(&["-o", "keeper"]);
    // The daemon checks the mount before it reports that it is mounted.
    mount.env("KVFS_KILLED_AT", format!("before:1+3:{}", marker.display()));
    let said = succeeds(mount.stdin(Stdio::null()));
    assert!(said.starts_with("mounted "), "{said}");
    assert!(marker.exists());
    fs::write(place.mnt().join("f"), b"content").expect("written");
    assert_eq!(fs::read(place.mnt().join("f")).expect("read"), b"content");
    // Once the process can end, it disappears completely.
    let keeper = parent_of(place.pid()).expect("it runs");
    let children = format!("/proc/{keeper}/task/{keeper}/children");
    until("there is one daemon", || {
        fs::read_to_string(&children).is_ok_and(|all| all.split_whitespace().count() == 1)
    });
    succeeds(&mut place.umount());
}

#[test]
fn a_read_only_mount_goes_on_too() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    fs::write(kept.place.mnt().join("f"), b"content").expect("written");
    drop(kept.place.umount().output());
    until("the keeper has ended", || !is_alive(kept.keeper));
    let said = succeeds(kept.place.mount(&["--json", "-o", "keeper,ro"]).stdin(Stdio::null()));
    let value: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let keeper = parent_of(value["pid"].as_i64().expect("a pid") as i32).expect("it runs");
    let Kept { place, .. } = kept;
    let kept = Kept { place, keeper };
    let file = File::open(kept.place.mnt().join("f")).expect("opened");
    kept.kill();
    let mut content = [0; 7];
    file.read_exact_at(&mut content, 0).expect("read");
    assert_eq!(&content, b"content");
    assert!(fs::write(kept.place.mnt().join("f"), b"").is_err());
    drop(file);
    kept.end();
}

#[test]
fn what_is_open_in_a_transaction_is_stale_and_the_rest_goes_on() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    let at = kept.place.mnt();
    fs::write(at.join("f"), b"content").expect("written");
    let id = succeeds(kvfs(&["txn", "begin"]).arg(&at)).trim().to_string();
    let view = at.join(".kvfs/txn").join(&id);
    let inside = File::options().read(true).write(true).open(view.join("f")).expect("opened");
    inside.write_all_at(b"INSIDE!", 0).expect("written");
    kept.kill();
    let stale = inside.metadata().expect_err("it has ended");
    assert_eq!(stale.raw_os_error(), Some(libc::ESTALE));
    assert_eq!(fs::read(at.join("f")).expect("read"), b"content");
    // The next view gets another number.
    let id = succeeds(kvfs(&["txn", "begin"]).arg(&at)).trim().to_string();
    let view = at.join(".kvfs/txn").join(&id);
    assert_eq!(fs::read(view.join("f")).expect("read"), b"content");
    assert_eq!(inside.metadata().expect_err("for good").raw_os_error(), Some(libc::ESTALE));
    succeeds(kvfs(&["txn", "abort"]).arg(&at).arg(&id));
    drop(inside);
    kept.end();
}

#[test]
fn keys_that_were_set_are_there_too() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    for round in 0..5 {
        let value = format!("{round}");
        kept.place.ask(&["SET", "k", &value]);
        kept.kill();
        until("it serves keys", || {
            let said = kvfs(&["kv", "get"]).arg(kept.place.mnt()).arg("k").output();
            said.is_ok_and(|said| {
                said.status.success() && said.stdout.starts_with(value.as_bytes())
            })
        });
    }
    kept.end();
}

#[test]
fn git_sqlite_and_a_build_see_no_error() {
    for mode in ["nowriteback", "writeback"] {
        under_programs(mode, 15, Duration::from_millis(300));
    }
}

#[test]
#[ignore = "takes minutes: make measurements"]
fn git_sqlite_and_a_build_see_no_error_for_long() {
    for mode in ["nowriteback", "writeback"] {
        under_programs(mode, 60, Duration::from_secs(5));
    }
}

fn under_programs(mode: &str, kills: usize, pause: Duration) {
    let Some(kept) = Kept::new(mode) else { return };
    let over = kept.place.dir.path().join("over");
    let mut programs = programs::Programs::start(&kept.place.mnt(), &over);
    for _ in 0..kills {
        std::thread::sleep(pause);
        kept.kill();
        programs.none_has_ended(mode);
    }
    programs.end(&over, mode);
    kept.end();
}

#[test]
fn who_ends_the_mount_ends_the_keeper() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    fs::write(kept.place.mnt().join("f"), b"content").expect("written");
    // This is the signal that systemd sends.
    kill(kept.keeper, Signal::TERM);
    until("it has ended", || !is_alive(kept.keeper));
    assert!(kept.place.entry().is_none());
    assert!(succeeds(kvfs(&["check"]).arg(kept.place.store())).contains("clean"));
    // The signal may also be sent to the daemon itself.
    let Some(kept) = Kept::new("nowriteback") else { return };
    kept.kill();
    // Once it is recorded it listens to signals, and is not just ended by them.
    until("the daemon is recorded", || {
        let stat = kvfs(&["stat", "--json"]).arg(kept.place.mnt()).output().expect("kvfs runs");
        let stat = serde_json::from_slice::<serde_json::Value>(&stat.stdout).unwrap_or_default();
        stat["daemon"]["pid"].as_i64() == Some(kept.daemon().into())
    });
    kill(kept.daemon(), Signal::TERM);
    until("it has ended", || !is_alive(kept.keeper));
    assert!(kept.place.entry().is_none());
}

#[test]
fn in_front_the_keeper_is_the_process() {
    let Some(place) = Place::new() else { return };
    let mut front =
        place.mount(&["-f", "-o", "keeper"]).stdout(Stdio::null()).spawn().expect("kvfs");
    until("it is mounted", || place.entry().is_some());
    until("it answers", || fs::write(place.mnt().join("f"), b"content").is_ok());
    // A daemon that is killed before its mount is noted is not started again.
    until("it is noted", || {
        kvfs(&["stat"]).arg(place.mnt()).output().is_ok_and(|said| said.status.success())
    });
    let kept = Kept { keeper: front.id() as i32, place };
    kept.kill();
    assert_eq!(fs::read(kept.place.mnt().join("f")).expect("read"), b"content");
    kill(kept.keeper, Signal::INT);
    let begun = Instant::now();
    assert!(front.wait().expect("it ends").success(), "{:?}", begun.elapsed());
    assert!(kept.place.entry().is_none());
}

#[test]
fn what_a_keeper_cannot_keep_is_refused() {
    let Some(place) = Place::new() else { return };
    let said = fails(2, &mut place.mount(&["-o", "keeper,transport=uring"]));
    assert!(said.contains("io_uring"), "{said}");
    let said = fails(2, &mut place.mount(&["-o", "keeper,snapshot=s"]));
    assert!(said.contains("keeper"), "{said}");
}

/// Measures what the option costs: calls on two mounts, with a keeper and without one, in turn.
#[test]
#[ignore = "a measurement: make measurements"]
fn what_a_call_costs() {
    let Some(with) = Kept::new("nowriteback") else { return };
    let Some(without) = Place::new() else { return };
    succeeds(&mut without.mount(&["-o", "nowriteback"]));
    const ROUNDS: usize = 15;
    const CALLS: u32 = 500;
    type Round = fn(&Path, u32);
    let rounds: &[(&str, Round)] = &[
        ("create", |at, n| drop(File::create_new(at.join(n.to_string())).expect("made"))),
        ("write 4 KiB", |at, n| fs::write(at.join(n.to_string()), [7; 4096]).expect("written")),
        ("stat, cold name", |at, n| assert!(!at.join(format!("{n}.no")).exists())),
        ("chmod", |at, n| {
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(at.join(n.to_string()), mode).expect("changed");
        }),
        ("rename", |at, n| {
            fs::rename(at.join(n.to_string()), at.join(format!("{n}.r"))).expect("renamed");
        }),
        ("append 100 B", |at, _| {
            let mut file = File::options().append(true).create(true).open(at.join("log"));
            file.as_mut().expect("opened").write_all(&[7; 100]).expect("written");
        }),
        ("unlink", |at, n| fs::remove_file(at.join(format!("{n}.r"))).expect("removed")),
        ("write 1 MiB", |at, n| {
            if n % 10 == 0 {
                fs::write(at.join("large"), vec![7; 1 << 20]).expect("written");
            }
        }),
    ];
    let mut times = vec![[Vec::new(), Vec::new()]; rounds.len()];
    for round in 0..ROUNDS {
        for (row, (_, call)) in rounds.iter().enumerate() {
            for side in [round % 2, 1 - round % 2] {
                let at = [without.mnt(), with.place.mnt()][side].join(format!("d{round}"));
                let _ = fs::create_dir(&at);
                let begun = Instant::now();
                (0..CALLS).for_each(|n| call(&at, n));
                times[row][side].push(begun.elapsed() / CALLS);
            }
        }
    }
    for ((what, _), mut sides) in rounds.iter().zip(times) {
        sides.iter_mut().for_each(|times| times.sort());
        let [off, on] = sides.map(|times| times[ROUNDS / 2]);
        let ratio = on.as_secs_f64() / off.as_secs_f64();
        println!("{what}: without {off:.1?}, with a keeper {on:.1?}, ratio {ratio:.2}");
    }
    succeeds(&mut without.umount());
    with.end();
}

/// Measures how long a program waits at most while the daemon is killed and started again.
#[test]
#[ignore = "a measurement: make measurements"]
fn how_long_programs_wait() {
    let Some(kept) = Kept::new("nowriteback") else { return };
    let at = kept.place.mnt();
    let measure = |what: &str| {
        let mut longest: Vec<Duration> = (0..20)
            .map(|_| {
                let over = std::sync::atomic::AtomicBool::new(false);
                let relaxed = std::sync::atomic::Ordering::Relaxed;
                std::thread::scope(|scope| {
                    let asks = scope.spawn(|| {
                        let mut longest = Duration::ZERO;
                        while !over.load(relaxed) {
                            let begun = Instant::now();
                            // The kernel never answers this by itself.
                            rustix::fs::statvfs(&at).expect("answered");
                            longest = longest.max(begun.elapsed());
                        }
                        longest
                    });
                    kept.kill();
                    rustix::fs::statvfs(&at).expect("answered");
                    over.store(true, relaxed);
                    asks.join().expect("no error")
                })
            })
            .collect();
        longest.sort();
        println!("{what}: the longest wait of 20 kills each: {longest:.0?}");
    };
    measure("empty");
    for dir in 0..50 {
        let dir = at.join(format!("d{dir}"));
        fs::create_dir(&dir).expect("made");
        (0..1000).for_each(|n| fs::write(dir.join(n.to_string()), [7; 1000]).expect("written"));
    }
    measure("50,000 files");
    kept.end();
}
