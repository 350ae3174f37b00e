//! The call that writes: out of a program, or out of a kernel's cache (`cached_writes`).

use crate::attr::{Ino, WriteHints, Written};
use crate::error::Result;
use crate::fs::Fs;

impl Fs {
    /// Writes all of `data`; it is in memory when this returns, and committed later.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], hints: WriteHints) -> Result<u32> {
        self.write_for(ino, offset, data, hints).map(|_| data.len() as u32)
    }

    /// Like `write`, and also returns the effects that a cache of attributes must be notified of.
    pub fn write_for(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        hints: WriteHints,
    ) -> Result<Written> {
        let lost_privileges = if hints.from_cache {
            self.write_cached(ino, offset, data, hints)?
        } else {
            self.writable()?;
            self.core.locks.retry(|| {
                let _call = self.enter()?;
                if hints.append {
                    self.append(ino, data, hints)
                } else {
                    self.write_in_call(ino, offset, data, hints)
                }
            })?
        };
        Ok(Written { bytes: data.len() as u64, lost_privileges })
    }

    /// Writes at the current end of the file, wherever the writer believes that to be. (Under the
    /// freeze lock.)
    fn append(&self, ino: Ino, data: &[u8], hints: WriteHints) -> Result<bool> {
        let end = self.attr_of(ino)?.size;
        self.write_in_call(ino, end, data, hints)
    }
}
