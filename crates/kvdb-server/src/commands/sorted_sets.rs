//! Sorted sets. Each member is an element whose value is its score. A second tuple places the
//! member in the order of the scores, and among equal scores in the order of the names (of long
//! names by their first bytes, see `names`). A range of scores is a range of keys, and the ranks
//! of members are the ranks of these tuples ([`Kvdb::rank`](kvdb::Kvdb::rank)).

use std::collections::HashMap;

use bytes::Bytes;
use kvdb::{Batch, Tuple, TupleRef};

use super::collections::{
    FEW, Room, TakenFrom, check_element, draw, place_at, rank_of, scan as scan_elements, split,
    visit, wanted, with_name,
};
use super::long_double::LongDouble;
use super::{is, wrong_arity};
use crate::failure::{Failure, Outcome};
use crate::keyspace::{ELEMENT, Kind, from_sortable, member_key, order_key, ordered, sortable};
use crate::names;
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

mod algebra;
mod geo;
mod ranges;

pub use algebra::*;
pub use geo::*;
pub use ranges::*;

/// Parses a number like Redis: NaN is refused, and so is a number that overflows or underflows.
pub fn number(text: &[u8]) -> Option<f64> {
    let number = parsed(text).filter(|_| !text.is_empty())?;
    let digits = || text.iter().take_while(|c| !b"eE".contains(c)).filter(|c| c.is_ascii_digit());
    let lost = match number {
        n if n.is_infinite() => digits().next().is_some(),
        n => n == 0.0 && digits().any(|digit| *digit != b'0'),
    };
    (!lost).then_some(number)
}

/// Parses a bound of a range; a number that overflows becomes infinite, as in Redis.
pub fn parsed(text: &[u8]) -> Option<f64> {
    if text.is_empty() {
        // C parses a text without digits as zero, and so does Redis in bounds.
        return Some(0.0);
    }
    let unsigned = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    if let [b'0', b'x' | b'X', ..] = unsigned {
        return LongDouble::parse(text).map(LongDouble::double);
    }
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Returns the member and the score of a tuple in the order of scores.
pub fn in_order(of: &Collection, tuple: &Tuple) -> Result<(Bytes, f64), Failure> {
    let score = tuple.key.get(ELEMENT..ELEMENT + 8).and_then(decode).ok_or_else(|| broken(of))?;
    Ok((names::name(tuple.key.slice(ELEMENT + 8..), || tuple.value())?, score))
}

/// Calls `with` with the member and the score of a tuple in the order of scores.
fn with_order<T>(
    of: &Collection,
    tuple: TupleRef<'_>,
    with: impl FnOnce(&[u8], f64) -> T,
) -> Result<T, Failure> {
    let score = tuple.key.get(ELEMENT..ELEMENT + 8).and_then(decode).ok_or_else(|| broken(of))?;
    with_name(tuple, ELEMENT + 8, |member| with(member, score))
}

/// Writes a member, and its score if `score` is set.
fn send_pair(member: &[u8], score: Option<f64>, out: &mut Output) {
    if score.is_some() && out.resp3 {
        out.array(2);
    }
    out.bulk(member);
    if let Some(score) = score {
        out.double(score);
    }
}

fn broken(of: &Collection) -> Failure {
    Failure::Corrupt(format!("a score of collection {:x} does not decode", of.id))
}

fn decode(bytes: &[u8]) -> Option<f64> {
    bytes.try_into().ok().map(from_sortable)
}

/// Returns the score of a member, or `None` if the set does not have the member.
fn score(seen: &Seen<'_>, of: &Collection, member: &[u8]) -> Result<Option<f64>, Failure> {
    let bytes = seen.member(of, member)?;
    bytes.map(|bytes| decode(&bytes).ok_or_else(|| broken(of))).transpose()
}

/// Sets the score of a member of the sorted set under `key`.
pub fn put(
    seen: &Seen<'_>,
    (key, of): (&[u8], &Collection),
    member: &[u8],
    (old, new): (Option<f64>, f64),
    batch: &mut Batch,
) {
    if let Some(old) = old {
        batch.delete_present(of.types, order_key(of.id, old, member));
    }
    seen.put_member(key, of, member, sortable(new).to_vec(), batch);
    let place = order_key(of.id, new, member);
    batch.put_new(of.types, place, names::stored(member, Bytes::new()));
}

fn take_out(of: &Collection, member: &[u8], score: f64, batch: &mut Batch) {
    batch.delete(of.types, member_key(of.id, member));
    batch.delete_present(of.types, order_key(of.id, score, member));
}

#[derive(Default)]
struct Adding {
    only_new: bool,
    only_old: bool,
    greater: bool,
    less: bool,
    changed: bool,
    increment: bool,
}

impl Adding {
    fn parse(args: Arguments<'_>) -> (Adding, usize) {
        let (mut adding, mut at) = (Adding::default(), 2);
        while let Some(option) = args.get(at) {
            match option {
                o if is(o, "nx") => adding.only_new = true,
                o if is(o, "xx") => adding.only_old = true,
                o if is(o, "gt") => adding.greater = true,
                o if is(o, "lt") => adding.less = true,
                o if is(o, "ch") => adding.changed = true,
                o if is(o, "incr") => adding.increment = true,
                _ => break,
            }
            at += 1;
        }
        (adding, at)
    }
    fn allows(&self, old: Option<f64>, new: f64) -> bool {
        match old {
            None => !self.only_old,
            Some(old) => {
                !self.only_new && (!self.greater || new > old) && (!self.less || new < old)
            }
        }
    }
}

/// Executes `ZADD key [NX|XX] [GT|LT] [CH] [INCR] score member ...`.
pub fn zadd(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (adding, at) = Adding::parse(args);
    let pairs = args.len() - at;
    if pairs == 0 || !pairs.is_multiple_of(2) {
        return Err(Failure::SYNTAX);
    }
    if adding.only_new && adding.only_old {
        return Err(Failure::request("XX and NX options at the same time are not compatible"));
    }
    if adding.greater && adding.less || adding.only_new && (adding.greater || adding.less) {
        return Err(Failure::request(
            "GT, LT, and/or NX options at the same time are not compatible",
        ));
    }
    if adding.increment && pairs > 2 {
        return Err(Failure::request("INCR option supports a single increment-element pair"));
    }
    add(s, args, at, &adding, out)
}

pub fn zincrby(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    add(s, args, 2, &Adding { increment: true, ..Adding::default() }, out)
}

fn add(s: &Session, args: Arguments<'_>, at: usize, adding: &Adding, out: &mut Output) -> Outcome {
    let key = args.at(1);
    s.check_key(key)?;
    let mut pairs = Vec::with_capacity((args.len() - at) / 2);
    for (score, member) in args.from(at).step_by(2).zip(args.from(at + 1).step_by(2)) {
        check_element(s, member)?;
        pairs.push((number(score).ok_or(Failure::NOT_A_FLOAT)?, member));
    }
    add_pairs(s, key, &pairs, adding, out)
}

/// Adds members with their scores, and replies like `ZADD`.
fn add_pairs(
    s: &Session,
    key: &[u8],
    pairs: &[(f64, &[u8])],
    adding: &Adding,
    out: &mut Output,
) -> Outcome {
    let (added, changed, last) = s.change(s.typed()?, [key], |seen, batch| {
        let mut changes = Batch::new();
        let of = seen.begin_collection(key, Kind::SortedSet, || s.random(), &mut changes)?;
        let (mut added, mut changed, mut last) = (0, 0, None);
        // The map has the scores that this command has already set, because the batch cannot be
        // read.
        let mut given: HashMap<&[u8], f64> = HashMap::new();
        for (value, member) in pairs {
            let old = match given.get(member) {
                Some(score) => Some(*score),
                None => score(seen, &of, member)?,
            };
            let new = match old {
                Some(old) if adding.increment => old + value,
                _ => *value,
            };
            if new.is_nan() {
                return Err(Failure::request("resulting score is not a number (NaN)"));
            }
            if !adding.allows(old, new) {
                continue;
            }
            last = Some(new);
            added += i64::from(old.is_none());
            if old != Some(new) {
                changed += 1;
                put(seen, (key, &of), member, (old, new), &mut changes);
            }
            given.insert(member, new);
        }
        if changed > 0 {
            *batch = changes;
            let name = if adding.increment { "zincr" } else { "zadd" };
            seen.event(Classes::SORTED_SET, name, key);
            seen.counted(key, &of, added, batch);
        }
        Ok((added, changed, last))
    })?;
    match (adding.increment, last) {
        (true, Some(score)) => out.double(score),
        (true, None) => out.null(),
        (false, _) => out.integer(if adding.changed { changed } else { added }),
    }
    Ok(())
}

pub fn zrem(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let removed = match s.existing()? {
        None => 0,
        Some(space) => s.change(space, [key], |seen, batch| {
            let Some(of) = seen.collection(key, Kind::SortedSet)? else { return Ok(0) };
            let members: std::collections::HashSet<&[u8]> = args.from(2).collect();
            let mut removed = 0;
            for member in members {
                if let Some(score) = score(seen, &of, member)? {
                    take_out(&of, member, score, batch);
                    removed += 1;
                }
            }
            if removed > 0 {
                seen.event(Classes::SORTED_SET, "zrem", key);
            }
            seen.counted(key, &of, -removed, batch);
            Ok(removed)
        })?,
    };
    out.integer(removed);
    Ok(())
}

pub fn zcard(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let of = s.see()?.collection(args.at(1), Kind::SortedSet)?;
    out.integer(of.map_or(0, |of| of.live.count));
    Ok(())
}

fn send_score(score: Option<f64>, out: &mut Output) {
    match score {
        Some(score) => out.double(score),
        None => out.null(),
    }
}

pub fn zscore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let seen = s.see()?;
    let found = match seen.collection(args.at(1), Kind::SortedSet)? {
        None => None,
        Some(of) => score(&seen, &of, args.at(2))?,
    };
    send_score(found, out);
    Ok(())
}

pub fn zmscore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let seen = s.see()?;
    let of = seen.collection(args.at(1), Kind::SortedSet)?;
    let mut found = Vec::with_capacity(args.len() - 2);
    for member in args.from(2) {
        found.push(match &of {
            None => None,
            Some(of) => score(&seen, of, member)?,
        });
    }
    out.array(found.len());
    found.into_iter().for_each(|score| send_score(score, out));
    Ok(())
}

pub fn zrank(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    rank(s, args, "zrank", false, out)
}
pub fn zrevrank(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    rank(s, args, "zrevrank", true, out)
}

/// Replies with the number of members that come before a member.
fn rank(
    s: &Session,
    args: Arguments<'_>,
    command: &str,
    backward: bool,
    out: &mut Output,
) -> Outcome {
    let with_score = match args.get(3) {
        None => false,
        Some(o) if is(o, "withscore") && args.len() == 4 => true,
        Some(_) if args.len() > 4 => return Err(wrong_arity(command)),
        Some(_) => return Err(Failure::SYNTAX),
    };
    let seen = s.see()?;
    let of = seen.collection(args.at(1), Kind::SortedSet)?;
    let found = match &of {
        None => None,
        Some(of) => score(&seen, of, args.at(2))?.map(|score| (of, score)),
    };
    let Some((of, score)) = found else {
        match with_score {
            true => out.null_array(),
            false => out.null(),
        }
        return Ok(());
    };
    let (start, end) = ordered(of.id);
    let place = order_key(of.id, score, args.at(2));
    let before = rank_of(s, &seen, of, (&start, &end), &place)?;
    let rank = if backward { of.live.count - 1 - before } else { before };
    if with_score {
        out.array(2);
    }
    out.integer(rank);
    if with_score {
        out.double(score);
    }
    Ok(())
}

pub fn zpopmin(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    pop(s, args, false, out)
}
pub fn zpopmax(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    pop(s, args, true, out)
}

fn pop(s: &Session, args: Arguments<'_>, backward: bool, out: &mut Output) -> Outcome {
    if args.len() > 3 {
        return Err(Failure::SYNTAX);
    }
    let count = match args.get(2).map(integer) {
        None => 1,
        Some(Some(count)) if count >= 0 => count as usize,
        Some(_) => return Err(Failure::request("value is out of range, must be positive")),
    };
    let key = args.at(1);
    if count > FEW
        && let Some(taken) = pop_many(s, key, count, backward)?
    {
        let each = if out.resp3 { 1 } else { 2 };
        out.array(taken.count * each);
        taken.answer(
            s,
            out,
            each,
            || true,
            |tuple, out| {
                with_order(&taken.of, tuple, |member, score| send_pair(member, Some(score), out))
            },
        );
        return Ok(());
    }
    let popped = pop_from(s, key, count, backward)?;
    match (args.get(2), out.resp3) {
        (None, true) => match popped.first() {
            None => out.array(0),
            Some((member, score)) => {
                out.array(2);
                out.bulk(member);
                out.double(*score);
            }
        },
        _ => send_pairs(&popped, true, out),
    }
    Ok(())
}

/// Takes up to `count` members, starting at the lowest or the highest score.
pub fn pop_from(
    s: &Session,
    key: &[u8],
    count: usize,
    backward: bool,
) -> Result<Vec<(Bytes, f64)>, Failure> {
    let Some(space) = s.existing()? else { return Ok(Vec::new()) };
    s.change(space, [key], |seen, batch| {
        let Some(of) = seen.collection(key, Kind::SortedSet)? else { return Ok(Vec::new()) };
        let (start, end) = ordered(of.id);
        let (mut room, mut popped) = (Room::of(s), Vec::new());
        if count > 0 {
            visit(s, seen, &of, (&start, &end), backward, |tuple| {
                let (member, score) = in_order(&of, tuple)?;
                room.take(member.len())?;
                take_out(&of, &member, score, batch);
                popped.push((member, score));
                Ok(popped.len() < count)
            })?;
        }
        if !popped.is_empty() {
            let name = if backward { "zpopmax" } else { "zpopmin" };
            seen.event(Classes::SORTED_SET, name, key);
        }
        seen.counted(key, &of, -(popped.len() as i64), batch);
        Ok(popped)
    })
}

/// Takes many members, starting at the lowest or the highest score. Returns `None`, and takes
/// none, unless more than [`FEW`] can be taken.
fn pop_many(
    s: &Session,
    key: &[u8],
    wanted: usize,
    backward: bool,
) -> Result<Option<TakenFrom>, Failure> {
    let Some(space) = s.existing()? else { return Ok(None) };
    s.change(space, [key], |seen, batch| {
        let Some(of) = seen.collection(key, Kind::SortedSet)? else { return Ok(None) };
        let len = of.live.count;
        let count = i64::try_from(wanted).unwrap_or(i64::MAX).min(len);
        if count <= FEW as i64 {
            return Ok(None);
        }
        let (mut start, mut end) = ordered(of.id);
        if count < len {
            // `edge` is the rank of the first member that stays or, in the backward direction, of
            // the first member that is taken.
            let edge = if backward { len - count } else { count };
            let all = (&start[..], &end[..]);
            let Some(edge) = place_at(s, seen, &of, all, edge)? else { return Ok(None) };
            if backward {
                start = edge.to_vec();
            } else {
                end = edge.to_vec();
            }
            visit(s, seen, &of, (&start, &end), false, |tuple| {
                let (member, _) = in_order(&of, tuple)?;
                batch.delete(of.types, member_key(of.id, &member));
                seen.relieve(batch, member.len())?;
                Ok(true)
            })?;
            batch.delete_range(of.types, start.clone(), end.clone());
        }
        let name = if backward { "zpopmax" } else { "zpopmin" };
        seen.event(Classes::SORTED_SET, name, key);
        seen.counted(key, &of, -count, batch);
        let (state, range) = (seen.state()?, (start, end));
        Ok(Some(TakenFrom { state, of, range, backward, count: count as usize }))
    })
}

/// Replies with members, and with their scores if `scores` is set.
fn send_pairs(pairs: &[(Bytes, f64)], scores: bool, out: &mut Output) {
    out.array(if scores && !out.resp3 { pairs.len() * 2 } else { pairs.len() });
    for (member, score) in pairs {
        send_pair(member, scores.then_some(*score), out);
        out.send_if_large();
    }
}

/// Executes `ZRANDMEMBER key [count [WITHSCORES]]`.
pub fn zrandmember(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let scores = match args.get(3) {
        None => false,
        Some(o) if is(o, "withscores") && args.len() == 4 => true,
        Some(_) => return Err(Failure::SYNTAX),
    };
    let seen = s.see()?;
    let of = seen.collection(args.at(1), Kind::SortedSet)?;
    let count = of.map_or(0, |of| of.live.count);
    let (n, again) = match args.get(2) {
        None => (1, false),
        Some(number) => wanted(number, count, s)?,
    };
    let (mut room, mut drawn) = (Room::of(s), Vec::new());
    if let Some(of) = &of {
        for tuple in draw(s, &seen, of, n, again)? {
            let (member, value) = split(&tuple)?;
            room.take(member.len())?;
            drawn.push((member, decode(&value).ok_or_else(|| broken(of))?));
        }
    }
    match args.get(2) {
        None => out.value(drawn.first().map(|(member, _)| &member[..])),
        Some(_) => send_pairs(&drawn, scores, out),
    }
    Ok(())
}

pub fn zscan(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    scan_elements(s, args, Kind::SortedSet, out, |tuple, _, out| {
        let (member, value) = split(tuple)?;
        let score =
            decode(&value).ok_or_else(|| Failure::Corrupt("a score does not decode".into()))?;
        out.bulk(&member);
        out.bulk(crate::output::number_text(score).as_bytes());
        Ok(2)
    })
}

/// Replaces the value of a key by a sorted set of the distinct members that `each` passes.
/// `event` is the name of the notification.
fn store(
    s: &Session,
    seen: &Seen<'_>,
    key: &[u8],
    event: &'static str,
    batch: &mut Batch,
    each: impl FnOnce(&mut dyn FnMut(Bytes, f64) -> Outcome) -> Outcome,
) -> Result<i64, Failure> {
    let live = seen.live(key)?;
    let (mut stored, mut count) = (None, 0);
    {
        let batch = &mut *batch;
        each(&mut |member, score| {
            let of = match stored {
                Some(of) => of,
                None => {
                    seen.remove(key, &live, batch);
                    *stored.insert(seen.replace_collection(
                        key,
                        Kind::SortedSet,
                        || s.random(),
                        batch,
                    )?)
                }
            };
            put(seen, (key, &of), &member, (None, score), batch);
            count += 1;
            seen.relieve(batch, 2 * member.len())
        })?;
    }
    match stored {
        None if live.head.is_none() && !live.exists() => return Ok(0),
        None => seen.remove(key, &live, batch),
        Some(_) => {}
    }
    seen.event_of_stored(key, &live, (Classes::SORTED_SET, event), count as usize);
    if let Some(of) = stored {
        seen.counted(key, &of, count, batch);
    }
    Ok(count)
}
