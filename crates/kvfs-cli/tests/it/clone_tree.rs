//! Tests of `kvfs clone-tree` on a mounted store, and of `cp`, which shares data as well.

use std::fs;
use std::process::{Command, Stdio};

use crate::mounted::Mount;

fn kvfs(words: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_kvfs"))
        .args(words)
        .stdin(Stdio::null())
        .env_remove("KVFS_TXN")
        .env_remove("KVFS_SOCKET")
        .output()
        .expect("it runs");
    (
        output.status.success(),
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
    )
}

#[test]
fn a_copy_is_seen_at_once_and_goes_its_own_way() {
    let Some(mount) = Mount::new() else { return };
    let path = |name: &str| mount.path(name).display().to_string();
    fs::create_dir_all(mount.path("tree/sub")).expect("mkdir");
    fs::write(mount.path("tree/sub/large"), vec![7; 300_000]).expect("write");
    fs::write(mount.path("tree/small"), "small").expect("write");
    // The kernel knows that these are not there.
    assert!(!mount.path("copy").exists() && fs::read_dir(mount.root()).expect("list").count() == 1);
    let (ok, said) = kvfs(&["clone-tree", &path("tree"), &path("copy")]);
    assert!(ok && said.contains("2 files and 2 directories"), "{said}");
    assert_eq!(fs::read(mount.path("copy/sub/large")).expect("read"), vec![7; 300_000]);
    assert_eq!(fs::read_dir(mount.root()).expect("list").count(), 2);
    fs::write(mount.path("copy/small"), "changed").expect("write");
    assert_eq!(fs::read_to_string(mount.path("tree/small")).expect("read"), "small");
    // Copies into a directory, under its own name, and never over existing files.
    assert!(kvfs(&["clone-tree", &path("tree/small"), &path("copy/sub")]).0);
    assert_eq!(fs::read_to_string(mount.path("copy/sub/small")).expect("read"), "small");
    let (ok, said) = kvfs(&["clone-tree", &path("tree/small"), &path("copy/sub")]);
    assert!(!ok && said.contains("exists"), "{said}");
}

#[test]
fn in_a_transaction_it_is_part_of_that() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root().display().to_string();
    fs::create_dir_all(mount.path("tree")).expect("mkdir");
    fs::write(mount.path("tree/file"), vec![7; 100_000]).expect("write");
    let id = kvfs(&["txn", "begin", &root]).1.trim().to_owned();
    let view = mount.path(format!(".kvfs/txn/{id}"));
    assert!(!view.join("copy").exists());
    let (ok, said) = kvfs(&[
        "clone-tree",
        &view.join("tree").display().to_string(),
        &view.join("copy").display().to_string(),
    ]);
    assert!(ok, "{said}");
    assert_eq!(fs::read(view.join("copy/file")).expect("read"), vec![7; 100_000]);
    assert!(!mount.path("copy").exists());
    assert!(kvfs(&["txn", "commit", &root, &id]).0);
    assert_eq!(fs::read(mount.path("copy/file")).expect("read"), vec![7; 100_000]);
    let (ok, said) = kvfs(&["clone-tree", "/etc", &root]);
    assert!(!ok, "{said}");
}

#[test]
fn cp_shares_what_it_copies() {
    let Some(mount) = Mount::new() else { return };
    let data: Vec<u8> = (0..40_000_000u32).map(|i| (i >> 9) as u8).collect();
    fs::write(mount.path("from"), &data).expect("write");
    for i in 0..10 {
        fs::copy(mount.path("from"), mount.path(format!("copy{i}"))).expect("copy");
    }
    assert!(fs::read(mount.path("copy7")).expect("read") == data);
    let used = rustix::fs::statvfs(mount.root())
        .map(|s| (s.f_blocks - s.f_bfree) * s.f_frsize)
        .expect("statvfs");
    assert!(used < 250_000_000, "{used} bytes are in use for 40 MB in eleven files");
}
