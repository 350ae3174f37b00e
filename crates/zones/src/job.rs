//! For whom bytes are written. Each thread says which job it is at, so that the device can count
//! what each of them writes without a parameter on every way to it.

use std::cell::Cell;

thread_local! {
    static CURRENT: Cell<Job> = const { Cell::new(Job::Commits) };
}

/// What writes to the device. A thread that has not said otherwise writes for commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Job {
    /// Commits: the journal, large values on their way to their places, and what callers do
    /// themselves, such as creating dictionaries or importing.
    #[default]
    Commits,
    /// Sealed memtables become runs.
    Flushes,
    /// Merges that the shape of the runs calls for, and those that a caller asks for.
    Merges,
    /// Merges that are put off until the store is quiet.
    QuietMerges,
    /// Merges that bring short values into their blocks.
    Gathering,
    /// Defragmentation, by itself or by hand.
    Defragmentation,
    /// What a full store does before it says so.
    Reclaiming,
}

impl Job {
    /// All variants, in order.
    pub const ALL: [Job; 7] = [
        Job::Commits,
        Job::Flushes,
        Job::Merges,
        Job::QuietMerges,
        Job::Gathering,
        Job::Defragmentation,
        Job::Reclaiming,
    ];

    /// The name in metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            Job::Commits => "commits",
            Job::Flushes => "flushes",
            Job::Merges => "merges",
            Job::QuietMerges => "quiet_merges",
            Job::Gathering => "gathering",
            Job::Defragmentation => "defragmentation",
            Job::Reclaiming => "reclaiming",
        }
    }

    /// The job that this thread is at.
    pub fn current() -> Job {
        CURRENT.get()
    }

    /// What this thread writes is for this job until the guard is dropped.
    #[must_use]
    pub fn begin(self) -> AtJob {
        AtJob { before: CURRENT.replace(self) }
    }

    /// [`Job::begin`], unless the thread is at a job of the background already, of which this is a
    /// part.
    #[must_use]
    pub fn begin_unless_part(self) -> AtJob {
        let current = Job::current();
        if current == Job::Commits { self.begin() } else { current.begin() }
    }
}

/// Ends a job of this thread, and lets it go on with the one before.
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
