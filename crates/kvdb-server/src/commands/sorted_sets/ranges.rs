//! Ranges of a sorted set: by rank, by score, by name.

use bytes::Bytes;

use super::{broken, in_order, parsed, send_pairs, store, take_out};
use crate::commands::collections::{Room, visit};
use crate::commands::{is, wrong_arity};
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Kind, order_key, ordered, sortable};
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

/// Which members: the bounds as they were written, and how many of those between them.
struct Range<'a> {
    by: By,
    backward: bool,
    /// The lower one in the order of the answer.
    from: &'a [u8],
    to: &'a [u8],
    skip: i64,
    /// Negative: all.
    count: i64,
    scores: bool,
}

/// A bound among the members.
struct Bounds {
    start: Vec<u8>,
    end: Vec<u8>,
    /// Ranks in the order of the answer.
    ranks: Option<(i64, i64)>,
    /// By name: all have the same score, says the client.
    names: Option<(Name, Name)>,
}

/// A bound by name.
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
}

/// A bound by score, and whether it is outside.
fn score_bound(text: &[u8]) -> Result<(f64, bool), Failure> {
    let (text, outside) = match text.strip_prefix(b"(") {
        Some(text) => (text, true),
        None => (text, false),
    };
    let score = parsed(text).ok_or(Failure::request("min or max is not a float"))?;
    Ok((score, outside))
}

impl Range<'_> {
    /// Errors in the bounds come before anything is read.
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

    fn bounds(&self, of: &Collection) -> Result<Option<Bounds>, Failure> {
        let (first, last) = ordered(of.id);
        let all = Bounds { start: first, end: last, ranks: None, names: None };
        // In the order of the scores.
        let (low, high) = if self.backward { (self.to, self.from) } else { (self.from, self.to) };
        Ok(match self.by {
            By::Rank => {
                let rank = |text| integer(text).ok_or(Failure::NOT_AN_INTEGER);
                let len = of.live.count;
                let place = |i: i64| if i < 0 { i.saturating_add(len).max(0) } else { i };
                let (from, to) = (rank(self.from)?, rank(self.to)?);
                let to = if to < 0 { to.saturating_add(len) } else { to }.min(len - 1);
                let from = place(from);
                (from <= to).then_some(Bounds { ranks: Some((from, to)), ..all })
            }
            By::Score => {
                let ((low, low_outside), (high, high_outside)) =
                    (score_bound(low)?, score_bound(high)?);
                let edge = |score: f64, behind: bool| {
                    let mut key = order_key(of.id, score, b"");
                    if behind {
                        // Behind every member of that score.
                        let at = key.len() - 8;
                        let next = u64::from_be_bytes(sortable(score)).saturating_add(1);
                        key[at..].copy_from_slice(&next.to_be_bytes());
                    }
                    key
                };
                let (start, end) = (edge(low, low_outside), edge(high, !high_outside));
                (start < end).then_some(Bounds { start, end, ..all })
            }
            By::Name => {
                let names = Some((Name::parse(low)?, Name::parse(high)?));
                Some(Bounds { names, ..all })
            }
        })
    }

    /// Shows the members in the order of the answer.
    fn each(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        of: &Collection,
        mut take: impl FnMut(Bytes, f64) -> Outcome,
    ) -> Outcome {
        let (mut skip, mut left) = (self.skip, self.count);
        if skip < 0 || left == 0 {
            return Ok(());
        }
        let Some(bounds) = self.bounds(of)? else { return Ok(()) };
        // From the nearer end, where ranks say that it is nearer.
        let (mut backward, mut window) = (self.backward, None);
        if let Some((from, to)) = bounds.ranks {
            let len = of.live.count;
            window = Some((from, to));
            if len - 1 - to < from {
                backward = !backward;
                window = Some((len - 1 - to, len - 1 - from));
            }
        }
        let turned = backward != self.backward;
        let (mut at, mut gathered, mut room) = (0, Vec::new(), Room::of(s));
        visit(s, seen, of, (&bounds.start, &bounds.end), backward, |tuple| {
            let (member, score) = in_order(tuple).ok_or_else(|| broken(of))?;
            if let Some((from, to)) = window {
                at += 1;
                if at <= from {
                    return Ok(true);
                }
                if turned {
                    room.take(member.len())?;
                    gathered.push((member, score));
                } else {
                    take(member, score)?;
                }
                return Ok(at <= to);
            }
            if let Some((low, high)) = &bounds.names {
                let (above, below) = (low.is_at_most(&member), high.is_at_least(&member));
                if !above || !below {
                    // Behind the last one nothing comes any more.
                    return Ok(if backward { above } else { below });
                }
            }
            if skip > 0 {
                skip -= 1;
                return Ok(true);
            }
            take(member, score)?;
            left = left.saturating_sub(1);
            Ok(left != 0)
        })?;
        gathered.into_iter().rev().try_for_each(|(member, score)| take(member, score))
    }
}

/// `key start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count] [WITHSCORES]` from `at` on.
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

fn gather(
    s: &Session,
    seen: &Seen<'_>,
    key: &[u8],
    range: &Range<'_>,
) -> Result<Vec<(Bytes, f64)>, Failure> {
    let (mut found, mut room) = (Vec::new(), Room::of(s));
    if let Some(of) = seen.collection(key, Kind::SortedSet)? {
        range.each(s, seen, &of, |member, score| {
            room.take(member.len())?;
            found.push((member, score));
            Ok(())
        })?;
    }
    Ok(found)
}

fn answer(s: &Session, args: Arguments<'_>, by: (Option<By>, bool), out: &mut Output) -> Outcome {
    let range = parse(args, 1, by, false)?;
    let found = gather(s, &s.see()?, args.at(1), &range)?;
    send_pairs(&found, range.scores, out);
    Ok(())
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

/// `ZRANGESTORE destination source start stop …`
pub fn zrangestore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (to, from) = (args.at(1), args.at(2));
    s.check_key(to)?;
    let range = parse(args, 2, (None, false), true)?;
    let stored = s.change(s.typed()?, [to, from], |seen, batch| {
        let found = gather(s, seen, from, &range)?;
        store(s, seen, to, &found, "zrangestore", batch)
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
        range.each(s, &seen, &of, |_, _| {
            found += 1;
            Ok(())
        })?;
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
            let (mut removed, mut room) = (0, Room::of(s));
            range.each(s, seen, &of, |member, score| {
                room.take(member.len())?;
                take_out(&of, &member, score, batch);
                removed += 1;
                Ok(())
            })?;
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
