//! Tests of a store in object storage that several machines write in turn: `kvfs create ADDRESS`,
//! `kvfs mount --write`, and `--take` where a machine has disappeared. Each machine is a directory
//! for local files here.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::command::{ends, kvfs, succeeds};
use crate::mounted::Mount;
use crate::published::{awaited, publishing, umount};
use serde_json::Value;

/// Standard error of a command that must end with `code`.
#[track_caller]
fn fails(code: i32, command: &mut std::process::Command) -> String {
    let (ended, out, err) = ends(command);
    assert_eq!(ended, Some(code), "{command:?}: {out}{err}");
    err
}

struct World {
    directory: tempfile::TempDir,
    mounts: Vec<PathBuf>,
}

impl World {
    /// Returns `None` if nothing can be mounted here.
    fn new() -> Option<World> {
        Mount::new()?;
        let directory = tempfile::tempdir().expect("a temporary directory");
        Some(World { directory, mounts: vec![] })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn address(&self) -> String {
        format!("dir:{}/work", self.path("share").display())
    }

    fn create(&self) {
        let mut create = kvfs(&["create", &self.address()]);
        succeeds(create.env("XDG_DATA_HOME", self.path("data")));
    }

    /// The mount of a machine, with its root.
    fn mount(&mut self, machine: &str, flags: &[&str]) -> (std::process::Command, PathBuf) {
        let root = self.path(&format!("{machine}.mnt"));
        fs::create_dir_all(&root).expect("mkdir");
        let mut mount = kvfs(&["mount", &self.address()]);
        mount.arg(&root).arg("--cache").arg(self.path(machine)).args(flags);
        self.mounts.push(root.clone());
        (mount, root)
    }

    fn write(&mut self, machine: &str) -> PathBuf {
        let (mut mount, root) = self.mount(machine, &["--write", "-o", "publish_every=0.1"]);
        succeeds(&mut mount);
        root
    }

    fn local_file(&self, machine: &str) -> PathBuf {
        let all = fs::read_dir(self.path(machine)).expect("local files");
        let mut all = all.map(|entry| entry.expect("an entry").path());
        let is_writer = |path: &PathBuf| path.to_string_lossy().ends_with(".writer.kvfs");
        all.find(is_writer).expect("that of the writer")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for root in &self.mounts {
            let _ = kvfs(&["umount", "--force"]).arg(root).output();
        }
    }
}

fn write_synced(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::write(&path, text).expect("write");
    fs::File::open(&path).and_then(|file| file.sync_all()).expect("fsync");
}

/// Kills the daemon of a mount, as a machine that is lost, and takes the mount away.
fn lose(root: &Path) {
    let stat = succeeds(kvfs(&["stat", "--json"]).arg(root));
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    let pid =
        stat["daemon"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a daemon");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it was there");
    let begun = Instant::now();
    while rustix::process::test_kill_process(pid).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not end");
        std::thread::yield_now();
    }
    let _ = kvfs(&["umount", "--force"]).arg(root).output();
}

#[test]
fn a_store_is_made_there_and_written_on_one_machine_after_the_other() {
    let Some(mut world) = World::new() else { return };
    world.create();
    let again = fails(1, kvfs(&["create", &world.address()]).env("XDG_DATA_HOME", world.path("x")));
    assert!(again.contains("already"), "{again}");
    let here = world.write("here");
    write_synced(&here, "from here", "here");
    succeeds(
        kvfs(&["run"]).arg(&here).args(["--", "sh", "-c", "echo run > run"]).current_dir(&here),
    );
    umount(&here);
    let there = world.write("there");
    assert_eq!(fs::read_to_string(there.join("from here")).expect("it is there"), "here");
    assert_eq!(fs::read_to_string(there.join("run")).expect("it is there"), "run\n");
    write_synced(&there, "from here", "there");
    umount(&there);
    let here = world.write("here");
    assert_eq!(fs::read_to_string(here.join("from here")).expect("it is there"), "there");
    let told = succeeds(kvfs(&["stat"]).arg(&here));
    assert!(told.contains(&world.address()), "{told}");
    assert_eq!(publishing(&here)["written_at_address"], true);
    umount(&here);
    // A push by hand publishes the file, which leaves it closed.
    succeeds(kvfs(&["push"]).arg(world.local_file("here")).arg(world.address()));
    let there = world.write("there");
    umount(&there);
    // A reader sees the same.
    let (mut mount, reader) = world.mount("reader", &[]);
    succeeds(&mut mount);
    assert_eq!(fs::read_to_string(reader.join("from here")).expect("it is there"), "there");
    assert!(fs::write(reader.join("new"), "").is_err());
}

#[test]
fn one_machine_writes_it_at_a_time_and_one_that_is_displaced_keeps_what_it_has() {
    let Some(mut world) = World::new() else { return };
    world.create();
    let here = world.write("here");
    write_synced(&here, "published", "1");
    awaited(&here, "it is published", |now| now["due"] == false);
    let (mut second, _) = world.mount("there", &["--write"]);
    let refused = fails(4, &mut second);
    assert!(refused.contains("open for writing by") && refused.contains("--take"), "{refused}");
    let (mut twice, _) = world.mount("here", &["--write"]);
    fails(4, &mut twice);

    let (mut taken, there) = world.mount("there", &["--take", "-o", "publish_every=0.1"]);
    succeeds(&mut taken);
    assert_eq!(fs::read_to_string(there.join("published")).expect("it is there"), "1");
    write_synced(&there, "from there", "2");
    awaited(&there, "it is published", |now| now["due"] == false);

    write_synced(&here, "only here", "3");
    awaited(&here, "it is overtaken", |now| now["overtaken"] == true);
    let said = succeeds(kvfs(&["stat"]).arg(&here));
    assert!(said.contains("TAKES NO MORE CHANGES"), "{said}");
    let refused = fs::write(here.join("more"), "4")
        .and_then(|()| fs::File::open(here.join("more")).and_then(|file| file.sync_all()));
    assert!(refused.is_err());
    assert_eq!(fs::read_to_string(here.join("only here")).expect("reads go on"), "3");
    let _ = kvfs(&["umount", "--force"]).arg(&here).output();
    let (mut again, _) = world.mount("here", &["--write", "--take"]);
    let kept = fails(1, &mut again);
    assert!(kept.contains("never published") && kept.contains("kvfs push"), "{kept}");

    // The command is the one that the hint names.
    let rescued = format!("dir:{}/rescued", world.path("share").display());
    let file = world.local_file("here");
    succeeds(kvfs(&["push"]).arg(&file).arg(&rescued));
    fs::remove_file(&file).expect("rm");
    let root = world.path("rescued.mnt");
    fs::create_dir(&root).expect("mkdir");
    world.mounts.push(root.clone());
    succeeds(kvfs(&["mount", &rescued]).arg(&root).arg("--cache").arg(world.path("cache")));
    assert_eq!(fs::read_to_string(root.join("only here")).expect("it is there"), "3");
    assert!(!there.join("only here").exists() && there.join("from there").exists());
}

#[test]
fn after_a_crash_the_machine_goes_on_and_another_one_has_to_take_it() {
    let Some(mut world) = World::new() else { return };
    world.create();
    let (mut mount, here) = world.mount("here", &["--write", "-o", "publish_every=3600"]);
    succeeds(&mut mount);
    write_synced(&here, "synced", "1");
    lose(&here);
    let (mut second, _) = world.mount("there", &["--write"]);
    fails(4, &mut second);
    let here = world.write("here");
    assert_eq!(fs::read_to_string(here.join("synced")).expect("fsync holds"), "1");
    umount(&here);
    let there = world.write("there");
    assert_eq!(fs::read_to_string(there.join("synced")).expect("it is there"), "1");
}

#[test]
fn the_local_store_that_was_published_first_is_not_published_over_it() {
    let Some(mut world) = World::new() else { return };
    let local = world.path("local.kvfs");
    succeeds(kvfs(&["create"]).arg(&local));
    succeeds(kvfs(&["push"]).arg(&local).arg(world.address()));
    let here = world.write("here");
    write_synced(&here, "from here", "1");
    let refused = fails(4, kvfs(&["push"]).arg(&local).arg(world.address()));
    assert!(refused.contains("open for writing"), "{refused}");
    umount(&here);
    let refused = fails(1, kvfs(&["push"]).arg(&local).arg(world.address()));
    assert!(refused.contains("lacks what is there"), "{refused}");
    succeeds(kvfs(&["push", "--take"]).arg(&local).arg(world.address()));
    let (mut mount, reader) = world.mount("reader", &[]);
    succeeds(&mut mount);
    assert!(!reader.join("from here").exists());
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_claimed() {
    let Some(mut world) = World::new() else { return };
    world.create();
    let head = |world: &World| fs::read(world.path("share/m/work/head")).expect("a head");
    let before = head(&world);
    let elsewhere = format!("publish=dir:{}/other", world.path("share").display());
    for flags in [&["--write", "-o", "ro"][..], &["--write", "-o", &elsewhere]] {
        let (mut mount, _) = world.mount("here", flags);
        fails(2, &mut mount);
    }
    let root = world.path("here.mnt");
    fails(2, kvfs(&["mount", "--write", &format!("{}@monday", world.address())]).arg(&root));
    let local = world.path("local.kvfs");
    succeeds(kvfs(&["create"]).arg(&local));
    fails(2, kvfs(&["mount", "--write"]).arg(&local).arg(&root));
    fails(2, kvfs(&["create", &format!("{}@monday", world.address())]).env("HOME", &root));
    let nowhere = world.path("nowhere");
    let mut mount = kvfs(&["mount", "--write", &world.address()]);
    fails(3, mount.arg(&nowhere).arg("--cache").arg(world.path("here")));
    fails(2, kvfs(&["create", "--size", "1G"]).arg(format!("dir:{}", nowhere.display())));
    let none = format!("dir:{}/none", world.path("share").display());
    let mut missing = kvfs(&["mount", "--write", &none]);
    fails(3, missing.arg(&root).arg("--cache").arg(world.path("here")));
    assert_eq!(head(&world), before);
}

#[test]
fn what_was_synced_remotely_is_there_when_the_machine_is_lost() {
    let Some(mut world) = World::new() else { return };
    world.create();
    let options = "publish_every=3600,durability=remote";
    let (mut mount, here) = world.mount("here", &["--write", "-o", options]);
    succeeds(&mut mount);
    write_synced(&here, "first", "1");
    let large = vec![7; 3 << 20];
    fs::write(here.join("large"), &large).expect("write");
    write_synced(&here, "synced", "2");
    succeeds(kvfs(&["kv", "put"]).arg(&here).args(["key", "value"]));
    succeeds(
        kvfs(&["run"]).arg(&here).args(["--", "sh", "-c", "echo run > run"]).current_dir(&here),
    );
    write_synced(&here, "last", "3");
    let said = publishing(&here);
    assert_eq!((&said["durability"], &said["failing"]), (&"remote".into(), &Value::Null), "{said}");
    let told = succeeds(kvfs(&["stat"]).arg(&here));
    assert!(told.contains("syncs wait for it"), "{told}");
    lose(&here);
    // The machine is lost with its disk.
    fs::remove_dir_all(world.path("here")).expect("rm");
    let (mut mount, there) = world.mount("there", &["--take", "-o", options]);
    succeeds(&mut mount);
    for (name, text) in [("first", "1"), ("synced", "2"), ("last", "3"), ("run", "run\n")] {
        assert_eq!(fs::read_to_string(there.join(name)).expect("it is there"), text, "{name}");
    }
    assert!(fs::read(there.join("large")).expect("it is there") == large);
    let value = succeeds(kvfs(&["kv", "get"]).arg(&there).arg("key"));
    assert_eq!(value.trim_end(), "value");
    let checked = succeeds(kvfs(&["check"]).arg(&there));
    assert!(!checked.contains("damage"), "{checked}");
    // The next mount needs no force, and finds no journal.
    umount(&there);
    let last = world.write("last");
    assert_eq!(fs::read_to_string(last.join("last")).expect("it is there"), "3");
}

#[test]
fn a_program_that_syncs_is_told_when_the_store_was_taken() {
    let Some(mut world) = World::new() else { return };
    world.create();
    let options = "publish_every=3600,durability=remote";
    let (mut mount, here) = world.mount("here", &["--write", "-o", options]);
    succeeds(&mut mount);
    write_synced(&here, "before", "1");
    let (mut mount, there) = world.mount("there", &["--take", "-o", options]);
    succeeds(&mut mount);
    assert_eq!(fs::read_to_string(there.join("before")).expect("it is there"), "1");
    let synced = fs::write(here.join("after"), "2")
        .and_then(|()| fs::File::open(here.join("after")).and_then(|file| file.sync_all()));
    assert!(synced.is_err(), "no other machine would have it");
    for wrong in ["durability=remote", "durability=both"] {
        let local = world.path("local.kvfs");
        succeeds(kvfs(&["create", "--force"]).arg(&local));
        fails(2, kvfs(&["mount", "-o", wrong]).arg(&local).arg(world.path("root")));
    }
}
