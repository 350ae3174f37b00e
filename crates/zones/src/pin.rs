//! Zone pins. No zone of a pin is reused while the pin exists.

use std::fmt;
use std::sync::Arc;

use crate::allocator::Allocator;
use crate::{ZoneId, ZoneUse};

/// Prevents its zones from being reused. When a pin is dropped, a zone without another pin is free
/// unless it is open for a stream. So the change that made the data unnecessary must be durable
/// before the pin is dropped. The default pin has no zones.
#[derive(Default)]
pub struct ZonePin {
    /// The allocator, or `None` if the pin has no zones.
    allocator: Option<Arc<Allocator>>,
    uses: ZoneUse,
}

impl ZonePin {
    /// Returns a pin of zones that the allocator has already counted as pinned.
    pub(crate) fn counted(allocator: &Arc<Allocator>, uses: ZoneUse) -> ZonePin {
        ZonePin { allocator: Some(Arc::clone(allocator)), uses }
    }

    /// Returns the pinned zones, each with the number of bytes that this pin keeps alive.
    pub fn uses(&self) -> &ZoneUse {
        &self.uses
    }

    /// Adds the zones of `other`, a pin of the same store, to this pin.
    ///
    /// # Panics
    /// Panics if `other` belongs to another store, which is a bug of the caller.
    pub fn merge(&mut self, mut other: ZonePin) {
        let Some(theirs) = other.allocator.take() else { return };
        let allocator = self.allocator.get_or_insert_with(|| Arc::clone(&theirs));
        assert!(Arc::ptr_eq(allocator, &theirs), "pins of different stores cannot be merged");
        let mut both = ZoneUse::new();
        for (zone, _) in other.uses.iter().filter(|&(zone, _)| self.uses.contains(zone)) {
            both.add(zone, 0);
        }
        allocator.join(&both);
        self.uses.merge(&std::mem::take(&mut other.uses));
    }

    /// Adds bytes that were placed in a pinned zone.
    pub(crate) fn charge(&mut self, zone: ZoneId, bytes: u64) {
        if let Some(allocator) = self.allocator.as_ref().filter(|_| bytes > 0) {
            allocator.charge(zone, bytes);
            self.uses.add(zone, bytes);
        }
    }

    /// Releases the zones in which the pin has no bytes.
    pub(crate) fn release_empty(&mut self) {
        let empty = self.uses.split_off_empty();
        if let Some(allocator) = &self.allocator {
            allocator.unpin(&empty);
        }
    }

    pub(crate) fn uses_mut(&mut self) -> &mut ZoneUse {
        &mut self.uses
    }
}

impl Drop for ZonePin {
    fn drop(&mut self) {
        if let Some(allocator) = &self.allocator {
            allocator.unpin(&self.uses);
        }
    }
}

impl fmt::Debug for ZonePin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZonePin").field("uses", &self.uses).finish_non_exhaustive()
    }
}
