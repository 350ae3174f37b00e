//! The limits of a list of changes, which exists in memory in several copies while it is reported.

use crate::error::Result;

/// The maximum number of bytes of paths, targets and attributes in one list, which exists in memory
/// in several copies while it is reported. A file with many names adds a path for each name.
const MOST_LISTED: usize = 256 << 20;
/// The maximum number of changes in one list. Each change takes some hundreds of bytes in addition
/// to its path.
const MOST_CHANGES: usize = 1 << 21;
/// The length of the longest path that a call accepts, in bytes. Longer paths can be made step by
/// step.
pub(super) const LONGEST_USABLE: usize = 4096;
/// The maximum number of bytes by which whole paths may exceed `LONGEST_USABLE`, summed over a list
/// without anchors. Deep names are cheap to make, but the cost of listing them grows with the
/// square of their depth.
const MOST_BEYOND: usize = 32 << 20;

/// The bytes that a list may still take.
pub(crate) struct Room {
    left: usize,
    pub(super) most: usize,
    /// The changes that a list may still have.
    changes: usize,
    /// The part of `left` that whole paths may use beyond the length that a call accepts.
    beyond: usize,
}

impl Room {
    /// Returns the room of one list.
    pub fn of_list() -> Room {
        Room::of(MOST_LISTED)
    }

    pub(super) fn of(most: usize) -> Room {
        Room { left: most, most, changes: MOST_CHANGES, beyond: MOST_BEYOND }
    }

    /// Returns the room of a list of at most `changes` changes.
    #[cfg(test)]
    pub(super) fn of_changes(changes: usize) -> Room {
        Room { changes, ..Room::of_list() }
    }

    /// Takes room for one more change.
    pub(super) fn take_change(&mut self) -> Result<()> {
        let more = || {
            kvdb::Error::Limit(
                "more has changed than one list names: list it without what lies below \
                 directories that were added or removed"
                    .into(),
            )
        };
        self.changes = self.changes.checked_sub(1).ok_or_else(more)?;
        Ok(())
    }

    pub fn take(&mut self, bytes: usize) -> Result<()> {
        let more = || {
            kvdb::Error::Limit(format!(
                "the paths and attributes of what has changed take more than {} MiB: list it \
                 without what lies below directories that were added or removed",
                self.most >> 20
            ))
        };
        self.left = self.left.checked_sub(bytes).ok_or_else(more)?;
        Ok(())
    }

    /// Takes room for a whole path of `bytes` bytes.
    pub fn take_path(&mut self, bytes: usize) -> Result<()> {
        self.take(bytes)?;
        let deeper = || {
            kvdb::Error::Limit(format!(
                "what has changed lies so deep that its paths have more than {} MiB beyond the \
                 {LONGEST_USABLE} bytes that a path may have: list it without what lies below \
                 directories that were added or removed, or remove or restore what lies there",
                MOST_BEYOND >> 20
            ))
        };
        let beyond = bytes.saturating_sub(LONGEST_USABLE);
        self.beyond = self.beyond.checked_sub(beyond).ok_or_else(deeper)?;
        Ok(())
    }
}
