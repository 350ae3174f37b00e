//! A queue of changes to the keys of a counted range, in commit order.

use std::collections::VecDeque;

use bytes::Bytes;
use vt_tree::Seq;

/// Approximate memory of a change without its keys, bytes.
const CHANGE_MEMORY: usize = 120;

/// A change of a key in a counted range.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// The key has a value after this change. `new` is set if the key is known to have had none
    /// before.
    Put { key: Bytes, new: bool },
    /// The key has no value after this change. `there` is set if the key is known to have had one
    /// before.
    Delete { key: Bytes, there: bool },
    /// The key may or may not have a value after this change.
    Uncertain { key: Bytes },
    /// All keys of `[start, end)` were deleted.
    DeleteRange { start: Bytes, end: Bytes },
}

impl Change {
    /// Returns the approximate memory that the change takes, bytes.
    pub fn memory(&self) -> usize {
        let keys = match self {
            Change::Put { key, .. } | Change::Delete { key, .. } | Change::Uncertain { key } => {
                key.len()
            }
            Change::DeleteRange { start, end } => start.len() + end.len(),
        };
        CHANGE_MEMORY + keys
    }
}

/// A queue of changes that tracks its memory.
#[derive(Default)]
pub(super) struct Changes {
    queue: VecDeque<(Seq, Change)>,
    bytes: usize,
}

impl Changes {
    pub fn push(&mut self, seq: Seq, change: Change) {
        self.bytes += change.memory();
        self.queue.push_back((seq, change));
    }

    /// Removes the oldest change.
    pub fn pop(&mut self) -> Option<(Seq, Change)> {
        let (seq, change) = self.queue.pop_front()?;
        self.bytes -= change.memory();
        Some((seq, change))
    }

    /// Removes the oldest change if its commit is `up_to` or earlier.
    pub fn pop_up_to(&mut self, up_to: Seq) -> Option<(Seq, Change)> {
        self.queue.front().filter(|(seq, _)| *seq <= up_to)?;
        self.pop()
    }

    /// Releases memory after many changes were removed. A queue that grows and shrinks by a few
    /// changes keeps its capacity, so that a query does not reallocate it.
    pub fn trim(&mut self) {
        if self.queue.capacity() > 4 * self.queue.len().max(16) {
            self.queue.shrink_to(2 * self.queue.len());
        }
    }

    /// Returns the approximate memory of all changes, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the commit up to which changes must be removed so that at most the newest `count`
    /// changes, of at most `bytes` bytes, stay. Returns `None` if all may stay.
    pub fn commit_before_newest(&self, count: usize, bytes: usize) -> Option<Seq> {
        let (mut stays, mut taken) = (0, 0);
        for (_, change) in self.queue.iter().rev().take(count) {
            taken += change.memory();
            if taken > bytes {
                break;
            }
            stays += 1;
        }
        let at = self.queue.len().checked_sub(1 + stays)?;
        self.queue.get(at).map(|(seq, _)| *seq)
    }

    /// Returns the changes of commits after `seq`, newest first.
    pub fn newest_after(&self, seq: Seq) -> impl Iterator<Item = &Change> {
        self.queue.iter().rev().take_while(move |(of, _)| *of > seq).map(|(_, change)| change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &'static [u8]) -> Change {
        Change::Put { key: Bytes::from_static(key), new: true }
    }

    #[test]
    fn the_memory_is_that_of_the_changes_that_are_there() {
        let mut changes = Changes::default();
        changes.push(1, put(b"a"));
        changes.push(2, put(b"bcd"));
        assert_eq!(changes.bytes(), 2 * CHANGE_MEMORY + 4);
        assert!(changes.pop_up_to(0).is_none());
        assert!(changes.pop_up_to(1).is_some());
        assert_eq!(changes.bytes(), CHANGE_MEMORY + 3);
        assert!(changes.pop().is_some());
        assert!(changes.pop().is_none());
        assert_eq!(changes.bytes(), 0);
    }

    #[test]
    fn the_newest_stay_that_fit_by_number_and_by_bytes() {
        let mut changes = Changes::default();
        for seq in 1..=10 {
            changes.push(seq, put(b"k"));
        }
        let each = CHANGE_MEMORY + 1;
        assert_eq!(changes.commit_before_newest(3, usize::MAX), Some(7));
        assert_eq!(changes.commit_before_newest(100, 2 * each), Some(8));
        assert_eq!(changes.commit_before_newest(100, 10 * each), None);
        assert_eq!(changes.newest_after(7).count(), 3);
    }
}
