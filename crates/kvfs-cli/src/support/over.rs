//! Runs over a folder of any file system: a program sees the folder through an overlay, and its
//! changes are applied to the folder as a whole, or not at all.
//!
//! The upper layer of the overlay lies in a state folder next to the folder, on the same file
//! system. To apply it, each path that differs is swapped with the same path in the upper layer, by
//! a rename (`steps`). So the upper layer has the old versions afterwards, and the same swaps undo
//! the run. A log (`log`) lists the swaps. It is on disk before the first swap, and the result of
//! each step shows whether it was done, so the next command completes an interrupted apply.

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
