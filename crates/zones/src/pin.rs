//! RAII over zones: as long as a pin lives, no zone it names is used again.

use std::fmt;
use std::sync::Arc;

use crate::allocator::Allocator;
use crate::{ZoneId, ZoneUse};

/// Keeps every zone in it from being reused. Dropping it releases them: a zone with no pin, not
/// open for a stream, is free from then on, so whatever made it unnecessary must be durable before.
/// The default holds nothing.
#[derive(Default)]
pub struct ZonePin {
    /// `None` when it holds nothing.
    allocator: Option<Arc<Allocator>>,
    uses: ZoneUse,
}

impl ZonePin {
    /// Takes over pins that were counted already.
    pub(crate) fn counted(allocator: &Arc<Allocator>, uses: ZoneUse) -> ZonePin {
        ZonePin { allocator: Some(Arc::clone(allocator)), uses }
    }

    pub fn uses(&self) -> &ZoneUse {
        &self.uses
    }

    /// Puts the zones of `other`, a pin of the same store, into this one.
    ///
    /// # Panics
    /// When `other` belongs to another store, which is a mistake in the program.
    pub fn merge(&mut self, mut other: ZonePin) {
        let Some(theirs) = other.allocator.take() else { return };
        let allocator = self.allocator.get_or_insert_with(|| Arc::clone(&theirs));
        assert!(Arc::ptr_eq(allocator, &theirs), "holds of different stores cannot be merged");
        let mut both = ZoneUse::new();
        for (zone, _) in other.uses.iter().filter(|&(zone, _)| self.uses.contains(zone)) {
            both.add(zone, 0);
        }
        allocator.join(&both);
        self.uses.merge(&std::mem::take(&mut other.uses));
    }

    /// Counts bytes placed in a zone it holds.
    pub(crate) fn charge(&mut self, zone: ZoneId, bytes: u64) {
        if let Some(allocator) = self.allocator.as_ref().filter(|_| bytes > 0) {
            allocator.charge(zone, bytes);
            self.uses.add(zone, bytes);
        }
    }

    /// Releases the zones of which it uses no byte.
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
