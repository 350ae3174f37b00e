//! What was renamed: two entries of the list made one, and what moved with its directory left out
//! of the lines, where nothing else about it has changed.

use std::collections::{HashMap, HashSet};

use super::file::{Detail, File};

/// The list with each pair that is one rename as one entry, at the path that it has now.
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
        let before = before.and_then(|d| d.before.clone()).filter(|_| detail.what != b"linked-to");
        // What is said without values differs, or it would not be said.
        if before != detail.after || detail.what == b"content" {
            details.push(Detail { before, ..detail.clone() });
        }
    }
    for detail in old.details.iter().filter(|d| d.what != b"moved" && d.what != b"linked-to") {
        if new.details.iter().all(|d| d.what != detail.what) {
            details.push(detail.clone());
        }
    }
    File { from: Some(old.path), before: old.before, details, ..new }
}

/// Which of the renames follow from that of a directory.
pub(super) struct Renames {
    /// Paths now of those that follow.
    implied: HashSet<Vec<u8>>,
    /// How many lie below a directory that was renamed, by its path now.
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
        // With its directory: under the same name, in what is the same directory.
        let with_directory = |path: &[u8], from: &[u8]| {
            let ((directory, name), (was_in, was)) = (split(path), split(from));
            name == was && directories.get(directory).is_some_and(|from| *from == was_in)
        };
        for file in files.iter().filter(|file| file.moved_alone()) {
            if file.from.as_ref().is_some_and(|from| with_directory(&file.path, from)) {
                renames.implied.insert(file.path.clone());
            }
        }
        for path in &renames.implied {
            let mut top = split(path).0;
            while renames.implied.contains(top) {
                top = split(top).0;
            }
            *renames.below.entry(top.to_vec()).or_default() += 1;
        }
        renames
    }

    pub fn is_implied(&self, file: &File) -> bool {
        self.implied.contains(&file.path)
    }

    /// How many things moved with this directory.
    pub fn below(&self, file: &File) -> usize {
        self.below.get(&file.path).copied().unwrap_or(0)
    }
}
