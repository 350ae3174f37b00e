//! The index of a run: nodes of entries, each with the fences and sums of a subtree, as they are on
//! the device in frames, and in the form in memory that reads use.

pub(crate) mod entry;
pub(crate) mod frame;
pub(crate) mod index_node;
pub(crate) mod node;
