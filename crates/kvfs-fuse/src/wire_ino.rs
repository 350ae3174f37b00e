//! Inode numbers on the wire: which view, and which inode of it.
//!
//! The kernel caches pages, names and attributes by these numbers, so two views never share anything there, though they may be of one
//! file. The view's number lies in the upper 16 bits; the mainline's is 0, so its inodes have their own numbers.

use kvfs::{Attr, Ino, Views};

const VIEW_SHIFT: u32 = 48;
const INO_MASK: Ino = (1 << VIEW_SHIFT) - 1;

/// The number of what is no view of the store: the hidden directory.
pub(crate) const HIDDEN: u16 = u16::MAX;
const _: () = assert!(HIDDEN > Views::MAX_NUMBER);

pub(crate) fn of(view: u16, ino: Ino) -> Ino {
    debug_assert!(ino <= INO_MASK, "inode numbers are below 2^48");
    Ino::from(view) << VIEW_SHIFT | ino & INO_MASK
}

pub(crate) fn split(wire: Ino) -> (u16, Ino) {
    ((wire >> VIEW_SHIFT) as u16, wire & INO_MASK)
}

pub(crate) fn attr(view: u16, attr: Attr) -> Attr {
    Attr { ino: of(view, attr.ino), ..attr }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_went() {
        for view in [0, 1, 0x7fff, Views::MAX_NUMBER, HIDDEN] {
            for ino in [1, 2, INO_MASK] {
                assert_eq!(split(of(view, ino)), (view, ino));
            }
        }
        assert_eq!(of(0, 77), 77, "the mainline's are as they are");
    }
}
