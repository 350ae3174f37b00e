//! Mappings of files.

use super::{PAGE, Worker};
use crate::kernel::{Answer, Errno, stat_of, sys};
use crate::tree::Closing;

pub(super) struct Map {
    pub start: *mut libc::c_void,
    pub len: usize,
    /// What it shows, and from where.
    pub file: Closing,
    pub at: i64,
}

impl Map {
    /// Returns the part of a range that may be changed. Data that a program puts into the last page
    /// after the end of the file is undefined: ext4 clears it when the file grows, and FUSE keeps
    /// it.
    fn changeable(&self, at: usize, len: usize) -> usize {
        let size = stat_of(self.file.0).map_or(0, |stat| (stat.st_size - self.at).max(0) as usize);
        let in_last_page = at < size.next_multiple_of(PAGE) && at + len > size;
        if in_last_page { size.saturating_sub(at) } else { len }
    }
}

impl Worker {
    pub(super) fn map(&self, map: u8, at: u32, len: u32) -> Answer<(*mut libc::c_void, usize)> {
        let map =
            self.maps.get(usize::from(map)).and_then(Option::as_ref).ok_or(Errno(libc::EBADF))?;
        let at = (at as usize).min(map.len);
        // SAFETY: `at` is within the mapping.
        Ok((unsafe { map.start.cast::<u8>().add(at) }.cast(), (len as usize).min(map.len - at)))
    }

    pub(super) fn changeable(
        &self,
        map: u8,
        at: u32,
        len: u32,
    ) -> Answer<(*mut libc::c_void, usize)> {
        let (start, len) = self.map(map, at, len)?;
        let len = self
            .maps
            .get(usize::from(map))
            .and_then(Option::as_ref)
            .map_or(0, |map| map.changeable((at as usize).min(map.len), len));
        Ok((start, len))
    }

    pub(super) fn unmap(&mut self, map: u8) -> Answer<()> {
        let map =
            self.maps.get_mut(usize::from(map)).and_then(Option::take).ok_or(Errno(libc::EBADF))?;
        sys!(libc::munmap(map.start, map.len)).map(drop)
    }
}
