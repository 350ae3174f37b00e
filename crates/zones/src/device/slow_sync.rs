//! A device whose syncs take as long as the syncs of a disk, so that tests can observe the calls
//! that run during a sync.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{Device, Reading};
use crate::Purpose;

/// A device that forwards to another device and delays each sync.
pub struct SlowSyncDevice {
    inner: Arc<dyn Device>,
    pause: Duration,
}

impl SlowSyncDevice {
    /// Creates a device that waits for `pause` before each sync of `inner`.
    pub fn new(inner: Arc<dyn Device>, pause: Duration) -> Self {
        SlowSyncDevice { inner, pause }
    }
}

impl Device for SlowSyncDevice {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(purpose, offset, buf)
    }
    fn will_read(&self, purpose: Purpose, offset: u64, len: u64) {
        self.inner.will_read(purpose, offset, len);
    }
    fn read_many(&self, purpose: Purpose, reads: &mut [Reading<'_>]) -> io::Result<()> {
        self.inner.read_many(purpose, reads)
    }
    fn read_medium(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_medium(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write_at(purpose, offset, buf)
    }
    fn write_behind(&self, purpose: Purpose, offset: u64, buf: &mut Vec<u8>) -> io::Result<()> {
        self.inner.write_behind(purpose, offset, buf)
    }
    fn sync(&self) -> io::Result<()> {
        env::thread::sleep(self.pause);
        self.inner.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.inner.grow(new_len)
    }
    fn lengthen(&self, new_len: u64) -> io::Result<()> {
        self.inner.lengthen(new_len)
    }
    fn host_file(&self) -> Option<&File> {
        self.inner.host_file()
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.allocate(offset, len)
    }
    fn can_grow(&self) -> bool {
        self.inner.can_grow()
    }
    fn host_memory(&self) -> Option<u64> {
        self.inner.host_memory()
    }
    fn host_free(&self) -> Option<u64> {
        self.inner.host_free()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn only_a_sync_takes_its_time() {
        let pause = Duration::from_millis(20);
        let memory = Arc::new(MemoryDevice::new());
        let device = SlowSyncDevice::new(memory.clone(), pause);
        device.grow(4096).expect("grown");
        device.write_at(Purpose::Pages, 0, &[7; 4096]).expect("written");
        let begun = Instant::now();
        device.sync().expect("synced");
        assert!(begun.elapsed() >= pause);
        let mut read = [0; 4096];
        memory.read_at(Purpose::Pages, 0, &mut read).expect("read");
        assert_eq!(read, [7; 4096], "it went to the other one");
    }
}
