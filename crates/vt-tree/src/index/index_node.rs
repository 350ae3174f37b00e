//! The index node in the form that reads use: it finds the child of a key, in little memory.
//!
//! Merges need all fields of an [`Entry`]; a search needs fast comparisons within a few cache
//! lines, and as many nodes in memory as possible. So the sums are left out, the prefix that all
//! lower fences share is stored once, and the eight bytes after it are kept as an array of numbers:
//! most searches read nothing else.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use crate::block::Block;
use crate::block::sparse_index::SparseIndex;
use crate::filter::Filter;
use crate::index::entry::Entry;
use crate::index::frame::FramePointer;
use crate::index::node::Node;
use crate::key::{head_of, shared_prefix};
use crate::{Error, Result};

/// The child of one entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildPointer {
    pub at: FramePointer,
    pub range_tombstones: bool,
    /// See [`Entry::unfiltered`].
    pub unfiltered: bool,
    /// A tuple block that mostly refers to large values. It is small compared with them and is
    /// cached as a part of the index.
    pub refers: bool,
}

impl ChildPointer {
    pub fn of(e: &Entry) -> ChildPointer {
        ChildPointer {
            at: e.at,
            range_tombstones: e.range_tombstones,
            unfiltered: e.unfiltered,
            refers: e.value_bytes > 4 * e.block_bytes,
        }
    }
}

/// The lower fences of a node's entries, and its children.
#[derive(Debug)]
pub(crate) struct IndexNode {
    pub level: u16,
    /// The prefix that all lower fences share, then the rest of each.
    keys: Box<[u8]>,
    prefix: u32,
    /// The end of the rest of each key in `keys`.
    ends: Box<[u32]>,
    /// The first eight bytes of each rest, as a number that sorts as they do.
    heads: Box<[u64]>,
    pointers: Box<[ChildPointer]>,
    /// The filters of the children, if these are leaf index nodes; a length of 0 stands for none.
    filters: Box<[FramePointer]>,
    /// The filters themselves, as far as they were requested and the budget allowed to keep them.
    pub pins: Box<[OnceLock<FilterPin>]>,
    /// The upper fence: it is above every key beneath.
    high: Box<[u8]>,
    /// A bit for each entry, set once the child was checked to be within its fences.
    admitted: Box<[AtomicU64]>,
    /// The children, if these are nodes, as far as the budget allowed to keep them.
    children: OnceLock<PinnedBelow<Arc<IndexNode>>>,
    /// The sparse indexes of the children, if these are tuple blocks that were read.
    sparse_indexes: OnceLock<PinnedBelow<Arc<SparseIndex>>>,
}

/// Data about the children of a node that is kept with it, and its memory.
#[derive(Debug)]
struct PinnedBelow<T> {
    of: Box<[OnceLock<T>]>,
    /// The bytes that these take, also counted in `all`.
    bytes: AtomicU64,
    all: Arc<AtomicU64>,
}

impl<T> PinnedBelow<T> {
    /// Keeps `one` as element `i` of `len`, unless `all` would then exceed `most` bytes.
    fn keep(
        these: &OnceLock<PinnedBelow<T>>,
        len: usize,
        i: usize,
        one: T,
        weight: usize,
        all: &Arc<AtomicU64>,
        most: u64,
    ) {
        let slots = if these.get().is_some() { 0 } else { len * size_of::<OnceLock<T>>() };
        let bytes = (slots + weight) as u64;
        if all.fetch_add(bytes, Relaxed) + bytes > most {
            all.fetch_sub(bytes, Relaxed);
            return;
        }
        let these = these.get_or_init(|| PinnedBelow {
            of: (0..len).map(|_| OnceLock::new()).collect(),
            bytes: AtomicU64::new(0),
            all: all.clone(),
        });
        // If another thread has set it first, its bytes are counted twice until the node is
        // dropped.
        these.bytes.fetch_add(bytes, Relaxed);
        if let Some(slot) = these.of.get(i) {
            let _ = slot.set(one);
        }
    }
}

impl<T> Drop for PinnedBelow<T> {
    fn drop(&mut self) {
        self.all.fetch_sub(*self.bytes.get_mut(), Relaxed);
    }
}

/// A filter that is kept with its node, and its memory.
#[derive(Debug)]
pub(crate) struct FilterPin {
    filter: Filter,
    pinned: Arc<AtomicU64>,
}

impl FilterPin {
    /// Keeps `filter`, unless `all` would then exceed `most` bytes.
    pub fn keep(filter: &Filter, all: &Arc<AtomicU64>, most: u64) -> Option<FilterPin> {
        let bytes = filter.size() as u64;
        if all.fetch_add(bytes, Relaxed) + bytes > most {
            all.fetch_sub(bytes, Relaxed);
            return None;
        }
        Some(FilterPin { filter: filter.clone(), pinned: all.clone() })
    }

    pub fn filter(&self) -> &Filter {
        &self.filter
    }
}

impl Drop for FilterPin {
    fn drop(&mut self) {
        self.pinned.fetch_sub(self.filter.size() as u64, Relaxed);
    }
}

impl IndexNode {
    pub fn of(node: &Node) -> IndexNode {
        let entries = &node.entries;
        let shared = match (entries.first(), entries.last()) {
            (Some(a), Some(b)) => shared_prefix(&a.low, &b.low),
            _ => 0,
        };
        let mut keys: Vec<u8> =
            entries.first().map(|e| e.low[..shared].to_vec()).unwrap_or_default();
        let mut ends = Vec::with_capacity(entries.len());
        for e in entries {
            // Keys between the first and the last share the prefix that these two share.
            keys.extend_from_slice(&e.low[shared..]);
            ends.push(keys.len() as u32);
        }
        let filters: Box<[FramePointer]> = match entries.iter().any(|e| e.filter.is_some()) {
            true => entries.iter().map(|e| e.filter.unwrap_or_default()).collect(),
            false => Box::default(),
        };
        IndexNode {
            level: node.level,
            keys: keys.into(),
            prefix: shared as u32,
            ends: ends.into(),
            heads: entries.iter().map(|e| head_of(&e.low[shared..])).collect(),
            pointers: entries.iter().map(ChildPointer::of).collect(),
            pins: filters.iter().map(|_| OnceLock::new()).collect(),
            filters,
            high: entries.last().map(|e| e.high[..].into()).unwrap_or_default(),
            admitted: (0..entries.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            children: OnceLock::new(),
            sparse_indexes: OnceLock::new(),
        }
    }

    /// Returns the sparse index of a child, if there is one.
    #[inline]
    pub fn sparse_index(&self, i: usize) -> Option<&Arc<SparseIndex>> {
        self.sparse_indexes.get()?.of.get(i)?.get()
    }

    /// Keeps the sparse index of a child, unless `all` would then exceed `most` bytes.
    pub fn keep_sparse_index(
        &self,
        i: usize,
        sparse: SparseIndex,
        all: &Arc<AtomicU64>,
        most: u64,
    ) {
        let weight = sparse.weight();
        PinnedBelow::keep(&self.sparse_indexes, self.len(), i, Arc::new(sparse), weight, all, most);
    }

    /// Returns the node beneath an entry, if it was kept.
    #[inline]
    pub fn child(&self, i: usize) -> Option<&IndexNode> {
        Some(self.children.get()?.of.get(i)?.get()?)
    }

    /// Keeps the node beneath an entry as long as this one, unless `all` would then exceed `most`
    /// bytes.
    pub fn keep_child(&self, i: usize, child: Arc<IndexNode>, all: &Arc<AtomicU64>, most: u64) {
        let weight = child.weight();
        PinnedBelow::keep(&self.children, self.len(), i, child, weight, all, most);
    }

    /// Returns the memory that it takes, bytes.
    pub fn weight(&self) -> usize {
        size_of::<Self>()
            + self.keys.len()
            + self.high.len()
            + 8 * self.admitted.len()
            + self.pointers.len() * (12 + size_of::<ChildPointer>())
            + self.filters.len() * (size_of::<FramePointer>() + size_of::<OnceLock<FilterPin>>())
    }

    pub fn len(&self) -> usize {
        self.pointers.len()
    }

    pub fn child_pointer(&self, i: usize) -> ChildPointer {
        self.pointers[i]
    }

    pub fn filter(&self, i: usize) -> Option<FramePointer> {
        self.filters.get(i).copied().filter(|f| f.len > 0)
    }

    fn rest(&self, i: usize) -> &[u8] {
        let start = if i == 0 { self.prefix } else { self.ends[i - 1] };
        &self.keys[start as usize..self.ends[i] as usize]
    }

    /// Returns the lower fence of an entry.
    fn low(&self, i: usize) -> Vec<u8> {
        [&self.keys[..self.prefix as usize], self.rest(i)].concat()
    }

    /// Checks, once, that the node beneath an entry is within its fences. So no node is reached on
    /// two paths, and every walk ends even if the device is damaged.
    pub fn admit(&self, i: usize, child: &IndexNode) -> Result<()> {
        self.admit_once(i, || {
            (child.len() > 0).then(|| self.covers(i, &child.low(0), &child.high, false))
        })
    }

    /// Checks, once, that the tuple block beneath an entry is within its fences, by the first keys
    /// of its restart intervals.
    pub fn admit_block(&self, i: usize, block: &Block) -> Result<()> {
        self.admit_once(i, || {
            Some(block.ends().ok()?.is_none_or(|(first, last)| self.covers(i, first, last, true)))
        })
    }

    #[inline]
    fn admit_once(&self, i: usize, within: impl FnOnce() -> Option<bool>) -> Result<()> {
        let (Some(word), bit) = (self.admitted.get(i / 64), 1 << (i % 64)) else { return Ok(()) };
        if word.load(Relaxed) & bit != 0 {
            return Ok(());
        }
        if within() != Some(true) {
            return Err(Error::corrupt(
                "index entry: keys beneath it are outside its fences",
                self.pointers[i].at.addr,
            ));
        }
        word.fetch_or(bit, Relaxed);
        Ok(())
    }

    /// Returns whether an entry covers everything from `first` to `last`, including `last` if
    /// `with`.
    fn covers(&self, i: usize, first: &[u8], last: &[u8], with: bool) -> bool {
        let high = if i + 1 < self.len() { self.low(i + 1) } else { self.high.to_vec() };
        self.low(i).as_slice() <= first
            && if with { last < high.as_slice() } else { last <= high.as_slice() }
    }

    /// Returns the number of entries that begin below `key`, or at it if `or_at`.
    fn below(&self, key: &[u8], or_at: bool) -> usize {
        let prefix = &self.keys[..self.prefix as usize];
        let n = prefix.len().min(key.len());
        match key[..n].cmp(&prefix[..n]) {
            std::cmp::Ordering::Less => return 0,
            std::cmp::Ordering::Greater => return self.len(),
            // `key` is a proper prefix of the shared prefix.
            std::cmp::Ordering::Equal if n < prefix.len() => return 0,
            std::cmp::Ordering::Equal => {}
        }
        let rest = &key[n..];
        let h = head_of(rest);
        let first = below(&self.heads, h);
        let same = match self.heads.get(first) {
            Some(&x) if x == h => self.heads[first..].partition_point(|&x| x == h),
            _ => 0,
        };
        // Whole keys decide between equal heads.
        let (mut lo, mut hi) = (first, first + same);
        while lo < hi {
            let mid = (lo + hi) / 2;
            let low = self.rest(mid);
            if low < rest || (or_at && low == rest) { lo = mid + 1 } else { hi = mid }
        }
        lo
    }

    /// Returns the last entry that begins at or below `key`, the only one that can cover it, or
    /// `None` if all begin above.
    pub fn covering(&self, key: &[u8]) -> Option<usize> {
        self.below(key, true).checked_sub(1)
    }

    /// Returns the last entry that begins below `key`.
    pub fn before(&self, key: &[u8]) -> Option<usize> {
        self.below(key, false).checked_sub(1)
    }
}

/// Returns the number of the ascending `heads` that are below `h`, by an interpolation search: if
/// keys are spread evenly it touches one or two cache lines, where a binary search touches five.
/// Otherwise it takes at most twice the steps of a binary search.
#[inline]
fn below(heads: &[u64], h: u64) -> usize {
    let (Some(&low), Some(&high)) = (heads.first(), heads.last()) else { return 0 };
    if h <= low {
        return 0;
    }
    if h > high {
        return heads.len();
    }
    let last = heads.len() - 1;
    // `low < h <= high`: the guess lies between 0 and `last`.
    let guess = ((((h - low) as f64 / (high - low) as f64) * last as f64) as usize).min(last);
    let mut step = 4;
    // All heads before `from` are below `h`; those from `to` on are not.
    let (from, to) = if heads[guess] < h {
        let mut from = guess + 1;
        loop {
            match heads.get(from + step) {
                Some(&x) if x < h => from += step + 1,
                Some(_) => break (from, from + step),
                None => break (from, last),
            }
            step *= 2;
        }
    } else {
        let mut to = guess;
        loop {
            match to.checked_sub(step).map(|i| (i, heads[i])) {
                Some((i, x)) if x >= h => to = i,
                Some((i, _)) => break (i + 1, to),
                None => break (1, to),
            }
            step *= 2;
        }
    };
    from + heads[from.min(to)..to].partition_point(|&x| x < h)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_guess_leads_where_halving_does(
            mut heads in prop_oneof![
                proptest::collection::vec(any::<u64>(), 0..300),
                proptest::collection::vec(0u64..20, 0..60),
                proptest::collection::vec(any::<u64>().prop_map(|x| 1u64.checked_shl((x % 70) as u32).unwrap_or(u64::MAX)), 0..100),
            ],
            others in proptest::collection::vec(any::<u64>(), 10),
        ) {
            heads.sort_unstable();
            for h in heads.iter().flat_map(|&h| [h.saturating_sub(1), h, h.saturating_add(1)]).chain(others).chain([0, u64::MAX]) {
                prop_assert_eq!(below(&heads, h), heads.partition_point(|&x| x < h));
            }
        }
    }

    fn node(lows: &[&[u8]]) -> Node {
        let mut b = crate::index::node::NodeBuilder::default();
        for (i, low) in lows.iter().enumerate() {
            let mut high = low.to_vec();
            high.push(0);
            let at = FramePointer { addr: 4096 * (i as u64 + 1), len: 4096, crc: i as u32 };
            b.push(Entry::of_one_item(Bytes::copy_from_slice(low), Bytes::from(high), at));
        }
        Node::parse(Bytes::from(b.payload()), 1, 4096).expect("what is built parses")
    }

    #[test]
    fn a_search_finds_what_a_walk_finds() {
        let sets: [&[&[u8]]; 5] = [
            &[b""],
            &[b"a", b"ab", b"abc\0", b"abc\0\0\0\0\0\0\0\0\0", b"abc\0\0\0\0\0\0\0\0\0\0", b"abd"],
            &[b"same prefix 00000000a", b"same prefix 00000000b", b"same prefix 1"],
            &[b"", b"\0", b"\0\0", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"],
            &[b"only one"],
        ];
        let probes: Vec<&[u8]> = sets
            .concat()
            .into_iter()
            .chain([&b"same"[..], b"same prefix 00000000aa", b"same z", b"zz", b"abc"])
            .collect();
        for lows in sets {
            let f = IndexNode::of(&node(lows));
            for p in &probes {
                assert_eq!(f.covering(p), lows.iter().rposition(|l| l <= p), "{lows:?} {p:?}");
                assert_eq!(f.before(p), lows.iter().rposition(|l| l < p), "{lows:?} {p:?}");
            }
        }
    }
}
