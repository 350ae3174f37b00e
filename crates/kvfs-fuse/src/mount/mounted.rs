//! A mount that is served: its parts for the rest of the crate, its end, and its handover to
//! another process.

use std::path::Path;
use std::sync::Arc;

use super::{Error, Unmount, Unmounter};
use crate::abort_watchdog::AbortWatchdog;
use crate::counters::Counters;
use crate::handler::Invalidator;
use crate::handover::{Handover, Stopper};
use crate::mounts::MountEntry;
use crate::queues::Queues;
use crate::session::{Remains, Session};
use crate::worker_pool::WorkerPool;

/// The reason why a mount is no longer served.
#[derive(Debug)]
pub enum Served {
    /// The mount has ended.
    Ended,
    /// The mount exists, and waits for [`crate::take_over`]. See [`Mounted::stopper`]. Dropping the
    /// handover ends the mount.
    Stopped(Box<Handover>),
}

/// A mounted file system and the threads that serve it. Dropping this value unmounts the file
/// system, lazily if necessary.
pub struct Mounted {
    pub(super) entry: MountEntry,
    pub(super) session: Option<Session>,
    pub(super) counters: Arc<Counters>,
    pub(super) gathers_writes: bool,
    /// The abort watchdog, which runs until the session has ended.
    pub(super) watch: Option<AbortWatchdog>,
}

impl Mounted {
    /// Returns the mount point.
    pub fn mount_point(&self) -> &Path {
        &self.entry.mount_point
    }

    /// Returns "major:minor" of the mount.
    pub fn device(&self) -> &str {
        &self.entry.device
    }

    /// Returns the counts of the requests that have arrived.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Returns whether the kernel was asked to gather writes.
    pub(crate) fn gathers_writes(&self) -> bool {
        self.gathers_writes
    }

    /// Returns whether requests come over io_uring.
    pub fn uses_rings(&self) -> bool {
        self.queues().is_some()
    }

    pub(crate) fn queues(&self) -> Option<Arc<Queues>> {
        self.session.as_ref().and_then(Session::queues)
    }

    /// Returns the threads that answer requests.
    pub(crate) fn pool(&self) -> Option<Arc<WorkerPool>> {
        self.session.as_ref().map(Session::pool)
    }

    /// Returns the invalidator for changes that do not come through the mount.
    pub fn invalidator(&self) -> Option<Arc<dyn Invalidator>> {
        let session = self.session.as_ref()?;
        Some(Arc::new(session.invalidator()))
    }

    /// Returns a handle with which another thread can end the mount while this one waits.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { entry: self.entry.clone() }
    }

    /// Returns a handle with which another thread can stop the threads that serve the mount, so
    /// that another process continues it ([`crate::take_over`]). Returns `None` if requests come
    /// over io_uring, where that is not possible.
    pub fn stopper(&self) -> Option<Stopper> {
        self.session.as_ref().and_then(Session::stopper)
    }

    /// Returns the handover that [`Mounted::wait`] would return if the threads stopped now, to
    /// check [`Handover::fits`] beforehand.
    pub fn handover(&self) -> Option<Handover> {
        let (connection, greeting) = self.session.as_ref()?.greeting();
        Some(Handover { connection, entry: self.entry.clone(), greeting, held: Vec::new() })
    }

    /// Waits until the mount has ended or its threads were stopped, and no request is in progress.
    pub fn wait(&mut self) -> Result<Served, Error> {
        let Some(session) = self.session.take() else { return Ok(Served::Ended) };
        let served = session.wait();
        self.watch = None;
        let entry = self.entry.clone();
        match served {
            Err(e) => Err(Error::Session(entry.mount_point, e)),
            Ok(None) => Ok(Served::Ended),
            Ok(Some(Remains { connection, greeting, held })) => {
                Ok(Served::Stopped(Box::new(Handover { connection, entry, greeting, held })))
            }
        }
    }

    /// Unmounts cleanly and waits. If this fails (for example, because the mount is in use), the
    /// mount stays.
    pub fn unmount(&mut self) -> Result<(), Error> {
        self.unmounter().unmount(Unmount::Clean)?;
        self.wait().map(drop)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.session.is_none() {
            return;
        }
        let unmounter = self.unmounter();
        if unmounter.unmount(Unmount::Clean).or_else(|_| unmounter.end()).is_ok()
            && let Err(e) = self.wait()
        {
            tracing::warn!("{e}");
        }
    }
}
