//! The effects of calls on names: the changes of the tree, or the errors.

use std::sync::Arc;

use kvfs::{Caller, FileKind, RenameFlags, Timestamp};

use super::tree::{Entry, Id, Node, Overlay, Own, Tree};

type Effect = Result<Overlay, i32>;

/// Checks that a name may be used for an entry, or returns the error.
pub fn check_name(name: &[u8]) -> Result<(), i32> {
    match name {
        b"" => Err(libc::ENOENT),
        b"." | b".." => Err(libc::EEXIST),
        _ if name.len() > 255 => Err(libc::ENAMETOOLONG),
        _ if name.contains(&b'/') || name.contains(&0) => Err(libc::EINVAL),
        _ => Ok(()),
    }
}

impl Tree {
    fn settled(&self, id: Id) -> Option<Arc<Node>> {
        self.nodes.get(&id).map(|node| Arc::new(node.settled()))
    }

    /// The node of a directory is committed with every change of its names.
    fn touch(&self, over: &mut Overlay, id: Id) {
        over.nodes.insert(id, self.settled(id));
    }

    /// Removes one name.
    fn lose(&self, over: &mut Overlay, id: Id) {
        let last = self.is_dir(id) || self.links(id) == 1;
        over.nodes.insert(id, if last { None } else { self.settled(id) });
    }

    /// Returns the first state of an object that is made in a directory.
    pub fn newborn(
        &self,
        dir: Id,
        kind: FileKind,
        perm: u16,
        caller: Caller,
        now: Timestamp,
    ) -> Own {
        let above = self.nodes[&dir].now();
        let is_dir = kind == FileKind::Dir;
        let inherits = above.inherits();
        Own {
            perm: perm & 0o7777 | if inherits && is_dir { 0o2000 } else { 0 },
            owner: (caller.uid, if inherits { above.owner.1 } else { caller.gid }),
            mtime: if is_dir { Timestamp::default() } else { now },
            ..Own::default()
        }
    }

    pub fn make(&self, at: &Entry, id: Id, node: Node) -> Effect {
        check_name(&at.1)?;
        if self.entries.contains_key(at) {
            return Err(libc::EEXIST);
        }
        let mut over = Overlay::default();
        self.touch(&mut over, at.0);
        over.entries.insert(at.clone(), Some(id));
        over.nodes.insert(id, Some(Arc::new(node)));
        Ok(over)
    }

    /// `node` is the state of a file that has no name so far.
    pub fn link(&self, id: Id, at: &Entry, node: Option<Node>) -> Effect {
        check_name(&at.1)?;
        if self.is_dir(id) {
            return Err(libc::EPERM);
        }
        if self.entries.contains_key(at) {
            return Err(libc::EEXIST);
        }
        let mut over = Overlay::default();
        self.touch(&mut over, at.0);
        over.entries.insert(at.clone(), Some(id));
        over.nodes.insert(id, node.map(Arc::new).or_else(|| self.settled(id)));
        Ok(over)
    }

    pub fn unlink(&self, at: &Entry) -> Effect {
        check_name(&at.1)?;
        let id = *self.entries.get(at).ok_or(libc::ENOENT)?;
        if self.is_dir(id) {
            return Err(libc::EISDIR);
        }
        Ok(self.removed(at, id))
    }

    pub fn rmdir(&self, at: &Entry) -> Effect {
        match &at.1[..] {
            b"." => return Err(libc::EINVAL),
            b".." => return Err(libc::ENOTEMPTY),
            name => check_name(name)?,
        }
        let id = *self.entries.get(at).ok_or(libc::ENOENT)?;
        match () {
            () if !self.is_dir(id) => Err(libc::ENOTDIR),
            () if self.children(id).next().is_some() => Err(libc::ENOTEMPTY),
            () => Ok(self.removed(at, id)),
        }
    }

    fn removed(&self, at: &Entry, id: Id) -> Overlay {
        let mut over = Overlay::default();
        self.touch(&mut over, at.0);
        over.entries.insert(at.clone(), None);
        self.lose(&mut over, id);
        over
    }

    /// A name with all below it.
    pub fn remove_tree(&self, at: &Entry) -> Effect {
        match &at.1[..] {
            b"." => return Err(libc::EINVAL),
            b".." => return Err(libc::ENOTEMPTY),
            name => check_name(name)?,
        }
        let top = *self.entries.get(at).ok_or(libc::ENOENT)?;
        let mut over = Overlay::default();
        self.touch(&mut over, at.0);
        let below = |(dir, _): &&Entry| self.is_dir(top) && self.is_below(*dir, top);
        let doomed: Vec<&Entry> =
            self.entries.keys().filter(|entry| *entry == at || below(entry)).collect();
        for entry in &doomed {
            let id = self.entries[*entry];
            let names = doomed.iter().filter(|other| self.entries[**other] == id).count() as u32;
            let last = self.is_dir(id) || self.links(id) == names;
            over.entries.insert((*entry).clone(), None);
            over.nodes.insert(id, if last { None } else { self.settled(id) });
        }
        Ok(over)
    }

    /// `white` is the number of the whiteout that is left at the old name, if one is requested.
    pub fn rename(
        &self,
        from: &Entry,
        to: &Entry,
        flags: RenameFlags,
        white: Id,
        now: Timestamp,
    ) -> Effect {
        for name in [&from.1, &to.1] {
            match check_name(name) {
                Err(libc::EEXIST) => return Err(libc::EINVAL),
                checked => checked?,
            }
        }
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(libc::EINVAL);
        }
        let source = *self.entries.get(from).ok_or(libc::ENOENT)?;
        let target = self.entries.get(to).copied();
        let target_is_dir = target.is_some_and(|t| self.is_dir(t));
        match target {
            Some(_) if flags.no_replace => return Err(libc::EEXIST),
            None if flags.exchange => return Err(libc::ENOENT),
            Some(target) if target == source => return Ok(Overlay::default()),
            _ => {}
        }
        if from.0 != to.0 {
            if self.is_dir(source) && self.is_below(to.0, source) {
                return Err(libc::EINVAL);
            }
            if target.is_some_and(|t| self.is_dir(t) && self.is_below(from.0, t)) {
                return Err(if flags.exchange { libc::EINVAL } else { libc::ENOTEMPTY });
            }
        }
        if let Some(target) = target.filter(|_| !flags.exchange) {
            match (self.is_dir(source), target_is_dir) {
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) => return Err(libc::EISDIR),
                (true, true) if self.children(target).next().is_some() => {
                    return Err(libc::ENOTEMPTY);
                }
                _ => {}
            }
        }
        let mut over = Overlay::default();
        self.touch(&mut over, from.0);
        self.touch(&mut over, to.0);
        self.touch(&mut over, source);
        over.moves = from.0 != to.0 && (self.is_dir(source) || flags.exchange && target_is_dir);
        over.entries.insert(from.clone(), None);
        match target {
            Some(target) if flags.exchange => {
                self.touch(&mut over, target);
                over.entries.insert(from.clone(), Some(target));
            }
            Some(target) => self.lose(&mut over, target),
            None => {}
        }
        if flags.whiteout {
            let owner = self.nodes[&source].now().owner;
            let own = Own { owner, mtime: now, ..Own::default() };
            over.nodes.insert(white, Some(Arc::new(Node::new(FileKind::CharDevice, 0, own))));
            over.entries.insert(from.clone(), Some(white));
        }
        over.entries.insert(to.clone(), Some(source));
        Ok(over)
    }

    /// Copies `from` with everything below it. `fresh` returns the numbers of the copies.
    pub fn clone_tree(&self, from: Id, at: &Entry, fresh: &mut Id) -> Effect {
        self.clone_of(self, from, at, fresh)
    }

    /// Copies an object from another state.
    pub fn clone_of(&self, source: &Tree, from: Id, at: &Entry, fresh: &mut Id) -> Effect {
        check_name(&at.1)?;
        if self.entries.contains_key(at) {
            return Err(libc::EEXIST);
        }
        let mut over = Overlay::default();
        self.touch(&mut over, at.0);
        let mut copies = std::collections::BTreeMap::new();
        let mut todo = vec![(from, at.clone())];
        while let Some((id, at)) = todo.pop() {
            let copy = *copies.entry(id).or_insert_with(|| {
                *fresh += 1;
                *fresh
            });
            over.entries.insert(at, Some(copy));
            over.nodes.insert(copy, source.settled(id));
            todo.extend(source.children(id).map(|(name, child)| (child, (copy, name.clone()))));
        }
        Ok(over)
    }

    /// Returns the paths at which two states differ.
    pub fn differing(&self, other: &Tree) -> Vec<Vec<u8>> {
        let (old, new) = (self.paths(), other.paths());
        let group = |tree: &Tree,
                     paths: &std::collections::BTreeMap<Vec<u8>, Id>,
                     id: Id|
         -> Vec<Vec<u8>> {
            if tree.links(id) < 2 || tree.is_dir(id) {
                return Vec::new();
            }
            paths.iter().filter(|(_, at)| **at == id).map(|(path, _)| path.clone()).collect()
        };
        let mut all: Vec<&Vec<u8>> = old.keys().chain(new.keys()).collect();
        all.sort();
        all.dedup();
        let differs = |path: &&Vec<u8>| {
            let (Some(&a), Some(&b)) = (old.get(*path), new.get(*path)) else { return true };
            let (x, y) = (&self.nodes[&a], &other.nodes[&b]);
            let (p, q) = (x.now(), y.now());
            let files = !x.is_dir() && !y.is_dir();
            (x.kind, x.rdev, p.perm, p.owner) != (y.kind, y.rdev, q.perm, q.owner)
                || p.xattrs != q.xattrs
                || p.data != q.data
                || files && group(self, &old, a) != group(other, &new, b)
        };
        all.into_iter().filter(differs).cloned().collect()
    }
}
