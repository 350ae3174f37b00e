//! Creates a separate store that begins as a copy of a store in object storage.

use std::path::Path;
use std::sync::Arc;

use env::Machine;
use kvdb::{ForkOptions, Kvdb, LocalCopy, OpenOptions};
use zones::FileDevice;

use crate::address::{Address, zones_of};
use crate::error::{Error, Result};

/// Makes `file` a fork of the store at the address, or of the snapshot that the address names.
/// `options` has no snapshot. Calls `made` when the file is complete, and abandons the fork if
/// `made` fails. If the registration of the fork cannot be removed in that case, calls `note`.
pub fn fork<E: From<Error>>(
    source: &Address,
    file: &Path,
    options: &ForkOptions,
    made: impl FnOnce() -> Result<(), E>,
    note: impl FnOnce(String),
) -> Result<LocalCopy, E> {
    let from = source.store(false)?;
    let options = ForkOptions { snapshot: source.snapshot.clone(), ..options.clone() };
    let copy = from.fork_to_path(file, &options).map_err(|e| cannot(source, e))?;
    if let Err(failure) = made().and_then(|()| Ok(go_back(source, file)?)) {
        // Remove an incomplete fork, because it would block the next attempt.
        let _ = std::fs::remove_file(file);
        if let Some(fork) = copy.fork
            && let Err(e) = from.drop_fork(fork)
        {
            note(format!("fork {fork} stays registered in {source}: {e}"));
        }
        return Err(failure);
    }
    Ok(copy)
}

/// Rolls the fork back to the snapshot that the address names.
fn go_back(source: &Address, file: &Path) -> Result {
    let Some(snapshot) = &source.snapshot else { return Ok(()) };
    let in_the_way = |source| Error::Device { path: file.to_owned(), source };
    let device = FileDevice::open(file, false).map_err(in_the_way)?;
    let remote = zones_of(&device)?;
    let options = OpenOptions { remote, ..OpenOptions::default() };
    let (db, _) = Kvdb::open(Arc::new(device), Arc::new(Machine::default()), options)
        .map_err(|e| cannot(source, e))?;
    if db.snapshot_label(snapshot).is_none() {
        return Err(Error::NoSnapshot(source.to_string()));
    }
    db.rollback(snapshot).and_then(|_| db.close()).map_err(|e| cannot(source, e))
}

fn cannot(source: &Address, error: kvdb::Error) -> Error {
    Error::Store { doing: "fork", address: source.to_string(), source: error }
}
