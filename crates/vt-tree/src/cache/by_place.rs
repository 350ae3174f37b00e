//! Announces the values of many keys by place. For example, the files of a tree may have been
//! saved, moved or checked out many times. Values with neighbouring keys then lie anywhere on the
//! device, so neither the order of the keys nor the order of reads shows which values are adjacent,
//! but the addresses do.
//!
//! If the whole store fits into the host's memory, the neighbourhood of each place is fetched, as
//! after a read that had to wait (`around`). Otherwise the places themselves are announced in the
//! order of their addresses. Gaps between places are also fetched if that takes less time than
//! another request. The smallest gaps are fetched first, within a budget, because announced data
//! has to stay in the memory of the host until it is read.

use zones::Purpose;

use super::BlockCache;
use super::announce::GAP;
use crate::value::ExtentRef;

/// The smallest budget, in bytes, for the values that are announced by place at a time.
const BUDGET_MIN: u64 = 512 << 10;
/// The largest budget, in bytes, for the values that are announced by place at a time.
const BUDGET_MAX: u64 = 16 << 20;
/// The divisor of the cache's own budget. The quotient is an upper bound of the budget.
const SHARE: u64 = 4;
/// The divisor of the host's memory. The quotient is an upper bound of the budget.
const HOST_SHARE: u64 = 8;
/// The largest number of spans that are announced at a time. A caller waits while the queue of the
/// device is full.
const SPANS: usize = 1024;
/// The largest number of spans that are announced at a time if each span takes a seek of a disk.
const SPANS_OF_DISK: usize = 128;

impl BlockCache {
    /// Returns the number of bytes that may be announced by place at a time.
    pub fn by_place_budget(&self) -> u64 {
        let host = self.zones.host_memory().unwrap_or(u64::MAX);
        (self.budget / SHARE).min(host / HOST_SHARE).clamp(BUDGET_MIN, BUDGET_MAX)
    }

    /// Announces to the device that these values, which ascend by address, are likely to be read
    /// soon. In addition, at most about `most` bytes between the values are fetched. Returns the
    /// number of leading values that were announced. The remaining values lie too far apart to be
    /// announced in the same call.
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

/// Joins ascending ranges across gaps that are smaller than `gap`, in ascending order of gap size,
/// provided that the spans have at most `most` bytes in total.
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
    // The flag of each span that continues the previous span.
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
        // The places themselves take 44 bytes, and the gaps take 5, 20 and 1 bytes.
        assert_eq!(within(100, 0), [(0, 20), (25, 30), (50, 60), (61, 70)]);
        assert_eq!(within(100, 45), [(0, 20), (25, 30), (50, 70)]);
        assert_eq!(within(100, 50), [(0, 30), (50, 70)]);
        assert_eq!(within(100, 69), [(0, 30), (50, 70)]);
        assert_eq!(within(100, 70), [(0, 70)]);
    }
}
