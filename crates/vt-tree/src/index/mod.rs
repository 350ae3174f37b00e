//! The index of a run: nodes of entries, each with the fences and sums of a subtree. They lie in
//! frames on the device, and have another form in memory that reads use.

pub(crate) mod entry;
pub(crate) mod frame;
pub(crate) mod index_node;
pub(crate) mod node;
