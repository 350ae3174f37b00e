//! Estimates the number of items and bytes in a range of keys from index entries alone. A subtree
//! that lies completely in the range is counted by its sums, and a block that contains an end of
//! the range is counted by half. No tuple block is read, so an estimate costs two descents.

use std::ops::AddAssign;
use std::sync::Arc;

use crate::Result;
use crate::index::entry::Entry;
use crate::input::{Input, KeyRange};
use crate::item::{BodyRef, ItemRef, Seq};
use crate::key::{head_of, shared_prefix};
use crate::memtable::Memtable;
use crate::run::Run;
use crate::source::Source;

/// The number of items of a memtable that are counted one by one. The number of the remaining items
/// is extrapolated.
const COUNTED: u64 = 4096;

/// An estimate of the items and bytes in a range.
///
/// Items are counted in every source. A key that was overwritten counts once in each run that still
/// has a version of it, and a tombstone counts as an item. After a compaction of the range, only
/// live tuples remain and are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// The number of items.
    pub items: u64,
    /// An upper bound on the error of `items`, in either direction. Items that newer ones hide are
    /// counted.
    pub items_error: u64,
    /// The number of bytes: tuple blocks as stored, large values, and keys and values in memory.
    pub bytes: u64,
    /// An upper bound on the error of `bytes`, in either direction.
    pub bytes_error: u64,
}

impl AddAssign for Estimate {
    fn add_assign(&mut self, other: Estimate) {
        self.items += other.items;
        self.items_error += other.items_error;
        self.bytes += other.bytes;
        self.bytes_error += other.bytes_error;
    }
}

/// Estimates the part of `inputs` that lies in `range`. Memtables are read as of `at`.
pub fn estimate(inputs: &[Input], range: &KeyRange, at: Seq) -> Result<Estimate> {
    let mut sum = Estimate::default();
    for input in inputs {
        match input {
            Input::Memtable(m) => sum += of_memtable(m, range, at)?,
            Input::Run(run) => {
                let (root, level) = run.root();
                of_subtree(run, root, level, range, &mut sum)?;
            }
        }
    }
    Ok(sum)
}

fn begins_inside(e: &Entry, range: &KeyRange) -> bool {
    range.end.as_ref().is_none_or(|end| e.low < *end)
}

fn of_subtree(
    run: &Run,
    entry: &Entry,
    level: u16,
    range: &KeyRange,
    sum: &mut Estimate,
) -> Result<()> {
    if entry.high <= range.start || !begins_inside(entry, range) {
        return Ok(());
    }
    let (items, bytes) = (entry.items, entry.data_bytes());
    if entry.low >= range.start && range.end.as_ref().is_none_or(|end| entry.high <= *end) {
        sum.items += items;
        sum.bytes += bytes;
        return Ok(());
    }
    if level == 0 {
        *sum += Estimate {
            items: items / 2,
            items_error: items.div_ceil(2),
            bytes: bytes / 2,
            bytes_error: bytes.div_ceil(2),
        };
        return Ok(());
    }
    let node = run.cache().node(entry, level)?;
    let from = node.position(&range.start);
    for e in node.entries[from..].iter().take_while(|e| begins_inside(e, range)) {
        of_subtree(run, e, level - 1, range, sum)?;
    }
    Ok(())
}

fn item_bytes(item: ItemRef<'_>) -> u64 {
    let body = match item.body {
        BodyRef::Put(v) => v.len(),
        BodyRef::Update { update, .. } => update.len(),
        BodyRef::Delete => 0,
        BodyRef::DeleteRange { end } => end.len(),
    };
    (item.key.len() + body) as u64
}

fn of_memtable(memtable: &Arc<Memtable>, range: &KeyRange, at: Seq) -> Result<Estimate> {
    let mut sum = Estimate::default();
    if memtable.is_empty() {
        return Ok(sum);
    }
    let mut cursor = memtable.cursor(at);
    cursor.seek(&range.start)?;
    let (mut first, mut reached) = (None, None);
    while let Some(item) = cursor.item() {
        if range.end.as_ref().is_some_and(|end| item.key >= end.as_ref()) {
            return Ok(sum);
        }
        if sum.items == COUNTED {
            reached = Some(item.key.to_vec());
            break;
        }
        first.get_or_insert_with(|| item.key.to_vec());
        sum.items += 1;
        sum.bytes += item_bytes(item);
        cursor.next()?;
    }
    let (Some(first), Some(reached)) = (first, reached) else { return Ok(sum) };
    // Assume that the rest is as dense as the counted items, within the size of the memtable.
    cursor.last()?;
    let last = match (cursor.item(), &range.end) {
        (Some(item), Some(end)) => item.key.min(end).to_vec(),
        (Some(item), None) => item.key.to_vec(),
        (None, _) => reached.clone(),
    };
    // Convert the keys to numbers, made of the bytes after the prefix that all of them share.
    let skip = shared_prefix(&first, &last);
    let [a, b, c] = [&first, &reached, &last].map(|k| head_of(k.get(skip..).unwrap_or_default()));
    let most = memtable.len() as u64;
    let ratio = (c.saturating_sub(a)).max(1) as f64 / (b.saturating_sub(a)).max(1) as f64;
    let items = ((sum.items as f64 * ratio) as u64).clamp(sum.items, most.max(sum.items));
    let bytes = (sum.bytes as f64 * items as f64 / sum.items as f64) as u64;
    let (items_error, bytes_error) = (most.saturating_sub(sum.items), memtable.bytes() as u64);
    Ok(Estimate { items, items_error, bytes, bytes_error })
}
