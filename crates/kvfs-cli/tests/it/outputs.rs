//! Tests of the files that commands write. A command never overwrites a file that it reads, by
//! whatever name, and makes no file that others can read unless that is asked for.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const BUSY: i32 = 4;
const NO_SPACE: i32 = 6;

struct Lab {
    dir: tempfile::TempDir,
    store: PathBuf,
}

fn command(words: &[&OsStr]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

fn kvfs(words: &[&OsStr]) -> Output {
    command(words).output().expect("kvfs runs")
}

#[track_caller]
fn succeeds(output: Output) {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[track_caller]
fn refuses(output: Output) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(USAGE | BUSY)), "{err}");
    assert!(err.contains("is the store itself") || err.contains("is a KVFS store"), "{err}");
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("there").permissions().mode() & 0o7777
}

impl Lab {
    fn new() -> Lab {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let lab = Lab { store: dir.path().join("s.kvfs"), dir };
        fs::create_dir(lab.path("from")).expect("a directory");
        fs::write(lab.path("from/file"), "content").expect("a file");
        succeeds(kvfs(&["create".as_ref(), lab.store.as_ref()]));
        succeeds(kvfs(&["import".as_ref(), lab.store.as_ref(), lab.path("from").as_ref()]));
        succeeds(kvfs(&["snapshot".as_ref(), "create".as_ref(), lab.store.as_ref(), "s".as_ref()]));
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The store by each of its names.
    fn names(&self) -> Vec<PathBuf> {
        let (hard, soft, far) = (self.path("hard"), self.path("soft"), self.path("far"));
        fs::hard_link(&self.store, &hard).expect("a link");
        symlink(&self.store, &soft).expect("a link");
        symlink(&soft, &far).expect("a link");
        vec![self.store.clone(), hard, soft, far]
    }

    #[track_caller]
    fn is_whole(&self) {
        succeeds(kvfs(&["check".as_ref(), self.store.as_ref()]));
        assert_eq!(
            kvfs(&["cat".as_ref(), self.store.as_ref(), "file".as_ref()]).stdout,
            b"content"
        );
    }
}

#[test]
fn no_command_writes_onto_the_store_that_it_reads() {
    let lab = Lab::new();
    for name in lab.names() {
        let name: &OsStr = name.as_ref();
        refuses(kvfs(&["export".as_ref(), lab.store.as_ref(), name]));
        refuses(kvfs(&["export".as_ref(), name, lab.store.as_ref()]));
        refuses(kvfs(&["send".as_ref(), lab.store.as_ref(), "s".as_ref(), "-o".as_ref(), name]));
        refuses(kvfs(&["import".as_ref(), lab.store.as_ref(), name]));
        refuses(kvfs(&["receive".as_ref(), lab.store.as_ref(), "-i".as_ref(), name]));
        lab.is_whole();
        // Standard input and output are files as well.
        let onto = || File::options().append(true).open(name).expect("the store");
        refuses(
            command(&["export".as_ref(), lab.store.as_ref(), "-".as_ref()])
                .stdout(onto())
                .output()
                .expect("it runs"),
        );
        refuses(
            command(&["send".as_ref(), lab.store.as_ref(), "s".as_ref()])
                .stdout(onto())
                .output()
                .expect("it runs"),
        );
        let from = || File::open(name).expect("the store");
        refuses(
            command(&["import".as_ref(), lab.store.as_ref(), "-".as_ref()])
                .stdin(from())
                .output()
                .expect("it runs"),
        );
        refuses(
            command(&["receive".as_ref(), lab.store.as_ref()])
                .stdin(from())
                .output()
                .expect("it runs"),
        );
        lab.is_whole();
    }
}

/// An entry of the store may have the name that the store has in the directory that is filled.
#[test]
fn an_export_into_the_directory_of_the_store_does_not_replace_it() {
    let lab = Lab::new();
    fs::write(lab.path("from/s.kvfs"), "not a store").expect("a file");
    succeeds(kvfs(&["import".as_ref(), lab.store.as_ref(), lab.path("from").as_ref()]));
    refuses(kvfs(&["export".as_ref(), lab.store.as_ref(), lab.dir.path().as_ref()]));
    lab.is_whole();
}

#[test]
fn a_mounted_store_is_not_written_onto_either() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: no FUSE here");
        return;
    }
    let lab = Lab::new();
    let names = lab.names();
    let mnt = lab.path("mnt");
    fs::create_dir(&mnt).expect("a directory");
    for name in &names {
        let log = [
            OsStr::new("mount"),
            lab.store.as_ref(),
            mnt.as_ref(),
            "--log".as_ref(),
            name.as_ref(),
        ];
        refuses(kvfs(&log));
    }
    succeeds(kvfs(&["mount".as_ref(), lab.store.as_ref(), mnt.as_ref()]));
    fs::create_dir(mnt.join("below")).expect("a directory");
    let ended: Vec<Output> = names
        .iter()
        .flat_map(|name| {
            let send = |target: &Path| {
                kvfs(&[
                    "send".as_ref(),
                    target.as_ref(),
                    "s".as_ref(),
                    "-o".as_ref(),
                    name.as_ref(),
                ])
            };
            [send(&mnt), send(&mnt.join("below")), send(&lab.store)]
        })
        .collect();
    succeeds(kvfs(&["umount".as_ref(), mnt.as_ref()]));
    ended.into_iter().for_each(refuses);
    lab.is_whole();
}

/// A file with other people's files is not readable by others, whatever the umask.
#[test]
fn what_is_made_is_its_owners_alone_unless_asked_otherwise() {
    let lab = Lab::new();
    assert_eq!(mode(&lab.store), 0o600);
    let (tar, stream, directory, open) =
        (lab.path("tar"), lab.path("stream"), lab.path("directory"), lab.path("open"));
    let loose = |words: &[&OsStr]| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "umask 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_kvfs")])
            .args(words)
            .stdin(Stdio::null());
        succeeds(shell.output().expect("it runs"));
    };
    loose(&["export".as_ref(), lab.store.as_ref(), tar.as_ref()]);
    loose(&["send".as_ref(), lab.store.as_ref(), "s".as_ref(), "-o".as_ref(), stream.as_ref()]);
    loose(&["create".as_ref(), open.as_ref()]);
    assert_eq!((mode(&tar), mode(&stream), mode(&open)), (0o600, 0o600, 0o600));
    // An existing file keeps its content.
    fs::set_permissions(&tar, fs::Permissions::from_mode(0o640)).expect("a mode");
    loose(&["export".as_ref(), lab.store.as_ref(), tar.as_ref()]);
    assert_eq!(mode(&tar), 0o640);
    for (file, words) in [
        (&tar, vec!["export".as_ref(), lab.store.as_os_str(), tar.as_ref()]),
        (
            &stream,
            vec!["send".as_ref(), lab.store.as_ref(), "s".as_ref(), "-o".as_ref(), stream.as_ref()],
        ),
        (&open, vec!["create".as_ref(), open.as_ref()]),
    ] {
        fs::remove_file(file).expect("removed");
        succeeds(kvfs(&[words, vec!["--mode".as_ref(), "0644".as_ref()]].concat()));
        assert_eq!(mode(file), 0o644, "{}", file.display());
    }
    // Files of a directory have the permissions that they have in the store.
    let secret = lab.path("from/secret");
    fs::write(&secret, "secret").expect("a file");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("a mode");
    succeeds(kvfs(&["import".as_ref(), lab.store.as_ref(), lab.path("from").as_ref()]));
    loose(&["export".as_ref(), lab.store.as_ref(), directory.join("").as_ref()]);
    assert_eq!(mode(&directory.join("secret")), 0o600);
    assert_eq!(
        kvfs(&["create".as_ref(), lab.path("bad").as_ref(), "--mode".as_ref(), "rw".as_ref()])
            .status
            .code(),
        Some(USAGE)
    );
    assert!(!lab.path("bad").exists());
}

#[test]
fn wrong_usage_is_told_as_json_where_json_is_asked_for() {
    let ask = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
        let output = command.args(words).output().expect("kvfs runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    for words in [
        &["--json", "no-such-command"][..],
        &["create", "--json"],
        &["--json", "create", "s", "--size", "much"],
        &["history", "s", "--limit", "x", "--json"],
        &["--json"],
    ] {
        let (code, out, err) = ask(words);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{words:?}");
        let said: serde_json::Value = serde_json::from_str(&err).expect("one object");
        assert_eq!(said["error"]["code"], "usage", "{err}");
        assert_eq!(said["error"]["exit"], 2);
        assert!(said["error"]["message"].as_str().is_some_and(|text| text.len() > 5), "{err}");
    }
    // Output for people is unchanged, and after `--` the word is not an option of this command.
    let (code, _, err) = ask(&["no-such-command"]);
    assert!(code == Some(2) && err.starts_with("error: unrecognized subcommand"), "{err}");
    let (code, _, err) = ask(&["run", "/mnt", "--no-such-option", "--", "--json"]);
    assert!(code == Some(2) && err.starts_with("error: "), "{err}");
    let (code, out, _) = ask(&["--json", "--help"]);
    assert!(code == Some(0) && out.contains("Usage: kvfs"), "{out}");
}

/// A device that takes no byte.
fn full() -> Stdio {
    Stdio::from(File::options().write(true).open("/dev/full").expect("Linux has it"))
}

#[test]
fn what_could_not_be_printed_is_a_failure() {
    let lab = Lab::new();
    succeeds(kvfs(
        &["kv", "put"]
            .map(OsStr::new)
            .iter()
            .copied()
            .chain([lab.store.as_ref(), OsStr::new("key"), OsStr::new("a value without a newline")])
            .collect::<Vec<_>>(),
    ));
    for words in [&["kv", "get"][..], &["cat"]] {
        let of = if words.len() == 2 { "key" } else { "file" };
        let words: Vec<&OsStr> =
            words.iter().map(OsStr::new).chain([lab.store.as_ref(), OsStr::new(of)]).collect();
        let ended = command(&words).stdout(full()).output().expect("kvfs runs");
        assert_eq!(ended.status.code(), Some(NO_SPACE), "{words:?}");
    }
}

#[test]
fn a_file_is_read_no_further_than_someone_reads_what_is_printed() {
    let lab = Lab::new();
    // 1 TiB of holes: to read it to its end would take hours.
    let large = File::create(lab.path("large")).expect("a file");
    large.set_len(1 << 40).expect("a sparse file");
    fs::create_dir(lab.path("sparse")).expect("a directory");
    fs::rename(lab.path("large"), lab.path("sparse/large")).expect("moved");
    succeeds(kvfs(&["import".as_ref(), lab.store.as_ref(), lab.path("sparse").as_ref()]));
    let mut cat = command(&["cat".as_ref(), lab.store.as_ref(), "large".as_ref()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("kvfs runs");
    drop(cat.stdout.take());
    let begun = std::time::Instant::now();
    loop {
        if let Some(status) = cat.try_wait().expect("it is ours") {
            assert_eq!(status.code(), Some(0));
            return;
        }
        if begun.elapsed().as_secs() > 20 {
            cat.kill().and_then(|()| cat.wait()).expect("it is ours");
            panic!("it reads on");
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn what_is_to_be_sent_is_looked_for_before_a_file_is_emptied() {
    let lab = Lab::new();
    let backup = lab.path("backup.stream");
    fs::write(&backup, "precious").expect("a file");
    for words in [&["nosuch"][..], &["s", "--base", "nosuch"]] {
        let words: Vec<&OsStr> = ["send".as_ref(), lab.store.as_ref()]
            .into_iter()
            .chain(words.iter().map(OsStr::new))
            .chain(["-o".as_ref(), backup.as_ref()])
            .collect();
        assert_eq!(kvfs(&words).status.code(), Some(NOT_FOUND), "{words:?}");
        assert_eq!(fs::read(&backup).expect("there"), b"precious");
    }
}

#[test]
fn what_is_said_on_a_terminal_cannot_act_on_it() {
    let lab = Lab::new();
    let missing = lab.path("no\u{1b}]0;title\u{7}");
    let ended = kvfs(&["import".as_ref(), lab.store.as_ref(), missing.as_ref()]);
    let err = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(err.contains("title") && !err.contains(['\u{1b}', '\u{7}']), "{err:?}");
}

/// Simulates the daemon of a store, which returns one page of a listing and then ends.
fn half_a_listing(socket: &Path) -> std::thread::JoinHandle<()> {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::os::unix::net::UnixListener::bind(socket).expect("bound");
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let connection = connection.expect("connected");
            let mut answers = connection.try_clone().expect("a second handle");
            let mut pages = 0;
            for line in BufReader::new(connection).lines() {
                let Ok(line) = line else { break };
                let answer: &[u8] = match line.as_str() {
                    "USE" => b"+OK\r\n",
                    "SCAN" if pages == 1 => return,
                    "SCAN" => {
                        pages += 1;
                        b"*2\r\n$1\r\n7\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n"
                    }
                    _ => continue,
                };
                answers.write_all(answer).expect("taken");
            }
        }
    })
}

#[test]
fn a_listing_that_fails_half_way_is_json_all_the_same() {
    let lab = Lab::new();
    let daemon = half_a_listing(&lab.path("s.kvfs.sock"));
    let Output { status, stdout, stderr } =
        kvfs(&["--json", "kv", "scan", lab.store.to_str().expect("text")].map(OsStr::new));
    daemon.join().expect("no panic");
    assert_eq!(status.code(), Some(1));
    let said: serde_json::Value = serde_json::from_slice(&stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&stdout)));
    assert_eq!(said, serde_json::json!([{"key": "a"}, {"key": "b"}]));
    let told: serde_json::Value = serde_json::from_slice(&stderr).expect("one object");
    assert_eq!(told["error"]["code"], "failed");
}
