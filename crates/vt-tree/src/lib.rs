//! The VT-tree (Shetty et al., FAST '13): an LSM-tree whose merges *stitch* data, that is, refer to
//! it at its present location instead of copying it.
//!
//! - A [`Memtable`] holds changes in memory, in every version that a reader may still request.
//! - A [`Run`] is an immutable sorted sequence on the device: a tree of index nodes over tuple
//!   blocks, with large values stored separately. Runs may share blocks and whole subtrees.
//! - A [`Merge`] turns memtables and runs into one run. Flushes, compactions and defragmentation
//!   are merges that differ in their [`Placement`]; [`slice()`] and [`concat()`] are merges that
//!   copy almost nothing.
//! - A [`TreeCursor`] reads memtables and runs as one sequence of live tuples.
//! - A [`BlockCache`] reads the device for all trees of a store.
//!
//! The user of the crate decides which runs make up a tree and when they are merged.
//!
//! ```
//! use std::sync::Arc;
//! use vt_tree::{BlockCache, Input, KeyRange, Memtable, MergeOptions, TreeCursor, Value, merge};
//! use zones::{FormatOptions, MemoryDevice, Zones};
//!
//! # fn main() -> Result<(), vt_tree::Error> {
//! let zones = Zones::format(Arc::new(MemoryDevice::new()), FormatOptions::default())?;
//! let cache = BlockCache::new(zones, 8 << 20);
//!
//! // A flush is a merge of one memtable.
//! let memtable = Arc::new(Memtable::new());
//! memtable.put(b"apple", 1, Value::Inline("red".into()));
//! memtable.put(b"banana", 2, Value::Inline("yellow".into()));
//! let inputs = [Input::Memtable(memtable)];
//! let older = merge(&cache, &inputs, &KeyRange::all(), MergeOptions::default())?.unwrap();
//!
//! // Newer sources hide older ones.
//! let newer = Arc::new(Memtable::new());
//! newer.delete(b"apple", 3);
//! let mut cursor = TreeCursor::new(&cache, &[Input::Memtable(newer), Input::Run(older)], 3);
//! let tuple = cursor.next()?.unwrap();
//! assert_eq!(&tuple.key[..], b"banana");
//! assert_eq!(&cache.read_value(&tuple.value)?[..], b"yellow");
//! assert!(cursor.next()?.is_none());
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod block;
mod cache;
mod check;
mod cursor;
mod difference;
mod error;
mod estimate;
mod filter;
mod hidden;
mod index;
mod input;
mod item;
mod key;
mod memtable;
mod merge;
#[cfg(any(test, fuzzing))]
pub mod parsers;
mod rewrite;
mod run;
mod salvage;
mod scrub;
mod source;
mod update;
mod value;

pub use cache::{BlockCache, read_alone, read_onward, value_waited};
pub use check::check_run;
pub use cursor::{TreeCursor, TreeTuple, TupleRef};
pub use difference::{Difference, KeyChange, Side};
pub use error::{Error, Result};
pub use estimate::{Estimate, estimate};
pub use filter::{FALSE_POSITIVES, Filter, FilterBuilder, hash};
pub use hidden::hidden_bytes;
pub use input::{Input, KeyRange};
pub use item::{Body, BodyRef, Item, ItemRef, Lookup, Seq};
pub use memtable::{DEFERRED_OVERHEAD, DeferredSlot, Memtable, MemtableCursor, Pool, Writer};
pub use merge::{ADAPTIVE, Placement, SOLID_STATE_SEEK, VALUE_WINDOW};
pub use merge::{Merge, MergeOptions, MergeStats, RunWriter, concat, merge, slice, split_points};
pub use merge::{Relocated, Relocation};
pub use rewrite::{PutInstead, rewrite};
pub use run::{BlockWalk, IndexLeaves, Probe, Run, RunCursor, RunStats, ZoneWeight};
pub use salvage::{SalvageCache, SalvageCursor, Salvaged};
pub use scrub::{Damage, Scrub, scrub_end};
pub use source::Source;
pub use update::{LONGEST_UPDATED, Update};
pub use value::{
    ChooseCodec, Compression, ExtentRef, Packer, Value, ValueRef, place_packed, place_value,
};
