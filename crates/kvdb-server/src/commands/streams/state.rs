//! Storage of a stream. The elements of a stream are its state, its entries and its groups, each
//! under its own name. So the code for elements of collections applies to them unchanged.
//!
//! ```text
//! (no name)                    the state: last ID, entries added, highest deleted ID, first ID,
//!                              length
//! 0 ‖ ID                       an entry: its fields and values, each with its length in front
//! 1 ‖ group                    a group: last ID delivered, entries read
//! 2 ‖ len ‖ group ‖ consumer   a consumer: when it was last seen
//! 3 ‖ len ‖ group ‖ ID         an entry delivered and not acknowledged: when, how often, to whom
//! ```
//!
//! The state is an element, so a stream without entries still exists, as in Redis.

use bytes::Bytes;
use kvdb::{Batch, Tuple};

use super::ids::Id;
use crate::commands::collections::{name, visit};
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Kind, element_key};
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

const ENTRY: u8 = 0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The highest ID that an entry ever had.
    pub last: Id,
    /// The number of entries that were ever added.
    pub added: u64,
    /// The highest ID that was deleted explicitly.
    pub deleted: Id,
    /// The ID of the first entry, or 0-0 if there is none.
    pub first: Id,
    /// The number of entries.
    pub len: u64,
}

impl State {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.extend_from_slice(&self.last.bytes());
        out.extend_from_slice(&self.added.to_be_bytes());
        out.extend_from_slice(&self.deleted.bytes());
        out.extend_from_slice(&self.first.bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
        out
    }
    pub fn decode(bytes: &[u8]) -> Option<State> {
        let mut rest = Parts(bytes);
        let (last, added, deleted) = (rest.id()?, rest.number()?, rest.id()?);
        let (first, len) = (rest.id()?, rest.number()?);
        let state = State { last, added, deleted, first, len };
        (rest.0.is_empty() && first <= last).then_some(state)
    }
}

/// The rest of the bytes of a value that is being parsed.
pub struct Parts<'a>(pub &'a [u8]);

impl<'a> Parts<'a> {
    pub fn id(&mut self) -> Option<Id> {
        let (id, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(Id::from_bytes(*id))
    }
    pub fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*number))
    }
    pub fn sized(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first_chunk()?;
        let (bytes, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        self.0 = rest;
        Some(bytes)
    }
}

pub fn corrupt(of: &Collection, what: &str) -> Failure {
    Failure::Corrupt(format!("{what} of the stream {:x} does not decode", of.id))
}

/// Appends the length of bytes, and the bytes.
pub fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Returns the element name of an entry.
pub fn entry_name(id: Id) -> [u8; 17] {
    let mut name = [ENTRY; 17];
    name[1..].copy_from_slice(&id.bytes());
    name
}

pub fn entry_key(of: &Collection, id: Id) -> Vec<u8> {
    element_key(of.id, &entry_name(id))
}

/// An entry with its ID, and its fields and values in alternation.
#[derive(Clone, Debug)]
pub struct Entry {
    pub id: Id,
    value: Bytes,
}

impl Entry {
    pub fn of(seen_of: &Collection, tuple: &Tuple) -> Result<Entry, Failure> {
        let id = entry_id(seen_of, tuple)?;
        Ok(Entry { id, value: tuple.value()? })
    }
    /// Returns the fields and values of the entry in alternation, or `None` if the entry is
    /// corrupt.
    pub fn words(&self) -> Option<Vec<&[u8]>> {
        words(&self.value)
    }
    pub fn size(&self) -> usize {
        self.value.len() + size_of::<Entry>()
    }
}

/// Parses the value of an entry into its fields and values.
pub fn words(value: &[u8]) -> Option<Vec<&[u8]>> {
    let (mut rest, mut words) = (Parts(value), Vec::new());
    while !rest.0.is_empty() {
        words.push(rest.sized()?);
    }
    (!words.is_empty() && words.len().is_multiple_of(2)).then_some(words)
}

pub fn entry_id(of: &Collection, tuple: &Tuple) -> Result<Id, Failure> {
    parse_entry_name(&name(tuple)).ok_or_else(|| corrupt(of, "the name of an entry"))
}

pub fn parse_entry_name(name: &[u8]) -> Option<Id> {
    let id = name.strip_prefix(&[ENTRY])?;
    Some(Id::from_bytes(id.try_into().ok()?))
}

/// The stream on which a command works.
pub struct Stream {
    pub of: Collection,
    pub state: State,
    /// The number of elements that the command has added, minus the number that it has removed.
    pub more: i64,
}

impl Stream {
    /// Returns the stream under a key, or `None` if there is none.
    pub fn find(seen: &Seen<'_>, key: &[u8]) -> Result<Option<Stream>, Failure> {
        let Some(of) = seen.collection(key, Kind::Stream)? else { return Ok(None) };
        let bytes = seen.get(of.types, &element_key(of.id, b""))?.unwrap_or_default();
        let state = State::decode(&bytes).ok_or_else(|| corrupt(&of, "the state"))?;
        Ok(Some(Stream { of, state, more: 0 }))
    }
    /// Returns the stream under a key, and creates it if necessary.
    pub fn begin(
        s: &Session,
        seen: &Seen<'_>,
        key: &[u8],
        batch: &mut Batch,
    ) -> Result<Stream, Failure> {
        if let Some(found) = Stream::find(seen, key)? {
            return Ok(found);
        }
        let of = seen.begin_collection(key, Kind::Stream, || s.random(), batch)?;
        Ok(Stream { of, state: State::default(), more: 1 })
    }
    /// Adds the state and the change of the element count to the batch.
    pub fn save(&self, seen: &Seen<'_>, key: &[u8], batch: &mut Batch) {
        batch.put(self.of.types, element_key(self.of.id, b""), self.state.encode());
        self.count(seen, key, batch);
    }
    /// Adds only the change of the element count to the batch, if the state is unchanged.
    pub fn count(&self, seen: &Seen<'_>, key: &[u8], batch: &mut Batch) {
        seen.counted(key, &self.of, self.more, batch);
    }

    /// Visits the entries from one ID to another, both inclusive, in order or in reverse. Stops
    /// if `each` returns `false`.
    pub fn entries(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        (from, to): (Id, Id),
        backward: bool,
        each: impl FnMut(&Tuple) -> Result<bool, Failure>,
    ) -> Outcome {
        // Trimmed entries leave tombstones before the first entry, which the walk must not visit.
        let (from, to) = (from.max(self.state.first), to.min(self.state.last));
        if self.state.len == 0 || from > to {
            return Ok(());
        }
        let start = entry_key(&self.of, from);
        let end = [&entry_key(&self.of, to)[..], b"\0"].concat();
        visit(s, seen, &self.of, (&start, &end), backward, each)
    }
    /// Returns the first entry of a range in one direction.
    pub fn outermost(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        range: (Id, Id),
        backward: bool,
    ) -> Result<Option<Entry>, Failure> {
        let mut found = None;
        self.entries(s, seen, range, backward, |tuple| {
            found = Some(Entry::of(&self.of, tuple)?);
            Ok(false)
        })?;
        Ok(found)
    }
    pub fn has(&self, seen: &Seen<'_>, id: Id) -> Result<bool, Failure> {
        seen.has(self.of.types, &entry_key(&self.of, id))
    }
    pub fn entry(&self, seen: &Seen<'_>, id: Id) -> Result<Option<Entry>, Failure> {
        let value = seen.get(self.of.types, &entry_key(&self.of, id))?;
        Ok(value.map(|value| Entry { id, value }))
    }
    /// Returns whether entries from an ID on may have been deleted explicitly.
    pub fn has_gaps_from(&self, id: Id) -> bool {
        let State { deleted, first, len, .. } = self.state;
        len > 0 && deleted > Id::MIN && deleted >= first && id <= deleted
    }
    /// Returns the number of entries that were ever added up to an ID, if it can be determined.
    pub fn added_up_to(&self, id: Id) -> Option<u64> {
        let State { last, added, deleted, first, len } = self.state;
        if added == 0 {
            return Some(0);
        }
        if len == 0 && id <= last || id == last {
            return Some(added);
        }
        if id > last || deleted > Id::MIN && deleted >= first {
            return None;
        }
        match id.cmp(&first) {
            std::cmp::Ordering::Less => Some(added.saturating_sub(len)),
            std::cmp::Ordering::Equal => Some(added.saturating_sub(len).saturating_add(1)),
            std::cmp::Ordering::Greater => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let id = |ms, seq| Id { ms, seq };
        let state = State { last: id(9, 1), added: 7, deleted: id(3, 4), first: id(2, 2), len: 5 };
        let bytes = state.encode();
        assert_eq!(State::decode(&bytes), Some(state));
        for cut in 0..bytes.len() {
            assert_eq!(State::decode(&bytes[..cut]), None);
        }
        assert_eq!(State::decode(&[&bytes[..], b"x"].concat()), None);
    }

    #[test]
    fn entries_lie_in_the_order_of_their_ids_after_the_state() {
        let (low, high) = (Id { ms: 255, seq: u64::MAX }, Id { ms: 256, seq: 0 });
        assert!(entry_name(low) < entry_name(high));
        assert!(b"".as_slice() < &entry_name(Id::MIN)[..]);
        assert_eq!(parse_entry_name(&entry_name(high)), Some(high));
        assert_eq!(words(&[0, 0, 0, 1, b'f']), None, "a field without a value");
        assert_eq!(words(&[0, 0, 0, 1, b'f', 0, 0, 0, 0]), Some(vec![&b"f"[..], b""]));
    }
}
