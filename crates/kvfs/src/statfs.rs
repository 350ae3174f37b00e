//! The room in the store, as `df` shows it.

use crate::attr::StatFs;
use crate::error::Result;
use crate::fs::Fs;
use crate::layout::PAGE;
use crate::space_account::SPACE_MARGIN;

/// Store bytes that a small inode with its name takes, roughly: for the estimate of how many fit.
const INODE_BYTES: u64 = 512;

impl Fs {
    /// The size and free space of the store.
    pub fn statfs(&self) -> Result<StatFs> {
        let space = self.core.db.space();
        let free = space.free.saturating_sub(self.core.space.dirty_bytes() as u64 + SPACE_MARGIN);
        let used = self.statistics().next_ino;
        Ok(StatFs {
            block_size: PAGE as u32,
            blocks: space.total / PAGE,
            free: free / PAGE,
            files: used + free / INODE_BYTES,
            files_free: free / INODE_BYTES,
            name_max: 255,
        })
    }
}
