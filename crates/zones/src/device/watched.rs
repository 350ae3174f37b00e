//! A device in memory that notifies a watcher of each access, so that a test can count, delay or
//! refuse accesses in a few lines.

use std::io;
use std::ops::Deref;

use super::{Device, MemoryDevice, Reading};
use crate::Purpose;

/// A watcher of the accesses to a [`WatchedDevice`]. The thread that performs an access calls the
/// watcher before the access. If the call returns an error, the access fails with this error and
/// has no effect.
pub trait Watch: Send + Sync + 'static {
    /// Called before `len` bytes at `offset` are read.
    fn reads(&self, _purpose: Purpose, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Called when a read is announced by [`Device::will_read`].
    fn announced(&self, _purpose: Purpose, _offset: u64, _len: u64) {}

    /// Called before `len` bytes at `offset` are written.
    fn writes(&self, _purpose: Purpose, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Called before the device becomes `new_len` bytes long.
    fn grows(&self, _new_len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Returns the memory of the host in bytes, as in [`Device::host_memory`].
    fn memory_of_host(&self) -> Option<u64> {
        None
    }
}

/// A device in memory with a watcher `W`. The device dereferences to the watcher. Reads of many
/// ranges are performed one after the other and are not announced.
#[derive(Default)]
pub struct WatchedDevice<W> {
    memory: MemoryDevice,
    watcher: W,
}

impl<W> Deref for WatchedDevice<W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.watcher
    }
}

impl<W: Watch> Device for WatchedDevice<W> {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.watcher.reads(purpose, offset, buf.len() as u64)?;
        self.memory.read_at(purpose, offset, buf)
    }

    fn will_read(&self, purpose: Purpose, offset: u64, len: u64) {
        self.watcher.announced(purpose, offset, len);
    }

    fn read_many(&self, purpose: Purpose, reads: &mut [Reading<'_>]) -> io::Result<()> {
        reads.iter_mut().try_for_each(|r| self.read_at(purpose, r.offset, r.buf))
    }

    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.watcher.writes(purpose, offset, buf.len() as u64)?;
        self.memory.write_at(purpose, offset, buf)
    }

    fn sync(&self) -> io::Result<()> {
        self.memory.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.memory.discard(offset, len)
    }

    fn len(&self) -> io::Result<u64> {
        self.memory.len()
    }

    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.watcher.grows(new_len)?;
        self.memory.grow(new_len)
    }

    fn host_memory(&self) -> Option<u64> {
        self.watcher.memory_of_host()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    #[derive(Default)]
    struct Counts {
        read: AtomicU64,
        announced: AtomicU64,
    }

    impl Watch for Counts {
        fn reads(&self, _: Purpose, _: u64, len: u64) -> io::Result<()> {
            self.read.fetch_add(len, Relaxed);
            Ok(())
        }
        fn announced(&self, _: Purpose, _: u64, len: u64) {
            self.announced.fetch_add(len, Relaxed);
        }
        fn writes(&self, purpose: Purpose, _: u64, _: u64) -> io::Result<()> {
            match purpose {
                Purpose::Journal => Err(io::ErrorKind::PermissionDenied.into()),
                _ => Ok(()),
            }
        }
        fn grows(&self, new_len: u64) -> io::Result<()> {
            match new_len > 8192 {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        }
    }

    #[test]
    fn an_access_that_the_watcher_refuses_has_no_effect() {
        let device = WatchedDevice::<Counts>::default();
        device.grow(8192).expect("grown");
        device.grow(8193).expect_err("refused");
        assert_eq!(device.len().expect("a length"), 8192);
        device.write_at(Purpose::Pages, 0, &[7; 4096]).expect("written");
        device.write_at(Purpose::Journal, 0, &[8; 4096]).expect_err("refused");
        let mut read = [0; 4096];
        device.read_at(Purpose::Pages, 0, &mut read).expect("read");
        assert_eq!(read, [7; 4096]);
    }

    #[test]
    fn each_read_of_many_is_watched_and_none_is_announced() {
        let device = WatchedDevice::<Counts>::default();
        device.grow(8192).expect("grown");
        let (mut first, mut second) = ([0; 512], [0; 1024]);
        let mut reads =
            [Reading { offset: 0, buf: &mut first }, Reading { offset: 4096, buf: &mut second }];
        device.read_many(Purpose::Pages, &mut reads).expect("read");
        device.will_read(Purpose::Pages, 0, 64);
        assert_eq!((device.read.load(Relaxed), device.announced.load(Relaxed)), (1536, 64));
    }
}
