//! Commands that read or write strings by their keys.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use super::expiry::{Time, time_option};
use super::{is, wrong_arity};
use crate::failure::{Failure, Outcome};
use crate::keyspace::Head;
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Seen, Text};

pub fn get(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    match read_newest(s, key)? {
        Some(value) => out.value(value.as_deref()),
        None => reply_with(&s.see()?, key, out)?,
    }
    Ok(())
}

/// Returns the string of a key in the selected dictionary if one lookup suffices, and otherwise
/// `None`.
fn read_newest(s: &Session, key: &[u8]) -> Result<Option<Option<Bytes>>, Failure> {
    let Some(space) = s.existing()? else { return Ok(Some(None)) };
    if space.types.is_some() {
        return Ok(None);
    }
    let Some(value) = s.newest(space.strings, key) else { return Ok(None) };
    let value = value?;
    // A string that was not found may have become too long for one tuple since the dictionary was
    // looked up.
    let sure = value.is_some() || s.existing()?.is_none_or(|space| space.types.is_none());
    Ok(sure.then_some(value))
}

/// Replies with the string of a key of any length.
fn reply_with(seen: &Seen<'_>, key: &[u8], out: &mut Output) -> Outcome {
    let (live, value) = seen.short_string(key)?;
    match live.pages() {
        Some(head) => reply_with_part(seen, &head, 0..head.len, out),
        None => {
            out.value(value.as_deref());
            Ok(())
        }
    }
}

/// Replies with a part of a string in pages, which is sent while it is read. If this function
/// returns an error, nothing has been written.
pub fn reply_with_part(
    seen: &Seen<'_>,
    head: &Head,
    range: Range<u64>,
    out: &mut Output,
) -> Outcome {
    let (len, most) = (range.end - range.start, seen.limits().bulk);
    if len > most {
        return Err(Failure::Limit(format!(
            "the string has {len} bytes, and a reply at most {most}: read it in parts, GETRANGE"
        )));
    }
    out.begin_bulk(len);
    let read = seen.visit_part(head, range, |bytes| Ok(out.add_to_bulk(bytes)));
    out.end_bulk(read)
}

#[derive(Clone, Copy, PartialEq)]
enum When {
    Always,
    Absent,
    Present,
}

/// The deadline of a key after it gets a new value.
#[derive(Clone, Copy, PartialEq)]
enum Deadline {
    Gone,
    Kept,
    /// The key gets this deadline, in milliseconds since 1970.
    At(u64),
}

/// The options of `SET` and its variants.
struct Put {
    when: When,
    old_wanted: bool,
    deadline: Deadline,
}

impl Put {
    const PLAIN: Put = Put { when: When::Always, old_wanted: false, deadline: Deadline::Gone };
}

/// Executes `SET key value [NX|XX] [GET] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL]`.
pub fn set(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let mut put = Put::PLAIN;
    let mut time = None;
    let mut options = args.from(3);
    while let Some(option) = options.next() {
        match option {
            o if is(o, "nx") && put.when != When::Present => put.when = When::Absent,
            o if is(o, "xx") && put.when != When::Absent => put.when = When::Present,
            o if is(o, "get") => put.old_wanted = true,
            o if is(o, "keepttl") && time.is_none() => put.deadline = Deadline::Kept,
            o => match time_option(o) {
                Some(unit) if time.is_none() && put.deadline == Deadline::Gone => {
                    time = Some((unit, options.next().ok_or(Failure::SYNTAX)?));
                }
                _ => return Err(Failure::SYNTAX),
            },
        }
    }
    if let Some((unit, number)) = time {
        put.deadline = Deadline::At(unit.deadline(number, s.now(), "set")?);
    }
    let (old, done) = put_when(s, args.at(1), args.at(2), &put)?;
    match (put.old_wanted, done) {
        (true, _) => out.value(old.as_deref()),
        (false, true) => out.ok(),
        (false, false) => out.null(),
    }
    Ok(())
}

/// Stores a value if its condition holds. Returns the old value if it was requested, and whether
/// the value was stored.
fn put_when(
    s: &Session,
    key: &[u8],
    value: &[u8],
    put: &Put,
) -> Result<(Option<Bytes>, bool), Failure> {
    s.check_key(key)?;
    if put.when == When::Always && !put.old_wanted && put.deadline == Deadline::Gone {
        s.put_blindly(s.writable()?, [(key, value)].into_iter())?;
        return Ok((None, true));
    }
    let space = match put.deadline {
        Deadline::At(_) => s.typed()?,
        _ => s.writable_for(value.len())?,
    };
    s.change(space, [key], |seen, batch| {
        let (live, old) = match put.old_wanted {
            true => seen.string(key)?,
            false => (seen.live(key)?, None),
        };
        if put.when != When::Always && live.exists() != (put.when == When::Present) {
            return Ok((old, false));
        }
        let deadline = match put.deadline {
            Deadline::Gone => None,
            Deadline::Kept => live.deadline(),
            Deadline::At(at) => Some(at),
        };
        let tell = || {
            seen.event(Classes::STRING, "set", key);
            if matches!(put.deadline, Deadline::At(_)) {
                seen.event(Classes::GENERIC, "expire", key);
            }
        };
        if deadline.is_some_and(|at| at <= seen.now) {
            // The deadline has already passed.
            seen.remove(key, &live, batch);
            tell();
            seen.event(Classes::EXPIRED, "expired", key);
            return Ok((old, true));
        }
        let live = seen.put_string(key, &live, Bytes::copy_from_slice(value), batch)?;
        tell();
        if deadline.is_some() {
            seen.set_deadline(key, &live, deadline, batch);
        }
        Ok((old, true))
    })
}

pub fn setnx(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let put = Put { when: When::Absent, ..Put::PLAIN };
    let (_, done) = put_when(s, args.at(1), args.at(2), &put)?;
    out.integer(i64::from(done));
    Ok(())
}

pub fn setex(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    set_for(s, args, Time::Seconds, "setex", out)
}

pub fn psetex(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    set_for(s, args, Time::Millis, "psetex", out)
}

fn set_for(
    s: &Session,
    args: Arguments<'_>,
    unit: Time,
    command: &str,
    out: &mut Output,
) -> Outcome {
    let deadline = Deadline::At(unit.deadline(args.at(2), s.now(), command)?);
    put_when(s, args.at(1), args.at(3), &Put { deadline, ..Put::PLAIN })?;
    out.ok();
    Ok(())
}

pub fn getset(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let put = Put { old_wanted: true, ..Put::PLAIN };
    let (old, _) = put_when(s, args.at(1), args.at(2), &put)?;
    out.value(old.as_deref());
    Ok(())
}

pub fn getdel(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let old = match s.existing()? {
        None => None,
        Some(space) => s.change(space, [key], |seen, batch| {
            let (live, old) = seen.string(key)?;
            if old.is_some() {
                seen.event(Classes::GENERIC, "del", key);
                seen.remove(key, &live, batch);
            }
            Ok(old)
        })?,
    };
    out.value(old.as_deref());
    Ok(())
}

/// `GETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST]`. Without an option it is the same as `GET`.
pub fn getex(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let deadline = match (args.get(2), args.len()) {
        (None, _) => return get(s, args, out),
        (Some(o), 3) if is(o, "persist") => None,
        (Some(o), 4) => {
            let unit = time_option(o).ok_or(Failure::SYNTAX)?;
            match unit.deadline(args.at(3), s.now(), "getex") {
                Ok(deadline) => Some(deadline),
                // As in Redis, the time is not checked if the key does not exist.
                Err(_) if s.see()?.string(key)?.1.is_none() => {
                    out.null();
                    return Ok(());
                }
                Err(failure) => return Err(failure),
            }
        }
        _ => return Err(Failure::SYNTAX),
    };
    let value = match s.existing()? {
        None => None,
        Some(_) => s.change(s.typed()?, [key], |seen, batch| {
            let (live, value) = seen.string(key)?;
            match deadline {
                _ if value.is_none() => {}
                Some(at) if at <= seen.now => {
                    seen.event(Classes::GENERIC, "del", key);
                    seen.remove(key, &live, batch);
                }
                None if live.deadline().is_none() => {}
                deadline => {
                    let name = if deadline.is_some() { "expire" } else { "persist" };
                    seen.event(Classes::GENERIC, name, key);
                    seen.set_deadline(key, &live, deadline, batch);
                }
            }
            Ok(value)
        })?,
    };
    out.value(value.as_deref());
    Ok(())
}

/// Replies with all values in one state. A value that cannot be read is replaced by an error, and
/// a value of another type by nil.
pub fn mget(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let space = s.existing()?;
    if let Some(space) = space {
        s.reads(space.strings, args.from(1))?;
    }
    let seen = s.see()?;
    out.array(args.len() - 1);
    for key in args.from(1) {
        if out.is_broken() {
            break;
        }
        match reply_with(&seen, key, out) {
            Ok(()) => {}
            Err(failure) if failure.is_wrong_type() => out.null(),
            Err(failure) => out.error(&failure.to_string()),
        }
        out.send_if_large();
    }
    Ok(())
}

pub fn mset(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    check_pairs(s, args, "mset")?;
    s.put_blindly(s.writable()?, args.from(1).step_by(2).zip(args.from(2).step_by(2)))?;
    out.ok();
    Ok(())
}

/// Stores all pairs, or none if one of the keys exists.
pub fn msetnx(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    check_pairs(s, args, "msetnx")?;
    let keys = || args.from(1).step_by(2);
    let longest = args.from(2).step_by(2).map(<[u8]>::len).max().unwrap_or(0);
    // A key that is named twice gets only the last of its values, and no pages for the others.
    let last: BTreeMap<&[u8], &[u8]> = keys().zip(args.from(2).step_by(2)).collect();
    let new = s.change(s.writable_for(longest)?, keys(), |seen, batch| {
        let mut all = Vec::with_capacity(last.len());
        for (key, value) in &last {
            let live = seen.live(key)?;
            if live.exists() {
                return Ok(false);
            }
            all.push((key, value, live));
        }
        for (key, value, live) in &all {
            seen.put_string(key, live, Bytes::copy_from_slice(value), batch)?;
            seen.event(Classes::STRING, "set", key);
        }
        Ok(true)
    })?;
    out.integer(i64::from(new));
    Ok(())
}

fn check_pairs(s: &Session, args: Arguments<'_>, name: &str) -> Outcome {
    if args.len().is_multiple_of(2) {
        return Err(wrong_arity(name));
    }
    args.from(1).step_by(2).try_for_each(|key| s.check_key(key))
}

pub fn strlen(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (_, text) = s.see()?.text(args.at(1))?;
    out.integer(text.len() as i64);
    Ok(())
}

pub fn getrange(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let start = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let end = integer(args.at(3)).ok_or(Failure::NOT_AN_INTEGER)?;
    let key = args.at(1);
    let whole = match read_newest(s, key)? {
        Some(value) => value.unwrap_or_default(),
        None => {
            let seen = s.see()?;
            let (live, value) = seen.short_string(key)?;
            if let Some(head) = live.pages() {
                return reply_with_part(&seen, &head, bounds(head.len, start, end), out);
            }
            value.unwrap_or_default()
        }
    };
    out.bulk(slice(&whole, start, end));
    Ok(())
}

/// Returns the bytes from `start` to `end`, both inclusive; negative numbers count from the end.
fn slice(value: &[u8], start: i64, end: i64) -> &[u8] {
    let range = bounds(value.len() as u64, start, end);
    &value[range.start as usize..range.end as usize]
}

/// Returns the range of bytes that two indexes denote in a string of `len` bytes.
fn bounds(len: u64, start: i64, end: i64) -> Range<u64> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    let place = |i: i64| if i < 0 { i.saturating_add(len).max(0) } else { i };
    let (start, end) = (place(start), place(end).min(len - 1));
    if start > end { 0..0 } else { start as u64..end as u64 + 1 }
}

pub fn setrange(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let offset = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let offset = u64::try_from(offset).map_err(|_| Failure::request("offset is out of range"))?;
    let patch = args.at(3);
    if patch.is_empty() {
        return strlen(s, args, out);
    }
    let len = write(s, args.at(1), "setrange", |_| offset, patch)?;
    out.integer(len as i64);
    Ok(())
}

pub fn append(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let len = write(s, args.at(1), "append", |len| len, args.at(2))?;
    out.integer(len as i64);
    Ok(())
}

/// Writes bytes atomically into a string, which is created if necessary, at the offset that `at`
/// returns for the length of the string. Returns the new length.
fn write(
    s: &Session,
    key: &[u8],
    event: &'static str,
    at: impl Fn(u64) -> u64,
    bytes: &[u8],
) -> Result<u64, Failure> {
    edit(s, key, event, |_, text| {
        let at = at(text.len());
        Ok((Some((at, bytes)), text.len().max(at.saturating_add(bytes.len() as u64))))
    })
}

/// Writes the bytes that `change` returns, at the offset that it returns, atomically into a
/// string, which is created if necessary. A long string is not read as a whole. `event` is the
/// name of the notification.
pub fn edit<B: AsRef<[u8]>, T>(
    s: &Session,
    key: &[u8],
    event: &'static str,
    mut change: impl FnMut(&Seen<'_>, &Text) -> Result<(Option<(u64, B)>, T), Failure>,
) -> Result<T, Failure> {
    s.check_key(key)?;
    let mut space = s.writable()?;
    loop {
        let done = s.change(space, [key], |seen, batch| {
            let (live, text) = seen.text(key)?;
            let (write, result) = change(seen, &text)?;
            let done = match write {
                Some((at, bytes)) => {
                    let len = seen.write_part(key, &live, &text, at, bytes.as_ref(), batch)?;
                    seen.event(Classes::STRING, event, key);
                    len
                }
                None => Some(text.len()),
            };
            Ok(done.map(|_| result))
        })?;
        match done {
            Some(result) => return Ok(result),
            // The string becomes too long for one tuple.
            None => space = s.typed()?,
        }
    }
}

/// Atomically replaces a number, or its absence, by the result of `change`; `None` leaves the
/// string unchanged. The key keeps its deadline. `otherwise` returns the error for a string that
/// is too long to be a number. `event` is the name of the notification.
pub fn rewrite<T>(
    s: &Session,
    key: &[u8],
    otherwise: fn() -> Failure,
    event: &'static str,
    mut change: impl FnMut(Option<&[u8]>) -> Result<(Option<Vec<u8>>, T), Failure>,
) -> Result<T, Failure> {
    s.check_key(key)?;
    s.change(s.writable()?, [key], |seen, batch| {
        let (live, old) = seen.number(key, otherwise())?;
        let (value, result) = change(old.as_deref())?;
        if let Some(value) = value {
            seen.change_string(key, &live, value, batch)?;
            seen.event(Classes::STRING, event, key);
        }
        Ok(result)
    })
}

#[cfg(test)]
mod tests {
    use super::slice;

    #[test]
    fn slices_are_those_of_redis() {
        let value = b"This is a string";
        for (start, end, want) in [
            (0, 3, "This"),
            (-3, -1, "ing"),
            (0, -1, "This is a string"),
            (10, 100, "string"),
            (-100, 3, "This"),
            (5, 4, ""),
            (-1, -5, ""),
            (100, 200, ""),
            (0, -100, "T"),
            (i64::MIN, i64::MAX, "This is a string"),
            (i64::MAX, i64::MIN, ""),
        ] {
            assert_eq!(slice(value, start, end), want.as_bytes(), "{start} {end}");
        }
        assert_eq!(slice(b"", 0, -1), b"");
    }
}
