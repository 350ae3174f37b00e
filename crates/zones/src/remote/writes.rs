//! Which zones were written since a publication read them: so that the next one need not read the
//! others.
//!
//! The writes of a zone are counted: each before it is handed to the device, and once more after
//! that. A zone whose count is the same as before it was read has the bytes that were read. For a
//! write that was counted once then is counted again; and one that was counted twice was seen by
//! the read, since a device shows writes as done that it has taken (`Device::write_behind`).

use std::sync::OnceLock;

use env::sync::atomic::{AtomicU64, Ordering};

use crate::ZoneId;

/// Zones share so many counts. Those of a zone may be another one's: then it is read for nothing.
const COUNTS: usize = 1 << 16;

/// The counts of a store. Nothing is counted before [`Writes::watch`].
#[derive(Default)]
pub(crate) struct Writes {
    counts: OnceLock<Box<[AtomicU64]>>,
}

impl Writes {
    /// Counts writes from here on.
    pub fn watch(&self) {
        self.counts.get_or_init(|| (0..COUNTS).map(|_| AtomicU64::new(0)).collect());
    }

    /// Counts a write of `len` bytes at `addr`: before it begins, and when the device has taken it.
    pub fn count(&self, addr: u64, len: u64) {
        let Some(counts) = self.counts.get() else { return };
        let last = ZoneId::of(addr.saturating_add(len.saturating_sub(1)));
        for zone in ZoneId::of(addr).0..=last.0 {
            counts[zone as usize % COUNTS].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns the count of a zone; `None`: nothing is counted.
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
