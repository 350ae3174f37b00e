//! Builds a run from sorted tuples, for bulk ingest. Nothing is merged, and nothing is written
//! twice: small tuples are written in blocks, and large values sequentially to a separate stream.

use std::sync::Arc;

use bytes::Bytes;

use crate::Result;
use crate::cache::BlockCache;
use crate::item::{Body, Item, ItemRef, Seq};
use crate::merge::builder::{MergeStats, RunBuilder};
use crate::merge::options::MergeOptions;
use crate::run::Run;
use crate::value::Value;

/// Builds a run from tuples in ascending key order. Dropping an unfinished writer frees the space
/// that it took. It needs memory for the open block, the open index nodes and a few write buffers,
/// regardless of the number of tuples.
pub struct RunWriter {
    builder: RunBuilder,
    seq: Seq,
}

impl RunWriter {
    /// Creates a writer that stores all tuples with the sequence number `seq`. Of `options`, only
    /// those that control how tuples are stored apply.
    pub fn new(cache: &Arc<BlockCache>, seq: Seq, options: &MergeOptions) -> RunWriter {
        RunWriter { builder: RunBuilder::new(cache, options), seq }
    }

    /// Appends a tuple. `key` must be greater than all previous keys. After an error the writer
    /// must be dropped.
    pub fn push(&mut self, key: Bytes, value: Bytes) -> Result<()> {
        self.builder.push_item(Item { key, seq: self.seq, body: Body::Put(Value::Inline(value)) })
    }

    /// Appends a borrowed item. A value on the device stays where it is if the placement says so.
    /// Keys must ascend, and the caller keeps the value's zone pinned until the run is finished.
    #[inline]
    pub fn push_ref(&mut self, item: ItemRef<'_>) -> Result<()> {
        self.builder.push(ItemRef { seq: self.seq, ..item })
    }

    /// Returns the bytes written so far.
    pub fn written(&self) -> u64 {
        self.builder.written()
    }

    /// Returns the run, or `None` if there was no tuple. The run is written but not synced.
    pub fn finish(self) -> Result<(Option<Arc<Run>>, MergeStats)> {
        self.builder.finish()
    }
}
