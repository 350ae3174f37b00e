//! Relocation: copies large values to new locations in an order that the caller determines, such as
//! the order of file names. It is the first half of a merge that stores values in another order
//! than that of their keys. The second half merges each run that refers to the old locations: it
//! replaces the references and stitches everything else ([`Placement::relocated`]). A value to
//! which several keys or runs refer is copied once, and remains shared.
//!
//! The window of `relocation_window` examines the values in the caller's order. Values that are
//! already close together within a window stay, whatever their order.

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

/// Number of values that may be unreadable before reading fails with an error. A few unreadable
/// values are due to bad sectors, but a failing device has many, and each attempt may take long.
const MOST_UNREADABLE: usize = 8;

/// Copies large values to new locations in the order in which they are added.
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

    /// Adds the next value in the order. Each location may be added at most once. The caller pins
    /// it until the references to it have been replaced. After an error, [`Relocation::finish`]
    /// still returns the new locations of the values copied before, unless these could not be
    /// written.
    pub fn push(&mut self, e: ExtentRef) -> Result<()> {
        let item = Item { key: Bytes::new(), seq: 0, body: Body::Put(Value::Extent(e)) };
        self.window.push(HeldItem { item, placed: false });
        if self.window.is_full(&self.placement) { self.judge(true) } else { Ok(()) }
    }

    /// Returns the number of values copied so far.
    pub fn copied(&self) -> usize {
        self.relocated.len()
    }

    /// Returns the bytes of values read and written so far.
    pub fn stats(&self) -> MergeStats {
        self.stats
    }

    /// Copies the rest. Returns the new locations, written but not synced, and the pin that keeps
    /// them until runs refer to them.
    pub fn finish(mut self) -> Result<(Relocated, ZonePin, MergeStats)> {
        self.judge(false)?;
        let pin = self.pages.finish()?;
        Ok((self.relocated, pin, self.stats))
    }

    /// Examines the values in the window. If `more` values follow, some stay in the window.
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

    /// Copies these values. They are read in the order of their addresses and written in the given
    /// order. A damaged or unreadable value is left where it is, where a check finds it.
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

/// Returns whether the error may be due to some of the values only.
fn is_damage(e: &Error) -> bool {
    matches!(e, Error::Corrupt { .. } | Error::Zones(zones::Error::Io { .. }))
}
