//! Tests of `kvfs run --layer`. The program works in an overlay above its transaction, and
//! afterwards the transaction has the same changes as if the program had run in it.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::mounted::Mount;
use crate::place::until;

fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    let directory = Path::new(env!("CARGO_BIN_EXE_kvfs")).parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", directory.display()));
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Exit code, standard output and standard error.
fn ends(command: &mut Command) -> (Option<i32>, String, String) {
    let ended = command.output().expect("it runs");
    (ended.status.code(), text(&ended.stdout), text(&ended.stderr))
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let (code, out, err) = ends(command);
    assert_eq!(code, Some(0), "{command:?}: {out}{err}");
    out
}

/// A mounted store, and a place for scratch directories next to it.
struct Layers {
    mount: Mount,
}

impl Layers {
    /// `None`, with the reason printed, where there are no mounts or no overlays.
    fn new() -> Option<Layers> {
        Layers::of(Mount::new()?)
    }

    fn of(mount: Mount) -> Option<Layers> {
        let layers = Layers { mount };
        fs::create_dir(layers.scratch()).expect("mkdir");
        let (code, _, said) = ends(&mut layers.run(&[], "true"));
        if code != Some(0) && (said.contains("an overlay") || said.contains("scratch directory")) {
            eprintln!("SKIPPED: no overlay here: {said}");
            return None;
        }
        assert_eq!(code, Some(0), "{said}");
        Some(layers)
    }

    fn scratch(&self) -> PathBuf {
        self.mount.root().with_file_name("scratch")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path(name)
    }

    /// `kvfs run --layer OPTIONS MOUNT -- sh -c SCRIPT`, in the root of the mount.
    fn run_on(&self, mount: &Path, options: &[&str], script: &str) -> Command {
        let mut command = kvfs(&["run", "--layer", "--scratch"]);
        command.arg(self.scratch()).args(options).arg(mount).args(["--", "sh", "-c"]);
        command.arg(format!("cd \"$KVFS_MOUNT\" || exit 99; {script}"));
        command
    }

    fn run(&self, options: &[&str], script: &str) -> Command {
        self.run_on(&self.mount.root(), options, script)
    }

    #[track_caller]
    fn does(&self, script: &str) -> String {
        let out = succeeds(&mut self.run(&[], &format!("set -e; {script}")));
        self.has_no_scratch();
        out
    }

    #[track_caller]
    fn has_no_scratch(&self) {
        let left: Vec<_> = fs::read_dir(self.scratch()).expect("a directory").flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    fn write(&self, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = self.path(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("mkdir");
            fs::write(path, content).expect("written");
        }
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    #[track_caller]
    fn inode(&self, name: &str) -> u64 {
        self.path(name).symlink_metadata().expect("it is there").ino()
    }

    /// The lines of the list of a script's changes, which are then discarded.
    #[track_caller]
    fn changes(&self, script: &str) -> Vec<String> {
        let id = succeeds(&mut self.run(&["--keep"], &format!("set -e; {script}")));
        let root = self.mount.root();
        let list = succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(id.trim()));
        succeeds(kvfs(&["txn", "abort"]).arg(&root).arg(id.trim()));
        list.lines().map(String::from).collect()
    }

    /// The open transactions.
    fn open(&self) -> String {
        succeeds(kvfs(&["txn", "list"]).arg(self.mount.root()))
    }
}

/// A run that has reported that it is ready, and continues on command.
struct Running {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Running {
    #[track_caller]
    fn start(mut command: Command) -> Running {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut running = Running { child, said };
        assert_eq!(running.line(), "ready");
        running
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("a line");
        line.trim_end().into()
    }

    /// Lets the run continue. Returns its exit code and its errors.
    fn ends(mut self) -> (Option<i32>, String) {
        self.child.stdin.take().expect("a pipe").write_all(b"go\n").expect("it reads");
        let mut said = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
        (self.child.wait().expect("it ends").code(), said)
    }
}

#[test]
fn a_tree_with_all_kinds_of_files_is_in_the_store_as_it_was_made() {
    let Some(layers) = Layers::new() else { return };
    let tree = tempfile::tempdir().expect("a directory");
    let at = |name: &str| tree.path().join(name);
    fs::create_dir_all(at("a/b")).expect("mkdir");
    for n in 0..300 {
        fs::write(at(&format!("a/file{n}")), format!("{n}")).expect("written");
    }
    fs::write(at("large"), vec![7_u8; 3 << 20]).expect("written");
    fs::write(at("set-id"), "x").expect("written");
    fs::set_permissions(at("set-id"), fs::Permissions::from_mode(0o6755)).expect("chmod");
    fs::hard_link(at("a/file7"), at("linked")).expect("a link");
    std::os::unix::fs::symlink("a/file7", at("symbolic")).expect("a link");
    std::os::unix::fs::chown(at("a/b"), Some(12), Some(34)).expect("chown");
    let sparse = fs::File::create(at("sparse")).expect("a file");
    sparse.set_len(1 << 30).expect("a length");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", (1 << 30) - 3).expect("written");
    let flags = rustix::fs::XattrFlags::empty();
    let has_xattrs = rustix::fs::setxattr(at("large"), "user.a", b"value", flags).is_ok();
    succeeds(Command::new("sh").current_dir(tree.path()).args([
        "-ec",
        "mkfifo fifo; mknod null c 1 3; chmod 1750 a/b
         touch -d '2001-02-03 04:05:06.789' large a/b",
    ]));
    let tar = "tar --xattrs --xattrs-include='*' --numeric-owner -S";
    let archive = tree.path().with_extension("tar");
    let pack = format!("{tar} -C \"$0\" -cf \"$1\" .");
    succeeds(Command::new("sh").args(["-ec", &pack]).arg(tree.path()).arg(&archive));
    layers.does(&format!("mkdir new; {tar} -C new -xpf {}", archive.display()));
    fs::remove_file(&archive).expect("removed");

    let there = |name: &str| layers.path("new").join(name);
    for name in ["a", "a/b", "a/file0", "large", "set-id", "symbolic", "sparse", "fifo", "null"] {
        let [was, is] = [at(name), there(name)].map(|p| p.symlink_metadata().expect("metadata"));
        let told = |m: &fs::Metadata| (m.mode(), m.uid(), m.gid(), m.mtime());
        assert_eq!(told(&is), told(&was), "{name}");
        if !was.is_dir() {
            assert_eq!((is.len(), is.rdev()), (was.len(), was.rdev()), "{name}");
        }
    }
    for n in 0..300 {
        let content = fs::read_to_string(there(&format!("a/file{n}"))).expect("read");
        assert_eq!(content, format!("{n}"));
    }
    assert_eq!(fs::read(there("large")).expect("read"), vec![7; 3 << 20]);
    assert_eq!(fs::read_link(there("symbolic")).expect("a target"), Path::new("a/file7"));
    let linked = there("linked").metadata().expect("metadata");
    assert_eq!((linked.nlink(), linked.ino()), (2, layers.inode("new/a/file7")));
    let sparse = there("sparse").metadata().expect("metadata");
    assert!(sparse.blocks() * 512 < 1 << 20, "{} blocks", sparse.blocks());
    assert!(there("fifo").symlink_metadata().expect("metadata").file_type().is_fifo());
    if has_xattrs {
        let mut value = [0; 16];
        let len = rustix::fs::getxattr(there("large"), "user.a", &mut value[..]).expect("kept");
        assert_eq!(&value[..len], b"value");
    }
}

#[test]
fn what_is_removed_made_again_and_replaced_is_so_in_the_store() {
    let Some(layers) = Layers::new() else { return };
    layers.write(&[("gone", "1"), ("again/kept", "1"), ("again/old/x", "1"), ("tree/a/b/c", "1")]);
    layers.write(&[("file", "1"), ("directory/x", "1"), ("link", "1"), ("other/x", "1")]);
    layers.write(&[("again/both/old", "1"), ("again/both/same", "1")]);
    layers.does(
        "rm gone; rm -r again; mkdir -p again/both; echo new > again/new; rm -r tree
         echo 2 > again/both/same
         rm file; mkdir file; echo in > file/in
         rm -r directory; echo now > directory; ln -sf nowhere link; rm other/x",
    );
    assert!(!layers.path("gone").exists() && !layers.path("tree").exists());
    let names = |name: &str| -> Vec<_> {
        let entries = fs::read_dir(layers.path(name)).expect("a directory").flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names("again"), [OsStr::new("both"), OsStr::new("new")]);
    assert_eq!(names("again/both"), [OsStr::new("same")]);
    assert!(names("other").is_empty());
    assert_eq!(layers.read("again/new").as_deref(), Some("new\n"));
    assert_eq!(layers.read("file/in").as_deref(), Some("in\n"));
    assert_eq!(layers.read("directory").as_deref(), Some("now\n"));
    assert_eq!(fs::read_link(layers.path("link")).expect("a target"), Path::new("nowhere"));
}

#[test]
fn a_file_that_is_changed_keeps_its_inode_and_its_other_names() {
    let Some(layers) = Layers::new() else { return };
    layers.write(&[("one", "1\n"), ("alone", "1\n"), ("saved", "1\n"), ("d/moved", "1\n")]);
    layers.write(&[("left", "left\n"), ("right", "right\n"), ("to link", "1\n")]);
    fs::hard_link(layers.path("one"), layers.path("two")).expect("a link");
    let names = ["one", "alone", "saved", "d/moved", "left", "right", "to link"];
    let [one, alone, saved, moved, left, right, to_link] = names.map(|name| layers.inode(name));
    let out = layers.does(
        "echo 2 >> one; echo 2 >> alone; echo 2 > draft; mv draft saved; mkdir e; mv d/moved e/m
         echo 2 >> e/m; mv left t; mv right left; mv t right; ln 'to link' 'a link'; cat two",
    );
    assert_eq!(out, "1\n2\n", "both are names of one file in the layer, too");
    for name in ["one", "two", "alone", "e/m"] {
        assert_eq!(layers.read(name).as_deref(), Some("1\n2\n"), "{name}");
    }
    assert_eq!([layers.inode("one"), layers.inode("two")], [one; 2]);
    assert_eq!((layers.inode("alone"), layers.inode("e/m")), (alone, moved));
    assert!(!layers.path("d/moved").exists());
    // A save by rename is another file.
    assert_eq!(layers.read("saved").as_deref(), Some("2\n"));
    assert_ne!(layers.inode("saved"), saved);
    assert_eq!((layers.inode("left"), layers.inode("right")), (right, left));
    assert_eq!(layers.read("left").as_deref(), Some("right\n"));
    assert_eq!([layers.inode("to link"), layers.inode("a link")], [to_link; 2]);
    let linked = layers.path("a link").metadata().expect("metadata");
    assert_eq!(linked.nlink(), 2);
    let mut names: Vec<_> = fs::read_dir(layers.mount.root()).expect("a directory").collect();
    names.retain(|name| {
        name.as_ref().is_ok_and(|n| text(n.file_name().as_encoded_bytes()).starts_with(".kvfs-"))
    });
    assert!(names.is_empty(), "{names:?}");
}

#[test]
fn a_file_that_is_moved_over_another_one_is_that_file_also_where_handles_cannot_be_opened() {
    let Some(layers) = Layers::new() else { return };
    layers.write(&[("a", "a\n"), ("b", "b\n"), ("alone", "1\n")]);
    fs::hard_link(layers.path("b"), layers.path("b2")).expect("a link");
    for (name, target) in [("link1", "first"), ("link2", "second")] {
        std::os::unix::fs::symlink(target, layers.path(name)).expect("a link");
    }
    let alone = layers.inode("alone");
    let script = "set -e; mv a b; mv link1 link2; echo 2 >> alone";
    let run = layers.run(&[], script);
    let mut command = Command::new("setpriv");
    command.arg("--bounding-set=-dac_read_search").arg(run.get_program()).args(run.get_args());
    command.stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    let Ok(ended) = command.output() else {
        eprintln!("SKIPPED: setpriv is not installed");
        return;
    };
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    let read = |name: &str| layers.read(name);
    assert_eq!(
        (read("a"), read("b").as_deref(), read("b2").as_deref()),
        (None, Some("a\n"), Some("b\n"))
    );
    assert_eq!(fs::read_link(layers.path("link2")).expect("a target"), Path::new("first"));
    assert!(layers.path("link1").symlink_metadata().is_err());
    assert_eq!((read("alone").as_deref(), layers.inode("alone")), (Some("1\n2\n"), alone));
}

#[test]
fn attributes_that_change_are_changed_in_place() {
    let Some(layers) = Layers::new() else { return };
    layers.write(&[("file", "1"), ("directory/file", "1"), ("times", "1")]);
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(layers.path("file"), "user.old", b"1", flags).expect("set");
    let inode = layers.inode("file");
    let script = "import os
os.setxattr('file', 'user.new', b'2')
os.removexattr('file', 'user.old')
os.setxattr('directory', 'user.of', b'3')
os.chmod('file', 0o4751)
os.chown('directory', 5, 6)
os.chmod('directory', 0o2755)
os.utime('times', ns=(10**18, 10**18 + 5))
os.utime('directory', ns=(10**18, 10**18 + 7))";
    let python = format!("exec python3 -c \"{script}\"");
    if ends(Command::new("python3").arg("--version")).0 != Some(0) {
        eprintln!("SKIPPED: python3 is not installed");
        return;
    }
    layers.does(&python);
    let of = |name: &str| layers.path(name).metadata().expect("metadata");
    let (file, directory) = (of("file"), of("directory"));
    assert_eq!((file.mode() & 0o7777, file.ino()), (0o4751, inode));
    assert_eq!((directory.mode() & 0o7777, directory.uid(), directory.gid()), (0o2755, 5, 6));
    assert_eq!((directory.mtime(), directory.mtime_nsec()), (1_000_000_000, 7));
    assert_eq!((of("times").mtime(), of("times").mtime_nsec()), (1_000_000_000, 5));
    let mut value = [0; 8];
    let mut get = |name: &str, xattr: &str| {
        let len = rustix::fs::getxattr(layers.path(name), xattr, &mut value[..]).ok()?;
        Some(value[..len].to_vec())
    };
    assert_eq!(get("file", "user.new").as_deref(), Some(&b"2"[..]));
    assert_eq!(get("file", "user.old"), None);
    assert_eq!(get("directory", "user.of").as_deref(), Some(&b"3"[..]));
}

#[test]
fn the_review_lists_what_has_changed_and_nothing_else() {
    let Some(layers) = Layers::new() else { return };
    layers.write(&[("read", "1"), ("touched", "1"), ("d/opened", "1"), ("d/mode", "1")]);
    layers.write(&[("changed", "1"), ("removed", "1"), ("d/again", "1"), ("moved", "1")]);
    let nothing = layers.changes(
        "r=$(stat -c %y .); cat read > /dev/null; exec 3<> d/opened; exec 3>&-
         t=$(stat -c %y touched); touch touched; touch -d \"$t\" touched
         m=$(stat -c %a d/mode); chmod 600 d/mode; chmod $m d/mode; ln read link; rm link
         touch -d \"$r\" .",
    );
    assert_eq!(nothing, ["nothing is changed"]);
    let changes = layers.changes("echo 2 > changed; rm removed; echo n > new; mv moved d/moved");
    let begin = |words: &str| changes.iter().any(|line| line.starts_with(words));
    assert!(begin("M  changed") && begin("D  removed") && begin("A  new"), "{changes:?}");
    assert!(begin("R  moved → d/moved"), "{changes:?}");
    let listed = changes.iter().filter(|line| line.as_bytes().get(1..3) == Some(b"  ")).count();
    assert_eq!(listed, 4, "{changes:?}");
}

#[test]
fn only_the_pages_that_differ_are_written() {
    let Some(layers) = Layers::new() else { return };
    fs::write(layers.path("large"), vec![1_u8; 8 << 20]).expect("written");
    let script = "printf 2222 | dd of=large bs=1 seek=5000000 conv=notrunc 2> /dev/null";
    let id = succeeds(&mut layers.run(&["--keep"], script));
    let root = layers.mount.root();
    let status = succeeds(kvfs(&["--json", "txn", "status"]).arg(&root).arg(id.trim()));
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let taken = ["memory", "run_bytes"].map(|of| status[of].as_u64().expect("a number"));
    assert!(taken.iter().sum::<u64>() < 1 << 20, "{status}");
    succeeds(kvfs(&["txn", "commit"]).arg(&root).arg(id.trim()));
    let mut wanted = vec![1; 8 << 20];
    wanted[5_000_000..5_000_004].copy_from_slice(b"2222");
    assert!(fs::read(layers.path("large")).expect("read") == wanted);
}

#[test]
fn a_program_that_fails_leaves_nothing_and_an_undo_takes_back_one_that_did_not() {
    let Some(layers) = Layers::new() else { return };
    layers.write(&[("file", "old"), ("d/file", "old")]);
    let script = "echo new > file; rm -r d; echo new > other";
    let (code, _, said) = ends(&mut layers.run(&[], &format!("{script}; exit 3")));
    assert_eq!(
        (code, said.as_str()),
        (Some(3), "kvfs: aborted (exit code 3): nothing was changed\n")
    );
    succeeds(&mut layers.run(&["--abort"], script));
    let is_as_before = || {
        assert_eq!(layers.read("file").as_deref(), Some("old"));
        assert_eq!(layers.read("d/file").as_deref(), Some("old"));
        assert!(!layers.path("other").exists());
    };
    is_as_before();
    let (code, ..) = ends(&mut layers.run(&["--commit"], &format!("{script}; exit 4")));
    assert_eq!((code, layers.read("other").as_deref()), (Some(4), Some("new\n")));
    assert!(!layers.path("d").exists());
    succeeds(kvfs(&["undo"]).arg(layers.mount.root()));
    is_as_before();
    layers.has_no_scratch();
    assert_eq!(layers.open(), "");
}

#[test]
fn a_fold_beyond_the_limit_fails_as_a_whole_however_the_mount_writes() {
    for write_back in [false, true] {
        let Some(layers) = Mount::in_mode(write_back).and_then(Layers::of) else { return };
        fs::write(layers.path("large"), vec![1_u8; 4 << 20]).expect("written");
        // The size stays, so that nothing but the pages needs space.
        let script = "dd if=/dev/urandom of=large bs=1M count=4 conv=notrunc 2> /dev/null";
        let (code, _, said) = ends(&mut layers.run(&["--limit", "1M"], script));
        assert_eq!(code, Some(125), "write back: {write_back}: {said}");
        assert!(said.contains("cannot be put into the transaction"), "{said}");
        assert!(fs::read(layers.path("large")).expect("read") == vec![1; 4 << 20]);
        layers.has_no_scratch();
        assert_eq!(layers.open(), "");
    }
}

#[test]
fn a_conflict_is_75_and_keeps_what_the_program_did() {
    let Some(layers) = Layers::new() else { return };
    layers.write(&[("both", "0")]);
    let running =
        Running::start(layers.run(&[], "echo in > both; echo in > new; echo ready; read go"));
    fs::write(layers.path("both"), "outside").expect("written");
    let (code, said) = running.ends();
    assert_eq!(code, Some(75), "{said}");
    assert!(said.contains("/both") && said.contains("is kept as transaction"), "{said}");
    assert_eq!(layers.read("both").as_deref(), Some("outside"));
    let list = succeeds(kvfs(&["--json", "txn", "list"]).arg(layers.mount.root()));
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let view = layers.path(&format!(".kvfs/txn/{}", list[0]["id"]));
    assert_eq!(fs::read_to_string(view.join("both")).expect("kept"), "in\n");
    assert_eq!(fs::read_to_string(view.join("new")).expect("kept"), "in\n");
}

#[test]
fn the_program_neither_sees_the_views_nor_reaches_the_store_by_kvfs() {
    let Some(layers) = Layers::new() else { return };
    let store = layers.mount.root().with_file_name("store");
    let script = format!(
        "test -z \"$KVFS_TXN$KVFS_SOCKET\" || exit 9; test ! -e .kvfs || exit 8
         for words in 'run . -- true' 'kv put . k v' 'txn list .' 'ls .' 'rm new' 'kv get {0} k'; do
             echo x > new; kvfs $words && exit 7
         done; echo done",
        store.display()
    );
    let (code, out, said) = ends(&mut layers.run(&[], &script));
    assert_eq!((code, out.as_str()), (Some(0), "done\n"), "{said}");
    assert_eq!(said.matches("lies in the layer of kvfs run --layer").count(), 6, "{said}");
    assert_eq!(layers.read("new").as_deref(), Some("x\n"));
    // No view can contain files at the path of the views.
    let (code, _, said) = ends(&mut layers.run(&[], "mkdir .kvfs; echo x > other"));
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains(".kvfs") && !layers.path("other").exists(), "{said}");
}

#[test]
fn options_that_do_not_go_together_are_refused_before_the_program_runs() {
    let Some(layers) = Layers::new() else { return };
    for option in [&["--isolation", "ser"][..], &["--durable"], &["--chroot"], &["--idle", "9"]] {
        let (code, out, said) = ends(&mut layers.run(option, "echo ran"));
        assert_eq!((code, out.as_str()), (Some(125), ""), "{said}");
        assert!(said.contains("does not go together with --layer"), "{said}");
    }
    let mut alone = kvfs(&["run", "--scratch", "/tmp"]);
    alone.arg(layers.mount.root()).args(["--", "true"]);
    assert_eq!(ends(&mut alone).0, Some(2));
    let mut over = kvfs(&["run", "--layer", "--over"]);
    over.arg(layers.scratch()).args(["--", "true"]);
    assert_eq!(ends(&mut over).0, Some(2), "a folder has a layer of its own");
    // The layer cannot lie in the store itself.
    let mut inside = kvfs(&["run", "--layer", "--scratch"]);
    inside.arg(layers.mount.root()).arg(layers.mount.root()).args(["--", "echo", "ran"]);
    let (code, out, said) = ends(&mut inside);
    assert_eq!((code, out.as_str()), (Some(125), ""), "{said}");
    assert!(said.contains("lies in a FUSE mount"), "{said}");
    assert_eq!(layers.open(), "");
}

#[test]
fn what_the_program_leaves_running_is_ended_before_its_files_are_taken() {
    let Some(layers) = Layers::new() else { return };
    let script = "echo x > file; (while true; do echo y >> log; done) > /dev/null 2>&1 &";
    let (code, _, said) = ends(&mut layers.run(&[], script));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("ended what the program had left running"), "{said}");
    assert_eq!(layers.read("file").as_deref(), Some("x\n"));
    layers.has_no_scratch();
}

#[test]
fn threads_that_outlive_the_first_one_of_their_program_are_ended_too() {
    let Some(layers) = Layers::new() else { return };
    if ends(Command::new("python3").arg("--version")).0 != Some(0) {
        eprintln!("SKIPPED: python3 is not installed");
        return;
    }
    // The kernel calls such a process a zombie, although it goes on.
    let program = "import ctypes, os, threading, time
def write():
    while True:
        open('log', 'a').write('y')
        time.sleep(0.001)
threading.Thread(target=write).start()
number = {'x86_64': 60, 'aarch64': 93}.get(os.uname().machine)
number and ctypes.CDLL(None).syscall(number, 0)";
    let wait = "while test ! -s log || ! grep -q ') Z' /proc/$!/stat; do
                    n=$((n + 1)); test $n -lt 500 || exit 9; sleep 0.01; done";
    let script = format!("python3 -c \"{program}\" > /dev/null 2>&1 & {wait}");
    let (code, _, said) = ends(&mut layers.run(&[], &script));
    if code == Some(9) {
        eprintln!("SKIPPED: no thread is the last one of its program here");
        return;
    }
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("ended what the program had left running"), "{said}");
}

#[test]
fn what_ran_before_the_program_is_not_ended() {
    let Some(layers) = Layers::new() else { return };
    // A shell makes such a child, too: kvfs run … > >(tee log)
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 600 > /dev/null 2>&1 & echo $!; exec \"$@\"", "sh"]);
    let run = layers.run(&[], "true");
    command.arg(run.get_program()).args(run.get_args());
    command.stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    let (code, out, said) = ends(&mut command);
    let child = rustix::process::Pid::from_raw(out.trim().parse().expect("a process"));
    let ended = rustix::process::kill_process(child.expect("one"), rustix::process::Signal::KILL);
    assert!(ended.is_ok(), "it still runs: {said}");
    assert_eq!((code, said.as_str()), (Some(0), ""));
}

#[test]
fn a_run_that_is_killed_leaves_nothing_in_the_store() {
    let Some(layers) = Layers::new() else { return };
    layers.write(&[("file", "old")]);
    let mut running =
        Running::start(layers.run(&[], "echo new > file; echo ready; echo $$; read go"));
    let program = running.line().parse().expect("a process");
    running.child.kill().expect("killed");
    running.child.wait().expect("it ends");
    until("the transaction has ended", || layers.open().is_empty());
    assert_eq!(layers.read("file").as_deref(), Some("old"));
    let program = rustix::process::Pid::from_raw(program).expect("a process");
    let _ = rustix::process::kill_process(program, rustix::process::Signal::KILL);
}

#[test]
fn a_fold_that_is_killed_leaves_all_of_it_or_nothing() {
    const FILES: usize = 3000;
    let Some(layers) = Layers::new() else { return };
    let root = layers.mount.root();
    let script = format!("mkdir new; for n in $(seq {FILES}); do echo $n > new/$n; done");
    let mut command = layers.run(&[], &script);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    let mut id = String::new();
    until("the transaction has begun", || {
        let list = succeeds(kvfs(&["--json", "txn", "list"]).arg(&root));
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        id = list[0]["id"].to_string();
        id != "null" || child.try_wait().expect("it is waited for").is_some()
    });
    let folded = layers.path(&format!(".kvfs/txn/{id}/new"));
    until("the fold has begun", || {
        folded.exists() || child.try_wait().expect("it is waited for").is_some()
    });
    let _ = child.kill();
    child.wait().expect("it ends");
    until("the transaction has ended", || layers.open().is_empty());
    let there = fs::read_dir(layers.path("new")).map_or(0, |entries| entries.count());
    assert!(there == 0 || there == FILES, "{there} files");
}

#[test]
fn a_full_scratch_directory_is_a_full_disk_for_the_program_and_is_named() {
    let Some(layers) = Layers::new() else { return };
    let small = layers.scratch().join("small");
    fs::create_dir(&small).expect("mkdir");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=2m", "none"]).arg(&small);
    if ends(&mut mount).0 != Some(0) {
        eprintln!("SKIPPED: no tmpfs can be mounted");
        return;
    }
    let mut command = kvfs(&["run", "--layer", "--scratch"]);
    command.arg(&small).arg(layers.mount.root()).args(["--", "sh", "-c"]);
    command.arg("cd $KVFS_MOUNT && dd if=/dev/zero of=large bs=64k count=100");
    let (code, _, said) = ends(&mut command);
    succeeds(Command::new("umount").arg(&small));
    if said.contains("scratch directory needs a file system") {
        eprintln!("SKIPPED: tmpfs takes no extended attributes of users here");
        return;
    }
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("No space left on device") && said.contains("is full"), "{said}");
    assert!(!layers.path("large").exists());
}

#[test]
fn a_clone_and_a_transaction_around_it_get_the_files() {
    let Some(layers) = Layers::new() else { return };
    layers.write(&[("d/file", "old\n")]);
    let root = layers.mount.root();
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("s"));
    succeeds(kvfs(&["clone", "create"]).arg(&root).args(["s", "c"]));
    let clone = root.join(".kvfs/clone/c");
    succeeds(&mut layers.run_on(&clone, &[], "set -e; echo new >> d/file; echo x > other"));
    let read = |path: PathBuf| fs::read_to_string(path).expect("read");
    assert_eq!(read(clone.join("d/file")), "old\nnew\n");
    assert_eq!(read(clone.join("other")), "x\n");
    assert_eq!(layers.read("d/file").as_deref(), Some("old\n"));
    // Within an ordinary run, and committed into it.
    let mut outer = kvfs(&["run"]);
    outer.arg(&root).args(["--", "sh", "-ec"]).env("SCRATCH", layers.scratch());
    outer.arg(
        "cd $KVFS_MOUNT; echo outer > outer
         kvfs run --layer --scratch $SCRATCH . -- sh -ec 'cat outer; echo inner > d/inner'
         cat d/inner",
    );
    assert_eq!(succeeds(&mut outer), "outer\ninner\n");
    assert_eq!(layers.read("d/inner").as_deref(), Some("inner\n"));
}
