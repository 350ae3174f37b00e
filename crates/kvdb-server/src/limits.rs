//! The limits on the resources that one client may request. Whatever bytes arrive, a connection
//! never holds more than these limits allow.

use std::time::Duration;

/// Limits of the server. A client that exceeds one of them receives an error that is specific to
/// the limit.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The number of open connections, which is reduced if the process cannot have enough
    /// descriptors. A further connection receives an error and is closed. `CONFIG SET maxclients`
    /// changes the limit.
    pub connections: usize,
    /// The number of arguments of one command, including its name.
    pub arguments: usize,
    /// The number of bytes of one argument.
    pub argument: usize,
    /// The number of bytes of any string that `APPEND` or `SETRANGE` may build.
    pub value: u64,
    /// The largest number of bytes of a string that is one tuple. Longer strings are kept in
    /// pages.
    pub tuple: usize,
    /// The length of a string, in bytes, from which a write of at most half of it moves the string
    /// from its tuple to pages. A merge that meets the write would otherwise rewrite the whole
    /// string, and a read of a part would read all of it.
    pub patched: usize,
    /// The number of bytes of one string in a reply.
    pub bulk: u64,
    /// The number of bytes of a key.
    pub key: usize,
    /// The number of bytes of a field, or of a member of a set or a sorted set.
    pub element: usize,
    /// The largest size of a collection in which a rank is found by counting elements in order.
    pub walked: i64,
    /// The number of bytes of one whole command.
    pub request: usize,
    /// The number of bytes that the incomplete requests of all connections together may take in
    /// addition to 64 KiB each.
    pub requests: usize,
    /// The number of bytes of replies that must be complete before they are sent (replies of
    /// `EXEC`, lists of changes), for all connections together.
    pub whole_replies: usize,
    /// The number of bytes at which a reply is sent, so that a long reply is never held in memory
    /// as a whole.
    pub reply: usize,
    /// The time after which a client is disconnected if replies wait for it and it neither takes
    /// nor sends anything.
    pub write_timeout: Duration,
    /// The number of bytes of replies that wait for one client while its next commands run.
    pub unsent: usize,
    /// The number of bytes of waiting replies for all connections together, without the first 16
    /// KiB of each.
    pub all_unsent: usize,
    /// The number of bytes of requests of one client that are read while it does not take its
    /// replies.
    pub ahead: usize,
    /// The number of bytes of requests read ahead for all connections together, without the first
    /// 16 KiB of each.
    pub all_ahead: usize,
    /// The time after which a client is disconnected if it sends more than `ahead` and takes none
    /// of its replies. It would otherwise wait forever.
    pub stall: Duration,
    /// The number of `WATCH` commands in force, for all connections together.
    pub watches: usize,
    /// The time without an `EXEC` after which a `WATCH` counts as broken, because the store must
    /// remember all changes for it.
    pub watch_time: Duration,
    /// The number of live `SCAN` cursors. If there are more, the least recently used one is
    /// evicted.
    pub cursors: usize,
    /// The number of bytes of all cursors together.
    pub cursor_bytes: usize,
    /// The number of bytes of the keys of recent commits that are kept for `CHANGES`, once a
    /// client has used it.
    pub feed: usize,
    /// The number of bytes of messages that wait for one subscriber. A slower subscriber is
    /// disconnected.
    pub mailbox: usize,
    /// The number of bytes of the names to which all connections have subscribed.
    pub subscriptions: usize,
    /// The number of bytes of the keys that clients track because they have read them.
    pub tracked: usize,
    /// The number of bytes of messages and events that one transaction keeps until it commits.
    pub effects: usize,
    /// The largest number of keys in a deleted range for which each key has its own event. If
    /// there are more, one event represents the range.
    pub events: usize,
    /// The number of bytes of a savepoint's name.
    pub name: usize,
    /// The number of scripts that run concurrently, each in a process. Further scripts wait.
    pub scripts: usize,
    /// The time after which a running script is killed and all its changes are discarded. The
    /// limit can be changed by `CONFIG SET lua-time-limit`.
    pub script_time: Duration,
    /// The number of bytes of the script texts that `EVALSHA` can find.
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
            patched: 16 << 10,
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
