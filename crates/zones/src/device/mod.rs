//! The device below a store: a trait with implementations for files, memory, and devices that fail
//! on purpose.

mod behind;
mod claims;
mod copy;
mod count;
mod crash;
mod direct;
mod fault;
mod file;
mod host_memory;
mod memory;
mod slow_sync;
mod uring;
mod watched;

pub(crate) use copy::copy_range;
pub use count::CountDevice;
pub use crash::CrashDevice;
pub use fault::{Fault, FaultDevice, FaultKind, Operation};
pub use file::FileDevice;
pub use memory::MemoryDevice;
pub use slow_sync::SlowSyncDevice;
pub use watched::{Watch, WatchedDevice};

use std::fs::File;
use std::io;

use crate::Purpose;

/// The number of aligned bytes that a disk writes atomically. Simulated crashes tear writes at this
/// boundary.
const ATOM: usize = 512;

/// A read for [`Device::read_many`].
#[derive(Debug)]
pub struct Reading<'a> {
    /// The device address, in bytes.
    pub offset: u64,
    /// The buffer to fill.
    pub buf: &'a mut [u8],
}

/// A device with random access to bytes. `purpose` is used only for statistics, injected faults and
/// the choice of the way to write.
// An `is_empty` method would be useless.
#[allow(clippy::len_without_is_empty)]
pub trait Device: Send + Sync + 'static {
    /// Fills all of `buf`. Reading beyond the end is an `UnexpectedEof` error.
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Announces that a range is about to be read, so that the device can fetch it in the
    /// background. Returns at once. May do nothing.
    fn will_read(&self, _purpose: Purpose, _offset: u64, _len: u64) {}

    /// Fills all buffers, as [`Device::read_at`] fills one. If the device can do so, all requests
    /// are in flight together. After an error, any of the buffers may have been filled.
    fn read_many(&self, purpose: Purpose, reads: &mut [Reading<'_>]) -> io::Result<()> {
        reads.iter().for_each(|r| self.will_read(purpose, r.offset, r.buf.len() as u64));
        reads.iter_mut().try_for_each(|r| self.read_at(purpose, r.offset, r.buf))
    }

    /// Fills all of `buf` from the medium, to verify that the medium can be read. Bypasses the
    /// caches of the host if possible, and leaves them unchanged.
    fn read_medium(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_at(purpose, offset, buf)
    }

    /// Writes all of `buf`, which must lie inside the device. The write is not durable before the
    /// next [`Device::sync`].
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()>;

    /// Writes all of `buf`, and may return before the write is done. To other calls the write
    /// appears done: calls that overlap its range wait for it. [`Device::sync`] waits for it, too,
    /// and fails if the write failed. Leaves `buf` empty, with memory that can be reused. After an
    /// error `buf` is unchanged.
    fn write_behind(&self, purpose: Purpose, offset: u64, buf: &mut Vec<u8>) -> io::Result<()> {
        self.write_at(purpose, offset, buf)?;
        buf.clear();
        Ok(())
    }

    /// Returns when everything written before the call is durable. After an error any of this data
    /// may be lost.
    fn sync(&self) -> io::Result<()>;

    /// Gives the space of a range back to the host. The contents of the range are undefined
    /// afterwards. May do nothing.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Returns the length of the device, in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Makes the device `new_len` bytes long (never shorter) and allocates the new space, so that
    /// later writes to it do not fail for lack of space. Returns a `StorageFull` error if the host
    /// or the device has no more.
    fn grow(&self, new_len: u64) -> io::Result<()>;

    /// Makes the device `new_len` bytes long (never shorter) without an allocation: ranges that are
    /// not written stay holes, if the device supports holes.
    fn lengthen(&self, new_len: u64) -> io::Result<()> {
        self.grow(new_len)
    }

    /// Returns the file of the host if the device is a file, for copies within the kernel.
    fn host_file(&self) -> Option<&File> {
        None
    }

    /// Allocates a range that may have been discarded, so that later writes to it do not fail for
    /// lack of space.
    fn allocate(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Returns `false` if the size of the device is fixed.
    fn can_grow(&self) -> bool {
        true
    }

    /// Returns the number of bytes of the host's memory that are available to cache reads, or
    /// `None` if reads are not cached or the number is not known.
    fn host_memory(&self) -> Option<u64> {
        None
    }

    /// Returns the number of bytes that the host has for growth and allocation, or `None` if the
    /// host does not limit the device.
    fn host_free(&self) -> Option<u64> {
        None
    }
}
