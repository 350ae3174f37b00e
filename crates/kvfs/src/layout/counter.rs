//! The notes of the counter of inode numbers. They are in a dictionary that belongs to no branch,
//! so that a rollback of a branch does not set the counter back. In addition, each branch has a
//! mark.
//!
//! ```text
//! numbers   'n'            bound below which all inode numbers lie that were given, in any branch
//!           'v'            reserved numbers below this are void, in any branch
//!           'f' store(16)  all numbers that this store has given since it was forked from that one
//!                          are at or above this
//!           'l'            a server lends the main branch: a number that this lending alone has
//!           'b' imap(4)    the branch whose imap has this number is counted: all its inode numbers
//!                          are below the bound; the mark that it was given last, 0 if none
//! ```
//!
//! The reservation of a directory is valid in only one branch, and only until the branch returns to
//! an earlier state. The mark shows whether a reservation is valid. A mark is a number of the
//! counter that no inode gets, so a mark is never assigned twice. It is written to both
//! dictionaries before the first inode number is allocated after the branch was opened, was kept in
//! a snapshot, or returned to a snapshot. A clone has a different `imap`, and so has a received
//! branch.

use kvdb::DictionaryId;

use crate::attr::{Ino, ROOT};
use crate::layout::reservation::INO_LIMIT;

/// The name of the dictionary.
pub(crate) const NUMBERS: &str = "numbers";
pub(crate) const BOUND_KEY: &[u8] = b"n";
pub(crate) const VOID_KEY: &[u8] = b"v";
pub(crate) const LENT_KEY: &[u8] = b"l";
const BRANCH: u8 = b'b';
const FORK: u8 = b'f';

/// The note of a branch about the numbers that its directories have reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reserved {
    /// The mark of the branch. The reservations are valid if the counter has noted the same mark.
    pub mark: Ino,
    /// Reserved numbers below this bound are void, because other inodes may have them.
    pub first: Ino,
    /// All reserved numbers are below this bound. A store that receives the branch assigns none of
    /// them.
    pub end: Ino,
}

impl Reserved {
    pub fn encode(&self) -> Vec<u8> {
        [self.mark, self.first, self.end].map(u64::to_le_bytes).concat()
    }

    /// Decodes the note, or returns `None` if it is malformed.
    pub fn decode(value: &[u8]) -> Option<Reserved> {
        let (numbers, []) = value.as_chunks::<8>() else { return None };
        let &[mark, first, end] = numbers else { return None };
        let [mark, first, end] = [mark, first, end].map(u64::from_le_bytes);
        (is_number(mark) && first <= mark && mark < end && end <= INO_LIMIT).then_some(Reserved {
            mark,
            first,
            end,
        })
    }
}

/// Returns the key under which the counter knows the branch of this `imap`.
pub(crate) fn branch_key(imap: DictionaryId) -> Vec<u8> {
    [&[BRANCH][..], &imap.0.to_be_bytes()].concat()
}

/// Returns the key of the bound from the time when this store began as a fork of `store`.
pub(crate) fn fork_key(store: &[u8; 16]) -> Vec<u8> {
    [&[FORK][..], store].concat()
}

/// Returns the range of all keys of branches.
pub(crate) fn branch_range() -> ([u8; 1], [u8; 1]) {
    ([BRANCH], [BRANCH + 1])
}

/// Decodes the key of a branch, or returns `None` for any other key.
pub(crate) fn decode_branch_key(key: &[u8]) -> Option<DictionaryId> {
    let imap = key.strip_prefix(&[BRANCH])?.try_into().ok()?;
    Some(DictionaryId(u32::from_be_bytes(imap)))
}

/// Encodes the value of a bound or a mark.
pub(crate) fn encode_number(number: Ino) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

/// Decodes a bound, or returns `None` if the value is malformed.
pub(crate) fn decode_bound(value: &[u8]) -> Option<Ino> {
    let bound = u64::from_le_bytes(value.try_into().ok()?);
    (bound > ROOT && bound <= INO_LIMIT).then_some(bound)
}

/// Decodes a mark, or returns `None` if the value contains no mark or is malformed.
pub(crate) fn decode_mark(value: &[u8]) -> Option<Ino> {
    value.try_into().ok().map(u64::from_le_bytes).filter(|&mark| is_number(mark))
}

fn is_number(number: Ino) -> bool {
    number > ROOT && number < INO_LIMIT
}
