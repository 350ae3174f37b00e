//! The caches of one file system, which are notified of changes and asked for what they hold back.

use std::sync::{Arc, Weak};

use env::sync::RwLock;

use super::ViewId;
use super::watcher::{Running, Wait, Watcher};
use crate::attr::Ino;
use crate::error::{Error, Result};
use crate::fs::Fs;

pub(crate) struct Watchers {
    all: RwLock<Vec<Weak<dyn Watcher>>>,
    /// The file system is read-only, so that no program can have written anything.
    read_only: bool,
}

impl Watchers {
    pub fn new(read_only: bool) -> Watchers {
        Watchers { all: RwLock::default(), read_only }
    }

    /// Adds a watcher, which is notified of changes while the caller keeps it.
    pub fn add(&self, watcher: &Arc<dyn Watcher>) {
        self.all.write().push(Arc::downgrade(watcher));
    }

    /// Returns the watchers. No lock is held while watchers are called, because a watcher may wait
    /// for calls that take locks.
    fn present(&self) -> Vec<Arc<dyn Watcher>> {
        self.all.read().iter().filter_map(Weak::upgrade).collect()
    }

    /// Calls `what` with every watcher.
    pub fn tell(&self, what: impl Fn(&dyn Watcher)) {
        self.present().iter().for_each(|watcher| what(&**watcher));
    }

    /// Waits until the data that programs have written has arrived from the kernel. On an error the
    /// caller must not continue: it would miss some of that data.
    pub fn write_back(&self, wait: Wait) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let all = self.present();
        all.iter().try_for_each(|watcher| watcher.write_back(wait)).map_err(Error::NotHandedOver)
    }

    /// Announces that a name is about to be removed with everything below it. Fails with the reason
    /// of a watcher for which the name must stay.
    pub fn goes(
        &self,
        view: &ViewId,
        number: u16,
        fs: &Fs,
        at: (Ino, &[u8]),
        path: &[u8],
    ) -> Result<()> {
        let all = self.present();
        let agreed = all.iter().try_for_each(|watcher| watcher.goes(view, number, fs, at, path));
        agreed.map_err(|why| kvdb::Error::Invalid(why).into())
    }

    /// Returns those of these files of a view from which programs run.
    pub fn running(&self, number: u16, files: &[Ino]) -> Running {
        let mut all = Running::default();
        if !files.is_empty() {
            for watcher in self.present() {
                all.add(watcher.running(number, files));
            }
        }
        all
    }
}
