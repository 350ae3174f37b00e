//! Tests of `kvfs salvage` through the command: the data that it extracts from a damaged store.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const DAMAGED: i32 = 5;
const USAGE: i32 = 2;

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

/// Bytes that the test can find on the device.
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
    /// A store with directories, files, links and keys.
    fn new() -> Lab {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let lab = Lab { store: dir.path().join("s.kvfs"), dir };
        let from = lab.path("from");
        fs::create_dir_all(from.join("directory/deep")).expect("directories");
        fs::write(from.join("directory/large"), noise(1, 303_104)).expect("a file");
        fs::write(from.join("directory/deep/other"), noise(2, 53_248)).expect("a file");
        fs::write(from.join("small"), "small").expect("a file");
        fs::hard_link(from.join("small"), from.join("directory/again")).expect("a link");
        std::os::unix::fs::symlink("directory/deep", from.join("link")).expect("a link");
        fs::set_permissions(from.join("directory/deep"), fs::Permissions::from_mode(0o711))
            .expect("a mode");
        assert_eq!(kvfs(&["create".as_ref(), lab.store.as_ref()]).status.code(), Some(0));
        assert_eq!(lab.run("import", &[from.as_ref()]).status.code(), Some(0));
        for i in 0..5 {
            let words = ["kv", "put"].map(OsStr::new);
            let (key, value) = (format!("key{i}"), format!("value{i}"));
            let done =
                kvfs(&[words[0], words[1], lab.store.as_ref(), key.as_ref(), value.as_ref()]);
            assert_eq!(done.status.code(), Some(0));
        }
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, command: &str, rest: &[&OsStr]) -> Output {
        kvfs(&[&[OsStr::new(command), self.store.as_ref()], rest].concat())
    }

    /// Flips a bit where `needle` lies.
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

    /// Runs the command into a new directory. Returns the exit code and the report. The store does
    /// not change.
    fn salvage(&self, to: &Path) -> (i32, Value) {
        let before = fs::read(&self.store).expect("the store");
        let keys = self.path("keys");
        let out = self
            .run("salvage", &[to.as_ref(), "--keys".as_ref(), keys.as_ref(), "--json".as_ref()]);
        assert!(fs::read(&self.store).expect("the store") == before, "the store was written to");
        let shown = String::from_utf8_lossy(&out.stderr);
        (
            out.status.code().expect("it ended"),
            serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {shown}")),
        )
    }
}

fn lost<'a>(report: &'a Value, path: &str) -> &'a Value {
    let all = report["lost"].as_array().expect("a list");
    all.iter().find(|l| l["path"] == path).unwrap_or_else(|| panic!("{path}: {report}"))
}

#[test]
fn of_a_sound_store_everything_comes_out() {
    let lab = Lab::new();
    let to = lab.path("to");
    let (code, report) = lab.salvage(&to);
    assert_eq!((code, &report["whole"]), (0, &true.into()), "{report}");
    assert_eq!(
        (&report["files"], &report["directories"], &report["others"]),
        (&4.into(), &2.into(), &1.into()),
        "{report}"
    );
    let same = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([&lab.path("from"), &to])
        .output()
        .expect("diff runs");
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stdout));
    let meta = |name: &str| to.join(name).symlink_metadata().expect("there");
    assert_eq!(meta("small").ino(), meta("directory/again").ino(), "one file");
    assert_eq!(meta("directory/deep").permissions().mode() & 0o777, 0o711);
    let keys = fs::read_to_string(lab.path("keys")).expect("keys");
    let first: Value = serde_json::from_str(keys.lines().next().expect("a line")).expect("JSON");
    assert_eq!(first, serde_json::json!({"dictionary": "0", "key": "key0", "value": "value0"}));
    assert_eq!((keys.lines().count(), &report["keys"]), (5, &5.into()));
    // The report does not lie among the files, one of which could have its name.
    let (other, among) = (lab.path("other"), lab.path("other/keys"));
    let words = [other.as_ref(), "--keys".as_ref(), among.as_ref()];
    let refused = lab.run("salvage", &words);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(USAGE), "{said}");
    assert!(said.contains("where a file of the store could have its name"), "{said}");
    assert!(!among.exists());
    // Only into a directory that is empty.
    let again = lab.run("salvage", &[to.as_ref()]);
    assert_eq!(again.status.code(), Some(USAGE), "{}", String::from_utf8_lossy(&again.stderr));
}

#[test]
fn a_file_with_bad_pages_has_the_others_and_its_losses_are_told() {
    let lab = Lab::new();
    let content = noise(1, 303_104);
    lab.damage(&content[7 * 4096 + 100..][..64]);
    lab.damage(&content[8 * 4096..][..64]);
    lab.damage(&content[73 * 4096 + 50..][..64]);
    let to = lab.path("to");
    let (code, report) = lab.salvage(&to);
    assert_eq!(code, DAMAGED);
    assert_eq!(report["losses"], 1, "{report}");
    let missing = &lost(&report, "/directory/large")["missing"];
    assert_eq!(*missing, serde_json::json!([[7 * 4096, 9 * 4096], [73 * 4096, 303_104]]));
    let mut wanted = content;
    wanted[7 * 4096..9 * 4096].fill(0);
    wanted[73 * 4096..].fill(0);
    assert!(fs::read(to.join("directory/large")).expect("the file") == wanted);
    assert!(fs::read(to.join("directory/deep/other")).expect("the other one") == noise(2, 53_248));
}

#[test]
fn files_whose_names_are_lost_go_to_lost_and_found() {
    let lab = Lab::new();
    // The block with all names.
    lab.damage(b"large");
    let to = lab.path("to");
    let (code, report) = lab.salvage(&to);
    assert_eq!(code, DAMAGED);
    assert_eq!(report["lost_found"], "lost+found");
    let mut found: Vec<Vec<u8>> = Vec::new();
    for entry in fs::read_dir(to.join("lost+found")).expect("lost+found") {
        let path = entry.expect("an entry").path();
        if path.symlink_metadata().expect("attributes").is_file() {
            found.push(fs::read(path).expect("a file"));
        }
    }
    for wanted in [noise(1, 303_104), noise(2, 53_248), b"small".to_vec()] {
        assert!(found.contains(&wanted), "{report}");
    }
}

/// Names and attributes are lost, and only the data of the files is left.
#[test]
fn data_without_anything_else_goes_to_lost_and_found() {
    let lab = Lab::new();
    lab.damage(b"large");
    // The block with all nodes.
    lab.damage(b"directory/deep");
    let to = lab.path("to");
    let (code, report) = lab.salvage(&to);
    assert_eq!((code, &report["files"]), (DAMAGED, &2.into()), "{report}");
    let found: Vec<Vec<u8>> = fs::read_dir(to.join("lost+found"))
        .expect("lost+found")
        .map(|entry| fs::read(entry.expect("an entry").path()).expect("a file"))
        .collect();
    assert!(found.contains(&noise(1, 303_104)) && found.contains(&noise(2, 53_248)), "{report}");
}

#[test]
fn without_superblocks_everything_comes_out_and_it_is_said() {
    let lab = Lab::new();
    let mut bytes = fs::read(&lab.store).expect("the store");
    for copy in [0, 4 << 20] {
        bytes[copy..copy + 4096].fill(0);
    }
    fs::write(&lab.store, bytes).expect("the store");
    assert_eq!(lab.run("ls", &["/".as_ref()]).status.code(), Some(1), "it is no store any more");
    let to = lab.path("to");
    let (code, report) = lab.salvage(&to);
    assert_eq!(code, DAMAGED);
    assert!(!report["notes"].as_array().expect("a list").is_empty(), "{report}");
    assert_eq!((&report["losses"], &report["keys"]), (&0.into(), &5.into()), "{report}");
    let same = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([&lab.path("from"), &to])
        .output()
        .expect("diff runs");
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stdout));
}

#[test]
fn of_what_never_was_a_store_nothing_comes_out() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (file, to) = (dir.path().join("file"), dir.path().join("to"));
    fs::write(&file, noise(5, 20 << 20)).expect("a file");
    let out = kvfs(&["salvage".as_ref(), file.as_ref(), to.as_ref()]);
    assert_eq!(out.status.code(), Some(DAMAGED));
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("no manifest was found"),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
}
