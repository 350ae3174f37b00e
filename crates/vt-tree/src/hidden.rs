//! Estimates how many bytes of older runs are hidden by newer inputs, so that only a snapshot needs
//! them.

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
use crate::value::{Value, ValueRef};

/// Estimates the number of bytes of `older` that the items of `newer` hide. `older` has the runs of
/// one state, newest first. Memtables are read as of `at`. A merge may have moved data of `older`
/// into the newer runs, so a tuple with the same value hides nothing. A large deleted range is
/// counted by the sums of index entries, and adjacent ranges are treated as one. The work is about
/// that of reading `most` items. The remaining items of an input are assumed to hide as many bytes
/// per item as the items of this input that were read.
pub fn hidden_bytes(older: &[Arc<Run>], newer: &[Input], at: Seq, most: u64) -> Result<u64> {
    let all: u64 = older.iter().map(|run| run.stats().bytes).sum();
    let inputs = older.iter().cloned().map(Input::Run).collect();
    let mut hiding = Hiding { older, inputs, at, seen: HashSet::new() };
    // Short inputs leave the rest of their share to longer ones: a memtable with a few deletions is
    // read completely, however long the run below it is.
    let mut newer: Vec<&Input> = newer.iter().collect();
    newer.sort_by_key(|input| items(input));
    let (mut bytes, mut left) = (0u64, most);
    for (n, input) in newer.iter().enumerate() {
        let share = left / (newer.len() - n) as u64;
        let (hidden, work) = hiding.hidden_by(input, share.max(1))?;
        bytes = bytes.saturating_add(hidden);
        left = left.saturating_sub(work);
    }
    Ok(bytes.min(all))
}

/// Returns the number of items of an input.
fn items(input: &Input) -> u64 {
    match input {
        Input::Memtable(memtable) => memtable.len() as u64,
        Input::Run(run) => run.stats().items,
    }
}

/// The older runs, and the keys that are known to be hidden in them.
struct Hiding<'a> {
    older: &'a [Arc<Run>],
    /// The older runs as inputs.
    inputs: Vec<Input>,
    at: Seq,
    /// The hashes of the keys that are already counted.
    seen: HashSet<u64>,
}

impl Hiding<'_> {
    /// Returns the number of bytes that an input hides, and the amount of work done, which is about
    /// `most`.
    fn hidden_by(&mut self, input: &Input, most: u64) -> Result<(u64, u64)> {
        let mut cursor: Box<dyn Source> = match input {
            Input::Memtable(memtable) => Box::new(memtable.cursor(self.at)),
            Input::Run(run) => Box::new(RunCursor::new(run.clone())),
        };
        let (mut bytes, mut looked_at, mut work) = (0u64, 0u64, 0u64);
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
                    let (found, counted) = bytes_in(self.older, &self.inputs, &range)?;
                    bytes = bytes.saturating_add(found);
                    work += DESCENTS * self.older.len() as u64 + counted;
                    continue;
                }
                BodyRef::Put(value) => {
                    bytes = bytes.saturating_add(self.hidden_at(item.key, Some(value))?);
                    work += self.older.len() as u64;
                }
                BodyRef::Delete => {
                    bytes = bytes.saturating_add(self.hidden_at(item.key, None)?);
                    work += self.older.len() as u64;
                }
                BodyRef::Update { .. } => {}
            }
            cursor.next()?;
        }
        if cursor.item().is_some() {
            let left = items(input).saturating_sub(looked_at);
            let share = u128::from(bytes) * u128::from(left) / u128::from(looked_at.max(1));
            bytes = bytes.saturating_add(u64::try_from(share).unwrap_or(u64::MAX));
        }
        Ok((bytes, work))
    }

    /// Returns the number of bytes that the value of a key takes in the older runs. Returns 0 if
    /// the value equals `newer` or the key is already counted.
    fn hidden_at(&mut self, key: &[u8], newer: Option<ValueRef<'_>>) -> Result<u64> {
        let hash = hash(key);
        if self.seen.contains(&hash) {
            return Ok(0);
        }
        for run in self.older {
            match run.get(key, hash)? {
                Lookup::Absent => {}
                Lookup::Found(_, value) => {
                    if newer.is_some_and(|newer| newer.to_value() == value) {
                        return Ok(0);
                    }
                    self.seen.insert(hash);
                    return Ok(match value {
                        Value::Extent(e) => u64::from(e.stored),
                        Value::Inline(value) => (key.len() + value.len()) as u64,
                    });
                }
                Lookup::Deleted(_) | Lookup::Updated { .. } => break,
            }
        }
        self.seen.insert(hash);
        Ok(0)
    }
}

/// The required certainty: tuples are counted if the error of an estimate by index entries may
/// exceed one part in this many.
const CERTAIN: u64 = 16;
/// The largest number of tuples that are counted in one range.
const COUNTED: u64 = 20_000;

/// The work of an estimate in one run, as the number of items that could be read instead.
const DESCENTS: u64 = 16;

/// Returns the approximate number of bytes that the runs have in a range, and the number of tuples
/// that were counted.
fn bytes_in(runs: &[Arc<Run>], inputs: &[Input], range: &KeyRange) -> Result<(u64, u64)> {
    let about = estimate(inputs, range, Seq::MAX)?;
    let Some(first) = runs.first().filter(|_| about.bytes_error > about.bytes / CERTAIN) else {
        return Ok((about.bytes, 0));
    };
    // The estimate may be imprecise: one block may refer to megabytes of large values, but only a
    // few of them may be in the range. Count the tuples instead.
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
