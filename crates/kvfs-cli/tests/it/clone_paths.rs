//! Commands that get the path of a clone work on the dictionaries, snapshots and clones of that
//! clone.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{ends, kvfs, succeeds};
use crate::mounted::Mount;

/// A store with a file and a snapshot, and the path of a clone of it.
fn cloned() -> Option<(Mount, PathBuf)> {
    let mount = Mount::new()?;
    fs::write(mount.path("file"), "base").expect("written");
    succeeds(kvfs(&["snapshot", "create"]).arg(mount.root()).arg("origin"));
    succeeds(kvfs(&["clone", "create"]).arg(mount.root()).args(["origin", "trial"]));
    let clone = mount.path(".kvfs/clone/trial");
    Some((mount, clone))
}

/// The names of a list in JSON.
fn names(command: &str, target: &Path) -> Vec<String> {
    let json = succeeds(kvfs(&["--json", command, "list"]).arg(target));
    let all: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let all = all.as_array().expect("a list").iter();
    all.map(|info| info["name"].as_str().expect("a name").to_owned()).collect()
}

/// Fails with a message that has these words.
#[track_caller]
fn refused(words: &[&str], target: &Path, more: &[&str], why: &str) {
    let (code, out, said) = ends(kvfs(words).arg(target).args(more));
    assert!(code == Some(2) && said.contains(why), "{words:?} {more:?}: {code:?} {out}{said}");
}

#[test]
fn dictionaries_are_those_of_the_clone() {
    let Some((mount, clone)) = cloned() else { return };
    let root = mount.root();
    succeeds(kvfs(&["dict", "create"]).arg(&clone).args(["photos", "--compression", "zstd"]));
    let has = |target: &Path| names("dict", target).contains(&"photos".to_owned());
    assert_eq!((has(&clone), has(&root)), (true, false));
    succeeds(kvfs(&["dict", "set"]).arg(&clone).args(["photos", "--compression", "none"]));
    let info = succeeds(kvfs(&["dict", "info"]).arg(&clone).arg("photos"));
    assert!(info.lines().any(|line| line.starts_with("compression") && line.ends_with("none")));
    succeeds(kvfs(&["compact"]).arg(&clone).arg("photos"));
    succeeds(kvfs(&["dict", "drop"]).arg(&clone).arg("photos"));
    assert_eq!((has(&clone), has(&root)), (false, false));
}

#[test]
fn snapshots_are_those_of_the_clone() {
    let Some((mount, clone)) = cloned() else { return };
    succeeds(kvfs(&["snapshot", "create"]).arg(&clone).arg("tried"));
    assert_eq!(names("snapshot", &clone), ["tried"]);
    assert_eq!(names("snapshot", &mount.root()).len(), 2);
    fs::write(clone.join("file"), "changed").expect("written");
    fs::write(mount.path("elsewhere"), "").expect("written");
    let diff = succeeds(kvfs(&["diff"]).arg(&clone).arg("tried"));
    assert!(diff.contains("M  file") && !diff.contains("elsewhere"), "{diff}");
    let stream = mount.root().with_file_name("stream");
    succeeds(kvfs(&["send"]).arg(&clone).args(["tried", "-o"]).arg(&stream));
    assert!(fs::metadata(&stream).expect("made").len() > 0);
    succeeds(kvfs(&["snapshot", "rollback"]).arg(&clone).arg("tried"));
    assert_eq!(fs::read_to_string(clone.join("file")).expect("read"), "base");
    assert!(mount.path("elsewhere").exists());
    // Snapshots of the store are refused with the reason.
    let why = "snapshot origin is of the store";
    for words in [&["snapshot", "drop"][..], &["snapshot", "rollback"], &["send"]] {
        refused(words, &clone, &["origin"], why);
    }
    refused(&["clone", "create"], &clone, &["origin", "other"], why);
    refused(&["diff"], &clone, &["origin"], "snapshot origin is not of it");
    succeeds(kvfs(&["snapshot", "drop"]).arg(&clone).arg("tried"));
    assert_eq!(names("snapshot", &mount.root()), ["origin"]);
}

#[test]
fn automatic_snapshots_of_a_clone_and_of_the_store_are_kept_apart() {
    let Some((mount, clone)) = cloned() else { return };
    let auto = |target: &Path| {
        let mut auto = kvfs(&["--json", "snapshot", "auto"]);
        let json = succeeds(auto.arg(target).args(["--keep", "1d"]));
        let done: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        done["created"].as_str().expect("a name").to_owned()
    };
    // Both are made in one second, or nearly so.
    let (of_store, of_clone) = (auto(&mount.root()), auto(&clone));
    assert!(of_store.starts_with("auto-") && of_clone.starts_with("trial-auto-"), "{of_clone}");
    assert_eq!(names("snapshot", &clone), std::slice::from_ref(&of_clone));
    // Rules that keep one snapshot of the clone drop none of the store.
    let mut last = of_clone.clone();
    while last == of_clone {
        last = auto(&clone);
    }
    assert_eq!(names("snapshot", &clone), [last.clone()]);
    assert_eq!(names("snapshot", &mount.root()), ["origin".to_owned(), of_store, last]);
}

#[test]
fn clones_are_those_of_the_clone_to_any_depth() {
    let Some((mount, clone)) = cloned() else { return };
    let root = mount.root();
    succeeds(kvfs(&["clone", "create"]).arg(&root).args(["origin", "sibling"]));
    succeeds(kvfs(&["snapshot", "create"]).arg(&clone).arg("tried"));
    succeeds(kvfs(&["clone", "create"]).arg(&clone).args(["tried", "child"]));
    let child = mount.path(".kvfs/clone/child");
    succeeds(kvfs(&["snapshot", "create"]).arg(&child).arg("deep"));
    succeeds(kvfs(&["clone", "create"]).arg(&child).args(["deep", "grandchild"]));
    // The clone stays below its parent when the snapshot between them is dropped.
    succeeds(kvfs(&["snapshot", "drop"]).arg(&clone).arg("tried"));
    assert_eq!(names("clone", &clone), ["child", "grandchild"]);
    assert_eq!(names("clone", &child), ["grandchild"]);
    assert_eq!(names("clone", &root).len(), 4);
    refused(&["clone", "drop"], &clone, &["sibling"], "was not made of clone trial");
    refused(&["clone", "limit"], &child, &["child", "1M"], "was not made of clone child");
    succeeds(kvfs(&["clone", "limit"]).arg(&clone).args(["grandchild", "64M"]));
    succeeds(kvfs(&["clone", "drop"]).arg(&clone).arg("grandchild"));
    assert_eq!(names("clone", &clone), ["child"]);
}
