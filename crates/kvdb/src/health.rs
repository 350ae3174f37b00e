//! Records whether the store accepts writes. The store permanently stops accepting writes when the
//! device and memory may no longer agree, that is, after a failed sync or a failed write of the
//! journal or the manifest. Such a step is not retried, since data may have been lost. Reads still
//! work, and the next open recovers the durable state.

use env::sync::atomic::{AtomicBool, Ordering};

use env::sync::Mutex;

use crate::error::{Error, Result};

#[derive(Default)]
pub(crate) struct Health {
    read_only: bool,
    closed: AtomicBool,
    failed: AtomicBool,
    why: Mutex<Option<String>>,
}

impl Health {
    pub(crate) fn new(read_only: bool) -> Health {
        Health { read_only, ..Health::default() }
    }

    /// Returns an error if the store takes no writes.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly(
                "it was opened for reading only; open it for writing".into(),
            ));
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::ReadOnly("it was closed; open it again".into()));
        }
        self.check()
    }

    /// Stops writes because the store is being closed. Returns `true` if the store was already
    /// closed.
    pub(crate) fn close(&self) -> bool {
        self.closed.swap(true, Ordering::AcqRel)
    }

    /// Returns an error if the store has stopped taking writes after a failure.
    pub(crate) fn check(&self) -> Result<()> {
        match self.failed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(self.error()),
        }
    }

    fn error(&self) -> Error {
        Error::ReadOnly(self.why.lock().clone().unwrap_or_else(|| "it failed".into()))
    }

    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Returns the reason why the store takes no more writes, if it has stopped.
    pub(crate) fn why(&self) -> Option<String> {
        self.why.lock().clone()
    }

    /// Stops writes because of `cause`, which occurred while `doing`. Only the first cause is
    /// recorded. Returns the error for the caller.
    pub(crate) fn fail(&self, doing: &str, cause: &Error) -> Error {
        // The advice for a full store does not help with this failure: the store has to be opened
        // again.
        let cause = match cause {
            Error::NoSpace => "its host gave no more space: make room there".to_string(),
            cause => cause.to_string(),
        };
        self.stop(|| format!("{doing} failed ({cause}); close the store and open it again, which recovers what is on disk"));
        self.error()
    }

    /// Stops writes for a reason that is not a failure.
    pub(crate) fn stop(&self, reason: impl FnOnce() -> String) {
        let mut why = self.why.lock();
        if why.is_none() {
            let reason = reason();
            tracing::error!("{reason}");
            *why = Some(reason);
            self.failed.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_has_failed_for_want_of_space_says_where_and_to_open_it_again() {
        let health = Health::default();
        health.fail("the write of the journal", &Error::NoSpace);
        let said = health.writable().expect_err("it takes no more writes").to_string();
        assert!(said.contains("its host gave no more space"), "{said}");
        assert!(said.contains("open it again") && !said.contains("delete something"), "{said}");
    }
}
