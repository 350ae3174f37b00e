//! Tests of a store in a shared folder. It is published from a file or a mount, mounted elsewhere
//! with the same content, and forked into an independent store. Commands explain everything that is
//! not possible.

use crate::command;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{ends, succeeds};
use crate::mounted::Mount;

fn kvfs(words: &[&str]) -> Command {
    let mut command = command::kvfs(words);
    // The endpoint is that of the server that scripts/remote_servers.sh has started.
    if let Ok(endpoint) = std::env::var("KVFS_S3_ENDPOINT") {
        command.env("AWS_ENDPOINT_URL", endpoint);
    }
    command
}

#[track_caller]
fn fails(command: &mut Command, code: i32, says: &str) {
    let (ended, out, err) = ends(command);
    assert!(ended == Some(code) && err.contains(says), "{command:?}: {ended:?} {out}{err}");
}

fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    env::Random::new(7).fill(&mut bytes);
    bytes
}

/// A mount of something by its address, unmounted when dropped.
struct There {
    root: PathBuf,
}

impl There {
    fn mount(directory: &Path, name: &str, source: &str, options: &[&str]) -> There {
        let root = directory.join(name);
        fs::create_dir_all(&root).expect("mkdir");
        let cache = directory.join("cache");
        let mut mount = kvfs(&["mount", source]);
        mount.arg(&root).args(options);
        if source.contains(':') && !options.contains(&"--cache") {
            mount.arg("--cache").arg(cache);
        }
        succeeds(&mut mount);
        There { root }
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.root.join(name)).ok()
    }
}

impl Drop for There {
    fn drop(&mut self) {
        let _ = kvfs(&["umount", "--force"]).arg(&self.root).output();
    }
}

/// A folder, and the address of a store in it.
fn folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let address = format!("dir:{}/share/work", folder.path().display());
    (folder, address)
}

fn files_of(root: &Path) -> usize {
    let of = |entry: fs::DirEntry| match entry.path() {
        path if path.is_dir() => files_of(&path),
        _ => 1,
    };
    fs::read_dir(root).map_or(0, |all| all.flatten().map(of).sum())
}

#[test]
fn a_mounted_store_is_published_and_seen_elsewhere_as_it_was() {
    let Some(mount) = Mount::new() else { return };
    let (folder, address) = folder();
    fs::create_dir(mount.path("dir")).expect("mkdir");
    let large = noise(3_000_000);
    fs::write(mount.path("dir/large"), &large).expect("write");
    fs::write(mount.path("small"), "first").expect("write");
    succeeds(kvfs(&["kv", "put"]).arg(mount.root()).args(["key", "value"]));
    succeeds(kvfs(&["snapshot", "create"]).arg(mount.root()).arg("monday"));
    fs::write(mount.path("small"), "second").expect("write");
    let said = succeeds(kvfs(&["push"]).arg(mount.root()).arg(&address));
    assert!(said.contains("as generation 1"), "{said}");
    fs::write(mount.path("small"), "third").expect("write");

    let there = There::mount(folder.path(), "there", &address, &[]);
    assert_eq!(there.read("small").as_deref(), Some("second"), "what was not synced, too");
    assert!(fs::read(there.root.join("dir/large")).expect("read") == large);
    let value = succeeds(kvfs(&["kv", "get"]).arg(&there.root).arg("key"));
    assert_eq!(value.trim_end(), "value");
    assert!(fs::write(there.root.join("small"), "no").is_err(), "it is read-only");
    let stat = succeeds(kvfs(&["stat", "--json"]).arg(&there.root));
    let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
    let told = succeeds(kvfs(&["stat"]).arg(&there.root));
    assert!(told.contains("in a bucket"), "{told}");
    let cached = stat["remote"]["cached_bytes"].as_u64();
    assert!(cached.is_some_and(|bytes| bytes > 3_000_000), "{}", stat["remote"]);

    // Two mounts at the same time, each with a local file of its own. One of them shows the state
    // of Monday.
    let monday = There::mount(folder.path(), "monday", &format!("{address}@monday"), &[]);
    assert_eq!(monday.read("small").as_deref(), Some("first"));
    drop(there);

    // Published again, a new mount sees it and fetches what has changed.
    succeeds(kvfs(&["push"]).arg(mount.root()).arg(&address));
    let again = There::mount(folder.path(), "again", &address, &[]);
    assert_eq!(again.read("small").as_deref(), Some("third"));
    assert_eq!(files_of(&folder.path().join("share/m")), 1, "one head");
}

/// The reads that had to wait for a request since the mount.
fn waits(root: &Path) -> u64 {
    let (_, out, _) = ends(kvfs(&["--json", "stat"]).arg(root));
    let stat: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    stat["remote"]["waits"].as_u64().expect("a figure")
}

#[test]
fn a_mount_lists_its_root_and_waits_for_no_request() {
    let Some(mount) = Mount::new() else { return };
    let (folder, address) = folder();
    for dir in 0..40 {
        fs::create_dir(mount.path(format!("dir{dir}"))).expect("mkdir");
        for file in 0..40 {
            let path = mount.path(format!("dir{dir}/file{file}"));
            fs::write(path, noise(600 + 10 * file)).expect("write");
        }
    }
    succeeds(kvfs(&["snapshot", "create"]).arg(mount.root()).arg("monday"));
    fs::write(mount.path("late"), "of tuesday").expect("write");
    let publish = || succeeds(kvfs(&["push"]).arg(mount.root()).arg(&address));
    let list = |name: &str, source: &str| {
        let cache = tempfile::tempdir().expect("a temporary directory");
        let options = ["--cache", cache.path().to_str().expect("UTF-8")];
        let there = There::mount(folder.path(), name, source, &options);
        let entries = fs::read_dir(&there.root).expect("it is listed");
        let sizes = entries.map(|entry| entry.and_then(|e| e.metadata()).expect("there").len());
        let count = sizes.count();
        (count, waits(&there.root), there, cache)
    };
    publish();
    let (count, waited, there, _cache) = list("there", &address);
    assert_eq!((count, waited), (41, 0));
    assert_eq!(fs::read(there.root.join("dir7/file9")).expect("read").len(), 690);
    assert!(waits(&there.root) > 0);
    drop(there);
    let (count, waited, ..) = list("monday", &format!("{address}@monday"));
    assert_eq!((count, waited), (40, 0), "of the snapshot");
    // The same holds if the mount itself has published the newest state, and for a fork.
    fs::write(mount.path("later"), "of wednesday").expect("write");
    publish();
    let fork = folder.path().join("fork.kvfs");
    succeeds(kvfs(&["fork", &address]).arg(&fork));
    let (count, waited, ..) = list("fork", fork.to_str().expect("UTF-8"));
    assert_eq!((count, waited), (42, 0), "of the fork");
}

#[test]
fn a_fork_is_a_store_of_its_own_and_is_published_under_its_own_name() {
    let Some(mount) = Mount::new() else { return };
    let (folder, address) = folder();
    let large = noise(9_000_000);
    fs::write(mount.path("large"), &large).expect("write");
    fs::write(mount.path("file"), "base").expect("write");
    succeeds(kvfs(&["snapshot", "create"]).arg(mount.root()).arg("monday"));
    fs::write(mount.path("file"), "tuesday").expect("write");
    succeeds(kvfs(&["push"]).arg(mount.root()).arg(&address));

    let file = folder.path().join("mine.kvfs");
    succeeds(kvfs(&["fork", &format!("{address}@monday")]).arg(&file));
    let path = file.to_str().expect("UTF-8");
    let mine = There::mount(folder.path(), "mine", path, &[]);
    assert_eq!(mine.read("file").as_deref(), Some("base"));
    let script = "cd \"$KVFS_MOUNT\"; echo in > file; rm large; mkdir dir";
    let run = ["run", path, "--", "sh", "-ec", &format!("{script}; exit 3")];
    let run = run.map(|word| word.replace(path, mine.root.to_str().expect("UTF-8")));
    assert_eq!(ends(&mut kvfs(&run.each_ref().map(|word| &**word))).0, Some(3));
    assert!(fs::read(mine.root.join("large")).expect("read") == large);
    fs::write(mine.root.join("file"), "mine").expect("write");
    fs::remove_file(mine.root.join("large")).expect("rm");

    // Published under the name of the other store it would replace that store. Under its own name
    // it shares the existing data.
    let both = |to: &str| {
        let mut push = kvfs(&["push"]);
        push.arg(&mine.root).arg(to);
        push
    };
    fails(&mut both(&address), 1, "another store");
    let own = address.replace("/work", "/mine");
    let before = files_of(&folder.path().join("share/z"));
    succeeds(&mut both(&own));
    let more = files_of(&folder.path().join("share/z")) - before;
    assert!(more <= 2, "{more} objects for a small change");
    let seen = There::mount(folder.path(), "seen", &own, &[]);
    assert_eq!(seen.read("file").as_deref(), Some("mine"));
    assert!(!seen.root.join("large").exists());
    drop(mine);

    let said = succeeds(kvfs(&["check"]).arg(&file));
    assert!(said.contains("clean"), "{said}");
    let there = There::mount(folder.path(), "there", &address, &[]);
    assert_eq!(there.read("file").as_deref(), Some("tuesday"));
}

#[test]
fn a_store_that_is_not_mounted_is_published_and_a_killed_mount_mounts_again() {
    let Some(mount) = Mount::new() else { return };
    let (folder, address) = folder();
    let file = folder.path().join("a.kvfs");
    succeeds(kvfs(&["create"]).arg(&file));
    let source = folder.path().join("source");
    fs::create_dir(&source).expect("mkdir");
    for n in 0..200 {
        fs::write(source.join(format!("f{n}")), format!("content {n}")).expect("write");
    }
    succeeds(kvfs(&["import"]).arg(&source).arg(&file));
    let said = succeeds(kvfs(&["push", "--json"]).arg(&file).arg(&address));
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["published"]["generation"], 1);

    let there = There::mount(folder.path(), "there", &address, &[]);
    let name = |n: u32| format!("source/f{n}");
    let place = |n: u32| if there.read(&name(n)).is_some() { name(n) } else { format!("f{n}") };
    assert_eq!(there.read(&place(7)).as_deref(), Some("content 7"));
    let listed = succeeds(kvfs(&["list", "--json"]).arg("--help").env("COLUMNS", "80"));
    assert!(!listed.is_empty());
    // If the mount is killed, its fetched data is not used, and the next mount works as well.
    let record = succeeds(&mut kvfs(&["list", "--json"]));
    let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
    let all = record.as_array().or_else(|| record["mounts"].as_array()).expect("a list");
    let own = all.iter().find(|m| m["mount_point"] == there.root.to_str().expect("UTF-8"));
    let pid = own.and_then(|m| m["pid"].as_u64()).expect("a process");
    succeeds(Command::new("kill").args(["-9", &pid.to_string()]));
    let again = There::mount(folder.path(), "there", &address, &[]);
    for n in (0..200).step_by(13) {
        assert_eq!(again.read(&place(n)).as_deref(), Some(&*format!("content {n}")));
    }
    drop(mount);
}

#[test]
fn what_cannot_be_is_said_with_what_to_do() {
    let (folder, address) = folder();
    let file = folder.path().join("a.kvfs");
    succeeds(kvfs(&["create"]).arg(&file));
    let target = folder.path().join("mnt");
    fs::create_dir(&target).expect("mkdir");
    fails(kvfs(&["push"]).arg(&file).arg("elsewhere"), 2, "dir:FOLDER/NAME");
    fails(kvfs(&["push"]).arg(&file).arg("dir:/"), 2, "names no store");
    fails(kvfs(&["push"]).arg(&file).arg(format!("{address} x")), 2, "is no name of a store");
    fails(kvfs(&["fork", &address]).arg(folder.path().join("f")), 3, "cannot use");
    assert!(!folder.path().join("share").exists(), "what was refused has made a folder");
    succeeds(kvfs(&["push"]).arg(&file).arg(&address));
    let other = address.replace("/work", "/other");
    fails(kvfs(&["fork", &other]).arg(folder.path().join("f")), 3, "there is no store");
    fails(kvfs(&["fork", &address]).arg(&file), 1, "");
    // The file that --force would replace stays if its replacement cannot be made.
    fails(kvfs(&["fork", "--force", &other]).arg(&file), 3, "there is no store");
    succeeds(kvfs(&["check"]).arg(&file));
    let gone = format!("{address}@gone");
    fails(kvfs(&["fork", &gone]).arg(folder.path().join("f")), 3, "there is no dir:");
    assert!(!folder.path().join("f").exists(), "half a fork is left");
    fails(kvfs(&["mount", &other]).arg(&target), 3, "there is no store");

    // A fork whose place has disappeared reports that.
    succeeds(kvfs(&["fork", &address]).arg(folder.path().join("f")));
    fs::rename(folder.path().join("share"), folder.path().join("moved")).expect("rename");
    fails(kvfs(&["check"]).arg(folder.path().join("f")), 3, "cannot use dir:");
    fs::rename(folder.path().join("moved"), folder.path().join("share")).expect("rename");
    succeeds(kvfs(&["check"]).arg(folder.path().join("f")));
}

#[test]
fn what_nobody_refers_to_is_deleted_and_forks_keep_what_they_began_as() {
    let (folder, address) = folder();
    let [file, fork] = ["a.kvfs", "fork.kvfs"].map(|name| folder.path().join(name));
    let share = folder.path().join("share");
    let place = format!("dir:{}", share.display());
    let json = |words: &[&str]| -> serde_json::Value {
        let said = succeeds(kvfs(words).arg("--json"));
        serde_json::from_str(&said).expect("JSON")
    };
    fails(&mut kvfs(&["gc", &address]), 3, "there is no store");
    succeeds(kvfs(&["create"]).arg(&file));
    let put = |value: &str| succeeds(kvfs(&["kv", "put"]).arg(&file).args(["key", value]));
    put("first");
    succeeds(kvfs(&["push"]).arg(&file).arg(&address));
    succeeds(kvfs(&["fork", &address, "--label", "of a test"]).arg(&fork));
    put("second");
    succeeds(kvfs(&["push"]).arg(&file).arg(&address));

    // The place by itself, or by a store in it.
    fails(&mut kvfs(&["gc", &place, "--grace", "59m"]), 2, "--force");
    let short = ["--grace", "0s", "--force"];
    let gc = |word: &str| json(&[&["gc", word][..], &short].concat());
    let found = gc(&place);
    assert_eq!((&found["stores"], &found["forks"]), (&1.into(), &1.into()), "{found}");
    let again = gc(&address);
    let objects = |of: &serde_json::Value, what: &str| of[what]["objects"].as_u64();
    assert_eq!(objects(&again, "deleted"), objects(&found, "found"));
    let said = succeeds(&mut kvfs(&["check", &address]));
    assert!(said.contains("all objects are there"), "{said}");
    let value = succeeds(kvfs(&["kv", "get"]).arg(&fork).arg("key"));
    assert_eq!(value.trim_end(), "first", "the fork began as that");

    let listed = json(&["forks", &address]);
    assert_eq!(listed[0]["label"], "of a test");
    let id = listed[0]["id"].as_str().expect("a number");
    fails(&mut kvfs(&["forks", &address, "--drop", "xyz"]), 3, "has no fork xyz");
    let said = succeeds(&mut kvfs(&["forks", &address, "--drop", &id[..8]]));
    assert!(said.contains("loses what it has not fetched"), "{said}");
    assert_eq!(json(&["forks", &address]), serde_json::json!([]));

    fails(&mut kvfs(&["unpublish", &address]), 2, "--yes");
    succeeds(&mut kvfs(&["unpublish", &address, "--yes"]));
    fails(kvfs(&["fork", &address]).arg(folder.path().join("f")), 3, "there is no store");
    fails(&mut kvfs(&["unpublish", &address, "--yes"]), 3, "there is no store");
    gc(&place);
    assert!(objects(&gc(&place), "deleted") > Some(0));
    assert_eq!((files_of(&share.join("z")), files_of(&share.join("c"))), (0, 0));

    // A missing object is damage, and the message says what needs it.
    let other = address.replace("/work", "/other");
    succeeds(kvfs(&["push"]).arg(&file).arg(&other));
    fs::rename(share.join("z"), folder.path().join("z")).expect("rename");
    let (code, out, err) = ends(&mut kvfs(&["check", &other]));
    assert_eq!(code, Some(5), "{out}{err}");
    assert!(out.contains("other, generation 1"), "{out}");
}

/// The bucket that `scripts/remote_servers.sh` has made.
fn bucket() -> String {
    let name = std::env::var("KVFS_S3_BUCKET").expect("scripts/remote_servers.sh runs this");
    format!("s3://{name}/stores/work")
}

#[test]
#[ignore = "make remote: it takes a server of S3"]
fn in_a_bucket_it_is_the_same() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("a.kvfs");
    succeeds(kvfs(&["create"]).arg(&file));
    // Its daemon has the environment that leads to the server.
    let mount = There::mount(folder.path(), "mnt", file.to_str().expect("UTF-8"), &[]);
    let address = bucket();
    let there = |name: &str| {
        let cache = folder.path().join("cache").display().to_string();
        There::mount(folder.path(), name, &address, &["--cache", &cache])
    };
    let large = noise(20_000_000);
    fs::write(mount.root.join("large"), &large).expect("write");
    fs::write(mount.root.join("file"), "first").expect("write");
    succeeds(kvfs(&["push"]).arg(&mount.root).arg(&address));
    let first = there("first");
    assert!(fs::read(first.root.join("large")).expect("read") == large);
    assert_eq!(first.read("file").as_deref(), Some("first"));

    fs::write(mount.root.join("file"), "second").expect("write");
    succeeds(kvfs(&["push"]).arg(&mount.root).arg(&address));
    assert_eq!(there("second").read("file").as_deref(), Some("second"));
}

#[test]
#[ignore = "make remote: it takes a server of S3"]
fn publications_that_are_killed_leave_one_state_or_the_other() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (file, fork) = (folder.path().join("a.kvfs"), folder.path().join("fork.kvfs"));
    let address = bucket().replace("/work", "/killed");
    succeeds(kvfs(&["create"]).arg(&file));
    let put = |key: &str, value: &str| {
        succeeds(kvfs(&["kv", "put"]).arg(&file).args([key, value]));
    };
    let large: String = noise(100_000).into_iter().map(|b| char::from(b'a' + b % 26)).collect();
    put("round", "none");
    succeeds(kvfs(&["push"]).arg(&file).arg(&address));
    let (mut seen, mut cut) = ("none".to_string(), 0);
    for round in 0..40 {
        let now = format!("{round}");
        put(&format!("large{round}"), &large);
        put("round", &now);
        let mut child = kvfs(&["push"]).arg(&file).arg(&address).spawn().expect("it runs");
        // Each run uses another moment, from the first request to after the last.
        std::thread::sleep(std::time::Duration::from_millis(4 * round));
        let _ = child.kill();
        cut += usize::from(!child.wait().expect("it ends").success());
        let _ = fs::remove_file(&fork);
        succeeds(kvfs(&["fork", &address]).arg(&fork));
        let read = succeeds(kvfs(&["kv", "get"]).arg(&fork).arg("round"));
        let read = read.trim_end().to_string();
        assert!(read == seen || read == now, "round {round}: {read} after {seen}");
        if let Ok(before) = read.parse::<u32>() {
            let value = succeeds(kvfs(&["kv", "get"]).arg(&fork).arg(format!("large{before}")));
            assert!(value.trim_end() == large, "round {round}");
        }
        seen = read;
    }
    println!("{cut} of 40 publications were cut off");
    assert!(cut > 5, "{cut}");
    succeeds(kvfs(&["push"]).arg(&file).arg(&address));
    succeeds(kvfs(&["fork", &address, "--force"]).arg(&fork));
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&fork).arg("round")).trim_end(), "39");
}

#[test]
#[ignore = "make remote: it takes a server of S3 that keeps no conditions"]
fn a_server_that_keeps_no_conditions_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("a.kvfs");
    succeeds(kvfs(&["create"]).arg(&file));
    fails(kvfs(&["push"]).arg(&file).arg(bucket()), 1, "cannot have a store that is written");
    let other = kvfs(&["fork", &bucket()]).arg(folder.path().join("f")).output().expect("it runs");
    assert_eq!(other.status.code(), Some(3), "nothing was published");
}
