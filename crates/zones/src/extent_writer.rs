//! Extent writers are append positions on a stream. Objects are placed in memory, at addresses that
//! are known at once, and are written in large pieces. Several writers of one stream may be open.
//! Each writer reserves ranges of the open zone of the stream. The first ranges are small, so that
//! a short writer wastes little space, and the ranges are contiguous unless another writer reserves
//! a range in between.

use std::sync::Arc;

use crate::{
    Error, Lifetime, Priority, Purpose, Result, SECTOR, ZONE_SIZE, ZoneId, ZonePin, ZoneUse, Zones,
    round_up,
};

/// The length of the first range that a writer reserves, in bytes. Each further range is twice as
/// long, up to [`MAX_RANGE`].
const FIRST_RANGE: u64 = 64 << 10;
/// The length of the longest range, which is also the largest number of bytes that are buffered
/// before they are written.
const MAX_RANGE: u64 = 1 << 20;

/// An append position on a stream, at which objects are placed. If a writer is dropped before it is
/// finished, its objects are lost and their space is free again.
pub struct ExtentWriter {
    zones: Arc<Zones>,
    purpose: Purpose,
    lifetime: Lifetime,
    priority: Priority,
    pin: ZonePin,
    /// The objects that are placed but not yet written. `start`, a multiple of `SECTOR`, is the
    /// device address of the buffer.
    buffer: Vec<u8>,
    start: u64,
    /// The end of the space that is reserved contiguously with the buffer.
    end: u64,
    /// The beginning of the space that is reserved contiguously with the buffer. The space is given
    /// back if the writer is abandoned.
    begin: u64,
    /// The length of the next range that the writer reserves, in bytes.
    range_len: u64,
    /// The number of bytes placed in the current zone that `pin` does not count yet.
    placed: u64,
    failed: Option<Error>,
    /// The zones that are reserved for this writer.
    supply: Vec<ZonePin>,
    behind: bool,
}

impl Zones {
    /// Creates an extent writer for young data. Nothing is reserved before the first object.
    pub fn extent_writer(self: &Arc<Self>, purpose: Purpose, priority: Priority) -> ExtentWriter {
        self.extent_writer_for(purpose, Lifetime::default(), priority)
    }

    /// Creates an extent writer for data of this lifetime. Nothing is reserved before the first
    /// object.
    pub fn extent_writer_for(
        self: &Arc<Self>,
        purpose: Purpose,
        lifetime: Lifetime,
        priority: Priority,
    ) -> ExtentWriter {
        ExtentWriter::new(Arc::clone(self), purpose, lifetime, priority)
    }
}

impl ExtentWriter {
    fn new(
        zones: Arc<Zones>,
        purpose: Purpose,
        lifetime: Lifetime,
        priority: Priority,
    ) -> ExtentWriter {
        let pin = zones.empty_pin();
        ExtentWriter {
            zones,
            purpose,
            lifetime,
            priority,
            pin,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            begin: 0,
            range_len: FIRST_RANGE,
            placed: 0,
            failed: None,
            supply: Vec::new(),
            behind: false,
        }
    }

    /// Allows writes to run while more objects are placed, for a writer whose caller waits. A sync
    /// waits for these writes.
    pub fn write_behind(&mut self) {
        self.behind = true;
    }

    /// Adds zones from [`Zones::reserve_zone`], which the writer uses before others. Objects that
    /// fit into these zones are guaranteed to find space.
    pub fn supply(&mut self, zones: Vec<ZonePin>) {
        self.supply.extend(zones);
    }

    /// Returns the zones from [`ExtentWriter::supply`] that were not used.
    pub fn unused(&mut self) -> Vec<ZonePin> {
        std::mem::take(&mut self.supply)
    }

    /// Places an object of `len` bytes (at most [`ZONE_SIZE`]) at a multiple of `align` (a power of
    /// two, at most [`SECTOR`]) and returns its address. Calls `write` once with the address and a
    /// buffer of `len` zeros to fill. An object never crosses a zone boundary, and can be read from
    /// the device after [`ExtentWriter::flush`] or [`ExtentWriter::finish`]. If the store has no
    /// room ([`Error::NoSpace`]), the writer is unchanged. After any other error, and after a write
    /// that the host has refused for lack of space, the writer can only be dropped.
    pub fn place(
        &mut self,
        align: u32,
        len: usize,
        write: impl FnOnce(u64, &mut [u8]),
    ) -> Result<u64> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if !align.is_power_of_two() || u64::from(align) > SECTOR {
            return Err(Error::Invalid(format!("an object cannot be aligned to {align} bytes")));
        }
        if len as u64 > ZONE_SIZE {
            return Err(Error::Invalid(format!("an object of {len} bytes is larger than a zone")));
        }
        // An empty object has an address, too, which lies in a zone.
        let need = len.max(1) as u64;
        let mut at = round_up(self.start + self.buffer.len() as u64, u64::from(align));
        if at + need > self.end && !self.extend(at + need - self.end) {
            self.move_on(need).map_err(|e| self.fail(e))?;
            at = self.start;
        }
        let from = (at - self.start) as usize;
        self.buffer.resize(from + len, 0);
        write(at, &mut self.buffer[from..]);
        self.placed += len as u64;
        if self.buffer.len() as u64 >= MAX_RANGE {
            self.write_out(false)?;
        }
        Ok(at)
    }

    /// Returns the number of bytes placed so far in each zone.
    pub fn uses(&self) -> ZoneUse {
        let mut uses = self.pin.uses().clone();
        if self.placed > 0 {
            uses.add(ZoneId::of(self.end - 1), self.placed);
        }
        _ = uses.split_off_empty();
        uses
    }

    /// Writes everything placed so far and returns a pin of the zones. The pin remains valid if the
    /// writer is abandoned. The next object begins at a new sector.
    pub fn pin(&mut self) -> Result<ZonePin> {
        self.flush()?;
        self.begin = self.start;
        self.count();
        let mut uses = self.pin.uses().clone();
        _ = uses.split_off_empty();
        self.zones.pin(&uses)
    }

    /// Writes everything placed so far, so that it can be read by address. Does not sync. The next
    /// object begins at a new sector.
    pub fn flush(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.write_out(true)
    }

    /// Writes the rest of the buffer and gives back reserved space that is unused. Does not sync.
    /// The pin has the exact number of bytes placed in each zone.
    pub fn finish(mut self) -> Result<ZonePin> {
        self.flush()?;
        self.count();
        self.zones.give_range_back(self.purpose, self.start, self.end);
        self.begin = self.end;
        self.pin.release_empty();
        Ok(std::mem::take(&mut self.pin))
    }

    /// Reserves at least `need` more bytes directly after the reserved ones. Returns `false` if
    /// these bytes belong to another writer or the zone ends before them.
    fn extend(&mut self, need: u64) -> bool {
        if self.end == 0 || ZoneId::of(self.end - 1) != ZoneId::of(self.end - 1 + need) {
            return false;
        }
        let need = round_up(need, SECTOR);
        match self.zones.extend_range(
            self.purpose,
            self.priority,
            self.end,
            need,
            need.max(self.range_len),
        ) {
            Some(len) => {
                self.end += len;
                self.range_len = (self.range_len * 2).min(MAX_RANGE);
                true
            }
            None => false,
        }
    }

    /// Replaces the current range by another range of at least `need` bytes.
    fn move_on(&mut self, need: u64) -> Result<()> {
        let need = round_up(need, SECTOR);
        // Only the first range may lie in a gap. A writer that needs more ranges is long and should
        // stay contiguous.
        let (start, len) = self.zones.reserve_range(
            self.purpose,
            self.lifetime,
            self.priority,
            need,
            need.max(self.range_len),
            self.end == 0,
            &mut self.pin,
            &mut self.supply,
        )?;
        let written = self.write_out(true);
        self.count();
        self.zones.give_range_back(self.purpose, self.start, self.end);
        (self.start, self.begin, self.end) = (start, start, start + len);
        self.range_len = (self.range_len * 2).min(MAX_RANGE);
        written
    }

    /// Writes the whole sectors of the buffer or, if `all` is set, the whole buffer with padding.
    /// Every error is final, even that of a full host, because the addresses of the unwritten
    /// objects are already known to the caller.
    fn write_out(&mut self, all: bool) -> Result<()> {
        let written = self.write_buffer(all);
        if let Err(error) = &written {
            self.failed = Some(error.clone());
        }
        written
    }

    fn write_buffer(&mut self, all: bool) -> Result<()> {
        if all {
            self.buffer.resize(round_up(self.buffer.len() as u64, SECTOR) as usize, 0);
        }
        let len = self.buffer.len() & !(SECTOR as usize - 1);
        if len > 0 && self.behind {
            let rest = self.buffer.split_off(len);
            let written = self.zones.write_behind(self.purpose, self.start, &mut self.buffer);
            self.buffer.extend_from_slice(&rest);
            written?;
            self.start += len as u64;
        } else if len > 0 {
            self.zones.write(self.purpose, self.start, &self.buffer[..len])?;
            self.start += len as u64;
            self.buffer.copy_within(len.., 0);
            self.buffer.truncate(self.buffer.len() - len);
        }
        Ok(())
    }

    /// Adds the bytes that were placed since the last call to the pin.
    fn count(&mut self) {
        let placed = std::mem::take(&mut self.placed);
        if placed > 0 {
            // `end` may be the end of the zone, so find the zone by the byte before it.
            self.pin.charge(ZoneId::of(self.end - 1), placed);
        }
    }

    /// Records an error after which the writer can only be dropped. A lack of room for a range is
    /// not such an error.
    fn fail(&mut self, error: Error) -> Error {
        if !matches!(error, Error::NoSpace) {
            self.failed = Some(error.clone());
        }
        error
    }
}

impl Drop for ExtentWriter {
    fn drop(&mut self) {
        self.zones.give_range_back(self.purpose, self.begin, self.end);
    }
}
