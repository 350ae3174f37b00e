//! Reads, writes and syncs of a store. A failed sync is final: every later write and sync fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Zones;
use crate::device::Reading;
use crate::{Device, Error, IoStats, Purpose, Result, ZONE_SIZE};

impl Zones {
    /// Checks that `len` bytes at `addr` lie inside the store, and returns [`Error::Corrupt`] if
    /// they do not. Callers check a range before they allocate memory for a read.
    pub fn check_range(&self, addr: u64, len: u64) -> Result<()> {
        let end = addr.checked_add(len);
        if addr < ZONE_SIZE || end.is_none_or(|end| end > self.device_len.load(Ordering::Acquire)) {
            return Err(Error::corrupt(
                format!("a reference to {len} bytes outside the store"),
                addr,
            ));
        }
        Ok(())
    }

    /// Reads `buf.len()` bytes at `addr`.
    pub fn read(&self, purpose: Purpose, addr: u64, buf: &mut [u8]) -> Result<()> {
        self.check_range(addr, buf.len() as u64)?;
        self.device.read_at(purpose, addr, buf).map_err(|e| {
            Error::io(format!("reading {} bytes of {purpose} at {addr}", buf.len()), e)
        })
    }

    /// Reads `buf.len()` bytes at `addr` from the medium, bypassing the caches of the host. See
    /// [`Device::read_medium`].
    pub fn read_medium(&self, purpose: Purpose, addr: u64, buf: &mut [u8]) -> Result<()> {
        self.check_range(addr, buf.len() as u64)?;
        self.device.read_medium(purpose, addr, buf).map_err(|e| {
            Error::io(format!("reading {} bytes of {purpose} at {addr}", buf.len()), e)
        })
    }

    /// Fills all buffers. If the device can do so, all reads are in flight together. Reads that are
    /// sorted by address cost least.
    pub fn read_many(&self, purpose: Purpose, reads: &mut [Reading<'_>]) -> Result<()> {
        reads.iter().try_for_each(|r| self.check_range(r.offset, r.buf.len() as u64))?;
        let Some(first) = reads.first().map(|r| r.offset) else { return Ok(()) };
        let n = reads.len();
        self.device.read_many(purpose, reads).map_err(|e| {
            Error::io(format!("reading {n} ranges of {purpose}, the first at {first}"), e)
        })
    }

    /// Announces that `len` bytes at `addr` are about to be read, so that the device can fetch them
    /// in the background.
    pub fn will_read(&self, purpose: Purpose, addr: u64, len: u64) {
        if self.check_range(addr, len).is_ok() {
            self.device.will_read(purpose, addr, len);
        }
    }

    /// Returns the number of bytes of the host's memory that are available to cache reads. See
    /// [`Device::host_memory`].
    pub fn host_memory(&self) -> Option<u64> {
        self.device.host_memory()
    }

    /// Writes `bytes` at `addr`, in a zone from [`Zones::take_zone`]. The write is not durable
    /// before the next [`Zones::sync`].
    pub fn write(&self, purpose: Purpose, addr: u64, bytes: &[u8]) -> Result<()> {
        self.healthy()?;
        self.check_range(addr, bytes.len() as u64)?;
        self.counted(addr, bytes.len() as u64, || {
            self.device.write_at(purpose, addr, bytes).map_err(|e| {
                Error::io(format!("writing {} bytes of {purpose} at {addr}", bytes.len()), e)
            })
        })
    }

    /// Writes `bytes`, and empties the vector. The write may still be in progress when the call
    /// returns. See [`Device::write_behind`].
    pub(crate) fn write_behind(
        &self,
        purpose: Purpose,
        addr: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        self.healthy()?;
        let len = bytes.len();
        self.check_range(addr, len as u64)?;
        self.counted(addr, len as u64, || {
            self.device
                .write_behind(purpose, addr, bytes)
                .map_err(|e| Error::io(format!("writing {len} bytes of {purpose} at {addr}"), e))
        })
    }

    /// Calls `write`, and counts the write for publications.
    fn counted(&self, addr: u64, len: u64, write: impl FnOnce() -> Result<()>) -> Result<()> {
        self.writes.count(addr, len);
        let written = write();
        self.writes.count(addr, len);
        written
    }

    /// Makes everything written before the call durable. Concurrent callers share one sync. A
    /// failed sync is final: the host may have dropped data that it could not write, so a later
    /// sync proves nothing, and every later write and sync fails with the same error.
    pub fn sync(&self) -> Result<()> {
        let begun = self.syncs_begun.load(Ordering::SeqCst);
        let _one_at_a_time = self.syncing.lock();
        self.healthy()?;
        if self.syncs_done.load(Ordering::SeqCst) > begun {
            // A sync that began after this call has already ended.
            return Ok(());
        }
        let number = self.syncs_begun.fetch_add(1, Ordering::SeqCst) + 1;
        match self.device.sync() {
            Ok(()) => {
                self.syncs_done.store(number, Ordering::SeqCst);
                Ok(())
            }
            Err(source) => {
                let doing =
                    "syncing the store (nothing more will be written; reopen it)".to_string();
                let error = Error::Io { doing, source: Arc::new(source) };
                *self.poison.lock() = Some(error.clone());
                self.poisoned.store(true, Ordering::SeqCst);
                tracing::error!(%error, "a sync failed");
                Err(error)
            }
        }
    }

    /// Returns the error of the first failed sync, if a sync has failed.
    pub(super) fn healthy(&self) -> Result<()> {
        // The flag avoids the lock in healthy stores. It is set after the error.
        if !self.poisoned.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.poison.lock().clone().map_or(Ok(()), Err)
    }

    /// Returns the I/O on the device since the store was opened.
    pub fn io(&self) -> IoStats {
        self.device.stats()
    }
}
