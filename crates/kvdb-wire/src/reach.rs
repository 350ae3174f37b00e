//! A client's knowledge of whether its server is to be reached. All that waits for a server ends
//! together, and once.
//!
//! From the first failure of a connection on the server is waited for, as long as the client's
//! options say, by all calls together: a later one waits until the same moment. Then those that
//! wait fail, and further ones fail at once, until the server answers again, which one thread
//! tries. So a call that fails costs one wait, and a hundred of them do not cost a hundred.

use std::io;
use std::time::Duration;

use env::Instant;
use env::sync::atomic::{AtomicBool, Ordering};
use env::sync::{Condvar, Mutex};

use crate::error::{Error, Result};

/// A wait for ever, about.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The state of a server's connection, as its client has found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It answers.
    Connected,
    /// It is waited for, since so long.
    Waiting(Duration),
    /// It has not answered for so long, and calls fail until it does.
    Gone(Duration),
}

/// The next step of a call whose connection has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is asked again.
    Again,
    /// It fails.
    Fails,
    /// It fails, and is the first to say that the server is gone.
    SaysGone,
}

#[derive(Default)]
pub(crate) struct Reachable {
    trouble: Mutex<Option<Trouble>>,
    /// Told when the server answers again, or is gone.
    changed: Condvar,
    /// There is trouble. A call that is answered looks at nothing else.
    is_troubled: AtomicBool,
}

struct Trouble {
    since: Instant,
    is_gone: bool,
    why: String,
}

impl Reachable {
    /// By when a call that begins now must be answered. Fails where the server is gone. A timeout
    /// of zero is none.
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

    /// A connection has failed under a call. Pauses, unless the server answers again before, or
    /// the deadline of the call is over. `ends_all`: that deadline is the one of all that wait.
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

    /// The server is gone, whatever has been waited; `false`: it was before.
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

    /// The server has answered.
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
