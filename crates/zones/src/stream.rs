//! The open zone of a stream, with the reserved part of the zone and the gaps that writers gave
//! back. All positions are multiples of `SECTOR`.

use std::collections::BTreeMap;

use crate::{Lifetime, Priority, Purpose, SECTOR, ZONE_SIZE, ZoneId, round_up};

/// The number of bytes of a zone from the reserve that must be left to writers which may take such
/// a zone.
const LEFT: u64 = ZONE_SIZE / 2;

/// The streams of a store, one for each purpose and lifetime.
#[derive(Debug, Default)]
pub(crate) struct Streams([[Stream; Lifetime::ALL.len()]; Purpose::ALL.len()]);

impl Streams {
    pub fn of(&mut self, purpose: Purpose, lifetime: Lifetime) -> &mut Stream {
        &mut self.0[purpose as usize][lifetime as usize]
    }

    /// Returns the streams of a purpose, with the youngest lifetime first.
    pub fn lifetimes(&mut self, purpose: Purpose) -> &mut [Stream] {
        &mut self.0[purpose as usize]
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Purpose, &mut Stream)> {
        let lifetimes = Purpose::ALL.into_iter().zip(&mut self.0);
        lifetimes.flat_map(|(purpose, streams)| streams.iter_mut().map(move |s| (purpose, s)))
    }

    /// Returns the position of each stream whose open zone has room.
    pub fn positions(&self) -> Vec<(Purpose, u64)> {
        let of = |purpose: Purpose| self.0[purpose as usize].iter().map(move |s| (purpose, s));
        let open = Purpose::ALL.into_iter().flat_map(of).filter(|(_, s)| s.rest() > 0);
        open.filter_map(|(purpose, s)| s.position().map(|addr| (purpose, addr))).collect()
    }
}

/// A stream. Space can be reserved only if the stream has an open zone.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    open: Option<OpenZone>,
}

#[derive(Debug)]
struct OpenZone {
    zone: u32,
    /// The lowest priority that could have taken this zone.
    depth: Priority,
    /// The offset in the zone after all reserved space.
    next: u64,
    /// The gaps before `next`: offsets (start → end) of space that was reserved and given back.
    gaps: BTreeMap<u64, u64>,
}

impl Stream {
    pub fn zone(&self) -> Option<u32> {
        self.open.as_ref().map(|o| o.zone)
    }

    /// Returns the address after all reserved space.
    pub fn position(&self) -> Option<u64> {
        self.open.as_ref().map(|o| ZoneId(o.zone).start() + o.next)
    }

    /// Returns the number of bytes of the zone after all reserved space.
    pub fn rest(&self) -> u64 {
        self.open.as_ref().map_or(0, |o| ZONE_SIZE - o.next)
    }

    /// Continues in `zone` at the offset `next`, and returns the previous zone.
    pub fn open(&mut self, zone: u32, next: u64, depth: Priority) -> Option<u32> {
        self.open.replace(OpenZone { zone, depth, next, gaps: BTreeMap::new() }).map(|o| o.zone)
    }

    /// Sets the lowest priority that could have taken the zone.
    pub fn set_depth(&mut self, depth: Priority) {
        if let Some(open) = &mut self.open {
            open.depth = depth;
        }
    }

    /// Returns whether a writer whose priority could not have taken this zone must leave the next
    /// `want` bytes to other writers. Otherwise merges would use up, one after the other, the zones
    /// that flushes take from the reserve, until flushes find no space.
    pub fn is_kept_from(&self, priority: Priority, want: u64) -> bool {
        self.open.as_ref().is_some_and(|o| priority < o.depth && ZONE_SIZE - o.next < LEFT + want)
    }

    pub fn close(&mut self) {
        self.open = None;
    }

    /// Returns the address ranges of the zone without data.
    pub fn unused(&self) -> Vec<(u64, u64)> {
        let Some(open) = &self.open else { return Vec::new() };
        let base = ZoneId(open.zone).start();
        let gaps = open.gaps.iter().map(|(&start, &end)| (start, end));
        let all = gaps.chain([(open.next, ZONE_SIZE)]).filter(|(start, end)| start < end);
        all.map(|(start, end)| (base + start, base + end)).collect()
    }

    /// Restarts at the beginning of the zone. No data in the zone is alive, and no space is
    /// reserved.
    pub fn rewind(&mut self) {
        if let Some(open) = &mut self.open {
            open.next = 0;
            open.gaps.clear();
        }
    }

    /// Moves forward to an address of the open zone if the address lies after the position.
    pub fn skip_to(&mut self, addr: u64) {
        if let Some(open) = &mut self.open {
            let offset = addr.saturating_sub(ZoneId(open.zone).start()).min(ZONE_SIZE);
            open.next = open.next.max(round_up(offset, SECTOR));
        }
    }

    /// Reserves between `need` and `want` bytes, in a gap (if `gaps` is set) or at the end. Returns
    /// the address and the length.
    pub fn reserve(&mut self, need: u64, want: u64, gaps: bool) -> Option<(u64, u64)> {
        let open = self.open.as_mut()?;
        let base = ZoneId(open.zone).start();
        if gaps
            && let Some((&start, &end)) =
                open.gaps.iter().find(|&(&start, &end)| end - start >= need)
        {
            open.gaps.remove(&start);
            let len = want.min(end - start);
            if start + len < end {
                open.gaps.insert(start + len, end);
            }
            return Some((base + start, len));
        }
        if ZONE_SIZE - open.next < need {
            return None;
        }
        let (start, len) = (open.next, want.min(ZONE_SIZE - open.next));
        open.next += len;
        Some((base + start, len))
    }

    /// Reserves between `need` and `want` bytes at `addr`, and returns the length. Returns `None`
    /// if `addr` is not the end of the reserved space.
    pub fn extend(&mut self, addr: u64, need: u64, want: u64) -> Option<u64> {
        if self.position() != Some(addr) || self.rest() < need {
            return None;
        }
        self.reserve(need, want, false).map(|(_, len)| len)
    }

    /// Takes back an unused range unless the stream has left the zone of the range.
    pub fn give_back(&mut self, start: u64, end: u64) {
        let Some(open) = &mut self.open else { return };
        let base = ZoneId(open.zone).start();
        if start >= end || start < base || end > base + open.next {
            return;
        }
        let (mut start, mut end) = (start - base, end - base);
        // Join neighbouring gaps. A gap at the end becomes free space.
        if let Some((&before, _)) =
            open.gaps.range(..start).next_back().filter(|&(_, &e)| e == start)
        {
            open.gaps.remove(&before);
            start = before;
        }
        if let Some(after) = open.gaps.remove(&end) {
            end = after;
        }
        if end == open.next {
            open.next = start;
        } else {
            open.gaps.insert(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_given_back_is_reserved_again() {
        let mut stream = Stream::default();
        assert_eq!(stream.reserve(SECTOR, SECTOR, true), None);
        stream.open(1, 0, Priority::User);
        assert_eq!(stream.reserve(SECTOR, 16 * SECTOR, true), Some((ZONE_SIZE, 16 * SECTOR)));
        stream.give_back(ZONE_SIZE + SECTOR, ZONE_SIZE + 16 * SECTOR);
        assert_eq!(stream.position(), Some(ZONE_SIZE + SECTOR));
    }

    #[test]
    fn gaps_join_and_are_filled_by_what_fits() {
        let at = |sector: u64| ZONE_SIZE + sector * SECTOR;
        let mut stream = Stream::default();
        stream.open(1, 0, Priority::User);
        stream.reserve(8 * SECTOR, 8 * SECTOR, true);
        stream.give_back(at(1), at(2));
        stream.give_back(at(3), at(4));
        stream.give_back(at(2), at(3));
        assert_eq!(stream.reserve(3 * SECTOR, 9 * SECTOR, true), Some((at(1), 3 * SECTOR)));
        stream.give_back(at(1), at(4));
        assert_eq!(stream.reserve(4 * SECTOR, 4 * SECTOR, true), Some((at(8), 4 * SECTOR)));
        stream.give_back(at(4), at(12));
        assert_eq!(stream.position(), Some(at(1)), "the gap at the end is swallowed");
    }

    #[test]
    fn half_of_a_zone_from_deep_in_the_reserve_is_left_to_those_who_may_take_some_there() {
        let mut stream = Stream::default();
        assert!(!stream.is_kept_from(Priority::User, SECTOR));
        stream.open(1, LEFT - SECTOR, Priority::Flush);
        assert!(!stream.is_kept_from(Priority::Merge, SECTOR));
        assert!(stream.is_kept_from(Priority::Merge, 2 * SECTOR));
        assert!(!stream.is_kept_from(Priority::Flush, 2 * SECTOR));
        stream.set_depth(Priority::Merge);
        assert!(!stream.is_kept_from(Priority::Merge, 2 * SECTOR));
        assert!(stream.is_kept_from(Priority::User, 2 * SECTOR));
    }

    #[test]
    fn only_the_last_can_be_extended() {
        let mut stream = Stream::default();
        stream.open(1, 0, Priority::User);
        stream.reserve(SECTOR, SECTOR, true);
        assert_eq!(stream.extend(ZONE_SIZE + SECTOR, SECTOR, 2 * SECTOR), Some(2 * SECTOR));
        assert_eq!(stream.extend(ZONE_SIZE + SECTOR, SECTOR, SECTOR), None);
        assert_eq!(stream.extend(ZONE_SIZE + 3 * SECTOR, ZONE_SIZE, ZONE_SIZE), None);
    }
}
