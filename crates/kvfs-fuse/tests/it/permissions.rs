//! Tests of a mount for root alone, on which the kernel checks no permissions. Root sees the same
//! as on a mount with checks, and no other user gets access.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::real::{Real, as_nobody, may_mount, policy};
use kvdb::Kvdb;
use kvfs::{Fs, FsOptions, Views};
use kvfs_fuse::{Error, FuseAdapter, MountOptions, mount};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Returns the answers of access(2) for a path, one for each mask.
fn access(path: &Path) -> Vec<bool> {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
    // SAFETY: it takes a path that lives until it returns, and a number.
    (0..8).map(|mask| unsafe { libc::access(path.as_ptr(), mask) } == 0).collect()
}

/// Returns the permissions of root on a file and a directory of a mode, found out in all ways.
fn allowed(dir: &Path, mode: u32) -> Vec<(String, Vec<bool>)> {
    let (file, directory) =
        (dir.join(format!("file {mode:o}")), dir.join(format!("directory {mode:o}")));
    // A child process writes it, so that no descriptor of this process that is open for writing
    // makes the kernel refuse to execute it.
    let script = "printf '#!/bin/sh\\nexit 0\\n' > \"$0\"";
    assert!(Command::new("sh").arg("-c").arg(script).arg(&file).status().expect("sh").success());
    fs::create_dir(&directory).expect("mkdir");
    for path in [&file, &directory] {
        std::os::unix::fs::chown(path, Some(1234), Some(1234)).expect("chown");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    }
    let told = |what: &str, answers| (format!("{what} {mode:o}"), answers);
    vec![
        told("access to the file", access(&file)),
        told("access to the directory", access(&directory)),
        told("open to read", vec![File::open(&file).is_ok()]),
        told("open to write", vec![File::options().append(true).open(&file).is_ok()]),
        told("run", vec![Command::new(&file).status().is_ok_and(|s| s.success())]),
        told(
            "change into",
            vec![Command::new("true").current_dir(&directory).status().is_ok_and(|s| s.success())],
        ),
        told("make a file in", vec![File::create(directory.join("new")).is_ok()]),
        told("list", vec![fs::read_dir(&directory).is_ok()]),
        told("remove a file in", vec![fs::remove_file(directory.join("new")).is_ok()]),
    ]
}

#[test]
fn root_is_told_the_same_as_where_the_kernel_checks() {
    let (Some(alone), Some(checked)) = (Real::of_root_alone(), Real::new(false)) else { return };
    for mode in
        [0, 0o100, 0o010, 0o001, 0o111, 0o200, 0o400, 0o600, 0o644, 0o755, 0o777, 0o4600, 0o1777]
    {
        assert_eq!(allowed(alone.dir.path(), mode), allowed(checked.dir.path(), mode));
    }
}

#[test]
fn nobody_else_gets_in() {
    let Some(m) = Real::of_root_alone() else { return };
    fs::write(m.path("open to all"), "x").expect("write");
    fs::set_permissions(m.path("open to all"), fs::Permissions::from_mode(0o666)).expect("chmod");
    let errors = as_nobody(|| {
        (
            fs::read(m.path("open to all")).err(),
            fs::read_dir(m.dir.path()).err(),
            fs::metadata(m.path("open to all")).err(),
        )
    });
    for error in [errors.0, errors.1, errors.2] {
        assert_eq!(error.expect("refused").kind(), std::io::ErrorKind::PermissionDenied);
    }
}

/// Tries to mount with these options, and returns the result.
fn refusal() -> Option<Error> {
    let (dir, db) = (tempfile::tempdir().expect("a temporary directory"), Kvdb::in_memory());
    let fs = Fs::open(db.clone(), Arc::new(env::Machine::default()), FsOptions::default())
        .expect("a file system");
    let options = MountOptions { default_permissions: false, ..MountOptions::default() };
    mount(Arc::new(FuseAdapter::new(Views::new(db, fs))), dir.path(), &options, &policy(false))
        .err()
}

#[test]
fn who_is_bound_by_modes_cannot_mount_so() {
    if !may_mount() {
        return;
    }
    assert!(matches!(as_nobody(refusal), Some(Error::BoundByModes)), "a user");
    let without_the_capability = std::thread::spawn(|| {
        let mut sets = capabilities(None).expect("the sets of this thread");
        sets.effective.remove(CapabilitySet::DAC_OVERRIDE);
        set_capabilities(None, sets).expect("a thread may give up what it has");
        refusal()
    });
    assert!(
        matches!(without_the_capability.join().expect("no panic"), Some(Error::BoundByModes)),
        "root without CAP_DAC_OVERRIDE"
    );
}
