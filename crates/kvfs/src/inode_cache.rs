//! The inodes in memory, by number, within a budget.
//!
//! The kernel may hold references to millions of inodes, far more than it works with. So an inode
//! that is clean and not in use may leave, oldest first, whether the kernel refers to
//! it or not; of one it refers to, only the number of references stays, and the next access
//! loads it again. There is at most one `Inode` of a number at any time, which is why eviction and
//! insertion happen under the lock of the shard.
//!
//! **Stranded inodes.** A rollback may leave the kernel with an inode that is no more. Its number
//! may be that of another file then: in a snapshot that came from elsewhere, say. As long as the
//! kernel refers to the old one, whatever asks for the number is answered that it is stale, since
//! the two cannot be told apart.

use env::sync::atomic::Ordering;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use env::sync::Mutex;

use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::inode::{Identity, Inode, InodeState};

const SHARDS: usize = 64;
/// What an inode in memory is reckoned to take, bytes.
const CHARGE: usize = 512;
/// Inodes that a shard keeps however small the budget.
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
        // Fibonacci hashing; the high half has the good bits, the table looks at both ends.
        let h = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = h ^ h >> 32;
    }
}

#[derive(Default)]
struct Shard {
    map: HashMap<Ino, Arc<Inode>, BuildHasherDefault<InoHasher>>,
    /// Every number in `map` once, in the order of arrival, and some that were removed.
    order: VecDeque<Ino>,
    /// The kernel's references to inodes that left.
    away: HashMap<Ino, u64, BuildHasherDefault<InoHasher>>,
    /// What the kernel refers to and a rollback has left behind; all of them are in `away`.
    stranded: HashMap<Ino, Identity, BuildHasherDefault<InoHasher>>,
}

/// What became of references that were given back.
pub(crate) enum Forgotten {
    /// It was the last one of an inode that is here.
    Last(Arc<Inode>),
    /// Others are left, or the inode is not here.
    Done,
    /// There were none.
    Unknown,
}

impl Forgotten {
    pub fn is_known(&self) -> bool {
        !matches!(self, Forgotten::Unknown)
    }
}

pub(crate) struct InodeCache {
    shards: Vec<Mutex<Shard>>,
    /// Inodes a shard keeps.
    capacity: usize,
}

impl InodeCache {
    /// `memory`: bytes for clean inodes; dirty ones come on top, and are bounded by the write
    /// buffer.
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

    /// The inode, loaded by `load` if it is not here. Other callers wait on the state's lock, not
    /// on the shard; where the load fails they fail as it did, or load themselves.
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
                // Held while it is loaded.
                drop(inode.state.read());
                match inode.load.failed.get() {
                    // Its state is no inode's: a caller that took it for one would find a file gone
                    // that is there.
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
            // No other thread has it yet: this does not wait, though it is the wrong order of
            // locks.
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
                    // It may be there, but unreadable now: the kernel's references stay. It leaves
                    // before those that wait go on, so that they do not find it again.
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

    /// The kernel gives back `count` references.
    pub fn forget(&self, ino: Ino, count: u64) -> Forgotten {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.map.get(&ino) {
            // Never below zero, whatever the kernel says.
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

    /// The kernel's references, by number, and nothing is left here. Of a view that is over.
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

    /// The kernel has this many references to an inode, of which it got none here.
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

    /// Leaves an inode behind that the kernel refers to, and that is not here.
    pub fn strand(&self, ino: Ino, identity: Identity) {
        let mut shard = self.shard(ino).lock();
        if shard.away.contains_key(&ino) {
            shard.stranded.insert(ino, identity);
        }
    }

    /// It is there again.
    pub fn recover(&self, ino: Ino) {
        self.shard(ino).lock().stranded.remove(&ino);
    }

    /// What a stranded inode was.
    pub fn stranded(&self, ino: Ino) -> Option<Identity> {
        self.shard(ino).lock().stranded.get(&ino).copied()
    }

    /// References the kernel holds to an inode, whether it is here or not.
    pub fn references(&self, ino: Ino) -> u64 {
        let shard = self.shard(ino).lock();
        match shard.map.get(&ino) {
            Some(inode) => inode.references.load(Ordering::Relaxed),
            None => shard.away.get(&ino).copied().unwrap_or(0),
        }
    }

    /// Every inode that the kernel refers to.
    pub fn referenced(&self) -> Vec<Ino> {
        self.all_references().into_iter().map(|(ino, _)| ino).collect()
    }

    /// Every inode that the kernel refers to, and its references.
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

    /// Every inode that is here.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        self.shards
            .iter()
            .flat_map(|s| s.lock().map.values().cloned().collect::<Vec<_>>())
            .collect()
    }

    /// Evicts an inode; the next access loads it again. It must not be in use.
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

    /// Lets go of what is above the budget; of use when many inodes have become clean.
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
        // More than one a call, so that those that were busy once do not pile up.
        self.leave(2, capacity);
    }

    /// Lets up to `most` of the oldest leave, as long as there are more than `capacity`.
    fn leave(&mut self, most: usize, capacity: usize) {
        for _ in 0..most {
            if self.order.len() <= capacity {
                break;
            }
            let Some(oldest) = self.order.pop_front() else { break };
            let Some(entry) = self.map.get_mut(&oldest) else { continue };
            // It is not in use, and what the store holds of it is the newest. An unlinked one
            // lives in memory alone.
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

/// The error of a load, for another one that waited for it. Those that wait for a dead store or a
/// dead server wait once. `None`: it may be that of the one caller, as of a transaction that is to
/// end.
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
                        // Others may come here.
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
