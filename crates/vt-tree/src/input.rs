//! The inputs of merges, cursors and estimates, and ranges of keys.

use std::sync::Arc;

use bytes::Bytes;

use crate::memtable::Memtable;
use crate::run::Run;

/// The keys in `[start, end)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub start: Bytes,
    /// The first key after the range, or `None` if there is no upper bound.
    pub end: Option<Bytes>,
}

impl KeyRange {
    /// Returns the range of all keys.
    pub fn all() -> Self {
        KeyRange::default()
    }
    /// Returns the range of the keys in `[start, end)`.
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        KeyRange { start: start.into(), end: Some(end.into()) }
    }
}

/// One input of a merge or of a cursor.
#[derive(Clone)]
pub enum Input {
    /// A memtable. A merge reads the newest version of each key.
    Memtable(Arc<Memtable>),
    /// A run.
    Run(Arc<Run>),
}
