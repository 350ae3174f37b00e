//! `INFO`: the state of the server, in the sections and under the names that programs for Redis
//! look for. Quantities that this server does not have or does not count are reported as 0.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use super::{functions, is};
use crate::channels::By;
use crate::dictionaries;
use crate::failure::Outcome;
use crate::keyspace::types_name;
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

/// The version of Redis whose commands and errors this server follows, for clients that request a
/// version.
pub const REDIS_VERSION: &str = "7.0.15";

/// Length of a tick in microseconds. A tick is the unit of time in `/proc/self/stat`.
const TICK: u64 = 10_000;

/// Returns the value of a line of a file under `/proc` in bytes. The file states the value in kB.
fn kept_by_system(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Returns the system time and the user time of the process, and of the child processes for which
/// it has waited, in microseconds.
fn processor_time() -> [u64; 4] {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may contain any character.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut ticks = rest.split_ascii_whitespace().skip(11).map(|word| word.parse().unwrap_or(0));
    let mut next = || ticks.next().unwrap_or(0u64) * TICK;
    let (user, system, user_of_children, system_of_children) = (next(), next(), next(), next());
    [system, user, system_of_children, user_of_children]
}

/// Returns a number of bytes in the human-readable form of Redis.
fn human(bytes: u64) -> String {
    const UNITS: [char; 4] = ['K', 'M', 'G', 'T'];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let (mut size, mut unit) = (bytes as f64 / 1024.0, 0);
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        (size, unit) = (size / 1024.0, unit + 1);
    }
    format!("{size:.2}{}", UNITS[unit])
}

/// The text of a section, in which each line is a name and its value.
struct Lines<'a>(&'a mut String);

impl Lines<'_> {
    fn add(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = write!(self.0, "{name}:{value}\r\n");
    }
    /// Adds names whose value is 0, because this server has nothing to count under them.
    fn none(&mut self, names: &[&str]) {
        names.iter().for_each(|name| self.add(name, 0));
    }
    fn bytes(&mut self, name: &str, bytes: u64) {
        self.add(name, bytes);
        self.add(&format!("{name}_human"), human(bytes));
    }
    fn seconds(&mut self, name: &str, micros: u64) {
        self.add(name, format_args!("{}.{:06}", micros / 1_000_000, micros % 1_000_000));
    }
}

type Section = fn(&Session, &mut Lines<'_>);

const SECTIONS: [(&str, Section); 13] = [
    ("server", server),
    ("clients", clients),
    ("memory", memory),
    ("persistence", persistence),
    ("stats", stats),
    ("replication", replication),
    ("cpu", processor),
    ("modules", |_, _| {}),
    ("commandstats", commands),
    ("errorstats", errors),
    ("cluster", |_, t| t.add("cluster_enabled", 0)),
    ("keyspace", keyspace),
    ("store", store),
];

pub fn info(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let all = args.len() == 1
        || args.from(1).any(|a| is(a, "all") || is(a, "everything") || is(a, "default"));
    let mut text = String::new();
    for (name, write) in SECTIONS {
        if all || args.from(1).any(|a| is(a, name)) {
            let separator = if text.is_empty() { "" } else { "\r\n" };
            let (first, rest) = name.split_at(1);
            let title = match name {
                "cpu" => "CPU".to_string(),
                _ => first.to_ascii_uppercase() + rest,
            };
            let _ = write!(text, "{separator}# {title}\r\n");
            write(s, &mut Lines(&mut text));
        }
    }
    out.verbatim(&text);
    Ok(())
}

fn server(s: &Session, t: &mut Lines<'_>) {
    let (m, now) = (&s.shared.metrics, s.db().wall_clock());
    t.add("redis_version", REDIS_VERSION);
    t.add("redis_git_sha1", "00000000");
    t.none(&["redis_git_dirty", "redis_build_id"]);
    t.add("kvfs_version", env!("CARGO_PKG_VERSION"));
    t.add("redis_mode", "standalone");
    let kernel = |file: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{file}"));
        text.unwrap_or_default().trim().to_string()
    };
    let (name, release) = (kernel("ostype"), kernel("osrelease"));
    t.add("os", format_args!("{name} {release} {}", std::env::consts::ARCH));
    t.add("arch_bits", usize::BITS);
    t.add("monotonic_clock", "POSIX clock_gettime");
    t.add("multiplexing_api", "epoll");
    t.add("process_id", std::process::id());
    t.add("process_supervised", "no");
    t.add("run_id", &m.run_id);
    t.add("tcp_port", s.shared.access.tcp().map_or(0, |address| address.port()));
    t.add("server_time_usec", now.as_micros());
    t.add("uptime_in_seconds", m.started.elapsed().as_secs());
    t.add("uptime_in_days", m.started.elapsed().as_secs() / 86_400);
    t.add("hz", 10);
    t.add("configured_hz", 10);
    t.add("lru_clock", now.as_secs() & 0xff_ffff);
    let program = std::env::current_exe().unwrap_or_default();
    t.add("executable", program.display());
    t.add("config_file", "");
    t.none(&["io_threads_active"]);
    t.add("unixsocket", s.shared.access.socket());
    t.add("tcp_address", s.shared.access.tcp().map(|a| a.to_string()).unwrap_or_default());
}

fn clients(s: &Session, t: &mut Lines<'_>) {
    t.add("connected_clients", s.shared.metrics.connected.load(Relaxed));
    t.none(&["cluster_connections"]);
    t.add("maxclients", s.shared.access.most_connections());
    t.none(&["client_recent_max_input_buffer", "client_recent_max_output_buffer"]);
    t.add("blocked_clients", s.shared.waiters.count());
    let all = s.shared.clients.all();
    t.add("pubsub_clients", all.iter().filter(|client| client.listens()).count());
    t.add("tracking_clients", s.shared.tracking.count());
    t.none(&["clients_in_timeout_table"]);
}

/// Writes the memory section. There is no `maxmemory`: only replies and requests are counted, and
/// the store has its own bound.
fn memory(s: &Session, t: &mut Lines<'_>) {
    let resident = kept_by_system("/proc/self/status", "VmRSS");
    let peak = kept_by_system("/proc/self/status", "VmHWM");
    t.bytes("used_memory", resident);
    t.bytes("used_memory_rss", resident);
    t.bytes("used_memory_peak", peak);
    let part = 100.0 * resident as f64 / peak.max(1) as f64;
    t.add("used_memory_peak_perc", format_args!("{part:.2}%"));
    t.none(&["used_memory_overhead", "used_memory_startup"]);
    t.add("used_memory_dataset", resident);
    t.add("used_memory_dataset_perc", "100.00%");
    for name in ["allocator_allocated", "allocator_active", "allocator_resident"] {
        t.add(name, resident);
    }
    t.bytes("total_system_memory", kept_by_system("/proc/meminfo", "MemTotal"));
    t.bytes("used_memory_lua", 0);
    t.none(&["used_memory_vm_eval", "used_memory_scripts_eval"]);
    t.add("number_of_cached_scripts", s.shared.scripts.count());
    let (libraries, functions) = functions::counts(s);
    t.add("number_of_functions", functions);
    t.add("number_of_libraries", libraries);
    t.none(&["used_memory_vm_functions"]);
    t.bytes("used_memory_vm_total", 0);
    t.none(&["used_memory_functions"]);
    t.bytes("used_memory_scripts", 0);
    t.bytes("maxmemory", 0);
    t.add("maxmemory_policy", "noeviction");
    for name in ["allocator_frag", "allocator_rss", "rss_overhead", "mem_fragmentation"] {
        t.add(&format!("{name}_ratio"), "1.00");
        t.add(&format!("{name}_bytes"), 0);
    }
    t.none(&["mem_not_counted_for_evict", "mem_replication_backlog"]);
    t.none(&["mem_total_replication_buffers", "mem_clients_slaves"]);
    let memory = &s.shared.memory;
    let of_clients = [memory.unsent(), memory.ahead(), memory.whole_replies()];
    t.add("mem_clients_normal", of_clients.iter().map(|budget| budget.used()).sum::<usize>());
    t.none(&["mem_cluster_links", "mem_aof_buffer"]);
    t.add("mem_allocator", "system");
    t.none(&["active_defrag_running", "lazyfree_pending_objects", "lazyfreed_objects"]);
}

/// `MEMORY STATS`: replies with the fields of `INFO memory` under other names. The number of keys
/// is not among them, because the keys would have to be counted.
pub fn memory_stats(s: &Session, out: &mut Output) {
    let resident = kept_by_system("/proc/self/status", "VmRSS");
    let peak = kept_by_system("/proc/self/status", "VmHWM");
    let memory = &s.shared.memory;
    let of_clients = [memory.unsent(), memory.ahead(), memory.whole_replies()];
    let of_clients: u64 = of_clients.iter().map(|budget| budget.used() as u64).sum();
    let numbers = [
        ("peak.allocated", peak),
        ("total.allocated", resident),
        ("startup.allocated", 0),
        ("replication.backlog", 0),
        ("clients.slaves", 0),
        ("clients.normal", of_clients),
        ("cluster.links", 0),
        ("aof.buffer", 0),
        ("lua.caches", 0),
        ("functions.caches", 0),
        ("overhead.total", 0),
        ("dataset.bytes", resident),
        ("allocator.allocated", resident),
        ("allocator.active", resident),
        ("allocator.resident", resident),
        ("allocator-fragmentation.bytes", 0),
        ("allocator-rss.bytes", 0),
        ("rss-overhead.bytes", 0),
        ("fragmentation.bytes", 0),
    ];
    let ratios = [
        ("dataset.percentage", 100.0),
        ("peak.percentage", 100.0 * resident as f64 / peak.max(1) as f64),
        ("allocator-fragmentation.ratio", 1.0),
        ("allocator-rss.ratio", 1.0),
        ("rss-overhead.ratio", 1.0),
        ("fragmentation", 1.0),
    ];
    out.map(numbers.len() + ratios.len());
    for (name, number) in numbers {
        out.bulk(name.as_bytes());
        out.integer(i64::try_from(number).unwrap_or(i64::MAX));
    }
    for (name, ratio) in ratios {
        out.bulk(name.as_bytes());
        out.double(ratio);
    }
}

fn persistence(s: &Session, t: &mut Lines<'_>) {
    t.none(&["loading", "async_loading"]);
    t.none(&["current_cow_peak", "current_cow_size", "current_cow_size_age"]);
    t.add("current_fork_perc", "0.00");
    t.none(&["current_save_keys_processed", "current_save_keys_total"]);
    t.none(&["rdb_changes_since_last_save", "rdb_bgsave_in_progress"]);
    t.add("rdb_last_save_time", s.shared.owner.last_sync());
    t.add("rdb_last_bgsave_status", "ok");
    t.none(&["rdb_last_bgsave_time_sec"]);
    t.add("rdb_current_bgsave_time_sec", -1);
    t.none(&["rdb_saves", "rdb_last_cow_size"]);
    t.none(&["rdb_last_load_keys_expired", "rdb_last_load_keys_loaded"]);
    t.add("aof_enabled", 1);
    t.none(&["aof_rewrite_in_progress", "aof_rewrite_scheduled"]);
    t.add("aof_last_rewrite_time_sec", -1);
    t.add("aof_current_rewrite_time_sec", -1);
    t.add("aof_last_bgrewrite_status", "ok");
    t.none(&["aof_rewrites", "aof_rewrites_consecutive_failures"]);
    t.add("aof_last_write_status", if s.shared.db.takes_writes().is_ok() { "ok" } else { "err" });
    t.none(&["aof_last_cow_size", "module_fork_in_progress", "module_fork_last_cow_size"]);
}

fn stats(s: &Session, t: &mut Lines<'_>) {
    let m = &s.shared.metrics;
    t.add("total_connections_received", m.accepted.load(Relaxed));
    t.add("total_commands_processed", m.commands.load(Relaxed));
    t.none(&["instantaneous_ops_per_sec"]);
    t.add("total_net_input_bytes", m.bytes_in.load(Relaxed));
    t.add("total_net_output_bytes", m.bytes_out.load(Relaxed));
    t.none(&["total_net_repl_input_bytes", "total_net_repl_output_bytes"]);
    for name in ["input", "output", "input_repl", "output_repl"] {
        t.add(&format!("instantaneous_{name}_kbps"), "0.00");
    }
    t.add("rejected_connections", m.rejected.load(Relaxed));
    t.none(&["sync_full", "sync_partial_ok", "sync_partial_err"]);
    t.add("expired_keys", m.expired.load(Relaxed));
    t.add("expired_stale_perc", "0.00");
    t.none(&["expired_time_cap_reached_count", "expire_cycle_cpu_milliseconds"]);
    t.none(&["evicted_keys", "evicted_clients"]);
    t.none(&["total_eviction_exceeded_time", "current_eviction_exceeded_time"]);
    t.none(&["keyspace_hits", "keyspace_misses"]);
    t.add("pubsub_channels", s.shared.channels.count(By::Channel));
    t.add("pubsub_patterns", s.shared.channels.count(By::Pattern));
    t.add("pubsubshard_channels", s.shared.channels.count(By::Shard));
    t.none(&["latest_fork_usec", "total_forks", "migrate_cached_sockets"]);
    t.none(&["slave_expires_tracked_keys", "active_defrag_hits", "active_defrag_misses"]);
    t.none(&["active_defrag_key_hits", "active_defrag_key_misses"]);
    t.none(&["total_active_defrag_time", "current_active_defrag_time"]);
    let tracked = s.shared.tracking.counts();
    t.add("tracking_total_keys", tracked.keys);
    t.add("tracking_total_items", tracked.readers);
    t.add("tracking_total_prefixes", tracked.prefixes);
    t.none(&["unexpected_error_replies"]);
    t.add("total_error_replies", m.errors().iter().map(|(_, count)| count).sum::<u64>());
    t.none(&["dump_payload_sanitizations", "total_reads_processed", "total_writes_processed"]);
    t.none(&["io_threaded_reads_processed", "io_threaded_writes_processed"]);
    t.none(&["reply_buffer_shrinks", "reply_buffer_expands"]);
    t.add("unknown_commands", m.unknown.load(Relaxed));
    t.add("protocol_errors", m.protocol_errors.load(Relaxed));
    t.add("events_dropped", m.effects_dropped.load(Relaxed));
}

/// Writes the replication section. There are no replicas, because data is copied to other
/// machines by snapshots.
fn replication(s: &Session, t: &mut Lines<'_>) {
    t.add("role", "master");
    t.none(&["connected_slaves"]);
    t.add("master_failover_state", "no-failover");
    t.add("master_replid", &s.shared.metrics.run_id);
    t.add("master_replid2", "0".repeat(40));
    t.none(&["master_repl_offset"]);
    t.add("second_repl_offset", -1);
    t.none(&["repl_backlog_active", "repl_backlog_size"]);
    t.none(&["repl_backlog_first_byte_offset", "repl_backlog_histlen"]);
}

fn processor(_: &Session, t: &mut Lines<'_>) {
    let [system, user, system_of_children, user_of_children] = processor_time();
    t.seconds("used_cpu_sys", system);
    t.seconds("used_cpu_user", user);
    t.seconds("used_cpu_sys_children", system_of_children);
    t.seconds("used_cpu_user_children", user_of_children);
    t.seconds("used_cpu_sys_main_thread", system);
    t.seconds("used_cpu_user_main_thread", user);
}

fn commands(s: &Session, t: &mut Lines<'_>) {
    for (name, calls, failed, micros) in s.shared.metrics.called() {
        let each = micros as f64 / calls as f64;
        t.add(
            &format!("cmdstat_{name}"),
            format_args!(
                "calls={calls},usec={micros},usec_per_call={each:.2},rejected_calls=0,failed_calls={failed}"
            ),
        );
    }
}

fn errors(s: &Session, t: &mut Lines<'_>) {
    for (code, count) in s.shared.metrics.errors() {
        t.add(&format!("errorstat_{code}"), format_args!("count={count}"));
    }
}

fn keyspace(s: &Session, t: &mut Lines<'_>) {
    for (name, id) in dictionaries::listed(&s.shared.db) {
        t.add(&format!("dictionary_{}", id.0), &name);
        if !name.bytes().all(|c| c.is_ascii_digit()) {
            continue;
        }
        // These numbers are estimates, for which no tuples are read.
        let view = s.shared.db.view();
        let strings = view.estimate::<&[u8]>(id, ..).map_or(0, |e| e.items);
        let types = s.shared.db.dictionary(&types_name(&name));
        let next_to = |from: &[u8], to: &[u8]| {
            types.and_then(|types| view.estimate(types, from..to).ok()).map_or(0, |e| e.items)
        };
        let (heads, expire) = (next_to(b"k", b"l"), next_to(b"t", b"u"));
        let keys = strings + heads.saturating_sub(expire);
        t.add(&format!("db{name}"), format_args!("keys={keys},expires={expire},avg_ttl=0"));
    }
}

fn store(s: &Session, t: &mut Lines<'_>) {
    let space = s.shared.db.space();
    t.add("bytes_total", space.total);
    t.add("bytes_free", space.free);
    if let Some(info) = s.shared.owner.info() {
        t.add("json", info.replace(['\r', '\n'], " "));
    }
}
