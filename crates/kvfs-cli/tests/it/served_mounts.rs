//! Tests of mounts of transactions on a server. They are written on the client, and committed or
//! aborted on the server.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::served_place::{Place, TRY_AGAIN, awaits, kvfs, said, succeeds};

/// Owners, kinds, modes, sizes and contents below a directory, as find(1) and sha256sum(1) see
/// them.
#[track_caller]
fn seen(dir: &Path) -> String {
    let script = "find . -path ./.kvfs -prune -o -printf '%P %y %m %u %l %n\\n' | sort
        find . -path ./.kvfs -prune -o -type f -print0 | sort -z | xargs -0 sha256sum";
    let mut shell = Command::new("sh");
    let output = shell.arg("-c").arg(script).current_dir(dir).output().expect("sh runs");
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_is_written_in_a_mount_over_the_wire_is_in_the_store_after_its_commit() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    succeeds(&mut place.mount("one"));
    let mnt = place.path("one");
    let script = "
        mkdir -p src/deep && cd src
        for i in $(seq 300); do echo \"file $i\" >file$i; done
        head -c 3000000 /dev/zero >deep/zeros
        ln -s ../file1 deep/link && ln file2 deep/hard
        rm file3 && mv file4 deep/moved && echo more >>file5
        rm -r ../a/b && mv ../a/file7 ../a/file8
        truncate -s 5000 ../a/file9 && chmod 600 ../a/file10
        dd if=/dev/zero of=large bs=1M count=20 status=none
        sync -f .";
    let mut shell = Command::new("sh");
    succeeds(shell.arg("-ec").arg(script).current_dir(&mnt));
    let made = seen(&mnt);
    assert!(made.contains("src/deep/hard"), "{made}");
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    assert!(!mnt.join("src").exists(), "it is unmounted");
    // Another mount sees the change, and so does a local one.
    succeeds(&mut place.mount("two"));
    assert_eq!(seen(&place.path("two")), made);
    let output = succeeds(kvfs().arg("umount").arg(place.path("two")));
    assert!(said(&output).contains("was aborted"), "{}", said(&output));
    serving.ends_when_asked();
    place.has("/src/file5", Some("file 5\nmore\n"));
    succeeds(kvfs().arg("mount").arg(place.path("store")).arg(place.path("local")));
    assert_eq!(seen(&place.path("local")), made);
}

#[test]
fn of_two_mounts_that_write_one_file_the_second_ends_with_75_and_nothing_of_it_is_seen() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    for mnt in ["one", "two"] {
        succeeds(&mut place.mount(mnt));
        std::fs::write(place.path(mnt).join("a/file1"), format!("of mount {mnt}"))
            .expect("written");
        std::fs::write(place.path(mnt).join(mnt), "mine").expect("written");
    }
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    let output = place.end("commit", "two");
    assert_eq!(output.status.code(), Some(TRY_AGAIN), "{}", said(&output));
    let listed = String::from_utf8_lossy(&output.stdout);
    assert!(listed.contains("/a/file1"), "{listed}");
    // The transaction stays for inspection, and is ended manually.
    let mine = std::fs::read_to_string(place.path("two").join("a/file1")).expect("read");
    assert_eq!(mine, "of mount two");
    let output = place.end("abort", "two");
    assert!(output.status.success(), "{}", said(&output));
    assert!(!place.path("two").join("a").exists(), "it is unmounted");
    serving.ends_when_asked();
    place.has("/a/file1", Some("of mount one"));
    place.has("/one", Some("mine"));
    place.has("/two", None);
}

#[test]
fn a_tree_is_copied_at_once_in_a_mount_over_the_wire() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    succeeds(&mut place.mount("one"));
    let mnt = place.path("one");
    let text = "written in the mount ".repeat(20_000);
    std::fs::write(mnt.join("a/new"), &text).expect("written");
    assert!(!mnt.join("copy").exists(), "the kernel knows that it is not there");
    let clone = |from: &str, to: &str| {
        let mut command = kvfs();
        command.arg("clone-tree").arg(mnt.join(from)).arg(mnt.join(to));
        command.output().expect("kvfs runs")
    };
    let output = clone("a", "copy");
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("102 files and 2 directories"), "{}", said(&output));
    assert_eq!(seen(&mnt.join("copy")), seen(&mnt.join("a")));
    std::fs::write(mnt.join("copy/file1"), "changed").expect("written");
    assert_eq!(std::fs::read_to_string(mnt.join("a/file1")).expect("read"), "1 ".repeat(7));
    // Copies into a directory, under its own name, and never over existing files.
    assert!(clone("a/new", "copy/b").status.success());
    let output = clone("a/new", "copy/b");
    assert!(!output.status.success() && said(&output).contains("exists"), "{}", said(&output));
    let output = clone("a/missing", "other");
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    serving.ends_when_asked();
    place.has("/copy/new", Some(&text));
    place.has("/copy/b/new", Some(&text));
    place.has("/copy/file1", Some("changed"));
    place.has("/a/file1", Some(&"1 ".repeat(7)));
}

#[test]
fn a_mount_whose_daemon_is_killed_leaves_nothing_and_an_unmount_aborts() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    succeeds(&mut place.mount("one"));
    std::fs::write(place.path("one").join("new"), "gone").expect("written");
    let output = succeeds(kvfs().arg("umount").arg(place.path("one")));
    assert!(said(&output).contains("was aborted"), "{}", said(&output));
    let output = succeeds(place.mount("two").arg("--json"));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let pid = told["pid"].as_i64().expect("its daemon") as i32;
    std::fs::write(place.path("two").join("new"), "gone").expect("written");
    let pid = rustix::process::Pid::from_raw(pid).expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is there");
    awaits("the mount is dead", || std::fs::metadata(place.path("two")).is_err());
    succeeds(kvfs().arg("umount").arg(place.path("two")));
    serving.ends_when_asked();
    place.has("/new", None);
}

/// A file that only its owner can read.
fn private_file(place: &Place, content: &str) -> PathBuf {
    let file = place.path("key");
    std::fs::write(&file, content).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("set");
    file
}

/// The text is neither in the arguments of a mount's daemon, which all users can read, nor in its
/// environment, which its user can read. `--json` has reported the process of the daemon.
#[track_caller]
fn assert_no_process_shows(mounted: &Output, text: &str) {
    let told: serde_json::Value = serde_json::from_slice(&mounted.stdout).expect("JSON");
    let arguments = std::fs::read(format!("/proc/{}/cmdline", told["pid"])).expect("it is there");
    let arguments = String::from_utf8_lossy(&arguments);
    assert!(arguments.contains("--txn"), "{arguments}");
    assert!(!arguments.contains(text), "{arguments}");
    let environment = std::fs::read(format!("/proc/{}/environ", told["pid"])).expect("it is there");
    let environment = String::from_utf8_lossy(&environment);
    assert!(!environment.contains(text), "{environment}");
}

#[test]
fn a_durable_transaction_outlives_its_server_and_its_mount() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    let mounted = said(&succeeds(place.mount("one").arg("--durable")));
    let write = |at: &str, name: &str| {
        let mut file = std::fs::File::create(place.path(at).join(name)).expect("made");
        file.write_all(name.as_bytes()).expect("written");
        file.sync_all().expect("synced");
    };
    write("one", "first");
    // The server is killed, and synced data is on its disk.
    drop(serving);
    let serving = place.serve();
    write("one", "second");
    assert_eq!(std::fs::metadata(place.path("one").join("first")).expect("there").size(), 5);
    let output = succeeds(kvfs().arg("umount").arg(place.path("one")));
    let told = said(&output);
    let key = told.split("--key ").nth(1).expect("the key of the transaction").trim();
    let key: String = key.chars().take_while(char::is_ascii_hexdigit).collect();
    assert!(mounted.contains(&format!("--key {key} ")), "{mounted}");
    let output = succeeds(place.mount("two").args(["--json", "--key", &key]));
    assert_no_process_shows(&output, &key);
    succeeds(kvfs().arg("umount").arg(place.path("two")));
    let file = private_file(&place, &format!("{key}\n"));
    let output = succeeds(place.mount("two").arg("--json").arg("--key-file").arg(&file));
    assert_no_process_shows(&output, &key);
    write("two", "third");
    let output = place.end("commit", "two");
    assert!(output.status.success(), "{}", said(&output));
    drop(serving);
    for name in ["first", "second", "third"] {
        place.has(&format!("/{name}"), Some(name));
    }
}

#[test]
fn a_durable_transaction_of_a_clone_is_committed_to_the_clone() {
    let Some(place) = Place::new() else { return };
    let store = place.path("store");
    succeeds(kvfs().args(["snapshot", "create"]).arg(&store).arg("base"));
    succeeds(kvfs().args(["clone", "create"]).arg(&store).args(["base", "attempt"]));
    let serving = place.serve();
    succeeds(place.mount("one").args(["--durable", "--clone", "attempt"]));
    let made = place.path("one").join("made");
    std::fs::write(&made, "made").expect("written");
    std::fs::File::open(&made).and_then(|file| file.sync_all()).expect("synced");
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    drop(serving);
    place.has("/made", None);
    succeeds(kvfs().arg("mount").arg(&store).arg(place.path("local")));
    let there = place.path("local").join(".kvfs/clone/attempt/made");
    assert_eq!(std::fs::read(there).expect("read"), b"made");
}

#[test]
fn a_writer_goes_on_over_servers_that_are_killed_and_its_commit_is_told_once() {
    const FILES: usize = 120;
    let Some(place) = Place::new() else { return };
    let mut serving = place.serve();
    succeeds(place.mount("one").arg("--durable"));
    let (mnt, written) = (place.path("one"), AtomicUsize::new(0));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for i in 0..FILES {
                let mut file = std::fs::File::create(mnt.join(format!("file{i}"))).expect("made");
                file.write_all(format!("content {i}").as_bytes()).expect("written");
                file.sync_all().expect("synced");
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Each kill is in the middle of its work.
        for kill in 1..6 {
            awaits("it goes on", || written.load(Ordering::Relaxed) > kill * FILES / 8);
            serving.kill();
            serving = place.serve();
        }
    });
    // One more kill during the commit: the client repeats the request, and the transaction is
    // committed once.
    let mut commit = kvfs();
    let commit = commit.arg("commit").arg(&mnt).stdout(Stdio::piped()).stderr(Stdio::piped());
    let commit = commit.spawn().expect("kvfs runs");
    drop(serving);
    let serving = place.serve();
    let output = commit.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", said(&output));
    serving.ends_when_asked();
    place.has("/file0", Some("content 0"));
    succeeds(kvfs().arg("mount").arg(place.path("store")).arg(place.path("local")));
    for i in 0..FILES {
        let content = std::fs::read_to_string(place.path("local").join(format!("file{i}")));
        assert_eq!(content.expect("it is there"), format!("content {i}"));
    }
}

#[test]
fn a_store_that_is_mounted_lets_mounts_elsewhere_write_where_that_was_asked_for() {
    let Some(place) = Place::new() else { return };
    let local = |options: &str| {
        let options = format!("serve=unix:{}{options}", place.path("socket").display());
        let mut command = kvfs();
        command.args(["mount", "-o", &options]).arg(place.path("store")).arg(place.path("local"));
        succeeds(&mut command);
    };
    local("");
    let refused = place.mount("one").output().expect("kvfs runs");
    assert!(!refused.status.success());
    assert!(said(&refused).contains("read only"), "{}", said(&refused));
    succeeds(kvfs().arg("umount").arg(place.path("local")));
    local(",serve_write");
    std::fs::write(place.path("local").join("here"), "of the mount").expect("written");
    succeeds(&mut place.mount("one"));
    let read = |at: &str, name: &str| std::fs::read_to_string(place.path(at).join(name)).ok();
    assert_eq!(read("one", "here").as_deref(), Some("of the mount"));
    std::fs::write(place.path("one").join("there"), "of the guest").expect("written");
    // Both ends count the bytes on the wire.
    for (at, of) in [("one", "/transaction/requests"), ("local", "/served")] {
        let output = succeeds(kvfs().args(["--json", "stat"]).arg(place.path(at)));
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let counted = all.pointer(of).and_then(|all| all.as_array()).expect("counts");
        let begun = counted.iter().find(|one| one["request"] == "BEGIN").expect("it has begun");
        assert!(begun["asked"].as_u64() > Some(30) && begun["answered"].as_u64() > Some(30));
        assert!(all.pointer("/transaction/key").is_none(), "it is told to none but its owner");
        let shown = said(&succeeds(kvfs().arg("stat").arg(place.path(at))));
        assert!(shown.contains("1 BEGIN: "), "{shown}");
    }
    std::fs::write(place.path("one").join("here"), "changed").expect("written");
    assert_eq!(read("local", "there"), None);
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(read("local", "there").as_deref(), Some("of the guest"));
    assert_eq!(read("local", "here").as_deref(), Some("changed"));
    // The reverse: a local write is a conflict on the server.
    succeeds(&mut place.mount("two"));
    std::fs::write(place.path("two").join("here"), "again").expect("written");
    std::fs::write(place.path("local").join("here"), "first").expect("written");
    let output = place.end("commit", "two");
    assert_eq!(output.status.code(), Some(TRY_AGAIN), "{}", said(&output));
    assert_eq!(read("local", "here").as_deref(), Some("first"));
}

#[test]
fn a_file_that_is_copied_in_a_mount_is_not_sent() {
    let Some(place) = Place::new() else { return };
    let serving = place.serve();
    succeeds(&mut place.mount("one"));
    let mnt = place.path("one");
    let bytes = || -> u64 {
        let output = succeeds(kvfs().args(["--json", "stat"]).arg(&mnt));
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let counted = all.pointer("/transaction/requests").and_then(|all| all.as_array());
        let each =
            counted.expect("counts").iter().flat_map(|one| [&one["asked"], &one["answered"]]);
        each.map(|bytes| bytes.as_u64().expect("a number")).sum()
    };
    let before = bytes();
    // This is done by copy_file_range, as cp does it.
    std::fs::copy(mnt.join("a/b/large"), mnt.join("copy")).expect("copied");
    std::fs::File::open(mnt.join("copy")).and_then(|file| file.sync_all()).expect("synced");
    let after = bytes();
    assert!(after - before < 256 << 10, "{} bytes for a file of a megabyte", after - before);
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    serving.ends_when_asked();
    place.has("/copy", Some(&"\u{7}".repeat(1 << 20)));
}

#[test]
fn a_snapshot_made_by_the_address_has_what_programs_have_just_written_where_the_store_is() {
    let Some(place) = Place::new() else { return };
    let local = place.path("local");
    let mut command = kvfs();
    let options = format!("serve=unix:{},serve_write", place.path("socket").display());
    command.args(["mount", "-o", &options]).arg(place.path("store")).arg(&local);
    succeeds(&mut command);
    let snapshot = |verb: &str, words: &[&str]| {
        let mut command = kvfs();
        command.args(["--json", "snapshot", verb]).arg(place.address()).args(words);
        command
    };
    std::fs::write(local.join("new"), "just written").expect("written");
    succeeds(&mut snapshot("create", &["monday"]));
    std::fs::write(local.join("new"), "later").expect("written");
    let kept = std::fs::read_to_string(local.join(".kvfs/snapshot/monday/new"));
    assert_eq!(kept.expect("it is there"), "just written");
    let listed = succeeds(&mut snapshot("list", &[]));
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    assert_eq!(listed[0]["name"], "monday", "{listed}");
    let shown = said(&succeeds(kvfs().args(["snapshot", "list"]).arg(place.address())));
    assert!(shown.contains("CREATED") && shown.contains("  monday\n"), "{shown}");
    let again = snapshot("create", &["monday"]).output().expect("kvfs runs");
    assert_eq!(again.status.code(), Some(1), "{}", said(&again));
    succeeds(&mut snapshot("drop", &["monday"]));
    assert!(!local.join(".kvfs/snapshot/monday").exists());
    let gone = snapshot("drop", &["monday"]).output().expect("kvfs runs");
    assert_eq!(gone.status.code(), Some(3), "{}", said(&gone));
    let back = snapshot("rollback", &["monday"]).output().expect("kvfs runs");
    assert_eq!(back.status.code(), Some(2), "{}", said(&back));
    succeeds(kvfs().arg("umount").arg(&local));
}

#[test]
fn words_that_do_not_fit_are_refused() {
    let Some(place) = Place::new() else { return };
    let _serving = place.serve();
    let refused = |command: &mut Command, code: i32, what: &str| {
        let output = command.output().expect("kvfs runs");
        assert_eq!(output.status.code(), Some(code), "{}", said(&output));
        assert!(said(&output).contains(what), "{}", said(&output));
    };
    refused(place.mount("one").args(["--snapshot", "s"]), 2, "a snapshot does not change");
    refused(place.mount("one").args(["--key", "12"]), 2, "32 digits");
    refused(place.mount("one").args(["--key", &"0".repeat(32)]), 1, "is over");
    let file = private_file(&place, "12\n");
    refused(place.mount("one").arg("--key-file").arg(&file), 2, "32 digits");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("set");
    refused(place.mount("one").arg("--key-file").arg(&file), 2, "every user may use the file");
    refused(place.mount("one").args(["-o", "clone=none"]), 1, "none");
    refused(kvfs().arg("commit").arg(place.path("one")), 3, "no store is mounted");
    let mut local = kvfs();
    local.args(["mount", "--txn"]).arg(place.path("store")).arg(place.path("one"));
    refused(&mut local, 2, "no address of a server");
}
