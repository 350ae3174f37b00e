//! Records the actions of concurrent transactions, and checks with `adya` that they are possible at
//! the promised isolation level.
//!
//! A key holds a list; a transaction reads lists and appends numbers that are used once, so that a
//! list tells who wrote it, in which order.

pub mod epoch;

use std::time::Duration;

use adya::history::{Interner, Mop, Op, OpType, ReadValue, Scalar};
use adya::{Opts, Valid, Workload};
use kvdb::Isolation;

/// The actions of one transaction, in order.
#[derive(Clone, Debug)]
pub enum Did {
    Read(u64, Vec<u64>),
    Append(u64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Committed,
    /// The commit was on disk before its success was reported.
    Synced,
    Failed,
    /// The power failed during its commit, or its changes may have been undone.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Attempt {
    pub thread: u64,
    /// The ticks before its first step and after its last one.
    pub from: u64,
    pub to: u64,
    pub did: Vec<Did>,
    pub end: End,
    /// The kind of the attempt, for messages.
    pub kind: &'static str,
}

impl Attempt {
    pub fn appended(&self) -> impl Iterator<Item = (u64, u64)> {
        self.did.iter().filter_map(|did| {
            if let Did::Append(key, number) = did { Some((*key, *number)) } else { None }
        })
    }
}

pub fn encode(list: &[u64]) -> Vec<u8> {
    list.iter().flat_map(|n| n.to_be_bytes()).collect()
}

pub fn decode(value: &[u8]) -> Vec<u64> {
    assert!(value.len().is_multiple_of(8), "a list of {} bytes: {value:?}", value.len());
    value.chunks_exact(8).map(|c| u64::from_be_bytes(c.try_into().unwrap())).collect()
}

fn model(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::Snapshot => "strong-snapshot-isolation",
        Isolation::Serializable => "strict-serializable",
    }
}

/// Fails unless the attempts are a valid history.
pub fn check(isolation: Isolation, attempts: &[Attempt], what: &str) {
    let mut names = Interner::default();
    let mut events: Vec<(u64, Op)> = Vec::new();
    for a in attempts {
        let mut id = |n: u64| names.intern(Scalar::Int(n as i64));
        // If the end of an attempt is not known, its reads do not count; its appends do, since they
        // may have been seen.
        let counts = |did: &&Did| a.end != End::Unknown || matches!(did, Did::Append(..));
        let mops = a.did.iter().filter(counts).map(|did| match did {
            Did::Append(key, number) => Mop::Append { key: id(*key), value: id(*number) },
            Did::Read(key, list) => Mop::Read {
                key: id(*key),
                value: ReadValue::List(list.iter().map(|n| id(*n)).collect()),
            },
        });
        let value: Vec<Mop> = mops.collect();
        let kind = match a.end {
            End::Committed | End::Synced => OpType::Ok,
            End::Failed => OpType::Fail,
            End::Unknown => OpType::Info,
        };
        let process = Some(a.thread as i64);
        events.push((
            a.from,
            Op { index: a.from, kind: OpType::Invoke, process, value: value.clone(), time: None },
        ));
        events.push((a.to, Op { index: a.to, kind, process, value, time: None }));
    }
    events.sort_by_key(|(tick, _)| *tick);
    let history = adya::History::from_ops(events.into_iter().map(|(_, op)| op).collect(), names);
    let opts = Opts {
        models: vec![model(isolation).into()],
        timeout: Duration::from_secs(60),
        ..Opts::default()
    };
    let report = adya::check(&history, Workload::ListAppend, &opts);
    // The power may fail before anything has happened.
    if report.anomaly_types == ["empty-transaction-graph"] {
        return;
    }
    let first: Vec<_> =
        report.anomalies.values().filter_map(|all| all.first()).map(|a| &a.explanation).collect();
    assert_eq!(
        report.valid,
        Valid::True,
        "{what}: not {}: {:?} {first:#?}",
        model(isolation),
        report.anomaly_types
    );
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

/// Returns the number of transactions that a test is to run, and its first seed:
/// `KVFS_TRANSACTIONS`, or `usual`; `KVFS_SEED_BASE` (or `KVFS_SEED`), or 1.
pub fn extent(usual: u64) -> (u64, u64) {
    (
        number("KVFS_TRANSACTIONS").unwrap_or(usual),
        number("KVFS_SEED_BASE").or_else(|| number("KVFS_SEED")).unwrap_or(1),
    )
}

/// The actions of a run, so that the next one can continue from them.
#[derive(Default)]
pub struct Figures {
    pub done: u64,
    ends: [u64; 4],
    kinds: std::collections::BTreeMap<&'static str, (u64, u64)>,
}

impl Figures {
    pub fn add(&mut self, attempts: &[Attempt]) {
        self.done += attempts.len() as u64;
        for a in attempts {
            self.ends[a.end as usize] += 1;
            let kind = self.kinds.entry(a.kind).or_default();
            kind.0 += 1;
            kind.1 += u64::from(matches!(a.end, End::Committed | End::Synced));
        }
    }

    /// Prints the counts. Fails if an event that the test is about did not occur. `kinds` lists the
    /// kinds that must have been committed.
    pub fn conclude(
        &self,
        what: &str,
        seeds: std::ops::Range<u64>,
        started: std::time::Instant,
        kinds: &[&str],
    ) {
        let [committed, synced, failed, unknown] = self.ends;
        println!(
            "{what}: {} transactions in {:.1} s, seeds {}..{}",
            self.done,
            started.elapsed().as_secs_f64(),
            seeds.start,
            seeds.end
        );
        println!(
            "  {committed} committed, {synced} of them synced besides, {failed} failed, {unknown} cut off; go on: KVFS_SEED_BASE={}",
            seeds.end
        );
        for (kind, (all, committed)) in &self.kinds {
            println!("  {kind}: {all}, {committed} committed");
        }
        assert!(
            committed + synced > self.done / 4,
            "{what}: too few of {} transactions committed",
            self.done
        );
        assert!(failed > 0, "{what}: they never met each other");
        for kind in kinds {
            assert!(
                self.kinds.get(kind).is_some_and(|(_, committed)| *committed > 0),
                "{what}: no {kind} was committed"
            );
        }
    }
}
