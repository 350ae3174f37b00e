//! A device whose power can be cut. It records all operations since the last sync, and derives from
//! them the images that a real disk may show afterwards. Any subset of the unsynced operations may
//! survive, and every write may be torn at sectors of 512 bytes. Only synced data is guaranteed to
//! survive.

use std::io;

use env::Random;
use env::sync::Mutex;

use super::{ATOM, Device, MemoryDevice};
use crate::Purpose;

/// A simulated device whose power can be cut.
pub struct CrashDevice {
    /// The content that reads see, which includes everything written.
    current: MemoryDevice,
    state: Mutex<CrashState>,
}

struct CrashState {
    /// The content that is guaranteed to survive.
    durable: MemoryDevice,
    /// The operations since the last sync, in order.
    pending: Vec<PendingOperation>,
    /// The number of operations (writes, syncs, discards, growth) so far.
    done: u64,
    /// The number of the operation in which the power fails.
    cut_at: Option<u64>,
    dead: bool,
}

enum PendingOperation {
    Write { offset: u64, bytes: Vec<u8> },
    Discard { offset: u64, len: u64 },
    Grow { new_len: u64 },
}

impl Default for CrashDevice {
    fn default() -> Self {
        Self::over(MemoryDevice::new())
    }
}

impl CrashDevice {
    /// Creates an empty device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a device with a durable image, such as one that an earlier crash left.
    pub fn over(image: MemoryDevice) -> Self {
        let state = CrashState {
            durable: image.clone(),
            pending: Vec::new(),
            done: 0,
            cut_at: None,
            dead: false,
        };
        CrashDevice { current: image, state: Mutex::new(state) }
    }

    /// Returns the number of writes, syncs, discards and growths so far. The power can fail during
    /// each of them.
    pub fn operations(&self) -> u64 {
        self.state.lock().done
    }

    /// Cuts the power during the `n`-th operation from now (0 is the next one). This operation and
    /// all later ones fail. If the operation is a write, a part of it may survive; if it is a sync,
    /// any part of the pending data may have become durable.
    pub fn cut_power_after(&self, n: u64) {
        let mut state = self.state.lock();
        state.cut_at = Some(state.done + n);
    }

    /// Cuts the power now, so that all later operations fail.
    pub fn cut_power(&self) {
        self.state.lock().dead = true;
    }

    /// Returns whether the power was cut.
    pub fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    /// Returns an image that a power cut at this moment may leave. Different seeds return different
    /// images. The device is unchanged, so that many outcomes of one moment can be tested.
    pub fn crash(&self, seed: u64) -> MemoryDevice {
        let state = self.state.lock();
        let image = state.durable.clone();
        let mut random = Random::new(seed);
        // Choose with equal probability between nothing, everything, and two densities of
        // survivors.
        let (whole, torn) = match random.below(4) {
            0 => return image,
            1 => (100, 0),
            2 => (50, 25),
            _ => (random.below(101), random.below(101)),
        };
        for pending in &state.pending {
            let fate = random.below(100);
            if fate < whole {
                apply(&image, pending, |_| true);
            } else if fate < whole + torn {
                apply(&image, pending, |_| random.one_in(2));
            }
        }
        image
    }

    /// Returns the image in which everything written so far has survived.
    pub fn current(&self) -> MemoryDevice {
        self.current.clone()
    }

    /// Returns the image in which only synced data has survived.
    pub fn durable(&self) -> MemoryDevice {
        self.state.lock().durable.clone()
    }

    /// Counts an operation and runs it unless the power is out. The operation is pending even if
    /// the power fails during it.
    fn run(
        &self,
        pending: Option<PendingOperation>,
        operation: impl FnOnce(&mut CrashState) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.dead {
            return Err(power_is_out());
        }
        let number = state.done;
        state.done += 1;
        if state.cut_at == Some(number) {
            state.dead = true;
            state.pending.extend(pending);
            return Err(power_is_out());
        }
        operation(&mut state)?;
        state.pending.extend(pending);
        Ok(())
    }
}

fn power_is_out() -> io::Error {
    io::Error::other("the power is out")
}

/// Applies to an image those sectors of an operation for which `survives` returns `true`. Nothing
/// survives beyond the end of the image, because growth may have been lost while later writes were
/// not.
fn apply(image: &MemoryDevice, pending: &PendingOperation, mut survives: impl FnMut(u64) -> bool) {
    let len = image.len().unwrap_or(0);
    match pending {
        PendingOperation::Write { offset, bytes } => {
            let mut at = 0;
            while at < bytes.len() {
                let addr = offset + at as u64;
                // Sectors are aligned to the disk and not to the write.
                let step = (ATOM - (addr % ATOM as u64) as usize).min(bytes.len() - at);
                if addr + step as u64 <= len && survives(addr) {
                    let written = image.write_at(Purpose::Superblock, addr, &bytes[at..at + step]);
                    debug_assert!(written.is_ok(), "the range was checked");
                }
                at += step;
            }
        }
        // The contents of a discarded range are undefined: any mixture of old bytes and zeros. The
        // mixture is made in larger units for speed.
        PendingOperation::Discard { offset, len: discarded } => {
            let mut at = 0;
            while at < *discarded {
                let step = (64 << 10).min(discarded - at);
                if survives(offset + at) {
                    let gone = image.discard(offset + at, step);
                    debug_assert!(gone.is_ok(), "discarding memory cannot fail");
                }
                at += step;
            }
        }
        PendingOperation::Grow { new_len } => {
            if survives(*new_len) {
                // The device may lack space for a growth during which the power failed.
                _ = image.grow(*new_len);
            }
        }
    }
}

impl Device for CrashDevice {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.is_dead() {
            return Err(power_is_out());
        }
        self.current.read_at(purpose, offset, buf)
    }

    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        let pending = PendingOperation::Write { offset, bytes: buf.to_vec() };
        self.run(Some(pending), |_| self.current.write_at(purpose, offset, buf))
    }

    fn sync(&self) -> io::Result<()> {
        self.run(None, |state| {
            for pending in std::mem::take(&mut state.pending) {
                apply(&state.durable, &pending, |_| true);
            }
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.run(Some(PendingOperation::Discard { offset, len }), |_| {
            self.current.discard(offset, len)
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.current.len()
    }

    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.run(Some(PendingOperation::Grow { new_len }), |_| self.current.grow(new_len))
    }

    fn host_free(&self) -> Option<u64> {
        self.current.host_free()
    }
}
