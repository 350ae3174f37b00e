//! The state of a session between `MULTI` and `EXEC`, and the state of `WATCH`.

use std::sync::Arc;

use bytes::Bytes;
use kvdb::{DictionaryId, Isolation, Transaction, View};

use super::{Session, Shared};
use crate::dictionaries::Selected;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Head, Keyspace, Kind, head_key, is_past};
use crate::request::Request;

/// The state of `MULTI` and `WATCH` of a connection.
#[derive(Default)]
pub struct Multi {
    /// The queue of commands, which is set between `MULTI` and `EXEC`.
    queue: Option<Queue>,
    watches: Vec<(Watch, Counted)>,
}

impl Multi {
    /// Returns whether commands are queued.
    pub fn is_queuing(&self) -> bool {
        self.queue.is_some()
    }
    /// Returns the number of commands in the queue, or `None` if there is no queue.
    pub fn queued(&self) -> Option<usize> {
        self.queue.as_ref().map(|queue| queue.requests.len())
    }
    pub fn begin(&mut self, shared: &Arc<Shared>) {
        let shared = shared.clone();
        self.queue = Some(Queue { shared, requests: Vec::new(), bytes: 0, spoilt: false });
    }
    /// Adds a command to the queue, if there is one.
    pub fn push(&mut self, request: Request) -> Outcome {
        self.queue.as_mut().map_or(Ok(()), |queue| queue.push(request))
    }
    /// Makes `EXEC` refuse the queue, because one of its commands was refused.
    pub fn spoil(&mut self) {
        self.queue.iter_mut().for_each(|queue| queue.spoilt = true);
    }
    pub fn take_queue(&mut self) -> Option<Queue> {
        self.queue.take()
    }
    pub fn watch(&mut self, watch: Watch, counted: Counted) {
        self.watches.push((watch, counted));
    }
    pub fn unwatch(&mut self) {
        self.watches.clear();
    }
    pub fn take_watches(&mut self) -> Vec<(Watch, Counted)> {
        std::mem::take(&mut self.watches)
    }
    /// Drops the queue and all watched keys.
    pub fn discard(&mut self) {
        self.queue = None;
        self.unwatch();
    }
}

/// The commands queued between `MULTI` and `EXEC`.
pub struct Queue {
    shared: Arc<Shared>,
    requests: Vec<Request>,
    /// The bytes of the queue, which are charged to [`Shared::memory`].
    bytes: usize,
    /// Set if a command was refused, so that `EXEC` does not run any command.
    spoilt: bool,
}

impl Queue {
    fn push(&mut self, request: Request) -> Outcome {
        let (size, limits) = (request.size(), &self.shared.limits);
        if self.bytes + size > limits.request || self.requests.len() >= limits.arguments {
            let (bytes, commands) = (limits.request, limits.arguments);
            return Err(Failure::Limit(format!(
                "more than {bytes} bytes or {commands} commands between MULTI and EXEC"
            )));
        }
        if !self.shared.memory.take_for_requests(size) {
            return Err(Failure::Limit("too many large requests at once; try again later".into()));
        }
        self.bytes += size;
        self.requests.push(request);
        Ok(())
    }
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }
    pub fn is_spoilt(&self) -> bool {
        self.spoilt
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.memory.give_back(self.bytes);
    }
}

/// Keys that must not have changed for `EXEC` to run.
pub struct Watch {
    /// The dictionary of the keys. The connection may have selected another one since.
    pub dictionary: Selected,
    pub space: Keyspace,
    pub keys: Vec<Bytes>,
    /// The earliest deadline of the keys, in milliseconds since 1970.
    pub expires: Option<u64>,
    pub state: Watched,
}

/// The state against which changes of the keys are detected.
pub enum Watched {
    /// A transaction that depends on the keys, for keys of the store.
    Store(Transaction),
    /// The state in the joined transaction at the time of the `WATCH`, for keys of the
    /// transaction.
    Joined(View),
}

/// Approximate size of a watched key in addition to its bytes.
pub const WATCHED: usize = 256;

/// A `WATCH` in force, which counts toward the limit of the server.
pub struct Counted {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Counted {
    pub fn new(shared: &Arc<Shared>) -> Result<Self, Failure> {
        let too_many = |most| {
            Failure::Limit(format!(
                "{most} WATCH are in force, of all connections: EXEC, UNWATCH or close some"
            ))
        };
        shared.memory.begin_watch().map_err(too_many)?;
        Ok(Counted { shared: shared.clone(), bytes: 0 })
    }
    pub fn add(&mut self, bytes: usize) -> Outcome {
        if !self.shared.memory.take_for_requests(bytes) {
            return Err(Failure::Limit("too many large requests at once; try again later".into()));
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.shared.memory.give_back(self.bytes);
        self.shared.memory.end_watch();
    }
}

/// Returns whether the error means that a `WATCH` has ended because it was kept for too long. In
/// this case changes of its keys are not known.
pub fn is_over(error: &kvdb::Error) -> bool {
    matches!(error, kvdb::Error::Locked(_) | kvdb::Error::NoTransaction(_))
}

impl Watch {
    /// Returns whether a key has changed in the state that `now` sees. The dependencies of `now`
    /// ensure that no key changes after this check.
    pub fn is_broken(&self, now: &Transaction, s: &Session) -> Result<bool, Failure> {
        if self.expires.is_some_and(|at| is_past(at, s.now())) {
            return Ok(true);
        }
        match &self.state {
            Watched::Store(watch) => {
                let outdated = match watch.is_outdated() {
                    Err(error) if is_over(&error) => true,
                    outdated => outdated?,
                };
                if outdated {
                    return Ok(true);
                }
                // A types dictionary may have been created since the `WATCH`.
                let Some(types) = s.under_locks_of(&self.dictionary, self.space)?.types else {
                    return Ok(false);
                };
                if self.space.types.is_none() {
                    for key in &self.keys {
                        now.read_conflict_key(types, &head_key(key))?;
                        if now.view()?.get(types, &head_key(key))?.is_some() {
                            return Ok(true);
                        }
                    }
                }
                Ok(false)
            }
            Watched::Joined(before) => {
                let types = s.under_locks_of(&self.dictionary, self.space)?.types;
                for key in &self.keys {
                    if differs(before, now, self.space.strings, key)? {
                        return Ok(true);
                    }
                    let Some(types) = types else { continue };
                    if differs(before, now, types, &head_key(key))? {
                        return Ok(true);
                    }
                    let head = before.get(types, &head_key(key))?;
                    let head = head.and_then(|head| Head::decode(&head));
                    // A string in pages gets a new head with every change.
                    if let Some(head) = head.filter(|head| head.kind != Kind::Pages)
                        && let Some(all) = head.beneath()
                        && elements_differ(before, now, types, all)?
                    {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}

fn differs(
    before: &View,
    now: &Transaction,
    dict: DictionaryId,
    key: &[u8],
) -> Result<bool, Failure> {
    if now.isolation() == Isolation::Serializable {
        now.lock_key(dict, key, false)?;
    }
    Ok(before.get(dict, key)? != now.view()?.get(dict, key)?)
}

fn elements_differ(
    before: &View,
    now: &Transaction,
    types: DictionaryId,
    (start, end): (Vec<u8>, Vec<u8>),
) -> Result<bool, Failure> {
    if now.isolation() == Isolation::Serializable {
        now.lock_range(types, &start, &end, false)?;
    }
    let mut old = before.cursor(types, &start, &end)?;
    let mut new = now.view()?.cursor(types, &start, &end)?;
    loop {
        match (old.next()?, new.next()?) {
            (None, None) => return Ok(false),
            (Some(a), Some(b)) if a.key == b.key && a.value()? == b.value()? => {}
            _ => return Ok(true),
        }
    }
}
