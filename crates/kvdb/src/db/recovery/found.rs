//! The first phase of opening a store: reads the manifest and pins everything that it lists.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use vt_tree::{BlockCache, Run};
use zones::{ZonePin, ZoneUse, Zones};

use super::Recovery;
use crate::error::{Error, Result};
use crate::ids::RunId;
use crate::journal::Segment;
use crate::manifest;
use crate::version::Version;
use crate::version::generation::Generation;
use crate::version::snapshot_set::Snapshots;

/// The contents of the manifest, with their zones pinned. The store is unchanged.
pub(crate) struct Found {
    pub loaded: manifest::Loaded,
    pub manifest_pin: ZonePin,
    pub segments: Vec<(Segment, ZonePin)>,
    pub version: Version,
    pub snapshots: Snapshots,
    pub recovery: Recovery,
}

impl Found {
    pub(crate) fn read(zones: &Arc<Zones>, cache: &Arc<BlockCache>) -> Result<Found> {
        let root = zones.superblock().root;
        if root.is_empty() {
            return Err(Error::Corrupt(
                "the store has no manifest: making it was never finished, make it again".into(),
            ));
        }
        let loaded = manifest::load(zones, &root)?;
        let state = &loaded.state;
        let manifest_pin = zones.pin(&loaded.root.uses())?;
        let mut segments = Vec::new();
        for s in &state.segments {
            segments.push((*s, zones.pin(&ZoneUse::whole(s.zone))?));
        }
        let generation = Generation::first();
        let mut recovery =
            Recovery { clean: state.closed, edits: loaded.records, ..Recovery::default() };
        let mut runs = Runs::default();
        let mut version = Version::empty(generation.clone());
        let mut open = |id: RunId, root: &Bytes| runs.open(cache, id, root);
        version.follow(state, &mut open)?;
        version.table = zones.hold_table();
        check_sums(&version)?;
        let snapshots = Snapshots::new();
        snapshots.follow(state, &version, &mut open)?;
        snapshots.list().iter().try_for_each(|snapshot| check_sums(&snapshot.version()))?;
        recovery.runs = runs.known.len() as u64;
        recovery.torn_bytes = loaded.torn;
        Ok(Found { loaded, manifest_pin, segments, version, snapshots, recovery })
    }
}

/// Fails if the runs of a version claim to hold more data than any store can.
pub(crate) fn check_sums(version: &Version) -> Result<()> {
    let all = version.trees.values().flat_map(|tree| tree.runs());
    bounded(0, all.map(|numbered| &*numbered.run)).map(drop)
}

/// Opened runs, keyed by their encoded roots, so that a run that several dictionaries and snapshots
/// share is opened once.
#[derive(Default)]
pub(crate) struct Runs {
    known: HashMap<Bytes, Arc<Run>>,
    /// Runs keyed by the address of their encoded root in the manifest's state, which outlives the
    /// map. A root that snapshots share is stored there once.
    by_place: HashMap<*const u8, Arc<Run>>,
}

impl Runs {
    /// Returns the runs of a version.
    pub(crate) fn of(version: &Version) -> Runs {
        let mut known = HashMap::new();
        for tree in version.trees.values() {
            for numbered in tree.runs() {
                if let Some((_, root)) = tree.entry.runs.get(&numbered.id) {
                    known.insert(root.clone(), numbered.run.clone());
                }
            }
        }
        Runs { known, by_place: HashMap::new() }
    }

    pub(crate) fn open(
        &mut self,
        cache: &Arc<BlockCache>,
        id: RunId,
        root: &Bytes,
    ) -> Result<Arc<Run>> {
        if let Some(run) = self.by_place.get(&root.as_ptr()) {
            return Ok(run.clone());
        }
        let run = match self.known.get(root) {
            Some(run) => run.clone(),
            None => decode_run(cache, root, || format!("the manifest's entry of run {}", id.0))?,
        };
        self.known.insert(root.clone(), run.clone());
        self.by_place.insert(root.as_ptr(), run.clone());
        Ok(run)
    }
}

/// Adds the sizes that runs claim to `before`. Other code adds such sums in many places, so the sum
/// must stay far below the largest `u64`. Returns an error if the sum is too large, which can occur
/// in a store that another program has made.
pub(super) fn bounded<'a>(before: u64, mut runs: impl Iterator<Item = &'a Run>) -> Result<u64> {
    let sum = runs.try_fold(before, |sum, run| {
        let s = run.stats();
        let sum = [s.items, s.block_bytes, s.value_bytes, s.bytes]
            .into_iter()
            .fold(sum, u64::saturating_add);
        (sum < 1 << 61).then_some(sum)
    });
    sum.ok_or_else(|| {
        Error::Corrupt("the store's runs say that they hold more than any store can".into())
    })
}

/// Decodes the run whose root is `bytes`. `what` returns the name of the root for error messages.
pub(super) fn decode_run(
    cache: &Arc<BlockCache>,
    bytes: &Bytes,
    what: impl FnOnce() -> String,
) -> Result<Arc<Run>> {
    let mut rest = &bytes[..];
    let run = Run::decode(cache, &mut rest)?;
    if !rest.is_empty() {
        return Err(Error::Corrupt(format!("{} is too long", what())));
    }
    Ok(run)
}
