//! Writes past the host's page cache, for what is written a little at a time and synced at once: the journal, the manifest,
//! the superblock. A buffered write that is synced afterwards goes through the host's writeback first, which costs a
//! multiple of the write (docs/decisions/001-direct-journal.md); a direct one leaves nothing to do but the device's flush.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::OFlags;

/// What offset, length and memory of a direct write are multiples of; enough for every common disk.
const ALIGN: usize = 4096;
/// The longest piece written at once.
const PIECE: usize = 1 << 20;

thread_local! {
    /// Memory that begins at any address and has an aligned piece inside.
    static BOUNCE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A second descriptor of a file, for direct writes.
#[derive(Debug)]
pub(super) struct DirectWriter {
    file: File,
}

impl DirectWriter {
    /// `None` where the host cannot do it (tmpfs, say).
    pub fn of(file: &File) -> Option<DirectWriter> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path).ok()?;
        Some(DirectWriter { file })
    }

    /// `true` when a write can go this way.
    pub fn takes(offset: u64, len: usize) -> bool {
        len > 0 && offset.is_multiple_of(ALIGN as u64) && len.is_multiple_of(ALIGN)
    }

    pub fn write_at(&self, mut offset: u64, bytes: &[u8]) -> io::Result<()> {
        BOUNCE.with_borrow_mut(|bounce| {
            if bounce.len() < bytes.len().min(PIECE) + ALIGN {
                bounce.resize(bytes.len().min(PIECE) + ALIGN, 0);
            }
            let start = bounce.as_ptr().align_offset(ALIGN);
            for piece in bytes.chunks(PIECE) {
                let aligned = &mut bounce[start..start + piece.len()];
                aligned.copy_from_slice(piece);
                self.file.write_all_at(aligned, offset)?;
                offset += piece.len() as u64;
            }
            Ok(())
        })
    }
}
