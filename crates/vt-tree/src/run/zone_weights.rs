//! The weight of a run in each zone, for defragmentation: its bytes, and the number of contiguous
//! spans that they form (VT-tree §3.1). It is computed from index entries at a level whose subtrees
//! are some megabytes, so that a walk reads a thousandth of the index.

use std::collections::BTreeMap;

use zones::{SECTOR, ZoneId};

use crate::Result;
use crate::index::entry::Entry;
use crate::index::frame::FramePointer;
use crate::run::Run;

/// The weight of runs in one zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneWeight {
    /// Bytes in the zone. The bytes of each run are rounded up to whole sectors, because no two
    /// runs are written to the same sector.
    pub bytes: u64,
    /// An estimate of the number of contiguous spans: the spans of a subtree are divided among its
    /// zones in proportion to their bytes.
    pub spans: u64,
}

impl Run {
    /// Returns the bytes of the run by zone, in whole sectors.
    pub fn sectors(&self) -> impl Iterator<Item = (ZoneId, u64)> + '_ {
        self.uses().iter().map(|(zone, bytes)| (zone, whole_sectors(bytes)))
    }

    /// Adds the weight of this run in each zone to `out`.
    pub fn weigh_zones(&self, out: &mut BTreeMap<ZoneId, ZoneWeight>) -> Result<()> {
        let mut run = BTreeMap::new();
        self.weigh(&mut run)?;
        for (zone, ZoneWeight { bytes, spans }) in run {
            let weight = out.entry(zone).or_default();
            weight.bytes = weight.bytes.saturating_add(whole_sectors(bytes));
            weight.spans = weight.spans.saturating_add(spans);
        }
        Ok(())
    }

    fn weigh(&self, out: &mut BTreeMap<ZoneId, ZoneWeight>) -> Result<()> {
        let (root, level) = self.root();
        let own = |at: FramePointer, out: &mut BTreeMap<ZoneId, ZoneWeight>| {
            let weight = out.entry(ZoneId::of(at.addr)).or_default();
            weight.bytes = weight.bytes.saturating_add(u64::from(at.len));
            weight.spans = weight.spans.saturating_add(1);
        };
        let mut nodes = Vec::new();
        match level {
            0 | 1 => share_out(root, out)?,
            _ => {
                own(root.at, out);
                nodes.push((root.clone(), level));
            }
        }
        while let Some((above, level)) = nodes.pop() {
            for entry in self.cache().node(&above, level)?.entries {
                if level > 2 {
                    own(entry.at, out);
                    nodes.push((entry, level - 1));
                } else {
                    share_out(&entry, out)?;
                }
            }
        }
        Ok(())
    }
}

fn whole_sectors(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(SECTOR).unwrap_or(u64::MAX)
}

fn share_out(entry: &Entry, out: &mut BTreeMap<ZoneId, ZoneWeight>) -> Result<()> {
    let zones = entry.zone_use()?;
    let bytes = zones.total_bytes().max(1);
    let spans = entry.block_spans.saturating_add(entry.value_spans);
    for (zone, here) in zones.iter() {
        let weight = out.entry(zone).or_default();
        weight.bytes = weight.bytes.saturating_add(here);
        // Each zone with any bytes costs at least one seek.
        let share = (u128::from(spans) * u128::from(here) / u128::from(bytes)).max(1) as u64;
        weight.spans = weight.spans.saturating_add(share);
    }
    Ok(())
}
