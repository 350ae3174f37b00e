//! Absolute paths, including those of files that cannot be accessed.

use std::io;
use std::path::{Path, PathBuf};

use crate::support::mounts::waiting;

/// Returns the absolute path without symbolic links, even of a dead mount, which cannot be accessed
/// itself.
pub fn full_path(path: &Path) -> io::Result<PathBuf> {
    let _waiting = waiting::on(path);
    match path.canonicalize() {
        Err(e) if e.kind() != io::ErrorKind::NotFound => path_beside(path),
        done => done,
    }
}

/// Returns the absolute path with only the parent resolved: the file itself is not accessed.
pub fn path_beside(path: &Path) -> io::Result<PathBuf> {
    let _waiting = waiting::on(path);
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}
