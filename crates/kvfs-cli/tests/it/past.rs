//! Tests of `kvfs restore`, `kvfs history` and `kvfs snapshot auto`, which return to earlier
//! states, on mounted and unmounted stores.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::place::{Place, fails, kvfs, succeeds};
use serde_json::Value;

fn tree(root: &Path) {
    fs::create_dir_all(root.join("d/deep")).expect("directories");
    fs::write(root.join("d/deep/large"), vec![b'x'; 3 << 20]).expect("a file");
    fs::write(root.join("d/small"), "small").expect("a file");
    fs::hard_link(root.join("d/small"), root.join("d/linked")).expect("a link");
    fs::write(root.join("file"), "before").expect("a file");
    fs::set_permissions(root.join("file"), fs::Permissions::from_mode(0o640)).expect("a mode");
    symlink("target", root.join("link")).expect("a link");
}

fn damage(root: &Path) {
    fs::remove_dir_all(root.join("d/deep")).expect("removed");
    fs::write(root.join("d/small"), "changed").expect("a file");
    fs::write(root.join("d/new"), "new").expect("a file");
    fs::remove_file(root.join("file")).expect("removed");
    fs::create_dir(root.join("file")).expect("a directory");
    fs::write(root.join("file/in"), "in").expect("a file");
    fs::remove_file(root.join("link")).expect("removed");
    fs::write(root.join("fresh"), "fresh").expect("a file");
}

fn bytes_of(stat: &str) -> u64 {
    let value: Value = serde_json::from_str(stat).expect("JSON");
    value["io"]["pages"]["write_bytes"].as_u64().unwrap_or_else(|| panic!("{stat}"))
}

#[test]
fn what_is_restored_is_what_it_was_and_no_content_is_written() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let root = p.mnt();
    tree(&root);
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("monday"));
    let (owner, time) = (
        fs::metadata(root.join("file")).expect("there").mode(),
        fs::metadata(root.join("d/deep/large")).expect("there").mtime(),
    );
    damage(&root);
    let before = bytes_of(&succeeds(kvfs(&["--json", "stat"]).arg(&root)));
    let dry = succeeds(
        kvfs(&["restore", "--dry-run"]).arg(&root).args(["monday", "d", "file", "link", "fresh"]),
    );
    assert_eq!(
        dry,
        "d: replaced\nfile: replaced\nlink: made again\nfresh: removed\nnothing was changed\n"
    );
    assert!(root.join("fresh").exists());
    let said = succeeds(
        kvfs(&["restore"])
            .arg(&root)
            .arg("monday")
            .arg(root.join("d"))
            .args(["file", "link", "fresh/"]),
    );
    assert_eq!(said, "d: replaced\nfile: replaced\nlink: made again\nfresh: removed\n");
    assert_eq!(succeeds(kvfs(&["diff"]).arg(&root).arg("monday")), "nothing is changed\n");
    assert_eq!(fs::read(root.join("d/deep/large")).expect("there"), vec![b'x'; 3 << 20]);
    assert_eq!(fs::metadata(root.join("d/deep/large")).expect("there").mtime(), time);
    assert_eq!(fs::metadata(root.join("file")).expect("there").mode(), owner);
    assert_eq!(fs::read_link(root.join("link")).expect("a link"), Path::new("target"));
    let ino = |name: &str| fs::metadata(root.join(name)).expect("there").ino();
    assert_eq!(ino("d/small"), ino("d/linked"), "links among them stay links");
    let after = bytes_of(&succeeds(kvfs(&["--json", "stat"]).arg(&root)));
    assert!(after - before < 1 << 20, "{} bytes of pages were written", after - before);
    // The restored file diverges, and the snapshot does not change.
    fs::write(root.join("d/deep/large"), "other").expect("a file");
    let kept = root.join(".kvfs/snapshot/monday/d/deep/large");
    assert_eq!(fs::metadata(kept).expect("there").len(), 3 << 20);
    succeeds(kvfs(&["snapshot", "drop"]).arg(&root).arg("monday"));
    succeeds(&mut p.umount());
    succeeds(kvfs(&["check"]).arg(p.store()));
}

#[test]
fn a_store_that_is_not_mounted_is_restored_alike() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    tree(&p.mnt());
    succeeds(kvfs(&["snapshot", "create"]).arg(p.mnt()).arg("monday"));
    damage(&p.mnt());
    succeeds(&mut p.umount());
    let said = succeeds(
        kvfs(&["--json", "restore"]).arg(p.store()).args(["monday", "d", "file", "link", "fresh"]),
    );
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["restored"][2], serde_json::json!({"path": "link", "done": "made again"}));
    assert_eq!(succeeds(kvfs(&["diff"]).arg(p.store()).arg("monday")), "nothing is changed\n");
    fails(3, kvfs(&["restore"]).arg(p.store()).args(["tuesday", "d"]));
    fails(3, kvfs(&["restore"]).arg(p.store()).args(["monday", "d", "nowhere"]));
    succeeds(kvfs(&["check"]).arg(p.store()));
    p.mounted();
    assert_eq!(fs::read(p.mnt().join("d/deep/large")).expect("there"), vec![b'x'; 3 << 20]);
}

#[test]
fn files_with_several_names_keep_them_when_all_are_restored() {
    let Some(p) = Place::new() else { return };
    for mounted in [true, false] {
        p.mounted();
        let root = p.mnt();
        let (d, e, x) = (root.join("d"), root.join("e"), root.join("x"));
        [&d, &e].iter().for_each(|dir| fs::create_dir_all(dir).expect("a directory"));
        fs::write(&x, vec![b'x'; 20_000]).expect("a file");
        for link in [d.join("1"), d.join("2"), e.join("a"), e.join("b")] {
            fs::hard_link(&x, link).expect("a link");
        }
        let mtime = fs::metadata(&d).expect("there").mtime();
        succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("monday"));
        let restore = |paths: &[&str]| {
            for path in ["d/1", "d/2", "e/a", "e/b", "x"] {
                fs::remove_file(root.join(path)).expect("removed");
                fs::write(root.join(path), "changed").expect("a file");
            }
            if !mounted {
                succeeds(&mut p.umount());
            }
            let target = if mounted { root.clone() } else { p.store() };
            succeeds(kvfs(&["restore"]).arg(target).arg("monday").args(paths));
            if !mounted {
                p.mounted();
            }
        };
        let file = |name: &str| {
            let it = fs::metadata(root.join(name)).expect("there");
            (it.ino(), it.nlink(), it.len())
        };
        restore(&["d", "x", "e/b"]);
        let (ino, ..) = file("x");
        for name in ["d/1", "d/2", "e/b", "x"] {
            assert_eq!(file(name), (ino, 4, 20_000), "{name}");
        }
        assert_eq!(file("e/a").1, 1, "it was not restored");
        // The names are given in any order, and one of them twice.
        restore(&["e/a", "x", "e", "d/2", "d", "e/b"]);
        let (ino, ..) = file("e/a");
        for name in ["d/1", "d/2", "e/a", "e/b", "x"] {
            assert_eq!(file(name), (ino, 5, 20_000), "{name}");
        }
        assert_eq!(succeeds(kvfs(&["diff"]).arg(&root).arg("monday")), "nothing is changed\n");
        assert_eq!(fs::metadata(&d).expect("there").mtime(), mtime);
        // The names are hard links of one file: data written by one name is read by the others.
        fs::write(d.join("1"), "one").expect("a file");
        assert_eq!(fs::read(&x).expect("there"), b"one");
        for name in ["d/1", "d/2", "e/a", "e/b"] {
            fs::remove_file(root.join(name)).expect("removed");
        }
        assert_eq!(file("x").1, 1);
        succeeds(kvfs(&["snapshot", "drop"]).arg(&root).arg("monday"));
        fs::remove_file(&x).expect("removed");
        succeeds(&mut p.umount());
        succeeds(kvfs(&["check"]).arg(p.store()));
    }
}

#[test]
fn one_path_that_fails_leaves_all_as_they_are() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let root = p.mnt();
    tree(&root);
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("monday"));
    damage(&root);
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("damaged"));
    let refused =
        |code: i32, words: &[&str]| fails(code, kvfs(&["restore"]).arg(&root).args(words));
    assert!(refused(3, &["monday", "d", "nowhere"]).contains("neither in snapshot monday nor now"));
    assert!(
        refused(3, &["monday", "fresh", "d/deep/large"])
            .contains("its directory d/deep is not there")
    );
    assert!(refused(3, &["tuesday", "d"]).contains("there is no snapshot tuesday"));
    assert!(refused(3, &["../x", "d"]).contains("there is no snapshot"));
    assert!(refused(2, &["monday", "/"]).contains("rollback"));
    assert!(refused(2, &["monday", "d/../../etc"]).contains("`..`"));
    assert!(refused(2, &["monday", ".kvfs/txn"]).contains("views"));
    refused(2, &["monday"]);
    assert_eq!(succeeds(kvfs(&["diff"]).arg(&root).arg("damaged")), "nothing is changed\n");
    let open = succeeds(kvfs(&["--json", "txn", "list"]).arg(&root));
    assert_eq!(open.trim(), "[]", "a transaction was left");
    // A restore in a transaction is a part of the transaction.
    let script = "cd $KVFS_MOUNT && $0 restore . monday d && test -f d/deep/large && exit 1";
    let mut command = kvfs(&["run"]);
    command.arg(&root).args(["--", "sh", "-c", script, env!("CARGO_BIN_EXE_kvfs")]);
    fails(1, &mut command);
    assert_eq!(succeeds(kvfs(&["diff"]).arg(&root).arg("damaged")), "nothing is changed\n");
    // A failed restore leaves no change in it, though the program continues and commits.
    for paths in ["d nowhere", "d fresh link/x d/deep/nowhere"] {
        let script = format!("cd $KVFS_MOUNT && ! $0 restore . monday {paths} 2> /dev/null");
        let mut command = kvfs(&["run"]);
        command.arg(&root).args(["--", "sh", "-c", &script, env!("CARGO_BIN_EXE_kvfs")]);
        succeeds(&mut command);
        assert_eq!(succeeds(kvfs(&["diff"]).arg(&root).arg("damaged")), "nothing is changed\n");
    }
}

#[test]
fn a_history_names_states_and_what_has_changed() {
    let Some(p) = Place::new() else { return };
    let none = succeeds(kvfs(&["history"]).arg(p.store()));
    assert!(none.contains("there are no snapshots"), "{none}");
    p.mounted();
    let root = p.mnt();
    for (name, file) in [("one", "a"), ("two", "b"), ("three", "c")] {
        fs::write(root.join(file), file).expect("a file");
        succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg(name));
    }
    fs::remove_file(root.join("a")).expect("removed");
    let lines = |text: &str| -> Vec<String> {
        text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let said = lines(&succeeds(kvfs(&["history", "--changes"]).arg(&root)));
    assert!(said[1].ends_with("now 1 file removed; 1 B less"), "{said:?}");
    assert!(said[2].ends_with("three 1 file added; 1 B more"), "{said:?}");
    assert!(said[4].ends_with(" one"), "{said:?}");
    let short = lines(&succeeds(kvfs(&["history", "-n", "1"]).arg(&root)));
    assert!(short.len() == 2 && short[1].ends_with(" three"), "{short:?}");
    let json = succeeds(kvfs(&["--json", "history", "--changes"]).arg(&root));
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["snapshots"][0]["name"], "three");
    assert_eq!(json["snapshots"][0]["changes"]["files"][0]["path"], "c");
    assert_eq!(json["now"]["files"][0]["change"], "removed");
    succeeds(&mut p.umount());
    let unmounted = lines(&succeeds(kvfs(&["history", "--changes"]).arg(p.store())));
    // The column of space held only by the snapshot is left out, since it grows with later commits.
    let but_size = |line: &String| {
        let words: Vec<_> = line.split(' ').collect();
        (words[..2].join(" "), words[4..].join(" "))
    };
    let all = |lines: &[String]| lines.iter().map(but_size).collect::<Vec<_>>();
    assert_eq!(all(&unmounted[2..]), all(&said[2..]));
    fails(3, kvfs(&["history"]).arg(p.dir.path().join("nowhere")));
    fails(2, kvfs(&["history"]).arg(p.store()).args(["-n", "many"]));
}

#[test]
fn snapshots_by_time_fall_out_and_others_do_not() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let root = p.mnt();
    let names = || {
        let said = succeeds(kvfs(&["--json", "snapshot", "list"]).arg(&root));
        let all: Value = serde_json::from_str(&said).expect("JSON");
        let all = all.as_array().expect("a list").clone();
        all.iter().map(|s| s["name"].as_str().expect("a name").to_string()).collect::<Vec<_>>()
    };
    // Two of one hour long ago, one by hand, and one that only looks like ours.
    let made = ["auto-2020-01-01T10:05:00Z", "auto-2020-01-01T10:50:00Z", "monday", "auto-monday"];
    for name in made {
        succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg(name));
    }
    let auto = |words: &[&str]| succeeds(kvfs(&["snapshot", "auto"]).arg(&root).args(words));
    let said = auto(&["--keep", "24h,7d", "--dry-run"]);
    assert!(
        said.contains("dropped auto-2020-01-01T10:50:00Z")
            && said.ends_with("nothing was changed\n"),
        "{said}"
    );
    assert_eq!(names(), made);
    // Rules that cover this time keep the newest snapshot of the hour.
    let said = auto(&["--keep", "100000h"]);
    assert!(
        said.contains("made auto-2") && said.contains("dropped auto-2020-01-01T10:05:00Z"),
        "{said}"
    );
    assert!(names().contains(&"auto-2020-01-01T10:50:00Z".to_string()));
    auto(&["--keep", "24h,7d,4w", "--prefix", "other"]);
    auto(&["--keep", "24h"]);
    let left = names();
    assert!(left.contains(&"monday".into()) && left.contains(&"auto-monday".into()), "{left:?}");
    assert!(!left.iter().any(|name| name.starts_with("auto-2020")), "{left:?}");
    assert!(left.iter().any(|name| name.starts_with("other-2")), "{left:?}");
    for wrong in ["", "24", "24m", "0h"] {
        let mut command = kvfs(&["snapshot", "auto"]);
        fails(2, command.arg(&root).args(["--keep", wrong]));
    }
    fails(2, kvfs(&["snapshot", "auto"]).arg(&root));
    // The store is not mounted, as may happen when a timer runs the command.
    succeeds(&mut p.umount());
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(["snapshot", "auto", "--keep", "1h"]).arg(p.store()).stdin(Stdio::null());
    assert!(succeeds(&mut command).contains("auto-"));
}
