//! Placeholder until the first commit of this floor.
