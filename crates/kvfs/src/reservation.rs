//! Inode numbers that a directory has reserved for its next entries: what its node says of its
//! zone.

use crate::attr::{Ino, ROOT};

/// Numbers stay below this: the bits above are the view's where a number carries one.
pub(crate) const INO_LIMIT: Ino = 1 << 48;
/// A new subdirectory gets one in this many of the numbers of a zone at most, and one in that many
/// of those that its parent has left.
const ZONE_SHARE: u64 = 8;
const LEFT_SHARE: u64 = 3;
/// Fewer numbers are not worth a share: the subdirectory reserves a block with its first entry.
const SMALLEST_SHARE: u64 = 4;

/// Numbers that a directory has reserved for its next files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub next: Ino,
    pub end: Ino,
}

impl Reservation {
    /// `None`: there are no such numbers.
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

    /// Takes off what a new subdirectory gets of it: the numbers that would be next.
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
