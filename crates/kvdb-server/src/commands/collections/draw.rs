//! Draws random elements of a collection: `HRANDFIELD`, `SRANDMEMBER`, `SPOP` and `ZRANDMEMBER`.

use std::collections::HashSet;

use kvdb::Tuple;

use super::super::scan::between;
use super::{Room, visit, visit_about, visit_refs};
use crate::failure::Failure;
use crate::keyspace::elements;
use crate::request::integer;
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

/// Limit on the length of a collection whose elements are drawn by their ranks, so that all have
/// the same probability.
const DRAWN_FROM_WHOLE: i64 = 4096;
/// Limit on the number of distinct ranks that are drawn one by one; a rank that was drawn before
/// is drawn again.
const DRAWN_SINGLY: usize = 16;

/// Draws `wanted` random elements: distinct ones, or with `again` each from all elements. The
/// elements are collected with the values that are stored next to their names, and these values
/// count toward the limit.
pub fn draw(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    wanted: usize,
    again: bool,
) -> Result<Vec<Tuple>, Failure> {
    let (start, end) = elements(of.id);
    let mut room = Room::of(s);
    let mut drawn: Vec<Tuple> = Vec::new();
    let count = of.live.count;
    let below = |n: usize| (s.random() % n.max(1) as u64) as usize;
    if count <= DRAWN_FROM_WHOLE {
        return draw_by_rank(s, seen, of, wanted, again);
    }
    if !again && wanted as i64 >= count / 16 {
        let mut passed = 0;
        visit_refs(s, seen, of, (&start, &end), false, |tuple| {
            // The collection is read once, and each element is drawn with the probability
            // `missing / rest`.
            let rest = (count as usize).saturating_sub(passed).max(1);
            passed += 1;
            let missing = wanted - drawn.len().min(wanted);
            if below(rest) < missing {
                let tuple = tuple.to_tuple();
                room.take(tuple.bytes_in_memory())?;
                drawn.push(tuple);
            }
            Ok(true)
        })?;
        return Ok(drawn);
    }
    // Draws the elements next to random places between the first name and the last one.
    let one = |from: &[u8], to: &[u8], backward: bool| {
        let mut found = None;
        visit(s, seen, of, (from, to), backward, |tuple| {
            found = Some(tuple.clone());
            Ok(false)
        })?;
        Ok::<_, Failure>(found)
    };
    let (Some(first), Some(last)) = (one(&start, &end, false)?, one(&start, &end, true)?) else {
        return Ok(drawn);
    };
    let mut known = HashSet::new();
    let mut tries = wanted.saturating_mul(16) + 64;
    while drawn.len() < wanted && tries > 0 {
        tries -= 1;
        s.check_stopping()?;
        let place = between(&first.key, &last.key, s.random());
        let near = match s.random().is_multiple_of(2) {
            true => one(&place, &end, false)?.unwrap_or_else(|| last.clone()),
            false => one(&start, &[place.as_slice(), b"\0"].concat(), true)?
                .unwrap_or_else(|| first.clone()),
        };
        if again || known.insert(near.key.clone()) {
            room.take(near.bytes_in_memory())?;
            drawn.push(near);
        }
    }
    // Names that lie close together are rarely hit, so the rest is filled up in order.
    if drawn.len() < wanted && !again {
        visit(s, seen, of, (&start, &end), false, |tuple| {
            if known.insert(tuple.key.clone()) {
                room.take(tuple.bytes_in_memory())?;
                drawn.push(tuple.clone());
            }
            Ok(drawn.len() < wanted)
        })?;
    }
    Ok(drawn)
}

/// Draws ranks first, and then visits the elements from the nearer end up to the last drawn rank.
/// All elements have the same probability.
fn draw_by_rank(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    wanted: usize,
    again: bool,
) -> Result<Vec<Tuple>, Failure> {
    let (start, end) = elements(of.id);
    let mut count = usize::try_from(of.live.count).unwrap_or(0);
    if of.has_deadlines() {
        // Fields that have expired are counted until they are swept.
        count = 0;
        visit_refs(s, seen, of, (&start, &end), false, |_| {
            count += 1;
            Ok(true)
        })?;
    }
    if count == 0 || wanted == 0 {
        return Ok(Vec::new());
    }
    let mut room = Room::of(s);
    let below = |n: usize| (s.random() % n as u64) as usize;
    // Each pair is a rank and its place in the reply.
    let mut ranks: Vec<(usize, usize)> = Vec::new();
    if again {
        for at in 0..wanted {
            room.take(64)?;
            ranks.push((below(count), at));
        }
    } else if wanted <= DRAWN_SINGLY.min(count / 2) {
        while ranks.len() < wanted {
            let rank = below(count);
            if ranks.iter().all(|(drawn, _)| *drawn != rank) {
                ranks.push((rank, ranks.len()));
            }
        }
    } else {
        let mut all: Vec<usize> = (0..count).collect();
        for at in 0..wanted.min(count) {
            all.swap(at, at + below(count - at));
            ranks.push((all[at], at));
        }
    }
    let first = ranks.iter().map(|(rank, _)| *rank).min().unwrap_or(0);
    let last = ranks.iter().map(|(rank, _)| *rank).max().unwrap_or(0);
    let backward = count - first < last + 1;
    if backward {
        ranks.iter_mut().for_each(|(rank, _)| *rank = count - 1 - *rank);
    }
    let many = (last + 1).min(count - first);
    ranks.sort_unstable();
    let mut drawn: Vec<Option<Tuple>> = vec![None; ranks.len()];
    let (mut rank, mut left) = (0, ranks.as_slice());
    visit_about(s, seen, of, (&start, &end), (backward, many), |tuple| {
        if left.first().is_some_and(|first| first.0 == rank) {
            let tuple = tuple.to_tuple();
            room.take(tuple.bytes_in_memory())?;
            while let Some(((_, at), others)) = left.split_first().filter(|(l, _)| l.0 == rank) {
                drawn[*at] = Some(tuple.clone());
                left = others;
            }
        }
        rank += 1;
        Ok(!left.is_empty())
    })?;
    Ok(drawn.into_iter().flatten().collect())
}

/// Parses the count of `HRANDFIELD`, `SRANDMEMBER` and `ZRANDMEMBER`: the number of elements, and
/// whether one may be drawn repeatedly.
pub fn wanted(number: &[u8], count: i64, s: &Session) -> Result<(usize, bool), Failure> {
    let n = integer(number).ok_or(Failure::NOT_AN_INTEGER)?;
    if n >= 0 {
        return Ok((n.min(count) as usize, false));
    }
    let most = s.shared.limits.arguments as u64;
    match n.unsigned_abs() {
        n if n > most => Err(Failure::request("value is out of range")),
        n => Ok((if count > 0 { n as usize } else { 0 }, true)),
    }
}
