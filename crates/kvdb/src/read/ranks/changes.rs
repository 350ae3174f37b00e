//! Changes of the keys of a counted range, in the order of their commits.

use std::collections::VecDeque;

use bytes::Bytes;
use vt_tree::Seq;

/// Memory of a change without its keys, bytes, about.
const CHANGE_MEMORY: usize = 120;

/// A change of a key in a range that is counted.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// The key has a value from here on; `new`: it is known that it had none.
    Put { key: Bytes, new: bool },
    /// The key has none from here on; `there`: it is known that it had one.
    Delete { key: Bytes, there: bool },
    /// It is not known whether the key has a value from here on.
    Uncertain { key: Bytes },
    /// All of `[start, end)` was deleted.
    DeleteRange { start: Bytes, end: Bytes },
}

impl Change {
    /// The memory that it takes, bytes, about.
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

/// A queue of changes that knows the memory that it takes.
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

    /// Removes the oldest one.
    pub fn pop(&mut self) -> Option<(Seq, Change)> {
        let (seq, change) = self.queue.pop_front()?;
        self.bytes -= change.memory();
        Some((seq, change))
    }

    /// Removes the oldest one if its commit is not after `up_to`.
    pub fn pop_up_to(&mut self, up_to: Seq) -> Option<(Seq, Change)> {
        self.queue.front().filter(|(seq, _)| *seq <= up_to)?;
        self.pop()
    }

    /// Gives memory back after many were removed. A queue that grows and shrinks by a few keeps
    /// what it has, so that a question does not move all changes.
    pub fn trim(&mut self) {
        if self.queue.capacity() > 4 * self.queue.len().max(16) {
            self.queue.shrink_to(2 * self.queue.len());
        }
    }

    /// The memory that the changes take, bytes, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// The commit of the newest change that is older than the newest `count` ones, of which no more
    /// are counted than `bytes` take.
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

    /// The changes of commits after `seq`, the newest first.
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
