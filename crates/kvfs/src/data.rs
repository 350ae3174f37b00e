//! The bytes of files: `read`, `write`, `truncate`, all of them on `pages`.
//!
//! A small file lies in its node. A larger one is pages in `dmap`; pages that were never written
//! are holes. Written pages wait in the inode's buffer, over those in the store; pages of the store
//! at and above `Buffer::cut` are dead. Three invariants make most questions cheap to answer:
//!
//! - no page, stored or waiting, begins at or beyond the size, or holds a byte beyond it; what is
//!   missing at its end is zero;
//! - `Body::Paged(n)` is the number of distinct blocks stored or waiting, but for the waiting ones
//!   marked as not counted;
//! - a file with `Body::Inline(n)` has no pages, and all of it behind byte `n` is a hole.

mod pages;
mod read;
mod truncate;
mod write;

use crate::layout::PAGE;

/// The largest file: what a signed 64-bit offset can express, in whole pages.
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64 & !(PAGE - 1);
