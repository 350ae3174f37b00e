//! The counted ranges, and the changes that wait to be applied to their indexes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use env::sync::Mutex;
use vt_tree::Seq;

use super::blocks::Blocks;
use super::changes::{Change, Changes};
use super::span::Span;
use crate::dictionary::DictionaryId;

/// Maximum number of changes of a range that wait for the next query. If there are more, the writer
/// applies the oldest ones to the index.
const WAITING: usize = 4096;
/// The number of changes that the writer leaves unapplied, for views slightly older than the
/// newest.
const STAYING: usize = 1024;
/// A range is no longer counted after this many changes without a query.
pub(super) const UNASKED: u64 = 1 << 20;
/// Maximum number of indexes of older states that are kept.
pub(super) const OF_OLDER_STATES: usize = 8;
/// Bytes of changes that a range may accumulate while its index is being built or is locked by a
/// query, even if this exceeds its share.
const UNDER_WAY: usize = 1 << 20;

/// The index of a range. `None` before the first query.
pub(super) type Index = Arc<Mutex<Option<Blocks>>>;

/// A counted range in the newest state.
pub(super) struct CountedRange {
    pub end: Bytes,
    pub index: Index,
    /// All changes after the commit `from` that the index does not include yet, in commit order.
    pub changes: Changes,
    pub from: Seq,
    /// Number of changes since the last query.
    pub unasked: u64,
    /// The time of the last query, by the clock of [`Counted`].
    pub asked: u64,
    pub blocks: usize,
}

impl CountedRange {
    pub fn add(&mut self, seq: Seq, change: Change) {
        self.changes.push(seq, change);
        self.unasked += 1;
    }

    pub fn is_full(&self, share: usize) -> bool {
        self.changes.len() > WAITING || self.changes.bytes() > share || self.unasked >= UNASKED
    }

    /// Applies the oldest waiting changes to the index if there are too many, unless a query holds
    /// the index lock. Returns whether the range can be kept.
    pub fn relieve(&mut self, share: usize) -> bool {
        if !self.is_full(share) {
            return true;
        }
        let index = self.index.clone();
        let mut index = index.try_lock();
        let Some(blocks) = index.as_deref_mut().and_then(Option::as_mut) else {
            return self.changes.bytes() <= share.max(UNDER_WAY);
        };
        // Leave half of the share free.
        let Some(up_to) = self.changes.commit_before_newest(STAYING, share / 2) else {
            return true;
        };
        self.take_in(blocks, up_to, share);
        true
    }

    /// Applies the changes of commits up to `up_to` to an index. The index remembers the newest of
    /// them, as far as they fit into its share.
    pub fn take_in(&mut self, blocks: &mut Blocks, up_to: Seq, share: usize) {
        while let Some((seq, change)) = self.changes.pop_up_to(up_to) {
            if seq > blocks.at {
                blocks.take_in(seq, change);
            } else {
                blocks.remember(seq, change);
            }
        }
        self.changes.trim();
        blocks.at = blocks.at.max(up_to);
        blocks.forget_beyond(share);
        self.from = self.from.max(up_to);
    }
}

/// The state that an index of an older state counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Commit(Seq),
    Snapshot([u8; 16]),
}

pub(super) struct OfOlderState {
    pub state: State,
    pub span: Span,
    pub index: Index,
}

#[derive(Default)]
pub(super) struct Counted {
    /// The counted ranges, keyed by dictionary and first key. They do not overlap.
    pub ranges: BTreeMap<(DictionaryId, Bytes), CountedRange>,
    pub older: VecDeque<OfOlderState>,
    pub clock: u64,
    /// Ranges that have too many waiting changes since the current commit.
    pub full: BTreeSet<(DictionaryId, Bytes)>,
    /// Maximum bytes of the changes of all ranges.
    pub most_changes: usize,
}

impl Counted {
    /// Returns the bytes that each range may use for waiting changes, and again for remembered
    /// ones.
    pub fn share(&self) -> usize {
        self.most_changes / 2 / self.ranges.len().max(1)
    }

    pub fn add(
        &mut self,
        dict: DictionaryId,
        key: &[u8],
        seq: Seq,
        change: impl FnOnce() -> Change,
    ) {
        let (up_to, share) = ((dict, Bytes::copy_from_slice(key)), self.share());
        let Some((first, range)) = self.ranges.range_mut(..=up_to).next_back() else { return };
        if first.0 != dict || !range.end.is_empty() && range.end <= key {
            return;
        }
        range.add(seq, change());
        if range.is_full(share) {
            self.full.insert(first.clone());
        }
    }

    /// Records the deletion of a range. Ranges that it covers completely are no longer counted.
    pub fn delete_range(&mut self, dict: DictionaryId, start: &Bytes, end: &Bytes, seq: Seq) {
        let met = |(of, first): &(DictionaryId, Bytes), range: &CountedRange| {
            let span = Span { dict, start: first.clone(), end: range.end.clone() };
            *of == dict && span.meets(start, end)
        };
        self.ranges.retain(|key, range| {
            let all = *start <= key.1 && !range.end.is_empty() && range.end <= *end;
            !(all && met(key, range))
        });
        let share = self.share();
        for (key, range) in &mut self.ranges {
            if met(key, range) {
                range.add(seq, Change::DeleteRange { start: start.clone(), end: end.clone() });
                if range.is_full(share) {
                    self.full.insert(key.clone());
                }
            }
        }
    }
}
