//! Where a dictionary keeps its short values, those of 512 bytes to 2 KiB, when its `separate_at`
//! adapts.
//!
//! In its block a short value is read together with its neighbours, and written again by each merge
//! of the block. Outside it is written once, and merges move its reference; but a scan finds each
//! in a place of its own. So a dictionary is in one of three states:
//!
//! - *Inside*, as a new one is. Values of 2 KiB and more lie outside.
//! - *Outside*: commits, flushes and merges place values of 512 bytes and more outside. It begins
//!   when a generation is sealed, if short values worth a part of the dictionary were committed in
//!   the meantime, and not behind everything that is there: data that comes in order is stitched
//!   wherever it lies.
//! - *Gathering*: new short values lie inside, and a merge of all runs brings the others into their
//!   blocks. It begins when the store is idle, or when cursors have read more short values from
//!   outside than were committed; it ends with the merge, or where *outside* begins again.
//!
//! The manifest says whether there may be short values outside
//! ([`DictionaryInfo::short_outside`]), before the first one is, so a store that is opened again
//! goes on where it was, but for the counts. A clone shares its values with what it was cloned
//! from; they stay where they are, and new ones lie inside.

use env::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::dictionary::{ADAPTIVE_SEPARATION, DictionaryInfo, SHORT_VALUES};

/// Short values go outside when those committed are the data of the dictionary divided by this.
const COMMITTED_SHARE: u64 = 8;
/// They are gathered when scans have read this many times what was committed: one read from outside
/// takes about as much longer as two more writes take.
const SCANNED_RATIO: u64 = 2;

/// What is known of the short values of a dictionary since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct ShortValues {
    /// Bytes of short values committed, and read by cursors from outside, since the state began.
    committed: AtomicU64,
    scanned: AtomicU64,
    gathering: AtomicBool,
    /// Scans have ended the last time outside.
    scans_prevail: AtomicBool,
}

/// Whether the place of short values adapts.
pub(crate) fn adapts(info: &DictionaryInfo) -> bool {
    info.options.separate_at == ADAPTIVE_SEPARATION && info.branch.is_empty()
}

fn is_short(len: usize) -> bool {
    u32::try_from(len).is_ok_and(|len| SHORT_VALUES.contains(&len))
}

impl ShortValues {
    /// Whether new short values go outside.
    pub(crate) fn are_outside(&self, info: &DictionaryInfo) -> bool {
        adapts(info) && info.short_outside && !self.gathering.load(Relaxed)
    }

    /// Whether a merge should bring those that are outside into their blocks.
    pub(crate) fn are_gathered(&self, info: &DictionaryInfo) -> bool {
        adapts(info) && info.short_outside && self.gathering.load(Relaxed)
    }

    /// Whether they were to be gathered when last decided.
    pub(crate) fn are_being_gathered(&self) -> bool {
        self.gathering.load(Relaxed)
    }

    /// From this length on values lie outside their block, bytes.
    pub(crate) fn separate_at(&self, info: &DictionaryInfo) -> u32 {
        match self.are_outside(info) {
            true => SHORT_VALUES.start,
            false => info.options.fixed_separation(),
        }
    }

    /// A value of this length is committed.
    #[inline]
    pub(crate) fn committed(&self, len: usize) {
        if is_short(len) {
            self.committed.fetch_add(len as u64, Relaxed);
        }
    }

    /// A cursor has read a value of this length from outside its block.
    pub(crate) fn scanned(&self, len: usize) {
        if is_short(len) {
            self.scanned.fetch_add(len as u64, Relaxed);
        }
    }

    /// Whether so much was committed that short values should go outside, in a dictionary of `data`
    /// bytes; not for less than `least` bytes. Where scans have prevailed before, all of it must
    /// have been written again.
    pub(crate) fn should_go_outside(
        &self,
        info: &DictionaryInfo,
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

    /// Whether scans have read so much from outside that the values should be gathered. What was
    /// committed and scanned long ago, before as much as the `data` bytes of the dictionary, counts
    /// less and less.
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

    /// Short values go outside from now on; the manifest says so.
    pub(crate) fn go_outside(&self) {
        self.begin(false);
    }

    /// Short values go inside from now on, and those that are outside are to be gathered, since
    /// scans prevail or else since the store is idle.
    pub(crate) fn gather(&self, scans_prevail: bool) {
        self.scans_prevail.store(scans_prevail, Relaxed);
        self.begin(true);
    }

    /// All are in their blocks, and the manifest says so.
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
    use crate::dictionary::{DictionaryId, DictionaryOptions};

    fn info(short_outside: bool) -> DictionaryInfo {
        DictionaryInfo {
            id: DictionaryId(1),
            name: "d".into(),
            branch: String::new(),
            options: DictionaryOptions::default(),
            short_outside,
        }
    }

    #[test]
    fn an_eighth_of_the_dictionary_sends_them_outside() {
        let short = ShortValues::default();
        (0..99).for_each(|_| short.committed(512));
        // Neither of these is short.
        (0..99).for_each(|_| [511, 2048].iter().for_each(|len| short.committed(*len)));
        let should = |data, least| short.should_go_outside(&info(false), || data, least);
        assert!(!should(100 * 512 * 8, 0));
        assert!(!should(0, 100 * 512), "they are too few, whatever there is");
        short.committed(512);
        assert!(should(100 * 512 * 8, 100 * 512));
        assert!(!short.should_go_outside(&info(true), || 0, 0), "they are");
        let clone = DictionaryInfo { branch: "b".into(), ..info(false) };
        assert!(!short.should_go_outside(&clone, || 0, 0));
        let mut fixed = info(false);
        fixed.options.separate_at = 2048;
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
