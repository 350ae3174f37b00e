//! Reads from the medium, bypassing the block cache and the caches of the host, to verify the
//! medium.

use bytes::Bytes;
use zones::Purpose;

use super::values::check_extent;
use super::{BlockCache, room};
use crate::index::frame::{self, FrameKind, FramePointer};
use crate::value::ExtentRef;
use crate::{Error, Result};

impl BlockCache {
    /// Reads a frame from the medium, bypassing all caches.
    pub(crate) fn frame_on_medium(
        &self,
        kind: FrameKind,
        level: u16,
        at: FramePointer,
    ) -> Result<Bytes> {
        let purpose = if kind == FrameKind::Tuples { Purpose::Tuples } else { Purpose::Index };
        let mut buf = room("a block", at.addr, u64::from(at.len))?;
        self.zones.read_medium(purpose, at.addr, &mut buf)?;
        frame::open(Bytes::from(buf), kind, level, at)
    }

    /// Reads a large value from the medium, bypassing all caches, and compares it with its
    /// checksum.
    pub fn check_value(&self, e: &ExtentRef) -> Result<()> {
        let mut buf = room("a value", e.addr, u64::from(e.stored))?;
        self.zones.read_medium(Purpose::Pages, e.addr, &mut buf)?;
        check_extent(e, &buf)
    }

    /// Reads a span of neighbouring values from the medium, bypassing all caches, and compares each
    /// value with its checksum.
    pub(crate) fn span_on_medium(&self, values: &[ExtentRef]) -> Result<()> {
        let (Some(first), Some(last)) = (values.first(), values.last()) else { return Ok(()) };
        let len = last.end().checked_sub(first.addr).ok_or_else(|| {
            Error::corrupt("large values that do not follow one another", first.addr)
        })?;
        let mut buf = room("a span of values", first.addr, len)?;
        self.zones.read_medium(Purpose::Pages, first.addr, &mut buf)?;
        values.iter().try_for_each(|e| {
            let from = (e.addr - first.addr) as usize;
            check_extent(e, &buf[from..from + e.stored as usize])
        })
    }
}
