//! The public API for scrubs; [`crate::scrub`] implements it.

use crate::error::Result;
use crate::scrub::{ScrubFault, ScrubOptions, ScrubProgress};

impl crate::Kvdb {
    /// Starts to read all data of the store and to compare it with its checksums, on a thread of
    /// low priority. Clients continue to work. Returns `false` if a scrub is already in progress.
    /// In a store without threads, the scrub is complete when this returns, and its rate is not
    /// limited. See [`crate::Kvdb::scrub_progress`].
    ///
    /// ```
    /// # let db = kvdb::Kvdb::in_memory();
    /// # db.open_dictionary("d")?.insert("a", "1")?;
    /// # db.flush()?;
    /// db.scrub(kvdb::ScrubOptions { bytes_per_second: Some(32 << 20) })?;
    /// db.wait_for_scrub();
    /// assert!(db.scrub_progress().complete);
    /// assert_eq!(db.scrub_faults(), []);
    /// # Ok::<(), kvdb::Error>(())
    /// ```
    pub fn scrub(&self, options: ScrubOptions) -> Result<bool> {
        self.db.scrubber.start(options)
    }

    /// Returns the progress of the current scrub, or of the last scrub if none is in progress.
    pub fn scrub_progress(&self) -> ScrubProgress {
        self.db.scrubber.progress()
    }

    /// Returns the first thousand faults that the current or the last scrub has found.
    pub fn scrub_faults(&self) -> Vec<ScrubFault> {
        self.db.scrubber.faults()
    }

    /// Stops a scrub after its current read.
    pub fn stop_scrub(&self) {
        self.db.scrubber.stop();
    }

    /// Waits until no scrub is in progress.
    pub fn wait_for_scrub(&self) {
        self.db.scrubber.wait_for_end();
    }
}
