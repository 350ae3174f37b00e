//! Tests of a store that `kvfs serve` serves, and of mounts of its snapshots which have only a
//! socket.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use env::Machine;
use kvdb_wire::{Client, ClientOptions, SnapshotView, Socket};
use kvfs::{Fs, FsOptions, ROOT};

fn kvfs() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.stdin(Stdio::null());
    command
}

#[track_caller]
fn succeeds(command: &mut Command) -> Output {
    let output = crate::place::output(command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// A server of a store, killed when dropped.
struct Serving(Child);

impl Serving {
    /// The server answers when this returns.
    fn begin(store: &Path, socket: &Path) -> Serving {
        Serving::with(store, socket, &[])
    }

    /// Like `begin`, with these options.
    fn with(store: &Path, socket: &Path, options: &[&str]) -> Serving {
        let mut listen = std::ffi::OsString::from("unix:");
        listen.push(socket);
        let mut command = kvfs();
        command.arg("serve").arg(store).arg("--listen").arg(listen).args(options);
        command.stdout(Stdio::piped());
        let mut child = command.spawn().expect("kvfs runs");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("text");
        assert!(line.contains("is served at"), "{line:?}");
        Serving(child)
    }

    fn ends_when_asked(mut self) {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("it is there");
        assert!(self.0.wait().expect("it ends").success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A store with two snapshots of some files, and a directory to mount on, which is unmounted when
/// dropped.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().expect("a temporary directory"));
        let tree = place.path("tree");
        std::fs::create_dir_all(tree.join("a/b")).expect("mkdir");
        std::fs::create_dir(place.path("mnt")).expect("mkdir");
        for i in 0..300 {
            let content = format!("{i} ").repeat(i * 7);
            std::fs::write(tree.join(format!("a/file{i}")), content).expect("written");
        }
        std::fs::write(tree.join("a/b/large"), vec![7; 3 << 20]).expect("written");
        std::os::unix::fs::symlink("../file1", tree.join("a/b/link")).expect("a link");
        let store = place.path("store");
        succeeds(kvfs().arg("create").arg(&store));
        succeeds(kvfs().arg("import").arg(&store).arg(&tree));
        succeeds(kvfs().args(["snapshot", "create"]).arg(&store).arg("monday"));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn address(&self) -> String {
        format!("kvfs+unix:{}", self.path("socket").display())
    }

    fn serve(&self) -> Serving {
        Serving::begin(&self.path("store"), &self.path("socket"))
    }

    fn mount(&self, snapshot: &str) -> Command {
        let mut command = kvfs();
        command.arg("mount").arg(self.address()).arg(self.path("mnt"));
        command.args(["--snapshot", snapshot]);
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = kvfs().arg("umount").arg(self.path("mnt")).output();
    }
}

fn may_mount() -> bool {
    let may = std::fs::File::open("/dev/fuse").is_ok() && rustix::process::geteuid().is_root();
    if !may {
        eprintln!("SKIPPED: no FUSE here, or not root");
    }
    may
}

/// The differences that diff(1) sees, links as links.
#[track_caller]
fn assert_same(a: &Path, b: &Path) {
    let mut diff = Command::new("diff");
    let output = diff.args(["-r", "--no-dereference"]).arg(a).arg(b).output().expect("diff runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_snapshot_is_mounted_from_a_server_and_read_alone() {
    if !may_mount() {
        return;
    }
    let place = Place::new();
    let serving = place.serve();
    succeeds(&mut place.mount("monday"));
    let mnt = place.path("mnt");
    assert_same(&place.path("tree"), &mnt);
    let refused = std::fs::write(mnt.join("new"), "x").expect_err("a snapshot");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    succeeds(kvfs().arg("umount").arg(&mnt));
    assert!(!mnt.join("a").exists());
    serving.ends_when_asked();
    assert!(!place.path("socket").exists(), "the socket goes with its server");
}

#[test]
fn a_snapshot_is_named_by_an_option_as_fstab_has_it() {
    if !may_mount() {
        return;
    }
    let place = Place::new();
    let _serving = place.serve();
    let mut mount = kvfs();
    mount.args(["mount", "-o", "snapshot=monday"]).arg(place.address()).arg(place.path("mnt"));
    succeeds(&mut mount);
    assert_same(&place.path("tree"), &place.path("mnt"));
}

#[test]
fn a_mount_goes_on_when_its_server_was_killed_and_is_begun_again() {
    if !may_mount() {
        return;
    }
    let place = Place::new();
    let serving = place.serve();
    succeeds(&mut place.mount("monday"));
    drop(serving);
    let (mnt, tree) = (place.path("mnt"), place.path("tree"));
    let reader = std::thread::spawn(move || assert_same(&tree, &mnt));
    let serving = place.serve();
    reader.join().expect("it has read all of it");
    drop(serving);
}

#[test]
fn a_store_that_is_mounted_is_served_by_its_mount() {
    if !may_mount() {
        return;
    }
    let place = Place::new();
    let own = place.path("own");
    std::fs::create_dir(&own).expect("mkdir");
    let serve = format!("serve=unix:{}", place.path("socket").display());
    succeeds(kvfs().args(["mount", "-o", &serve]).arg(place.path("store")).arg(&own));
    std::fs::write(own.join("later"), "before tuesday").expect("written");
    succeeds(kvfs().args(["snapshot", "create"]).arg(&own).arg("tuesday"));
    std::fs::write(own.join("later"), "after tuesday").expect("written");
    succeeds(&mut place.mount("tuesday"));
    let mnt = place.path("mnt");
    let later = std::fs::read_to_string(mnt.join("later")).expect("read");
    assert_eq!(later, "before tuesday");
    assert_eq!(std::fs::read(mnt.join("a/b/large")).expect("read"), vec![7; 3 << 20]);
    succeeds(kvfs().arg("umount").arg(&mnt));
    succeeds(kvfs().arg("umount").arg(&own));
    assert!(!place.path("socket").exists(), "the socket goes with the mount");
    let relative = kvfs().args(["mount", "-o", "serve=unix:s"]).arg("store").arg("mnt").output();
    let said = String::from_utf8_lossy(&relative.expect("kvfs runs").stderr).into_owned();
    assert!(said.contains("path of a socket in full"), "{said}");
}

#[test]
fn a_server_has_as_many_readers_as_it_may_and_tells_the_next_one() {
    let (place, readers) = (Place::new(), 150_usize);
    let socket = place.path("socket");
    let most = readers.to_string();
    let serving = Serving::with(&place.path("store"), &socket, &["--connections", &most]);
    let read = |reader: usize| {
        let socket = socket.clone();
        let connect = move |time| Socket::connect_unix(&socket, time);
        let client = Client::connect(connect, ClientOptions::default()).expect("a place");
        let view = SnapshotView::open(&client, "monday").expect("the snapshot");
        let env = Arc::new(Machine::default());
        let files = Fs::served(Arc::new(view), env, FsOptions::default()).expect("its files");
        let name = format!("file{reader}");
        let directory = files.lookup(ROOT, b"a").expect("a directory");
        let file = files.lookup(directory.ino, name.as_bytes()).expect("a file");
        let found = files.read(file.ino, 0, 1 << 20).expect("read").to_vec();
        let expected = std::fs::read(place.path("tree/a").join(&name)).expect("read");
        assert_eq!(found, expected, "{name}");
        client
    };
    let clients: Vec<Arc<Client>> = (0..readers).map(read).collect();
    let refused = place.mount("monday").output().expect("kvfs runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains(&format!("the server has {readers} connections")), "{said}");
    drop(clients);
    serving.ends_when_asked();
    for wrong in ["0", "10001", "many"] {
        let mut serve = kvfs();
        serve.arg("serve").arg(place.path("store")).args(["--listen", "unix:s"]);
        let output = serve.args(["--connections", wrong]).output().expect("kvfs runs");
        assert_eq!(output.status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn a_mount_without_a_server_or_a_snapshot_says_so() {
    let place = Place::new();
    let refused = |command: &mut Command| {
        let output = command.output().expect("kvfs runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&mut place.mount("monday")).contains("cannot read kvfs+unix:"));
    let _serving = place.serve();
    let said = refused(&mut place.mount("tuesday"));
    assert!(said.contains("no snapshot tuesday"), "{said}");
    let said = refused(kvfs().arg("mount").arg(place.address()).arg(place.path("mnt")));
    assert!(said.contains("which snapshot"), "{said}");
    let said = refused(place.mount("monday").args(["-o", "scrub=7"]));
    assert!(said.contains("-o scrub=7 is for a store on this machine"), "{said}");
    let said = refused(place.mount("monday").args(["-o", "snapshot=tuesday"]));
    assert!(said.contains("these are two"), "{said}");
    let by_option = |option: &str| {
        let mut command = kvfs();
        command.arg("mount").args(["-o", option]).arg(place.address()).arg(place.path("mnt"));
        command
    };
    assert!(refused(&mut by_option("snapshot=tuesday")).contains("no snapshot tuesday"));
    assert!(refused(&mut by_option("clone=mine")).contains("add --txn"));
    let said = refused(kvfs().arg("serve").arg(place.path("store")).args(["--listen", "here"]));
    assert!(said.contains("no address to listen at"), "{said}");
}
