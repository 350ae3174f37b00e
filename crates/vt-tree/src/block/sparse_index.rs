//! What is kept of a tuple block that is not: where its restart intervals lie, the first eight
//! bytes that tell their first keys apart, and a checksum of each, some 16 bytes for a restart
//! interval of half a kilobyte.
//!
//! A block that the host has in its page cache need not be there a second time; but to check one
//! tuple of it, all of it had to be read. With a sparse index, made when the whole block was read
//! and checked, a get reads the one restart interval that can have its key, and checks that. So
//! more tuples are at hand than the cache has room for, and no byte is believed that was not
//! checked.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use zones::crc32c;

use crate::Result;
use crate::block::{Block, head_of};
use crate::item::{Body, Seq};

/// Blocks of fewer restart intervals have none: hardly less would be read.
const INTERVALS_LEAST: usize = 4;
/// A longer restart interval is read with its block.
const INTERVAL_MOST: usize = 4 << 10;

/// The cache is told of one find in so many without it, so that what is in use stays.
const TOLD: u32 = 16;

/// What a block has for a key.
type BlockLookup = Result<Option<(Seq, Body)>>;

/// The sparse index of a block.
#[derive(Debug)]
pub(crate) struct SparseIndex {
    /// For each restart interval the head of its first key; then for each where it begins in the
    /// frame's payload and its checksum; then what the first keys share.
    words: Box<[u64]>,
    intervals: u16,
    shared: u16,
    /// Where the last restart interval ends.
    end: u32,
    /// The block itself, while the cache has it: found without looking there.
    cached: ArcSwapOption<Block>,
    /// How often it was found so.
    hits: AtomicU32,
    /// The device had to be waited for.
    slow: AtomicBool,
    /// When a restart interval was last read, in misses of the cache.
    read: AtomicU32,
}

thread_local! {
    static INTERVAL: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl SparseIndex {
    /// Of a block whose payload lies on the device as it is.
    /// `now`: in misses of the cache.
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

    /// Memory that it takes, bytes.
    pub fn weight(&self) -> usize {
        size_of::<Self>() + 16 + 8 * self.words.len()
    }

    /// The cache has the block from now on, until it calls [`SparseIndex::evict`] of it.
    pub fn keep(self: &Arc<Self>, block: &Arc<Block>) {
        // One that two have read at the same time may be told of both; the later one stays.
        if block.sparse_index.set(Arc::downgrade(self)).is_ok() {
            self.cached.store(Some(block.clone()));
            // If it was pushed out meanwhile, this or `evict` sees the other's mark.
            if block.evicted.load(SeqCst) {
                self.cached.store(None);
            }
        }
    }

    /// The cache has pushed `block` out.
    pub fn evict(block: &Block) {
        block.evicted.store(true, SeqCst);
        if let Some(sparse) = block.sparse_index.get().and_then(Weak::upgrade) {
            sparse.cached.store(None);
        }
    }

    /// What the block has for `key`, if the cache has the block; and whether the cache should be
    /// told that it is in use.
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

    /// Whether a restart interval should be read and not the whole block: the host has it, and it
    /// was not read a moment ago, which is `soon` misses of the cache.
    pub fn suits(&self, now: u32, soon: u32) -> bool {
        let before = self.read.load(Relaxed);
        self.read.store(now, Relaxed);
        now.wrapping_sub(before) > soon && !self.slow.load(Relaxed)
    }

    /// The device had to be waited for, or not any more.
    pub fn set_slow(&self, slow: bool) {
        self.slow.store(slow, Relaxed);
    }

    fn interval(&self, g: usize) -> (usize, usize, u32) {
        let n = usize::from(self.intervals);
        let start = |g: usize| (self.words[n + g] >> 32) as usize;
        let end = if g + 1 < n { start(g + 1) } else { self.end as usize };
        (start(g), end, self.words[n + g] as u32)
    }

    /// How `key` compares with what all first keys share; as much of it as there is.
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

    /// The restart interval that can have `key`, or else, if its first key is above it, the one
    /// before. `None`: whole keys are needed to tell.
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
                    // Its first key is looked at in the restart interval.
                    1 => first + 1,
                    _ => return None,
                }
            }
        };
        Some(at.saturating_sub(1))
    }

    /// What the block has for `key`, out of one restart interval of it. `read` fills a buffer from
    /// a place in the payload on. `None`: that must be asked of the whole block.
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
                // What is wrong with it the whole block will tell.
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

    /// By reading restart intervals of the payload.
    fn find(sparse: &SparseIndex, block: &Block, key: &[u8]) -> Option<Option<(Seq, Body)>> {
        sparse.find(key, |at, to| {
            to.copy_from_slice(&block.bytes()[at..at + to.len()]);
            Ok(())
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        /// Keys of few different bytes, so that prefixes, heads and whole keys meet often; every
        /// third item may delete a range.
        #[test]
        fn an_outline_finds_what_its_block_has(
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
        // The cache was quicker.
        SparseIndex::evict(&other);
        sparse.keep(&other);
        assert!(sparse.find_cached(&items[5].key).is_none());
        assert_eq!(Arc::strong_count(&other), 1);
    }
}
