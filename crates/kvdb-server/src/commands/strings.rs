//! Commands on one value, or a list of them, by key.

use bytes::Bytes;
use kvdb::{Batch, Update};

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

/// The value of `key` in the selected dictionary.
pub fn read(s: &mut Session, key: &[u8]) -> Result<Option<Bytes>, Failure> {
    match s.existing()? {
        Some(dict) => s.get(dict, key),
        None => Ok(None),
    }
}

/// The length of the value of `key`; large values are not read for it.
pub fn len(s: &mut Session, key: &[u8]) -> Result<Option<usize>, Failure> {
    match s.existing()? {
        Some(dict) => s.value_len(dict, key),
        None => Ok(None),
    }
}

/// `GETEX` without a time is `GET`.
pub fn getex(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match args.get(2) {
        None => get(s, args, out),
        Some(option) if is(option, "persist") && args.len() == 3 => get(s, args, out),
        Some(_) => Err(Failure::EXPIRY),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum When {
    Always,
    Absent,
    Present,
}

pub fn set(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (mut when, mut old_wanted) = (When::Always, false);
    for option in args.from(3) {
        match option {
            o if is(o, "nx") && when != When::Present => when = When::Absent,
            o if is(o, "xx") && when != When::Absent => when = When::Present,
            o if is(o, "get") => old_wanted = true,
            o if is(o, "keepttl") => {}
            o if is(o, "ex") || is(o, "px") || is(o, "exat") || is(o, "pxat") => {
                return Err(Failure::EXPIRY);
            }
            _ => return Err(Failure::SYNTAX),
        }
    }
    let (old, done) = put_when(s, args.at(1), args.at(2), when, old_wanted)?;
    match (old_wanted, done) {
        (true, _) => out.value(old.as_deref()),
        (false, true) => out.ok(),
        (false, false) => out.null(),
    }
    Ok(())
}

/// Puts a value if `when` holds; gives the old value where it is wanted, and whether it put.
fn put_when(
    s: &mut Session,
    key: &[u8],
    value: &[u8],
    when: When,
    old_wanted: bool,
) -> Result<(Option<Bytes>, bool), Failure> {
    s.check_key(key)?;
    let dict = s.writable()?;
    let put = || {
        let mut batch = Batch::new();
        batch.put(dict, Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        batch
    };
    if when == When::Always && !old_wanted {
        let _held = s.hold(dict, [key])?;
        s.commit(put())?;
        return Ok((None, true));
    }
    let (mut old, mut done) = (None, false);
    s.amend(dict, [key], |view| {
        let present = match old_wanted {
            true => {
                old = view.get(dict, key)?;
                old.is_some()
            }
            false => view.value_len(dict, key)?.is_some(),
        };
        done = when == When::Always || present == (when == When::Present);
        Ok(if done { put() } else { Batch::new() })
    })?;
    Ok((old, done))
}

pub fn setnx(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (_, done) = put_when(s, args.at(1), args.at(2), When::Absent, false)?;
    out.integer(i64::from(done));
    Ok(())
}

pub fn getset(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (old, _) = put_when(s, args.at(1), args.at(2), When::Always, true)?;
    out.value(old.as_deref());
    Ok(())
}

pub fn getdel(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let mut old = None;
    if let Some(dict) = s.existing()? {
        s.amend(dict, [key], |view| {
            old = view.get(dict, key)?;
            let mut batch = Batch::new();
            if old.is_some() {
                batch.delete(dict, Bytes::copy_from_slice(key));
            }
            Ok(batch)
        })?;
    }
    out.value(old.as_deref());
    Ok(())
}

/// All values as of one moment. A value that cannot be read is an error in its place.
pub fn mget(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let dict = s.existing()?;
    if let Some(dict) = dict {
        s.reads(dict, args.from(1))?;
    }
    let view = s.view()?;
    out.array(args.len() - 1);
    for key in args.from(1) {
        if out.is_broken() {
            break;
        }
        match dict.map_or(Ok(None), |dict| view.get(dict, key)) {
            Ok(value) => out.value(value.as_deref()),
            Err(error) => out.error(&Failure::from(error).to_string()),
        }
        out.send_if_large();
    }
    Ok(())
}

pub fn mset(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    put_all(s, args, "mset", false)?;
    out.ok();
    Ok(())
}

pub fn msetnx(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let done = put_all(s, args, "msetnx", true)?;
    out.integer(i64::from(done));
    Ok(())
}

/// All pairs as one commit; with `only_new`, none of them where one of the keys exists.
fn put_all(
    s: &mut Session,
    args: Arguments<'_>,
    name: &str,
    only_new: bool,
) -> Result<bool, Failure> {
    if args.len().is_multiple_of(2) {
        return Err(wrong_arity(name));
    }
    for key in args.from(1).step_by(2) {
        s.check_key(key)?;
    }
    let dict = s.writable()?;
    let keys = || args.from(1).step_by(2);
    let put = || {
        let mut batch = Batch::new();
        for (key, value) in keys().zip(args.from(2).step_by(2)) {
            batch.put(dict, Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        }
        batch
    };
    if !only_new {
        let _held = s.hold(dict, keys())?;
        s.commit(put())?;
        return Ok(true);
    }
    let mut new = false;
    s.amend(dict, keys(), |view| {
        new = true;
        for key in keys() {
            new &= view.value_len(dict, key)?.is_none();
        }
        Ok(if new { put() } else { Batch::new() })
    })?;
    Ok(new)
}

pub fn strlen(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let len = len(s, args.at(1))?.unwrap_or(0);
    out.integer(len as i64);
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
    s: &mut Session,
    key: &[u8],
    update: &Update,
    grown: impl Fn(usize) -> Result<usize, Failure>,
) -> Result<usize, Failure> {
    s.check_key(key)?;
    let dict = s.writable()?;
    let mut len = 0;
    s.amend(dict, [key], |view| {
        let old = view.value_len(dict, key)?.unwrap_or(0);
        len = grown(old)?;
        let name = Bytes::copy_from_slice(key);
        let mut batch = Batch::new();
        if old <= PUT_UP_TO || update.bytes().len() > PUT_UP_TO {
            batch.put(dict, name, update.apply(view.get(dict, key)?.as_deref()));
        } else {
            batch.update(dict, name, update.clone());
        }
        Ok(batch)
    })?;
    Ok(len)
}

/// Replaces a value, or the absence of one, by what `change` makes of it, atomically; gives the new
/// length.
pub fn rewrite(
    s: &mut Session,
    key: &[u8],
    mut change: impl FnMut(Option<&[u8]>) -> Result<Vec<u8>, Failure>,
) -> Result<usize, Failure> {
    s.check_key(key)?;
    let dict = s.writable()?;
    let mut len = 0;
    s.amend(dict, [key], |view| {
        let value = change(view.get(dict, key)?.as_deref())?;
        len = value.len();
        let mut batch = Batch::new();
        batch.put(dict, Bytes::copy_from_slice(key), value);
        Ok(batch)
    })?;
    Ok(len)
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
