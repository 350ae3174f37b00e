//! Tests of `-o btime`: statx(2) shows when a file was created, and asks for it only where a
//! program does.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use crate::place::{Place, succeeds, until};

#[test]
fn a_file_keeps_the_time_at_which_it_was_made() {
    let Some(p) = Place::new() else { return };
    let mount = || succeeds(p.mount(&["-o", "btime"]).stdin(Stdio::null()));
    mount();
    let made = |name: &str| fs::symlink_metadata(p.mnt().join(name)).expect("there").created();
    let begun = SystemTime::now() - Duration::from_secs(1);
    fs::create_dir(p.mnt().join("d")).expect("mkdir");
    fs::write(p.mnt().join("d/f"), "content").expect("write");
    let birth = made("d/f").expect("shown");
    assert!(birth >= begun && birth <= SystemTime::now());
    // The time of birth stays, whatever is done to the file, as on ext4.
    let file = fs::File::options().write(true).open(p.mnt().join("d/f")).expect("open");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).expect("set");
    drop(file);
    fs::set_permissions(p.mnt().join("d/f"), fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::hard_link(p.mnt().join("d/f"), p.mnt().join("link")).expect("link");
    fs::rename(p.mnt().join("d/f"), p.mnt().join("moved")).expect("rename");
    fs::write(p.mnt().join("moved"), "other content").expect("write");
    until("a copy is made later than the file", || {
        let _ = fs::remove_file(p.mnt().join("copy"));
        fs::copy(p.mnt().join("moved"), p.mnt().join("copy")).expect("copy");
        made("copy").expect("shown") > birth
    });
    let check = || {
        assert_eq!(made("moved").expect("shown"), birth);
        assert_eq!(made("link").expect("shown"), birth);
        assert!(made("copy").expect("shown") > birth);
        assert!(made("d").expect("shown") <= birth);
        let attributes = fs::metadata(p.mnt().join("moved")).expect("there");
        assert_eq!(attributes.len(), 13);
        assert_eq!(attributes.permissions().mode() & 0o777, 0o600);
    };
    check();
    assert!(made(".kvfs").is_ok(), "the views have one, too");
    succeeds(&mut p.umount());
    mount();
    check();
    succeeds(&mut p.umount());
    // A caller that does not ask for the time does not get it.
    p.mounted();
    assert!(made("moved").is_err());
}
