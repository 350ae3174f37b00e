//! Divides a merge of several runs into parts of about equal work, reading index entries only.
//! Every split point is a lower fence of an index node (in small runs, of a block) of one of the
//! runs, so that this run is divided without reading the data beneath.

use std::sync::Arc;

use bytes::Bytes;

use crate::Result;
use crate::run::Run;

/// Minimum number of subtrees per part into which a run is resolved.
const FINE: usize = 16;

/// Returns up to `pieces - 1` ascending keys that divide the runs into ranges of about equal
/// weight. The weight is the bytes of tuple blocks and, if `values` is set, of large values. Small
/// runs may yield fewer keys.
pub fn split_points(runs: &[Arc<Run>], pieces: usize, values: bool) -> Result<Vec<Bytes>> {
    let mut all: Vec<(Bytes, u64)> = Vec::new();
    for run in runs {
        let (root, mut level) = run.root();
        let mut entries = vec![root.clone()];
        while level > 0 && entries.len() < FINE * pieces {
            let mut below = Vec::new();
            for entry in &entries {
                below.extend(run.cache().node(entry, level)?.entries);
            }
            (entries, level) = (below, level - 1);
        }
        let weight = |e: &crate::index::entry::Entry| {
            e.block_bytes + e.items + if values { e.value_bytes } else { 0 }
        };
        all.extend(entries.into_iter().map(|e| (e.low.clone(), weight(&e))));
    }
    all.sort_unstable();
    let total: u64 = all.iter().map(|(_, weight)| weight).sum();
    let mut points: Vec<Bytes> = Vec::new();
    let mut before = 0;
    for (low, weight) in &all {
        let next = points.len() as u64 + 1;
        let due = next < pieces as u64
            && before as u128 * pieces as u128 >= total as u128 * u128::from(next);
        if due
            && all.first().is_some_and(|(first, _)| first < low)
            && points.last().is_none_or(|last| last < low)
        {
            // Copy the key: a slice would keep the whole node in memory.
            points.push(Bytes::copy_from_slice(low));
        }
        before += weight;
    }
    Ok(points)
}
