//! A tree of files by its names: all inodes below a directory, found level by level from the names
//! alone. Every operation on a whole tree begins with this, and then scans each dictionary once, in
//! stored order.

use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use kvdb::{DictionaryId, Isolation, StoredTuple, Transaction};

use crate::attr::{FileKind, Ino};
use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::layout::{self, Layout};

/// The number of tuples that are skipped one by one before a seek, which costs more.
const PASS: usize = 16;

/// The maximum number of names of a tree. Each name takes about sixty bytes of memory.
pub(crate) const MOST_NAMES: usize = 4 << 20;

/// The way in which a serializable transaction locks a whole tree: against changes by others, or
/// against reads as well.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locked {
    ToRead,
    ToRemove,
}

impl Fs {
    /// Returns the current tree, and the state from which it was read. A serializable transaction
    /// has locked all of it by then.
    pub(crate) fn tree_below(
        &self,
        from: Ino,
        transaction: Option<&Transaction>,
        mode: Locked,
    ) -> Result<(Arc<kvdb::View>, Tree)> {
        let mut locked: Option<Tree> = None;
        loop {
            let view = Arc::new(self.core.scope.view()?);
            let tree = Tree::below(from, &view, self.core.layout)?;
            let known = locked.is_some_and(|locked| locked.inodes == tree.inodes);
            let Some(transaction) =
                transaction.filter(|t| t.isolation() == Isolation::Serializable && !known)
            else {
                return Ok((view, tree));
            };
            // The tree may have changed before it was locked, so it is read again.
            tree.lock(transaction, self.core.layout, mode == Locked::ToRemove)?;
            tree.inodes
                .iter()
                .try_for_each(|node| self.core.locks.commit_on_parent(transaction, node.ino))?;
            locked = Some(tree);
        }
    }
}

/// An inode of the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node {
    pub ino: Ino,
    /// A directory of the tree in which the inode has a name; 0 for the top.
    pub parent: Ino,
    /// The number of its names in the tree.
    pub names: u32,
    pub dir: bool,
}

/// A directory, and the range of its names.
pub(crate) struct Dir {
    pub ino: Ino,
    pub names: Range<usize>,
}

pub(crate) struct Name {
    pub ino: Ino,
    pub kind: FileKind,
    /// The start of the name in `Tree::text`.
    at: usize,
}

/// A tree by its names.
pub(crate) struct Tree {
    /// Every inode once, ascending.
    pub inodes: Vec<Node>,
    /// Ascending by inode number.
    pub dirs: Vec<Dir>,
    pub names: Vec<Name>,
    text: Vec<u8>,
}

impl Tree {
    pub fn below(top: Ino, view: &kvdb::View, layout: Layout) -> Result<Tree> {
        let value = view.get(layout.imap, &layout::node_key(top))?.ok_or(Error::Stale(top))?;
        let dir = layout::decode_node(top, &value)?.0.kind == FileKind::Dir;
        let mut tree = Tree {
            inodes: vec![Node { ino: top, parent: 0, names: 1, dir }],
            dirs: Vec::new(),
            names: Vec::new(),
            text: Vec::new(),
        };
        let mut level = if dir { vec![top] } else { Vec::new() };
        // A directory has one name. In a damaged store, a directory may have several names, or be
        // its own ancestor, and a copy of it would never end.
        let mut seen = HashSet::from([top]);
        // Goes level by level, each in the order of the inode numbers, in which the names are
        // stored.
        while !level.is_empty() {
            level.sort_unstable();
            let next = tree.inodes.len();
            tree.add_level(&level, &mut seen, view, layout)?;
            level =
                tree.inodes[next..].iter().filter(|node| node.dir).map(|node| node.ino).collect();
        }
        tree.inodes.sort_by_key(|node| node.ino);
        tree.inodes.dedup_by(|again, node| {
            let same = again.ino == node.ino;
            node.names += if same { again.names } else { 0 };
            same
        });
        tree.dirs.sort_unstable_by_key(|dir| dir.ino);
        Ok(tree)
    }

    /// Adds the names in these directories, whose numbers ascend, and the inodes that they name.
    /// `seen`: the directories that have a name so far.
    fn add_level(
        &mut self,
        level: &[Ino],
        seen: &mut HashSet<Ino>,
        view: &kvdb::View,
        layout: Layout,
    ) -> Result<()> {
        let (begin, first) = (self.dirs.len(), self.names.len());
        self.dirs.extend(level.iter().map(|&ino| Dir { ino, names: first..first }));
        let Tree { inodes, dirs, names, text } = self;
        let mut here = begin;
        for_each_of(view, layout.nmap, level, |at, tuple| {
            let dir = level[at];
            while here < begin + at {
                dirs[here].names.end = names.len();
                here += 1;
                dirs[here].names.start = names.len();
            }
            let (_, name) = layout::decode_name_key(tuple.key)?;
            let value;
            let value = match tuple.small() {
                Some(value) => value,
                None => {
                    value = tuple.value()?;
                    &value
                }
            };
            let (ino, kind) = layout::decode_name(dir, value)?;
            if kind == FileKind::Dir && !seen.insert(ino) {
                return Err(Error::Corrupt {
                    ino,
                    what: "a directory with more than one name".into(),
                });
            }
            if names.len() == MOST_NAMES {
                let many = format!(
                    "more than {MOST_NAMES} names lie below it: take the directories in it one by one"
                );
                return Err(kvdb::Error::Limit(many).into());
            }
            names.push(Name { ino, kind, at: text.len() });
            text.extend_from_slice(name);
            inodes.push(Node { ino, parent: dir, names: 1, dir: kind == FileKind::Dir });
            Ok(())
        })?;
        while here < dirs.len() {
            dirs[here].names.end = names.len();
            here += 1;
            if here < dirs.len() {
                dirs[here].names.start = names.len();
            }
        }
        Ok(())
    }

    /// Returns the tree of an inode that is not a directory.
    pub fn of_file(ino: Ino) -> Tree {
        let inodes = vec![Node { ino, parent: 0, names: 1, dir: false }];
        Tree { inodes, dirs: Vec::new(), names: Vec::new(), text: Vec::new() }
    }

    pub fn name(&self, at: usize) -> &[u8] {
        let end = self.names.get(at + 1).map_or(self.text.len(), |next| next.at);
        &self.text[self.names[at].at..end]
    }

    /// Locks everything that is read of the tree.
    fn lock(&self, transaction: &Transaction, layout: Layout, exclusive: bool) -> Result<()> {
        for node in &self.inodes {
            let (start, end) = layout::node_range(node.ino);
            transaction.lock_range(layout.imap, &start, &end, exclusive)?;
            transaction.lock_range(
                if node.dir { layout.nmap } else { layout.dmap },
                &start,
                &end,
                exclusive,
            )?;
        }
        Ok(())
    }
}

/// Calls `visit` with the tuples whose keys begin with one of `inodes` (ascending), each with the
/// index of its inode.
pub(crate) fn for_each_of<T: Numbered>(
    view: &kvdb::View,
    dict: DictionaryId,
    inodes: &[T],
    mut visit: impl FnMut(usize, StoredTuple<'_>) -> Result<()>,
) -> Result<()> {
    let visit = |at, tuple: StoredTuple<'_>| visit(at, tuple).map(ControlFlow::Continue);
    for_each_until(view, dict, inodes, visit).map(|_: ControlFlow<()>| ())
}

/// Like [`for_each_of`], until `visit` breaks.
pub(crate) fn for_each_until<T: Numbered, B>(
    view: &kvdb::View,
    dict: DictionaryId,
    inodes: &[T],
    mut visit: impl FnMut(usize, StoredTuple<'_>) -> Result<ControlFlow<B>>,
) -> Result<ControlFlow<B>> {
    let (mut at, mut passed) = (0, 0);
    let Some(first) = inodes.first() else { return Ok(ControlFlow::Continue(())) };
    let mut tuples = view.stored_tuples(dict)?;
    tuples.seek(&first.ino().to_be_bytes());
    while tuples.advance()?
        && let Some(tuple) = tuples.current()
    {
        // Every key begins with an inode number.
        let ino = tuple.key.first_chunk::<8>().map_or(0, |ino| u64::from_be_bytes(*ino));
        while inodes.get(at).is_some_and(|wanted| wanted.ino() < ino) {
            at += 1;
        }
        let Some(wanted) = inodes.get(at).map(Numbered::ino) else { break };
        if wanted == ino {
            passed = 0;
            if let ControlFlow::Break(why) = visit(at, tuple)? {
                return Ok(ControlFlow::Break(why));
            }
        } else {
            passed += 1;
            if passed == PASS {
                passed = 0;
                tuples.seek(&wanted.to_be_bytes());
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

pub(crate) trait Numbered {
    fn ino(&self) -> Ino;
}

impl Numbered for Ino {
    fn ino(&self) -> Ino {
        *self
    }
}

impl Numbered for Node {
    fn ino(&self) -> Ino {
        self.ino
    }
}
