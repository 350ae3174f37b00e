//! Tests of `kvfs mount --config` and `kvfs umount --config`, which the systemd unit calls.

use std::fs;

use crate::place::{Place, fails, kvfs, succeeds};

#[test]
fn a_file_says_what_is_mounted_where_and_how() {
    let Some(p) = Place::new() else { return };
    let config = p.dir.path().join("work.conf");
    let text = |options: &str| {
        let (store, mnt) = (p.store(), p.mnt());
        format!("# mine\nstore = {}\ndirectory = {}\n{options}\n", store.display(), mnt.display())
    };
    fs::write(&config, text("ro\nnoexec\nmemory = 64M\nfsname = a, b")).expect("written");
    succeeds(kvfs(&["mount", "--config"]).arg(&config));
    let entry = p.entry().expect("it is mounted");
    assert!(
        entry.contains("ro,") && entry.contains("noexec") && entry.contains("a,\\040b"),
        "{entry}"
    );
    assert!(fs::write(p.mnt().join("f"), "no").is_err());
    succeeds(kvfs(&["umount", "--config"]).arg(&config));
    assert!(p.entry().is_none());

    // Options on the command line take precedence.
    succeeds(kvfs(&["mount", "-o", "rw", "--config"]).arg(&config));
    fs::write(p.mnt().join("f"), "yes").expect("it is writable");
    succeeds(kvfs(&["umount", "--config"]).arg(&config));

    fs::write(&config, text("ro\nfrobnicate")).expect("written");
    let said = fails(2, kvfs(&["mount", "--config"]).arg(&config));
    assert!(said.contains("work.conf, line 5: mount option 'frobnicate': unknown"), "{said}");
    assert!(p.entry().is_none());
}

#[test]
fn a_file_that_is_not_there_or_says_too_little_is_an_error() {
    let Some(p) = Place::new() else { return };
    let config = p.dir.path().join("work.conf");
    fails(3, kvfs(&["mount", "--config"]).arg(&config));
    fails(2, kvfs(&["mount", "--config"]).arg(p.dir.path()));
    fs::write(&config, "ro\n").expect("written");
    let said = fails(2, kvfs(&["mount", "--config"]).arg(&config));
    assert!(said.contains("which store?"), "{said}");
    fails(2, kvfs(&["umount", "--config"]).arg(&config));
    fails(2, &mut kvfs(&["mount"]));
    // The command line may name the places and take the options from the file.
    succeeds(kvfs(&["mount", "--config"]).arg(&config).arg(p.store()).arg(p.mnt()));
    assert!(p.entry().is_some_and(|entry| entry.contains("ro,")));
}
