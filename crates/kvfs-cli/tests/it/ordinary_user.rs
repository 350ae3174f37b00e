//! Tests of a mount with a keeper by a user without privileges. It continues when its daemon is
//! killed, and can be upgraded to another program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Anyone but root.
const USER: u32 = 65_534;

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A place of the user's.
struct Place {
    dir: tempfile::TempDir,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.kvfs(&["umount", "--force"]).arg(self.path("mnt")).output();
    }
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn by_user(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.uid(USER).gid(USER).current_dir("/").env("XDG_RUNTIME_DIR", self.path("run"));
        command.stdin(Stdio::null());
        command
    }

    fn kvfs(&self, words: &[&str]) -> Command {
        let mut command = self.by_user(&self.path("kvfs"));
        command.args(words);
        command
    }

    #[track_caller]
    fn succeeds(&self, command: &mut Command) -> String {
        let said = crate::place::output(command);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(said.status.success(), "{command:?}: {}", text(&said.stderr));
        text(&said.stdout)
    }

    /// The daemon that the record names.
    fn daemon(&self) -> Option<i32> {
        let run = fs::read_dir(self.path("run/kvfs")).ok()?;
        let records = run.flatten().filter(|e| e.path().extension().is_some_and(|x| x == "json"));
        let record = fs::read(records.map(|e| e.path()).next()?).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&record).ok()?;
        Some(record["pid"].as_i64()? as i32)
    }

    /// A shell of the user's that reads and writes an open file in the mount, and says so.
    fn program(&self) -> std::process::Child {
        let script = format!(
            "cd {}; exec 3<>f; while read word; do echo $word >&3; cat f; echo .; done",
            self.path("mnt").display()
        );
        let mut command = self.by_user(Path::new("/bin/sh"));
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().expect("sh")
    }
}

fn place() -> Option<Place> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: this test becomes another user");
        return None;
    }
    let helper = ["/usr/bin/fusermount3", "/bin/fusermount3"].map(Path::new);
    let setuid = |path: &Path| path.metadata().is_ok_and(|m| m.permissions().mode() & 0o4000 != 0);
    if !helper.into_iter().any(setuid) {
        eprintln!("SKIPPED: there is no fusermount3 by which users mount");
        return None;
    }
    let place = Place { dir: tempfile::tempdir().expect("a directory") };
    for name in ["", "mnt", "run"] {
        fs::create_dir_all(place.path(name)).expect("made");
        std::os::unix::fs::chown(place.path(name), Some(USER), Some(USER)).expect("given");
    }
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("set");
    crate::place::install_program(&place.path("kvfs"));
    let open = Command::new("/bin/sh").args(["-c", "exec 3<>/dev/fuse"]).uid(USER).status();
    if !open.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: users may not open /dev/fuse here");
        return None;
    }
    place.succeeds(place.kvfs(&["create"]).arg(place.path("s.kvfs")));
    Some(place)
}

#[test]
fn a_users_mount_goes_on_when_its_daemon_is_killed_and_upgraded() {
    use std::io::{BufRead, BufReader, Write};
    let Some(place) = place() else { return };
    let mut mount = place.kvfs(&["mount", "-o", "keeper"]);
    place.succeeds(mount.arg(place.path("s.kvfs")).arg(place.path("mnt")));
    let mut program = place.program();
    let mut says = program.stdin.take().expect("piped");
    let mut lines = BufReader::new(program.stdout.take().expect("piped")).lines();
    let mut written = Vec::new();
    let mut works = |word: String| {
        writeln!(says, "{word}").expect("asked");
        written.push(word);
        let seen: Vec<String> =
            lines.by_ref().map(|line| line.expect("text")).take_while(|line| line != ".").collect();
        assert_eq!(seen, written);
    };
    works("first".into());
    for round in 0..3 {
        let before = place.daemon().expect("a record");
        let pid = rustix::process::Pid::from_raw(before).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
        works(format!("killed {round}"));
        until("another one serves", || place.daemon().is_some_and(|now| now != before));
        let before = place.daemon().expect("a record");
        place.succeeds(place.kvfs(&["mount", "--upgrade"]).arg(place.path("mnt")));
        assert_ne!(place.daemon(), Some(before));
        works(format!("upgraded {round}"));
    }
    drop(says);
    assert!(program.wait().expect("it ends").success());
    place.succeeds(place.kvfs(&["umount"]).arg(place.path("mnt")));
    until("the store is closed", || {
        let checked = place.kvfs(&["check"]).arg(place.path("s.kvfs")).output().expect("kvfs");
        checked.status.success() && String::from_utf8_lossy(&checked.stdout).contains("clean")
    });
}
