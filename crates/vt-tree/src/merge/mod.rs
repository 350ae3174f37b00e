//! The one operation behind every background job: `merge(inputs newest first, key range, placement)
//! -> run`.
//!
//! It walks all inputs from the left to the right, always on the piece that begins first, the
//! newest on a tie. A piece is an item or an unopened block or subtree. An unopened piece that ends
//! before every other piece begins overlaps nothing: the placement decides whether it is stitched
//! or copied. One that overlaps is opened, one level at a time, so that only what overlaps is ever
//! read. An item hides older ones at its keys: they are skipped, whole subtrees unread. A range
//! tombstone is cut where a newer item begins, so that the items of the result are disjoint again.

pub(crate) mod builder;
mod cursor;
mod options;
mod placement;
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
use crate::item::{Body, BodyRef, Item, ItemRef};
use crate::run::Run;
use crate::{Error, Result};

pub use builder::MergeStats;
pub use options::MergeOptions;
pub use placement::{ADAPTIVE, Placement, SOLID_STATE_SEEK, VALUE_WINDOW};
pub use split_points::split_points;
pub use writer::RunWriter;

/// A merge under way.
pub struct Merge {
    options: MergeOptions,
    end: Option<Bytes>,
    inputs: Vec<MergeCursor>,
    builder: RunBuilder,
    /// Blocks of this input that end at or below this key were judged: they are copied.
    copying: Option<(usize, Bytes)>,
    spans: Spans,
    /// The last span that was stitched, when nothing was pushed since: its input, and where on the
    /// device it ends.
    stitched: Option<(usize, u64)>,
    /// The last item, a range tombstone: the next one may continue it.
    open: Option<Item>,
    /// Height of the tallest run, when no other is as tall.
    tallest: Option<u16>,
    done: bool,
}

impl Merge {
    /// `inputs`: newest first.
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
            open: None,
            tallest,
            done: false,
        })
    }

    /// Works until about `budget` bytes were read or written. `true`: everything is merged, call
    /// [`Merge::finish`].
    pub fn step(&mut self, budget: u64) -> Result<bool> {
        let begin = self.work();
        // An item that costs no I/O still takes time; it counts as 32 bytes.
        let mut items = 0u64;
        while !self.done && self.work() - begin + items * 32 < budget {
            self.merge_element()?;
            items += 1;
        }
        Ok(self.done)
    }

    fn work(&self) -> u64 {
        self.builder.written() + self.inputs.iter().map(|w| w.blocks_read).sum::<u64>()
    }

    /// Bytes so far.
    pub fn stats(&self) -> MergeStats {
        let mut stats = self.builder.stats;
        stats.blocks_read += self.inputs.iter().map(|w| w.blocks_read).sum::<u64>();
        stats.pruned += self.inputs.iter().map(|w| w.pruned).sum::<u64>();
        stats
    }

    /// The merged run, written but not synced; `None` when nothing is left in the range.
    pub fn finish(mut self) -> Result<(Option<Arc<Run>>, MergeStats)> {
        while !self.step(u64::MAX)? {}
        let (run, _, stats) = self.cut()?;
        Ok((run, stats))
    }

    /// Ends the merge where it stands: the merged run of all keys before the one returned, which no
    /// input has passed; `None`: everything is merged. A merge of the same inputs from that key on
    /// gives the rest.
    pub fn cut(mut self) -> Result<(Option<Arc<Run>>, Option<Bytes>, MergeStats)> {
        self.release()?;
        let at = if self.done { None } else { self.next_low(|_| true).map(Bytes::copy_from_slice) };
        let walked = self.stats();
        let (run, built) = self.builder.finish()?;
        let stats = MergeStats {
            blocks_read: walked.blocks_read.max(built.blocks_read),
            pruned: walked.pruned,
            ..built
        };
        Ok((run, at, stats))
    }

    /// The input whose piece begins first; the newest on a tie.
    #[inline]
    fn first(&self) -> Option<usize> {
        if self.inputs.len() == 1 {
            return Some(0);
        }
        let mut best: Option<(usize, &[u8])> = None;
        for (i, w) in self.inputs.iter().enumerate() {
            if let Some(low) = w.low()
                && best.is_none_or(|(_, b)| low < b)
            {
                best = Some((i, low));
            }
        }
        best.map(|(i, _)| i)
    }

    /// Where the first piece of the inputs chosen by `which` begins.
    fn next_low(&self, which: impl Fn(usize) -> bool) -> Option<&[u8]> {
        self.inputs.iter().enumerate().filter(|(i, _)| which(*i)).filter_map(|(_, w)| w.low()).min()
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
                // A point wins over everything older at its key. It is not copied on its way.
                if !(self.options.drop_tombstones && matches!(item.body, BodyRef::Delete)) {
                    if let Some(open) = self.open.take() {
                        self.builder.push_item(open)?;
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

    /// Drops `key` from the inputs older than `i`.
    fn skip_older(&mut self, i: usize, key: &[u8]) -> Result<()> {
        let behind = [key, &[0]].concat();
        for older in &mut self.inputs[i + 1..] {
            if older.low() == Some(key) {
                older.skip_to(&behind)?;
            }
        }
        Ok(())
    }

    /// The piece that begins first is a range tombstone: it wins over everything older at its keys.
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
            // A newer item begins inside: the tombstone goes on behind it.
            Some(cut) => {
                self.inputs[i].cut(&cut);
                self.push_range(Item { body: Body::DeleteRange { end: cut }, ..item })
            }
            None => {
                self.inputs[i].advance()?;
                self.push_range(Item { body: Body::DeleteRange { end }, ..item })
            }
        }
    }

    /// Appends a range tombstone to the result. Those of one age that lie end to end become one: a
    /// million of them, as a queue leaves them behind, is as good as one.
    fn push_range(&mut self, item: Item) -> Result<()> {
        if let Some(Item { body: Body::DeleteRange { end: reached }, seq, .. }) = &mut self.open
            && let Body::DeleteRange { end } = &item.body
            && *reached == item.key
            && *seq == item.seq
        {
            *reached = end.clone();
            return Ok(());
        }
        self.release()?;
        self.open = Some(item);
        Ok(())
    }

    /// Nothing continues the last range tombstone.
    fn release(&mut self) -> Result<()> {
        self.open.take().map_or(Ok(()), |item| self.builder.push_item(item))
    }

    /// The piece that begins first is an unopened block or subtree.
    fn merge_subtree(&mut self, i: usize) -> Result<()> {
        self.release()?;
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
            // The only tallest run, stitched whole beside anything else, would become one entry of
            // a higher root, and every merge would add a level. Its root is opened, so that what
            // comes next to it joins it at its own level.
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

    /// A tuple block that overlaps nothing: judges the contiguous span that begins with it.
    fn merge_blocks(&mut self, i: usize, limit: Option<Bytes>) -> Result<()> {
        let Some((entries, filter)) = self.inputs[i].blocks() else {
            return Err(Error::corrupt("a tuple block outside of any index node", 0));
        };
        let placement = &self.options.placement;
        let (mut count, mut bytes) = (0, 0);
        for (at, e) in entries.iter().enumerate() {
            let free = limit.as_ref().is_none_or(|l| e.high <= *l);
            // One small block may end a span: where a range ends.
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
        // Index nodes cut spans in two: what such a node ends with goes on in the next, and what it
        // begins with may have begun before.
        let begun =
            self.stitched.is_some_and(|(of, end)| of == i && follows_block(end, &entries[0]));
        let cut = begun || (count == entries.len() && self.inputs[i].goes_on());
        let threshold = self.spans.threshold(placement);
        if !cut {
            self.spans.saw(bytes, 1);
        }
        if bytes >= threshold || (cut && threshold != u64::MAX) {
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

/// Merges in one go.
pub fn merge(
    cache: &Arc<BlockCache>,
    inputs: &[Input],
    range: &KeyRange,
    options: MergeOptions,
) -> Result<Option<Arc<Run>>> {
    Ok(Merge::new(cache, inputs, range, options)?.finish()?.0)
}

/// The part of `run` that lies in `range`; everything but the blocks at its two ends is stitched.
pub fn slice(run: &Arc<Run>, range: &KeyRange) -> Result<Option<Arc<Run>>> {
    merge(
        run.cache(),
        &[Input::Run(run.clone())],
        range,
        MergeOptions { separate_at: u32::MAX, ..MergeOptions::default() },
    )
}

/// One run of several whose key ranges ascend and do not overlap; all of it is stitched.
pub fn concat(cache: &Arc<BlockCache>, runs: &[Arc<Run>]) -> Result<Option<Arc<Run>>> {
    let inputs: Vec<_> = runs.iter().cloned().map(Input::Run).collect();
    merge(
        cache,
        &inputs,
        &KeyRange::all(),
        MergeOptions { separate_at: u32::MAX, ..MergeOptions::default() },
    )
}
