//! Objects by key with conditions: the interface of an object store such as a bucket of S3, and
//! places that provide it on one machine.
//!
//! - [`Objects`] is the interface. Its calls block, and distinguish the cases that a caller must
//!   handle: above all errors after which nothing was changed, and [`ObjectsError::Unsure`].
//! - [`DirectoryObjects`] keeps objects in a folder that any number of processes share.
//! - [`MemoryObjects`] keeps objects in memory. [`FaultyObjects`] adds the faults of a network and
//!   a busy server to any place, reproducibly from a seed.
//! - `EncryptedObjects` encrypts objects before they are sent (feature `encryption`).
//! - [`CountObjects`] counts requests and bytes, [`RoundObjects`] counts the reads that had to wait
//!   for one another, and [`Unreachable`] fails all requests.
//! - [`swap`] and [`create`] are the protocol by which all users replace and create an object that
//!   others may replace or create too. Both resolve lost answers.
//!
//! ```
//! use bytes::Bytes;
//! use objects::{Condition, Key, MemoryObjects, Objects, ObjectsError, Part};
//!
//! let objects = MemoryObjects::new();
//! let key = Key::new("m/store/head")?;
//! let first = objects.put(&key, Bytes::from("one"), Condition::Absent)?;
//! objects.put(&key, Bytes::from("two"), Condition::Matches(first.clone()))?;
//!
//! // The version that this writer knew was replaced, so nothing changes.
//! let late = objects.put(&key, Bytes::from("three"), Condition::Matches(first));
//! assert!(matches!(late, Err(ObjectsError::ConditionFailed { .. })));
//! assert_eq!(objects.get(&key, Part::Range(1..9))?.bytes, "wo");
//! # Ok::<(), ObjectsError>(())
//! ```

#![warn(missing_docs)]

mod count;
mod directory;
#[cfg(feature = "encryption")]
mod encrypted;
mod error;
mod faults;
mod key;
mod memory;
mod object;
mod retry;
mod rounds;
mod secret_id;
mod swap;
mod unreachable;

pub use count::{CountObjects, Counts, KindCounts};
pub use directory::DirectoryObjects;
#[cfg(feature = "encryption")]
pub use encrypted::{EncryptedObjects, Secret};
pub use error::{ObjectsError, Result};
pub use faults::{Event, FaultyObjects, Injected, Rates};
pub use key::{InvalidKey, Key};
pub use memory::MemoryObjects;
pub use object::{Condition, Listed, Object, Page, Part, Tag};
pub use retry::{Patience, get_other_patiently, get_patiently};
pub use rounds::RoundObjects;
pub use secret_id::SecretId;
pub use swap::{Created, Swapped, Verdict, create, swap};
pub use unreachable::Unreachable;

use bytes::Bytes;

/// A place that holds objects. All calls block until the outcome is known or the call stops waiting
/// for it. Any number of threads may call it, and other processes may use the same place.
///
/// Every operation on one key is atomic, and a read that begins after a put or delete was answered
/// sees this operation or a later one. Nothing is promised about the order of operations on two
/// keys that are in progress together.
///
/// No key may be a folder of another one (`a` and `a/b`). A server would accept both keys, but a
/// folder cannot have both, and refuses the second with [`ObjectsError::Invalid`].
pub trait Objects: Send + Sync + std::fmt::Debug {
    /// Returns the object, or the requested part of it. For a range that begins in the object and
    /// ends beyond it, the bytes that exist are returned. A range that begins at or after the end
    /// is an [`ObjectsError::OutOfRange`].
    fn get(&self, key: &Key, part: Part) -> Result<Object>;

    /// Reads like [`Objects::get`], but returns `None` if the object has this tag. In that case no
    /// bytes are sent if the place can compare tags.
    fn get_other(&self, key: &Key, part: Part, tag: &Tag) -> Result<Option<Object>> {
        self.get(key, part).map(|object| Some(object).filter(|object| object.tag != *tag))
    }

    /// Creates or replaces the object if the condition holds, durably, and returns its new tag.
    /// Returns [`ObjectsError::ConditionFailed`] if the condition does not hold, and
    /// [`ObjectsError::NotFound`] if there is no object for [`Condition::Matches`]. After both
    /// errors it is certain that nothing was changed.
    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> Result<Tag>;

    /// Deletes the object. Deleting a missing object succeeds.
    fn delete(&self, key: &Key) -> Result<()>;

    /// Returns the first objects after `after` whose keys begin with `prefix`, by ascending key.
    /// `after` and `prefix` are compared as bytes, need not be keys, and may be empty. A list is
    /// not a snapshot: puts and deletions by others between two pages may or may not be visible in
    /// it.
    fn list(&self, prefix: &str, after: &str) -> Result<Page>;

    /// Returns the place, for messages, such as `dir:/mnt/x` or `s3://bucket/name`. The text
    /// contains no secrets.
    fn place(&self) -> String;

    /// Returns the secret with which the objects are encrypted before they are sent, or `None` if
    /// they are not encrypted.
    fn secret(&self) -> Option<SecretId> {
        None
    }
}
