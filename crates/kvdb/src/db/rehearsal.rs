//! Rehearses the opening of a state before it is published, and keeps the bytes that it reads, so
//! that they are published with the state. Another machine then opens the store with two requests.

use std::collections::HashSet;
use std::sync::Arc;

use tracing::subscriber::NoSubscriber;
use vt_tree::{IndexLeaves, Run};
use zones::remote::FirstReads;

use crate::db::checkpoint::Checkpoint;
use crate::db::database::Database;
use crate::db::{Kvdb, recovery};
use crate::error::Result;
use crate::health::Health;
use crate::manifest::Manifest;
use crate::options::OpenOptions;
use crate::read::view::View;
use crate::version::Version;

/// The memory of the store that is opened for the rehearsal, bytes.
const MEMORY: usize = 2 << 20;

/// The most bytes of index nodes and filters that are read. A state has room for 512 KiB in all.
const MOST_INDEX: u64 = 384 << 10;

/// Number of newest snapshots whose indexes are read, too.
const SNAPSHOTS: usize = 4;

/// Reads the data of a store that its users read first. Its changes are lost. See
/// [`crate::Publisher::rehearse`].
pub type Rehearse = dyn Fn(&Kvdb) + Send + Sync;

impl Database {
    /// Returns the bytes of zones that an opening of the state and `rehearse` read.
    pub(super) fn rehearse(
        &self,
        checkpoint: &Checkpoint,
        rehearse: &Rehearse,
    ) -> Result<FirstReads> {
        let (device, zones) = self.engine.zones.rehearse(&checkpoint.uses)?;
        let kept = zones.pin(&checkpoint.uses)?;
        zones.start();
        let (env, health) = (self.engine.env.clone(), Arc::new(Health::default()));
        let state = checkpoint.state.clone();
        Manifest::begin(zones, env.clone(), health, state, 0)?.vouch()?;
        drop(kept);
        let options = OpenOptions {
            memory: MEMORY,
            journal: false,
            threads: false,
            flush_on_close: false,
            ..OpenOptions::default()
        };
        let open_and_read = || {
            let (db, _) = recovery::open(device.clone(), env, options)?;
            let db = Kvdb::of(db);
            let opened = db.db.engine.versions.load_full();
            rehearse(&db);
            let newest = db.snapshot_labels().into_iter().rev().take(SNAPSHOTS);
            let snapshots: Vec<View> =
                newest.filter_map(|label| db.open_snapshot(&label.name).ok()).collect();
            let versions = snapshots.iter().map(|view| &*view.version);
            // It comes last, since there may be no room for it.
            if let Err(e) = read_indexes(std::iter::once(&*opened).chain(versions)) {
                tracing::debug!("some of the index is not among the first reads: {e}");
            }
            drop((opened, snapshots));
            db.close()
        };
        // The log messages of this opening are not about the store that is published.
        let ended = tracing::subscriber::with_default(NoSubscriber::default(), open_and_read);
        // The rehearsal fails like this when there is no room for more bytes.
        ended.unwrap_or_else(|e| tracing::debug!("a rehearsal ended early: {e}"));
        Ok(device.first_reads())
    }
}

/// The runs of a dictionary, with the places of what is below the upper nodes of their indexes.
type Leaves<'a> = Vec<(&'a Run, IndexLeaves)>;

/// Reads of the indexes of the main branch and of snapshots of it what fits, and what saves most
/// requests for its bytes: first the upper nodes of all, then the leaf index nodes, then the
/// filters. The last two are read as a whole for a dictionary or not at all, in the order of the
/// states, and the oldest dictionaries of each first. With its leaf index nodes, the tuples of a
/// dictionary can be requested at once; without upper nodes, a point read waits for one level of
/// the index after the other.
fn read_indexes<'a>(states: impl Iterator<Item = &'a Version>) -> Result<()> {
    let mut room = MOST_INDEX;
    let mut dicts: Vec<Leaves<'a>> = Vec::new();
    // States share most of their runs.
    let mut seen = HashSet::new();
    let trees = states.flat_map(|version| version.trees.values());
    for tree in trees.filter(|tree| tree.info().branch.is_empty()) {
        let mut leaves = Some(Vec::new());
        for (_, numbered) in tree.by_level().filter(|(_, numbered)| seen.insert(numbered.id)) {
            let run = &*numbered.run;
            let of_run = run.read_upper_index(&mut room)?.map(|leaves| (run, leaves));
            leaves = leaves.zip(of_run).map(|(mut leaves, of_run)| {
                leaves.push(of_run);
                leaves
            });
        }
        dicts.extend(leaves);
    }
    let mut with_nodes = Vec::new();
    for leaves in dicts {
        if take(&mut room, leaves.iter().map(|(_, leaves)| leaves.node_bytes()).sum()) {
            leaves.iter().try_for_each(|(run, leaves)| run.read_leaf_nodes(leaves))?;
            with_nodes.push(leaves);
        }
    }
    for leaves in with_nodes {
        if take(&mut room, leaves.iter().map(|(_, leaves)| leaves.filter_bytes()).sum()) {
            leaves.iter().try_for_each(|(run, leaves)| run.read_filters(leaves))?;
        }
    }
    Ok(())
}

/// Takes `bytes` from `room`, if there are as many.
fn take(room: &mut u64, bytes: u64) -> bool {
    let left = room.checked_sub(bytes);
    *room = left.unwrap_or(*room);
    left.is_some()
}
