//! The record of the parts of zones in object storage that are also in the local file. A part is 64
//! KiB; a zone has 128 of them.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::varint::{get_u32, put_u64};
use crate::{Error, Result, ZONE_SIZE, ZoneId};

/// The length of a part, in bytes.
pub(crate) const PART: u64 = 64 << 10;
/// The number of parts of a zone.
pub(crate) const PARTS: u32 = (ZONE_SIZE / PART) as u32;

/// A range of parts of one zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartRange {
    pub zone: ZoneId,
    pub first: u32,
    /// The end of the range, at most [`PARTS`].
    pub end: u32,
}

impl PartRange {
    /// Returns the parts that a range of bytes touches, one range for each zone.
    pub(crate) fn of(addr: u64, len: u64) -> impl Iterator<Item = PartRange> {
        let end = addr.saturating_add(len);
        let mut at = addr;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let zone = ZoneId::of(at);
            let here = end.min(zone.end());
            let first = ((at - zone.start()) / PART) as u32;
            let last = ((here - zone.start()).div_ceil(PART)) as u32;
            at = here;
            (zone != ZoneId::NOWHERE).then_some(PartRange { zone, first, end: last })
        })
    }
}

/// A bit for each part of each zone that lies in object storage.
pub(crate) struct Parts {
    /// The zones, in ascending order. The other lists have an entry for each zone.
    zones: Vec<ZoneId>,
    bits: Vec<[AtomicU64; 2]>,
    /// The uses of each zone since the hand of the clock passed it, or 0 if there were none.
    used: Vec<AtomicU8>,
    valid: AtomicU64,
}

/// The flag of a zone that was used since the hand of the clock passed it.
pub(crate) const USED: u8 = 1;
/// The flag of a zone of which a part was fetched for the index or for tuples. Such a zone is
/// evicted last.
pub(crate) const OF_INDEX: u8 = 2;

fn mask(first: u32, end: u32) -> [u64; 2] {
    let below = |n: u32| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
    [below(end) & !below(first), below(end.saturating_sub(64)) & !below(first.saturating_sub(64))]
}

impl Parts {
    /// Creates a record in which no part of the zones of `remote` is in the local file. `remote`
    /// has the zones that lie in object storage, in ascending order. All other zones are completely
    /// in the local file.
    pub(crate) fn new(remote: impl Iterator<Item = ZoneId>) -> Parts {
        let zones: Vec<ZoneId> = remote.collect();
        let bits = zones.iter().map(|_| Default::default()).collect();
        let used = zones.iter().map(|_| AtomicU8::new(0)).collect();
        Parts { zones, bits, used, valid: AtomicU64::new(0) }
    }

    /// Returns the index of a zone in the lists, or `None` if the zone is local.
    fn place(&self, zone: ZoneId) -> Option<usize> {
        self.zones.binary_search(&zone).ok()
    }

    /// Returns whether a zone lies in object storage.
    pub(crate) fn is_remote(&self, zone: ZoneId) -> bool {
        self.place(zone).is_some()
    }

    fn bits(&self, zone: ZoneId) -> Option<&[AtomicU64; 2]> {
        self.bits.get(self.place(zone)?)
    }

    /// Returns the zones that lie in object storage, in ascending order.
    pub(crate) fn zones(&self) -> &[ZoneId] {
        &self.zones
    }

    /// Returns whether all these parts are in the local file.
    pub(crate) fn has(&self, range: PartRange) -> bool {
        let Some(bits) = self.bits(range.zone) else { return true };
        let mask = mask(range.first, range.end);
        let here = |i: usize| bits[i].load(Ordering::Acquire) & mask[i] == mask[i];
        here(0) && here(1)
    }

    /// Records that these parts are now in the local file.
    pub(crate) fn arrived(&self, range: PartRange) {
        let Some(bits) = self.bits(range.zone) else { return };
        let mask = mask(range.first, range.end);
        let mut came = 0;
        for i in 0..2 {
            let before = bits[i].fetch_or(mask[i], Ordering::AcqRel);
            came += (mask[i] & !before).count_ones();
        }
        self.valid.fetch_add(u64::from(came), Ordering::Relaxed);
    }

    /// Records that no part of a zone in object storage is in the local file any more. The caller
    /// must exclude reads and fetches of the zone.
    pub(crate) fn forget(&self, zone: ZoneId) {
        let Some(bits) = self.bits(zone) else { return };
        let gone: u32 = bits.iter().map(|b| b.swap(0, Ordering::AcqRel).count_ones()).sum();
        self.valid.fetch_sub(u64::from(gone), Ordering::Relaxed);
    }

    /// Returns the number of parts of zones in object storage that are in the local file.
    pub(crate) fn valid(&self) -> u64 {
        self.valid.load(Ordering::Relaxed)
    }

    /// Returns whether any part of the zone is in the local file.
    pub(crate) fn has_any(&self, zone: ZoneId) -> bool {
        let bits = self.bits(zone);
        bits.is_some_and(|bits| bits.iter().any(|b| b.load(Ordering::Relaxed) != 0))
    }

    /// Records a use of the zone: [`USED`] or [`OF_INDEX`].
    pub(crate) fn touch(&self, zone: ZoneId, how: u8) {
        if let Some(used) = self.place(zone).and_then(|place| self.used.get(place))
            && used.load(Ordering::Relaxed) & how != how
        {
            used.fetch_or(how, Ordering::Relaxed);
        }
    }

    /// Passes the hand of the clock over the zone. Returns the uses of the zone since the hand
    /// passed it last.
    pub(crate) fn pass(&self, zone: ZoneId) -> u8 {
        let used = self.place(zone).and_then(|place| self.used.get(place));
        used.map_or(0, |used| used.fetch_and(!USED, Ordering::Relaxed))
    }

    /// Records that these parts are no longer in the local file. The caller must exclude reads and
    /// fetches of the zone.
    pub(crate) fn forget_some(&self, range: PartRange) {
        let Some(bits) = self.bits(range.zone) else { return };
        for (bits, mask) in bits.iter().zip(mask(range.first, range.end)) {
            let gone = (bits.fetch_and(!mask, Ordering::AcqRel) & mask).count_ones();
            self.valid.fetch_sub(u64::from(gone), Ordering::Relaxed);
        }
    }

    /// Copies from `other` the uses of each zone, and its parts up to the offset that `same`
    /// returns for the zone.
    pub(crate) fn take_over(&self, other: &Parts, same: impl Fn(ZoneId) -> u32) {
        for (place, zone) in self.zones.iter().enumerate() {
            let Some(there) = other.place(*zone).filter(|_| other.has_any(*zone)) else { continue };
            let mask = mask(0, same(*zone) / PART as u32);
            for ((own, bits), mask) in self.bits[place].iter().zip(&other.bits[there]).zip(mask) {
                let bits = bits.load(Ordering::Acquire) & mask;
                let came = bits & !own.fetch_or(bits, Ordering::AcqRel);
                self.valid.fetch_add(u64::from(came.count_ones()), Ordering::Relaxed);
            }
            self.used[place].fetch_or(other.used[there].load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Appends the parts that are in the local file: for each zone that has any, the distance from
    /// the previous zone as a varint, and 16 bytes of bits. The list ends with a distance of 0.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut before = 0;
        for (zone, bits) in self.zones.iter().zip(&self.bits) {
            let bits = bits.each_ref().map(|b| b.load(Ordering::Acquire));
            if bits != [0, 0] {
                put_u64(out, u64::from(zone.0 - before));
                bits.iter().for_each(|b| out.extend_from_slice(&b.to_le_bytes()));
                before = zone.0;
            }
        }
        put_u64(out, 0);
    }

    /// Restores a record that [`Parts::encode`] has written. Returns [`Error::Corrupt`] if the
    /// record has a zone that is local.
    pub(crate) fn decode(&self, mut input: &[u8]) -> Result<()> {
        let corrupt = || Error::corrupt("the list of parts that are here is malformed", 0);
        let mut zone = 0u32;
        loop {
            let distance = get_u32(&mut input)?;
            if distance == 0 {
                return Ok(());
            }
            zone = zone.checked_add(distance).ok_or_else(corrupt)?;
            let Some((bits, rest)) = input.split_first_chunk::<16>() else {
                return Err(corrupt());
            };
            input = rest;
            let own = self.bits(ZoneId(zone)).ok_or_else(corrupt)?;
            for (own, bits) in own.iter().zip(bits.chunks_exact(8)) {
                let bits = u64::from_le_bytes(std::array::from_fn(|i| bits[i]));
                let before = own.fetch_or(bits, Ordering::AcqRel);
                let came = (bits & !before).count_ones();
                self.valid.fetch_add(u64::from(came), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(zone: u32, first: u32, end: u32) -> PartRange {
        PartRange { zone: ZoneId(zone), first, end }
    }

    #[test]
    fn bytes_are_parts_of_their_zones() {
        let of = |addr, len| PartRange::of(addr, len).collect::<Vec<_>>();
        assert_eq!(of(ZONE_SIZE, 1), [range(1, 0, 1)]);
        assert_eq!(of(ZONE_SIZE + PART - 1, 2), [range(1, 0, 2)]);
        assert_eq!(of(2 * ZONE_SIZE - 1, 2), [range(1, 127, 128), range(2, 0, 1)]);
        assert_eq!(of(2 * ZONE_SIZE, ZONE_SIZE), [range(2, 0, 128)]);
        assert_eq!(of(5, 0), []);
        assert_eq!(of(u64::MAX - 1, 9), []);
    }

    #[test]
    fn parts_arrive_and_go() {
        let parts = Parts::new([ZoneId(2), ZoneId(4)].into_iter());
        assert!(parts.has(range(1, 0, 128)) && parts.has(range(3, 0, 128)));
        assert!(parts.has(range(9, 0, 128)), "zones behind the last one are local");
        assert!(!parts.has(range(2, 0, 1)) && !parts.has(range(4, 127, 128)));
        parts.arrived(range(2, 60, 70));
        parts.arrived(range(2, 65, 71));
        assert!(parts.has(range(2, 60, 71)) && !parts.has(range(2, 59, 71)));
        assert!(!parts.has(range(2, 60, 72)));
        assert_eq!(parts.valid(), 11);
        parts.arrived(range(4, 0, 128));
        assert!(parts.has(range(4, 0, 128)));
        parts.forget(ZoneId(4));
        assert!(!parts.has(range(4, 5, 6)));
        assert_eq!(parts.valid(), 11);
    }

    #[test]
    fn what_is_here_comes_back() {
        let remote = [ZoneId(2), ZoneId(4), ZoneId(7)];
        let parts = Parts::new(remote.into_iter());
        parts.arrived(range(2, 60, 70));
        parts.arrived(range(7, 127, 128));
        let mut bytes = Vec::new();
        parts.encode(&mut bytes);
        let again = Parts::new(remote.into_iter());
        again.decode(&bytes).unwrap();
        assert!(again.has(range(2, 60, 70)) && again.has(range(7, 127, 128)));
        assert!(!again.has(range(2, 60, 71)) && !again.has(range(4, 0, 1)));
        assert_eq!(again.valid(), 11);
        for cut in 0..bytes.len() {
            let other = Parts::new(remote.into_iter());
            assert!(other.decode(&bytes[..cut]).is_err());
        }
        let others = Parts::new([ZoneId(8)].into_iter());
        assert!(others.decode(&bytes).is_err());
    }
}
