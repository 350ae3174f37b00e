//! Tests of the files that commands write. These are never a store that the command reads, nor one
//! that is in use, by any of its names, and another store only if that is asked for.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::path_uses::{PATHS, Use};
use crate::place::{Place, kvfs, mount_table, succeeds, text};

const USAGE: i32 = 2;
const BUSY: i32 = 4;

/// A store that is mounted (`mnt`), with a snapshot, and one that is not, each with all its names.
struct Lab {
    place: Place,
    bound: PathBuf,
    view: PathBuf,
}

impl Drop for Lab {
    fn drop(&mut self) {
        for at in [&self.bound, &self.view] {
            let _ = Command::new("umount").arg(at).stderr(Stdio::null()).status();
        }
    }
}

impl Lab {
    fn new() -> Option<Lab> {
        let place = Place::new()?;
        let at = |name: &str| place.dir.path().join(name);
        let lab = Lab { bound: at("bound"), view: at("view"), place };
        let (from, other) = (lab.at("from"), lab.other());
        fs::create_dir(&from).expect("mkdir");
        fs::write(from.join("file"), "content").expect("write");
        succeeds(kvfs(&["create"]).arg(&other));
        for store in [&lab.place.store(), &other] {
            succeeds(kvfs(&["import"]).arg(store).arg(&from));
            succeeds(kvfs(&["snapshot", "create"]).arg(store).arg("s"));
        }
        lab.place.mounted();
        fs::create_dir(lab.place.mnt().join("below")).expect("mkdir");
        // A second name of the mount, and one of the store's file, as `mount --bind` makes them.
        File::create(&lab.bound).expect("a file");
        fs::create_dir(&lab.view).expect("mkdir");
        for (what, at) in [(lab.place.store(), &lab.bound), (lab.place.mnt(), &lab.view)] {
            let bound = Command::new("mount").arg("--bind").arg(what).arg(at).status();
            assert!(bound.expect("mount runs").success());
        }
        Some(lab)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.dir.path().join(name)
    }

    /// The store that is not mounted.
    fn other(&self) -> PathBuf {
        self.at("other.kvfs")
    }

    /// Names of a store's file, the last one relative to the laboratory.
    fn names(&self, store: &Path) -> Vec<PathBuf> {
        let stem = store.file_stem().and_then(|s| s.to_str()).expect("a name");
        let [hard, soft, far] =
            ["hard", "soft", "far"].map(|kind| self.at(&format!("{stem}-{kind}")));
        fs::hard_link(store, &hard).expect("a link");
        symlink(store, &soft).expect("a link");
        symlink(&soft, &far).expect("a link");
        let mut names = vec![store.to_path_buf(), hard, soft, far];
        if *store == self.place.store() {
            names.push(self.bound.clone());
        }
        names.push(Path::new(".").join(store.file_name().expect("a name")));
        names
    }

    /// Returns the sources that a command may read: the store that is not mounted, and the mounted
    /// one by its file, by directories in it, in a snapshot of it and in another mount of it.
    fn sources(&self) -> Vec<PathBuf> {
        let mnt = self.place.mnt();
        vec![
            self.other(),
            self.place.store(),
            mnt.clone(),
            mnt.join("below"),
            mnt.join(".kvfs/snapshot/s"),
            self.view.clone(),
            self.view.join("below"),
            PathBuf::from("mnt/below"),
        ]
    }

    fn run(&self, command: &mut Command) -> Output {
        command.current_dir(self.place.dir.path()).stdin(Stdio::null());
        command.env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
        command.output().expect("kvfs runs")
    }

    /// Both stores are unchanged and sound.
    #[track_caller]
    fn is_whole(&self) {
        succeeds(kvfs(&["check"]).arg(self.other()));
        assert_eq!(succeeds(kvfs(&["cat"]).arg(self.other()).arg("file")), "content");
        assert_eq!(fs::read(self.place.mnt().join("file")).expect("read"), b"content");
        let begins = &fs::read(self.place.store()).expect("read")[..6];
        assert_eq!(begins, b"KVFS\r\n", "the store's file");
    }
}

/// Commands that write onto `onto`, by the argument of that name.
fn writing(lab: &Lab, command: &str, argument: &str, onto: &Path) -> Vec<Command> {
    let mut all = Vec::new();
    match (command, argument) {
        ("export", "to") => {
            for source in lab.sources() {
                let mut export = kvfs(&["export"]);
                export.arg(source).arg(onto);
                all.push(export);
            }
        }
        ("send", "output") => {
            for source in lab.sources() {
                let mut send = kvfs(&["send"]);
                send.arg(source).arg("s").arg("--output").arg(onto);
                all.push(send);
            }
        }
        ("fork" | "pull", "file") => {
            let (source, share) = (lab.at("published.kvfs"), lab.at("share"));
            let address = format!("dir:{}/published", share.display());
            if !share.exists() {
                succeeds(kvfs(&["create"]).arg(&source));
                succeeds(kvfs(&["push"]).arg(&source).arg(&address));
            }
            let mut fork = kvfs(&[command, &address]);
            fork.arg(onto);
            all.push(fork);
        }
        ("salvage", "keys") => {
            let mut salvage = kvfs(&["salvage"]);
            salvage.arg(lab.other()).arg("salvaged").arg("--keys").arg(onto);
            all.push(salvage);
        }
        ("salvage", "directory") => {
            let mut salvage = kvfs(&["salvage"]);
            salvage.arg(lab.other()).arg(onto);
            all.push(salvage);
        }
        ("create", "store") => {
            let mut create = kvfs(&["create"]);
            create.arg(onto);
            all.push(create);
        }
        ("secret", "file") => {
            let mut secret = kvfs(&["secret"]);
            secret.arg(onto);
            all.push(secret);
        }
        ("mount", "log") => {
            fs::create_dir_all(lab.at("elsewhere")).expect("mkdir");
            let mut mount = kvfs(&["mount"]);
            mount.arg(lab.other()).arg("elsewhere").arg("--log").arg(onto);
            all.push(mount);
        }
        ("run", "scratch") => {
            let mut run = kvfs(&["run", "--layer", "--scratch"]);
            run.arg(onto).args(["mnt", "--", "true"]);
            all.push(run);
        }
        ("explore", "outputs") => {
            // The files that it would make exist, and refer to the store.
            let dir = lab.at("outputs");
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).expect("mkdir");
            symlink(lab.at("").join(onto), dir.join("1.out")).expect("a link");
            let mut explore = kvfs(&["explore", "1", "mnt", "--first", "--outputs"]);
            explore.arg(dir).args(["--", "echo", "overwritten"]);
            all.push(explore);
        }
        ("bench", "dir") => {
            // The directory that it would make exists, and refers to the store.
            let dir = lab.at("benched");
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(dir.join("kvfs-bench")).expect("mkdir");
            symlink(lab.at("").join(onto), dir.join("kvfs-bench/large")).expect("a link");
            let mut bench = kvfs(&["bench", "--case", "seq-write", "--mib", "1"]);
            bench.arg(dir);
            all.push(bench);
        }
        ("man", "directory") => {
            let dir = lab.at("pages");
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).expect("mkdir");
            symlink(lab.at("").join(onto), dir.join("kvfs.1")).expect("a link");
            let mut man = kvfs(&["man"]);
            man.arg(dir);
            all.push(man);
        }
        _ => panic!("{command} {argument} writes, and is not walked here"),
    }
    all
}

#[test]
fn no_command_writes_onto_a_store() {
    let Some(lab) = Lab::new() else { return };
    let all: Vec<PathBuf> =
        [lab.place.store(), lab.other()].iter().flat_map(|store| lab.names(store)).collect();
    for &(command, argument, _) in PATHS.iter().filter(|(.., done)| *done == Use::Writes) {
        for onto in &all {
            for mut command in writing(&lab, command, argument, onto) {
                let ended = lab.run(&mut command);
                assert!(!ended.status.success(), "{command:?}: {}", text(&ended.stdout));
            }
        }
        let mounted = mount_table();
        assert!(!mounted.contains(lab.at("elsewhere").to_str().expect("UTF-8")), "{mounted}");
        lab.is_whole();
    }
}

#[test]
fn a_store_is_replaced_when_that_is_asked_for_and_nobody_uses_it() {
    let Some(lab) = Lab::new() else { return };
    let spare = lab.at("spare.kvfs");
    let make_again = || {
        let _ = fs::remove_file(&spare);
        succeeds(kvfs(&["create"]).arg(&spare));
    };
    let forced = |words: &[&str], onto: &Path| {
        let mut command = kvfs(&[words[0]]);
        command.args(&words[1..]).arg(onto);
        (lab.run(&mut command), lab.run(command.arg("--force")))
    };
    let names = lab.names(&lab.place.store());
    let words: [&[&str]; 3] = [&["export", "mnt"], &["send", "mnt", "s", "-o"], &["create"]];
    for words in words {
        make_again();
        let (refused, done) = forced(words, &spare);
        assert!(!refused.status.success(), "{words:?}");
        assert!(done.status.success(), "{words:?}: {}", text(&done.stderr));
        // The stores in use are the mounted one and the one that is read.
        for store in &names {
            let (refused, forced) = forced(words, store);
            assert!(!refused.status.success(), "{words:?}");
            let code = forced.status.code();
            assert!(
                code == Some(BUSY) || code == Some(USAGE),
                "{words:?}: {}",
                text(&forced.stderr)
            );
        }
        lab.is_whole();
    }
    let read = lab.run(kvfs(&["export", "--force"]).arg(lab.other()).arg(lab.other()));
    assert_eq!(read.status.code(), Some(USAGE), "{}", text(&read.stderr));
    lab.is_whole();
}

/// A loop device that is bound to a file. It is released with this.
struct Loop(PathBuf);

impl Loop {
    /// Returns `None` where there are no loop devices, as in most containers.
    fn of(file: &Path) -> Option<Loop> {
        let bound = Command::new("losetup").args(["-f", "--show"]).arg(file).output().ok()?;
        let name = text(&bound.stdout).trim().to_string();
        (bound.status.success() && !name.is_empty()).then(|| Loop(name.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn no_force_writes_onto_a_store_in_use_through_a_loop_device() {
    let Some(lab) = Lab::new() else { return };
    let (mounted, other) = (lab.place.store(), lab.other());
    let (Some(of_mounted), Some(of_other)) = (Loop::of(&mounted), Loop::of(&other)) else { return };
    let forced = |words: &[&str], source: Option<&PathBuf>, onto: &PathBuf| {
        let mut command = kvfs(&[words[0], "--force"]);
        command.args(source).args(&words[1..]).arg(onto);
        let ended = lab.run(&mut command);
        let code = ended.status.code();
        let is_refused = code == Some(BUSY) || code == Some(USAGE);
        assert!(is_refused, "{command:?}: {code:?}: {}", text(&ended.stderr));
        lab.is_whole();
    };
    let mnt = lab.place.mnt();
    forced(&["export"], Some(&mnt), &of_mounted.0);
    forced(&["send", "s", "-o"], Some(&mnt), &of_mounted.0);
    forced(&["create"], None, &of_mounted.0);
    // The store that is read is not mounted, and is read by one name and written by another.
    forced(&["export"], Some(&other), &of_other.0);
    forced(&["export"], Some(&of_other.0), &other);
    // Another program has opened the file of an unmounted store.
    let held = File::open(&other).expect("open");
    held.lock().expect("a lock");
    let ended = lab.run(kvfs(&["export", "--force"]).arg(lab.place.mnt()).arg(&of_other.0));
    drop(held);
    assert_eq!(ended.status.code(), Some(BUSY), "{}", text(&ended.stderr));
    lab.is_whole();
    // The store is mounted from the device, and the file has no daemon of that name.
    let at = lab.at("by-device");
    fs::create_dir(&at).expect("mkdir");
    succeeds(kvfs(&["mount"]).arg(&of_other.0).arg(&at));
    for (source, onto) in [(&at, &other), (&mnt, &other), (&at, &of_other.0)] {
        let ended = lab.run(kvfs(&["export", "--force"]).arg(source).arg(onto));
        let code = ended.status.code();
        assert!(code == Some(BUSY) || code == Some(USAGE), "{}", text(&ended.stderr));
    }
    let created = lab.run(kvfs(&["create", "--force"]).arg(&other));
    succeeds(kvfs(&["umount"]).arg(&at));
    assert_eq!(created.status.code(), Some(BUSY), "{}", text(&created.stderr));
    lab.is_whole();
}

#[test]
fn a_store_is_mounted_once_by_its_file_or_a_loop_device_of_it() {
    let Some(lab) = Lab::new() else { return };
    let (mounted, other) = (lab.place.store(), lab.other());
    let (Some(of_mounted), Some(of_other)) = (Loop::of(&mounted), Loop::of(&other)) else { return };
    let [at, elsewhere] = ["by-device", "elsewhere"].map(|name| lab.at(name));
    fs::create_dir(&at).expect("mkdir");
    fs::create_dir(&elsewhere).expect("mkdir");
    let ended = lab.run(kvfs(&["mount"]).arg(&of_mounted.0).arg(&at));
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(BUSY), "{said}");
    let where_it_is = lab.place.mnt().display().to_string();
    assert!(said.contains(&where_it_is) && said.contains("by its other name"), "{said}");
    // Readers would see a store that changes.
    let ended = lab.run(kvfs(&["check"]).arg(&of_mounted.0));
    assert_eq!(ended.status.code(), Some(BUSY), "{}", text(&ended.stderr));

    succeeds(kvfs(&["mount"]).arg(&of_other.0).arg(&at));
    let ended = lab.run(kvfs(&["snapshot", "create"]).arg(&other).arg("t"));
    let second = lab.run(kvfs(&["mount"]).arg(&other).arg(&elsewhere));
    fs::write(at.join("new"), "by the device").expect("write");
    succeeds(kvfs(&["umount"]).arg(&at));
    let said = text(&second.stderr);
    assert_eq!(second.status.code(), Some(BUSY), "{said}");
    assert!(said.contains(&at.display().to_string()), "{said}");
    assert!(!ended.status.success(), "{}", text(&ended.stdout));
    assert_eq!(succeeds(kvfs(&["cat"]).arg(&other).arg("new")), "by the device");
    lab.is_whole();
}

#[test]
fn an_export_into_a_directory_replaces_no_store_there() {
    let Some(lab) = Lab::new() else { return };
    fs::write(lab.at("from/spare.kvfs"), "no store").expect("write");
    let source = lab.at("source.kvfs");
    succeeds(kvfs(&["create"]).arg(&source));
    succeeds(kvfs(&["import"]).arg(&source).arg(lab.at("from")));
    let target = lab.at("target");
    fs::create_dir(&target).expect("mkdir");
    succeeds(kvfs(&["create"]).arg(target.join("spare.kvfs")));
    let mut export = kvfs(&["export"]);
    export.arg(&source).arg(&target);
    let ended = lab.run(&mut export);
    assert_eq!(ended.status.code(), Some(USAGE), "{}", text(&ended.stderr));
    succeeds(kvfs(&["check"]).arg(target.join("spare.kvfs")));
    succeeds(export.arg("--force"));
    assert_eq!(fs::read(target.join("spare.kvfs")).expect("read"), b"no store");
}

/// A shell's `>>` and `1<>` lead a command's output anywhere.
#[test]
fn nothing_is_printed_onto_a_store() {
    let Some(lab) = Lab::new() else { return };
    for store in [lab.place.store(), lab.other()] {
        for words in [&["cat", "other.kvfs", "file"][..], &["ls", "mnt"], &["export", "mnt", "-"]] {
            let onto = File::options().append(true).open(&store).expect("opened");
            let mut command = kvfs(words);
            command.current_dir(lab.place.dir.path()).stdin(Stdio::null()).stdout(onto);
            let ended = command.stderr(Stdio::piped()).spawn().and_then(|c| c.wait_with_output());
            let ended = ended.expect("kvfs runs");
            assert!(!ended.status.success(), "{words:?} onto {}", store.display());
        }
    }
    lab.is_whole();
}

/// Files are opened for writing in few places, since a file that is opened elsewhere is not
/// checked.
#[test]
fn files_are_opened_to_be_written_in_one_place() {
    /// The places in which files are opened for writing, and the reason why they may be.
    const PLACES: &[(&str, &str)] = &[
        ("support/machine/destination.rs", "the place"),
        ("support/mounts/daemons.rs", "records, in a directory of their own"),
        ("support/serving/daemon.rs", "/dev/null"),
        ("commands/bench.rs", "in the directory that it makes"),
        (
            "support/archives/export_tree/directory.rs",
            "a new file, after the judgement of what had its name",
        ),
        ("local_copies.rs", "the caches, in a directory of their own"),
        ("support/serving/keeper.rs", "the store, which is opened as one"),
        ("support/terminal/prompt.rs", "the terminal"),
        ("commands/run.rs", "the terminal"),
        ("support/over/log.rs", "the state folder of runs, which is this user's own"),
        ("support/over/runs.rs", "the state folder of runs, which is this user's own"),
        ("support/over/run_folders.rs", "the state folder of runs, which is this user's own"),
        ("support/layered_runs/scratch.rs", "a new file in the directory that it makes"),
        ("support/layered_runs/in_place.rs", "files in a transaction of the store"),
        ("commands/mcp/files.rs", "files in a transaction of the store"),
        ("secrets.rs", "a new file, where nothing is"),
        (
            "commands/merge/fork_file.rs",
            "a fork in the place of a fork, after the judgement of that",
        ),
    ];
    const OPENS: &[&str] = &[
        "File::create",
        "File::options",
        "OpenOptions::new",
        "OFlags::CREATE",
        "OFlags::WRONLY",
        "OFlags::RDWR",
        "fs::write(",
        "fs::copy(",
        "fs::rename(",
        "generate_to(",
        "set_len(",
    ];
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = [own.join("src"), own.join("../places/src")];
    let mut waiting = sources.to_vec();
    let mut found = Vec::new();
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(&at).expect("read").map(|entry| entry.expect("read").path()) {
            if entry.is_dir() {
                waiting.push(entry);
                continue;
            }
            let below = sources.iter().find_map(|src| entry.strip_prefix(src).ok());
            let name = below.expect("below").display().to_string();
            let all = fs::read_to_string(&entry).expect("text");
            let code = all.split("#[cfg(test)]").next().unwrap_or_default();
            for (at, line) in code.lines().enumerate() {
                let allowed = PLACES.iter().any(|(place, _)| *place == name);
                if !name.ends_with("_tests.rs")
                    && !allowed
                    && OPENS.iter().any(|w| line.contains(w))
                {
                    found.push(format!("{name}:{}: {}", at + 1, line.trim()));
                }
            }
        }
    }
    assert!(found.is_empty(), "open what a user wants written by `destination`: {found:#?}");
}
