//! Operations on whole trees: they walk, copy and remove a directory with everything in it, and
//! make many files at once.

pub(crate) mod clone_tree;
pub(crate) mod remove_tree;
mod same_file;
mod tree;
mod tree_order;
pub(crate) mod walk;
pub(crate) mod whole;
