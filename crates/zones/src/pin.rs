//! Zone pins: no zone of a pin is reused as long as the pin lives.

use std::fmt;
use std::sync::Arc;

use crate::allocator::Allocator;
use crate::{ZoneId, ZoneUse};

/// Keeps its zones from being reused. Dropping it releases them: a zone without a pin that is not
/// open for a stream is free from then on, so the change that made its data unnecessary must be
/// durable before. The default pins nothing.
#[derive(Default)]
pub struct ZonePin {
    /// The allocator, or `None` if the pin pins nothing.
    allocator: Option<Arc<Allocator>>,
    uses: ZoneUse,
}

impl ZonePin {
    /// Returns a pin of zones whose pins were counted already.
    pub(crate) fn counted(allocator: &Arc<Allocator>, uses: ZoneUse) -> ZonePin {
        ZonePin { allocator: Some(Arc::clone(allocator)), uses }
    }

    /// Returns the pinned zones, and the bytes alive in each by this pin.
    pub fn uses(&self) -> &ZoneUse {
        &self.uses
    }

    /// Adds the zones of `other`, a pin of the same store, to this one.
    ///
    /// # Panics
    /// If `other` belongs to another store, which is a bug of the caller.
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

    /// Adds bytes placed in a zone that is pinned.
    pub(crate) fn charge(&mut self, zone: ZoneId, bytes: u64) {
        if let Some(allocator) = self.allocator.as_ref().filter(|_| bytes > 0) {
            allocator.charge(zone, bytes);
            self.uses.add(zone, bytes);
        }
    }

    /// Releases the zones in which it has no bytes.
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
