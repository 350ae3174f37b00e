//! Tests of a read-only mount of a published store by its address. It shows each state soon after
//! its publication and as a whole: files that programs have open, names, keys, snapshots and
//! clones.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::command::{ends, kvfs, succeeds};
use crate::published::{World, awaited_following, umount};
use serde_json::Value;

/// A store that is mounted to be written, published, and followed by another mount.
struct Pair {
    world: World,
    here: PathBuf,
    there: PathBuf,
    generation: u64,
}

impl Pair {
    fn new(options: &str, begin: impl FnOnce(&Path)) -> Option<Pair> {
        let mut world = World::new()?;
        let store = world.path("my.kvfs");
        succeeds(kvfs(&["create"]).arg(&store));
        let here = world.mount(&store, "here", "");
        begin(&here);
        succeeds(kvfs(&["push"]).arg(&here).arg(world.address()));
        let address = PathBuf::from(world.address());
        let there = world.mount(&address, "there", options);
        Some(Pair { world, here, there, generation: 1 })
    }

    /// Publishes the local state, and waits until the follower shows it.
    #[track_caller]
    fn publish(&mut self) -> Value {
        succeeds(kvfs(&["push"]).arg(&self.here).arg(self.world.address()));
        self.generation += 1;
        let generation = self.generation;
        awaited_following(&self.there, "it is shown", |now| now["generation"] == generation)
    }

    #[track_caller]
    fn there(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.there.join(name)).ok()
    }
}

fn names(dir: &Path) -> Vec<String> {
    let all = fs::read_dir(dir).expect("a directory");
    let mut names: Vec<_> = all
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_published_is_shown_in_what_is_mounted_and_open() {
    let begin = |here: &Path| {
        fs::create_dir_all(here.join("dir/deep")).expect("mkdir");
        fs::write(here.join("dir/changed"), "before").expect("write");
        fs::write(here.join("dir/removed"), "before").expect("write");
        fs::write(here.join("large"), vec![1; 3 << 20]).expect("write");
        fs::write(here.join("same"), "same").expect("write");
        succeeds(kvfs(&["kv", "put"]).arg(here).args(["key", "1"]));
    };
    let Some(mut pair) = Pair::new("follow_every=0.1", begin) else { return };
    // The kernel knows all of it, and programs have it open.
    assert_eq!(names(&pair.there.join("dir")), ["changed", "deep", "removed"]);
    assert!(pair.there("dir/new").is_none());
    let mut changed = File::open(pair.there.join("dir/changed")).expect("open");
    let large = File::open(pair.there.join("large")).expect("open");
    let mut removed = File::open(pair.there.join("dir/removed")).expect("open");
    let mut text = String::new();
    changed.read_to_string(&mut text).expect("read");
    let mut byte = [0];
    large.read_exact_at(&mut byte, 2 << 20).expect("read");
    assert_eq!((&*text, byte), ("before", [1]));

    fs::write(pair.here.join("dir/changed"), "after, and longer").expect("write");
    fs::write(pair.here.join("dir/new"), "new").expect("write");
    fs::remove_file(pair.here.join("dir/removed")).expect("unlink");
    fs::rename(pair.here.join("dir/deep"), pair.here.join("moved")).expect("rename");
    fs::write(pair.here.join("large"), vec![2; 3 << 20]).expect("write");
    succeeds(kvfs(&["kv", "put"]).arg(&pair.here).args(["key", "2"]));
    succeeds(kvfs(&["snapshot", "create"]).arg(&pair.here).arg("monday"));
    succeeds(kvfs(&["clone", "create"]).arg(&pair.here).args(["monday", "branch"]));
    let now = pair.publish();
    assert_eq!(now["followed"], 1, "{now}");
    assert_eq!(names(&pair.there.join("dir")), ["changed", "new"]);
    assert_eq!(pair.there("dir/changed").as_deref(), Some("after, and longer"));
    assert_eq!(pair.there("dir/new").as_deref(), Some("new"));
    assert!(pair.there.join("moved").is_dir() && !pair.there.join("dir/deep").exists());
    text.clear();
    changed.rewind().expect("seek");
    changed.read_to_string(&mut text).expect("read");
    large.read_exact_at(&mut byte, 2 << 20).expect("read");
    assert_eq!((&*text, byte), ("after, and longer", [2]), "what is open shows it");
    // A file that was removed there is stale.
    removed.rewind().expect("seek");
    let stale = removed.read_to_string(&mut text).expect_err("it is gone");
    assert_eq!(stale.raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()));
    assert_eq!(pair.there("same").as_deref(), Some("same"));
    let value = succeeds(kvfs(&["kv", "get"]).arg(&pair.there).arg("key"));
    assert_eq!(value.trim_end(), "2");
    // Snapshots and clones were transferred, too.
    let snapshots = pair.there.join(".kvfs/snapshot");
    assert_eq!(names(&snapshots), ["monday"]);
    assert_eq!(names(&pair.there.join(".kvfs/clone")), ["branch"]);
    let of_monday = fs::read_to_string(snapshots.join("monday/dir/changed")).expect("read");
    assert_eq!(of_monday, "after, and longer");
    let in_branch = pair.there.join(".kvfs/clone/branch/dir/changed");
    assert_eq!(fs::read_to_string(&in_branch).expect("read"), "after, and longer");

    // An open clone follows, too, and a dropped snapshot disappears.
    fs::write(pair.here.join(".kvfs/clone/branch/dir/changed"), "in the clone").expect("write");
    succeeds(kvfs(&["snapshot", "drop"]).arg(&pair.here).arg("monday"));
    fs::write(pair.here.join("dir/changed"), "third").expect("write");
    pair.publish();
    assert_eq!(fs::read_to_string(&in_branch).expect("read"), "in the clone");
    assert_eq!(pair.there("dir/changed").as_deref(), Some("third"));
    assert_eq!(names(&snapshots), [""; 0]);
    assert!(!snapshots.join("monday/dir/changed").exists());
    let told = succeeds(kvfs(&["stat"]).arg(&pair.there));
    assert!(told.contains("follows") && told.contains("generation 3"), "{told}");
    drop((changed, large, removed));
    umount(&pair.there);

    // The next mount uses the fetched data as well, and stays at its initial state if asked to.
    let address = PathBuf::from(pair.world.address());
    pair.there = pair.world.mount(&address, "again", "follow_every=0");
    assert_eq!(pair.there("dir/changed").as_deref(), Some("third"));
    let stat = succeeds(kvfs(&["stat", "--json"]).arg(&pair.there));
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    assert!(stat["following"].is_null(), "{stat}");
    let remote = &stat["remote"]["by_purpose"];
    let bytes = remote.as_object().expect("purposes").values().map(|p| p["bytes"].as_u64());
    assert!(bytes.flatten().sum::<u64>() < 1 << 20, "{remote}");
}

#[test]
fn programs_that_watch_the_mount_are_told() {
    let begin = |here: &Path| {
        fs::create_dir(here.join("dir")).expect("mkdir");
        succeeds(kvfs(&["kv", "put"]).arg(here).args(["key", "1"]));
    };
    let Some(mut pair) = Pair::new("follow_every=0.1", begin) else { return };
    let changes = |since: &[&str]| succeeds(kvfs(&["changes"]).arg(&pair.there).args(since));
    let at = changes(&[]);
    fs::write(pair.here.join("dir/new"), "new").expect("write");
    succeeds(kvfs(&["kv", "put"]).arg(&pair.here).args(["key", "2"]));
    succeeds(kvfs(&["kv", "put"]).arg(&pair.here).args(["another", "1"]));
    pair.publish();
    let told = succeeds(kvfs(&["changes"]).arg(&pair.there).args(["--since", at.trim()]));
    for what in ["dir/new", "key", "another"] {
        assert!(told.contains(what), "{what}: {told}");
    }
}

#[test]
fn a_place_that_is_gone_is_said_and_followed_again() {
    let begin = |here: &Path| fs::write(here.join("file"), "1").expect("write");
    let Some(mut pair) = Pair::new("follow_every=0.1", begin) else { return };
    assert_eq!(pair.there("file").as_deref(), Some("1"));
    let (share, away) = (pair.world.path("share/m"), pair.world.path("share/away"));
    fs::rename(&share, &away).expect("rename");
    awaited_following(&pair.there, "it fails", |now| now["failing"].is_string());
    assert_eq!(pair.there("file").as_deref(), Some("1"), "what is shown stays");
    fs::rename(&away, &share).expect("rename");
    fs::write(pair.here.join("file"), "2").expect("write");
    pair.publish();
    assert_eq!(pair.there("file").as_deref(), Some("2"));

    // A store that is taken back is shown as it was, and one of another kind is not followed.
    succeeds(&mut kvfs(&["unpublish", "--yes", &pair.world.address()]));
    awaited_following(&pair.there, "it fails", |now| now["failing"].is_string());
    let other = pair.world.path("other.kvfs");
    succeeds(kvfs(&["create"]).arg(&other));
    succeeds(kvfs(&["push"]).arg(&other).arg(pair.world.address()));
    awaited_following(&pair.there, "it has ended", |now| now["ended"] == true);
    let told = succeeds(kvfs(&["stat"]).arg(&pair.there));
    assert!(told.contains("NOT FOLLOWED ANY MORE"), "{told}");
    assert_eq!(pair.there("file").as_deref(), Some("2"));
}

#[test]
fn words_that_make_no_sense_are_refused() {
    let Some(mut world) = World::new() else { return };
    let store = world.path("my.kvfs");
    succeeds(kvfs(&["create"]).arg(&store));
    for (options, says) in [
        ("follow_every=-1", "number of seconds"),
        ("follow_every=", "number of seconds"),
        ("follow=dir:/srv/work@monday", "not a snapshot"),
        ("follow=/srv/work", "follow"),
    ] {
        let root = world.path("root");
        fs::create_dir_all(&root).expect("mkdir");
        let (ended, out, err) = ends(kvfs(&["mount"]).arg(&store).arg(&root).args(["-o", options]));
        assert!(ended == Some(2) && err.contains(says), "{options}: {ended:?} {out}{err}");
    }
    // A local store has nothing to follow.
    let root = world.mount(&store, "here", "");
    umount(&root);
    let address = world.address();
    let root = world.path("root");
    let follow = format!("ro,follow={address}");
    fs::create_dir_all(world.path("share")).expect("mkdir");
    let (ended, out, err) = ends(kvfs(&["mount"]).arg(&store).arg(&root).args(["-o", &follow]));
    assert!(ended != Some(0) && err.contains("cannot follow"), "{ended:?} {out}{err}");
}
