//! Announces future reads to the device, so that it can fetch the data in the background.

use zones::Purpose;

use super::BlockCache;
use crate::value::ExtentRef;

/// The gap in bytes below which two spans are announced as one, because reading the gap takes less
/// time than a second request. On a device whose seeks cost more, the gap may be as wide as a seek
/// costs.
pub(super) const GAP: u64 = 16 << 10;

impl BlockCache {
    /// Announces to the device that these values will be read. Neighbouring values with small gaps
    /// are announced as one span.
    pub fn announce(&self, mut extents: Vec<ExtentRef>) {
        extents.sort_unstable_by_key(|e| e.addr);
        self.announce_sorted(Purpose::Pages, extents.iter().map(|e| (e.addr, e.end())));
    }

    /// Announces tuple blocks, given by address and length, to the device.
    pub fn announce_blocks(&self, mut blocks: Vec<(u64, u32)>) {
        blocks.sort_unstable();
        self.announce_sorted(
            Purpose::Tuples,
            blocks.iter().map(|&(addr, len)| (addr, addr.saturating_add(u64::from(len)))),
        );
    }

    /// Announces ranges, in ascending order of addresses, to the device.
    pub(crate) fn announce_sorted(
        &self,
        purpose: Purpose,
        ranges: impl Iterator<Item = (u64, u64)>,
    ) {
        let gap = GAP.max(self.seek_bytes());
        let mut span: Option<(u64, u64)> = None;
        for (start, end) in ranges {
            span = match span {
                Some((from, to)) if start.saturating_sub(to) < gap => Some((from, to.max(end))),
                before => {
                    if let Some((from, to)) = before {
                        self.zones.will_read(purpose, from, to - from);
                    }
                    Some((start, end))
                }
            };
        }
        if let Some((from, to)) = span {
            self.zones.will_read(purpose, from, to - from);
        }
    }
}
