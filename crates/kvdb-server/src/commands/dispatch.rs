//! Dispatch of a command from its name to its handler.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::row::{InMulti, NONE, Shown};
use super::{COMMANDS, Command, find, monitor, multi, sealed, tracking, wrong_arity};
use crate::dictionaries::Place;
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::Arguments;
use crate::session::{SNAPSHOT, Session};
use crate::slow_log::{Entry, shortened};

/// Runs one request and writes its reply, followed by the messages that have arrived.
pub fn run(s: &mut Session, args: Arguments<'_>, out: &mut Output) {
    let index = find(args.at(0));
    let muted = s.replies.mutes_next() && !index.is_some_and(|index| COMMANDS[index].pushes);
    if muted {
        out.mute();
    }
    if let Some(command) = index.map(|index| &COMMANDS[index])
        && !pause(s, command, out)
    {
        s.closing = true;
        return;
    }
    match s.tracks.as_ref().is_some_and(|tracks| tracks.no_loop) {
        true => kvdb::with_author(s.id, || answer(s, index, args, out)),
        false => answer(s, index, args, out),
    }
    if !s.multi.is_queuing()
        && let Some(tracks) = &mut s.tracks
        && index.is_some_and(|index| !COMMANDS[index].controls)
    {
        tracks.caching = None;
    }
    out.unmute();
    if s.multi.is_queuing() || index.is_some_and(|index| COMMANDS[index].keys == NONE) {
        s.show(out.resp3);
    }
    if s.listens() {
        s.deliver(out);
    }
}

/// Replies to a request that was refused because it was too large.
pub fn refuse(s: &mut Session, why: &str, out: &mut Output) {
    if s.replies.mutes_next() {
        out.mute();
    }
    s.shared.metrics.commands.fetch_add(1, Relaxed);
    s.shared.metrics.count_error(why);
    s.multi.spoil();
    out.error(why);
    out.unmute();
}

/// Waits while commands of this kind are paused (`CLIENT PAUSE`). Commands that end a pause do
/// not wait. Returns `false` if the client has disconnected during the wait.
fn pause(s: &Session, command: &Command, out: &Output) -> bool {
    let with_writes = command.paused_with_writes;
    command.controls || s.shared.pause.wait(with_writes, || out.will_wait(), || out.is_gone())
}

fn answer(s: &mut Session, index: Option<usize>, args: Arguments<'_>, out: &mut Output) {
    let Some(index) = index else {
        s.shared.metrics.unknown.fetch_add(1, Relaxed);
        s.shared.metrics.commands.fetch_add(1, Relaxed);
        let failure = if s.identity.is_authenticated() { unknown(args) } else { NOAUTH };
        s.multi.spoil();
        s.shared.metrics.count_error(&failure.to_string());
        return out.error(&failure.to_string());
    };
    let command = &COMMANDS[index];
    if s.is_subscribed() && !out.resp3 && !command.among_messages {
        return out.error(&format!(
            "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
            command.name
        ));
    }
    if s.multi.is_queuing() && command.in_multi != InMulti::AtOnce {
        match admit(s, command, args).and_then(|()| multi::queue(s, command, args)) {
            Ok(()) => out.status("QUEUED"),
            Err(failure) => {
                s.multi.spoil();
                out.error(&failure.to_string());
            }
        }
        return;
    }
    let is_held = |s: &Session| command.writes && s.durable && s.inside().is_none();
    // The command itself may switch replies on or off.
    let held = is_held(s);
    out.begin_reply(held);
    let done = run_one(s, index, args, out);
    out.end_reply(done && (held || is_held(s)));
}

/// Runs the command at `index` of the table and writes its reply. Returns `false` if the reply is
/// an error.
pub fn run_one(s: &mut Session, index: usize, args: Arguments<'_>, out: &mut Output) -> bool {
    let started = Instant::now();
    let waited = std::mem::take(&mut s.waited);
    let command = &COMMANDS[index];
    s.connection.does(index, started);
    if s.tracks.is_some() {
        tracking::note(s, command, args);
    }
    let outcome = match admit(s, command, args) {
        Ok(()) if s.shared.monitors.are_there() => run_shown(s, command, args, out),
        Ok(()) => (command.run)(s, args, out),
        Err(failure) => Err(refused(s, command, failure)),
    };
    if let Err(failure) = &outcome {
        let text = failure.to_string();
        s.shared.metrics.count_error(&text);
        out.error(&text);
    }
    let took = started.elapsed().saturating_sub(std::mem::replace(&mut s.waited, waited));
    s.shared.metrics.count(index, took, outcome.is_ok());
    if s.shared.slow_log.wants(took) {
        note_slow(s, command, args, took);
    }
    let done = outcome.is_ok();
    if s.exec.is_running() {
        s.exec.stop(outcome.err().filter(Failure::is_of_the_store));
    }
    done
}

/// Runs a command, and shows it to the clients that monitor commands.
fn run_shown(s: &mut Session, command: &Command, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let first = command.shown == Shown::Before;
    if first {
        monitor::show(s, command, args);
    }
    let outcome = (command.run)(s, args, out);
    if !first {
        monitor::show(s, command, args);
    }
    outcome
}

/// Adds a slow command to the slow log. `EXEC` is not added, because its commands are added
/// individually.
fn note_slow(s: &Session, command: &Command, args: Arguments<'_>, took: Duration) {
    if command.runs_queue {
        return;
    }
    s.shared.slow_log.keep(Entry {
        number: 0,
        at: s.db().wall_clock().as_secs(),
        micros: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        words: shortened(args, command.is_secret(args)),
        address: s.connection.address.clone(),
        name: s.identity.name().to_owned(),
    });
}

/// Returns the reason why a command is not run. A malformed `EXEC` discards the queue, so that
/// the next `EXEC` does not run commands that the client believes to be discarded.
fn refused(s: &mut Session, command: &Command, failure: Failure) -> Failure {
    if !command.runs_queue || !s.multi.is_queuing() {
        return failure;
    }
    s.multi.discard();
    let why = failure.to_string();
    let why = why.strip_prefix("ERR ").unwrap_or(&why);
    Failure::coded(ErrorCode::ExecAbort, format!("Transaction discarded because of: {why}"))
}

fn admit(s: &Session, command: &Command, args: Arguments<'_>) -> Outcome {
    if !s.identity.is_authenticated() && !command.open {
        return Err(NOAUTH);
    }
    let wanted = command.arity.unsigned_abs() as usize;
    if matches!(s.place, Place::Snapshot(..)) && !command.is_for_snapshots(args) {
        return Err(SNAPSHOT);
    }
    let fits = if command.arity < 0 { args.len() >= wanted } else { args.len() == wanted };
    if fits { sealed::admit(s, command, args) } else { Err(wrong_arity(command.name)) }
}

const NOAUTH: Failure =
    Failure::Coded(ErrorCode::NoAuth, std::borrow::Cow::Borrowed("Authentication required."));

fn unknown(args: Arguments<'_>) -> Failure {
    let mut shown = String::new();
    for arg in args.from(1) {
        if shown.len() >= 128 {
            break;
        }
        let arg = &arg[..arg.len().min(128 - shown.len())];
        shown.push_str(&format!("'{}' ", String::from_utf8_lossy(arg)));
    }
    let name = args.at(0);
    let name = String::from_utf8_lossy(&name[..name.len().min(128)]).into_owned();
    Failure::request(format!("unknown command '{name}', with args beginning with: {shown}"))
}
