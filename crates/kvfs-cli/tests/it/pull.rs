//! Tests of a complete copy of a store in object storage, and of stores that are mounted without
//! their place. Local data can be read and written without a request.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{ends, kvfs, succeeds};
use crate::published::{World, umount};
use serde_json::Value;

/// A store that is published: files, a key, a snapshot.
fn publish(world: &mut World) -> (PathBuf, Vec<u8>) {
    let store = world.path("my.kvfs");
    succeeds(kvfs(&["create"]).arg(&store));
    let here = world.mount(&store, "here", "");
    let mut large = vec![0; 5 << 20];
    env::Random::new(3).fill(&mut large);
    fs::write(here.join("large"), &large).expect("write");
    fs::write(here.join("small"), "first").expect("write");
    succeeds(kvfs(&["kv", "put"]).arg(&here).args(["key", "value"]));
    succeeds(kvfs(&["snapshot", "create"]).arg(&here).arg("monday"));
    succeeds(kvfs(&["push"]).arg(&here).arg(world.address()));
    (here, large)
}

fn pull(world: &World, file: &Path) -> Value {
    let said = succeeds(kvfs(&["--json", "pull", &world.address()]).arg(file));
    serde_json::from_str(&said).expect("JSON")
}

#[track_caller]
fn fails(code: i32, command: &mut std::process::Command, says: &str) {
    let (ended, out, err) = ends(command);
    assert!(ended == Some(code) && err.contains(says), "{command:?}: {ended:?} {out}{err}");
}

#[test]
fn a_pulled_file_has_everything_and_is_read_without_the_place() {
    let Some(mut world) = World::new() else { return };
    let (here, large) = publish(&mut world);
    let file = world.path("copy.kvfs");
    assert_eq!(pull(&world, &file)["generation"], 1);
    fs::write(here.join("small"), "second").expect("write");
    succeeds(kvfs(&["push"]).arg(&here).arg(world.address()));
    let said = pull(&world, &file);
    assert_eq!(said["generation"], 2);
    assert!(said["bytes"].as_u64().is_some_and(|bytes| bytes > 5 << 20), "{said}");
    // The place has disappeared.
    let (share, away) = (world.path("share"), world.path("away"));
    fs::rename(&share, &away).expect("rename");
    let copy = world.mount(&file, "copy", "ro,offline");
    assert_eq!(fs::read_to_string(copy.join("small")).expect("read"), "second");
    assert!(fs::read(copy.join("large")).expect("read") == large);
    let monday = copy.join(".kvfs/snapshot/monday/small");
    assert_eq!(fs::read_to_string(monday).expect("read"), "first");
    let value = succeeds(kvfs(&["kv", "get"]).arg(&copy).arg("key"));
    assert_eq!(value.trim_end(), "value");
    umount(&copy);
    fs::rename(&away, &share).expect("rename");

    // The command refuses to lose changes, and does not replace other files.
    let root = world.path("copy");
    fails(2, kvfs(&["mount"]).arg(&file).arg(&root), "lost with the next pull");
    fails(4, kvfs(&["pull", &world.address()]).arg(world.path("my.kvfs")), "is mounted on");
    let text = world.path("text");
    fs::write(&text, "text").expect("write");
    fails(1, kvfs(&["pull", &world.address()]).arg(&text), "something else");
    assert_eq!(fs::read_to_string(&text).expect("read"), "text");
    let fork = world.path("fork.kvfs");
    succeeds(kvfs(&["fork", &world.address()]).arg(&fork));
    fails(1, kvfs(&["pull", &world.address()]).arg(&fork), "something else");
    let snapshot = format!("{}@monday", world.address());
    fails(2, kvfs(&["pull", &snapshot]).arg(world.path("new")), "leave out @monday");
    let none = format!("dir:{}/none", share.display());
    fails(3, kvfs(&["pull", &none]).arg(world.path("new")), "there is no store");
    assert!(!world.path("new").exists());
}

#[test]
fn what_was_fetched_is_mounted_without_the_place_and_what_was_not_is_an_error() {
    let Some(mut world) = World::new() else { return };
    let (_, large) = publish(&mut world);
    let address = PathBuf::from(world.address());
    let mount = |world: &mut World, flags: &[&str]| {
        let root = world.path("there");
        fs::create_dir_all(&root).expect("mkdir");
        let mut mount = kvfs(&["mount"]);
        mount.arg(&address).arg(&root).arg("--cache").arg(world.path("cache")).args(flags);
        world.mounts.push(root.clone());
        (mount, root)
    };
    let (mut none, _) = mount(&mut world, &["--offline"]);
    fails(3, &mut none, "nothing of");
    let there = world.mount(&address, "there", "");
    assert_eq!(fs::read_to_string(there.join("small")).expect("read"), "first");
    umount(&there);
    fs::rename(world.path("share"), world.path("away")).expect("rename");
    let (mut offline, there) = mount(&mut world, &["--offline"]);
    succeeds(&mut offline);
    assert_eq!(fs::read_to_string(there.join("small")).expect("read"), "first");
    let begun = std::time::Instant::now();
    let missing = fs::read(there.join("large")).expect_err("it was not fetched");
    assert_eq!(missing.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    assert!(begun.elapsed() < std::time::Duration::from_secs(60), "nothing is waited for");
    umount(&there);
    fs::rename(world.path("away"), world.path("share")).expect("rename");
    let there = world.mount(&address, "there", "");
    assert!(fs::read(there.join("large")).expect("read") == large);
}

#[test]
fn what_is_written_without_the_place_is_published_after_the_next_mount() {
    let Some(mut world) = World::new() else { return };
    let mut create = kvfs(&["create", &world.address()]);
    succeeds(create.env("XDG_DATA_HOME", world.path("data")));
    let mount = |world: &mut World, machine: &str, flags: &[&str]| {
        let root = world.path(&format!("{machine}.mnt"));
        fs::create_dir_all(&root).expect("mkdir");
        let mut mount = kvfs(&["mount", "--write", &world.address()]);
        mount.arg(&root).arg("--cache").arg(world.path(machine)).args(flags);
        world.mounts.push(root.clone());
        (mount, root)
    };
    let (mut none, _) = mount(&mut world, "here", &["--offline"]);
    fails(3, &mut none, "nothing of");
    let (mut online, here) = mount(&mut world, "here", &[]);
    succeeds(&mut online);
    fs::write(here.join("file"), "1").expect("write");
    umount(&here);
    fs::rename(world.path("share"), world.path("away")).expect("rename");
    let (mut offline, here) = mount(&mut world, "here", &["--offline"]);
    succeeds(&mut offline);
    assert_eq!(fs::read_to_string(here.join("file")).expect("read"), "1");
    fs::write(here.join("file"), "2").expect("write");
    umount(&here);
    fs::rename(world.path("away"), world.path("share")).expect("rename");
    let (mut online, here) = mount(&mut world, "here", &[]);
    succeeds(&mut online);
    assert_eq!(fs::read_to_string(here.join("file")).expect("read"), "2");
    umount(&here);
    let (mut there, root) = mount(&mut world, "there", &[]);
    succeeds(&mut there);
    assert_eq!(fs::read_to_string(root.join("file")).expect("read"), "2");
    umount(&root);

    // Another machine has written the store in the meantime: the data written here stays in the
    // file, and the command says so.
    let (mut offline, here) = mount(&mut world, "here", &["--offline"]);
    succeeds(&mut offline);
    fs::write(here.join("file"), "only here").expect("write");
    umount(&here);
    let (mut online, _) = mount(&mut world, "here", &[]);
    fails(1, &mut online, "never published");
    let publish = format!("publish=dir:{}/other", world.path("share").display());
    let (mut odd, _) = mount(&mut world, "here", &["--offline", "-o", &publish]);
    fails(2, &mut odd, "nothing is published");
}
