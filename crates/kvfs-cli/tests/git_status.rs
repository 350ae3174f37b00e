//! A program that only looks leaves nothing to review: `git status` writes no index of its own.

mod place;

use std::fs;
use std::process::{Command, Stdio};

use place::{Place, kvfs, succeeds};

#[test]
fn git_status_in_a_run_changes_nothing() {
    let Some(place) = Place::new() else { return };
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(place.mnt()).env("HOME", place.dir.path()).args(words);
        git.stdin(Stdio::null()).output()
    };
    place.mounted();
    if git(&["init", "--quiet"]).is_err() {
        return eprintln!("SKIPPED: there is no git here");
    }
    for round in 0..20 {
        // The index and the files are of one second, so git would look at them again and note it.
        fs::write(place.mnt().join(format!("file-{round}")), "new").expect("written");
        assert!(git(&["add", "--all"]).is_ok_and(|ended| ended.status.success()));
        let mut run = kvfs(&["run", "--keep"]);
        run.arg(place.mnt()).args(["--", "git", "-C"]).arg(place.mnt());
        run.args(["status", "--porcelain"]).env("HOME", place.dir.path());
        let said = succeeds(run.stdin(Stdio::null()));
        assert!(said.contains(&format!("A  file-{round}\n")), "{said}");
        let id = said.lines().last().expect("the number of the transaction");
        let shown = succeeds(kvfs(&["txn", "diff"]).arg(place.mnt()).arg(id).stdin(Stdio::null()));
        assert_eq!(shown.trim(), "nothing is changed", "round {round}");
        succeeds(kvfs(&["txn", "abort"]).arg(place.mnt()).arg(id));
    }
}
