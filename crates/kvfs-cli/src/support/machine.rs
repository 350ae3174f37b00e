//! This machine: paths, the files that a command may write, processes and where they run.

pub mod beneath;
pub mod descendants;
pub mod destination;
pub mod identity;
pub mod paths;
pub mod sandbox;
