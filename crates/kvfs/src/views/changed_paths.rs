//! Translates the keys of commits into changes of files by path, for clients that follow the store
//! ([`kvdb::Kvdb::follow_commits_with`]).
//!
//! Paths are those of the current state. A file that has no path any more, because a directory
//! above it was removed or renamed since, is skipped, because a later commit reports the removal or
//! renaming.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use kvdb::{CommittedKey, DictionaryId};

use crate::attr::{FileKind, Ino};
use crate::difference::{Named, Room, Side, joined};
use crate::error::{Error, Result};
use crate::layout::{self, ImapKey};
use crate::views::{ViewId, Views, Wait};

/// The change of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathChange {
    /// An object was made at the path, was moved to it by a rename, or replaced another one.
    Made,
    /// The content or the attributes of the object at the path have changed.
    Changed,
    /// The path does not exist any more.
    Removed,
}

impl PathChange {
    /// Returns the change as a word.
    pub fn word(self) -> &'static str {
        match self {
            PathChange::Made => "made",
            PathChange::Changed => "changed",
            PathChange::Removed => "removed",
        }
    }
}

/// The paths that one commit has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedPaths {
    /// The changed paths in order, relative to the root, without a leading slash.
    pub paths: Vec<(Vec<u8>, PathChange)>,
    /// The commit is too large for a list: it has changed more paths than are listed.
    pub more: bool,
}

impl Views {
    /// Commits all data that programs have written to the files of a view before this call, both
    /// data that the kernel holds back (dirty pages of mappings, gathered writes) and data that
    /// waits in memory. The method does not wait for the device. The commits that exist when it
    /// returns contain every change that a program made before the call.
    ///
    /// Fails if some data cannot be committed now, such as data of a file that a transaction has
    /// locked. Then the commits lack some of the changes.
    pub fn settle(&self, view: &ViewId) -> Result<()> {
        let fs = self.fs(view)?;
        if fs.core.options.read_only {
            return Ok(());
        }
        self.shared.watchers.write_back(Wait::ForAll)?;
        kvdb::without_lock_waits(|| {
            let _call = fs.enter()?;
            fs.commit_older_than(Duration::MAX)
        })
    }

    /// Returns the dictionaries whose keys show changes to the files of a view.
    pub fn followed(&self, view: &ViewId) -> Result<Vec<DictionaryId>> {
        let layout = self.fs(view)?.core.layout;
        Ok(vec![layout.nmap, layout.imap])
    }

    /// Returns the paths in a view that one commit has changed, from its changes to the
    /// dictionaries of [`Views::followed`].
    pub fn changed_paths(
        &self,
        view: &ViewId,
        changes: &[(DictionaryId, CommittedKey)],
    ) -> Result<ChangedPaths> {
        let (layout, followed) = (self.fs(view)?.core.layout, self.followed(view)?);
        let side = Side::new(self.shared.db.view(), layout);
        let mut names: BTreeMap<(Ino, Vec<u8>), PathChange> = BTreeMap::new();
        let (mut nodes, mut more) = (HashSet::new(), false);
        for (dict, change) in changes {
            match change {
                CommittedKey::Unlisted => more |= followed.contains(dict),
                // The ranges belong to objects whose names are removed in the same commit, and the
                // names are reported.
                CommittedKey::DeleteRange(..) => {}
                CommittedKey::Put(key) | CommittedKey::Delete(key) if *dict == layout.nmap => {
                    let (parent, name) = layout::decode_name_key(key)?;
                    let made = matches!(change, CommittedKey::Put(_));
                    let change = if made { PathChange::Made } else { PathChange::Removed };
                    names.insert((parent, name.to_vec()), change);
                }
                CommittedKey::Put(key) if *dict == layout.imap => {
                    if let ImapKey::Node(ino) = layout::decode_imap_key(key)? {
                        nodes.insert(ino);
                    }
                }
                CommittedKey::Put(_) | CommittedKey::Delete(_) => {}
            }
        }
        let parents: BTreeSet<Ino> = names.keys().map(|(parent, _)| *parent).collect();
        // A directory changes with each of its entries, so the entries are reported instead of the
        // directory.
        nodes.retain(|ino| !parents.contains(ino));
        let (mut directories, mut files) = (BTreeSet::new(), HashSet::new());
        for ino in nodes {
            match side.node(ino)?.map(|node| node.attr.kind) {
                Some(FileKind::Dir) => drop(directories.insert(ino)),
                Some(_) => drop(files.insert(ino)),
                None => {}
            }
        }
        let found = side.names_of(&files)?;
        let wanted: BTreeSet<Ino> = parents
            .iter()
            .copied()
            .chain(directories.iter().copied())
            .chain(found.iter().map(|(parent, ..)| *parent))
            .collect();
        match paths_of(&side, &wanted, &found, &names, &directories) {
            // The list exceeds its limit, because the total length of the paths of deep directories
            // grows with the square of the depth.
            Err(Error::Store(kvdb::Error::Limit(_))) => {
                Ok(ChangedPaths { paths: Vec::new(), more: true })
            }
            paths => Ok(ChangedPaths { paths: paths?.into_iter().collect(), more }),
        }
    }
}

/// Returns the paths of changed files, of names that were made or removed, and of changed
/// directories, all in the directories `wanted`.
fn paths_of(
    side: &Side,
    wanted: &BTreeSet<Ino>,
    files: &[Named],
    names: &BTreeMap<(Ino, Vec<u8>), PathChange>,
    directories: &BTreeSet<Ino>,
) -> Result<BTreeMap<Vec<u8>, PathChange>> {
    let mut room = Room::of_list();
    let ways = side.paths(wanted, &mut room)?;
    let mut paths: BTreeMap<Vec<u8>, PathChange> = BTreeMap::new();
    let changed = files.iter().map(|(parent, name, _)| (parent, name, PathChange::Changed));
    let named = names.iter().map(|((parent, name), change)| (parent, name, *change));
    // A new name is more specific than a change of its file, so the name replaces the change.
    for (parent, name, change) in changed.chain(named) {
        if let Some(way) = ways.get(parent) {
            room.take_path(way.len() + name.len())?;
            paths.insert(joined(way, name), change);
        }
    }
    for directory in directories {
        if let Some(way) = ways.get(directory) {
            room.take_path(way.len())?;
            paths.entry(way.clone()).or_insert(PathChange::Changed);
        }
    }
    Ok(paths)
}
