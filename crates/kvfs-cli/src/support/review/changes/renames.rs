//! Detects renames: joins the two list entries of a rename, and omits lines for paths that only
//! moved with their directory.

use std::collections::{HashMap, HashSet};

use super::file::{Detail, File};

/// Returns the list with the two entries of each rename joined into one, at the new path.
pub(super) fn joined(files: Vec<File>) -> Vec<File> {
    let mut gone: HashMap<Vec<u8>, File> = files
        .iter()
        .filter(|file| file.letter() == 'D' && file.moved().is_some())
        .map(|file| (file.path.clone(), file.clone()))
        .collect();
    let mut taken = HashSet::new();
    let mut all = Vec::new();
    for file in files {
        let from = file.moved().filter(|_| file.letter() == 'A').map(<[u8]>::to_vec);
        match from.and_then(|from| gone.remove(&from)) {
            Some(old) => {
                taken.insert(old.path.clone());
                all.push(pair(old, file));
            }
            None => all.push(file),
        }
    }
    all.retain(|file| file.letter() != 'D' || !taken.contains(&file.path));
    all
}

fn pair(old: File, new: File) -> File {
    let mut details: Vec<Detail> = Vec::new();
    for detail in new.details.iter().filter(|d| d.what != b"moved") {
        let before = old.details.iter().find(|d| d.what == detail.what);
        let before = before
            .and_then(|d| d.before.clone())
            .filter(|_| detail.what != b"linked-to" && detail.what != b"below");
        // A detail without values is only listed if it differs.
        if before != detail.after || detail.what == b"content" {
            details.push(Detail { before, ..detail.clone() });
        }
    }
    const OF_ONE: [&[u8]; 3] = [b"below", b"linked-to", b"moved"];
    for detail in old.details.iter().filter(|d| !OF_ONE.contains(&&d.what[..])) {
        if new.details.iter().all(|d| d.what != detail.what) {
            details.push(detail.clone());
        }
    }
    File { from: Some(old.path), before: old.before, details, ..new }
}

/// Determines which renames follow from that of a directory.
pub(super) struct Renames {
    /// The new paths of the renames that follow from another.
    implied: HashSet<Vec<u8>>,
    /// The number of moved paths below each renamed directory, by its new path.
    below: HashMap<Vec<u8>, usize>,
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

impl Renames {
    pub fn of(files: &[File]) -> Renames {
        let directories: HashMap<&[u8], &[u8]> = files
            .iter()
            .filter(|file| file.kind == "d")
            .filter_map(|file| Some((file.path.as_slice(), file.from.as_deref()?)))
            .collect();
        let mut renames = Renames { implied: HashSet::new(), below: HashMap::new() };
        // The path moved with its directory: the same name, in the same directory.
        let with_directory = |path: &[u8], from: &[u8]| {
            let ((directory, name), (was_in, was)) = (split(path), split(from));
            name == was && directories.get(directory).is_some_and(|from| *from == was_in)
        };
        for file in files.iter().filter(|file| file.moved_alone()) {
            if file.from.as_ref().is_some_and(|from| with_directory(&file.path, from)) {
                renames.implied.insert(file.path.clone());
            }
        }
        renames.count();
        renames
    }

    /// Counts the implied renames at the directories that they follow from.
    fn count(&mut self) {
        let mut paths: Vec<&[u8]> = self.implied.iter().map(Vec::as_slice).collect();
        // A directory sorts before its entries, so that each path is examined once.
        paths.sort_unstable_by_key(|path| path.len());
        let mut tops: HashMap<&[u8], &[u8]> = HashMap::with_capacity(paths.len());
        let mut below: HashMap<&[u8], usize> = HashMap::new();
        for path in paths {
            let directory = split(path).0;
            let top = tops.get(directory).copied().unwrap_or(directory);
            tops.insert(path, top);
            *below.entry(top).or_default() += 1;
        }
        self.below = below.into_iter().map(|(top, count)| (top.to_vec(), count)).collect();
    }

    pub fn is_implied(&self, file: &File) -> bool {
        self.implied.contains(&file.path)
    }

    /// Returns how many paths moved with this directory.
    pub fn below(&self, file: &File) -> usize {
        self.below.get(&file.path).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(path: Vec<u8>, from: Vec<u8>) -> File {
        let (before, after, kind) = (Some(0), Some(0), "d".into());
        File { path, from: Some(from), kind, before, after, details: Vec::new() }
    }

    #[test]
    fn what_follows_a_rename_is_counted_in_the_time_that_its_paths_take() {
        // A path for each directory, as long as the directory is deep: 100 MB of paths. If the time
        // grew by another factor of the depth, this would take a quarter of an hour.
        let depth = 10_000;
        let path = |top: &str, depth: usize| [top.as_bytes(), &b"/d".repeat(depth)[..]].concat();
        let files: Vec<File> =
            (0..depth).map(|at| renamed(path("new", at), path("old", at))).collect();
        let begun = std::time::Instant::now();
        let renames = Renames::of(&files);
        assert_eq!((renames.below(&files[0]), renames.below(&files[1])), (depth - 1, 0));
        assert!(!renames.is_implied(&files[0]) && renames.is_implied(&files[depth - 1]));
        assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    }
}
