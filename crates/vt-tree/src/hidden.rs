//! Estimates how many bytes of older runs are hidden by newer inputs: only a snapshot keeps them.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;

use crate::Result;
use crate::cursor::TreeCursor;
use crate::estimate::estimate;
use crate::filter::hash;
use crate::input::{Input, KeyRange};
use crate::item::{BodyRef, ItemRef, Lookup, Seq};
use crate::run::{Run, RunCursor};
use crate::source::Source;
use crate::value::Value;

/// Returns the bytes of `older`, the runs of one state, newest first, that the items of `newer`
/// hide, memtables as of `at`. A large deleted range counts by the sums of index entries, and
/// adjacent ranges are treated as one. The work is about that of reading `most` items; the items
/// left then are assumed to hide as much, item for item.
pub fn hidden_bytes(older: &[Arc<Run>], newer: &[Input], at: Seq, most: u64) -> Result<u64> {
    let all: u64 = older.iter().map(|run| run.stats().bytes).sum();
    let inputs: Vec<Input> = older.iter().cloned().map(Input::Run).collect();
    let (mut bytes, mut looked_at, mut left) = (0u64, 0u64, 0u64);
    let mut work = 0;
    let mut seen = HashSet::new();
    for input in newer {
        let mut cursor: Box<dyn Source> = match input {
            Input::Memtable(memtable) => Box::new(memtable.cursor(at)),
            Input::Run(run) => Box::new(RunCursor::new(run.clone())),
        };
        if work >= most {
            left += match input {
                Input::Memtable(memtable) => memtable.len() as u64,
                Input::Run(run) => run.stats().items,
            };
            continue;
        }
        let before = looked_at;
        cursor.first()?;
        while work < most
            && let Some(item) = cursor.item()
        {
            looked_at += 1;
            work += 1;
            match item.body {
                BodyRef::DeleteRange { end } => {
                    let start = Bytes::copy_from_slice(item.key);
                    let mut end = end.to_vec();
                    cursor.next()?;
                    while let Some(ItemRef {
                        key, body: BodyRef::DeleteRange { end: next }, ..
                    }) = cursor.item()
                        && key == end
                        && work < most
                    {
                        looked_at += 1;
                        work += 1;
                        end = next.to_vec();
                        cursor.next()?;
                    }
                    let range = KeyRange { start, end: Some(end.into()) };
                    let (found, counted) = bytes_in(older, &inputs, &range)?;
                    bytes = bytes.saturating_add(found);
                    work += DESCENTS * older.len() as u64 + counted;
                    continue;
                }
                BodyRef::Put(_) | BodyRef::Delete if seen.insert(hash(item.key)) => {
                    bytes = bytes.saturating_add(stored_bytes(older, item.key)?);
                    work += older.len() as u64;
                }
                _ => {}
            }
            cursor.next()?;
        }
        if let (Input::Run(run), true) = (input, work >= most) {
            left += run.stats().items.saturating_sub(looked_at - before);
        }
    }
    let share = u128::from(bytes) * u128::from(left) / u128::from(looked_at.max(1));
    Ok(bytes.saturating_add(u64::try_from(share).unwrap_or(u64::MAX)).min(all))
}

/// Tuples are counted if an estimate by index entries is less certain than one part in this many.
const CERTAIN: u64 = 16;
/// The most tuples that are counted in one range.
const COUNTED: u64 = 20_000;

/// The work of an estimate in one run, in items that could be read instead.
const DESCENTS: u64 = 16;

/// Returns the approximate bytes that the runs have in a range, and the number of tuples counted.
fn bytes_in(runs: &[Arc<Run>], inputs: &[Input], range: &KeyRange) -> Result<(u64, u64)> {
    let about = estimate(inputs, range, Seq::MAX)?;
    let Some(first) = runs.first().filter(|_| about.bytes_error > about.bytes / CERTAIN) else {
        return Ok((about.bytes, 0));
    };
    // The estimate is imprecise because one block may refer to megabytes of large values, of which
    // the range has only a few.
    let mut cursor = TreeCursor::new(first.cache(), inputs, Seq::MAX);
    cursor.seek(&range.start);
    let mut bytes = 0u64;
    for counted in 0..COUNTED {
        match cursor.next()? {
            Some(tuple) if range.end.as_ref().is_none_or(|end| tuple.key < *end) => {
                bytes = bytes.saturating_add(match tuple.value {
                    Value::Extent(e) => u64::from(e.stored),
                    Value::Inline(value) => (tuple.key.len() + value.len()) as u64,
                });
            }
            _ => return Ok((bytes, counted)),
        }
    }
    Ok((about.bytes, COUNTED))
}

/// Returns the bytes that the value of a key takes in the runs; 0 if it is not there.
fn stored_bytes(runs: &[Arc<Run>], key: &[u8]) -> Result<u64> {
    let hash = hash(key);
    for run in runs {
        match run.get(key, hash)? {
            Lookup::Absent => {}
            Lookup::Found(_, Value::Extent(e)) => return Ok(u64::from(e.stored)),
            Lookup::Found(_, Value::Inline(value)) => return Ok((key.len() + value.len()) as u64),
            Lookup::Deleted(_) | Lookup::Updated { .. } => return Ok(0),
        }
    }
    Ok(0)
}
