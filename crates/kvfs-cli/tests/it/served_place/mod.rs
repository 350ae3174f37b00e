//! A store with a few files, its server, and directories on which to mount its transactions.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub const TRY_AGAIN: i32 = 75;

pub fn kvfs() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.stdin(Stdio::null());
    command
}

#[track_caller]
pub fn succeeds(command: &mut Command) -> Output {
    let output = crate::place::output(command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

pub fn said(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

/// A server of a store, killed when dropped.
pub struct Serving(pub Child);

impl Serving {
    /// The server answers when this returns.
    pub fn begin(store: &Path, socket: &Path) -> Serving {
        let mut listen = std::ffi::OsString::from("unix:");
        listen.push(socket);
        let mut command = kvfs();
        command.args(["serve", "--write"]).arg(store).arg("--listen").arg(listen);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("kvfs runs");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("text");
        assert!(line.contains("is served at"), "{line:?}");
        Serving(child)
    }

    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    pub fn ends_when_asked(mut self) {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("it is there");
        assert!(self.0.wait().expect("it ends").success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A store with a few files, and directories to mount on, which are unmounted when dropped.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Option<Place> {
        let may = std::fs::File::open("/dev/fuse").is_ok() && rustix::process::geteuid().is_root();
        if !may {
            eprintln!("SKIPPED: no FUSE here, or not root");
            return None;
        }
        let place = Place(tempfile::tempdir().expect("a temporary directory"));
        let tree = place.path("tree");
        std::fs::create_dir_all(tree.join("a/b")).expect("mkdir");
        for i in 0..100 {
            let content = format!("{i} ").repeat(i * 7);
            std::fs::write(tree.join(format!("a/file{i}")), content).expect("written");
        }
        std::fs::write(tree.join("a/b/large"), vec![7; 1 << 20]).expect("written");
        for mnt in ["one", "two", "local"] {
            std::fs::create_dir(place.path(mnt)).expect("mkdir");
        }
        let store = place.path("store");
        succeeds(kvfs().arg("create").arg(&store));
        succeeds(kvfs().arg("import").arg(&store).arg(&tree));
        Some(place)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn serve(&self) -> Serving {
        Serving::begin(&self.path("store"), &self.path("socket"))
    }

    pub fn address(&self) -> String {
        format!("kvfs+unix:{}", self.path("socket").display())
    }

    pub fn mount(&self, at: &str) -> Command {
        let mut command = kvfs();
        command.arg("mount").arg(self.address()).arg(self.path(at)).arg("--txn");
        command
    }

    pub fn end(&self, verb: &str, at: &str) -> Output {
        kvfs().arg(verb).arg(self.path(at)).output().expect("kvfs runs")
    }

    /// Checks that the store is as it was checked before, and has this file with this content, or
    /// no such file if that is `None`.
    #[track_caller]
    pub fn has(&self, path: &str, content: Option<&str>) {
        succeeds(kvfs().arg("check").arg(self.path("store")));
        let output = kvfs().arg("cat").arg(self.path("store")).arg(path).output();
        let output = output.expect("kvfs runs");
        let found = output.status.success().then(|| String::from_utf8_lossy(&output.stdout));
        assert_eq!(found.as_deref(), content, "{path}: {}", said(&output));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for mnt in ["one", "two", "local"] {
            let _ = kvfs().arg("umount").arg(self.path(mnt)).output();
        }
    }
}

/// Waits for a condition.
#[track_caller]
pub fn awaits(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happens() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
