//! Tests of the commands that set the compression of files: for a store, for a mount, and for
//! directories and files.

use std::fs;
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};

use crate::place::{Place, fails, kvfs, succeeds};

const ATTRIBUTE: &str = "user.kvfs.compress";
const LEN: usize = 2 << 20;

fn text() -> Vec<u8> {
    let lines = (0..).flat_map(|n| format!("{n}: a line of a log like many others\n").into_bytes());
    lines.take(LEN).collect()
}

fn way(path: &Path) -> Option<String> {
    let mut value = [0; 16];
    let len = getxattr(path, ATTRIBUTE, &mut value[..]).ok()?;
    Some(String::from_utf8_lossy(&value[..len]).into_owned())
}

/// Returns the bytes that pages take in a store that is not mounted.
fn page_bytes(p: &Place) -> u64 {
    let said = succeeds(kvfs(&["--json", "stat"]).arg(p.store()));
    let stat: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let all = stat["dictionaries"].as_array().expect("a list").iter();
    let levels = all.filter(|d| d["name"] == "dmap").flat_map(|d| d["levels"].as_array());
    let runs = levels.flatten().filter_map(|level| level.as_array()).flatten();
    runs.map(|run| run["value_bytes"].as_u64().expect("a number")).sum()
}

#[test]
fn what_is_made_in_a_compressed_store_is_compressed_until_it_is_set_otherwise() {
    let Some(p) = Place::new() else { return };
    fs::remove_file(p.store()).expect("removed");
    let said = succeeds(kvfs(&["--json", "create", "--compress", "zstd"]).arg(p.store()));
    let made: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(made["compress"], "zstd");
    p.mounted();
    fs::create_dir(p.mnt().join("logs")).expect("mkdir");
    fs::write(p.mnt().join("logs/log"), text()).expect("written");
    assert_eq!(way(&p.mnt().join("logs/log")).as_deref(), Some("zstd"));
    succeeds(&mut p.umount());
    let packed = page_bytes(&p);
    assert!((1..LEN as u64 / 2).contains(&packed), "{packed} bytes");
    let stored = |target: &Path| {
        let said = succeeds(kvfs(&["--json", "stat"]).arg(target).arg("logs/log"));
        let stat: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(stat["blocks"], LEN as u64 / 512);
        stat["stored"].as_u64().expect("a number")
    };
    assert!((1..LEN as u64 / 2).contains(&stored(&p.store())));
    // The same on an unmounted store, and then on a mounted one.
    succeeds(kvfs(&["set", "/logs", "--compress", "none", "--store"]).arg(p.store()));
    p.mounted();
    assert!((1..LEN as u64 / 2).contains(&stored(&p.mnt())));
    assert_eq!(way(&p.mnt().join("logs")).as_deref(), Some("none"));
    let film = p.mnt().join("logs/film");
    fs::write(&film, text()).expect("written");
    assert_eq!(way(&film).as_deref(), Some("none"));
    let said = succeeds(kvfs(&["set", "--compress", "auto"]).arg(p.mnt().join("logs/log")));
    assert!(said.ends_with("log: auto\n"), "{said}");
    assert_eq!(way(&p.mnt().join("logs/log")).as_deref(), Some("auto"));
    assert_eq!(fs::read(p.mnt().join("logs/log")).expect("read"), text());
    succeeds(&mut p.umount());
    assert!(page_bytes(&p) >= packed + LEN as u64);
    succeeds(kvfs(&["check"]).arg(p.store()));
}

#[test]
fn a_mount_compresses_files_without_a_way_of_their_own() {
    let Some(p) = Place::new() else { return };
    succeeds(&mut p.mount(&["-o", "compress=auto"]));
    fs::write(p.mnt().join("log"), text()).expect("written");
    assert_eq!(way(&p.mnt().join("log")), None);
    succeeds(&mut p.umount());
    assert!((1..LEN as u64 / 2).contains(&page_bytes(&p)));
    let said = fails(2, &mut p.mount(&["-o", "compress=gzip"]));
    assert!(said.contains("write none, lz4, zstd or auto"), "{said}");
}

#[test]
fn wrong_words_and_other_places_are_refused() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let file = p.mnt().join("file");
    fs::write(&file, "content").expect("written");
    let said = fails(2, kvfs(&["set", "--compress", "gzip"]).arg(&file));
    assert!(said.contains("gzip"), "{said}");
    assert!(setxattr(&file, ATTRIBUTE, b"gzip", XattrFlags::empty()).is_err());
    setxattr(&file, ATTRIBUTE, b"lz4", XattrFlags::empty()).expect("it is a way");
    assert_eq!(way(&file).as_deref(), Some("lz4"));
    let outside = kvfs(&["set", "--compress", "lz4"]).arg(p.dir.path()).output().expect("it runs");
    let said = String::from_utf8_lossy(&outside.stderr).into_owned();
    assert!(!outside.status.success() && said.contains("is in no mounted store"), "{said}");
}
