//! A mount that publishes its store by itself, whenever something was committed. A machine that is
//! lost costs what was not published by then.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvdb::{Error, Kvdb, Publisher, PushStats};
use kvfs::Views;
use serde_json::{Value, json};

use crate::address::Address;
use crate::failures;
use crate::output::{Failure, Outcome};

/// How often it looks whether there is something to publish, where nothing else is asked for.
pub const EVERY: Duration = Duration::from_secs(10);

/// How long an unmount publishes what was committed last.
const LAST: Duration = Duration::from_secs(60);

/// What `-o publish=ADDRESS,publish_every=SECONDS` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    pub to: Address,
    pub every: Duration,
}

/// The thread that does it. Dropped, it ends, and a publication of its own is cut off.
pub struct Publishing {
    shared: Arc<Shared>,
    /// Never sent to: it ends when this is dropped.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread shares with those who ask how it goes, or publish to the same address.
pub struct Shared {
    what: Publication,
    db: Kvdb,
    /// Held during a publication. `None`: the place was not to be opened yet.
    publisher: Mutex<Option<Publisher>>,
    status: Mutex<Status>,
    /// When a publication that is under way is cut off.
    deadline: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Status {
    /// The last publication, and when it ended.
    last: Option<(PushStats, Instant)>,
    publications: u64,
    objects: u64,
    bytes: u64,
    /// Why the last try failed.
    failing: Option<String>,
    /// Another one publishes the store: this one does no more by itself.
    overtaken: bool,
}

impl Publishing {
    /// Publishes the store from here on, unless the mount was shut down: what was not synced by
    /// then is to go.
    pub fn start(db: &Kvdb, views: &Views, what: Publication) -> Outcome<Publishing> {
        let shared = Arc::new(Shared {
            what,
            db: db.clone(),
            publisher: Mutex::default(),
            status: Mutex::default(),
            deadline: Mutex::default(),
        });
        let (end, ended) = mpsc::channel::<()>();
        let (own, views) = (shared.clone(), views.clone());
        let thread = std::thread::Builder::new()
            .name("kvfs-publish".into())
            .spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(own.what.every) {
                    if own.is_due() && !views.is_down() {
                        let _ = own.publish();
                    }
                }
            })
            .map_err(|e| Failure::io("cannot start to publish", &e))?;
        Ok(Publishing { shared, end: Some(end), thread: Some(thread) })
    }

    /// Fails where the store cannot be published. That the place is not to be reached now is no
    /// reason: files come first, and it is tried again.
    pub fn check(db: &Kvdb, what: &Publication) -> Outcome {
        let Ok(store) = what.to.store(false) else { return Ok(()) };
        match db.publisher(&store).check() {
            Err(Error::Objects(e)) if e.may_be_retried() => Ok(()),
            checked => checked
                .map_err(|e| failures::of_database(format!("cannot publish to {}", what.to), e)),
        }
    }

    /// What those have who do not keep the store open.
    pub fn shared(&self) -> Weak<Shared> {
        Arc::downgrade(&self.shared)
    }

    /// Publishes a last time what was committed since, of a store that is about to be closed. That
    /// takes a minute at most, and nothing where the place was not to be reached before.
    pub fn finish(mut self) {
        let failed = lock(&self.shared.status).failing.is_some();
        if failed {
            return tracing::warn!("{} lacks the last changes", self.shared.what.to);
        }
        *lock(&self.shared.deadline) = Some(Instant::now() + LAST);
        drop(self.end.take());
        self.join();
        let failed = lock(&self.shared.status).failing.is_some();
        if !failed && self.shared.is_due() {
            let _ = self.shared.publish();
        }
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        *lock(&self.shared.deadline) = Some(Instant::now());
        drop(self.end.take());
        self.join();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn is_due(&self) -> bool {
        // One lock at a time: a publication holds the publisher's for long.
        let overtaken = lock(&self.status).overtaken;
        !overtaken && lock(&self.publisher).as_ref().is_none_or(Publisher::is_due)
    }

    /// Whether it publishes to this address.
    pub fn is_to(&self, address: &Address) -> bool {
        self.what.to.is_same(address)
    }

    /// Publishes now because a user says so, who takes the right to from whoever has it: what was
    /// overtaken publishes by itself again from here on.
    pub fn publish_by_hand(&self) -> kvdb::Result<PushStats> {
        lock(&self.publisher).iter_mut().for_each(Publisher::take);
        self.publish()
    }

    fn try_to_publish(&self) -> kvdb::Result<PushStats> {
        let mut publisher = lock(&self.publisher);
        let publisher = match &mut *publisher {
            Some(publisher) => publisher,
            // A folder is not made: what it should be in may not be mounted.
            nothing => {
                let store = self.what.to.store(false);
                let store = store.map_err(|failure| Error::Invalid(failure.message))?;
                nothing.insert(self.db.publisher(&store))
            }
        };
        publisher.publish(&mut |_| match *lock(&self.deadline) {
            Some(deadline) if Instant::now() >= deadline => {
                Err(Error::Invalid("the mount has ended".into()))
            }
            _ => Ok(()),
        })
    }

    fn publish(&self) -> kvdb::Result<PushStats> {
        let to = &self.what.to;
        let outcome = self.try_to_publish();
        let mut status = lock(&self.status);
        match &outcome {
            Ok(stats) => {
                if status.failing.take().is_some() {
                    tracing::warn!("{to} is published again: generation {}", stats.generation);
                }
                status.last = Some((*stats, Instant::now()));
                status.overtaken = false;
                status.publications += 1;
                status.objects += stats.objects;
                status.bytes += stats.bytes;
            }
            Err(e) => {
                status.overtaken |= matches!(e, Error::Overtaken(_));
                if status.overtaken {
                    tracing::error!(
                        "{to} is published by another machine or mount, and no more by this one; \
                         `kvfs push` takes that back: {e}"
                    );
                } else if status.failing.is_none() {
                    tracing::warn!("{to} cannot be published, which is tried again: {e}");
                }
                status.failing = Some(e.to_string());
            }
        }
        outcome
    }

    /// How it goes, as JSON.
    pub fn figures(&self) -> Value {
        // One that is published at the moment is not waited for: what it has is not there yet.
        let is_due = match self.publisher.try_lock() {
            Ok(publisher) => publisher.as_ref().is_none_or(Publisher::is_due),
            Err(_) => true,
        };
        let status = lock(&self.status);
        let last = status.last.as_ref();
        json!({
            "to": self.what.to.to_string(), "every_seconds": self.what.every.as_secs_f64(),
            "generation": last.map(|(stats, _)| stats.generation),
            "seconds_ago": last.map(|(_, at)| at.elapsed().as_secs()),
            "due": is_due, "publications": status.publications, "objects": status.objects,
            "bytes": status.bytes, "failing": status.failing, "overtaken": status.overtaken,
        })
    }
}
