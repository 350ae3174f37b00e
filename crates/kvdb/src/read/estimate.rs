//! How much lies in a range of keys, approximately: from index entries, no tuple block is read.

use std::ops::RangeBounds;

use vt_tree::{Estimate, KeyRange};

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::bounds;
use crate::read::view::View;

impl View {
    /// About how many tuples, and how many bytes, lie in a range of keys. Two descents through the
    /// index of each run; see [`Estimate`] for what the figures mean and how far off they can be.
    pub fn estimate<K: AsRef<[u8]>>(
        &self,
        dict: DictionaryId,
        range: impl RangeBounds<K>,
    ) -> Result<Estimate> {
        self.estimate_in(dict, &bounds::of(&range))
    }

    pub(crate) fn estimate_in(&self, dict: DictionaryId, range: &KeyRange) -> Result<Estimate> {
        if bounds::is_empty(range) {
            return Ok(Estimate::default());
        }
        Ok(vt_tree::estimate(&self.inputs(dict)?, range, self.at)?)
    }
}
