//! Tests of `kvfs rebase FORK`. A file at one of the paths that it writes is kept, unless the
//! command left it there itself, and an interrupted rebase can be repeated.

use crate::command;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::command::{ends, succeeds};

/// A folder with a store, which is published, and a fork of that, which both have changed.
struct Both {
    folder: tempfile::TempDir,
}

impl Both {
    fn new() -> Both {
        let both = Both { folder: tempfile::tempdir().expect("a temporary directory") };
        succeeds(both.kvfs(&["create"]).arg(both.at("main.kvfs")));
        both.put("main", "base");
        both.push();
        succeeds(both.kvfs(&["fork", &both.address()]).arg(both.at("mine.kvfs")));
        both.put("mine", "mine");
        both.put("main", "main");
        both.push();
        both
    }

    fn kvfs(&self, words: &[&str]) -> Command {
        let mut command = command::kvfs(words);
        command.env("XDG_CACHE_HOME", self.at("cache"));
        command
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn address(&self) -> String {
        format!("dir:{}/share/main", self.folder.path().display())
    }

    fn push(&self) {
        succeeds(self.kvfs(&["push"]).arg(self.at("main.kvfs")).arg(self.address()));
    }

    fn put(&self, store: &str, key: &str) {
        let store = self.at(&format!("{store}.kvfs"));
        succeeds(self.kvfs(&["kv", "put"]).arg(store).args([key, key]));
    }

    fn has(&self, store: &str, key: &str) -> bool {
        let mut get = self.kvfs(&["kv", "get"]);
        get.arg(self.at(&format!("{store}.kvfs"))).arg(key);
        get.output().expect("run").status.success()
    }

    fn rebase(&self, words: &[&str]) -> Command {
        let mut command = self.kvfs(&["rebase"]);
        command.arg(self.at("mine.kvfs")).args(words);
        command
    }
}

#[test]
fn a_file_that_no_rebase_has_left_is_not_removed() {
    let both = Both::new();
    let other = both.at("mine.kvfs.rebase");
    fs::write(&other, "notes").expect("written");
    for words in [&["--dry-run"][..], &[]] {
        let (code, _, told) = ends(&mut both.rebase(words));
        assert!(code == Some(2) && told.contains("mine.kvfs.rebase"), "{code:?}: {told}");
        assert_eq!(fs::read_to_string(&other).expect("it is there"), "notes");
    }
    fs::remove_file(other).expect("removed");
    succeeds(&mut both.rebase(&[]));
    assert!(both.has("mine", "mine") && both.has("mine", "main"));
}

#[test]
fn a_rebase_that_was_cut_off_before_its_last_step_is_done_again() {
    let both = Both::new();
    let (file, before) = (both.at("mine.kvfs"), both.at("mine.kvfs.before"));
    // The rebase has made the fork again, and has given the file its second name.
    let left = both.at("mine.kvfs.rebase");
    succeeds(both.kvfs(&["fork", &both.address()]).arg(&left));
    fs::hard_link(&file, &before).expect("linked");
    succeeds(&mut both.rebase(&[]));
    assert!(both.has("mine", "mine") && both.has("mine", "main"));
    assert!(before.exists() && !left.exists());
    // The earlier file, and the one that replaced it.
    let forks = succeeds(&mut both.kvfs(&["forks", &both.address()]));
    assert_eq!(forks.lines().count(), 2, "{forks}");
    both.put("main", "more");
    both.push();
    let (code, _, told) = ends(&mut both.rebase(&[]));
    assert!(code == Some(2) && told.contains("mine.kvfs.before is there"), "{code:?}: {told}");
}

#[test]
fn a_fork_of_a_snapshot_is_rebased_though_nothing_was_published_since() {
    let both = Both::new();
    succeeds(both.kvfs(&["snapshot", "create"]).arg(both.at("main.kvfs")).arg("monday"));
    both.put("main", "tuesday");
    both.push();
    let address = format!("{}@monday", both.address());
    succeeds(both.kvfs(&["fork", &address]).arg(both.at("old.kvfs")));
    both.put("old", "own");
    assert!(!both.has("old", "tuesday"));
    let told = succeeds(both.kvfs(&["rebase"]).arg(both.at("old.kvfs")));
    assert!(both.has("old", "own") && both.has("old", "tuesday"), "{told}");
}
