//! Maps the inode numbers of a fork to the numbers that a merge shows. Numbers that the fork has
//! allocated since it began belong to other files in the parent store. A merge therefore shows them
//! as numbers of a block that the parent has reserved for the merge. A number below the bound of
//! all numbers that were allocated when the fork began means the same file in both stores.

use std::ops::Range;

use crate::attr::Ino;
use crate::error::{Error, Result};

/// The mapping from the stored inode numbers of a state to the shown ones.
#[derive(Clone, Debug)]
pub(crate) struct Numbering {
    /// The numbers below this bound are shown as they are stored.
    bound: Ino,
    /// The block of numbers as which the other numbers are shown, in the same order.
    block: Range<Ino>,
}

impl Numbering {
    /// The numbering that shows all numbers as they are stored.
    pub const PLAIN: Numbering = Numbering { bound: Ino::MAX, block: 0..0 };

    /// Returns a numbering that shows the numbers from `bound` on as the numbers of `block`, which
    /// begins at or after `bound`.
    pub fn shifted(bound: Ino, block: Range<Ino>) -> Numbering {
        debug_assert!(block.start >= bound);
        Numbering { bound, block }
    }

    /// Returns the shown form of a stored number. Fails if the state cannot have allocated that
    /// number.
    pub fn shown(&self, stored: Ino) -> Result<Ino> {
        if stored < self.bound {
            return Ok(stored);
        }
        let shown = (stored - self.bound).checked_add(self.block.start);
        shown.filter(|shown| self.block.contains(shown)).ok_or_else(|| Error::Corrupt {
            ino: stored,
            what: "the number is above all that were given".into(),
        })
    }

    /// Returns the stored number that is shown as `shown`, or `None` if no such number exists.
    pub fn stored(&self, shown: Ino) -> Option<Ino> {
        match shown {
            shown if shown < self.bound => Some(shown),
            shown if self.block.contains(&shown) => Some(shown - self.block.start + self.bound),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_shown_as_one_and_none_is_shown_as_two() {
        let numbers = Numbering::shifted(100, 130..150);
        assert_eq!((numbers.shown(99).unwrap(), numbers.stored(99)), (99, Some(99)));
        assert_eq!((numbers.shown(100).unwrap(), numbers.stored(130)), (130, Some(100)));
        assert_eq!((numbers.shown(119).unwrap(), numbers.stored(149)), (149, Some(119)));
        assert!(numbers.shown(120).is_err() && numbers.shown(Ino::MAX).is_err());
        for others in [100, 129, 150, Ino::MAX] {
            assert_eq!(numbers.stored(others), None, "{others}");
        }
        assert_eq!(Numbering::PLAIN.shown(7).unwrap(), 7);
        assert_eq!(Numbering::PLAIN.stored(1 << 47), Some(1 << 47));
    }
}
