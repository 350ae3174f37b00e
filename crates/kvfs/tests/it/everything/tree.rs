//! The model of files and keys: a state of one view, and the changes of calls and transactions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvfs::{FileKind, Timestamp};

/// Identifies a file or directory in the model permanently.
pub type Id = u64;
pub const TOP: Id = 0;
/// Directory and name.
pub type Entry = (Id, Vec<u8>);
/// Dictionary and key.
pub type Key = (String, Vec<u8>);

const SUID: u16 = 0o4000;
const SGID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;
pub const CAPABILITY: &[u8] = b"security.capability";

/// The properties of an inode apart from its names, which may wait in memory for their commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    pub perm: u16,
    pub owner: (u32, u32),
    /// Not compared for a directory.
    pub mtime: Timestamp,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The content of a file, the target of a symbolic link.
    pub data: Arc<Vec<u8>>,
}

impl Own {
    /// `group` is the group of a caller without privileges, or `None` for root.
    pub fn unprivileged_group(&mut self, group: Option<u32>) {
        self.perm &= !SUID;
        if self.perm & GROUP_EXECUTE != 0 || group.is_some_and(|group| group != self.owner.1) {
            self.perm &= !SGID;
        }
    }

    /// Updates a node as every change of its content does. `kill` is the group of a user for whom
    /// the set-id bits are not kept.
    pub fn touch(&mut self, now: Timestamp, kill: Option<u32>) {
        self.mtime = now;
        if kill.is_some() {
            self.unprivileged_group(kill);
        }
        self.xattrs.remove(CAPABILITY);
    }

    pub fn inherits(&self) -> bool {
        self.perm & SGID != 0
    }
}

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: FileKind,
    pub rdev: u32,
    /// The versions that the store may have, never empty. The last one is the current one; the
    /// others are older and may not be overwritten yet.
    pub possible: Vec<Arc<Own>>,
}

impl Node {
    pub fn new(kind: FileKind, rdev: u32, own: Own) -> Node {
        Node { kind, rdev, possible: vec![Arc::new(own)] }
    }

    pub fn now(&self) -> &Own {
        &self.possible[self.possible.len() - 1]
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Dir
    }

    /// Another own state, which waits for its commit.
    pub fn changed(&self, own: Own) -> Node {
        let mut node = self.clone();
        node.possible.push(Arc::new(own));
        node
    }

    /// Returns the node with its current version committed.
    pub fn settled(&self) -> Node {
        Node { possible: vec![self.possible[self.possible.len() - 1].clone()], ..self.clone() }
    }
}

/// One state of a view, with the keys of its branch.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub entries: BTreeMap<Entry, Id>,
    pub nodes: BTreeMap<Id, Arc<Node>>,
    pub keys: BTreeMap<Key, Arc<Vec<u8>>>,
}

/// The differences from a tree below; `None` stands for a removal.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    pub entries: BTreeMap<Entry, Option<Id>>,
    pub nodes: BTreeMap<Id, Option<Arc<Node>>>,
    pub keys: BTreeMap<Key, Option<Arc<Vec<u8>>>>,
    /// Ranges of keys that were deleted, whether or not anything was in them.
    pub ranges: BTreeSet<(String, Vec<u8>, Vec<u8>)>,
    /// A directory has moved into another one.
    pub moves: bool,
    /// A key was put, even if it was deleted again.
    pub puts: bool,
}

fn lay<K: Ord + Clone, V: Clone>(map: &mut BTreeMap<K, V>, over: &BTreeMap<K, Option<V>>) {
    for (k, v) in over {
        match v {
            Some(v) => map.insert(k.clone(), v.clone()),
            None => map.remove(k),
        };
    }
}

impl Overlay {
    pub fn add(&mut self, more: &Overlay) {
        self.entries.extend(more.entries.clone());
        self.nodes.extend(more.nodes.clone());
        self.keys.extend(more.keys.clone());
        self.ranges.extend(more.ranges.clone());
        self.moves |= more.moves;
        self.puts |= more.puts;
    }

    pub fn changes_files(&self) -> bool {
        !self.entries.is_empty() || !self.nodes.is_empty()
    }

    /// Returns whether this only removes: names and keys are removed, and files get shorter.
    pub fn removes_from(&self, before: &Tree) -> bool {
        let only_less = |(id, node): (&Id, &Option<Arc<Node>>)| match (before.nodes.get(id), node) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(was), Some(is)) => {
                let (was, is) = (was.now(), is.now());
                was == is
                    || was.data.starts_with(&is.data)
                        && was.data.len() > is.data.len()
                        && was.xattrs == is.xattrs
            }
        };
        // Setting a property to its present value removes nothing.
        let changed = |(id, node): (&Id, &Option<Arc<Node>>)| match (before.nodes.get(id), node) {
            (Some(was), Some(is)) => was.now() != is.now(),
            (was, is) => was.is_some() != is.is_some(),
        };
        let any = !self.entries.is_empty()
            || self.nodes.iter().any(changed)
            || !self.keys.is_empty()
            || !self.ranges.is_empty();
        let gone =
            self.entries.values().all(Option::is_none) && self.keys.values().all(Option::is_none);
        any && gone && !self.puts && self.nodes.iter().all(only_less)
    }

    /// All of its pending data is committed.
    pub fn settle(&mut self) {
        self.nodes.values_mut().flatten().for_each(|node| *node = Arc::new(node.settled()));
    }

    /// Returns a name or key that this changes and that differs from `base`.
    pub fn lost_update(&self, base: &Tree, now: &Tree, keys: bool) -> Option<String> {
        let entry = self.entries.keys().find(|k| base.entries.get(k) != now.entries.get(k));
        if let Some((dir, name)) = entry {
            return Some(format!("name {} in {dir}", name.escape_ascii()));
        }
        for (id, mine) in &self.nodes {
            let (was, is) = (base.nodes.get(id), now.nodes.get(id));
            let same = match (was, is, mine) {
                (None, None, _) => true,
                (Some(was), Some(is), Some(mine)) if was.is_dir() => {
                    join(was.now(), mine.now(), is.now()).is_some()
                }
                (Some(was), Some(is), _) => was.now() == is.now(),
                _ => false,
            };
            if !same {
                return Some(format!("node {id}"));
            }
        }
        self.keys
            .keys()
            .find(|k| keys && base.keys.get(*k) != now.keys.get(*k))
            .map(|k| format!("key {k:?}"))
    }

    /// Returns whether both have made changes that cannot be joined. `base` is the state in which
    /// this one began.
    pub fn meets(&self, theirs: &Overlay, base: &Tree, keys: bool) -> bool {
        let entries = self.entries.keys().any(|k| theirs.entries.contains_key(k));
        let nodes = self.nodes.iter().any(|(id, mine)| match (mine, theirs.nodes.get(id)) {
            (_, None) => false,
            (Some(mine), Some(Some(theirs))) if mine.is_dir() => {
                let was = base.nodes.get(id);
                was.is_none_or(|was| join(was.now(), mine.now(), theirs.now()).is_none())
            }
            _ => true,
        });
        let keys = keys && self.keys.keys().any(|k| theirs.keys.contains_key(k));
        entries
            || nodes
            || keys
            || self.moves && theirs.moves
            || self.in_ranges_of(theirs)
            || theirs.in_ranges_of(self)
    }

    fn in_ranges_of(&self, other: &Overlay) -> bool {
        other.ranges.iter().any(|(dict, start, end)| {
            let inside = |(d, key): &Key| d == dict && key >= start && key < end;
            let meets = |(d, a, b): &(String, Vec<u8>, Vec<u8>)| d == dict && a < end && start < b;
            self.keys.keys().any(inside) || self.ranges.iter().any(meets)
        })
    }
}

/// Joins the changes that both have made to a directory.
fn join(base: &Own, mine: &Own, theirs: &Own) -> Option<Own> {
    fn either<T: PartialEq + Clone>(base: &T, mine: &T, theirs: &T) -> Option<T> {
        match () {
            () if mine == base => Some(theirs.clone()),
            () if theirs == base || theirs == mine => Some(mine.clone()),
            () => None,
        }
    }
    Some(Own {
        perm: either(&base.perm, &mine.perm, &theirs.perm)?,
        owner: (
            either(&base.owner.0, &mine.owner.0, &theirs.owner.0)?,
            either(&base.owner.1, &mine.owner.1, &theirs.owner.1)?,
        ),
        mtime: theirs.mtime,
        xattrs: either(&base.xattrs, &mine.xattrs, &theirs.xattrs)?,
        data: theirs.data.clone(),
    })
}

impl Tree {
    /// An empty one.
    pub fn new() -> Tree {
        let root = Node::new(FileKind::Dir, 0, Own { perm: 0o755, ..Own::default() });
        Tree { nodes: [(TOP, Arc::new(root))].into(), ..Tree::default() }
    }

    pub fn with(&self, over: &Overlay) -> Tree {
        let mut tree = self.clone();
        lay(&mut tree.entries, &over.entries);
        lay(&mut tree.nodes, &over.nodes);
        lay(&mut tree.keys, &over.keys);
        tree
    }

    /// Returns the state after a commit; `base` is the state that the transaction began with.
    pub fn merged(&self, over: &Overlay, base: &Tree) -> Tree {
        let mut over = over.clone();
        over.settle();
        for (id, mine) in &mut over.nodes {
            if let (Some(node), Some(was), Some(is)) =
                (&*mine, base.nodes.get(id), self.nodes.get(id))
                && node.is_dir()
                && let Some(both) = join(was.now(), node.now(), is.now())
            {
                *mine = Some(Arc::new(Node::new(FileKind::Dir, 0, both)));
            }
        }
        let mut tree = self.clone();
        // Keys that others have put into a range since are deleted as well, if no caller checks for
        // conflicts.
        for (dict, start, end) in &over.ranges {
            tree.keys.retain(|(d, key), _| d != dict || key < start || key >= end);
        }
        tree = tree.with(&over);
        // A transaction that has changed no files leaves them as they are.
        if over.changes_files() {
            tree.settle();
        }
        tree
    }

    /// No data of it waits in memory.
    pub fn settle(&mut self) {
        for node in self.nodes.values_mut().filter(|node| node.possible.len() > 1) {
            *node = Arc::new(node.settled());
        }
    }

    /// Returns all nodes of these kinds.
    pub fn all(&self, wanted: impl Fn(FileKind) -> bool) -> Vec<Id> {
        self.nodes.iter().filter(|(_, n)| wanted(n.kind)).map(|(id, _)| *id).collect()
    }

    pub fn is_dir(&self, id: Id) -> bool {
        self.nodes.get(&id).is_some_and(|n| n.is_dir())
    }

    pub fn children(&self, dir: Id) -> impl Iterator<Item = (&Vec<u8>, Id)> {
        self.entries
            .range((dir, Vec::new())..)
            .take_while(move |((d, _), _)| *d == dir)
            .map(|((_, name), id)| (name, *id))
    }

    pub fn links(&self, id: Id) -> u32 {
        self.entries.values().filter(|at| **at == id).count() as u32
    }

    pub fn parent(&self, dir: Id) -> Option<Id> {
        self.entries.iter().find(|(_, at)| **at == dir).map(|((parent, _), _)| *parent)
    }

    /// `dir` is `above`, or lies below it.
    pub fn is_below(&self, mut dir: Id, above: Id) -> bool {
        while dir != above {
            match self.parent(dir) {
                Some(parent) => dir = parent,
                None => return false,
            }
        }
        true
    }

    /// Returns a path of the node by one of its names, from the root and without a leading slash.
    pub fn path(&self, mut id: Id) -> Option<Vec<u8>> {
        let mut names: Vec<&[u8]> = Vec::new();
        while id != TOP {
            let ((parent, name), _) = self.entries.iter().find(|(_, at)| **at == id)?;
            names.push(name);
            id = *parent;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    /// Everything, by path; the root is the empty one.
    pub fn paths(&self) -> BTreeMap<Vec<u8>, Id> {
        let mut all = BTreeMap::from([(Vec::new(), TOP)]);
        let mut todo = vec![(Vec::new(), TOP)];
        while let Some((path, dir)) = todo.pop() {
            for (name, id) in self.children(dir) {
                let below =
                    if path.is_empty() { name.clone() } else { [&path[..], b"/", name].concat() };
                if self.is_dir(id) {
                    todo.push((below.clone(), id));
                }
                all.insert(below, id);
            }
        }
        all
    }

    /// Returns the reason why this is not a valid file system, if it is not.
    pub fn fault(&self) -> Option<String> {
        let named: BTreeSet<Id> = self.paths().into_values().collect();
        let nodes: BTreeSet<Id> = self.nodes.keys().copied().collect();
        (named != nodes).then(|| format!("{named:?} have names, {nodes:?} are there"))
    }
}
