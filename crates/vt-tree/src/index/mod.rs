//! The index of a run: nodes of entries, each with the fences and the sums of what lies beneath it,
//! as they are on the device in frames, and as reads have them in memory.

pub(crate) mod entry;
pub(crate) mod frame;
pub(crate) mod index_node;
pub(crate) mod node;
