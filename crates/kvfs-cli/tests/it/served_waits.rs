//! Tests of mounts whose server has disappeared. The mount waits for it once, then calls fail at
//! once, and the mount works again with a restarted server.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::served_place::{Place, awaits, kvfs, said, succeeds};

/// Less time than a few calls would take if they waited one after the other.
const FAST: Duration = Duration::from_secs(20);

/// Returns whether the server of a mount can be reached, as `kvfs stat` reports it.
#[track_caller]
fn state(mnt: &Path) -> String {
    let output = succeeds(kvfs().args(["--json", "stat"]).arg(mnt));
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    all.pointer("/server/state").and_then(|state| state.as_str()).expect("a state").to_owned()
}

#[test]
fn a_server_that_is_gone_costs_one_wait_and_the_mount_goes_on_when_it_is_back() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    succeeds(place.mount("one").args(["--durable", "--timeout", "2"]));
    let mnt = place.path("one");
    assert_eq!(state(&mnt), "connected");
    std::fs::write(mnt.join("made"), "before").expect("written");
    drop(serving);
    let begun = Instant::now();
    for i in 0..30 {
        let read = std::fs::read(mnt.join(format!("a/none{i}"))).expect_err("it is gone");
        assert_eq!(read.raw_os_error(), Some(libc::EIO), "{read}");
    }
    let waited = begun.elapsed();
    assert!(waited > Duration::from_secs(1) && waited < FAST, "{waited:?}");
    assert_eq!(state(&mnt), "gone");
    let shown = said(&succeeds(kvfs().arg("stat").arg(&mnt)));
    assert!(shown.contains("GONE since "), "{shown}");
    let _serving = place.serve();
    awaits("the server is found", || state(&mnt) == "connected");
    let read = std::fs::read(mnt.join("a/none0")).expect_err("there is none");
    assert_eq!(read.kind(), std::io::ErrorKind::NotFound);
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn an_unmount_and_an_abort_wait_once_however_much_the_kernel_holds() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    for mnt in ["one", "two"] {
        succeeds(place.mount(mnt).args(["--timeout", "2"]));
        for i in 0..24 {
            let file = place.path(mnt).join(format!("file{i}"));
            std::fs::write(file, vec![7; 1 << 20]).expect("written");
        }
    }
    drop(serving);
    let begun = Instant::now();
    let output = succeeds(kvfs().arg("umount").arg(place.path("one")));
    assert!(said(&output).contains("was aborted"), "{}", said(&output));
    assert!(begun.elapsed() < FAST, "{:?}", begun.elapsed());
    let begun = Instant::now();
    let output = place.end("abort", "two");
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("the server ends it by itself"), "{}", said(&output));
    assert!(!place.path("two").join("file1").exists(), "it is unmounted");
    assert!(begun.elapsed() < FAST, "{:?}", begun.elapsed());
    let _serving = place.serve();
    succeeds(&mut place.mount("one"));
    assert!(!place.path("one").join("file1").exists(), "nothing of it is there");
}

#[test]
fn with_a_timeout_of_0_a_server_is_waited_for_and_an_abort_ends_that() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    // The first one outlives its server.
    succeeds(place.mount("one").args(["--timeout", "0", "--durable"]));
    succeeds(place.mount("two").args(["--timeout", "0"]));
    let synced = place.path("one").join("synced");
    std::fs::write(&synced, "with the server").expect("written");
    std::fs::File::open(&synced).and_then(|file| file.sync_all()).expect("synced");
    drop(serving);
    let read = |mnt: &str| {
        let file = place.path(mnt).join("a/file1");
        std::thread::spawn(move || std::fs::read_to_string(file))
    };
    let (goes_on, ends) = (read("one"), read("two"));
    for mnt in ["one", "two"] {
        awaits("it is waited for", || state(&place.path(mnt)) == "waiting");
    }
    let output = place.end("abort", "two");
    assert!(output.status.success(), "{}", said(&output));
    assert!(ends.join().expect("it has ended").is_err());
    assert!(!goes_on.is_finished());
    let _serving = place.serve();
    let content = goes_on.join().expect("it has ended").expect("read");
    assert_eq!(content, "1 ".repeat(7));
    assert_eq!(state(&place.path("one")), "connected");
}

#[test]
fn a_mount_of_a_snapshot_says_whether_its_server_is_there_and_a_local_one_has_none() {
    let Some(place) = Place::new() else { return };
    let store = place.path("store");
    succeeds(kvfs().args(["snapshot", "create"]).arg(&store).arg("monday"));
    let serving = place.serve();
    let mut mount = kvfs();
    mount.arg("mount").arg(place.address()).arg(place.path("one"));
    succeeds(mount.args(["--snapshot", "monday", "--timeout", "1"]));
    let mnt = place.path("one");
    assert_eq!(state(&mnt), "connected");
    let shown = said(&succeeds(kvfs().arg("stat").arg(&mnt)));
    assert!(shown.contains(" VIEW: "), "its requests are counted: {shown}");
    drop(serving);
    assert!(std::fs::read(mnt.join("a/none")).is_err());
    assert_eq!(state(&mnt), "gone");
    let output = place.end("commit", "one");
    assert!(said(&output).contains("is no transaction of a server"), "{}", said(&output));
    let mut local = kvfs();
    local.args(["mount", "--timeout", "5"]).arg(&store).arg(place.path("local"));
    let output = local.output().expect("kvfs runs");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("no address of a server"), "{}", said(&output));
}
