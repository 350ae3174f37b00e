//! Repeats a read whose bytes do not match their reference. In object storage, the place may have
//! other bytes by now, and an answer may have been damaged in transit.

use bytes::Bytes;
use zones::Purpose;

use super::{BlockCache, room};
use crate::{Error, Result};

impl BlockCache {
    /// Returns the result of `open` for the bytes that were read at `addr`. If `open` finds the
    /// bytes corrupt, reads the place from other sources, and opens those bytes.
    pub(super) fn checked<T>(
        &self,
        purpose: Purpose,
        addr: u64,
        bytes: Bytes,
        open: impl Fn(Bytes) -> Result<T>,
    ) -> Result<T> {
        let len = bytes.len() as u64;
        match open(bytes) {
            Err(e @ Error::Corrupt { .. }) => self.read_otherwise(purpose, addr, len, e, open),
            opened => opened,
        }
    }

    /// Reads the bytes from other sources. `first` is the error of the bytes that were read before.
    #[cold]
    fn read_otherwise<T>(
        &self,
        purpose: Purpose,
        addr: u64,
        len: u64,
        first: Error,
        open: impl Fn(Bytes) -> Result<T>,
    ) -> Result<T> {
        for attempt in 0.. {
            let mut buf = room("what is read again", addr, len)?;
            if !self.zones.read_again(purpose, addr, &mut buf, attempt)? {
                break;
            }
            match open(Bytes::from(buf)) {
                Err(Error::Corrupt { .. }) => {}
                opened => return opened,
            }
        }
        Err(first)
    }
}
