//! Tests of the mount of another user that admits only that user. Every command says so, also to
//! root.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const USER: u32 = 65534;

/// Ends the mount when dropped.
struct Mount {
    dir: tempfile::TempDir,
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = kvfs(None, &["umount", "--force"]).arg(self.root()).output();
    }
}

impl Mount {
    fn root(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// Makes the mount of a user, or of root. Returns `None`, after printing the reason, if there
    /// can be none.
    fn of(user: Option<u32>) -> Option<Mount> {
        let skip = |why: &str| -> Option<Mount> {
            eprintln!("SKIPPED: {why}");
            None
        };
        if !rustix::process::geteuid().is_root() || fs::File::open("/dev/fuse").is_err() {
            return skip("this takes root and FUSE");
        }
        if !kvfs(Some(USER), &["--version"]).output().is_ok_and(|ended| ended.status.success()) {
            return skip("another user cannot run the program where it was built");
        }
        let device = fs::metadata("/dev/fuse").expect("it is there").permissions().mode();
        if user.is_some() && device & 0o006 != 0o006 {
            return skip("users may not open /dev/fuse here");
        }
        if user.is_some() && Command::new("fusermount3").arg("-V").output().is_err() {
            return skip("there is no fusermount3 here");
        }
        let mount = Mount { dir: tempfile::tempdir().expect("a temporary directory") };
        fs::set_permissions(mount.dir.path(), fs::Permissions::from_mode(0o755)).expect("set");
        fs::create_dir(mount.root()).expect("mkdir");
        for path in [mount.dir.path(), &mount.root()] {
            chown(path, user, user).expect("given");
        }
        let store = mount.dir.path().join("store");
        let succeeds = |words: &[&str], paths: &[&Path]| {
            let mut command = kvfs(user, words);
            let ended = command.args(paths).env("HOME", mount.dir.path()).output().expect("runs");
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        };
        succeeds(&["create"], &[&store]);
        succeeds(&["mount"], &[&store, &mount.root()]);
        Some(mount)
    }
}

fn kvfs(user: Option<u32>, words: &[&str]) -> Command {
    let program = env!("CARGO_BIN_EXE_kvfs");
    let mut command = match user {
        None => Command::new(program),
        Some(user) => {
            let mut command = Command::new("setpriv");
            let (user, group) = (format!("--reuid={user}"), format!("--regid={user}"));
            command.args([&user, &group, "--clear-groups", program]);
            command
        }
    };
    command.args(words).stdin(Stdio::null()).current_dir("/");
    command.env_remove("XDG_RUNTIME_DIR").env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

#[track_caller]
fn is_said(mount: &Mount, as_user: Option<u32>, owner: &str) {
    for words in [
        &["stat", "MNT"][..],
        &["ls", "MNT"],
        &["cat", "MNT", "file"],
        &["du", "MNT"],
        &["find", "MNT"],
        &["txn", "list", "MNT"],
        &["txn", "begin", "MNT"],
        &["run", "MNT", "--", "true"],
        &["kv", "get", "MNT", "key"],
        &["dict", "list", "MNT"],
        &["history", "MNT"],
        &["undo", "MNT"],
        &["snapshot", "list", "MNT"],
        &["changes", "MNT"],
        &["top", "--once", "MNT"],
        &["web", "MNT"],
        &["mcp", "MNT"],
        &["check", "MNT"],
        &["scrub", "MNT"],
        &["defrag", "MNT"],
        &["export", "MNT", "-"],
        &["import", "MNT", "/etc/hosts"],
        &["bench", "MNT"],
        &["rm", "-r", "MNT/file"],
        &["mount", "/dev/null", "MNT"],
    ] {
        let root = mount.root().display().to_string();
        let words: Vec<String> = words.iter().map(|word| word.replace("MNT", &root)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ended = kvfs(as_user, &words).output().expect("kvfs runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        let sentence = format!("kvfs: {root} belongs to user {owner}: FUSE lets in no one else");
        assert!(said.starts_with(&sentence), "{words:?}: {said}");
        assert!(said.contains("allow_other"), "{words:?}: {said}");
        let code = if words[0] == "run" { 125 } else { 7 };
        assert_eq!(ended.status.code(), Some(code), "{words:?}");
    }
}

#[test]
fn to_others_it_is_said_whose_the_mount_is() {
    let Some(mount) = Mount::of(None) else { return };
    is_said(&mount, Some(USER), "root (uid 0)");
}

#[test]
fn to_root_it_is_said_too_and_root_may_unmount_it() {
    let Some(mount) = Mount::of(Some(USER)) else { return };
    is_said(&mount, None, "nobody (uid 65534)");
    let ended = kvfs(None, &["umount"]).arg(mount.root()).output().expect("kvfs runs");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}
