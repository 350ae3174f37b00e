//! What merges, cursors and estimates go over: sources, and a range of keys.

use std::sync::Arc;

use bytes::Bytes;

use crate::memtable::Memtable;
use crate::run::Run;

/// Keys from `start` to just below `end`; `end` `None`: to the last key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    pub start: Bytes,
    pub end: Option<Bytes>,
}

impl KeyRange {
    pub fn all() -> Self {
        KeyRange::default()
    }
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        KeyRange { start: start.into(), end: Some(end.into()) }
    }
}

/// One input of a merge or of a cursor.
#[derive(Clone)]
pub enum Input {
    Memtable(Arc<Memtable>),
    Run(Arc<Run>),
}
