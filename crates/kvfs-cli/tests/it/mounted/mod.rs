//! A new store that the `kvfs` command has mounted in a new directory. Dropping it unmounts and
//! removes both.
//!
//! The daemon has to be another process than the test: a process that unmaps a file it serves
//! itself waits for an answer while the kernel keeps it from changing its memory, which the answer
//! may need.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub struct Mount {
    dir: tempfile::TempDir,
    write_back: bool,
}

fn kvfs() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.stdin(Stdio::null());
    command
}

#[track_caller]
fn succeeds(command: &mut Command) {
    let output = crate::place::output(command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Mount {
    /// `None`, with the reason printed, where this process may not mount.
    #[allow(dead_code, reason = "some tests mount in both modes")]
    pub fn new() -> Option<Mount> {
        Mount::in_mode(false)
    }

    /// Mounts with write-through, or with writes that the kernel gathers.
    pub fn in_mode(write_back: bool) -> Option<Mount> {
        Mount::below(OsStr::new(".tmp"), write_back)
    }

    /// Mounts in a temporary directory whose name begins in this way.
    #[allow(dead_code, reason = "not every test that mounts needs it")]
    pub fn below(prefix: &OsStr, write_back: bool) -> Option<Mount> {
        if let Err(e) = std::fs::File::open("/dev/fuse") {
            eprintln!("SKIPPED: no FUSE here: cannot open /dev/fuse: {e}");
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: these tests mount as root does");
            return None;
        }
        let dir = tempfile::Builder::new().prefix(prefix).tempdir().expect("a temporary directory");
        let mount = Mount { dir, write_back };
        std::fs::create_dir(mount.root()).expect("mkdir");
        succeeds(kvfs().arg("create").arg(mount.store()));
        mount.mount();
        Some(mount)
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn mount(&self) {
        let mode = if self.write_back { "writeback" } else { "nowriteback" };
        succeeds(kvfs().arg("mount").args(["-o", mode]).arg(self.store()).arg(self.root()));
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    #[allow(dead_code, reason = "not every test that mounts needs it")]
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root().join(name)
    }

    #[allow(dead_code, reason = "not every test that mounts needs it")]
    /// Unmounts and mounts again. Everything that exists afterwards was in the store.
    pub fn again(self) -> Mount {
        // A child that another test is just starting holds our files, too, until it becomes its
        // program: busy then is no fault.
        let umount = || kvfs().arg("umount").arg(self.root()).output().expect("kvfs runs");
        let busy = |ended: &std::process::Output| ended.status.code() == Some(4);
        let mut ended = umount();
        for _ in 0..100 {
            if !busy(&ended) {
                break;
            }
            ended = umount();
        }
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        self.mount();
        self
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = kvfs().arg("umount").arg("--force").arg(self.root()).output();
    }
}
