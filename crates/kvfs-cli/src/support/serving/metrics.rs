//! `kvfs mount --metrics` and `kvfs serve --metrics`: the statistics of a store for Prometheus, as
//! text over HTTP.
//!
//! There is no password, so an address that other machines can reach is refused.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock, Weak};

use kvdb::{Kvdb, Stats};
use kvdb_wire::{RequestCounts, Server};
use kvfs::{Fs, Statistics, Views};

use crate::support::serving::http::{Listening, Request, Response};
use crate::support::serving::statistics::MountFigures;
use crate::support::terminal::output::{Failure, Outcome};

/// The sources of the statistics.
pub struct Sources {
    pub db: Kvdb,
    /// The files, unless the store is only read.
    pub files: Option<(Fs, Views)>,
    /// Set once the store is mounted.
    pub mount: Arc<OnceLock<MountFigures>>,
    /// Set once the store is served without a mount.
    pub served: Arc<OnceLock<Weak<Server>>>,
}

/// Serves metrics until the result is dropped.
pub fn start(address: SocketAddr, sources: Sources) -> Outcome<Listening> {
    let handler = |_| -> crate::support::serving::http::Handler {
        Arc::new(move |request| answer(request, &sources))
    };
    let listening = Listening::start(address, handler)
        .map_err(|e| Failure::io(format!("cannot listen on {address} for --metrics"), &e))?;
    tracing::info!("metrics at http://{}/metrics", listening.address());
    Ok(listening)
}

/// Returns whether the request's host is an IP address or `localhost`, or is missing. A page of
/// another site whose name resolves to this machine (DNS rebinding) sends that name.
fn names_this_machine(request: &Request) -> bool {
    let Some(host) = request.header("host") else { return !request.has("host") };
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && !host.ends_with(']') => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

fn answer(request: &Request, sources: &Sources) -> Response {
    if !names_this_machine(request) {
        return Response::text(421, "ask by the address that --metrics was given");
    }
    match (&request.method[..], &request.path[..]) {
        ("GET" | "HEAD", "/metrics") => {
            Response::new(200, "text/plain; version=0.0.4; charset=utf-8", text(sources))
        }
        ("GET" | "HEAD", _) => Response::text(404, "the figures are at /metrics"),
        _ => Response::text(405, "ask with GET"),
    }
}

/// Metrics in the format of Prometheus.
#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "gauge", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    /// Adds a value to the current family. The values of labels are our own names, and those of
    /// dictionaries.
    fn labelled(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let escaped =
            |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
    }

    /// Adds the space, the memory, the commits and the merges of a store.
    fn store(&mut self, stats: &Stats) {
        self.gauge(
            "kvfs_failed",
            "Whether the store takes no more writes.",
            stats.failed.is_some().into(),
        );
        self.gauge("kvfs_space_bytes", "Room in the store, used or not.", stats.space.total);
        self.gauge("kvfs_space_free_bytes", "Room for more data.", stats.space.free);
        self.gauge(
            "kvfs_memory_budget_bytes",
            "What the database may take of memory.",
            stats.memory,
        );
        self.gauge("kvfs_memtable_bytes", "Memory of the memtables.", stats.memtable_bytes);
        self.gauge("kvfs_cache_bytes", "Memory of the block cache.", stats.cache_bytes);
        self.gauge(
            "kvfs_journal_bytes",
            "What the journal takes on the device.",
            stats.journal_bytes,
        );

        self.counter("kvfs_commits_total", "Commits.", stats.commits);
        self.counter(
            "kvfs_committed_bytes_total",
            "Keys and values as committed.",
            stats.user_bytes,
        );
        self.counter("kvfs_journal_syncs_total", "Syncs of the journal.", stats.syncs);
        self.counter(
            "kvfs_commit_delays_total",
            "Commits slowed down because merges lagged.",
            stats.delays,
        );
        self.family(
            "kvfs_commit_delay_seconds_total",
            "counter",
            "How long commits were slowed down in all.",
        );
        let seconds = stats.delayed_micros as f64 / 1e6;
        let _ = writeln!(self.0, "kvfs_commit_delay_seconds_total {seconds}");
        self.counter(
            "kvfs_commit_stops_total",
            "Commits that had to wait for memory.",
            stats.stops,
        );
        self.counter("kvfs_flushes_total", "Flushes of memtables.", stats.flushes);
        self.counter("kvfs_compactions_total", "Compactions.", stats.compactions);
        self.counter(
            "kvfs_merged_bytes_total",
            "Bytes that flushes and merges wrote.",
            stats.merged_bytes,
        );
        self.counter(
            "kvfs_stitched_bytes_total",
            "Bytes that merges left where they were.",
            stats.stitched_bytes,
        );
    }

    /// Adds the traffic of the device, by purpose and by job.
    fn traffic(&mut self, stats: &Stats) {
        for (name, help) in [
            ("kvfs_device_read_bytes_total", "Bytes read from the device, by purpose."),
            ("kvfs_device_written_bytes_total", "Bytes written to the device, by purpose."),
            ("kvfs_device_reads_total", "Reads of the device, by purpose."),
            ("kvfs_device_writes_total", "Writes to the device, by purpose."),
        ] {
            self.family(name, "counter", help);
            for (purpose, io) in stats.io.iter() {
                let value = match name {
                    "kvfs_device_read_bytes_total" => io.read_bytes,
                    "kvfs_device_written_bytes_total" => io.write_bytes,
                    "kvfs_device_reads_total" => io.read_ops,
                    _ => io.write_ops,
                };
                self.labelled(name, &[("purpose", purpose.name())], value);
            }
        }
        let name = "kvfs_written_bytes_by_job_total";
        self.family(name, "counter", "Bytes written to the device, by what wrote them.");
        for (job, bytes) in stats.io.jobs() {
            self.labelled(name, &[("job", job.name())], bytes);
        }
        self.counter("kvfs_device_syncs_total", "Syncs of the device.", stats.io.syncs);
        self.counter(
            "kvfs_device_discarded_bytes_total",
            "Bytes given back to the host.",
            stats.io.discarded_bytes,
        );
    }

    /// Adds the runs of the dictionaries of the main branch.
    fn runs(&mut self, stats: &Stats) {
        self.family("kvfs_runs", "gauge", "Runs of a dictionary, by level.");
        for dictionary in stats.dictionaries.iter().filter(|d| d.info.branch.is_empty()) {
            for (level, runs) in dictionary.levels.iter().enumerate() {
                let labels =
                    [("dictionary", &dictionary.info.name[..]), ("level", &level.to_string())];
                self.labelled("kvfs_runs", &labels, runs.len() as u64);
            }
        }
    }

    /// Adds the files that are in memory, written and read.
    fn files(&mut self, files: &Statistics) {
        self.gauge("kvfs_inodes_in_memory", "Inodes in memory.", files.inodes);
        self.gauge(
            "kvfs_dirty_bytes",
            "Data of files that waits for its commit.",
            files.dirty_bytes,
        );
        self.counter(
            "kvfs_file_written_bytes_total",
            "Bytes that programs wrote to files.",
            files.bytes_written,
        );
        self.counter(
            "kvfs_file_read_bytes_total",
            "Bytes that programs read from files.",
            files.bytes_read,
        );
        self.counter(
            "kvfs_files_read_ahead_total",
            "Files whose pages were announced to the device, since they were likely to be read \
             next.",
            files.files_read_ahead,
        );
        let name = "kvfs_files_read_ahead_by_outcome_total";
        self.family(name, "counter", "Files that were read ahead, by what became of them.");
        self.labelled(name, &[("outcome", "used")], files.read_ahead_used);
        self.labelled(name, &[("outcome", "wasted")], files.read_ahead_wasted);
    }

    /// Adds the requests of the kernel.
    fn mount(&mut self, mount: &MountFigures) {
        if let Some(count) = mount.begun_anew {
            let help = "How often a keeper has begun the daemon anew.";
            self.counter("kvfs_daemon_begun_anew_total", help, count);
        }
        self.family("kvfs_fuse_requests_total", "counter", "Requests of the kernel, by kind.");
        for (kind, count) in mount.requests.seen() {
            self.labelled("kvfs_fuse_requests_total", &[("kind", &kind.to_lowercase())], count);
        }
        self.family(
            "kvfs_fuse_request_seconds_total",
            "counter",
            "How long answering requests of the kernel took in all, by kind.",
        );
        for (kind, time) in mount.requests.times() {
            let (kind, seconds) = (kind.to_lowercase(), time.as_secs_f64());
            let name = "kvfs_fuse_request_seconds_total";
            let _ = writeln!(self.0, "{name}{{kind=\"{kind}\"}} {seconds}");
        }
        if let Some(server) = mount.served.as_ref().and_then(Weak::upgrade) {
            self.wire(&server.counts_by_request());
        }
    }

    /// Adds the requests of mounts and programs elsewhere that this store is served to.
    fn wire(&mut self, requests: &[(&'static str, RequestCounts)]) {
        type Value = fn(&RequestCounts) -> u64;
        let families: [(&str, &str, Value); 3] = [
            ("kvfs_wire_requests_total", "Requests over a wire, by kind.", |of| of.requests),
            ("kvfs_wire_asked_bytes_total", "Bytes of requests over a wire, by kind.", |of| {
                of.asked
            }),
            ("kvfs_wire_answered_bytes_total", "Bytes of their answers, by kind.", |of| {
                of.answered
            }),
        ];
        for (name, help, value) in families {
            self.family(name, "counter", help);
            for (request, counts) in requests {
                self.labelled(name, &[("request", &request.to_lowercase())], value(counts));
            }
        }
    }
}

fn text(sources: &Sources) -> String {
    let stats = sources.db.stats();
    let mut page = Page::default();
    page.family("kvfs_build_info", "gauge", "The version of the program; its value is 1.");
    page.labelled("kvfs_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.store(&stats);
    page.traffic(&stats);
    page.runs(&stats);
    if let Some((fs, views)) = &sources.files {
        page.files(&fs.statistics());
        page.gauge("kvfs_transactions_open", "Open transactions.", views.list().len() as u64);
    }
    page.gauge("kvfs_snapshots", "Snapshots.", sources.db.snapshot_labels().len() as u64);
    page.gauge("kvfs_scrub_faults", "Places that the scrub could not read.", stats.scrub.faults);
    if let Some(mount) = sources.mount.get() {
        page.mount(mount);
    }
    if let Some(server) = sources.served.get().and_then(Weak::upgrade) {
        page.wire(&server.counts_by_request());
    }
    page.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Page::default();
        page.labelled("n", &[("a", "x\"y\\z\n"), ("b", "c")], 7);
        assert_eq!(page.0, "n{a=\"x\\\"y\\\\z\\n\",b=\"c\"} 7\n");
    }
}
