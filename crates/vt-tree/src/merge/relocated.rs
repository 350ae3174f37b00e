//! The new places of large values that a relocation has copied. A merge with them in its placement
//! replaces the references to the old places.

use std::collections::{BTreeSet, HashMap};

use zones::ZoneId;

use crate::value::ExtentRef;

/// The new places of large values, by the old ones. The old places must stay pinned as long as it
/// is used: a place that is written again would be taken for the value that lay there before.
#[derive(Debug, Default)]
pub struct Relocated {
    places: HashMap<u64, ExtentRef>,
    zones: BTreeSet<ZoneId>,
}

impl Relocated {
    pub(super) fn insert(&mut self, old: &ExtentRef, new: ExtentRef) {
        self.zones.insert(ZoneId::of(old.addr));
        self.places.insert(old.addr, new);
    }

    /// Returns the number of values that have a new place.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether no value has a new place.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the zones of the old places.
    pub fn zones(&self) -> &BTreeSet<ZoneId> {
        &self.zones
    }

    /// Returns the new place of a value, or `e` itself if it has none.
    pub(crate) fn place_of(&self, e: ExtentRef) -> ExtentRef {
        match self.places.get(&e.addr) {
            Some(new) if *new == (ExtentRef { addr: new.addr, ..e }) => *new,
            _ => e,
        }
    }
}
