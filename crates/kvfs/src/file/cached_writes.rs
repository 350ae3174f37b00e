//! Handles writes out of a kernel's cache. Such writes bring whole pages. The cache may have read a
//! part of a page before the view was switched to another state (`superseded`), and earlier writes
//! of the cache may have been refused (`lost`).

use crate::attr::{Ino, WriteHints};
use crate::error::{Error, Result};
use crate::fs::Fs;

impl Fs {
    /// Announces a write out of a cache: [`Fs::write`] will be called for the write with
    /// `announced` set in any case.
    pub fn announce_cached(&self, ino: Ino, offset: u64) {
        self.core.lost.announce(ino, offset);
    }

    /// Performs a write out of a cache.
    pub(crate) fn write_cached(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        hints: WriteHints,
    ) -> Result<bool> {
        let lost = &self.core.lost;
        let under_way =
            if hints.announced { lost.announced(ino, offset) } else { lost.begin(ino, offset) };
        // An error of this check is ignored, because the write itself will return it.
        if self.would_leave_a_hole(ino, offset).unwrap_or(false) {
            under_way.wait_for_those_before();
        }
        let taken = self.writable().and_then(|()| {
            self.core.locks.retry(|| {
                let _call = self.enter()?;
                if lost.contains(ino) && offset > self.size_of(ino)? {
                    return Err(Error::LostBefore(ino));
                }
                self.write_changed_bytes(ino, offset, data, hints)
            })
        });
        if taken.is_err()
            && let Ok(_call) = self.enter()
        {
            match self.size_of(ino) {
                Ok(size) if offset.saturating_add(data.len() as u64) <= size => {}
                Err(Error::Stale(_)) => {}
                _ => lost.add(ino),
            }
        }
        taken
    }

    fn would_leave_a_hole(&self, ino: Ino, offset: u64) -> Result<bool> {
        let _call = self.enter()?;
        Ok(offset > self.size_of(ino)?)
    }

    /// Returns the size of a file. (Under the freeze lock.)
    fn size_of(&self, ino: Ino) -> Result<u64> {
        Ok(self.inode(ino)?.state.read().attr.size)
    }

    /// Returns whether the change of which watchers are being notified has changed the size of a
    /// file.
    pub fn is_resized(&self, ino: Ino) -> bool {
        let Some(before) = self.core.superseded.state_before(ino) else { return false };
        let size = |fs: &Fs| fs.getattr(ino).ok().map(|attr| attr.size);
        size(&before.fs) != size(self)
    }

    /// Writes a page out of a cache. While caches are still being notified of a change of the view,
    /// only those bytes are written that differ from the page before that change, or that calls
    /// have written since. (Under the freeze lock.)
    pub(crate) fn write_changed_bytes(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        hints: WriteHints,
    ) -> Result<bool> {
        let Some(before) = self.core.superseded.state_before(ino) else {
            return self.write_in_call(ino, offset, data, hints);
        };
        let old = match before.fs.read(
            ino,
            offset,
            u32::try_from(data.len()).map_err(|_| Error::TooLarge)?,
        ) {
            // The file did not exist before the change.
            Err(Error::Stale(_)) => return self.write_in_call(ino, offset, data, hints),
            old => old?,
        };
        let mut lost_privileges = false;
        let rewritten = before.rewritten.within(ino, offset, offset + data.len() as u64);
        let rewritten = rewritten.into_iter().map(|(from, to)| (from - offset, to - offset));
        for (from, to) in differing(&old, data, rewritten) {
            lost_privileges |=
                self.write_in_call(ino, offset + from as u64, &data[from..to], hints)?;
        }
        if old.len() < data.len() {
            // A program has written after the old end. The bytes that it wrote or skipped there may
            // be zeros.
            self.extend_in_call(ino, offset + data.len() as u64)?;
        }
        Ok(lost_privileges)
    }
}

/// Returns the ranges of `new` that differ from `old`, which is extended by zeros, or that are
/// among `rewritten`.
fn differing(
    old: &[u8],
    new: &[u8],
    rewritten: impl Iterator<Item = (u64, u64)>,
) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    let mut rewritten = rewritten.peekable();
    for (at, byte) in new.iter().enumerate() {
        while rewritten.next_if(|(_, to)| *to <= at as u64).is_some() {}
        let is_rewritten = rewritten.peek().is_some_and(|(from, _)| *from <= at as u64);
        if !is_rewritten && *byte == old.get(at).copied().unwrap_or(0) {
            continue;
        }
        match ranges.last_mut() {
            Some((_, to)) if *to == at => *to += 1,
            _ => ranges.push((at, at + 1)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_or_was_rewritten_is_taken() {
        let taken = |old, new| differing(old, new, [].into_iter());
        assert_eq!(taken(b"abcdef", b"abcdef"), []);
        assert_eq!(taken(b"abcdef", b"Xbcdef"), [(0, 1)]);
        assert_eq!(taken(b"abcdef", b"abXXeX"), [(2, 4), (5, 6)]);
        assert_eq!(taken(b"ab", b"ab\0\0c"), [(4, 5)], "after the old end there were zeros");
        assert_eq!(taken(b"abc", b"ab"), [], "what is shorter says nothing of the rest");
        let rewritten =
            |ranges: &[(u64, u64)]| differing(b"abcdef", b"abcdeX", ranges.iter().copied());
        assert_eq!(rewritten(&[(1, 2), (4, 9)]), [(1, 2), (4, 6)]);
        assert_eq!(rewritten(&[(0, 6)]), [(0, 6)]);
    }
}
