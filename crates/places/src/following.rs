//! A mount of a store in object storage that shows each newly published state.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use env::sync::Mutex;
use kvdb::{Error, Follower, Kvdb, LocalCopy};
use kvfs::Views;
use serde_json::{Value, json};

use crate::address::Address;
use crate::error::{self, Result};

/// The default interval at which the place is checked for a new state.
pub const EVERY: Duration = Duration::from_secs(10);

/// The store that is followed: the options `-o follow=ADDRESS,follow_every=SECONDS` of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Following {
    /// The store.
    pub of: Address,
    /// The interval at which the place is checked for a new state.
    pub every: Duration,
}

/// The thread that checks the place for new states. When it is dropped, the thread ends after the
/// request in progress.
pub struct FollowingThread {
    shared: Arc<Shared>,
    /// The channel that ends the thread when it is dropped. Nothing is ever sent through it.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The state that the thread shares with `kvfs stat`.
pub struct Shared {
    what: Following,
    status: Mutex<Status>,
}

struct Status {
    /// The state that is shown, or `None` if the place could not be opened yet.
    shown: Option<LocalCopy>,
    /// The last time at which the mount was known to show the newest state of the place.
    asked: Instant,
    /// The number of states that were shown since the mount.
    followed: u64,
    /// The reason why the last attempt failed.
    failing: Option<String>,
    /// `true` if the mount no longer follows the store.
    ended: bool,
}

impl FollowingThread {
    /// Starts to follow the store.
    pub fn start(views: &Views, db: &Kvdb, what: Following) -> Result<FollowingThread> {
        // If the place cannot be opened now, opening is tried again later.
        let follower = what.of.store(false).ok().map(|store| db.follower(&store)).transpose();
        let cannot =
            |source| error::Error::Store { doing: "follow", address: what.of.to_string(), source };
        let mut follower = follower.map_err(cannot)?;
        let every = what.every;
        let status = Status {
            shown: follower.as_ref().map(|follower| follower.copy().clone()),
            asked: Instant::now(),
            followed: 0,
            failing: None,
            ended: false,
        };
        let shared = Arc::new(Shared { what, status: Mutex::new(status) });
        let (end, ended) = mpsc::channel::<()>();
        let (own, views, db) = (shared.clone(), views.clone(), db.clone());
        let thread = std::thread::Builder::new()
            .name("kvfs-follow".into())
            .spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(every) {
                    if views.is_down() || !own.follow(&views, &db, &mut follower) {
                        break;
                    }
                }
            })
            .map_err(|e| error::Error::Thread { doing: "follow", source: e })?;
        Ok(FollowingThread { shared, end: Some(end), thread: Some(thread) })
    }

    /// Returns a weak reference to the shared state, for holders that must not keep the store open.
    pub fn shared(&self) -> Weak<Shared> {
        Arc::downgrade(&self.shared)
    }
}

impl Drop for FollowingThread {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Shows the newest state. Returns whether another attempt makes sense.
    fn follow(&self, views: &Views, db: &Kvdb, follower: &mut Option<Follower>) -> bool {
        let of = &self.what.of;
        let followed = match (&mut *follower, of.store(false)) {
            (Some(follower), _) => views.follow(follower),
            (None, Ok(store)) => {
                let opened = db.follower(&store).map_err(kvfs::Error::Store);
                opened.and_then(|opened| views.follow(follower.insert(opened)))
            }
            (None, Err(e)) => {
                self.status.lock().failing = Some(e.to_string());
                return true;
            }
        };
        let mut status = self.status.lock();
        status.shown = follower.as_ref().map(|follower| follower.copy().clone());
        match followed {
            Ok(newer) => {
                if status.failing.take().is_some() {
                    tracing::warn!("{of} is followed again");
                }
                status.asked = Instant::now();
                status.followed += u64::from(newer);
            }
            Err(e) => {
                // If a state cannot be shown by this mount, a new mount shows it.
                let anew =
                    matches!(e, kvfs::Error::Invalid(_) | kvfs::Error::Store(Error::Invalid(_)));
                if anew {
                    status.ended = true;
                    tracing::error!("{of} is shown as it was, and not followed any more: {e}");
                } else if status.failing.is_none() {
                    tracing::warn!("{of} cannot be followed, which is tried again: {e}");
                }
                status.failing = Some(e.to_string());
            }
        }
        !status.ended
    }

    /// Returns the state as JSON.
    pub fn figures(&self) -> Value {
        let status = self.status.lock();
        json!({
            "of": self.what.of.to_string(), "every_seconds": self.what.every.as_secs_f64(),
            "generation": status.shown.as_ref().map(|shown| shown.generation),
            "published": status.shown.as_ref().map(|shown| shown.published as f64 / 1e9),
            "asked_seconds_ago": status.asked.elapsed().as_secs(),
            "followed": status.followed, "failing": status.failing, "ended": status.ended,
        })
    }
}
