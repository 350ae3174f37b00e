//! Deadlines of the fields of hashes: setting, reading and removing them. The replies are the
//! same as in Redis 7.4: a number for each field.

use std::collections::HashMap;

use super::expiry::{Only, Time, invalid};
use super::is;
use crate::failure::{Failure, Outcome};
use crate::keyspace::Kind;
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Collection, Field};

/// The reply for a field that does not exist.
const ABSENT: i64 = -2;
/// The reply for a field without a deadline.
const NONE: i64 = -1;
/// The reply for a field that does not satisfy the condition.
const REFUSED: i64 = 0;
/// The reply for a field that has got or lost a deadline.
const DONE: i64 = 1;
/// The reply for a field that was removed because the deadline has already passed.
const REMOVED: i64 = 2;

/// The latest deadline that Redis accepts for a field, in milliseconds since 1970.
const LATEST: i64 = (1 << 46) - 1;

/// Parses `FIELDS numfields field ...`, which begins at argument `at` and extends to the end of
/// the command. `few` is the error for a number that is not above 0.
pub fn named<'a>(
    args: Arguments<'a>,
    at: usize,
    few: &'static str,
) -> Result<impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a>, Failure> {
    if !is(args.at(at), "fields") {
        return Err(Failure::request(
            "Mandatory argument FIELDS is missing or not at the right position",
        ));
    }
    let number = integer(args.at(at + 1)).filter(|n| *n > 0).ok_or(Failure::request(few))?;
    if usize::try_from(number).ok() != Some(args.len().saturating_sub(at + 2)) {
        return Err(Failure::request(
            "The `numfields` parameter must match the number of arguments",
        ));
    }
    Ok(args.from(at + 2))
}

/// Parses the deadline of a field, in milliseconds since 1970, which may be in the past.
pub fn deadline(number: &[u8], unit: Time, now: u64, command: &str) -> Result<u64, Failure> {
    let number = integer(number).ok_or(Failure::NOT_AN_INTEGER)?;
    if number < 0 {
        return Err(Failure::request("invalid expire time, must be >= 0"));
    }
    let at = unit.millis(number, now).filter(|at| *at <= LATEST);
    at.and_then(|at| u64::try_from(at).ok()).ok_or_else(|| invalid(command))
}

/// The error for a number of fields that is not above 0.
pub const NOT_POSITIVE: &str = "Number of fields must be a positive integer";

fn reply(answers: &[i64], out: &mut Output) -> Outcome {
    out.array(answers.len());
    answers.iter().for_each(|answer| out.integer(*answer));
    Ok(())
}

pub fn hexpire(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    set(s, args, Time::Seconds, "hexpire", out)
}
pub fn hpexpire(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    set(s, args, Time::Millis, "hpexpire", out)
}
pub fn hexpireat(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    set(s, args, Time::AtSeconds, "hexpireat", out)
}
pub fn hpexpireat(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    set(s, args, Time::AtMillis, "hpexpireat", out)
}

/// Executes `HEXPIRE key time [NX|XX|GT|LT] FIELDS numfields field ...`.
fn set(s: &Session, args: Arguments<'_>, unit: Time, command: &str, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let deadline = deadline(args.at(2), unit, s.now(), command)?;
    let (only, first) = Only::read(args, 3, 1);
    let fields = named(args, first, "Parameter `numFields` should be greater than 0")?;
    let answers = match s.existing()? {
        None => vec![ABSENT; fields.len()],
        Some(space) => s.change(space, [key], |seen, batch| {
            let Some(of) = seen.roughly(key, Kind::Hash)? else {
                return Ok(vec![ABSENT; fields.len()]);
            };
            // The map has the fields that the batch has changed, because the command may name a
            // field twice.
            let mut changed: HashMap<&[u8], Field> = HashMap::new();
            let (mut answers, mut removed, mut given) = (Vec::new(), 0, false);
            for name in fields.clone() {
                let field = match changed.get(name) {
                    Some(field) => *field,
                    None => seen.look_at_field(&of, name)?,
                };
                answers.push(if !field.exists {
                    ABSENT
                } else if !only.allows(field.deadline, deadline as i64) {
                    REFUSED
                } else if deadline <= seen.now {
                    seen.remove_field(&of, name, &field, batch);
                    changed.insert(name, Field::default());
                    removed += 1;
                    REMOVED
                } else {
                    seen.put_deadline(&of, name, &field, deadline, batch);
                    changed.insert(name, Field { deadline: Some(deadline), ..field });
                    given = true;
                    DONE
                });
            }
            if given {
                seen.event(Classes::HASH, "hexpire", key);
                seen.name_deadline(key, &of, deadline, batch)?;
            }
            if removed > 0 {
                seen.event(Classes::HASH, "hdel", key);
                seen.counted(key, &of, -removed, batch);
            }
            Ok(answers)
        })?,
    };
    reply(&answers, out)
}

/// Executes `HPERSIST key FIELDS numfields field ...`.
pub fn hpersist(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let fields = named(args, 2, NOT_POSITIVE)?;
    let answers = match s.existing()? {
        None => vec![ABSENT; fields.len()],
        Some(space) => s.change(space, [key], |seen, batch| {
            let Some(of) = seen.roughly(key, Kind::Hash)? else {
                return Ok(vec![ABSENT; fields.len()]);
            };
            let mut changed: HashMap<&[u8], Field> = HashMap::new();
            let mut answers = Vec::new();
            for name in fields.clone() {
                let field = match changed.get(name) {
                    Some(field) => *field,
                    None => seen.look_at_field(&of, name)?,
                };
                answers.push(match field {
                    Field { exists: false, .. } => ABSENT,
                    Field { deadline: None, .. } => NONE,
                    _ => {
                        seen.drop_deadline(&of, name, &field, batch);
                        changed.insert(name, Field { deadline: None, ..field });
                        DONE
                    }
                });
            }
            if !changed.is_empty() {
                seen.event(Classes::HASH, "hpersist", key);
            }
            Ok(answers)
        })?,
    };
    reply(&answers, out)
}

pub fn httl(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    // The time is rounded up, as in Redis.
    tell(s, args, out, |at, now| (at - now + 999) / 1000)
}
pub fn hpttl(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    tell(s, args, out, |at, now| at - now)
}
pub fn hexpiretime(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    tell(s, args, out, |at, _| (at + 999) / 1000)
}
pub fn hpexpiretime(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    tell(s, args, out, |at, _| at)
}

/// Executes `HTTL key FIELDS numfields field ...` and its variants, which reply with the
/// deadlines of fields.
fn tell(
    s: &Session,
    args: Arguments<'_>,
    out: &mut Output,
    show: impl Fn(i64, i64) -> i64,
) -> Outcome {
    let fields = named(args, 2, NOT_POSITIVE)?;
    let seen = s.see()?;
    let of: Option<Collection> = seen.hash(args.at(1))?;
    // In a damaged store a stored deadline may be any number.
    let signed = |time: u64| i64::try_from(time).unwrap_or(i64::MAX).min(i64::MAX / 2);
    let mut answers = Vec::with_capacity(fields.len());
    for name in fields {
        let field = match &of {
            Some(of) => seen.look_at_field(of, name)?,
            None => Field::default(),
        };
        answers.push(match field {
            Field { exists: false, .. } => ABSENT,
            Field { deadline: None, .. } => NONE,
            Field { deadline: Some(at), .. } => show(signed(at), signed(seen.now)),
        });
    }
    reply(&answers, out)
}
