//! Checks, repairs and salvages a file system whose store is damaged, and reports what was lost.

pub(crate) mod describe_keys;
pub(crate) mod losses;
pub(crate) mod repair;
pub(crate) mod salvage;
mod scrub_note;
pub(crate) mod verify;
