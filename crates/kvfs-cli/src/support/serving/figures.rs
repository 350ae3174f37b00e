//! Formats the statistics of a store's engine as JSON.

use kvdb_wire::RequestCounts;
use serde_json::{Map, Value, json};

use crate::support::stores::device_profile;

/// The committed bytes from which on write amplification is meaningful: opening, closing and
/// examining a store write a little without any commits.
const MEANINGFUL: u64 = 1 << 20;

/// Returns the write amplification in the result of [`engine`], if it is meaningful.
pub fn shown_amplification(all: &Value) -> Option<f64> {
    let committed = all["commits"]["bytes"].as_u64().unwrap_or(0);
    all["write_amplification"].as_f64().filter(|_| committed >= MEANINGFUL)
}

/// Formats the requests to object storage as JSON: bytes unless the name says otherwise, counts
/// since the store was opened.
pub fn remote(stats: &kvdb::RemoteStats) -> Value {
    let by_purpose: Map<String, Value> = zones::Purpose::ALL
        .iter()
        .zip(stats.gets.iter().zip(&stats.got_bytes))
        .filter(|(_, (gets, _))| **gets > 0)
        .map(|(purpose, (gets, bytes))| {
            (purpose.name().to_string(), json!({"gets": gets, "bytes": bytes}))
        })
        .collect();
    json!({
        "zones": stats.zones, "cached_bytes": stats.cached_bytes, "given_up_zones": stats.given_up,
        "waiting": stats.waiting, "waits": stats.waits, "second_gets": stats.second_gets,
        "by_purpose": by_purpose,
    })
}

/// Formats the engine's statistics as JSON: bytes unless the name says otherwise, counts since the
/// store was opened.
pub fn engine(stats: &kvdb::Stats) -> Map<String, Value> {
    let mut io: Map<String, Value> = stats
        .io
        .iter()
        .map(|(purpose, p)| {
            let figures = json!({
                "read_ops": p.read_ops, "read_bytes": p.read_bytes, "write_ops": p.write_ops, "write_bytes": p.write_bytes,
                "seeks": p.seeks,
            });
            (purpose.name().to_string(), figures)
        })
        .collect();
    io.insert("syncs".into(), stats.io.syncs.into());
    io.insert("discarded_bytes".into(), stats.io.discarded_bytes.into());
    let written_by_job: Map<String, Value> =
        stats.io.jobs().map(|(job, bytes)| (job.name().to_string(), Value::from(bytes))).collect();
    let all = json!({
        "device": {"profile": device_profile::name(stats.profile), "seek_bytes": stats.seek_bytes},
        "space": {"total": stats.space.total, "free": stats.space.free},
        "unchanged_dictionaries": stats.unchanged_dictionaries,
        "memory": {"budget": stats.memory, "memtables": stats.memtable_bytes, "cache": stats.cache_bytes},
        "journal_bytes": stats.journal_bytes,
        "scrub": {
            "running": stats.scrub.running, "complete": stats.scrub.complete, "bytes": stats.scrub.bytes,
            "bytes_total": stats.scrub.bytes_total, "faults": stats.scrub.faults, "completed": stats.scrub.completed,
        },
        "io": io,
        "written_by_job": written_by_job,
        "commits": {
            "count": stats.commits, "bytes": stats.user_bytes, "bound_in_place_bytes": stats.bound_bytes, "discarded_bytes": stats.discarded_bytes, "syncs": stats.syncs,
            "delays": stats.delays, "delayed_micros": stats.delayed_micros, "stops": stats.stops,
        },
        "merges": {
            "flushes": stats.flushes, "compactions": stats.compactions, "written_bytes": stats.merged_bytes,
            "stitched_bytes": stats.stitched_bytes,
        },
        "write_amplification": stats.write_amplification(),
        "failed": stats.failed,
    });
    let mut all = match all {
        Value::Object(all) => all,
        _ => Map::new(),
    };
    // There may be thousands, and `json!` would copy them.
    all.insert("dictionaries".into(), stats.dictionaries.iter().map(dictionary).collect());
    all
}

/// Formats the statistics of a dictionary as JSON.
fn dictionary(d: &kvdb::DictionaryStats) -> Value {
    let levels = d.levels.iter().map(|runs| {
        let runs = runs.iter().map(|r| {
            json!({
                "items": r.items, "bytes": r.bytes, "height": r.height,
                "block_bytes": r.block_bytes, "block_spans": r.block_spans,
                "value_bytes": r.value_bytes, "value_spans": r.value_spans,
                "tombstones": r.tombstones, "range_tombstones": r.range_tombstones,
            })
        });
        runs.collect::<Value>()
    });
    json!({
        "name": d.info.name, "branch": d.info.branch, "id": d.info.id.0, "reserved": d.info.options.reserved, "stitch_at": d.info.options.stitch_at,
        "separate_at": d.info.options.separate_at, "short_outside": d.info.short_outside, "memtable_bytes": d.memtable_bytes,
        "levels": levels.collect::<Value>(),
    })
}

/// Formats request counts as JSON, by name.
pub fn requests(all: &[(&'static str, RequestCounts)]) -> Value {
    let one = |(name, counts): &(&'static str, RequestCounts)| {
        let RequestCounts { requests, asked, answered } = counts;
        json!({"request": name, "count": requests, "asked": asked, "answered": answered})
    };
    all.iter().map(one).collect()
}
