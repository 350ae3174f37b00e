//! Ranges of keys of a dictionary.

use bytes::Bytes;

use crate::dictionary::DictionaryId;

/// A key range of a dictionary. An empty end means no upper bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub dict: DictionaryId,
    pub start: Bytes,
    pub end: Bytes,
}

impl Span {
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.start <= key && (self.end.is_empty() || self.end > key)
    }

    pub(super) fn contains(&self, other: &Span) -> bool {
        let ends = self.end.is_empty() || !other.end.is_empty() && other.end <= self.end;
        self.dict == other.dict && self.start <= other.start && ends
    }

    pub(super) fn meets(&self, start: &[u8], end: &[u8]) -> bool {
        (self.end.is_empty() || start < &self.end[..]) && (end.is_empty() || end > &self.start[..])
    }
}
