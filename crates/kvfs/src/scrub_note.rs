//! What the file system notes of scrubs: when the last one came to its end, and what it found.

use kvdb::{Batch, Durability};

use crate::error::Result;
use crate::fs::Fs;
use crate::layout;

impl Fs {
    /// When everything was last read again to its end, seconds since 1970, and in how many places
    /// that found damage. `None`: never, as far as is noted.
    pub fn last_scrub(&self) -> Result<Option<(u64, u64)>> {
        let value = self.core.db.here()?.get(self.core.layout.imap, &layout::SCRUB_KEY)?;
        Ok(value.and_then(|value| layout::decode_scrub(&value)))
    }

    /// Notes that a scrub came to its end now.
    pub fn note_scrub(&self, faults: u64) -> Result<()> {
        let mut batch = Batch::new();
        let value = layout::encode_scrub(self.core.env.wall().as_secs(), faults);
        batch.put(self.core.layout.imap, layout::SCRUB_KEY.to_vec(), value);
        Ok(self.core.db.here()?.commit(batch, Durability::Buffered)?)
    }
}
