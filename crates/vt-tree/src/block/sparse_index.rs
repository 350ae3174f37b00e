//! A sparse index is kept in memory for a tuple block that is not in memory. For each restart
//! interval, the sparse index has the offset, the first eight bytes that distinguish the first key,
//! and a checksum. These are about 16 bytes for a restart interval of half a kilobyte.
//!
//! A block in the page cache of the host need not be in memory a second time, but without a sparse
//! index the whole block would have to be read to check one of its tuples. A sparse index is
//! created when the whole block has been read and checked. With a sparse index, a get reads and
//! checks only the restart interval that can have its key. So more tuples can be read without the
//! device than fit into the cache, and every used byte was checked.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use zones::crc32c;

use crate::Result;
use crate::block::Block;
use crate::item::{Body, Seq};
use crate::key::head_of;

/// The smallest number of restart intervals of a block with a sparse index. With fewer intervals, a
/// sparse index would save little.
const INTERVALS_LEAST: usize = 4;
/// The largest length of a restart interval, in bytes. If an interval is longer, the whole block is
/// read.
const INTERVAL_MOST: usize = 4 << 10;

/// The number of lookups per report: one in this many lookups that bypass the cache is reported to
/// the cache, so that the cache keeps blocks that are in use.
const TOLD: u32 = 16;

/// The result of a lookup in a block.
type BlockLookup = Result<Option<(Seq, Body)>>;

/// The sparse index of a block.
#[derive(Debug)]
pub(crate) struct SparseIndex {
    /// For each restart interval the head of its first key, followed by its offset in the payload
    /// of the frame and its checksum for each interval, and by the prefix that the first keys
    /// share.
    words: Box<[u64]>,
    intervals: u16,
    shared: u16,
    /// The offset at which the last restart interval ends.
    end: u32,
    /// The block itself while it is cached, so that no lookup in the cache is needed.
    cached: ArcSwapOption<Block>,
    /// The number of lookups in the cached block.
    hits: AtomicU32,
    /// `true` if the last read had to wait for the device.
    slow: AtomicBool,
    /// The time of the last read of a restart interval, counted in misses of the cache.
    read: AtomicU32,
}

thread_local! {
    static INTERVAL: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl SparseIndex {
    /// Returns the sparse index of a block that is stored uncompressed, or `None` if it would save
    /// little. `now` is the number of misses of the cache.
    pub fn of(block: &Block, now: u32) -> Option<SparseIndex> {
        let intervals = block.plain_intervals()?;
        let (n, shared) = (intervals.len(), block.shared_prefix());
        if n < INTERVALS_LEAST || n > usize::from(u16::MAX) || shared.len() > usize::from(u16::MAX)
        {
            return None;
        }
        let mut words: Vec<u64> = Vec::with_capacity(2 * n + shared.len().div_ceil(8));
        words.extend_from_slice(block.heads());
        words.extend(
            intervals
                .iter()
                .map(|g| (g.start as u64) << 32 | u64::from(crc32c(&block.bytes()[g.clone()]))),
        );
        words.extend(shared.chunks(8).map(head_of));
        Some(SparseIndex {
            words: words.into(),
            intervals: n as u16,
            shared: shared.len() as u16,
            end: intervals.last()?.end as u32,
            cached: ArcSwapOption::empty(),
            hits: AtomicU32::new(0),
            slow: AtomicBool::new(false),
            read: AtomicU32::new(now),
        })
    }

    /// Returns the memory that the sparse index takes, in bytes.
    pub fn weight(&self) -> usize {
        size_of::<Self>() + 16 + 8 * self.words.len()
    }

    /// Keeps a reference to the block, which is cached from now on, until [`SparseIndex::evict`] is
    /// called.
    pub fn keep(self: &Arc<Self>, block: &Arc<Block>) {
        // Two threads may have read the block at the same time. The copy that was stored later
        // stays.
        if block.sparse_index.set(Arc::downgrade(self)).is_ok() {
            self.cached.store(Some(block.clone()));
            // If the block was evicted concurrently, either this load or `evict` sees the store of
            // the other thread.
            if block.evicted.load(SeqCst) {
                self.cached.store(None);
            }
        }
    }

    /// Drops the reference to `block`, which the cache has evicted.
    pub fn evict(block: &Block) {
        block.evicted.store(true, SeqCst);
        if let Some(sparse) = block.sparse_index.get().and_then(Weak::upgrade) {
            sparse.cached.store(None);
        }
    }

    /// Looks up `key` if the block is cached. Also returns whether the use should be reported to
    /// the cache.
    #[inline]
    pub fn find_cached(&self, key: &[u8]) -> Option<(BlockLookup, bool)> {
        let here = self.cached.load();
        let block = here.as_ref()?;
        let hits = self.hits.load(Relaxed).wrapping_add(1);
        self.hits.store(hits, Relaxed);
        let found = self.choose(key).map_or_else(
            || block.find(key),
            |mut g| {
                loop {
                    let (start, end, _) = self.interval(g);
                    if g == 0
                        || block
                            .bytes()
                            .get(start..end)
                            .and_then(Block::first_key)
                            .is_none_or(|first| first <= key)
                    {
                        break block.find_between(start, end, key);
                    }
                    g -= 1;
                }
            },
        );
        Some((found, hits.is_multiple_of(TOLD)))
    }

    /// Returns whether to read one restart interval instead of the whole block. This is so if the
    /// host has the block in memory, and no interval was read within the last `soon` misses of the
    /// cache.
    pub fn suits(&self, now: u32, soon: u32) -> bool {
        let before = self.read.load(Relaxed);
        self.read.store(now, Relaxed);
        now.wrapping_sub(before) > soon && !self.slow.load(Relaxed)
    }

    /// Records whether the last read had to wait for the device.
    pub fn set_slow(&self, slow: bool) {
        self.slow.store(slow, Relaxed);
    }

    fn interval(&self, g: usize) -> (usize, usize, u32) {
        let n = usize::from(self.intervals);
        let start = |g: usize| (self.words[n + g] >> 32) as usize;
        let end = if g + 1 < n { start(g + 1) } else { self.end as usize };
        (start(g), end, self.words[n + g] as u32)
    }

    /// Compares `key` with the prefix that all first keys share.
    fn against_shared(&self, key: &[u8]) -> Ordering {
        let shared = usize::from(self.shared);
        let words = &self.words[2 * usize::from(self.intervals)..];
        for (i, word) in words.iter().enumerate() {
            let bytes = word.to_be_bytes();
            let len = (shared - 8 * i).min(8);
            let have = key.get(8 * i..).unwrap_or_default();
            let have = &have[..have.len().min(len)];
            match have.cmp(&bytes[..len]) {
                Ordering::Equal => {}
                other => return other,
            }
        }
        Ordering::Equal
    }

    /// Returns the restart interval that can have `key`. If the first key of this interval is above
    /// `key`, the previous interval can have it. Returns `None` if whole keys have to be compared.
    fn choose(&self, key: &[u8]) -> Option<usize> {
        let at = match self.against_shared(key) {
            Ordering::Less => 0,
            Ordering::Greater => usize::from(self.intervals),
            Ordering::Equal => {
                let heads = &self.words[..usize::from(self.intervals)];
                let head = head_of(&key[usize::from(self.shared)..]);
                let first = heads.partition_point(|&h| h < head);
                match heads[first..].iter().take_while(|&&h| h == head).count() {
                    0 => first,
                    // `find` compares the whole first key.
                    1 => first + 1,
                    _ => return None,
                }
            }
        };
        Some(at.saturating_sub(1))
    }

    /// Looks up `key` in one restart interval of the block. `read` fills a buffer with the bytes at
    /// an offset of the payload. Returns `None` if the whole block must be read.
    pub fn find(
        &self,
        key: &[u8],
        mut read: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Option<Option<(Seq, Body)>> {
        let mut g = self.choose(key)?;
        INTERVAL.with_borrow_mut(|buf| {
            loop {
                let (start, end, crc) = self.interval(g);
                let len = end - start;
                if len > INTERVAL_MOST {
                    return None;
                }
                if buf.len() < len {
                    buf.resize(INTERVAL_MOST, 0);
                }
                let interval = &mut buf[..len];
                read(start, interval).ok()?;
                // Reading the whole block will report the error.
                if crc32c(interval) != crc {
                    return None;
                }
                if g > 0 && Block::first_key(interval)? > key {
                    g -= 1;
                    continue;
                }
                return Block::find_in_interval(interval, key);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockBuilder;
    use crate::item::Item;
    use crate::value::Value;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn block(items: &[Item]) -> Arc<Block> {
        let mut b = BlockBuilder::default();
        items.iter().for_each(|i| b.add(&i.key, i.seq, i.borrow().body));
        Arc::new(
            Block::parse(Bytes::copy_from_slice(b.finish().0), 0).expect("what is built parses"),
        )
    }

    fn put(key: Vec<u8>, len: usize) -> Item {
        let value = Bytes::from(vec![key.last().copied().unwrap_or(7); len]);
        Item { key: key.into(), seq: 3, body: Body::Put(Value::Inline(value)) }
    }

    /// Looks up `key` by reading restart intervals of the payload.
    fn find(sparse: &SparseIndex, block: &Block, key: &[u8]) -> Option<Option<(Seq, Body)>> {
        sparse.find(key, |at, to| {
            to.copy_from_slice(&block.bytes()[at..at + to.len()]);
            Ok(())
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        /// The keys have few different bytes, so that prefixes, heads and whole keys are often
        /// equal. Every third item is a range tombstone.
        #[test]
        fn a_sparse_index_finds_what_its_block_has(
            keys in proptest::collection::btree_set(proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..12), 20..90),
            prefix in proptest::collection::vec(any::<u8>(), 0..20),
            lens in proptest::collection::vec(0usize..300, 7),
            others in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..30), 20),
        ) {
            let keys: Vec<Vec<u8>> = keys.into_iter().map(|k| [prefix.clone(), k].concat()).collect();
            let mut items: Vec<Item> = keys.iter().enumerate().map(|(i, k)| put(k.clone(), lens[i % 7])).collect();
            for i in (0..items.len() - 1).step_by(3) {
                items[i].body = Body::DeleteRange { end: items[i + 1].key.clone() };
            }
            let block = block(&items);
            let Some(sparse) = SparseIndex::of(&block, 0).map(Arc::new) else { return Ok(()) };
            let probes = keys.iter().cloned()
                .chain(keys.iter().map(|k| [&k[..], &[0]].concat()))
                .chain(keys.iter().map(|k| k[..k.len() - k.len().min(1)].to_vec()))
                .chain(others);
            for key in probes {
                let whole = block.find(&key).unwrap();
                if let Some(found) = find(&sparse, &block, &key) {
                    prop_assert_eq!(&found, &whole);
                }
                sparse.cached.store(Some(block.clone()));
                prop_assert_eq!(sparse.find_cached(&key).unwrap().0.unwrap(), whole);
                sparse.cached.store(None);
            }
        }
    }

    #[test]
    fn most_keys_take_one_interval_and_a_changed_byte_is_never_believed() {
        let items: Vec<Item> = (0..90u64)
            .map(|i| put([&b"user/"[..], &(i << 40 | 5).to_be_bytes(), b"x"].concat(), 64))
            .collect();
        let block = block(&items);
        let sparse = SparseIndex::of(&block, 0).expect("many intervals");
        for item in &items {
            let mut bytes = 0;
            let found = sparse.find(&item.key, |at, to| {
                bytes += to.len();
                to.copy_from_slice(&block.bytes()[at..at + to.len()]);
                Ok(())
            });
            assert_eq!(found, Some(Some((3, item.body.clone()))));
            assert!(bytes < 700, "{bytes} bytes were read for one tuple");
            for bit in [0, 100, 8 * 500] {
                let spoilt = sparse.find(&item.key, |at, to| {
                    to.copy_from_slice(&block.bytes()[at..at + to.len()]);
                    let bit = bit % (8 * to.len());
                    to[bit / 8] ^= 1 << (bit % 8);
                    Ok(())
                });
                assert_eq!(spoilt, None);
            }
        }
    }

    #[test]
    fn what_the_cache_lets_go_of_is_not_held() {
        let items: Vec<Item> = (0..90u64).map(|i| put(i.to_be_bytes().to_vec(), 64)).collect();
        let (one, other) = (block(&items), block(&items));
        let sparse = Arc::new(SparseIndex::of(&one, 0).expect("many intervals"));
        sparse.keep(&one);
        assert!(
            sparse
                .find_cached(&items[5].key)
                .is_some_and(|(found, _)| found.is_ok_and(|f| f.is_some()))
        );
        SparseIndex::evict(&one);
        assert!(sparse.find_cached(&items[5].key).is_none());
        assert_eq!(Arc::strong_count(&one), 1);
        // The cache has evicted the block before it is kept.
        SparseIndex::evict(&other);
        sparse.keep(&other);
        assert!(sparse.find_cached(&items[5].key).is_none());
        assert_eq!(Arc::strong_count(&other), 1);
    }
}
