//! The current activity of a mounted store: its statistics at two moments, and the differences.

use std::path::{Path, PathBuf};
use std::time::Instant;

use kvdb_server::Reply;
use serde_json::{Map, Value, json};

use crate::support::mounts::mounted::{Mounted, fields};
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::with_paths;

/// The statistics of a mounted store at one moment.
pub struct Sample {
    at: Instant,
    pub mount_point: PathBuf,
    /// The object that `kvfs stat --json` prints.
    pub store: Value,
    /// The statistics of the socket server.
    pub server: Value,
    /// The reply to `KVFS.ZONES`.
    pub zones: Value,
    pub transactions: Vec<Map<String, Value>>,
}

/// Begins the names of the commands that take samples.
const OF_SAMPLES: &str = "kvfs.";
/// The number of `TXN` commands that each sample sends after its figures were read.
const LISTS: u64 = 1;

/// One kind of request or command.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    pub name: String,
    /// The count since the mount.
    pub count: u64,
    pub per_second: f64,
    /// The mean latency since the previous sample, or overall if there was no such request since.
    pub mean_micros: f64,
}

/// Activity per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub requests: f64,
    pub commands: f64,
    pub commits: f64,
    pub written_bytes: f64,
    pub read_bytes: f64,
}

/// Parses a JSON reply of the daemon.
pub fn object(reply: Reply) -> Outcome<Value> {
    let Reply::Bulk(bytes) = reply else { return Err(odd()) };
    serde_json::from_slice(&bytes).map_err(|_| odd())
}

/// Parses a list of maps in a reply of the daemon.
pub fn list(reply: Reply) -> Outcome<Vec<Map<String, Value>>> {
    let Reply::Array(all) = reply else { return Err(odd()) };
    all.into_iter().map(fields).collect()
}

fn odd() -> Failure {
    Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply")
}

impl Sample {
    /// Takes a sample of the store mounted at `target`, with at most this many cells of zones.
    pub fn take(target: &Path, cells: usize) -> Outcome<Sample> {
        let mut mounted = Mounted::find(target)?;
        let mut figures = object(mounted.call(&[b"KVFS.STAT"])?)?;
        let at = Instant::now();
        let zones = object(mounted.call(&[b"KVFS.ZONES", cells.to_string().as_bytes()])?)?;
        let transactions = list(mounted.txn(&["LIST"])?)?;
        let (store, server) = (figures["store"].take(), figures["server"].take());
        Ok(Sample { at, mount_point: mounted.mount_point, store, server, zones, transactions })
    }

    fn seconds_since(&self, before: &Sample) -> f64 {
        self.at.duration_since(before.at).as_secs_f64().max(1e-3)
    }

    /// Returns the number of commands since the mount, without those that take samples.
    fn commands(&self) -> u64 {
        let all = self.server["by_command"].as_object().into_iter().flatten();
        let of_samples = all.filter(|(name, _)| name.starts_with(OF_SAMPLES));
        let of_samples: u64 = of_samples.map(|(_, figures)| count(&figures["calls"])).sum();
        count(&self.server["commands"]).saturating_sub(of_samples)
    }

    /// Returns the activity per second since `before`, without what the two samples have caused.
    pub fn rates(&self, before: &Sample) -> Rates {
        let seconds = self.seconds_since(before);
        // The counters restart at zero when a store is mounted again.
        let rate = |read: &dyn Fn(&Sample) -> u64| {
            read(self).saturating_sub(read(before)) as f64 / seconds
        };
        Rates {
            requests: rate(&|s| sum(&s.store["requests"], |v| v)),
            commands: self.commands().saturating_sub(before.commands() + LISTS) as f64 / seconds,
            commits: rate(&|s| count(&s.store["commits"]["count"])),
            written_bytes: rate(&|s| sum(&s.store["io"], |io| &io["write_bytes"])),
            read_bytes: rate(&|s| sum(&s.store["io"], |io| &io["read_bytes"])),
        }
    }

    /// Returns the requests of the kernel and the commands of clients, the most frequent first,
    /// without those that take samples.
    pub fn operations(&self, before: Option<&Sample>) -> Vec<Operation> {
        let seconds = before.map(|before| self.seconds_since(before));
        let one = |name: String, now: (u64, u64), then: (u64, u64)| {
            let fresh = now.0.saturating_sub(then.0);
            let micros = now.1.saturating_sub(then.1);
            let (count, time) = if fresh > 0 { (fresh, micros) } else { now };
            Operation {
                name,
                count: now.0,
                per_second: seconds.map_or(0.0, |seconds| fresh as f64 / seconds),
                mean_micros: time as f64 / count.max(1) as f64,
            }
        };
        let request = |sample: &Sample, kind: &str| {
            (count(&sample.store["requests"][kind]), count(&sample.store["request_micros"][kind]))
        };
        let command = |sample: &Sample, name: &str| {
            let figures = &sample.server["by_command"][name];
            (count(&figures["calls"]), count(&figures["microseconds"]))
        };
        let names = |of: &Value| of.as_object().into_iter().flat_map(Map::keys).cloned().collect();
        let (requests, commands): (Vec<String>, Vec<String>) =
            (names(&self.store["requests"]), names(&self.server["by_command"]));
        let then = |read: &dyn Fn(&Sample, &str) -> (u64, u64), name: &str| {
            before.map_or((0, 0), |before| read(before, name))
        };
        let mut all: Vec<Operation> = Vec::new();
        for kind in requests {
            let shown = kind.to_lowercase().replace('_', " ");
            all.push(one(shown, request(self, &kind), then(&request, &kind)));
        }
        for name in commands.into_iter().filter(|name| !name.starts_with(OF_SAMPLES)) {
            let mut then = then(&command, &name);
            if name == "txn" && before.is_some() {
                then.0 += LISTS;
            }
            all.push(one(name.to_uppercase(), command(self, &name), then));
        }
        all.sort_by(|a, b| {
            b.per_second
                .total_cmp(&a.per_second)
                .then(b.count.cmp(&a.count))
                .then(a.name.cmp(&b.name))
        });
        all
    }

    /// Returns the whole sample as JSON, with the activity since `before`.
    pub fn json(&self, before: &Sample) -> Value {
        let rates = self.rates(before);
        let operation = |o: &Operation| {
            json!({
                "name": o.name, "count": o.count, "per_second": o.per_second,
                "mean_micros": o.mean_micros,
            })
        };
        let value = json!({
            "seconds": self.seconds_since(before),
            "per_second": {
                "requests": rates.requests, "commands": rates.commands, "commits": rates.commits,
                "written_bytes": rates.written_bytes, "read_bytes": rates.read_bytes,
            },
            "operations": self.operations(Some(before)).iter().map(operation).collect::<Vec<_>>(),
            "transactions": self.transactions, "store": self.store, "clients": self.server,
            "zones": self.zones,
        });
        with_paths(value, &[("mount_point", Some(&self.mount_point))])
    }
}

/// Returns a number of the daemon's JSON, or 0 if it is missing.
pub fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Sums a number over all members of an object, without those that lack it.
fn sum(object: &Value, read: impl Fn(&Value) -> &Value) -> u64 {
    object.as_object().into_iter().flat_map(Map::values).map(|member| count(read(member))).sum()
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns two samples of a store, two seconds apart.
    pub fn samples() -> (Sample, Sample) {
        let at = Instant::now();
        let sample = |late: u64, at: Instant| {
            Sample {
            at,
            mount_point: "/mnt/work".into(),
            store: json!({
                "space": {"total": 10u64 << 30, "free": 6u64 << 30},
                "memory": {"budget": 320 << 20, "memtables": 12 << 20, "cache": 64 << 20},
                "commits": {"count": 100 + 40 * late, "bytes": 4 << 20}, "write_amplification": 1.25,
                "io": {
                    "journal": {"write_bytes": 1000 + 2048 * late, "read_bytes": 0},
                    "pages": {"write_bytes": 5000 + 4096 * late, "read_bytes": 10},
                    "syncs": 7 + late, "discarded_bytes": 0,
                },
                "merges": {"flushes": 3, "compactions": 2, "written_bytes": 5 << 20, "stitched_bytes": 9 << 20},
                "requests": {"WRITE": 10 + 20 * late, "READDIRPLUS": 4, "COPY_FILE_RANGE": 1},
                "request_micros": {"WRITE": 100 + 600 * late, "READDIRPLUS": 400, "COPY_FILE_RANGE": 9},
                "dictionaries": [
                    {"name": "nmap", "memtable_bytes": 4096, "levels": [
                        [{"items": 1200, "bytes": 70_000, "block_spans": 3, "value_spans": 0}], [],
                        [{"items": 90_000, "bytes": 5 << 20, "block_spans": 40, "value_spans": 2}],
                    ]},
                    {"name": "empty", "memtable_bytes": 0, "levels": [[]]},
                ],
            }),
            server: json!({
                "connections": 4, "commands": 50 + 101 * late,
                "by_command": {
                    "get": {"calls": 40 + 10 * late, "microseconds": 400 + 50 * late},
                    "kvfs.stat": {"calls": 9 + 90 * late, "microseconds": 1000},
                },
            }),
            zones: json!({
                "zone_bytes": 8 << 20, "zones": 6, "zones_per_cell": 1,
                "fields": ["used", "open", "given_back", "live_bytes", "purpose", "age"],
                "cells": [
                    [1, 0, 0, 0, "superblock", null], [1, 0, 0, 8 << 20, "pages", 3],
                    [1, 1, 0, 4 << 20, "pages", 0], [0, 0, 0, 0, null, null], [0, 0, 1, 0, null, null],
                    [1, 0, 0, 8 << 20, null, null],
                ],
            }),
            transactions: vec![
                json!({
                    "id": 17, "isolation": "si", "label": "spring\u{1b}[2J prices", "age_ms": 65_000,
                    "idle_ms": 900, "changes": 12, "memory": 8192, "run_bytes": 0,
                })
                .as_object()
                .cloned()
                .unwrap_or_default(),
            ],
        }
        };
        (sample(0, at), sample(1, at + Duration::from_secs(2)))
    }

    #[test]
    fn rates_are_what_was_done_between_two_samples() {
        let (before, now) = samples();
        let rates = now.rates(&before);
        let want = Rates {
            requests: 10.0,
            commands: 5.0,
            commits: 20.0,
            written_bytes: 3072.0,
            read_bytes: 0.0,
        };
        assert_eq!(rates, want);
        assert_eq!(before.rates(&now).commits, 0.0, "a store that was mounted anew");
    }

    #[test]
    fn who_only_looks_at_an_idle_store_sees_no_activity() {
        let (mut before, mut now) = samples();
        let server = |samples: u64| {
            json!({
                "connections": 1, "commands": 3 * samples,
                "by_command": {
                    "kvfs.stat": {"calls": samples, "microseconds": 10 * samples},
                    "kvfs.zones": {"calls": samples, "microseconds": 10 * samples},
                    "txn": {"calls": samples, "microseconds": 10 * samples},
                },
            })
        };
        (before.server, now.server) = (server(7), server(8));
        assert_eq!(now.rates(&before).commands, 0.0);
        let operations = now.operations(Some(&before));
        let list = operations.iter().find(|one| one.name == "TXN").map(|one| one.per_second);
        assert_eq!(list, Some(0.0));
    }

    #[test]
    fn the_most_frequent_operation_comes_first_with_the_times_of_just_now() {
        let (before, now) = samples();
        let shown: Vec<_> = now
            .operations(Some(&before))
            .into_iter()
            .map(|o| (o.name, o.count, o.per_second, o.mean_micros))
            .collect();
        let want = [
            ("write", 30, 10.0, 30.0),
            ("GET", 50, 5.0, 5.0),
            ("readdirplus", 4, 0.0, 100.0),
            ("copy file range", 1, 0.0, 9.0),
        ];
        assert_eq!(shown, want.map(|(name, n, rate, mean)| (name.to_string(), n, rate, mean)));
        assert_eq!(now.operations(None)[0].name, "GET", "without an earlier one, by their number");
    }
}
