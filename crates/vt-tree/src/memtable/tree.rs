//! The points of a memtable: a B+-tree with nodes of 64 keys, where each key refers to its
//! versions, newest first.
//!
//! Nothing is ever removed from the tree, which keeps two invariants simple: the first key of each
//! leaf except the leftmost *is* the separator that leads to it, and a leaf never disappears. So a
//! writer may remember the leaf that it used last and continue there (a sequential or batched
//! insert does not descend), and an append to a full leaf opens a new one instead of leaving two
//! half full.
//!
//! A key written once takes a record in the arena and twelve bytes in a leaf. A key written again
//! gets a chain of versions.

use super::arena::{Arena, NewValue, NewestVersion, Place};
use super::keys::{FANOUT, Keys};
use super::leaves::{Leaf, Leaves};
use super::pool::Pool;
use super::versions::{Released, Stamp, Version, Versions};
use crate::Seq;
use std::cmp::Ordering;
use std::sync::Arc;

pub(super) const NONE: u32 = u32::MAX;
/// Records store sequence numbers relative to a base that is this far below the first number.
const BELOW_FIRST: Seq = 1 << 30;

struct InnerNode {
    /// Separator `i` is the first key of the subtree at child `i + 1`.
    keys: Keys,
    children: [u32; FANOUT + 1],
}

/// A position at a key of the tree. It is valid only until the next insertion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Pos {
    pub leaf: u32,
    i: u32,
}

// Nodes are boxed so that a growing vector moves pointers and not kilobytes.
#[allow(clippy::vec_box)]
pub(super) struct Tree {
    leaves: Leaves,
    inners: Vec<Box<InnerNode>>,
    /// The number of levels of inner nodes. If it is 0, `root` is a leaf.
    height: usize,
    root: u32,
    /// The leaf of the last insertion, where the next search begins.
    finger: u32,
    /// The base to which sequence numbers in records are relative.
    base: Seq,
    /// The versions of keys written more than once.
    versions: Versions,
    /// The number of keys.
    keys: usize,
}

impl InnerNode {
    /// Returns the child whose keys may include `key`.
    #[inline]
    fn child(&self, arena: &Arena, key: &[u8]) -> usize {
        let (i, found) = self.keys.search(arena, key);
        i + found as usize
    }

    /// Inserts a separator at `i`, and the child that follows it.
    fn insert(&mut self, arena: &Arena, i: usize, separator: u32, child: u32) {
        let n = self.keys.len() + 1;
        self.keys.insert(arena, i, arena.key(separator), separator);
        self.children.copy_within(i + 1..n, i + 2);
        self.children[i + 1] = child;
    }
}

impl Tree {
    pub fn new(pool: Arc<Pool>) -> Tree {
        Tree {
            leaves: Leaves::new(pool),
            inners: Vec::new(),
            height: 0,
            root: 0,
            finger: 0,
            base: 0,
            versions: Versions::default(),
            keys: 0,
        }
    }

    /// Returns the number of versions of all keys.
    pub fn len(&self) -> usize {
        self.keys + self.versions.superseded()
    }

    /// Returns the number of versions that are not the newest of their key.
    pub fn superseded(&self) -> usize {
        self.versions.superseded()
    }

    /// Returns the number of leaves.
    pub fn leaves(&self) -> usize {
        self.leaves.len()
    }

    /// Returns the heap bytes in use, not counting the arena.
    pub fn heap(&self) -> usize {
        self.leaves.heap()
            + self.inners.len() * (size_of::<InnerNode>() + 16)
            + self.inners.capacity() * 8
            + self.versions.heap()
    }

    /// Adds a version of `key`. No reader is below `floor`: versions that only such a reader could
    /// see are forgotten from time to time, and their places are added to `released`.
    #[inline]
    pub fn put(
        &mut self,
        arena: &mut Arena,
        key: &[u8],
        stamp: Stamp,
        written: NewValue<'_>,
        floor: Seq,
        released: &mut Released,
    ) {
        if self.leaves.len() == 0 {
            self.leaves.push(Leaf::new());
            self.base = stamp.seq.saturating_sub(BELOW_FIRST);
        }
        let (i, found) = self.find(arena, key);
        if found {
            return self.put_again(arena, i, key, stamp, written, floor, released);
        }
        self.keys += 1;
        let record = match stamp.seq.checked_sub(self.base).and_then(|seq| u32::try_from(seq).ok())
        {
            Some(seq) => arena.add_record(key, seq, stamp.arrival, written),
            None => {
                let chain = self.versions.begin(first_version(arena, stamp, written));
                arena.add_chain(key, chain)
            }
        };
        let leaf = self.leaves.get_mut(self.finger);
        if leaf.keys.len() < FANOUT {
            leaf.keys.insert(arena, i, key, record);
            leaf.newest = leaf.newest.max(stamp.seq);
        } else {
            self.finger = self.split_leaf(arena, key, record, i, stamp.seq);
        }
    }

    /// Moves the finger to the leaf for `key`. Returns the index in this leaf of the first key that
    /// is not below `key`, and whether the two are equal.
    #[inline]
    fn find(&mut self, arena: &Arena, key: &[u8]) -> (usize, bool) {
        let leaf = self.leaves.get(self.finger);
        let len = leaf.keys.len();
        if len > 0 {
            match leaf.keys.cmp_last(arena, key) {
                Ordering::Equal => return (len - 1, true),
                // Keys ascend: `key` belongs after the last one, unless it belongs to the next
                // leaf. Compare the first key of the next leaf only if the last insertion was an
                // append, too, since reading that key is a cache miss.
                Ordering::Less => {
                    let fits = leaf.next == NONE
                        || (leaf.keys.appended()
                            && self.leaves.get(leaf.next).keys.cmp_first(arena, key)
                                == Ordering::Greater);
                    if fits {
                        return (len, false);
                    }
                    self.finger = self.descend(arena, key);
                }
                Ordering::Greater => {
                    if leaf.prev != NONE && leaf.keys.cmp_first(arena, key) == Ordering::Greater {
                        self.finger = self.descend(arena, key);
                    }
                }
            }
        }
        self.leaves.get(self.finger).keys.search(arena, key)
    }

    fn descend(&self, arena: &Arena, key: &[u8]) -> u32 {
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node as usize];
            node = inner.children[inner.child(arena, key)];
        }
        node
    }

    /// Splits the full leaf `self.finger` for `key`, which belongs at index `i`. Returns the leaf
    /// that received the key.
    #[cold]
    fn split_leaf(&mut self, arena: &Arena, key: &[u8], record: u32, i: usize, seq: Seq) -> u32 {
        let left_id = self.finger;
        let right_id = self.leaves.len() as u32;
        let mut right = Leaf::new();
        let left = self.leaves.get_mut(left_id);
        let took = if i == FANOUT {
            right.keys.insert(arena, 0, key, record);
            right.newest = seq;
            right_id
        } else {
            let mid = left.keys.split_at(i);
            left.keys.split_off(arena, mid, &mut right.keys);
            // The number of the whole leaf is an upper bound for its right half.
            right.newest = left.newest;
            if i <= mid {
                left.keys.insert(arena, i, key, record);
                left.newest = left.newest.max(seq);
                left_id
            } else {
                right.keys.insert(arena, i - mid, key, record);
                right.newest = right.newest.max(seq);
                right_id
            }
        };
        right.prev = left_id;
        right.next = left.next;
        left.next = right_id;
        let separator = right.keys.record(0);
        if right.next != NONE {
            let next = right.next;
            self.leaves.get_mut(next).prev = right_id;
        }
        self.leaves.push(right);
        self.add_child(arena, separator, right_id);
        took
    }

    /// Adds the new leaf `child`, whose first key is `separator`, to the inner nodes.
    fn add_child(&mut self, arena: &Arena, separator: u32, child: u32) {
        // Find the path to the leaf to the left of `child`: the separator is not in any inner node
        // yet.
        let mut path = Vec::with_capacity(self.height);
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node as usize];
            let i = inner.child(arena, arena.key(separator));
            path.push((node, i));
            node = inner.children[i];
        }
        let (mut separator, mut child) = (separator, child);
        while let Some((node, i)) = path.pop() {
            let right_id = self.inners.len() as u32;
            let left = &mut self.inners[node as usize];
            if left.keys.len() < FANOUT {
                left.insert(arena, i, separator, child);
                return;
            }
            let mut right = Box::new(InnerNode { keys: Keys::new(), children: [0; FANOUT + 1] });
            if i == FANOUT {
                right.children[0] = child;
            } else {
                let mid = FANOUT / 2;
                // Separator `mid` moves up; the separators and children after it move to the right
                // node.
                let up = left.keys.record(mid);
                left.keys.split_off(arena, mid + 1, &mut right.keys);
                left.keys.pop();
                right.children[..FANOUT - mid].copy_from_slice(&left.children[mid + 1..]);
                if i <= mid {
                    left.insert(arena, i, separator, child);
                } else {
                    right.insert(arena, i - mid - 1, separator, child);
                }
                separator = up;
            }
            self.inners.push(right);
            child = right_id;
        }
        let mut root = Box::new(InnerNode { keys: Keys::new(), children: [0; FANOUT + 1] });
        root.children[0] = self.root;
        root.insert(arena, 0, separator, child);
        self.root = self.inners.len() as u32;
        self.inners.push(root);
        self.height += 1;
    }

    /// Adds a version of an existing key, which is key `i` of leaf `self.finger`.
    #[allow(clippy::too_many_arguments)]
    fn put_again(
        &mut self,
        arena: &mut Arena,
        i: usize,
        key: &[u8],
        stamp: Stamp,
        written: NewValue<'_>,
        floor: Seq,
        released: &mut Released,
    ) {
        let leaf = self.leaves.get_mut(self.finger);
        leaf.newest = leaf.newest.max(stamp.seq);
        let chain = match arena.first(leaf.keys.record(i)) {
            NewestVersion::Chain(chain) => chain,
            NewestVersion::Only { seq, arrival, value } => {
                let only = Stamp { seq: self.base + Seq::from(seq), arrival };
                let chain = self.versions.begin(Version::new(only, value));
                let record = arena.add_chain(key, chain);
                self.leaves.get_mut(self.finger).keys.set_record(i, record);
                chain
            }
        };
        self.versions.overwrite(chain, first_version(arena, stamp, written), floor, released);
    }

    /// Returns the newest version of `key` with a sequence number of at most `at`.
    #[inline]
    pub fn get(&self, arena: &Arena, key: &[u8], at: Seq) -> Option<Version> {
        if self.leaves.len() == 0 {
            return None;
        }
        let leaf = self.leaves.get(self.descend(arena, key));
        let (i, found) = leaf.keys.search(arena, key);
        if found { self.visible(arena, leaf.keys.record(i), at) } else { None }
    }

    /// Returns the newest version of the key in `record` with a sequence number of at most `at`.
    #[inline]
    fn visible(&self, arena: &Arena, record: u32, at: Seq) -> Option<Version> {
        self.visible_of(arena.first(record), at)
    }

    /// Returns the newest version with a sequence number of at most `at` of the key whose newest
    /// version is `newest`.
    #[inline]
    fn visible_of(&self, newest: NewestVersion, at: Seq) -> Option<Version> {
        match newest {
            NewestVersion::Only { seq, arrival, value } => {
                let seq = self.base + Seq::from(seq);
                (seq <= at).then(|| Version::new(Stamp { seq, arrival }, value))
            }
            NewestVersion::Chain(chain) => self.versions.visible(chain, at),
        }
    }

    /// Returns the first key that is not below `key`.
    pub fn seek(&self, arena: &Arena, key: &[u8]) -> Option<Pos> {
        if self.leaves.len() == 0 {
            return None;
        }
        let leaf = self.descend(arena, key);
        let i = self.leaves.get(leaf).keys.search(arena, key).0;
        self.settle(Pos { leaf, i: i as u32 })
    }

    /// Returns the last key below `key`, or the last of all keys if `key` is `None`.
    pub fn seek_before(&self, arena: &Arena, key: Option<&[u8]>) -> Option<Pos> {
        if self.leaves.len() == 0 {
            return None;
        }
        let pos = match key {
            Some(key) => {
                let leaf = self.descend(arena, key);
                Pos { leaf, i: self.leaves.get(leaf).keys.search(arena, key).0 as u32 }
            }
            None => {
                let mut leaf = self.root;
                for _ in 0..self.height {
                    let inner = &self.inners[leaf as usize];
                    leaf = inner.children[inner.keys.len()];
                }
                Pos { leaf, i: self.leaves.get(leaf).keys.len() as u32 }
            }
        };
        self.prev(pos)
    }

    fn settle(&self, pos: Pos) -> Option<Pos> {
        let leaf = self.leaves.get(pos.leaf);
        if (pos.i as usize) < leaf.keys.len() { Some(pos) } else { self.next_leaf(pos) }
    }

    #[inline]
    pub fn next(&self, pos: Pos) -> Option<Pos> {
        self.settle(Pos { i: pos.i + 1, ..pos })
    }

    #[inline]
    pub fn prev(&self, pos: Pos) -> Option<Pos> {
        if pos.i > 0 { Some(Pos { i: pos.i - 1, ..pos }) } else { self.prev_leaf(pos) }
    }

    /// Returns the first key of the next leaf. No leaf is empty.
    pub fn next_leaf(&self, pos: Pos) -> Option<Pos> {
        let next = self.leaves.get(pos.leaf).next;
        (next != NONE).then_some(Pos { leaf: next, i: 0 })
    }

    /// Returns the last key of the previous leaf.
    pub fn prev_leaf(&self, pos: Pos) -> Option<Pos> {
        let prev = self.leaves.get(pos.leaf).prev;
        (prev != NONE).then(|| Pos { leaf: prev, i: self.leaves.get(prev).keys.len() as u32 - 1 })
    }

    /// Returns the first key of the leaf at `pos`.
    pub fn leaf_first(&self, arena: &Arena, pos: Pos) -> Place {
        arena.key_place(self.leaves.get(pos.leaf).keys.record(0))
    }

    /// Returns an upper bound of the sequence numbers in the leaf at `pos`.
    pub fn leaf_newest(&self, pos: Pos) -> Seq {
        self.leaves.get(pos.leaf).newest
    }

    #[inline]
    pub fn key(&self, arena: &Arena, pos: Pos) -> Place {
        arena.key_place(self.leaves.get(pos.leaf).keys.record(pos.i as usize))
    }

    /// Prefetches the next records for a walk that moves past `pos`.
    #[inline]
    pub fn passing(&self, arena: &Arena, pos: Pos) {
        arena.fetch(self.leaves.get(pos.leaf).keys.eight_from(pos.i as usize));
    }

    /// Returns the key at `pos`, and its version that a reader at `at` sees.
    #[inline]
    pub fn entry<'a>(&self, arena: &'a Arena, pos: Pos, at: Seq) -> (&'a [u8], Option<Version>) {
        let (key, newest) = arena.entry(self.leaves.get(pos.leaf).keys.record(pos.i as usize));
        (key, self.visible_of(newest, at))
    }

    /// Returns the version of the key at `pos` that a reader at `at` sees.
    #[inline]
    pub fn version(&self, arena: &Arena, pos: Pos, at: Seq) -> Option<Version> {
        self.visible(arena, self.leaves.get(pos.leaf).keys.record(pos.i as usize), at)
    }
}

/// Makes a version from a write. Copies a small value into the arena.
fn first_version(arena: &mut Arena, stamp: Stamp, written: NewValue<'_>) -> Version {
    let value = match written {
        NewValue::Small(v) => arena.add(v),
        NewValue::Kept(i) => Place::kept(i),
        NewValue::Delete => Place::DELETE,
    };
    Version::new(stamp, value)
}
