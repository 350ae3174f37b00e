//! Jobs are the activities for which bytes are written. Each thread declares its job, so that the
//! device can count the bytes of each job without a parameter on every call path.

use std::cell::Cell;

thread_local! {
    static CURRENT: Cell<Job> = const { Cell::new(Job::Commits) };
}

/// An activity that writes to the device. A thread that has not declared a job writes for commits
/// and reads for clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Job {
    /// Commits: the journal, large values that are written to their places, and the work of
    /// callers, such as creating dictionaries or importing.
    #[default]
    Commits,
    /// Flushes of sealed memtables into runs.
    Flushes,
    /// Merges that the shape of the runs requires, and merges that a caller requests.
    Merges,
    /// Merges that are deferred until the store is quiet.
    QuietMerges,
    /// Merges that bring short values into their blocks.
    Gathering,
    /// Defragmentation, automatic or requested.
    Defragmentation,
    /// Laying, which copies values in the order of their use while the store is quiet.
    Laying,
    /// Reclaim, which frees space before a full store reports that it is full.
    Reclaiming,
}

impl Job {
    /// All variants, in order.
    pub const ALL: [Job; 8] = [
        Job::Commits,
        Job::Flushes,
        Job::Merges,
        Job::QuietMerges,
        Job::Gathering,
        Job::Defragmentation,
        Job::Laying,
        Job::Reclaiming,
    ];

    /// Returns the name of the job in metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            Job::Commits => "commits",
            Job::Flushes => "flushes",
            Job::Merges => "merges",
            Job::QuietMerges => "quiet_merges",
            Job::Gathering => "gathering",
            Job::Defragmentation => "defragmentation",
            Job::Laying => "laying",
            Job::Reclaiming => "reclaiming",
        }
    }

    /// Returns the current job of this thread.
    pub fn current() -> Job {
        CURRENT.get()
    }

    /// Counts the writes of this thread for this job until the guard is dropped.
    #[must_use]
    pub fn begin(self) -> AtJob {
        AtJob { before: CURRENT.replace(self) }
    }

    /// Begins the job like [`Job::begin`], unless this work is part of a background job that the
    /// thread has already begun.
    #[must_use]
    pub fn begin_unless_part(self) -> AtJob {
        let current = Job::current();
        if current == Job::Commits { self.begin() } else { current.begin() }
    }
}

/// Ends a job of this thread when it is dropped, and restores the previous job.
pub struct AtJob {
    before: Job,
}

impl Drop for AtJob {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_job_counts_as_the_job() {
        assert_eq!(Job::current(), Job::Commits);
        let merge = Job::Merges.begin_unless_part();
        assert_eq!(Job::current(), Job::Merges);
        drop(merge);
        let whole = Job::Reclaiming.begin();
        let part = Job::Merges.begin_unless_part();
        assert_eq!(Job::current(), Job::Reclaiming);
        drop(part);
        let flush = Job::Flushes.begin();
        assert_eq!(Job::current(), Job::Flushes);
        drop(flush);
        assert_eq!(Job::current(), Job::Reclaiming);
        drop(whole);
        assert_eq!(Job::current(), Job::Commits);
    }
}
