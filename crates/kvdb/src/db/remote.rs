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
    /// branches and snapshots. Reads and writes continue during the call. Only data that object
    /// storage lacks is written, although every zone in use is read to find this data. `progress`
    /// is called repeatedly, and the call ends if `progress` returns an error. A call that ends
    /// early leaves the previous state as it was, and the next call continues where the earlier
    /// call stopped. If the last response was lost, the new state may have been published.
    ///
    /// Fails with [`Error::Invalid`](crate::Error::Invalid) if another store is published under the
    /// name. A later publication of the same store makes this publication fail with
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

    /// Returns statistics about the requests to object storage since the store was opened, or
    /// `None` if all zones of the store are local.
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
