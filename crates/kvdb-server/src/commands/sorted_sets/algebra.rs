//! Unions, intersections and differences of sorted sets.

use std::ops::ControlFlow;

use bytes::Bytes;

use super::{broken, decode, number, send_pairs, store};
use crate::commands::collections::{FEW, Room, member as member_of, split, visit};
use crate::commands::is;
use crate::commands::sets::{announce, key_count, limit, united};
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Kind, WRONGTYPE, elements};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::session::seen::{Collection, Seen};

#[derive(Clone, Copy, PartialEq)]
enum Algebra {
    Union,
    Intersection,
    Difference,
}

#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn of(self, a: f64, b: f64) -> f64 {
        match self {
            // The sum of opposite infinities is 0.
            Aggregate::Sum => Some(a + b).filter(|sum| !sum.is_nan()).unwrap_or(0.0),
            Aggregate::Min => a.min(b),
            Aggregate::Max => a.max(b),
        }
    }
}

struct Combining<'a> {
    how: Algebra,
    keys: Vec<&'a [u8]>,
    weights: Vec<f64>,
    aggregate: Aggregate,
    scores: bool,
}

impl<'a> Combining<'a> {
    fn parse(
        args: Arguments<'a>,
        at: usize,
        how: Algebra,
        stores: bool,
        command: &str,
    ) -> Result<Self, Failure> {
        let n = match integer(args.at(at)) {
            Some(n) if n > 0 => n as usize,
            Some(_) => {
                return Err(Failure::request(format!(
                    "at least 1 input key is needed for '{command}' command"
                )));
            }
            None => return Err(Failure::NOT_AN_INTEGER),
        };
        if n > args.len() - at - 1 {
            return Err(Failure::SYNTAX);
        }
        let mut all = Combining {
            how,
            keys: args.from(at + 1).take(n).collect(),
            weights: vec![1.0; n],
            aggregate: Aggregate::Sum,
            scores: false,
        };
        let mut options = args.from(at + 1 + n);
        while let Some(option) = options.next() {
            match option {
                o if is(o, "weights") && how != Algebra::Difference => {
                    for weight in &mut all.weights {
                        let text = options.next().ok_or(Failure::SYNTAX)?;
                        *weight =
                            number(text).ok_or(Failure::request("weight value is not a float"))?;
                    }
                }
                o if is(o, "aggregate") && how != Algebra::Difference => {
                    all.aggregate = match options.next().ok_or(Failure::SYNTAX)? {
                        a if is(a, "sum") => Aggregate::Sum,
                        a if is(a, "min") => Aggregate::Min,
                        a if is(a, "max") => Aggregate::Max,
                        _ => return Err(Failure::SYNTAX),
                    };
                }
                o if is(o, "withscores") && !stores => all.scores = true,
                _ => return Err(Failure::SYNTAX),
            }
        }
        Ok(all)
    }

    /// Returns the members in the order of their scores.
    fn run(&self, s: &Session, seen: &Seen<'_>) -> Result<Vec<(Bytes, f64)>, Failure> {
        let (mut room, mut found) = (Room::of(s), Vec::new());
        self.each(s, seen, &mut |member, score| {
            room.take(member.len())?;
            found.push((member, score));
            Ok(())
        })?;
        // The two zeros compare as equal, and NaN does not occur.
        found.sort_by(|a, b| (a.1 + 0.0).total_cmp(&(b.1 + 0.0)).then_with(|| a.0.cmp(&b.0)));
        Ok(found)
    }

    /// Passes the members to `take` in the order of their keys.
    fn each(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        take: &mut dyn FnMut(Bytes, f64) -> Outcome,
    ) -> Outcome {
        let mut sources = Vec::new();
        for key in &self.keys {
            sources.push(Source::of(seen, key)?);
        }
        let weigh = |i: usize, score: f64| {
            Some(score * self.weights[i]).filter(|product| !product.is_nan()).unwrap_or(0.0)
        };
        if self.how == Algebra::Union {
            let all: Vec<_> = sources.iter().map(|source| source.0).collect();
            return united(s, seen, &all, |member, of| {
                let mut sum: Option<f64> = None;
                for (i, tuple) in of {
                    let source = &sources[*i];
                    let Some(collection) = &source.0 else { continue };
                    let weighed = weigh(*i, source.decode(collection, &split(tuple)?.1)?);
                    sum = Some(sum.map_or(weighed, |sum| self.aggregate.of(sum, weighed)));
                }
                take(member, sum.unwrap_or(0.0))?;
                Ok(true)
            });
        }
        let smallest = (0..sources.len()).min_by_key(|i| sources[*i].len()).unwrap_or(0);
        let base = if self.how == Algebra::Difference { 0 } else { smallest };
        // If many members are looked up, they are announced as one range.
        let many = sources[base].len() > FEW as i64;
        if many {
            sources.iter().filter_map(|source| source.0).try_for_each(|of| announce(seen, &of))?;
        }
        sources[base].each(s, seen, |member, score| {
            let mut sum = weigh(base, score);
            for (j, source) in sources.iter().enumerate().filter(|(j, _)| *j != base) {
                match (source.score(seen, &member, many)?, self.how) {
                    (Some(_), Algebra::Difference) => return Ok(()),
                    (None, Algebra::Intersection) => return Ok(()),
                    (Some(other), Algebra::Intersection) => {
                        sum = self.aggregate.of(sum, weigh(j, other));
                    }
                    _ => {}
                }
            }
            take(member, sum)
        })
    }
}

/// A sorted set, or a set whose members have the score 1.
struct Source(Option<Collection>, Kind);

impl Source {
    fn of(seen: &Seen<'_>, key: &[u8]) -> Result<Source, Failure> {
        let live = seen.live(key)?;
        match live.kind {
            None => Ok(Source(None, Kind::Set)),
            Some(kind @ (Kind::Set | Kind::SortedSet)) => {
                Ok(Source(seen.collection(key, kind)?, kind))
            }
            Some(_) => Err(WRONGTYPE),
        }
    }
    fn len(&self) -> i64 {
        self.0.map_or(0, |of| of.live.count)
    }
    fn decode(&self, of: &Collection, value: &[u8]) -> Result<f64, Failure> {
        match self.1 {
            Kind::SortedSet => decode(value).ok_or_else(|| broken(of)),
            _ => Ok(1.0),
        }
    }
    /// Returns the score of a member. `announced` states whether the range of all members has
    /// already been announced.
    fn score(
        &self,
        seen: &Seen<'_>,
        member: &[u8],
        announced: bool,
    ) -> Result<Option<f64>, Failure> {
        let Some(of) = &self.0 else { return Ok(None) };
        let value = match announced {
            true => seen.member_in_range(of, member)?,
            false => seen.member(of, member)?,
        };
        value.map(|value| self.decode(of, &value)).transpose()
    }
    fn each(
        &self,
        s: &Session,
        seen: &Seen<'_>,
        mut take: impl FnMut(Bytes, f64) -> Outcome,
    ) -> Outcome {
        let Some(of) = &self.0 else { return Ok(()) };
        let (start, end) = elements(of.id);
        visit(s, seen, of, (&start, &end), false, |tuple| {
            let (member, value) = split(tuple)?;
            take(member, self.decode(of, &value)?)?;
            Ok(true)
        })
    }
}

fn combine(
    s: &Session,
    args: Arguments<'_>,
    how: Algebra,
    command: &str,
    out: &mut Output,
) -> Outcome {
    let all = Combining::parse(args, 1, how, false, command)?;
    let found = all.run(s, &s.see()?)?;
    send_pairs(&found, all.scores, out);
    Ok(())
}

pub fn zunion(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    combine(s, args, Algebra::Union, "zunion", out)
}
pub fn zinter(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    combine(s, args, Algebra::Intersection, "zinter", out)
}
pub fn zdiff(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    combine(s, args, Algebra::Difference, "zdiff", out)
}

fn combine_into(
    s: &Session,
    args: Arguments<'_>,
    how: Algebra,
    command: &'static str,
    out: &mut Output,
) -> Outcome {
    let key = args.at(1);
    s.check_key(key)?;
    let all = Combining::parse(args, 2, how, true, command)?;
    let keys = std::iter::once(key).chain(all.keys.iter().copied());
    let stored = s.change(s.typed()?, keys, |seen, batch| {
        store(s, seen, key, command, batch, |put| all.each(s, seen, put))
    })?;
    out.integer(stored);
    Ok(())
}

pub fn zunionstore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    combine_into(s, args, Algebra::Union, "zunionstore", out)
}
pub fn zinterstore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    combine_into(s, args, Algebra::Intersection, "zinterstore", out)
}
pub fn zdiffstore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    combine_into(s, args, Algebra::Difference, "zdiffstore", out)
}

/// Executes `ZINTERCARD numkeys key ... [LIMIT n]`.
pub fn zintercard(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if integer(args.at(1)).is_some_and(|n| n < 1) {
        return Err(Failure::request("at least 1 input key is needed for 'zintercard' command"));
    }
    let n = key_count(args, 1)?;
    let most = limit(args, 2 + n)?;
    let seen = s.see()?;
    let mut sources = Vec::new();
    for key in args.from(2).take(n) {
        sources.push(Source::of(&seen, key)?);
    }
    let base = (0..n).min_by_key(|i| sources[*i].len()).unwrap_or(0);
    let mut found = 0;
    if let Some(of) = &sources[base].0 {
        let (start, end) = elements(of.id);
        visit(s, &seen, of, (&start, &end), false, |tuple| {
            let member = member_of(tuple)?;
            let mut inside = ControlFlow::Continue(());
            for (_, other) in sources.iter().enumerate().filter(|(i, _)| *i != base) {
                if other.score(&seen, &member, false)?.is_none() {
                    inside = ControlFlow::Break(());
                    break;
                }
            }
            found += usize::from(inside.is_continue());
            Ok(found < most)
        })?;
    }
    out.integer(found as i64);
    Ok(())
}
