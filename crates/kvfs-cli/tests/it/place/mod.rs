//! A store and a directory on which the `kvfs` command mounts it, with the operations that tests of
//! mounts need.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// A store and a directory to mount it on, in a directory of their own; unmounted and gone when
/// dropped.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Every mount that a failed test has left, even dead ones.
        while mount_table().contains(self.mnt().to_str().unwrap_or("?")) {
            if kvfs(&["umount", "--force"])
                .arg(self.mnt())
                .output()
                .is_ok_and(|o| !o.status.success())
            {
                break;
            }
        }
    }
}

pub fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words);
    command
}

/// Writes an executable script. A child process writes it: if this process had it open for writing,
/// a child that another test forks at that moment would hold the descriptor until it executes its
/// own program, and the kernel refuses to execute a file that is open for writing (`ETXTBSY`).
pub fn install_script(at: &Path, script: &str) {
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    succeeds(Command::new("sh").args(["-c", write]).arg(at).arg(script));
}

/// Copies the program under test, by a child process for the same reason.
pub fn install_program(at: &Path) {
    succeeds(Command::new("cp").arg(env!("CARGO_BIN_EXE_kvfs")).arg(at));
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command to its end. An unmount that finds the mount in use is repeated for a while: a
/// child that another test has just forked holds the open files of this process, too, until it
/// executes its own program.
pub fn output(command: &mut Command) -> Output {
    let is_unmount = command.get_program() == "umount"
        || command.get_args().any(|argument| argument == "umount");
    for _ in 0..100 {
        let ended = command.output().expect("it runs");
        let said = text(&ended.stderr);
        if ended.status.success()
            || !is_unmount
            || !(said.contains("busy") || said.contains("is in use"))
        {
            return ended;
        }
    }
    command.output().expect("it runs")
}

#[track_caller]
pub fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = output(command);
    assert!(status.success(), "{command:?}: {status}: {}", text(&stderr));
    text(&stdout)
}

/// Standard error of a command that must end with `code`.
#[track_caller]
pub fn fails(code: i32, command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("kvfs runs");
    assert_eq!(status.code(), Some(code), "{command:?}: {}{}", text(&stdout), text(&stderr));
    text(&stderr)
}

impl Place {
    /// `None`, with the reason printed, where this process may not mount.
    pub fn new() -> Option<Place> {
        if let Err(e) = fs::File::open("/dev/fuse") {
            eprintln!("SKIPPED: no FUSE here: cannot open /dev/fuse: {e}");
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: these tests mount as root does");
            return None;
        }
        let place = Place { dir: tempfile::tempdir().expect("a temporary directory") };
        fs::create_dir(place.mnt()).expect("mkdir");
        succeeds(kvfs(&["create"]).arg(place.store()));
        Some(place)
    }

    pub fn store(&self) -> PathBuf {
        self.dir.path().join("s.kvfs")
    }

    pub fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub fn mount(&self, words: &[&str]) -> Command {
        let mut command = kvfs(&["mount"]);
        command.arg(self.store()).arg(self.mnt()).args(words);
        command
    }

    pub fn umount(&self) -> Command {
        let mut command = kvfs(&["umount"]);
        command.arg(self.mnt());
        command
    }

    /// Mounts. Returns the process number of the daemon.
    #[track_caller]
    pub fn mounted(&self) -> i32 {
        let said = succeeds(self.mount(&["--json"]).stdin(Stdio::null()));
        let value: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        value["pid"].as_i64().expect("a pid") as i32
    }

    /// The daemon's process number.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        let said = succeeds(kvfs(&["--json", "stat"]).arg(self.mnt()));
        let stat: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        stat["daemon"]["pid"].as_i64().expect("a pid") as i32
    }

    /// Sends a command to the socket. Returns its answer of one line or one string.
    #[track_caller]
    pub fn ask(&self, words: &[&str]) -> String {
        let mut socket =
            UnixStream::connect(self.store().with_extension("kvfs.sock")).expect("a socket");
        let mut command = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| command.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        socket.write_all(command.as_bytes()).expect("sent");
        let mut lines = BufReader::new(socket).lines();
        let first = lines.next().expect("an answer").expect("text");
        match first.split_at(1) {
            ("$", _) => lines.next().expect("a string").expect("text"),
            ("+" | ":", rest) => rest.into(),
            _ => panic!("{words:?}: {first}"),
        }
    }

    /// The mount's line in the kernel's table.
    pub fn entry(&self) -> Option<String> {
        mount_table()
            .lines()
            .rfind(|l| l.contains(self.mnt().to_str().expect("UTF-8")))
            .map(String::from)
    }
}

/// The kernel's table of mounts. Other tests mount on paths that are not UTF-8.
pub fn mount_table() -> String {
    let table = fs::read("/proc/self/mountinfo").expect("mountinfo");
    String::from_utf8_lossy(&table).into_owned()
}

pub fn kill(pid: i32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("kill");
}

#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}
