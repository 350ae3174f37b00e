//! The new locations of large values that a relocation has copied. A merge whose placement has them
//! replaces the references to the old locations.

use std::collections::{BTreeSet, HashMap};

use zones::ZoneId;

use crate::value::ExtentRef;

/// The new locations of large values, keyed by the old ones. The old locations must stay pinned
/// while this is used: if one were reused, the new data would be mistaken for the old value.
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

    /// Returns the number of values that have a new location.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether no value has a new location.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the zones of the old locations.
    pub fn zones(&self) -> &BTreeSet<ZoneId> {
        &self.zones
    }

    /// Returns the new location of a value, or `e` itself if it has none.
    pub(crate) fn place_of(&self, e: ExtentRef) -> ExtentRef {
        match self.places.get(&e.addr) {
            Some(new) if *new == (ExtentRef { addr: new.addr, ..e }) => *new,
            _ => e,
        }
    }
}
