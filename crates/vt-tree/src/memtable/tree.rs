//! The points of a memtable: a B+-tree of keys in nodes of 64, and behind each key its versions, newest first.
//!
//! Nothing is ever removed from the tree, which keeps two invariants simple: the first key of each leaf but the leftmost *is* the
//! separator that leads to it, and a leaf never dies. So a writer may remember the leaf that it used last and go on there (a
//! sequential or batched insert does not descend), and an append to a full leaf opens a new one instead of leaving two half full.

use super::arena::{Arena, Place};
use super::keys::{FANOUT, Keys};
use crate::Seq;
use std::cmp::Ordering;

const NONE: u32 = u32::MAX;
/// Overwrites of one key between two looks at which of its versions no reader can ask for any more, at least.
const TRIM_EVERY: u32 = 8;

/// When something was written: commit order first; inside one commit, order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp {
    pub seq: Seq,
    pub arrival: u32,
}

/// One version of a key: 32 bytes.
#[derive(Clone, Copy)]
pub(super) struct Version {
    pub seq: Seq,
    arrival: u32,
    /// The next older version, an index into `Tree::olds`.
    older: u32,
    /// Overwrites until the chain behind this newest version is trimmed.
    credit: u32,
    pub value: Place,
}

impl Version {
    pub fn stamp(&self) -> Stamp {
        Stamp { seq: self.seq, arrival: self.arrival }
    }
}

struct Leaf {
    keys: Keys,
    versions: [Version; FANOUT],
    /// No version in this leaf is newer: a cursor passes a leaf that a range tombstone covers without looking into it.
    newest: Seq,
    next: u32,
    prev: u32,
}

struct Inner {
    /// Separator `i` is the first key below child `i + 1`.
    keys: Keys,
    children: [u32; FANOUT + 1],
}

/// A position on a key of the tree. It stays on its key only until the next insertion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Pos {
    pub leaf: u32,
    i: u32,
}

// Nodes are boxed so that a growing table of them moves pointers and not kilobytes.
#[allow(clippy::vec_box)]
pub(super) struct Tree {
    leaves: Vec<Box<Leaf>>,
    inners: Vec<Box<Inner>>,
    /// Levels of inner nodes above the leaves; with 0, `root` is a leaf.
    height: usize,
    root: u32,
    /// The leaf of the last insertion.
    finger: u32,
    /// Versions that are not their key's newest.
    olds: Vec<Version>,
    free_olds: Vec<u32>,
    keys: usize,
}

/// What an overwrite pushed out: values kept outside the arena, to be dropped.
pub(super) type Released = Vec<Place>;

fn empty_leaf() -> Box<Leaf> {
    let version = Version { seq: 0, arrival: 0, older: NONE, credit: 0, value: Place::DELETE };
    Box::new(Leaf { keys: Keys::new(), versions: [version; FANOUT], newest: 0, next: NONE, prev: NONE })
}

impl Leaf {
    fn insert(&mut self, arena: &Arena, i: usize, key: &[u8], place: Place, version: Version) {
        let len = self.keys.len();
        self.keys.insert(arena, i, key, place);
        self.versions.copy_within(i..len, i + 1);
        self.versions[i] = version;
        self.newest = self.newest.max(version.seq);
    }
}

impl Inner {
    /// The child whose keys may include `key`.
    #[inline]
    fn child(&self, arena: &Arena, key: &[u8]) -> usize {
        let (i, found) = self.keys.search(arena, key);
        i + found as usize
    }

    /// Adds separator `key` at `i`, and the child behind it.
    fn insert(&mut self, arena: &Arena, i: usize, place: Place, child: u32) {
        let n = self.keys.len() + 1;
        self.keys.insert(arena, i, arena.get(place), place);
        self.children.copy_within(i + 1..n, i + 2);
        self.children[i + 1] = child;
    }
}

impl Tree {
    pub fn new() -> Tree {
        Tree {
            leaves: Vec::new(),
            inners: Vec::new(),
            height: 0,
            root: 0,
            finger: 0,
            olds: Vec::new(),
            free_olds: Vec::new(),
            keys: 0,
        }
    }

    /// Versions kept, of all keys.
    pub fn len(&self) -> usize {
        self.keys + self.olds.len() - self.free_olds.len()
    }

    /// Heap bytes in use, without those of the arena.
    pub fn heap(&self) -> usize {
        self.leaves.len() * (size_of::<Leaf>() + 16)
            + self.inners.len() * (size_of::<Inner>() + 16)
            + (self.leaves.capacity() + self.inners.capacity()) * 8
            + self.olds.capacity() * size_of::<Version>()
            + self.free_olds.capacity() * 4
    }

    /// Adds a version of `key`. `value` lies in the arena or is kept outside. Readers below `floor` are gone: versions that only they
    /// could see are forgotten now and then. Values kept outside that nothing refers to any more are added to `released`.
    pub fn put(&mut self, arena: &mut Arena, key: &[u8], stamp: Stamp, value: Place, floor: Seq, released: &mut Released) {
        let version = Version { seq: stamp.seq, arrival: stamp.arrival, older: NONE, credit: TRIM_EVERY, value };
        if self.leaves.is_empty() {
            self.leaves.push(empty_leaf());
        }
        if !self.finger_fits(arena, key) {
            self.finger = self.descend(arena, key);
        }
        let leaf = &mut self.leaves[self.finger as usize];
        let (i, found) = leaf.keys.search(arena, key);
        if found {
            leaf.newest = leaf.newest.max(stamp.seq);
            self.overwrite(i, version, floor, released);
            return;
        }
        self.keys += 1;
        let place = arena.add(key);
        if leaf.keys.len() < FANOUT {
            leaf.insert(arena, i, key, place, version);
        } else {
            self.finger = self.split_leaf(arena, key, place, i, version);
        }
    }

    /// `true` when `key` belongs into the leaf of the last insertion.
    #[inline]
    fn finger_fits(&self, arena: &Arena, key: &[u8]) -> bool {
        let leaf = &self.leaves[self.finger as usize];
        if leaf.prev != NONE && leaf.keys.cmp_first(arena, key) == Ordering::Greater {
            return false;
        }
        leaf.next == NONE || self.leaves[leaf.next as usize].keys.cmp_first(arena, key) == Ordering::Greater
    }

    fn descend(&self, arena: &Arena, key: &[u8]) -> u32 {
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node as usize];
            node = inner.children[inner.child(arena, key)];
        }
        node
    }

    /// Splits the full leaf `self.finger` for `key`, which belongs at its index `i`; returns the leaf that took it.
    fn split_leaf(&mut self, arena: &Arena, key: &[u8], place: Place, i: usize, version: Version) -> u32 {
        let left_id = self.finger;
        let right_id = self.leaves.len() as u32;
        let mut right = empty_leaf();
        let left = &mut self.leaves[left_id as usize];
        let took = if i == FANOUT {
            right.insert(arena, 0, key, place, version);
            right_id
        } else {
            let mid = FANOUT / 2;
            left.keys.split_off(arena, mid, &mut right.keys);
            right.versions[..FANOUT - mid].copy_from_slice(&left.versions[mid..]);
            // Versions behind the newest are older, so the newest of the newest bounds them all.
            right.newest = right.versions[..FANOUT - mid].iter().map(|v| v.seq).max().unwrap_or(0);
            left.newest = left.versions[..mid].iter().map(|v| v.seq).max().unwrap_or(0);
            if i <= mid {
                left.insert(arena, i, key, place, version);
                left_id
            } else {
                right.insert(arena, i - mid, key, place, version);
                right_id
            }
        };
        right.prev = left_id;
        right.next = left.next;
        left.next = right_id;
        let separator = right.keys.place(0);
        if right.next != NONE {
            let next = right.next;
            self.leaves[next as usize].prev = right_id;
        }
        self.leaves.push(right);
        self.add_child(arena, separator, right_id);
        took
    }

    /// Enters the new leaf `child`, whose first key is `separator`, into the inner nodes.
    fn add_child(&mut self, arena: &Arena, separator: Place, child: u32) {
        // The way down to the leaf left of it: the separator is not yet anywhere above.
        let mut path = Vec::with_capacity(self.height);
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node as usize];
            let i = inner.child(arena, arena.get(separator));
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
            let mut right = Box::new(Inner { keys: Keys::new(), children: [0; FANOUT + 1] });
            if i == FANOUT {
                right.children[0] = child;
            } else {
                let mid = FANOUT / 2;
                // Separator `mid` goes up; those behind it, and the children behind it, go right.
                let up = left.keys.place(mid);
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
        let mut root = Box::new(Inner { keys: Keys::new(), children: [0; FANOUT + 1] });
        root.children[0] = self.root;
        root.insert(arena, 0, separator, child);
        self.root = self.inners.len() as u32;
        self.inners.push(root);
        self.height += 1;
    }

    /// A version of a key that is there already: key `i` of leaf `self.finger`.
    fn overwrite(&mut self, i: usize, mut new: Version, floor: Seq, released: &mut Released) {
        let newest = &mut self.leaves[self.finger as usize].versions[i];
        match new.seq.cmp(&newest.seq) {
            // Inside one commit the last write counts, and nobody sees those before it.
            Ordering::Equal => {
                released.push(newest.value);
                newest.value = new.value;
                newest.arrival = new.arrival;
            }
            Ordering::Greater => {
                let old = *newest;
                new.credit = old.credit.saturating_sub(1);
                new.older = store(&mut self.olds, &mut self.free_olds, old);
                *newest = new;
                if new.credit == 0 {
                    let left = self.trim(new, floor, released);
                    // Looking costs as much as there are versions; so wait for as many overwrites before the next look.
                    self.leaves[self.finger as usize].versions[i].credit = left + TRIM_EVERY;
                }
            }
            // Not from the commit pipeline, whose sequence numbers ascend; but order of arrival is not assumed anywhere else either.
            Ordering::Less => {
                let mut behind = NONE;
                let mut at = newest.older;
                while at != NONE && self.olds[at as usize].seq > new.seq {
                    behind = at;
                    at = self.olds[at as usize].older;
                }
                if at != NONE && self.olds[at as usize].seq == new.seq {
                    let old = &mut self.olds[at as usize];
                    released.push(old.value);
                    old.value = new.value;
                    old.arrival = new.arrival;
                    return;
                }
                new.older = at;
                let id = store(&mut self.olds, &mut self.free_olds, new);
                match behind {
                    NONE => self.leaves[self.finger as usize].versions[i].older = id,
                    _ => self.olds[behind as usize].older = id,
                }
            }
        }
    }

    /// Forgets the versions behind `newest` that no reader at `floor` or later sees; returns how many are left.
    fn trim(&mut self, newest: Version, floor: Seq, released: &mut Released) -> u32 {
        let mut left = 0;
        let mut last = NONE;
        let mut at = newest.older;
        let mut seen = newest.seq <= floor;
        while at != NONE && !seen {
            seen = self.olds[at as usize].seq <= floor;
            left += 1;
            last = at;
            at = self.olds[at as usize].older;
        }
        if last == NONE {
            // The newest version itself is all that anyone sees: possible only when the floor is ahead of the writer. Keep the chain.
            return left;
        }
        self.olds[last as usize].older = NONE;
        while at != NONE {
            let old = self.olds[at as usize];
            released.push(old.value);
            self.free_olds.push(at);
            at = old.older;
        }
        left
    }

    /// The newest version of `key` with a sequence number of at most `at`.
    #[inline]
    pub fn get(&self, arena: &Arena, key: &[u8], at: Seq) -> Option<&Version> {
        if self.leaves.is_empty() {
            return None;
        }
        let leaf = &self.leaves[self.descend(arena, key) as usize];
        let (i, found) = leaf.keys.search(arena, key);
        if found { self.visible(&leaf.versions[i], at) } else { None }
    }

    #[inline]
    fn visible<'a>(&'a self, newest: &'a Version, at: Seq) -> Option<&'a Version> {
        let mut v = newest;
        while v.seq > at {
            if v.older == NONE {
                return None;
            }
            v = &self.olds[v.older as usize];
        }
        Some(v)
    }

    /// The first key that is not below `key`.
    pub fn seek(&self, arena: &Arena, key: &[u8]) -> Option<Pos> {
        if self.leaves.is_empty() {
            return None;
        }
        let leaf = self.descend(arena, key);
        let i = self.leaves[leaf as usize].keys.search(arena, key).0;
        self.settle(Pos { leaf, i: i as u32 })
    }

    /// The last key below `key`; the last of all for `None`.
    pub fn seek_before(&self, arena: &Arena, key: Option<&[u8]>) -> Option<Pos> {
        if self.leaves.is_empty() {
            return None;
        }
        let pos = match key {
            Some(key) => {
                let leaf = self.descend(arena, key);
                Pos { leaf, i: self.leaves[leaf as usize].keys.search(arena, key).0 as u32 }
            }
            None => {
                let mut leaf = self.root;
                for _ in 0..self.height {
                    let inner = &self.inners[leaf as usize];
                    leaf = inner.children[inner.keys.len()];
                }
                Pos { leaf, i: self.leaves[leaf as usize].keys.len() as u32 }
            }
        };
        self.prev(pos)
    }

    fn settle(&self, pos: Pos) -> Option<Pos> {
        let leaf = &self.leaves[pos.leaf as usize];
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

    /// The first key of the next leaf. No leaf is empty.
    pub fn next_leaf(&self, pos: Pos) -> Option<Pos> {
        let next = self.leaves[pos.leaf as usize].next;
        (next != NONE).then_some(Pos { leaf: next, i: 0 })
    }

    /// The last key of the leaf before.
    pub fn prev_leaf(&self, pos: Pos) -> Option<Pos> {
        let prev = self.leaves[pos.leaf as usize].prev;
        (prev != NONE).then(|| Pos { leaf: prev, i: self.leaves[prev as usize].keys.len() as u32 - 1 })
    }

    /// The first key of the leaf at `pos`.
    pub fn leaf_first(&self, pos: Pos) -> Place {
        self.leaves[pos.leaf as usize].keys.place(0)
    }

    /// No version in the leaf at `pos` is newer than this.
    pub fn leaf_newest(&self, pos: Pos) -> Seq {
        self.leaves[pos.leaf as usize].newest
    }

    #[inline]
    pub fn key(&self, pos: Pos) -> Place {
        self.leaves[pos.leaf as usize].keys.place(pos.i as usize)
    }

    /// The version of the key at `pos` that a reader at `at` sees.
    #[inline]
    pub fn version(&self, pos: Pos, at: Seq) -> Option<&Version> {
        self.visible(&self.leaves[pos.leaf as usize].versions[pos.i as usize], at)
    }
}

fn store(olds: &mut Vec<Version>, free: &mut Vec<u32>, old: Version) -> u32 {
    match free.pop() {
        Some(i) => {
            olds[i as usize] = old;
            i
        }
        None => {
            olds.push(old);
            olds.len() as u32 - 1
        }
    }
}
