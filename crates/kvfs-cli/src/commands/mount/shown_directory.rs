//! The directory of a store on a server that a mount shows as its root (`kvfs://HOST:PORT/PATH`).
//! The kernel does this (`kvfs_fuse::MountOptions::root`), so nothing outside of the directory can
//! be reached by names in the mount. The directory is looked up before the mount, because the
//! failure of a mount does not tell what is wrong with the path.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use kvfs::{FileKind, Fs, ROOT};
use places::ServedDirectory;

use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// Fails unless the files have the directory of an address. A symbolic link on the way is refused:
/// its target is meant for a mount of the whole store, or for another machine.
pub fn must_exist(fs: &Fs, there: &ServedDirectory) -> Outcome {
    let server = there.server.address();
    let (mut directory, mut path) = (ROOT, PathBuf::from("/"));
    for name in there.path() {
        path.push(name);
        let (server, path) = (server.shown(), path.shown());
        let attr = fs.lookup(directory, name.as_bytes()).map_err(|e| match e {
            kvfs::Error::NotFound => {
                Failure::new(Exit::NotFound, format!("{server} has no directory {path}"))
            }
            e => Failure::new(Exit::Failed, format!("cannot find {path} in {server}: {e}")),
        })?;
        fs.forget(attr.ino, 1);
        directory = match attr.kind {
            FileKind::Dir => attr.ino,
            FileKind::Symlink => {
                let what = format!("{path} in {server} is a symbolic link");
                return Err(Failure::new(Exit::Usage, what).hint("name the directory it leads to"));
            }
            _ => {
                let what = format!("{path} in {server} is no directory");
                return Err(Failure::new(Exit::Usage, what).hint("name the directory it lies in"));
            }
        };
    }
    Ok(())
}
