//! Tracks which zones were written after a publication has read them, so that the next publication
//! need not read the other zones.
//!
//! Each write of a zone is counted before it is handed to the device, and once more afterwards. If
//! the count of a zone equals the count before the zone was read, the zone still has the bytes that
//! were read: a write that had been counted once by then is counted again later, and a write that
//! had been counted twice was visible to the read, because a device shows accepted writes as done
//! (`Device::write_behind`).

use std::sync::OnceLock;

use env::sync::atomic::{AtomicU64, Ordering};

use crate::ZoneId;

/// The number of counts that the zones share. If two zones share a count, a zone may be read in
/// vain.
const COUNTS: usize = 1 << 16;

/// The counts of the writes of a store. Nothing is counted before [`Writes::watch`].
#[derive(Default)]
pub(crate) struct Writes {
    counts: OnceLock<Box<[AtomicU64]>>,
}

impl Writes {
    /// Starts to count writes.
    pub fn watch(&self) {
        self.counts.get_or_init(|| (0..COUNTS).map(|_| AtomicU64::new(0)).collect());
    }

    /// Counts a write of `len` bytes at `addr`. The caller calls this before the write begins, and
    /// again when the device has accepted the write.
    pub fn count(&self, addr: u64, len: u64) {
        let Some(counts) = self.counts.get() else { return };
        let last = ZoneId::of(addr.saturating_add(len.saturating_sub(1)));
        for zone in ZoneId::of(addr).0..=last.0 {
            counts[zone as usize % COUNTS].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns the count of a zone, or `None` if writes are not counted.
    pub fn of(&self, zone: ZoneId) -> Option<u64> {
        Some(self.counts.get()?[zone.0 as usize % COUNTS].load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_changes_the_count_of_each_zone_that_it_touches() {
        let (writes, zone, next) = (Writes::default(), ZoneId(3), ZoneId(4));
        writes.count(zone.start(), 10);
        assert_eq!(writes.of(zone), None);
        writes.watch();
        let before = (writes.of(zone), writes.of(next));
        assert!(before.0.is_some());
        writes.count(zone.end() - 10, 10);
        assert_ne!(writes.of(zone), before.0);
        assert_eq!(writes.of(next), before.1);
        writes.count(zone.end() - 10, 11);
        assert_ne!(writes.of(next), before.1);
        writes.watch();
        assert_ne!(writes.of(next), before.1, "counts go on");
    }
}
