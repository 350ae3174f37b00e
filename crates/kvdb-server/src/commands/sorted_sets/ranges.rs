//! Ranges of a sorted set by rank, by score or by name.

use bytes::Bytes;
use kvdb::Batch;

use super::{in_order, parsed, send_pair, store, take_out, with_order};
use crate::commands::collections::{
    Answered, Room, answer as answer_with, place_at, rank_of, visit, visit_refs,
};
use crate::commands::{is, wrong_arity};
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Kind, member_key, order_key, ordered, sortable};
use crate::names;
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

#[derive(Clone, Copy, PartialEq)]
enum By {
    Rank,
    Score,
    Name,
}

/// The members to select: the bounds as the client wrote them, and the part of the members
/// between them.
struct Range<'a> {
    by: By,
    backward: bool,
    /// The bound that comes first in the order of the reply.
    from: &'a [u8],
    to: &'a [u8],
    skip: i64,
    /// The largest number of members. A negative count means all.
    count: i64,
    scores: bool,
}

/// The members of a range after `LIMIT` was applied.
struct Found {
    /// The range `[start, end)` of the tuples of these members.
    start: Vec<u8>,
    end: Vec<u8>,
    /// A filter by name. It is used if the members do not all have the same score, or if a bound
    /// is a long name: members next to such a bound may not be in the order of their names.
    names: Option<(Name, Name)>,
    /// The number of leading members to skip.
    skip: i64,
    /// Limit on the number of members.
    most: i64,
}

/// A bound of a range by name.
enum Name {
    First,
    Last,
    At(Bytes, bool),
}

impl Name {
    fn parse(text: &[u8]) -> Result<Name, Failure> {
        match text.split_first() {
            Some((b'-', [])) => Ok(Name::First),
            Some((b'+', [])) => Ok(Name::Last),
            Some((b'[', name)) => Ok(Name::At(Bytes::copy_from_slice(name), true)),
            Some((b'(', name)) => Ok(Name::At(Bytes::copy_from_slice(name), false)),
            _ => Err(Failure::request("min or max not valid string range item")),
        }
    }
    fn is_at_most(&self, name: &[u8]) -> bool {
        match self {
            Name::First => true,
            Name::Last => false,
            Name::At(bound, true) => bound[..] <= *name,
            Name::At(bound, false) => bound[..] < *name,
        }
    }
    fn is_at_least(&self, name: &[u8]) -> bool {
        match self {
            Name::First => false,
            Name::Last => true,
            Name::At(bound, true) => bound[..] >= *name,
            Name::At(bound, false) => bound[..] > *name,
        }
    }
    fn is_long(&self) -> bool {
        matches!(self, Name::At(bound, _) if names::is_long(bound))
    }
    /// Returns whether a member and this bound agree in all bytes that their keys contain.
    /// Members after such a member may be on the other side of the bound.
    fn shares_begin(&self, name: &[u8]) -> bool {
        matches!(self, Name::At(bound, _) if names::share_begin(bound, name))
    }
}

/// Parses a bound by score. Also returns whether it is exclusive.
fn score_bound(text: &[u8]) -> Result<(f64, bool), Failure> {
    let (text, outside) = match text.strip_prefix(b"(") {
        Some(text) => (text, true),
        None => (text, false),
    };
    let score = parsed(text).ok_or(Failure::request("min or max is not a float"))?;
    Ok((score, outside))
}

impl Range<'_> {
    /// Checks the bounds, so that errors in them are reported before anything is read.
    fn check(&self) -> Outcome {
        match self.by {
            By::Rank => {
                integer(self.from).and(integer(self.to)).ok_or(Failure::NOT_AN_INTEGER)?;
            }
            By::Score => {
                score_bound(self.from)?;
                score_bound(self.to)?;
            }
            By::Name => {
                Name::parse(self.from)?;
                Name::parse(self.to)?;
            }
        }
        Ok(())
    }

    /// Finds the members in the order of the reply, by their ranks.
    fn find(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        of: &Collection,
    ) -> Result<Option<Found>, Failure> {
        let (start, end) = ordered(of.id);
        if self.skip < 0 || self.count == 0 {
            return Ok(None);
        }
        let most = if self.count < 0 { i64::MAX } else { self.count };
        // `low` and `high` are the bounds in the order of the scores.
        let (low, high) = if self.backward { (self.to, self.from) } else { (self.from, self.to) };
        let (start, end) = match self.by {
            By::Rank => {
                let Some((from, to)) = self.ranks(of.live.count)? else { return Ok(None) };
                let most = to - from + 1;
                if from == 0 {
                    // The range begins at an end of the set, so no member has to be found.
                    return Ok(Some(Found { start, end, names: None, skip: 0, most }));
                }
                let edge = if self.backward { of.live.count - 1 - from } else { from };
                let Some(place) = place_at(s, seen, of, (&start, &end), edge)? else {
                    return Ok(None);
                };
                let (start, end) = match self.backward {
                    true => (start, behind(&place)),
                    false => (place.to_vec(), end),
                };
                return Ok(Some(Found { start, end, names: None, skip: 0, most }));
            }
            By::Score => by_score(of, low, high)?,
            By::Name => {
                let (low, high) = (Name::parse(low)?, Name::parse(high)?);
                match one_score(s, seen, of)? {
                    Some(score) if low.is_long() || high.is_long() => {
                        let (start, end) = by_name(of, score, &low, &high);
                        let names = Some((low, high));
                        let found = Found { start, end, names, skip: self.skip, most };
                        return Ok((found.start < found.end).then_some(found));
                    }
                    Some(score) => by_name(of, score, &low, &high),
                    None => {
                        let names = Some((low, high));
                        return Ok(Some(Found { start, end, names, skip: self.skip, most }));
                    }
                }
            }
        };
        let mut found = Found { start, end, names: None, skip: self.skip, most };
        if found.start >= found.end {
            return Ok(None);
        }
        if found.skip > SKIPPED {
            let (first, last) = ordered(of.id);
            let all = (&first[..], &last[..]);
            let place = match self.backward {
                true => {
                    let up_to = rank_of(s, seen, of, all, &found.end)?;
                    place_at(s, seen, of, all, up_to.saturating_sub(found.skip).saturating_sub(1))?
                }
                false => {
                    let from = rank_of(s, seen, of, all, &found.start)?;
                    place_at(s, seen, of, all, from.saturating_add(found.skip))?
                }
            };
            let Some(place) = place else { return Ok(None) };
            match self.backward {
                true => found.end = behind(&place),
                false => found.start = place.to_vec(),
            }
            found.skip = 0;
            if found.start >= found.end {
                return Ok(None);
            }
        }
        Ok(Some(found))
    }

    /// Returns the ranks of a range by rank, in the order of the reply.
    fn ranks(&self, len: i64) -> Result<Option<(i64, i64)>, Failure> {
        let rank = |text| integer(text).ok_or(Failure::NOT_AN_INTEGER);
        let (from, to) = (rank(self.from)?, rank(self.to)?);
        let from = if from < 0 { from.saturating_add(len).max(0) } else { from };
        let to = if to < 0 { to.saturating_add(len) } else { to }.min(len - 1);
        Ok((from <= to).then_some((from, to)))
    }

    /// Passes the members to `take` in the order of the reply.
    fn each(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        of: &Collection,
        mut take: impl FnMut(Bytes, f64) -> Outcome,
    ) -> Outcome {
        let take = |member: &[u8], score: f64| take(Bytes::copy_from_slice(member), score);
        match self.find(s, seen, of)? {
            Some(found) => self.show(s, seen, of, &found, take),
            None => Ok(()),
        }
    }

    /// Passes the members of `found` to `take`.
    fn show(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        of: &Collection,
        found: &Found,
        mut take: impl FnMut(&[u8], f64) -> Outcome,
    ) -> Outcome {
        let (mut skip, mut left) = (found.skip, found.most);
        let mut each = |member: &[u8], score: f64| {
            if let Some((low, high)) = &found.names {
                let (above, below) = (low.is_at_most(member), high.is_at_least(member));
                if !above || !below {
                    // No further member of the range can follow.
                    let (within, last) = if self.backward { (above, low) } else { (below, high) };
                    return Ok(within || last.shares_begin(member));
                }
            }
            if skip > 0 {
                skip -= 1;
                return Ok(true);
            }
            take(member, score)?;
            left -= 1;
            Ok::<bool, Failure>(left != 0)
        };
        visit_refs(s, seen, of, (&found.start, &found.end), self.backward, |tuple| {
            with_order(of, tuple, &mut each)?
        })
    }

    /// Returns the number of members found, or `None` if it can be determined only by a walk.
    fn number_of(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        of: &Collection,
        found: &Found,
    ) -> Result<Option<i64>, Failure> {
        if found.names.is_some() {
            return Ok(None);
        }
        if self.by == By::Rank {
            return Ok(Some(found.most));
        }
        let (first, last) = ordered(of.id);
        let rank = |place: &[u8]| rank_of(s, seen, of, (&first, &last), place);
        let between = rank(&found.end)? - rank(&found.start)? - found.skip;
        Ok(Some(between.clamp(0, found.most)))
    }
}

/// Number of members that are skipped one by one. If more are skipped, the first member is found
/// by its rank.
const SKIPPED: i64 = 32;
/// Number of members that are collected before the reply begins.
const FEW: i64 = crate::commands::collections::FEW as i64;

/// Returns the tuple key right after `place`.
fn behind(place: &[u8]) -> Vec<u8> {
    [place, b"\0"].concat()
}

fn by_score(of: &Collection, low: &[u8], high: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let ((low, low_outside), (high, high_outside)) = (score_bound(low)?, score_bound(high)?);
    let edge = |score: f64, behind: bool| {
        let mut key = order_key(of.id, score, b"");
        if behind {
            // The place is after every member with this score.
            let at = key.len() - 8;
            let next = u64::from_be_bytes(sortable(score)).saturating_add(1);
            key[at..].copy_from_slice(&next.to_be_bytes());
        }
        key
    };
    Ok((edge(low, low_outside), edge(high, !high_outside)))
}

/// Returns the score of the members if all of them have the same one.
fn one_score(s: &Session, seen: &Seen<'_>, of: &Collection) -> Result<Option<f64>, Failure> {
    let (start, end) = ordered(of.id);
    let outermost = |backward: bool| {
        let mut found = None;
        visit(s, seen, of, (&start, &end), backward, |tuple| {
            found = Some(in_order(of, tuple)?.1);
            Ok(false)
        })?;
        Ok::<_, Failure>(found)
    };
    let first = outermost(false)?;
    Ok(first.filter(|first| outermost(true).is_ok_and(|last| last == Some(*first))))
}

/// Returns the range of tuples between two names, for a set in which all members have this score.
fn by_name(of: &Collection, score: f64, low: &Name, high: &Name) -> (Vec<u8>, Vec<u8>) {
    let (first, last) = ordered(of.id);
    let edge = |name: &Name, outside: bool| match name {
        Name::First => first.clone(),
        Name::Last => last.clone(),
        // The range has all members that share the beginning of a long name. They are then
        // filtered one by one.
        Name::At(name, _) if names::is_long(name) => {
            let begin = order_key(of.id, score, &name[..names::LONGEST_IN_KEY]);
            if outside { begin } else { [&begin[..], &[0xff; names::HASH + 1]].concat() }
        }
        Name::At(name, inside) if *inside == outside => order_key(of.id, score, name),
        Name::At(name, _) => behind(&order_key(of.id, score, name)),
    };
    (edge(low, true), edge(high, false))
}

/// Parses `key start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count] [WITHSCORES]` from argument
/// `at` on.
fn parse<'a>(
    args: Arguments<'a>,
    at: usize,
    (by, backward): (Option<By>, bool),
    stores: bool,
) -> Result<Range<'a>, Failure> {
    let free = by.is_none();
    let mut range = Range {
        by: by.unwrap_or(By::Rank),
        backward,
        from: args.at(at + 1),
        to: args.at(at + 2),
        skip: 0,
        count: -1,
        scores: false,
    };
    let (mut limited, mut options) = (false, args.from(at + 3));
    while let Some(option) = options.next() {
        match option {
            o if is(o, "byscore") && free => range.by = By::Score,
            o if is(o, "bylex") && free => range.by = By::Name,
            o if is(o, "rev") && free => range.backward = true,
            o if is(o, "limit") && options.len() >= 2 => {
                let mut next =
                    || integer(options.next().unwrap_or_default()).ok_or(Failure::NOT_AN_INTEGER);
                (range.skip, range.count, limited) = (next()?, next()?, true);
            }
            o if is(o, "withscores") && !stores => range.scores = true,
            _ => return Err(Failure::SYNTAX),
        }
    }
    if limited && range.by == By::Rank {
        return Err(Failure::request(
            "syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
        ));
    }
    if range.scores && range.by == By::Name {
        return Err(Failure::request(
            "syntax error, WITHSCORES not supported in combination with BYLEX",
        ));
    }
    range.check()?;
    Ok(range)
}

fn answer(s: &Session, args: Arguments<'_>, by: (Option<By>, bool), out: &mut Output) -> Outcome {
    let range = parse(args, 1, by, false)?;
    let seen = s.see()?;
    let (position, mut few, mut room) = (out.position(), 0, Room::of(s));
    if let Some(of) = seen.collection(args.at(1), Kind::SortedSet)?
        && let Some(found) = range.find(s, &seen, &of)?
    {
        if found.skip == 0
            && (range.by == By::Rank || found.most.min(of.live.count) > FEW || of.has_long_names())
            && let Some(count) = range.number_of(s, &seen, &of, &found)?
        {
            send_many(s, &seen, &of, (&range, &found), count, out);
            return Ok(());
        }
        let shown = range.show(s, &seen, &of, &found, |member, score| {
            room.take(member.len())?;
            few += if range.scores && !out.resp3 { 2 } else { 1 };
            send_pair(member, range.scores.then_some(score), out);
            Ok(())
        });
        if shown.is_err() {
            out.rewind(position);
        }
        shown?;
    }
    out.insert_array_header(position, few);
    Ok(())
}

/// Sends `count` members one after another.
fn send_many(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    (range, found): (&Range<'_>, &Found),
    count: i64,
    out: &mut Output,
) {
    let count = usize::try_from(count).unwrap_or(0);
    let each = if range.scores && !out.resp3 { 2 } else { 1 };
    out.array(count * each);
    let all = Answered { range: (&found.start, &found.end), backward: range.backward, count, each };
    answer_with(s, seen, of, out, all, |tuple, out| {
        with_order(of, tuple, |member, score| {
            send_pair(member, range.scores.then_some(score), out);
        })
    });
}

pub fn zrange(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    answer(s, args, (None, false), out)
}
pub fn zrevrange(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    answer(s, args, (Some(By::Rank), true), out)
}
pub fn zrangebyscore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    answer(s, args, (Some(By::Score), false), out)
}
pub fn zrevrangebyscore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    answer(s, args, (Some(By::Score), true), out)
}
pub fn zrangebylex(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    answer(s, args, (Some(By::Name), false), out)
}
pub fn zrevrangebylex(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    answer(s, args, (Some(By::Name), true), out)
}

/// Executes `ZRANGESTORE destination source start stop …`.
pub fn zrangestore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (to, from) = (args.at(1), args.at(2));
    s.check_key(to)?;
    let range = parse(args, 2, (None, false), true)?;
    let stored = s.change(s.typed()?, [to, from], |seen, batch| {
        let source = seen.collection(from, Kind::SortedSet)?;
        store(s, seen, to, "zrangestore", batch, |put| match &source {
            Some(of) => range.each(s, seen, of, put),
            None => Ok(()),
        })
    })?;
    out.integer(stored);
    Ok(())
}

fn plain(args: Arguments<'_>, by: By) -> Result<Range<'_>, Failure> {
    let (from, to) = (args.at(2), args.at(3));
    let range = Range { by, backward: false, from, to, skip: 0, count: -1, scores: false };
    range.check()?;
    Ok(range)
}

fn count(s: &Session, args: Arguments<'_>, by: By, out: &mut Output) -> Outcome {
    let range = plain(args, by)?;
    let (seen, mut found) = (s.see()?, 0);
    if let Some(of) = seen.collection(args.at(1), Kind::SortedSet)? {
        let places = range.find(s, &seen, &of)?;
        if let Some(places) = &places {
            match range.number_of(s, &seen, &of, places)? {
                Some(count) => found = count,
                None => range.show(s, &seen, &of, places, |_, _| {
                    found += 1;
                    Ok(())
                })?,
            }
        }
    }
    out.integer(found);
    Ok(())
}

pub fn zcount(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    count(s, args, By::Score, out)
}
pub fn zlexcount(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    count(s, args, By::Name, out)
}

/// Number of bytes of the changes that remove a member, in addition to its name.
const CHANGE: usize = 128;

/// Removes `count` members. If there are many, their tuples in the order of scores are deleted as
/// one range.
fn take_many_out(
    s: &Session,
    seen: &Seen<'_>,
    of: &Collection,
    (range, found): (&Range<'_>, &Found),
    count: i64,
    batch: &mut Batch,
) -> Outcome {
    let (mut first, mut last) = (None, None);
    range.show(s, seen, of, found, |member, score| {
        if count > FEW {
            batch.delete(of.types, member_key(of.id, member));
            let place = order_key(of.id, score, member);
            first.get_or_insert_with(|| place.clone());
            last = Some(place);
        } else {
            take_out(of, member, score, batch);
        }
        seen.relieve(batch, 2 * member.len() + CHANGE)
    })?;
    if let (Some(first), Some(last)) = (first, last) {
        batch.delete_range(of.types, first.clone().min(last.clone()), behind(&first.max(last)));
    }
    Ok(())
}

fn remove(
    s: &Session,
    args: Arguments<'_>,
    by: By,
    event: &'static str,
    out: &mut Output,
) -> Outcome {
    let key = args.at(1);
    if args.len() != 4 {
        return Err(wrong_arity("zremrange"));
    }
    let range = plain(args, by)?;
    let removed = match s.existing()? {
        None => 0,
        Some(space) => s.change(space, [key], |seen, batch| {
            let Some(of) = seen.collection(key, Kind::SortedSet)? else { return Ok(0) };
            let Some(found) = range.find(s, seen, &of)? else { return Ok(0) };
            let count = range.number_of(s, seen, &of, &found)?;
            let removed = match count {
                // The whole set is removed: `counted` removes all its tuples.
                Some(count) if count == of.live.count => count,
                Some(count) => {
                    take_many_out(s, seen, &of, (&range, &found), count, batch)?;
                    count
                }
                None => {
                    let mut removed = 0;
                    range.show(s, seen, &of, &found, |member, score| {
                        take_out(&of, member, score, batch);
                        removed += 1;
                        seen.relieve(batch, 2 * member.len() + CHANGE)
                    })?;
                    removed
                }
            };
            if removed > 0 {
                seen.event(Classes::SORTED_SET, event, key);
            }
            seen.counted(key, &of, -removed, batch);
            Ok(removed)
        })?,
    };
    out.integer(removed);
    Ok(())
}

pub fn zremrangebyrank(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    remove(s, args, By::Rank, "zremrangebyrank", out)
}
pub fn zremrangebyscore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    remove(s, args, By::Score, "zremrangebyscore", out)
}
pub fn zremrangebylex(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    remove(s, args, By::Name, "zremrangebylex", out)
}
