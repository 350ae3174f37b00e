//! Tracks recent commits, readers that had to wait for the seek of a disk, and all reads of
//! clients, so that some background work is deferred until the store is quiet.

use std::time::Duration;

use env::sync::Mutex;

use crate::engine::Engine;

/// A store is quiet after this time without commits, or after `idle_flush` if that is shorter.
const QUIET: Duration = Duration::from_secs(2);
/// Readers count as active for this time after one of them had to wait for a seek.
const READERS: Duration = Duration::from_secs(1);

/// Counts of what clients have done since the store was opened. They have done nothing in between
/// if two of them are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientWork {
    commits: u64,
    /// Reads of the device.
    reads: u64,
}

impl ClientWork {
    fn of(engine: &Engine) -> ClientWork {
        let reads = engine.zones.io().client_read_ops;
        ClientWork { commits: engine.counters.commits.get(), reads }
    }
}

pub(crate) struct Activity {
    engine: Engine,
    /// The number of commits at the last check, and the time since when there was none.
    seen: Mutex<(u64, Duration)>,
    /// The number of reader seeks at the last check, and when one was last seen.
    readers: Mutex<(u64, Option<Duration>)>,
    /// The work of clients at the last check, and the time since when they did nothing more.
    clients: Mutex<(ClientWork, Duration)>,
}

impl Activity {
    pub(crate) fn new(engine: Engine) -> Activity {
        let seen = Mutex::new((0, engine.env.monotonic()));
        let readers = Mutex::new((engine.cache.reader_seeks(), None));
        let clients = Mutex::new((ClientWork::of(&engine), engine.env.monotonic()));
        Activity { engine, seen, readers, clients }
    }

    /// Notes at the time `now` whether there were commits since the last check.
    pub(crate) fn look(&self, now: Duration) {
        let commits = self.engine.counters.commits.get();
        let mut seen = self.seen.lock();
        if seen.0 != commits {
            *seen = (commits, now);
        }
    }

    fn idle_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.seen.lock().1)
    }

    /// Returns `true` if there was no commit for a while and no reader waits for a seek.
    pub(crate) fn is_quiet(&self) -> bool {
        self.idle_for(self.engine.env.monotonic()) >= self.quiet_after() && !self.readers_wait()
    }

    fn quiet_after(&self) -> Duration {
        self.engine.options.idle_flush.min(QUIET)
    }

    /// Returns what clients have done so far.
    pub(crate) fn clients(&self) -> ClientWork {
        ClientWork::of(&self.engine)
    }

    /// Returns `true` if the store is quiet and no client has read from the device for as long. The
    /// time counts from the first check after a read, so this is checked at intervals.
    pub(crate) fn is_still(&self) -> bool {
        let (work, now) = (self.clients(), self.engine.env.monotonic());
        let since = {
            let mut seen = self.clients.lock();
            if seen.0 != work {
                *seen = (work, now);
            }
            seen.1
        };
        now.saturating_sub(since) >= self.quiet_after() && self.is_quiet()
    }

    /// Returns `true` while readers wait for a disk's seeks, each of which other work would delay
    /// further. On devices with cheap seeks, readers share the device with all other work.
    pub(crate) fn readers_wait(&self) -> bool {
        let seeks = self.engine.cache.reader_seeks();
        let mut readers = self.readers.lock();
        if readers.0 != seeks {
            *readers = (seeks, Some(self.engine.env.monotonic()));
            return true;
        }
        readers.1.is_some_and(|last| self.engine.env.monotonic().saturating_sub(last) < READERS)
    }

    /// Returns `true` if at the time `now` there was no commit for so long that memtables are
    /// flushed.
    pub(crate) fn is_idle(&self, now: Duration) -> bool {
        self.idle_for(now) >= self.engine.options.idle_flush
    }

    /// Makes the store count as idle at once, until the next commit.
    pub(crate) fn expect_none(&self) {
        let idle = self.engine.options.idle_flush.max(QUIET);
        *self.seen.lock() =
            (self.engine.counters.commits.get(), self.engine.env.monotonic().saturating_sub(idle));
    }
}
