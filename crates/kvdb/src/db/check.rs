//! Checks a store: reads all of its data and lists the damage, without changing anything.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::remote::{RemoteZones, open_zones};
use vt_tree::{BlockCache, ExtentRef, Run, Value};
use zones::{Device, ZoneId, ZoneUse};

use crate::db::recovery::{Found, Journal, Recovery, read_journal};
use crate::error::Result;
use crate::version::Version;
use crate::version::tree::{NumberedRun, Tree};

/// A damaged part of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The part of the store: "superblock", "manifest", "journal", "dictionary NAME, run N",
    /// "snapshot NAME, dictionary NAME, run N", "zones".
    pub place: String,
    /// A description of the damage, with its device address if it has one.
    pub what: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// The damage that was found.
    pub faults: Vec<Fault>,
    /// The number of dictionaries that were read.
    pub dictionaries: u64,
    /// The number of snapshots that were read.
    pub snapshots: u64,
    /// The number of runs that were read. A run that several dictionaries and snapshots share
    /// counts once.
    pub runs: u64,
    /// The number of items in these runs, including tombstones and hidden items.
    pub items: u64,
    /// The number of bytes of blocks and values that were read from runs.
    pub bytes: u64,
    /// The number of commits in the journal.
    pub journal_records: u64,
    /// The number of bytes that a crash left after the journal's end. Such bytes are not a fault.
    pub torn_bytes: u64,
}

impl CheckReport {
    /// Returns `true` if no damage was found.
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }

    fn fault(&mut self, place: impl Into<String>, what: impl ToString) {
        self.faults.push(Fault { place: place.into(), what: what.to_string() });
    }

    /// Copies the counts of the journal into the report. Bytes after the journal's end are a fault
    /// if the store was closed properly, because only a crash leaves such bytes.
    fn journal_read(&mut self, recovery: &Recovery) {
        self.torn_bytes = recovery.torn_bytes;
        self.journal_records = recovery.records;
        if recovery.clean && self.torn_bytes > 0 {
            let torn = self.torn_bytes;
            let what =
                format!("{torn} bytes lie behind the end of a store that was closed properly");
            self.fault("journal", what);
        }
    }
}

/// The size of the cache for nodes and filters during a check, in bytes.
const CACHE: usize = 32 << 20;

/// Reads the whole store on `device`. No process may write to the device during the check.
/// `progress` is called with the number of bytes read so far and the total. Damage is listed in the
/// report and is never returned as an error.
pub fn check(device: Arc<dyn Device>, progress: &mut dyn FnMut(u64, u64)) -> CheckReport {
    check_with(device, None, progress)
}

/// Does the same as [`check`]. If `remote` is given, the store's zones lie in object storage, and
/// missing parts are fetched.
pub fn check_with(
    device: Arc<dyn Device>,
    remote: Option<&RemoteZones>,
    progress: &mut dyn FnMut(u64, u64),
) -> CheckReport {
    let mut report = CheckReport::default();
    if let Err(e) = examine(device, remote, &mut report, progress) {
        report.fault("store", e);
    }
    report
}

fn examine(
    device: Arc<dyn Device>,
    remote: Option<&RemoteZones>,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let zones = open_zones(device, remote, CACHE)?;
    for e in zones.check_superblocks() {
        report.fault("superblock", e);
    }
    let cache = BlockCache::new(zones.clone(), CACHE);
    let mut found = Found::read(&zones, &cache)?;
    for addr in &found.loaded.damaged {
        report.fault(
            "manifest",
            format!("one of two copies at device address {addr:#x} cannot be read"),
        );
    }
    let mut bound = Vec::new();
    let journal =
        read_journal(&zones, &cache, &found.loaded.state, &mut found.recovery, &mut |e| {
            bound.push(*e)
        });
    let uses = match &journal {
        Ok(journal) => journal.bound.clone(),
        Err(e) => {
            report.fault("journal", e);
            ZoneUse::new()
        }
    };
    report.journal_read(&found.recovery);

    let snapshots: Vec<_> =
        found.snapshots.list().into_iter().map(|s| (s.label.name.clone(), s.version())).collect();
    let runs = runs_of(&found, journal.as_ref().ok(), &snapshots);
    let total =
        runs.iter().map(|(run, _)| run.stats()).map(|s| s.block_bytes + s.value_bytes).sum::<u64>()
            + bound.iter().map(|e| u64::from(e.stored)).sum::<u64>();
    let mut done = check_values(&bound, &cache, report, &mut |done| progress(done, total));
    let mut owners = Owners::default();
    for &zone in &found.loaded.root.zones {
        owners.add(zone, "manifest", report);
    }
    for (segment, _) in &found.segments {
        owners.add(segment.zone, "journal", report);
    }
    owners.check(&uses, "a value that the journal binds", report);
    report.dictionaries = found.version.trees.len() as u64;
    report.snapshots = snapshots.len() as u64;
    for (run, place) in &runs {
        let before = done;
        done += check_run(run, place, report, &mut |bytes| progress(before + bytes, total));
        owners.check(run.uses(), place, report);
    }
    progress(total, total);
    Ok(())
}

/// Reads the values that the journal binds, and returns the number of their bytes. `advance` is
/// called with the number of bytes read so far.
fn check_values(
    bound: &[ExtentRef],
    cache: &BlockCache,
    report: &mut CheckReport,
    advance: &mut dyn FnMut(u64),
) -> u64 {
    let mut done = 0;
    for extent in bound {
        if let Err(e) = cache.read_value(&Value::Extent(*extent)) {
            report.fault("journal", format!("a value that it binds: {e}"));
        }
        done += u64::from(extent.stored);
        advance(done);
    }
    done
}

/// Reads a run, counts it, and returns the number of bytes read. Messages call the run `place`.
/// `advance` is called with the number of bytes read so far.
fn check_run(
    run: &Arc<Run>,
    place: &str,
    report: &mut CheckReport,
    advance: &mut dyn FnMut(u64),
) -> u64 {
    let mut faults = Vec::new();
    let mut bytes = 0;
    vt_tree::check_run(run, &mut |what| faults.push(what), &mut |n| {
        bytes += n;
        advance(bytes);
    });
    faults.into_iter().for_each(|what| report.fault(place, what));
    report.runs += 1;
    report.items += run.stats().items;
    report.bytes += bytes;
    bytes
}

/// Returns the runs of the store with their names in messages. A run that several trees share is
/// returned once.
fn runs_of(
    found: &Found,
    journal: Option<&Journal>,
    snapshots: &[(String, Arc<Version>)],
) -> Vec<(Arc<Run>, String)> {
    let mut seen = HashSet::new();
    let mut runs = Vec::new();
    let mut add = |run: &Arc<Run>, name: &dyn Fn() -> String| {
        if seen.insert(Arc::as_ptr(run)) {
            runs.push((run.clone(), name()));
        }
    };
    for tree in found.version.trees.values() {
        tree.runs().for_each(|p| add(&p.run, &|| place(tree, p)));
    }
    let of = |dict| {
        found.version.trees.values().find(|t| t.info().id == dict).map_or("", |t| &t.info().name)
    };
    for (dict, bound) in journal.into_iter().flat_map(|j| &j.runs).flat_map(|b| &b.runs) {
        let name = || format!("dictionary {}, a run of the journal", of(*dict));
        bound.iter().for_each(|run| add(run, &name));
    }
    for (snapshot, version) in snapshots {
        for tree in version.trees.values() {
            tree.runs().for_each(|p| {
                add(&p.run, &|| format!("snapshot {snapshot}, {}", place(tree, p)));
            });
        }
    }
    runs
}

/// The zones that belong to one owner as a whole, with the names of the owners.
#[derive(Default)]
struct Owners(BTreeMap<ZoneId, &'static str>);

impl Owners {
    /// Records the owner of a zone, and reports a fault if the zone already has another owner.
    fn add(&mut self, zone: ZoneId, what: &'static str, report: &mut CheckReport) {
        if let Some(other) = self.0.insert(zone, what) {
            report.fault("zones", format!("{zone} belongs to the {what} and to the {other}"));
        }
    }

    /// Reports a fault if `what` lies in a zone that has an owner. The number of bytes in each zone
    /// is not compared, since several keys may share one place.
    fn check(&self, uses: &ZoneUse, what: &str, report: &mut CheckReport) {
        for (zone, _) in uses.iter() {
            if let Some(other) = self.0.get(&zone) {
                let lies = format!("{zone} belongs to the {other}, but {what} lies in it");
                report.fault("zones", lies);
            }
        }
    }
}

/// Returns the name of a run in messages. The name has the branch, unless it is the main branch,
/// the dictionary, and the number of the run.
fn place(tree: &Tree, numbered: &NumberedRun) -> String {
    let branch = if tree.info().branch.is_empty() {
        String::new()
    } else {
        format!("branch {}, ", tree.info().branch)
    };
    format!("{branch}dictionary {}, run {}", tree.info().name, numbered.id.0)
}
