//! Tests of the C library with stores on a server: programs that are linked with it use a served
//! store.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::served_place::{Serving, kvfs, said, succeeds};

fn bindings(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings").join(path)
}

/// Returns the shared library, which cargo builds with these tests, since they depend on its crate.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let directories = program.ancestors().skip(1).take(2);
    let files = directories.filter_map(|directory| std::fs::read_dir(directory).ok()).flatten();
    let built = files.flatten().filter(|file| {
        let name = file.file_name().to_string_lossy().into_owned();
        name.starts_with("libkvfs_served") && name.ends_with(".so")
    });
    let newest = built.max_by_key(|file| file.metadata().and_then(|about| about.modified()).ok());
    newest.expect("libkvfs_served.so is next to this program").path()
}

/// Builds the program in C that makes the calls, if there is a compiler.
fn built(directory: &Path) -> Option<PathBuf> {
    if !Command::new("cc").arg("--version").output().is_ok_and(|ended| ended.status.success()) {
        eprintln!("SKIPPED: there is no C compiler here: apt-get install gcc");
        return None;
    }
    let program = directory.join("program");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-pthread", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    compile.arg(bindings("c-served/tests/served.c"));
    compile.arg("-I").arg(bindings("c-served")).arg("-I").arg(bindings("c"));
    // The library has no name of its own here, so that the program finds it by this path.
    succeeds(compile.arg(library()));
    Some(program)
}

/// A store with a few files, keys and snapshots, and the program.
struct Place {
    directory: tempfile::TempDir,
    program: PathBuf,
}

impl Place {
    fn new() -> Option<Place> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let program = built(directory.path())?;
        let place = Place { directory, program };
        let tree = place.path("tree");
        std::fs::create_dir_all(tree.join("a/b")).expect("mkdir");
        for (name, content) in [("file1", "one"), ("file2", "two")] {
            std::fs::write(tree.join("a").join(name), content).expect("written");
        }
        for (name, target) in [("link", "a/file1"), ("dir", "a"), ("dangling", "made/by-link")] {
            std::os::unix::fs::symlink(target, tree.join(name)).expect("a link");
        }
        let store = place.path("store");
        succeeds(kvfs().arg("create").arg(&store));
        succeeds(kvfs().arg("import").arg(&store).arg(&tree));
        for (key, value) in [("apple", "red"), ("fig", "7")] {
            succeeds(kvfs().args(["kv", "-d", "fruit", "put"]).arg(&store).args([key, value]));
        }
        for snapshot in ["monday", "tuesday"] {
            succeeds(kvfs().args(["snapshot", "create"]).arg(&store).arg(snapshot));
        }
        Some(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn serve(&self) -> (Serving, String) {
        let socket = self.path("socket");
        let serving = Serving::begin(&self.path("store"), &socket);
        (serving, format!("kvfs+unix:{}", socket.display()))
    }

    /// The program, without credentials in its environment.
    fn program(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words);
        for name in ["KVFS_TOKEN", "KVFS_TOKEN_FILE", "KVFS_CA", "KVFS_CERT", "KVFS_CERT_KEY"] {
            command.env_remove(name);
        }
        command
    }

    /// Checks the store, and returns the content of a file, or `None` if there is no such file.
    fn content(&self, path: &str) -> Option<String> {
        succeeds(kvfs().arg("check").arg(self.path("store")));
        let output = kvfs().arg("cat").arg(self.path("store")).arg(path).output();
        let output = output.expect("kvfs runs");
        let is_there = output.status.success();
        is_there.then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[test]
fn every_call_of_the_c_library_of_served_stores() {
    let Some(place) = Place::new() else { return };
    let (serving, address) = place.serve();
    let output = succeeds(&mut place.program(&["calls", &address]));
    assert_eq!(said(&output), "done\n");
    serving.ends_when_asked();
    assert_eq!(place.content("/a/file2").as_deref(), Some("later"));
    assert_eq!(place.content("/made/empty").as_deref(), Some(""));
    assert_eq!(place.content("/left"), None);
    let mut get = kvfs();
    get.args(["kv", "-d", "fruit", "get"]).arg(place.path("store")).arg("quince");
    assert_eq!(said(&succeeds(&mut get)), "gold");
}

#[test]
fn a_program_in_c_shows_a_token_to_a_server_of_the_network() {
    let Some(place) = Place::new() else { return };
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).expect("made");
    std::fs::write(place.path("cert.pem"), made.cert.pem()).expect("written");
    std::fs::write(place.path("key.pem"), made.signing_key.serialize_pem()).expect("written");
    std::fs::write(place.path("token"), "a-token-of-the-test\n").expect("written");
    std::fs::set_permissions(place.path("token"), PermissionsExt::from_mode(0o600)).expect("set");
    let script = "tr -d '\\n' <\"$0\" | sha256sum | cut -c 1-64";
    let hash = succeeds(Command::new("sh").args(["-c", script]).arg(place.path("token")));
    let hash = String::from_utf8(hash.stdout).expect("digits");
    let line = format!("{} write read=mon*\n", hash.trim());
    std::fs::write(place.path("tokens"), line).expect("written");
    let mut command = kvfs();
    command.args(["serve", "--write", "--listen", "tls:127.0.0.1:0"]).arg(place.path("store"));
    for (name, file) in [("--cert", "cert.pem"), ("--key", "key.pem"), ("--tokens", "tokens")] {
        command.arg(name).arg(place.path(file));
    }
    let mut serving = Serving(command.stdout(Stdio::piped()).spawn().expect("kvfs runs"));
    let mut line = String::new();
    let out = serving.0.stdout.as_mut().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("text");
    let port = line.trim().rsplit(':').next().expect("a port");
    let address = format!("kvfs://localhost:{port}");
    let mut program = place.program(&["token", &address]);
    let output = succeeds(program.arg(place.path("token")).arg(place.path("cert.pem")));
    assert_eq!(said(&output), "done\n");
    serving.ends_when_asked();
    assert_eq!(place.content("/by-token").as_deref(), Some("yes"));
}

#[test]
fn a_program_in_c_outlives_the_server() {
    let Some(place) = Place::new() else { return };
    let (mut serving, address) = place.serve();
    let mut program = place.program(&["gone", &address]);
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().expect("it runs");
    let mut ready = [0; 6];
    program.stdout.as_mut().expect("a pipe").read_exact(&mut ready).expect("it is ready");
    serving.kill();
    program.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("told");
    let ended = program.wait_with_output().expect("it is ours");
    assert!(ended.status.success(), "{}: {}", ended.status, said(&ended));
    assert_eq!(place.content("/lost"), None);
}
