//! Reads and writes that bypass the page cache of the host. Direct reads verify the medium. Direct
//! writes are for data that is written in small parts and synced at once: the journal, the
//! manifest, the superblock. A buffered write that is synced afterwards goes through the writeback
//! of the host, which costs a multiple of the write (docs/decisions/001-direct-journal.md). After a
//! direct write, only the device is flushed.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::OFlags;

/// The alignment of the offset, the length and the memory of a direct write, which suffices for
/// every common disk.
const ALIGN: usize = 4096;
/// The largest number of bytes that are written at once.
const PIECE: usize = 1 << 20;

thread_local! {
    /// A buffer at any address, long enough to contain an aligned buffer.
    static BOUNCE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Returns a descriptor of the same file that bypasses the page cache, or `None` if the host does
/// not support that (tmpfs, for example).
fn reopen(file: &File, options: &mut OpenOptions) -> Option<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    options.custom_flags(OFlags::DIRECT.bits() as i32).open(path).ok()
}

/// Calls `with` with `len` aligned bytes of memory.
fn bounced<T>(len: usize, with: impl FnOnce(&mut [u8]) -> T) -> T {
    BOUNCE.with_borrow_mut(|bounce| {
        if bounce.len() < len + ALIGN {
            bounce.resize(len + ALIGN, 0);
        }
        let start = bounce.as_ptr().align_offset(ALIGN);
        with(&mut bounce[start..start + len])
    })
}

/// A second descriptor of a file, for direct reads.
#[derive(Debug)]
pub(super) struct DirectReader {
    file: File,
}

impl DirectReader {
    pub fn of(file: &File) -> Option<DirectReader> {
        Some(DirectReader { file: reopen(file, OpenOptions::new().read(true))? })
    }

    /// Reads any range whose pages lie completely in the file.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        for (i, piece) in buf.chunks_mut(PIECE - 2 * ALIGN).enumerate() {
            let at = offset + (i * (PIECE - 2 * ALIGN)) as u64;
            let from = at / ALIGN as u64 * ALIGN as u64;
            let skip = (at - from) as usize;
            bounced((skip + piece.len()).next_multiple_of(ALIGN), |aligned| {
                self.file.read_exact_at(aligned, from)?;
                piece.copy_from_slice(&aligned[skip..skip + piece.len()]);
                Ok::<(), io::Error>(())
            })?;
        }
        Ok(())
    }
}

/// A second descriptor of a file, for direct writes.
#[derive(Debug)]
pub(super) struct DirectWriter {
    file: File,
}

impl DirectWriter {
    pub fn of(file: &File) -> Option<DirectWriter> {
        Some(DirectWriter { file: reopen(file, OpenOptions::new().write(true))? })
    }

    /// Returns whether a write is aligned.
    pub fn takes(offset: u64, len: usize) -> bool {
        len > 0 && offset.is_multiple_of(ALIGN as u64) && len.is_multiple_of(ALIGN)
    }

    pub fn write_at(&self, mut offset: u64, bytes: &[u8]) -> io::Result<()> {
        bounced(bytes.len().min(PIECE), |bounce| {
            for piece in bytes.chunks(PIECE) {
                let aligned = &mut bounce[..piece.len()];
                aligned.copy_from_slice(piece);
                self.file.write_all_at(aligned, offset)?;
                offset += piece.len() as u64;
            }
            Ok(())
        })
    }
}
