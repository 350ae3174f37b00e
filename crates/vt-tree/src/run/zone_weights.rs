//! What a run has in each zone, weighed for defragmentation: bytes, and the contiguous spans that
//! they lie in (VT-tree §3.1). Read off index entries of a level where a subtree is some megabytes,
//! so that a walk reads a thousandth of the index.

use std::collections::BTreeMap;

use zones::ZoneId;

use crate::Result;
use crate::index::entry::Entry;
use crate::index::frame::FramePointer;
use crate::run::Run;

/// What lies in one zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneWeight {
    pub bytes: u64,
    /// Contiguous spans, estimated: those of a subtree are shared out to its zones by their bytes.
    pub spans: u64,
}

impl Run {
    /// Adds what this run has in each zone to `out`.
    pub fn weigh_zones(&self, out: &mut BTreeMap<ZoneId, ZoneWeight>) -> Result<()> {
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

fn share_out(entry: &Entry, out: &mut BTreeMap<ZoneId, ZoneWeight>) -> Result<()> {
    let zones = entry.zone_use()?;
    let bytes = zones.total_bytes().max(1);
    let spans = entry.block_spans.saturating_add(entry.value_spans);
    for (zone, here) in zones.iter() {
        let weight = out.entry(zone).or_default();
        weight.bytes = weight.bytes.saturating_add(here);
        // Each zone that it has anything in takes a seek at least.
        let share = (u128::from(spans) * u128::from(here) / u128::from(bytes)).max(1) as u64;
        weight.spans = weight.spans.saturating_add(share);
    }
    Ok(())
}
