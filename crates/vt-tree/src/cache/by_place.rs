//! Announces values of many keys by place. The keys may be those of the files of a tree that was
//! saved, moved or checked out over and over: neighbours by key then lie anywhere, so neither the
//! order of the keys nor the order of reads shows which values are adjacent. The addresses do.
//!
//! If the whole store fits into the host's memory, the neighbourhood of each place is fetched, as
//! after a read that had to wait (`around`). Otherwise the places themselves are announced in the
//! order of their addresses. Gaps between them are fetched as well where that takes less time than
//! another request, the smallest gaps first, as long as the whole stays within a budget: what is
//! announced has to stay in the host's memory until it is read.

use zones::Purpose;

use super::BlockCache;
use super::announce::GAP;
use crate::value::ExtentRef;

/// Bounds of the bytes that are announced by place at a time.
const BUDGET_MIN: u64 = 512 << 10;
const BUDGET_MAX: u64 = 16 << 20;
/// The budget is at most the cache's own budget, and at most the host's memory, divided by these.
const SHARE: u64 = 4;
const HOST_SHARE: u64 = 8;
/// The most spans that are announced at a time, and the most if each takes a seek of a disk: a
/// caller waits while the queue of the device is full.
const SPANS: usize = 1024;
const SPANS_OF_DISK: usize = 128;

impl BlockCache {
    /// Returns how many bytes may be announced by place at a time.
    pub fn by_place_budget(&self) -> u64 {
        let host = self.zones.host_memory().unwrap_or(u64::MAX);
        (self.budget / SHARE).min(host / HOST_SHARE).clamp(BUDGET_MIN, BUDGET_MAX)
    }

    /// Announces to the device that these values, which ascend by address, are likely to be read
    /// soon. Between them at most about `most` bytes are fetched as well. Returns the number of
    /// values, from the first one on, that were announced: the others lie too far apart to be
    /// announced with these.
    pub fn announce_by_place(&self, extents: &[ExtentRef], most: u64) -> usize {
        if extents.is_empty() {
            return 0;
        }
        self.note_reader_ahead();
        let addresses = extents.iter().map(|e| e.addr);
        if let Some(fetched) = self.around.fetch_many(&self.zones, Purpose::Pages, addresses, most)
        {
            return fetched;
        }
        let gap = GAP.max(self.seek_bytes());
        let mut spans = spans(extents.iter().map(|e| (e.addr, e.end())), gap, most);
        spans.truncate(if self.seeks_are_dear() { SPANS_OF_DISK } else { SPANS });
        for (from, to) in &spans {
            self.zones.will_read(Purpose::Pages, *from, to - from);
        }
        let end = spans.last().map_or(0, |(_, to)| *to);
        extents.partition_point(|e| e.addr < end)
    }
}

/// Joins ranges, which ascend, across gaps that are smaller than `gap`, the smallest gaps first, as
/// long as the spans have at most `most` bytes in all.
fn spans(ranges: impl Iterator<Item = (u64, u64)>, gap: u64, most: u64) -> Vec<(u64, u64)> {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match spans.last_mut() {
            Some((_, to)) if start <= *to => *to = end.max(*to),
            _ => spans.push((start, end)),
        }
    }
    let bytes: u64 = spans.iter().map(|(from, to)| to - from).sum();
    let mut left = most.saturating_sub(bytes);
    let gaps = spans.windows(2).enumerate().map(|(i, pair)| (pair[1].0 - pair[0].1, i + 1));
    let mut gaps: Vec<(u64, usize)> = gaps.filter(|(bytes, _)| *bytes < gap).collect();
    gaps.sort_unstable();
    // The spans that continue the one before them.
    let mut continues = vec![false; spans.len()];
    for (bytes, i) in gaps {
        if bytes > left {
            break;
        }
        left -= bytes;
        continues[i] = true;
    }
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for ((from, to), continues) in spans.into_iter().zip(continues) {
        match joined.last_mut() {
            Some((_, end)) if continues => *end = to,
            _ => joined.push((from, to)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::spans;

    const PLACES: [(u64, u64); 5] = [(0, 10), (10, 20), (25, 30), (50, 60), (61, 70)];

    fn within(gap: u64, most: u64) -> Vec<(u64, u64)> {
        spans(PLACES.into_iter(), gap, most)
    }

    #[test]
    fn places_are_joined_across_gaps_that_cost_less_than_a_request() {
        assert_eq!(within(1, 1000), [(0, 20), (25, 30), (50, 60), (61, 70)]);
        assert_eq!(within(6, 1000), [(0, 30), (50, 70)]);
        assert_eq!(within(100, 1000), [(0, 70)]);
        assert_eq!(spans([(5, 9), (5, 9), (6, 8)].into_iter(), 0, 0), [(5, 9)]);
        assert!(spans(std::iter::empty(), 100, 100).is_empty());
    }

    #[test]
    fn the_smallest_gaps_are_read_over_first_and_only_within_the_budget() {
        // The places themselves take 44 bytes; the gaps have 5, 20 and 1.
        assert_eq!(within(100, 0), [(0, 20), (25, 30), (50, 60), (61, 70)]);
        assert_eq!(within(100, 45), [(0, 20), (25, 30), (50, 70)]);
        assert_eq!(within(100, 50), [(0, 30), (50, 70)]);
        assert_eq!(within(100, 69), [(0, 30), (50, 70)]);
        assert_eq!(within(100, 70), [(0, 70)]);
    }
}
