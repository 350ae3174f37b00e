//! Commands of Redis 8 that read or write fields of a hash together with their deadlines.

use std::collections::HashSet;

use bytes::Bytes;
use kvdb::Batch;

use super::collections::{Room, check_element};
use super::expiry::time_option;
use super::fields::{NOT_POSITIVE, deadline, named};
use super::{is, wrong_arity};
use crate::failure::{Failure, Outcome};
use crate::keyspace::Kind;
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Collection, Field, Seen};

/// The change of the deadlines of the fields that a command names.
#[derive(Clone, Copy)]
enum Change {
    Keep,
    Persist,
    /// The fields get this deadline, in milliseconds since 1970.
    Set(u64),
    /// The fields are removed.
    Remove,
}

/// The changes of the fields of a hash so far.
#[derive(Default)]
struct Done {
    /// The number of fields removed.
    removed: i64,
    /// The deadline that fields have got.
    given: Option<u64>,
    /// Set if a field has lost its deadline.
    taken: bool,
}

impl Done {
    /// Changes an existing field.
    fn change(
        &mut self,
        change: Change,
        seen: &Seen<'_>,
        of: &Collection,
        (name, field): (&[u8], &Field),
        batch: &mut Batch,
    ) {
        match change {
            Change::Set(at) if at > seen.now => {
                seen.put_deadline(of, name, field, at, batch);
                self.given = Some(at);
            }
            Change::Persist => {
                seen.drop_deadline(of, name, field, batch);
                self.taken |= field.deadline.is_some();
            }
            Change::Set(_) | Change::Remove => {
                seen.remove_field(of, name, field, batch);
                self.removed += 1;
            }
            Change::Keep => {}
        }
    }

    /// Updates the hash as a whole, and records the events.
    fn finish(&self, seen: &Seen<'_>, key: &[u8], of: &Collection, batch: &mut Batch) -> Outcome {
        if let Some(at) = self.given {
            seen.event(Classes::HASH, "hexpire", key);
            seen.name_deadline(key, of, at, batch)?;
        }
        if self.taken {
            seen.event(Classes::HASH, "hpersist", key);
        }
        if self.removed > 0 {
            seen.event(Classes::HASH, "hdel", key);
            seen.counted(key, of, -self.removed, batch);
        }
        Ok(())
    }
}

/// Replies with the values of fields before the change.
fn take<'a>(
    s: &Session,
    key: &[u8],
    fields: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
    change: Change,
    out: &mut Output,
) -> Outcome {
    let values: Vec<Option<Bytes>> = match s.existing()? {
        None => vec![None; fields.len()],
        Some(space) => s.change(space, [key], |seen, batch| {
            let Some(of) = seen.roughly(key, Kind::Hash)? else {
                return Ok(vec![None; fields.len()]);
            };
            let (mut room, mut values) = (Room::of(s), Vec::new());
            let mut met: HashSet<&[u8]> = HashSet::new();
            let mut done = Done::default();
            for name in fields.clone() {
                let mut value = seen.field(&of, name)?;
                room.take(value.as_ref().map_or(0, Bytes::len))?;
                let first = met.insert(name);
                if value.is_some() && first {
                    let field = seen.look_at_field(&of, name)?;
                    done.change(change, seen, &of, (name, &field), batch);
                } else if done.removed > 0 {
                    // The command names this field twice, and has already removed it.
                    value = None;
                }
                values.push(value);
            }
            done.finish(seen, key, &of, batch)?;
            Ok(values)
        })?,
    };
    out.array(values.len());
    for value in values {
        out.value(value.as_deref());
        out.send_if_large();
    }
    Ok(())
}

/// Executes `HGETDEL key FIELDS numfields field ...`.
pub fn hgetdel(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let fields = named(args, 2, NOT_POSITIVE)?;
    take(s, args.at(1), fields, Change::Remove, out)
}

/// Executes `HGETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST] FIELDS numfields field ...`.
pub fn hgetex(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (change, at) = match (args.at(2), time_option(args.at(2))) {
        (_, Some(unit)) => (Change::Set(deadline(args.at(3), unit, s.now(), "hgetex")?), 4),
        (o, None) if is(o, "persist") => (Change::Persist, 3),
        _ => (Change::Keep, 2),
    };
    let fields = named(args, at, NOT_POSITIVE)?;
    take(s, args.at(1), fields, change, out)
}

/// Parses the options of `HSETEX`, and checks the number of fields. Returns the index of the word
/// `FIELDS`, whether the fields must exist (`true`) or must not exist (`false`), and the change
/// of their deadlines.
fn set_options(
    s: &Session,
    args: Arguments<'_>,
) -> Result<(usize, Option<bool>, Option<Change>), Failure> {
    let (mut at, mut only, mut change) = (2, None, None);
    while !is(args.at(at), "fields") {
        match (args.at(at), time_option(args.at(at))) {
            (o, _) if is(o, "fnx") && only.is_none() => only = Some(false),
            (o, _) if is(o, "fxx") && only.is_none() => only = Some(true),
            (o, _) if is(o, "keepttl") && change.is_none() => change = Some(Change::Keep),
            (_, Some(unit)) if change.is_none() => {
                at += 1;
                change = Some(Change::Set(deadline(args.at(at), unit, s.now(), "hsetex")?));
            }
            _ => return Err(Failure::SYNTAX),
        }
        at += 1;
    }
    let number = integer(args.at(at + 1)).filter(|n| *n > 0);
    let number = number.ok_or(Failure::request("invalid number of fields"))?;
    let words = args.len().saturating_sub(at + 2);
    if usize::try_from(number).ok().and_then(|n| n.checked_mul(2)) != Some(words) {
        return Err(wrong_arity("hsetex"));
    }
    Ok((at, only, change))
}

/// Returns whether all of the named fields exist if `wanted` is set, and otherwise whether none
/// of them exists.
fn all_are<'a>(
    seen: &Seen<'_>,
    hash: Option<&Collection>,
    names: impl Iterator<Item = &'a [u8]>,
    wanted: bool,
) -> Result<bool, Failure> {
    for name in names {
        let found = match hash {
            Some(of) => seen.look_at_field(of, name)?.exists,
            None => false,
        };
        if found != wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Executes `HSETEX key [FNX|FXX] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL] FIELDS numfields field
/// value ...`.
pub fn hsetex(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let (at, only, change) = set_options(s, args)?;

    s.check_key(key)?;
    let names = args.from(at + 2).step_by(2);
    names.clone().try_for_each(|name| check_element(s, name))?;
    let pairs = names.zip(args.from(at + 3).step_by(2));
    let s: &Session = s;
    let done = s.change(s.typed()?, [key], |seen, batch| {
        let there = seen.roughly(key, Kind::Hash)?;
        if let Some(wanted) = only
            && !all_are(seen, there.as_ref(), pairs.clone().map(|(name, _)| name), wanted)?
        {
            return Ok(false);
        }
        let past = matches!(change, Some(Change::Set(at)) if at <= seen.now);
        let given = match change {
            Some(Change::Set(at)) if !past => Some(at),
            _ => None,
        };
        if past && there.is_none() {
            return Ok(true);
        }
        let of = seen.begin_collection(key, Kind::Hash, || s.random(), batch)?;
        let mut met: HashSet<&[u8]> = HashSet::new();
        let mut more = 0;
        for (name, value) in pairs.clone() {
            let (field, first) = (seen.look_at_field(&of, name)?, met.insert(name));
            if past {
                if first && field.exists {
                    seen.remove_field(&of, name, &field, batch);
                    more -= 1;
                }
                continue;
            }
            more += i64::from(first && !field.stored);
            seen.put_member(key, &of, name, Bytes::copy_from_slice(value), batch);
            match given {
                Some(at) => seen.put_deadline(&of, name, &field, at, batch),
                None if matches!(change, Some(Change::Keep)) && field.exists => {}
                None => seen.drop_deadline(&of, name, &field, batch),
            }
        }
        if let Some(at) = given {
            seen.name_deadline(key, &of, at, batch)?;
            seen.event(Classes::HASH, "hset", key);
            seen.event(Classes::HASH, "hexpire", key);
        } else if more < 0 {
            seen.event(Classes::HASH, "hdel", key);
        } else if !past {
            seen.event(Classes::HASH, "hset", key);
        }
        seen.counted(key, &of, more, batch);
        Ok(true)
    })?;
    out.integer(i64::from(done));
    Ok(())
}
