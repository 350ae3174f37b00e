//! Makes the file of a fork of a store in object storage.

use std::path::Path;
use std::sync::Arc;

use env::Machine;
use zones::FileDevice;

use crate::db::files::Partial;
use crate::error::Result;
use crate::remote::{ForkOptions, LocalCopy, RemoteStore};

impl RemoteStore {
    /// Makes a fork of the newest state in a new file at `path`. See [`RemoteStore::fork_to`].
    pub fn fork_to_path(&self, path: impl AsRef<Path>, options: &ForkOptions) -> Result<LocalCopy> {
        let partial = Partial::begin(path.as_ref())?;
        let device = Arc::new(FileDevice::create(&partial.name)?);
        let copy = self.fork_to(device, Arc::new(Machine::default()), options)?;
        if let Err(e) = partial.finish() {
            // If the file already has its final name, the fork is complete and stays registered.
            if !path.as_ref().exists() {
                copy.fork.iter().for_each(|id| self.give_up_fork(*id));
            }
            return Err(e);
        }
        Ok(copy)
    }
}
