//! Tests of the list of changes for a reviewer: every path at which anything differs, and the
//! difference.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::mounted::Mount;
use serde_json::{Value, json};

fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).into_owned()
}

/// The lines of files, without the summary, each with one blank between words.
fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> =
        text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    lines.pop();
    lines
}

/// The differences that a shell script makes to the mounted store, as `kvfs txn diff` shows them in
/// a transaction, and as `kvfs diff` does of snapshots, mounted and not: they must be the same.
#[track_caller]
fn review(mount: &Mount, script: &str) -> (Vec<String>, Value) {
    let root = mount.root();
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("before"));
    let id = succeeds(kvfs(&["run", "--keep"]).arg(&root).args([
        "--",
        "sh",
        "-ec",
        &format!("cd $KVFS_MOUNT\n{script}"),
    ]));
    let text = succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(id.trim()));
    let json = succeeds(kvfs(&["txn", "diff", "--json", "--all"]).arg(&root).arg(id.trim()));
    succeeds(kvfs(&["txn", "commit"]).arg(&root).arg(id.trim()));
    assert_eq!(succeeds(kvfs(&["diff"]).arg(&root).arg("before")), text);
    succeeds(kvfs(&["snapshot", "drop"]).arg(&root).arg("before"));
    (lines(&text), serde_json::from_str::<Value>(&json).expect("JSON")["files"].take())
}

fn of<'a>(files: &'a Value, path: &str) -> &'a Value {
    files
        .as_array()
        .expect("a list")
        .iter()
        .find(|f| f["path"] == path)
        .unwrap_or_else(|| panic!("{path} in {files}"))
}

#[test]
fn a_file_that_is_written_by_another_name_is_named_by_all() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir(mount.path("h")).expect("a directory");
    fs::write(mount.path("h/sudoers"), "root\n").expect("a file");
    let (lines, json) = review(&mount, "ln h/sudoers zz; echo EVIL >> h/sudoers");
    assert_eq!(lines, ["M h/sudoers 5 B → 10 B, links 1 → 2", "A zz 10 B, link of h/sudoers"]);
    assert_eq!(of(&json, "h/sudoers")["differs"]["links"], json!({"before": "1", "after": "2"}));
    assert_eq!(of(&json, "h/sudoers")["differs"]["content"], true);
    assert_eq!(of(&json, "zz")["differs"]["linked_to"]["after"], "h/sudoers");
    // One line for each name that was written, and only the link for the third.
    let (lines, _) = review(&mount, "echo MORE >> zz");
    assert_eq!(lines, ["M h/sudoers 10 B → 15 B", "M zz 10 B → 15 B"]);
    let (lines, _) = review(&mount, "rm zz; ln h/sudoers yy");
    assert_eq!(lines, ["M h/sudoers other links", "R zz → yy link of h/sudoers"]);
}

#[test]
fn what_is_made_again_is_compared_with_what_was_there() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir(mount.path("d")).expect("a directory");
    for name in ["same", "other", "gone"] {
        fs::write(mount.path("d").join(name), "content").expect("a file");
    }
    let (lines, _) = review(
        &mount,
        "rm -r d; mkdir d; printf content > d/same; printf OTHERS! > d/other; printf 1 > d/new",
    );
    assert_eq!(lines, ["D d/gone 7 B", "A d/new 1 B", "M d/other 7 B, other content"]);
    let (lines, _) = review(&mount, "cp -a d e; rm -r d; mv e d");
    assert_eq!(lines, [""; 0]);
    let root = mount.root();
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("before"));
    succeeds(Command::new("touch").args(["-d", "@5"]).arg(mount.path("d/same")));
    assert_eq!(succeeds(kvfs(&["diff"]).arg(&root).arg("before")), "nothing is changed\n");
    let timed = succeeds(kvfs(&["diff", "--times"]).arg(&root).arg("before"));
    assert!(timed.starts_with("M  d/same") && timed.contains("→ 1970-01-01 00:00:05.0"), "{timed}");
}

#[test]
fn a_directory_that_is_renamed_hides_nothing_below_it() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir_all(mount.path("a/deep")).expect("a directory");
    fs::write(mount.path("a/deep/file"), "12345").expect("a file");
    fs::write(mount.path("a/gone"), "1").expect("a file");
    let (lines, json) =
        review(&mount, "mv a b; rm b/gone; echo EVIL >> b/deep/file; echo new > b/new");
    assert_eq!(
        lines,
        [
            "D a/gone 1 B",
            "R a/ → b/ with 1 below",
            "R a/deep/file → b/deep/file 5 B → 10 B",
            "A b/new 4 B"
        ]
    );
    assert_eq!(of(&json, "b/deep/file")["from"], "a/deep/file");
    assert_eq!(of(&json, "b/deep/file")["change"], "renamed");
    assert_eq!(of(&json, "b/deep")["from"], "a/deep");
}

#[test]
fn a_rename_says_what_else_has_changed() {
    let Some(mount) = Mount::new() else { return };
    for name in ["one", "two", "three"] {
        fs::write(mount.path(name), "content").expect("a file");
        fs::set_permissions(mount.path(name), fs::Permissions::from_mode(0o644)).expect("a mode");
    }
    symlink("here", mount.path("link")).expect("a link");
    let root = mount.root();
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("start"));
    let (lines, json) = review(
        &mount,
        "mv one 1; mv two 2; chmod 755 2; mkdir d; mv three d/3; printf CONTENT > d/3; mv link d/link
         python3 -c 'import os; os.setxattr(\"1\", \"user.note\", b\"x\" * 30)'",
    );
    assert_eq!(
        lines,
        [
            "R one → 1 +xattr user.note xxxxxxxxxxxxxxxxxxxxxxxx… (30 B)",
            "R two → 2 mode 0644 → 0755",
            "A d/",
            "R three → d/3 7 B, other content",
            "R link → d/link",
        ]
    );
    assert_eq!(of(&json, "2")["differs"]["mode"], json!({"before": "0644", "after": "0755"}));
    let apart = succeeds(kvfs(&["diff", "--no-renames"]).arg(&root).arg("start"));
    assert!(apart.contains("D  one") && apart.contains("A  d/link"), "{apart}");
    assert!(!apart.contains("R  "), "{apart}");
}

#[test]
fn whatever_differs_is_said() {
    let Some(mount) = Mount::new() else { return };
    for name in ["mode", "owner", "file", "attributed"] {
        fs::write(mount.path(name), "content").expect("a file");
    }
    fs::create_dir_all(mount.path("directory/below")).expect("a directory");
    fs::create_dir(mount.path("outside")).expect("a directory");
    fs::remove_dir(mount.path("outside")).expect("removed");
    fs::write(mount.path("outside"), "a file").expect("a file");
    symlink("here", mount.path("link")).expect("a link");
    fs::set_permissions(mount.path("mode"), fs::Permissions::from_mode(0o644)).expect("a mode");
    let attribute = |name: &str, value: &str| {
        let set = rustix::fs::setxattr(
            mount.path("attributed"),
            name,
            value.as_bytes(),
            rustix::fs::XattrFlags::empty(),
        );
        set.expect("set");
    };
    attribute("user.gone", "1");
    attribute("user.changed", "1");
    let (lines, json) = review(
        &mount,
        "chmod 4755 mode; chown 12:34 owner; ln -sfn there link; rm file; mkfifo file; rm -r directory; echo 1 > directory
         rm outside; mkdir outside; echo 1 > outside/in
         python3 -c 'import os; a = \"attributed\"; os.setxattr(a, \"user.changed\", b\"2\"); os.setxattr(a, \"user.new\", b\"3\"); os.removexattr(a, \"user.gone\")'
         ln -s /etc/shadow stolen; echo 1 > suid; chmod 4755 suid",
    );
    assert_eq!(
        lines,
        [
            "M attributed xattr user.changed 1 → 2, -xattr user.gone 1, +xattr user.new 3",
            "M directory directory → file, mode 0755 → 0644, with 1 directory below",
            "M file file → fifo",
            "M link target here → there",
            "M mode mode 0644 → 4755",
            "M outside file → directory, mode 0644 → 0755, with 1 file, 2 B below",
            "M owner owner 0:0 → 12:34",
            "A stolen -> /etc/shadow",
            "A suid 2 B, mode 4755",
        ]
    );
    let differs = |path: &str| of(&json, path)["differs"].clone();
    assert_eq!(differs("mode")["mode"], json!({"before": "0644", "after": "4755"}));
    assert_eq!(differs("owner")["owner"], json!({"before": "0:0", "after": "12:34"}));
    assert_eq!(differs("link")["target"], json!({"before": "here", "after": "there"}));
    assert_eq!(differs("outside")["kind"], json!({"before": "file", "after": "directory"}));
    assert_eq!(differs("suid")["mode"], json!({"before": null, "after": "4755"}));
    let attributes = differs("attributed")["xattrs"].clone();
    assert_eq!(attributes[0], json!({"name": "user.changed", "before": "1", "after": "2"}));
    assert_eq!(attributes[1], json!({"name": "user.gone", "before": "1", "after": null}));
    assert_eq!(attributes[2], json!({"name": "user.new", "before": null, "after": "3"}));
}

#[test]
fn the_lines_of_what_is_no_file_are_not_waited_for() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    fs::write(mount.path("becomes"), "a file").expect("a file");
    fs::write(mount.path("text"), "one\n").expect("a file");
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("before"));
    let fifo = |path: &Path| {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
    };
    fs::remove_file(mount.path("becomes")).expect("removed");
    fifo(&mount.path("becomes")).expect("a fifo");
    fifo(&mount.path("fifo")).expect("a fifo");
    symlink("/etc/passwd", mount.path("link")).expect("a link");
    fs::write(mount.path("text"), "one\ntwo\n").expect("a file");
    let mut child = kvfs(&["diff", "--patch"])
        .arg(&root)
        .arg("before")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let begun = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if begun.elapsed() > Duration::from_secs(60) {
            child.kill().expect("killed");
            panic!("it waits for a fifo");
        }
        std::thread::yield_now();
    }
    let text = String::from_utf8(child.wait_with_output().expect("ended").stdout).expect("text");
    let flat = text
        .lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>();
    let remarks: Vec<&String> = flat.iter().filter(|line| line.starts_with('#')).collect();
    assert_eq!(
        remarks[..3],
        ["# M becomes file → fifo, mode 0644 → 0700", "# A fifo fifo", "# A link -> /etc/passwd"],
        "{text}"
    );
    assert!(text.contains("--- a/text\n+++ b/text\n@@ -1 +1,2 @@\n one\n+two\n"), "{text}");
}
