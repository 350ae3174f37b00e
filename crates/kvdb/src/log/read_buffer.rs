//! Reads the zones of a stream in large pieces.

use zones::{Purpose, ZoneId, Zones};

use crate::error::Result;

/// A buffer of bytes that were read ahead, so that many small chunks cost few reads.
#[derive(Default)]
pub(super) struct ReadBuffer {
    addr: u64,
    bytes: Vec<u8>,
}

/// The minimum number of bytes that one read requests, if the zone has that many.
const READ_AHEAD: u64 = 256 << 10;

impl ReadBuffer {
    /// Returns `len` bytes at `addr`. All of these bytes must lie within `zone`.
    pub fn get(
        &mut self,
        zones: &Zones,
        medium: bool,
        purpose: Purpose,
        zone: ZoneId,
        addr: u64,
        len: u64,
    ) -> Result<&[u8]> {
        if addr < self.addr || addr + len > self.addr + self.bytes.len() as u64 {
            let want = len.max(READ_AHEAD).min(zone.end() - addr);
            self.bytes.resize(want as usize, 0);
            self.addr = addr;
            let read = |bytes: &mut [u8]| match medium {
                true => zones.read_medium(purpose, addr, bytes),
                false => zones.read(purpose, addr, bytes),
            };
            let mut done = read(&mut self.bytes);
            if done.is_err() && want > len {
                // The unreadable bytes may lie in the part that was read ahead.
                self.bytes.truncate(len as usize);
                done = read(&mut self.bytes);
            }
            if let Err(e) = done {
                self.bytes.clear();
                return Err(e.into());
            }
        }
        let from = (addr - self.addr) as usize;
        Ok(&self.bytes[from..from + len as usize])
    }
}
