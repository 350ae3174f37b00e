//! Commands that wait until one of several keys has an element.
//!
//! If elements are available, the commands take them at once, like their variants that do not
//! wait. Otherwise the connection enters the queues of the keys after the connections that
//! already wait (`crate::waiters`), sleeps until a commit may have filled a key of which it is
//! the first waiter, and tries again. It holds nothing between two attempts, so a connection that
//! is closed, killed or timed out has taken nothing. Between `MULTI` and `EXEC` and in scripts
//! these commands do not wait.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::is;
use super::lists::{self, End};
use super::sorted_sets;
use crate::clients::Unblocked;
use crate::dictionaries::Place;
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::keyspace::Kind;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::waiters::{Awaited, Place as Turns, Spot, Turn};

/// Interval at which a wait in a transaction or a clone checks that the transaction or clone still
/// exists.
const LOOK: Duration = Duration::from_millis(200);

/// The shortest duration of a wait.
const LEAST: Duration = Duration::from_millis(1);

/// The keys, the type and the time limit of a wait.
struct Wanted<'a> {
    kind: Kind,
    /// The keys of the wait. The first one in this order that has elements is used.
    keys: Vec<&'a [u8]>,
    /// The time limit, or `None` to wait without a limit.
    at_most: Option<Duration>,
}

/// Parses a timeout in seconds; 0 means no limit.
fn timeout(arg: &[u8]) -> Result<Option<Duration>, Failure> {
    let seconds: Option<f64> = std::str::from_utf8(arg).ok().and_then(|text| text.parse().ok());
    let seconds = seconds.filter(|seconds| !seconds.is_nan());
    let seconds = seconds.ok_or(Failure::request("timeout is not a float or out of range"))?;
    if seconds < 0.0 {
        return Err(Failure::request("timeout is negative"));
    }
    let time = Duration::try_from_secs_f64(seconds).ok();
    let time = time.filter(|time| time.as_millis() <= i64::MAX as u128);
    let time = time.ok_or(Failure::request("timeout is out of range"))?;
    // A positive timeout must not be rounded to 0, which would mean no limit.
    Ok((seconds > 0.0).then(|| time.max(LEAST)))
}

/// Returns the result of `take` for the first key that has elements, or `None` if the time has
/// elapsed.
fn first_of<T>(
    s: &mut Session,
    wanted: &Wanted<'_>,
    out: &mut Output,
    take: impl Fn(&Session, &[u8]) -> Result<Option<T>, Failure>,
) -> Result<Option<T>, Failure> {
    let waits = may_wait(s, out);
    if !waits || s.shared.waiters.count() == 0 {
        for key in &wanted.keys {
            if let Some(found) = take(s, key)? {
                return Ok(Some(found));
            }
        }
    }
    if !waits {
        return Ok(None);
    }
    wait(s, wanted, out, |s, place, tries| try_turns(s, wanted, place, tries, &take))
}

/// Waits for an element under keys of one type until `read` returns a result. The element stays
/// in the store for other readers. Returns `None` if the time has elapsed, or if waiting is not
/// possible here.
pub fn until<T>(
    s: &mut Session,
    (kind, keys): (Kind, &[&[u8]]),
    at_most: Option<Duration>,
    out: &mut Output,
    read: impl Fn(&Session) -> Result<Option<T>, Failure>,
) -> Result<Option<T>, Failure> {
    if !may_wait(s, out) {
        return Ok(None);
    }
    let wanted = Wanted { kind, keys: keys.to_vec(), at_most };
    wait(s, &wanted, out, |s, _, tries| {
        tries.tried = true;
        read(s)
    })
}

fn may_wait(s: &Session, out: &Output) -> bool {
    !out.is_kept() && !s.exec.is_running()
}

/// Sleeps and retries until an attempt finds an element. Returns `None` if the time has elapsed.
fn wait<T>(
    s: &mut Session,
    wanted: &Wanted<'_>,
    out: &mut Output,
    mut attempt: impl FnMut(&Session, &Turns<'_>, &mut Tries) -> Result<Option<T>, Failure>,
) -> Result<Option<T>, Failure> {
    let shared = s.shared.clone();
    let transaction = s.joined.as_ref().map(|(transaction, _)| transaction.id());
    let spot = Spot { transaction, ..s.spot() };
    let awaited = |key: &&[u8]| Awaited {
        spot: spot.clone(),
        kind: wanted.kind,
        key: Bytes::copy_from_slice(key),
    };
    let begun = Instant::now();
    let place = shared.waiters.wait(&s.connection, wanted.keys.iter().map(awaited).collect());
    s.connection.begin_wait();
    let mut tries = Tries::default();
    let found = loop {
        s.connection.bell.take();
        if tries.tried && out.is_gone() {
            s.closing = true;
            break Err(Failure::request("the client is gone"));
        }
        match attempt(s, &place, &mut tries) {
            Ok(None) => {}
            found => break found,
        }
        match s.connection.unblocked() {
            None => {}
            Some(Unblocked::TimedOut) => break Ok(None),
            Some(Unblocked::Refused) => {
                break Err(Failure::coded(
                    ErrorCode::Unblocked,
                    "client unblocked via CLIENT UNBLOCK",
                ));
            }
        }
        if let Err(stopping) = s.check_stopping() {
            break Err(stopping);
        }
        let left = wanted.at_most.map(|time| time.saturating_sub(begun.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            break Ok(None);
        }
        if s.listens() {
            out.aside(|out| s.deliver(out));
        }
        let may_end = transaction.is_some() || matches!(s.place, Place::Clone(_));
        let look = (may_end || tries.awaits_order).then_some(LOOK);
        let slept = Instant::now();
        out.wait(&s.connection.bell, [left, look].into_iter().flatten().min());
        s.waited += slept.elapsed();
    };
    s.connection.end_wait();
    found
}

/// The state of a wait that its attempts share.
#[derive(Default)]
struct Tries {
    tried: bool,
    /// Several keys had elements, but the order in which they were filled was not known yet.
    awaits_order: bool,
}

/// Tries the keys of which this connection is the first waiter, in one state of the store, so
/// that a commit during the attempt does not fill any of them. The other keys are only checked
/// for their type. A key of another type is an error in the first attempt, and is skipped later.
fn try_turns<T>(
    s: &Session,
    wanted: &Wanted<'_>,
    place: &Turns<'_>,
    tries: &mut Tries,
    take: impl Fn(&Session, &[u8]) -> Result<Option<T>, Failure>,
) -> Result<Option<T>, Failure> {
    let tried = std::mem::replace(&mut tries.tried, true);
    let turns = place.turns();
    let seen = s.see()?;
    let mut there: Vec<&Turn> = Vec::new();
    for key in &wanted.keys {
        let found = match seen.collection(key, wanted.kind) {
            Err(failure) if tried && failure.is_wrong_type() => continue,
            found => found?.is_some(),
        };
        match turns.iter().find(|turn| turn.key == *key) {
            Some(turn) if found => {
                there.push(turn);
                if !tried {
                    break;
                }
            }
            Some(turn) => place.found_empty(turn),
            None => {}
        }
    }
    drop(seen);
    if tried {
        // The connection that has filled the keys reports the order right after its commit, and
        // rings the bell.
        let untold = there.len() > 1 && there.iter().any(|turn| turn.filled.is_none());
        if untold && !std::mem::replace(&mut tries.awaits_order, true) {
            return Ok(None);
        }
        there.sort_by_key(|turn| turn.filled.unwrap_or(u64::MAX));
    }
    tries.awaits_order = false;
    for turn in there {
        if let Some(found) = take(s, &turn.key)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Executes `BLPOP key ... timeout` or `BRPOP key ... timeout`.
fn pop(s: &mut Session, args: Arguments<'_>, end: End, out: &mut Output) -> Outcome {
    let last = args.len() - 1;
    let at_most = timeout(args.at(last))?;
    let keys = args.from(1).take(last - 1).collect();
    let wanted = Wanted { kind: Kind::List, keys, at_most };
    let found = first_of(s, &wanted, out, |s, key| {
        let popped = lists::pop_from(s, key, end, 1)?;
        Ok(popped.and_then(|mut popped| popped.pop()).map(|value| (key.to_vec(), value)))
    })?;
    match found {
        None => out.null_array(),
        Some((key, value)) => {
            out.array(2);
            out.bulk(&key);
            out.bulk(&value);
        }
    }
    Ok(())
}

pub fn blpop(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    pop(s, args, End::Left, out)
}
pub fn brpop(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    pop(s, args, End::Right, out)
}

fn carry(
    s: &mut Session,
    args: Arguments<'_>,
    (from, to): (End, End),
    at_most: Option<Duration>,
    out: &mut Output,
) -> Outcome {
    let (source, target) = (args.at(1), args.at(2));
    s.check_key(target)?;
    let kept = out.is_kept();
    let wanted = Wanted { kind: Kind::List, keys: vec![source], at_most };
    let found =
        first_of(s, &wanted, out, |s, source| lists::carry_over(s, source, target, from, to))?;
    match found {
        Some(value) => out.bulk(&value),
        None if kept => out.null(),
        None => out.null_array(),
    }
    Ok(())
}

/// Executes `BLMOVE source destination LEFT|RIGHT LEFT|RIGHT timeout`.
pub fn blmove(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let ends = (lists::end_of(args.at(3))?, lists::end_of(args.at(4))?);
    let at_most = timeout(args.at(5))?;
    carry(s, args, ends, at_most, out)
}

/// Executes `BRPOPLPUSH source destination timeout`.
pub fn brpoplpush(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let at_most = timeout(args.at(3))?;
    carry(s, args, (End::Right, End::Left), at_most, out)
}

/// The arguments `numkeys key ... word [COUNT count]` of a command on several keys.
struct Several<'a> {
    keys: Vec<&'a [u8]>,
    word: &'a [u8],
    count: usize,
}

impl<'a> Several<'a> {
    fn parse(args: Arguments<'a>, at: usize) -> Result<Self, Failure> {
        let positive = |arg: &[u8]| integer(arg).filter(|n| *n > 0).map(|n| n as usize);
        let few = Failure::request("numkeys should be greater than 0");
        let keys = positive(args.at(at)).ok_or(few)?;
        let behind = at.checked_add(keys).and_then(|at| at.checked_add(1));
        let behind = behind.filter(|at| *at < args.len()).ok_or(Failure::SYNTAX)?;
        let count = match (args.len() - behind, args.get(behind + 1)) {
            (1, _) => 1,
            (3, Some(o)) if is(o, "count") => positive(args.at(behind + 2))
                .ok_or(Failure::request("count should be greater than 0"))?,
            _ => return Err(Failure::SYNTAX),
        };
        let keys = args.from(at + 1).take(keys).collect();
        Ok(Several { keys, word: args.at(behind), count })
    }
}

/// Executes `BLMPOP timeout numkeys key ... LEFT|RIGHT [COUNT count]`.
pub fn blmpop(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let at_most = timeout(args.at(1))?;
    pop_several(s, Several::parse(args, 2)?, Some(at_most), out)
}
/// Executes `LMPOP numkeys key ... LEFT|RIGHT [COUNT count]`.
pub fn lmpop(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    pop_several(s, Several::parse(args, 1)?, None, out)
}

/// Pops up to `count` elements. `waits` is the time to wait, or `None` if the command does not
/// wait.
fn pop_several(
    s: &mut Session,
    several: Several<'_>,
    waits: Option<Option<Duration>>,
    out: &mut Output,
) -> Outcome {
    let (end, count) = (lists::end_of(several.word)?, several.count);
    let take = |s: &Session, key: &[u8]| {
        let popped = lists::pop_from(s, key, end, count)?;
        Ok(popped.map(|popped| (key.to_vec(), popped)))
    };
    let found = first_or_none(s, (Kind::List, several.keys), waits, out, take)?;
    let Some((key, popped)) = found else {
        out.null_array();
        return Ok(());
    };
    out.array(2);
    out.bulk(&key);
    out.array(popped.len());
    for value in popped {
        out.bulk(&value);
        out.send_if_large();
    }
    Ok(())
}

fn first_or_none<T>(
    s: &mut Session,
    (kind, keys): (Kind, Vec<&[u8]>),
    waits: Option<Option<Duration>>,
    out: &mut Output,
    take: impl Fn(&Session, &[u8]) -> Result<Option<T>, Failure>,
) -> Result<Option<T>, Failure> {
    if let Some(at_most) = waits {
        return first_of(s, &Wanted { kind, keys, at_most }, out, take);
    }
    for key in keys {
        if let Some(found) = take(s, key)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// A key, and members of its sorted set with their scores.
type ScoresOfKey = (Vec<u8>, Vec<(Bytes, f64)>);

/// Pops members from the first of these sorted sets that has any.
fn pop_scores(
    s: &mut Session,
    keys: Vec<&[u8]>,
    (backward, count): (bool, usize),
    waits: Option<Option<Duration>>,
    out: &mut Output,
) -> Result<Option<ScoresOfKey>, Failure> {
    first_or_none(s, (Kind::SortedSet, keys), waits, out, |s, key| {
        let popped = sorted_sets::pop_from(s, key, count, backward)?;
        Ok((!popped.is_empty()).then(|| (key.to_vec(), popped)))
    })
}

/// Executes `BZPOPMIN key ... timeout` or `BZPOPMAX key ... timeout`.
fn pop_score(s: &mut Session, args: Arguments<'_>, backward: bool, out: &mut Output) -> Outcome {
    let last = args.len() - 1;
    let at_most = timeout(args.at(last))?;
    let keys = args.from(1).take(last - 1).collect();
    match pop_scores(s, keys, (backward, 1), Some(at_most), out)? {
        None => out.null_array(),
        Some((key, popped)) => {
            out.array(1 + 2 * popped.len());
            out.bulk(&key);
            for (member, score) in popped {
                out.bulk(&member);
                out.double(score);
            }
        }
    }
    Ok(())
}

pub fn bzpopmin(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    pop_score(s, args, false, out)
}
pub fn bzpopmax(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    pop_score(s, args, true, out)
}

/// Executes `BZMPOP timeout numkeys key ... MIN|MAX [COUNT count]`.
pub fn bzmpop(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let at_most = timeout(args.at(1))?;
    pop_several_scores(s, Several::parse(args, 2)?, Some(at_most), out)
}
/// Executes `ZMPOP numkeys key ... MIN|MAX [COUNT count]`.
pub fn zmpop(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    pop_several_scores(s, Several::parse(args, 1)?, None, out)
}

fn pop_several_scores(
    s: &mut Session,
    several: Several<'_>,
    waits: Option<Option<Duration>>,
    out: &mut Output,
) -> Outcome {
    let backward = match several.word {
        o if is(o, "min") => false,
        o if is(o, "max") => true,
        _ => return Err(Failure::SYNTAX),
    };
    match pop_scores(s, several.keys, (backward, several.count), waits, out)? {
        None => out.null_array(),
        Some((key, popped)) => {
            out.array(2);
            out.bulk(&key);
            out.array(popped.len());
            for (member, score) in popped {
                out.array(2);
                out.bulk(&member);
                out.double(score);
                out.send_if_large();
            }
        }
    }
    Ok(())
}
