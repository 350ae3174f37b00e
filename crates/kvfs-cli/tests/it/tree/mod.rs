//! A tree of files that contains every kind of file, and the comparison of two trees.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

/// Makes a tree with every kind of file that an archive can contain.
pub fn make(at: &Path) {
    fs::create_dir_all(at.join("sub/empty")).expect("mkdir");
    fs::write(at.join("small"), "small").expect("write");
    fs::write(at.join("sub/large"), (0..3_000_000u32).map(|i| (i >> 7) as u8).collect::<Vec<_>>())
        .expect("write");
    fs::hard_link(at.join("sub/large"), at.join("link")).expect("link");
    symlink("sub/large", at.join("symlink")).expect("symlink");
    let sparse = fs::File::create(at.join("sparse")).expect("made");
    sparse.write_all_at(b"behind", 50 << 20).expect("write");
    (0..300).for_each(|n| {
        fs::write(at.join(format!("sub/f{n}")), vec![n as u8; n * 40]).expect("write")
    });
    fs::set_permissions(at.join("sub"), std::os::unix::fs::PermissionsExt::from_mode(0o2750))
        .expect("chmod");
    fs::set_permissions(at.join("sub/f9"), std::os::unix::fs::PermissionsExt::from_mode(0o4711))
        .expect("chmod");
    std::os::unix::fs::chown(at.join("sub/f8"), Some(1234), Some(4321)).expect("chown");
    rustix::fs::setxattr(at.join("small"), "user.kept", b"value", rustix::fs::XattrFlags::empty())
        .expect("setxattr");
}

/// Everything about a tree except the content of its files, as find(1) reports it.
fn found(at: &Path) -> Vec<String> {
    let format = "%P %y %m %U:%G %n %s %T@ %l\n";
    let out = Command::new("find")
        .arg(at)
        .args([
            "-mindepth",
            "1",
            "-type",
            "d",
            "-printf",
            "%P d %m %U:%G %n %T@\n",
            "-o",
            "-mindepth",
            "1",
            "-printf",
            format,
        ])
        .output()
        .expect("find runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut lines: Vec<_> =
        String::from_utf8_lossy(&out.stdout).lines().map(String::from).collect();
    lines.sort();
    lines
}

/// Checks that two trees differ in nothing except extended attributes.
#[track_caller]
pub fn same(a: &Path, b: &Path) {
    assert_eq!(found(a), found(b));
    assert!(Command::new("diff").arg("-r").args([a, b]).status().expect("diff runs").success());
}
