//! Rewrites a run without its unreadable parts. Lost data is replaced by tombstones instead of
//! being left out: otherwise items of older runs, which it had hidden, would be visible again.

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

/// Returns a run with all of `run` that can be read. A range of keys that cannot be read becomes a
/// range tombstone, a large value a tombstone; `removed` is called with each. For a large value it
/// may return another one, which takes its place. Sums, fences and filters are computed again;
/// large values stay where they are. Returns `None` if the result is empty.
pub fn rewrite(
    run: &Arc<Run>,
    options: &MergeOptions,
    removed: &mut dyn FnMut(Damage) -> Option<Bytes>,
) -> Result<Option<Arc<Run>>> {
    let mut builder = RunBuilder::new(run.cache(), options);
    let mut recent = SalvageCache::default();
    let mut pieces = SalvageCursor::new(run, b"");
    while let Some(piece) = pieces.next(&mut recent) {
        let item = match piece {
            Salvaged::Gap { start, end, what } => {
                removed(Damage { addr: 0, what, start: start.clone(), end: end.clone() });
                Item { key: start, seq: 0, body: Body::DeleteRange { end } }
            }
            Salvaged::Item(item) => match item.body {
                Body::Put(Value::Extent(e)) => match run.cache().read_value(&Value::Extent(e)) {
                    Ok(_) => item,
                    Err(error) => {
                        let end = Bytes::from(successor(&item.key));
                        let instead = removed(Damage {
                            addr: e.addr,
                            what: error.to_string(),
                            start: item.key.clone(),
                            end,
                        });
                        let put = |value| Body::Put(Value::Inline(value));
                        Item { body: instead.map_or(Body::Delete, put), ..item }
                    }
                },
                _ => item,
            },
        };
        builder.push_item(item)?;
    }
    Ok(builder.finish()?.0)
}
