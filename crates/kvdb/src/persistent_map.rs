//! An ordered map whose copy costs no more than copying a pointer. The map is a B+ tree of shared
//! nodes, and a change copies the nodes on the path from the root to the entry. Copies of a map
//! that differ in few entries share all other nodes, so their difference is found without reading
//! the shared nodes.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

/// The maximum number of entries of a leaf, or of children of an inner node.
const MOST: usize = 32;
/// The number of entries or children below which a node is merged with its neighbour, if both fit
/// into one node.
const FEW: usize = MOST / 4;
/// The number of entries by which the capacity of a full node grows. The number is small because
/// unused capacity in thousands of nodes wastes memory, and a node grows only a few times.
const GROWTH: usize = 4;

enum Node<K, V> {
    Leaf(Vec<(K, V)>),
    /// The height above the leaves, and the children, each with a separator key. The separator is
    /// greater than all keys of the children before the child, and not greater than the keys of the
    /// child.
    Inner(u32, Vec<(K, Arc<Node<K, V>>)>),
}

impl<K: Clone, V: Clone> Clone for Node<K, V> {
    /// Copies a node for a change, with capacity for one more entry. A copy without spare capacity
    /// would double its memory when an entry is added.
    fn clone(&self) -> Self {
        match self {
            Node::Leaf(entries) => Node::Leaf(with_room(entries)),
            Node::Inner(height, children) => Node::Inner(*height, with_room(children)),
        }
    }
}

fn with_room<T: Clone>(all: &[T]) -> Vec<T> {
    let mut copy = Vec::with_capacity(all.len() + 1);
    copy.extend_from_slice(all);
    copy
}

/// Inserts an entry into the list of a node. A full list grows by a few entries instead of a share
/// of its size.
fn insert_at<T>(all: &mut Vec<T>, at: usize, entry: T) {
    if all.len() == all.capacity() {
        all.reserve_exact(GROWTH);
    }
    all.insert(at, entry);
}

/// A node that was split off, with a lower bound of its keys.
type Split<K, V> = Option<(K, Arc<Node<K, V>>)>;

impl<K, V> Node<K, V> {
    fn height(&self) -> u32 {
        match self {
            Node::Leaf(_) => 0,
            Node::Inner(height, _) => *height,
        }
    }

    fn len(&self) -> usize {
        match self {
            Node::Leaf(entries) => entries.len(),
            Node::Inner(_, children) => children.len(),
        }
    }
}

/// Returns the index of the only child that can hold `key`.
fn child_of<K: Borrow<Q>, Q: Ord + ?Sized, C>(children: &[(K, C)], key: &Q) -> usize {
    children.partition_point(|(least, _)| least.borrow() <= key).saturating_sub(1)
}

fn find<K: Borrow<Q>, Q: Ord + ?Sized, V>(
    entries: &[(K, V)],
    key: &Q,
) -> std::result::Result<usize, usize> {
    entries.binary_search_by(|(k, _)| k.borrow().cmp(key))
}

impl<K: Ord + Clone, V: Clone> Node<K, V> {
    fn insert(self: &mut Arc<Self>, key: K, value: V) -> (Option<V>, Split<K, V>) {
        match Arc::make_mut(self) {
            Node::Leaf(entries) => match find(entries, &key) {
                Ok(at) => (Some(std::mem::replace(&mut entries[at].1, value)), None),
                Err(at) => {
                    insert_at(entries, at, (key, value));
                    let half = |right: Vec<(K, V)>| (right[0].0.clone(), Node::Leaf(right));
                    (None, split(entries).map(half).map(shared))
                }
            },
            Node::Inner(height, children) => {
                let at = child_of(children, &key);
                let (before, split_off) = children[at].1.insert(key, value);
                if let Some(right) = split_off {
                    insert_at(children, at + 1, right);
                }
                let half = |right: Vec<(K, Arc<Node<K, V>>)>| {
                    (right[0].0.clone(), Node::Inner(*height, right))
                };
                (before, split(children).map(half).map(shared))
            }
        }
    }

    /// Removes `key`, which must be in the map.
    fn remove<Q: Ord + ?Sized>(self: &mut Arc<Self>, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        match Arc::make_mut(self) {
            Node::Leaf(entries) => find(entries, key).ok().map(|at| entries.remove(at).1),
            Node::Inner(_, children) => {
                let at = child_of(children, key);
                let gone = children[at].1.remove(key);
                if children[at].1.len() == 0 {
                    // Remove an empty child, since an empty node at the end would hide the last
                    // key.
                    children.remove(at);
                } else if children[at].1.len() < FEW && children.len() > 1 {
                    let left = at.min(children.len() - 2);
                    if children[left].1.len() + children[left + 1].1.len() <= MOST {
                        let (least, right) = children.remove(left + 1);
                        Arc::make_mut(&mut children[left].1).append(&least, &right);
                    }
                }
                gone
            }
        }
    }

    /// Appends the entries of the next node, which has the same height. `least` is a lower bound of
    /// that node's keys.
    fn append(&mut self, least: &K, right: &Node<K, V>) {
        match (self, right) {
            (Node::Leaf(entries), Node::Leaf(more)) => entries.extend_from_slice(more),
            (Node::Inner(_, children), Node::Inner(_, more)) => {
                let end = children.len();
                children.extend_from_slice(more);
                // The key of a node's first child is not used, so it may be out of date.
                children[end].0 = least.clone();
            }
            _ => debug_assert!(false, "children of a node have one height"),
        }
    }

    fn get_mut<Q: Ord + ?Sized>(self: &mut Arc<Self>, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        match Arc::make_mut(self) {
            Node::Leaf(entries) => match find(entries, key) {
                Ok(at) => Some(&mut entries[at].1),
                Err(_) => None,
            },
            Node::Inner(_, children) => {
                let at = child_of(children, key);
                children[at].1.get_mut(key)
            }
        }
    }
}

/// Splits off and returns the right half of a list that has become too long.
fn split<T>(all: &mut Vec<T>) -> Option<Vec<T>> {
    (all.len() > MOST).then(|| {
        let right = all.split_off(MOST / 2);
        // The left half still has the capacity of the whole list. With ascending keys, such as most
        // numbers, the left half never grows again, so shrink it.
        all.shrink_to_fit();
        right
    })
}

fn shared<K, V>((least, node): (K, Node<K, V>)) -> (K, Arc<Node<K, V>>) {
    (least, Arc::new(node))
}

/// An ordered map that is cheap to copy. See the documentation of the module.
pub(crate) struct PersistentMap<K, V> {
    root: Option<Arc<Node<K, V>>>,
    len: usize,
}

impl<K, V> PersistentMap<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns `true` if the two maps are copies of one map and neither was changed after the copy.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.root, &other.root) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }

    /// Returns the entries in ascending order of their keys.
    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        Iter(self.root.iter().map(Step::Node).collect())
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    pub(crate) fn last_key_value(&self) -> Option<(&K, &V)> {
        let mut node = self.root.as_deref()?;
        loop {
            match node {
                Node::Leaf(entries) => return entries.last().map(|(k, v)| (k, v)),
                Node::Inner(_, children) => node = &children.last()?.1,
            }
        }
    }

    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.get_key_value(key).map(|(_, value)| value)
    }

    /// Returns the key and the value that the map stores for `key`.
    pub(crate) fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let mut node = self.root.as_deref()?;
        loop {
            match node {
                Node::Leaf(entries) => {
                    return find(entries, key).ok().map(|at| (&entries[at].0, &entries[at].1));
                }
                Node::Inner(_, children) => node = &children[child_of(children, key)].1,
            }
        }
    }

    pub(crate) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Calls `each`, in ascending order, with each key whose entries may differ, and with the
    /// values that this map and `newer` have for the key. Nodes that the maps share are skipped.
    pub(crate) fn difference<'a>(
        &'a self,
        newer: &'a Self,
        mut each: impl FnMut(&'a K, Option<&'a V>, Option<&'a V>),
    ) where
        K: Ord,
    {
        let (mut old, mut new) = (self.iter(), newer.iter());
        loop {
            match (old.0.last(), new.0.last()) {
                (None, None) => return,
                (Some(Step::Node(one)), Some(Step::Node(other))) => {
                    if Arc::ptr_eq(one, other) {
                        _ = (old.0.pop(), new.0.pop());
                        continue;
                    }
                    // Open the higher node first, since a shared node has the same height in both
                    // maps.
                    let (one, other) = (one.height(), other.height());
                    if one >= other {
                        old.open();
                    }
                    if other >= one {
                        new.open();
                    }
                }
                (Some(Step::Node(_)), _) => old.open(),
                (_, Some(Step::Node(_))) => new.open(),
                (Some(Step::Entry((k, v))), Some(Step::Entry((l, w)))) => {
                    let order = k.cmp(l);
                    match order {
                        Ordering::Less => each(k, Some(v), None),
                        Ordering::Greater => each(l, None, Some(w)),
                        Ordering::Equal => each(k, Some(v), Some(w)),
                    }
                    if order.is_le() {
                        old.0.pop();
                    }
                    if order.is_ge() {
                        new.0.pop();
                    }
                }
                (Some(Step::Entry((k, v))), None) => {
                    each(k, Some(v), None);
                    old.0.pop();
                }
                (None, Some(Step::Entry((l, w)))) => {
                    each(l, None, Some(w));
                    new.0.pop();
                }
            }
        }
    }
}

impl<K: Ord + Clone, V: Clone> PersistentMap<K, V> {
    /// Inserts a value, and returns the value that it replaces.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some(root) = &mut self.root else {
            self.root = Some(Arc::new(Node::Leaf(vec![(key, value)])));
            self.len = 1;
            return None;
        };
        // The key of the first child is never compared.
        let least = key.clone();
        let (before, split_off) = root.insert(key, value);
        if let Some(right) = split_off {
            let children = vec![(least, root.clone()), right];
            *root = Arc::new(Node::Inner(root.height() + 1, children));
        }
        self.len += usize::from(before.is_none());
        before
    }

    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        // Return before copying the path if the key is missing.
        if !self.contains_key(key) {
            return None;
        }
        let root = self.root.as_mut()?;
        let gone = root.remove(key);
        self.len -= 1;
        while let Node::Inner(_, children) = &**root
            && let [(_, only)] = &children[..]
        {
            *root = only.clone();
        }
        if self.len == 0 {
            self.root = None;
        }
        gone
    }

    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if !self.contains_key(key) {
            return None;
        }
        self.root.as_mut()?.get_mut(key)
    }
}

enum Step<'a, K, V> {
    Node(&'a Arc<Node<K, V>>),
    Entry(&'a (K, V)),
}

/// An iterator over a map. Its list has the remaining steps, the last step first.
pub(crate) struct Iter<'a, K, V>(Vec<Step<'a, K, V>>);

impl<K, V> Iter<'_, K, V> {
    /// Replaces the next node with its children or entries.
    fn open(&mut self) {
        match self.0.pop() {
            Some(Step::Node(node)) => match &**node {
                Node::Leaf(entries) => self.0.extend(entries.iter().rev().map(Step::Entry)),
                Node::Inner(_, children) => {
                    self.0.extend(children.iter().rev().map(|(_, child)| Step::Node(child)));
                }
            },
            other => self.0.extend(other),
        }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        while let Step::Node(_) = self.0.last()? {
            self.open();
        }
        match self.0.pop()? {
            Step::Entry((key, value)) => Some((key, value)),
            Step::Node(_) => None,
        }
    }
}

impl<K, V> Clone for PersistentMap<K, V> {
    fn clone(&self) -> Self {
        PersistentMap { root: self.root.clone(), len: self.len }
    }
}

impl<K, V> Default for PersistentMap<K, V> {
    fn default() -> Self {
        PersistentMap { root: None, len: 0 }
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for PersistentMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = PersistentMap::default();
        entries.into_iter().for_each(|(key, value)| _ = map.insert(key, value));
        map
    }
}

impl<'a, K, V> IntoIterator for &'a PersistentMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for PersistentMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && (self.is_same(other) || self.iter().eq(other.iter()))
    }
}

impl<K: Eq, V: Eq> Eq for PersistentMap<K, V> {}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for PersistentMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for PersistentMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("the key is there")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Returns keys in pseudo-random order.
    fn shuffled(n: u32) -> impl Iterator<Item = u32> {
        (0..n).map(|i| i.wrapping_mul(2_654_435_761) % 5000)
    }

    #[test]
    fn it_is_a_map() {
        let (mut map, mut model) = (PersistentMap::default(), BTreeMap::new());
        for (n, key) in shuffled(20_000).enumerate() {
            match n % 5 {
                0 | 1 if n > 6000 => assert_eq!(map.remove(&key), model.remove(&key)),
                2 => {
                    let (one, other) = (map.get_mut(&key), model.get_mut(&key));
                    assert_eq!(one, other);
                    one.into_iter().chain(other).for_each(|value| *value += 1);
                }
                _ => assert_eq!(map.insert(key, n), model.insert(key, n)),
            }
            assert_eq!(map.get(&(key / 2)), model.get(&(key / 2)));
            assert_eq!(map.len(), model.len());
        }
        assert!(map.iter().eq(model.iter()));
        assert_eq!(map.last_key_value(), model.last_key_value());
        let keys: Vec<u32> = model.keys().copied().collect();
        keys.iter().for_each(|key| assert!(map.remove(key).is_some()));
        assert!(map.is_empty() && map.iter().next().is_none() && map.root.is_none());
    }

    #[test]
    fn nodes_of_keys_that_are_counted_upwards_have_little_room_left() {
        fn room(node: &Node<u32, u32>) -> usize {
            match node {
                Node::Leaf(entries) => entries.capacity(),
                Node::Inner(_, children) => {
                    children.capacity()
                        + children.iter().map(|(_, child)| room(child)).sum::<usize>()
                }
            }
        }
        let mut map = PersistentMap::default();
        for key in 0..10_000 {
            // Each node on the path is copied while another version shares it.
            let _copy = (key % 7 == 0).then(|| map.clone());
            map.insert(key, key);
        }
        let room = map.root.as_deref().map_or(0, room);
        assert!(room < 12_000, "room for {room}");
        assert!(map.iter().map(|(key, _)| *key).eq(0..10_000));
        for key in (0..10_000).rev().step_by(2).chain((0..10_000).step_by(2)) {
            assert_eq!(map.remove(&key), Some(key));
        }
        assert!(map.root.is_none());
    }

    #[test]
    fn nodes_that_are_copied_for_each_change_have_little_room_left() {
        fn room(node: &Node<u32, u32>) -> usize {
            match node {
                Node::Leaf(entries) => entries.capacity() - entries.len(),
                Node::Inner(_, children) => {
                    let inside = children.iter().map(|(_, child)| room(child)).sum::<usize>();
                    children.capacity() - children.len() + inside
                }
            }
        }
        let mut map = PersistentMap::default();
        for key in shuffled(5000) {
            let _copy = map.clone();
            map.insert(key, key);
        }
        // A copied node has capacity for one more entry, and a node that grows without a copy for
        // at most four.
        let room = map.root.as_deref().map_or(0, room);
        assert!(room <= map.len() / 10, "room for {room} more than {}", map.len());
    }

    /// A node with one child cannot be merged with its neighbour if the neighbour is full.
    #[test]
    fn the_last_key_is_found_after_all_keys_of_the_last_node_are_gone() {
        let mut map: PersistentMap<u32, ()> = (0..600).map(|key| (10 * key, ())).collect();
        // The first of the two inner nodes has 16 leaves of 16 entries. Adding 17 entries to each
        // leaf splits it, so that the node has 32 leaves.
        (0..256).for_each(|key| _ = map.insert(10 * key + 1, ()));
        (0..256).step_by(16).for_each(|key| _ = map.insert(10 * key + 2, ()));
        let mut model: BTreeMap<u32, ()> = map.iter().map(|(key, ())| (*key, ())).collect();
        match map.root.as_deref() {
            Some(Node::Inner(2, children)) => assert_eq!(children[0].1.len(), MOST),
            _ => panic!("the map is not two nodes high"),
        }
        while let Some((key, ())) = model.pop_last() {
            map.remove(&key);
            assert_eq!(map.last_key_value(), model.last_key_value(), "without {key}");
        }
        assert!(map.root.is_none());
    }

    #[test]
    fn a_copy_stays_as_it_was() {
        let mut map: PersistentMap<u32, u32> = shuffled(3000).map(|k| (k, k)).collect();
        let before: BTreeMap<u32, u32> = map.iter().map(|(k, v)| (*k, *v)).collect();
        let copy = map.clone();
        for key in shuffled(1500) {
            map.remove(&key);
            map.insert(key + 5000, 1);
        }
        assert!(copy.iter().eq(before.iter()));
        assert_ne!(copy, map);
    }

    #[test]
    fn two_maps_differ_in_what_was_changed_and_little_else_is_looked_at() {
        let old: PersistentMap<u32, u32> = (0..100_000).map(|k| (2 * k, k)).collect();
        let mut new = old.clone();
        for n in 0..10 {
            new.insert(20_000 * n + 1, 0);
            new.insert(20_000 * n + 500, 7);
            new.remove(&(20_000 * n + 1000));
        }
        let (mut seen, mut found) = (0, Vec::new());
        old.difference(&new, |key, one, other| {
            seen += 1;
            if one != other {
                found.push((*key, one.copied(), other.copied()));
            }
        });
        let each = (0..10).flat_map(|n| {
            let at = 20_000 * n;
            [
                (at + 1, None, Some(0)),
                (at + 500, Some(at / 2 + 250), Some(7)),
                (at + 1000, Some(at / 2 + 500), None),
            ]
        });
        assert!(found.into_iter().eq(each));
        assert!(seen < 30 * 3 * MOST, "{seen} entries for 30 changes");
        let mut all = 0;
        PersistentMap::default().difference(&new, |_, one, other| {
            assert!(one.is_none() && other.is_some());
            all += 1;
        });
        assert_eq!(all, new.len());
    }
}
