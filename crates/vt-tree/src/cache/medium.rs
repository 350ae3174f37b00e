//! Reads from the medium, past the block cache and the caches of the host, to verify it.

use bytes::Bytes;
use zones::{Purpose, ZONE_SIZE};

use super::BlockCache;
use super::values::check_extent;
use crate::index::frame::{self, FrameKind, FramePointer};
use crate::value::ExtentRef;
use crate::{Error, Result};

impl BlockCache {
    /// Reads a frame from the medium, past all caches.
    pub(crate) fn frame_on_medium(
        &self,
        kind: FrameKind,
        level: u16,
        at: FramePointer,
    ) -> Result<Bytes> {
        let purpose = if kind == FrameKind::Tuples { Purpose::Tuples } else { Purpose::Index };
        if u64::from(at.len) > ZONE_SIZE {
            return Err(Error::Corrupt {
                what: format!("a block of {} bytes is longer than a zone", at.len),
                addr: at.addr,
            });
        }
        let mut buf = vec![0u8; at.len as usize];
        self.zones.read_medium(purpose, at.addr, &mut buf)?;
        frame::open(Bytes::from(buf), kind, level, at)
    }

    /// Reads a large value from the medium, past all caches, and compares it with its checksum.
    pub fn check_value(&self, e: &ExtentRef) -> Result<()> {
        if u64::from(e.stored) > ZONE_SIZE {
            return Err(Error::Corrupt {
                what: format!("a value of {} bytes is longer than a zone", e.stored),
                addr: e.addr,
            });
        }
        let mut buf = vec![0u8; e.stored as usize];
        self.zones.read_medium(Purpose::Pages, e.addr, &mut buf)?;
        check_extent(e, &buf)
    }

    /// Reads a span of neighbouring values from the medium, past all caches, and compares each with
    /// its checksum.
    pub(crate) fn span_on_medium(&self, values: &[ExtentRef]) -> Result<()> {
        let (Some(first), Some(last)) = (values.first(), values.last()) else { return Ok(()) };
        let len = last.end().checked_sub(first.addr).filter(|len| *len <= ZONE_SIZE);
        let Some(len) = len else {
            return Err(Error::corrupt("large values that do not follow one another", first.addr));
        };
        let mut buf = vec![0u8; len as usize];
        self.zones.read_medium(Purpose::Pages, first.addr, &mut buf)?;
        values.iter().try_for_each(|e| {
            let from = (e.addr - first.addr) as usize;
            check_extent(e, &buf[from..from + e.stored as usize])
        })
    }
}
