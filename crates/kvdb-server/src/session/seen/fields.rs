//! Deadlines of the fields of hashes. A command sees the fields that exist at its time; changes
//! set, remove and check deadlines.
//!
//! A field that has expired stays stored, and counted, until the sweeper visits it. The deadline
//! of a field is a separate tuple. A merge may therefore leave a deadline without its field, or
//! an entry in the order of deadlines without its deadline. Both have no meaning, and the next
//! writer of the field or the sweeper removes them.

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
    /// Set if the field exists at the time of the command.
    pub exists: bool,
    /// Set if the field is stored, even if it has expired.
    pub stored: bool,
    /// The stored deadline, even if the field itself is not stored.
    pub deadline: Option<u64>,
}

/// An entry in the order of deadlines whose deadline has passed.
struct Due<'a> {
    deadline: u64,
    /// The part of the entry's keys that represents the name of the field.
    part: &'a [u8],
    /// Set if this is the present deadline of the field.
    current: bool,
    /// Set if the field is stored.
    stored: bool,
}

/// Number of entries with passed deadlines up to which a walk announces each read. Beyond it the
/// walk announces reads of the whole hash. Commands that need not know the number of existing
/// fields visit fewer entries.
const FEW: u32 = 64;
/// Number of fields that can be visited in order in the time of one lookup.
const EACH_LOOKED_UP: i64 = 8;
/// Number of entries with passed deadlines below which the length of a hash is always exact.
const COUNTED: u32 = 4096;

fn decode(deadline: &[u8], tuple: &[u8]) -> Result<u64, Failure> {
    deadline.try_into().map(u64::from_be_bytes).map_err(|_| {
        Failure::Corrupt(format!(
            "the deadline of a field does not decode: {}",
            tuple.escape_ascii()
        ))
    })
}

/// Returns the time at which a transaction that is committed later names a hash in the index of
/// all deadlines, for this deadline of a field. Other transactions that set fields to the same
/// deadline must not put the same tuple, which would be a conflict, so each transaction has
/// different times. The times of a transaction are apart from each other, so that a transaction
/// that sets fields to ever new deadlines does not put a tuple for each of them. The sweeper
/// visits the hash early, by at most a sixteenth of the time that is left, and then names the
/// deadline itself.
fn named_at(transaction: TransactionId, deadline: u64, now: u64) -> u64 {
    let apart: u64 = 1 << (1 + deadline.saturating_sub(now) / 16).ilog2();
    // The multiplication moves adjacent numbers far apart.
    let spread = transaction.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let own = ((u128::from(spread) * u128::from(apart)) >> 64) as u64;
    deadline - (deadline % apart + apart - own) % apart
}

impl Collection {
    /// Returns whether the elements of the collection may have deadlines.
    pub fn has_deadlines(&self) -> bool {
        self.live.head.is_some_and(|head| head.expiring)
    }
}

impl Seen<'_> {
    /// Returns the hash under a key for a command that reads fields by their names. Fields are
    /// not counted, because this would take a walk over all expired fields. So the hash may have
    /// no existing field.
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
    /// know the number of its elements. A hash of which many fields have expired may have more
    /// fields than its `count` states. The work does not depend on the number of expired fields.
    pub fn roughly(&self, key: &[u8], kind: Kind) -> Result<Option<Collection>, Failure> {
        let (live, exact) = self.live_with(self.head(key)?, key)?;
        let id = live.collection(kind)?.zip(self.types);
        Ok(id.map(|(id, types)| Collection { id, types, live, fresh: false, exact }))
    }
    /// Returns the value of a field, or `None` if the field does not exist.
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
    /// Sets the deadline of a field in the state `field`. The caller must call
    /// [`Seen::name_deadline`] for the deadline.
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
    /// Records in the head of a hash that its fields may have deadlines, and lets the sweeper
    /// visit the hash at this deadline. The index of all deadlines names a hash no later than at
    /// the first deadline of its fields.
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
        // In a transaction that is committed later, the first deadline may have passed by then.
        // An `EXEC` outside of a joined transaction commits at once.
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
    /// Lets the sweeper visit the fields of this collection under another key.
    pub fn name_again(&self, head: &Head, key: &[u8], batch: &mut Batch) -> Outcome {
        if let (true, Some(types)) = (head.expiring, self.types)
            && let Some(first) = self.first_deadline(types, head.id, 0)?
        {
            batch.put(types, deadline_key(first, key), Bytes::new());
        }
        Ok(())
    }
    /// Removes a deadline that a key no longer has from the index of all deadlines. If fields of
    /// the key have deadlines, the index then names the first of them. It may not have named it
    /// before, because the removed deadline was earlier.
    pub(super) fn forget_deadline(&self, head: &Head, key: &[u8], at: u64, batch: &mut Batch) {
        let Some(types) = self.types else { return };
        if head.expiring {
            match self.first_deadline(types, head.id, 0) {
                Ok(Some(first)) if first != at => {
                    let place = deadline_key(first, key);
                    // An existing entry is not put again, because the sweeper may be removing it.
                    if !self.has(types, &place).unwrap_or(false) {
                        batch.put(types, place, Bytes::new());
                    }
                }
                Ok(None) => {}
                // An entry that was left over has no meaning.
                Ok(Some(_)) | Err(_) => return,
            }
        }
        batch.delete(types, deadline_key(at, key));
    }
    /// Removes from the index of all deadlines the first deadline of the fields of a hash that is
    /// no longer under this key. Other deadlines may be left over until the sweeper visits them.
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

    /// Visits the entries in the order of deadlines whose deadlines have passed. Stops if `visit`
    /// returns `false`.
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
                // The separate reads of the entries could be too many for a transaction.
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
    /// Returns the number of existing fields among the `stored` fields of a hash. This visits all
    /// expired fields.
    pub(super) fn all_living(
        &self,
        types: DictionaryId,
        id: u64,
        stored: i64,
    ) -> Result<i64, Failure> {
        Ok(stored - self.count_due(types, id, u32::MAX)?.unwrap_or(stored))
    }
    /// Returns the number of existing fields of a hash of which many have expired. If the expired
    /// fields are a large part of the stored ones, all fields are visited in the order of their
    /// names, in step with their deadlines. A visit of only the expired fields looks up each of
    /// them, which takes longer for each field.
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
    /// Returns the number of existing fields among the `stored` fields of a hash, and whether
    /// that number is exact. If many fields have expired, they are not visited. The number of
    /// entries with passed deadlines is known by their ranks, and each entry that was left over
    /// counts as an expired field. So at least as many fields exist as are returned. The result
    /// is 0 only if no field exists, which takes a visit of all entries, because the next write
    /// of the hash removes them.
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
    /// Returns the length of a hash. It is exact, unless many fields have expired and deadlines
    /// were left over without their fields. In this case it may be too small until the sweeper
    /// has visited the hash.
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
    /// Removes up to `most` expired fields of a hash, but fewer if they take more than the `room`
    /// that is left for keys, and removes the hash with its last field. If fields with a deadline
    /// remain, the sweeper visits the hash again. Returns the number of removed fields, and
    /// whether there are more. The work does not depend on the number of expired fields.
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
    /// collection have no deadlines.
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
    /// for a field after the field of the last call, in the direction of the walk.
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
