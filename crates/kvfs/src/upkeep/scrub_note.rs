//! The file system's note of scrubs: when the last one ended, and how much damage it found.

use kvdb::{Batch, Durability};

use crate::error::Result;
use crate::fs::Fs;
use crate::layout;

impl Fs {
    /// Returns when the last complete scrub ended, in seconds since 1970, and the number of places
    /// at which it found damage. Returns `None` if no scrub is noted.
    pub fn last_scrub(&self) -> Result<Option<(u64, u64)>> {
        let value = self.core.db.here()?.get(self.core.layout.imap, &layout::SCRUB_KEY)?;
        Ok(value.and_then(|value| layout::decode_scrub(&value)))
    }

    /// Records that a scrub has ended now.
    pub fn note_scrub(&self, faults: u64) -> Result<()> {
        let mut batch = Batch::new();
        let value = layout::encode_scrub(self.core.env.wall().as_secs(), faults);
        batch.put(self.core.layout.imap, layout::SCRUB_KEY.to_vec(), value);
        Ok(self.core.db.here()?.commit(batch, Durability::Buffered)?)
    }
}
