//! The inodes in memory, by number.
//!
//! An inode stays while the kernel holds references to it, while it is dirty, or while somebody works with it; beyond that the
//! last few thousand stay. There is at most one `Inode` of a number at any time, which is why eviction and insertion happen
//! under the lock of the shard.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::attr::Ino;
use crate::inode::{Inode, State};

const SHARDS: usize = 64;
/// Unreferenced inodes a shard keeps.
const IDLE: usize = 64;

#[derive(Default)]
pub(crate) struct InoHasher(u64);

impl Hasher for InoHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        // Fibonacci hashing; the high half has the good bits, the table looks at both ends.
        let h = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = h ^ h >> 32;
    }
}

#[derive(Default)]
struct Shard {
    map: HashMap<Ino, Arc<Inode>, BuildHasherDefault<InoHasher>>,
    idle: VecDeque<Ino>,
}

pub(crate) struct Table {
    shards: Vec<Mutex<Shard>>,
}

impl Table {
    pub fn new() -> Self {
        Table { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    pub fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).lock().map.get(&ino).cloned()
    }

    /// The inode, loaded by `load` if it is not here. Others who ask meanwhile wait on the state's lock, not on the shard.
    pub fn get_or_load<E>(&self, ino: Ino, load: impl FnOnce() -> Result<State, E>) -> Result<Arc<Inode>, E> {
        let inode = {
            let mut shard = self.shard(ino).lock();
            if let Some(inode) = shard.map.get(&ino) {
                return Ok(inode.clone());
            }
            let inode = Arc::new(Inode::new(ino, State::absent(), 0));
            // Nobody else knows it: this does not wait, though it is the wrong order of locks.
            let guard = inode.state.write();
            shard.map.insert(ino, inode.clone());
            shard.rest(ino, &inode);
            drop(shard);
            let mut guard = guard;
            match load() {
                Ok(state) => *guard = state,
                Err(e) => {
                    drop(guard);
                    self.remove(&inode);
                    return Err(e);
                }
            }
            drop(guard);
            inode
        };
        Ok(inode)
    }

    /// A new inode, whose number nobody else has.
    pub fn insert(&self, inode: Arc<Inode>) {
        let mut shard = self.shard(inode.ino).lock();
        if inode.lookups.load(Ordering::Relaxed) == 0 {
            shard.rest(inode.ino, &inode);
        }
        shard.map.insert(inode.ino, inode);
    }

    pub fn remove(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.ino).lock();
        if shard.map.get(&inode.ino).is_some_and(|i| Arc::ptr_eq(i, inode)) {
            shard.map.remove(&inode.ino);
        }
    }

    /// The kernel holds no reference any more: a candidate for eviction.
    pub fn rest(&self, inode: &Arc<Inode>) {
        self.shard(inode.ino).lock().rest(inode.ino, inode);
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().map.len()).sum()
    }
}

impl Shard {
    fn rest(&mut self, ino: Ino, inode: &Inode) {
        if !inode.idle.swap(true, Ordering::Relaxed) {
            self.idle.push_back(ino);
        }
        // More than one a call, so that those that were busy once do not pile up.
        for _ in 0..2 {
            if self.idle.len() <= IDLE {
                break;
            }
            let Some(oldest) = self.idle.pop_front() else { break };
            let Some(entry) = self.map.get_mut(&oldest) else { continue };
            if let Some(unused) = Arc::get_mut(entry) {
                let state = unused.state.get_mut();
                if *unused.lookups.get_mut() > 0 {
                    *unused.idle.get_mut() = false;
                } else if state.dirty || state.attr.nlink == 0 && !state.gone {
                    self.idle.push_back(oldest);
                } else {
                    self.map.remove(&oldest);
                }
            } else if entry.lookups.load(Ordering::Relaxed) > 0 {
                // Comes back when the kernel forgets it.
                entry.idle.store(false, Ordering::Relaxed);
            } else {
                self.idle.push_back(oldest);
            }
        }
    }
}
