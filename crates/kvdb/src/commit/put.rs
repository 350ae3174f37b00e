//! A single put, committed without a batch, with less work than for a batch of one change. If it
//! needs more than that, it is committed as a batch.

use bytes::Bytes;
use vt_tree::{Compression, Seq};

use super::batch::{Batch, Durability};
use super::committer::{Commit, Committer};
use super::feed::Feed;
use super::log::{Pipeline, deferred};
use super::memtables::{Grown, write_deferred};
use super::{CommitEnv, SpaceClaim, check_put};
use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::journal::record::{self, PutValue};
use crate::read::ranks::Ranks;
use crate::version::Version;
use crate::version::generation::Layer;

/// A commit of a single put.
struct Put<'a> {
    layer: &'a Layer,
    dict: DictionaryId,
    key: &'a [u8],
    value: &'a [u8],
    /// The value, or what stands for it in the record.
    logged: PutValue<'a>,
    codec: Compression,
    /// The value in the log's buffers, if it is deferred.
    copy: Option<Bytes>,
}

impl Commit for Put<'_> {
    fn count(&self) -> u64 {
        1
    }

    fn apply(&mut self, _: &Version, pipeline: &mut Pipeline) -> Grown {
        let Put { layer, dict, key, value, codec, .. } = *self;
        let seq = pipeline.next_seq;
        let before = layer.memtable.bytes();
        let mut deferred = 0;
        match self.copy.take() {
            None => layer.memtable.writer().put_slice(key, seq, value),
            Some(copy) => {
                deferred = deferred::heap(value.len());
                let (key, value) = ((Bytes::copy_from_slice(key), seq), (copy, codec));
                let value = write_deferred(layer, &mut layer.memtable.writer(), dict, key, value);
                pipeline.pending.push(value);
            }
        }
        Grown { grown: layer.memtable.bytes().saturating_sub(before + deferred), deferred }
    }

    fn log(&mut self, pipeline: &mut Pipeline) {
        let stream = pipeline.stream();
        record::encode_put(self.dict, self.key, self.logged, stream);
        if matches!(self.logged, PutValue::Deferred(_)) {
            // The record ends with the reference.
            let at = stream.len() - record::reference_len(self.codec);
            let value = pipeline.pending.values.last_mut();
            value.into_iter().for_each(|value| value.at = Some(at));
        }
    }

    fn changes_version(&self) -> bool {
        false
    }

    fn change(&mut self, _: &mut Version) {}

    fn note(&self, version: &Version, feed: &Feed, ranks: &Ranks, last: Seq) {
        feed.note_put(version, self.dict, self.key, last);
        ranks.note_put(self.dict, self.key, last);
    }
}

impl Committer {
    /// Commits a single put: the same as [`Committer::commit`] of a batch with it, without the
    /// batch.
    pub(crate) fn put(
        &self,
        services: &impl CommitEnv,
        dict: DictionaryId,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        self.engine.health.writable()?;
        check_put(key.len(), value.len())?;
        let version = self.engine.versions.load();
        let tree = version.tree(dict)?;
        let large = value.len() >= tree.separate_at().max(1) as usize;
        let codec = match large {
            true => self.engine.series.codec(dict, key, tree.info().options.compress_values),
            false => Compression::None,
        };
        let deferred = large
            && (durability == Durability::Buffered || !self.engine.options.journal)
            && !self.log.is_mirrored();
        // `u64::MAX` keeps large values in the record, which the batch path handles. That path also
        // makes the memtable if this is the first commit of a generation.
        if large
            && (self.engine.options.late_bind_at.min(deferred::LONGEST) <= value.len() as u64
                || self.engine.options.late_bind_at == u64::MAX)
            || version.active(tree).is_none()
        {
            drop(version);
            return self.put_as_batch(services, dict, key, value, durability);
        }
        // Drop the version first: the wait below may be for space that it pins.
        drop(version);
        let logged = if deferred { PutValue::Deferred(codec) } else { PutValue::Inline(value) };
        let need = record::put_size(dict, key.len(), logged);
        services.admit(
            key.len() + value.len(),
            if deferred { value.len() } else { 0 },
            SpaceClaim::default(),
        )?;
        let copy = deferred.then(|| self.log.copy_value(value));
        let applied = {
            let mut pipeline = self.enter(
                services,
                need,
                copy.as_ref().map_or(0, |v| deferred::cost(v.len())),
                SpaceClaim::default(),
            )?;
            if self.locks.any() {
                drop(pipeline);
                return self.put_as_batch(services, dict, key, value, durability);
            }
            let version = self.engine.versions.load();
            let tree = version.tree(dict)?;
            let Some(layer) = version.active(tree) else {
                // The generation was sealed in the meantime.
                drop(pipeline);
                return self.put_as_batch(services, dict, key, value, durability);
            };
            tree.short.committed(value.len());
            let commit = Put { layer, dict, key, value, logged, codec, copy };
            let mut applied = self.run(&mut pipeline, &version, commit);
            applied.sync_follows = durability == Durability::Synced;
            applied
        };
        self.engine.counters.commits.add(1);
        self.engine.counters.user_bytes.add((key.len() + value.len()) as u64);
        self.finish(services, durability, applied)
    }

    /// Commits a put as a batch of one change: its value has to be placed first, it has to wait for
    /// locks, or it is the first one of its dictionary in this generation and makes the memtable.
    fn put_as_batch(
        &self,
        services: &impl CommitEnv,
        dict: DictionaryId,
        key: &[u8],
        value: &[u8],
        durability: Durability,
    ) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(dict, Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        self.commit(services, batch, durability)
    }
}
