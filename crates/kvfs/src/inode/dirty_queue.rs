//! The queue of inodes with uncommitted changes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use env::sync::Mutex;

use crate::inode::Inode;

/// The inodes with uncommitted changes. The inode that has waited longest is first.
#[derive(Default)]
pub(crate) struct DirtyQueue {
    /// The inodes, each with the time at which it became dirty. An inode is queued at most once,
    /// and may have been committed in the meantime.
    queue: Mutex<VecDeque<(Duration, Arc<Inode>)>>,
    /// The draining lock, which a thread holds from when it takes inodes out of the queue until
    /// they are committed. A thread that finds the queue empty under this lock knows that
    /// everything is committed. In the lock order it follows the freeze lock. See `inode`.
    pub draining: Mutex<()>,
}

impl DirtyQueue {
    /// Returns the number of waiting inodes.
    pub fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// Appends an inode that became dirty at `now`.
    pub fn push(&self, now: Duration, inode: Arc<Inode>) {
        self.queue.lock().push_back((now, inode));
    }

    /// Takes out up to `most` of the inodes that wait longest and became dirty at `limit` or
    /// before.
    pub fn pop(&self, limit: Duration, most: usize) -> Vec<Arc<Inode>> {
        let mut queue = self.queue.lock();
        let old = queue.iter().take(most).take_while(|(since, _)| *since <= limit).count();
        queue.drain(..old).map(|(_, inode)| inode).collect()
    }
}
