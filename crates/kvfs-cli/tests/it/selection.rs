//! Tests of taking a part of the changes of a transaction and leaving the rest: by
//! `kvfs txn revert`, and in the dialogues of `kvfs run --ask` and `kvfs merge --ask`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use kvdb_server::{Client, Reply};

use crate::asked::Asked;
use crate::mounted::Mount;

fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = crate::place::output(command);
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).into_owned()
}

/// Standard error of what must end with this code.
#[track_caller]
fn fails(code: i32, command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    assert_eq!(status.code(), Some(code), "{command:?}: {}", String::from_utf8_lossy(&stdout));
    String::from_utf8_lossy(&stderr).into_owned()
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// A transaction in which a script has run: its number.
#[track_caller]
fn changed(root: &Path, options: &[&str], script: &str) -> String {
    let mut command = kvfs(&["run", "--keep"]);
    command.args(options).arg(root);
    let id = succeeds(command.args(["--", "sh", "-ec", &format!("cd $KVFS_MOUNT\n{script}")]));
    id.trim().into()
}

fn tree(mount: &Mount) {
    fs::create_dir_all(mount.path("a/deep")).expect("directories");
    fs::create_dir_all(mount.path("b")).expect("a directory");
    fs::write(mount.path("a/deep/file"), vec![b'x'; 100_000]).expect("a file");
    for name in ["a/one", "b/two", "three", "gone", "moves"] {
        fs::write(mount.path(name), name).expect("a file");
    }
    fs::hard_link(mount.path("three"), mount.path("same")).expect("a link");
    fs::set_permissions(mount.path("b"), fs::Permissions::from_mode(0o755)).expect("a mode");
    succeeds(kvfs(&["kv", "put"]).arg(mount.root()).args(["old", "before"]));
}

const CHANGES: &str = "
    rm -r a; echo TWO > b/two; chmod 700 b; chown 5:6 b; rm gone; mkdir new; echo 1 > new/1; echo 2 > new/2
    mv moves b/moved; echo more >> three; kvfs() { \"$KVFS\" \"$@\"; }
    kvfs kv put . old after; kvfs kv put . fresh 1
";

fn begun(root: &Path) -> String {
    // The script calls the command that is tested.
    let script = format!("KVFS={}\n{CHANGES}", env!("CARGO_BIN_EXE_kvfs"));
    changed(root, &[], &script)
}

#[test]
fn what_is_reverted_is_not_in_the_commit() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    tree(&mount);
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("before"));
    let before = fs::metadata(mount.path("a/deep/file")).expect("there").mtime();
    let id = begun(&root);
    succeeds(kvfs(&["txn", "revert"]).arg(&root).args([&id, "a", "/b/two", "new/", "gone"]));
    let said = succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(&id));
    assert_eq!(
        lines(&said),
        [
            "M b/ mode 0755 → 0700, owner 0:0 → 5:6",
            "R moves → b/moved",
            "M same 5 B → 10 B",
            "M three 5 B → 10 B",
            "A key 0:fresh 1 B",
            "M key 0:old 6 B → 5 B",
            "3 files changed, 1 file renamed, 2 keys changed; 10 B more",
        ]
    );
    succeeds(kvfs(&["txn", "commit"]).arg(&root).arg(&id));
    assert_eq!(lines(&succeeds(kvfs(&["diff"]).arg(&root).arg("before"))).len(), 7);
    assert_eq!(fs::read(mount.path("a/deep/file")).expect("there"), vec![b'x'; 100_000]);
    assert_eq!(fs::metadata(mount.path("a/deep/file")).expect("there").mtime(), before);
    assert_eq!(fs::read(mount.path("b/two")).expect("there"), b"b/two");
    assert!(!mount.path("new").exists() && mount.path("gone").exists());
    let again = mount.again();
    assert_eq!(fs::read(again.path("a/deep/file")).expect("there"), vec![b'x'; 100_000]);
    succeeds(kvfs(&["umount"]).arg(again.root()));
    // Exit code 5 would be damage.
    succeeds(kvfs(&["check"]).arg(again.root().with_file_name("store")));
}

#[test]
fn the_root_stands_for_all_files_and_a_path_may_begin_with_a_dot() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    tree(&mount);
    for path in [".", "/", "./"] {
        let id = begun(&root);
        succeeds(kvfs(&["txn", "revert"]).arg(&root).args([&id, path]));
        let said = succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(&id));
        // Keys are no files.
        assert!(lines(&said).iter().all(|line| line.contains("key")), "{path}: {said}");
        assert!(said.contains("2 keys changed"), "{path}: {said}");
        let said = fails(3, kvfs(&["txn", "revert"]).arg(&root).args([&id, path]));
        assert!(said.contains("nothing was changed at /"), "{path}: {said}");
        succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(&id));
    }
    let id = begun(&root);
    succeeds(kvfs(&["txn", "revert"]).arg(&root).args([&id, "./a", "b/./two", "//new/", "gone"]));
    let said = succeeds(kvfs(&["txn", "diff"]).arg(&root).args([&id, "."]));
    assert!(said.contains("M  three") && !said.contains("b/two"), "{said}");
    succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(&id));
}

#[test]
fn the_names_of_a_file_are_reverted_one_after_the_other() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    fs::create_dir(mount.path("e")).expect("a directory");
    fs::write(mount.path("e/a"), "content").expect("a file");
    fs::hard_link(mount.path("e/a"), mount.path("e/b")).expect("a link");
    let scripts = [
        ("echo more >> e/a", true),
        ("rm e/a e/b", true),
        ("rm e/a", false),
        ("mv e/a e/c", false),
    ];
    for (script, twice) in scripts {
        let id = changed(&root, &[], script);
        succeeds(kvfs(&["txn", "revert"]).arg(&root).args([id.as_str(), "e/a"]));
        // The other name has nothing to revert if it was not changed.
        if twice {
            succeeds(kvfs(&["txn", "revert"]).arg(&root).args([id.as_str(), "e/b"]));
        }
        let said = succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(&id));
        assert!(!said.contains("links") && !said.contains("e/"), "{script}: {said}");
        succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(&id));
    }
}

#[test]
fn everything_can_be_reverted_and_nothing_is_left() {
    for isolation in ["si", "ser"] {
        let Some(mount) = Mount::new() else { return };
        let root = mount.root();
        tree(&mount);
        succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("before"));
        let id = changed(
            &root,
            &["--isolation", isolation],
            "rm -r a; mkdir a; echo 1 > a/new; chmod 700 b; mv b c; echo 2 >> c/two
             rm gone; mkdir gone; echo 1 > gone/in; ln -s x link; rm moves; mkfifo moves",
        );
        succeeds(
            kvfs(&["txn", "revert"]).arg(&root).args([&id, "a", "b", "gone", "link", "moves"]),
        );
        let said = succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(&id));
        assert_eq!(said, "nothing is changed\n", "{isolation}");
        succeeds(kvfs(&["txn", "commit"]).arg(&root).arg(&id));
        let said = succeeds(kvfs(&["diff"]).arg(&root).arg("before"));
        assert_eq!(said, "nothing is changed\n", "{isolation}");
    }
}

#[test]
fn a_file_with_several_names_is_one_again_when_all_of_them_are_reverted() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    tree(&mount);
    fs::create_dir(mount.path("c")).expect("a directory");
    fs::hard_link(mount.path("three"), mount.path("c/third")).expect("a link");
    let script = "echo more >> three; rm same; rm -r c";
    let id = changed(&root, &[], script);
    succeeds(kvfs(&["txn", "revert"]).arg(&root).args([&id, "three", "same", "c"]));
    let said = succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(&id));
    assert_eq!(said, "nothing is changed\n");
    succeeds(kvfs(&["txn", "commit"]).arg(&root).arg(&id));
    let same = || {
        let files = ["three", "same", "c/third"].map(|name| {
            let it = fs::metadata(mount.path(name)).expect("there");
            (it.ino(), it.nlink())
        });
        assert!(files.iter().all(|file| *file == (files[0].0, 3)), "{files:?}");
    };
    same();
    // None of the shown changes is taken.
    let (said, _) = asked(&root, script, &["s", "l", "n"]);
    assert!(said.contains("\nnothing is changed\n"), "{said}");
    same();
}

#[test]
fn what_goes_with_something_else_is_not_reverted_alone() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    tree(&mount);
    let id = begun(&root);
    let said =
        |code, path: &str| fails(code, kvfs(&["txn", "revert"]).arg(&root).args([&id, path]));
    assert!(said(2, "new/1").contains("new/1 goes with new"), "{}", said(2, "new/1"));
    assert!(said(2, "a/deep/file").contains("name that: a"));
    assert!(said(3, "nothing/here").contains("nothing was changed at nothing/here"));
    assert!(said(3, "../etc").contains("nothing was changed"));
    // A refused revert does not revert the others either.
    let before = succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(&id));
    fails(2, kvfs(&["txn", "revert"]).arg(&root).args([&id, "gone", "new/1"]));
    assert_eq!(succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(&id)), before);
    fails(3, kvfs(&["txn", "revert"]).arg(&root).args(["4711", "a"]));
    succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(&id));
}

/// `kvfs run --ask` on a terminal of its own, with these answers: what it shows, and its exit code.
fn asked(root: &Path, script: &str, answers: &[&str]) -> (String, i32) {
    let program = format!(
        "{} run --ask {} -- sh -ec 'cd $KVFS_MOUNT; {script}'",
        env!("CARGO_BIN_EXE_kvfs"),
        root.display()
    );
    let mut asked = Asked::start(&program).expect("script(1)");
    asked.answers(answers);
    asked.ends()
}

#[test]
fn who_is_asked_takes_some_and_leaves_others() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    tree(&mount);
    let script = "rm gone; echo 1 > added; echo more >> three; mkdir new; echo 1 > new/1";
    // added, gone, new, same, three: yes, no, yes, leave the rest.
    let (said, code) = asked(&root, script, &["s", "y", "n", "y", "l", "y"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("Take it?"), "{said}");
    assert!(mount.path("added").exists() && mount.path("gone").exists(), "{said}");
    assert!(mount.path("new/1").exists(), "{said}");
    assert_eq!(fs::read(mount.path("three")).expect("there"), b"three");
    // The answers are those of git: differences of one path, help, and an end that leaves the rest.
    let script = "echo 1 > first; echo 2 > second; echo 3 > third";
    let (said, code) = asked(&root, script, &["s", "?", "d", "y", "q", "y"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("b/first") && said.contains("+1\n") && !said.contains("+2\n"), "{said}");
    assert!(said.contains("stop here"), "{said}");
    assert!(mount.path("first").exists() && !mount.path("second").exists(), "{said}");
    // The answers go back and then decline, so nothing is taken.
    let (said, _) = asked(&root, "rm gone", &["s", "b", "n"]);
    assert!(said.contains("nothing was changed") && mount.path("gone").exists(), "{said}");
}

#[test]
fn what_differs_in_a_time_alone_can_be_reverted_as_it_is_listed() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    tree(&mount);
    let id = changed(&root, &[], "touch -d 2001-02-03 gone b a/deep; touch a/one; echo > b/new");
    let diff = || lines(&succeeds(kvfs(&["txn", "diff", "--times"]).arg(&root).arg(&id)));
    let listed = diff();
    let path = |line: &String| line.split(' ').nth(1).expect("a path").to_string();
    // The last one is a sum.
    let paths: Vec<String> = listed[..listed.len() - 1].iter().map(path).collect();
    for wanted in ["a/deep/", "a/one", "b/", "b/new", "gone"] {
        assert!(paths.iter().any(|path| path == wanted), "{wanted}: {listed:?}");
    }
    for path in ["gone", "a/deep", "b"] {
        succeeds(kvfs(&["txn", "revert"]).arg(&root).args([&id, path]));
        let left = diff();
        let still = |line: &String| line.starts_with(&format!("M {path}"));
        assert!(!left.iter().any(still), "{path}: {left:?}");
    }
    // The root stands for all that is left, of which only times differ.
    assert!(diff().iter().any(|line| line.starts_with("M a/one time")), "{:?}", diff());
    succeeds(kvfs(&["txn", "revert"]).arg(&root).args([&id, "."]));
    assert_eq!(diff(), ["nothing is changed"]);
    succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(&id));
}

#[test]
fn a_directory_keeps_its_time_when_what_is_in_it_is_reverted() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    tree(&mount);
    for paths in [&["gone", "b/two"][..], &["."]] {
        let id = changed(&root, &[], "echo more >> gone; echo more >> b/two");
        succeeds(kvfs(&["txn", "revert"]).arg(&root).arg(&id).args(paths));
        let said = succeeds(kvfs(&["txn", "diff", "--times"]).arg(&root).arg(&id));
        assert_eq!(said, "nothing is changed\n", "{paths:?}");
        succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(&id));
    }
}

#[test]
fn one_path_of_a_change_is_shown_alone() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    tree(&mount);
    let id = changed(
        &root,
        &[],
        "mkdir new; echo 1 > new/1; echo 2 > new/2; rm gone; mv moves new/moved",
    );
    let diff =
        |paths: &[&str]| lines(&succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(&id).args(paths)));
    assert_eq!(diff(&["gone"]), ["D gone 4 B", "1 file removed; 4 B less"]);
    assert_eq!(diff(&["/new/2"]), ["A new/2 2 B", "1 file added; 2 B more"]);
    assert_eq!(diff(&["moves"]), ["R moves → new/moved", "1 file renamed"]);
    // A new directory is one line, and `--all` lists its content.
    let all = diff(&[]);
    assert_eq!(all[0], "D gone 4 B");
    assert!(all.contains(&"A new/ 2 files, 4 B".into()), "{all:?}");
    assert!(all.contains(&"R moves → new/moved".into()), "{all:?}");
    assert!(all[3].starts_with("3 files added, 1 file removed, 1 file renamed"), "{all:?}");
    assert!(diff(&["--all"]).contains(&"A new/1 2 B".into()));
    fails(3, kvfs(&["txn", "diff"]).arg(&root).args([&id, "nothing"]));
    let said = fails(2, kvfs(&["txn", "revert"]).arg(&root).args([&id, "new/1"]));
    assert!(said.contains("new/1 goes with new"), "{said}");
    succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(&id));
}

#[test]
fn what_cannot_be_reverted_as_a_whole_stays_as_it_is() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    tree(&mount);
    let id =
        changed(&root, &[], "echo new > b/two; rm gone; mkdir new; echo 1 > new/1; echo 2 > moves");
    let view = root.join(".kvfs/txn").join(&id);
    let diff = || succeeds(kvfs(&["txn", "diff", "--patch"]).arg(&root).arg(&id));
    let before = diff();
    // A directory with a mount in it is not removed, which is noticed after others were removed.
    let umount = || Command::new("umount").arg(view.join("new")).status();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "none"]).arg(view.join("new")).status();
    assert!(mounted.expect("mount").success());
    let mut revert = kvfs(&["txn", "revert"]);
    revert.arg(&root).args([&id, "gone", "moves", "b/two", "new"]);
    let failed = revert.output().expect("it runs");
    assert!(umount().expect("umount").success());
    assert!(!failed.status.success(), "{}", String::from_utf8_lossy(&failed.stdout));
    assert_eq!(diff(), before);
    succeeds(&mut revert);
    assert_eq!(diff(), "nothing is changed\n");
    succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(&id));
}

#[test]
fn one_command_takes_all_parts_out_or_none() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    tree(&mount);
    let script = format!(
        "KVFS={}; echo new > b/two; rm gone; mkdir new; echo 1 > new/1; $KVFS kv put . old after",
        env!("CARGO_BIN_EXE_kvfs")
    );
    let id = changed(&root, &[], &script);
    let diff = || succeeds(kvfs(&["txn", "diff", "--patch"]).arg(&root).arg(&id));
    let before = diff();
    let mut client =
        Client::connect(&mount.root().with_file_name("store.sock")).expect("connected");
    let mut say = |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        client.call(&words).expect("a reply")
    };
    assert_eq!(say(&["TXN", "JOIN", &id]), Reply::Status("OK".into()));
    let together = ["TXN", "REVERT", "TOGETHER"];
    let parts = ["RESTORE", "b/two", "RESTORE", "gone", "REMOVE", "new", "KEY", "0", "old"];
    // The last path exists in no state, which is noticed after others were removed.
    let refused = say(&[&together[..], &parts, &["RESTORE", "never"]].concat());
    assert!(matches!(refused, Reply::Error(_)), "{refused:?}");
    assert_eq!(diff(), before);
    for wrong in [&["REMOVE"][..], &["KEY", "0"], &["FORGET", "gone"]] {
        let refused = say(&[&together[..], wrong].concat());
        assert_eq!(refused, Reply::Error("ERR syntax error".into()), "{wrong:?}");
    }
    assert_eq!(diff(), before);
    assert_eq!(say(&[&together[..], &parts].concat()), Reply::Status("OK".into()));
    let left = succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(&id));
    for name in ["b/two", "gone", "new", "key"] {
        assert!(!left.contains(name), "{left}");
    }
    assert_eq!(say(&["GET", "old"]), Reply::Bulk("before".into()));
    succeeds(kvfs(&["txn", "commit"]).arg(&root).arg(&id));
    has(&mount, "b/two", "b/two");
    has(&mount, "gone", "gone");
    assert!(!mount.path("new").exists());
}

/// A clone `try` in which three files were changed, one of which was changed in the store as well.
fn a_clone_in_conflict(mount: &Mount) -> std::path::PathBuf {
    for name in ["one", "two", "both"] {
        fs::write(mount.path(name), "before").expect("a file");
    }
    succeeds(kvfs(&["snapshot", "create"]).arg(mount.root()).arg("base"));
    succeeds(kvfs(&["clone", "create"]).arg(mount.root()).args(["base", "try"]));
    let clone = mount.path(".kvfs/clone/try");
    for name in ["one", "two", "both"] {
        fs::write(clone.join(name), format!("{name} of the clone")).expect("a file");
    }
    fs::write(mount.path("both"), "both of the store").expect("a file");
    clone
}

fn merges_asking(clone: &Path) -> Option<Asked> {
    Asked::start(&format!("{} merge --ask {}", env!("CARGO_BIN_EXE_kvfs"), clone.display()))
}

#[track_caller]
fn has(mount: &Mount, name: &str, content: &str) {
    assert_eq!(fs::read_to_string(mount.path(name)).expect("there"), content, "{name}");
}

#[test]
fn what_is_selected_of_a_merge_is_committed_and_the_rest_counts_as_merged() {
    let Some(mount) = Mount::new() else { return };
    let clone = a_clone_in_conflict(&mount);
    let Some(mut asked) = merges_asking(&clone) else { return };
    asked.until("Conflict: both: changed in the store, changed in clone try");
    asked.answers(&["?", "t", "s"]);
    asked.until("both");
    asked.answers(&["y"]);
    asked.until("one");
    asked.answers(&["n"]);
    asked.until("two");
    asked.answers(&["y"]);
    asked.until("two");
    has(&mount, "both", "both of the store");
    asked.answers(&["y"]);
    let (shown, code) = asked.ends();
    assert_eq!(code, 0, "{shown}");
    assert!(shown.ends_with("clone try into the store: done\n"), "{shown}");
    has(&mount, "both", "both of the clone");
    has(&mount, "one", "before");
    has(&mount, "two", "two of the clone");
    succeeds(kvfs(&["merge"]).arg(&clone));
    has(&mount, "one", "before");
}

#[test]
fn who_decides_for_nothing_in_a_merge_changes_nothing() {
    let Some(mount) = Mount::new() else { return };
    let clone = a_clone_in_conflict(&mount);
    let Some(mut asked) = merges_asking(&clone) else { return };
    asked.answers(&["q"]);
    assert_eq!(asked.ends().1, 75, "as of any merge with conflicts");
    for (answers, said) in [(["b", "n"], "nothing was changed"), (["o", "k"], "not committed: ")] {
        let mut asked = merges_asking(&clone).expect("script(1)");
        asked.answers(&answers);
        let (shown, code) = asked.ends();
        assert!(code == 0 && shown.contains(said), "{shown}");
        for name in ["one", "two"] {
            has(&mount, name, "before");
        }
    }
    // The one that was left open is committed by hand.
    let open = succeeds(kvfs(&["txn", "list"]).arg(mount.root()));
    let id = open.lines().find(|line| line.contains("merge try")).expect("it is open");
    let id = id.split_whitespace().next().expect("its number");
    succeeds(kvfs(&["txn", "commit"]).arg(mount.root()).arg(id));
    has(&mount, "one", "one of the clone");
    has(&mount, "both", "both of the store");
}
