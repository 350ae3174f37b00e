//! `DUMP` and `RESTORE`: the value of a key as bytes, which can be stored under a key again, in
//! this store or another one. `RESTORE` stores the elements in portions, so that the changes of a
//! payload of many small elements are not all in memory at the same time.

use bytes::Bytes;
use kvdb::Batch;

use self::payload::{Content, Payload};
use super::collections::{check_element, member, name, split, visit};
use super::expiry::Time;
use super::{is, lists, sorted_sets, streams};
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Kind, Live, element_key, elements};
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Collection, Field, Seen};

mod payload;

pub use self::payload::is_sound;

impl Content<'_> {
    /// Checks the names of the elements, which have their own length limit.
    fn check(&self, s: &Session) -> Outcome {
        match self {
            Content::String(_) | Content::List(_) => Ok(()),
            Content::Hash(fields) => fields.iter().try_for_each(|(name, _)| check_element(s, name)),
            Content::Expiring(fields) => {
                fields.iter().try_for_each(|(_, name, _)| check_element(s, name))
            }
            Content::Set(members) => members.iter().try_for_each(|name| check_element(s, name)),
            Content::Stream(elements) => streams::check_names(s, elements),
            Content::SortedSet(members) => {
                members.iter().try_for_each(|(name, _)| check_element(s, name))
            }
        }
    }

    /// Stores the content under a key and replaces its previous value. The changes are made in
    /// portions (see [`Seen::relieve`]), because an element in a batch takes many times the bytes
    /// that it has.
    fn put(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        key: &[u8],
        there: &Live,
        batch: &mut Batch,
    ) -> Result<Live, Failure> {
        if let Content::String(value) = self {
            return seen.put_string(key, there, Bytes::copy_from_slice(value), batch);
        }
        seen.remove(key, there, batch);
        if !there.exists() {
            seen.event(Classes::NEW, "new", key);
        }
        let begin =
            |kind, batch: &mut Batch| seen.replace_collection(key, kind, || s.random(), batch);
        let (of, count) = match self {
            Content::String(_) => return Ok(*there),
            Content::List(values) => {
                let values = values.iter().map(|value| Bytes::copy_from_slice(value));
                return Ok(lists::put_all(s, seen, key, values, batch)?.live);
            }
            Content::Hash(fields) => {
                let of = begin(Kind::Hash, batch)?;
                for (name, value) in fields {
                    seen.put_member(key, &of, name, Bytes::copy_from_slice(value), batch);
                    seen.relieve(batch, name.len() + value.len())?;
                }
                (of, fields.len())
            }
            Content::Expiring(fields) => {
                let mut of = begin(Kind::Hash, batch)?;
                for (deadline, name, value) in fields {
                    seen.put_member(key, &of, name, Bytes::copy_from_slice(value), batch);
                    if *deadline > 0 {
                        seen.put_deadline(&of, name, &Field::default(), *deadline, batch);
                        seen.relieve(batch, 2 * name.len())?;
                    }
                    seen.relieve(batch, name.len() + value.len())?;
                }
                let first = fields.iter().map(|field| field.0).filter(|at| *at > 0).min();
                seen.name_deadline(key, &of, first.unwrap_or(0), batch)?;
                // This is the head that is currently stored.
                if let Some(head) = &mut of.live.head {
                    head.expiring = true;
                }
                (of, fields.len())
            }
            Content::Stream(elements) => {
                let of = begin(Kind::Stream, batch)?;
                for (name, value) in elements {
                    let own = Bytes::copy_from_slice(value);
                    batch.put(of.types, element_key(of.id, name), own);
                    seen.relieve(batch, name.len() + value.len())?;
                }
                (of, elements.len())
            }
            Content::Set(members) => {
                let of = begin(Kind::Set, batch)?;
                for member in members {
                    seen.put_member(key, &of, member, Bytes::new(), batch);
                    seen.relieve(batch, member.len())?;
                }
                (of, members.len())
            }
            Content::SortedSet(members) => {
                let of = begin(Kind::SortedSet, batch)?;
                for (member, score) in members {
                    sorted_sets::put(seen, (key, &of), member, (None, *score), batch);
                    seen.relieve(batch, 2 * member.len())?;
                }
                (of, members.len())
            }
        };
        seen.counted(key, &of, count as i64, batch);
        Ok(of.live)
    }
}

/// `DUMP key`: replies with the payload of the key, or nil if the key does not exist.
pub fn dump(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (key, seen) = (args.at(1), s.see()?);
    match payload_of(s, &seen, key)? {
        Some(payload) => out.bulk(&payload),
        None => out.null(),
    }
    Ok(())
}

/// Returns the payload of a key, or `None` if the key does not exist.
pub fn payload_of(s: &Session, seen: &Seen<'_>, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
    Ok(payload(s, seen, key)?.map(Payload::finish))
}

fn payload(s: &Session, seen: &Seen<'_>, key: &[u8]) -> Result<Option<Payload>, Failure> {
    let live = seen.live(key)?;
    let Some(kind) = live.kind else { return Ok(None) };
    let most = s.shared.limits.argument;
    if matches!(kind, Kind::String | Kind::Pages) {
        let mut payload = Payload::new(Kind::String, most);
        let text = seen.text(key)?.1;
        payload.fits(text.len())?;
        payload.raw(&seen.part(key, &text, 0..text.len())?)?;
        return Ok(Some(payload));
    }
    let mut payload = Payload::new(kind, most);
    let Some((head, types)) = live.head.zip(seen.types) else { return Ok(None) };
    let of = Collection::found(head.id, types, live);
    if of.has_deadlines()
        && let Some(payload) = with_deadlines(s, seen, &of, most)?
    {
        return Ok(Some(payload));
    }
    let (start, end) = elements(head.id);
    visit(s, seen, &of, (&start, &end), false, |tuple| {
        match kind {
            Kind::List => payload.sized(&tuple.value()?)?,
            Kind::SortedSet => {
                let (member, score) = split(tuple)?;
                payload.raw(&score)?;
                payload.sized(&member)?;
            }
            Kind::Hash => {
                let (field, value) = split(tuple)?;
                payload.sized(&field)?;
                payload.sized(&value)?;
            }
            Kind::Stream => {
                payload.sized(&name(tuple))?;
                payload.sized(&tuple.value()?)?;
            }
            _ => payload.sized(&member(tuple)?)?,
        }
        Ok(true)
    })?;
    Ok(Some(payload))
}

/// Returns the payload of a hash with the deadlines of its fields, or `None` if no field has a
/// deadline.
fn with_deadlines(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    most: usize,
) -> Result<Option<Payload>, Failure> {
    let (mut payload, mut any) = (Payload::of_expiring(most), false);
    let (start, end) = elements(of.id);
    visit(s, seen, of, (&start, &end), false, |tuple| {
        let (name, value) = split(tuple)?;
        let deadline = seen.look_at_field(of, &name)?.deadline.unwrap_or(0);
        any |= deadline > 0;
        payload.raw(&deadline.to_le_bytes())?;
        payload.sized(&name)?;
        payload.sized(&value)?;
        Ok(true)
    })?;
    Ok(any.then_some(payload))
}

/// The options after the payload in a `RESTORE`.
#[derive(Default)]
struct Options {
    replace: bool,
    absolute: bool,
}

impl Options {
    fn parse(args: Arguments<'_>) -> Result<Self, Failure> {
        let mut options = Options::default();
        let mut words = args.from(4);
        while let Some(word) = words.next() {
            let mut number =
                || integer(words.next().ok_or(Failure::SYNTAX)?).ok_or(Failure::NOT_AN_INTEGER);
            match word {
                o if is(o, "replace") => options.replace = true,
                o if is(o, "absttl") => options.absolute = true,
                // The server does not keep idle times or frequencies.
                o if is(o, "idletime") => {
                    if number()? < 0 {
                        return Err(Failure::request("Invalid IDLETIME value, must be >= 0"));
                    }
                }
                o if is(o, "freq") => {
                    if !(0..=255).contains(&number()?) {
                        return Err(Failure::request(
                            "Invalid FREQ value, must be >= 0 and <= 255",
                        ));
                    }
                }
                _ => return Err(Failure::SYNTAX),
            }
        }
        Ok(options)
    }
}

/// Executes `RESTORE key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`.
pub fn restore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let options = Options::parse(args)?;
    s.check_key(key)?;
    s.change(s.typed()?, [key], |seen, batch| {
        let there = seen.live(key)?;
        if there.exists() && !options.replace {
            return Err(Failure::coded(ErrorCode::BusyKey, "Target key name already exists."));
        }
        let ttl = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
        if ttl < 0 {
            return Err(Failure::request("Invalid TTL value, must be >= 0"));
        }
        let content = Content::decode(args.at(3))?;
        content.check(s)?;
        let unit = if options.absolute { Time::AtMillis } else { Time::Millis };
        let deadline = match ttl {
            0 => None,
            _ => Some(unit.deadline(args.at(2), seen.now, "restore")?),
        };
        if deadline.is_some_and(|deadline| deadline <= seen.now) {
            // The deadline has already passed.
            if there.exists() {
                seen.remove(key, &there, batch);
                seen.event(Classes::GENERIC, "del", key);
            }
            return Ok(());
        }
        let live = content.put(s, seen, key, &there, batch)?;
        if deadline.is_some() {
            seen.set_deadline(key, &live, deadline, batch);
        }
        seen.event(Classes::GENERIC, "restore", key);
        Ok(())
    })?;
    out.ok();
    Ok(())
}

/// Stores the content of a payload of this server as a copy. Returns whether it was stored: an
/// existing key is replaced only if `replace` is set.
pub fn store(
    s: &Session,
    key: &[u8],
    payload: &[u8],
    deadline: Option<u64>,
    replace: bool,
) -> Result<bool, Failure> {
    s.change(s.typed()?, [key], |seen, batch| {
        let there = seen.live(key)?;
        if there.exists() && !replace {
            return Ok(false);
        }
        let live = Content::decode(payload)?.put(s, seen, key, &there, batch)?;
        if deadline.is_some() {
            seen.set_deadline(key, &live, deadline, batch);
        }
        seen.event(Classes::GENERIC, "copy_to", key);
        Ok(true)
    })
}
