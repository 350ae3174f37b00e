//! The bounds on what one client may ask for. Whatever bytes arrive, a connection never holds more
//! than these allow.

use std::time::Duration;

/// Bounds of the server; every one of them has an error of its own that the client sees.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Open connections, as far as the process may have as many descriptors; the next one is told
    /// so and closed. `CONFIG SET maxclients` changes it.
    pub connections: usize,
    /// Arguments of one command, its name included.
    pub arguments: usize,
    /// Bytes of one argument.
    pub argument: usize,
    /// Bytes of any string that `APPEND` or `SETRANGE` may build.
    pub value: u64,
    /// Bytes up to which a string is one tuple; longer ones are kept in pages.
    pub tuple: usize,
    /// Bytes of a string that a reply may have.
    pub bulk: u64,
    /// Bytes of a key.
    pub key: usize,
    /// Elements of a collection up to which a rank is found by a walk.
    pub walked: i64,
    /// Bytes of one whole command.
    pub request: usize,
    /// Bytes that the unfinished requests of all connections together may take beyond 64 KiB each.
    pub requests: usize,
    /// Bytes of replies that must be whole before they leave (those of `EXEC`, lists of changes),
    /// of all connections together.
    pub whole_replies: usize,
    /// Replies are sent on as soon as this many bytes are ready, so that a long one is never held
    /// in memory as a whole.
    pub reply: usize,
    /// A client for which replies wait, and that neither takes nor sends anything for this long, is
    /// disconnected.
    pub write_timeout: Duration,
    /// Bytes of replies that wait for one client while its next commands are run.
    pub unsent: usize,
    /// Of all connections together, but for 16 KiB of each.
    pub all_unsent: usize,
    /// Bytes of requests of one client that are read while it does not take its replies.
    pub ahead: usize,
    /// Of all connections together, but for 16 KiB of each.
    pub all_ahead: usize,
    /// A client that sends more than that, and takes nothing of its replies for this long, waits
    /// for ever: it is disconnected.
    pub stall: Duration,
    /// `WATCH` commands that are in force, of all connections together.
    pub watches: usize,
    /// A `WATCH` that is kept for longer than this without an `EXEC` counts as broken: the store
    /// remembers for it what was changed.
    pub watch_time: Duration,
    /// `SCAN` cursors that are kept; the one unused for longest gives way.
    pub cursors: usize,
    /// Bytes that these may take together.
    pub cursor_bytes: usize,
    /// Bytes of the keys of recent commits that are kept for `CHANGES`, once it was asked for.
    pub feed: usize,
    /// Bytes of messages that wait for one subscriber; one that falls behind further is
    /// disconnected.
    pub mailbox: usize,
    /// Bytes of the names that all connections have subscribed to.
    pub subscriptions: usize,
    /// Bytes of messages and events that one transaction keeps until it commits.
    pub effects: usize,
    /// Keys of a deleted range of which each has an event of its own; beyond, the range has one.
    pub events: usize,
    /// Bytes of a savepoint's name.
    pub name: usize,
    /// Scripts that run at once, each in a process; the next one waits.
    pub scripts: usize,
    /// A script that takes longer is ended, and nothing of it is done. `CONFIG SET lua-time-limit`
    /// changes it.
    pub script_time: Duration,
    /// Bytes of the scripts that `EVALSHA` finds.
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
            effects: 16 << 20,
            events: 1024,
            name: 256,
            scripts: 8,
            script_time: Duration::from_secs(5),
            script_texts: 16 << 20,
        }
    }
}
