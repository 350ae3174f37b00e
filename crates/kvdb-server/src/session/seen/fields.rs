//! Deadlines of the fields of hashes: the fields that exist at the time of a command, and the
//! changes that set, remove and heed deadlines.
//!
//! A field that has expired stays stored, and counted, until the sweeper comes. The deadline of a
//! field is a tuple of its own, so a merge may leave one without the field, and an entry in the
//! order of deadlines that no deadline leads to: both have no meaning, and the next writer of the
//! field or the sweeper removes them.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use bytes::Bytes;
use kvdb::{Batch, Cursor, DictionaryId, TransactionId, Tuple, Update};

use super::{CHANGE, Collection, Seen, Source};
use crate::failure::{Failure, Outcome};
use crate::keyspace::{
    ELEMENT, Head, Kind, Live, count_key, deadline_key, deadline_of_element, due_fields,
    element_key, elements, field_deadline_key, field_order_key, fields_from, head_key, is_past,
    member_key, parse_field_order,
};
use crate::names::in_key;
use crate::notifications::Classes;

/// A field of a hash, or a member of a set, without its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Field {
    /// The field exists at the time of the command.
    pub exists: bool,
    /// The field is stored, even if it has expired.
    pub stored: bool,
    /// The deadline that is stored, even if the field is not.
    pub deadline: Option<u64>,
}

/// An entry in the order of deadlines that has passed.
struct Due<'a> {
    deadline: u64,
    /// The part of its keys that stands for the name of the field.
    part: &'a [u8],
    /// The field has this deadline.
    current: bool,
    /// The field is stored.
    stored: bool,
}

/// A walk over entries that have passed announces each read up to this number of them, and then
/// reads of the whole hash. Commands that need not know how many fields exist visit fewer.
const FEW: u32 = 64;
/// A field that is looked up takes as long as this many that are passed in order.
const EACH_LOOKED_UP: i64 = 8;
/// The length of a hash is exact in any case if fewer entries than this have passed.
const COUNTED: u32 = 4096;

fn decode(deadline: &[u8], tuple: &[u8]) -> Result<u64, Failure> {
    deadline.try_into().map(u64::from_be_bytes).map_err(|_| {
        Failure::Corrupt(format!(
            "the deadline of a field does not decode: {}",
            tuple.escape_ascii()
        ))
    })
}

/// Returns the time at which a transaction that is committed later names a hash in the index of all
/// deadlines, for this deadline of a field. Others that give fields the same deadline must not put
/// the same tuple, which would be a conflict, so the times of each transaction are its own. They
/// are apart from each other, so that one that gives fields ever new deadlines does not put a tuple
/// for each of these. The sweeper comes early, by a sixteenth of the time that is left at most, and
/// names the deadline then.
fn named_at(transaction: TransactionId, deadline: u64, now: u64) -> u64 {
    let apart: u64 = 1 << (1 + deadline.saturating_sub(now) / 16).ilog2();
    // Numbers next to each other are far from each other here.
    let spread = transaction.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let own = ((u128::from(spread) * u128::from(apart)) >> 64) as u64;
    deadline - (deadline % apart + apart - own) % apart
}

impl Collection {
    /// Returns whether its elements may have deadlines.
    pub fn has_deadlines(&self) -> bool {
        self.live.head.is_some_and(|head| head.expiring)
    }
}

impl Seen<'_> {
    /// Returns the hash under a key for a command that reads fields by their names. Fields are not
    /// counted, which would take a walk over all that have expired: there may be none that exists.
    pub fn hash(&self, key: &[u8]) -> Result<Option<Collection>, Failure> {
        let head = self.head(key)?;
        let live = match head {
            Some(found) if found.expiring && !found.is_expired(self.now) => {
                Live { kind: Some(Kind::Hash), head, count: 0 }
            }
            _ => self.live_with(head, key)?.0,
        };
        let id = live.collection(Kind::Hash)?;
        Ok(id.zip(self.types).map(|(id, types)| Collection::found(id, types, live)))
    }
    /// Returns the collection of this kind under a key, if it exists, for a command that need not
    /// know the number of its elements: a hash of which many fields have expired may have more of
    /// them than its `count` states. The work does not depend on how many have expired.
    pub fn roughly(&self, key: &[u8], kind: Kind) -> Result<Option<Collection>, Failure> {
        let (live, exact) = self.live_with(self.head(key)?, key)?;
        let id = live.collection(kind)?.zip(self.types);
        Ok(id.map(|(id, types)| Collection { id, types, live, fresh: false, exact }))
    }
    /// Returns the value of a field that exists.
    pub fn field(&self, of: &Collection, name: &[u8]) -> Result<Option<Bytes>, Failure> {
        let value = self.member(of, name)?;
        let deadline = match &value {
            Some(_) => self.deadline_of_field(of, name)?,
            None => None,
        };
        Ok(value.filter(|_| deadline.is_none_or(|at| !is_past(at, self.now))))
    }
    /// Returns the state of a field, without reading its value unless its name is long.
    pub fn look_at_field(&self, of: &Collection, name: &[u8]) -> Result<Field, Failure> {
        let stored = self.has_member(of, name)?;
        let deadline = self.deadline_of_field(of, name)?;
        let exists = stored && deadline.is_none_or(|at| !is_past(at, self.now));
        Ok(Field { exists, stored, deadline })
    }
    fn deadline_of_field(&self, of: &Collection, name: &[u8]) -> Result<Option<u64>, Failure> {
        match of.has_deadlines() {
            true => self.stored_deadline(of.types, of.id, name),
            false => Ok(None),
        }
    }
    fn stored_deadline(
        &self,
        types: DictionaryId,
        id: u64,
        name: &[u8],
    ) -> Result<Option<u64>, Failure> {
        let place = field_deadline_key(id, &in_key(name));
        self.get(types, &place)?.map(|deadline| decode(&deadline, &place)).transpose()
    }

    /// Removes the deadline of a field in the state `field`, if it has one.
    pub fn drop_deadline(&self, of: &Collection, name: &[u8], field: &Field, batch: &mut Batch) {
        if let Some(deadline) = field.deadline {
            let part = in_key(name);
            batch.delete(of.types, field_deadline_key(of.id, &part));
            batch.delete(of.types, field_order_key(of.id, deadline, &part));
        }
    }
    /// Removes a field in the state `field`. The caller changes the number of elements.
    pub fn remove_field(&self, of: &Collection, name: &[u8], field: &Field, batch: &mut Batch) {
        batch.delete(of.types, member_key(of.id, name));
        self.drop_deadline(of, name, field, batch);
    }
    /// Gives a field in the state `field` a deadline. The caller must call [`Seen::name_deadline`]
    /// for the deadline.
    pub fn put_deadline(
        &self,
        of: &Collection,
        name: &[u8],
        field: &Field,
        deadline: u64,
        batch: &mut Batch,
    ) {
        let part = in_key(name);
        if let Some(old) = field.deadline.filter(|old| *old != deadline) {
            batch.delete(of.types, field_order_key(of.id, old, &part));
        }
        let place = field_deadline_key(of.id, &part);
        batch.put(of.types, place, deadline.to_be_bytes().to_vec());
        batch.put(of.types, field_order_key(of.id, deadline, &part), Bytes::new());
    }
    /// Notes in the head of a hash that its fields may have deadlines, and makes the sweeper come
    /// for this one: the index of all deadlines names a hash no later than at the first deadline of
    /// its fields.
    pub fn name_deadline(
        &self,
        key: &[u8],
        of: &Collection,
        deadline: u64,
        batch: &mut Batch,
    ) -> Outcome {
        let Some(head) = of.live.head else { return Ok(()) };
        if !head.expiring {
            batch.put(
                of.types,
                head_key(key),
                Head { expiring: true, ..self.with_long(head) }.encode(),
            );
        }
        // In a transaction that is committed later, the first deadline may be over by then. An
        // `EXEC` on its own commits at once.
        let later = match &self.source {
            Source::Session(s) if s.exec.own().is_none() => s.inside(),
            _ => None,
        };
        let named = match later.is_some() || !head.expiring {
            true => None,
            false => self.first_deadline(of.types, of.id, 0)?,
        };
        if named.is_none_or(|first| deadline < first || is_past(first, self.now)) {
            let at = later.map_or(deadline, |within| named_at(within.id(), deadline, self.now));
            batch.put(of.types, deadline_key(at, key), Bytes::new());
        }
        Ok(())
    }
    /// Makes the sweeper come for the fields of this collection under another key.
    pub fn name_again(&self, head: &Head, key: &[u8], batch: &mut Batch) -> Outcome {
        if let (true, Some(types)) = (head.expiring, self.types)
            && let Some(first) = self.first_deadline(types, head.id, 0)?
        {
            batch.put(types, deadline_key(first, key), Bytes::new());
        }
        Ok(())
    }
    /// Removes a deadline that a key no longer has from the index of all deadlines. If fields of
    /// the key have deadlines, the index then names the first of these: it may not have done so, as
    /// the removed one was before it.
    pub(super) fn forget_deadline(&self, head: &Head, key: &[u8], at: u64, batch: &mut Batch) {
        let Some(types) = self.types else { return };
        if head.expiring {
            match self.first_deadline(types, head.id, 0) {
                Ok(Some(first)) if first != at => {
                    let place = deadline_key(first, key);
                    // An existing entry is not put again, since the sweeper may be removing it.
                    if !self.has(types, &place).unwrap_or(false) {
                        batch.put(types, place, Bytes::new());
                    }
                }
                Ok(None) => {}
                // An entry that is left over has no meaning.
                Ok(Some(_)) | Err(_) => return,
            }
        }
        batch.delete(types, deadline_key(at, key));
    }
    /// Removes from the index of all deadlines the first deadline of the fields of a hash that is
    /// no longer under this key. Others may be left over, until the sweeper comes.
    pub fn forget_fields(&self, head: &Head, key: &[u8], batch: &mut Batch) {
        if let (true, Some(types)) = (head.expiring, self.types)
            && let Ok(Some(first)) = self.first_deadline(types, head.id, 0)
        {
            batch.delete(types, deadline_key(first, key));
        }
    }
    /// Returns the first deadline of a field that is not before `from`.
    fn first_deadline(
        &self,
        types: DictionaryId,
        id: u64,
        from: u64,
    ) -> Result<Option<u64>, Failure> {
        let (start, end) = fields_from(id, from);
        let Some(mut cursor) = self.cursor(types, &start, &end)? else { return Ok(None) };
        Ok(cursor.next()?.and_then(|tuple| parse_field_order(&tuple.key).map(|found| found.0)))
    }

    /// Visits the entries in the order of deadlines that have passed. Stops if `visit` returns
    /// `false`.
    fn visit_due(
        &self,
        types: DictionaryId,
        id: u64,
        mut visit: impl FnMut(&Due<'_>) -> Result<bool, Failure>,
    ) -> Outcome {
        let (start, end) = due_fields(id, self.now);
        let Some(mut cursor) = self.cursor(types, &start, &end)? else { return Ok(()) };
        let (mut steps, mut all) = (0u32, false);
        while let Some(tuple) = cursor.next()? {
            steps = steps.saturating_add(1);
            if steps.is_multiple_of(256) {
                self.session.check_stopping()?;
            }
            let Some((deadline, part)) = parse_field_order(&tuple.key) else { continue };
            let (place, element) = (field_deadline_key(id, part), element_key(id, part));
            if steps < FEW {
                self.announce(types, &place)?;
                self.announce(types, &element)?;
            } else if !std::mem::replace(&mut all, true) {
                // The reads of each of them could be too many for a transaction.
                let (first, last) = elements(id);
                self.range(types, &first, &last)?;
                self.range(types, &deadline_of_element(&first), &deadline_of_element(&last))?;
            }
            let found = self.get_in_range(types, &place)?;
            let current = match found {
                Some(found) => decode(&found, &place)? == deadline,
                None => false,
            };
            let stored = self.view()?.value_len(types, &element)?.is_some();
            if !visit(&Due { deadline, part, current, stored })? {
                break;
            }
        }
        Ok(())
    }
    /// Returns the number of fields that are stored although they have expired, or `None` if there
    /// are at least `most` entries to visit.
    fn count_due(&self, types: DictionaryId, id: u64, most: u32) -> Result<Option<i64>, Failure> {
        let (mut due, mut visited) = (0, 0u32);
        self.visit_due(types, id, |field| {
            due += i64::from(field.current && field.stored);
            visited = visited.saturating_add(1);
            Ok(visited < most)
        })?;
        Ok((visited < most).then_some(due))
    }
    /// Returns how many of the `stored` fields of a hash exist. This visits all that have expired.
    pub(super) fn all_living(
        &self,
        types: DictionaryId,
        id: u64,
        stored: i64,
    ) -> Result<i64, Failure> {
        Ok(stored - self.count_due(types, id, u32::MAX)?.unwrap_or(stored))
    }
    /// Returns how many fields of a hash exist of which many have expired. If these are not few of
    /// the stored fields, all fields are passed in the order of their names, next to their
    /// deadlines: a visit of those that have expired looks up each, which takes longer for one.
    pub(super) fn living_of(&self, of: &Collection) -> Result<i64, Failure> {
        let stored = self.count(of.id)?;
        let (start, end) = elements(of.id);
        if stored - of.live.count < stored / EACH_LOOKED_UP {
            return self.all_living(of.types, of.id, stored);
        }
        let deadlines = self.deadlines_of(of, (&start, &end), false)?;
        let cursor = self.cursor(of.types, &start, &end)?;
        let Some((mut deadlines, mut cursor)) = deadlines.zip(cursor) else { return Ok(stored) };
        let (mut living, mut steps) = (0, 0u32);
        cursor.visit(false, |tuple| {
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(256) {
                self.session.check_stopping()?;
            }
            living += i64::from(!deadlines.has_passed(tuple.key)?);
            Ok::<_, Failure>(ControlFlow::Continue(()))
        })?;
        Ok(living)
    }
    /// Returns how many of the `stored` fields of a hash exist, and whether that is exact. If many
    /// have expired they are not visited. The number of entries that have passed is known by their
    /// ranks, and each that is left over counts as a field there: so at least as many fields exist
    /// as are returned. None are returned only if none exists, which takes a visit of all: the next
    /// write of the hash removes them.
    pub(super) fn living(
        &self,
        types: DictionaryId,
        id: u64,
        stored: i64,
    ) -> Result<(i64, bool), Failure> {
        if let Some(due) = self.count_due(types, id, FEW - 1)? {
            return Ok((stored - due, true));
        }
        let ((start, place), (_, end)) = (due_fields(id, self.now), fields_from(id, 0));
        let view = self.range(types, &start, &place)?;
        let entries = self.session.db().rank(&view, types, &start[..]..&end[..], &place)?;
        let least = stored.saturating_sub(i64::try_from(entries).unwrap_or(i64::MAX));
        match least {
            1.. => Ok((least, false)),
            _ => Ok((self.all_living(types, id, stored)?, true)),
        }
    }
    /// Returns the length of a hash. It is exact, unless many fields have expired and deadlines are
    /// left over without their fields: then it may be less, until the sweeper has come.
    pub fn len_of_hash(&self, key: &[u8]) -> Result<i64, Failure> {
        match self.roughly(key, Kind::Hash)? {
            None => Ok(0),
            Some(of) if of.exact => Ok(of.live.count),
            Some(of) => match self.count_due(of.types, of.id, COUNTED)? {
                Some(due) => Ok(self.count(of.id)? - due),
                None => Ok(of.live.count),
            },
        }
    }
    /// Removes up to `most` fields of a hash that have expired, fewer if they take more than the
    /// `room` for keys that is left, and the hash with its last field. If fields with a deadline
    /// remain, the sweeper comes again. Returns the number of removed fields, and whether there are
    /// more. The work does not depend on the number of fields that have expired.
    pub fn expire_fields(
        &self,
        key: &[u8],
        head: &Head,
        (most, room): (usize, &mut usize),
        batch: &mut Batch,
    ) -> Result<(usize, bool), Failure> {
        let Some(types) = self.types.filter(|_| head.expiring && !head.is_expired(self.now)) else {
            return Ok((0, false));
        };
        let (mut visited, mut removed, mut next) = (0, 0i64, None);
        self.visit_due(types, head.id, |field| {
            if visited == most || visited > 0 && *room == 0 {
                next = Some(field.deadline);
                return Ok(false);
            }
            visited += 1;
            *room = room.saturating_sub(3 * (field.part.len() + CHANGE));
            batch.delete(types, field_order_key(head.id, field.deadline, field.part));
            if field.current {
                batch.delete(types, field_deadline_key(head.id, field.part));
            }
            if field.current && field.stored {
                batch.delete(types, element_key(head.id, field.part));
                removed += 1;
            }
            Ok(true)
        })?;
        if self.count(head.id)? <= removed {
            self.event(Classes::HASH, "hexpired", key);
            self.clear(key, &Live { head: Some(*head), ..Live::default() }, batch);
            self.event(Classes::GENERIC, "del", key);
            return Ok((removed.max(1) as usize, false));
        }
        if removed > 0 {
            batch.update(types, count_key(head.id), Update::add(-removed));
            self.event(Classes::HASH, "hexpired", key);
        }
        let more = next.is_some();
        if !more {
            next = self.first_deadline(types, head.id, self.now)?;
        }
        if let Some(next) = next {
            batch.put(types, deadline_key(next, key), Bytes::new());
        }
        Ok((removed as usize, more))
    }

    /// Returns the deadlines of the fields in a range of elements, or `None` if elements of this
    /// collection have none.
    pub fn deadlines_of(
        &self,
        of: &Collection,
        (start, end): (&[u8], &[u8]),
        backward: bool,
    ) -> Result<Option<Deadlines>, Failure> {
        if !of.has_deadlines() || start.len() < ELEMENT {
            return Ok(None);
        }
        let (start, end) = (deadline_of_element(start), deadline_of_element(end));
        let Some(mut cursor) = self.cursor(of.types, &start, &end)? else { return Ok(None) };
        if backward {
            cursor.seek_to_end()?;
        }
        let mut deadlines = Deadlines { cursor, backward, next: None, now: self.now };
        deadlines.step()?;
        Ok(Some(deadlines))
    }
}

/// The deadlines of fields, read in step with the fields.
pub struct Deadlines {
    cursor: Cursor,
    backward: bool,
    next: Option<Tuple>,
    now: u64,
}

impl Deadlines {
    fn step(&mut self) -> Outcome {
        self.next = if self.backward { self.cursor.prev()? } else { self.cursor.next()? };
        Ok(())
    }
    /// Returns whether the deadline of the field at this tuple key has passed. Each call must be
    /// for a field after that of the last call, in the direction of the walk.
    pub fn has_passed(&mut self, element: &[u8]) -> Result<bool, Failure> {
        let place = deadline_of_element(element);
        while let Some(tuple) = &self.next {
            let order = tuple.key[..].cmp(&place[..]);
            match if self.backward { order.reverse() } else { order } {
                Ordering::Less => self.step()?,
                Ordering::Equal => {
                    return Ok(is_past(decode(&tuple.value()?, &place)?, self.now));
                }
                Ordering::Greater => break,
            }
        }
        Ok(false)
    }
}
