//! Objects with the faults of networks and busy servers: lost requests and answers, requests that
//! arrive after their sender has given up, refusals, outdated lists, damaged reads, outages, and
//! delays. A seed determines the faults, and a trace records them.

mod kinds;

pub use kinds::{Event, Injected, Rates};

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::sync::Mutex;
use env::{Random, thread};

use crate::Objects;
use crate::error::{ObjectsError, Result};
use crate::key::Key;
use crate::object::{Condition, Listed, Object, Page, Part, Tag};
use crate::secret_id::SecretId;

/// The number of newest objects that a late list may lack, and of last deleted objects that it may
/// still have.
const RECENT: usize = 32;

/// Objects with faults. The same requests in the same order encounter the same faults.
#[derive(Debug)]
pub struct FaultyObjects {
    inner: Arc<dyn Objects>,
    state: Mutex<FaultState>,
}

#[derive(Debug)]
struct FaultState {
    random: Random,
    rates: Rates,
    outage: bool,
    trace: Vec<Event>,
    /// Requests that will arrive late.
    under_way: Vec<Request>,
    created: VecDeque<Key>,
    deleted: VecDeque<Listed>,
    /// The last entry of the page that was listed last.
    last_listed: Option<Listed>,
}

/// A request that changes an object.
#[derive(Clone, Debug)]
enum Request {
    Put(Key, Bytes, Condition),
    Delete(Key),
}

/// The outcome of a request that changes an object.
enum Fate {
    Answered,
    Unsure { injected: Injected, applied: bool },
}

impl FaultState {
    fn strikes(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.random.one_in(one_in)
    }

    fn note(&mut self, operation: &'static str, key: &str, injected: Injected) {
        self.trace.push(Event { operation, key: key.into(), injected });
    }

    fn remember(&mut self, request: &Request, listed: Option<Listed>) {
        match request {
            Request::Put(key, _, condition) => {
                self.deleted.retain(|listed| listed.key != *key);
                if *condition == Condition::Absent {
                    self.created.push_back(key.clone());
                }
            }
            Request::Delete(key) => {
                self.created.retain(|created| created != key);
                self.deleted.extend(listed);
            }
        }
        while self.created.len() > RECENT {
            self.created.pop_front();
        }
        while self.deleted.len() > RECENT {
            self.deleted.pop_front();
        }
    }
}

impl Request {
    fn name(&self) -> (&'static str, &Key) {
        match self {
            Request::Put(key, ..) => ("put", key),
            Request::Delete(key) => ("delete", key),
        }
    }
}

fn unsure(key: &str, injected: Injected) -> ObjectsError {
    let why = match injected {
        Injected::Outage => "there is no connection",
        Injected::Conflict => "the server answered 409",
        _ => "no answer came",
    };
    ObjectsError::Unsure { key: key.into(), why: why.into() }
}

impl FaultyObjects {
    /// Creates objects over `inner` with faults at these rates, drawn from `seed`.
    pub fn new(inner: Arc<dyn Objects>, seed: u64, rates: Rates) -> Self {
        let state = FaultState {
            random: Random::new(seed),
            rates,
            outage: false,
            trace: Vec::new(),
            under_way: Vec::new(),
            created: VecDeque::new(),
            deleted: VecDeque::new(),
            last_listed: None,
        };
        FaultyObjects { inner, state: Mutex::new(state) }
    }

    /// Sets the rates for the requests from now on.
    pub fn set_rates(&self, rates: Rates) {
        self.state.lock().rates = rates;
    }

    /// Begins an outage, in which no request is answered, or ends it.
    pub fn set_outage(&self, outage: bool) {
        self.state.lock().outage = outage;
    }

    /// Delivers all requests in flight, and returns their number.
    pub fn deliver(&self) -> usize {
        let under_way = std::mem::take(&mut self.state.lock().under_way);
        under_way.iter().for_each(|request| self.arrive(request));
        under_way.len()
    }

    /// Returns the faults that have been injected so far, in order.
    pub fn trace(&self) -> Vec<Event> {
        self.state.lock().trace.clone()
    }

    fn arrive(&self, request: &Request) {
        let (operation, key) = request.name();
        self.state.lock().note(operation, key.as_str(), Injected::Arrived);
        // The sender no longer waits for the answer.
        let _ = self.apply(request);
    }

    /// Applies a request, and returns the new tag of a put.
    fn apply(&self, request: &Request) -> Result<Option<Tag>> {
        let lists = self.state.lock().rates.late_list > 0;
        let (tag, listed) = match request {
            Request::Put(key, bytes, condition) => {
                (Some(self.inner.put(key, bytes.clone(), condition.clone())?), None)
            }
            Request::Delete(key) => {
                // If this key exists, it is the first key that begins with it.
                let page = if lists { self.inner.list(key.as_str(), "")? } else { Page::default() };
                self.inner.delete(key)?;
                (None, page.entries.into_iter().next().filter(|listed| listed.key == *key))
            }
        };
        self.state.lock().remember(request, listed);
        Ok(tag)
    }

    /// Injects the faults that may affect any request before it reaches the server.
    fn on_the_way(&self, operation: &'static str, key: &str) -> Result<()> {
        let (delay, arrived) = {
            let mut state = self.state.lock();
            let mut delay = Duration::ZERO;
            let rates = state.rates;
            if state.strikes(rates.delay) {
                let longest = u64::try_from(rates.longest_delay.as_nanos()).unwrap_or(u64::MAX);
                delay = Duration::from_nanos(state.random.below(longest));
                state.note(operation, key, Injected::Delay);
            }
            let under_way = state.under_way.len() as u64;
            let arrives = under_way > 0 && state.random.one_in(3);
            let which = state.random.below(under_way) as usize;
            (delay, arrives.then(|| state.under_way.swap_remove(which)))
        };
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        if let Some(request) = arrived {
            self.arrive(&request);
        }
        let mut state = self.state.lock();
        let rates = state.rates;
        let injected = if state.outage {
            Injected::Outage
        } else if state.strikes(rates.lost_request) {
            Injected::LostRequest
        } else if state.strikes(rates.too_many) {
            Injected::TooMany
        } else if state.strikes(rates.slow_down) {
            Injected::SlowDown
        } else {
            return Ok(());
        };
        state.note(operation, key, injected);
        let busy = |why: &str| ObjectsError::Busy { key: key.into(), why: why.into() };
        Err(match injected {
            Injected::TooMany => busy("the server answered 429"),
            Injected::SlowDown => busy("the server answered 503 SlowDown"),
            _ => unsure(key, injected),
        })
    }

    /// Sends a request that changes something.
    fn send(&self, request: Request) -> Result<Option<Tag>> {
        let (operation, key) = request.name();
        self.on_the_way(operation, key.as_str())?;
        let fate = {
            let mut state = self.state.lock();
            let rates = state.rates;
            let conditional = matches!(&request, Request::Put(_, _, c) if *c != Condition::Always);
            let fate = if state.strikes(rates.lost_answer) {
                Fate::Unsure { injected: Injected::LostAnswer, applied: true }
            } else if conditional && state.strikes(rates.conflict) {
                Fate::Unsure { injected: Injected::Conflict, applied: state.random.one_in(2) }
            } else if state.strikes(rates.late_request) {
                state.under_way.push(request.clone());
                Fate::Unsure { injected: Injected::LateRequest, applied: false }
            } else {
                Fate::Answered
            };
            if let Fate::Unsure { injected, .. } = fate {
                state.note(operation, key.as_str(), injected);
            }
            fate
        };
        match fate {
            Fate::Answered => self.apply(&request),
            Fate::Unsure { injected, applied } => {
                if applied {
                    // The answer is lost, whether the request succeeded or not.
                    let _ = self.apply(&request);
                }
                Err(unsure(key.as_str(), injected))
            }
        }
    }
}

impl Objects for FaultyObjects {
    fn get(&self, key: &Key, part: Part) -> Result<Object> {
        self.on_the_way("get", key.as_str())?;
        let mut object = self.inner.get(key, part)?;
        let mut state = self.state.lock();
        let (rates, len) = (state.rates, object.bytes.len());
        if len > 0 && state.strikes(rates.truncated) {
            object.bytes.truncate(state.random.below(len as u64) as usize);
            state.note("get", key.as_str(), Injected::Truncated);
        } else if len > 0 && state.strikes(rates.flipped) {
            let mut bytes = object.bytes.to_vec();
            let noise = state.random.number();
            bytes[(noise / 8 % len as u64) as usize] ^= 1 << (noise % 8);
            object.bytes = bytes.into();
            state.note("get", key.as_str(), Injected::Flipped);
        }
        Ok(object)
    }

    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> Result<Tag> {
        let tag = self.send(Request::Put(key.clone(), bytes, condition))?;
        Ok(tag.expect("a put that was applied has a tag"))
    }

    fn delete(&self, key: &Key) -> Result<()> {
        self.send(Request::Delete(key.clone())).map(drop)
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page> {
        self.on_the_way("list", prefix)?;
        let page = self.inner.list(prefix, after)?;
        let mut state = self.state.lock();
        let rates = state.rates;
        let mut told = page.clone();
        if state.strikes(rates.late_list) {
            let end = page.entries.last().filter(|_| page.more).map(|last| last.key.clone());
            let (created, deleted) = (state.created.clone(), state.deleted.clone());
            told.entries.retain(|e| !created.contains(&e.key) || state.random.one_in(2));
            told.entries.extend(deleted.into_iter().filter(|e| {
                let here = e.key.as_str().starts_with(prefix) && e.key.as_str() > after;
                let before_end = end.as_ref().is_none_or(|end| e.key < *end);
                here && before_end && state.random.one_in(2)
            }));
            told.entries.sort_by(|a, b| a.key.cmp(&b.key));
            told.entries.dedup_by(|a, b| a.key == b.key);
            // A page that is not the last one must have an entry from which the list continues.
            if told.entries.is_empty() && page.more {
                told = page.clone();
            }
            if told != page {
                state.note("list", prefix, Injected::LateList);
            }
        }
        let before = state.last_listed.take().filter(|last| last.key.as_str() == after);
        state.last_listed = told.entries.last().cloned();
        if let Some(before) = before
            && state.strikes(rates.repeated_entry)
        {
            told.entries.insert(0, before);
            state.note("list", prefix, Injected::RepeatedEntry);
        }
        Ok(told)
    }

    fn place(&self) -> String {
        self.inner.place()
    }

    fn secret(&self) -> Option<SecretId> {
        self.inner.secret()
    }
}
