//! I/O statistics of the device by purpose, from which write amplification and the cost of a scan
//! can be computed.

use crate::{Job, Purpose};

/// The I/O of one purpose since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurposeStats {
    /// The number of reads.
    pub read_ops: u64,
    /// The number of bytes that were read.
    pub read_bytes: u64,
    /// The number of ranges that were announced before they were read. The reads themselves are
    /// counted as well.
    pub ahead_ops: u64,
    /// The number of bytes that were announced.
    pub ahead_bytes: u64,
    /// The number of writes.
    pub write_ops: u64,
    /// The number of bytes that were written.
    pub write_bytes: u64,
    /// The number of accesses that did not begin where the previous access ended.
    pub seeks: u64,
}

/// The I/O since the store was opened. The difference between two such values is the I/O in
/// between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStats {
    /// The I/O of each purpose, in the order of [`Purpose::ALL`].
    pub by_purpose: [PurposeStats; Purpose::ALL.len()],
    /// The number of bytes that each job has written, in the order of [`Job::ALL`].
    pub written_by_job: [u64; Job::ALL.len()],
    /// The number of reads by threads that do not perform a background job.
    pub client_read_ops: u64,
    /// The number of syncs.
    pub syncs: u64,
    /// The number of ranges that were given back to the host.
    pub discards: u64,
    /// The number of bytes that were given back to the host.
    pub discarded_bytes: u64,
}

impl IoStats {
    /// Returns the I/O of one purpose.
    pub fn of(&self, purpose: Purpose) -> &PurposeStats {
        &self.by_purpose[purpose as usize]
    }

    /// Returns the number of bytes that one job has written.
    pub fn written_by(&self, job: Job) -> u64 {
        self.written_by_job[job as usize]
    }

    /// Returns the number of bytes that each job has written.
    pub fn jobs(&self) -> impl Iterator<Item = (Job, u64)> {
        Job::ALL.into_iter().zip(self.written_by_job)
    }

    /// Returns the sum of the I/O over all purposes.
    pub fn total(&self) -> PurposeStats {
        self.by_purpose.iter().fold(PurposeStats::default(), |sum, p| PurposeStats {
            read_ops: sum.read_ops + p.read_ops,
            read_bytes: sum.read_bytes + p.read_bytes,
            ahead_ops: sum.ahead_ops + p.ahead_ops,
            ahead_bytes: sum.ahead_bytes + p.ahead_bytes,
            write_ops: sum.write_ops + p.write_ops,
            write_bytes: sum.write_bytes + p.write_bytes,
            seeks: sum.seeks + p.seeks,
        })
    }

    /// Returns the I/O of each purpose.
    pub fn iter(&self) -> impl Iterator<Item = (Purpose, &PurposeStats)> {
        Purpose::ALL.into_iter().zip(&self.by_purpose)
    }
}
