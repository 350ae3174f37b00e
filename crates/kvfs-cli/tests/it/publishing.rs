//! Tests of a mount that publishes its store by itself. Commits are published soon afterwards, the
//! place gets no requests while nothing changes, and the mount yields to another machine that
//! publishes the store.

use std::fs;
use std::time::{Duration, Instant};

use crate::command::{ends, kvfs, succeeds};
use crate::published::{World, awaited, publishing, umount};
use serde_json::Value;

fn all_is_there(now: &Value) -> bool {
    now["due"] == false && now["generation"].is_u64()
}

#[test]
fn what_was_committed_is_published_by_itself_and_at_the_end() {
    let Some(mut world) = World::new() else { return };
    let (store, address) = (world.path("my.kvfs"), world.address());
    succeeds(kvfs(&["create"]).arg(&store));
    let options = format!("publish={address},publish_every=0.1");
    let root = world.mount(&store, "mine", &options);
    let file = root.join("file");
    for round in 0..5 {
        fs::write(&file, format!("round {round}")).expect("write");
        fs::File::open(&file).and_then(|f| f.sync_all()).expect("fsync");
        awaited(&root, "it is published", all_is_there);
        assert_eq!(world.published("file"), Some(format!("round {round}")));
    }
    let told = succeeds(kvfs(&["stat"]).arg(&root));
    assert!(told.contains("all of it") && told.contains("generation"), "{told}");

    // At rest nothing is written there.
    let before = awaited(&root, "it rests", all_is_there);
    let heads = || fs::metadata(world.path("share/m/work/head")).expect("a head").modified().ok();
    let head = heads();
    let looked = Instant::now();
    while looked.elapsed() < Duration::from_millis(700) {
        assert_eq!(publishing(&root)["publications"], before["publications"]);
    }
    assert_eq!(heads(), head);

    // A manual push works in the same way, by any name of the folder, and displaces no publisher.
    fs::write(&file, "by hand").expect("write");
    std::os::unix::fs::symlink(world.path("share"), world.path("alias")).expect("symlink");
    let alias = format!("dir:{}/work", world.path("alias").display());
    succeeds(kvfs(&["push"]).arg(&root).arg(&alias));
    let now = awaited(&root, "it goes on", all_is_there);
    assert_eq!(now["overtaken"], false, "{now}");
    assert_eq!(world.published("file").as_deref(), Some("by hand"));

    // The unmount publishes the last changes, synced or not.
    fs::write(&file, "the last word").expect("write");
    umount(&root);
    assert_eq!(world.published("file").as_deref(), Some("the last word"));
}

#[test]
fn who_is_overtaken_stops_and_says_so_until_it_is_told_to_go_on() {
    let Some(mut world) = World::new() else { return };
    let (store, address) = (world.path("my.kvfs"), world.address());
    succeeds(kvfs(&["create"]).arg(&store));
    let options = format!("publish={address},publish_every=0.1");
    let root = world.mount(&store, "mine", &options);
    awaited(&root, "it is published", all_is_there);
    umount(&root);
    // The same store on another machine.
    let twin = world.path("twin.kvfs");
    fs::copy(&store, &twin).expect("copy");
    let root = world.mount(&store, "mine", &options);
    awaited(&root, "it is published", all_is_there);
    let other = world.mount(&twin, "other", &options);
    awaited(&other, "it is published, too", all_is_there);

    fs::write(root.join("file"), "mine").expect("write");
    awaited(&root, "it is overtaken", |now| now["overtaken"] == true);
    let told = succeeds(kvfs(&["stat"]).arg(&root));
    assert!(told.contains("ANOTHER MACHINE"), "{told}");
    fs::write(other.join("file"), "the other's").expect("write");
    fs::File::open(other.join("file")).and_then(|f| f.sync_all()).expect("fsync");
    awaited(&other, "it goes on", all_is_there);
    assert_eq!(world.published("file").as_deref(), Some("the other's"));
    assert_eq!(publishing(&other)["overtaken"], false);

    // On command it takes the right back, and the other one stops.
    succeeds(kvfs(&["push"]).arg(&root).arg(&address));
    assert_eq!(world.published("file").as_deref(), Some("mine"));
    fs::write(other.join("file"), "again").expect("write");
    awaited(&other, "it is overtaken", |now| now["overtaken"] == true);
    assert_eq!(publishing(&root)["overtaken"], false);
}

#[test]
fn a_place_that_is_not_to_be_reached_stops_no_file_and_is_tried_again() {
    let Some(mut world) = World::new() else { return };
    let (store, address) = (world.path("my.kvfs"), world.address());
    succeeds(kvfs(&["create"]).arg(&store));
    let options = format!("publish={address},publish_every=0.1");
    // A folder is not created either if its parent file system is not mounted yet.
    fs::remove_dir(world.path("share")).expect("rmdir");
    let root = world.mount(&store, "mine", &options);
    let now = awaited(&root, "it fails", |now| now["failing"].is_string());
    assert!(now["generation"].is_null() && !world.path("share").exists(), "{now}");
    fs::create_dir(world.path("share")).expect("mkdir");
    awaited(&root, "it is published", all_is_there);
    // The heads are unavailable for a while. They are swapped atomically with a file, since without
    // a file the publication would end.
    let (share, away) = (world.path("share/m"), world.path("share/away"));
    fs::write(&away, "not a directory").expect("write");
    let exchanged = || {
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(rustix::fs::CWD, &share, rustix::fs::CWD, &away, flags)
    };
    exchanged().expect("exchanged");
    fs::write(root.join("file"), "meanwhile").expect("write");
    fs::File::open(root.join("file")).and_then(|f| f.sync_all()).expect("fsync");
    let now = awaited(&root, "it fails", |now| now["failing"].is_string());
    assert_eq!((now["due"].as_bool(), now["overtaken"].as_bool()), (Some(true), Some(false)));
    let told = succeeds(kvfs(&["stat"]).arg(&root));
    assert!(told.contains("IT FAILS"), "{told}");
    exchanged().expect("exchanged");
    let now = awaited(&root, "it goes on", all_is_there);
    assert_eq!(now["failing"], Value::Null, "{now}");
    assert_eq!(world.published("file").as_deref(), Some("meanwhile"));
}

#[test]
fn what_cannot_be_published_is_said_before_anything_is_mounted() {
    let Some(world) = World::new() else { return };
    let (store, root) = (world.path("my.kvfs"), world.path("mine"));
    succeeds(kvfs(&["create"]).arg(&store));
    fs::create_dir(&root).expect("mkdir");
    let fails = |options: &str, says: &str| {
        let (code, out, err) = ends(kvfs(&["mount", "-o", options]).arg(&store).arg(&root));
        assert!(code != Some(0) && err.contains(says), "{options}: {out}{err}");
        assert_eq!(fs::read_dir(&root).expect("a directory").count(), 0, "nothing is mounted");
    };
    fails("publish=work", "no address");
    fails("publish=dir:/srv/x/wo rk", "no name of a store");
    fails(&format!("ro,publish={}", world.address()), "read-only");
    // A name belongs to one store.
    let other = world.path("other.kvfs");
    succeeds(kvfs(&["create"]).arg(&other));
    succeeds(kvfs(&["push"]).arg(&other).arg(world.address()));
    fails(&format!("publish={}", world.address()), "another store");
}
