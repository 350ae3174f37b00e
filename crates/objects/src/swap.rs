//! The protocol by which every user replaces an object that others may replace too (a *head*), or
//! creates an object that others may create too. It resolves requests whose answer was lost.
//!
//! The following invariants hold:
//!
//! - The bytes of an attempt have a random nonce that no other attempt has. Tags depend on the
//!   bytes alone, so without the nonce a stale tag would be accepted when bytes recur. With the
//!   nonce, a replaced tag never recurs. So a request that arrives after its sender has given up
//!   can be applied only if no other request was, and then it is the requested swap.
//! - All requests of one call send the same bytes. If the first request is applied late, the
//!   condition of the second one fails, and the object that is then read has the bytes of this
//!   caller.
//! - A failed condition is certain only as the answer to the first request, when no other request
//!   of this call can have been applied. In all other cases the object is read, and its bytes
//!   decide.
//! - If several writers replace an object in turn, its bytes must tell whether they came after this
//!   attempt: another writer may replace the object before this one has read it. In a head of a
//!   store a higher epoch tells this, because the owner of the epoch is the only writer.

use bytes::Bytes;

use crate::Objects;
use crate::error::{ObjectsError, Result};
use crate::key::Key;
use crate::object::{Condition, Object, Part, Tag};
use crate::retry::{Attempts, Patience, get_patiently};

/// The judgement of a caller on bytes that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes have the nonce of this attempt, or come after it: the attempt was applied.
    Mine,
    /// The bytes neither have the nonce of this attempt nor come after it.
    Other,
    /// The checksum of the bytes is wrong, so the bytes tell nothing and are read again.
    Damaged,
}

/// The outcome of [`swap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    /// The swap was applied exactly once. The tag belongs to the last version of the object that
    /// was read, which may be a successor.
    Done(Tag),
    /// The swap was not applied and never will be: another writer has replaced the object by this
    /// one.
    Overtaken(Object),
}

/// The outcome of [`create`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// This call has created the object.
    Done(Tag),
    /// Another writer has created this object.
    Taken(Object),
}

/// Replaces the object, which must have the tag `expected`, by `bytes`, which contain a nonce.
/// `judge` decides whether bytes that were read are these bytes, or come after them.
///
/// After an error with [`ObjectsError::is_certain`] nothing was changed. After
/// [`ObjectsError::Unsure`] the patience is exhausted: the caller may call again with the same
/// `expected` and `bytes` at any later time, or read the object when it can. If the object was
/// deleted, which the users of a head never do, the error is [`ObjectsError::NotFound`], or
/// [`ObjectsError::Unsure`] if this swap may have been applied before that.
pub fn swap(
    objects: &dyn Objects,
    key: &Key,
    expected: &Tag,
    bytes: Bytes,
    patience: Patience,
    judge: impl Fn(&[u8]) -> Verdict,
) -> Result<Swapped> {
    let mut attempts = patience.begin();
    let mut unsure = None;
    loop {
        let condition = Condition::Matches(expected.clone());
        let error = match objects.put(key, bytes.clone(), condition) {
            Ok(tag) => return Ok(Swapped::Done(tag)),
            Err(error) => error,
        };
        match error {
            // The failure is certain if it answers the first request, but the caller needs the
            // current object anyway.
            ObjectsError::ConditionFailed { .. } => {}
            ObjectsError::Unsure { .. } => unsure = Some(error),
            // A read could reveal nothing new about this object.
            error if error.may_be_retried() && unsure.is_none() => {
                if attempts.next() {
                    continue;
                }
                return Err(error);
            }
            error if unsure.is_none() => return Err(error),
            _ => {}
        }
        let read = read_back(objects, key, patience, &judge);
        let (object, verdict) = read.map_err(|error| still(&unsure, error))?;
        match verdict {
            Verdict::Mine => return Ok(Swapped::Done(object.tag)),
            Verdict::Other if object.tag != *expected => return Ok(Swapped::Overtaken(object)),
            // Nothing has been applied yet, but a request in flight still may be. Repeat the swap
            // with the same bytes.
            Verdict::Other | Verdict::Damaged => again(&mut attempts, &unsure, key)?,
        }
    }
}

/// Creates the object with `bytes` if it does not exist. No other writer may put the same bytes
/// under its key: either they contain a nonce, or the key belongs to this writer alone.
///
/// After an error with [`ObjectsError::is_certain`] nothing was created. After
/// [`ObjectsError::Unsure`] the caller may call again with the same bytes. If others may delete the
/// object before the call ends, or while a request is in progress, it may be created twice. So the
/// names of objects that can be deleted contain the epoch of their writer.
pub fn create(
    objects: &dyn Objects,
    key: &Key,
    bytes: Bytes,
    patience: Patience,
) -> Result<Created> {
    let mut attempts = patience.begin();
    let mut unsure = None;
    loop {
        // `true` if an object existed, which may be the object that this call has created.
        let mut existed = false;
        match objects.put(key, bytes.clone(), Condition::Absent) {
            Ok(tag) => return Ok(Created::Done(tag)),
            Err(ObjectsError::ConditionFailed { .. }) if unsure.is_none() => {
                match get_patiently(objects, key, Part::Whole, patience) {
                    Ok(object) => return Ok(Created::Taken(object)),
                    // The object was deleted after the condition failed.
                    Err(ObjectsError::NotFound { .. }) => again(&mut attempts, &unsure, key)?,
                    // Nothing was created, so an uncertain read does not make the outcome
                    // uncertain.
                    Err(ObjectsError::Unsure { key, why }) => {
                        return Err(ObjectsError::Busy { key, why });
                    }
                    Err(error) => return Err(error),
                }
                continue;
            }
            Err(ObjectsError::ConditionFailed { .. }) => existed = true,
            Err(error @ ObjectsError::Unsure { .. }) => unsure = Some(error),
            Err(error) if error.may_be_retried() && unsure.is_none() => {
                if attempts.next() {
                    continue;
                }
                return Err(error);
            }
            Err(error) if unsure.is_none() => return Err(error),
            Err(_) => {}
        }
        match settled(objects, key, &bytes, patience) {
            Ok(object) if object.bytes == bytes => return Ok(Created::Done(object.tag)),
            Ok(object) => return Ok(Created::Taken(object)),
            Err(ObjectsError::NotFound { .. }) if !existed => again(&mut attempts, &unsure, key)?,
            Err(error) => return Err(still(&unsure, error)),
        }
    }
}

/// Reads the object until `judge` can decide about its bytes, or the patience is exhausted.
fn read_back(
    objects: &dyn Objects,
    key: &Key,
    patience: Patience,
    judge: &impl Fn(&[u8]) -> Verdict,
) -> Result<(Object, Verdict)> {
    let mut attempts = patience.begin();
    loop {
        match get_patiently(objects, key, Part::Whole, patience) {
            // The answer may have been damaged on its way.
            Err(ObjectsError::Damaged { .. }) => {}
            Err(e) => return Err(e),
            Ok(object) => {
                let verdict = judge(&object.bytes);
                if verdict != Verdict::Damaged {
                    return Ok((object, verdict));
                }
            }
        }
        if !attempts.next() {
            let why = "what was read back is damaged".into();
            return Err(ObjectsError::Unsure { key: key.to_string(), why });
        }
    }
}

/// Reads the object until it has the bytes `mine`, or two consecutive reads return the same other
/// bytes, because a single read may return a damaged copy of `mine`.
fn settled(objects: &dyn Objects, key: &Key, mine: &Bytes, patience: Patience) -> Result<Object> {
    let mut attempts = patience.begin();
    let mut before = None;
    loop {
        let object = get_patiently(objects, key, Part::Whole, patience)?;
        if object.bytes == *mine || before.as_ref() == Some(&object) {
            return Ok(object);
        }
        before = Some(object);
        if !attempts.next() {
            let why = "what was read back differs from read to read".into();
            return Err(ObjectsError::Unsure { key: key.to_string(), why });
        }
    }
}

/// Returns the error of a failed read. If a request was not answered, its outcome is still unknown,
/// whatever the error of the read.
fn still(unsure: &Option<ObjectsError>, error: ObjectsError) -> ObjectsError {
    match (unsure, error) {
        // No request is in flight, so the failure of the condition is certain.
        (None, ObjectsError::Unsure { key, why }) => ObjectsError::Busy { key, why },
        (None, error) => error,
        (Some(ObjectsError::Unsure { key, why }), error) => {
            let why = format!("{why}, and then reading it failed: {error}");
            ObjectsError::Unsure { key: key.clone(), why }
        }
        (Some(unsure), _) => unsure.clone(),
    }
}

/// Sleeps before the next request, or returns an error if the patience is exhausted.
fn again(attempts: &mut Attempts, unsure: &Option<ObjectsError>, key: &Key) -> Result<()> {
    if attempts.next() {
        return Ok(());
    }
    Err(unsure.clone().unwrap_or_else(|| ObjectsError::Busy {
        key: key.to_string(),
        why: "it changes all the time".into(),
    }))
}
