//! A place for stores in memory that a test controls: its clock, the delay of its lists, and an
//! action at a client's n-th request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use env::{Env, Random, Simulated};
use objects::{Condition, Key, MemoryObjects, Object, Objects, ObjectsError, Page, Part, Tag};

/// A list may lack what was created so recently.
pub const LATE: Duration = Duration::from_secs(20 * 60);

/// Objects in memory by a clock that the test advances. Lists lack new objects from time to time.
#[derive(Debug)]
pub struct Late {
    memory: MemoryObjects,
    clock: Arc<Simulated>,
    state: Mutex<(Random, HashMap<Key, Duration>, bool)>,
}

impl Late {
    pub fn new(clock: Arc<Simulated>, seed: u64) -> Late {
        let memory = MemoryObjects::with_env(clock.clone()).with_pages_of(7);
        Late { memory, clock, state: Mutex::new((Random::new(seed), HashMap::new(), false)) }
    }

    /// Sets whether lists are late from now on.
    pub fn set_late(&self, late: bool) {
        self.state.lock().unwrap().2 = late;
    }
}

impl Objects for Late {
    fn get(&self, key: &Key, part: Part) -> objects::Result<Object> {
        self.memory.get(key, part)
    }
    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> objects::Result<Tag> {
        let created = condition == Condition::Absent;
        let tag = self.memory.put(key, bytes, condition)?;
        if created {
            self.state.lock().unwrap().1.insert(key.clone(), self.clock.wall());
        }
        Ok(tag)
    }
    fn delete(&self, key: &Key) -> objects::Result<()> {
        self.memory.delete(key)
    }
    fn list(&self, prefix: &str, after: &str) -> objects::Result<Page> {
        let mut page = self.memory.list(prefix, after)?;
        let (random, created, late) = &mut *self.state.lock().unwrap();
        // The last entry of a page stays, since the next page continues from there.
        let last = page.entries.last().filter(|_| page.more).map(|entry| entry.key.clone());
        if *late && random.one_in(3) {
            let now = self.clock.wall();
            page.entries.retain(|entry| {
                let age = created.get(&entry.key).map_or(Duration::MAX, |at| now - *at);
                age >= LATE || Some(&entry.key) == last.as_ref() || random.one_in(2)
            });
        }
        Ok(page)
    }
    fn place(&self) -> String {
        "memory:".into()
    }
}

/// An action that is done before a request.
type Action = Box<dyn FnOnce() + Send>;

/// Objects as one caller sees them, who is cut off after some requests, or before one of whose
/// requests something else happens.
pub struct Seen {
    inner: Arc<dyn Objects>,
    state: Mutex<SeenState>,
}

#[derive(Default)]
struct SeenState {
    requests: u64,
    last: Option<u64>,
    action: Option<(u64, Action)>,
}

impl Seen {
    pub fn new(inner: Arc<dyn Objects>) -> Arc<Seen> {
        Arc::new(Seen { inner, state: Mutex::default() })
    }

    /// Requests after the first `requests` are not sent, as if the caller was killed.
    pub fn cut_after(&self, requests: u64) {
        self.state.lock().unwrap().last = Some(requests);
    }

    /// Runs an action before the request of this number, counted from 0.
    pub fn before(&self, request: u64, action: impl FnOnce() + Send + 'static) {
        self.state.lock().unwrap().action = Some((request, Box::new(action)));
    }

    /// The requests so far.
    pub fn requests(&self) -> u64 {
        self.state.lock().unwrap().requests
    }

    fn request(&self) -> objects::Result<&dyn Objects> {
        let mut state = self.state.lock().unwrap();
        let number = state.requests;
        state.requests += 1;
        let action = state.action.take_if(|(at, _)| *at == number);
        let is_over = state.last.is_some_and(|last| number >= last);
        drop(state);
        if let Some((_, action)) = action {
            action();
        }
        if is_over { Err(ObjectsError::Invalid("cut off".into())) } else { Ok(&*self.inner) }
    }
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seen").field("requests", &self.requests()).finish_non_exhaustive()
    }
}

impl Objects for Seen {
    fn get(&self, key: &Key, part: Part) -> objects::Result<Object> {
        self.request()?.get(key, part)
    }
    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> objects::Result<Tag> {
        self.request()?.put(key, bytes, condition)
    }
    fn delete(&self, key: &Key) -> objects::Result<()> {
        self.request()?.delete(key)
    }
    fn list(&self, prefix: &str, after: &str) -> objects::Result<Page> {
        self.request()?.list(prefix, after)
    }
    fn place(&self) -> String {
        self.inner.place()
    }
}
