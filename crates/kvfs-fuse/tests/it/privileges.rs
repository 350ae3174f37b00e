//! A file loses its set-user-ID and set-group-ID bits when a user without privileges changes it.
//! When that call returns, neither the store nor the kernel's cache has the bits, so no later
//! program gets rights by them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::real::{BOTH, Real, as_nobody};

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("open")
}

fn allocate(path: &Path, mode: i32, offset: i64, length: i64) {
    let file = open(path);
    // SAFETY: it takes a descriptor and numbers.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, length) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// A page of memory that direct I/O takes.
#[repr(align(4096))]
struct Aligned([u8; 4096]);

/// Ways to change a file of `length` bytes, whose last 64 KiB do not matter.
type Way = (&'static str, fn(&Path, u64));
const WAYS: [Way; 9] = [
    ("write", |path, length| open(path).write_all_at(b"x", length - 1).expect("write")),
    ("append", |path, _| {
        File::options().append(true).open(path).and_then(|mut f| f.write_all(b"x")).expect("append")
    }),
    ("direct write", |path, length| {
        let file =
            File::options().write(true).custom_flags(libc::O_DIRECT).open(path).expect("open");
        let at = (length - 16384) & !4095;
        assert_eq!(file.write_at(&Aligned([0; 4096]).0, at).expect("write"), 4096);
    }),
    ("truncate", |path, length| open(path).set_len(length - 4096).expect("truncate")),
    ("fallocate", |path, length| allocate(path, 0, length as i64, 4096)),
    ("punch", |path, length| {
        allocate(
            path,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            length as i64 - 32768,
            16384,
        );
    }),
    ("zero range", |path, length| {
        allocate(path, libc::FALLOC_FL_ZERO_RANGE, length as i64 - 32768, 16384)
    }),
    ("copy_file_range", |path, length| {
        let file = open(path);
        let (mut from, mut to) = (length as i64 - 32768, length as i64 - 16384);
        // SAFETY: it takes descriptors, numbers, and offsets that live until it returns.
        let copied = unsafe {
            libc::copy_file_range(
                file.as_raw_fd(),
                &raw mut from,
                file.as_raw_fd(),
                &raw mut to,
                8192,
                0,
            )
        };
        assert_eq!(copied, 8192, "{}", std::io::Error::last_os_error());
    }),
    ("splice", |path, length| {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        writer.write_all(b"x").expect("write");
        let (file, mut at) = (open(path), length as i64 - 10);
        // SAFETY: it takes descriptors, numbers, and an offset that lives until it returns.
        let moved = unsafe {
            libc::splice(
                reader.as_raw_fd(),
                std::ptr::null_mut(),
                file.as_raw_fd(),
                &raw mut at,
                1,
                0,
            )
        };
        assert_eq!(moved, 1, "{}", std::io::Error::last_os_error());
        drop(writer);
        let _ = reader.read(&mut [0; 1]);
    }),
];

/// Returns the effective user that `program`, which is `id`, runs as when the user `nobody` starts
/// it.
///
/// A child that another test has just forked holds the descriptors of this process, also those that
/// were open for writing to the program, until it executes its own program. Until then the kernel
/// refuses to execute this one (`ETXTBSY`).
fn effective(program: &Path) -> String {
    let limit = Instant::now() + Duration::from_secs(60);
    let output = loop {
        match as_nobody(|| Command::new(program).arg("-u").output()) {
            Err(e) if e.raw_os_error() == Some(libc::ETXTBSY) && Instant::now() < limit => {
                std::thread::yield_now();
            }
            ended => break ended.expect("run"),
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_string()
}

fn set_user_id_program(m: &Real, name: &str) -> (std::path::PathBuf, u64) {
    let path = m.path(name);
    let mut program = fs::read("/usr/bin/id").expect("a program");
    program.resize(program.len() + 65536, 0);
    fs::write(&path, &program).expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).expect("chmod");
    (path, program.len() as u64)
}

#[test]
fn whoever_changes_a_program_gets_no_rights_by_it() {
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        for (way, change) in WAYS {
            let (path, length) = set_user_id_program(&m, &format!("program of {way}"));
            assert_eq!(effective(&path), "0", "as long as it was not changed");
            as_nobody(|| change(&path, length));
            assert_eq!(effective(&path), "65534", "after {way}, write-back: {write_back}");
            let mode = fs::metadata(&path).expect("stat").mode() & 0o7777;
            assert_eq!(mode, 0o777, "after {way}, write-back: {write_back}: {mode:o}");
        }
    }
}

#[test]
fn the_bits_are_gone_for_those_who_have_asked_before() {
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        for (way, change) in WAYS {
            let (path, length) = set_user_id_program(&m, &format!("program of {way}"));
            let open = File::open(&path).expect("open");
            assert_eq!(open.metadata().expect("stat").mode() & 0o6000, 0o6000);
            as_nobody(|| change(&path, length));
            assert_eq!(
                open.metadata().expect("stat").mode() & 0o6000,
                0,
                "after {way}, write-back: {write_back}"
            );
        }
    }
}

#[test]
fn root_keeps_them() {
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        for (way, change) in WAYS {
            let (path, length) = set_user_id_program(&m, &format!("program of {way}"));
            change(&path, length);
            assert_eq!(
                fs::metadata(&path).expect("stat").mode() & 0o6000,
                0o6000,
                "after {way}, write-back: {write_back}"
            );
        }
    }
}

#[test]
fn a_change_of_owner_takes_them_at_once() {
    for write_back in BOTH {
        let Some(m) = Real::new(write_back) else { return };
        let (path, _) = set_user_id_program(&m, "program");
        let open = File::open(&path).expect("open");
        std::os::unix::fs::chown(&path, Some(65534), None).expect("chown");
        assert_eq!(open.metadata().expect("stat").mode() & 0o6000, 0);
        assert_eq!(effective(&path), "65534");
    }
}
