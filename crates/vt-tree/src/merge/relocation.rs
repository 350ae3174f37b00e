//! Relocation: large values are copied to places in an order that the caller determines, such as
//! that of the names of files. It is the first half of a merge that leaves values out of key order.
//! The second half merges each run that refers to the old places: it replaces the references and
//! stitches everything else ([`Placement::relocated`]). A value to which several keys or runs refer
//! is copied once, and stays shared.
//!
//! The window of `relocation_window` examines the values in the caller's order: values that already
//! lie together within a window stay, whatever their order.

use std::sync::Arc;

use bytes::Bytes;
use zones::{ExtentWriter, Lifetime, Priority, Purpose, ZonePin};

use super::builder::MergeStats;
use super::placement::Placement;
use super::relocated::Relocated;
use super::relocation_window::{HeldItem, RelocationWindow};
use crate::cache::BlockCache;
use crate::item::{Body, Item};
use crate::value::{ExtentRef, Value, place_stored};
use crate::{Error, Result};

/// The number of values that the device may fail to read before this is an error. A few of them are
/// bad sectors; a device that fails has many, and each attempt may take long.
const MOST_UNREADABLE: usize = 8;

/// Copies large values to new places, in the order in which they are added.
pub struct Relocation {
    cache: Arc<BlockCache>,
    placement: Placement,
    pages: ExtentWriter,
    window: RelocationWindow,
    relocated: Relocated,
    stats: MergeStats,
    unreadable: usize,
}

impl Relocation {
    /// Returns a relocation that moves the values that `placement` considers scattered, and those
    /// in the zones that it evacuates.
    pub fn new(
        cache: &Arc<BlockCache>,
        placement: Placement,
        priority: Priority,
        lifetime: Lifetime,
    ) -> Relocation {
        Relocation {
            cache: cache.clone(),
            placement,
            pages: cache.zones().extent_writer_for(Purpose::Pages, lifetime, priority),
            window: RelocationWindow::default(),
            relocated: Relocated::default(),
            stats: MergeStats::default(),
            unreadable: 0,
        }
    }

    /// Adds the value that comes next in the order. Each place is added at most once. The caller
    /// pins it until the references to it were replaced. After an error, [`Relocation::finish`]
    /// still returns the new places of what was copied before, unless it could not be written.
    pub fn push(&mut self, e: ExtentRef) -> Result<()> {
        let item = Item { key: Bytes::new(), seq: 0, body: Body::Put(Value::Extent(e)) };
        self.window.push(HeldItem { item, placed: false });
        if self.window.is_full(&self.placement) { self.judge(true) } else { Ok(()) }
    }

    /// Returns the number of values that were copied so far.
    pub fn copied(&self) -> usize {
        self.relocated.len()
    }

    /// Returns the bytes of values that were read and written so far.
    pub fn stats(&self) -> MergeStats {
        self.stats
    }

    /// Copies the rest. Returns the new places, written but not synced, and the pin that keeps
    /// them until runs refer to them.
    pub fn finish(mut self) -> Result<(Relocated, ZonePin, MergeStats)> {
        self.judge(false)?;
        let pin = self.pages.finish()?;
        Ok((self.relocated, pin, self.stats))
    }

    /// Judges the values in the window; if `more` follow, some stay in it.
    fn judge(&mut self, more: bool) -> Result<()> {
        for (moves, items) in self.window.judge(&self.placement, more) {
            if !moves {
                continue;
            }
            let of = |held: HeldItem| match held.item.body {
                Body::Put(Value::Extent(e)) => Some(e),
                _ => None,
            };
            let places: Vec<ExtentRef> = items.into_iter().filter_map(of).collect();
            self.copy(&places)?;
        }
        Ok(())
    }

    /// Copies these values in their order, and reads them in the order of the device. A damaged or
    /// unreadable value stays in place, where a check finds it.
    fn copy(&mut self, places: &[ExtentRef]) -> Result<()> {
        let values = match self.cache.read_stored(places) {
            Err(e) if places.len() > 1 && is_damage(&e) => {
                return places.chunks(1).try_for_each(|one| self.copy(one));
            }
            Err(Error::Corrupt { .. }) => return Ok(()),
            Err(e) if is_damage(&e) && self.unreadable < MOST_UNREADABLE => {
                self.unreadable += 1;
                return Ok(());
            }
            values => values?,
        };
        for (e, stored) in places.iter().zip(values) {
            let new = place_stored(&mut self.pages, *e, &stored)?;
            self.stats.values_read += u64::from(e.stored);
            self.stats.values_written += u64::from(new.stored);
            self.relocated.insert(e, new);
        }
        Ok(())
    }
}

/// Returns whether reading has failed because of some of the values, as far as is known.
fn is_damage(e: &Error) -> bool {
    matches!(e, Error::Corrupt { .. } | Error::Zones(zones::Error::Io { .. }))
}
