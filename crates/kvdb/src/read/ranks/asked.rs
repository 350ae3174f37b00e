//! Queries of a rank index for a view, with corrections applied.

use bytes::Bytes;

use super::blocks::Blocks;
use super::corrections::Corrections;
use super::span::Span;
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::view::View;

/// A rank index, the view to answer for, and the corrections that this view needs.
pub(super) struct Asked<'a> {
    pub blocks: &'a mut Blocks,
    pub view: &'a View,
    /// The state that the index counts.
    pub below: View,
    pub span: &'a Span,
    pub corrections: Corrections,
}

impl Asked<'_> {
    pub fn before(&mut self, key: &[u8]) -> Result<u64> {
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

    pub fn len(&mut self) -> Result<u64> {
        self.blocks.count_all(&self.below, self.span)?;
        let sum = self.blocks.sum(self.blocks.len()) as i64;
        let more = self.corrections.between(&self.span.start, &[]);
        Ok(u64::try_from(sum + more).unwrap_or(0))
    }

    pub fn nth(&mut self, n: u64) -> Result<Option<Bytes>> {
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

/// Calls `visit` with the keys of `[start, end)` in a view until it returns `false`. An empty `end`
/// means no upper bound.
pub(super) fn walk(
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
