//! Sets, reads and removes the deadlines of keys.

use super::is;
use crate::failure::{Failure, Outcome};
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

/// A unit of time and its origin. The origin is the current time, or 1970 in the `At…` variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Seconds relative to the current time.
    Seconds,
    Millis,
    /// Seconds since 1970.
    AtSeconds,
    AtMillis,
}

/// Returns the time option of `SET` and `GETEX` with this name.
pub fn time_option(name: &[u8]) -> Option<Time> {
    match name {
        o if is(o, "ex") => Some(Time::Seconds),
        o if is(o, "px") => Some(Time::Millis),
        o if is(o, "exat") => Some(Time::AtSeconds),
        o if is(o, "pxat") => Some(Time::AtMillis),
        _ => None,
    }
}

impl Time {
    /// Returns the deadline in milliseconds since 1970, which may be in the past, or `None` if it
    /// does not fit into 63 bits.
    pub fn millis(self, number: i64, now: u64) -> Option<i64> {
        let scaled = match self {
            Time::Seconds | Time::AtSeconds => number.checked_mul(1000)?,
            Time::Millis | Time::AtMillis => number,
        };
        match self {
            Time::Seconds | Time::Millis => scaled.checked_add(i64::try_from(now).ok()?),
            Time::AtSeconds | Time::AtMillis => Some(scaled),
        }
    }
    /// Returns the deadline for a number that must be positive.
    pub fn deadline(self, number: &[u8], now: u64, command: &str) -> Result<u64, Failure> {
        let number = integer(number).ok_or(Failure::NOT_AN_INTEGER)?;
        let at = Some(number).filter(|n| *n > 0).and_then(|n| self.millis(n, now));
        at.and_then(|at| u64::try_from(at).ok()).ok_or_else(|| invalid(command))
    }
}

pub fn invalid(command: &str) -> Failure {
    Failure::request(format!("invalid expire time in '{command}' command"))
}

pub fn expire(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    set(s, args, Time::Seconds, "expire", out)
}
pub fn pexpire(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    set(s, args, Time::Millis, "pexpire", out)
}
pub fn expireat(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    set(s, args, Time::AtSeconds, "expireat", out)
}
pub fn pexpireat(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    set(s, args, Time::AtMillis, "pexpireat", out)
}

/// Conditions that restrict when a deadline is set.
#[derive(Clone, Copy, Default)]
pub struct Only {
    new: bool,
    present: bool,
    later: bool,
    earlier: bool,
}

impl Only {
    /// Reads up to `most` conditions from argument `at` on. Returns them, and the index of the
    /// next argument.
    pub fn read(args: Arguments<'_>, at: usize, most: usize) -> (Only, usize) {
        let mut only = Only::default();
        let number = args.from(at).take(most).take_while(|option| only.add(option)).count();
        (only, at + number)
    }
    /// Reads conditions up to the end of the command.
    fn rest(args: Arguments<'_>, at: usize) -> Result<Only, Failure> {
        let (only, next) = Only::read(args, at, usize::MAX);
        if let Some(option) = args.get(next) {
            let o = String::from_utf8_lossy(&option[..option.len().min(64)]).into_owned();
            return Err(Failure::request(format!("Unsupported option {o}")));
        }
        if only.new && (only.present || only.later || only.earlier) {
            return Err(Failure::request(
                "NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if only.later && only.earlier {
            return Err(Failure::request("GT and LT options at the same time are not compatible"));
        }
        Ok(only)
    }
    /// Adds the condition with this name. Returns whether there is such a condition.
    fn add(&mut self, option: &[u8]) -> bool {
        match option {
            o if is(o, "nx") => self.new = true,
            o if is(o, "xx") => self.present = true,
            o if is(o, "gt") => self.later = true,
            o if is(o, "lt") => self.earlier = true,
            _ => return false,
        }
        true
    }
    /// Returns whether the deadline may be set. A key without a deadline counts as expiring after
    /// all others.
    pub fn allows(&self, old: Option<u64>, new: i64) -> bool {
        let old = old.map(|old| i64::try_from(old).unwrap_or(i64::MAX));
        !(self.new && old.is_some()
            || self.present && old.is_none()
            || self.later && old.is_none_or(|old| new <= old)
            || self.earlier && old.is_some_and(|old| new >= old))
    }
}

fn set(s: &Session, args: Arguments<'_>, unit: Time, command: &str, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let number = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let only = Only::rest(args, 3)?;
    let at = unit.millis(number, s.now()).ok_or_else(|| invalid(command))?;
    let done = match s.existing()? {
        None => false,
        Some(_) => s.change(s.typed()?, [key], |seen, batch| {
            let live = seen.live(key)?;
            if !live.exists() || !only.allows(live.deadline(), at) {
                return Ok(false);
            }
            match u64::try_from(at).ok().filter(|at| *at > seen.now) {
                None => {
                    seen.event(Classes::GENERIC, "del", key);
                    seen.remove(key, &live, batch);
                }
                deadline => {
                    seen.event(Classes::GENERIC, "expire", key);
                    seen.set_deadline(key, &live, deadline, batch);
                }
            }
            Ok(true)
        })?,
    };
    out.integer(i64::from(done));
    Ok(())
}

pub fn persist(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let key = args.at(1);
    let done = match s.existing()? {
        None => false,
        Some(space) => s.change(space, [key], |seen, batch| {
            let live = seen.live(key)?;
            let had = live.deadline().is_some();
            if had {
                seen.event(Classes::GENERIC, "persist", key);
                seen.set_deadline(key, &live, None, batch);
            }
            Ok(had)
        })?,
    };
    out.integer(i64::from(done));
    Ok(())
}

pub fn ttl(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    // The time is rounded to the nearest second, as in Redis, so a key that was given 10 s a
    // moment ago has 10 s left.
    tell(s, args, out, |at, now| (at - now + 500) / 1000)
}
pub fn pttl(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    tell(s, args, out, |at, now| at - now)
}
pub fn expiretime(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    tell(s, args, out, |at, _| ((at as u64 + 500) / 1000) as i64)
}
pub fn pexpiretime(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    tell(s, args, out, |at, _| at)
}

/// Replies with the deadline of a key, with -1 if the key has none, or with -2 if the key does
/// not exist.
fn tell(
    s: &Session,
    args: Arguments<'_>,
    out: &mut Output,
    show: impl Fn(i64, i64) -> i64,
) -> Outcome {
    let seen = s.see()?;
    let live = seen.live(args.at(1))?;
    let signed = |time: u64| i64::try_from(time).unwrap_or(i64::MAX - 500);
    out.integer(match (live.exists(), live.deadline()) {
        (false, _) => -2,
        (true, None) => -1,
        (true, Some(at)) => show(signed(at), signed(seen.now)),
    });
    Ok(())
}
