//! One call on files or keys. It is chosen so that it can succeed, and has its effect on the model
//! and the code that runs it.

use std::collections::BTreeMap;
use std::sync::Arc;

use env::Random;
use kvdb::{Batch, DictionaryId, Durability, Scope};
use kvfs::{Caller, FileKind, Fs, Ino, RenameFlags, SetAttr};

use super::state::{Entry, Id, Node, Overlay, Tree};

pub const USER: Caller = Caller { uid: 1000, gid: 100, pid: 1 };

#[derive(Clone, Debug)]
pub enum Action {
    Make(Entry, Id, bool),
    Write(Id, u64, Vec<u8>),
    Truncate(Id, u64),
    Rename(Entry, Entry),
    Link(Id, Entry),
    Unlink(Entry),
    Rmdir(Entry),
    Keys(BTreeMap<Vec<u8>, Option<Vec<u8>>>),
    KeyRange(Vec<u8>, Vec<u8>),
}

fn pick<T: Clone>(random: &mut Random, from: &[T]) -> Option<T> {
    (!from.is_empty()).then(|| from[random.below(from.len() as u64) as usize].clone())
}

/// A name that may be taken, in a directory that is not too deep.
fn place(random: &mut Random, tree: &Tree) -> Option<Entry> {
    let dir = pick(random, &tree.all(true))?;
    let shallow = tree.path(dir)?.len() < 30;
    shallow.then(|| (dir, format!("n{}", random.below(12))))
}

pub fn noise(random: &mut Random, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    random.fill(&mut data);
    data
}

/// Returns an action that is possible in `tree`. `fresh` is the next number for a new inode.
pub fn choose(random: &mut Random, tree: &Tree, fresh: &mut Id) -> Option<Action> {
    let files = tree.all(false);
    let of = |random: &mut Random, dirs: bool| {
        let entries: Vec<_> = tree
            .entries
            .iter()
            .filter(|(_, id)| tree.is_dir(**id) == dirs)
            .map(|(e, _)| e.clone())
            .collect();
        pick(random, &entries)
    };
    Some(match random.below(32) {
        kind @ 0..=7 => {
            let at = place(random, tree).filter(|at| !tree.entries.contains_key(at))?;
            *fresh += 1;
            Action::Make(at, *fresh, kind < 2)
        }
        8..=14 => {
            let most = [10, 300, 4096, 9000, 40_000, 120_000][random.below(6) as usize];
            let at = if random.one_in(2) { 0 } else { random.below(20_000) };
            let len = 1 + random.below(most) as usize;
            Action::Write(pick(random, &files)?, at, noise(random, len))
        }
        15 => Action::Truncate(pick(random, &files)?, random.below(30_000)),
        16..=20 => {
            let dirs = random.one_in(4);
            let from = of(random, dirs)?;
            let to =
                if dirs || random.one_in(2) { place(random, tree)? } else { of(random, false)? };
            let (node, taken) = (tree.entries[&from], tree.entries.get(&to).copied());
            // Two names of one file: nothing would happen. A directory goes to a name of its own,
            // not into itself.
            let possible = match dirs {
                true => taken.is_none() && !tree.is_below(to.0, node),
                false => taken.is_none_or(|taken| taken != node && !tree.is_dir(taken)),
            };
            if from == to || !possible {
                return None;
            }
            Action::Rename(from, to)
        }
        21 => Action::Link(
            pick(random, &files)?,
            place(random, tree).filter(|at| !tree.entries.contains_key(at))?,
        ),
        22 | 23 => Action::Unlink(of(random, false)?),
        24 => Action::Rmdir(of(random, true).filter(|e| tree.is_empty(tree.entries[e]))?),
        25 => {
            let (a, b) = (random.below(30), random.below(30));
            Action::KeyRange(key(a.min(b)), key(a.max(b)))
        }
        _ => {
            let large = random.one_in(6);
            let mut keys = BTreeMap::new();
            for _ in 0..1 + random.below(4) {
                let value = (!random.one_in(6)).then(|| {
                    let len = random.below(if large { 50_000 } else { 2000 }) as usize;
                    noise(random, len)
                });
                keys.insert(key(random.below(30)), value);
            }
            Action::Keys(keys)
        }
    })
}

fn key(n: u64) -> Vec<u8> {
    format!("key{n:02}").into_bytes()
}

impl Action {
    /// Returns the effect of the action on `tree`.
    pub fn effect(&self, tree: &Tree) -> Overlay {
        let mut over = Overlay::default();
        let content = |id: &Id| match tree.nodes.get(id) {
            Some(Node::File(content)) => content.to_vec(),
            _ => Vec::new(),
        };
        // A file goes with its last name.
        let lose = |over: &mut Overlay, id: Id| {
            if tree.is_dir(id) || tree.names(id) == 1 {
                over.nodes.insert(id, None);
            }
        };
        match self {
            Action::Make(at, id, dir) => {
                over.entries.insert(at.clone(), Some(*id));
                over.nodes
                    .insert(*id, Some(if *dir { Node::Dir } else { Node::File(Arc::default()) }));
            }
            Action::Write(id, at, data) => {
                let (mut content, at) = (content(id), *at as usize);
                content.resize(content.len().max(at + data.len()), 0);
                content[at..at + data.len()].copy_from_slice(data);
                over.nodes.insert(*id, Some(Node::File(Arc::new(content))));
            }
            Action::Truncate(id, size) => {
                let mut content = content(id);
                content.resize(*size as usize, 0);
                over.nodes.insert(*id, Some(Node::File(Arc::new(content))));
            }
            Action::Rename(from, to) => {
                if let Some(taken) = tree.entries.get(to) {
                    lose(&mut over, *taken);
                }
                over.entries.insert(to.clone(), Some(tree.entries[from]));
                over.entries.insert(from.clone(), None);
            }
            Action::Link(id, at) => {
                over.entries.insert(at.clone(), Some(*id));
            }
            Action::Unlink(at) | Action::Rmdir(at) => {
                lose(&mut over, tree.entries[at]);
                over.entries.insert(at.clone(), None);
            }
            Action::Keys(keys) => over.keys = keys.clone(),
            Action::KeyRange(start, end) => {
                over.keys = tree
                    .keys
                    .range(start.clone()..end.clone())
                    .map(|(k, _)| (k.clone(), None))
                    .collect();
            }
        }
        over
    }

    /// Runs the action. `tree` is the current state. `held` sometimes keeps an inode referenced, as
    /// a kernel would.
    pub fn perform(
        &self,
        fs: &Fs,
        scope: &Scope,
        keys: DictionaryId,
        tree: &Tree,
        held: &mut Vec<Ino>,
        random: &mut Random,
    ) -> kvfs::Result<()> {
        let ino = |id: Id| -> kvfs::Result<Ino> {
            let path = tree.path(id).expect("what is chosen has a name");
            Ok(fs.resolve(path.as_bytes())?.ino)
        };
        let mut keep = |ino: Ino| match random.one_in(4) {
            true => held.push(ino),
            false => fs.forget(ino, 1),
        };
        match self {
            Action::Make((dir, name), _, is_dir) => {
                let (dir, name) = (ino(*dir)?, name.as_bytes());
                let attr = match is_dir {
                    true => fs.mkdir(dir, name, 0o755, USER)?,
                    false => fs.mknod(dir, name, FileKind::File, 0o644, 0, USER)?,
                };
                keep(attr.ino);
            }
            Action::Write(id, at, data) => {
                let path = tree.path(*id).expect("what is chosen has a name");
                let (dir, name) = path.rsplit_once('/').expect("it is not the root");
                let ino = fs.lookup(fs.resolve(dir.as_bytes())?.ino, name.as_bytes())?.ino;
                let written = fs.write(ino, *at, data, Default::default());
                keep(ino);
                written?;
            }
            Action::Truncate(id, size) => {
                fs.setattr(ino(*id)?, &SetAttr { size: Some(*size), ..SetAttr::default() }, USER)?;
            }
            Action::Rename((d, n), (d2, n2)) => {
                fs.rename(
                    ino(*d)?,
                    n.as_bytes(),
                    ino(*d2)?,
                    n2.as_bytes(),
                    RenameFlags::default(),
                )?;
            }
            Action::Link(id, (dir, name)) => {
                let attr = fs.link(ino(*id)?, ino(*dir)?, name.as_bytes())?;
                keep(attr.ino);
            }
            Action::Unlink((dir, name)) => fs.unlink(ino(*dir)?, name.as_bytes())?,
            Action::Rmdir((dir, name)) => fs.rmdir(ino(*dir)?, name.as_bytes())?,
            Action::Keys(changes) => {
                let mut batch = Batch::new();
                for (key, value) in changes {
                    match value {
                        Some(value) => batch.put(keys, key.clone(), value.clone()),
                        None => batch.delete(keys, key.clone()),
                    }
                }
                kvdb::without_lock_waits(|| scope.apply(batch, Durability::Buffered))?;
            }
            Action::KeyRange(start, end) => {
                let mut batch = Batch::new();
                batch.delete_range(keys, start.clone(), end.clone());
                kvdb::without_lock_waits(|| scope.apply(batch, Durability::Buffered))?;
            }
        }
        Ok(())
    }

    /// The action leaves uncommitted data in memory.
    pub fn waits(&self) -> bool {
        matches!(self, Action::Write(..) | Action::Truncate(..))
    }
}
