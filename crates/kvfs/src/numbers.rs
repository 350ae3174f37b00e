//! Inode numbers: one counter for a branch, its mainline and all its transactions, so that no two of them ever give a new inode the
//! same number, and commits need not be checked for it.
//!
//! The mainline takes numbers one by one. A transaction takes them in blocks and remembers these: an inode with a number out of them
//! is its own, was never seen outside, and goes without a trace when it is removed. The gaps that blocks leave cost nothing: a number
//! is never reused, and there are 2^48 of them.

use env::sync::atomic::{AtomicU64, Ordering};
use std::ops::Range;
use std::sync::Arc;

use env::sync::Mutex;

use crate::attr::Ino;

/// Numbers stay below this: the bits above are the view's where a number carries one.
pub(crate) const INO_LIMIT: Ino = 1 << 48;
/// Blocks grow from the first to the second of these.
const FIRST_BLOCK: u64 = 64;
const LARGEST_BLOCK: u64 = 1 << 16;

/// Where one view of a branch takes its numbers from.
pub(crate) struct Numbers {
    next: Arc<AtomicU64>,
    blocks: Option<Mutex<Blocks>>,
}

#[derive(Default)]
struct Blocks {
    /// Every block taken, ascending.
    taken: Vec<Range<Ino>>,
    /// What is left of the last one.
    left: Range<Ino>,
}

impl Numbers {
    /// Of a mainline whose largest number in use is below `next`.
    pub fn from(next: Ino) -> Numbers {
        Numbers { next: Arc::new(AtomicU64::new(next)), blocks: None }
    }

    /// Of a transaction of the same branch.
    pub fn for_transaction(&self) -> Numbers {
        Numbers { next: self.next.clone(), blocks: Some(Mutex::default()) }
    }

    /// Numbers from `ino` on may be taken.
    pub fn is_taken_below(&self, ino: Ino) {
        self.next.fetch_max(ino, Ordering::Relaxed);
    }

    pub fn take(&self) -> Ino {
        let Some(blocks) = &self.blocks else { return self.next.fetch_add(1, Ordering::Relaxed) };
        let mut blocks = blocks.lock();
        if blocks.left.is_empty() {
            let size = (FIRST_BLOCK << blocks.taken.len().min(32)).min(LARGEST_BLOCK);
            let start = self.next.fetch_add(size, Ordering::Relaxed);
            blocks.left = start..start + size;
            let block = blocks.left.clone();
            blocks.taken.push(block);
        }
        let ino = blocks.left.start;
        blocks.left.start += 1;
        ino
    }

    /// So many numbers, one behind the other.
    pub fn take_together(&self, count: u64) -> Range<Ino> {
        let Some(blocks) = &self.blocks else {
            let start = self.next.fetch_add(count, Ordering::Relaxed);
            return start..start + count;
        };
        let mut blocks = blocks.lock();
        let start = self.next.fetch_add(count, Ordering::Relaxed);
        blocks.taken.push(start..start + count);
        start..start + count
    }

    /// Nobody but whoever takes numbers here can have seen this inode before it commits. Of a mainline: every number.
    pub fn is_own(&self, ino: Ino) -> bool {
        let Some(blocks) = &self.blocks else { return true };
        let blocks = blocks.lock();
        let at = blocks.taken.partition_point(|block| block.start <= ino);
        at > 0 && blocks.taken[at - 1].contains(&ino)
    }

    /// The number that would be next.
    pub fn next(&self) -> Ino {
        self.next.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_out_twice_and_each_knows_its_own() {
        let mainline = Numbers::from(2);
        let (a, b) = (mainline.for_transaction(), mainline.for_transaction());
        let mut all = std::collections::BTreeMap::new();
        for i in 0..1000 {
            for (name, numbers) in [("mainline", &mainline), ("a", &a), ("b", &b)] {
                if name != "b" || i % 7 == 0 {
                    assert_eq!(all.insert(numbers.take(), name), None);
                }
            }
        }
        for (name, numbers) in [("mainline", &mainline), ("a", &a), ("b", &b)] {
            let together = numbers.take_together(100);
            assert_eq!(together.end - together.start, 100);
            together.for_each(|ino| assert_eq!(all.insert(ino, name), None));
        }
        for (ino, name) in all {
            assert_eq!(a.is_own(ino), name == "a", "{ino}");
            assert_eq!(b.is_own(ino), name == "b", "{ino}");
            assert!(mainline.is_own(ino));
        }
        assert!(!a.is_own(1) && !a.is_own(mainline.next()));
    }
}
