//! Publishes an open store to object storage, and makes a local file of one that is there.

use std::path::Path;
use std::sync::Arc;

use env::Machine;
use zones::FileDevice;
use zones::remote::RemoteStats;

use crate::db::Kvdb;
use crate::db::files::Partial;
use crate::db::publisher::PushStats;
use crate::error::Result;
use crate::remote::{LocalCopy, PushProgress, RemoteStore};

impl Kvdb {
    /// Publishes the store as of a moment during the call: everything committed before it, branches
    /// and snapshots too. Reads and writes continue during the call. Only what is not there yet is
    /// written, though every zone in use is read to tell that. `progress` is called now and then;
    /// an error of it ends the call. A call that ends early leaves the state before as it was, and
    /// the next one goes on where it was; where the last answer was lost, the new state may be
    /// there.
    ///
    /// A name that another store publishes under is an [`Error::Invalid`](crate::Error::Invalid); a
    /// publication of the same store that begins later ends this one with
    /// [`Error::Overtaken`](crate::Error::Overtaken).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use kvdb::{Kvdb, OpenOptions, RemoteStore, RemoteZones};
    /// use objects::{MemoryObjects, Objects};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// let bucket: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    /// let fruit = RemoteStore::new(bucket.clone(), "fruit")?;
    /// let db = Kvdb::in_memory();
    /// db.open_dictionary("colour")?.insert("apple", "red")?;
    /// db.push(&fruit, &mut |_| Ok(()))?;
    ///
    /// // On any machine: two requests, and what is read.
    /// let path = directory.path().join("fruit.kvfs");
    /// fruit.copy_to_path(&path)?;
    /// let remote = Some(RemoteZones::new(bucket));
    /// let copy = Kvdb::open_path_with(&path, OpenOptions { remote, ..OpenOptions::default() })?;
    /// assert_eq!(copy.open_dictionary("colour")?.get("apple")?.unwrap(), "red");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn push(
        &self,
        to: &RemoteStore,
        progress: &mut dyn FnMut(PushProgress) -> Result<()>,
    ) -> Result<PushStats> {
        self.publisher(to)?.publish(progress)
    }

    /// Returns the requests to object storage since the store was opened; `None`: all its zones are
    /// here.
    pub fn remote_stats(&self) -> Option<RemoteStats> {
        self.db.0.zones.remote_stats()
    }
}

impl RemoteStore {
    /// Makes the local file of the newest state at `path`, where nothing may be yet, see
    /// [`RemoteStore::copy_to`].
    pub fn copy_to_path(&self, path: impl AsRef<Path>) -> Result<LocalCopy> {
        let partial = Partial::begin(path.as_ref())?;
        let device = Arc::new(FileDevice::create(&partial.name)?);
        let copy = self.copy_to(device, Arc::new(Machine::default()))?;
        partial.finish()?;
        Ok(copy)
    }
}
