//! Ranks: the number of keys in a range before a given key, and the nth key of a range. Neither
//! scans all preceding keys.
//!
//! The runs of a tree overlap, so the counts of their nodes do not add up: a key may be in several
//! runs, overwritten or deleted. Therefore a range is counted by a scan when its ranks are first
//! queried. From then on an in-memory index holds the number of keys between about every 64th key
//! and the next ([`Blocks`]), and each commit reports the keys of the range that it has changed
//! ([`Ranks::note`]), under the pipeline's lock and hence in commit order. A query applies the
//! changes since the last query, recounts the blocks that have become uncertain, adds up the counts
//! before its position, and scans less than one block. The index is never stored, so writers do no
//! I/O for it. The result is exact in every state. For a view with a transaction's own changes, the
//! counts are corrected by these. For a view of an older commit or of a snapshot, they are
//! corrected by the changes made since, or the view gets its own index.
//!
//! The lock of an index is held during reads and while waiting for the pipeline's lock. To avoid a
//! deadlock, a thread that holds a ranked lock only tries to lock an index.

mod asked;
mod blocks;
mod changes;
mod corrections;
mod counted;
mod span;

use std::sync::Arc;

use bytes::Bytes;
use env::sync::Mutex;
use env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vt_tree::Seq;

use self::asked::Asked;
use self::blocks::Blocks;
use self::changes::{Change, Changes};
use self::corrections::Corrections;
use self::counted::{Counted, CountedRange, Index, OF_OLDER_STATES, OfOlderState, State, UNASKED};
pub(crate) use self::span::Span;
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::journal::record::{Op, Ops};
use crate::read::view::View;

/// Approximate memory of a block, bytes.
const BLOCK_MEMORY: usize = 96;

/// The counted ranges, and their changes since they were counted.
pub(crate) struct Ranks {
    on: AtomicBool,
    /// While any range is counted: the changes of commits up to this one have been recorded.
    noted: AtomicU64,
    counted: Mutex<Counted>,
    /// Maximum number of blocks of all indexes together.
    most: usize,
}

/// The functions of the store that a query needs.
pub(crate) trait RanksEnv {
    /// Returns the newest state.
    fn newest(&self) -> View;
    /// Waits until the changes of all visible commits are recorded.
    fn await_noted(&self);
    /// Calls `begin` with the number of the newest commit, while no commit is in progress.
    fn between_commits(&self, begin: &mut dyn FnMut(Seq));
}

impl Ranks {
    /// Makes the ranks. `memory` is the number of bytes that the indexes may take.
    pub(crate) fn new(memory: usize) -> Ranks {
        Ranks {
            on: AtomicBool::new(false),
            noted: AtomicU64::new(0),
            counted: Mutex::new(Counted { most_changes: memory, ..Counted::default() }),
            most: memory / BLOCK_MEMORY,
        }
    }

    /// Returns whether any range is counted.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Records the changes of a commit whose last number is `to`. `known` has the positions of puts
    /// whose keys are known to have had no value, and of deletions whose keys are known to have had
    /// one. The caller holds the pipeline's lock.
    pub(crate) fn note(&self, changes: &Ops, known: &[u32], to: Seq) {
        if !self.is_on() {
            return;
        }
        let mut counted = self.counted.lock();
        let mut known = known.iter().copied().peekable();
        for (i, (dict, op)) in changes.iter().enumerate() {
            let sure = known.next_if_eq(&(i as u32)).is_some();
            let copy = |key: &Bytes| Bytes::copy_from_slice(key);
            match op {
                Op::DeleteRange(start, end) => counted.delete_range(*dict, start, end, to),
                Op::Delete(key) => {
                    counted.add(*dict, key, to, || Change::Delete { key: copy(key), there: sure })
                }
                Op::Update(key, _) => {
                    counted.add(*dict, key, to, || Change::Uncertain { key: copy(key) });
                }
                Op::Put(key, _) | Op::PutDeferred(key, ..) | Op::PutDiscarded(key, _) => {
                    counted.add(*dict, key, to, || Change::Put { key: copy(key), new: sure });
                }
            }
        }
        self.noted(&mut counted, to);
    }

    /// Records a commit that is a single put, like [`Ranks::note`].
    pub(crate) fn note_put(&self, dict: DictionaryId, key: &[u8], to: Seq) {
        if !self.is_on() {
            return;
        }
        let mut counted = self.counted.lock();
        counted.add(dict, key, to, || Change::Put { key: Bytes::copy_from_slice(key), new: false });
        self.noted(&mut counted, to);
    }

    /// Records a commit whose changes are not listed. It affects the given dictionaries or, if
    /// these are `None`, any: their ranges are counted again at the next query. The caller holds
    /// the pipeline's lock.
    pub(crate) fn note_unlisted(&self, dicts: Option<&[DictionaryId]>, to: Seq) {
        if !self.is_on() {
            return;
        }
        let mut counted = self.counted.lock();
        counted.ranges.retain(|(dict, _), _| dicts.is_some_and(|dicts| !dicts.contains(dict)));
        self.noted(&mut counted, to);
    }

    fn noted(&self, counted: &mut Counted, to: Seq) {
        // Visit only the full ranges, so that the cost of a commit does not depend on the number of
        // counted ranges.
        let share = counted.share();
        for key in std::mem::take(&mut counted.full) {
            let stays = counted
                .ranges
                .get_mut(&key)
                .is_some_and(|range| range.unasked < UNASKED && range.relieve(share));
            if !stays {
                counted.ranges.remove(&key);
            }
        }
        self.noted.store(to, Ordering::Release);
        self.on.store(!counted.ranges.is_empty(), Ordering::Release);
    }

    /// Returns the number of keys of `span` before `key` in a view.
    pub(crate) fn before(
        &self,
        env: &impl RanksEnv,
        view: &View,
        span: &Span,
        key: &[u8],
    ) -> Result<u64> {
        if key <= &span.start[..] {
            return Ok(0);
        }
        let key = if !span.end.is_empty() && key > &span.end[..] { &span.end[..] } else { key };
        // The index may cover a wider range than `span`, so subtract the keys before `span`.
        self.ask(env, view, span, |asked| {
            // A block whose count is wrong is counted only when the key lies inside it.
            Ok(asked.before(key)?.saturating_sub(asked.before(&span.start)?))
        })
    }

    /// Returns the number of keys of `span` in a view.
    pub(crate) fn len(&self, env: &impl RanksEnv, view: &View, span: &Span) -> Result<u64> {
        match span.end.is_empty() {
            true => self.ask(env, view, span, |asked| {
                let all = asked.len()?;
                Ok(all.saturating_sub(asked.before(&span.start)?))
            }),
            false => self.before(env, view, span, &span.end),
        }
    }

    /// Returns the key of `span` in a view that has exactly `n` keys before it.
    pub(crate) fn nth(
        &self,
        env: &impl RanksEnv,
        view: &View,
        span: &Span,
        n: u64,
    ) -> Result<Option<Bytes>> {
        self.ask(env, view, span, |asked| {
            // The index may cover a wider range than `span`, so skip the keys before `span`.
            let skipped = asked.before(&span.start)?;
            let found = asked.nth(skipped.saturating_add(n))?;
            Ok(found.filter(|key| span.has(key)))
        })
    }

    /// Answers a query with an index that covers `span`.
    fn ask<T>(
        &self,
        env: &impl RanksEnv,
        view: &View,
        span: &Span,
        question: impl FnOnce(&mut Asked<'_>) -> Result<T>,
    ) -> Result<T> {
        if view.snapshot.is_none() {
            let (counted, index) = self.counted_range(env, span);
            let mut blocks = index.lock();
            if let Some(corrections) = self.bring(env, view, &counted, &index, &mut blocks)?
                && let Some(blocks) = &mut *blocks
            {
                let below = view.committed();
                let mut asked = Asked { blocks, view, below, span: &counted, corrections };
                let answer = question(&mut asked)?;
                self.settle(&counted, asked.blocks.len());
                return Ok(answer);
            }
        }
        let index = self.of_older(view, span);
        let mut index = index.lock();
        let below = view.committed();
        let blocks = match &mut *index {
            Some(blocks) => blocks,
            none => none.insert(Blocks::of(&below, span, below.at)?),
        };
        match Corrections::of_own(view, &below, span)? {
            Some(corrections) => question(&mut Asked { blocks, view, below, span, corrections }),
            None => {
                // The transaction's changes cannot be listed, so count its state for this one
                // query.
                let blocks = &mut Blocks::of(view, span, view.at)?;
                let (below, corrections) = (view.clone(), Corrections::default());
                question(&mut Asked { blocks, view, below, span, corrections })
            }
        }
    }

    /// Returns the counted range that contains `span`. Begins to count `span` if there is none.
    fn counted_range(&self, env: &impl RanksEnv, span: &Span) -> (Span, Index) {
        let found = |counted: &mut Counted| {
            counted.clock += 1;
            let now = counted.clock;
            let up_to = (span.dict, span.start.clone());
            let ((dict, start), range) = counted.ranges.range_mut(..=up_to).next_back()?;
            let there = Span { dict: *dict, start: start.clone(), end: range.end.clone() };
            if !there.contains(span) {
                return None;
            }
            (range.asked, range.unasked) = (now, 0);
            Some((there, range.index.clone()))
        };
        if let Some(found) = found(&mut self.counted.lock()) {
            return found;
        }
        let mut begun = (span.clone(), Index::default());
        env.between_commits(&mut |newest| {
            let mut counted = self.counted.lock();
            if let Some(found) = found(&mut counted) {
                begun = found;
                return;
            }
            counted.ranges.retain(|(dict, start), range| {
                let there = Span { dict: *dict, start: start.clone(), end: range.end.clone() };
                *dict != span.dict || !there.meets(&span.start, &span.end)
            });
            let range = CountedRange {
                end: span.end.clone(),
                index: begun.1.clone(),
                changes: Changes::default(),
                from: newest,
                unasked: 0,
                asked: counted.clock,
                blocks: 0,
            };
            counted.ranges.insert((span.dict, span.start.clone()), range);
            self.noted.store(newest, Ordering::Release);
            self.on.store(true, Ordering::Release);
        });
        begun
    }

    /// Applies changes to the index of a counted range until it can answer for `view`, and returns
    /// the corrections for `view`. Returns `None` if the difference is unknown.
    fn bring(
        &self,
        env: &impl RanksEnv,
        view: &View,
        counted: &Span,
        index: &Index,
        blocks: &mut Option<Blocks>,
    ) -> Result<Option<Corrections>> {
        let blocks = match blocks {
            Some(blocks) => blocks,
            none => {
                let Some(from) = self.noted_from(counted, index) else { return Ok(None) };
                none.insert(Blocks::of(&env.newest(), counted, from)?)
            }
        };
        let below = view.committed();
        let Some(own) = Corrections::of_own(view, &below, counted)? else { return Ok(None) };
        if view.at >= blocks.at {
            return Ok(self.take_in(env, view.at, counted, index, blocks).then_some(own));
        }
        let newest = env.newest();
        if !self.take_in(env, newest.at, counted, index, blocks) {
            return Ok(None);
        }
        blocks.count_all(&newest, counted)?;
        let since = blocks.since(&below, counted)?;
        Ok(since.map(|since| since.and(own)))
    }

    fn noted_from(&self, counted: &Span, index: &Index) -> Option<Seq> {
        let all = self.counted.lock();
        let range = all.ranges.get(&(counted.dict, counted.start.clone()))?;
        Arc::ptr_eq(&range.index, index).then_some(range.from)
    }

    /// Applies the changes of visible commits up to `at` to an index. Returns `false` if these
    /// changes are unknown.
    fn take_in(
        &self,
        env: &impl RanksEnv,
        at: Seq,
        counted: &Span,
        index: &Index,
        blocks: &mut Blocks,
    ) -> bool {
        if self.noted.load(Ordering::Acquire) < at {
            env.await_noted();
        }
        let mut all = self.counted.lock();
        let share = all.share();
        let Some(range) = all.ranges.get_mut(&(counted.dict, counted.start.clone())) else {
            return false;
        };
        if !Arc::ptr_eq(&range.index, index) || range.from > blocks.at {
            return false;
        }
        range.take_in(blocks, at, share);
        true
    }

    /// Returns the index for a state that is not the newest.
    fn of_older(&self, view: &View, span: &Span) -> Index {
        let state = match view.snapshot {
            Some(snapshot) => State::Snapshot(snapshot),
            None => State::Commit(view.at),
        };
        let mut counted = self.counted.lock();
        let is_it = |of: &OfOlderState| of.state == state && of.span == *span;
        let found = match counted.older.iter().position(is_it) {
            Some(at) => counted.older.remove(at),
            None => None,
        };
        let found = found.unwrap_or_else(|| OfOlderState {
            state,
            span: span.clone(),
            index: Index::default(),
        });
        let index = found.index.clone();
        counted.older.push_front(found);
        counted.older.truncate(OF_OLDER_STATES);
        index
    }

    /// Ends a query. If the indexes take too much memory, drops the least recently queried ones.
    fn settle(&self, counted: &Span, blocks: usize) {
        let mut all = self.counted.lock();
        // The limit can be exceeded only if the number of blocks has changed.
        match all.ranges.get_mut(&(counted.dict, counted.start.clone())) {
            Some(range) if range.blocks != blocks => range.blocks = blocks,
            _ => return,
        }
        while all.ranges.len() > 1
            && all.ranges.values().map(|range| range.blocks).sum::<usize>() > self.most
        {
            let longest = all.ranges.iter().min_by_key(|(_, range)| range.asked);
            let Some(key) = longest.map(|(key, _)| key.clone()) else { break };
            all.ranges.remove(&key);
        }
    }
}
