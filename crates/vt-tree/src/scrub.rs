//! Verifies the data on the medium. Every index node, filter, tuple block and large value of a key
//! range is read, bypassing all caches, and compared with its checksum. A scrub checks only that
//! the device returns the bytes that were written; [`crate::check_run`] checks that sums, fences
//! and filters are right.
//!
//! A scrub proceeds by key ranges and not by runs. Merges keep the data of a key range in that
//! range. So one pass over all keys reads everything that existed when it began and still exists,
//! and a run is pinned for at most one step.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use crate::Error;
use crate::block::Block;
use crate::filter::Filter;
use crate::index::entry::Entry;
use crate::index::frame::FrameKind;
use crate::index::node::Node;
use crate::input::KeyRange;
use crate::item::Body;
use crate::key::successor;
use crate::run::Run;
use crate::value::{ExtentRef, Value, contiguous};

/// Maximum bytes of adjacent values that are read at once.
const SPAN: u64 = 1 << 20;

/// A frame or value that cannot be read, or differs from what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Device address of the frame or value.
    pub addr: u64,
    /// A description of the damage.
    pub what: String,
    /// The first affected key.
    pub start: Bytes,
    /// The first key after the affected keys.
    pub end: Bytes,
}

/// One step of a scrub: a key range in any number of runs. Data that runs share is read once.
pub struct Scrub<'a> {
    range: &'a KeyRange,
    seen: HashSet<(u64, u32)>,
    pace: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
    damage: &'a mut dyn FnMut(Damage),
}

impl<'a> Scrub<'a> {
    /// Creates a step over `range`. `pace` is called after each read with the number of bytes, and
    /// can end the scrub. `damage` is called with each error found.
    pub fn new(
        range: &'a KeyRange,
        pace: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
        damage: &'a mut dyn FnMut(Damage),
    ) -> Scrub<'a> {
        Scrub { range, seen: HashSet::new(), pace, damage }
    }

    /// Scrubs the range in `run`. Breaks if `pace` breaks.
    pub fn run(&mut self, run: &Arc<Run>) -> ControlFlow<()> {
        let (root, level) = run.root();
        self.subtree(run, root, level)
    }

    fn find(&mut self, entry: &Entry, e: &Error, addr: u64) {
        let (start, end) = (entry.low.clone(), entry.high.clone());
        (self.damage)(Damage { addr, what: e.to_string(), start, end });
    }

    fn subtree(&mut self, run: &Run, entry: &Entry, level: u16) -> ControlFlow<()> {
        let behind = self.range.end.as_ref().is_some_and(|end| entry.low >= *end);
        if behind || entry.high <= self.range.start {
            return ControlFlow::Continue(());
        }
        if let Some(filter) = entry.filter
            && self.seen.insert((filter.addr, filter.crc))
        {
            let read =
                run.cache().frame_on_medium(FrameKind::Filter, 0, filter).and_then(Filter::parse);
            if let Err(e) = read {
                self.find(entry, &e, filter.addr);
            }
            (self.pace)(u64::from(filter.len))?;
        }
        if !self.seen.insert((entry.at.addr, entry.at.crc)) {
            return ControlFlow::Continue(());
        }
        if level == 0 {
            return self.block(run, entry);
        }
        let node = run.cache().frame_on_medium(FrameKind::Node, level, entry.at);
        let node = node.and_then(|payload| Node::parse(payload, level, entry.at.addr));
        (self.pace)(u64::from(entry.at.len))?;
        match node {
            Ok(node) => node.entries.iter().try_for_each(|e| self.subtree(run, e, level - 1)),
            Err(e) => {
                self.find(entry, &e, entry.at.addr);
                ControlFlow::Continue(())
            }
        }
    }

    fn block(&mut self, run: &Run, entry: &Entry) -> ControlFlow<()> {
        let block = run.cache().frame_on_medium(FrameKind::Tuples, 0, entry.at);
        let block = block.and_then(|payload| Block::parse(payload, entry.at.addr));
        (self.pace)(u64::from(entry.at.len))?;
        let block = match block {
            Ok(block) => block,
            Err(e) => {
                self.find(entry, &e, entry.at.addr);
                return ControlFlow::Continue(());
            }
        };
        let mut span: Vec<(Bytes, ExtentRef)> = Vec::new();
        for interval in 0..block.intervals() {
            let items = match block.interval(interval) {
                Ok(items) => items,
                Err(e) => {
                    self.find(entry, &e, entry.at.addr);
                    continue;
                }
            };
            for item in items {
                let Body::Put(Value::Extent(e)) = item.body else { continue };
                // A key outside the range belongs to another step.
                if item.key < self.range.start
                    || self.range.end.as_ref().is_some_and(|end| item.key >= *end)
                {
                    continue;
                }
                let follows = span.last().is_some_and(|(_, last)| contiguous(last, &e))
                    && e.end().saturating_sub(span[0].1.addr) <= SPAN;
                if !follows {
                    self.values(run, &mut span)?;
                }
                span.push((item.key, e));
            }
        }
        self.values(run, &mut span)
    }

    /// Reads the values together. If that fails, reads them one by one to find the damaged ones.
    fn values(&mut self, run: &Run, span: &mut Vec<(Bytes, ExtentRef)>) -> ControlFlow<()> {
        span.retain(|(_, e)| self.seen.insert((e.addr, e.crc)));
        let extents: Vec<ExtentRef> = span.iter().map(|(_, e)| *e).collect();
        let (Some(first), Some(last)) = (extents.first(), extents.last()) else {
            return ControlFlow::Continue(());
        };
        let bytes = last.end().saturating_sub(first.addr);
        if run.cache().span_on_medium(&extents).is_err() {
            for (key, e) in span.iter() {
                if let Err(error) = run.cache().check_value(e) {
                    let end = Bytes::from(successor(key));
                    (self.damage)(Damage {
                        addr: e.addr,
                        what: error.to_string(),
                        start: key.clone(),
                        end,
                    });
                }
            }
        }
        span.clear();
        (self.pace)(bytes)
    }
}

/// Returns the end of a range that begins at `start` and has about `quota` bytes of `run`. Returns
/// `None` if `run` has no more than that after `start`, or if `pace` ends the scrub. Subtrees are
/// counted by their sums. Unreadable nodes count as empty, because the scrub itself will report
/// them.
pub fn scrub_end(
    run: &Arc<Run>,
    start: &[u8],
    quota: u64,
    pace: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Option<Bytes> {
    let (root, level) = run.root();
    let mut left = quota;
    up_to(run, root, level, start, &mut left, pace).break_value().flatten()
}

/// Breaks with the key at which `left` reaches 0, or with `None` if `pace` breaks.
fn up_to(
    run: &Run,
    entry: &Entry,
    level: u16,
    start: &[u8],
    left: &mut u64,
    pace: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> ControlFlow<Option<Bytes>> {
    if entry.high.as_ref() <= start {
        return ControlFlow::Continue(());
    }
    let whole = entry.low.as_ref() >= start;
    if level == 0 || whole && entry.data_bytes() < *left {
        *left = left.saturating_sub(entry.data_bytes());
        return match *left {
            0 => ControlFlow::Break(Some(entry.high.clone())),
            _ => ControlFlow::Continue(()),
        };
    }
    let Ok(node) = run.cache().node(entry, level) else { return ControlFlow::Continue(()) };
    if pace(u64::from(entry.at.len)).is_break() {
        return ControlFlow::Break(None);
    }
    let from = node.position(start);
    node.entries[from..].iter().try_for_each(|e| up_to(run, e, level - 1, start, left, pace))
}

#[cfg(test)]
mod tests {
    use zones::{FormatOptions, MemoryDevice, Zones};

    use super::*;
    use crate::cache::BlockCache;
    use crate::index::frame::FramePointer;
    use crate::merge::{MergeOptions, RunWriter};

    /// Returns a run of 8 MiB of which nothing is cached, and pointers to the nodes below its root.
    fn tall() -> (Arc<MemoryDevice>, Arc<Run>, Vec<FramePointer>) {
        let device = Arc::new(MemoryDevice::new());
        let zones = Zones::format(device.clone(), FormatOptions::default()).unwrap();
        let cache = BlockCache::new(zones.clone(), 1 << 20);
        let mut writer = RunWriter::new(&cache, 1, &MergeOptions::default());
        for i in 0..8192u64 {
            writer.push(i.to_be_bytes().to_vec().into(), vec![7; 1024].into()).unwrap();
        }
        let run = writer.finish().unwrap().0.unwrap();
        let (root, level) = run.root();
        assert_eq!(level, 2);
        let below: Vec<_> = cache.node(root, level).unwrap().entries.iter().map(|e| e.at).collect();
        assert!(below.len() > 4, "{}", below.len());
        let mut bytes = Vec::new();
        run.encode(&mut bytes);
        let cold = BlockCache::new(zones, 1 << 20);
        (device, Run::decode(&cold, &mut &bytes[..]).unwrap(), below)
    }

    #[test]
    fn a_step_ends_also_behind_a_node_that_cannot_be_read() {
        let (device, run, below) = tall();
        let end = |start: &[u8]| {
            scrub_end(&run, start, 1 << 20, &mut |_| ControlFlow::Continue(()))
                .map(|end| u64::from_be_bytes(end[..8].try_into().unwrap()))
        };
        let whole = end(b"").expect("there are eight mebibytes");
        assert!((800..1200).contains(&whole), "about 1,024 tuples of a kibibyte: {whole}");
        device.flip_bit(below[0].addr + 20, 3);
        let behind = end(b"").expect("what cannot be read counts nothing, what follows does");
        assert!(behind > whole && behind < 8000, "{behind}");
    }

    #[test]
    fn a_scrub_that_was_told_to_end_reads_no_more() {
        let (_device, run, _) = tall();
        let mut reads = 0;
        let end = scrub_end(&run, b"", 1, &mut |_| {
            reads += 1;
            if reads < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        assert_eq!((end, reads), (None, 2));
    }
}
