//! The ranges that are counted, and the changes that wait for their next question.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use env::sync::Mutex;
use vt_tree::Seq;

use super::blocks::Blocks;
use super::changes::{Change, Changes};
use super::span::Span;
use crate::dictionary::DictionaryId;

/// Changes of a range that wait for the next question; beyond, the older ones are taken in by the
/// writer.
const WAITING: usize = 4096;
/// Of these so many stay, for views that are a little older than the newest.
const STAYING: usize = 1024;
/// After so many changes without a question a range is counted no longer.
pub(super) const UNASKED: u64 = 1 << 20;
/// Indexes of older states that are kept.
pub(super) const OF_OLDER_STATES: usize = 8;
/// The bytes of changes that a range may have at least while it is counted, or asked.
const UNDER_WAY: usize = 1 << 20;

/// `None`: there was no question yet.
pub(super) type Index = Arc<Mutex<Option<Blocks>>>;

/// A range that is counted, as the newest commits leave it.
pub(super) struct CountedRange {
    pub end: Bytes,
    pub index: Index,
    /// All changes after `from`, in their order, that the index has not taken in.
    pub changes: Changes,
    pub from: Seq,
    /// Changes since the last question.
    pub unasked: u64,
    /// When it was last asked for.
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

    /// Has the index take in what waits for longest, if no question is under way. Returns whether
    /// the range can be kept.
    pub fn relieve(&mut self, share: usize) -> bool {
        if !self.is_full(share) {
            return true;
        }
        let index = self.index.clone();
        let mut index = index.try_lock();
        let Some(blocks) = index.as_deref_mut().and_then(Option::as_mut) else {
            return self.changes.bytes() <= share.max(UNDER_WAY);
        };
        // A half of the share is left.
        let Some(up_to) = self.changes.commit_before_newest(STAYING, share / 2) else {
            return true;
        };
        self.take_in(blocks, up_to, share);
        true
    }

    /// Has an index take in the changes of commits up to this one, and remember those of them that
    /// fit into its share.
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

/// The state that an index of an older one is of.
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
    /// By dictionary and first key; none overlaps another one.
    pub ranges: BTreeMap<(DictionaryId, Bytes), CountedRange>,
    pub older: VecDeque<OfOlderState>,
    pub clock: u64,
    /// Ranges that the commit under way has left with many changes.
    pub full: BTreeSet<(DictionaryId, Bytes)>,
    /// Bytes that all changes may take.
    pub most_changes: usize,
}

impl Counted {
    /// The bytes of changes that each range may have, and remember.
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

    /// Ranges of which the deletion leaves nothing are counted no longer.
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
