//! The data that a scrub reads: the superblocks, the manifest, the journal with the values that it
//! binds, and then all runs of all branches and snapshots, by dictionary name and in key order.
//!
//! The store changes during a scrub, so a reported fault must not merely be data that was freed in
//! the meantime. Therefore the manifest and the journal are read again if they have moved; values
//! that the journal binds belong to memtables that are pinned; and runs are taken from the current
//! version for one key range at a time.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{ExtentRef, KeyRange, Run, Scrub, Value, scrub_end};

use super::{FaultKeys, ScrubFault, Scrubber};
use crate::error::{Error, Result};
use crate::journal::Segment;
use crate::journal::record::{self, Op, Record};
use crate::log::chunk::Kind;
use crate::log::records::Records;
use crate::log::stream::{StreamPart, StreamReader};
use crate::manifest::{self, JournalStart, ManifestState, Root};
use crate::version::Version;
use crate::version::snapshot_set::Snapshot;
use crate::version::tree::Tree;

/// Approximate number of bytes of one run read in a step, during which the zones of the run are
/// pinned.
const STEP: u64 = 16 << 20;

/// Number of attempts to read a manifest while it is not locked.
const ATTEMPTS: usize = 8;

type Read<'a> = &'a mut dyn FnMut(u64) -> ControlFlow<()>;
/// A snapshot with its version.
type SnapshotVersion = (Arc<Snapshot>, Arc<Version>);
type Find<'a> = &'a mut dyn FnMut(ScrubFault);

fn fault(place: impl Into<String>, what: impl ToString) -> ScrubFault {
    ScrubFault { place: place.into(), what: what.to_string(), keys: None }
}

impl Scrubber {
    /// Returns the approximate number of bytes to read.
    pub(super) fn scrub_bytes(&self) -> u64 {
        let (version, snapshots) = self.all_states();
        let mut seen = BTreeSet::new();
        let states = std::iter::once(&version).chain(snapshots.iter().map(|(_, version)| version));
        let runs = states.flat_map(|v| v.trees.values()).flat_map(|tree| runs_of(tree));
        runs.filter(|(run, _)| seen.insert(Arc::as_ptr(run)))
            .map(|(run, _)| run.stats().bytes)
            .sum()
    }

    /// Scrubs everything. Breaks when `read` breaks.
    pub(super) fn scrub_all(&self, read: Read<'_>, find: Find<'_>) -> ControlFlow<()> {
        self.engine
            .zones
            .check_superblocks()
            .into_iter()
            .for_each(|e| find(fault("superblock", e)));
        read(2 * zones::SECTOR)?;
        self.scrub_manifest(read, find)?;
        self.scrub_journal(read, find)?;
        // Scrub by name: dictionaries of the same name in branches and snapshots come from one
        // original, and share most of its data.
        let (version, snapshots) = self.all_states();
        let states = std::iter::once(&version).chain(snapshots.iter().map(|(_, version)| version));
        let names: BTreeSet<String> =
            states.flat_map(|v| v.trees.values()).map(|tree| tree.info().name.clone()).collect();
        drop((version, snapshots));
        names.iter().try_for_each(|name| self.scrub_dictionary(name, read, find))
    }

    /// Returns the current version and those of the snapshots, consistent with each other: data
    /// that moves from one to the other is in at least one of them.
    fn all_states(&self) -> (Arc<Version>, Vec<SnapshotVersion>) {
        loop {
            let version = self.engine.versions.load_full();
            let snapshots = self.engine.snapshots.list();
            if Arc::ptr_eq(&version, &self.engine.versions.load()) {
                let snapshots = snapshots.into_iter().map(|s| (s.clone(), s.version())).collect();
                return (version, snapshots);
            }
        }
    }

    /// Returns all runs of the dictionaries with this name, each once, with a description.
    fn runs_named(&self, name: &str) -> Vec<(Arc<Run>, String)> {
        let (version, snapshots) = self.all_states();
        let mut seen = BTreeSet::new();
        let mut runs = Vec::new();
        // Use the index by name of each branch, because this is called for every name.
        let named = |v: &Version| {
            let branches = std::iter::once("").chain(v.branches.keys().map(|name| &**name));
            let trees = branches.filter_map(|branch| v.trees.get(&v.find(branch, name)?));
            trees.cloned().collect::<Vec<_>>()
        };
        for tree in named(&version) {
            runs.extend(runs_of(&tree).filter(|(run, _)| seen.insert(Arc::as_ptr(run))));
        }
        for (snapshot, version) in &snapshots {
            for tree in named(version) {
                let fresh = runs_of(&tree).filter(|(run, _)| seen.insert(Arc::as_ptr(run)));
                runs.extend(fresh.map(|(run, place)| {
                    (run, format!("snapshot {}, {place}", snapshot.label.name))
                }));
            }
        }
        runs
    }

    fn scrub_dictionary(&self, name: &str, read: Read<'_>, find: Find<'_>) -> ControlFlow<()> {
        let mut start = Bytes::new();
        loop {
            let runs = self.runs_named(name);
            let mut end: Option<Bytes> = None;
            for (run, _) in &runs {
                let stop = scrub_end(run, &start, STEP, read);
                end = match (end, stop) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
            // Copy the key: a slice would pin the block that it was read from.
            let range =
                KeyRange { start: start.clone(), end: end.as_deref().map(Bytes::copy_from_slice) };
            let mut found = Vec::new();
            let place = std::cell::Cell::new("");
            let mut damage = |d: vt_tree::Damage| {
                let keys = FaultKeys {
                    dictionary: name.to_owned(),
                    start: Bytes::copy_from_slice(&d.start),
                    end: Bytes::copy_from_slice(&d.end),
                };
                found.push(ScrubFault {
                    place: place.get().to_owned(),
                    what: plain(&d.what),
                    keys: Some(keys),
                });
            };
            let mut scrub = Scrub::new(&range, read, &mut damage);
            let done = runs.iter().try_for_each(|(run, called)| {
                place.set(called);
                scrub.run(run)
            });
            found.into_iter().for_each(&mut *find);
            done?;
            match range.end {
                Some(end) => start = end,
                None => return ControlFlow::Continue(()),
            }
        }
    }

    fn scrub_manifest(&self, read: Read<'_>, find: Find<'_>) -> ControlFlow<()> {
        for attempt in 0.. {
            // In the last attempt, keep the manifest locked while it is read.
            let mut guard = None;
            let (root, position) = match self.engine.versions.manifest() {
                Ok(manifest) => {
                    let place = manifest.place();
                    guard = (attempt == ATTEMPTS).then_some(manifest);
                    place
                }
                // A store that is open for reading does not change, so its manifest still ends
                // where it ended when the store was opened.
                Err(_) => {
                    match manifest::load(&self.engine.zones, &self.engine.zones.superblock().root) {
                        Ok(loaded) => (loaded.root, loaded.position),
                        Err(e) => {
                            find(fault("manifest", e));
                            return ControlFlow::Continue(());
                        }
                    }
                }
            };
            let (bytes, found) = self.read_manifest(&root, position);
            let moved = guard.is_none()
                && self.engine.versions.manifest().is_ok_and(|m| m.place().0 != root);
            drop(guard);
            read(bytes)?;
            if found.is_empty() || !moved {
                found.into_iter().for_each(|what| find(fault("manifest", what)));
                break;
            }
        }
        ControlFlow::Continue(())
    }

    /// Reads the manifest up to `position`. Returns the bytes read and descriptions of the damage.
    fn read_manifest(&self, root: &Root, position: u64) -> (u64, Vec<String>) {
        let parts = root.parts();
        let mut reader = StreamReader::on_medium(&self.engine.zones, Kind::Manifest, &parts, 0, 0);
        let mut bytes = 0;
        let mut found = Vec::new();
        let mut reached = 0;
        while reached < position {
            match reader.next() {
                Ok(Some((at, piece))) => {
                    reached = at + piece.len() as u64;
                    bytes += 2 * crate::log::chunk::size(piece.len());
                }
                Ok(None) => {
                    found.push(format!("it ends at {reached}, but was durable up to {position}"));
                    break;
                }
                Err(e) => {
                    found.push(e.to_string());
                    break;
                }
            }
        }
        for addr in reader.damaged(true) {
            found.push(format!("one of two copies at device address {addr:#x} cannot be read"));
        }
        (bytes, found)
    }

    fn scrub_journal(&self, read: Read<'_>, find: Find<'_>) -> ControlFlow<()> {
        if !self.engine.options.journal {
            return ControlFlow::Continue(());
        }
        loop {
            // The order matters. Commits up to `end` are either in memtables of this version, which
            // pin their values, or in runs. In the latter case the state, which is read last,
            // starts its journal after these commits.
            let end = self.commits.log.durable();
            let version = self.engine.versions.load_full();
            // A manifest that cannot be read has already been reported.
            let Ok(state) = self.state_now() else { return ControlFlow::Continue(()) };
            let mut values = Vec::new();
            let read_to = self.read_journal_again(&state, end, &mut values, read)?;
            if let Err(e) = read_to {
                // The journal was flushed in the meantime, and its segments are being reused.
                if self.state_now().is_ok_and(|now| now.start != state.start) {
                    continue;
                }
                find(fault("journal", e));
            }
            for (dict, key, extent) in values {
                if let Err(e) = self.engine.cache.check_value(&extent) {
                    let mut fault = fault(
                        "journal",
                        format!("a value that it binds: {}", plain(&e.to_string())),
                    );
                    if let Some(dictionary) = state.dictionaries.get(&dict) {
                        let end = Bytes::from([&key, &[0][..]].concat());
                        fault.keys = Some(FaultKeys {
                            dictionary: dictionary.info.name.clone(),
                            start: key,
                            end,
                        });
                    }
                    find(fault);
                }
                read(u64::from(extent.stored))?;
            }
            drop(version);
            return ControlFlow::Continue(());
        }
    }

    fn state_now(&self) -> Result<ManifestState> {
        match self.engine.versions.manifest() {
            Ok(manifest) => Ok(manifest.state().clone()),
            Err(_) => {
                Ok(manifest::load(&self.engine.zones, &self.engine.zones.superblock().root)?.state)
            }
        }
    }

    /// Reads the journal of `state` up to `end`, and appends the large values that the journal
    /// binds to `values`.
    fn read_journal_again(
        &self,
        state: &ManifestState,
        end: u64,
        values: &mut Vec<(crate::DictionaryId, Bytes, ExtentRef)>,
        read: Read<'_>,
    ) -> ControlFlow<(), Result<()>> {
        let JournalStart { segment, offset, position, .. } = state.start;
        if position >= end {
            return ControlFlow::Continue(Ok(()));
        }
        let segments: Vec<Segment> =
            state.segments.iter().filter(|s| s.number >= segment).copied().collect();
        let parts: Vec<StreamPart> = segments.iter().map(Segment::part).collect();
        let offset = segments.first().filter(|first| first.number == segment).map_or(0, |_| offset);
        let mut reader =
            StreamReader::on_medium(&self.engine.zones, Kind::Journal, &parts, offset, position);
        let mut records = Records::new(position);
        let mut reached = position;
        let mut seq = state.start.seq;
        while reached < end {
            let (at, piece) = match reader.next() {
                Ok(Some(next)) => next,
                Ok(None) => {
                    return ControlFlow::Continue(Err(Error::Corrupt(format!(
                        "it ends at {reached}, but was durable up to {end}"
                    ))));
                }
                Err(e) => return ControlFlow::Continue(Err(e)),
            };
            reached = at + piece.len() as u64;
            read(crate::log::chunk::size(piece.len()))?;
            let each = |to: u64, bytes: Bytes| {
                if to > end {
                    return Ok(false);
                }
                match record::decode(&bytes)? {
                    Record::Number(_) | Record::Mark | Record::Snapshot { .. } => {}
                    Record::Bind(_) => seq += 1,
                    Record::Commit(changes) => {
                        for (dict, op) in changes {
                            seq += 1;
                            if let Op::Put(key, Value::Extent(e)) = op
                                && state.takes(dict, seq)
                            {
                                values.push((dict, Bytes::copy_from_slice(&key), e));
                            }
                        }
                    }
                }
                Ok(true)
            };
            match records.push(&piece, each) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => return ControlFlow::Continue(Err(e)),
            }
        }
        ControlFlow::Continue(Ok(()))
    }
}

/// Returns the runs of a dictionary, each with its description.
fn runs_of(tree: &Tree) -> impl Iterator<Item = (Arc<Run>, String)> {
    let branch = if tree.info().branch.is_empty() {
        String::new()
    } else {
        format!("branch {}, ", tree.info().branch)
    };
    let dictionary = format!("{branch}dictionary {}", tree.info().name);
    let bound = tree.layers.iter().flat_map(|layer| &layer.bound).map(|run| (run.clone(), None));
    let numbered = tree.runs().map(|p| (p.run.clone(), Some(p.id.0)));
    bound.chain(numbered).map(move |(run, id)| match id {
        Some(id) => (run, format!("{dictionary}, run {id}")),
        None => (run, format!("{dictionary}, a run of the journal")),
    })
}

/// Removes the advice from an error message, for places that show only the error itself.
fn plain(what: &str) -> String {
    what.split(": run `kvfs check`").next().unwrap_or(what).to_owned()
}
