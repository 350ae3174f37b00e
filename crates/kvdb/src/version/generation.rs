//! A generation, which is the memtables of all dictionaries between two seals, and a layer, which
//! is the part of a generation that belongs to one dictionary.

use std::sync::Arc;

use env::sync::Mutex;
use env::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vt_tree::{Input, Memtable, Pool, Run};
use zones::ZonePin;

/// The memtables of all dictionaries that are sealed and flushed together, so that one journal
/// position covers all of them.
pub(crate) struct Generation {
    pub number: u64,
    /// A memory pool shared by all generations: later memtables reuse the chunks of flushed ones.
    pool: Arc<Pool>,
    /// Pins the locations that late binding has assigned for commits of this generation, until runs
    /// refer to them.
    pins: Mutex<ZonePin>,
    /// The bytes pinned by `pins`, and the bytes pinned by all generations that still exist.
    held: AtomicU64,
    held_by_all: Arc<AtomicU64>,
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.held_by_all.fetch_sub(self.held(), Relaxed);
    }
}

impl Generation {
    pub(crate) fn first() -> Arc<Generation> {
        Arc::new(Generation {
            number: 1,
            pool: Pool::new(),
            pins: Mutex::default(),
            held: AtomicU64::default(),
            held_by_all: Arc::default(),
        })
    }

    pub(super) fn next(&self) -> Arc<Generation> {
        Arc::new(Generation {
            number: self.number + 1,
            pool: self.pool.clone(),
            pins: Mutex::default(),
            held: AtomicU64::default(),
            held_by_all: self.held_by_all.clone(),
        })
    }

    /// Returns memory that no memtable uses to the operating system.
    pub(crate) fn release_idle_memory(&self) {
        self.pool.release();
    }

    /// Returns an empty layer of this generation for a dictionary.
    pub(crate) fn layer(self: &Arc<Self>) -> Layer {
        Layer {
            generation: self.clone(),
            memtable: Arc::new(Memtable::in_pool(&self.pool)),
            bound: Vec::new(),
        }
    }

    /// Returns the number of bytes that late binding has placed for commits of this generation.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Returns the same number for all generations that still exist: those waiting for their flush,
    /// and those that a reader still holds.
    pub(crate) fn held_by_all(&self) -> u64 {
        self.held_by_all.load(Relaxed)
    }

    pub(crate) fn pin(&self, pin: ZonePin) {
        let bytes = pin.uses().total_bytes();
        self.held.fetch_add(bytes, Relaxed);
        self.held_by_all.fetch_add(bytes, Relaxed);
        self.pins.lock().merge(pin);
    }
}

/// The part of a dictionary that was written in one generation.
#[derive(Clone)]
pub(crate) struct Layer {
    pub generation: Arc<Generation>,
    pub memtable: Arc<Memtable>,
    /// The runs of a transaction whose commit began this generation, newest first. They are newer
    /// than all older layers and older than the memtable.
    pub bound: Vec<Arc<Run>>,
}

impl Layer {
    pub(crate) fn is_empty(&self) -> bool {
        self.memtable.is_empty() && self.bound.is_empty()
    }

    /// Returns the memtable and the runs, newest first.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = Input> {
        let memtable = (!self.memtable.is_empty()).then(|| Input::Memtable(self.memtable.clone()));
        memtable.into_iter().chain(self.bound.iter().cloned().map(Input::Run))
    }
}
