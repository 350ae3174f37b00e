//! One call on files or keys, and its effect on the history.

use kvdb::{Batch, DictionaryId, Durability, Kvdb};
use kvfs::{Allocate, AllocateMode, Caller, FileKind, Fs, RenameFlags, SetAttr, XattrFlags};

use super::history::{FileId, History, Node, Version, XATTR};

const USER: Caller = Caller { uid: 1000, gid: 100, pid: 1 };

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    File(String),
    Dir(String),
    Symlink(String),
    Write {
        path: String,
        at: usize,
        data: Vec<u8>,
    },
    Truncate(String, usize),
    /// Replaces these bytes by zeros.
    Punch {
        path: String,
        at: usize,
        len: usize,
    },
    Mode(String, u16),
    Xattr(String, Option<Vec<u8>>),
    Rename {
        from: String,
        to: String,
    },
    Exchange(String, String),
    Link {
        from: String,
        to: String,
    },
    Unlink(String),
    Rmdir(String),
    Fsync(String),
    SyncAll,
    Keys(Vec<(Vec<u8>, Vec<u8>)>, Durability),
    /// Makes a branch, or drops it if it is there. Either is on disk at once, and never without the
    /// names and keys that were committed before it.
    Branch,
}

pub struct Store<'a> {
    pub fs: &'a Fs,
    pub db: &'a Kvdb,
    pub dict: DictionaryId,
}

pub fn split(path: &str) -> (&str, &[u8]) {
    let (parent, name) = path.rsplit_once('/').expect("every path but the root's has a slash");
    (parent, name.as_bytes())
}

fn is_free(h: &History, path: &str) -> bool {
    !h.now().names.contains_key(path) && h.is_dir(split(path).0)
}

impl Store<'_> {
    /// Makes the call. Returns `Ok(false)` if it is not possible in this state, so that nothing was
    /// done.
    pub fn perform(&self, step: &Step, h: &mut History) -> kvfs::Result<bool> {
        let done = match step {
            Step::File(path) | Step::Dir(path) | Step::Symlink(path) => self.make(step, path, h)?,
            Step::Write { .. }
            | Step::Truncate(..)
            | Step::Punch { .. }
            | Step::Mode(..)
            | Step::Xattr(..) => self.change(step, h)?,
            Step::Rename { from, to } => self.rename(from, to, h)?,
            Step::Exchange(a, b) => self.exchange(a, b, h)?,
            Step::Link { from, to } => self.link(from, to, h)?,
            Step::Unlink(path) => {
                if h.is_dir(path) || !h.now().names.contains_key(path) {
                    return Ok(false);
                }
                h.attempt().names.remove(path);
                let (parent, name) = split(path);
                self.fs.unlink(h.ino(parent), name)?;
                true
            }
            Step::Rmdir(path) => {
                if !h.is_empty_dir(path) {
                    return Ok(false);
                }
                h.attempt().names.remove(path);
                let (parent, name) = split(path);
                self.fs.rmdir(h.ino(parent), name)?;
                true
            }
            Step::Fsync(path) => {
                let id: Option<FileId> = match h.now().names.get(path) {
                    Some(Node::File(id)) => Some(*id),
                    Some(Node::Symlink(_)) => return Ok(false),
                    Some(Node::Dir) => None,
                    None if path.is_empty() => None,
                    None => return Ok(false),
                };
                self.fs.fsync(h.ino(path), false)?;
                match id {
                    Some(id) => h.synced(Some(id)),
                    // The sync of a directory makes names and keys durable, and no file data.
                    None => drop(h.states.drain(..h.states.len() - 1)),
                }
                true
            }
            Step::SyncAll => {
                self.fs.sync_all()?;
                h.synced(None);
                true
            }
            Step::Keys(changes, durability) => {
                let mut batch = Batch::new();
                changes
                    .iter()
                    .for_each(|(key, value)| batch.put(self.dict, key.clone(), value.clone()));
                h.attempt().keys.extend(changes.iter().cloned());
                self.db.commit(batch, *durability)?;
                if *durability == Durability::Synced {
                    h.states.drain(..h.states.len() - 1);
                }
                true
            }
            Step::Branch => {
                match self.db.branches().iter().any(|branch| branch.name == "gone") {
                    true => self.db.drop_branch("gone")?,
                    false => self.db.create_branch("gone")?,
                }
                h.states.drain(..h.states.len() - 1);
                true
            }
        };
        Ok(done)
    }

    fn make(&self, step: &Step, path: &str, h: &mut History) -> kvfs::Result<bool> {
        if !is_free(h, path) {
            return Ok(false);
        }
        let id = h.versions.len();
        let node = match step {
            Step::Dir(_) => Node::Dir,
            Step::Symlink(_) => Node::Symlink(b"target".to_vec()),
            _ => Node::File(id),
        };
        let state = h.attempt();
        state.names.insert(path.into(), node.clone());
        if node == Node::File(id) {
            state.least.insert(id, 0);
            h.versions.push(vec![Version { content: Vec::new(), mode: 0o644, xattr: None }]);
        }
        let (parent, name) = split(path);
        let parent = h.ino(parent);
        let attr = match &node {
            Node::Dir => self.fs.mkdir(parent, name, 0o755, USER),
            Node::Symlink(target) => self.fs.symlink(parent, name, target, USER),
            Node::File(_) => self.fs.mknod(parent, name, FileKind::File, 0o644, 0, USER),
        }?;
        h.inos.insert(path.into(), attr.ino);
        Ok(true)
    }

    fn change(&self, step: &Step, h: &mut History) -> kvfs::Result<bool> {
        let (path, changed) = match step {
            Step::Write { path, at, data } => {
                let write = |v: &mut Version| {
                    let content = &mut v.content;
                    content.resize(content.len().max(at + data.len()), 0);
                    content[*at..at + data.len()].copy_from_slice(data);
                };
                (path, h.change(path, write))
            }
            Step::Truncate(path, size) => (path, h.change(path, |v| v.content.resize(*size, 0))),
            Step::Punch { path, at, len } => {
                let punch = |v: &mut Version| {
                    let end = v.content.len();
                    v.content[(*at).min(end)..(at + len).min(end)].fill(0);
                };
                (path, h.change(path, punch))
            }
            Step::Mode(path, mode) => (path, h.change(path, |v| v.mode = *mode)),
            Step::Xattr(path, value) => {
                if let Some(Node::File(id)) = h.now().names.get(path)
                    && value.is_none()
                    && h.version(*id).xattr.is_none()
                {
                    return Ok(false);
                }
                (path, h.change(path, |v| v.xattr = value.clone()))
            }
            _ => return Ok(false),
        };
        if changed.is_none() {
            return Ok(false);
        }
        let ino = h.ino(path);
        match step {
            Step::Write { at, data, .. } => {
                self.fs.write(ino, *at as u64, data, Default::default())?;
            }
            Step::Truncate(_, size) => {
                self.fs.setattr(
                    ino,
                    &SetAttr { size: Some(*size as u64), ..SetAttr::default() },
                    USER,
                )?;
            }
            Step::Punch { at, len, .. } => {
                let how = Allocate { mode: AllocateMode::Punch, keep_size: true };
                self.fs.fallocate(ino, how, *at as u64, *len as u64)?;
            }
            Step::Mode(_, mode) => {
                self.fs.setattr(ino, &SetAttr { mode: Some(*mode), ..SetAttr::default() }, USER)?;
            }
            Step::Xattr(_, Some(value)) => {
                self.fs.setxattr(ino, XATTR, value, XattrFlags::default())?
            }
            Step::Xattr(_, None) => self.fs.removexattr(ino, XATTR)?,
            _ => {}
        }
        Ok(true)
    }

    fn rename(&self, from: &str, to: &str, h: &mut History) -> kvfs::Result<bool> {
        let (old, new) = (h.now().names.get(from).cloned(), h.now().names.get(to).cloned());
        let Some(old) = old else { return Ok(false) };
        let possible = match (&old, &new) {
            _ if from == to || !h.is_dir(split(to).0) => false,
            (Node::Dir, _) if to.starts_with(&format!("{from}/")) => false,
            (Node::Dir, None) => true,
            (Node::Dir, Some(Node::Dir)) => h.is_empty_dir(to),
            (Node::Dir, Some(_)) | (_, Some(Node::Dir)) => false,
            // Two links of one file: nothing happens.
            (Node::File(a), Some(Node::File(b))) => a != b,
            _ => true,
        };
        if !possible {
            return Ok(false);
        }
        let replaced = match &old {
            Node::File(id) if new.is_some() => Some((*id, h.newest(*id))),
            _ => None,
        };
        let parents = (h.ino(split(from).0), h.ino(split(to).0));
        let moved = |path: &str| match path.strip_prefix(from) {
            Some("") => Some(to.to_string()),
            Some(rest) if rest.starts_with('/') => Some(format!("{to}{rest}")),
            _ => None,
        };
        let state = h.attempt();
        state.names.remove(to);
        state.names = state
            .names
            .iter()
            .map(|(p, n)| (moved(p).unwrap_or_else(|| p.clone()), n.clone()))
            .collect();
        // The new content is committed with the name.
        state.least.extend(replaced);
        let done = self.fs.rename(
            parents.0,
            split(from).1,
            parents.1,
            split(to).1,
            RenameFlags::default(),
        );
        h.inos.remove(to);
        h.inos = h.inos.iter().map(|(p, i)| (moved(p).unwrap_or_else(|| p.clone()), *i)).collect();
        done.map(|()| true)
    }

    fn exchange(&self, a: &str, b: &str, h: &mut History) -> kvfs::Result<bool> {
        let is_file = |p: &str| matches!(h.now().names.get(p), Some(Node::File(_)));
        if a == b || !is_file(a) || !is_file(b) || h.now().names[a] == h.now().names[b] {
            return Ok(false);
        }
        let newest = [a, b].map(|p| match h.now().names[p] {
            Node::File(id) => (id, h.newest(id)),
            _ => unreachable!("both are files"),
        });
        let state = h.attempt();
        let (first, second) = (state.names[a].clone(), state.names[b].clone());
        state.names.extend([(a.to_string(), second), (b.to_string(), first)]);
        state.least.extend(newest);
        let (parent_a, parent_b) = (h.ino(split(a).0), h.ino(split(b).0));
        let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
        let done = self.fs.rename(parent_a, split(a).1, parent_b, split(b).1, flags);
        let (first, second) = (h.inos[a], h.inos[b]);
        h.inos.extend([(a.to_string(), second), (b.to_string(), first)]);
        done.map(|()| true)
    }

    fn link(&self, from: &str, to: &str, h: &mut History) -> kvfs::Result<bool> {
        if !is_free(h, to) || !matches!(h.now().names.get(from), Some(Node::File(_))) {
            return Ok(false);
        }
        let node = h.now().names[from].clone();
        h.attempt().names.insert(to.into(), node);
        let ino = h.ino(from);
        h.inos.insert(to.into(), ino);
        let (parent, name) = split(to);
        self.fs.link(ino, h.ino(parent), name)?;
        Ok(true)
    }
}
