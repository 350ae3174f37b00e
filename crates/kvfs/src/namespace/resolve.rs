//! Finds an inode by its path.

use crate::attr::{Attr, FileKind, Ino, ROOT};
use crate::error::{Error, Result};
use crate::fs::Fs;

impl Fs {
    /// Returns the inode at `path` (from the root, with any number of slashes), without adding a
    /// reference. Symbolic links on the way are followed, but a link as the last component is not.
    pub fn resolve(&self, path: &[u8]) -> Result<Attr> {
        let mut at = self.getattr(ROOT)?;
        let mut names: Vec<Vec<u8>> = split_path(path);
        let mut links = 0;
        while let Some(name) = names.pop() {
            if at.kind != FileKind::Dir {
                return Err(Error::NotDirectory);
            }
            let next = self.find(at.ino, &name)?;
            if next.kind == FileKind::Symlink && !names.is_empty() {
                links += 1;
                if links > 40 {
                    return Err(Error::TooManySymlinks);
                }
                let target = self.readlink(next.ino)?;
                if target.first() == Some(&b'/') {
                    at = self.getattr(ROOT)?;
                }
                names.extend(split_path(&target));
            } else {
                at = next;
            }
        }
        Ok(at)
    }

    /// Looks a name up without adding a reference.
    fn find(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let attr = self.lookup(parent, name)?;
        self.forget(attr.ino, 1);
        Ok(attr)
    }
}

/// Returns the names of a path, the last one first.
fn split_path(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&b| b == b'/').filter(|name| !name.is_empty()).rev().map(<[u8]>::to_vec).collect()
}
