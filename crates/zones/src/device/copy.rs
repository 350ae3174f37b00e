//! Copies from one device to another. Between two files, the kernel copies the data, or shares the
//! space if the file system supports that (XFS, Btrfs, bcachefs).

use std::io;

use rustix::fs::copy_file_range;
use rustix::io::Errno;

use super::Device;
use crate::Purpose;

/// The number of bytes that are read and written at once if the kernel does not copy.
const PIECE: u64 = 1 << 20;

/// Copies `len` bytes at `offset` to the same address of another device, which must be long enough.
/// Does not sync.
pub(crate) fn copy_range(
    from: &dyn Device,
    to: &dyn Device,
    offset: u64,
    len: u64,
) -> io::Result<()> {
    let end = offset + len;
    let mut at = offset;
    if let (Some(source), Some(target)) = (from.host_file(), to.host_file()) {
        while at < end {
            let (mut out_of, mut into) = (at, at);
            match copy_file_range(
                source,
                Some(&mut out_of),
                target,
                Some(&mut into),
                (end - at) as usize,
            ) {
                // This is the end of the source, or the kernel does not support the copy. The loop
                // below finds out which.
                Ok(0) | Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => break,
                Ok(copied) => at += copied as u64,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    let mut buffer = vec![0; (end - at).min(PIECE) as usize];
    while at < end {
        let piece = &mut buffer[..(end - at).min(PIECE) as usize];
        from.read_at(Purpose::Pages, at, piece)?;
        to.write_at(Purpose::Pages, at, piece)?;
        at += piece.len() as u64;
    }
    Ok(())
}
