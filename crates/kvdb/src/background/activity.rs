//! Tracks recent commits, and readers that had to wait for the seek of a disk, so that some
//! background work is deferred until the store is quiet.

use std::time::Duration;

use env::sync::Mutex;

use crate::engine::Engine;

/// A store is quiet after this time without commits, or after `idle_flush` if that is shorter.
const QUIET: Duration = Duration::from_secs(2);
/// Readers count as active for this time after one of them had to wait for a seek.
const READERS: Duration = Duration::from_secs(1);

pub(crate) struct Activity {
    engine: Engine,
    /// The number of commits at the last check, and the time since when there was none.
    seen: Mutex<(u64, Duration)>,
    /// The number of reader seeks at the last check, and when one was last seen.
    readers: Mutex<(u64, Option<Duration>)>,
}

impl Activity {
    pub(crate) fn new(engine: Engine) -> Activity {
        let seen = Mutex::new((0, engine.env.monotonic()));
        let readers = Mutex::new((engine.cache.reader_seeks(), None));
        Activity { engine, seen, readers }
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
        self.idle_for(self.engine.env.monotonic()) >= self.engine.options.idle_flush.min(QUIET)
            && !self.readers_wait()
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
