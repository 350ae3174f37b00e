//! The difference between a view and the state that a rank index counts.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use vt_tree::{BodyRef, Input, RunCursor, Source};

use super::span::Span;
use crate::error::Result;
use crate::read::view::View;

/// Maximum number of a transaction's changes that a query looks up individually.
const LOOKED_AT: usize = 64 << 10;

/// The keys that the view has and the index does not count, with 1, and the keys that the index
/// counts and the view does not have, with -1.
#[derive(Default)]
pub(super) struct Corrections {
    /// The keys with their corrections, sorted by key.
    of: Vec<(Bytes, i64)>,
}

impl Corrections {
    pub fn push(&mut self, key: &Bytes, more: i64) {
        if more != 0 {
            self.of.push((key.clone(), more));
        }
    }

    pub fn and(mut self, other: Corrections) -> Corrections {
        self.of.extend(other.of);
        self.of.sort();
        self
    }

    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub fn before(&self, key: &[u8]) -> i64 {
        self.sum(0..self.place(key))
    }

    /// Returns the sum of the corrections in `[start, end)`. An empty `end` means no upper bound.
    pub fn between(&self, start: &[u8], end: &[u8]) -> i64 {
        if self.of.is_empty() {
            return 0;
        }
        let end = if end.is_empty() { self.of.len() } else { self.place(end) };
        self.sum(self.place(start)..end)
    }

    /// Returns the number of corrections before a key.
    fn place(&self, key: &[u8]) -> usize {
        self.of.partition_point(|(of, _)| of < key)
    }

    fn sum(&self, places: Range<usize>) -> i64 {
        self.of[places].iter().map(|(_, more)| more).sum()
    }

    /// Returns the corrections for a transaction's own changes in a range, relative to the state
    /// `below`. Returns `None` if they cannot be listed, because a range was deleted or there are
    /// too many.
    pub fn of_own(view: &View, below: &View, span: &Span) -> Result<Option<Corrections>> {
        let mut keys = BTreeSet::new();
        for (input, at) in view.written_inputs(span.dict) {
            let mut source: Box<dyn Source> = match input {
                Input::Memtable(memtable) => Box::new(memtable.cursor(at)),
                Input::Run(run) => Box::new(RunCursor::new(run)),
            };
            source.seek(&span.start)?;
            while let Some(item) = source.item() {
                if !span.end.is_empty() && item.key >= &span.end[..] {
                    break;
                }
                if matches!(item.body, BodyRef::DeleteRange { .. }) || keys.len() >= LOOKED_AT {
                    return Ok(None);
                }
                keys.insert(Bytes::copy_from_slice(item.key));
                source.next()?;
            }
        }
        let mut corrections = Corrections::default();
        for key in &keys {
            let now = view.value_len(span.dict, key)?.is_some();
            let below = below.value_len(span.dict, key)?.is_some();
            corrections.push(key, i64::from(now) - i64::from(below));
        }
        Ok(Some(corrections))
    }
}
