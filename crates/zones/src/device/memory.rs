//! A device in memory. It is sparse and cheap to clone (clones share their pages until one of them
//! is written), and its size can be limited.

use std::io;
use std::sync::Arc;

use env::sync::RwLock;

use super::Device;
use crate::Purpose;

const PAGE: usize = 64 << 10;

/// The default limit, in bytes, which is the size of a large disk.
const DEFAULT_LIMIT: u64 = 1 << 40;

/// A device in memory. A clone is an independent device with the same content.
#[derive(Debug)]
pub struct MemoryDevice {
    memory: RwLock<MemoryPages>,
    limit: u64,
}

#[derive(Clone, Debug, Default)]
struct MemoryPages {
    len: u64,
    /// The pages. A page that is `None` reads as zeros.
    pages: Vec<Option<Arc<Vec<u8>>>>,
}

impl Default for MemoryDevice {
    fn default() -> Self {
        Self::with_limit(DEFAULT_LIMIT)
    }
}

impl Clone for MemoryDevice {
    /// Returns an independent device with the same content.
    fn clone(&self) -> Self {
        MemoryDevice { memory: RwLock::new(self.memory.read().clone()), limit: self.limit }
    }
}

impl MemoryDevice {
    /// Creates an empty device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty device that is full at `limit` bytes.
    pub fn with_limit(limit: u64) -> Self {
        MemoryDevice { memory: RwLock::default(), limit }
    }

    /// Returns the memory in use, in bytes.
    pub fn allocated(&self) -> u64 {
        self.memory.read().pages.iter().flatten().count() as u64 * PAGE as u64
    }

    /// Flips one bit, as a failing medium does. Does nothing if `offset` is beyond the end of the
    /// device.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        let mut byte = [0];
        if self.read_at(Purpose::Superblock, offset, &mut byte).is_ok() {
            byte[0] ^= 1 << (bit % 8);
            self.memory.write().write(offset, &byte);
        }
    }
}

/// Splits a range by pages. Each piece has the page, the range in the page, and the range in the
/// buffer.
fn pieces(
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (usize, std::ops::Range<usize>, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let (page, within) = ((at / PAGE as u64) as usize, (at % PAGE as u64) as usize);
        let step = (PAGE - within).min(len - done);
        done += step;
        Some((page, within..within + step, done - step..done))
    })
}

impl MemoryPages {
    fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }

    fn write(&mut self, offset: u64, buf: &[u8]) {
        for (page, within, from) in pieces(offset, buf.len()) {
            let page = self.pages[page].get_or_insert_with(|| Arc::new(vec![0; PAGE]));
            Arc::make_mut(page)[within].copy_from_slice(&buf[from]);
        }
    }
}

impl Device for MemoryDevice {
    fn read_at(&self, _: Purpose, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let memory = self.memory.read();
        if !memory.contains(offset, buf.len() as u64) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (page, within, to) in pieces(offset, buf.len()) {
            match &memory.pages[page] {
                Some(page) => buf[to].copy_from_slice(&page[within]),
                None => buf[to].fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, _: Purpose, offset: u64, buf: &[u8]) -> io::Result<()> {
        let mut memory = self.memory.write();
        if !memory.contains(offset, buf.len() as u64) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a write beyond the end of the device",
            ));
        }
        memory.write(offset, buf);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    /// Frees the memory of a range, which reads as zeros afterwards.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut memory = self.memory.write();
        let len = len.min(memory.len.saturating_sub(offset));
        for (page, within, _) in pieces(offset, len as usize) {
            if within.len() == PAGE {
                memory.pages[page] = None;
            } else if let Some(page) = &mut memory.pages[page] {
                Arc::make_mut(page)[within].fill(0);
            }
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.memory.read().len)
    }

    fn grow(&self, new_len: u64) -> io::Result<()> {
        let mut memory = self.memory.write();
        if new_len > self.limit {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if new_len > memory.len {
            memory.len = new_len;
            memory.pages.resize((new_len as usize).div_ceil(PAGE), None);
        }
        Ok(())
    }

    fn host_free(&self) -> Option<u64> {
        Some(self.limit.saturating_sub(self.memory.read().len))
    }
}
