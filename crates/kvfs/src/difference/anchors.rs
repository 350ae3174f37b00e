//! Encodes paths that are longer than a call accepts. Directories can be made step by step to any
//! depth, and the total length of their paths grows with the square of the depth.
//!
//! A list therefore shows at most [`LONGEST`] bytes of a path. If a path would be longer, a
//! directory on it becomes an *anchor* of the list, and the paths of the objects below are relative
//! to the anchor. A path below anchor 3 begins with `/3/`; no other path begins with a slash. An
//! anchor itself has a path, which may begin at another anchor. The length of a list thus depends
//! on the number of its entries, and not on their depth, and the list still identifies the place of
//! each entry.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;

use super::FileChange;
use super::side::joined;

/// The longest path relative to the root or to an anchor, in bytes, which is the longest that a
/// call accepts.
const LONGEST: usize = 4096;

/// The anchors of a list that is being built. A directory has at most one anchor, even if several
/// paths lead to it.
#[derive(Default)]
pub(crate) struct Anchors(RefCell<Known>);

#[derive(Default)]
struct Known {
    numbers: HashMap<Vec<u8>, usize>,
    paths: Vec<Vec<u8>>,
}

/// Returns the prefix of paths that begin at an anchor.
fn prefix(number: usize) -> Vec<u8> {
    format!("/{number}").into_bytes()
}

impl Anchors {
    /// Returns the anchor's prefix for a name of `name_len` bytes in the directory `path`, which
    /// has `path_len` bytes. Returns `None` if the path and the name fit together without an
    /// anchor.
    pub fn begin(
        &self,
        path_len: usize,
        name_len: usize,
        path: impl FnOnce() -> Vec<u8>,
    ) -> Option<Vec<u8>> {
        if path_len + 1 + name_len <= LONGEST {
            return None;
        }
        let path = path();
        let mut known = self.0.borrow_mut();
        if let Some(number) = known.numbers.get(&path) {
            return Some(prefix(*number));
        }
        known.paths.push(path.clone());
        let number = known.paths.len();
        known.numbers.insert(path, number);
        Some(prefix(number))
    }

    /// Returns the path of a name in a directory.
    pub fn join(&self, directory: &[u8], name: &[u8]) -> Vec<u8> {
        match self.begin(directory.len(), name.len(), || directory.to_vec()) {
            None => joined(directory, name),
            Some(anchor) => joined(&anchor, name),
        }
    }

    /// Builds the list of these changes. The anchors are in the order in which they were created,
    /// so each follows the anchor at which its path begins.
    pub fn list(self, changes: impl Iterator<Item = FileChange>) -> Difference {
        let mut changes: Vec<FileChange> = changes.collect();
        // Within an anchor, the changes are in the order of their paths already.
        changes.sort_by_key(|change| Difference::parted(&change.path).0);
        Difference { anchors: self.0.into_inner().paths, changes }
    }
}

/// The differences between two states, by path.
#[derive(Clone, Debug, Default)]
pub struct Difference {
    /// The paths of the directories at which long paths begin: `/1/…` begins at the first
    /// directory. Each of these paths begins at the root or at an earlier anchor.
    pub anchors: Vec<Vec<u8>>,
    /// The changed paths: first those relative to the root, in order, then those relative to the
    /// first anchor, and so on.
    pub changes: Vec<FileChange>,
}

impl Difference {
    /// Splits a path of the list into the number of its anchor, 0 for the root, and the rest.
    pub fn parted(path: &[u8]) -> (usize, &[u8]) {
        let Some(within) = path.strip_prefix(b"/") else { return (0, path) };
        let end = within.iter().position(|byte| *byte == b'/').unwrap_or(within.len());
        let number = std::str::from_utf8(&within[..end]).ok().and_then(|n| n.parse().ok());
        (number.unwrap_or(0), within.get(end + 1..).unwrap_or_default())
    }

    /// Returns a path of the list as a path from the root.
    pub fn whole(&self, path: &[u8]) -> Vec<u8> {
        Difference::whole_from(&self.anchors, path).into_owned()
    }

    /// Returns a path that may begin at one of these anchors as a path from the root.
    pub fn whole_from<'a>(anchors: &[Vec<u8>], path: &'a [u8]) -> Cow<'a, [u8]> {
        let (mut number, rest) = Difference::parted(path);
        if number == 0 {
            return path.into();
        }
        let mut parts = vec![rest];
        // An anchor's path begins at an earlier anchor.
        while let Some(anchor) = number.checked_sub(1).and_then(|at| anchors.get(at)) {
            let (above, rest) = Difference::parted(anchor);
            parts.push(rest);
            number = above.min(number - 1);
        }
        parts.reverse();
        parts.join(&b'/').into()
    }
}

impl IntoIterator for Difference {
    type Item = FileChange;
    type IntoIter = std::vec::IntoIter<FileChange>;

    fn into_iter(self) -> Self::IntoIter {
        self.changes.into_iter()
    }
}

impl std::ops::Deref for Difference {
    type Target = [FileChange];

    fn deref(&self) -> &[FileChange] {
        &self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_told_from_the_root_or_from_a_place_and_is_the_same_whole() {
        let anchors = Anchors::default();
        let name = [b'n'; 200];
        let (mut path, mut whole) = (Vec::new(), Vec::new());
        let mut all = Vec::new();
        for _ in 0..1000 {
            (path, whole) = (anchors.join(&path, &name), joined(&whole, &name));
            assert!(path.len() <= LONGEST);
            all.push((path.clone(), whole.clone()));
        }
        // Joining the same names again leads to the same anchor.
        let again = all.iter().fold(Vec::new(), |at, _| anchors.join(&at, &name));
        assert_eq!(again, path);
        let list = anchors.list(std::iter::empty());
        assert_eq!(list.anchors.len(), 49);
        assert!(all.iter().all(|(path, whole)| list.whole(path) == *whole));
        assert_eq!((Difference::parted(&all[0].0).0, Difference::parted(&path).0), (0, 49));
    }

    #[test]
    fn what_begins_at_no_place_or_at_a_later_one_ends() {
        let list =
            Difference { anchors: vec![b"/2/a".to_vec(), b"/9/b".to_vec()], changes: vec![] };
        for path in [&b"/"[..], b"/x/y", b"/1/c", b"/2/c", b"/77/c", b"/"] {
            assert!(list.whole(path).len() < 20);
        }
    }
}
