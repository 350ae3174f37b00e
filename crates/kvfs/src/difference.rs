//! What a transaction has changed, or what two snapshots differ in, in paths.
//!
//! A transaction knows which names and inodes it has changed. A directory knows the one it is in, so the path of a name is found by
//! going up, with one look through the names of each directory on the way. Of a file of which the content alone has changed the node
//! hints at a directory in which it has a name, and its names are looked for there. Where that does not give as many as it has (it has
//! several, in several directories; the one in that directory is gone; the node was written before there were hints) all names are gone
//! through, which costs some 80 ns a name, and ends when all are found. Read from frozen states, so that nothing is locked and nobody waits.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use kvdb::View as State;

use crate::absorb::Touched;
use crate::attr::{Attr, FileKind, Ino, ROOT};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::layout::{self, Attributes, ImapKey, Layout};

/// A path that means something else than before.
#[derive(Clone, Debug)]
pub struct FileChange {
    /// From the root, without a slash in front.
    pub path: Vec<u8>,
    /// `None`: there was nothing.
    pub before: Option<Attr>,
    /// `None`: there is nothing now.
    pub after: Option<Attr>,
}

/// Directories on a way up, at most: more is a circle, hence damage.
const DEEPEST: usize = 4096;

struct Side {
    state: State,
    layout: Layout,
    paths: HashMap<Ino, Option<Vec<u8>>>,
}

impl Side {
    fn of(fs: &Fs) -> Result<Side> {
        Ok(Side::new(fs.core.scope.view()?, fs.core.layout))
    }

    fn new(state: State, layout: Layout) -> Side {
        Side { state, layout, paths: HashMap::from([(ROOT, Some(Vec::new()))]) }
    }

    fn attributes(&self, ino: Ino) -> Result<Option<Attributes>> {
        match self.state.get(self.layout.imap, &layout::node_key(ino))? {
            Some(value) => Ok(Some(layout::decode_node(ino, &value)?.0)),
            None => Ok(None),
        }
    }

    fn entry(&self, parent: Ino, name: &[u8]) -> Result<Option<Attr>> {
        let Some(value) = self.state.get(self.layout.nmap, &layout::name_key(parent, name))? else { return Ok(None) };
        let (ino, _) = layout::decode_name(parent, &value)?;
        Ok(self.attributes(ino)?.map(|attributes| attributes.public(ino)))
    }

    /// The name of a directory in the one it is in.
    fn name_in(&self, parent: Ino, wanted: Ino) -> Result<Option<Vec<u8>>> {
        let mut found = Ok(None);
        let (start, end) = (parent.to_be_bytes(), layout::names_end(parent));
        self.state.for_each(self.layout.nmap, &start, &end, |key, value| match named(key, value) {
            Ok((_, name, ino, _)) if ino == wanted => {
                found = Ok(Some(name.to_vec()));
                ControlFlow::Break(())
            }
            Ok(_) => ControlFlow::Continue(()),
            Err(error) => {
                found = Err(error);
                ControlFlow::Break(())
            }
        })?;
        found
    }

    /// The path of a directory; `None`: it has none here.
    fn path(&mut self, dir: Ino) -> Result<Option<Vec<u8>>> {
        let (mut at, mut way) = (dir, Vec::new());
        let mut path = loop {
            if let Some(known) = self.paths.get(&at) {
                break known.clone();
            }
            let parent = self.attributes(at)?.filter(|a| a.kind == FileKind::Dir && way.len() < DEEPEST).map(|a| a.parent);
            let name = match parent {
                Some(parent) => self.name_in(parent, at)?.map(|name| (parent, name)),
                None => None,
            };
            let Some((parent, name)) = name else {
                self.paths.insert(at, None);
                break None;
            };
            way.push((at, name));
            at = parent;
        };
        for (ino, name) in way.into_iter().rev() {
            path = path.map(|parent| joined(&parent, &name));
            self.paths.insert(ino, path.clone());
        }
        Ok(path)
    }
}

fn joined(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() }
}

/// Directory, name, inode and kind of a tuple of names.
fn named<'k>(key: &'k [u8], value: &[u8]) -> Result<(Ino, &'k [u8], Ino, FileKind)> {
    let (parent, name) = layout::decode_name_key(key)?;
    let (ino, kind) = layout::decode_name(parent, value)?;
    Ok((parent, name, ino, kind))
}

/// `true` when a person would say that the file has changed: of a directory the times and sizes follow from the names in it.
fn differs(before: &Attr, after: &Attr) -> bool {
    let rights = |a: &Attr| (a.kind, a.perm, a.uid, a.gid);
    let content = |a: &Attr| (a.size, a.mtime, a.ctime, a.rdev);
    rights(before) != rights(after) || before.kind != FileKind::Dir && content(before) != content(after)
}

/// What has changed from `before` to `after`, where `touched` says what may have; sorted by path. A directory that was moved is listed
/// itself, what is in it is not.
pub(crate) fn difference(before: &Fs, after: &Fs, touched: &Touched) -> Result<Vec<FileChange>> {
    between(Side::of(before)?, Side::of(after)?, touched)
}

/// What has changed from one state of a store to another, each a snapshot or the mainline; sorted by path. It takes the time that the
/// changes take. (What waits in the memory of an [`Fs`] is not in any state yet.)
pub fn difference_of_states(before: &State, after: &State) -> Result<Vec<FileChange>> {
    let layout = |state: &State| Layout::of_state(state).ok_or(Error::NotFound);
    let (old, new) = (layout(before)?, layout(after)?);
    let mut touched = Touched::default();
    for change in before.difference(old.nmap, after, new.nmap)? {
        let change = change?;
        let (parent, name) = layout::decode_name_key(&change.key)?;
        touched.names.push((parent, name.into(), change.after.is_none()));
    }
    for change in before.difference(old.imap, after, new.imap)? {
        let change = change?;
        if let ImapKey::Node(ino) = layout::decode_imap_key(&change.key)? {
            touched.inodes.push((ino, change.after.is_none()));
        }
    }
    between(Side::new(before.clone(), old), Side::new(after.clone(), new), &touched)
}

fn between(mut old: Side, mut new: Side, touched: &Touched) -> Result<Vec<FileChange>> {
    let mut changes: BTreeMap<Vec<u8>, FileChange> = BTreeMap::new();
    let mut seen = HashSet::new();
    for (parent, name, _) in &touched.names {
        let (was, is) = (old.entry(*parent, name)?, new.entry(*parent, name)?);
        seen.extend(is.iter().map(|attr| attr.ino));
        let same = matches!((&was, &is), (Some(was), Some(is)) if was.ino == is.ino && !differs(was, is));
        if same || was.is_none() && is.is_none() {
            continue;
        }
        let path = match new.path(*parent)? {
            None => old.path(*parent)?,
            path => path,
        };
        if let Some(path) = path {
            let path = joined(&path, name);
            changes.insert(path.clone(), FileChange { path, before: was, after: is });
        }
    }
    // Those that kept their names.
    let mut wanted: HashMap<Ino, (Attr, Attr)> = HashMap::new();
    let mut hints: BTreeSet<Ino> = BTreeSet::new();
    for &(ino, removed) in &touched.inodes {
        if removed || seen.contains(&ino) {
            continue;
        }
        if let (Some(was), Some(is)) = (old.attributes(ino)?, new.attributes(ino)?) {
            let hint = is.parent;
            let (was, is) = (was.public(ino), is.public(ino));
            if is.nlink > 0 && differs(&was, &is) {
                wanted.insert(ino, (was, is));
                hints.insert(hint);
            }
        }
    }
    for (parent, name, ino) in names_of(&new, &wanted, &hints)? {
        let attributes = wanted.get(&ino).cloned();
        if let (Some(path), Some((was, is))) = (new.path(parent)?, attributes) {
            let path = joined(&path, &name);
            changes.insert(path.clone(), FileChange { path, before: Some(was), after: Some(is) });
        }
    }
    Ok(changes.into_values().collect())
}

/// Directory, name and inode of every name of these files; those in `hints`, directories, are looked for first.
fn names_of(side: &Side, wanted: &HashMap<Ino, (Attr, Attr)>, hints: &BTreeSet<Ino>) -> Result<Vec<(Ino, Vec<u8>, Ino)>> {
    let links = |attr: &Attr| if attr.kind == FileKind::Dir { 1 } else { u64::from(attr.nlink) };
    let mut missing: u64 = wanted.values().map(|(_, is)| links(is)).sum();
    let mut found = Vec::new();
    if wanted.contains_key(&ROOT) {
        found.push((ROOT, Vec::new(), ROOT));
        missing -= 1;
    }
    let mut look = |start: &[u8], end: &[u8], looked_at: &BTreeSet<Ino>| -> Result<bool> {
        let mut failed = None;
        side.state.for_each(side.layout.nmap, start, end, |key, value| {
            match named(key, value) {
                Ok((parent, name, ino, _)) if wanted.contains_key(&ino) && !looked_at.contains(&parent) => {
                    found.push((parent, name.to_vec(), ino));
                    missing = missing.saturating_sub(1);
                }
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
            if missing == 0 || failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        failed.map_or(Ok(missing == 0), Err)
    };
    let none = BTreeSet::new();
    for &dir in hints.iter().filter(|&&dir| dir != 0) {
        if look(&dir.to_be_bytes(), &layout::names_end(dir), &none)? {
            return Ok(found);
        }
    }
    look(b"", b"", hints)?;
    Ok(found)
}
