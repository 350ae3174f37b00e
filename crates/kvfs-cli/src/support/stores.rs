//! Stores, mounted or not, as commands read and change them.

pub mod clones;
pub mod connection;
pub mod device_profile;
pub mod files;
pub mod forked;
pub mod losses;
pub mod retention;
pub mod served_names;
pub mod snapshots;
pub mod store;
pub mod tree;
pub mod walks;
