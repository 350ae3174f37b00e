//! `CLIENT`: changes the settings of a connection, and lists and controls other connections.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use super::{COMMANDS, is, tracking, unknown_subcommand};
use crate::clients::{Connection, Unblocked};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::{Replies, Session, Shared};

pub const USAGE: &str = "ID | GETNAME | SETNAME name | SETINFO LIB-NAME|LIB-VER value | INFO | LIST [TYPE type] [ID id ...] | \
     KILL address | KILL [ID id] [ADDR address] [LADDR address] [TYPE type] [USER name] [SKIPME yes|no] | UNBLOCK id [TIMEOUT|ERROR] | \
     PAUSE milliseconds [WRITE|ALL] | UNPAUSE | REPLY ON|OFF|SKIP | NO-EVICT ON|OFF | TRACKING ON|OFF [REDIRECT id] [PREFIX prefix ...] [BCAST] [OPTIN] [OPTOUT] [NOLOOP] | CACHING YES|NO | TRACKINGINFO | GETREDIR";

pub fn name(name: &[u8]) -> Result<String, Failure> {
    let fits = name.len() <= 256 && name.iter().all(u8::is_ascii_graphic);
    let name = fits.then(|| String::from_utf8_lossy(name).into_owned());
    name.ok_or(Failure::request(
        "Client names cannot contain spaces, newlines or special characters.",
    ))
}

pub fn client(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match (args.at(1), args.len()) {
        (c, 2) if is(c, "id") => out.integer(s.id as i64),
        (c, 2) if is(c, "getname") => {
            out.value(Some(s.identity.name().as_bytes()).filter(|name| !name.is_empty()))
        }
        (c, 3) if is(c, "setname") => {
            s.identity.set_name(name(args.at(2))?);
            out.ok();
        }
        (c, 4) if is(c, "setinfo") => {
            set_info(s, args)?;
            out.ok();
        }
        (c, 2) if is(c, "info") => {
            s.show(out.resp3);
            out.verbatim(&line(&s.connection, &s.shared));
        }
        (c, _) if is(c, "list") => list(s, args, out)?,
        (c, 3..) if is(c, "kill") => kill(s, args, out)?,
        (c, 3 | 4) if is(c, "unblock") => {
            let found = unblock(s, args)?;
            out.integer(i64::from(found));
        }
        (c, 3 | 4) if is(c, "pause") => {
            pause(s, args)?;
            out.ok();
        }
        (c, 2) if is(c, "unpause") => {
            s.shared.pause.end();
            out.ok();
        }
        (c, 3) if is(c, "reply") && !s.exec.is_running() => reply(s, args.at(2), out)?,
        (c, 3) if is(c, "no-evict") || is(c, "no-touch") => match args.at(2) {
            o if is(o, "on") || is(o, "off") => out.ok(),
            _ => return Err(Failure::SYNTAX),
        },
        (c, 3..) if is(c, "tracking") => tracking::tracking(s, args, out)?,
        (c, 3) if is(c, "caching") => tracking::caching(s, args, out)?,
        (c, 2) if is(c, "trackinginfo") => tracking::info(s, out),
        (c, 2) if is(c, "getredir") => out.integer(tracking::redirect(s)),
        (c, 2) if is(c, "help") => {
            out.array(1);
            out.status(&format!("CLIENT {USAGE}"));
        }
        _ => return Err(unknown_subcommand(args, "CLIENT")),
    }
    Ok(())
}

/// Executes `CLIENT SETINFO LIB-NAME|LIB-VER value`.
fn set_info(s: &mut Session, args: Arguments<'_>) -> Outcome {
    let value = name(args.at(3))?;
    match args.at(2) {
        o if is(o, "lib-name") => s.identity.set_library(value),
        o if is(o, "lib-ver") => s.identity.set_library_version(value),
        o => {
            let o = String::from_utf8_lossy(o);
            return Err(Failure::request(format!("Unrecognized option '{o}'")));
        }
    }
    Ok(())
}

/// `CLIENT UNBLOCK id [TIMEOUT|ERROR]`: returns whether a client with this number was blocked.
fn unblock(s: &Session, args: Arguments<'_>) -> Result<bool, Failure> {
    let how = match args.get(3) {
        None => Unblocked::TimedOut,
        Some(o) if is(o, "timeout") => Unblocked::TimedOut,
        Some(o) if is(o, "error") => Unblocked::Refused,
        Some(_) => {
            return Err(Failure::request("CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
        }
    };
    let found = s.shared.clients.get(number(args.at(2), Failure::NOT_AN_INTEGER)?);
    Ok(found.is_some_and(|client| client.unblock(how)))
}

/// Executes `CLIENT PAUSE milliseconds [WRITE|ALL]`.
fn pause(s: &Session, args: Arguments<'_>) -> Outcome {
    let wrong = || Failure::request("timeout is not an integer or out of range");
    let time = integer(args.at(2)).ok_or_else(wrong)?;
    let time = u64::try_from(time).map_err(|_| Failure::request("timeout is negative"))?;
    let writes_only = match args.get(3) {
        None => false,
        Some(o) if is(o, "all") => false,
        Some(o) if is(o, "write") => true,
        Some(_) => return Err(Failure::request("CLIENT PAUSE mode must be WRITE or ALL")),
    };
    s.shared.pause.begin(Duration::from_millis(time), writes_only);
    Ok(())
}

fn number(arg: &[u8], otherwise: Failure) -> Result<u64, Failure> {
    integer(arg).and_then(|id| u64::try_from(id).ok()).ok_or(otherwise)
}

/// `CLIENT REPLY`: selects the replies that are sent from now on. Only `ON` itself has a reply.
fn reply(s: &mut Session, wanted: &[u8], out: &mut Output) -> Outcome {
    match wanted {
        o if is(o, "on") => {
            s.replies = Replies::On;
            out.unmute();
            out.ok();
        }
        o if is(o, "off") => {
            out.mute();
            s.replies = Replies::Off;
        }
        o if is(o, "skip") => {
            out.mute();
            if s.replies == Replies::On {
                s.replies = Replies::SkipNext;
            }
        }
        _ => return Err(Failure::SYNTAX),
    }
    Ok(())
}

/// Returns the address of the listener to which a client has connected.
fn local_address(client: &Connection, shared: &Shared) -> String {
    match shared.access.tcp().filter(|_| client.address.contains(':')) {
        Some(address) => address.to_string(),
        None => client.address.clone(),
    }
}

/// Returns the row of a connection in `CLIENT LIST`.
fn line(client: &Connection, shared: &Shared) -> String {
    let shown = client.shown.lock().clone();
    let mut flags = String::new();
    for (letter, set) in [
        ('O', shown.monitors),
        ('b', client.is_blocked()),
        ('x', shown.queued.is_some()),
        ('P', shown.channels + shown.patterns + shown.shards > 0),
        ('t', shown.tracks.is_some()),
        (
            'R',
            shown.tracks.and_then(|(_, to)| to).is_some_and(|to| shared.clients.get(to).is_none()),
        ),
        ('B', shown.tracks.is_some_and(|(all, _)| all)),
    ] {
        if set {
            flags.push(letter);
        }
    }
    let (waiting, bytes) = client.mailbox.waiting();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={} db={} sub={} psub={} ssub={} multi={} qbuf=0 qbuf-free=0 argv-mem=0 \
         multi-mem=0 rbs=0 rbp=0 obl=0 oll={waiting} omem={bytes} tot-mem={bytes} events=r cmd={} user=default redir={} resp={} \
         lib-name={} lib-ver={}",
        client.id,
        client.address,
        local_address(client, shared),
        shown.name,
        client.since.elapsed().as_secs(),
        client.idle().as_secs(),
        if flags.is_empty() { "N" } else { &flags },
        shown.dictionary,
        shown.channels,
        shown.patterns,
        shown.shards,
        shown.queued.map_or(-1, |queued| queued as i64),
        client.command().and_then(|at| COMMANDS.get(at)).map_or("NULL", |command| command.name),
        shown.tracks.map_or(-1, |(_, redirect)| redirect.unwrap_or(0) as i64),
        if shown.resp3 { 3 } else { 2 },
        shown.library.0,
        shown.library.1,
    );
    text
}

/// Returns whether a client is of the given type of Redis. Masters and replicas do not exist in
/// this server.
fn is_of_type(client: &Connection, kind: &[u8]) -> Result<bool, Failure> {
    match kind {
        o if is(o, "normal") => Ok(!client.listens()),
        o if is(o, "pubsub") => Ok(client.listens()),
        o if ["master", "replica", "slave"].iter().any(|name| is(o, name)) => Ok(false),
        o => {
            let o = String::from_utf8_lossy(&o[..o.len().min(64)]).into_owned();
            Err(Failure::request(format!("Unknown client type '{o}'")))
        }
    }
}

/// Executes `CLIENT LIST [TYPE type] [ID id ...]`.
fn list(s: &Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    s.show(out.resp3);
    let all = s.shared.clients.all();
    let found: Vec<Arc<Connection>> = match (args.get(2), args.len()) {
        (None, _) => all,
        (Some(o), 4) if is(o, "type") => {
            is_of_type(&s.connection, args.at(3))?;
            let of = |client: &Arc<Connection>| is_of_type(client, args.at(3)).unwrap_or(false);
            all.into_iter().filter(of).collect()
        }
        (Some(o), 4..) if is(o, "id") => {
            let mut ids = Vec::new();
            for id in args.from(3) {
                ids.push(number(id, Failure::request("Invalid client ID"))?);
            }
            ids.into_iter().filter_map(|id| s.shared.clients.get(id)).collect()
        }
        _ => return Err(Failure::SYNTAX),
    };
    out.verbatim(&found.iter().map(|client| line(client, &s.shared)).collect::<String>());
    Ok(())
}

/// A filter that selects the connections to close.
#[derive(Default)]
struct Killed<'a> {
    id: Option<u64>,
    address: Option<&'a [u8]>,
    local: Option<&'a [u8]>,
    kind: Option<&'a [u8]>,
    user: Option<&'a [u8]>,
    with_me: bool,
}

impl<'a> Killed<'a> {
    fn parse(args: Arguments<'a>) -> Result<Self, Failure> {
        if args.len() == 3 {
            return Ok(Killed { address: args.get(2), with_me: true, ..Killed::default() });
        }
        let mut killed = Killed::default();
        let mut options = args.from(2);
        while let Some(option) = options.next() {
            let value = options.next().ok_or(Failure::SYNTAX)?;
            match option {
                o if is(o, "id") => {
                    let wrong = Failure::request("client-id should be greater than 0");
                    killed.id = Some(number(value, wrong)?);
                }
                o if is(o, "addr") => killed.address = Some(value),
                o if is(o, "laddr") => killed.local = Some(value),
                o if is(o, "type") => killed.kind = Some(value),
                o if is(o, "user") && is(value, "default") => killed.user = Some(value),
                o if is(o, "user") => {
                    let value = String::from_utf8_lossy(value).into_owned();
                    return Err(Failure::request(format!("No such user '{value}'")));
                }
                o if is(o, "skipme") && is(value, "yes") => killed.with_me = false,
                o if is(o, "skipme") && is(value, "no") => killed.with_me = true,
                _ => return Err(Failure::SYNTAX),
            }
        }
        Ok(killed)
    }

    fn has(&self, client: &Connection, s: &Session) -> Result<bool, Failure> {
        let of_type = self.kind.map_or(Ok(true), |kind| is_of_type(client, kind))?;
        let at = |local: &[u8]| local == local_address(client, &s.shared).as_bytes();
        Ok(of_type
            && self.local.is_none_or(at)
            && self.id.is_none_or(|id| id == client.id)
            && self.address.is_none_or(|address| address == client.address.as_bytes())
            && (self.with_me || client.id != s.id))
    }
}

/// `CLIENT KILL`: closes the connection with an address, or all connections that match filters.
/// With filters, the reply is the number of closed connections.
fn kill(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let killed = Killed::parse(args)?;
    let mut count = 0;
    for client in s.shared.clients.all() {
        if !killed.has(&client, s)? {
            continue;
        }
        count += 1;
        // If the client closes its own connection, the connection ends after the reply.
        match client.id == s.id {
            true => s.closing = true,
            false => client.close(),
        }
    }
    match args.len() {
        3 if count == 0 => return Err(Failure::request("No such client")),
        3 => out.ok(),
        _ => out.integer(count),
    }
    Ok(())
}
