//! Ranks: how many keys of a range come before one, and which one is the nth, without a walk over
//! all that comes before.
//!
//! The runs of a tree overlap, so what their nodes count does not add up: a key may be in several,
//! overwritten or deleted. Therefore a range whose ranks are asked for is counted once, by a walk.
//! From then on an index in memory has the number of keys between every 64th key or so and the next
//! ([`Blocks`]), and each commit tells which keys of the range it has changed ([`Ranks::note`]),
//! under the pipeline's lock, so in the order of commits. A question takes in what was changed
//! since the last one, counts again what has become uncertain, adds up the numbers before the place
//! and walks over less than one block. Nothing of this is stored, so writers read and write nothing
//! for it, and every state is right: a view that has a transaction's own changes corrects the
//! numbers by these, and one of an older commit, or of a snapshot, by what was changed since, or it
//! gets an index of its own.
//!
//! The lock of an index is held over reads, and while the pipeline's is waited for. Who holds a
//! ranked lock only tries it.

mod blocks;
mod corrections;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use env::sync::Mutex;
use env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vt_tree::Seq;

use self::blocks::Blocks;
use self::corrections::Corrections;
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::journal::record::{Op, Ops};
use crate::read::view::View;

/// Changes of a range that wait for the next question; beyond, the older ones are taken in by the
/// writer.
const WAITING: usize = 4096;
/// Of these so many stay, for views that are a little older than the newest.
const STAYING: usize = 1024;
/// After so many changes without a question a range is counted no longer.
const UNASKED: u64 = 1 << 20;
/// Indexes of older states that are kept.
const OF_OLDER_STATES: usize = 8;
/// Memory of a block, about, and of a change without its keys.
const BLOCK_MEMORY: usize = 96;
const CHANGE_MEMORY: usize = 120;
/// The bytes of changes that a range may have at least while it is counted, or asked.
const UNDER_WAY: usize = 1 << 20;

/// A change of a key in a range that is counted.
#[derive(Clone, Debug)]
enum Change {
    /// The key has a value from here on; `new`: it is known that it had none.
    Put { key: Bytes, new: bool },
    /// The key has none from here on; `there`: it is known that it had one.
    Delete { key: Bytes, there: bool },
    /// It is not known whether the key has a value from here on.
    Uncertain { key: Bytes },
    /// All of `[start, end)` was deleted.
    DeleteRange { start: Bytes, end: Bytes },
}

impl Change {
    /// The memory that it takes, bytes, about.
    fn memory(&self) -> usize {
        let keys = match self {
            Change::Put { key, .. } | Change::Delete { key, .. } | Change::Uncertain { key } => {
                key.len()
            }
            Change::DeleteRange { start, end } => start.len() + end.len(),
        };
        CHANGE_MEMORY + keys
    }
}

/// A range of a dictionary; an empty end is that of the dictionary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub dict: DictionaryId,
    pub start: Bytes,
    pub end: Bytes,
}

impl Span {
    fn has(&self, key: &[u8]) -> bool {
        self.start <= key && (self.end.is_empty() || self.end > key)
    }

    fn contains(&self, other: &Span) -> bool {
        let ends = self.end.is_empty() || !other.end.is_empty() && other.end <= self.end;
        self.dict == other.dict && self.start <= other.start && ends
    }

    fn meets(&self, start: &[u8], end: &[u8]) -> bool {
        (self.end.is_empty() || start < &self.end[..]) && (end.is_empty() || end > &self.start[..])
    }
}

/// A range that is counted, as the newest commits leave it.
struct CountedRange {
    end: Bytes,
    index: Index,
    /// All changes after `from`, in their order, that the index has not taken in.
    changes: VecDeque<(Seq, Change)>,
    /// The memory that these take.
    bytes: usize,
    from: Seq,
    /// Changes since the last question.
    unasked: u64,
    /// When it was last asked for.
    asked: u64,
    blocks: usize,
}

/// `None`: there was no question yet.
type Index = Arc<Mutex<Option<Blocks>>>;

/// The state that an index of an older one is of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Commit(Seq),
    Snapshot([u8; 16]),
}

struct OfOlderState {
    state: State,
    span: Span,
    index: Index,
}

#[derive(Default)]
struct Counted {
    /// By dictionary and first key; none overlaps another one.
    ranges: BTreeMap<(DictionaryId, Bytes), CountedRange>,
    older: VecDeque<OfOlderState>,
    clock: u64,
    /// Ranges that the commit under way has left with many changes.
    full: BTreeSet<(DictionaryId, Bytes)>,
    /// Bytes that all changes may take.
    most_changes: usize,
}

impl Counted {
    /// The bytes of changes that each range may have, and remember.
    fn share(&self) -> usize {
        self.most_changes / 2 / self.ranges.len().max(1)
    }

    fn add(&mut self, dict: DictionaryId, key: &[u8], seq: Seq, change: impl FnOnce() -> Change) {
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
    fn delete_range(&mut self, dict: DictionaryId, start: &Bytes, end: &Bytes, seq: Seq) {
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

impl CountedRange {
    fn add(&mut self, seq: Seq, change: Change) {
        self.bytes += change.memory();
        self.changes.push_back((seq, change));
        self.unasked += 1;
    }

    fn is_full(&self, share: usize) -> bool {
        self.changes.len() > WAITING || self.bytes > share || self.unasked >= UNASKED
    }

    /// Has the index take in what waits for longest, if no question is under way. Returns whether
    /// the range can be kept.
    fn relieve(&mut self, share: usize) -> bool {
        if !self.is_full(share) {
            return true;
        }
        let index = self.index.clone();
        let mut index = index.try_lock();
        let Some(blocks) = index.as_deref_mut().and_then(Option::as_mut) else {
            return self.bytes <= share.max(UNDER_WAY);
        };
        // A half of the share is left.
        let (mut stays, mut bytes) = (0, 0);
        for (_, change) in self.changes.iter().rev().take(STAYING) {
            bytes += change.memory();
            if bytes > share / 2 {
                break;
            }
            stays += 1;
        }
        let Some((up_to, _)) = self.changes.get(self.changes.len() - 1 - stays) else {
            return true;
        };
        let up_to = *up_to;
        self.take_in(blocks, up_to, share);
        true
    }

    /// Has an index take in the changes of commits up to this one, and remember those of them that
    /// fit into its share.
    fn take_in(&mut self, blocks: &mut Blocks, up_to: Seq, share: usize) {
        take_in(blocks, &mut self.changes, up_to);
        blocks.forget_beyond(share);
        self.changes.shrink_to(2 * self.changes.len());
        self.bytes = self.changes.iter().map(|(_, change)| change.memory()).sum();
        self.from = self.from.max(up_to);
    }
}

/// Has an index take in the changes of commits up to this one.
fn take_in(blocks: &mut Blocks, changes: &mut VecDeque<(Seq, Change)>, up_to: Seq) {
    while changes.front().is_some_and(|(seq, _)| *seq <= up_to) {
        match changes.pop_front() {
            Some((seq, change)) if seq > blocks.at => blocks.take_in(seq, change),
            Some((seq, change)) => blocks.remember(seq, change),
            None => {}
        }
    }
    blocks.at = blocks.at.max(up_to);
}

/// The ranges that are counted, and their changes since.
pub(crate) struct Ranks {
    on: AtomicBool,
    /// While something is counted: the changes of commits up to this one are noted.
    noted: AtomicU64,
    counted: Mutex<Counted>,
    /// Blocks of all indexes together.
    most: usize,
}

/// The parts of the store that a question needs.
pub(crate) trait RanksEnv {
    /// The newest state.
    fn newest(&self) -> View;
    /// Waits until the changes of every commit that is visible are noted.
    fn await_noted(&self);
    /// Calls this while nothing commits, with the number of the newest commit.
    fn between_commits(&self, begin: &mut dyn FnMut(Seq));
}

impl Ranks {
    /// `memory`: bytes that the indexes may take.
    pub(crate) fn new(memory: usize) -> Ranks {
        Ranks {
            on: AtomicBool::new(false),
            noted: AtomicU64::new(0),
            counted: Mutex::new(Counted { most_changes: memory, ..Counted::default() }),
            most: memory / BLOCK_MEMORY,
        }
    }

    /// Returns whether something is counted.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// The changes of a commit whose last number is `to`; of those at the places `known` it is sure
    /// that a put is of a key without a value and a deletion of one with one. Called under the
    /// pipeline's lock.
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

    /// A put by itself, likewise.
    pub(crate) fn note_put(&self, dict: DictionaryId, key: &[u8], to: Seq) {
        if !self.is_on() {
            return;
        }
        let mut counted = self.counted.lock();
        counted.add(dict, key, to, || Change::Put { key: Bytes::copy_from_slice(key), new: false });
        self.noted(&mut counted, to);
    }

    /// A commit of which there is no list, of these dictionaries or of any, likewise: what it may
    /// have changed is counted anew when it is asked for.
    pub(crate) fn note_unlisted(&self, dicts: Option<&[DictionaryId]>, to: Seq) {
        if !self.is_on() {
            return;
        }
        let mut counted = self.counted.lock();
        counted.ranges.retain(|(dict, _), _| dicts.is_some_and(|dicts| !dicts.contains(dict)));
        self.noted(&mut counted, to);
    }

    fn noted(&self, counted: &mut Counted, to: Seq) {
        // All others are as they were: a commit costs the same however many are counted.
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

    /// How many keys of `span` come before `key` in a view.
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
        // The index may be of a wider range.
        self.ask(env, view, span, |asked| Ok(asked.before(key)? - asked.before(&span.start)?))
    }

    /// How many keys `span` has in a view.
    pub(crate) fn len(&self, env: &impl RanksEnv, view: &View, span: &Span) -> Result<u64> {
        match span.end.is_empty() {
            true => self.ask(env, view, span, |asked| {
                let all = asked.len()?;
                Ok(all.saturating_sub(asked.before(&span.start)?))
            }),
            false => self.before(env, view, span, &span.end),
        }
    }

    /// The key of `span` in a view that `n` others come before.
    pub(crate) fn nth(
        &self,
        env: &impl RanksEnv,
        view: &View,
        span: &Span,
        n: u64,
    ) -> Result<Option<Bytes>> {
        self.ask(env, view, span, |asked| {
            // The index may be of a wider range.
            let skipped = asked.before(&span.start)?;
            let found = asked.nth(skipped.saturating_add(n))?;
            Ok(found.filter(|key| span.has(key)))
        })
    }

    /// Answers a question by an index that has `span`.
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
                // Of what the transaction has changed there is no short list: this state is counted
                // for this one question.
                let blocks = &mut Blocks::of(view, span, view.at)?;
                let (below, corrections) = (view.clone(), Corrections::default());
                question(&mut Asked { blocks, view, below, span, corrections })
            }
        }
    }

    /// The range that has `span` and is counted, begun if there is none.
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
                changes: VecDeque::new(),
                bytes: 0,
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

    /// Brings the index of a counted range to a state that answers for a view, and returns in what
    /// the view differs from it. `None`: that is not known.
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

    /// Has an index take in the changes of commits up to `at`, which are visible; `false`: they are
    /// not known.
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

    /// The index of a state that is not the newest one.
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

    /// Ends a question: where the indexes take too much, the one goes that was not asked for
    /// longest.
    fn settle(&self, counted: &Span, blocks: usize) {
        let mut all = self.counted.lock();
        // As many as before are not too many now.
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

/// An index that answers for a view, after corrections.
struct Asked<'a> {
    blocks: &'a mut Blocks,
    view: &'a View,
    /// The state that the index counts.
    below: View,
    span: &'a Span,
    corrections: Corrections,
}

impl Asked<'_> {
    fn before(&mut self, key: &[u8]) -> Result<u64> {
        if key <= &self.span.start[..] {
            return Ok(0);
        }
        let at = self.blocks.counted_up_to(key, &self.below, self.span)?;
        let first = self.blocks.first(at);
        let sum = self.blocks.sum(at) as i64 + self.corrections.before(first);
        let mut rest = 0;
        walk(self.view, self.span.dict, first, key, |_| {
            rest += 1;
            true
        })?;
        Ok(u64::try_from(sum).unwrap_or(0) + rest)
    }

    fn len(&mut self) -> Result<u64> {
        self.blocks.count_all(&self.below, self.span)?;
        let sum = self.blocks.sum(self.blocks.len()) as i64;
        let more = self.corrections.between(&self.span.start, &[]);
        Ok(u64::try_from(sum + more).unwrap_or(0))
    }

    fn nth(&mut self, n: u64) -> Result<Option<Bytes>> {
        let (mut at, mut before) = (0, 0);
        loop {
            if self.corrections.is_empty() {
                (at, before) = self.blocks.passed(at, before, n);
            }
            let Some(count) = self.blocks.counted(at, &self.below, self.span)? else {
                return Ok(None);
            };
            let next = self.blocks.next(at).unwrap_or(&self.span.end);
            let count = i64::from(count) + self.corrections.between(self.blocks.first(at), next);
            let count = u64::try_from(count).unwrap_or(0);
            if n < before + count {
                break;
            }
            (at, before) = (at + 1, before + count);
        }
        let (mut left, mut found) = (n - before, None);
        walk(self.view, self.span.dict, self.blocks.first(at), &self.span.end, |key| {
            if left == 0 {
                found = Some(Bytes::copy_from_slice(key));
            }
            left = left.saturating_sub(1);
            found.is_none()
        })?;
        Ok(found)
    }
}

/// Shows the keys of `[start, end)` in a view until `visit` says `false`; an empty end is that of
/// the dictionary.
fn walk(
    view: &View,
    dict: DictionaryId,
    start: &[u8],
    end: &[u8],
    mut visit: impl FnMut(&[u8]) -> bool,
) -> Result<()> {
    let mut cursor = view.tree_cursor(dict, view.inputs(dict)?);
    cursor.keys_only();
    cursor.seek(start);
    while cursor.advance()? {
        match cursor.current() {
            Some(tuple) if end.is_empty() || tuple.key < end => {
                if !visit(tuple.key) {
                    break;
                }
            }
            _ => break,
        }
    }
    Ok(())
}
