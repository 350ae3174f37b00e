//! Tests of `kvfs run --over DIR`, which runs a program over a folder outside of any store. Its
//! changes are applied as a whole or not at all, and can be undone exactly.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, XattrFlags};

use crate::asked::Asked;
use crate::place::{Place, fails, kvfs, succeeds, text};

/// The exit code after a conflict.
const TRY_AGAIN: i32 = 75;
const NOT_STARTED: i32 = 125;
const NOT_FOUND: i32 = 3;

/// A folder in a directory of its own.
struct Lab {
    directory: tempfile::TempDir,
}

/// All visible properties of a file except its numbers and its ctime.
type Seen = (u32, (u32, u32), (i64, i64), Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).expect("names");
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut all: Vec<_> = names
        .map(|name| {
            let mut value = vec![0; 4096];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).expect("a value");
            (name.to_vec(), value[..length].to_vec())
        })
        .collect();
    all.sort();
    all
}

fn seen_in(at: &Path, path: &Path, all: &mut BTreeMap<PathBuf, Seen>) {
    let meta = at.symlink_metadata().expect("a file");
    let kind = meta.file_type();
    let content = match () {
        () if kind.is_file() => fs::read(at).expect("content"),
        () if kind.is_symlink() => {
            fs::read_link(at).expect("a target").as_os_str().as_bytes().into()
        }
        () if kind.is_char_device() => meta.rdev().to_string().into_bytes(),
        () => Vec::new(),
    };
    let time = (meta.mtime(), meta.mtime_nsec());
    let seen = (meta.mode(), (meta.uid(), meta.gid()), time, content, xattrs(at));
    all.insert(path.to_owned(), seen);
    if kind.is_dir() {
        for entry in fs::read_dir(at).expect("a directory") {
            let name = entry.expect("an entry").file_name();
            seen_in(&at.join(&name), &path.join(&name), all);
        }
    }
}

/// Returns whether a run was not started since the kernel mounts no overlay here, with the reason
/// printed.
fn has_no_overlay(ended: &Output) -> bool {
    let said = text(&ended.stderr);
    let has_none = ended.status.code() == Some(NOT_STARTED)
        && (said.contains("cannot mount an overlay") || said.contains("name space"));
    if has_none {
        eprintln!("SKIPPED: no overlay here: {said}");
    }
    has_none
}

impl Lab {
    /// `None`, with the reason printed, where this process may not mount an overlay here.
    fn new() -> Option<Lab> {
        let lab = Lab { directory: tempfile::tempdir().expect("a directory") };
        fs::create_dir(lab.folder()).expect("a folder");
        let tried = lab.run(&[], "true").output().expect("kvfs runs");
        if has_no_overlay(&tried) {
            return None;
        }
        assert!(tried.status.success(), "{}", text(&tried.stderr));
        Some(lab)
    }

    fn folder(&self) -> PathBuf {
        self.directory.path().join("folder")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    fn write(&self, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = self.path(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, content).expect("a file");
        }
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    /// A run of a script in the folder.
    fn run(&self, options: &[&str], script: &str) -> Command {
        let mut command = kvfs(&["run", "--over"]);
        command.args(options).arg(self.folder()).args(["--", "sh", "-ec", script]);
        command.current_dir(self.folder()).stdin(Stdio::null());
        command
    }

    fn undo(&self, options: &[&str]) -> Command {
        let mut command = kvfs(&["undo"]);
        command.args(options).arg(self.folder()).stdin(Stdio::null());
        command
    }

    fn seen(&self) -> BTreeMap<PathBuf, Seen> {
        let mut all = BTreeMap::new();
        seen_in(&self.folder(), Path::new(""), &mut all);
        all
    }

    /// The names next to the folder.
    fn around(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path()).expect("a directory");
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.expect("an entry").file_name().to_string_lossy().into_owned()
        };
        let mut names: Vec<String> = entries.map(name).filter(|name| name != "folder").collect();
        names.sort();
        names
    }

    /// The state folder.
    fn state(&self) -> PathBuf {
        let inode = self.folder().metadata().expect("a folder").ino();
        self.directory.path().join(format!(".kvfs-over-{inode}"))
    }

    /// Runs a script, and compares the folder with one in which it ran without kvfs. After an undo,
    /// compares it with the earlier state.
    #[track_caller]
    fn is_as_without(&self, script: &str) {
        let other = self.directory.path().join("other");
        succeeds(Command::new("cp").arg("-a").arg(self.folder()).arg(&other));
        succeeds(Command::new("sh").args(["-ec", script]).current_dir(&other));
        let before = self.seen();
        succeeds(&mut self.run(&[], script));
        let mut want = BTreeMap::new();
        seen_in(&other, Path::new(""), &mut want);
        fs::remove_dir_all(&other).expect("removed");
        let without_times = |all: BTreeMap<PathBuf, Seen>| -> Vec<_> {
            all.into_iter()
                .map(|(path, (mode, owner, _, a, b))| (path, mode, owner, a, b))
                .collect()
        };
        assert_eq!(without_times(self.seen()), without_times(want), "{script}");
        succeeds(&mut self.undo(&[]));
        assert_eq!(self.seen(), before, "undone: {script}");
        assert_eq!(self.around(), Vec::<String>::new(), "{script}");
    }
}

#[test]
fn new_changed_and_removed_files_come_into_the_folder_and_are_taken_back() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("changed", "old\n"), ("gone", "old\n"), ("d/e/f", "old\n"), ("d/kept", "old\n")]);
    for script in [
        "echo new > new; echo more >> changed; rm gone",
        "mkdir -p d/new/deep; echo new > d/new/deep/file; rm -r d/e",
        "rm -r d; mkdir d; echo again > d/kept",
        "rm -r d; mkdir -p d/e; echo again > d/e/g",
        "rm changed; mkdir changed; echo in > changed/file",
        "rm -r d; echo file > d",
        "rm -r d; echo file > d; rm d; mkdir d; echo x > d/kept",
        "mv changed moved; mv d elsewhere",
        "mv gone d/e/f",
        "chmod 700 d; chmod 4755 changed; chmod 1777 .",
        "touch -d '2001-02-03 04:05:06' changed d",
        "rm -r d changed gone",
    ] {
        lab.is_as_without(script);
    }
}

#[test]
fn links_attributes_devices_and_holes_are_as_without_an_overlay() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("file", "old\n"), ("d/file", "old\n")]);
    symlink("file", lab.path("link")).expect("a link");
    rustix::fs::setxattr(lab.path("file"), "user.a", b"1", XattrFlags::empty()).expect("set");
    let fifo = lab.path("fifo");
    rustix::fs::mknodat(CWD, fifo, FileType::Fifo, Mode::RUSR, 0).expect("a fifo");
    for script in [
        "ln -sf d/file link; ln -s nowhere dangling",
        "rm link; mkdir link",
        "rm fifo; mkfifo other; chmod 600 other",
        "truncate -s 1M sparse; echo end >> sparse",
        "ln file again; ln d/file d/again; echo more >> d/again",
    ] {
        lab.is_as_without(script);
    }
    fs::hard_link(lab.path("file"), lab.path("d/name")).expect("a link");
    lab.is_as_without("rm file d/name");
    fs::remove_file(lab.path("d/name")).expect("removed");
    let set = "python3 -c 'import os; os.setxattr(\"file\", \"user.b\", b\"2\"); \
               os.setxattr(\"d\", \"user.c\", b\"3\"); os.removexattr(\"file\", \"user.a\")'";
    if Command::new("python3").arg("--version").output().is_ok() {
        lab.is_as_without(set);
        // Others give an attribute to a directory whose attributes the run has changed.
        succeeds(&mut lab.run(&[], set));
        rustix::fs::setxattr(lab.path("d"), "user.d", b"4", XattrFlags::empty()).expect("set");
        let said = fails(8, &mut lab.undo(&[]));
        assert!(said.contains("have changed since then: d"), "{said}");
        rustix::fs::removexattr(lab.path("d"), "user.d").expect("removed");
        succeeds(&mut lab.undo(&[]));
    }
    succeeds(&mut lab.run(&[], "ln file a; echo 1 > b; ln b c; truncate -s 8M hole"));
    let same = |a: &str, b: &str| {
        let inode = |name: &str| lab.path(name).metadata().expect("a file").ino();
        inode(a) == inode(b)
    };
    assert!(same("file", "a") && same("b", "c") && !same("a", "b"));
    assert!(lab.path("hole").metadata().expect("a file").blocks() < 64);
    let noted = |name: &str| {
        let notes = xattrs(&lab.path(name)).into_iter().map(|(name, _)| text(&name));
        notes.filter(|name| name.contains("overlay")).collect::<Vec<_>>()
    };
    assert_eq!(noted("file"), Vec::<String>::new(), "notes of the overlay stay away");
}

#[test]
fn a_folder_that_was_itself_an_upper_layer_keeps_its_files() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("file", "old\n"), ("d/x", "old\n")]);
    let set =
        |name: &str| rustix::fs::setxattr(lab.folder(), name, b"y", XattrFlags::empty()).is_ok();
    // One of the two is the note of the overlay that is mounted here.
    let is_set = (set("trusted.overlay.opaque"), set("user.overlay.opaque"));
    assert!(is_set.0 || is_set.1, "{is_set:?}");
    lab.is_as_without("echo new > new; echo new > d/y");
}

#[test]
fn a_program_that_fails_changes_nothing_and_its_exit_code_passes_through() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("file", "old\n"), ("d/x", "old\n")]);
    let before = lab.seen();
    let said = fails(3, &mut lab.run(&[], "echo new > file; rm -r d; mkdir new; exit 3"));
    assert!(said.contains("nothing was changed"), "{said}");
    assert_eq!(lab.seen(), before);
    succeeds(&mut lab.run(&["--abort"], "echo new > file"));
    assert_eq!(lab.seen(), before);
    fails(3, &mut lab.run(&["--commit"], "echo new > file; exit 3"));
    assert_eq!(lab.read("file").as_deref(), Some("new\n"));
    fails(127, kvfs(&["run", "--over"]).arg(lab.folder()).args(["--", "/no/such/program"]));
    succeeds(&mut lab.undo(&[]));
    assert_eq!(lab.seen(), before);
    assert_eq!(lab.around(), Vec::<String>::new());
}

#[test]
fn others_see_nothing_of_it_before_the_end_and_what_still_runs_is_ended() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("file", "old\n")]);
    // A path that leads around the overlay shows the folder as others see it.
    let root = format!("/proc/{}/root", std::process::id());
    let outside = format!("{root}{}", lab.path("file").display());
    let script = format!(
        "echo new > file; cat {outside}; sleep 1000 & \
         until [ \"$(cat /proc/$!/comm)\" = sleep ]; do :; done"
    );
    let mut run = lab.run(&[], &script);
    let ended = run.output().expect("kvfs runs");
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert_eq!(text(&ended.stdout), "old\n");
    assert!(text(&ended.stderr).contains("(sleep)"), "{}", text(&ended.stderr));
    assert_eq!(lab.read("file").as_deref(), Some("new\n"));
}

#[test]
fn what_a_shell_has_started_before_it_became_the_run_goes_on() {
    let Some(lab) = Lab::new() else { return };
    let script = "sleep 1000 > /dev/null 2>&1 & echo $!; exec \"$0\" run --over \"$1\" -- true";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_kvfs")]).arg(lab.folder());
    let process = succeeds(shell.stdin(Stdio::null()));
    let process = process.trim();
    assert!(Path::new("/proc").join(process).exists(), "{process}");
    succeeds(Command::new("kill").arg(process));
}

#[test]
fn a_process_whose_first_thread_has_ended_still_runs_and_is_ended() {
    let Some(lab) = Lab::new() else { return };
    if Command::new("python3").arg("--version").output().is_err() {
        return;
    }
    let script = "python3 -c 'import ctypes, threading, time; \
                  threading.Thread(target=time.sleep, args=(1000,)).start(); \
                  open(\"begun\", \"w\").close(); \
                  ctypes.CDLL(None).pthread_exit(None)' & \
                  until grep -q '^State:.Z' /proc/$!/status; do sleep 0.01; done; echo new > file";
    let ended = lab.run(&[], script).output().expect("kvfs runs");
    let said = text(&ended.stderr);
    assert!(ended.status.success() && said.contains("ended what the program has left"), "{said}");
    assert_eq!(lab.read("file").as_deref(), Some("new\n"));
}

#[test]
fn what_others_have_changed_is_a_conflict_and_stays() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("file", "old\n"), ("other", "old\n"), ("d/x", "old\n"), ("d/y", "old\n")]);
    let around = format!("/proc/{}/root{}", std::process::id(), lab.folder().display());
    for (theirs, ours) in [
        ("echo theirs > AROUND/file", "echo ours > file"),
        ("echo theirs > AROUND/file", "rm file"),
        ("rm AROUND/file", "echo ours >> file"),
        ("echo theirs > AROUND/new", "echo ours > new"),
        ("echo theirs > AROUND/d/x", "rm -r d"),
        ("echo theirs > AROUND/d/new", "rm -r d"),
        ("chmod 600 AROUND/file", "chmod 700 file"),
        ("mv AROUND/other AROUND/file", "echo ours > file"),
    ] {
        let copy = lab.directory.path().join("copy");
        succeeds(Command::new("cp").arg("-a").arg(lab.folder()).arg(&copy));
        // The program changes the file first, so the overlay has a copy when the others change it.
        let script = format!("{ours}; {}", theirs.replace("AROUND", &around));
        let said = fails(TRY_AGAIN, &mut lab.run(&["--no-keep"], &script));
        assert!(said.contains("others have changed the same"), "{said}");
        let expected = theirs.replace("AROUND", ".");
        succeeds(Command::new("sh").args(["-ec", &expected]).current_dir(&copy));
        let mut want = BTreeMap::new();
        seen_in(&copy, Path::new(""), &mut want);
        let content = |all: BTreeMap<PathBuf, Seen>| -> Vec<_> {
            all.into_iter().map(|(path, (mode, _, _, content, _))| (path, mode, content)).collect()
        };
        assert_eq!(content(lab.seen()), content(want), "{theirs}; {ours}");
        fs::remove_dir_all(lab.folder()).expect("removed");
        fs::create_dir(lab.folder()).expect("made");
        fs::remove_dir_all(&copy).expect("removed");
        lab.write(&[("file", "old\n"), ("other", "old\n"), ("d/x", "old\n"), ("d/y", "old\n")]);
    }
    // Changes of other files conflict with no other.
    let script = format!("echo ours > file; echo ours > d/new; echo theirs > {around}/d/x");
    succeeds(&mut lab.run(&[], &script));
    assert_eq!(
        (lab.read("file"), lab.read("d/x")),
        (Some("ours\n".into()), Some("theirs\n".into()))
    );
    assert_eq!(lab.read("d/new").as_deref(), Some("ours\n"));
}

#[test]
fn a_conflict_keeps_what_the_program_did() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("file", "old\n")]);
    let around = format!("/proc/{}/root{}", std::process::id(), lab.folder().display());
    let script = format!("echo ours > file; echo theirs > {around}/file");
    let said = fails(TRY_AGAIN, &mut lab.run(&[], &script));
    let kept = said.split(" is in ").nth(1).expect("a place").trim();
    assert_eq!(fs::read_to_string(Path::new(kept).join("file")).expect("kept"), "ours\n");
    let kept = succeeds(&mut lab.run(&["--keep"], "echo kept > new"));
    assert_eq!(fs::read_to_string(Path::new(kept.trim()).join("new")).expect("kept"), "kept\n");
    assert_eq!(lab.read("new"), None);
}

#[test]
fn an_undo_meets_what_others_have_changed_since() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("file", "old\n"), ("gone", "old\n"), ("stays", "old\n")]);
    let script = "echo new > file; rm gone; mkdir d; echo new > d/x";
    for theirs in ["echo 1 >> file", "echo 1 > gone", "echo 1 > d/y", "rm d/x", "rm file"] {
        let before = lab.seen();
        succeeds(&mut lab.run(&[], script));
        succeeds(Command::new("sh").args(["-ec", theirs]).current_dir(lab.folder()));
        let (now, name) = (lab.seen(), theirs.rsplit(' ').next().unwrap_or_default());
        let said = fails(8, &mut lab.undo(&[]));
        assert!(said.contains("others have changed since then") && said.contains(name), "{said}");
        assert_eq!(lab.seen(), now, "{theirs}");
        fs::remove_dir_all(lab.folder()).expect("removed");
        fs::create_dir(lab.folder()).expect("made");
        lab.write(&[("file", "old\n"), ("gone", "old\n"), ("stays", "old\n")]);
        assert_eq!(before.len(), lab.seen().len());
    }
    // Other programs may change other files.
    succeeds(&mut lab.run(&[], script));
    succeeds(Command::new("sh").args(["-ec", "echo 1 > theirs"]).current_dir(lab.folder()));
    let shown = succeeds(&mut lab.undo(&["--dry-run"]));
    assert!(shown.contains("nothing was changed") && shown.contains("gone"), "{shown}");
    assert_eq!(lab.read("file").as_deref(), Some("new\n"));
    succeeds(&mut lab.undo(&[]));
    assert_eq!(lab.read("theirs").as_deref(), Some("1\n"));
    assert_eq!((lab.read("file"), lab.read("gone")), (Some("old\n".into()), Some("old\n".into())));
    assert!(!lab.path("d").exists());
    // Only the last run can be undone, and only once.
    let said = fails(NOT_FOUND, &mut lab.undo(&[]));
    assert!(said.contains(&lab.folder().display().to_string()), "{said}");
}

#[test]
fn of_several_runs_the_last_one_can_be_undone() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("file", "0\n")]);
    succeeds(&mut lab.run(&[], "echo 1 > file; echo 1 > new"));
    let between = lab.seen();
    succeeds(&mut lab.run(&[], "echo 2 > file; rm new"));
    let shown = succeeds(&mut lab.undo(&[]));
    assert!(shown.contains("undone"), "{shown}");
    assert_eq!(lab.seen(), between);
    // The commits that a number names are those of a store.
    fails(NOT_FOUND, &mut lab.undo(&["--commit", "7"]));
}

#[test]
fn a_run_that_changes_nothing_leaves_the_last_one_to_be_undone() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("file", "old\n")]);
    succeeds(&mut lab.run(&[], "echo new > file"));
    // Others make a file in the folder, so its time is not the one that the program sees.
    let around = format!("/proc/{}/root{}", std::process::id(), lab.folder().display());
    succeeds(&mut lab.run(&[], &format!("cat file; echo theirs > {around}/theirs")));
    succeeds(&mut lab.undo(&[]));
    assert_eq!(lab.read("file").as_deref(), Some("old\n"));
    assert_eq!(lab.read("theirs").as_deref(), Some("theirs\n"));
}

/// Sets a time in a log.
fn set_time(log: &Path, name: &str, time: (i64, u32)) {
    let read = fs::read(log).expect("a log");
    let mut fields: serde_json::Value = serde_json::from_slice(&read).expect("JSON");
    fields[name] = serde_json::json!(time);
    fs::write(log, fields.to_string()).expect("a log");
}

/// The log of a run that was killed while it was applied, after its first step.
#[test]
fn an_interrupted_apply_is_completed_by_the_next_command() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("a", "old\n"), ("b", "old\n")]);
    let before = lab.seen();
    succeeds(&mut lab.run(&[], "echo new > a; rm b; echo new > c"));
    let after = lab.seen();
    // The state is made as it was in the middle: the log and one swap.
    let (applied, run) = (lab.state().join("applied"), lab.state().join("run-killed"));
    fs::remove_file(applied.join("seen")).expect("removed");
    fs::rename(applied.join("upper/b"), lab.path("b")).expect("the swap of b is not done");
    fs::rename(lab.path("c"), applied.join("upper/c")).expect("the swap of c is not done");
    fs::rename(&applied, &run).expect("it is not the last run yet");
    // The renames of this test are no changes since the run began.
    set_time(&run.join("log"), "started", (i64::MAX, 0));
    let ended = lab.undo(&["--dry-run"]).output().expect("kvfs runs");
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("interrupted"), "{}", text(&ended.stderr));
    assert_eq!(lab.seen(), after);
    succeeds(&mut lab.undo(&[]));
    assert_eq!(lab.seen(), before);
}

#[test]
fn a_folder_with_the_number_of_one_that_was_removed_gets_nothing_of_its_runs() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("gone", "old\n")]);
    succeeds(&mut lab.run(&[], "echo new > added; rm gone"));
    let applied = lab.state().join("applied");
    // The folder was born at another time.
    set_time(&applied.join("log"), "born", (1, 2));
    fails(NOT_FOUND, &mut lab.undo(&[]));
    assert_eq!(lab.read("gone"), None);
    // The same in the middle of the apply.
    let run = lab.state().join("run-killed");
    fs::rename(lab.path("added"), applied.join("upper/added")).expect("the swap is not done");
    fs::rename(&applied, &run).expect("it is not the last run yet");
    let ended = lab.run(&["--abort"], "ls").output().expect("kvfs runs");
    assert!(text(&ended.stderr).contains("a folder that is gone"), "{}", text(&ended.stderr));
    assert_eq!((text(&ended.stdout), lab.read("added")), (String::new(), None));
}

/// Takes the swap of a file back, so that the apply of a run is in the middle.
fn swap_back(lab: &Lab, of_run: &Path, name: &str) {
    let (here, there) = (lab.path(name), of_run.join("upper").join(name));
    rustix::fs::renameat_with(CWD, here, CWD, there, RenameFlags::EXCHANGE).expect("swapped");
}

#[test]
fn what_others_write_into_a_file_before_an_interrupted_apply_is_completed_stays() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("a", "old\n"), ("b", "old\n")]);
    succeeds(&mut lab.run(&[], "echo new > a; echo new > b"));
    let (applied, run) = (lab.state().join("applied"), lab.state().join("run-killed"));
    fs::remove_file(applied.join("seen")).expect("removed");
    fs::rename(&applied, &run).expect("it is not the last run yet");
    swap_back(&lab, &run, "b");
    fs::write(lab.path("b"), "theirs\n").expect("a file");
    let ended = lab.run(&["--abort"], "cat a b").output().expect("kvfs runs");
    assert_eq!(text(&ended.stdout), "old\ntheirs\n", "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("is taken back"), "{}", text(&ended.stderr));
}

#[test]
fn what_others_write_after_a_swap_is_not_thrown_away_by_an_undo() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("a", "old\n"), ("b", "old\n")]);
    succeeds(&mut lab.run(&[], "echo new > a; echo new > b"));
    // The run was killed before it noted what it has made of the folder.
    let (applied, run) = (lab.state().join("applied"), lab.state().join("run-killed"));
    fs::remove_file(applied.join("seen")).expect("removed");
    fs::rename(&applied, &run).expect("it is not the last run yet");
    fs::write(lab.path("a"), "theirs\n").expect("a file");
    let said = fails(8, &mut lab.undo(&[]));
    assert!(said.contains("interrupted") && said.contains("have changed since"), "{said}");
    assert_eq!((lab.read("a"), lab.read("b")), (Some("theirs\n".into()), Some("new\n".into())));
}

#[test]
fn an_interrupted_undo_leaves_what_others_have_written_since() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("a", "old\n"), ("b", "old\n"), ("c", "old\n")]);
    succeeds(&mut lab.run(&[], "echo new > a; echo new > b; echo new > c"));
    // An undo was killed after its first swap.
    let applied = lab.state().join("applied");
    fs::copy(applied.join("log"), applied.join("undoing")).expect("a log");
    swap_back(&lab, &applied, "c");
    fs::write(lab.path("a"), "theirs\n").expect("a file");
    let ended = lab.undo(&[]).output().expect("kvfs runs");
    let said = text(&ended.stderr);
    assert!(said.contains("a stays as others have made it"), "{said}");
    assert_eq!((lab.read("a"), lab.read("b")), (Some("theirs\n".into()), Some("old\n".into())));
    assert_eq!(lab.read("c").as_deref(), Some("old\n"));
    let kept = said.split(" as in ").nth(1).and_then(|rest| rest.lines().next());
    let kept = Path::new(kept.expect("a place").trim()).join("a");
    assert_eq!(fs::read_to_string(kept).expect("the old version"), "old\n");
}

#[test]
fn an_interrupted_apply_is_taken_back_where_others_have_come_between() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("a", "old\n"), ("b", "old\n")]);
    succeeds(&mut lab.run(&[], "echo new > a; echo new > b"));
    let (applied, run) = (lab.state().join("applied"), lab.state().join("run-killed"));
    fs::rename(&applied, &run).expect("it is not the last run yet");
    fs::write(lab.path("b.new"), "theirs\n").expect("a file");
    fs::rename(lab.path("b.new"), lab.path("b")).expect("renamed");
    let ended = lab.run(&[], "cat a b").output().expect("kvfs runs");
    assert_eq!(text(&ended.stdout), "old\ntheirs\n", "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("is taken back"), "{}", text(&ended.stderr));
}

#[test]
fn a_selection_is_taken_and_the_rest_is_not() {
    let Some(lab) = Lab::new() else { return };
    lab.write(&[("a", "old\n"), ("b", "old\n"), ("d/x", "old\n")]);
    let program = format!(
        "{} run --over {} --ask -- sh -ec 'cd {}; echo new > a; echo new > b; mkdir n; echo 1 > n/x; rm -r d'",
        env!("CARGO_BIN_EXE_kvfs"),
        lab.folder().display(),
        lab.folder().display(),
    );
    let Some(mut asked) = Asked::start(&program) else { return };
    asked.answers(&["s", "y", "n", "n", "y", "y"]);
    let (shown, code) = asked.ends();
    assert_eq!(code, 0, "{shown}");
    assert_eq!((lab.read("a"), lab.read("b")), (Some("new\n".into()), Some("old\n".into())));
    assert_eq!((lab.read("d/x"), lab.read("n/x")), (Some("old\n".into()), Some("1\n".into())));
    succeeds(&mut lab.undo(&[]));
    assert_eq!((lab.read("a"), lab.read("n/x")), (Some("old\n".into()), None));
}

#[test]
fn hostile_names_are_shown_escaped_and_are_applied_as_they_are() {
    let Some(lab) = Lab::new() else { return };
    let name = OsStr::from_bytes(b"e\x1b[2J\nFORGED\xff,:\\x");
    let renamed = lab.directory.path().join(name);
    fs::rename(lab.folder(), &renamed).expect("renamed");
    fs::write(renamed.join(name), "old\n").expect("a file");
    let mut run = kvfs(&["run", "--over"]);
    run.arg(&renamed).args(["--", "sh", "-ec", "for f in e*; do echo new > \"$f\"; done"]);
    succeeds(run.current_dir(&renamed).stdin(Stdio::null()));
    assert_eq!(fs::read_to_string(renamed.join(name)).expect("text"), "new\n");
    let shown = succeeds(kvfs(&["undo"]).arg(&renamed).stdin(Stdio::null()));
    assert!(!shown.contains('\u{1b}') && !shown.contains("\nFORGED"), "{shown}");
    assert_eq!(fs::read_to_string(renamed.join(name)).expect("text"), "old\n");
}

#[test]
fn mounts_in_the_folder_and_stores_are_refused() {
    if let Some(place) = Place::new() {
        place.mounted();
        let said = fails(
            NOT_STARTED,
            kvfs(&["run", "--over"]).arg(place.mnt()).args(["--", "true"]).stdin(Stdio::null()),
        );
        assert!(said.contains("kvfs run ") && said.contains("mounted store"), "{said}");
        let around = place.dir.path();
        let said = fails(
            NOT_STARTED,
            kvfs(&["run", "--over"]).arg(around).args(["--", "true"]).stdin(Stdio::null()),
        );
        assert!(said.contains("kvfs run "), "{said}");
    }
    let Some(lab) = Lab::new() else { return };
    let file = lab.path("file");
    fs::write(&file, "x").expect("a file");
    let words = ["--", "true"];
    // For a folder without a store, the error mentions --over.
    let said = fails(NOT_STARTED, kvfs(&["run"]).arg(lab.folder()).args(words));
    assert!(said.contains("kvfs run --over "), "{said}");
    fails(NOT_STARTED, kvfs(&["run", "--over"]).arg(&file).args(words));
    fails(NOT_STARTED, kvfs(&["run", "--over", "/"]).args(words));
    fails(NOT_STARTED, kvfs(&["run", "--over"]).arg(lab.path("none")).args(words));
    // A state folder that others can enter is not this user's own.
    fs::create_dir(lab.state()).expect("a directory");
    fs::set_permissions(lab.state(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let said = fails(NOT_STARTED, &mut lab.run(&[], "true"));
    assert!(said.contains("not this user's own"), "{said}");
}

#[test]
fn an_ordinary_user_runs_over_a_folder_in_a_name_space_of_its_own() {
    let Some(lab) = Lab::new() else { return };
    if !rustix::process::geteuid().is_root() {
        return;
    }
    lab.write(&[("file", "old\n"), ("d/x", "old\n"), ("read-only", "old\n")]);
    fs::create_dir(lab.path("closed")).expect("a directory");
    fs::set_permissions(lab.path("closed"), fs::Permissions::from_mode(0o555)).expect("a mode");
    let program = lab.directory.path().join("kvfs");
    crate::place::install_program(&program);
    fs::set_permissions(lab.path("read-only"), fs::Permissions::from_mode(0o444)).expect("a mode");
    succeeds(Command::new("chown").arg("-R").arg("65534:65534").arg(lab.directory.path()));
    let before = lab.seen();
    let by_user = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words).uid(65_534).gid(65_534).current_dir(lab.folder());
        command.stdin(Stdio::null());
        command
    };
    let mut run = by_user(&["run", "--over"]);
    run.arg(lab.folder());
    let script = "echo new > file; rm -r d; mkdir d n; echo 1 > n/x; mv read-only moved; \
                  rmdir closed; mkdir -p new-closed/in; chmod 555 new-closed";
    let ended = run.args(["--", "sh", "-ec", script]).output().expect("kvfs runs");
    if has_no_overlay(&ended) {
        return;
    }
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert_eq!((lab.read("file"), lab.read("d/x")), (Some("new\n".into()), None));
    assert!(xattrs(&lab.path("moved")).is_empty(), "notes of the overlay stay away");
    assert_eq!(lab.path("new-closed").metadata().expect("made").mode() & 0o777, 0o555);
    assert!(!lab.path("closed").exists());
    succeeds(by_user(&["undo"]).arg(lab.folder()));
    assert_eq!(lab.seen(), before);
}
