//! Checks a whole run: every checksum, the order of all keys, fences, sums, filters, and the bytes
//! in each zone.

use std::sync::Arc;

use zones::ZoneUse;

use crate::Result;
use crate::filter::hash;
use crate::index::entry::Entry;
use crate::item::{Body, Item};
use crate::merge::builder::follows_block;
use crate::run::Run;
use crate::value::{ExtentRef, Value, contiguous};

/// Checks `run` and all its values. Calls `fault` with a description of every fault, and `progress`
/// with the number of data bytes after each read. After a fault, the check continues with the next
/// subtree.
pub fn check_run(run: &Arc<Run>, fault: &mut dyn FnMut(String), progress: &mut dyn FnMut(u64)) {
    let (root, level) = run.root();
    let mut check = RunChecker { run, fault, progress, last_end: Vec::new() };
    if let Some(found) = check.subtree(root, level) {
        check.compare(root, level, &found);
    }
}

/// The number of bytes of large values that are read together. The number is limited because one
/// block may refer to hundreds of megabytes.
const TOGETHER: usize = 4 << 20;

struct RunChecker<'a> {
    run: &'a Arc<Run>,
    fault: &'a mut dyn FnMut(String),
    progress: &'a mut dyn FnMut(u64),
    /// The upper bound of the previous item.
    last_end: Vec<u8>,
}

/// The actual content of a subtree, to be compared with its entry.
#[derive(Default)]
struct Observed {
    items: u64,
    max_seq: u64,
    tombstones: bool,
    range_tombstones: bool,
    unfiltered: bool,
    block_bytes: u64,
    block_spans: u64,
    value_bytes: u64,
    value_spans: u64,
    zones: ZoneUse,
    /// The zones of a tuple block, counted as older stores did, without the padding of extents.
    unpadded: ZoneUse,
    /// The zones of a tuple block, counted as older stores did, where each gap of less than a page
    /// between two extents counted as alignment.
    with_short_gaps: ZoneUse,
    /// The hashes of the keys in the subtree. They are kept up to the leaf index node whose filter
    /// must have them.
    hashes: Vec<u64>,
}

impl RunChecker<'_> {
    fn read<T>(&mut self, what: Result<T>) -> Option<T> {
        what.map_err(|e| (self.fault)(e.to_string())).ok()
    }

    fn subtree(&mut self, entry: &Entry, level: u16) -> Option<Observed> {
        let mut found = if level == 0 { self.block(entry)? } else { self.node(entry, level)? };
        if level == 0 && entry.unfiltered {
            found.unfiltered = true;
            found.hashes.clear();
        }
        found.zones.add_extent(entry.at.addr, u64::from(entry.at.len));
        found.unpadded.add_extent(entry.at.addr, u64::from(entry.at.len));
        found.with_short_gaps.add_extent(entry.at.addr, u64::from(entry.at.len));
        if let Some(filter) = entry.filter {
            found.zones.add_extent(filter.addr, u64::from(filter.len));
            let filter = self.run.cache().filter(filter);
            if let Some(filter) = self.read(filter)
                && let Some(h) = found.hashes.iter().find(|h| !filter.may_contain(**h))
            {
                (self.fault)(format!(
                    "filter of the index node at {:#x} lacks one of its keys (hash {h:#x})",
                    entry.at.addr
                ));
            }
        } else if level == 1 && !found.hashes.is_empty() {
            (self.fault)(format!("leaf index node at {:#x} has keys and no filter", entry.at.addr));
        }
        if level >= 1 {
            found.hashes.clear();
        }
        Some(found)
    }

    fn node(&mut self, entry: &Entry, level: u16) -> Option<Observed> {
        let node = self.run.cache().node(entry, level);
        let node = self.read(node)?;
        let mut sum = Observed::default();
        let mut whole = true;
        let mut end = None;
        for e in &node.entries {
            if e.low < entry.low || e.high > entry.high {
                (self.fault)(format!(
                    "index node at {:#x} has keys outside its fences",
                    entry.at.addr
                ));
            }
            let Some(found) = self.subtree(e, level - 1) else {
                whole = false;
                continue;
            };
            self.compare(e, level - 1, &found);
            let joined = level == 1 && end.is_some_and(|end| follows_block(end, e));
            end = Some(e.at.end());
            sum.items += found.items;
            sum.max_seq = sum.max_seq.max(found.max_seq);
            sum.tombstones |= found.tombstones;
            sum.range_tombstones |= found.range_tombstones;
            sum.unfiltered |= found.unfiltered;
            sum.block_bytes += found.block_bytes;
            sum.block_spans += if joined { 0 } else { found.block_spans };
            sum.value_bytes += found.value_bytes;
            sum.value_spans += found.value_spans;
            // Use the zones of the entry, which was already compared, because the blocks below may
            // use any of these ways of counting.
            sum.zones.merge(&e.zone_use().unwrap_or_default());
            sum.hashes.extend(found.hashes);
        }
        whole.then_some(sum)
    }

    fn block(&mut self, entry: &Entry) -> Option<Observed> {
        let block = self.run.cache().block_beneath(entry);
        let block = self.read(block)?;
        let mut found = Observed {
            block_bytes: u64::from(entry.at.len),
            block_spans: 1,
            ..Observed::default()
        };
        let mut extents = Vec::new();
        for g in 0..block.intervals() {
            let items = block.interval(g);
            for item in self.read(items)? {
                self.item(entry, &item, &mut found, &mut extents);
            }
        }
        let mut rest = &extents[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |e: &&ExtentRef| {
                bytes += e.stored as usize;
                bytes <= TOGETHER
            };
            let (values, left) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = left;
            // If this fails, read the values one by one, so that the fault names the address.
            if self.run.cache().read_values(values).is_err() {
                for e in values {
                    let value = self.run.cache().read_value(&Value::Extent(*e));
                    self.read(value);
                }
            }
        }
        (self.progress)(found.block_bytes + found.value_bytes);
        Some(found)
    }

    fn item(
        &mut self,
        entry: &Entry,
        item: &Item,
        found: &mut Observed,
        extents: &mut Vec<ExtentRef>,
    ) {
        if item.key.as_ref() < self.last_end.as_slice() {
            (self.fault)(format!("tuple block at {:#x}: keys out of order", entry.at.addr));
        }
        self.last_end.clear();
        match &item.body {
            Body::DeleteRange { end } => {
                if *end <= item.key {
                    (self.fault)(format!(
                        "tuple block at {:#x}: an empty range tombstone",
                        entry.at.addr
                    ));
                }
                self.last_end.extend_from_slice(end);
                found.range_tombstones = true;
            }
            body => {
                self.last_end.extend_from_slice(&item.key);
                self.last_end.push(0);
                found.hashes.push(hash(&item.key));
                found.tombstones |= *body == Body::Delete;
            }
        }
        if item.key < entry.low || self.last_end.as_slice() > entry.high.as_ref() {
            (self.fault)(format!("tuple block at {:#x}: a key outside its fences", entry.at.addr));
        }
        found.items += 1;
        found.max_seq = found.max_seq.max(item.seq);
        if let Body::Put(Value::Extent(e)) = &item.body {
            found.value_bytes += u64::from(e.stored);
            found.value_spans += u64::from(!extents.last().is_some_and(|last| contiguous(last, e)));
            e.add_room(extents.last(), &mut found.zones);
            e.add_room_and_short_gaps(extents.last(), &mut found.with_short_gaps);
            found.unpadded.add_extent(e.addr, u64::from(e.stored));
            extents.push(*e);
        }
    }

    fn compare(&mut self, e: &Entry, level: u16, f: &Observed) {
        let said = (e.items, e.max_seq, e.tombstones, e.range_tombstones, e.unfiltered);
        let is = (f.items, f.max_seq, f.tombstones, f.range_tombstones, f.unfiltered);
        let (said, is) = (
            (said, e.block_bytes, e.block_spans, e.value_bytes, e.value_spans),
            (is, f.block_bytes, f.block_spans, f.value_bytes, f.value_spans),
        );
        if said != is {
            (self.fault)(format!(
                "index entry of level {level} for {:#x}: its sums are {said:?}, the actual ones {is:?}",
                e.at.addr
            ));
        }
        let of_a_block = |z: &ZoneUse| *z == f.unpadded || *z == f.with_short_gaps;
        if !e.zone_use().is_ok_and(|z| z == f.zones || level == 0 && of_a_block(&z)) {
            (self.fault)(format!(
                "index entry of level {level} for {:#x}: zone accounting does not match the actual bytes",
                e.at.addr
            ));
        }
    }
}
