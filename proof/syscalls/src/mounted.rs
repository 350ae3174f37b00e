//! A KVFS store of the tester, driven by the `kvfs` command: it is mounted, killed, mounted again,
//! and used in and outside of transactions.

use std::ffi::CString;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::kernel::sys;

/// A result whose error is a sentence about a failed step around the calls.
pub type Outcome<T> = Result<T, String>;

pub struct Mounted {
    kvfs: PathBuf,
    store: PathBuf,
    root: PathBuf,
    options: String,
}

impl Mounted {
    /// A new store in `directory`, mounted there with further `options` for `-o`.
    pub fn new(kvfs: &Path, directory: &Path, options: &str) -> Outcome<Mounted> {
        let options = if options.is_empty() {
            "allow_other".to_owned()
        } else {
            format!("allow_other,{options}")
        };
        let mounted = Mounted {
            kvfs: kvfs.to_owned(),
            store: directory.join("store.kvfs"),
            root: directory.join("mnt"),
            options,
        };
        std::fs::create_dir_all(&mounted.root)
            .map_err(|e| format!("cannot make {}: {e}", mounted.root.display()))?;
        mounted.kvfs(&["create".as_ref(), mounted.store.as_ref()])?;
        mounted.mount()?;
        Ok(mounted)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn kvfs(&self, arguments: &[&std::ffi::OsStr]) -> Outcome<String> {
        let output = Command::new(&self.kvfs).args(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|e| format!("cannot run {}: {e}", self.kvfs.display()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
        Err(format!("kvfs {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
    }

    fn mount(&self) -> Outcome<()> {
        let log = self.store.with_extension("log");
        let words = [
            "mount".as_ref(),
            self.store.as_os_str(),
            self.root.as_ref(),
            "-o".as_ref(),
            self.options.as_ref(),
        ];
        self.kvfs(&[&words[..], &["--log".as_ref(), log.as_ref()]].concat()).map(drop)
    }

    /// Everything written so far is on disk afterwards.
    pub fn save(&self) -> Outcome<()> {
        let socket = self.status("socket")?;
        let cannot = |e: std::io::Error| format!("cannot SAVE by {socket}: {e}");
        let mut stream = UnixStream::connect(&socket).map_err(cannot)?;
        stream.write_all(b"*1\r\n$4\r\nSAVE\r\n").map_err(cannot)?;
        let mut answer = [0u8; 128];
        let got = stream.read(&mut answer).map_err(cannot)?;
        let answer = String::from_utf8_lossy(&answer[..got]).trim().to_owned();
        if answer == "+OK" { Ok(()) } else { Err(format!("SAVE: {answer}")) }
    }

    /// A field of the daemon's record in `kvfs stat --json`.
    fn status(&self, field: &str) -> Outcome<String> {
        let status = self.kvfs(&["stat".as_ref(), self.root.as_ref(), "--json".as_ref()])?;
        let daemon = status.split("\"daemon\":").nth(1).unwrap_or_default();
        let value = daemon
            .split(&format!("\"{field}\":"))
            .nth(1)
            .and_then(|rest| rest.split([',', '}']).next());
        value
            .map(|value| value.trim_matches('"').to_owned())
            .ok_or(format!("no {field} in {status}"))
    }

    /// SIGKILL of the daemon.
    pub fn kill(&self) -> Outcome<()> {
        let pid = self.status("pid")?;
        let pid: i32 = pid.parse().map_err(|e| format!("the daemon's pid '{pid}': {e}"))?;
        sys!(libc::kill(pid, libc::SIGKILL))
            .map_err(|e| format!("cannot kill {pid}: {}", e.name()))?;
        for _ in 0..2000 {
            if !Path::new(&format!("/proc/{pid}/exe")).exists() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(format!("the killed daemon {pid} does not end"))
    }

    pub fn mount_again(&self) -> Outcome<()> {
        self.mount()
    }

    /// Replaces the daemon by the same program, with the mount in use.
    pub fn upgrade(&self) -> Outcome<()> {
        self.kvfs(&["mount".as_ref(), "--upgrade".as_ref(), self.root.as_ref()]).map(drop)
    }

    /// SIGKILL of the daemon of a mount with a keeper, under the calls. Another one serves when
    /// this returns.
    pub fn restart(&self) -> Outcome<()> {
        // Between two daemons none can answer.
        let pid = || self.status("pid").ok().and_then(|pid| pid.parse::<i32>().ok());
        let mut before = pid();
        for _ in 0..2000 {
            if before.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            before = pid();
        }
        let before = before.ok_or("no daemon says that it serves")?;
        sys!(libc::kill(before, libc::SIGKILL))
            .map_err(|e| format!("cannot kill {before}: {}", e.name()))?;
        for _ in 0..2000 {
            if pid().is_some_and(|now| now != before) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(format!("no daemon follows {before}, which was killed"))
    }

    /// Unmounts cleanly and mounts again.
    pub fn remount(&self) -> Outcome<()> {
        // A process that has just been killed may hold its files for a moment longer.
        for _ in 0..200 {
            match self.kvfs(&["umount".as_ref(), self.root.as_ref()]) {
                Ok(_) => return self.mount(),
                Err(why) if !why.contains("in use") && !why.contains("busy") => return Err(why),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        Err("the mount stays busy".to_owned())
    }

    /// Begins a transaction and binds its view to [`Mounted::view`]. Its own path leads through a
    /// directory of root's, and a program of another user that goes by the path of its working
    /// directory, as rsync does, would fail on that.
    pub fn begin(&self, isolation: &str) -> Outcome<String> {
        let id = self.kvfs(&[
            "txn".as_ref(),
            "begin".as_ref(),
            self.root.as_ref(),
            "--isolation".as_ref(),
            isolation.as_ref(),
        ])?;
        let bound = bind(&self.root.join(".kvfs/txn").join(&id), &self.view());
        if let Err(why) = bound {
            let _ = self.end_only("abort", &id);
            return Err(why);
        }
        Ok(id)
    }

    /// The path of the view of the transaction that was begun.
    pub fn view(&self) -> PathBuf {
        self.store.with_extension("view")
    }

    /// `commit` or `abort`.
    pub fn end(&self, how: &str, id: &str) -> Outcome<()> {
        self.unbind();
        self.end_only(how, id)
    }

    fn end_only(&self, how: &str, id: &str) -> Outcome<()> {
        self.kvfs(&["txn".as_ref(), how.as_ref(), self.root.as_ref(), id.as_ref()]).map(drop)
    }

    /// Files in it may stay open.
    fn unbind(&self) {
        if let Ok(at) = CString::new(self.view().as_os_str().as_bytes()) {
            let _ = sys!(libc::umount2(at.as_ptr(), libc::MNT_DETACH));
        }
    }

    /// Unmounts and checks the store for damage.
    pub fn finish(&self) -> Outcome<String> {
        self.kvfs(&["umount".as_ref(), self.root.as_ref()])?;
        self.kvfs(&["check".as_ref(), self.store.as_ref()])
    }
}

/// Makes what lies at `from` visible at `to`, a directory that is made if it is missing.
fn bind(from: &Path, to: &Path) -> Outcome<()> {
    let cannot = |why: String| format!("cannot bind {} to {}: {why}", from.display(), to.display());
    std::fs::create_dir_all(to).map_err(|e| cannot(e.to_string()))?;
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let (from, to) = match (path(from), path(to)) {
        (Ok(from), Ok(to)) => (from, to),
        _ => return Err(cannot("a zero byte in a path".to_owned())),
    };
    let (none, flags) = (std::ptr::null(), libc::MS_BIND);
    sys!(libc::mount(from.as_ptr(), to.as_ptr(), none, flags, none.cast()))
        .map(drop)
        .map_err(|e| cannot(e.name()))
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.unbind();
        let _ = self.kvfs(&["umount".as_ref(), "--force".as_ref(), self.root.as_ref()]);
    }
}
