//! The VT-tree (FAST '13): an LSM-tree whose merges stitch, that is, refer to data where it lies
//! instead of copying it.
//!
//! A *memtable* takes changes in memory. A *run* is an immutable sorted sequence on the device: a
//! tree of index nodes over tuple blocks, with large values out of line. Runs are ropes: [`slice`],
//! [`concat`], and the one [`merge()`] behind every background job, which differ in their
//! [`Placement`] only. A [`TreeCursor`] reads memtables and runs as one sequence of live tuples.

mod block;
mod cache;
mod check;
mod cursor;
mod difference;
mod error;
mod estimate;
mod filter;
mod index;
mod input;
mod item;
mod memtable;
mod merge;
#[cfg(any(test, fuzzing))]
pub mod parsers;
mod rewrite;
mod run;
mod salvage;
mod scrub;
mod source;
mod value;

pub use cache::{BlockCache, read_alone, waited};
pub use check::check_run;
pub use cursor::{TreeCursor, TreeTuple, TupleRef};
pub use difference::{Difference, KeyChange, Side};
pub use error::{Error, Result};
pub use estimate::{Estimate, estimate};
pub use filter::{FALSE_POSITIVES, Filter, FilterBuilder, hash};
pub use input::{Input, KeyRange};
pub use item::{Body, BodyRef, Item, ItemRef, Lookup, Seq};
pub use memtable::{Memtable, MemtableCursor, Pool, Slot, UNPLACED, Writer};
pub use merge::{ADAPTIVE, Placement, SOLID_STATE_SEEK, VALUE_WINDOW};
pub use merge::{Merge, MergeOptions, MergeStats, RunWriter, concat, merge, slice, split_points};
pub use rewrite::rewrite;
pub use run::{Probe, Run, RunCursor, RunStats, ZoneWeight};
pub use salvage::{SalvageCache, SalvageCursor, Salvaged};
pub use scrub::{Damage, Scrub, scrub_end};
pub use source::Source;
pub use value::{Compression, ExtentRef, Packer, Value, ValueRef, place_packed, place_value};
