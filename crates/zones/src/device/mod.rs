//! What a store lies on: a trait small enough that a file, memory and devices that break on purpose
//! are all a page long.

mod behind;
mod copy;
mod count;
mod crash;
mod direct;
mod fault;
mod file;
mod host_memory;
mod memory;
mod uring;

pub(crate) use copy::copy_range;
pub use count::CountDevice;
pub use crash::CrashDevice;
pub use fault::{Fault, FaultDevice, FaultKind, Operation};
pub use file::FileDevice;
pub use memory::MemoryDevice;

use std::fs::File;
use std::io;

use crate::Purpose;

/// A disk writes this many bytes, aligned, whole or not at all: what the devices that break on
/// purpose tear at.
const ATOM: usize = 512;

/// One of many reads.
#[derive(Debug)]
pub struct Reading<'a> {
    pub offset: u64,
    pub buf: &'a mut [u8],
}

/// Random-access bytes. `purpose` only serves statistics and injected faults.
// An empty device is nothing anybody asks for.
#[allow(clippy::len_without_is_empty)]
pub trait Device: Send + Sync + 'static {
    /// Fills all of `buf`; a range beyond the end is an `UnexpectedEof` error.
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Says that a range is about to be read, so that it can be fetched meanwhile. Returns at once;
    /// a device that cannot does nothing.
    fn will_read(&self, _purpose: Purpose, _offset: u64, _len: u64) {}

    /// Fills all buffers, as [`Device::read_at`] does for one; a device that can has them in the
    /// air together. After an error any of them may be filled.
    fn read_many(&self, purpose: Purpose, reads: &mut [Reading<'_>]) -> io::Result<()> {
        reads.iter().for_each(|r| self.will_read(purpose, r.offset, r.buf.len() as u64));
        reads.iter_mut().try_for_each(|r| self.read_at(purpose, r.offset, r.buf))
    }

    /// As [`Device::read_at`], of what the medium has: not of what the host keeps in memory, where
    /// it can be passed by. For those who want to know whether it can still be read. What the host
    /// keeps stays as it is.
    fn read_medium(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_at(purpose, offset, buf)
    }

    /// Writes all of `buf`, which must lie inside the device. Not durable before the next
    /// [`Device::sync`].
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()>;

    /// As [`Device::write_at`], but may go on when this has returned. To every other call it is
    /// done: what meets its range waits for it, and so does [`Device::sync`], which fails if it has
    /// failed. Leaves `buf` empty, with memory to be used again; after an error it is as it was.
    fn write_behind(&self, purpose: Purpose, offset: u64, buf: &mut Vec<u8>) -> io::Result<()> {
        self.write_at(purpose, offset, buf)?;
        buf.clear();
        Ok(())
    }

    /// Returns when everything written before the call is durable. After an error nothing is known
    /// about it.
    fn sync(&self) -> io::Result<()>;

    /// Gives a range back to the host; its contents are undefined afterwards. A device that cannot
    /// does nothing.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Bytes that can be addressed.
    fn len(&self) -> io::Result<u64>;

    /// Makes the device `new_len` long (never shorter) and allocates the new space, so that later
    /// writes to it cannot find the host full. `StorageFull` when the host or the device has no
    /// more.
    fn grow(&self, new_len: u64) -> io::Result<()>;

    /// Makes the device `new_len` long (never shorter) without asking for space: what is not
    /// written stays a hole where the device can have holes.
    fn lengthen(&self, new_len: u64) -> io::Result<()> {
        self.grow(new_len)
    }

    /// The host's file behind the device, if it is one: for copies that the host makes by itself.
    fn host_file(&self) -> Option<&File> {
        None
    }

    /// Allocates a range that may have been discarded, so that later writes to it cannot find the
    /// host full.
    fn allocate(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// False for a device whose size is what it is.
    fn can_grow(&self) -> bool {
        true
    }

    /// Bytes of the host's memory that could keep what is read; `None` where nothing is kept, or
    /// nobody knows.
    fn host_memory(&self) -> Option<u64> {
        None
    }

    /// Bytes the host could still give for growing and allocating; `None` when that is not what
    /// limits the device.
    fn host_free(&self) -> Option<u64> {
        None
    }
}
