//! Decides on the place of the short values of a dictionary whose `separate_at` adapts. Short
//! values have 512 bytes to 2 KiB.
//!
//! A short value inside of its block is read together with its neighbours, and is written again by
//! each merge of the block. A short value outside of its block is written once, and merges move
//! only its reference, but a scan needs a separate read for each such value. A dictionary is
//! therefore in one of three states:
//!
//! - *Inside* is the state of a new dictionary. Only values of 2 KiB and more lie outside.
//! - *Outside* means that commits, flushes and merges place values of 512 bytes and more outside.
//!   The state begins when a generation is sealed, if the short values that were committed since
//!   the previous state began amount to a certain part of the dictionary and their keys did not all
//!   sort after the existing keys. Data that arrives in key order is stitched wherever it lies.
//! - *Gathering* means that new short values lie inside, and that a merge of all runs moves the
//!   other short values into their blocks. The state begins when the store is idle, or when cursors
//!   have read more short values from outside than were committed. It ends with the merge, or when
//!   *outside* begins again.
//!
//! Before the first short value is placed outside, the manifest records that short values may lie
//! outside ([`crate::DictionaryInfo::short_outside`]). A store that is opened again therefore
//! continues in the same state, except for the counts. The values that a clone shares with its
//! origin stay where they are, and new short values of the clone lie inside.

use env::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::dictionary::{ADAPTIVE_SEPARATION, Described, SHORT_VALUES};

/// The divisor of the size of a dictionary. Short values are placed outside when the committed
/// short values reach this fraction of the size.
const COMMITTED_SHARE: u64 = 8;
/// The ratio of scanned to committed bytes at which short values are gathered. A read from outside
/// costs about as much additional time as two more writes.
const SCANNED_RATIO: u64 = 2;

/// The state and the counts of a dictionary's short values since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct ShortValues {
    /// The number of bytes of short values that were committed since the state began.
    committed: AtomicU64,
    /// The number of bytes of short values that cursors have read from outside since the state
    /// began.
    scanned: AtomicU64,
    gathering: AtomicBool,
    /// Is `true` if scans have ended the last *outside* state.
    scans_prevail: AtomicBool,
}

/// Returns whether the place of the dictionary's short values adapts.
pub(crate) fn adapts(info: &Described) -> bool {
    info.options.separate_at == ADAPTIVE_SEPARATION && info.branch.is_empty()
}

fn is_short(len: usize) -> bool {
    u32::try_from(len).is_ok_and(|len| SHORT_VALUES.contains(&len))
}

impl ShortValues {
    /// Returns whether new short values are placed outside.
    pub(crate) fn are_outside(&self, info: &Described) -> bool {
        adapts(info) && info.short_outside && !self.gathering.load(Relaxed)
    }

    /// Returns whether a merge should move short values from outside into their blocks.
    pub(crate) fn are_gathered(&self, info: &Described) -> bool {
        adapts(info) && info.short_outside && self.gathering.load(Relaxed)
    }

    /// Returns whether the last decision was to gather the short values.
    pub(crate) fn are_being_gathered(&self) -> bool {
        self.gathering.load(Relaxed)
    }

    /// Returns the length, in bytes, from which on values lie outside of their block.
    pub(crate) fn separate_at(&self, info: &Described) -> u32 {
        match self.are_outside(info) {
            true => SHORT_VALUES.start,
            false => info.options.fixed_separation(),
        }
    }

    /// Counts a committed value of this length.
    #[inline]
    pub(crate) fn committed(&self, len: usize) {
        if is_short(len) {
            self.committed.fetch_add(len as u64, Relaxed);
        }
    }

    /// Counts a value of this length that a cursor has read from outside its block.
    pub(crate) fn scanned(&self, len: usize) {
        if is_short(len) {
            self.scanned.fetch_add(len as u64, Relaxed);
        }
    }

    /// Returns whether enough short values were committed to place short values outside, in a
    /// dictionary of `data` bytes. Fewer than `least` committed bytes are never enough. If scans
    /// have prevailed before, as many bytes as the whole dictionary must have been committed.
    pub(crate) fn should_go_outside(
        &self,
        info: &Described,
        data: impl FnOnce() -> u64,
        least: u64,
    ) -> bool {
        let committed = self.committed.load(Relaxed);
        if !adapts(info) || self.are_outside(info) || committed < least {
            return false;
        }
        let share = if self.scans_prevail.load(Relaxed) { 1 } else { COMMITTED_SHARE };
        committed >= data() / share
    }

    /// Returns whether scans have read enough short values from outside to gather them. Once more
    /// than `data` bytes, the size of the dictionary, were committed or scanned, both counts are
    /// halved, so that older operations lose weight.
    pub(crate) fn should_be_gathered(&self, data: u64, least: u64) -> bool {
        let (committed, scanned) = (self.committed.load(Relaxed), self.scanned.load(Relaxed));
        if scanned >= SCANNED_RATIO * committed.max(least) {
            return true;
        }
        if committed.max(scanned) > data.max(least) {
            self.committed.fetch_sub(committed / 2, Relaxed);
            self.scanned.fetch_sub(scanned / 2, Relaxed);
        }
        false
    }

    /// Places short values outside from now on, after the manifest has recorded this.
    pub(crate) fn go_outside(&self) {
        self.begin(false);
    }

    /// Places short values inside from now on, and requests that short values outside are gathered,
    /// because scans prevail or because the store is idle.
    pub(crate) fn gather(&self, scans_prevail: bool) {
        self.scans_prevail.store(scans_prevail, Relaxed);
        self.begin(true);
    }

    /// Records that all short values are in their blocks, after the manifest has recorded this.
    pub(crate) fn gathered(&self) {
        self.gathering.store(false, Relaxed);
    }

    fn begin(&self, gathering: bool) {
        self.gathering.store(gathering, Relaxed);
        self.committed.store(0, Relaxed);
        self.scanned.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dictionary::{DictionaryId, DictionaryInfo, DictionaryOptions};

    fn info(short_outside: bool) -> Described {
        let info = DictionaryInfo {
            id: DictionaryId(1),
            name: "d".into(),
            branch: String::new(),
            options: DictionaryOptions::default(),
            short_outside,
        };
        info.into()
    }

    #[test]
    fn an_eighth_of_the_dictionary_sends_them_outside() {
        let short = ShortValues::default();
        (0..99).for_each(|_| short.committed(512));
        // Neither of these lengths is short.
        (0..99).for_each(|_| [511, 2048].iter().for_each(|len| short.committed(*len)));
        let should = |data, least| short.should_go_outside(&info(false), || data, least);
        assert!(!should(100 * 512 * 8, 0));
        assert!(!should(0, 100 * 512), "they are too few, whatever there is");
        short.committed(512);
        assert!(should(100 * 512 * 8, 100 * 512));
        assert!(!short.should_go_outside(&info(true), || 0, 0), "they are");
        let clone = info(false).in_branch(DictionaryId(2), "b".into());
        assert!(!short.should_go_outside(&clone, || 0, 0));
        let mut fixed = info(false);
        fixed.change().options.separate_at = 2048;
        assert!(!short.should_go_outside(&fixed, || 0, 0));
    }

    #[test]
    fn scans_bring_them_in_and_keep_them_there() {
        let short = ShortValues::default();
        let data = 1000 * 512;
        (0..100).for_each(|_| short.committed(512));
        (0..199).for_each(|_| short.scanned(512));
        assert!(!short.should_be_gathered(data, 0));
        short.scanned(512);
        assert!(!short.should_be_gathered(data, 101 * 512), "too few to be worth it");
        assert!(short.should_be_gathered(data, 0));
        short.gather(true);
        assert!(short.are_gathered(&info(true)) && !short.are_outside(&info(true)));
        assert_eq!(short.separate_at(&info(true)), 2048);
        (0..999).for_each(|_| short.committed(512));
        assert!(!short.should_go_outside(&info(true), || data, 0), "scans have prevailed");
        short.committed(512);
        assert!(short.should_go_outside(&info(true), || data, 0), "all was written again");
        short.go_outside();
        assert!(short.are_outside(&info(true)));
        assert_eq!(short.separate_at(&info(true)), 512);
    }

    #[test]
    fn what_was_committed_long_ago_does_not_outweigh_scans_for_ever() {
        let short = ShortValues::default();
        let data = 1000 * 512;
        (0..100_000).for_each(|_| short.committed(512));
        let mut scans = 0;
        while !short.should_be_gathered(data, 0) {
            (0..100).for_each(|_| short.scanned(512));
            scans += 1;
            assert!(scans < 40, "four times the dictionary was scanned, nothing committed");
        }
    }
}
