//! Rehearses the opening of a state before the state is published, and keeps the bytes that the
//! rehearsal reads, so that they are published with the state. Another machine then opens the store
//! with two requests.

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

/// The memory of the store that is opened for the rehearsal, in bytes.
const MEMORY: usize = 2 << 20;

/// The maximum number of bytes of index nodes and filters that are read. A state has room for 512
/// KiB in total.
const MOST_INDEX: u64 = 384 << 10;

/// The number of newest snapshots whose indexes are read, too.
const SNAPSHOTS: usize = 4;

/// A function that reads the data that users of a store read first. Changes that the function makes
/// are lost. See [`crate::Publisher::rehearse`].
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
            // Read the indexes last, since there may be no room for them.
            if let Err(e) = read_indexes(std::iter::once(&*opened).chain(versions)) {
                tracing::debug!("some of the index is not among the first reads: {e}");
            }
            drop((opened, snapshots));
            db.close()
        };
        // Suppress the log messages of this opening, which do not concern the store that is
        // published.
        let ended = tracing::subscriber::with_default(NoSubscriber::default(), open_and_read);
        // The rehearsal ends with an error when there is no room for more bytes.
        ended.unwrap_or_else(|e| tracing::debug!("a rehearsal ended early: {e}"));
        Ok(device.first_reads())
    }
}

/// The runs of a dictionary, with the places of the nodes and filters below the upper nodes of
/// their indexes.
type Leaves<'a> = Vec<(&'a Run, IndexLeaves)>;

/// Reads as much of the indexes of the main branch and its snapshots as fits, beginning with the
/// parts that save the most requests for their size: first the upper nodes of all dictionaries,
/// then the leaf index nodes, then the filters. The leaf index nodes of a dictionary are read
/// completely or not at all, and so are its filters. They are read in the order of the states, and
/// for each state in the order of its dictionaries, the oldest first. If the leaf index nodes of a
/// dictionary are present, all of its tuples can be requested at once. If the upper nodes are
/// missing, a point read waits for one level of the index after another.
fn read_indexes<'a>(states: impl Iterator<Item = &'a Version>) -> Result<()> {
    let mut room = MOST_INDEX;
    let mut dicts: Vec<Leaves<'a>> = Vec::new();
    // States share most of their runs, and each run is read once.
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

/// Subtracts `bytes` from `room` and returns `true` if the room suffices.
fn take(room: &mut u64, bytes: u64) -> bool {
    let left = room.checked_sub(bytes);
    *room = left.unwrap_or(*room);
    left.is_some()
}
