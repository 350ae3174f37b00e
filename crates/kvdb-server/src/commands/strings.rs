//! Commands on one value, or a list of them, by key.

use bytes::Bytes;
use kvdb::Update;

use super::expiry::{Time, time_option};
use super::{is, wrong_arity};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

pub fn get(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let value = read(s, args.at(1))?;
    out.value(value.as_deref());
    Ok(())
}

/// The string of `key` in the selected dictionary.
pub fn read(s: &Session, key: &[u8]) -> Result<Option<Bytes>, Failure> {
    let Some(space) = s.existing()? else { return Ok(None) };
    if space.types.is_none()
        && let Some(value) = s.newest(space.strings, key)
    {
        return Ok(value?);
    }
    Ok(s.see()?.string(key)?.1)
}

#[derive(Clone, Copy, PartialEq)]
enum When {
    Always,
    Absent,
    Present,
}

/// What becomes of the deadline of a key that gets a value.
#[derive(Clone, Copy, PartialEq)]
enum Deadline {
    Gone,
    Kept,
    /// Milliseconds since 1970.
    At(u64),
}

/// What `SET` and those like it are asked for besides key and value.
struct Put {
    when: When,
    old_wanted: bool,
    deadline: Deadline,
}

impl Put {
    const PLAIN: Put = Put { when: When::Always, old_wanted: false, deadline: Deadline::Gone };
}

/// `SET key value [NX|XX] [GET] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL]`
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

/// Puts a value if what is asked for holds; gives the old value where it is wanted, and whether it
/// put.
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
        _ => s.writable()?,
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
        if deadline.is_some_and(|at| at <= seen.now) {
            seen.remove(key, &live, batch);
            return Ok((old, true));
        }
        let live = seen.put_string(key, &live, Bytes::copy_from_slice(value), batch);
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
                seen.remove(key, &live, batch);
            }
            Ok(old)
        })?,
    };
    out.value(old.as_deref());
    Ok(())
}

/// `GETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST]`; without an option it is `GET`.
pub fn getex(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let deadline = match (args.get(2), args.len()) {
        (None, _) => return get(s, args, out),
        (Some(o), 3) if is(o, "persist") => None,
        (Some(o), 4) => {
            let unit = time_option(o).ok_or(Failure::SYNTAX)?;
            Some(unit.deadline(args.at(3), s.now(), "getex")?)
        }
        _ => return Err(Failure::SYNTAX),
    };
    let value = match s.existing()? {
        None => None,
        Some(_) => s.change(s.typed()?, [key], |seen, batch| {
            let (live, value) = seen.string(key)?;
            match deadline {
                _ if value.is_none() => {}
                Some(at) if at <= seen.now => seen.remove(key, &live, batch),
                None if live.deadline().is_none() => {}
                deadline => seen.set_deadline(key, &live, deadline, batch),
            }
            Ok(value)
        })?,
    };
    out.value(value.as_deref());
    Ok(())
}

/// All values as of one moment. A value that cannot be read is an error in its place; what is no
/// string is nil.
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
        match seen.string(key) {
            Ok((_, value)) => out.value(value.as_deref()),
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

/// None of the pairs where one of the keys exists.
pub fn msetnx(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    check_pairs(s, args, "msetnx")?;
    let keys = || args.from(1).step_by(2);
    let new = s.change(s.writable()?, keys(), |seen, batch| {
        let mut all = Vec::with_capacity(keys().len());
        for key in keys() {
            let live = seen.live(key)?;
            if live.exists() {
                return Ok(false);
            }
            all.push(live);
        }
        for ((key, value), live) in keys().zip(args.from(2).step_by(2)).zip(&all) {
            seen.put_string(key, live, Bytes::copy_from_slice(value), batch);
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
    let (_, len) = s.see()?.len_of_string(args.at(1))?;
    out.integer(len.unwrap_or(0) as i64);
    Ok(())
}

pub fn getrange(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let start = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let end = integer(args.at(3)).ok_or(Failure::NOT_AN_INTEGER)?;
    let value = read(s, args.at(1))?.unwrap_or_default();
    out.bulk(slice(&value, start, end));
    Ok(())
}

/// Bytes `start` to `end`, both included; negative numbers count from the end.
fn slice(value: &[u8], start: i64, end: i64) -> &[u8] {
    let len = value.len() as i64;
    if start < 0 && end < 0 && start > end {
        return &[];
    }
    let place = |i: i64| if i < 0 { i.saturating_add(len).max(0) } else { i };
    let (start, end) = (place(start), place(end).min(len - 1));
    if start > end { &[] } else { &value[start as usize..=end as usize] }
}

pub fn setrange(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let offset = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    if offset < 0 {
        return Err(Failure::request("offset is out of range"));
    }
    let patch = args.at(3);
    if patch.is_empty() {
        return strlen(s, args, out);
    }
    let end =
        offset.checked_add(patch.len() as i64).filter(|end| *end <= s.shared.limits.value as i64);
    let end = end.ok_or(Failure::TOO_LONG)? as usize;
    let update = Update::patch(offset as usize, patch).ok_or(Failure::TOO_LONG)?;
    let len = change(s, args.at(1), &update, |len| Ok(len.max(end)))?;
    out.integer(len as i64);
    Ok(())
}

pub fn append(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (tail, max) = (args.at(2), s.shared.limits.value);
    let update = Update::append(tail).ok_or(Failure::TOO_LONG)?;
    let len = change(s, args.at(1), &update, |len| {
        (len + tail.len() <= max).then_some(len + tail.len()).ok_or(Failure::TOO_LONG)
    })?;
    out.integer(len as i64);
    Ok(())
}

/// Values and changes up to this length are read and put, bytes: that costs a reader less later.
const PUT_UP_TO: usize = 4 << 10;

/// Changes a value, or the absence of one, atomically; a long value is not read. `grown` gives the
/// new length, which is returned, from the old one.
fn change(
    s: &Session,
    key: &[u8],
    update: &Update,
    grown: impl Fn(usize) -> Result<usize, Failure>,
) -> Result<usize, Failure> {
    s.check_key(key)?;
    let space = s.writable()?;
    s.change(space, [key], |seen, batch| {
        let (live, old) = seen.len_of_string(key)?;
        let len = grown(old.unwrap_or(0))?;
        if old.unwrap_or(0) <= PUT_UP_TO || update.bytes().len() > PUT_UP_TO {
            let value = update.apply(seen.string(key)?.1.as_deref());
            seen.change_string(key, &live, value, batch);
        } else {
            batch.update(space.strings, Bytes::copy_from_slice(key), update.clone());
        }
        Ok(len)
    })
}

/// Replaces a value, or the absence of one, by what `change` makes of it, atomically; `None` leaves
/// it. The deadline stays.
pub fn rewrite<T>(
    s: &Session,
    key: &[u8],
    mut change: impl FnMut(Option<&[u8]>) -> Result<(Option<Vec<u8>>, T), Failure>,
) -> Result<T, Failure> {
    s.check_key(key)?;
    s.change(s.writable()?, [key], |seen, batch| {
        let (live, old) = seen.string(key)?;
        let (value, result) = change(old.as_deref())?;
        if let Some(value) = value {
            seen.change_string(key, &live, value, batch);
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
