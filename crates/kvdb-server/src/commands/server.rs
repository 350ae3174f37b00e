//! Commands that concern the server: its time, its statistics, checks, and syncs.

use super::administration::NO_REPLICAS;
use super::is;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

/// Replies after everything that was acknowledged before this command is on disk. A client that
/// has announced itself as a replica expects the `SYNC` of Redis, which sends a file.
pub fn sync(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if s.identity.is_replica() && is(args.at(0), "sync") {
        return Err(NO_REPLICAS);
    }
    sync_now(s, out)?;
    out.ok();
    Ok(())
}

/// Waits until everything that was acknowledged so far is on disk, and records the time for
/// `LASTSAVE`.
fn sync_now(s: &Session, out: &Output) -> Outcome {
    out.will_wait();
    s.shared.owner.sync(s.db())?;
    Ok(())
}

/// `BGSAVE [SCHEDULE]`: does the same as `SAVE`. The reply is the text that a client expects
/// before it polls `LASTSAVE`.
pub fn bgsave(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match args.get(1) {
        None => {}
        Some(o) if is(o, "schedule") && args.len() == 2 => {}
        Some(_) => return Err(Failure::SYNTAX),
    }
    sync_now(s, out)?;
    out.status("Background saving started");
    Ok(())
}

/// Replies with the time of the last sync that a client has requested, in seconds since 1970.
/// Before the first sync it is the time at which the server was started.
pub fn lastsave(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    out.integer(s.shared.owner.last_sync() as i64);
    Ok(())
}

/// `SHUTDOWN [NOSAVE|SAVE] [NOW] [FORCE] [ABORT]`: returns an error. The server ends with the
/// program that has opened the store, which is usually a mount, and a client must not take its
/// files away.
pub fn shutdown(_: &mut Session, args: Arguments<'_>, _: &mut Output) -> Outcome {
    let given = |name: &str| args.from(1).any(|word| is(word, name));
    let known = ["nosave", "save", "now", "force", "abort"];
    let all_known = args.from(1).all(|word| known.iter().any(|name| is(word, name)));
    let others = known.iter().take(4).any(|name| given(name));
    if !all_known || given("abort") && others || given("nosave") && given("save") {
        return Err(Failure::SYNTAX);
    }
    if given("abort") {
        return Err(Failure::request("No shutdown in progress."));
    }
    Err(Failure::request(
        "no client ends this server: unmount the store, or end the program that serves it",
    ))
}

/// Replies with 0, because there are no replicas.
pub fn wait(_: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    integer(args.at(1)).and(integer(args.at(2))).ok_or(Failure::NOT_AN_INTEGER)?;
    out.integer(0);
    Ok(())
}

/// `WAITAOF local replicas timeout`: does the same as `SYNC`, under the name that Redis uses.
pub fn waitaof(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    integer(args.at(1))
        .and(integer(args.at(2)))
        .and(integer(args.at(3)))
        .ok_or(Failure::NOT_AN_INTEGER)?;
    sync_now(s, out)?;
    out.array(2);
    out.integer(1);
    out.integer(0);
    Ok(())
}

/// Replies with the time of the clock that decides when keys expire.
pub fn time(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let now = s.db().wall_clock();
    out.array(2);
    out.bulk(now.as_secs().to_string().as_bytes());
    out.bulk(now.subsec_micros().to_string().as_bytes());
    Ok(())
}

/// Replies with the counters of the server and the owner's statistics, as one JSON object:
/// `{"server": …, "store": …}`.
pub fn stat(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let store = s.shared.owner.info().unwrap_or_else(|| "null".into());
    out.bulk(format!("{{\"server\":{},\"store\":{store}}}", s.shared.metrics.json()).as_bytes());
    Ok(())
}

/// `KVFS.CHECK`: lets the owner of the store check its data, and replies with the faults and the
/// amount of checked data, as JSON.
pub fn check(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let nothing = || Failure::request("there are no files in this store that could be checked");
    let check = s.shared.owner.check().cloned().ok_or_else(nothing)?;
    out.bulk(check()?.as_bytes());
    Ok(())
}

/// `KVFS.PUSH address`: publishes the store to object storage, and replies with statistics as
/// JSON when it has finished. The address may name a place on this machine, so a client on the
/// network may not use this command to create files.
pub fn push(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    let nothing = || Failure::request("this server publishes nothing");
    let publish = s.shared.owner.publish().cloned().ok_or_else(nothing)?;
    if s.identity.needs_password() {
        return Err(Failure::request("a store is published over its Unix socket alone"));
    }
    let address = str::from_utf8(args.at(1));
    let address = address.map_err(|_| Failure::request("an address is UTF-8"))?;
    out.bulk(publish(address).map_err(Failure::request)?.as_bytes());
    Ok(())
}
