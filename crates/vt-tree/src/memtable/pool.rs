//! Where memtables take their memory from: regions of 2 MiB that go back to the pool, not to the
//! operating system, when a memtable goes.
//!
//! A fresh page costs a fault, 2 to 3 µs on a virtual machine: for a memtable of 64 MiB as much as
//! filling it. So regions ask for huge pages (one fault for each instead of 512), and a store's
//! memtables share one pool: what a flushed memtable leaves, the next one fills. A new region is
//! only made when no idle one is left, so the pool never holds more than its memtables held
//! together at their peak, which the owner of the memtables bounds.

use env::sync::Mutex;
use memmap2::MmapMut;
use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Bytes of a region: a huge page.
pub(super) const REGION: usize = 2 << 20;

/// Idle memory of the memtables that share it. See the module's comment.
#[derive(Default)]
pub struct Pool {
    idle: Mutex<Vec<MmapMut>>,
}

impl Pool {
    pub fn new() -> Arc<Pool> {
        Arc::default()
    }

    /// Bytes that no memtable uses now.
    pub fn idle_bytes(&self) -> usize {
        self.idle.lock().len() * REGION
    }

    /// Gives idle memory back to the operating system.
    pub fn release(&self) {
        self.idle.lock().clear();
    }

    /// A region, zeros or its former content in it. Without memory this ends as any allocation
    /// does.
    pub(super) fn region(self: &Arc<Pool>) -> Region {
        let idle = self.idle.lock().pop();
        let memory = idle.unwrap_or_else(|| {
            let memory = MmapMut::map_anon(REGION)
                .unwrap_or_else(|_| handle_alloc_error(Layout::new::<[u8; REGION]>()));
            // Only a wish: without huge pages everything works, slower.
            let _ = memory.advise(memmap2::Advice::HugePage);
            memory
        });
        Region { memory: Some(memory), pool: self.clone() }
    }
}

/// Memory of a pool while in use.
pub(super) struct Region {
    /// Taken only when dropped.
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
