//! Merging: turns runs and memtables, given newest first, into one run.
//!
//! Every background job is a merge: a flush, a compaction, a defragmentation, the removal of a
//! range. Jobs differ in their inputs and in the [`Placement`], the policy by which a merge
//! *stitches* data (refers to it at its present location) or *copies* it (writes it again).
//!
//! # Algorithm
//!
//! A merge keeps a [`MergeCursor`] on each input. The *element* at a cursor is either an item, that
//! is, a point or a range tombstone, or an unopened tuple block or subtree, of which only the index
//! entry with its fences and sums has been read. Each step takes the element with the smallest
//! lower bound; on a tie, that of the newest input:
//!
//! 1. An unopened element that ends before the elements of all other inputs begin overlaps nothing.
//!    The placement decides by the length of the contiguous span on the device that begins with it.
//!    A span of at least the stitching threshold is stitched: its index entries are added to the
//!    result, and nothing beneath them is read. A shorter span is opened, so that its items are
//!    copied.
//! 2. An unopened element that overlaps another element is opened by one level: a node becomes its
//!    entries, a block its items. So only blocks in which inputs overlap are read.
//! 3. A point is added to the result, and older inputs skip its key. An update is first composed
//!    with the items of older inputs at its key; if that yields a value, the value is added.
//! 4. A range tombstone hides everything older in its range: older inputs skip the range, and
//!    subtrees wholly inside it are not read (leaf pruning). If an element of a newer input begins
//!    inside the range, the tombstone is cut there: the first part is added to the result, and the
//!    rest becomes an element again. So the items of the result are disjoint, like those of each
//!    input.
//!
//! If there is no data older than the inputs, tombstones are dropped
//! ([`MergeOptions::drop_tombstones`]), and blocks with tombstones are opened instead of stitched.
//! Whether a large value moves is decided separately from the block that refers to it. See
//! `placement`.
//!
//! A merge can stop between two elements. [`Merge::step`] bounds the I/O of a call. [`Merge::cut`]
//! ends a merge early, and returns the key from which another merge continues. [`split_points`]
//! divides a merge into parts that can run in parallel, and [`concat`] stitches their results
//! together.

pub(crate) mod builder;
mod cursor;
mod options;
mod placement;
mod read_ahead;
mod relocated;
mod relocation;
mod relocation_window;
mod split_points;
mod writer;

use std::sync::Arc;

use bytes::Bytes;

use self::builder::{RunBuilder, follows_block};
use self::cursor::{Element, MergeCursor};
use self::placement::Spans;
use crate::cache::BlockCache;
use crate::input::{Input, KeyRange};
use crate::item::{Body, BodyRef, Item, ItemRef, Lookup};
use crate::key::successor;
use crate::run::Run;
use crate::{Error, Result};

pub use builder::MergeStats;
pub use options::MergeOptions;
pub use placement::{ADAPTIVE, Placement, SOLID_STATE_SEEK, VALUE_WINDOW};
pub use relocated::Relocated;
pub use relocation::Relocation;
pub use split_points::split_points;
pub use writer::RunWriter;

/// A merge in progress.
pub struct Merge {
    options: MergeOptions,
    end: Option<Bytes>,
    inputs: Vec<MergeCursor>,
    builder: RunBuilder,
    /// An input and a key: the placement has decided to copy the blocks of the input that end at or
    /// below the key.
    copying: Option<(usize, Bytes)>,
    spans: Spans,
    /// The end of the last stitched span, if nothing was appended since: its input and device
    /// address.
    stitched: Option<(usize, u64)>,
    /// The last item, if it is a range tombstone that the next item may extend.
    pending_range: Option<Item>,
    /// The height of the tallest run, if only one run has that height.
    tallest: Option<u16>,
    done: bool,
}

impl Merge {
    /// Prepares a merge of `inputs`, newest first, restricted to `range`.
    pub fn new(
        cache: &Arc<BlockCache>,
        inputs: &[Input],
        range: &KeyRange,
        options: MergeOptions,
    ) -> Result<Merge> {
        let mut cursors = Vec::with_capacity(inputs.len());
        for input in inputs {
            let mut cursor = match input {
                Input::Memtable(m) => MergeCursor::memtable(m)?,
                Input::Run(r) => MergeCursor::run(r.clone()),
            };
            cursor.skip_to(&range.start)?;
            // The data before the range was skipped, but not pruned by a tombstone.
            cursor.pruned = 0;
            cursors.push(cursor);
        }
        let heights = || {
            inputs
                .iter()
                .filter_map(|i| if let Input::Run(r) = i { Some(r.root().1) } else { None })
        };
        let tallest = heights().max().filter(|top| heights().filter(|h| h == top).count() == 1);
        let builder = RunBuilder::new(cache, &options);
        Ok(Merge {
            options,
            end: range.end.clone(),
            inputs: cursors,
            builder,
            copying: None,
            spans: Spans::default(),
            stitched: None,
            pending_range: None,
            tallest,
            done: false,
        })
    }

    /// Merges until about `budget` bytes were read or written. Returns `true` once everything is
    /// merged; then the caller should call [`Merge::finish`].
    pub fn step(&mut self, budget: u64) -> Result<bool> {
        let begin = self.work();
        // An item without I/O still takes time, so count it as 32 bytes.
        let mut items = 0u64;
        while !self.done && self.work() - begin + items * 32 < budget {
            self.merge_element()?;
            items += 1;
        }
        Ok(self.done)
    }

    fn work(&self) -> u64 {
        self.builder.written() + self.inputs.iter().map(|input| input.blocks_read).sum::<u64>()
    }

    /// Returns the bytes read and written so far.
    pub fn stats(&self) -> MergeStats {
        with_inputs(self.builder.stats, &self.inputs)
    }

    /// Merges the rest, and returns the merged run, or `None` if the result is empty. The run is
    /// written but not synced.
    pub fn finish(mut self) -> Result<(Option<Arc<Run>>, MergeStats)> {
        while !self.step(u64::MAX)? {}
        let (run, _, stats) = self.cut()?;
        Ok((run, stats))
    }

    /// Ends the merge early. Returns the run of all keys merged so far, and the key from which a
    /// merge of the same inputs yields the rest, or `None` if everything is merged.
    pub fn cut(mut self) -> Result<(Option<Arc<Run>>, Option<Bytes>, MergeStats)> {
        self.push_pending_range()?;
        let at = if self.done { None } else { self.next_low(|_| true).map(Bytes::copy_from_slice) };
        let (run, built) = self.builder.finish()?;
        Ok((run, at, with_inputs(built, &self.inputs)))
    }

    /// Returns the input whose element begins first; on a tie, the newest one.
    #[inline]
    fn first(&self) -> Option<usize> {
        if self.inputs.len() == 1 {
            return Some(0);
        }
        let mut best: Option<(usize, &[u8])> = None;
        for (i, input) in self.inputs.iter().enumerate() {
            if let Some(low) = input.low()
                && best.is_none_or(|(_, b)| low < b)
            {
                best = Some((i, low));
            }
        }
        best.map(|(i, _)| i)
    }

    /// Returns the smallest lower bound of the elements of the inputs that `which` selects.
    fn next_low(&self, which: impl Fn(usize) -> bool) -> Option<&[u8]> {
        self.inputs
            .iter()
            .enumerate()
            .filter(|(i, _)| which(*i))
            .filter_map(|(_, input)| input.low())
            .min()
    }

    fn merge_element(&mut self) -> Result<()> {
        let Some(i) = self.first() else {
            self.done = true;
            return Ok(());
        };
        let past = |low: &[u8]| self.end.as_ref().is_some_and(|end| low >= end.as_ref());
        match self.inputs[i].element() {
            Some(Element::Item(item)) if !past(item.key) => {
                self.stitched = None;
                let seq = if item.seq <= self.options.old_seq { 0 } else { item.seq };
                if let BodyRef::DeleteRange { .. } = item.body {
                    return self.merge_range(i, Item { seq, ..item.to_item() });
                }
                if let BodyRef::Update { .. } = item.body {
                    return self.merge_update(i, Item { seq, ..item.to_item() });
                }
                // A point hides everything older at its key. It is passed on without a copy.
                if !(self.options.drop_tombstones && matches!(item.body, BodyRef::Delete)) {
                    if let Some(range) = self.pending_range.take() {
                        self.builder.push_item(range)?;
                    }
                    self.builder.push(ItemRef { seq, ..item })?;
                }
                if self.inputs[i + 1..].iter().any(|older| older.low() == Some(item.key)) {
                    let key = Bytes::copy_from_slice(item.key);
                    self.skip_older(i, &key)?;
                }
                self.inputs[i].advance()
            }
            Some(Element::Subtree(e, _)) if !past(&e.low) => self.merge_subtree(i),
            _ => {
                self.done = true;
                Ok(())
            }
        }
    }

    /// Merges an update, which is the element that begins first: composes it with the items of
    /// older inputs at its key. If there is no data older than the inputs, the update applies to no
    /// value.
    fn merge_update(&mut self, i: usize, item: Item) -> Result<()> {
        let key = item.key;
        let mut lookup = Lookup::of(item.seq, item.body)?;
        for older in &mut self.inputs[i + 1..] {
            if lookup.is_final() {
                break;
            }
            while matches!(older.element(), Some(Element::Subtree(e, _)) if e.low == key) {
                older.descend()?;
            }
            if let Some(Element::Item(item)) = older.element()
                && item.key == key
            {
                lookup = lookup.over(Lookup::of(item.seq, item.body.to_body())?);
            }
        }
        if self.options.drop_tombstones {
            lookup = lookup.over(Lookup::Deleted(0));
        }
        self.push_pending_range()?;
        let (seq, body) = match lookup {
            Lookup::Updated { seq, base, update } => {
                (seq, Body::Update { base, update: update.bytes().clone() })
            }
            Lookup::Found(seq, value) => (seq, Body::Put(value)),
            // This cannot happen: an update composed with anything is an update or a value.
            Lookup::Absent | Lookup::Deleted(_) => (item.seq, Body::Delete),
        };
        self.builder.push_item(Item { key: key.clone(), seq, body })?;
        self.skip_older(i, &key)?;
        self.inputs[i].advance()
    }

    /// Skips `key` in the inputs older than `i`.
    fn skip_older(&mut self, i: usize, key: &[u8]) -> Result<()> {
        let behind = successor(key);
        for older in &mut self.inputs[i + 1..] {
            if older.low() == Some(key) {
                older.skip_to(&behind)?;
            }
        }
        Ok(())
    }

    /// Merges a range tombstone, which is the element that begins first and hides everything older
    /// in its range.
    fn merge_range(&mut self, i: usize, item: Item) -> Result<()> {
        let Body::DeleteRange { end } = item.body.clone() else { return Ok(()) };
        let end = match &self.end {
            Some(limit) if *limit < end => limit.clone(),
            _ => end,
        };
        for older in i + 1..self.inputs.len() {
            if self.inputs[older].low().is_some_and(|low| low < end.as_ref()) {
                self.inputs[older].skip_to(&end)?;
            }
        }
        if self.options.drop_tombstones {
            return self.inputs[i].advance();
        }
        let cut =
            self.next_low(|j| j < i).filter(|low| *low < end.as_ref()).map(Bytes::copy_from_slice);
        match cut {
            // A newer element begins inside: the rest of the tombstone becomes an element again.
            Some(cut) => {
                self.inputs[i].cut_range(&cut);
                self.push_range(Item { body: Body::DeleteRange { end: cut }, ..item })
            }
            None => {
                self.inputs[i].advance()?;
                self.push_range(Item { body: Body::DeleteRange { end }, ..item })
            }
        }
    }

    /// Appends a range tombstone to the result. Joins adjacent tombstones with equal sequence
    /// numbers: a queue leaves a million of them, which then cost no more than one.
    fn push_range(&mut self, item: Item) -> Result<()> {
        if let Some(Item { body: Body::DeleteRange { end: reached }, seq, .. }) =
            &mut self.pending_range
            && let Body::DeleteRange { end } = &item.body
            && *reached == item.key
            && *seq == item.seq
        {
            *reached = end.clone();
            return Ok(());
        }
        self.push_pending_range()?;
        self.pending_range = Some(item);
        Ok(())
    }

    /// Appends the pending range tombstone, if there is one, because the next item does not extend
    /// it.
    fn push_pending_range(&mut self) -> Result<()> {
        self.pending_range.take().map_or(Ok(()), |item| self.builder.push_item(item))
    }

    /// Merges an unopened block or subtree, which is the element that begins first: stitches or
    /// opens it.
    fn merge_subtree(&mut self, i: usize) -> Result<()> {
        self.push_pending_range()?;
        let Some(Element::Subtree(entry, level)) = self.inputs[i].element() else { return Ok(()) };
        let others = self.next_low(|j| j != i);
        let limit = match (others, self.end.as_deref()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let free = limit.is_none_or(|l| entry.high.as_ref() <= l);
        let judged =
            self.copying.as_ref().is_some_and(|(of, until)| *of == i && entry.high <= *until);
        if !free || judged {
            return self.inputs[i].descend();
        }
        if level > 0 {
            // If the only tallest run were stitched whole next to anything else, it would become
            // one entry of a higher root, and every merge would add a level. Instead its root is
            // opened, so that its entries are added at their own level.
            let alone = self.builder.is_empty() && others.is_none();
            let joins = alone || !self.inputs[i].at_root() || self.tallest != Some(level);
            let stitch = joins
                && !(self.options.drop_tombstones && (entry.tombstones || entry.range_tombstones))
                && entry.block_bytes / entry.block_spans.max(1)
                    >= self.spans.threshold(&self.options.placement)
                && self.options.placement.may_stay(entry)?
                && self.builder.takes_subtree(level, entry);
            if !stitch {
                return self.inputs[i].descend();
            }
            self.spans.saw(entry.block_bytes, entry.block_spans);
            let entry = entry.clone();
            self.inputs[i].advance()?;
            return self.builder.push_subtree(level, entry);
        }
        self.merge_blocks(i, limit.map(Bytes::copy_from_slice))
    }

    /// Merges a tuple block that overlaps nothing: stitches or copies the contiguous span that
    /// begins with it.
    fn merge_blocks(&mut self, i: usize, limit: Option<Bytes>) -> Result<()> {
        let Some((entries, filter)) = self.inputs[i].blocks() else {
            return Err(Error::corrupt("a tuple block outside any index node", 0));
        };
        let placement = &self.options.placement;
        let (mut count, mut bytes) = (0, 0);
        for (at, e) in entries.iter().enumerate() {
            let free = limit.as_ref().is_none_or(|l| e.high <= *l);
            // A span may end with one small block, as at the end of a range, so only its first
            // block is checked for size.
            let taken = if at == 0 {
                self.builder.takes_block(e)
            } else {
                follows_block(entries[at - 1].at.end(), e)
            };
            let rewritten = self.options.drop_tombstones && (e.tombstones || e.range_tombstones);
            if !free || !taken || rewritten || !placement.may_stay(e)? {
                break;
            }
            count += 1;
            bytes += e.block_bytes;
        }
        if count == 0 {
            return self.inputs[i].descend();
        }
        // A span may continue across index nodes: the last span of a node into the next node, the
        // first one from the previous node. In that case only a part of its length is known.
        let begun =
            self.stitched.is_some_and(|(of, end)| of == i && follows_block(end, &entries[0]));
        let partial = begun || (count == entries.len() && self.inputs[i].goes_on());
        let threshold = self.spans.threshold(placement);
        if !partial {
            self.spans.saw(bytes, 1);
        }
        if bytes >= threshold || (partial && threshold != u64::MAX) {
            let span = entries[..count].to_vec();
            self.stitched = span.last().map(|e| (i, e.at.end()));
            self.builder.push_blocks(&span, filter)?;
            self.inputs[i].advance_blocks(count);
            return Ok(());
        }
        self.copying = Some((i, entries[count - 1].high.clone()));
        self.inputs[i].descend()
    }
}

/// Adds the bytes read and skipped in the inputs to the statistics of a builder.
fn with_inputs(mut stats: MergeStats, inputs: &[MergeCursor]) -> MergeStats {
    stats.blocks_read += inputs.iter().map(|input| input.blocks_read).sum::<u64>();
    stats.pruned += inputs.iter().map(|input| input.pruned).sum::<u64>();
    stats
}

/// Runs a merge to completion.
pub fn merge(
    cache: &Arc<BlockCache>,
    inputs: &[Input],
    range: &KeyRange,
    options: MergeOptions,
) -> Result<Option<Arc<Run>>> {
    Ok(Merge::new(cache, inputs, range, options)?.finish()?.0)
}

/// Returns the part of `run` in `range` as a separate run. Everything except the blocks at the two
/// ends is stitched.
pub fn slice(run: &Arc<Run>, range: &KeyRange) -> Result<Option<Arc<Run>>> {
    merge(
        run.cache(),
        &[Input::Run(run.clone())],
        range,
        MergeOptions { separate_at: u32::MAX, ..MergeOptions::default() },
    )
}

/// Joins runs whose key ranges ascend and do not overlap. Everything is stitched.
pub fn concat(cache: &Arc<BlockCache>, runs: &[Arc<Run>]) -> Result<Option<Arc<Run>>> {
    let inputs: Vec<_> = runs.iter().cloned().map(Input::Run).collect();
    merge(
        cache,
        &inputs,
        &KeyRange::all(),
        MergeOptions { separate_at: u32::MAX, ..MergeOptions::default() },
    )
}
