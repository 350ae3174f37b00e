//! A rank index: the number of keys in each block of a range.

use std::collections::BTreeMap;

use bytes::Bytes;
use vt_tree::Seq;

use super::asked::walk;
use super::changes::{Change, Changes};
use super::corrections::Corrections;
use super::span::Span;
use crate::error::Result;
use crate::read::view::View;

/// Number of keys in a block of a small range.
const KEYS: u32 = 64;
/// Approximate maximum number of blocks of a range. Ranges with more keys have larger blocks.
const BLOCKS: u64 = 16 << 10;
/// A block that has grown by this factor is counted again and split.
const GROWTH: u32 = 4;
/// Number of changes that are remembered, for views that are slightly older than the index.
const REMEMBERED: usize = 4096;
/// The count of a block whose number of keys is not known.
const UNCERTAIN: u32 = u32::MAX;

/// An index: the first key of each block and its number of keys, as of one commit.
pub(super) struct Blocks {
    /// The counts include all commits up to this one.
    pub at: Seq,
    /// The first keys of the blocks. The first is the start of the range; the others existed when
    /// the blocks were made.
    firsts: Vec<Bytes>,
    counts: Vec<u32>,
    uncertain: usize,
    /// The maximum number of keys in a new block.
    size: u32,
    /// The newest changes that are included in the counts, all after `remembers_from`.
    remembered: Changes,
    remembers_from: Seq,
}

impl Blocks {
    /// Counts the keys of a range in `view`. All changes after `noted_from` are reported to the
    /// index.
    pub fn of(view: &View, span: &Span, noted_from: Seq) -> Result<Blocks> {
        let mut blocks = Blocks {
            at: view.at,
            firsts: Vec::new(),
            counts: Vec::new(),
            uncertain: 0,
            size: KEYS,
            remembered: Changes::default(),
            remembers_from: noted_from.min(view.at),
        };
        (blocks.firsts, blocks.counts) = blocks.divided(view, span, &span.start, &span.end)?;
        blocks.coarsen();
        Ok(blocks)
    }

    pub fn len(&self) -> usize {
        self.firsts.len()
    }

    pub fn first(&self, at: usize) -> &Bytes {
        &self.firsts[at]
    }

    pub fn next(&self, at: usize) -> Option<&Bytes> {
        self.firsts.get(at + 1)
    }

    /// Returns the number of keys in the blocks before `at`, all of which must be counted.
    pub fn sum(&self, at: usize) -> u64 {
        self.counts[..at].iter().map(|count| u64::from(*count)).sum()
    }

    /// Skips counted blocks from `at` on while the `n`th key is after them. `before` is the number
    /// of keys before `at`. Returns the block that is reached, and the number of keys before it.
    pub fn passed(&self, mut at: usize, mut before: u64, n: u64) -> (usize, u64) {
        for count in &self.counts[at..] {
            if *count == UNCERTAIN || before + u64::from(*count) > n {
                break;
            }
            (at, before) = (at + 1, before + u64::from(*count));
        }
        (at, before)
    }

    /// Returns the block that contains a key.
    fn block_of(&self, key: &[u8]) -> usize {
        self.firsts.partition_point(|first| first <= key).saturating_sub(1)
    }

    /// Scans `[start, end)`, and returns the first keys and key counts of its blocks. There is at
    /// least one block.
    fn divided(
        &self,
        view: &View,
        span: &Span,
        start: &Bytes,
        end: &[u8],
    ) -> Result<(Vec<Bytes>, Vec<u32>)> {
        let (mut firsts, mut counts) = (vec![start.clone()], vec![0]);
        walk(view, span.dict, start, end, |key| {
            match counts.last_mut() {
                Some(count) if *count < self.size => *count += 1,
                _ => {
                    firsts.push(Bytes::copy_from_slice(key));
                    counts.push(1);
                }
            }
            true
        })?;
        Ok((firsts, counts))
    }

    /// Merges neighbouring blocks if there are too many.
    fn coarsen(&mut self) {
        while self.firsts.len() as u64 > 2 * BLOCKS && self.uncertain == 0 {
            self.size = self.size.saturating_mul(2);
            let firsts = std::mem::take(&mut self.firsts);
            let counts = std::mem::take(&mut self.counts);
            for (first, count) in firsts.into_iter().zip(counts) {
                match self.counts.last_mut() {
                    Some(last) if *last + count <= self.size => *last += count,
                    _ => {
                        self.firsts.push(first);
                        self.counts.push(count);
                    }
                }
            }
        }
    }

    fn doubt(&mut self, at: usize) {
        if self.counts[at] != UNCERTAIN {
            self.counts[at] = UNCERTAIN;
            self.uncertain += 1;
        }
    }

    /// Applies a change of a commit after [`Blocks::at`].
    pub fn take_in(&mut self, seq: Seq, change: Change) {
        match &change {
            Change::Put { key, new: true } => {
                let at = self.block_of(key);
                match self.counts[at] {
                    UNCERTAIN => {}
                    count if count >= self.size * GROWTH => self.doubt(at),
                    _ => self.counts[at] += 1,
                }
            }
            Change::Delete { key, there: true } => {
                let at = self.block_of(key);
                match self.counts[at] {
                    UNCERTAIN => {}
                    // A key was deleted from a block that has none, so the count was wrong: count
                    // the block again.
                    0 => self.doubt(at),
                    _ => self.counts[at] -= 1,
                }
            }
            Change::Put { key, .. } | Change::Delete { key, .. } | Change::Uncertain { key } => {
                self.doubt(self.block_of(key));
            }
            Change::DeleteRange { start, end } => {
                for at in self.block_of(start)..=self.block_of(end) {
                    self.doubt(at);
                }
            }
        }
        self.remember(seq, change);
    }

    /// Remembers a change that the counts already include.
    pub fn remember(&mut self, seq: Seq, change: Change) {
        self.remembered.push(seq, change);
        if self.remembered.len() > REMEMBERED {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((seq, _)) = self.remembered.pop() {
            self.remembers_from = self.remembers_from.max(seq);
        }
    }

    /// Forgets the oldest remembered changes until they take at most `most` bytes.
    pub fn forget_beyond(&mut self, most: usize) {
        while self.remembered.bytes() > most {
            self.forget_oldest();
        }
        self.remembered.trim();
    }

    /// Counts the adjacent uncertain blocks from `at` on in `view`, which is the state of the
    /// index.
    fn count(&mut self, at: usize, view: &View, span: &Span) -> Result<()> {
        let together = self.counts[at..].iter().take_while(|count| **count == UNCERTAIN).count();
        let end = self.firsts.get(at + together).unwrap_or(&span.end).clone();
        let (mut firsts, mut counts) = self.divided(view, span, &self.firsts[at].clone(), &end)?;
        if at > 0 && counts == [0] {
            (firsts, counts) = (Vec::new(), Vec::new());
        }
        self.firsts.splice(at..at + together, firsts);
        self.counts.splice(at..at + together, counts);
        self.uncertain -= together;
        Ok(())
    }

    /// Counts all uncertain blocks.
    pub fn count_all(&mut self, view: &View, span: &Span) -> Result<()> {
        while self.uncertain > 0
            && let Some(at) = self.counts.iter().position(|count| *count == UNCERTAIN)
        {
            self.count(at, view, span)?;
        }
        self.coarsen();
        Ok(())
    }

    /// Returns the block of a key, after counting all uncertain blocks before it. Here and in the
    /// functions below, `view` is the state of the index.
    pub fn counted_up_to(&mut self, key: &[u8], view: &View, span: &Span) -> Result<usize> {
        self.coarsen();
        loop {
            let at = self.block_of(key);
            if self.uncertain == 0 {
                return Ok(at);
            }
            match self.counts[..at].iter().position(|count| *count == UNCERTAIN) {
                None => return Ok(at),
                Some(uncertain) => self.count(uncertain, view, span)?,
            }
        }
    }

    /// Returns the number of keys of a block, or `None` if there is no such block.
    pub fn counted(&mut self, at: usize, view: &View, span: &Span) -> Result<Option<u32>> {
        while self.counts.get(at) == Some(&UNCERTAIN) {
            self.count(at, view, span)?;
        }
        Ok(self.counts.get(at).copied())
    }

    /// Returns the differences of an older state from the index, or `None` if they are unknown.
    pub fn since(&self, older: &View, span: &Span) -> Result<Option<Corrections>> {
        if older.at < self.remembers_from {
            return Ok(None);
        }
        let mut now: BTreeMap<&Bytes, bool> = BTreeMap::new();
        for change in self.remembered.newest_after(older.at) {
            let (key, there) = match change {
                Change::Put { key, .. } => (key, true),
                Change::Delete { key, .. } => (key, false),
                Change::Uncertain { .. } | Change::DeleteRange { .. } => return Ok(None),
            };
            now.entry(key).or_insert(there);
        }
        let mut corrections = Corrections::default();
        for (key, there) in now {
            let was = older.value_len(span.dict, key)?.is_some();
            corrections.push(key, i64::from(was) - i64::from(there));
        }
        Ok(Some(corrections))
    }
}
