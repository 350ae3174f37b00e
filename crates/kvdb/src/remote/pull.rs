//! Maintains a local file that has all data of the newest state, so that it can be read without
//! access to the place.

use std::path::Path;
use std::sync::Arc;

use env::{Env, Machine};
use zones::{Device, FileDevice, Zones};

use super::{LocalCopy, RemoteStore, RemoteZones};
use crate::error::{Error, Result};

/// The progress of a pull, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullProgress {
    /// Bytes of the state that are in the file.
    pub bytes: u64,
    /// Bytes of the whole state.
    pub bytes_total: u64,
}

impl RemoteStore {
    /// Makes the file on `device` the local file of the newest state, like
    /// [`RemoteStore::refresh`], and fetches all of its data. Data that the file already has is not
    /// fetched again; after an interrupted call at most the last gigabyte is. If the device is
    /// neither empty nor a cache of this store, it is left unchanged, and the call returns
    /// [`Error::Invalid`].
    pub fn pull_to(
        &self,
        device: Arc<dyn Device>,
        env: Arc<dyn Env>,
        progress: &mut dyn FnMut(PullProgress) -> Result<()>,
    ) -> Result<LocalCopy> {
        let is_own =
            |copy: &LocalCopy| copy.fork.is_none() && copy.writer.is_none() && copy.is_of(self);
        let is_empty = device.len()? == 0;
        if !is_empty && !LocalCopy::of(&*device).ok().flatten().as_ref().is_some_and(is_own) {
            return Err(Error::Invalid(format!(
                "the file holds something else than a copy of {}: name another file",
                self.place()
            )));
        }
        let copy = self.refresh(device.clone(), env)?;
        let options = RemoteZones::new(self.objects().clone()).options();
        let zones = Zones::open_remote(device, self.objects().clone(), options)?;
        let mut failure = None;
        let fetched = zones.fetch_all(&mut |bytes, bytes_total| {
            progress(PullProgress { bytes, bytes_total }).map_err(|e| {
                let ended = zones::Error::Invalid(e.to_string());
                failure = Some(e);
                ended
            })
        });
        match failure {
            Some(e) => Err(e),
            None => Ok(fetched.map(|()| copy)?),
        }
    }

    /// Calls [`RemoteStore::pull_to`] for the file at `path`, which is created if it does not
    /// exist.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use kvdb::{Kvdb, RemoteStore};
    /// # use objects::{MemoryObjects, Objects};
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("fruit.kvfs");
    /// let bucket: Arc<dyn Objects> = Arc::new(MemoryObjects::new());
    /// let fruit = RemoteStore::new(bucket, "fruit")?;
    /// let db = Kvdb::in_memory();
    /// db.push(&fruit, &mut |_| Ok(()))?;
    /// assert_eq!(fruit.pull_to_path(&path, &mut |_| Ok(()))?.generation, 1);
    /// db.open_dictionary("colour")?.insert("apple", "red")?;
    /// db.push(&fruit, &mut |_| Ok(()))?;
    /// assert_eq!(fruit.pull_to_path(&path, &mut |_| Ok(()))?.generation, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pull_to_path(
        &self,
        path: impl AsRef<Path>,
        progress: &mut dyn FnMut(PullProgress) -> Result<()>,
    ) -> Result<LocalCopy> {
        let (path, env) = (path.as_ref(), Arc::new(Machine::default()));
        // Update the file in place, so that the next call need not fetch data that an interrupted
        // call has fetched.
        let device = match path.try_exists()? {
            true => FileDevice::open(path, false)?,
            false => FileDevice::create(path)?,
        };
        self.pull_to(Arc::new(device), env, progress)
    }
}
