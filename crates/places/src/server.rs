//! The check of a server before the first store is published there, because heads depend on
//! conditions that not every server keeps.

use kvdb::RemoteStore;
use objects::Objects;

use crate::address::{Address, open_as_it_is};
use crate::error::{Error, Result};

/// Returns whether the server has to be checked before a store is published. This is so if the
/// store is in a bucket that has no store of this name yet.
pub fn needs_trial(to: &Address, store: &RemoteStore) -> Result<bool> {
    Ok(to.is_in_bucket() && store.head().map_err(|e| cannot(to, e))?.is_none())
}

/// Checks a server by a few hundred requests. Returns an error if the server does not keep the
/// conditions on which heads depend.
pub fn trial(to: &Address) -> Result {
    // Test the ranges of a server on raw bytes.
    let objects = open_as_it_is(&to.place, false)?;
    match probed(&*objects).map_err(|e| cannot(to, e.into()))? {
        None => Ok(()),
        Some(wrong) => Err(Error::Unsafe(wrong)),
    }
}

fn cannot(to: &Address, source: kvdb::Error) -> Error {
    Error::Store { doing: "use", address: to.to_string(), source }
}

/// Returns a sentence about a defect of the server, or `None` if none was found.
#[cfg(feature = "s3")]
fn probed(objects: &dyn Objects) -> Result<Option<String>, objects::ObjectsError> {
    let found = objects_s3::probe(objects, "")?;
    Ok((!found.is_fine()).then(|| found.verdict()))
}

#[cfg(not(feature = "s3"))]
fn probed(_: &dyn Objects) -> Result<Option<String>, objects::ObjectsError> {
    Ok(None)
}
