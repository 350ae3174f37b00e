//! Writes numbered changes into the memtables: those of a commit, and those of the journal when it
//! is replayed.

use std::collections::BTreeMap;

use bytes::Bytes;
use vt_tree::{Compression, Seq, Value, Writer};

use super::log::deferred::{self, DeferredValue};
use crate::dictionary::DictionaryId;
use crate::journal::record::Op;
use crate::version::Version;
use crate::version::generation::Layer;

/// Writes one put whose value has no place yet. Returns the deferred value, without the offset of
/// its reference in the journal.
pub(super) fn write_deferred(
    layer: &Layer,
    writer: &mut Writer<'_>,
    dict: DictionaryId,
    (key, seq): (Bytes, Seq),
    (value, codec): (Bytes, Compression),
) -> DeferredValue {
    let slot = writer.put_deferred(&key, seq, value.clone());
    DeferredValue { dict, key, seq, value, codec, at: None, layer: layer.clone(), slot }
}

/// The memory that changes take in memtables.
#[derive(Clone, Copy, Default)]
pub(crate) struct Grown {
    /// Bytes by which the memtables grew, deferred values excluded.
    pub grown: usize,
    /// Bytes of deferred values.
    pub deferred: usize,
}

/// The effect of changes on memtables.
pub(crate) struct Written {
    pub grown: Grown,
    /// New layers of dictionaries that had none in this generation. No version has them yet: they
    /// must be added to one ([`Version::add_layers`]) that becomes visible together with the
    /// changes.
    pub fresh: BTreeMap<DictionaryId, Layer>,
}

/// Writes numbered changes into the active memtables, and passes each deferred value to `deferred`.
/// Changes to dropped dictionaries are skipped.
pub(crate) fn write_memtables(
    version: &Version,
    first: Seq,
    changes: &[(DictionaryId, Op)],
    deferred: &mut dyn FnMut(DeferredValue),
) -> Written {
    /// Number of changes written under one lock; readers wait while a memtable is locked.
    const PER_LOCK: usize = 256;
    let (mut grown, mut waiting) = (0, 0);
    let mut fresh: BTreeMap<DictionaryId, Layer> = BTreeMap::new();
    let mut seq = first;
    for of_one in changes.chunk_by(|a, b| a.0 == b.0) {
        let dict = of_one[0].0;
        let Some(tree) = version.get(dict) else {
            seq += of_one.len() as u64;
            continue;
        };
        let (layer, before) = match version.active(tree) {
            Some(layer) => (layer, layer.memtable.bytes()),
            None => {
                let new = !fresh.contains_key(&dict);
                let layer = &*fresh.entry(dict).or_insert_with(|| version.generation.layer());
                // The initial size of a new memtable counts too.
                (layer, if new { 0 } else { layer.memtable.bytes() })
            }
        };
        for part in of_one.chunks(PER_LOCK) {
            let mut writer = layer.memtable.writer();
            for (_, op) in part {
                match op {
                    // Copy the value: the bytes may be a slice of a much larger buffer.
                    Op::Put(k, Value::Inline(v)) => writer.put_slice(k, seq, v),
                    Op::Put(k, v) => writer.put(k, seq, v.clone()),
                    Op::PutDeferred(k, v, codec) => {
                        waiting += deferred::heap(v.len());
                        let (key, value) = ((k.clone(), seq), (v.clone(), *codec));
                        deferred(write_deferred(layer, &mut writer, dict, key, value));
                    }
                    Op::Update(k, update) => writer.update(k, seq, update),
                    // A discarded value is replayed as a deletion, since a later change hides it.
                    Op::Delete(k) | Op::PutDiscarded(k, _) => writer.delete(k, seq),
                    Op::DeleteRange(s, e) => writer.delete_range(s, e, seq),
                }
                seq += 1;
            }
        }
        grown += layer.memtable.bytes().saturating_sub(before);
    }
    Written { grown: Grown { grown: grown.saturating_sub(waiting), deferred: waiting }, fresh }
}
