//! Publishes an open store to object storage, and makes local files of published stores.

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
    /// Publishes the store as of a moment during the call, with all commits before the call,
    /// branches and snapshots. Reads and writes continue during the call. Only data that is missing
    /// there is written, though every zone in use is read to find that out. `progress` is called at
    /// times; if it returns an error, the call ends. A call that ends early leaves the previous
    /// state as it was, and the next call continues where it stopped; if the last response was
    /// lost, the new state may have been published.
    ///
    /// If another store is published under the name, the error is
    /// [`Error::Invalid`](crate::Error::Invalid). A later publication of the same store ends this
    /// one with [`Error::Overtaken`](crate::Error::Overtaken).
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

    /// Returns the requests to object storage since the store was opened, or `None` if all its
    /// zones are local.
    pub fn remote_stats(&self) -> Option<RemoteStats> {
        self.db.engine.zones.remote_stats()
    }
}

impl RemoteStore {
    /// Makes the local file of the newest state at `path`, which must not exist. See
    /// [`RemoteStore::copy_to`].
    pub fn copy_to_path(&self, path: impl AsRef<Path>) -> Result<LocalCopy> {
        let partial = Partial::begin(path.as_ref())?;
        let device = Arc::new(FileDevice::create(&partial.name)?);
        let copy = self.copy_to(device, Arc::new(Machine::default()))?;
        partial.finish()?;
        Ok(copy)
    }
}
