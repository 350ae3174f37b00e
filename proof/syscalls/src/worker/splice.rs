//! Copying by splice(2), through a pipe.

use super::Worker;
use crate::kernel::{Answer, Errno, sys};
use crate::tree::Closing;

impl Worker {
    pub(super) fn splice(
        &mut self,
        from: u8,
        from_at: i64,
        to: u8,
        to_at: i64,
        len: u32,
    ) -> Answer<String> {
        if self.is_direct(from) || self.is_direct(to) || self.is_fifo(to) {
            return Err(Errno(libc::EINVAL));
        }
        let mut ends = [0; 2];
        sys!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK))?;
        let [read, write] = ends.map(Closing);
        let (mut from_at, mut to_at) = (from_at, to_at);
        let len = (len as usize).min(48 << 10);
        let null = std::ptr::null_mut();
        // A splice may be short at any page; only the sum of all is compared.
        let mut held = 0;
        while held < len as i64 {
            match sys!(libc::splice(
                self.slot(from),
                &mut from_at,
                write.0,
                null,
                len - held as usize,
                libc::SPLICE_F_NONBLOCK
            )) {
                Ok(0) | Err(Errno(libc::EAGAIN)) => break,
                Ok(more) => held += more,
                Err(e) if held == 0 => return Err(e),
                Err(_) => break,
            }
        }
        let mut moved = 0;
        let mut error = String::new();
        while moved < held {
            match sys!(libc::splice(
                read.0,
                null,
                self.slot(to),
                &mut to_at,
                (held - moved) as usize,
                0
            )) {
                Ok(0) => break,
                Ok(more) => moved += more,
                Err(e) => {
                    error = format!(" {}", e.name());
                    break;
                }
            }
        }
        Ok(format!("{held} {moved}{error}"))
    }
}
