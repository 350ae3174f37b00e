//! The model of files and keys: the model's states, the differences that transactions make between
//! them, and the comparison of a state with the content that is found on a file system.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvdb::{DictionaryId, View as Stored};
use kvfs::{FileKind, Fs, Ino, ROOT};

/// Identifies a file or directory in the model permanently.
pub type Id = u64;
pub const TOP: Id = 0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Dir,
    File(Arc<Vec<u8>>),
}

pub type Entry = (Id, String);

/// One state of a tree and its keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tree {
    pub entries: BTreeMap<Entry, Id>,
    pub nodes: BTreeMap<Id, Node>,
    pub keys: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The differences from a tree below; `None` stands for a removal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overlay {
    pub entries: BTreeMap<Entry, Option<Id>>,
    pub nodes: BTreeMap<Id, Option<Node>>,
    pub keys: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

fn lay<K: Ord + Clone, V: Clone>(map: &mut BTreeMap<K, V>, over: &BTreeMap<K, Option<V>>) {
    for (k, v) in over {
        match v {
            Some(v) => map.insert(k.clone(), v.clone()),
            None => map.remove(k),
        };
    }
}

fn changed<K: Ord + Clone, V: Clone + PartialEq>(
    before: &BTreeMap<K, V>,
    after: &BTreeMap<K, V>,
) -> BTreeMap<K, Option<V>> {
    let all: BTreeSet<&K> = before.keys().chain(after.keys()).collect();
    let other = all.into_iter().filter(|k| before.get(*k) != after.get(*k));
    other.map(|k| (k.clone(), after.get(k).cloned())).collect()
}

impl Overlay {
    pub fn add(&mut self, more: &Overlay) {
        self.entries.extend(more.entries.clone());
        self.nodes.extend(more.nodes.clone());
        self.keys.extend(more.keys.clone());
    }

    /// Returns the differences of a tree from an earlier state of it.
    pub fn between(before: &Tree, after: &Tree) -> Overlay {
        Overlay {
            entries: changed(&before.entries, &after.entries),
            nodes: changed(&before.nodes, &after.nodes),
            keys: changed(&before.keys, &after.keys),
        }
    }

    /// Returns whether both change the same thing, whatever the values.
    pub fn has_something_of(&self, other: &Overlay) -> bool {
        self.entries.keys().any(|at| other.entries.contains_key(at))
            || self.nodes.keys().any(|id| other.nodes.contains_key(id))
            || self.keys.keys().any(|key| other.keys.contains_key(key))
    }

    /// Returns whether something changed here differs between `now` and `base`, so that a commit
    /// must find a conflict.
    pub fn lost_update(&self, base: &Tree, now: &Tree) -> Option<String> {
        let entry = self
            .entries
            .keys()
            .find(|k| base.entries.get(k) != now.entries.get(k))
            .map(|k| format!("name {k:?}"));
        let node = || {
            self.nodes
                .keys()
                .find(|k| base.nodes.get(k) != now.nodes.get(k))
                .map(|k| format!("node {k}"))
        };
        let key = || {
            self.keys
                .keys()
                .find(|k| base.keys.get(*k) != now.keys.get(*k))
                .map(|k| format!("key {k:?}"))
        };
        entry.or_else(node).or_else(key)
    }
}

impl Tree {
    pub fn with(&self, over: &Overlay) -> Tree {
        let mut tree = self.clone();
        lay(&mut tree.entries, &over.entries);
        lay(&mut tree.nodes, &over.nodes);
        lay(&mut tree.keys, &over.keys);
        tree
    }

    /// Every name is in an existing directory that is reachable from the root. Every inode has a
    /// name, and a directory has exactly one.
    pub fn is_sound(&self) -> bool {
        let leads_up = |mut dir: Id| {
            for _ in 0..100 {
                if dir == TOP {
                    return true;
                }
                match self.entries.iter().find(|(_, at)| **at == dir) {
                    Some(((parent, _), _)) => dir = *parent,
                    None => return false,
                }
            }
            false
        };
        let names = |id: Id| self.entries.values().filter(|at| **at == id).count();
        self.entries.iter().all(|((dir, _), id)| {
            self.is_dir(*dir) && self.nodes.contains_key(id) && leads_up(*dir)
        }) && self.nodes.iter().all(|(id, node)| match node {
            Node::Dir => names(*id) == 1,
            Node::File(_) => names(*id) > 0,
        })
    }

    /// The path of a node, by one of its names.
    pub fn path(&self, mut id: Id) -> Option<String> {
        let mut path = String::new();
        let mut steps = 0;
        while id != TOP {
            let ((parent, name), _) = self.entries.iter().find(|(_, at)| **at == id)?;
            path = format!("/{name}{path}");
            id = *parent;
            steps += 1;
            assert!(steps < 100, "a circle of directories");
        }
        Some(path)
    }

    /// Directories, or files.
    pub fn all(&self, dirs: bool) -> Vec<Id> {
        let top = dirs.then_some(TOP);
        top.into_iter()
            .chain(self.nodes.iter().filter(|(_, n)| (**n == Node::Dir) == dirs).map(|(id, _)| *id))
            .collect()
    }

    pub fn is_dir(&self, id: Id) -> bool {
        id == TOP || self.nodes.get(&id) == Some(&Node::Dir)
    }

    pub fn is_empty(&self, dir: Id) -> bool {
        self.entries
            .range((dir, String::new())..)
            .next()
            .is_none_or(|((parent, _), _)| *parent != dir)
    }

    pub fn names(&self, id: Id) -> usize {
        self.entries.values().filter(|at| **at == id).count()
    }

    /// `dir` is `above`, or lies below it.
    pub fn is_below(&self, mut dir: Id, above: Id) -> bool {
        loop {
            if dir == above {
                return true;
            }
            match self.entries.iter().find(|(_, at)| **at == dir) {
                Some(((parent, _), _)) => dir = *parent,
                None => return false,
            }
        }
    }
}

/// A file or directory as found.
#[derive(Clone, Debug)]
pub struct Found {
    pub ino: Ino,
    pub nlink: u32,
    /// The number of names, for a directory.
    pub size: u64,
    /// The content, for a file.
    pub data: Option<Vec<u8>>,
}

/// The content of a file system, by path; the root has the empty path.
#[derive(Default)]
pub struct Seen {
    pub nodes: BTreeMap<String, Found>,
    pub keys: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Everything on a file system.
pub fn look(fs: &Fs, keys: BTreeMap<Vec<u8>, Vec<u8>>) -> kvfs::Result<Seen> {
    let mut seen = Seen { nodes: BTreeMap::new(), keys };
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((path, ino)) = todo.pop() {
        let attr = fs.getattr(ino)?;
        let mut found = Found { ino, nlink: attr.nlink, size: attr.size, data: None };
        if attr.kind == FileKind::Dir {
            let mut names = Vec::new();
            fs.readdir(ino, 0, false, &mut |e| {
                names.push((String::from_utf8_lossy(e.name).into_owned(), e.ino));
                true
            })?;
            names.retain(|(name, _)| name != "." && name != "..");
            found.size = names.len() as u64;
            todo.extend(names.into_iter().map(|(name, ino)| (format!("{path}/{name}"), ino)));
        } else {
            let data = fs.read(ino, 0, attr.size as u32 + 1)?.to_vec();
            assert_eq!(data.len() as u64, attr.size, "{path}: a read to the end gives the size");
            found.data = Some(data);
        }
        seen.nodes.insert(path, found);
    }
    Ok(seen)
}

/// The keys that users see.
pub fn stored(view: &Stored, keys: DictionaryId) -> kvdb::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    Ok(view
        .scan(keys, b"", b"", usize::MAX)?
        .into_iter()
        .map(|(k, v)| (k.to_vec(), v.to_vec()))
        .collect())
}

/// Checks that this is the content that was seen, and returns the reason if it is not. With
/// `links`, links of directories are compared as well.
pub fn is(tree: &Tree, seen: &Seen, links: bool) -> Result<(), String> {
    if tree.keys != seen.keys {
        let other = tree
            .keys
            .keys()
            .chain(seen.keys.keys())
            .find(|k| tree.keys.get(*k) != seen.keys.get(*k));
        return Err(format!("the key {:?} differs", other.map(|k| String::from_utf8_lossy(k))));
    }
    let mut paths: BTreeMap<String, Id> = BTreeMap::new();
    let mut todo = vec![(String::new(), TOP)];
    while let Some((path, id)) = todo.pop() {
        if tree.is_dir(id) {
            let below = tree
                .entries
                .range((id, String::new())..)
                .take_while(|((parent, _), _)| *parent == id);
            todo.extend(below.map(|((_, name), at)| (format!("{path}/{name}"), *at)));
        }
        paths.insert(path, id);
    }
    if !paths.keys().eq(seen.nodes.keys()) {
        let (a, b): (BTreeSet<_>, BTreeSet<_>) =
            (paths.keys().collect(), seen.nodes.keys().collect());
        return Err(format!("missing {:?}, too many {:?}", a.difference(&b), b.difference(&a)));
    }
    let (mut inos, mut ids) = (BTreeMap::new(), BTreeMap::new());
    for (path, id) in &paths {
        let found = &seen.nodes[path];
        if *inos.entry(*id).or_insert(found.ino) != found.ino
            || *ids.entry(found.ino).or_insert(*id) != *id
        {
            return Err(format!("{path}: links of one file are not, or others are"));
        }
        match (tree.nodes.get(id), &found.data) {
            (Some(Node::File(content)), Some(data)) => {
                if content[..] != data[..] {
                    return Err(format!(
                        "{path}: {} bytes, not the {} that it should have",
                        data.len(),
                        content.len()
                    ));
                }
                if found.nlink as usize != tree.names(*id) {
                    return Err(format!("{path}: {} links, not {}", found.nlink, tree.names(*id)));
                }
            }
            (None | Some(Node::Dir), None) if tree.is_dir(*id) => {
                let below = tree
                    .entries
                    .iter()
                    .filter(|((parent, _), at)| parent == id && tree.is_dir(**at))
                    .count();
                if links && found.nlink as usize != 2 + below {
                    return Err(format!("{path}: {} links, not {}", found.nlink, 2 + below));
                }
            }
            _ => return Err(format!("{path}: of another kind")),
        }
    }
    Ok(())
}
