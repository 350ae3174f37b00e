//! Tests of `kvfs fsmonitor`: git is notified of each changed file, and of everything where the
//! changed files are not known.

use crate::place;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::place::{Place, fails, kvfs, succeeds};
use crate::work_tree::{WorkTree, has_git, name};

/// A mounted store, where there is git.
fn mounted() -> Option<Place> {
    let place = Place::new().filter(|_| has_git())?;
    place.mounted();
    Some(place)
}

/// A shell command in a transaction of the store.
fn run(place: &Place, options: &[&str], script: &str) -> Command {
    let mut run = kvfs(&["run"]);
    run.args(options).arg(place.mnt()).args(["--", "sh", "-ec"]);
    run.arg(format!("cd \"$KVFS_MOUNT\"; {script}")).env("KVFS", env!("CARGO_BIN_EXE_kvfs"));
    run
}

#[test]
fn one_change_in_two_thousand_files_is_one_path() {
    let Some(p) = mounted() else { return };
    let tree = WorkTree::new(&p, "project");
    for directory in 0..20 {
        fs::create_dir(tree.path(format!("d{directory}"))).expect("a directory");
        for file in 0..100 {
            tree.write(&format!("d{directory}/f{file}"), "content");
        }
    }
    tree.add_all();
    assert_eq!(tree.status(), "");
    // git treats files that the hook does not name as unchanged.
    let valid = tree.git(&["ls-files", "-f"]).lines().filter(|l| l.starts_with("h ")).count();
    assert_eq!(valid, 2000);
    let token = tree.token();
    assert_eq!(tree.since(&token), [""; 0], "nothing has changed");
    tree.write("d7/f7", "CONTENT");
    assert_eq!(tree.since(&token), ["d7/f7"]);
    tree.agrees("a file was overwritten");
    let token = tree.token();
    tree.write("d7/new", "content");
    assert_eq!(tree.since(&token), ["d7/new"]);
    fs::remove_file(tree.path("d7/new")).expect("removed");
    fs::set_permissions(tree.path("d8/f8"), Permissions::from_mode(0o755)).expect("a mode");
    // Outside of the work tree.
    fs::write(p.mnt().join("beside"), "content").expect("a file");
    fs::create_dir(p.mnt().join("project-2")).expect("a directory");
    assert_eq!(tree.since(&token), ["d7/new", "d8/f8"]);
    tree.agrees("a file was removed, and a mode changed");
}

#[test]
fn all_names_of_a_file_are_told_when_it_is_written_by_one() {
    let Some(p) = mounted() else { return };
    let tree = WorkTree::new(&p, "project");
    fs::create_dir_all(tree.path("a/b")).expect("directories");
    tree.write("a/b/one", "content");
    fs::hard_link(tree.path("a/b/one"), tree.path("two")).expect("a link");
    fs::hard_link(tree.path("a/b/one"), p.mnt().join("outside")).expect("a link");
    tree.add_all();
    let token = tree.token();
    fs::write(p.mnt().join("outside"), "changed").expect("written");
    assert_eq!(tree.since(&token), ["a/b/one", "two"]);
    tree.agrees("written by a name outside");
    assert_eq!(tree.status(), " M a/b/one\n M two\n");
}

#[test]
fn a_directory_that_is_moved_takes_along_what_git_knows_of_it() {
    let Some(p) = mounted() else { return };
    let tree = WorkTree::new(&p, "project");
    tree.git(&["config", "core.untrackedCache", "true"]);
    fs::create_dir_all(tree.path("a/deep/er")).expect("directories");
    fs::create_dir_all(tree.path("b/deep/er")).expect("directories");
    for file in ["a/deep/er/tracked", "b/deep/er/tracked", "a/t", "b/t"] {
        tree.write(file, file);
    }
    tree.add_all();
    tree.write("a/deep/er/untracked-a", "content");
    tree.write("b/deep/er/untracked-b", "content");
    tree.agrees("untracked files");
    tree.agrees("untracked files, from the cache");
    let token = tree.token();
    fs::rename(tree.path("a"), tree.path("c")).expect("moved");
    fs::rename(tree.path("b"), tree.path("a")).expect("moved");
    fs::rename(tree.path("c"), tree.path("b")).expect("moved");
    let told = tree.since(&token);
    for want in ["a", "a/0", "a/deep/0", "a/deep/er/0", "b", "b/deep/er/0", "c"] {
        assert!(told.contains(&want.to_owned()), "{want}: {told:?}");
    }
    tree.agrees("two directories have changed places");
    tree.agrees("and once more");
    // At once, as one commit.
    succeeds(&mut run(&p, &[], "cd project; mv a c; mv b a; mv c b; rm -r b/deep; mkdir b/deep"));
    tree.agrees("and back, in a transaction");
    fs::rename(tree.path("a/deep"), tree.path("b/deep/a")).expect("moved");
    tree.agrees("one into the other");
    fs::remove_dir_all(tree.path("a")).expect("removed");
    tree.write("a", "a file now");
    tree.agrees("a file where a directory was");
}

#[test]
fn what_is_not_committed_yet_is_told() {
    for options in ["nowriteback", "writeback"] {
        let Some(p) = Place::new().filter(|_| has_git()) else { return };
        succeeds(p.mount(&["-o", options]).stdin(Stdio::null()));
        let tree = WorkTree::new(&p, "project");
        tree.write("file", &"x".repeat(10_000));
        tree.write("mapped", &"x".repeat(10_000));
        tree.add_all();
        let token = tree.token();
        let mut open = fs::OpenOptions::new().write(true).open(tree.path("file")).expect("open");
        open.write_all(b"changed").expect("written");
        // The file is still open, and nothing was flushed.
        assert_eq!(tree.since(&token), ["file"], "{options}");
        drop(open);
        let token = tree.token();
        let script = "import mmap, sys\n\
                      file = open(sys.argv[1], 'r+b')\n\
                      pages = mmap.mmap(file.fileno(), 0)\n\
                      pages[5000:5003] = b'new'\n\
                      print('written', flush=True)\n\
                      sys.stdin.read()\n";
        let mut python = Command::new("python3");
        python.arg("-c").arg(script).arg(tree.path("mapped"));
        let Ok(mut child) = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            return eprintln!("SKIPPED: there is no python3 here");
        };
        let mut said = [0; 8];
        let mut from = child.stdout.take().expect("a pipe");
        std::io::Read::read_exact(&mut from, &mut said).expect("it says so");
        assert_eq!(tree.since(&token), ["mapped"], "{options}: through a mapping");
        tree.agrees("a mapping was written to");
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());
    }
}

#[test]
fn commits_of_every_kind_are_told() {
    let Some(p) = mounted() else { return };
    let tree = WorkTree::new(&p, "project");
    for file in ["one", "two", "three"] {
        tree.write(file, "content");
    }
    tree.add_all();
    succeeds(kvfs(&["snapshot", "create"]).arg(p.mnt()).arg("base"));
    succeeds(kvfs(&["clone", "create"]).arg(p.mnt()).args(["base", "trial"]));
    let mut token = tree.token();
    let mut told = |want: &[&str], what: &str| {
        let answer = tree.hook(&token);
        assert_eq!(answer.listed(), want, "{what}");
        token = answer.token;
        tree.agrees(what);
    };
    succeeds(&mut run(&p, &[], "echo run > project/one; rm project/two"));
    told(&["one", "two"], "a transaction");
    succeeds(&mut run(&p, &["--abort"], "echo never > project/three"));
    told(&[], "a transaction that was aborted");
    succeeds(kvfs(&["undo"]).arg(p.mnt()));
    told(&["one", "two"], "an undo");
    fs::write(p.mnt().join(".kvfs/clone/trial/project/three"), "in the clone").expect("written");
    told(&[], "a clone");
    succeeds(kvfs(&["merge"]).arg(p.mnt().join(".kvfs/clone/trial")));
    told(&["three"], "a merge");
    succeeds(kvfs(&["restore"]).arg(p.mnt()).args(["base", "project/three"]));
    told(&["three"], "a restore");
    let from = tempfile::tempdir().expect("a directory");
    fs::create_dir(from.path().join("made")).expect("a directory");
    fs::write(from.path().join("made/in"), "content").expect("a file");
    succeeds(kvfs(&["import"]).arg(p.mnt()).arg(from.path()).args(["--to", "/project"]));
    let answer = tree.hook(&token);
    assert!(answer.paths.is_none_or(|paths| paths.contains(&b"made/0"[..])), "an import");
    tree.agrees("an import");
    let token = tree.token();
    succeeds(kvfs(&["rm", "-r"]).arg(tree.path("made")));
    assert!(tree.since(&token).contains(&"made".to_owned()));
    tree.agrees("a tree removed");
}

#[test]
fn what_is_not_known_is_everything() {
    let Some(p) = mounted() else { return };
    let tree = WorkTree::new(&p, "project");
    tree.write("file", "content");
    tree.add_all();
    assert!(tree.why("").contains("no earlier answer"));
    for foreign in ["1700000000000000000", "builtin:0.1:2", "kvfs1:none", "kvfs1:1-0:x", "\u{fc}"] {
        assert_eq!(tree.hook(foreign).paths, None, "{foreign}");
    }
    let token = tree.token();
    assert_eq!(tree.since(&token), [""; 0]);
    // A commit from before the list began.
    let (number, rest) = token.split_once('-').expect("a position");
    assert_eq!(tree.hook(&format!("kvfs1:0-{rest}")).paths, None);
    let later = number.replace("kvfs1:", "").parse::<u64>().expect("a number") + 1000;
    assert_eq!(tree.hook(&format!("kvfs1:{later}-{rest}")).paths, None, "one that never was");
    // Another store.
    let Some(other) = mounted() else { return };
    let elsewhere = WorkTree::new(&other, "project");
    assert_eq!(elsewhere.hook(&token).paths, None);
    // The work tree was moved, or copied with its index.
    fs::rename(&tree.root, p.mnt().join("moved")).expect("moved");
    let moved = WorkTree::at(&p, &p.mnt().join("moved"));
    assert!(moved.why(&token).contains("another work tree"));
    fs::rename(&moved.root, &tree.root).expect("moved back");
    assert!(tree.why(&token).contains("made or moved"));
    // After a rollback, which goes back to what was.
    succeeds(kvfs(&["snapshot", "create"]).arg(p.mnt()).arg("s"));
    tree.write("file", "CONTENT");
    tree.agrees("a change");
    let token = tree.token();
    succeeds(kvfs(&["snapshot", "rollback"]).arg(p.mnt()).arg("s"));
    assert_eq!(tree.hook(&token).paths, None);
    tree.agrees("a rollback");
    // Another mount of the same store.
    let token = tree.token();
    succeeds(&mut p.umount());
    p.mounted();
    assert!(tree.why(&token).contains("does not reach back"));
    tree.agrees("mounted again");
}

#[test]
fn views_have_no_list_and_leave_no_token() {
    let Some(p) = mounted() else { return };
    let tree = WorkTree::new(&p, "project");
    tree.write("file", "content");
    tree.add_all();
    let token = tree.token();
    succeeds(kvfs(&["snapshot", "create"]).arg(p.mnt()).arg("s"));
    succeeds(kvfs(&["clone", "create"]).arg(p.mnt()).args(["s", "c"]));
    for view in [".kvfs/snapshot/s", ".kvfs/clone/c"] {
        let there = WorkTree::at(&p, &p.mnt().join(view).join("project"));
        assert!(there.why(&token).contains("has no list"), "{view}");
        let answer = there.hook(&token);
        assert_eq!((answer.token.as_str(), answer.paths), ("kvfs1:none", None), "{view}");
        let refused = fails(2, kvfs(&["fsmonitor", "install"]).arg(&there.root));
        assert!(refused.contains("no list of changes"), "{refused}");
    }
    let said = succeeds(&mut run(&p, &[], &format!("cd project; \"$KVFS\" fsmonitor 2 {token}")));
    assert_eq!(said, "kvfs1:none\0/\0");
    // An index that was written in a transaction comes into the store with it.
    let id = succeeds(kvfs(&["txn", "begin"]).arg(p.mnt())).trim().to_owned();
    tree.write("beside", "made meanwhile");
    let there = WorkTree::at(&p, &p.mnt().join(format!(".kvfs/txn/{id}/project")));
    there.write("in", "content");
    assert_eq!(there.hook(&token).paths, None);
    there.git(&["add", "in"]);
    assert_eq!(there.status(), there.looked());
    succeeds(kvfs(&["txn", "commit"]).arg(p.mnt()).arg(&id));
    tree.agrees("an index of a transaction");
    assert!(tree.status().contains("A  in\n?? beside\n"), "{}", tree.status());
}

#[test]
fn what_is_mounted_within_the_work_tree_is_not_known() {
    let Some(p) = mounted() else { return };
    let tree = WorkTree::new(&p, "project");
    fs::create_dir(tree.path("sub")).expect("a directory");
    let token = tree.token();
    let script = "mount -t tmpfs none sub && exec \"$KVFS\" fsmonitor 2 \"$1\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", script, "sh", &token]).current_dir(&tree.root);
    let said = succeeds(unshare.env("KVFS", env!("CARGO_BIN_EXE_kvfs")));
    assert_eq!(said, "kvfs1:none\0/\0");
    assert_eq!(tree.since(&token), [""; 0], "not so elsewhere");
}

#[test]
fn names_of_any_bytes_are_told() {
    let Some(p) = mounted() else { return };
    // The root of the mount is the work tree.
    let tree = WorkTree::new(&p, "");
    let names: [&[u8]; 4] = [b"new\nline", b"\xff\xfe", b"quo\"te'", b" "];
    tree.add_all();
    let token = tree.token();
    for bytes in names {
        fs::write(tree.path(name(bytes)), "content").expect("a file");
    }
    symlink("nowhere", tree.path("link")).expect("a link");
    let told = tree.hook(&token).paths.expect("a list");
    assert!(names.iter().all(|name| told.contains(*name)), "{told:?}");
    assert!(told.contains(&b"link"[..]) && told.len() == 5, "{told:?}");
    tree.agrees("names of any bytes");
}

#[test]
fn names_that_git_does_not_take_are_seen_all_the_same() {
    let Some(p) = mounted() else { return };
    let tree = WorkTree::new(&p, "project");
    tree.git(&["config", "core.untrackedCache", "true"]);
    for directory in ["d", "sub"] {
        fs::create_dir(tree.path(directory)).expect("a directory");
        tree.write(&format!("{directory}/tracked"), "content");
    }
    tree.add_all();
    tree.write("sub/untracked", "content");
    for _ in 0..2 {
        tree.agrees("before");
    }
    for name in ["git~1", ".git ", "x\\.git", ".GIT...", "d/git~1"] {
        tree.write(name, "content");
        tree.agrees(name);
        assert!(tree.status().contains("git~1"), "{}", tree.status());
    }
    fs::create_dir(tree.path("d/git~2")).expect("a directory");
    tree.agrees("a directory");
    tree.write("d/git~2/in", "content");
    tree.agrees("in the directory");
    // A repository within hides what is not tracked.
    tree.git(&["init", "--quiet", "sub"]);
    tree.agrees("a repository within");
    fs::rename(tree.path("sub/.git"), tree.path("d/moved")).expect("moved");
    tree.agrees("and none any more");
}

#[test]
fn submodules_are_looked_at() {
    let Some(p) = mounted() else { return };
    let library = WorkTree::new(&p, "library");
    library.write("code", "content");
    library.add_all();
    let tree = WorkTree::new(&p, "project");
    let add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../library"];
    let from = tree.command(&add).arg("lib").output().expect("git runs");
    if !from.status.success() {
        // Not every version of git accepts a path relative to the library.
        let address = library.root.to_str().expect("text");
        tree.git(&[&add[..5], &[address, "lib"]].concat());
    }
    tree.add_all();
    tree.agrees("a submodule");
    let sub = WorkTree::at(&p, &tree.path("lib"));
    sub.install();
    tree.write("lib/code", "CONTENT");
    tree.agrees("a file of a submodule");
    assert_eq!(tree.status(), " M lib\n");
    sub.agrees("the submodule itself");
    sub.add_all();
    tree.agrees("a commit in a submodule");
}

#[test]
fn what_is_read_only_does_not_change() {
    let Some(p) = mounted() else { return };
    let tree = WorkTree::new(&p, "project");
    tree.write("file", "content");
    tree.add_all();
    succeeds(kvfs(&["snapshot", "create"]).arg(p.mnt()).arg("s"));
    let shared = tempfile::tempdir().expect("a directory");
    let address = format!("dir:{}/work", shared.path().display());
    succeeds(kvfs(&["push"]).arg(p.mnt()).arg(&address));
    succeeds(&mut p.umount());
    let store = p.store();
    let (of_address, of_snapshot) = (Path::new(&address), format!("{address}@s"));
    for (source, options) in [
        (store.as_path(), "ro"),
        (store.as_path(), "snapshot=s"),
        (of_address, "ro"),
        (Path::new(&of_snapshot), "ro"),
    ] {
        let mut mount = kvfs(&["mount", "-o", options]);
        if source != store {
            mount.arg("--cache").arg(shared.path().join("cache"));
        }
        succeeds(mount.arg(source).arg(p.mnt()).stdin(Stdio::null()));
        let first = tree.hook("");
        assert_eq!(first.paths, None);
        let what = format!("{} {options}: {}", source.display(), first.token);
        assert_ne!(first.token, "kvfs1:none", "{what}");
        assert_eq!(tree.since(&first.token), [""; 0], "{what}");
        tree.agrees("read-only");
        succeeds(&mut p.umount());
    }
}

#[test]
fn the_settings_are_made_and_taken_back() {
    let Some(p) = mounted() else { return };
    let tree = WorkTree::new(&p, "project");
    let get = |key: &str| {
        let ended = tree.command(&["config", "--local", "--get", key]).output().expect("git runs");
        ended.status.success().then(|| place::text(&ended.stdout).trim().to_owned())
    };
    let hook = get("core.fsmonitor").expect("it is set");
    assert!(hook.starts_with("'/") && hook.ends_with("kvfs' fsmonitor"), "{hook}");
    assert_eq!(get("core.fsmonitorHookVersion").as_deref(), Some("2"));
    succeeds(kvfs(&["fsmonitor", "uninstall"]).arg(&tree.root));
    assert_eq!((get("core.fsmonitor"), get("core.fsmonitorHookVersion")), (None, None));
    let said = succeeds(kvfs(&["fsmonitor", "uninstall"]).current_dir(&tree.root));
    assert!(said.contains("has no file system monitor"), "{said}");
    tree.git(&["config", "core.fsmonitor", "another"]);
    for action in ["install", "uninstall"] {
        let said = fails(1, kvfs(&["fsmonitor", action]).arg(&tree.root));
        assert!(said.contains("another file system monitor: another"), "{said}");
    }
    // This directory is neither a store nor a repository.
    let outside = tempfile::tempdir().expect("a directory");
    fails(3, kvfs(&["fsmonitor", "install"]).arg(outside.path()));
    let elsewhere = WorkTree::at(&p, outside.path());
    elsewhere.git(&["init", "--quiet"]);
    let said = fails(2, kvfs(&["fsmonitor", "install"]).arg(outside.path()));
    assert!(said.contains("does not lie in a mounted store"), "{said}");
    assert_eq!(elsewhere.hook("").paths, None);
}
