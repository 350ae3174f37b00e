//! Removes expired keys, in the background and in bounded steps. Readers do not wait for it: to
//! them a key ceases to exist at its deadline.
//!
//! The types dictionary holds all deadlines in order, so a step reads those that have passed and
//! one more, which determines the time of the next step. A step is one commit. Keys that a
//! transaction holds locked are left for a later step.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::dictionaries::{self, Selected};
use crate::failure::{Failure, Outcome};
use crate::keyspace::{deadline_key, head_key, is_past, parse_deadline_key};
use crate::session::{Session, Shared};

/// Limit on the keys that one step removes from a dictionary.
const STEP: usize = 128;
/// Pause between two steps while there is work, so that clients take precedence.
const BREATH: Duration = Duration::from_millis(10);
/// Longest pause: deadlines that are set while nothing is due are found after this time at the
/// latest.
const REST: Duration = Duration::from_secs(1);

/// The result of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Swept {
    /// Keys removed.
    pub removed: usize,
    /// More keys can be removed at once.
    pub more: bool,
    /// The time after the next deadline, milliseconds since 1970.
    pub next: Option<u64>,
}

/// Removes up to `most` expired keys of each dictionary of the store. A dictionary that fails does
/// not keep the others from being swept; the first failure is returned.
pub fn step(shared: &Arc<Shared>, most: usize) -> (Swept, Outcome) {
    let (mut all, mut done) = (Swept::default(), Ok(()));
    let mut session = Session::new(shared.clone(), "sweeper".into(), false, None);
    for (name, _) in dictionaries::listed(&shared.db) {
        session.dictionary = Selected::named(&name);
        match sweep(&session, most) {
            Ok(swept) => {
                all.removed += swept.removed;
                all.more |= swept.more;
                all.next = [all.next, swept.next].into_iter().flatten().min();
            }
            Err(failure) => done = done.and(Err(failure)),
        }
    }
    shared.metrics.expired.fetch_add(all.removed as u64, Relaxed);
    (all, done)
}

/// Sweeps the selected dictionary.
fn sweep(s: &Session, most: usize) -> Result<Swept, Failure> {
    let (now, mut due, mut swept) = (s.now(), Vec::new(), Swept::default());
    let Some(space) = s.existing()? else { return Ok(swept) };
    let Some(types) = space.types else { return Ok(swept) };
    let mut cursor = match s.db().view().cursor(types, b"t", b"u") {
        Err(kvdb::Error::NoDictionary(_)) => return Ok(swept),
        cursor => cursor?,
    };
    // Locked keys are skipped, but the number of deadlines that a step reads is bounded.
    for _ in 0..most * 2 {
        let Some(tuple) = cursor.next()? else { break };
        let Some((deadline, key)) = parse_deadline_key(&tuple.key) else { continue };
        if !is_past(deadline, now) {
            swept.next = Some(deadline.saturating_add(1));
            break;
        }
        if due.len() == most {
            swept.more = true;
            break;
        }
        if !s.db().is_locked(space.strings, key) && !s.db().is_locked(types, &head_key(key)) {
            due.push((deadline, Bytes::copy_from_slice(key)));
        }
    }
    if due.is_empty() {
        return Ok(swept);
    }
    swept.removed = s.change(space, due.iter().map(|(_, key)| &key[..]), |seen, batch| {
        let mut removed = 0;
        for (deadline, key) in &due {
            let live = seen.live(key)?;
            let ours = live.head.filter(|head| head.deadline == Some(*deadline));
            match ours {
                Some(head) if head.is_expired(seen.now) => {
                    seen.remove(key, &live, batch);
                    removed += 1;
                }
                Some(_) => {}
                // The key has another deadline by now, or none, or was removed with a range.
                None => batch.delete(types, deadline_key(*deadline, key)),
            }
        }
        Ok(removed)
    })?;
    Ok(swept)
}

/// The thread that sweeps. It ends when this is dropped.
pub struct Sweeping {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeping {
    pub fn start(shared: Arc<Shared>) -> std::io::Result<Sweeping> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let told = stop.clone();
        let thread = std::thread::Builder::new().name("resp-expiry".into()).spawn(move || {
            loop {
                let sweeps = shared.sweeps.load(Relaxed) && !shared.pause.is_on();
                let wait = if sweeps { rest(&shared) } else { REST };
                let mut stopped = told.0.lock();
                if !*stopped {
                    told.1.wait_for(&mut stopped, wait);
                }
                if *stopped {
                    return;
                }
            }
        })?;
        Ok(Sweeping { stop, thread: Some(thread) })
    }
}

/// Runs a step, and returns the time until the next one.
fn rest(shared: &Arc<Shared>) -> Duration {
    let (swept, done) = step(shared, STEP);
    // The store may be read-only or full. Expired keys are invisible all the same.
    if let Err(error) = done {
        tracing::debug!("expired keys were not removed: {error}");
    }
    if swept.more {
        return BREATH;
    }
    let now = shared.db.wall_clock();
    let next = swept.next.map(|at| Duration::from_millis(at).saturating_sub(now));
    next.unwrap_or(REST).clamp(BREATH, REST)
}

impl Drop for Sweeping {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
