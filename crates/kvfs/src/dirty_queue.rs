//! The queue of inodes with uncommitted changes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use env::sync::Mutex;

use crate::inode::Inode;

/// The inodes with something uncommitted, the longest waiting first.
#[derive(Default)]
pub(crate) struct DirtyQueue {
    /// With the time since when. An inode is in it at most once, and may have been
    /// committed since.
    queue: Mutex<VecDeque<(Duration, Arc<Inode>)>>,
    /// Held from taking inodes out of the queue until they are committed: a thread that finds the
    /// queue empty under it knows that everything is committed. The first lock behind the freeze
    /// lock: see `inode`.
    pub draining: Mutex<()>,
}

impl DirtyQueue {
    /// How many inodes wait.
    pub fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// Puts an inode behind all others; it waits since `now`.
    pub fn push(&self, now: Duration, inode: Arc<Inode>) {
        self.queue.lock().push_back((now, inode));
    }

    /// Takes out the inodes that wait longest, up to `most`, of those that wait since `limit` or
    /// longer.
    pub fn pop(&self, limit: Duration, most: usize) -> Vec<Arc<Inode>> {
        let mut queue = self.queue.lock();
        let old = queue.iter().take(most).take_while(|(since, _)| *since <= limit).count();
        queue.drain(..old).map(|(_, inode)| inode).collect()
    }
}
