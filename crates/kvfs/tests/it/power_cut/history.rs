//! The states that a store of files and keys may have after a power cut: each state of names and
//! keys that the calls produced, in order, and all versions of each file.

use std::collections::BTreeMap;

use kvdb::{DictionaryId, Kvdb};
use kvfs::{FileKind, Fs, Ino, ROOT};

pub type FileId = usize;

/// The extended attribute that files may have.
pub const XATTR: &[u8] = b"user.x";

/// The object of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Dir,
    File(FileId),
    Symlink(Vec<u8>),
}

/// The properties of a file that are committed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub content: Vec<u8>,
    pub mode: u16,
    pub xattr: Option<Vec<u8>>,
}

/// One state of names and keys.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The nodes by path, parents before children.
    pub names: BTreeMap<String, Node>,
    pub keys: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The oldest version that each file may hold in this state.
    pub least: BTreeMap<FileId, usize>,
}

#[derive(Clone, Default)]
pub struct History {
    /// Oldest first; the first one is certain.
    pub states: Vec<State>,
    pub versions: Vec<Vec<Version>>,
    pub inos: BTreeMap<String, Ino>,
}

pub type Tree = BTreeMap<String, (Ino, Found)>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Dir,
    File(Version),
    Symlink(Vec<u8>),
}

impl History {
    pub fn new() -> History {
        History { states: vec![State::default()], ..History::default() }
    }

    pub fn now(&self) -> &State {
        &self.states[self.states.len() - 1]
    }

    pub fn now_mut(&mut self) -> &mut State {
        let last = self.states.len() - 1;
        &mut self.states[last]
    }

    /// A state that the next call attempts.
    pub fn attempt(&mut self) -> &mut State {
        self.states.push(self.now().clone());
        self.now_mut()
    }

    /// Names and keys up to now are on disk, and all data of this file, or of all files.
    pub fn synced(&mut self, file: Option<FileId>) {
        let newest: Vec<_> = match file {
            Some(file) => vec![(file, self.newest(file))],
            None => self.versions.iter().enumerate().map(|(id, v)| (id, v.len() - 1)).collect(),
        };
        self.now_mut().least.extend(newest);
        self.states.drain(..self.states.len() - 1);
    }

    pub fn newest(&self, file: FileId) -> usize {
        self.versions[file].len() - 1
    }

    pub fn version(&self, file: FileId) -> Version {
        self.versions[file][self.newest(file)].clone()
    }

    /// Adds a version to the file at `path`. Returns `None` if there is no file.
    pub fn change(&mut self, path: &str, change: impl FnOnce(&mut Version)) -> Option<()> {
        let Some(&Node::File(id)) = self.now().names.get(path) else { return None };
        let mut version = self.version(id);
        change(&mut version);
        self.versions[id].push(version);
        Some(())
    }

    pub fn dirs(&self) -> Vec<String> {
        let all = self.now().names.iter().filter(|(_, n)| **n == Node::Dir).map(|(p, _)| p.clone());
        all.chain([String::new()]).collect()
    }

    pub fn files(&self) -> Vec<String> {
        self.now()
            .names
            .iter()
            .filter(|(_, n)| matches!(n, Node::File(_)))
            .map(|(p, _)| p.clone())
            .collect()
    }

    pub fn is_dir(&self, path: &str) -> bool {
        path.is_empty() || self.now().names.get(path) == Some(&Node::Dir)
    }

    pub fn is_empty_dir(&self, path: &str) -> bool {
        self.is_dir(path)
            && !path.is_empty()
            && !self.now().names.keys().any(|p| p.starts_with(&format!("{path}/")))
    }

    pub fn ino(&self, path: &str) -> Ino {
        if path.is_empty() { ROOT } else { self.inos[path] }
    }

    /// Fails unless the found content is one of the states. The history continues from that state.
    pub fn found(&mut self, tree: Tree, keys: BTreeMap<Vec<u8>, Vec<u8>>, when: &str) {
        let mut reasons = Vec::new();
        let judge = |s: &State| self.matches(s, &tree, &keys).map_err(|e| reasons.push(e)).is_ok();
        let at = self.states.iter().rposition(judge);
        let at = at.unwrap_or_else(|| {
            panic!("{when}: none of {} states: {reasons:#?}", self.states.len())
        });
        let mut state = self.states.swap_remove(at);
        let mut versions = Vec::new();
        let mut ids = BTreeMap::new();
        state.least.clear();
        for (path, node) in &mut state.names {
            if let (Node::File(id), (_, Found::File(version))) = (node, &tree[path]) {
                *id = *ids.entry(*id).or_insert_with(|| {
                    versions.push(vec![version.clone()]);
                    versions.len() - 1
                });
            }
        }
        let inos = tree.into_iter().map(|(path, (ino, _))| (path, ino)).collect();
        *self = History { states: vec![state], versions, inos };
    }

    /// Checks that `state` was found, and returns the reason if not.
    fn matches(
        &self,
        state: &State,
        found: &Tree,
        keys: &BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<(), String> {
        if state.keys != *keys {
            return Err("the keys differ".into());
        }
        if !state.names.keys().eq(found.keys()) {
            return Err(format!(
                "the names differ: {:?}, found {:?}",
                state.names.keys(),
                found.keys()
            ));
        }
        let mut inos: BTreeMap<FileId, Ino> = BTreeMap::new();
        for (path, node) in &state.names {
            let (ino, content) = &found[path];
            match (node, content) {
                (Node::Dir, Found::Dir) => {}
                (Node::Symlink(target), Found::Symlink(content)) if target == content => {}
                (Node::File(id), Found::File(version)) => {
                    if *inos.entry(*id).or_insert(*ino) != *ino {
                        return Err(format!("{path}: no longer a link of the same file"));
                    }
                    let least = state.least.get(id).copied().unwrap_or(0);
                    if !self.versions[*id][least..].contains(version) {
                        let (size, newest) = (version.content.len(), self.newest(*id));
                        return Err(format!(
                            "{path}: {size} bytes, no version from {least} to {newest}"
                        ));
                    }
                }
                _ => return Err(format!("{path}: of another kind or with another target")),
            }
        }
        Ok(())
    }
}

/// Returns the content of the file system, by path.
pub fn tree(fs: &Fs) -> Tree {
    let mut found = Tree::new();
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((path, dir)) = todo.pop() {
        let mut entries = Vec::new();
        fs.readdir(dir, 0, false, &mut |e| {
            entries.push((String::from_utf8_lossy(e.name).into_owned(), e.ino, e.kind));
            true
        })
        .expect("directories are readable");
        for (name, ino, kind) in entries.into_iter().filter(|(n, ..)| n != "." && n != "..") {
            let path = format!("{path}/{name}");
            let what = match kind {
                FileKind::Dir => {
                    todo.push((path.clone(), ino));
                    Found::Dir
                }
                FileKind::Symlink => Found::Symlink(fs.readlink(ino).expect("links are readable")),
                _ => {
                    let attr = fs.getattr(ino).expect("an inode is there");
                    let content =
                        fs.read(ino, 0, attr.size as u32).expect("files are readable").to_vec();
                    assert_eq!(
                        content.len() as u64,
                        attr.size,
                        "{path}: a read to the end gives the size"
                    );
                    Found::File(Version {
                        content,
                        mode: attr.perm,
                        xattr: fs.getxattr(ino, XATTR).ok(),
                    })
                }
            };
            found.insert(path, (ino, what));
        }
    }
    found
}

pub fn keys(db: &Kvdb, dict: DictionaryId) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let stored = db.view().scan(dict, b"", b"", usize::MAX).expect("keys are readable");
    stored.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
}
