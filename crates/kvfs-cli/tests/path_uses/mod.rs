//! Every path that a command takes, and what is done there. A unit test of the program compares
//! this with the commands that there are; `destinations.rs` walks those that are written.

/// What a command does at a path that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It works on the store that is there, or on files in a mount of it.
    Store,
    /// It reads what is there.
    Reads,
    /// It writes there what its user wants to have.
    Writes,
}
use Use::{Reads, Store, Writes};

/// The command, its argument, and what it is for.
pub const PATHS: &[(&str, &str, Use)] = &[
    ("create", "store", Writes),
    ("mount", "store", Store),
    ("mount", "dir", Store),
    ("mount", "config", Reads),
    ("mount", "log", Writes),
    ("umount", "target", Store),
    ("umount", "config", Reads),
    ("kv get", "target", Store),
    ("kv put", "target", Store),
    ("kv del", "target", Store),
    ("kv scan", "target", Store),
    ("kv range", "target", Store),
    ("kv delrange", "target", Store),
    ("kv delete-prefix", "target", Store),
    ("kv estimate", "target", Store),
    ("kv incr", "target", Store),
    ("kv count", "target", Store),
    ("kv dicts", "target", Store),
    ("kv call", "target", Store),
    ("dict options", "target", Store),
    ("dict list", "target", Store),
    ("run", "mount", Store),
    ("txn begin", "mount", Store),
    ("txn list", "mount", Store),
    ("mcp", "mount", Store),
    ("web", "mount", Store),
    ("top", "mount", Store),
    ("snapshot create", "target", Store),
    ("diff", "target", Store),
    ("restore", "target", Store),
    ("undo", "target", Store),
    ("changes", "mount", Store),
    ("history", "target", Store),
    ("send", "target", Store),
    ("send", "output", Writes),
    ("receive", "store", Store),
    ("receive", "input", Reads),
    ("receive", "file", Reads),
    ("ls", "target", Store),
    ("cat", "target", Store),
    ("stat", "target", Store),
    ("check", "store", Store),
    ("scrub", "target", Store),
    ("salvage", "store", Store),
    ("salvage", "directory", Writes),
    ("salvage", "keys", Writes),
    ("clone-tree", "src", Store),
    ("clone-tree", "dst", Store),
    ("rm", "store", Store),
    ("du", "store", Store),
    ("find", "store", Store),
    ("defrag", "target", Store),
    ("compact", "target", Store),
    ("import", "store", Store),
    ("import", "from", Reads),
    ("export", "store", Store),
    ("export", "to", Writes),
    ("bench", "dir", Writes),
    ("doctor", "root", Store),
    ("man", "directory", Writes),
];
