//! Inode numbers that a directory has reserved for its next entries, as stored in its node.

use crate::attr::{Ino, ROOT};

/// The upper limit of inode numbers. The bits above belong to the number of the view, if a number
/// contains one.
pub(crate) const INO_LIMIT: Ino = 1 << 48;
/// A new subdirectory gets at most one in `ZONE_SHARE` of the numbers of a zone, and one in
/// `LEFT_SHARE` of those that its parent has left.
const ZONE_SHARE: u64 = 8;
const LEFT_SHARE: u64 = 3;
/// The smallest share. If it would be smaller, the subdirectory reserves a block with its first
/// entry instead.
const SMALLEST_SHARE: u64 = 4;

/// Numbers that a directory has reserved for its next files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub next: Ino,
    pub end: Ino,
}

impl Reservation {
    /// Returns a reservation of `len` numbers from `next` on, or `None` if these are not valid
    /// numbers.
    pub fn of(next: Ino, len: u64) -> Option<Reservation> {
        let end = next.checked_add(len).filter(|&end| end <= INO_LIMIT)?;
        (next > ROOT && len > 0).then_some(Reservation { next, end })
    }

    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.next)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn take(&mut self) -> Ino {
        let ino = self.next;
        self.next += 1;
        ino
    }

    /// Splits off the share of a new subdirectory: the next numbers.
    pub fn split(&mut self, zone: u64) -> Reservation {
        let share = (zone / ZONE_SHARE).min(self.len() / LEFT_SHARE);
        if share < SMALLEST_SHARE {
            return Reservation::default();
        }
        let start = self.next;
        self.next += share;
        Reservation { next: start, end: self.next }
    }
}
