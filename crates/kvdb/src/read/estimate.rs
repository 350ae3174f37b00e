//! Estimates the size of a key range from index entries, without reading tuple blocks.

use std::ops::RangeBounds;

use vt_tree::{Estimate, KeyRange};

use crate::dictionary::DictionaryId;
use crate::error::Result;
use crate::read::bounds;
use crate::read::view::View;

impl View {
    /// Estimates the number of tuples and bytes in a range of keys, by two descents through the
    /// index of each run. See [`Estimate`] for the meaning of the figures and their error.
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
