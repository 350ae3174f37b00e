//! Keeps the inodes in memory by number, within a budget.
//!
//! The kernel may hold references to millions of inodes, far more than it works with. So an inode
//! that is clean and not in use may be evicted, oldest first, even if the kernel refers to it. Only
//! the number of references of an evicted inode is kept, and the next access loads the inode again.
//! At any time at most one `Inode` of a number exists, so eviction and insertion happen under the
//! lock of the shard.
//!
//! **Stranded inodes.** After a rollback the kernel may hold an inode that no longer exists. The
//! number of this inode may belong to another file, for example in a snapshot that was received
//! from elsewhere. While the kernel refers to the old inode, all requests for the number are
//! answered as stale, because the two files cannot be distinguished.

use env::sync::atomic::Ordering;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use env::sync::Mutex;

use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::inode::{Identity, Inode, InodeState};

const SHARDS: usize = 64;
/// The estimated memory of an inode, in bytes.
const CHARGE: usize = 512;
/// The number of inodes that a shard keeps even if the budget is smaller.
const LEAST: usize = 16;

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
        // This is Fibonacci hashing. The high half has the best bits, and the table uses both ends
        // of the hash.
        let h = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = h ^ h >> 32;
    }
}

#[derive(Default)]
struct Shard {
    map: HashMap<Ino, Arc<Inode>, BuildHasherDefault<InoHasher>>,
    /// Every number in `map` once, in the order of arrival, and some numbers that were removed from
    /// the map.
    order: VecDeque<Ino>,
    /// The kernel's references to evicted inodes.
    away: HashMap<Ino, u64, BuildHasherDefault<InoHasher>>,
    /// The inodes that a rollback has stranded and to which the kernel refers. All of them are in
    /// `away`.
    stranded: HashMap<Ino, Identity, BuildHasherDefault<InoHasher>>,
}

/// The result of returning references.
pub(crate) enum Forgotten {
    /// This was the last reference of an inode in memory.
    Last(Arc<Inode>),
    /// Other references remain, or the inode is not in memory.
    Done,
    /// The inode had no references.
    Unknown,
}

impl Forgotten {
    pub fn is_known(&self) -> bool {
        !matches!(self, Forgotten::Unknown)
    }
}

pub(crate) struct InodeCache {
    shards: Vec<Mutex<Shard>>,
    /// The number of inodes that a shard keeps.
    capacity: usize,
}

impl InodeCache {
    /// Returns an empty cache with `memory` bytes for clean inodes. Dirty inodes are not included;
    /// the write buffer bounds them.
    pub fn new(memory: usize) -> Self {
        InodeCache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            capacity: (memory / CHARGE / SHARDS).max(LEAST),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    pub fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).lock().map.get(&ino).cloned()
    }

    /// Returns the inode, loaded by `load` if it is not in memory. Other callers wait on the lock
    /// of the state, and not on the shard; if the load fails, these callers get the same error, or
    /// load the inode themselves.
    pub fn get_or_load(
        &self,
        ino: Ino,
        load: impl Fn() -> Result<InodeState>,
    ) -> Result<Arc<Inode>> {
        loop {
            let mut shard = self.shard(ino).lock();
            if let Some(inode) = shard.map.get(&ino) {
                let inode = inode.clone();
                drop(shard);
                if !inode.load.is_missing.load(Ordering::Acquire) {
                    return Ok(inode);
                }
                // Another thread holds this lock while it loads the inode.
                drop(inode.state.read());
                match inode.load.failed.get() {
                    // The state must not be used, because the caller would treat an existing file
                    // as removed.
                    Some(why) => match why.as_deref().and_then(again) {
                        Some(e) => return Err(e),
                        None => continue,
                    },
                    None => return Ok(inode),
                }
            }
            if shard.stranded.contains_key(&ino) {
                return Err(Error::Stale(ino));
            }
            let references = shard.away.remove(&ino).unwrap_or(0);
            let inode = Arc::new(Inode::new(ino, InodeState::absent(), references));
            inode.load.is_missing.store(true, Ordering::Relaxed);
            // No other thread has the inode yet, so this does not wait, although it violates the
            // lock order.
            let mut state = inode.state.write();
            shard.arrive(inode.clone(), self.capacity);
            drop(shard);
            return match load() {
                Ok(loaded) => {
                    *state = loaded;
                    inode.load.is_missing.store(false, Ordering::Release);
                    drop(state);
                    Ok(inode)
                }
                Err(e) => {
                    // The inode may exist and be unreadable now, so the kernel's references are
                    // kept. The inode is removed before waiting callers continue, so that they do
                    // not find it again.
                    self.leave(&inode);
                    let _ = inode.load.failed.set(again(&e).map(Box::new));
                    drop(state);
                    Err(e)
                }
            };
        }
    }

    /// Inserts a new inode with a new number.
    pub fn insert(&self, inode: Arc<Inode>) {
        self.shard(inode.ino).lock().arrive(inode, self.capacity);
    }

    /// Takes back `count` references from the kernel.
    pub fn forget(&self, ino: Ino, count: u64) -> Forgotten {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.map.get(&ino) {
            // The count stays at or above zero, even if the kernel returns too many references.
            let left = inode.references.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| {
                Some(n.saturating_sub(count))
            });
            return match left {
                Ok(before) if before <= count => Forgotten::Last(inode.clone()),
                _ => Forgotten::Done,
            };
        }
        let Some(references) = shard.away.get_mut(&ino) else { return Forgotten::Unknown };
        *references = references.saturating_sub(count);
        if *references == 0 {
            shard.away.remove(&ino);
            shard.stranded.remove(&ino);
        }
        Forgotten::Done
    }

    /// Returns the kernel's references by number, and empties the cache of a view that has ended.
    pub fn take_references(&self) -> HashMap<Ino, u64> {
        let mut all = HashMap::new();
        for shard in &self.shards {
            let shard = std::mem::take(&mut *shard.lock());
            let here = shard
                .map
                .values()
                .map(|inode| (inode.ino, inode.references.load(Ordering::Relaxed)));
            all.extend(here.chain(shard.away).filter(|(_, references)| *references > 0));
        }
        all
    }

    /// Sets the number of references of an inode that the kernel did not get from this cache.
    pub fn set_references(&self, ino: Ino, references: u64) {
        let mut shard = self.shard(ino).lock();
        match shard.map.get(&ino) {
            Some(inode) => inode.references.store(references, Ordering::Relaxed),
            None => drop(shard.away.insert(ino, references)),
        }
    }

    /// Returns the stranded inodes ([`InodeCache::strand`]).
    pub fn all_stranded(&self) -> Vec<(Ino, Identity)> {
        let of = |shard: &Mutex<Shard>| {
            shard.lock().stranded.iter().map(|(ino, what)| (*ino, *what)).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// Strands an inode to which the kernel refers and that is not in memory.
    pub fn strand(&self, ino: Ino, identity: Identity) {
        let mut shard = self.shard(ino).lock();
        if shard.away.contains_key(&ino) {
            shard.stranded.insert(ino, identity);
        }
    }

    /// Ends the stranding of an inode that exists again.
    pub fn recover(&self, ino: Ino) {
        self.shard(ino).lock().stranded.remove(&ino);
    }

    /// Returns the identity of a stranded inode.
    pub fn stranded(&self, ino: Ino) -> Option<Identity> {
        self.shard(ino).lock().stranded.get(&ino).copied()
    }

    /// Returns the number of the kernel's references to an inode, whether it is in memory or not.
    pub fn references(&self, ino: Ino) -> u64 {
        let shard = self.shard(ino).lock();
        match shard.map.get(&ino) {
            Some(inode) => inode.references.load(Ordering::Relaxed),
            None => shard.away.get(&ino).copied().unwrap_or(0),
        }
    }

    /// Returns all inodes to which the kernel refers.
    pub fn referenced(&self) -> Vec<Ino> {
        self.all_references().into_iter().map(|(ino, _)| ino).collect()
    }

    /// Returns all inodes to which the kernel refers, with their references.
    pub fn all_references(&self) -> Vec<(Ino, u64)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let here = shard.map.values().map(|i| (i.ino, i.references.load(Ordering::Relaxed)));
            all.extend(here.filter(|(_, references)| *references > 0));
            all.extend(shard.away.iter().map(|(ino, references)| (*ino, *references)));
        }
        all
    }

    /// Returns all inodes in memory.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        self.shards
            .iter()
            .flat_map(|s| s.lock().map.values().cloned().collect::<Vec<_>>())
            .collect()
    }

    /// Evicts an inode, which must not be in use. The next access loads it again.
    pub fn leave(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.ino).lock();
        if shard.map.get(&inode.ino).is_some_and(|i| Arc::ptr_eq(i, inode)) {
            shard.map.remove(&inode.ino);
            match inode.references.load(Ordering::Relaxed) {
                0 => {}
                references => drop(shard.away.insert(inode.ino, references)),
            }
        }
    }

    pub fn remove(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.ino).lock();
        if shard.map.get(&inode.ino).is_some_and(|i| Arc::ptr_eq(i, inode)) {
            shard.map.remove(&inode.ino);
        }
    }

    /// Evicts inodes above the budget, after many have become clean.
    pub fn trim(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let all = shard.order.len();
            shard.leave(all, self.capacity);
        }
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().map.len()).sum()
    }
}

impl Shard {
    fn arrive(&mut self, inode: Arc<Inode>, capacity: usize) {
        self.order.push_back(inode.ino);
        self.map.insert(inode.ino, inode);
        // Evict more inodes than arrive, so that inodes that could not be evicted earlier do not
        // accumulate.
        self.leave(2, capacity);
    }

    /// Evicts up to `most` of the oldest inodes, while more than `capacity` inodes exist.
    fn leave(&mut self, most: usize, capacity: usize) {
        for _ in 0..most {
            if self.order.len() <= capacity {
                break;
            }
            let Some(oldest) = self.order.pop_front() else { break };
            let Some(entry) = self.map.get_mut(&oldest) else { continue };
            // The inode is evicted if it is not in use and the store holds its newest state. An
            // unlinked inode exists only in memory.
            let leaves = Arc::get_mut(entry).and_then(|unused| {
                let state = unused.state.get_mut();
                (!state.dirty && (state.attr.nlink > 0 || state.gone))
                    .then(|| *unused.references.get_mut())
            });
            match leaves {
                Some(references) => {
                    self.map.remove(&oldest);
                    if references > 0 {
                        self.away.insert(oldest, references);
                    }
                }
                None => self.order.push_back(oldest),
            }
        }
    }
}

/// Copies the error of a load for callers that waited for the load, so that callers of a store or
/// server that does not answer wait only once. Returns `None` if the error may concern only one
/// caller, such as the error of a transaction that must end.
fn again(e: &Error) -> Option<Error> {
    match e {
        Error::Stale(ino) => Some(Error::Stale(*ino)),
        Error::Corrupt { ino, what } => Some(Error::Corrupt { ino: *ino, what: what.clone() }),
        Error::Store(kvdb::Error::Io(e)) => {
            let e = std::io::Error::new(e.kind(), e.to_string());
            Some(Error::Store(kvdb::Error::Io(e)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reference_is_lost_while_an_inode_cannot_be_loaded() {
        for seed in 0..200 {
            let ran = env::schedule::run(seed, || {
                let cache = Arc::new(InodeCache::new(0));
                cache.shard(5).lock().away.insert(5, 4);
                let loading = cache.clone();
                let loads = env::thread::spawn(move || {
                    for _ in 0..4 {
                        assert!(loading.get_or_load(5, || Err(Error::NoSpace)).is_err());
                    }
                });
                let known = (0..4).filter(|_| cache.forget(5, 1).is_known()).count();
                loads.join().unwrap();
                (known, cache.references(5))
            });
            assert_eq!(ran.unwrap().value, (4, 0), "seed {seed}");
        }
    }

    #[test]
    fn an_inode_whose_load_failed_is_not_gone_for_those_that_waited() {
        let io = || Error::Store(kvdb::Error::Io(std::io::Error::other("no answer")));
        for (seed, is_io) in (0..200).flat_map(|seed| [(seed, false), (seed, true)]) {
            let ran = env::schedule::run(seed, move || {
                let cache = Arc::new(InodeCache::new(0));
                let failing = cache.clone();
                let fails = env::thread::spawn(move || {
                    let load = || {
                        // Evict the inode, as the arrival of others would.
                        failing.shard(6).lock().order.clear();
                        Err(if is_io { io() } else { Error::NoSpace })
                    };
                    drop(failing.get_or_load(5, load));
                });
                let load = || Ok(InodeState { gone: false, ..InodeState::absent() });
                let found = cache.get_or_load(5, load);
                fails.join().unwrap();
                match found {
                    Ok(inode) => !inode.state.read().gone,
                    Err(e) => is_io && matches!(e, Error::Store(kvdb::Error::Io(_))),
                }
            });
            assert!(ran.unwrap().value, "seed {seed}, {is_io}");
        }
    }
}
