//! Tells the kernel what the daemon of a mount from a server changes by itself, at the request of a
//! command. The mount has one view, whose inodes the kernel knows by their own numbers.

use std::sync::Arc;

use kvfs::{ChangeSet, CommittedTo, Fs, ROOT, ViewId, Views, Wait, Watcher};
use kvfs_fuse::{Invalidator, NodeId};

/// Follows the changes of the view until it is dropped.
pub struct ToldKernel(Arc<dyn Invalidator>);

impl ToldKernel {
    pub fn start(views: &Views, invalidator: Arc<dyn Invalidator>) -> Arc<ToldKernel> {
        let told = Arc::new(ToldKernel(invalidator));
        let watcher: Arc<dyn Watcher> = told.clone();
        views.watch(&watcher);
        told
    }

    /// Makes the kernel ask again about everything that it knows of these files.
    pub fn drop_all(&self, fs: &Fs) {
        for ino in fs.referenced().into_iter().chain([ROOT]) {
            // Inodes that the kernel has forgotten in the meantime are no error.
            let _ = self.0.invalidate_inode(NodeId(ino));
        }
    }
}

impl Watcher for ToldKernel {
    fn write_back(&self, _: Wait) -> Result<(), String> {
        Ok(())
    }

    fn appeared(&self, _: &ViewId) {}

    fn ended(&self, _: &ViewId, _: u16, _: &Fs, _: Option<CommittedTo<'_>>) {}

    fn changed(&self, _: u16, _: &Fs, changes: &ChangeSet) {
        // Names and inodes that the kernel does not know are no error.
        for (ino, _) in &changes.inodes {
            let _ = self.0.invalidate_inode(NodeId(*ino));
        }
        for (dir, name, _) in &changes.names {
            let _ = self.0.expire_name(NodeId(*dir), name);
        }
    }
}
