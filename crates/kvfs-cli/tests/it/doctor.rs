//! Tests of `kvfs doctor` on simulated machines, which are files below a directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::Value;

struct Machine(tempfile::TempDir);

impl Machine {
    /// A machine without problems.
    fn new() -> Machine {
        let machine = Machine(tempfile::tempdir().expect("a directory"));
        for (path, text) in [
            ("proc/sys/kernel/osrelease", "6.14.2-arch1\n"),
            ("proc/filesystems", "nodev\tproc\nnodev\tfuse\n\text4\n"),
            ("dev/fuse", ""),
            ("usr/bin/fusermount3", ""),
            ("etc/fuse.conf", "# comment\nuser_allow_other\n"),
            ("proc/sys/user/max_user_namespaces", "63000\n"),
            ("proc/sys/kernel/unprivileged_userns_clone", "1\n"),
            ("proc/sys/kernel/io_uring_disabled", "0\n"),
            ("sys/module/fuse/parameters/enable_uring", "Y\n"),
            ("proc/sys/fs/fuse/max_pages_limit", "256\n"),
            (
                "proc/self/limits",
                "Limit   Soft Limit   Hard Limit   Units\nMax open files            4096                 524288               files\n",
            ),
            (
                "proc/self/mountinfo",
                "36 1 0:42 / /mnt/work rw,nosuid - fuse.kvfs /my.kvfs rw\n37 1 0:43 / /other rw - ext4 /dev/sda rw\n",
            ),
            ("sys/class/bdi/0:42/read_ahead_kb", "1024\n"),
        ] {
            machine.write(path, text);
        }
        machine.mode("usr/bin/fusermount3", 0o4755);
        machine.mode("dev/fuse", 0o666);
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn mode(&self, path: &str, mode: u32) {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(self.0.path().join(path), mode).expect("a mode");
    }

    fn without(&self, path: &str) {
        fs::remove_file(self.0.path().join(path)).expect("removed");
    }

    fn ask(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
        command.args(["doctor", "--unprivileged", "--root"]).arg(self.0.path()).args(words);
        command.output().expect("it runs")
    }

    /// The verdict of one check, its advice, and the exit code.
    #[track_caller]
    fn verdict(&self, check: &str) -> (String, String, i32) {
        let output = self.ask(&["--json"]);
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let all = said["findings"].as_array().expect("a list");
        let found = all.iter().find(|f| f["check"] == check).unwrap_or_else(|| panic!("{said}"));
        let text = |name: &str| found[name].as_str().unwrap_or_default().to_string();
        let code = output.status.code().expect("a code");
        assert_eq!(said["healthy"], code == 0);
        (text("verdict"), text("mend"), code)
    }
}

#[test]
fn a_machine_that_has_everything_is_well() {
    let machine = Machine::new();
    let output = machine.ask(&["--strict"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.lines().count(), 9, "{text}");
    assert!(text.lines().all(|line| line.starts_with("ok ")), "{text}");
    assert!(text.contains("1024 KiB on /mnt/work"), "{text}");
}

#[test]
fn what_is_wrong_is_said_with_its_remedy() {
    type Break = fn(&Machine);
    let cases: [(&str, Break, &str, &str, i32); 17] = [
        ("kernel", |m| m.write("proc/sys/kernel/osrelease", "4.19.0\n"), "error", "Linux 5.2", 1),
        ("kernel", |m| m.without("proc/sys/kernel/osrelease"), "error", "mount /proc", 1),
        ("kernel", |m| m.write("proc/sys/kernel/osrelease", "six\n"), "error", "mount /proc", 1),
        ("FUSE", |m| m.without("dev/fuse"), "error", "mknod", 1),
        (
            "FUSE",
            |m| {
                m.without("dev/fuse");
                m.write("proc/filesystems", "nodev\tfusectl\n");
            },
            "error",
            "modprobe fuse",
            1,
        ),
        ("FUSE", |m| m.mode("dev/fuse", 0o600), "warning", "chmod 666", 0),
        ("fusermount3", |m| m.without("usr/bin/fusermount3"), "warning", "fuse3", 0),
        ("fusermount3", |m| m.mode("usr/bin/fusermount3", 0o755), "warning", "chmod u+s", 0),
        (
            "allow_other",
            |m| m.write("etc/fuse.conf", "#user_allow_other\n"),
            "note",
            "fuse.conf",
            0,
        ),
        (
            "name spaces",
            |m| m.write("proc/sys/user/max_user_namespaces", "0\n"),
            "warning",
            "max_user_namespaces",
            0,
        ),
        (
            "name spaces",
            |m| m.write("proc/sys/kernel/unprivileged_userns_clone", "0\n"),
            "warning",
            "unprivileged_userns_clone=1",
            0,
        ),
        (
            "name spaces",
            |m| m.write("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n"),
            "warning",
            "apparmor",
            0,
        ),
        ("io_uring", |m| m.write("proc/sys/kernel/osrelease", "6.1.0\n"), "note", "Linux 6.14", 0),
        (
            "io_uring",
            |m| m.write("proc/sys/kernel/io_uring_disabled", "1\n"),
            "warning",
            "io_uring_disabled=0",
            0,
        ),
        (
            "io_uring",
            |m| m.write("sys/module/fuse/parameters/enable_uring", "N\n"),
            "warning",
            "enable_uring",
            0,
        ),
        (
            "max_pages_limit",
            |m| m.write("proc/sys/fs/fuse/max_pages_limit", "32\n"),
            "warning",
            "=256",
            0,
        ),
        (
            "readahead",
            |m| m.write("sys/class/bdi/0:42/read_ahead_kb", "128\n"),
            "warning",
            "echo 1024",
            0,
        ),
    ];
    for (check, breaks, verdict, mend, code) in cases {
        let machine = Machine::new();
        breaks(&machine);
        let found = machine.verdict(check);
        assert_eq!((found.0.as_str(), found.2), (verdict, code), "{check}: {found:?}");
        assert!(found.1.contains(mend), "{check}: {found:?}");
        let strict = machine.ask(&["--strict"]).status.code();
        assert_eq!(strict, Some(i32::from(verdict != "note")), "{check}");
    }
    let machine = Machine::new();
    machine.write("proc/self/limits", "Max open files            256    512   files\n");
    assert_eq!(machine.verdict("open files").0, "warning");
    // The daemon raises the first limit to the second.
    machine.write("proc/self/limits", "Max open files            256    524288   files\n");
    assert_eq!(machine.verdict("open files").0, "ok");
    machine.write("proc/self/limits", "Max open files            256    unlimited   files\n");
    assert_eq!(machine.verdict("open files").0, "ok");
    machine.write("proc/self/limits", "nonsense\n");
    assert_eq!(machine.verdict("open files").0, "note");
}

#[test]
fn an_empty_root_and_none_are_told() {
    let empty = tempfile::tempdir().expect("a directory");
    let doctor = |root: &std::path::Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
        command.args(["doctor", "--root"]).arg(root).output().expect("it runs")
    };
    let output = doctor(empty.path());
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("things are to be mended"), "{said}");
    assert_eq!(doctor(&empty.path().join("nowhere")).status.code(), Some(3));
    // On this machine, whatever it is, the command answers with a matching exit code.
    let output = doctor(std::path::Path::new("/"));
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
}
