//! Syncs of one file and of everything, and the commits of the flush interval.
//!
//! A sync of a file commits its dirty data (`dirty`), and then waits until the store is durable,
//! which is the same wait for all files.

use std::time::Duration;

use kvdb::Batch;

use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::fs::Fs;

/// The maximum number of dirty bytes of a file that a caller commits if the caller must not wait
/// for the device. The bytes go into the buffer of the journal.
const MOST_COMMITTED_IN_PLACE: usize = 16 << 10;

/// The progress that [`Fs::begin_fsync`] has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FSync {
    /// There is nothing to wait for.
    Done,
    /// The file is on disk after the next [`Fs::sync_store`].
    WithNext,
    /// The call had no effect, because the sync has to wait for the device or for a lock.
    Alone,
}

impl Fs {
    /// Commits the dirty data of this inode and waits until it and the inode's names are on disk.
    /// Data of other files is not committed.
    ///
    /// Fails with [`Error::NotSynced`] (EIO) once the store has failed. If space is lacking
    /// (ENOSPC), the data stays in memory, and a later sync or the interval writes it.
    ///
    /// `_data_only` makes no difference: size and times are in the same batch as the data.
    pub fn fsync(&self, ino: Ino, _data_only: bool) -> Result<()> {
        self.fsync_once(ino).map_err(Error::of_sync)
    }

    fn fsync_once(&self, ino: Ino) -> Result<()> {
        if self.core.options.read_only {
            return Ok(());
        }
        match self.core.locks.retry(|| self.commit_before_sync(ino, usize::MAX))? {
            FSync::Done => Ok(()),
            // The freeze lock is released, so that freezing the view does not wait for the disk.
            FSync::WithNext | FSync::Alone => Ok(self.core.scope.sync()?),
        }
    }

    /// Does the part of an fsync that does not wait: a small file is committed, and is on disk
    /// after [`Fs::sync_store`], which many files can share. All other files are left to
    /// [`Fs::fsync`].
    pub fn begin_fsync(&self, ino: Ino) -> Result<FSync> {
        if self.core.options.read_only {
            return Ok(FSync::Done);
        }
        if !matches!(self.core.scope, kvdb::Scope::Mainline(_)) {
            return Ok(FSync::Alone);
        }
        match kvdb::without_lock_waits(|| self.commit_before_sync(ino, MOST_COMMITTED_IN_PLACE)) {
            Err(e) if e.is_locked() => Ok(FSync::Alone),
            begun => begun.map_err(Error::of_sync),
        }
    }

    /// Waits until everything that was committed before this call is on disk: the second half of an
    /// fsync.
    pub fn sync_store(&self) -> Result<()> {
        self.core.scope.sync().map_err(|e| Error::from(e).of_sync())
    }

    fn commit_before_sync(&self, ino: Ino, most: usize) -> Result<FSync> {
        let _call = self.enter()?;
        let Some(inode) = self.core.inode_cache.get(ino) else { return Ok(FSync::WithNext) };
        let mut state = inode.state.write();
        match () {
            // A file without a name does not exist after a crash.
            () if state.attr.nlink == 0 => Ok(FSync::Done),
            () if state.charged > most => Ok(FSync::Alone),
            () => self
                .commit_dirty_with(&inode, &mut state, Batch::sync_follows)
                .map(|()| FSync::WithNext),
        }
    }

    /// Syncs a directory: its names are on disk when this returns. See [`Fs::fsync`].
    pub fn fsyncdir(&self, ino: Ino) -> Result<()> {
        self.fsync(ino, false)
    }

    /// Commits everything and waits until it is on disk.
    pub fn sync_all(&self) -> Result<()> {
        if self.core.options.read_only {
            return Ok(());
        }
        let committed = self.core.locks.retry(|| {
            let _call = self.enter()?;
            self.commit_older_than(Duration::MAX)
        });
        self.core.scope.sync().map_err(|e| Error::from(e).of_sync())?;
        committed.map_err(Error::of_sync)
    }

    /// Commits changes that have waited for half the flush interval, removes the orphans that could
    /// not be removed before, and syncs the store. The file system's own thread calls this every
    /// half interval, and over a wire at least every few seconds; if the environment runs inline,
    /// the owner does.
    pub fn tick(&self) -> Result<()> {
        if self.core.options.read_only {
            return Ok(());
        }
        let now = self.core.env.monotonic();
        let limit = now.saturating_sub(self.core.options.flush_interval / 2);
        let committed = self
            .enter()
            .and_then(|_call| kvdb::without_lock_waits(|| self.commit_older_than(limit)));
        self.remove_left_orphans();
        self.core.scope.sync_at_interval()?;
        committed
    }
}
