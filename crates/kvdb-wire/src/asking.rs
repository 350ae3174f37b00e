//! Requests of a client's views, with retries. A request is sent again after its connection has
//! failed, for as long as the client waits for the server, and again for the keys that an answer
//! left out. Once the wait has been in vain, one thread probes for the server.
//!
//! A server that answers probes may take any time over a request. It may vanish without a word
//! then, as a machine does that loses its power, so it is probed repeatedly.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use env::Instant;
use env::sync::{Condvar, Mutex};

use crate::body::MAX_KEYS;
use crate::client::{Client, Connection};
use crate::error::{Error, Result};
use crate::reach::Next;
use crate::reply::Reply;

/// Pauses before a failed request is sent again: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// The initial and the longest time that a request waits before the client probes the server. The
/// time doubles whenever the server responds, since sending the request may take long.
const ATTEMPTS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(600));
/// The time for one attempt to reach a server.
const PROBE: Duration = Duration::from_secs(5);
/// Approximate limit of the bytes of keys in one request.
const KEY_BYTES: usize = 1 << 20;

impl Client {
    /// Calls `call` again until its connection does not fail, or the wait for the server is over.
    pub(crate) fn retried(&self, call: impl FnMut(Instant) -> Result<Reply>) -> Result<Reply> {
        self.retried_until(self.deadline()?, (true, true), call)
    }

    /// Like [`Client::retried`], for a call that has less time than the wait for the server. If
    /// this call fails, other calls do not fail with it.
    pub(crate) fn retried_within(
        &self,
        time: Duration,
        call: impl FnMut(Instant) -> Result<Reply>,
    ) -> Result<Reply> {
        let (own, all) = (Instant::now() + time, self.deadline()?);
        self.retried_until(own.min(all), (false, false), call)
    }

    /// Returns the time of a call's first attempt.
    fn first_attempt(&self) -> Duration {
        match self.options.timeout {
            Duration::ZERO => ATTEMPTS.0,
            timeout => timeout.min(ATTEMPTS.0),
        }
    }

    /// If `ends_all`, all calls fail when this one does. If `extends`, the call waits beyond the
    /// deadline as long as the server answers greetings.
    fn retried_until(
        &self,
        mut deadline: Instant,
        (ends_all, extends): (bool, bool),
        mut call: impl FnMut(Instant) -> Result<Reply>,
    ) -> Result<Reply> {
        let mut pause = PAUSES.0;
        let first = self.first_attempt();
        let mut most = first;
        loop {
            let begun = Instant::now();
            let time = deadline.saturating_duration_since(begun).min(most);
            // The rest of the time is reserved for the probe.
            let probe = if extends { PROBE.min(time / 4) } else { Duration::ZERO };
            let until = begun + (time - probe);
            // An attempt longer than the first one requires a server that can be reached, so it is
            // watched.
            let watch = (most > first).then(|| self.watch(first));
            let answer = call(until);
            drop(watch);
            let Err(e) = &answer else {
                self.reachable.answered();
                return answer;
            };
            if !e.is_of_connection() {
                self.reachable.answered();
                return answer;
            }
            if extends && Instant::now() >= until && self.is_there(until, probe, e) {
                // The server is slow, but not gone. There is no known limit of the time that it may
                // take.
                tracing::debug!("asked again of a server that is there: {e}");
                self.reachable.answered();
                most = (most * 2).min(ATTEMPTS.1);
                deadline = self.deadline()?.max(Instant::now() + most);
                continue;
            }
            if extends {
                // If the server was reachable and no longer is, this call waits as all others do.
                match self.deadline() {
                    // A connection that broke before the time was over begins the common wait.
                    Ok(all) if Instant::now() < until => deadline = all,
                    Ok(all) => deadline = deadline.min(all),
                    Err(_) => return answer,
                }
            }
            match self.reachable.failed(e, pause, deadline, ends_all) {
                Next::Again => {}
                Next::Fails => return answer,
                Next::SaysGone => {
                    // Other requests on this connection may have later deadlines: end them, too.
                    self.end_connection(e);
                    self.look_for_server();
                    return answer;
                }
            }
            tracing::debug!("asked again after {pause:?}: {e}");
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Returns whether the server answers a greeting within `time` after `from`, if only that there
    /// is no place. Ends a connection that is older than `from`: the server may no longer know it,
    /// and the connection distinguishes a request that is sent again from its first copy.
    fn is_there(&self, from: Instant, time: Duration, why: &Error) -> bool {
        let is_old = |one: &Arc<Connection>| one.made < from;
        if let Some(connection) = self.current.peek().filter(is_old) {
            connection.fail(why);
        }
        matches!(self.connection(from + time), Ok(_) | Err(Error::NoPlace(_)))
    }

    /// Starts a thread that probes the server each time that this time has passed, until the watch
    /// is dropped. It ends the current connection if there is no answer.
    fn watch(&self, time: Duration) -> Watch {
        let watch = Watch(Arc::default());
        let (client, over) = (self.own.clone(), watch.0.clone());
        let watches = env::thread::Builder::new().name("wire-watch".into());
        if let Err(e) = watches.spawn(move || watch_server(&client, &over, time)) {
            // Without the thread, the call waits as long as its attempt may take.
            tracing::warn!("the server is not watched: {e}");
        }
        watch
    }

    /// Starts a thread that probes for the server until it answers.
    pub(crate) fn look_for_server(&self) {
        let client = self.own.clone();
        let looks = env::thread::Builder::new().name("wire-probe".into());
        if let Err(e) = looks.spawn(move || look_for_server(&client)) {
            // Without the thread, each call tries by itself.
            tracing::warn!("the server is not looked for: {e}");
            self.reachable.answered();
        }
    }
}

/// Watches the server over a request that takes long, until this is dropped.
struct Watch(Arc<Over>);

/// Set when a watch is over.
#[derive(Default)]
struct Over {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Drop for Watch {
    fn drop(&mut self) {
        *self.0.is_over.lock() = true;
        self.0.changed.notify_all();
    }
}

impl Over {
    /// Waits for this time. Returns whether the watch is over before.
    fn within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut is_over = self.is_over.lock();
        while !*is_over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut is_over, left);
        }
        true
    }
}

fn watch_server(client: &Weak<Client>, over: &Over, time: Duration) {
    while !over.within(time) {
        let Some(client) = client.upgrade() else { return };
        let current = client.current.peek();
        // The request may fill the line, so that a probe takes long, too. All calls that wait probe
        // together: the server has few places for connections.
        let (begun, until) = (Instant::now(), Instant::now() + time);
        let probe = || client.probe(until).map(|()| Instant::now());
        if let Err(e) = client.probed.get(until, |at| *at >= begun, probe) {
            tracing::debug!("the server is not there any more: {e}");
            return current.iter().for_each(|connection| connection.fail(&e));
        }
    }
}

fn look_for_server(client: &Weak<Client>) {
    let mut pause = PAUSES.0;
    loop {
        env::thread::sleep(pause);
        pause = (pause * 2).min(PAUSES.1);
        let Some(client) = client.upgrade().filter(|client| client.reachable.is_gone()) else {
            return;
        };
        match client.connection(Instant::now() + PROBE) {
            Ok(_) => return client.reachable.answered(),
            Err(e) => tracing::debug!("the server is not there yet: {e}"),
        }
    }
}

/// Returns the longest prefix of `keys` that fits one request.
pub(crate) fn first_keys(keys: &[Bytes]) -> Vec<Bytes> {
    let mut bytes = 0;
    let fitting = keys.iter().take(MAX_KEYS).take_while(|key| {
        bytes += key.len();
        bytes <= KEY_BYTES.max(key.len())
    });
    fitting.cloned().collect()
}

/// Returns the values of `keys`, of which some are `found`. Each other key is requested once, even
/// if it occurs several times. An answer may contain only the first values, so it asks again until
/// all are known.
pub(crate) fn with_missing(
    keys: &[Bytes],
    mut found: Vec<Option<Option<Bytes>>>,
    mut ask: impl FnMut(&[Bytes]) -> kvdb::Result<Vec<Option<Bytes>>>,
) -> kvdb::Result<Vec<Option<Bytes>>> {
    let mut places: Vec<usize> = (0..keys.len()).filter(|&i| found[i].is_none()).collect();
    while !places.is_empty() {
        let mut seen = HashSet::new();
        let missing = places.iter().map(|&i| &keys[i]).filter(|key| seen.insert(*key));
        let missing: Vec<Bytes> = missing.cloned().collect();
        let values = ask(&missing)?;
        let known: HashMap<&Bytes, Option<Bytes>> = missing.iter().zip(values).collect();
        places.retain(|&place| match known.get(&keys[place]) {
            Some(value) => {
                found[place] = Some(value.clone());
                false
            }
            None => true,
        });
    }
    Ok(found.into_iter().map(Option::flatten).collect())
}
