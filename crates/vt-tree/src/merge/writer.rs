//! A run straight from sorted tuples: the way of bulk ingest. Nothing is merged, nothing is written
//! twice: small tuples go to the writer in blocks, large values to theirs one behind the other.

use std::sync::Arc;

use bytes::Bytes;

use crate::Result;
use crate::cache::BlockCache;
use crate::item::{Body, Item, ItemRef, Seq};
use crate::merge::builder::{MergeStats, RunBuilder};
use crate::merge::options::MergeOptions;
use crate::run::Run;
use crate::value::Value;

/// Takes tuples in ascending order of their keys. Dropping it unfinished frees what it placed. Its
/// memory is that of the open block, the open index nodes and a few write buffers, whatever the
/// number of tuples.
pub struct RunWriter {
    builder: RunBuilder,
    seq: Seq,
}

impl RunWriter {
    /// All tuples get the sequence number `seq`. Of the options those count that say how tuples are
    /// stored.
    pub fn new(cache: &Arc<BlockCache>, seq: Seq, options: &MergeOptions) -> RunWriter {
        RunWriter { builder: RunBuilder::new(cache, options), seq }
    }

    /// Appends a tuple. The caller sees to it that `key` is above all keys before it. After an
    /// error the writer can only be dropped.
    pub fn push(&mut self, key: Bytes, value: Bytes) -> Result<()> {
        self.builder.push_item(Item { key, seq: self.seq, body: Body::Put(Value::Inline(value)) })
    }

    /// Appends an item that lies elsewhere, a value with a place of its own included, which it
    /// keeps if the placement says so. The caller sees to the order, and to it that such a place
    /// stays until the run is finished.
    #[inline]
    pub fn push_ref(&mut self, item: ItemRef<'_>) -> Result<()> {
        self.builder.push(ItemRef { seq: self.seq, ..item })
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.builder.written()
    }

    /// The run, written but not synced; `None` when there was no tuple.
    pub fn finish(self) -> Result<(Option<Arc<Run>>, MergeStats)> {
        self.builder.finish()
    }
}
