//! A client's knowledge of whether its server can be reached. All waits for a server end together,
//! once.
//!
//! The wait begins with the first failure of a connection, and lasts as long as the client's
//! options say. All calls share it: a later call waits until the same moment. Then the waiting
//! calls fail, and new ones fail at once, until the server answers again, for which one thread
//! probes. So a failed server costs one wait, and not one wait for each of a hundred calls.

use std::io;
use std::time::Duration;

use env::Instant;
use env::sync::atomic::{AtomicBool, Ordering};
use env::sync::{Condvar, Mutex};

use crate::error::{Error, Result};

/// A practically endless time.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The state of the connection to a server, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The server answers.
    Connected,
    /// The client has been waiting for the server for this time.
    Waiting(Duration),
    /// The server has not answered for this time, and calls fail until it does.
    Gone(Duration),
}

/// The next step of a call whose connection has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The call sends its request again.
    Again,
    /// The call fails.
    Fails,
    /// The call fails, and is the first to find that the server has disappeared.
    SaysGone,
}

#[derive(Default)]
pub(crate) struct Reachable {
    trouble: Mutex<Option<Trouble>>,
    /// Notified when the server answers again, or has disappeared.
    changed: Condvar,
    /// Set while `trouble` is present, so that a call that is answered does not take its lock.
    is_troubled: AtomicBool,
}

struct Trouble {
    since: Instant,
    is_gone: bool,
    why: String,
}

impl Reachable {
    /// Returns the deadline of a call that begins now. Fails if the server has disappeared. A
    /// timeout of zero means no limit.
    pub fn deadline(&self, timeout: Duration) -> Result<Instant> {
        let timeout = if timeout.is_zero() { FOR_EVER } else { timeout };
        let from = match &*self.trouble.lock() {
            Some(trouble) if trouble.is_gone => {
                let waited = trouble.since.elapsed().as_secs();
                let what = format!("the server has not answered for {waited} s: {}", trouble.why);
                return Err(Error::Io(io::Error::new(io::ErrorKind::TimedOut, what)));
            }
            Some(trouble) => trouble.since,
            None => Instant::now(),
        };
        Ok(from + timeout)
    }

    /// Records that a connection has failed under a call, and returns the next step of the call. It
    /// pauses first, until the server answers again or the deadline of the call has passed.
    /// `ends_all` is set if that deadline is the common one of all waiting calls.
    pub fn failed(&self, why: &Error, pause: Duration, deadline: Instant, ends_all: bool) -> Next {
        let mut trouble = self.trouble.lock();
        let now = Instant::now();
        if trouble.is_none() {
            tracing::warn!("the server is waited for: {why}");
            *trouble = Some(Trouble { since: now, is_gone: false, why: why.to_string() });
            self.is_troubled.store(true, Ordering::Relaxed);
        }
        match &mut *trouble {
            Some(trouble) if trouble.is_gone => return Next::Fails,
            Some(trouble) if now >= deadline && ends_all => {
                trouble.is_gone = true;
                let waited = trouble.since.elapsed().as_secs();
                tracing::error!(
                    "the server is gone: it was waited for, {waited} s, and calls fail until it \
                     answers again: {why}"
                );
                self.changed.notify_all();
                return Next::SaysGone;
            }
            _ if now >= deadline => return Next::Fails,
            _ => {}
        }
        self.changed.wait_for(&mut trouble, pause.min(deadline.saturating_duration_since(now)));
        match &*trouble {
            Some(trouble) if trouble.is_gone => Next::Fails,
            _ => Next::Again,
        }
    }

    /// Marks the server as gone, however long it has been waited for. Returns `false` if it already
    /// was.
    pub fn give_up(&self, why: &Error) -> bool {
        let mut trouble = self.trouble.lock();
        let since = match &*trouble {
            Some(trouble) if trouble.is_gone => return false,
            Some(trouble) => trouble.since,
            None => Instant::now(),
        };
        *trouble = Some(Trouble { since, is_gone: true, why: why.to_string() });
        self.is_troubled.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        true
    }

    /// Records that the server has answered.
    pub fn answered(&self) {
        if !self.is_troubled.load(Ordering::Relaxed) {
            return;
        }
        if let Some(trouble) = self.trouble.lock().take() {
            self.is_troubled.store(false, Ordering::Relaxed);
            let waited = trouble.since.elapsed();
            tracing::warn!("the server answers again, after {:.1} s", waited.as_secs_f64());
            self.changed.notify_all();
        }
    }

    pub fn is_gone(&self) -> bool {
        self.trouble.lock().as_ref().is_some_and(|trouble| trouble.is_gone)
    }

    pub fn reach(&self) -> Reach {
        match &*self.trouble.lock() {
            None => Reach::Connected,
            Some(trouble) if trouble.is_gone => Reach::Gone(trouble.since.elapsed()),
            Some(trouble) => Reach::Waiting(trouble.since.elapsed()),
        }
    }
}
