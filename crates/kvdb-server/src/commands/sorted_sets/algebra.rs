//! What sorted sets have together: unions, intersections, differences.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;

use super::{broken, decode, number, send_pairs, store};
use crate::commands::collections::{Room, name, visit};
use crate::commands::is;
use crate::commands::sets::{key_count, limit};
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Kind, WRONGTYPE, element_key, elements};
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
            // Infinity and its opposite are nothing together.
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

    /// The members in the order of their scores.
    fn run(&self, s: &Session, seen: &Seen<'_>) -> Result<Vec<(Bytes, f64)>, Failure> {
        let mut sources = Vec::new();
        for key in &self.keys {
            sources.push(Source::of(seen, key)?);
        }
        let mut room = Room::of(s);
        let mut found: BTreeMap<Bytes, f64> = BTreeMap::new();
        let weigh = |i: usize, score: f64| {
            Some(score * self.weights[i]).filter(|product| !product.is_nan()).unwrap_or(0.0)
        };
        let mut bases = 0..sources.len();
        if self.how != Algebra::Union {
            let smallest = (0..sources.len()).min_by_key(|i| sources[*i].len()).unwrap_or(0);
            let base = if self.how == Algebra::Difference { 0 } else { smallest };
            bases = base..base + 1;
        }
        for i in bases {
            sources[i].each(s, seen, |member, score| {
                let mut sum = weigh(i, score);
                match self.how {
                    Algebra::Union => {
                        if let Some(there) = found.get_mut(&member) {
                            *there = self.aggregate.of(*there, sum);
                            return Ok(());
                        }
                    }
                    Algebra::Intersection => {
                        for (j, source) in sources.iter().enumerate().filter(|(j, _)| *j != i) {
                            match source.score(seen, &member)? {
                                Some(other) => sum = self.aggregate.of(sum, weigh(j, other)),
                                None => return Ok(()),
                            }
                        }
                    }
                    Algebra::Difference => {
                        for source in &sources[1..] {
                            if source.score(seen, &member)?.is_some() {
                                return Ok(());
                            }
                        }
                    }
                }
                room.take(member.len())?;
                found.insert(member, sum);
                Ok(())
            })?;
        }
        let mut found: Vec<_> = found.into_iter().collect();
        // There is one zero, and no NaN.
        found.sort_by(|a, b| (a.1 + 0.0).total_cmp(&(b.1 + 0.0)).then_with(|| a.0.cmp(&b.0)));
        Ok(found)
    }
}

/// A sorted set, or a set, whose members count 1 each.
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
    fn score(&self, seen: &Seen<'_>, member: &[u8]) -> Result<Option<f64>, Failure> {
        let Some(of) = &self.0 else { return Ok(None) };
        let value = seen.get(of.types, &element_key(of.id, member))?;
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
            take(name(tuple), self.decode(of, &tuple.value()?)?)?;
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
        let found = all.run(s, seen)?;
        store(s, seen, key, &found, command, batch)
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

/// `ZINTERCARD numkeys key ... [LIMIT n]`
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
            let member = name(tuple);
            let mut inside = ControlFlow::Continue(());
            for (_, other) in sources.iter().enumerate().filter(|(i, _)| *i != base) {
                if other.score(&seen, &member)?.is_none() {
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
