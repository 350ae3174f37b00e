//! Tests of mounts that show a directory of a store on a server as their root, and of runs in one.
//! Changes and conflicts are named by their paths in the store.

use std::path::Path;
use std::process::{Command, Output};

use crate::asked::Asked;
use crate::served_place::{Place, TRY_AGAIN, kvfs, said, succeeds};

/// Returns the command that mounts a directory of the store.
fn mount(place: &Place, directory: &str, at: &str) -> Command {
    let mut command = kvfs();
    command.arg("mount").arg(format!("{}:{directory}", place.address())).arg(place.path(at));
    command
}

#[track_caller]
fn ends(place: &Place, verb: &str, at: &str) {
    let output = place.end(verb, at);
    assert!(output.status.success(), "{}", said(&output));
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn names(directory: &Path) -> Vec<String> {
    let all = std::fs::read_dir(directory).expect("a directory");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.expect("an entry").file_name().to_string_lossy().into_owned()
    };
    let mut names: Vec<String> = all.map(name).collect();
    names.sort();
    names
}

#[test]
fn a_directory_is_the_root_of_its_mount_and_changes_are_named_as_in_the_store() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    succeeds(mount(&place, "/a", "one").arg("--txn"));
    let one = place.path("one");
    assert_eq!(names(&one), names(&place.path("tree/a")));
    assert_eq!(std::fs::read(one.join("b/large")).expect("read"), vec![7; 1 << 20]);
    // The way up leads out of the mount, and not to the rest of the store.
    assert!(names(&one.join("..")).contains(&"socket".to_string()));
    let script = "echo more >>file1; mv file2 b/moved; mkdir made; echo new >made/file; ln file3 b";
    succeeds(Command::new("sh").args(["-ec", script]).current_dir(&one));
    let diff = |options: &[&str]| text(&succeeds(kvfs().arg("diff").args(options).arg(&one)));
    let shown = diff(&["--all", "--no-renames"]);
    for path in ["a/file1", "a/b/moved", "a/made/file", "a/b/file3"] {
        assert!(shown.contains(path), "{path}: {shown}");
    }
    // The contents of both sides are read, too.
    let patch = diff(&["--patch"]);
    for line in ["+++ b/a/file1", "-1 1 1 1 1 1 1 ", "+1 1 1 1 1 1 1 more", "+new"] {
        assert!(patch.contains(line), "{line}: {patch}");
    }
    succeeds(kvfs().arg("clone-tree").arg(one.join("made")).arg(one.join("b/copy")));
    ends(&place, "commit", "one");
    serving.ends_when_asked();
    place.has("/a/file1", Some("1 1 1 1 1 1 1 more\n"));
    place.has("/a/b/moved", Some(&"2 ".repeat(14)));
    place.has("/a/b/copy/file", Some("new\n"));
    place.has("/made/file", None);
}

#[test]
fn a_conflict_in_a_directory_is_named_as_in_the_store() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    succeeds(mount(&place, "/a", "one").arg("--txn"));
    succeeds(&mut place.mount("two"));
    std::fs::write(place.path("one/file1"), "one").expect("written");
    std::fs::write(place.path("two/a/file1"), "two").expect("written");
    ends(&place, "commit", "two");
    let output = place.end("commit", "one");
    assert_eq!(output.status.code(), Some(TRY_AGAIN), "{}", said(&output));
    assert!(said(&output).contains("/a/file1"), "{}", said(&output));
    ends(&place, "abort", "one");
    serving.ends_when_asked();
    place.has("/a/file1", Some("two"));
}

#[test]
fn snapshots_clones_and_the_main_files_are_mounted_from_a_directory_on() {
    let Some(place) = Place::new() else { return };
    let store = place.path("store");
    succeeds(kvfs().args(["snapshot", "create"]).arg(&store).arg("monday"));
    succeeds(kvfs().args(["clone", "create"]).arg(&store).args(["monday", "try"]));
    let serving = place.serve();
    let two = place.path("two");
    succeeds(mount(&place, "/a/b", "two").args(["--snapshot", "monday"]));
    assert_eq!(names(&two), ["large"]);
    let refused = std::fs::write(two.join("new"), "x").expect_err("a snapshot");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    ends(&place, "umount", "two");

    succeeds(mount(&place, "/a", "one").args(["--txn", "--clone", "try"]));
    std::fs::write(place.path("one/of_clone"), "x").expect("written");
    ends(&place, "commit", "one");
    succeeds(mount(&place, "/a/", "two").args(["--txn", "--clone", "try"]));
    assert_eq!(std::fs::read(two.join("of_clone")).expect("read"), b"x");
    ends(&place, "abort", "two");

    succeeds(mount(&place, "/a", "one").arg("--lease"));
    std::fs::write(place.path("one/of_lease"), "y").expect("written");
    ends(&place, "umount", "one");
    serving.ends_when_asked();
    place.has("/a/of_lease", Some("y"));
    place.has("/a/of_clone", None);
}

#[test]
fn a_durable_transaction_goes_on_in_its_directory_or_in_the_whole_store() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    succeeds(mount(&place, "/a", "one").args(["--txn", "--durable"]));
    std::fs::write(place.path("one/kept"), "x").expect("written");
    let told = said(&place.end("umount", "one"));
    assert!(told.contains(&format!("kvfs mount {}:/a DIR", place.address())), "{told}");
    let key = told.split("--key ").nth(1).expect("the key of the transaction").trim();
    let key: String = key.chars().take_while(char::is_ascii_hexdigit).collect();
    succeeds(place.mount("two").args(["--key", &key]));
    assert_eq!(std::fs::read(place.path("two/a/kept")).expect("read"), b"x");
    std::fs::write(place.path("two/above"), "y").expect("written");
    ends(&place, "umount", "two");
    // Changes outside of the directory are listed, though their contents are not in the mount.
    succeeds(mount(&place, "/a", "one").args(["--txn", "--key", &key]));
    let patch = text(&succeeds(kvfs().args(["diff", "--patch"]).arg(place.path("one"))));
    assert!(patch.contains("a/kept") && patch.contains("above"), "{patch}");
    ends(&place, "commit", "one");
    serving.ends_when_asked();
    place.has("/a/kept", Some("x"));
    place.has("/above", Some("y"));
}

#[test]
fn a_path_without_a_directory_is_refused_and_leaves_no_mount() {
    let Some(place) = Place::new() else { return };
    let local = place.path("local");
    succeeds(kvfs().arg("mount").arg(place.path("store")).arg(&local));
    std::os::unix::fs::symlink("a", local.join("link")).expect("a link");
    succeeds(kvfs().arg("umount").arg(&local));
    let serving = place.serve();
    for (path, code, why) in [
        ("/none", 3, "has no directory /none"),
        ("/a/none/b", 3, "has no directory /a/none"),
        ("/a/file1", 2, "/a/file1 in "),
        ("/a/file1/b", 2, "is no directory"),
        ("/link", 2, "is a symbolic link"),
        ("/link/b", 2, "is a symbolic link"),
        ("/.kvfs", 3, "has no directory /.kvfs"),
        ("/a/..", 2, "leads upwards"),
    ] {
        let output = mount(&place, path, "one").arg("--txn").output().expect("kvfs runs");
        assert_eq!(output.status.code(), Some(code), "{path}: {}", said(&output));
        assert!(said(&output).contains(why), "{path}: {}", said(&output));
        assert!(names(&place.path("one")).is_empty(), "{path}: nothing is mounted");
    }
    // A command for the whole store does not leave out the path silently.
    let mut list = kvfs();
    list.args(["snapshot", "list"]).arg(format!("{}:/a", place.address()));
    let output = list.output().expect("kvfs runs");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("the address ends before /a"), "{}", said(&output));
    serving.ends_when_asked();
}

#[test]
fn a_program_runs_in_a_directory_of_a_server() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let script = "test \"$(pwd)\" = \"$KVFS_MOUNT\"; test ! -e a; cat file1; echo made >made";
    let mut run = kvfs();
    run.arg("run").arg(format!("{}:/a", place.address())).args(["--", "sh", "-ec", script]);
    assert_eq!(text(&succeeds(&mut run)), "1 ".repeat(7));
    // Takes out a part of the changes, after which another mount has the transaction.
    let program = format!(
        "{} run --ask {}:/a -- sh -ec 'echo 1 >added; chmod 700 b; rm b/large; echo 2 >second'",
        env!("CARGO_BIN_EXE_kvfs"),
        place.address()
    );
    let mut asked = Asked::start(&program).expect("script(1)");
    // a/added, a/b, a/b/large, a/second: yes, no, no, yes.
    asked.answers(&["s", "y", "n", "n", "y", "y"]);
    let (shown, code) = asked.ends();
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("a/added") && shown.contains("Take it?"), "{shown}");
    serving.ends_when_asked();
    place.has("/a/made", Some("made\n"));
    place.has("/a/added", Some("1\n"));
    place.has("/a/second", Some("2\n"));
    place.has("/a/b/large", Some(&"\u{7}".repeat(1 << 20)));
}
