//! The steps by which a transaction gets what an upper layer changes.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;

use crate::support::layered_runs::items;
use crate::support::layers::layer::{Attributes, split};
use crate::support::layers::reader::{Change, Layers, What};
use crate::support::terminal::output::{Exit, Failure, Outcome};

/// The name of the directory with the views, which the layer hides.
pub const HIDDEN: &[u8] = b".kvfs";

/// A name of a file of the upper layer.
pub struct Name {
    pub path: Vec<u8>,
    /// The file of the lower layer at this path, if there is one.
    pub below: Option<Attributes>,
    /// True if that one is of another kind, or has another content or target.
    pub differs: bool,
}

/// A file that was copied up, with its names.
pub struct Copied {
    pub file: Attributes,
    /// At least one name, in the order of the reader.
    pub names: Vec<Name>,
}

/// Steps in the order in which they have to be taken. Paths are those of the layers.
#[derive(Default)]
pub struct Plan {
    /// Files that are written into those that they were copied from.
    pub copied: Vec<Copied>,
    /// Paths that are removed from the lower layer; true for a directory, with all that it has.
    pub removed: Vec<(Vec<u8>, bool)>,
    /// Files and directories that are made, a directory before its entries. An existing file is
    /// replaced, unless it is a directory.
    pub made: Vec<Vec<u8>>,
    /// Further names of files, and the name that each of them has already.
    pub links: Vec<(Vec<u8>, Vec<u8>)>,
    /// Directories of both layers that get the attributes of the upper one: the others have changed
    /// or were touched by the steps before.
    pub directories: BTreeSet<Vec<u8>>,
    new_directories: HashSet<Vec<u8>>,
}

impl Plan {
    /// Reads an upper layer. `start` has the attributes of its root as they were before anything
    /// was changed.
    pub fn of(layers: &Layers, start: &Attributes) -> Outcome<Plan> {
        let mut plan = Plan::default();
        // The places of files with several names in `copied`.
        let mut several = HashMap::new();
        for change in layers.changes() {
            let change = change?;
            if split_first(&change.path) == HIDDEN {
                match change.after.is_none() && change.path == HIDDEN {
                    true => continue,
                    false => return Err(of_views()),
                }
            }
            plan.add(layers, change, start, &mut several)?;
        }
        Ok(plan)
    }

    fn add(
        &mut self,
        layers: &Layers,
        change: Change,
        start: &Attributes,
        several: &mut HashMap<(u64, u64), usize>,
    ) -> Outcome {
        let was_directory = change.before.is_some_and(|before| before.is_directory());
        let Some(after) = change.after else {
            self.touch(&change.path);
            self.removed.push((change.path, was_directory));
            return Ok(());
        };
        if after.is_directory() {
            if change.what == What::Changed {
                if has_other_attributes(layers, &change, &after, start)? {
                    self.directories.insert(change.path);
                }
            } else {
                self.touch(&change.path);
                self.new_directories.insert(change.path.clone());
                self.made.push(change.path);
            }
            return Ok(());
        }
        if was_directory {
            self.removed.push((change.path.clone(), true));
        }
        if change.is_copy {
            let (below, differs) = (change.before, change.content);
            let name = Name { path: change.path, below, differs };
            let identity = (after.device, after.inode);
            let at = several.get(&identity).copied();
            if let Some(copied) = at.and_then(|at| self.copied.get_mut(at)) {
                copied.names.push(name);
                return Ok(());
            }
            if after.is_linked {
                several.insert(identity, self.copied.len());
            }
            self.copied.push(Copied { file: after, names: vec![name] });
            return Ok(());
        }
        match change.first {
            Some(first) => self.link(change.path, first),
            None => self.make(change.path),
        }
        Ok(())
    }

    /// Adds a file that is made.
    pub fn make(&mut self, path: Vec<u8>) {
        self.touch(&path);
        self.made.push(path);
    }

    /// Adds a further name of a file.
    pub fn link(&mut self, path: Vec<u8>, to: Vec<u8>) {
        self.touch(&path);
        self.links.push((path, to));
    }

    /// Notes that the entries of the directory of a path change.
    fn touch(&mut self, path: &[u8]) {
        let (directory, _) = split(path);
        if !self.new_directories.contains(directory) {
            self.directories.insert(directory.to_vec());
        }
    }
}

/// Returns the first name of a path.
fn split_first(path: &[u8]) -> &[u8] {
    path.split(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Returns whether a directory of both layers has got other attributes.
fn has_other_attributes(
    layers: &Layers,
    change: &Change,
    after: &Attributes,
    start: &Attributes,
) -> Outcome<bool> {
    let (access, times) = match change.path.is_empty() {
        true => (access(after) != access(start), after.mtime != start.mtime),
        false => (change.access(), change.times()),
    };
    let cannot =
        |e: io::Error| layers.upper.failure("cannot read the attributes of", &change.path, &e);
    Ok(access || times || change.xattrs && items::differ(layers, &change.path).map_err(cannot)?)
}

/// Returns the mode, the user and the group.
pub fn access(file: &Attributes) -> (u32, u32, u32) {
    (file.mode, file.uid, file.gid)
}

/// Returns the failure for files at the place of the views.
fn of_views() -> Failure {
    let what = "the program has made .kvfs in the root of the store, where that name belongs to \
                the store's views";
    Failure::new(Exit::Failed, what).hint("use another name, or run the program without --layer")
}
