//! Calls about snapshots and clones, and about the data that programs have written in all views;
//! see `views/snapshots` and `views/written`.

use std::io::Read;

use kvdb::{BranchInfo, Durability, ReceiveOptions, ReceiveStats, SnapshotInfo, SnapshotLabel};

use crate::difference::{Difference, Listing};
use crate::error::Result;
use crate::views::{ViewId, Views};

impl Views {
    /// Makes a snapshot of the mainline or of a clone. With `Synced` it is on disk when this
    /// returns.
    pub fn snapshot(&self, of: &ViewId, name: &str, durability: Durability) -> Result<()> {
        self.shared.branches.snapshot(of, name, durability)
    }

    /// Returns all snapshots, the oldest first, with the device space that they keep.
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.shared.db.snapshots()
    }

    /// Returns the labels of all snapshots, the oldest first.
    pub fn snapshot_labels(&self) -> Vec<SnapshotLabel> {
        self.shared.db.snapshot_labels()
    }

    /// Returns the differences of the files from a snapshot to another one, or to the current state
    /// of its mainline or clone.
    pub fn difference_of_snapshots(
        &self,
        before: &str,
        after: Option<&str>,
        listing: Listing,
    ) -> Result<Difference> {
        self.shared.branches.difference_of_snapshots(before, after, listing)
    }

    /// Drops a snapshot. Clones of it stay.
    pub fn drop_snapshot(&self, name: &str) -> Result<()> {
        self.shared.branches.drop_snapshot(name)
    }

    /// Makes a branch out of a snapshot.
    pub fn clone_snapshot(&self, snapshot: &str, name: &str) -> Result<()> {
        self.shared.branches.clone_snapshot(snapshot, name)
    }

    /// Returns all clones, by name.
    pub fn clones(&self) -> Vec<BranchInfo> {
        self.shared.db.branches()
    }

    /// Drops a clone and everything in it. Its snapshots stay.
    pub fn drop_clone(&self, name: &str) -> Result<()> {
        self.shared.branches.drop_clone(name)
    }

    /// Receives a stream of [`kvdb::Kvdb::send`] into the clone that the options name, which need
    /// not exist; see [`kvdb::Kvdb::receive`]. The mainline is in use, so it cannot be replaced.
    pub fn receive(&self, input: impl Read, options: &ReceiveOptions) -> Result<ReceiveStats> {
        self.shared.branches.receive(input, options)
    }

    /// Resets the mainline, or the clone of the snapshot, to the state of the snapshot.
    pub fn rollback(&self, snapshot: &str) -> Result<()> {
        self.shared.branches.rollback(snapshot)
    }

    // --- what was written

    /// Makes the kernel write back all data that programs have written, in every view.
    pub fn hand_over_written(&self) -> Result<()> {
        self.shared.written.hand_over()
    }

    /// Commits everything that programs have written in the mainline and in all views, including
    /// data that the kernel holds back. To be called before a change of the store that is on disk
    /// at once, such as the drop of a dictionary: what was written before is then on disk with it.
    pub fn commit_written(&self) -> Result<()> {
        self.shared.written.commit()
    }

    /// Commits everything in the mainline and in all clones, including data that the kernel holds
    /// back, and syncs it. Files that open serializable transactions have locked are left out.
    pub fn sync_all(&self) -> Result<()> {
        self.shared.written.sync_all()
    }

    /// Commits everything in all clones and in durable transactions, and syncs it. The mainline and
    /// the other transactions are left to their owners.
    pub fn shutdown(&self) -> Result<()> {
        self.shared.written.shutdown()
    }
}
