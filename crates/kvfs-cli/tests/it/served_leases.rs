//! Tests of mounts of the main files of a served store by their lease. One mount at a time writes
//! them, without a commit, and a mount that has lost the lease can write nothing more.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::served_place::{Place, awaits, kvfs, said, succeeds};

fn lease(place: &Place, at: &str) -> Command {
    let mut command = kvfs();
    command.arg("mount").arg(place.address()).arg(place.path(at)).arg("--lease");
    command
}

fn write(dir: &Path, name: &str, content: &str) -> std::io::Result<()> {
    let mut file = File::create(dir.join(name))?;
    file.write_all(content.as_bytes())?;
    file.sync_all()
}

fn read(dir: &Path, name: &str) -> Option<String> {
    std::fs::read_to_string(dir.join(name)).ok()
}

#[track_caller]
fn refused(command: &mut Command, what: &str) -> Output {
    let output = command.output().expect("kvfs runs");
    assert!(!output.status.success(), "{}", said(&output));
    assert!(said(&output).contains(what), "{}", said(&output));
    output
}

fn umount(place: &Place, at: &str) -> Output {
    succeeds(kvfs().arg("umount").arg(place.path(at)))
}

/// Unmounts a mount that cannot give its lease back.
#[track_caller]
fn umount_tells_of_loss(place: &Place, at: &str, why: &str) {
    let output = refused(kvfs().arg("umount").arg(place.path(at)), why);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert_eq!(told.matches("may be lost").count(), 1, "{told}");
    assert!(told.contains("what was written since the last sync may be lost: "), "{told}");
    assert!(told.contains("unmounted "), "{told}");
}

#[test]
fn a_mount_by_lease_writes_the_main_files_and_a_second_one_has_to_take_them() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let (one, two) = (place.path("one"), place.path("two"));
    succeeds(&mut lease(&place, "one"));
    std::fs::remove_file(one.join("a/file3")).expect("removed");
    // This syncs all that was done before.
    write(&one, "new", "of the first").expect("written");
    refused(&mut lease(&place, "two"), "has the lease");
    refused(kvfs().arg("commit").arg(&one), "without a commit");
    let shown = said(&succeeds(kvfs().arg("stat").arg(&one)));
    assert!(shown.contains("epoch 1") && shown.contains("1 HOLD: "), "{shown}");
    succeeds(lease(&place, "two").arg("--take"));
    assert_eq!(read(&two, "new").as_deref(), Some("of the first"), "it was synced");
    write(&one, "late", "of the first").expect_err("it has lost the lease");
    let shown = said(&succeeds(kvfs().arg("stat").arg(&one)));
    assert!(shown.contains("LOST"), "{shown}");
    write(&two, "new", "of the second").expect("written");
    umount_tells_of_loss(&place, "one", "has the lease");
    umount(&place, "two");
    // The lease was returned.
    succeeds(&mut lease(&place, "one"));
    assert_eq!(read(&one, "new").as_deref(), Some("of the second"));
    umount(&place, "one");
    serving.ends_when_asked();
    place.has("/new", Some("of the second"));
    place.has("/late", None);
    place.has("/a/file3", None);
}

#[test]
fn what_was_synced_by_lease_survives_servers_that_are_killed_and_open_files_stay() {
    const FILES: usize = 200;
    let Some(place) = Place::new() else { return };
    let mut serving = place.serve();
    succeeds(&mut lease(&place, "one"));
    let one = place.path("one");
    // The file has no name any more, and its content is in the store.
    write(&one, "nameless", &"content".repeat(100_000)).expect("written");
    let mut nameless = File::open(one.join("nameless")).expect("it is there");
    std::fs::remove_file(one.join("nameless")).expect("removed");
    let written = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for i in 0..FILES {
                write(&one, &format!("file{i}"), &format!("content {i}")).expect("written");
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        for kill in 1..5 {
            awaits("it goes on", || written.load(Ordering::Relaxed) > kill * FILES / 6);
            serving.kill();
            serving = place.serve();
        }
    });
    let mut content = String::new();
    nameless.read_to_string(&mut content).expect("read");
    assert_eq!(content, "content".repeat(100_000));
    drop(nameless);
    serving.kill();
    let serving = place.serve();
    umount(&place, "one");
    serving.ends_when_asked();
    place.has("/file0", Some("content 0"));
    place.has("/nameless", None);
    succeeds(kvfs().arg("mount").arg(place.path("store")).arg(place.path("local")));
    for i in 0..FILES {
        let content = read(&place.path("local"), &format!("file{i}"));
        assert_eq!(content, Some(format!("content {i}")));
    }
}

#[test]
fn the_main_files_are_mounted_here_or_there() {
    let Some(place) = Place::new() else { return };
    let (one, local) = (place.path("one"), place.path("local"));
    let options = format!("serve=unix:{},serve_write", place.path("socket").display());
    let mut mount = kvfs();
    mount.args(["mount", "-o", &options]).arg(place.path("store")).arg(&local);
    succeeds(&mut mount);
    refused(&mut lease(&place, "one"), "mounted where the store is");
    umount(&place, "local");
    // The files are written on the server's machine without the lease while no server runs.
    let serving = place.serve();
    succeeds(lease(&place, "one").args(["--timeout", "0"]));
    write(&one, "shared", "of the lease").expect("written");
    serving.ends_when_asked();
    succeeds(kvfs().arg("mount").arg(place.path("store")).arg(&local));
    assert_eq!(read(&local, "shared").as_deref(), Some("of the lease"));
    write(&local, "shared", "of the mount").expect("written");
    umount(&place, "local");
    let serving = place.serve();
    write(&one, "shared", "too late").expect_err("others have opened the files");
    umount_tells_of_loss(&place, "one", "others may have changed them");
    serving.ends_when_asked();
    place.has("/shared", Some("of the mount"));
}

#[test]
fn what_is_lost_with_a_lease_is_told_in_one_way_whenever_it_is_found_out() {
    let Some(place) = Place::new() else { return };
    let mut serving = place.serve();
    // The mount does not know yet that another one has the files.
    succeeds(&mut lease(&place, "one"));
    std::fs::write(place.path("one").join("late"), "not synced").expect("written");
    succeeds(lease(&place, "two").arg("--take"));
    umount_tells_of_loss(&place, "one", "has the lease");
    umount(&place, "two");
    // The server has disappeared.
    succeeds(lease(&place, "one").args(["--timeout", "1"]));
    std::fs::write(place.path("one").join("last"), "not synced").expect("written");
    serving.kill();
    umount_tells_of_loss(&place, "one", "not to be reached");
}

/// The kernel may give the number of the one that ends to the next one.
#[test]
fn a_mount_that_ends_slowly_leaves_the_record_of_the_next_one() {
    let Some(place) = Place::new() else { return };
    let mut serving = place.serve();
    let (one, two) = (place.path("one"), place.path("two"));
    succeeds(lease(&place, "one").args(["--timeout", "3"]));
    std::fs::write(one.join("last"), "not synced").expect("written");
    serving.kill();
    succeeds(kvfs().arg("create").arg(place.path("other")));
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| umount_tells_of_loss(&place, "one", "not to be reached"));
        let shown = one.to_str().expect("UTF-8");
        awaits("it is unmounted", || {
            !std::fs::read_to_string("/proc/self/mountinfo").expect("read").contains(shown)
        });
        succeeds(kvfs().arg("mount").arg(place.path("other")).arg(&two));
        ends.join().expect("it has told");
    });
    succeeds(kvfs().arg("stat").arg(&two));
    umount(&place, "two");
}

/// The client would continue with other files than those that it has read.
#[test]
fn a_rollback_of_the_files_ends_their_lease() {
    let Some(place) = Place::new() else { return };
    let (one, store) = (place.path("one"), place.path("store"));
    succeeds(kvfs().args(["snapshot", "create"]).arg(&store).arg("before"));
    let serving = place.serve();
    succeeds(lease(&place, "one").args(["--timeout", "0"]));
    std::fs::create_dir(one.join("made")).expect("made");
    write(&one, "made/file", "of the lease").expect("written");
    serving.ends_when_asked();
    succeeds(kvfs().args(["snapshot", "rollback"]).arg(&store).arg("before"));
    let serving = place.serve();
    write(&one, "made/late", "too late").expect_err("the files are others");
    umount_tells_of_loss(&place, "one", "others may have changed them");
    serving.ends_when_asked();
    place.has("/made", None);
    assert!(said(&succeeds(kvfs().arg("check").arg(&store))).contains("clean"));
}

#[test]
fn a_stream_that_replaces_the_files_ends_their_lease() {
    let Some(place) = Place::new() else { return };
    let (one, store) = (place.path("one"), place.path("store"));
    let (other, stream) = (place.path("other"), place.path("stream"));
    succeeds(kvfs().arg("create").arg(&other));
    succeeds(kvfs().arg("import").arg(&other).arg(place.path("tree")));
    succeeds(kvfs().args(["snapshot", "create"]).arg(&other).arg("monday"));
    succeeds(kvfs().arg("send").arg(&other).args(["monday", "-o"]).arg(&stream));
    let serving = place.serve();
    succeeds(lease(&place, "one").args(["--timeout", "0"]));
    std::fs::create_dir(one.join("made")).expect("made");
    write(&one, "made/file", "of the lease").expect("written");
    serving.ends_when_asked();
    let mut receive = kvfs();
    receive.arg("receive").arg(&store).arg("--replace").arg("-i").arg(&stream);
    succeeds(&mut receive);
    let serving = place.serve();
    write(&one, "made/late", "too late").expect_err("the files are others");
    umount_tells_of_loss(&place, "one", "others may have changed them");
    serving.ends_when_asked();
    place.has("/made", None);
    assert!(said(&succeeds(kvfs().arg("check").arg(&store))).contains("clean"));
}

#[test]
fn a_transaction_commits_when_the_mount_by_lease_has_ended() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    succeeds(&mut place.mount("two"));
    write(&place.path("two"), "of the transaction", "seen later").expect("written");
    succeeds(&mut lease(&place, "one"));
    write(&place.path("one"), "of the lease", "seen at once").expect("written");
    refused(kvfs().arg("commit").arg(place.path("two")), "has the lease");
    umount(&place, "one");
    let output = place.end("commit", "two");
    assert!(output.status.success(), "{}", said(&output));
    serving.ends_when_asked();
    place.has("/of the transaction", Some("seen later"));
    place.has("/of the lease", Some("seen at once"));
}

#[test]
fn words_that_do_not_fit_a_lease_are_refused() {
    let Some(place) = Place::new() else { return };
    let _serving = place.serve();
    refused(lease(&place, "one").arg("--txn"), "cannot be used with");
    refused(lease(&place, "one").args(["--snapshot", "s"]), "cannot be used with");
    refused(lease(&place, "one").args(["-o", "ro"]), "which are written");
    refused(lease(&place, "one").args(["-o", "clone=c"]), "which are written");
    let mut local = kvfs();
    local.args(["mount", "--lease"]).arg(place.path("store")).arg(place.path("one"));
    refused(&mut local, "no address of a server");
}
