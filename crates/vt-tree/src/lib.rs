//! The VT-tree (FAST '13): an LSM-tree whose merges stitch, that is, refer to data where it lies instead of copying it.
//!
//! A *memtable* takes changes in memory. A *run* is an immutable sorted sequence on the device: a tree of index nodes over tuple
//! blocks, with large values out of line. Runs are ropes: [`slice`], [`concat`], and the one [`merge`] behind every background job,
//! which differ in their [`Placement`] only. A [`TreeCursor`] reads memtables and runs as one sequence of live tuples.

mod around;
mod block;
mod builder;
mod check;
mod compression;
mod counter;
mod cursor;
mod cuts;
mod difference;
mod entry;
mod error;
mod estimate;
mod fences;
mod filter;
mod frame;
mod group;
mod item;
mod memtable;
mod merge;
mod node;
mod outline;
#[cfg(any(test, fuzzing))]
pub mod parsers;
mod path;
mod placement;
mod rewrite;
mod run;
mod run_cursor;
mod salvage;
mod scrub;
mod series;
mod source;
mod store;
mod walker;
mod window;
mod writer;
mod zone_weights;

pub use around::read_alone;
pub use builder::MergeStats;
pub use check::check_run;
pub use compression::{Compression, Packer};
pub use cursor::{TreeCursor, TreeTuple, TupleRef};
pub use cuts::cuts;
pub use difference::{Difference, KeyChange, Side};
pub use error::{Error, Result};
pub use estimate::{Estimate, estimate};
pub use filter::{FALSE_POSITIVES, Filter, FilterBuilder, hash};
pub use item::{Body, BodyRef, ExtentRef, Item, ItemRef, Lookup, Seq, Value, ValueRef};
pub use memtable::{Memtable, MemtableCursor, Pool, Slot, UNPLACED, Writer};
pub use merge::{Input, KeyRange, Merge, MergeOptions, concat, merge, slice};
pub use placement::{ADAPTIVE, Placement, SOLID_STATE_SEEK, VALUE_WINDOW};
pub use rewrite::rewrite;
pub use run::{Probe, Run, RunStats};
pub use run_cursor::RunCursor;
pub use salvage::{Piece, Pieces, Recent};
pub use scrub::{Damage, Scrub, scrub_end};
pub use source::Source;
pub use store::{Store, place_packed, place_value, waited};
pub use writer::RunWriter;
pub use zone_weights::ZoneWeight;
