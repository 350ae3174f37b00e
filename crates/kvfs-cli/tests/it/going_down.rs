//! Tests of the GOINGDOWN ioctl, by which tests shut a file system down. Unsynced data may be lost,
//! all calls fail with EIO, and the next mount has all durable data.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use crate::place::{Place, fails, is_alive, kvfs, succeeds, until};

const DEFAULT: u32 = 0;
const FLUSH_LOG: u32 = 1;
const NO_FLUSH: u32 = 2;

/// Shuts the file system down as `src/godown` of xfstests does.
fn go_down(on: &File, flags: u32) -> Result<(), i32> {
    const GOING_DOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;
    // SAFETY: the call reads the word at the pointer, which lives until it returns.
    match unsafe { libc::ioctl(on.as_raw_fd(), GOING_DOWN, &raw const flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().expect("an error number")),
    }
}

#[track_caller]
fn eio<T: std::fmt::Debug>(what: &str, result: std::io::Result<T>) {
    match result {
        Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EIO), "{what}: {e}"),
        Ok(done) => panic!("{what} succeeded: {done:?}"),
    }
}

/// Reads again what was cached, and everything else that a program may try.
fn everything_fails(p: &Place, open: &mut File) {
    let mnt = p.mnt();
    eio("a read", open.rewind().and_then(|()| open.read(&mut [0; 100])));
    eio("a write that is synced", open.write_all_at(b"late", 0).and_then(|()| open.sync_all()));
    eio("sync", open.sync_all());
    eio("a read by name", fs::read(mnt.join("synced")));
    eio("stat", fs::metadata(mnt.join("synced")));
    eio("stat of the root", fs::metadata(&mnt));
    eio("listing", fs::read_dir(&mnt).and_then(|all| all.collect::<Result<Vec<_>, _>>()));
    eio("create", File::create(mnt.join("late")));
    eio("mkdir", fs::create_dir(mnt.join("late")));
    eio("rename", fs::rename(mnt.join("synced"), mnt.join("late")));
    eio("unlink", fs::remove_file(mnt.join("synced")));
    eio(
        "a view",
        fs::read_dir(mnt.join(".kvfs/txn")).and_then(|all| all.collect::<Result<Vec<_>, _>>()),
    );
}

#[test]
fn what_was_synced_stays_and_everything_fails_until_the_next_mount() {
    for mode in ["nowriteback", "writeback"] {
        for flags in [DEFAULT, FLUSH_LOG, NO_FLUSH] {
            let Some(p) = Place::new() else { return };
            let at = format!("{mode}, flags {flags}");
            succeeds(&mut p.mount(&["-o", mode]));
            let pid = p.pid();
            let mut synced = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(p.mnt().join("synced"))
                .expect("create");
            synced.write_all(&[b's'; 300_000]).and_then(|()| synced.sync_all()).expect("synced");
            File::open(p.mnt()).and_then(|root| root.sync_all()).expect("synced");
            fs::write(p.mnt().join("committed"), b"").expect("write");
            let mut open = File::create(p.mnt().join("open")).expect("create");
            open.write_all(&[b'o'; 200_000]).expect("write");
            // The second call finds the file system already shut down.
            let root = File::open(p.mnt()).expect("open");
            assert_eq!(go_down(&root, flags), Ok(()), "{at}");
            assert_eq!(go_down(&root, flags), Err(libc::EIO), "{at}");
            everything_fails(&p, &mut synced);
            let said = fails(1, kvfs(&["kv", "put"]).arg(p.store()).args(["k", "v"]));
            assert!(said.contains("shut down on request") && said.contains("unmount"), "{said}");
            drop((synced, open, root));

            succeeds(&mut p.umount());
            until("the daemon has ended", || !is_alive(pid));
            succeeds(kvfs(&["check"]).arg(p.store()));
            succeeds(&mut p.mount(&["-o", mode]));
            assert_eq!(fs::read(p.mnt().join("synced")).expect("there"), [b's'; 300_000], "{at}");
            let open = fs::read(p.mnt().join("open")).unwrap_or_default();
            assert!(open.iter().all(|b| *b == b'o'), "{at}");
            match flags {
                DEFAULT => assert_eq!(open.len(), 200_000, "{at}: everything was synced before"),
                FLUSH_LOG => {
                    assert!(p.mnt().join("committed").exists(), "{at}: names are committed at once")
                }
                _ => {}
            }
            fs::write(p.mnt().join("new"), b"all goes on").expect("write");
        }
    }
}

#[test]
fn what_was_not_synced_goes() {
    let Some(p) = Place::new() else { return };
    succeeds(&mut p.mount(&[]));
    let mut gone = 0;
    for round in 0..10 {
        let name = p.mnt().join(format!("f{round}"));
        let mut file = File::create(&name).expect("create");
        file.write_all(b"synced ").and_then(|()| file.sync_all()).expect("synced");
        file.write_all(b"not synced").expect("write");
        assert_eq!(go_down(&file, NO_FLUSH), Ok(()));
        drop(file);
        if round % 2 == 0 {
            succeeds(&mut p.umount());
        } else {
            // The system's own, as the suites do.
            succeeds(std::process::Command::new("umount").arg(p.mnt()));
        }
        succeeds(&mut p.mount(&[]));
        match &fs::read(&name).expect("there")[..] {
            b"synced " => gone += 1,
            b"synced not synced" => {}
            other => panic!("{:?}", String::from_utf8_lossy(other)),
        }
    }
    // A second at most passes until everything is written by itself.
    assert!(gone >= 5, "{gone} of 10: what is down writes no more");
}

#[test]
fn durable_transactions_are_there_again_and_others_are_not() {
    let Some(p) = Place::new() else { return };
    succeeds(&mut p.mount(&[]));
    fs::write(p.mnt().join("f"), b"mainline").expect("write");
    let begin = |words: &[&str]| p.ask(&[&["TXN", "BEGIN", "SI"], words].concat());
    let (durable, other) = (begin(&["DURABLE"]), begin(&[]));
    let view = |id: &str| p.mnt().join(".kvfs/txn").join(id);
    for id in [&durable, &other] {
        let mut file = File::create(view(id).join("f")).expect("create");
        file.write_all(b"inside").and_then(|()| file.sync_all()).expect("synced");
    }
    fs::write(view(&durable).join("late"), vec![b'l'; 100_000]).expect("write");
    assert_eq!(go_down(&File::open(p.mnt()).expect("open"), NO_FLUSH), Ok(()));
    eio("a read in a transaction", fs::read(view(&durable).join("f")));
    succeeds(&mut p.umount());
    succeeds(kvfs(&["check"]).arg(p.store()));
    succeeds(&mut p.mount(&[]));
    assert_eq!(fs::read(p.mnt().join("f")).expect("there"), b"mainline");
    assert_eq!(fs::read(view(&durable).join("f")).expect("restored"), b"inside");
    assert!(!view(&other).exists());
    let late = fs::read(view(&durable).join("late")).unwrap_or_default();
    assert!(late.is_empty() || late == vec![b'l'; 100_000], "{} bytes", late.len());
    succeeds(kvfs(&["txn", "commit"]).arg(p.mnt()).arg(&durable));
    assert_eq!(fs::read(p.mnt().join("f")).expect("there"), b"inside");
}

/// Does `work` on a thread of another user, or of root without CAP_SYS_ADMIN.
fn with_fewer_rights<T: Send>(user: bool, work: impl FnOnce() -> T + Send) -> T {
    #[repr(C)]
    struct Head(u32, i32);
    const VERSION: u32 = 0x2008_0522;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: it changes the rights of this thread alone, which ends afterwards; the
            // structures are as large as the kernel wants them.
            unsafe {
                if user {
                    assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0);
                } else {
                    let (head, mut sets) = (Head(VERSION, 0), [0_u32; 6]);
                    assert_eq!(libc::syscall(libc::SYS_capget, &raw const head, &raw mut sets), 0);
                    sets[0] &= !(1 << 21);
                    assert_eq!(
                        libc::syscall(libc::SYS_capset, &raw const head, &raw const sets),
                        0
                    );
                }
            }
            work()
        });
        thread.join().expect("no panic")
    })
}

#[test]
fn it_takes_the_right_to_administrate_and_a_flag_that_exists() {
    let Some(p) = Place::new() else { return };
    fs::set_permissions(p.dir.path(), fs::Permissions::from_mode(0o755)).expect("open to others");
    succeeds(&mut p.mount(&["-o", "allow_other"]));
    fs::write(p.mnt().join("f"), b"here").expect("write");
    let read = |path: &Path| fs::read(path).expect("all goes on");
    for user in [true, false] {
        let refused =
            with_fewer_rights(user, || go_down(&File::open(p.mnt()).expect("open"), NO_FLUSH));
        assert_eq!(refused, Err(libc::EPERM), "user: {user}");
        assert_eq!(read(&p.mnt().join("f")), b"here");
    }
    let root = File::open(p.mnt()).expect("open");
    assert_eq!(go_down(&root, 3), Err(libc::EINVAL));
    // SAFETY: an ioctl of an unknown number reads nothing.
    assert_eq!(unsafe { libc::ioctl(root.as_raw_fd(), 0x587e) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY));
    // SAFETY: what lies at this address cannot be read, and is not.
    assert_eq!(unsafe { libc::ioctl(root.as_raw_fd(), 0x8004_587d_u32 as libc::Ioctl, 8) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    fs::write(p.mnt().join("f"), b"still here").expect("all goes on");
    drop(root);
    succeeds(&mut p.umount());
}

#[test]
fn the_flags_of_chattr_are_refused_as_its_tools_expect() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    fs::write(p.mnt().join("f"), b"here").expect("write");
    for path in [p.mnt(), p.mnt().join("f")] {
        let file = File::open(path).expect("open");
        // FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR.
        for number in [0x8008_6601_u32, 0x4008_6602, 0x801c_581f, 0x401c_5820] {
            let mut flags = [0u8; 28];
            // SAFETY: each of them reads or writes 28 bytes at most.
            let done =
                unsafe { libc::ioctl(file.as_raw_fd(), number as libc::Ioctl, flags.as_mut_ptr()) };
            let error = std::io::Error::last_os_error().raw_os_error();
            assert_eq!((done, error), (-1, Some(libc::ENOTTY)), "{number:x}");
        }
    }
    succeeds(&mut p.umount());
}
