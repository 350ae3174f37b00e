//! The space in the store, as `df` shows it.

use crate::attr::StatFs;
use crate::error::Result;
use crate::fs::Fs;
use crate::layout::PAGE;
use crate::space::space_account::SPACE_MARGIN;

/// Approximate size of a small inode with its name in the store, in bytes, to estimate how many
/// fit.
const INODE_BYTES: u64 = 512;

impl Fs {
    /// Returns the size and free space of the store. For a transaction or a clone with a limit, the
    /// free space is that within the limit, and so is the number of files that it may still make.
    pub fn statfs(&self) -> Result<StatFs> {
        let space = self.core.db.space();
        let dirty = self.core.space.dirty_bytes() as u64;
        let of_limit = self.core.free_space.room().map(|room| room.saturating_sub(dirty));
        let free = space.free.saturating_sub(dirty + SPACE_MARGIN);
        let free = of_limit.map_or(free, |room| room.min(free));
        let inodes = free / INODE_BYTES;
        let inodes = self.core.files.room()?.map_or(inodes, |room| room.min(inodes));
        let used = self.statistics().next_ino;
        Ok(StatFs {
            block_size: PAGE as u32,
            blocks: space.total / PAGE,
            free: free / PAGE,
            files: used + inodes,
            files_free: inodes,
            name_max: 255,
        })
    }

    /// Returns the number of the view's own files.
    pub fn files_of_its_own(&self) -> Result<u64> {
        self.core.files.own()
    }

    /// Returns whether the store is so full that a write may soon be refused for lack of space:
    /// then writes out of a cache have to be announced ([`Fs::announce_cached`]). The answer is
    /// updated after each 4 MiB written. Call on the mainline.
    pub fn is_tight(&self) -> bool {
        self.core.space.is_tight()
    }
}
