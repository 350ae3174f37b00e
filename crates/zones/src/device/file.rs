//! A regular file or a block device of the host, locked while it is open.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::fs::{Advice, FallocateFlags, FlockOperation, fadvise, fallocate, flock, fstatvfs};
use rustix::io::Errno;

use super::behind::WriteBehind;
use super::claims::Claims;
use super::direct::{DirectReader, DirectWriter};
use super::uring::Rings;
use super::{Device, Reading, host_memory};
use crate::{Error, Purpose, Result};

/// The largest number of bytes in one announcement. For each announcement the host fetches no more
/// than its longest request.
const WILL_READ_PIECE: u64 = 512 << 10;

/// A file or block device of the host. It holds an exclusive `flock` (a shared one if read-only),
/// which the kernel releases with the last descriptor, even after a crash. Other names of the same
/// bytes are locked in the same way.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    /// The direct writer, or `None` if the device is read-only or the host does not support direct
    /// writes.
    direct: Option<Arc<DirectWriter>>,
    /// The thread that performs direct writes for which their callers do not wait.
    behind: Option<WriteBehind>,
    /// The direct reader, which is opened on first use, or `None` if the host does not support
    /// direct reads.
    medium: OnceLock<Option<DirectReader>>,
    block_device: bool,
    rings: Rings,
    /// The claims on the file, which are held while the device is open.
    _claims: Claims,
}

impl FileDevice {
    /// Opens an existing file or block device. Returns [`Error::Busy`] if another process has it
    /// open.
    pub fn open(path: impl AsRef<Path>, read_only: bool) -> Result<FileDevice> {
        let path = path.as_ref();
        let file = OpenOptions::new()
            .read(true)
            .write(!read_only)
            .open(path)
            .map_err(|e| Error::io(format!("opening {}", path.display()), e))?;
        Self::of(file, path, read_only)
    }

    /// Makes writes of every length reach the host before they return, so that they are not lost if
    /// this process ends.
    #[must_use]
    pub fn without_writes_behind(mut self) -> FileDevice {
        self.behind = None;
        self
    }

    /// Creates a file, which must not exist yet, or opens a block device to be formatted. Only the
    /// owner may read the file, because a store has data whose permissions deny other users access.
    pub fn create(path: impl AsRef<Path>) -> Result<FileDevice> {
        let path = path.as_ref();
        if path.metadata().is_ok_and(|m| m.file_type().is_block_device()) {
            return Self::open(path, false);
        }
        let failed = |e| Error::io(format!("creating {}", path.display()), e);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        let device = Self::of(file, path, false)?;
        // Sync the directory: the name must survive a power cut like the data in the file.
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent).and_then(|directory| directory.sync_all()).map_err(failed)?;
        Ok(device)
    }

    /// Creates a device of an open file or block device, which must be open for writing unless
    /// `read_only` is set. `path` is used in messages. Locks the file, unless this descriptor holds
    /// the lock already.
    pub fn of(file: File, path: &Path, read_only: bool) -> Result<FileDevice> {
        let doing = || format!("opening {}", path.display());
        let kind = file.metadata().map_err(|e| Error::io(doing(), e))?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Error::Invalid(format!(
                "{} is neither a regular file nor a block device",
                path.display()
            )));
        }
        let how = if read_only {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        match flock(&file, how) {
            Ok(()) => {
                let claims = Claims::take(&file, path, how)?;
                // Disable read-ahead by the host, because sequential readers announce their reads
                // with `will_read`. This is a hint, so a failure is ignored.
                let _ = fadvise(&file, 0, None, Advice::Random);
                let direct = if read_only { None } else { DirectWriter::of(&file).map(Arc::new) };
                let behind = direct.clone().and_then(|direct| {
                    WriteBehind::new(move |offset, bytes| direct.write_at(offset, bytes))
                });
                Ok(FileDevice {
                    file,
                    direct,
                    behind,
                    medium: OnceLock::new(),
                    block_device: kind.is_block_device(),
                    rings: Rings::default(),
                    _claims: claims,
                })
            }
            Err(Errno::WOULDBLOCK) => Err(Error::Busy(path.to_path_buf())),
            Err(e) => Err(Error::io(doing(), e.into())),
        }
    }
}

/// The length in bytes from which writes are direct. Shorter writes are gathered in the page cache.
const BULK: usize = 256 << 10;

/// The length in bytes from which writes may be asynchronous. A shorter write takes about as long
/// as waking the thread for it. While the thread is awake, writes of at least [`BULK`] bytes are
/// also handed to it, such as the end of a commit whose beginning the thread still writes.
const BEHIND: usize = 1 << 20;

/// Returns whether a write bypasses the page cache. This is so for data that is synced soon, and
/// for bulk data. Otherwise bulk data would evict other data from the page cache, and each sync of
/// the journal would wait until the host has written the bulk data, too
/// (docs/decisions/021-direct-writes.md).
fn goes_past_the_cache(purpose: Purpose, len: usize) -> bool {
    matches!(purpose, Purpose::Journal | Purpose::Manifest | Purpose::Superblock) || len >= BULK
}

impl FileDevice {
    /// Waits until no write of a range is in progress. Returns an error if a write in the range has
    /// failed.
    fn settle(&self, offset: u64, len: u64) -> io::Result<()> {
        env::thread::has_descriptors()?;
        self.behind.as_ref().map_or(Ok(()), |behind| behind.settle(offset, len))
    }

    fn settle_all(&self) -> io::Result<()> {
        env::thread::has_descriptors()?;
        self.behind.as_ref().map_or(Ok(()), WriteBehind::settle_all)
    }

    /// Allocates or deallocates a range, and retries after a signal. Does nothing if the host does
    /// not support the operation, which is harmless.
    fn fallocate(&self, how: FallocateFlags, offset: u64, len: u64) -> io::Result<()> {
        env::thread::has_descriptors()?;
        loop {
            match fallocate(&self.file, how, offset, len) {
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Device for FileDevice {
    fn read_at(&self, _: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.settle(offset, buf.len() as u64)?;
        self.file.read_exact_at(buf, offset)
    }

    fn read_many(&self, purpose: Purpose, reads: &mut [Reading<'_>]) -> io::Result<()> {
        // A single read does not benefit from a ring.
        if reads.len() > 1 {
            reads.iter().try_for_each(|r| self.settle(r.offset, r.buf.len() as u64))?;
            if let Some(outcome) = self.rings.read(&self.file, reads) {
                return outcome;
            }
            reads.iter().for_each(|r| self.will_read(purpose, r.offset, r.buf.len() as u64));
        }
        reads.iter_mut().try_for_each(|r| self.read_at(purpose, r.offset, r.buf))
    }

    fn read_medium(&self, purpose: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.settle(offset, buf.len() as u64)?;
        if let Some(direct) = self.medium.get_or_init(|| DirectReader::of(&self.file)) {
            match direct.read_at(offset, buf) {
                // The sectors of the device are larger than a page, or the file ends within a page.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof
                    ) => {}
                done => return done,
            }
        }
        self.read_at(purpose, offset, buf)
    }

    fn will_read(&self, _: Purpose, offset: u64, len: u64) {
        if self.behind.as_ref().is_some_and(|behind| behind.is_under_way(offset, len)) {
            // The announcement would fetch data that is being overwritten.
            return;
        }
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let piece = (end - at).min(WILL_READ_PIECE);
            // This is a hint: the read itself reports a failure.
            let _ = fadvise(&self.file, at, NonZeroU64::new(piece), Advice::WillNeed);
            at += piece;
        }
    }

    fn write_at(&self, purpose: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.settle(offset, buf.len() as u64)?;
        match &self.direct {
            Some(direct)
                if goes_past_the_cache(purpose, buf.len())
                    && DirectWriter::takes(offset, buf.len()) =>
            {
                direct.write_at(offset, buf)
            }
            _ => self.file.write_all_at(buf, offset),
        }
    }

    fn write_behind(&self, purpose: Purpose, offset: u64, buf: &mut Vec<u8>) -> io::Result<()> {
        match &self.behind {
            Some(behind)
                if DirectWriter::takes(offset, buf.len())
                    && (buf.len() >= BEHIND || buf.len() >= BULK && behind.is_busy()) =>
            {
                behind.write(offset, buf)
            }
            _ => {
                self.write_at(purpose, offset, buf)?;
                buf.clear();
                Ok(())
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.settle_all()?;
        self.file.sync_data()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.settle(offset, len)?;
        self.fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
    }

    fn len(&self) -> io::Result<u64> {
        env::thread::has_descriptors()?;
        if self.block_device {
            (&self.file).seek(SeekFrom::End(0))
        } else {
            Ok(self.file.metadata()?.len())
        }
    }

    fn grow(&self, new_len: u64) -> io::Result<()> {
        let len = self.len()?;
        if new_len <= len {
            return Ok(());
        }
        if self.block_device {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.allocate(len, new_len - len)?;
        // If the host cannot preallocate, set only the length.
        if self.len()? < new_len { self.file.set_len(new_len) } else { Ok(()) }
    }

    fn lengthen(&self, new_len: u64) -> io::Result<()> {
        if self.block_device || new_len <= self.len()? {
            self.grow(new_len)
        } else {
            self.file.set_len(new_len)
        }
    }

    fn host_file(&self) -> Option<&File> {
        // If a write has failed, return no file: the caller then reads through the device, which
        // reports the failure.
        self.settle_all().ok()?;
        Some(&self.file)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.block_device {
            return Ok(());
        }
        self.fallocate(FallocateFlags::empty(), offset, len)
    }

    fn can_grow(&self) -> bool {
        !self.block_device
    }

    fn host_memory(&self) -> Option<u64> {
        host_memory::available()
    }

    fn host_free(&self) -> Option<u64> {
        if self.block_device {
            return None;
        }
        let host = fstatvfs(&self.file).ok()?;
        Some(host.f_bavail.saturating_mul(host.f_frsize))
    }
}
