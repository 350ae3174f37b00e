//! The read path: versions and the version set, write sets of transactions, views, and on views
//! cursors, iterators, estimates and ranks.

pub(crate) mod ahead;
pub(crate) mod bounds;
mod by_place;
pub(crate) mod cursor;
pub(crate) mod estimate;
pub(crate) mod generation;
pub(crate) mod iter;
pub(crate) mod ranks;
pub(crate) mod read_snapshots;
pub(crate) mod snapshot_set;
pub(crate) mod tree;
pub(crate) mod version;
pub(crate) mod version_set;
pub(crate) mod view;
pub(crate) mod write_set;
