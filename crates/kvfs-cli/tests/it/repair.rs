//! Tests of `kvfs check --repair` through the command.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const DAMAGED: i32 = 5;

struct Lab {
    dir: tempfile::TempDir,
    store: PathBuf,
}

fn kvfs(words: &[&OsStr]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command
        .args(words)
        .stdin(Stdio::null())
        .env_remove("KVFS_TXN")
        .env_remove("KVFS_SOCKET")
        .output()
        .expect("kvfs runs")
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

impl Lab {
    fn new() -> Lab {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let lab = Lab { store: dir.path().join("s.kvfs"), dir };
        let from = lab.dir.path().join("from");
        fs::create_dir_all(from.join("directory")).expect("directories");
        fs::write(from.join("directory/large"), noise(1, 40 * 4096)).expect("a file");
        fs::write(from.join("other"), noise(2, 10 * 4096)).expect("a file");
        // The last name is also in the manifest, as the upper bound of a run.
        fs::write(from.join("directory/zzz"), "last").expect("a file");
        assert_eq!(kvfs(&["create".as_ref(), lab.store.as_ref()]).status.code(), Some(0));
        assert_eq!(lab.run("import", &[from.as_ref()]).status.code(), Some(0));
        lab
    }

    fn run(&self, command: &str, rest: &[&OsStr]) -> Output {
        kvfs(&[&[OsStr::new(command), self.store.as_ref()], rest].concat())
    }

    fn damage(&self, needle: &[u8]) {
        let mut bytes = fs::read(&self.store).expect("the store");
        let places: Vec<usize> = bytes
            .windows(needle.len())
            .enumerate()
            .filter(|(_, w)| *w == needle)
            .map(|(at, _)| at)
            .collect();
        assert!(!places.is_empty(), "it lies in the store as it is");
        places.into_iter().for_each(|at| bytes[at] ^= 1);
        fs::write(&self.store, bytes).expect("the store");
    }

    /// The repaired damage has lost data, and every check reports that until the loss is accepted.
    fn repair(&self) -> Value {
        let out = self.run("check", &["--repair".as_ref(), "--yes".as_ref(), "--json".as_ref()]);
        let err = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(DAMAGED), "{err}");
        assert!(err.contains("--accept-losses"), "{err}");
        let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        assert_eq!(report["faults"].as_array().map(Vec::len), Some(0), "{report}");
        let lost = report["lost"].as_array().expect("a list").len();
        assert!(lost > 0, "{report}");
        for command in ["check", "stat"] {
            let out = self.run(command, &["--json".as_ref()]);
            let code = if command == "check" { Some(DAMAGED) } else { Some(0) };
            assert_eq!(out.status.code(), code, "{command}");
            let said: Value = serde_json::from_slice(&out.stdout).expect("JSON");
            assert_eq!(said["lost"], report["lost"], "{command}");
        }
        let again = self.run("check", &["--repair".as_ref()]);
        assert_eq!(again.status.code(), Some(DAMAGED), "nothing to repair, and still lost");
        report
    }

    fn accept(&self) {
        let out =
            self.run("check", &["--repair".as_ref(), "--yes".as_ref(), "--accept-losses".as_ref()]);
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(self.run("check", &[]).status.code(), Some(0), "clean afterwards");
    }
}

#[test]
fn a_file_without_its_bad_page_and_the_others_as_they_were() {
    let lab = Lab::new();
    let content = noise(1, 40 * 4096);
    lab.damage(&content[5 * 4096..][..64]);
    let out = lab.run("check", &[]);
    assert_eq!(out.status.code(), Some(DAMAGED));
    let bytes = format!("bytes {}..{} of /directory/large", 5 * 4096, 6 * 4096);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.contains(&format!("damaged: {bytes}")), "{said}");
    let before = fs::read(&lab.store).expect("the store");
    // No user can be asked, so the command changes nothing.
    let mut unattended = Command::new("setsid");
    let asked = unattended
        .args(["--wait", env!("CARGO_BIN_EXE_kvfs"), "check", "--repair"])
        .arg(&lab.store)
        .stdin(Stdio::null());
    assert_eq!(asked.status().expect("it runs").code(), Some(2));
    assert!(fs::read(&lab.store).expect("the store") == before);
    let report = lab.repair();
    assert_eq!(report["removed"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(
        report["removed"][0]["concerns"],
        format!("bytes {}..{} of /directory/large", 5 * 4096, 6 * 4096)
    );
    // Lost bytes do not read as zeros until somebody accepts the loss.
    assert_eq!(report["lost"][0]["what"], bytes);
    let out = lab.run("cat", &["directory/large".as_ref()]);
    assert_eq!(out.status.code(), Some(DAMAGED), "{}", String::from_utf8_lossy(&out.stderr));
    lab.accept();
    let mut wanted = content;
    wanted[5 * 4096..6 * 4096].fill(0);
    assert!(lab.run("cat", &["directory/large".as_ref()]).stdout == wanted);
    assert!(lab.run("cat", &["other".as_ref()]).stdout == noise(2, 10 * 4096));
    let again = lab.run("check", &["--repair".as_ref()]);
    assert_eq!(again.status.code(), Some(0), "nothing to repair, nothing to ask");
}

#[test]
fn files_whose_names_were_lost_are_in_lost_and_found() {
    let lab = Lab::new();
    lab.damage(b"large");
    let report = lab.repair();
    assert!(!report["mended"].as_array().expect("a list").is_empty(), "{report}");
    let list = lab.run("ls", &["lost+found".as_ref()]).stdout;
    let names = String::from_utf8(list).expect("text");
    let contents: Vec<Vec<u8>> = names
        .lines()
        .map(|name| lab.run("cat", &[format!("lost+found/{name}").as_ref()]).stdout)
        .collect();
    assert!(
        contents.contains(&noise(1, 40 * 4096)) && contents.contains(&noise(2, 10 * 4096)),
        "{names}: {report}"
    );
    lab.accept();
}

#[test]
fn a_store_that_does_not_open_is_not_touched() {
    let lab = Lab::new();
    let mut bytes = fs::read(&lab.store).expect("the store");
    for copy in [0, 4 << 20] {
        bytes[copy + 100] ^= 1;
    }
    fs::write(&lab.store, &bytes).expect("the store");
    let out = lab.run("check", &["--repair".as_ref(), "--yes".as_ref()]);
    assert_eq!(out.status.code(), Some(DAMAGED));
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("salvage"),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(fs::read(&lab.store).expect("the store") == bytes);
}
