//! Hashes. Each field is an element, and its value is the value of its tuple. A command reads and
//! writes only the fields that it names.

use std::collections::HashSet;

use bytes::Bytes;
use kvdb::Batch;

use super::collections::{
    answer_all, check_element, draw, member, remove_elements, scan as scan_elements, split, wanted,
    with_name, with_split,
};
use super::long_double::LongDouble;
use super::{is, wrong_arity};
use crate::failure::{Failure, Outcome};
use crate::keyspace::{ELEMENT, Kind};
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

/// Sets fields, and returns the number of new ones.
fn put(s: &Session, args: Arguments<'_>, command: &str) -> Result<i64, Failure> {
    if !args.len().is_multiple_of(2) {
        return Err(wrong_arity(command));
    }
    let key = args.at(1);
    s.check_key(key)?;
    args.from(2).step_by(2).try_for_each(|field| check_element(s, field))?;
    s.change(s.typed()?, [key], |seen, batch| {
        let of = seen.begin_collection(key, Kind::Hash, || s.random(), batch)?;
        let (mut new, mut added) = (HashSet::new(), HashSet::new());
        for (field, value) in args.from(2).step_by(2).zip(args.from(3).step_by(2)) {
            let there = seen.look_at_field(&of, field)?;
            if !there.exists {
                new.insert(field);
            }
            // A field that has expired is still counted in the length.
            if !there.stored {
                added.insert(field);
            }
            seen.drop_deadline(&of, field, &there, batch);
            seen.put_member(key, &of, field, Bytes::copy_from_slice(value), batch);
        }
        seen.event(Classes::HASH, "hset", key);
        seen.counted(key, &of, added.len() as i64, batch);
        Ok(new.len() as i64)
    })
}

pub fn hset(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let new = put(s, args, "hset")?;
    out.integer(new);
    Ok(())
}

pub fn hmset(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    put(s, args, "hmset")?;
    out.ok();
    Ok(())
}

/// Replaces the value of a field, or its absence, by the result of `change`; `None` leaves the
/// field unchanged. The field keeps its deadline. `event` is the name of the notification.
fn rewrite<T>(
    s: &Session,
    key: &[u8],
    field: &[u8],
    event: &'static str,
    mut change: impl FnMut(Option<&[u8]>) -> Result<(Option<Vec<u8>>, T), Failure>,
) -> Result<T, Failure> {
    s.check_key(key)?;
    check_element(s, field)?;
    s.change(s.typed()?, [key], |seen, batch| {
        let mut beginning = Batch::new();
        let of = seen.begin_collection(key, Kind::Hash, || s.random(), &mut beginning)?;
        let old = seen.field(&of, field)?;
        let (value, result) = change(old.as_deref())?;
        if let Some(value) = value {
            *batch = beginning;
            let mut stored = old.is_some();
            if !stored {
                // The field may have expired, or may have a deadline that was left over.
                let there = seen.look_at_field(&of, field)?;
                seen.drop_deadline(&of, field, &there, batch);
                stored = there.stored;
            }
            seen.put_member(key, &of, field, value, batch);
            seen.event(Classes::HASH, event, key);
            seen.counted(key, &of, i64::from(!stored), batch);
        }
        Ok(result)
    })
}

pub fn hsetnx(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let value = args.at(3);
    let new = rewrite(s, args.at(1), args.at(2), "hset", |old| {
        Ok((old.is_none().then(|| value.to_vec()), old.is_none()))
    })?;
    out.integer(i64::from(new));
    Ok(())
}

pub fn hincrby(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let by = integer(args.at(3)).ok_or(Failure::NOT_AN_INTEGER)?;
    let sum = rewrite(s, args.at(1), args.at(2), "hincrby", |old| {
        let old =
            old.map_or(Some(0), integer).ok_or(Failure::request("hash value is not an integer"))?;
        let sum =
            old.checked_add(by).ok_or(Failure::request("increment or decrement would overflow"))?;
        Ok((Some(sum.to_string().into_bytes()), sum))
    })?;
    out.integer(sum);
    Ok(())
}

pub fn hincrbyfloat(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let by = LongDouble::parse(args.at(3)).ok_or(Failure::NOT_A_FLOAT)?;
    if by.is_infinite() {
        return Err(Failure::request("value is NaN or Infinity"));
    }
    let sum = rewrite(s, args.at(1), args.at(2), "hincrbyfloat", |old| {
        let old = old.map_or(Some(LongDouble::ZERO), LongDouble::parse);
        let sum = old.ok_or(Failure::request("hash value is not a float"))?.plus(by);
        let sum = sum.ok_or(Failure::request("increment would produce NaN or Infinity"))?;
        Ok((Some(sum.text().into_bytes()), sum.text()))
    })?;
    out.bulk(sum.as_bytes());
    Ok(())
}

pub fn hget(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let value = read(s, args.at(1), args.at(2))?;
    out.value(value.as_deref());
    Ok(())
}

fn read(s: &Session, key: &[u8], field: &[u8]) -> Result<Option<Bytes>, Failure> {
    let seen = s.see()?;
    match seen.hash(key)? {
        None => Ok(None),
        Some(of) => seen.field(&of, field),
    }
}

pub fn hmget(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let seen = s.see()?;
    let of = seen.hash(args.at(1))?;
    out.array(args.len() - 2);
    for field in args.from(2) {
        let value = match &of {
            None => Ok(None),
            Some(of) => seen.field(of, field),
        };
        match value {
            Ok(value) => out.value(value.as_deref()),
            Err(failure) => out.error(&failure.to_string()),
        }
        out.send_if_large();
        if out.is_broken() {
            break;
        }
    }
    Ok(())
}

pub fn hstrlen(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let len = read(s, args.at(1), args.at(2))?.map_or(0, |value| value.len());
    out.integer(len as i64);
    Ok(())
}

pub fn hexists(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let seen = s.see()?;
    let found = match seen.hash(args.at(1))? {
        None => false,
        Some(of) => seen.look_at_field(&of, args.at(2))?.exists,
    };
    out.integer(i64::from(found));
    Ok(())
}

pub fn hlen(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.integer(s.see()?.len_of_hash(args.at(1))?);
    Ok(())
}

pub fn hdel(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    remove_elements(s, args, out, Kind::Hash)
}

pub fn hgetall(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    all(s, args, out, true, true)
}
pub fn hkeys(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    all(s, args, out, true, false)
}
pub fn hvals(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    all(s, args, out, false, true)
}

fn all(s: &Session, args: Arguments<'_>, out: &mut Output, fields: bool, values: bool) -> Outcome {
    let seen = s.see()?;
    let of = seen.collection(args.at(1), Kind::Hash)?;
    let both = fields && values;
    let header = |out: &mut Output, n| if both { out.map(n) } else { out.array(n) };
    answer_all(s, &seen, of.as_ref(), out, if both { 2 } else { 1 }, header, |tuple, out| {
        if !values {
            return with_name(tuple, ELEMENT, |name| out.bulk(name));
        }
        with_split(tuple, |name, value| {
            if fields {
                out.bulk(name);
            }
            out.bulk(value);
        })
    })
}

/// Executes `HRANDFIELD key [count [WITHVALUES]]`.
pub fn hrandfield(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let values = match args.get(3) {
        None => false,
        Some(o) if is(o, "withvalues") && args.len() == 4 => true,
        Some(_) => return Err(Failure::SYNTAX),
    };
    let seen = s.see()?;
    let of = seen.collection(args.at(1), Kind::Hash)?;
    let count = of.map_or(0, |of| of.live.count);
    let Some(number) = args.get(2) else {
        let one = match &of {
            Some(of) => draw(s, &seen, of, 1, false)?,
            None => Vec::new(),
        };
        let name = one.first().map(member).transpose()?;
        out.value(name.as_deref());
        return Ok(());
    };
    let (n, again) = wanted(number, count, s)?;
    let drawn = match &of {
        Some(of) => draw(s, &seen, of, n, again)?,
        None => Vec::new(),
    };
    out.whole(|out| {
        match values {
            true if out.resp3 => out.array(drawn.len()),
            true => out.array(drawn.len() * 2),
            false => out.array(drawn.len()),
        }
        for tuple in &drawn {
            if values && out.resp3 {
                out.array(2);
            }
            match values {
                false => out.bulk(&member(tuple)?),
                true => {
                    let (name, value) = split(tuple)?;
                    out.bulk(&name);
                    out.bulk(&value);
                }
            }
            out.send_if_large();
            if out.is_overfull() {
                return Err(Failure::Limit("too many bytes of fields at once".into()));
            }
        }
        Ok(())
    })
}

pub fn hscan(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    scan_elements(s, args, Kind::Hash, out, |tuple, values, out| {
        if !values {
            out.bulk(&member(tuple)?);
            return Ok(1);
        }
        let (name, value) = split(tuple)?;
        out.bulk(&name);
        out.bulk(&value);
        Ok(2)
    })
}
