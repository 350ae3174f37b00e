//! Reads, writes and truncates the bytes of files by means of `pages`.
//!
//! The content of a small file is in its node. A larger file consists of pages in `dmap`; pages
//! that were never written are holes. Written pages wait in the buffer of the inode and hide the
//! pages in the store; pages of the store at and above `Buffer::cut` are dead. Three invariants
//! make most questions cheap to answer:
//!
//! - No page, stored or waiting, begins at or after the size, or holds a byte after it. Bytes
//!   missing at the end of a page are zero.
//! - `Body::Paged(n)` is the number of distinct blocks that are stored or waiting, except for
//!   waiting ones that are marked as not counted.
//! - A file with `Body::Inline(n)` has no pages, and everything after byte `n` is a hole.

mod read;
mod truncate;
mod write;

use crate::layout::PAGE;

/// The largest size of a file: the largest signed 64-bit offset, in whole pages.
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64 & !(PAGE - 1);
