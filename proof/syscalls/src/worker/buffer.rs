//! The buffer that transfers go through.

use std::fmt::Write as _;

use super::{LONGEST, PAGE, Worker};
use crate::kernel::digest;

impl Worker {
    /// Direct I/O is in whole pages, since file systems differ in what else they take.
    pub(super) fn aligned(&self, slot: u8, at: i64, len: u32) -> (i64, usize) {
        let len = (len as usize).min(LONGEST);
        if self.is_direct(slot) {
            (at & !(PAGE as i64 - 1), len.div_ceil(PAGE) * PAGE)
        } else {
            (at, len)
        }
    }

    pub(super) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: the buffer has LONGEST + PAGE bytes, and `len` is what a call has put there.
        unsafe { std::slice::from_raw_parts(self.buffer, len) }
    }

    pub(super) fn fill(&mut self, tag: u32, len: usize) {
        let bytes = self.pattern.of(tag, len as u32);
        // SAFETY: the buffer has LONGEST + PAGE bytes and does not overlap the pattern, which gives
        // LONGEST at most.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.buffer, bytes.len()) };
    }

    pub(super) fn shown(&self, got: i64) -> String {
        let bytes = self.bytes(got as usize);
        let start = &bytes[..bytes.len().min(8)];
        let mut text = format!("{got} ");
        start.iter().for_each(|byte| {
            let _ = write!(text, "{byte:02x}");
        });
        if bytes.len() > start.len() {
            let _ = write!(text, "..{:016x}", digest(bytes));
        }
        text
    }

    pub(super) fn pieces(&self, len: usize) -> [libc::iovec; 3] {
        let first = len / 5;
        let second = len / 2;
        // SAFETY: all three lie within the buffer, for `first` and `second` together are at most
        // `len`.
        let at = |offset: usize| unsafe { self.buffer.add(offset) }.cast();
        [(0, first), (first, second), (first + second, len - first - second)]
            .map(|(offset, len)| libc::iovec { iov_base: at(offset), iov_len: len })
    }
}
