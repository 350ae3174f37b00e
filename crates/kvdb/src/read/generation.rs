//! A generation: the memtables of all dictionaries between two seals, and what one dictionary has
//! in one of them.

use std::sync::Arc;

use env::sync::Mutex;
use env::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vt_tree::{Input, Memtable, Pool, Run};
use zones::ZonePin;

/// The memtables of all dictionaries that are sealed, and flushed, together; so the journal has one
/// position for all of them.
pub(crate) struct Generation {
    pub number: u64,
    /// Memory that the memtables of all generations share: what a flushed one leaves, the next one
    /// fills.
    pool: Arc<Pool>,
    /// What late binding placed for commits of this generation stays until the runs refer to it.
    pins: Mutex<ZonePin>,
    /// The bytes of `pins`, and those of all generations that are there.
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

    /// Gives the memory back to the system that no memtable uses now.
    pub(crate) fn release_idle_memory(&self) {
        self.pool.release();
    }

    /// A dictionary's layer of this generation, empty.
    pub(crate) fn layer(self: &Arc<Self>) -> Layer {
        Layer {
            generation: self.clone(),
            memtable: Arc::new(Memtable::in_pool(&self.pool)),
            bound: Vec::new(),
        }
    }

    /// Bytes that late binding placed for commits of this generation.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// The same of all generations that are not gone: those that wait for their flush, and those
    /// that a reader still has.
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

/// What one dictionary got in one generation.
#[derive(Clone)]
pub(crate) struct Layer {
    pub generation: Arc<Generation>,
    pub memtable: Arc<Memtable>,
    /// Runs of a transaction that was committed as this generation began, newest first: above all
    /// older layers, beneath the memtable.
    pub bound: Vec<Arc<Run>>,
}

impl Layer {
    pub(crate) fn is_empty(&self) -> bool {
        self.memtable.is_empty() && self.bound.is_empty()
    }

    /// What is in it, newest first.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = Input> {
        let memtable = (!self.memtable.is_empty()).then(|| Input::Memtable(self.memtable.clone()));
        memtable.into_iter().chain(self.bound.iter().cloned().map(Input::Run))
    }
}
