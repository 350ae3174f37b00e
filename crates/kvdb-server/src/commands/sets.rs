//! Sets: a member is an element without a value.

use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;
use kvdb::Batch;

use super::collections::{
    Room, answer_all, check_element, draw, name, remove_elements, scan as scan_elements, visit,
    wanted,
};
use super::is;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Kind, element_key, elements};
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

pub fn sadd(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    s.check_key(key)?;
    args.from(2).try_for_each(|member| check_element(s, member))?;
    let added =
        s.change(s.typed()?, [key], |seen, batch| add(s, seen, key, args.from(2), batch))?;
    out.integer(added);
    Ok(())
}

fn add<'k>(
    s: &Session,
    seen: &Seen<'_>,
    key: &[u8],
    members: impl Iterator<Item = &'k [u8]>,
    batch: &mut Batch,
) -> Result<i64, Failure> {
    let of = seen.begin_collection(key, Kind::Set, || s.random(), batch)?;
    let mut new = HashSet::new();
    for member in members {
        let place = element_key(of.id, member);
        if !new.contains(member) && !seen.has(of.types, &place)? {
            batch.put(of.types, place, Bytes::new());
            new.insert(member);
        }
    }
    if !new.is_empty() {
        seen.event(Classes::SET, "sadd", key);
    }
    seen.counted(key, &of, new.len() as i64, batch);
    Ok(new.len() as i64)
}

pub fn srem(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    remove_elements(s, args, out, Kind::Set)
}

pub fn scard(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let of = s.see()?.collection(args.at(1), Kind::Set)?;
    out.integer(of.map_or(0, |of| of.live.count));
    Ok(())
}

fn holds(seen: &Seen<'_>, of: Option<&Collection>, member: &[u8]) -> Result<bool, Failure> {
    match of {
        None => Ok(false),
        Some(of) => seen.has(of.types, &element_key(of.id, member)),
    }
}

pub fn sismember(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let seen = s.see()?;
    let of = seen.collection(args.at(1), Kind::Set)?;
    out.integer(i64::from(holds(&seen, of.as_ref(), args.at(2))?));
    Ok(())
}

pub fn smismember(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let seen = s.see()?;
    let of = seen.collection(args.at(1), Kind::Set)?;
    let mut found = Vec::with_capacity(args.len() - 2);
    for member in args.from(2) {
        found.push(holds(&seen, of.as_ref(), member)?);
    }
    out.array(found.len());
    found.into_iter().for_each(|found| out.integer(i64::from(found)));
    Ok(())
}

pub fn smembers(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let seen = s.see()?;
    let of = seen.collection(args.at(1), Kind::Set)?;
    answer_all(s, &seen, of.as_ref(), out, 1, Output::set, |tuple, out| {
        out.bulk(&name(tuple));
        Ok(())
    })
}

/// `SPOP key [count]`
pub fn spop(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if args.len() > 3 {
        return Err(Failure::SYNTAX);
    }
    let key = args.at(1);
    let count = match args.get(2).map(integer) {
        None => None,
        Some(Some(count)) if count >= 0 => Some(count),
        Some(_) => return Err(Failure::request("value is out of range, must be positive")),
    };
    let popped = match s.existing()? {
        None => Vec::new(),
        Some(space) => s.change(space, [key], |seen, batch| {
            let Some(of) = seen.collection(key, Kind::Set)? else { return Ok(Vec::new()) };
            let n = count.unwrap_or(1).min(of.live.count) as usize;
            let drawn = draw(s, seen, &of, n, false)?;
            for tuple in &drawn {
                batch.delete(of.types, tuple.key.clone());
            }
            if !drawn.is_empty() {
                seen.event(Classes::SET, "spop", key);
            }
            seen.counted(key, &of, -(drawn.len() as i64), batch);
            Ok(drawn.iter().map(name).collect())
        })?,
    };
    match count {
        None => out.value(popped.first().map(|member| &member[..])),
        Some(_) => send(out, &popped, true),
    }
    Ok(())
}

/// `SRANDMEMBER key [count]`
pub fn srandmember(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if args.len() > 3 {
        return Err(Failure::SYNTAX);
    }
    let seen = s.see()?;
    let of = seen.collection(args.at(1), Kind::Set)?;
    let count = of.map_or(0, |of| of.live.count);
    let (n, again) = match args.get(2) {
        None => (1, false),
        Some(number) => wanted(number, count, s)?,
    };
    let drawn = match &of {
        Some(of) => draw(s, &seen, of, n, again)?.iter().map(name).collect(),
        None => Vec::new(),
    };
    match args.get(2) {
        None => out.value(drawn.first().map(|member| &member[..])),
        Some(_) => send(out, &drawn, false),
    }
    Ok(())
}

fn send(out: &mut Output, members: &[Bytes], set: bool) {
    match set {
        true => out.set(members.len()),
        false => out.array(members.len()),
    }
    for member in members {
        out.bulk(member);
        out.send_if_large();
    }
}

pub fn smove(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (from, to, member) = (args.at(1), args.at(2), args.at(3));
    s.check_key(to)?;
    let moved = match s.existing()? {
        None => false,
        Some(_) => s.change(s.typed()?, [from, to], |seen, batch| {
            let source = seen.collection(from, Kind::Set)?;
            let Some(of) = source else { return Ok(false) };
            seen.live(to)?.collection(Kind::Set)?;
            let place = element_key(of.id, member);
            if !seen.has(of.types, &place)? {
                return Ok(false);
            }
            if from != to {
                batch.delete(of.types, place);
                seen.event(Classes::SET, "srem", from);
                seen.counted(from, &of, -1, batch);
                let into = seen.begin_collection(to, Kind::Set, || s.random(), batch)?;
                let place = element_key(into.id, member);
                let new = !seen.has(into.types, &place)?;
                if new {
                    batch.put(into.types, place, Bytes::new());
                    seen.event(Classes::SET, "sadd", to);
                }
                seen.counted(to, &into, i64::from(new), batch);
            }
            Ok(true)
        })?,
    };
    out.integer(i64::from(moved));
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum Algebra {
    Union,
    Intersection,
    Difference,
}

impl Algebra {
    /// What others hear of a result that is stored.
    fn event(self) -> &'static str {
        match self {
            Algebra::Union => "sunionstore",
            Algebra::Intersection => "sinterstore",
            Algebra::Difference => "sdiffstore",
        }
    }
}

/// What sets have together, in order; at most `limit` members.
fn combine<'k>(
    s: &Session,
    seen: &Seen<'_>,
    how: Algebra,
    keys: impl Iterator<Item = &'k [u8]>,
    limit: usize,
) -> Result<Vec<Bytes>, Failure> {
    let mut sets = Vec::new();
    for key in keys {
        sets.push(seen.collection(key, Kind::Set)?);
    }
    let mut room = Room::of(s);
    let mut found = Vec::new();
    if how == Algebra::Union {
        let mut all = BTreeSet::new();
        for of in sets.iter().flatten() {
            let (start, end) = elements(of.id);
            visit(s, seen, of, (&start, &end), false, |tuple| {
                let member = name(tuple);
                room.take(member.len())?;
                all.insert(member);
                Ok(true)
            })?;
        }
        return Ok(all.into_iter().take(limit).collect());
    }
    if how == Algebra::Intersection && sets.iter().any(Option::is_none) {
        return Ok(found);
    }
    let mut first = 0;
    if how == Algebra::Intersection {
        let len = |i: &usize| sets[*i].map_or(0, |of| of.live.count);
        first = (0..sets.len()).min_by_key(len).unwrap_or(0);
    }
    let Some(base) = sets.get(first).copied().flatten() else { return Ok(found) };
    let (start, end) = elements(base.id);
    visit(s, seen, &base, (&start, &end), false, |tuple| {
        let member = name(tuple);
        for (i, of) in sets.iter().enumerate() {
            let inside = i == first || holds(seen, of.as_ref(), &member)?;
            if i != first && inside != (how == Algebra::Intersection) {
                return Ok(true);
            }
        }
        room.take(member.len())?;
        found.push(member);
        Ok(found.len() < limit)
    })?;
    Ok(found)
}

fn answer(s: &Session, args: Arguments<'_>, how: Algebra, out: &mut Output) -> Outcome {
    let found = combine(s, &s.see()?, how, args.from(1), usize::MAX)?;
    send(out, &found, true);
    Ok(())
}

pub fn sunion(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    answer(s, args, Algebra::Union, out)
}
pub fn sinter(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    answer(s, args, Algebra::Intersection, out)
}
pub fn sdiff(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    answer(s, args, Algebra::Difference, out)
}

fn store(s: &Session, args: Arguments<'_>, how: Algebra, out: &mut Output) -> Outcome {
    let key = args.at(1);
    s.check_key(key)?;
    let stored = s.change(s.typed()?, args.from(1), |seen, batch| {
        let found = combine(s, seen, how, args.from(2), usize::MAX)?;
        let live = seen.live(key)?;
        if found.is_empty() && live.head.is_none() && !live.exists() {
            return Ok(0);
        }
        seen.remove(key, &live, batch);
        seen.event_of_stored(key, &live, (Classes::SET, how.event()), found.len());
        if !found.is_empty() {
            let of = seen.replace_collection(key, Kind::Set, || s.random(), batch)?;
            for member in &found {
                batch.put(of.types, element_key(of.id, member), Bytes::new());
            }
            seen.counted(key, &of, found.len() as i64, batch);
        }
        Ok(found.len())
    })?;
    out.integer(stored as i64);
    Ok(())
}

pub fn sunionstore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    store(s, args, Algebra::Union, out)
}
pub fn sinterstore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    store(s, args, Algebra::Intersection, out)
}
pub fn sdiffstore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    store(s, args, Algebra::Difference, out)
}

/// The number of keys in the argument at `at`, which stand behind it.
pub fn key_count(args: Arguments<'_>, at: usize) -> Result<usize, Failure> {
    match integer(args.at(at)) {
        Some(n) if n > 0 && (n as usize) < args.len() - at => Ok(n as usize),
        Some(n) if n > 0 => {
            Err(Failure::request("Number of keys can't be greater than number of args"))
        }
        _ => Err(Failure::request("numkeys should be greater than 0")),
    }
}

/// `LIMIT n` behind the keys; 0 is none.
pub fn limit(args: Arguments<'_>, behind: usize) -> Result<usize, Failure> {
    match (args.get(behind), args.len() - behind) {
        (None, _) => Ok(usize::MAX),
        (Some(o), 2) if is(o, "limit") => match integer(args.at(behind + 1)) {
            Some(0) => Ok(usize::MAX),
            Some(n) if n > 0 => Ok(n as usize),
            _ => Err(Failure::request("LIMIT can't be negative")),
        },
        _ => Err(Failure::SYNTAX),
    }
}

/// `SINTERCARD numkeys key ... [LIMIT n]`
pub fn sintercard(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let n = key_count(args, 1)?;
    let most = limit(args, 2 + n)?;
    let seen = s.see()?;
    let found = combine(s, &seen, Algebra::Intersection, args.from(2).take(n), most)?;
    out.integer(found.len() as i64);
    Ok(())
}

pub fn sscan(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    scan_elements(s, args, Kind::Set, out, |tuple, _, out| {
        out.bulk(&name(tuple));
        Ok(1)
    })
}
