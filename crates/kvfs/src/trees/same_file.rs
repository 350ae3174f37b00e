//! Preserves hard links when the names of a file are restored one at a time, in any order. A
//! restored name becomes a link to the existing file if another of the file's old names still leads
//! to an equal file.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::attr::{FileKind, Ino};
use crate::difference::{Side, StoredNode, same_content, same_xattrs};
use crate::error::Result;
use crate::fs::Fs;

/// The path of an original in an earlier state, and that of its copy.
pub(crate) type Place<'a> = (&'a [u8], &'a [u8]);

/// Returns whether both paths have the same names.
pub(crate) fn is_own_place((from, to): &Place<'_>) -> bool {
    let from = from.split(|&b| b == b'/').filter(|name| !name.is_empty());
    from.eq(to.split(|&b| b == b'/').filter(|name| !name.is_empty()))
}

impl Fs {
    /// Returns the files that are copied to their own places and had other names in the earlier
    /// state, each with the file to which one of these names leads now, if that is equal to the
    /// file of then.
    pub(crate) fn same_files(&self, was: &Side, places: &[Place<'_>]) -> Result<HashMap<Ino, Ino>> {
        let (mut files, mut found) = (HashMap::new(), HashMap::new());
        for (path, _) in places.iter().filter(|place| is_own_place(place)) {
            if let Some(node) = was.find(path)?
                && node.attr.kind != FileKind::Dir
                && node.attr.nlink > 1
            {
                files.insert(node.ino, node);
            }
        }
        if files.is_empty() || self.writable().is_err() {
            return Ok(found);
        }
        self.core.locks.retry(|| {
            let _call = self.enter()?;
            self.commit_older_than(Duration::MAX)
        })?;
        let now = Side::new(self.core.scope.view()?, self.core.layout);
        let inodes: HashSet<Ino> = files.keys().copied().collect();
        for (parent, name, ino) in was.names_of(&inodes)? {
            let Some(then) = files.get(&ino) else { continue };
            let Some((at, _)) = now.name(parent, &name)? else { continue };
            // The file itself is taken before a copy of it.
            if found.contains_key(&ino) && at != ino {
                continue;
            }
            // A file that cannot be read is copied, as if it had no other names.
            if let Ok(Some(there)) = now.node(at)
                && is_same((was, then), (&now, &there)).unwrap_or(false)
            {
                found.insert(ino, at);
            }
        }
        Ok(found)
    }
}

/// Returns whether two files are equal in everything that a copy has of its original.
fn is_same(then: (&Side, &StoredNode), now: (&Side, &StoredNode)) -> Result<bool> {
    let (a, b) = (&then.1.attr, &now.1.attr);
    let alike = a.kind == b.kind
        && a.perm == b.perm
        && a.uid == b.uid
        && a.gid == b.gid
        && a.rdev == b.rdev
        && a.mtime == b.mtime;
    Ok(alike && b.nlink > 0 && same_content(then, now)? && same_xattrs(then, now)?)
}
