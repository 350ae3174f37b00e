//! The lists of crates, rooms and exceptions with which the tests of rooms work.

/// The crates that are checked.
pub(super) const CRATES: &[&str] = &[
    "env",
    "kvdb-lua",
    "objects",
    "zones",
    "vt-tree",
    "kvdb",
    "kvfs",
    "kvfs-fuse",
    "kvdb-server",
    "kvdb-wire",
    "objects-s3",
    "places",
    "kvfs-cli",
];

/// Modules that contain only modules ("halls"). The rooms of a crate with such halls are the
/// modules in the halls, and not the halls. The halls form no cycle either, among one another and
/// with the other rooms.
pub(super) const HALLS: &[(&str, &[&str])] = &[
    ("kvfs", &["commit", "file", "space", "trees", "upkeep"]),
    ("kvfs-cli", &["commands", "support"]),
];

/// A crate, a room that has more than modules, and modules in it that are rooms of their own. They
/// and the room form no cycle; its other modules belong to the room.
pub(super) const INNER: &[(&str, &str, &[&str])] = &[
    ("kvfs", "layout", &["reservation"]),
    (
        "kvfs",
        "inode",
        &[
            "dirty_queue",
            "inode_allocator",
            "inode_cache",
            "inodes",
            "listing",
            "locks",
            "partial_page",
            "privileges",
        ],
    ),
    ("kvfs", "names", &["listing_order", "listing_table"]),
    ("kvfs", "pages", &["compress", "lost", "name_order", "read_plan", "reading_ahead"]),
    ("kvfs", "fs", &["freeze_lock", "request", "statfs", "ticker"]),
    ("kvfs", "merge", &["merging", "three_way"]),
    ("kvfs", "namespace", &["directory", "directory_locks", "rename", "resolve"]),
    ("kvfs", "views", &["changed_paths", "first_reads", "going_down"]),
];

/// A crate, a set of its modules that form a cycle, and the reason why they may.
pub(super) const CIRCLES: &[(&str, &[&str], &str)] = &[];

/// A crate, a type of it whose methods live in several rooms, and the names of variables and fields
/// that hold one.
pub(super) const SPREAD: &[(&str, &str, &[&str])] =
    &[("kvfs", "Fs", &["fs", "parent", "mainline"]), ("kvfs", "Views", &["views"])];

/// A crate, a room, and a room whose methods it calls although that closes a cycle. This list only
/// shrinks: an entry that is not needed fails the test.
pub(super) const CALLS: &[(&str, &str, &str)] = &[];
