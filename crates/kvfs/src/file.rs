//! The calls on one file: its content (`data`, on `pages`), its attributes and its space. Calls on
//! names are in `namespace`.

mod allocate;
mod attributes;
mod cached_writes;
pub(crate) mod data;
mod reflink;
mod write_call;
mod xattr;
