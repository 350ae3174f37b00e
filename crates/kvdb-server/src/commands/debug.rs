//! `DEBUG`: commands that tests of a server use.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::{is, unknown_subcommand};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::sweeper::Sweeper;

pub const USAGE: &str = "SWEEP [count] | SET-ACTIVE-EXPIRE 0|1 | SET-DISABLE-DENY-SCRIPTS 0|1 | SLEEP seconds | ERROR text | RELOAD | PROTOCOL type";

/// Interval at which a sleeping command checks whether the server is stopping or its client has
/// disconnected.
const LOOK: Duration = Duration::from_millis(50);
/// Longest sleep, in seconds.
const LONGEST: f64 = 3600.0;
/// Longest total sleep of the commands of an `EXEC` or a script. They hold locks, for which other
/// clients wait.
const LONGEST_UNDER_LOCKS: Duration = Duration::from_secs(1);

/// `SWEEP [count]` immediately removes up to `count` expired keys of each dictionary and replies
/// with their number. `SET-ACTIVE-EXPIRE 0` stops the sweeper, and `1` starts it. `RELOAD` only
/// syncs the store, because reopening it would restore the same state. `PROTOCOL` replies with a
/// value of a RESP3 type. `SET-DISABLE-DENY-SCRIPTS 1` lets scripts call `DEBUG`. `ERROR` replies
/// with an error of the given text; tests of clients use it to simulate a server that is loading
/// or read-only.
pub fn debug(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    // The sweeper takes locks that this `EXEC` may hold, and the other two commands wait for the
    // disk.
    let alone = ["sweep", "reload", "loadaof"].into_iter().find(|name| is(args.at(1), name));
    if let (Some(name), true) = (alone, s.exec.is_running()) {
        let what = format!("DEBUG {name} is not possible in MULTI and in scripts");
        return Err(Failure::request(what));
    }
    match (args.at(1), args.len()) {
        (c, 2 | 3) if is(c, "sweep") => {
            let count = args.get(2).map_or(Some(1000), integer).ok_or(Failure::NOT_AN_INTEGER)?;
            let most = count.clamp(0, 10_000) as usize;
            let (swept, done) = Sweeper::default().step(&s.shared, most);
            done?;
            out.integer((swept.removed + swept.fields) as i64);
        }
        (c, 3) if is(c, "set-active-expire") => {
            let on = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)? != 0;
            s.shared.sweeps.store(on, Relaxed);
            out.ok();
        }
        (c, 3) if is(c, "set-disable-deny-scripts") => {
            let on = integer(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)? != 0;
            s.shared.scripts.set_debug(on);
            out.ok();
        }
        (c, 3) if is(c, "sleep") => {
            sleep(s, args.at(2), out)?;
            out.ok();
        }
        (c, 3) if is(c, "error") => {
            let text = String::from_utf8_lossy(args.at(2)).into_owned();
            return Err(Failure::Foreign(text));
        }
        (c, 2..) if is(c, "reload") || is(c, "loadaof") => {
            s.shared.owner.transactions().sync()?;
            out.ok();
        }
        (c, 3) if is(c, "protocol") => return protocol(args.at(2), out),
        (c, 2) if is(c, "help") => {
            out.array(1);
            out.status(&format!("DEBUG {USAGE}"));
        }
        _ => return Err(unknown_subcommand(args, "DEBUG")),
    }
    Ok(())
}

/// Sleeps for some seconds, or until the server stops or the client disconnects.
fn sleep(s: &mut Session, seconds: &[u8], out: &mut Output) -> Outcome {
    let seconds = std::str::from_utf8(seconds).ok().and_then(|text| text.parse().ok());
    let seconds = seconds.filter(|seconds| (0.0..=LONGEST).contains(seconds));
    let time = Duration::from_secs_f64(seconds.ok_or(Failure::NOT_A_FLOAT)?);
    if s.exec.is_running() && !s.exec.may_sleep(time, LONGEST_UNDER_LOCKS) {
        return Err(Failure::request(format!(
            "DEBUG SLEEP takes at most {LONGEST_UNDER_LOCKS:?} in all in MULTI and in scripts, where it holds locks"
        )));
    }
    out.will_wait();
    let begun = Instant::now();
    while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        s.check_stopping()?;
        if out.is_gone() {
            break;
        }
        std::thread::sleep(left.min(LOOK));
    }
    Ok(())
}

fn protocol(kind: &[u8], out: &mut Output) -> Outcome {
    match kind {
        o if is(o, "string") => out.bulk(b"Hello World"),
        o if is(o, "integer") => out.integer(12345),
        o if is(o, "double") => out.double(3141.0 / 1000.0),
        o if is(o, "null") => out.null(),
        o if is(o, "array") => {
            out.array(3);
            (0..3).for_each(|n| out.integer(n));
        }
        o if is(o, "set") => {
            out.set(3);
            (0..3).for_each(|n| out.integer(n));
        }
        o if is(o, "map") => {
            out.map(3);
            for n in 0..3 {
                out.integer(n);
                out.boolean(n == 1);
            }
        }
        o if is(o, "attrib") => {
            if out.resp3 {
                out.attribute(1);
                out.bulk(b"key-popularity");
                out.array(2);
                out.bulk(b"key:123");
                out.integer(90);
            }
            out.bulk(b"Some real reply following the attribute");
        }
        o if is(o, "push") => {
            out.push(2);
            out.bulk(b"server-cpu-usage");
            out.integer(42);
        }
        o if is(o, "verbatim") => out.verbatim("This is a verbatim\nstring"),
        o if is(o, "bignum") => out.big_number("1234567999999999999999999999999999999"),
        o if is(o, "true") => out.boolean(true),
        o if is(o, "false") => out.boolean(false),
        _ => {
            return Err(Failure::request(
                "Wrong protocol type name. Please use one of the following: string|integer|double|null|array|set|map|attrib|push|verbatim|true|false",
            ));
        }
    }
    Ok(())
}
