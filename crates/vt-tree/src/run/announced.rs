//! Announces reads of a run to the device before they are made. So reads of keys that are far apart
//! wait for the device only once, instead of one after the other.

use zones::Purpose;

use super::Run;
use crate::Result;
use crate::index::frame::FramePointer;

impl Run {
    /// Announces to the device what a [`Run::get`] of `key` reads next, without waiting: the tuple
    /// block, or the part of the index on the way to it that is not in memory. `hash` is the
    /// [`crate::hash`] of the key. Without it no filter is consulted, as for a key at which a range
    /// begins. Returns `false` if the run is known not to have the key.
    ///
    /// The announcement is only a hint: keys that are in no filter, and range tombstones, are
    /// ignored.
    pub fn announce(&self, key: &[u8], hash: Option<u64>) -> Result<bool> {
        let (root, mut level) = self.root();
        if key < root.low.as_ref() || key >= root.high.as_ref() {
            return Ok(false);
        }
        let (mut at, mut filter) = (root.at, root.filter);
        loop {
            // Announce the filter and the node together, since they are read one after the other.
            let filter_of_key = hash.zip(filter);
            let filter_is_here = filter_of_key.is_none_or(|(_, at)| self.is_here(at));
            if !self.is_here(at) || !filter_is_here {
                return Ok(true);
            }
            if let Some((hash, at)) = filter_of_key
                && !self.cache().filter(at)?.may_contain(hash)
            {
                return Ok(false);
            }
            let node = self.cache().index_node(at, level)?;
            let Some(i) = node.covering(key) else { return Ok(false) };
            let child = node.child_pointer(i);
            if level <= 1 {
                if !self.cache().has_block(child) {
                    let len = u64::from(child.at.len);
                    self.cache().zones().will_read(Purpose::Tuples, child.at.addr, len);
                }
                return Ok(true);
            }
            (at, filter, level) = (child.at, node.filter(i), level - 1);
        }
    }

    /// Returns whether a frame of the index can be read without a request to object storage. If
    /// not, announces it.
    fn is_here(&self, at: FramePointer) -> bool {
        let (zones, len) = (self.cache().zones(), u64::from(at.len));
        let is_here = self.cache().has_index_node(at) || zones.is_here(at.addr, len);
        if !is_here {
            zones.will_read(Purpose::Index, at.addr, len);
        }
        is_here
    }
}
