//! Finds the large values of a run that are in certain zones, so that they can be moved in an order
//! other than that of their keys.

use std::collections::BTreeSet;

use zones::ZoneId;

use crate::Result;
use crate::block::restart_interval::RestartInterval;
use crate::index::entry::Entry;
use crate::item::BodyRef;
use crate::run::Run;
use crate::value::{ExtentRef, ValueRef};

impl Run {
    /// Calls `each` with every large value of the run that is in one of `zones`, in key order.
    /// Skips nodes and blocks beneath which there are no such values. Leaves out the value that a
    /// pending update applies to, since a merge writes the result instead.
    pub fn values_in(
        &self,
        zones: &BTreeSet<ZoneId>,
        each: &mut dyn FnMut(ExtentRef),
    ) -> Result<()> {
        let (root, level) = self.root();
        let mut open = vec![(root.clone(), level)];
        let mut interval = RestartInterval::default();
        while let Some((entry, level)) = open.pop() {
            if !lies_in(&entry, zones)? {
                continue;
            }
            if level > 0 {
                let entries = self.cache().node(&entry, level)?.entries;
                open.extend(entries.into_iter().rev().map(|below| (below, level - 1)));
                continue;
            }
            let block = self.cache().block_once(entry.at)?;
            for at in 0..block.intervals() {
                block.interval_into(at, &mut interval)?;
                for item in (0..interval.len()).filter_map(|i| interval.item(i)) {
                    if let BodyRef::Put(ValueRef::Extent(e)) = item.body
                        && zones.contains(&ZoneId::of(e.addr))
                    {
                        each(e);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns whether there may be large values in `zones` beneath `entry`.
fn lies_in(entry: &Entry, zones: &BTreeSet<ZoneId>) -> Result<bool> {
    let uses = entry.zone_use()?;
    Ok(entry.value_bytes > 0 && uses.iter().any(|(zone, _)| zones.contains(&zone)))
}
