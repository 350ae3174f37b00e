//! The `-o` options of a mount.
