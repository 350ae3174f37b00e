//! The VT-tree (FAST '13): an LSM-tree whose merges stitch.
mod item;

pub use item::{Body, ExtentRef, Item, Lookup, Seq, Value};
