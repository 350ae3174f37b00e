//! Tests of `kvfs merge --into`. A fork of a published store and the store itself both change, and
//! the fork is merged into the store from its published address or from its file.

use crate::command;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{ends, succeeds};

/// A folder with a mounted store in it, which is published, and a fork of that, mounted as well.
struct Both {
    folder: tempfile::TempDir,
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    env::Random::new(seed).fill(&mut bytes);
    bytes
}

impl Both {
    /// `None`, with the reason printed, where this process may not mount.
    fn new() -> Option<Both> {
        if let Err(e) = fs::File::open("/dev/fuse") {
            eprintln!("SKIPPED: no FUSE here: cannot open /dev/fuse: {e}");
            return None;
        }
        let both = Both { folder: tempfile::tempdir().expect("a temporary directory") };
        succeeds(both.kvfs(&["create"]).arg(both.at("main.kvfs")));
        both.mount("main", &[]);
        fs::write(both.at("main/file"), "base").expect("write");
        fs::write(both.at("main/large"), noise(1, 3_000_000)).expect("write");
        fs::create_dir_all(both.at("main/dir/sub")).expect("mkdir");
        fs::write(both.at("main/dir/sub/f"), "f").expect("write");
        both.put("main", "key", "base");
        succeeds(both.kvfs(&["push"]).arg(both.at("main")).arg(both.address("main")));
        let file = both.at("mine.kvfs");
        succeeds(both.kvfs(&["fork", &both.address("main")]).arg(file));
        both.mount("mine", &[]);
        Some(both)
    }

    fn kvfs(&self, words: &[&str]) -> Command {
        let mut command = command::kvfs(words);
        command.env("XDG_CACHE_HOME", self.at("cache"));
        command
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn address(&self, name: &str) -> String {
        format!("dir:{}/share/{name}", self.folder.path().display())
    }

    fn mount(&self, name: &str, options: &[&str]) {
        fs::create_dir_all(self.at(name)).expect("mkdir");
        let store = self.at(&format!("{name}.kvfs"));
        succeeds(self.kvfs(&["mount"]).args(options).arg(store).arg(self.at(name)));
    }

    fn umount(&self, name: &str) {
        succeeds(self.kvfs(&["umount"]).arg(self.at(name)));
    }

    fn put(&self, name: &str, key: &str, value: &str) {
        succeeds(self.kvfs(&["kv", "put"]).arg(self.at(name)).args([key, value]));
    }

    fn get(&self, name: &str, key: &str) -> String {
        succeeds(self.kvfs(&["kv", "get"]).arg(self.at(name)).arg(key)).trim_end().to_owned()
    }

    /// `kvfs merge FORK --into` the mount of the store.
    fn merge(&self, words: &[&str], fork: impl AsRef<Path>) -> Command {
        let mut command = self.kvfs(words);
        command.arg("merge").arg(fork.as_ref()).arg("--into").arg(self.at("main"));
        command
    }

    #[track_caller]
    fn is_sound(&self) {
        for name in ["main", "mine"] {
            let _ = self.kvfs(&["umount", "--force"]).arg(self.at(name)).output();
            let said = succeeds(self.kvfs(&["check"]).arg(self.at(&format!("{name}.kvfs"))));
            assert!(said.contains("clean"), "{said}");
        }
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        for name in ["main", "mine"] {
            let _ = self.kvfs(&["umount", "--force"]).arg(self.at(name)).output();
        }
    }
}

#[test]
fn a_published_fork_comes_back_and_goes_and_comes_again() {
    let Some(both) = Both::new() else { return };
    fs::write(both.at("mine/file"), "mine").expect("write");
    fs::write(both.at("mine/dir/new"), noise(2, 9_000_000)).expect("write");
    fs::hard_link(both.at("mine/dir/new"), both.at("mine/second")).expect("linked");
    fs::rename(both.at("mine/dir/sub"), both.at("mine/moved")).expect("moved");
    both.put("mine", "key", "mine");
    for n in 0..50 {
        fs::write(both.at(&format!("mine/dir/mine{n}")), format!("mine {n}")).expect("write");
        fs::write(both.at(&format!("main/dir/main{n}")), format!("main {n}")).expect("write");
    }
    let own = both.address("mine");
    succeeds(both.kvfs(&["push"]).arg(both.at("mine")).arg(&own));

    let shown = succeeds(both.merge(&[], &own).arg("--dry-run"));
    assert!(shown.contains("M  file") && shown.contains("A  dir/new"), "{shown}");
    assert!(shown.contains("fork mine into the store: nothing was changed"), "{shown}");
    assert_eq!(read(both.at("main/file")).as_deref(), Some("base"));
    // Programs have it open, and see the merge.
    let open = fs::File::open(both.at("main/file")).expect("opened");
    let shown = succeeds(&mut both.merge(&[], &own));
    assert!(shown.contains("fork mine into the store: done"), "{shown}");
    assert_eq!(std::io::read_to_string(&open).expect("read"), "mine");
    let merged = || {
        assert_eq!(read(both.at("main/file")).as_deref(), Some("mine"));
        assert!(fs::read(both.at("main/second")).expect("read") == noise(2, 9_000_000));
        assert_eq!(read(both.at("main/moved/f")).as_deref(), Some("f"));
        assert_eq!(both.get("main", "key"), "mine");
        for n in 0..50 {
            for side in ["main", "mine"] {
                let found = read(both.at(&format!("main/dir/{side}{n}")));
                assert_eq!(found, Some(format!("{side} {n}")));
            }
        }
    };
    merged();
    let history = succeeds(both.kvfs(&["history"]).arg(both.at("main")));
    assert!(history.contains("merge mine"), "{history}");
    succeeds(both.kvfs(&["undo"]).arg(both.at("main")));
    assert_eq!(read(both.at("main/file")).as_deref(), Some("base"));
    assert!(!both.at("main/second").exists() && both.at("main/dir/main7").exists());
    assert_eq!(both.get("main", "key"), "base");

    let json = succeeds(&mut both.merge(&["--json"], &own));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["from"], &json["into"]), (&"mine".into(), &"".into()), "{json}");
    merged();
    fs::write(both.at("mine/later"), "later").expect("write");
    succeeds(both.kvfs(&["push"]).arg(both.at("mine")).arg(&own));
    let shown = succeeds(&mut both.merge(&[], &own));
    assert!(shown.contains("later") && !shown.contains("moved"), "{shown}");
    merged();
    assert_eq!(read(both.at("main/later")).as_deref(), Some("later"));
    both.is_sound();
}

#[test]
fn a_fork_in_a_file_is_merged_once_no_one_has_it_open() {
    let Some(both) = Both::new() else { return };
    fs::write(both.at("mine/made"), "mine").expect("write");
    let (code, _, said) = ends(&mut both.merge(&[], both.at("mine.kvfs")));
    assert!(
        code == Some(1) && said.contains("is mounted on") && said.contains("publish it"),
        "{said}"
    );
    let (code, _, said) = ends(&mut both.merge(&[], both.at("mine")));
    assert!(code == Some(2) && said.contains("is a directory"), "{said}");
    both.umount("mine");
    let shown = succeeds(both.merge(&[], both.at("mine.kvfs")).arg("--keep"));
    let id = shown.trim().rsplit(' ').next().expect("a number").to_owned();
    assert!(!both.at("main/made").exists());
    succeeds(both.kvfs(&["txn", "commit"]).arg(both.at("main")).arg(&id));
    assert_eq!(read(both.at("main/made")).as_deref(), Some("mine"));

    // Into a store that is not mounted.
    both.mount("mine", &[]);
    fs::write(both.at("mine/more"), noise(3, 400_000)).expect("write");
    both.umount("mine");
    both.umount("main");
    let mut merge = both.kvfs(&["merge"]);
    succeeds(merge.arg(both.at("mine.kvfs")).arg("--into").arg(both.at("main.kvfs")));
    both.mount("main", &[]);
    assert!(fs::read(both.at("main/more")).expect("read") == noise(3, 400_000));
    both.is_sound();
}

#[test]
fn what_both_have_changed_is_listed_and_nothing_is_changed() {
    let Some(both) = Both::new() else { return };
    for side in ["main", "mine"] {
        fs::write(both.at(&format!("{side}/file")), side).expect("write");
        both.put(side, "key", side);
    }
    fs::write(both.at("mine/only"), "mine").expect("write");
    both.umount("mine");
    let file = both.at("mine.kvfs");
    let (code, out, said) = ends(&mut both.merge(&[], &file));
    assert_eq!(code, Some(75), "{out}{said}");
    assert!(out.contains("C  file: changed in the store, changed in fork mine"), "{out}");
    assert!(out.contains("C  key 0:key: changed in"), "{out}");
    let (code, json, _) = ends(&mut both.merge(&["--json"], &file));
    assert!(code == Some(75) && json.contains("\"conflicts\":[{"), "{json}");
    assert!(
        read(both.at("main/file")).as_deref() == Some("main") && !both.at("main/only").exists()
    );
    assert_eq!(succeeds(both.kvfs(&["txn", "list"]).arg(both.at("main"))).trim(), "");
    succeeds(both.merge(&[], &file).args(["--both", "file", "--theirs", "."]));
    assert_eq!(read(both.at("main/file")).as_deref(), Some("main"));
    assert_eq!(read(both.at("main/file~mine")).as_deref(), Some("mine"));
    assert_eq!(both.get("main", "key"), "mine");
    assert_eq!(read(both.at("main/only")).as_deref(), Some("mine"));
    both.is_sound();
}

#[test]
fn what_is_no_fork_of_the_store_is_refused() {
    let Some(both) = Both::new() else { return };
    let refused = |fork: &Path, code: i32, says: &str| {
        let (ended, out, said) = ends(&mut both.merge(&[], fork));
        assert!(ended == Some(code) && said.contains(says), "{ended:?} {out}{said}");
    };
    let other = both.at("other.kvfs");
    succeeds(both.kvfs(&["create"]).arg(&other));
    refused(&other, 1, "cannot be merged into this store: it is no fork");
    succeeds(both.kvfs(&["push"]).arg(&other).arg(both.address("other")));
    let forked = both.at("forked.kvfs");
    succeeds(both.kvfs(&["fork", &both.address("other")]).arg(&forked));
    refused(&forked, 1, "it is a fork of another store");
    refused(both.address("main").as_ref(), 1, "it is no fork");
    refused(both.address("none").as_ref(), 1, "there is no store");
    refused(&both.at("none.kvfs"), 3, "cannot find");
    refused(format!("{}@monday", both.address("mine")).as_ref(), 2, "is a snapshot");
    succeeds(both.kvfs(&["snapshot", "create"]).arg(both.at("main")).arg("monday"));
    succeeds(both.kvfs(&["clone", "create"]).arg(both.at("main")).args(["monday", "trial"]));
    let mut merge = both.kvfs(&["merge"]);
    merge.arg(&forked).arg("--into").arg(both.at("main/.kvfs/clone/trial"));
    let (code, _, said) = ends(&mut merge);
    assert!(code == Some(2) && said.contains("into the store itself"), "{said}");
    assert_eq!(succeeds(both.kvfs(&["txn", "list"]).arg(both.at("main"))).trim(), "");
}

#[test]
fn a_fork_is_rebased_onto_what_is_published_by_now() {
    let Some(both) = Both::new() else { return };
    let (file, before) = (both.at("mine.kvfs"), both.at("mine.kvfs.before"));
    let rebase = |words: &[&str]| {
        let mut command = both.kvfs(&["rebase"]);
        command.arg(&file).args(words);
        command
    };
    let forks = || {
        let listed = succeeds(both.kvfs(&["--json", "forks"]).arg(both.address("main")));
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        listed.as_array().expect("a list").len()
    };
    let (code, _, said) = ends(&mut rebase(&[]));
    assert!(code != Some(0) && said.contains("is mounted on"), "{said}");
    fs::write(both.at("mine/made"), noise(5, 200_000)).expect("write");
    fs::write(both.at("mine/file"), "mine").expect("write");
    both.put("mine", "key", "mine");
    both.umount("mine");
    let said = succeeds(&mut rebase(&[]));
    assert!(said.contains("began as the newest state"), "{said}");

    fs::write(both.at("main/theirs"), noise(6, 300_000)).expect("write");
    fs::remove_file(both.at("main/large")).expect("removed");
    both.put("main", "other", "main");
    succeeds(both.kvfs(&["push"]).arg(both.at("main")).arg(both.address("main")));
    let said = succeeds(&mut rebase(&["--dry-run"]));
    assert!(said.contains("A  made") && said.contains("nothing was changed"), "{said}");
    assert!(!said.contains("theirs") && !before.exists());
    assert_eq!(forks(), 1);
    let said = succeeds(&mut rebase(&[]));
    assert!(said.contains("goes on from generation 2, and not 1"), "{said}");
    assert_eq!(forks(), 2, "as it was it is registered, too");
    both.mount("mine", &[]);
    let is_rebased = || {
        assert!(fs::read(both.at("mine/made")).expect("read") == noise(5, 200_000));
        assert!(fs::read(both.at("mine/theirs")).expect("read") == noise(6, 300_000));
        assert!(!both.at("mine/large").exists());
        assert_eq!(read(both.at("mine/file")).as_deref(), Some("mine"));
        assert_eq!(
            (both.get("mine", "key"), both.get("mine", "other")),
            ("mine".into(), "main".into())
        );
    };
    is_rebased();
    both.umount("mine");
    // The earlier state is a store.
    let listed = succeeds(both.kvfs(&["ls"]).arg(&before));
    assert!(listed.contains("large") && listed.contains("made"), "{listed}");

    // Conflicting changes are listed, and the fork does not change.
    fs::write(both.at("main/file"), "main").expect("write");
    succeeds(both.kvfs(&["push"]).arg(both.at("main")).arg(both.address("main")));
    let (code, _, said) = ends(&mut rebase(&["--theirs", "file"]));
    assert!(code == Some(2) && said.contains(".before is there"), "{said}");
    fs::remove_file(&before).expect("removed");
    let (code, shown, said) = ends(&mut rebase(&[]));
    assert_eq!(code, Some(75), "{said}");
    assert!(shown.contains("file: changed in the fork, changed in dir:"), "{shown}");
    assert_eq!(forks(), 2);
    both.mount("mine", &[]);
    is_rebased();
    both.umount("mine");
    // "Ours" is the fork, as for a clone that is rebased.
    succeeds(&mut rebase(&["--ours", "file", "--drop"]));
    assert!(!before.exists() && !both.at("mine.kvfs.rebase").exists());
    assert_eq!(forks(), 2, "the one that was dropped is replaced");
    both.mount("mine", &[]);
    is_rebased();
    both.umount("mine");
    succeeds(&mut both.merge(&[], &file));
    assert_eq!(read(both.at("main/file")).as_deref(), Some("mine"));
    assert!(fs::read(both.at("main/made")).expect("read") == noise(5, 200_000));
    both.is_sound();
}
