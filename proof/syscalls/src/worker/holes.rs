//! Tests holes of files: their places, and that they read as zeros.

use super::{LONGEST, Worker};
use crate::kernel::{Answer, Errno, stat_of, sys};

impl Worker {
    /// If data was sought, everything between `at` and the answer must be zeros. The answer itself
    /// depends on the file system.
    pub(super) fn seek_data(&mut self, slot: u8, at: i64, hole: bool) -> Answer<String> {
        let fd = self.slot(slot);
        let size = stat_of(fd)?;
        if size.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Errno(libc::ESPIPE));
        }
        let size = size.st_size;
        let before = sys!(libc::lseek(fd, 0, libc::SEEK_CUR))?;
        let answer =
            sys!(libc::lseek(fd, at, if hole { libc::SEEK_HOLE } else { libc::SEEK_DATA }));
        sys!(libc::lseek(fd, before, libc::SEEK_SET))?;
        match answer {
            Ok(found) if found < at || found > size => {
                Ok(format!("WRONG: {found} for {at} of {size}"))
            }
            Ok(found) if !hole => {
                Ok(self.must_be_zeros(slot, at, found).unwrap_or_else(|| "0".to_owned()))
            }
            Ok(_) => Ok("0".to_owned()),
            // All from here on is one hole.
            Err(Errno(libc::ENXIO)) if !hole && at >= 0 && at < size => {
                Ok(self.must_be_zeros(slot, at, size).unwrap_or_else(|| "0".to_owned()))
            }
            Err(e) => Err(e),
        }
    }

    pub(super) fn must_be_zeros(&mut self, slot: u8, from: i64, to: i64) -> Option<String> {
        if self.is_direct(slot) {
            return None;
        }
        let mut at = from;
        while at < to {
            let len = ((to - at) as usize).min(LONGEST);
            let got =
                sys!(libc::pread(self.slot(slot), self.buffer.cast(), len, at)).ok()? as usize;
            if let Some(data) = self.bytes(got).iter().position(|&b| b != 0) {
                return Some(format!(
                    "WRONG: data at {} in a hole from {from} to {to}",
                    at + data as i64
                ));
            }
            if got == 0 {
                return None;
            }
            at += got as i64;
        }
        None
    }

    pub(super) fn holes(&mut self, slot: u8) -> Answer<String> {
        let fd = self.slot(slot);
        let stat = stat_of(fd)?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Errno(libc::ESPIPE));
        }
        let before = sys!(libc::lseek(fd, 0, libc::SEEK_CUR))?;
        let mut at = 0;
        let mut wrong = None;
        while at < stat.st_size && wrong.is_none() {
            let data = match sys!(libc::lseek(fd, at, libc::SEEK_DATA)) {
                Ok(data) => data,
                Err(Errno(libc::ENXIO)) => stat.st_size,
                Err(e) => return Err(e),
            };
            wrong = self.must_be_zeros(slot, at, data.min(stat.st_size));
            if data >= stat.st_size {
                break;
            }
            let hole = sys!(libc::lseek(fd, data, libc::SEEK_HOLE))?;
            if hole <= data || hole > stat.st_size {
                wrong = Some(format!(
                    "WRONG: hole at {hole} behind data at {data} of {}",
                    stat.st_size
                ));
            }
            at = hole;
        }
        sys!(libc::lseek(fd, before, libc::SEEK_SET))?;
        Ok(wrong.unwrap_or_else(|| format!("{}", stat.st_size)))
    }
}
