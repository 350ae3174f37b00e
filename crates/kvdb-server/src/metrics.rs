//! Counters of the server, for `INFO` and `KVFS.STAT`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Limit on the number of error codes that are counted separately.
const MOST_CODES: usize = 128;
/// Longest error code, in characters.
const MOST_CODE: usize = 64;

#[derive(Default)]
pub struct CommandCounters {
    pub calls: AtomicU64,
    pub failed: AtomicU64,
    pub micros: AtomicU64,
}

pub struct Metrics {
    /// Forty hexadecimal digits that identify this start of the server.
    pub run_id: String,
    pub started: Instant,
    pub connected: AtomicU64,
    pub accepted: AtomicU64,
    pub rejected: AtomicU64,
    pub commands: AtomicU64,
    pub unknown: AtomicU64,
    pub protocol_errors: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    /// The number of keys that were removed because their deadline had passed.
    pub expired: AtomicU64,
    /// The number of events that were not sent because a transaction had too many
    /// (`Limits::effects`).
    pub effects_dropped: AtomicU64,
    /// The number of error replies of each code.
    errors: Mutex<BTreeMap<String, u64>>,
    /// The name of each command and its counters, in the order of the table of commands.
    by_command: Box<[(&'static str, CommandCounters)]>,
}

impl Metrics {
    /// Makes counters of zero, with one set of counters for each command name.
    pub fn new(commands: impl Iterator<Item = &'static str>) -> Self {
        let random = RandomState::new();
        let digits: String = (0u8..3).map(|i| format!("{:016x}", random.hash_one(i))).collect();
        Metrics {
            run_id: digits[..40].to_string(),
            started: Instant::now(),
            connected: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            protocol_errors: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            effects_dropped: AtomicU64::new(0),
            errors: Mutex::default(),
            by_command: commands.map(|name| (name, CommandCounters::default())).collect(),
        }
    }

    pub fn count(&self, command: usize, took: Duration, ok: bool) {
        self.commands.fetch_add(1, Relaxed);
        if let Some((_, c)) = self.by_command.get(command) {
            c.calls.fetch_add(1, Relaxed);
            c.micros.fetch_add(took.as_micros() as u64, Relaxed);
            if !ok {
                c.failed.fetch_add(1, Relaxed);
            }
        }
    }

    /// Counts an error reply by its code, which is the first word. Scripts can invent codes, so
    /// the number of codes is limited.
    pub fn count_error(&self, text: &str) {
        let word = text.split(' ').next().unwrap_or_default();
        let code: String = word.chars().filter(char::is_ascii_graphic).take(MOST_CODE).collect();
        let mut errors = self.errors.lock();
        if errors.len() < MOST_CODES || errors.contains_key(&code) {
            *errors.entry(code).or_default() += 1;
        }
    }
    /// Returns the number of error replies of each code.
    pub fn errors(&self) -> Vec<(String, u64)> {
        self.errors.lock().iter().map(|(code, count)| (code.clone(), *count)).collect()
    }

    pub fn reset(&self) {
        self.errors.lock().clear();
        for counter in [
            &self.accepted,
            &self.rejected,
            &self.commands,
            &self.unknown,
            &self.protocol_errors,
            &self.bytes_in,
            &self.bytes_out,
            &self.expired,
            &self.effects_dropped,
        ] {
            counter.store(0, Relaxed);
        }
        for (_, c) in &self.by_command {
            for counter in [&c.calls, &c.failed, &c.micros] {
                counter.store(0, Relaxed);
            }
        }
    }

    /// Returns the name, calls, failures and microseconds of each command that was called.
    pub fn called(&self) -> impl Iterator<Item = (&'static str, u64, u64, u64)> {
        self.by_command.iter().filter_map(|(name, c)| {
            let calls = c.calls.load(Relaxed);
            (calls > 0).then(|| (*name, calls, c.failed.load(Relaxed), c.micros.load(Relaxed)))
        })
    }

    /// Returns all counters as a JSON object.
    pub fn json(&self) -> String {
        let get = |c: &AtomicU64| c.load(Relaxed);
        let mut out = format!(
            "{{\"uptime_seconds\":{},\"connections\":{},\"connections_accepted\":{},\"connections_rejected\":{},\"commands\":{},\
             \"unknown_commands\":{},\"protocol_errors\":{},\"bytes_in\":{},\"bytes_out\":{},\"expired\":{},\"events_dropped\":{},\"by_command\":{{",
            self.started.elapsed().as_secs(),
            get(&self.connected),
            get(&self.accepted),
            get(&self.rejected),
            get(&self.commands),
            get(&self.unknown),
            get(&self.protocol_errors),
            get(&self.bytes_in),
            get(&self.bytes_out),
            get(&self.expired),
            get(&self.effects_dropped)
        );
        for (i, (name, calls, failed, micros)) in self.called().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let _ = write!(
                out,
                "{comma}\"{name}\":{{\"calls\":{calls},\"failed\":{failed},\"microseconds\":{micros}}}"
            );
        }
        out.push_str("}}");
        out
    }
}
