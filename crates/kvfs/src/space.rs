//! The accounts of space and of files: the space that is free in the store, reserved for
//! uncommitted data, and promised to files, and the number of files that a view may have.
//! `commit/promised_ranges` keeps the promises up to date, and `fs/statfs` shows the space.

pub(crate) mod file_account;
pub(crate) mod file_limits;
pub(crate) mod free_space;
pub(crate) mod promises;
pub(crate) mod space_account;
pub(crate) mod store;
