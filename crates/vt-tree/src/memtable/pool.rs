//! The memory pool of memtables: regions of 2 MiB that return to the pool, and not to the operating
//! system, when a memtable is dropped.
//!
//! The first access to a fresh page causes a page fault, 2 to 3 µs on a virtual machine. For a
//! memtable of 64 MiB that is as much time as filling it. So regions request huge pages (one fault
//! for each instead of 512), and the memtables of a store share one pool, so that a new memtable
//! reuses the regions of a flushed one. A new region is allocated only if none is idle. So the pool
//! never holds more than its memtables held together at their peak, which their owner bounds.

use env::sync::Mutex;
use memmap2::MmapMut;
use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The size of a region, bytes: one huge page.
pub(super) const REGION: usize = 2 << 20;

/// A memory pool that memtables share: a new memtable reuses the memory of a dropped one.
#[derive(Default)]
pub struct Pool {
    idle: Mutex<Vec<MmapMut>>,
}

impl Pool {
    /// Creates an empty pool.
    pub fn new() -> Arc<Pool> {
        Arc::default()
    }

    /// Returns the number of bytes that no memtable uses.
    pub fn idle_bytes(&self) -> usize {
        self.idle.lock().len() * REGION
    }

    /// Returns idle memory to the operating system.
    pub fn release(&self) {
        self.idle.lock().clear();
    }

    /// Returns a region that contains zeros or its previous content. If there is no memory, aborts
    /// like any other allocation.
    pub(super) fn region(self: &Arc<Pool>) -> Region {
        let idle = self.idle.lock().pop();
        let memory = idle.unwrap_or_else(|| {
            let memory = MmapMut::map_anon(REGION)
                .unwrap_or_else(|_| handle_alloc_error(Layout::new::<[u8; REGION]>()));
            // This is only a hint. Without huge pages memtables work, but are slower.
            let _ = memory.advise(memmap2::Advice::HugePage);
            memory
        });
        Region { memory: Some(memory), pool: self.clone() }
    }
}

/// A region of a pool that is in use.
pub(super) struct Region {
    /// `None` only while the region is being dropped.
    memory: Option<MmapMut>,
    pool: Arc<Pool>,
}

impl Deref for Region {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or(&[])
    }
}

impl DerefMut for Region {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_deref_mut().unwrap_or(&mut [])
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.idle.lock().push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_comes_back_and_is_used_again() {
        let pool = Pool::new();
        let (mut a, b) = (pool.region(), pool.region());
        a[REGION - 1] = 7;
        drop(a);
        assert_eq!(pool.idle_bytes(), REGION);
        let again = pool.region();
        assert_eq!((again[REGION - 1], pool.idle_bytes()), (7, 0));
        drop((again, b));
        assert_eq!(pool.idle_bytes(), 2 * REGION);
        pool.release();
        assert_eq!(pool.idle_bytes(), 0);
    }
}
