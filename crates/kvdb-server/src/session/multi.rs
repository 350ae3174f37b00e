//! What a session keeps between `MULTI` and `EXEC`, and of `WATCH`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use kvdb::{DictionaryId, Isolation, Transaction, View};

use super::Shared;
use crate::failure::{Failure, Outcome};
use crate::request::Request;

/// What is gathered between `MULTI` and `EXEC`.
pub struct Queue {
    shared: Arc<Shared>,
    pub requests: Vec<Request>,
    /// Counted in `Shared::request_bytes`.
    pub bytes: usize,
    /// A command was refused, so none is run.
    pub spoilt: bool,
}

impl Queue {
    pub fn new(shared: &Arc<Shared>) -> Self {
        Queue { shared: shared.clone(), requests: Vec::new(), bytes: 0, spoilt: false }
    }
    pub fn spoil(&mut self) {
        self.spoilt = true;
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.request_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// Keys that must not have changed for `EXEC` to run.
pub enum Watch {
    /// Of the store: a transaction that depends on them.
    Store(Transaction),
    /// Of a joined transaction: as they were in it.
    Joined { before: View, keys: Vec<(DictionaryId, Bytes)> },
}

/// What a watched key takes in addition to its bytes, about.
pub const WATCHED: usize = 256;

/// A `WATCH` in force, as the server counts it.
pub struct Counted {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Counted {
    pub fn new(shared: &Arc<Shared>) -> Result<Self, Failure> {
        let (most, all) = (shared.limits.watches, shared.watches.fetch_add(1, Relaxed) + 1);
        let counted = Counted { shared: shared.clone(), bytes: 0 };
        if all > most {
            return Err(Failure::Limit(format!(
                "{most} WATCH are in force, of all connections: EXEC, UNWATCH or close some"
            )));
        }
        Ok(counted)
    }
    pub fn add(&mut self, bytes: usize) -> Outcome {
        self.bytes += bytes;
        if self.shared.request_bytes.fetch_add(bytes, Relaxed) + bytes > self.shared.limits.requests
        {
            return Err(Failure::Limit("too many large requests at once; try again later".into()));
        }
        Ok(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.request_bytes.fetch_sub(self.bytes, Relaxed);
        self.shared.watches.fetch_sub(1, Relaxed);
    }
}

/// A `WATCH` that was kept for too long has ended: whether a key has changed is not known then.
pub fn is_over(error: &kvdb::Error) -> bool {
    matches!(error, kvdb::Error::Locked(_) | kvdb::Error::NoTransaction(_))
}

impl Watch {
    /// Whether a key has changed, as `now` sees it.
    pub fn is_broken(&self, now: &Transaction) -> Result<bool, Failure> {
        match self {
            Watch::Store(watch) => match watch.is_outdated() {
                Err(error) if is_over(&error) => Ok(true),
                outdated => Ok(outdated?),
            },
            Watch::Joined { before, keys } => {
                let after = now.view()?;
                for (dict, key) in keys {
                    if now.isolation() == Isolation::Serializable {
                        now.lock_key(*dict, key, false)?;
                    }
                    if before.get(*dict, key)? != after.get(*dict, key)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}
