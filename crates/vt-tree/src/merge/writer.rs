//! Builds a run from sorted tuples, for bulk ingest. Nothing is merged and nothing is written
//! twice: small tuples are written in blocks, large values one after the other to a stream of their
//! own.

use std::sync::Arc;

use bytes::Bytes;

use crate::Result;
use crate::cache::BlockCache;
use crate::item::{Body, Item, ItemRef, Seq};
use crate::merge::builder::{MergeStats, RunBuilder};
use crate::merge::options::MergeOptions;
use crate::run::Run;
use crate::value::Value;

/// Builds a run from tuples in ascending key order. A writer that is dropped unfinished frees the
/// space it took. It needs memory for the open block, the open index nodes and a few write buffers,
/// whatever the number of tuples.
pub struct RunWriter {
    builder: RunBuilder,
    seq: Seq,
}

impl RunWriter {
    /// Creates a writer that stores all tuples with the sequence number `seq`. Of the options, only
    /// those apply that control how tuples are stored.
    pub fn new(cache: &Arc<BlockCache>, seq: Seq, options: &MergeOptions) -> RunWriter {
        RunWriter { builder: RunBuilder::new(cache, options), seq }
    }

    /// Appends a tuple. `key` must be greater than all keys before it. After an error the writer
    /// can only be dropped.
    pub fn push(&mut self, key: Bytes, value: Bytes) -> Result<()> {
        self.builder.push_item(Item { key, seq: self.seq, body: Body::Put(Value::Inline(value)) })
    }

    /// Appends an item that is borrowed. A value that lies on the device stays there if the
    /// placement says so. Keys must ascend, and the caller keeps that value's zone pinned until the
    /// run is finished.
    #[inline]
    pub fn push_ref(&mut self, item: ItemRef<'_>) -> Result<()> {
        self.builder.push(ItemRef { seq: self.seq, ..item })
    }

    /// Returns the bytes written so far.
    pub fn written(&self) -> u64 {
        self.builder.written()
    }

    /// Returns the run, written but not synced, or `None` if there was no tuple.
    pub fn finish(self) -> Result<(Option<Arc<Run>>, MergeStats)> {
        self.builder.finish()
    }
}
