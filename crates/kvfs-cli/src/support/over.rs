//! Runs over a folder of any file system: a program sees the folder through an overlay, and what it
//! has changed comes into the folder as a whole, or not at all.
//!
//! The upper layer of the overlay lies in a state folder next to the folder, on the same file
//! system. To apply it, each path that differs is swapped with the same path in the upper layer, by
//! a rename (`steps`). So the upper layer has the old versions afterwards, and the same swaps take
//! the run back. A log (`log`) says what is swapped; it is on disk before the first swap, and each
//! step can be told from its result, so an interruption is completed by the next command.

pub mod conflicts;
pub mod differences;
pub mod folder;
pub mod log;
pub mod plan;
pub mod recovery;
pub mod run_folders;
pub mod runs;
pub mod steps;
pub mod undo;
