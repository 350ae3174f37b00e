//! Tests of encrypted stores in object storage. Nothing there can be read without the secret, and
//! everything works with it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::{ends, kvfs, succeeds};
use crate::published::{World, umount};
use serde_json::Value;

/// The text is in names, files and keys, and nowhere in the shared folder.
const WORD: &str = "rhubarb-and-custard";

fn with(secret: &Path, words: &[&str]) -> Command {
    let mut command = kvfs(words);
    command.env("KVFS_SECRET_FILE", secret);
    command
}

/// Fails with all of these words in the text, and without a panic.
#[track_caller]
fn refused(command: &mut Command, words: &[&str]) {
    let (code, out, err) = ends(command);
    assert!(code.is_some_and(|code| code != 0 && code != 101), "{command:?}: {code:?} {out}{err}");
    for word in words {
        assert!(err.contains(word), "{command:?}: {out}{err}");
    }
}

fn holds(folder: &Path, word: &[u8]) -> bool {
    let found = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    found.into_iter().any(|entry| match entry.path() {
        path if path.is_dir() => holds(&path, word),
        path => fs::read(path).expect("a file").windows(word.len()).any(|part| part == word),
    })
}

fn made(world: &World, name: &str) -> std::path::PathBuf {
    let secret = world.path(name);
    succeeds(kvfs(&["secret"]).arg(&secret));
    secret
}

#[test]
fn a_store_is_pushed_forked_merged_and_mounted_and_the_folder_has_none_of_its_bytes() {
    let Some(mut world) = World::new() else { return };
    let (secret, address) = (made(&world, "secret"), world.address());
    let digits = fs::read_to_string(&secret).expect("a secret").trim().to_owned();
    let store = world.path("work.kvfs");
    succeeds(kvfs(&["create"]).arg(&store));
    for i in 0..20 {
        let value = format!("{WORD}-{i}").repeat(20);
        succeeds(kvfs(&["kv", "put"]).arg(&store).args([&format!("{WORD}/{i}"), &value]));
    }
    succeeds(with(&secret, &["push"]).arg(&store).arg(&address));
    let fork = world.path("fork.kvfs");
    succeeds(with(&secret, &["fork", &address]).arg(&fork));
    succeeds(with(&secret, &["kv", "put"]).arg(&fork).args(["from-the-fork", WORD]));
    let get = |key: &str| {
        succeeds(with(&secret, &["kv", "get"]).arg(&fork).arg(key)).trim_end().to_owned()
    };
    assert_eq!(get(&format!("{WORD}/7")), format!("{WORD}-7").repeat(20));
    succeeds(with(&secret, &["merge"]).arg(&fork).arg("--into").arg(&store));
    succeeds(with(&secret, &["push"]).arg(&store).arg(&address));
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&store).arg("from-the-fork")).trim_end(), WORD);

    // The store is mounted by its address, as the writer.
    let root = world.path("root");
    fs::create_dir(&root).expect("mkdir");
    let mut mount = with(&secret, &["mount", &address]);
    let cache = world.path("cache");
    succeeds(mount.arg(&root).arg("--cache").arg(&cache).arg("--write").arg("--take"));
    world.mounts.push(root.clone());
    fs::write(root.join(WORD), WORD.repeat(1000)).expect("write");
    let stat = succeeds(kvfs(&["stat", "--json"]).arg(&root));
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    assert_eq!(stat["publishing"]["failing"], Value::Null, "{stat}");
    succeeds(kvfs(&["umount"]).arg(&root));
    world.mounts.clear();
    succeeds(with(&secret, &["mount", &address]).arg(&root).arg("--cache").arg(&cache));
    world.mounts.push(root.clone());
    assert_eq!(fs::read_to_string(root.join(WORD)).expect("read"), WORD.repeat(1000));
    umount(&root);
    world.mounts.clear();
    succeeds(&mut with(&secret, &["gc", &format!("dir:{}", world.path("share").display())]));
    let share = world.path("share");
    assert!(!holds(&share, WORD.as_bytes()) && !holds(&share, digits.as_bytes()));
    assert!(holds(&share, b"KVFSENC1"));
    assert!(!holds(&share, b"KVFSHEAD") && !holds(&share, b"KVFSSTAT"));
}

#[test]
fn without_the_secret_or_with_another_one_everything_says_so_and_nothing_is_changed() {
    let Some(world) = World::new() else { return };
    let (secret, other) = (made(&world, "secret"), made(&world, "other"));
    let (address, store) = (world.address(), world.path("work.kvfs"));
    succeeds(kvfs(&["create"]).arg(&store));
    succeeds(kvfs(&["kv", "put"]).arg(&store).args(["k", "v"]));
    succeeds(with(&secret, &["push"]).arg(&store).arg(&address));
    let fork = world.path("fork.kvfs");
    succeeds(with(&secret, &["fork", &address]).arg(&fork));
    let root = world.path("root");
    fs::create_dir(&root).expect("mkdir");
    let place = format!("dir:{}", world.path("share").display());
    let without = || -> Vec<Command> {
        let mut all = vec![
            kvfs(&["fork", &address]),
            kvfs(&["mount", &address]),
            kvfs(&["push"]),
            kvfs(&["kv", "get"]),
            kvfs(&["gc", &place, "--dry-run"]),
            kvfs(&["forks", &address]),
            kvfs(&["unpublish", &address]),
            kvfs(&["merge"]),
            kvfs(&["rebase"]),
            kvfs(&["check"]),
        ];
        all[0].arg(world.path("another.kvfs"));
        all[1].arg(&root).arg("--cache").arg(world.path("cache"));
        all[2].arg(&store).arg(&address);
        all[3].arg(&fork).arg("k");
        all[7].arg(&fork).arg("--into").arg(&store);
        all[8].arg(&fork);
        all[9].arg(&fork);
        all
    };
    for mut command in without() {
        refused(&mut command, &["encrypted with the secret"]);
        command.env("KVFS_SECRET_FILE", &other);
        refused(&mut command, &["encrypted with the secret"]);
        command.env("KVFS_SECRET_FILE", world.path("none"));
        refused(&mut command, &["none"]);
        fs::write(world.path("words"), "no secret").expect("write");
        command.env("KVFS_SECRET_FILE", world.path("words"));
        refused(&mut command, &["words has no secret", "kvfs secret"]);
    }
    assert!(!world.path("another.kvfs").exists());
    succeeds(with(&secret, &["fork", &address]).arg(world.path("another.kvfs")));
    assert_eq!(succeeds(with(&secret, &["kv", "get"]).arg(&fork).arg("k")).trim_end(), "v");
    // A place that is not encrypted stays so.
    let open = format!("dir:{}/work", world.path("open").display());
    fs::create_dir(world.path("open")).expect("mkdir");
    let another = world.path("other.kvfs");
    succeeds(kvfs(&["create"]).arg(&another));
    succeeds(kvfs(&["push"]).arg(&another).arg(&open));
    refused(with(&secret, &["push"]).arg(&another).arg(&open), &["is not encrypted"]);
    refused(with(&secret, &["fork", &open]).arg(world.path("x.kvfs")), &["is not encrypted"]);
    // A store with another name in the place is not partly encrypted either.
    let (new, new_open) = (format!("{place}/new"), open.replace("/work", "/new"));
    refused(kvfs(&["push"]).arg(&another).arg(&new), &["encrypted with the secret"]);
    refused(with(&other, &["push"]).arg(&another).arg(&new), &["encrypted with the secret"]);
    refused(with(&secret, &["push"]).arg(&another).arg(&new_open), &["is not encrypted"]);
    succeeds(with(&secret, &["push"]).arg(&another).arg(&new));
    succeeds(with(&secret, &["gc", &place, "--dry-run"]).arg("--json"));
    let again = ends(kvfs(&["secret"]).arg(&secret));
    assert!(again.0 != Some(0) && again.2.contains("exists"), "{again:?}");
}

#[test]
fn objects_that_were_exchanged_are_damage_and_not_answers() {
    let Some(world) = World::new() else { return };
    let (secret, address) = (made(&world, "secret"), world.address());
    let store = world.path("work.kvfs");
    succeeds(kvfs(&["create"]).arg(&store));
    for i in 0..8 {
        let value = format!("{i}").repeat(1 << 20);
        let file = world.path("value");
        fs::write(&file, &value).expect("write");
        let input = fs::File::open(&file).expect("open");
        succeeds(kvfs(&["kv", "put"]).arg(&store).arg(format!("k{i}")).arg("-").stdin(input));
    }
    succeeds(with(&secret, &["push"]).arg(&store).arg(&address));
    let mut zones = Vec::new();
    let mut folders = vec![world.path("share/z")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { folders.push(path) } else { zones.push(path) }
        }
    }
    assert!(!zones.is_empty());
    for zone in &zones {
        let mut bytes = fs::read(zone).expect("a zone");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(zone, bytes).expect("write");
    }
    let fork = world.path("fork.kvfs");
    succeeds(with(&secret, &["fork", &address]).arg(&fork));
    let all: Vec<_> = (0..8)
        .map(|i| ends(with(&secret, &["kv", "get"]).arg(&fork).arg(format!("k{i}"))))
        .collect();
    for (i, (code, out, _)) in all.iter().enumerate() {
        assert!(*code != Some(0) || out.trim_end() == format!("{i}").repeat(1 << 20), "key {i}");
    }
    let damaged = all.iter().filter(|(code, ..)| *code == Some(5)).count();
    assert!(damaged > 0, "{:?}", all.iter().map(|(code, _, err)| (code, err)).collect::<Vec<_>>());
}
