//! Creates, opens and drops snapshots.
//!
//! If all data is in runs, a snapshot is one edit of the manifest. Otherwise the active generation
//! is sealed, with the snapshot's record as its last; if the power fails before it is flushed, the
//! journal's replay seals it at the same point again. The flush that writes the generation moves
//! the journal's start past that record in the same edit, so the record is never applied twice.

use env::sync::atomic::Ordering;
use std::cell::Cell;
use std::sync::Arc;

use vt_tree::Seq;

use super::branches::know;
use super::held::bytes_of;
use super::{SnapshotInfo, Snapshotter, bases};
use crate::commit::SnapshotMaker;
use crate::commit::batch::Durability;
use crate::error::{Error, Result};
use crate::ids::Label;
use crate::journal::record;
use crate::lock_order::MutexGuard;
use crate::manifest::Edit;
use crate::read::view::View;
use crate::version::Version;
use crate::version::snapshot_set::{Snapshot, Snapshots, above};
use crate::version::version_set::{Order, VersionEdit};

/// If this many snapshots wait for their flush, the next one is made after it. Each of them has
/// requested that flush, so there are that many only if the disk is too slow.
const MOST_WAITING: usize = 256;
/// The same limit for a store without threads, whose flush would not begin before: the number of
/// parts that one flush writes.
const MOST_WAITING_INLINE: usize = 64;

/// The snapshot at the end of a generation that is being sealed.
pub(crate) struct EndOfGeneration<'a> {
    snapshots: &'a Snapshots,
    made: Cell<Option<(u64, Arc<Snapshot>)>>,
}

impl<'a> EndOfGeneration<'a> {
    pub(crate) fn new(snapshots: &'a Snapshots) -> Self {
        EndOfGeneration { snapshots, made: Cell::new(None) }
    }

    /// Makes the snapshot of `version`, and returns its record.
    pub(crate) fn record(&self, label: Label, version: &Version) -> Vec<u8> {
        let snapshot = self.snapshots.of(label, above(version), version);
        let record = record::snapshot(&snapshot.label, snapshot.below);
        self.made.set(Some((version.generation.number, snapshot)));
        record
    }

    /// Makes the snapshot readable once the generation is sealed.
    pub(crate) fn closed(&self) {
        if let Some((generation, snapshot)) = self.made.take() {
            self.snapshots.begin(generation, snapshot);
        }
    }
}

/// A snapshot that ends the active generation.
struct OfMemory<'a> {
    label: Label,
    end: EndOfGeneration<'a>,
}

impl SnapshotMaker for OfMemory<'_> {
    fn record_size(&self) -> usize {
        // An upper bound of the size of its record.
        self.label.name.len() + self.label.branch.len() + 64 + record::NUMBER_SIZE
    }

    fn record(&self, version: &Version, seq: Seq) -> Vec<u8> {
        self.end.record(Label { seq, ..self.label.clone() }, version)
    }

    fn closed(&self) {
        self.end.closed();
    }
}

impl Snapshotter {
    pub(crate) fn snapshot(&self, branch: &str, name: &str, durability: Durability) -> Result<()> {
        self.engine.health.writable()?;
        self.bound_waiting()?;
        {
            let _naming = self.engine.snapshots.naming.lock();
            if self.engine.snapshots.get(name).is_some() {
                return Err(Error::Exists(format!("snapshot {name}")));
            }
            if !self.engine.versions.load().has_branch(branch) {
                return Err(Error::NoBranch(branch.into()));
            }
            let label = self.label(branch, name);
            if self.snapshot_of_runs(&label)? {
                return Ok(());
            }
            // The snapshot consists of the active generation and everything before it.
            let end = EndOfGeneration::new(&self.engine.snapshots);
            self.commits.seal_with_snapshot(&OfMemory { label, end })?;
        }
        match durability {
            Durability::Buffered => Ok(()),
            Durability::Synced => self.commits.sync(&*self.admission),
        }
    }

    /// Limits the number of snapshots that wait for their flush, since each adds a memtable to
    /// every lookup.
    fn bound_waiting(&self) -> Result<()> {
        let most = if self.engine.inline { MOST_WAITING_INLINE } else { MOST_WAITING };
        if self.engine.snapshots.waiting() < most {
            return Ok(());
        }
        match self.flusher.flush_sealed() {
            // These callers continue to wait.
            Err(Error::NoSpace) => Ok(()),
            flushed => flushed.map(drop),
        }
    }

    pub(crate) fn label(&self, branch: &str, name: &str) -> Label {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.engine.env.random().to_le_bytes());
        id[8..].copy_from_slice(&self.engine.env.random().to_le_bytes());
        let seq = self.engine.versions.visible.load(Ordering::Acquire);
        let created = self.engine.snapshots.next_date(self.engine.env.wall());
        Label { name: name.into(), branch: branch.into(), id, created, seq }
    }

    /// Makes a snapshot as an edit if all data is in runs, and returns `false` otherwise. The
    /// caller holds `naming`.
    fn snapshot_of_runs(&self, label: &Label) -> Result<bool> {
        // No flush can run under this lock.
        let Some(_flushing) = self.flusher.try_lock() else { return Ok(false) };
        let version = self.engine.versions.load_full();
        if self.engine.snapshots.next_pending().is_some()
            || self.commits.newest_sealed().is_some()
            || !version.is_flushed()
        {
            return Ok(false);
        }
        // Commits made in the meantime are in memtables and not part of the snapshot.
        let edit = Edit::Snapshot { label: label.clone(), below: above(&version) };
        self.engine.versions.install(Order::OfRuns, |_| VersionEdit::of([edit]))?;
        Ok(true)
    }

    /// Locks `naming` once no snapshot waits for its flush, for callers that create, drop or change
    /// dictionaries.
    pub(crate) fn settled(&self) -> Result<MutexGuard<'_, ()>> {
        loop {
            let naming = self.engine.snapshots.naming.lock();
            if self.engine.snapshots.next_pending().is_none() {
                return Ok(naming);
            }
            drop(naming);
            self.flusher.flush_sealed()?;
            // A snapshot whose journal could not be written is never flushed.
            self.engine.health.check()?;
        }
    }

    pub(crate) fn open_snapshot(&self, name: &str) -> Result<View> {
        let snapshot =
            self.engine.snapshots.get(name).ok_or_else(|| Error::NoSnapshot(name.into()))?;
        Ok(self.open(&snapshot))
    }

    /// Returns a view of a snapshot, whether or not it has been dropped since.
    pub(crate) fn open(&self, snapshot: &Snapshot) -> View {
        let mut view = self.engine.versions.view();
        view.version.version = snapshot.version();
        view.snapshot = Some(snapshot.label.id);
        view
    }

    pub(crate) fn label_of(&self, name: &str) -> Option<Label> {
        self.engine.snapshots.get(name).map(|snapshot| snapshot.label.clone())
    }

    /// Returns the labels of all snapshots, the oldest first.
    pub(crate) fn labels(&self) -> impl Iterator<Item = Label> {
        self.engine.snapshots.list().into_iter().map(|snapshot| snapshot.label.clone())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.engine.snapshots.get(name).is_some()
    }

    pub(crate) fn drop_snapshot(&self, name: &str) -> Result<()> {
        self.engine.health.writable()?;
        self.commits.flush_before_edit(&*self.admission)?;
        let naming = self.settled()?;
        let Some(gone) = self.engine.snapshots.get(name) else {
            return Err(Error::NoSnapshot(name.into()));
        };
        self.commits.install(|state| {
            let edit = bases::drop_of(state, &gone);
            // Its dictionaries are visited only if it gets a new name.
            let stays = matches!(edit, Edit::RenameSnapshot { .. });
            let mut change = VersionEdit::of([edit]);
            if stays {
                know(&mut change, state, &gone);
            }
            change
        })?;
        drop(naming);
        // Release its runs outside of all locks.
        drop(gone);
        self.engine.signals.reclaimable.store(true, Ordering::Release);
        Ok(())
    }

    /// Lists all snapshots, the oldest first.
    pub(crate) fn list(&self) -> Vec<SnapshotInfo> {
        let all: Vec<[Arc<Snapshot>; 1]> =
            self.engine.snapshots.list().into_iter().map(|s| [s]).collect();
        let unique = self.held_by(&all);
        let with_version = |[snapshot]: [Arc<Snapshot>; 1]| {
            let version = snapshot.version();
            (snapshot, version)
        };
        let all: Vec<(Arc<Snapshot>, Arc<Version>)> = all.into_iter().map(with_version).collect();
        let figures = bytes_of(&all).into_iter().zip(unique);
        let infos = all.iter().zip(figures).map(|((snapshot, version), (bytes, unique_bytes))| {
            SnapshotInfo {
                name: snapshot.label.name.clone(),
                branch: snapshot.label.branch.clone(),
                id: snapshot.label.id,
                created: snapshot.label.created,
                seq: snapshot.label.seq,
                dictionaries: version.trees.len(),
                bytes,
                unique_bytes,
            }
        });
        infos.collect()
    }
}
