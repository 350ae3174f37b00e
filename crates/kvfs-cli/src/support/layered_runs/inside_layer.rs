//! Commands that run inside of a layered run. They would find the store as the transaction shows
//! it, without the files of the layer, so they are refused there.

use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use kvfs_fuse::mounts::{self, MountEntry};

use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// The source of the overlay in the table of mounts. The table tells a command where it runs,
/// whatever its environment is.
pub const SOURCE: &CStr = c"kvfs-layer";

/// Returns whether a mount is the overlay of a layered run.
fn is_layer(mount: &MountEntry) -> bool {
    mount.fs_type == "overlay" && mount.source.as_bytes() == SOURCE.to_bytes()
}

/// Fails if a path (absolute, without symbolic links) lies in the overlay of a layered run.
pub fn must_be_outside(path: &Path) -> Outcome {
    match mounts::mount_of(path) {
        Ok(Some(mount)) if is_layer(&mount) => Err(refused(path)),
        _ => Ok(()),
    }
}

fn refused(path: &Path) -> Failure {
    let what = format!(
        "{} lies in the layer of kvfs run --layer, whose files reach the transaction when the \
         program has ended: until then kvfs does not find them",
        path.shown()
    );
    Failure::new(Exit::Usage, what)
        .hint("do this after the run, or run the program without --layer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_overlay_of_this_source_is_a_layer() {
        let mount = |fs_type: &str, source: &str| MountEntry {
            device: "0:45".into(),
            root: "/".into(),
            mount_point: "/mnt".into(),
            fs_type: fs_type.into(),
            source: source.into(),
            user: None,
        };
        assert!(is_layer(&mount("overlay", "kvfs-layer")));
        assert!(!is_layer(&mount("overlay", "overlay")));
        assert!(!is_layer(&mount("fuse.kvfs", "kvfs-layer")));
    }
}
