//! The pages that lie between two keys of `dmap`.

use std::ops::{Range, RangeInclusive};

use crate::attr::{FileKind, Ino, ROOT};
use crate::layout::reservation::INO_LIMIT;
use crate::layout::{self, Attributes, Body, PAGE, blocks_of};

/// A range of keys of `dmap`, which need not be keys of pages.
#[derive(Clone, Copy)]
pub(super) struct Between<'a> {
    pub start: &'a [u8],
    pub end: &'a [u8],
}

impl Between<'_> {
    /// Returns whether the range has one key only, that of a page. A page whose content is lost has
    /// this range.
    pub fn is_page(self) -> bool {
        // The end of a single key is that key with a zero byte appended.
        self.end.split_last() == Some((&0, self.start))
            && layout::decode_page_key(self.start).is_ok()
    }

    /// Returns whether a key lies in the range.
    pub fn has(self, key: &[u8]) -> bool {
        self.start <= key && key < self.end
    }

    /// Returns the inodes that can have pages in the range, or `None` if none can.
    pub fn inodes(self) -> Option<RangeInclusive<Ino>> {
        let first = number(self.start).unwrap_or(0).max(ROOT + 1);
        let last = number(self.end).unwrap_or(INO_LIMIT).min(INO_LIMIT);
        (first <= last).then_some(first..=last)
    }

    /// Returns the blocks of a file with `blocks` blocks that lie in the range. The range is empty
    /// if there are none.
    pub fn blocks(self, ino: Ino, blocks: u64) -> Range<u64> {
        let from = match number(self.start) {
            Some(of) if of == ino => block(self.start),
            _ => 0,
        };
        let to = match number(self.end) {
            Some(of) if of == ino => block(self.end),
            _ => u64::MAX / PAGE,
        };
        from..to.min(blocks)
    }
}

/// Returns the number of blocks below the end of a file that has pages, or `None` for any other
/// inode.
pub(super) fn paged_blocks(attr: &Attributes) -> Option<u64> {
    let is_paged = attr.kind == FileKind::File && matches!(attr.body, Body::Paged(1..));
    is_paged.then(|| blocks_of(attr.size))
}

fn number(key: &[u8]) -> Option<Ino> {
    key.first_chunk::<8>().map(|ino| Ino::from_be_bytes(*ino))
}

/// Returns the first block whose key is not below `key`.
fn block(key: &[u8]) -> u64 {
    let block = key.get(8..16).and_then(|block| block.try_into().ok());
    let longer = u64::from(key.len() > 16);
    block.map_or(0, u64::from_be_bytes).saturating_add(longer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::page_key;

    #[test]
    fn a_range_has_the_pages_whose_keys_lie_in_it() {
        let (start, end) = (page_key(5, 3), page_key(7, 2));
        let between = Between { start: &start, end: &end };
        assert_eq!(between.inodes(), Some(5..=7));
        assert_eq!(between.blocks(5, 9), 3..9);
        assert_eq!(between.blocks(6, 9), 0..9);
        assert_eq!(between.blocks(7, 9), 0..2);
        assert!(between.blocks(5, 2).is_empty() && !between.is_page());
        // Range tombstones begin and end after pages, too.
        let (start, end) = ([&start[..], &[0]].concat(), [&end[..], &[0]].concat());
        let between = Between { start: &start, end: &end };
        assert_eq!((between.blocks(5, 9), between.blocks(7, 9)), (4..9, 0..3));
        assert!(!between.has(&page_key(5, 3)) && between.has(&page_key(7, 2)));
        let single = [&page_key(5, 3)[..], &[0]].concat();
        let between = Between { start: &single[..16], end: &single };
        assert!(between.is_page());
        assert_eq!(between.blocks(5, 9), 3..4);
        let nothing = Between { start: b"", end: &[0, 0, 0, 0, 0, 0, 0, 1] };
        assert_eq!(nothing.inodes(), None);
    }
}
