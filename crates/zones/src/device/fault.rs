//! A device with injected faults: scripted faults (such as the third write of the journal), random
//! faults from a seed, or a power cut at the n-th operation after which everything fails.

use std::io;
use std::sync::Arc;

use env::Random;
use env::sync::Mutex;

use super::{ATOM, Device};
use crate::Purpose;

/// The kind of operation that a fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A sync.
    Sync,
    /// A discard, which gives space back to the host.
    Discard,
    /// A growth, or the allocation of a range that was discarded.
    Grow,
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The operation fails with `EIO`. The first sectors of a write may have been written; a sync
    /// has made nothing durable.
    Error,
    /// The operation fails because the host is full.
    NoSpace,
    /// A read ends early with `UnexpectedEof`.
    ShortRead,
    /// A read succeeds, but one bit is wrong.
    FlipBit,
}

/// A rule for faults. It skips `after` matching operations, and then affects the next `times`
/// matching operations, each with a probability of 1 to `one_in`.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The kind of operation to affect.
    pub on: Operation,
    /// The purpose to affect, or `None` for all purposes. Only reads and writes have a purpose.
    pub purpose: Option<Purpose>,
    /// The effect of the fault.
    pub kind: FaultKind,
    /// The number of matching operations that are skipped first.
    pub after: u64,
    /// The number of matching operations that may be affected.
    pub times: u64,
    /// The fault occurs with a probability of 1 to this number. If it is 1, the fault always
    /// occurs.
    pub one_in: u64,
}

impl Fault {
    /// Returns a fault that affects every operation of this kind from now on.
    pub fn always(on: Operation, kind: FaultKind) -> Fault {
        Fault { on, purpose: None, kind, after: 0, times: u64::MAX, one_in: 1 }
    }

    /// Returns a fault that affects the next operation of this kind.
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

    /// Makes the fault occur with a probability of 1 to `one_in`.
    pub fn one_in(self, one_in: u64) -> Fault {
        Fault { one_in, ..self }
    }
}

/// A device that forwards operations to another device and fails on purpose.
pub struct FaultDevice {
    inner: Arc<dyn Device>,
    state: Mutex<FaultState>,
}

struct FaultState {
    faults: Vec<Fault>,
    random: Random,
    struck: u64,
    /// The number of operations that still succeed before the power fails.
    left: Option<u64>,
}

impl FaultDevice {
    /// Creates a device over `inner` without faults. The seed determines which bits flip and when a
    /// fault with `one_in` occurs.
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

    /// Lets `n` more operations succeed, after which all operations fail.
    pub fn cut_power_after(&self, n: u64) {
        self.state.lock().left = Some(n);
    }

    /// Returns the number of operations that a fault has affected.
    pub fn struck(&self) -> u64 {
        self.state.lock().struck
    }

    /// Returns the fault that affects this operation, if there is one, and a random number.
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
            // A failing write may have written a part of the data, but never a part of a disk
            // sector.
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
