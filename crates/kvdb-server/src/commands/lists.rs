//! Lists. Elements have numbers and are sorted by them; an element added at an end gets a number
//! beyond that end. If all numbers between the ends are in use, the number of an element follows
//! from its rank. Otherwise the element is found by its rank.

use bytes::Bytes;
use kvdb::Batch;

mod ends;
mod moving;

pub use self::ends::End;
use self::ends::{Bounds, MIDDLE, at_bound, number, outermost, place, set_bound, within};
pub use self::moving::{carry_over, end_of, lmove, rpoplpush};
use super::collections::{Answered, FEW, Room, TakenFrom, answer, place_at, visit};
use super::is;
use crate::failure::{Failure, Outcome};
use crate::keyspace::Kind;
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

fn push_all<'k>(
    s: &Session,
    seen: &Seen<'_>,
    key: &[u8],
    end: End,
    values: impl ExactSizeIterator<Item = &'k [u8]>,
    batch: &mut Batch,
) -> Result<i64, Failure> {
    let of = seen.begin_collection(key, Kind::List, || s.random(), batch)?;
    seen.event(Classes::LIST, end.pushed(), key);
    let mut at = outermost(s, seen, &of, end)?;
    let pushed = values.len() as i64;
    if of.live.count == 0 {
        set_bound(&of, end.opposite(), at, batch);
    }
    for (i, value) in values.enumerate() {
        if i > 0 || of.live.count > 0 {
            at = end.beyond(at);
        }
        batch.put(of.types, place(&of, at), Bytes::copy_from_slice(value));
    }
    set_bound(&of, end, at, batch);
    seen.counted(key, &of, pushed, batch);
    Ok(of.live.count + pushed)
}

/// Stores a list of any number of values under a key that the batch has removed.
pub fn put_all(
    s: &Session,
    seen: &Seen<'_>,
    key: &[u8],
    values: impl Iterator<Item = Bytes>,
    batch: &mut Batch,
) -> Result<Collection, Failure> {
    let of = seen.replace_collection(key, Kind::List, || s.random(), batch)?;
    let (mut at, mut count) = (MIDDLE, 0);
    set_bound(&of, End::Left, at, batch);
    for value in values {
        if count > 0 {
            at = End::Right.beyond(at);
        }
        let bytes = value.len();
        batch.put(of.types, place(&of, at), value);
        seen.relieve(batch, bytes)?;
        count += 1;
    }
    set_bound(&of, End::Right, at, batch);
    seen.counted(key, &of, count, batch);
    Ok(of)
}

fn push(s: &Session, args: Arguments<'_>, end: End, only_old: bool, out: &mut Output) -> Outcome {
    let key = args.at(1);
    s.check_key(key)?;
    let len = s.change(s.typed()?, [key], |seen, batch| {
        if only_old && seen.collection(key, Kind::List)?.is_none() {
            return Ok(0);
        }
        push_all(s, seen, key, end, args.from(2), batch)
    })?;
    out.integer(len);
    Ok(())
}

pub fn lpush(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    push(s, args, End::Left, false, out)
}
pub fn rpush(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    push(s, args, End::Right, false, out)
}
pub fn lpushx(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    push(s, args, End::Left, true, out)
}
pub fn rpushx(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    push(s, args, End::Right, true, out)
}

fn pop(s: &Session, args: Arguments<'_>, end: End, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let wanted = match args.get(2).map(integer) {
        None => None,
        Some(Some(n)) if n >= 0 && args.len() == 3 => Some(n as usize),
        Some(_) if args.len() > 3 => {
            return Err(super::wrong_arity(end.popped()));
        }
        Some(_) => return Err(Failure::request("value is out of range, must be positive")),
    };
    if let Some(wanted) = wanted.filter(|wanted| *wanted > FEW)
        && let Some(taken) = pop_many(s, key, end, wanted)?
    {
        out.array(taken.count);
        taken.answer(
            s,
            out,
            1,
            || true,
            |tuple, out| Ok(tuple.with_value(|value| out.bulk(value))?),
        );
        return Ok(());
    }
    let popped = pop_from(s, key, end, wanted.unwrap_or(1))?;
    match (wanted, popped) {
        (None, popped) => out.value(popped.as_ref().and_then(|p| p.first()).map(|v| &v[..])),
        (Some(_), None) => out.null_array(),
        (Some(_), Some(popped)) => {
            out.array(popped.len());
            for value in popped {
                out.bulk(&value);
                out.send_if_large();
            }
        }
    }
    Ok(())
}

/// Takes up to `count` elements from an end. Returns `None` if the list does not exist.
pub fn pop_from(
    s: &Session,
    key: &[u8],
    end: End,
    count: usize,
) -> Result<Option<Vec<Bytes>>, Failure> {
    let Some(space) = s.existing()? else { return Ok(None) };
    s.change(space, [key], |seen, batch| {
        let Some(of) = seen.collection(key, Kind::List)? else { return Ok(None) };
        take(s, seen, key, &of, end, count, batch).map(Some)
    })
}

/// Takes many elements from an end. Returns `None`, and takes none, unless more than [`FEW`] can
/// be taken.
fn pop_many(
    s: &Session,
    key: &[u8],
    end: End,
    wanted: usize,
) -> Result<Option<TakenFrom>, Failure> {
    let Some(space) = s.existing()? else { return Ok(None) };
    s.change(space, [key], |seen, batch| {
        let Some(of) = seen.collection(key, Kind::List)? else { return Ok(None) };
        let len = of.live.count;
        let count = i64::try_from(wanted).unwrap_or(i64::MAX).min(len);
        if count <= FEW as i64 {
            return Ok(None);
        }
        let (mut first, mut last) = within(seen, &of)?;
        if count < len {
            // `stays` is the outermost element that stays in the list.
            let stays = if end == End::Left { count } else { len - 1 - count };
            let Some(stays) = key_at(s, seen, &of, stays)? else { return Ok(None) };
            set_bound(&of, end, number(&stays)?, batch);
            match end {
                End::Left => last = stays.to_vec(),
                End::Right => first = [&stays[..], b"\0"].concat(),
            }
            batch.delete_range(of.types, first.clone(), last.clone());
        }
        seen.event(Classes::LIST, end.popped(), key);
        seen.counted(key, &of, -count, batch);
        let (state, range, backward) = (seen.state()?, (first, last), end == End::Right);
        Ok(Some(TakenFrom { state, of, range, backward, count: count as usize }))
    })
}

fn take(
    s: &Session,
    seen: &Seen<'_>,
    key: &[u8],
    of: &Collection,
    end: End,
    wanted: usize,
    batch: &mut Batch,
) -> Result<Vec<Bytes>, Failure> {
    let (mut room, mut popped) = (Room::of(s), Vec::new());
    if wanted == 1
        && let Some((at, value)) = at_bound(seen, of, end)?
    {
        batch.delete(of.types, place(of, at));
        popped.push(value);
        set_bound(of, end, end.opposite().beyond(at), batch);
        seen.event(Classes::LIST, end.popped(), key);
    } else if wanted > 0 {
        let (start, last) = within(seen, of)?;
        let mut at = None;
        visit(s, seen, of, (&start, &last), end == End::Right, |tuple| {
            room.take(tuple.value_len())?;
            at = Some(number(&tuple.key)?);
            popped.push(tuple.value()?);
            batch.delete(of.types, tuple.key.clone());
            Ok(popped.len() < wanted)
        })?;
        if let Some(at) = at {
            set_bound(of, end, end.opposite().beyond(at), batch);
        }
        seen.event(Classes::LIST, end.popped(), key);
    }
    seen.counted(key, of, -(popped.len() as i64), batch);
    Ok(popped)
}

pub fn lpop(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    pop(s, args, End::Left, out)
}
pub fn rpop(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    pop(s, args, End::Right, out)
}

pub fn llen(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let of = s.see()?.collection(args.at(1), Kind::List)?;
    out.integer(of.map_or(0, |of| of.live.count));
    Ok(())
}

/// Returns the key of the element with this rank.
fn key_at(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    rank: i64,
) -> Result<Option<Bytes>, Failure> {
    if !(0..of.live.count).contains(&rank) {
        return Ok(None);
    }
    key_between(s, seen, of, &Bounds::of(seen, of)?, rank)
}

/// Returns the key of the element with this rank, which must exist.
fn key_between(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    bounds: &Bounds,
    rank: i64,
) -> Result<Option<Bytes>, Failure> {
    if let Some(first) = bounds.dense_from(of) {
        return Ok(Some(place(of, first.saturating_add(rank as u64)).into()));
    }
    let (start, end) = bounds.within(of);
    place_at(s, seen, of, (&start, &end), rank)
}

/// Returns the ranks that two indexes denote in a list of `len` elements.
fn ranks(len: i64, from: i64, to: i64) -> Option<(i64, i64)> {
    let from = if from < 0 { from.saturating_add(len).max(0) } else { from };
    let to = if to < 0 { to.saturating_add(len) } else { to }.min(len - 1);
    (from <= to).then_some((from, to))
}

pub fn lrange(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let from = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let to = integer(args.at(3)).ok_or(Failure::NOT_AN_INTEGER)?;
    let seen = s.see()?;
    if let Some(of) = seen.collection(args.at(1), Kind::List)?
        && let Some((from, to)) = ranks(of.live.count, from, to)
    {
        let bounds = Bounds::of(&seen, &of)?;
        if let Some(start) = key_between(s, &seen, &of, &bounds, from)? {
            let (_, end) = bounds.within(&of);
            let count = (to - from + 1) as usize;
            out.array(count);
            let all = Answered { range: (&start, &end), backward: false, count, each: 1 };
            answer(s, &seen, &of, out, all, |tuple, out| {
                Ok(tuple.with_value(|value| out.bulk(value))?)
            });
            return Ok(());
        }
    }
    out.array(0);
    Ok(())
}

/// Returns the key of the element at an index; a negative index counts from the end.
fn nth(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    index: i64,
) -> Result<Option<Bytes>, Failure> {
    let rank = if index < 0 { index.saturating_add(of.live.count) } else { index };
    key_at(s, seen, of, rank)
}

/// Returns the value of an existing element.
fn value_at(seen: &Seen<'_>, of: &Collection, key: &[u8]) -> Result<Bytes, Failure> {
    seen.get(of.types, key)?.ok_or_else(|| {
        Failure::Corrupt(format!("collection {:x} has fewer elements than it counts", of.id))
    })
}

pub fn lindex(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let seen = s.see()?;
    let found = match seen.collection(args.at(1), Kind::List)? {
        None => None,
        Some(of) => {
            let index = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
            let found = nth(s, &seen, &of, index)?;
            found.map(|key| value_at(&seen, &of, &key)).transpose()?
        }
    };
    out.value(found.as_deref());
    Ok(())
}

pub fn lset(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    const NO_KEY: Failure = Failure::Request(std::borrow::Cow::Borrowed("no such key"));
    let key = args.at(1);
    let index = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let space = s.existing()?.ok_or(NO_KEY)?;
    s.change(space, [key], |seen, batch| {
        let of = seen.collection(key, Kind::List)?.ok_or(NO_KEY)?;
        let place = nth(s, seen, &of, index)?.ok_or(Failure::request("index out of range"))?;
        batch.put(of.types, place, Bytes::copy_from_slice(args.at(3)));
        seen.event(Classes::LIST, "lset", key);
        Ok(())
    })?;
    out.ok();
    Ok(())
}

/// Executes `LREM key count element`.
pub fn lrem(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (key, value) = (args.at(1), args.at(3));
    let count = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let most = if count == 0 { u64::MAX } else { count.unsigned_abs() };
    let removed = match s.existing()? {
        None => 0,
        Some(space) => s.change(space, [key], |seen, batch| {
            let Some(of) = seen.collection(key, Kind::List)? else { return Ok(0) };
            let (start, end) = within(seen, &of)?;
            let (near, far) =
                if count < 0 { (End::Right, End::Left) } else { (End::Left, End::Right) };
            let mut removed = 0u64;
            // These are the new bounds: `kept` is the number of the last visited element that
            // stays, and `stripped` is the number of the last removed element before the first
            // one that stays.
            let (mut kept, mut stripped) = (None, None);
            visit(s, seen, &of, (&start, &end), count < 0, |tuple| {
                if tuple.value_len() == value.len() && tuple.value()? == value {
                    batch.delete(of.types, tuple.key.clone());
                    seen.relieve(batch, tuple.key.len())?;
                    removed += 1;
                    if kept.is_none() {
                        stripped = Some(number(&tuple.key)?);
                    }
                } else {
                    kept = Some(number(&tuple.key)?);
                }
                Ok(removed < most)
            })?;
            if let Some(at) = stripped {
                set_bound(&of, near, far.beyond(at), batch);
            }
            if let Some(at) = kept.filter(|_| removed > 0 && removed < most) {
                set_bound(&of, far, at, batch);
            }
            if removed > 0 {
                seen.event(Classes::LIST, "lrem", key);
            }
            seen.counted(key, &of, -(removed as i64), batch);
            Ok(removed)
        })?,
    };
    out.integer(removed as i64);
    Ok(())
}

pub fn ltrim(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let from = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let to = integer(args.at(3)).ok_or(Failure::NOT_AN_INTEGER)?;
    if let Some(space) = s.existing()? {
        s.change(space, [key], |seen, batch| {
            let Some(of) = seen.collection(key, Kind::List)? else { return Ok(()) };
            seen.event(Classes::LIST, "ltrim", key);
            let Some((from, to)) = ranks(of.live.count, from, to) else {
                seen.counted(key, &of, -of.live.count, batch);
                return Ok(());
            };
            let (start, end) = within(seen, &of)?;
            // A trim costs at most two range tombstones, regardless of the number of elements
            // that they cover.
            if let (true, Some(first)) = (from > 0, nth(s, seen, &of, from)?) {
                set_bound(&of, End::Left, number(&first)?, batch);
                batch.delete_range(of.types, start, first);
            }
            if let (true, Some(last)) = (to + 1 < of.live.count, nth(s, seen, &of, to)?) {
                set_bound(&of, End::Right, number(&last)?, batch);
                batch.delete_range(of.types, [&last[..], b"\0"].concat(), end);
            }
            seen.counted(key, &of, (to - from + 1) - of.live.count, batch);
            Ok(())
        })?;
    }
    out.ok();
    Ok(())
}

/// `LINSERT key BEFORE|AFTER pivot element`: inserts an element. The elements on the shorter side
/// of the pivot move by one.
pub fn linsert(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let after = match args.at(2) {
        o if is(o, "before") => false,
        o if is(o, "after") => true,
        _ => return Err(Failure::SYNTAX),
    };
    let (key, pivot, value) = (args.at(1), args.at(3), args.at(4));
    let len = match s.existing()? {
        None => 0,
        Some(space) => s.change(space, [key], |seen, batch| {
            let Some(of) = seen.collection(key, Kind::List)? else { return Ok(0) };
            let (start, end) = within(seen, &of)?;
            let (mut rank, mut found) = (0, None);
            visit(s, seen, &of, (&start, &end), false, |tuple| {
                if tuple.value_len() == pivot.len() && tuple.value()? == pivot {
                    found = Some(rank + i64::from(after));
                    return Ok(false);
                }
                rank += 1;
                Ok(true)
            })?;
            let Some(rank) = found else { return Ok(-1) };
            let len = of.live.count;
            // Each element on the shorter side takes the number of its outer neighbour.
            let left = rank < len - rank;
            let side = if left { End::Left } else { End::Right };
            let beyond = side.beyond(outermost(s, seen, &of, side)?);
            let (mut free, mut moving) = (beyond, if left { rank } else { len - rank });
            if moving > 0 {
                visit(s, seen, &of, (&start, &end), !left, |tuple| {
                    let value = tuple.value()?;
                    let bytes = value.len();
                    batch.put(of.types, place(&of, free), value);
                    seen.relieve(batch, bytes)?;
                    free = number(&tuple.key)?;
                    moving -= 1;
                    Ok(moving > 0)
                })?;
            }
            batch.put(of.types, place(&of, free), Bytes::copy_from_slice(value));
            set_bound(&of, side, beyond, batch);
            seen.event(Classes::LIST, "linsert", key);
            seen.counted(key, &of, 1, batch);
            Ok(len + 1)
        })?,
    };
    out.integer(len);
    Ok(())
}

/// Executes `LPOS key element [RANK rank] [COUNT n] [MAXLEN n]`.
pub fn lpos(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (mut rank, mut count, mut most) = (1, None, 0);
    let mut options = args.from(3);
    while let Some(option) = options.next() {
        let n = integer(options.next().ok_or(Failure::SYNTAX)?).ok_or(Failure::NOT_AN_INTEGER)?;
        match option {
            o if is(o, "rank") && n == 0 => {
                return Err(Failure::request(
                    "RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list",
                ));
            }
            o if is(o, "rank") && n == i64::MIN => {
                return Err(Failure::request(
                    "value is out of range, value must between -9223372036854775807 and 9223372036854775807",
                ));
            }
            o if is(o, "rank") => rank = n,
            o if is(o, "count") && n < 0 => {
                return Err(Failure::request("COUNT can't be negative"));
            }
            o if is(o, "count") => count = Some(n as usize),
            o if is(o, "maxlen") && n < 0 => {
                return Err(Failure::request("MAXLEN can't be negative"));
            }
            o if is(o, "maxlen") => most = n,
            _ => return Err(Failure::SYNTAX),
        }
    }
    let value = args.at(2);
    let (seen, mut found) = (s.see()?, Vec::new());
    if let Some(of) = seen.collection(args.at(1), Kind::List)? {
        let (start, end) = within(&seen, &of)?;
        let wanted = count.map_or(1, |n| if n == 0 { usize::MAX } else { n });
        let (mut at, mut passed, mut room) = (0, rank.abs() - 1, Room::of(s));
        visit(s, &seen, &of, (&start, &end), rank < 0, |tuple| {
            if tuple.value_len() == value.len() && tuple.value()? == value {
                match passed {
                    0 => {
                        room.take(0)?;
                        found.push(if rank < 0 { of.live.count - 1 - at } else { at });
                    }
                    _ => passed -= 1,
                }
            }
            at += 1;
            Ok(found.len() < wanted && at != most)
        })?;
    }
    match count {
        None => match found.first() {
            Some(at) => out.integer(*at),
            None => out.null(),
        },
        Some(_) => {
            out.array(found.len());
            found.into_iter().for_each(|at| out.integer(at));
        }
    }
    Ok(())
}
