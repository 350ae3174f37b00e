//! The periodic work over all views.

use std::ops::ControlFlow;
use std::sync::Arc;

use env::sync::atomic::{AtomicBool, Ordering};
use env::sync::{Mutex, MutexGuard};
use kvdb::{Isolation, Kvdb};

use super::open_views::OpenViews;
use super::opener::Opener;
use crate::attr::Ino;
use crate::fs::Fs;
use crate::fs::ticker::Ticker;

/// The number of orphans that a commit removes itself. More orphans are left to the background
/// thread.
const ORPHANS_AT_COMMIT: usize = 64;

pub(crate) struct Background {
    db: Kvdb,
    mainline: Fs,
    open: Arc<OpenViews>,
    opener: Arc<Opener>,
    /// Orphans that ended transactions have left and that are open nowhere, to be removed from the
    /// view to which the transaction was committed.
    orphans: Mutex<Vec<(Fs, Vec<Ino>)>>,
    ticker: Arc<Ticker>,
    /// The lock that is held while the periodic work runs.
    ticking: Mutex<()>,
    down: AtomicBool,
}

impl Drop for Background {
    fn drop(&mut self) {
        self.ticker.stop();
    }
}

impl Background {
    pub fn new(db: Kvdb, mainline: Fs, open: Arc<OpenViews>, opener: Arc<Opener>) -> Background {
        Background {
            db,
            mainline,
            open,
            opener,
            orphans: Mutex::default(),
            ticker: Arc::default(),
            ticking: Mutex::new(()),
            down: AtomicBool::new(false),
        }
    }

    /// Starts the thread that calls [`Background::tick`], unless the environment runs inline.
    pub fn start(self: &Arc<Self>) {
        let mainline = &self.mainline.core;
        if mainline.env.inline() || mainline.options.read_only {
            return;
        }
        let pause = mainline.options.flush_interval / 2;
        let tick = |background: Arc<Background>| {
            background.tick();
            ControlFlow::Continue(())
        };
        if let Err(e) = self.ticker.start("kvfs-views", pause, Arc::downgrade(self), tick) {
            tracing::warn!("no thread for the views, idle ones keep their memory: {e}");
        }
    }

    /// Does the periodic work; see [`super::Views::tick`].
    pub fn tick(&self) {
        if self.is_down() {
            return;
        }
        let _ticking = self.ticking.lock();
        for entry in self.open.all() {
            let Some(transaction) = &entry.transaction else {
                if let Err(e) = entry.fs.tick() {
                    tracing::warn!(
                        "committing what was written to {:?} failed, will be tried again: {e}",
                        entry.view
                    );
                }
                continue;
            };
            if self.db.transaction(transaction.id()).is_err() {
                entry.fs.core.freeze_lock.freeze().end();
                self.opener.end_view(&entry, None);
            } else if transaction.isolation() == Isolation::Serializable {
                // The commit might wait for locks; users of the transaction do that themselves.
            } else if let Err(e) = entry.fs.tick() {
                tracing::debug!(
                    id = transaction.id().0,
                    "a transaction did not take what waits in memory, will be tried again: {e}"
                );
            }
        }
        let orphans = std::mem::take(&mut *self.orphans.lock());
        orphans.into_iter().for_each(|(fs, orphans)| fs.remove_orphans_or_leave(orphans));
    }

    /// Waits for the periodic work that is in progress; none starts until the guard is dropped.
    pub fn pause(&self) -> MutexGuard<'_, ()> {
        self.ticking.lock()
    }

    /// Removes orphans that a commit has left in a view, if they are many in the background.
    pub fn remove_orphans(&self, fs: &Fs, orphans: Vec<Ino>) {
        if orphans.len() > ORPHANS_AT_COMMIT && !self.mainline.core.env.inline() {
            self.leave_orphans(fs, orphans);
            self.ticker.wake();
            return;
        }
        fs.remove_orphans_or_leave(orphans);
    }

    /// Leaves orphans to the next periodic work.
    pub fn leave_orphans(&self, fs: &Fs, orphans: Vec<Ino>) {
        self.orphans.lock().push((fs.clone(), orphans));
    }

    /// Makes the work that is in progress the last: the file system was shut down.
    pub fn go_down(&self) {
        self.down.store(true, Ordering::Release);
    }

    /// Returns whether the file system was shut down.
    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }
}
