//! Objects that are encrypted with AES-256-GCM before they are sent, so that the place cannot read
//! them.
//!
//! - `secret`: the secret of 256 bits, and the key of each object that is derived from it;
//! - `frame`: the layout of an encrypted object.
//!
//! Keys of objects, their lengths and their times are not hidden. Each object has an encryption key
//! of its own, so an object cannot replace another one, and each chunk is bound to its position in
//! its object. A writer at the place can still restore an older version of an object.

mod frame;
mod secret;

use std::sync::Arc;

use bytes::Bytes;

pub use self::secret::Secret;
use crate::Objects;
use crate::error::{ObjectsError, Result};
use crate::key::Key;
use crate::object::{Condition, Listed, Object, Page, Part, Tag};
use crate::secret_id::SecretId;

/// A place whose objects are all encrypted with one secret. Without a secret, no object may be
/// encrypted, and reading an encrypted object is an error.
#[derive(Debug)]
pub struct EncryptedObjects {
    inner: Arc<dyn Objects>,
    secret: Option<Secret>,
}

impl EncryptedObjects {
    /// Encrypts the objects of `inner`.
    pub fn new(inner: Arc<dyn Objects>, secret: Option<Secret>) -> EncryptedObjects {
        EncryptedObjects { inner, secret }
    }

    /// Reads a part of an object with `request`, to which it passes the range of stored bytes to
    /// read.
    fn read(
        &self,
        key: &Key,
        part: Part,
        request: impl FnOnce(Part) -> Result<Option<Object>>,
    ) -> Result<Option<Object>> {
        let Some(secret) = &self.secret else {
            let object = request(part.clone())?;
            let from_start = !matches!(part, Part::Range(range) if range.start > 0);
            return object.map(|object| self.checked(key, object, from_start)).transpose();
        };
        let (first, stored) = match &part {
            Part::Range(range) if range.start < range.end => {
                (frame::first_chunk(range), Part::Range(frame::stored_range(range)))
            }
            other => ((0, 0), other.clone()),
        };
        let object = match request(stored.clone()) {
            Err(ObjectsError::OutOfRange { key, len, .. }) => {
                // The part is out of range before encryption, too.
                return part.within(&key, frame::plain_len(len).unwrap_or(0)).map(|_| None);
            }
            other => other?,
        };
        let Some(object) = object else { return Ok(None) };
        let expected = stored.within(key, object.len)?;
        if object.bytes.len() as u64 != expected.end - expected.start {
            let why = "the answer was cut off".into();
            return Err(ObjectsError::Unsure { key: key.to_string(), why });
        }
        let object = self.checked(key, object, expected.start == 0)?;
        let damaged = || ObjectsError::Damaged { key: key.clone(), place: self.place() };
        let len = frame::plain_len(object.len).ok_or_else(damaged)?;
        let asked = part.within(key, len)?;
        let (chunk, begins) = first;
        let bytes = frame::decrypt(object.bytes, chunk, object.len, &secret.key_of(key)?);
        let mut bytes = Bytes::from(bytes.ok_or_else(damaged)?);
        let _ = bytes.split_to((asked.start - begins) as usize);
        bytes.truncate((asked.end - asked.start) as usize);
        Ok(Some(Object { bytes, tag: object.tag, len }))
    }

    /// Returns the object if it is encrypted with this secret, or if it is unencrypted and there is
    /// no secret. The check applies only to an object that was read `from_start`.
    fn checked(&self, key: &Key, object: Object, from_start: bool) -> Result<Object> {
        let (found, own) = (frame::header_of(&object.bytes), self.secret());
        if !from_start || found == own {
            return Ok(object);
        }
        Err(ObjectsError::Secret { key: key.clone(), place: self.place(), found, own })
    }
}

impl Objects for EncryptedObjects {
    fn get(&self, key: &Key, part: Part) -> Result<Object> {
        let object = self.read(key, part, |stored| self.inner.get(key, stored).map(Some))?;
        // `request` always returns an object here.
        object.ok_or_else(|| ObjectsError::NotFound { key: key.clone() })
    }

    fn get_other(&self, key: &Key, part: Part, tag: &Tag) -> Result<Option<Object>> {
        self.read(key, part, |stored| self.inner.get_other(key, stored, tag))
    }

    fn put(&self, key: &Key, bytes: Bytes, condition: Condition) -> Result<Tag> {
        let bytes = match &self.secret {
            Some(secret) => frame::encrypt(&bytes, secret.id(), &secret.key_of(key)?)?,
            None => bytes,
        };
        self.inner.put(key, bytes, condition)
    }

    fn delete(&self, key: &Key) -> Result<()> {
        self.inner.delete(key)
    }

    /// Returns entries with the lengths before encryption. The length is 0 if the object cannot be
    /// an encrypted one.
    fn list(&self, prefix: &str, after: &str) -> Result<Page> {
        let page = self.inner.list(prefix, after)?;
        let Page { entries, more } = page;
        let plain = |entry: Listed| match &self.secret {
            Some(_) => Listed { len: frame::plain_len(entry.len).unwrap_or(0), ..entry },
            None => entry,
        };
        Ok(Page { entries: entries.into_iter().map(plain).collect(), more })
    }

    fn place(&self) -> String {
        self.inner.place()
    }

    fn secret(&self) -> Option<SecretId> {
        self.secret.as_ref().map(Secret::id)
    }
}
