//! A device on which a sync waits until the test lets it continue, so that the actions of others
//! during the sync happen in a known order.

use std::io;
use std::time::Duration;

use env::sync::{Condvar, Mutex};
use zones::{Device, MemoryDevice, Purpose};

/// No test waits longer than this for another thread.
const PATIENCE: Duration = Duration::from_secs(60);

/// The sync that is held.
#[derive(Default)]
struct Hold {
    /// Holds the next sync after a write of this purpose.
    on: Option<Purpose>,
    /// A write of the chosen purpose has arrived.
    written: bool,
    held: bool,
}

/// A device, by default in memory, that can hold the next sync after a write of some purpose.
pub struct HeldSync<D = MemoryDevice> {
    pub memory: D,
    state: Mutex<Hold>,
    changed: Condvar,
}

impl Default for HeldSync {
    fn default() -> Self {
        Self::over(MemoryDevice::default())
    }
}

impl<D> HeldSync<D> {
    pub fn over(memory: D) -> Self {
        HeldSync { memory, state: Mutex::default(), changed: Condvar::default() }
    }

    /// Holds the next sync after a write for `purpose`.
    pub fn hold_behind(&self, purpose: Purpose) {
        *self.state.lock() = Hold { on: Some(purpose), ..Hold::default() };
    }

    /// Releases the held sync, and holds the next one after a write for `purpose`.
    pub fn release_and_hold_behind(&self, purpose: Purpose) {
        self.hold_behind(purpose);
        self.changed.notify_all();
    }

    /// Returns when a sync is held.
    pub fn wait_until_held(&self) {
        let mut state = self.state.lock();
        while !state.held {
            assert!(
                !self.changed.wait_for(&mut state, PATIENCE).timed_out(),
                "no sync came that could be held"
            );
        }
    }

    /// Releases the held sync.
    pub fn release(&self) {
        *self.state.lock() = Hold::default();
        self.changed.notify_all();
    }
}

impl<D: Device> Device for HeldSync<D> {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(purpose, offset, buf)
    }
    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        state.written |= state.on == Some(purpose);
        drop(state);
        self.memory.write_at(purpose, offset, buf)
    }
    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.written {
            state.held = true;
            self.changed.notify_all();
            while state.held {
                if self.changed.wait_for(&mut state, PATIENCE).timed_out() {
                    return Err(io::Error::other("a held sync was never released"));
                }
            }
        }
        drop(state);
        self.memory.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.memory.discard(offset, len)
    }
    fn len(&self) -> io::Result<u64> {
        self.memory.len()
    }
    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.memory.grow(new_len)
    }
}
