//! Changes that have their numbers enter the memtables: of a commit, and of the journal when it is
//! read again.

use bytes::Bytes;
use vt_tree::{Compression, Seq, Value, Writer};

use super::deferred::{self, DeferredValue};
use crate::dictionary::DictionaryId;
use crate::journal::record::Op;
use crate::read::version::{Layer, Version};

/// Writes one put whose value has no place yet. Gives what is to be placed, whose reference in the
/// journal is not known yet.
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

/// Writes numbered changes into the newest memtables. Gives the bytes by which they grew, and those
/// of deferred values apart, each of which `deferred` is given. Changes of dictionaries that are
/// gone are left out.
pub(crate) fn write_memtables(
    version: &Version,
    first: Seq,
    changes: &[(DictionaryId, Op)],
    deferred: &mut dyn FnMut(DeferredValue),
) -> (usize, usize) {
    /// Readers wait while a memtable is locked.
    const PER_LOCK: usize = 256;
    let (mut grown, mut waiting) = (0, 0);
    let mut seq = first;
    for of_one in changes.chunk_by(|a, b| a.0 == b.0) {
        let Some(layer) = version.trees.get(&of_one[0].0).and_then(|t| t.layers.first()) else {
            seq += of_one.len() as u64;
            continue;
        };
        let before = layer.memtable.bytes();
        for part in of_one.chunks(PER_LOCK) {
            let mut writer = layer.memtable.writer();
            for (dict, op) in part {
                match op {
                    // Copied: the bytes may be a slice of something much larger.
                    Op::Put(k, Value::Inline(v)) => writer.put_slice(k, seq, v),
                    Op::Put(k, v) => writer.put(k, seq, v.clone()),
                    Op::PutDeferred(k, v, codec) => {
                        waiting += deferred::heap(v.len());
                        let (key, value) = ((k.clone(), seq), (v.clone(), *codec));
                        deferred(write_deferred(layer, &mut writer, *dict, key, value));
                    }
                    Op::Update(k, update) => writer.update(k, seq, update),
                    // What hides it follows.
                    Op::Delete(k) | Op::PutDiscarded(k, _) => writer.delete(k, seq),
                    Op::DeleteRange(s, e) => writer.delete_range(s, e, seq),
                }
                seq += 1;
            }
        }
        grown += layer.memtable.bytes().saturating_sub(before);
    }
    (grown.saturating_sub(waiting), waiting)
}
