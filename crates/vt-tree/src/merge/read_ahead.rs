//! Announces to the device the tuple blocks that a merge will probably read.
//!
//! A merge reads blocks of its inputs alternately. For the device this is random access, even if
//! each input is stored in order; on a hard disk it costs a seek for each block. So once a merge
//! has opened successive blocks of an input, the following ones in the same leaf index node are
//! announced as well. A merge does not read the blocks that it stitches, so a stitched block ends
//! the streak.

use crate::cache::BlockCache;
use crate::index::entry::Entry;

/// The number of successive blocks that must be opened before any is announced.
const STREAK: u32 = 2;
/// Bounds of the bytes announced for an input. Within them, as much is announced as can be read in
/// the time of two seeks, so that at most a third of the time is spent on seeks.
const WINDOW_MIN: u64 = 256 << 10;
const WINDOW_MAX: u64 = 2 << 20;

/// The announced blocks of one input.
#[derive(Default)]
pub(super) struct MergeReadAhead {
    streak: u32,
    /// The number of announced entries of the leaf index node, counted from the next entry on, and
    /// their bytes.
    entries: usize,
    bytes: u64,
}

impl MergeReadAhead {
    /// Records that the merge opens the first of `rest`, the current and following entries of a
    /// leaf index node, and announces following ones.
    pub fn opens(&mut self, cache: &BlockCache, rest: &[Entry]) {
        self.streak = self.streak.saturating_add(1);
        let window = (2 * cache.seek_bytes()).clamp(WINDOW_MIN, WINDOW_MAX);
        if self.streak >= STREAK && self.bytes <= window / 2 {
            let mut blocks = Vec::new();
            for e in rest.iter().skip(self.entries) {
                if self.bytes >= window {
                    break;
                }
                if !cache.has_tuples(e.at) {
                    blocks.push((e.at.addr, e.at.len));
                }
                self.entries += 1;
                self.bytes += u64::from(e.at.len);
            }
            cache.announce_blocks(blocks);
        }
        if let (Some(current), 1..) = (rest.first(), self.entries) {
            self.entries -= 1;
            self.bytes = self.bytes.saturating_sub(u64::from(current.at.len));
        }
    }

    /// Records that the merge passes over a block or a subtree without opening it.
    pub fn passes(&mut self) {
        *self = MergeReadAhead::default();
    }
}
