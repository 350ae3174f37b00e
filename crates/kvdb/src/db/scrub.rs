//! Scrubs as clients of a store see them; [`crate::scrub`] does them.

use crate::error::Result;
use crate::scrub::{ScrubFault, ScrubOptions, ScrubProgress};

impl crate::Kvdb {
    /// Starts to read everything that the store consists of and to compare it with its checksums,
    /// on a thread of low priority; clients go on. `false`: that was under way already.
    /// In a store without threads it is done when this returns, at no rate. See
    /// [`crate::Kvdb::scrub_progress`].
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
        self.db.0.scrubber.start(options)
    }

    /// How far the scrub is, or how far the last one came.
    pub fn scrub_progress(&self) -> ScrubProgress {
        self.db.0.scrubber.progress()
    }

    /// What the scrub under way, or the last one, has found: the first thousand places.
    pub fn scrub_faults(&self) -> Vec<ScrubFault> {
        self.db.0.scrubber.faults()
    }

    /// Ends a scrub after the read that it is at.
    pub fn stop_scrub(&self) {
        self.db.0.scrubber.stop();
    }

    /// Returns when no scrub is under way.
    pub fn wait_for_scrub(&self) {
        self.db.0.scrubber.wait_for_end();
    }
}
