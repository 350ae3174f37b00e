//! Tests that a restore from an unreadable snapshot is done as a whole or not at all.

use std::fs;
use std::process::Stdio;

use crate::place::{Place, kvfs, succeeds, text};

/// Returns the listing of a directory of a store that is not mounted.
fn listed(p: &Place, directory: &str) -> String {
    let place = format!("/{directory}");
    succeeds(kvfs(&["find", "--store"]).arg(p.store()).arg(place).stdin(Stdio::null()))
}

#[test]
fn a_restore_that_meets_damage_half_way_has_changed_nothing() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    for directory in ["a", "b", "c"] {
        fs::create_dir(p.mnt().join(directory)).expect("mkdir");
        for n in 0..2000 {
            let name = format!("then-in-{directory}-{n:04}");
            fs::write(p.mnt().join(directory).join(name), format!("{n}")).expect("written");
        }
    }
    let on = |command: &str, words: &[&str]| {
        let mut command = kvfs(&[command]);
        command.args(&words[..1]).arg(p.mnt()).args(&words[1..]).stdin(Stdio::null());
        succeeds(&mut command)
    };
    on("snapshot", &["create", "monday"]);
    for directory in ["a", "b", "c"] {
        fs::remove_dir_all(p.mnt().join(directory)).expect("removed");
        fs::create_dir(p.mnt().join(directory)).expect("mkdir");
        fs::write(p.mnt().join(directory).join("now"), "now").expect("written");
    }
    succeeds(&mut p.umount());
    // After this all of it is in runs, and not in the journal.
    succeeds(kvfs(&["compact"]).arg(p.store()).stdin(Stdio::null()));
    let before = ["a", "b", "c"].map(|directory| listed(&p, directory));
    // The part of the second directory that only the snapshot has cannot be read any more.
    let mut bytes = fs::read(p.store()).expect("read");
    let name = b"then-in-b-10";
    let mut struck = 0;
    for at in 0..bytes.len() - name.len() {
        if bytes[at..].starts_with(name) {
            bytes[at] ^= 0x20;
            struck += 1;
        }
    }
    assert!(struck > 0, "the names lie in the file");
    fs::write(p.store(), &bytes).expect("written");
    let mut restore = kvfs(&["restore"]);
    restore.arg(p.store()).args(["monday", "a", "b", "c"]).stdin(Stdio::null());
    let output = restore.output().expect("kvfs runs");
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("kvfs: cannot") && said.contains("checksum"), "{said}");
    assert_eq!(["a", "b", "c"].map(|directory| listed(&p, directory)), before);
    // Undamaged files are restored.
    succeeds(kvfs(&["restore"]).arg(p.store()).args(["monday", "c"]).stdin(Stdio::null()));
    assert_eq!(listed(&p, "c").lines().count(), 2001);
}
