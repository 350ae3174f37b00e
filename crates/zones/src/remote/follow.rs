//! Replaces the state that is read by another state. From then on the local file has the zones of
//! the newer state, and bytes of the older state at the same addresses are dropped. Readers of the
//! older state continue: each reference has a checksum, so they notice wrong bytes, and read from
//! object storage, where the older bytes lie until a collector deletes them.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::fetch::{Layout, Remote};
use super::first_reads::FirstReads;
use super::parts::PartRange;
use super::table::ZoneTable;
use crate::{Device, Purpose};

/// The zone table of a replaced state, which exists while the state is read.
pub(super) type Retired = Weak<ZoneTable>;

/// Keeps the zone table of a state alive for the readers of the state.
#[derive(Clone, Debug, Default)]
pub struct TableHold {
    _table: Option<Arc<ZoneTable>>,
}

impl Remote {
    /// Returns a hold on the current table.
    pub(crate) fn hold(&self) -> TableHold {
        TableHold { _table: Some(self.layout().table.clone()) }
    }

    /// Replaces the current table by `table`. Parts in the local file stay if they have the same
    /// bytes. The space of all other parts is given back.
    pub(crate) fn follow(
        &self,
        cache: &dyn Device,
        table: Arc<ZoneTable>,
        first: FirstReads,
    ) -> io::Result<()> {
        self.replace_layout(|old| {
            let mut retired = self.retired.lock();
            retired.retain(|table| table.strong_count() > 0);
            retired.push(Arc::downgrade(&old.table));
            drop(retired);
            let layout = Layout::new(table.clone(), first);
            let parts = &layout.parts;
            parts.take_over(&old.parts, |zone| table.same_until(zone, &old.table));
            for &zone in old.parts.zones() {
                if old.parts.has_any(zone) && !parts.has_any(zone) {
                    cache.discard(zone.start(), crate::ZONE_SIZE)?;
                }
            }
            Ok(layout)
        })
    }

    /// Reads bytes again after they turned out to be wrong. First reads them from the replaced
    /// states, newest first, and then once more from object storage, because an answer may have
    /// been damaged in transit. Returns `false` if there is nowhere left to read from.
    pub(crate) fn read_again(
        &self,
        device: &dyn Device,
        purpose: Purpose,
        addr: u64,
        buf: &mut [u8],
        attempt: usize,
    ) -> io::Result<bool> {
        let layout = self.layout();
        let ranges: Vec<PartRange> = PartRange::of(addr, buf.len() as u64).collect();
        let end = addr + buf.len() as u64;
        let differs = |table: &Arc<ZoneTable>| {
            ranges.iter().any(|range| {
                let same = u64::from(table.same_until(range.zone, &layout.table));
                range.zone.start() + same < end
            })
        };
        let retired: Vec<_> = self.retired.lock().iter().filter_map(Weak::upgrade).collect();
        let older: Vec<_> = retired.iter().rev().filter(|table| differs(table)).collect();
        if let Some(table) = older.get(attempt) {
            self.read_there(table, purpose, addr, buf)?;
            return Ok(true);
        }
        if attempt > older.len() || !ranges.iter().any(|range| layout.parts.is_remote(range.zone)) {
            return Ok(false);
        }
        layout.distrusts_first.store(true, Ordering::Relaxed);
        for &range in &ranges {
            let _alone = self.lock_of(range.zone).write();
            self.layout().parts.forget_some(range);
        }
        tracing::debug!("{} bytes at {addr} are fetched once more", buf.len());
        device.read_at(purpose, addr, buf)?;
        Ok(true)
    }
}
