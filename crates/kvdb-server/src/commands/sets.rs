//! Sets. Each member is an element without a value.

use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;
use kvdb::{Batch, Tuple};

use super::collections::{
    FEW, TakenFrom, answer_all, check_element, draw, member as member_of, members, name, paid, pay,
    remove_elements, scan as scan_elements, visit, wanted, with_name,
};
use super::is;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{ELEMENT, Kind, elements, member_key};
use crate::names;
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
        if !new.contains(member) && !seen.has_member(&of, member)? {
            seen.put_member(key, &of, member, Bytes::new(), batch);
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
        Some(of) => seen.has_member(of, member),
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
        with_name(tuple, ELEMENT, |member| out.bulk(member))
    })
}

/// Executes `SPOP key [count]`.
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
    if let Some(wanted) = count.filter(|wanted| *wanted > FEW as i64)
        && let Some((taken, mut chosen)) = pop_many(s, key, wanted)?
    {
        out.set(taken.count);
        taken.answer(
            s,
            out,
            1,
            || chosen.takes_next(),
            |tuple, out| with_name(tuple, ELEMENT, |member| out.bulk(member)),
        );
        return Ok(());
    }
    let popped = match s.existing()? {
        None => Vec::new(),
        Some(space) => s.change(space, [key], |seen, batch| {
            let Some(of) = seen.collection(key, Kind::Set)? else { return Ok(Vec::new()) };
            let n = count.unwrap_or(1).min(of.live.count) as usize;
            let drawn = draw(s, seen, &of, n, false)?;
            let popped = members(s, &drawn)?;
            for tuple in &drawn {
                batch.delete(of.types, tuple.key.clone());
            }
            if !drawn.is_empty() {
                seen.event(Classes::SET, "spop", key);
            }
            seen.counted(key, &of, -(drawn.len() as i64), batch);
            Ok(popped)
        })?,
    };
    match count {
        None => out.value(popped.first().map(|member| &member[..])),
        Some(_) => send(out, &popped, true),
    }
    Ok(())
}

/// A random choice of `wanted` out of `left` elements. Each element is chosen with the same
/// probability. The same seed yields the same choice.
#[derive(Clone)]
struct Chosen {
    seed: u64,
    wanted: u64,
    left: u64,
}

impl Chosen {
    /// Returns whether the next element is drawn.
    fn takes_next(&mut self) -> bool {
        // These are the steps of SplitMix64.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let taken = (mixed ^ (mixed >> 31)) % self.left.max(1) < self.wanted;
        self.left = self.left.saturating_sub(1);
        self.wanted -= u64::from(taken);
        taken
    }
}

/// Takes many random members. Returns `None`, and takes none, unless more than [`FEW`] can be
/// taken.
fn pop_many(s: &Session, key: &[u8], wanted: i64) -> Result<Option<(TakenFrom, Chosen)>, Failure> {
    let Some(space) = s.existing()? else { return Ok(None) };
    s.change(space, [key], |seen, batch| {
        let Some(of) = seen.collection(key, Kind::Set)? else { return Ok(None) };
        let (len, count) = (of.live.count, wanted.min(of.live.count));
        if count <= FEW as i64 {
            return Ok(None);
        }
        let chosen = Chosen { seed: s.random(), wanted: count as u64, left: len as u64 };
        let range = elements(of.id);
        if count < len {
            let mut chosen = chosen.clone();
            visit(s, seen, &of, (&range.0, &range.1), false, |tuple| {
                if chosen.takes_next() {
                    batch.delete(of.types, tuple.key.clone());
                    seen.relieve(batch, tuple.key.len())?;
                }
                Ok(chosen.wanted > 0)
            })?;
        }
        seen.event(Classes::SET, "spop", key);
        seen.counted(key, &of, -count, batch);
        let (state, count) = (seen.state()?, count as usize);
        Ok(Some((TakenFrom { state, of, range, backward: false, count }, chosen)))
    })
}

/// Executes `SRANDMEMBER key [count]`.
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
        Some(of) => members(s, &draw(s, &seen, of, n, again)?)?,
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
            if !seen.has_member(&of, member)? {
                return Ok(false);
            }
            if from != to {
                batch.delete(of.types, member_key(of.id, member));
                seen.event(Classes::SET, "srem", from);
                seen.counted(from, &of, -1, batch);
                let into = seen.begin_collection(to, Kind::Set, || s.random(), batch)?;
                let new = !seen.has_member(&into, member)?;
                if new {
                    seen.put_member(to, &into, member, Bytes::new(), batch);
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
    /// Returns the name of the event for a stored result.
    fn event(self) -> &'static str {
        match self {
            Algebra::Union => "sunionstore",
            Algebra::Intersection => "sinterstore",
            Algebra::Difference => "sdiffstore",
        }
    }
}

/// Visits the members of the union of these collections in the order of their keys. Each member
/// is visited once, with its tuples and the indexes of their collections. Stops if `visit`
/// returns `false`.
pub fn united(
    s: &Session,
    seen: &Seen<'_>,
    all: &[Option<Collection>],
    mut visit: impl FnMut(Bytes, &[(usize, Tuple)]) -> Result<bool, Failure>,
) -> Outcome {
    let mut cursors = Vec::new();
    // `next` has the next element of each cursor, by the part of its key that represents its
    // name.
    let mut next: BTreeSet<(Bytes, usize)> = BTreeSet::new();
    let mut heads: Vec<Option<Tuple>> = vec![None; all.len()];
    for (i, of) in all.iter().enumerate() {
        let mut cursor = None;
        if let Some(of) = of {
            let (start, end) = elements(of.id);
            cursor = seen.cursor(of.types, &start, &end)?;
        }
        if let Some(cursor) = &mut cursor
            && let Some(tuple) = cursor.next()?
        {
            next.insert((name(&tuple), i));
            heads[i] = Some(tuple);
        }
        cursors.push(cursor);
    }
    let mut steps = 0u32;
    while let Some((part, _)) = next.first().cloned() {
        steps = steps.wrapping_add(1);
        if steps.is_multiple_of(256) {
            s.check_stopping()?;
        }
        let mut of = Vec::new();
        while let Some((_, i)) = next.first().filter(|(first, _)| *first == part).cloned() {
            next.pop_first();
            if let Some(tuple) = heads[i].take() {
                of.push((i, tuple));
            }
            if let Some(cursor) = &mut cursors[i]
                && let Some(tuple) = cursor.next()?
            {
                next.insert((name(&tuple), i));
                heads[i] = Some(tuple);
            }
        }
        if !visit(one_name(part, &of)?, &of)? {
            break;
        }
    }
    Ok(())
}

/// Returns the name that a part of a key represents in these tuples; all tuples must have the
/// same name.
fn one_name(part: Bytes, of: &[(usize, Tuple)]) -> Result<Bytes, Failure> {
    let long = names::is_long_in_key(&part);
    let Some((_, first)) = of.first().filter(|_| long) else { return Ok(part) };
    let member = member_of(first)?;
    for (_, other) in &of[1..] {
        if member_of(other)? != member {
            return Err(names::one_hash(&member));
        }
    }
    Ok(member)
}

/// Announces reads of arbitrary elements of a collection, by name.
pub fn announce(seen: &Seen<'_>, of: &Collection) -> Outcome {
    let (start, end) = elements(of.id);
    seen.range(of.types, &start, &end).map(drop)
}

/// Passes the members of the result to `take`, in order, until `take` returns `false`.
fn combine<'k>(
    s: &Session,
    seen: &Seen<'_>,
    how: Algebra,
    keys: impl Iterator<Item = &'k [u8]>,
    mut take: impl FnMut(Bytes) -> Result<bool, Failure>,
) -> Outcome {
    let mut sets = Vec::new();
    for key in keys {
        sets.push(seen.collection(key, Kind::Set)?);
    }
    if how == Algebra::Union {
        return united(s, seen, &sets, |member, _| take(member));
    }
    if how == Algebra::Intersection && sets.iter().any(Option::is_none) {
        return Ok(());
    }
    let mut first = 0;
    if how == Algebra::Intersection {
        let len = |i: &usize| sets[*i].map_or(0, |of| of.live.count);
        first = (0..sets.len()).min_by_key(len).unwrap_or(0);
    }
    let Some(base) = sets.get(first).copied().flatten() else { return Ok(()) };
    // If many members are looked up, they are announced as one range.
    let many = base.live.count > FEW as i64;
    if many {
        sets.iter().flatten().try_for_each(|of| announce(seen, of))?;
    }
    let (start, end) = elements(base.id);
    visit(s, seen, &base, (&start, &end), false, |tuple| {
        let member = member_of(tuple)?;
        for (i, of) in sets.iter().enumerate() {
            let inside = i == first
                || match of {
                    Some(of) if many => seen.member_in_range(of, &member)?.is_some(),
                    of => holds(seen, of.as_ref(), &member)?,
                };
            if i != first && inside != (how == Algebra::Intersection) {
                return Ok(true);
            }
        }
        take(member)
    })
}

/// Limit on the bytes of members that are collected before they are sent. If there are more, all
/// members are first visited to count them, and then read again from the same state.
const GATHERED: usize = 1 << 20;

fn answer(s: &Session, args: Arguments<'_>, how: Algebra, out: &mut Output) -> Outcome {
    let seen = s.see()?;
    let (mut few, mut bytes, mut count) = (Vec::new(), 0, 0);
    combine(s, &seen, how, args.from(1), |member| {
        count += 1;
        if bytes < GATHERED {
            bytes += member.len() + 64;
            few.push(member);
        }
        Ok(true)
    })?;
    if few.len() == count {
        send(out, &few, true);
        return Ok(());
    }
    drop(few);
    out.set(count);
    pay("what the sets have together is less than it was", out, count, 1, |out, owed| {
        combine(s, &seen, how, args.from(1), |member| {
            out.bulk(&member);
            Ok(paid(out, owed))
        })
    });
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
        let live = seen.live(key)?;
        let (mut stored, mut count) = (None, 0i64);
        combine(s, seen, how, args.from(2), |member| {
            let of = match stored {
                Some(of) => of,
                None => {
                    seen.remove(key, &live, batch);
                    *stored.insert(seen.replace_collection(key, Kind::Set, || s.random(), batch)?)
                }
            };
            seen.put_member(key, &of, &member, Bytes::new(), batch);
            count += 1;
            seen.relieve(batch, member.len())?;
            Ok(true)
        })?;
        match stored {
            None if live.head.is_none() && !live.exists() => return Ok(0),
            None => seen.remove(key, &live, batch),
            Some(_) => {}
        }
        seen.event_of_stored(key, &live, (Classes::SET, how.event()), count as usize);
        if let Some(of) = stored {
            seen.counted(key, &of, count, batch);
        }
        Ok(count)
    })?;
    out.integer(stored);
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

/// Returns the number of keys that follow the argument at `at`, as this argument states it.
pub fn key_count(args: Arguments<'_>, at: usize) -> Result<usize, Failure> {
    match integer(args.at(at)) {
        Some(n) if n > 0 && (n as usize) < args.len() - at => Ok(n as usize),
        Some(n) if n > 0 => {
            Err(Failure::request("Number of keys can't be greater than number of args"))
        }
        _ => Err(Failure::request("numkeys should be greater than 0")),
    }
}

/// Parses `LIMIT n` after the keys. A limit of 0 means that there is none.
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

/// Executes `SINTERCARD numkeys key ... [LIMIT n]`.
pub fn sintercard(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let n = key_count(args, 1)?;
    let most = limit(args, 2 + n)?;
    let seen = s.see()?;
    let mut found = 0;
    combine(s, &seen, Algebra::Intersection, args.from(2).take(n), |_| {
        found += 1;
        Ok(found < most)
    })?;
    out.integer(found as i64);
    Ok(())
}

pub fn sscan(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    scan_elements(s, args, Kind::Set, out, |tuple, _, out| {
        out.bulk(&member_of(tuple)?);
        Ok(1)
    })
}
