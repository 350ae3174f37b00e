//! A device on which a sync takes time, so that other threads run during it, and on which a write
//! is not instantaneous either.

use std::io;
use std::time::Duration;

use env::schedule;
use env::thread;
use zones::{CrashDevice, Device, Purpose};

pub struct SlowSync(pub CrashDevice);

impl SlowSync {
    /// A few points, or a sleep that lasts until all others wait.
    fn linger(&self) {
        match schedule::random().unwrap_or(0) % 4 {
            0 => thread::sleep(Duration::from_micros(100)),
            1 => thread::sleep(Duration::from_millis(20)),
            n => (0..n).for_each(|_| schedule::point()),
        }
    }
}

impl Device for SlowSync {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        schedule::point();
        self.0.write_at(purpose, offset, buf)?;
        schedule::point();
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        self.linger();
        self.0.sync()?;
        self.linger();
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.0.grow(new_len)
    }
}
