//! The ends of a list. The bounds of the numbers of its elements are stored with the list.
//!
//! Elements that were taken from an end leave tombstones in the tree until a merge drops them,
//! and a queue leaves many of them. The stored bounds let a walk begin at an element instead of
//! at these tombstones. No element lies outside of the bounds: a command that adds an element
//! beyond them moves them in the same commit. There may be gaps at the ends inside the bounds.
//! Lists that older programs have written have no bounds.

use bytes::Bytes;
use kvdb::Batch;

use crate::commands::collections::visit;
use crate::failure::Failure;
use crate::keyspace::{ELEMENT, bound_key, element_key, elements};
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

/// The number of the first element of a new list. It leaves 2^63 numbers on both sides.
pub const MIDDLE: u64 = 1 << 63;

#[derive(Clone, Copy, PartialEq)]
pub enum End {
    Left,
    Right,
}

impl End {
    pub fn opposite(self) -> End {
        if self == End::Left { End::Right } else { End::Left }
    }
    /// Returns the name of the event for an element that was added at this end.
    pub fn pushed(self) -> &'static str {
        if self == End::Left { "lpush" } else { "rpush" }
    }
    /// Returns the name of the event for an element that was taken from this end.
    pub fn popped(self) -> &'static str {
        if self == End::Left { "lpop" } else { "rpop" }
    }
    /// Returns the number next to `number` in the outward direction of this end.
    pub fn beyond(self, number: u64) -> u64 {
        match self {
            End::Left => number.saturating_sub(1),
            End::Right => number.saturating_add(1),
        }
    }
}

/// Returns the tuple key of the element with this number.
pub fn place(of: &Collection, number: u64) -> Vec<u8> {
    element_key(of.id, &number.to_be_bytes())
}

fn decoded(bytes: Option<&[u8]>, what: &str) -> Result<u64, Failure> {
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .map(u64::from_be_bytes)
        .ok_or_else(|| Failure::Corrupt(format!("{what} does not decode")))
}

/// Returns the number of an element from its tuple key.
pub fn number(key: &[u8]) -> Result<u64, Failure> {
    decoded(key.get(ELEMENT..), "the number of a list's element")
}

fn is_bounded(of: &Collection) -> bool {
    of.live.head.is_some_and(|head| head.bounded)
}

fn bound(seen: &Seen<'_>, of: &Collection, end: End) -> Result<Option<u64>, Failure> {
    if !is_bounded(of) {
        return Ok(None);
    }
    let found = seen.get(of.types, &bound_key(of.id, end == End::Right))?;
    found.map(|bytes| decoded(Some(&bytes), "the bound of a list")).transpose()
}

/// The stored bounds of a list; a bound that is not stored is `None`.
#[derive(Clone, Copy)]
pub struct Bounds {
    first: Option<u64>,
    last: Option<u64>,
}

impl Bounds {
    pub fn of(seen: &Seen<'_>, of: &Collection) -> Result<Bounds, Failure> {
        Ok(Bounds { first: bound(seen, of, End::Left)?, last: bound(seen, of, End::Right)? })
    }
    /// Returns a range `[start, end)` that contains the keys of all elements.
    pub fn within(&self, of: &Collection) -> (Vec<u8>, Vec<u8>) {
        let (mut start, mut end) = elements(of.id);
        if let Some(first) = self.first {
            start = place(of, first);
        }
        if let Some(last) = self.last {
            end = place(of, last);
            end.push(0);
        }
        end = end.max(start.clone());
        (start, end)
    }
    /// Returns the number of the first element if every number between the two ends is in use, as
    /// in a list from whose middle nothing was removed. In this case the number of each element
    /// follows from its rank.
    pub fn dense_from(&self, of: &Collection) -> Option<u64> {
        let (first, last) = self.first.zip(self.last)?;
        let numbers = last.checked_sub(first).and_then(|between| between.checked_add(1));
        (numbers == u64::try_from(of.live.count).ok()).then_some(first)
    }
}

/// Returns a range `[start, end)` that contains the keys of all elements.
pub fn within(seen: &Seen<'_>, of: &Collection) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    Ok(Bounds::of(seen, of)?.within(of))
}

/// Returns the number and the value of the element at the bound itself. This is usually the
/// outermost element, so no walk is needed to find it.
pub fn at_bound(
    seen: &Seen<'_>,
    of: &Collection,
    end: End,
) -> Result<Option<(u64, Bytes)>, Failure> {
    let Some(at) = bound(seen, of, end)? else { return Ok(None) };
    Ok(seen.get(of.types, &place(of, at))?.map(|value| (at, value)))
}

/// Sets the bound at an end in the batch. No element may lie beyond `number`.
pub fn set_bound(of: &Collection, end: End, number: u64, batch: &mut Batch) {
    if is_bounded(of) {
        batch.put(of.types, bound_key(of.id, end == End::Right), number.to_be_bytes().to_vec());
    }
}

/// Returns a number beyond which no element lies at an end. It is usually the number of the
/// outermost element, or [`MIDDLE`] for a new list.
pub fn outermost(s: &Session, seen: &Seen<'_>, of: &Collection, end: End) -> Result<u64, Failure> {
    if of.live.count == 0 {
        return Ok(MIDDLE);
    }
    if let Some(at) = bound(seen, of, end)? {
        return Ok(at);
    }
    let (first, last) = within(seen, of)?;
    let mut found = MIDDLE;
    visit(s, seen, of, (&first, &last), end == End::Right, |tuple| {
        found = number(&tuple.key)?;
        Ok(false)
    })?;
    Ok(found)
}
