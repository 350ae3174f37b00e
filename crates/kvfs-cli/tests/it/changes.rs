//! Tests of `kvfs changes`, which prints the commits to a mounted store as they happen.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::place::{Place, fails, kvfs, succeeds};
use serde_json::Value;

/// Returns the changes committed since a position, each as a path or key and its fate, and the
/// position after them.
fn since(p: &Place, position: &str) -> (Vec<String>, String) {
    let said = succeeds(kvfs(&["--json", "changes"]).arg(p.mnt()).args(["--since", position]));
    let mut lines: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    let last = lines.pop().expect("the position");
    let name = |line: &Value| {
        let text = |name: &str| line[name].as_str().unwrap_or("-").to_owned();
        if line.get("path").is_some() {
            format!("/{} {}", text("path"), text("change"))
        } else if line.get("start").is_some() {
            format!("{} {}..{}", text("dictionary"), text("start"), text("end"))
        } else {
            format!("{}:{} {}", text("dictionary"), text("key"), text("type"))
        }
    };
    (lines.iter().map(name).collect(), last["position"].as_str().expect("text").to_owned())
}

#[test]
fn files_are_named_by_path_and_keys_by_dictionary() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let root = p.mnt();
    let at = succeeds(kvfs(&["changes"]).arg(&root)).trim().to_owned();
    fs::create_dir(root.join("d")).expect("a directory");
    fs::write(root.join("d/f"), "content").expect("a file");
    p.ask(&["SYNC"]);
    let (found, at) = since(&p, &at);
    assert!(found.contains(&"/d made".to_owned()), "{found:?}");
    assert!(found.contains(&"/d/f made".to_owned()), "{found:?}");
    assert!(found.iter().all(|row| row.starts_with("/d")), "{found:?}");

    fs::set_permissions(root.join("d"), fs::Permissions::from_mode(0o700)).expect("a mode");
    fs::write(root.join("d/f"), "other").expect("a file");
    succeeds(kvfs(&["kv", "put"]).arg(&root).args(["k", "v"]));
    succeeds(kvfs(&["kv", "call"]).arg(&root).args(["HSET", "h", "f", "v"]));
    succeeds(kvfs(&["kv", "delrange"]).arg(&root).args(["a", "b"]));
    p.ask(&["SYNC"]);
    let (found, at) = since(&p, &at);
    for want in ["/d changed", "/d/f changed", "0:k string", "0:h hash", "0 a..b"] {
        assert!(found.contains(&want.to_owned()), "{want}: {found:?}");
    }

    // A transaction is one commit.
    let script = "cd $KVFS_MOUNT; mv d/f g; rmdir d; echo 1 > new";
    succeeds(kvfs(&["run"]).arg(&root).args(["--", "sh", "-c", script]));
    let (found, at) = since(&p, &at);
    // Files of a removed directory have no path any more.
    assert_eq!(found, ["/d removed", "/g made", "/new made"]);
    succeeds(kvfs(&["undo"]).arg(&root));
    let (found, at) = since(&p, &at);
    assert_eq!(found, ["/d made", "/d/f made", "/g removed", "/new removed"]);
    assert_eq!(since(&p, &at), (vec![], at.clone()), "that was all");
}

#[test]
fn a_clone_has_a_list_of_its_own() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let root = p.mnt();
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("s"));
    succeeds(kvfs(&["clone", "create"]).arg(&root).args(["s", "c"]));
    let clone = root.join(".kvfs/clone/c");
    let position = |at: &std::path::Path| succeeds(kvfs(&["changes"]).arg(at)).trim().to_owned();
    let (of_store, of_clone) = (position(&root), position(&clone));
    fs::write(clone.join("in-clone"), "1").expect("a file");
    fs::write(root.join("in-store"), "1").expect("a file");
    succeeds(kvfs(&["kv", "put"]).arg(&clone).args(["k", "v"]));
    p.ask(&["SYNC"]);
    let told = succeeds(kvfs(&["changes"]).arg(&clone).args(["--since", &of_clone]));
    assert!(told.contains("/in-clone") && told.contains("0: k"), "{told}");
    assert!(!told.contains("in-store"), "{told}");
    let rows = since(&p, &of_store).0;
    assert!(rows.contains(&"/in-store made".into()), "{rows:?}");
    assert!(rows.iter().all(|row| row.starts_with("/in-store ")), "{rows:?}");
    // Merged changes come with their commit.
    let (_, before) = since(&p, &of_store);
    succeeds(kvfs(&["merge"]).arg(&clone));
    let mut merged = since(&p, &before).0;
    merged.retain(|row| !row.starts_with("/ "));
    assert_eq!(merged, ["/in-clone made", "0:k string"]);
}

#[test]
fn what_comes_is_told_at_once() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let mut child = kvfs(&["changes", "--follow"])
        .arg(p.mnt())
        .args(["--since", succeeds(kvfs(&["changes"]).arg(p.mnt())).trim()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    succeeds(kvfs(&["kv", "put"]).arg(p.mnt()).args(["k", "v"]));
    assert!(next().ends_with("  string  0: k"));
    fs::create_dir(p.mnt().join("made")).expect("a directory");
    assert!(next().ends_with("  made    /made"));
    child.kill().expect("killed");
    child.wait().expect("it ends");
}

#[test]
fn what_is_not_kept_is_an_error() {
    let Some(p) = Place::new() else { return };
    fails(3, kvfs(&["changes"]).arg(p.store()));
    p.mounted();
    let at = succeeds(kvfs(&["changes"]).arg(p.mnt())).trim().to_owned();
    succeeds(&mut p.umount());
    p.mounted();
    let said = fails(1, kvfs(&["changes"]).arg(p.mnt()).args(["--since", &at]));
    assert!(said.contains("not kept"), "{said}");
    let said = fails(1, kvfs(&["changes"]).arg(p.mnt()).args(["--since", "tuesday"]));
    assert!(said.contains("a position is"), "{said}");
    fails(2, &mut kvfs(&["changes"]));
}
