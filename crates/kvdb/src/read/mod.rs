//! The read path. Views are made of versions (`version`) and of the write sets of transactions
//! (`write_set`); cursors, iterators, estimates and ranks read from views.

pub(crate) mod ahead;
pub(crate) mod bounds;
mod by_place;
pub(crate) mod cursor;
pub(crate) mod estimate;
pub(crate) mod iter;
mod new_view;
pub(crate) mod ranks;
pub(crate) mod view;
