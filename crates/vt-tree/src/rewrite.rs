//! Rewrites a run without its unreadable parts. Lost data is replaced by tombstones instead of
//! being left out: otherwise items of older runs that it had hidden would become visible again. The
//! caller may supply substitutes for lost data.

use std::sync::Arc;

use bytes::Bytes;

use crate::Result;
use crate::item::{Body, Item};
use crate::key::successor;
use crate::merge::MergeOptions;
use crate::merge::builder::RunBuilder;
use crate::run::Run;
use crate::salvage::{SalvageCache, SalvageCursor, Salvaged};
use crate::scrub::Damage;
use crate::value::Value;

/// Accepts a substitute for lost data: a key within the lost range, and its value. Keys must
/// ascend. Pairs with other keys are ignored.
pub type PutInstead<'a> = dyn FnMut(&[u8], Bytes) + 'a;

/// Returns a run with all readable data of `run`. A key range that cannot be read is replaced by
/// range tombstones, and a large value by a tombstone. Calls `removed` for each of them, in key
/// order. The pairs that `removed` puts replace the lost data, and the tombstones are cut around
/// them. Sums, fences and filters are computed again; large values stay where they are. Returns
/// `None` if the result is empty.
pub fn rewrite(
    run: &Arc<Run>,
    options: &MergeOptions,
    removed: &mut dyn FnMut(Damage, &mut PutInstead<'_>),
) -> Result<Option<Arc<Run>>> {
    let mut builder = RunBuilder::new(run.cache(), options);
    let mut recent = SalvageCache::default();
    let mut pieces = SalvageCursor::new(run, b"");
    while let Some(piece) = pieces.next(&mut recent) {
        let item = match piece {
            Salvaged::Gap { start, end, what } => {
                let damage = Damage { addr: 0, what, start: start.clone(), end: end.clone() };
                let mut gap = Gap { builder: &mut builder, from: start, end, written: Ok(()) };
                removed(damage, &mut |key, value| gap.put(key, value));
                gap.close()?;
                continue;
            }
            Salvaged::Item(item) => match item.body {
                Body::Put(Value::Extent(e)) => match run.cache().read_value(&Value::Extent(e)) {
                    Ok(_) => item,
                    Err(error) => {
                        let damage = Damage {
                            addr: e.addr,
                            what: error.to_string(),
                            start: item.key.clone(),
                            end: Bytes::from(successor(&item.key)),
                        };
                        let mut body = Body::Delete;
                        removed(damage, &mut |key, value| {
                            if *key == item.key[..] {
                                body = Body::Put(Value::Inline(value));
                            }
                        });
                        Item { body, ..item }
                    }
                },
                _ => item,
            },
        };
        builder.push_item(item)?;
    }
    Ok(builder.finish()?.0)
}

/// A key range that cannot be read. Since items of a run are disjoint, the range tombstone that
/// replaces it is cut around the substitutes.
struct Gap<'a> {
    builder: &'a mut RunBuilder,
    /// The first key for which nothing has been written yet.
    from: Bytes,
    end: Bytes,
    written: Result<()>,
}

impl Gap<'_> {
    fn put(&mut self, key: &[u8], value: Bytes) {
        if self.written.is_ok() && self.from[..] <= *key && *key < self.end[..] {
            self.written = self.write(key, value);
        }
    }

    fn write(&mut self, key: &[u8], value: Bytes) -> Result<()> {
        let key = Bytes::copy_from_slice(key);
        self.delete_up_to(key.clone())?;
        self.from = Bytes::from(successor(&key));
        let body = Body::Put(Value::Inline(value));
        self.builder.push_item(Item { key, seq: 0, body })
    }

    fn delete_up_to(&mut self, end: Bytes) -> Result<()> {
        if self.from >= end {
            return Ok(());
        }
        let key = std::mem::replace(&mut self.from, end.clone());
        self.builder.push_item(Item { key, seq: 0, body: Body::DeleteRange { end } })
    }

    /// Writes a tombstone for the rest of the range.
    fn close(mut self) -> Result<()> {
        std::mem::replace(&mut self.written, Ok(()))?;
        self.delete_up_to(self.end.clone())
    }
}
