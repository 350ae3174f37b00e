//! The result of a phase of a case, as one JSON line.

use serde::{Deserialize, Serialize};

/// Figures of one phase (a load, or one kind of read after it). Bytes, seconds and counts unless
/// the name says otherwise; what does not apply is left out. "Of the process" is what
/// `/proc/self/io` counts: bytes sent to storage, caches in between.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    pub engine: String,
    /// `sequential`, `random`, `append`, `overwrite`, `write-delete-write`, `ycsb-a` … `ycsb-f`.
    pub load: String,
    /// `load`, or what was read after the load: `get-cold`, `scan-warm`, …
    pub phase: String,
    pub value_bytes: u64,
    /// Keys and values of the data set as asked for, MiB.
    pub data_mib: u64,
    pub round: u32,
    pub journal: bool,
    pub memory: u64,
    pub clients: u64,
    /// Puts that the adapter makes one transaction.
    pub batch: u64,
    /// Ranges of the load `append`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranges: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stitch_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub separate_at: Option<u32>,
    pub ops: u64,
    pub seconds: f64,
    pub ops_per_s: f64,
    /// Keys and values, in 10^6 bytes.
    pub mb_per_s: f64,
    /// The time from the last operation until the engine was quiet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops_per_s_settled: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst_put_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_put_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_put_us: Option<f64>,
    /// Time in puts that took more than 10 ms each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalled_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst_read_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_read_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_read_us: Option<f64>,
    /// Keys and values that the client wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_bytes: Option<u64>,
    /// Bytes written by the process per user byte when the last put returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_amp_load: Option<f64>,
    /// Bytes written by the process per user byte when the engine was quiet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_amp: Option<f64>,
    /// What the file system's device wrote per user byte, the writes of all processes included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_write_amp: Option<f64>,
    /// Bytes that live tuples have, keys and values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_bytes: Option<u64>,
    /// Blocks of all files, settled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space_bytes: Option<u64>,
    /// The largest value of all samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space_peak_bytes: Option<u64>,
    pub peak_rss: u64,
    /// Largest anonymous part of it, sampled: without files that are mapped.
    pub peak_rss_anon: u64,
    pub cpu_s: f64,
    /// The part of this in threads that merge, in seconds. It is absent for engines that do not
    /// name these threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_cpu_s: Option<f64>,
    /// Read from storage by the process, per operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes_per_op: Option<f64>,
    /// Requests that the device completed per operation, those of all processes included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_reads_per_op: Option<f64>,
    /// Gets that found nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses: Option<u64>,
    /// Memory that the cgroup allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    /// Seconds and operations done by then, for the plot.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub progress: Vec<(f64, u64)>,
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub figures: serde_json::Value,
}
