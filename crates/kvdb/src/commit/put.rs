//! A single put, committed without a batch: validated, admitted, written to memtable and journal,
//! and made visible, with less work than for a batch of one change. If it needs more than that, it
//! is committed as a batch.

use bytes::Bytes;

use super::batch::{Batch, Durability};
use super::deferred::{self, DeferredValue};
use super::memtables::write_deferred;
use super::{CommitEnv, CommitPipeline, SpaceClaim, check_put};
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::journal::record::{self, PutValue};

impl CommitPipeline {
    /// Commits a single put: the same as [`CommitPipeline::commit`] of a batch with it, without the
    /// batch.
    pub(crate) fn put(
        &self,
        engine: &impl CommitEnv,
        dict: DictionaryId,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        self.health.writable()?;
        check_put(key.len(), value.len())?;
        let version = self.versions.load();
        let tree = version.tree(dict)?;
        let large = value.len() >= tree.separate_at().max(1) as usize;
        let codec = tree.info().options.compress_values;
        let deferred = large
            && (durability == Durability::Buffered || !self.options.journal)
            && !self.log.is_mirrored();
        // `u64::MAX` keeps large values in the record, which the batch path handles. That path also
        // makes the memtable if this is the first commit of a generation.
        if large
            && (self.options.late_bind_at.min(deferred::LONGEST) <= value.len() as u64
                || self.options.late_bind_at == u64::MAX)
            || version.active(tree).is_none()
        {
            drop(version);
            return self.put_as_batch(engine, dict, key, value, durability);
        }
        // Drop the version first: the wait below may be for space that it pins.
        drop(version);
        let logged = if deferred { PutValue::Deferred(codec) } else { PutValue::Inline(value) };
        let need = record::put_size(dict, key.len(), logged);
        engine.admit(
            key.len() + value.len(),
            if deferred { value.len() } else { 0 },
            SpaceClaim::default(),
        )?;
        let copy = deferred.then(|| self.log.value_buffers.lock().copy(value));
        let applied = {
            let mut pipeline = self.enter(
                engine,
                need,
                copy.as_ref().map_or(0, |v| deferred::cost(v.len())),
                SpaceClaim::default(),
            )?;
            if self.locks.any() {
                drop(pipeline);
                return self.put_as_batch(engine, dict, key, value, durability);
            }
            let version = self.versions.load();
            let tree = version.tree(dict)?;
            let Some(layer) = version.active(tree) else {
                // The generation was sealed in the meantime.
                drop(pipeline);
                return self.put_as_batch(engine, dict, key, value, durability);
            };
            tree.short.committed(value.len());
            let seq = pipeline.next_seq;
            let before = layer.memtable.bytes();
            let mut waiting = 0;
            let at = self.options.journal.then(|| {
                let stream = pipeline.stream();
                record::encode_put(dict, key, logged, stream);
                // The offset is used only if the record ends with a reference.
                stream.len().saturating_sub(record::reference_len(codec))
            });
            match copy {
                None => layer.memtable.writer().put_slice(key, seq, value),
                Some(value) => {
                    waiting = deferred::heap(value.len());
                    let (key, value) = ((Bytes::copy_from_slice(key), seq), (value, codec));
                    let value =
                        write_deferred(layer, &mut layer.memtable.writer(), dict, key, value);
                    pipeline.pending.push(DeferredValue { at, ..value });
                }
            }
            let grown = layer.memtable.bytes().saturating_sub(before + waiting);
            let mut applied = self.publish_unflushed(&mut pipeline, &version, 1, grown, waiting);
            applied.sync_follows = durability == Durability::Synced;
            self.feed.note_put(&version, dict, key, seq);
            self.ranks.note_put(dict, key, seq);
            applied
        };
        self.counters.commits.add(1);
        self.counters.user_bytes.add((key.len() + value.len()) as u64);
        self.finish(engine, durability, applied)
    }

    /// Commits a put as a batch of one change: its value has to be placed first, or it has to wait
    /// for locks.
    fn put_as_batch(
        &self,
        engine: &impl CommitEnv,
        dict: DictionaryId,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(dict, Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        self.commit(engine, batch, durability)
    }
}
