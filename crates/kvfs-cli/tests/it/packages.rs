//! Tests of the files that `make install` and `make deb` install: the program under test, its mount
//! helpers, man pages, completions and the systemd unit.
//!
//! The package is unpacked by `dpkg --root` in a directory: its files and its database are those of
//! a machine of its own, while libraries and shells are this one's.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// Returns whether a program is on this machine.
fn has(program: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let there = there.is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("SKIPPED: there is no {program} here");
    }
    there
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    assert!(
        status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8_lossy(&stdout).into_owned()
}

const KVFS: &str = env!("CARGO_BIN_EXE_kvfs");

#[test]
fn an_installation_has_its_helpers_pages_completions_and_unit() {
    if !has("make") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = Command::new("make");
    command.args(["-s", "install-files"]).arg(format!("KVFS={KVFS}")).current_dir(root());
    succeeds(
        command.arg(format!("DESTDIR={}", directory.path().display())).env_remove("MAKEFLAGS"),
    );
    let at = |path: &str| directory.path().join(path);
    for helper in ["mount.fuse.kvfs", "mount.kvfs", "umount.fuse.kvfs"] {
        let target = fs::read_link(at("sbin").join(helper)).expect("a link");
        assert_eq!(target, Path::new("/usr/local/bin/kvfs"));
    }
    // Every command has a page of its own, those of new commands, too.
    let commands = succeeds(Command::new(KVFS).arg("--help"));
    let commands = commands.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = commands.take_while(|line| line.starts_with("  "));
    // Lines with more indentation are the rest of a description.
    let names = names.filter(|line| !line.starts_with("   "));
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"mcp") && names.contains(&"doctor"), "{names:?}");
    for name in names.iter().filter(|name| **name != "help") {
        let page = at(&format!("usr/local/share/man/man1/kvfs-{name}.1"));
        let text = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(text.contains(".SH SYNOPSIS"), "{name}");
    }
    let share = |path: &str| {
        let path = at("usr/local/share").join(path);
        (fs::read_to_string(&path).expect("a completion"), path)
    };
    for (path, shell) in [
        ("bash-completion/completions/kvfs", "bash"),
        ("zsh/site-functions/_kvfs", "zsh"),
        ("fish/vendor_completions.d/kvfs.fish", "fish"),
    ] {
        let (text, path) = share(path);
        assert!(text.contains("restore") && text.contains("doctor"), "{shell}");
        if has(shell) {
            succeeds(Command::new(shell).arg("-n").arg(path));
        }
    }
    // These are the completions of bash.
    if has("bash") {
        let script = format!(
            "source {}; COMP_WORDS=(kvfs resto); COMP_CWORD=1; _kvfs kvfs resto kvfs; echo \"${{COMPREPLY[@]}}\"",
            at("usr/local/share/bash-completion/completions/kvfs").display()
        );
        assert_eq!(succeeds(Command::new("bash").arg("-c").arg(script)).trim(), "restore");
    }
    let unit =
        fs::read_to_string(at("usr/local/lib/systemd/system/kvfs@.service")).expect("a unit");
    assert!(
        unit.contains("ExecStart=/usr/local/bin/kvfs mount") && !unit.contains("@BIN@"),
        "{unit}"
    );
    // A daemon that was killed is started again; the service gives up rights that it does not need.
    for setting in ["Restart=on-failure", "NoNewPrivileges=yes", "MemoryDenyWriteExecute=yes"] {
        assert!(unit.lines().any(|line| line == setting), "{setting} in {unit}");
    }
}

#[test]
fn systemd_takes_the_unit() {
    if !has("systemd-analyze") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let unit = fs::read_to_string(root().join("packaging/kvfs@.service.in")).expect("the unit");
    let bin = Path::new(KVFS).parent().expect("a directory").display().to_string();
    let path = directory.path().join("kvfs@work.service");
    fs::write(&path, unit.replace("@BIN@", &bin)).expect("written");
    let output = Command::new("systemd-analyze").arg("verify").arg("--man=no").arg(&path).output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("kvfs@work.service"), "{said}");
}

#[test]
fn a_package_is_installed_runs_and_is_removed() {
    if !has("dpkg-deb") || !has("make") || !rustix::process::geteuid().is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (out, machine) = (directory.path().join("out"), directory.path().join("machine"));
    let mut command = Command::new("sh");
    command.arg(root().join("scripts/deb.sh")).arg(KVFS).arg(&out).env_remove("MAKEFLAGS");
    let package = PathBuf::from(succeeds(&mut command).trim());
    let control = succeeds(Command::new("dpkg-deb").arg("--field").arg(&package));
    assert!(
        control.contains("Package: kvfs") && control.contains("Recommends: fuse3"),
        "{control}"
    );
    fs::create_dir_all(machine.join("var/lib/dpkg/info")).expect("directories");
    fs::create_dir_all(machine.join("var/lib/dpkg/updates")).expect("directories");
    fs::write(machine.join("var/lib/dpkg/status"), "").expect("written");
    let dpkg = |words: &[&str]| {
        let mut command = Command::new("dpkg");
        command
            .arg(format!("--root={}", machine.display()))
            .args(["--force-depends", "--force-not-root"]);
        command.args(words);
        command
    };
    succeeds(dpkg(&["--install"]).arg(&package));
    let kvfs = machine.join("usr/bin/kvfs");
    assert!(succeeds(Command::new(&kvfs).arg("--version")).starts_with("kvfs "));
    let store = directory.path().join("s.kvfs");
    succeeds(Command::new(&kvfs).arg("create").arg(&store));
    succeeds(Command::new(&kvfs).arg("check").arg(&store));
    assert!(machine.join("usr/share/man/man1/kvfs-mount.1.gz").exists());
    let helper = fs::read_link(machine.join("usr/sbin/mount.fuse.kvfs")).expect("a link");
    assert_eq!(helper, Path::new("/usr/bin/kvfs"));
    // The program is called as by mount(8): the helper answers the wrong use.
    let as_helper = directory.path().join("mount.fuse.kvfs");
    symlink(&kvfs, &as_helper).expect("a link");
    let output =
        Command::new(&as_helper).arg(directory.path().join("nowhere")).output().expect("it runs");
    assert!(!output.status.success());
    succeeds(&mut dpkg(&["--remove", "kvfs"]));
    assert!(!kvfs.exists() && !machine.join("usr/lib/systemd/system/kvfs@.service").exists());
}
