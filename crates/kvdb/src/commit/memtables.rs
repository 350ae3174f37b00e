//! Changes that have their numbers enter the memtables: of a commit, and of the journal when it is
//! read again.

use vt_tree::{DeferredSlot, Seq, Value};

use super::deferred;
use crate::dictionary::DictionaryId;
use crate::journal::record::Op;
use crate::read::version::{Layer, Version};

/// Is told of a deferred value: dictionary, put, its number, and where it is.
type Told<'a> = dyn FnMut(DictionaryId, &Op, Seq, Option<(&Layer, DeferredSlot)>) + 'a;

/// Writes numbered changes into the newest memtables. Gives the bytes by which they grew, and those
/// of deferred values apart. `deferred` is told of each of these: where it is, or `None` when its
/// dictionary is gone (in a replay: `apply` has checked); changes of such are left out.
pub(crate) fn write_memtables(
    version: &Version,
    first: Seq,
    changes: &[(DictionaryId, Op)],
    deferred: &mut Told,
) -> (usize, usize) {
    /// Readers wait while a memtable is locked.
    const PER_LOCK: usize = 256;
    let (mut grown, mut waiting) = (0, 0);
    let mut seq = first;
    for stretch in changes.chunk_by(|a, b| a.0 == b.0) {
        let Some(layer) = version.trees.get(&stretch[0].0).and_then(|t| t.layers.first()) else {
            for (dict, op) in stretch {
                if matches!(op, Op::PutDeferred(..)) {
                    deferred(*dict, op, seq, None);
                }
                seq += 1;
            }
            continue;
        };
        let before = layer.memtable.bytes();
        for part in stretch.chunks(PER_LOCK) {
            let mut writer = layer.memtable.writer();
            for (dict, op) in part {
                match op {
                    // Copied: the bytes may be a slice of something much larger.
                    Op::Put(k, Value::Inline(v)) => writer.put_slice(k, seq, v),
                    Op::Put(k, v) => writer.put(k, seq, v.clone()),
                    Op::PutDeferred(k, v, _) => {
                        let slot = writer.put_deferred(k, seq, v.clone());
                        waiting += deferred::heap(v.len());
                        deferred(*dict, op, seq, Some((layer, slot)));
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
