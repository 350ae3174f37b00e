//! The VT-tree (FAST '13): an LSM-tree whose merges stitch.
mod error;
mod filter;
mod item;
mod memtable;
mod source;

pub use error::{Error, Result};
pub use filter::{Filter, FilterBuilder, hash};
pub use item::{Body, ExtentRef, Item, Lookup, Seq, Value};
pub use memtable::{Memtable, MemtableCursor, Writer};
pub use source::Source;
