//! The bounds on what one client may ask for. Whatever bytes arrive, a connection never holds more
//! than these allow.

use std::time::Duration;

/// Limits of the server; each has an error of its own that the client sees.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Open connections, reduced if the process cannot have enough descriptors. A further
    /// connection gets an error and is closed. `CONFIG SET maxclients` changes the limit.
    pub connections: usize,
    /// Arguments of one command, its name included.
    pub arguments: usize,
    /// Bytes of one argument.
    pub argument: usize,
    /// Bytes of any string that `APPEND` or `SETRANGE` may build.
    pub value: u64,
    /// Bytes up to which a string is one tuple; longer ones are kept in pages.
    pub tuple: usize,
    /// Bytes of one string in a reply.
    pub bulk: u64,
    /// Bytes of a key.
    pub key: usize,
    /// Bytes of a field, or of a member of a set or a sorted set.
    pub element: usize,
    /// Size of a collection up to which a rank is found by counting elements in order.
    pub walked: i64,
    /// Bytes of one whole command.
    pub request: usize,
    /// Bytes that the incomplete requests of all connections together may take in addition to 64
    /// KiB each.
    pub requests: usize,
    /// Bytes of replies that must be complete before they are sent (those of `EXEC`, lists of
    /// changes), for all connections together.
    pub whole_replies: usize,
    /// Replies are sent on as soon as this many bytes are ready, so that a long one is never held
    /// in memory as a whole.
    pub reply: usize,
    /// A client is disconnected if replies wait for it and it neither takes nor sends anything for
    /// this long.
    pub write_timeout: Duration,
    /// Bytes of replies that wait for one client while its next commands are run.
    pub unsent: usize,
    /// The same for all connections together, without the first 16 KiB of each.
    pub all_unsent: usize,
    /// Bytes of requests of one client that are read while it does not take its replies.
    pub ahead: usize,
    /// The same for all connections together, without the first 16 KiB of each.
    pub all_ahead: usize,
    /// A client that sends more than `ahead` and takes none of its replies for this long would wait
    /// forever: it is disconnected.
    pub stall: Duration,
    /// `WATCH` commands in force, for all connections together.
    pub watches: usize,
    /// A `WATCH` without an `EXEC` for longer than this counts as broken, since the store has to
    /// remember all changes for it.
    pub watch_time: Duration,
    /// Number of live `SCAN` cursors; the least recently used one is evicted.
    pub cursors: usize,
    /// Bytes of all cursors together.
    pub cursor_bytes: usize,
    /// Bytes of the keys of recent commits that are kept for `CHANGES`, once a client has asked for
    /// it.
    pub feed: usize,
    /// Bytes of messages that wait for one subscriber; a slower subscriber is disconnected.
    pub mailbox: usize,
    /// Bytes of the names that all connections have subscribed to.
    pub subscriptions: usize,
    /// Bytes of the keys that clients track because they have read them.
    pub tracked: usize,
    /// Bytes of messages and events that one transaction keeps until it commits.
    pub effects: usize,
    /// Number of keys of a deleted range up to which each key has its own event; beyond that, one
    /// event stands for the range.
    pub events: usize,
    /// Bytes of a savepoint's name.
    pub name: usize,
    /// Scripts that run concurrently, each in a process; the next one waits.
    pub scripts: usize,
    /// A script that runs longer is killed, and all its changes are discarded. The limit can be
    /// changed by `CONFIG SET lua-time-limit`.
    pub script_time: Duration,
    /// Bytes of the script texts that `EVALSHA` can find.
    pub script_texts: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 10_000,
            arguments: 128 << 10,
            argument: 31 << 20,
            value: 1 << 40,
            tuple: 256 << 10,
            bulk: 512 << 20,
            key: 16 << 10,
            element: crate::names::LONGEST,
            walked: 256,
            request: 32 << 20,
            requests: 256 << 20,
            whole_replies: 64 << 20,
            reply: 1 << 20,
            write_timeout: Duration::from_secs(60),
            unsent: 16 << 20,
            all_unsent: 64 << 20,
            ahead: 32 << 20,
            all_ahead: 128 << 20,
            stall: Duration::from_secs(10),
            watches: 4096,
            watch_time: Duration::from_secs(300),
            cursors: 16 << 10,
            cursor_bytes: 16 << 20,
            feed: 16 << 20,
            mailbox: 32 << 20,
            subscriptions: 64 << 20,
            tracked: 64 << 20,
            effects: 16 << 20,
            events: 1024,
            name: 256,
            scripts: 8,
            script_time: Duration::from_secs(5),
            script_texts: 16 << 20,
        }
    }
}
