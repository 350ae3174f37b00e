//! Commands of Redis 8 that read or write fields of a hash together with their deadlines.

use std::collections::HashSet;

use bytes::Bytes;

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

/// The change of the deadlines of the fields that a command names.
#[derive(Clone, Copy)]
enum Change {
    Keep,
    Persist,
    /// In milliseconds since 1970.
    Set(u64),
    /// The fields are removed.
    Remove,
}

/// Replies with the values of fields, as they are before the change.
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
            let (mut removed, mut given, mut taken) = (0, None, false);
            for name in fields.clone() {
                let mut value = seen.field(&of, name)?;
                room.take(value.as_ref().map_or(0, Bytes::len))?;
                let first = met.insert(name);
                if value.is_some() && first {
                    let field = seen.look_at_field(&of, name)?;
                    match change {
                        Change::Set(at) if at > seen.now => {
                            seen.put_deadline(&of, name, &field, at, batch);
                            given = Some(at);
                        }
                        Change::Persist => {
                            seen.drop_deadline(&of, name, &field, batch);
                            taken |= field.deadline.is_some();
                        }
                        Change::Set(_) | Change::Remove => {
                            seen.remove_field(&of, name, &field, batch);
                            removed += 1;
                        }
                        Change::Keep => {}
                    }
                } else if removed > 0 {
                    // The command has removed the field where it named it before.
                    value = None;
                }
                values.push(value);
            }
            if let Some(at) = given {
                seen.event(Classes::HASH, "hexpire", key);
                seen.name_deadline(key, &of, at, batch)?;
            }
            if taken {
                seen.event(Classes::HASH, "hpersist", key);
            }
            if removed > 0 {
                seen.event(Classes::HASH, "hdel", key);
                seen.counted(key, &of, -removed, batch);
            }
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

/// `HGETDEL key FIELDS numfields field ...`
pub fn hgetdel(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let fields = named(args, 2, NOT_POSITIVE)?;
    take(s, args.at(1), fields, Change::Remove, out)
}

/// `HGETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST] FIELDS numfields field ...`
pub fn hgetex(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (change, at) = match (args.at(2), time_option(args.at(2))) {
        (_, Some(unit)) => (Change::Set(deadline(args.at(3), unit, s.now(), "hgetex")?), 4),
        (o, None) if is(o, "persist") => (Change::Persist, 3),
        _ => (Change::Keep, 2),
    };
    let fields = named(args, at, NOT_POSITIVE)?;
    take(s, args.at(1), fields, change, out)
}

/// `HSETEX key [FNX|FXX] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL] FIELDS numfields field value ...`
pub fn hsetex(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
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
    s.check_key(key)?;
    let names = args.from(at + 2).step_by(2);
    names.clone().try_for_each(|name| check_element(s, name))?;
    let pairs = names.zip(args.from(at + 3).step_by(2));
    let s: &Session = s;
    let done = s.change(s.typed()?, [key], |seen, batch| {
        let there = seen.roughly(key, Kind::Hash)?;
        if let Some(wanted) = only {
            for (name, _) in pairs.clone() {
                let found = match &there {
                    Some(of) => seen.look_at_field(of, name)?.exists,
                    None => false,
                };
                if found != wanted {
                    return Ok(false);
                }
            }
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
