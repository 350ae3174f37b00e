//! Tests that a program which only looks leaves nothing to review: `git status` writes no index of
//! its own.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

use crate::place::{Place, kvfs, succeeds};

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

#[test]
fn two_that_only_look_at_once_are_no_conflict() {
    let Some(place) = Place::new() else { return };
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(place.mnt()).env("HOME", place.dir.path()).args(words);
        git.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    place.mounted();
    if !git(&["init", "--quiet"]) {
        return eprintln!("SKIPPED: there is no git here");
    }
    for round in 0..5 {
        fs::write(place.mnt().join(format!("file-{round}")), "new").expect("written");
        assert!(git(&["add", "--all"]));
        let mut both = [(); 2].map(|()| {
            let mut run = kvfs(&["run"]);
            run.arg(place.mnt()).args(["--", "sh", "-c"]);
            run.arg("git -C \"$KVFS_MOUNT\" status >/dev/null; echo; read line; exit 0");
            run.env("HOME", place.dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
            run.spawn().expect("it runs")
        });
        // Both have run `git status` before the first one commits.
        for run in &mut both {
            run.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("it has looked");
        }
        for mut run in both {
            drop(run.stdin.take());
            assert_eq!(run.wait().expect("it ends").code(), Some(0), "round {round}");
        }
    }
}
