//! A mount that publishes its store automatically after commits. If the machine is lost, only
//! changes that were not yet published are lost.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use env::sync::Mutex;
use kvdb::{Error, Kvdb, Publisher, PushProgress, PushStats, RemoteStore};
use kvfs::Views;
use serde_json::{Value, json};

use crate::address::Address;
use crate::error::{self, Result};
use crate::host::host_name;

/// The default interval at which the thread checks for unpublished commits.
pub const EVERY: Duration = Duration::from_secs(10);

/// The longest time for which an unmount publishes the last commits.
const LAST: Duration = Duration::from_secs(60);

/// The place where a store is published: the options `-o publish=ADDRESS,publish_every=SECONDS` of
/// a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The address at which the store is published.
    pub to: Address,
    /// The interval at which the thread checks for unpublished commits.
    pub every: Duration,
    /// `true` if syncs return only when the commits have also reached object storage.
    pub syncs_there: bool,
}

/// The thread that publishes. When it is dropped, the thread ends, and a publication that it has
/// begun is cut off.
pub struct Publishing {
    shared: Arc<Shared>,
    /// The channel that ends the thread when it is dropped. Nothing is ever sent through it.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The state that the thread shares with `kvfs stat` and `kvfs push`.
pub struct Shared {
    what: Publication,
    db: Kvdb,
    /// The publisher, locked during a publication, or `None` if the place could not be opened yet.
    publisher: Mutex<Option<Publisher>>,
    status: Mutex<Status>,
    /// The time at which the publication in progress is cut off.
    deadline: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Status {
    /// The result of the last publication, and the time at which it ended.
    last: Option<(PushStats, Instant)>,
    publications: u64,
    objects: u64,
    bytes: u64,
    /// The reason why the last attempt failed.
    failing: Option<String>,
    /// `true` if another publisher has taken over the store. Then this publisher no longer
    /// publishes automatically.
    overtaken: bool,
}

impl Status {
    /// Returns the error that the place lacks changes if the last publication has failed.
    fn lacks(&self, to: &Address) -> Option<error::Error> {
        let (address, displaced) = (to.to_string(), self.overtaken);
        let why = self.failing.clone();
        why.map(|why| error::Error::NotPublished { address, why, displaced })
    }
}

/// Publishes an open store once and returns the publisher, which the caller closes when nothing
/// more has to be published. If `take` is set, publishes even if the store has since been written
/// at its address.
pub fn push(
    db: &Kvdb,
    to: &RemoteStore,
    take: bool,
    progress: &mut dyn FnMut(PushProgress) -> kvdb::Result<()>,
) -> kvdb::Result<(Publisher, PushStats)> {
    let mut publisher = publisher(db, to)?;
    if take {
        publisher.take_from_writer();
    }
    let published = publisher.publish(progress)?;
    Ok((publisher, published))
}

fn of_store(doing: &'static str, address: &Address, source: Error) -> error::Error {
    error::Error::Store { doing, address: address.to_string(), source }
}

impl Publishing {
    /// Starts to publish the store. After GOINGDOWN nothing is published, because unsynced changes
    /// must be dropped.
    pub fn start(db: &Kvdb, views: &Views, what: Publication) -> Result<Publishing> {
        // If the place cannot be opened now, each publication tries to open it again.
        let publisher = match (what.to.store(false), what.syncs_there) {
            (Err(failure), true) => return Err(failure),
            (store, _) => store.ok().and_then(|store| publisher_to(db, &store).ok()),
        };
        let shared = Arc::new(Shared {
            what,
            db: db.clone(),
            publisher: Mutex::new(publisher),
            status: Mutex::default(),
            deadline: Mutex::default(),
        });
        if shared.what.syncs_there {
            shared.sync_there()?;
        }
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
            .map_err(|e| error::Error::Thread { doing: "publish", source: e })?;
        Ok(Publishing { shared, end: Some(end), thread: Some(thread) })
    }

    /// Returns an error if the store cannot be published at this place. A place that cannot be
    /// reached now, or a store that was written at its address, is not an error: serving files has
    /// priority, and publication is tried again. But if the store is written through this file at
    /// its address, and another file has taken this role, the file accepts no more changes.
    pub fn check(db: &Kvdb, what: &Publication) -> Result {
        let Ok(store) = what.to.store(false) else { return Ok(()) };
        let cannot = |source| of_store("publish to", &what.to, source);
        let publisher = db.publisher(&store).map_err(cannot)?;
        match publisher.check() {
            Err(Error::Objects(e)) if e.may_be_retried() => Ok(()),
            Err(e @ (Error::OpenElsewhere { .. } | Error::WrittenElsewhere(_)))
                if !publisher.is_writer() =>
            {
                tracing::error!("nothing is published to {}: {e}", what.to);
                Ok(())
            }
            checked => checked.map_err(cannot),
        }
    }

    /// Returns a weak reference to the shared state, for holders that must not keep the store open.
    pub fn shared(&self) -> Weak<Shared> {
        Arc::downgrade(&self.shared)
    }

    /// Makes syncs return as soon as commits are durable on this machine. The store is about to be
    /// closed and is no longer used.
    pub fn sync_here(&self) {
        self.shared.publisher.lock().iter_mut().for_each(Publisher::sync_here);
    }

    /// Publishes the last commits of a store that is about to be closed. This takes at most a
    /// minute, and is skipped if the last publication has failed. An error means that the place
    /// lacks some of the commits, or that the store stays open for writing by this machine. The
    /// error is also logged.
    pub fn finish(mut self) -> Result {
        let shared = self.shared.clone();
        let lacks = || shared.status.lock().lacks(&shared.what.to);
        // The next machine has to be able to write the store at its address, so another attempt is
        // worthwhile.
        if let (Some(lacks), false) = (lacks(), shared.is_writer()) {
            tracing::warn!("{} lacks the last changes", shared.what.to);
            return Err(lacks);
        }
        *shared.deadline.lock() = Some(Instant::now() + LAST);
        drop(self.end.take());
        self.join();
        if shared.is_due() {
            let _ = shared.publish();
        }
        match lacks() {
            None => shared.close(),
            Some(lacks) => Err(lacks),
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
        *self.shared.deadline.lock() = Some(Instant::now());
        drop(self.end.take());
        self.join();
    }
}

/// Creates a publisher of a store with files. See [`kvfs::rehearse`].
pub fn publisher(db: &Kvdb, store: &RemoteStore) -> kvdb::Result<Publisher> {
    let mut publisher = db.publisher(store)?;
    publisher.rehearse(Box::new(kvfs::rehearse));
    Ok(publisher)
}

/// Creates the publisher of a mount. While the store is mounted, the head says that it is open.
fn publisher_to(db: &Kvdb, store: &RemoteStore) -> kvdb::Result<Publisher> {
    let mut publisher = publisher(db, store)?;
    publisher.stay_open(&host_name());
    Ok(publisher)
}

impl Shared {
    fn is_due(&self) -> bool {
        // Hold only one lock at a time, because a publication holds the lock of the publisher for a
        // long time.
        let overtaken = self.status.lock().overtaken;
        !overtaken && self.publisher.lock().as_ref().is_none_or(Publisher::is_due)
    }

    /// Makes syncs wait until the commits have reached object storage.
    fn sync_there(self: &Arc<Self>) -> Result {
        let cannot = |source| of_store("sync to", &self.what.to, source);
        let own = Arc::downgrade(self);
        let publish = move || match own.upgrade() {
            Some(shared) => shared.publish().map(drop),
            None => Err(Error::Invalid("the mount has ended".into())),
        };
        match &mut *self.publisher.lock() {
            Some(publisher) => publisher.sync_remotely(Box::new(publish)).map_err(cannot),
            None => Err(cannot(Error::NoStore(self.what.to.to_string()))),
        }
    }

    /// Returns whether the store is published at this address.
    pub fn is_to(&self, address: &Address) -> bool {
        self.what.to.is_same(address)
    }

    /// Publishes the store now, at the request of a user. This takes the right to publish from any
    /// other publisher, so a mount that was overtaken publishes automatically again afterwards.
    pub fn publish_by_hand(&self) -> kvdb::Result<PushStats> {
        self.publisher.lock().iter_mut().for_each(Publisher::take);
        self.publish()
    }

    fn try_to_publish(&self) -> kvdb::Result<PushStats> {
        let mut publisher = self.publisher.lock();
        let publisher = match &mut *publisher {
            Some(publisher) => publisher,
            // Do not create a missing folder: the file system that should contain it may not be
            // mounted.
            nothing => {
                let store = self.what.to.store(false);
                let store = store.map_err(|e| Error::Invalid(e.to_string()))?;
                nothing.insert(publisher_to(&self.db, &store)?)
            }
        };
        publisher.publish(&mut |_| match *self.deadline.lock() {
            Some(deadline) if Instant::now() >= deadline => {
                Err(Error::Invalid("the mount has ended".into()))
            }
            _ => Ok(()),
        })
    }

    fn is_writer(&self) -> bool {
        self.publisher.lock().as_ref().is_some_and(Publisher::is_writer)
    }

    /// Allows another machine to write a store that this machine has written at its address.
    fn close(&self) -> Result {
        let closed = self.publisher.lock().as_mut().map_or(Ok(()), Publisher::close);
        closed.map_err(|source| {
            let to = &self.what.to;
            tracing::warn!("{to} stays open for writing by this machine: {source}");
            of_store("close", to, source)
        })
    }

    fn publish(&self) -> kvdb::Result<PushStats> {
        let to = &self.what.to;
        let outcome = self.try_to_publish();
        // Hold only one lock at a time, as above.
        let is_writer = outcome.is_err() && self.is_writer();
        let mut status = self.status.lock();
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
                status.overtaken |= matches!(
                    e,
                    Error::Overtaken(_) | Error::OpenElsewhere { .. } | Error::WrittenElsewhere(_)
                );
                if status.overtaken && is_writer {
                    tracing::error!("{to} is written by another machine or mount now: {e}");
                } else if status.overtaken {
                    tracing::error!(
                        "{to} is published by another machine or mount, and no more by this one: \
                         {e}"
                    );
                } else if status.failing.is_none() {
                    tracing::warn!("{to} cannot be published, which is tried again: {e}");
                }
                status.failing = Some(e.to_string());
            }
        }
        outcome
    }

    /// Returns the state as JSON.
    pub fn figures(&self) -> Value {
        // Do not wait for a publication in progress. Its changes are not published yet.
        let (is_due, is_writer) = match self.publisher.try_lock() {
            Some(publisher) => (
                publisher.as_ref().is_none_or(Publisher::is_due),
                publisher.as_ref().map(Publisher::is_writer),
            ),
            None => (true, None),
        };
        let status = self.status.lock();
        let last = status.last.as_ref();
        json!({
            "to": self.what.to.to_string(), "every_seconds": self.what.every.as_secs_f64(),
            "generation": last.map(|(stats, _)| stats.generation),
            "seconds_ago": last.map(|(_, at)| at.elapsed().as_secs()),
            "written_at_address": is_writer, "due": is_due,
            "durability": if self.what.syncs_there { "remote" } else { "local" },
            "publications": status.publications, "objects": status.objects,
            "bytes": status.bytes, "failing": status.failing, "overtaken": status.overtaken,
        })
    }
}
