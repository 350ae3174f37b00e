//! Salvage: recovers the readable data of a damaged store. Nothing is written to the store.
//!
//! A damaged store is read by other rules than an intact one. In an intact store, the first
//! unreadable block is an error. Here it is a *gap*, a range of keys of which nothing is known, and
//! reading continues after it. Data in newer runs or in the journal is certain, whatever gaps there
//! are in older runs. Data in runs older than a gap may have been changed or deleted by the lost
//! part, so it is returned and marked as *stale*.
//!
//! - `state` finds the content of the store by the superblock and manifest that can be read;
//! - `scan` returns the tuples of a dictionary, with gaps.

mod scan;
mod state;

use std::sync::Arc;

use bytes::Bytes;
use env::sync::Mutex;
use vt_tree::{BlockCache, Lookup, Memtable, Run, SalvageCache};
use zones::Device;

use crate::error::Result;

pub use scan::Scan;

/// The remains of a damaged store.
pub struct Salvage {
    cache: Arc<BlockCache>,
    dictionaries: Vec<Remains>,
    notes: Vec<String>,
    left_out: Vec<String>,
    recent: Mutex<SalvageCache>,
}

/// The remains of one dictionary of the main branch.
struct Remains {
    name: String,
    /// The memtables and runs of the dictionary, newest first.
    sources: Vec<Source>,
}

/// A memtable or run of a dictionary.
enum Source {
    Memtable(Arc<Memtable>),
    Run(Arc<Run>),
    /// A run whose root is unreadable, so that any key may have been in it.
    Lost(String),
}

/// An element of a scan.
#[derive(Clone, Debug)]
pub enum Remnant {
    /// A key with its value, which may still be unreadable.
    Tuple {
        /// The key.
        key: Bytes,
        /// The value of the key, which is read on request.
        value: SalvagedValue,
        /// True if something newer for this key may have been lost.
        stale: bool,
    },
    /// Keys from `start` up to `end` may be lost. An empty end means that the gap extends to the
    /// last key.
    Gap {
        /// The first key that may be lost.
        start: Bytes,
        /// The first key after the gap, or empty if the gap has no upper bound.
        end: Bytes,
        /// A description of the damage.
        what: String,
    },
}

/// A value that is read on request.
#[derive(Clone, Debug)]
pub struct SalvagedValue(Lookup);

impl SalvagedValue {
    /// Returns the length of the value in bytes. The length is approximate if updates apply to the
    /// value. Nothing is read.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match &self.0 {
            Lookup::Found(_, value) => value.len(),
            Lookup::Updated { base, update, .. } => {
                base.as_ref().map_or(0, |e| e.len as usize).max(update.bytes().len())
            }
            Lookup::Absent | Lookup::Deleted(_) => 0,
        }
    }
}

impl Salvage {
    /// Finds the remains of the store on `device`. If zones must be searched, `progress` is called
    /// with the number of zones searched so far and in total.
    pub fn open(device: Arc<dyn Device>, progress: &mut dyn FnMut(u64, u64)) -> Result<Salvage> {
        state::find(device, progress)
    }

    /// Returns sentences that describe which of the store's own structures could not be read and
    /// how they were replaced. Returns none if all are intact.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns a sentence for each part that was found but not recovered because it does not belong
    /// to the main branch.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Returns the names of the dictionaries of the main branch.
    pub fn dictionaries(&self) -> Vec<String> {
        self.dictionaries.iter().map(|d| d.name.clone()).collect()
    }

    /// Returns everything in a dictionary from `start` up to `end`, in key order. An empty `end`
    /// means no upper bound. A gap is returned before the tuples in it.
    pub fn scan(&self, dictionary: &str, start: &[u8], end: &[u8]) -> Scan<'_> {
        let sources =
            self.dictionaries.iter().find(|d| d.name == dictionary).map_or(&[][..], |d| &d.sources);
        Scan::new(&self.recent, sources, start, end)
    }

    /// Reads the value of a tuple.
    pub fn value(&self, value: &SalvagedValue) -> Result<Bytes> {
        let value = self.cache.resolve(value.0.clone())?;
        value.map_or(Ok(Bytes::new()), |value| Ok(self.cache.read_value(&value)?))
    }
}
