//! A device whose power can be cut. It keeps everything done since the last sync apart, and makes
//! from it the images a real disk may show afterwards: any subset of the unsynced operations, every
//! write torn at sectors of 512 bytes. What was synced is always there; nothing else is promised,
//! and tests should expect the worst.

use std::io;

use env::Random;
use env::sync::Mutex;

use super::{ATOM, Device, MemoryDevice};
use crate::Purpose;

pub struct CrashDevice {
    /// What reads see: everything written.
    current: MemoryDevice,
    state: Mutex<CrashState>,
}

struct CrashState {
    /// What is certain to survive.
    durable: MemoryDevice,
    /// What was done since, in order.
    pending: Vec<Pending>,
    /// Operations (writes, syncs, discards, growth) done so far.
    done: u64,
    /// The power fails in the operation of this number.
    cut_at: Option<u64>,
    dead: bool,
}

enum Pending {
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
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts from an image that is durable, such as the one an earlier crash left.
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

    /// Writes, syncs, discards and growth done so far: the moments at which the power can fail.
    pub fn operations(&self) -> u64 {
        self.state.lock().done
    }

    /// The power fails in the middle of the `n`-th operation from now (0 is the next): it and
    /// everything after it fail. A write it hits may be there in part; of a sync it hits, anything
    /// may have become durable.
    pub fn cut_power_after(&self, n: u64) {
        let mut state = self.state.lock();
        state.cut_at = Some(state.done + n);
    }

    /// The power fails now; everything from here on fails.
    pub fn cut_power(&self) {
        self.state.lock().dead = true;
    }

    pub fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    /// What may be found after a power cut at this moment; another seed shows another possibility.
    /// Changes nothing, so that many outcomes of one moment can be looked at.
    pub fn crash(&self, seed: u64) -> MemoryDevice {
        let state = self.state.lock();
        let image = state.durable.clone();
        let mut random = Random::new(seed);
        // One outcome in four each: nothing, everything, and two densities of survivors.
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

    /// What survives if everything written so far reaches the disk.
    pub fn current(&self) -> MemoryDevice {
        self.current.clone()
    }

    /// What was synced, and nothing else.
    pub fn durable(&self) -> MemoryDevice {
        self.state.lock().durable.clone()
    }

    /// Runs `operation` unless the power is out; counts it; keeps it pending also when the power
    /// fails in it.
    fn run(
        &self,
        pending: Option<Pending>,
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

/// Does an operation to an image, sector by sector as `survives` says. Nothing survives beyond the
/// image's end: its growth may have been lost while later writes were not.
fn apply(image: &MemoryDevice, pending: &Pending, mut survives: impl FnMut(u64) -> bool) {
    let len = image.len().unwrap_or(0);
    match pending {
        Pending::Write { offset, bytes } => {
            let mut at = 0;
            while at < bytes.len() {
                let addr = offset + at as u64;
                // Atoms are aligned on the disk, not in the write.
                let step = (ATOM - (addr % ATOM as u64) as usize).min(bytes.len() - at);
                if addr + step as u64 <= len && survives(addr) {
                    let written = image.write_at(Purpose::Superblock, addr, &bytes[at..at + step]);
                    debug_assert!(written.is_ok(), "the range was checked");
                }
                at += step;
            }
        }
        // Contents are undefined afterwards: old bytes and zeros in any mixture, in larger pieces,
        // for speed.
        Pending::Discard { offset, len: discarded } => {
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
        Pending::Grow { new_len } => {
            if survives(*new_len) {
                // A growth that the power cut hit may be one that the device has no room for.
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
        let pending = Pending::Write { offset, bytes: buf.to_vec() };
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
        self.run(Some(Pending::Discard { offset, len }), |_| self.current.discard(offset, len))
    }

    fn len(&self) -> io::Result<u64> {
        self.current.len()
    }

    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.run(Some(Pending::Grow { new_len }), |_| self.current.grow(new_len))
    }

    fn host_free(&self) -> Option<u64> {
        self.current.host_free()
    }
}
