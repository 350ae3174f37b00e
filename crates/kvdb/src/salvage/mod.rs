//! Salvage: bringing out what can be read of a store that is damaged. Nothing is written to it.
//!
//! A damaged store is read by other rules than a sound one. There, the first thing that cannot be
//! read is an error; here it is a *gap*, a range of keys of which nothing is known, and reading
//! goes on behind it. What stands in newer runs or in the journal is certain whatever lies in gaps
//! below it. What stands below a gap may have been changed or deleted by what was lost: it is
//! given, and called *stale*.
//!
//! - `state`: what the store consists of, by the superblock and manifest that can be found;
//! - `scan`: the tuples of a dictionary, with gaps.

mod scan;
mod state;

use std::sync::Arc;

use bytes::Bytes;
use env::sync::Mutex;
use vt_tree::{BlockCache, Lookup, Memtable, Run, SalvageCache};
use zones::Device;

use crate::error::Result;

pub use scan::Scan;

/// What is left of a store.
pub struct Salvage {
    cache: Arc<BlockCache>,
    dictionaries: Vec<Remains>,
    notes: Vec<String>,
    left_out: Vec<String>,
    recent: Mutex<SalvageCache>,
}

/// What is left of one dictionary of the main branch.
struct Remains {
    name: String,
    /// The newest first.
    sources: Vec<Source>,
}

/// One of what a dictionary consists of.
enum Source {
    Memtable(Arc<Memtable>),
    Run(Arc<Run>),
    /// A run of which not even the root is known: any key may have been in it.
    Lost(String),
}

/// What a scan comes to.
#[derive(Clone, Debug)]
pub enum Remnant {
    /// A key, and its value, if that can be read.
    Tuple {
        /// The key.
        key: Bytes,
        /// Its value, read when it is asked for.
        value: SalvagedValue,
        /// Something newer may have been lost.
        stale: bool,
    },
    /// Keys from `start` up to `end` may be lost. An empty end: all that follow.
    Gap {
        /// The first key that may be lost.
        start: Bytes,
        /// The first key behind the gap; empty when there is none.
        end: Bytes,
        /// What is damaged.
        what: String,
    },
}

/// A value that is read when it is asked for.
#[derive(Clone, Debug)]
pub struct SalvagedValue(Lookup);

impl SalvagedValue {
    /// The length of the value, bytes; of one that updates change, about. Nothing is read.
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
    /// Finds what is left of the store on `device`. `progress` hears of (zones looked at, zones in
    /// all) where they must be searched.
    pub fn open(device: Arc<dyn Device>, progress: &mut dyn FnMut(u64, u64)) -> Result<Salvage> {
        state::find(device, progress)
    }

    /// What could not be read of the store's own structures, and what was done without it:
    /// sentences. None: they are whole.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What was found but not brought out, since it is not of the main branch: a sentence each.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Names of the dictionaries of the main branch.
    pub fn dictionaries(&self) -> Vec<String> {
        self.dictionaries.iter().map(|d| d.name.clone()).collect()
    }

    /// Everything of a dictionary from `start` up to `end` (empty: to its end), in order. A gap
    /// comes before the tuples in it.
    pub fn scan(&self, dictionary: &str, start: &[u8], end: &[u8]) -> Scan<'_> {
        let sources =
            self.dictionaries.iter().find(|d| d.name == dictionary).map_or(&[][..], |d| &d.sources);
        Scan::new(&self.recent, sources, start, end)
    }

    /// The value of a tuple.
    pub fn value(&self, value: &SalvagedValue) -> Result<Bytes> {
        let value = self.cache.resolve(value.0.clone())?;
        value.map_or(Ok(Bytes::new()), |value| Ok(self.cache.read_value(&value)?))
    }
}
