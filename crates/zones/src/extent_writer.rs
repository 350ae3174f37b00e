//! An append position of its own on a stream. Objects are placed in memory at addresses known at
//! once, and written in large pieces. Several writers of one stream may be open: each reserves
//! chunks of the stream's open zone, small ones first, so that a short writer wastes little, and
//! one after the other as long as no other writer comes between.

use std::sync::Arc;

use crate::{
    Error, Lifetime, Priority, Purpose, Result, SECTOR, ZONE_SIZE, ZoneId, ZonePin, ZoneUse, Zones,
    round_up,
};

/// The first chunk a writer reserves; each further one is twice as large, up to [`MAX_CHUNK`].
const FIRST_CHUNK: u64 = 64 << 10;
/// The largest chunk, and how much is buffered before it is written.
const MAX_CHUNK: u64 = 1 << 20;

/// Dropping an unfinished writer abandons it: what it placed is gone and its space is free again.
pub struct ExtentWriter {
    zones: Arc<Zones>,
    purpose: Purpose,
    lifetime: Lifetime,
    priority: Priority,
    pin: ZonePin,
    /// Placed, but not written yet; lies at `start` on the device, a multiple of `SECTOR`.
    buffer: Vec<u8>,
    start: u64,
    /// The end of what is reserved contiguously with the buffer.
    end: u64,
    /// Where that reservation began: given back if the writer is abandoned.
    begin: u64,
    chunk: u64,
    /// Bytes placed in the current zone that the pin does not count yet.
    placed: u64,
    failed: Option<Error>,
    /// Zones set aside for it.
    supply: Vec<ZonePin>,
    behind: bool,
}

impl Zones {
    /// A new append position on a stream. Nothing is reserved before the first object.
    pub fn extent_writer(self: &Arc<Self>, purpose: Purpose, priority: Priority) -> ExtentWriter {
        self.extent_writer_for(purpose, Lifetime::default(), priority)
    }

    /// An extent writer for data of this lifetime.
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
            chunk: FIRST_CHUNK,
            placed: 0,
            failed: None,
            supply: Vec::new(),
            behind: false,
        }
    }

    /// Lets writes go on while more is placed: for a writer that a caller waits for. A sync that
    /// comes before they have ended waits for them.
    pub fn write_behind(&mut self) {
        self.behind = true;
    }

    /// Gives it zones that [`Zones::set_aside`], to be used before others. What they have room for
    /// is sure to find a place.
    pub fn supply(&mut self, zones: Vec<ZonePin>) {
        self.supply.extend(zones);
    }

    /// Takes back what it did not use of them.
    pub fn unused(&mut self) -> Vec<ZonePin> {
        std::mem::take(&mut self.supply)
    }

    /// Places an object of `len` bytes (at most [`ZONE_SIZE`]) at a multiple of `align` (a power of
    /// two, at most [`SECTOR`]) and returns its address. `write` is called once with the address
    /// and that many zeros to fill in. An object never crosses a zone, and can be read from the
    /// device after [`ExtentWriter::flush`] or [`ExtentWriter::finish`]. After [`Error::NoSpace`]
    /// the writer is as it was before the call; after any other error it can only be dropped.
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
        // An empty object has an address too, and that lies in a zone.
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
        if self.buffer.len() as u64 >= MAX_CHUNK {
            self.write_out(false).map_err(|e| self.fail(e))?;
        }
        Ok(at)
    }

    /// The bytes placed so far, by zone.
    pub fn uses(&self) -> ZoneUse {
        let mut uses = self.pin.uses().clone();
        if self.placed > 0 {
            uses.add(ZoneId::of(self.end - 1), self.placed);
        }
        _ = uses.split_off_empty();
        uses
    }

    /// Writes everything placed so far and returns a pin over it, which stays good when the writer
    /// is abandoned. The next object begins at a new sector.
    pub fn pin(&mut self) -> Result<ZonePin> {
        self.flush()?;
        self.begin = self.start;
        self.count();
        let mut uses = self.pin.uses().clone();
        _ = uses.split_off_empty();
        self.zones.pin(&uses)
    }

    /// Writes everything placed so far, so that it can be read by address (not synced). The next
    /// object begins at a new sector.
    pub fn flush(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.write_out(true).map_err(|e| self.fail(e))
    }

    /// Writes the rest and gives what is reserved but unused back. Not synced. The pin has the
    /// exact bytes placed in each zone.
    pub fn finish(mut self) -> Result<ZonePin> {
        self.flush()?;
        self.count();
        self.zones.give_chunk_back(self.purpose, self.start, self.end);
        self.begin = self.end;
        self.pin.release_empty();
        Ok(std::mem::take(&mut self.pin))
    }

    /// Reserves at least `need` more bytes right behind what is reserved; false when another
    /// writer, or nothing, lies there.
    fn extend(&mut self, need: u64) -> bool {
        if self.end == 0 || ZoneId::of(self.end - 1) != ZoneId::of(self.end - 1 + need) {
            return false;
        }
        let need = round_up(need, SECTOR);
        match self.zones.extend_chunk(
            self.purpose,
            self.priority,
            self.end,
            need,
            need.max(self.chunk),
        ) {
            Some(len) => {
                self.end += len;
                self.chunk = (self.chunk * 2).min(MAX_CHUNK);
                true
            }
            None => false,
        }
    }

    /// Leaves what is reserved here for a chunk of at least `need` bytes somewhere else.
    fn move_on(&mut self, need: u64) -> Result<()> {
        let need = round_up(need, SECTOR);
        // Only a writer that begins may use gaps: one that goes on is a long one, and wants to stay
        // contiguous.
        let (start, len) = self.zones.reserve_chunk(
            self.purpose,
            self.lifetime,
            self.priority,
            need,
            need.max(self.chunk),
            self.end == 0,
            &mut self.pin,
            &mut self.supply,
        )?;
        let written = self.write_out(true);
        self.count();
        self.zones.give_chunk_back(self.purpose, self.start, self.end);
        (self.start, self.begin, self.end) = (start, start, start + len);
        self.chunk = (self.chunk * 2).min(MAX_CHUNK);
        written
    }

    /// Writes the buffer: its whole sectors, or all of it, padded.
    fn write_out(&mut self, all: bool) -> Result<()> {
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

    /// Brings the pin up to date.
    fn count(&mut self) {
        let placed = std::mem::take(&mut self.placed);
        if placed > 0 {
            // The buffer, empty or not, lies behind what was placed, perhaps at the very end of the
            // zone.
            self.pin.charge(ZoneId::of(self.end - 1), placed);
        }
    }

    /// Remembers an error after which nothing placed can be relied on. A full store is no such
    /// error.
    fn fail(&mut self, error: Error) -> Error {
        if !matches!(error, Error::NoSpace) {
            self.failed = Some(error.clone());
        }
        error
    }
}

impl Drop for ExtentWriter {
    fn drop(&mut self) {
        self.zones.give_chunk_back(self.purpose, self.begin, self.end);
    }
}
