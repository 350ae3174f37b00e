//! A device with injected faults: scripted ones (the third write of the journal), random ones from
//! a seed, or a power cut at the n-th operation after which everything fails.

use std::io;
use std::sync::Arc;

use env::Random;
use env::sync::Mutex;

use super::{ATOM, Device};
use crate::Purpose;

/// The operation that a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Syncing.
    Sync,
    /// Giving space back to the host.
    Discard,
    /// Growing, and allocating a range that was discarded.
    Grow,
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// `EIO`. The first sectors of a write may have been written; a sync has made nothing durable.
    Error,
    /// The host is full.
    NoSpace,
    /// A read ends early: `UnexpectedEof`.
    ShortRead,
    /// A read succeeds with one bit wrong.
    FlipBit,
}

/// A rule for faults: it skips `after` matching operations, then strikes the next `times` of them,
/// each with a probability of 1 to `one_in`.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The operation to strike.
    pub on: Operation,
    /// The purpose to strike; `None` matches all. Only reads and writes have one.
    pub purpose: Option<Purpose>,
    /// The effect.
    pub kind: FaultKind,
    /// The number of matching operations that are skipped first.
    pub after: u64,
    /// The number of matching operations that may be struck.
    pub times: u64,
    /// The fault strikes with a probability of 1 to this number; with 1 it always strikes.
    pub one_in: u64,
}

impl Fault {
    /// Returns a fault that strikes every such operation from now on.
    pub fn always(on: Operation, kind: FaultKind) -> Fault {
        Fault { on, purpose: None, kind, after: 0, times: u64::MAX, one_in: 1 }
    }

    /// Returns a fault that strikes the next such operation.
    pub fn once(on: Operation, kind: FaultKind) -> Fault {
        Fault { times: 1, ..Self::always(on, kind) }
    }

    /// Restricts the fault to one purpose.
    pub fn of(self, purpose: Purpose) -> Fault {
        Fault { purpose: Some(purpose), ..self }
    }

    /// Skips `after` matching operations first.
    pub fn after(self, after: u64) -> Fault {
        Fault { after, ..self }
    }

    /// Strikes with a probability of 1 to `one_in`.
    pub fn one_in(self, one_in: u64) -> Fault {
        Fault { one_in, ..self }
    }
}

/// A device that forwards to another one and fails on purpose.
pub struct FaultDevice {
    inner: Arc<dyn Device>,
    state: Mutex<FaultState>,
}

struct FaultState {
    faults: Vec<Fault>,
    random: Random,
    struck: u64,
    /// The number of operations before the power fails.
    left: Option<u64>,
}

impl FaultDevice {
    /// Creates a device over `inner` without faults. The seed decides which bits flip and when a
    /// fault with `one_in` strikes.
    pub fn new(inner: Arc<dyn Device>, seed: u64) -> Self {
        let state =
            FaultState { faults: Vec::new(), random: Random::new(seed), struck: 0, left: None };
        FaultDevice { inner, state: Mutex::new(state) }
    }

    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Removes all faults, and restores the power.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.faults.clear();
        state.left = None;
    }

    /// Lets `n` more operations succeed; all later ones fail.
    pub fn cut_power_after(&self, n: u64) {
        self.state.lock().left = Some(n);
    }

    /// Returns the number of times that a fault has struck.
    pub fn struck(&self) -> u64 {
        self.state.lock().struck
    }

    /// Returns the fault that strikes this operation, and a random number.
    fn strike(
        &self,
        on: Operation,
        purpose: Option<Purpose>,
    ) -> io::Result<Option<(FaultKind, u64)>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(left) = &mut state.left {
            if *left == 0 {
                return Err(io::Error::other("the power is out"));
            }
            *left -= 1;
        }
        for fault in &mut state.faults {
            if fault.on != on
                || fault.times == 0
                || fault.purpose.is_some_and(|p| Some(p) != purpose)
            {
                continue;
            }
            if fault.after > 0 {
                fault.after -= 1;
                continue;
            }
            if fault.one_in > 1 && !state.random.one_in(fault.one_in) {
                continue;
            }
            fault.times -= 1;
            state.struck += 1;
            return Ok(Some((fault.kind, state.random.number())));
        }
        Ok(None)
    }

    /// Applies faults to an operation that only succeeds or fails.
    fn pass(&self, on: Operation, purpose: Option<Purpose>) -> io::Result<()> {
        match self.strike(on, purpose)? {
            None | Some((FaultKind::FlipBit, _)) => Ok(()),
            Some((kind, _)) => Err(failure(kind)),
        }
    }
}

fn failure(kind: FaultKind) -> io::Error {
    match kind {
        FaultKind::NoSpace => io::ErrorKind::StorageFull.into(),
        FaultKind::ShortRead => io::ErrorKind::UnexpectedEof.into(),
        FaultKind::Error | FaultKind::FlipBit => {
            io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
        }
    }
}

impl Device for FaultDevice {
    fn read_at(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match self.strike(Operation::Read, Some(purpose))? {
            None => self.inner.read_at(purpose, offset, buf),
            Some((FaultKind::FlipBit, noise)) => {
                self.inner.read_at(purpose, offset, buf)?;
                let len = buf.len() as u64;
                if len > 0 {
                    buf[(noise / 8 % len) as usize] ^= 1 << (noise % 8);
                }
                Ok(())
            }
            Some((kind, _)) => Err(failure(kind)),
        }
    }

    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        match self.strike(Operation::Write, Some(purpose))? {
            None => self.inner.write_at(purpose, offset, buf),
            // A failing write may have written a part, but never a part of a sector of the disk.
            Some((kind, noise)) => {
                let end = offset + noise % (buf.len() as u64 + 1);
                let whole =
                    if end == offset + buf.len() as u64 { end } else { end - end % ATOM as u64 };
                let part = whole.saturating_sub(offset) as usize;
                self.inner.write_at(purpose, offset, &buf[..part])?;
                Err(failure(kind))
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.pass(Operation::Sync, None)?;
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.pass(Operation::Discard, None)?;
        self.inner.discard(offset, len)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn grow(&self, new_len: u64) -> io::Result<()> {
        self.pass(Operation::Grow, None)?;
        self.inner.grow(new_len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.pass(Operation::Grow, None)?;
        self.inner.allocate(offset, len)
    }

    fn can_grow(&self) -> bool {
        self.inner.can_grow()
    }

    fn host_free(&self) -> Option<u64> {
        self.inner.host_free()
    }
}
