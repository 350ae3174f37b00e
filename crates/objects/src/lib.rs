//! Objects by key with conditions: the interface of an object store such as a bucket of S3, and
//! places that provide it on one machine.
//!
//! - [`Objects`] is the interface. It blocks, and distinguishes the cases that a caller must
//!   handle: above all errors after which nothing was changed, and [`ObjectsError::Unsure`].
//! - [`DirectoryObjects`] keeps them in a folder that any number of processes share.
//! - [`MemoryObjects`] keeps them in memory, and [`FaultyObjects`] makes any place behave as badly
//!   as a network and a busy server do, reproducibly from a seed.
//! - `EncryptedObjects` encrypts them before they are sent (feature `encryption`).
//! - [`CountObjects`] counts requests and bytes, [`RoundObjects`] counts the reads that had to wait
//!   for one another, and [`Unreachable`] answers none.
//! - [`swap`] and [`create`] are the protocol by which all users replace and create an object that
//!   others may replace or create too. They resolve lost answers.
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
/// sees it, or a later one. Nothing is promised about the order of operations on two keys that are
/// in progress together.
///
/// No key may be a folder of another one (`a` and `a/b`): a server would accept both, but a folder
/// does not, and refuses the second as [`ObjectsError::Invalid`].
pub trait Objects: Send + Sync + std::fmt::Debug {
    /// Returns the object, or the part of it. A range which begins in the object and ends beyond it
    /// returns the bytes that exist; one that begins at or after the end is
    /// [`ObjectsError::OutOfRange`].
    fn get(&self, key: &Key, part: Part) -> Result<Object>;

    /// Reads like [`Objects::get`], unless the object has this tag: then it returns `None`, and no
    /// bytes are sent if the place can compare tags.
    fn get_other(&self, key: &Key, part: Part, tag: &Tag) -> Result<Option<Object>> {
        self.get(key, part).map(|object| Some(object).filter(|object| object.tag != *tag))
    }

    /// Creates or replaces the object if the condition holds, durably, and returns its new tag.
    /// Returns [`ObjectsError::ConditionFailed`] if the condition does not hold, and
    /// [`ObjectsError::NotFound`] if there is no object for [`Condition::Matches`]; both are
    /// certain.
    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> Result<Tag>;

    /// Deletes the object. Deleting a missing object succeeds.
    fn delete(&self, key: &Key) -> Result<()>;

    /// Returns the first objects after `after` whose keys begin with `prefix`, by ascending key.
    /// Both compare bytes, need not be keys, and may be empty. A list is not a snapshot: it may or
    /// may not have the effects of puts and deletions by others between two pages.
    fn list(&self, prefix: &str, after: &str) -> Result<Page>;

    /// Returns the place, for messages: `dir:/mnt/x`, `s3://bucket/name`. It has no secrets.
    fn place(&self) -> String;

    /// Returns the secret with which the objects are encrypted before they are sent, or `None` if
    /// they are not.
    fn secret(&self) -> Option<SecretId> {
        None
    }
}
